/* kernels/backend/cuda/attention/hopper_host.cuh: host code shared by both directions of attention on sm 90. */
#pragma once

#include "kernels/backend/cuda/attention/attention.h"
#include "kernels/backend/cuda/attention/hopper.cuh"

/* Host: fills in the job; data pointers of the views may be NULL. False: these kernels do not support the call. */
bool hopper_job_of(const struct pk_call *c, struct hopper_job *ret);
/* q, k, v (0, 1, 2), dy (3) of the call's inputs; dq, dk, dv (4, 5, 6) of its outputs; y (7). */
struct hopper_rows hopper_rows_of(const struct pk_call *c, const struct hopper_job *j, int which);
/* Columns of a tile: 32, 64, 128. */
static inline int hopper_columns(int d)
{
    return d <= 32 ? 32 : d <= 64 ? 64 : 128;
}
/* A map of rows for boxes of `rows` rows and min(columns, 64) columns. */
enum pd_err hopper_map(const struct hopper_job *j, const struct hopper_rows *r, int n, int columns, int rows,
                       CUtensorMap *ret, struct pd_why *why);
size_t hopper_bwd_workspace(const struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j);
/* Raises a kernel's limit of shared memory. */
enum pd_err hopper_allow(const void *kernel, size_t shared, struct pd_why *why);

static inline int hopper_multiprocessors(const struct pk_backend *b)
{
    return b && b->multiprocessors > 0 ? b->multiprocessors : 132;
}
