/* Attention, its derivative and its diagnostics. */
#include <complex.h>

#include "tests/reference/internal.h"

static double *part(const struct pk_view *qkv, int which)
{
    int64_t b = qkv->shape.dim[0], n = qkv->shape.dim[1], h = qkv->shape.dim[3], d = qkv->shape.dim[4];
    double *x = malloc(((size_t)(b * n * h * d) + 1) * sizeof *x);

    for (int64_t ib = 0; ib < b; ib++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t ih = 0; ih < h; ih++)
                for (int64_t j = 0; j < d; j++)
                    x[((ib * h + ih) * n + i) * d + j] =
                        get(qkv, (((ib * n + i) * 3 + which) * h + ih) * d + j);
    return x;
}

struct attention ref_attention_open(const struct pk_call *c)
{
    struct attention t = {.a = c->attr->attention};
    int at = t.a.packed ? 1 : 3;

    if (t.a.packed) {
        t.b = c->in[0].shape.dim[0];
        t.nq = t.nk = c->in[0].shape.dim[1];
        t.h = c->in[0].shape.dim[3];
        t.d = c->in[0].shape.dim[4];
        t.q = part(&c->in[0], 0);
        t.k = part(&c->in[0], 1);
        t.v = part(&c->in[0], 2);
    } else {
        t.b = c->in[0].shape.dim[0];
        t.h = c->in[0].shape.dim[1];
        t.nq = c->in[0].shape.dim[2];
        t.nk = c->in[1].shape.dim[2];
        t.d = c->in[0].shape.dim[3];
        t.q = all(&c->in[0]);
        t.k = all(&c->in[1]);
        t.v = all(&c->in[2]);
    }
    if (t.a.has_scale)
        t.scale = &c->in[at++];
    if (t.a.has_bias)
        t.bias = &c->in[at++];
    if (t.a.has_mask)
        t.mask = &c->in[at++];
    if (t.a.has_length)
        t.length = &c->in[at++];
    if (t.a.has_rng)
        t.rng = &c->in[at++];
    t.after = at;
    return t;
}

void ref_attention_close(struct attention *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
}

/* What row_power makes of row i. */
static double by_row(const struct attention *t, int64_t b, int64_t i)
{
    double last = t->length ? get(t->length, count(t->length) > 1 ? b : 0) : (double)t->nk;

    return pow(fmax(1.0, (double)i + 1.0 + last - (double)t->nq), -t->a.row_power);
}

/* The factor of row i. */
static double scale_of(const struct attention *t, int64_t b, int64_t h, int64_t i)
{
    return by_row(t, b, i) * t->a.scale * (t->scale ? get(t->scale, count(t->scale) > 1 ? h : 0) : 1.0);
}

bool ref_sees(const struct attention *t, int64_t b, int64_t i, int64_t j)
{
    int64_t end = t->nk;

    if (t->length) {
        end = (int64_t)get(t->length, count(t->length) > 1 ? b : 0);
        if (j >= end)
            return false;
    }
    if (t->a.causal && j > i + end - t->nq)
        return false;
    if (t->mask && t->mask->shape.rank == 3)
        return get(t->mask, (b % t->mask->shape.dim[0] * t->nq + i) * t->nk + j) != 0.0;
    return !t->mask || get(t->mask, b * t->nk + j) != 0.0;
}

double ref_dropout_factor(const struct attention *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (!t->rng)
        return 1.0;
    return ref_dropout_mask(t->rng, t->a.dropout, t->a.stream, t->b * t->h * t->nq,
                            (b * t->h + h) * t->nq + i, j)
               ? 1.0 / (1.0 - t->a.dropout)
               : 0.0;
}

/* Logits of one row into s, phi (0 where not seen) into f, both (Nk); the second output of ATTENTION. */
static double row(const struct attention *t, int64_t b, int64_t h, int64_t i, double *s, double *f)
{
    const double *q = t->q + ((b * t->h + h) * t->nq + i) * t->d;
    double top = -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < t->nk; j++) {
        const double *k = t->k + ((b * t->h + h) * t->nk + j) * t->d;
        double dot = 0.0;

        for (int64_t x = 0; x < t->d; x++)
            dot += q[x] * k[x];
        s[j] = t->a.tau * dot + t->a.bias;
        if (t->bias)
            s[j] += get(t->bias, (h * t->nq + i) * t->nk + j);
        f[j] = 0.0;
        if (ref_sees(t, b, i, j) && s[j] > top)
            top = s[j];
    }
    for (int64_t j = 0; j < t->nk; j++) {
        if (!ref_sees(t, b, i, j))
            continue;
        switch (t->a.phi) {
        case PK_PHI_SOFTMAX:
            f[j] = exp(s[j] - top);
            break;
        case PK_PHI_POLY:
            f[j] = 1.0;
            for (int p = 0; p < t->a.degree; p++)
                f[j] *= s[j];
            break;
        case PK_PHI_SIGMOID:
            f[j] = 1.0 / (1.0 + exp(-s[j]));
            break;
        case PK_PHI_RELU:
            f[j] = s[j] > 0.0 ? s[j] : 0.0;
            break;
        case PK_PHI_TAYLOR:
            f[j] = 1.0 + s[j] + s[j] * s[j] / 2.0;
            break;
        case PK_PHI_PERIODIC:
            f[j] = pow(sin(s[j] + M_PI / 4.0), 2);
            break;
        default:
            assert(0);
        }
        sum += f[j];
    }
    if (pk_phi_normalised(t->a.phi))
        for (int64_t j = 0; j < t->nk; j++)
            if (sum > 0.0)
                f[j] /= sum;
    if (t->a.phi != PK_PHI_SOFTMAX)
        return sum;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

/* phi'(s) where seen; of normalised rows the derivative of what is normalised, over the row's sum. f is A. */
static double slope(const struct attention *t, double s, double f, double sum)
{
    double r;

    switch (t->a.phi) {
    case PK_PHI_POLY:
        r = t->a.degree;
        for (int p = 1; p < t->a.degree; p++)
            r *= s;
        return r;
    case PK_PHI_SIGMOID:
        return f * (1.0 - f);
    case PK_PHI_RELU:
        return s > 0.0;
    case PK_PHI_TAYLOR:
        return sum > 0.0 ? (1.0 + s) / sum : 0.0;
    case PK_PHI_PERIODIC:
        return sum > 0.0 ? cos(2.0 * s) / sum : 0.0; /* 2 sin cos at s + pi/4 */
    default:
        return f;
    }
}

void ref_attention(const struct pk_call *c)
{
    struct attention t = ref_attention_open(c);
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++)
            for (int64_t i = 0; i < t.nq; i++) {
                double lse = row(&t, b, h, i, s, f);

                for (int64_t x = 0; x < t.d; x++) {
                    double y = 0.0;

                    for (int64_t j = 0; j < t.nk; j++)
                        y += ref_dropout_factor(&t, b, h, i, j) * f[j] *
                             t.v[((b * t.h + h) * t.nk + j) * t.d + x];
                    put(&c->out[0], ((b * t.nq + i) * t.h + h) * t.d + x, scale_of(&t, b, h, i) * y);
                }
                if (pk_phi_normalised(t.a.phi))
                    put(&c->out[1], (b * t.h + h) * t.nq + i, lse);
            }
    free(s);
    free(f);
    ref_attention_close(&t);
}

void ref_put_gradients(const struct pk_call *c, const struct attention *t, const double *dq, const double *dk,
                       const double *dv)
{
    if (t->a.packed) {
        for (int64_t b = 0; b < t->b; b++)
            for (int64_t i = 0; i < t->nq; i++)
                for (int64_t h = 0; h < t->h; h++)
                    for (int64_t x = 0; x < t->d; x++) {
                        int64_t from = ((b * t->h + h) * t->nq + i) * t->d + x;
                        const double *g[3] = {dq, dk, dv};

                        for (int w = 0; w < 3; w++)
                            put(&c->out[0], (((b * t->nq + i) * 3 + w) * t->h + h) * t->d + x, g[w][from]);
                    }
    } else {
        for (int64_t i = 0; i < count(&c->out[0]); i++)
            put(&c->out[0], i, dq[i]);
        for (int64_t i = 0; i < count(&c->out[1]); i++) {
            put(&c->out[1], i, dk[i]);
            put(&c->out[2], i, dv[i]);
        }
    }
}

void ref_attention_bwd(const struct pk_call *c)
{
    struct attention t = ref_attention_open(c);
    const struct pk_view *dy = &c->in[t.after + 1];
    size_t nq = (size_t)(t.b * t.h * t.nq * t.d) + 1, nk = (size_t)(t.b * t.h * t.nk * t.d) + 1;
    double *dq = calloc(nq, sizeof *dq), *dk = calloc(nk, sizeof *dk), *dv = calloc(nk, sizeof *dv);
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);
    double *da = malloc(((size_t)t.nk + 1) * sizeof *da), *dc = calloc((size_t)t.h + 1, sizeof *dc);
    double *db = calloc((size_t)(t.h * t.nq * t.nk) + 1, sizeof *db);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++)
            for (int64_t i = 0; i < t.nq; i++) {
                double scale = scale_of(&t, b, h, i), dot = 0.0;
                int64_t qi = ((b * t.h + h) * t.nq + i) * t.d;

                double sums = row(&t, b, h, i, s, f);

                for (int64_t j = 0; j < t.nk; j++) {
                    int64_t kj = ((b * t.h + h) * t.nk + j) * t.d;
                    double keep = ref_dropout_factor(&t, b, h, i, j);

                    da[j] = 0.0;
                    for (int64_t x = 0; x < t.d; x++) {
                        double g = get(dy, ((b * t.nq + i) * t.h + h) * t.d + x);

                        da[j] += keep * g * t.v[kj + x];
                        dv[kj + x] += scale * keep * f[j] * g;
                    }
                    dot += da[j] * f[j];
                    dc[h] += da[j] * f[j] * t.a.scale * by_row(&t, b, i);
                }
                for (int64_t j = 0; j < t.nk; j++) {
                    int64_t kj = ((b * t.h + h) * t.nk + j) * t.d;
                    double ds = 0.0;

                    if (ref_sees(&t, b, i, j))
                        ds = scale * slope(&t, s[j], f[j], sums) *
                             (da[j] - (pk_phi_normalised(t.a.phi) ? dot : 0.0));
                    db[(h * t.nq + i) * t.nk + j] += ds;
                    for (int64_t x = 0; x < t.d; x++) {
                        dq[qi + x] += t.a.tau * ds * t.k[kj + x];
                        dk[kj + x] += t.a.tau * ds * t.q[qi + x];
                    }
                }
            }
    ref_put_gradients(c, &t, dq, dk, dv);
    if (t.scale) {
        const struct pk_view *out = &c->out[t.a.packed ? 1 : 3];
        double sum = 0.0;

        for (int64_t h = 0; h < t.h; h++) {
            sum += dc[h];
            if (count(out) > 1)
                put(out, h, dc[h]);
        }
        if (count(out) == 1)
            put(out, 0, sum);
    }
    if (t.bias)
        for (int64_t i = 0; i < t.h * t.nq * t.nk; i++)
            put(&c->out[(t.a.packed ? 1 : 3) + t.a.has_scale], i, db[i]);
    free(db);
    free(dq);
    free(dk);
    free(dv);
    free(s);
    free(f);
    free(da);
    free(dc);
    ref_attention_close(&t);
}

/* kernels/ATTENTION.md 2: the W_Q Jacobian's factor is tau^2. */
void ref_attention_stats(const struct pk_call *c)
{
    struct attention t = ref_attention_open(c);
    const struct pk_view *rows = &c->in[t.after];
    int64_t width = rows->shape.dim[2];
    bool normalised = pk_phi_normalised(t.a.phi);
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++) {
            double fro = 0.0, jac = 0.0, jacq = 0.0, n = 0.0, sum = 0.0, sq = 0.0, top = 0.0;

            for (int pass = 0; pass < 2; pass++) /* the mean first, then the deviation */
                for (int64_t i = 0; i < t.nq; i++) {
                    double x2 = 0.0, a2 = 0.0, g2 = 0.0, ag2 = 0.0, sums = row(&t, b, h, i, s, f),
                           scale = scale_of(&t, b, h, i);

                    for (int64_t j = 0; j < t.nk; j++) {
                        if (!ref_sees(&t, b, i, j))
                            continue;
                        if (pass == 0) {
                            n += 1.0;
                            sum += s[j];
                        } else {
                            sq += (s[j] - sum / n) * (s[j] - sum / n);
                        }
                    }
                    if (pass == 0)
                        continue;
                    for (int64_t x = 0; x < width; x++)
                        x2 += pow(get(rows, (b * t.nq + i) * width + x), 2);
                    for (int64_t j = 0; j < t.nk; j++) {
                        const double *k = t.k + ((b * t.h + h) * t.nk + j) * t.d;
                        double g, k2 = 0.0;

                        if (!ref_sees(&t, b, i, j))
                            continue;
                        top = fmax(top, fabs(s[j]));
                        fro += scale * scale * f[j] * f[j];
                        g = scale * slope(&t, s[j], f[j], sums);
                        for (int64_t x = 0; x < t.d; x++)
                            k2 += k[x] * k[x];
                        a2 += f[j] * f[j];
                        g2 += g * g;
                        ag2 += f[j] * g * g;
                        if (!normalised)
                            jacq += t.a.tau * t.a.tau * g * g * x2 * k2;
                    }
                    jac += normalised ? g2 - 2.0 * ag2 + a2 * g2 : g2;
                    /* J = diag g - a g' of the row; J K: row j is g_j k_j - a_j sum_m g_m k_m */
                    for (int64_t x = 0; normalised && x < t.d; x++) {
                        double mean = 0.0;

                        for (int64_t j = 0; j < t.nk; j++)
                            if (ref_sees(&t, b, i, j))
                                mean +=
                                    slope(&t, s[j], f[j], sums) * t.k[((b * t.h + h) * t.nk + j) * t.d + x];
                        for (int64_t j = 0; j < t.nk; j++)
                            if (ref_sees(&t, b, i, j))
                                jacq += scale * scale * t.a.tau * t.a.tau * x2 *
                                        pow(slope(&t, s[j], f[j], sums) *
                                                    t.k[((b * t.h + h) * t.nk + j) * t.d + x] -
                                                f[j] * mean,
                                            2);
                    }
                }
            put(&c->out[0], b * t.h + h, sqrt(fro));
            put(&c->out[1], b * t.h + h, sqrt(jac));
            put(&c->out[2], b * t.h + h, sqrt(jacq));
            put(&c->out[3], b * t.h + h, n > 0.0 ? sqrt(sq / n) : 0.0);
            put(&c->out[4], b * t.h + h, top);
        }
    free(s);
    free(f);
    ref_attention_close(&t);
}

void ref_attention_state(const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const struct pk_view *q = &c->in[0], *scale = a->has_scale ? &c->in[3] : NULL;
    const struct pk_view *length = &c->in[c->n_in - 3], *position = &c->in[c->n_in - 2];
    const struct pk_view *state = &c->in[c->n_in - 1];
    int64_t h = q->shape.dim[1], n = q->shape.dim[2], d = q->shape.dim[3], rows = state->shape.dim[2];

    for (int64_t b = 0; b < q->shape.dim[0]; b++)
        for (int64_t ih = 0; ih < h; ih++)
            for (int64_t i = 0; i < n; i++) {
                int64_t from = (b * h + ih) * n + i,
                        first = (int64_t)get(position, count(position) > 1 ? b : 0);
                bool valid = first + i < (int64_t)get(length, count(length) > 1 ? b : 0);
                double by = a->scale * (scale ? get(scale, count(scale) > 1 ? ih : 0) : 1.0);
                int64_t row = (b * h + ih) * rows;

                by *= pow((double)(first + i + 1), -a->row_power);
                for (int64_t x = 0; x < d; x++)
                    put(&c->out[0], ((b * n + i) * h + ih) * d + x, 0.0);
                for (int64_t x = 0; valid && x < rows * d; x++)
                    if (first == 0 && i == 0)
                        put(state, row * d + x, 0.0);
                for (int64_t r = 0; valid && r < d; r++)
                    for (int64_t s = a->degree == 1 ? d - 1 : r; s < d; s++, row++) {
                        double key = get(&c->in[1], from * d + r), query = a->tau * get(q, from * d + r);

                        if (a->degree == 2) {
                            key *= get(&c->in[1], from * d + s) * (r == s ? 1.0 : 2.0);
                            query *= a->tau * get(q, from * d + s);
                        }
                        for (int64_t x = 0; x < d; x++) {
                            int64_t y = ((b * n + i) * h + ih) * d + x;

                            put(state, row * d + x,
                                get(state, row * d + x) + key * get(&c->in[2], from * d + x));
                            put(&c->out[0], y, get(&c->out[0], y) + by * query * get(state, row * d + x));
                        }
                    }
            }
}

enum pd_err ref_cache_append(const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *cache = &c->in[0], *x = &c->in[1], *at = &c->in[2];
    int64_t h = cache->shape.dim[1], t = cache->shape.dim[2], d = cache->shape.dim[3], n = x->shape.dim[2];

    for (int64_t b = 0; b < cache->shape.dim[0]; b++) {
        int64_t p = (int64_t)get(at, count(at) > 1 ? b : 0);

        if (p < 0 || p + n > t)
            return pd_fail(why, PD_ERR_INVALID, "cache_append: positions %lld..%lld of %lld", (long long)p,
                           (long long)(p + n - 1), (long long)t);
        for (int64_t ih = 0; ih < h; ih++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < d; j++)
                    put(cache, ((b * h + ih) * t + p + i) * d + j, get(x, ((b * h + ih) * n + i) * d + j));
    }
    return PD_OK;
}

/* ---- tangents: y and the gradients of x^p along q + i e tq, ..; what is imaginary, over e, is the
 * derivative (the second derivative is symmetric, so that of L by q is that of dL/dq along the tangents) ----
 */

#define STEP 1e-40

static double _Complex *along(const double *x, const double *t, int64_t n)
{
    double _Complex *z = malloc(((size_t)n + 1) * sizeof *z);

    for (int64_t i = 0; i < n; i++)
        z[i] = x[i] + STEP * I * t[i];
    return z;
}

void ref_attention_second(const struct pk_call *c)
{
    const bool second = c->op == PK_OP_ATTENTION_BWD2;
    struct attention t = ref_attention_open(c);
    const struct pk_view *dy = second ? &c->in[t.after] : NULL, *at = &c->in[t.after + second];
    const int64_t nq = t.b * t.h * t.nq * t.d, nk = t.b * t.h * t.nk * t.d, nb = t.h * t.nq * t.nk;
    double *tq = t.a.packed ? part(at, 0) : all(at), *tk = t.a.packed ? part(at, 1) : all(at + 1);
    double *tv = t.a.packed ? part(at, 2) : all(at + 2);
    const struct pk_view *more = at + (t.a.packed ? 1 : 3), *ts = t.a.has_scale ? more++ : NULL,
                         *tb = t.a.has_bias ? more++ : NULL;
    double _Complex *q = along(t.q, tq, nq), *k = along(t.k, tk, nk), *v = along(t.v, tv, nk);
    double _Complex *y = calloc((size_t)nq + 1, sizeof *y), *dq = calloc((size_t)nq + 1, sizeof *dq);
    double _Complex *dk = calloc((size_t)nk + 1, sizeof *dk), *dv = calloc((size_t)nk + 1, sizeof *dv);
    double _Complex *dc = calloc((size_t)t.h + 1, sizeof *dc), *db = calloc((size_t)nb + 1, sizeof *db);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++)
            for (int64_t i = 0; i < t.nq; i++) {
                const int64_t qi = ((b * t.h + h) * t.nq + i) * t.d, yi = ((b * t.nq + i) * t.h + h) * t.d;
                double _Complex scale = by_row(&t, b, i) * t.a.scale;

                if (ts)
                    scale *=
                        get(t.scale, count(t.scale) > 1 ? h : 0) + STEP * I * get(ts, count(ts) > 1 ? h : 0);
                for (int64_t j = 0; j < t.nk; j++) {
                    const int64_t kj = ((b * t.h + h) * t.nk + j) * t.d, ij = (h * t.nq + i) * t.nk + j;
                    double _Complex s = 0, f = 1, slope_f = t.a.degree, da = 0, ds;

                    if (!ref_sees(&t, b, i, j))
                        continue;
                    for (int64_t x = 0; x < t.d; x++)
                        s += q[qi + x] * k[kj + x];
                    s = t.a.tau * s + t.a.bias;
                    if (tb)
                        s += get(t.bias, ij) + STEP * I * get(tb, ij);
                    for (int p = 0; p < t.a.degree; p++)
                        f *= s;
                    for (int p = 1; p < t.a.degree; p++)
                        slope_f *= s;
                    for (int64_t x = 0; x < t.d; x++) {
                        y[yi + x] += scale * f * v[kj + x];
                        if (!second)
                            continue;
                        da += get(dy, yi + x) * v[kj + x];
                        dv[kj + x] += scale * f * get(dy, yi + x);
                    }
                    ds = scale * slope_f * da;
                    dc[h] += da * f * t.a.scale * by_row(&t, b, i);
                    db[ij] += ds;
                    for (int64_t x = 0; x < t.d; x++) {
                        dq[qi + x] += t.a.tau * ds * k[kj + x];
                        dk[kj + x] += t.a.tau * ds * q[qi + x];
                    }
                }
            }
    if (second) {
        const double _Complex *g[3] = {dq, dk, dv};
        const struct pk_view *out = c->out;

        for (int w = 0; w < 3; w++)
            for (int64_t b = 0; b < t.b; b++)
                for (int64_t h = 0; h < t.h; h++)
                    for (int64_t i = 0; i < (w ? t.nk : t.nq); i++)
                        for (int64_t x = 0; x < t.d; x++) {
                            const int64_t from = ((b * t.h + h) * (w ? t.nk : t.nq) + i) * t.d + x;

                            if (t.a.packed)
                                put(out, (((b * t.nq + i) * 3 + w) * t.h + h) * t.d + x,
                                    cimag(g[w][from]) / STEP);
                            else
                                put(out + w, from, cimag(g[w][from]) / STEP);
                        }
        out += t.a.packed ? 1 : 3;
        if (t.scale) {
            double sum = 0.0;

            for (int64_t h = 0; h < t.h; h++) {
                sum += cimag(dc[h]) / STEP;
                if (count(out) > 1)
                    put(out, h, cimag(dc[h]) / STEP);
            }
            if (count(out) == 1)
                put(out, 0, sum);
            out++;
        }
        if (t.bias) {
            for (int64_t i = 0; i < nb; i++)
                put(out, i, cimag(db[i]) / STEP);
            out++;
        }
        for (int64_t i = 0; i < nq; i++)
            put(out, i, cimag(y[i]) / STEP);
    } else {
        for (int64_t i = 0; i < nq; i++)
            put(&c->out[0], i, cimag(y[i]) / STEP);
    }
    free(tq);
    free(tk);
    free(tv);
    free(q);
    free(k);
    free(v);
    free(y);
    free(dq);
    free(dk);
    free(dv);
    free(dc);
    free(db);
    ref_attention_close(&t);
}
