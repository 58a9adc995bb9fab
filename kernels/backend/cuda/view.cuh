/* kernels/backend/cuda/view.cuh: iteration over strided views, four elements at a time.
 *
 * The unit of all elementwise work is a pack of four consecutive elements: 16 bytes of f32, 8 of bf16. A warp
 * that reads adjacent packs fills whole sectors in either type, so one division of the work serves every
 * mixture of types. Kernels branch on the type of a view at run time: it is the same for all threads. */
#pragma once

#include <string.h>

#include "kernels/backend/cuda/device.cuh"

/* ---- host: shapes ---- */

static inline int64_t cuda_count(const struct pk_shape *s)
{
    int64_t n = 1;

    for (int i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

static inline int cuda_size(enum pk_dtype t)
{
    return t == PK_U8 ? 1 : t == PK_BF16 ? 2 : t == PK_F64 ? 8 : 4;
}

static inline bool cuda_float(enum pk_dtype t)
{
    return t == PK_F32 || t == PK_BF16;
}

static inline bool cuda_aligned(const void *p, int64_t bytes)
{
    return (uintptr_t)p % (uintptr_t)bytes == 0;
}

/* Row-major without gaps, whatever the strides of axes of extent 1. */
static inline bool cuda_dense(const struct pk_view *v)
{
    int64_t expect = 1;

    for (int i = v->shape.rank - 1; i >= 0; i--) {
        if (v->shape.dim[i] != 1 && v->stride[i] != expect)
            return false;
        expect *= v->shape.dim[i];
    }
    return true;
}

/* Bytes of a pack. */
static inline int64_t cuda_pack_bytes(enum pk_dtype t)
{
    return 4 * cuda_size(t);
}

/* ---- division by a number known before the launch ---- */

/* n / by for 0 <= n < 2^31, by a multiplication: q = (n mul / 2^32 + n) / 2^shift. */
struct cuda_divisor {
    uint32_t by, mul, shift;
};

static inline struct cuda_divisor cuda_divisor_of(int64_t by)
{
    struct cuda_divisor d = {(uint32_t)by, 1, 0};

    if (by < 1 || by >= (int64_t)1 << 31)
        return d;
    while (((int64_t)1 << d.shift) < by)
        d.shift++;
    d.mul = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
    return d;
}

__device__ __forceinline__ uint32_t pk_divide(const struct cuda_divisor d, uint32_t n)
{
    return ((uint32_t)(((uint64_t)n * d.mul) >> 32) + n) >> d.shift;
}

/* ---- positions of a view ---- */

/* Contiguous axes are merged; last axis fastest. */
struct cuda_walk {
    int32_t rank; /* >= 1 once closed */
    bool wide;    /* positions beyond 2^31: divided the slow way */
    int64_t count;
    int64_t dim[PK_MAX_RANK], stride[PK_MAX_RANK];
    struct cuda_divisor divisor[PK_MAX_RANK];
};

/* Of two views of one shape. A walk alone is made as a pair with itself. */
struct cuda_pair : cuda_walk {
    int64_t other[PK_MAX_RANK];
};

static inline void cuda_walk_open(struct cuda_pair *w)
{
    memset(w, 0, sizeof *w);
    w->count = 1;
}

static inline void cuda_walk_add(struct cuda_pair *w, int64_t dim, int64_t stride, int64_t other)
{
    const int last = w->rank - 1;

    w->count *= dim;
    if (dim == 1)
        return;
    if (last >= 0 && w->stride[last] == dim * stride && w->other[last] == dim * other) {
        w->dim[last] *= dim;
        w->stride[last] = stride;
        w->other[last] = other;
        return;
    }
    w->dim[w->rank] = dim;
    w->stride[w->rank] = stride;
    w->other[w->rank++] = other;
}

/* Elements become units of `per` of them, which must divide all extents and strides (cuda_walk_unit). */
static inline void cuda_walk_close(struct cuda_pair *w, int64_t per)
{
    if (w->rank == 0) {
        w->dim[0] = 1;
        w->rank = 1;
    }
    if (per > 1) {
        const int last = w->rank - 1;

        w->count /= per;
        w->dim[last] /= per;
        for (int i = 0; i < last; i++) {
            w->stride[i] /= per;
            w->other[i] /= per;
        }
    }
    w->wide = w->count >= (int64_t)1 << 31;
    for (int i = 0; i < w->rank; i++)
        w->divisor[i] = cuda_divisor_of(w->dim[i]);
}

/* Whether units of `per` elements lie dense in both views, at multiples of their size. Before closing. */
static inline bool cuda_walk_unit(const struct cuda_pair *w, int64_t per)
{
    const int last = w->rank - 1;

    if (per == 1)
        return true;
    if (last < 0 || w->stride[last] != 1 || w->other[last] != 1 || w->dim[last] % per)
        return false;
    for (int i = 0; i < last; i++)
        if (w->stride[i] % per || w->other[i] % per)
            return false;
    return true;
}

/* The axes [from, to) of a view. */
static inline struct cuda_walk cuda_walk_of(const struct pk_view *v, int from, int to)
{
    struct cuda_pair w;

    cuda_walk_open(&w);
    for (int i = from; i < to; i++)
        cuda_walk_add(&w, v->shape.dim[i], v->stride[i], v->stride[i]);
    cuda_walk_close(&w, 1);
    return w;
}

__device__ __forceinline__ int64_t pk_walk_at(const struct cuda_walk &w, int64_t index)
{
    int64_t offset = 0;

    if (w.rank == 1)
        return index * w.stride[0];
    if (w.wide) {
        for (int i = w.rank - 1; i > 0; i--) {
            offset += index % w.dim[i] * w.stride[i];
            index /= w.dim[i];
        }
        return offset + index * w.stride[0];
    }
    uint32_t rest = (uint32_t)index;

    for (int i = w.rank - 1; i > 0; i--) {
        const uint32_t q = pk_divide(w.divisor[i], rest);

        offset += (int64_t)(rest - q * w.divisor[i].by) * w.stride[i];
        rest = q;
    }
    return offset + (int64_t)rest * w.stride[0];
}

/* The same in both views at once. */
__device__ __forceinline__ int64_t pk_walk_both(const struct cuda_pair &w, int64_t index, int64_t *other)
{
    int64_t offset = 0, second = 0;

    for (int i = w.rank - 1; i > 0; i--) {
        int64_t at;

        if (w.wide) {
            at = index % w.dim[i];
            index /= w.dim[i];
        } else {
            const uint32_t q = pk_divide(w.divisor[i], (uint32_t)index);

            at = (uint32_t)index - q * w.divisor[i].by;
            index = q;
        }
        offset += at * w.stride[i];
        second += at * w.other[i];
    }
    *other = second + index * w.other[0];
    return offset + index * w.stride[0];
}

/* ---- elements ---- */

struct __align__(16) cuda_quad
{
    uint32_t w[4];
};
struct __align__(8) cuda_half
{
    uint32_t w[2];
};

__device__ __forceinline__ float pk_bits_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}
__device__ __forceinline__ uint32_t pk_float_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}
__device__ __forceinline__ uint32_t pk_bf16_bits(float f)
{
    const __nv_bfloat16 b = __float2bfloat16_rn(f);
    uint16_t bits;

    memcpy(&bits, &b, sizeof bits);
    return bits;
}

/* Any type as a float. I32 rounds to nearest. */
__device__ __forceinline__ float pk_element(const void *p, int dtype, int64_t at)
{
    switch (dtype) {
    case PK_F32:
        return ((const float *)p)[at];
    case PK_BF16:
        return pk_bits_float((uint32_t)((const uint16_t *)p)[at] << 16);
    case PK_I32:
        return (float)((const int32_t *)p)[at];
    default:
        return (float)((const uint8_t *)p)[at];
    }
}

/* I32 and U8 truncate; out of range they saturate, NaN is 0. */
__device__ __forceinline__ void pk_element_set(void *p, int dtype, int64_t at, float v)
{
    switch (dtype) {
    case PK_F32:
        ((float *)p)[at] = v;
        break;
    case PK_BF16:
        ((uint16_t *)p)[at] = (uint16_t)pk_bf16_bits(v);
        break;
    case PK_I32:
        ((int32_t *)p)[at] = v != v                ? 0
                             : v >= 2147483648.0f  ? 2147483647
                             : v <= -2147483648.0f ? -2147483647 - 1
                                                   : (int32_t)v;
        break;
    default:
        ((uint8_t *)p)[at] = v != v || v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v;
    }
}

/* A float view alone: f32 or bf16. */
__device__ __forceinline__ float pk_load1(const void *p, bool bf16, int64_t at)
{
    return bf16 ? pk_bits_float((uint32_t)((const uint16_t *)p)[at] << 16) : ((const float *)p)[at];
}
__device__ __forceinline__ void pk_store1(void *p, bool bf16, int64_t at, float v)
{
    if (bf16)
        ((uint16_t *)p)[at] = (uint16_t)pk_bf16_bits(v);
    else
        ((float *)p)[at] = v;
}

/* Four of them from element `at`, a multiple of 4 in aligned memory. */
__device__ __forceinline__ void pk_load4(const void *p, bool bf16, int64_t at, float v[4])
{
    if (bf16) {
        const cuda_half h = *(const cuda_half *)((const uint16_t *)p + at);

        v[0] = pk_bits_float(h.w[0] << 16);
        v[1] = pk_bits_float(h.w[0] & 0xffff0000u);
        v[2] = pk_bits_float(h.w[1] << 16);
        v[3] = pk_bits_float(h.w[1] & 0xffff0000u);
    } else {
        const cuda_quad q = *(const cuda_quad *)((const float *)p + at);

        for (int i = 0; i < 4; i++)
            v[i] = pk_bits_float(q.w[i]);
    }
}
__device__ __forceinline__ void pk_store4(void *p, bool bf16, int64_t at, const float v[4])
{
    if (bf16) {
        cuda_half h;

        h.w[0] = pk_bf16_bits(v[0]) | pk_bf16_bits(v[1]) << 16;
        h.w[1] = pk_bf16_bits(v[2]) | pk_bf16_bits(v[3]) << 16;
        *(cuda_half *)((uint16_t *)p + at) = h;
    } else {
        cuda_quad q;

        for (int i = 0; i < 4; i++)
            q.w[i] = pk_float_bits(v[i]);
        *(cuda_quad *)((float *)p + at) = q;
    }
}

/* ---- rows: everything over the last axis of a view ---- */

/* A float view as rows of its last axis. */
struct cuda_rows {
    const void *data;
    struct cuda_walk lead; /* where row r begins */
    int64_t step;          /* from element to element of a row */
    bool bf16;
    bool packs; /* every row is dense and begins aligned for packs */
};

static inline struct cuda_rows cuda_rows_of(const struct pk_view *v)
{
    struct cuda_rows r;
    const int last = v->shape.rank - 1;

    r.data = v->data;
    r.lead = cuda_walk_of(v, 0, last < 0 ? 0 : last);
    r.step = last < 0 || v->shape.dim[last] == 1 ? 1 : v->stride[last];
    r.bf16 = v->dtype == PK_BF16;
    r.packs = r.step == 1 && cuda_aligned(v->data, cuda_pack_bytes(v->dtype));
    for (int i = 0; i < r.lead.rank; i++)
        r.packs = r.packs && (r.lead.dim[i] == 1 || r.lead.stride[i] % 4 == 0);
    return r;
}

/* Elements 4 k .. 4 k + 3 of the row that begins at element `at`; zeros beyond the n of the row. */
__device__ __forceinline__ void pk_row_load(const struct cuda_rows &r, int64_t at, int k, int n, float v[4])
{
    if (r.packs && 4 * k + 4 <= n) {
        pk_load4(r.data, r.bf16, at + 4 * k, v);
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = 4 * k + i < n ? pk_load1(r.data, r.bf16, at + (4 * k + i) * r.step) : 0;
}

/* Into a dense row; `packs`: it is aligned for them. */
__device__ __forceinline__ void pk_row_store(void *p, bool bf16, bool packs, int64_t at, int k, int n,
                                             const float v[4])
{
    if (packs && 4 * k + 4 <= n) {
        pk_store4(p, bf16, at + 4 * k, v);
        return;
    }
    for (int i = 0; i < 4; i++)
        if (4 * k + i < n)
            pk_store1(p, bf16, at + 4 * k + i, v[i]);
}

/* N packs, `step` apart, from pack k on; the type is checked once for all. */
template <int N>
__device__ __forceinline__ void pk_row_load_many(const struct cuda_rows &r, int64_t at, int k, int step,
                                                 int n, float (*v)[4])
{
    if (r.packs && 4 * (k + (N - 1) * step) + 4 <= n) {
        if (r.bf16) {
#pragma unroll
            for (int u = 0; u < N; u++)
                pk_load4(r.data, true, at + 4 * (k + u * step), v[u]);
        } else {
#pragma unroll
            for (int u = 0; u < N; u++)
                pk_load4(r.data, false, at + 4 * (k + u * step), v[u]);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < N; u++)
        pk_row_load(r, at, k + u * step, n, v[u]);
}
template <int N>
__device__ __forceinline__ void pk_row_store_many(void *p, bool bf16, bool packs, int64_t at, int k, int step,
                                                  int n, const float (*v)[4])
{
    if (packs && 4 * (k + (N - 1) * step) + 4 <= n) {
        if (bf16) {
#pragma unroll
            for (int u = 0; u < N; u++)
                pk_store4(p, true, at + 4 * (k + u * step), v[u]);
        } else {
#pragma unroll
            for (int u = 0; u < N; u++)
                pk_store4(p, false, at + 4 * (k + u * step), v[u]);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < N; u++)
        pk_row_store(p, bf16, packs, at, k + u * step, n, v[u]);
}

static inline bool cuda_packs(const struct pk_view *dense, int64_t row)
{
    return row % 4 == 0 && cuda_aligned(dense->data, cuda_pack_bytes(dense->dtype));
}

/* ---- groups of threads: `lanes` of them, a power of two ---- */

__device__ __forceinline__ int pk_group_lane(int lanes)
{
    return (int)threadIdx.x & (lanes - 1);
}
/* Of all groups of the launch. */
__device__ __forceinline__ int64_t pk_group(int lanes)
{
    return ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> __popc((unsigned)lanes - 1);
}

/* ---- sums of groups of threads, in a fixed order; every thread of the group gets the result ---- */

/* Among `lanes` neighbours (a power of two, at most 32), or of a whole block of `lanes` threads (a multiple
 * of 32 then; `scratch` holds 32 floats, free to be used again only after a barrier or with the other half).
 */
__device__ __forceinline__ float pk_group_sum(float x, int lanes, float *scratch)
{
    for (int d = (lanes < PK_WARP ? lanes : PK_WARP) / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(PK_WARP_ALL, x, d);
    if (lanes > PK_WARP) {
        const int warps = lanes / PK_WARP, lane = (int)threadIdx.x % PK_WARP;

        __syncthreads();
        if (lane == 0)
            scratch[threadIdx.x / PK_WARP] = x;
        __syncthreads();
        x = lane < warps ? scratch[lane] : 0;
        x = pk_warp_sum(x);
    }
    return x;
}
__device__ __forceinline__ float pk_group_max(float x, int lanes, float *scratch)
{
    for (int d = (lanes < PK_WARP ? lanes : PK_WARP) / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(PK_WARP_ALL, x, d));
    if (lanes > PK_WARP) {
        const int warps = lanes / PK_WARP, lane = (int)threadIdx.x % PK_WARP;

        __syncthreads();
        if (lane == 0)
            scratch[threadIdx.x / PK_WARP] = x;
        __syncthreads();
        x = scratch[lane < warps ? lane : 0];
        x = pk_warp_max(x);
    }
    return x;
}

/* ---- errors that only the device can see ---- */

/* The first stays: {1 + op, value}. */
__device__ __forceinline__ void pk_fault(uint32_t *fault, int op, int32_t value)
{
    if (atomicCAS(fault, 0u, 1u + (uint32_t)op) == 0u)
        fault[1] = (uint32_t)value;
}
