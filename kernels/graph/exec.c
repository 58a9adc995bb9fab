/* A planned graph on a back end: all calls are prepared once; a run passes the whole list to the back end, or replays
 * its recording. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/passes/passes.h"
#include "kernels/graph/plan.h"

/* Which memory: the index of a bound leaf, or one of these. */
enum { IN_ARENA = -1, IN_CONSTANTS = -2 };

struct origin { /* a view's data pointer is this memory plus the offset */
    int32_t where;
    size_t offset; /* bytes */
};

struct constant {
    uint32_t value;
    size_t offset;
};

struct pk_arena {
    size_t plans; /* references: plans that use it, and the caller of pk_arena_new */
    size_t bytes;
    unsigned char *memory; /* NULL: no bytes, or a forecast */
    const struct pk_backend_api *api;
    struct pk_backend *backend;
    uint64_t moved;              /* how often `memory` was replaced */
    const struct pk_exec *holds; /* the plan whose values it holds; NULL: none */
};

struct pk_exec {
    struct pk_graph *g; /* owned; after the passes */
    struct pk_plan plan;
    const struct pk_backend_api *api;
    struct pk_backend *backend; /* NULL: forecast only */
    struct pk_call *call;
    size_t n_call;
    struct pk_view *view;  /* of all calls */
    struct origin *origin; /* of all views */
    struct origin *start;  /* by root value */
    size_t n_view;
    uint32_t *call_node, *call_step;
    void **bound; /* by leaf */
    bool *used;   /* by leaf */
    bool stale;   /* pointers must be resolved again */
    bool warm;    /* has run with these pointers: may be recorded */
    struct pk_captured *captured;
    bool unrecordable;
    struct pk_exec_runs runs;
    struct pk_arena *arena;
    uint64_t arena_moved;      /* arena->moved when pointers were resolved */
    struct constant *constant; /* those that the plan reads, with their offsets */
    size_t n_constant, constant_bytes;
    unsigned char *constants;
    void (*trace)(void *user, const char *node, const struct pk_view *out, int n);
    void *trace_user;
    bool poison;
};

static struct pk_view view_of(const struct pk_value *v)
{
    struct pk_view view = {.dtype = v->dtype, .shape = v->shape};

    memcpy(view.stride, v->stride, sizeof view.stride);
    return view;
}

/* Views of one node's call, without data. Returns the number of outputs. */
static int32_t describe(const struct pk_graph *g, const struct pk_node *n, struct pk_view *in,
                        struct pk_view *out)
{
    const struct pk_rule *rule = pk_rule_of(n->op);
    int32_t n_out = n->n_out;

    for (int32_t i = 0; i < n->n_in; i++)
        in[i] = view_of(&g->value[n->in[i]]);
    for (int32_t i = 0; i < n->n_out; i++)
        out[i] = view_of(&g->value[n->out + (uint32_t)i]);
    if (rule->fit)
        rule->fit(n->attr, n->n_in, in, out);
    if (n_out == 0) { /* an output written in place is a view of that input */
        int32_t at[PK_MAX_WRITES], writes = pk_op_writes(n->op, n->attr, n->n_in, at);

        for (int32_t i = 0; i < writes; i++)
            out[n_out++] = in[at[i]];
    }
    return n_out;
}

static int32_t outputs_of(const struct pk_node *n)
{
    int32_t at[PK_MAX_WRITES];

    return n->n_out ? n->n_out : pk_op_writes(n->op, n->attr, n->n_in, at);
}

/* The value whose memory output i is. */
static uint32_t output_value(const struct pk_node *n, int32_t i)
{
    int32_t at[PK_MAX_WRITES];

    if (n->n_out)
        return n->out + (uint32_t)i;
    (void)pk_op_writes(n->op, n->attr, n->n_in, at);
    return n->in[at[i]];
}

static enum pd_err ask_backend(struct pk_exec *e, size_t *workspace, struct pd_why *why)
{
    struct pk_view *in = NULL, out[PK_MAX_OUT];
    size_t cap = 0;
    enum pd_err err = PD_OK;

    for (uint32_t i = 1; i < e->g->n_node && err == PD_OK; i++) {
        const struct pk_node *n = &e->g->node[i];
        struct pk_call call;

        if (!pk_is_kernel(n))
            continue;
        while (cap < (size_t)n->n_in)
            if (!pk_grow((void **)&in, sizeof *in, cap, &cap)) {
                free(in);
                return pd_fail(why, PD_ERR_NOMEM, "no memory to plan");
            }
        call = (struct pk_call){.op = n->op, .attr = n->attr, .n_in = n->n_in, .in = in, .out = out};
        call.n_out = describe(e->g, n, in, out);
        if (!e->api->supports(e->backend, &call)) {
            char shapes[256] = "", one[128];
            size_t at = 0;

            for (int32_t k = 0; k < n->n_in && k < 4 && at + 1 < sizeof shapes; k++) {
                int len = snprintf(shapes + at, sizeof shapes - at, "%s%s %s", k ? ", " : "",
                                   pk_dtype_name(in[k].dtype), pk_shape_text(&in[k].shape, one, sizeof one));
                at += len > 0 ? (size_t)len : 0;
            }
            err = pd_fail(why, PD_ERR_UNSUPPORTED, "%s%sback end '%s' cannot run %s of %s", n->scope,
                          n->scope[0] ? ": " : "", e->api->name, pk_op_name(n->op), shapes);
        } else {
            workspace[i] = e->api->workspace_bytes(e->backend, &call);
        }
    }
    free(in);
    return err;
}

/* Assigns an offset to every constant that the plan reads. */
static bool lay_constants(struct pk_exec *e)
{
    size_t cap = 0;

    for (uint32_t i = 1; i < e->g->n_node; i++) {
        const struct pk_node *n = &e->g->node[i];
        const struct pk_value *v = &e->g->value[n->out];
        const size_t bytes = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);

        if (n->dead || !pk_rule_of(n->op)->fixed)
            continue;
        if (!pk_grow((void **)&e->constant, sizeof *e->constant, e->n_constant, &cap))
            return false;
        e->constant[e->n_constant++] = (struct constant){n->out, e->constant_bytes};
        e->constant_bytes += (bytes + PK_ALIGN - 1) / PK_ALIGN * PK_ALIGN;
    }
    return true;
}

static enum pd_err upload_constants(struct pk_exec *e, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (!e->constant_bytes)
        return PD_OK;
    e->constants = e->api->alloc(e->backend, e->constant_bytes);
    if (!e->constants)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for constants of %zu bytes", e->constant_bytes);
    for (size_t i = 0; i < e->n_constant && err == PD_OK; i++) {
        const struct pk_value *v = &e->g->value[e->constant[i].value];
        const size_t bytes = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);

        if (bytes)
            err = e->api->upload(e->backend, e->constants + e->constant[i].offset,
                                 e->g->node[v->node].attr->constant.bytes, bytes, why);
    }
    return err;
}

/* NULL before the memory is allocated or bound. */
static unsigned char *base_of(const struct pk_exec *e, int32_t where)
{
    return where >= 0 ? e->bound[where] : where == IN_CONSTANTS ? e->constants : e->arena->memory;
}

/* Finds the address of every root value. */
static bool find_starts(struct pk_exec *e)
{
    const struct pk_graph *g = e->g;

    e->start = calloc(g->n_value, sizeof *e->start);
    if (!e->start)
        return false;
    for (uint32_t i = 1; i < g->n_value; i++) {
        const int32_t buffer = e->plan.of_value[i];

        e->start[i] = (struct origin){IN_ARENA, buffer >= 0 ? e->plan.buffer[buffer].offset : 0};
    }
    for (size_t i = 0; i < g->n_leaf; i++)
        e->start[g->leaf[i].value] = (struct origin){(int32_t)i, 0};
    for (size_t i = 0; i < e->n_constant; i++)
        e->start[e->constant[i].value] = (struct origin){IN_CONSTANTS, e->constant[i].offset};
    return true;
}

static bool prepare(struct pk_exec *e, const size_t *workspace)
{
    const struct pk_graph *g = e->g;
    size_t views = 0, at = 0;

    for (uint32_t s = 0; s < e->plan.n_step; s++) {
        const struct pk_node *n = &g->node[e->plan.order[s]];

        views += (size_t)n->n_in + (size_t)outputs_of(n);
    }
    e->call = calloc((size_t)e->plan.n_step + 1, sizeof *e->call);
    e->call_node = calloc((size_t)e->plan.n_step + 1, sizeof *e->call_node);
    e->call_step = calloc((size_t)e->plan.n_step + 1, sizeof *e->call_step);
    e->view = calloc(views + 1, sizeof *e->view);
    e->origin = calloc(views + 1, sizeof *e->origin);
    e->bound = calloc(g->n_leaf + 1, sizeof *e->bound);
    e->used = calloc(g->n_leaf + 1, sizeof *e->used);
    if (!e->call || !e->call_node || !e->call_step || !e->view || !e->origin || !e->bound || !e->used ||
        !lay_constants(e) || !find_starts(e))
        return false;
    for (size_t i = 0; i < g->n_output; i++) {
        int32_t where = e->start[g->value[g->output[i].value].root].where;

        if (where >= 0)
            e->used[where] = true;
    }
    for (uint32_t s = 0; s < e->plan.n_step; s++) {
        const struct pk_node *n = &g->node[e->plan.order[s]];
        struct pk_view *in = &e->view[at], *out = in + n->n_in;
        int32_t n_out = describe(g, n, in, out);
        bool empty = n_out > 0;

        for (int32_t i = 0; i < n_out; i++)
            empty = empty && pk_shape_count(&out[i].shape) == 0;
        if (empty)
            continue;
        for (int32_t i = 0; i < n->n_in + n_out; i++) {
            uint32_t id = i < n->n_in ? n->in[i] : output_value(n, i - n->n_in);
            const struct pk_value *v = &g->value[id];
            struct origin *o = &e->origin[at + (size_t)i];

            *o = e->start[v->root];
            o->offset += (size_t)v->offset * pk_dtype_size(v->dtype);
            if (o->where >= 0)
                e->used[o->where] = true;
        }
        e->call[e->n_call] = (struct pk_call){.op = n->op,
                                              .attr = n->attr,
                                              .n_in = n->n_in,
                                              .n_out = n_out,
                                              .in = in,
                                              .out = out,
                                              .workspace_bytes = workspace[e->plan.order[s]]};
        e->call_node[e->n_call] = e->plan.order[s];
        e->call_step[e->n_call++] = s;
        at += (size_t)n->n_in + (size_t)n_out;
    }
    e->n_view = at;
    e->stale = true;
    return true;
}

/* Makes two plans: keep every activation, or recompute cheap ones. The one with the smaller arena is used. A graph that
 * never recomputes has the first plan alone. */
static enum pd_err choose(struct pk_exec *e, size_t **workspace, struct pd_why *why)
{
    struct pk_graph *kept = NULL;
    struct pk_plan first;
    size_t *ws = NULL;
    bool any = false;
    enum pd_err err;

    memset(&first, 0, sizeof first);
    for (int round = 0; round < 2; round++) {
        ws = calloc(e->g->n_node, sizeof *ws);
        if (!ws) {
            err = pd_fail(why, PD_ERR_NOMEM, "no memory to plan");
            goto out;
        }
        if (e->api) {
            err = ask_backend(e, ws, why);
            if (err != PD_OK)
                goto out;
        }
        err = pk_plan_make(e->g, ws, &e->plan, why);
        if (err != PD_OK)
            goto out;
        if (round == 0 && e->g->recompute == PK_RECOMPUTE_NEVER)
            break;
        if (round == 0) {
            struct pk_graph *other = pk_graph_clone(e->g);

            if (!other) {
                err = pd_fail(why, PD_ERR_NOMEM, "no memory for a copy of the graph");
                goto out;
            }
            err = pk_passes_again(other, &any, why);
            if (err != PD_OK || !any) {
                pk_graph_free(other);
                break;
            }
            kept = e->g;
            e->g = other;
            first = e->plan;
            memset(&e->plan, 0, sizeof e->plan);
            *workspace = ws;
            ws = NULL;
        } else if (e->plan.arena_bytes >= first.arena_bytes) {
            struct pk_plan swap = e->plan; /* recomputing does not help here */

            e->plan = first;
            first = swap;
            pk_graph_free(e->g);
            e->g = kept;
            kept = NULL; /* moved back */
        } else {
            free(*workspace);
            *workspace = ws;
            ws = NULL;
        }
    }
    if (!any && err == PD_OK) {
        *workspace = ws;
        ws = NULL;
    }
out:
    free(ws);
    pk_graph_free(kept);
    pk_plan_done(&first);
    return err;
}

struct pk_arena *pk_arena_new(void)
{
    struct pk_arena *a = calloc(1, sizeof *a);

    if (a)
        a->plans = 1;
    return a;
}

struct pk_arena *pk_arena_free(struct pk_arena *a)
{
    if (a && --a->plans == 0) {
        if (a->memory)
            a->api->free(a->backend, a->memory);
        free(a);
    }
    return NULL;
}

size_t pk_arena_bytes(const struct pk_arena *a)
{
    return a->bytes;
}

/* Grows the arena to the size that the plan needs. The old memory is freed first, so that both need not fit at once. */
static enum pd_err join_arena(struct pk_exec *e, struct pk_arena *a, struct pd_why *why)
{
    size_t bytes = e->plan.arena_bytes;

    if ((a->plans > 1 || a->memory) && a->backend != e->backend)
        return pd_fail(why, PD_ERR_INVALID, "plans of several back ends cannot share an arena");
    a->plans++;
    e->arena = a;
    a->api = e->api;
    a->backend = e->backend;
    if (bytes <= a->bytes)
        return PD_OK;
    if (e->backend) {
        if (a->memory) {
            enum pd_err err = a->api->sync(a->backend, why);

            if (err != PD_OK)
                return err;
            a->api->free(a->backend, a->memory);
        }
        a->holds = NULL;
        a->bytes = 0;
        a->moved++;
        a->memory = a->api->alloc(a->backend, bytes);
        if (!a->memory)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for an arena of %zu bytes", bytes);
    }
    a->bytes = bytes;
    return PD_OK;
}

enum pd_err pk_exec_new(struct pk_graph *g, const struct pk_backend_api *api, struct pk_backend *backend,
                        struct pk_exec **ret, struct pd_why *why)
{
    return pk_exec_new_in(g, api, backend, NULL, ret, why);
}

enum pd_err pk_exec_new_in(struct pk_graph *g, const struct pk_backend_api *api, struct pk_backend *backend,
                           struct pk_arena *arena, struct pk_exec **ret, struct pd_why *why)
{
    struct pk_arena *own;
    struct pk_exec *e = NULL;
    size_t *workspace = NULL;
    enum pd_err err = pk_graph_check(g, why);

    if (err != PD_OK)
        return err;
    if (backend && !api)
        return pd_fail(why, PD_ERR_INVALID, "a plan with a back end needs the table of its functions");
    if (api && api->abi != PK_BACKEND_ABI)
        return pd_fail(why, PD_ERR_VERSION,
                       "back end '%s' was built for version %u of the interface; this program has version %u",
                       api->name, api->abi, PK_BACKEND_ABI);
    e = calloc(1, sizeof *e);
    if (!e)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a plan");
    e->api = api;
    e->backend = backend;
    e->g = pk_graph_clone(g);
    if (!e->g) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a copy of the graph");
        goto out;
    }
    err = pk_passes_run(e->g, why);
    if (err != PD_OK)
        goto out;
    err = choose(e, &workspace, why);
    if (err != PD_OK)
        goto out;
    if (!prepare(e, workspace)) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the calls of a plan");
        goto out;
    }
    own = arena ? NULL : pk_arena_new();
    err = arena || own ? join_arena(e, arena ? arena : own, why)
                       : pd_fail(why, PD_ERR_NOMEM, "no memory for a plan");
    pk_arena_free(own); /* the plan holds a reference */
    if (err == PD_OK && backend)
        err = upload_constants(e, why);
    if (err != PD_OK)
        goto out;
    *ret = e;
    e = NULL; /* moved to the caller */
out:
    free(workspace);
    pk_exec_free(e);
    return err;
}

/* A recording must not be freed while it may still be running. */
static void drop_captured(struct pk_exec *e)
{
    if (e->captured) {
        (void)e->api->sync(e->backend, NULL);
        e->captured = e->api->captured_free(e->backend, e->captured);
    }
    e->warm = false;
}

struct pk_exec *pk_exec_free(struct pk_exec *e)
{
    if (e) {
        drop_captured(e);
        if (e->arena && e->arena->holds == e)
            e->arena->holds = NULL;
        pk_arena_free(e->arena);
        if (e->constants)
            e->api->free(e->backend, e->constants);
        pk_plan_done(&e->plan);
        pk_graph_free(e->g);
        free(e->call);
        free(e->view);
        free(e->origin);
        free(e->start);
        free(e->constant);
        free(e->call_node);
        free(e->call_step);
        free(e->bound);
        free(e->used);
        free(e);
    }
    return NULL;
}

static bool is_copy(const struct pk_graph *g, uint32_t value)
{
    for (size_t i = 0; i < g->n_leaf; i++)
        if (g->leaf[i].copy == value)
            return true;
    return false;
}

void pk_exec_report(const struct pk_exec *e, struct pk_plan_report *ret)
{
    memset(ret, 0, sizeof *ret);
    for (size_t i = 0; i < pk_graph_leaf_count(e->g); i++) {
        struct pk_leaf l = pk_graph_leaf(e->g, i);

        if (pk_rule_of(l.kind)->trained && e->g->precision == PK_PRECISION_MIXED && l.dtype == PK_F32)
            l.category = PK_CAT_MASTER; /* matmuls read the working copies */
        ret->bytes[l.category] += l.bytes;
        if (is_copy(e->g, e->g->leaf[i].value))
            ret->copy_bytes += l.bytes;
    }
    ret->bytes[PK_CAT_INPUTS] += e->constant_bytes;
    ret->const_bytes = e->constant_bytes;
    ret->bytes[PK_CAT_WEIGHTS] += e->plan.working_bytes;
    ret->bytes[PK_CAT_GRADIENTS] += e->plan.gradient_bytes;
    ret->bytes[PK_CAT_WORKSPACE] += e->plan.workspace_bytes;
    ret->bytes[PK_CAT_ACTIVATIONS] +=
        e->plan.arena_bytes - e->plan.gradient_bytes - e->plan.workspace_bytes - e->plan.working_bytes;
    ret->arena_bytes = e->plan.arena_bytes;
    ret->live_bound = e->plan.live_bound;
    ret->nodes = e->n_call;
}

enum pd_err pk_exec_bind(struct pk_exec *e, const char *name, void *memory, struct pd_why *why)
{
    if ((uintptr_t)memory % PK_ALIGN)
        return pd_fail(why, PD_ERR_INVALID, "memory for '%s' is not aligned to %u bytes", name, PK_ALIGN);
    for (size_t i = 0; i < e->g->n_leaf; i++)
        if (strcmp(e->g->leaf[i].name, name) == 0) {
            e->stale = e->stale || e->bound[i] != memory;
            e->bound[i] = memory;
            return PD_OK;
        }
    return pd_fail(why, PD_ERR_NOT_FOUND, "the graph has no leaf '%s'", name);
}

static enum pd_err resolve(struct pk_exec *e, struct pd_why *why)
{
    if (e->arena->bytes < e->plan.arena_bytes) /* another plan failed to grow it */
        return pd_fail(why, PD_ERR_NOMEM, "no memory for an arena of %zu bytes", e->plan.arena_bytes);
    for (size_t i = 0; i < e->g->n_leaf; i++)
        if (e->used[i] && !e->bound[i] && pk_graph_leaf(e->g, i).bytes)
            return pd_fail(why, PD_ERR_INVALID, "leaf '%s' is not bound", e->g->leaf[i].name);
    for (size_t i = 0; i < e->n_view; i++) {
        unsigned char *base = base_of(e, e->origin[i].where);

        e->view[i].data = base ? base + e->origin[i].offset : NULL;
    }
    for (size_t i = 0; i < e->n_call; i++) {
        int32_t ws = e->plan.of_workspace[e->call_step[i]];

        e->call[i].workspace = ws >= 0 ? e->arena->memory + e->plan.buffer[ws].offset : NULL;
    }
    e->stale = false;
    e->arena_moved = e->arena->moved;
    return PD_OK;
}

static enum pd_err spoil(struct pk_exec *e, size_t offset, size_t bytes, struct pd_why *why)
{
    unsigned char junk[4096];
    enum pd_err err = PD_OK;

    memset(junk, 0xff, sizeof junk); /* NaN in every float format */
    while (bytes && err == PD_OK) {
        size_t n = bytes < sizeof junk ? bytes : sizeof junk;

        err = e->api->upload(e->backend, e->arena->memory + offset, junk, n, why);
        offset += n;
        bytes -= n;
    }
    return err;
}

/* Passes the outputs, or copies in host memory, to the trace callback. */
static enum pd_err show(struct pk_exec *e, const struct pk_call *c, const char *name, struct pd_why *why)
{
    struct pk_view copy[PK_MAX_OUT];
    enum pd_err err = PD_OK;

    if (e->api->host_memory) {
        e->trace(e->trace_user, name, c->out, c->n_out);
        return PD_OK;
    }
    memset(copy, 0, sizeof copy);
    for (int32_t i = 0; i < c->n_out && err == PD_OK; i++) {
        size_t elements = 1, bytes;

        copy[i] = c->out[i];
        for (int32_t k = 0; k < copy[i].shape.rank; k++) /* the span of the view, including gaps */
            elements += (size_t)((copy[i].shape.dim[k] - 1) * copy[i].stride[k]);
        bytes = pk_shape_count(&copy[i].shape) ? elements * pk_dtype_size(copy[i].dtype) : 0;
        copy[i].data = malloc(bytes ? bytes : 1);
        if (!copy[i].data)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory to trace %s", name);
        else if (bytes)
            err = e->api->download(e->backend, copy[i].data, c->out[i].data, bytes, why);
    }
    if (err == PD_OK)
        e->trace(e->trace_user, name, copy, c->n_out);
    for (int32_t i = 0; i < c->n_out; i++)
        free(copy[i].data);
    return err;
}

/* One call at a time, to trace each, or to overwrite buffers whose lifetime has ended. */
static enum pd_err run_slowly(struct pk_exec *e, struct pd_why *why)
{
    enum pd_err err = e->poison ? spoil(e, 0, e->plan.arena_bytes, why) : PD_OK;
    uint32_t step = 0;

    for (size_t i = 0; i < e->n_call && err == PD_OK; i++) {
        const struct pk_node *n = &e->g->node[e->call_node[i]];

        err = e->api->run(e->backend, &e->call[i], 1, why);
        if (err == PD_OK)
            err = e->api->sync(e->backend, why);
        if (err == PD_OK && e->trace) {
            char name[256];

            snprintf(name, sizeof name, "%s%s%s#%u", n->scope, n->scope[0] ? "/" : "", pk_op_name(n->op),
                     e->call_node[i]);
            err = show(e, &e->call[i], name, why);
        }
        for (; e->poison && step <= e->call_step[i] && err == PD_OK; step++)
            for (uint32_t b = 0; b < e->plan.n_buffer && err == PD_OK; b++)
                if (e->plan.buffer[b].last == step)
                    err = spoil(e, e->plan.buffer[b].offset, e->plan.buffer[b].bytes, why);
    }
    return err;
}

static bool has_collectives(const struct pk_exec *e)
{
    for (size_t i = 0; i < e->n_call; i++)
        if (pk_rule_of(e->call[i].op)->ranks)
            return true;
    return false;
}

enum pd_err pk_exec_compile(struct pk_exec *e, pk_compile_note *note, void *user, struct pd_why *why)
{
    return e->backend && e->api->compile ? e->api->compile(e->backend, e->call, e->n_call, note, user, why)
                                         : PD_OK;
}

enum pd_err pk_exec_run(struct pk_exec *e, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (!e->backend)
        return pd_fail(why, PD_ERR_CONFLICT, "this plan has no back end");
    if (e->stale || e->arena_moved != e->arena->moved) {
        drop_captured(e);
        err = resolve(e, why);
    }
    e->arena->holds = e;
    if (err == PD_OK && (e->trace || e->poison)) {
        e->runs.eager++;
        return run_slowly(e, why);
    }
    if (err == PD_OK && e->warm && !e->captured && !e->unrecordable) {
        err = e->api->capture(e->backend, e->call, e->n_call, &e->captured, why);
        e->runs.captures += err == PD_OK;
        /* call by call from now on */
        if (err != PD_OK && (err == PD_ERR_UNSUPPORTED || !has_collectives(e))) {
            e->runs.refused += !has_collectives(e);
            e->unrecordable = true;
            err = PD_OK;
        }
    }
    if (err != PD_OK)
        return err;
    if (e->captured) {
        e->runs.replays++;
        return e->api->replay(e->backend, e->captured, why);
    }
    e->runs.eager++;
    err = e->api->run(e->backend, e->call, e->n_call, why);
    e->warm = err == PD_OK && e->api->capture && e->n_call > 0;
    return err;
}

struct pk_exec_runs pk_exec_runs(const struct pk_exec *e)
{
    return e->runs;
}

const void *pk_exec_output(struct pk_exec *e, const char *output, struct pk_shape *ret_shape)
{
    for (size_t i = 0; i < e->g->n_output; i++)
        if (strcmp(e->g->output[i].name, output) == 0) {
            const struct pk_value *v = &e->g->value[e->g->output[i].value];
            const struct origin o = e->start[v->root];
            const unsigned char *base = base_of(e, o.where);

            if (ret_shape)
                *ret_shape = v->shape;
            if (!base || (o.where == IN_ARENA && e->arena->holds != e))
                return NULL;
            return base + o.offset + (size_t)v->offset * pk_dtype_size(v->dtype);
        }
    return NULL;
}

/* Address of an output of `bytes` bytes on the back end, for a copy to the host. */
static enum pd_err readable(struct pk_exec *e, const char *output, size_t bytes, const void **ret,
                            struct pd_why *why)
{
    size_t have;

    for (size_t i = 0; i < e->g->n_output; i++) {
        const struct pk_value *v = &e->g->value[e->g->output[i].value];

        if (strcmp(e->g->output[i].name, output) != 0)
            continue;
        have = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);
        *ret = pk_exec_output(e, output, NULL);
        if (have != bytes)
            return pd_fail(why, PD_ERR_INVALID, "output '%s' has %zu bytes, not %zu", output, have, bytes);
        if (have && (!*ret || !e->backend))
            return pd_fail(why, PD_ERR_CONFLICT,
                           "output '%s' has not been computed, or another plan has overwritten it", output);
        return PD_OK;
    }
    return pd_fail(why, PD_ERR_NOT_FOUND, "the graph has no output '%s'", output);
}

enum pd_err pk_exec_read(struct pk_exec *e, const char *output, void *to, size_t bytes, struct pd_why *why)
{
    const void *from;
    enum pd_err err = readable(e, output, bytes, &from, why);

    if (err != PD_OK || !bytes)
        return err;
    if (e->api->read)
        return e->api->read(e->backend, to, from, bytes, why);
    err = e->api->sync(e->backend, why);
    return err == PD_OK ? e->api->download(e->backend, to, from, bytes, why) : err;
}

enum pd_err pk_exec_read_later(struct pk_exec *e, const char *output, int place, size_t bytes,
                               struct pd_why *why)
{
    const void *from;
    enum pd_err err = readable(e, output, bytes, &from, why);

    return err == PD_OK ? e->api->read_later(e->backend, place, from, bytes, why) : err;
}

enum pd_err pk_exec_read_wait(struct pk_exec *e, int place, void *to, size_t bytes, struct pd_why *why)
{
    return e->api->read_wait(e->backend, place, to, bytes, why);
}

void pk_exec_trace(struct pk_exec *e,
                   void (*fn)(void *user, const char *node, const struct pk_view *out, int n), void *user)
{
    e->trace = fn;
    e->trace_user = user;
}

void pk_exec_each(const struct pk_exec *e,
                  void (*fn)(void *user, const char *scope, bool backward, const struct pk_call *call),
                  void *user)
{
    for (size_t i = 0; i < e->n_call; i++) {
        const struct pk_node *n = &e->g->node[e->call_node[i]];

        fn(user, n->scope, n->backward, &e->call[i]);
    }
}

void pk_exec_poison(struct pk_exec *e, bool on)
{
    e->poison = on;
}
