/* polyd-worker plan [--root NAME=PATH]... [--cache DIR]: bytes by category of a resolved job. */
#include <stdio.h>
#include <string.h>

#include "daemon/spec/spec.h"
#include "daemon/train/train.h"
#include "daemon/worker/args.h"
#include "daemon/worker/link.h"
#include "daemon/worker/worker.h"
#include "kernels/base/buf.h"

int worker_plan_main(int argc, char **argv)
{
    struct data_root roots[LINK_ROOTS_MAX];
    static char names[LINK_ROOTS_MAX][256];
    struct spec_config *config = NULL;
    struct pd_buf in, out;
    struct pd_why why = {""};
    size_t root_count = 0, n;
    char piece[65536];
    enum pd_err err;

    for (const char *text;
         root_count < LINK_ROOTS_MAX && (text = args_nth(argc, argv, "--root", (int)root_count));) {
        const char *cut = strchr(text, '=');

        if (!cut || (size_t)(cut - text) >= sizeof names[0]) {
            fprintf(stderr, "polyd-worker plan: '--root %s' is not NAME=PATH\n", text);
            return 2;
        }
        memcpy(names[root_count], text, (size_t)(cut - text));
        roots[root_count] = (struct data_root){.name = names[root_count], .path = cut + 1};
        root_count++;
    }
    pd_buf_init(&in, SPEC_MAX_BYTES);
    pd_buf_init(&out, 0);
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        pd_buf_append(&in, piece, n);
    err = pd_buf_err(&in);
    if (err == PD_OK && !in.len)
        err = pd_fail(&why, PD_ERR_INVALID, "no document on standard input");
    else if (err != PD_OK)
        pd_fail(&why, err, "the document is too large");
    if (err == PD_OK)
        err = spec_config_load(in.data, in.len, &config, &why);
    if (err == PD_OK)
        err = train_plan(config, roots, root_count, args_get(argc, argv, "--cache"), &out, &why);
    if (err == PD_OK && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)))
        err = pd_fail(&why, PD_ERR_IO, "cannot write the plan");
    if (err != PD_OK)
        fprintf(stderr, "%s\n", why.text);
    spec_config_free(config);
    pd_buf_done(&in);
    pd_buf_done(&out);
    return err == PD_OK ? 0 : 1;
}
