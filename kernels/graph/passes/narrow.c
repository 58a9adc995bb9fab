/* From f32 to mixed precision, by the contract in op.h.
 *
 * Three walks over the graph:
 *
 *   forwards    finds the values that depend on the batch ("live"), not only on parameters or statistics
 *   backwards   chooses those that become bf16: live values with a reader that does not need f32
 *   forwards    sets the types and inserts a cast where an op needs another type than it gets
 *
 * Values that only optimisers, statistics or losses read stay f32. A gradient of a parameter leaves its matmul in
 * f32, because it is squared for the norm and summed over parts and ranks: sums of bf16 would lose small terms.
 * That costs two more bytes per parameter. All sums are f32.
 *
 * An exact node (pk_graph_exact) reads and writes what it would in full precision; a value that was narrowed for
 * another reader is widened for it.
 *
 * A leaf is cast as a whole and then seen through the same views, so a weight has one working copy for forward and
 * backward. If the graph has a state for the copy (pk_working_copy), there is no cast: the copy is read as it is,
 * and the optimiser's update writes it. */
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "kernels/graph/passes/rewrite.h"
#include "kernels/graph/plan.h"

struct cast { /* made already */
    uint32_t from, to;
    uint64_t born; /* version of the leaf that its reader sees */
    uint32_t next;
};

struct narrow {
    struct pk_graph *g;
    bool *live;       /* by value */
    bool *half;       /* by root value: becomes bf16 */
    bool *output;     /* by root value: the caller reads it */
    uint32_t *reads;  /* by root value */
    uint32_t *wants;  /* of those, how many want f32 */
    uint64_t *wrote;  /* by root value: when a leaf was first written; 0: never */
    bool *rewritten;  /* by root value: more than once */
    uint32_t *head;   /* by value: its casts; 0: none */
    uint32_t *copy;   /* by value: of a parameter, its working copy that others keep; 0: none */
    uint32_t n_value; /* before casts were added */
    struct cast *cast;
    size_t n_cast, cap_cast;
};

static bool narrow_init(struct narrow *w, struct pk_graph *g)
{
    size_t n = g->n_value;

    memset(w, 0, sizeof *w);
    w->g = g;
    w->n_value = g->n_value;
    w->live = calloc(n, sizeof *w->live);
    w->half = calloc(n, sizeof *w->half);
    w->output = calloc(n, sizeof *w->output);
    w->reads = calloc(n, sizeof *w->reads);
    w->wants = calloc(n, sizeof *w->wants);
    w->wrote = calloc(n, sizeof *w->wrote);
    w->rewritten = calloc(n, sizeof *w->rewritten);
    w->head = calloc(n, sizeof *w->head);
    w->copy = calloc(n, sizeof *w->copy);
    w->n_cast = 1; /* place 0 means none */
    return w->live && w->half && w->output && w->reads && w->wants && w->wrote && w->rewritten && w->head &&
           w->copy && pk_grow((void **)&w->cast, sizeof *w->cast, 0, &w->cap_cast);
}

static void narrow_done(struct narrow *w)
{
    free(w->live);
    free(w->half);
    free(w->output);
    free(w->reads);
    free(w->wants);
    free(w->wrote);
    free(w->rewritten);
    free(w->head);
    free(w->copy);
    free(w->cast);
}

static bool is_view(const struct pk_node *n)
{
    return pk_rule_of(n->op)->view;
}

static enum pk_want want_of(const struct pk_node *n, int32_t k)
{
    const struct pk_rule *rule = pk_rule_of(n->op);

    return rule->want_of ? rule->want_of(n->attr, n->n_in, k) : rule->want;
}

static enum pk_makes makes_of(const struct pk_node *n, int32_t k)
{
    const struct pk_rule *rule = pk_rule_of(n->op);

    return rule->makes_of ? rule->makes_of(n->attr, n->n_out, k) : rule->makes;
}

/* Whether output k of a kernel belongs to the batch. */
static bool output_live(const struct narrow *w, const struct pk_node *n, int32_t k)
{
    enum pk_makes makes = makes_of(n, k);
    bool live = makes == PK_MAKES_ROWS;

    for (int32_t i = 0; i < n->n_in && makes != PK_MAKES_NUMBER; i++) {
        enum pk_want want = want_of(n, i);
        bool counts = makes == PK_MAKES_SUMS    ? true
                      : makes == PK_MAKES_GROUP ? want == PK_WANT_GROUP
                                                : want != PK_WANT_F32;

        live = live || (counts && w->live[n->in[i]]);
    }
    return live;
}

/* A working copy is valid only if no node but an optimiser writes the parameter. */
static void find_copies(struct narrow *w)
{
    struct pk_graph *g = w->g;

    for (size_t i = 0; i < g->n_leaf; i++)
        w->copy[g->leaf[i].value] = g->leaf[i].copy;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];
        int32_t at[PK_MAX_WRITES], writes = pk_op_writes(n->op, n->attr, n->n_in, at);

        for (int32_t k = 0; k < writes && !n->dead; k++)
            if (!pk_rule_of(n->op)->updates || at[k] != 0)
                w->copy[g->value[n->in[at[k]]].root] = 0;
    }
}

/* An update writes the working copy as well. */
static bool update_copy(struct narrow *w, struct pk_node *n)
{
    struct pk_graph *g = w->g;
    uint32_t *in = pd_arena_alloc(g->arena, ((size_t)n->n_in + 1) * sizeof *in);

    if (!in)
        return false;
    memcpy(in, n->in, (size_t)n->n_in * sizeof *in);
    in[n->n_in] = w->copy[n->in[0]];
    n->in = in;
    n->n_in++;
    n->attr->optim.copy = true;
    return true;
}

static enum pd_err find_live(struct narrow *w, struct pd_why *why)
{
    struct pk_graph *g = w->g;

    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];
        int32_t at[PK_MAX_WRITES], writes = pk_op_writes(n->op, n->attr, n->n_in, at);

        if (n->dead)
            continue;
        for (int32_t k = 0; k < writes; k++) {
            uint32_t root = g->value[n->in[at[k]]].root;

            if (w->wrote[root])
                w->rewritten[root] = true;
            else
                w->wrote[root] = n->born;
        }
        for (int32_t k = 0; k < n->n_out; k++) {
            uint32_t v = n->out + (uint32_t)k;

            if (g->value[v].dtype == PK_F64)
                return pd_fail(why, PD_ERR_UNSUPPORTED,
                               "a graph of f64 cannot be planned in mixed precision");
            if (pk_rule_of(n->op)->fed) /* a single number is a setting, not a batch */
                w->live[v] = pk_shape_count(&g->value[v].shape) > 1;
            else if (is_view(n))
                w->live[v] = w->live[n->in[0]];
            else if (!pk_rule_of(n->op)->leaf)
                w->live[v] = output_live(w, n, k);
        }
    }
    for (size_t i = 0; i < g->n_output; i++)
        w->output[g->value[g->output[i].value].root] = true;
    return PD_OK;
}

/* Whether the inputs of `n` that must have a common type are bf16. Called before they are replaced. */
static bool group_half(const struct narrow *w, const struct pk_node *n)
{
    bool half = false;

    for (int32_t k = 0; k < n->n_in; k++) {
        enum pk_want want = want_of(n, k);

        if (want == PK_WANT_GROUP || want == PK_WANT_FACTOR)
            half = half || w->live[n->in[k]];
        if (want == PK_WANT_GROUP)
            half = half || w->g->value[n->in[k]].dtype == PK_BF16;
    }
    return half;
}

/* Whether output k may become bf16, and whether it must. */
static bool may_narrow(const struct narrow *w, const struct pk_node *n, int32_t k, bool *ret_must)
{
    enum pk_makes makes = makes_of(n, k);

    *ret_must = makes == PK_MAKES_GROUP && group_half(w, n);
    if (n->exact)
        return *ret_must = false;
    return *ret_must || makes == PK_MAKES_BATCH || makes == PK_MAKES_ROWS || makes == PK_MAKES_TIED;
}

/* Whether input k should stay f32; half: the node's first output becomes bf16. */
static bool would_store(const struct pk_node *n, int32_t k, bool half)
{
    if (n->exact)
        return true;
    switch (want_of(n, k)) {
    case PK_WANT_F32:
    case PK_WANT_BITS:
        return true;
    case PK_WANT_PASSED:
    case PK_WANT_OUTPUT:
        return !half;
    default:
        return false;
    }
}

/* The type that input k gets; group: of group_half. */
static enum pk_dtype need_of(const struct narrow *w, const struct pk_node *n, int32_t k, bool group)
{
    enum pk_dtype have = w->g->value[n->in[k]].dtype;

    if (n->exact)
        return w->half[w->g->value[n->in[k]].root] ? PK_F32 : have;
    switch (want_of(n, k)) {
    case PK_WANT_F32:
        return PK_F32;
    case PK_WANT_OUTPUT:
        return w->g->value[n->out].dtype;
    case PK_WANT_FIRST:
        return w->g->value[n->in[0]].dtype;
    case PK_WANT_FACTOR:
        return group ? PK_BF16 : have;
    case PK_WANT_GROUP:
    case PK_WANT_AS_GROUP:
        return group ? PK_BF16 : PK_F32;
    default:
        return have;
    }
}

/* Outputs that share the type of the first: all are bf16 or none is. */
static void tie(struct narrow *w, const struct pk_node *n)
{
    for (int32_t k = 1; k < n->n_out; k++)
        if (makes_of(n, k) == PK_MAKES_TIED)
            w->half[n->out] = w->half[n->out + (uint32_t)k] =
                w->half[n->out] && w->half[n->out + (uint32_t)k];
}

static void find_half(struct narrow *w)
{
    struct pk_graph *g = w->g;

    for (uint32_t i = g->n_node; i-- > 1;) {
        const struct pk_node *n = &g->node[i];

        if (!pk_is_kernel(n))
            continue;
        for (int32_t k = 0; k < n->n_out; k++) {
            uint32_t v = n->out + (uint32_t)k;
            bool must, may = may_narrow(w, n, k, &must);

            if (g->value[v].root != v || g->value[v].dtype != PK_F32)
                continue;
            w->half[v] = must || (may && w->live[v] && !w->output[v] &&
                                  pk_shape_count(&g->value[v].shape) > 1 && w->wants[v] < w->reads[v]);
        }
        tie(w, n);
        for (int32_t k = 0; k < n->n_in; k++) {
            uint32_t root = g->value[n->in[k]].root;

            w->reads[root]++;
            w->wants[root] += would_store(n, k, n->n_out > 0 && w->half[n->out]);
        }
    }
}

/* ---- types and casts ---- */

static bool same_version(const struct narrow *w, uint32_t value, uint64_t a, uint64_t b)
{
    uint32_t root = w->g->value[value].root;

    if (root >= w->n_value || !w->wrote[root])
        return true;
    return (a < w->wrote[root] && b < w->wrote[root]) ||
           (!w->rewritten[root] && a >= w->wrote[root] && b >= w->wrote[root]);
}

/* Puts a new node right before its reader. */
static void place_before(struct pk_graph *g, uint32_t node, uint32_t reader)
{
    pk_node_belongs(g, node, reader);
    g->node[node].key = g->node[reader].key - 1;
}

/* A dense copy of `value` in the other type, for `reader` (0: for the caller, at the end). 0 after an error.
 */
static uint32_t cast_of(struct narrow *w, uint32_t value, enum pk_dtype dtype, uint32_t reader)
{
    struct pk_graph *g = w->g;
    uint64_t born = reader ? g->node[reader].born : UINT64_MAX;
    struct pk_attr a = pk_attr_zero();
    struct pk_val y;

    if (dtype == PK_BF16 && value < w->n_value && w->copy[value])
        return w->copy[value];
    for (uint32_t at = value < w->n_value ? w->head[value] : 0; at; at = w->cast[at].next)
        if (g->value[w->cast[at].to].dtype == dtype && same_version(w, value, w->cast[at].born, born))
            return w->cast[at].to;
    a.copy.dtype = dtype;
    y = pk_emit(g, PK_OP_COPY, &a, &(struct pk_val){value}, 1, NULL);
    if (!y.id || !pk_grow((void **)&w->cast, sizeof *w->cast, w->n_cast, &w->cap_cast))
        return 0;
    if (reader)
        place_before(g, g->value[y.id].node, reader);
    else
        g->node[g->value[y.id].node].backward = false;
    g->value[y.id].working = dtype == PK_BF16 && pk_rule_of(g->node[g->value[value].node].op)->trained;
    g->value[y.id].gradient = g->value[g->value[value].root].gradient;
    if (value < w->n_value) {
        w->cast[w->n_cast] = (struct cast){value, y.id, born, w->head[value]};
        w->head[value] = (uint32_t)w->n_cast++;
    }
    return y.id;
}

/* `value`, a view of `root` and nothing else, seen on `twin`. */
static uint32_t onto(struct pk_graph *g, uint32_t value, uint32_t root, uint32_t twin, uint32_t reader)
{
    uint32_t node = g->value[value].node, in;

    if (value == root)
        return twin;
    in = onto(g, g->node[node].in[0], root, twin, reader);
    if (!in)
        return 0;
    node = pk_node_copy(g, node, &in);
    if (!node)
        return 0;
    place_before(g, node, reader);
    g->value[g->node[node].out].dtype = g->value[twin].dtype;
    return g->node[node].out;
}

static uint32_t as(struct narrow *w, uint32_t value, enum pk_dtype dtype, uint32_t reader)
{
    struct pk_graph *g = w->g;
    uint32_t root = value, twin;

    while (is_view(&g->node[g->value[root].node]))
        root = g->node[g->value[root].node].in[0];
    if (root == value || pk_shape_count(&g->value[root].shape) > pk_shape_count(&g->value[value].shape))
        return cast_of(w, value, dtype, reader);
    twin = cast_of(w, root, dtype, reader);
    return twin ? onto(g, value, root, twin, reader) : 0;
}

static void set_outputs(struct narrow *w, const struct pk_node *n)
{
    struct pk_graph *g = w->g;

    for (int32_t k = 0; k < n->n_out; k++) {
        uint32_t v = n->out + (uint32_t)k;

        if (makes_of(n, k) == PK_MAKES_AS_IN && !n->exact)
            w->half[v] = g->value[n->in[0]].dtype == PK_BF16;
        if (g->value[v].root != v)
            g->value[v].dtype = g->value[g->value[v].root].dtype; /* a cache */
        else if (w->half[v])
            g->value[v].dtype = PK_BF16;
    }
    if (pk_rule_of(n->op)->retype)
        pk_rule_of(n->op)->retype(n->attr, g->value[n->out].dtype);
}

static bool set_types(struct narrow *w)
{
    struct pk_graph *g = w->g;
    uint32_t n_node = g->n_node;

    for (uint32_t i = 1; i < n_node; i++) {
        bool group;

        if (g->node[i].dead || pk_rule_of(g->node[i].op)->leaf)
            continue;
        if (is_view(&g->node[i])) {
            g->value[g->node[i].out].dtype = g->value[g->node[i].in[0]].dtype;
            continue;
        }
        group = group_half(w, &g->node[i]);
        set_outputs(w, &g->node[i]);
        for (int32_t k = 0; k < g->node[i].n_in; k++) { /* casting moves the arrays */
            const struct pk_node *n = &g->node[i];
            enum pk_dtype have = g->value[n->in[k]].dtype, need = need_of(w, n, k, group);
            uint32_t in;

            if (!pk_dtype_is_float(have) || need == have)
                continue;
            in = as(w, n->in[k], need, i);
            if (!in)
                return false;
            g->node[i].in[k] = in;
        }
        if (pk_rule_of(g->node[i].op)->updates && w->copy[g->node[i].in[0]] && !update_copy(w, &g->node[i]))
            return false;
    }
    for (size_t i = 0; i < g->n_output; i++) {
        uint32_t v = g->output[i].value;

        if (!w->half[g->value[v].root])
            continue;
        v = cast_of(w, v, PK_F32, 0);
        if (!v)
            return false;
        g->output[i].value = v;
    }
    return true;
}

enum pd_err pk_passes_narrow(struct pk_graph *g, struct pd_why *why)
{
    struct narrow w;
    bool backward = g->backward;
    enum pd_err err;

    if (!narrow_init(&w, g)) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory to narrow a graph");
        goto out;
    }
    err = find_live(&w, why);
    if (err != PD_OK)
        goto out;
    find_copies(&w);
    find_half(&w);
    if (!set_types(&w) || !pk_passes_renumber(g)) {
        err = pk_graph_check(g, why);
        if (err == PD_OK)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory to narrow a graph");
    }
out:
    g->backward = backward;
    narrow_done(&w);
    return err;
}
