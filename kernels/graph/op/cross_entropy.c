/* Cross-entropy of logits with integer targets, and its fused derivative. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err check(const struct pk_attr *attr, const struct pk_type *in, struct pd_why *why)
{
    if (!pk_dtype_is_float(in[0].dtype) || in[0].shape.rank != 2 || in[0].shape.dim[1] < 1)
        return pd_fail(why, PD_ERR_INVALID, "needs float logits (M, C)");
    if (in[1].dtype != PK_I32 || in[1].shape.rank != 1 || in[1].shape.dim[0] != in[0].shape.dim[0])
        return pd_fail(why, PD_ERR_INVALID, "needs one i32 target for each row");
    if (!(attr->cross_entropy.smoothing >= 0.0 && attr->cross_entropy.smoothing <= 1.0))
        return pd_fail(why, PD_ERR_INVALID, "smoothing outside 0..1");
    return PD_OK;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    enum pd_err err = check(attr, in, why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    for (int i = 0; i < 3; i++)
        ret_out[i] = (struct pk_type){in[0].dtype, PK_SHAPE(1)};
    ret_out[3] = (struct pk_type){in[0].dtype, in[1].shape};
    *ret_n_out = 4;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_val in[4] = {v->in[0], v->in[1], v->out[3], v->dout[0]};

    if (v->dout[3].id) {
        pk_graph_fail(v->g, PD_ERR_UNSUPPORTED,
                      "cross_entropy: no derivative through lse; build the graph decomposed");
        return;
    }
    /* Counts are steps: no derivative. */
    if (v->dout[0].id && v->need[0])
        v->din[0] = pk_emit(v->g, PK_OP_CROSS_ENTROPY_BWD, v->attr, in, 4, NULL);
}

const struct pk_rule pk_rule_cross_entropy = {.name = "cross_entropy",
                                              .min_in = 2,
                                              .max_in = 2,
                                              .kind = PK_KIND_LOSS,
                                              .infer = infer,
                                              .vjp = vjp,
                                              .makes = PK_MAKES_NUMBER};

static enum pd_err infer_bwd(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                             struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    enum pd_err err = check(attr, in, why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    if (!pk_shape_equal(&in[2].shape, &in[1].shape) || pk_shape_count(&in[3].shape) != 1 ||
        in[2].dtype != in[0].dtype || in[3].dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "needs lse (M) and one dloss");
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

static void vjp_bwd(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    struct pk_val logits = pk_alias(g, v->in[0]), dloss = pk_alias(g, v->in[3]);
    struct pk_loss loss = pk_cross_entropy_decomposed(g, logits, v->in[1], v->attr->cross_entropy.smoothing,
                                                      v->attr->cross_entropy.ignore);
    struct pk_val first, wrt[2] = {logits, dloss}, d[2];

    pk_grad_many(g, &loss.loss_sum, &dloss, 1, &logits, 1, &first);
    pk_grad_many(g, &first, &v->dout[0], 1, wrt, 2, d);
    v->din[0] = d[0];
    v->din[3] = d[1];
}

static enum pk_want want_bwd_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 0 ? PK_WANT_ANY : PK_WANT_F32;
}

/* dlogits have the logits' type; losses and counts are f32. */
static enum pk_makes makes_bwd_of(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    (void)attr;
    (void)n_out;
    return k == 0 ? PK_MAKES_AS_IN : PK_MAKES_NUMBER;
}

const struct pk_rule pk_rule_cross_entropy_bwd = {.name = "cross_entropy_bwd",
                                                  .min_in = 4,
                                                  .max_in = 4,
                                                  .kind = PK_KIND_LOSS,
                                                  .infer = infer_bwd,
                                                  .vjp = vjp_bwd,
                                                  .shares = pk_shares_first,
                                                  .want_of = want_bwd_of,
                                                  .makes_of = makes_bwd_of};

static enum pd_err infer_grad(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                              struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const int64_t width = attr->cross_entropy.width;
    enum pd_err err = check(attr, in, why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    if (pk_shape_count(&in[2].shape) != 1 || in[2].dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "needs one dloss");
    if (width != 0 && width < in[0].shape.dim[1])
        return pd_fail(why, PD_ERR_INVALID, "a width below that of the logits");
    ret_out[0] = in[0];
    if (width)
        ret_out[0].shape.dim[1] = width;
    for (int i = 1; i < 4; i++)
        ret_out[i] = (struct pk_type){in[0].dtype, PK_SHAPE(1)};
    *ret_n_out = 4;
    return PD_OK;
}

/* By primitives, as above, with the gradient of the loss too. */
static void vjp_grad(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    struct pk_val logits = pk_alias(g, v->in[0]), dloss = pk_alias(g, v->in[2]), scale = dloss;
    struct pk_loss loss = pk_cross_entropy_decomposed(g, logits, v->in[1], v->attr->cross_entropy.smoothing,
                                                      v->attr->cross_entropy.ignore);
    struct pk_val y[2] = {PK_NONE, loss.loss_sum}, seed[2] = {v->dout[0], v->dout[1]};
    struct pk_val wrt[2] = {logits, dloss}, d[2];

    if (v->attr->cross_entropy.mean)
        scale = pk_div(g, dloss, loss.count);
    pk_grad_many(g, &loss.loss_sum, &scale, 1, &logits, 1, &y[0]);
    if (seed[0].id) /* padding is constant */
        seed[0] = pk_slice(g, seed[0], 1, 0, pk_shape_of(g, logits).dim[1]);
    pk_grad_many(g, y, seed, 2, wrt, 2, d);
    v->din[0] = d[0];
    v->din[2] = d[1];
}

const struct pk_rule pk_rule_cross_entropy_grad = {.name = "cross_entropy_grad",
                                                   .min_in = 3,
                                                   .max_in = 3,
                                                   .kind = PK_KIND_LOSS,
                                                   .infer = infer_grad,
                                                   .vjp = vjp_grad,
                                                   .shares = pk_shares_first,
                                                   .shares_columns = true,
                                                   .want_of = want_bwd_of,
                                                   .makes_of = makes_bwd_of};
