/* Rewrites that save passes over memory: nodes that read or write the same tensors become one.
 *
 * They run after differentiation and match the patterns that the derivative rules emit. The arithmetic is the
 * same, except that intermediate roundings disappear. */
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "kernels/graph/plan.h"

struct uses {
    const struct pk_graph *g;
    uint32_t *count; /* by root value: inputs of kernels, and outputs of the graph, that see it */
    bool *output;    /* by root value: the caller reads it */
};

static bool uses_init(struct uses *u, const struct pk_graph *g)
{
    memset(u, 0, sizeof *u);
    u->g = g;
    u->count = calloc(g->n_value, sizeof *u->count);
    u->output = calloc(g->n_value, sizeof *u->output);
    if (!u->count || !u->output)
        return false;
    for (size_t i = 0; i < g->n_output; i++) {
        u->count[g->value[g->output[i].value].root]++;
        u->output[g->value[g->output[i].value].root] = true;
    }
    for (uint32_t i = 1; i < g->n_node; i++)
        for (int32_t k = 0; pk_is_kernel(&g->node[i]) && k < g->node[i].n_in; k++)
            u->count[g->value[g->node[i].in[k]].root]++;
    return true;
}

static void uses_done(struct uses *u)
{
    free(u->count);
    free(u->output);
}

/* Replaces `from` (dense, the whole of its memory) by `to` for all readers. `to` has the same layout, or is the
 * dense beginning of a larger value. */
static void replace(struct pk_graph *g, uint32_t from, uint32_t to)
{
    for (uint32_t i = 1; i < g->n_value; i++)
        if (g->value[i].root == from && i != from)
            g->value[i].root = g->value[to].root;
    for (uint32_t i = 1; i < g->n_node; i++)
        for (int32_t k = 0; k < g->node[i].n_in; k++)
            if (g->node[i].in[k] == from)
                g->node[i].in[k] = to;
    for (size_t i = 0; i < g->n_output; i++)
        if (g->output[i].value == from)
            g->output[i].value = to;
    g->value[to].gradient |= g->value[from].gradient;
}

/* Whether the value stays the same: it is not a leaf that a node writes. */
static bool stays(const struct pk_graph *g, uint32_t value)
{
    const struct pk_rule *rule = pk_rule_of(g->node[g->value[g->value[value].root].node].op);

    return !rule->leaf || rule->fed || rule->fixed;
}

/* ---- cross-entropy ---- */

static bool is_fill(const struct pk_graph *g, uint32_t value, double *ret)
{
    const struct pk_node *n = &g->node[g->value[g->value[value].root].node];

    if (n->op != PK_OP_FILL)
        return false;
    *ret = n->attr->fill.value;
    return true;
}

/* Whether `value` is a constant divided by `count`. */
static bool is_share(const struct pk_graph *g, uint32_t value, uint32_t count, double *ret)
{
    const struct pk_node *n = &g->node[g->value[g->value[value].root].node];
    const struct pk_expr *e = n->attr->expr;

    if (n->op != PK_OP_EXPR || n->n_in != 1 || g->value[n->in[0]].root != count)
        return false;
    *ret = 1;
    if (e->count == 2)
        return e->code[0].op == PK_EX_IN && e->code[1].op == PK_EX_RECIP;
    *ret = e->code[0].imm;
    return e->count == 3 && e->code[0].op == PK_EX_CONST && e->code[1].op == PK_EX_IN &&
           e->code[2].op == PK_EX_DIV;
}

/* Joins forward `n` and backward `b`: the logits are read once and written once. The gradient that flows into the
 * loss must be known before the loss: a constant, or a constant over the count, as for a mean. */
static bool join_loss(struct pk_graph *g, uint32_t n, uint32_t b)
{
    const struct pk_node *f = &g->node[n], *d = &g->node[b];
    const struct pk_value *seed = &g->value[d->in[3]];
    struct pk_attr attr = *f->attr, fill = pk_attr_zero();
    struct pk_val in[3] = {{f->in[0]}, {f->in[1]}, PK_NONE}, out[PK_MAX_OUT];
    const uint64_t key = f->key, born = d->born;
    const uint32_t old[3] = {f->out, f->out + 1, f->out + 2}, dlogits = d->out;
    const char *scope = d->scope;
    const bool exact = d->exact;
    double value;

    if (!is_fill(g, d->in[3], &value)) {
        attr.cross_entropy.mean = true;
        if (!is_share(g, d->in[3], old[1], &value))
            return true;
    }
    fill.shape = seed->shape;
    fill.fill.dtype = seed->dtype;
    fill.fill.value = value;
    in[2] = pk_emit(g, PK_OP_FILL, &fill, NULL, 0, NULL);
    if (!pk_emit(g, PK_OP_CROSS_ENTROPY_GRAD, &attr, in, 3, out).id)
        return false;
    for (int i = 0; i < 2; i++) { /* where the forward part was */
        struct pk_node *made = &g->node[g->value[i ? out[0].id : in[2].id].node];

        made->key = key - 1 + (uint64_t)i;
        made->born = born;
        made->scope = scope;
        made->backward = true;
        made->exact = exact;
    }
    g->node[n].dead = g->node[b].dead = true;
    for (int i = 0; i < 3; i++)
        replace(g, old[i], out[1 + i].id);
    replace(g, dlogits, out[0].id);
    return true;
}

static bool losses(struct pk_graph *g, bool *ret_any)
{
    struct uses u;
    uint32_t n_node = g->n_node;
    bool ok = uses_init(&u, g);

    for (uint32_t i = 1; i < n_node && ok; i++) {
        const struct pk_node *b = &g->node[i], *f;
        uint32_t lse;

        if (b->dead || b->op != PK_OP_CROSS_ENTROPY_BWD)
            continue;
        lse = b->in[2];
        f = &g->node[g->value[lse].node];
        if (f->dead || f->op != PK_OP_CROSS_ENTROPY || lse != f->out + 3 || u.count[lse] != 1 ||
            u.output[lse] || b->in[0] != f->in[0] || b->in[1] != f->in[1] || !stays(g, f->in[0]) ||
            !stays(g, f->in[1]) || memcmp(b->attr, f->attr, sizeof *b->attr) != 0)
            continue;
        ok = join_loss(g, g->value[lse].node, i);
        *ret_any = true;
    }
    uses_done(&u);
    return ok;
}

enum pd_err pk_passes_loss(struct pk_graph *g, struct pd_why *why)
{
    bool any = false, backward = g->backward;
    bool ok = losses(g, &any) && (!any || pk_passes_renumber(g));
    enum pd_err err = pk_graph_check(g, why);

    g->backward = backward;
    if (err != PD_OK)
        return err;
    return ok ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}

/* ---- norms ---- */

static bool is_sum(const struct pk_node *n)
{
    const struct pk_expr *e = n->op == PK_OP_EXPR ? n->attr->expr : NULL;

    return e && n->n_in == 2 && n->in[0] != n->in[1] && e->count == 3 && e->code[0].op == PK_EX_IN &&
           e->code[1].op == PK_EX_IN && e->code[0].arg != e->code[1].arg && e->code[2].op == PK_EX_ADD;
}

/* The node that must have run before the value is valid; 0: a leaf. */
static uint32_t maker_of(const struct pk_graph *g, uint32_t value)
{
    const struct pk_node *n = &g->node[g->value[value].node];
    const struct pk_rule *rule;

    while ((rule = pk_rule_of(n->op))->view)
        n = &g->node[g->value[n->in[0]].node];
    return rule->leaf ? 0 : (uint32_t)(n - g->node);
}

/* `n` with another input at the end. */
static bool give(struct pk_graph *g, struct pk_node *n, uint32_t value)
{
    uint32_t *in = pd_arena_alloc(g->arena, ((size_t)n->n_in + 1) * sizeof *in);

    if (!in)
        return false;
    memcpy(in, n->in, (size_t)n->n_in * sizeof *in);
    in[n->n_in++] = value;
    n->in = in;
    return true;
}

/* The gradient that bypasses a norm is added to the one through it: dx + residual, by the kernel that makes dx. */
static bool residuals(struct pk_graph *g)
{
    struct uses u;
    bool ok = uses_init(&u, g);

    for (uint32_t i = 1; i < g->n_node && ok; i++) {
        struct pk_node *sum = &g->node[i];

        if (sum->dead || !is_sum(sum))
            continue;
        for (int side = 0; side < 2; side++) {
            const uint32_t dx = sum->in[side], other = sum->in[1 - side];
            const struct pk_value *x = &g->value[dx], *o = &g->value[other], *y = &g->value[sum->out];
            const uint32_t maker = maker_of(g, other), b = x->node;
            struct pk_node *n = &g->node[b];

            if (n->op != PK_OP_NORM_BWD || n->dead || n->exact != sum->exact || x->root != dx ||
                dx != n->out || u.count[dx] != 1 || u.output[dx] || n->attr->norm.has_residual ||
                !pk_shape_equal(&x->shape, &y->shape) || !pk_shape_equal(&o->shape, &y->shape) ||
                !stays(g, other) || (maker && g->node[maker].key > n->key) || o->root == n->out + 1)
                continue;
            if (!give(g, n, other)) {
                ok = false;
                break;
            }
            n->attr->norm.has_residual = true;
            g->value[dx].dtype = y->dtype;
            sum->dead = true;
            u.count[dx] = u.count[g->value[sum->out].root];
            u.output[dx] = u.output[sum->out];
            replace(g, sum->out, dx);
            break;
        }
    }
    uses_done(&u);
    return ok;
}

enum pd_err pk_passes_residual(struct pk_graph *g, struct pd_why *why)
{
    return residuals(g) ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}

/* Whether node `to` depends on node `from`. seen: by node, zeroed; todo: one place per node. */
static bool reaches(const struct pk_graph *g, uint32_t from, uint32_t to, bool *seen, uint32_t *todo)
{
    size_t n = 0;

    todo[n++] = to;
    seen[to] = true;
    while (n) {
        const struct pk_node *x = &g->node[todo[--n]];

        if ((uint32_t)(x - g->node) == from)
            return true;
        for (int32_t k = 0; k < x->n_in; k++) {
            const uint32_t next = g->value[x->in[k]].node;

            if (!seen[next]) {
                seen[next] = true;
                todo[n++] = next;
            }
        }
    }
    return false;
}

/* The forward norm that `n` recomputes in the backward part and `b` differentiates. */
static bool same_norm(const struct pk_graph *g, const struct pk_node *n, const struct pk_node *b)
{
    const struct pk_node *f = &g->node[g->value[b->in[3]].node]; /* whose rstd is read */

    return b->in[0] == n->in[0] && b->in[1] == n->in[1] && f->op == PK_OP_NORM && f->n_in == n->n_in &&
           b->in[3] == f->out + 1 && memcmp(f->in, n->in, (size_t)n->n_in * sizeof *n->in) == 0 &&
           memcmp(&f->attr->norm, &n->attr->norm, sizeof n->attr->norm) == 0;
}

/* `b` computes the output of `n` too. */
static bool join_norm(struct pk_graph *g, uint32_t n, uint32_t b)
{
    const uint32_t y = g->node[n].out, old = g->node[b].out;
    const int32_t outs = g->node[b].n_out;
    struct pk_attr attr = *g->node[b].attr;
    uint32_t in[8], made;
    int32_t n_in = 0;

    attr.norm.again = true;
    for (int32_t k = 0; k < g->node[b].n_in - attr.norm.has_residual; k++)
        in[n_in++] = g->node[b].in[k];
    if (attr.norm.has_beta)
        in[n_in++] = g->node[n].in[2];
    if (attr.norm.has_residual)
        in[n_in++] = g->node[b].in[g->node[b].n_in - 1];
    made = pk_node_more(g, b, &attr, in, n_in, y);
    if (!made)
        return false;
    g->node[n].dead = g->node[b].dead = true;
    for (int32_t k = 0; k < outs; k++)
        replace(g, old + (uint32_t)k, g->node[made].out + (uint32_t)k);
    replace(g, y, g->node[made].out + (uint32_t)outs);
    return true;
}

/* A norm that the backward part recomputes, and the derivative of the same norm, read the same rows. */
static bool norms_again(struct pk_graph *g)
{
    const uint32_t n_node = g->n_node;
    bool *seen = malloc(2 * (size_t)n_node * sizeof *seen), ok = true; /* at most one is made for each */
    uint32_t *todo = malloc(2 * (size_t)n_node * sizeof *todo);
    struct uses u;

    ok = uses_init(&u, g) && seen && todo;
    for (uint32_t i = 1; i < n_node && ok; i++) {
        const struct pk_node *n = &g->node[i];

        if (n->dead || n->op != PK_OP_NORM || !n->backward || u.count[n->out + 1] || u.output[n->out] ||
            (n->n_out > 2 && u.count[n->out + 2]))
            continue;
        for (uint32_t k = 1; k < n_node; k++) {
            if (g->node[k].dead || g->node[k].op != PK_OP_NORM_BWD || g->node[k].attr->norm.again ||
                !same_norm(g, n, &g->node[k]))
                continue;
            memset(seen, 0, g->n_node * sizeof *seen);
            if (reaches(g, i, k, seen, todo))
                continue;
            ok = join_norm(g, i, k);
            break;
        }
    }
    free(seen);
    free(todo);
    uses_done(&u);
    return ok;
}

enum pd_err pk_passes_norm_again(struct pk_graph *g, struct pd_why *why)
{
    return norms_again(g) ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}

/* ---- columns ---- */

#define COLUMNS 64         /* rows are padded to multiples of this */
#define COLUMNS_LEAST 1024 /* below it the padding would be a large share */

static uint32_t emit_at(struct pk_graph *g, uint32_t like, uint64_t key, enum pk_op op,
                        const struct pk_attr *attr, const uint32_t *in, int32_t n_in)
{
    struct pk_val v[4] = {PK_NONE}, y;

    for (int32_t i = 0; i < n_in; i++)
        v[i].id = in[i];
    y = pk_emit(g, op, attr, v, n_in, NULL);
    if (!y.id)
        return 0;
    pk_node_belongs(g, g->value[y.id].node, like);
    g->node[g->value[y.id].node].key = key;
    return y.id;
}

/* The first `extent` along an axis: a view. */
static uint32_t first_of(struct pk_graph *g, uint32_t like, uint64_t key, uint32_t value, int32_t axis,
                         int64_t extent)
{
    struct pk_attr a = pk_attr_zero();

    a.slice.axis = axis;
    a.slice.extent = extent;
    return emit_at(g, like, key, PK_OP_SLICE, &a, &value, 1);
}

/* Whether `value` shows a dense matrix (rows, columns), or that transposed. */
static bool is_matrix(const struct pk_graph *g, uint32_t value, int64_t rows, int64_t columns,
                      bool *ret_transposed)
{
    const struct pk_value *v = &g->value[value];

    *ret_transposed = v->shape.rank == 2 && v->stride[0] == 1 && v->stride[1] == rows &&
                      v->shape.dim[0] == rows && v->shape.dim[1] == columns && columns > 1;
    return v->offset == 0 && v->shape.rank == 2 && v->shape.dim[0] == rows && v->shape.dim[1] == columns &&
           pk_shape_count(&g->value[v->root].shape) == rows * columns &&
           (*ret_transposed || pk_value_is_dense(v));
}

/* Whether a leaf is written between the nodes built at `from` and at `to`. */
static bool written_between(const struct pk_graph *g, uint32_t leaf, uint64_t from, uint64_t to)
{
    int32_t at[PK_MAX_WRITES];

    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *n = &g->node[i];

        if (!pk_is_kernel(n) || n->born < from || n->born > to)
            continue;
        for (int32_t k = pk_op_writes(n->op, n->attr, n->n_in, at); k-- > 0;)
            if (g->value[n->in[at[k]]].root == leaf)
                return true;
    }
    return false;
}

struct wide {
    uint32_t loss, forward, by_input,
        by_weight; /* nodes: CROSS_ENTROPY_GRAD and the three products; 0: none */
    int64_t rows, columns, inner, width;
    uint32_t weight; /* root: (columns, inner) */
};

/* Whether the logits of `loss` come from a matmul with a transposed weight, and their derivative is read only by
 * the matmuls with its two factors. */
static bool find_wide(const struct pk_graph *g, const struct uses *u, uint32_t loss, struct wide *w)
{
    const struct pk_node *n = &g->node[loss], *m;
    const uint32_t logits = n->in[0];
    bool transposed;

    memset(w, 0, sizeof *w);
    w->loss = loss;
    w->forward = g->value[logits].node;
    m = &g->node[w->forward];
    if (m->dead || m->op != PK_OP_MATMUL || m->n_in != 2 || m->attr->matmul.act != PK_ACT_NONE ||
        g->value[logits].root != logits || g->value[logits].dtype != PK_BF16 || u->count[logits] != 1 ||
        u->output[logits] || g->value[n->out].dtype != PK_BF16 || u->output[n->out])
        return false;
    w->rows = g->value[logits].shape.dim[0];
    w->columns = g->value[logits].shape.dim[1];
    w->inner = g->value[m->in[0]].shape.dim[1];
    w->width = (w->columns + COLUMNS - 1) / COLUMNS * COLUMNS;
    w->weight = g->value[m->in[1]].root;
    if (w->columns < COLUMNS_LEAST || w->width == w->columns || m->n_out != 1 ||
        g->value[m->in[0]].shape.rank != 2 || !is_matrix(g, m->in[1], w->inner, w->columns, &transposed) ||
        !transposed || g->value[w->weight].dtype != PK_BF16)
        return false;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *x = &g->node[i];
        int32_t sees = 0;

        if (!pk_is_kernel(x))
            continue;
        for (int32_t k = 0; k < x->n_in; k++)
            sees += g->value[x->in[k]].root == n->out;
        if (!sees)
            continue;
        if (x->op != PK_OP_MATMUL || x->n_in != 2 || x->n_out != 1 || sees != 1 ||
            x->attr->matmul.act != PK_ACT_NONE || g->value[x->in[0]].root != n->out)
            return false;
        if (!w->by_input && is_matrix(g, x->in[0], w->rows, w->columns, &transposed) && !transposed &&
            g->value[x->in[1]].root == w->weight &&
            is_matrix(g, x->in[1], w->columns, w->inner, &transposed) && !transposed)
            w->by_input = i;
        else if (!w->by_weight && is_matrix(g, x->in[0], w->columns, w->rows, &transposed) && transposed &&
                 g->value[x->out].root == x->out)
            w->by_weight = i;
        else
            return false;
    }
    return !w->by_input || !written_between(g, w->weight, m->born, g->node[w->by_input].born);
}

/* A copy of the matmul `old` with other operands and the same type. */
static uint32_t product(struct pk_graph *g, uint32_t old, uint32_t a, uint32_t b)
{
    const enum pk_dtype dtype = g->value[g->node[old].out].dtype;
    const bool gradient = g->value[g->node[old].out].gradient;
    uint32_t y = emit_at(g, old, g->node[old].key, PK_OP_MATMUL, g->node[old].attr, (uint32_t[2]){a, b}, 2);

    if (!y)
        return 0;
    g->value[y].dtype = dtype;
    g->value[y].gradient = gradient;
    g->node[old].dead = true;
    return y;
}

static bool widen(struct pk_graph *g, const struct wide *w)
{
    const uint32_t loss = w->loss, dlogits = g->node[loss].out;
    const uint64_t key = g->node[w->forward].key;
    struct pk_attr pad = pk_attr_zero(), turn = pk_attr_zero(), *attr;
    uint32_t wide, turned, y;

    pad.pad.extent = w->width;
    turn.permute.axis[0] = 1;
    wide = emit_at(g, w->forward, key - 3, PK_OP_PAD, &pad, &w->weight, 1);
    if (!wide)
        return false;
    g->value[wide].working = true;
    turned = emit_at(g, w->forward, key - 2, PK_OP_PERMUTE, &turn, &wide, 1);
    y = turned ? product(g, w->forward, g->node[w->forward].in[0], turned) : 0;
    y = y ? first_of(g, w->forward, key + 1, y, 1, w->columns) : 0;
    attr = y ? pd_arena_alloc(g->arena, sizeof *attr) : NULL;
    if (!attr)
        return false;
    g->node[loss].in[0] = y;
    *attr = *g->node[loss].attr;
    attr->cross_entropy.width = w->width;
    g->node[loss].attr = attr;
    g->value[dlogits].shape.dim[1] = w->width;
    g->value[dlogits].stride[0] = w->width;
    if (w->by_input) { /* the padding adds zeros times zeros */
        const uint32_t old = g->node[w->by_input].out;

        y = product(g, w->by_input, dlogits, wide);
        if (!y)
            return false;
        replace(g, old, y);
    }
    if (w->by_weight) {
        const uint64_t at = g->node[w->by_weight].key;
        const uint32_t old = g->node[w->by_weight].out;

        turned = emit_at(g, w->by_weight, at - 1, PK_OP_PERMUTE, &turn, &dlogits, 1);
        y = turned ? product(g, w->by_weight, turned, g->node[w->by_weight].in[1]) : 0;
        y = y ? first_of(g, w->by_weight, at + 1, y, 0, w->columns) : 0;
        if (!y)
            return false;
        replace(g, old, y);
    }
    return true;
}

enum pd_err pk_passes_columns(struct pk_graph *g, struct pd_why *why)
{
    const uint32_t n_node = g->n_node;
    bool any = false, ok = true;
    struct uses u;
    struct wide w;
    enum pd_err err;

    ok = uses_init(&u, g);
    for (uint32_t i = 1; i < n_node && ok; i++)
        if (!g->node[i].dead && g->node[i].op == PK_OP_CROSS_ENTROPY_GRAD && find_wide(g, &u, i, &w)) {
            ok = widen(g, &w);
            any = true;
            break; /* one head only: the nodes are renumbered now */
        }
    uses_done(&u);
    ok = ok && (!any || pk_passes_renumber(g));
    err = pk_graph_check(g, why);
    if (err != PD_OK)
        return err;
    return ok ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the passes");
}
