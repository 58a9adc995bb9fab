/* Softmax over the last axis, and its fused derivative. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)attr;
    if (!pk_dtype_is_float(in[0].dtype) || in[0].shape.rank < 1)
        return pd_fail(why, PD_ERR_INVALID, "needs rows of a float dtype");
    if (n_in == 2 && (in[1].dtype != in[0].dtype || !pk_shape_equal(&in[0].shape, &in[1].shape)))
        return pd_fail(why, PD_ERR_INVALID, "needs y and dy of one shape");
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {v->out[0], v->dout[0]};

    v->din[0] = pk_emit(v->g, PK_OP_SOFTMAX_BWD, &a, in, 2, NULL);
}

const struct pk_rule pk_rule_softmax = {
    .name = "softmax", .min_in = 1, .max_in = 1, .kind = PK_KIND_LOSS, .infer = infer, .vjp = vjp};

/* dx = y (dy - sum(dy y)) */
static void vjp_bwd(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    struct pk_val y = pk_alias(g, v->in[0]), dy = pk_alias(g, v->in[1]);
    uint32_t last = 1u << (pk_shape_of(g, y).rank - 1);
    struct pk_val dx = pk_mul(g, y, pk_sub(g, dy, pk_sum(g, pk_mul(g, dy, y), last, true)));
    struct pk_val wrt[2] = {y, dy}, d[2];

    pk_grad_many(g, &dx, &v->dout[0], 1, wrt, 2, d);
    v->din[0] = d[0];
    v->din[1] = d[1];
}

const struct pk_rule pk_rule_softmax_bwd = {
    .name = "softmax_bwd", .min_in = 2, .max_in = 2, .kind = PK_KIND_LOSS, .infer = infer, .vjp = vjp_bwd};
