/* Movement of elements by index: GATHER, ONE_HOT, CACHE_APPEND. Units as in move.cu; rows without a valid index are 0,
 * and an index outside its table is reported through the device's fault word. */
#include "kernels/backend/cuda/move/move.cuh"

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
/* The blocks of a batch element are consecutive; each reads its position. */
struct append {
    struct cuda_pair w; /* (H, n, d) of new; other: of the cache */
    const void *fresh;
    void *cache;
    const int32_t *position;
    int64_t position_step;                     /* 0: one for all */
    int64_t fresh_step, cache_step, cache_row; /* units from batch to batch, from token to token */
    int64_t tokens, capacity;                  /* n, T */
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

    if (position < 0 || position + a.tokens > a.capacity) {
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
    a.capacity = cache->shape.dim[2];
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
