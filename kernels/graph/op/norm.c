/* LayerNorm and RMSNorm over the last axis (kernels/ATTENTION.md 10), and their fused derivative. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err check(const struct pk_type *in, int32_t n_in, struct pd_why *why)
{
    const struct pk_shape *x = &in[0].shape;

    for (int32_t i = 0; i < n_in; i++)
        if (!pk_dtype_is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
    if (x->rank < 1 || x->dim[x->rank - 1] < 1)
        return pd_fail(why, PD_ERR_INVALID, "needs rows of at least one element");
    if (in[1].shape.rank != 1 || in[1].shape.dim[0] != x->dim[x->rank - 1])
        return pd_fail(why, PD_ERR_INVALID, "the gain must be as long as a row");
    return PD_OK;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    enum pd_err err = check(in, n_in, why);
    bool layer = attr->norm.kind == PK_NORM_LAYER;

    if (err != PD_OK)
        return err;
    if (n_in != 2 + attr->norm.has_beta)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", 2 + attr->norm.has_beta);
    if (attr->norm.has_beta && !pk_shape_equal(&in[2].shape, &in[1].shape))
        return pd_fail(why, PD_ERR_INVALID, "the offset must be as long as a row");
    if (attr->norm.eps < 0.0)
        return pd_fail(why, PD_ERR_INVALID, "eps is negative");
    ret_out[0] = in[0];
    ret_out[1] = in[0];
    ret_out[1].shape.rank--;
    ret_out[2] = ret_out[1];
    *ret_n_out = layer ? 3 : 2;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_val in[5] = {v->in[0], v->in[1], v->dout[0], v->out[1], PK_NONE}, out[PK_MAX_OUT];
    int32_t n = 4;

    if (v->dout[1].id || (v->n_out > 2 && v->dout[2].id)) {
        pk_graph_fail(v->g, PD_ERR_UNSUPPORTED,
                      "norm: no derivative through its statistics; build the graph decomposed");
        return;
    }
    if (v->n_out > 2)
        in[n++] = v->out[2];
    pk_emit(v->g, PK_OP_NORM_BWD, v->attr, in, n, out);
    v->din[0] = out[0];
    v->din[1] = out[1];
    if (v->n_in > 2)
        v->din[2] = out[2];
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 0 ? PK_WANT_ANY : PK_WANT_F32;
}

/* Outputs like x are live; statistics and derivatives of parameters are f32. */
static enum pk_makes makes_of(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    (void)attr;
    (void)n_out;
    return k == 0 ? PK_MAKES_BATCH : PK_MAKES_NUMBER;
}

const struct pk_rule pk_rule_norm = {.name = "norm",
                                     .min_in = 2,
                                     .max_in = 3,
                                     .kind = PK_KIND_NORM,
                                     .infer = infer,
                                     .vjp = vjp,
                                     .cheap = true,
                                     .want_of = want_of,
                                     .makes_of = makes_of};

static enum pd_err infer_bwd(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                             struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    enum pd_err err = check(in, n_in, why);
    struct pk_shape stat = in[0].shape;
    const bool layer = attr->norm.kind == PK_NORM_LAYER, beta = attr->norm.again && attr->norm.has_beta;

    if (err != PD_OK)
        return err;
    stat.rank--;
    if (n_in != 4 + layer + beta + attr->norm.has_residual || !pk_shape_equal(&in[2].shape, &in[0].shape) ||
        !pk_shape_equal(&in[3].shape, &stat) || (layer && !pk_shape_equal(&in[4].shape, &stat)))
        return pd_fail(why, PD_ERR_INVALID, "needs x, gain, dy of x's shape and one statistic per row");
    if (beta && !pk_shape_equal(&in[4 + layer].shape, &in[1].shape))
        return pd_fail(why, PD_ERR_INVALID, "the offset must be as long as a row");
    if (attr->norm.has_residual && !pk_shape_equal(&in[n_in - 1].shape, &in[0].shape))
        return pd_fail(why, PD_ERR_INVALID, "the residual must have the shape of x");
    ret_out[0] = in[0];
    ret_out[1] = in[1];
    ret_out[2] = in[1];
    *ret_n_out = attr->norm.has_beta ? 3 : 2;
    if (attr->norm.again)
        ret_out[(*ret_n_out)++] = in[0];
    return PD_OK;
}

/* Differentiates the derivative of the decomposed form, which equals this node; the statistics are functions of x
 * there. */
static void vjp_bwd(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    struct pk_norm_spec spec = {v->attr->norm.kind, v->attr->norm.eps_mode, v->attr->norm.eps};
    struct pk_val x = pk_alias(g, v->in[0]), gain = pk_alias(g, v->in[1]), dy = pk_alias(g, v->in[2]);
    struct pk_val beta = pk_fill(g, pk_dtype_of(g, gain), pk_shape_of(g, gain), 0.0);
    struct pk_val y = pk_norm_decomposed(g, x, gain, beta, spec);
    struct pk_val wrt[3] = {x, gain, beta}, first[3], back[3] = {x, gain, dy}, second[3];

    if (v->attr->norm.again) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED, "norm_bwd: has no derivative after the passes");
        return;
    }
    pk_grad_many(g, &y, &dy, 1, wrt, 3, first);
    pk_grad_many(g, first, v->dout, (size_t)v->n_out, back, 3, second);
    for (int i = 0; i < 3; i++)
        v->din[i] = second[i];
    if (v->attr->norm.has_residual)
        v->din[v->n_in - 1] = v->dout[0];
}

static int32_t shares_bwd(const struct pk_attr *attr, int32_t n_in)
{
    return attr->norm.has_residual ? n_in - 1 : -1;
}

static enum pk_want want_bwd_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 0 || k == 2 ? PK_WANT_ANY : PK_WANT_F32;
}

const struct pk_rule pk_rule_norm_bwd = {.name = "norm_bwd",
                                         .min_in = 4,
                                         .max_in = 7,
                                         .kind = PK_KIND_NORM,
                                         .infer = infer_bwd,
                                         .vjp = vjp_bwd,
                                         .shares = shares_bwd,
                                         .want_of = want_bwd_of,
                                         .makes_of = makes_of};
