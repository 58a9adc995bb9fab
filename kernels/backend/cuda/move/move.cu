/* Movement of elements as they lie: COPY (also casting), FILL, CONCAT, PAD. By index: index.cu.
 *
 * Bytes: each element is read once and written once; nothing is written twice.
 *
 * Without a cast, elements move as units, the widest of 16, 4, 2 and 1 bytes that divides the
 * last (merged) axis, all strides and both addresses; a thread moves four units, a block's width apart, and
 * loads all four before it stores the first. If the source is dense along another axis than the output,
 * squares of 32 x 32 are transposed in shared memory. Casts go through f32, a pack of four at a time if
 * both sides are dense along the last axis. */
#include "kernels/backend/cuda/move/move.cuh"
#include "kernels/backend/cuda/move/move.h"

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
        /* One long run whose end is not a whole unit: the end is copied separately. */
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
