/* daemon/worker/train/reporter.h: private to this module: reports of a run: events, log lines, points, and
 * means over the steps since the last report.
 *
 * Depends only on the host's callbacks. Training thread only. */
#pragma once

#include "daemon/worker/train/train.h"
#include "kernels/backend/backend.h"

struct pk_comm;
struct reporter;

/* `host` is borrowed until reporter_free. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err reporter_new(const struct train_host *host, struct reporter **ret,
                                      struct pd_why *why);
/* Unsent reports are lost. NULL is fine; returns NULL. */
struct reporter *reporter_free(struct reporter *r);

/* An event for the host; fields are "key=value" pairs. */
void reporter_event(struct reporter *r, const char *kind, const char *fields, const char *text);
/* A line for the attempt's log. */
void reporter_log(struct reporter *r, const char *fmt, ...) PD_PRINTF(2, 3);
void reporter_progress(struct reporter *r, int64_t done, int64_t total);

/* The step of all points from now on; 0 at first. */
void reporter_set_step(struct reporter *r, int64_t step);
/* Adds a point; `key` is borrowed until it is sent. */
void reporter_push(struct reporter *r, const char *key, double value);
/* A formatted key, valid as long as the reporter; equal texts give the same pointer. NULL: out of memory. */
const char *reporter_key(struct reporter *r, const char *fmt, ...) PD_PRINTF(2, 3);
/* Passes a blob of this step to the host. */
void reporter_blob(struct reporter *r, struct train_blob *blob);
/* Passes all points to the host. */
void reporter_send(struct reporter *r);
/* A line of the log for each point that was not sent yet. */
void reporter_log_points(struct reporter *r);

/* Digests of the data that the run is computed from, and of the program. */
void reporter_inputs(struct reporter *r, const struct data_set *set);
/* Reports, once, parts of the data that are not used. */
void reporter_warnings(struct reporter *r, const struct data_set *set);
/* Reports pictures that could not be decoded since the last time. */
void reporter_bad(struct reporter *r, const struct data_set *set);

/* ---- kernels that are compiled at the start ---- */

/* A pk_compile_note whose `user` is the reporter: shows a compilation as the run's phase, and counts it. */
void reporter_compiling(void *reporter, const struct pk_compiling *now);
/* Reports, once per start, what was compiled and how long that took: event compiled, and a line of the log. Nothing if
 * nothing was. */
void reporter_compiled(struct reporter *r);

/* ---- means over steps ---- */

/* The quantities averaged. Pointers are borrowed until the last flush. */
struct reporter_meter {
    int64_t steps;                    /* of the whole run */
    int64_t units;                    /* of throughput, in a step of all ranks */
    const char *throughput;           /* the key of units per second */
    double peak_flops;                /* of the device, per second; 0: not known */
    const struct data_loader *loader; /* what steps wait for */
    const struct pk_comm_api *comm_api;
    const struct pk_comm *comm; /* what steps wait for, too; NULL: one rank */
};
/* To be called before the first flush. */
void reporter_measure(struct reporter *r, const struct reporter_meter *meter);
/* reporter_busy adds time spent in an unfinished step, reporter_step completes a step, in which this rank
 * did `flop` operations. `loss` is for the log. */
void reporter_busy(struct reporter *r, int64_t us);
void reporter_step(struct reporter *r, int64_t us, double flop, double loss);
/* Passes the means, all points and the progress to the host. */
void reporter_flush(struct reporter *r);
/* The same if the interval has passed, or if there are many points. */
void reporter_flush_due(struct reporter *r);
