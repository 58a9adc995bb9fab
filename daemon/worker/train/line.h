/* daemon/worker/train/line.h: private to this module: the graphs of an optimiser that searches along lines, and a step
 * of it (optim/search.h). The first graph, that of a point, is the trainer's: its states are shared.
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
/* A step from the parameters as they are, whose batch `point` has been fed. report: the loss's sums at the beginning of
 * the step, the norm of the gradient there, and whether the parameters have changed. */
PD_NODISCARD enum pd_err line_step(struct line *l, double lr, double report[MODEL_REPORT_MAX],
                                   struct lbfgs_outcome *ret, struct pd_why *why);
/* Sees each evaluation (from NULL), and each point to which a search moved, with where it began; for tests. */
void line_watch(struct line *l,
                void (*seen)(void *user, const struct optim_point *p, const struct optim_point *from),
                void *user);
