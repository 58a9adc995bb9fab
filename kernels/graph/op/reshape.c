/* Views the same elements, in the same order, with another shape. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    for (int32_t i = 0; i < attr->shape.rank; i++)
        if (attr->shape.dim[i] < 0)
            return pd_fail(why, PD_ERR_INVALID, "a negative extent");
    if (pk_shape_count(&in[0].shape) != pk_shape_count(&attr->shape)) {
        char to[128];

        return pd_fail(why, PD_ERR_INVALID, "to %s changes the number of elements",
                       pk_shape_text(&attr->shape, to, sizeof to));
    }
    ret_out[0] = (struct pk_type){in[0].dtype, attr->shape};
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    v->din[0] = pk_reshape(v->g, v->dout[0], pk_shape_of(v->g, v->in[0]));
}

static bool view(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v)
{
    (void)attr;
    return pk_value_reshape(x, &v->shape, v->stride);
}

const struct pk_rule pk_rule_reshape = {
    .name = "reshape", .min_in = 1, .max_in = 1, .infer = infer, .vjp = vjp, .view = view};
