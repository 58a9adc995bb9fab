/* daemon/worker/train/evaluator.h: private to this module: evaluations, the best step, and early stopping.
 *
 * Reads parameters and averages that another part owns. Training thread only. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

enum { EVALUATOR_LOSS, EVALUATOR_SHOWN }; /* of a task's numbers: what a run's state holds */

struct evaluator;

/* Results of an evaluation: the task's metrics, and one value for each range of positions. */
struct evaluator_numbers {
    double number[TASK_NUMBERS_MAX], at[TASK_RANGES_MAX];
};

/* Plans the graph. `store`, `averages` (memory per parameter; NULL: no averages) and `s` are borrowed until
 * evaluator_close. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err evaluator_open(const struct session *s, struct model_store *store,
                                        void *const *averages, struct evaluator **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct evaluator *evaluator_close(struct evaluator *e);
/* Sets a callback that is called after each batch. */
void evaluator_watch(struct evaluator *e, void (*scored)(void *user), void *user);

/* Scores a part of `set`, the run's own set or one of data.eval, with the current parameters. *ret_stop: a stop requested
 * in the meantime; if not NONE, *ret is not written. */
PD_NODISCARD enum pd_err evaluator_score(struct evaluator *e, const struct data_set *set,
                                         enum data_split part, struct evaluator_numbers *ret,
                                         enum train_stop *ret_stop, struct pd_why *why);
/* Adds the numbers as points, with the keys of the scored part, or of a set of data.eval if `set` is not NULL. */
PD_NODISCARD enum pd_err evaluator_push(const struct evaluator *e, const struct train_eval *set,
                                        enum data_scored scored, const struct evaluator_numbers *numbers,
                                        bool averaged, struct pd_why *why);

/* Sets and reads the evaluator's members of a run's state: all but the trainer's. */
void evaluator_set_state(struct evaluator *e, const struct train_state *from);
void evaluator_get_state(const struct evaluator *e, struct train_state *to);
/* Call after a step: the current parameters have no score. */
void evaluator_forget(struct evaluator *e);
/* Runs the evaluation due after step `step`, before it one with the averages, if the run has any, and reports the matrices
 * that this step stores (fields.h). *ret_stop not NONE:
 * nothing was recorded, and the evaluation is still due. */
PD_NODISCARD enum pd_err evaluator_run(struct evaluator *e, int64_t step, enum train_stop *ret_stop,
                                       struct pd_why *why);
/* Scores the test part (set NULL) or a set of data.eval with the current parameters and averages, and reports the result
 * for `step`, as in evaluator_run. It does not affect the best step. */
PD_NODISCARD enum pd_err evaluator_test(struct evaluator *e, const struct train_eval *set, int64_t step,
                                        enum train_stop *ret_stop, struct pd_why *why);
/* Whether an evaluation was started and not finished. */
bool evaluator_due(const struct evaluator *e);
int64_t evaluator_best_step(const struct evaluator *e); /* -1: none */
/* Whether train.stop.patience consecutive evaluations did not improve, so that the run ends here. */
bool evaluator_waited(const struct evaluator *e);
/* The same; reports the event if so. */
bool evaluator_ends_early(struct evaluator *e, int64_t step);
