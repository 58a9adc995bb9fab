/* daemon/worker/train/line.h: private to this module: the graphs and the step of an optimiser with a line search
 * (optim/search.h). The trainer owns the first graph, which evaluates a point; its states are shared.
 *
 * Belongs to the training thread. */
#pragma once

#include "daemon/worker/train/optim/search.h"
#include "daemon/worker/train/session.h"

struct line;

/* Plans the graphs; `point` has the states and is borrowed, as are the others. */
PD_NODISCARD enum pd_err line_open(const struct session *s, struct model_store *store,
                                   struct executable *point, struct line **ret, struct pd_why *why);
/* NULL is fine; returns NULL. */
struct line *line_close(struct line *l);
/* Takes a step from the current parameters; the caller has fed the batch to `point`. first: the step is the run's first,
 * and the state may be another run's. report: the sums of the loss at the
 * start of the step, the norm of the gradient there, and whether the parameters have changed. */
PD_NODISCARD enum pd_err line_step(struct line *l, bool first, double lr, double report[MODEL_REPORT_MAX],
                                   struct lbfgs_outcome *ret, struct pd_why *why);
/* For tests: calls `seen` for each evaluation (from NULL), and for each accepted point with the start of its search. */
void line_watch(struct line *l,
                void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                void *user);
