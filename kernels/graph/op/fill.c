/* One value everywhere. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)in;
    (void)n_in;
    if ((unsigned)attr->fill.dtype >= PK_DTYPE_COUNT)
        return pd_fail(why, PD_ERR_INVALID, "unknown dtype");
    if (attr->shape.rank < 0 || attr->shape.rank > PK_MAX_RANK)
        return pd_fail(why, PD_ERR_INVALID, "rank %d", attr->shape.rank);
    for (int32_t i = 0; i < attr->shape.rank; i++)
        if (attr->shape.dim[i] < 0)
            return pd_fail(why, PD_ERR_INVALID, "a negative extent");
    ret_out[0] = (struct pk_type){attr->fill.dtype, attr->shape};
    *ret_n_out = 1;
    return PD_OK;
}

const struct pk_rule pk_rule_fill = {
    .name = "fill", .min_in = 0, .max_in = 0, .kind = PK_KIND_MOVEMENT, .infer = infer, .vjp = pk_vjp_zero};
