/* MATMUL: act(a b + bias) + residual, or a b times the slope of act.
 *
 * The output is cut into blocks by shape alone; a task computes one block by one call of the GEMM library
 * (or our own kernels) over the whole of K and finishes it - bias, activation, residual - while it is in
 * the cache. Transposed operands become flags; an operand whose rows and columns are both strided is
 * copied once. Few rows are a matter of memory bandwidth: gemv.c. Sums of operands (extra outputs) are those of SUM.
 */
#include "kernels/backend/cpu/matmul.h"

#include "kernels/backend/cpu/own_gemm.h"

#define BLOCK_OUTPUT 200000 /* elements of a block: stays in the cache until it is finished */
#define SPLIT_K 2048        /* sums this long are cut, ... */
#define SPLIT_OUTPUT                                                                                         \
    600000 /* if the output is small enough to be written several times: weight gradients                    \
            */
#define SPLIT_MOST 8

void PK_FN(matmul_plan)(struct cpu_matmul *p, struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0], *y = &c->in[1], *o = &c->out[0];
    int r = o->shape.rank, next = 2;

    memset(p, 0, sizeof *p);
    p->b = b;
    p->c = c;
    p->lead = r - 2;
    p->m = o->shape.dim[r - 2];
    p->n = o->shape.dim[r - 1];
    p->k = x->shape.dim[r - 1];
    p->batch = 1;
    for (int i = 0; i < p->lead; i++)
        p->batch *= o->shape.dim[i];
    p->x = (struct cpu_matrix){x->data, x->stride[r - 2], x->stride[r - 1], false};
    p->y = (struct cpu_matrix){y->data, y->stride[r - 2], y->stride[r - 1], false};
    p->x.copied = !cpu_strides_fit(p->m, p->k, p->x.rs, p->x.cs);
    p->y.copied = !cpu_strides_fit(p->k, p->n, p->y.rs, p->y.cs);
    p->ta = !(p->x.copied || p->x.cs == 1 || p->k == 1);
    p->tb = !(p->y.copied || p->y.cs == 1 || p->n == 1);
    p->half = y->dtype == PK_BF16;
    p->few = p->m <= CPU_FEW_ROWS && !p->ta && !(p->half && p->y.copied);
    p->act = c->attr->matmul.act;
    if (c->attr->matmul.has_bias)
        p->bias = &c->in[next++];
    if (c->attr->matmul.has_residual)
        p->residual = &c->in[next++];
    if (c->attr->matmul.slope)
        p->pre = &c->in[next++];
    if (c->attr->matmul.keeps)
        p->kept = c->out[1].data;
    p->out = o->data;
    p->residual_in_place = p->residual && p->residual->data == o->data;
    p->splits = 1;
    if (p->k >= SPLIT_K && p->batch == 1 && !p->few && p->m * p->n <= SPLIT_OUTPUT) {
        p->splits = cpu_min(SPLIT_MOST, p->k / (SPLIT_K / 2));
        p->split_k = cpu_round_up(cpu_div_up(p->k, p->splits), 4);
        p->splits = cpu_div_up(p->k, p->split_k);
    }
    /* Blocks: large enough for the library, and enough of them for all threads. */
    p->bm = cpu_max(1, cpu_min(p->m, p->splits > 1 ? 1024 : 512));
    p->bn = cpu_max(1, cpu_min(p->n, 768));
    if (p->splits == 1 && p->bm * p->bn > BLOCK_OUTPUT)
        p->bm = cpu_max(64, BLOCK_OUTPUT / p->bn);
    for (;;) {
        int64_t tasks = cpu_div_up(p->m, p->bm) * cpu_div_up(p->n, p->bn) * p->batch * p->splits;

        if (tasks >= (p->splits > 1 ? 8 : 16) || p->bm * p->bn * p->k < 2000000)
            break;
        if (p->bn > p->bm && p->bn > 96)
            p->bn = cpu_round_up(p->bn / 2, 16);
        else if (p->bm > 96)
            p->bm = cpu_round_up(p->bm / 2, 16);
        else
            break;
    }
    if (p->n > p->bn) /* even shares */
        p->bn = cpu_round_up(cpu_div_up(p->n, cpu_div_up(p->n, p->bn)), 16);
    if (p->m > p->bm)
        p->bm = cpu_round_up(cpu_div_up(p->m, cpu_div_up(p->m, p->bm)), 4);
    p->blocks_m = cpu_div_up(p->m, p->bm);
    p->blocks_n = cpu_div_up(p->n, p->bn);
}

static void plan_scratch(struct cpu_matmul *p, struct cpu_scratch *s, int threads)
{
    if (p->x.copied)
        p->copy_x = cpu_take(s, (size_t)(p->batch * p->m * p->k) * sizeof(real));
    if (p->half && !p->few)
        p->copy_y = cpu_take(s, (size_t)(p->k * p->n) * sizeof(real));
    else if (p->y.copied)
        p->copy_y = cpu_take(s, (size_t)(p->batch * p->k * p->n) * sizeof(real));
    if (p->few) {
        PK_FN(matmul_few_scratch)(p, s);
        return;
    }
    if (PK_FN(block_scratch)(p->b))
        p->own_scratch = cpu_take(s, PK_FN(block_scratch)(p->b) * (size_t)threads);
    if (p->splits > 1)
        p->partial = cpu_take(s, (size_t)(p->splits * p->m * p->n) * sizeof(real));
    if (p->residual && p->act != PK_ACT_NONE)
        p->temp = cpu_take(s, (size_t)(p->bm * p->bn * threads) * sizeof(real));
}

void PK_FN(matmul_sums)(const struct pk_call *c, struct cpu_matmul_sums *s)
{
    const enum pk_sums which = c->attr->matmul.sums;

    memset(s, 0, sizeof *s);
    s->in = which == PK_SUMS_A ? c->in[0] : which == PK_SUMS_B ? c->in[1] : c->out[0];
    if (which == PK_SUMS_A) { /* over the columns of a: over the rows of its transpose */
        s->in.shape = PK_SHAPE(c->in[0].shape.dim[1], c->in[0].shape.dim[0]);
        s->in.stride[0] = c->in[0].stride[1];
        s->in.stride[1] = c->in[0].stride[0];
    }
    s->attr.reduce.axes = which == PK_SUMS_OUT ? (1u << (s->in.shape.rank - 1)) - 1 : 1u;
    s->call = (struct pk_call){
        .op = PK_OP_SUM, .attr = &s->attr, .n_in = 1, .n_out = 1, .in = &s->in, .out = &c->out[c->n_out - 1]};
}

size_t PK_FN(matmul_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct cpu_matmul p;

    PK_FN(matmul_plan)(&p, (struct pk_backend *)b, c);
    plan_scratch(&p, &s, cpu_threads_of(b));
    if (c->attr->matmul.sums) { /* run after the product, in the same memory */
        struct cpu_matmul_sums sums;

        PK_FN(matmul_sums)(c, &sums);
        s.used = (size_t)cpu_max((int64_t)s.used, (int64_t)PK_FN(reduce_workspace)(b, &sums.call));
    }
    return s.used;
}

INLINE vec activate(const enum pk_act act, vec v)
{
    switch (act) {
    case PK_ACT_GELU:
        return vgelu(v);
    case PK_ACT_GELU_TANH:
        return vgelu_tanh(v);
    case PK_ACT_RELU:
        return vsel(v < 0, vzero(), v);
    case PK_ACT_NONE:
        break;
    }
    return v;
}

/* The derivative of act. */
INLINE vec slope(const enum pk_act act, vec v)
{
    switch (act) {
    case PK_ACT_GELU:
        return vdgelu(v);
    case PK_ACT_GELU_TANH:
        return vdgelu_tanh(v);
    case PK_ACT_RELU:
        return vsel(v > 0, vset(1), vzero());
    case PK_ACT_NONE:
        break;
    }
    return vset(1);
}

INLINE void finish_row(const enum pk_act act, int64_t n, const real *t, const real *bias,
                       const real *residual, const real *pre, real *kept, real *o)
{
    int64_t j = 0;

    for (; j + W <= n; j += W) {
        vec v = vld(t + j);

        if (bias)
            v += vld(bias + j);
        if (kept)
            vst(kept + j, v);
        v = pre ? v * slope(act, vld(pre + j)) : activate(act, v);
        if (residual)
            v += vld(residual + j);
        vst(o + j, v);
    }
    if (j < n) {
        vec v = vldn(t + j, n - j);

        if (bias)
            v += vldn(bias + j, n - j);
        if (kept)
            vstn(kept + j, v, n - j);
        v = pre ? v * slope(act, vldn(pre + j, n - j)) : activate(act, v);
        if (residual)
            v += vldn(residual + j, n - j);
        vstn(o + j, v, n - j);
    }
}

void PK_FN(matmul_finish_row)(enum pk_act act, int64_t n, const real *t, const real *bias,
                              const real *residual, const real *pre, real *kept, real *o)
{
    switch (act) {
    case PK_ACT_NONE:
        finish_row(PK_ACT_NONE, n, t, bias, residual, NULL, NULL, o);
        break;
    case PK_ACT_GELU:
        finish_row(PK_ACT_GELU, n, t, bias, residual, pre, kept, o);
        break;
    case PK_ACT_GELU_TANH:
        finish_row(PK_ACT_GELU_TANH, n, t, bias, residual, pre, kept, o);
        break;
    case PK_ACT_RELU:
        finish_row(PK_ACT_RELU, n, t, bias, residual, pre, kept, o);
        break;
    }
}

/* Asks for the lines of n values at `x`. A row of a block is shorter than what the processor's own prefetching needs. */
INLINE void prefetch_row(const real *x, int64_t n)
{
    for (int64_t j = 0; j < n; j += 64 / (int64_t)sizeof(real))
        __builtin_prefetch(x + j);
}

void PK_FN(matmul_finish)(const struct cpu_matmul *p, int64_t batch, int64_t i, int64_t j, int64_t n,
                          const real *t)
{
    const int64_t place = (batch * p->m + i) * p->n + j;
    const struct pk_view *extra = p->pre ? p->pre : p->residual; /* of the output's shape; never both */
    real bias_part[256], extra_part[256];

    if (p->residual_in_place && p->act == PK_ACT_NONE)
        extra = NULL;                                               /* added already */
    if (extra && i + 1 < p->m && extra->stride[p->lead + 1] == 1) { /* for the next row */
        const int64_t at = cpu_offset(extra->shape.dim, extra->stride, p->lead, batch);

        prefetch_row((const real *)extra->data + at + (i + 1) * extra->stride[p->lead] + j, n);
    }
    for (int64_t j0 = 0; j0 < n;) {
        int64_t len = n - j0;
        const real *bias = NULL, *other = NULL;
        int64_t bias_stride = p->bias ? p->bias->stride[0] : 1, other_stride = 1;

        if (p->bias)
            bias = (const real *)p->bias->data + (j + j0) * bias_stride;
        if (extra) {
            other_stride = extra->stride[p->lead + 1];
            other = (const real *)extra->data + cpu_offset(extra->shape.dim, extra->stride, p->lead, batch) +
                    i * extra->stride[p->lead] + (j + j0) * other_stride;
        }
        if ((bias && bias_stride != 1) || (other && other_stride != 1)) {
            len = cpu_min(len, 256);
            for (int64_t x = 0; x < len; x++) {
                if (bias)
                    bias_part[x] = bias[x * bias_stride];
                if (other)
                    extra_part[x] = other[x * other_stride];
            }
            bias = bias ? bias_part : NULL;
            other = other ? extra_part : NULL;
        }
        PK_FN(matmul_finish_row)
        (p->act, len, t + j0, bias, p->pre ? NULL : other, p->pre ? other : NULL,
         p->kept ? p->kept + place + j0 : NULL, p->out + place + j0);
        j0 += len;
    }
}

const real *PK_FN(matmul_operand)(const struct cpu_matmul *p, const struct pk_view *v,
                                  const struct cpu_matrix *x, int64_t size, int64_t batch)
{
    if (x->copied)
        return x->data + batch * size;
    return x->data + cpu_offset(p->c->out[0].shape.dim, v->stride, p->lead, batch);
}

const char *PK_FN(matmul_b)(const struct cpu_matmul *p, int64_t batch)
{
    const char *b = (const char *)p->y.data;

    if (p->y.copied)
        return b + batch * p->k * p->n * (int64_t)sizeof(real);
    return b + cpu_offset(p->c->out[0].shape.dim, p->c->in[1].stride, p->lead, batch) *
                   (p->half ? 2 : (int64_t)sizeof(real));
}

static void block_task(void *arg, int64_t task, int thread)
{
    struct cpu_matmul *p = arg;
    int64_t jb = task % p->blocks_n, ib = task / p->blocks_n % p->blocks_m;
    int64_t rest = task / p->blocks_n / p->blocks_m, split = rest % p->splits, batch = rest / p->splits;
    int64_t k0 = split * p->split_k, k = p->splits > 1 ? cpu_min(p->split_k, p->k - k0) : p->k;
    int64_t i = ib * p->bm, j = jb * p->bn, m = cpu_min(p->bm, p->m - i), n = cpu_min(p->bn, p->n - j);
    const real *x = PK_FN(matmul_operand)(p, &p->c->in[0], &p->x, p->m * p->k, batch) +
                    i * (p->ta ? 1 : p->lda) + k0 * (p->ta ? p->lda : 1);
    const real *y = PK_FN(matmul_operand)(p, &p->c->in[1], &p->y, p->k * p->n, batch) +
                    j * (p->tb ? p->ldb : 1) + k0 * (p->tb ? 1 : p->ldb);
    real *o = p->out + (batch * p->m + i) * p->n + j, *to = o;
    int64_t ldc = p->n;
    bool add = p->residual_in_place && p->act == PK_ACT_NONE, done = false;

    if (m <= 0 || n <= 0)
        return;
    if (p->splits > 1) {
        to = p->partial + (split * p->m + i) * p->n + j;
        add = false;
    } else if (p->residual_in_place && !add) {
        to = p->temp + p->bm * p->bn * thread;
        ldc = n;
    }
    if (p->k == 0) {
        for (int64_t r = 0; r < m && !add; r++)
            memset(to + r * ldc, 0, (size_t)n * sizeof(real));
        done = true;
    } else {
        char *own = p->own_scratch ? p->own_scratch + PK_FN(block_scratch)(p->b) * (size_t)thread : NULL;

        done = PK_FN(block_product)(p->b, p->ta, p->tb, m, n, k, x, p->lda, y, p->ldb, add, to, ldc, own);
    }
    if (!done) {
        atomic_store(&p->failed, true);
        return;
    }
    if (p->splits > 1 || (!p->bias && p->act == PK_ACT_NONE && (!p->residual || add)))
        return;
    for (int64_t r = 0; r < m; r++)
        PK_FN(matmul_finish)(p, batch, i + r, j, n, to + r * ldc);
}

/* Rows of the output from the parts of the sum, in order. */
static void combine_task(void *arg, int64_t task, int thread)
{
    const struct cpu_matmul *p = arg;
    const int64_t part = p->m * p->n;
    const bool add = p->residual_in_place && p->act == PK_ACT_NONE;

    (void)thread;
    for (int64_t j = 0; j < p->n; j += 512) {
        int64_t n = cpu_min(512, p->n - j), c = 0;
        const real *from = p->partial + task * p->n + j, *o = p->out + task * p->n + j;
        real sum[512];

        for (; c + W <= n; c += W) {
            vec v = vld(from + c);

            for (int64_t s = 1; s < p->splits; s++)
                v += vld(from + s * part + c);
            vst(sum + c, add ? v + vld(o + c) : v);
        }
        for (; c < n; c++) {
            sum[c] = from[c];
            for (int64_t s = 1; s < p->splits; s++)
                sum[c] += from[s * part + c];
            sum[c] += add ? o[c] : 0;
        }
        PK_FN(matmul_finish)(p, 0, task, j, n, sum);
    }
}

/* bf16 to real, in the order of storage; the leading axes of b are repeated, so it is one matrix. */
static void convert_task(void *arg, int64_t task, int thread)
{
    struct cpu_matmul *p = arg;
    int64_t cols = p->tb ? p->k : p->n, from = p->tb ? p->y.cs : p->y.rs;
    const uint16_t *b = (const uint16_t *)(const void *)p->y.data + task * from;
    real *to = p->copy_y + task * cols;

    (void)thread;
    for (int64_t j = 0; j < cols; j++) {
        uint32_t bits = (uint32_t)b[j] << 16;
        float value;

        memcpy(&value, &bits, sizeof value);
        to[j] = (real)value;
    }
}

static void convert_b(struct cpu_matmul *p)
{
    if (p->y.copied) {
        struct pk_view v = p->c->in[1], to = pk_view_dense(p->copy_y, REAL_DTYPE, PK_SHAPE(p->k, p->n));
        struct pk_call copy = {.op = PK_OP_COPY, .n_in = 1, .n_out = 1, .in = &v, .out = &to};

        v.shape = to.shape;
        v.stride[0] = p->y.rs;
        v.stride[1] = p->y.cs;
        (void)cpu_copy(p->b, &copy, NULL);
    } else {
        cpu_pool_run(p->b->pool, p->tb ? p->n : p->k, convert_task, p);
    }
    p->y = (struct cpu_matrix){p->copy_y, p->tb ? 1 : p->n, p->tb ? p->k : 1, false};
    p->half = false;
}

static enum pd_err product(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct cpu_matmul p;

    PK_FN(matmul_plan)(&p, b, c);
    plan_scratch(&p, &s, cpu_pool_threads(b->pool));
    if (p.m == 0 || p.n == 0 || p.batch == 0)
        return PD_OK;
    if (p.x.copied) {
        struct pk_view v = c->in[0];

        /* Batch axes as the output's, so that the copies of the matrices are in the order of the output's. */
        for (int i = 0; i < p.lead; i++)
            v.shape.dim[i] = c->out[0].shape.dim[i];
        cpu_copy_view(b, &v, p.copy_x);
        p.x = (struct cpu_matrix){p.copy_x, p.k, 1, true};
    }
    if (p.half && !p.few) {
        convert_b(&p);
    } else if (p.y.copied) {
        struct pk_view v = c->in[1];

        for (int i = 0; i < p.lead; i++)
            v.shape.dim[i] = c->out[0].shape.dim[i];
        cpu_copy_view(b, &v, p.copy_y);
        p.y = (struct cpu_matrix){p.copy_y, p.n, 1, true};
    }
    p.lda = p.ta ? cpu_max(p.x.cs, p.m) : cpu_max(p.x.rs, p.k);
    p.ldb = p.tb ? cpu_max(p.y.cs, p.k) : cpu_max(p.y.rs, p.n);
    if (p.few) {
        PK_FN(matmul_few)(&p);
        return PD_OK;
    }
    cpu_pool_run(b->pool, p.batch * p.splits * p.blocks_m * p.blocks_n, block_task, &p);
    if (atomic_load(&p.failed))
        return pd_fail(why, PD_ERR_INTERNAL, "%s failed to compute a product of %lld x %lld x %lld",
                       b->gemm->name, (long long)p.m, (long long)p.n, (long long)p.k);
    if (p.splits > 1)
        cpu_pool_run(b->pool, p.m, combine_task, &p);
    return PD_OK;
}

enum pd_err PK_FN(matmul)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    enum pd_err err = product(b, c, why);
    struct cpu_matmul_sums sums;

    if (err != PD_OK || !c->attr->matmul.sums)
        return err;
    PK_FN(matmul_sums)(c, &sums);
    sums.call.workspace = c->workspace;
    sums.call.workspace_bytes = c->workspace_bytes;
    return PK_FN(reduce)(b, &sums.call, why);
}
