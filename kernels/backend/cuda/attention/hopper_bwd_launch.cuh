/* kernels/backend/cuda/attention/hopper_bwd_launch.cuh: host code of the gradient on sm 90: workspace of a call, number
 * of blocks that share a unit, arguments; for the built-in activations (hopper_bwd*.cu) and for formulas
 * (hopper_formula.cu). */
#pragma once

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/attention/hopper_bwd_block.cuh"
#include "kernels/backend/cuda/attention/hopper_host.cuh"

/* Every shape of tiles: X(columns, groups). */
#define BACKWARD_EACH_SHAPE(X) X(32, 1) X(64, 1) X(64, 2) X(128, 2)

static inline struct cuda_tiles backward_tiles_of(const struct hopper_job *j)
{
    const int columns = hopper_columns(j->d);
    const bool one =
        columns == 32 || (columns == 64 && j->nq <= 64 && j->nk <= 64); /* warpgroup makes a block */

    return {columns, one ? 64 : 128, one ? 1 : 2, 0};
}

/* n^-row_power of `step` rows. */
void hopper_bwd_factors(struct pk_backend *b, const struct hopper_job *j, int step, float *to);

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
        backward_room(&at, j->learns ? (size_t)p.cluster * (size_t)j->batch * (size_t)j->heads * 4 : 0);
    p.factors = backward_room(&at, j->row_power != 0.0f ? (size_t)p.factors_step * 4 : 0);
    p.dbias = at;
    if (a->has_bias)
        backward_room(&at, (size_t)p.units * (size_t)p.q_tiles * (size_t)p.k_tiles * shape::queries * 2 *
                               shape::consumers);
    p.total = at;
    return p;
}

struct backward_launch {
    CUtensorMap maps[4];
    struct backward_args args;
    struct backward_plan plan;
    unsigned grid, threads;
    size_t shared;
};

/* All but dbias and dscale, which are launched after the kernel. */
template <int columns, int groups>
static enum pd_err backward_prepare(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                                    struct backward_launch *ret, struct pd_why *why)
{
    using shape = backward_shape<columns, groups>;
    const struct pk_attention_attr *attr = &c->attr->attention;
    const struct backward_plan p = backward_plan_of<columns, groups>(b, c, j);
    unsigned char *work = (unsigned char *)c->workspace;
    struct backward_args a = {};
    const int reserved = cuda_ranks_multiprocessors(b), usable = hopper_multiprocessors(b) - reserved;
    int grid = p.grid;

    /* Fewer blocks take the same units in the same order; the assignment changes no sum. */
    if (reserved > 0 && usable >= p.cluster && grid > usable * shape::resident)
        grid = usable * shape::resident / p.cluster * p.cluster;
    for (int i = 0; i < 4; i++) {
        const bool of_queries = i == 0 || i == 3;
        const struct hopper_rows r = hopper_rows_of(c, j, i);
        enum pd_err err =
            hopper_map(j, &r, of_queries ? j->nq : j->nk, columns,
                       of_queries ? shape::queries / p.cluster : shape::keys, &ret->maps[i], why);

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
    if (j->learns)
        a.dscale_part = (float *)(work + p.dscale);
    if (attr->has_bias) {
        a.dbias_part = (float *)(work + p.dbias);
        if (!p.whole)
            PK_CUDA_TRY(cudaMemsetAsync(a.dbias_part, 0, p.total - p.dbias, b->stream));
    }
    if (j->row_power != 0.0f) {
        a.factors = (const float *)(work + p.factors);
        hopper_bwd_factors(b, j, p.factors_step, (float *)(work + p.factors));
    }
    ret->args = a;
    ret->plan = p;
    ret->grid = (unsigned)grid;
    ret->threads = shape::threads;
    ret->shared = p.whole ? shape::shared_whole : shape::shared;
    return PD_OK;
}

static inline dim3 backward_bias_grid(const struct hopper_job *j)
{
    return dim3((unsigned)cuda_div_up(j->nk, 64), (unsigned)j->nq, (unsigned)j->heads);
}
