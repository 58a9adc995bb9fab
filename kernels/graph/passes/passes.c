/* Rewrites of a private copy of the graph.
 *
 * All but the last work in the order of building, in which inputs come before their users. A node that reads a
 * leaf which another node writes is merged only with a node that reads the same version of the leaf. */
#include "kernels/graph/passes/passes.h"
#include "kernels/graph/passes/rewrite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/op/program.h"

bool pk_pass_init(struct pk_pass *p, struct pk_graph *g)
{
    memset(p, 0, sizeof *p);
    p->g = g;
    p->uses = calloc(g->n_value, sizeof *p->uses);
    p->output = calloc(g->n_value, sizeof *p->output);
    p->wrote = calloc(g->n_value, sizeof *p->wrote);
    p->many = calloc(g->n_value, sizeof *p->many);
    if (!p->uses || !p->output || !p->wrote || !p->many)
        return false;
    for (size_t i = 0; i < g->n_output; i++)
        p->output[g->output[i].value] = true;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];
        int32_t at[PK_MAX_WRITES], writes = pk_op_writes(n->op, n->attr, n->n_in, at);

        for (int32_t k = 0; k < writes && !n->dead; k++) {
            uint32_t root = g->value[n->in[at[k]]].root;

            if (!p->wrote[root])
                p->wrote[root] = n->born;
            else
                p->many[root]++;
        }
    }
    return true;
}

void pk_pass_done(struct pk_pass *p)
{
    free(p->uses);
    free(p->output);
    free(p->wrote);
    free(p->many);
}

void pk_pass_count_uses(struct pk_pass *p)
{
    struct pk_graph *g = p->g;

    memset(p->uses, 0, g->n_value * sizeof *p->uses);
    for (size_t i = 0; i < g->n_output; i++)
        p->uses[g->value[g->output[i].value].root]++;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];
        const struct pk_rule *rule = pk_rule_of(n->op);

        if (n->dead || rule->leaf || rule->view)
            continue;
        for (int32_t k = 0; k < n->n_in; k++)
            p->uses[g->value[n->in[k]].root]++;
    }
}

/* Whether `value` is the same at the times a and b. */
static bool same_version(const struct pk_pass *p, uint32_t value, uint64_t a, uint64_t b)
{
    uint32_t root = p->g->value[value].root;

    if (!p->wrote[root])
        return true;
    return !p->many[root] && (a < p->wrote[root]) == (b < p->wrote[root]);
}

bool pk_pass_inputs_unchanged(const struct pk_pass *p, const struct pk_node *n, uint64_t when)
{
    for (int32_t i = 0; i < n->n_in; i++)
        if (!same_version(p, n->in[i], n->born, when))
            return false;
    return true;
}

/* Removes nodes that nothing reads and that write no leaf. */
static bool sweep(struct pk_graph *g)
{
    bool *alive = calloc(g->n_node, sizeof *alive);
    uint32_t *todo = calloc(g->n_node, sizeof *todo);
    size_t n = 0;

    if (!alive || !todo) {
        free(alive);
        free(todo);
        return false;
    }
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_rule *rule = pk_rule_of(g->node[i].op);

        if (!g->node[i].dead && (rule->writes || rule->ranks)) {
            alive[i] = true;
            todo[n++] = i;
        }
    }
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t node = g->value[g->output[i].value].node;

        if (!alive[node]) {
            alive[node] = true;
            todo[n++] = node;
        }
    }
    while (n) {
        const struct pk_node *x = &g->node[todo[--n]];

        for (int32_t i = 0; i < x->n_in; i++) {
            uint32_t node = g->value[x->in[i]].node;

            if (!alive[node]) {
                alive[node] = true;
                todo[n++] = node;
            }
        }
    }
    for (uint32_t i = 1; i < g->n_node; i++)
        g->node[i].dead = !alive[i];
    free(alive);
    free(todo);
    return true;
}

/* ---- constants and identities ---- */

static bool is_fill(const struct pk_graph *g, uint32_t value, double *ret)
{
    const struct pk_node *n = &g->node[g->value[g->value[value].root].node];

    if (n->op != PK_OP_FILL)
        return false;
    *ret = n->attr->fill.value; /* every view of it is as constant */
    return true;
}

static void become_fill(struct pk_graph *g, struct pk_node *n, double value)
{
    const struct pk_value *v = &g->value[n->out];

    memset(n->attr, 0, sizeof *n->attr);
    n->attr->shape = v->shape;
    n->attr->fill.dtype = v->dtype;
    n->attr->fill.value = value;
    n->op = PK_OP_FILL;
    n->n_in = 0;
}

/* Loads constant inputs into the program of an EXPR and simplifies it. */
static void tidy_expr(struct pk_pass *p, struct pk_node *n)
{
    struct pk_graph *g = p->g;
    struct pk_dag d;
    struct pk_expr out;
    int32_t in[PK_EXPR_INPUTS], root;
    uint8_t used[PK_EXPR_INPUTS];
    uint32_t old[PK_EXPR_INPUTS];
    int n_used;

    pk_dag_init(&d);
    for (int32_t i = 0; i < n->n_in; i++) {
        double value;
        int32_t same = i;

        old[i] = n->in[i];
        for (int32_t j = 0; j < i; j++)
            if (n->in[j] == n->in[i])
                same = j;
        in[i] = is_fill(g, n->in[i], &value) ? pk_dag_const(&d, value) : pk_dag_in(&d, same);
    }
    root = pk_dag_load(&d, n->attr->expr, in);
    if (!d.full && d.node[root].op == PK_EX_CONST) {
        become_fill(g, n, d.node[root].imm);
        return;
    }
    if (!pk_dag_store(&d, root, &out, used, &n_used) || n_used == 0)
        return;
    *n->attr->expr = out;
    n->n_in = n_used;
    for (int i = 0; i < n_used; i++)
        n->in[i] = old[used[i]];
}

/* The value of which `n` is an unchanged copy, or 0. */
static uint32_t identity_of(const struct pk_pass *p, const struct pk_node *n)
{
    const struct pk_graph *g = p->g;
    const struct pk_value *v, *y;

    if (n->op == PK_OP_EXPR
            ? n->n_in != 1 || n->attr->expr->count != 1 || n->attr->expr->code[0].op != PK_EX_IN
            : n->op != PK_OP_COPY)
        return 0;
    v = &g->value[n->in[0]];
    y = &g->value[n->out];
    /* A copy is needed if the leaf is written later, or if the caller reads the copy. */
    if (p->output[n->out] || p->wrote[v->root] || v->dtype != y->dtype ||
        !pk_shape_equal(&v->shape, &y->shape) || !pk_value_is_dense(v))
        return 0;
    return n->in[0];
}

/* ---- common subexpressions ---- */

struct slots {
    uint32_t *slot; /* node ids; 0: empty */
    size_t size;    /* power of two */
};

static uint64_t mix_bytes(uint64_t h, const void *bytes, size_t size)
{
    const unsigned char *b = bytes;

    while (size >= 8) {
        uint64_t x;

        memcpy(&x, b, 8);
        h = pk_hash_mix(h, x);
        b += 8;
        size -= 8;
    }
    while (size--)
        h = pk_hash_mix(h, *b++);
    return h;
}

static uint32_t def_node(const struct pk_graph *g, uint32_t value)
{
    const struct pk_node *n = &g->node[g->value[value].node];
    const struct pk_rule *rule;

    while ((rule = pk_rule_of(n->op))->view)
        n = &g->node[g->value[n->in[0]].node];
    return (uint32_t)(n - g->node);
}

static uint64_t view_hash(const struct pk_graph *g, uint32_t value)
{
    const struct pk_value *v = &g->value[value];
    uint64_t h = pk_hash_mix(pk_hash_mix(pk_hash_mix(1, v->root), (uint64_t)v->offset), def_node(g, value));

    for (int32_t i = 0; i < v->shape.rank; i++)
        h = pk_hash_mix(pk_hash_mix(h, (uint64_t)v->shape.dim[i]), (uint64_t)v->stride[i]);
    return h;
}

static bool view_same(const struct pk_graph *g, uint32_t a, uint32_t b)
{
    const struct pk_value *x = &g->value[a], *y = &g->value[b];

    return x->root == y->root && x->offset == y->offset && x->dtype == y->dtype &&
           pk_shape_equal(&x->shape, &y->shape) && def_node(g, a) == def_node(g, b) &&
           memcmp(x->stride, y->stride, (size_t)x->shape.rank * sizeof *x->stride) == 0;
}

static uint64_t node_hash(const struct pk_node *n)
{
    const struct pk_rule *rule = pk_rule_of(n->op);
    uint64_t h = pk_hash_mix(pk_hash_mix(2, n->op), (uint64_t)n->n_in);

    for (int32_t i = 0; i < n->n_in; i++)
        h = pk_hash_mix(h, n->in[i]);
    return rule->attr_hash ? pk_hash_mix(h, rule->attr_hash(n->attr))
                           : mix_bytes(h, n->attr, sizeof *n->attr);
}

static bool node_same(const struct pk_pass *p, const struct pk_node *a, const struct pk_node *b)
{
    const struct pk_rule *rule = pk_rule_of(a->op);

    for (int32_t i = 0; i < a->n_out && i < b->n_out; i++) /* one of them may be narrow by now */
        if (p->g->value[a->out + (uint32_t)i].dtype != p->g->value[b->out + (uint32_t)i].dtype)
            return false;
    if (a->op != b->op || a->n_in != b->n_in ||
        (a->n_in && memcmp(a->in, b->in, (size_t)a->n_in * sizeof *a->in) != 0) ||
        !pk_pass_inputs_unchanged(p, a, b->born))
        return false;
    return rule->attr_same ? rule->attr_same(a->attr, b->attr)
                           : memcmp(a->attr, b->attr, sizeof *a->attr) == 0;
}

/* One walk: renames inputs, recomputes views, folds constants, merges equal nodes. */
static bool simplify(struct pk_pass *p)
{
    struct pk_graph *g = p->g;
    uint32_t *to = malloc(g->n_value * sizeof *to); /* what each value has become */
    struct slots t = {NULL, 64};

    while (t.size < 2 * (size_t)g->n_node)
        t.size *= 2;
    t.slot = calloc(t.size, sizeof *t.slot);
    if (!to || !t.slot) {
        free(to);
        free(t.slot);
        return false;
    }
    for (uint32_t i = 0; i < g->n_value; i++)
        to[i] = i;
    for (uint32_t i = 1; i < g->n_node; i++) {
        struct pk_node *n = &g->node[i];
        const struct pk_rule *rule = pk_rule_of(n->op);
        uint32_t same;
        uint64_t h;

        if (n->dead || rule->leaf)
            continue;
        for (int32_t k = 0; k < n->n_in; k++)
            n->in[k] = to[n->in[k]];
        if (rule->view) {
            struct pk_value *v = &g->value[n->out], fresh = *v;
            const struct pk_value *root;

            /* Cannot fail: renaming replaces a dense value by a dense one. */
            if (pk_lay_view(n->op, n->attr, &g->value[n->in[0]], &fresh))
                *v = fresh;
            root = &g->value[v->root];
            /* A view of the whole value in its own layout is the value itself. */
            if (v->offset == 0 && pk_shape_equal(&v->shape, &root->shape) && pk_value_is_dense(v) &&
                def_node(g, n->out) == root->node) {
                to[n->out] = v->root;
                n->dead = true;
                continue;
            }
            h = view_hash(g, n->out);
        } else if (rule->writes) {
            for (int32_t k = 0; k < n->n_out; k++) {
                struct pk_value *v = &g->value[n->out + (uint32_t)k];
                int32_t from = pk_op_writes_through(n->op, n->n_in, k);
                const struct pk_value *cache;

                if (from < 0)
                    continue;
                cache = &g->value[n->in[from]];
                v->root = cache->root;
                v->offset = cache->offset;
                memcpy(v->stride, cache->stride, sizeof v->stride);
            }
            continue;
        } else if (rule->ranks) {
            continue; /* a collective: never eliminated or merged */
        } else {
            double value;

            if (n->op == PK_OP_EXPR)
                tidy_expr(p, n);
            else if (n->op == PK_OP_COPY && is_fill(g, n->in[0], &value))
                become_fill(g, n,
                            pk_dtype_is_float(g->value[n->out].dtype) ? value : trunc(value)); /* a cast */
            else if (n->op == PK_OP_SUM && is_fill(g, n->in[0], &value) &&
                     pk_shape_count(&g->value[n->out].shape) > 0)
                become_fill(g, n,
                            value * (double)(pk_shape_count(&g->value[n->in[0]].shape) /
                                             pk_shape_count(&g->value[n->out].shape)));
            same = identity_of(p, n);
            if (same) {
                to[n->out] = same;
                n->dead = true;
                continue;
            }
            h = node_hash(n);
        }
        for (size_t at = h & (t.size - 1);; at = (at + 1) & (t.size - 1)) {
            const struct pk_node *o = &g->node[t.slot[at]];

            if (!t.slot[at]) {
                t.slot[at] = i;
                break;
            }
            if (!pk_rule_of(o->op)->view != !rule->view ||
                !(rule->view ? view_same(g, o->out, n->out) : node_same(p, o, n)))
                continue;
            for (int32_t k = 0; k < n->n_out; k++) {
                to[n->out + (uint32_t)k] = o->out + (uint32_t)k;
                g->value[o->out + (uint32_t)k].gradient |= g->value[n->out + (uint32_t)k].gradient;
                p->output[o->out + (uint32_t)k] |= p->output[n->out + (uint32_t)k];
            }
            g->node[t.slot[at]].exact |= n->exact;
            n->dead = true;
            break;
        }
    }
    for (size_t i = 0; i < g->n_output; i++)
        g->output[i].value = to[g->output[i].value];
    free(to);
    free(t.slot);
    return true;
}

/* ---- order ---- */

struct place {
    uint64_t key;
    uint32_t node;
};

static int place_compare(const void *x, const void *y)
{
    const struct place *a = x, *b = y;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

bool pk_passes_renumber(struct pk_graph *g)
{
    struct place *place = calloc(g->n_node, sizeof *place);
    struct pk_node *node = calloc(g->cap_node, sizeof *node);
    uint32_t *to = calloc(g->n_node, sizeof *to);

    if (!place || !node || !to) {
        free(place);
        free(node);
        free(to);
        return false;
    }
    for (uint32_t i = 1; i < g->n_node; i++)
        place[i] = (struct place){g->node[i].key, i};
    qsort(place + 1, g->n_node - 1, sizeof *place, place_compare);
    for (uint32_t i = 1; i < g->n_node; i++) {
        node[i] = g->node[place[i].node];
        node[i].key = (uint64_t)i * PK_KEY_STEP;
        to[place[i].node] = i;
    }
    for (uint32_t i = 1; i < g->n_value; i++)
        g->value[i].node = to[g->value[i].node];
    free(g->node);
    g->node = node;
    free(place);
    free(to);
    return true;
}

/* ---- chains of elementwise nodes ---- */

static int32_t input_of(uint32_t *list, int32_t *n, uint32_t value)
{
    for (int32_t i = 0; i < *n; i++)
        if (list[i] == value)
            return i;
    list[*n] = value;
    return (*n)++;
}

/* Joins the elementwise node that made input k into `n`. False if that is not possible. */
static bool join(struct pk_pass *p, struct pk_node *n, int32_t k)
{
    struct pk_graph *g = p->g;
    uint32_t value = n->in[k], list[2 * PK_EXPR_INPUTS], *in;
    struct pk_node *m = &g->node[g->value[value].node];
    int32_t count = 0, direct = 0, at[PK_EXPR_INPUTS], inner, root;
    struct pk_dag d;
    struct pk_expr out;
    uint8_t used[PK_EXPR_INPUTS];
    int n_used;

    if (m->op != PK_OP_EXPR || m->dead || m->exact != n->exact || g->value[value].root != value ||
        p->output[value] || !pk_shape_equal(&g->value[value].shape, &g->value[n->out].shape) ||
        !pk_pass_inputs_unchanged(p, m, n->born))
        return false;
    for (int32_t i = 0; i < n->n_in; i++)
        direct += n->in[i] == value;
    if (p->uses[value] != (uint32_t)direct)
        return false;
    pk_dag_init(&d);
    for (int32_t i = 0; i < m->n_in; i++)
        at[i] = pk_dag_in(&d, input_of(list, &count, m->in[i]));
    inner = pk_dag_load(&d, m->attr->expr, at);
    for (int32_t i = 0; i < n->n_in; i++)
        at[i] = n->in[i] == value ? inner : pk_dag_in(&d, input_of(list, &count, n->in[i]));
    root = pk_dag_load(&d, n->attr->expr, at);
    if (!pk_dag_store(&d, root, &out, used, &n_used) || n_used == 0)
        return false;
    in = pd_arena_alloc(g->arena, (size_t)n_used * sizeof *in);
    if (!in)
        return false;
    for (int32_t i = 0; i < n->n_in; i++)
        p->uses[g->value[n->in[i]].root]--;
    for (int32_t i = 0; i < m->n_in; i++)
        p->uses[g->value[m->in[i]].root]--;
    for (int i = 0; i < n_used; i++) {
        in[i] = list[used[i]];
        p->uses[g->value[in[i]].root]++;
    }
    *n->attr->expr = out;
    n->in = in;
    n->n_in = n_used;
    m->dead = true;
    return true;
}

static void chains(struct pk_pass *p)
{
    struct pk_graph *g = p->g;

    pk_pass_count_uses(p);
    for (uint32_t i = 1; i < g->n_node; i++) {
        struct pk_node *n = &g->node[i];

        if (n->dead || n->op != PK_OP_EXPR)
            continue;
        for (int32_t k = 0; k < n->n_in;)
            k = join(p, n, k) ? 0 : k + 1;
    }
}

/* ---- the table ---- */

static enum pd_err with_facts(struct pk_graph *g, bool (*walk)(struct pk_pass *p), struct pd_why *why)
{
    struct pk_pass p;
    bool ok = pk_pass_init(&p, g) && walk(&p);

    pk_pass_done(&p);
    return ok ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}

static bool walk_simplify(struct pk_pass *p)
{
    return simplify(p) && sweep(p->g);
}

static bool walk_slices(struct pk_pass *p)
{
    return pk_pass_slices(p) && sweep(p->g);
}

static bool walk_extra_outputs(struct pk_pass *p)
{
    struct pd_why why;
    bool changed;

    /* Nodes were added. */
    return pk_pass_extra_outputs(p, &changed) && (!changed || with_facts(p->g, walk_simplify, &why) == PD_OK);
}

static bool walk_chains(struct pk_pass *p)
{
    chains(p);
    return sweep(p->g);
}

static enum pd_err run_simplify(struct pk_graph *g, struct pd_why *why)
{
    return with_facts(g, walk_simplify, why);
}

static enum pd_err run_slices(struct pk_graph *g, struct pd_why *why)
{
    return with_facts(g, walk_slices, why);
}

static enum pd_err run_epilogues(struct pk_graph *g, struct pd_why *why)
{
    return with_facts(g, pk_pass_epilogues, why);
}

static enum pd_err run_extra_outputs(struct pk_graph *g, struct pd_why *why)
{
    return with_facts(g, walk_extra_outputs, why);
}

static enum pd_err run_chains(struct pk_graph *g, struct pd_why *why)
{
    return with_facts(g, walk_chains, why);
}

static enum pd_err run_narrow(struct pk_graph *g, struct pd_why *why)
{
    enum pd_err err = pk_passes_narrow(g, why);

    /* Merges equal casts and removes casts of values that are bf16 already. */
    return err == PD_OK ? run_simplify(g, why) : err;
}

static enum pd_err run_residual(struct pk_graph *g, struct pd_why *why)
{
    enum pd_err err = pk_passes_residual(g, why);

    if (err == PD_OK && !sweep(g))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
    return err;
}

enum when { ALWAYS, MIXED /* in mixed plans only */, AGAIN /* in the second round */ };

static const struct {
    const char *name;
    enum pd_err (*run)(struct pk_graph *g, struct pd_why *why);
    enum when when;
} table[] = {
    {"simplify", run_simplify, ALWAYS},     {"slices", run_slices, ALWAYS},
    {"epilogues", run_epilogues, ALWAYS},   {"extra_outputs", run_extra_outputs, ALWAYS},
    {"chains", run_chains, ALWAYS},         {"loss", pk_passes_loss, ALWAYS},
    {"narrow", run_narrow, MIXED},          {"columns", pk_passes_columns, MIXED},
    {"residual", run_residual, ALWAYS},     {"recompute", pk_passes_recompute, AGAIN},
    {"norms", pk_passes_norm_again, AGAIN},
};

const char *pk_passes_name(size_t i)
{
    return i < sizeof table / sizeof *table ? table[i].name : NULL;
}

static uint32_t living(const struct pk_graph *g)
{
    uint32_t n = 0;

    for (uint32_t i = 1; i < g->n_node; i++)
        n += !g->node[i].dead;
    return n;
}

static enum pd_err run_round(struct pk_graph *g, bool again, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < sizeof table / sizeof *table && err == PD_OK; i++) {
        uint32_t before;

        if ((table[i].when == AGAIN) != again ||
            (table[i].when == MIXED && g->precision != PK_PRECISION_MIXED) || (g->passes.off & (1u << i)))
            continue;
        before = g->passes.trace ? living(g) : 0;
        err = table[i].run(g, why);
        if (err == PD_OK && g->passes.trace)
            g->passes.trace(g->passes.user, table[i].name, before, living(g));
    }
    return err;
}

enum pd_err pk_passes_run(struct pk_graph *g, struct pd_why *why)
{
    return sweep(g) ? run_round(g, false, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}

enum pd_err pk_passes_again(struct pk_graph *g, bool *ret_any, struct pd_why *why)
{
    const uint32_t before = g->n_node;
    enum pd_err err = run_round(g, true, why);

    *ret_any = g->n_node != before;
    return err;
}

static size_t bytes_of(const struct pk_graph *g, uint32_t value)
{
    const struct pk_value *v = &g->value[g->value[value].root];

    return (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);
}

/* `value`, seen on the copy `twin` of the node that made its root. 0 without memory. */
static uint32_t onto(struct pk_graph *g, uint32_t value, uint32_t made, uint32_t twin)
{
    uint32_t node = g->value[value].node, in;

    if (value == made)
        return g->node[twin].out;
    in = onto(g, g->node[node].in[0], made, twin);
    if (!in)
        return 0;
    node = pk_node_copy(g, node, &in);
    return node ? g->node[node].out : 0;
}

/* Backward readers of a root; grows while copies are made. */
struct readers {
    struct reader {
        uint32_t node, next;
    } * at;
    size_t count, cap;
    uint32_t *head; /* by root value; 0: none */
    size_t n_head;
};

static bool reads(struct readers *r, const struct pk_graph *g, uint32_t node)
{
    const struct pk_node *n = &g->node[node];

    for (int32_t k = 0; k < n->n_in; k++) {
        uint32_t root = g->value[n->in[k]].root;

        if (root >= r->n_head)
            continue; /* the output of a copy: stays */
        if (!pk_grow((void **)&r->at, sizeof *r->at, r->count, &r->cap))
            return false;
        if (r->count == 0)
            r->count = 1; /* place 0 means none */
        if (!pk_grow((void **)&r->at, sizeof *r->at, r->count, &r->cap))
            return false;
        r->at[r->count] = (struct reader){node, r->head[root]};
        r->head[root] = (uint32_t)r->count++;
    }
    return true;
}

/* A copy of node `i` for its first output; of a matmul only the activation. 0 if memory ran out. */
static uint32_t twin_of(struct pk_graph *g, uint32_t i)
{
    static const enum pk_ex does[] = {[PK_ACT_GELU] = PK_EX_GELU, [PK_ACT_GELU_TANH] = PK_EX_GELU_TANH};
    struct pk_expr act = {.count = 2};
    struct pk_val x, y;
    uint32_t twin;

    if (g->node[i].op != PK_OP_MATMUL)
        return pk_node_copy(g, i, g->node[i].in);
    act.code[0].op = PK_EX_IN;
    act.code[1].op = (uint8_t)does[g->node[i].attr->matmul.act];
    x = (struct pk_val){g->node[i].out + 1};
    y = pk_expr_emit(g, &act, &x, 1); /* moves the arrays */
    twin = g->value[y.id].node;
    if (twin)
        pk_node_belongs(g, twin, i);
    return twin;
}

/* Whether node `i` is cheap to recompute, and the inputs that would be kept only for that have fewer bytes than
 * its output. */
static bool is_cheap(const struct pk_graph *g, const struct readers *r, const bool *output, uint32_t i)
{
    const struct pk_node *n = &g->node[i];
    bool product = n->op == PK_OP_MATMUL && n->attr->matmul.keeps && n->attr->matmul.act != PK_ACT_RELU;
    size_t extra = 0;

    if (!pk_rule_of(n->op)->cheap && !product)
        return false;
    for (int32_t k = 0; k < (product ? 1 : n->n_in); k++) {
        uint32_t root = product ? n->out + 1 : g->value[n->in[k]].root;

        /* Leaves, and values that the backward part reads, are in memory anyway. */
        if (!pk_rule_of(g->node[g->value[root].node].op)->leaf && !r->head[root] && !output[root])
            extra += bytes_of(g, root);
    }
    return extra * 2 <= bytes_of(g, n->out);
}

/* Redirects all backward readers of node `i` to a copy of it. False if memory ran out. */
static bool split(struct pk_graph *g, struct readers *r, uint32_t i)
{
    uint32_t made = g->node[i].out, twin = 0;

    for (uint32_t at = r->head[made]; at; at = r->at[at].next) {
        uint32_t c = r->at[at].node;

        for (int32_t k = 0; k < g->node[c].n_in; k++) {
            uint32_t value = g->node[c].in[k];

            if (g->value[value].root != made)
                continue;
            if (!twin) {
                twin = twin_of(g, i);
                if (!twin)
                    return false;
                g->node[twin].backward = true;
                g->node[twin].key = UINT64_MAX;
            }
            value = onto(g, value, made, twin);
            if (!value)
                return false;
            g->node[c].in[k] = value;
            if (g->node[c].key - 1 < g->node[twin].key)
                g->node[twin].key = g->node[c].key - 1; /* as late as possible */
        }
    }
    return !twin || reads(r, g, twin);
}

enum pd_err pk_passes_recompute(struct pk_graph *g, struct pd_why *why)
{
    uint32_t n_node = g->n_node;
    bool *output = calloc(g->n_value, sizeof *output);
    struct readers r = {.n_head = g->n_value, .head = calloc(g->n_value, sizeof *r.head)};
    enum pd_err err = PD_ERR_NOMEM;

    if (!output || !r.head)
        goto out;
    for (size_t i = 0; i < g->n_output; i++)
        output[g->value[g->output[i].value].root] = true;
    for (uint32_t i = 1; i < n_node; i++) {
        const struct pk_node *n = &g->node[i];
        const struct pk_rule *rule = pk_rule_of(n->op);

        if (!rule->leaf && !n->dead && !rule->view && n->backward && !reads(&r, g, i))
            goto out;
    }
    /* From the last to the first: a copy's own inputs may be copied in turn. */
    for (uint32_t i = n_node; i-- > 1;) {
        const struct pk_node *n = &g->node[i];

        if (n->dead || n->backward || output[n->out] || !r.head[n->out] || !is_cheap(g, &r, output, i))
            continue;
        if (!split(g, &r, i))
            goto out;
    }
    if (sweep(g))
        err = PD_OK;
out:
    free(output);
    free(r.at);
    free(r.head);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the passes");
}
