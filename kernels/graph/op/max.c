/* The largest over axes. No derivative: it is used where it cancels. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    if (attr->reduce.axes)
        for (int32_t i = 0; i < in[0].shape.rank; i++)
            if ((attr->reduce.axes & (1u << i)) && in[0].shape.dim[i] == 0)
                return pd_fail(why, PD_ERR_INVALID, "the largest of no elements");
    return pk_rule_sum.infer(attr, in, n_in, ret_out, ret_n_out, why);
}

const struct pk_rule pk_rule_max = {.name = "max",
                                    .min_in = 1,
                                    .max_in = 1,
                                    .kind = PK_KIND_SUM,
                                    .infer = infer,
                                    .vjp = pk_vjp_zero,
                                    .makes = PK_MAKES_SUMS};
