/* kernels/backend/cuda/attention/tile.cuh: tiles, scores and visibility, shared by the kernels of attention.
 * phi on them: tile_phi.cuh, and formula.cuh for formulas.
 *
 * One scheme serves forward and backward. A warp owns 16 rows ("strip") of one (batch, head) pair: queries,
 * or keys where gradients of keys are summed. The other side streams past in tiles of TILE rows through
 * shared memory, copied in the background, so a strip's products are
 *
 *     X (16, TILE) = own tile'        sums (16, d) += f(X) tile
 *
 * and the steps between them (logit bias, masks, phi, dropout) are done in the registers that hold X. The
 * warps of a block share its tiles; if rows are few, a block takes several pairs, each with warps and
 * tiles of its own (windows of 49 tokens, decoding); if a whole side of a pair fits in shared memory it is
 * read once and its strips alternate.
 *
 * Three arithmetics share all of it and differ only in `scores` and `add`: bf16 (mma m16n8k16), TF32 (mma
 * m16n8k8 of f32 data), f32 (no tensor cores). Sums are f32 in all of them. In each a lane holds of X and of
 * the sums rows g and g + 8, columns 8 n + 2 t and the next, g = lane / 4, t = lane % 4: the layout of mma.
 *
 * Rows in shared memory are 16 bytes longer than their data: an odd number of 16-byte units for any d, so
 * that the eight rows of an ldmatrix, and the strided reads of f32, fall on different banks without a
 * swizzle. Channels from d to a multiple of 16 are zeros there. */
#pragma once

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

#include "kernels/backend/cuda/attention/args.cuh"
#include "kernels/backend/cuda/attention/math.cuh"
#include "kernels/base/philox.h"

/* ---- visibility and factors ---- */

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
/* Factor on dS at the end: c and p, or 1 if dS holds c already. */
__device__ __forceinline__ float att_inner(const struct att &a, int h)
{
    if (a.normalised)
        return 1;
    return a.power ? att_factor(a, h) * (float)a.degree : att_factor(a, h);
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
/* Whether all queries i0 .. i0+ni-1 see all keys j0 .. j0+nj-1. */
__device__ __forceinline__ bool att_open(const struct att_sight &s, int i0, int ni, int j0, int nj)
{
    return !s.mask && i0 + ni <= s.nq && j0 + nj <= s.end && (!s.causal || j0 + nj - 1 <= i0 + s.shift);
}
/* Whether no query i0 .. i0+ni-1 sees any key from j0 on. */
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

/* ---- tiles that stream past ---- */

/* Two tensors' tiles of one pair on their way through shared memory: two in flight, or one where there is
 * room for one, or all of them once (resident). Every thread of the block calls the members, in the same
 * order. */
template <typename T> struct att_flow {
    const struct att &a;
    const struct att_deal &g;
    const struct att_rows &one, &two;
    T *tiles; /* of this pair: TILE rows of `one`, TILE of `two`; the next stage is `stage` elements on */
    int pitch, stage, sub, lo, end, b, h; /* tile 0 begins at row lo; rows from `end` on are zeros */
    bool real;

    __device__ __forceinline__ T *at(int t) const
    {
        return tiles + t % g.stages * stage;
    }
    __device__ __forceinline__ void copy(int t) const
    {
        if (real) {
            att_copy<T>(at(t), pitch, one, b, h, lo + t * TILE, TILE, end, a, g.lanes_log, sub, g.warps);
            att_copy<T>(at(t) + TILE * pitch, pitch, two, b, h, lo + t * TILE, TILE, end, a, g.lanes_log, sub,
                        g.warps);
        }
        pk_copy_commit();
    }
    /* Before the tiles first .. count-1 of a round; earlier copies of each warp are complete too. */
    __device__ __forceinline__ void open(int round, int first, int count) const
    {
        if (g.resident) {
            for (int t = 0; round == 0 && t < count; t++)
                copy(t);
            pk_copy_commit();
            pk_copy_wait<0>();
            __syncthreads();
        } else if (count > first) {
            copy(first);
        }
    }
    /* Tile t, which may be read until `close`. */
    __device__ __forceinline__ const T *next(int t, int first, int count) const
    {
        if (!g.resident) {
            if (g.stages > 1) {
                if (t + 1 < count)
                    copy(t + 1);
                else
                    pk_copy_commit();
                pk_copy_wait<1>();
            } else {
                if (t > first)
                    copy(t);
                pk_copy_wait<0>();
            }
            __syncthreads();
        }
        return at(t);
    }
    __device__ __forceinline__ void close(void) const
    {
        if (!g.resident)
            __syncthreads(); /* before this buffer is written again */
    }
};

/* ---- scores ---- */

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
