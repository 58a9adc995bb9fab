/* The sum of squares of many tensors: the norm of a gradient. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    (void)attr;
    for (int32_t i = 0; i < n_in; i++)
        if (!pk_dtype_is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(1)};
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    for (int32_t i = 0; i < v->n_in; i++)
        if (v->need[i]) {
            struct pk_shape shape = pk_shape_of(v->g, v->in[i]);
            struct pk_val d = pk_reshape(v->g, v->dout[0], (struct pk_shape){.rank = 0});

            v->din[i] = pk_mul(v->g, pk_scale(v->g, v->in[i], 2.0), pk_broadcast(v->g, d, shape));
        }
}

const struct pk_rule pk_rule_sumsq = {.name = "sumsq",
                                      .min_in = 1,
                                      .max_in = -1,
                                      .kind = PK_KIND_OPTIMISER,
                                      .infer = infer,
                                      .vjp = vjp,
                                      .want = PK_WANT_BITS,
                                      .makes = PK_MAKES_NUMBER};
