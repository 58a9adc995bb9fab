/* T13: the same question for powers (joins the sigmoid note and the polynomial papers).
 *
 *   S = sum over j of (u.v_j)^p v_j,   v_j of N(0, I_d),   u = s q / root d with q of N(0, I_d)
 *
 * Var(S) is E |S|^2 / d: n E|u|^(2p) [(2p+1)!! + (d-1) (2p-1)!!] / d, and for odd p n (n-1) E|u|^(2p) (p!!)^2 / d besides. */
#include <string.h>

#include "daemon/worker/check/closed.h"
#include "daemon/worker/check/internal.h"

#define QUERIES 16 /* of one sequence */
#define SHORT 512  /* up to here a sequence is cut into pieces of n tokens, each with a query of its own */
#define POWERS 5
#define LENGTHS_MAX 32

static double exact(int p, double n, double d, double s)
{
    const double size = pow(s, 2 * p) * check_rising(p, d) / pow(d, p); /* E |u|^(2p) */
    double one = (check_odd_factorial(p + 1) + (d - 1) * check_odd_factorial(p)) / d;

    return size * (n * one + (p % 2 ? n * (n - 1) * pow(check_double_factorial(p), 2) / d : 0));
}

static double crossover(int p, double d)
{
    return d * check_odd_factorial(p) / pow(check_double_factorial(p), 2);
}

/* Adds the terms of `count` tokens to the sums of all powers. */
static void add_terms(const double *u, const double *v, int64_t count, int64_t d, double *sum)
{
    for (int64_t j = 0; j < count; j++) {
        const double *x = v + j * d, z = check_dot(u, x, d);
        double a = 1;

        for (int p = 0; p < POWERS; p++) {
            double *to = sum + p * d;

            a *= z;
            for (int64_t e = 0; e < d; e++)
                to[e] += a * x[e];
        }
    }
}

static void add_squares(const double *sum, int64_t d, size_t n_count, struct check_stat *ret)
{
    for (int p = 0; p < POWERS; p++)
        check_stat_add(&ret[(size_t)p * n_count], check_dot(sum + p * d, sum + p * d, d) / (double)d);
}

/* One query against the beginnings of one sequence, for the long lengths: |S|^2 / d for every power. */
static void add_long(const double *ns, size_t n_count, const double *u, const double *v, int64_t d,
                     double *sum, struct check_stat *ret)
{
    int64_t at = 0;

    memset(sum, 0, (size_t)(POWERS * d) * sizeof *sum);
    for (size_t k = 0; k < n_count; k++) {
        if (ns[k] <= SHORT)
            continue;
        add_terms(u, v + at * d, (int64_t)ns[k] - at, d, sum);
        at = (int64_t)ns[k];
        add_squares(sum, d, n_count, ret + k);
    }
}

/* The short lengths: high powers of few tokens scatter widely, and need many samples. */
static void add_short(const double *ns, size_t n_count, struct check_draws *queries, double scale, double *u,
                      const double *v, int64_t most, int64_t d, double *sum, struct check_stat *ret)
{
    for (size_t k = 0; k < n_count && ns[k] <= SHORT; k++) {
        const int64_t n = (int64_t)ns[k];

        for (int64_t at = 0; at + n <= most; at += n) {
            check_normals(queries, scale, u, (size_t)d);
            memset(sum, 0, (size_t)(POWERS * d) * sizeof *sum);
            add_terms(u, v + at * d, n, d, sum);
            add_squares(sum, d, n_count, ret + k);
        }
    }
}

static void judge(struct check *c, int p, const double *ns, size_t n_count, double d, double s,
                  const struct check_stat *stat, struct check_plot *plot)
{
    struct check_series *points = check_series(c, plot, "points", "p = %d", p),
                        *line = check_series(c, plot, "line", "p = %d, exact", p);
    double far_n[LENGTHS_MAX], far[LENGTHS_MAX];
    size_t count = 0;

    for (size_t k = 0; k < n_count; k++) {
        const double n = ns[k];

        if (p % 2 == 0)
            check_ratio(c, stat[k].mean / n, check_stat_se(&stat[k]) / n, exact(p, n, d, s) / n, 0.85, 1.15,
                        "p = %d, n = %g: Var / n", p, n);
        else
            check_report(c, stat[k].mean / n, check_stat_se(&stat[k]) / n, exact(p, n, d, s) / n,
                         "p = %d, n = %g: Var / n", p, n);
        check_point(c, points, n, stat[k].mean / n, check_stat_se(&stat[k]) / n);
        check_point(c, line, n, exact(p, n, d, s) / n, 0);
        if (n >= 4 * crossover(p, d)) {
            far_n[count] = n;
            far[count++] = stat[k].mean;
        }
    }
    if (p % 2 == 0)
        return;
    check_report(c, crossover(p, d), NAN, NAN, "p = %d: crossover N* = d (2p-1)!! / (p!!)²", p);
    if (count > 1) {
        check_value(c, check_log_slope(far_n, far, count), NAN, 2, 1.8, INFINITY,
                    "p = %d: exponent of n in Var beyond 4 N*", p);
        check_report(c, check_log_slope(far_n + count - 2, far + count - 2, 2), NAN, 2,
                     "p = %d: the same of the two greatest n", p);
    }
}

static void t13(struct check *c)
{
    const int64_t draws = (int64_t)check_param(c, "draws"), d = (int64_t)check_param(c, "d");
    const double s = check_param(c, "s");
    size_t n_count, p_count;
    const double *ns = check_list(c, "n", &n_count), *ps = check_list(c, "p", &p_count);
    const int64_t most = (int64_t)ns[n_count - 1];
    double *v = check_numbers(c, (size_t)(most * d)), *u = check_numbers(c, (size_t)d),
           *sum = check_numbers(c, (size_t)(POWERS * d));
    struct check_stat *stat = check_alloc(c, POWERS * n_count * sizeof *stat);
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "Var(S) / n of sums with weights (u.v)^p", "n", true, "Var(S) / n", true);

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws tokens = check_draws(c->seed, 0, (uint32_t)i),
                           queries = check_draws(c->seed, 1, (uint32_t)i);

        if (!check_go(c, (double)i / (double)draws) || !v || !u || !sum || !stat)
            return;
        check_normals(&tokens, 1, v, (size_t)(most * d));
        for (int r = 0; r < QUERIES; r++) {
            check_normals(&queries, s / sqrt((double)d), u, (size_t)d);
            add_long(ns, n_count, u, v, d, sum, stat);
        }
        add_short(ns, n_count, &queries, s / sqrt((double)d), u, v, most, d, sum, stat);
    }
    for (size_t a = 0; a < p_count; a++)
        judge(c, (int)ps[a], ns, n_count, (double)d, s, stat + ((size_t)ps[a] - 1) * n_count, plot);
    check_evidence(c, "Even powers: 1/√N keeps the variance of the output for every N. Odd powers have a "
                      "coherent mean: beyond N* their "
                      "variance grows as N², and 1/N keeps it.");
}

const struct check_theorem check_T13 = {
    .source = "polynomial papers, 1/√N for x^p, by the analysis of the sigmoid note",
    .claimed = "1/√N is the factor for every power",
    .correct = "Of the ceiling of softmax's norm it is. The variance of the output has another rule: per "
               "dimension Var = N (2p-1)!! s^(2p), and for "
               "odd p N² (p!!)² s^(2p) / d besides. Even p: 1/√N for all N. Odd p: from N* = d "
               "(2p-1)!! / (p!!)² on (107 for x³ at "
               "d = 64) it takes 1/N. Softmax's typical norm wants 1/N as well: three rules coexist.",
    .wrong = false,
    .seed = t13,
};
