/* Reverse mode, as a transform: walks the nodes between y and wrt backwards and lets each op's rule emit
 * its vector-Jacobian product. The result is ordinary nodes, so the transform applies to its own output.
 *
 * Only values on a path are visited: "depends on a wrt" is computed again for every transform. The first
 * contribution to a gradient is the gradient; later ones are added, and the planner adds in place. */
#include "kernels/graph/build.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool differentiable(const struct pk_value *v)
{
    return pk_dtype_is_float(v->dtype);
}

struct pass {
    struct pk_graph *g;
    uint32_t low, high;  /* values low .. high-1 are considered */
    bool *depends;       /* on a wrt */
    struct pk_val *grad; /* sum of the contributions so far */
};

static bool is_exact(const struct pk_graph *g, struct pk_val v)
{
    return g->node[g->value[v.id].node].exact;
}

static void flow(struct pass *p, struct pk_val to, struct pk_val d)
{
    const bool exact = p->g->exact;
    struct pk_val *at;
    struct pk_shape want = pk_shape_of(p->g, to), have = pk_shape_of(p->g, d);

    if (!d.id || p->g->err != PD_OK)
        return;
    if (!pk_shape_equal(&want, &have) || pk_dtype_of(p->g, to) != pk_dtype_of(p->g, d)) {
        pk_graph_fail(p->g, PD_ERR_INVALID,
                      "the derivative of a value has another shape or dtype than the value");
        return;
    }
    at = &p->grad[to.id - p->low];
    /* A sum is exact if the node that made `to` is, or those of both summands are. */
    if (at->id && (is_exact(p->g, to) || (is_exact(p->g, *at) && is_exact(p->g, d))))
        p->g->exact = true;
    *at = at->id ? pk_add(p->g, *at, d) : d;
    p->g->exact = exact;
}

static void visit(struct pass *p, uint32_t index)
{
    struct pk_graph *g = p->g;
    struct pk_node n = g->node[index]; /* emitting moves the array */
    const struct pk_rule *rule = pk_rule_of(n.op);
    struct pk_val in_small[8], din_small[8], *in = in_small, *din = din_small;
    struct pk_val out[PK_MAX_OUT], dout[PK_MAX_OUT];
    bool need_small[8], *need = need_small, any_need = false, any_dout = false;
    const char *scope = g->scope;
    const bool exact = g->exact;

    if (rule->leaf)
        return;
    for (int32_t i = 0; i < n.n_out; i++) {
        uint32_t id = n.out + (uint32_t)i;

        out[i].id = id;
        dout[i] = id >= p->low && id < p->high ? p->grad[id - p->low] : PK_NONE;
        any_dout = any_dout || dout[i].id;
    }
    if (!any_dout)
        return;
    if (n.n_in > 8) {
        in = calloc((size_t)n.n_in, sizeof *in);
        din = calloc((size_t)n.n_in, sizeof *din);
        need = calloc((size_t)n.n_in, sizeof *need);
        if (!in || !din || !need) {
            pk_graph_fail(g, PD_ERR_NOMEM, "no memory to differentiate %s", rule->name);
            goto out;
        }
    }
    for (int32_t i = 0; i < n.n_in; i++) {
        in[i].id = n.in[i];
        din[i] = PK_NONE;
        need[i] = n.in[i] >= p->low && n.in[i] < p->high && p->depends[n.in[i] - p->low];
        any_need = any_need || need[i];
    }
    if (!any_need)
        goto out;
    g->scope = n.scope;
    if (!rule->vjp) {
        pk_graph_fail(g, PD_ERR_UNSUPPORTED, "%s has no derivative", rule->name);
    } else {
        struct pk_vjp v = {g, n.attr, n.n_in, n.n_out, in, out, dout, need, din};

        g->exact = exact || n.exact;
        rule->vjp(&v);
        g->exact = exact;
        for (int32_t i = 0; i < n.n_in && g->err == PD_OK; i++)
            if (need[i])
                flow(p, in[i], din[i]);
    }
    g->scope = scope;
out:
    if (in != in_small)
        free(in);
    if (din != din_small)
        free(din);
    if (need != need_small)
        free(need);
}

void pk_grad_many(struct pk_graph *g, const struct pk_val *y, const struct pk_val *seed, size_t n_y,
                  const struct pk_val *wrt, size_t n_wrt, struct pk_val *ret_grads)
{
    struct pass p = {.g = g, .low = UINT32_MAX};
    uint32_t first, last = 0;
    bool backward;

    for (size_t i = 0; i < n_wrt; i++)
        ret_grads[i] = PK_NONE;
    if (!g || g->err != PD_OK || n_wrt == 0)
        return;
    for (size_t i = 0; i < n_wrt; i++) {
        if (!wrt[i].id || wrt[i].id >= g->n_value) {
            pk_graph_fail(g, PD_ERR_INVALID, "grad: input %zu is no value of this graph", i);
            return;
        }
        if (!differentiable(&g->value[wrt[i].id])) {
            pk_graph_fail(g, PD_ERR_INVALID, "grad: input %zu is not of a float dtype", i);
            return;
        }
        if (wrt[i].id < p.low)
            p.low = wrt[i].id;
    }
    p.high = g->n_value;
    p.depends = calloc(p.high - p.low, sizeof *p.depends);
    p.grad = calloc(p.high - p.low, sizeof *p.grad);
    if (!p.depends || !p.grad) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory to differentiate");
        goto out;
    }
    backward = g->backward;
    g->backward = true;
    first = g->value[p.low].node;
    for (size_t k = 0; k < n_y; k++) {
        struct pk_val s = seed ? seed[k] : PK_NONE;

        if (!y[k].id || (seed && !s.id && n_y > 1))
            continue; /* its seed is zero */
        if (y[k].id >= p.high || !differentiable(&g->value[y[k].id])) {
            pk_graph_fail(g, PD_ERR_INVALID, "grad: the output is no float value of this graph");
            break;
        }
        if (y[k].id < p.low)
            continue;
        if (!s.id)
            s = pk_fill(g, pk_dtype_of(g, y[k]), pk_shape_of(g, y[k]), 1.0);
        flow(&p, y[k], s);
        if (g->value[y[k].id].node > last)
            last = g->value[y[k].id].node;
    }
    for (size_t i = 0; i < n_wrt; i++)
        p.depends[wrt[i].id - p.low] = true;
    for (uint32_t i = first; i <= last && g->err == PD_OK; i++) {
        const struct pk_node *n = &g->node[i];
        const struct pk_rule *rule = pk_rule_of(n->op);
        bool any = false;

        if (rule->leaf || rule->vjp == pk_vjp_zero || (rule->stops && rule->stops(n->attr)))
            continue;
        for (int32_t k = 0; k < n->n_in; k++)
            any = any || (n->in[k] >= p.low && p.depends[n->in[k] - p.low]);
        for (int32_t k = 0; any && k < n->n_out; k++) {
            uint32_t id = n->out + (uint32_t)k;

            if (id >= p.low && differentiable(&g->value[id]))
                p.depends[id - p.low] = true;
        }
    }
    for (uint32_t i = last; i >= first && i > 0 && g->err == PD_OK; i--)
        visit(&p, i);
    g->backward = backward;
    if (g->err == PD_OK)
        for (size_t i = 0; i < n_wrt; i++)
            ret_grads[i] = p.grad[wrt[i].id - p.low];
out:
    free(p.depends);
    free(p.grad);
}

void pk_grad(struct pk_graph *g, struct pk_val y, struct pk_val seed, const struct pk_val *wrt, size_t count,
             struct pk_val *ret_grads)
{
    for (size_t i = 0; i < count; i++)
        ret_grads[i] = PK_NONE;
    if (!g || g->err != PD_OK)
        return;
    if (!y.id || y.id >= g->n_value) {
        pk_graph_fail(g, PD_ERR_INVALID, "grad: the output is no value of this graph");
        return;
    }
    if (seed.id) {
        struct pk_shape a = pk_shape_of(g, y), b = pk_shape_of(g, seed);

        if (!pk_shape_equal(&a, &b) || pk_dtype_of(g, y) != pk_dtype_of(g, seed)) {
            pk_graph_fail(g, PD_ERR_INVALID, "grad: the seed must have the output's shape and dtype");
            return;
        }
    }
    pk_grad_many(g, &y, seed.id ? &seed : NULL, 1, wrt, count, ret_grads);
    for (size_t i = 0; i < count && g->err == PD_OK; i++) {
        bool backward = g->backward;

        g->backward = true;
        if (!ret_grads[i].id)
            ret_grads[i] = pk_fill(g, pk_dtype_of(g, wrt[i]), pk_shape_of(g, wrt[i]), 0.0);
        g->backward = backward;
        if (g->err == PD_OK)
            g->value[g->value[ret_grads[i].id].root].gradient = true;
    }
    for (size_t i = 0; i < count && g->err != PD_OK; i++)
        ret_grads[i] = PK_NONE;
}

/* Whether every tangent has the shape and dtype of its x. */
static bool tangents_fit(struct pk_graph *g, const struct pk_val *x, const struct pk_val *dx, size_t n_x)
{
    for (size_t i = 0; i < n_x; i++) {
        struct pk_shape a = pk_shape_of(g, x[i]), b = pk_shape_of(g, dx[i]);

        if (dx[i].id && (!pk_shape_equal(&a, &b) || pk_dtype_of(g, x[i]) != pk_dtype_of(g, dx[i]))) {
            pk_graph_fail(g, PD_ERR_INVALID, "jvp: tangent %zu must have its input's shape and dtype", i);
            return false;
        }
    }
    return true;
}

void pk_jvp(struct pk_graph *g, const struct pk_val *y, size_t n_y, const struct pk_val *x,
            const struct pk_val *dx, size_t n_x, struct pk_val *ret_dy)
{
    struct pk_val *u = calloc(n_y + 1, sizeof *u), *back = calloc(n_x + 1, sizeof *back);

    for (size_t i = 0; i < n_y; i++)
        ret_dy[i] = PK_NONE;
    if (!g || g->err != PD_OK)
        goto out;
    if (!u || !back) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory to differentiate");
        goto out;
    }
    if (!tangents_fit(g, x, dx, n_x))
        goto out;
    for (size_t i = 0; i < n_y; i++) {
        if (!y[i].id || y[i].id >= g->n_value) {
            pk_graph_fail(g, PD_ERR_INVALID, "jvp: output %zu is no value of this graph", i);
            goto out;
        }
        /* the tangent does not depend on this value */
        u[i] = pk_fill(g, pk_dtype_of(g, y[i]), pk_shape_of(g, y[i]), 1.0);
    }
    pk_grad_many(g, y, u, n_y, x, n_x, back);
    for (size_t k = 0; k < n_x; k++)
        if (!dx[k].id)
            back[k] = PK_NONE;
    pk_grad_many(g, back, dx, n_x, u, n_y, ret_dy);
    for (size_t i = 0; i < n_y && g->err == PD_OK; i++)
        if (!ret_dy[i].id)
            ret_dy[i] = pk_fill(g, pk_dtype_of(g, y[i]), pk_shape_of(g, y[i]), 0.0);
out:
    free(u);
    free(back);
}
