/* ATTENTION_BWD, in the tiles of tile.cuh, with the scores computed again:
 *
 *     S = tau q k' + bias    P = phi(S)    dP = dY v'    dS = phi'(S) dP
 *     dv = c P' dY    dk = c' tau dS' q    dq = c' tau dS k    dbias = c' sum of dS over the batch
 *     dc = sum of P dP
 *
 * c' is c, times p for x^p; if rows are normalised, dS contains c instead. Two passes of one kernel: in
 * the first a warp owns 16 keys (k, v) and queries (q, dY) stream past: dk, dv. In the second it owns 16
 * queries, keys and values stream past: dq, and of each strip its part of dc. So every result has one owner
 * that adds in one order: no atomics, no partial dq in memory, for two products in seven done twice. A third
 * kernel, where there is a bias, owns 16 queries by 32 keys of a head and goes through the batch, or through
 * a run of it, and the runs are added up in their order.
 *
 * Up to 256 keys in bf16, heads to 64, are once.cu's: one pass. This is for the rest, and for so
 * few pairs that their rows must be split to fill the device.
 *
 * Nothing of A is saved: U = P v of the formula dc = sum dY U is not needed either, since sum(P dP) is the
 * same sum; c may be 0. Normalised rows need the sums of the forward pass and rowsum(dY Y), which a kernel of
 * its own prepares. row_power multiplies P and dS rather than dY, which would round dY again.
 *
 * Counted per (b, h): 14 Nq Nk d FLOP; q, k, v, dy read twice and more where a side does not stay; dq, dk, dv
 * written once. Shared memory, d = 64, bf16: 18 KiB of own rows + 18 KiB for two tiles. */
#include "kernels/backend/cuda/attention/bwd.cuh"

#define RUNS_BLOCKS 8 /* blocks per multiprocessor in the pass of the bias */

/* rowsum(dY Y): a warp for each query. */
template <typename T> static __global__ void delta_kernel(const struct att a, float *to)
{
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / PK_WARP, bh = row / a.nq;
    const int i = (int)(row % a.nq), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const T *const y = (const T *)a.y.p + b * a.y.sb + h * a.y.sh + i * a.y.sn;
    const T *const dy = (const T *)a.dy.p + b * a.dy.sb + h * a.dy.sh + i * a.dy.sn;
    float sum = 0;

    if (row >= (int64_t)a.batch * a.heads * a.nq)
        return;
    for (int c = (int)threadIdx.x % PK_WARP; c < a.d; c += PK_WARP)
        sum += pk_float(y[c * a.y.sd]) * pk_float(dy[c * a.dy.sd]);
    sum = pk_warp_sum(sum);
    if (threadIdx.x % PK_WARP == 0)
        to[row] = sum;
}

template <class M, int D, bool POLY, bool KEYS>
static __global__ void __launch_bounds__(128, (D <= 64 ? 3 : 2) - KEYS)
    backward_kernel(const struct att a, const struct att_deal g, double *const dscale, int strips)
{
    typedef typename M::T T;
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
    const float c = att_factor(a, h);
    /* Keys beyond the length are not read: they may hold NaN, and 0 times NaN is not 0. */
    const int own_rows = KEYS ? a.nk : a.nq, stream_rows = KEYS ? a.nq : sight.end;
    T *const own = shared + warp * STRIP * 2 * pitch;
    const struct att_draw draw = att_draw_of(a, bh);
    const struct att_rows &own_1 = KEYS ? a.k : a.q, &own_2 = KEYS ? a.v : a.dy;
    const struct att_rows &tile_1 = KEYS ? a.q : a.k, &tile_2 = KEYS ? a.dy : a.v;
    T *const tiles = shared + (g.warps * g.per_block * STRIP * 2 + slot * TILE * 2) * pitch;
    const int stage = g.per_block * TILE * 2 * pitch;
    const struct att_flow<T> flow = {
        a, g, tile_1, tile_2, tiles, pitch, stage, sub, 0, stream_rows, b, h, real
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
            if (a.local)
                count = min(count, (row0 / a.local + 1) * a.local / TILE);
        } else {
            int last = sight.end;

            if (a.causal)
                last = min(last, row1 + sight.shift);
            count = last > 0 ? (last + TILE - 1) / TILE : 0;
            if (a.local)
                first = row0 / a.local * a.local / TILE;
        }
    }

    for (int round = 0; round < g.rounds; round++) {
        const int strip = (chunk * g.rounds + round) * g.warps + sub, row0 = strip * STRIP;
        const bool busy = real && row0 < own_rows;
        float acc[D / 8][4], other[KEYS ? D / 8 : 1][4], by[KEYS ? 8 : 2], delta[KEYS ? 8 : 2], total = 0;

        att_zero(acc);
        att_zero(other);
        if (busy) {
            att_copy<T>(own, pitch, own_1, b, h, row0, STRIP, own_rows, a, g.lanes_log, 0, 1);
            att_copy<T>(own + STRIP * pitch, pitch, own_2, b, h, row0, STRIP, own_rows, a, g.lanes_log, 0, 1);
        }
        if (!KEYS)
            for (int r = 0; r < 2; r++)
                att_row_statistics(a, sight, bh, b, h, row0 + lane / 4 + 8 * r, &by[r], &delta[r]);
        flow.open(round, first, count);
        for (int t = first; t < count; t++) {
            const T *const tile = flow.next(t, first, count);
            const int column0 = t * TILE;
            float x[4][4], dp[4][4];

            if (busy &&
                !(KEYS ? att_closed(sight, column0, TILE, row0) : att_closed(sight, row0, STRIP, column0))) {
                if (KEYS)
#pragma unroll
                    for (int n = 0; n < 8; n++)
                        att_row_statistics(a, sight, bh, b, h, column0 + n / 2 * 8 + lane % 4 * 2 + n % 2,
                                           &by[n], &delta[n]);
                total += att_tile_backward<M, POLY, KEYS>(x, dp, a, sight, draw, h, c, own, tile, pitch, row0,
                                                          column0, by, delta);
                M::template add<4, D>(acc, dp, tile, pitch, c0, a.d16);
                if constexpr (KEYS)
                    M::template add<4, D>(other, x, tile + TILE * pitch, pitch, c0, a.d16);
            }
            flow.close();
        }
        if (busy) {
            const float inner = att_inner(a, h) * a.tau;
            const struct att_rows &to = KEYS ? a.dk : a.dq;

#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = row0 + lane / 4 + 8 * r, at = c0 + lane % 4 * 2;

                if (i >= own_rows)
                    continue;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    att_store<T>((T *)to.p + b * to.sb + h * to.sh + i * to.sn, at + n * 8, a.d,
                                 acc[n][2 * r] * inner, acc[n][2 * r + 1] * inner);
                    if constexpr (KEYS)
                        att_store<T>((T *)a.dv.p + b * a.dv.sb + h * a.dv.sh + i * a.dv.sn, at + n * 8, a.d,
                                     other[n][2 * r] * c, other[n][2 * r + 1] * c);
                }
            }
        }
        if (!KEYS && dscale && c0 == 0) {
            double sum = total;

            for (int d = PK_WARP / 2; d > 0; d /= 2)
                sum += __shfl_xor_sync(PK_WARP_ALL, sum, d);
            if (busy && lane == 0)
                dscale[bh * strips + strip] = sum;
        }
        if (g.rounds > 1)
            __syncwarp(); /* before the own rows are written again */
    }
    pk_copy_wait<0>();
}

/* dscale[i] from the strips of all pairs that share it. One block for each. */
static __global__ void dscale_kernel(const struct att a, const double *from, int strips, bool shared_by_all,
                                     float *to)
{
    __shared__ double part[256];
    const int64_t each = (int64_t)a.batch * strips * (shared_by_all ? a.heads : 1);
    double sum = 0;

    for (int64_t x = threadIdx.x; x < each; x += 256) {
        const int64_t b = x / strips;

        sum += from[shared_by_all ? x : (b * a.heads + blockIdx.x) * strips + x % strips];
    }
    part[threadIdx.x] = sum;
    for (int n = 128; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n)
            part[threadIdx.x] += part[threadIdx.x + n];
    }
    if (threadIdx.x == 0)
        to[blockIdx.x] = (float)(part[0] * a.factor);
}

/* dbias of 16 queries a warp by 32 keys, of one head and one run of the batch: blockIdx is (key tile, strips,
 * run and head). runs (H, Nq, Nk) each, without the factors c and p. */
template <class M>
static __global__ void __launch_bounds__(128, 2)
    dbias_kernel(const struct att a, const struct att_deal g, int runs, float *const to)
{
    typedef typename M::T T;
    PK_SHARED(T, shared);
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int h = (int)blockIdx.z % a.heads, run = (int)blockIdx.z / a.heads;
    const int row0 = ((int)blockIdx.y * g.warps + warp) * STRIP, column0 = (int)blockIdx.x * TILE;
    const int from = (int)((int64_t)run * a.batch / runs), end = (int)((int64_t)(run + 1) * a.batch / runs);
    const float c = att_factor(a, h);
    T *const own = shared + warp * STRIP * 2 * pitch, *const tile = shared + g.warps * STRIP * 2 * pitch;
    float sum[4][4];

    att_zero(sum);
    for (int b = from; b < end; b++) {
        const struct att_sight sight = att_sight_of(a, b);
        const int64_t bh = (int64_t)b * a.heads + h;
        float x[4][4], dp[4][4], by[2], delta[2];

        __syncthreads();
        att_copy<T>(own, pitch, a.q, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        att_copy<T>(own + STRIP * pitch, pitch, a.dy, b, h, row0, STRIP, a.nq, a, g.lanes_log, 0, 1);
        att_copy<T>(tile, pitch, a.k, b, h, column0, TILE, a.nk, a, g.lanes_log, warp, g.warps);
        att_copy<T>(tile + TILE * pitch, pitch, a.v, b, h, column0, TILE, a.nk, a, g.lanes_log, warp,
                    g.warps);
        pk_copy_commit();
        pk_copy_wait<0>();
        __syncthreads();
        if (att_closed(sight, row0, STRIP, column0))
            continue;
        for (int r = 0; r < 2; r++)
            att_row_statistics(a, sight, bh, b, h, row0 + lane / 4 + 8 * r, &by[r], &delta[r]);
        att_tile_backward<M, false, false>(x, dp, a, sight, att_draw_of(a, bh), h, c, own, tile, pitch, row0,
                                           column0, by, delta);
        ATT_EACH(4, n, e)
        {
            sum[n][e] += dp[n][e];
        }
    }
    ATT_EACH(4, n, e)
    {
        const int i = row0 + lane / 4 + e / 2 * 8, j = column0 + n * 8 + lane % 4 * 2 + e % 2;

        if (i < a.nq && j < a.nk)
            to[(((int64_t)run * a.heads + h) * a.nq + i) * a.nk + j] = sum[n][e];
    }
}

static __global__ void dbias_sum_kernel(const struct att a, const float *runs, int count, float *to)
{
    const int64_t size = (int64_t)a.heads * a.nq * a.nk, x = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;

    if (x >= size)
        return;
    for (int r = 0; r < count; r++)
        sum += runs[r * size + x];
    to[x] = sum * att_inner(a, (int)(x / ((int64_t)a.nq * a.nk)));
}

/* ---- host ---- */

namespace
{
/* Offsets in the workspace. */
struct scratch {
    size_t delta, dscale, dbias, bytes;
    int runs, strips; /* strips: numbers of dscale a pair */
    bool once;        /* one pass (once.cu); `summed`: with the sums of the bias */
    bool summed;
};
} // namespace

static size_t take(size_t *used, size_t bytes)
{
    const size_t at = *used;

    *used += (bytes + 255) / 256 * 256;
    return at;
}

int att_bias_runs(const struct pk_backend *b, const struct att *a)
{
    const int64_t blocks = cuda_div_up(a->nk > 0 ? a->nk : 1, TILE) *
                           cuda_div_up(a->nq > 0 ? a->nq : 1, 4 * STRIP) * (a->heads > 0 ? a->heads : 1);
    const int64_t want = cuda_div_up((int64_t)att_multiprocessors(b) * RUNS_BLOCKS, blocks);
    const int64_t runs = want < a->batch ? want : a->batch;

    return runs < 1 ? 1 : (int)runs;
}

enum pd_err att_add_bias_runs(struct pk_backend *b, const struct att *a, const float *runs, int count, float *to,
                              struct pd_why *why)
{
    PK_LAUNCH(dbias_sum_kernel, dim3((unsigned)cuda_div_up((int64_t)a->heads * a->nq * a->nk, 256)), dim3(256), 0,
              b->stream, *a, runs, count, to);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static struct scratch scratch_of(const struct pk_backend *b, const struct att *a, enum att_math math)
{
    const size_t rows = (size_t)a->batch * (size_t)a->heads * (size_t)a->nq;
    struct scratch s = {};

    s.once = att_once_takes(b, a, math);
    s.summed = s.once && att_once_runs(b, a) > 0;
    s.strips = s.once ? att_once_warps(a) : (a->nq + STRIP - 1) / STRIP;
    if (a->normalised)
        s.delta = take(&s.bytes, rows * sizeof(float));
    s.dscale = take(&s.bytes, (size_t)a->batch * (size_t)a->heads * (size_t)s.strips * sizeof(double));
    if (a->has_bias) {
        s.runs = s.summed ? att_once_runs(b, a) : att_bias_runs(b, a);
        s.dbias =
            take(&s.bytes, (size_t)s.runs * (size_t)a->heads * (size_t)a->nq * (size_t)a->nk * sizeof(float));
    }
    return s;
}

extern "C" bool cuda_attention_bwd_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_attention_supports(b, c);
}

extern "C" size_t cuda_attention_bwd_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;

    if (att_is_hopper(b, c))
        return att_order_workspace(b, c, cuda_attention_hopper_workspace(b, c));
    att_read(&a, c);
    return att_order_workspace(b, c, scratch_of(b, &a, att_math_of(b, c)).bytes);
}

static enum pd_err too_long(const struct att *a, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED,
                   "attention: heads of %d need more shared memory than a block has here", a->d);
}

template <class M, int D, bool POLY>
static enum pd_err launch(struct pk_backend *b, const struct att *a, double *dscale, int strips,
                          struct pd_why *why)
{
    const int64_t pairs = (int64_t)a->batch * a->heads;
    const size_t element = sizeof(typename M::T);
    const unsigned channels = (unsigned)cuda_div_up(a->d16, D);
    struct att_deal g = att_deal_of(b, pairs, a->nk, a->nq, a->d16, element, 2, 2, 4, 1);

    if (g.shared > b->shared_most)
        return too_long(a, why);
    if (a->nk > 0) {
        ATT_LAUNCH((backward_kernel<M, D, POLY, true>), dim3(att_blocks(&g), channels), g, b->stream, *a, g,
                   (double *)NULL, 0);
    }
    g = att_deal_of(b, pairs, a->nq, a->nk, a->d16, element, 2, 2, 4, 1);
    if (g.shared > b->shared_most)
        return too_long(a, why);
    if (a->nq > 0) {
        ATT_LAUNCH((backward_kernel<M, D, POLY, false>), dim3(att_blocks(&g), channels), g, b->stream, *a, g,
                   dscale, strips);
    }
    return PD_OK;
}

template <class M>
static enum pd_err launch_dbias(struct pk_backend *b, const struct att *a, const struct scratch *s,
                                float *runs, struct pd_why *why)
{
    const struct att_deal g = att_deal_of(b, 1, a->nq, TILE, a->d16, sizeof(typename M::T), 2, 2, 4, 1);

    if (g.shared > b->shared_most)
        return too_long(a, why);
    ATT_LAUNCH((dbias_kernel<M>),
               dim3((unsigned)cuda_div_up(a->nk, TILE), (unsigned)cuda_div_up(a->nq, g.warps * STRIP),
                    (unsigned)(s->runs * a->heads)),
               g, b->stream, *a, g, s->runs, runs);
    return PD_OK;
}

template <typename T>
static enum pd_err launch_delta(struct pk_backend *b, const struct att *a, float *to, struct pd_why *why)
{
    PK_LAUNCH((delta_kernel<T>), dim3((unsigned)cuda_div_up((int64_t)a->batch * a->heads * a->nq, 4)),
              dim3(128), 0, b->stream, *a, to);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

enum pd_err att_square_bwd(struct pk_backend *b, const struct att *a, enum att_math math, double *dscale,
                           int strips, struct pd_why *why)
{
    const bool poly = a->power;

    switch (math) {
    case ATT_BF16:
        if (a->d <= 64)
            return poly ? launch<att_bf16, 64, true>(b, a, dscale, strips, why)
                        : launch<att_bf16, 64, false>(b, a, dscale, strips, why);
        return poly ? launch<att_bf16, 128, true>(b, a, dscale, strips, why)
                    : launch<att_bf16, 128, false>(b, a, dscale, strips, why);
    case ATT_TF32:
        return a->d <= 64 ? launch<att_tf32, 64, false>(b, a, dscale, strips, why)
                          : launch<att_tf32, 128, false>(b, a, dscale, strips, why);
    default:
        return launch<att_f32, 128, false>(b, a, dscale, strips, why);
    }
}

enum pd_err att_add_dscale(struct pk_backend *b, const struct att *a, const double *from, int strips,
                           const struct pk_view *to, struct pd_why *why)
{
    const int64_t n = to->shape.dim[0];

    PK_LAUNCH(dscale_kernel, dim3((unsigned)n), dim3(256), 0, b->stream, *a, from, strips,
              n == 1 && a->heads > 1, (float *)to->data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

int att_read_bwd(struct att *a, const struct pk_call *c)
{
    a->y = att_rows_of(&c->in[a->after], 0, 2, 1, 3);
    a->dy = att_rows_of(&c->in[a->after + 1], 0, 2, 1, 3);
    if (c->attr->attention.packed) {
        a->dq = att_rows_part(&c->out[0], 0);
        a->dk = att_rows_part(&c->out[0], 1);
        a->dv = att_rows_part(&c->out[0], 2);
        return 1;
    }
    a->dq = att_rows_dense(&c->out[0], a->heads, a->nq, a->d);
    a->dk = att_rows_dense(&c->out[1], a->heads, a->nk, a->d);
    a->dv = att_rows_dense(&c->out[2], a->heads, a->nk, a->d);
    return 3;
}

extern "C" enum pd_err cuda_attention_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const enum att_math math = att_math_of(b, c);
    const struct pk_attention_attr *x = &c->attr->attention;
    char *const work = (char *)c->workspace;
    struct att a;
    struct scratch s;
    enum pd_err err = PD_OK;
    double *dscale;
    int out;

    if (att_is_linear(b, c))
        return att_linear_bwd(b, c, why);
    if (att_is_hopper(b, c))
        return cuda_attention_hopper_bwd(b, c, why);
    att_read(&a, c);
    s = scratch_of(b, &a, math);
    out = att_read_bwd(&a, c);
    dscale = x->has_scale ? (double *)(work + s.dscale) : NULL;
    if (a.batch > 0 && a.heads > 0) {
        if (a.normalised && a.nq > 0) {
            const struct pk_view *v = &c->in[a.after + 2];
            float *const delta = (float *)(work + s.delta);

            a.sums_in = (const float *)v->data;
            a.sums_b = v->stride[0];
            a.sums_h = v->stride[1];
            a.sums_i = v->stride[2];
            err = math == ATT_BF16 ? launch_delta<__nv_bfloat16>(b, &a, delta, why)
                                   : launch_delta<float>(b, &a, delta, why);
            a.delta = delta;
        }
        if (err == PD_OK && s.once)
            err = att_once(b, &a, dscale, s.summed ? (float *)(work + s.dbias) : NULL, why);
        else if (err == PD_OK)
            err = att_square_bwd(b, &a, math, dscale, s.strips, why);
    }
    if (err == PD_OK && x->has_scale)
        err = att_add_dscale(b, &a, dscale, s.strips, &c->out[out++], why);
    if (err != PD_OK)
        return err;
    if (x->has_bias && (int64_t)a.heads * a.nq * a.nk > 0) {
        float *const runs = (float *)(work + s.dbias);

        if (!s.summed)
            err = math == ATT_BF16   ? launch_dbias<att_bf16>(b, &a, &s, runs, why)
                  : math == ATT_TF32 ? launch_dbias<att_tf32>(b, &a, &s, runs, why)
                                     : launch_dbias<att_f32>(b, &a, &s, runs, why);
        if (err != PD_OK)
            return err;
        return att_add_bias_runs(b, &a, runs, s.runs, (float *)c->out[out].data, why);
    }
    return PD_OK;
}
