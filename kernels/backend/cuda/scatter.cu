/* SCATTER_ADD: rows of src added at their index, in the order of the index, without atomics on floats.
 *
 * Few positions and rows: a block per row of the output and strip of columns scans the whole index and adds the rows
 * of src with its index, in order.
 *
 * Otherwise positions are sorted by index first: a stable radix sort, 8 bits a pass (histograms of blocks,
 * one scan over all of them, scatter), of 8 bytes a position, which is little compared with rows of src. Then the
 * sorted positions are cut into tiles of 64; a block adds a tile's rows, in order, each thread a pack of four
 * columns with four rows in flight. A run of one index within a tile is finished there. Longer runs leave
 * one partial sum per tile in the workspace, and a last launch adds these in order, so that one
 * very frequent index (padding) is spread over many blocks. Sums are f32, even if src or the output
 * is bf16. The order of additions depends on the index only.
 *
 * Bytes: the output once (or its base copied), src once, and each row of the output that an index names once
 * more. */
#include "kernels/backend/cuda/move/move.h"
#include "kernels/backend/cuda/view.cuh"

#define FEW_POSITIONS 4096
#define FEW_WORK ((int64_t)1 << 22) /* positions times rows */
#define FEW_THREADS 128
#define THREADS 256
#define WARPS (THREADS / PK_WARP)
#define EACH 8 /* keys of a thread in a pass of the sort */
#define SORT_TILE (THREADS * EACH)
#define DIGITS 256
#define SCAN_THREADS 1024
#define TILE 64 /* sorted positions of a block */
#define UNDER_WAY 4

namespace
{
struct job {
    struct cuda_walk index;
    const int32_t *at;
    struct cuda_rows src;
    const void *base; /* dense, or NULL */
    void *out;
    bool base_bf16, base_packs, out_bf16, out_packs;
    int64_t rows, positions;
    int d, strips; /* columns; adjacent blocks */
    uint32_t *fault;
    /* of the sort */
    uint32_t *key[2], *place[2], *counts;
    int64_t sort_blocks;
    /* of the tiles */
    const uint32_t *keys, *places; /* sorted */
    float *head, *tail;            /* (tiles, d) each */
};
} // namespace

/* The row for position i; `rows` for an index that is none. */
__device__ __forceinline__ uint32_t row_of(const struct job &j, int64_t i, bool report)
{
    const int32_t at = j.at[pk_walk_at(j.index, i)];

    if (at >= 0 && at < j.rows)
        return (uint32_t)at;
    if (report)
        pk_fault(j.fault, PK_OP_SCATTER_ADD, at);
    return (uint32_t)j.rows;
}

__device__ __forceinline__ void base_load(const struct job &j, int64_t row, int k, float v[4])
{
    const int64_t at = row * j.d;

    if (!j.base) {
        v[0] = v[1] = v[2] = v[3] = 0;
    } else if (j.base_packs) {
        pk_load4(j.base, j.base_bf16, at + 4 * k, v);
    } else {
        for (int i = 0; i < 4; i++)
            v[i] = 4 * k + i < j.d ? pk_load1(j.base, j.base_bf16, at + 4 * k + i) : 0;
    }
}

/* acc <- acc + rows of src at list[0 .. n), pack k, in order. */
__device__ __forceinline__ void add_rows(const struct job &j, const uint32_t *list, int n, int k,
                                         float acc[4])
{
    for (int e = 0; e < n; e += UNDER_WAY) {
        float v[UNDER_WAY][4];

#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            if (e + u < n)
                pk_row_load(j.src, pk_walk_at(j.src.lead, list[e + u]), k, j.d, v[u]);
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            if (e + u < n)
                for (int i = 0; i < 4; i++)
                    acc[i] += v[u][i];
    }
}

/* ---- few ---- */

static __global__ void __launch_bounds__(FEW_THREADS) few_kernel(const struct job j)
{
    __shared__ uint32_t list[FEW_THREADS];
    __shared__ int found[FEW_THREADS / PK_WARP];
    const int64_t row = blockIdx.x / j.strips;
    const int k = (int)(blockIdx.x % j.strips) * FEW_THREADS + (int)threadIdx.x;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    float acc[4] = {0, 0, 0, 0};

    if (4 * k < j.d)
        base_load(j, row, k, acc);
    for (int64_t i0 = 0; i0 < j.positions; i0 += FEW_THREADS) {
        const int64_t i = i0 + threadIdx.x;
        const bool own = i < j.positions && row_of(j, i, blockIdx.x == 0) == row;
        const uint32_t all = __ballot_sync(PK_WARP_ALL, own);
        int before = 0, n = 0;

        if (lane == 0)
            found[warp] = __popc(all);
        __syncthreads();
        for (int w = 0; w < FEW_THREADS / PK_WARP; w++) {
            before += w < warp ? found[w] : 0;
            n += found[w];
        }
        if (own)
            list[before + __popc(all & ((1u << lane) - 1))] = (uint32_t)i;
        __syncthreads();
        if (4 * k < j.d)
            add_rows(j, list, n, k, acc);
        __syncthreads();
    }
    if (4 * k < j.d)
        pk_row_store(j.out, j.out_bf16, j.out_packs, row * j.d, k, j.d, acc);
}

/* ---- the sort ---- */

/* Keys of pass `pass`, the first straight from the index. A warp has 32 EACH keys in a row. */
__device__ __forceinline__ bool key_at(const struct job &j, int pass, int each, uint32_t *key,
                                       uint32_t *place)
{
    const int64_t i = (int64_t)blockIdx.x * SORT_TILE + threadIdx.x / PK_WARP * (PK_WARP * EACH) +
                      each * PK_WARP + threadIdx.x % PK_WARP;

    if (i >= j.positions)
        return false;
    *key = pass == 0 ? row_of(j, i, true) : j.key[pass % 2][i];
    *place = pass == 0 ? (uint32_t)i : j.place[pass % 2][i];
    return true;
}

static __global__ void __launch_bounds__(THREADS) count_kernel(const struct job j, int pass)
{
    __shared__ uint32_t count[DIGITS];
    uint32_t key, place;

    count[threadIdx.x] = 0;
    __syncthreads();
    for (int e = 0; e < EACH; e++)
        if (key_at(j, pass, e, &key, &place))
            atomicAdd(&count[key >> (8 * pass) & (DIGITS - 1)], 1u);
    __syncthreads();
    j.counts[threadIdx.x * j.sort_blocks + blockIdx.x] = count[threadIdx.x];
}

/* counts become the sums of all before them. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(uint32_t *counts, int64_t n)
{
    __shared__ uint32_t sum[2][SCAN_THREADS];
    const int64_t each = (n + SCAN_THREADS - 1) / SCAN_THREADS, from = threadIdx.x * each;
    const int64_t to = from + each < n ? from + each : n;
    uint32_t total = 0;
    int now = 0;

    for (int64_t i = from; i < to; i++)
        total += counts[i];
    sum[0][threadIdx.x] = total;
    for (int d = 1; d < SCAN_THREADS; d *= 2) {
        __syncthreads();
        sum[1 - now][threadIdx.x] =
            sum[now][threadIdx.x] + ((int)threadIdx.x >= d ? sum[now][threadIdx.x - d] : 0);
        now = 1 - now;
    }
    total = sum[now][threadIdx.x] - total;
    for (int64_t i = from; i < to; i++) {
        const uint32_t c = counts[i];

        counts[i] = total;
        total += c;
    }
}

/* Lanes whose digit is this lane's, all lanes voting bit by bit. */
__device__ __forceinline__ uint32_t peers_of(bool there, uint32_t digit)
{
    uint32_t peers = __ballot_sync(PK_WARP_ALL, there);

#pragma unroll
    for (int bit = 0; bit < 8; bit++) {
        const uint32_t set = __ballot_sync(PK_WARP_ALL, digit >> bit & 1);

        peers &= digit >> bit & 1 ? set : ~set;
    }
    return peers;
}

static __global__ void __launch_bounds__(THREADS) place_kernel(const struct job j, int pass)
{
    __shared__ uint32_t next[WARPS][DIGITS]; /* count of a digit; then the position of its next key */
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    uint32_t key[EACH], place[EACH], peers[EACH], at;
    bool there[EACH];

    for (int w = 0; w < WARPS; w++)
        next[w][threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        key[e] = place[e] = 0;
        there[e] = key_at(j, pass, e, &key[e], &place[e]);
        peers[e] = peers_of(there[e], key[e] >> (8 * pass) & (DIGITS - 1));
        if (there[e] && (peers[e] & ((1u << lane) - 1)) == 0)
            next[warp][key[e] >> (8 * pass) & (DIGITS - 1)] += (uint32_t)__popc(peers[e]);
        __syncwarp();
    }
    __syncthreads();
    at = j.counts[threadIdx.x * j.sort_blocks + blockIdx.x];
    for (int w = 0; w < WARPS; w++) {
        const uint32_t n = next[w][threadIdx.x];

        next[w][threadIdx.x] = at;
        at += n;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const uint32_t digit = key[e] >> (8 * pass) & (DIGITS - 1), before = peers[e] & ((1u << lane) - 1);
        uint32_t to = 0;

        if (there[e])
            to = next[warp][digit];
        __syncwarp();
        if (there[e] && before == 0)
            next[warp][digit] = to + (uint32_t)__popc(peers[e]);
        __syncwarp();
        if (there[e]) {
            to += (uint32_t)__popc(before);
            j.key[1 - pass % 2][to] = key[e];
            j.place[1 - pass % 2][to] = place[e];
        }
    }
}

/* ---- tiles ---- */

static __global__ void __launch_bounds__(THREADS, 2) tile_kernel(const struct job j)
{
    __shared__ uint32_t key[TILE + 1], place[TILE];
    const int64_t tile = blockIdx.x / j.strips, first = tile * TILE;
    const int k = (int)((blockIdx.x % j.strips) * blockDim.x + threadIdx.x);
    const int n = j.positions - first < TILE ? (int)(j.positions - first) : TILE;

    for (int e = (int)threadIdx.x; e <= n; e += (int)blockDim.x) {
        key[e] = first + e < j.positions ? j.keys[first + e] : (uint32_t)j.rows;
        if (e < n)
            place[e] = j.places[first + e];
    }
    __syncthreads();
    if (4 * k >= j.d)
        return;
    for (int e = 0, end; e < n; e = end) {
        const uint32_t row = key[e];
        const bool begins = e > 0 || tile == 0 || j.keys[first - 1] != row;
        float acc[4] = {0, 0, 0, 0};

        for (end = e + 1; end < n && key[end] == row; end++)
            ;
        if (row >= j.rows)
            continue;
        if (begins)
            base_load(j, row, k, acc);
        add_rows(j, place + e, end - e, k, acc);
        if (!begins)
            pk_row_store(j.head, false, j.d % 4 == 0, tile * j.d, k, j.d, acc);
        else if (end == n && key[n] == row)
            pk_row_store(j.tail, false, j.d % 4 == 0, tile * j.d, k, j.d, acc);
        else
            pk_row_store(j.out, j.out_bf16, j.out_packs, (int64_t)row * j.d, k, j.d, acc);
    }
}

/* Runs that begin in this block's tile and go on beyond it. */
static __global__ void __launch_bounds__(THREADS) join_kernel(const struct job j)
{
    const int64_t tile = blockIdx.x / j.strips, last = (tile + 1) * TILE - 1;
    const int k = (int)((blockIdx.x % j.strips) * blockDim.x + threadIdx.x);
    float acc[4], v[4];

    if (4 * k >= j.d || last + 1 >= j.positions)
        return;
    const uint32_t row = j.keys[last];

    if (row >= j.rows || j.keys[last + 1] != row || (tile > 0 && j.keys[tile * TILE - 1] == row))
        return;
    for (int i = 0; i < 4; i++)
        acc[i] = 4 * k + i < j.d ? j.tail[tile * j.d + 4 * k + i] : 0;
    for (int64_t t = tile + 1; t * TILE < j.positions && j.keys[t * TILE] == row; t++) {
        for (int i = 0; i < 4; i++)
            v[i] = 4 * k + i < j.d ? j.head[t * j.d + 4 * k + i] : 0;
        for (int i = 0; i < 4; i++)
            acc[i] += v[i];
    }
    pk_row_store(j.out, j.out_bf16, j.out_packs, (int64_t)row * j.d, k, j.d, acc);
}

/* ---- launching ---- */

static bool is_few(const struct pk_call *c)
{
    const int64_t positions = cuda_count(&c->in[0].shape);

    return positions <= FEW_POSITIONS && positions * c->out[0].shape.dim[0] <= FEW_WORK;
}

/* Allocates pieces of the workspace; only adds up their sizes while base is NULL. */
static size_t scratch_of(struct job *j, void *base)
{
    const int64_t tiles = cuda_div_up(j->positions, TILE);
    size_t used = 0;
    void *const piece[7] = {&j->key[0], &j->key[1], &j->place[0], &j->place[1],
                            &j->counts, &j->head,   &j->tail};
    const int64_t bytes[7] = {
        4 * j->positions, 4 * j->positions, 4 * j->positions, 4 * j->positions, 4 * DIGITS * j->sort_blocks,
        4 * tiles * j->d, 4 * tiles * j->d};

    for (int i = 0; i < 7; i++) {
        void *const at = base ? (char *)base + used : NULL;

        memcpy(piece[i], &at, sizeof at);
        used += (size_t)(bytes[i] + 255) / 256 * 256;
    }
    return used;
}

static void job_of(struct job *j, const struct pk_call *c)
{
    memset(j, 0, sizeof *j);
    j->positions = cuda_count(&c->in[0].shape);
    j->rows = c->out[0].shape.dim[0];
    j->d = (int)c->out[0].shape.dim[1];
    j->sort_blocks = cuda_div_up(j->positions, SORT_TILE);
}

size_t cuda_scatter_add_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct job j;

    (void)b;
    job_of(&j, c);
    return is_few(c) ? 0 : scratch_of(&j, NULL);
}

enum pd_err cuda_scatter_add(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const struct pk_view *o = &c->out[0];
    const int64_t tiles = cuda_div_up(cuda_count(&c->in[0].shape), TILE);
    struct pk_view from;
    struct pk_attr zero;
    struct pk_call start = {PK_OP_FILL, &zero, 0, 1, NULL, o, NULL, 0};
    enum pd_err err = PD_OK;
    int threads, passes = 1;
    struct job j;

    job_of(&j, c);
    if (j.rows == 0 || j.d == 0)
        return PD_OK;
    if (j.positions > INT32_MAX || j.rows >= INT32_MAX)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "scatter_add of %lld rows into %lld", (long long)j.positions,
                       (long long)j.rows);
    j.index = cuda_walk_of(&c->in[0], 0, c->in[0].shape.rank);
    j.at = (const int32_t *)c->in[0].data;
    j.src = cuda_rows_of(&c->in[1]);
    j.out = o->data;
    j.out_bf16 = o->dtype == PK_BF16;
    j.out_packs = cuda_packs(o, j.d);
    j.fault = b->fault;
    if (c->n_in > 2) {
        from = c->in[2];
        if (!cuda_dense(&from)) {
            err = cuda_copy_view(b, &from, o->data, o->dtype, why);
            from = *o;
        } else if (!is_few(c) && from.data != o->data) {
            err = cuda_copy_view(b, &from, o->data, o->dtype, why);
        }
        j.base = from.data;
        j.base_bf16 = from.dtype == PK_BF16;
        j.base_packs = cuda_packs(&from, j.d);
    } else if (!is_few(c)) {
        memset(&zero, 0, sizeof zero);
        err = cuda_fill(b, &start, why);
    }
    if (err != PD_OK)
        return err;
    if (is_few(c)) {
        j.strips = (int)cuda_div_up(j.d, 4 * FEW_THREADS);
        PK_LAUNCH(few_kernel, (unsigned)(j.rows * j.strips), FEW_THREADS, 0, b->stream, j);
        PK_CUDA_TRY(cudaGetLastError());
        return PD_OK;
    }
    (void)scratch_of(&j, c->workspace);
    while (passes < 4 && j.rows >> (8 * passes)) /* keys are 0 .. rows */
        passes++;
    for (int pass = 0; pass < passes; pass++) {
        PK_LAUNCH(count_kernel, (unsigned)j.sort_blocks, THREADS, 0, b->stream, j, pass);
        PK_LAUNCH(scan_kernel, 1, SCAN_THREADS, 0, b->stream, j.counts, DIGITS * j.sort_blocks);
        PK_LAUNCH(place_kernel, (unsigned)j.sort_blocks, THREADS, 0, b->stream, j, pass);
    }
    j.keys = j.key[passes % 2];
    j.places = j.place[passes % 2];
    threads = (int)cuda_div_up(cuda_div_up(j.d, 4), PK_WARP) * PK_WARP;
    if (threads > THREADS)
        threads = THREADS;
    j.strips = (int)cuda_div_up(j.d, 4 * threads);
    PK_LAUNCH(tile_kernel, (unsigned)(tiles * j.strips), threads, 0, b->stream, j);
    PK_LAUNCH(join_kernel, (unsigned)(tiles * j.strips), threads, 0, b->stream, j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
