/* kernels/backend/cuda/attention/formula_stats.cuh: FORMULA_STATS: norms of A and of its Jacobians, the spread of the logits,
 * and entries that are not finite, for a probe batch (kernels/ATTENTION.md 2). Not part of a training step, so written for
 * simplicity, as stats.cu is: a warp takes one query, its lanes the keys, 32 at a time, from memory; logits are computed
 * again for each pass over the row.
 *
 * A row's Jacobian is diag g + sum_k u_k w_k', with g = dA/ds (row functions held), u_k = dA/dR_k and w_k = dx_k/ds. */
#pragma once

#include "kernels/backend/cuda/attention/formula.cuh"

#define FORM_CHANNELS 8 /* of a lane: heads up to 256 */
#define FORM_WARPS 4

enum {
    FORM_FRO,
    FORM_JAC,
    FORM_JACQ,
    FORM_COUNT,
    FORM_SUM,
    FORM_SQUARES,
    FORM_BROKEN,
    FORM_TOP,
    FORM_NUMBERS
};

template <typename N> __device__ __forceinline__ N form_warp_sum(N x)
{
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(PK_WARP_ALL, x, d);
    return x;
}

/* One query. */
template <class M> struct form_query {
    typedef typename M::T T;
    const struct att &a;
    struct att_sight sight;
    int h, i;
    const T *k;
    const float *q;

    /* False: masked. */
    __device__ __forceinline__ bool logit(int j, float *s) const
    {
        if (j >= sight.end || !att_seen(sight, i, j))
            return false;
        *s = 0;
        for (int c = 0; c < a.d; c++)
            *s += q[c] * pk_float(k[j * a.k.sn + c * a.k.sd]);
        *s *= a.tau; /* last: a logit that is 0 stays on a break of phi */
        if (a.bias)
            *s += a.bias[h * a.bias_h + i * a.bias_i + j * a.bias_j];
        return true;
    }
};

/* The row functions of the query, gathered by all lanes. */
template <class M, class F>
__device__ __forceinline__ void form_query_rows(const struct form_query<M> &q, const struct form_head &u,
                                                struct form_row *row)
{
    const int lane = (int)threadIdx.x % PK_WARP;
    float o[FORM_RESULTS], s;

    form_row_begin<F>(row, u);
    for (int j = lane; F::shift(u) && j < q.sight.end; j += PK_WARP)
        if (q.logit(j, &s)) {
            F::exponent(u, *row, s, (float)j, 0, o);
            row->m = form_larger(row->m, o[0]);
        }
    for (int d = 1; d < PK_WARP; d *= 2)
        row->m = form_larger(row->m, __shfl_xor_sync(PK_WARP_ALL, row->m, d));
    row->m = row->m == -INFINITY ? 0 : row->m;
    for (int j = lane; F::rows(u) && j < q.sight.end; j += PK_WARP)
        if (q.logit(j, &s)) {
            if (F::two(u))
                F::sums(u, *row, s, (float)j, 0, o);
            else
                F::value(u, *row, s, (float)j, 0, o);
            form_gather<F>(row, u, F::two(u) ? o : o + 1, j);
        }
    form_row_join<F, PK_WARP>(row, u);
}

template <class M, class F>
__device__ __forceinline__ void form_measure(const struct att &a, const struct form_use &use)
{
    typedef typename M::T T;
    __shared__ float queries[FORM_WARPS][FORM_CHANNELS * PK_WARP];
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int64_t at = (int64_t)blockIdx.x * FORM_WARPS + warp, bh = at / a.nq;
    const int i = (int)(at % a.nq), b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    double out[FORM_NUMBERS] = {}, norm = 0, uu[FORM_ROWS][FORM_ROWS] = {}, ww[FORM_ROWS][FORM_ROWS] = {};
    float wk[FORM_ROWS][FORM_CHANNELS] = {};
    struct form_row row;
    bool zero = false;

    if (at >= (int64_t)a.batch * a.heads * a.nq)
        return;
    for (int c = lane; c < a.d; c += PK_WARP)
        queries[warp][c] = pk_float(((const T *)a.q.p)[b * a.q.sb + h * a.q.sh + i * a.q.sn + c * a.q.sd]);
    __syncwarp();
    for (int64_t c = lane; c < use.width; c += PK_WARP) {
        const double x = (double)pk_float(((const T *)use.x)[b * use.x_b + i * use.x_i + c * use.x_c]);

        norm += x * x;
    }
    norm = form_warp_sum(norm);

    const struct form_head u = form_head_of<F>(a, use, h);
    const struct form_query<M> q = {
        a, att_sight_of(a, b), h, i, (const T *)a.k.p + b *a.k.sb + h *a.k.sh, queries[warp]
    };
    const int keys = form_keys_seen(q.sight, i);

    row.i = form_position(a, q.sight, i);
    row.ni = (float)max(1, keys);
    form_query_rows<M, F>(q, u, &row);
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
        zero = zero || (k < F::rows(u) && row.row[k] == 0);
    for (int pass = 0; pass < 2; pass++)
        for (int k0 = 0; k0 < q.sight.end; k0 += PK_WARP) {
            float o[FORM_RESULTS] = {}, s = 0, g, x[2 * FORM_ROWS];
            const bool there = q.logit(k0 + lane, &s);
            bool bad;

            F::stats(u, row, s, (float)(k0 + lane), 0, o);
            bad = there && (!form_finite(o[0]) || !form_finite(o[1]));
            if (!there || (zero && bad)) {
#pragma unroll
                for (int k = 0; k < FORM_RESULTS; k++)
                    o[k] = 0;
            } else if (pass == 0) {
                out[FORM_BROKEN] += bad;
            }
            g = o[1];
#pragma unroll
            for (int k = 0; k < 2 * FORM_ROWS; k++)
                x[k] = k < 2 * F::rows(u) ? o[2 + k] : 0;
            if (pass == 0) {
                if (there) {
                    out[FORM_TOP] = fmax(out[FORM_TOP], (double)fabsf(s));
                    out[FORM_COUNT] += 1;
                    out[FORM_SUM] += (double)s;
                    out[FORM_SQUARES] += (double)s * (double)s;
                }
                out[FORM_FRO] += (double)o[0] * (double)o[0];
                out[FORM_JAC] += (double)g * (double)g;
#pragma unroll
                for (int k = 0; k < FORM_ROWS; k++) {
                    if (k >= F::rows(u))
                        break;
                    out[FORM_JAC] += 2 * (double)g * (double)x[2 * k] * (double)x[2 * k + 1];
#pragma unroll
                    for (int l = 0; l < FORM_ROWS; l++) {
                        uu[k][l] += (double)x[2 * k] * (double)x[2 * l];
                        ww[k][l] += (double)x[2 * k + 1] * (double)x[2 * l + 1];
                    }
                }
            }
            for (int l = 0; l < PK_WARP && k0 + l < q.sight.end; l++) {
                const float gl = __shfl_sync(PK_WARP_ALL, g, l);
                float by[FORM_ROWS];

#pragma unroll
                for (int k = 0; k < FORM_ROWS; k++)
                    by[k] = k < F::rows(u) ? __shfl_sync(PK_WARP_ALL, x[2 * k + (pass == 0)], l) : 0;
#pragma unroll
                for (int v = 0; v < FORM_CHANNELS; v++) {
                    const int c = v * PK_WARP + lane;
                    float key, e;

                    if (c >= a.d)
                        break;
                    key = pk_float(q.k[(k0 + l) * a.k.sn + c * a.k.sd]);
                    e = gl * key;
#pragma unroll
                    for (int k = 0; k < FORM_ROWS; k++) {
                        if (k >= F::rows(u))
                            break;
                        if (pass == 0)
                            wk[k][v] += by[k] * key;
                        else
                            e += by[k] * wk[k][v];
                    }
                    if (pass == 1)
                        out[FORM_JACQ] += (double)e * (double)e;
                }
            }
        }
#pragma unroll
    for (int k = 0; k < FORM_ROWS; k++)
#pragma unroll
        for (int l = 0; l < FORM_ROWS; l++)
            if (k < F::rows(u) && l < F::rows(u)) {
                const double product = form_warp_sum(uu[k][l]) * form_warp_sum(ww[k][l]);

                out[FORM_JAC] += lane == 0 ? product : 0;
            }
    for (int x = 0; x < FORM_NUMBERS; x++) {
        double sum = out[x];

        for (int d = PK_WARP / 2; d > 0; d /= 2) {
            const double other = __shfl_xor_sync(PK_WARP_ALL, sum, d);

            sum = x == FORM_TOP ? fmax(sum, other) : sum + other;
        }
        if (lane == 0)
            use.numbers[at * FORM_NUMBERS + x] = x == FORM_JACQ ? sum * norm : sum;
    }
}

/* The rows of a pair, in a fixed order: a block for each (b, h). */
__device__ __forceinline__ void form_measure_sum(const struct att &a, const struct form_use &use)
{
    __shared__ double part[FORM_NUMBERS][PK_WARP * 4];
    const int64_t bh = blockIdx.x;
    const int t = (int)threadIdx.x;
    double mine[FORM_NUMBERS] = {};

    for (int i = t; i < a.nq; i += PK_WARP * 4)
        for (int x = 0; x < FORM_NUMBERS; x++) {
            const double y = use.numbers[(bh * a.nq + i) * FORM_NUMBERS + x];

            mine[x] = x == FORM_TOP ? fmax(mine[x], y) : mine[x] + y;
        }
    for (int x = 0; x < FORM_NUMBERS; x++)
        part[x][t] = mine[x];
    for (int n = PK_WARP * 2; n > 0; n /= 2) {
        __syncthreads();
        for (int x = 0; t < n && x < FORM_NUMBERS; x++)
            part[x][t] = x == FORM_TOP ? fmax(part[x][t], part[x][t + n]) : part[x][t] + part[x][t + n];
    }
    if (t == 0) {
        const double count = part[FORM_COUNT][0], mean = count > 0 ? part[FORM_SUM][0] / count : 0;
        const double spread = count > 0 ? part[FORM_SQUARES][0] / count - mean * mean : 0;

        use.measured[0][bh] = (float)sqrt(part[FORM_FRO][0]);
        use.measured[1][bh] = (float)sqrt(fmax(0.0, part[FORM_JAC][0]));
        use.measured[2][bh] = (float)sqrt(part[FORM_JACQ][0]) * fabsf(a.tau);
        use.measured[3][bh] = (float)sqrt(fmax(0.0, spread));
        use.measured[4][bh] = (float)part[FORM_TOP][0];
        use.measured[5][bh] = (float)part[FORM_BROKEN][0];
    }
}

#define FORM_STATS_KERNELS(X)                                                                                \
    X(measure, (form_measure<M, F>(a, u)))                                                                   \
    X(measure_sum, (form_measure_sum(a, u)))
