/* tests/reference/internal.h: elements of tensors as doubles, and the ops of the files of this module. */
#pragma once

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/reference/reference.h"

static inline int64_t count(const struct pk_view *v)
{
    int64_t n = 1;

    for (int i = 0; i < v->shape.rank; i++)
        n *= v->shape.dim[i];
    return n;
}

/* Row-major position -> place in memory. */
static inline int64_t place(const struct pk_view *v, int64_t at)
{
    int64_t p = 0;

    for (int i = v->shape.rank; i-- > 0;) {
        p += at % v->shape.dim[i] * v->stride[i];
        at /= v->shape.dim[i];
    }
    return p;
}

static inline double load(const struct pk_view *v, int64_t p)
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

static inline void store(const struct pk_view *v, int64_t p, double x)
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

static inline double get(const struct pk_view *v, int64_t at)
{
    return load(v, place(v, at));
}

static inline void put(const struct pk_view *v, int64_t at, double x)
{
    store(v, place(v, at), x);
}

/* A copy of a whole tensor, row-major; so that in-place outputs cannot disturb what is still read. */
static inline double *all(const struct pk_view *v)
{
    int64_t n = count(v);
    double *x = malloc(((size_t)n + 1) * sizeof *x);

    assert(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = get(v, i);
    return x;
}

static inline int64_t last(const struct pk_view *v)
{
    return v->shape.dim[v->shape.rank - 1];
}

void ref_copy(const struct pk_call *c);
void ref_fill(const struct pk_call *c);
void ref_concat(const struct pk_call *c);
void ref_pad(const struct pk_call *c);
void ref_one_hot(const struct pk_call *c);
void ref_expr(const struct pk_call *c);
void ref_reduce(const struct pk_call *c);
void ref_sumsq(const struct pk_call *c);
void ref_matmul(const struct pk_call *c);
void ref_norm(const struct pk_call *c);
void ref_norm_bwd(const struct pk_call *c);
void ref_softmax(const struct pk_call *c);
void ref_softmax_bwd(const struct pk_call *c);
void ref_dropout(const struct pk_call *c);
void ref_attention(const struct pk_call *c);
void ref_attention_bwd(const struct pk_call *c);
void ref_attention_second(const struct pk_call *c); /* ATTENTION_JVP and ATTENTION_BWD2 */
void ref_attention_state(const struct pk_call *c);
void ref_attention_stats(const struct pk_call *c);
void ref_adamw(const struct pk_call *c);
void ref_msgdw(const struct pk_call *c);
void ref_accumulate(const struct pk_call *c);
void ref_blend(const struct pk_call *c);
void ref_conv2d(const struct pk_call *c);
void ref_dwconv2d(const struct pk_call *c);
enum pd_err ref_gather(const struct pk_call *c, struct pd_why *why);
enum pd_err ref_scatter_add(const struct pk_call *c, struct pd_why *why);
enum pd_err ref_cross_entropy(const struct pk_call *c, struct pd_why *why);
enum pd_err ref_cross_entropy_bwd(const struct pk_call *c, struct pd_why *why);
enum pd_err ref_cross_entropy_grad(const struct pk_call *c, struct pd_why *why);
enum pd_err ref_cache_append(const struct pk_call *c, struct pd_why *why);

/* ---- what the ops of attention begin and end with ---- */

struct attention {
    struct pk_attention_attr a;
    int64_t b, h, nq, nk, d;
    double *q, *k, *v; /* each (B, H, N, d) */
    const struct pk_view *scale, *bias, *mask, *length, *rng;
    int after; /* the first input that ATTENTION does not have */
};

struct attention ref_attention_open(const struct pk_call *c);
void ref_attention_close(struct attention *t);
bool ref_sees(const struct attention *t, int64_t b, int64_t i, int64_t j);
/* What dropout makes of a weight: a factor. */
double ref_dropout_factor(const struct attention *t, int64_t b, int64_t h, int64_t i, int64_t j);
/* dq (B, H, Nq, d), dk and dv into the first outputs. */
void ref_put_gradients(const struct pk_call *c, const struct attention *t, const double *dq, const double *dk,
                       const double *dv);
void ref_formula(const struct pk_call *c);
void ref_formula_bwd(const struct pk_call *c);
void ref_formula_stats(const struct pk_call *c);

/* Whether PK_OP_DROPOUT keeps a column of a row; the generator itself is checked against published answers in
 * tests/data. */
bool ref_dropout_mask(const struct pk_view *rng, double rate, uint32_t stream, int64_t rows, int64_t row,
                      int64_t column);
