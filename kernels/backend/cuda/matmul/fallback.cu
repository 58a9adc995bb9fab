/* MATMUL without a library: products that cuBLASLt does not support (rows and columns both strided, a mix of f32 and
 * bf16, some alignments), and epilogues that it does not have.
 *
 * Remaining epilogues process four elements at a time if everything is dense.
 *
 * A block of 256 threads computes 64 x 64 elements of the output, each thread 4 x 4 of them; 16 steps of K at a
 * time are in shared memory as f32. Each element is one sum in the order of K. */
#include "kernels/backend/cuda/device.cuh"
#include "kernels/backend/cuda/matmul/matmul.h"
#include "kernels/backend/cuda/view.cuh"

#define TILE 64
#define DEPTH 16
#define SIDE 4 /* of a thread's square */
#define THREADS 256
#define BLOCKS_MOST 0x7fffffff

static __device__ __forceinline__ float load(const void *p, bool half, int64_t i)
{
    return half ? pk_float(((const __nv_bfloat16 *)p)[i]) : ((const float *)p)[i];
}

static __device__ __forceinline__ void store(void *p, bool half, int64_t i, float x)
{
    if (half)
        ((__nv_bfloat16 *)p)[i] = pk_narrow<__nv_bfloat16>(x);
    else
        ((float *)p)[i] = x;
}

static __device__ __forceinline__ float activate(enum pk_act act, float x)
{
    switch (act) {
    case PK_ACT_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case PK_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case PK_ACT_RELU:
        return x > 0.0f ? x : x != x ? x : 0.0f;
    default:
        return x;
    }
}

/* The derivative of activate. */
static __device__ __forceinline__ float slope(enum pk_act act, float x)
{
    switch (act) {
    case PK_ACT_GELU:
        return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) +
               x * 0.39894228040143268f * expf(-0.5f * x * x);
    case PK_ACT_GELU_TANH: {
        const float t = tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x));

        return 0.5f * (1.0f + t) +
               0.5f * x * (1.0f - t * t) * (0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x));
    }
    case PK_ACT_RELU:
        return x > 0.0f ? 1.0f : 0.0f;
    default:
        return 1.0f;
    }
}

/* The address of matrix `z` of an operand. */
static __device__ __forceinline__ int64_t begin_of(const cuda_product &p, const cuda_operand &o, int64_t z)
{
    int64_t at = 0;

    for (int i = p.lead - 1; i >= 0; i--) {
        at += z % p.dim[i] * o.step[i];
        z /= p.dim[i];
    }
    return at;
}

static __global__ void __launch_bounds__(THREADS)
    product_kernel(const cuda_product p, int tiles_m, int tiles_n)
{
    __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
    const int t = threadIdx.x;
    const int64_t z = blockIdx.x / ((int64_t)tiles_m * tiles_n);
    const int tile = (int)(blockIdx.x % ((int64_t)tiles_m * tiles_n));
    const int64_t i0 = (int64_t)(tile / tiles_n) * TILE, j0 = (int64_t)(tile % tiles_n) * TILE;
    const bool a_half = p.a.dtype == PK_BF16, b_half = p.b.dtype == PK_BF16;
    const int64_t a0 = begin_of(p, p.a, z), b0 = begin_of(p, p.b, z);
    const int row = t / 16 * SIDE, col = t % 16 * SIDE;
    float sum[SIDE][SIDE] = {{0.0f}};

    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
        for (int e = t; e < DEPTH * TILE; e += THREADS) {
            /* neighbours along whichever axis is dense */
            const int ak = p.a.cs == 1 ? e % DEPTH : e / TILE, ai = p.a.cs == 1 ? e / DEPTH : e % TILE;
            const int bk = p.b.cs == 1 ? e / TILE : e % DEPTH, bj = p.b.cs == 1 ? e % TILE : e / DEPTH;

            as[ak][ai] = i0 + ai < p.m && k0 + ak < p.k
                             ? load(p.a.data, a_half, a0 + (i0 + ai) * p.a.rs + (k0 + ak) * p.a.cs)
                             : 0.0f;
            bs[bk][bj] = j0 + bj < p.n && k0 + bk < p.k
                             ? load(p.b.data, b_half, b0 + (k0 + bk) * p.b.rs + (j0 + bj) * p.b.cs)
                             : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
#pragma unroll
            for (int r = 0; r < SIDE; r++)
#pragma unroll
                for (int c = 0; c < SIDE; c++)
                    sum[r][c] = fmaf(as[k][row + r], bs[k][col + c], sum[r][c]);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int c = 0; c < SIDE; c++) {
            const int64_t i = i0 + row + r, j = j0 + col + c;
            float x = sum[r][c];

            if (i >= p.m || j >= p.n)
                continue;
            if (p.has_bias)
                x += load(p.bias, p.bias_dtype == PK_BF16, j * p.bias_step);
            if (p.keeps)
                store(p.kept, p.out_dtype == PK_BF16, (z * p.m + i) * p.n + j, x);
            if (!p.slope)
                x = activate(p.act, x);
            if (p.has_residual || p.slope) {
                const float y = load(p.residual.data, p.residual.dtype == PK_BF16,
                                     begin_of(p, p.residual, z) + i * p.residual.rs + j * p.residual.cs);

                x = p.slope ? x * slope(p.act, y) : x + y;
            }
            store(p.out, p.out_dtype == PK_BF16, (z * p.m + i) * p.n + j, x);
        }
}

static __device__ __forceinline__ float finished(enum pk_act act, int what, float x, float other)
{
    if (what & CUDA_FINISH_ACT)
        x = activate(act, x);
    if (what & CUDA_FINISH_SLOPE)
        x *= slope(act, other);
    if (what & CUDA_FINISH_RESIDUAL)
        x += other;
    return x;
}

static __global__ void __launch_bounds__(THREADS)
    finish_kernel(const cuda_product p, const void *from, bool from_half, int64_t count, int what)
{
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        const int64_t j = at % p.n, i = at / p.n % p.m, z = at / p.n / p.m;
        float other = 0.0f;

        if (what & (CUDA_FINISH_SLOPE | CUDA_FINISH_RESIDUAL))
            other = load(p.residual.data, p.residual.dtype == PK_BF16,
                         begin_of(p, p.residual, z) + i * p.residual.rs + j * p.residual.cs);
        store(p.out, p.out_dtype == PK_BF16, at, finished(p.act, what, load(from, from_half, at), other));
    }
}

static __global__ void __launch_bounds__(THREADS)
    finish_packs_kernel(const void *from, bool from_half, const void *extra, bool extra_half, void *out,
                        bool out_half, int64_t packs, enum pk_act act, int what)
{
    for (int64_t pack = (int64_t)blockIdx.x * THREADS + threadIdx.x; pack < packs;
         pack += (int64_t)gridDim.x * THREADS) {
        float x[4], other[4] = {0.0f, 0.0f, 0.0f, 0.0f};

        pk_load4(from, from_half, 4 * pack, x);
        if (what & (CUDA_FINISH_SLOPE | CUDA_FINISH_RESIDUAL))
            pk_load4(extra, extra_half, 4 * pack, other);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = finished(act, what, x[i], other[i]);
        pk_store4(out, out_half, 4 * pack, x);
    }
}

/* Whether the extra operand (slope or residual) is laid out as densely as the output. */
static bool lies_alike(const struct cuda_product *p, const struct cuda_operand *o)
{
    int64_t step = p->m * p->n;

    if (o->cs != 1 || (p->m != 1 && o->rs != p->n))
        return false;
    for (int32_t i = p->lead - 1; i >= 0; i--) {
        if (o->step[i] != step)
            return false;
        step *= p->dim[i];
    }
    return true;
}

extern "C" enum pd_err cuda_product_fallback(struct pk_backend *b, const struct cuda_product *p,
                                             struct pd_why *why)
{
    const int64_t tiles_m = cuda_div_up(p->m, TILE), tiles_n = cuda_div_up(p->n, TILE);

    if (tiles_m * tiles_n > BLOCKS_MOST || tiles_m * tiles_n * p->batch > BLOCKS_MOST)
        return pd_fail(why, PD_ERR_LIMIT, "a product of %lld x %lld x %lld, %lld times, is too large",
                       (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch);
    PK_LAUNCH(product_kernel, dim3((unsigned)(tiles_m * tiles_n * p->batch)), dim3(THREADS), 0, b->stream, *p,
              (int)tiles_m, (int)tiles_n);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

extern "C" enum pd_err cuda_product_finish(struct pk_backend *b, const struct cuda_product *p,
                                           const void *from, enum pk_dtype from_dtype, int what,
                                           struct pd_why *why)
{
    const int64_t count = p->m * p->n * p->batch;
    const bool reads_extra = (what & (CUDA_FINISH_SLOPE | CUDA_FINISH_RESIDUAL)) != 0;
    const bool packs = count % 4 == 0 && cuda_aligned(from, cuda_pack_bytes(from_dtype)) &&
                       cuda_aligned(p->out, cuda_pack_bytes(p->out_dtype)) &&
                       (!reads_extra || (lies_alike(p, &p->residual) &&
                                         cuda_aligned(p->residual.data, cuda_pack_bytes(p->residual.dtype))));
    int64_t blocks = cuda_div_up(count, THREADS * 4);

    if (blocks > (int64_t)b->multiprocessors * 16)
        blocks = (int64_t)b->multiprocessors * 16;
    if (packs)
        PK_LAUNCH(finish_packs_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, b->stream, from,
                  from_dtype == PK_BF16, p->residual.data, p->residual.dtype == PK_BF16, p->out,
                  p->out_dtype == PK_BF16, count / 4, p->act, what);
    else
        PK_LAUNCH(finish_kernel, dim3((unsigned)blocks), dim3(THREADS), 0, b->stream, *p, from,
                  from_dtype == PK_BF16, count, what);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
