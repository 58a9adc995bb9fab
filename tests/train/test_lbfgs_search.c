/* L-BFGS on functions made for one rule of it each: its history, its stop tests, its line search. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/train/optim/search.h"

#define N 256          /* more than the history holds: its oldest pairs matter */
#define ITERATIONS 300 /* the history holds 100 pairs */
#define REFUSED 7      /* of so many pairs one has no positive curvature */
#define CURVATURE_LEAST 1e-10

static double dot(const double *a, const double *b)
{
    double sum = 0;

    for (int i = 0; i < N; i++)
        sum += a[i] * b[i];
    return sum;
}

/* ---- the history, against the two loops over a list ---- */

/* Gradients that never end: each differs from the one before by a random curvature along the step, and by noise; one in
 * REFUSED has a negative one. */
struct walk {
    double g[N], d[N], before[N], s[LBFGS_ROWS][N], y[LBFGS_ROWS][N];
    double list_s[ITERATIONS][N], list_y[ITERATIONS][N];
    int pairs, refused, directions;
    struct optim_point last;
    uint64_t noise;
};

static double uniform(struct walk *w)
{
    w->noise = w->noise * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(w->noise >> 11) / 9007199254740992.0;
}

static enum pd_err walk_at(void *user, double t, struct optim_point *ret, struct pd_why *why)
{
    struct walk *w = user;
    const double base = w->last.loss;
    double ys = 0, ss = 0;

    (void)why;
    *ret = (struct optim_point){.t = t, .finite = true};
    for (int i = 0; i < N; i++) {
        const double s = t * w->d[i];

        w->g[i] = w->before[i] + (0.5 + uniform(w)) * s + 0.2 * (uniform(w) - 0.5);
        ys += (w->g[i] - w->before[i]) * s;
        ss += s * s;
    }
    for (int i = 0; i < N; i++) {
        if (ys < 0.3 * ss)
            w->g[i] += (0.3 - ys / ss) * t * w->d[i];
        if (w->directions % REFUSED == 0)
            w->g[i] -= (0.1 + fmax(0.3, ys / ss)) * t * w->d[i];
        ret->largest = fmax(ret->largest, fabs(w->g[i]));
        ret->sum += fabs(w->g[i]);
    }
    /* the first trial meets both conditions */
    ret->slope = 0.1 * w->last.slope;
    ret->loss = base + 0.5 * t * w->last.slope;
    return PD_OK;
}

static enum pd_err walk_pair(void *user, double t, int32_t row, double *ret, struct pd_why *why)
{
    struct walk *w = user;

    (void)why;
    for (int i = 0; i < N; i++) {
        w->s[row][i] = t * w->d[i];
        w->y[row][i] = w->g[i] - w->before[i];
    }
    if (dot(w->s[row], w->y[row]) > CURVATURE_LEAST) {
        assert_true(w->pairs < ITERATIONS);
        memcpy(w->list_s[w->pairs], w->s[row], sizeof w->s[row]);
        memcpy(w->list_y[w->pairs++], w->y[row], sizeof w->y[row]);
    } else
        w->refused++;
    for (int i = 0; i < 2 * LBFGS_ROWS; i++) {
        const double *own = i < LBFGS_ROWS ? w->s[i] : w->y[i - LBFGS_ROWS];

        ret[3 * i] = dot(own, w->y[row]);
        ret[3 * i + 1] = dot(own, w->g);
        ret[3 * i + 2] = dot(own, w->s[row]);
    }
    return PD_OK;
}

/* Nocedal and Wright, Numerical Optimization, algorithm 7.4, over the last LBFGS_HISTORY pairs. */
static void two_loops(const struct walk *w, double *ret_d)
{
    const int from = w->pairs > LBFGS_HISTORY ? w->pairs - LBFGS_HISTORY : 0;
    double alpha[ITERATIONS];

    for (int i = 0; i < N; i++)
        ret_d[i] = -w->g[i];
    for (int k = w->pairs - 1; k >= from; k--) {
        alpha[k] = dot(w->list_s[k], ret_d) / dot(w->list_y[k], w->list_s[k]);
        for (int i = 0; i < N; i++)
            ret_d[i] -= alpha[k] * w->list_y[k][i];
    }
    for (int i = 0; i < N && w->pairs; i++)
        ret_d[i] *= dot(w->list_s[w->pairs - 1], w->list_y[w->pairs - 1]) /
                    dot(w->list_y[w->pairs - 1], w->list_y[w->pairs - 1]);
    for (int k = from; k < w->pairs; k++) {
        const double beta = dot(w->list_y[k], ret_d) / dot(w->list_y[k], w->list_s[k]);

        for (int i = 0; i < N; i++)
            ret_d[i] += (alpha[k] - beta) * w->list_s[k][i];
    }
}

static enum pd_err walk_direct(void *user, const double *shares, double *ret_slope, double *ret_largest,
                               struct pd_why *why)
{
    struct walk *w = user;
    double want[N], off = 0;

    (void)why;
    *ret_largest = 0;
    two_loops(w, want);
    for (int i = 0; i < N; i++) {
        w->d[i] = shares[2 * LBFGS_ROWS] * w->g[i];
        for (int k = 0; k < LBFGS_ROWS; k++)
            w->d[i] += shares[k] * w->s[k][i] + shares[LBFGS_ROWS + k] * w->y[k][i];
        *ret_largest = fmax(*ret_largest, fabs(w->d[i]));
        off += (w->d[i] - want[i]) * (w->d[i] - want[i]);
    }
    off = sqrt(off / dot(want, want));
    if (!(off < 1e-8))
        fail_msg("direction %d, of %d pairs: off by %g of its length", w->directions, w->pairs, off);
    w->directions++;
    memcpy(w->before, w->g, sizeof w->g);
    *ret_slope = w->last.slope = dot(w->g, w->d);
    return PD_OK;
}

static enum pd_err walk_move(void *user, double t, struct pd_why *why)
{
    struct walk *w = user;

    (void)why;
    w->last.loss += 0.5 * t * w->last.slope;
    return PD_OK;
}

static void test_search_directions_are_of_the_last_hundred_pairs(void **state)
{
    struct walk *w = calloc(1, sizeof *w);
    const struct optim_line line = {
        .user = w, .at = walk_at, .pair = walk_pair, .direct = walk_direct, .move = walk_move};
    double *numbers = calloc(LBFGS_NUMBERS, sizeof *numbers);
    struct lbfgs_outcome outcome;
    struct pd_why why = {""};

    (void)state;
    assert_true(w && numbers);
    w->noise = 20261128;
    for (int i = 0; i < N; i++)
        w->g[i] = uniform(w) - 0.5;
    while (w->directions < ITERATIONS) {
        struct optim_point first = {.finite = true, .loss = w->last.loss};
        const int before = w->directions;

        for (int i = 0; i < N; i++) {
            first.largest = fmax(first.largest, fabs(w->g[i]));
            first.sum += fabs(w->g[i]);
        }
        assert_int_equal(lbfgs_step(numbers, &line, &first, 1, &outcome, &why), PD_OK);
        assert_int_equal(w->directions, before + 20); /* all iterations of a step */
    }
    assert_true(w->pairs > 2 * LBFGS_HISTORY && w->refused > 30);
    free(numbers);
    free(w);
}

/* ---- when a step ends ---- */

struct script {
    double slope, longest, drop,
        largest; /* of each iteration: slope of d, its max norm, what the loss loses, max norm of g */
    double ys;   /* of each pair */
    int directions;
    bool history; /* the last direction has a share of a pair */
    double loss;
};

static enum pd_err script_at(void *user, double t, struct optim_point *ret, struct pd_why *why)
{
    struct script *s = user;

    (void)why;
    *ret = (struct optim_point){.t = t,
                                .loss = s->loss - s->drop,
                                .slope = 0.1 * s->slope,
                                .largest = s->largest,
                                .sum = 1,
                                .finite = true};
    return PD_OK;
}

static enum pd_err script_pair(void *user, double t, int32_t row, double *ret, struct pd_why *why)
{
    const struct script *s = user;

    (void)t;
    (void)why;
    memset(ret, 0, sizeof(double[2 * LBFGS_ROWS * 3]));
    ret[3 * row + 2] = 1;                                      /* s . s */
    ret[3 * row] = ret[3 * (LBFGS_ROWS + row) + 2] = s->ys;    /* s . y */
    ret[3 * (LBFGS_ROWS + row)] = 1;                           /* y . y */
    ret[3 * row + 1] = ret[3 * (LBFGS_ROWS + row) + 1] = 1e-3; /* with g */
    return PD_OK;
}

static enum pd_err script_direct(void *user, const double *shares, double *ret_slope, double *ret_largest,
                                 struct pd_why *why)
{
    struct script *s = user;

    (void)why;
    s->history = false;
    for (int k = 0; k < 2 * LBFGS_ROWS; k++)
        s->history |= shares[k] != 0;
    s->directions++;
    *ret_slope = s->slope;
    *ret_largest = s->longest;
    return PD_OK;
}

static enum pd_err script_move(void *user, double t, struct pd_why *why)
{
    struct script *s = user;

    (void)t;
    (void)why;
    s->loss -= s->drop;
    return PD_OK;
}

static struct lbfgs_outcome script_step(struct script *s)
{
    const struct optim_line line = {
        .user = s, .at = script_at, .pair = script_pair, .direct = script_direct, .move = script_move};
    const struct optim_point first = {.loss = s->loss, .largest = 1, .sum = 1, .finite = true};
    double *numbers = calloc(LBFGS_NUMBERS, sizeof *numbers);
    struct lbfgs_outcome outcome;
    struct pd_why why;

    assert_non_null(numbers);
    assert_int_equal(lbfgs_step(numbers, &line, &first, 1, &outcome, &why), PD_OK);
    free(numbers);
    return outcome;
}

static void test_search_stops_where_pytorch_does(void **state)
{
    const struct script all = {.slope = -1, .longest = 1, .drop = 0.5, .largest = 1, .ys = 1};
    static const struct {
        const char *what;
        double slope, longest, drop, largest; /* 0: as in a step that goes on */
        int directions;
    } rows[] = {{"nothing", 0, 0, 0, 0, 20},
                {"max |g| just above", 0, 0, 0, 1.01e-7, 20},
                {"max |g|", 0, 0, 0, 1e-7, 1},
                {"max |t d| just above", 0, 1.01e-9, 0, 0, 20},
                {"max |t d|", 0, 1e-9, 0, 0, 1},
                {"the loss changes by just above", -2e-9, 0, 1.01e-9, 0, 20},
                {"the loss changes", -2e-9, 0, 0.99e-9, 0, 1},
                {"slope just steep enough", -1e-9, 0, 1.01e-9, 0, 20},
                {"slope", -0.99e-9, 0, 0, 0, 1}};

    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct script s = all;
        struct lbfgs_outcome outcome;

        s.slope = rows[k].slope != 0 ? rows[k].slope : s.slope;
        s.longest = rows[k].longest != 0 ? rows[k].longest : s.longest;
        s.drop = rows[k].drop != 0 ? rows[k].drop : s.drop;
        s.largest = rows[k].largest != 0 ? rows[k].largest : s.largest;
        outcome = script_step(&s);
        if (s.directions != rows[k].directions)
            fail_msg("%s: %d iterations, should be %d", rows[k].what, s.directions, rows[k].directions);
        assert_int_equal(outcome.end == LBFGS_END_SLOPE, k == sizeof rows / sizeof *rows - 1);
    }
}

static void test_search_takes_pairs_of_enough_curvature(void **state)
{
    struct script s = {.slope = -1, .longest = 1, .drop = 0.5, .largest = 1, .ys = 1.01e-10};

    (void)state;
    (void)script_step(&s);
    assert_true(s.history);
    s.ys = 0.99e-10;
    (void)script_step(&s);
    assert_false(s.history);
}

/* ---- a line on which most trials are infinite ---- */

/* As a history of another loss made it: a steep descent up to 1e-6, a wall, and nothing finite beyond 1e-3. */
static enum pd_err steep_at(void *user, double t, struct optim_point *ret, struct pd_why *why)
{
    (void)user;
    (void)why;
    *ret = (struct optim_point){.t = t, .largest = 1, .sum = 1, .finite = t <= 1e-3};
    if (t > 1e-3)
        ret->loss = (double)NAN;
    else if (t > 1e-6) {
        ret->loss = 1.3e8;
        ret->slope = -1.3e13;
    } else {
        ret->loss = (float)(1.1356 - 227.7 * t + 1e8 * t * t); /* as f32 keeps it */
        ret->slope = -227.7 + 2e8 * t;
    }
    return PD_OK;
}

static void test_search_finds_a_descent_beside_infinite_trials(void **state)
{
    const struct optim_line line = {.at = steep_at};
    struct optim_point from, found;
    int evaluations = 0, infinite = 0;
    struct pd_why why;

    (void)state;
    assert_int_equal(steep_at(NULL, 0, &from, &why), PD_OK);
    assert_int_equal(optim_wolfe(&line, &from, 1, 1180, &found, &evaluations, &infinite, &why), PD_OK);
    assert_true(found.t > 0 && found.loss < from.loss);
    assert_true(infinite >= 10 && evaluations <= OPTIM_SEARCH_MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_directions_are_of_the_last_hundred_pairs),
        cmocka_unit_test(test_search_stops_where_pytorch_does),
        cmocka_unit_test(test_search_takes_pairs_of_enough_curvature),
        cmocka_unit_test(test_search_finds_a_descent_beside_infinite_trials),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
