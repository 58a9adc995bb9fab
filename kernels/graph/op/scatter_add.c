/* Rows added into a table by index; the transpose of GATHER. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct pk_shape rows = in[1].shape;

    if (in[0].dtype != PK_I32 || !pk_dtype_is_float(in[1].dtype) || rows.rank < 1)
        return pd_fail(why, PD_ERR_INVALID, "needs an i32 index and float rows");
    rows.rank--;
    if (!pk_shape_equal(&rows, &in[0].shape))
        return pd_fail(why, PD_ERR_INVALID, "needs one row for each index");
    ret_out[0] = (struct pk_type){in[1].dtype, PK_SHAPE(attr->scatter_add.rows, in[1].shape.dim[rows.rank])};
    if (n_in == 3 && (in[2].dtype != in[1].dtype || !pk_shape_equal(&in[2].shape, &ret_out[0].shape)))
        return pd_fail(why, PD_ERR_INVALID, "the base has another shape than the result");
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    if (v->need[1])
        v->din[1] = pk_gather(v->g, v->dout[0], v->in[0]);
    if (v->n_in == 3)
        v->din[2] = v->dout[0];
}

static int32_t shares(const struct pk_attr *attr, int32_t n_in)
{
    (void)attr;
    return n_in == 3 ? 2 : -1;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 2 ? PK_WANT_OUTPUT : PK_WANT_ANY;
}

const struct pk_rule pk_rule_scatter_add = {.name = "scatter_add",
                                            .min_in = 2,
                                            .max_in = 3,
                                            .kind = PK_KIND_EMBEDDING,
                                            .infer = infer,
                                            .vjp = vjp,
                                            .shares = shares,
                                            .want_of = want_of,
                                            .makes = PK_MAKES_NUMBER};
