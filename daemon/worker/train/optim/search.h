/* daemon/worker/train/optim/search.h: what an optimiser asks for that takes all parameters for one vector x and searches
 * along lines x + t d. The vectors lie in the back end's memory (model.h: model_graph_line and related
 * functions); only numbers come here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/err.h"

/* What is known of a point of the line. */
struct optim_point {
    double t, loss;
    double slope;        /* gradient times d */
    double largest, sum; /* of |entries| of the gradient */
    bool finite;         /* loss and gradient are; else loss is infinity */
};

struct optim_line {
    void *user;
    /* Loss and gradient at x + t d. */
    enum pd_err (*at)(void *user, double t, struct optim_point *ret, struct pd_why *why);
    /* Row `row` of the history becomes s = t d and y, the last gradient less the one before. ret (2 rows x 3): each row of
     * s, then each of y, times the new y, the last gradient, the new s. */
    enum pd_err (*pair)(void *user, double t, int32_t row, double *ret, struct pd_why *why);
    /* d becomes the sum of rows of s, rows of y and the last gradient by their shares (2 rows + 1). */
    enum pd_err (*direct)(void *user, const double *shares, double *ret_slope, double *ret_largest,
                          struct pd_why *why);
    /* x and the parameters become x + t d. */
    enum pd_err (*move)(void *user, double t, struct pd_why *why);
};

/* A step length along the line that meets the strong Wolfe conditions: loss(t) <= loss(0) + c1 t slope(0) and
 * |slope(t)| <= -c2 slope(0). `from` is the point t = 0, `largest` the largest |entry| of d. The search is PyTorch's:
 * cubic interpolation, at most OPTIM_SEARCH_MOST evaluations, an end of the bracket when that is narrower than
 * OPTIM_CHANGE. A trial whose loss is not finite counts as infinitely high: the bracket is then halved. *ret is the
 * point that was found, whose gradient is the last one; *ret_evaluations counts trials, *ret_infinite those that were
 * not finite. */
#define OPTIM_WOLFE_1 1e-4
#define OPTIM_WOLFE_2 0.9
#define OPTIM_SEARCH_MOST 25
#define OPTIM_CHANGE 1e-9
PD_NODISCARD enum pd_err optim_wolfe(const struct optim_line *line, const struct optim_point *from, double t,
                                     double largest, struct optim_point *ret, int *ret_evaluations,
                                     int *ret_infinite, struct pd_why *why);

/* ---- lbfgs.c ---- */

#define LBFGS_HISTORY 100
#define LBFGS_ROWS (LBFGS_HISTORY + 1) /* one is written before it is known whether it is kept */
/* Numbers that it keeps from step to step in addition to the vectors: iterations, factor of the first matrix, last t, pairs kept, the spare
 * row; the rows from the oldest pair; products of rows s y and y y. All zeros: a run begins. */
#define LBFGS_NUMBERS (8 + LBFGS_ROWS + 2 * LBFGS_ROWS * LBFGS_ROWS)

/* Outcome of one step. */
struct lbfgs_outcome {
    int evaluations, infinite;
    bool moved;
};

/* One outer step (at most 20 iterations, 25 evaluations) at the rate `lr`, from the point `first`, which the caller has
 * evaluated at t = 0. */
PD_NODISCARD enum pd_err lbfgs_step(double numbers[LBFGS_NUMBERS], const struct optim_line *line,
                                    const struct optim_point *first, double lr, struct lbfgs_outcome *ret,
                                    struct pd_why *why);
