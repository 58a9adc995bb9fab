/* polyd-worker weights COMMAND: JSON about files of weights. A description of the network is read on standard input;
 * there is none if that is empty.
 *
 *   layout --file PATH       where the bytes of a checkpoint's public weights lie
 *   import --to PATH (--file PATH | --path NAME/RELATIVE) [--tokenizer NAME/RELATIVE] [--bytes yes]
 *          [--root NAME=PATH]...   makes a file of the registry of weights that came from elsewhere
 *   average --to PATH       makes a file of the registry of several checkpoints; standard input has a line for each, its
 *          SHA-256 and its path
 *
 * Exit status: 0; 1 for lack of memory or a similar failure; 3 where a file or its description is to blame; 4 where no space is
 * left. The last line of standard error says why. */
#include "daemon/worker/weights/weights.h"

#include <stdio.h>
#include <string.h>

#include "daemon/wire/wire.h"
#include "daemon/worker/process/args.h"
#include "daemon/worker/process/roots.h"
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

static enum pd_err import(int argc, char **argv, const char *document, struct pd_buf *out, struct pd_why *why)
{
    struct data_root roots[LINK_ROOTS_MAX];
    int count = worker_roots(argc, argv, "weights", roots);
    struct weights_import o = {.to = args_get(argc, argv, "--to"),
                               .file = args_get(argc, argv, "--file"),
                               .path = args_get(argc, argv, "--path"),
                               .tokenizer = args_get(argc, argv, "--tokenizer"),
                               .bytes = args_get(argc, argv, "--bytes") != NULL,
                               .description = document,
                               .roots = roots,
                               .root_count = (size_t)(count > 0 ? count : 0)};

    if (count < 0 || !o.to || !o.file == !o.path)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "weights import: --to and one of --file and --path are required");
    return weights_import(&o, out, why);
}

static enum pd_err average(int argc, char **argv, const char *document, struct pd_buf *out,
                           struct pd_why *why)
{
    const char *to = args_get(argc, argv, "--to");

    if (!to)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "weights average: --to is missing");
    return weights_average(to, document ? document : "", out, why);
}

static const struct {
    const char *name;
    enum pd_err (*run)(int argc, char **argv, const char *document, struct pd_buf *out, struct pd_why *why);
} commands[] = {{"layout", layout}, {"import", import}, {"average", average}};

static int status_of(enum pd_err err)
{
    return err == PD_ERR_FULL ? WIRE_PLAN_FULL : pd_err_lasting(err) ? WIRE_PLAN_INVALID : 1;
}

int worker_weights_main(int argc, char **argv)
{
    struct pd_buf document, out;
    struct pd_why why = {"weights: there are layout, import and average"};
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
