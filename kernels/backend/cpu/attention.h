/* kernels/backend/cpu/attention.h: inputs, outputs and masks of an attention call, in the form that its kernels use. */
#pragma once

#include "kernels/backend/cpu/micro.h"
#include "kernels/backend/cpu/ops.h"

#define KEYS 512        /* keys of a block: a tile of 128 KiB in f32 */
#define GROUP_MANY 1024 /* queries of a forward task when there are enough (batch, head) pairs ... */
#define GROUP_FEW 128   /* ... and when there are not */
#define PAIRS_MANY 16
#define FEW_QUERIES 4 /* up to here (decoding) keys are read once, without tiles ... */
#define FEW_KEYS 16   /* ... except where tiles cost no more */

/* One (b, h) slice of a tensor of rows: element (i, c) at p + b * sb + h * sh + i * sn + c * sd. */
struct rows {
    real *p;
    int64_t sb, sh, sn, sd;
};

struct attention {
    const struct pk_call *c;
    const struct pk_attention_attr *a;
    int64_t batch, heads, nq, nk, d;
    int64_t ld;   /* row length of copies: a multiple of W, constant where the kernels want it */
    int64_t keys; /* of a block */
    struct rows q, k, v, y, dy, dq, dk, dv;
    const struct pk_view *scale, *bias, *mask, *length, *rng;
    int after; /* first input that ATTENTION does not have */
    const struct pk_view *sums_in;
    real *sums;     /* log of the sum of exponentials, or the sum of phi, where rows are normalised */
    double *dscale; /* of each (b, h) */
    /* Prepared once for all tiles; tile t holds queries from t * TILE on. */
    int64_t tiles;
    real *bias_t;   /* (H, tiles, Nk, TILE) */
    uint64_t *seen; /* (W, tiles, Nk): the queries of a tile that see a key, as bits */
    int64_t windows;
    real *dbias_t; /* (runs, H, tiles, Nk, TILE): of each run of batches */
    int64_t runs;
    int64_t group, groups;
    bool few, backward;
    char *scratch; /* of each thread */
    size_t scratch_bytes;
};

/* ---- the linear form (attention_linear.c) ---- */

/* Time of a multiply-add of the linear form relative to the quadratic form; measured by tests/bench/linear_bench.c
 * at d = 64 for x and x^2, causal and not: 0.7 to 1.2 forward, 0.8 to 1.5 backward. */
#define LINEAR_COST 1.1
#define LINEAR_COST_BWD 1.5

bool PK_FN(attention_is_linear)(const struct attention *j);
size_t PK_FN(attention_linear_workspace)(struct attention *j, int threads);
enum pd_err PK_FN(attention_linear)(struct pk_backend *b, struct attention *j);
/* Leaves the gradient of a learned scale in j->dscale. */
enum pd_err PK_FN(attention_linear_bwd)(struct pk_backend *b, struct attention *j);

static inline struct rows rows_of(const struct pk_view *v, int b, int h, int n, int d)
{
    return (struct rows){v->data, v->stride[b], v->stride[h], v->stride[n], v->stride[d]};
}

static inline struct rows rows_dense(void *p, int64_t n, int64_t heads, int64_t d, bool heads_inside)
{
    return heads_inside ? (struct rows){p, n * heads * d, d, heads * d, 1}
                        : (struct rows){p, heads * n * d, n * d, d, 1};
}

static inline void attention_shape(struct attention *j, const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const bool backward = c->op == PK_OP_ATTENTION_BWD || c->op == PK_OP_FORMULA_BWD;
    int next;

    memset(j, 0, sizeof *j);
    j->c = c;
    j->a = a;
    j->backward = backward;
    if (a->packed) {
        const struct pk_view *x = &c->in[0];

        j->batch = x->shape.dim[0];
        j->nq = j->nk = x->shape.dim[1];
        j->heads = x->shape.dim[3];
        j->d = x->shape.dim[4];
        j->q = j->k = j->v = rows_of(x, 0, 3, 1, 4);
        if (x->data) {
            j->k.p += x->stride[2];
            j->v.p += 2 * x->stride[2];
        }
        next = 1;
    } else {
        j->batch = c->in[0].shape.dim[0];
        j->heads = c->in[0].shape.dim[1];
        j->nq = c->in[0].shape.dim[2];
        j->nk = c->in[1].shape.dim[2];
        j->d = c->in[0].shape.dim[3];
        j->q = rows_of(&c->in[0], 0, 1, 2, 3);
        j->k = rows_of(&c->in[1], 0, 1, 2, 3);
        j->v = rows_of(&c->in[2], 0, 1, 2, 3);
        next = 3;
    }
    if (a->has_scale)
        j->scale = &c->in[next++];
    if (a->has_bias)
        j->bias = &c->in[next++];
    if (a->has_mask)
        j->mask = &c->in[next++];
    if (a->has_length)
        j->length = &c->in[next++];
    if (a->has_rng)
        j->rng = &c->in[next++];
    j->windows = j->mask && j->mask->shape.rank == 3 ? j->mask->shape.dim[0] : 0;
    j->tiles = cpu_div_up(j->nq, TILE);
    j->after = next;
    if (c->op == PK_OP_ATTENTION_STATS || c->op == PK_OP_FORMULA_STATS)
        return;
    if (backward) {
        j->y = rows_of(&c->in[next], 0, 2, 1, 3);
        j->dy = rows_of(&c->in[next + 1], 0, 2, 1, 3);
        if (pk_phi_normalised(a->phi))
            j->sums_in = &c->in[next + 2];
        if (a->packed) {
            j->dq = j->dk = j->dv =
                (struct rows){c->out[0].data, j->nq * 3 * j->heads * j->d, j->d, 3 * j->heads * j->d, 1};
            if (c->out[0].data) {
                j->dk.p += j->heads * j->d;
                j->dv.p += 2 * j->heads * j->d;
            }
        } else {
            j->dq = rows_dense(c->out[0].data, j->nq, j->heads, j->d, false);
            j->dk = rows_dense(c->out[1].data, j->nk, j->heads, j->d, false);
            j->dv = rows_dense(c->out[2].data, j->nk, j->heads, j->d, false);
        }
    } else {
        j->y = rows_dense(c->out[0].data, j->nq, j->heads, j->d, true);
        if (pk_phi_normalised(a->phi))
            j->sums = c->out[1].data;
    }
    j->ld = j->d <= TILE ? TILE : j->d <= 2 * TILE ? 2 * TILE : cpu_round_up(j->d, W);
    j->keys = cpu_min(KEYS, cpu_max(1, j->nk));
    j->few = !backward && j->nq <= FEW_QUERIES && j->nk >= FEW_KEYS && j->q.sd == 1 && j->k.sd == 1 &&
             j->v.sd == 1 && !j->bias && !j->windows && !j->rng;
    /* The gradient of a bias is summed over the batch: tasks take runs of batches, so that there are few partial sums. */
    j->runs = backward && j->bias
                  ? cpu_max(1, cpu_min(j->batch, cpu_div_up(PAIRS_MANY, cpu_max(1, j->heads))))
                  : cpu_max(1, j->batch);
    if (backward || j->few)
        j->group = cpu_max(1, j->nq);
    else
        j->group = cpu_min(cpu_round_up(cpu_max(1, j->nq), TILE),
                           j->batch * j->heads >= PAIRS_MANY ? GROUP_MANY : GROUP_FEW);
    j->groups = cpu_max(1, cpu_div_up(j->nq, j->group));
}

/* Keys of batch b before the first that `length` masks. */
static inline int64_t keys_of(const struct attention *j, int64_t b)
{
    const struct pk_view *l = j->length;

    if (!l)
        return j->nk;
    return cpu_max(0,
                   cpu_min(j->nk, ((const int32_t *)l->data)[(l->shape.dim[0] == 1 ? 0 : b) * l->stride[0]]));
}

/* Causal: query i sees keys j <= i + shift. */
static inline int64_t shift_of(const struct attention *j, int64_t b)
{
    const struct pk_view *l = j->length;

    if (!l)
        return j->nk - j->nq;
    return ((const int32_t *)l->data)[(l->shape.dim[0] == 1 ? 0 : b) * l->stride[0]] - j->nq;
}

/* The factor of row_power on row i. */
static inline real row_factor(const struct attention *j, int64_t b, int64_t i)
{
    return (real)pow((double)cpu_max(1, i + 1 + shift_of(j, b)), -j->a->row_power);
}

static inline double factor_of(const struct attention *j, int64_t h)
{
    const struct pk_view *s = j->scale;

    if (!s)
        return j->a->scale;
    return j->a->scale * (double)((const real *)s->data)[(s->shape.dim[0] == 1 ? 0 : h) * s->stride[0]];
}
