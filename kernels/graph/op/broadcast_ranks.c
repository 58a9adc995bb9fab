/* A leaf takes the value that it has on one rank. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)in;
    (void)n_in;
    (void)ret_out;
    if (attr->ranks.root < 0)
        return pd_fail(why, PD_ERR_INVALID, "root %d is not a rank", attr->ranks.root);
    *ret_n_out = 0;
    return PD_OK;
}

const struct pk_rule pk_rule_broadcast_ranks = {.name = "broadcast_ranks",
                                                .min_in = 1,
                                                .max_in = 1,
                                                .kind = PK_KIND_RANKS,
                                                .ranks = true,
                                                .infer = infer,
                                                .writes = pk_writes_first};
