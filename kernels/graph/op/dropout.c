/* Dropout and stochastic depth. Linear in x, so the derivative is the op itself, with the mask drawn again.
 */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    if (!pk_dtype_is_float(in[0].dtype) || in[0].shape.rank < 1)
        return pd_fail(why, PD_ERR_INVALID, "needs rows of a float dtype");
    if (in[1].dtype != PK_I32 || in[1].shape.rank != 1 ||
        (in[1].shape.dim[0] != 3 && in[1].shape.dim[0] != 4))
        return pd_fail(why, PD_ERR_INVALID,
                       "the generator's input must be i32 (3): seed low, seed high, step; or (4): and share");
    if (!(attr->dropout.rate >= 0.0 && attr->dropout.rate < 1.0))
        return pd_fail(why, PD_ERR_INVALID, "rate %g; at least 0 and below 1", attr->dropout.rate);
    if (attr->dropout.stream >= 0x80000000u)
        return pd_fail(why, PD_ERR_INVALID, "stream %u is not below 2^31", attr->dropout.stream);
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_val in[2] = {v->dout[0], v->in[1]};

    v->din[0] = pk_emit(v->g, PK_OP_DROPOUT, v->attr, in, 2, NULL);
}

const struct pk_rule pk_rule_dropout = {.name = "dropout",
                                        .min_in = 2,
                                        .max_in = 2,
                                        .kind = PK_KIND_ELEMENTWISE,
                                        .infer = infer,
                                        .vjp = vjp,
                                        .shares = pk_shares_first,
                                        .want = PK_WANT_PASSED};
