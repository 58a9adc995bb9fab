/* A running average, or a copy, written in place: for averages of parameters. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    if (!(attr->optim.ema >= 0 && attr->optim.ema < 1))
        return pd_fail(why, PD_ERR_INVALID, "the decay %g is not in [0, 1)", attr->optim.ema);
    return pk_rule_accumulate.infer(attr, in, n_in, ret_out, ret_n_out, why);
}

const struct pk_rule pk_rule_blend = {.name = "blend",
                                      .min_in = 3,
                                      .max_in = 3,
                                      .kind = PK_KIND_OPTIMISER,
                                      .infer = infer,
                                      .writes = pk_writes_first,
                                      .want = PK_WANT_BITS};
