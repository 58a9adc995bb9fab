/* Calls with bf16 operands, by the kernels for f32: inputs are widened into the workspace, results rounded to
 * nearest even. This is the definition of mixed precision.
 *
 * A call whose rows (indices of the first axis) do not depend on each other is computed PART_BYTES of wide numbers at a
 * time, so that these stay in the cache and the workspace is small: each part is a call of its own, of some rows, and where
 * there are many of them a thread computes whole parts. Outputs that are sums over rows (gradients of norms, losses) are
 * added up from the parts' in double, in order.
 *
 * Layout of the workspace: the views of the inner call, the sums, the wide tensors, the scratch of the kernel. */
#include <stdatomic.h>
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

    if (c->op == PK_OP_COPY || c->op == PK_OP_EXPR)
        return false; /* they convert as they read and write */
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

/* ---- parts ---- */

#define PART_BYTES                                                                                           \
    ((size_t)2 << 20) /* of wide tensors: they stay in the cache. Of no machine, nor is the result */
#define OPERANDS_MOST 32

/* How a call falls into parts of `rows` of its `all` rows. Bits by operand, inputs first: whether it has those rows
 * (else all parts share it); outputs that are neither are sums over rows. */
struct parts {
    int64_t all, rows;
    uint32_t has_rows;
};

static const struct pk_view *operand(const struct pk_call *c, int i)
{
    return i < c->n_in ? &c->in[i] : &c->out[i - c->n_in];
}

static bool is_sum(const struct pk_call *c, const struct parts *p, int i)
{
    return i >= c->n_in && !(p->has_rows >> i & 1);
}

/* Inputs `first` .. `last` and outputs likewise, as bits. */
static uint32_t inputs(int first, int last)
{
    return (1u << (last + 1)) - (1u << first);
}
static uint32_t outputs(const struct pk_call *c, int first, int last)
{
    return inputs(c->n_in + first, c->n_in + last);
}

/* q, k, v, or qkv; of the gradient also y, dy and sums, and what becomes of the first ones. */
static uint32_t rows_of_attention(const struct pk_call *c)
{
    const struct pk_attention_attr *a = &c->attr->attention;
    const int first = a->packed ? 1 : 3, shared = a->has_scale + a->has_bias;

    if (a->has_mask || a->has_length || a->has_rng)
        return 0; /* those depend on the number of the batch */
    if (c->op == PK_OP_ATTENTION)
        return inputs(0, first - 1) | outputs(c, 0, c->n_out - 1);
    return inputs(0, first - 1) | inputs(first + shared, c->n_in - 1) | outputs(c, 0, first - 1);
}

static uint32_t rows_of_norm_bwd(const struct pk_call *c)
{
    const bool centred = c->attr->norm.kind == PK_NORM_LAYER;
    const int beta = c->attr->norm.again && c->attr->norm.has_beta; /* an input behind the statistics */
    const int statistics = 3 + centred, sums = 1 + c->attr->norm.has_beta;

    return inputs(0, 0) | inputs(2, statistics) |
           (c->n_in > statistics + 1 + beta ? inputs(statistics + 1 + beta, c->n_in - 1) : 0) |
           outputs(c, 0, 0) | (c->n_out > 1 + sums ? outputs(c, 1 + sums, c->n_out - 1) : 0);
}

static uint32_t rows_of(const struct pk_call *c)
{
    switch (c->op) {
    case PK_OP_SUM:
        return c->attr->reduce.axes & 1 ? inputs(0, 0) : 0;
    case PK_OP_NORM:
        return inputs(0, 0) | outputs(c, 0, c->n_out - 1);
    case PK_OP_NORM_BWD:
        return rows_of_norm_bwd(c);
    case PK_OP_SOFTMAX:
    case PK_OP_SOFTMAX_BWD:
        return inputs(0, c->n_in - 1) | outputs(c, 0, 0);
    case PK_OP_CROSS_ENTROPY_GRAD:
        return inputs(0, 1) | outputs(c, 0, 0);
    case PK_OP_CROSS_ENTROPY_BWD:
        return inputs(0, 2) | outputs(c, 0, 0);
    case PK_OP_ATTENTION:
    case PK_OP_ATTENTION_BWD:
        return rows_of_attention(c);
    default:
        return 0;
    }
}

/* A call in one part has all rows. */
static struct parts parts_of(const struct pk_call *c)
{
    struct parts p = {1, 1, 0};
    int64_t bytes = 0;

    if (c->n_in + c->n_out > OPERANDS_MOST || c->in[0].shape.rank < 2)
        return p;
    p.has_rows = rows_of(c);
    if (!p.has_rows)
        return p;
    p.all = p.rows = c->in[0].shape.dim[0];
    for (int i = 0; i < c->n_in + c->n_out; i++)
        if (p.has_rows >> i & 1 && is_half(operand(c, i)))
            bytes += pk_shape_count(&operand(c, i)->shape) * (int64_t)sizeof(float);
    if (bytes > (int64_t)PART_BYTES) {
        p.rows = p.all * (int64_t)PART_BYTES / bytes;
        p.rows = p.rows > 1 ? p.rows : 1;
    }
    return p;
}

/* Rows `at` .. of the call, over `view`. */
static struct pk_call part_of(const struct pk_call *c, const struct parts *p, int64_t at,
                              struct pk_view *view)
{
    struct pk_call part = *c;

    for (int i = 0; i < c->n_in + c->n_out; i++) {
        view[i] = *operand(c, i);
        if (!(p->has_rows >> i & 1))
            continue;
        view[i].shape.dim[0] = p->all - at < p->rows ? p->all - at : p->rows;
        if (view[i].data)
            view[i].data =
                (char *)view[i].data + at * view[i].stride[0] * (int64_t)pk_dtype_size(view[i].dtype);
    }
    part.in = view;
    part.out = view + c->n_in;
    return part;
}

/* ---- widening ---- */

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

static size_t views_bytes(const struct pk_call *c)
{
    return round_up((size_t)(c->n_in + c->n_out) * sizeof(struct pk_view));
}

/* A call in parts. Where there are enough of them for all threads, each thread takes whole parts, alone, so that wide
 * numbers stay in its own cache; else all threads work on one part after the other. The result is the same. */
struct job {
    cpu_run_fn *fn;
    const struct cpu_ops *ops;
    struct pk_backend *b;
    struct pk_backend part_backend; /* that of one part */
    const struct pk_call *c;
    struct parts p;
    int64_t count; /* of parts */
    bool alone;    /* a thread takes whole parts */
    /* Of each sum over rows, by operand, NULL where none is: what each part adds, (count, n). */
    float *piece[OPERANDS_MOST];
    char *scratch; /* of each part that runs at a time */
    size_t scratch_bytes;
    /* Of the gradient of a mean: its factor, which no part knows by itself. */
    float factor;
    struct pk_attr attr;
    atomic_int err;
    struct pd_why *why; /* written by the first part that fails */
};

/* Parts that one thread finishes one after the other differ in time: with this many each, the last ones do not matter. */
#define PARTS_EACH 4

/* Memory for the sums over rows. Returns the bytes. */
static size_t take_sums(struct job *j, char *memory)
{
    struct cpu_scratch s = {memory, 0};

    for (int i = 0; i < j->c->n_in + j->c->n_out; i++) {
        const size_t n =
            is_sum(j->c, &j->p, i) ? (size_t)(pk_shape_count(&operand(j->c, i)->shape) * j->count) : 0;

        j->piece[i] = n ? cpu_take(&s, n * sizeof *j->piece[i]) : NULL;
    }
    return round_up(s.used);
}

static void job_shape(struct job *j, const struct cpu_ops *ops, const struct pk_backend *b,
                      const struct pk_call *c)
{
    memset(j, 0, sizeof *j);
    j->ops = ops;
    j->c = c;
    j->p = parts_of(c);
    j->count = j->p.rows < j->p.all ? cpu_div_up(j->p.all, j->p.rows) : 1; /* there may be no rows */
    j->alone = j->count >= (int64_t)PARTS_EACH * cpu_threads_of(b);
    if (b)
        j->part_backend = *b;
    if (j->alone)
        j->part_backend.pool = cpu_pool_single();
}

/* The workspace of a call in one part. */
static size_t whole_workspace(const struct cpu_ops *ops, const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {NULL, 0};
    struct pk_view *view = malloc(views_bytes(c));
    struct pk_call inner;
    size_t scratch;

    if (!view)
        return TOO_MUCH;
    inner = inner_of(c, view, &s);
    scratch = ops->workspace[c->op] ? round_up(ops->workspace[c->op](b, &inner)) : 0;
    free(view);
    return views_bytes(c) + round_up(s.used) + scratch;
}

/* The scratch of one part: that of the first or of the last, which may have fewer rows. */
static size_t part_workspace(const struct job *j, const struct pk_backend *b)
{
    struct pk_view view[OPERANDS_MOST];
    struct pk_call part = part_of(j->c, &j->p, 0, view);
    const size_t first = whole_workspace(j->ops, b, &part);
    size_t last;

    part = part_of(j->c, &j->p, (j->count - 1) * j->p.rows, view);
    last = whole_workspace(j->ops, b, &part);
    return first > last ? first : last;
}

size_t cpu_widen_workspace(const struct cpu_ops *ops, const struct pk_backend *b, const struct pk_call *c)
{
    struct job j;

    job_shape(&j, ops, b, c);
    if (j.count == 1)
        return whole_workspace(ops, b, c);
    return part_workspace(&j, j.alone ? &j.part_backend : b) * (size_t)(j.alone ? cpu_threads_of(b) : 1) +
           take_sums(&j, NULL);
}

static enum pd_err widen_whole(cpu_run_fn *fn, const struct cpu_ops *ops, struct pk_backend *b,
                               const struct pk_call *c, struct pd_why *why)
{
    struct pk_view *view = c->workspace;
    size_t views = views_bytes(c);
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

/* The factor of the gradient of a mean: dloss / number of targets that count. */
static float mean_factor(const struct pk_call *c)
{
    const struct pk_view *dloss = &c->in[2], *target = &c->in[1];
    const uint32_t bits = is_half(dloss) ? (uint32_t) * (const uint16_t *)dloss->data << 16 : 0;
    int64_t count = 0;
    float x;

    for (int64_t i = 0; i < target->shape.dim[0]; i++)
        count += ((const int32_t *)target->data)[i * target->stride[0]] != c->attr->cross_entropy.ignore;
    if (is_half(dloss))
        memcpy(&x, &bits, sizeof x);
    else
        x = *(const float *)dloss->data;
    return x / (float)count;
}

/* Part number `task`. */
static void part_task(void *arg, int64_t task, int thread)
{
    struct job *j = arg;
    const struct pk_call *c = j->c;
    struct pk_view view[OPERANDS_MOST];
    struct pk_call part = part_of(c, &j->p, task * j->p.rows, view);
    struct pd_why why = {0};
    enum pd_err err;
    int none = PD_OK;

    part.workspace = j->scratch + (size_t)thread * j->scratch_bytes;
    part.workspace_bytes = j->scratch_bytes;
    for (int i = c->n_in; i < c->n_in + c->n_out; i++)
        if (j->piece[i])
            view[i] =
                pk_view_dense(j->piece[i] + task * pk_shape_count(&view[i].shape), PK_F32, view[i].shape);
    if (c->op == PK_OP_CROSS_ENTROPY_GRAD && c->attr->cross_entropy.mean) {
        part.attr = &j->attr;
        view[2] = pk_view_dense(&j->factor, PK_F32, PK_SHAPE(1));
    }
    err = widen_whole(j->fn, j->ops, &j->part_backend, &part, &why);
    if (err != PD_OK && atomic_compare_exchange_strong(&j->err, &none, (int)err) && j->why)
        *j->why = why;
}

enum pd_err cpu_widen(cpu_run_fn *fn, const struct cpu_ops *ops, struct pk_backend *b,
                      const struct pk_call *c, struct pd_why *why)
{
    enum pd_err err;
    struct job j;

    job_shape(&j, ops, b, c);
    if (j.count == 1)
        return widen_whole(fn, ops, b, c, why);
    j.fn = fn;
    j.why = why;
    j.scratch = (char *)c->workspace + take_sums(&j, c->workspace);
    j.scratch_bytes = part_workspace(&j, &j.part_backend);
    if (c->op == PK_OP_CROSS_ENTROPY_GRAD && c->attr->cross_entropy.mean) {
        j.factor = mean_factor(c);
        j.attr = *c->attr;
        j.attr.cross_entropy.mean = false;
    }
    if (j.alone)
        cpu_pool_run(b->pool, j.count, part_task, &j);
    else
        for (int64_t at = 0; at < j.count; at++)
            part_task(&j, at, 0);
    err = (enum pd_err)atomic_load(&j.err);
    for (int i = c->n_in; i < c->n_in + c->n_out && err == PD_OK; i++) {
        const int64_t n = pk_shape_count(&operand(c, i)->shape);
        struct pk_view total = pk_view_dense(j.piece[i], PK_F32, operand(c, i)->shape);
        struct pk_call copy = {.op = PK_OP_COPY, .n_in = 1, .n_out = 1, .in = &total, .out = operand(c, i)};

        if (!j.piece[i])
            continue;
        for (int64_t k = 0; k < n; k++) {
            double sum = 0;

            for (int64_t at = 0; at < j.count; at++)
                sum += (double)j.piece[i][at * n + k];
            j.piece[i][k] = (float)sum;
        }
        err = cpu_copy(b, &copy, why);
    }
    return err;
}
