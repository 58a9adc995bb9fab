/* Group diagnostics, cases theory_* and note_*: tables of expectations, from Monte Carlo on either side. Each value is compared
 * within four standard errors of both; columns that are exact, with the closed forms. */
#include <math.h>
#include <string.h>

#include "daemon/worker/check/norms.h"
#include "daemon/worker/check/sigmoid.h"
#include "daemon/worker/check/stat.h"
#include "tests/golden/golden.h"

#define SEED 20240613
#define ROWS 4 /* queries of one sequence */

static void near(struct gold *g, const char *column, int64_t row, double got, double se, double want,
                 double want_se)
{
    double allowed = 4 * sqrt(se * se + want_se * want_se);

    g->compared++;
    g->worst = fmax(g->worst, fabs(got - want) / allowed);
    if (!(fabs(got - want) <= allowed))
        gold_fail(g, "row %d, %s: %g (se %g), expected %g (se %g)", (int)row, column, got, se, want, want_se);
}

static void same(struct gold *g, const char *column, int64_t row, double got, double want)
{
    g->compared++;
    if (!(fabs(got / want - 1) <= 1e-12))
        gold_fail(g, "row %d, %s: %.17g, expected %.17g", (int)row, column, got, want);
}

/* Consecutive rows of one N, D and d differ in p alone. */
static int powers_of(const double *table, int64_t rows, int64_t columns, int64_t at)
{
    int count = 1;

    while (at + count < rows &&
           !memcmp(table + at * columns, table + (at + count) * columns, 3 * sizeof *table))
        count++;
    return count;
}

static struct check_shape shape_of(const struct gold *g, const double *row)
{
    return (struct check_shape){.n = row[0],
                                .width = row[1],
                                .head = row[2],
                                .sigma_x = gold_number(g, "sigma_x", 1),
                                .sigma_t = gold_number(g, "sigma_t", 1)};
}

/* Fewer draws than the table's: the larger error is that of this side. */
static int64_t draws_of(double n)
{
    return n <= 64 ? 300 : n <= 256 ? 50 : 12;
}

enum { POLYNOMIAL, MATRIX_POWER };

static void powers(struct gold *g, const double *table, int64_t rows, int64_t columns, int form)
{
    for (int64_t at = 0; at < rows;) {
        const int count = powers_of(table, rows, columns, at);
        const double *row = table + at * columns;
        struct check_shape s = shape_of(g, row);
        struct check_stat power[CHECK_POWERS_MAX], slope[CHECK_POWERS_MAX];
        struct check_rig rig;
        double *scratch = gold_alloc(g, (size_t)(5 * s.head * s.head) * sizeof *scratch);

        if (count > CHECK_POWERS_MAX) {
            gold_fail(g, "%d powers", count);
            return;
        }
        memset(power, 0, sizeof power);
        memset(slope, 0, sizeof slope);
        check_rig_init(&rig, &s, gold_alloc(g, check_rig_size(&s) * sizeof *scratch));
        for (int64_t i = 0; i < draws_of(s.n); i++) {
            struct check_draws d = check_draws(SEED, (uint32_t)(at + 1), (uint32_t)i);
            double a[CHECK_POWERS_MAX], b[CHECK_POWERS_MAX] = {0};

            check_rig_draw(&rig, &d);
            if (form == MATRIX_POWER)
                check_rig_matrix_norms(&rig, count, a, scratch);
            else
                check_rig_norms(&rig, count, a, b);
            for (int p = 0; p < count; p++) {
                check_stat_add(&power[p], sqrt(a[p]));
                check_stat_add(&slope[p], sqrt(b[p] / s.head)); /* 1/sqrt d outside the power */
            }
        }
        for (int k = 0; k < count; k++, row += columns) {
            const int p = (int)row[3];
            const double one = s.n * (s.n - 1) * pow(check_rising(p, s.width), 2),
                         share = one / (one + s.n * check_rising(2 * p, s.width));

            near(g, "mean_fro", at + k, power[p - 1].mean, check_stat_se(&power[p - 1]), row[5], row[6]);
            if (form == MATRIX_POWER)
                continue;
            near(g, "mean_dq", at + k, slope[p - 1].mean, check_stat_se(&slope[p - 1]), row[10], row[11]);
            same(g, "exact_offdiagonal_rms_fro", at + k, sqrt(share * check_power_square(&s, p)), row[8]);
            same(g, "exact_offdiagonal_rms_dq", at + k, sqrt(share * check_gradient_square(&s, p) / s.head),
                 row[13]);
            same(g, "rms_from_the_proof_of_4.2", at + k, s.n * sqrt(pow(s.width, p) * check_odd_factorial(p)),
                 row[9]);
        }
        at += count;
    }
}

static void softmax(struct gold *g, const double *table, int64_t rows, int64_t columns)
{
    for (int64_t at = 0; at < rows; at++) {
        const double *row = table + at * columns;
        struct check_shape s = shape_of(g, row);
        struct check_stat norm = {0}, jacobian = {0};
        struct check_rig rig;

        s.sigma_t = row[3];
        check_rig_init(&rig, &s, gold_alloc(g, check_rig_size(&s) * sizeof(double)));
        for (int64_t i = 0; i < draws_of(s.n) / 2; i++) {
            struct check_draws d = check_draws(SEED, (uint32_t)(1000 + at), (uint32_t)i);
            double a, b;

            check_rig_draw(&rig, &d);
            check_rig_softmax(&rig, &a, &b);
            check_stat_add(&norm, a);
            check_stat_add(&jacobian, b);
        }
        near(g, "mean_attn_fro", at, norm.mean, check_stat_se(&norm), row[5], row[6]);
        near(g, "mean_jac_fro", at, jacobian.mean, check_stat_se(&jacobian), row[7], row[8]);
    }
}

/* u = A^T x_i: A = 1 for d = 1, else W_q^T W_k / sqrt d with entries of W of variance 1/d. */
static void query_of(const double *wq, const double *wk, const double *x, int64_t d, double *work, double *u)
{
    if (d == 1) {
        u[0] = x[0];
        return;
    }
    for (int64_t i = 0; i < d; i++)
        work[i] = check_dot(wq + i * d, x, d) / sqrt((double)d);
    check_product(u, work, wk, 1, d, d);
}

enum kind { DEPENDENT, INDEPENDENT, BIASED, KINDS };

static void sigmoid_sums(struct gold *g, int64_t d, int64_t n, struct check_stat stat[KINDS])
{
    const size_t size = (size_t)(n * d) * sizeof(double), square = (size_t)(d * d) * sizeof(double);
    double *x = gold_alloc(g, size), *other = gold_alloc(g, size), *wq = gold_alloc(g, square),
           *wk = gold_alloc(g, square);
    double u[64], work[64], sum[64];
    const int64_t draws = n <= 64 ? 1500 : n <= 256 ? 500 : n <= 1024 ? 150 : 40;

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws r = check_draws(SEED, (uint32_t)(2000 + d * 8192 + n), (uint32_t)i);
        double mean[KINDS] = {0};

        check_normals(&r, 1, x, (size_t)(n * d));
        check_normals(&r, 1, other, (size_t)(n * d));
        check_normals(&r, 1 / sqrt((double)d), wq, (size_t)(d * d));
        check_normals(&r, 1 / sqrt((double)d), wk, (size_t)(d * d));
        for (int64_t row = 0; row < ROWS && row < n; row++)
            for (int kind = 0; kind < KINDS; kind++) {
                const double *keys = kind == INDEPENDENT ? other : x;

                query_of(wq, wk, keys + row * d, d, work, u);
                check_sigmoid_sum(u, keys, x, n, d, kind == BIASED ? -log((double)n) : 0, sum);
                mean[kind] += check_dot(sum, sum, d) / (double)d / (double)(ROWS < n ? ROWS : n);
            }
        for (int kind = 0; kind < KINDS; kind++)
            check_stat_add(&stat[kind], mean[kind]);
    }
}

static void note(struct gold *g, const double *table, int64_t rows, int64_t columns)
{
    struct check_stat stat[KINDS];

    for (int64_t at = 0; at < rows; at++) {
        const double *row = table + at * columns, factor = pow(row[1], -2 * row[2]);
        const struct check_stat *s = &stat[(int)row[3]];

        if (!at || memcmp(row, row - columns, 2 * sizeof *row)) {
            memset(stat, 0, sizeof stat);
            if (row[0] > 64) {
                gold_fail(g, "d = %g", row[0]);
                return;
            }
            sigmoid_sums(g, (int64_t)row[0], (int64_t)row[1], stat);
        }
        near(g, "var_y_over_var_x", at, factor * s->mean, factor * check_stat_se(s), row[5], row[6]);
    }
}

void gold_expectations(struct gold *g)
{
    const char *name = gold_text(g, "case");
    struct pk_shape shape;
    const double *table = gold_tensor(g, "table.f64", &shape);

    if (!table)
        return;
    if (!strcmp(name, "theory_polynomial"))
        powers(g, table, shape.dim[0], shape.dim[1], POLYNOMIAL);
    else if (!strcmp(name, "theory_matrixpower"))
        powers(g, table, shape.dim[0], shape.dim[1], MATRIX_POWER);
    else if (!strcmp(name, "theory_softmax"))
        softmax(g, table, shape.dim[0], shape.dim[1]);
    else if (!strcmp(name, "note_sigmoid_variance"))
        note(g, table, shape.dim[0], shape.dim[1]);
    else
        gold_fail(g, "there is no check of '%s'", name);
}
