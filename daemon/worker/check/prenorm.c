/* T14 and T15: what PreNorm and InputNorm do to gradients (DNT paper, propositions 1 and 2). */
#include <stdio.h>
#include <string.h>

#include "daemon/worker/check/net.h"

enum { WEIGHTS, INPUTS }; /* streams of draws */

#define LAYERS_MAX 12
#define KAPPAS_MAX 32

/* ---- T14 ---- */

/* Matrices of deviation fan_in^(-1/2), embeddings of deviation kappa: branches give numbers of order 1. */
static void fill(struct check *c, struct check_net *net, double kappa)
{
    for (size_t i = 0; c->err == PD_OK && i < model_param_count(net->model); i++) {
        const struct model_param *p = model_param(net->model, i);
        size_t count = 0;
        double *to = check_net_param(c, net, i, &count);
        struct check_draws d = check_draws(c->seed, WEIGHTS, (uint32_t)i);
        int64_t outputs = p->shape.dim[0];

        if (!to)
            continue;
        switch (p->role) {
        case MODEL_ROLE_GAIN:
            for (size_t k = 0; k < count; k++)
                to[k] = 1;
            break;
        case MODEL_ROLE_MATRIX:
            check_normals(&d, sqrt((double)outputs / (double)count), to, count);
            break;
        case MODEL_ROLE_CONV:
            check_normals(&d, kappa * sqrt((double)outputs / (double)count), to, count);
            break;
        case MODEL_ROLE_EMBED:
            check_normals(&d, kappa, to, count);
            break;
        default:
            memset(to, 0, count * sizeof *to);
        }
    }
}

static int layer_of(const char *name)
{
    int layer = -1;

    return sscanf(name, "blocks.%d.", &layer) == 1 ? layer : -1;
}

/* ret[l]: the norm of the loss's gradient by all matrices of block l. */
static void gradients(struct check *c, struct check_net *net, double ret[LAYERS_MAX])
{
    memset(ret, 0, LAYERS_MAX * sizeof *ret);
    check_engine_run(c, &net->en);
    for (size_t i = 0; c->err == PD_OK && i < model_param_count(net->model); i++) {
        const struct model_param *p = model_param(net->model, i);
        const int layer = layer_of(p->name);
        const size_t count = (size_t)pk_shape_count(&p->shape);
        double *g;
        char name[80];

        if (p->role != MODEL_ROLE_MATRIX || layer < 0 || !(g = check_numbers(c, count)))
            continue;
        snprintf(name, sizeof name, "grad/%s", p->name);
        check_engine_get(c, &net->en, name, g, count);
        ret[layer] += check_dot(g, g, (int64_t)count);
    }
    for (int l = 0; l < LAYERS_MAX; l++)
        ret[l] = sqrt(ret[l]);
}

struct curve {
    double norm[KAPPAS_MAX][LAYERS_MAX];
};

static struct curve curve_of(struct check *c, enum model_placement placement, bool final_norm, double eps,
                             double share)
{
    size_t count;
    const double *kappa = check_list(c, "kappa", &count);
    struct model_spec spec = check_net_spec(placement, (int32_t)check_param(c, "width"),
                                            (int32_t)check_param(c, "depth"), 14, PK_F64);
    struct curve r;
    struct check_net net;

    memset(&r, 0, sizeof r);
    spec.norm_eps = eps;
    spec.final_norm = final_norm;
    spec.bias = false;
    if (!check_net_train(c, &net, &spec, NULL, 8))
        return r;
    check_net_digits(c, &net, 0);
    for (size_t k = 0; k < count && check_go(c, share + 0.2 * (double)k / (double)count); k++) {
        fill(c, &net, kappa[k]);
        gradients(c, &net, r.norm[k]);
    }
    check_net_close(&net);
    return r;
}

/* How much one first step changes the matrices of the blocks, by optimiser, at two sizes of the embeddings. */
static void update_sizes(struct check *c, const char *optimiser, double ret[2])
{
    static const double kappas[2] = {1, 1000};
    struct model_spec spec = check_net_spec(MODEL_S2, (int32_t)check_param(c, "width"),
                                            (int32_t)check_param(c, "depth"), 14, PK_F64);
    const size_t capacity = (size_t)spec.width * (size_t)spec.width * 4;
    double *before = check_numbers(c, capacity);
    struct check_net net;

    ret[0] = ret[1] = NAN;
    spec.bias = false;
    for (int k = 0; k < 2 && c->err == PD_OK; k++) {
        double square = 0;

        if (!check_net_train(c, &net, &spec, optimiser, 8))
            return;
        fill(c, &net, kappas[k]);
        for (size_t i = 0; before && i < model_param_count(net.model); i++) {
            size_t count = 0;
            const double *w = layer_of(model_param(net.model, i)->name) == 0 &&
                                      strstr(model_param(net.model, i)->name, "mlp.fc1.weight")
                                  ? check_net_param(c, &net, i, &count)
                                  : NULL;

            if (!w)
                continue;
            memcpy(before, w, count * sizeof *w);
            check_net_steps(c, &net, optimiser, 1, 1e-3, 0.9, 0);
            for (size_t e = 0; e < count; e++)
                square += (w[e] - before[e]) * (w[e] - before[e]);
        }
        ret[k] = sqrt(square);
        check_net_close(&net);
    }
}

static void t14(struct check *c)
{
    size_t count, far = 0;
    const double *kappa = check_list(c, "kappa", &count);
    const int depth = (int)check_param(c, "depth");
    struct curve s2 = curve_of(c, MODEL_S2, true, 1e-12, 0), s3 = curve_of(c, MODEL_S3, true, 1e-12, 0.2),
                 damped = curve_of(c, MODEL_S3, true, 1e-6, 0.4),
                 open = curve_of(c, MODEL_S2, false, 1e-12, 0.6);
    struct check_plot *plot = c->nth ? NULL
                                     : check_plot(c, "Gradient of the loss by the matrices of a block",
                                                  "kappa", true, "‖dL/dW_l‖", true);
    double update[2];

    while (far < count && kappa[far] < 30)
        far++;
    for (int l = 0; l < depth && c->err == PD_OK; l++) {
        struct check_series *a = check_series(c, plot, "points", "S2, block %d", l + 1),
                            *b = check_series(c, plot, "points", "S3, block %d", l + 1);
        double y[3][KAPPAS_MAX], low = INFINITY, high = 0;

        for (size_t k = 0; k < count; k++) {
            y[0][k] = s2.norm[k][l];
            y[1][k] = open.norm[k][l];
            y[2][k] = damped.norm[k][l];
            low = fmin(low, s3.norm[k][l]);
            high = fmax(high, s3.norm[k][l]);
            check_point(c, a, kappa[k], s2.norm[k][l], 0);
            check_point(c, b, kappa[k], s3.norm[k][l], 0);
        }
        if (count - far > 1) {
            check_value(c, check_log_slope(kappa + far, y[0] + far, count - far), NAN, -1, -1.1, -0.9,
                        "S2, block %d: exponent of kappa from 30 on", l + 1);
            check_report(c, check_log_slope(kappa + far, y[1] + far, count - far), NAN, 0,
                         "S2 without a final norm, block %d: the same", l + 1);
        }
        check_value(c, high / low, NAN, 1, 1, 1.01,
                    "S3, block %d: greatest over smallest norm, epsilon 1e-12", l + 1);
        check_report(c, y[2][0] / y[2][count - 1], NAN, 1,
                     "S3, block %d: norm at the smallest kappa over that at the greatest, epsilon 1e-6",
                     l + 1);
    }
    update_sizes(c, "adamw", update);
    check_report(c, update[1] / update[0], NAN, 1, "S2, AdamW: first update at kappa 1000 over that at 1");
    update_sizes(c, "msgdw", update);
    check_report(c, update[1] / update[0], NAN, NAN, "S2, mSGDW: first update at kappa 1000 over that at 1");
    check_evidence(
        c, "Large embeddings shrink every weight gradient by the same factor, through the Jacobian of "
           "the final norm; none vanishes with "
           "depth. InputNorm (S3) removes the dependence. AdamW does not feel the factor, mSGDW does.");
}

const struct check_theorem check_T14 = {
    .source = "DNT paper, proposition 1",
    .claimed = "a large ‖x^0‖ makes gradients vanish in a PreNorm network",
    .correct = "Branch outputs keep their size and the identity path has gradient 1: nothing vanishes with "
               "depth. The final norm's Jacobian, "
               "in proportion to √D / ‖x^L‖, scales all weight gradients by one common factor. Without "
               "a final norm the claim about "
               "weight gradients fails.",
    .wrong = true,
    .seed = t14,
};

/* ---- T15 ---- */

enum form {
    SOFTMAX,
    LINEAR,
    INNER
}; /* PreNorm and softmax; x without a norm in linear attention; softmax of a normalised x */

static struct pk_val project(struct check_engine *en, struct pk_val x, struct pk_val w, int64_t n, int64_t d)
{
    return pk_reshape(en->g, pk_matmul(en->g, x, w), PK_SHAPE(1, 1, n, d));
}

/* One head over n tokens of width d. */
static bool build(struct check *c, struct check_engine *en, enum form form, int64_t n, int64_t d)
{
    struct pk_attention_spec spec = {.phi = form == LINEAR ? PK_PHI_POLY : PK_PHI_SOFTMAX,
                                     .degree = 1,
                                     .scale = 1,
                                     .form = PK_FORM_QUADRATIC};
    static const char *const names[] = {"wq", "wk", "wv"};
    struct pk_val x, h, y, grads[4], wrt[4], seed;

    if (!check_engine_open(c, en))
        return false;
    x = h = pk_param(en->g, "x", PK_F64, PK_SHAPE(n, d));
    if (form == SOFTMAX)
        h = pk_norm(en->g, x, pk_fill(en->g, PK_F64, PK_SHAPE(d), 1), PK_NONE,
                    (struct pk_norm_spec){.kind = PK_NORM_RMS, .eps = 1e-30});
    seed = pk_input(en->g, "seed", PK_F64, PK_SHAPE(1, n, 1, d));
    wrt[0] = x;
    for (int i = 0; i < 3; i++)
        wrt[i + 1] = pk_param(en->g, names[i], PK_F64, PK_SHAPE(d, d));
    y = pk_attention(en->g, project(en, h, wrt[1], n, d), project(en, h, wrt[2], n, d),
                     project(en, h, wrt[3], n, d), spec);
    pk_grad(en->g, y, seed, wrt, 4, grads);
    pk_output(en->g, "y", y);
    pk_output(en->g, "dx", grads[0]);
    pk_output(en->g, "dw", pk_concat(en->g, 0, grads + 1, 3));
    check_engine_plan(c, en);
    for (uint32_t i = 0; i < 3 && c->err == PD_OK; i++) {
        struct check_draws draws = check_draws(c->seed, WEIGHTS, i);
        double *w = check_numbers(c, (size_t)(d * d));

        if (w)
            check_normals(&draws, 1 / sqrt((double)d), w, (size_t)(d * d));
        check_engine_put(c, en, names[i], w);
    }
    return true;
}

/* The greatest difference of a and factor b, relative to the greatest of a. */
static double apart(const double *a, const double *b, double factor, size_t count)
{
    double worst = 0, most = 0;

    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs(a[i] - factor * b[i]));
        most = fmax(most, fabs(a[i]));
    }
    return worst / most;
}

static double ratio(const double *a, const double *b, size_t count)
{
    return sqrt(check_dot(a, a, (int64_t)count) / check_dot(b, b, (int64_t)count));
}

/* Jacobians at x and at factor x: by the graph, and checked against differences. */
static void jacobians(struct check *c, enum form form, const double *x, double factor, double *here,
                      double *there, const char *what)
{
    const int64_t n = (int64_t)check_param(c, "N"), d = (int64_t)check_param(c, "D");
    const size_t m = (size_t)(n * d);
    double *scaled = check_numbers(c, m), *numeric = check_numbers(c, m * m);
    struct check_engine en;

    if (!scaled || !numeric || !build(c, &en, form, n, d))
        return;
    for (size_t i = 0; i < m; i++)
        scaled[i] = factor * x[i];
    check_engine_put(c, &en, "x", x);
    check_engine_jacobian(c, &en, m, m, here);
    check_engine_differences(c, &en, m, m, 1e-6, numeric);
    if (c->err == PD_OK)
        check_value(c, apart(here, numeric, 1, m * m), NAN, 0, 0, 1e-6,
                    "%s: Jacobian against finite differences, greatest relative error", what);
    check_engine_put(c, &en, "x", scaled);
    check_engine_jacobian(c, &en, m, m, there);
    check_engine_close(&en);
}

/* Gradients of a random combination of outputs by the weights, at x and at g x. */
static double weight_gradients(struct check *c, const double *x, double g)
{
    const int64_t n = (int64_t)check_param(c, "N"), d = (int64_t)check_param(c, "D");
    const size_t m = (size_t)(n * d), w = (size_t)(3 * d * d);
    double *seed = check_numbers(c, m), *at = check_numbers(c, m), *a = check_numbers(c, w),
           *b = check_numbers(c, w);
    struct check_draws draws = check_draws(c->seed, INPUTS, 1);
    struct check_engine en;
    double r;

    if (!b || !build(c, &en, SOFTMAX, n, d))
        return NAN;
    check_normals(&draws, 1, seed, m);
    for (size_t i = 0; i < m; i++)
        at[i] = g * x[i];
    check_engine_put(c, &en, "seed", seed);
    check_engine_put(c, &en, "x", x);
    check_engine_run(c, &en);
    check_engine_get(c, &en, "dw", a, w);
    check_engine_put(c, &en, "x", at);
    check_engine_run(c, &en);
    check_engine_get(c, &en, "dw", b, w);
    check_engine_close(&en);
    r = c->err == PD_OK ? ratio(b, a, w) : NAN;
    return r;
}

static void t15(struct check *c)
{
    const int64_t n = (int64_t)check_param(c, "N"), d = (int64_t)check_param(c, "D");
    const double g = check_param(c, "g");
    const size_t m = (size_t)(n * d);
    double *x = check_numbers(c, m), *unit = check_numbers(c, m), *here = check_numbers(c, m * m),
           *there = check_numbers(c, m * m);
    struct check_draws draws = check_draws(c->seed, INPUTS, 0);
    double full, inner, linear;

    if (!there)
        return;
    check_normals(&draws, 1, x, m);
    for (int64_t i = 0; i < n; i++) {
        double rms = sqrt(check_dot(x + i * d, x + i * d, d) / (double)d);

        for (int64_t e = 0; e < d; e++)
            unit[i * d + e] = x[i * d + e] / rms; /* what the norm makes of x, and of g x */
    }
    jacobians(c, SOFTMAX, x, g, here, there, "PreNorm");
    full = c->err == PD_OK ? ratio(there, here, m * m) : NAN;
    check_equal(c, full, 1 / g, 1e-6, "dY/dX at g X over that at X (the proposition says 1)");
    check_value(c, c->err == PD_OK ? apart(here, there, g, m * m) : NAN, NAN, 0, 0, 1e-6,
                "every entry times g, greatest relative difference");
    jacobians(c, INNER, unit, 1, here, there, "normalised input");
    inner = c->err == PD_OK ? ratio(there, here, m * m) : NAN;
    check_equal(c, inner, 1, 1e-6, "Jacobian by the normalised input, at g X over that at X");
    check_equal(c, weight_gradients(c, x, g), 1, 1e-6,
                "gradients by W_q, W_k and W_v, at g X over those at X");
    jacobians(c, LINEAR, x, g, here, there, "linear attention");
    linear = c->err == PD_OK ? ratio(there, here, m * m) : NAN;
    check_equal(c, linear / (g * g), 1, 1e-6,
                "linear attention without a norm: its Jacobian at g X over g² times that at X");
    if (c->nth == 0) {
        struct check_plot *plot = check_plot(c, "Jacobian at g X over that at X", "g", true, "ratio", true);
        struct check_series *a = check_series(c, plot, "points", "PreNorm, measured"),
                            *line = check_series(c, plot, "line", "1/g"),
                            *b = check_series(c, plot, "line", "the proposition"),
                            *e = check_series(c, plot, "points", "by the normalised input, measured");

        check_point(c, a, g, full, 0);
        check_point(c, e, g, inner, 0);
        for (double t = 1; t <= g * 1.001; t *= sqrt(sqrt(g))) {
            check_point(c, line, t, 1 / t, 0);
            check_point(c, b, t, 1, 0);
        }
    }
    check_evidence(
        c,
        "With g = %g the Jacobian by the input is 1/g of what it was, exactly; the proposition says "
        "that it stays.",
        g);
}

const struct check_theorem check_T15 = {
    .source = "DNT paper, proposition 2",
    .claimed = "with PreNorm, X' = g X has dY'/dX' = dY/dX",
    .correct = "False as stated: Y' = Y, but dY'/dX' = dY/dX diag(1/g). What stays are the Jacobian by the "
               "normalised input and those by W_q, W_k "
               "and W_v. The paper's own propositions 1 and 4 rest on the factor 1/‖x‖ that 2 denies; its "
               "proof replaces softmax by linear "
               "attention, whose Jacobian without a norm grows as g².",
    .wrong = true,
    .seed = t15,
};
