/* kernels/backend/cuda/attention/hopper_fwd_launch.cuh: host code of the forward kernel on sm 90: which tiles a call takes,
 * its maps and its grid, for the built-in activations (hopper_fwd.cu) and for formulas (hopper_formula.cu). */
#pragma once

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/backend/cuda/attention/hopper_fwd.cuh"
#include "kernels/backend/cuda/attention/hopper_host.cuh"

/* Every shape of tiles: X(columns, keys, groups, stages). */
#define FORWARD_EACH_SHAPE(X)                                                                                \
    X(32, 64, 1, 2)                                                                                          \
    X(32, 128, 2, 4)                                                                                         \
    X(64, 64, 1, 2)                                                                                          \
    X(64, 96, 3, 4)                                                                                          \
    X(64, 112, 2, 4)                                                                                         \
    X(64, 128, 2, 4)                                                                                         \
    X(128, 128, 2, 2)

static inline int forward_padded(int n, int to)
{
    return (n + to - 1) / to * to;
}

static inline struct cuda_tiles forward_tiles_of(const struct hopper_job *j)
{
    switch (hopper_columns(j->d)) {
    case 32:
        return j->nq <= 64 ? cuda_tiles{32, 64, 1, 2} : cuda_tiles{32, 128, 2, 4};
    case 64:
        if (j->nq <= 64)
            return {64, 64, 1, 2};
        if (j->nk > 512)
            return {64, 96, 3, 4};
        return forward_padded(j->nk, 112) < forward_padded(j->nk, 128) ? cuda_tiles{64, 112, 2, 4}
                                                                       : cuda_tiles{64, 128, 2, 4};
    default:
        return {128, 128, 2, 2};
    }
}

struct forward_launch {
    CUtensorMap maps[3];
    struct forward_args args;
    unsigned grid, threads;
    size_t shared;
};

template <int columns, int keys, int groups, int stages>
static enum pd_err forward_prepare(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                                   struct forward_launch *ret, struct pd_why *why)
{
    using shape = forward_shape<columns, keys, groups, stages>;
    struct forward_args a = {};
    const int tiles = (j->nk + keys - 1) / keys;
    int grid;

    for (int i = 0; i < 3; i++) {
        const struct hopper_rows r = hopper_rows_of(c, j, i);
        enum pd_err err =
            hopper_map(j, &r, i == 0 ? j->nq : j->nk, columns, i == 0 ? 64 : keys, &ret->maps[i], why);

        if (err != PD_OK)
            return err;
    }
    a.job = *j;
    a.y = hopper_rows_of(c, j, 7);
    a.passes = (j->nq + 64 * groups - 1) / (64 * groups);
    a.together = tiles <= stages;
    a.units = j->batch * j->heads * (a.together ? 1 : a.passes);
    a.counter = b->units_taken;
    grid = hopper_multiprocessors(b) * shape::resident;
    if (groups == 1 && tiles == 1 && a.passes == 1 &&
        (j->bias || j->windows)) { /* a block for each run of one head */
        int runs = grid / j->heads > 1 ? grid / j->heads : 1;

        runs = runs < j->batch ? runs : j->batch;
        a.run = j->batch / runs;
        a.longer = j->batch % runs;
        grid = runs * j->heads;
    }
    if (grid > a.units)
        grid = a.units;
    ret->args = a;
    ret->grid = (unsigned)grid;
    ret->threads = shape::threads;
    ret->shared = a.run ? shape::shared_whole : shape::shared;
    return PD_OK;
}
