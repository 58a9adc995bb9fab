/* Reorders axes. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    uint32_t seen = 0;

    (void)n_in;
    ret_out[0] = in[0];
    for (int32_t i = 0; i < in[0].shape.rank; i++) {
        int32_t a = attr->permute.axis[i];

        if (a < 0 || a >= in[0].shape.rank || (seen & (1u << a)))
            return pd_fail(why, PD_ERR_INVALID, "the axes are not a permutation");
        seen |= 1u << a;
        ret_out[0].shape.dim[i] = in[0].shape.dim[a];
    }
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    int32_t back[PK_MAX_RANK] = {0};
    int32_t rank = pk_shape_of(v->g, v->in[0]).rank;

    for (int32_t i = 0; i < rank; i++)
        back[v->attr->permute.axis[i]] = i;
    v->din[0] = pk_permute(v->g, v->dout[0], back);
}

static bool view(const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v)
{
    for (int32_t i = 0; i < v->shape.rank; i++)
        v->stride[i] = x->stride[attr->permute.axis[i]];
    return true;
}

const struct pk_rule pk_rule_permute = {
    .name = "permute", .min_in = 1, .max_in = 1, .infer = infer, .vjp = vjp, .view = view};
