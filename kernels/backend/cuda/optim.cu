/* ADAMW, MSGDW, ACCUMULATE and BLEND, in place: many tensors in one launch.
 *
 * Bytes of a parameter: AdamW 26 with a bf16 gradient and 28 with f32 (read g p m v, write p m v), mSGDW 18
 * or 20, ACCUMULATE and BLEND 10 or 12 (6 or 8 where what was there is not read); 8 more with an average, 2
 * with a working copy in bf16, which would be 6 by a kernel of its own.
 *
 * Calls of one kind that follow each other are gathered (cuda_optim_together), up to what fits into the
 * kernel's parameters: addresses and sizes of the tensors, and the distinct sets of hyper-parameters. A block
 * has a tile of 2048 elements of one tensor, which it finds by bisection; a thread has two packs of four, all
 * of whose loads are in flight (up to 160 bytes) before it waits for the hyper-parameters, which thread 0
 * computes from device memory in double, as the CPU does. A single tensor is a table of one, with the same
 * results. A gradient that is not dense is copied to the workspace first and has a launch of its own. */
#include "kernels/backend/cuda/move/move.h"
#include "kernels/backend/cuda/optim.h"
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define PACKS 2
#define TILE (THREADS * PACKS * 4)
#define TENSORS_MOST 52 /* of a launch */
#define GROUPS_MOST 8

namespace
{
/* One set of hyper-parameters. */
struct group {
    const float *hyper, *gate; /* ACCUMULATE: hyper is `first`, no gate; BLEND: it is the gate */
    int64_t hyper_step, gate_step;
    double lr_mult, weight_decay;
    float beta1, beta2, eps, momentum, fresh, renewed;
    bool nesterov, l2, cycled;
};

struct tensor {
    float *p, *m, *v, *average; /* ACCUMULATE, BLEND: p is what changes */
    const void *g;
    __nv_bfloat16 *copy; /* of p, rounded; or NULL */
    int64_t count;
    uint32_t first; /* tile */
    uint8_t group;
    bool bf16, packs;
};

struct table {
    int32_t tensors, groups;
    struct tensor tensor[TENSORS_MOST];
    struct group group[GROUPS_MOST];
};
} // namespace
static_assert(sizeof(struct table) <= 4096, "kernel parameters");

namespace
{
/* The update of every element of a group. */
struct factors {
    float clip, decay, l2, step, root2, lr, beta1;
    bool apply, first;
};
} // namespace

/* Whether it is an optimiser's step: with moments, hyper-parameters and a gate. */
static __host__ __device__ constexpr bool steps(int op)
{
    return op == PK_OP_ADAMW || op == PK_OP_MSGDW;
}

template <int op> __device__ __forceinline__ void factors_of(const struct group &g, struct factors *f)
{
    const double lr = (double)g.hyper[0] * g.lr_mult;

    f->apply = g.gate[g.gate_step] != 0;
    f->clip = g.gate[0];
    f->decay = g.l2 ? 1.0f : (float)(1 - lr * g.weight_decay);
    f->l2 = g.l2 ? (float)g.weight_decay : 0.0f;
    f->lr = (float)lr;
    if (op == PK_OP_ADAMW) {
        f->step = (float)(lr / (double)g.hyper[g.hyper_step]);
        f->root2 = (float)(1 / sqrt((double)g.hyper[2 * g.hyper_step]));
        f->beta1 = g.cycled ? g.hyper[3 * g.hyper_step] : g.beta1;
    } else {
        f->first = g.hyper[3 * g.hyper_step] != 0;
    }
}

/* n elements of a pack, zeros beyond. */
__device__ __forceinline__ void part_load(const void *x, bool bf16, bool packs, int64_t at, int n, float v[4])
{
    if (packs && n >= 4) {
        pk_load4(x, bf16, at, v);
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = i < n ? pk_load1(x, bf16, at + i) : 0;
}

template <int op> static __global__ void __launch_bounds__(THREADS) optim_kernel(const struct table t)
{
    __shared__ struct factors f;
    int from = 0, to = t.tensors;
    float p[PACKS][4], g[PACKS][4], m[PACKS][4], v[PACKS][4], average[PACKS][4];

    while (to - from > 1) {
        const int middle = (from + to) / 2;

        if (t.tensor[middle].first <= blockIdx.x)
            from = middle;
        else
            to = middle;
    }
    const struct tensor x = t.tensor[from];
    const struct group &s = t.group[x.group];
    const int64_t first = (int64_t)(blockIdx.x - x.first) * TILE + 4 * threadIdx.x;
    const bool fresh = op == PK_OP_ACCUMULATE ? s.hyper[0] != 0 : op == PK_OP_BLEND && s.renewed == 1;

    if (op == PK_OP_BLEND && s.hyper[0] == 0)
        return;

#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int64_t at = first + 4 * k * THREADS;
        const int n = at < x.count ? (int)(x.count - at < 4 ? x.count - at : 4) : 0;

        part_load(x.g, x.bf16, x.packs, at, n, g[k]);
        if (!fresh)
            part_load(x.p, false, x.packs, at, n, p[k]);
        if (steps(op))
            part_load(x.m, false, x.packs, at, n, m[k]);
        if (op == PK_OP_ADAMW)
            part_load(x.v, false, x.packs, at, n, v[k]);
        if (steps(op) && x.average)
            part_load(x.average, false, x.packs, at, n, average[k]);
    }
    if (steps(op)) {
        if (threadIdx.x == 0)
            factors_of<op>(s, &f);
        __syncthreads();
        if (!f.apply)
            return;
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int64_t at = first + 4 * k * THREADS;
        const int n = at < x.count ? (int)(x.count - at < 4 ? x.count - at : 4) : 0;

        if (n == 0)
            break;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (op == PK_OP_ACCUMULATE) {
                p[k][i] = fresh ? g[k][i] : p[k][i] + g[k][i];
                continue;
            }
            if (op == PK_OP_BLEND) {
                p[k][i] = fresh ? g[k][i] : p[k][i] + (g[k][i] - p[k][i]) * s.renewed;
                continue;
            }
            g[k][i] = g[k][i] * f.clip + p[k][i] * f.l2;
            p[k][i] = p[k][i] * f.decay;
            if (op == PK_OP_ADAMW) {
                m[k][i] = m[k][i] * f.beta1 + g[k][i] * (1 - f.beta1);
                v[k][i] = v[k][i] * s.beta2 + g[k][i] * g[k][i] * (1 - s.beta2);
                p[k][i] = p[k][i] - f.step * m[k][i] / (sqrtf(v[k][i]) * f.root2 + s.eps);
            } else {
                m[k][i] = f.first ? g[k][i] : m[k][i] * s.momentum + g[k][i] * s.fresh;
                p[k][i] = p[k][i] - f.lr * (s.nesterov ? g[k][i] + s.momentum * m[k][i] : m[k][i]);
            }
            average[k][i] = average[k][i] + (p[k][i] - average[k][i]) * s.renewed;
        }
        pk_row_store(x.p, false, x.packs, at, 0, n, p[k]);
        if (steps(op) && x.copy)
            pk_row_store(x.copy, true, x.packs, at, 0, n, p[k]);
        if (steps(op))
            pk_row_store(x.m, false, x.packs, at, 0, n, m[k]);
        if (op == PK_OP_ADAMW)
            pk_row_store(x.v, false, x.packs, at, 0, n, v[k]);
        if (steps(op) && x.average)
            pk_row_store(x.average, false, x.packs, at, 0, n, average[k]);
    }
}

/* ---- gathering ---- */

bool cuda_optim_is(enum pk_op op)
{
    return steps(op) || op == PK_OP_ACCUMULATE || op == PK_OP_BLEND;
}

static int64_t tiles_of(const struct pk_call *c)
{
    return cuda_div_up(cuda_count(&c->in[0].shape), TILE);
}

static void group_of(const struct pk_call *c, struct group *g)
{
    memset(g, 0, sizeof *g); /* also what lies between the members: groups are compared as bytes */
    if (!steps(c->op)) {
        g->hyper = (const float *)c->in[2].data;
        g->renewed = (float)(1 - c->attr->optim.ema);
        return;
    }
    const struct pk_view *hyper = &c->in[c->op == PK_OP_ADAMW ? 4 : 3], *gate = hyper + 1;

    g->hyper = (const float *)hyper->data;
    g->hyper_step = hyper->stride[0];
    g->gate = (const float *)gate->data;
    g->gate_step = gate->stride[0];
    g->lr_mult = c->attr->optim.lr_mult;
    g->weight_decay = c->attr->optim.weight_decay;
    g->beta1 = (float)c->attr->optim.beta1;
    g->cycled = c->op == PK_OP_ADAMW && c->attr->optim.cycled;
    g->beta2 = (float)c->attr->optim.beta2;
    g->eps = (float)c->attr->optim.eps;
    g->momentum = (float)c->attr->optim.momentum;
    g->fresh = (float)(1 - c->attr->optim.dampening);
    g->renewed = (float)(1 - c->attr->optim.ema);
    g->nesterov = c->attr->optim.nesterov;
    g->l2 = c->op == PK_OP_MSGDW && c->attr->optim.l2;
}

static bool same_group(const struct group *a, const struct group *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Without the gradient. */
static bool lies_in_packs(const struct tensor *t)
{
    return cuda_aligned(t->p, 16) && cuda_aligned(t->m, 16) && cuda_aligned(t->v, 16) &&
           cuda_aligned(t->average, 16) && cuda_aligned(t->copy, 8);
}

static void tensor_of(const struct pk_call *c, struct tensor *t)
{
    memset(t, 0, sizeof *t);
    t->p = (float *)c->in[0].data;
    t->g = c->in[1].data;
    t->count = cuda_count(&c->in[0].shape);
    t->bf16 = c->in[1].dtype == PK_BF16;
    if (steps(c->op)) {
        t->m = (float *)c->in[2].data;
        if (c->op == PK_OP_ADAMW)
            t->v = (float *)c->in[3].data;
        if (c->attr->optim.ema > 0)
            t->average = (float *)c->in[c->n_in - 1 - c->attr->optim.copy].data;
        if (c->attr->optim.copy)
            t->copy = (__nv_bfloat16 *)c->in[c->n_in - 1].data;
    }
    t->packs = cuda_aligned(t->g, cuda_pack_bytes(c->in[1].dtype)) && lies_in_packs(t);
}

static bool overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    return a && b && (uintptr_t)a < (uintptr_t)b + (uintptr_t)b_bytes &&
           (uintptr_t)b < (uintptr_t)a + (uintptr_t)a_bytes;
}

/* Whether a writes memory that b reads or writes. */
static bool touches(const struct tensor *a, const struct tensor *b)
{
    const void *const wrote[5] = {a->p, a->m, a->v, a->average, a->copy};
    const void *const seen[6] = {b->p, b->m, b->v, b->average, b->copy, b->g};

    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 6; k++)
            if (overlap(wrote[i], (i == 4 ? 2 : 4) * a->count, seen[k],
                        (k == 4 || (k == 5 && b->bf16) ? 2 : 4) * b->count))
                return true;
    return false;
}

size_t cuda_optim_together(const struct pk_call *calls, size_t count)
{
    struct group group[GROUPS_MOST];
    struct tensor tensor[TENSORS_MOST];
    int groups = 0;
    int64_t tiles = 0;
    size_t n;

    if (count == 0 || !cuda_optim_is(calls[0].op))
        return 0;
    for (n = 0; n < count && n < TENSORS_MOST; n++) {
        const struct pk_call *c = &calls[n];
        struct group g;
        int i = 0;

        if (c->op != calls[0].op || !cuda_dense(&c->in[1]))
            break;
        group_of(c, &g);
        while (i < groups && !same_group(&group[i], &g))
            i++;
        if (i == GROUPS_MOST)
            break;
        tensor_of(c, &tensor[n]);
        for (size_t k = 0; k < n; k++)
            if (touches(&tensor[k], &tensor[n]) || touches(&tensor[n], &tensor[k]))
                return n;
        tiles += tiles_of(c);
        if (tiles > INT32_MAX)
            break;
        if (i == groups)
            group[groups++] = g;
    }
    return n > 0 ? n : 1;
}

enum pd_err cuda_optim_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pd_why *why)
{
    struct table t;
    uint32_t tiles = 0;

    memset(&t, 0, sizeof t);
    for (size_t n = 0; n < count; n++) {
        const struct pk_call *c = &calls[n];
        struct tensor *x = &t.tensor[t.tensors];
        struct group g;
        int i = 0;

        tensor_of(c, x);
        if (x->count == 0)
            continue;
        if (!cuda_dense(&c->in[1])) {
            enum pd_err err = cuda_copy_view(b, &c->in[1], c->workspace, c->in[1].dtype, why);

            if (err != PD_OK)
                return err;
            x->g = c->workspace;
            x->packs = lies_in_packs(x);
        }
        group_of(c, &g);
        while (i < t.groups && !same_group(&t.group[i], &g))
            i++;
        if (t.tensors == TENSORS_MOST || i == GROUPS_MOST)
            return pd_fail(why, PD_ERR_INTERNAL, "%zu optimiser calls do not fit into one launch", count);
        if (i == t.groups)
            t.group[t.groups++] = g;
        x->group = (uint8_t)i;
        x->first = tiles;
        tiles += (uint32_t)tiles_of(c);
        t.tensors++;
    }
    if (tiles == 0)
        return PD_OK;
    if (calls[0].op == PK_OP_ADAMW)
        PK_LAUNCH(optim_kernel<PK_OP_ADAMW>, tiles, THREADS, 0, b->stream, t);
    else if (calls[0].op == PK_OP_MSGDW)
        PK_LAUNCH(optim_kernel<PK_OP_MSGDW>, tiles, THREADS, 0, b->stream, t);
    else if (calls[0].op == PK_OP_ACCUMULATE)
        PK_LAUNCH(optim_kernel<PK_OP_ACCUMULATE>, tiles, THREADS, 0, b->stream, t);
    else
        PK_LAUNCH(optim_kernel<PK_OP_BLEND>, tiles, THREADS, 0, b->stream, t);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* ---- one by one ---- */

static size_t optim_workspace(const struct pk_call *c)
{
    return cuda_dense(&c->in[1]) ? 0 : (size_t)(cuda_count(&c->in[1].shape) * cuda_size(c->in[1].dtype));
}

/* All but the gradient and a working copy are f32; and dense: leaves are. */
static bool optim_supports(const struct pk_call *c)
{
    const int n = c->n_in - (steps(c->op) && c->attr->optim.copy);

    for (int i = 0; i < n; i++)
        if (i != 1 && c->in[i].dtype != PK_F32)
            return false;
    return cuda_float(c->in[1].dtype);
}

#define ENTRIES(name)                                                                                        \
    enum pd_err cuda_##name(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)               \
    {                                                                                                        \
        return cuda_optim_run(b, c, 1, why);                                                                 \
    }                                                                                                        \
    size_t cuda_##name##_workspace(const struct pk_backend *b, const struct pk_call *c)                      \
    {                                                                                                        \
        (void)b;                                                                                             \
        return optim_workspace(c);                                                                           \
    }                                                                                                        \
    bool cuda_##name##_supports(const struct pk_backend *b, const struct pk_call *c)                         \
    {                                                                                                        \
        (void)b;                                                                                             \
        return optim_supports(c);                                                                            \
    }

ENTRIES(adamw)
ENTRIES(msgdw)
ENTRIES(accumulate)
ENTRIES(blend)
