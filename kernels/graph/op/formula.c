/* Attention whose activation is a formula (kernels/formula), its derivative and its diagnostics. Types, costs and inputs
 * are those of ATTENTION; second derivatives are computed by primitives. */
#include <string.h>

#include "kernels/base/arena.h"
#include "kernels/formula/formula.h"
#include "kernels/graph/build.h"
#include "kernels/graph/op/attention.h"
#include "kernels/graph/op/registry.h"

#define MAX_IN 13

void pk_formula_attr_set(struct pk_attr *a, const struct pk_formula_use *use)
{
    a->formula.plan = use->plan;
    a->formula.n = use->n;
    a->formula.layer = use->layer;
    a->formula.layers = use->layers;
    /* A row of phi.h of the kind ALONE: without sums, degree and linear form. */
    while (pk_phi_kind_of(a->attention.phi) != PK_KIND_ALONE)
        a->attention.phi = (enum pk_phi)(a->attention.phi + 1);
    a->attention.scale = 1;
    a->attention.form = PK_FORM_QUADRATIC;
}

/* Number of statistics saved per row for the backward part: row functions, the shift, keys that attain a maximum. */
static int64_t kept_of(const struct pk_formula_plan *p)
{
    int64_t n = p->rows + p->shift;

    for (int k = 0; k < p->rows; k++)
        n += p->row[k] == PK_ROW_MAX;
    return n;
}

struct dims {
    int64_t b, h, nq, nk, d;
    int32_t after; /* first input that FORMULA does not have */
};

/* Checks the inputs that all three ops have in common: the scalars here, the others by ATTENTION's rule. */
static enum pd_err begin(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in, struct dims *ret,
                         struct pd_why *why)
{
    const struct pk_attention_attr *a = &attr->attention;
    const struct pk_formula_plan *p = attr->formula.plan;
    const int32_t scalars = a->packed ? 1 : 3;
    struct pk_attr as = *attr;
    struct pk_type type[MAX_IN], out[PK_MAX_OUT];
    struct dims x = {.after =
                         scalars + a->has_scale + a->has_bias + a->has_mask + a->has_length + a->has_rng};
    int32_t n_out;
    enum pd_err err;

    if (!p)
        return pd_fail(why, PD_ERR_INVALID, "there is no formula");
    if (n_in < x.after)
        return pd_fail(why, PD_ERR_INVALID, "needs %d inputs", x.after);
    if (a->has_scale != (p->params > 0))
        return pd_fail(why, PD_ERR_INVALID, "the formula has %d learned scalars", p->params);
    memcpy(type, in, (size_t)x.after * sizeof *type);
    if (a->has_scale)
        type[scalars].shape = PK_SHAPE(1);
    as.attention.degree = 1;
    err = pk_rule_attention.infer(&as, type, x.after, out, &n_out, why);
    if (err != PD_OK)
        return err;
    x.b = out[0].shape.dim[0];
    x.nq = out[0].shape.dim[1];
    x.h = out[0].shape.dim[2];
    x.d = out[0].shape.dim[3];
    x.nk = a->packed ? x.nq : in[1].shape.dim[2];
    if (a->has_scale) {
        const struct pk_shape want = PK_SHAPE(p->params, x.h);

        if (!pk_shape_equal(&in[scalars].shape, &want))
            return pd_fail(why, PD_ERR_INVALID, "the learned scalars must be (%d, H)", p->params);
    }
    *ret = x;
    return PD_OK;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin(attr, in, n_in, &x, why);
    int64_t kept;

    if (err != PD_OK)
        return err;
    if (n_in != x.after)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", x.after);
    kept = kept_of(attr->formula.plan);
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.nq, x.h, x.d)};
    ret_out[1] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.h, kept, x.nq)};
    *ret_n_out = kept ? 2 : 1;
    return PD_OK;
}

static void vjp(struct pk_vjp *v)
{
    struct pk_val in[MAX_IN], out[PK_MAX_OUT];
    int32_t n = 0;

    if (v->n_out > 1 && v->dout[1].id) {
        pk_graph_fail(v->g, PD_ERR_UNSUPPORTED,
                      "formula: no derivative through its row statistics; build the graph decomposed");
        return;
    }
    for (int32_t i = 0; i < v->n_in; i++)
        in[n++] = v->in[i];
    in[n++] = v->out[0];
    in[n++] = v->dout[0];
    if (v->n_out > 1)
        in[n++] = v->out[1];
    pk_emit(v->g, PK_OP_FORMULA_BWD, v->attr, in, n, out);
    for (int32_t k = 0; k < pk_attention_wrt(&v->attr->attention); k++)
        v->din[k] = out[k];
}

/* ---- the graph owns a copy of the plan ---- */

static bool attr_own(struct pk_attr *attr, struct pd_arena *arena)
{
    struct pk_formula_plan *own = pd_arena_alloc(arena, sizeof *own);

    if (!own)
        return false;
    memcpy(own, attr->formula.plan, sizeof *own);
    attr->formula.plan = own;
    return true;
}

static bool attr_same(const struct pk_attr *a, const struct pk_attr *b)
{
    struct pk_attr x = *a;

    if (a->formula.plan != b->formula.plan &&
        memcmp(a->formula.plan, b->formula.plan, sizeof *a->formula.plan))
        return false;
    x.formula.plan = b->formula.plan;
    return memcmp(&x, b, sizeof x) == 0;
}

static uint64_t attr_hash(const struct pk_attr *attr)
{
    const unsigned char *bytes = (const unsigned char *)attr->formula.plan;
    uint64_t h = pk_hash_mix((uint64_t)(attr->formula.n * 1024), (uint64_t)attr->formula.layer);

    for (size_t i = 0; i < sizeof *attr->formula.plan; i++)
        h = (h ^ bytes[i]) * 1099511628211u;
    return h;
}

const struct pk_rule pk_rule_formula = {.name = "formula",
                                        .min_in = 1,
                                        .max_in = 8,
                                        .kind = PK_KIND_ATTENTION,
                                        .infer = infer,
                                        .vjp = vjp,
                                        .attr_own = attr_own,
                                        .attr_same = attr_same,
                                        .attr_hash = attr_hash,
                                        .want_of = pk_attention_want,
                                        .makes_of = pk_attention_makes,
                                        .cost = pk_attention_cost};

static enum pd_err infer_bwd(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                             struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin(attr, in, n_in, &x, why);
    struct pk_shape y, rows;
    int64_t kept;
    int32_t n = 0;

    if (err != PD_OK)
        return err;
    kept = kept_of(attr->formula.plan);
    y = PK_SHAPE(x.b, x.nq, x.h, x.d);
    rows = PK_SHAPE(x.b, x.h, kept, x.nq);
    if (n_in != x.after + 2 + (kept > 0) || !pk_shape_equal(&in[x.after].shape, &y) ||
        !pk_shape_equal(&in[x.after + 1].shape, &y) ||
        (kept > 0 && !pk_shape_equal(&in[x.after + 2].shape, &rows)))
        return pd_fail(why, PD_ERR_INVALID, "needs y and dy (B, Nq, H, d), and the row statistics");
    for (; n < pk_attention_wrt(&attr->attention); n++)
        ret_out[n] = in[n];
    *ret_n_out = n;
    return PD_OK;
}

static void vjp_bwd(struct pk_vjp *v)
{
    pk_attention_vjp_bwd_decomposed(v, true);
}

static void cost_bwd(const struct pk_call *c, struct pk_cost *ret)
{
    pk_attention_cost_bwd(c, ret);
    if (!c->attr->formula.plan->needs_d)
        return;
    ret->read = 0; /* y is read too, which ATTENTION's rule does not count */
    for (int32_t i = 0; i < c->n_in; i++)
        ret->read += pk_view_bytes(&c->in[i]);
}

const struct pk_rule pk_rule_formula_bwd = {.name = "formula_bwd",
                                            .min_in = 3,
                                            .max_in = 11,
                                            .kind = PK_KIND_ATTENTION,
                                            .infer = infer_bwd,
                                            .vjp = vjp_bwd,
                                            .attr_own = attr_own,
                                            .attr_same = attr_same,
                                            .attr_hash = attr_hash,
                                            .want_of = pk_attention_want_bwd,
                                            .makes_of = pk_attention_makes_bwd,
                                            .cost = cost_bwd};

static enum pd_err infer_stats(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                               struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    struct dims x;
    enum pd_err err = begin(attr, in, n_in, &x, why);
    const struct pk_shape *rows;

    if (err != PD_OK)
        return err;
    if (n_in != x.after + 1)
        return pd_fail(why, PD_ERR_INVALID, "takes %d inputs", x.after + 1);
    rows = &in[x.after].shape;
    if (rows->rank != 3 || rows->dim[0] != x.b || rows->dim[1] != x.nq || in[x.after].dtype != in[0].dtype)
        return pd_fail(why, PD_ERR_INVALID, "the rows must be (B, Nq, D)");
    for (int i = 0; i < 6; i++)
        ret_out[i] = (struct pk_type){in[0].dtype, PK_SHAPE(x.b, x.h)};
    *ret_n_out = 6;
    return PD_OK;
}

const struct pk_rule pk_rule_formula_stats = {.name = "formula_stats",
                                              .min_in = 2,
                                              .max_in = 9,
                                              .kind = PK_KIND_ATTENTION,
                                              .infer = infer_stats,
                                              .attr_own = attr_own,
                                              .attr_same = attr_same,
                                              .attr_hash = attr_hash,
                                              .want_of = pk_attention_want_stats,
                                              .makes = PK_MAKES_NUMBER,
                                              .cost = pk_attention_cost_stats};
