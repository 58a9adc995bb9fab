/* Causal attention with a state of constant size instead of a cache of keys and values. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static bool counts(const struct pk_type *t, int64_t batch)
{
    return t->dtype == PK_I32 && t->shape.rank == 1 && (t->shape.dim[0] == 1 || t->shape.dim[0] == batch);
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_attention_attr *a = &attr->attention;
    const struct pk_shape *q = &in[0].shape;
    const struct pk_type *scale = a->has_scale ? &in[3] : NULL, *state = &in[n_in - 1];
    struct pk_shape want;

    if (n_in != 6 + a->has_scale)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", 6 + a->has_scale);
    if (!pk_phi_power(a->phi) || a->degree < 1 || a->degree > 2)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a state of constant size needs x^1 or x^2");
    if (!pk_dtype_is_float(in[0].dtype) || q->rank != 4 || !pk_shape_equal(q, &in[1].shape) ||
        !pk_shape_equal(q, &in[2].shape) || in[1].dtype != in[0].dtype || in[2].dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "needs q, k and v (B, H, n, d)");
    if (scale && (scale->shape.rank != 1 || (scale->shape.dim[0] != 1 && scale->shape.dim[0] != q->dim[1]) ||
                  scale->dtype != in[0].dtype))
        return pd_fail(why, PD_ERR_INVALID, "the scale must be (1) or (H)");
    if (!counts(&in[n_in - 3], q->dim[0]) || !counts(&in[n_in - 2], q->dim[0]))
        return pd_fail(why, PD_ERR_INVALID, "length and position must be i32 (1) or (B)");
    want = PK_SHAPE(q->dim[0], q->dim[1], pk_attention_features(a->degree, q->dim[3]), q->dim[3]);
    if (!pk_shape_equal(&state->shape, &want) || state->dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "the state must be (B, H, F, d)");
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(q->dim[0], q->dim[2], q->dim[1], q->dim[3])};
    ret_out[1] = *state;
    *ret_n_out = 2;
    return PD_OK;
}

static int32_t writes(const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    (void)attr;
    ret[0] = n_in - 1;
    return 1;
}

static int32_t through(int32_t n_in, int32_t out)
{
    return out == 1 ? n_in - 1 : -1;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    if (k < 3)
        return PK_WANT_GROUP;
    return k == n_in - 1 ? PK_WANT_ANY : PK_WANT_F32; /* the state keeps its type */
}

static enum pk_makes makes_of(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    (void)attr;
    (void)n_out;
    return k == 0 ? PK_MAKES_GROUP : PK_MAKES_NUMBER;
}

/* Updates of the state by keys, and reads by queries. */
static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    const struct pk_shape *q = &c->in[0].shape;
    int64_t features = pk_attention_features(c->attr->attention.degree, q->dim[3]);

    ret->flop = 4 * (double)q->dim[0] * (double)q->dim[1] * ((double)q->dim[2] * (double)features) *
                (double)q->dim[3];
}

const struct pk_rule pk_rule_attention_state = {.name = "attention_state",
                                                .min_in = 6,
                                                .max_in = 7,
                                                .kind = PK_KIND_ATTENTION,
                                                .infer = infer,
                                                .writes = writes,
                                                .through = through,
                                                .want_of = want_of,
                                                .makes_of = makes_of,
                                                .cost = cost};
