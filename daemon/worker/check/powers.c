/* T4, T5, T7 and T8: norms of powers of the logits (polynomial papers, theorems 4.2 and 4.3, corollaries 4.1 and 4.2). */
#include "daemon/worker/check/engine.h"
#include "daemon/worker/check/internal.h"
#include "daemon/worker/check/norms.h"

#include <string.h>

enum { MATRICES, SMALL_DRAW, POWERS_OF_MATRIX, LOGITS }; /* streams of draws */

static struct check_shape shape_of(const struct check *c, double n)
{
    return (struct check_shape){
        .n = n, .width = check_param(c, "D"), .head = check_param(c, "d"), .sigma_x = 1, .sigma_t = 1};
}

/* How far Monte Carlo may be from the closed form: heavy tails grow with p. */
static double band_of(int p)
{
    return p <= 2 ? 0.03 : p == 3 ? 0.1 : 0.15;
}

/* ---- T4 and T7: the same draws, another norm ---- */

static void norms(struct check *c, bool gradient)
{
    const int64_t draws = (int64_t)check_param(c, "draws");
    size_t n_count, p_count;
    const double *ns = check_list(c, "N", &n_count), *ps = check_list(c, "p", &p_count);
    const int powers = (int)ps[p_count - 1];
    struct check_shape s = shape_of(c, ns[n_count - 1]);
    double *memory = check_numbers(c, check_rig_size(&s)), *roots = check_numbers(c, n_count * p_count);
    double done = 0;
    struct check_plot *plot =
        c->nth
            ? NULL
            : check_plot(c,
                         gradient ? "Root mean square of ‖d S^p / dQ‖_F, S = X Q Kᵀ Xᵀ, and the closed form"
                                  : "Root mean square of ‖S^p‖_F, S = X Q Kᵀ Xᵀ / √d, and the closed form",
                         "N", true, "norm", true);

    for (size_t k = 0; k < n_count; k++) {
        const int64_t many = (int64_t)((double)draws * pow(ns[n_count - 1] / ns[k], 1.5));
        struct check_stat stat[CHECK_POWERS_MAX];
        struct check_rig r;

        s.n = ns[k];
        s.sigma_x = check_param(c, "sigma_x");
        s.sigma_t = check_param(c, "sigma_t");
        if (!memory || !roots)
            return;
        memset(stat, 0, sizeof stat);
        check_rig_init(&r, &s, memory);
        for (int64_t i = 0; i < many; i++) {
            struct check_draws d = check_draws(c->seed, MATRICES + 16 * (uint32_t)s.n, (uint32_t)i);
            double power[CHECK_POWERS_MAX], slope[CHECK_POWERS_MAX];

            if (i % 16 == 0 && !check_go(c, (done + (double)i / (double)many) / (double)n_count))
                return;
            check_rig_draw(&r, &d);
            check_rig_norms(&r, powers, power, gradient ? slope : NULL);
            for (int p = 0; p < powers; p++)
                check_stat_add(&stat[p], gradient ? slope[p] : power[p]);
        }
        done++;
        for (size_t a = 0; a < p_count; a++) {
            const int p = (int)ps[a];
            const struct check_stat *t = &stat[p - 1];
            double closed = sqrt(gradient ? check_gradient_square(&s, p) : check_power_square(&s, p));

            roots[a * n_count + k] = check_stat_root(t);
            check_ratio(c, check_stat_root(t), check_stat_root_se(t), closed, 1 - band_of(p), 1 + band_of(p),
                        "p = %d, N = %g", p, s.n);
        }
    }
    for (size_t a = 0; a < p_count; a++) {
        struct check_series *measured = check_series(c, plot, "points", "p = %g", ps[a]);
        struct check_series *line = check_series(c, plot, "line", "p = %g, closed form", ps[a]);

        for (size_t k = 0; k < n_count; k++) {
            s.n = ns[k];
            check_point(c, measured, ns[k], roots[a * n_count + k], 0);
            check_point(
                c, line, ns[k],
                sqrt(gradient ? check_gradient_square(&s, (int)ps[a]) : check_power_square(&s, (int)ps[a])),
                0);
        }
        if (n_count > 1)
            check_value(c, check_log_slope(ns, roots + a * n_count, n_count), NAN, 1, 0.95, 1.05,
                        "p = %g, exponent of N", ps[a]);
    }
}

static void t4(struct check *c)
{
    size_t n_count, p_count;
    const double *ns = check_list(c, "N", &n_count), *ps = check_list(c, "p", &p_count);
    struct check_shape s = shape_of(c, ns[n_count - 1]);

    norms(c, false);
    for (size_t a = 0; a < p_count && c->err == PD_OK; a++) {
        const int p = (int)ps[a];

        s.sigma_t = 1;
        check_report(c, check_power_leading(&s, p) / s.n, NAN, NAN,
                     "p = %d, constant of N with unit weights (D^p is in it)", p);
        s.sigma_t = 1 / sqrt(s.width);
        check_report(c, check_power_leading(&s, p) / s.n, NAN, NAN,
                     "p = %d, constant of N with weights of deviation D^(-1/2)", p);
    }
    check_evidence(c, "The norm grows as N to the first power. Its constant, √((2p-1)!!) D^p (σ_x "
                      "σ_t)^(2p), is what the "
                      "O hides.");
}

const struct check_theorem check_T4 = {
    .source = "polynomial papers, theorem 4.2",
    .claimed = "E ‖(X Q Kᵀ Xᵀ / √d)^p‖_F = O(N)",
    .correct = "N to the first power is right. The exact second moment is d^(-p) (2p-1)!! P_p(d) (σ_x "
               "σ_t)^(4p) "
               "[N (N-1) P_p(D)² + N P_2p(D)] with P_p(m) = m (m+2) .. (m+2p-2). The constant holds D^p and "
               "the deviations to the "
               "power 2p, which the statement treats as constants without saying so.",
    .seed = t4,
};

/* S^p for N = 3, D = 3, d = 2 and p = 3 by automatic differentiation: the whole Jacobian by Q. */
static void differentiate(struct check *c)
{
    enum { N = 3, D = 3, H = 2, P = 3 };
    struct check_draws d = check_draws(c->seed, SMALL_DRAW, 0);
    double x[N * D], q[D * H], k[D * H], dq[D * H], worst = 0, square = 0;
    double xq[N * H], xk[N * H];
    struct check_engine en;
    struct pk_val vx, vq, vk, s, grad, seed;

    check_normals(&d, 1, x, N * D);
    check_normals(&d, 1, q, D * H);
    check_normals(&d, 1, k, D * H);
    if (!check_engine_open(c, &en))
        return;
    vx = pk_input(en.g, "x", PK_F64, PK_SHAPE(N, D));
    vq = pk_param(en.g, "q", PK_F64, PK_SHAPE(D, H));
    vk = pk_input(en.g, "k", PK_F64, PK_SHAPE(D, H));
    seed = pk_input(en.g, "seed", PK_F64, PK_SHAPE(N, N));
    s = pk_matmul(en.g, pk_matmul(en.g, vx, vq), pk_transpose(en.g, pk_matmul(en.g, vx, vk)));
    s = pk_power(en.g, s, P);
    pk_grad(en.g, s, seed, &vq, 1, &grad);
    pk_output(en.g, "dq", grad);
    check_engine_plan(c, &en);
    check_engine_put(c, &en, "x", x);
    check_engine_put(c, &en, "q", q);
    check_engine_put(c, &en, "k", k);
    check_product(xq, x, q, N, D, H);
    check_product(xk, x, k, N, D, H);
    for (int i = 0; i < N && c->err == PD_OK; i++)
        for (int j = 0; j < N && c->err == PD_OK; j++) {
            double one[N * N] = {0}, z = check_dot(xq + i * H, xk + j * H, H);

            one[i * N + j] = 1;
            check_engine_put(c, &en, "seed", one);
            check_engine_run(c, &en);
            check_engine_get(c, &en, "dq", dq, D * H);
            for (int a = 0; a < D; a++)
                for (int b = 0; b < H; b++)
                    worst = fmax(worst, fabs(dq[a * H + b] - P * z * z * x[i * D + a] * xk[j * H + b]));
            square += P * P * z * z * z * z * check_dot(x + i * D, x + i * D, D) *
                      check_dot(xk + j * H, xk + j * H, H);
        }
    check_engine_close(&en);
    check_value(c, worst / sqrt(square), NAN, 0, 0, 1e-8,
                "entries of the Jacobian against automatic differentiation, relative");
}

static void t7(struct check *c)
{
    size_t n_count, p_count;
    const double *ns = check_list(c, "N", &n_count), *ps = check_list(c, "p", &p_count);
    struct check_shape s = shape_of(c, ns[0]);
    double printed = 3 * s.n * s.width * s.head + s.n * (s.n - 1) * s.width * (s.width - 1) * s.head;

    norms(c, true);
    differentiate(c);
    if (c->err != PD_OK)
        return;
    check_equal(c, check_gradient_square(&s, 1), s.head * (s.n * s.n * s.width * s.width + 2 * s.n * s.width),
                1e-9 * check_gradient_square(&s, 1), "p = 1, N = %g: mean square, d (N² D² + 2 N D)", s.n);
    check_report(c, printed / check_gradient_square(&s, 1), NAN, 1,
                 "p = 1, N = %g: what the proof has, over the exact value", s.n);
    for (size_t a = 0; a < p_count; a++)
        if (ps[a] > 1) {
            const int p = (int)ps[a];

            check_report(c, 1 / (double)p, NAN, 1,
                         "p = %d: norm without the lost factor p² of its square, over the exact one", p);
            check_report(c, check_rising(p, s.head) / pow(s.head, p), NAN, 1,
                         "p = %d: P_p(d) / d^p, which setting the cross term to zero loses", p);
        }
    check_evidence(
        c, "The conclusion O(N) stands. The proof loses p² from equation 66 on, and the cross term of "
           "equations 69 and "
           "70 is not zero for p ≥ 2: z depends on K.");
}

const struct check_theorem check_T7 = {
    .source = "polynomial papers, theorem 4.3 (4.4 in the first version), equations 53 to 70",
    .claimed = "E ‖d/dQ (X Q Kᵀ Xᵀ)^p / √d‖ = O(N)",
    .correct = "O(N) stands. The exact second moment, without 1/√d, is p² (2p-3)!! P_p(d) "
               "σ_t^(4p-2) σ_x^(4p) "
               "[N (N-1) P_p(D)² + N P_2p(D)]. The proof loses p², omits terms for p = 1, and sets to zero "
               "a term that is not. "
               "Theorem 4.2 divides by √d inside the power, 4.3 outside: the two normalise differently.",
    .wrong = true,
    .seed = t7,
};

/* ---- T5 ---- */

static void t5(struct check *c)
{
    const int64_t draws = (int64_t)check_param(c, "draws");
    size_t n_count, p_count;
    const double *ns = check_list(c, "N", &n_count), *ps = check_list(c, "p", &p_count);
    const int powers = (int)ps[p_count - 1];
    struct check_shape s = shape_of(c, ns[n_count - 1]);
    double *memory = check_numbers(c, check_rig_size(&s)),
           *scratch = check_numbers(c, (size_t)(5 * s.head * s.head));
    double *means = check_numbers(c, 2 * n_count * p_count);
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "Mean norm of S^p: power of each entry, and power of the matrix", "N", true,
                            "norm", true);

    for (size_t k = 0; k < n_count; k++) {
        struct check_stat stat[2][CHECK_POWERS_MAX];
        struct check_rig r;

        if (!memory || !scratch || !means)
            return;
        s.n = ns[k];
        memset(stat, 0, sizeof stat);
        check_rig_init(&r, &s, memory);
        for (int64_t i = 0; i < draws; i++) {
            struct check_draws d = check_draws(c->seed, POWERS_OF_MATRIX + 16 * (uint32_t)s.n, (uint32_t)i);
            double entry[CHECK_POWERS_MAX], matrix[CHECK_POWERS_MAX];

            if (!check_go(c, ((double)k + (double)i / (double)draws) / (double)n_count))
                return;
            check_rig_draw(&r, &d);
            check_rig_norms(&r, powers, entry, NULL);
            check_rig_matrix_norms(&r, powers, matrix, scratch);
            for (int p = 0; p < powers; p++) {
                check_stat_add(&stat[0][p], sqrt(entry[p]));
                check_stat_add(&stat[1][p], sqrt(matrix[p]));
            }
        }
        for (int form = 0; form < 2; form++)
            for (size_t a = 0; a < p_count; a++) {
                const struct check_stat *t = &stat[form][(int)ps[a] - 1];

                means[((size_t)form * p_count + a) * n_count + k] = t->mean;
                check_report(c, t->mean, check_stat_se(t), NAN, "p = %g, N = %g, %s", ps[a], s.n,
                             form ? "matrix power" : "elementwise power");
            }
    }
    for (int form = 0; form < 2; form++)
        for (size_t a = 0; a < p_count; a++) {
            const double *y = means + ((size_t)form * p_count + a) * n_count;
            struct check_series *line =
                check_series(c, plot, "points", "p = %g, %s", ps[a], form ? "matrix power" : "elementwise");

            for (size_t k = 0; k < n_count; k++)
                check_point(c, line, ns[k], y[k], 0);
            if (n_count > 1)
                check_value(c, check_log_slope(ns, y, n_count), NAN, form ? ps[a] : 1,
                            form ? ps[a] - 0.2 : 0.9, form ? ps[a] + 0.2 : 1.1, "p = %g, exponent of N, %s",
                            ps[a], form ? "matrix power" : "elementwise power");
        }
    check_evidence(c, "The elementwise power grows as N for every p, the matrix power as N^p.");
}

const struct check_theorem check_T5 = {
    .source = "polynomial papers, theorem 4.2: \"powers of the N x N matrix\"",
    .claimed = "the powers of the N x N matrix have norm O(N)",
    .correct = "True of the elementwise power, which the proof and the experiments use. For the power of the "
               "matrix the claim is "
               "false: its norm grows as N^p.",
    .wrong = true,
    .seed = t5,
};

/* ---- T8 ---- */

static void t8(struct check *c)
{
    const int64_t entries = (int64_t)check_param(c, "entries");
    const double s = check_param(c, "s");
    size_t n_count, p_count;
    const double *ns = check_list(c, "N", &n_count), *ps = check_list(c, "p", &p_count);
    const int powers = (int)ps[p_count - 1];
    double g[1024], *level = check_numbers(c, n_count * p_count), all[CHECK_POWERS_MAX] = {0};
    struct check_plot *plot =
        c->nth ? NULL : check_plot(c, "‖S^p / √N‖_F over √N, Gaussian logits", "N", true, "norm / √N", true);

    for (size_t k = 0; k < n_count; k++) {
        const int64_t n = (int64_t)ns[k], draws = (entries + n * n - 1) / (n * n);
        struct check_stat stat[CHECK_POWERS_MAX];

        if (!level)
            return;
        memset(stat, 0, sizeof stat);
        for (int64_t i = 0; i < draws; i++) {
            double sum[CHECK_POWERS_MAX] = {0};
            struct check_draws d = check_draws(c->seed, LOGITS + 16 * (uint32_t)n, (uint32_t)i);

            for (int64_t at = 0; at < n * n;) {
                size_t piece = n * n - at < 1024 ? (size_t)(n * n - at) : 1024;

                if (at % 65536 == 0 &&
                    !check_go(c, ((double)k + (double)i / (double)draws) / (double)n_count))
                    return;
                check_normals(&d, s, g, piece);
                for (size_t e = 0; e < piece; e++) {
                    double square = g[e] * g[e], power = 1;

                    for (int p = 0; p < powers; p++)
                        sum[p] += power *= square;
                }
                at += (int64_t)piece;
            }
            for (int p = 0; p < powers; p++)
                check_stat_add(&stat[p], sum[p] / (double)(n * n)); /* (||S^p / root N||_F / root N)^2 */
        }
        for (size_t a = 0; a < p_count; a++) {
            const int p = (int)ps[a];
            const struct check_stat *t = &stat[p - 1];

            level[a * n_count + k] = check_stat_root(t);
            all[p - 1] += t->mean / (double)n_count;
            check_report(c, check_stat_root(t), check_stat_root_se(t),
                         sqrt(check_odd_factorial(p)) * pow(s, p), "p = %d, N = %lld", p, (long long)n);
        }
    }
    for (size_t a = 0; a < p_count; a++) {
        const int p = (int)ps[a];
        struct check_series *points = check_series(c, plot, "points", "p = %d", p),
                            *line = check_series(c, plot, "line", "p = %d, √((2p-1)!!) s^p", p);
        double low = level[a * n_count], high = low, crossing = pow(check_odd_factorial(p), -0.5 / p);

        for (size_t k = 0; k < n_count; k++) {
            low = fmin(low, level[a * n_count + k]);
            high = fmax(high, level[a * n_count + k]);
            check_point(c, points, ns[k], level[a * n_count + k], 0);
            check_point(c, line, ns[k], sqrt(check_odd_factorial(p)) * pow(s, p), 0);
        }
        check_value(c, high / low, NAN, 1, 1, 1.05, "p = %d, greatest over smallest level", p);
        /* The level at another deviation follows from that of g = logits / s: it is s^p times as large. */
        check_ratio(c, s * pow(all[p - 1], -0.5 / p), NAN, crossing, 0.98, 1.02,
                    "p = %d, deviation at which the scaled power reaches softmax's ceiling √N", p);
    }
    check_evidence(c, "Divided by √N the norm is √N times √((2p-1)!!) s^p for every N. Above s = "
                      "((2p-1)!!)^(-1/(2p)) the "
                      "scaled power exceeds anything that softmax can do.");
}

const struct check_theorem check_T8 = {
    .source = "polynomial papers, corollaries 4.1 and 4.2",
    .claimed = "dividing by √N gives a norm of O(√N), as softmax has",
    .correct = "Exact consequence: the norm is Theta(√N), √N times √((2p-1)!!) s^p at logits of "
               "deviation s. It equals "
               "softmax's ceiling at s = ((2p-1)!!)^(-1/(2p)), that is 1, 0.760, 0.637, 0.559, 0.504 for p = "
               "1 to 5, whatever N is.",
    .seed = t8,
};
