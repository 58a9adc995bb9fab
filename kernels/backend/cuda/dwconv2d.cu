/* DWCONV2D and its derivative by the kernel.
 *
 * Forward: a thread computes SIDE neighbours along a row, of four channels; a warp reads adjacent channels. Inputs shared
 * by neighbours come from the first-level cache. Sums are f32, tap by tap in order.
 *
 * Derivative: a block has a share of the rows of the batch; a thread sums one tap of four channels over them. A
 * second kernel adds the shares in order. Their number depends on the shape only. */
#include "kernels/backend/cuda/view.cuh"

#define THREADS 128
#define SIDE 4
#define SHARES_MOST 512

namespace
{
struct job {
    struct cuda_rows x, second; /* a row: the channels of one pixel, or of one tap */
    void *out;
    bool out_bf16, out_packs;
    int height, width, kh, kw, top, left, sign, channels, packs, strips;
    int64_t count;       /* threads with work */
    int64_t rows, share; /* derivative: of the batch; of one block */
    int shares;
    float *partial; /* derivative: (shares, kh kw, channels) */
};
} // namespace

static __global__ void __launch_bounds__(THREADS) dwconv_kernel(const struct job j)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int k = (int)(at % j.packs), v0 = (int)(at / j.packs % j.strips) * SIDE;
    const int64_t line = at / j.packs / j.strips, b = line / j.height;
    const int h = (int)(line % j.height);
    float sum[SIDE][4];

    if (at >= j.count)
        return;
#pragma unroll
    for (int u = 0; u < SIDE; u++)
        for (int e = 0; e < 4; e++)
            sum[u][e] = 0;
    for (int i = 0; i < j.kh; i++) {
        const int row = h + j.sign * (i - j.top);

        if (row < 0 || row >= j.height)
            continue;
        for (int c = 0; c < j.kw; c++) {
            float w[4];

            pk_row_load(j.second, pk_walk_at(j.second.lead, i * j.kw + c), k, j.channels, w);
#pragma unroll
            for (int u = 0; u < SIDE; u++) {
                const int column = v0 + u + j.sign * (c - j.left);
                float x[4];

                if (v0 + u >= j.width || column < 0 || column >= j.width)
                    continue;
                pk_row_load(j.x, pk_walk_at(j.x.lead, (b * j.height + row) * j.width + column), k, j.channels,
                            x);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[u][e] = fmaf(x[e], w[e], sum[u][e]);
            }
        }
    }
#pragma unroll
    for (int u = 0; u < SIDE; u++)
        if (v0 + u < j.width)
            pk_row_store(j.out, j.out_bf16, j.out_packs, (line * j.width + v0 + u) * j.channels, k,
                         j.channels, sum[u]);
}

static __global__ void __launch_bounds__(THREADS) dwconv_dw_kernel(const struct job j)
{
    const int parts = (j.packs * j.kh * j.kw + THREADS - 1) / THREADS;
    const int share = (int)(blockIdx.x / parts), at = (int)(blockIdx.x % parts) * THREADS + (int)threadIdx.x;
    const int k = at % j.packs, tap = at / j.packs, i = tap / j.kw - j.top, c = tap % j.kw - j.left;
    const int64_t first = share * j.share, end = first + j.share < j.rows ? first + j.share : j.rows;
    float sum[4] = {0, 0, 0, 0};

    if (tap >= j.kh * j.kw)
        return;
    for (int64_t r = first; r < end; r++) {
        const int row = (int)(r % j.height) + i;

        if (row < 0 || row >= j.height)
            continue;
        for (int v = c < 0 ? -c : 0; v < j.width && v + c < j.width; v++) {
            float x[4], dy[4];

            pk_row_load(j.x, pk_walk_at(j.x.lead, (r + i) * j.width + v + c), k, j.channels, x);
            pk_row_load(j.second, pk_walk_at(j.second.lead, r * j.width + v), k, j.channels, dy);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[e] = fmaf(x[e], dy[e], sum[e]);
        }
    }
    for (int e = 0; e < 4; e++)
        if (4 * k + e < j.channels)
            j.partial[((int64_t)share * j.kh * j.kw + tap) * j.channels + 4 * k + e] = sum[e];
}

static __global__ void __launch_bounds__(THREADS) dwconv_add_kernel(const struct job j, int64_t all)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0;

    if (at >= all)
        return;
    for (int s = 0; s < j.shares; s++)
        sum += j.partial[s * all + at];
    pk_store1(j.out, j.out_bf16, at, sum);
}

static void job_of(struct job *j, const struct pk_call *c)
{
    const bool dw = c->op == PK_OP_DWCONV2D_DW;
    const struct pk_shape *x = &c->in[0].shape, *w = dw ? &c->out[0].shape : &c->in[1].shape;

    memset(j, 0, sizeof *j);
    j->x = cuda_rows_of(&c->in[0]);
    j->second = cuda_rows_of(&c->in[1]);
    j->out = c->out[0].data;
    j->out_bf16 = c->out[0].dtype == PK_BF16;
    j->height = (int)x->dim[1];
    j->width = (int)x->dim[2];
    j->channels = (int)x->dim[3];
    j->out_packs = cuda_packs(&c->out[0], j->channels);
    j->kh = (int)w->dim[0];
    j->kw = (int)w->dim[1];
    j->top = j->kh / 2;
    j->left = j->kw / 2;
    j->sign = !dw && c->attr->conv.flip ? -1 : 1;
    j->packs = (int)cuda_div_up(j->channels, 4);
    j->strips = (int)cuda_div_up(j->width, SIDE);
    j->rows = x->dim[0] * j->height;
    j->count = j->rows * j->strips * j->packs;
    j->share = cuda_div_up(j->rows, SHARES_MOST);
    j->shares = j->rows ? (int)cuda_div_up(j->rows, j->share) : 0;
}

extern "C" enum pd_err cuda_dwconv2d(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    job_of(&j, c);
    if (j.count == 0)
        return PD_OK;
    if (cuda_div_up(j.count, THREADS) > 0x7fffffff)
        return pd_fail(why, PD_ERR_LIMIT, "a depthwise convolution of %lld elements is too large",
                       (long long)cuda_count(&c->out[0].shape));
    PK_LAUNCH(dwconv_kernel, dim3((unsigned)cuda_div_up(j.count, THREADS)), dim3(THREADS), 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

extern "C" size_t cuda_dwconv2d_dw_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct job j;

    (void)b;
    job_of(&j, c);
    return (size_t)j.shares * (size_t)cuda_count(&c->out[0].shape) * sizeof(float);
}

extern "C" enum pd_err cuda_dwconv2d_dw(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const int64_t all = cuda_count(&c->out[0].shape);
    struct job j;

    job_of(&j, c);
    if (all == 0)
        return PD_OK;
    j.partial = (float *)c->workspace;
    if (j.shares) {
        const int64_t blocks = j.shares * cuda_div_up((int64_t)j.packs * j.kh * j.kw, THREADS);

        PK_LAUNCH(dwconv_dw_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, b->stream, j);
        PK_CUDA_TRY(cudaGetLastError());
    }
    PK_LAUNCH(dwconv_add_kernel, dim3((unsigned)cuda_div_up(all, THREADS)), dim3(THREADS), 0, b->stream, j,
              all);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
