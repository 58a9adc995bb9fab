/* ATTENTION_BWD in one pass, for up to 256 keys: bf16, heads up to 64, any phi, mask, bias and
 * dropout.
 *
 * A block owns one (b, h) pair, each of its warps 16 keys: k and v of the strip stay in shared memory, dk and
 * dv in registers. Tiles of 32 queries (q and dY) stream past, two in flight. A warp makes S' and dP' of its
 * keys by the tile's queries once, from them its part of dk and dv, and leaves dS' in shared memory as bf16.
 * After one barrier the tile's dq = dS k is complete in the block: 16 queries by 16 channels at a time, a
 * warp sums all strips of keys in order and writes dq. So nothing is computed twice and nothing
 * is summed between blocks: five products instead of the seven of bwd.cu, no f32 dq in memory, no
 * second pass, no atomics. The dS of two tiles of queries alternate between two buffers, so one
 * barrier per tile is enough.
 *
 * Where there is a bias and few enough scores, a block owns one head and a run of the batch instead, and adds
 * dS up in shared memory, each lane where it alone writes; the runs are added up behind, in their order.
 *
 * Counted per pair: 10 Nq Nk d FLOP, 14 bytes for each element of a side of N (q, k, v, dy read, dq, dk, dv
 * written once): 14 N d a head (kernels/PERFORMANCE.md 2.1). Shared memory, d = 64: 288 bytes a key of k and
 * v, 160 of dS, and 18 KiB of tiles: N = 197: 112 KiB and 13 warps; N = 256: 130 KiB, within the 163 KiB of
 * sm 80. 128 registers a thread. */
#include "kernels/backend/cuda/attention/bwd.cuh"

#define KEYS_MOST 256
#define WARPS_MOST 8        /* each of one strip of keys, or two: 255 registers a thread are theirs alone */
#define DS_PITCH (TILE + 8) /* an odd number of 16-byte units */
#define BLOCKS 4            /* for each multiprocessor, that the runs of a batch aim at */

namespace
{
struct once {
    int32_t warps, each, strips; /* each: strips of a warp; the last may be beyond the keys */
    int32_t tiles, lanes_log;
    int32_t runs; /* > 0: dS is added up over runs of the batch */
    size_t shared;
};
} // namespace

/* dq of 16 queries by 16 channels: all strips of keys. */
__device__ __forceinline__ void once_dq(float (&acc)[2][4], const struct att_sight &sight, int strips,
                                        const __nv_bfloat16 *kv, int pitch, const __nv_bfloat16 *ds, int row0,
                                        int strip, int c0)
{
    const int lane = (int)threadIdx.x % PK_WARP;

    att_zero(acc);
#pragma unroll 1
    for (int s = 0; s < strips; s++) {
        uint32_t f[4], k[4];

        if (att_closed(sight, row0, STRIP, s * STRIP)) /* dS was not written there */
            continue;
        pk_ldmatrix_transposed(f, ds + (s * STRIP + lane % 8 + lane / 16 * 8) * DS_PITCH + strip * STRIP +
                                      lane / 8 % 2 * 8);
        pk_ldmatrix_transposed(k, kv + (s * 2 * STRIP + lane % 16) * pitch + c0 + lane / 16 * 8);
        pk_mma_bf16(acc[0], f, k[0], k[1]);
        pk_mma_bf16(acc[1], f, k[2], k[3]);
    }
}

/* Sixteen rows from row0 on, of those before `end`, times f. */
template <int N>
__device__ __forceinline__ void once_put(const struct att_rows &to, const float (&x)[N][4], int b, int h,
                                         int row0, int end, int c0, int d, float f)
{
    const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = row0 + lane / 4 + 8 * r;

        if (i >= end)
            continue;
#pragma unroll
        for (int n = 0; n < N; n++)
            att_store<__nv_bfloat16>((__nv_bfloat16 *)to.p + b * to.sb + h * to.sh + i * to.sn,
                                     c0 + n * 8 + lane % 4 * 2, d, x[n][2 * r] * f, x[n][2 * r + 1] * f);
    }
}

template <bool POLY, int EACH>
static __global__ void __launch_bounds__(WARPS_MOST *PK_WARP, 1)
    once_kernel(const struct att a, const struct once g, double *const dscale, float *const runs)
{
    typedef att_bf16 M;
    typedef __nv_bfloat16 T;
    constexpr int D = 64;
    PK_SHARED(T, shared);
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int h = (int)(blockIdx.x % (unsigned)a.heads);
    const int part = (int)(blockIdx.x / (unsigned)a.heads); /* of the batch */
    const bool summed = EACH == 1 && g.runs;
    const int from = summed ? (int)((int64_t)part * a.batch / g.runs) : part;
    const int end = summed ? (int)((int64_t)(part + 1) * a.batch / g.runs) : part + 1;
    const float c = att_factor(a, h), inner = att_inner(a, h) * a.tau;
    const int first = warp * EACH;                     /* strip */
    T *const own = shared + first * 2 * STRIP * pitch; /* of each strip k, then v */
    T *const tiles = shared + g.strips * 2 * STRIP * pitch;
    T *const ds = tiles + 4 * TILE * pitch;
    float *const sums = (float *)(ds + 2 * g.strips * STRIP * DS_PITCH) + first * 16 * PK_WARP + lane;

    for (int x = 0; summed && x < g.tiles * 16 * EACH; x++)
        sums[(x / (16 * EACH) * g.strips * 16 + x % (16 * EACH)) * PK_WARP] = 0;
    for (int b = from; b < end; b++) {
        const int64_t bh = (int64_t)b * a.heads + h;
        const struct att_sight sight = att_sight_of(a, b);
        const struct att_draw draw = att_draw_of(a, bh);
        float dk[EACH][D / 8][4], dv[EACH][D / 8][4], total = 0;

        if (b > from)
            __syncthreads(); /* the keys before are still being read */
#pragma unroll
        for (int s = 0; s < EACH; s++) {
            T *const to = own + s * 2 * STRIP * pitch;

            att_zero(dk[s]);
            att_zero(dv[s]);
            att_copy<T>(to, pitch, a.k, b, h, (first + s) * STRIP, STRIP, sight.end, a, g.lanes_log, 0, 1);
            att_copy<T>(to + STRIP * pitch, pitch, a.v, b, h, (first + s) * STRIP, STRIP, sight.end, a,
                        g.lanes_log, 0, 1);
        }
        for (int t = -1; t < g.tiles; t++) {
            const T *const tile = tiles + (t & 1) * 2 * TILE * pitch;
            T *const next = tiles + (~t & 1) * 2 * TILE * pitch;
            T *const left = ds + (t & 1) * g.strips * STRIP * DS_PITCH;
            const int column0 = t * TILE;

            if (t + 1 < g.tiles) {
                att_copy<T>(next, pitch, a.q, b, h, column0 + TILE, TILE, a.nq, a, g.lanes_log, warp,
                            g.warps);
                att_copy<T>(next + TILE * pitch, pitch, a.dy, b, h, column0 + TILE, TILE, a.nq, a,
                            g.lanes_log, warp, g.warps);
            }
            pk_copy_commit();
#pragma unroll
            for (int s = 0; s < EACH; s++) {
                const int row0 = (first + s) * STRIP;
                float x[4][4], dp[4][4], by[8], delta[8];

                if (t < 0 || att_closed(sight, column0, TILE, row0))
                    continue;
#pragma unroll
                for (int n = 0; n < 8; n++)
                    att_row_statistics(a, sight, bh, b, h, column0 + n / 2 * 8 + lane % 4 * 2 + n % 2, &by[n],
                                       &delta[n]);
                total +=
                    att_tile_backward<M, POLY, true>(x, dp, a, sight, draw, h, c, own + s * 2 * STRIP * pitch,
                                                     tile, pitch, row0, column0, by, delta);
                if (summed)
                    ATT_EACH(4, n, e)
                    {
                        sums[((t * g.strips + s) * 16 + 4 * n + e) * PK_WARP] += dp[n][e];
                    }
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    T *const to = left + (row0 + lane / 4) * DS_PITCH + n * 8 + lane % 4 * 2;

                    *(uint32_t *)to = pk_pack(dp[n][0], dp[n][1]);
                    *(uint32_t *)(to + 8 * DS_PITCH) = pk_pack(dp[n][2], dp[n][3]);
                }
                M::template add<4, D>(dk[s], dp, tile, pitch, 0, a.d16);
                M::template add<4, D>(dv[s], x, tile + TILE * pitch, pitch, 0, a.d16);
            }
            pk_copy_wait<0>();
            __syncthreads();
            for (int u = warp; t >= 0 && u < a.d16 / 8; u += g.warps) {
                const int c0 = u / 2 * 16, i0 = column0 + u % 2 * STRIP;
                float dq[2][4];

                if (i0 >= a.nq)
                    continue;
                once_dq(dq, sight, g.strips, shared, pitch, left, i0, u % 2, c0);
                once_put(a.dq, dq, b, h, i0, a.nq, c0, a.d, inner);
            }
        }
#pragma unroll
        for (int s = 0; s < EACH; s++) {
            once_put(a.dk, dk[s], b, h, (first + s) * STRIP, a.nk, 0, a.d, inner);
            once_put(a.dv, dv[s], b, h, (first + s) * STRIP, a.nk, 0, a.d, c);
        }
        if (dscale) {
            double sum = total;

            for (int d = PK_WARP / 2; d > 0; d /= 2)
                sum += __shfl_xor_sync(PK_WARP_ALL, sum, d);
            if (lane == 0)
                dscale[bh * g.warps + warp] = sum;
        }
    }
    for (int t = 0; summed && t < g.tiles; t++)
        for (int x = 0; x < 16 * EACH; x++) {
            const int n = x % 16 / 4, e = x % 4, s = x / 16;
            const int i = t * TILE + n * 8 + lane % 4 * 2 + e % 2;
            const int j = (first + s) * STRIP + lane / 4 + e / 2 * 8;

            if (i < a.nq && j < a.nk)
                runs[(((int64_t)part * a.heads + h) * a.nq + i) * a.nk + j] =
                    sums[(t * g.strips * 16 + x) * PK_WARP];
        }
}

/* ---- host ---- */

static struct once once_of(const struct pk_backend *b, const struct att *a, bool with_bias)
{
    const size_t row = (size_t)a->d16 * sizeof(__nv_bfloat16) + 16;
    struct once g = {};

    g.strips = (a->nk + STRIP - 1) / STRIP;
    g.each = g.strips > WARPS_MOST ? 2 : 1;
    g.warps = (g.strips + g.each - 1) / g.each;
    g.strips = g.warps * g.each;
    g.tiles = (a->nq + TILE - 1) / TILE;
    for (g.lanes_log = 0; (8 << g.lanes_log) < a->d16 && g.lanes_log < 5; g.lanes_log++)
        ;
    g.shared = (size_t)(g.strips * 2 * STRIP + 4 * TILE) * row +
               (size_t)(2 * g.strips * STRIP * DS_PITCH) * sizeof(__nv_bfloat16);
    if (with_bias && g.each == 1) {
        const int64_t want =
            cuda_div_up((int64_t)att_multiprocessors(b) * BLOCKS, a->heads > 0 ? a->heads : 1);

        g.runs = (int32_t)(want < a->batch ? want : a->batch);
        g.shared += (size_t)g.tiles * (size_t)g.strips * 16 * PK_WARP * sizeof(float);
    }
    return g;
}

bool att_once_takes(const struct pk_backend *b, const struct att *a, enum att_math math)
{
    const int64_t pairs = (int64_t)a->batch * a->heads;

    /* With few pairs the two passes of bwd.cu fill more of the device, because they split a pair's rows. */
    return math == ATT_BF16 && a->d <= 64 && a->nk > 0 && a->nk <= KEYS_MOST && a->local == 0 &&
           (a->nk <= 64 || pairs * 2 >= att_multiprocessors(b)) &&
           once_of(b, a, false).shared <= att_shared_most(b);
}

int att_once_runs(const struct pk_backend *b, const struct att *a)
{
    const struct once g = once_of(b, a, true);

    /* Only if two blocks fit on a multiprocessor. */
    return a->has_bias && g.runs > 0 && g.shared <= att_shared_most(b) / 2 ? g.runs : 0;
}

int att_once_warps(const struct att *a)
{
    return once_of(NULL, a, false).warps;
}

template <bool POLY, int EACH>
static enum pd_err launch(struct pk_backend *b, const struct att *a, const struct once *g, double *dscale,
                          float *runs, struct pd_why *why)
{
    PK_CUDA_TRY(att_room(b, (const void *)(once_kernel<POLY, EACH>), g->shared));
    PK_LAUNCH((once_kernel<POLY, EACH>), dim3((unsigned)((runs ? g->runs : a->batch) * a->heads)),
              dim3((unsigned)(g->warps * PK_WARP)), g->shared, b->stream, *a, *g, dscale, runs);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

enum pd_err att_once(struct pk_backend *b, const struct att *a, double *dscale, float *runs,
                     struct pd_why *why)
{
    const struct once g = once_of(b, a, runs != NULL);

    if (a->power)
        return g.each == 1 ? launch<true, 1>(b, a, &g, dscale, runs, why)
                           : launch<true, 2>(b, a, &g, dscale, runs, why);
    return g.each == 1 ? launch<false, 1>(b, a, &g, dscale, runs, why)
                       : launch<false, 2>(b, a, &g, dscale, runs, why);
}
