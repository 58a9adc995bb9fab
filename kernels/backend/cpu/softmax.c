/* SOFTMAX, SOFTMAX_BWD, CROSS_ENTROPY, CROSS_ENTROPY_BWD and CROSS_ENTROPY_GRAD: a row at a time. The row's
 * largest value is subtracted; exponentials of a row stay in the second-level cache even with 50257 classes.
 */
#include "kernels/backend/cpu/ops.h"

#define TASK_ELEMENTS 32768 /* rows of one task hold about this many */
#define PIECE (32 * W)      /* elements added in `real` before the sum goes to double */

struct job {
    const struct pk_call *c;
    int64_t rows, n, group;
    real *copy;   /* of each thread: a strided row, twice */
    double *sums; /* cross-entropy: (rows, 2): loss, correct or -1 for an ignored row */
    real scale;   /* of dlogits */
};

static void job_shape(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];

    memset(j, 0, sizeof *j);
    j->c = c;
    j->n = x->shape.dim[x->shape.rank - 1];
    j->rows = 1;
    for (int i = 0; i < x->shape.rank - 1; i++)
        j->rows *= x->shape.dim[i];
    j->group = cpu_max(1, TASK_ELEMENTS / cpu_max(1, j->n));
}

static void job_scratch(struct job *j, struct cpu_scratch *s, int threads)
{
    j->copy = cpu_take(s, (size_t)(threads * 2 * j->n) * sizeof(real));
    if (j->c->op == PK_OP_CROSS_ENTROPY || j->c->op == PK_OP_CROSS_ENTROPY_GRAD)
        j->sums = cpu_take(s, (size_t)(j->rows * 2) * sizeof(double));
}

size_t PK_FN(softmax_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

static const real *row_of(const struct pk_view *v, int64_t r, int64_t n, real *to)
{
    const real *p = (const real *)v->data + cpu_offset(v->shape.dim, v->stride, v->shape.rank - 1, r);
    int64_t stride = v->stride[v->shape.rank - 1];

    if (stride == 1 || n == 1)
        return p;
    for (int64_t i = 0; i < n; i++)
        to[i] = p[i * stride];
    return to;
}

static real row_max(int64_t n, const real *x)
{
    vec m0 = vset(-INFINITY), m1 = m0;
    real best;
    int64_t i = 0;

    for (; i + 2 * W <= n; i += 2 * W) {
        m0 = vmax(vld(x + i), m0);
        m1 = vmax(vld(x + i + W), m1);
    }
    best = vmax_lane(vmax(m0, m1));
    for (; i < n; i++)
        best = x[i] > best ? x[i] : best;
    return best;
}

/* Sum of exp(x - max); the exponentials go to y unless it is NULL. */
static double row_exp(int64_t n, const real *x, real max, real *y)
{
    double sum = 0;
    int64_t i = 0;

    while (i < n) {
        int64_t stop = cpu_min(n, i + PIECE);
        vec acc = vzero();

        for (; i + W <= stop; i += W) {
            vec e = vexp(vld(x + i) - max);

            acc += e;
            if (y)
                vst(y + i, e);
        }
        if (i < stop) {
            int64_t left = stop - i;
            vec e = vsel(vlane() < (ireal)left, vexp(vldn(x + i, left) - max), vzero());

            acc += e;
            if (y)
                vstn(y + i, e, left);
            i = stop;
        }
        sum += vsum_double(acc);
    }
    return sum;
}

static void softmax_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;

    for (int64_t r = task * j->group; r < cpu_min(j->rows, (task + 1) * j->group); r++) {
        const real *x = row_of(&j->c->in[0], r, j->n, j->copy + thread * 2 * j->n);
        real *y = (real *)j->c->out[0].data + r * j->n, factor;
        int64_t i = 0;

        factor = (real)(1 / row_exp(j->n, x, row_max(j->n, x), y));
        for (; i + W <= j->n; i += W)
            vst(y + i, vld(y + i) * factor);
        for (; i < j->n; i++)
            y[i] *= factor;
    }
}

enum pd_err PK_FN(softmax)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    job_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    if (j.n > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.rows, j.group), softmax_task, &j);
    return PD_OK;
}

static void softmax_bwd_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;

    for (int64_t r = task * j->group; r < cpu_min(j->rows, (task + 1) * j->group); r++) {
        real *copy = j->copy + thread * 2 * j->n;
        const real *y = row_of(&j->c->in[0], r, j->n, copy), *dy = row_of(&j->c->in[1], r, j->n, copy + j->n);
        real *dx = (real *)j->c->out[0].data + r * j->n;
        double sum = 0;
        real mean;
        int64_t i = 0;

        while (i < j->n) {
            int64_t stop = cpu_min(j->n, i + PIECE);
            vec acc = vzero();

            for (; i + W <= stop; i += W)
                acc += vld(y + i) * vld(dy + i);
            if (i < stop)
                acc += vldn(y + i, stop - i) * vldn(dy + i, stop - i);
            i = stop;
            sum += vsum_double(acc);
        }
        mean = (real)sum;
        for (i = 0; i + W <= j->n; i += W)
            vst(dx + i, vld(y + i) * (vld(dy + i) - mean));
        for (; i < j->n; i++)
            dx[i] = y[i] * (dy[i] - mean);
    }
}

enum pd_err PK_FN(softmax_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    job_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    if (j.n > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.rows, j.group), softmax_bwd_task, &j);
    return PD_OK;
}

/* ---- cross-entropy ---- */

static int32_t target_of(const struct pk_view *v, int64_t r)
{
    return ((const int32_t *)v->data)[r * v->stride[0]];
}

static double row_sum(int64_t n, const real *x)
{
    double sum = 0;

    for (int64_t i = 0; i < n;) {
        int64_t stop = cpu_min(n, i + PIECE);
        vec acc = vzero();

        for (; i + W <= stop; i += W)
            acc += vld(x + i);
        if (i < stop)
            acc += vldn(x + i, stop - i);
        i = stop;
        sum += vsum_double(acc);
    }
    return sum;
}

/* Loss of row r with target y and maximum max, and whether y is the first index that attains the maximum. */
static void loss_of(const struct job *j, int64_t r, int32_t y, const real *x, real max, double lse)
{
    const double s = j->c->attr->cross_entropy.smoothing;
    double loss = 0, correct = -1;

    if (y != j->c->attr->cross_entropy.ignore) {
        loss = (1 - s) * (lse - (double)x[y]);
        if (s != 0)
            loss += s * (lse - row_sum(j->n, x) / (double)j->n);
        correct = x[y] == max;
        for (int64_t i = 0; i < y && correct != 0; i++)
            correct = x[i] < max;
    }
    j->sums[2 * r] = loss;
    j->sums[2 * r + 1] = correct;
}

static void sums_out(const struct job *j, const struct pk_view *out)
{
    double sum[3] = {0};

    for (int64_t r = 0; r < j->rows; r++) {
        sum[0] += j->sums[2 * r];
        sum[1] += j->sums[2 * r + 1] >= 0;
        sum[2] += j->sums[2 * r + 1] > 0;
    }
    for (int i = 0; i < 3; i++)
        *(real *)out[i].data = (real)sum[i];
}

static enum pd_err targets_check(const struct job *j, int64_t *ret_count, struct pd_why *why)
{
    int64_t count = 0;

    for (int64_t r = 0; r < j->rows; r++) {
        int32_t y = target_of(&j->c->in[1], r);

        if (y == j->c->attr->cross_entropy.ignore)
            continue;
        if (y < 0 || y >= j->n)
            return pd_fail(why, PD_ERR_INVALID, "target %d of row %lld is outside the %lld classes", y,
                           (long long)r, (long long)j->n);
        count++;
    }
    if (ret_count)
        *ret_count = count;
    return PD_OK;
}

static void loss_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;

    for (int64_t r = task * j->group; r < cpu_min(j->rows, (task + 1) * j->group); r++) {
        const real *x = row_of(&j->c->in[0], r, j->n, j->copy + thread * 2 * j->n);
        real max = row_max(j->n, x);
        double lse = (double)max + log(row_exp(j->n, x, max, NULL));

        loss_of(j, r, target_of(&j->c->in[1], r), x, max, lse);
        ((real *)j->c->out[3].data)[r] = (real)lse;
    }
}

enum pd_err PK_FN(cross_entropy)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    enum pd_err err;
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    err = targets_check(&j, NULL, why);
    if (err != PD_OK)
        return err;
    if (j.n > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.rows, j.group), loss_task, &j);
    sums_out(&j, c->out);
    return PD_OK;
}

static void loss_bwd_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const double s = j->c->attr->cross_entropy.smoothing;
    const real scale = *(const real *)j->c->in[3].data, share = (real)(s / (double)j->n);

    for (int64_t r = task * j->group; r < cpu_min(j->rows, (task + 1) * j->group); r++) {
        const struct pk_view *lse_view = &j->c->in[2];
        const real *x = row_of(&j->c->in[0], r, j->n, j->copy + thread * 2 * j->n);
        const real lse = ((const real *)lse_view->data)[r * lse_view->stride[0]];
        real *dx = (real *)j->c->out[0].data + r * j->n;
        int32_t y = target_of(&j->c->in[1], r);
        int64_t i = 0;

        if (y == j->c->attr->cross_entropy.ignore) {
            memset(dx, 0, (size_t)j->n * sizeof(real));
            continue;
        }
        for (; i + W <= j->n; i += W)
            vst(dx + i, scale * (vexp(vld(x + i) - lse) - share));
        if (i < j->n)
            vstn(dx + i, scale * (vexp(vldn(x + i, j->n - i) - lse) - share), j->n - i);
        dx[y] -= scale * (real)(1 - s);
    }
}

enum pd_err PK_FN(cross_entropy_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    enum pd_err err;
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    err = targets_check(&j, NULL, why);
    if (err != PD_OK)
        return err;
    if (j.n > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.rows, j.group), loss_bwd_task, &j);
    return PD_OK;
}

/* The row's exponentials are stored in dlogits, which may share the logits' memory: one exponential per element. */
static void loss_grad_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const double s = j->c->attr->cross_entropy.smoothing;
    const int64_t width = j->c->out[0].shape.dim[1];
    const real shift = j->scale * (real)(s / (double)j->n);

    for (int64_t r = task * j->group; r < cpu_min(j->rows, (task + 1) * j->group); r++) {
        const real *x = row_of(&j->c->in[0], r, j->n, j->copy + thread * 2 * j->n);
        real *dx = (real *)j->c->out[0].data + r * width, max, factor;
        int32_t y = target_of(&j->c->in[1], r);
        double sum, first;
        int64_t i = 0;

        if (y == j->c->attr->cross_entropy.ignore) {
            loss_of(j, r, y, x, 0, 0);
            memset(dx, 0, (size_t)width * sizeof(real));
            continue;
        }
        max = row_max(j->n, x);
        loss_of(j, r, y, x, max, 0); /* without lse: of that there is one whole in the loss */
        first = j->sums[2 * r];
        sum = row_exp(j->n, x, max, dx);
        j->sums[2 * r] = first + (double)max + log(sum);
        factor = (real)((double)j->scale / sum);
        for (; i + W <= j->n; i += W)
            vst(dx + i, factor * vld(dx + i) - shift);
        if (i < j->n)
            vstn(dx + i, factor * vldn(dx + i, j->n - i) - shift, j->n - i);
        dx[y] -= j->scale * (real)(1 - s);
        memset(dx + j->n, 0, (size_t)(width - j->n) * sizeof(real));
    }
}

enum pd_err PK_FN(cross_entropy_grad)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    int64_t count = 0;
    enum pd_err err;
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    err = targets_check(&j, &count, why);
    if (err != PD_OK)
        return err;
    j.scale = *(const real *)c->in[2].data;
    if (c->attr->cross_entropy.mean)
        j.scale /= (real)count;
    if (j.n > 0)
        cpu_pool_run(b->pool, cpu_div_up(j.rows, j.group), loss_grad_task, &j);
    sums_out(&j, c->out + 1);
    return PD_OK;
}
