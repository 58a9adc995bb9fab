/* Movement of elements: COPY (also casting), FILL, CONCAT, PAD, GATHER, ONE_HOT, CACHE_APPEND.
 *
 * Bytes: each element is read once and written once; nothing is written twice.
 *
 * What is the same type on both sides moves as units, the widest of 16, 4, 2 and 1 bytes that divides the
 * last (merged) axis, all strides and both addresses; a thread moves four units, a block's width apart, and
 * asks for all four before it writes the first. Where the source runs along another axis than the output,
 * squares of 32 x 32 are turned over in shared memory. Casts go through f32, a pack of four at a time where
 * both sides are dense along the last axis. */
#include "kernels/backend/cuda/move.h"
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define EACH 4 /* units of one thread */
#define SQUARE 32
#define SQUARE_ROWS 8 /* rows of threads for a square */

namespace
{
/* From `w.stride` to `w.other`, both in units. */
struct move {
    struct cuda_pair w;
    const void *from;
    void *to;
};
} // namespace

static unsigned blocks_of(int64_t units, int64_t per_block)
{
    return (unsigned)cuda_div_up(units, per_block);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) move_kernel(const struct move m)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    T v[EACH];
    int64_t to[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + i * THREADS < m.w.count)
            v[i] = ((const T *)m.from)[pk_walk_both(m.w, first + i * THREADS, &to[i])];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + i * THREADS < m.w.count)
            ((T *)m.to)[to[i]] = v[i];
}

namespace
{
/* Squares over axis `a`, along which the source is dense, and the last axis, along which the output is. */
struct turn {
    struct cuda_pair others; /* the axes but these two */
    const void *from;
    void *to;
    int64_t rows, columns;                            /* extents of axis a and of the last */
    int64_t from_row, from_column, to_row, to_column; /* strides */
    uint32_t row_squares, column_squares;
};
} // namespace

template <typename T>
static __global__ void __launch_bounds__(SQUARE *SQUARE_ROWS) turn_kernel(const struct turn t)
{
    __shared__ T square[SQUARE][SQUARE + 1];
    const int x = (int)threadIdx.x % SQUARE, y = (int)threadIdx.x / SQUARE;
    uint32_t rest = blockIdx.x;
    int64_t from, to;
    const int64_t column0 = (int64_t)(rest % t.column_squares) * SQUARE;

    rest /= t.column_squares;
    const int64_t row0 = (int64_t)(rest % t.row_squares) * SQUARE;

    rest /= t.row_squares;
    from = pk_walk_both(t.others, rest, &to);
#pragma unroll
    for (int i = 0; i < SQUARE; i += SQUARE_ROWS)
        if (row0 + x < t.rows && column0 + y + i < t.columns)
            square[y + i][x] =
                ((const T *)t.from)[from + (row0 + x) * t.from_row + (column0 + y + i) * t.from_column];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SQUARE; i += SQUARE_ROWS)
        if (row0 + y + i < t.rows && column0 + x < t.columns)
            ((T *)t.to)[to + (row0 + y + i) * t.to_row + (column0 + x) * t.to_column] = square[x][y + i];
}

namespace
{
struct cast {
    struct cuda_pair w;
    const void *from;
    void *to;
    int from_type, to_type;
    bool packs; /* units of four, dense and aligned, between f32 and bf16 */
};
} // namespace

static __global__ void __launch_bounds__(THREADS) cast_kernel(const struct cast c)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    int64_t to[EACH];

    if (c.packs) {
        float v[EACH][4];

#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (first + i * THREADS < c.w.count)
                pk_load4(c.from, c.from_type == PK_BF16, 4 * pk_walk_both(c.w, first + i * THREADS, &to[i]),
                         v[i]);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (first + i * THREADS < c.w.count)
                pk_store4(c.to, c.to_type == PK_BF16, 4 * to[i], v[i]);
        return;
    }
    for (int i = 0; i < EACH; i++)
        if (first + i * THREADS < c.w.count) {
            const int64_t from = pk_walk_both(c.w, first + i * THREADS, &to[0]);

            pk_element_set(c.to, c.to_type, to[0], pk_element(c.from, c.from_type, from));
        }
}

#define LAUNCH_BY_UNIT(bytes, kernel, grid, block, ...)                                                      \
    do {                                                                                                     \
        if ((bytes) == 16)                                                                                   \
            PK_LAUNCH(kernel<cuda_quad>, grid, block, 0, b->stream, __VA_ARGS__);                            \
        else if ((bytes) == 4)                                                                               \
            PK_LAUNCH(kernel<uint32_t>, grid, block, 0, b->stream, __VA_ARGS__);                             \
        else if ((bytes) == 2)                                                                               \
            PK_LAUNCH(kernel<uint16_t>, grid, block, 0, b->stream, __VA_ARGS__);                             \
        else                                                                                                 \
            PK_LAUNCH(kernel<uint8_t>, grid, block, 0, b->stream, __VA_ARGS__);                              \
    } while (0)

/* The axis to turn squares over with the last one, or -1. */
static int turn_axis(const struct cuda_pair *w)
{
    const int last = w->rank - 1;

    if (last < 1 || w->stride[last] <= 1 || w->other[last] != 1 || w->dim[last] < 4)
        return -1;
    for (int i = 0; i < last; i++)
        if (w->stride[i] == 1 && w->dim[i] >= 4)
            return i;
    return -1;
}

static enum pd_err move_turned(struct pk_backend *b, const struct cuda_pair *w, int axis, int size,
                               const void *from, void *to, struct pd_why *why)
{
    const int last = w->rank - 1;
    struct turn t;
    int64_t blocks;

    memset(&t, 0, sizeof t);
    cuda_walk_open(&t.others);
    for (int i = 0; i < last; i++)
        if (i != axis)
            cuda_walk_add(&t.others, w->dim[i], w->stride[i], w->other[i]);
    cuda_walk_close(&t.others, 1);
    t.from = from;
    t.to = to;
    t.rows = w->dim[axis];
    t.columns = w->dim[last];
    t.from_row = 1;
    t.from_column = w->stride[last];
    t.to_row = w->other[axis];
    t.to_column = 1;
    t.row_squares = (uint32_t)cuda_div_up(t.rows, SQUARE);
    t.column_squares = (uint32_t)cuda_div_up(t.columns, SQUARE);
    blocks = (int64_t)t.row_squares * t.column_squares * t.others.count;
    LAUNCH_BY_UNIT(size, turn_kernel, (unsigned)blocks, SQUARE * SQUARE_ROWS, t);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* A walk over `w` (not closed) of elements of one size. */
static enum pd_err move_units(struct pk_backend *b, struct cuda_pair w, int size, const void *from, void *to,
                              struct pd_why *why)
{
    struct move m;
    int unit = 16, axis;

    if (w.count == 0)
        return PD_OK;
    axis = turn_axis(&w);
    if (axis >= 0)
        return move_turned(b, &w, axis, size, from, to, why);
    if (w.rank == 1 && w.stride[0] == 1 && w.other[0] == 1 && w.dim[0] * size % 16 && w.dim[0] >= THREADS &&
        cuda_aligned(from, 16) && cuda_aligned(to, 16)) {
        /* One long run whose end is no whole unit: the end goes alone. */
        const int64_t head = w.dim[0] * size / 16 * 16 / size;
        struct cuda_pair tail;
        enum pd_err err;

        cuda_walk_open(&tail);
        cuda_walk_add(&tail, w.dim[0] - head, 1, 1);
        err = move_units(b, tail, size, (const char *)from + head * size, (char *)to + head * size, why);
        if (err != PD_OK)
            return err;
        w.dim[0] = w.count = head;
    }
    while (unit > size &&
           !(cuda_walk_unit(&w, unit / size) && cuda_aligned(from, unit) && cuda_aligned(to, unit)))
        unit = unit == 16 ? 4 : unit / 2;
    cuda_walk_close(&w, unit > size ? unit / size : 1);
    m.w = w;
    m.from = from;
    m.to = to;
    LAUNCH_BY_UNIT(unit, move_kernel, blocks_of(w.count, THREADS * EACH), THREADS, m);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static enum pd_err move_cast(struct pk_backend *b, struct cuda_pair w, enum pk_dtype from_type,
                             const void *from, enum pk_dtype to_type, void *to, struct pd_why *why)
{
    struct cast c;

    if (w.count == 0)
        return PD_OK;
    memset(&c, 0, sizeof c);
    c.from = from;
    c.to = to;
    c.from_type = from_type;
    c.to_type = to_type;
    c.packs = cuda_float(from_type) && cuda_float(to_type) && cuda_walk_unit(&w, 4) &&
              cuda_aligned(from, cuda_pack_bytes(from_type)) && cuda_aligned(to, cuda_pack_bytes(to_type));
    cuda_walk_close(&w, c.packs ? 4 : 1);
    c.w = w;
    PK_LAUNCH(cast_kernel, blocks_of(w.count, THREADS * EACH), THREADS, 0, b->stream, c);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* The elements of x, of any strides, to an output of strides `to_stride`. */
static enum pd_err move_view(struct pk_backend *b, const struct pk_view *x, enum pk_dtype to_type, void *to,
                             const int64_t *to_stride, struct pd_why *why)
{
    struct cuda_pair w;

    cuda_walk_open(&w);
    for (int i = 0; i < x->shape.rank; i++)
        cuda_walk_add(&w, x->shape.dim[i], x->stride[i], to_stride[i]);
    return x->dtype == to_type ? move_units(b, w, cuda_size(to_type), x->data, to, why)
                               : move_cast(b, w, x->dtype, x->data, to_type, to, why);
}

static void dense_strides(const struct pk_shape *s, int64_t *stride)
{
    int64_t n = 1;

    for (int i = s->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= s->dim[i];
    }
}

enum pd_err cuda_copy_view(struct pk_backend *b, const struct pk_view *from, void *to, enum pk_dtype dtype,
                           struct pd_why *why)
{
    int64_t stride[PK_MAX_RANK];

    dense_strides(&from->shape, stride);
    return move_view(b, from, dtype, to, stride, why);
}

enum pd_err cuda_copy(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return cuda_copy_view(b, &c->in[0], c->out[0].data, c->out[0].dtype, why);
}

/* ---- fill ---- */

/* `word`: the bytes of an element, repeated. The last thread writes what is left over after whole units. */
static __global__ void __launch_bounds__(THREADS)
    fill_kernel(unsigned char *to, int64_t bytes, int unit, uint32_t word)
{
    const int64_t units = bytes / unit, first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;

    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * THREADS;

        if (unit == 16 && at < units) {
            cuda_quad q;

            q.w[0] = q.w[1] = q.w[2] = q.w[3] = word;
            ((cuda_quad *)to)[at] = q;
        } else if (at < units) {
            to[at] = (unsigned char)(word >> 8 * (at % 4));
        }
    }
    if (first == 0)
        for (int64_t k = units * unit; k < bytes; k++)
            to[k] = (unsigned char)(word >> 8 * (k % 4));
}

static uint32_t pattern_of(enum pk_dtype t, double v)
{
    uint32_t bits;
    float f = (float)v;

    switch (t) {
    case PK_F32:
        memcpy(&bits, &f, sizeof bits);
        return bits;
    case PK_BF16: /* to nearest, ties to even; a NaN stays one */
        memcpy(&bits, &f, sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            bits |= 0x00400000u;
        else
            bits += 0x7fffu + (bits >> 16 & 1u);
        return bits >> 16 | (bits & 0xffff0000u);
    case PK_I32:
        return v != v               ? 0u
               : v >= 2147483647.0  ? 0x7fffffffu
               : v <= -2147483648.0 ? 0x80000000u
                                    : (uint32_t)(int32_t)v;
    default:
        return 0x01010101u * (v != v || v <= 0 ? 0u : v >= 255 ? 255u : (uint32_t)v);
    }
}

static enum pd_err fill(struct pk_backend *b, void *to, int64_t bytes, uint32_t word, struct pd_why *why)
{
    const int unit = cuda_aligned(to, 16) ? 16 : 1;

    if (bytes == 0)
        return PD_OK;
    PK_LAUNCH(fill_kernel, blocks_of(cuda_div_up(bytes, unit), THREADS * EACH), THREADS, 0, b->stream,
              (unsigned char *)to, bytes, unit, word);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

enum pd_err cuda_fill(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];

    return fill(b, o->data, cuda_count(&o->shape) * cuda_size(o->dtype),
                pattern_of(o->dtype, c->attr->fill.value), why);
}

/* ---- concat, pad ---- */

enum pd_err cuda_concat(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    const int axis = c->attr->concat.axis;
    int64_t stride[PK_MAX_RANK], at = 0;

    dense_strides(&o->shape, stride);
    for (int i = 0; i < c->n_in; i++) {
        enum pd_err err = move_view(b, &c->in[i], o->dtype,
                                    (char *)o->data + at * stride[axis] * cuda_size(o->dtype), stride, why);

        if (err != PD_OK)
            return err;
        at += c->in[i].shape.dim[axis];
    }
    return PD_OK;
}

namespace
{
/* Rows of `row` units of which [from, to) are x, `x` being walked by its own positions. */
struct pad {
    struct cuda_walk x;
    const void *data;
    void *out;
    int64_t units, row, from, to;
    struct cuda_divisor by_row;
    bool wide;
};
} // namespace

template <typename T> static __global__ void __launch_bounds__(THREADS) pad_kernel(const struct pad p)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    T v[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * THREADS;

        memset(&v[i], 0, sizeof v[i]);
        if (at < p.units) {
            const int64_t r = p.wide ? at / p.row : pk_divide(p.by_row, (uint32_t)at), k = at - r * p.row;

            if (k >= p.from && k < p.to)
                v[i] = ((const T *)p.data)[pk_walk_at(p.x, r * (p.to - p.from) + k - p.from)];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + i * THREADS < p.units)
            ((T *)p.out)[first + i * THREADS] = v[i];
}

enum pd_err cuda_pad(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0], *x = &c->in[0];
    const int axis = c->attr->pad.axis, size = cuda_size(o->dtype);
    int64_t inner = 1, stride[PK_MAX_RANK];
    int unit = 16;
    struct cuda_pair w;
    struct pad p;

    dense_strides(&o->shape, stride);
    if (x->dtype != o->dtype) { /* twice over the output, once over x */
        enum pd_err err = fill(b, o->data, cuda_count(&o->shape) * size, 0, why);

        return err != PD_OK
                   ? err
                   : move_view(b, x, o->dtype, (char *)o->data + c->attr->pad.start * stride[axis] * size,
                               stride, why);
    }
    memset(&p, 0, sizeof p);
    p.units = cuda_count(&o->shape);
    if (p.units == 0)
        return PD_OK;
    cuda_walk_open(&w);
    for (int i = 0; i < x->shape.rank; i++)
        cuda_walk_add(&w, x->shape.dim[i], x->stride[i], x->stride[i]);
    for (int i = axis + 1; i < o->shape.rank; i++)
        inner *= o->shape.dim[i];
    p.data = x->data;
    p.out = o->data;
    p.row = o->shape.dim[axis] * inner;
    p.from = c->attr->pad.start * inner;
    p.to = p.from + x->shape.dim[axis] * inner;
    while (unit > size) {
        const int per = unit / size;

        if (p.row % per == 0 && p.from % per == 0 && p.to % per == 0 && cuda_walk_unit(&w, per) &&
            cuda_aligned(x->data, unit) && cuda_aligned(o->data, unit))
            break;
        unit = unit == 16 ? 4 : unit / 2;
    }
    if (unit > size) {
        const int per = unit / size;

        p.units /= per;
        p.row /= per;
        p.from /= per;
        p.to /= per;
    }
    cuda_walk_close(&w, unit > size ? unit / size : 1);
    p.x = w;
    p.wide = p.units >= (int64_t)1 << 31;
    p.by_row = cuda_divisor_of(p.row);
    LAUNCH_BY_UNIT(unit, pad_kernel, blocks_of(p.units, THREADS * EACH), THREADS, p);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* ---- by index ---- */

namespace
{
/* A thread's units are found by one division; threads of a row read the same index, once in the cache. */
struct gather {
    struct cuda_walk index;
    const int32_t *at;
    const void *table;
    void *out;
    int64_t units, row, rows; /* units in all, of a row; rows of the table */
    struct cuda_divisor by_row;
    bool wide;
    int from_type, to_type; /* of gather_cast_kernel */
    uint32_t *fault;
};
} // namespace

/* The first unit of the table's row for output row r; -1 if its index is none. */
__device__ __forceinline__ int64_t gather_row(const struct gather &g, int64_t r, bool first)
{
    const int32_t at = g.at[pk_walk_at(g.index, r)];

    if (at >= 0 && at < g.rows)
        return at * g.row;
    if (first)
        pk_fault(g.fault, PK_OP_GATHER, at);
    return -1;
}

template <typename T> static __global__ void __launch_bounds__(THREADS) gather_kernel(const struct gather g)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    T v[EACH];

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * THREADS;

        memset(&v[i], 0, sizeof v[i]);
        if (at < g.units) {
            const int64_t r = g.wide ? at / g.row : pk_divide(g.by_row, (uint32_t)at), k = at - r * g.row,
                          from = gather_row(g, r, k == 0);

            if (from >= 0)
                v[i] = ((const T *)g.table)[from + k];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (first + i * THREADS < g.units)
            ((T *)g.out)[first + i * THREADS] = v[i];
}

/* The table in another type than the output. */
static __global__ void __launch_bounds__(THREADS) gather_cast_kernel(const struct gather g)
{
    const int64_t first = (int64_t)blockIdx.x * (THREADS * EACH) + threadIdx.x;

    for (int i = 0; i < EACH; i++) {
        const int64_t at = first + i * THREADS;

        if (at < g.units) {
            const int64_t r = g.wide ? at / g.row : pk_divide(g.by_row, (uint32_t)at), k = at - r * g.row,
                          from = gather_row(g, r, k == 0);

            pk_element_set(g.out, g.to_type, at, from < 0 ? 0 : pk_element(g.table, g.from_type, from + k));
        }
    }
}

enum pd_err cuda_gather(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *table = &c->in[0], *index = &c->in[1], *o = &c->out[0];
    const int size = cuda_size(o->dtype);
    int unit = 16;
    struct gather g;

    memset(&g, 0, sizeof g);
    g.index = cuda_walk_of(index, 0, index->shape.rank);
    g.at = (const int32_t *)index->data;
    g.table = table->data;
    g.out = o->data;
    g.rows = table->shape.dim[0];
    g.units = cuda_count(&o->shape);
    if (g.units == 0)
        return PD_OK;
    g.row = g.units / g.index.count;
    g.from_type = table->dtype;
    g.to_type = o->dtype;
    g.fault = b->fault;
    if (table->dtype != o->dtype)
        unit = size;
    while (unit > size &&
           (g.row * size % unit || !cuda_aligned(table->data, unit) || !cuda_aligned(o->data, unit)))
        unit = unit == 16 ? 4 : unit / 2;
    g.row = g.row * size / unit;
    g.units = g.units * size / unit;
    g.by_row = cuda_divisor_of(g.row);
    g.wide = g.units >= (int64_t)1 << 31;
    if (table->dtype != o->dtype)
        PK_LAUNCH(gather_cast_kernel, blocks_of(g.units, THREADS * EACH), THREADS, 0, b->stream, g);
    else
        LAUNCH_BY_UNIT(unit, gather_kernel, blocks_of(g.units, THREADS * EACH), THREADS, g);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

namespace
{
struct one_hot {
    struct cuda_walk index;
    const int32_t *at;
    unsigned char *out;
    int64_t count, classes;
    struct cuda_divisor by_classes;
    bool wide;
    int size, unit; /* bytes of an element; of what a thread writes at once */
    uint32_t one;
};
} // namespace

static __global__ void __launch_bounds__(THREADS) one_hot_kernel(const struct one_hot h)
{
    const int per = h.unit / h.size;
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * per;
    cuda_quad q;

    q.w[0] = q.w[1] = q.w[2] = q.w[3] = 0;
    for (int i = 0; i < per; i++) {
        const int64_t e = at + i;

        if (e >= h.count)
            break;
        const int64_t r = h.wide ? e / h.classes : pk_divide(h.by_classes, (uint32_t)e);

        if (h.at[pk_walk_at(h.index, r)] == e - r * h.classes)
            q.w[i * h.size / 4] |= h.one << 8 * (i * h.size % 4);
    }
    if (h.unit == 16 && at + per <= h.count) {
        *(cuda_quad *)(h.out + at * h.size) = q;
        return;
    }
    for (int k = 0; k < h.unit && at * h.size + k < h.count * h.size; k++)
        h.out[at * h.size + k] = (unsigned char)(q.w[k / 4] >> 8 * (k % 4));
}

enum pd_err cuda_one_hot(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    struct one_hot h;

    memset(&h, 0, sizeof h);
    h.index = cuda_walk_of(&c->in[0], 0, c->in[0].shape.rank);
    h.at = (const int32_t *)c->in[0].data;
    h.out = (unsigned char *)o->data;
    h.count = cuda_count(&o->shape);
    h.classes = c->attr->one_hot.classes;
    if (h.count == 0)
        return PD_OK;
    h.by_classes = cuda_divisor_of(h.classes);
    h.wide = h.count >= (int64_t)1 << 31;
    h.size = cuda_size(o->dtype);
    h.unit = cuda_aligned(o->data, 16) ? 16 : h.size;
    h.one = pattern_of(o->dtype, 1) & (h.size == 4 ? 0xffffffffu : h.size == 2 ? 0xffffu : 0xffu);
    PK_LAUNCH(one_hot_kernel, blocks_of(h.count, (int64_t)THREADS * (h.unit / h.size)), THREADS, 0, b->stream,
              h);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

namespace
{
/* Blocks of a batch element one after another; each looks at its position itself. */
struct append {
    struct cuda_pair w; /* (H, n, d) of new; other: of the cache */
    const void *fresh;
    void *cache;
    const int32_t *position;
    int64_t position_step;                     /* 0: one for all */
    int64_t fresh_step, cache_step, cache_row; /* units from batch to batch, from token to token */
    int64_t tokens, room;                      /* n, T */
    uint32_t blocks;                           /* of a batch element */
    int from_type, to_type;
    uint32_t *fault;
};
} // namespace

template <typename T, bool cast>
static __global__ void __launch_bounds__(THREADS) append_kernel(const struct append a)
{
    const int64_t batch = blockIdx.x / a.blocks, part = blockIdx.x % a.blocks;
    const int64_t position = a.position[batch * a.position_step];

    if (position < 0 || position + a.tokens > a.room) {
        if (threadIdx.x == 0)
            pk_fault(a.fault, PK_OP_CACHE_APPEND, (int32_t)position);
        return;
    }
    for (int i = 0; i < EACH; i++) {
        const int64_t at = part * (THREADS * EACH) + i * THREADS + threadIdx.x;
        int64_t from, to;

        if (at >= a.w.count)
            break;
        from = batch * a.fresh_step + pk_walk_both(a.w, at, &to);
        to += batch * a.cache_step + position * a.cache_row;
        if (cast)
            pk_element_set(a.cache, a.to_type, to, pk_element(a.fresh, a.from_type, from));
        else
            ((T *)a.cache)[to] = ((const T *)a.fresh)[from];
    }
}

enum pd_err cuda_cache_append(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *cache = &c->in[0], *fresh = &c->in[1], *position = &c->in[2];
    const int size = cuda_size(cache->dtype);
    struct append a;
    int64_t per = 16 / size;
    unsigned blocks;

    memset(&a, 0, sizeof a);
    if (cuda_count(&fresh->shape) == 0)
        return PD_OK;
    cuda_walk_open(&a.w);
    for (int i = 1; i < 4; i++)
        cuda_walk_add(&a.w, fresh->shape.dim[i], fresh->stride[i], cache->stride[i]);
    a.fresh = fresh->data;
    a.cache = cache->data;
    a.position = (const int32_t *)position->data;
    a.position_step = position->shape.dim[0] == 1 ? 0 : position->stride[0];
    a.tokens = fresh->shape.dim[2];
    a.room = cache->shape.dim[2];
    a.from_type = fresh->dtype;
    a.to_type = cache->dtype;
    a.fault = b->fault;
    if (fresh->dtype != cache->dtype || !cuda_walk_unit(&a.w, per) || fresh->stride[0] % per ||
        cache->stride[0] % per || cache->stride[2] % per || !cuda_aligned(fresh->data, 16) ||
        !cuda_aligned(cache->data, 16))
        per = 1;
    cuda_walk_close(&a.w, per);
    a.fresh_step = fresh->stride[0] / per;
    a.cache_step = cache->stride[0] / per;
    a.cache_row = cache->stride[2] / per;
    a.blocks = (uint32_t)cuda_div_up(a.w.count, THREADS * EACH);
    blocks = (unsigned)(a.blocks * cache->shape.dim[0]);
    if (fresh->dtype != cache->dtype)
        PK_LAUNCH((append_kernel<uint32_t, true>), blocks, THREADS, 0, b->stream, a);
    else if (per > 1)
        PK_LAUNCH((append_kernel<cuda_quad, false>), blocks, THREADS, 0, b->stream, a);
    else if (size == 4)
        PK_LAUNCH((append_kernel<uint32_t, false>), blocks, THREADS, 0, b->stream, a);
    else if (size == 2)
        PK_LAUNCH((append_kernel<uint16_t, false>), blocks, THREADS, 0, b->stream, a);
    else
        PK_LAUNCH((append_kernel<uint8_t, false>), blocks, THREADS, 0, b->stream, a);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
