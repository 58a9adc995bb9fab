/* daemon/polyd/supervise/plans/plans.h: what jobs need, what the data roots hold and what files of weights
 * hold, asked of short-lived workers: `polyd-worker plan`, `data` and `weights`. Plans and what is asked of
 * weights are kept by digest, lists are not.
 *
 * Any thread asks; the workers are started, and the answers given, on the loop's thread. The lock guards the
 * number of those that wait alone. */
#pragma once

#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

struct devices;
struct loop;
struct plans;
struct workers;

PD_NODISCARD enum pd_err plans_new(struct loop *l, struct workers *w, struct devices *devices,
                                   struct plans **ret, struct pd_why *why);
/* After loop_stop. Ends plans under way: their callers get PD_ERR_CLOSED. NULL is fine; returns NULL. */
struct plans *plans_free(struct plans *s);

/* Any thread: sup_plan, sup_data_list and sup_weights_ask of supervise.h. */
PD_NODISCARD enum pd_err plans_ask(struct plans *s, const struct sup_planning *asked, struct pd_why *why);
PD_NODISCARD enum pd_err plans_list_data(struct plans *s, const struct sup_listing *asked,
                                         struct pd_why *why);
PD_NODISCARD enum pd_err plans_weights(struct plans *s, const struct sup_weights *asked, struct pd_why *why);

/* What the plan of this digest says that a run needs on each device; 0 = unknown. On the loop's thread. */
int64_t plans_bytes(struct plans *s, const char *digest);
