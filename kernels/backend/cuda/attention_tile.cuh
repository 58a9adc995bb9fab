/* kernels/backend/cuda/attention_tile.cuh: what the kernels of attention share.
 *
 * One scheme serves forward and backward. A warp owns 16 rows ("strip") of one (batch, head) pair: queries,
 * or keys where gradients of keys are summed. The other side streams past in tiles of TILE rows through
 * shared memory, copied in the background, so a strip's products are
 *
 *     X (16, TILE) = own tile'        sums (16, d) += f(X) tile
 *
 * and what sits between them (logit bias, masks, phi, dropout) happens in the registers that hold X. The
 * warps of a block share its tiles; where rows are few, a block takes several pairs, each with warps and
 * tiles of its own (windows of 49 tokens, decoding); where a whole side of a pair fits in shared memory it is
 * read once and its strips take turns.
 *
 * Three arithmetics share all of it, differing in `scores` and `add` alone: bf16 (mma m16n8k16), TF32 (mma
 * m16n8k8 of f32 data), f32 (no tensor cores). Sums are f32 in all of them. In each a lane holds of X and of
 * the sums rows g and g + 8, columns 8 n + 2 t and the next, g = lane / 4, t = lane % 4: the layout of mma.
 *
 * Rows in shared memory are 16 bytes longer than their data: an odd number of 16-byte units for any d, so
 * that the eight rows of an ldmatrix, and the strided reads of f32, fall on different banks without a
 * swizzle. Channels from d to a multiple of 16 are zeros there. */
#pragma once

#include <math.h>

#include "kernels/backend/cuda/attention.h"
#include "kernels/backend/cuda/ptx.cuh"
#include "kernels/base/philox.h"

#define STRIP 16
#define TILE 32

/* One (b, h) slice of a tensor of rows: element (i, c) at p + b sb + h sh + i sn + c sd. */
struct att_rows {
    void *p;
    int64_t sb, sh, sn, sd;
    bool wide; /* rows can be copied in 16-byte pieces */
};

struct att {
    int32_t batch, heads, nq, nk, d, d16; /* d16: d up to a multiple of 16 */
    int32_t phi, degree;
    bool causal, normalised, has_bias;
    float tau, add, factor, row_power; /* factor: the constant part of c */
    struct att_rows q, k, v, y, dy, dq, dk, dv;
    const float *scale;
    int64_t scale_step;
    const float *bias;
    int64_t bias_h, bias_i, bias_j;
    const uint8_t *mask; /* of keys: windows 0, mask_i 0 */
    int64_t mask_b, mask_i, mask_j;
    int32_t windows;
    const int32_t *length;
    int64_t length_step;
    const int32_t *rng;
    int64_t rng_step;
    uint32_t share_rows; /* rows of A in one share of a batch, if rng names the share; else 0 */
    uint32_t threshold, stream;
    float kept; /* factor on what dropout leaves */
    const float *sums_in;
    int64_t sums_b, sums_h, sums_i;
    float *sums;
    const float *delta; /* rowsum(dY Y), (B, H, Nq); where rows are normalised */
    int32_t local;      /* > 0: a query sees nothing before its run of so many; a multiple of 64; causal */
    int32_t after;      /* first input that ATTENTION does not have */
};

/* How the strips of a launch are dealt out. */
struct att_deal {
    int64_t pairs;     /* (b, h, part of the keys) */
    int32_t per_block; /* pairs of a block, ... */
    int32_t warps;     /* ... warps of each, ... */
    int32_t rounds;    /* ... and strips that a warp takes one after the other; > 1 only when resident */
    int32_t chunks;    /* blocks of a pair */
    int32_t tiles;     /* of a pair at most; buffers when resident */
    int32_t stages;    /* buffers of tiles */
    bool resident;     /* each tile has its buffer */
    int32_t parts, part_rows; /* the streamed side in parts: part_rows is a multiple of the tile */
    int32_t lanes_log;        /* lanes that copy one row, as a power of two */
    size_t shared;
};

/* ---- what is visible, and factors ---- */

__device__ __forceinline__ int att_length(const struct att &a, int b)
{
    return a.length[b * a.length_step];
}
/* Keys before the first that `length` masks. */
__device__ __forceinline__ int att_end(const struct att &a, int b)
{
    return a.length ? max(0, min(a.nk, att_length(a, b))) : a.nk;
}
/* Causal: query i sees keys j <= i + shift. */
__device__ __forceinline__ int att_shift(const struct att &a, int b)
{
    return (a.length ? att_length(a, b) : a.nk) - a.nq;
}
__device__ __forceinline__ float att_row_factor(const struct att &a, int shift, int i)
{
    return powf((float)max(1, i + 1 + shift), -a.row_power);
}
__device__ __forceinline__ float att_factor(const struct att &a, int h)
{
    return a.scale ? a.factor * a.scale[h * a.scale_step] : a.factor;
}
/* What multiplies dS at the end: c and p here, or nothing where dS holds c already. */
__device__ __forceinline__ float att_inner(const struct att &a, int h)
{
    if (a.normalised)
        return 1;
    return a.phi == PK_PHI_POLY ? att_factor(a, h) * (float)a.degree : att_factor(a, h);
}

/* The masks of one pair. */
struct att_sight {
    int end, shift, local;
    bool causal;
    int nq;
    const uint8_t *mask;
    int64_t mask_i, mask_j;
};

__device__ __forceinline__ struct att_sight att_sight_of(const struct att &a, int b)
{
    struct att_sight s = {att_end(a, b), att_shift(a, b), a.local,  a.causal,
                          a.nq,          a.mask,          a.mask_i, a.mask_j};

    if (a.mask)
        s.mask += (a.windows ? b % a.windows : b) * a.mask_b;
    return s;
}
/* Whether all of i0 .. i0+ni-1 see all of j0 .. j0+nj-1. */
__device__ __forceinline__ bool att_open(const struct att_sight &s, int i0, int ni, int j0, int nj)
{
    return !s.mask && i0 + ni <= s.nq && j0 + nj <= s.end && (!s.causal || j0 + nj - 1 <= i0 + s.shift);
}
/* Whether nobody of i0 .. i0+ni-1 sees any of j0 ... */
__device__ __forceinline__ bool att_closed(const struct att_sight &s, int i0, int ni, int j0)
{
    return i0 >= s.nq || j0 >= s.end || (s.causal && j0 > i0 + ni - 1 + s.shift) ||
           (s.local && j0 / s.local < i0 / s.local);
}
__device__ __forceinline__ bool att_seen(const struct att_sight &s, int i, int j)
{
    return i < s.nq && j < s.end && (!s.causal || j <= i + s.shift) &&
           (!s.mask || __ldg(s.mask + i * s.mask_i + j * s.mask_j));
}

/* ---- dropout on A (PK_OP_DROPOUT in op.h) ---- */

struct att_draw {
    uint32_t k0, k1, step, stream, threshold, row; /* row: of query 0 */
};

__device__ __forceinline__ struct att_draw att_draw_of(const struct att &a, int64_t pair)
{
    struct att_draw d = {0, 0, 0, a.stream, a.threshold, (uint32_t)(pair * a.nq)};

    if (a.rng) {
        d.k0 = (uint32_t)a.rng[0];
        d.k1 = (uint32_t)a.rng[a.rng_step];
        d.step = (uint32_t)a.rng[2 * a.rng_step];
        if (a.share_rows)
            d.row += (uint32_t)a.rng[3 * a.rng_step] * a.share_rows;
    }
    return d;
}
/* Bit w: query i keeps key j, j being 16 w more than `key`'s place in its 64. */
__device__ __forceinline__ uint32_t att_draw(const struct att_draw &d, int i, int key)
{
    uint32_t k0 = d.k0, k1 = d.k1;
    uint32_t c0 = (uint32_t)(key / 64 * 16 + key % 16), c1 = d.row + (uint32_t)i, c2 = d.step, c3 = d.stream;

    for (int round = 0; round < PD_PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)PD_PHILOX_M0 * c0, p1 = (uint64_t)PD_PHILOX_M1 * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PD_PHILOX_W0;
        k1 += PD_PHILOX_W1;
    }
    return (uint32_t)(c0 >= d.threshold) | (uint32_t)(c1 >= d.threshold) << 1 |
           (uint32_t)(c2 >= d.threshold) << 2 | (uint32_t)(c3 >= d.threshold) << 3;
}

/* ---- copies ---- */

/* Rows first .. first+n-1 of a slice, of which those before `end` exist, to shared memory: by the lanes of
 * `warps` warps, of which this is `warp`. */
template <typename T>
__device__ __forceinline__ void att_copy(T *to, int pitch, const struct att_rows &x, int64_t b, int64_t h,
                                         int first, int n, int end, const struct att &a, int lanes_log,
                                         int warp, int warps)
{
    const int wide = 16 / (int)sizeof(T), lane = (int)threadIdx.x % PK_WARP, step = PK_WARP >> lanes_log;
    const int lanes = 1 << lanes_log;
    const T *from = (const T *)x.p + b * x.sb + h * x.sh;

    for (int r = warp * step + (lane >> lanes_log); r < n; r += warps * step)
        for (int c = (lane & (lanes - 1)) * wide; c < a.d16; c += lanes * wide) {
            T *at = to + r * pitch + c;
            const bool row = first + r < end;

            if (x.wide) {
                const bool there = row && c < a.d;

                pk_copy16(at, there ? from + (int64_t)(first + r) * x.sn + c : from, there);
            } else {
                for (int e = 0; e < wide; e++)
                    at[e] = row && c + e < a.d ? from[(int64_t)(first + r) * x.sn + (c + e) * x.sd]
                                               : pk_narrow<T>(0.0f);
            }
        }
}

/* Two neighbours of a row of an output; c is even. */
template <typename T> __device__ __forceinline__ void att_store(T *row, int c, int d, float x, float y);
template <> __device__ __forceinline__ void att_store<float>(float *row, int c, int d, float x, float y)
{
    if (c + 1 < d && d % 2 == 0) {
        *(float2 *)(row + c) = make_float2(x, y);
        return;
    }
    if (c < d)
        row[c] = x;
    if (c + 1 < d)
        row[c + 1] = y;
}
template <>
__device__ __forceinline__ void att_store<__nv_bfloat16>(__nv_bfloat16 *row, int c, int d, float x, float y)
{
    if (c + 1 < d && d % 2 == 0) {
        *(uint32_t *)(row + c) = pk_pack(x, y);
        return;
    }
    if (c < d)
        row[c] = pk_narrow<__nv_bfloat16>(x);
    if (c + 1 < d)
        row[c + 1] = pk_narrow<__nv_bfloat16>(y);
}

/* ---- the three arithmetics ----
 *
 * hold: the strip's fragments, kept in registers where D is small. scores: s (16, 8 NT) += own tile'. add:
 * acc (16, D) += p tile, of the channels from `c0` on; p as `scores` left it. */

struct att_bf16 {
    typedef __nv_bfloat16 T;
    static const int STEP = 16;
    static const int PAD = 8;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

        pk_ldmatrix(f, own + lane % 16 * pitch + k * 16 + lane / 16 * 8);
    }
    template <int NT>
    static __device__ __forceinline__ void step(float (&s)[NT][4], const uint32_t f[4], const T *tile,
                                                int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];

            pk_ldmatrix(b, tile + (n * 8 + lane / 16 * 8 + lane % 8) * pitch + k * 16 + lane / 8 % 2 * 8);
            pk_mma_bf16(s[n], f, b[0], b[1]);
            pk_mma_bf16(s[n + 1], f, b[2], b[3]);
        }
    }
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
        for (int k = 0; k < NT / 2; k++) {
            const uint32_t f[4] = {pk_pack(p[2 * k][0], p[2 * k][1]), pk_pack(p[2 * k][2], p[2 * k][3]),
                                   pk_pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                                   pk_pack(p[2 * k + 1][2], p[2 * k + 1][3])};

#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                uint32_t b[4];

                if (c0 + n * 8 >= d16)
                    break;
                pk_ldmatrix_transposed(b, tile + (k * 16 + lane % 16) * pitch + c0 + n * 8 + lane / 16 * 8);
                pk_mma_bf16(acc[n], f, b[0], b[1]);
                pk_mma_bf16(acc[n + 1], f, b[2], b[3]);
            }
        }
    }
};

struct att_tf32 {
    typedef float T;
    static const int STEP = 8;
    static const int PAD = 4;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;
        const T *at = own + g * pitch + k * 8 + t;

        f[0] = pk_tf32(at[0]);
        f[1] = pk_tf32(at[8 * pitch]);
        f[2] = pk_tf32(at[4]);
        f[3] = pk_tf32(at[8 * pitch + 4]);
    }
    template <int NT>
    static __device__ __forceinline__ void step(float (&s)[NT][4], const uint32_t f[4], const T *tile,
                                                int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

#pragma unroll
        for (int n = 0; n < NT; n++) {
            const T *at = tile + (n * 8 + g) * pitch + k * 8 + t;

            pk_mma_tf32(s[n], f, pk_tf32(at[0]), pk_tf32(at[4]));
        }
    }
    /* The order of the eight rows of a step is free: rows 2t and 2t + 1, whose p a lane holds, take the
     * places t and t + 4. */
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

#pragma unroll
        for (int k = 0; k < NT; k++) {
            const uint32_t f[4] = {pk_tf32(p[k][0]), pk_tf32(p[k][2]), pk_tf32(p[k][1]), pk_tf32(p[k][3])};
            const T *at = tile + (k * 8 + 2 * t) * pitch + c0 + g;

#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                if (c0 + n * 8 >= d16)
                    break;
                pk_mma_tf32(acc[n], f, pk_tf32(at[n * 8]), pk_tf32(at[pitch + n * 8]));
            }
        }
    }
};

struct att_f32 {
    typedef float T;
    static const int STEP = 8;
    static const int PAD = 4;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        (void)f, (void)own, (void)pitch, (void)k;
    }
    template <int NT>
    static __device__ __forceinline__ void rows(float (&s)[NT][4], const T *own, const T *tile, int pitch,
                                                int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

        for (int c = 0; c < d16; c += 4) {
            const float4 a = *(const float4 *)(own + g * pitch + c);
            const float4 b = *(const float4 *)(own + (g + 8) * pitch + c);

#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float4 x = *(const float4 *)(tile + (n * 8 + 2 * t + e) * pitch + c);

                    s[n][e] += a.x * x.x + a.y * x.y + a.z * x.z + a.w * x.w;
                    s[n][e + 2] += b.x * x.x + b.y * x.y + b.z * x.z + b.w * x.w;
                }
        }
    }
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, t = lane % 4;

#pragma unroll
        for (int k = 0; k < NT; k++)
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float a = __shfl_sync(PK_WARP_ALL, p[k][e], lane - t + u);
                    const float b = __shfl_sync(PK_WARP_ALL, p[k][e + 2], lane - t + u);
                    const T *at = tile + (k * 8 + 2 * u + e) * pitch + c0 + 2 * t;

#pragma unroll
                    for (int n = 0; n < D / 8; n++) {
                        if (c0 + n * 8 >= d16)
                            break;
                        acc[n][0] += a * at[n * 8];
                        acc[n][1] += a * at[n * 8 + 1];
                        acc[n][2] += b * at[n * 8];
                        acc[n][3] += b * at[n * 8 + 1];
                    }
                }
    }
};

/* s += own tile', with the strip in shared memory. */
template <class M, int NT>
__device__ __forceinline__ void att_scores(float (&s)[NT][4], const typename M::T *own,
                                           const typename M::T *tile, int pitch, int d16)
{
#pragma unroll 1
    for (int k = 0; k < d16 / M::STEP; k++) {
        uint32_t f[4];

        M::fragment(f, own, pitch, k);
        M::template step<NT>(s, f, tile, pitch, k);
    }
}
template <>
__device__ __forceinline__ void att_scores<att_f32, 4>(float (&s)[4][4], const float *own, const float *tile,
                                                       int pitch, int d16)
{
    att_f32::rows<4>(s, own, tile, pitch, d16);
}

template <int N> __device__ __forceinline__ void att_zero(float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = 0;
}

/* ---- phi ---- */

/* x^n, n >= 1 */
__device__ __forceinline__ float att_power(float x, int n)
{
    float r = x;

    for (int i = 1; i < n; i++)
        r *= x;
    return r;
}
__device__ __forceinline__ float att_sigmoid(float x)
{
    return pk_reciprocal(1.0f + __expf(-x));
}
/* Of 2x, with the multiple of 2 pi taken out first: the fast sine is exact to 2^-21 within one period alone.
 */
__device__ __forceinline__ float att_turn(float x)
{
    const float r = x * 0.318309886183790672f;

    return (r - rintf(r)) * 6.28318530717958648f;
}

/* f(n, e) of all that a lane holds of a tile. */
#define ATT_EACH(NT, n, e)                                                                                   \
    _Pragma("unroll") for (int n = 0; n < (NT); n++) _Pragma("unroll") for (int e = 0; e < 4; e++)

/* x -> tau x + bias, for queries i and keys j: of an own side of queries rows are i, else columns. */
template <int NT, bool KEYS>
__device__ __forceinline__ void att_logits(float (&x)[NT][4], const struct att &a, int h, int row, int column)
{
    const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

    ATT_EACH(NT, n, e)
    {
        x[n][e] = a.tau * x[n][e] + a.add;
    }
    if (!a.bias)
        return;
    ATT_EACH(NT, n, e)
    {
        const int r = row + g + e / 2 * 8, c = column + n * 8 + 2 * t + e % 2;
        const int i = KEYS ? c : r, j = KEYS ? r : c;

        if (i < a.nq && j < a.nk)
            x[n][e] += __ldg(a.bias + h * a.bias_h + i * a.bias_i + j * a.bias_j);
    }
}

/* Bit 4 n + e: the pair is seen. NT <= 8. */
template <int NT, bool KEYS>
__device__ __forceinline__ uint32_t att_seen_bits(const struct att_sight &s, int row, int column)
{
    const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;
    uint32_t bits = 0;

    ATT_EACH(NT, n, e)
    {
        const int r = row + g + e / 2 * 8, c = column + n * 8 + 2 * t + e % 2;

        bits |= (uint32_t)att_seen(s, KEYS ? c : r, KEYS ? r : c) << (4 * n + e);
    }
    return bits;
}

/* Bit 4 n + e: dropout keeps the pair. column is a multiple of 16. */
template <int NT, bool KEYS>
__device__ __forceinline__ uint32_t att_kept_bits(const struct att_draw &d, int row, int column)
{
    const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;
    uint32_t bits = 0;

    if constexpr (KEYS) {
        for (int n = 0; n < NT; n++)
            for (int e = 0; e < 4; e++) {
                const int j = row + g + e / 2 * 8;

                bits |= (att_draw(d, column + n * 8 + 2 * t + e % 2, j) >> (j % 64 / 16) & 1) << (4 * n + e);
            }
    } else {
        /* One drawing serves the columns c, c + 16, .. of 64. */
        for (int q = 0; q < 8; q++) {
            const int c = q / 2 % 2 * 8 + 2 * t + q % 2, half = q / 4;

            for (int k0 = 0; k0 < NT * 8;) {
                const int at = (column + k0) % 64, some = min(NT * 8 - k0, 64 - at);
                const uint32_t words = att_draw(d, row + g + half * 8, column + k0 + c) >> (at / 16);

                for (int w = 0; w < some / 16; w++)
                    bits |= (words >> w & 1) << (4 * ((k0 / 16 + w) * 2 + q / 2 % 2) + 2 * half + q % 2);
                k0 += some;
            }
        }
    }
    return bits;
}

/* x <- keep ? x factor : 0 */
template <int NT> __device__ __forceinline__ void att_drop(float (&x)[NT][4], uint32_t kept, float factor)
{
    ATT_EACH(NT, n, e)
    {
        x[n][e] = kept >> (4 * n + e) & 1 ? x[n][e] * factor : 0;
    }
}
template <int NT> __device__ __forceinline__ void att_hide(float (&x)[NT][4], uint32_t seen)
{
    ATT_EACH(NT, n, e)
    {
        if (!(seen >> (4 * n + e) & 1))
            x[n][e] = 0;
    }
}

#define ATT_MAP(NT, x, f)                                                                                    \
    do {                                                                                                     \
        ATT_EACH(NT, n_, e_)                                                                                 \
        {                                                                                                    \
            const float v = (x)[n_][e_];                                                                     \
            (x)[n_][e_] = (f);                                                                               \
        }                                                                                                    \
    } while (0)

/* phi of what needs no statistics first; the sums of normalised rows are the caller's. */
template <int NT, bool POLY> __device__ __forceinline__ void att_phi(float (&x)[NT][4], const struct att &a)
{
    if (!POLY && a.phi != PK_PHI_POLY) {
        switch (a.phi) {
        case PK_PHI_SIGMOID:
            ATT_MAP(NT, x, att_sigmoid(v));
            break;
        case PK_PHI_RELU:
            ATT_MAP(NT, x, fmaxf(v, 0.0f));
            break;
        case PK_PHI_TAYLOR:
            ATT_MAP(NT, x, 1.0f + v + v * v * 0.5f);
            break;
        default:
            ATT_MAP(NT, x, 0.5f + 0.5f * __sinf(att_turn(v)));
        }
        return;
    }
    switch (a.degree) {
    case 1:
        break;
    case 2:
        ATT_MAP(NT, x, v * v);
        break;
    case 3:
        ATT_MAP(NT, x, v * v * v);
        break;
    case 4:
        ATT_MAP(NT, x, (v * v) * (v * v));
        break;
    case 5:
        ATT_MAP(NT, x, (v * v) * (v * v) * v);
        break;
    case 6:
        ATT_MAP(NT, x, (v * v) * (v * v) * (v * v));
        break;
    default:
        ATT_MAP(NT, x, att_power(v, a.degree));
    }
}

/* ---- host: reading a call ---- */

/* Rows of a view, and whether they can be copied in 16-byte pieces. */
static inline struct att_rows att_rows_at(void *data, enum pk_dtype dtype, int64_t d, int64_t sb, int64_t sh,
                                          int64_t sn, int64_t sd)
{
    struct att_rows r = {data, sb, sh, sn, sd, false};
    const int64_t wide = dtype == PK_BF16 ? 8 : 4;

    r.wide = sd == 1 && d % wide == 0 && sb % wide == 0 && sh % wide == 0 && sn % wide == 0 &&
             (uintptr_t)data % 16 == 0;
    return r;
}
static inline struct att_rows att_rows_of(const struct pk_view *v, int b, int h, int n, int d)
{
    return att_rows_at(v->data, v->dtype, v->shape.dim[d], v->stride[b], v->stride[h], v->stride[n],
                       v->stride[d]);
}
/* (B, H, N, d) dense. */
static inline struct att_rows att_rows_dense(const struct pk_view *v, int64_t heads, int64_t n, int64_t d)
{
    return att_rows_at(v->data, v->dtype, d, heads * n * d, n * d, d, 1);
}
/* (B, N, H, d) dense. */
static inline struct att_rows att_rows_inside(const struct pk_view *v, int64_t heads, int64_t n, int64_t d)
{
    return att_rows_at(v->data, v->dtype, d, n * heads * d, d, heads * d, 1);
}
/* Part `which` of qkv. */
static inline struct att_rows att_rows_part(const struct pk_view *v, int which)
{
    char *at = (char *)v->data;

    if (at)
        at += which * v->stride[2] * (v->dtype == PK_BF16 ? 2 : 4);
    return att_rows_at(at, v->dtype, v->shape.dim[4], v->stride[0], v->stride[3], v->stride[1], v->stride[4]);
}

/* Inputs up to rng; data may be NULL. */
static inline void att_read(struct att *a, const struct pk_call *c)
{
    const struct pk_attention_attr *x = &c->attr->attention;
    int next = 3;

    *a = {};
    if (x->packed) {
        const struct pk_view *v = &c->in[0];

        a->batch = (int32_t)v->shape.dim[0];
        a->nq = a->nk = (int32_t)v->shape.dim[1];
        a->heads = (int32_t)v->shape.dim[3];
        a->d = (int32_t)v->shape.dim[4];
        a->q = att_rows_part(v, 0);
        a->k = att_rows_part(v, 1);
        a->v = att_rows_part(v, 2);
        next = 1;
    } else {
        a->batch = (int32_t)c->in[0].shape.dim[0];
        a->heads = (int32_t)c->in[0].shape.dim[1];
        a->nq = (int32_t)c->in[0].shape.dim[2];
        a->nk = (int32_t)c->in[1].shape.dim[2];
        a->d = (int32_t)c->in[0].shape.dim[3];
        a->q = att_rows_of(&c->in[0], 0, 1, 2, 3);
        a->k = att_rows_of(&c->in[1], 0, 1, 2, 3);
        a->v = att_rows_of(&c->in[2], 0, 1, 2, 3);
    }
    a->d16 = (a->d + 15) / 16 * 16;
    a->phi = x->phi;
    a->degree = x->degree;
    a->causal = x->causal;
    a->normalised = pk_phi_normalised(x->phi);
    a->tau = (float)x->tau;
    a->add = (float)x->bias;
    a->factor = (float)x->scale;
    a->row_power = (float)x->row_power;
    if (x->has_scale) {
        const struct pk_view *v = &c->in[next++];

        a->scale = (const float *)v->data;
        a->scale_step = v->shape.dim[0] == 1 ? 0 : v->stride[0];
    }
    a->has_bias = x->has_bias;
    if (x->has_bias) {
        const struct pk_view *v = &c->in[next++];

        a->bias = (const float *)v->data;
        a->bias_h = v->stride[0];
        a->bias_i = v->stride[1];
        a->bias_j = v->stride[2];
    }
    if (x->has_mask) {
        const struct pk_view *v = &c->in[next++];
        const bool windows = v->shape.rank == 3;

        a->mask = (const uint8_t *)v->data;
        a->windows = windows ? (int32_t)v->shape.dim[0] : 0;
        a->mask_b = v->stride[0];
        a->mask_i = windows ? v->stride[1] : 0;
        a->mask_j = v->stride[windows ? 2 : 1];
    }
    if (x->has_length) {
        const struct pk_view *v = &c->in[next++];

        a->length = (const int32_t *)v->data;
        a->length_step = v->shape.dim[0] == 1 ? 0 : v->stride[0];
    }
    if (x->has_rng) {
        const struct pk_view *v = &c->in[next++];

        a->rng = x->dropout > 0 ? (const int32_t *)v->data : NULL;
        a->rng_step = v->stride[0];
        a->share_rows = v->shape.dim[0] > 3 ? (uint32_t)((int64_t)a->batch * a->heads * a->nq) : 0;
        a->threshold = (uint32_t)(x->dropout * 0x1p32);
        a->stream = 0x80000000u + x->stream;
        a->kept = (float)(1 / (1 - x->dropout));
    }
    a->after = next;
}

/* Which arithmetic: that of the elements, and for f32 that of b (NULL: TF32). */
enum att_math { ATT_BF16, ATT_TF32, ATT_F32 };
static inline enum att_math att_math_of(const struct pk_backend *b, const struct pk_call *c)
{
    if (c->in[0].dtype == PK_BF16)
        return ATT_BF16;
    return b && b->math == PK_MATH_F32 ? ATT_F32 : ATT_TF32;
}
static inline size_t att_shared_most(const struct pk_backend *b)
{
    return b ? b->shared_most : 227u * 1024;
}
static inline int att_multiprocessors(const struct pk_backend *b)
{
    return b ? b->multiprocessors : 132;
}

/* Deals `own` rows of each of `pairs`, past `streamed` rows in tiles, to blocks of at most warps_most warps.
 * own_sides: tensors of the own side in shared memory (16 rows a warp); tile_sides: those that stream. */
static inline struct att_deal att_deal_of(const struct pk_backend *b, int64_t pairs, int own, int streamed,
                                          int d16, size_t element, int own_sides, int tile_sides,
                                          int warps_most, int parts)
{
    const size_t row = (size_t)d16 * element + 16, most = att_shared_most(b);
    const int strips = own > 0 ? (own + STRIP - 1) / STRIP : 1;
    struct att_deal g = {};
    int warps = warps_most;
    size_t one;

    g.parts = parts;
    g.pairs = pairs * parts;
    g.part_rows = (int)cuda_div_up(cuda_div_up(streamed > 0 ? streamed : 1, parts), TILE) * TILE;
    g.tiles = g.part_rows / TILE;
    for (g.lanes_log = 0; (16 << g.lanes_log) < d16 * (int)element && g.lanes_log < 5; g.lanes_log++)
        ;
    for (;; warps /= 2) {
        size_t strips_bytes;

        g.warps = warps;
        while (g.warps / 2 >= strips)
            g.warps /= 2;
        g.per_block = warps / g.warps;
        while (g.per_block > 1 && g.per_block / 2 >= g.pairs)
            g.per_block /= 2;
        strips_bytes = (size_t)(g.warps * g.per_block * STRIP * own_sides) * row;
        one = (size_t)(g.per_block * TILE * tile_sides) * row; /* a buffer of all pairs of the block */
        /* A side that fits in a third of what there is stays: three blocks share a multiprocessor. */
        g.resident = strips_bytes + one * (size_t)g.tiles <= most / 3 || g.tiles == 1;
        g.stages = g.resident ? g.tiles : 2;
        g.shared = strips_bytes + one * (size_t)g.stages;
        if (g.shared > most && !g.resident) {
            g.stages = 1;
            g.shared = strips_bytes + one;
        }
        if (g.shared <= most || warps == 1)
            break;
    }
    g.rounds = 1;
    g.chunks = (int)cuda_div_up(strips, g.warps);
    if (g.resident) {
        /* Whole pairs to a block as long as every multiprocessor has two. */
        while (g.chunks > 1 &&
               cuda_div_up(g.pairs, g.per_block) * (g.chunks / 2) >= 2 * (int64_t)att_multiprocessors(b)) {
            g.rounds *= 2;
            g.chunks = (int)cuda_div_up(strips, g.warps * g.rounds);
        }
    }
    return g;
}
static inline unsigned att_blocks(const struct att_deal *g)
{
    return (unsigned)(cuda_div_up(g->pairs, g->per_block) * g->chunks);
}

/* Starts a kernel that may need more shared memory than it gets without asking. */
#define ATT_LAUNCH(kernel, grid, g, stream, ...)                                                             \
    do {                                                                                                     \
        PK_CUDA_TRY(cudaFuncSetAttribute((const void *)(kernel),                                             \
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(g).shared));     \
        PK_LAUNCH((kernel), grid, dim3((unsigned)((g).warps * (g).per_block * PK_WARP)), (g).shared, stream, \
                  __VA_ARGS__);                                                                              \
        PK_CUDA_TRY(cudaGetLastError());                                                                     \
    } while (0)

/* ---- host: what the files of attention lend each other ---- */

/* attention.cu, attention_bwd.cu: the square order. a is whole, outputs too; parts: workspace for g.parts >
 * 1, else NULL. dscale: for each (b, h) and strip of queries a double, at `strips` numbers a pair; NULL:
 * none. */
enum pd_err att_square(struct pk_backend *b, const struct att *a, enum att_math math, int parts, float *work,
                       struct pd_why *why);
enum pd_err att_square_bwd(struct pk_backend *b, const struct att *a, enum att_math math, double *dscale,
                           int strips, struct pd_why *why);
/* dscale[i] = the constant factor times the sum of the doubles of all pairs that share it, in a fixed order.
 */
enum pd_err att_add_dscale(struct pk_backend *b, const struct att *a, const double *from, int strips,
                           const struct pk_view *to, struct pd_why *why);
/* Where outputs of ATTENTION_BWD go; also y and dy. Returns the first output behind them. */
int att_read_bwd(struct att *a, const struct pk_call *c);

/* attention_linear.cu */
bool att_is_linear(const struct pk_backend *b, const struct pk_call *c);
size_t att_linear_workspace(const struct pk_backend *b, const struct pk_call *c);
enum pd_err att_linear(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
enum pd_err att_linear_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
