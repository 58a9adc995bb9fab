/* daemon/worker/train/start.h: private to this module: loads the weights of train.start. */
#pragma once

#include "daemon/worker/train/session.h"

struct data_st;
struct model_store;

/* Opens the document's file and verifies its digest. The caller owns *ret. */
PD_NODISCARD enum pd_err start_open(const struct session *s, struct data_st **ret, struct pd_why *why);
/* Sets every parameter that the file has, except those in train.start.reset, and reports the others and the
 * unused tensors. ret_taken (NULL is fine): of each parameter whether it was set. PD_ERR_INVALID: a tensor has another
 * shape, or none is of this network. */
PD_NODISCARD enum pd_err start_params(const struct session *s, struct model_store *store,
                                      const struct data_st *st, bool *ret_taken, struct pd_why *why);
/* Checks that the file has states of this run's optimiser; *ret_applied: its applied steps. PD_ERR_INVALID: it has not. */
PD_NODISCARD enum pd_err start_states(const struct session *s, const struct data_st *st, int64_t *ret_applied,
                                      struct pd_why *why);
