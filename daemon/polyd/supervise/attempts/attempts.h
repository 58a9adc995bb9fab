/* daemon/polyd/supervise/attempts/attempts.h: attempts at runs: which run is next, its processes, what they
 * report, and how it ends.
 *
 * It is driven by the rows (see supervise.h). All of it belongs to the loop's thread; the lock guards what
 * other threads look at: which runs have an attempt and how far they are, why the others wait, and the
 * counts. No other lock is taken under it. */
#pragma once

#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

struct attempts;
struct devices;
struct loop;
struct plans;
struct workers;

/* `o` is borrowed until attempts_free. */
PD_NODISCARD enum pd_err attempts_new(struct loop *l, struct workers *w, struct devices *devices,
                                      struct plans *plans, const struct sup_options *o, struct attempts **ret,
                                      struct pd_why *why);
/* Adopts, requeues or fails every attempt that has not ended. Before loop_start. */
PD_NODISCARD enum pd_err attempts_start(struct attempts *s, struct pd_why *why);
/* After loop_stop. NULL is fine. Returns NULL. */
struct attempts *attempts_free(struct attempts *s);

/* ---- from any thread ------------------------------------------------------------------------- */

bool attempts_queue_get(struct attempts *s, int64_t run, struct sup_queue_info *ret);
/* Runs that wait, as of the last cycle. */
int attempts_waiting(struct attempts *s);
bool attempts_progress(struct attempts *s, int64_t run, struct sup_progress *ret);
/* May a process still write into the run's folder? */
bool attempts_hold_folder(struct attempts *s, int64_t run);
void attempts_log_path(const struct attempts *s, int64_t run, int n, char *out, size_t size);
/* The counts of this module; other members are 0. */
void attempts_stats(struct attempts *s, struct sup_stats *ret);
