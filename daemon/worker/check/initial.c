/* T9 and T11: sizes at initialisation (polynomial papers, section 5 and appendix). */
#include "daemon/worker/check/internal.h"
#include "daemon/worker/check/norms.h"

#include <stdio.h>
#include <string.h>

/* A layer whose input is normalised: X of N(0, 1), weights of N(0, std^2). */
static struct check_shape shape_of(const struct check *c)
{
    return (struct check_shape){.n = check_param(c, "N"),
                                .width = check_param(c, "D"),
                                .head = check_param(c, "d"),
                                .sigma_x = 1,
                                .sigma_t = check_param(c, "std")};
}

/* With a verdict if the draws determine the value well enough for it. */
static void judge(struct check *c, double value, double se, double expected, double band, const char *what)
{
    if (3 * se <= band * expected)
        check_ratio(c, value, se, expected, 1 - band, 1 + band, "%s", what);
    else
        check_report(c, value, se, expected, "%s", what);
}

static void t9(struct check *c)
{
    const int64_t draws = (int64_t)check_param(c, "draws");
    struct check_shape s = shape_of(c);
    const double deviation = s.sigma_t * s.sigma_t * s.width, root = sqrt(s.n), fourth = pow(deviation, 4);
    /* Where rows are long for their logits, and these nearly Gaussian. */
    const bool limit = s.n >= 32 * exp(2 * deviation * deviation) && fourth <= 0.1 * fmin(s.head, s.width);
    double *memory = check_numbers(c, check_rig_size(&s)), power[3];
    struct check_stat soft = {0}, cubic = {0}, square = {0};
    struct check_rig r;
    double norm, norm_se, exact;

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws d = check_draws(c->seed, 0, (uint32_t)i);
        double jacobian;

        if (!check_go(c, (double)i / (double)draws) || !memory)
            return;
        check_rig_init(&r, &s, memory);
        check_rig_draw(&r, &d);
        check_rig_norms(&r, 3, power, NULL);
        check_rig_softmax(&r, &norm, &jacobian);
        check_stat_add(&soft, norm);
        check_stat_add(&cubic, power[2]);
        check_stat_add(&square, power[0] / (s.n * s.n));
    }
    norm = check_stat_root(&cubic);
    norm_se = check_stat_root_se(&cubic);
    exact = sqrt(check_power_square(&s, 3));
    judge(c, check_stat_root(&square), check_stat_root_se(&square), sqrt(check_power_square(&s, 1)) / s.n,
          0.1, "standard deviation of the logits, about std² D");
    if (limit)
        judge(c, soft.mean, check_stat_se(&soft), exp(deviation * deviation / 2), 0.1, "‖softmax‖_F");
    else
        check_report(c, soft.mean, check_stat_se(&soft), exp(deviation * deviation / 2), "‖softmax‖_F");
    judge(c, norm, norm_se, exact, 0.1, "‖x³‖_F, about N √15 s³");
    judge(c, norm / root, norm_se / root, exact / root, 0.1, "‖x³ / √N‖_F");
    check_report(c, norm / soft.mean, NAN, NAN, "‖x³‖ over ‖softmax‖");
    check_report(c, norm / root / soft.mean, NAN, NAN, "‖x³ / √N‖ over ‖softmax‖");
    check_report(c, cbrt(1 / (s.n * sqrt(15))), NAN, NAN, "deviation above which ‖x³‖ exceeds 1");
    check_report(c, cbrt(root / (s.n * sqrt(15))), NAN, NAN, "deviation above which ‖x³‖ exceeds √N");
    if (c->nth == 0) {
        struct check_plot *plot = check_plot(c, "Norms against the deviation of the logits",
                                             "standard deviation s", true, "norm", true);
        struct check_series *a = check_series(c, plot, "line", "softmax, e^(s²/2)"),
                            *b = check_series(c, plot, "line", "x³"),
                            *e = check_series(c, plot, "line", "x³ / √N"),
                            *here = check_series(c, plot, "points", "measured, softmax"),
                            *raw = check_series(c, plot, "points", "measured, x³");

        for (double x = 0.02; x < 1.2; x *= 1.25) {
            check_point(c, a, x, fmin(exp(x * x / 2), root), 0);
            check_point(c, b, x, s.n * sqrt(15) * x * x * x, 0);
            check_point(c, e, x, root * sqrt(15) * x * x * x, 0);
        }
        check_point(c, here, check_stat_root(&square), soft.mean, check_stat_se(&soft));
        check_point(c, raw, check_stat_root(&square), norm, norm_se);
    }
    check_evidence(
        c, "At initialisation the raw cubic is nearer to softmax's norm than the scaled one, which is "
           "far below it; only once "
           "logits have grown is the raw cubic too large. Figure 2 of the papers is about training.");
}

const struct check_theorem check_T9 = {
    .source = "polynomial papers, figure 2",
    .claimed = "x³ has a norm far above softmax's, x³ / √N one at its level",
    .correct = "True in training, once logits have grown. At initialisation (D = 192, d = 64, N = 256, "
               "weights of deviation 0.02) logits "
               "have deviation 0.077: softmax has norm 1.00, x³ 0.45, and x³ / 16 0.028.",
    .wrong = false,
    .seed = t9,
};

static void t11(struct check *c)
{
    static const char *const where[] = {"at initialisation", "at logits of deviation 1"};
    const int64_t draws = (int64_t)check_param(c, "draws");
    size_t p_count;
    const double *ps = check_list(c, "p", &p_count);
    struct check_shape s = shape_of(c);
    const double deviation[2] = {s.sigma_t * s.sigma_t * s.width, 1};
    const int powers = (int)ps[p_count - 1];
    double *memory = check_numbers(c, check_rig_size(&s));
    struct check_stat stat[CHECK_POWERS_MAX] = {{0}};
    struct check_rig r;
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "Mean size of the derivative of x^p", "p", false, "E |p z^(p-1)|", true);

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws d = check_draws(c->seed, 0, (uint32_t)i);
        double sum[CHECK_POWERS_MAX] = {0};

        if (!check_go(c, (double)i / (double)draws) || !memory)
            return;
        check_rig_init(&r, &s, memory);
        check_rig_draw(&r, &d);
        for (int64_t row = 0; row < (int64_t)s.n; row++) {
            check_rig_row(&r, row);
            for (int64_t j = 0; j < (int64_t)s.n; j++) {
                double z = fabs(r.row[j]) / sqrt(s.head) / deviation[0], power = 1; /* of deviation 1 */

                for (int p = 1; p <= powers; p++) {
                    sum[p - 1] += p * power;
                    power *= z;
                }
            }
        }
        for (int p = 0; p < powers; p++)
            check_stat_add(&stat[p], sum[p] / (s.n * s.n));
    }
    for (int at = 0; at < 2; at++) {
        struct check_series *points = check_series(c, plot, "points", "%s", where[at]),
                            *line = check_series(c, plot, "line", "%s, p s^(p-1) E|g|^(p-1)", where[at]);

        for (size_t a = 0; a < p_count; a++) {
            const int p = (int)ps[a];
            const struct check_stat *t = &stat[p - 1];
            double factor = pow(deviation[at], p - 1);
            /* E |g|^m = 2^(m/2) Gamma((m+1)/2) / root pi */
            double expected =
                p * factor * pow(2, (p - 1) / 2.0) * tgamma(p / 2.0) / sqrt(3.14159265358979323846);
            char what[64];

            snprintf(what, sizeof what, "p = %d, %s", p, where[at]);
            judge(c, factor * t->mean, factor * check_stat_se(t), expected * check_logit_moment(&s, p - 1),
                  0.2, what);
            check_point(c, points, p, factor * t->mean, factor * check_stat_se(t));
            check_point(c, line, p, expected, 0);
        }
    }
    check_evidence(c,
                   "At initialisation the derivative falls by an order of magnitude with each degree, and at "
                   "logits of deviation 1 it "
                   "grows with the degree: whether a high degree trains depends on the size of the logits.");
}

const struct check_theorem check_T11 = {
    .source = "polynomial papers, section 5 and appendix, table 5",
    .claimed = "degrees above 3 train badly, because weights near zero make gradients vanish; yet x^4 and "
               "x^5 equal softmax, and \"higher "
               "than 6\" becomes \"k ≥ 6\"",
    .correct = "The cause is logits near zero, not weights: E |φ'| = p s^(p-1) E |g|^(p-1). At the initial "
               "deviation s = 0.077 it is 1, "
               "0.12, 0.018, 0.0029, 0.0005, 0.0001 for p = 1 to 6; at s = 1 it grows with p.",
    .wrong = true,
    .seed = t11,
};
