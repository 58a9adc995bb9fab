/* daemon/worker/train/retention.h: private to this module: the checkpoint files in a run's folder: which are
 * kept, and which go. Rank 0 alone has any. Belongs to the training thread. */
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
/* The run goes on from this step: a later attempt could do so as well. */
void retention_resumed(struct retention *r, int64_t step);
/* Removes checkpoints of steps after this one: the run has not reached them again, and writes them anew. */
void retention_forget_later(struct retention *r, int64_t step);
/* A checkpoint was written; `score` NaN: none was measured at its step. */
void retention_add(struct retention *r, int64_t step, double score);
/* Removes what is not kept: the newest `latest`, of the scored ones the train.keep.best best, and the newest
 * that is recorded: a kill at this moment loses no more than what follows it. `last`: nothing is written
 * after this. */
void retention_prune(struct retention *r, int64_t latest, bool last);
/* Paths of the best checkpoint and of the newest one, if there are any; else unchanged. */
void retention_paths(const struct retention *r, char *ret_best, size_t best_size, char *ret_latest,
                     size_t latest_size);
