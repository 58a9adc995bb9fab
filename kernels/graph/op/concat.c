/* Concatenates tensors along an axis; the transpose is one SLICE per input. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    int32_t axis = attr->concat.axis;

    if (axis < 0 || axis >= in[0].shape.rank)
        return pd_fail(why, PD_ERR_INVALID, "there is no axis %d", axis);
    ret_out[0] = in[0];
    for (int32_t i = 1; i < n_in; i++) {
        struct pk_shape s = in[i].shape;

        if (in[i].dtype != in[0].dtype || s.rank != in[0].shape.rank)
            return pd_fail(why, PD_ERR_INVALID, "input %d differs in dtype or rank", i);
        ret_out[0].shape.dim[axis] += s.dim[axis];
        s.dim[axis] = in[0].shape.dim[axis];
        if (!pk_shape_equal(&s, &in[0].shape))
            return pd_fail(why, PD_ERR_INVALID, "input %d differs in another axis than %d", i, axis);
    }
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    int64_t at = 0;

    for (int32_t i = 0; i < v->n_in; i++) {
        int64_t extent = pk_shape_of(v->g, v->in[i]).dim[v->attr->concat.axis];

        if (v->need[i])
            v->din[i] = pk_slice(v->g, v->dout[0], v->attr->concat.axis, at, extent);
        at += extent;
    }
}

const struct pk_rule pk_rule_concat = {.name = "concat",
                                       .min_in = 1,
                                       .max_in = -1,
                                       .kind = PK_KIND_MOVEMENT,
                                       .infer = infer,
                                       .vjp = vjp,
                                       .want = PK_WANT_PASSED};
