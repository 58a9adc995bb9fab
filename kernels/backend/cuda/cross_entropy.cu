/* CROSS_ENTROPY and CROSS_ENTROPY_BWD.
 *
 * Forward: the logits are read once, the row not being kept: every thread has a running maximum and the sum
 * of exponentials below it, rescaled when a larger one comes (seldom: once for every sixteen elements at
 * most). A row belongs to a warp up to 1024 classes, else to a block of 512, whose threads have four packs of
 * four under way. The place of the first largest logit is looked up again only by threads that hold one.
 * Losses of rows are f32; they and the counts are added in double by one block, in an order fixed by their
 * number.
 *
 * Backward: dlogits = dloss_sum (exp(x - lse) - smoothing / C), less dloss_sum (1 - smoothing) at the target:
 * read once, written once, by groups of threads of up to four packs each, and in place if asked.
 *
 * For bf16 that is 6 bytes a logit in both. The exponentials (one a logit) take about half of what the
 * special function units can do in that time. */
#include "kernels/backend/cuda/view.cuh"

#define WARPS_THREADS 256
#define ROW_THREADS 512
#define WARP_MOST 1024 /* classes of a row that a warp takes */
#define UNDER_WAY 4    /* packs */
#define ADD_THREADS 1024

namespace
{
struct job {
    struct cuda_rows x;
    const int32_t *target;
    int64_t target_step, rows;
    int n, lanes;
    int32_t ignore;
    float smoothing;
    void *lse; /* forward: written; backward: read */
    int64_t lse_step;
    bool lse_bf16;
    float *sums; /* forward: (rows, 2): loss; 1 or 0 for correct, -1 for an ignored row */
    /* backward */
    void *dx;
    const void *dloss;
    bool dx_bf16, dx_packs, dloss_bf16;
    int64_t chunks;
    struct cuda_divisor by_chunks;
    bool wide;
    uint32_t *fault;
};
} // namespace

/* Row r's target; `ignore` also where it is none, which is an error of the run. */
__device__ __forceinline__ int32_t target_of(const struct job &j, int64_t r, int op, bool tell)
{
    const int32_t y = j.target[r * j.target_step];

    if (y == j.ignore || (y >= 0 && y < j.n))
        return y;
    if (tell)
        pk_fault(j.fault, op, y);
    return j.ignore;
}

__device__ __forceinline__ int group_min(int x, int lanes, float *scratch)
{
    for (int d = PK_WARP / 2; d > 0; d /= 2) {
        const int o = __shfl_xor_sync(PK_WARP_ALL, x, d);

        x = o < x ? o : x;
    }
    if (lanes > PK_WARP) {
        int *const least = (int *)scratch;

        __syncthreads();
        if (threadIdx.x % PK_WARP == 0)
            least[threadIdx.x / PK_WARP] = x;
        __syncthreads();
        for (int i = 0; i < lanes / PK_WARP; i++)
            x = least[i] < x ? least[i] : x;
    }
    return x;
}

static __global__ void __launch_bounds__(ROW_THREADS) loss_kernel(const struct job j)
{
    __shared__ float scratch[4][PK_WARP];
    const int lane = pk_group_lane(j.lanes), n = j.n, packs = (n + 3) / 4;
    const int64_t mine = pk_group(j.lanes);
    const int64_t r = mine < j.rows ? mine : j.rows - 1, x_at = pk_walk_at(j.x.lead, r);
    float max = -INFINITY, sum = 0, total = 0, all, lse;
    int max_at = 0, first = n;

    for (int k0 = lane; k0 < packs; k0 += UNDER_WAY * j.lanes) {
        float v[UNDER_WAY][4], top = -INFINITY, base;

        pk_row_load_many<UNDER_WAY>(j.x, x_at, k0, j.lanes, n, v);
        if (j.smoothing != 0)
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
                total += (v[u][0] + v[u][1]) + (v[u][2] + v[u][3]);
        if (4 * (k0 + (UNDER_WAY - 1) * j.lanes) + 4 > n)
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (4 * (k0 + u * j.lanes) + i >= n)
                        v[u][i] = -INFINITY;
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                top = fmaxf(top, v[u][i]);
        if (top > max) {
            sum *= __expf(max - top);
            max = top;
            max_at = k0;
        }
        base = max == -INFINITY ? 0 : max;
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            sum += (__expf(v[u][0] - base) + __expf(v[u][1] - base)) +
                   (__expf(v[u][2] - base) + __expf(v[u][3] - base));
    }
    all = pk_group_max(max, j.lanes, scratch[0]);
    sum = pk_group_sum(max == all ? sum : sum * __expf(max - all), j.lanes, scratch[1]);
    if (j.smoothing != 0)
        total = pk_group_sum(total, j.lanes, scratch[2]);
    lse = all + logf(sum);
    if (max == all)
        for (int u = 0; u < UNDER_WAY && first == n; u++) {
            const int k = max_at + u * j.lanes;
            float v[4];

            pk_row_load(j.x, x_at, k, n, v);
            for (int i = 3; i >= 0; i--)
                if (4 * k + i < n && v[i] == all)
                    first = 4 * k + i;
        }
    first = group_min(first, j.lanes, scratch[3]);
    if (lane == 0 && mine < j.rows) {
        const int32_t y = target_of(j, r, PK_OP_CROSS_ENTROPY, true);
        float loss = 0, correct = -1;

        if (y != j.ignore) {
            loss = (1 - j.smoothing) * (lse - pk_load1(j.x.data, j.x.bf16, x_at + y * j.x.step));
            if (j.smoothing != 0)
                loss += j.smoothing * (lse - total / (float)n);
            correct = first == y ? 1.0f : 0.0f;
        }
        pk_store1(j.lse, j.lse_bf16, r * j.lse_step, lse);
        j.sums[2 * r] = loss;
        j.sums[2 * r + 1] = correct;
    }
}

static __global__ void __launch_bounds__(ADD_THREADS)
    add_kernel(const float *sums, int64_t rows, void *loss, bool loss_bf16, void *count, bool count_bf16,
               void *correct, bool correct_bf16)
{
    __shared__ double part[3][ADD_THREADS];
    double a = 0, b = 0, c = 0;

#pragma unroll 4
    for (int64_t r = threadIdx.x; r < rows; r += ADD_THREADS) {
        const float hit = sums[2 * r + 1];

        a += (double)sums[2 * r];
        b += hit >= 0 ? 1.0 : 0.0;
        c += hit > 0 ? 1.0 : 0.0;
    }
    part[0][threadIdx.x] = a;
    part[1][threadIdx.x] = b;
    part[2][threadIdx.x] = c;
    for (int s = ADD_THREADS / 2; s > 0; s /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < s)
            for (int i = 0; i < 3; i++)
                part[i][threadIdx.x] += part[i][threadIdx.x + s];
    }
    if (threadIdx.x == 0) {
        pk_store1(loss, loss_bf16, 0, (float)part[0][0]);
        pk_store1(count, count_bf16, 0, (float)part[1][0]);
        pk_store1(correct, correct_bf16, 0, (float)part[2][0]);
    }
}

static __global__ void __launch_bounds__(WARPS_THREADS) dlogits_kernel(const struct job j)
{
    const int lane = pk_group_lane(j.lanes), n = j.n;
    const int64_t group = pk_group(j.lanes);
    const int64_t r = j.wide ? group / j.chunks : pk_divide(j.by_chunks, (uint32_t)group);
    const int k0 = (int)(group - r * j.chunks) * j.lanes * UNDER_WAY + lane;
    float v[UNDER_WAY][4], scale, lse, share;
    int64_t x_at;
    int32_t y;

    if (r >= j.rows || 4 * k0 >= n)
        return;
    x_at = pk_walk_at(j.x.lead, r);
    y = target_of(j, r, PK_OP_CROSS_ENTROPY_BWD, k0 == 0);
    pk_row_load_many<UNDER_WAY>(j.x, x_at, k0, j.lanes, n, v);
    scale = pk_load1(j.dloss, j.dloss_bf16, 0);
    lse = pk_load1(j.lse, j.lse_bf16, r * j.lse_step);
    share = j.smoothing / (float)n;
#pragma unroll
    for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[u][i] = scale * (__expf(v[u][i] - lse) - share);
    if (y == j.ignore) { /* zeros whatever the logits are */
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            v[u][0] = v[u][1] = v[u][2] = v[u][3] = 0;
    } else if (((y / 4 - k0) & (j.lanes - 1)) == 0) {
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (4 * (k0 + u * j.lanes) + i == y)
                    v[u][i] -= scale * (1 - j.smoothing);
    }
    pk_row_store_many<UNDER_WAY>(j.dx, j.dx_bf16, j.dx_packs, r * n, k0, j.lanes, n, v);
}

static void job_of(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0], *target = &c->in[1];

    memset(j, 0, sizeof *j);
    j->x = cuda_rows_of(x);
    j->n = (int)x->shape.dim[1];
    j->rows = x->shape.dim[0];
    j->target = (const int32_t *)target->data;
    j->target_step = target->stride[0];
    j->ignore = c->attr->cross_entropy.ignore;
    j->smoothing = (float)c->attr->cross_entropy.smoothing;
    j->fault = b->fault;
}

size_t cuda_cross_entropy_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return (size_t)(2 * c->in[0].shape.dim[0]) * sizeof(float);
}

enum pd_err cuda_cross_entropy(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const int threads = c->in[0].shape.dim[1] <= WARP_MOST ? WARPS_THREADS : ROW_THREADS;
    struct job j;

    job_of(&j, b, c);
    j.lanes = j.n <= WARP_MOST ? PK_WARP : ROW_THREADS;
    j.lse = c->out[3].data;
    j.lse_bf16 = c->out[3].dtype == PK_BF16;
    j.lse_step = 1;
    j.sums = (float *)c->workspace;
    if (j.rows > 0 && j.n > 0)
        PK_LAUNCH(loss_kernel, (unsigned)cuda_div_up(j.rows, threads / j.lanes), threads, 0, b->stream, j);
    PK_LAUNCH(add_kernel, 1, ADD_THREADS, 0, b->stream, j.sums, j.n > 0 ? j.rows : 0, c->out[0].data,
              c->out[0].dtype == PK_BF16, c->out[1].data, c->out[1].dtype == PK_BF16, c->out[2].data,
              c->out[2].dtype == PK_BF16);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

enum pd_err cuda_cross_entropy_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *lse = &c->in[2];
    struct job j;

    job_of(&j, b, c);
    if (j.rows == 0 || j.n == 0)
        return PD_OK;
    j.lse = lse->data;
    j.lse_bf16 = lse->dtype == PK_BF16;
    j.lse_step = lse->stride[0];
    j.dloss = c->in[3].data;
    j.dloss_bf16 = c->in[3].dtype == PK_BF16;
    j.dx = c->out[0].data;
    j.dx_bf16 = c->out[0].dtype == PK_BF16;
    j.dx_packs = cuda_packs(&c->out[0], j.n);
    for (j.lanes = 1; j.lanes < WARPS_THREADS && j.lanes * 4 * UNDER_WAY < j.n; j.lanes *= 2)
        ;
    j.chunks = cuda_div_up(j.n, j.lanes * 4 * UNDER_WAY);
    j.by_chunks = cuda_divisor_of(j.chunks);
    j.wide = j.rows * j.chunks + WARPS_THREADS >= (int64_t)1 << 31;
    PK_LAUNCH(dlogits_kernel, (unsigned)cuda_div_up(j.rows * j.chunks, WARPS_THREADS / j.lanes),
              WARPS_THREADS, 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
