/* kernels/backend/cuda/attention/hopper_bwd_launch.cuh: host code of the gradient on sm 90: workspace of a call, number
 * of blocks that share a unit, launch; and the kernel that finishes the gradient of the bias, because it depends on the
 * order of a block's registers. */
#pragma once

#include "kernels/backend/cuda/attention/hopper_bwd_block.cuh"

/* dbias from the registers' order of every run. Grid: (keys, queries, heads). */
template <int columns, int groups>
static __global__ void backward_dbias(const __grid_constant__ struct backward_args a, float *to)
{
    using shape = backward_shape<columns, groups>;
    const struct hopper_job &j = a.job;
    const int k = blockIdx.x * blockDim.x + threadIdx.x, q = blockIdx.y, h = blockIdx.z;
    const int kr = k % shape::keys, qr = q % 64;
    const int thread = kr / 64 * 128 + kr % 64 / 16 * 32 + kr % 8 * 4 + qr % 8 / 2;
    const int64_t tile = ((int64_t)(q / 64) * a.k_tiles + k / shape::keys) * 8;
    const int64_t size = (int64_t)a.q_tiles * a.k_tiles * 8 * shape::consumers * 4;
    const int64_t at = ((tile + qr / 8) * shape::consumers + thread) * 4 + kr % 16 / 8 * 2 + qr % 2;
    float sum = 0.0f;

    if (k >= j.nk)
        return;
    for (int run = 0; run < a.runs; run++)
        sum += a.dbias_part[(int64_t)(run * j.heads + h) * size + at];
    to[((int64_t)h * j.nq + q) * j.nk + k] = sum * j.of_d * hopper_scale(j, h);
}

/* ---- hosts ---- */

struct backward_plan {
    int units, runs, grid, cluster, q_tiles, k_tiles, chunk, factors_step;
    bool dq_in_shared, whole;
    size_t dq, dkv, dscale, dbias, factors, total; /* offsets; of absent parts, where they would be */
};

static inline size_t backward_room(size_t *at, size_t bytes)
{
    const size_t here = *at;

    *at += (bytes + 255) / 256 * 256;
    return here;
}

/* Whether two blocks per unit finish sooner than one: compares the rounds of units, adding the time to join dQ at the
 * end of a chunk, about that of 1.3 tiles of keys (see hopper_bwd.cu). */
static inline bool backward_pays(int units, int blocks, int q_tiles, int k_tiles)
{
    const double one = (double)cuda_div_up(units, blocks) * k_tiles;
    const double two =
        (double)cuda_div_up(units, blocks / 2 > 0 ? blocks / 2 : 1) * ((k_tiles + 1) / 2 + 0.65);

    return blocks > 1 && q_tiles > 1 && k_tiles > 1 && two < one;
}

template <int columns, int groups>
static struct backward_plan backward_plan_of(const struct pk_backend *b, const struct pk_call *c,
                                             const struct hopper_job *j)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *a = &c->attr->attention;
    const int most = hopper_multiprocessors(b) * shape::resident;
    const int most_tiles = 1024 / columns; /* 256 KiB of dQ a block */
    struct backward_plan p;
    size_t at = 0;

    p.q_tiles = (j->nq + shape::queries - 1) / shape::queries;
    p.k_tiles = (j->nk + shape::keys - 1) / shape::keys;
    p.whole = groups == 1 && p.q_tiles == 1 && p.k_tiles == 1;
    p.dq_in_shared = p.q_tiles <= shape::dq_tiles;
    p.chunk = p.q_tiles < most_tiles ? p.q_tiles : most_tiles;
    p.runs = j->batch;
    if (a->has_bias || (p.whole && j->windows)) { /* a block for each run of one head */
        p.runs = most / j->heads > 1 ? most / j->heads : 1;
        p.runs = p.runs < j->batch ? p.runs : j->batch;
    }
    p.units = p.runs * j->heads;
    p.cluster = shape::clusters && !p.dq_in_shared && !a->has_bias &&
                        backward_pays(p.units, most, p.q_tiles, p.k_tiles)
                    ? 2
                    : 1;
    p.grid = p.units < most / p.cluster ? p.units : most / p.cluster;
    p.grid *= p.cluster;
    p.factors_step = p.q_tiles * shape::queries;
    p.dq = backward_room(
        &at, p.dq_in_shared || p.k_tiles == 1 ? 0 : (size_t)p.grid * (size_t)p.chunk * shape::dq_bytes);
    p.dkv = backward_room(&at, p.chunk >= p.q_tiles
                                   ? 0
                                   : (size_t)p.grid * (size_t)((p.k_tiles + p.cluster - 1) / p.cluster) *
                                         columns * 4 * shape::consumers);
    p.dscale =
        backward_room(&at, a->has_scale ? (size_t)p.cluster * (size_t)j->batch * (size_t)j->heads * 4 : 0);
    p.factors = backward_room(&at, a->row_power != 0.0 ? (size_t)p.factors_step * 4 : 0);
    p.dbias = at;
    if (a->has_bias)
        backward_room(&at, (size_t)p.units * (size_t)p.q_tiles * (size_t)p.k_tiles * shape::queries * 2 *
                               shape::consumers);
    p.total = at;
    return p;
}

template <int columns, int groups>
static enum pd_err backward_launch(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                                   struct pd_why *why)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *attr = &c->attr->attention;
    const struct backward_plan p = backward_plan_of<columns, groups>(b, c, j);
    unsigned char *work = (unsigned char *)c->workspace;
    int out = attr->packed ? 1 : 3;
    struct backward_args a = {};
    CUtensorMap maps[4];
    const int reserved = cuda_ranks_multiprocessors(b), usable = hopper_multiprocessors(b) - reserved;
    int grid = p.grid;
    size_t shared;
    enum pd_err err;

    /* Fewer blocks take the same units in the same order; the assignment changes no sum. */
    if (reserved > 0 && usable >= p.cluster && grid > usable * shape::resident)
        grid = usable * shape::resident / p.cluster * p.cluster;
    for (int i = 0; i < 4; i++) {
        const bool of_queries = i == 0 || i == 3;
        const struct hopper_rows r = hopper_rows_of(c, j, i);

        err = hopper_map(j, &r, of_queries ? j->nq : j->nk, columns,
                         of_queries ? shape::queries / p.cluster : shape::keys, &maps[i], why);
        if (err != PD_OK)
            return err;
    }
    a.job = *j;
    a.dq = hopper_rows_of(c, j, 4);
    a.dk = hopper_rows_of(c, j, 5);
    a.dv = hopper_rows_of(c, j, 6);
    a.units = p.units;
    a.runs = p.runs;
    a.run = j->batch / p.runs;
    a.longer = j->batch % p.runs;
    a.cluster = p.cluster;
    a.whole = p.whole;
    a.kept_tiles = (p.k_tiles + p.cluster - 1) / p.cluster;
    a.q_tiles = p.q_tiles;
    a.k_tiles = p.k_tiles;
    a.chunk = p.chunk;
    a.dq_in_shared = p.dq_in_shared;
    a.dq_part = (float *)(work + p.dq);
    a.dkv_part = (float *)(work + p.dkv);
    if (attr->has_scale)
        a.dscale_part = (float *)(work + p.dscale);
    if (attr->has_bias) {
        a.dbias_part = (float *)(work + p.dbias);
        if (!p.whole)
            PK_CUDA_TRY(cudaMemsetAsync(a.dbias_part, 0, p.total - p.dbias, b->stream));
    }
    if (attr->row_power != 0.0) {
        a.factors = (const float *)(work + p.factors);
        hopper_bwd_factors(b, j, p.factors_step, (float *)(work + p.factors));
    }
    shared = p.whole ? shape::shared_whole : shape::shared;
    err = hopper_allow((const void *)backward<columns, groups>, shared, why);
    if (err != PD_OK)
        return err;
    if (p.cluster == 1)
        PK_LAUNCH((backward<columns, groups>), dim3((unsigned)grid), dim3(shape::threads), shared, b->stream,
                  maps[0], maps[1], maps[2], maps[3], a);
    else
        PK_LAUNCH_CLUSTER((backward<columns, groups>), (unsigned)p.cluster, dim3((unsigned)grid),
                          dim3(shape::threads), shared, b->stream, maps[0], maps[1], maps[2], maps[3], a);
    if (attr->has_scale) {
        hopper_bwd_dscale(b, j, p.cluster, c->out[out].shape.dim[0] > 1, a.dscale_part,
                          (float *)c->out[out].data);
        out++;
    }
    if (attr->has_bias)
        PK_LAUNCH((backward_dbias<columns, groups>),
                  dim3((unsigned)cuda_div_up(j->nk, 64), (unsigned)j->nq, (unsigned)j->heads), dim3(64), 0,
                  b->stream, a, (float *)c->out[out].data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
