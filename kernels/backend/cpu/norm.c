/* NORM and NORM_BWD over the last axis. Statistics by double sums of vector lanes; the variance in a
 * second pass over centred values, so that an offset of 100 costs nothing. The gradients of gamma and beta
 * are sums over fixed tiles of rows, added in order. */
#include "kernels/backend/cpu/ops.h"

#define ROWS 32 /* rows of one task */

struct job {
    const struct pk_call *c;
    int64_t rows, d;
    bool layer, has_beta;
    double eps;
    real *partial; /* backward: (tiles, 2, d) */
    real *copy;    /* of each thread: rows of x, dy and residual when they are strided; gamma, beta */
    const real *gamma, *beta;
};

static void job_shape(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];

    memset(j, 0, sizeof *j);
    j->c = c;
    j->d = x->shape.dim[x->shape.rank - 1];
    j->rows = 1;
    for (int i = 0; i < x->shape.rank - 1; i++)
        j->rows *= x->shape.dim[i];
    j->layer = c->attr->norm.kind == PK_NORM_LAYER;
    j->has_beta = c->attr->norm.has_beta;
    j->eps = c->attr->norm.eps;
    if (c->attr->norm.eps_mode == PK_EPS_SUM)
        j->eps /= (double)cpu_max(1, j->d); /* eps on the sum of squares is eps / D on the mean */
}

static void job_scratch(struct job *j, struct cpu_scratch *s, int threads)
{
    j->copy = cpu_take(s, (size_t)(threads * 3 * j->d + 2 * j->d) * sizeof(real));
    if (j->c->op == PK_OP_NORM_BWD)
        j->partial = cpu_take(s, (size_t)(cpu_div_up(j->rows, ROWS) * 2 * j->d) * sizeof(real));
}

size_t PK_FN(norm_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

/* Row r of v, dense: where it lies or copied to `to`. */
static const real *row_of(const struct pk_view *v, int64_t r, int64_t d, real *to)
{
    const real *p = (const real *)v->data + cpu_offset(v->shape.dim, v->stride, v->shape.rank - 1, r);
    int64_t stride = v->stride[v->shape.rank - 1];

    if (stride == 1 || d == 1)
        return p;
    for (int64_t i = 0; i < d; i++)
        to[i] = p[i * stride];
    return to;
}

static real stat_of(const struct pk_view *v, int64_t r)
{
    return ((const real *)v->data)[cpu_offset(v->shape.dim, v->stride, v->shape.rank, r)];
}

static const real *vector_of(const struct pk_view *v, int64_t d, real *to)
{
    if (v->stride[0] == 1 || d == 1)
        return v->data;
    for (int64_t i = 0; i < d; i++)
        to[i] = ((const real *)v->data)[i * v->stride[0]];
    return to;
}

/* gamma, and beta where it is an input. */
static void vectors_of(struct job *j, real *to, int beta)
{
    j->gamma = vector_of(&j->c->in[1], j->d, to);
    j->beta = beta < 0 ? NULL : vector_of(&j->c->in[beta], j->d, to + j->d);
}

/* Sum over a row of f(vector), in double at the end of every 32 vectors. */
#define ROW_SUM(total, d, f_full, f_part)                                                                    \
    do {                                                                                                     \
        i = 0;                                                                                               \
        (total) = 0;                                                                                         \
        while (i < (d)) {                                                                                    \
            vec acc_ = vzero();                                                                              \
            int64_t stop_ = cpu_min(d, i + 32 * W);                                                          \
            for (; i + W <= stop_; i += W)                                                                   \
                acc_ += (f_full);                                                                            \
            if (i < stop_) {                                                                                 \
                const int64_t n = stop_ - i;                                                                 \
                acc_ += (f_part);                                                                            \
                i = stop_;                                                                                   \
            }                                                                                                \
            (total) += vsum_double(acc_);                                                                    \
        }                                                                                                    \
    } while (0)

INLINE vec squared(vec v)
{
    return v * v;
}
/* The first n lanes of v, the rest 0. */
INLINE vec first_lanes(vec v, int64_t n)
{
    return vsel(vlane() < (ireal)n, v, vzero());
}

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct pk_call *c = j->c;
    const int64_t d = j->d;
    real *copy = j->copy + thread * 3 * d;
    const real *gamma = j->gamma, *beta = j->beta;

    for (int64_t r = task * ROWS; r < cpu_min(j->rows, (task + 1) * ROWS); r++) {
        const real *x = row_of(&c->in[0], r, d, copy);
        real *y = (real *)c->out[0].data + r * d;
        double sum, mean = 0, rstd;
        int64_t i;

        if (j->layer) {
            ROW_SUM(sum, d, vld(x + i), vldn(x + i, n));
            mean = sum / (double)d;
            ROW_SUM(sum, d, squared(vld(x + i) - (real)mean),
                    first_lanes(squared(vldn(x + i, n) - (real)mean), n));
        } else {
            ROW_SUM(sum, d, squared(vld(x + i)), squared(vldn(x + i, n)));
        }
        rstd = 1 / sqrt(sum / (double)d + j->eps);
        ((real *)c->out[1].data)[r] = (real)rstd;
        if (j->layer)
            ((real *)c->out[2].data)[r] = (real)mean;
        for (i = 0; i + W <= d; i += W) {
            vec v = (vld(x + i) - (real)mean) * (real)rstd * vld(gamma + i);

            vst(y + i, beta ? v + vld(beta + i) : v);
        }
        if (i < d) {
            int64_t n = d - i;
            vec v = (vldn(x + i, n) - (real)mean) * (real)rstd * vldn(gamma + i, n);

            vstn(y + i, beta ? v + vldn(beta + i, n) : v, n);
        }
    }
}

enum pd_err PK_FN(norm)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    (void)why;
    job_shape(&j, c);
    if (j.rows == 0 || j.d == 0)
        return PD_OK;
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    vectors_of(&j, j.copy + 3 * j.d * cpu_pool_threads(b->pool), j.has_beta ? 2 : -1);
    cpu_pool_run(b->pool, cpu_div_up(j.rows, ROWS), forward_task, &j);
    return PD_OK;
}

/* With xhat = (x - mean) rstd and u = gamma dy:  dx = rstd (u - mean(u) - xhat mean(u xhat)), where RMSNorm
 * has no mean(u);  dgamma = sum dy xhat;  dbeta = sum dy. */
static void backward_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const struct pk_call *c = j->c;
    const int64_t d = j->d;
    real *copy = j->copy + thread * 3 * d;
    const real *gamma = j->gamma, *beta = j->beta;
    real *dgamma = j->partial + task * 2 * d, *dbeta = dgamma + d;

    memset(dgamma, 0, (size_t)(2 * d) * sizeof(real));
    for (int64_t r = task * ROWS; r < cpu_min(j->rows, (task + 1) * ROWS); r++) {
        const real *x = row_of(&c->in[0], r, d, copy), *dy = row_of(&c->in[2], r, d, copy + d);
        real rstd = stat_of(&c->in[3], r), mean = j->layer ? stat_of(&c->in[4], r) : 0, m1, m2;
        real *dx = (real *)c->out[0].data + r * d;
        real *y = c->attr->norm.again ? (real *)c->out[c->n_out - 1].data + r * d : NULL;
        const real *more =
            c->attr->norm.has_residual ? row_of(&c->in[c->n_in - 1], r, d, copy + 2 * d) : NULL;
        double su = 0, sux;
        int64_t i;

        if (j->layer)
            ROW_SUM(su, d, vld(gamma + i) * vld(dy + i), vldn(gamma + i, n) * vldn(dy + i, n));
        ROW_SUM(sux, d, vld(gamma + i) * vld(dy + i) * ((vld(x + i) - mean) * rstd),
                vldn(gamma + i, n) * vldn(dy + i, n) * ((vldn(x + i, n) - mean) * rstd));
        m1 = (real)(su / (double)d);
        m2 = (real)(sux / (double)d);
        for (i = 0; i + W <= d; i += W) {
            vec g = vld(dy + i), h = (vld(x + i) - mean) * rstd;

            vst(dgamma + i, vld(dgamma + i) + g * h);
            vst(dbeta + i, vld(dbeta + i) + g);
            if (y) {
                vec v = h * vld(gamma + i);

                vst(y + i, beta ? v + vld(beta + i) : v);
            }
            h = rstd * (vld(gamma + i) * g - m1 - h * m2);
            vst(dx + i, more ? h + vld(more + i) : h);
        }
        if (i < d) {
            int64_t n = d - i;
            vec g = vldn(dy + i, n), h = (vldn(x + i, n) - mean) * rstd;

            vstn(dgamma + i, vldn(dgamma + i, n) + g * h, n);
            vstn(dbeta + i, vldn(dbeta + i, n) + g, n);
            if (y) {
                vec v = h * vldn(gamma + i, n);

                vstn(y + i, beta ? v + vldn(beta + i, n) : v, n);
            }
            h = rstd * (vldn(gamma + i, n) * g - m1 - h * m2);
            vstn(dx + i, more ? h + vldn(more + i, n) : h, n);
        }
    }
}

enum pd_err PK_FN(norm_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;
    int64_t tiles;
    real *dgamma = c->out[1].data, *dbeta = c->attr->norm.has_beta ? c->out[2].data : NULL;

    (void)why;
    job_shape(&j, c);
    tiles = cpu_div_up(j.rows, ROWS);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    if (j.d == 0)
        return PD_OK;
    vectors_of(&j, j.copy + 3 * j.d * cpu_pool_threads(b->pool),
               j.has_beta && c->attr->norm.again ? 4 + j.layer : -1);
    cpu_pool_run(b->pool, tiles, backward_task, &j);
    for (int64_t i = 0; i < j.d; i += 256) {
        double sum[2][256] = {{0}};
        int64_t n = cpu_min(256, j.d - i);

        for (int64_t t = 0; t < tiles; t++)
            for (int64_t k = 0; k < n; k++) {
                sum[0][k] += (double)j.partial[t * 2 * j.d + i + k];
                sum[1][k] += (double)j.partial[t * 2 * j.d + j.d + i + k];
            }
        for (int64_t k = 0; k < n; k++) {
            dgamma[i + k] = (real)sum[0][k];
            if (dbeta)
                dbeta[i + k] = (real)sum[1][k];
        }
    }
    return PD_OK;
}
