/* ATTENTION: y = c phi(tau q k' + bias) v, in the tiles of tile.cuh.
 *
 * A warp owns 16 queries and keeps their q, scores and sums of y in registers; tiles of 32 keys and values
 * pass through shared memory, two in flight, or all of a pair at once where they fit. Block: 4
 * warps; heads longer than 128 take one block for each 128 channels of y, which computes the
 * scores again. Few queries and many keys (decoding): the keys are split in parts, each a pair of its own
 * with one warp, and a second kernel adds the parts up in their order.
 *
 * Polynomials, sigmoid and ReLU are additive over tiles: no running maximum, nothing saved. Factors that are
 * one number per head or row are applied to the sums at the end. Masks select 0 after phi: a masked entry is
 * exactly 0 even if phi overflows. Scores, phi and sums are f32; A is rounded to bf16 (TF32) for the
 * second product without its factor c, which loses no accuracy with these types (kernels/ENGINE.md 10).
 *
 * Decoding, counted at batch 256, 12 heads, d = 64: a block is 4 pairs with a warp each; 83 KiB of shared
 * memory let two blocks stay on a multiprocessor, and half of their tiles, 74 KiB, are on their way at any
 * time, where 23 KiB would hide 700 ns of latency at 4.3 TB/s. Keys and values are read once, in 16-byte
 * pieces, and none beyond the length. One stream alone (12 pairs, 1024 keys) becomes 192 blocks of 64 keys.
 *
 * Counted per (b, h): 4 Nq Nk d FLOP of products (half of it causal); q, k, v read once, k and v again for
 * each further 64 queries where they do not stay; y written once. Shared memory, d = 64, bf16: 9 KiB of
 * queries + 18 KiB for two tiles; N = 197 whole: 9 + 63. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

/* Least keys per part, so that a split is worth its partial sums, which one warp per query adds. */

/* Maxima of softmax are those of logits times log2 e: an exponential is then one fma and one ex2. */
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

template <class M, int D, bool POLY>
static __global__ void __launch_bounds__(128, D <= 64 ? 3 : 2)
    forward_kernel(const struct att a, const struct att_deal g, float *const parts)
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
    const int lo = (int)(pair % g.parts) * g.part_rows, hi = min(sight.end, lo + g.part_rows);
    const bool softmax = !POLY && a.shifted;
    T *const own = shared + warp * STRIP * pitch;
    T *const tiles = shared + (g.warps * g.per_block * STRIP + slot * TILE * 2) * pitch;
    const int stage = g.per_block * TILE * 2 * pitch;
    const struct att_flow<T> flow = {
        a, g, a.k, a.v, tiles, pitch, stage, sub, lo, hi, b, h, real
    };
    const struct att_draw draw = att_draw_of(a, bh);
    int begin = 0, count = g.tiles;

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
        if (a.local && g.per_block == 1)
            begin = chunk * g.warps * STRIP / a.local * a.local / TILE;
    }

    for (int round = 0; round < g.rounds; round++) {
        const int strip = (chunk * g.rounds + round) * g.warps + sub, row0 = strip * STRIP;
        const bool busy = real && row0 < a.nq;
        float acc[D / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
        struct att_held<M, D> held;

        att_zero(acc);
        if (busy)
            att_copy<T>(own, pitch, a.q, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        flow.open(round, begin, count);
        for (int t = begin; t < count; t++) {
            const T *const k = flow.next(t, begin, count), *const v = k + TILE * pitch;
            const int k0 = lo + t * TILE;
            float x[NT][4];
            uint32_t seen = ~0u;
            bool open;

            if (t == begin && busy)
                held.load(own, pitch, a.d16);
            if (busy && k0 < hi && !att_closed(sight, row0, STRIP, k0)) {
                att_zero(x);
                held.scores(x, own, k, pitch, a.d16);
                att_logits<NT, false>(x, a, h, row0, k0);
                open = k0 + TILE <= hi && att_open(sight, row0, STRIP, k0, TILE);
                if (!open) {
                    seen = att_seen_bits<NT, false>(sight, row0, k0);
                    if (k0 + TILE > hi) /* the end of a part */
                        ATT_EACH(NT, n, e)
                        {
                            if (k0 + n * 8 + lane % 4 * 2 + e % 2 >= hi)
                                seen &= ~(1u << (4 * n + e));
                        }
                }
                if (softmax) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        float m = -INFINITY, base, shrink;

#pragma unroll
                        for (int n = 0; n < NT; n++)
#pragma unroll
                            for (int e = 2 * r; e < 2 * r + 2; e++) {
                                if (!(seen >> (4 * n + e) & 1))
                                    x[n][e] = -INFINITY;
                                m = fmaxf(m, x[n][e]);
                            }
                        m = fmaxf(m, __shfl_xor_sync(PK_WARP_ALL, m, 1));
                        m = fmaxf(m, __shfl_xor_sync(PK_WARP_ALL, m, 2));
                        m = fmaxf(top[r], m * LOG2_E);
                        base = m == -INFINITY ? 0 : m;
                        shrink = pk_exp2(top[r] - base);
                        top[r] = m;
                        sum[r] *= shrink;
#pragma unroll
                        for (int n = 0; n < D / 8; n++) {
                            acc[n][2 * r] *= shrink;
                            acc[n][2 * r + 1] *= shrink;
                        }
#pragma unroll
                        for (int n = 0; n < NT; n++)
#pragma unroll
                            for (int e = 2 * r; e < 2 * r + 2; e++) {
                                x[n][e] = pk_exp2(fmaf(x[n][e], LOG2_E, -base));
                                sum[r] += x[n][e];
                            }
                    }
                } else {
                    att_phi<NT, POLY>(x, a);
                    if (!open)
                        att_hide<NT>(x, seen);
                    if (!POLY)
                        ATT_EACH(NT, n, e)
                        {
                            sum[e / 2] += x[n][e];
                        }
                }
                if (a.rng)
                    att_drop<NT>(x, att_kept_bits<NT, false>(draw, row0, k0), a.kept);
                M::template add<NT, D>(acc, x, v, pitch, c0, a.d16);
            }
            flow.close();
        }
        if (!POLY)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                sum[r] += __shfl_xor_sync(PK_WARP_ALL, sum[r], 1);
                sum[r] += __shfl_xor_sync(PK_WARP_ALL, sum[r], 2);
            }
        if (busy)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = row0 + lane / 4 + 8 * r, c = c0 + lane % 4 * 2;
                float by = 1;

                if (i >= a.nq)
                    continue;
                if (parts) {
                    float *const to = parts + (pair * a.nq + i) * (a.d16 + 2);

#pragma unroll
                    for (int n = 0; n < D / 8; n++)
                        if (c + n * 8 < a.d16) {
                            to[c + n * 8] = acc[n][2 * r];
                            to[c + n * 8 + 1] = acc[n][2 * r + 1];
                        }
                    if (c == 0) {
                        to[a.d16] = top[r];
                        to[a.d16 + 1] = sum[r];
                    }
                    continue;
                }
                by = att_factor(a, h);
                if (!POLY && a.normalised) {
                    if (c == 0)
                        a.sums[bh * a.nq + i] = !softmax      ? sum[r]
                                                : sum[r] == 0 ? -INFINITY
                                                              : top[r] * LN_2 + logf(sum[r]);
                    by = sum[r] == 0 ? 0 : by / sum[r];
                }
                if (a.row_power != 0)
                    by *= att_row_factor(a, sight.shift, i);
#pragma unroll
                for (int n = 0; n < D / 8; n++)
                    att_store<T>((T *)a.y.p + b * a.y.sb + h * a.y.sh + i * a.y.sn, c + n * 8, a.d,
                                 acc[n][2 * r] * by, acc[n][2 * r + 1] * by);
            }
    }
    pk_copy_wait<0>();
}

/* Sums the parts of the keys, in order: one warp per query. */
template <typename T> static __global__ void parts_kernel(const struct att a, int count, const float *parts)
{
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / PK_WARP, bh = row / a.nq;
    const int lane = (int)threadIdx.x % PK_WARP, i = (int)(row % a.nq);
    const bool normalised = a.normalised, softmax = a.shifted;
    const int64_t width = a.d16 + 2;
    const float *const from = parts + (bh * count * a.nq + i) * width;
    float top = -INFINITY, sum = 0, by;
    int b, h;

    if (row >= (int64_t)a.batch * a.heads * a.nq)
        return;
    b = (int)(bh / a.heads);
    h = (int)(bh % a.heads);
    for (int s = 0; softmax && s < count; s++)
        top = fmaxf(top, from[s * a.nq * width + a.d16]);
    top = top == -INFINITY ? 0 : top;
    for (int s = 0; normalised && s < count; s++) {
        const float *const x = from + s * a.nq * width + a.d16;

        sum += softmax ? x[1] * pk_exp2(x[0] - top) : x[1];
    }
    by = att_factor(a, h);
    if (normalised) {
        if (lane == 0)
            a.sums[row] = !softmax ? sum : sum == 0 ? -INFINITY : top * LN_2 + logf(sum);
        by = sum == 0 ? 0 : by / sum;
    }
    if (a.row_power != 0)
        by *= att_row_factor(a, att_shift(a, b), i);
    for (int c = lane; c < a.d; c += PK_WARP) {
        float total = 0;

        for (int s = 0; s < count; s++) {
            const float *const x = from + s * a.nq * width;

            total += softmax ? x[c] * pk_exp2(x[a.d16] - top) : x[c];
        }
        ((T *)a.y.p)[b * a.y.sb + h * a.y.sh + i * a.y.sn + c] = pk_narrow<T>(total * by);
    }
}

/* ---- host ---- */

static struct att_deal deal_of(const struct pk_backend *b, const struct att *a, enum att_math math, int parts)
{
    return att_deal_of(b, (int64_t)a->batch * a->heads, a->nq, a->nk, a->d16, math == ATT_BF16 ? 2 : 4, 1, 2,
                       4, parts);
}

template <class M, int D, bool POLY>
static enum pd_err launch(struct pk_backend *b, const struct att *a, const struct att_deal *g, float *parts,
                          struct pd_why *why)
{
    ATT_LAUNCH((forward_kernel<M, D, POLY>), dim3(att_blocks(g), (unsigned)cuda_div_up(a->d16, D)), *g,
               b->stream, *a, *g, parts);
    if (parts) {
        const int64_t rows = (int64_t)a->batch * a->heads * a->nq;

        PK_LAUNCH((parts_kernel<typename M::T>), dim3((unsigned)cuda_div_up(rows, 4)), dim3(128), 0,
                  b->stream, *a, g->parts, parts);
        PK_CUDA_TRY(cudaGetLastError());
    }
    return PD_OK;
}

extern "C" bool cuda_attention_supports(const struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_shape *s = &c->in[0].shape;

    (void)b;
    return s->dim[s->rank - 1] <= CUDA_ATTENTION_HEAD_MOST;
}

/* Keys with a length are in a cache, whose rest may hold any value, even NaN. The bulk copies of sm 90 load whole
 * tiles, and 0 times NaN is not 0: those calls stay here, where nothing beyond the length is read. */
bool att_is_hopper(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_attention_hopper_supports(b, c);
}

static size_t square_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;
    int parts;

    if (att_is_hopper(b, c))
        return cuda_attention_hopper_workspace(b, c);
    att_read(&a, c);
    parts = att_parts_of(b, &a);
    return parts == 1 ? 0
                      : (size_t)a.batch * (size_t)a.heads * (size_t)parts * (size_t)a.nq *
                            (size_t)(a.d16 + 2) * sizeof(float);
}

extern "C" size_t cuda_attention_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    return att_order_workspace(b, c, square_workspace(b, c));
}

enum pd_err att_square(struct pk_backend *b, const struct att *a, enum att_math math, int parts, float *work,
                       struct pd_why *why)
{
    const struct att_deal g = deal_of(b, a, math, parts);
    const bool poly = a->power;

    if (g.shared > b->shared_most)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "attention: heads of %d need more shared memory than a block has here", a->d);
    switch (math) {
    case ATT_BF16:
        if (a->d <= 64)
            return poly ? launch<att_bf16, 64, true>(b, a, &g, work, why)
                        : launch<att_bf16, 64, false>(b, a, &g, work, why);
        return poly ? launch<att_bf16, 128, true>(b, a, &g, work, why)
                    : launch<att_bf16, 128, false>(b, a, &g, work, why);
    case ATT_TF32:
        return a->d <= 64 ? launch<att_tf32, 64, false>(b, a, &g, work, why)
                          : launch<att_tf32, 128, false>(b, a, &g, work, why);
    default:
        return launch<att_f32, 128, false>(b, a, &g, work, why);
    }
}

extern "C" enum pd_err cuda_attention(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct att a;
    int parts;

    if (att_is_linear(b, c))
        return att_linear(b, c, why);
    if (att_is_hopper(b, c))
        return cuda_attention_hopper(b, c, why);
    att_read(&a, c);
    if (a.batch == 0 || a.heads == 0 || a.nq == 0)
        return PD_OK;
    a.y = att_rows_inside(&c->out[0], a.heads, a.nq, a.d);
    if (a.normalised)
        a.sums = (float *)c->out[1].data;
    parts = att_parts_of(b, &a);
    return att_square(b, &a, att_math_of(b, c), parts, parts > 1 ? (float *)c->workspace : NULL, why);
}
