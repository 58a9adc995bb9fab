/* daemon/worker/train/optim/search.h: line searches x + t d over all parameters as one vector x. The vectors are in the
 * back end's memory (model.h: model_graph_line and related functions); this module only receives scalars. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* A point of the line. */
struct optim_point {
    double t, loss;
    double slope;        /* gradient . d */
    double largest, sum; /* max norm and 1-norm of the gradient */
    bool finite;         /* loss and gradient are finite; else loss is infinity */
};

struct optim_line {
    void *user;
    /* Loss and gradient at x + t d. */
    enum pd_err (*at)(void *user, double t, struct optim_point *ret, struct pd_why *why);
    /* Sets row `row` of the history to s = t d and y = the last gradient minus the previous one. ret (2 rows, 3): inner
     * products of each row of s, then of y, with the new y, the last gradient and the new s. */
    enum pd_err (*pair)(void *user, double t, int32_t row, double *ret, struct pd_why *why);
    /* Sets d to the linear combination of the rows of s, the rows of y and the last gradient (2 rows + 1 coefficients). */
    enum pd_err (*direct)(void *user, const double *shares, double *ret_slope, double *ret_largest,
                          struct pd_why *why);
    /* Sets x and the parameters to x + t d. */
    enum pd_err (*move)(void *user, double t, struct pd_why *why);
};

/* Finds a step length that satisfies the strong Wolfe conditions: loss(t) <= loss(0) + c1 t slope(0) and
 * |slope(t)| <= -c2 slope(0). `from` is the point t = 0, `largest` the max norm of d. The search is that of PyTorch: cubic
 * interpolation, at most OPTIM_SEARCH_MOST evaluations, one end of the bracket once it is narrower than OPTIM_CHANGE. A
 * trial with a non-finite loss counts as infinitely high and halves the bracket; once there was one, no trial is nearer
 * to an end of the bracket than a tenth of it (PyTorch has no rule for such trials). *ret is the point found, and its gradient
 * is the last one; *ret_evaluations counts trials, *ret_infinite the non-finite ones. */
#define OPTIM_WOLFE_1 1e-4
#define OPTIM_WOLFE_2 0.9
#define OPTIM_SEARCH_MOST 25
#define OPTIM_CHANGE 1e-9
PD_NODISCARD enum pd_err optim_wolfe(const struct optim_line *line, const struct optim_point *from, double t,
                                     double largest, struct optim_point *ret, int *ret_evaluations,
                                     int *ret_infinite, struct pd_why *why);

/* ---- lbfgs.c ---- */

#define LBFGS_HISTORY 100
#define LBFGS_ROWS (LBFGS_HISTORY + 1) /* one spare row for a pair that may be rejected */
/* Scalar state between steps: iterations, factor of the initial matrix, last t, number of pairs, the spare row; 1-norm of
 * the gradient at the beginning of the last step, its rate, its `same`; the rows from the oldest pair on; inner products
 * s.y and y.y of rows. All zeros: the start of a run. */
#define LBFGS_NUMBERS (8 + LBFGS_ROWS + 2 * LBFGS_ROWS * LBFGS_ROWS)

/* How the last iteration of a step ended. */
enum lbfgs_end {
    LBFGS_END_MOVED,
    LBFGS_END_GRADIENT, /* its max norm is within the tolerance */
    LBFGS_END_SLOPE,    /* the direction is not downhill by more than OPTIM_CHANGE */
    LBFGS_END_SEARCH,   /* no point of the line is lower: the search ended at t = 0 */
    LBFGS_END_INFINITE  /* the same, and no trial was finite */
};

/* Outcome of one step. */
struct lbfgs_outcome {
    int evaluations, infinite;
    bool moved;
    enum lbfgs_end end;
    /* Steps in a row, this one included, that began at the same point and rate. From 3 on this step repeats the one before, and
     * further steps at this rate change nothing. (2 does not show it: the first iteration of a run takes a shorter step.) */
    int same;
};

/* Forgets the steps that `same` counts: a run that starts from another's state has taken none of them. */
void lbfgs_forget_steps(double numbers[LBFGS_NUMBERS]);

/* Takes one outer step (at most 20 iterations, 25 evaluations) at learning rate `lr` from the point `first`, which the
 * caller has evaluated at t = 0. */
PD_NODISCARD enum pd_err lbfgs_step(double numbers[LBFGS_NUMBERS], const struct optim_line *line,
                                    const struct optim_point *first, double lr, struct lbfgs_outcome *ret,
                                    struct pd_why *why);
