/* polyd-worker data [--root NAME=PATH]... [--path NAME/RELATIVE]: what the data roots hold, as JSON.
 *
 * Exit status: 0; 1 for lack of memory or a similar failure; 2 for wrong arguments; 3 where --path is to blame. The
 * last line of standard error says why. */
#include <stdio.h>

#include "daemon/worker/data/have.h"
#include "daemon/wire/wire.h"
#include "daemon/worker/process/args.h"
#include "daemon/worker/process/roots.h"
#include "daemon/worker/process/worker.h"

int worker_data_main(int argc, char **argv)
{
    struct data_root roots[LINK_ROOTS_MAX];
    struct pd_buf out;
    struct pd_why why = {""};
    int count = worker_roots(argc, argv, "data", roots);
    enum pd_err err;

    if (count < 0)
        return 2;
    pd_buf_init(&out, 0);
    err = data_have(roots, (size_t)count, args_get(argc, argv, "--path"), &out, &why);
    if (err == PD_OK)
        return worker_print(&out);
    fprintf(stderr, "%s\n", why.text);
    pd_buf_done(&out);
    return err == PD_ERR_INVALID ? WIRE_PLAN_INVALID : 1;
}
