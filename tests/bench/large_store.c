/* large_store DIR RUNS KEYS POINTS: a state directory with RUNS ended jobs of one run each, every run with
 * KEYS series of POINTS points, written by the real store. For tests/bench/large.mjs. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "daemon/job/state.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

#define BATCH 1000

struct fill {
    long keys, points, run;
};

static enum pd_err apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct fill *f = ctx;
    char name[64], key[32];
    struct store_job_new job = {.name = name, .experiment = "large", .document = "{}"};
    struct store_run_new row = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 1, .total_steps = f->points};
    struct store_attempt_new attempt = {.devices = "cpu:0"};
    static struct store_metric m[BATCH];
    int64_t id, run = 0, now = pd_clock_wall_us();
    int number = 0;
    enum pd_err err;

    snprintf(name, sizeof name, "large %ld", f->run);
    err = store_job_insert(tx, &job, &id, why);
    if (err == PD_OK)
        err = store_run_insert(tx, id, &row, &run, why);
    attempt.run_id = run;
    if (err == PD_OK)
        err = store_attempt_insert(tx, &attempt, &number, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, run, number, JOB_ATTEMPT_RUNNING, 0, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, run, JOB_RUN_RUNNING, 0, NULL, why);
    for (long k = 0; k < f->keys && err == PD_OK; k++) {
        snprintf(key, sizeof key, "series/%ld", k);
        for (long p = 0; p < f->points && err == PD_OK;) {
            size_t n = 0;

            for (; n < BATCH && p < f->points; n++, p++)
                m[n] = (struct store_metric){key, p, now + p * 1000,
                                             2.0 / (1.0 + 0.01 * (double)p) +
                                                 1e-3 * (double)((p * 7919 + f->run) % 97)};
            err = store_metric_append(tx, run, number, m, n, NULL, why);
        }
    }
    if (err == PD_OK)
        err = store_attempt_move(tx, run, number, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, "", false, why);
    if (err == PD_OK)
        err = store_run_move(tx, run, JOB_RUN_ENDED, JOB_OUTCOME_SUCCEEDED, "", why);
    return err;
}

int main(int argc, char **argv)
{
    struct store_writer_options o = {.state_dir = argc > 1 ? argv[1] : ""};
    struct fill f = {0};
    long runs;
    int64_t begun = pd_clock_mono_us();
    struct store_writer *w;
    struct pd_why why = {.text = ""};

    if (argc != 5) {
        fprintf(stderr, "usage: large_store DIR RUNS KEYS POINTS\n");
        return 2;
    }
    runs = strtol(argv[2], NULL, 10);
    f.keys = strtol(argv[3], NULL, 10);
    f.points = strtol(argv[4], NULL, 10);
    mkdir(o.state_dir, 0700);
    if (store_writer_start(&o, &w, &why) != PD_OK) {
        fprintf(stderr, "large_store: %s\n", why.text);
        return 1;
    }
    for (f.run = 0; f.run < runs; f.run++) {
        struct store_work work = {
            .lane = STORE_LANE_COMMAND, .rows = (int)(f.keys * f.points), .apply = apply, .ctx = &f};

        if (store_writer_call(w, &work, &why) != PD_OK) {
            fprintf(stderr, "large_store: %s\n", why.text);
            return 1;
        }
    }
    store_writer_stop(w);
    printf("%ld runs, %.0f rows in %.1f s\n", runs, (double)runs * (double)f.keys * (double)f.points,
           (double)(pd_clock_mono_us() - begun) / 1e6);
    return 0;
}
