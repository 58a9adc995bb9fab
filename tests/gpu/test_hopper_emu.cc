/* The emulation of sm 90's instructions by itself: products of small matrices over every way an operand may
 * lie, against plain loops; boxes at a tensor's edge; and that each mistake it promises to find is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "kernels/backend/cuda/ptx_hopper.cuh"

extern "C" {
#include <cmocka.h>
}

/* Small multiples of 1/4: products and their sums are exact. */
static std::vector<float> numbers(int n, unsigned seed)
{
    std::vector<float> x((size_t)n);

    for (float &v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = (float)((int)(seed >> 20) % 17 - 8) / 4;
    }
    return x;
}

static __nv_bfloat16 *on_device(const std::vector<float> &x)
{
    std::vector<__nv_bfloat16> narrow(x.size());
    void *p = nullptr;

    for (size_t i = 0; i < x.size(); i++)
        narrow[i] = __float2bfloat16_rn(x[i]);
    assert_int_equal(cudaMalloc(&p, x.size() * 2), cudaSuccess);
    assert_int_equal(cudaMemcpy(p, narrow.data(), x.size() * 2, cudaMemcpyHostToDevice), cudaSuccess);
    return (__nv_bfloat16 *)p;
}

/* A tensor (planes, rows, columns) for boxes of (rows of the box, width columns). */
static CUtensorMap map_of(void *p, int planes, int rows, int columns, int box_rows, int width)
{
    const cuuint64_t dims[4] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)planes, 1};
    const cuuint64_t strides[3] = {(cuuint64_t)columns * 2, (cuuint64_t)(rows * columns) * 2,
                                   (cuuint64_t)(rows * columns * planes) * 2};
    const cuuint32_t box[4] = {(cuuint32_t)width, (cuuint32_t)box_rows, 1, 1}, ones[4] = {1, 1, 1, 1};
    CUtensorMap m;

    assert_int_equal(pk_emu_tensor_map_encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, p, dims, strides, box,
                                              ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                              width == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                              : width == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                            : CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                     CUDA_SUCCESS);
    return m;
}

/* ---- products ---- */

/* d (64, N) = a (64, K) b (K, N). Tiles as they lie in memory: a is (64, K), or (K, 64) by columns; b is (N,
 * K), or (K, N) by columns. */
template <int N, int K, bool a_by_columns, bool b_by_columns, bool a_in_registers>
static __global__ void product(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb,
                               const __nv_bfloat16 *a, float *out)
{
    constexpr int a_columns = a_by_columns ? 64 : K, a_rows = a_by_columns ? K : 64;
    constexpr int b_columns = b_by_columns ? N : K, b_rows = b_by_columns ? K : N;
    using a_tile = pk_tile<a_columns>;
    using b_tile = pk_tile<b_columns>;
    constexpr int a_bytes = a_rows * a_columns * 2, b_bytes = b_rows * b_columns * 2;
    constexpr int b_at = (a_bytes + 1023) / 1024 * 1024, bar_at = b_at + (b_bytes + 1023) / 1024 * 1024;
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + bar_at);
    const uint32_t base = pk_shared_address(shared);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
    float d[N / 2];

    if (threadIdx.x == 0) {
        pk_barrier_init(bar, 1);
        pk_barrier_publish();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        pk_barrier_expect(bar, a_bytes + b_bytes);
        for (int c = 0; c < a_columns; c += a_tile::width)
            pk_bulk_load(shared + c * a_rows * 2, &ma, bar, c, 0, 0, 0);
        for (int c = 0; c < b_columns; c += b_tile::width)
            pk_bulk_load(shared + b_at + c * b_rows * 2, &mb, bar, c, 0, 0, 0);
    }
    pk_barrier_wait(bar, 0);
    for (int k = 0; k < K; k += 16) {
        const uint64_t b = b_by_columns ? b_tile::by_columns(base + b_at, b_rows, k, 0)
                                        : b_tile::by_rows(base + b_at, b_rows, 0, k);

        if constexpr (a_in_registers) {
            uint32_t r[4];

            for (int i = 0; i < 4; i++) {
                const int m = row + i % 2 * 8, c = k + 2 * t + i / 2 * 8;

                r[i] = pk_pack(pk_float(a[m * K + c]), pk_float(a[m * K + c + 1]));
            }
            pk_wgmma_fence();
            pk_wgmma<N, b_by_columns>(d, r[0], r[1], r[2], r[3], b, k > 0);
        } else {
            pk_wgmma_fence();
            pk_wgmma<N, a_by_columns, b_by_columns>(d,
                                                    a_by_columns ? a_tile::by_columns(base, a_rows, k, 0)
                                                                 : a_tile::by_rows(base, a_rows, 0, k),
                                                    b, k > 0);
        }
    }
    pk_wgmma_commit();
    pk_wgmma_wait<0>();
    pk_wgmma_hold(d);
    for (int i = 0; i < N / 2; i++)
        out[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + 2 * t + i % 2] = d[i];
}

static void compare(const std::vector<float> &a, const std::vector<float> &b, int n, int k, bool a_by_columns,
                    bool b_by_columns, const float *device, const char *what)
{
    std::vector<float> got((size_t)(64 * n));

    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got.data(), device, got.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < n; j++) {
            float want = 0;

            for (int x = 0; x < k; x++)
                want += a[(size_t)(a_by_columns ? x * 64 + i : i * k + x)] *
                        b[(size_t)(b_by_columns ? x * n + j : j * k + x)];
            if (got[(size_t)(i * n + j)] != want)
                fail_msg("%s, n %d k %d: (%d, %d) is %g, not %g", what, n, k, i, j,
                         (double)got[(size_t)(i * n + j)], (double)want);
        }
}

template <int N, int K, bool a_by_columns, bool b_by_columns, bool a_in_registers = false> static void check()
{
    const std::vector<float> a = numbers(64 * K, 7), b = numbers(N * K, 99);
    __nv_bfloat16 *da = on_device(a), *db = on_device(b);
    float *out = nullptr;
    const int aw = a_by_columns ? 64 : K < 64 ? K : 64, bc = b_by_columns ? N : K, bw = bc < 64 ? bc : 64;
    const CUtensorMap ma = a_by_columns ? map_of(da, 1, K, 64, K, aw) : map_of(da, 1, 64, K, 64, aw);
    const CUtensorMap mb = b_by_columns ? map_of(db, 1, K, N, K, bw) : map_of(db, 1, N, K, N, bw);
    char what[80];

    snprintf(what, sizeof what, "a by %s%s, b by %s", a_by_columns ? "columns" : "rows",
             a_in_registers ? " in registers" : "", b_by_columns ? "columns" : "rows");
    assert_int_equal(cudaMalloc((void **)&out, 64 * N * 4), cudaSuccess);
    assert_int_equal(cudaFuncSetAttribute(product<N, K, a_by_columns, b_by_columns, a_in_registers>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, 128 * 1024),
                     cudaSuccess);
    PK_LAUNCH((product<N, K, a_by_columns, b_by_columns, a_in_registers>), dim3(1), dim3(128), 128 * 1024,
              nullptr, ma, mb, da, out);
    compare(a, b, N, K, a_by_columns, b_by_columns, out, what);
    cudaFree(da);
    cudaFree(db);
    cudaFree(out);
}

template <int N, int K> static void check_both_ways()
{
    check<N, K, false, false>();
    check<N, K, true, false>();
    check<N, K, false, false, true>();
    if constexpr (N == 32 || N % 64 == 0) {
        check<N, K, false, true>();
        check<N, K, true, true>();
        check<N, K, false, true, true>();
    }
}

static void test_products_all_layouts(void **)
{
    check_both_ways<32, 16>();
    check_both_ways<32, 32>();
    check_both_ways<64, 32>();
    check_both_ways<64, 64>();
    check_both_ways<96, 64>();
    check_both_ways<112, 64>();
    check_both_ways<128, 16>();
    check_both_ways<128, 64>();
    check_both_ways<128, 128>();
}

/* Without a swizzle, core matrices of 8 rows of 16 bytes, written by ordinary stores. */
template <bool by_columns>
static __global__ void plain(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *out, bool fenced)
{
    PK_SHARED(unsigned char, shared);
    const uint32_t base = pk_shared_address(shared);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
    __nv_bfloat16 *x = reinterpret_cast<__nv_bfloat16 *>(shared);
    float d[32];

    /* (64, 16): core (m / 8, k / 8) at m / 8 * 256 + k / 8 * 128 bytes. The same for b, 2048 bytes on. */
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
        const int m = by_columns ? i % 64 : i / 16, k = by_columns ? i / 64 : i % 16;
        const int at = m / 8 * 128 + k / 8 * 64 + (by_columns ? k % 8 * 8 + m % 8 : m % 8 * 8 + k % 8);

        x[at] = a[i];
        x[1024 + at] = b[i];
    }
    if (fenced)
        pk_fence_async();
    __syncthreads();
    pk_wgmma_fence();
    pk_wgmma<64, by_columns, by_columns>(d, pk_operand(base, 128, 256, 0),
                                         pk_operand(base + 2048, 128, 256, 0), false);
    pk_wgmma_commit();
    pk_wgmma_wait<0>();
    for (int i = 0; i < 32; i++)
        out[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + 2 * t + i % 2] = d[i];
}

static void test_products_without_swizzle(void **)
{
    const std::vector<float> a = numbers(64 * 16, 3), b = numbers(64 * 16, 4);
    __nv_bfloat16 *da = on_device(a), *db = on_device(b);
    float *out = nullptr;

    assert_int_equal(cudaMalloc((void **)&out, 64 * 64 * 4), cudaSuccess);
    PK_LAUNCH((plain<false>), dim3(1), dim3(128), 4096, nullptr, da, db, out, true);
    compare(a, b, 64, 16, false, false, out, "no swizzle, by rows");
    PK_LAUNCH((plain<true>), dim3(1), dim3(128), 4096, nullptr, da, db, out, true);
    compare(a, b, 64, 16, true, true, out, "no swizzle, by columns");
    cudaFree(da);
    cudaFree(db);
    cudaFree(out);
}

/* ---- copies ---- */

/* The box at (column, row, plane) of 64 columns and 16 rows, as it should be read back. */
static __global__ void box(const __grid_constant__ CUtensorMap m, int column, int row, int plane, float *out)
{
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + 2048);

    if (threadIdx.x == 0) {
        pk_barrier_init(bar, 1);
        pk_barrier_publish();
        pk_barrier_expect(bar, 2048);
        pk_bulk_load(shared, &m, bar, column, row, plane, 0);
    }
    __syncthreads();
    pk_barrier_wait(bar, 0);
    for (int i = threadIdx.x; i < 16 * 64; i += 32) {
        const int at = i / 64 * 128 + (i % 64 * 2 ^ i / 64 % 8 * 16);

        out[i] = pk_float(*reinterpret_cast<const __nv_bfloat16 *>(shared + at));
    }
}

static void test_box_at_the_edge_is_filled_with_zeros(void **)
{
    const int planes = 2, rows = 21, columns = 72;
    const std::vector<float> x = numbers(planes * rows * columns, 5);
    __nv_bfloat16 *dx = on_device(x);
    const CUtensorMap m = map_of(dx, planes, rows, columns, 16, 64);
    float *out = nullptr, got[16 * 64];
    static const int at[][3] = {{0, 0, 0}, {64, 0, 1}, {8, 16, 0}, {-8, -3, 1}, {0, 21, 0}, {0, 0, 2}};

    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    for (const int *c : at) {
        PK_LAUNCH(box, dim3(1), dim3(32), 4096, nullptr, m, c[0], c[1], c[2], out);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int i = 0; i < 16 * 64; i++) {
            const int column = c[0] + i % 64, row = c[1] + i / 64;
            const bool inside = column >= 0 && column < columns && row >= 0 && row < rows && c[2] < planes;
            const float want = inside ? x[(size_t)((c[2] * rows + row) * columns + column)] : 0.0f;

            if (got[i] != want)
                fail_msg("box at (%d, %d, %d), element %d: %g, not %g", c[0], c[1], c[2], i, (double)got[i],
                         (double)want);
        }
    }
    cudaFree(dx);
    cudaFree(out);
}

static void test_maps_that_the_driver_refuses(void **)
{
    const cuuint64_t dims[2] = {64, 8}, strides[1] = {128}, odd[1] = {136 + 4}, zero[2] = {64, 0};
    const cuuint32_t box[2] = {64, 8}, wide[2] = {512, 8}, ones[2] = {1, 1};
    __nv_bfloat16 *p = on_device(numbers(64 * 8, 1));
    CUtensorMap m;
    const auto encode = [&](void *at, const cuuint64_t *d, const cuuint64_t *s, const cuuint32_t *b) {
        return pk_emu_tensor_map_encode(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, at, d, s, b, ones,
                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };

    assert_int_equal(encode(p, dims, strides, box), CUDA_SUCCESS);
    assert_int_not_equal(encode(p + 1, dims, strides, box), CUDA_SUCCESS);
    assert_int_not_equal(encode(p, dims, odd, box), CUDA_SUCCESS);
    assert_int_not_equal(encode(p, zero, strides, box), CUDA_SUCCESS);
    assert_int_not_equal(encode(p, dims, strides, wide), CUDA_SUCCESS);
    cudaFree(p);
}

/* ---- mistakes ---- */

enum mistake {
    NONE,
    NO_FENCE,        /* wgmma.fence after a wait */
    NO_ASYNC_FENCE,  /* fence.proxy.async after ordinary stores */
    TOUCHED,         /* an accumulator written while its product runs */
    OPERAND_CHANGED, /* shared memory written while a product reads it */
    NOT_WAITED,      /* the block ends before a product */
    UNPUBLISHED,     /* a copy on a barrier that others may not know */
    NO_EXPECT,       /* bytes that nobody announced: the phase never ends */
    MISALIGNED,      /* a tile at an address that the swizzle's pattern does not begin at */
    TOO_MANY,        /* arrivals */
    UNINITIALISED
};

static __global__ void mistaken(const __grid_constant__ CUtensorMap m, enum mistake what)
{
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + 16384);
    const uint32_t base = pk_shared_address(shared);
    float d[32];

    if (what == NO_ASYNC_FENCE) {
        pk_wgmma_fence();
        pk_wgmma<64, false, false>(d, pk_tile<64>::by_rows(base, 64, 0, 0),
                                   pk_tile<64>::by_rows(base, 64, 0, 0), false);
        pk_wgmma_commit();
        pk_wgmma_wait<0>();
        __syncthreads();
        shared[threadIdx.x] = 1;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (what != UNINITIALISED)
            pk_barrier_init(bar, 1);
        if (what != UNPUBLISHED)
            pk_barrier_publish();
        if (what != NO_EXPECT && what != NO_ASYNC_FENCE)
            pk_barrier_expect(bar, 8192);
        if (what == TOO_MANY) {
            pk_barrier_arrive(bar);
            pk_barrier_arrive(bar);
        }
        if (what != NO_ASYNC_FENCE)
            pk_bulk_load(shared + (what == MISALIGNED ? 512 : 0), &m, bar, 0, 0, 0, 0);
    }
    __syncthreads();
    if (what != NO_ASYNC_FENCE)
        pk_barrier_wait(bar, 0);
    if (what != NO_FENCE)
        pk_wgmma_fence();
    pk_wgmma<64, false, false>(d, pk_tile<64>::by_rows(base, 64, 0, 0), pk_tile<64>::by_rows(base, 64, 0, 0),
                               false);
    pk_wgmma_commit();
    if (what == TOUCHED)
        d[3] = 0.0f;
    __syncthreads();
    if (what == OPERAND_CHANGED && threadIdx.x == 5)
        shared[1] ^= 1;
    __syncthreads();
    if (what != NOT_WAITED)
        pk_wgmma_wait<0>();
}

static bool survives(enum mistake what)
{
    __nv_bfloat16 *p = on_device(numbers(64 * 64, 1));
    const CUtensorMap m = map_of(p, 1, 64, 64, 64, 64);
    const pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        if (what != NONE)
            (void)!freopen("/dev/null", "w", stderr);
        PK_LAUNCH(mistaken, dim3(1), dim3(128), 20480, nullptr, m, what);
        cudaDeviceSynchronize();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    cudaFree(p);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_mistakes_are_found(void **)
{
    assert_true(survives(NONE));
    for (int what = NONE + 1; what <= UNINITIALISED; what++)
        if (survives((enum mistake)what))
            fail_msg("mistake %d went unseen", what);
}

/* ---- clusters ---- */

enum cluster_mistake {
    CLUSTER_NONE,
    CLUSTER_UNMET,   /* another block's barrier before the cluster has met since it was initialised */
    CLUSTER_LEFT,    /* an arrival at a block that has left */
    CLUSTER_OUTSIDE, /* a copy to a block that the cluster has not */
    CLUSTER_TOO_MANY /* arrivals, of two blocks together */
};

/* Two blocks: each loads half of a box of 16 rows into both and writes out all of it; after both have said
 * so, each reads what the other wrote. */
static __global__ void pair(const __grid_constant__ CUtensorMap m, enum cluster_mistake what, float *out)
{
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + 2048), *met = bar + 1;
    const uint32_t rank = pk_cluster_rank();

    if (threadIdx.x == 0) {
        pk_barrier_init(bar, 1);
        pk_barrier_init(met, 2);
        pk_barrier_publish();
    }
    if (what == CLUSTER_UNMET)
        __syncthreads();
    else
        pk_cluster_sync();
    if (threadIdx.x == 0) {
        pk_barrier_expect(bar, 2048);
        pk_bulk_load_cluster(shared + rank * 1024, &m, bar, what == CLUSTER_OUTSIDE ? 7u : 3u, 0,
                             (int)rank * 8, 0, 0);
    }
    pk_barrier_wait(bar, 0);
    for (int i = threadIdx.x; i < 16 * 64; i += 32) {
        const int at = i / 64 * 128 + (i % 64 * 2 ^ i / 64 % 8 * 16);

        out[(blockIdx.x * 16 * 64) + i] = pk_float(*reinterpret_cast<const __nv_bfloat16 *>(shared + at));
    }
    __syncwarp();
    if (what == CLUSTER_LEFT && rank == 1) {
        if (threadIdx.x == 0)
            pk_barrier_arrive_at(met, 0);
        return;
    }
    if (threadIdx.x < 2 && (what != CLUSTER_LEFT || threadIdx.x == 0))
        pk_barrier_arrive_at(met, threadIdx.x);
    if (what == CLUSTER_TOO_MANY && threadIdx.x == 0)
        for (int i = 0; i < 2; i++)
            pk_barrier_arrive_at(met, 1 - rank);
    pk_barrier_wait_cluster(met, 0);
    if (what == CLUSTER_LEFT && threadIdx.x == 0)
        pk_barrier_arrive_at(met, 1);
    if (threadIdx.x == 0)
        out[2 * 16 * 64 + blockIdx.x] = out[(blockIdx.x ^ 1) * 16 * 64];
    pk_cluster_sync();
}

static void test_blocks_of_a_cluster_load_for_each_other(void **)
{
    const std::vector<float> x = numbers(16 * 64, 11);
    __nv_bfloat16 *dx = on_device(x);
    const CUtensorMap m = map_of(dx, 1, 16, 64, 8, 64);
    float *out = nullptr, got[2 * 16 * 64 + 2];

    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    PK_LAUNCH_CLUSTER(pair, 2, dim3(2), dim3(32), 4096, nullptr, m, CLUSTER_NONE, out);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 2 * 16 * 64; i++)
        if (got[i] != x[(size_t)(i % (16 * 64))])
            fail_msg("block %d, element %d: %g", i / (16 * 64), i % (16 * 64), (double)got[i]);
    for (int i = 0; i < 2; i++)
        assert_true(got[2 * 16 * 64 + i] == x[0]);
    /* A grid is whole clusters; 1024 threads at the most run together here. */
    PK_LAUNCH_CLUSTER(pair, 2, dim3(3), dim3(32), 4096, nullptr, m, CLUSTER_NONE, out);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PK_LAUNCH_CLUSTER(pair, 2, dim3(2), dim3(544), 4096, nullptr, m, CLUSTER_NONE, out);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    cudaFree(dx);
    cudaFree(out);
}

static bool pair_survives(enum cluster_mistake what)
{
    __nv_bfloat16 *p = on_device(numbers(16 * 64, 1));
    const CUtensorMap m = map_of(p, 1, 16, 64, 8, 64);
    float *out = nullptr;
    pid_t child;
    int status = 0;

    assert_int_equal(cudaMalloc((void **)&out, (2 * 16 * 64 + 2) * 4), cudaSuccess);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (what != CLUSTER_NONE)
            (void)!freopen("/dev/null", "w", stderr);
        PK_LAUNCH_CLUSTER(pair, 2, dim3(2), dim3(32), 4096, nullptr, m, what, out);
        cudaDeviceSynchronize();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    cudaFree(p);
    cudaFree(out);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_mistakes_of_clusters_are_found(void **)
{
    assert_true(pair_survives(CLUSTER_NONE));
    for (int what = CLUSTER_NONE + 1; what <= CLUSTER_TOO_MANY; what++)
        if (pair_survives((enum cluster_mistake)what))
            fail_msg("mistake %d of a cluster went unseen", what);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_all_layouts),
        cmocka_unit_test(test_products_without_swizzle),
        cmocka_unit_test(test_box_at_the_edge_is_filled_with_zeros),
        cmocka_unit_test(test_maps_that_the_driver_refuses),
        cmocka_unit_test(test_mistakes_are_found),
        cmocka_unit_test(test_blocks_of_a_cluster_load_for_each_other),
        cmocka_unit_test(test_mistakes_of_clusters_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
