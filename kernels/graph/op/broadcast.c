/* Axes repeated without being stored; the transpose is SUM. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct pk_shape both;

    (void)n_in;
    if (!pk_shape_broadcast(&in[0].shape, &attr->shape, &both) || !pk_shape_equal(&both, &attr->shape)) {
        char to[128];

        return pd_fail(why, PD_ERR_INVALID, "does not broadcast to %s",
                       pk_shape_text(&attr->shape, to, sizeof to));
    }
    ret_out[0] = (struct pk_type){in[0].dtype, attr->shape};
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    v->din[0] = pk_sum_to(v->g, v->dout[0], pk_shape_of(v->g, v->in[0]));
}

static bool view(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v)
{
    int32_t lead = v->shape.rank - x->shape.rank;

    (void)attr;
    for (int32_t i = 0; i < x->shape.rank; i++)
        v->stride[lead + i] = x->shape.dim[i] == v->shape.dim[lead + i] ? x->stride[i] : 0;
    return true;
}

const struct pk_rule pk_rule_broadcast = {
    .name = "broadcast", .min_in = 1, .max_in = 1, .infer = infer, .vjp = vjp, .view = view};
