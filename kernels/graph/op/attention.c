/* Attention with any activation, its fused derivative and its diagnostics (kernels/ATTENTION.md). */
#include "kernels/graph/build.h"
#include "kernels/graph/op/attention.h"
#include "kernels/graph/op/registry.h"

#define MAX_IN                                                                                               \
    13 /* q, k, v, scale, bias, mask, length, rng, y, dy, sums; of the second derivative fewer, but          \
          dy and five tangents */

struct dims {
    int64_t b, h, nq, nk, d;
    int32_t scale, bias, mask, length, rng, after; /* indices of the inputs; -1: absent */
};

/* Checks the inputs that ATTENTION, its derivative and its statistics have in common. */
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
        return pd_fail(why, PD_ERR_INVALID, "the heads have width 0");
    if ((unsigned)a->phi >= PK_PHIS)
        return pd_fail(why, PD_ERR_INVALID, "unknown activation %d", (int)a->phi);
    if (pk_phi_power(a->phi) && a->degree < 1)
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
            return pd_fail(
                why, PD_ERR_INVALID,
                "the generator's input must be i32 (3): seed low, seed high, step; or (4): and share");
        if (!(a->dropout >= 0.0 && a->dropout < 1.0) || a->stream >= 0x80000000u)
            return pd_fail(why, PD_ERR_INVALID,
                           "dropout rate %g is not in [0, 1), or stream %u is not below 2^31", a->dropout,
                           a->stream);
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
                      "attention: no derivative through the sums of its rows; build the graph decomposed");
        return;
    }
    for (int32_t i = 0; i < v->n_in; i++)
        in[n++] = v->in[i];
    in[n++] = v->out[0];
    in[n++] = v->dout[0];
    if (v->n_out > 1)
        in[n++] = v->out[1];
    pk_emit(v->g, PK_OP_ATTENTION_BWD, v->attr, in, n, out);
    /* Scale and bias directly follow q, k, v, in the inputs as in the outputs. */
    for (int32_t k = 0; k < qkv + a->has_scale + a->has_bias; k++)
        v->din[k] = out[k];
}

const struct pk_rule pk_rule_attention = {.name = "attention",
                                          .min_in = 1,
                                          .max_in = 8,
                                          .kind = PK_KIND_ATTENTION,
                                          .infer = infer,
                                          .vjp = vjp,
                                          .want_of = pk_attention_want,
                                          .makes_of = pk_attention_makes,
                                          .cost = pk_attention_cost};

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

/* The attention of inputs `in` by primitives; leaf[]: aliases of the inputs with a derivative, to differentiate by. */
static struct pk_val decomposed_of(struct pk_graph *g, const struct pk_attr *attr, bool formula,
                                   const struct pk_val *in, struct pk_val *leaf)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct pk_attention_spec spec = {
        .tau = a->tau, .dropout = a->dropout, .stream = a->stream, .causal = a->causal};
    struct pk_val part[3];
    int32_t at = a->packed ? 1 : 3;

    if (formula) {
        spec.formula = (struct pk_formula_use){.plan = attr->formula.plan,
                                               .n = attr->formula.n,
                                               .layer = attr->formula.layer,
                                               .layers = attr->formula.layers};
    } else {
        spec.phi = a->phi;
        spec.degree = a->degree;
        spec.scale = a->scale;
        spec.bias = a->bias;
        spec.row_power = a->row_power;
    }
    for (int32_t n = 0; n < pk_attention_wrt(a); n++)
        leaf[n] = pk_alias(g, in[n]);
    if (a->has_scale)
        *(formula ? &spec.scalars : &spec.scale_value) = leaf[at++];
    if (a->has_bias)
        spec.bias_value = leaf[at++];
    if (a->has_mask)
        spec.mask = in[at++];
    if (a->has_length)
        spec.length = in[at++];
    if (a->has_rng)
        spec.rng = in[at++];
    for (int i = 0; i < 3; i++)
        part[i] = a->packed ? pk_unpack_qkv(g, leaf[0], i) : leaf[i];
    return pk_attention_decomposed(g, part[0], part[1], part[2], spec, NULL);
}

void pk_attention_vjp_bwd_decomposed(struct pk_vjp *v, bool formula)
{
    struct pk_graph *g = v->g;
    const int32_t n_wrt = pk_attention_wrt(&v->attr->attention),
                  dy_at = pk_attention_ins(&v->attr->attention) + 1;
    struct pk_val leaf[5], y, dy = pk_alias(g, v->in[dy_at]), first[5], back[6], second[6];

    y = decomposed_of(g, v->attr, formula, v->in, leaf);
    pk_grad_many(g, &y, &dy, 1, leaf, (size_t)n_wrt, first);
    for (int32_t i = 0; i < n_wrt; i++)
        back[i] = leaf[i];
    back[n_wrt] = dy;
    pk_grad_many(g, first, v->dout, (size_t)n_wrt, back, (size_t)n_wrt + 1, second);
    for (int32_t i = 0; i < n_wrt; i++)
        v->din[i] = second[i];
    v->din[dy_at] = second[n_wrt];
}

static struct pk_val or_zero(struct pk_graph *g, struct pk_val x, struct pk_val like)
{
    return x.id ? x : pk_fill(g, pk_dtype_of(g, like), pk_shape_of(g, like), 0.0);
}

/* Whether dy is the only input of ATTENTION_BWD that needs a gradient, as in pk_jvp. */
static bool only_dy(const struct pk_vjp *v, int32_t dy_at)
{
    for (int32_t i = 0; i < v->n_in; i++)
        if (v->need[i] != (i == dy_at))
            return false;
    return true;
}

/* x^p has a kernel for this, and a smaller one if only dy needs a gradient. */
static void vjp_bwd(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    const struct pk_attention_attr *a = &v->attr->attention;
    const int32_t n_wrt = pk_attention_wrt(a), n_in = pk_attention_ins(a), dy_at = n_in + 1;
    struct pk_val second[PK_MAX_OUT], in[MAX_IN];
    const bool tangent = only_dy(v, dy_at);
    int32_t n = 0;

    if (!pk_phi_power(a->phi) || a->has_rng) {
        pk_attention_vjp_bwd_decomposed(v, false);
        return;
    }
    for (int32_t i = 0; i < n_in; i++)
        in[n++] = v->in[i];
    if (!tangent)
        in[n++] = v->in[dy_at];
    for (int32_t i = 0; i < n_wrt; i++)
        in[n++] = or_zero(g, v->dout[i], v->in[i]);
    if (tangent) {
        v->din[dy_at] = pk_emit(g, PK_OP_ATTENTION_JVP, v->attr, in, n, NULL);
        return;
    }
    pk_emit(g, PK_OP_ATTENTION_BWD2, v->attr, in, n, second);
    for (int32_t i = 0; i < n_wrt; i++)
        v->din[i] = second[i];
    v->din[dy_at] = second[n_wrt];
}

const struct pk_rule pk_rule_attention_bwd = {.name = "attention_bwd",
                                              .min_in = 3,
                                              .max_in = 11,
                                              .kind = PK_KIND_ATTENTION,
                                              .infer = infer_bwd,
                                              .vjp = vjp_bwd,
                                              .want_of = pk_attention_want_bwd,
                                              .makes_of = pk_attention_makes_bwd,
                                              .cost = pk_attention_cost_bwd};

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

const struct pk_rule pk_rule_attention_stats = {.name = "attention_stats",
                                                .min_in = 2,
                                                .max_in = 9,
                                                .kind = PK_KIND_ATTENTION,
                                                .infer = infer_stats,
                                                .want_of = pk_attention_want_stats,
                                                .makes = PK_MAKES_NUMBER,
                                                .cost = pk_attention_cost_stats};

/* ---- tangents ---- */

/* Checks ATTENTION's inputs and the tangents after them. */
static enum pd_err begin_tangents(const struct pk_attention_attr *a, const struct pk_type *in, int32_t n_in,
                                  bool has_dy, struct dims *ret, struct pd_why *why)
{
    enum pd_err err = begin(a, in, n_in, ret, why);
    struct pk_shape y;

    if (err != PD_OK)
        return err;
    if (!pk_phi_power(a->phi) || a->has_rng)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "needs x^p without dropout");
    if (n_in != ret->after + has_dy + pk_attention_wrt(a))
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", ret->after + has_dy + pk_attention_wrt(a));
    y = PK_SHAPE(ret->b, ret->nq, ret->h, ret->d);
    if (has_dy && (!pk_shape_equal(&in[ret->after].shape, &y) || in[ret->after].dtype != in[0].dtype))
        return pd_fail(why, PD_ERR_INVALID, "needs dy (B, Nq, H, d)");
    for (int32_t i = 0; i < pk_attention_wrt(a); i++) {
        const struct pk_type *t = &in[ret->after + has_dy + i];

        if (!pk_shape_equal(&t->shape, &in[i].shape) || t->dtype != in[i].dtype)
            return pd_fail(why, PD_ERR_INVALID, "tangent %d must have its input's shape and dtype", i);
    }
    return PD_OK;
}

static enum pd_err infer_jvp(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                             struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin_tangents(&attr->attention, in, n_in, false, &x, why);

    if (err != PD_OK)
        return err;
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.nq, x.h, x.d)};
    *ret_n_out = 1;
    return PD_OK;
}

/* The tangent of y is linear in the tangents, with ATTENTION_BWD as its transpose; ATTENTION_BWD2 gives the
 * derivatives with respect to the other inputs. */
static void vjp_jvp(struct pk_vjp *v)
{
    const struct pk_attention_attr *a = &v->attr->attention;
    const int32_t n_wrt = pk_attention_wrt(a), n_in = pk_attention_ins(a);
    struct pk_val in[MAX_IN], out[PK_MAX_OUT];

    for (int32_t i = 0; i < n_in; i++)
        in[i] = v->in[i];
    in[n_in] = v->dout[0];
    for (int32_t i = 0; i < n_wrt; i++)
        in[n_in + 1 + i] = v->in[n_in + i];
    pk_emit(v->g, PK_OP_ATTENTION_BWD2, v->attr, in, n_in + 1 + n_wrt, out);
    for (int32_t i = 0; i < n_wrt; i++)
        v->din[i] = out[i];
    in[n_in + 1] = v->dout[0]; /* dy also as y, which x^p does not read */
    pk_emit(v->g, PK_OP_ATTENTION_BWD, v->attr, in, n_in + 2, out);
    for (int32_t i = 0; i < n_wrt; i++)
        v->din[n_in + i] = out[i];
}

const struct pk_rule pk_rule_attention_jvp = {.name = "attention_jvp",
                                              .min_in = 2,
                                              .max_in = 12,
                                              .kind = PK_KIND_ATTENTION,
                                              .infer = infer_jvp,
                                              .vjp = vjp_jvp,
                                              .want = PK_WANT_F32,
                                              .makes = PK_MAKES_SUMS,
                                              .cost = pk_attention_cost_jvp};

static enum pd_err infer_bwd2(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                              struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_attention_attr *a = &attr->attention;
    struct dims x;
    enum pd_err err = begin_tangents(a, in, n_in, true, &x, why);
    int32_t n = 0;

    if (err != PD_OK)
        return err;
    for (; n < pk_attention_wrt(a); n++)
        ret_out[n] = in[n];
    ret_out[n++] = in[x.after];
    *ret_n_out = n;
    return PD_OK;
}

/* By primitives: third derivatives have no kernel. */
static void vjp_bwd2(struct pk_vjp *v)
{
    struct pk_graph *g = v->g;
    const struct pk_attention_attr *a = &v->attr->attention;
    const int32_t n_wrt = pk_attention_wrt(a), n_in = pk_attention_ins(a);
    struct pk_val leaf[5], tangent[5], y, dy = pk_alias(g, v->in[n_in]), first[5], back[11], second[6],
                                          third[11];

    for (int32_t i = 0; i < n_wrt; i++)
        tangent[i] = pk_alias(g, v->in[n_in + 1 + i]);
    y = decomposed_of(g, v->attr, false, v->in, leaf);
    pk_grad_many(g, &y, &dy, 1, leaf, (size_t)n_wrt, first);
    for (int32_t i = 0; i < n_wrt; i++)
        back[i] = leaf[i];
    back[n_wrt] = dy;
    for (int32_t i = 0; i < n_wrt; i++)
        back[n_wrt + 1 + i] = tangent[i];
    pk_grad_many(g, first, tangent, (size_t)n_wrt, back, (size_t)n_wrt + 1, second);
    pk_grad_many(g, second, v->dout, (size_t)n_wrt + 1, back, 2 * (size_t)n_wrt + 1, third);
    for (int32_t i = 0; i < n_wrt; i++) {
        v->din[i] = third[i];
        v->din[n_in + 1 + i] = third[n_wrt + 1 + i];
    }
    v->din[n_in] = third[n_wrt];
}

const struct pk_rule pk_rule_attention_bwd2 = {.name = "attention_bwd2",
                                               .min_in = 3,
                                               .max_in = MAX_IN,
                                               .kind = PK_KIND_ATTENTION,
                                               .infer = infer_bwd2,
                                               .vjp = vjp_bwd2,
                                               .want = PK_WANT_F32,
                                               .makes = PK_MAKES_SUMS,
                                               .cost = pk_attention_cost_bwd2};
