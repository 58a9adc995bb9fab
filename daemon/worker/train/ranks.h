/* daemon/worker/train/ranks.h: private to this module: what the ranks of a run exchange between steps. What
 * they exchange within a step is in the graph of that step.
 *
 * Every rank calls the same functions in the same order. A struct ranks of NULL is a run of one rank: nothing
 * is exchanged. Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/train.h"
#include "kernels/backend/backend.h"

struct ranks;

/* Waits for the other ranks, of which the document wants `wanted` in all (PD_ERR_INVALID where others have
 * come). The back end is open, and outlives the result. On PD_OK the caller owns *ret, NULL where there is
 * one rank. */
PD_NODISCARD enum pd_err ranks_open(const struct train_ranks *group, int wanted,
                                    const struct pk_backend_api *api, struct pk_backend *backend,
                                    struct ranks **ret, struct pd_why *why);
/* Sets what the back end sums through; lent until ranks_close. */
void ranks_lend(const struct ranks *r, struct pk_host *host);
/* Tells the other ranks that this one goes no further, and ends what is enqueued for them. */
void ranks_leave(struct ranks *r, const char *reason);
/* After every executable that sums over ranks is done. NULL is fine; returns NULL. */
struct ranks *ranks_close(struct ranks *r);

/* Host memory of rank `root`, on all. */
PD_NODISCARD enum pd_err ranks_share(struct ranks *r, void *memory, size_t bytes, int root,
                                     struct pd_why *why);
/* *x of rank 0, on all. */
PD_NODISCARD enum pd_err ranks_agree(struct ranks *r, int64_t *x, struct pd_why *why);
/* Sums of all ranks' numbers, at most RANKS_SUMS_MAX, in the order of ranks: the same bits everywhere. */
#define RANKS_SUMS_MAX 32
PD_NODISCARD enum pd_err ranks_sum(struct ranks *r, double *x, size_t count, struct pd_why *why);
