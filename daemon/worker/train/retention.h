/* daemon/worker/train/retention.h: private to this module: retention of the checkpoint files in a run's
 * folder. Rank 0 only. Training thread only. */
#pragma once

#include "daemon/worker/train/session.h"

struct retention;

/* Lists the checkpoints in the run's folder, which is made if missing, with their scores, and removes
 * temporary files that a kill left. On PD_OK the caller owns *ret, which borrows `s`. */
PD_NODISCARD enum pd_err retention_open(const struct session *s, struct retention **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct retention *retention_close(struct retention *r);

/* The path of the checkpoint of a step. */
void retention_path(const struct retention *r, int64_t step, char *out, size_t size);
/* The run resumed from this step, so a later attempt may need its checkpoint too. */
void retention_resumed(struct retention *r, int64_t step);
/* Removes checkpoints of steps after this one: the run has not reached them again, and writes them again. */
void retention_forget_later(struct retention *r, int64_t step);
/* A checkpoint was written; `score` NaN: none was measured at its step. */
void retention_add(struct retention *r, int64_t step, double score);
/* Removes all checkpoints except the newest `latest`, the train.keep.best best scored ones, and the newest
 * recorded one, so that a kill loses only the steps after it. `last`: nothing is written after this. */
void retention_prune(struct retention *r, int64_t latest, bool last);
/* Paths of the best checkpoint and of the newest one, if there are any; else unchanged. */
void retention_paths(const struct retention *r, char *ret_best, size_t best_size, char *ret_latest,
                     size_t latest_size);
