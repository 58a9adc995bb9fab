/* What a role that ends at once answers. */
#include <stdio.h>

#include "daemon/worker/process/worker.h"
#include "kernels/base/buf.h"

int worker_print(struct pd_buf *b)
{
    bool good;

    pd_buf_str(b, "\n");
    good = pd_buf_err(b) == PD_OK && fwrite(b->data, 1, b->len, stdout) == b->len && !fflush(stdout);
    pd_buf_done(b);
    return good ? 0 : 1;
}
