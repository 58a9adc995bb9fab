/* NORM and NORM_BWD over the last axis.
 *
 * A group of threads owns a row and keeps it in registers, PACKS packs of four elements each: 8 to 32
 * neighbours of a warp up to D = 1024, a block of 256 up to 8192. Statistics are f32 sums, in two passes over
 * the registers, so that an offset of 100 costs nothing. Longer rows are read again for every pass.
 *
 * Forward: x once in, y once out, rstd and mean; gamma and beta come from the first-level cache.
 *
 * Backward: with xhat = (x - mean) rstd and u = gamma dy,
 *     dx = rstd (u - mean(u) - xhat mean(u xhat))     without mean(u) for RMSNorm
 *     dgamma = sum of dy xhat,  dbeta = sum of dy     over rows
 * x and dy are read once, dx is written once; a residual is read once and added to dx; with `again`, y is written once.
 * A group processes rows of its block's share at a fixed distance and keeps its columns' sums for dgamma and dbeta in
 * registers; the groups of a block are added in order and written as one row of partial sums, and a
 * second kernel adds those rows, 8 sums of every eighth row in parallel. The number of blocks depends
 * on the shape only: a few per multiprocessor of an H100 or H200, and their partial sums are 1 percent
 * of the bytes read. */
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define WARP_MOST 1024 /* longest row of a warp: 8 packs a lane */
#define BLOCK_MOST 8192
#define BWD_THREADS 128 /* backward, where a warp is a group: registers are handed out in smaller lots */

namespace
{
struct job {
    struct cuda_rows x, dy, more; /* more: the residual, if has_more */
    const void *gamma, *beta;
    int64_t gamma_step, beta_step;
    bool gamma_bf16, beta_bf16, gamma_packs, beta_packs;
    void *y, *rstd, *mean; /* forward: written; of type bf16 or f32 */
    bool y_bf16, y_packs, rstd_bf16, mean_bf16;
    struct cuda_walk rstd_at, mean_at; /* backward: where row r's lies */
    int64_t rows, share;               /* share: rows of a block (backward) */
    int d, lanes;                      /* lanes of a row's group; THREADS: the block */
    bool layer, has_beta, has_more;
    void *again; /* backward: the recomputed y; NULL: not needed */
    bool again_bf16, again_packs;
    float eps;
    float *partial; /* backward: (blocks, 2, d) */
};
} // namespace

__device__ __forceinline__ void vector_load(const void *p, bool bf16, bool packs, int64_t step, int k, int n,
                                            float v[4])
{
    if (packs && 4 * k + 4 <= n) {
        pk_load4(p, bf16, 4 * k, v);
        return;
    }
    for (int i = 0; i < 4; i++)
        v[i] = 4 * k + i < n ? pk_load1(p, bf16, (4 * k + i) * step) : 0;
}

template <int PACKS>
static __global__ void __launch_bounds__(THREADS, PACKS <= 2   ? 6
                                                  : PACKS <= 4 ? 5
                                                  : PACKS <= 6 ? 4
                                                               : 3) norm_kernel(const struct job j)
{
    __shared__ float scratch[PK_WARP];
    const int lane = pk_group_lane(j.lanes), d = j.d;
    const int64_t mine = pk_group(j.lanes);
    const int64_t r = mine < j.rows ? mine : j.rows - 1, at = pk_walk_at(j.x.lead, r);
    float x[PACKS][4], sum = 0, mean = 0, rstd;

    pk_row_load_many<PACKS>(j.x, at, lane, j.lanes, d, x);
    if (j.layer) {
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            sum += (x[p][0] + x[p][1]) + (x[p][2] + x[p][3]);
        mean = pk_group_sum(sum, j.lanes, scratch) / (float)d;
    }
    if (4 * PACKS * j.lanes != d) /* elements beyond the row add nothing to the variance */
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (4 * (p * j.lanes + lane) + i >= d)
                    x[p][i] = mean;
    sum = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[p][i] -= mean;
            sum += x[p][i] * x[p][i];
        }
    rstd = 1.0f / sqrtf(pk_group_sum(sum, j.lanes, scratch) / (float)d + j.eps);
    if (mine >= j.rows)
        return;
    if (lane == 0) {
        pk_store1(j.rstd, j.rstd_bf16, r, rstd);
        if (j.layer)
            pk_store1(j.mean, j.mean_bf16, r, mean);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        float gamma[4], beta[4] = {0, 0, 0, 0};

        vector_load(j.gamma, j.gamma_bf16, j.gamma_packs, j.gamma_step, p * j.lanes + lane, d, gamma);
        if (j.has_beta)
            vector_load(j.beta, j.beta_bf16, j.beta_packs, j.beta_step, p * j.lanes + lane, d, beta);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[p][i] = x[p][i] * rstd * gamma[i] + beta[i];
    }
    pk_row_store_many<PACKS>(j.y, j.y_bf16, j.y_packs, r * d, lane, j.lanes, d, x);
}

/* Rows of any length, by a block each. */
static __global__ void __launch_bounds__(THREADS) norm_long_kernel(const struct job j)
{
    __shared__ float scratch[PK_WARP];
    const int64_t r = blockIdx.x, at = pk_walk_at(j.x.lead, r);
    const int packs = (j.d + 3) / 4;
    float sum = 0, mean = 0, rstd, v[4];

    if (j.layer) {
        for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
            pk_row_load(j.x, at, k, j.d, v);
            sum += (v[0] + v[1]) + (v[2] + v[3]);
        }
        mean = pk_group_sum(sum, THREADS, scratch) / (float)j.d;
    }
    sum = 0;
    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        pk_row_load(j.x, at, k, j.d, v);
        for (int i = 0; i < 4; i++) {
            const float c = 4 * k + i < j.d ? v[i] - mean : 0;

            sum += c * c;
        }
    }
    rstd = 1.0f / sqrtf(pk_group_sum(sum, THREADS, scratch) / (float)j.d + j.eps);
    if (threadIdx.x == 0) {
        pk_store1(j.rstd, j.rstd_bf16, r, rstd);
        if (j.layer)
            pk_store1(j.mean, j.mean_bf16, r, mean);
    }
    for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
        float gamma[4], beta[4] = {0, 0, 0, 0};

        pk_row_load(j.x, at, k, j.d, v);
        vector_load(j.gamma, j.gamma_bf16, j.gamma_packs, j.gamma_step, k, j.d, gamma);
        if (j.has_beta)
            vector_load(j.beta, j.beta_bf16, j.beta_packs, j.beta_step, k, j.d, beta);
        for (int i = 0; i < 4; i++)
            v[i] = (v[i] - mean) * rstd * gamma[i] + beta[i];
        pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.d, k, j.d, v);
    }
}

/* ---- backward ---- */

/* Blocks of one multiprocessor, for the compiler's use of registers and for the number of blocks. */
#define BWD_BLOCKS(packs)                                                                                    \
    ((packs) <= 1 ? 8 : (packs) <= 2 ? 6 : (packs) <= 3 ? 5 : (packs) <= 4 ? 4 : (packs) <= 6 ? 3 : 2)
#define BWD_WIDE_BLOCKS(packs) ((packs) <= 2 ? 3 : (packs) <= 4 ? 2 : 1)

template <int PACKS, int WIDTH>
static __global__ void __launch_bounds__(WIDTH, WIDTH == THREADS ? BWD_WIDE_BLOCKS(PACKS) : BWD_BLOCKS(PACKS))
    norm_bwd_kernel(const struct job j)
{
    PK_SHARED(float, shared); /* (2, d) where warps are groups */
    __shared__ float scratch[2][PK_WARP];
    const int lane = pk_group_lane(j.lanes), group = (int)threadIdx.x >> __popc((unsigned)j.lanes - 1),
              d = j.d;
    const int groups = WIDTH / j.lanes;
    const int64_t first = blockIdx.x * j.share, end = first + j.share < j.rows ? first + j.share : j.rows;
    float dgamma[PACKS][4], dbeta[PACKS][4];

#pragma unroll
    for (int p = 0; p < PACKS; p++)
        for (int i = 0; i < 4; i++)
            dgamma[p][i] = dbeta[p][i] = 0;
    for (int64_t base = first; base < end; base += groups) {
        const bool there = base + group < end;
        const int64_t r = there ? base + group : end - 1;
        const int64_t x_at = pk_walk_at(j.x.lead, r), dy_at = pk_walk_at(j.dy.lead, r);
        const float rstd = pk_load1(j.rstd, j.rstd_bf16, pk_walk_at(j.rstd_at, r));
        const float mean = j.layer ? pk_load1(j.mean, j.mean_bf16, pk_walk_at(j.mean_at, r)) : 0;
        float h[PACKS][4], u[PACKS][4], more[PACKS][4], su = 0, suh = 0;

        pk_row_load_many<PACKS>(j.x, x_at, lane, j.lanes, d, h);
        pk_row_load_many<PACKS>(j.dy, dy_at, lane, j.lanes, d, u); /* dy; zeros beyond the row */
        if (j.has_more)
            pk_row_load_many<PACKS>(j.more, pk_walk_at(j.more.lead, r), lane, j.lanes, d, more);
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            float gamma[4];

            vector_load(j.gamma, j.gamma_bf16, j.gamma_packs, j.gamma_step, p * j.lanes + lane, d, gamma);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float g = there ? u[p][i] : 0;

                h[p][i] = (h[p][i] - mean) * rstd;
                dgamma[p][i] += g * h[p][i];
                dbeta[p][i] += g;
                u[p][i] *= gamma[i];
                su += u[p][i];
                suh += u[p][i] * h[p][i];
            }
            if (j.again && there) {
                float beta[4] = {0, 0, 0, 0};

                if (j.beta)
                    vector_load(j.beta, j.beta_bf16, j.beta_packs, j.beta_step, p * j.lanes + lane, d, beta);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    gamma[i] = h[p][i] * gamma[i] + beta[i];
                pk_row_store(j.again, j.again_bf16, j.again_packs, r * d, p * j.lanes + lane, d, gamma);
            }
        }
        su = j.layer ? pk_group_sum(su, j.lanes, scratch[0]) / (float)d : 0;
        suh = pk_group_sum(suh, j.lanes, scratch[1]) / (float)d;
#pragma unroll
        for (int p = 0; p < PACKS; p++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                u[p][i] = rstd * (u[p][i] - su - h[p][i] * suh);
        if (j.has_more)
#pragma unroll
            for (int p = 0; p < PACKS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    u[p][i] += more[p][i];
        if (there)
            pk_row_store_many<PACKS>(j.y, j.y_bf16, j.y_packs, r * d, lane, j.lanes, d, u);
    }
    /* Groups of a warp first, then the warps in order. */
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            for (int s = j.lanes; s < PK_WARP; s *= 2) {
                dgamma[p][i] += __shfl_xor_sync(PK_WARP_ALL, dgamma[p][i], s);
                dbeta[p][i] += __shfl_xor_sync(PK_WARP_ALL, dbeta[p][i], s);
            }
    const int turns = j.lanes > PK_WARP ? 1 : WIDTH / PK_WARP;
    float *const to = j.partial + (int64_t)blockIdx.x * 2 * d;

    for (int turn = 0; turn < turns; turn++) {
        const bool own =
            turns == 1 || ((int)threadIdx.x / PK_WARP == turn && (int)threadIdx.x % PK_WARP == lane);

        if (own)
#pragma unroll
            for (int p = 0; p < PACKS; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int c = 4 * (p * j.lanes + lane) + i;

                    if (c >= d)
                        break;
                    if (turn > 0) {
                        dgamma[p][i] += shared[c];
                        dbeta[p][i] += shared[d + c];
                    }
                    if (turn < turns - 1) {
                        shared[c] = dgamma[p][i];
                        shared[d + c] = dbeta[p][i];
                    } else {
                        to[c] = dgamma[p][i];
                        to[d + c] = dbeta[p][i];
                    }
                }
        __syncthreads();
    }
}

/* dx of rows of any length, by a block each. */
static __global__ void __launch_bounds__(THREADS) norm_bwd_long_kernel(const struct job j)
{
    __shared__ float scratch[2][PK_WARP];
    const int64_t r = blockIdx.x, x_at = pk_walk_at(j.x.lead, r), dy_at = pk_walk_at(j.dy.lead, r);
    const float rstd = pk_load1(j.rstd, j.rstd_bf16, pk_walk_at(j.rstd_at, r));
    const float mean = j.layer ? pk_load1(j.mean, j.mean_bf16, pk_walk_at(j.mean_at, r)) : 0;
    const int64_t more_at = j.has_more ? pk_walk_at(j.more.lead, r) : 0;
    const int packs = (j.d + 3) / 4;
    float su = 0, suh = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int k = (int)threadIdx.x; k < packs; k += THREADS) {
            float x[4], dy[4], gamma[4];

            pk_row_load(j.x, x_at, k, j.d, x);
            pk_row_load(j.dy, dy_at, k, j.d, dy);
            vector_load(j.gamma, j.gamma_bf16, j.gamma_packs, j.gamma_step, k, j.d, gamma);
            for (int i = 0; i < 4; i++) {
                const float u = dy[i] * gamma[i], h = (x[i] - mean) * rstd;

                if (pass == 0) {
                    su += u;
                    suh += u * h;
                }
                x[i] = rstd * (u - su - h * suh);
                dy[i] = h * gamma[i];
            }
            if (pass == 0 && j.again) {
                float beta[4] = {0, 0, 0, 0};

                if (j.beta)
                    vector_load(j.beta, j.beta_bf16, j.beta_packs, j.beta_step, k, j.d, beta);
                for (int i = 0; i < 4; i++)
                    dy[i] += beta[i];
                pk_row_store(j.again, j.again_bf16, j.again_packs, r * j.d, k, j.d, dy);
            }
            if (pass == 1) {
                if (j.has_more) {
                    pk_row_load(j.more, more_at, k, j.d, gamma);
                    for (int i = 0; i < 4; i++)
                        x[i] += gamma[i];
                }
                pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.d, k, j.d, x);
            }
        }
        if (pass == 0) {
            su = pk_group_sum(su, THREADS, scratch[0]);
            su = j.layer ? su / (float)j.d : 0;
            suh = pk_group_sum(suh, THREADS, scratch[1]) / (float)j.d;
        }
    }
}

/* The share's sums for dgamma and dbeta alone: a thread a column. */
static __global__ void __launch_bounds__(THREADS) norm_bwd_long_sums_kernel(const struct job j, int strips)
{
    const int64_t share = blockIdx.x / strips, c = blockIdx.x % strips * THREADS + threadIdx.x;
    const int64_t first = share * j.share, end = first + j.share < j.rows ? first + j.share : j.rows;
    float dgamma = 0, dbeta = 0;

    if (c >= j.d)
        return;
    for (int64_t r = first; r < end; r++) {
        const float rstd = pk_load1(j.rstd, j.rstd_bf16, pk_walk_at(j.rstd_at, r));
        const float mean = j.layer ? pk_load1(j.mean, j.mean_bf16, pk_walk_at(j.mean_at, r)) : 0;
        const float dy = pk_load1(j.dy.data, j.dy.bf16, pk_walk_at(j.dy.lead, r) + c * j.dy.step);

        dgamma += dy * ((pk_load1(j.x.data, j.x.bf16, pk_walk_at(j.x.lead, r) + c * j.x.step) - mean) * rstd);
        dbeta += dy;
    }
    j.partial[share * 2 * j.d + c] = dgamma;
    j.partial[share * 2 * j.d + j.d + c] = dbeta;
}

/* Rows of partial sums added: 32 columns a block, 8 sums of every eighth row. */
static __global__ void __launch_bounds__(THREADS)
    norm_bwd_add_kernel(const float *partial, int shares, int d, void *dgamma, bool dgamma_bf16, void *dbeta,
                        bool dbeta_bf16)
{
    __shared__ float part[THREADS / PK_WARP][PK_WARP];
    const int lane = (int)threadIdx.x % PK_WARP, row = (int)threadIdx.x / PK_WARP;
    const int c = (int)blockIdx.x * PK_WARP + lane;
    float sum = 0;

    if (c < 2 * d)
#pragma unroll 4
        for (int s = row; s < shares; s += THREADS / PK_WARP)
            sum += partial[(int64_t)s * 2 * d + c];
    part[row][lane] = sum;
    __syncthreads();
    if (row > 0 || c >= 2 * d)
        return;
    for (int i = 1; i < THREADS / PK_WARP; i++)
        sum += part[i][lane];
    if (c < d)
        pk_store1(dgamma, dgamma_bf16, c, sum);
    else if (dbeta)
        pk_store1(dbeta, dbeta_bf16, c - d, sum);
}

/* ---- launching ---- */

static void job_of(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0], *gamma = &c->in[1];
    const int last = x->shape.rank - 1;

    memset(j, 0, sizeof *j);
    j->x = cuda_rows_of(x);
    j->d = (int)x->shape.dim[last];
    j->rows = j->x.lead.count;
    j->gamma = gamma->data;
    j->gamma_step = j->d == 1 ? 1 : gamma->stride[0];
    j->gamma_bf16 = gamma->dtype == PK_BF16;
    j->gamma_packs = j->gamma_step == 1 && cuda_aligned(gamma->data, cuda_pack_bytes(gamma->dtype));
    j->layer = c->attr->norm.kind == PK_NORM_LAYER;
    j->has_beta = c->attr->norm.has_beta;
    j->eps = (float)(c->attr->norm.eps_mode == PK_EPS_SUM ? c->attr->norm.eps / (j->d > 0 ? j->d : 1)
                                                          : c->attr->norm.eps);
    j->y = c->out[0].data;
    j->y_bf16 = c->out[0].dtype == PK_BF16;
    j->y_packs = cuda_packs(&c->out[0], j->d);
    for (j->lanes = 1; j->lanes < PK_WARP && j->lanes * 4 < j->d; j->lanes *= 2)
        ;
    if (j->d > WARP_MOST)
        j->lanes = THREADS;
}

/* The kernel for rows of `packs` packs a lane. */
#define BY_PACKS(kernel, packs, ...)                                                                         \
    do {                                                                                                     \
        if ((packs) <= 1)                                                                                    \
            PK_LAUNCH(kernel(1), __VA_ARGS__);                                                               \
        else if ((packs) <= 2)                                                                               \
            PK_LAUNCH(kernel(2), __VA_ARGS__);                                                               \
        else if ((packs) <= 3)                                                                               \
            PK_LAUNCH(kernel(3), __VA_ARGS__);                                                               \
        else if ((packs) <= 4)                                                                               \
            PK_LAUNCH(kernel(4), __VA_ARGS__);                                                               \
        else if ((packs) <= 6)                                                                               \
            PK_LAUNCH(kernel(6), __VA_ARGS__);                                                               \
        else                                                                                                 \
            PK_LAUNCH(kernel(8), __VA_ARGS__);                                                               \
    } while (0)
static void job_beta(struct job *j, const struct pk_view *v)
{
    j->beta = v->data;
    j->beta_step = j->d == 1 ? 1 : v->stride[0];
    j->beta_bf16 = v->dtype == PK_BF16;
    j->beta_packs = j->beta_step == 1 && cuda_aligned(j->beta, cuda_pack_bytes(v->dtype));
}

#define NORM_OF(packs) (norm_kernel<packs>)
#define NORM_BWD_OF_WARPS(packs) (norm_bwd_kernel<packs, BWD_THREADS>)
#define NORM_BWD_OF_BLOCK(packs) (norm_bwd_kernel<packs, THREADS>)

enum pd_err cuda_norm(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    job_of(&j, c);
    if (j.rows == 0 || j.d == 0)
        return PD_OK;
    if (j.has_beta)
        job_beta(&j, &c->in[2]);
    j.rstd = c->out[1].data;
    j.rstd_bf16 = c->out[1].dtype == PK_BF16;
    if (j.layer) {
        j.mean = c->out[2].data;
        j.mean_bf16 = c->out[2].dtype == PK_BF16;
    }
    if (j.d > BLOCK_MOST)
        PK_LAUNCH(norm_long_kernel, (unsigned)j.rows, THREADS, 0, b->stream, j);
    else
        BY_PACKS(NORM_OF, cuda_div_up(j.d, 4 * j.lanes), (unsigned)cuda_div_up(j.rows, THREADS / j.lanes),
                 THREADS, 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static int bwd_threads(const struct job *j)
{
    return j->lanes > PK_WARP ? THREADS : BWD_THREADS;
}

/* Rows of a block of the backward kernel; returns the number of blocks. At most as many as the registers of
 * 132 multiprocessors hold at once, the same for every device. */
static int64_t shares_of(struct job *j)
{
    const int64_t packs = cuda_div_up(j->d, 4 * j->lanes);
    const int64_t most = 132 * (j->lanes > PK_WARP ? BWD_WIDE_BLOCKS(packs) : BWD_BLOCKS(packs));
    const int64_t least = j->d > BLOCK_MOST ? 16 : bwd_threads(j) / j->lanes; /* rows that a block is worth */

    j->share = cuda_div_up(cuda_div_up(j->rows, most), least) * least;
    if (j->share < least)
        j->share = least;
    return cuda_div_up(j->rows, j->share);
}

size_t cuda_norm_bwd_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct job j;

    (void)b;
    job_of(&j, c);
    return (size_t)(shares_of(&j) * 2 * j.d) * sizeof(float);
}

enum pd_err cuda_norm_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;
    int64_t shares;
    void *dbeta;
    int strips;

    job_of(&j, c);
    if (j.d == 0)
        return PD_OK;
    shares = shares_of(&j);
    j.dy = cuda_rows_of(&c->in[2]);
    j.rstd = c->in[3].data;
    j.rstd_bf16 = c->in[3].dtype == PK_BF16;
    j.rstd_at = cuda_walk_of(&c->in[3], 0, c->in[3].shape.rank);
    if (j.layer) {
        j.mean = c->in[4].data;
        j.mean_bf16 = c->in[4].dtype == PK_BF16;
        j.mean_at = cuda_walk_of(&c->in[4], 0, c->in[4].shape.rank);
    }
    j.has_more = c->attr->norm.has_residual;
    if (j.has_more)
        j.more = cuda_rows_of(&c->in[c->n_in - 1]);
    if (c->attr->norm.again) {
        const struct pk_view *y = &c->out[c->n_out - 1];

        j.again = y->data;
        j.again_bf16 = y->dtype == PK_BF16;
        j.again_packs = cuda_packs(y, j.d);
        if (j.has_beta)
            job_beta(&j, &c->in[4 + j.layer]);
    }
    j.partial = (float *)c->workspace;
    strips = (int)cuda_div_up(j.d, THREADS);
    dbeta = j.has_beta ? c->out[2].data : NULL;
    if (shares > 0 && j.d > BLOCK_MOST) {
        PK_LAUNCH(norm_bwd_long_kernel, (unsigned)j.rows, THREADS, 0, b->stream, j);
        PK_LAUNCH(norm_bwd_long_sums_kernel, (unsigned)(shares * strips), THREADS, 0, b->stream, j, strips);
    } else if (shares > 0 && j.lanes > PK_WARP) {
        BY_PACKS(NORM_BWD_OF_BLOCK, cuda_div_up(j.d, 4 * j.lanes), (unsigned)shares, THREADS, 0, b->stream,
                 j);
    } else if (shares > 0) {
        BY_PACKS(NORM_BWD_OF_WARPS, cuda_div_up(j.d, 4 * j.lanes), (unsigned)shares, BWD_THREADS,
                 (size_t)(2 * j.d) * sizeof(float), b->stream, j);
    }
    PK_LAUNCH(norm_bwd_add_kernel, (unsigned)cuda_div_up(2 * j.d, PK_WARP), THREADS, 0, b->stream, j.partial,
              (int)shares, j.d, c->out[1].data, c->out[1].dtype == PK_BF16, dbeta,
              dbeta && c->out[2].dtype == PK_BF16);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
