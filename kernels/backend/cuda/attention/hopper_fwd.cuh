/* kernels/backend/cuda/attention/hopper_fwd.cuh: a block of the forward kernel on sm 90, from its loads to its stores.
 * hopper_fwd.cu describes its division and the counted costs. F is the activation: see hopper.cuh. Also read by NVRTC. */
#pragma once

#include "kernels/backend/cuda/attention/hopper.cuh"

template <int columns, int keys, int groups, int stages> struct forward_shape {
    static constexpr int threads = groups > 1 ? (groups + 1) * 128 : 160;
    static constexpr int resident = groups > 1 ? 1 : 3; /* blocks of a multiprocessor */
    static constexpr int q_bytes = 64 * columns * 2;    /* of one warpgroup */
    static constexpr int k_bytes = keys * columns * 2;
    static constexpr int k_at = 2 * groups * q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int barriers_at = v_at + stages * k_bytes;
    static constexpr int units_at = barriers_at + (4 + 4 * stages) * 8; /* the unit of each buffer of Q */
    static constexpr int shared = units_at + 8;
    /* Q of a unit in registers: S then reads half as much of shared memory. */
    static constexpr bool held = groups == 3;
    static constexpr int registers = groups == 3 ? 160 : 232, loader_registers = groups == 3 ? 32 : 40;
    static_assert(groups == 1 ||
                  groups * registers + loader_registers <= (groups + 1) * HOPPER_REGISTERS(threads));
    /* Blocks of one warpgroup that see a whole head at once keep its bias and who sees whom, each thread its
     * own. */
    static constexpr int bias_at = (shared + 15) / 16 * 16, bits_at = bias_at + keys / 2 * 4 * 128;
    static constexpr int shared_whole = bits_at + 16 * 128;
};

struct forward_barriers {
    uint64_t *q_full, *q_empty, *k_full, *k_empty, *v_full, *v_empty;
};

struct forward_args {
    struct hopper_job job;
    struct hopper_rows y;
    int units;         /* (batch, head, passes of this unit) */
    int passes;        /* of 64 * groups queries each */
    bool together;     /* one unit holds all passes of its head: keys stay in shared memory */
    unsigned *counter; /* of units taken beyond the first of each block: 0 before and after the launch */
    /* Where > 0: block i takes head i % heads of a run of batches, run i / heads; runs before `longer` have
     * run + 1. */
    int run, longer;
};

/* The units of a block: its first, and the one after u; -1 behind the last. */
__device__ __forceinline__ int forward_run(const struct forward_args &a, int n)
{
    return (n * a.run + min(n, a.longer)) * a.job.heads;
}
__device__ __forceinline__ int forward_begin(const struct forward_args &a)
{
    const int block = (int)blockIdx.x, heads = a.job.heads;

    return a.run ? forward_run(a, block / heads) + block % heads : block;
}
__device__ __forceinline__ int forward_next(const struct forward_args &a, int u)
{
    if (a.run) {
        u += a.job.heads;
        return u < forward_run(a, (int)blockIdx.x / a.job.heads + 1) ? u : -1;
    }
    u = hopper_unit_next((int)gridDim.x, (int)atomicInc(a.counter, (unsigned)a.units - 1u));
    return u < a.units ? u : -1;
}

/* Whether a block stores the bias of its head, and the visible pairs of a window, in shared memory. */
template <int groups> __device__ __forceinline__ bool forward_owns_bias(const struct forward_args &a)
{
    return groups == 1 && a.run && a.job.bias;
}
template <int groups> __device__ __forceinline__ bool forward_owns_bits(const struct forward_args &a)
{
    return groups == 1 && a.run && a.job.windows;
}

/* One unit: where it begins. */
struct forward_unit {
    int b, h, pass, pass_end, shift, tiles;
};

template <int keys, int rows>
__device__ __forceinline__ struct forward_unit forward_unit_of(const struct forward_args &a, int u)
{
    struct forward_unit x;

    const int head = hopper_unit_head(u, a.passes, a.together);

    x.pass = a.together ? 0 : hopper_unit_pass(u, a.passes);
    x.pass_end = a.together ? a.passes : x.pass + 1;
    x.h = head % a.job.heads;
    x.b = hopper_batch_at(a.job, head / a.job.heads);
    x.shift = a.job.nk - a.job.nq;
    x.tiles = hopper_unit_tiles(a.job.causal, a.job.nq, a.job.nk, x.pass_end * rows, keys);
    return x;
}

/* ---- the one thread that loads ---- */

template <int columns, int keys, int groups, int stages>
__device__ __forceinline__ void forward_load(const CUtensorMap &mq, const CUtensorMap &mk,
                                             const CUtensorMap &mv, const struct forward_args &a,
                                             unsigned char *shared, const struct forward_barriers &bar)
{
    using shape = forward_shape<columns, keys, groups, stages>;
    constexpr int width = pk_tile<columns>::width;
    volatile int *units = reinterpret_cast<int *>(shared + shape::units_at);
    int n = 0, qn = 0, u = forward_begin(a);

    for (;;) {
        const struct forward_unit x = forward_unit_of<keys, 64 * groups>(a, u);
        const int next = forward_next(a, u); /* requested early, because of the latency */

        for (int pass = x.pass; pass < x.pass_end; pass++, qn++) {
            const int buffer = qn % 2;

            pk_barrier_wait(&bar.q_empty[buffer], (qn / 2 & 1) ^ 1);
            units[buffer] = u;
            pk_barrier_expect(&bar.q_full[buffer], groups * shape::q_bytes);
            for (int w = 0; w < groups; w++)
                for (int c = 0; c < columns; c += width)
                    pk_bulk_load(shared + (buffer * groups + w) * shape::q_bytes + c * 128, &mq,
                                 &bar.q_full[buffer], c, (pass * groups + w) * 64, x.h, x.b);
            for (int t = 0; pass == x.pass && t < x.tiles; t++, n++) {
                const int stage = n % stages;
                const uint32_t parity = (n / stages & 1) ^ 1;

                pk_barrier_wait(&bar.k_empty[stage], parity);
                pk_barrier_expect(&bar.k_full[stage], shape::k_bytes);
                for (int c = 0; c < columns; c += width)
                    pk_bulk_load(shared + shape::k_at + stage * shape::k_bytes + c * keys * 2, &mk,
                                 &bar.k_full[stage], c, t * keys, x.h, x.b);
                pk_barrier_wait(&bar.v_empty[stage], parity);
                pk_barrier_expect(&bar.v_full[stage], shape::k_bytes);
                for (int c = 0; c < columns; c += width)
                    pk_bulk_load(shared + shape::v_at + stage * shape::k_bytes + c * keys * 2, &mv,
                                 &bar.v_full[stage], c, t * keys, x.h, x.b);
            }
        }
        u = next;
        if (u < 0)
            break;
    }
    pk_barrier_wait(&bar.q_empty[qn % 2], (qn / 2 & 1) ^ 1);
    units[qn % 2] = -1; /* the end: no copy comes with it */
    pk_barrier_arrive(&bar.q_full[qn % 2]);
}

/* ---- a warpgroup that computes: 64 queries ---- */

template <int rows> __device__ __forceinline__ int forward_row(int pass, int w)
{
    return pass * rows + w * 64 + threadIdx.x % 128 / PK_WARP * 16 + threadIdx.x % PK_WARP / 4;
}

/* What is added to the logit in register i of a thread that begins at (query, key). */
__device__ __forceinline__ float forward_bias(const struct hopper_job &j, int h, int query, int key, int i)
{
    key += i / 4 * 8 + i % 2;
    query += i / 2 % 2 * 8;
    return j.bias && query < j.nq && key < j.nk
               ? j.add + __ldg(j.bias + h * j.bias_h + query * j.bias_q + key * j.bias_k)
               : j.add;
}

/* The visible keys k0 .. of this thread's two queries, row and 8 more. */
template <int keys>
__device__ __forceinline__ void forward_bits(const struct hopper_job &j, const struct forward_unit &x,
                                             int row, int k0, uint32_t (&bits)[2][(keys + 31) / 32])
{
    const int lane = threadIdx.x % PK_WARP, t = lane % 4;
    const uint8_t *mask = j.mask ? hopper_mask(j, x.b) : NULL;

#pragma unroll
    for (int i = 0; i < (keys + 31) / 32; i++) {
        const int key = k0 + 32 * i + lane;
        const bool shown = key < j.nk && (!mask || j.windows || mask[key * j.mask_k]);
        const uint32_t common = __ballot_sync(PK_WARP_ALL, shown);

#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = row + 8 * r;
            uint32_t mine = common;

            if (j.causal)
                mine &= hopper_bits_to(query + x.shift - k0 - 32 * i);
            if (j.windows) { /* each lane of the quad looks at 8 keys */
                uint32_t part = 0;

                for (int e = 0; e < 8; e++) {
                    const int k = k0 + 32 * i + 8 * t + e;

                    if (k < j.nk && query < j.nq && mask[query * j.mask_q + k * j.mask_k])
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

/* P of one tile from its scores. What only masks and biases need is computed again here, so that no register
 * keeps it through the loop. */
template <int columns, int keys, int groups, int stages, class F>
__device__ __forceinline__ void forward_phi(const struct forward_args &a, const typename F::use &use, int u,
                                            int pass, int w, int k0, bool masked, const unsigned char *shared,
                                            float (&s)[keys / 2])
{
    using shape = forward_shape<columns, keys, groups, stages>;
    constexpr int rows = 64 * groups;
    const struct hopper_job &j = a.job;
    float tau = j.tau, add = j.add;

    if (j.affine) {
        if (forward_owns_bias<groups>(a)) {
            const float4 *own = reinterpret_cast<const float4 *>(shared + shape::bias_at) + threadIdx.x;

#pragma unroll
            for (int i = 0; i < keys / 2; i += 4) {
                const float4 e = own[i / 4 * 128];

                s[i] = fmaf(s[i], tau, e.x);
                s[i + 1] = fmaf(s[i + 1], tau, e.y);
                s[i + 2] = fmaf(s[i + 2], tau, e.z);
                s[i + 3] = fmaf(s[i + 3], tau, e.w);
            }
        } else {
            const int h = forward_unit_of<keys, rows>(a, pk_opaque(u)).h;
            const int row = forward_row<rows>(pass, w), key = k0 + 2 * (threadIdx.x % 4);

#pragma unroll
            for (int i = 0; i < keys / 2; i++)
                s[i] = fmaf(s[i], tau, forward_bias(j, h, row, key, i));
        }
        tau = 1.0f;
        add = 0.0f;
    }
    if constexpr (F::by_head)
        F::values(j, use, forward_unit_of<keys, rows>(a, pk_opaque(u)).h, s, tau, add);
    else
        F::values(j, use, 0, s, tau, add);
    if (masked) {
        uint32_t bits[2][(keys + 31) / 32];

        if (forward_owns_bits<groups>(a)) {
            const uint4 v = reinterpret_cast<const uint4 *>(shared + shape::bits_at)[threadIdx.x];

            bits[0][0] = v.x;
            bits[0][1] = v.y;
            bits[1][0] = v.z;
            bits[1][1] = v.w;
        } else {
            forward_bits<keys>(j, forward_unit_of<keys, rows>(a, pk_opaque(u)), forward_row<rows>(pass, w),
                               k0, bits);
        }
        hopper_keep(s, bits);
    }
}

/* Before the first unit of a run: the bias of its head. */
template <int columns, int keys, int stages>
__device__ __forceinline__ void forward_own_bias(const struct forward_args &a, unsigned char *shared)
{
    using shape = forward_shape<columns, keys, 1, stages>;
    const int h = (int)blockIdx.x % a.job.heads, row = forward_row<64>(0, 0), key = 2 * (threadIdx.x % 4);
    float4 *own = reinterpret_cast<float4 *>(shared + shape::bias_at) + threadIdx.x;

    for (int i = 0; i < keys / 8; i++)
        own[i * 128] = make_float4(
            forward_bias(a.job, h, row, key, 4 * i), forward_bias(a.job, h, row, key, 4 * i + 1),
            forward_bias(a.job, h, row, key, 4 * i + 2), forward_bias(a.job, h, row, key, 4 * i + 3));
}
/* Before a unit whose window is not that of the one before. */
template <int columns, int keys, int stages>
__device__ __forceinline__ void forward_own_bits(const struct forward_args &a, const struct forward_unit &x,
                                                 int u, unsigned char *shared)
{
    using shape = forward_shape<columns, keys, 1, stages>;
    const struct hopper_job &j = a.job;
    uint32_t bits[2][(keys + 31) / 32];

    if (u != forward_begin(a) && hopper_mask(j, x.b) == hopper_mask(j, hopper_batch_at(j, u / j.heads - 1)))
        return;
    forward_bits<keys>(j, x, forward_row<64>(0, 0), 0, bits);
    reinterpret_cast<uint4 *>(shared + shape::bits_at)[threadIdx.x] =
        make_uint4(bits[0][0], bits[0][1], bits[1][0], bits[1][1]);
}

template <int columns, int keys>
__device__ __forceinline__ void forward_scores(float (&s)[keys / 2], uint32_t q, uint32_t k)
{
#pragma unroll
    for (int c = 0; c < columns; c += 16)
        pk_wgmma<keys, false, false>(s, pk_tile<columns>::by_rows(q, 64, 0, c),
                                     pk_tile<columns>::by_rows(k, keys, 0, c), c > 0);
    pk_wgmma_commit();
}

/* The same, q in registers. */
template <int columns, int keys>
__device__ __forceinline__ void forward_scores(float (&s)[keys / 2], uint32_t (&q)[columns / 4], uint32_t k)
{
#pragma unroll
    for (int c = 0; c < columns; c += 16)
        pk_wgmma<keys, false>(s, q[c / 4], q[c / 4 + 1], q[c / 4 + 2], q[c / 4 + 3],
                              pk_tile<columns>::by_rows(k, keys, 0, c), c > 0);
    pk_wgmma_commit();
}

template <int columns, int keys, bool in_registers, int n>
__device__ __forceinline__ void forward_scores_of(float (&s)[keys / 2], uint32_t (&held)[n], uint32_t q,
                                                  uint32_t k)
{
    if constexpr (in_registers)
        forward_scores<columns, keys>(s, held, k);
    else
        forward_scores<columns, keys>(s, q, k);
}

template <int columns, int keys>
__device__ __forceinline__ void forward_values(float (&o)[columns / 2], uint32_t (&p)[keys / 4], uint32_t v)
{
#pragma unroll
    for (int k = 0; k < keys / 16; k++)
        pk_wgmma<columns, true>(o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
                                pk_tile<columns>::by_columns(v, keys, 16 * k, 0), true);
    pk_wgmma_commit();
}

template <int keys>
__device__ __forceinline__ void forward_pack(const float (&s)[keys / 2], uint32_t (&p)[keys / 4])
{
#pragma unroll
    for (int i = 0; i < keys / 4; i++)
        p[i] = pk_pack(s[2 * i], s[2 * i + 1]);
}

template <int columns, int keys, int groups, int stages, class F>
__device__ __forceinline__ void forward_compute(const struct forward_args &a, const typename F::use &use,
                                                int w, unsigned char *shared,
                                                const struct forward_barriers &bar)
{
    using shape = forward_shape<columns, keys, groups, stages>;
    const struct hopper_job &j = a.job;
    const int lane = threadIdx.x % PK_WARP;
    const uint32_t base = pk_shared_address(shared);
    constexpr int rows = 64 * groups;
    const volatile int *units = reinterpret_cast<int *>(shared + shape::units_at);
    int n = 0, qn = 0;
    float s[keys / 2], o[columns / 2];
    uint32_t p[keys / 4], held[shape::held ? columns / 4 : 1];

    if constexpr (groups == 1)
        if (forward_owns_bias<groups>(a))
            forward_own_bias<columns, keys, stages>(a, shared);
    for (;;) {
        pk_barrier_wait(&bar.q_full[qn % 2], qn / 2 & 1);
        const int u = units[qn % 2];

        if (u < 0)
            break;
        const struct forward_unit x = forward_unit_of<keys, 64 * groups>(a, u);

        if constexpr (groups == 1)
            if (forward_owns_bits<groups>(a))
                forward_own_bits<columns, keys, stages>(a, x, u, shared);
        for (int pass = x.pass; pass < x.pass_end; pass++, qn++) {
            const int q0 = (pass * groups + w) * 64, buffer = qn % 2;
            const bool last = pass + 1 == x.pass_end;
            const int tiles = q0 < j.nq ? hopper_unit_tiles(j.causal, j.nq, j.nk, q0 + 64, keys) : 0;
            /* Tiles from here on need a mask; rows of zeros beyond the last key need none. */
            const int whole = j.mask ? 0 : j.causal ? max(0, q0 + x.shift + 1) : j.nk;
            const uint32_t q = base + (buffer * groups + w) * shape::q_bytes;

#pragma unroll
            for (int i = 0; i < columns / 2; i++)
                o[i] = 0.0f;
            if (pass > x.pass)
                pk_barrier_wait(&bar.q_full[buffer], qn / 2 & 1);
            if constexpr (shape::held) {
                hopper_hold<columns>(held, shared + (buffer * groups + w) * shape::q_bytes, 0);
                pk_wgmma_hold(held);
                __syncwarp();
                if (lane == 0)
                    pk_barrier_arrive(&bar.q_empty[buffer]);
            }
            if (tiles > 0) {
                int stage = n % stages;

                pk_barrier_wait(&bar.k_full[stage], n / stages & 1);
                pk_wgmma_fence();
                forward_scores_of<columns, keys, shape::held>(s, held, q,
                                                              base + shape::k_at + stage * shape::k_bytes);
                pk_wgmma_wait<0>();
                pk_wgmma_hold(s);
                if (last && lane == 0)
                    pk_barrier_arrive(&bar.k_empty[stage]);
                forward_phi<columns, keys, groups, stages, F>(a, use, u, pass, w, 0, keys > whole, shared, s);
                forward_pack<keys>(s, p);
                for (int t = 1; t < tiles; t++) {
                    const int next = (n + t) % stages;

                    pk_barrier_wait(&bar.k_full[next], (n + t) / stages & 1);
                    pk_wgmma_hold(p);
                    pk_wgmma_fence();
                    forward_scores_of<columns, keys, shape::held>(s, held, q,
                                                                  base + shape::k_at + next * shape::k_bytes);
                    pk_barrier_wait(&bar.v_full[stage], (n + t - 1) / stages & 1);
                    pk_wgmma_fence();
                    forward_values<columns, keys>(o, p, base + shape::v_at + stage * shape::k_bytes);
                    pk_wgmma_wait<1>();
                    pk_wgmma_hold(s);
                    if (last && lane == 0)
                        pk_barrier_arrive(&bar.k_empty[next]);
                    forward_phi<columns, keys, groups, stages, F>(a, use, u, pass, w, t * keys,
                                                                  (t + 1) * keys > whole, shared, s);
                    pk_wgmma_wait<0>();
                    pk_wgmma_hold(o);
                    pk_wgmma_hold(s); /* P is no longer read here, so its registers may be overwritten */
                    if (last && lane == 0)
                        pk_barrier_arrive(&bar.v_empty[stage]);
                    forward_pack<keys>(s, p);
                    stage = next;
                }
                if (!shape::held && lane == 0)
                    pk_barrier_arrive(&bar.q_empty[buffer]);
                pk_barrier_wait(&bar.v_full[stage], (n + tiles - 1) / stages & 1);
                pk_wgmma_hold(p);
                pk_wgmma_fence();
                forward_values<columns, keys>(o, p, base + shape::v_at + stage * shape::k_bytes);
                pk_wgmma_wait<0>();
                pk_wgmma_hold(o);
                if (last && lane == 0)
                    pk_barrier_arrive(&bar.v_empty[stage]);
            } else if (!shape::held) {
                __syncwarp();
                if (lane == 0)
                    pk_barrier_arrive(&bar.q_empty[buffer]);
            }
            /* Tiles that only others need. An arrival counts for the phase that runs: so not before it does.
             */
            for (int t = tiles; last && t < x.tiles; t++) {
                const int stage = (n + t) % stages;

                pk_barrier_wait(&bar.k_full[stage], (n + t) / stages & 1);
                pk_barrier_wait(&bar.v_full[stage], (n + t) / stages & 1);
                if (lane == 0) {
                    pk_barrier_arrive(&bar.k_empty[stage]);
                    pk_barrier_arrive(&bar.v_empty[stage]);
                }
            }
            if (q0 < j.nq) {
                const struct forward_unit z = forward_unit_of<keys, rows>(a, pk_opaque(u));
                const float f = F::factor_y(j, use, z.h);
                float f0 = f, f1 = f;

                if (j.row_power != 0.0f) {
                    f0 *= hopper_row_factor(j, forward_row<rows>(pass, w), z.shift);
                    f1 *= hopper_row_factor(j, forward_row<rows>(pass, w) + 8, z.shift);
                }
                hopper_store<columns>(o, f0, f1, a.y.p + z.b * a.y.sb + z.h * a.y.sh, a.y.sn, q0, j.nq, 0,
                                      j.d);
            }
        }
        n += x.tiles;
    }
}

/* A block of the kernel. The maps and a are its parameters. */
template <int columns, int keys, int groups, int stages, class F>
__device__ __forceinline__ void forward_block(const CUtensorMap &mq, const CUtensorMap &mk,
                                              const CUtensorMap &mv, const struct forward_args &a,
                                              const typename F::use &use)
{
#ifdef PK_HOPPER
    using shape = forward_shape<columns, keys, groups, stages>;
    PK_SHARED(unsigned char, shared);
    uint64_t *bars = reinterpret_cast<uint64_t *>(shared + shape::barriers_at);
    const struct forward_barriers bar = {
        bars, bars + 2, bars + 4, bars + 4 + stages, bars + 4 + 2 * stages, bars + 4 + 3 * stages};
    const int w = pk_warp_number() / 4;

    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            pk_barrier_init(&bar.q_full[i], 1);
            pk_barrier_init(&bar.q_empty[i], 4 * groups);
        }
        for (int i = 0; i < stages; i++) {
            pk_barrier_init(&bar.k_full[i], 1);
            pk_barrier_init(&bar.k_empty[i], 4 * groups);
            pk_barrier_init(&bar.v_full[i], 1);
            pk_barrier_init(&bar.v_empty[i], 4 * groups);
        }
        pk_barrier_publish();
    }
    __syncthreads();
    if (w == groups) {
        if constexpr (groups > 1)
            pk_registers_fewer<shape::loader_registers>();
        if (threadIdx.x == groups * 128) {
            pk_map_prefetch(&mq);
            pk_map_prefetch(&mk);
            pk_map_prefetch(&mv);
            forward_load<columns, keys, groups, stages>(mq, mk, mv, a, shared, bar);
        }
    } else {
        if constexpr (groups > 1)
            pk_registers_more<shape::registers>();
        forward_compute<columns, keys, groups, stages, F>(a, use, w, shared, bar);
    }
#endif
}
