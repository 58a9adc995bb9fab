/* T1 to T3: the norm of softmax and of its Jacobian (polynomial papers, theorem 4.1).
 *
 * f is one row of softmax. Rows are independent, so norms of the matrix follow from sums over rows. */
#include "daemon/worker/check/internal.h"

#include <string.h>

enum { LOGITS, DIRICHLET, TYPICAL, DIFFERENCE }; /* streams of draws */

/* f = softmax(t g), of n entries; in place. */
static void softmax_row(double *g, int64_t n, double t)
{
    double most = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        most = fmax(most, t * g[i]);
    for (int64_t i = 0; i < n; i++)
        sum += g[i] = exp(t * g[i] - most);
    for (int64_t i = 0; i < n; i++)
        g[i] /= sum;
}

/* ||diag f - f f^T||_F^2 = s - 2 sum f^3 + s^2, s = sum f^2. */
static double jacobian_square(const double *f, int64_t n)
{
    double s = 0, cubes = 0;

    for (int64_t i = 0; i < n; i++) {
        s += f[i] * f[i];
        cubes += f[i] * f[i] * f[i];
    }
    return s - 2 * cubes + s * s;
}

/* ---- T1 ---- */

static void t1(struct check *c)
{
    size_t n_count, t_count;
    const double *ns = check_list(c, "N", &n_count), *ts = check_list(c, "t", &t_count);
    struct check_plot *plot = c->nth
                                  ? NULL
                                  : check_plot(c, "Frobenius norm of softmax(t G), with its bounds 1 and √N",
                                               "t", true, "norm", true);
    double *row = check_numbers(c, (size_t)ns[n_count - 1]), *norms = check_numbers(c, t_count);

    for (size_t k = 0; k < n_count; k++) {
        const int64_t n = (int64_t)ns[k];
        const double root = sqrt((double)n);
        struct check_series *measured, *bound;
        double causal = 0;

        if (!check_go(c, (double)k / (double)n_count))
            return;
        memset(norms, 0, t_count * sizeof *norms);
        for (int64_t i = 0; i < n; i++)
            for (size_t a = 0; a < t_count; a++) {
                struct check_draws d =
                    check_draws(c->seed, LOGITS, (uint32_t)(n * 8192 + i)); /* G is the same for every t */

                check_normals(&d, 1, row, (size_t)n);
                softmax_row(row, n, ts[a]);
                norms[a] += check_dot(row, row, n);
            }
        measured = check_series(c, plot, "points", "N = %lld", (long long)n);
        bound = check_series(c, plot, "line", "√N = %.3g", root);
        for (size_t a = 0; a < t_count; a++) {
            double norm = sqrt(norms[a]);

            check_value(c, norm, NAN, ts[a] == 0 ? 1 : NAN,
                        ts[a] == 0     ? 1 - 1e-12
                        : ts[a] >= 100 ? 0.95 * root
                                       : 1 - 1e-12,
                        ts[a] == 0 ? 1 + 1e-12 : root * (1 + 1e-12), "N = %lld, t = %g", (long long)n, ts[a]);
            check_point(c, measured, ts[a], norm, 0);
            check_point(c, bound, ts[a], root, 0);
        }
        for (int64_t i = 1; i <= n; i++)
            causal += 1 / (double)i;
        check_report(c, sqrt(causal), NAN, NAN, "N = %lld, causal mask: smallest possible norm",
                     (long long)n);
    }
    if (plot) {
        struct check_series *one = check_series(c, plot, "line", "lower bound 1");

        check_point(c, one, ts[t_count > 1], 1, 0);
        check_point(c, one, ts[t_count - 1], 1, 0);
    }
    check_evidence(c,
                   "Every norm lies between 1 (uniform rows, t = 0) and √N (one-hot rows); the papers give "
                   "the upper "
                   "bound only.");
}

const struct check_theorem check_T1 = {
    .source = "polynomial papers, theorem 4.1, first part",
    .claimed = "‖softmax(A)‖_F ≤ √N",
    .correct = "True, with equality where every row is one-hot. There is a lower bound, too, which the "
               "papers do not "
               "give: ‖softmax(A)‖_F ≥ 1, with equality where every row is uniform; with a causal mask "
               "the root of "
               "1 + 1/2 + .. + 1/N.",
    .seed = t1,
};

/* ---- T2 ---- */

#define BINS 30
#define SMALL 6 /* logits of the row that is differentiated numerically */

struct t2 {
    double most, worst; /* the greatest ||J||^2 of a row; the greatest error of the closed form */
    int64_t bin[BINS];
};

static void t2_add(struct t2 *t, const double *f, int64_t n)
{
    double square = jacobian_square(f, n);
    int64_t at = (int64_t)(square / 0.25 * BINS);

    t->most = fmax(t->most, square);
    t->bin[at < 0 ? 0 : at >= BINS ? BINS - 1 : at]++;
}

/* The closed form against central differences, all entries of the Jacobian. */
static double t2_difference(struct check *c, uint32_t index, double t)
{
    struct check_draws d = check_draws(c->seed, DIFFERENCE, index);
    const double h = 1e-5;
    double g[SMALL], up[SMALL], down[SMALL], f[SMALL], square = 0;

    check_normals(&d, t, g, SMALL);
    for (int j = 0; j < SMALL; j++) {
        memcpy(up, g, sizeof g);
        memcpy(down, g, sizeof g);
        up[j] += h;
        down[j] -= h;
        softmax_row(up, SMALL, 1);
        softmax_row(down, SMALL, 1);
        for (int i = 0; i < SMALL; i++)
            square += (up[i] - down[i]) * (up[i] - down[i]) / (4 * h * h);
    }
    memcpy(f, g, sizeof g);
    softmax_row(f, SMALL, 1);
    return fabs(sqrt(square) - sqrt(jacobian_square(f, SMALL)));
}

static void t2_lengths(struct check *c, struct t2 *t, double *f)
{
    static const double temperatures[] = {0.1, 0.3, 1, 3, 10, 30};
    const int64_t rows = (int64_t)check_param(c, "rows");
    size_t n_count;
    const double *ns = check_list(c, "N", &n_count);
    double u[2];

    for (size_t k = 0; k < n_count; k++) {
        const int64_t n = (int64_t)ns[k];

        for (int64_t r = 0; r < rows; r++) {
            struct check_draws d = check_draws(c->seed, DIRICHLET, (uint32_t)(k * 100000 + (size_t)r));
            double sum = 0;

            if (r % 256 == 0 && !check_go(c, ((double)k + (double)r / (double)rows) / (double)n_count))
                return;
            for (int64_t i = 0; i < n; i += 2) { /* Dirichlet(1, .., 1): exponentials over their sum */
                check_uniform2(&d, u);
                sum += f[i] = -log(u[0]);
                if (i + 1 < n)
                    sum += f[i + 1] = -log(u[1]);
            }
            for (int64_t i = 0; i < n; i++)
                f[i] /= sum;
            t2_add(t, f, n);
            check_uniform2(&d, u); /* two values */
            memset(f, 0, (size_t)n * sizeof *f);
            f[0] = u[0];
            f[1] = 1 - u[0];
            t2_add(t, f, n);
            check_normals(&d, 1, f, (size_t)n);
            softmax_row(f, n, temperatures[r % 6]);
            t2_add(t, f, n);
        }
    }
}

static void t2(struct check *c)
{
    size_t n_count;
    const double *ns = check_list(c, "N", &n_count);
    double *f = check_numbers(c, (size_t)ns[n_count - 1]), sum = 0;
    struct t2 t = {0};

    if (!f)
        return;
    t2_lengths(c, &t, f);
    for (uint32_t i = 0; i < 200; i++)
        t.worst = fmax(t.worst, t2_difference(c, i, i % 2 ? 0.5 : 3));
    memset(f, 0, (size_t)ns[n_count - 1] * sizeof *f);
    f[0] = f[1] = 0.5;
    check_value(c, t.most, NAN, 0.25, 0, 0.25 + 1e-12, "greatest ‖J‖² of a row (bound 1/4)");
    check_equal(c, jacobian_square(f, (int64_t)ns[n_count - 1]), 0.25, 1e-15,
                "‖J‖² of the row (1/2, 1/2, 0, ..)");
    check_value(c, t.worst, NAN, 0, 0, 1e-6, "closed form against finite differences, greatest error of ‖J‖");
    for (int64_t i = 1; i < (int64_t)ns[n_count - 1]; i++)
        sum += f[i];
    check_equal(c, sum / (1 - f[0]), 1, 1e-12, "sum of the other entries over 1 - F_ij (the proof has 1/2)");
    check_report(c, 4, NAN, 0.25, "what the papers' bound 2 √N allows a row, ‖J‖², against 1/4");
    if (c->nth == 0) {
        struct check_plot *plot = check_plot(c, "Rows by the square of the norm of their Jacobian",
                                             "‖J‖² of a row", false, "rows", false);
        struct check_series *bars = check_series(c, plot, "bars", "rows");

        for (int i = 0; i < BINS; i++)
            check_point(c, bars, (i + 0.5) * 0.25 / BINS, (double)t.bin[i], 0);
    }
    check_evidence(c, "No row exceeds ‖J‖² = 1/4, which the row (1/2, 1/2, 0, ..) reaches: the bound for N "
                      "rows is √N / 2. "
                      "The papers' 2 √N allows 4 a row, sixteen times the square.");
}

const struct check_theorem check_T2 = {
    .source = "polynomial papers, theorem 4.1, second part, and its proof, equations 22 to 36",
    .claimed = "‖∇softmax(A)‖_F ≤ 2 √N",
    .correct = "True, but loose by a factor of 4: ‖∇softmax(A)‖_F ≤ √N / 2, which is tight. The "
               "proof uses "
               "1 - F_ij = 2 sum of F_ik over k ≠ j, which is false: there is no factor 2. It also loses "
               "squares and signs in "
               "equations 24 to 36.",
    .wrong = true,
    .seed = t2,
};

/* ---- T3 ---- */

static void t3(struct check *c)
{
    const int64_t rows = (int64_t)check_param(c, "rows");
    size_t n_count, s_count;
    const double *ns = check_list(c, "N", &n_count), *ss = check_list(c, "s", &s_count);
    double *f = check_numbers(c, (size_t)ns[n_count - 1]), *norms = check_numbers(c, n_count * s_count);
    struct check_plot *plot =
        c->nth ? NULL : check_plot(c, "Norm of softmax of Gaussian logits", "N", true, "‖softmax‖_F", true);

    if (!f || !norms)
        return;
    for (size_t a = 0; a < s_count; a++) {
        struct check_series *measured = check_series(c, plot, "points", "s = %g", ss[a]);

        for (size_t k = 0; k < n_count; k++) {
            const int64_t n = (int64_t)ns[k];
            struct check_stat stat = {0};
            double limit = exp(ss[a] * ss[a] / 2);

            /* Rows are alike and independent: the mean over some stands for all N. */
            for (int64_t r = 0; r < rows; r++) {
                struct check_draws d = check_draws(c->seed, TYPICAL, (uint32_t)(k * 1000000 + (size_t)r));

                if (r % 64 == 0 && !check_go(c, ((double)(a * n_count + k) + (double)r / (double)rows) /
                                                    (double)(s_count * n_count)))
                    return;
                check_normals(&d, 1, f, (size_t)n);
                softmax_row(f, n, ss[a]);
                check_stat_add(&stat, (double)n * check_dot(f, f, n));
            }
            norms[a * n_count + k] = check_stat_root(&stat);
            if (ss[a] <= 1 && n >= 1024)
                check_ratio(c, check_stat_root(&stat), check_stat_root_se(&stat), limit, 0.98, 1.02,
                            "s = %g, N = %lld, limit e^(s²/2)", ss[a], (long long)n);
            else
                check_report(c, check_stat_root(&stat), check_stat_root_se(&stat), limit, "s = %g, N = %lld",
                             ss[a], (long long)n);
            check_point(c, measured, (double)n, check_stat_root(&stat), check_stat_root_se(&stat));
        }
    }
    for (size_t a = 0; a < s_count; a++) {
        double slope = n_count > 1 ? check_log_slope(ns, norms + a * n_count, n_count) : NAN;

        if (ss[a] <= 0.5)
            check_value(c, slope, NAN, 0, -INFINITY, 0.05, "s = %g, slope of log norm against log N", ss[a]);
        else if (ss[a] >= 3)
            check_value(c, slope, NAN, 0.5, 0.25, INFINITY, "s = %g, slope of log norm against log N", ss[a]);
        else
            check_report(c, slope, NAN, NAN, "s = %g, slope of log norm against log N", ss[a]);
    }
    if (plot) {
        struct check_series *root = check_series(c, plot, "line", "√N");

        for (size_t k = 0; k < n_count; k++)
            check_point(c, root, ns[k], sqrt(ns[k]), 0);
    }
    check_evidence(
        c, "At logits of standard deviation up to 1 the norm is e^(s²/2) for every N; it grows with N "
           "only where "
           "rows are sharp.");
}

const struct check_theorem check_T3 = {
    .source = "polynomial papers, theorem 4.1: softmax's norm is O(√N)",
    .claimed = "softmax keeps its norm at O(√N), so another activation should as well",
    .correct = "O(√N) is an upper bound, not the size that softmax has at initialisation: for Gaussian "
               "logits of standard "
               "deviation s, and N far above e^(2 s²), the norm is e^(s²/2) whatever N is. Growth like "
               "√N appears for "
               "sharp rows alone.",
    .wrong = false,
    .seed = t3,
};
