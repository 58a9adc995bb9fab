/* daemon/polyd/supervise/plans/plans.h: memory needs of jobs, contents of data roots and of files of weights,
 * determined by short-lived workers: `polyd-worker plan`, `data` and `weights`. Plans and results about
 * weights are cached by digest, lists are not.
 *
 * Any thread may request; workers start, and callbacks run, on the loop's thread. The lock guards only the
 * number of waiting requests. */
#pragma once

#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

struct devices;
struct loop;
struct plans;
struct workers;

PD_NODISCARD enum pd_err plans_new(struct loop *l, struct workers *w, struct devices *devices,
                                   struct plans **ret, struct pd_why *why);
/* After loop_stop. Aborts plans in progress: their callers get PD_ERR_CLOSED. NULL is fine; returns NULL. */
struct plans *plans_free(struct plans *s);

/* Any thread: sup_plan, sup_data_list and sup_weights_ask of supervise.h. */
PD_NODISCARD enum pd_err plans_ask(struct plans *s, const struct sup_planning *asked, struct pd_why *why);
PD_NODISCARD enum pd_err plans_list_data(struct plans *s, const struct sup_listing *asked,
                                         struct pd_why *why);
PD_NODISCARD enum pd_err plans_weights(struct plans *s, const struct sup_weights *asked, struct pd_why *why);

/* Bytes that a run needs on each device according to the plan of this digest; 0 = unknown. On the loop's
 * thread. */
int64_t plans_bytes(struct plans *s, const char *digest);
