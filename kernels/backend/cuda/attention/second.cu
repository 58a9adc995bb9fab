/* ATTENTION_JVP and ATTENTION_BWD2 of x^p (kernels/ATTENTION.md 5; the formulas are in
 * backend/cpu/attention_second.c).
 *
 * As in bwd.cu: a warp owns 16 rows of one side, tiles of 32 of the other stream past. In the pass
 * of queries it owns q, tangent(q) and dY; keys, values and their tangents stream by: S, T, and for the
 * second derivative D and E are five products of a tile, the tangent of y and dL/dq four more. In the pass of
 * keys the sides are exchanged: dL/dk and dL/dv. A third kernel, if there is a bias, owns 16 queries by 32
 * keys of a head and goes through the batch. Each sum has one owner and one order: no atomics. Only f32 data, by TF32
 * or without tensor cores, by b->math, because these are second derivatives.
 *
 * Counted per (b, h): the tangent 10 Nq Nk d FLOP, the second derivative 34. Shared memory, d = 64: 51 KiB of
 * own rows and 34 KiB for a tile of each streamed tensor; one buffer, since blocks of several warps share a
 * multiprocessor and these calls are short. A block owns 64 channels of its results. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

#define WARPS 4
#define WIDTH 64

namespace
{
struct second {
    struct att a;
    struct att_rows tq, tk, tv, oq, ok, ov, oy;
    const float *tscale, *tbias;
    int64_t tscale_step, tb_h, tb_i, tb_j;
    double *dscale;
    float *dbias;
    int32_t strips, chunks, warps, lanes_log;
};
} // namespace

/* The four products of a tile, then what is made of them: of x tangent(A), of t A, of d dL/dS, of e dL/dT. */
struct quad {
    float x[4][4], t[4][4], d[4][4], e[4][4];
};

/* Own and streamed rows in shared memory: STRIP or TILE rows each, in the order q (k), tangent, then dY, or v
 * and its tangent. Returns sum(P1 T D + P E). */
template <class M, bool SECOND, bool KEYS>
__device__ __forceinline__ float quad_of(struct quad &z, const struct second &j,
                                         const struct att_sight &sight, int h, const float *own,
                                         const float *tile, int pitch, int row, int column)
{
    const struct att &a = j.a;
    const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;
    const float c = att_factor(a, h), tc = j.tscale ? a.factor * j.tscale[h * j.tscale_step] : 0.0f;
    const float p = (float)a.degree;
    float total = 0;

    att_zero(z.x);
    att_zero(z.t);
    att_scores<M, 4>(z.x, own, tile, pitch, a.d16);
    att_scores<M, 4>(z.t, own + STRIP * pitch, tile, pitch, a.d16);
    att_scores<M, 4>(z.t, own, tile + TILE * pitch, pitch, a.d16);
    att_logits<4, KEYS>(z.x, a, h, row, column);
    if (SECOND) {
        att_zero(z.d);
        att_zero(z.e);
        att_scores<M, 4>(z.d, own + 2 * STRIP * pitch, tile + 2 * TILE * pitch, pitch, a.d16);
        if (KEYS)
            att_scores<M, 4>(z.e, own + 3 * STRIP * pitch, tile + 2 * TILE * pitch, pitch, a.d16);
        else
            att_scores<M, 4>(z.e, own + 2 * STRIP * pitch, tile + 3 * TILE * pitch, pitch, a.d16);
    }
    ATT_EACH(4, n, e)
    {
        const int r = row + g + e / 2 * 8, k = column + n * 8 + 2 * t + e % 2;
        const int i = KEYS ? k : r, at = KEYS ? r : k;
        const float s = z.x[n][e], by = a.row_power != 0 ? att_row_factor(a, sight.shift, i) : 1.0f;
        const bool seen = att_seen(sight, i, at);
        float x = a.tau * z.t[n][e], p0, p1 = 1, p2 = 0;

        if (j.tbias && seen)
            x += __ldg(j.tbias + h * j.tb_h + i * j.tb_i + at * j.tb_j);
        for (int u = 1; u < a.degree; u++) {
            p2 = p1;
            p1 *= s;
        }
        p0 = p1 * s;
        p1 *= p;
        p2 *= p * (p - 1);
        z.x[n][e] = seen ? by * (c * p1 * x + tc * p0) : 0;
        z.t[n][e] = seen ? by * c * p0 : 0;
        if (SECOND) {
            const float d = z.d[n][e], w = z.e[n][e];

            z.d[n][e] = seen ? by * (c * (p2 * x * d + p1 * w) + tc * p1 * d) : 0;
            z.e[n][e] = seen ? by * c * p1 * d : 0;
            total += seen ? by * (p1 * x * d + p0 * w) : 0;
        }
    }
    return total;
}

__device__ __forceinline__ void put_rows(const struct att_rows &to, int b, int h, int row0, int end, int c0,
                                         int d, const float (&acc)[WIDTH / 8][4], float factor)
{
    const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = row0 + lane / 4 + 8 * r;

        if (i >= end)
            continue;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
            att_store<float>((float *)to.p + b * to.sb + h * to.sh + i * to.sn, c0 + lane % 4 * 2 + n * 8, d,
                             acc[n][2 * r] * factor, acc[n][2 * r + 1] * factor);
    }
}

/* Rows of the strip that a warp owns. */
template <bool SECOND, bool KEYS>
__device__ __forceinline__ void copy_own(const struct second &j, float *own, int pitch, int b, int h,
                                         int row0)
{
    const struct att &a = j.a;
    const int end = KEYS ? a.nk : a.nq;

    att_copy<float>(own, pitch, KEYS ? a.k : a.q, b, h, row0, STRIP, end, a, j.lanes_log, 0, 1);
    att_copy<float>(own + STRIP * pitch, pitch, KEYS ? j.tk : j.tq, b, h, row0, STRIP, end, a, j.lanes_log, 0,
                    1);
    if (SECOND)
        att_copy<float>(own + 2 * STRIP * pitch, pitch, KEYS ? a.v : a.dy, b, h, row0, STRIP, end, a,
                        j.lanes_log, 0, 1);
    if (KEYS)
        att_copy<float>(own + 3 * STRIP * pitch, pitch, j.tv, b, h, row0, STRIP, end, a, j.lanes_log, 0, 1);
}

/* A tile of the other side, by all warps. */
template <bool KEYS>
__device__ __forceinline__ void copy_tile(const struct second &j, float *tile, int pitch, int b, int h,
                                          int column)
{
    const struct att &a = j.a;
    const int end = KEYS ? a.nq : a.nk, warp = (int)threadIdx.x / PK_WARP;

    att_copy<float>(tile, pitch, KEYS ? a.q : a.k, b, h, column, TILE, end, a, j.lanes_log, warp, j.warps);
    att_copy<float>(tile + TILE * pitch, pitch, KEYS ? j.tq : j.tk, b, h, column, TILE, end, a, j.lanes_log,
                    warp, j.warps);
    att_copy<float>(tile + 2 * TILE * pitch, pitch, KEYS ? a.dy : a.v, b, h, column, TILE, end, a,
                    j.lanes_log, warp, j.warps);
    if (!KEYS)
        att_copy<float>(tile + 3 * TILE * pitch, pitch, j.tv, b, h, column, TILE, end, a, j.lanes_log, warp,
                        j.warps);
}

#define OWN_SIDES(second, keys) ((keys) ? 4 : (second) ? 3 : 2)
#define TILE_SIDES(keys) ((keys) ? 3 : 4)

template <class M, bool SECOND, bool KEYS>
static __global__ void __launch_bounds__(WARPS *PK_WARP) second_kernel(const struct second j)
{
    PK_SHARED(float, shared);
    const struct att &a = j.a;
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int64_t bh = blockIdx.x / (unsigned)j.chunks;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads), c0 = (int)blockIdx.y * WIDTH;
    const int strip = (int)(blockIdx.x % (unsigned)j.chunks) * j.warps + warp, row0 = strip * STRIP;
    const int own_rows = KEYS ? a.nk : a.nq, stream_rows = KEYS ? a.nq : a.nk;
    const struct att_sight sight = att_sight_of(a, b);
    float *const own = shared + warp * STRIP * OWN_SIDES(SECOND, KEYS) * pitch;
    float *const tile = shared + j.warps * STRIP * OWN_SIDES(SECOND, KEYS) * pitch;
    const bool busy = row0 < own_rows;
    float one[WIDTH / 8][4], two[SECOND ? WIDTH / 8 : 1][4], total = 0;

    att_zero(one);
    att_zero(two);
    if (busy)
        copy_own<SECOND, KEYS>(j, own, pitch, b, h, row0);
    for (int column = 0; column < stream_rows; column += TILE) {
        __syncthreads();
        copy_tile<KEYS>(j, tile, pitch, b, h, column);
        pk_copy_commit();
        pk_copy_wait<0>();
        __syncthreads();
        if (busy &&
            !(KEYS ? att_closed(sight, column, TILE, row0) : att_closed(sight, row0, STRIP, column))) {
            struct quad z;

            total += quad_of<M, SECOND, KEYS>(z, j, sight, h, own, tile, pitch, row0, column);
            if constexpr (KEYS) {
                M::template add<4, WIDTH>(one, z.d, tile, pitch, c0, a.d16);
                M::template add<4, WIDTH>(one, z.e, tile + TILE * pitch, pitch, c0, a.d16);
                M::template add<4, WIDTH>(two, z.x, tile + 2 * TILE * pitch, pitch, c0, a.d16);
            } else {
                M::template add<4, WIDTH>(one, z.x, tile + 2 * TILE * pitch, pitch, c0, a.d16);
                M::template add<4, WIDTH>(one, z.t, tile + 3 * TILE * pitch, pitch, c0, a.d16);
                if constexpr (SECOND) {
                    M::template add<4, WIDTH>(two, z.d, tile, pitch, c0, a.d16);
                    M::template add<4, WIDTH>(two, z.e, tile + TILE * pitch, pitch, c0, a.d16);
                }
            }
        }
    }
    pk_copy_wait<0>();
    if (busy) {
        put_rows(KEYS ? j.ok : j.oy, b, h, row0, own_rows, c0, a.d, one, KEYS ? a.tau : 1.0f);
        if constexpr (SECOND)
            put_rows(KEYS ? j.ov : j.oq, b, h, row0, own_rows, c0, a.d, two, KEYS ? 1.0f : a.tau);
    }
    if (SECOND && !KEYS && j.dscale && c0 == 0) {
        double sum = total;

        for (int d = PK_WARP / 2; d > 0; d /= 2)
            sum += __shfl_xor_sync(PK_WARP_ALL, sum, d);
        if (busy && lane == 0)
            j.dscale[bh * j.strips + strip] = sum;
    }
}

/* dL/dbias of 16 queries a warp by 32 keys of a head. */
template <class M>
static __global__ void __launch_bounds__(WARPS *PK_WARP) second_bias_kernel(const struct second j)
{
    PK_SHARED(float, shared);
    const struct att &a = j.a;
    const int pitch = a.d16 + M::PAD, warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int h = (int)blockIdx.z, column = (int)blockIdx.x * TILE;
    const int row0 = ((int)blockIdx.y * j.warps + warp) * STRIP;
    float *const own = shared + warp * STRIP * 3 * pitch, *const tile = shared + j.warps * STRIP * 3 * pitch;
    float sum[4][4];

    att_zero(sum);
    for (int b = 0; b < a.batch; b++) {
        const struct att_sight sight = att_sight_of(a, b);
        struct quad z;

        __syncthreads();
        copy_own<true, false>(j, own, pitch, b, h, row0);
        copy_tile<false>(j, tile, pitch, b, h, column);
        pk_copy_commit();
        pk_copy_wait<0>();
        __syncthreads();
        if (att_closed(sight, row0, STRIP, column))
            continue;
        quad_of<M, true, false>(z, j, sight, h, own, tile, pitch, row0, column);
        ATT_EACH(4, n, e)
        {
            sum[n][e] += z.d[n][e];
        }
    }
    ATT_EACH(4, n, e)
    {
        const int i = row0 + lane / 4 + e / 2 * 8, k = column + n * 8 + lane % 4 * 2 + e % 2;

        if (i < a.nq && k < a.nk)
            j.dbias[((int64_t)h * a.nq + i) * a.nk + k] = sum[n][e];
    }
}

/* ---- host ---- */

static bool supported(const struct pk_backend *b, const struct pk_call *c)
{
    for (int i = 0; i < c->n_in + c->n_out; i++)
        if ((i < c->n_in ? &c->in[i] : &c->out[i - c->n_in])->dtype == PK_BF16)
            return false;
    return cuda_attention_supports(b, c);
}
extern "C" bool cuda_attention_jvp_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return supported(b, c);
}
extern "C" bool cuda_attention_bwd2_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return supported(b, c);
}

extern "C" size_t cuda_attention_bwd2_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;

    (void)b;
    att_read(&a, c);
    return (size_t)a.batch * (size_t)a.heads * (size_t)cuda_div_up(a.nq, STRIP) * sizeof(double);
}

/* As many warps as there are strips and as fit; the bytes they need. */
static size_t deal(const struct pk_backend *b, struct second *j, int rows, int own, int tile)
{
    const size_t row = (size_t)j->a.d16 * sizeof(float) + 16;
    size_t bytes;

    j->strips = (int32_t)cuda_div_up(rows, STRIP);
    for (j->warps = WARPS; j->warps > 1 && j->warps / 2 >= j->strips; j->warps /= 2)
        ;
    for (;; j->warps /= 2) {
        bytes = (size_t)(j->warps * STRIP * own + TILE * tile) * row;
        if (bytes <= b->shared_most || j->warps == 1)
            break;
    }
    j->chunks = (int32_t)cuda_div_up(j->strips, j->warps);
    return bytes;
}

static enum pd_err too_long(const struct second *j, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_UNSUPPORTED,
                   "attention: heads of %d need more shared memory than a block has here", j->a.d);
}

template <class M, bool SECOND, bool KEYS>
static enum pd_err pass(struct pk_backend *b, struct second *j, struct pd_why *why)
{
    const int rows = KEYS ? j->a.nk : j->a.nq;
    const size_t bytes = deal(b, j, rows, OWN_SIDES(SECOND, KEYS), TILE_SIDES(KEYS));

    if (rows == 0)
        return PD_OK;
    if (bytes > b->shared_most)
        return too_long(j, why);
    PK_CUDA_TRY(att_room(b, (const void *)(second_kernel<M, SECOND, KEYS>), bytes));
    PK_LAUNCH((second_kernel<M, SECOND, KEYS>),
              dim3((unsigned)((int64_t)j->a.batch * j->a.heads * j->chunks),
                   (unsigned)cuda_div_up(j->a.d16, WIDTH)),
              dim3((unsigned)(j->warps * PK_WARP)), bytes, b->stream, *j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <class M> static enum pd_err bias_pass(struct pk_backend *b, struct second *j, struct pd_why *why)
{
    const size_t bytes = deal(b, j, j->a.nq, 3, 4);

    if (j->a.nq == 0 || j->a.nk == 0 || j->a.heads == 0)
        return PD_OK;
    if (bytes > b->shared_most)
        return too_long(j, why);
    PK_CUDA_TRY(att_room(b, (const void *)(second_bias_kernel<M>), bytes));
    PK_LAUNCH((second_bias_kernel<M>),
              dim3((unsigned)cuda_div_up(j->a.nk, TILE), (unsigned)j->chunks, (unsigned)j->a.heads),
              dim3((unsigned)(j->warps * PK_WARP)), bytes, b->stream, *j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* Places of the inputs behind ATTENTION's, from `at` on. */
static void read_tangents(struct second *j, const struct pk_call *c, const struct pk_view *at)
{
    const struct pk_attention_attr *x = &c->attr->attention;

    if (x->packed) {
        j->tq = att_rows_part(at, 0);
        j->tk = att_rows_part(at, 1);
        j->tv = att_rows_part(at++, 2);
    } else {
        j->tq = att_rows_of(at++, 0, 1, 2, 3);
        j->tk = att_rows_of(at++, 0, 1, 2, 3);
        j->tv = att_rows_of(at++, 0, 1, 2, 3);
    }
    if (x->has_scale) {
        j->tscale = (const float *)at->data;
        j->tscale_step = at->shape.dim[0] == 1 ? 0 : at->stride[0];
        at++;
    }
    if (x->has_bias) {
        j->tbias = (const float *)at->data;
        j->tb_h = at->stride[0];
        j->tb_i = at->stride[1];
        j->tb_j = at->stride[2];
    }
    for (j->lanes_log = 0; (4 << j->lanes_log) < j->a.d16 && j->lanes_log < 5; j->lanes_log++)
        ;
}

extern "C" enum pd_err cuda_attention_jvp(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct second j = {};

    att_read(&j.a, c);
    read_tangents(&j, c, &c->in[j.a.after]);
    j.oy = att_rows_inside(&c->out[0], j.a.heads, j.a.nq, j.a.d);
    if (j.a.batch == 0 || j.a.heads == 0)
        return PD_OK;
    return att_math_of(b, c) == ATT_TF32 ? pass<att_tf32, false, false>(b, &j, why)
                                         : pass<att_f32, false, false>(b, &j, why);
}

template <class M> static enum pd_err bwd2(struct pk_backend *b, struct second *j, struct pd_why *why)
{
    enum pd_err err = pass<M, true, false>(b, j, why);

    if (err == PD_OK)
        err = pass<M, true, true>(b, j, why);
    if (err == PD_OK && j->dbias)
        err = bias_pass<M>(b, j, why);
    return err;
}

extern "C" enum pd_err cuda_attention_bwd2(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_attention_attr *x = &c->attr->attention;
    const struct pk_view *out = c->out, *scale = NULL;
    struct second j = {};
    enum pd_err err = PD_OK;

    att_read(&j.a, c);
    j.a.dy = att_rows_of(&c->in[j.a.after], 0, 2, 1, 3);
    read_tangents(&j, c, &c->in[j.a.after + 1]);
    if (x->packed) {
        j.oq = att_rows_part(out, 0);
        j.ok = att_rows_part(out, 1);
        j.ov = att_rows_part(out++, 2);
    } else {
        j.oq = att_rows_dense(out++, j.a.heads, j.a.nq, j.a.d);
        j.ok = att_rows_dense(out++, j.a.heads, j.a.nk, j.a.d);
        j.ov = att_rows_dense(out++, j.a.heads, j.a.nk, j.a.d);
    }
    if (x->has_scale) {
        scale = out++;
        j.dscale = (double *)c->workspace;
    }
    if (x->has_bias)
        j.dbias = (float *)(out++)->data;
    j.oy = att_rows_inside(out, j.a.heads, j.a.nq, j.a.d);
    if (j.a.batch > 0 && j.a.heads > 0)
        err = att_math_of(b, c) == ATT_TF32 ? bwd2<att_tf32>(b, &j, why) : bwd2<att_f32>(b, &j, why);
    if (err == PD_OK && scale)
        err = att_add_dscale(b, &j.a, (const double *)c->workspace, (int)cuda_div_up(j.a.nq, STRIP), scale,
                             why);
    return err;
}
