/* Adds to a state in place: sums the gradients of several runs. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)attr;
    (void)ret_out;
    for (int32_t i = 0; i < n_in; i++)
        if (!pk_dtype_is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
    if (!pk_shape_equal(&in[0].shape, &in[1].shape))
        return pd_fail(why, PD_ERR_INVALID, "the input must have the shape of the state");
    if (pk_shape_count(&in[2].shape) != 1)
        return pd_fail(why, PD_ERR_INVALID, "the last input must be (1)");
    *ret_n_out = 0;
    return PD_OK;
}

const struct pk_rule pk_rule_accumulate = {.name = "accumulate",
                                           .min_in = 3,
                                           .max_in = 3,
                                           .kind = PK_KIND_OPTIMISER,
                                           .infer = infer,
                                           .writes = pk_writes_first,
                                           .want = PK_WANT_BITS};
