/* The sum over ranks. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)n_in;
    if (in[0].dtype == PK_U8)
        return pd_fail(why, PD_ERR_INVALID, "bytes cannot be summed over ranks");
    if (attr->ranks.root < -1)
        return pd_fail(why, PD_ERR_INVALID, "root %d is not a rank", attr->ranks.root);
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

/* Every rank's result depends on every rank's x, and the loss is the sum of the ranks' shares. */
static void vjp(struct pk_vjp *v)
{
    if (v->attr->ranks.root >= 0)
        pk_graph_fail(v->g, PD_ERR_UNSUPPORTED, "a sum on one rank only has no derivative");
    else
        v->din[0] = pk_all_reduce(v->g, v->dout[0], -1);
}

const struct pk_rule pk_rule_all_reduce = {.name = "all_reduce",
                                           .min_in = 1,
                                           .max_in = 1,
                                           .kind = PK_KIND_RANKS,
                                           .ranks = true,
                                           .infer = infer,
                                           .vjp = vjp,
                                           .shares = pk_shares_first,
                                           .want = PK_WANT_OUTPUT};
