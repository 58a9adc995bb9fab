/* kernels/backend/cuda/attention/formula.cuh: FORMULA and FORMULA_BWD in the tiles of tile.cuh. The activation is a type
 * F, made from a plan (kernels/formula/formula.h): printed as source for NVRTC (formula_source.c), or interpreted in the
 * emulation (formula.cu).
 *
 * F has, all static and with the head first: rows, params, two, shift, shift_zero, power(k), needs_d, row_max(k), turn_scalars,
 * back_scalars (the plan's fields), turn_fixed (cuda_formula_turn_fixed), and its programs
 *
 *     exponent value sums turn before turn_back back (head, row, s, j, da, o)     results to o[0 .. RESULTS-1]
 *
 * Kernels of a call, in their order:
 *
 *     forward   one pass over the keys, or two; y and the row statistics
 *     join      the same from parts of the keys, where few queries see many
 *     rows      of each query: G, its keys, D = rowsum(dY Y) / G
 *     sweep     D where G is 0; with two passes the gradients of the row functions: sums over the keys
 *     turn      gradients of the row functions (one pass); the scalars' parts through G
 *     keys      a warp owns 16 keys, queries stream past: dk, dv
 *     queries   a warp owns 16 queries, keys stream past: dq, the scalars' parts by strips
 *     bias      dS summed over runs of the batch
 *     scalars   sums of the scalars' parts
 *
 * So each result has one owner that adds in one order, as in bwd.cu. Arithmetic of programs is f32. G multiplies dY V' and
 * F in registers, before they are rounded for the products. */
#pragma once

#include "kernels/backend/cuda/attention/tile.cuh"

#define FORM_ROWS 4     /* PK_FORMULA_ROWS */
#define FORM_PARAMS 8   /* PK_FORMULA_PARAMS */
#define FORM_RESULTS 16 /* PK_FORMULA_RESULTS */

/* Numbers of a query in the workspace, each (B, H, Nq). */
enum { FORM_G, FORM_NI, FORM_LIVE, FORM_D, FORM_DROW, FORM_FIELDS = FORM_DROW + FORM_ROWS };

struct form_use {
    const void *plan; /* of the interpreter */
    float n, layer, layers;
    const float *scalars; /* (P, H) */
    int64_t scalars_p, scalars_h;
    float *split; /* forward: (B, H, parts of the keys, Nq, d16 + FORM_SPLIT); NULL: keys are not divided */
    int32_t kept; /* row statistics: row functions, the shift, keys that attain a maximum */
    float *stats; /* forward: (B, H, kept, Nq) dense */
    const float *stats_in;
    int64_t in_b, in_h, in_k, in_i;
    float *fields;   /* (B, H, FORM_FIELDS, Nq) */
    double *through; /* (B, H, P): the scalars' parts through G */
    double *parts;   /* (B, H, strips, P) */
    int32_t strips;
    float *runs; /* of dbias: (runs, H, Nq, Nk) */
    int32_t runs_n;
    float *dscalars; /* (P, H) dense */
    /* FORMULA_STATS (formula_stats.cuh) */
    const void *x; /* (B, Nq, width), of the type of q */
    int64_t x_b, x_i, x_c, width;
    double *numbers;    /* (B, H, Nq, FORM_NUMBERS) */
    float *measured[6]; /* (B, H) each */
};

struct form_head {
    const void *plan;
    float n, h, H, l, L, d;
    float param[FORM_PARAMS];
};

struct form_row {
    float i, ni, m, d, row[FORM_ROWS], arg[FORM_ROWS], drow[FORM_ROWS];
};

template <class F>
__device__ __forceinline__ struct form_head form_head_of(int heads, int d, const struct form_use &u, int h)
{
    struct form_head x = {u.plan, u.n, (float)h, (float)heads, u.layer, u.layers, (float)d, {}};

#pragma unroll
    for (int k = 0; k < FORM_PARAMS; k++)
        if (k < F::params(x))
            x.param[k] = u.scalars[k * u.scalars_p + h * u.scalars_h];
    return x;
}
template <class F>
__device__ __forceinline__ struct form_head form_head_of(const struct att &a, const struct form_use &u, int h)
{
    return form_head_of<F>(a.heads, a.d, u, h);
}

__device__ __forceinline__ float form_position(const struct att &a, const struct att_sight &s, int i)
{
    return (float)(a.causal ? i + s.shift : i);
}

/* Keys that query i sees. */
__device__ __forceinline__ int form_keys_seen(const struct att_sight &s, int i)
{
    const int end = s.causal ? max(0, min(s.end, i + s.shift + 1)) : s.end;
    int n = 0;

    if (i >= s.nq)
        return 0;
    if (!s.mask)
        return end;
    for (int j = 0; j < end; j++)
        n += s.mask[i * s.mask_i + j * s.mask_j] != 0;
    return n;
}

/* log(1 + exp(x)), as exact as __expf: log(1+e)/e on (0, 1] by a polynomial that is off by at most 3e-8 (minimax). */
__device__ __forceinline__ float form_softplus(float x)
{
    const float e = __expf(-fabsf(x));
    float p = 0.00523269426f;

    p = fmaf(p, e, -0.0295052388f);
    p = fmaf(p, e, 0.0782259519f);
    p = fmaf(p, e, -0.136632458f);
    p = fmaf(p, e, 0.191060068f);
    p = fmaf(p, e, -0.248429822f);
    p = fmaf(p, e, 0.333190968f);
    p = fmaf(p, e, -0.499994931f);
    p = fmaf(p, e, 0.99999997f);
    return fmaf(p, e, fmaxf(x, 0.0f));
}
/* The larger; NaN propagates. */
__device__ __forceinline__ float form_larger(float x, float y)
{
    return y > x || y != y ? y : x;
}
__device__ __forceinline__ bool form_finite(float x)
{
    return fabsf(x) < INFINITY;
}

/* ---- row functions while keys pass ---- */

template <class F>
__device__ __forceinline__ void form_row_begin(struct form_row *x, const struct form_head &u)
{
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++) {
        x->row[k] = k < F::rows(u) && F::row_max(u, k) ? -INFINITY : 0;
        x->arg[k] = x->drow[k] = 0;
    }
    x->m = F::shift(u) && !F::shift_zero(u) ? -INFINITY : 0;
    x->d = 0;
}

/* Adds one visible entry's results. */
template <class F>
__device__ __forceinline__ void form_gather(struct form_row *x, const struct form_head &u, const float *o,
                                            int j)
{
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++) {
        if (k >= F::rows(u))
            break;
        if (!F::row_max(u, k)) {
            x->row[k] += o[k];
        } else if (o[k] > x->row[k] || o[k] != o[k]) {
            x->row[k] = o[k];
            x->arg[k] = (float)j;
        }
    }
}

/* Joins the parts of the LANES neighbouring lanes that hold a row; every lane gets the same. */
template <class F, int LANES>
__device__ __forceinline__ void form_row_join(struct form_row *x, const struct form_head &u)
{
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++) {
        if (k >= F::rows(u))
            break;
#pragma unroll
        for (int lane = 1; lane < LANES; lane *= 2) {
            const float row = __shfl_xor_sync(PK_WARP_ALL, x->row[k], lane);
            const float arg = __shfl_xor_sync(PK_WARP_ALL, x->arg[k], lane);

            if (!F::row_max(u, k))
                x->row[k] += row;
            else if (row > x->row[k] || row != row || (row == x->row[k] && arg < x->arg[k])) {
                x->row[k] = row;
                x->arg[k] = arg;
            }
        }
    }
}

/* What is summed with the shift `from` is multiplied by this for the shift `to`. k: 0: F; 1 ..: row function k - 1. */
template <class F>
__device__ __forceinline__ float form_shrink(const struct form_head &u, int k, float from, float to)
{
    return from == to ? 1 : __expf(F::power(u, k) * (from - to));
}

/* Raises the shift of the lane's rows to a tile's exponents. */
template <class F, int NT, int N>
__device__ __forceinline__ void form_raise(struct form_row (&row)[2], const struct form_head &u,
                                           const float (&x)[NT][4], uint32_t seen, int k0, float (&acc)[N][4])
{
    const int t = (int)threadIdx.x % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = row[r].m;

#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                float o[FORM_RESULTS];

                F::exponent(u, row[r], x[n][e], (float)(k0 + n * 8 + 2 * t + e % 2), 0, o);
                if (seen >> (4 * n + e) & 1)
                    m = form_larger(m, o[0]);
            }
        m = form_larger(m, __shfl_xor_sync(PK_WARP_ALL, m, 1));
        m = form_larger(m, __shfl_xor_sync(PK_WARP_ALL, m, 2));
        if (row[r].m != -INFINITY) {
            const float shrink = form_shrink<F>(u, 0, row[r].m, m);

#pragma unroll
            for (int k = 0; k < FORM_ROWS; k++)
                if (k < F::rows(u) && row[r].row[k] != -INFINITY) /* a maximum of nothing so far; 0 times it is no number */
                    row[r].row[k] *= form_shrink<F>(u, 1 + k, row[r].m, m);
#pragma unroll
            for (int n = 0; n < N; n++) {
                acc[n][2 * r] *= shrink;
                acc[n][2 * r + 1] *= shrink;
            }
        }
        row[r].m = m;
    }
}

/* G of a row. False: the row of A is 0. */
template <class F>
__device__ __forceinline__ bool form_turn(const struct form_head &u, const struct form_row &row, bool sees,
                                          float *ret)
{
    float o[FORM_RESULTS];
    bool zero = false;

    F::turn(u, row, 0, 0, 0, o);
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        zero = zero || (k < F::rows(u) && row.row[k] == 0);
    sees = sees && !(zero && !form_finite(o[0]));
    *ret = sees ? o[0] : 0;
    return sees;
}

/* Two passes: an entry that is not finite is 0 where a row function is 0. */
template <class F>
__device__ __forceinline__ float form_mend(const struct form_head &u, const struct form_row &row, float x)
{
    bool zero = false;

    if (!F::two(u))
        return x;
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        zero = zero || (k < F::rows(u) && row.row[k] == 0);
    return zero && !form_finite(x) ? 0 : x;
}

/* Stores what is kept of a row for the gradient. */
template <class F>
__device__ __forceinline__ void form_keep(const struct att &a, const struct form_use &use,
                                          const struct form_head &u, int64_t bh, int i,
                                          const struct form_row &row)
{
    float *to = use.stats + bh * use.kept * a.nq + i;

#pragma unroll
    for (int k = 0; k < 2 * FORM_ROWS + 1; k++) {
        const int at = k - FORM_ROWS - 1;

        if (k < FORM_ROWS ? k < F::rows(u) : at < 0 ? F::shift(u) : at < F::rows(u) && F::row_max(u, at)) {
            *to = k < FORM_ROWS ? row.row[k] : at < 0 ? row.m : row.arg[at];
            to += a.nq;
        }
    }
}

/* ---- parts of the keys, of few queries over many keys (one pass) ---- */

/* Numbers of a row behind its part of y: the shift, then of each row function its value and the key that attains it. */
#define FORM_SPLIT (1 + 2 * FORM_ROWS)

template <class F>
__device__ __forceinline__ void form_split_put(float *to, const struct form_head &u,
                                               const struct form_row &row)
{
    to[0] = row.m;
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        if (k < F::rows(u)) {
            to[1 + 2 * k] = row.row[k];
            to[2 + 2 * k] = row.arg[k];
        }
}

/* As form_shrink, of a part with shift m; 0 if the part sees no key. */
template <class F>
__device__ __forceinline__ float form_split_by(const struct form_head &u, int k, float m, float to)
{
    return !F::shift(u) || m == to ? 1 : m == -INFINITY ? 0 : form_shrink<F>(u, k, m, to);
}

/* y and the row statistics from the parts, in their order: a warp for each query. */
template <class M, class F>
__device__ __forceinline__ void form_join(const struct att &a, const struct att_deal &g,
                                          const struct form_use &use)
{
    typedef typename M::T T;
    const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / PK_WARP, bh = at / a.nq;
    const int i = (int)(at % a.nq), lane = (int)threadIdx.x % PK_WARP, width = a.d16 + FORM_SPLIT;
    const float *const from = use.split + (bh * g.parts * a.nq + i) * width;
    const int64_t step = (int64_t)a.nq * width;
    struct form_row row;
    float by, m;
    bool live;

    if (at >= (int64_t)a.batch * a.heads * a.nq)
        return;

    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    const struct form_head u = form_head_of<F>(a, use, h);
    const int keys = form_keys_seen(sight, i);

    form_row_begin<F>(&row, u);
    row.i = form_position(a, sight, i);
    row.ni = (float)max(1, keys);
    for (int p = 0; F::shift(u) && p < g.parts; p++)
        row.m = form_larger(row.m, from[p * step + a.d16]);
    for (int p = 0; p < g.parts; p++) {
        const float *const x = from + p * step + a.d16;

#pragma unroll
        for (int k = 0; k < FORM_ROWS; k++) {
            const float shrink = k < F::rows(u) ? form_split_by<F>(u, 1 + k, x[0], row.m) : 0;
            const float value = shrink != 0 ? x[1 + 2 * k] * shrink : 0;

            if (shrink == 0)
                continue;
            if (!F::row_max(u, k)) {
                row.row[k] += value;
            } else if (value > row.row[k] || value != value) {
                row.row[k] = value;
                row.arg[k] = x[2 + 2 * k];
            }
        }
    }
    m = row.m;
    row.m = m == -INFINITY ? 0 : m;
    live = form_turn<F>(u, row, keys > 0, &by);
    for (int c = lane; c < a.d; c += PK_WARP) {
        float sum = 0;

        for (int p = 0; p < g.parts; p++)
            sum += from[p * step + c] * form_split_by<F>(u, 0, from[p * step + a.d16], m);
        ((T *)a.y.p)[b * a.y.sb + h * a.y.sh + i * a.y.sn + c] = pk_narrow<T>(live ? sum * by : 0);
    }
    if (lane == 0)
        form_keep<F>(a, use, u, bh, i, row);
}

/* ---- forward ---- */

template <class M, class F, int D>
__device__ __forceinline__ void form_forward(const struct att &a, const struct att_deal &g,
                                             const struct form_use &use)
{
    typedef typename M::T T;
    constexpr int NT = TILE / 8;
    PK_SHARED(T, shared);
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int slot = warp / g.warps, sub = warp % g.warps, c0 = (int)blockIdx.y * D;
    const int64_t pair = (int64_t)blockIdx.x / g.chunks * g.per_block + slot;
    const int chunk = g.chunks - 1 - (int)(blockIdx.x % (unsigned)g.chunks); /* causal: the longest first */
    const bool real = pair < g.pairs;
    const int64_t bh = real ? pair / g.parts : 0;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    const struct form_head u = form_head_of<F>(a, use, h);
    const int lo = (int)(pair % g.parts) * g.part_rows, hi = min(sight.end, lo + g.part_rows);
    T *const own = shared + warp * STRIP * pitch;
    T *const tiles = shared + (g.warps * g.per_block * STRIP + slot * TILE * 2) * pitch;
    const struct att_flow<T> flow = {
        a, g, a.k, a.v, tiles, pitch, g.per_block *TILE * 2 * pitch, sub, lo, hi, b, h, real
    };
    const struct att_draw draw = att_draw_of(a, bh);
    const bool two = F::two(u);
    int count = g.tiles;

    /* The block stops at the last key that is visible to queries of its pairs. */
    if (!g.resident) {
        const int64_t pair0 = pair - slot;

        count = 0;
        for (int64_t p = pair0; p < pair0 + g.per_block && p < g.pairs; p++) {
            const int pb = (int)(p / g.parts / a.heads), from = (int)(p % g.parts) * g.part_rows;
            int last = min(att_end(a, pb), from + g.part_rows);

            if (a.causal)
                last = min(last, (chunk + 1) * g.warps * STRIP + att_shift(a, pb));
            count = max(count, (last - from + TILE - 1) / TILE);
        }
    }

    for (int round = 0; round < g.rounds; round++) {
        const int strip = (chunk * g.rounds + round) * g.warps + sub, row0 = strip * STRIP;
        const bool busy = real && row0 < a.nq;
        float acc[D / 8][4];
        struct form_row row[2];
        struct att_held<M, D> held;
        bool sees[2];

#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = row0 + lane / 4 + 8 * r, keys = form_keys_seen(sight, i);

            form_row_begin<F>(&row[r], u);
            row[r].i = form_position(a, sight, i);
            row[r].ni = (float)max(1, keys);
            sees[r] = keys > 0;
        }
        att_zero(acc);
        if (busy)
            att_copy<T>(own, pitch, a.q, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        for (int pass = two ? 0 : 1; pass < 2; pass++) {
            const bool gathers = pass == 0 || !two;

            flow.open(round + (two && pass), 0, count);
            for (int t = 0; t < count; t++) {
                const T *const k = flow.next(t, 0, count), *const v = k + TILE * pitch;
                const int k0 = lo + t * TILE;
                float x[NT][4];
                uint32_t seen = ~0u;

                if (t == 0 && busy)
                    held.load(own, pitch, a.d16);
                if (busy && k0 < hi && !att_closed(sight, row0, STRIP, k0)) {
                    att_zero(x);
                    held.scores(x, own, k, pitch, a.d16);
                    att_logits<NT, false>(x, a, h, row0, k0);
                    if (!att_open(sight, row0, STRIP, k0,
                                  TILE)) /* a part ends with a tile, or with all keys */
                        seen = att_seen_bits<NT, false>(sight, row0, k0);
                    if (F::shift(u) && gathers)
                        form_raise<F>(row, u, x, seen, k0, acc);
                    ATT_EACH(NT, n, e)
                    {
                        const int j = k0 + n * 8 + lane % 4 * 2 + e % 2;
                        const bool there = seen >> (4 * n + e) & 1;
                        float o[FORM_RESULTS];

                        if (pass == 0)
                            F::sums(u, row[e / 2], x[n][e], (float)j, 0, o);
                        else
                            F::value(u, row[e / 2], x[n][e], (float)j, 0, o);
                        if (gathers && there)
                            form_gather<F>(&row[e / 2], u, pass == 0 ? o : o + 1, j);
                        x[n][e] = there ? form_mend<F>(u, row[e / 2], o[0]) : 0;
                    }
                    if (pass == 1) {
                        if (a.rng)
                            att_drop<NT>(x, att_kept_bits<NT, false>(draw, row0, k0), a.kept);
                        M::template add<NT, D>(acc, x, v, pitch, c0, a.d16);
                    }
                }
                flow.close();
            }
            if (gathers)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    form_row_join<F, 4>(&row[r], u);
                    if (!use.split)
                        row[r].m = row[r].m == -INFINITY ? 0 : row[r].m;
                }
        }
        if (busy)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = row0 + lane / 4 + 8 * r, c = c0 + lane % 4 * 2;
                float by;
                const bool live = form_turn<F>(u, row[r], sees[r], &by);

                if (i >= a.nq)
                    continue;
                if (use.split) {
                    float *const to = use.split + (pair * a.nq + i) * (a.d16 + FORM_SPLIT);

#pragma unroll
                    for (int n = 0; n < D / 8; n++)
                        if (c + n * 8 < a.d16) {
                            to[c + n * 8] = acc[n][2 * r];
                            to[c + n * 8 + 1] = acc[n][2 * r + 1];
                        }
                    if (c == 0)
                        form_split_put<F>(to + a.d16, u, row[r]);
                    continue;
                }
                if (c == 0)
                    form_keep<F>(a, use, u, bh, i, row[r]);
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    att_store<T>((T *)a.y.p + b * a.y.sb + h * a.y.sh + i * a.y.sn, c + n * 8, a.d,
                                 live ? acc[n][2 * r] * by : 0, live ? acc[n][2 * r + 1] * by : 0);
            }
    }
    pk_copy_wait<0>();
}

/* ---- backward: rows ---- */

__device__ __forceinline__ float *form_field(const struct att &a, const struct form_use &use, int64_t bh,
                                             int field, int i)
{
    return use.fields + (bh * FORM_FIELDS + field) * a.nq + i;
}

/* The statistics of query i that FORMULA saved. */
template <class F>
__device__ __forceinline__ void form_stats(struct form_row *x, const struct att &a,
                                           const struct form_use &use, const struct form_head &u, int64_t bh,
                                           int i)
{
    const float *from = use.stats_in + bh / a.heads * use.in_b + bh % a.heads * use.in_h + i * use.in_i;

    form_row_begin<F>(x, u);
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        if (k < F::rows(u)) {
            x->row[k] = __ldg(from);
            from += use.in_k;
        }
    if (F::shift(u)) {
        x->m = __ldg(from);
        from += use.in_k;
    }
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        if (k < F::rows(u) && F::row_max(u, k)) {
            x->arg[k] = __ldg(from);
            from += use.in_k;
        }
}

/* All that is known of query i; *ret_g is G, 0 if the row of A is 0. */
template <class F>
__device__ __forceinline__ bool form_load(struct form_row *x, float *ret_g, const struct att &a,
                                          const struct form_use &use, const struct form_head &u,
                                          const struct att_sight &sight, int64_t bh, int i)
{
    if (i >= a.nq) {
        form_row_begin<F>(x, u);
        x->i = x->m = 0;
        x->ni = 1;
        *ret_g = 0;
        return false;
    }
    form_stats<F>(x, a, use, u, bh, i);
    x->i = form_position(a, sight, i);
    x->ni = *form_field(a, use, bh, FORM_NI, i);
    x->d = *form_field(a, use, bh, FORM_D, i);
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        if (k < F::rows(u))
            x->drow[k] = *form_field(a, use, bh, FORM_DROW + k, i);
    *ret_g = *form_field(a, use, bh, FORM_G, i);
    return *form_field(a, use, bh, FORM_LIVE, i) != 0;
}

/* G, the keys and D of each query: a warp for each. */
template <class M, class F>
__device__ __forceinline__ void form_rows(const struct att &a, const struct form_use &use)
{
    typedef typename M::T T;
    const int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / PK_WARP, bh = at / a.nq;
    const int i = (int)(at % a.nq), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    struct form_row row;
    float g, d = 0;
    bool live;

    if (at >= (int64_t)a.batch * a.heads * a.nq)
        return;
    {
        const struct att_sight sight = att_sight_of(a, b);
        const struct form_head u = form_head_of<F>(a, use, h);
        const int keys = form_keys_seen(sight, i);

        form_stats<F>(&row, a, use, u, bh, i);
        row.i = form_position(a, sight, i);
        row.ni = (float)max(1, keys);
        live = form_turn<F>(u, row, keys > 0, &g);
        if (F::needs_d(u) && !F::two(u) && g != 0) {
            const T *const y = (const T *)a.y.p + b * a.y.sb + h * a.y.sh + i * a.y.sn;
            const T *const dy = (const T *)a.dy.p + b * a.dy.sb + h * a.dy.sh + i * a.dy.sn;

            for (int c = (int)threadIdx.x % PK_WARP; c < a.d; c += PK_WARP)
                d += pk_float(y[c * a.y.sd]) * pk_float(dy[c * a.dy.sd]);
            d = pk_warp_sum(d) / g;
        }
    }
    if (threadIdx.x % PK_WARP == 0) {
        *form_field(a, use, bh, FORM_G, i) = g;
        *form_field(a, use, bh, FORM_NI, i) = row.ni;
        *form_field(a, use, bh, FORM_LIVE, i) = live;
        *form_field(a, use, bh, FORM_D, i) = d;
        for (int k = 0; k < FORM_ROWS; k++)
            *form_field(a, use, bh, FORM_DROW + k, i) = 0;
    }
}

/* Gradients of the row functions and the scalars' parts through G: a block for each (b, h). */
template <class F>
__device__ __forceinline__ void form_turn_back(const struct att &a, const struct form_use &use)
{
    __shared__ double part[PK_WARP * 4];
    const int64_t bh = blockIdx.x;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    const struct form_head u = form_head_of<F>(a, use, h);
    double sum[FORM_PARAMS] = {};

    for (int i = (int)threadIdx.x; i < a.nq && F::needs_d(u); i += PK_WARP * 4) {
        struct form_row row;
        float g, o[FORM_RESULTS];
        const bool live = form_load<F>(&row, &g, a, use, u, sight, bh, i);
        int at = 0;

        F::turn_back(u, row, 0, 0, 0, o);
#pragma unroll
        for (int k = 0; k < FORM_ROWS; k++)
            if (k < F::rows(u) && !F::two(u))
                *form_field(a, use, bh, FORM_DROW + k, i) = live ? o[at++] : 0;
        at = F::two(u) ? 0 : F::rows(u);
#pragma unroll
        for (int k = 0; k < FORM_PARAMS; k++)
            if (k < F::params(u) && F::turn_scalars(u) >> k & 1)
                sum[k] += live ? (double)o[at++] : 0;
    }
#pragma unroll
    for (int k = 0; k < FORM_PARAMS; k++) {
        if (k >= F::params(u))
            break;
        __syncthreads();
        part[threadIdx.x] = sum[k];
        for (int n = PK_WARP * 2; n > 0; n /= 2) {
            __syncthreads();
            if ((int)threadIdx.x < n)
                part[threadIdx.x] += part[threadIdx.x + n];
        }
        if (threadIdx.x == 0)
            use.through[bh * F::params(u) + k] = part[0];
    }
}

/* dscalars: a block for each (k, h). */
template <class F>
__device__ __forceinline__ void form_scalars(const struct att &a, const struct form_use &use)
{
    __shared__ double part[256];
    const int h = (int)blockIdx.x % a.heads, k = (int)blockIdx.x / a.heads;
    const struct form_head u = form_head_of<F>(a, use, h);
    const int64_t each = (int64_t)a.batch * use.strips;
    double sum = 0;

    for (int64_t x = threadIdx.x; x < each; x += 256) {
        const int64_t bh = x / use.strips * a.heads + h;

        sum += use.parts[(bh * use.strips + x % use.strips) * F::params(u) + k];
        if (x % use.strips == 0)
            sum += use.through[bh * F::params(u) + k];
    }
    part[threadIdx.x] = sum;
    for (int n = 128; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n)
            part[threadIdx.x] += part[threadIdx.x + n];
    }
    if (threadIdx.x == 0)
        use.dscalars[k * a.heads + h] = (float)part[0];
}

/* ---- backward: tiles ---- */

enum { FORM_SWEEP, FORM_QUERIES, FORM_KEYS };

/* One entry of FORM_QUERIES and FORM_KEYS: x = S -> G F, dp = dP -> dS; adds the scalars' parts to total. */
template <class F>
__device__ __forceinline__ void form_entry(float *x, float *dp, const struct form_head &u,
                                           const struct form_row &row, float g, bool there, int j,
                                           float (&total)[FORM_PARAMS])
{
    float o[FORM_RESULTS];
    int at = 2;

    F::back(u, row, *x, (float)j, *dp * g, o);
    *x = there ? form_mend<F>(u, row, o[0]) * g : 0;
    *dp = there ? form_mend<F>(u, row, o[1]) : 0;
#pragma unroll
    for (int k = 0; k < FORM_PARAMS; k++)
        if (k < F::params(u) && F::back_scalars(u) >> k & 1)
            total[k] += there ? form_mend<F>(u, row, o[at++]) : 0;
}

/* S and dP of a tile, and what is done with them. mine: the lane's two queries, where queries are the own side. */
template <class M, class F, int MODE>
__device__ __forceinline__ void
form_tile(float (&x)[4][4], float (&dp)[4][4], const struct att &a, const struct form_use &use,
          const struct att_sight &sight, const struct att_draw &draw, const struct form_head &u, int64_t bh,
          int h, const typename M::T *own, const typename M::T *tile, int pitch, int row, int column,
          struct form_row (&mine)[2], const float (&g)[2], const bool (&live)[2], float (&total)[FORM_PARAMS])
{
    constexpr bool KEYS = MODE == FORM_KEYS;
    const int lane = (int)threadIdx.x % PK_WARP;
    const bool open =
        KEYS ? att_open(sight, column, TILE, row, STRIP) : att_open(sight, row, STRIP, column, TILE);
    const uint32_t seen = open ? ~0u : att_seen_bits<4, KEYS>(sight, row, column);
    uint32_t kept = 0;

    att_zero(x);
    att_zero(dp);
    att_scores<M, 4>(x, own, tile, pitch, a.d16);
    att_scores<M, 4>(dp, own + STRIP * pitch, tile + TILE * pitch, pitch, a.d16);
    att_logits<4, KEYS>(x, a, h, row, column);
    if (a.rng) {
        kept = att_kept_bits<4, KEYS>(draw, row, column);
        att_drop<4>(dp, kept, a.kept);
    }
    if constexpr (KEYS) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int q = 0; q < 2; q++) {
                struct form_row r;
                float by;
                const bool there =
                    form_load<F>(&r, &by, a, use, u, sight, bh, column + n * 8 + lane % 4 * 2 + q);

#pragma unroll
                for (int e = q; e < 4; e += 2)
                    form_entry<F>(&x[n][e], &dp[n][e], u, r, by, there && (seen >> (4 * n + e) & 1),
                                  row + lane / 4 + e / 2 * 8, total);
            }
        if (a.rng)
            att_drop<4>(x, kept, a.kept);
    } else {
        ATT_EACH(4, n, e)
        {
            const int j = column + n * 8 + lane % 4 * 2 + e % 2;
            const bool there = live[e / 2] && (seen >> (4 * n + e) & 1);

            if constexpr (MODE == FORM_SWEEP) {
                float o[FORM_RESULTS];

                F::before(u, mine[e / 2], x[n][e], (float)j, dp[n][e], o);
                if (there && !F::two(u))
                    mine[e / 2].d += o[0];
#pragma unroll
                for (int k = 0; k < FORM_ROWS; k++)
                    if (there && F::two(u) && k < F::rows(u))
                        mine[e / 2].drow[k] += o[k];
            } else {
                form_entry<F>(&x[n][e], &dp[n][e], u, mine[e / 2], g[e / 2], there, j, total);
            }
        }
    }
}

__device__ __forceinline__ float form_four(float x)
{
    x += __shfl_xor_sync(PK_WARP_ALL, x, 1);
    return x + __shfl_xor_sync(PK_WARP_ALL, x, 2);
}

template <class M, class F, int D, int MODE>
__device__ __forceinline__ void form_backward(const struct att &a, const struct att_deal &g,
                                              const struct form_use &use)
{
    typedef typename M::T T;
    constexpr bool KEYS = MODE == FORM_KEYS;
    PK_SHARED(T, shared);
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int slot = warp / g.warps, sub = warp % g.warps, c0 = (int)blockIdx.y * D;
    const int64_t pair = (int64_t)blockIdx.x / g.chunks * g.per_block + slot;
    const int chunk =
        KEYS ? (int)(blockIdx.x % (unsigned)g.chunks) : g.chunks - 1 - (int)(blockIdx.x % (unsigned)g.chunks);
    const bool real = pair < g.pairs;
    const int64_t bh = real ? pair : 0;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    const struct form_head u = form_head_of<F>(a, use, h);
    /* Keys beyond the length are not read: they may hold NaN, and 0 times NaN is not 0. */
    const int own_rows = KEYS ? a.nk : a.nq, stream_rows = KEYS ? a.nq : sight.end;
    T *const own = shared + warp * STRIP * 2 * pitch;
    const struct att_draw draw = att_draw_of(a, bh);
    const struct att_rows &own_1 = KEYS ? a.k : a.q, &own_2 = KEYS ? a.v : a.dy;
    const struct att_rows &tile_1 = KEYS ? a.q : a.k, &tile_2 = KEYS ? a.dy : a.v;
    T *const tiles = shared + (g.warps * g.per_block * STRIP * 2 + slot * TILE * 2) * pitch;
    const struct att_flow<T> flow = {
        a, g, tile_1, tile_2, tiles, pitch, g.per_block *TILE * 2 * pitch, sub, 0, stream_rows, b, h, real
    };
    int first = 0, count = g.tiles;

    /* If a block has one pair, it skips tiles that its strips do not see. */
    if (g.per_block == 1 && !g.resident) {
        const int row0 = chunk * g.warps * STRIP, row1 = row0 + g.warps * STRIP;

        if (KEYS) {
            if (a.causal)
                first = max(0, min(stream_rows, row0 - sight.shift)) / TILE;
            if (row0 >= sight.end)
                count = first;
        } else {
            const int last = a.causal ? min(sight.end, row1 + sight.shift) : sight.end;

            count = last > 0 ? (last + TILE - 1) / TILE : 0;
        }
    }

    for (int round = 0; round < g.rounds; round++) {
        const int strip = (chunk * g.rounds + round) * g.warps + sub, row0 = strip * STRIP;
        const bool busy = real && row0 < own_rows;
        float acc[D / 8][4], other[KEYS ? D / 8 : 1][4], by[2] = {}, total[FORM_PARAMS] = {};
        struct form_row mine[2];
        bool live[2] = {}, wanted = MODE != FORM_SWEEP;

        att_zero(acc);
        att_zero(other);
        if constexpr (!KEYS)
#pragma unroll
            for (int r = 0; r < 2; r++)
                live[r] = form_load<F>(&mine[r], &by[r], a, use, u, sight, bh, row0 + lane / 4 + 8 * r);
        if constexpr (MODE == FORM_SWEEP)
            wanted =
                F::two(u) || __ballot_sync(PK_WARP_ALL, (live[0] && by[0] == 0) || (live[1] && by[1] == 0));
        if constexpr (MODE == FORM_SWEEP)
            if (!g.resident && !__syncthreads_or(busy && wanted))
                continue; /* nothing to compute for the whole block */
        if (busy) {
            att_copy<T>(own, pitch, own_1, b, h, row0, STRIP, own_rows, a, g.lanes_log, 0, 1);
            att_copy<T>(own + STRIP * pitch, pitch, own_2, b, h, row0, STRIP, own_rows, a, g.lanes_log, 0, 1);
        }
        flow.open(round, first, count);
        for (int t = first; t < count; t++) {
            const T *const tile = flow.next(t, first, count);
            const int column0 = t * TILE;
            float x[4][4], dp[4][4];

            if (busy && wanted &&
                !(KEYS ? att_closed(sight, column0, TILE, row0) : att_closed(sight, row0, STRIP, column0))) {
                form_tile<M, F, MODE>(x, dp, a, use, sight, draw, u, bh, h, own, tile, pitch, row0, column0,
                                      mine, by, live, total);
                if constexpr (MODE != FORM_SWEEP)
                    M::template add<4, D>(acc, dp, tile, pitch, c0, a.d16);
                if constexpr (KEYS)
                    M::template add<4, D>(other, x, tile + TILE * pitch, pitch, c0, a.d16);
            }
            flow.close();
        }
        if constexpr (MODE == FORM_SWEEP) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = row0 + lane / 4 + 8 * r;
                const float d = form_four(mine[r].d);

                if (busy && lane % 4 == 0 && live[r] && !F::two(u) && by[r] == 0)
                    *form_field(a, use, bh, FORM_D, i) = d;
#pragma unroll
                for (int k = 0; k < FORM_ROWS; k++) {
                    float sum;

                    if (k >= F::rows(u) || !F::two(u))
                        break;
                    sum = form_four(mine[r].drow[k]);
                    if (busy && lane % 4 == 0 && i < a.nq)
                        *form_field(a, use, bh, FORM_DROW + k, i) =
                            live[r] && !(mine[r].row[k] == 0 && !form_finite(sum)) ? sum : 0;
                }
            }
        } else if (busy) {
            const struct att_rows &to = KEYS ? a.dk : a.dq;

#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = row0 + lane / 4 + 8 * r, at = c0 + lane % 4 * 2;

                if (i >= own_rows)
                    continue;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    att_store<T>((T *)to.p + b * to.sb + h * to.sh + i * to.sn, at + n * 8, a.d,
                                 acc[n][2 * r] * a.tau, acc[n][2 * r + 1] * a.tau);
                    if constexpr (KEYS)
                        att_store<T>((T *)a.dv.p + b * a.dv.sb + h * a.dv.sh + i * a.dv.sn, at + n * 8, a.d,
                                     other[n][2 * r], other[n][2 * r + 1]);
                }
            }
        }
        if (MODE == FORM_QUERIES && c0 == 0)
#pragma unroll
            for (int k = 0; k < FORM_PARAMS; k++) {
                double sum = (double)total[k];

                if (k >= F::params(u))
                    break;
                for (int d = PK_WARP / 2; d > 0; d /= 2)
                    sum += __shfl_xor_sync(PK_WARP_ALL, sum, d);
                if (busy && lane == 0)
                    use.parts[(bh * use.strips + strip) * F::params(u) + k] = sum;
            }
        if (g.rounds > 1)
            __syncwarp(); /* before the own rows are written again */
    }
    pk_copy_wait<0>();
}

/* dS of 16 queries a warp by 32 keys, of one head and one run of the batch: blockIdx is (key tile, strips, run and head). */
template <class M, class F>
__device__ __forceinline__ void form_bias(const struct att &a, const struct att_deal &g,
                                          const struct form_use &use)
{
    typedef typename M::T T;
    PK_SHARED(T, shared);
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int h = (int)blockIdx.z % a.heads, run = (int)blockIdx.z / a.heads;
    const int row0 = ((int)blockIdx.y * g.warps + warp) * STRIP, column0 = (int)blockIdx.x * TILE;
    const int from = (int)((int64_t)run * a.batch / use.runs_n),
              end = (int)((int64_t)(run + 1) * a.batch / use.runs_n);
    const struct form_head u = form_head_of<F>(a, use, h);
    T *const own = shared + warp * STRIP * 2 * pitch, *const tile = shared + g.warps * STRIP * 2 * pitch;
    float sum[4][4], total[FORM_PARAMS] = {};

    att_zero(sum);
    for (int b = from; b < end; b++) {
        const struct att_sight sight = att_sight_of(a, b);
        const int64_t bh = (int64_t)b * a.heads + h;
        float x[4][4], dp[4][4], by[2];
        struct form_row mine[2];
        bool live[2];

        __syncthreads();
        att_copy<T>(own, pitch, a.q, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        att_copy<T>(own + STRIP * pitch, pitch, a.dy, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        att_copy<T>(tile, pitch, a.k, b, h, column0, TILE, sight.end, a, g.lanes_log, warp, g.warps);
        att_copy<T>(tile + TILE * pitch, pitch, a.v, b, h, column0, TILE, sight.end, a, g.lanes_log, warp,
                    g.warps);
        pk_copy_commit();
        pk_copy_wait<0>();
        __syncthreads();
        if (att_closed(sight, row0, STRIP, column0))
            continue;
#pragma unroll
        for (int r = 0; r < 2; r++)
            live[r] = form_load<F>(&mine[r], &by[r], a, use, u, sight, bh, row0 + lane / 4 + 8 * r);
        form_tile<M, F, FORM_QUERIES>(x, dp, a, use, sight, att_draw_of(a, bh), u, bh, h, own, tile, pitch,
                                      row0, column0, mine, by, live, total);
        ATT_EACH(4, n, e)
        {
            sum[n][e] += dp[n][e];
        }
    }
    ATT_EACH(4, n, e)
    {
        const int i = row0 + lane / 4 + e / 2 * 8, j = column0 + n * 8 + lane % 4 * 2 + e % 2;

        if (i < a.nq && j < a.nk)
            use.runs[(((int64_t)run * a.heads + h) * a.nq + i) * a.nk + j] = sum[n][e];
    }
}

/* ---- the kernels of one arithmetic, head length and formula: all take the same three structs ---- */

/* X(name, body): as many as enum form_kernel. */
#define FORM_FORWARD_KERNELS(X)                                                                              \
    X(forward, (form_forward<M, F, D>(a, g, u)))                                                             \
    X(join, (form_join<M, F>(a, g, u)))
#define FORM_BACKWARD_KERNELS(X)                                                                             \
    FORM_SCALARS_KERNELS(X)                                                                                  \
    X(keys, (form_backward<M, F, D, FORM_KEYS>(a, g, u)))                                                    \
    X(queries, (form_backward<M, F, D, FORM_QUERIES>(a, g, u)))                                              \
    X(bias, (form_bias<M, F>(a, g, u)))
/* What the scalars' gradients need where the kernels of sm 90 compute the others. */
#define FORM_SCALARS_KERNELS(X)                                                                              \
    X(rows, (form_rows<M, F>(a, u)))                                                                         \
    X(sweep, (form_backward<M, F, D, FORM_SWEEP>(a, g, u)))                                                  \
    X(turn, (form_turn_back<F>(a, u)))                                                                       \
    X(scalars, (form_scalars<F>(a, u)))
