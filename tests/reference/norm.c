/* Normalisation, losses and optimisers. */
#include "tests/reference/internal.h"

/* ---- normalisation and losses ---- */

static double eps_of(const struct pk_call *c, int64_t d)
{
    return c->attr->norm.eps_mode == PK_EPS_SUM ? c->attr->norm.eps / (double)d : c->attr->norm.eps;
}

void ref_norm(const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];
    bool layer = c->attr->norm.kind == PK_NORM_LAYER;
    int64_t d = last(x), rows = count(x) / d;

    for (int64_t r = 0; r < rows; r++) {
        double mean = 0.0, var = 0.0, rstd;

        for (int64_t i = 0; layer && i < d; i++)
            mean += get(x, r * d + i) / (double)d;
        for (int64_t i = 0; i < d; i++)
            var += pow(get(x, r * d + i) - mean, 2) / (double)d;
        rstd = 1.0 / sqrt(var + eps_of(c, d));
        for (int64_t i = 0; i < d; i++)
            put(&c->out[0], r * d + i,
                get(&c->in[1], i) * (get(x, r * d + i) - mean) * rstd +
                    (c->attr->norm.has_beta ? get(&c->in[2], i) : 0.0));
        put(&c->out[1], r, rstd);
        if (layer)
            put(&c->out[2], r, mean);
    }
}

/* xhat = (x - mean) rstd, u = gamma dy: dx = rstd (u - mean(u) [LayerNorm] - xhat mean(u xhat)) */
void ref_norm_bwd(const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0], *gamma = &c->in[1], *dy = &c->in[2];
    bool layer = c->attr->norm.kind == PK_NORM_LAYER;
    int64_t d = last(x), rows = count(x) / d;
    double *dgamma = calloc((size_t)d, sizeof *dgamma), *dbeta = calloc((size_t)d, sizeof *dbeta);

    for (int64_t r = 0; r < rows; r++) {
        double rstd = get(&c->in[3], r), mean = layer ? get(&c->in[4], r) : 0.0, mu = 0.0, mux = 0.0;

        for (int64_t i = 0; i < d; i++) {
            double hat = (get(x, r * d + i) - mean) * rstd, g = get(dy, r * d + i);

            mu += get(gamma, i) * g / (double)d;
            mux += get(gamma, i) * g * hat / (double)d;
            dgamma[i] += g * hat;
            dbeta[i] += g;
        }
        for (int64_t i = 0; i < d; i++) {
            double hat = (get(x, r * d + i) - mean) * rstd;

            put(&c->out[0], r * d + i,
                rstd * (get(gamma, i) * get(dy, r * d + i) - (layer ? mu : 0.0) - hat * mux) +
                    (c->attr->norm.has_residual ? get(&c->in[c->n_in - 1], r * d + i) : 0.0));
            if (c->attr->norm.again)
                put(&c->out[c->n_out - 1], r * d + i,
                    hat * get(gamma, i) + (c->attr->norm.has_beta ? get(&c->in[4 + layer], i) : 0.0));
        }
    }
    for (int64_t i = 0; i < d; i++) {
        put(&c->out[1], i, dgamma[i]);
        if (c->attr->norm.has_beta)
            put(&c->out[2], i, dbeta[i]);
    }
    free(dgamma);
    free(dbeta);
}

void ref_softmax(const struct pk_call *c)
{
    int64_t d = last(&c->in[0]), rows = d ? count(&c->in[0]) / d : 0;

    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0.0;

        for (int64_t i = 0; i < d; i++)
            top = fmax(top, get(&c->in[0], r * d + i));
        for (int64_t i = 0; i < d; i++)
            sum += exp(get(&c->in[0], r * d + i) - top);
        for (int64_t i = 0; i < d; i++)
            put(&c->out[0], r * d + i, exp(get(&c->in[0], r * d + i) - top) / sum);
    }
}

void ref_softmax_bwd(const struct pk_call *c)
{
    int64_t d = last(&c->in[0]), rows = d ? count(&c->in[0]) / d : 0;

    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;

        for (int64_t i = 0; i < d; i++)
            sum += get(&c->in[0], r * d + i) * get(&c->in[1], r * d + i);
        for (int64_t i = 0; i < d; i++)
            put(&c->out[0], r * d + i, get(&c->in[0], r * d + i) * (get(&c->in[1], r * d + i) - sum));
    }
}

static enum pd_err target_of(const struct pk_call *c, int64_t row, int64_t *ret, struct pd_why *why)
{
    int64_t t = (int64_t)get(&c->in[1], row);

    *ret = t;
    if (t == c->attr->cross_entropy.ignore || (t >= 0 && t < c->in[0].shape.dim[1]))
        return PD_OK;
    return pd_fail(why, PD_ERR_INVALID, "cross_entropy: target %lld outside 0..%lld", (long long)t,
                   (long long)c->in[0].shape.dim[1] - 1);
}

enum pd_err ref_cross_entropy(const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *x = &c->in[0];
    int64_t rows = x->shape.dim[0], d = x->shape.dim[1];
    double s = c->attr->cross_entropy.smoothing, loss = 0.0, n = 0.0, correct = 0.0;

    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0.0, mean = 0.0, lse;
        int64_t first = 0, t;
        enum pd_err err = target_of(c, r, &t, why);

        if (err != PD_OK)
            return err;
        for (int64_t i = 0; i < d; i++)
            if (get(x, r * d + i) > top) {
                top = get(x, r * d + i);
                first = i;
            }
        for (int64_t i = 0; i < d; i++) {
            sum += exp(get(x, r * d + i) - top);
            mean += get(x, r * d + i) / (double)d;
        }
        lse = top + log(sum);
        put(&c->out[3], r, lse);
        if (t == c->attr->cross_entropy.ignore)
            continue;
        loss += (1.0 - s) * (lse - get(x, r * d + t)) + s * (lse - mean);
        n += 1.0;
        correct += first == t;
    }
    put(&c->out[0], 0, loss);
    put(&c->out[1], 0, n);
    put(&c->out[2], 0, correct);
    return PD_OK;
}

enum pd_err ref_cross_entropy_bwd(const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *x = &c->in[0];
    int64_t rows = x->shape.dim[0], d = x->shape.dim[1];
    double s = c->attr->cross_entropy.smoothing, dloss = get(&c->in[3], 0);

    for (int64_t r = 0; r < rows; r++) {
        int64_t t;
        enum pd_err err = target_of(c, r, &t, why);

        if (err != PD_OK)
            return err;
        for (int64_t i = 0; i < d; i++) {
            double p = exp(get(x, r * d + i) - get(&c->in[2], r));

            put(&c->out[0], r * d + i,
                t == c->attr->cross_entropy.ignore ? 0.0
                                                   : dloss * (p - (1.0 - s) * (i == t) - s / (double)d));
        }
    }
    return PD_OK;
}

/* Both, one after the other: dlogits may lie on the logits, so a row is finished before it is written. */
enum pd_err ref_cross_entropy_grad(const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *x = &c->in[0];
    int64_t rows = x->shape.dim[0], d = x->shape.dim[1], width = c->out[0].shape.dim[1];
    double s = c->attr->cross_entropy.smoothing, loss = 0.0, n = 0.0, correct = 0.0,
           dloss = get(&c->in[2], 0);
    double *row = calloc((size_t)width + 1, sizeof *row);

    if (!row)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a row");
    for (int64_t r = 0; r < rows; r++) {
        int64_t t;
        enum pd_err err = target_of(c, r, &t, why);

        if (err != PD_OK) {
            free(row);
            return err;
        }
        n += t != c->attr->cross_entropy.ignore;
    }
    if (c->attr->cross_entropy.mean)
        dloss /= n;
    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0.0, mean = 0.0, lse;
        int64_t t = 0, first = 0;

        (void)target_of(c, r, &t, why);
        for (int64_t i = 0; i < d; i++) {
            row[i] = get(x, r * d + i);
            mean += row[i] / (double)d;
            if (row[i] > top) {
                top = row[i];
                first = i;
            }
        }
        for (int64_t i = 0; i < d; i++)
            sum += exp(row[i] - top);
        lse = top + log(sum);
        if (t != c->attr->cross_entropy.ignore) {
            loss += (1.0 - s) * (lse - row[t]) + s * (lse - mean);
            correct += first == t;
        }
        for (int64_t i = 0; i < d; i++)
            row[i] = t == c->attr->cross_entropy.ignore
                         ? 0.0
                         : dloss * (exp(row[i] - lse) - (1.0 - s) * (i == t) - s / (double)d);
        for (int64_t i = 0; i < width; i++)
            put(&c->out[0], r * width + i, i < d ? row[i] : 0.0);
    }
    put(&c->out[1], 0, loss);
    put(&c->out[2], 0, n);
    put(&c->out[3], 0, correct);
    free(row);
    return PD_OK;
}

/* ---- optimisers (tests/golden/README.md 7) ---- */

/* Of element i of the parameter, which is new by now. */
static void average(const struct pk_call *c, int64_t i)
{
    const struct pk_view *e = &c->in[c->n_in - 1 - c->attr->optim.copy];
    double d = c->attr->optim.ema;

    if (c->attr->optim.copy)
        put(&c->in[c->n_in - 1], i, get(&c->in[0], i));
    if (d > 0)
        put(e, i, d * get(e, i) + (1.0 - d) * get(&c->in[0], i));
}

void ref_adamw(const struct pk_call *c)
{
    const struct pk_view *p = &c->in[0], *g = &c->in[1], *m = &c->in[2], *v = &c->in[3];
    double lr = get(&c->in[4], 0) * c->attr->optim.lr_mult, c1 = get(&c->in[4], 1), c2 = get(&c->in[4], 2);
    double b1 = c->attr->optim.cycled ? get(&c->in[4], 3) : c->attr->optim.beta1, b2 = c->attr->optim.beta2;

    if (get(&c->in[5], 1) == 0.0)
        return;
    for (int64_t i = 0; i < count(p); i++) {
        double grad = get(g, i) * get(&c->in[5], 0), x = get(p, i) * (1.0 - lr * c->attr->optim.weight_decay);
        double mi = b1 * get(m, i) + (1.0 - b1) * grad, vi = b2 * get(v, i) + (1.0 - b2) * grad * grad;

        put(m, i, mi);
        put(v, i, vi);
        put(p, i, x - lr / c1 * mi / (sqrt(vi) / sqrt(c2) + c->attr->optim.eps));
        average(c, i);
    }
}

void ref_msgdw(const struct pk_call *c)
{
    const struct pk_view *p = &c->in[0], *g = &c->in[1], *m = &c->in[2];
    double lr = get(&c->in[3], 0) * c->attr->optim.lr_mult, mu = c->attr->optim.momentum;
    bool first = get(&c->in[3], 3) != 0.0;

    if (get(&c->in[4], 1) == 0.0)
        return;
    for (int64_t i = 0; i < count(p); i++) {
        double wd = c->attr->optim.weight_decay, was = get(p, i);
        double grad = get(g, i) * get(&c->in[4], 0) + (c->attr->optim.l2 ? wd * was : 0.0);
        double x = c->attr->optim.l2 ? was : was * (1.0 - lr * wd);
        double mi = first ? grad : mu * get(m, i) + (1.0 - c->attr->optim.dampening) * grad;

        put(m, i, mi);
        put(p, i, x - lr * (c->attr->optim.nesterov ? grad + mu * mi : mi));
        average(c, i);
    }
}

void ref_accumulate(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->in[0]); i++)
        put(&c->in[0], i, get(&c->in[1], i) + (get(&c->in[2], 0) != 0.0 ? 0.0 : get(&c->in[0], i)));
}

void ref_blend(const struct pk_call *c)
{
    const double keep = c->attr->optim.ema;

    for (int64_t i = 0; i < count(&c->in[0]) && get(&c->in[2], 0) != 0.0; i++)
        put(&c->in[0], i, get(&c->in[1], i) * (1.0 - keep) + (keep > 0.0 ? keep * get(&c->in[0], i) : 0.0));
}
