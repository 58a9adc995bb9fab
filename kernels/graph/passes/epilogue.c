/* Epilogues: operations on the result of a matmul, or of another node, that become part of it.
 *
 * Both forms of GELU are fused even if their argument is needed later: on a CPU they are computed while a block of the
 * product is in the cache, and cuBLASLt has the tanh form. In a mixed plan the exact form is not: the GPU's library has
 * no epilogue for it, and its argument and slope are rounded where they are without fusing. ReLU is not fused then: the library stores its mask as bits in an internal order, and only small
 * models here train with it. */
#include "kernels/graph/passes/passes.h"
#include "kernels/graph/passes/rewrite.h"

#include <string.h>

/* ---- epilogues ---- */

static bool is_binary(const struct pk_node *n, enum pk_ex op)
{
    const struct pk_expr *e = n->op == PK_OP_EXPR ? n->attr->expr : NULL;

    return e && n->n_in == 2 && e->count == 3 && e->code[0].op == PK_EX_IN && e->code[1].op == PK_EX_IN &&
           e->code[0].arg != e->code[1].arg && e->code[2].op == op;
}

static enum pk_act activation_of(const struct pk_node *n)
{
    const struct pk_expr *e = n->op == PK_OP_EXPR ? n->attr->expr : NULL;

    if (!e || n->n_in != 1)
        return PK_ACT_NONE;
    if (e->count == 2 && e->code[0].op == PK_EX_IN && e->code[1].op == PK_EX_GELU)
        return PK_ACT_GELU;
    if (e->count == 2 && e->code[0].op == PK_EX_IN && e->code[1].op == PK_EX_GELU_TANH)
        return PK_ACT_GELU_TANH;
    if (e->count == 3 && e->code[2].op == PK_EX_MAX &&
        ((e->code[0].op == PK_EX_IN && e->code[1].op == PK_EX_CONST && e->code[1].imm == 0.0) ||
         (e->code[1].op == PK_EX_IN && e->code[0].op == PK_EX_CONST && e->code[0].imm == 0.0)))
        return PK_ACT_RELU;
    return PK_ACT_NONE;
}

/* Whether a product computes this form of GELU, or its slope, although its argument is needed later. */
static bool fuses(const struct pk_graph *g, enum pk_act act)
{
    return act == PK_ACT_GELU_TANH || (act == PK_ACT_GELU && g->precision != PK_PRECISION_MIXED);
}

/* If `n` is g act'(x), as differentiation emits it: which of its two inputs is x (0 or 1), and act; else -1. */
static int32_t slope_of(const struct pk_node *n, enum pk_act *ret_act)
{
    const struct pk_expr *e = n->op == PK_OP_EXPR ? n->attr->expr : NULL;

    if (!e || n->n_in != 2 || e->count != 4 || e->code[3].op != PK_EX_MUL)
        return -1;
    for (int32_t at = 0; at < 2; at++) { /* x and its slope, before or after g */
        const int32_t g = at ? 0 : 2;
        const uint8_t slope = e->code[at + 1].op;

        if (e->code[at].op != PK_EX_IN || (slope != PK_EX_DGELU && slope != PK_EX_DGELU_TANH) ||
            e->code[g].op != PK_EX_IN || e->code[g].arg == e->code[at].arg)
            continue;
        *ret_act = slope == PK_EX_DGELU ? PK_ACT_GELU : PK_ACT_GELU_TANH;
        return e->code[at].arg;
    }
    return -1;
}

/* The node that made `value`, if only `n` reads it and the inputs of that node are unchanged by then. */
static struct pk_node *sole_maker(const struct pk_pass *p, const struct pk_node *n, uint32_t value,
                                  enum pk_op op)
{
    struct pk_graph *g = p->g;
    struct pk_node *m = &g->node[g->value[value].node];

    if (m->op != op || m->dead || m->exact != n->exact || g->value[value].root != value ||
        p->uses[value] != 1 || p->output[value] ||
        !pk_shape_equal(&g->value[value].shape, &g->value[n->out].shape) ||
        !pk_pass_inputs_unchanged(p, m, n->born))
        return NULL;
    return m;
}

/* `n` computes what `m` did as well, with inputs in[0 .. n_in-1]. */
static bool absorb(struct pk_pass *p, struct pk_node *n, struct pk_node *m, const uint32_t *in, int32_t n_in)
{
    struct pk_graph *g = p->g;
    uint32_t *copy = pd_arena_alloc(g->arena, (size_t)n_in * sizeof *copy);

    if (!copy)
        return false;
    memcpy(copy, in, (size_t)n_in * sizeof *copy);
    n->op = m->op;
    n->attr = m->attr;
    n->in = copy;
    n->n_in = n_in;
    m->dead = true;
    p->uses[m->out] = 0;
    return true;
}

static bool epilogue_add(struct pk_pass *p, struct pk_node *n)
{
    struct pk_graph *g = p->g;
    const struct pk_value *y = &g->value[n->out];

    for (int side = 0; side < 2; side++) { /* scatter-add before the others: its base may be a matmul */
        uint32_t mine = n->in[side], other = n->in[1 - side];
        struct pk_node *m = sole_maker(p, n, mine, PK_OP_SCATTER_ADD);
        const struct pk_value *o = &g->value[other];

        if (m && m->n_in == 2 && pk_shape_equal(&o->shape, &y->shape) && pk_value_is_dense(o)) {
            uint32_t in[3] = {m->in[0], m->in[1], other};

            return absorb(p, n, m, in, 3);
        }
    }
    for (int side = 0; side < 2; side++) {
        uint32_t mine = n->in[side], other = n->in[1 - side];
        struct pk_node *m = sole_maker(p, n, mine, PK_OP_MATMUL);
        const struct pk_value *o = &g->value[other];
        uint32_t in[4];
        int32_t count;

        if (!m || m->attr->matmul.has_residual)
            continue;
        count = m->n_in;
        memcpy(in, m->in, (size_t)count * sizeof *in);
        in[count++] = other;
        if (!m->attr->matmul.has_bias && m->attr->matmul.act == PK_ACT_NONE && o->shape.rank == 1 &&
            o->shape.dim[0] == y->shape.dim[y->shape.rank - 1] && pk_value_is_dense(o)) {
            if (!absorb(p, n, m, in, count))
                return false;
            n->attr->matmul.has_bias = true;
            return true;
        }
        if (pk_shape_equal(&o->shape, &y->shape) && pk_value_is_dense(o)) {
            if (!absorb(p, n, m, in, count))
                return false;
            n->attr->matmul.has_residual = true;
            return true;
        }
    }
    return true;
}

/* `n` multiplies input 1 - `at` by the slope of `act` at input `at`. */
static bool epilogue_slope(struct pk_pass *p, struct pk_node *n, int32_t at, enum pk_act act)
{
    struct pk_graph *g = p->g;
    uint32_t pre = n->in[at];
    struct pk_node *m = sole_maker(p, n, n->in[1 - at], PK_OP_MATMUL);
    const struct pk_value *x = &g->value[pre];
    uint32_t in[3];

    if (!m || m->n_in != 2 || m->attr->matmul.act != PK_ACT_NONE || !pk_value_is_dense(x) ||
        !pk_shape_equal(&x->shape, &g->value[n->out].shape))
        return true;
    memcpy(in, m->in, 2 * sizeof *in);
    in[2] = pre;
    if (!absorb(p, n, m, in, 3))
        return false;
    n->attr->matmul.act = act;
    n->attr->matmul.slope = true;
    return true;
}

/* ---- gradients of slices ---- */

#define PIECES 16

struct piece {
    uint32_t pad; /* node */
    int64_t start;
};

/* Collects the PADs whose sum is `value`; false if the sum has other terms. */
static bool pads_of(struct pk_pass *p, uint32_t value, uint64_t when, struct piece *piece, int32_t *n)
{
    struct pk_graph *g = p->g;
    const struct pk_node *m = &g->node[g->value[value].node];

    if (m->dead || g->value[value].root != value || p->uses[value] != 1 || p->output[value] ||
        !pk_pass_inputs_unchanged(p, m, when))
        return false;
    if (is_binary(m, PK_EX_ADD))
        return pads_of(p, m->in[0], when, piece, n) && pads_of(p, m->in[1], when, piece, n);
    if (m->op != PK_OP_PAD || *n == PIECES)
        return false;
    piece[(*n)++] = (struct piece){g->value[value].node, m->attr->pad.start};
    return true;
}

static bool join_pads(struct pk_pass *p, struct pk_node *n)
{
    struct pk_graph *g = p->g;
    struct piece piece[PIECES];
    int32_t count = 0, axis;
    uint32_t *in;
    int64_t at = 0;

    if (!pads_of(p, n->in[0], n->born, piece, &count) || !pads_of(p, n->in[1], n->born, piece, &count))
        return true;
    axis = g->node[piece[0].pad].attr->pad.axis;
    for (int32_t i = 1; i < count; i++)
        for (int32_t j = i; j > 0 && piece[j].start < piece[j - 1].start; j--) {
            struct piece swap = piece[j];

            piece[j] = piece[j - 1];
            piece[j - 1] = swap;
        }
    in = pd_arena_alloc(g->arena, (size_t)count * sizeof *in);
    if (!in)
        return false;
    for (int32_t i = 0; i < count; i++) {
        const struct pk_node *pad = &g->node[piece[i].pad];

        if (pad->attr->pad.axis != axis || piece[i].start != at)
            return true;
        in[i] = pad->in[0];
        at += g->value[in[i]].shape.dim[axis];
    }
    if (at != g->value[n->out].shape.dim[axis])
        return true;
    n->op = PK_OP_CONCAT;
    memset(n->attr, 0, sizeof *n->attr);
    n->attr->concat.axis = axis;
    n->in = in;
    n->n_in = count;
    return true;
}

bool pk_pass_slices(struct pk_pass *p)
{
    struct pk_graph *g = p->g;

    pk_pass_count_uses(p);
    /* Backwards, because the last sum contains all pieces. */
    for (uint32_t i = g->n_node; i-- > 1;)
        if (!g->node[i].dead && is_binary(&g->node[i], PK_EX_ADD) && !join_pads(p, &g->node[i]))
            return false;
    return true;
}

bool pk_pass_epilogues(struct pk_pass *p)
{
    struct pk_graph *g = p->g;

    pk_pass_count_uses(p);
    for (uint32_t i = 1; i < g->n_node; i++) {
        struct pk_node *n = &g->node[i], *m;
        enum pk_act act;
        int32_t at;

        if (n->dead || n->op != PK_OP_EXPR)
            continue;
        act = activation_of(n);
        if (is_binary(n, PK_EX_ADD)) {
            if (!epilogue_add(p, n))
                return false;
        } else if (act != PK_ACT_NONE) {
            m = sole_maker(p, n, n->in[0], PK_OP_MATMUL);
            if (m && m->attr->matmul.act == PK_ACT_NONE && !m->attr->matmul.has_residual) {
                if (!absorb(p, n, m, m->in, m->n_in))
                    return false;
                n->attr->matmul.act = act;
            }
        } else {
            at = slope_of(n, &act);
            if (at >= 0 && fuses(g, act) && !epilogue_slope(p, n, at, act))
                return false;
        }
    }
    return true;
}

/* ---- extra outputs of a matmul ---- */

/* Makes `n` an alias of `value`; simplification removes it or turns it into a view. */
static void rename_to(struct pk_graph *g, uint32_t node, uint32_t value)
{
    struct pk_node *n = &g->node[node];

    n->op = PK_OP_RESHAPE;
    memset(n->attr, 0, sizeof *n->attr);
    n->attr->shape = g->value[n->out].shape;
    n->in[0] = value;
    n->n_in = 1;
    n->n_out = 1;
    g->value[value].gradient |= g->value[n->out].gradient;
}

/* Inserts a matmul like node `m` with other attributes right before it; m becomes an alias of its first output.
 * Returns that output, or 0. */
static uint32_t product_anew(struct pk_graph *g, uint32_t m, const struct pk_attr *attr)
{
    struct pk_val in[4], y;

    for (int32_t i = 0; i < g->node[m].n_in; i++)
        in[i] = (struct pk_val){g->node[m].in[i]};
    y = pk_emit(g, PK_OP_MATMUL, attr, in, g->node[m].n_in, NULL);
    if (!y.id)
        return 0;
    pk_node_belongs(g, g->value[y.id].node, m);
    g->node[g->value[y.id].node].key = g->node[m].key - 1;
    rename_to(g, m, y.id);
    return y.id;
}

/* The activation `n`, which is `act`, of a matmul whose result others read too, as the backward part does. */
static bool keep(struct pk_pass *p, uint32_t n, enum pk_act act, bool *changed)
{
    struct pk_graph *g = p->g;
    uint32_t x = g->node[n].in[0], m = g->value[x].node, y;
    struct pk_attr attr;

    if (g->node[m].op != PK_OP_MATMUL || g->node[m].exact != g->node[n].exact || g->value[x].root != x ||
        g->value[x].out != 0 || g->node[m].n_out != 1 || g->node[m].attr->matmul.act != PK_ACT_NONE ||
        g->node[m].attr->matmul.has_residual)
        return true;
    attr = *g->node[m].attr;
    attr.matmul.act = act;
    attr.matmul.keeps = true;
    y = product_anew(g, m, &attr);
    if (!y)
        return false;
    rename_to(g, m, y + 1);
    rename_to(g, n, y);
    *changed = true;
    return true;
}

/* (.., C) as rows of equal distance: their number and distance. */
static bool as_rows(const struct pk_value *v, int64_t *ret_rows, int64_t *ret_step)
{
    int64_t rows = 1, step = 0;

    for (int32_t i = v->shape.rank - 1; i-- > 0;) {
        if (v->shape.dim[i] == 1)
            continue;
        if (rows == 1)
            step = v->stride[i];
        else if (v->stride[i] != step * rows)
            return false;
        rows *= v->shape.dim[i];
    }
    *ret_rows = rows;
    *ret_step = step;
    return rows > 1;
}

/* Whether the rows that are summed are operand k of a matmul, along K. */
static bool is_added(const struct pk_graph *g, const struct pk_value *x, const struct pk_node *m, int32_t k)
{
    const struct pk_value *o = &g->value[m->in[k]];
    int32_t along = k == 0; /* the axis of K */
    int64_t rows, step;

    return o->root == x->root && o->offset == x->offset && as_rows(x, &rows, &step) &&
           o->shape.dim[along] == rows && o->shape.dim[1 - along] == x->shape.dim[x->shape.rank - 1] &&
           o->stride[along] == step && o->stride[1 - along] == x->stride[x->shape.rank - 1];
}

/* The matmul that can compute the sum `s` over rows, and as which of its extra outputs; 0: none. In full
 * precision that is the matmul that made the rows. In a mixed plan the library would round these sums like its
 * output, so they are attached to a matmul that has the rows as its operand: the gradient of a weight, in f32. */
static uint32_t sums_home(const struct pk_graph *g, const struct pk_node *s, enum pk_sums *ret)
{
    const struct pk_value *x = &g->value[s->in[0]];
    const struct pk_node *maker = &g->node[g->value[x->root].node];
    int64_t rows, step;

    if (g->precision == PK_PRECISION_FULL && maker->op == PK_OP_MATMUL && maker->attr->matmul.slope &&
        maker->n_out == 1 && x->root == maker->out && as_rows(x, &rows, &step) && pk_value_is_dense(x) &&
        pk_shape_count(&x->shape) == pk_shape_count(&g->value[x->root].shape) &&
        x->shape.dim[x->shape.rank - 1] == g->value[x->root].shape.dim[g->value[x->root].shape.rank - 1]) {
        *ret = PK_SUMS_OUT;
        return g->value[x->root].node;
    }
    if (pk_rule_of(maker->op)->leaf) /* it has versions */
        return 0;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_node *m = &g->node[i];

        if (m->dead || m->op != PK_OP_MATMUL || m->exact != s->exact || m->n_out != 1 || m->n_in != 2 ||
            m->attr->matmul.act != PK_ACT_NONE || g->value[m->out].shape.rank != 2)
            continue;
        for (int32_t k = 0; k < 2; k++)
            if (is_added(g, x, m, k)) {
                *ret = k ? PK_SUMS_B : PK_SUMS_A;
                return i;
            }
    }
    return 0;
}

/* Whether all readers of node `s` other than views come after node `m`; the views are moved there. */
static bool move_behind(struct pk_graph *g, uint32_t s, uint32_t m)
{
    uint32_t root = g->node[s].out;

    for (uint32_t i = s + 1; i < m; i++) {
        const struct pk_node *n = &g->node[i];
        const struct pk_rule *rule = pk_rule_of(n->op);

        for (int32_t k = 0; k < n->n_in && !n->dead; k++)
            if (g->value[n->in[k]].root == root && !rule->view)
                return false;
    }
    for (uint32_t i = s + 1; i < m; i++) {
        struct pk_node *n = &g->node[i];

        if (!n->dead && n->n_in && g->value[n->in[0]].root == root)
            n->key = g->node[m].key + 2; /* among themselves in order of their numbers */
    }
    g->node[s].key = g->node[m].key + 1;
    return true;
}

static bool add_up(struct pk_pass *p, uint32_t s, bool *changed)
{
    struct pk_graph *g = p->g;
    const struct pk_value *x = &g->value[g->node[s].in[0]];
    enum pk_sums which = PK_SUMS_NONE;
    struct pk_attr attr;
    uint32_t m, y;

    if (x->shape.rank < 2 || g->node[s].attr->reduce.axes != (1u << (x->shape.rank - 1)) - 1)
        return true;
    m = sums_home(g, &g->node[s], &which);
    if (!m || (s < m && !move_behind(g, s, m)))
        return true;
    attr = *g->node[m].attr;
    attr.matmul.sums = which;
    y = product_anew(g, m, &attr);
    if (!y)
        return false;
    rename_to(g, s, y + 1);
    *changed = true;
    return true;
}

bool pk_pass_extra_outputs(struct pk_pass *p, bool *ret_changed)
{
    struct pk_graph *g = p->g;
    uint32_t n_node = g->n_node;
    bool ok = true;

    *ret_changed = false;
    for (uint32_t i = 1; i < n_node && ok; i++) {
        const enum pk_act act = g->node[i].dead ? PK_ACT_NONE : activation_of(&g->node[i]);

        if (fuses(p->g, act))
            ok = keep(p, i, act, ret_changed);
    }
    for (uint32_t i = 1; i < n_node && ok; i++)
        if (!g->node[i].dead && g->node[i].op == PK_OP_SUM)
            ok = add_up(p, i, ret_changed);
    return ok && (!*ret_changed || pk_passes_renumber(g));
}
