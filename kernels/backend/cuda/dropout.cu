/* DROPOUT: x m / (1 - rate), m drawn by Philox (kernels/base/philox.h) at the counters of op.h: the mask is
 * the CPU's, bit for bit.
 *
 * Bytes: x is read once, y written once; the mask is never stored. A counter gives four words, for columns 16
 * apart in a piece of 64. Lane l of a warp draws counter l % 16 of one of two pieces; votes distribute all bits to all
 * lanes, and lane l then takes the pack from column 4 l on of the two adjacent pieces: no draw is wasted and memory
 * accesses are coalesced. A warp has four pieces. Drawing takes about 15 instructions per element, less than a warp can
 * issue during its memory accesses. Pieces are numbered through all rows; the last one of a row may be partial. If
 * whole samples are drawn, each thread draws for its own pack. */
#include "kernels/backend/cuda/view.cuh"

#include "kernels/base/philox.h"

#define THREADS 256
#define PIECE 64 /* columns that four words of 16 counters serve */
#define PIECES 4 /* of a warp */

namespace
{
struct job {
    struct cuda_rows x;
    void *y;
    bool y_bf16, y_packs;
    const int32_t *rng;
    int64_t rng_step;
    uint32_t share_rows; /* rows (or samples) in one share of a whole, if rng names the share; else 0 */
    uint32_t stream, threshold;
    float factor;
    int64_t rows, columns, row_pieces, pieces;
    struct cuda_divisor by_pieces;
    bool wide;
    int64_t sample_rows; /* rows of a sample that is drawn as one; 0: each element by itself */
};
} // namespace

__device__ __forceinline__ uint64_t key_of(const struct job &j)
{
    return (uint32_t)j.rng[0] | (uint64_t)(uint32_t)j.rng[j.rng_step] << 32;
}

/* The row of the whole that is row 0 here. */
__device__ __forceinline__ uint32_t first_row(const struct job &j)
{
    return j.share_rows ? (uint32_t)j.rng[3 * j.rng_step] * j.share_rows : 0;
}

__device__ __forceinline__ void philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                       uint32_t word[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

#pragma unroll
    for (int round = 0; round < PD_PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)PD_PHILOX_M0 * c0, p1 = (uint64_t)PD_PHILOX_M1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += PD_PHILOX_W0;
        k1 += PD_PHILOX_W1;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* What is kept of pack k of row r: bit i of `keep` is element i's. */
__device__ __forceinline__ void take(const struct job &j, int64_t r, int k, const float v[4], uint32_t keep)
{
    float y[4];

#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = keep >> i & 1 ? v[i] * j.factor : 0;
    pk_row_store(j.y, j.y_bf16, j.y_packs, r * j.columns, k, (int)j.columns, y);
}

static __global__ void __launch_bounds__(THREADS) dropout_kernel(const struct job j)
{
    const int lane = (int)threadIdx.x % PK_WARP;
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / PK_WARP * PIECES + lane / 16;
    const uint64_t key = key_of(j);
    const uint32_t step = (uint32_t)j.rng[2 * j.rng_step], row0 = first_row(j);
    float v[PIECES / 2][4];
    int64_t row[PIECES / 2];
    int pack[PIECES / 2];

#pragma unroll
    for (int h = 0; h < PIECES / 2; h++) {
        const int64_t piece = first + 2 * h;

        row[h] = j.wide ? piece / j.row_pieces : pk_divide(j.by_pieces, (uint32_t)piece);
        pack[h] = (int)(piece - row[h] * j.row_pieces) * (PIECE / 4) + lane % 16;
        if (piece < j.pieces)
            pk_row_load(j.x, pk_walk_at(j.x.lead, row[h]), pack[h], (int)j.columns, v[h]);
    }
#pragma unroll
    for (int h = 0; h < PIECES / 2; h++) {
        uint32_t w[4], votes = 0;

        /* the counter of lane % 16 in a piece is numbered like its pack of that piece */
        philox(key, (uint32_t)pack[h], row0 + (uint32_t)row[h], step, j.stream, w);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t all = __ballot_sync(PK_WARP_ALL, w[k] >= j.threshold);

            if (lane % 16 / 4 == k)
                votes = all;
        }
        if (first + 2 * h < j.pieces)
            take(j, row[h], pack[h], v[h], votes >> (lane / 16 * 16 + lane % 4 * 4));
    }
}

static __global__ void __launch_bounds__(THREADS) samples_kernel(const struct job j)
{
    const int64_t mine = (int64_t)blockIdx.x * THREADS + threadIdx.x, packs = (j.columns + 3) / 4;
    const int64_t r = mine / packs;
    const int k = (int)(mine - r * packs);
    float v[4];
    uint32_t w[4];

    if (r >= j.rows)
        return;
    pk_row_load(j.x, pk_walk_at(j.x.lead, r), k, (int)j.columns, v);
    philox(key_of(j), 0, first_row(j) + (uint32_t)(r / j.sample_rows), (uint32_t)j.rng[2 * j.rng_step],
           j.stream, w);
    take(j, r, k, v, w[0] >= j.threshold ? 0xf : 0);
}

enum pd_err cuda_dropout(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct pk_view x = c->in[0];
    const bool samples = c->attr->dropout.samples;
    const int64_t count = cuda_count(&x.shape);
    struct job j;

    if (count == 0)
        return PD_OK;
    memset(&j, 0, sizeof j);
    if (samples && x.shape.rank == 1) { /* one number a sample: rows of one column */
        x.shape.rank = 2;
        x.shape.dim[1] = 1;
        x.stride[1] = 1;
    }
    j.x = cuda_rows_of(&x);
    j.columns = x.shape.dim[x.shape.rank - 1];
    j.rows = count / j.columns;
    j.y = c->out[0].data;
    j.y_bf16 = c->out[0].dtype == PK_BF16;
    j.y_packs = cuda_packs(&c->out[0], j.columns);
    j.rng = (const int32_t *)c->in[1].data;
    j.rng_step = c->in[1].stride[0];
    if (c->in[1].shape.dim[0] > 3)
        j.share_rows = (uint32_t)(samples ? x.shape.dim[0] : j.rows);
    j.stream = 0x80000000u + c->attr->dropout.stream;
    j.threshold = (uint32_t)(c->attr->dropout.rate * 4294967296.0);
    j.factor = (float)(1 / (1 - c->attr->dropout.rate));
    if (samples) {
        j.sample_rows = j.rows / x.shape.dim[0];
        PK_LAUNCH(samples_kernel, (unsigned)cuda_div_up(j.rows * cuda_div_up(j.columns, 4), THREADS), THREADS,
                  0, b->stream, j);
    } else {
        j.row_pieces = cuda_div_up(j.columns, PIECE);
        j.pieces = j.rows * j.row_pieces;
        j.by_pieces = cuda_divisor_of(j.row_pieces);
        j.wide = j.pieces + THREADS >= (int64_t)1 << 31;
        PK_LAUNCH(dropout_kernel, (unsigned)cuda_div_up(j.pieces, THREADS / PK_WARP * PIECES), THREADS, 0,
                  b->stream, j);
    }
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
