/* Attention with any activation, its fused derivative and its diagnostics (attention.md). */
#include "kernels/graph/build.h"
#include "kernels/ops/registry.h"

#define MAX_IN 11 /* of the derivative: q, k, v, scale, bias, mask, length, rng, y, dy, sums */

struct dims {
    int64_t b, h, nq, nk, d;
    int32_t scale, bias, mask, length, rng, after; /* places of the inputs; -1: not there */
};

/* Reads the inputs that ATTENTION, its derivative and its statistics begin with. */
static enum pd_err begin(const struct pk_attention_attr *a, const struct pk_type *in, int32_t n_in,
                         struct dims *ret, struct pd_why *why)
{
    struct dims x = {.scale = -1, .bias = -1, .mask = -1, .length = -1, .rng = -1};
    const struct pk_shape *s = &in[0].shape;
    int32_t at = a->packed ? 1 : 3;

    if (a->has_scale)
        x.scale = at++;
    if (a->has_bias)
        x.bias = at++;
    if (a->has_mask)
        x.mask = at++;
    if (a->has_length)
        x.length = at++;
    if (a->has_rng)
        x.rng = at++;
    x.after = at;
    if (n_in < at)
        return pd_fail(why, PD_ERR_INVALID, "needs %d inputs", at);
    if (!pk_dtype_is_float(in[0].dtype))
        return pd_fail(why, PD_ERR_INVALID, "needs a float dtype");
    if (a->packed) {
        if (s->rank != 5 || s->dim[2] != 3)
            return pd_fail(why, PD_ERR_INVALID, "packed needs (B, N, 3, H, d)");
        x.b = s->dim[0];
        x.nq = x.nk = s->dim[1];
        x.h = s->dim[3];
        x.d = s->dim[4];
    } else {
        const struct pk_shape *k = &in[1].shape;

        if (s->rank != 4 || k->rank != 4 || k->dim[0] != s->dim[0] || k->dim[1] != s->dim[1] ||
            k->dim[3] != s->dim[3] || !pk_shape_equal(k, &in[2].shape) || in[1].dtype != in[2].dtype ||
            (in[1].dtype != in[0].dtype && !(in[0].dtype == PK_F32 && in[1].dtype == PK_BF16)))
            return pd_fail(why, PD_ERR_INVALID, "needs q (B, H, Nq, d) and k, v (B, H, Nk, d)");
        x.b = s->dim[0];
        x.h = s->dim[1];
        x.nq = s->dim[2];
        x.nk = k->dim[2];
        x.d = s->dim[3];
    }
    if (x.d < 1)
        return pd_fail(why, PD_ERR_INVALID, "heads of no width");
    if ((unsigned)a->phi >= PK_PHI_COUNT)
        return pd_fail(why, PD_ERR_INVALID, "unknown activation %d", (int)a->phi);
    if (a->phi == PK_PHI_POLY && a->degree < 1)
        return pd_fail(why, PD_ERR_INVALID, "degree %d; at least 1", a->degree);
    if (a->row_power != 0.0 && (!a->causal || pk_phi_normalised(a->phi)))
        return pd_fail(why, PD_ERR_INVALID,
                       "a power of the row's length needs causal rows that are not normalised");
    if (x.scale >= 0) {
        int64_t n = pk_shape_count(&in[x.scale].shape);

        if (in[x.scale].shape.rank != 1 || (n != 1 && n != x.h) || in[x.scale].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "the scale must be (1) or (H)");
    }
    if (x.bias >= 0) {
        struct pk_shape want = PK_SHAPE(x.h, x.nq, x.nk);

        if (!pk_shape_equal(&in[x.bias].shape, &want) || in[x.bias].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "the bias must be (H, Nq, Nk)");
    }
    if (x.mask >= 0) {
        const struct pk_shape *m = &in[x.mask].shape;
        bool keys = m->rank == 2 && m->dim[0] == x.b && m->dim[1] == x.nk;
        bool windows =
            m->rank == 3 && m->dim[0] >= 1 && x.b % m->dim[0] == 0 && m->dim[1] == x.nq && m->dim[2] == x.nk;

        if (in[x.mask].dtype != PK_U8 || (!keys && !windows))
            return pd_fail(why, PD_ERR_INVALID,
                           "the mask must be u8 (B, Nk), or (W, Nq, Nk) with W dividing B");
    }
    if (x.length >= 0) {
        const struct pk_type *l = &in[x.length];

        if (l->dtype != PK_I32 || l->shape.rank != 1 || (l->shape.dim[0] != 1 && l->shape.dim[0] != x.b))
            return pd_fail(why, PD_ERR_INVALID, "the length must be i32 (1) or (B)");
    }
    if (x.rng >= 0) {
        const struct pk_type *r = &in[x.rng];

        if (r->dtype != PK_I32 || r->shape.rank != 1 || (r->shape.dim[0] != 3 && r->shape.dim[0] != 4))
            return pd_fail(why, PD_ERR_INVALID,
                           "the generator's input must be i32 (3): seed low, seed high, step; or (4): and share");
        if (!(a->dropout >= 0.0 && a->dropout < 1.0) || a->stream >= 0x80000000u)
            return pd_fail(why, PD_ERR_INVALID, "dropout %g in stream %u", a->dropout, a->stream);
    }
    if (a->form == PK_FORM_LINEAR) {
        const char *no = pk_attention_not_linear(a, x.nq, x.nk, x.mask >= 0 ? in[x.mask].shape.rank : 0);

        if (no)
            return pd_fail(why, PD_ERR_UNSUPPORTED, "the linear form %s", no);
    }
    *ret = x;
    return PD_OK;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin(&attr->attention, in, n_in, &x, why);

    if (err != PD_OK)
        return err;
    if (n_in != x.after)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", x.after);
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.nq, x.h, x.d)};
    ret_out[1] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.h, x.nq)};
    *ret_n_out = pk_phi_normalised(attr->attention.phi) ? 2 : 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    const struct pk_attention_attr *a = &v->attr->attention;
    struct pk_val in[MAX_IN], out[PK_MAX_OUT];
    const int32_t qkv = a->packed ? 1 : 3;
    int32_t n = 0;

    if (v->n_out > 1 && v->dout[1].id) {
        pk_graph_fail(v->g, PD_ERR_UNSUPPORTED,
                      "attention: no derivative through the sums of its rows; build the graph plain");
        return;
    }
    for (int32_t i = 0; i < v->n_in; i++)
        in[n++] = v->in[i];
    in[n++] = v->out[0];
    in[n++] = v->dout[0];
    if (v->n_out > 1)
        in[n++] = v->out[1];
    pk_emit(v->g, PK_OP_ATTENTION_BWD, v->attr, in, n, out);
    /* Scale and bias come right after q, k, v, in the inputs as in the outputs. */
    for (int32_t k = 0; k < qkv + a->has_scale + a->has_bias; k++)
        v->din[k] = out[k];
}

const struct pk_rule pk_rule_attention = {
    .name = "attention", .min_in = 1, .max_in = MAX_IN - 3, .infer = infer, .vjp = vjp};

static enum pd_err infer_bwd(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                             struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct dims x;
    enum pd_err err = begin(a, in, n_in, &x, why);
    struct pk_shape y;
    int32_t n = 0;

    if (err != PD_OK)
        return err;
    y = PK_SHAPE(x.b, x.nq, x.h, x.d);
    if (n_in != x.after + 2 + pk_phi_normalised(a->phi) || !pk_shape_equal(&in[x.after].shape, &y) ||
        !pk_shape_equal(&in[x.after + 1].shape, &y))
        return pd_fail(why, PD_ERR_INVALID, "needs y and dy (B, Nq, H, d), and the sums of normalised rows");
    for (; n < (a->packed ? 1 : 3) + a->has_scale + a->has_bias; n++)
        ret_out[n] = in[n];
    *ret_n_out = n;
    return PD_OK;
}

/* By the definition: the plain form differentiated once is what this node computes; y and the sums are
 * functions of the other inputs. */
static void vjp_bwd(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    const struct pk_attention_attr *a = &v->attr->attention;
    struct pk_attention_spec spec = {.phi = a->phi,
                                     .degree = a->degree,
                                     .tau = a->tau,
                                     .scale = a->scale,
                                     .bias = a->bias,
                                     .row_power = a->row_power,
                                     .dropout = a->dropout,
                                     .stream = a->stream,
                                     .causal = a->causal};
    const int32_t n_wrt = (a->packed ? 1 : 3) + a->has_scale + a->has_bias;
    int32_t at = a->packed ? 1 : 3, dy_at;
    struct pk_val leaf[5], part[3], y, dy, first[5], back[6], second[6];

    for (int32_t n = 0; n < n_wrt; n++)
        leaf[n] = pk_alias(g, v->in[n]);
    if (a->has_scale)
        spec.scale_value = leaf[at++];
    if (a->has_bias)
        spec.bias_value = leaf[at++];
    if (a->has_mask)
        spec.mask = v->in[at++];
    if (a->has_length)
        spec.length = v->in[at++];
    if (a->has_rng)
        spec.rng = v->in[at++];
    dy_at = at + 1;
    dy = pk_alias(g, v->in[dy_at]);
    for (int i = 0; i < 3; i++)
        part[i] = a->packed ? pk_unpack_qkv(g, leaf[0], i) : leaf[i];
    y = pk_attention_plain(g, part[0], part[1], part[2], spec, NULL);
    pk_grad_many(g, &y, &dy, 1, leaf, (size_t)n_wrt, first);
    for (int32_t i = 0; i < n_wrt; i++)
        back[i] = leaf[i];
    back[n_wrt] = dy;
    pk_grad_many(g, first, v->dout, (size_t)n_wrt, back, (size_t)n_wrt + 1, second);
    for (int32_t i = 0; i < n_wrt; i++)
        v->din[i] = second[i];
    v->din[dy_at] = second[n_wrt];
}

const struct pk_rule pk_rule_attention_bwd = {
    .name = "attention_bwd", .min_in = 3, .max_in = MAX_IN, .infer = infer_bwd, .vjp = vjp_bwd};

static enum pd_err infer_stats(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                               struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin(&attr->attention, in, n_in, &x, why);
    const struct pk_shape *rows;

    if (err != PD_OK)
        return err;
    if (n_in != x.after + 1)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", x.after + 1);
    rows = &in[x.after].shape;
    if (rows->rank != 3 || rows->dim[0] != x.b || rows->dim[1] != x.nq || in[x.after].dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "the rows must be (B, Nq, D)");
    for (int i = 0; i < 5; i++)
        ret_out[i] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.h)};
    *ret_n_out = 5;
    return PD_OK;
}

const struct pk_rule pk_rule_attention_stats = {
    .name = "attention_stats", .min_in = 2, .max_in = MAX_IN - 2, .infer = infer_stats};
