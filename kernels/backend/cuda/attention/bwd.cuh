/* kernels/backend/cuda/attention/bwd.cuh: from the scores of a tile to P and dS, for the kernels of
 * ATTENTION_BWD. */
#pragma once

#include "kernels/backend/cuda/attention/tile_phi.cuh"

/* From x = S and dp = dP (with dropout): P into x, dS into dp, without factors; returns sum P dP. Statistics
 * of queries: `by` is 1 / sum (softmax: the log of the sum of exponentials; where rows are not normalised the
 * factor of row_power), `delta` = rowsum(dY Y); [0] and [1] of the two rows of a lane, or [2 n + e % 2] of
 * its columns. */
template <bool POLY, bool KEYS, int NS>
__device__ __forceinline__ float att_phi_backward(float (&x)[4][4], float (&dp)[4][4], const struct att &a,
                                                  uint32_t seen, float c, const float (&by)[NS],
                                                  const float (&delta)[NS])
{
    float total = 0;

#define AT (KEYS ? 2 * n + e % 2 : e / 2)
#define MAP(setup, f_p, f_ds)                                                                                \
    ATT_EACH(4, n, e)                                                                                        \
    {                                                                                                        \
        float v = x[n][e], w = dp[n][e], p, ds;                                                              \
        setup;                                                                                               \
        p = (f_p);                                                                                           \
        ds = (f_ds);                                                                                         \
        if (!(seen >> (4 * n + e) & 1))                                                                      \
            p = ds = w = 0;                                                                                  \
        x[n][e] = p;                                                                                         \
        dp[n][e] = ds;                                                                                       \
        total += p * w;                                                                                      \
    }
    if (a.row_power != 0)
        ATT_EACH(4, n, e)
        {
            dp[n][e] *= by[AT];
        }
    if (!POLY && !a.power) {
        switch (a.phi) {
#define ALONE(name) MAP((void)0, att_phi_##name(v), att_phi_##name##_df(v, p, w))
#define HOMOGENEOUS ALONE
#define SUMMED(name)                                                                                         \
    MAP(const float f = att_phi_##name(v), f * by[AT],                                                       \
        att_phi_##name##_df(v, f, by[AT]) * (c * w - delta[AT]))
#define EXPONENTIAL(name)                                                                                    \
    MAP((void)0, att_phi_##name(v - by[AT]), att_phi_##name##_df(v, p, c *w - delta[AT]))
#define POWER(name)
#define ROW(constant, name, kind, f, df)                                                                     \
    case constant:                                                                                           \
        kind(name);                                                                                          \
        break;
            PK_EACH_PHI(ROW)
#undef ALONE
#undef HOMOGENEOUS
#undef SUMMED
#undef EXPONENTIAL
#undef POWER
#undef ROW
        default:
            break;
        }
    } else {
        switch (a.degree) {
        case 1:
            MAP((void)0, v, w);
            break;
        case 2:
            MAP((void)0, v * v, v * w);
            break;
        case 3:
            MAP((void)0, v * v * v, v * v * w);
            break;
        case 4:
            MAP(const float u = v * v * v, u * v, u * w);
            break;
        case 5:
            MAP(const float u = (v * v) * (v * v), u * v, u * w);
            break;
        case 6:
            MAP(const float u = (v * v) * (v * v) * v, u * v, u * w);
            break;
        default:
            MAP(const float u = att_power(v, a.degree - 1), u * v, u * w);
        }
    }
    if (a.row_power != 0)
        ATT_EACH(4, n, e)
        {
            x[n][e] *= by[AT];
        }
#undef MAP
#undef AT
    return total;
}

/* Statistics of query i. */
__device__ __forceinline__ void att_row_statistics(const struct att &a, const struct att_sight &s, int64_t bh,
                                                   int b, int h, int i, float *by, float *delta)
{
    *by = 1;
    *delta = 0;
    if (a.row_power != 0)
        *by = att_row_factor(a, s.shift, i);
    if (!a.normalised || i >= a.nq)
        return;
    *by = a.sums_in[b * a.sums_b + h * a.sums_h + i * a.sums_i];
    if (!a.shifted)
        *by = *by == 0 ? 0 : 1.0f / *by;
    *delta = a.delta[bh * a.nq + i];
}

/* Computes S and dP of a tile, then P and dS, in x and dp. own_1, tile_1: operands of S; own_2, tile_2: operands of dP.
 * kept: entries that dropout keeps; dS has it applied, P not yet. Returns sum P dP. */
template <class M, bool POLY, bool KEYS, int NS>
__device__ __forceinline__ float att_tile_backward(float (&x)[4][4], float (&dp)[4][4], const struct att &a,
                                                   const struct att_sight &sight, const struct att_draw &draw,
                                                   int h, float c, const typename M::T *own,
                                                   const typename M::T *tile, int pitch, int row, int column,
                                                   const float (&by)[NS], const float (&delta)[NS])
{
    const bool open =
        KEYS ? att_open(sight, column, TILE, row, STRIP) : att_open(sight, row, STRIP, column, TILE);
    const uint32_t seen = open ? ~0u : att_seen_bits<4, KEYS>(sight, row, column);
    uint32_t kept = 0;
    float total;

    att_zero(x);
    att_zero(dp);
    att_scores<M, 4>(x, own, tile, pitch, a.d16);
    att_scores<M, 4>(dp, own + STRIP * pitch, tile + TILE * pitch, pitch, a.d16);
    att_logits<4, KEYS>(x, a, h, row, column);
    if (a.rng) {
        kept = att_kept_bits<4, KEYS>(draw, row, column);
        att_drop<4>(dp, kept, a.kept);
    }
    total = att_phi_backward<POLY, KEYS>(x, dp, a, seen, c, by, delta);
    if (KEYS && a.rng)
        att_drop<4>(x, kept, a.kept);
    return total;
}
