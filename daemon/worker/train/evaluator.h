/* daemon/worker/train/evaluator.h: private to this module: what is measured of the samples that are scored,
 * and what follows from it: which step was best, and whether training is to end early.
 *
 * Reads parameters and averages that another part owns. Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/train/session.h"

enum { EVALUATOR_LOSS, EVALUATOR_SHOWN }; /* of a task's numbers: what a run's state holds */

struct evaluator;

/* What a pass over samples found, as the task says: its numbers, and one for each range of positions. */
struct evaluator_numbers {
    double number[TASK_NUMBERS_MAX], at[TASK_RANGES_MAX];
};

/* Plans the graph. `store` and `averages` (memory per parameter; NULL: none are kept) are borrowed until
 * evaluator_close, as `s` is. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err evaluator_open(const struct session *s, struct model_store *store,
                                        void *const *averages, struct evaluator **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct evaluator *evaluator_close(struct evaluator *e);
/* `scored` is called after each batch. */
void evaluator_watch(struct evaluator *e, void (*scored)(void *user), void *user);

/* The numbers over the samples of a part of `set`, the run's own or one of data.eval, with the parameters as they are.
 * *ret_stop: what was asked for meanwhile; not NONE: *ret is not written. */
PD_NODISCARD enum pd_err evaluator_score(struct evaluator *e, const struct data_set *set,
                                         enum data_split part, struct evaluator_numbers *ret,
                                         enum train_stop *ret_stop, struct pd_why *why);
/* Adds them as points, under the keys of these samples, or of the set of data.eval where `set` is not NULL. */
PD_NODISCARD enum pd_err evaluator_push(const struct evaluator *e, const struct train_eval *set,
                                        enum data_scored scored, const struct evaluator_numbers *numbers,
                                        bool averaged, struct pd_why *why);

/* Sets and reads the evaluator's share of a run's state: all that is not the trainer's. */
void evaluator_set_state(struct evaluator *e, const struct train_state *from);
void evaluator_get_state(const struct evaluator *e, struct train_state *to);
/* A step was made: no score is known of the parameters as they are now. */
void evaluator_forget(struct evaluator *e);
/* The evaluation that is due after step `step`, and once more with the averages where there are any.
 * *ret_stop not NONE: nothing was recorded, and the evaluation is still due. */
PD_NODISCARD enum pd_err evaluator_run(struct evaluator *e, int64_t step, enum train_stop *ret_stop,
                                       struct pd_why *why);
/* Scores the test part (set NULL) or a set of data.eval with the parameters and averages as they are, and reports it as of
 * `step`; recorded as evaluator_run. The best step does not follow from it. */
PD_NODISCARD enum pd_err evaluator_test(struct evaluator *e, const struct train_eval *set, int64_t step,
                                        enum train_stop *ret_stop, struct pd_why *why);
/* One has begun and was not finished. */
bool evaluator_due(const struct evaluator *e);
int64_t evaluator_best_step(const struct evaluator *e); /* -1: none */
/* Whether as many evaluations in a row as train.stop.patience brought nothing better; reports it. */
bool evaluator_ends_early(struct evaluator *e, int64_t step);
