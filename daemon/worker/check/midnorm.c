/* T16 and T19: what MidNorm makes of the scale of weights and of attention (DNT paper, proposition 3). */
#include <string.h>

#include "daemon/worker/check/engine.h"

enum { INPUT, FIRST, SECOND, SPECTRUM, SPECTRUM_INPUT, SCALE }; /* streams of draws */

#define EPS 1e-12
#define TOKENS 3

static struct pk_val rms_norm(struct check_engine *en, struct pk_val x, int64_t d, double eps)
{
    return pk_norm(en->g, x, pk_fill(en->g, PK_F64, PK_SHAPE(d), 1), PK_NONE,
                   (struct pk_norm_spec){.kind = PK_NORM_RMS, .eps = eps});
}

/* ---- T16 ---- */

/* y = MidNorm(W_2 act(W_1 x)), without biases. */
static bool build(struct check *c, struct check_engine *en, int64_t d, bool gelu)
{
    struct pk_val x, w[2], h, y, seed, wrt[3], grads[3];

    if (!check_engine_open(c, en))
        return false;
    wrt[0] = x = pk_param(en->g, "x", PK_F64, PK_SHAPE(TOKENS, d));
    wrt[1] = w[0] = pk_param(en->g, "w1", PK_F64, PK_SHAPE(d, 4 * d));
    wrt[2] = w[1] = pk_param(en->g, "w2", PK_F64, PK_SHAPE(4 * d, d));
    seed = pk_input(en->g, "seed", PK_F64, PK_SHAPE(TOKENS, d));
    h = pk_matmul(en->g, x, w[0]);
    h = gelu ? pk_gelu(en->g, h, false) : pk_relu(en->g, h);
    y = rms_norm(en, pk_matmul(en->g, h, w[1]), d, EPS);
    pk_grad(en->g, y, seed, wrt, 3, grads);
    pk_output(en->g, "y", y);
    pk_output(en->g, "dx", grads[0]);
    pk_output(en->g, "dw1", grads[1]);
    pk_output(en->g, "dw2", grads[2]);
    check_engine_plan(c, en);
    return true;
}

static void put_scaled(struct check *c, struct check_engine *en, const char *leaf, uint32_t stream,
                       double sigma, size_t count)
{
    struct check_draws d = check_draws(c->seed, stream, 0);
    double *x = check_numbers(c, count);

    if (x) {
        check_normals(&d, 1, x, count);
        for (size_t i = 0; i < count; i++)
            x[i] *= sigma;
        check_engine_put(c, en, leaf, x);
    }
}

struct answer {
    double *y, *jacobian, *dw[2];
};

/* Output, Jacobian by x, and the gradients of a fixed combination of outputs, with W_1 and W_2 scaled. */
static struct answer answer_of(struct check *c, struct check_engine *en, int64_t d, const double scale[2])
{
    const size_t m = (size_t)(TOKENS * d), w = (size_t)(4 * d * d);
    struct answer a = {
        check_numbers(c, m), check_numbers(c, m * m), {check_numbers(c, w), check_numbers(c, w)}};
    static const char *const names[] = {"w1", "w2"}, *const outputs[] = {"dw1", "dw2"};
    double *seed = check_numbers(c, m);
    struct check_draws draws = check_draws(c->seed, SCALE, 7);

    put_scaled(c, en, "x", INPUT, 1, m);
    for (int k = 0; k < 2; k++)
        put_scaled(c, en, names[k], FIRST + (uint32_t)k, scale[k] / sqrt((double)(k ? 4 * d : d)), w);
    if (c->err != PD_OK)
        return a;
    check_engine_jacobian(c, en, m, m, a.jacobian);
    check_normals(&draws, 1, seed, m);
    check_engine_put(c, en, "seed", seed);
    check_engine_run(c, en);
    check_engine_get(c, en, "y", a.y, m);
    for (int k = 0; k < 2; k++)
        check_engine_get(c, en, outputs[k], a.dw[k], w);
    return a;
}

static double apart(const double *a, const double *b, double factor, size_t count)
{
    double worst = 0, most = 0;

    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(a[i] - factor * b[i]));
        most = fmax(most, fabs(a[i]));
    }
    return worst / most;
}

static void invariance(struct check *c, bool gelu, struct check_plot *plot)
{
    const int64_t d = (int64_t)check_param(c, "D");
    const size_t m = (size_t)(TOKENS * d), w = (size_t)(4 * d * d);
    size_t count;
    const double *cs = check_list(c, "c", &count);
    static const double one[2] = {1, 1};
    struct check_engine en;
    struct answer base;

    if (!build(c, &en, d, gelu))
        return;
    base = answer_of(c, &en, d, one);
    for (int which = 0; which < 2; which++) {
        const bool exact = !gelu || which == 1;
        struct check_series *line =
            check_series(c, plot, "points", "%s, c W_%d", gelu ? "GELU" : "ReLU", which + 1);

        for (size_t k = 0; k < count && check_go(c, 0.1 * (gelu + 0.5 * which)); k++) {
            double scale[2] = {which ? 1 : cs[k], which ? cs[k] : 1};
            struct answer a = answer_of(c, &en, d, scale);
            double y, jacobian;

            if (c->err != PD_OK)
                break;
            y = apart(base.y, a.y, 1, m);
            jacobian = apart(base.jacobian, a.jacobian, 1, m * m);
            check_point(c, line, cs[k], fmax(y, 1e-17), 0);
            if (exact) {
                check_value(c, y, NAN, 0, 0, 1e-6, "%s, %g W_%d: relative change of the output",
                            gelu ? "GELU" : "ReLU", cs[k], which + 1);
                check_value(c, jacobian, NAN, 0, 0, 1e-6, "%s, %g W_%d: relative change of dy/dx",
                            gelu ? "GELU" : "ReLU", cs[k], which + 1);
                check_value(c, apart(base.dw[which], a.dw[which], cs[k], w), NAN, 0, 0, 1e-6,
                            "%s, %g W_%d: gradient by it, times c, relative change", gelu ? "GELU" : "ReLU",
                            cs[k], which + 1);
            } else {
                check_report(c, y, NAN, 0, "GELU, %g W_1: relative change of the output", cs[k]);
            }
        }
    }
    check_engine_close(&en);
}

/* The greatest singular value of W (n, n), by power iteration on W^T W. */
static double greatest_singular(const double *w, double *v, double *wv, int64_t n)
{
    double sigma = 0;

    for (int64_t i = 0; i < n; i++)
        v[i] = 1 + 1e-3 * (double)(i % 7);
    for (int step = 0; step < 200; step++) {
        double norm = sqrt(check_dot(v, v, n));

        for (int64_t i = 0; i < n; i++)
            v[i] /= norm;
        for (int64_t i = 0; i < n; i++)
            wv[i] = check_dot(w + i * n, v, n);
        sigma = sqrt(check_dot(wv, wv, n));
        check_product(v, wv, w, 1, n, n); /* W^T (W v) */
    }
    return sigma;
}

/* sigma_1(W / ||W x||) for i.i.d. weights against equation 16, (root m + root n) / (root(m n) sigma_x), here m = n. */
static void spectrum(struct check *c)
{
    const int64_t n = (int64_t)check_param(c, "size"), draws = (int64_t)check_param(c, "draws");
    double *w = check_numbers(c, (size_t)(n * n)), *v = check_numbers(c, (size_t)n),
           *wv = check_numbers(c, (size_t)n);
    struct check_stat stat[2] = {{0}};
    const double expected = 2 / sqrt((double)n);

    for (int64_t i = 0; i < draws; i++) {
        struct check_draws d = check_draws(c->seed, SPECTRUM, (uint32_t)i);
        double sigma;

        if (!wv || !check_go(c, 0.2 + 0.8 * (double)i / (double)draws))
            return;
        check_normals(&d, 1, w, (size_t)(n * n));
        sigma = greatest_singular(w, v, wv, n);
        for (uint32_t k = 0; k < 2; k++) {
            struct check_draws input = check_draws(c->seed, SPECTRUM_INPUT + 64 * (k + 1), (uint32_t)i);

            check_normals(&input, k + 1, v, (size_t)n);
            for (int64_t r = 0; r < n; r++)
                wv[r] = check_dot(w + r * n, v, n);
            check_stat_add(&stat[k], sigma / sqrt(check_dot(wv, wv, n)));
        }
    }
    check_ratio(c, stat[0].mean, check_stat_se(&stat[0]), expected, 0.95, 1.05,
                "m = n = %lld, σ_x = 1: mean of σ_1(W / ‖W x‖), equation 16", (long long)n);
    check_ratio(c, stat[1].mean / stat[0].mean, NAN, 0.5, 0.95, 1.05,
                "the same with σ_x = 2, over that with 1");
    check_report(c, sqrt(check_stat_var(&stat[0])) / stat[0].mean, NAN, NAN,
                 "scatter of single draws, relative");
}

static void t16(struct check *c)
{
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "Relative change of the output when a matrix is multiplied by c", "c", true,
                            "change", true);

    invariance(c, false, plot);
    invariance(c, true, plot);
    spectrum(c);
    check_evidence(c,
                   "Scaling W_2, and under ReLU W_1, changes neither output nor Jacobian; gradients by them "
                   "scale as 1/c. Under GELU the invariance to "
                   "W_1 is only approximate. The bound of equation 16 halves when the input doubles: it "
                   "depends on the data.");
}

const struct check_theorem check_T16 = {
    .source = "DNT paper, proposition 3 and equation 16",
    .claimed = "with MidNorm the singular values of the Jacobian depend only on the shape of the weights",
    .correct = "Scale invariance in W_2 and, under ReLU and without biases, in W_1 is exact for any "
               "dimension. \"Depend only on shape\" is false: "
               "equation 16 itself contains σ_x, and holds for i.i.d. weights; a trained spectrum "
               "matters. The proof covers one matrix and the "
               "largest value alone. Gradients of scale-invariant weights scale as 1/c.",
    .wrong = true,
    .seed = t16,
};

/* ---- T19 ---- */

enum { HEADS = 3 };

struct scales {
    double layer, heads; /* |dL/dc| of one c; the norm of dL/dc_h; both over ||dL/dA|| */
};

/* L = sum of R o MidNorm(W_o (c S^3 V)), c for the layer or for each head. */
static struct scales scales_of(struct check *c, double eps)
{
    static const char *const names[] = {"x", "wq", "wk", "wv", "wo", "seed"};
    const int64_t n = (int64_t)check_param(c, "N"), width = (int64_t)check_param(c, "D") / HEADS * HEADS,
                  d = width / HEADS;
    const size_t sizes[] = {(size_t)(n * width),     (size_t)(width * width), (size_t)(width * width),
                            (size_t)(width * width), (size_t)(width * width), (size_t)(n * width)};
    struct scales r = {NAN, NAN};
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY, .degree = 3, .scale = 1};
    struct pk_val x, part[3], scale, a, y, wrt[2], grads[2];
    double ones[HEADS] = {1, 1, 1}, dc[HEADS], *da = check_numbers(c, (size_t)(HEADS * n * n)), norm, sum = 0;
    struct check_engine en;
    static const int32_t order[] = {1, 0, 2};

    if (!da || !check_engine_open(c, &en))
        return r;
    x = pk_input(en.g, "x", PK_F64, PK_SHAPE(n, width));
    for (int i = 0; i < 3; i++) {
        struct pk_val w = pk_param(en.g, names[i + 1], PK_F64, PK_SHAPE(width, width));

        part[i] = pk_permute(en.g, pk_reshape(en.g, pk_matmul(en.g, x, w), PK_SHAPE(n, HEADS, d)), order);
        part[i] = pk_reshape(en.g, part[i], PK_SHAPE(1, HEADS, n, d));
    }
    scale = spec.scale_value = pk_param(en.g, "c", PK_F64, PK_SHAPE(HEADS));
    y = pk_attention_decomposed(en.g, part[0], part[1], part[2], spec, &a);
    y = pk_matmul(en.g, pk_reshape(en.g, y, PK_SHAPE(n, width)),
                  pk_param(en.g, "wo", PK_F64, PK_SHAPE(width, width)));
    y = rms_norm(&en, y, width, eps);
    wrt[0] = scale;
    wrt[1] = a;
    pk_grad(en.g, y, pk_input(en.g, "seed", PK_F64, PK_SHAPE(n, width)), wrt, 2, grads);
    pk_output(en.g, "dc", grads[0]);
    pk_output(en.g, "da", grads[1]);
    check_engine_plan(c, &en);
    check_engine_put(c, &en, "c", ones);
    for (uint32_t i = 0; i < 6 && c->err == PD_OK; i++)
        put_scaled(c, &en, names[i], SCALE + 8 + i, i == 0 || i == 5 ? 1 : 1 / sqrt((double)width), sizes[i]);
    check_engine_run(c, &en);
    check_engine_get(c, &en, "dc", dc, HEADS);
    check_engine_get(c, &en, "da", da, (size_t)(HEADS * n * n));
    check_engine_close(&en);
    if (c->err != PD_OK)
        return r;
    norm = sqrt(check_dot(da, da, HEADS * n * n));
    for (int h = 0; h < HEADS; h++)
        sum += dc[h]; /* all heads share one c */
    r.layer = fabs(sum) / norm;
    r.heads = sqrt(check_dot(dc, dc, HEADS)) / norm;
    return r;
}

static void t19(struct check *c)
{
    size_t count;
    const double *eps = check_list(c, "eps", &count);
    struct check_plot *plot =
        c->nth ? NULL
               : check_plot(c, "Gradient by the scale of attention under MidNorm, over that by A", "epsilon",
                            true, "|dL/dc| / ‖dL/dA‖", true);
    struct check_series *layer = check_series(c, plot, "points", "one c for the layer"),
                        *heads = check_series(c, plot, "points", "one c for each head");
    double first = NAN, last = NAN;

    if (check_param(c, "D") < HEADS)
        return;
    for (size_t k = 0; k < count && check_go(c, (double)k / (double)count); k++) {
        struct scales s = scales_of(c, eps[k]);

        if (eps[k] <= 1e-12)
            check_value(c, s.layer, NAN, 0, 0, 1e-6, "epsilon %g, one c for the layer", eps[k]);
        else
            check_report(c, s.layer, NAN, NAN, "epsilon %g, one c for the layer", eps[k]);
        check_report(c, s.heads, NAN, NAN, "epsilon %g, one c for each head", eps[k]);
        if (eps[k] > 0) {
            check_point(c, layer, eps[k], s.layer, 0);
            check_point(c, heads, eps[k], s.heads, 0);
        }
        first = k ? first : s.layer;
        last = s.layer;
    }
    if (count > 1 && eps[count - 1] >= 1e-3)
        check_value(c, last / first, NAN, NAN, 1, INFINITY,
                    "one c for the layer: at the greatest epsilon over that at the smallest (rising)");
    check_evidence(c,
                   "MidNorm takes a scale that all heads share out of the network: its gradient is zero but "
                   "for epsilon. A scale for each head keeps "
                   "its meaning.");
}

const struct check_theorem check_T19 = {
    .source = "DNT paper's S5 with the learned scale of the polynomial papers",
    .claimed = "a learned scale for each layer also works in S5",
    .correct = "MidNorm normalises W_o (c A V): one c for all heads of a layer has no effect, and no "
               "gradient, but for epsilon. A c for each head "
               "has both.",
    .wrong = false,
    .seed = t19,
};
