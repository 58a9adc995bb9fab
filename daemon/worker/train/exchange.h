/* daemon/worker/train/exchange.h: private to this module: exchange of tensors between ranks. The list is the
 * same on every rank, except for the memory (NULL: stored by another rank).
 *
 * Every rank calls the same functions in the same order. With one rank the functions have no effect. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

/* Hands each tensor of rank 0 to every rank that keeps it. What rank 0 does not keep is read from `loaded`, a
 * checkpoint, or zero where that is NULL. A tensor whose bytes stand in st.data is everywhere already. */
PD_NODISCARD enum pd_err exchange_share(const struct session *s, const struct train_tensor *tensors,
                                        size_t count, const struct data_st *loaded, struct pd_why *why);
/* Checks that all ranks are bitwise equal to rank 0; PD_ERR_CORRUPT otherwise. Each rank keeps all of them.
 */
PD_NODISCARD enum pd_err exchange_compare(const struct session *s, const struct train_tensor *tensors,
                                          size_t count, struct pd_why *why);
/* The tensors of a checkpoint, parameters first: copies the optimiser's states that another rank keeps to
 * rank 0, into st.data. exchange_ungather frees them, also after a failure. */
PD_NODISCARD enum pd_err exchange_gather(const struct session *s, struct train_tensor *tensors, size_t count,
                                         struct pd_why *why);
void exchange_ungather(const struct session *s, struct train_tensor *tensors, size_t count);
