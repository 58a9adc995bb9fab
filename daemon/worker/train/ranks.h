/* daemon/worker/train/ranks.h: private to this module: communication of the ranks between steps.
 * Communication within a step is part of its graph.
 *
 * Every rank calls the same functions in the same order. NULL is a run with one rank, without communication.
 * Training thread only. */
#pragma once

#include "daemon/worker/train/train.h"
#include "kernels/backend/backend.h"

struct ranks;

/* Waits for the other ranks, `wanted` in total according to the document (PD_ERR_INVALID for another number).
 * The back end is open, and outlives the result. On PD_OK the caller owns *ret, NULL where there is one rank.
 */
PD_NODISCARD enum pd_err ranks_open(const struct train_ranks *group, int wanted,
                                    const struct pk_backend_api *api, struct pk_backend *backend,
                                    struct ranks **ret, struct pd_why *why);
/* Sets what the back end sums through; lent until ranks_close. */
void ranks_lend(const struct ranks *r, struct pk_host *host);
/* Notifies the other ranks that this one stops, and aborts the collectives in progress. */
void ranks_leave(struct ranks *r, const char *reason);
/* After every executable that sums over ranks is done. NULL is fine; returns NULL. */
struct ranks *ranks_close(struct ranks *r);

/* Host memory of rank `root`, on all. */
PD_NODISCARD enum pd_err ranks_share(struct ranks *r, void *memory, size_t bytes, int root,
                                     struct pd_why *why);
/* *x of rank 0, on all. */
PD_NODISCARD enum pd_err ranks_agree(struct ranks *r, int64_t *x, struct pd_why *why);
/* Sums the numbers of all ranks, at most RANKS_SUMS_MAX, in the order of ranks: bitwise equal on all. */
#define RANKS_SUMS_MAX 32
PD_NODISCARD enum pd_err ranks_sum(struct ranks *r, double *x, size_t count, struct pd_why *why);
