/* daemon/worker/train/trainer.h: private to this module: what makes the steps of a run: parameters, their
 * averages, the optimiser's states, batches.
 *
 *     trainer_open, parameters are set (trainer_begin, or a checkpoint's), trainer_start, trainer_step ...
 *
 * Owns all of it and knows neither evaluations nor checkpoints. Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

struct trainer;

/* Plans the graphs of a step; parameters and states are zero. On PD_OK the caller owns *ret, which borrows
 * `s`. */
PD_NODISCARD enum pd_err trainer_open(const struct session *s, struct trainer **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct trainer *trainer_close(struct trainer *t);

/* Sets the parameters to their initial values, which follow from the document's seed, and their averages. */
PD_NODISCARD enum pd_err trainer_begin(struct trainer *t, struct pd_why *why);
/* The averages alone, where some are kept: they begin where the parameters do. */
PD_NODISCARD enum pd_err trainer_begin_averages(struct trainer *t, struct pd_why *why);
/* Sets and reads the trainer's share of a run's state: counts and the last loss. */
void trainer_set_state(struct trainer *t, const struct train_state *from);
void trainer_get_state(const struct trainer *t, struct train_state *to);
/* Once parameters, averages and state are set: the working copies follow them. */
PD_NODISCARD enum pd_err trainer_copy(struct trainer *t, struct pd_why *why);
/* Batches of the next step on begin to be prepared, and means over steps to be reported. */
PD_NODISCARD enum pd_err trainer_start(struct trainer *t, struct pd_why *why);

/* One step of the optimiser, reported. ahead: the boundary after it neither reads nor saves tensors, so that the next step
 * may be enqueued before this one's numbers are read (where the back end can: trainer_ahead says whether it was). The
 * trajectory is the same to the bit: of the host's numbers only the count of applied steps depends on the step before, and
 * the device chooses between both counts. *ret_done: false if a stop was asked for between two parts of the
 * batch; the parameters are as they were, and the next call goes on with the same step. */
PD_NODISCARD enum pd_err trainer_step(struct trainer *t, bool ahead, bool *ret_done, struct pd_why *why);
/* A step is enqueued whose numbers were not read: tensors are not those of trainer_at. */
bool trainer_ahead(const struct trainer *t);

struct optim_point;
/* Sees each evaluation of an optimiser that searches along lines (from NULL), and each point to which it moved, with where that search
 * began; for tests. */
void trainer_watch(struct trainer *t,
                   void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                   void *user);

/* Steps finished. */
int64_t trainer_at(const struct trainer *t);
/* As many steps in a row were not finite as the document allows. */
bool trainer_diverged(const struct trainer *t);
/* Memory that was allocated on this rank for the optimiser's states, in bytes; averages of the weights are not among
 * them. */
size_t trainer_optimiser_bytes(const struct trainer *t);
/* Products and attention of this rank in a step. */
double trainer_step_flop(const struct trainer *t);

/* Borrowed until trainer_close. Averages: memory per parameter, NULL where none are kept. */
struct model_store *trainer_store(const struct trainer *t);
void *const *trainer_averages(const struct trainer *t);
/* What holds the optimiser's states and the averages under their names in the graph. */
const struct executable *trainer_states(const struct trainer *t);
