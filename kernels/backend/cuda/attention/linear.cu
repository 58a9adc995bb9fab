/* ATTENTION and ATTENTION_BWD of x and x^2 in linear form (kernels/ENGINE.md 8): with features F(x) such
 * that <F(q), F(k)> = (q k)^p,
 *
 *     St = F(K)' V      Y = c F(tau Q) St      and causal, in chunks, with the square of a chunk done as such
 *                                              and St holding what lies before it.
 *     dF(Q) = dY St'    dSt = F(tau Q)' dY     dF(K) = V dSt'     dV = F(K) dSt      (without c)
 *
 * Four kernels, each of strips and tiles as in tile.cuh:
 *   gather  a warp owns 16 features, tokens of a chunk stream past: state of the chunk = F(x)' y
 *   sum     for each chunk, the sum of the states of all chunks, of those before it, or of those after it
 *   apply   a warp owns 16 tokens, features stream past: F(x) state               (y, dV)
 *   turn    the same: dF = g state', and from it the gradient of x                (dQ, dK)
 * Features are made in the registers that hold a product's left side, from rows in shared memory: never
 * written. A tile is 32 features: x_a x_b for one a and 32 b, for all blocks of b that end behind a; those
 * wholly behind a count twice, on the side of keys. So 3072 of them stand for the 2080 of x^2 at d = 64.
 * States lie in the workspace in f32 as (tile, 32, d16).
 *
 * Products are TF32 also where tokens are bf16 (f32 without tensor cores where b->math says so): a state sums
 * over many tokens, and what bf16 would round of it does not shrink with them. Causal squares of chunks are
 * the square kernels under att.local; what is here adds to their outputs. The gradient of a learned scale is
 * sum(tau q dF(q)) / p, plus that of the squares. Masked keys count as k = v = 0, exact for these powers. */
#include "kernels/backend/cuda/attention/tile_phi.cuh"

#define WARPS 4
#define WIDTH 64 /* channels of a block's sums; longer heads take several blocks */

/* Tokens of a chunk. The state costs F d a chunk: longer chunks for x^2. */
static int chunk_of(int degree, bool causal, int n)
{
    if (degree == 1)
        return causal ? 128 : 1024;
    return n > 4096 ? 1024 : 256;
}

namespace
{
struct linear {
    struct att a;
    struct att_rows x, y, out; /* features of x; y: the other operand, or g of turn */
    float x_factor;
    bool x_keys, y_keys; /* masked like keys; F(x) carries the weights of keys */
    bool y_rows;         /* times row_power's factor */
    int32_t rows;        /* tokens */
    float *state;
    int32_t chunk, chunks, tiles; /* tiles of features */
    bool own;                     /* state of the token's chunk; else that of chunk 0 */
    bool add, tau;                /* to what the output holds; times tau */
    double *dscale;
    int32_t strips;
};
} // namespace

__device__ __forceinline__ int feature_blocks(const struct att &a)
{
    return (a.d + 31) / 32;
}
/* Tile t: features x_a x_b, b = *ret_b .. + 31. Returns a; of x^1, -1. */
__device__ __forceinline__ int feature_tile(const struct att &a, int t, int *ret_b)
{
    int block = 0;

    if (a.degree == 1) {
        *ret_b = t * 32;
        return -1;
    }
    for (; t >= min(a.d, (block + 1) * 32); block++)
        t -= min(a.d, (block + 1) * 32);
    *ret_b = block * 32;
    return t;
}
__device__ __forceinline__ float feature_weight(const struct linear &j, int fa, int b0)
{
    return j.x_keys && fa >= 0 && fa < b0 ? 2.0f : 1.0f;
}

/* Rows first .. first+n-1 as f32, times a factor; 0 where they do not exist or are masked. Rows of `to` are
 * zero from d to d16 and on to `pitch`. */
template <typename E>
__device__ __forceinline__ void load_rows(float *to, int pitch, const struct att_rows &x, const struct att &a,
                                          const struct att_sight &sight, int b, int h, int first, int n,
                                          int end, float factor, bool keys, bool rows, int warp, int warps)
{
    const int lane = (int)threadIdx.x % PK_WARP;
    const E *const from = (const E *)x.p + b * x.sb + h * x.sh;

    for (int r = warp; r < n; r += warps) {
        const int i = first + r;
        bool there = i < end;
        float f = factor;

        if (there && keys)
            there = i < sight.end && (!sight.mask || sight.mask[i * sight.mask_j]);
        if (there && rows && a.row_power != 0)
            f *= att_row_factor(a, sight.shift, i);
        for (int c = lane; c < pitch; c += PK_WARP)
            to[r * pitch + c] = there && c < a.d ? pk_float(from[(int64_t)i * x.sn + c * x.sd]) * f : 0;
    }
}

/* Pitch of rows of features: blocks of 32, so that b0 + 31 is inside. */
#define PITCH(a) ((a).d16 + (((a).d16 & 16) ? 16 : 0) + 4)

template <class M, typename E>
static __global__ void __launch_bounds__(WARPS *PK_WARP) gather_kernel(const struct linear j)
{
    PK_SHARED(float, shared);
    const struct att &a = j.a;
    const int pitch = PITCH(a), warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP;
    const int g = lane / 4, t = lane % 4, c0 = (int)blockIdx.y * WIDTH;
    const int64_t bh = blockIdx.x / (unsigned)j.chunks;
    const int chunk = (int)(blockIdx.x % (unsigned)j.chunks), b = (int)(bh / a.heads),
              h = (int)(bh % a.heads);
    const int strip = (int)blockIdx.z * WARPS + warp, tile = strip / 2;
    const struct att_sight sight = att_sight_of(a, b);
    const int first = chunk * j.chunk, end = min(j.rows, first + j.chunk);
    float *const x = shared, *const y = shared + TILE * pitch;
    const bool busy = tile < j.tiles;
    int b0 = 0, fa = busy ? feature_tile(a, tile, &b0) : 0;
    float weight = feature_weight(j, fa, b0), acc[WIDTH / 8][4];

    b0 += strip % 2 * 16;
    att_zero(acc);
    for (int i0 = first; i0 < end; i0 += TILE) {
        __syncthreads();
        load_rows<E>(x, pitch, j.x, a, sight, b, h, i0, TILE, end, j.x_factor, j.x_keys, false, warp, WARPS);
        load_rows<E>(y, pitch, j.y, a, sight, b, h, i0, TILE, end, 1, j.y_keys, j.y_rows, warp, WARPS);
        __syncthreads();
        if (busy) {
            float p[4][4];

            ATT_EACH(4, n, e)
            {
                const float *const row = x + (n * 8 + 2 * t + e % 2) * pitch;
                const float xb = row[b0 + g + e / 2 * 8];

                p[n][e] = fa < 0 ? xb : xb * row[fa] * weight;
            }
            M::template add<4, WIDTH>(acc, p, y, pitch, c0, a.d16);
        }
    }
    if (busy) {
        float *const to = j.state + ((bh * j.chunks + chunk) * j.tiles * 32 + strip * 16) * a.d16;

#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                const int c = c0 + n * 8 + 2 * t;

                if (c < a.d16)
                    *(float2 *)(to + (g + 8 * r) * a.d16 + c) = make_float2(acc[n][2 * r], acc[n][2 * r + 1]);
            }
    }
}

/* before: chunk i <- the sum of those before it; behind: of those behind it; neither: chunk 0 <- all. */
static __global__ void sum_kernel(const struct linear j, bool before, bool behind)
{
    const int64_t size = (int64_t)j.tiles * 32 * j.a.d16, x = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;

    if (x >= size * j.a.batch * j.a.heads)
        return;
    for (int i = 0; i < j.chunks; i++) {
        float *const at = j.state + (x / size * j.chunks + (behind ? j.chunks - 1 - i : i)) * size + x % size;
        const float here = *at;

        if (before || behind)
            *at = sum;
        sum += here;
    }
    if (!before && !behind)
        j.state[x / size * j.chunks * size + x % size] = sum;
}

/* Tile t of the state of a strip's chunk, to shared memory. */
__device__ __forceinline__ void copy_state(float *to, int pitch, const float *state, int t, int d16)
{
    const float *const from = state + (int64_t)t * 32 * d16;
    const int wide = d16 / 4;

    for (int x = (int)threadIdx.x; x < 32 * wide; x += (int)blockDim.x)
        pk_copy16(to + x / wide * pitch + x % wide * 4, from + (int64_t)x * 4, true);
}

/* Row of an output, times f, with or without what it held. */
template <typename E>
__device__ __forceinline__ void put(const struct linear &j, int b, int h, int i, int c, float x)
{
    E *const at = (E *)j.out.p + b * j.out.sb + h * j.out.sh + i * j.out.sn + c;

    *at = pk_narrow<E>(j.add ? pk_float(*at) + x : x);
}

#define STATE_OF(j, bh, token)                                                                               \
    ((j).state +                                                                                             \
     ((bh) * (j).chunks + ((j).own ? (token) / (j).chunk : 0)) * (int64_t)(j).tiles * 32 * (j).a.d16)

template <class M, typename E>
static __global__ void __launch_bounds__(WARPS *PK_WARP) apply_kernel(const struct linear j)
{
    PK_SHARED(float, shared);
    const struct att &a = j.a;
    const int pitch = PITCH(a), warps = (int)blockDim.x / PK_WARP;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP, g = lane / 4,
              t = lane % 4;
    const int c0 = (int)blockIdx.y * WIDTH, row0 = ((int)blockIdx.z * warps + warp) * STRIP;
    const int64_t bh = blockIdx.x;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    float *const x = shared + warp * STRIP * pitch, *const tiles = shared + warps * STRIP * pitch;
    const float *const state = STATE_OF(j, bh, (int)blockIdx.z * warps * STRIP);
    const float by = att_factor(a, h) * (j.tau ? a.tau : 1.0f);
    float acc[WIDTH / 8][4];

    att_zero(acc);
    load_rows<E>(x, pitch, j.x, a, sight, b, h, row0, STRIP, j.rows, j.x_factor, j.x_keys, false, 0, 1);
    copy_state(tiles, pitch, state, 0, a.d16);
    pk_copy_commit();
    for (int f = 0; f < j.tiles; f++) {
        const float *const tile = tiles + f % 2 * 32 * pitch;
        float p[4][4], xa[2] = {1, 1}, weight;
        int b0, fa;

        if (f + 1 < j.tiles)
            copy_state(tiles + (f + 1) % 2 * 32 * pitch, pitch, state, f + 1, a.d16);
        pk_copy_commit();
        pk_copy_wait<1>();
        __syncthreads();
        fa = feature_tile(a, f, &b0);
        weight = feature_weight(j, fa, b0);
        for (int r = 0; fa >= 0 && r < 2; r++)
            xa[r] = x[(g + 8 * r) * pitch + fa] * weight;
        ATT_EACH(4, n, e)
        {
            p[n][e] = x[(g + e / 2 * 8) * pitch + b0 + n * 8 + 2 * t + e % 2] * xa[e / 2];
        }
        M::template add<4, WIDTH>(acc, p, tile, pitch, c0, a.d16);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = row0 + g + 8 * r;
        float f = by;

        if (i >= j.rows)
            continue;
        if (j.y_rows && a.row_power != 0)
            f *= att_row_factor(a, sight.shift, i);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int c = c0 + n * 8 + 2 * t + e;

                if (c < a.d)
                    put<E>(j, b, h, i, c, acc[n][2 * r + e] * f);
            }
    }
}

template <class M, typename E>
static __global__ void __launch_bounds__(WARPS *PK_WARP) turn_kernel(const struct linear j)
{
    PK_SHARED(float, shared);
    const struct att &a = j.a;
    const int pitch = PITCH(a), warps = (int)blockDim.x / PK_WARP;
    const int warp = (int)threadIdx.x / PK_WARP, lane = (int)threadIdx.x % PK_WARP, g = lane / 4,
              t = lane % 4;
    const int strip = (int)blockIdx.z * warps + warp, row0 = strip * STRIP;
    const int64_t bh = blockIdx.x;
    const int b = (int)(bh / a.heads), h = (int)(bh % a.heads);
    const struct att_sight sight = att_sight_of(a, b);
    float *const x = shared + warp * STRIP * 3 * pitch, *const own = x + STRIP * pitch;
    float *const dx = own + STRIP * pitch, *const tiles = shared + warps * STRIP * 3 * pitch;
    const float *const state = STATE_OF(j, bh, (int)blockIdx.z * warps * STRIP);
    const float by = att_factor(a, h) * (j.tau ? a.tau : 1.0f);
    float sum[4][4];
    double total = 0;

    load_rows<E>(x, pitch, j.x, a, sight, b, h, row0, STRIP, j.rows, j.x_factor, j.x_keys, false, 0, 1);
    load_rows<E>(own, pitch, j.y, a, sight, b, h, row0, STRIP, j.rows, 1, j.y_keys, j.y_rows, 0, 1);
    for (int i = lane; i < STRIP * pitch; i += PK_WARP)
        dx[i] = 0;
    copy_state(tiles, pitch, state, 0, a.d16);
    pk_copy_commit();
    att_zero(sum);
    for (int f = 0; f < j.tiles; f++) {
        const float *const tile = tiles + f % 2 * 32 * pitch;
        float p[4][4], xa[2] = {1, 1}, along[2] = {0, 0}, weight;
        int b0, fa;

        if (f + 1 < j.tiles)
            copy_state(tiles + (f + 1) % 2 * 32 * pitch, pitch, state, f + 1, a.d16);
        pk_copy_commit();
        pk_copy_wait<1>();
        __syncthreads();
        fa = feature_tile(a, f, &b0);
        weight = feature_weight(j, fa, b0);
        att_zero(p);
        att_scores<M, 4>(p, own, tile, pitch, a.d16);
        for (int r = 0; fa >= 0 && r < 2; r++)
            xa[r] = x[(g + 8 * r) * pitch + fa] * weight;
        /* d(x_a x_b): to x_b here, to x_a along the row. */
        ATT_EACH(4, n, e)
        {
            sum[n][e] += p[n][e] * xa[e / 2];
            along[e / 2] += p[n][e] * weight * x[(g + e / 2 * 8) * pitch + b0 + n * 8 + 2 * t + e % 2];
        }
        for (int r = 0; fa >= 0 && r < 2; r++) {
            along[r] += __shfl_xor_sync(PK_WARP_ALL, along[r], 1);
            along[r] += __shfl_xor_sync(PK_WARP_ALL, along[r], 2);
            if (t == 0)
                dx[(g + 8 * r) * pitch + fa] += along[r];
        }
        __syncwarp();
        /* The last tile of a block of b: its sums are added to the others. */
        if (fa < 0 || fa + 1 == min(a.d, b0 + 32)) {
            ATT_EACH(4, n, e)
            {
                const int c = b0 + n * 8 + 2 * t + e % 2;

                if (c < a.d16)
                    dx[(g + e / 2 * 8) * pitch + c] += sum[n][e];
            }
            att_zero(sum);
        }
        __syncthreads();
    }
    for (int x0 = lane; x0 < STRIP * a.d; x0 += PK_WARP) {
        const int r = x0 / a.d, c = x0 % a.d;
        const float value = dx[r * pitch + c];

        total += (double)x[r * pitch + c] * (double)value;
        if (row0 + r < j.rows)
            put<E>(j, b, h, row0 + r, c, value * by);
    }
    if (j.dscale) {
        for (int d = PK_WARP / 2; d > 0; d /= 2)
            total += __shfl_xor_sync(PK_WARP_ALL, total, d);
        if (lane == 0 && row0 < j.rows)
            j.dscale[bh * j.strips + strip] = total / a.degree;
    }
}

/* ---- host ---- */

static struct linear linear_of(const struct att *a)
{
    const int n = a->nk > a->nq ? a->nk : a->nq;
    struct linear j = {};

    j.a = *a;
    j.chunk = chunk_of(a->degree, a->causal, n);
    j.chunks = (int32_t)cuda_div_up(n > 0 ? n : 1, j.chunk);
    j.own = j.add = a->causal;
    for (int block = 0; block * 32 < a->d; block++)
        j.tiles += a->degree == 1 ? 1 : a->d < (block + 1) * 32 ? a->d : (block + 1) * 32;
    return j;
}

static size_t state_bytes(const struct linear *j)
{
    return ((size_t)j->a.batch * (size_t)j->a.heads * (size_t)j->chunks * (size_t)j->tiles * 32 *
                (size_t)j->a.d16 * sizeof(float) +
            255) /
           256 * 256;
}

size_t att_linear_workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct linear j;
    struct att a;
    size_t bytes;

    att_read(&a, c);
    j = linear_of(&a);
    if (att_linear_bf16_takes(c, &a))
        bytes = att_linear_bf16_workspace(b, &a);
    else
        bytes = state_bytes(&j) * (c->op == PK_OP_ATTENTION_BWD ? 2 : 1);
    if (c->op == PK_OP_ATTENTION_BWD)
        bytes += (size_t)a.batch * (size_t)a.heads * 2 * (size_t)cuda_div_up(a.nq, STRIP) * sizeof(double);
    return bytes;
}

/* Shared memory of `sides` rows of strips and two tiles: as many warps as fit. */
static int warps_of(const struct pk_backend *b, const struct att *a, int sides, size_t *ret_bytes)
{
    int warps = WARPS;

    for (;; warps /= 2) {
        *ret_bytes = (size_t)(warps * STRIP * sides + 2 * 32) * (size_t)PITCH(*a) * sizeof(float);
        if (*ret_bytes <= b->shared_most || warps == 1)
            return warps;
    }
}

/* j's state from x and y: the sum over all tokens, or over those before or behind each chunk. */
template <class M, typename E>
static enum pd_err gather(struct pk_backend *b, const struct linear *j, bool behind, struct pd_why *why)
{
    const int64_t pairs = (int64_t)j->a.batch * j->a.heads;
    const size_t bytes = (size_t)(2 * TILE) * (size_t)PITCH(j->a) * sizeof(float);

    PK_CUDA_TRY(att_room(b, (const void *)(gather_kernel<M, E>), bytes));
    PK_LAUNCH((gather_kernel<M, E>),
              dim3((unsigned)(pairs * j->chunks), (unsigned)cuda_div_up(j->a.d16, WIDTH),
                   (unsigned)cuda_div_up(j->tiles * 2, WARPS)),
              dim3(WARPS * PK_WARP), bytes, b->stream, *j);
    PK_CUDA_TRY(cudaGetLastError());
    PK_LAUNCH(sum_kernel, dim3((unsigned)cuda_div_up(pairs * j->tiles * 32 * j->a.d16, 256)), dim3(256), 0,
              b->stream, *j, j->own && !behind, j->own && behind);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

template <class M, typename E>
static enum pd_err spread(struct pk_backend *b, const struct linear *j, bool turn, struct pd_why *why)
{
    size_t bytes;
    const int warps = warps_of(b, &j->a, turn ? 3 : 1, &bytes);
    const unsigned blocks = (unsigned)cuda_div_up(j->rows, warps * STRIP);
    const unsigned pairs = (unsigned)(j->a.batch * j->a.heads);

    if (bytes > b->shared_most)
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "attention: heads of %d need more shared memory than a block has here", j->a.d);
    if (turn) {
        PK_CUDA_TRY(att_room(b, (const void *)(turn_kernel<M, E>), bytes));
        PK_LAUNCH((turn_kernel<M, E>), dim3(pairs, 1, blocks), dim3((unsigned)(warps * PK_WARP)), bytes,
                  b->stream, *j);
    } else {
        PK_CUDA_TRY(att_room(b, (const void *)(apply_kernel<M, E>), bytes));
        PK_LAUNCH((apply_kernel<M, E>), dim3(pairs, (unsigned)cuda_div_up(j->a.d16, WIDTH), blocks),
                  dim3((unsigned)(warps * PK_WARP)), bytes, b->stream, *j);
    }
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* Keys' side: F(K), masked, with v or with dv. */
static void keys_side(struct linear *j)
{
    j->x = j->a.k;
    j->x_factor = 1;
    j->x_keys = true;
    j->rows = j->a.nk;
}
static void queries_side(struct linear *j)
{
    j->x = j->a.q;
    j->x_factor = j->a.tau;
    j->rows = j->a.nq;
    j->y_rows = true;
}

template <class M, typename E>
static enum pd_err forward(struct pk_backend *b, const struct att *a, float *state, struct pd_why *why)
{
    struct linear j = linear_of(a);
    enum pd_err err;

    j.state = state;
    keys_side(&j);
    j.y = a->v;
    j.y_keys = true;
    err = gather<M, E>(b, &j, false, why);
    if (err != PD_OK)
        return err;
    j.x_keys = j.y_keys = false;
    queries_side(&j);
    j.out = a->y;
    return spread<M, E>(b, &j, false, why);
}

template <class M, typename E>
static enum pd_err backward(struct pk_backend *b, const struct att *a, float *state, float *dstate,
                            double *dscale, int strips, struct pd_why *why)
{
    const struct linear whole = linear_of(a);
    struct linear j = whole;
    enum pd_err err;

    j.state = state;
    keys_side(&j);
    j.y = a->v;
    j.y_keys = true;
    err = gather<M, E>(b, &j, false, why);
    if (err == PD_OK) {
        j.x_keys = j.y_keys = false;
        queries_side(&j);
        j.y = a->dy;
        j.out = a->dq;
        j.tau = true;
        j.dscale = dscale;
        j.strips = strips;
        err = spread<M, E>(b, &j, true, why);
    }
    if (err == PD_OK) {
        j = whole;
        j.state = dstate;
        queries_side(&j);
        j.y = a->dy;
        err = gather<M, E>(b, &j, true, why);
    }
    j.y_rows = false;
    if (err == PD_OK) {
        keys_side(&j);
        j.out = a->dv;
        err = spread<M, E>(b, &j, false, why);
    }
    if (err == PD_OK) {
        j.y = a->v;
        j.y_keys = true;
        j.out = a->dk;
        err = spread<M, E>(b, &j, true, why);
    }
    return err;
}

enum pd_err att_linear(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const enum att_math math = att_math_of(b, c);
    float *const state = (float *)c->workspace;
    struct att a;

    att_read(&a, c);
    a.y = att_rows_inside(&c->out[0], a.heads, a.nq, a.d);
    if (a.batch == 0 || a.heads == 0 || a.nq == 0)
        return PD_OK;
    if (a.causal) {
        struct att square = a;
        enum pd_err err;

        square.local = att_linear_bf16_takes(c, &a) ? att_linear_bf16_chunk(b, &a) : linear_of(&a).chunk;
        err = att_square(b, &square, math, 1, NULL, why);
        if (err != PD_OK)
            return err;
    }
    if (att_linear_bf16_takes(c, &a))
        return att_linear_bf16(b, &a, state, why);
    if (math == ATT_BF16)
        return forward<att_tf32, __nv_bfloat16>(b, &a, state, why);
    return math == ATT_TF32 ? forward<att_tf32, float>(b, &a, state, why)
                            : forward<att_f32, float>(b, &a, state, why);
}

enum pd_err att_linear_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    const enum att_math math = att_math_of(b, c);
    char *const work = (char *)c->workspace;
    struct att a;
    size_t bytes;
    float *state, *dstate;
    double *dscale;
    struct linear j;
    int strips, out;
    enum pd_err err;

    att_read(&a, c);
    out = att_read_bwd(&a, c);
    j = linear_of(&a);
    bytes = state_bytes(&j);
    state = (float *)work;
    dstate = (float *)(work + bytes);
    bytes = att_linear_bf16_takes(c, &a) ? att_linear_bf16_workspace(b, &a) : 2 * bytes;
    strips = (int)cuda_div_up(a.nq, STRIP);
    dscale = a.scale ? (double *)(work + bytes) : NULL;
    if (a.batch > 0 && a.heads > 0) {
        /* For each pair the strips of the quadratic chunks, then those of the linear part. */
        const int both = a.causal ? 2 * strips : strips;

        if (a.causal) {
            struct att square = a;

            square.local = att_linear_bf16_takes(c, &a) ? att_linear_bf16_chunk(b, &a) : j.chunk;
            err = att_square_bwd(b, &square, math, dscale, both, why);
            if (err != PD_OK)
                return err;
        }
        if (att_linear_bf16_takes(c, &a))
            err = att_linear_bf16_bwd(b, &a, work, dscale ? dscale + both - strips : NULL, both, why);
        else if (math == ATT_BF16)
            err = backward<att_tf32, __nv_bfloat16>(b, &a, state, dstate,
                                                    dscale ? dscale + both - strips : NULL, both, why);
        else if (math == ATT_TF32)
            err = backward<att_tf32, float>(b, &a, state, dstate, dscale ? dscale + both - strips : NULL,
                                            both, why);
        else
            err = backward<att_f32, float>(b, &a, state, dstate, dscale ? dscale + both - strips : NULL, both,
                                           why);
        if (err != PD_OK)
            return err;
    }
    if (c->attr->attention.has_scale)
        return att_add_dscale(b, &a, dscale, a.causal ? 2 * strips : strips, &c->out[out], why);
    return PD_OK;
}
