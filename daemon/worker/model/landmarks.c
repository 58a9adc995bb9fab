/* daemon/worker/model/landmarks.c: attention through landmarks (Nystromformer, arXiv:2102.03902).
 *
 *   Q~, K~  means of n / m rows of Q and K each            (B, H, m, d)
 *   F2      phi(Q~ K~')                                    (B, H, m, m), the only matrix that is stored
 *   T       phi(Q~ K') V      attention of m rows          (B, H, m, d)
 *   Y       phi(Q K~') (Z T)  attention to m keys          (B, n, H, d), Z the pseudo-inverse of F2
 *
 * The matrices (n, m) and (m, n) live in tiles of the attention kernel alone. A factor c of phi is applied once, to Y:
 * with a start that scales as 1 / c, c F1 (c F2)^+ c F3 = c F1 F2^+ F3. F2 and everything made of it stay in f32. */
#include <math.h>
#include <stdlib.h>

#include "daemon/worker/model/net.h"

#define LEAST                                                                                                \
    1e-30 /* of what the start is divided by: the landmarks of padding alone are 0, and so is their F2 */

enum { BATCH = 1u << 0, HEADS = 1u << 1, ROWS = 1u << 2, COLUMNS = 1u << 3 };

/* x times the unit matrix (m, m), NULL without memory. */
static struct pk_val unit(struct pk_graph *g, enum pk_dtype dtype, int64_t m, double x)
{
    const bool wide = dtype == PK_F64;
    void *all = calloc((size_t)(m * m), sizeof(double));
    struct pk_val v;

    if (!all)
        return PK_NONE;
    for (int64_t i = 0; i < m; i++) {
        if (wide)
            ((double *)all)[i * m + i] = x;
        else
            ((float *)all)[i * m + i] = (float)x;
    }
    v = pk_const(g, wide ? PK_F64 : PK_F32, PK_SHAPE(m, m), all);
    free(all);
    return v;
}

/* The largest of the sums of x (B, H, m, m) over one of its last axes: of each matrix, (B, H, 1, 1), or with `groups`
 * of all matrices of each group of the batch. */
static struct pk_val largest_sum(struct pk_graph *g, struct pk_val x, uint32_t over, uint32_t rest,
                                 int64_t groups)
{
    const struct pk_shape s = pk_shape_of(g, x);

    x = pk_maximum_flow(g, pk_sum(g, x, over, true), rest, true);
    if (!groups)
        return x;
    x = pk_reshape(g, x, PK_SHAPE(groups, s.dim[0] / groups, s.dim[1]));
    x = pk_broadcast(g, pk_maximum_flow(g, x, 1u << 1 | 1u << 2, true),
                     PK_SHAPE(groups, s.dim[0] / groups, 1));
    return pk_reshape(g, pk_copy(g, x), PK_SHAPE(s.dim[0], 1, 1, 1));
}

static struct pk_val first_guess(struct pk_graph *g, struct pk_val f, enum model_pinv start, int64_t groups)
{
    struct pk_val by, size = f;

    if (start == MODEL_PINV_MATRIX_ABS)
        groups = 0;
    if (start != MODEL_PINV_GLOBAL_COLSUM)
        size = pk_unary(g, PK_EX_ABS, f);
    by = largest_sum(g, size, ROWS, COLUMNS, groups);
    if (start != MODEL_PINV_GLOBAL_COLSUM)
        by = pk_mul(g, by, largest_sum(g, size, COLUMNS, ROWS, groups));
    by = pk_max2(g, by, pk_fill(g, pk_dtype_of(g, f), PK_SHAPE(1), LEAST));
    return pk_div(g, pk_transpose(g, f), by);
}

struct pk_val net_pseudo_inverse(struct pk_graph *g, struct pk_val f, enum model_pinv start, int64_t groups,
                                 int32_t iterations)
{
    const enum pk_dtype dtype = pk_dtype_of(g, f);
    const int64_t m = pk_shape_of(g, f).dim[3];
    const struct pk_val i7 = unit(g, dtype, m, 7), i15 = unit(g, dtype, m, 15), i13 = unit(g, dtype, m, 13);
    struct pk_val z = first_guess(g, f, start, groups);

    for (int32_t i = 0; i < iterations; i++) {
        const struct pk_val fz = pk_matmul(g, f, z);
        struct pk_val x = pk_sub(g, i15, pk_matmul(g, fz, pk_sub(g, i7, fz)));

        x = pk_sub(g, i13, pk_matmul(g, fz, x));
        z = pk_scale(g, pk_matmul(g, z, x), 0.25);
    }
    return z;
}

/* Sums of squares as one number. */
static struct pk_val squares(struct pk_graph *g, struct pk_val x)
{
    return pk_reshape(g, pk_sum(g, pk_mul(g, x, x), BATCH | HEADS | ROWS | COLUMNS, true), PK_SHAPE(1));
}

struct pk_val net_inverse_residual(struct pk_graph *g, struct pk_val f, struct pk_val z)
{
    const struct pk_val off = pk_sub(g, pk_matmul(g, pk_matmul(g, f, z), f), f);
    const struct pk_val least = pk_fill(g, pk_dtype_of(g, f), PK_SHAPE(1), LEAST);

    return pk_unary(g, PK_EX_SQRT, pk_div(g, squares(g, off), pk_max2(g, squares(g, f), least)));
}

struct pk_val net_landmarks(struct pk_graph *g, struct pk_val x, int64_t m)
{
    const struct pk_shape s = pk_shape_of(g, x);

    x = pk_reshape(g, x, PK_SHAPE(s.dim[0], m, s.dim[1] / m, s.dim[2], s.dim[3]));
    return pk_mean(g, x, 1u << 2, false);
}

/* (B, n, H, d) -> (B, H, n, d) and back: a view. */
static struct pk_val heads_first(struct pk_graph *g, struct pk_val x)
{
    static const int32_t order[] = {0, 2, 1, 3};

    return pk_permute(g, x, order);
}

/* y (B, n, H, d) times c (1) or (H). */
static struct pk_val scaled(struct pk_graph *g, struct pk_val y, struct pk_val c)
{
    return c.id ? pk_mul(g, y, pk_reshape(g, c, PK_SHAPE(pk_shape_of(g, c).dim[0], 1))) : y;
}

struct net_nystrom net_nystrom(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                               const struct net_nystrom_spec *s)
{
    const int64_t n = pk_shape_of(g, q).dim[1], d = pk_shape_of(g, q).dim[3];
    struct pk_attention_spec outer = s->attention, inner = s->attention;
    struct net_nystrom r = {.y = PK_NONE};
    struct pk_val t, z;

    if (n <= s->landmarks) {
        r.y = pk_attention(g, heads_first(g, q), heads_first(g, k), heads_first(g, v), s->attention);
        return r;
    }
    outer.scale = inner.scale = 1;
    outer.scale_value = inner.scale_value = PK_NONE;
    inner.mask = s->attention.mask;
    outer.mask = PK_NONE; /* a landmark is never hidden */
    r.q = heads_first(g, net_landmarks(g, q, s->landmarks));
    r.k = heads_first(g, net_landmarks(g, k, s->landmarks));
    pk_graph_exact(g, true);
    {
        struct pk_attention_spec middle = outer;

        if (s->apply == MODEL_APPLY_F1F3) {
            middle.phi = pk_phi_find("softmax");
            middle.bias = 0;
        }
        z = pk_scale(g, pk_matmul(g, r.q, pk_transpose(g, r.k)), 1 / sqrt((double)d));
        r.f2 = pk_attention_weights(g, z, middle);
    }
    r.z = net_pseudo_inverse(g, r.f2, s->start, s->groups ? s->groups : 1, s->iterations);
    pk_graph_exact(g, false);
    t = heads_first(g, pk_attention(g, r.q, heads_first(g, k), heads_first(g, v), inner));
    pk_graph_exact(g, true);
    t = pk_matmul(g, r.z, t);
    pk_graph_exact(g, false);
    r.y = pk_attention(g, heads_first(g, q), r.k, t, outer);
    if (s->attention.scale != 1)
        r.y =
            pk_scale(g, r.y, s->apply == MODEL_APPLY_F1F3 ? pow(s->attention.scale, 2) : s->attention.scale);
    r.y = scaled(g, r.y, s->attention.scale_value);
    if (s->apply == MODEL_APPLY_F1F3)
        r.y = scaled(g, r.y, s->attention.scale_value);
    return r;
}

struct pk_val net_sequence_convolution(struct pk_graph *g, struct pk_val x, struct pk_val w)
{
    const struct pk_shape s = pk_shape_of(g, x), k = pk_shape_of(g, w); /* (B, n, H, d), (H, 1, k, 1) */
    static const int32_t order[] = {1, 0};

    w = pk_permute(g, pk_reshape(g, w, PK_SHAPE(k.dim[0], k.dim[2])), order);
    w = pk_broadcast(g, pk_reshape(g, w, PK_SHAPE(k.dim[2], 1, s.dim[2], 1)),
                     PK_SHAPE(k.dim[2], 1, s.dim[2], s.dim[3]));
    w = pk_reshape(g, pk_copy(g, w), PK_SHAPE(k.dim[2], 1, s.dim[2] * s.dim[3]));
    x = pk_reshape(g, x, PK_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2] * s.dim[3]));
    return pk_reshape(g, pk_dwconv2d(g, x, w), s);
}
