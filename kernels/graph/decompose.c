/* The fused ops by primitives, which defines them. These have derivatives of every order. */
#include "kernels/graph/build.h"

#include <math.h>
#include <stdlib.h>

#define LOW (-1e30) /* below every logit, in both precisions; never multiplied or raised to a power */

static uint32_t last_axis(struct pk_graph *g, struct pk_val x)
{
    int32_t rank = pk_shape_of(g, x).rank;

    return rank > 0 ? 1u << (rank - 1) : 0;
}

static bool floating(struct pk_graph *g, struct pk_val x, const char *who)
{
    if (!g || g->err != PD_OK)
        return false;
    if (!x.id || x.id >= g->n_value || pk_shape_of(g, x).rank < 1 || !pk_dtype_is_float(pk_dtype_of(g, x))) {
        pk_graph_fail(g, PD_ERR_INVALID, "%s needs rows of a float dtype", who);
        return false;
    }
    return true;
}

struct pk_val pk_norm_decomposed(struct pk_graph *g, struct pk_val x, struct pk_val gamma, struct pk_val beta,
                                 struct pk_norm_spec spec)
{
    struct pk_shape s = pk_shape_of(g, x);
    struct pk_val y;
    double width, eps;

    if (!floating(g, x, "norm"))
        return PK_NONE;
    width = (double)s.dim[s.rank - 1];
    if (pk_shape_of(g, gamma).rank != 1 || pk_shape_of(g, gamma).dim[0] != s.dim[s.rank - 1])
        return pk_graph_fail(g, PD_ERR_INVALID, "norm: the gain must be as long as a row");
    eps = spec.eps_mode == PK_EPS_SUM ? spec.eps / width : spec.eps;
    if (spec.kind == PK_NORM_LAYER)
        x = pk_sub(g, x, pk_mean(g, x, last_axis(g, x), true));
    y = pk_offset(g, pk_mean(g, pk_mul(g, x, x), last_axis(g, x), true), eps);
    y = pk_mul(g, pk_mul(g, x, pk_unary(g, PK_EX_RSQRT, y)), gamma);
    return beta.id ? pk_add(g, y, beta) : y;
}

struct pk_val pk_softmax_decomposed(struct pk_graph *g, struct pk_val x)
{
    struct pk_val e;

    if (!floating(g, x, "softmax"))
        return PK_NONE;
    e = pk_unary(g, PK_EX_EXP, pk_sub(g, x, pk_maximum(g, x, last_axis(g, x), true)));
    return pk_div(g, e, pk_sum(g, e, last_axis(g, e), true));
}

struct pk_val pk_iota(struct pk_graph *g, enum pk_dtype dtype, int64_t n)
{
    const bool wide = dtype == PK_F64;
    const size_t size = pk_dtype_size(wide ? PK_F64 : PK_F32);
    void *all = calloc((size_t)n + 1, size);
    struct pk_val x;

    if (!all)
        return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for %lld numbers", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        if (wide)
            ((double *)all)[i] = (double)i;
        else
            ((float *)all)[i] = (float)i;
    }
    x = pk_const(g, wide ? PK_F64 : PK_F32, PK_SHAPE(n), all);
    free(all);
    return pk_cast(g, x, dtype);
}

/* 1 - x, for x of 0 and 1 */
static struct pk_val not(struct pk_graph * g, struct pk_val x)
{
    return pk_offset(g, pk_scale(g, x, -1.0), 1.0);
}

struct pk_loss pk_cross_entropy_decomposed(struct pk_graph *g, struct pk_val logits, struct pk_val target,
                                           double smoothing, int32_t ignore)
{
    const struct pk_loss none = {PK_NONE, PK_NONE, PK_NONE};
    struct pk_shape s = pk_shape_of(g, logits);
    enum pk_dtype dtype = pk_dtype_of(g, logits);
    struct pk_val t, valid, top, lse, hot, at_y, loss, first, right;
    int64_t classes;

    if (!floating(g, logits, "cross_entropy"))
        return none;
    if (s.rank != 2 || pk_dtype_of(g, target) != PK_I32 || pk_shape_of(g, target).rank != 1 ||
        pk_shape_of(g, target).dim[0] != s.dim[0]) {
        pk_graph_fail(g, PD_ERR_INVALID, "cross_entropy needs logits (M, C) and i32 targets (M)");
        return none;
    }
    classes = s.dim[1];
    t = pk_reshape(g, pk_cast(g, target, dtype), PK_SHAPE(s.dim[0], 1));
    valid = not(g, pk_eq(g, t, pk_fill(g, dtype, PK_SHAPE(1), ignore)));
    top = pk_maximum(g, logits, 2, true);
    lse = pk_add(
        g, pk_unary(g, PK_EX_LOG, pk_sum(g, pk_unary(g, PK_EX_EXP, pk_sub(g, logits, top)), 2, true)), top);
    hot = pk_one_hot(g, target, classes, dtype);
    at_y = pk_sum(g, pk_mul(g, hot, logits), 2, true);
    loss = pk_scale(g, pk_sub(g, lse, at_y), 1.0 - smoothing);
    if (smoothing != 0.0)
        loss = pk_add(g, loss, pk_scale(g, pk_sub(g, lse, pk_mean(g, logits, 2, true)), smoothing));
    /* The first maximum: the smallest index of an entry that equals the maximum. */
    first = pk_select(g, pk_eq(g, logits, top), pk_scale(g, pk_iota(g, dtype, classes), -1.0),
                      pk_fill(g, dtype, PK_SHAPE(1), -(double)classes));
    right = pk_eq(g, pk_scale(g, pk_maximum(g, first, 2, true), -1.0), t);
    return (struct pk_loss){
        pk_reshape(g, pk_sum(g, pk_mul(g, loss, valid), 3, true), PK_SHAPE(1)),
        pk_reshape(g, pk_sum(g, valid, 3, true), PK_SHAPE(1)),
        pk_reshape(g, pk_sum(g, pk_mul(g, right, valid), 3, true), PK_SHAPE(1)),
    };
}

/* Which keys each query sees, as 0 and 1, broadcastable to (B, H, Nq, Nk); PK_NONE: all. */
static struct pk_val visible(struct pk_graph *g, const struct pk_attention_spec *spec, enum pk_dtype dtype,
                             int64_t b, int64_t nq, int64_t nk)
{
    struct pk_val see = PK_NONE, keys = PK_NONE, length = PK_NONE, part;

    if (spec->causal || spec->length.id)
        keys = pk_reshape(g, pk_iota(g, dtype, nk), PK_SHAPE(1, 1, 1, nk));
    if (spec->length.id) {
        int64_t n = pk_shape_of(g, spec->length).dim[0];

        length = pk_reshape(g, pk_cast(g, spec->length, dtype), PK_SHAPE(n, 1, 1, 1));
        see = pk_gt(g, length, keys);
    }
    if (spec->causal) {
        struct pk_val rows = pk_reshape(g, pk_iota(g, dtype, nq), PK_SHAPE(1, 1, nq, 1));

        /* Bottom-right: the last row sees the last key (or the last below length). */
        if (spec->length.id)
            rows = pk_add(g, rows, pk_offset(g, length, -(double)nq));
        else
            rows = pk_offset(g, rows, (double)(nk - nq));
        part = not(g, pk_gt(g, keys, rows));
        see = see.id ? pk_mul(g, see, part) : part;
    }
    if (spec->mask.id) {
        struct pk_shape m = pk_shape_of(g, spec->mask);

        part = pk_cast(g, spec->mask, dtype);
        if (m.rank == 2) {
            part = pk_reshape(g, part, PK_SHAPE(b, 1, 1, nk));
        } else { /* windows: batch b takes mask b % W */
            part = pk_broadcast(g, part, PK_SHAPE(b / m.dim[0], m.dim[0], nq, nk));
            part = pk_reshape(g, part, PK_SHAPE(b, 1, nq, nk));
        }
        see = see.id ? pk_mul(g, see, part) : part;
    }
    return see;
}

struct pk_val pk_softmax_visible(struct pk_graph *g, struct pk_val s, struct pk_val see)
{
    enum pk_dtype dtype = pk_dtype_of(g, s);
    struct pk_val low, zero, top, a, z;

    if (!see.id)
        return pk_softmax_decomposed(g, s);
    /* Hidden logits may have any value: mask before exp, and again after it. */
    low = pk_fill(g, dtype, PK_SHAPE(1), LOW);
    zero = pk_fill(g, dtype, PK_SHAPE(1), 0.0);
    top = pk_maximum(g, pk_select(g, see, s, low), 8, true);
    a = pk_mul(g, pk_unary(g, PK_EX_EXP, pk_select(g, see, pk_sub(g, s, top), zero)), see);
    z = pk_sum(g, a, 8, true);
    return pk_div(g, a, pk_add(g, z, pk_eq(g, z, zero))); /* a row without visible keys is 0 */
}

/* phi of logits, 0 where `see` is 0 (PK_NONE: all are visible); rows are divided by their sum if phi is normalised. */
static struct pk_val weights(struct pk_graph *g, const struct pk_attention_spec *spec, struct pk_val s,
                             struct pk_val see)
{
    struct pk_val a, z, zero;

    if (spec->formula.plan)
        return pk_formula_weights(g, spec, s, see);
    if (pk_phi_shifted(spec->phi))
        return pk_softmax_visible(g, s, see);
    a = pk_phi_decomposed(g, spec->phi, spec->degree, s);
    if (see.id)
        a = pk_mul(g, a, see);
    if (!pk_phi_normalised(spec->phi))
        return a;
    zero = pk_fill(g, pk_dtype_of(g, s), PK_SHAPE(1), 0.0);
    z = pk_sum(g, a, 8, true);
    return pk_div(g, a, pk_add(g, z, pk_eq(g, z, zero)));
}

/* Why q, k and the tensors of the spec do not fit each other; NULL if they do. */
static const char *misfit(struct pk_graph *g, struct pk_val q, struct pk_val k,
                          const struct pk_attention_spec *spec)
{
    const struct pk_shape sq = pk_shape_of(g, q), sk = pk_shape_of(g, k);

    if (sq.rank != 4 || sk.rank != 4 || sq.dim[0] != sk.dim[0] || sq.dim[1] != sk.dim[1] ||
        sq.dim[3] != sk.dim[3])
        return "attention needs q (B, H, Nq, d) and k, v (B, H, Nk, d)";
    if (!spec->formula.plan && pk_phi_power(spec->phi) && spec->degree < 1)
        return "attention: the degree must be at least 1";
    if (!spec->formula.plan && spec->scale_value.id &&
        (pk_shape_of(g, spec->scale_value).rank != 1 ||
         (pk_shape_of(g, spec->scale_value).dim[0] != 1 &&
          pk_shape_of(g, spec->scale_value).dim[0] != sq.dim[1])))
        return "attention: the scale must be (1) or (H)";
    if (spec->bias_value.id) {
        struct pk_shape have = pk_shape_of(g, spec->bias_value),
                        want = PK_SHAPE(sq.dim[1], sq.dim[2], sk.dim[2]);

        if (!pk_shape_equal(&have, &want))
            return "attention: the bias must be (H, Nq, Nk)";
    }
    if (spec->mask.id) {
        struct pk_shape m = pk_shape_of(g, spec->mask);
        bool keys = m.rank == 2 && m.dim[0] == sq.dim[0] && m.dim[1] == sk.dim[2];
        bool windows = m.rank == 3 && m.dim[0] >= 1 && sq.dim[0] % m.dim[0] == 0 && m.dim[1] == sq.dim[2] &&
                       m.dim[2] == sk.dim[2];

        if (pk_dtype_of(g, spec->mask) != PK_U8 || (!keys && !windows))
            return "attention: the mask must be u8 (B, Nk), or (W, Nq, Nk) with W dividing B";
    }
    if (spec->length.id &&
        (pk_dtype_of(g, spec->length) != PK_I32 || pk_shape_of(g, spec->length).rank != 1 ||
         (pk_shape_of(g, spec->length).dim[0] != 1 && pk_shape_of(g, spec->length).dim[0] != sq.dim[0])))
        return "attention: the length must be i32 (1) or (B)";
    if (!spec->formula.plan && spec->row_power != 0.0 && (!spec->causal || pk_phi_normalised(spec->phi)))
        return "attention: a power of the row's length needs causal rows that are not normalised";
    return NULL;
}

/* Length of each causal row to the power -spec->row_power, (1 or B, 1, Nq, 1). */
static struct pk_val row_factors(struct pk_graph *g, const struct pk_attention_spec *spec,
                                 enum pk_dtype dtype, int64_t nq, int64_t nk)
{
    struct pk_val rows = pk_reshape(g, pk_iota(g, dtype, nq), PK_SHAPE(1, 1, nq, 1)), last;

    if (spec->length.id)
        last = pk_offset(g,
                         pk_reshape(g, pk_cast(g, spec->length, dtype),
                                    PK_SHAPE(pk_shape_of(g, spec->length).dim[0], 1, 1, 1)),
                         1.0 - (double)nq);
    else
        last = pk_fill(g, dtype, PK_SHAPE(1), 1.0 + (double)(nk - nq));
    rows = pk_max2(g, pk_add(g, rows, last), pk_fill(g, dtype, PK_SHAPE(1), 1.0));
    return pk_unary(g, PK_EX_EXP, pk_scale(g, pk_unary(g, PK_EX_LOG, rows), -spec->row_power));
}

struct pk_attention_matrices pk_attention_matrices(struct pk_graph *g, struct pk_val q, struct pk_val k,
                                                   struct pk_attention_spec spec)
{
    const struct pk_attention_matrices none = {PK_NONE, PK_NONE, PK_NONE};
    const struct pk_shape sq = pk_shape_of(g, q), sk = pk_shape_of(g, k);
    const enum pk_dtype dtype = pk_dtype_of(g, q);
    struct pk_attention_matrices m = none;
    const char *wrong;

    if (!floating(g, q, "attention"))
        return none;
    wrong = misfit(g, q, k, &spec);
    if (wrong) {
        pk_graph_fail(g, PD_ERR_INVALID, "%s", wrong);
        return none;
    }
    m.logits = pk_scale(g, pk_matmul(g, q, pk_transpose(g, k)),
                        spec.tau != 0.0 ? spec.tau : 1.0 / sqrt((double)sq.dim[3]));
    if (spec.bias != 0.0 && !spec.formula.plan)
        m.logits = pk_offset(g, m.logits, spec.bias);
    if (spec.bias_value.id)
        m.logits = pk_add(g, m.logits, spec.bias_value);
    spec.formula.width = (double)sq.dim[3];
    m.visible = visible(g, &spec, dtype, sq.dim[0], sq.dim[2], sk.dim[2]);
    m.weights = weights(g, &spec, m.logits, m.visible);
    if (spec.formula.plan)
        return m;
    if (spec.scale != 1.0)
        m.weights = pk_scale(g, m.weights, spec.scale);
    if (spec.scale_value.id)
        m.weights =
            pk_mul(g, m.weights,
                   pk_reshape(g, spec.scale_value, PK_SHAPE(pk_shape_of(g, spec.scale_value).dim[0], 1, 1)));
    if (spec.row_power != 0.0)
        m.weights = pk_mul(g, m.weights, row_factors(g, &spec, dtype, sq.dim[2], sk.dim[2]));
    return m;
}

struct pk_val pk_attention_decomposed(struct pk_graph *g, struct pk_val q, struct pk_val k, struct pk_val v,
                                      struct pk_attention_spec spec, struct pk_val *ret_weights)
{
    static const int32_t order[4] = {0, 2, 1, 3};
    struct pk_val a = pk_attention_matrices(g, q, k, spec).weights;

    if (ret_weights)
        *ret_weights = a;
    if (!a.id)
        return PK_NONE;
    a = pk_dropout(g, a, spec.rng, spec.dropout, spec.stream);
    return pk_copy(g, pk_permute(g, pk_matmul(g, a, v), order));
}

struct pk_val pk_attention_weights(struct pk_graph *g, struct pk_val s, struct pk_attention_spec spec)
{
    struct pk_val a;

    if (!floating(g, s, "attention"))
        return PK_NONE;
    if (spec.formula.plan)
        return pk_formula_weights(g, &spec, s, PK_NONE);
    if (spec.bias != 0.0)
        s = pk_offset(g, s, spec.bias);
    a = pk_phi_shifted(spec.phi) ? pk_softmax(g, s) : weights(g, &spec, s, PK_NONE);
    if (spec.scale != 1.0)
        a = pk_scale(g, a, spec.scale);
    if (spec.scale_value.id)
        a = pk_mul(g, a,
                   pk_reshape(g, spec.scale_value, PK_SHAPE(pk_shape_of(g, spec.scale_value).dim[0], 1, 1)));
    return a;
}
