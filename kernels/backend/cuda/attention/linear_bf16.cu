/* x and x^2 in linear form (linear.cu has the formulas) for bf16 with heads of a multiple of 8 up
 * to 64: rows are copied in the background in pieces of 16 bytes (one element at a time where strides do not
 * allow it), products are of bf16 (mma m16n8k16), features are made in the registers of their left side.
 *
 *   gather  F(x)' y: a warp owns tiles of 16 features by all channels, a chunk's tokens stream past
 *   sum     for each chunk, the weighted sum of the other chunks' f32 states that it sees, as bf16
 *   apply   F(x) St: a warp owns 64 tokens, the state streams past
 *   turn    dF = y St', and from it the gradient of x: a warp owns 32 tokens
 *
 * A tile of features is x_a x_b for one a and 16 b, for all blocks of b that end behind a: 2560 features at d
 * = 64 for the 2080 of x^2; those wholly behind a count twice, which is the state's business (an exact
 * factor). Four tiles with a .. a + 3 share their b: one ldmatrix is the left side of all of them before the
 * factor. In gather the factor is x_a of two tokens in a word, in apply and turn x_a of a row.
 *
 * Rounding: a feature of x^2 is rounded to bf16 as the square order rounds A; then a state in bf16 adds no
 * more than that. Those of x are exact, so that its state is kept as two bf16, upper and lower half of 16
 * bits, which costs a second product where bytes are what takes the time. All sums are f32.
 *
 * The error of a rounded feature is relative to |q|^2 |k|^2, which for a key nearly orthogonal to its query is much
 * larger than (q k)^2. Over many tokens the errors average out; for few tokens linear.cu uses TF32.
 *
 * Counted at d = 64, per token and pair. x: gather reads 256 bytes for 8 kFLOP; apply reads 128 and writes
 * 128 for 16: bytes count. Backward two gathers, an apply and two turns: 1280 bytes, of which 896 are the
 * floor (kernels/PERFORMANCE.md 2.1); forward 512, all floor. A block has 18 KiB in flight in gather, 36 in
 * the others, two to six of them on a multiprocessor.
 *
 * x^2: 328 kFLOP (266 useful) for each of gather, apply, turn; two of them forward, five
 * backward. A gather's block of 512 features does 256 FLOP for a byte that it reads from L2, an apply's of
 * 512 tokens 508. For 32 mma of a warp, gather has 5 ldmatrix, 4 loads of 8 bytes, 8 permutations and 16
 * packed multiplications; apply has 4 ldmatrix, 8 permutations, 16 multiplications; turn 4 shuffles and 16
 * f32 fma for 8: mma.sync is the limit of all three, and WGMMA would go further on sm 90. The f32 states of a
 * pair are 655 KiB a chunk: there are as few chunks as fill the device, one where pairs alone do, and in
 * causal order one for 1024 tokens. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

#define TOKENS 64 /* of a stage of gather */
#define ROWS 16
#define PITCH 72 /* of rows of up to 64 bf16: an odd number of 16-byte units */
#define GROUP 8  /* tiles of features in a stage of apply and turn */
#define GATHER_TILES 4
#define APPLY_STRIPS 4
#define TURN_STRIPS 2
#define WARPS_LEAST 2 /* of apply and turn, where more need more shared memory than a block has */
#define DX_PITCH 66
#define CHANNELS 64
#define SQUARES_FROM 256 /* tokens from which x^2 is taken */

typedef __nv_bfloat16 bf16;

namespace
{
struct fast {
    struct att a;
    struct att_rows x, y, out;
    bool x_keys, y_keys; /* masked like keys */
    bool own, add;       /* the state of the token's chunk; to what the output holds */
    bool before, behind; /* what a chunk sees */
    int32_t rows, chunk, chunks, tiles, warps;
    float *sums;    /* of gather, (pair, chunk, tile, 16, d16) */
    uint16_t *high; /* the state: as sums, or of one chunk where that is all */
    uint16_t *low;  /* of x */
    float factor;   /* tau^p */
    double *dscale;
    int32_t strips;
};
} // namespace

/* Tile t: features x_a x_b, b = *ret_b .. + 15. Returns a; of x^1, -1. */
__device__ __forceinline__ int tile_of(const struct att &a, int t, int *ret_b)
{
    int block = 0;

    if (a.degree == 1) {
        *ret_b = t * 16;
        return -1;
    }
    for (; t >= min(a.d, (block + 1) * 16); block++)
        t -= min(a.d, (block + 1) * 16);
    *ret_b = block * 16;
    return t;
}

/* Rows first .. first+n-1 of a slice, those that do not exist or are masked as zeros. By the whole block. */
__device__ __forceinline__ void rows_in(bf16 *to, const struct att_rows &x, const struct att &a,
                                        const struct att_sight &sight, int b, int h, int first, int n,
                                        int end, bool keys)
{
    const bf16 *const from = (const bf16 *)x.p + b * x.sb + h * x.sh;

    for (int u = (int)threadIdx.x; u < n * 8; u += (int)blockDim.x) {
        const int r = u / 8, c = u % 8 * 8, i = first + r;
        bool there = i < end && c < a.d;

        if (c >= a.d16)
            continue;
        if (there && keys)
            there = i < sight.end && (!sight.mask || sight.mask[i * sight.mask_j]);
        if (x.wide) {
            pk_copy16(to + r * PITCH + c, there ? from + (int64_t)i * x.sn + c : from, there);
            continue;
        }
        for (int e = 0; e < 8; e++)
            to[r * PITCH + c + e] = there ? from[(int64_t)i * x.sn + (c + e) * x.sd] : pk_narrow<bf16>(0.0f);
    }
}

/* The lower, or the upper, halves of two words, packed. */
__device__ __forceinline__ uint32_t both(uint32_t x, uint32_t y, int upper)
{
    return upper ? x >> 16 | (y & 0xffff0000u) : (x & 0xffffu) | y << 16;
}
__device__ __forceinline__ float half_of(uint32_t x, int upper)
{
    return __uint_as_float(upper ? x & 0xffff0000u : x << 16);
}

/* P: degree. blockIdx: (pair and chunk, 1, tiles). */
template <int P>
static __global__ void __launch_bounds__(P == 1 ? 128 : 256, P == 1 ? 5 : 1)
    gather_kernel(const struct fast j)
{
    constexpr int EACH = P == 1 ? 1 : GATHER_TILES;
    PK_SHARED(bf16, shared);
    const struct att &a = j.a;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP, g = lane / 4,
              t = lane % 4;
    const int64_t bh = blockIdx.x / (unsigned)j.chunks;
    const int chunk = (int)(blockIdx.x % (unsigned)j.chunks);
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    const int first = chunk * j.chunk, end = min(j.rows, first + j.chunk);
    const int tile = ((int)blockIdx.z * j.warps + warp) * EACH, stage = 2 * TOKENS * PITCH;
    const bool busy = tile < j.tiles;
    int b0 = 0;
    const int fa = busy ? tile_of(a, tile, &b0) : 0;
    float acc[EACH][CHANNELS / 8][4];

#pragma unroll
    for (int e = 0; e < EACH; e++)
        att_zero(acc[e]);
#define STAGE_IN(i0, which)                                                                                  \
    do {                                                                                                     \
        rows_in(shared + (which)*stage, j.x, a, sight, b, h, i0, TOKENS, end, j.x_keys);                     \
        rows_in(shared + (which)*stage + TOKENS * PITCH, j.y, a, sight, b, h, i0, TOKENS, end, j.y_keys);    \
    } while (0)
    if (first < end)
        STAGE_IN(first, 0);
    pk_copy_commit();
    for (int i0 = first, s = 0; i0 < end; i0 += TOKENS, s ^= 1) {
        const bf16 *const x = shared + s * stage, *const y = x + TOKENS * PITCH;

        if (i0 + TOKENS < end)
            STAGE_IN(i0 + TOKENS, s ^ 1);
        pk_copy_commit();
        pk_copy_wait<1>();
        __syncthreads();
        if (busy)
#pragma unroll
            for (int k = 0; k < TOKENS / 16; k++) {
                uint32_t xb[4], f[EACH][4];

                pk_ldmatrix_transposed(xb, x + (k * 16 + lane % 8 + lane / 16 * 8) * PITCH + b0 +
                                               lane / 8 % 2 * 8);
                if (P == 1) {
#pragma unroll
                    for (int r = 0; r < 4; r++)
                        f[0][r] = xb[r];
                } else {
                    const bf16 *const row = x + (k * 16 + 2 * t) * PITCH + fa;

#pragma unroll
                    for (int r = 0; r < 2; r++) { /* tokens 2t, 2t + 1 and 8 more */
                        const uint2 one = *(const uint2 *)(row + r * 8 * PITCH);
                        const uint2 two = *(const uint2 *)(row + r * 8 * PITCH + PITCH);

#pragma unroll
                        for (int e = 0; e < EACH; e++) {
                            const uint32_t xa = both(e < 2 ? one.x : one.y, e < 2 ? two.x : two.y, e % 2);

                            f[e][2 * r] = pk_mul_bf16(xb[2 * r], xa);
                            f[e][2 * r + 1] = pk_mul_bf16(xb[2 * r + 1], xa);
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < CHANNELS / 8; n += 2) {
                    uint32_t v[4];

                    if (n * 8 >= a.d16)
                        break;
                    pk_ldmatrix_transposed(v, y + (k * 16 + lane % 16) * PITCH + n * 8 + lane / 16 * 8);
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        pk_mma_bf16(acc[e][n], f[e], v[0], v[1]);
                        pk_mma_bf16(acc[e][n + 1], f[e], v[2], v[3]);
                    }
                }
            }
        __syncthreads();
    }
#undef STAGE_IN
    pk_copy_wait<0>();
    if (!busy)
        return;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        float *const to = j.sums + ((bh * j.chunks + chunk) * j.tiles + tile + e) * 16 * a.d16;

#pragma unroll
        for (int n = 0; n < CHANNELS / 8; n++) {
            const int c = n * 8 + 2 * t;

            if (c >= a.d16)
                break;
            *(float2 *)(to + g * a.d16 + c) = make_float2(acc[e][n][0], acc[e][n][1]);
            *(float2 *)(to + (g + 8) * a.d16 + c) = make_float2(acc[e][n][2], acc[e][n][3]);
        }
    }
}

/* The states that chunks see, weighted, as bf16: four elements a thread. */
static __global__ void sum_kernel(const struct fast j)
{
    const int64_t size = (int64_t)j.tiles * 16 * j.a.d16,
                  x = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const int64_t bh = x / size, at = x % size;
    float sum[4] = {0, 0, 0, 0}, weight = 1;
    int b0;

    if (bh >= (int64_t)j.a.batch * j.a.heads)
        return;
    if (j.a.degree == 2)
        weight = tile_of(j.a, (int)(at / (16 * j.a.d16)), &b0) < b0 ? 2.0f : 1.0f;
    for (int n = 0; n <= j.chunks; n++) {
        const bool all = !j.before && !j.behind;
        const int i = j.behind ? j.chunks - 1 - n : n;

        if (all ? n == j.chunks : n < j.chunks) {
            const int64_t to = (all ? bh : bh * j.chunks + i) * size + at;
            uint32_t high[2], low[2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float u = sum[2 * e] * weight, v = sum[2 * e + 1] * weight;

                high[e] = pk_pack(u, v);
                low[e] = pk_pack(u - half_of(high[e], 0), v - half_of(high[e], 1));
            }
            *(uint2 *)(j.high + to) = make_uint2(high[0], high[1]);
            if (j.low)
                *(uint2 *)(j.low + to) = make_uint2(low[0], low[1]);
        }
        if (n < j.chunks) {
            const float4 v = *(const float4 *)(j.sums + (bh * j.chunks + i) * size + at);

            sum[0] += v.x;
            sum[1] += v.y;
            sum[2] += v.z;
            sum[3] += v.w;
        }
    }
}

/* `tiles` tiles of a state from tile t on, to rows of PITCH. */
__device__ __forceinline__ void state_in(bf16 *to, const uint16_t *state, int t, int tiles, int d16)
{
    const int wide = d16 / 8;

    for (int u = (int)threadIdx.x; u < tiles * 16 * wide; u += (int)blockDim.x)
        pk_copy16(to + u / wide * PITCH + u % wide * 8, state + (int64_t)t * 16 * d16 + u * 8, true);
}

/* Two neighbours of a row of the output. */
__device__ __forceinline__ void put(const struct fast &j, int b, int h, int i, int c, float x, float y)
{
    bf16 *const row = (bf16 *)j.out.p + b * j.out.sb + h * j.out.sh + i * j.out.sn;

    if (i >= j.rows || c >= j.a.d)
        return;
    if (j.add) {
        const uint32_t held = *(const uint32_t *)(row + c);

        x += half_of(held, 0);
        y += half_of(held, 1);
    }
    *(uint32_t *)(row + c) = pk_pack(x, y);
}

/* Where the state of a block's tokens begins. */
__device__ __forceinline__ int64_t state_at(const struct fast &j, int64_t bh, int row0)
{
    return (j.own ? bh * j.chunks + row0 / j.chunk : bh) * j.tiles * 16 * j.a.d16;
}

/* Stages of a state: those of x are all of it, upper halves and then lower ones. */
template <int P>
__device__ __forceinline__ void stage_in(const struct fast &j, bf16 *to, int64_t at, int group)
{
    if (P == 1) {
        state_in(to, j.high + at, 0, j.tiles, j.a.d16);
        state_in(to + GROUP / 2 * 16 * PITCH, j.low + at, 0, j.tiles, j.a.d16);
    } else {
        state_in(to, j.high + at, group * GROUP, GROUP, j.a.d16);
    }
    pk_copy_commit();
}

/* The four factors x_a .. x_(a+3) of rows g and g + 8 of a strip. */
struct factors {
    uint2 row[2];
};
__device__ __forceinline__ struct factors factors_of(const bf16 *strip, int fa)
{
    const bf16 *const at = strip + (int)threadIdx.x % PK_WARP / 4 * PITCH + fa;
    const struct factors f = {{*(const uint2 *)at, *(const uint2 *)(at + 8 * PITCH)}};

    return f;
}
__device__ __forceinline__ uint32_t factor_word(const struct factors &f, int r, int e)
{
    return e < 2 ? f.row[r].x : f.row[r].y;
}

/* blockIdx: (pair, 1, rows). */
template <int P>
static __global__ void __launch_bounds__(P == 1 ? 128 : 256, P == 1 ? 2 : 1) apply_kernel(const struct fast j)
{
    PK_SHARED(bf16, shared);
    const struct att &a = j.a;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP, t = lane % 4;
    const int rows = j.warps * APPLY_STRIPS * ROWS, block0 = (int)blockIdx.z * rows;
    const int64_t bh = blockIdx.x, at = state_at(j, bh, block0);
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads), stage = GROUP * 16 * PITCH;
    const int groups = P == 1 ? 1 : j.tiles / GROUP;
    const struct att_sight sight = att_sight_of(a, b);
    bf16 *const x = shared + warp * APPLY_STRIPS * ROWS * PITCH, *const stages = shared + rows * PITCH;
    const float by = att_factor(a, h) * j.factor;
    float acc[APPLY_STRIPS][CHANNELS / 8][4];

#pragma unroll
    for (int s = 0; s < APPLY_STRIPS; s++)
        att_zero(acc[s]);
    rows_in(shared, j.x, a, sight, b, h, block0, rows, j.rows, j.x_keys);
    stage_in<P>(j, stages, at, 0);
    for (int f = 0; f < groups; f++) {
        if (f + 1 < groups)
            stage_in<P>(j, stages + (f + 1) % 2 * stage, at, f + 1);
        else
            pk_copy_commit();
        pk_copy_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int four = 0; four < (P == 1 ? 2 * j.tiles : GROUP); four += P == 1 ? 1 : 4) {
            const int half = P == 1 ? four / j.tiles : 0, tile = P == 1 ? four % j.tiles : f * GROUP + four;
            const bf16 *const state =
                stages + f % 2 * stage + (P == 1 ? half * (GROUP / 2) + tile : four) * 16 * PITCH;
            uint32_t xb[APPLY_STRIPS][4];
            struct factors xa[APPLY_STRIPS];
            int b0;
            const int fa = tile_of(a, tile, &b0);

#pragma unroll
            for (int s = 0; s < APPLY_STRIPS; s++) {
                pk_ldmatrix(xb[s], x + (s * ROWS + lane % 16) * PITCH + b0 + lane / 16 * 8);
                if (P == 2)
                    xa[s] = factors_of(x + s * ROWS * PITCH, fa);
            }
#pragma unroll
            for (int e = 0; e < (P == 1 ? 1 : 4); e++) {
                uint32_t p[APPLY_STRIPS][4];

#pragma unroll
                for (int s = 0; s < APPLY_STRIPS; s++)
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        p[s][r] = xb[s][r];
                        if (P == 2) {
                            const uint32_t w = factor_word(xa[s], r % 2, e);

                            p[s][r] = pk_mul_bf16(p[s][r], both(w, w, e % 2));
                        }
                    }
#pragma unroll
                for (int n = 0; n < CHANNELS / 8; n += 2) {
                    uint32_t v[4];

                    if (n * 8 >= a.d16)
                        break;
                    pk_ldmatrix_transposed(v, state + (e * 16 + lane % 16) * PITCH + n * 8 + lane / 16 * 8);
#pragma unroll
                    for (int s = 0; s < APPLY_STRIPS; s++) {
                        pk_mma_bf16(acc[s][n], p[s], v[0], v[1]);
                        pk_mma_bf16(acc[s][n + 1], p[s], v[2], v[3]);
                    }
                }
            }
        }
        __syncthreads();
    }
    pk_copy_wait<0>();
#pragma unroll
    for (int s = 0; s < APPLY_STRIPS; s++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < CHANNELS / 8; n++)
                put(j, b, h, block0 + (warp * APPLY_STRIPS + s) * ROWS + lane / 4 + 8 * r, n * 8 + 2 * t,
                    acc[s][n][2 * r] * by, acc[s][n][2 * r + 1] * by);
}

/* blockIdx: (pair, 1, rows). Shared memory: y, x (x^2, or for dscale), dx in f32 (x^2), stages. */
template <int P> static __global__ void __launch_bounds__(256, 1) turn_kernel(const struct fast j)
{
    PK_SHARED(bf16, shared);
    const struct att &a = j.a;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP, g = lane / 4,
              t = lane % 4;
    const int rows = j.warps * TURN_STRIPS * ROWS, block0 = (int)blockIdx.z * rows;
    const int row0 = block0 + warp * TURN_STRIPS * ROWS;
    const int64_t bh = blockIdx.x, at = state_at(j, bh, block0);
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads), stage = GROUP * 16 * PITCH;
    const int groups = P == 1 ? 1 : j.tiles / GROUP;
    const bool with_x = P == 2 || j.dscale;
    const struct att_sight sight = att_sight_of(a, b);
    bf16 *const stages = shared + rows * PITCH, *const all_x = stages + (P == 1 ? 1 : 2) * stage;
    const bf16 *const y = shared + warp * TURN_STRIPS * ROWS * PITCH, *const x = all_x + warp * TURN_STRIPS *
                                                                                             ROWS * PITCH;
    float *const dx = (float *)(all_x + rows * PITCH) + warp * TURN_STRIPS * ROWS * DX_PITCH;
    const float by = att_factor(a, h) * j.factor;
    uint32_t own[TURN_STRIPS][CHANNELS / 16][4];
    float sum[TURN_STRIPS][2][4], total[TURN_STRIPS] = {0};

    rows_in(shared, j.y, a, sight, b, h, block0, rows, j.rows, j.y_keys);
    if (with_x)
        rows_in(all_x, j.x, a, sight, b, h, block0, rows, j.rows, j.x_keys);
    stage_in<P>(j, stages, at, 0);
    for (int u = lane; P == 2 && u < TURN_STRIPS * ROWS * DX_PITCH; u += PK_WARP)
        dx[u] = 0;
#pragma unroll
    for (int s = 0; s < TURN_STRIPS; s++)
        att_zero(sum[s]);
    for (int f = 0; f < groups; f++) {
        if (f + 1 < groups)
            stage_in<P>(j, stages + (f + 1) % 2 * stage, at, f + 1);
        else
            pk_copy_commit();
        pk_copy_wait<1>();
        __syncthreads();
        if (f == 0)
#pragma unroll
            for (int s = 0; s < TURN_STRIPS; s++)
#pragma unroll
                for (int k = 0; k < CHANNELS / 16; k++)
                    if (k * 16 < a.d16)
                        pk_ldmatrix(own[s][k], y + (s * ROWS + lane % 16) * PITCH + k * 16 + lane / 16 * 8);
#pragma unroll 1
        for (int u = 0; u < (P == 1 ? j.tiles : GROUP); u++) {
            const bf16 *const state = stages + (P == 1 ? 0 : f % 2 * stage) + u * 16 * PITCH;
            float p[TURN_STRIPS][2][4];
            int b0;
            const int fa = tile_of(a, f * GROUP + u, &b0);

#pragma unroll
            for (int s = 0; s < TURN_STRIPS; s++)
                att_zero(p[s]);
#pragma unroll
            for (int half = 0; half < (P == 1 ? 2 : 1); half++)
#pragma unroll
                for (int k = 0; k < CHANNELS / 16; k++) {
                    uint32_t v[4];

                    if (k * 16 >= a.d16)
                        break;
                    pk_ldmatrix(v, state + (half * (GROUP / 2) * 16 + lane / 16 * 8 + lane % 8) * PITCH +
                                       k * 16 + lane / 8 % 2 * 8);
#pragma unroll
                    for (int s = 0; s < TURN_STRIPS; s++) {
                        pk_mma_bf16(p[s][0], own[s][k], v[0], v[1]);
                        pk_mma_bf16(p[s][1], own[s][k], v[2], v[3]);
                    }
                }
#pragma unroll
            for (int s = 0; s < TURN_STRIPS; s++) {
                uint32_t xb[4];

                if (P == 1) {
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const int c = b0 + n * 8 + 2 * t;

                            put(j, b, h, row0 + s * ROWS + g + 8 * r, c, p[s][n][2 * r] * by,
                                p[s][n][2 * r + 1] * by);
                            if (j.dscale) {
                                const uint32_t w =
                                    *(const uint32_t *)(x + (s * ROWS + g + 8 * r) * PITCH + c);

                                total[s] +=
                                    half_of(w, 0) * p[s][n][2 * r] + half_of(w, 1) * p[s][n][2 * r + 1];
                            }
                        }
                    continue;
                }
                pk_ldmatrix(xb, x + (s * ROWS + lane % 16) * PITCH + b0 + lane / 16 * 8);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float xa = pk_float(x[(s * ROWS + g + 8 * r) * PITCH + fa]);
                    float along = 0;

                    /* d(x_a x_b): to x_b here, to x_a along the row. */
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            sum[s][n][2 * r + e] += p[s][n][2 * r + e] * xa;
                            along += p[s][n][2 * r + e] * half_of(xb[2 * n + r], e);
                        }
                    along += __shfl_xor_sync(PK_WARP_ALL, along, 1);
                    along += __shfl_xor_sync(PK_WARP_ALL, along, 2);
                    if (t == 0)
                        dx[(s * ROWS + g + 8 * r) * DX_PITCH + fa] += along;
                }
            }
            /* The last tile of a block of b: its sums are added to the others. */
            if (P == 2 && fa + 1 == min(a.d, b0 + 16)) {
                __syncwarp();
#pragma unroll
                for (int s = 0; s < TURN_STRIPS; s++) {
                    ATT_EACH(2, n, e)
                    {
                        dx[(s * ROWS + g + e / 2 * 8) * DX_PITCH + b0 + n * 8 + 2 * t + e % 2] +=
                            sum[s][n][e];
                    }
                    att_zero(sum[s]);
                }
                __syncwarp();
            }
        }
        __syncthreads();
    }
    pk_copy_wait<0>();
#pragma unroll 1
    for (int s = 0; P == 2 && s < TURN_STRIPS; s++)
        for (int u = lane; u < ROWS * CHANNELS / 2; u += PK_WARP) {
            const int r = s * ROWS + u / (CHANNELS / 2), c = u % (CHANNELS / 2) * 2;

            if (c < a.d) {
                const float2 v = *(const float2 *)(dx + r * DX_PITCH + c);
                const uint32_t w = *(const uint32_t *)(x + r * PITCH + c);

                put(j, b, h, row0 + r, c, v.x * by, v.y * by);
                if (s == 0)
                    total[0] += half_of(w, 0) * v.x + half_of(w, 1) * v.y;
                else
                    total[TURN_STRIPS - 1] += half_of(w, 0) * v.x + half_of(w, 1) * v.y;
            }
        }
    if (!j.dscale)
        return;
#pragma unroll
    for (int s = 0; s < TURN_STRIPS; s++) {
        double each = total[s];

        for (int d = PK_WARP / 2; d > 0; d /= 2)
            each += __shfl_xor_sync(PK_WARP_ALL, each, d);
        if (lane == 0 && row0 + s * ROWS < j.rows)
            j.dscale[bh * j.strips + row0 / ROWS + s] = each * (double)(j.factor / (float)a.degree);
    }
}

/* ---- host ---- */

bool att_linear_bf16_takes(const struct pk_call *c, const struct att *a)
{
    const int n = a->nq < a->nk ? a->nq : a->nk;

    return c->in[0].dtype == PK_BF16 && a->d % 8 == 0 && a->d <= CHANNELS && a->row_power == 0 &&
           (a->degree == 1 || n >= SQUARES_FROM);
}

/* Blocks of a chunk in gather, and warps of a block. */
static int gather_blocks(int degree, int tiles, int *ret_warps)
{
    const int each = degree == 1 ? 1 : GATHER_TILES, most = degree == 1 ? 4 : 8;
    const int units = (tiles + each - 1) / each;

    *ret_warps = units < most ? units : most;
    return (units + *ret_warps - 1) / *ret_warps;
}

int att_linear_bf16_chunk(const struct pk_backend *b, const struct att *a)
{
    const int n = a->nk > a->nq ? a->nk : a->nq;
    const int64_t pairs = (int64_t)a->batch * a->heads;
    int64_t blocks, want, most = cuda_div_up(n > 0 ? n : 1, 256);
    int warps;

    if (a->causal)
        return a->degree == 2 && n > 4096 ? 1024 : 256;
    blocks = pairs * (a->degree == 1 ? 1 : gather_blocks(2, 160, &warps));
    want = cuda_div_up((int64_t)att_multiprocessors(b) * (a->degree == 1 ? 10 : 2), blocks > 0 ? blocks : 1);
    want = want < most ? want : most;
    return (int)(cuda_div_up(cuda_div_up(n > 0 ? n : 1, want), TOKENS) * TOKENS);
}

static struct fast fast_of(const struct pk_backend *b, const struct att *a)
{
    const int n = a->nk > a->nq ? a->nk : a->nq;
    struct fast j = {};

    j.a = *a;
    j.chunk = att_linear_bf16_chunk(b, a);
    j.chunks = (int32_t)cuda_div_up(n > 0 ? n : 1, j.chunk);
    j.own = j.add = a->causal;
    j.factor = a->degree == 1 ? a->tau : a->tau * a->tau;
    for (int block = 0; block * 16 < a->d; block++)
        j.tiles += a->degree == 1 ? 1 : a->d < (block + 1) * 16 ? a->d : (block + 1) * 16;
    return j;
}

/* Elements of the states of all pairs: f32 sums of chunks, then what chunks see. */
static size_t state_size(const struct fast *j, bool seen)
{
    const int chunks = seen && !j->own ? 1 : j->chunks;

    return (size_t)j->a.batch * (size_t)j->a.heads * (size_t)chunks * (size_t)j->tiles * 16 *
           (size_t)j->a.d16;
}

size_t att_linear_bf16_workspace(const struct pk_backend *b, const struct att *a)
{
    const struct fast j = fast_of(b, a);

    return (state_size(&j, false) * 4 + state_size(&j, true) * 4 + 255) / 256 * 256;
}

template <int P>
static enum pd_err gather(struct pk_backend *b, const struct fast *from, bool behind, struct pd_why *why)
{
    const int64_t pairs = (int64_t)from->a.batch * from->a.heads;
    const size_t bytes = 4 * TOKENS * PITCH * sizeof(bf16);
    struct fast j = *from;
    unsigned blocks;

    j.before = j.own && !behind;
    j.behind = j.own && behind;
    blocks = (unsigned)gather_blocks(P, j.tiles, &j.warps);
    PK_CUDA_TRY(att_room(b, (const void *)gather_kernel<P>, bytes));
    PK_LAUNCH((gather_kernel<P>), dim3((unsigned)(pairs * j.chunks), 1, blocks),
              dim3((unsigned)(j.warps * PK_WARP)), bytes, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    PK_LAUNCH(sum_kernel, dim3((unsigned)cuda_div_up(pairs * j.tiles * 16 * j.a.d16 / 4, 256)), dim3(256), 0,
              b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static enum pd_err too_much_shared(const struct pk_backend *b, struct pd_why *why)
{
    return pd_fail(
        why, PD_ERR_UNSUPPORTED,
        "attention: the linear form needs more shared memory than the %zu bytes that a block has here",
        (size_t)b->shared_most);
}

template <int P> static enum pd_err apply(struct pk_backend *b, const struct fast *from, struct pd_why *why)
{
    struct fast j = *from;
    size_t bytes;
    int rows;

    for (j.warps = P == 1 || (j.own && j.chunk % 512) ? 4 : 8;; j.warps /= 2) {
        rows = j.warps * APPLY_STRIPS * ROWS;
        bytes = (size_t)(rows + (P == 1 ? 1 : 2) * GROUP * 16) * PITCH * sizeof(bf16);
        if (bytes <= b->shared_most || j.warps == WARPS_LEAST)
            break;
    }
    if (bytes > b->shared_most)
        return too_much_shared(b, why);
    PK_CUDA_TRY(att_room(b, (const void *)apply_kernel<P>, bytes));
    PK_LAUNCH((apply_kernel<P>),
              dim3((unsigned)(j.a.batch * j.a.heads), 1, (unsigned)cuda_div_up(j.rows, rows)),
              dim3((unsigned)(j.warps * PK_WARP)), bytes, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <int P> static enum pd_err turn(struct pk_backend *b, const struct fast *from, struct pd_why *why)
{
    struct fast j = *from;
    size_t bytes;
    int rows;

    for (j.warps = 8;; j.warps /= 2) {
        rows = j.warps * TURN_STRIPS * ROWS;
        bytes = (size_t)(rows * (P == 2 || j.dscale ? 2 : 1) + (P == 1 ? 1 : 2) * GROUP * 16) * PITCH *
                sizeof(bf16);
        bytes += P == 2 ? (size_t)rows * DX_PITCH * sizeof(float) : 0;
        if (bytes <= b->shared_most || j.warps == WARPS_LEAST)
            break;
    }
    if (bytes > b->shared_most)
        return too_much_shared(b, why);
    PK_CUDA_TRY(att_room(b, (const void *)turn_kernel<P>, bytes));
    PK_LAUNCH((turn_kernel<P>),
              dim3((unsigned)(j.a.batch * j.a.heads), 1, (unsigned)cuda_div_up(j.rows, rows)),
              dim3((unsigned)(j.warps * PK_WARP)), bytes, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static struct fast fast_in(const struct pk_backend *b, const struct att *a, void *work)
{
    struct fast j = fast_of(b, a);

    j.sums = (float *)work;
    j.high = (uint16_t *)(j.sums + state_size(&j, false));
    j.low = a->degree == 1 ? j.high + state_size(&j, true) : NULL;
    return j;
}

/* F(K)' V over the keys that queries see. */
template <int P> static enum pd_err gather_keys(struct pk_backend *b, struct fast *j, struct pd_why *why)
{
    j->x = j->a.k;
    j->y = j->a.v;
    j->x_keys = j->y_keys = true;
    j->rows = j->a.nk;
    return gather<P>(b, j, false, why);
}
static void queries(struct fast *j, const struct att_rows *x)
{
    j->x = *x;
    j->x_keys = j->y_keys = false;
    j->rows = j->a.nq;
}

template <int P>
static enum pd_err forward(struct pk_backend *b, const struct att *a, void *work, struct pd_why *why)
{
    struct fast j = fast_in(b, a, work);
    enum pd_err err = gather_keys<P>(b, &j, why);

    if (err != PD_OK || a->nq == 0)
        return err;
    queries(&j, &a->q);
    j.out = a->y;
    return apply<P>(b, &j, why);
}

template <int P>
static enum pd_err backward(struct pk_backend *b, const struct att *a, void *work, double *dscale, int strips,
                            struct pd_why *why)
{
    struct fast j = fast_in(b, a, work);
    enum pd_err err = gather_keys<P>(b, &j, why);

    queries(&j, &a->q);
    j.y = a->dy;
    j.out = a->dq;
    j.dscale = dscale;
    j.strips = strips;
    if (err == PD_OK && a->nq > 0)
        err = turn<P>(b, &j, why);
    j.dscale = NULL;
    if (err == PD_OK)
        err = gather<P>(b, &j, true, why);
    if (err != PD_OK || a->nk == 0)
        return err;
    j.x = a->k;
    j.x_keys = true;
    j.rows = a->nk;
    j.out = a->dv;
    err = apply<P>(b, &j, why);
    j.y = a->v;
    j.y_keys = true;
    j.out = a->dk;
    return err == PD_OK ? turn<P>(b, &j, why) : err;
}

enum pd_err att_linear_bf16(struct pk_backend *b, const struct att *a, void *work, struct pd_why *why)
{
    return a->degree == 1 ? forward<1>(b, a, work, why) : forward<2>(b, a, work, why);
}

enum pd_err att_linear_bf16_bwd(struct pk_backend *b, const struct att *a, void *work, double *dscale,
                                int strips, struct pd_why *why)
{
    return a->degree == 1 ? backward<1>(b, a, work, dscale, strips, why)
                          : backward<2>(b, a, work, dscale, strips, why);
}
