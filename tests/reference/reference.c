#include "tests/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pk_backend {
    int unused;
};

/* ---- elements ---- */

static int64_t count(const struct pk_view *v)
{
    int64_t n = 1;

    for (int i = 0; i < v->shape.rank; i++)
        n *= v->shape.dim[i];
    return n;
}

/* Row-major position -> place in memory. */
static int64_t place(const struct pk_view *v, int64_t at)
{
    int64_t p = 0;

    for (int i = v->shape.rank; i-- > 0;) {
        p += at % v->shape.dim[i] * v->stride[i];
        at /= v->shape.dim[i];
    }
    return p;
}

static double load(const struct pk_view *v, int64_t p)
{
    uint32_t bits;
    float f;

    switch (v->dtype) {
    case PK_F32:
        return ((const float *)v->data)[p];
    case PK_F64:
        return ((const double *)v->data)[p];
    case PK_BF16:
        bits = (uint32_t)((const uint16_t *)v->data)[p] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case PK_I32:
        return ((const int32_t *)v->data)[p];
    case PK_U8:
        return ((const uint8_t *)v->data)[p];
    default:
        assert(0);
        return 0.0;
    }
}

static void store(const struct pk_view *v, int64_t p, double x)
{
    float f = (float)x;
    uint32_t bits;

    switch (v->dtype) {
    case PK_F32:
        ((float *)v->data)[p] = f;
        break;
    case PK_F64:
        ((double *)v->data)[p] = x;
        break;
    case PK_BF16: /* to nearest, ties to even */
        memcpy(&bits, &f, sizeof bits);
        if (isnan(f))
            bits |= 0x400000u;
        else
            bits += 0x7fffu + ((bits >> 16) & 1u);
        ((uint16_t *)v->data)[p] = (uint16_t)(bits >> 16);
        break;
    case PK_I32:
        ((int32_t *)v->data)[p] = (int32_t)x;
        break;
    case PK_U8:
        ((uint8_t *)v->data)[p] = (uint8_t)x;
        break;
    default:
        assert(0);
    }
}

static double get(const struct pk_view *v, int64_t at)
{
    return load(v, place(v, at));
}

static void put(const struct pk_view *v, int64_t at, double x)
{
    store(v, place(v, at), x);
}

/* A copy of a whole tensor, row-major; so that in-place outputs cannot disturb what is still read. */
static double *all(const struct pk_view *v)
{
    int64_t n = count(v);
    double *x = malloc(((size_t)n + 1) * sizeof *x);

    assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = get(v, i);
    return x;
}

static int64_t last(const struct pk_view *v)
{
    return v->shape.dim[v->shape.rank - 1];
}

/* ---- movement ---- */

static void do_copy(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, get(&c->in[0], i));
}

static void do_fill(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, c->attr->fill.value);
}

/* Writes `x` into `out` with an offset along an axis. */
static void put_at(const struct pk_view *out, const struct pk_view *x, int axis, int64_t start)
{
    struct pk_view window = *out;
    int64_t n = count(x);

    window.shape = x->shape;
    for (int64_t i = 0; i < n; i++)
        store(out, place(&window, i) + start * out->stride[axis], get(x, i));
}

static void do_concat(const struct pk_call *c)
{
    int axis = c->attr->concat.axis;
    int64_t at = 0;

    for (int k = 0; k < c->n_in; k++) {
        put_at(&c->out[0], &c->in[k], axis, at);
        at += c->in[k].shape.dim[axis];
    }
}

static void do_pad(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, 0.0);
    put_at(&c->out[0], &c->in[0], c->attr->pad.axis, c->attr->pad.start);
}

static enum pd_err do_gather(const struct pk_call *c, struct pd_why *why)
{
    int64_t d = c->in[0].shape.dim[1];

    for (int64_t i = 0; i < count(&c->in[1]); i++) {
        int64_t row = (int64_t)get(&c->in[1], i);

        if (row < 0 || row >= c->in[0].shape.dim[0])
            return pd_fail(why, PD_ERR_INVALID, "gather: index %lld outside 0..%lld", (long long)row,
                           (long long)c->in[0].shape.dim[0] - 1);
        for (int64_t j = 0; j < d; j++)
            put(&c->out[0], i * d + j, get(&c->in[0], row * d + j));
    }
    return PD_OK;
}

static enum pd_err do_scatter_add(const struct pk_call *c, struct pd_why *why)
{
    int64_t d = c->out[0].shape.dim[1], rows = c->out[0].shape.dim[0];
    double *sum = c->n_in > 2 ? all(&c->in[2]) : calloc((size_t)(rows * d) + 1, sizeof *sum);

    for (int64_t i = 0; i < count(&c->in[0]); i++) {
        int64_t row = (int64_t)get(&c->in[0], i);

        if (row < 0 || row >= rows) {
            free(sum);
            return pd_fail(why, PD_ERR_INVALID, "scatter_add: index %lld outside 0..%lld", (long long)row,
                           (long long)rows - 1);
        }
        for (int64_t j = 0; j < d; j++)
            sum[row * d + j] += get(&c->in[1], i * d + j);
    }
    for (int64_t i = 0; i < rows * d; i++)
        put(&c->out[0], i, sum[i]);
    free(sum);
    return PD_OK;
}

static void do_one_hot(const struct pk_call *c)
{
    int64_t classes = c->attr->one_hot.classes;

    for (int64_t i = 0; i < count(&c->in[0]); i++)
        for (int64_t j = 0; j < classes; j++)
            put(&c->out[0], i * classes + j, get(&c->in[0], i) == (double)j);
}

/* ---- arithmetic ---- */

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double eval(const struct pk_expr *p, const double *in)
{
    double s[64];
    int n = 0;

    for (int i = 0; i < p->count; i++) {
        int arg = p->code[i].arg;
        double a, b, c, r = 1.0;

        switch ((enum pk_ex)p->code[i].op) {
#define POP1 a = s[--n]
#define POP2 b = s[--n], a = s[--n]
        case PK_EX_IN:
            r = in[arg];
            break;
        case PK_EX_CONST:
            r = p->code[i].imm;
            break;
        case PK_EX_DUP:
            r = s[n - 1 - arg];
            break;
        case PK_EX_ADD:
            POP2;
            r = a + b;
            break;
        case PK_EX_SUB:
            POP2;
            r = a - b;
            break;
        case PK_EX_MUL:
            POP2;
            r = a * b;
            break;
        case PK_EX_DIV:
            POP2;
            r = a / b;
            break;
        case PK_EX_MAX:
            POP2;
            r = a > b ? a : b;
            break;
        case PK_EX_MIN:
            POP2;
            r = a < b ? a : b;
            break;
        case PK_EX_GT:
            POP2;
            r = a > b;
            break;
        case PK_EX_EQ:
            POP2;
            r = a == b;
            break;
        case PK_EX_SELECT:
            c = s[--n];
            POP2;
            r = c != 0.0 ? a : b;
            break;
        case PK_EX_NEG:
            POP1;
            r = -a;
            break;
        case PK_EX_ABS:
            POP1;
            r = fabs(a);
            break;
        case PK_EX_EXP:
            POP1;
            r = exp(a);
            break;
        case PK_EX_LOG:
            POP1;
            r = log(a);
            break;
        case PK_EX_SQRT:
            POP1;
            r = sqrt(a);
            break;
        case PK_EX_RSQRT:
            POP1;
            r = 1.0 / sqrt(a);
            break;
        case PK_EX_RECIP:
            POP1;
            r = 1.0 / a;
            break;
        case PK_EX_TANH:
            POP1;
            r = tanh(a);
            break;
        case PK_EX_ERF:
            POP1;
            r = erf(a);
            break;
        case PK_EX_SIGMOID:
            POP1;
            r = 1.0 / (1.0 + exp(-a));
            break;
        case PK_EX_SIN:
            POP1;
            r = sin(a);
            break;
        case PK_EX_COS:
            POP1;
            r = cos(a);
            break;
        case PK_EX_POW:
            POP1;
            for (int k = 0; k < arg; k++)
                r *= a;
            break;
        case PK_EX_GELU:
            POP1;
            r = a * normal_cdf(a);
            break;
        case PK_EX_DGELU:
            POP1;
            r = normal_cdf(a) + a * exp(-0.5 * a * a) / sqrt(2.0 * M_PI);
            break;
        case PK_EX_GELU_TANH:
            POP1;
            r = gelu_tanh(a);
            break;
        case PK_EX_DGELU_TANH:
            POP1;
            c = tanh(sqrt(2.0 / M_PI) * (a + 0.044715 * a * a * a));
            r = 0.5 * (1.0 + c) + 0.5 * a * (1.0 - c * c) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * a * a);
            break;
        case PK_EX_FINITE:
            POP1;
            r = isfinite(a) ? 1.0 : 0.0;
            break;
        case PK_EX_COUNT:
            assert(0);
        }
        s[n++] = r;
    }
    return s[n - 1];
}

static void do_expr(const struct pk_call *c)
{
    double x[64];

    /* Element by element: an output may lie on an input of its own shape. */
    for (int64_t i = 0; i < count(&c->out[0]); i++) {
        for (int k = 0; k < c->n_in; k++)
            x[k] = get(&c->in[k], i);
        put(&c->out[0], i, eval(c->attr->expr, x));
    }
}

static void do_reduce(const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];
    int64_t n_out = count(&c->out[0]);
    double *acc = malloc(((size_t)n_out + 1) * sizeof *acc);

    for (int64_t i = 0; i < n_out; i++)
        acc[i] = c->op == PK_OP_SUM ? 0.0 : -INFINITY;
    for (int64_t i = 0; i < count(x); i++) {
        int64_t rest = i, at = 0, step = 1;

        for (int a = x->shape.rank; a-- > 0;) {
            int64_t k = rest % x->shape.dim[a];

            rest /= x->shape.dim[a];
            if (!(c->attr->reduce.axes & (1u << a))) {
                at += k * step;
                step *= x->shape.dim[a];
            }
        }
        if (c->op == PK_OP_SUM)
            acc[at] += get(x, i);
        else if (get(x, i) > acc[at])
            acc[at] = get(x, i);
    }
    for (int64_t i = 0; i < n_out; i++)
        put(&c->out[0], i, acc[i]);
    free(acc);
}

static void do_sumsq(const struct pk_call *c)
{
    double sum = 0.0;

    for (int k = 0; k < c->n_in; k++)
        for (int64_t i = 0; i < count(&c->in[k]); i++)
            sum += get(&c->in[k], i) * get(&c->in[k], i);
    put(&c->out[0], 0, sum);
}

/* Place in an operand of leading index `lead` (row-major over the output's leading axes). */
static int64_t lead_place(const struct pk_view *v, const struct pk_view *out, int64_t lead)
{
    int64_t p = 0;

    for (int i = out->shape.rank - 2; i-- > 0;) {
        int64_t k = lead % out->shape.dim[i];
        int a = i - (out->shape.rank - v->shape.rank);

        lead /= out->shape.dim[i];
        if (a >= 0 && v->shape.dim[a] != 1)
            p += k * v->stride[a];
    }
    return p;
}

static void do_matmul(const struct pk_call *c)
{
    const struct pk_view *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    const struct pk_view *bias = c->attr->matmul.has_bias ? &c->in[2] : NULL;
    const struct pk_view *residual = c->attr->matmul.has_residual ? &c->in[c->n_in - 1] : NULL;
    int ra = a->shape.rank, rb = b->shape.rank, ry = y->shape.rank;
    int64_t m = y->shape.dim[ry - 2], n = y->shape.dim[ry - 1], k = a->shape.dim[ra - 1];
    int64_t leads = m > 0 && n > 0 ? count(y) / (m * n) : 0;

    for (int64_t l = 0; l < leads; l++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0.0;
                int64_t at = (l * m + i) * n + j;

                for (int64_t x = 0; x < k; x++)
                    sum += load(a, lead_place(a, y, l) + i * a->stride[ra - 2] + x * a->stride[ra - 1]) *
                           load(b, lead_place(b, y, l) + x * b->stride[rb - 2] + j * b->stride[rb - 1]);
                if (bias)
                    sum += get(bias, j);
                if (c->attr->matmul.act == PK_ACT_GELU)
                    sum = sum * normal_cdf(sum);
                else if (c->attr->matmul.act == PK_ACT_GELU_TANH)
                    sum = gelu_tanh(sum);
                else if (c->attr->matmul.act == PK_ACT_RELU)
                    sum = sum > 0.0 ? sum : 0.0;
                if (residual)
                    sum += get(residual, at);
                put(y, at, sum);
            }
}

/* ---- normalisation and losses ---- */

static double eps_of(const struct pk_call *c, int64_t d)
{
    return c->attr->norm.eps_mode == PK_EPS_SUM ? c->attr->norm.eps / (double)d : c->attr->norm.eps;
}

static void do_norm(const struct pk_call *c)
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
static void do_norm_bwd(const struct pk_call *c)
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
                rstd * (get(gamma, i) * get(dy, r * d + i) - (layer ? mu : 0.0) - hat * mux));
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

static void do_softmax(const struct pk_call *c)
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

static void do_softmax_bwd(const struct pk_call *c)
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

static enum pd_err do_cross_entropy(const struct pk_call *c, struct pd_why *why)
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

static enum pd_err do_cross_entropy_bwd(const struct pk_call *c, struct pd_why *why)
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

/* ---- attention ---- */

struct attention {
    struct pk_attention_attr a;
    int64_t b, h, nq, nk, d;
    double *q, *k, *v; /* each (B, H, N, d) */
    const struct pk_view *scale, *mask, *length;
    int after; /* the first input that ATTENTION does not have */
};

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

static struct attention open_attention(const struct pk_call *c)
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
    if (t.a.has_mask)
        t.mask = &c->in[at++];
    if (t.a.has_length)
        t.length = &c->in[at++];
    t.after = at;
    return t;
}

static void close_attention(struct attention *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
}

static double scale_of(const struct attention *t, int64_t h)
{
    return t->a.scale * (t->scale ? get(t->scale, count(t->scale) > 1 ? h : 0) : 1.0);
}

static bool sees(const struct attention *t, int64_t b, int64_t i, int64_t j)
{
    int64_t end = t->nk;

    if (t->length) {
        end = (int64_t)get(t->length, count(t->length) > 1 ? b : 0);
        if (j >= end)
            return false;
    }
    if (t->a.causal && j > i + end - t->nq)
        return false;
    return !t->mask || get(t->mask, b * t->nk + j) != 0.0;
}

/* Logits of one row into s, phi (0 where not seen) into f, both (Nk); lse for softmax. */
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
        f[j] = 0.0;
        if (sees(t, b, i, j) && s[j] > top)
            top = s[j];
    }
    for (int64_t j = 0; j < t->nk; j++) {
        if (!sees(t, b, i, j))
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
        }
        sum += f[j];
    }
    if (t->a.phi == PK_PHI_SOFTMAX)
        for (int64_t j = 0; j < t->nk; j++)
            if (sum > 0.0)
                f[j] /= sum;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

/* phi'(s) where seen, for the pointwise activations */
static double slope(const struct attention *t, double s, double f)
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
    default:
        return 0.0;
    }
}

static void do_attention(const struct pk_call *c)
{
    struct attention t = open_attention(c);
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++)
            for (int64_t i = 0; i < t.nq; i++) {
                double lse = row(&t, b, h, i, s, f);

                for (int64_t x = 0; x < t.d; x++) {
                    double y = 0.0;

                    for (int64_t j = 0; j < t.nk; j++)
                        y += f[j] * t.v[((b * t.h + h) * t.nk + j) * t.d + x];
                    put(&c->out[0], ((b * t.nq + i) * t.h + h) * t.d + x, scale_of(&t, h) * y);
                }
                if (t.a.phi == PK_PHI_SOFTMAX)
                    put(&c->out[1], (b * t.h + h) * t.nq + i, lse);
            }
    free(s);
    free(f);
    close_attention(&t);
}

static void do_attention_bwd(const struct pk_call *c)
{
    struct attention t = open_attention(c);
    const struct pk_view *dy = &c->in[t.after + 1];
    size_t nq = (size_t)(t.b * t.h * t.nq * t.d) + 1, nk = (size_t)(t.b * t.h * t.nk * t.d) + 1;
    double *dq = calloc(nq, sizeof *dq), *dk = calloc(nk, sizeof *dk), *dv = calloc(nk, sizeof *dv);
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);
    double *da = malloc(((size_t)t.nk + 1) * sizeof *da), *dc = calloc((size_t)t.h + 1, sizeof *dc);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++)
            for (int64_t i = 0; i < t.nq; i++) {
                double scale = scale_of(&t, h), dot = 0.0;
                int64_t qi = ((b * t.h + h) * t.nq + i) * t.d;

                row(&t, b, h, i, s, f);
                for (int64_t j = 0; j < t.nk; j++) {
                    int64_t kj = ((b * t.h + h) * t.nk + j) * t.d;

                    da[j] = 0.0;
                    for (int64_t x = 0; x < t.d; x++) {
                        double g = get(dy, ((b * t.nq + i) * t.h + h) * t.d + x);

                        da[j] += g * t.v[kj + x];
                        dv[kj + x] += scale * f[j] * g;
                    }
                    dot += da[j] * f[j];
                    dc[h] += da[j] * f[j] * t.a.scale;
                }
                for (int64_t j = 0; j < t.nk; j++) {
                    int64_t kj = ((b * t.h + h) * t.nk + j) * t.d;
                    double ds = 0.0;

                    if (t.a.phi == PK_PHI_SOFTMAX)
                        ds = scale * f[j] * (da[j] - dot);
                    else if (sees(&t, b, i, j))
                        ds = scale * slope(&t, s[j], f[j]) * da[j];
                    for (int64_t x = 0; x < t.d; x++) {
                        dq[qi + x] += t.a.tau * ds * t.k[kj + x];
                        dk[kj + x] += t.a.tau * ds * t.q[qi + x];
                    }
                }
            }
    if (t.a.packed) {
        for (int64_t b = 0; b < t.b; b++)
            for (int64_t i = 0; i < t.nq; i++)
                for (int64_t h = 0; h < t.h; h++)
                    for (int64_t x = 0; x < t.d; x++) {
                        int64_t from = ((b * t.h + h) * t.nq + i) * t.d + x;
                        const double *g[3] = {dq, dk, dv};

                        for (int w = 0; w < 3; w++)
                            put(&c->out[0], (((b * t.nq + i) * 3 + w) * t.h + h) * t.d + x, g[w][from]);
                    }
    } else {
        for (int64_t i = 0; i < count(&c->out[0]); i++)
            put(&c->out[0], i, dq[i]);
        for (int64_t i = 0; i < count(&c->out[1]); i++) {
            put(&c->out[1], i, dk[i]);
            put(&c->out[2], i, dv[i]);
        }
    }
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
    free(dq);
    free(dk);
    free(dv);
    free(s);
    free(f);
    free(da);
    free(dc);
    close_attention(&t);
}

/* attention.md 2; golden/README.md 8: the W_Q Jacobian's factor is tau^2. */
static void do_attention_stats(const struct pk_call *c)
{
    struct attention t = open_attention(c);
    const struct pk_view *rows = &c->in[t.after];
    int64_t width = rows->shape.dim[2];
    double *s = malloc(((size_t)t.nk + 1) * sizeof *s), *f = malloc(((size_t)t.nk + 1) * sizeof *f);

    for (int64_t b = 0; b < t.b; b++)
        for (int64_t h = 0; h < t.h; h++) {
            double fro = 0.0, jac = 0.0, jacq = 0.0, n = 0.0, sum = 0.0, sq = 0.0, top = 0.0,
                   scale = scale_of(&t, h);

            for (int pass = 0; pass < 2; pass++) /* the mean first, then the deviation */
                for (int64_t i = 0; i < t.nq; i++) {
                    double x2 = 0.0, f2 = 0.0, f3 = 0.0;

                    row(&t, b, h, i, s, f);
                    for (int64_t j = 0; j < t.nk; j++) {
                        if (!sees(&t, b, i, j))
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

                        if (!sees(&t, b, i, j))
                            continue;
                        top = fmax(top, fabs(s[j]));
                        fro += scale * scale * f[j] * f[j];
                        f2 += f[j] * f[j];
                        f3 += f[j] * f[j] * f[j];
                        g = scale * slope(&t, s[j], f[j]);
                        for (int64_t x = 0; x < t.d; x++)
                            k2 += k[x] * k[x];
                        jac += g * g;
                        jacq += t.a.tau * t.a.tau * g * g * x2 * k2;
                    }
                    if (t.a.phi == PK_PHI_SOFTMAX) {
                        double jk = 0.0;

                        jac += scale * scale * (f2 - 2.0 * f3 + f2 * f2);
                        /* J K: row j is f_j (k_j - sum_m f_m k_m) */
                        for (int64_t x = 0; x < t.d; x++) {
                            double mean = 0.0;

                            for (int64_t j = 0; j < t.nk; j++)
                                mean += f[j] * t.k[((b * t.h + h) * t.nk + j) * t.d + x];
                            for (int64_t j = 0; j < t.nk; j++)
                                jk += pow(f[j] * (t.k[((b * t.h + h) * t.nk + j) * t.d + x] - mean), 2);
                        }
                        jacq += scale * scale * t.a.tau * t.a.tau * x2 * jk;
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
    close_attention(&t);
}

static enum pd_err do_cache_append(const struct pk_call *c, struct pd_why *why)
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

/* ---- optimisers (golden/README.md 7) ---- */

static void do_adamw(const struct pk_call *c)
{
    const struct pk_view *p = &c->in[0], *g = &c->in[1], *m = &c->in[2], *v = &c->in[3];
    double lr = get(&c->in[4], 0) * c->attr->optim.lr_mult, c1 = get(&c->in[4], 1), c2 = get(&c->in[4], 2);
    double b1 = c->attr->optim.beta1, b2 = c->attr->optim.beta2;

    if (get(&c->in[5], 1) == 0.0)
        return;
    for (int64_t i = 0; i < count(p); i++) {
        double grad = get(g, i) * get(&c->in[5], 0), x = get(p, i) * (1.0 - lr * c->attr->optim.weight_decay);
        double mi = b1 * get(m, i) + (1.0 - b1) * grad, vi = b2 * get(v, i) + (1.0 - b2) * grad * grad;

        put(m, i, mi);
        put(v, i, vi);
        put(p, i, x - lr / c1 * mi / (sqrt(vi) / sqrt(c2) + c->attr->optim.eps));
    }
}

static void do_msgdw(const struct pk_call *c)
{
    const struct pk_view *p = &c->in[0], *g = &c->in[1], *m = &c->in[2];
    double lr = get(&c->in[3], 0) * c->attr->optim.lr_mult, mu = c->attr->optim.momentum;
    bool first = get(&c->in[3], 3) != 0.0;

    if (get(&c->in[4], 1) == 0.0)
        return;
    for (int64_t i = 0; i < count(p); i++) {
        double grad = get(g, i) * get(&c->in[4], 0), x = get(p, i) * (1.0 - lr * c->attr->optim.weight_decay);
        double mi = first ? grad : mu * get(m, i) + (1.0 - c->attr->optim.dampening) * grad;

        put(m, i, mi);
        put(p, i, x - lr * (c->attr->optim.nesterov ? grad + mu * mi : mi));
    }
}

/* ---- the table ---- */

static enum pd_err run_one(const struct pk_call *c, struct pd_why *why)
{
    switch (c->op) {
    case PK_OP_COPY:
        do_copy(c);
        return PD_OK;
    case PK_OP_FILL:
        do_fill(c);
        return PD_OK;
    case PK_OP_CONCAT:
        do_concat(c);
        return PD_OK;
    case PK_OP_PAD:
        do_pad(c);
        return PD_OK;
    case PK_OP_GATHER:
        return do_gather(c, why);
    case PK_OP_SCATTER_ADD:
        return do_scatter_add(c, why);
    case PK_OP_ONE_HOT:
        do_one_hot(c);
        return PD_OK;
    case PK_OP_EXPR:
        do_expr(c);
        return PD_OK;
    case PK_OP_SUM:
    case PK_OP_MAX:
        do_reduce(c);
        return PD_OK;
    case PK_OP_SUMSQ:
        do_sumsq(c);
        return PD_OK;
    case PK_OP_MATMUL:
        do_matmul(c);
        return PD_OK;
    case PK_OP_NORM:
        do_norm(c);
        return PD_OK;
    case PK_OP_NORM_BWD:
        do_norm_bwd(c);
        return PD_OK;
    case PK_OP_SOFTMAX:
        do_softmax(c);
        return PD_OK;
    case PK_OP_SOFTMAX_BWD:
        do_softmax_bwd(c);
        return PD_OK;
    case PK_OP_CROSS_ENTROPY:
        return do_cross_entropy(c, why);
    case PK_OP_CROSS_ENTROPY_BWD:
        return do_cross_entropy_bwd(c, why);
    case PK_OP_ATTENTION:
        do_attention(c);
        return PD_OK;
    case PK_OP_ATTENTION_BWD:
        do_attention_bwd(c);
        return PD_OK;
    case PK_OP_ATTENTION_STATS:
        do_attention_stats(c);
        return PD_OK;
    case PK_OP_CACHE_APPEND:
        return do_cache_append(c, why);
    case PK_OP_ADAMW:
        do_adamw(c);
        return PD_OK;
    case PK_OP_MSGDW:
        do_msgdw(c);
        return PD_OK;
    default:
        return pd_fail(why, PD_ERR_UNSUPPORTED, "op %d never reaches a back end", (int)c->op);
    }
}

static enum pd_err ref_run(struct pk_backend *b, const struct pk_call *calls, size_t n, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    (void)b;
    for (size_t i = 0; i < n && err == PD_OK; i++)
        err = run_one(&calls[i], why);
    return err;
}

static enum pd_err ref_open(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                            struct pd_why *why)
{
    (void)host;
    (void)device;
    (void)threads;
    *ret = calloc(1, sizeof **ret);
    return *ret ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a back end");
}

static struct pk_backend *ref_close(struct pk_backend *b)
{
    free(b);
    return NULL;
}

static bool ref_supports(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    return call->op >= PK_OP_COPY && call->op < PK_OP_COUNT;
}

static size_t ref_workspace(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    (void)call;
    return 0;
}

static void *ref_alloc(struct pk_backend *b, size_t bytes)
{
    (void)b;
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void ref_free(struct pk_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static enum pd_err ref_move(struct pk_backend *b, void *to, const void *from, size_t bytes,
                            struct pd_why *why)
{
    (void)b;
    (void)why;
    memcpy(to, from, bytes);
    return PD_OK;
}

static enum pd_err ref_sync(struct pk_backend *b, struct pd_why *why)
{
    (void)b;
    (void)why;
    return PD_OK;
}

const struct pk_backend_api *reference_backend(void)
{
    static const struct pk_backend_api api = {
        .abi = PK_BACKEND_ABI,
        .name = "reference",
        .open = ref_open,
        .close = ref_close,
        .supports = ref_supports,
        .workspace_bytes = ref_workspace,
        .alloc = ref_alloc,
        .free = ref_free,
        .upload = ref_move,
        .download = ref_move,
        .run = ref_run,
        .sync = ref_sync,
    };

    return &api;
}
