/* Batched matrix products; the passes add epilogues, after differentiation. */
#include <string.h>

#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct pk_shape a = in[0].shape, b = in[1].shape, lead;
    int64_t m, k, n;
    bool slope = attr->matmul.slope, keeps = attr->matmul.keeps, linear = attr->matmul.act == PK_ACT_NONE;
    enum pk_sums sums = attr->matmul.sums;
    int32_t want = 2 + attr->matmul.has_bias + attr->matmul.has_residual + slope, at = 2, out = 1;
    bool half = in[1].dtype == PK_BF16 && in[0].dtype == PK_F32;

    if (n_in != want)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs with this epilogue", want);
    if ((slope && (linear || keeps || want != 3)) || (keeps && (linear || attr->matmul.has_residual)))
        return pd_fail(why, PD_ERR_INVALID, "does not support this combination in one epilogue");
    if (half && (slope || sums))
        return pd_fail(why, PD_ERR_INVALID, "has no derivative with respect to weights of bf16");
    if (a.rank < 2 || b.rank < 2 || (half && b.rank != 2))
        return pd_fail(why, PD_ERR_INVALID, half ? "takes one matrix of bf16" : "needs matrices");
    for (int32_t i = 0; i < n_in; i++)
        if (!pk_dtype_is_float(in[i].dtype) || (in[i].dtype != in[0].dtype && !(i == 1 && half)))
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
    m = a.dim[a.rank - 2];
    k = a.dim[a.rank - 1];
    n = b.dim[b.rank - 1];
    if (b.dim[b.rank - 2] != k)
        return pd_fail(why, PD_ERR_INVALID, "the inner extents differ");
    a.rank -= 2;
    b.rank -= 2;
    if (!pk_shape_broadcast(&a, &b, &lead))
        return pd_fail(why, PD_ERR_INVALID, "the leading axes do not fit each other");
    lead.dim[lead.rank++] = m;
    lead.dim[lead.rank++] = n;
    ret_out[0] = (struct pk_type){in[0].dtype, lead};
    if (attr->matmul.has_bias && (in[at].shape.rank != 1 || in[at].shape.dim[0] != n))
        return pd_fail(why, PD_ERR_INVALID, "the bias must be (N)");
    at += attr->matmul.has_bias;
    if ((attr->matmul.has_residual || slope) && !pk_shape_equal(&in[at].shape, &lead))
        return pd_fail(why, PD_ERR_INVALID, "%s must have the result's shape",
                       slope ? "the pre-activation" : "the residual");
    if ((sums == PK_SUMS_A || sums == PK_SUMS_B) && lead.rank != 2)
        return pd_fail(why, PD_ERR_INVALID, "sums operands only of a product of two matrices");
    if (keeps)
        ret_out[out++] = ret_out[0];
    if (sums)
        ret_out[out++] = (struct pk_type){in[0].dtype, PK_SHAPE(sums == PK_SUMS_A ? m : n)};
    *ret_n_out = out;
    return PD_OK;
}

static int64_t leading(const struct pk_shape *s)
{
    int64_t n = 1;

    for (int32_t i = 0; i + 2 < s->rank; i++)
        n *= s->dim[i];
    return n;
}

/* (.., R, C) -> (.. R, C) */
static struct pk_val rows(struct pk_graph *g, struct pk_val x)
{
    struct pk_shape s = pk_shape_of(g, x);

    return pk_reshape(g, x, PK_SHAPE(leading(&s) * s.dim[s.rank - 2], s.dim[s.rank - 1]));
}

/* x y, in the layout of `like`: if that is a transposed view, the transposed product is computed, so that the gradient
 * of the value that was transposed is dense. */
static struct pk_val product(struct pk_graph *g, struct pk_val x, struct pk_val y, struct pk_val like)
{
    const struct pk_value *l;
    int32_t r;

    if (g->err != PD_OK)
        return PK_NONE;
    l = &g->value[like.id];
    r = l->shape.rank;
    if (l->stride[r - 2] == 1 && l->stride[r - 1] != 1)
        return pk_transpose(g, pk_matmul(g, pk_transpose(g, y), pk_transpose(g, x)));
    return pk_matmul(g, x, y);
}

static void vjp(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    struct pk_val a = v->in[0], b = v->in[1], dy = v->dout[0];
    struct pk_shape sa = pk_shape_of(g, a), sb = pk_shape_of(g, b);

    if (v->n_in > 2 || v->n_out > 1 || v->attr->matmul.act != PK_ACT_NONE) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED,
                      "matmul with an epilogue is made by the passes and has no derivative");
        return;
    }
    if (g->err == PD_OK && g->value[b.id].dtype != g->value[a.id].dtype) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED, "matmul with bf16 weights has no derivative");
        return;
    }
    /* The weight first: its gradient can then be consumed before the other gradients are computed. */
    if (v->need[1]) {
        if (leading(&sb) == 1 && sa.rank > 2) {
            /* One weight for all: the batch folds into the inner extent of one product. */
            struct pk_val dw = product(g, pk_transpose(g, rows(g, a)), rows(g, dy), b);

            v->din[1] = pk_reshape(g, dw, sb);
        } else {
            v->din[1] = pk_sum_to(g, product(g, pk_transpose(g, a), dy, b), sb);
        }
    }
    if (v->need[0])
        v->din[0] = pk_sum_to(g, product(g, dy, pk_transpose(g, b), a), sa);
}

/* Whether (.., R, C) can be viewed as (.. R, C), and the stride of its rows. Axes of extent 1 do not matter. */
static bool row_step(const struct pk_view *v, int64_t *ret)
{
    int64_t step = 0, rows = 1;

    for (int32_t i = v->shape.rank - 1; i-- > 0;) {
        if (v->shape.dim[i] == 1)
            continue;
        if (step == 0 && rows == 1)
            step = v->stride[i];
        else if (v->stride[i] != step * rows)
            return false;
        rows *= v->shape.dim[i];
    }
    *ret = step ? step : v->shape.dim[v->shape.rank - 1];
    return rows <= 1 || step != 0;
}

static bool folds(const struct pk_view *v)
{
    int64_t step;

    return row_step(v, &step);
}

static void fold(struct pk_view *v)
{
    int32_t r = v->shape.rank;
    int64_t rows = 1, step = 0, col_step = v->stride[r - 1];

    row_step(v, &step);
    for (int32_t i = 0; i < r - 1; i++)
        rows *= v->shape.dim[i];
    v->shape = PK_SHAPE(rows, v->shape.dim[r - 1]);
    memset(v->stride, 0, sizeof v->stride);
    v->stride[0] = step;
    v->stride[1] = col_step;
}

static void fit(const struct pk_attr *attr, int32_t n_in, struct pk_view *in, struct pk_view *out)
{
    int32_t lead = out->shape.rank - 2;
    /* the input of the output's shape: residual or pre-activation */
    int32_t operand = attr->matmul.has_residual || attr->matmul.slope ? n_in - 1 : -1;
    int64_t b_count = 1;

    if (lead == 0)
        return;
    for (int32_t i = 0; i + 2 < in[1].shape.rank; i++)
        b_count *= in[1].shape.dim[i];
    if (b_count == 1 && in[0].shape.rank == out->shape.rank && folds(&in[0]) && folds(out) &&
        (operand < 0 || folds(&in[operand]))) {
        struct pk_view *b = &in[1];
        int32_t r = b->shape.rank;

        fold(&in[0]);
        fold(out);
        if (attr->matmul.keeps)
            fold(&out[1]);
        if (operand >= 0)
            fold(&in[operand]);
        b->shape = PK_SHAPE(b->shape.dim[r - 2], b->shape.dim[r - 1]);
        b->stride[0] = b->stride[r - 2];
        b->stride[1] = b->stride[r - 1];
        for (int32_t i = 2; i < PK_MAX_RANK; i++)
            b->stride[i] = 0;
        return;
    }
    for (int k = 0; k < 2; k++) {
        struct pk_shape to = out->shape;

        to.dim[lead] = in[k].shape.dim[in[k].shape.rank - 2];
        to.dim[lead + 1] = in[k].shape.dim[in[k].shape.rank - 1];
        pk_view_spread(&in[k], &to);
    }
}

/* Whether input k is the residual or the pre-activation: the last input, of the output's shape. */
static bool is_operand(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    return (attr->matmul.has_residual || attr->matmul.slope) && k == n_in - 1;
}

static int32_t shares(const struct pk_attr *attr, int32_t n_in)
{
    return attr->matmul.has_residual ? n_in - 1 : -1;
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    if (k < 2)
        return PK_WANT_FACTOR;
    return is_operand(attr, n_in, k) ? PK_WANT_OUTPUT : PK_WANT_ANY;
}

static enum pk_makes makes_of(const struct pk_attr *attr, int32_t n_out, int32_t k)
{
    if (attr->matmul.sums && k + 1 == n_out)
        return PK_MAKES_SUMS;
    return attr->matmul.keeps && k == 1 ? PK_MAKES_TIED : PK_MAKES_BATCH;
}

static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = 2 * pk_view_count(&c->out[0]) * pk_view_columns(&c->in[0]);
}

const struct pk_rule pk_rule_matmul = {.name = "matmul",
                                       .min_in = 2,
                                       .max_in = 4,
                                       .kind = PK_KIND_MATMUL,
                                       .infer = infer,
                                       .vjp = vjp,
                                       .shares = shares,
                                       .want_of = want_of,
                                       .makes_of = makes_of,
                                       .fit = fit,
                                       .cost = cost};
