/* The graph as an array of nodes in order of building. A node only names values made before it, so
 * the order is topological and a cycle cannot be expressed. */
#include "kernels/graph/build.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *pk_category_name(enum pk_category category)
{
    static const char *const name[PK_CAT_COUNT] = {
        [PK_CAT_WEIGHTS] = "weights",     [PK_CAT_MASTER] = "master",   [PK_CAT_GRADIENTS] = "gradients",
        [PK_CAT_MOMENT1] = "moment1",     [PK_CAT_MOMENT2] = "moment2", [PK_CAT_EMA] = "ema",
        [PK_CAT_CACHE] = "cache",         [PK_CAT_INPUTS] = "inputs",   [PK_CAT_ACTIVATIONS] = "activations",
        [PK_CAT_WORKSPACE] = "workspace",
    };

    return (unsigned)category < PK_CAT_COUNT ? name[category] : "unknown";
}

bool pk_grow(void **array, size_t size, size_t count, size_t *cap)
{
    size_t want;
    void *p;

    if (count < *cap)
        return true;
    want = *cap ? *cap * 2 : 64;
    p = realloc(*array, want * size);
    if (!p)
        return false;
    memset((char *)p + *cap * size, 0, (want - *cap) * size);
    *array = p;
    *cap = want;
    return true;
}

struct pk_graph *pk_graph_new(bool decomposed)
{
    struct pk_graph *g = calloc(1, sizeof *g);
    size_t cap_value = 0, cap_node = 0;

    if (!g)
        return NULL;
    g->decomposed = decomposed;
    g->scope = "";
    g->n_value = g->n_node = 1;
    g->arena = pd_arena_new();
    if (!g->arena || !pk_grow((void **)&g->value, sizeof *g->value, 1, &cap_value) ||
        !pk_grow((void **)&g->node, sizeof *g->node, 1, &cap_node))
        return pk_graph_free(g);
    g->cap_value = (uint32_t)cap_value;
    g->cap_node = (uint32_t)cap_node;
    return g;
}

struct pk_graph *pk_graph_free(struct pk_graph *g)
{
    if (g) {
        free(g->value);
        free(g->node);
        free(g->leaf);
        free(g->output);
        pd_arena_free(g->arena);
        free(g);
    }
    return NULL;
}

static void *clone_array(const void *from, size_t size, size_t count, size_t cap)
{
    void *to;

    if (!cap)
        return NULL;
    to = calloc(cap, size);
    if (to)
        memcpy(to, from, count * size);
    return to;
}

struct pk_graph *pk_graph_clone(const struct pk_graph *g)
{
    struct pk_graph *c = calloc(1, sizeof *c);
    const char *scope_from = NULL, *scope_to = NULL;

    if (!c)
        return NULL;
    *c = *g;
    c->arena = pd_arena_new();
    c->value = clone_array(g->value, sizeof *g->value, g->n_value, g->cap_value);
    c->node = clone_array(g->node, sizeof *g->node, g->n_node, g->cap_node);
    c->leaf = clone_array(g->leaf, sizeof *g->leaf, g->n_leaf, g->cap_leaf);
    c->output = clone_array(g->output, sizeof *g->output, g->n_output, g->cap_output);
    c->scope = "";
    if (!c->arena || !c->value || !c->node || (g->cap_leaf && !c->leaf) || (g->cap_output && !c->output))
        return pk_graph_free(c);
    for (uint32_t i = 1; i < c->n_node; i++) {
        struct pk_node *n = &c->node[i];
        const struct pk_node *from = &g->node[i];

        n->in = n->n_in ? pd_arena_alloc(c->arena, (size_t)n->n_in * sizeof *n->in) : NULL;
        n->attr = pd_arena_alloc(c->arena, sizeof *n->attr);
        if (from->scope != scope_from || !scope_to) { /* neighbours share a scope: copy it once */
            scope_from = from->scope;
            scope_to = pd_arena_strdup(c->arena, scope_from);
        }
        n->scope = scope_to;
        if ((n->n_in && !n->in) || !n->attr || !n->scope)
            return pk_graph_free(c);
        if (n->n_in)
            memcpy(n->in, from->in, (size_t)n->n_in * sizeof *n->in);
        memcpy(n->attr, from->attr, sizeof *n->attr);
        if (pk_rule_of(n->op)->attr_own && !pk_rule_of(n->op)->attr_own(n->attr, c->arena))
            return pk_graph_free(c);
    }
    for (size_t i = 0; i < c->n_leaf; i++) {
        c->leaf[i].name = pd_arena_strdup(c->arena, g->leaf[i].name);
        if (!c->leaf[i].name)
            return pk_graph_free(c);
    }
    for (size_t i = 0; i < c->n_output; i++) {
        c->output[i].name = pd_arena_strdup(c->arena, g->output[i].name);
        if (!c->output[i].name)
            return pk_graph_free(c);
    }
    return c;
}

enum pd_err pk_graph_check(const struct pk_graph *g, struct pd_why *why)
{
    if (!g)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a graph");
    if (g->err != PD_OK && why)
        *why = g->why;
    return g->err;
}

struct pk_val pk_graph_fail(struct pk_graph *g, enum pd_err err, const char *fmt, ...)
{
    if (g && g->err == PD_OK) {
        char text[sizeof g->why.text];
        va_list args;

        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        g->err = pd_fail(&g->why, err, "%s%s%s", g->scope, g->scope[0] ? ": " : "", text);
    }
    return PK_NONE;
}

void pk_graph_precision(struct pk_graph *g, enum pk_precision precision)
{
    if (g)
        g->precision = precision;
}

void pk_graph_recompute(struct pk_graph *g, enum pk_recompute recompute)
{
    if (g)
        g->recompute = recompute;
}

void pk_graph_exact(struct pk_graph *g, bool exact)
{
    if (g)
        g->exact = exact;
}

void pk_graph_scope(struct pk_graph *g, const char *name)
{
    const char *copy;

    if (!g || g->err != PD_OK)
        return;
    copy = pd_arena_strdup(g->arena, name ? name : "");
    if (copy)
        g->scope = copy;
    else
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for the name of a scope");
}

struct pk_attr pk_attr_zero(void)
{
    struct pk_attr a;

    memset(&a, 0, sizeof a);
    return a;
}

static bool valid(const struct pk_graph *g, struct pk_val v)
{
    return g && v.id > 0 && v.id < g->n_value;
}

struct pk_shape pk_shape_of(const struct pk_graph *g, struct pk_val v)
{
    return valid(g, v) ? g->value[v.id].shape : (struct pk_shape){.rank = 0};
}

enum pk_dtype pk_dtype_of(const struct pk_graph *g, struct pk_val v)
{
    return valid(g, v) ? g->value[v.id].dtype : PK_F32;
}

bool pk_value_is_dense(const struct pk_value *v)
{
    struct pk_view view = {.shape = v->shape};

    memcpy(view.stride, v->stride, sizeof view.stride);
    return pk_view_is_dense(&view);
}

bool pk_value_reshape(const struct pk_value *v, const struct pk_shape *shape, int64_t *ret_stride)
{
    struct pk_shape old = {.rank = 0};
    int64_t stride[PK_MAX_RANK], out[PK_MAX_RANK] = {0};
    int32_t i = 0, j = 0;

    if (pk_shape_count(&v->shape) == 0) {
        memcpy(ret_stride, pk_view_dense(NULL, v->dtype, *shape).stride, sizeof out);
        return true;
    }
    for (int32_t k = 0; k < v->shape.rank; k++)
        if (v->shape.dim[k] != 1) {
            stride[old.rank] = v->stride[k];
            old.dim[old.rank++] = v->shape.dim[k];
        }
    /* Walk groups of axes with equal products; within a group the old axes must follow each other
     * in memory. */
    while (i < old.rank || j < shape->rank) {
        int32_t i0 = i, j0 = j;
        int64_t a, b;

        if (i == old.rank) {
            while (j < shape->rank)
                out[j++] = 1; /* only extents of 1 are left */
            break;
        }
        if (j == shape->rank)
            return false;
        a = old.dim[i++];
        b = shape->dim[j++];
        while (a != b) {
            if (a < b) {
                if (i == old.rank)
                    return false;
                a *= old.dim[i++];
            } else {
                if (j == shape->rank)
                    return false;
                b *= shape->dim[j++];
            }
        }
        for (int32_t k = i0; k + 1 < i; k++)
            if (stride[k] != stride[k + 1] * old.dim[k + 1])
                return false;
        int64_t step = stride[i - 1];

        for (int32_t k = j; k-- > j0;) {
            out[k] = step;
            step *= shape->dim[k];
        }
    }
    memcpy(ret_stride, out, sizeof out);
    return true;
}

static bool add_node(struct pk_graph *g, struct pk_node **ret)
{
    size_t cap = g->cap_node;

    if (!pk_grow((void **)&g->node, sizeof *g->node, g->n_node, &cap)) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a node");
        return false;
    }
    g->cap_node = (uint32_t)cap;
    *ret = &g->node[g->n_node];
    memset(*ret, 0, sizeof **ret);
    (*ret)->key = (*ret)->born = (uint64_t)g->n_node * PK_KEY_STEP;
    (*ret)->scope = g->scope;
    (*ret)->backward = g->backward;
    (*ret)->exact = g->exact;
    return true;
}

static bool add_value(struct pk_graph *g, const struct pk_type *type, uint32_t out, struct pk_value **ret)
{
    size_t cap = g->cap_value;
    struct pk_value *v;

    if (!pk_grow((void **)&g->value, sizeof *g->value, g->n_value, &cap)) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a value");
        return false;
    }
    g->cap_value = (uint32_t)cap;
    v = &g->value[g->n_value];
    memset(v, 0, sizeof *v);
    v->dtype = type->dtype;
    v->shape = type->shape;
    memcpy(v->stride, pk_view_dense(NULL, type->dtype, type->shape).stride, sizeof v->stride);
    v->root = g->n_value++;
    v->node = g->n_node;
    v->out = out;
    *ret = v;
    return true;
}

bool pk_lay_view(enum pk_op op, const struct pk_attr *attr, const struct pk_value *x, struct pk_value *v)
{
    v->root = x->root;
    v->offset = x->offset;
    memset(v->stride, 0, sizeof v->stride);
    return pk_rule_of(op)->view(attr, x, v);
}

static void describe(const struct pk_graph *g, const struct pk_val *in, int32_t n_in, char *out, size_t size)
{
    size_t at = 0;

    out[0] = '\0';
    for (int32_t i = 0; i < n_in && i < 6 && at + 1 < size; i++) {
        const struct pk_value *v = &g->value[in[i].id];
        char shape[128];
        int n = snprintf(out + at, size - at, "%s%s %s", i ? ", " : "", pk_dtype_name(v->dtype),
                         pk_shape_text(&v->shape, shape, sizeof shape));

        at += n > 0 ? (size_t)n : 0;
    }
    if (n_in > 6 && at + 1 < size)
        snprintf(out + at, size - at, ", .. (%d inputs)", n_in);
}

struct pk_val pk_emit(struct pk_graph *g, enum pk_op op, const struct pk_attr *attr, const struct pk_val *in,
                      int32_t n_in, struct pk_val *ret_out)
{
    const struct pk_rule *rule = pk_rule_of(op);
    struct pk_type type_small[16], *type = type_small;
    struct pk_type out[PK_MAX_OUT];
    struct pk_node *n;
    struct pd_why why = {.text = ""};
    char shapes[256];
    int32_t n_out = 0;
    uint32_t first;
    enum pd_err err;

    for (int32_t i = 0; ret_out && i < PK_MAX_OUT; i++)
        ret_out[i] = PK_NONE;
    if (!g || g->err != PD_OK)
        return PK_NONE;
    assert(rule && !rule->leaf);
    if (n_in < rule->min_in || (rule->max_in >= 0 && n_in > rule->max_in))
        return pk_graph_fail(g, PD_ERR_INVALID, "%s takes %d to %d inputs, not %d", rule->name, rule->min_in,
                             rule->max_in, n_in);
    for (int32_t i = 0; i < n_in; i++)
        if (!valid(g, in[i]))
            return pk_graph_fail(g, PD_ERR_INVALID, "%s: input %d is no value of this graph", rule->name, i);
    if (n_in > 16) {
        type = malloc((size_t)n_in * sizeof *type);
        if (!type)
            return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for the inputs of %s", rule->name);
    }
    for (int32_t i = 0; i < n_in; i++)
        type[i] = (struct pk_type){g->value[in[i].id].dtype, g->value[in[i].id].shape};
    err = rule->infer(attr, type, n_in, out, &n_out, &why);
    if (type != type_small)
        free(type);
    if (err != PD_OK) {
        describe(g, in, n_in, shapes, sizeof shapes);
        return pk_graph_fail(g, err, "%s of %s: %s", rule->name, shapes, why.text);
    }
    assert(n_out <= PK_MAX_OUT);
    if (!add_node(g, &n))
        return PK_NONE;
    n->op = op;
    n->n_in = n_in;
    n->n_out = n_out;
    n->attr = pd_arena_alloc(g->arena, sizeof *n->attr);
    n->in = n_in ? pd_arena_alloc(g->arena, (size_t)n_in * sizeof *n->in) : NULL;
    if (!n->attr || (n_in && !n->in))
        return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a node");
    memcpy(n->attr, attr, sizeof *n->attr);
    for (int32_t i = 0; i < n_in; i++)
        n->in[i] = in[i].id;
    if (rule->attr_own && !rule->attr_own(n->attr, g->arena))
        return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for the attributes of %s", rule->name);
    first = g->n_value;
    n->out = n_out ? first : 0;
    for (int32_t i = 0; i < n_out; i++) {
        struct pk_value *v;

        if (!add_value(g, &out[i], (uint32_t)i, &v)) {
            g->n_value = first;
            return PK_NONE;
        }
        if (rule->view && !pk_lay_view(op, attr, &g->value[in[0].id], v)) {
            g->n_value = first;
            return pk_graph_fail(g, PD_ERR_INVALID, "%s of a view would need a copy", rule->name);
        }
        if (pk_op_writes_through(op, n_in, i) >= 0) { /* the input itself, later */
            const struct pk_value *cache = &g->value[in[pk_op_writes_through(op, n_in, i)].id];

            v->root = cache->root;
            v->offset = cache->offset;
            memcpy(v->stride, cache->stride, sizeof v->stride);
        }
        if (ret_out)
            ret_out[i].id = first + (uint32_t)i;
    }
    g->n_node++;
    return n_out ? (struct pk_val){first} : PK_NONE;
}

void pk_node_belongs(struct pk_graph *g, uint32_t node, uint32_t like)
{
    g->node[node].born = g->node[like].born;
    g->node[node].scope = g->node[like].scope;
    g->node[node].backward = g->node[like].backward;
    g->node[node].exact = g->node[like].exact;
}

uint32_t pk_node_copy(struct pk_graph *g, uint32_t like, const uint32_t *in)
{
    struct pk_node *n;
    uint32_t first = g->n_value;

    if (!add_node(g, &n))
        return 0;
    *n = g->node[like];
    n->in = n->n_in ? pd_arena_alloc(g->arena, (size_t)n->n_in * sizeof *n->in) : NULL;
    if (n->n_in && !n->in) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a node");
        return 0;
    }
    if (n->n_in)
        memcpy(n->in, in, (size_t)n->n_in * sizeof *n->in);
    n->out = first;
    for (int32_t i = 0; i < n->n_out; i++) {
        const struct pk_value *from = &g->value[g->node[like].out + (uint32_t)i];
        struct pk_type type = {from->dtype, from->shape};
        struct pk_value *v;

        if (!add_value(g, &type, (uint32_t)i, &v)) {
            g->n_value = first;
            return 0;
        }
        if (pk_rule_of(n->op)->view && !pk_lay_view(n->op, n->attr, &g->value[in[0]], v)) {
            g->n_value = first;
            return 0;
        }
    }
    return g->n_node++;
}

uint32_t pk_node_more(struct pk_graph *g, uint32_t like, const struct pk_attr *attr, const uint32_t *in,
                      int32_t n_in, uint32_t also)
{
    const uint32_t first = g->n_value;
    const int32_t n_out = g->node[like].n_out + 1;
    struct pk_node *n;

    assert(n_out <= PK_MAX_OUT);
    if (!add_node(g, &n))
        return 0;
    *n = g->node[like];
    n->n_in = n_in;
    n->n_out = n_out;
    n->out = first;
    n->attr = pd_arena_alloc(g->arena, sizeof *n->attr);
    n->in = pd_arena_alloc(g->arena, (size_t)n_in * sizeof *n->in);
    if (!n->attr || !n->in) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for a node");
        return 0;
    }
    memcpy(n->attr, attr, sizeof *attr);
    memcpy(n->in, in, (size_t)n_in * sizeof *in);
    for (int32_t i = 0; i < n_out; i++) {
        const struct pk_value *from = &g->value[i < n_out - 1 ? g->node[like].out + (uint32_t)i : also];
        struct pk_type type = {from->dtype, from->shape};
        const bool gradient = from->gradient;
        struct pk_value *v;

        if (!add_value(g, &type, (uint32_t)i, &v)) {
            g->n_value = first;
            return 0;
        }
        v->gradient = gradient;
    }
    return g->n_node++;
}

struct pk_val pk_alias(struct pk_graph *g, struct pk_val x)
{
    struct pk_attr a = pk_attr_zero();

    a.slice.axis = 0;
    a.slice.start = 0;
    a.shape = pk_shape_of(g, x);
    if (a.shape.rank == 0)
        return pk_emit(g, PK_OP_RESHAPE, &a, &x, 1, NULL);
    a.slice.extent = a.shape.dim[0];
    a.shape = (struct pk_shape){.rank = 0};
    return pk_emit(g, PK_OP_SLICE, &a, &x, 1, NULL);
}

/* Checks dtype and shape of a leaf. `name` is for messages. */
static bool leaf_type_ok(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape)
{
    if (!g || g->err != PD_OK)
        return false;
    if ((unsigned)dtype >= PK_DTYPE_COUNT)
        (void)pk_graph_fail(g, PD_ERR_INVALID, "'%s' has an unknown dtype", name);
    else if (shape.rank < 0 || shape.rank > PK_MAX_RANK)
        (void)pk_graph_fail(g, PD_ERR_INVALID, "'%s' has rank %d; at most %d is possible", name, shape.rank,
                            PK_MAX_RANK);
    for (int32_t i = 0; i < shape.rank && g->err == PD_OK; i++)
        if (shape.dim[i] < 0)
            (void)pk_graph_fail(g, PD_ERR_INVALID, "'%s' has a negative extent", name);
    return g->err == PD_OK;
}

/* Adds the node and the value of a leaf; attr is copied, or zeroed if NULL. */
static struct pk_val leaf_node(struct pk_graph *g, enum pk_op kind, const char *name, struct pk_type type,
                               const struct pk_attr *attr)
{
    struct pk_value *v;
    struct pk_node *n;

    if (!add_node(g, &n))
        return PK_NONE;
    n->op = kind;
    n->n_out = 1;
    n->backward = false;
    n->out = g->n_value;
    n->attr = pd_arena_alloc(g->arena, sizeof *n->attr);
    if (n->attr && attr)
        memcpy(n->attr, attr, sizeof *attr);
    if (!n->attr || (pk_rule_of(kind)->attr_own && !pk_rule_of(kind)->attr_own(n->attr, g->arena)))
        return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for '%s'", name);
    if (!add_value(g, &type, 0, &v))
        return PK_NONE;
    g->n_node++;
    return (struct pk_val){v->root};
}

static struct pk_val leaf(struct pk_graph *g, enum pk_op kind, const char *name, enum pk_dtype dtype,
                          struct pk_shape shape, enum pk_category category)
{
    struct pk_val v;
    const char *copy;

    if (!g || g->err != PD_OK)
        return PK_NONE;
    if (!name || !name[0])
        return pk_graph_fail(g, PD_ERR_INVALID, "a leaf needs a name");
    if (!leaf_type_ok(g, name, dtype, shape))
        return PK_NONE;
    if ((unsigned)category >= PK_CAT_COUNT)
        return pk_graph_fail(g, PD_ERR_INVALID, "'%s' has an unknown category", name);
    for (size_t i = 0; i < g->n_leaf; i++)
        if (strcmp(g->leaf[i].name, name) == 0)
            return pk_graph_fail(g, PD_ERR_EXISTS, "a leaf '%s' exists already", name);
    copy = pd_arena_strdup(g->arena, name);
    if (!copy || !pk_grow((void **)&g->leaf, sizeof *g->leaf, g->n_leaf, &g->cap_leaf))
        return pk_graph_fail(g, PD_ERR_NOMEM, "no memory for '%s'", name);
    v = leaf_node(g, kind, name, (struct pk_type){dtype, shape}, NULL);
    if (v.id)
        g->leaf[g->n_leaf++] = (struct pk_leaf_info){copy, kind, category, v.id, 0};
    return v;
}

struct pk_val pk_input(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape)
{
    return leaf(g, PK_OP_INPUT, name, dtype, shape, PK_CAT_INPUTS);
}

struct pk_val pk_param(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape)
{
    return leaf(g, PK_OP_PARAM, name, dtype, shape, PK_CAT_WEIGHTS);
}

struct pk_val pk_state(struct pk_graph *g, const char *name, enum pk_dtype dtype, struct pk_shape shape,
                       enum pk_category category)
{
    return leaf(g, PK_OP_STATE, name, dtype, shape, category);
}

struct pk_val pk_const(struct pk_graph *g, enum pk_dtype dtype, struct pk_shape shape, const void *bytes)
{
    struct pk_attr a = pk_attr_zero();

    if (!leaf_type_ok(g, "a constant", dtype, shape))
        return PK_NONE;
    a.shape = shape;
    a.constant.dtype = dtype;
    a.constant.bytes = bytes;
    for (uint32_t i = 1; i < g->n_node; i++) {
        const struct pk_rule *rule = pk_rule_of(g->node[i].op);

        if (rule->fixed && rule->attr_same(g->node[i].attr, &a))
            return (struct pk_val){g->node[i].out};
    }
    return leaf_node(g, PK_OP_CONST, "a constant", (struct pk_type){dtype, shape}, &a);
}

size_t pk_graph_leaf_count(const struct pk_graph *g)
{
    return g ? g->n_leaf : 0;
}

struct pk_leaf pk_graph_leaf(const struct pk_graph *g, size_t i)
{
    const struct pk_leaf_info *l;
    const struct pk_value *v;

    assert(g && i < g->n_leaf);
    l = &g->leaf[i];
    v = &g->value[l->value];
    return (struct pk_leaf){.name = l->name,
                            .kind = l->kind,
                            .category = l->category,
                            .dtype = v->dtype,
                            .shape = v->shape,
                            .bytes = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype)};
}

void pk_output(struct pk_graph *g, const char *name, struct pk_val v)
{
    const char *copy;

    if (!g || g->err != PD_OK)
        return;
    if (!valid(g, v)) {
        pk_graph_fail(g, PD_ERR_INVALID, "output '%s' is no value of this graph", name ? name : "");
        return;
    }
    for (size_t i = 0; i < g->n_output; i++)
        if (strcmp(g->output[i].name, name) == 0) {
            pk_graph_fail(g, PD_ERR_EXISTS, "an output '%s' exists already", name);
            return;
        }
    if (!pk_value_is_dense(&g->value[v.id]) || g->value[v.id].root != v.id) {
        v = pk_copy(g, v); /* an output is a tensor of its own */
        if (!v.id)
            return;
    }
    copy = pd_arena_strdup(g->arena, name);
    if (!copy || !pk_grow((void **)&g->output, sizeof *g->output, g->n_output, &g->cap_output)) {
        pk_graph_fail(g, PD_ERR_NOMEM, "no memory for output '%s'", name);
        return;
    }
    g->output[g->n_output++] = (struct pk_out_info){copy, v.id};
}
