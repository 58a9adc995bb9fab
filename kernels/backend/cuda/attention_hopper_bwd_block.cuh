/* kernels/backend/cuda/attention_hopper_bwd_block.cuh: the kernel of the gradient on sm 90, from its loads to
 * its stores. How it is divided and what was counted stands in attention_hopper_bwd.cu. */
#pragma once

#include "kernels/backend/cuda/attention_hopper_bwd.cuh"

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

static inline size_t backward_room(size_t *at, size_t bytes)
{
    const size_t here = *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

template <int columns, int groups>
static struct backward_plan backward_plan_of(const struct pk_backend *b, const struct pk_call *c,
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
    p.dq = backward_room(
        &at, p.dq_in_shared || p.k_tiles == 1 ? 0 : (size_t)p.grid * (size_t)p.chunk * shape::dq_bytes);
    p.dkv = backward_room(
        &at, p.chunk >= p.q_tiles ? 0 : (size_t)p.grid * (size_t)p.k_tiles * columns * 4 * shape::consumers);
    p.dscale = backward_room(&at, a->has_scale ? (size_t)j->batch * (size_t)j->heads * 4 : 0);
    p.factors = backward_room(
        &at, a->row_power != 0.0 ? (size_t)(a->has_length ? j->batch : 1) * (size_t)p.factors_step * 4 : 0);
    p.dbias = at;
    if (a->has_bias)
        backward_room(&at, (size_t)p.units * (size_t)p.q_tiles * (size_t)p.k_tiles * shape::queries * 2 *
                               shape::consumers);
    p.total = at;
    return p;
}

template <int columns, int groups>
static enum pd_err backward_launch(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                                   struct pd_why *why)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *attr = &c->attr->attention;
    const struct backward_plan p = backward_plan_of<columns, groups>(b, c, j);
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
        hopper_bwd_factors(b, j, attr->has_length, p.factors_step, (float *)(work + p.factors));
    }
    err = hopper_allow((const void *)backward<columns, groups>, shape::shared, why);
    if (err != PD_OK)
        return err;
    PK_LAUNCH((backward<columns, groups>), dim3((unsigned)p.grid), dim3(shape::threads), shape::shared,
              b->stream, maps[0], maps[1], maps[2], maps[3], a);
    if (attr->has_scale) {
        hopper_bwd_dscale(b, j, c->out[out].shape.dim[0] > 1, a.dscale_part, (float *)c->out[out].data);
        out++;
    }
    if (attr->has_bias)
        PK_LAUNCH((backward_dbias<columns, groups>),
                  dim3((unsigned)cuda_div_up(j->nk, 64), (unsigned)j->nq, (unsigned)j->heads), dim3(64), 0,
                  b->stream, a, (float *)c->out[out].data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
