/* Movement and arithmetic. */
#include "kernels/base/philox.h"
#include "tests/reference/internal.h"

/* ---- movement ---- */

void ref_copy(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, get(&c->in[0], i));
}

void ref_fill(const struct pk_call *c)
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

void ref_concat(const struct pk_call *c)
{
    int axis = c->attr->concat.axis;
    int64_t at = 0;

    for (int k = 0; k < c->n_in; k++) {
        put_at(&c->out[0], &c->in[k], axis, at);
        at += c->in[k].shape.dim[axis];
    }
}

void ref_pad(const struct pk_call *c)
{
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, 0.0);
    put_at(&c->out[0], &c->in[0], c->attr->pad.axis, c->attr->pad.start);
}

enum pd_err ref_gather(const struct pk_call *c, struct pd_why *why)
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

enum pd_err ref_scatter_add(const struct pk_call *c, struct pd_why *why)
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

void ref_one_hot(const struct pk_call *c)
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

void ref_expr(const struct pk_call *c)
{
    double x[64];

    /* Element by element: an output may lie on an input of its own shape. */
    for (int64_t i = 0; i < count(&c->out[0]); i++) {
        for (int k = 0; k < c->n_in; k++)
            x[k] = get(&c->in[k], i);
        put(&c->out[0], i, eval(c->attr->expr, x));
    }
}

void ref_reduce(const struct pk_call *c)
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

void ref_sumsq(const struct pk_call *c)
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

static double act_of(enum pk_act act, double x)
{
    switch (act) {
    case PK_ACT_GELU:
        return x * normal_cdf(x);
    case PK_ACT_GELU_TANH:
        return gelu_tanh(x);
    case PK_ACT_RELU:
        return x > 0.0 ? x : 0.0;
    default:
        return x;
    }
}

static double slope_of(enum pk_act act, double x)
{
    const double k = sqrt(2.0 / M_PI), t = tanh(k * (x + 0.044715 * x * x * x));

    switch (act) {
    case PK_ACT_GELU:
        return normal_cdf(x) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case PK_ACT_GELU_TANH:
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
    default:
        return x > 0.0;
    }
}

static void sums_beside(const struct pk_call *c, int64_t m, int64_t n, int64_t k)
{
    const struct pk_view *x = &c->in[c->attr->matmul.sums == PK_SUMS_A ? 0 : 1], *to = &c->out[c->n_out - 1];
    int64_t many = c->attr->matmul.sums == PK_SUMS_A ? m : n;
    int64_t rows = c->attr->matmul.sums == PK_SUMS_OUT ? (n ? count(&c->out[0]) / n : 0) : k;

    for (int64_t j = 0; j < many; j++) {
        double sum = 0.0;

        for (int64_t i = 0; i < rows; i++)
            sum += c->attr->matmul.sums == PK_SUMS_OUT ? get(&c->out[0], i * n + j)
                   : c->attr->matmul.sums == PK_SUMS_A ? load(x, j * x->stride[0] + i * x->stride[1])
                                                       : load(x, i * x->stride[0] + j * x->stride[1]);
        put(to, j, sum);
    }
}

void ref_matmul(const struct pk_call *c)
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
                if (c->attr->matmul.keeps)
                    put(&c->out[1], at, sum);
                sum = c->attr->matmul.slope ? sum * slope_of(c->attr->matmul.act, get(&c->in[2], at))
                                            : act_of(c->attr->matmul.act, sum);
                if (residual)
                    sum += get(residual, at);
                put(y, at, sum);
            }
    if (c->attr->matmul.sums)
        sums_beside(c, m, n, k);
}

bool ref_dropout_mask(const struct pk_view *rng, double rate, uint32_t stream, int64_t rows, int64_t row,
                      int64_t column)
{
    int64_t in_whole = row + (rng->shape.dim[0] > 3 ? (int64_t)get(rng, 3) * rows : 0);
    uint64_t key = (uint32_t)(int32_t)get(rng, 0) | (uint64_t)(uint32_t)(int32_t)get(rng, 1) << 32;
    uint32_t counter[4] = {(uint32_t)(column / 64 * 16 + column % 16), (uint32_t)in_whole,
                           (uint32_t)(int32_t)get(rng, 2), 0x80000000u + stream},
             word[4];

    pd_philox(key, counter, word);
    return word[column / 16 % 4] >= (uint32_t)(rate * 4294967296.0);
}

void ref_dropout(const struct pk_call *c)
{
    double rate = c->attr->dropout.rate, *x = all(&c->in[0]);
    int64_t n = count(&c->in[0]), width = last(&c->in[0]);

    for (int64_t i = 0; i < n; i++) {
        bool keep =
            c->attr->dropout.samples
                ? ref_dropout_mask(&c->in[1], rate, c->attr->dropout.stream, c->in[0].shape.dim[0],
                                   i / (n / c->in[0].shape.dim[0]), 0)
                : ref_dropout_mask(&c->in[1], rate, c->attr->dropout.stream, n / width, i / width, i % width);

        put(&c->out[0], i, keep ? x[i] / (1 - rate) : 0.0);
    }
    free(x);
}
