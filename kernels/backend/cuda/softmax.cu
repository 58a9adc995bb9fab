/* SOFTMAX and SOFTMAX_BWD over the last axis: y = exp(x - max) / sum, dx = y (dy - sum(dy y)).
 *
 * Bytes: every row is read once and written once. A group of threads keeps its row in registers, packs of four
 * elements: up to 32 neighbours of a warp for rows up to 512, a block of 256 up to 8192. Longer rows are read again
 * from the second-level cache: a block finds maximum and sum in one pass, rescaling the sum whenever
 * the maximum grows. Sums are f32, by lane, then by a fixed tree. */
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define WARP_MOST 512
#define BLOCK_MOST 8192

namespace
{
struct job {
    struct cuda_rows x, dy; /* backward: y and dy */
    void *y;
    bool y_bf16, y_packs;
    int64_t rows;
    int n, lanes;
};
} // namespace

template <int PACKS>
static __global__ void __launch_bounds__(THREADS, PACKS <= 4 ? 5 : 3) softmax_kernel(const struct job j)
{
    __shared__ float scratch[2][PK_WARP];
    const int lane = pk_group_lane(j.lanes);
    const int64_t mine = pk_group(j.lanes);
    const int64_t r = mine < j.rows ? mine : j.rows - 1, at = pk_walk_at(j.x.lead, r);
    float x[PACKS][4], max = -INFINITY, sum = 0;

    pk_row_load_many<PACKS>(j.x, at, lane, j.lanes, j.n, x);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (4 * (p * j.lanes + lane) + i < j.n)
                max = fmaxf(max, x[p][i]);
    max = pk_group_max(max, j.lanes, scratch[0]);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[p][i] = 4 * (p * j.lanes + lane) + i < j.n ? expf(x[p][i] - max) : 0;
            sum += x[p][i];
        }
    sum = 1.0f / pk_group_sum(sum, j.lanes, scratch[1]);
    if (mine >= j.rows)
        return;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < 4; i++)
            x[p][i] *= sum;
        pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.n, p * j.lanes + lane, j.n, x[p]);
    }
}

static __global__ void __launch_bounds__(THREADS) softmax_long_kernel(const struct job j)
{
    __shared__ float scratch[2][PK_WARP];
    const int64_t r = blockIdx.x, at = pk_walk_at(j.x.lead, r);
    const int packs = (j.n + 3) / 4;
    float max = -INFINITY, sum = 0, v[4], all;

    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        float top = max;

        pk_row_load(j.x, at, k, j.n, v);
        for (int i = 0; i < 4; i++)
            if (4 * k + i < j.n)
                top = fmaxf(top, v[i]);
        if (top > max) {
            sum *= expf(max - top);
            max = top;
        }
        for (int i = 0; i < 4; i++)
            if (4 * k + i < j.n)
                sum += expf(v[i] - max);
    }
    all = pk_group_max(max, THREADS, scratch[0]);
    sum = max == all ? sum : sum * expf(max - all);
    sum = 1.0f / pk_group_sum(sum, THREADS, scratch[1]);
    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        pk_row_load(j.x, at, k, j.n, v);
        for (int i = 0; i < 4; i++)
            v[i] = expf(v[i] - all) * sum;
        pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.n, k, j.n, v);
    }
}

template <int PACKS> static __global__ void __launch_bounds__(THREADS) softmax_bwd_kernel(const struct job j)
{
    __shared__ float scratch[PK_WARP];
    const int lane = pk_group_lane(j.lanes);
    const int64_t mine = pk_group(j.lanes);
    const int64_t r = mine < j.rows ? mine : j.rows - 1;
    const int64_t y_at = pk_walk_at(j.x.lead, r), dy_at = pk_walk_at(j.dy.lead, r);
    float y[PACKS][4], dy[PACKS][4], sum = 0;

    pk_row_load_many<PACKS>(j.x, y_at, lane, j.lanes, j.n, y);
    pk_row_load_many<PACKS>(j.dy, dy_at, lane, j.lanes, j.n, dy);
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum += y[p][i] * dy[p][i];
    sum = pk_group_sum(sum, j.lanes, scratch);
    if (mine >= j.rows)
        return;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        for (int i = 0; i < 4; i++)
            y[p][i] *= dy[p][i] - sum;
        pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.n, p * j.lanes + lane, j.n, y[p]);
    }
}

static __global__ void __launch_bounds__(THREADS) softmax_bwd_long_kernel(const struct job j)
{
    __shared__ float scratch[PK_WARP];
    const int64_t r = blockIdx.x, y_at = pk_walk_at(j.x.lead, r), dy_at = pk_walk_at(j.dy.lead, r);
    const int packs = (j.n + 3) / 4;
    float sum = 0, y[4], dy[4];

    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        pk_row_load(j.x, y_at, k, j.n, y);
        pk_row_load(j.dy, dy_at, k, j.n, dy);
        for (int i = 0; i < 4; i++)
            sum += y[i] * dy[i];
    }
    sum = pk_group_sum(sum, THREADS, scratch);
    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        pk_row_load(j.x, y_at, k, j.n, y);
        pk_row_load(j.dy, dy_at, k, j.n, dy);
        for (int i = 0; i < 4; i++)
            y[i] *= dy[i] - sum;
        pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.n, k, j.n, y);
    }
}

static void job_of(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];

    memset(j, 0, sizeof *j);
    j->x = cuda_rows_of(x);
    j->n = (int)x->shape.dim[x->shape.rank - 1];
    j->rows = j->x.lead.count;
    j->y = c->out[0].data;
    j->y_bf16 = c->out[0].dtype == PK_BF16;
    j->y_packs = cuda_packs(&c->out[0], j->n);
    for (j->lanes = 1; j->lanes < PK_WARP && j->lanes * 4 < j->n; j->lanes *= 2)
        ;
    if (j->n > WARP_MOST)
        j->lanes = THREADS;
}

#define BY_PACKS(kernel, packs, ...)                                                                         \
    do {                                                                                                     \
        if ((packs) <= 1)                                                                                    \
            PK_LAUNCH(kernel<1>, __VA_ARGS__);                                                               \
        else if ((packs) <= 2)                                                                               \
            PK_LAUNCH(kernel<2>, __VA_ARGS__);                                                               \
        else if ((packs) <= 4)                                                                               \
            PK_LAUNCH(kernel<4>, __VA_ARGS__);                                                               \
        else                                                                                                 \
            PK_LAUNCH(kernel<8>, __VA_ARGS__);                                                               \
    } while (0)

enum pd_err cuda_softmax(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    job_of(&j, c);
    if (j.rows == 0 || j.n == 0)
        return PD_OK;
    if (j.n > BLOCK_MOST)
        PK_LAUNCH(softmax_long_kernel, (unsigned)j.rows, THREADS, 0, b->stream, j);
    else
        BY_PACKS(softmax_kernel, cuda_div_up(j.n, 4 * j.lanes),
                 (unsigned)cuda_div_up(j.rows, THREADS / j.lanes), THREADS, 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

enum pd_err cuda_softmax_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    job_of(&j, c);
    if (j.rows == 0 || j.n == 0)
        return PD_OK;
    j.dy = cuda_rows_of(&c->in[1]);
    if (j.n > BLOCK_MOST)
        PK_LAUNCH(softmax_bwd_long_kernel, (unsigned)j.rows, THREADS, 0, b->stream, j);
    else
        BY_PACKS(softmax_bwd_kernel, cuda_div_up(j.n, 4 * j.lanes),
                 (unsigned)cuda_div_up(j.rows, THREADS / j.lanes), THREADS, 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
