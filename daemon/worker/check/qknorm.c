/* T17: QKNorm, the norm's Jacobian, and directions of random vectors (DNT paper, propositions 4 and 5, theorems 1 and 2). */
#include <string.h>

#include "daemon/worker/check/net.h"

enum { VECTOR, PAIRS, INPUT, WEIGHT }; /* streams of draws */

#define EPS 1e-30 /* none, but the graph wants one */

static struct pk_norm_spec rms = {.kind = PK_NORM_RMS, .eps = EPS};

/* ---- proposition 4: ||dx/dz||_2 = root D / ||z|| of x = RMSNorm(z) ---- */

static double spectral_norm(const double *j, int64_t n)
{
    double v[64], w[64], norm = 0;

    for (int64_t i = 0; i < n; i++)
        v[i] = 1 + 0.1 * (double)(i % 5);
    for (int step = 0; step < 500; step++) {
        norm = sqrt(check_dot(v, v, n));
        for (int64_t i = 0; i < n; i++)
            v[i] /= norm;
        for (int64_t i = 0; i < n; i++)
            w[i] = check_dot(j + i * n, v, n);
        norm = sqrt(check_dot(w, w, n));
        check_product(v, w, j, 1, n, n);
    }
    return norm;
}

static void norm_jacobian(struct check *c, struct check_plot *plot)
{
    enum { D = 16 };
    size_t count;
    const double *cs = check_list(c, "c", &count);
    double z[D], scaled[D], *j = check_numbers(c, D * D), *numeric = check_numbers(c, D * D), sizes[32],
                            norms[32];
    struct check_draws draws = check_draws(c->seed, VECTOR, 0);
    struct check_series *points = check_series(c, plot, "points", "measured"),
                        *line = check_series(c, plot, "line", "√D / ‖z‖");
    struct check_engine en;
    struct pk_val x, y, grad;

    check_normals(&draws, 1, z, D);
    if (!numeric || !check_engine_open(c, &en))
        return;
    x = pk_param(en.g, "x", PK_F64, PK_SHAPE(1, D));
    y = pk_norm(en.g, x, pk_fill(en.g, PK_F64, PK_SHAPE(D), 1), PK_NONE, rms);
    pk_grad(en.g, y, pk_input(en.g, "seed", PK_F64, PK_SHAPE(1, D)), &x, 1, &grad);
    pk_output(en.g, "y", y);
    pk_output(en.g, "dx", grad);
    check_engine_plan(c, &en);
    for (size_t k = 0; k < count && c->err == PD_OK; k++) {
        double worst = 0, expected;

        for (int i = 0; i < D; i++)
            scaled[i] = cs[k] * z[i];
        sizes[k] = sqrt(check_dot(scaled, scaled, D));
        expected = sqrt(D) / sizes[k];
        check_engine_put(c, &en, "x", scaled);
        check_engine_jacobian(c, &en, D, D, j);
        check_engine_differences(c, &en, D, D, 1e-6, numeric);
        if (c->err != PD_OK)
            break;
        norms[k] = spectral_norm(j, D);
        for (int i = 0; i < D * D; i++)
            worst = fmax(worst, fabs(j[i] - numeric[i]) / expected);
        check_equal(c, norms[k] / expected, 1, 1e-6, "‖z‖ = %.3g: spectral norm of dx/dz over √D / ‖z‖",
                    sizes[k]);
        check_value(c, worst, NAN, 0, 0, 1e-6, "‖z‖ = %.3g: Jacobian against finite differences, relative",
                    sizes[k]);
        check_point(c, points, sizes[k], norms[k], 0);
        check_point(c, line, sizes[k], expected, 0);
    }
    if (c->err == PD_OK && count > 1)
        check_equal(c, check_log_slope(sizes, norms, count), -1, 1e-6, "exponent of ‖z‖ in ‖dx/dz‖");
    check_engine_close(&en);
}

/* ---- proposition 5: QKNorm takes out c_q and c_k ---- */

enum { N = 4, W = 6 }; /* tokens; width of the one head */

struct attended {
    double y[N * W], dwq[W * W];
};

static struct attended attend(struct check *c, struct check_engine *en, double cq, double ck)
{
    static const char *const names[] = {"x", "wq", "wk", "wv", "bq", "bk", "seed"};
    static const size_t sizes[] = {N * W, W * W, W * W, W * W, W, W, N * W};
    const double scale[] = {1, cq, ck, 1, cq, ck, 1};
    struct attended a = {{0}, {0}};

    for (uint32_t i = 0; i < 7; i++) {
        struct check_draws d = check_draws(c->seed, WEIGHT, i);
        double *x = check_numbers(c, sizes[i]);

        if (!x)
            return a;
        check_normals(&d, 1, x, sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++)
            x[k] *= scale[i];
        check_engine_put(c, en, names[i], x);
    }
    check_engine_run(c, en);
    check_engine_get(c, en, "y", a.y, N * W);
    check_engine_get(c, en, "dwq", a.dwq, W * W);
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

static void invariance(struct check *c)
{
    static const char *const biases[] = {"bq", "bk"}, *const weights[] = {"wq", "wk", "wv"};
    struct pk_attention_spec spec = {.phi = PK_PHI_POLY, .degree = 3, .scale = 1};
    struct pk_val x, part[3], wq = PK_NONE, y, grad;
    struct check_engine en;
    struct attended base;
    size_t count;
    const double *cs = check_list(c, "c", &count);

    if (!check_engine_open(c, &en))
        return;
    x = pk_input(en.g, "x", PK_F64, PK_SHAPE(N, W));
    for (int i = 0; i < 3; i++) {
        struct pk_val w = pk_param(en.g, weights[i], PK_F64, PK_SHAPE(W, W));

        part[i] = pk_matmul(en.g, x, w);
        if (i < 2)
            part[i] = pk_add(en.g, part[i], pk_param(en.g, biases[i], PK_F64, PK_SHAPE(W)));
        part[i] = pk_reshape(en.g, part[i], PK_SHAPE(1, 1, N, W));
        if (i < 2)
            part[i] = pk_qk_norm(en.g, part[i], pk_fill(en.g, PK_F64, PK_SHAPE(W), 1), PK_EPS_MEAN, EPS);
        wq = i ? wq : w;
    }
    y = pk_attention(en.g, part[0], part[1], part[2], spec);
    pk_grad(en.g, y, pk_reshape(en.g, pk_input(en.g, "seed", PK_F64, PK_SHAPE(N, W)), PK_SHAPE(1, N, 1, W)),
            &wq, 1, &grad);
    pk_output(en.g, "y", y);
    pk_output(en.g, "dwq", grad);
    check_engine_plan(c, &en);
    base = attend(c, &en, 1, 1);
    for (size_t k = 0; k < count && c->err == PD_OK; k++) {
        struct attended q = attend(c, &en, cs[k], 1), both = attend(c, &en, cs[k], 2 * cs[k]);

        check_value(c, fmax(apart(base.y, q.y, 1, N * W), apart(base.y, both.y, 1, N * W)), NAN, 0, 0, 1e-6,
                    "c_q = %g, also with c_k = 2 c_q: relative change of the output", cs[k]);
        check_value(c, apart(base.dwq, q.dwq, cs[k], W * W), NAN, 0, 0, 1e-6,
                    "c_q = %g: gradient by W_q, times c_q, relative change", cs[k]);
    }
    check_engine_close(&en);
}

/* dq'/dx = root d / ||q|| (I - q q^T / ||q||^2) W_q; equation 11 as printed has q' in the projector. */
static void projector(struct check *c)
{
    double x[W], *w = check_numbers(c, W * W), *j = check_numbers(c, W * W), q[W], prime[W], closed[W * W],
                 printed[W * W], norm;
    struct check_draws dx = check_draws(c->seed, INPUT, 0), dw = check_draws(c->seed, INPUT, 1);
    struct check_engine en;
    struct pk_val vx, y, grad;

    check_normals(&dx, 1, x, W);
    if (!j || !check_engine_open(c, &en))
        return;
    check_normals(&dw, 1, w, W * W);
    vx = pk_param(en.g, "x", PK_F64, PK_SHAPE(1, W));
    y = pk_norm(en.g, pk_linear(en.g, vx, pk_param(en.g, "w", PK_F64, PK_SHAPE(W, W)), true, PK_NONE),
                pk_fill(en.g, PK_F64, PK_SHAPE(W), 1), PK_NONE, rms);
    pk_grad(en.g, y, pk_input(en.g, "seed", PK_F64, PK_SHAPE(1, W)), &vx, 1, &grad);
    pk_output(en.g, "y", y);
    pk_output(en.g, "dx", grad);
    check_engine_plan(c, &en);
    check_engine_put(c, &en, "x", x);
    check_engine_put(c, &en, "w", w);
    check_engine_jacobian(c, &en, W, W, j);
    check_engine_close(&en);
    if (c->err != PD_OK)
        return;
    for (int i = 0; i < W; i++)
        q[i] = check_dot(w + i * W, x, W);
    norm = sqrt(check_dot(q, q, W));
    for (int i = 0; i < W; i++)
        prime[i] = sqrt(W) * q[i] / norm;
    for (int i = 0; i < W; i++)
        for (int k = 0; k < W; k++) {
            double right = 0, wrong = 0;

            for (int e = 0; e < W; e++) {
                right += ((i == e) - q[i] * q[e] / (norm * norm)) * w[e * W + k];
                wrong += ((i == e) - prime[i] * prime[e] / (norm * norm)) * w[e * W + k];
            }
            closed[i * W + k] = sqrt(W) / norm * right;
            printed[i * W + k] = sqrt(W) / norm * wrong;
        }
    check_value(c, apart(j, closed, 1, W * W), NAN, 0, 0, 1e-6,
                "dq'/dx by its closed form, greatest relative difference");
    check_report(c, apart(j, printed, 1, W * W), NAN, 0,
                 "dq'/dx by equation 11 as printed, greatest relative difference");
}

/* ---- theorems 1 and 2: random vectors ---- */

static void directions(struct check *c, struct check_plot *plot)
{
    const int64_t draws = (int64_t)check_param(c, "draws");
    size_t count;
    const double *ds = check_list(c, "d", &count);
    double *x = check_numbers(c, 2 * (size_t)ds[count - 1]), cosines[32];
    struct check_series *points = check_series(c, plot, "points", "mean |cos|"),
                        *line = check_series(c, plot, "line", "√(2 / (πd))");

    for (size_t k = 0; k < count; k++) {
        const int64_t d = (int64_t)ds[k];
        struct check_stat norm = {0}, inner = {0}, cosine = {0};

        for (int64_t i = 0; i < draws; i++) {
            struct check_draws pairs = check_draws(c->seed, PAIRS + 16 * (uint32_t)d, (uint32_t)i);
            double xx, yy, xy;

            if (!x || (i % 256 == 0 &&
                       !check_go(c, 0.1 + 0.4 * ((double)k + (double)i / (double)draws) / (double)count)))
                return;
            check_normals(&pairs, 1, x, 2 * (size_t)d);
            xx = check_dot(x, x, d);
            yy = check_dot(x + d, x + d, d);
            xy = check_dot(x, x + d, d);
            check_stat_add(&norm, xx);
            check_stat_add(&inner, xy * xy);
            check_stat_add(&cosine, fabs(xy) / sqrt(xx * yy));
        }
        cosines[k] = cosine.mean;
        check_value(c, norm.mean, check_stat_se(&norm), ds[k], ds[k] - 4 * check_stat_se(&norm),
                    ds[k] + 4 * check_stat_se(&norm), "d = %lld: E ‖x‖²", (long long)d);
        check_value(c, inner.mean, check_stat_se(&inner), ds[k], ds[k] - 4 * check_stat_se(&inner),
                    ds[k] + 4 * check_stat_se(&inner), "d = %lld: E <x, y>²", (long long)d);
        check_point(c, points, ds[k], cosine.mean, check_stat_se(&cosine));
        check_point(c, line, ds[k], sqrt(2 / (3.14159265358979323846 * ds[k])), 0);
    }
    if (count > 1)
        check_value(c, check_log_slope(ds, cosines, count), NAN, -0.5, -0.52, -0.48,
                    "exponent of d in the mean |cos|");
}

/* ---- residual branches of a trained network are correlated ---- */

/* The class token behind `depth` blocks: a network of that depth whose head is the identity. (batch, width) into ret. */
static void token_behind(struct check *c, struct check_net *whole, const struct model_spec *of, int32_t depth,
                         double *ret)
{
    struct model_spec s = *of;
    struct check_net net;
    double *identity = check_numbers(c, (size_t)(s.width * s.width));

    s.depth = depth;
    s.final_norm = false;
    s.classes = s.width;
    if (!identity || !check_net_forward(c, &net, &s, whole->batch))
        return;
    check_net_copy(c, &net, whole);
    for (int32_t i = 0; i < s.width; i++)
        identity[i * s.width + i] = 1;
    check_engine_put(c, &net.en, "head.weight", identity);
    check_net_digits(c, &net, 100000);
    check_engine_run(c, &net.en);
    check_engine_get(c, &net.en, "logits", ret, (size_t)(whole->batch * s.width));
    check_net_close(&net);
}

/* ||x^L||^2 over the sum of the squares of what each block adds, mean over samples. 1: the parts are orthogonal. */
static double additivity(struct check *c, struct check_net *net, const struct model_spec *s)
{
    const size_t size = (size_t)(net->batch * s->width);
    double *before = check_numbers(c, size), *now = check_numbers(c, size),
           *parts = check_numbers(c, (size_t)net->batch), total = 0;

    for (int32_t l = 0; l <= s->depth && c->err == PD_OK; l++) {
        double *swap = before;

        before = now;
        now = swap;
        if (l)
            token_behind(c, net, s, l, now);
        else
            memset(now, 0, size * sizeof *now);
        for (size_t i = 0; l && i < size; i++)
            parts[i / (size_t)s->width] += (now[i] - before[i]) * (now[i] - before[i]);
    }
    for (int32_t b = 0; b < net->batch && c->err == PD_OK; b++)
        total += check_dot(now + b * s->width, now + b * s->width, s->width) / parts[b] / net->batch;
    return total;
}

static void residuals(struct check *c)
{
    const int64_t steps = (int64_t)check_param(c, "steps");
    const struct model_spec s = check_net_spec(MODEL_S1, 48, 4, 7, PK_F32);
    struct check_net net;
    double before, after;

    if (!check_net_train(c, &net, &s, "adamw", 32))
        return;
    check_net_init(c, &net);
    before = additivity(c, &net, &s);
    check_net_steps(c, &net, "adamw", steps, 1e-3, 0.5, 0.5);
    after = additivity(c, &net, &s);
    check_net_close(&net);
    check_report(c, before, NAN, 1, "initial network: ‖x^L‖² over the sum of squares of what the blocks add");
    check_report(c, after, NAN, 1, "the same after %lld training steps", (long long)steps);
}

static void t17(struct check *c)
{
    struct check_plot *first = c->nth ? NULL
                                      : check_plot(c, "Jacobian of RMSNorm against the norm of its input",
                                                   "‖z‖", true, "‖dx/dz‖", true);
    struct check_plot *second =
        c->nth ? NULL : check_plot(c, "Random vectors become orthogonal", "d", true, "mean |cos|", true);

    norm_jacobian(c, first);
    invariance(c);
    projector(c);
    directions(c, second);
    residuals(c);
    check_evidence(c,
                   "Both propositions hold exactly. Equation 11 as printed does not give the Jacobian; its "
                   "projector needs q, not q'. Squared norms of "
                   "independent vectors add up, those of the residual branches of a network need not.");
}

const struct check_theorem check_T17 = {
    .source = "DNT paper, propositions 4 and 5, equation 11, theorems 1 and 2",
    .claimed = "‖dx/dz‖ falls as 1/‖z‖ under a norm; QKNorm makes attention invariant to the scale of "
               "W_q and W_k; random vectors are nearly "
               "orthogonal",
    .correct = "Proposition 4 is exact: √D / ‖z‖ with unit gains. Proposition 5 is exact, with biases "
               "scaled together with the weights; "
               "gradients by W_q scale as 1/c. Equation 11 prints q' inside the projector and ‖W_k x_i‖ "
               "for ‖W_k x_j‖: the right form is dq'/dx = "
               "√d / ‖q‖ diag(γ) (I - q qᵀ / ‖q‖²) W_q. Squared norms add up for independent "
               "vectors only.",
    .wrong = true,
    .seed = t17,
};
