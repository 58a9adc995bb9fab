/* daemon/worker/train/exchange.h: private to this module: exchange of tensors between ranks. The list is the
 * same on every rank, except for the memory (NULL: stored by another rank).
 *
 * Every rank calls the same functions in the same order. With one rank the functions have no effect. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

/* Sends each tensor of rank 0 to every rank that stores it. Tensors that rank 0 does not store are read from the
 * checkpoint `loaded`; NULL: they are zero. A tensor with bytes in st.data is present on all ranks already. */
PD_NODISCARD enum pd_err exchange_share(const struct session *s, const struct train_tensor *tensors,
                                        size_t count, const struct data_st *loaded, struct pd_why *why);
/* Checks that the tensors, which each rank stores, are bitwise equal to those of rank 0; PD_ERR_CORRUPT on all ranks
 * otherwise. */
PD_NODISCARD enum pd_err exchange_compare(const struct session *s, const struct train_tensor *tensors,
                                          size_t count, struct pd_why *why);
/* Copies the optimiser states that other ranks store to rank 0, into st.data; the tensors are those of a checkpoint,
 * parameters first. exchange_ungather frees the copies, also after a failure. */
PD_NODISCARD enum pd_err exchange_gather(const struct session *s, struct train_tensor *tensors, size_t count,
                                         struct pd_why *why);
void exchange_ungather(const struct session *s, struct train_tensor *tensors, size_t count);
