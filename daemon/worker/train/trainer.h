/* daemon/worker/train/trainer.h: private to this module: the training steps of a run, with parameters, averages,
 * optimiser states and batches.
 *
 *     trainer_open, parameters are set (trainer_begin, or a checkpoint's), trainer_start, trainer_step ...
 *
 * Independent of evaluations and checkpoints. Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

struct trainer;

/* Plans the graphs of a step; parameters and states are zero. On PD_OK the caller owns *ret, which borrows
 * `s`. */
PD_NODISCARD enum pd_err trainer_open(const struct session *s, struct trainer **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct trainer *trainer_close(struct trainer *t);

/* Sets the parameters to their initial values, determined by the document's seed, and the averages to the parameters. */
PD_NODISCARD enum pd_err trainer_begin(struct trainer *t, struct pd_why *why);
/* Sets the averages, if the run has any, to the parameters. */
PD_NODISCARD enum pd_err trainer_begin_averages(struct trainer *t, struct pd_why *why);
/* Sets and reads the trainer's members of a run's state: counts and the last loss. */
void trainer_set_state(struct trainer *t, const struct train_state *from);
void trainer_get_state(const struct trainer *t, struct train_state *to);
/* Updates the working copies. To be called after parameters, averages and state have been set. */
PD_NODISCARD enum pd_err trainer_copy(struct trainer *t, struct pd_why *why);
/* Starts the preparation of batches, from the next step on, and the reports of means over steps. */
PD_NODISCARD enum pd_err trainer_start(struct trainer *t, struct pd_why *why);

/* Takes and reports one optimiser step. ahead: the boundary after it neither reads nor saves tensors, so that the next step
 * may be enqueued before this one's numbers are read, if the back end supports it (see trainer_ahead). The trajectory is
 * bitwise the same: of the inputs only the count of applied steps depends on the previous step, and the device selects
 * between both counts. *ret_done: false if a stop was requested between two parts of the batch; the parameters are
 * unchanged, and the next call repeats the step. */
PD_NODISCARD enum pd_err trainer_step(struct trainer *t, bool ahead, bool *ret_done, struct pd_why *why);
/* Whether a step is enqueued whose numbers have not been read; tensors are then later than trainer_at. */
bool trainer_ahead(const struct trainer *t);

struct optim_point;
/* For tests: calls `seen` for each evaluation of a line search (from NULL), and for each accepted point with the start of
 * its search. */
void trainer_watch(struct trainer *t,
                   void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                   void *user);

/* Number of finished steps. */
int64_t trainer_at(const struct trainer *t);
/* Whether train.nonfinite_limit consecutive steps were not finite. */
bool trainer_diverged(const struct trainer *t);
/* Bytes of the optimiser's states on this rank, without averages of the weights. */
size_t trainer_optimiser_bytes(const struct trainer *t);
/* FLOP of matrix products and attention of this rank in a step; of an optimiser that searches along lines, in one
 * evaluation. */
double trainer_step_flop(const struct trainer *t);

/* Borrowed until trainer_close. Averages: memory per parameter, NULL for parameters without one. */
struct model_store *trainer_store(const struct trainer *t);
void *const *trainer_averages(const struct trainer *t);
/* The executable that has the optimiser's states and the averages as leaves. */
const struct executable *trainer_states(const struct trainer *t);
