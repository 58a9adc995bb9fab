/* SGD with momentum and decoupled decay (timm), in place. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    return pk_rule_adamw.infer(attr, in, n_in, ret_out, ret_n_out, why);
}

static int32_t writes(const struct pk_attr *attr, int32_t n_in, int32_t *ret)
{
    int32_t n = 0;

    ret[n++] = 0;
    ret[n++] = 2;
    if (attr->optim.ema > 0)
        ret[n++] = n_in - 1 - attr->optim.copy;
    if (attr->optim.copy)
        ret[n++] = n_in - 1;
    return n;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    return pk_rule_adamw.want_of(attr, n_in, k);
}

const struct pk_rule pk_rule_msgdw = {.name = "msgdw",
                                      .min_in = 5,
                                      .max_in = 7,
                                      .kind = PK_KIND_OPTIMISER,
                                      .infer = infer,
                                      .updates = true,
                                      .writes = writes,
                                      .want_of = want_of};
