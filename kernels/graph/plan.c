/* Scheduling and memory planning.
 *
 * Several schedules are tried - the order of building; the same, but kernels that free memory go first; and
 * greedy by memory - and the one with the lowest peak of live bytes is taken. Then buffers are placed, largest
 * first, each in the tightest gap between those with an overlapping lifetime. */
#include "kernels/graph/plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool pk_is_kernel(const struct pk_node *n)
{
    const struct pk_rule *rule = pk_rule_of(n->op);

    return !n->dead && !rule->leaf && !rule->view;
}

/* Whether input k is dense, covers all of its root's memory, and no other input of the node reads that memory, except
 * an elementwise operand of the same layout. */
static bool sole(const struct pk_graph *g, const struct pk_node *n, int32_t k, const struct pk_value *like)
{
    const struct pk_value *v = &g->value[n->in[k]];

    if (v->dtype != like->dtype || v->offset != 0 || !pk_value_is_dense(v) ||
        pk_shape_count(&v->shape) != pk_shape_count(&like->shape) ||
        pk_shape_count(&g->value[v->root].shape) != pk_shape_count(&v->shape))
        return false;
    for (int32_t i = 0; i < n->n_in; i++) {
        const struct pk_value *o = &g->value[n->in[i]];

        if (i == k || o->root != v->root)
            continue;
        if (!pk_rule_of(n->op)->elementwise || !pk_shape_equal(&o->shape, &v->shape) || !pk_value_is_dense(o))
            return false;
    }
    return true;
}

/* Whether input k is the first columns of a dense matrix like y that no other input of the node reads. */
static bool first_columns(const struct pk_graph *g, const struct pk_node *n, int32_t k,
                          const struct pk_value *y)
{
    const struct pk_value *v = &g->value[n->in[k]];

    for (int32_t i = 0; i < n->n_in; i++)
        if (i != k && g->value[n->in[i]].root == v->root)
            return false;
    return v->dtype == y->dtype && v->offset == 0 && v->shape.rank == 2 && y->shape.rank == 2 &&
           v->stride[1] == 1 && v->stride[0] == y->shape.dim[1] && v->shape.dim[0] == y->shape.dim[0] &&
           pk_shape_count(&g->value[v->root].shape) == pk_shape_count(&y->shape);
}

int32_t pk_in_place(const struct pk_graph *g, const struct pk_node *n, int32_t out, int32_t *ret)
{
    const struct pk_rule *rule = pk_rule_of(n->op);
    const struct pk_value *y = &g->value[n->out + (uint32_t)out];
    int32_t count = 0, k;

    if (n->n_out < 1 || out != 0)
        return 0;
    if (rule->elementwise) {
        for (k = 0; k < n->n_in; k++)
            if (pk_shape_equal(&g->value[n->in[k]].shape, &y->shape) && sole(g, n, k, y))
                ret[count++] = k;
        return count;
    }
    k = rule->shares ? rule->shares(n->attr, n->n_in) : -1;
    if (k >= 0 && ((rule->shares_columns && first_columns(g, n, k, y)) || sole(g, n, k, y)))
        ret[count++] = k;
    return count;
}

/* ---- the problem, extracted from the graph ---- */

struct list { /* lists stored one after another: list i is item[start[i]] .. item[start[i+1] - 1] */
    uint32_t *start;
    uint32_t *item;
};

struct piece { /* a root value that needs arena memory */
    uint32_t value;
    uint32_t maker; /* kernel */
    size_t bytes;
    bool output, gradient, working;
};

struct problem {
    const struct pk_graph *g;
    uint32_t n_kernel, n_piece;
    uint32_t *kernel;   /* node ids in order of key */
    int32_t *kernel_of; /* by node */
    int32_t *piece_of;  /* by value (roots) */
    uint32_t *def;      /* by value: the node that computes it; 0: a leaf */
    struct piece *piece;
    struct list next;  /* by kernel: kernels that must run after it */
    struct list uses;  /* pieces -> kernels that read them, distinct */
    struct list reads; /* kernels -> pieces they read, distinct */
    uint32_t *waits;   /* by kernel: how many it waits for */
    const size_t *workspace;
    size_t *ws; /* by kernel, rounded up */
};

static void problem_done(struct problem *p)
{
    free(p->kernel);
    free(p->kernel_of);
    free(p->piece_of);
    free(p->def);
    free(p->piece);
    free(p->next.start);
    free(p->next.item);
    free(p->uses.start);
    free(p->uses.item);
    free(p->reads.start);
    free(p->reads.item);
    free(p->waits);
    free(p->ws);
}

static size_t round_up(size_t n)
{
    return (n + PK_ALIGN - 1) / PK_ALIGN * PK_ALIGN;
}

struct pairs {
    struct pair {
        uint32_t a, b;
    } * at;
    size_t count, cap;
    bool failed;
};

static void pair_add(struct pairs *p, uint32_t a, uint32_t b)
{
    if (p->failed || !pk_grow((void **)&p->at, sizeof *p->at, p->count, &p->cap)) {
        p->failed = true;
        return;
    }
    p->at[p->count++] = (struct pair){a, b};
}

static int pair_compare(const void *x, const void *y)
{
    const struct pair *a = x, *b = y;

    if (a->a != b->a)
        return a->a < b->a ? -1 : 1;
    return a->b < b->b ? -1 : a->b > b->b;
}

/* Distinct pairs as lists by their first; `flip` lists by the second. */
static bool list_make(struct pairs *p, uint32_t n, struct list *ret)
{
    size_t count = 0;

    if (p->failed)
        return false;
    if (p->count)
        qsort(p->at, p->count, sizeof *p->at, pair_compare);
    for (size_t i = 0; i < p->count; i++)
        if (i == 0 || pair_compare(&p->at[i - 1], &p->at[i]) != 0)
            p->at[count++] = p->at[i];
    p->count = count;
    ret->start = calloc((size_t)n + 2, sizeof *ret->start);
    ret->item = calloc(count + 1, sizeof *ret->item);
    if (!ret->start || !ret->item)
        return false;
    for (size_t i = 0; i < count; i++) {
        ret->start[p->at[i].a + 1]++;
        ret->item[i] = p->at[i].b;
    }
    for (uint32_t i = 0; i < n; i++)
        ret->start[i + 1] += ret->start[i];
    return true;
}

struct by_key {
    uint64_t key;
    uint32_t id;
};

static int key_compare(const void *x, const void *y)
{
    const struct by_key *a = x, *b = y;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t def_of(const struct problem *p, uint32_t v)
{
    const struct pk_node *n = &p->g->node[p->g->value[v].node];
    const struct pk_rule *rule;

    while ((rule = pk_rule_of(n->op))->view)
        n = &p->g->node[p->g->value[n->in[0]].node];
    return rule->leaf ? 0 : (uint32_t)(n - p->g->node);
}

struct touch { /* one access to a leaf that is written: by which kernel, and when that was built */
    uint32_t leaf;
    uint64_t born;
    uint32_t kernel;
    bool write;
};

static int touch_compare(const void *x, const void *y)
{
    const struct touch *a = x, *b = y;

    if (a->leaf != b->leaf)
        return a->leaf < b->leaf ? -1 : 1;
    if (a->born != b->born)
        return a->born < b->born ? -1 : 1;
    return a->kernel < b->kernel ? -1 : a->kernel > b->kernel;
}

/* Orders readers of a version of a leaf after its writer and before the next writer. */
static bool order_writers(struct problem *p, struct pairs *edge)
{
    const struct pk_graph *g = p->g;
    struct touch *touch = NULL;
    size_t count = 0, cap = 0;
    bool *written = calloc(g->n_value, sizeof *written), ok = false;
    int32_t w[PK_MAX_WRITES];

    if (!written)
        return false;
    for (uint32_t k = 0; k < p->n_kernel; k++) {
        const struct pk_node *n = &g->node[p->kernel[k]];

        for (int32_t i = pk_op_writes(n->op, n->attr, n->n_in, w); i-- > 0;)
            written[g->value[n->in[w[i]]].root] = true;
    }
    for (uint32_t k = 0; k < p->n_kernel; k++) {
        const struct pk_node *n = &g->node[p->kernel[k]];
        int32_t n_w = pk_op_writes(n->op, n->attr, n->n_in, w);

        for (int32_t i = 0; i < n->n_in; i++) {
            uint32_t root = g->value[n->in[i]].root;
            bool write = false;

            if (!written[root])
                continue;
            for (int32_t j = 0; j < n_w; j++)
                write = write || w[j] == i;
            if (!pk_grow((void **)&touch, sizeof *touch, count, &cap))
                goto out;
            touch[count++] = (struct touch){root, n->born, k, write};
        }
    }
    if (count)
        qsort(touch, count, sizeof *touch, touch_compare);
    for (size_t i = 0, group = 0; i < count; i++) {
        /* touch[group]: the last writer of this leaf so far, or the group's first reader */
        if (i == 0 || touch[i].leaf != touch[i - 1].leaf)
            group = i;
        if (touch[i].write) {
            for (size_t j = group; j < i; j++)
                if (touch[j].kernel != touch[i].kernel)
                    pair_add(edge, touch[j].kernel, touch[i].kernel);
            group = i;
        } else if (touch[group].write && touch[group].kernel != touch[i].kernel) {
            pair_add(edge, touch[group].kernel, touch[i].kernel);
        }
    }
    ok = true;
out:
    free(touch);
    free(written);
    return ok;
}

/* Collectives run in the order of building: all ranks then agree on it, even if their graphs differ otherwise. */
static void order_ranks(struct problem *p, struct pairs *edge)
{
    int32_t last = -1;

    for (uint32_t i = 1; i < p->g->n_node; i++) {
        if (p->kernel_of[i] < 0 || !pk_rule_of(p->g->node[i].op)->ranks)
            continue;
        if (last >= 0)
            pair_add(edge, (uint32_t)last, (uint32_t)p->kernel_of[i]);
        last = p->kernel_of[i];
    }
}

static bool problem_make(const struct pk_graph *g, const size_t *workspace, struct problem *p)
{
    struct pairs edge = {NULL, 0, 0, false}, use = {NULL, 0, 0, false}, read = {NULL, 0, 0, false};
    struct by_key *sorted = calloc(g->n_node, sizeof *sorted);
    bool ok = false;

    memset(p, 0, sizeof *p);
    p->g = g;
    p->workspace = workspace;
    p->kernel = calloc(g->n_node, sizeof *p->kernel);
    p->kernel_of = calloc(g->n_node, sizeof *p->kernel_of);
    p->piece_of = calloc(g->n_value, sizeof *p->piece_of);
    p->piece = calloc(g->n_value, sizeof *p->piece);
    p->ws = calloc(g->n_node, sizeof *p->ws);
    if (!sorted || !p->kernel || !p->kernel_of || !p->piece_of || !p->piece || !p->ws)
        goto out;
    for (uint32_t i = 1; i < g->n_node; i++)
        if (pk_is_kernel(&g->node[i]))
            sorted[p->n_kernel++] = (struct by_key){g->node[i].key, i};
    if (p->n_kernel)
        qsort(sorted, p->n_kernel, sizeof *sorted, key_compare);
    for (uint32_t i = 0; i < g->n_node; i++)
        p->kernel_of[i] = -1;
    for (uint32_t i = 0; i < g->n_value; i++)
        p->piece_of[i] = -1;
    for (uint32_t k = 0; k < p->n_kernel; k++) {
        const struct pk_node *n = &g->node[sorted[k].id];

        p->kernel[k] = sorted[k].id;
        p->kernel_of[sorted[k].id] = (int32_t)k;
        p->ws[k] = workspace ? round_up(workspace[sorted[k].id]) : 0;
        for (int32_t i = 0; i < n->n_out; i++) {
            uint32_t v = n->out + (uint32_t)i;
            const struct pk_value *x = &g->value[v];

            if (x->root != v)
                continue; /* a cache: the leaf's memory */
            p->piece_of[v] = (int32_t)p->n_piece;
            p->piece[p->n_piece++] = (struct piece){
                v,     k,           round_up((size_t)pk_shape_count(&x->shape) * pk_dtype_size(x->dtype)),
                false, x->gradient, x->working};
        }
    }
    for (size_t i = 0; i < g->n_output; i++) {
        int32_t at = p->piece_of[g->value[g->output[i].value].root];

        if (at >= 0)
            p->piece[at].output = true;
    }
    for (uint32_t k = 0; k < p->n_kernel; k++) {
        const struct pk_node *n = &g->node[p->kernel[k]];

        for (int32_t i = 0; i < n->n_in; i++) {
            uint32_t def = def_of(p, n->in[i]);
            int32_t piece = p->piece_of[g->value[n->in[i]].root];

            if (def) {
                assert(p->kernel_of[def] >= 0);
                pair_add(&edge, (uint32_t)p->kernel_of[def], k);
            }
            if (piece >= 0) {
                pair_add(&use, (uint32_t)piece, k);
                pair_add(&read, k, (uint32_t)piece);
            }
        }
    }
    order_ranks(p, &edge);
    if (!order_writers(p, &edge) || !list_make(&edge, p->n_kernel, &p->next) ||
        !list_make(&use, p->n_piece, &p->uses) || !list_make(&read, p->n_kernel, &p->reads))
        goto out;
    p->waits = calloc((size_t)p->n_kernel + 1, sizeof *p->waits);
    if (!p->waits)
        goto out;
    for (size_t i = 0; i < edge.count; i++)
        p->waits[edge.at[i].b]++;
    ok = true;
out:
    free(sorted);
    free(edge.at);
    free(use.at);
    free(read.at);
    return ok;
}

/* ---- schedules ---- */

enum style { STYLE_BUILT, STYLE_FREE_FIRST, STYLE_GREEDY, STYLE_COUNT };

struct ready {
    int64_t cost;
    uint32_t kernel;
};

static bool before(const struct ready *a, const struct ready *b)
{
    return a->cost != b->cost ? a->cost < b->cost : a->kernel < b->kernel;
}

struct heap {
    struct ready *at;
    size_t count, cap;
};

static bool heap_push(struct heap *h, struct ready r)
{
    size_t i;

    if (!pk_grow((void **)&h->at, sizeof *h->at, h->count, &h->cap))
        return false;
    for (i = h->count++; i > 0 && before(&r, &h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = r;
    return true;
}

static struct ready heap_pop(struct heap *h)
{
    struct ready top = h->at[0], r = h->at[--h->count];
    size_t i = 0;

    for (;;) {
        size_t kid = 2 * i + 1;

        if (kid >= h->count)
            break;
        if (kid + 1 < h->count && before(&h->at[kid + 1], &h->at[kid]))
            kid++;
        if (!before(&h->at[kid], &r))
            break;
        h->at[i] = h->at[kid];
        i = kid;
    }
    h->at[i] = r;
    return top;
}

/* Bytes that running kernel k next would add to the live bytes, as the style counts them. */
static int64_t cost_of(const struct problem *p, const uint32_t *left, enum style style, uint32_t k)
{
    const struct pk_node *n = &p->g->node[p->kernel[k]];
    int64_t cost = 0;

    if (style == STYLE_BUILT)
        return 0;
    for (int32_t i = 0; i < n->n_out; i++) {
        int32_t piece = p->piece_of[n->out + (uint32_t)i];

        if (piece >= 0 && (p->piece[piece].output || p->uses.start[piece] != p->uses.start[piece + 1]))
            cost += (int64_t)p->piece[piece].bytes;
    }
    for (uint32_t i = p->reads.start[k]; i < p->reads.start[k + 1]; i++) {
        uint32_t piece = p->reads.item[i];

        if (left[piece] == 1 && !p->piece[piece].output)
            cost -= (int64_t)p->piece[piece].bytes;
    }
    if (style == STYLE_FREE_FIRST)
        return cost < 0 ? -1 : 0; /* otherwise in order of building */
    return cost;
}

static bool schedule(const struct problem *p, enum style style, uint32_t *order)
{
    uint32_t *waits = malloc(((size_t)p->n_kernel + 1) * sizeof *waits);
    uint32_t *left = calloc((size_t)p->n_piece + 1, sizeof *left);
    bool *done = calloc((size_t)p->n_kernel + 1, sizeof *done), ok = false;
    struct heap h = {NULL, 0, 0};
    uint32_t n = 0;

    if (!waits || !left || !done)
        goto out;
    memcpy(waits, p->waits, ((size_t)p->n_kernel + 1) * sizeof *waits);
    for (uint32_t i = 0; i < p->n_piece; i++)
        left[i] = p->uses.start[i + 1] - p->uses.start[i];
    for (uint32_t k = 0; k < p->n_kernel; k++)
        if (!waits[k] && !heap_push(&h, (struct ready){cost_of(p, left, style, k), k}))
            goto out;
    while (h.count) {
        struct ready r = heap_pop(&h);
        uint32_t k = r.kernel;

        if (done[k])
            continue;
        done[k] = true;
        order[n++] = k;
        for (uint32_t i = p->reads.start[k]; i < p->reads.start[k + 1]; i++) {
            uint32_t piece = p->reads.item[i];

            /* Only one reader is left and will free the piece, so its cost may be lower now. */
            if (--left[piece] == 1 && style != STYLE_BUILT)
                for (uint32_t j = p->uses.start[piece]; j < p->uses.start[piece + 1]; j++) {
                    uint32_t o = p->uses.item[j];

                    if (!done[o] && !waits[o] &&
                        !heap_push(&h, (struct ready){cost_of(p, left, style, o), o}))
                        goto out;
                }
        }
        for (uint32_t i = p->next.start[k]; i < p->next.start[k + 1]; i++) {
            uint32_t o = p->next.item[i];

            if (--waits[o] == 0 && !heap_push(&h, (struct ready){cost_of(p, left, style, o), o}))
                goto out;
        }
    }
    assert(n == p->n_kernel); /* SSA and versions cannot form a cycle */
    ok = true;
out:
    free(waits);
    free(left);
    free(done);
    free(h.at);
    return ok;
}

/* ---- lifetimes ---- */

/* Lifetimes of pieces in a given order; pieces that share memory in place become one buffer. */
static bool lifetimes(const struct problem *p, const uint32_t *order, struct pk_plan *plan)
{
    uint32_t *step = calloc((size_t)p->n_kernel + 1, sizeof *step);
    uint32_t *last = calloc((size_t)p->n_piece + 1, sizeof *last);
    int32_t *share = NULL;
    size_t cap_share = 0, *live = NULL;
    bool ok = false;

    plan->n_buffer = 0;
    plan->buffer = calloc((size_t)p->n_piece + p->n_kernel + 1, sizeof *plan->buffer);
    plan->of_value = malloc(p->g->n_value * sizeof *plan->of_value);
    plan->of_workspace = malloc(((size_t)p->n_kernel + 1) * sizeof *plan->of_workspace);
    plan->order = malloc(((size_t)p->n_kernel + 1) * sizeof *plan->order);
    live = calloc((size_t)p->n_kernel + 2, sizeof *live);
    if (!step || !last || !plan->buffer || !plan->of_value || !plan->of_workspace || !plan->order || !live)
        goto out;
    plan->n_step = p->n_kernel;
    for (uint32_t s = 0; s < p->n_kernel; s++) {
        step[order[s]] = s;
        plan->order[s] = p->kernel[order[s]];
    }
    for (uint32_t i = 0; i < p->g->n_value; i++)
        plan->of_value[i] = -1;
    for (uint32_t i = 0; i < p->n_piece; i++) {
        last[i] = step[p->piece[i].maker];
        for (uint32_t j = p->uses.start[i]; j < p->uses.start[i + 1]; j++)
            if (step[p->uses.item[j]] > last[i])
                last[i] = step[p->uses.item[j]];
        if (p->piece[i].output)
            last[i] = UINT32_MAX;
    }
    for (uint32_t s = 0; s < p->n_kernel; s++) {
        const struct pk_node *n = &p->g->node[plan->order[s]];

        for (int32_t i = 0; i < n->n_out; i++) {
            uint32_t v = n->out + (uint32_t)i;
            int32_t piece = p->piece_of[v], n_share, into = -1;

            if (piece < 0)
                continue;
            while (cap_share < (size_t)n->n_in)
                if (!pk_grow((void **)&share, sizeof *share, cap_share, &cap_share))
                    goto out;
            n_share = pk_in_place(p->g, n, i, share);
            for (int32_t k = 0; k < n_share && into < 0; k++) {
                int32_t b = plan->of_value[p->g->value[n->in[share[k]]].root];

                if (b >= 0 && plan->buffer[b].last == s && plan->buffer[b].bytes == p->piece[piece].bytes)
                    into = b;
            }
            if (into < 0) {
                into = (int32_t)plan->n_buffer++;
                plan->buffer[into] = (struct pk_buffer){.bytes = p->piece[piece].bytes, .first = s};
            }
            plan->buffer[into].last = last[piece];
            plan->buffer[into].gradient = p->piece[piece].gradient;
            plan->buffer[into].working = p->piece[piece].working;
            plan->of_value[v] = into;
        }
        plan->of_workspace[s] = -1;
        if (p->ws[order[s]]) {
            plan->of_workspace[s] = (int32_t)plan->n_buffer;
            plan->buffer[plan->n_buffer++] =
                (struct pk_buffer){.bytes = p->ws[order[s]], .first = s, .last = s, .workspace = true};
        }
    }
    plan->live_bound = 0;
    for (uint32_t i = 0; i < plan->n_buffer; i++) {
        const struct pk_buffer *b = &plan->buffer[i];

        live[b->first] += b->bytes;
        if (b->last < p->n_kernel)
            live[b->last + 1] -= b->bytes; /* sums wrap and come back */
    }
    plan->gradient_bytes = plan->workspace_bytes = plan->working_bytes = 0;
    uint32_t peak = 0;

    for (uint32_t s = 0; s < p->n_kernel; s++) {
        if (s > 0)
            live[s] += live[s - 1];
        if (live[s] > plan->live_bound) {
            plan->live_bound = live[s];
            peak = s;
        }
    }
    for (uint32_t i = 0; i < plan->n_buffer; i++) {
        const struct pk_buffer *b = &plan->buffer[i];

        if (b->first <= peak && b->last >= peak) {
            plan->gradient_bytes += b->gradient ? b->bytes : 0;
            plan->workspace_bytes += b->workspace ? b->bytes : 0;
            plan->working_bytes += b->working ? b->bytes : 0;
        }
    }
    ok = true;
out:
    free(step);
    free(last);
    free(share);
    free(live);
    return ok;
}

/* ---- offsets ---- */

enum fit { FIT_SIZE, FIT_AREA, FIT_TIME, FIT_COUNT };

struct turn {
    double weight;
    uint32_t buffer;
};

static int turn_compare(const void *x, const void *y)
{
    const struct turn *a = x, *b = y;

    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

/* Places each buffer in turn in the tightest gap between placed buffers with an overlapping lifetime. */
static bool place(struct pk_plan *plan, enum fit fit, size_t *offset, size_t *ret_bytes)
{
    struct turn *turn = calloc((size_t)plan->n_buffer + 1, sizeof *turn);
    uint32_t *placed = calloc((size_t)plan->n_buffer + 1, sizeof *placed); /* by offset */
    uint32_t n = 0;
    size_t total = 0;
    bool ok = false;

    if (!turn || !placed)
        goto out;
    for (uint32_t i = 0; i < plan->n_buffer; i++) {
        const struct pk_buffer *b = &plan->buffer[i];
        uint32_t last = b->last < plan->n_step ? b->last : plan->n_step;
        double span = (double)last - b->first + 1.0;

        turn[i].buffer = i;
        turn[i].weight = fit == FIT_SIZE   ? (double)b->bytes
                         : fit == FIT_AREA ? (double)b->bytes * span
                                           : -(double)b->first;
    }
    if (plan->n_buffer)
        qsort(turn, plan->n_buffer, sizeof *turn, turn_compare);
    for (uint32_t t = 0; t < plan->n_buffer; t++) {
        uint32_t i = turn[t].buffer, at;
        const struct pk_buffer *b = &plan->buffer[i];
        size_t end = 0, best = SIZE_MAX, best_gap = SIZE_MAX;

        for (uint32_t j = 0; j < n; j++) {
            const struct pk_buffer *o = &plan->buffer[placed[j]];

            if (o->first > b->last || o->last < b->first)
                continue;
            if (offset[placed[j]] >= end + b->bytes && offset[placed[j]] - end < best_gap) {
                best_gap = offset[placed[j]] - end;
                best = end;
            }
            if (offset[placed[j]] + o->bytes > end)
                end = offset[placed[j]] + o->bytes;
        }
        offset[i] = best != SIZE_MAX ? best : end;
        if (offset[i] + b->bytes > total)
            total = offset[i] + b->bytes;
        for (at = n++; at > 0 && offset[placed[at - 1]] > offset[i]; at--)
            placed[at] = placed[at - 1];
        placed[at] = i;
    }
    *ret_bytes = total;
    ok = true;
out:
    free(turn);
    free(placed);
    return ok;
}

void pk_plan_done(struct pk_plan *p)
{
    free(p->order);
    free(p->buffer);
    free(p->of_value);
    free(p->of_workspace);
    memset(p, 0, sizeof *p);
}

enum pd_err pk_plan_make(const struct pk_graph *g, const size_t *workspace, struct pk_plan *ret,
                         struct pd_why *why)
{
    struct problem p;
    struct pk_plan best, next;
    uint32_t *order = NULL;
    size_t *offset = NULL;
    enum pd_err err = PD_ERR_NOMEM;

    memset(&best, 0, sizeof best);
    memset(&next, 0, sizeof next);
    if (!problem_make(g, workspace, &p))
        goto out;
    order = calloc((size_t)p.n_kernel + 1, sizeof *order);
    if (!order)
        goto out;
    for (int style = 0; style < STYLE_COUNT; style++) {
        if (!schedule(&p, (enum style)style, order) || !lifetimes(&p, order, &next))
            goto out;
        if (style == 0 || next.live_bound < best.live_bound) {
            pk_plan_done(&best);
            best = next;
            memset(&next, 0, sizeof next);
        }
        pk_plan_done(&next);
    }
    offset = calloc((size_t)best.n_buffer + 1, sizeof *offset);
    if (!offset)
        goto out;
    best.arena_bytes = SIZE_MAX;
    for (int fit = 0; fit < FIT_COUNT && best.arena_bytes > best.live_bound; fit++) {
        size_t bytes;

        if (!place(&best, (enum fit)fit, offset, &bytes))
            goto out;
        if (bytes < best.arena_bytes) {
            best.arena_bytes = bytes;
            for (uint32_t i = 0; i < best.n_buffer; i++)
                best.buffer[i].offset = offset[i];
        }
    }
    *ret = best;
    memset(&best, 0, sizeof best); /* moved to the caller */
    err = PD_OK;
out:
    if (err != PD_OK)
        pd_fail(why, err, "no memory to plan a graph of %u nodes", g->n_node - 1);
    problem_done(&p);
    pk_plan_done(&best);
    pk_plan_done(&next);
    free(order);
    free(offset);
    return err;
}
