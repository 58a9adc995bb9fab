/* kernels/backend/cuda/attention/hopper_bwd.cuh: the gradient on sm 90, shared by kernels and hosts: shapes of a block,
 * the call as a struct for the kernel, and a thread's work on the scores of one tile. Also read by NVRTC. */
#pragma once

#include "kernels/backend/cuda/attention/hopper.cuh"

/* 64 queries x (64 groups) keys at a time. */
template <int columns, int groups> struct backward_shape {
    static constexpr int queries = 64;
    static constexpr int keys = 64 * groups;
    static constexpr int consumers = 128 * groups;
    static constexpr int threads = groups > 1 ? consumers + 128 : 160;
    static constexpr int resident = columns == 32 ? 2 : 1;
    static constexpr int k_stages = 2;
    static constexpr int q_stages = columns == 128 || groups == 1 ? 2 : 4;
    static constexpr int k_bytes = keys * columns * 2;    /* of K, and of V */
    static constexpr int q_bytes = queries * columns * 2; /* of Q, and of dY */
    /* dQ of a tile: two warpgroups make half of its columns each, or take turns with whole tiles. */
    static constexpr bool halves = groups == 2 && columns == 128;
    static constexpr bool turns = groups == 2 && !halves;
    static constexpr int dq_columns = halves ? columns / 2 : columns;
    static constexpr int dq_floats = dq_columns / 2; /* of a thread */
    static constexpr int dq_threads = turns ? 128 : consumers;
    static constexpr int dq_bytes = dq_floats * 4 * dq_threads;
    static constexpr int dq_tiles = turns ? 4 : 0; /* that fit in shared memory */
    static constexpr int ds_bytes = keys * queries * 2;
    static constexpr int q_at = 2 * k_stages * k_bytes;
    static constexpr int ds_at = q_at + 2 * q_stages * q_bytes;
    static constexpr int dq_at = ds_at + 2 * ds_bytes;
    static constexpr int barriers_at = dq_at + dq_tiles * dq_bytes;
    static constexpr int sums_at = barriers_at + (2 * (k_stages + q_stages) + 1) * 8;
    static constexpr int shared = (sums_at + 4 * groups * 4 + 15) / 16 * 16;
    /* K and V of a warpgroup's 64 keys in registers: S and dP then read half as much of shared memory. */
    static constexpr bool held = groups == 2 && columns == 64;
    static constexpr bool clusters = groups == 2 && columns == 64; /* of two blocks, where it pays */
    static constexpr int registers = columns == 64 ? 232 : 240, loader_registers = columns == 64 ? 40 : 24;
    static_assert(groups == 1 ||
                  groups * registers + loader_registers <= (groups + 1) * HOPPER_REGISTERS(threads));
    /* Blocks of one warpgroup that hold a whole head at once store more in shared memory, each thread its own part: */
    static constexpr int bias_at = shared, dbias_at = bias_at + queries / 2 * 4 * 128;
    static constexpr int bits_at = dbias_at + queries / 2 * 4 * 128;
    static constexpr int shared_whole = bits_at + 16 * 128;
};

struct backward_args {
    struct hopper_job job;
    struct hopper_rows dq, dk, dv;
    int units, runs;      /* unit u: head u % heads, and the batches of run u / heads */
    int run, longer;      /* batches of a run, and how many runs have one more */
    int cluster;          /* blocks that share a unit: block r takes tiles r, r + cluster, .. of keys */
    bool whole;           /* one tile of queries and keys, by one warpgroup */
    int q_tiles, k_tiles; /* of the longest */
    int kept_tiles;       /* of keys, of one block */
    int chunk;            /* tiles of queries between two passes over the keys */
    bool dq_in_shared;
    float *dq_part;     /* (blocks, chunk, dq_floats / 4, dq_threads, 4) */
    float *dkv_part;    /* (blocks, kept_tiles, columns / 4, consumers, 4), where there are several chunks */
    float *dscale_part; /* (cluster, B, H), or NULL */
    float *dbias_part;  /* (units, q_tiles, k_tiles, 8, consumers, 4), or NULL */
    const float *factors; /* n^-row_power of each row, or NULL */
};

/* Blocks that share a unit, and this one's number among them. */
template <int columns, int groups>
__device__ __forceinline__ int backward_blocks(const struct backward_args &a)
{
    return backward_shape<columns, groups>::clusters ? a.cluster : 1;
}
template <int columns, int groups> __device__ __forceinline__ int backward_rank(const struct backward_args &a)
{
    return backward_blocks<columns, groups>(a) > 1 ? (int)pk_cluster_rank() : 0;
}

/* One (batch, head). */
struct backward_pair {
    int b, h, shift, k_tiles;
};

template <int keys>
__device__ __forceinline__ struct backward_pair backward_pair_of(const struct backward_args &a, int u, int b)
{
    struct backward_pair x;

    x.b = b;
    x.h = u % a.job.heads;
    x.shift = a.job.nk - a.job.nq;
    x.k_tiles = hopper_unit_tiles(a.job.causal, a.job.nq, a.job.nk, a.job.nq, keys);
    return x;
}
/* The batches of a unit's run, from .. to its end: the first runs have one more. */
__device__ __forceinline__ int backward_batch(const struct backward_args &a, int u)
{
    const int run = u / a.job.heads;

    return run * a.run + min(run, a.longer);
}
__device__ __forceinline__ int backward_batch_end(const struct backward_args &a, int u)
{
    return backward_batch(a, u + a.job.heads);
}

/* The first tile of queries that sees tile kt of keys; the last tile of keys that tile qt of queries sees
 * (-1: none). */
template <int keys>
__device__ __forceinline__ int backward_first(const struct backward_args &a, const struct backward_pair &x,
                                              int kt)
{
    const int from = kt * keys - x.shift;

    return a.job.causal && from > 0 ? from / 64 : 0;
}
template <int keys>
__device__ __forceinline__ int backward_last(const struct backward_args &a, const struct backward_pair &x,
                                             int qt)
{
    const int to = qt * 64 + 63 + x.shift;

    return a.job.causal ? (to < 0 ? -1 : min(x.k_tiles - 1, to / keys)) : x.k_tiles - 1;
}

/* The visible queries of this thread's two keys. */
template <int queries, bool strict = false>
__device__ __forceinline__ void backward_bits(const struct hopper_job &j, const struct backward_pair &x,
                                              int key, int q0, uint32_t (&bits)[2][queries / 32])
{
    const uint8_t *mask = j.mask ? hopper_mask(j, x.b) : NULL;
    const int t = threadIdx.x % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int k = key + 8 * r;
        const bool shown = k < j.nk && (!mask || j.windows || mask[k * j.mask_k]);

#pragma unroll
        for (int i = 0; i < queries / 32; i++) {
            uint32_t mine = shown ? ~0u : 0u;

            if constexpr (strict)
                mine &= hopper_bits_to(j.nq - 1 - q0 - 32 * i);
            if (j.causal)
                mine &= ~hopper_bits_to(k - x.shift - q0 - 32 * i - 1);
            if (j.windows) { /* each lane of the quad looks at 8 queries */
                uint32_t part = 0;

                for (int e = 0; e < 8; e++) {
                    const int q = q0 + 32 * i + 8 * t + e;

                    if (k < j.nk && q < j.nq && mask[q * j.mask_q + k * j.mask_k])
                        part |= 1u << (8 * t + e);
                }
                part |= __shfl_xor_sync(PK_WARP_ALL, part, 1);
                part |= __shfl_xor_sync(PK_WARP_ALL, part, 2);
                mine &= part;
            }
            bits[r][i] = mine;
        }
    }
}

__device__ __forceinline__ float4 backward_float4(const float *p)
{
    return make_float4(p[0], p[1], p[2], p[3]);
}

/* Sums are in memory that only their thread accesses, in the order of its registers: stored first, then added to (in
 * device memory by L2, so that the thread does not wait), at last read back. */
template <int n, int consumers> __device__ __forceinline__ void backward_keep(const float (&d)[n], float4 *to)
{
#pragma unroll
    for (int i = 0; i < n / 4; i++)
        to[i * consumers + threadIdx.x] = backward_float4(d + 4 * i);
}
template <int n, int consumers>
__device__ __forceinline__ void backward_add_to(const float (&d)[n], float4 *to)
{
#pragma unroll
    for (int i = 0; i < n / 4; i++)
        pk_add4(to + i * consumers + threadIdx.x, backward_float4(d + 4 * i));
}
template <int n, int consumers>
__device__ __forceinline__ void backward_take_device(float (&d)[n], const float4 *from)
{
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        const float4 v = pk_load4(from + i * consumers + threadIdx.x);

        d[4 * i] += v.x;
        d[4 * i + 1] += v.y;
        d[4 * i + 2] += v.z;
        d[4 * i + 3] += v.w;
        if (i % 4 == 3) /* no more than four loads under way: registers are short here */
            pk_wgmma_hold(d);
    }
}
template <int n, int consumers>
__device__ __forceinline__ void backward_take(float (&d)[n], const float4 *from)
{
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        const float4 v = from[i * consumers + threadIdx.x];

        d[4 * i] += v.x;
        d[4 * i + 1] += v.y;
        d[4 * i + 2] += v.z;
        d[4 * i + 3] += v.w;
    }
}

/* Zeros in rows [row, end), which no thread sums. */
template <int consumers>
__device__ __forceinline__ void backward_zero(const struct hopper_rows &to, int b, int h, int row, int end,
                                              int d)
{
    __nv_bfloat16 *p = to.p + b * to.sb + h * to.sh;
    const int pieces = d / 8;

    for (int64_t i = threadIdx.x; i < (int64_t)(end - row) * pieces; i += consumers)
        *reinterpret_cast<uint4 *>(p + (row + i / pieces) * to.sn + i % pieces * 8) = make_uint4(0, 0, 0, 0);
}

/* What is added to the logit in register i of a thread that begins at (key, query). */
__device__ __forceinline__ float backward_bias(const struct hopper_job &j, int h, int key, int query, int i)
{
    key += i / 2 % 2 * 8;
    query += i / 4 * 8 + i % 2;
    return j.bias && query < j.nq && key < j.nk
               ? j.add + __ldg(j.bias + h * j.bias_h + query * j.bias_q + key * j.bias_k)
               : j.add;
}

/* Whether a block keeps in shared memory, each thread its own part, data for its next (batch, head): the bias of the
 * run's head and the sums of its gradient; the visible pairs of one window. */
template <int groups> __device__ __forceinline__ bool backward_owns_bias(const struct backward_args &a)
{
    return groups == 1 && a.whole && a.job.bias;
}
template <int groups> __device__ __forceinline__ bool backward_owns_bits(const struct backward_args &a)
{
    return groups == 1 && a.whole && a.job.windows;
}

/* From the scores s and dP of a tile: P to p, G to s. */
template <int columns, int groups, class F>
__device__ __forceinline__ void backward_phi(const struct backward_args &a, const typename F::use &use,
                                             const struct backward_pair &x, int u, int number, int row,
                                             int q0, int k0, int first, float (&s)[32], float (&d)[32],
                                             uint32_t (&p)[16], float &dscale, const unsigned char *shared)
{
    using shape = backward_shape<columns, groups>;
    constexpr int queries = shape::queries;
    const struct hopper_job &j = a.job;
    const int t = threadIdx.x % 4;
    const bool masked = j.mask || (j.causal && k0 + first + 63 > q0 + x.shift) ||
                        (F::strict && (q0 + queries > j.nq || k0 + first + 64 > j.nk));
    float tau = j.tau, add = j.add;
    uint32_t bits[2][queries / 32];

    if (j.affine) {
        if (backward_owns_bias<groups>(a)) {
            const float4 *own = reinterpret_cast<const float4 *>(shared + shape::bias_at) + threadIdx.x;

#pragma unroll
            for (int i = 0; i < queries / 2; i += 4) {
                const float4 e = own[i / 4 * 128];

                s[i] = fmaf(s[i], tau, e.x);
                s[i + 1] = fmaf(s[i + 1], tau, e.y);
                s[i + 2] = fmaf(s[i + 2], tau, e.z);
                s[i + 3] = fmaf(s[i + 3], tau, e.w);
            }
        } else {
#pragma unroll
            for (int i = 0; i < queries / 2; i++)
                s[i] = fmaf(s[i], tau, backward_bias(j, u % j.heads, k0 + row, q0 + 2 * t, i));
        }
        tau = 1.0f;
        add = 0.0f;
    }
    if (masked) {
        /* A masked score is 0 from here on, and so is dP: only a sigmoid's P is still to be put right. */
        if (backward_owns_bits<groups>(a)) {
            const uint4 v = reinterpret_cast<const uint4 *>(shared + shape::bits_at)[threadIdx.x];

            bits[0][0] = v.x;
            bits[0][1] = v.y;
            bits[1][0] = v.z;
            bits[1][1] = v.w;
        } else {
            struct backward_pair y = x;

            y.b = hopper_batch_at(j, number);
            backward_bits<queries, F::strict>(j, y, k0 + row, q0, bits);
        }
        hopper_keep(s, bits);
        hopper_keep(d, bits);
    }
    if (a.factors) { /* of dY's rows: dP here, P (for dV) below */
        const float *f = a.factors + q0 + 2 * t;

#pragma unroll
        for (int i = 0; i < queries / 2; i++)
            d[i] *= __ldg(f + i / 4 * 8 + i % 2);
    }
    /* One of four FP32 operations of an element, in one chain: only where it is asked for. Two of this code are too
     * many for the registers of heads of 32. */
    if constexpr (F::by_head)
        F::template both<false>(j, use, u % j.heads, s, d, p, tau, add, dscale);
    else if (columns == 32 || a.dscale_part)
        F::template both<true>(j, use, 0, s, d, p, tau, add, dscale);
    else
        F::template both<false>(j, use, 0, s, d, p, tau, add, dscale);
    if (masked && !j.homogeneous) /* phi(0) may not be 0 */
        hopper_keep_pairs(p, bits);
    if (F::strict && masked) /* 0 times an infinite slope */
        hopper_keep(s, bits);
    if (a.factors) {
        const float *f = a.factors + q0 + 2 * t;

#pragma unroll
        for (int i = 0; i < queries / 4; i++)
            p[i] = pk_pack(__uint_as_float(p[i] << 16) * __ldg(f + i / 2 * 8),
                           __uint_as_float(p[i] & 0xffff0000u) * __ldg(f + i / 2 * 8 + 1));
    }
}
