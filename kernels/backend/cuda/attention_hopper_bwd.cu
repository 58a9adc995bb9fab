/* ATTENTION_BWD on sm 90. Compiled and emulated; NO GPU HAS RUN IT YET: what follows is counted, not
 * measured.
 *
 *     S' = K Q'    dP' = V dY'    P = phi(S), G = phi'(S) dP
 *     dV += P' dY    dK += G' Q    dQ += G K          factors c, p, tau at the end
 *
 * Division. A unit is one (batch, head) - with a bias, one head and a run of batches - taken by one block
 * from beginning to end, so that every sum has one owner and an order that the shape fixes: no atomics. Keys
 * outside, queries inside: 64 keys for each of `groups` warpgroups against 64 queries at a time. dK and dV
 * stay in registers; dQ of a tile of queries is added up in memory of the threads that make it, in the order
 * of their registers (no exchange, no fence): in shared memory up to 256 queries, else in the workspace of
 * the block, which L2 holds. Queries are taken in chunks of 256 KiB of dQ so that it does; dK and dV then
 * rest in the workspace between chunks. One thread loads K, V (2 stages) and Q, dY (2 or 4).
 *
 * Why not a second pass for dQ: it repeats two of five products (7/5 of the tensor time). Why not partial
 * sums of dQ for each tile of keys: N / 128 copies of dQ (64 of them at N = 8192, 128 MiB a head).
 *
 * A warpgroup has scores as (keys, queries), so that P' and G' are left operands from registers. G goes to
 * shared memory too (two buffers, one barrier of the warpgroups a tile): as (queries, keys) read by columns
 * it is the left operand of dQ, which needs all keys of the tile. Two warpgroups take turns with dQ (d = 64),
 * or make half of its columns each (d = 128).
 *
 *  columns groups   registers of a tile                               shared     chosen for
 *       64      2   32 S + 32 dP + 64 dK, dV + 16 P + 16 G of 240     224 KiB    d <= 64
 *       64      1   the same of 255                                    80 KiB    up to 64 queries and keys
 *       32      1   32 + 32 + 32 + 32 of 168, two blocks an SM         48 KiB    d <= 32
 *      128      2   32 + 32 + 128 + 32 of 240 (172 bytes spilled)     224 KiB    d <= 128
 *
 * Limits of a tile of 64 x 128 at d = 64: tensor 5 x 256 = 1280 clocks; shared memory 1152; FP32 about 6 of
 * 20 slots a score for x^3. From and to L2: 16 KiB of Q and dY, and beyond 256 queries 32 KiB of dQ: 12.5
 * or 37.5 bytes a clock and SM, of about 24 assumed: long sequences are bound by L2 to 0.64 of the tensor
 * rate.
 *
 * Predicted for x^3, d = 64, 80 % of the smallest limit reached (TFLOP/s, H200): N = 197: padding to 256 x
 * 256 is 1.69 of 386 us at 790: 375; N = 256: 630; N = 1024 and 8192: 790 x 0.64 x 0.8 = 400. Clusters of two
 * blocks that share Q and dY, and half of dQ, are the next step for those. */
#include <string.h>

#include "kernels/backend/cuda/attention_hopper.cuh"

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
    static constexpr int sums_at = barriers_at + 2 * (k_stages + q_stages) * 8;
    static constexpr int shared = sums_at + 4 * groups * 4;
};

struct backward_args {
    struct hopper_job job;
    struct hopper_rows dq, dk, dv;
    int units, runs;      /* unit u: head u % heads, and the batches of run u / heads */
    int q_tiles, k_tiles; /* of the longest */
    int chunk;            /* tiles of queries between two passes over the keys */
    bool dq_in_shared;
    float *dq_part;       /* (blocks, chunk, dq_floats / 4, dq_threads, 4) */
    float *dkv_part;      /* (blocks, k_tiles, columns / 4, consumers, 4), where there are several chunks */
    float *dscale_part;   /* (B, H), or NULL */
    float *dbias_part;    /* (units, q_tiles, k_tiles, 8, consumers, 4), or NULL */
    const float *factors; /* (1 or B, factors_step), or NULL */
    int factors_step, factors_batch;
};

/* One (batch, head). */
struct backward_pair {
    int b, h, keys, shift, k_tiles;
};

template <int keys>
__device__ __forceinline__ struct backward_pair backward_pair_of(const struct backward_args &a, int u, int b)
{
    struct backward_pair x;

    x.b = b;
    x.h = u % a.job.heads;
    x.shift = hopper_shift(a.job, b);
    x.keys = hopper_keys(a.job, b);
    x.k_tiles = (hopper_end(a.job, x.keys, x.shift, a.job.nq) + keys - 1) / keys;
    return x;
}
__device__ __forceinline__ int backward_batch(const struct backward_args &a, int u)
{
    return (int)((int64_t)(u / a.job.heads) * a.job.batch / a.runs);
}
__device__ __forceinline__ int backward_batch_end(const struct backward_args &a, int u)
{
    return (int)((int64_t)(u / a.job.heads + 1) * a.job.batch / a.runs);
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

struct backward_barriers {
    uint64_t *k_full, *k_empty, *q_full, *q_empty;
};

/* ---- the one thread that loads ---- */

template <int columns, int groups>
__device__ __forceinline__ void
backward_load(const CUtensorMap &mq, const CUtensorMap &mk, const CUtensorMap &mv, const CUtensorMap &mdy,
              const struct backward_args &a, unsigned char *shared, const struct backward_barriers &bar)
{
    using shape = backward_shape<columns, groups>;
    constexpr int width = pk_tile<columns>::width, keys = shape::keys, queries = shape::queries;
    constexpr int k_stages = shape::k_stages, q_stages = shape::q_stages;
    int kn = 0, qn = 0;

    for (int u = blockIdx.x; u < a.units; u += gridDim.x)
        for (int b = backward_batch(a, u); b < backward_batch_end(a, u); b++) {
            const struct backward_pair x = backward_pair_of<keys>(a, u, b);

            for (int c0 = 0; c0 < a.q_tiles; c0 += a.chunk) {
                const int c1 = min(a.q_tiles, c0 + a.chunk);

                for (int kt = 0; kt < x.k_tiles; kt++) {
                    const int stage = kn % k_stages, first = max(c0, backward_first<keys>(a, x, kt));
                    unsigned char *k = shared + stage * 2 * shape::k_bytes;

                    if (first >= c1)
                        continue;
                    pk_barrier_wait(&bar.k_empty[stage], (kn / k_stages & 1) ^ 1);
                    pk_barrier_expect(&bar.k_full[stage], 2 * shape::k_bytes);
                    for (int c = 0; c < columns; c += width) {
                        pk_bulk_load(k + c * keys * 2, &mk, &bar.k_full[stage], c, kt * keys, x.h, x.b);
                        pk_bulk_load(k + shape::k_bytes + c * keys * 2, &mv, &bar.k_full[stage], c, kt * keys,
                                     x.h, x.b);
                    }
                    kn++;
                    for (int qt = first; qt < c1; qt++, qn++) {
                        const int s = qn % q_stages;
                        unsigned char *q = shared + shape::q_at + s * 2 * shape::q_bytes;

                        pk_barrier_wait(&bar.q_empty[s], (qn / q_stages & 1) ^ 1);
                        pk_barrier_expect(&bar.q_full[s], 2 * shape::q_bytes);
                        for (int c = 0; c < columns; c += width) {
                            pk_bulk_load(q + c * queries * 2, &mq, &bar.q_full[s], c, qt * queries, x.h, x.b);
                            pk_bulk_load(q + shape::q_bytes + c * queries * 2, &mdy, &bar.q_full[s], c,
                                         qt * queries, x.h, x.b);
                        }
                    }
                }
            }
        }
}

/* ---- a warpgroup that computes: 64 keys of each tile ---- */

template <int rows_a, int columns, int n>
__device__ __forceinline__ void backward_scores(float (&s)[n / 2], uint32_t a, int row, uint32_t b)
{
#pragma unroll
    for (int c = 0; c < columns; c += 16)
        pk_wgmma<n, false, false>(s, pk_tile<columns>::by_rows(a, rows_a, row, c),
                                  pk_tile<columns>::by_rows(b, n, 0, c), c > 0);
    pk_wgmma_commit();
}

/* d += p' b: p (queries of the columns, 64 keys) in registers, b a tile of queries. */
template <int columns, int queries>
__device__ __forceinline__ void backward_add(float (&d)[columns / 2], uint32_t (&p)[queries / 4], uint32_t b)
{
#pragma unroll
    for (int k = 0; k < queries / 16; k++)
        pk_wgmma<columns, true>(d, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
                                pk_tile<columns>::by_columns(b, queries, 16 * k, 0), true);
    pk_wgmma_commit();
}

/* The visible queries of this thread's two keys. */
template <int queries>
__device__ __forceinline__ void backward_bits(const struct hopper_job &j, const struct backward_pair &x,
                                              int key, int q0, uint32_t (&bits)[2][queries / 32])
{
    const uint8_t *mask = j.mask ? hopper_mask(j, x.b) : NULL;
    const int t = threadIdx.x % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int k = key + 8 * r;
        const bool shown = k < x.keys && (!mask || j.windows || mask[k * j.mask_k]);

#pragma unroll
        for (int i = 0; i < queries / 32; i++) {
            uint32_t mine = shown ? ~0u : 0u;

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

template <int n, int consumers> __device__ __forceinline__ void backward_keep(const float (&d)[n], float4 *to)
{
#pragma unroll
    for (int i = 0; i < n / 4; i++)
        to[i * consumers + threadIdx.x] = backward_float4(d + 4 * i);
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

/* Zeros in rows [row, end): nobody's sum. */
template <int consumers>
__device__ __forceinline__ void backward_zero(const struct hopper_rows &to, int b, int h, int row, int end,
                                              int d)
{
    __nv_bfloat16 *p = to.p + b * to.sb + h * to.sh;
    const int pieces = d / 8;

    for (int64_t i = threadIdx.x; i < (int64_t)(end - row) * pieces; i += consumers)
        *reinterpret_cast<uint4 *>(p + (row + i / pieces) * to.sn + i % pieces * 8) = make_uint4(0, 0, 0, 0);
}

/* From the scores s and dP of a tile: P to p, G to s. */
template <int queries, int keys>
__device__ __forceinline__ void backward_phi(const struct backward_args &a, const struct backward_pair &x,
                                             int u, int row, int q0, int k0, int first,
                                             float (&s)[queries / 2], float (&d)[queries / 2],
                                             uint32_t (&p)[queries / 4], float &dscale)
{
    const struct hopper_job &j = a.job;
    const int t = threadIdx.x % 4;
    const bool masked =
        j.mask || (x.keys < j.nk && k0 + keys > x.keys) || (j.causal && k0 + first + 63 > q0 + x.shift);
    float tau = j.tau, add = j.add;
    uint32_t bits[2][queries / 32];

    if (j.affine) {
        const int h = u % j.heads;

#pragma unroll
        for (int i = 0; i < queries / 2; i++) {
            const int key = k0 + row + i / 2 % 2 * 8, query = q0 + i / 4 * 8 + 2 * t + i % 2;
            float e = add;

            if (j.bias && query < j.nq && key < j.nk)
                e += __ldg(j.bias + h * j.bias_h + query * j.bias_q + key * j.bias_k);
            s[i] = fmaf(s[i], tau, e);
        }
        tau = 1.0f;
        add = 0.0f;
    }
    if (masked) {
        /* A masked score is 0 from here on, and so is dP: only a sigmoid's P is still to be put right. */
        backward_bits<queries>(j, x, k0 + row, q0, bits);
        hopper_keep(s, bits);
        hopper_keep(d, bits);
    }
    if (a.factors) { /* of dY's rows: dP here, P (for dV) below */
        const float *f = a.factors + (a.factors_batch ? x.b * a.factors_step : 0) + q0 + 2 * t;

#pragma unroll
        for (int i = 0; i < queries / 2; i++)
            d[i] *= __ldg(f + i / 4 * 8 + i % 2);
    }
    hopper_phi_both(j.phi, s, d, p, tau, add, dscale);
    if (masked && j.phi > HOPPER_RELU)
        hopper_keep_pairs(p, bits);
    if (a.factors) {
        const float *f = a.factors + (a.factors_batch ? x.b * a.factors_step : 0) + q0 + 2 * t;

#pragma unroll
        for (int i = 0; i < queries / 4; i++)
            p[i] = pk_pack(__uint_as_float(p[i] << 16) * __ldg(f + i / 2 * 8),
                           __uint_as_float(p[i] & 0xffff0000u) * __ldg(f + i / 2 * 8 + 1));
    }
}

/* What no tile has written, and the gradient of the scale. */
template <int columns, int groups>
__device__ __forceinline__ void backward_rest(const struct backward_args &a, const struct backward_pair &x,
                                              int u, unsigned char *shared, float dscale)
{
    using shape = backward_shape<columns, groups>;
    constexpr int consumers = shape::consumers, keys = shape::keys;
    const struct hopper_job &j = a.job;
    const int h = pk_opaque(u) % j.heads;

    backward_zero<consumers>(a.dq, x.b, h, 0,
                             x.k_tiles > 0 ? min(j.nq, backward_first<keys>(a, x, 0) * shape::queries) : j.nq,
                             j.d);
    if (x.k_tiles * keys < j.nk) {
        backward_zero<consumers>(a.dk, x.b, h, x.k_tiles * keys, j.nk, j.d);
        backward_zero<consumers>(a.dv, x.b, h, x.k_tiles * keys, j.nk, j.d);
    }
    if (a.dscale_part) {
        float *sums = reinterpret_cast<float *>(shared + shape::sums_at);

        dscale = pk_warp_sum(dscale);
        if (threadIdx.x % PK_WARP == 0)
            sums[threadIdx.x / PK_WARP] = dscale;
        pk_named_barrier(1, consumers);
        if (threadIdx.x == 0) {
            float total = 0.0f;

            for (int i = 0; i < 4 * groups; i++)
                total += sums[i];
            a.dscale_part[x.b * j.heads + h] = total;
        }
        pk_named_barrier(2, consumers);
    }
}

template <int columns, int groups>
__device__ __forceinline__ void backward_compute(const struct backward_args &a, int w, unsigned char *shared,
                                                 const struct backward_barriers &bar)
{
    using shape = backward_shape<columns, groups>;
    constexpr int queries = shape::queries, keys = shape::keys, consumers = shape::consumers;
    constexpr int k_stages = shape::k_stages, q_stages = shape::q_stages;
    const struct hopper_job &j = a.job;
    const int lane = threadIdx.x % PK_WARP;
    const uint32_t base = pk_shared_address(shared);
    int kn = 0, qn = 0;
    float dk[columns / 2], dv[columns / 2];

    for (int u = blockIdx.x; u < a.units; u += gridDim.x)
        for (int b = backward_batch(a, u); b < backward_batch_end(a, u); b++) {
            const struct backward_pair x = backward_pair_of<keys>(a, u, b);
            float dscale = 0.0f;

            for (int c0 = 0; c0 < a.q_tiles; c0 += a.chunk) {
                const int c1 = min(a.q_tiles, c0 + a.chunk);

                for (int kt = 0; kt < x.k_tiles; kt++) {
                    const int begin = backward_first<keys>(a, x, kt), k_stage = kn % k_stages;
                    float4 *kept = reinterpret_cast<float4 *>(a.dkv_part) +
                                   ((int64_t)blockIdx.x * a.k_tiles + kt) * (columns / 4) * consumers;

                    if (max(c0, begin) >= c1)
                        continue;
#pragma unroll
                    for (int i = 0; i < columns / 2; i++)
                        dk[i] = dv[i] = 0.0f;
                    if (begin < c0) {
                        backward_take<columns / 2, consumers>(dk, kept);
                        backward_take<columns / 2, consumers>(dv, kept + columns / 8 * consumers);
                    }
                    pk_barrier_wait(&bar.k_full[k_stage], kn / k_stages & 1);
                    kn++;
                    for (int qt = max(c0, begin); qt < c1; qt++, qn++) {
                        const int stage = qn % q_stages, q0 = qt * queries, k0 = kt * keys;
                        /* Addresses are found anew each time: kept, they would take half of the registers. */
                        const int me = pk_opaque((int)threadIdx.x), t = me % 4;
                        const int row = me / PK_WARP * 16 + me % PK_WARP / 4; /* of a tile of keys */
                        const uint32_t k_tile = base + pk_opaque(k_stage) * 2 * shape::k_bytes;
                        const uint32_t v_tile = k_tile + shape::k_bytes;
                        const uint32_t q_tile = base + shape::q_at + stage * 2 * shape::q_bytes;
                        const uint32_t dy_tile = q_tile + shape::q_bytes;
                        const uint32_t ds = shape::ds_at + qn % 2 * shape::ds_bytes;
                        uint32_t p[queries / 4], g[queries / 4];

                        pk_barrier_wait(&bar.q_full[stage], qn / q_stages & 1);
                        {
                            float s[queries / 2], d[queries / 2];

                            pk_wgmma_fence();
                            backward_scores<keys, columns, queries>(s, k_tile, 64 * w, q_tile);
                            backward_scores<keys, columns, queries>(d, v_tile, 64 * w, dy_tile);
                            pk_wgmma_wait<0>();
                            pk_wgmma_hold(s);
                            pk_wgmma_hold(d);
                            backward_phi<queries, keys>(a, x, pk_opaque(u), row, q0, k0, 64 * w, s, d, p,
                                                        dscale);
                            pk_wgmma_hold(p);
                            pk_wgmma_fence();
                            backward_add<columns, queries>(dv, p, dy_tile);
                            if (a.dbias_part) {
                                float4 *sum = reinterpret_cast<float4 *>(a.dbias_part) +
                                              (((int64_t)u * a.q_tiles + qt) * a.k_tiles + kt) *
                                                  (queries / 8) * consumers;

#pragma unroll
                                for (int i = 0; i < queries / 8; i++)
                                    if (q0 + 8 * i < j.nq && k0 + row < j.nk) {
                                        float4 v = sum[i * consumers + threadIdx.x];

                                        v.x += s[4 * i];
                                        v.y += s[4 * i + 1];
                                        v.z += s[4 * i + 2];
                                        v.w += s[4 * i + 3];
                                        sum[i * consumers + threadIdx.x] = v;
                                    }
                            }
#pragma unroll
                            for (int i = 0; i < queries / 4; i++)
                                g[i] = pk_pack(s[2 * i], s[2 * i + 1]);
                        }
                        pk_wgmma_hold(g);
                        pk_wgmma_fence();
                        backward_add<columns, queries>(dk, g, q_tile);
                        /* dS to shared memory, (keys, queries). Two buffers: who writes this one has met all
                         * others at the barrier of the tile before, and they came there after they had read
                         * it. */
#pragma unroll
                        for (int r = 0; r < 2; r++)
#pragma unroll
                            for (int i = 0; i < queries / 8; i++)
                                *reinterpret_cast<uint32_t *>(shared + ds + (row + 8 * r) * 128 +
                                                              (i * 16 ^ row % 8 * 16) + 4 * t) = g[2 * i + r];
                        pk_fence_async();
                        pk_named_barrier(1, consumers);
                        if (!shape::turns || qt % 2 == w) {
                            const int slot = qt - c0, last = backward_last<keys>(a, x, qt);
                            float dq[shape::dq_floats];
                            float4 *part =
                                (a.dq_in_shared ? reinterpret_cast<float4 *>(shared + shape::dq_at)
                                                : reinterpret_cast<float4 *>(a.dq_part) +
                                                      (int64_t)blockIdx.x * a.chunk * (shape::dq_floats / 4) *
                                                          shape::dq_threads) +
                                slot * (shape::dq_floats / 4) * shape::dq_threads -
                                (shape::turns ? 128 * w : 0);

                            pk_wgmma_fence();
#pragma unroll
                            for (int k = 0; k < keys; k += 16)
                                pk_wgmma<shape::dq_columns, true, true>(
                                    dq, pk_tile<queries>::by_columns(base + ds, keys, k, 0),
                                    pk_tile<columns>::by_columns(k_tile, keys, k,
                                                                 shape::halves ? shape::dq_columns * w : 0),
                                    k > 0);
                            pk_wgmma_commit();
                            pk_wgmma_wait<0>();
                            pk_wgmma_hold(dq);
                            if (kt > 0)
                                backward_take<shape::dq_floats, shape::dq_threads>(dq, part);
                            if (kt < last) {
                                backward_keep<shape::dq_floats, shape::dq_threads>(dq, part);
                            } else {
                                const int h = pk_opaque(u) % j.heads;
                                const float f = j.of_d * j.tau * hopper_scale(j, h);

                                hopper_store<shape::dq_columns>(
                                    dq, f, f, a.dq.p + x.b * a.dq.sb + h * a.dq.sh, a.dq.sn, q0, j.nq,
                                    shape::halves ? shape::dq_columns * w : 0, j.d);
                            }
                        }
                        pk_wgmma_wait<0>();
                        pk_wgmma_hold(dk);
                        pk_wgmma_hold(dv);
                        if (lane == 0)
                            pk_barrier_arrive(&bar.q_empty[stage]);
                    }
                    if (lane == 0)
                        pk_barrier_arrive(&bar.k_empty[k_stage]);
                    if (c1 < a.q_tiles) {
                        backward_keep<columns / 2, consumers>(dk, kept);
                        backward_keep<columns / 2, consumers>(dv, kept + columns / 8 * consumers);
                    } else {
                        const int h = pk_opaque(u) % j.heads;
                        const float c = hopper_scale(j, h), fk = j.of_d * j.tau * c, fv = j.of_y * c;

                        hopper_store<columns>(dk, fk, fk, a.dk.p + x.b * a.dk.sb + h * a.dk.sh, a.dk.sn,
                                              kt * keys + 64 * w, j.nk, 0, j.d);
                        hopper_store<columns>(dv, fv, fv, a.dv.p + x.b * a.dv.sb + h * a.dv.sh, a.dv.sn,
                                              kt * keys + 64 * w, j.nk, 0, j.d);
                    }
                }
            }
            backward_rest<columns, groups>(a, x, u, shared, dscale);
        }
}

template <int columns, int groups>
static __global__ void __launch_bounds__(backward_shape<columns, groups>::threads,
                                         backward_shape<columns, groups>::resident)
    backward(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
             const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap mdy,
             const __grid_constant__ struct backward_args a)
{
#ifdef PK_HOPPER
    using shape = backward_shape<columns, groups>;
    PK_SHARED(unsigned char, shared);
    uint64_t *bars = reinterpret_cast<uint64_t *>(shared + shape::barriers_at);
    const struct backward_barriers bar = {bars, bars + shape::k_stages, bars + 2 * shape::k_stages,
                                          bars + 2 * shape::k_stages + shape::q_stages};
    const int w = pk_warp_number() / 4;

    if (threadIdx.x == 0) {
        for (int i = 0; i < shape::k_stages; i++) {
            pk_barrier_init(&bar.k_full[i], 1);
            pk_barrier_init(&bar.k_empty[i], 4 * groups);
        }
        for (int i = 0; i < shape::q_stages; i++) {
            pk_barrier_init(&bar.q_full[i], 1);
            pk_barrier_init(&bar.q_empty[i], 4 * groups);
        }
        pk_barrier_publish();
    }
    __syncthreads();
    if (w == groups) {
        if constexpr (groups > 1)
            pk_registers_fewer<24>();
        if (threadIdx.x == shape::consumers) {
            pk_map_prefetch(&mq);
            pk_map_prefetch(&mk);
            pk_map_prefetch(&mv);
            pk_map_prefetch(&mdy);
            backward_load<columns, groups>(mq, mk, mv, mdy, a, shared, bar);
        }
    } else {
        if constexpr (groups > 1)
            pk_registers_more<240>();
        backward_compute<columns, groups>(a, w, shared, bar);
    }
#endif
}

/* ---- before and after ---- */

/* n^-row_power of every row. Grid: (rows, batches). */
static __global__ void backward_factors(const __grid_constant__ struct hopper_job j, float *to, int step)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;

    if (row < step)
        to[b * step + row] = hopper_row_factor(j, row, hopper_shift(j, b));
}

/* dscale: block i sums (b, h) for head i, or all where there is one scale; in an order that the shape fixes.
 */
static __global__ void backward_dscale(const float *part, int batch, int heads, bool each, float factor,
                                       float *to)
{
    __shared__ double sums[256];
    const int first = each ? blockIdx.x : 0, step = each ? heads : 1, n = each ? batch : batch * heads;
    double sum = 0.0;

    for (int i = threadIdx.x; i < n; i += 256)
        sum += (double)part[first + (int64_t)i * step];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 128; d > 0; d /= 2) {
        if ((int)threadIdx.x < d)
            sums[threadIdx.x] += sums[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        to[blockIdx.x] = (float)(sums[0] * (double)factor);
}

/* dbias from the registers' order of every run. Grid: (keys, queries, heads). */
template <int columns, int groups>
static __global__ void backward_dbias(const __grid_constant__ struct backward_args a, float *to)
{
    using shape = backward_shape<columns, groups>;
    const struct hopper_job &j = a.job;
    const int k = blockIdx.x * blockDim.x + threadIdx.x, q = blockIdx.y, h = blockIdx.z;
    const int kr = k % shape::keys, qr = q % 64;
    const int thread = kr / 64 * 128 + kr % 64 / 16 * 32 + kr % 8 * 4 + qr % 8 / 2;
    const int64_t tile = ((int64_t)(q / 64) * a.k_tiles + k / shape::keys) * 8;
    const int64_t size = (int64_t)a.q_tiles * a.k_tiles * 8 * shape::consumers * 4;
    const int64_t at = ((tile + qr / 8) * shape::consumers + thread) * 4 + kr % 16 / 8 * 2 + qr % 2;
    float sum = 0.0f;

    if (k >= j.nk)
        return;
    for (int run = 0; run < a.runs; run++)
        sum += a.dbias_part[(int64_t)(run * j.heads + h) * size + at];
    to[((int64_t)h * j.nq + q) * j.nk + k] = sum * j.of_d * hopper_scale(j, h);
}

/* ---- hosts ---- */

struct backward_plan {
    int units, runs, grid, q_tiles, k_tiles, chunk, factors_step;
    bool dq_in_shared;
    size_t dq, dkv, dscale, dbias, factors, total; /* offsets; of absent parts, where they would be */
};

static size_t take(size_t *at, size_t bytes)
{
    const size_t here = *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

template <int columns, int groups>
static struct backward_plan plan_of(const struct pk_backend *b, const struct pk_call *c,
                                    const struct hopper_job *j)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *a = &c->attr->attention;
    const int most = hopper_multiprocessors(b) * shape::resident;
    const int most_tiles = 1024 / columns; /* 256 KiB of dQ a block */
    struct backward_plan p;
    size_t at = 0;

    p.runs = j->batch;
    if (a->has_bias) /* sums over batches: few, long runs */
        p.runs = (int)cuda_div_up(most, j->heads) < j->batch ? (int)cuda_div_up(most, j->heads) : j->batch;
    p.units = p.runs * j->heads;
    p.grid = p.units < most ? p.units : most;
    p.q_tiles = (j->nq + shape::queries - 1) / shape::queries;
    p.k_tiles = (j->nk + shape::keys - 1) / shape::keys;
    p.dq_in_shared = p.q_tiles <= shape::dq_tiles;
    p.chunk = p.q_tiles < most_tiles ? p.q_tiles : most_tiles;
    p.factors_step = p.q_tiles * shape::queries;
    p.dq =
        take(&at, p.dq_in_shared || p.k_tiles == 1 ? 0 : (size_t)p.grid * (size_t)p.chunk * shape::dq_bytes);
    p.dkv = take(
        &at, p.chunk >= p.q_tiles ? 0 : (size_t)p.grid * (size_t)p.k_tiles * columns * 4 * shape::consumers);
    p.dscale = take(&at, a->has_scale ? (size_t)j->batch * (size_t)j->heads * 4 : 0);
    p.factors = take(
        &at, a->row_power != 0.0 ? (size_t)(a->has_length ? j->batch : 1) * (size_t)p.factors_step * 4 : 0);
    p.dbias = at;
    if (a->has_bias)
        take(&at,
             (size_t)p.units * (size_t)p.q_tiles * (size_t)p.k_tiles * shape::queries * 2 * shape::consumers);
    p.total = at;
    return p;
}

template <int columns, int groups>
static enum pd_err backward_launch(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                                   struct pd_why *why)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *attr = &c->attr->attention;
    const struct backward_plan p = plan_of<columns, groups>(b, c, j);
    unsigned char *work = (unsigned char *)c->workspace;
    int out = attr->packed ? 1 : 3;
    struct backward_args a = {};
    CUtensorMap maps[4];
    enum pd_err err;

    for (int i = 0; i < 4; i++) {
        const bool of_queries = i == 0 || i == 3;
        const struct hopper_rows r = hopper_rows_of(c, j, i);

        err = hopper_map(j, &r, of_queries ? j->nq : j->nk, columns,
                         of_queries ? shape::queries : shape::keys, &maps[i], why);
        if (err != PD_OK)
            return err;
    }
    a.job = *j;
    a.dq = hopper_rows_of(c, j, 4);
    a.dk = hopper_rows_of(c, j, 5);
    a.dv = hopper_rows_of(c, j, 6);
    a.units = p.units;
    a.runs = p.runs;
    a.q_tiles = p.q_tiles;
    a.k_tiles = p.k_tiles;
    a.chunk = p.chunk;
    a.dq_in_shared = p.dq_in_shared;
    a.dq_part = (float *)(work + p.dq);
    a.dkv_part = (float *)(work + p.dkv);
    if (attr->has_scale)
        a.dscale_part = (float *)(work + p.dscale);
    if (attr->has_bias) {
        a.dbias_part = (float *)(work + p.dbias);
        PK_CUDA_TRY(cudaMemsetAsync(a.dbias_part, 0, p.total - p.dbias, b->stream));
    }
    if (attr->row_power != 0.0) {
        a.factors = (const float *)(work + p.factors);
        a.factors_step = p.factors_step;
        a.factors_batch = attr->has_length;
        PK_LAUNCH(
            backward_factors,
            dim3((unsigned)cuda_div_up(p.factors_step, 128), attr->has_length ? (unsigned)j->batch : 1u),
            dim3(128), 0, b->stream, *j, (float *)(work + p.factors), p.factors_step);
    }
    err = hopper_allow((const void *)backward<columns, groups>, shape::shared, why);
    if (err != PD_OK)
        return err;
    PK_LAUNCH((backward<columns, groups>), dim3((unsigned)p.grid), dim3(shape::threads), shape::shared,
              b->stream, maps[0], maps[1], maps[2], maps[3], a);
    if (attr->has_scale) {
        const bool each = c->out[out].shape.dim[0] > 1;

        PK_LAUNCH(backward_dscale, dim3(each ? (unsigned)j->heads : 1u), dim3(256), 0, b->stream,
                  a.dscale_part, j->batch, j->heads, each, j->scale * j->of_y, (float *)c->out[out].data);
        out++;
    }
    if (attr->has_bias)
        PK_LAUNCH((backward_dbias<columns, groups>),
                  dim3((unsigned)cuda_div_up(j->nk, 64), (unsigned)j->nq, (unsigned)j->heads), dim3(64), 0,
                  b->stream, a, (float *)c->out[out].data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static bool small(const struct hopper_job *j)
{
    return hopper_columns(j->d) == 32 || (hopper_columns(j->d) == 64 && j->nq <= 64 && j->nk <= 64);
}

size_t hopper_bwd_workspace(const struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j)
{
    switch (hopper_columns(j->d)) {
    case 32:
        return plan_of<32, 1>(b, c, j).total;
    case 64:
        return small(j) ? plan_of<64, 1>(b, c, j).total : plan_of<64, 2>(b, c, j).total;
    default:
        return plan_of<128, 2>(b, c, j).total;
    }
}

extern "C" enum pd_err cuda_attention_hopper_bwd(struct pk_backend *b, const struct pk_call *c,
                                                 struct pd_why *why)
{
    struct hopper_job j;

    if (!hopper_job_of(c, &j))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "attention_bwd: not a call for the kernels of sm 90");
    switch (hopper_columns(j.d)) {
    case 32:
        return backward_launch<32, 1>(b, c, &j, why);
    case 64:
        return small(&j) ? backward_launch<64, 1>(b, c, &j, why) : backward_launch<64, 2>(b, c, &j, why);
    default:
        return backward_launch<128, 2>(b, c, &j, why);
    }
}
