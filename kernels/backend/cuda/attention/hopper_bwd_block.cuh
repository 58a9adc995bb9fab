/* kernels/backend/cuda/attention/hopper_bwd_block.cuh: a block of the gradient on sm 90, from its loads to
 * its stores. hopper_bwd.cu describes its division and the counted costs. F: see hopper.cuh. Also read by NVRTC. */
#pragma once

#include "kernels/backend/cuda/attention/hopper_bwd.cuh"

struct backward_barriers {
    uint64_t *k_full, *k_empty, *q_full, *q_empty;
    uint64_t *met; /* all threads that compute, of all blocks of the cluster */
};

/* ---- the threads that load ---- */

/* Loads K and V (keys), Q and dY (queries), or both: in separate threads if there is a warp for each, so that neither
 * waits for buffers of the other. */
template <int columns, int groups, bool of_keys, bool of_queries>
__device__ __forceinline__ void
backward_load(const CUtensorMap &mq, const CUtensorMap &mk, const CUtensorMap &mv, const CUtensorMap &mdy,
              const struct backward_args &a, unsigned char *shared, const struct backward_barriers &bar)
{
    using shape = backward_shape<columns, groups>;
    constexpr int width = pk_tile<columns>::width, keys = shape::keys, queries = shape::queries;
    constexpr int k_stages = shape::k_stages, q_stages = shape::q_stages;
    const int rank = backward_rank<columns, groups>(a), blocks = backward_blocks<columns, groups>(a);
    int kn = 0, qn = 0;

    for (int u = blockIdx.x / blocks; u < a.units; u += gridDim.x / blocks)
        for (int i = backward_batch(a, u); i < backward_batch_end(a, u); i++) {
            const struct backward_pair x = backward_pair_of<keys>(a, u, hopper_batch_at(a.job, i));

            for (int c0 = 0; c0 < a.q_tiles; c0 += a.chunk) {
                const int c1 = min(a.q_tiles, c0 + a.chunk);

                for (int k0 = 0; k0 < x.k_tiles; k0 += blocks) {
                    const int first = max(c0, backward_first<keys>(a, x, k0)), kt = k0 + rank;

                    if (first >= c1)
                        continue;
                    if (of_keys && kt < x.k_tiles) {
                        const int stage = kn % k_stages;
                        unsigned char *k = shared + stage * 2 * shape::k_bytes;

                        pk_barrier_wait(&bar.k_empty[stage], (kn / k_stages & 1) ^ 1);
                        pk_barrier_expect(&bar.k_full[stage], 2 * shape::k_bytes);
                        for (int c = 0; c < columns; c += width) {
                            pk_bulk_load(k + c * keys * 2, &mk, &bar.k_full[stage], c, kt * keys, x.h, x.b);
                            pk_bulk_load(k + shape::k_bytes + c * keys * 2, &mv, &bar.k_full[stage], c,
                                         kt * keys, x.h, x.b);
                        }
                        kn++;
                    }
                    for (int qt = first; of_queries && qt < c1; qt++, qn++) {
                        const int s = qn % q_stages, mine = rank * (queries / blocks);
                        const int row = qt * queries + mine;
                        unsigned char *q = shared + shape::q_at + s * 2 * shape::q_bytes + mine * 2 * width;

                        /* Each block of a cluster loads its part of the rows into all of them. */
                        pk_barrier_wait_cluster(&bar.q_empty[s], (qn / q_stages & 1) ^ 1);
                        pk_barrier_expect(&bar.q_full[s], 2 * shape::q_bytes);
                        for (int c = 0; c < columns; c += width)
                            if (blocks == 1) {
                                pk_bulk_load(q + c * queries * 2, &mq, &bar.q_full[s], c, row, x.h, x.b);
                                pk_bulk_load(q + shape::q_bytes + c * queries * 2, &mdy, &bar.q_full[s], c,
                                             row, x.h, x.b);
                            } else {
                                const uint32_t all = (1u << blocks) - 1;

                                pk_bulk_load_cluster(q + c * queries * 2, &mq, &bar.q_full[s], all, c, row,
                                                     x.h, x.b);
                                pk_bulk_load_cluster(q + shape::q_bytes + c * queries * 2, &mdy,
                                                     &bar.q_full[s], all, c, row, x.h, x.b);
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

/* The same, a (64 rows) in registers. */
template <int columns, int n>
__device__ __forceinline__ void backward_scores(float (&s)[n / 2], uint32_t (&a)[columns / 4], uint32_t b)
{
#pragma unroll
    for (int c = 0; c < columns; c += 16)
        pk_wgmma<n, false>(s, a[c / 4], a[c / 4 + 1], a[c / 4 + 2], a[c / 4 + 3],
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

/* Writes zeros to results that no tile has written, and the gradient of the scale. */
template <int columns, int groups>
__device__ __forceinline__ void backward_rest(const struct backward_args &a, const struct backward_pair &x,
                                              int u, unsigned char *shared, float dscale)
{
    using shape = backward_shape<columns, groups>;
    constexpr int consumers = shape::consumers, keys = shape::keys;
    const struct hopper_job &j = a.job;
    const int h = pk_opaque(u) % j.heads, rank = backward_rank<columns, groups>(a);

    if (rank == 0) {
        backward_zero<consumers>(
            a.dq, x.b, h, 0, x.k_tiles > 0 ? min(j.nq, backward_first<keys>(a, x, 0) * shape::queries) : j.nq,
            j.d);
        if (x.k_tiles * keys < j.nk) {
            backward_zero<consumers>(a.dk, x.b, h, x.k_tiles * keys, j.nk, j.d);
            backward_zero<consumers>(a.dv, x.b, h, x.k_tiles * keys, j.nk, j.d);
        }
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
            a.dscale_part[((int64_t)rank * j.batch + x.b) * j.heads + h] = total;
        }
        pk_named_barrier(2, consumers);
    }
}

/* All threads that compute, of all blocks of the cluster: what they wrote before is seen after. */
template <int columns, int groups>
__device__ __forceinline__ void backward_meet(const struct backward_args &a,
                                              const struct backward_barriers &bar, uint32_t parity)
{
    for (int r = 0; r < backward_blocks<columns, groups>(a); r++)
        pk_barrier_arrive_at(bar.met, (uint32_t)r);
    pk_barrier_wait_cluster(bar.met, parity);
}

/* A chunk's dQ from the sums of all blocks of a cluster, in their order. Each block makes every other pair of
 * tiles. */
template <int columns, int groups, class F>
__device__ __forceinline__ void backward_join(const struct backward_args &a, const typename F::use &use,
                                              const struct backward_pair &x, int u, int w, int c0, int c1)
{
    using shape = backward_shape<columns, groups>;
    const struct hopper_job &j = a.job;
    const int rank = (int)pk_cluster_rank(), h = pk_opaque(u) % j.heads;
    const int first = max(c0, backward_first<shape::keys>(a, x, 0));
    const float f = F::factor_d(j, use, h) * j.tau;
    constexpr int step = shape::dq_floats / 4 * shape::dq_threads; /* of a tile */

    for (int qt = first; qt < c1; qt++) {
        float dq[shape::dq_floats];

        if (qt / 2 % backward_blocks<columns, groups>(a) != rank || (shape::turns && qt % 2 != w))
            continue;
#pragma unroll
        for (int i = 0; i < shape::dq_floats; i++)
            dq[i] = 0.0f;
        for (int r = 0; r < backward_blocks<columns, groups>(a) && r < x.k_tiles; r++)
            backward_take_device<shape::dq_floats, shape::dq_threads>(
                dq, reinterpret_cast<const float4 *>(a.dq_part) +
                        ((int64_t)(blockIdx.x - rank + r) * a.chunk + qt - c0) * step -
                        (shape::turns ? 128 * w : 0));
        hopper_store<shape::dq_columns>(dq, f, f, a.dq.p + x.b * a.dq.sb + h * a.dq.sh, a.dq.sn,
                                        qt * shape::queries, j.nq, shape::halves ? shape::dq_columns * w : 0,
                                        j.d);
    }
}

/* dS of a tile to shared memory, (keys, queries). Two buffers alternate: all threads have read this one before they
 * reached the barrier of the previous tile. */
template <int queries>
__device__ __forceinline__ void backward_share(const uint32_t (&g)[queries / 4], unsigned char *ds, int row,
                                               int t)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < queries / 8; i++)
            *reinterpret_cast<uint32_t *>(ds + (row + 8 * r) * 128 + (i * 16 ^ row % 8 * 16) + 4 * t) =
                g[2 * i + r];
    pk_fence_async();
}

/* G of a tile added to the sums of the bias' gradient. */
template <int columns, int groups>
__device__ __forceinline__ void
backward_sum_bias(const struct backward_args &a, unsigned char *shared, int u, int qt, int kt, int row,
                  const float (&g)[backward_shape<columns, groups>::queries / 2])
{
    using shape = backward_shape<columns, groups>;
    constexpr int n = shape::queries / 8, consumers = shape::consumers;
    float4 *sum = backward_owns_bias<groups>(a)
                      ? reinterpret_cast<float4 *>(shared + shape::dbias_at)
                      : reinterpret_cast<float4 *>(a.dbias_part) +
                            (((int64_t)u * a.q_tiles + qt) * a.k_tiles + kt) * n * consumers;

#pragma unroll
    for (int i = 0; i < n; i++)
        if (qt * shape::queries + 8 * i < a.job.nq && kt * shape::keys + row < a.job.nk) {
            float4 v = sum[i * consumers + threadIdx.x];

            v.x += g[4 * i];
            v.y += g[4 * i + 1];
            v.z += g[4 * i + 2];
            v.w += g[4 * i + 3];
            sum[i * consumers + threadIdx.x] = v;
        }
}

/* Before the first (batch, head) of a run of one head: its bias, no sums yet. */
template <int columns, int groups>
__device__ __forceinline__ void backward_own_bias(const struct backward_args &a, int u, unsigned char *shared)
{
    using shape = backward_shape<columns, groups>;
    const struct hopper_job &j = a.job;
    const int row = threadIdx.x / PK_WARP * 16 + threadIdx.x % PK_WARP / 4, t2 = threadIdx.x % 4 * 2;
    const int h = u % j.heads;
    float4 *bias = reinterpret_cast<float4 *>(shared + shape::bias_at) + threadIdx.x;
    float4 *sums = reinterpret_cast<float4 *>(shared + shape::dbias_at) + threadIdx.x;

    for (int i = 0; i < 8; i++) {
        bias[i * 128] =
            make_float4(backward_bias(j, h, row, t2, 4 * i), backward_bias(j, h, row, t2, 4 * i + 1),
                        backward_bias(j, h, row, t2, 4 * i + 2), backward_bias(j, h, row, t2, 4 * i + 3));
        sums[i * 128] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
/* After its last one. */
template <int columns, int groups>
__device__ __forceinline__ void backward_own_sums(const struct backward_args &a, int u, unsigned char *shared)
{
    const float4 *sums =
        reinterpret_cast<float4 *>(shared + backward_shape<columns, groups>::dbias_at) + threadIdx.x;
    float4 *to = reinterpret_cast<float4 *>(a.dbias_part) + (int64_t)u * 8 * 128 + threadIdx.x;

    for (int i = 0; i < 8; i++)
        to[i * 128] = sums[i * 128];
}
/* Before (batch, head) number i of a run whose window is not that of the one before. */
template <int columns, int groups, class F>
__device__ __forceinline__ void backward_own_bits(const struct backward_args &a,
                                                  const struct backward_pair &x, int i, bool first,
                                                  unsigned char *shared)
{
    const struct hopper_job &j = a.job;
    uint32_t bits[2][2];

    if (!first && hopper_mask(j, x.b) == hopper_mask(j, hopper_batch_at(j, i - 1)))
        return;
    backward_bits<64, F::strict>(j, x, threadIdx.x / PK_WARP * 16 + threadIdx.x % PK_WARP / 4, 0, bits);
    reinterpret_cast<uint4 *>(shared + backward_shape<columns, groups>::bits_at)[threadIdx.x] =
        make_uint4(bits[0][0], bits[0][1], bits[1][0], bits[1][1]);
}

template <int columns, int groups, class F>
__device__ __forceinline__ void backward_compute(const struct backward_args &a, const typename F::use &use,
                                                 int w, unsigned char *shared,
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
    uint32_t k_held[shape::held ? columns / 4 : 1], v_held[shape::held ? columns / 4 : 1];

    for (int u = blockIdx.x / backward_blocks<columns, groups>(a); u < a.units;
         u += gridDim.x / backward_blocks<columns, groups>(a)) {
        if (backward_owns_bias<groups>(a))
            backward_own_bias<columns, groups>(a, u, shared);
        for (int i = backward_batch(a, u); i < backward_batch_end(a, u); i++) {
            const struct backward_pair x = backward_pair_of<keys>(a, u, hopper_batch_at(j, i));
            float dscale = 0.0f;

            if (backward_owns_bits<groups>(a))
                backward_own_bits<columns, groups, F>(a, x, i, i == backward_batch(a, u), shared);
            for (int c0 = 0; c0 < a.q_tiles; c0 += a.chunk) {
                const int c1 = min(a.q_tiles, c0 + a.chunk);

                for (int kt0 = 0; kt0 < x.k_tiles; kt0 += backward_blocks<columns, groups>(a)) {
                    const int first = max(c0, backward_first<keys>(a, x, kt0)), k_stage = kn % k_stages;
                    const int kt = kt0 + backward_rank<columns, groups>(a);

                    if (first >= c1)
                        continue;
                    if (kt >= x.k_tiles) { /* the others of the cluster go on: their tiles come here too */
                        for (int qt = first; qt < c1; qt++, qn++) {
                            pk_barrier_wait(&bar.q_full[qn % q_stages], qn / q_stages & 1);
                            __syncwarp();
                            if (lane < backward_blocks<columns, groups>(a))
                                pk_barrier_arrive_at(&bar.q_empty[qn % q_stages], (uint32_t)lane);
                        }
                        continue;
                    }
#pragma unroll
                    for (int n = 0; n < columns / 2; n++)
                        dk[n] = dv[n] = 0.0f;
                    pk_barrier_wait(&bar.k_full[k_stage], kn / k_stages & 1);
                    if constexpr (shape::held) {
                        const unsigned char *k_tile = shared + k_stage * 2 * shape::k_bytes;

                        hopper_hold<columns>(k_held, k_tile, 64 * w);
                        pk_wgmma_hold(k_held);
                        hopper_hold<columns>(v_held, k_tile + shape::k_bytes, 64 * w);
                        pk_wgmma_hold(v_held);
                    }
                    for (int qt = first; qt < c1; qt++, qn++) {
                        const int stage = qn % q_stages, q0 = qt * queries, k0 = kt * keys;
                        /* Addresses are computed again each time: kept, they would take half of the registers. */
                        const int me = pk_opaque((int)threadIdx.x), t = me % 4;
                        const int row = me / PK_WARP * 16 + me % PK_WARP / 4; /* of a tile of keys */
                        const uint32_t k_tile = base + pk_opaque(kn) % k_stages * 2 * shape::k_bytes;
                        const uint32_t q_tile = base + shape::q_at + stage * 2 * shape::q_bytes;
                        const uint32_t dy_tile = q_tile + shape::q_bytes;
                        const uint32_t ds = shape::ds_at + qn % 2 * shape::ds_bytes;
                        uint32_t p[queries / 4], g[queries / 4];

                        pk_barrier_wait(&bar.q_full[stage], qn / q_stages & 1);
                        {
                            float s[queries / 2], d[queries / 2];

                            pk_wgmma_fence();
                            if constexpr (shape::held) {
                                backward_scores<columns, queries>(s, k_held, q_tile);
                                backward_scores<columns, queries>(d, v_held, dy_tile);
                            } else {
                                backward_scores<keys, columns, queries>(s, k_tile, 64 * w, q_tile);
                                backward_scores<keys, columns, queries>(d, k_tile + shape::k_bytes, 64 * w,
                                                                        dy_tile);
                            }
                            pk_wgmma_wait<0>();
                            pk_wgmma_hold(s);
                            pk_wgmma_hold(d);
                            backward_phi<columns, groups, F>(a, use, x, pk_opaque(u), pk_opaque(i), row, q0,
                                                             k0, 64 * w, s, d, p, dscale, shared);
                            pk_wgmma_hold(p);
                            pk_wgmma_fence();
                            backward_add<columns, queries>(dv, p, dy_tile);
                            if (a.dbias_part)
                                backward_sum_bias<columns, groups>(a, shared, u, qt, kt, row, s);
#pragma unroll
                            for (int n = 0; n < queries / 4; n++)
                                g[n] = pk_pack(s[2 * n], s[2 * n + 1]);
                        }
                        pk_wgmma_hold(g);
                        pk_wgmma_fence();
                        backward_add<columns, queries>(dk, g, q_tile);
                        backward_share<queries>(g, shared + ds, row, t);
                        pk_named_barrier(1, consumers);
                        if (!shape::turns || qt % 2 == w) {
                            const bool last = backward_blocks<columns, groups>(a) == 1 &&
                                              kt == backward_last<keys>(a, x, qt);
                            float dq[shape::dq_floats];
                            float4 *part =
                                (a.dq_in_shared ? reinterpret_cast<float4 *>(shared + shape::dq_at)
                                                : reinterpret_cast<float4 *>(a.dq_part) +
                                                      (int64_t)blockIdx.x * a.chunk * (shape::dq_floats / 4) *
                                                          shape::dq_threads) +
                                (qt - c0) * (shape::dq_floats / 4) * shape::dq_threads -
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
                            if (kt0 > 0 && a.dq_in_shared)
                                backward_take<shape::dq_floats, shape::dq_threads>(dq, part);
                            else if (kt0 > 0 && last)
                                backward_take_device<shape::dq_floats, shape::dq_threads>(dq, part);
                            if (last) {
                                const int h = pk_opaque(u) % j.heads;
                                const float f = F::factor_d(j, use, h) * j.tau;

                                hopper_store<shape::dq_columns>(
                                    dq, f, f,
                                    a.dq.p + hopper_batch_at(j, pk_opaque(i)) * a.dq.sb + h * a.dq.sh,
                                    a.dq.sn, q0, j.nq, shape::halves ? shape::dq_columns * w : 0, j.d);
                            } else if (kt0 == 0 || a.dq_in_shared) {
                                backward_keep<shape::dq_floats, shape::dq_threads>(dq, part);
                            } else {
                                backward_add_to<shape::dq_floats, shape::dq_threads>(dq, part);
                            }
                        }
                        pk_wgmma_wait<0>();
                        pk_wgmma_hold(dk);
                        pk_wgmma_hold(dv);
                        if (backward_blocks<columns, groups>(a) == 1) {
                            if (lane == 0)
                                pk_barrier_arrive(&bar.q_empty[stage]);
                        } else if (lane < backward_blocks<columns, groups>(a)) {
                            pk_barrier_arrive_at(&bar.q_empty[stage], (uint32_t)lane);
                        }
                    }
                    if (lane == 0)
                        pk_barrier_arrive(&bar.k_empty[kn % k_stages]);
                    kn++;

                    const bool begun =
                        backward_first<keys>(a, x, pk_opaque(kt0)) < c0; /* by a chunk before */
                    float4 *kept = reinterpret_cast<float4 *>(a.dkv_part) +
                                   ((int64_t)blockIdx.x * a.kept_tiles +
                                    pk_opaque(kt0) / backward_blocks<columns, groups>(a)) *
                                       (columns / 4) * consumers;

                    if (c1 < a.q_tiles && !begun) {
                        backward_keep<columns / 2, consumers>(dk, kept);
                        backward_keep<columns / 2, consumers>(dv, kept + columns / 8 * consumers);
                    } else if (c1 < a.q_tiles) {
                        backward_add_to<columns / 2, consumers>(dk, kept);
                        backward_add_to<columns / 2, consumers>(dv, kept + columns / 8 * consumers);
                    } else {
                        const int h = pk_opaque(u) % j.heads, batch = hopper_batch_at(j, pk_opaque(i));
                        const float fk = F::factor_d(j, use, h) * j.tau, fv = F::factor_y(j, use, h);

                        if (begun) {
                            backward_take_device<columns / 2, consumers>(dk, kept);
                            backward_take_device<columns / 2, consumers>(dv, kept + columns / 8 * consumers);
                        }
                        hopper_store<columns>(dk, fk, fk, a.dk.p + batch * a.dk.sb + h * a.dk.sh, a.dk.sn,
                                              kt * keys + 64 * w, j.nk, 0, j.d);
                        hopper_store<columns>(dv, fv, fv, a.dv.p + batch * a.dv.sb + h * a.dv.sh, a.dv.sn,
                                              kt * keys + 64 * w, j.nk, 0, j.d);
                    }
                }
                if (backward_blocks<columns, groups>(a) > 1) {
                    /* All sums are complete, and no block begins the next chunk's sums while another reads. */
                    backward_meet<columns, groups>(a, bar, 0);
                    backward_join<columns, groups, F>(a, use, x, u, w, c0, c1);
                    backward_meet<columns, groups>(a, bar, 1);
                }
            }
            backward_rest<columns, groups>(a, x, u, shared, dscale);
        }
        if (backward_owns_bias<groups>(a))
            backward_own_sums<columns, groups>(a, u, shared);
    }
}

/* A block of the kernel. The maps and a are its parameters. */
template <int columns, int groups, class F>
__device__ __forceinline__ void backward_block(const CUtensorMap &mq, const CUtensorMap &mk,
                                               const CUtensorMap &mv, const CUtensorMap &mdy,
                                               const struct backward_args &a, const typename F::use &use)
{
#ifdef PK_HOPPER
    using shape = backward_shape<columns, groups>;
    PK_SHARED(unsigned char, shared);
    uint64_t *bars = reinterpret_cast<uint64_t *>(shared + shape::barriers_at);
    const struct backward_barriers bar = {bars, bars + shape::k_stages, bars + 2 * shape::k_stages,
                                          bars + 2 * shape::k_stages + shape::q_stages,
                                          bars + 2 * shape::k_stages + 2 * shape::q_stages};
    const int w = pk_warp_number() / 4;

    if (threadIdx.x == 0) {
        for (int i = 0; i < shape::k_stages; i++) {
            pk_barrier_init(&bar.k_full[i], 1);
            pk_barrier_init(&bar.k_empty[i], 4 * groups);
        }
        for (int i = 0; i < shape::q_stages; i++) {
            pk_barrier_init(&bar.q_full[i], 1);
            pk_barrier_init(&bar.q_empty[i], (uint32_t)(4 * groups * backward_blocks<columns, groups>(a)));
        }
        pk_barrier_init(bar.met, (uint32_t)(shape::consumers * backward_blocks<columns, groups>(a)));
        pk_barrier_publish();
    }
    if (backward_blocks<columns, groups>(a) > 1)
        pk_cluster_sync();
    else
        __syncthreads();
    if (w == groups) {
        if constexpr (groups > 1)
            pk_registers_fewer<shape::loader_registers>();
        if (threadIdx.x == shape::consumers)
            backward_load<columns, groups, true, groups == 1>(mq, mk, mv, mdy, a, shared, bar);
        else if (groups > 1 && threadIdx.x == shape::consumers + PK_WARP)
            backward_load<columns, groups, false, true>(mq, mk, mv, mdy, a, shared, bar);
    } else {
        if constexpr (groups > 1)
            pk_registers_more<shape::registers>();
        backward_compute<columns, groups, F>(a, use, w, shared, bar);
    }
    if (backward_blocks<columns, groups>(a) >
        1) { /* other blocks may still arrive at this block's barriers */
        __syncwarp();
        pk_cluster_sync();
    }
#endif
}

/* dbias from the registers' order of every run. Grid: (keys, queries, heads). It depends on the order of a block's
 * registers. */
template <int columns, int groups, class F>
__device__ __forceinline__ void backward_bias_sum(const struct backward_args &a, const typename F::use &use,
                                                  float *to)
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
    to[((int64_t)h * j.nq + q) * j.nk + k] = sum * F::factor_d(j, use, h);
}
