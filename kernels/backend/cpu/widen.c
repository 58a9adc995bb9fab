/* Calls with bf16 operands, by the kernels for f32: inputs are widened into the workspace, results rounded to
 * nearest even. This is the definition of mixed precision, not written for speed.
 *
 * Layout of the workspace: the views of the inner call, the wide tensors, the scratch of the kernel. */
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cpu/cpu.h"

/* More than any memory: a call without a plan fails like one that is too large. */
#define TOO_MUCH (SIZE_MAX / 4)

static bool is_half(const struct pk_view *v)
{
    return v->dtype == PK_BF16;
}

/* Whether MATMUL reads b directly: a matrix of bf16 with a of f32. Sums of b do not. */
static bool keeps_b(const struct pk_call *c)
{
    return c->op == PK_OP_MATMUL && is_half(&c->in[1]) && c->in[1].shape.rank == 2 &&
           c->attr->matmul.sums != PK_SUMS_B;
}

bool cpu_is_copy(const struct pk_call *c, int i)
{
    return (c->op == PK_OP_ADAMW || c->op == PK_OP_MSGDW) && c->attr->optim.copy &&
           (i == c->n_in - 1 || i == c->n_in + c->n_out - 1);
}

bool cpu_widens(const struct pk_call *c)
{
    bool half = false, full = false, other = false;

    if (c->op == PK_OP_COPY)
        return false; /* casts */
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const struct pk_view *v = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];

        if (!pk_dtype_is_float(v->dtype) || cpu_is_copy(c, i))
            continue;
        half = half || is_half(v);
        full = full || !is_half(v);
        other = other || (is_half(v) && !(i == 1 && keeps_b(c)));
    }
    if (!half || !other)
        return false;
    switch (c->op) {
    case PK_OP_FILL:
    case PK_OP_CONCAT:
    case PK_OP_PAD:
    case PK_OP_GATHER:
    case PK_OP_ONE_HOT:
    case PK_OP_CACHE_APPEND:
        return full; /* of one type they only move bytes */
    default:
        return true;
    }
}

bool cpu_widen_supports(const struct pk_call *c)
{
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const struct pk_view *v = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];

        if (v->dtype == PK_F64)
            return false;
    }
    switch (c->op) {
    case PK_OP_ADAMW: /* operands changed in place must be f32 */
    case PK_OP_MSGDW:
        for (int i = 0; i < c->n_in; i++)
            if (i != 1 && is_half(&c->in[i]) && !cpu_is_copy(c, i))
                return false;
        return true;
    case PK_OP_ACCUMULATE:
    case PK_OP_BLEND:
        return !is_half(&c->in[0]);
    case PK_OP_ATTENTION_STATE:
        return !is_half(&c->in[c->n_in - 1]);
    default:
        return true;
    }
}

/* A wide tensor for `v`, repeated axes stored once. */
static struct pk_view wide_of(const struct pk_view *v, struct pk_view *ret_source)
{
    struct pk_view to, from = *v;

    for (int i = 0; i < v->shape.rank; i++)
        if (v->stride[i] == 0)
            from.shape.dim[i] = v->shape.dim[i] ? 1 : 0;
    to = pk_view_dense(NULL, PK_F32, from.shape);
    *ret_source = from;
    return to;
}

/* The inner call over `view`, n_in + n_out of them; memory comes from `s` (NULL there: it is measured). */
static struct pk_call inner_of(const struct pk_call *c, struct pk_view *view, struct cpu_scratch *s)
{
    struct pk_call inner = *c;

    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const struct pk_view *v = i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
        struct pk_view source, wide;

        view[i] = *v;
        if (!is_half(v) || (i == 1 && keeps_b(c)) || cpu_is_copy(c, i) || c->op == PK_OP_CACHE_APPEND)
            continue;
        wide = wide_of(v, &source);
        wide.data = cpu_take(s, (size_t)pk_shape_count(&wide.shape) * sizeof(float));
        for (int k = 0; k < v->shape.rank; k++)
            if (v->stride[k] == 0)
                wide.stride[k] = 0;
        wide.shape = v->shape;
        view[i] = wide;
    }
    if (c->op == PK_OP_CACHE_APPEND) { /* the new rows are rounded to the cache's type */
        view[1] = pk_view_dense(NULL, c->in[0].dtype, c->in[1].shape);
        view[1].data = cpu_take(s, (size_t)pk_shape_count(&view[1].shape) * pk_dtype_size(view[1].dtype));
    }
    inner.in = view;
    inner.out = view + c->n_in;
    return inner;
}

static size_t round_up(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

size_t cpu_widen_workspace(const struct cpu_ops *ops, const struct pk_backend *b, const struct pk_call *c)
{
    size_t views = round_up((size_t)(c->n_in + c->n_out) * sizeof(struct pk_view)), scratch;
    struct cpu_scratch s = {NULL, 0};
    struct pk_view *view = malloc(views);
    struct pk_call inner;

    if (!view)
        return TOO_MUCH;
    inner = inner_of(c, view, &s);
    scratch = ops->workspace[c->op] ? round_up(ops->workspace[c->op](b, &inner)) : 0;
    free(view);
    return views + round_up(s.used) + scratch;
}

enum pd_err cpu_widen(cpu_run_fn *fn, const struct cpu_ops *ops, struct pk_backend *b,
                      const struct pk_call *c, struct pd_why *why)
{
    struct pk_view *view = c->workspace;
    size_t views = round_up((size_t)(c->n_in + c->n_out) * sizeof *view);
    struct cpu_scratch s = {(char *)c->workspace + views, 0};
    struct pk_call inner = inner_of(c, view, &s);
    enum pd_err err = PD_OK;

    inner.workspace = (char *)c->workspace + views + round_up(s.used);
    inner.workspace_bytes = ops->workspace[c->op] ? round_up(ops->workspace[c->op](b, &inner)) : 0;
    for (int i = 0; i < c->n_in && err == PD_OK; i++) {
        struct pk_view from = c->in[i], to = view[i];
        struct pk_call copy = {.op = PK_OP_COPY, .n_in = 1, .n_out = 1, .in = &from, .out = &to};

        if (view[i].data == c->in[i].data)
            continue;
        if (is_half(&c->in[i]))
            to = wide_of(&c->in[i], &from);
        to.data = view[i].data;
        err = cpu_copy(b, &copy, why);
    }
    if (err == PD_OK)
        err = fn(b, &inner, why);
    for (int i = 0; i < c->n_out && err == PD_OK; i++) {
        struct pk_call copy = {
            .op = PK_OP_COPY, .n_in = 1, .n_out = 1, .in = &inner.out[i], .out = &c->out[i]};

        if (inner.out[i].data != c->out[i].data)
            err = cpu_copy(b, &copy, why);
    }
    return err;
}
