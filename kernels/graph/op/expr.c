/* Elementwise programs; their derivatives are programs again. */
#include <string.h>

#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

#include "kernels/graph/op/program.h"

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const char *wrong = pk_expr_check(attr->expr, n_in);

    if (wrong)
        return pd_fail(why, PD_ERR_INVALID, "%s", wrong);
    ret_out[0] = in[0];
    for (int32_t i = 0; i < n_in; i++) {
        if (!pk_dtype_is_float(in[i].dtype) || in[i].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "all inputs must be of one float dtype");
        if (!pk_shape_broadcast(&ret_out[0].shape, &in[i].shape, &ret_out[0].shape))
            return pd_fail(why, PD_ERR_INVALID, "the shapes do not fit each other");
    }
    *ret_n_out = 1;
    return PD_OK;
}

/* One node per instruction, for programs too long for one EXPR. */
static struct pk_val emit_node(struct pk_graph *g, const struct pk_dag *d, int32_t i, const struct pk_val *x,
                               struct pk_val *made)
{
    struct pk_expr p = {.count = 0};
    struct pk_val kid[3];
    int arity = pk_ex_arity(d->node[i].op), n = 0;

    if (d->node[i].op == PK_EX_IN)
        return x[d->node[i].arg];
    if (made[i].id)
        return made[i];
    for (int k = 0; k < arity; k++) {
        int32_t at = d->node[i].kid[k];

        if (d->node[at].op == PK_EX_CONST) {
            p.code[p.count].op = PK_EX_CONST;
            p.code[p.count++].imm = d->node[at].imm;
        } else {
            kid[n] = emit_node(g, d, at, x, made);
            p.code[p.count].op = PK_EX_IN;
            p.code[p.count++].arg = (uint8_t)n++;
        }
    }
    p.code[p.count].op = d->node[i].op;
    p.code[p.count++].arg = d->node[i].arg;
    made[i] = pk_expr_emit(g, &p, kid, n);
    return made[i];
}

static void vjp(struct pk_vjp *v)
{
    struct pk_dag d;
    int32_t in[PK_EXPR_INPUTS], wrt[PK_EXPR_INPUTS], grad[PK_EXPR_INPUTS], which[PK_EXPR_INPUTS];
    struct pk_val x[PK_EXPR_INPUTS + 1];
    int32_t root, seed;
    int n = 0;

    pk_dag_init(&d);
    for (int32_t i = 0; i < v->n_in; i++) {
        in[i] = pk_dag_in(&d, i);
        x[i] = v->in[i];
        if (v->need[i]) {
            wrt[n] = in[i];
            which[n++] = i;
        }
    }
    x[v->n_in] = v->dout[0];
    seed = pk_dag_in(&d, v->n_in);
    root = pk_dag_load(&d, v->attr->expr, in);
    /* Inputs that simplification removed have a zero gradient. */
    pk_dag_diff(&d, root, seed, wrt, n, grad);
    if (d.full) {
        pk_graph_fail(v->g, PD_ERR_LIMIT, "the derivative of an elementwise program is too long");
        return;
    }
    for (int j = 0; j < n; j++) {
        struct pk_expr p;
        uint8_t used[PK_EXPR_INPUTS];
        struct pk_val arg[PK_EXPR_INPUTS], r;
        int n_used;

        if (grad[j] < 0)
            continue;
        if (d.node[grad[j]].op == PK_EX_IN) {
            r = x[d.node[grad[j]].arg];
        } else if (d.node[grad[j]].op == PK_EX_CONST) {
            r = pk_fill(v->g, pk_dtype_of(v->g, v->dout[0]), pk_shape_of(v->g, v->dout[0]),
                        d.node[grad[j]].imm);
        } else if (pk_dag_store(&d, grad[j], &p, used, &n_used)) {
            for (int k = 0; k < n_used; k++)
                arg[k] = x[used[k]];
            r = pk_expr_emit(v->g, &p, arg, n_used);
        } else {
            struct pk_val made[PK_DAG_MAX] = {{0}};

            r = emit_node(v->g, &d, grad[j], x, made);
        }
        if (v->g->err != PD_OK)
            return;
        v->din[which[j]] = pk_sum_to(v->g, r, pk_shape_of(v->g, v->in[which[j]]));
    }
}

/* By field: padding must not vary. */
static bool attr_own(struct pk_attr *attr, struct pd_arena *arena)
{
    const struct pk_expr *from = attr->expr;

    attr->expr = pd_arena_alloc(arena, sizeof *attr->expr);
    if (!attr->expr)
        return false;
    attr->expr->count = from->count;
    for (int32_t i = 0; i < from->count; i++) {
        attr->expr->code[i].op = from->code[i].op;
        attr->expr->code[i].arg = from->code[i].arg;
        attr->expr->code[i].imm = from->code[i].imm;
    }
    return true;
}

static bool attr_same(const struct pk_attr *x, const struct pk_attr *y)
{
    const struct pk_expr *a = x->expr, *b = y->expr;

    if (a->count != b->count)
        return false;
    for (int32_t i = 0; i < a->count; i++)
        if (a->code[i].op != b->code[i].op || a->code[i].arg != b->code[i].arg ||
            memcmp(&a->code[i].imm, &b->code[i].imm, sizeof(double)) != 0)
            return false;
    return true;
}

static uint64_t attr_hash(const struct pk_attr *attr)
{
    uint64_t h = (uint64_t)attr->expr->count, imm;

    for (int32_t i = 0; i < attr->expr->count; i++) {
        memcpy(&imm, &attr->expr->code[i].imm, sizeof imm);
        h = pk_hash_mix(pk_hash_mix(pk_hash_mix(h, attr->expr->code[i].op), attr->expr->code[i].arg), imm);
    }
    return h;
}

static void fit(const struct pk_attr *attr, int32_t n_in, struct pk_view *in, struct pk_view *out)
{
    (void)attr;
    for (int32_t i = 0; i < n_in; i++)
        pk_view_spread(&in[i], &out[0].shape);
}

const struct pk_rule pk_rule_expr = {.name = "expr",
                                     .min_in = 1,
                                     .max_in = PK_EXPR_INPUTS,
                                     .kind = PK_KIND_ELEMENTWISE,
                                     .infer = infer,
                                     .vjp = vjp,
                                     .elementwise = true,
                                     .cheap = true,
                                     .attr_own = attr_own,
                                     .attr_same = attr_same,
                                     .attr_hash = attr_hash,
                                     .want = PK_WANT_PASSED,
                                     .fit = fit};
