/* CROSS_ENTROPY, CROSS_ENTROPY_BWD and, for both at once, CROSS_ENTROPY_GRAD.
 *
 * Forward: the logits are read once and not stored: every thread has a running maximum and a sum of exponentials
 * relative to it, rescaled when the maximum grows (rarely: at most once per sixteen elements). A row belongs
 * to a warp up to 1024 classes, else to a block of 512, whose threads have four packs of four in flight. Only threads
 * that hold the maximum look up its index again. Losses of rows are f32; they and the counts are added in double by
 * one block, in an order fixed by their number.
 *
 * Backward: dlogits = dloss_sum (exp(x - lse) - smoothing / C), less dloss_sum (1 - smoothing) at the target:
 * read once, written once, by groups of threads of up to four packs each, and in place if asked.
 *
 * For bf16 that is 6 bytes a logit in both. The exponentials (one a logit) take about half of what the
 * special function units can do in that time.
 *
 * Both at once: 4 bytes a logit. A block of 512 copies its row into shared memory without passing registers
 * (cp.async); every thread copies the packs of 16 bytes that only it reads, so it waits only for its own
 * copies; then maximum, sum of exponentials and dlogits are three passes over shared memory.
 * 50304 logits of bf16 are 98 KiB: two blocks a multiprocessor, of which one loads while the other computes
 * or stores, with 98 KiB under way against the 32 KiB that 4.3 TB/s over 132 multiprocessors ask for. Counted
 * for such a row: 6.2 us of memory's time; 3.6 us of the special function units (two exponentials a logit, 16
 * a clock at 1.755 GHz) plus 2.9 us for everything else (13 instructions a logit, 128 lanes). Rows that are
 * ignored are not read. Rows of up to 1024, those that do not lie on 16 bytes and those too long for shared
 * memory take the two kernels above, one after the other. */
#include "kernels/backend/cuda/ptx.cuh"
#include "kernels/backend/cuda/view.cuh"

#define WARPS_THREADS 256
#define ROW_THREADS 512
#define ROW_STATIC 1024 /* shared memory reserved for everything but the row */
#define WARP_MOST 1024  /* classes of a row that a warp takes */
#define UNDER_WAY 4     /* packs */
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
    int64_t width;      /* of a row of dlogits: n or more */
    const float *count; /* divisor of dloss; NULL: none */
    int64_t chunks;
    struct cuda_divisor by_chunks;
    bool wide;
    uint32_t *fault;
};
} // namespace

/* Row r's target; `ignore` also where it is none, which is an error of the run. */
__device__ __forceinline__ int32_t target_of(const struct job &j, int64_t r, int op, bool report)
{
    const int32_t y = j.target[r * j.target_step];

    if (y == j.ignore || (y >= 0 && y < j.n))
        return y;
    if (report)
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

/* Dloss, by the mean or the sum. */
__device__ __forceinline__ float scale_of(const struct job &j)
{
    const float d = pk_load1(j.dloss, j.dloss_bf16, 0);

    return j.count ? d / *j.count : d;
}

static __global__ void __launch_bounds__(ADD_THREADS) count_kernel(const struct job j, float *count)
{
    __shared__ int part[PK_WARP];
    int n = 0;

#pragma unroll 8
    for (int64_t r = threadIdx.x; r < j.rows; r += ADD_THREADS)
        n += target_of(j, r, PK_OP_CROSS_ENTROPY_GRAD, false) != j.ignore;
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        n += __shfl_xor_sync(PK_WARP_ALL, n, d);
    if (threadIdx.x % PK_WARP == 0)
        part[threadIdx.x / PK_WARP] = n;
    __syncthreads();
    n = part[threadIdx.x % PK_WARP];
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        n += __shfl_xor_sync(PK_WARP_ALL, n, d);
    if (threadIdx.x == 0)
        *count = (float)n;
}

/* ---- both at once ---- */

/* A pack of 16 bytes as floats: eight of bf16, four of f32. */
template <bool BF16> __device__ __forceinline__ void unpack(const cuda_quad &q, float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[BF16 ? 2 * i : i] = pk_bits_float(BF16 ? q.w[i] << 16 : q.w[i]);
        if (BF16)
            v[2 * i + 1] = pk_bits_float(q.w[i] & 0xffff0000u);
    }
}

template <bool BF16> static __global__ void __launch_bounds__(ROW_THREADS, 2) grad_kernel(const struct job j)
{
    constexpr int E = BF16 ? 8 : 4; /* elements of a pack */
    PK_SHARED(cuda_quad, row);
    __shared__ float scratch[4][PK_WARP];
    const int64_t r = blockIdx.x, x_at = pk_walk_at(j.x.lead, r);
    const int n = j.n, packs = (n + E - 1) / E, wide = (int)(j.width / E), me = (int)threadIdx.x;
    const int32_t y = target_of(j, r, PK_OP_CROSS_ENTROPY_GRAD, me == 0);
    cuda_quad *const to = (cuda_quad *)((char *)j.dx + r * j.width * (BF16 ? 2 : 4));
    const char *const from = (const char *)j.x.data + x_at * (BF16 ? 2 : 4);
    float max = -INFINITY, sum = 0, total = 0, all, aim = 0;
    int first = n;

    if (y == j.ignore) { /* zeros whatever the logits are */
        const cuda_quad zero = {{0, 0, 0, 0}};

        for (int k = me; k < wide; k += ROW_THREADS)
            to[k] = zero;
        if (me == 0) {
            j.sums[2 * r] = 0;
            j.sums[2 * r + 1] = -1;
        }
        return;
    }
    for (int k = me; k < packs; k += ROW_THREADS)
        if ((k + 1) * E <= n)
            pk_copy16(row + k, from + 16 * k, true);
    pk_copy_commit();
    if (me == (packs - 1) % ROW_THREADS && n % E) { /* the last pack, below which no logit changes anything */
        cuda_quad q;
        float v[E];

#pragma unroll
        for (int i = 0; i < E; i++)
            v[i] = (packs - 1) * E + i < n ? pk_load1(from, BF16, (packs - 1) * E + i) : -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; i++)
            q.w[i] = BF16 ? pk_pack(v[(2 * i) % E], v[(2 * i + 1) % E]) : pk_float_bits(v[i]);
        row[packs - 1] = q;
    }
    if (me == 0)
        aim = pk_load1(from, BF16, y); /* dlogits may lie on it soon */
    pk_copy_wait<0>();
    for (int k = me; k < packs; k += ROW_THREADS) {
        float v[E];

        unpack<BF16>(row[k], v);
#pragma unroll
        for (int i = 0; i < E; i++)
            max = fmaxf(max, v[i]);
    }
    all = pk_group_max(max, ROW_THREADS, scratch[0]);
    if (max == all)
        for (int k = me; k < packs && first == n; k += ROW_THREADS) {
            float v[E];

            unpack<BF16>(row[k], v);
#pragma unroll
            for (int i = E - 1; i >= 0; i--)
                if (v[i] == all && E * k + i < n)
                    first = E * k + i;
        }
    for (int k = me; k < packs; k += ROW_THREADS) {
        float v[E], part[2] = {0, 0};

        unpack<BF16>(row[k], v);
        if (j.smoothing != 0)
#pragma unroll
            for (int i = 0; i < E; i++)
                total += E * k + i < n ? v[i] : 0;
#pragma unroll
        for (int i = 0; i < E; i++)
            part[i % 2] += __expf(v[i] - all);
        sum += part[0] + part[1];
    }
    sum = pk_group_sum(sum, ROW_THREADS, scratch[1]);
    if (j.smoothing != 0)
        total = pk_group_sum(total, ROW_THREADS, scratch[2]);
    first = group_min(first, ROW_THREADS, scratch[3]);
    if (me == 0) {
        const float lse = all + logf(sum);
        float loss = (1 - j.smoothing) * (lse - aim);

        if (j.smoothing != 0)
            loss += j.smoothing * (lse - total / (float)n);
        j.sums[2 * r] = loss;
        j.sums[2 * r + 1] = first == y ? 1.0f : 0.0f;
    }
    const float scale = scale_of(j), factor = scale / sum, shift = scale * (j.smoothing / (float)n);

    for (int k = me; k < wide; k += ROW_THREADS) {
        cuda_quad q = {{0, 0, 0, 0}};

        if (k < packs) {
            float v[E];

            unpack<BF16>(row[k], v);
#pragma unroll
            for (int i = 0; i < E; i++)
                v[i] = factor * __expf(v[i] - all) - shift;
            if (E * (k + 1) > n)
#pragma unroll
                for (int i = 0; i < E; i++)
                    if (E * k + i >= n)
                        v[i] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                q.w[i] = BF16 ? pk_pack(v[(2 * i) % E], v[(2 * i + 1) % E]) : pk_float_bits(v[i]);
        }
        to[k] = q;
    }
    if (me == y / E % ROW_THREADS) /* the thread that wrote the target's pack */
        pk_store1(to, BF16, y,
                  factor * __expf(pk_load1(row, BF16, y) - all) - shift - scale * (1 - j.smoothing));
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

    if (r >= j.rows || 4 * k0 >= j.width)
        return;
    x_at = pk_walk_at(j.x.lead, r);
    y = target_of(j, r, PK_OP_CROSS_ENTROPY_BWD, k0 == 0 && !j.sums); /* else reported already */
    pk_row_load_many<UNDER_WAY>(j.x, x_at, k0, j.lanes, n, v);
    scale = scale_of(j);
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
    if (j.width > n) /* zeros beyond */
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (4 * (k0 + u * j.lanes) + i >= n)
                    v[u][i] = 0;
    pk_row_store_many<UNDER_WAY>(j.dx, j.dx_bf16, j.dx_packs, r * j.width, k0, j.lanes, (int)j.width, v);
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

static void enqueue_loss(struct pk_backend *b, const struct job *j)
{
    const int threads = j->n <= WARP_MOST ? WARPS_THREADS : ROW_THREADS;

    if (j->rows > 0 && j->n > 0)
        PK_LAUNCH(loss_kernel, (unsigned)cuda_div_up(j->rows, threads / j->lanes), threads, 0, b->stream, *j);
}

/* The three sums, to out[0 .. 2]. */
static void enqueue_sums(struct pk_backend *b, const struct job *j, const struct pk_view *out)
{
    PK_LAUNCH(add_kernel, 1, ADD_THREADS, 0, b->stream, j->sums, j->n > 0 ? j->rows : 0, out[0].data,
              out[0].dtype == PK_BF16, out[1].data, out[1].dtype == PK_BF16, out[2].data,
              out[2].dtype == PK_BF16);
}

/* dx, dloss and lse are set. */
static void enqueue_dlogits(struct pk_backend *b, struct job *j)
{
    for (j->lanes = 1; j->lanes < WARPS_THREADS && j->lanes * 4 * UNDER_WAY < j->width; j->lanes *= 2)
        ;
    j->chunks = cuda_div_up(j->width, j->lanes * 4 * UNDER_WAY);
    j->by_chunks = cuda_divisor_of(j->chunks);
    j->wide = j->rows * j->chunks + WARPS_THREADS >= (int64_t)1 << 31;
    PK_LAUNCH(dlogits_kernel, (unsigned)cuda_div_up(j->rows * j->chunks, WARPS_THREADS / j->lanes),
              WARPS_THREADS, 0, b->stream, *j);
}

static void job_dlogits(struct job *j, const struct pk_view *dloss, const struct pk_view *dx)
{
    j->dloss = dloss->data;
    j->dloss_bf16 = dloss->dtype == PK_BF16;
    j->dx = dx->data;
    j->dx_bf16 = dx->dtype == PK_BF16;
    j->width = dx->shape.dim[1];
    j->dx_packs = cuda_packs(dx, j->width);
}

enum pd_err cuda_cross_entropy(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    job_of(&j, b, c);
    j.lanes = j.n <= WARP_MOST ? PK_WARP : ROW_THREADS;
    j.lse = c->out[3].data;
    j.lse_bf16 = c->out[3].dtype == PK_BF16;
    j.lse_step = 1;
    j.sums = (float *)c->workspace;
    enqueue_loss(b, &j);
    enqueue_sums(b, &j, c->out);
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
    job_dlogits(&j, &c->in[3], &c->out[0]);
    enqueue_dlogits(b, &j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* Losses and hits of rows, lse of rows, the count. */
size_t cuda_cross_entropy_grad_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return (size_t)(3 * c->in[0].shape.dim[0] + 1) * sizeof(float);
}

/* Bytes of shared memory for a row; 0 if the row cannot be held there. */
static size_t row_bytes(const struct pk_backend *b, const struct job *j)
{
    const int64_t size = j->x.bf16 ? 2 : 4, bytes = cuda_div_up(j->n * size, 16) * 16;
    bool fits = j->n > WARP_MOST && j->x.bf16 == j->dx_bf16 && j->x.step == 1 &&
                bytes + ROW_STATIC <= (int64_t)b->shared_most && cuda_aligned(j->x.data, 16) &&
                cuda_aligned(j->dx, 16) && j->width * size % 16 == 0;

    for (int i = 0; i < j->x.lead.rank; i++)
        fits = fits && (j->x.lead.dim[i] == 1 || j->x.lead.stride[i] * size % 16 == 0);
    return fits ? (size_t)bytes : 0;
}

enum pd_err cuda_cross_entropy_grad(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;
    float *count;
    size_t bytes;

    job_of(&j, b, c);
    job_dlogits(&j, &c->in[2], &c->out[0]);
    j.sums = (float *)c->workspace;
    j.lse = j.sums + 2 * j.rows;
    j.lse_step = 1;
    count = j.sums + 3 * j.rows;
    if (c->attr->cross_entropy.mean) {
        PK_LAUNCH(count_kernel, 1, ADD_THREADS, 0, b->stream, j, count);
        j.count = count;
    }
    bytes = row_bytes(b, &j);
    if (j.rows > 0 && j.n > 0 && bytes) {
        const void *kernel =
            j.x.bf16 ? (const void *)(grad_kernel<true>) : (const void *)(grad_kernel<false>);

        /* the device's limit, not this row's need: recorded calls of longer rows may still be launched */
        PK_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)(b->shared_most - ROW_STATIC)));
        if (j.x.bf16)
            PK_LAUNCH((grad_kernel<true>), (unsigned)j.rows, ROW_THREADS, bytes, b->stream, j);
        else
            PK_LAUNCH((grad_kernel<false>), (unsigned)j.rows, ROW_THREADS, bytes, b->stream, j);
    } else if (j.rows > 0 && j.n > 0) {
        j.lanes = j.n <= WARP_MOST ? PK_WARP : ROW_THREADS;
        enqueue_loss(b, &j);
        enqueue_dlogits(b, &j);
    }
    enqueue_sums(b, &j, c->out + 1);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
