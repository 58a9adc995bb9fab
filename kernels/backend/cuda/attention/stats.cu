/* ATTENTION_STATS: norms of A and of its Jacobians, and the spread of the logits, for a probe batch
 * (kernels/ATTENTION.md 2). Not part of a training step, so written for simplicity: a warp takes one query,
 * its lanes the keys, 32 at a time, directly from memory; logits are recomputed for every pass over the
 * row. Sums are double: seven numbers per row, which a second kernel adds, one block per (b, h), in a
 * fixed order.
 *
 * Counted per (b, h): 2 Nq Nk d FLOP for each pass: one, or four where rows are normalised. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

#define WARPS 4
#define ROW 7       /* numbers of a row: below */
#define CHANNELS 8  /* of a lane: heads up to 256 */
#define THREADS 128 /* of the second kernel */

enum { FRO, JAC, JACQ, TOP, COUNT, SUM, SQUARES };

namespace
{
struct stats_job {
    struct att a;
    const void *x;
    bool narrow; /* x is bf16 */
    int64_t xb, xi, xc, width;
};
} // namespace

/* One query: its logits, key by key. */
template <typename T> struct stats_row {
    const struct att &a;
    struct att_sight sight;
    int h, i, end;
    const T *k;
    const float *q;

    __device__ __forceinline__ float dot(int j) const
    {
        float s = 0;

        for (int c = 0; c < a.d; c++)
            s += q[c] * pk_float(k[j * a.k.sn + c * a.k.sd]);
        return s;
    }
    /* False: masked. */
    __device__ __forceinline__ bool logit(int j, float *s) const
    {
        if (j >= end || !att_seen(sight, i, j))
            return false;
        *s = dot(j) + a.add;
        if (a.bias)
            *s += a.bias[h * a.bias_h + i * a.bias_i + j * a.bias_j];
        return true;
    }
};

/* ---- the rows of phi.h in double, of functions of float ---- */

__device__ __forceinline__ double stats_power(double x, int p)
{
    double r = 1;

    for (int i = 0; i < p; i++)
        r *= x;
    return r;
}

/* clang-format off */
#define S s
#define V v
#define D 1.0
#define NUM(x) ((double)(x))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define ABS(a) fabs(a)
#define EXP(a) ((double)expf((float)(a)))
#define TANH(a) ((double)tanhf((float)(a)))
#define SIN(a) ((double)sinf((float)(a)))
#define COS(a) ((double)cosf((float)(a)))
#define SIGMOID(a) (1.0 / (1.0 + (double)expf(-(float)(a))))
#define DSIGMOID(v) ((v) * (1 - (v)))
#define MAX0(a) ((a) > 0 ? (a) : 0.0)
#define WHERE(a, b) ((a) > 0 ? (b) : 0.0)
#define WAVE(a) ((1 + (double)__sinf(att_turn((float)(a)))) / 2)
#define DWAVE(a) ((double)__cosf(att_turn((float)(a))))
#define POW(a) stats_power(a, degree)
#define DPOW(a) (degree * stats_power(a, degree - 1))
/* clang-format on */

/* f and its slope at one visible logit, without the factor; top: the largest of the row, of exponentials. */
__device__ __forceinline__ void stats_phi(const struct att &a, float logit, float top, double *ret_f,
                                          double *ret_slope)
{
    const double s = (double)(a.shifted ? logit - top : logit);
    const int degree = a.degree;
    double v = 0;

    *ret_slope = 0;
    switch (a.phi) {
#define PHI(constant, name, kind, f, df)                                                                     \
    case constant:                                                                                           \
        v = f;                                                                                               \
        *ret_slope = df;                                                                                     \
        break;
        PK_EACH_PHI(PHI)
#undef PHI
    default:
        break;
    }
    *ret_f = v;
}
#include "kernels/graph/phi_end.h"

__device__ __forceinline__ double stats_sum(double x)
{
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(PK_WARP_ALL, x, d);
    return x;
}

template <typename T>
static __global__ void __launch_bounds__(WARPS *PK_WARP) stats_kernel(const struct stats_job j, double *to)
{
    __shared__ float queries[WARPS][CUDA_ATTENTION_HEAD_MOST];
    const struct att &a = j.a;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int64_t row = (int64_t)blockIdx.x * WARPS + warp;
    const int64_t bh = row / a.nq;
    const int i = (int)(row % a.nq), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const T *const q = (const T *)a.q.p + b * a.q.sb + h * a.q.sh + i * a.q.sn;
    double out[ROW] = {}, norm = 0;
    float top = -INFINITY;

    if (row >= (int64_t)a.batch * a.heads * a.nq)
        return;
    for (int c = lane; c < a.d; c += PK_WARP)
        queries[warp][c] = pk_float(q[c * a.q.sd]) * a.tau;
    __syncwarp();
    for (int64_t c = lane; c < j.width; c += PK_WARP) {
        const int64_t at = b * j.xb + i * j.xi + c * j.xc;
        const double x =
            (double)(j.narrow ? pk_float(((const __nv_bfloat16 *)j.x)[at]) : ((const float *)j.x)[at]);

        norm += x * x;
    }
    norm = stats_sum(norm);

    struct stats_row<T> r = {
        a, att_sight_of(a, b), h, i, 0, (const T *)a.k.p + b *a.k.sb + h *a.k.sh, queries[warp]
    };
    r.end = r.sight.end;
    for (int k = lane; k < r.end; k += PK_WARP) {
        double f, slope, length = 0;
        float s;

        if (!r.logit(k, &s))
            continue;
        top = fmaxf(top, s);
        out[TOP] = fmax(out[TOP], (double)fabsf(s));
        out[COUNT] += 1;
        out[SUM] += (double)s;
        out[SQUARES] += (double)s * (double)s;
        if (a.normalised)
            continue;
        stats_phi(a, s, 0, &f, &slope);
        for (int c = 0; c < a.d; c++) {
            const double x = (double)pk_float(r.k[k * a.k.sn + c * a.k.sd]);

            length += x * x;
        }
        out[FRO] += f * f;
        out[JAC] += slope * slope;
        out[JACQ] += slope * slope * length;
    }
    if (a.normalised) {
        /* J = diag g - a g', with a = f / sum and g = phi' / sum: its squared norm, and that of J K. */
        double sum = 0, a2 = 0, g2 = 0, ag2 = 0, one_over;
        float mean[CHANNELS] = {}, square = 0;

        top = pk_warp_max(top);
        for (int k = lane; k < r.end; k += PK_WARP) {
            double f, slope;
            float s;

            if (!r.logit(k, &s))
                continue;
            stats_phi(a, s, top, &f, &slope);
            sum += f;
            a2 += f * f;
            g2 += slope * slope;
            ag2 += f * slope * slope;
        }
        sum = stats_sum(sum);
        one_over = sum > 0 ? 1 / sum : 0;
        for (int pass = 0; pass < 2; pass++)
            for (int k0 = 0; k0 < r.end; k0 += PK_WARP) {
                double f = 0, slope = 0;
                float s, mine_f, mine_g;

                if (r.logit(k0 + lane, &s))
                    stats_phi(a, s, top, &f, &slope);
                mine_f = (float)(f * one_over);
                mine_g = (float)(slope * one_over);
                for (int l = 0; l < PK_WARP && k0 + l < r.end; l++) {
                    const float af = __shfl_sync(PK_WARP_ALL, mine_f, l),
                                ag = __shfl_sync(PK_WARP_ALL, mine_g, l);

#pragma unroll
                    for (int u = 0; u < CHANNELS; u++) {
                        const int c = u * PK_WARP + lane;

                        if (c < a.d) {
                            const float x = ag * pk_float(r.k[(k0 + l) * a.k.sn + c * a.k.sd]);

                            if (pass == 0) {
                                mean[u] += x;
                            } else {
                                const float e = x - af * mean[u];

                                square += e * e;
                            }
                        }
                    }
                }
            }
        a2 = stats_sum(a2) * one_over * one_over;
        g2 = stats_sum(g2) * one_over * one_over;
        ag2 = stats_sum(ag2) * one_over * one_over * one_over;
        /* Values that are sums already are on lane 0 only. */
        out[FRO] = lane == 0 ? a2 : 0;
        out[JAC] = lane == 0 ? g2 - 2 * ag2 + a2 * g2 : 0;
        out[JACQ] = (double)square;
    }
    for (int x = 0; x < ROW; x++) {
        double sum;

        if (x == TOP) {
            for (int d = PK_WARP / 2; d > 0; d /= 2)
                out[x] = fmax(out[x], __shfl_xor_sync(PK_WARP_ALL, out[x], d));
            sum = out[x];
        } else {
            sum = stats_sum(out[x]);
        }
        if (a.row_power != 0 && (x == FRO || x == JAC || x == JACQ)) {
            const double by = (double)att_row_factor(a, r.sight.shift, i);

            sum *= by * by;
        }
        if (x == JACQ)
            sum *= norm;
        if (lane == 0)
            to[row * ROW + x] = sum;
    }
}

static __global__ void stats_sum_kernel(const struct att a, const double *rows, float *o0, float *o1,
                                        float *o2, float *o3, float *o4)
{
    __shared__ double part[ROW][THREADS];
    const int64_t bh = blockIdx.x;
    const int t = (int)threadIdx.x;
    const float factor = fabsf(att_factor(a, (int)(bh % a.heads)));
    double mine[ROW] = {};

    for (int i = t; i < a.nq; i += THREADS)
        for (int x = 0; x < ROW; x++) {
            const double y = rows[(bh * a.nq + i) * ROW + x];

            mine[x] = x == TOP ? fmax(mine[x], y) : mine[x] + y;
        }
    for (int x = 0; x < ROW; x++)
        part[x][t] = mine[x];
    for (int n = THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        for (int x = 0; t < n && x < ROW; x++)
            part[x][t] = x == TOP ? fmax(part[x][t], part[x][t + n]) : part[x][t] + part[x][t + n];
    }
    if (t != 0)
        return;
    {
        const double count = part[COUNT][0], mean = count > 0 ? part[SUM][0] / count : 0;
        const double spread = count > 0 ? part[SQUARES][0] / count - mean * mean : 0;

        o0[bh] = factor * (float)sqrt(part[FRO][0]);
        o1[bh] = factor * (float)sqrt(fmax(0.0, part[JAC][0]));
        o2[bh] = factor * (float)sqrt(part[JACQ][0]) * fabsf(a.tau);
        o3[bh] = (float)sqrt(fmax(0.0, spread));
        o4[bh] = (float)part[TOP][0];
    }
}

/* ---- host ---- */

extern "C" bool cuda_attention_stats_supports(const struct pk_backend *b, const struct pk_call *c)
{
    return cuda_attention_supports(b, c);
}

extern "C" size_t cuda_attention_stats_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct att a;

    (void)b;
    att_read(&a, c);
    return (size_t)a.batch * (size_t)a.heads * (size_t)a.nq * ROW * sizeof(double);
}

extern "C" enum pd_err cuda_attention_stats(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    double *const rows = (double *)c->workspace;
    struct stats_job j = {};
    const struct pk_view *x;
    int64_t pairs, blocks;

    att_read(&j.a, c);
    x = &c->in[j.a.after];
    j.x = x->data;
    j.narrow = x->dtype == PK_BF16;
    j.xb = x->stride[0];
    j.xi = x->stride[1];
    j.xc = x->stride[2];
    j.width = x->shape.dim[2];
    pairs = (int64_t)j.a.batch * j.a.heads;
    blocks = cuda_div_up(pairs * j.a.nq, WARPS);
    if (pairs == 0)
        return PD_OK;
    if (blocks > 0) {
        if (c->in[0].dtype == PK_BF16)
            PK_LAUNCH((stats_kernel<__nv_bfloat16>), dim3((unsigned)blocks), dim3(WARPS * PK_WARP), 0,
                      b->stream, j, rows);
        else
            PK_LAUNCH((stats_kernel<float>), dim3((unsigned)blocks), dim3(WARPS * PK_WARP), 0, b->stream, j,
                      rows);
        PK_CUDA_TRY(cudaGetLastError());
    }
    PK_LAUNCH(stats_sum_kernel, dim3((unsigned)pairs), dim3(THREADS), 0, b->stream, j.a, (const double *)rows,
              (float *)c->out[0].data, (float *)c->out[1].data, (float *)c->out[2].data,
              (float *)c->out[3].data, (float *)c->out[4].data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
