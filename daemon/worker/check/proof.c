/* T6: the proof of theorem 4.2 of the polynomial papers, for independent A and B. */
#include "daemon/worker/check/closed.h"
#include "daemon/worker/check/internal.h"

#define SIDE 8 /* rows of A, columns of B */
#define POWERS 6

static void t6(struct check *c)
{
    const int64_t width = (int64_t)check_param(c, "D"), draws = (int64_t)check_param(c, "draws");
    size_t p_count;
    const double *ps = check_list(c, "p", &p_count);
    double *a = check_numbers(c, (size_t)(SIDE * width)), *b = check_numbers(c, (size_t)(SIDE * width)),
           entry[SIDE * SIDE];
    struct check_stat stat[POWERS] = {{0}};
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "E c^(2p) over D^p (2p-1)!!, which the proof calls an upper bound", "p", false,
                            "ratio", false);
    struct check_series *points, *line, *bound;

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws d = check_draws(c->seed, 0, (uint32_t)i);
        double sum[POWERS] = {0};

        if (!a || !b || (i % 64 == 0 && !check_go(c, (double)i / (double)draws)))
            return;
        check_normals(&d, 1, a, (size_t)(SIDE * width));
        check_normals(&d, 1, b, (size_t)(SIDE * width));
        check_product(entry, a, b, SIDE, width, SIDE); /* b as D x 8 */
        for (int e = 0; e < SIDE * SIDE; e++) {
            double square = entry[e] * entry[e], power = 1;

            for (int p = 0; p < POWERS; p++)
                sum[p] += power *= square;
        }
        for (int p = 0; p < POWERS; p++)
            check_stat_add(&stat[p], sum[p] / (SIDE * SIDE));
    }
    points = check_series(c, plot, "points", "Monte Carlo");
    line = check_series(c, plot, "line", "exact, P_p(D) / D^p");
    bound = check_series(c, plot, "line", "the proof's bound");
    for (size_t k = 0; k < p_count; k++) {
        const int p = (int)ps[k];
        const struct check_stat *t = &stat[p - 1];
        double claimed = pow((double)width, p) * check_odd_factorial(p);
        double exact = check_rising(p, (double)width) * check_odd_factorial(p);

        check_value(c, t->mean, check_stat_se(t), exact, exact - 4 * check_stat_se(t),
                    exact + 4 * check_stat_se(t),
                    "p = %d: E c^(2p), exact (2p-1)!! P_p(D), within 4 standard errors", p);
        if (p >= 2)
            check_value(c, t->mean, check_stat_se(t), NAN, claimed, INFINITY,
                        "p = %d: E c^(2p) lies above the proof's D^p (2p-1)!!", p);
        check_report(c, check_odd_factorial(p) * pow((double)width + 2 * p - 2, p) / exact, NAN, NAN,
                     "p = %d: the valid upper bound (2p-1)!! (D+2p-2)^p, over the exact value", p);
        check_point(c, points, p, t->mean / claimed, check_stat_se(t) / claimed);
        check_point(c, line, p, exact / claimed, 0);
        check_point(c, bound, p, 1, 0);
    }
    check_evidence(c,
                   "D^p (2p-1)!! is a lower bound: the expansion keeps the terms of distinct indices alone, "
                   "and those that it drops "
                   "are positive.");
}

const struct check_theorem check_T6 = {
    .source = "polynomial papers, proof of theorem 4.2",
    .claimed = "an entry c of A B has E c^(2p) ≤ D^p (2p-1)!! σ^(4p), with A = XQ and B = Kᵀ Xᵀ "
               "independent Gaussian matrices",
    .correct = "A and B share X: they are not independent, and their entries are Gaussian given X only. The "
               "inner dimension is d, not "
               "D. For independent A and B of inner dimension D, E c^(2p) = (2p-1)!! P_p(D) σ^(4p) ≥ "
               "(2p-1)!! D^p σ^(4p): what "
               "the proof calls an upper bound is a lower one; (2p-1)!! (D+2p-2)^p is a valid upper bound. "
               "The N² entries are summed "
               "before the root, and 1/√d is dropped.",
    .wrong = true,
    .seed = t6,
};
