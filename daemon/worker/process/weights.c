/* polyd-worker weights layout --file PATH: where the bytes of a checkpoint's public weights lie, as JSON. The
 * document that describes the network is read on standard input; none if that is empty.
 *
 * Exit status: 0; 1 for want of memory and the like; 2 for wrong arguments; 3 where the file is to blame. The
 * last line of standard error says why. */
#include "daemon/worker/weights/weights.h"

#include <stdio.h>
#include <string.h>

#include "daemon/wire/wire.h"
#include "daemon/worker/process/args.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/file.h"

#define DOCUMENT_MAX ((size_t)1 << 20)

static enum pd_err layout(int argc, char **argv, const char *document, struct pd_buf *out, struct pd_why *why)
{
    const char *file = args_get(argc, argv, "--file");

    if (!file)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "weights layout: --file is missing");
    return weights_layout(file, document, out, why);
}

static const struct {
    const char *name;
    enum pd_err (*run)(int argc, char **argv, const char *document, struct pd_buf *out, struct pd_why *why);
} commands[] = {{"layout", layout}};

static int status_of(enum pd_err err)
{
    return err == PD_ERR_UNSUPPORTED                                                   ? 2
           : err == PD_ERR_INVALID || err == PD_ERR_CORRUPT || err == PD_ERR_NOT_FOUND ? WIRE_PLAN_INVALID
                                                                                       : 1;
}

int worker_weights_main(int argc, char **argv)
{
    struct pd_buf document, out;
    struct pd_why why = {"weights: there is layout"};
    enum pd_err err = PD_ERR_UNSUPPORTED;

    pd_buf_init(&document, 0);
    pd_buf_init(&out, 0);
    for (size_t i = 0; argc > 0 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, argv[0]) != 0)
            continue;
        err = pd_file_read("/dev/stdin", DOCUMENT_MAX, &document, &why);
        if (err == PD_OK)
            err = commands[i].run(argc - 1, argv + 1, document.data, &out, &why);
    }
    pd_buf_done(&document);
    if (err == PD_OK)
        return worker_print(&out);
    pd_buf_done(&out);
    fprintf(stderr, "%s\n", why.text);
    return status_of(err);
}
