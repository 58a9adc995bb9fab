/* kernels/backend/cuda/attention/call.cuh: host code: from a call of attention to the structs of args.cuh, and functions
 * shared by the files of attention. */
#pragma once

#include "kernels/backend/cuda/attention/args.cuh"
#include "kernels/backend/cuda/attention/attention.h"

/* ---- host: reading a call ---- */

/* Rows of a view, and whether they can be copied in 16-byte pieces. */
static inline struct att_rows att_rows_at(void *data, enum pk_dtype dtype, int64_t d, int64_t sb, int64_t sh,
                                          int64_t sn, int64_t sd)
{
    struct att_rows r = {data, sb, sh, sn, sd, false};
    const int64_t wide = dtype == PK_BF16 ? 8 : 4;

    r.wide = sd == 1 && d % wide == 0 && sb % wide == 0 && sh % wide == 0 && sn % wide == 0 &&
             (uintptr_t)data % 16 == 0;
    return r;
}
static inline struct att_rows att_rows_of(const struct pk_view *v, int b, int h, int n, int d)
{
    return att_rows_at(v->data, v->dtype, v->shape.dim[d], v->stride[b], v->stride[h], v->stride[n],
                       v->stride[d]);
}
/* (B, H, N, d) dense. */
static inline struct att_rows att_rows_dense(const struct pk_view *v, int64_t heads, int64_t n, int64_t d)
{
    return att_rows_at(v->data, v->dtype, d, heads * n * d, n * d, d, 1);
}
/* (B, N, H, d) dense. */
static inline struct att_rows att_rows_inside(const struct pk_view *v, int64_t heads, int64_t n, int64_t d)
{
    return att_rows_at(v->data, v->dtype, d, n * heads * d, d, heads * d, 1);
}
/* Part `which` of qkv. */
static inline struct att_rows att_rows_part(const struct pk_view *v, int which)
{
    char *at = (char *)v->data;

    if (at)
        at += which * v->stride[2] * (v->dtype == PK_BF16 ? 2 : 4);
    return att_rows_at(at, v->dtype, v->shape.dim[4], v->stride[0], v->stride[3], v->stride[1], v->stride[4]);
}

/* Inputs up to rng; data may be NULL. */
static inline void att_read(struct att *a, const struct pk_call *c)
{
    const struct pk_attention_attr *x = &c->attr->attention;
    int next = 3;

    *a = {};
    if (x->packed) {
        const struct pk_view *v = &c->in[0];

        a->batch = (int32_t)v->shape.dim[0];
        a->nq = a->nk = (int32_t)v->shape.dim[1];
        a->heads = (int32_t)v->shape.dim[3];
        a->d = (int32_t)v->shape.dim[4];
        a->q = att_rows_part(v, 0);
        a->k = att_rows_part(v, 1);
        a->v = att_rows_part(v, 2);
        next = 1;
    } else {
        a->batch = (int32_t)c->in[0].shape.dim[0];
        a->heads = (int32_t)c->in[0].shape.dim[1];
        a->nq = (int32_t)c->in[0].shape.dim[2];
        a->nk = (int32_t)c->in[1].shape.dim[2];
        a->d = (int32_t)c->in[0].shape.dim[3];
        a->q = att_rows_of(&c->in[0], 0, 1, 2, 3);
        a->k = att_rows_of(&c->in[1], 0, 1, 2, 3);
        a->v = att_rows_of(&c->in[2], 0, 1, 2, 3);
    }
    a->d16 = (a->d + 15) / 16 * 16;
    a->phi = x->phi;
    a->degree = x->degree;
    a->causal = x->causal;
    a->normalised = pk_phi_normalised(x->phi);
    a->power = pk_phi_power(x->phi);
    a->shifted = pk_phi_shifted(x->phi);
    a->tau = (float)x->tau;
    a->add = (float)x->bias;
    a->factor = (float)x->scale;
    a->row_power = (float)x->row_power;
    if (x->has_scale) {
        const struct pk_view *v = &c->in[next++];

        a->scale = (const float *)v->data;
        a->scale_step = v->shape.dim[0] == 1 ? 0 : v->stride[0];
    }
    a->has_bias = x->has_bias;
    if (x->has_bias) {
        const struct pk_view *v = &c->in[next++];

        a->bias = (const float *)v->data;
        a->bias_h = v->stride[0];
        a->bias_i = v->stride[1];
        a->bias_j = v->stride[2];
    }
    if (x->has_mask) {
        const struct pk_view *v = &c->in[next++];
        const bool windows = v->shape.rank == 3;

        a->mask = (const uint8_t *)v->data;
        a->windows = windows ? (int32_t)v->shape.dim[0] : 0;
        a->mask_b = v->stride[0];
        a->mask_i = windows ? v->stride[1] : 0;
        a->mask_j = v->stride[windows ? 2 : 1];
    }
    if (x->has_length) {
        const struct pk_view *v = &c->in[next++];

        a->length = (const int32_t *)v->data;
        a->length_step = v->shape.dim[0] == 1 ? 0 : v->stride[0];
    }
    if (x->has_rng) {
        const struct pk_view *v = &c->in[next++];

        a->rng = x->dropout > 0 ? (const int32_t *)v->data : NULL;
        a->rng_step = v->stride[0];
        a->share_rows = v->shape.dim[0] > 3 ? (uint32_t)((int64_t)a->batch * a->heads * a->nq) : 0;
        a->threshold = (uint32_t)(x->dropout * 0x1p32);
        a->stream = 0x80000000u + x->stream;
        a->kept = (float)(1 / (1 - x->dropout));
    }
    a->after = next;
}

/* The arithmetic: by the element type, and for f32 by b (NULL: TF32). */
enum att_math { ATT_BF16, ATT_TF32, ATT_F32 };
static inline enum att_math att_math_of(const struct pk_backend *b, const struct pk_call *c)
{
    if (c->in[0].dtype == PK_BF16)
        return ATT_BF16;
    return b && b->math == PK_MATH_F32 ? ATT_F32 : ATT_TF32;
}
static inline size_t att_shared_most(const struct pk_backend *b)
{
    return b ? b->shared_most : 227u * 1024;
}
static inline int att_multiprocessors(const struct pk_backend *b)
{
    return b ? b->multiprocessors : 132;
}

/* Divides `own` rows of each of `pairs` among blocks of at most warps_most warps; `streamed` rows pass in tiles.
 * own_sides: tensors of the own side in shared memory (16 rows per warp); tile_sides: tensors that stream. */
static inline struct att_deal att_deal_of(const struct pk_backend *b, int64_t pairs, int own, int streamed,
                                          int d16, size_t element, int own_sides, int tile_sides,
                                          int warps_most, int parts)
{
    const size_t row = (size_t)d16 * element + 16, most = att_shared_most(b);
    const int strips = own > 0 ? (own + STRIP - 1) / STRIP : 1;
    struct att_deal g = {};
    int warps = warps_most;
    size_t one;

    g.parts = parts;
    g.pairs = pairs * parts;
    g.part_rows = (int)cuda_div_up(cuda_div_up(streamed > 0 ? streamed : 1, parts), TILE) * TILE;
    g.tiles = g.part_rows / TILE;
    for (g.lanes_log = 0; (16 << g.lanes_log) < d16 * (int)element && g.lanes_log < 5; g.lanes_log++)
        ;
    for (;; warps /= 2) {
        size_t strips_bytes;

        g.warps = warps;
        while (g.warps / 2 >= strips)
            g.warps /= 2;
        g.per_block = warps / g.warps;
        /* Every multiprocessor has a block before a block has two pairs. */
        while (g.per_block > 1 && cuda_div_up(g.pairs, g.per_block) < att_multiprocessors(b))
            g.per_block /= 2;
        strips_bytes = (size_t)(g.warps * g.per_block * STRIP * own_sides) * row;
        one = (size_t)(g.per_block * TILE * tile_sides) * row; /* a buffer of all pairs of the block */
        /* A side that fits in a third of the shared memory stays there: three blocks share a multiprocessor. */
        g.resident = strips_bytes + one * (size_t)g.tiles <= most / 3 || g.tiles == 1;
        g.stages = g.resident ? g.tiles : 2;
        g.shared = strips_bytes + one * (size_t)g.stages;
        if (g.shared > most && !g.resident) {
            g.stages = 1;
            g.shared = strips_bytes + one;
        }
        if (g.shared <= most || warps == 1)
            break;
    }
    g.rounds = 1;
    g.chunks = (int)cuda_div_up(strips, g.warps);
    if (g.resident) {
        /* Whole pairs to a block as long as every multiprocessor has two. */
        while (g.chunks > 1 &&
               cuda_div_up(g.pairs, g.per_block) * (g.chunks / 2) >= 2 * (int64_t)att_multiprocessors(b)) {
            g.rounds *= 2;
            g.chunks = (int)cuda_div_up(strips, g.warps * g.rounds);
        }
    }
    return g;
}
#define SPLIT_QUERIES 16
#define SPLIT_KEYS 64
#define SPLIT_MOST 32

/* Number of parts of the keys: enough blocks for every multiprocessor, each part at least a few tiles. */
static inline int att_parts_of(const struct pk_backend *b, const struct att *a)
{
    const int64_t pairs = (int64_t)a->batch * a->heads;
    int64_t want;

    if (a->nq > SPLIT_QUERIES || a->nk <= 4 * SPLIT_KEYS || pairs < 1)
        return 1;
    want = cuda_div_up((int64_t)att_multiprocessors(b) * 16, pairs);
    want = want < a->nk / SPLIT_KEYS ? want : a->nk / SPLIT_KEYS;
    want = want < SPLIT_MOST ? want : SPLIT_MOST;
    return (int)(want < 1 ? 1 : want);
}
static inline unsigned att_blocks(const struct att_deal *g)
{
    return (unsigned)(cuda_div_up(g->pairs, g->per_block) * g->chunks);
}

/* Sets the limit of a kernel that is given `dynamic` bytes to all the shared memory that a block may have, not to the
 * need of this call: a recorded call that needs more may still be launched. A device refuses this for a kernel that has
 * static shared memory too: no kernel has both, but for those that set their own limit. */
static inline cudaError_t att_room(const struct pk_backend *b, const void *kernel, size_t dynamic)
{
    if (dynamic == 0)
        return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)b->shared_most);
}
/* Launches a kernel that may need more shared memory than the default limit. */
#define ATT_LAUNCH(kernel, grid, g, stream, ...)                                                             \
    do {                                                                                                     \
        PK_CUDA_TRY(att_room(b, (const void *)(kernel), (g).shared));                                        \
        PK_LAUNCH((kernel), grid, dim3((unsigned)((g).warps * (g).per_block * PK_WARP)), (g).shared, stream, \
                  __VA_ARGS__);                                                                              \
        PK_CUDA_TRY(cudaGetLastError());                                                                     \
    } while (0)

/* ---- host: functions shared by the files of attention ---- */

/* attention.cu: whether hopper*.cu run this quadratic attention. */
bool att_is_hopper(const struct pk_backend *b, const struct pk_call *c);
/* attention.cu, bwd.cu: the quadratic form. a is whole, outputs too; parts: workspace if g.parts > 1, else NULL.
 * dscale: one double per (b, h) and strip of queries, `strips` per pair; NULL: none. */
enum pd_err att_square(struct pk_backend *b, const struct att *a, enum att_math math, int parts, float *work,
                       struct pd_why *why);
enum pd_err att_square_bwd(struct pk_backend *b, const struct att *a, enum att_math math, double *dscale,
                           int strips, struct pd_why *why);
/* dscale[i] = the constant factor times the sum of the doubles of all pairs that share it, in a fixed order.
 */
enum pd_err att_add_dscale(struct pk_backend *b, const struct att *a, const double *from, int strips,
                           const struct pk_view *to, struct pd_why *why);
/* bwd.cu: into how many runs the batch is divided for dbias, and the sum of runs (H, Nq, Nk) each, times the factor of A. */
int att_bias_runs(const struct pk_backend *b, const struct att *a);
enum pd_err att_add_bias_runs(struct pk_backend *b, const struct att *a, const float *runs, int count,
                              float *to, struct pd_why *why);
/* Addresses of the outputs of ATTENTION_BWD, and of y and dy. Returns the index of the first output after them. */
int att_read_bwd(struct att *a, const struct pk_call *c);

/* once.cu: the gradients of short rows in one pass. dscale: for each (b, h) att_once_warps doubles,
 * or NULL; runs: att_once_runs sums of dS over the batch, (H, Nq, Nk) each and without factors, NULL: none;
 * att_once_runs 0: too many scores, not here. */
bool att_once_takes(const struct pk_backend *b, const struct att *a, enum att_math math);
int att_once_warps(const struct att *a);
int att_once_runs(const struct pk_backend *b, const struct att *a);
enum pd_err att_once(struct pk_backend *b, const struct att *a, double *dscale, float *runs,
                     struct pd_why *why);

/* order.cu: whether a call takes the linear form, and the workspace of a call that needs `square` bytes in the
 * quadratic form. If the host stores records, the two are timed here. */
bool att_is_linear(const struct pk_backend *b, const struct pk_call *c);
size_t att_order_workspace(const struct pk_backend *b, const struct pk_call *c, size_t square);

/* linear.cu */
size_t att_linear_workspace(const struct pk_backend *b, const struct pk_call *c);
enum pd_err att_linear(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
enum pd_err att_linear_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);

/* linear_bf16.cu: the same for short heads in bf16, for x^2 only with many tokens. chunk (causal): tokens per chunk,
 * within which the caller computes the quadratic form. The workspace serves either direction. The gradient also reads
 * dY in 16-byte pieces.
 */
bool att_linear_bf16_takes(const struct pk_call *c, const struct att *a);
int att_linear_bf16_chunk(const struct pk_backend *b, const struct att *a);
size_t att_linear_bf16_workspace(const struct pk_backend *b, const struct att *a);
enum pd_err att_linear_bf16(struct pk_backend *b, const struct att *a, void *work, struct pd_why *why);
enum pd_err att_linear_bf16_bwd(struct pk_backend *b, const struct att *a, void *work, double *dscale,
                                int strips, struct pd_why *why);
