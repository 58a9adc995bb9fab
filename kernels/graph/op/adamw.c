/* AdamW, in place on parameter and moments. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    int32_t states;

    if (attr->optim.copy) {
        if (in[0].dtype != PK_F32 || in[n_in - 1].dtype != PK_BF16 ||
            !pk_shape_equal(&in[n_in - 1].shape, &in[0].shape))
            return pd_fail(why, PD_ERR_INVALID, "the copy must be bf16 and have the parameter's shape");
        n_in--;
    }
    states = n_in - 2 - (attr->optim.ema > 0); /* p, g, m (, v) before hyper and gate */
    for (int32_t i = 0; i < n_in; i++)
        if (!pk_dtype_is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
    for (int32_t i = 1; i < states; i++)
        if (!pk_shape_equal(&in[i].shape, &in[0].shape))
            return pd_fail(why, PD_ERR_INVALID, "gradient and moments must have the parameter's shape");
    if (attr->optim.ema > 0 && !pk_shape_equal(&in[n_in - 1].shape, &in[0].shape))
        return pd_fail(why, PD_ERR_INVALID, "the average must have the parameter's shape");
    if (pk_shape_count(&in[states].shape) != 4 || pk_shape_count(&in[states + 1].shape) != 2)
        return pd_fail(why, PD_ERR_INVALID, "hyper must be (4) and gate (2)");
    if (!(attr->optim.ema >= 0 && attr->optim.ema < 1))
        return pd_fail(why, PD_ERR_INVALID, "the decay of the average, %g, is not in [0, 1)",
                       attr->optim.ema);
    (void)ret_out;
    *ret_n_out = 0;
    return PD_OK;
}

static int32_t writes(const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    int32_t n = 0;

    ret[n++] = 0;
    ret[n++] = 2;
    ret[n++] = 3;
    if (attr->optim.ema > 0)
        ret[n++] = n_in - 1 - attr->optim.copy;
    if (attr->optim.copy)
        ret[n++] = n_in - 1;
    return n;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 1 ? PK_WANT_BITS : PK_WANT_F32;
}

const struct pk_rule pk_rule_adamw = {.name = "adamw",
                                      .min_in = 6,
                                      .max_in = 8,
                                      .kind = PK_KIND_OPTIMISER,
                                      .infer = infer,
                                      .updates = true,
                                      .writes = writes,
                                      .want_of = want_of};
