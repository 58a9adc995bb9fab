/* MATMUL of two matrices of bf16, by the library's product with sums in f32. Blocks are those of matmul.c, cut by
 * shape alone. A task computes a block into memory of its thread, in f32, and finishes it there - bias,
 * activation, residual - before it is rounded once, on the way out.
 *
 *     a, b (bf16) --library--> block (f32, in the cache) --finish--> y (bf16 or f32)
 */
#include "kernels/backend/cpu/matmul_half.h"

#if !CPU_F64
#include "kernels/backend/cpu/matmul.h"

#define PART 256 /* columns that are finished at once */

void PK_FN(from_half)(int64_t n, const uint16_t *x, float *y)
{
    uint32_t *bits = (uint32_t *)(void *)y;

    for (int64_t i = 0; i < n; i++)
        bits[i] = (uint32_t)x[i] << 16;
}

void PK_FN(to_half)(int64_t n, const float *x, uint16_t *y)
{
    const uint32_t *bits = (const uint32_t *)(const void *)x;

    for (int64_t i = 0; i < n; i++) {
        uint32_t v = bits[i], nan = v | 0x00400000u, near = v + 0x7fffu + (v >> 16 & 1u);

        y[i] = (uint16_t)(((v & 0x7fffffffu) > 0x7f800000u ? nan : near) >> 16);
    }
}

struct half_job {
    struct cpu_matmul p;
    float *temp; /* of each thread: a block */
};

static bool straight(const struct cpu_matmul *p)
{
    return p->c->out[0].dtype == PK_F32 && !p->bias && !p->residual && p->act == PK_ACT_NONE;
}

static void plan(struct half_job *j, struct pk_backend *b, const struct pk_call *c, struct cpu_scratch *s)
{
    struct cpu_matmul *p = &j->p;

    PK_FN(matmul_plan)(p, b, c);
    p->lda = p->ta ? cpu_max(p->x.cs, p->m) : cpu_max(p->x.rs, p->k);
    p->ldb = p->tb ? cpu_max(p->y.cs, p->k) : cpu_max(p->y.rs, p->n);
    j->temp = NULL;
    if (p->splits > 1)
        p->partial = cpu_take(s, (size_t)(p->splits * p->m * p->n) * sizeof(float));
    else if (!straight(p))
        j->temp = cpu_take(s, (size_t)(cpu_round_up(p->bm * p->bn, 16) * cpu_threads_of(b)) * sizeof(float));
}

static const uint16_t *operand(const struct cpu_matmul *p, const struct pk_view *v, int64_t batch)
{
    return (const uint16_t *)v->data + cpu_offset(p->c->out[0].shape.dim, v->stride, p->lead, batch);
}

/* n elements of a view from element `at` on, `stride` apart, as f32: in place, or converted into `part`. */
static const float *load_part(const struct pk_view *v, int64_t at, int64_t stride, int64_t n, float *part)
{
    if (v->dtype == PK_F32 && stride == 1)
        return (const float *)v->data + at;
    if (v->dtype == PK_BF16 && stride == 1) {
        PK_FN(from_half)(n, (const uint16_t *)v->data + at, part);
        return part;
    }
    for (int64_t i = 0; i < n; i++) {
        if (v->dtype == PK_F32)
            part[i] = ((const float *)v->data)[at + i * stride];
        else
            PK_FN(from_half)(1, (const uint16_t *)v->data + at + i * stride, part + i);
    }
    return part;
}

/* Where to compute n results: directly in the output if it is f32. */
static float *place_of(const struct pk_view *v, int64_t at, float *part)
{
    return v->dtype == PK_F32 ? (float *)v->data + at : part;
}

static void store_part(const struct pk_view *v, int64_t at, int64_t n, const float *part)
{
    if (v->dtype == PK_BF16)
        PK_FN(to_half)(n, part, (uint16_t *)v->data + at);
}

/* Columns j .. j+n-1 of row i of matrix number `batch`, from t into the outputs. */
static void finish_part(const struct cpu_matmul *p, int64_t batch, int64_t i, int64_t j, int64_t n,
                        const float *t)
{
    const struct pk_view *extra = p->pre ? p->pre : p->residual;
    const struct pk_view *kept = p->kept ? &p->c->out[1] : NULL;
    float bias_part[PART], extra_part[PART], kept_part[PART], part[PART];
    int64_t at = (batch * p->m + i) * p->n + j;

    for (int64_t j0 = 0; j0 < n; j0 += PART, at += PART, t += PART) {
        const int64_t len = cpu_min(PART, n - j0);
        const float *bias = NULL, *other = NULL;
        float *to = place_of(&p->c->out[0], at, part), *keep = kept ? place_of(kept, at, kept_part) : NULL;

        if (p->bias)
            bias = load_part(p->bias, (j + j0) * p->bias->stride[0], p->bias->stride[0], len, bias_part);
        if (extra)
            other = load_part(extra,
                              cpu_offset(extra->shape.dim, extra->stride, p->lead, batch) +
                                  i * extra->stride[p->lead] + (j + j0) * extra->stride[p->lead + 1],
                              extra->stride[p->lead + 1], len, extra_part);
        PK_FN(matmul_finish_row)
        (p->act, len, t, bias, p->pre ? NULL : other, p->pre ? other : NULL, keep, to);
        if (kept)
            store_part(kept, at, len, keep);
        store_part(&p->c->out[0], at, len, to);
    }
}

static void block_task(void *arg, int64_t task, int thread)
{
    struct half_job *job = arg;
    struct cpu_matmul *p = &job->p;
    int64_t jb = task % p->blocks_n, ib = task / p->blocks_n % p->blocks_m;
    int64_t rest = task / p->blocks_n / p->blocks_m, split = rest % p->splits, batch = rest / p->splits;
    int64_t k0 = split * p->split_k, k = p->splits > 1 ? cpu_min(p->split_k, p->k - k0) : p->k;
    int64_t i = ib * p->bm, j = jb * p->bn, m = cpu_min(p->bm, p->m - i), n = cpu_min(p->bn, p->n - j);
    const uint16_t *x =
        operand(p, &p->c->in[0], batch) + i * (p->ta ? 1 : p->lda) + k0 * (p->ta ? p->lda : 1);
    const uint16_t *y =
        operand(p, &p->c->in[1], batch) + j * (p->tb ? p->ldb : 1) + k0 * (p->tb ? 1 : p->ldb);
    float *to = job->temp + cpu_round_up(p->bm * p->bn, 16) * thread;
    int64_t ldc = n;

    if (m <= 0 || n <= 0)
        return;
    if (p->splits > 1 || straight(p)) {
        to = (p->splits > 1 ? p->partial + split * p->m * p->n
                            : (float *)p->c->out[0].data + batch * p->m * p->n) +
             i * p->n + j;
        ldc = p->n;
    }
    if (!cpu_gemm_half(p->ta, p->tb, m, n, k, x, p->lda, y, p->ldb, to, ldc)) {
        atomic_store(&p->failed, true);
        return;
    }
    if (p->splits > 1 || straight(p))
        return;
    for (int64_t r = 0; r < m; r++)
        finish_part(p, batch, i + r, j, n, to + r * ldc);
}

/* Rows of the output from the parts of the sum, in order. */
static void combine_task(void *arg, int64_t task, int thread)
{
    const struct cpu_matmul *p = &((const struct half_job *)arg)->p;
    float sum[PART];

    (void)thread;
    for (int64_t j = 0; j < p->n; j += PART) {
        const int64_t n = cpu_min(PART, p->n - j);
        const float *from = p->partial + task * p->n + j;

        for (int64_t c = 0; c < n; c++) {
            sum[c] = from[c];
            for (int64_t s = 1; s < p->splits; s++)
                sum[c] += from[s * p->m * p->n + c];
        }
        finish_part(p, 0, task, j, n, sum);
    }
}

static const struct cpu_ops *ops_of(const struct pk_backend *b)
{
    return cpu_ops_of(b->level, false);
}

size_t PK_FN(matmul_half_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {NULL, 0};
    struct half_job j;

    plan(&j, (struct pk_backend *)(uintptr_t)b, c, &s);
    if (c->attr->matmul.sums) { /* run after the product, in the same memory */
        static const struct cpu_ops alone = {.workspace = {[PK_OP_SUM] = PK_FN(reduce_workspace)}};
        struct cpu_matmul_sums sums;
        size_t bytes;

        PK_FN(matmul_sums)(c, &sums);
        bytes = cpu_widens(&sums.call) ? cpu_widen_workspace(&alone, b, &sums.call)
                                       : PK_FN(reduce_workspace)(b, &sums.call);
        s.used = bytes > s.used ? bytes : s.used;
    }
    return s.used;
}

enum pd_err PK_FN(matmul_half)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct cpu_matmul_sums sums;
    struct half_job j;

    plan(&j, b, c, &s);
    cpu_pool_run(b->pool, j.p.batch * j.p.splits * j.p.blocks_m * j.p.blocks_n, block_task, &j);
    if (atomic_load(&j.p.failed))
        return pd_fail(why, PD_ERR_INTERNAL,
                       "onednn failed to compute a product of %lld x %lld x %lld in bf16", (long long)j.p.m,
                       (long long)j.p.n, (long long)j.p.k);
    if (j.p.splits > 1)
        cpu_pool_run(b->pool, j.p.m, combine_task, &j);
    if (!c->attr->matmul.sums)
        return PD_OK;
    PK_FN(matmul_sums)(c, &sums);
    sums.call.workspace = c->workspace;
    sums.call.workspace_bytes = c->workspace_bytes;
    return cpu_widens(&sums.call) ? cpu_widen(PK_FN(reduce), ops_of(b), b, &sums.call, why)
                                  : PK_FN(reduce)(b, &sums.call, why);
}
#endif
