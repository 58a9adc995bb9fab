/* A dense copy of a view, also of another dtype. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    if ((unsigned)attr->copy.dtype >= PK_DTYPE_COUNT)
        return pd_fail(why, PD_ERR_INVALID, "unknown dtype");
    ret_out[0] = (struct pk_type){attr->copy.dtype, in[0].shape};
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    v->din[0] = pk_cast(v->g, v->dout[0], pk_dtype_of(v->g, v->in[0]));
}

static void retype(struct pk_attr *attr, enum pk_dtype dtype)
{
    attr->copy.dtype = dtype;
}

const struct pk_rule pk_rule_copy = {.name = "copy",
                                     .min_in = 1,
                                     .max_in = 1,
                                     .kind = PK_KIND_MOVEMENT,
                                     .infer = infer,
                                     .vjp = vjp,
                                     .want = PK_WANT_PASSED,
                                     .retype = retype};
