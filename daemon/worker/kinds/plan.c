/* polyd-worker plan [--root NAME=PATH]... [--cache DIR] [--state DIR] [--memory BYTES]: bytes by category of
 * a resolved job; where they are more than those given, also with how much accumulation they would fit. Paths
 * of checkpoints begin in the state folder. A kind that needs no memory worth a forecast has an empty object.
 *
 * Exit status: 0; 1 for lack of memory or a similar failure; 2 for wrong arguments; 3 where the document or its data
 * are to blame, so that another try would end alike. The last line of standard error says why.
 *
 * With --start: instead, what attention is before the first step, and the time of a step (train_preview), measured by
 * running the network once on the CPU.
 *
 * With --roofline [--tflops N] [--tbs N]: instead, what a step moves and multiplies, node by node, and its
 * time at these speeds (790 and 4.3: an H200), as tables. Counted; no device is needed. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/train/train.h"
#include "daemon/wire/wire.h"
#include "daemon/worker/kinds/kinds.h"
#include "daemon/worker/process/args.h"
#include "daemon/worker/process/roots.h"
#include "daemon/worker/process/worker.h"
#include "kernels/base/buf.h"
#include "kernels/graph/roofline.h"

/* A positive number after `name`, if that is there. */
static bool peak(int argc, char **argv, const char *name, double unit, double *ret)
{
    const char *text = args_get(argc, argv, name);
    char *end;
    double x;

    if (!text)
        return true;
    x = strtod(text, &end);
    if (*end || !(x > 0 && x < 1e9)) {
        fprintf(stderr, "polyd-worker plan: '%s %s' is not a positive number\n", name, text);
        return false;
    }
    *ret = x * unit;
    return true;
}

int worker_plan_main(int argc, char **argv)
{
    struct data_root roots[LINK_ROOTS_MAX];
    struct job_config *config = NULL;
    struct pd_buf in, out;
    struct pd_why why = {""};
    int root_count;
    size_t n;
    char piece[65536];
    struct pk_peaks peaks = PK_PEAKS_H200;
    struct kind_plan at = {.roots = roots,
                           .cache = args_get(argc, argv, "--cache"),
                           .state_dir = args_get(argc, argv, "--state")};
    const struct worker_kind *kind;
    double memory = 0;
    bool roofline = false, start = false;
    enum pd_err err;

    for (int i = 0; i < argc; i++) {
        roofline = roofline || strcmp(argv[i], "--roofline") == 0;
        start = start || strcmp(argv[i], "--start") == 0;
    }
    if (args_get(argc, argv, "--memory"))
        memory = strtod(args_get(argc, argv, "--memory"), NULL);
    if (!peak(argc, argv, "--tflops", 1e12, &peaks.flops) || !peak(argc, argv, "--tbs", 1e12, &peaks.bytes))
        return 2;

    root_count = worker_roots(argc, argv, "plan", roots);
    if (root_count < 0)
        return 2;
    pd_buf_init(&in, JOB_MAX_BYTES);
    pd_buf_init(&out, 0);
    while ((n = fread(piece, 1, sizeof piece, stdin)) > 0)
        pd_buf_append(&in, piece, n);
    err = pd_buf_err(&in);
    if (err == PD_OK && !in.len)
        err = pd_fail(&why, PD_ERR_INVALID, "standard input has no document");
    else if (err != PD_OK)
        pd_fail(&why, err, "the document is too large");
    if (err == PD_OK)
        err = job_config_load(in.data, in.len, &config, &why);
    at.root_count = (size_t)root_count;
    at.memory_bytes = memory > 0 && memory < 9e18 ? (int64_t)memory : 0;
    at.state_dir = at.state_dir ? at.state_dir : "";
    kind = err == PD_OK ? kind_find((enum job_kind)config->kind) : NULL;
    if (kind && start && config->kind != JOB_KIND_TRAIN)
        err = pd_fail(&why, PD_ERR_INVALID, "#/kind: only a job of kind train has a start");
    else if (kind && start)
        err = train_preview(config, at.state_dir, roots, at.root_count, at.cache, &out, &why);
    else if (kind && !kind->plan)
        pd_buf_str(&out, "{}");
    else if (kind)
        err = roofline ? train_count(config, at.state_dir, roots, at.root_count, at.cache, at.memory_bytes,
                                     &peaks, &out, &why)
                       : kind->plan(config, &at, &out, &why);
    if (err == PD_OK && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)))
        err = pd_fail(&why, PD_ERR_IO, "cannot write the plan");
    if (err != PD_OK)
        fprintf(stderr, "%s\n", why.text);
    job_config_free(config);
    pd_buf_done(&in);
    pd_buf_done(&out);
    /* A sentence that names no field is about this machine: a back end that is missing, say. */
    return err == PD_OK ? 0 : pd_err_lasting(err) && !strncmp(why.text, "#/", 2) ? WIRE_PLAN_INVALID : 1;
}
