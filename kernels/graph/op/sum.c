/* Sums over axes; the transpose repeats. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    if (!pk_dtype_is_float(in[0].dtype))
        return pd_fail(why, PD_ERR_INVALID, "needs a float input");
    if (attr->reduce.axes >> in[0].shape.rank)
        return pd_fail(why, PD_ERR_INVALID, "names an axis that is not there");
    ret_out[0] = (struct pk_type){.dtype = in[0].dtype};
    for (int32_t i = 0; i < in[0].shape.rank; i++) {
        bool gone = attr->reduce.axes & (1u << i);

        if (!gone || attr->reduce.keep)
            ret_out[0].shape.dim[ret_out[0].shape.rank++] = gone ? 1 : in[0].shape.dim[i];
    }
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_shape whole = pk_shape_of(v->g, v->in[0]), kept = whole;

    for (int32_t i = 0; i < whole.rank; i++)
        if (v->attr->reduce.axes & (1u << i))
            kept.dim[i] = 1;
    v->din[0] = pk_broadcast(v->g, pk_reshape(v->g, v->dout[0], kept), whole);
}

const struct pk_rule pk_rule_sum = {.name = "sum",
                                    .min_in = 1,
                                    .max_in = 1,
                                    .kind = PK_KIND_SUM,
                                    .infer = infer,
                                    .vjp = vjp,
                                    .makes = PK_MAKES_SUMS};
