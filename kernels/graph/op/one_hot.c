/* Indices as unit vectors. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    if (in[0].dtype != PK_I32 || in[0].shape.rank == PK_MAX_RANK || attr->one_hot.classes < 1 ||
        (unsigned)attr->one_hot.dtype >= PK_DTYPE_COUNT)
        return pd_fail(why, PD_ERR_INVALID, "needs an i32 index and at least one class");
    ret_out[0] = (struct pk_type){attr->one_hot.dtype, in[0].shape};
    ret_out[0].shape.dim[ret_out[0].shape.rank++] = attr->one_hot.classes;
    *ret_n_out = 1;
    return PD_OK;
}

const struct pk_rule pk_rule_one_hot = {.name = "one_hot",
                                        .min_in = 1,
                                        .max_in = 1,
                                        .kind = PK_KIND_EMBEDDING,
                                        .infer = infer,
                                        .vjp = pk_vjp_zero,
                                        .makes = PK_MAKES_NUMBER};
