/* A range of one axis; its transpose is PAD. */
#include <string.h>

#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    int32_t axis = attr->slice.axis;

    (void)n_in;
    if (axis < 0 || axis >= in[0].shape.rank)
        return pd_fail(why, PD_ERR_INVALID, "there is no axis %d", axis);
    if (attr->slice.start < 0 || attr->slice.extent < 0 ||
        attr->slice.start > in[0].shape.dim[axis] - attr->slice.extent)
        return pd_fail(why, PD_ERR_INVALID, "%lld elements from %lld on are outside axis %d",
                       (long long)attr->slice.extent, (long long)attr->slice.start, axis);
    ret_out[0] = in[0];
    ret_out[0].shape.dim[axis] = attr->slice.extent;
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_shape whole = pk_shape_of(v->g, v->in[0]);

    a.pad.axis = v->attr->slice.axis;
    a.pad.start = v->attr->slice.start;
    a.pad.extent = whole.dim[a.pad.axis];
    if (v->attr->slice.extent == a.pad.extent)
        v->din[0] = v->dout[0];
    else
        v->din[0] = pk_emit(v->g, PK_OP_PAD, &a, &v->dout[0], 1, NULL);
}

static bool view(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v)
{
    memcpy(v->stride, x->stride, sizeof v->stride);
    v->offset += attr->slice.start * x->stride[attr->slice.axis];
    return true;
}

const struct pk_rule pk_rule_slice = {
    .name = "slice", .min_in = 1, .max_in = 1, .infer = infer, .vjp = vjp, .view = view};
