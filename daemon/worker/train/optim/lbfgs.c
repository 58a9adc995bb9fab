/* L-BFGS (Liu and Nocedal, 1989) as PyTorch takes a step of it: up to 20 iterations, each with a line search.
 *
 * The two-loop recursion needs products of the rows of the history with each other and with the gradient only. Those of
 * rows are kept here, in double; those with the gradient come by one product with the history (pair), and the direction
 * by another (direct). Inside, vectors are shares of the rows and of the gradient. */
#include <math.h>
#include <string.h>

#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/train/optim/search.h"

#define ITERATIONS 20
#define EVALUATIONS 25
#define GRADIENT_LEAST 1e-7 /* largest |entry| at which a run has arrived */
#define CURVATURE_LEAST 1e-10

enum {
    N_ITER,
    FACTOR,
    LENGTH,
    KEPT,
    SPARE,
    BEGAN, /* of the last step: 1-norm of the gradient, rate, struct lbfgs_outcome.same */
    RATE,
    SAME,
    ORDER,
    SY = ORDER + LBFGS_ROWS,
    YY = SY + LBFGS_ROWS * LBFGS_ROWS
};

static int row_at(const double *numbers, int i)
{
    return (int)numbers[ORDER + i];
}

static double *entry(double *numbers, int table, int a, int b)
{
    return &numbers[table + a * LBFGS_ROWS + b];
}

/* Takes the pair of row SPARE in, if its curvature is positive; the oldest goes where there are as many as may be. */
static void take_pair(double *numbers, const double *products)
{
    const int spare = (int)numbers[SPARE], kept = (int)numbers[KEPT];
    const double *of_s = products, *of_y = products + 3 * LBFGS_ROWS; /* by y, g, s */
    const double ys = of_y[3 * spare + 2], yy = of_y[3 * spare];

    if (!(ys > CURVATURE_LEAST))
        return;
    for (int i = 0; i < LBFGS_ROWS; i++) {
        *entry(numbers, SY, i, spare) = of_s[3 * i];
        *entry(numbers, SY, spare, i) = of_y[3 * i + 2];
        *entry(numbers, YY, i, spare) = *entry(numbers, YY, spare, i) = of_y[3 * i];
    }
    numbers[FACTOR] = ys / yy;
    if (kept < LBFGS_HISTORY) {
        numbers[ORDER + kept] = spare;
        numbers[KEPT] = kept + 1;
        numbers[SPARE] = kept + 1;
        return;
    }
    numbers[SPARE] = row_at(numbers, 0);
    memmove(&numbers[ORDER], &numbers[ORDER + 1], (LBFGS_HISTORY - 1) * sizeof *numbers);
    numbers[ORDER + LBFGS_HISTORY - 1] = spare;
}

/* The two loops, in shares of the rows and of the gradient. */
static void two_loops(double *numbers, const double *products, double *shares)
{
    const double *of_s = products, *of_y = products + 3 * LBFGS_ROWS, factor = numbers[FACTOR];
    const int kept = (int)numbers[KEPT];
    double alpha[LBFGS_ROWS];

    memset(shares, 0, (2 * LBFGS_ROWS + 1) * sizeof *shares);
    for (int i = kept - 1; i >= 0; i--) { /* q = - g - sum of alpha y */
        const int row = row_at(numbers, i);
        double sq = -of_s[3 * row + 1];

        for (int k = i + 1; k < kept; k++)
            sq -= alpha[k] * *entry(numbers, SY, row, row_at(numbers, k));
        alpha[i] = sq / *entry(numbers, SY, row, row);
    }
    for (int i = 0; i < kept; i++)
        shares[LBFGS_ROWS + row_at(numbers, i)] = -factor * alpha[i];
    shares[2 * LBFGS_ROWS] = -factor;
    for (int i = 0; i < kept; i++) { /* d = factor q + sum of (alpha - beta) s */
        const int row = row_at(numbers, i);
        double yd = -factor * of_y[3 * row + 1];

        for (int k = 0; k < kept; k++)
            yd -= factor * alpha[k] * *entry(numbers, YY, row, row_at(numbers, k));
        for (int k = 0; k < i; k++)
            yd += shares[row_at(numbers, k)] * *entry(numbers, SY, row_at(numbers, k), row);
        shares[row] = alpha[i] - yd / *entry(numbers, SY, row, row);
    }
}

/* The direction of this iteration; of the first one of a run the steepest. */
static enum pd_err direct(double *numbers, const struct optim_line *line, double *ret_slope,
                          double *ret_largest, struct pd_why *why)
{
    double products[2 * LBFGS_ROWS * 3], shares[2 * LBFGS_ROWS + 1];
    enum pd_err err;

    if (numbers[N_ITER] == 1) {
        memset(shares, 0, sizeof shares);
        shares[2 * LBFGS_ROWS] = -1;
        numbers[FACTOR] = 1;
        return line->direct(line->user, shares, ret_slope, ret_largest, why);
    }
    err = line->pair(line->user, numbers[LENGTH], (int32_t)numbers[SPARE], products, why);
    if (err != PD_OK)
        return err;
    take_pair(numbers, products);
    two_loops(numbers, products, shares);
    return line->direct(line->user, shares, ret_slope, ret_largest, why);
}

void lbfgs_forget_steps(double numbers[LBFGS_NUMBERS])
{
    numbers[BEGAN] = numbers[RATE] = numbers[SAME] = 0;
}

enum pd_err lbfgs_step(double numbers[LBFGS_NUMBERS], const struct optim_line *line,
                       const struct optim_point *first, double lr, struct lbfgs_outcome *ret,
                       struct pd_why *why)
{
    struct optim_point now = *first;
    enum pd_err err = PD_OK;

    numbers[SAME] = first->sum == numbers[BEGAN] && lr == numbers[RATE] ? numbers[SAME] + 1 : 1;
    numbers[BEGAN] = first->sum;
    numbers[RATE] = lr;
    *ret = (struct lbfgs_outcome){.evaluations = 1, .same = (int)numbers[SAME]};
    if (!first->finite) { /* the norm of one such gradient says nothing of the next */
        numbers[SAME] = ret->same = 0;
        return PD_OK;
    }
    if (first->largest <= GRADIENT_LEAST) {
        ret->end = LBFGS_END_GRADIENT;
        return PD_OK;
    }
    for (int i = 1; i <= ITERATIONS; i++) {
        const double before = now.loss;
        double slope, largest, t = lr;
        int tries = 0, infinite = 0;

        numbers[N_ITER]++;
        err = direct(numbers, line, &slope, &largest, why);
        if (err != PD_OK)
            return err;
        if (numbers[N_ITER] == 1)
            t = fmin(1, 1 / now.sum) * lr;
        numbers[LENGTH] = t;
        if (!(slope <= -OPTIM_CHANGE)) {
            ret->end = LBFGS_END_SLOPE;
            return PD_OK;
        }
        now.slope = slope;
        err = optim_wolfe(line, &now, t, largest, &now, &tries, &infinite, why);
        if (err == PD_OK)
            err = line->move(line->user, now.t, why);
        if (err != PD_OK)
            return err;
        numbers[LENGTH] = now.t;
        ret->moved = true;
        ret->end = now.t != 0 ? LBFGS_END_MOVED : infinite == tries ? LBFGS_END_INFINITE : LBFGS_END_SEARCH;
        ret->evaluations += tries;
        ret->infinite += infinite;
        if (ret->evaluations >= EVALUATIONS || now.largest <= GRADIENT_LEAST ||
            fabs(now.t) * largest <= OPTIM_CHANGE || fabs(now.loss - before) < OPTIM_CHANGE)
            break;
    }
    return PD_OK;
}

const struct optim optim_lbfgs = {
    .graph = {.name = "lbfgs", .states = 1, .state = {{MODEL_LINE_SAVED, PK_CAT_MOMENT1}}},
    .saved = {"optim.lbfgs."},
    .number = -1,
    .searches = true,
};
