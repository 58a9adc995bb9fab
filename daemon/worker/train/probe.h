/* daemon/worker/train/probe.h: private to this module: statistics of the attention modules over a fixed
 * batch, and their scales.
 *
 * Only rank 0 computes them. Training thread only. */
#pragma once

#include "daemon/worker/train/session.h"

struct probe;

/* Plans the graph and feeds it the first validation samples. `store` is borrowed until probe_close, as `s`
 * is. On PD_OK the caller owns *ret: NULL where the run takes no statistics. */
PD_NODISCARD enum pd_err probe_open(const struct session *s, struct model_store *store, struct probe **ret,
                                    struct pd_why *why);
/* NULL is fine; returns NULL. */
struct probe *probe_close(struct probe *p);
/* Adds the statistics of the parameters as they are, as points. */
PD_NODISCARD enum pd_err probe_run(struct probe *p, struct pd_why *why);
