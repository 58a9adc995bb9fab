/* SGD with momentum and decoupled decay (timm), in place. */
#include "kernels/graph/build.h"
#include "kernels/ops/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    return pk_rule_adamw.infer(attr, in, n_in, ret_out, ret_n_out, why);
}

const struct pk_rule pk_rule_msgdw = {
    .name = "msgdw", .min_in = 5, .max_in = 7, .in_place = true, .infer = infer};
