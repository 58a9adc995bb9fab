/* SUM and MAX over axes, and SUMSQ.
 *
 * Bytes: every input once; partial results are a few percent at most. Axes are merged where memory allows and
 * sorted into kept and reduced ones.
 *
 * Columns (the last kept axis is dense, as in gradients of biases): adjacent threads have adjacent packs of four
 * columns and go down the rows, 8 to 256 rows of threads in a block, four rows in flight each. Rows (all other
 * shapes): a warp or a block goes along the reduced positions of one output. Both cut the reduced positions
 * into tiles so that there are enough blocks for 132 multiprocessors; a second launch adds the tiles in
 * order. Tiles depend on the shape only. Sums are f32 by thread, then by a fixed tree.
 *
 * SUMSQ: tiles of 16384 elements of all inputs in one launch, inputs described by the kernel's parameters;
 * four squares are added in f32, then in double. A second launch adds the tiles. */
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define UNDER_WAY 4
#define BLOCKS_WANTED 1056 /* eight for each of 132 multiprocessors */
#define TILE_LEAST 1024    /* reduced positions of a tile, if there are that many */

namespace
{
struct job {
    const void *x;
    void *out;
    bool bf16, out_bf16;
    bool columns;
    bool packs; /* packs lie dense and aligned: along the kept axis, or along the reduced */
    struct cuda_walk kept, reduced;
    int64_t width, outer;          /* columns: extent of the dense kept axis, positions of the others */
    int64_t outputs, positions;    /* kept, reduced */
    int64_t tiles, tile;           /* of positions */
    int lanes;                     /* columns: threads along the columns; rows: threads of one output */
    uint32_t strips, column_tiles; /* columns: blocks along the columns; number of tiles */
    float *partial;                /* (outputs, tiles) in the order of outer, tile, column; NULL: to out */
};
} // namespace

template <bool max> __device__ __forceinline__ float both(float a, float b)
{
    if (max)
        return a > b || a != a ? a : b; /* a NaN stays */
    return a + b;
}

template <bool max> __device__ __forceinline__ float nothing(void)
{
    return max ? -INFINITY : 0.0f;
}

template <bool max> static __global__ void __launch_bounds__(THREADS, 3) columns_kernel(const struct job j)
{
    __shared__ float part[THREADS][4];
    const int lane = pk_group_lane(j.lanes), row = (int)threadIdx.x / j.lanes, height = THREADS / j.lanes;
    uint32_t rest = blockIdx.x;
    const int64_t c = ((int64_t)(rest % j.strips) * j.lanes + lane) * 4;

    rest /= j.strips;
    const int64_t tile = rest % j.column_tiles, outer = rest / j.column_tiles;
    const int64_t end = (tile + 1) * j.tile < j.positions ? (tile + 1) * j.tile : j.positions;
    const int64_t base = pk_walk_at(j.kept, outer * j.width + (c < j.width ? c : 0));
    float acc[4], v[UNDER_WAY][4];

    for (int i = 0; i < 4; i++)
        acc[i] = nothing<max>();
    if (c < j.width)
        for (int64_t r = tile * j.tile + row; r < end; r += UNDER_WAY * height) {
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++) {
                const int64_t at = r + u * height;
                const int there = at < end ? (int)(j.width - c < 4 ? j.width - c : 4) : 0;
                const int64_t from = base + (there ? pk_walk_at(j.reduced, at) : 0);

                if (there == 4 && j.packs)
                    pk_load4(j.x, j.bf16, from, v[u]);
                else
                    for (int i = 0; i < 4; i++)
                        v[u][i] = i < there ? pk_load1(j.x, j.bf16, from + i) : nothing<max>();
            }
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[i] = both<max>(acc[i], v[u][i]);
        }
    for (int i = 0; i < 4; i++)
        part[threadIdx.x][i] = acc[i];
    for (int s = height / 2; s > 0; s /= 2) {
        __syncthreads();
        if (row < s)
            for (int i = 0; i < 4; i++)
                part[threadIdx.x][i] = both<max>(part[threadIdx.x][i], part[threadIdx.x + s * j.lanes][i]);
    }
    if (row == 0)
        for (int i = 0; i < 4; i++)
            if (c + i < j.width) {
                if (j.partial)
                    j.partial[(outer * j.tiles + tile) * j.width + c + i] = part[threadIdx.x][i];
                else
                    pk_store1(j.out, j.out_bf16, outer * j.width + c + i, part[threadIdx.x][i]);
            }
}

template <bool max> static __global__ void __launch_bounds__(THREADS) rows_kernel(const struct job j)
{
    __shared__ float part[PK_WARP];
    const int lane = pk_group_lane(j.lanes);
    const int64_t mine = pk_group(j.lanes);
    const bool there = mine < j.outputs * j.tiles;
    const int64_t o = there ? mine / j.tiles : 0, tile = there ? mine - o * j.tiles : 0;
    const int64_t from = tile * j.tile, end = from + j.tile < j.positions ? from + j.tile : j.positions;
    const int64_t base = pk_walk_at(j.kept, o);
    float acc = nothing<max>(), v[UNDER_WAY][4];

    if (j.packs) /* tiles are whole packs; what is left at the end of the row goes with the last */
        for (int64_t k = from / 4 + lane; 4 * k < end; k += UNDER_WAY * j.lanes) {
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++) {
                const int64_t at = 4 * (k + u * j.lanes);

                if (at + 4 <= end)
                    pk_load4(j.x, j.bf16, base + at, v[u]);
                else
                    for (int i = 0; i < 4; i++)
                        v[u][i] = at + i < end ? pk_load1(j.x, j.bf16, base + at + i) : nothing<max>();
            }
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
                acc = both<max>(acc, both<max>(both<max>(v[u][0], v[u][1]), both<max>(v[u][2], v[u][3])));
        }
    else
        for (int64_t r = from + lane; r < end; r += UNDER_WAY * j.lanes) {
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
                v[u][0] = r + u * j.lanes < end
                              ? pk_load1(j.x, j.bf16, base + pk_walk_at(j.reduced, r + u * j.lanes))
                              : nothing<max>();
#pragma unroll
            for (int u = 0; u < UNDER_WAY; u++)
                acc = both<max>(acc, v[u][0]);
        }
    for (int d = (j.lanes < PK_WARP ? j.lanes : PK_WARP) / 2; d > 0; d /= 2)
        acc = both<max>(acc, __shfl_xor_sync(PK_WARP_ALL, acc, d));
    if (j.lanes > PK_WARP) {
        if (threadIdx.x % PK_WARP == 0)
            part[threadIdx.x / PK_WARP] = acc;
        __syncthreads();
        acc = part[0];
        for (int i = 1; i < THREADS / PK_WARP; i++)
            acc = both<max>(acc, part[i]);
    }
    if (!there || lane > 0)
        return;
    if (j.partial)
        j.partial[mine] = acc;
    else
        pk_store1(j.out, j.out_bf16, o, acc);
}

static int power_of_two(int64_t at_least, int most)
{
    int p = 1;

    while (p < most && p < at_least)
        p *= 2;
    return p;
}

/* Shape of the first launch. */
static void job_of(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];
    struct cuda_pair kept, reduced;
    int64_t blocks;

    memset(j, 0, sizeof *j);
    cuda_walk_open(&kept);
    cuda_walk_open(&reduced);
    for (int i = 0; i < x->shape.rank; i++)
        cuda_walk_add(c->attr->reduce.axes >> i & 1 ? &reduced : &kept, x->shape.dim[i], x->stride[i],
                      x->stride[i]);
    j->x = x->data;
    j->bf16 = x->dtype == PK_BF16;
    j->out = c->out[0].data;
    j->out_bf16 = c->out[0].dtype == PK_BF16;
    j->outputs = kept.count;
    j->positions = reduced.count;
    j->columns = kept.rank > 0 && kept.stride[kept.rank - 1] == 1 && kept.dim[kept.rank - 1] >= 4;
    if (j->columns) {
        j->width = kept.dim[kept.rank - 1];
        j->outer = j->width > 0 ? kept.count / j->width : 0;
        j->lanes = power_of_two(cuda_div_up(j->width, 4), PK_WARP);
        j->strips = (uint32_t)cuda_div_up(j->width, 4 * j->lanes);
        blocks = j->outer * j->strips;
        j->packs = cuda_walk_unit(&kept, 4);
        for (int i = 0; i < reduced.rank; i++)
            j->packs = j->packs && reduced.stride[i] % 4 == 0;
    } else {
        j->lanes = j->positions > TILE_LEAST ? THREADS : PK_WARP;
        blocks = j->lanes == THREADS ? j->outputs : BLOCKS_WANTED;
        j->packs = reduced.rank == 1 && reduced.stride[0] == 1;
        for (int i = 0; i < kept.rank; i++)
            j->packs = j->packs && kept.stride[i] % 4 == 0;
    }
    /* Enough blocks, but no tile so short that adding the tiles would be the larger part. */
    j->tiles = blocks > 0 ? cuda_div_up(BLOCKS_WANTED, blocks) : 1;
    if (j->columns) {
        const int64_t least = (int64_t)(THREADS / j->lanes) * UNDER_WAY * 2;

        if (j->tiles > cuda_div_up(j->positions, least))
            j->tiles = cuda_div_up(j->positions, least);
    } else if (j->tiles > cuda_div_up(j->positions, 4 * TILE_LEAST)) {
        j->tiles = cuda_div_up(j->positions, 4 * TILE_LEAST);
    }
    if (j->tiles < 1)
        j->tiles = 1;
    j->tile = cuda_div_up(cuda_div_up(j->positions, j->tiles), 4) * 4;
    j->tiles = j->tile > 0 ? cuda_div_up(j->positions, j->tile) : 1;
    j->column_tiles = (uint32_t)j->tiles;
    cuda_walk_close(&kept, 1);
    cuda_walk_close(&reduced, 1);
    j->kept = kept;
    j->reduced = reduced;
}

static size_t reduce_workspace(const struct pk_call *c)
{
    struct job j;

    job_of(&j, c);
    return j.tiles > 1 ? (size_t)(j.outputs * j.tiles) * sizeof(float) : 0;
}

template <bool max> static enum pd_err launch(struct pk_backend *b, const struct job *j, struct pd_why *why)
{
    if (j->columns)
        PK_LAUNCH(columns_kernel<max>, (unsigned)(j->outer * j->tiles * j->strips), THREADS, 0, b->stream,
                  *j);
    else
        PK_LAUNCH(rows_kernel<max>, (unsigned)cuda_div_up(j->outputs * j->tiles, THREADS / j->lanes), THREADS,
                  0, b->stream, *j);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <bool max>
static enum pd_err reduce(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j, add;
    enum pd_err err;

    job_of(&j, c);
    if (j.outputs == 0)
        return PD_OK;
    if (max && j.positions == 0)
        return pd_fail(why, PD_ERR_INVALID, "the maximum of no elements");
    j.packs = j.packs && cuda_aligned(j.x, cuda_pack_bytes(c->in[0].dtype));
    if (j.tiles == 1)
        return launch<max>(b, &j, why);
    j.partial = (float *)c->workspace;
    err = launch<max>(b, &j, why);
    if (err != PD_OK)
        return err;
    /* The tiles of each output, in order: (outer, tiles, width) over its middle axis, or (outputs, tiles). */
    add = j;
    add.x = j.partial;
    add.bf16 = false;
    add.partial = NULL;
    add.positions = add.tile = j.tiles;
    add.tiles = add.column_tiles = 1;
    struct pk_view v;

    memset(&v, 0, sizeof v);
    v.shape.rank = 2;
    v.shape.dim[0] = j.columns ? j.outer : j.outputs;
    v.shape.dim[1] = j.columns ? j.width : j.tiles;
    v.stride[0] = j.columns ? j.tiles * j.width : j.tiles;
    v.stride[1] = 1;
    add.kept = cuda_walk_of(&v, 0, j.columns ? 2 : 1);
    v.stride[1] = j.columns ? j.width : 1;
    v.shape.dim[1] = j.tiles;
    add.reduced = cuda_walk_of(&v, 1, 2);
    add.packs = j.columns ? j.width % 4 == 0 : j.tiles % 4 == 0;
    if (!j.columns)
        add.lanes = PK_WARP;
    return launch<max>(b, &add, why);
}

enum pd_err cuda_sum(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return reduce<false>(b, c, why);
}
enum pd_err cuda_max(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    return reduce<true>(b, c, why);
}
size_t cuda_sum_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return reduce_workspace(c);
}
size_t cuda_max_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return reduce_workspace(c);
}

/* ---- sums of squares ---- */

#define SQUARES_TILE 16384
#define SQUARES_MOST 160 /* inputs of one launch: what fits into its parameters */

namespace
{
struct squares_in {
    const void *x;
    int64_t count;
    uint32_t first; /* tile, of this launch */
    bool bf16, packs;
};

struct squares {
    double *sums; /* of this launch's tiles */
    int32_t inputs;
    struct squares_in in[SQUARES_MOST];
};
} // namespace
static_assert(sizeof(struct squares) <= 4096, "kernel parameters");

/* The block's sum, by thread 0. */
__device__ __forceinline__ double block_sum(double x)
{
    __shared__ double part[THREADS];

    part[threadIdx.x] = x;
    for (int s = THREADS / 2; s > 0; s /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
    }
    return part[0];
}

static __global__ void __launch_bounds__(THREADS) squares_kernel(const struct squares q)
{
    int from = 0, to = q.inputs;
    double sum = 0;

    while (to - from > 1) { /* the input of this tile */
        const int middle = (from + to) / 2;

        if (q.in[middle].first <= blockIdx.x)
            from = middle;
        else
            to = middle;
    }
    const struct squares_in in = q.in[from];
    const int64_t first = (int64_t)(blockIdx.x - in.first) * SQUARES_TILE;
    const int64_t end = first + SQUARES_TILE < in.count ? first + SQUARES_TILE : in.count;

    for (int64_t at = first + 4 * threadIdx.x; at < end; at += 4 * UNDER_WAY * THREADS) {
        float v[UNDER_WAY][4];

#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++) {
            const int64_t k = at + 4 * u * THREADS;

            if (in.packs && k + 4 <= end)
                pk_load4(in.x, in.bf16, k, v[u]);
            else
                for (int i = 0; i < 4; i++)
                    v[u][i] = k + i < end ? pk_load1(in.x, in.bf16, k + i) : 0;
        }
#pragma unroll
        for (int u = 0; u < UNDER_WAY; u++)
            sum +=
                (double)((v[u][0] * v[u][0] + v[u][1] * v[u][1]) + (v[u][2] * v[u][2] + v[u][3] * v[u][3]));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        q.sums[blockIdx.x] = sum;
}

namespace
{
struct squares_strided {
    const void *x;
    bool bf16;
    struct cuda_walk w;
    double *sums;
};
} // namespace

static __global__ void __launch_bounds__(THREADS) squares_strided_kernel(const struct squares_strided q)
{
    const int64_t first = (int64_t)blockIdx.x * SQUARES_TILE;
    const int64_t end = first + SQUARES_TILE < q.w.count ? first + SQUARES_TILE : q.w.count;
    double sum = 0;

    for (int64_t at = first + threadIdx.x; at < end; at += THREADS) {
        const float v = pk_load1(q.x, q.bf16, pk_walk_at(q.w, at));

        sum += (double)(v * v);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        q.sums[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
    squares_add_kernel(const double *sums, int64_t tiles, void *out, bool bf16)
{
    double sum = 0;

#pragma unroll 4
    for (int64_t t = threadIdx.x; t < tiles; t += THREADS)
        sum += sums[t];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        pk_store1(out, bf16, 0, (float)sum);
}

static int64_t squares_tiles(const struct pk_call *c)
{
    int64_t tiles = 0;

    for (int i = 0; i < c->n_in; i++)
        tiles += cuda_div_up(cuda_count(&c->in[i].shape), SQUARES_TILE);
    return tiles;
}

size_t cuda_sumsq_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return (size_t)squares_tiles(c) * sizeof(double);
}

/* Whether the elements are some contiguous memory in any order of axes: a transposed gradient is. */
static bool fills_memory(const struct pk_view *v)
{
    int64_t expect = 1;

    for (int placed = 0; placed < v->shape.rank; placed++) {
        int found = -1;

        for (int i = 0; i < v->shape.rank && found < 0; i++)
            if (v->shape.dim[i] != 1 && v->stride[i] == expect)
                found = i;
        if (found < 0)
            break;
        expect *= v->shape.dim[found];
    }
    return expect == cuda_count(&v->shape);
}

static enum pd_err squares_launch(struct pk_backend *b, struct squares *q, uint32_t tiles, struct pd_why *why)
{
    if (tiles == 0)
        return PD_OK;
    PK_LAUNCH(squares_kernel, tiles, THREADS, 0, b->stream, *q);
    PK_CUDA_TRY(cudaGetLastError());
    q->sums += tiles;
    q->inputs = 0;
    return PD_OK;
}

enum pd_err cuda_sumsq(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct squares q;
    uint32_t tiles = 0; /* of the launch being gathered */
    enum pd_err err = PD_OK;

    memset(&q, 0, sizeof q);
    q.sums = (double *)c->workspace;
    for (int i = 0; i < c->n_in && err == PD_OK; i++) {
        const struct pk_view *v = &c->in[i];
        const int64_t count = cuda_count(&v->shape), own = cuda_div_up(count, SQUARES_TILE);
        struct squares_in *in = &q.in[q.inputs];

        if (count == 0)
            continue;
        if (!fills_memory(v)) {
            struct squares_strided s;

            err = squares_launch(b, &q, tiles, why);
            tiles = 0;
            if (err != PD_OK)
                break;
            s.x = v->data;
            s.bf16 = v->dtype == PK_BF16;
            s.w = cuda_walk_of(v, 0, v->shape.rank);
            s.sums = q.sums;
            PK_LAUNCH(squares_strided_kernel, (unsigned)own, THREADS, 0, b->stream, s);
            PK_CUDA_TRY(cudaGetLastError());
            q.sums += own;
            continue;
        }
        in->x = v->data;
        in->count = count;
        in->first = tiles;
        in->bf16 = v->dtype == PK_BF16;
        in->packs = cuda_aligned(v->data, cuda_pack_bytes(v->dtype));
        q.inputs++;
        tiles += (uint32_t)own;
        if (q.inputs == SQUARES_MOST) {
            err = squares_launch(b, &q, tiles, why);
            tiles = 0;
        }
    }
    if (err == PD_OK)
        err = squares_launch(b, &q, tiles, why);
    if (err != PD_OK)
        return err;
    PK_LAUNCH(squares_add_kernel, 1, THREADS, 0, b->stream, (const double *)c->workspace, squares_tiles(c),
              c->out[0].data, c->out[0].dtype == PK_BF16);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}
