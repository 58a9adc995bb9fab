/* daemon/worker/train/checkpoints.h: private to this module: the checkpoints of a run: when one is due, which
 * one to resume from, and agreement between ranks.
 *
 * contents.h defines the contents, retention.h the retained files. Saves and sets the tensors of the trainer.
 * Training thread only. */
#pragma once

#include "daemon/worker/train/trainer.h"

struct checkpoints;

/* Borrows `s` and `t`. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err checkpoints_open(const struct session *s, struct trainer *t,
                                          struct checkpoints **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct checkpoints *checkpoints_close(struct checkpoints *c);

/* Sets parameters, averages and optimiser states: on rank 0 from the first usable checkpoint of train_dirs.starts, else to
 * their initial values; other ranks, and *state, receive those of rank 0. *state is initialised by the caller. *ret_lasting:
 * it fails because of the file of train.start, or of another version's checkpoint (PD_ERR_VERSION), and would again. */
PD_NODISCARD enum pd_err checkpoints_begin(struct checkpoints *c, struct train_state *state,
                                           bool *ret_lasting, struct pd_why *why);
/* Removes checkpoints of later steps, which the run will write again. */
void checkpoints_forget_later(struct checkpoints *c, int64_t step);

/* Whether the document's interval has a checkpoint after step `step`. */
bool checkpoints_planned(const struct checkpoints *c, int64_t step);
/* Whether a checkpoint is due after step `step`, by interval, time or request (each request counts once); the decision of
 * rank 0, on all ranks. */
PD_NODISCARD enum pd_err checkpoints_due(struct checkpoints *c, int64_t step, bool *ret, struct pd_why *why);
/* The step of the newest complete checkpoint that was written or resumed from; -1: none. */
int64_t checkpoints_saved(const struct checkpoints *c);
/* Marks the newest checkpoint as incomplete: its step has new state. */
void checkpoints_outdate(struct checkpoints *c);
/* Sends the reports, writes a checkpoint and removes those beyond train.keep, except one. */
PD_NODISCARD enum pd_err checkpoints_save(struct checkpoints *c, const struct train_state *state,
                                          struct pd_why *why);
/* The same, but a file that cannot be written is reported and does not end the run: the next due checkpoint
 * retries. Fails if the ranks cannot agree. */
PD_NODISCARD enum pd_err checkpoints_try_save(struct checkpoints *c, const struct train_state *state,
                                              struct pd_why *why);
/* Sets parameters and averages, on all ranks, to those of the best retained checkpoint, whose step is
 * *ret_step; without one, or if it is that of the newest step, they are not changed. No training may follow.
 */
PD_NODISCARD enum pd_err checkpoints_select(struct checkpoints *c, int64_t best_step, int64_t *ret_step,
                                            struct pd_why *why);
/* The run is done: removes those beyond train.keep. */
void checkpoints_finish(struct checkpoints *c);
/* Sets the paths of the best and of the newest checkpoint, if there are any. */
void checkpoints_summarise(const struct checkpoints *c, struct train_outcome *to);
