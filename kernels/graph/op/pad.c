/* A tensor placed in a larger one of zeros; the transpose of SLICE. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    int32_t axis = attr->pad.axis;

    (void)n_in;
    if (axis < 0 || axis >= in[0].shape.rank)
        return pd_fail(why, PD_ERR_INVALID, "there is no axis %d", axis);
    if (attr->pad.start < 0 || attr->pad.start > attr->pad.extent - in[0].shape.dim[axis])
        return pd_fail(why, PD_ERR_INVALID, "does not fit at %lld of %lld", (long long)attr->pad.start,
                       (long long)attr->pad.extent);
    ret_out[0] = in[0];
    ret_out[0].shape.dim[axis] = attr->pad.extent;
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    int32_t axis = v->attr->pad.axis;

    v->din[0] = pk_slice(v->g, v->dout[0], axis, v->attr->pad.start, pk_shape_of(v->g, v->in[0]).dim[axis]);
}

const struct pk_rule pk_rule_pad = {.name = "pad",
                                    .min_in = 1,
                                    .max_in = 1,
                                    .kind = PK_KIND_MOVEMENT,
                                    .infer = infer,
                                    .vjp = vjp,
                                    .want = PK_WANT_PASSED};
