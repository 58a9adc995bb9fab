/* The instructions of sm 90 one assumption at a time, against plain loops: products of small matrices over every way an
 * operand may lie, boxes at a tensor's edge, strides in any order, boxes wider than the tensor, copies to the blocks of a
 * cluster, registers that move between warpgroups, sums in L2. Ten seconds that come before everything else on a new
 * device (tests/gpu/run, part `parts`): what a kernel of attention gets wrong later shows here by its name. On the
 * emulation the same source is compiled by g++. */
#include "tests/gpu/hopper_parts.h"

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

/* Heads that lie closer together than tokens: strides need not grow from one axis to the next. */
static void test_strides_in_any_order(void **)
{
    const int planes = 3, rows = 21, columns = 64;
    const std::vector<float> x = numbers(planes * rows * columns, 6);
    __nv_bfloat16 *dx = on_device(x);
    const CUtensorMap m = map_of_strided(dx, planes, rows, columns, columns, planes * columns, 16, 64);
    float *out = nullptr, got[16 * 64];

    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    for (int plane = 0; plane < planes; plane++) {
        PK_LAUNCH(box, dim3(1), dim3(32), 4096, nullptr, m, 0, 5, plane, out);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int i = 0; i < 16 * 64; i++)
            if (got[i] != x[(size_t)(((5 + i / 64) * planes + plane) * columns + i % 64)])
                fail_msg("plane %d, element %d: %g", plane, i, (double)got[i]);
    }
    cudaFree(dx);
    cudaFree(out);
}

/* Heads of 48 in boxes of 64 columns: the rest is 0 and counts in the bytes. */
static void test_box_wider_than_the_tensor(void **)
{
    const int rows = 20, columns = 48;
    const std::vector<float> x = numbers(rows * columns, 8);
    __nv_bfloat16 *dx = on_device(x);
    const CUtensorMap m = map_of(dx, 1, rows, columns, 16, 64);
    float *out = nullptr, got[16 * 64];

    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    PK_LAUNCH(box, dim3(1), dim3(32), 4096, nullptr, m, 0, 0, 0, out);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 16 * 64; i++)
        if (got[i] != (i % 64 < columns ? x[(size_t)(i / 64 * columns + i % 64)] : 0.0f))
            fail_msg("element %d: %g", i, (double)got[i]);
    cudaFree(dx);
    cudaFree(out);
}

/* ---- registers that one warpgroup gives up and another takes ---- */

/* Warpgroup 2 gives up its registers; the others take them, to the last one, and keep 160 values alive in them. */
static __global__ void __launch_bounds__(384, 1) registers(const float *x, float *out)
{
#ifdef PK_HOPPER
    if (pk_warp_number() / 4 == 2) {
        pk_registers_fewer<24>();
        if (threadIdx.x == 256)
            out[256] = x[0];
    } else {
        float v[160], sum = 0.0f;

        pk_registers_more<240>();
#pragma unroll
        for (int i = 0; i < 160; i++)
            v[i] = x[i * 256 + threadIdx.x];
        pk_named_barrier(1, 256);
#pragma unroll
        for (int i = 0; i < 160; i++)
            sum += v[i] * v[159 - i];
        out[threadIdx.x] = sum;
    }
#endif
}

static void test_registers_move_between_warpgroups(void **)
{
    const std::vector<float> x = numbers(160 * 256, 12);
    float *dx = nullptr, *out = nullptr, got[257];

    assert_int_equal(cudaMalloc((void **)&dx, x.size() * 4), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    assert_int_equal(cudaMemcpy(dx, x.data(), x.size() * 4, cudaMemcpyHostToDevice), cudaSuccess);
    PK_LAUNCH(registers, dim3(1), dim3(384), 0, nullptr, dx, out);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int t = 0; t < 256; t++) {
        float want = 0;

        for (int i = 0; i < 160; i++)
            want += x[(size_t)(i * 256 + t)] * x[(size_t)((159 - i) * 256 + t)];
        assert_true(got[t] == want);
    }
    assert_true(got[256] == x[0]);
    cudaFree(dx);
    cudaFree(out);
}

/* ---- sums in L2 ---- */

/* Each thread adds three times to four floats of its own and reads them back at once. */
static __global__ void add(float4 *sums, float4 *seen)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    for (int n = 0; n < 3; n++)
        pk_add4(sums + i, make_float4((float)i, (float)(n + 1), -0.5f, 1.0f));
    seen[i] = pk_load4(sums + i);
}

static void test_sums_in_l2_are_seen_by_their_thread(void **)
{
    enum { N = 8192 };
    std::vector<float> zero(4 * N), got(4 * N);
    float4 *sums = nullptr, *seen = nullptr;

    assert_int_equal(cudaMalloc((void **)&sums, sizeof(float4) * N), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&seen, sizeof(float4) * N), cudaSuccess);
    assert_int_equal(cudaMemcpy(sums, zero.data(), sizeof(float4) * N, cudaMemcpyHostToDevice), cudaSuccess);
    PK_LAUNCH(add, dim3(N / 256), dim3(256), 0, nullptr, sums, seen);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got.data(), seen, sizeof(float4) * N, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < N; i++) {
        assert_true(got[(size_t)(4 * i)] == 3.0f * (float)i);
        assert_true(got[(size_t)(4 * i + 1)] == 6.0f && got[(size_t)(4 * i + 2)] == -1.5f &&
                    got[(size_t)(4 * i + 3)] == 3.0f);
    }
    cudaFree(sums);
    cudaFree(seen);
}

/* ---- clusters ---- */

/* Two blocks: each loads half of a box of 16 rows into both and writes out all of it; after both have said so, each
 * reads what the other wrote. */
static __global__ void pair(const __grid_constant__ CUtensorMap m, float *out)
{
#ifdef PK_HOPPER
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + 2048), *met = bar + 1;
    const uint32_t rank = pk_cluster_rank();

    if (threadIdx.x == 0) {
        pk_barrier_init(bar, 1);
        pk_barrier_init(met, 2);
        pk_barrier_publish();
    }
    pk_cluster_sync();
    if (threadIdx.x == 0) {
        pk_barrier_expect(bar, 2048);
        pk_bulk_load_cluster(shared + rank * 1024, &m, bar, 3u, 0, (int)rank * 8, 0, 0);
    }
    pk_barrier_wait(bar, 0);
    for (int i = threadIdx.x; i < 16 * 64; i += 32) {
        const int at = i / 64 * 128 + (i % 64 * 2 ^ i / 64 % 8 * 16);

        out[(blockIdx.x * 16 * 64) + i] = pk_float(*reinterpret_cast<const __nv_bfloat16 *>(shared + at));
    }
    __syncwarp();
    if (threadIdx.x < 2)
        pk_barrier_arrive_at(met, threadIdx.x);
    pk_barrier_wait_cluster(met, 0);
    if (threadIdx.x == 0)
        out[2 * 16 * 64 + blockIdx.x] = out[(blockIdx.x ^ 1) * 16 * 64];
    pk_cluster_sync();
#endif
}

static void test_blocks_of_a_cluster_load_for_each_other(void **)
{
    const std::vector<float> x = numbers(16 * 64, 11);
    __nv_bfloat16 *dx = on_device(x);
    const CUtensorMap m = map_of(dx, 1, 16, 64, 8, 64);
    float *out = nullptr, got[2 * 16 * 64 + 2];

    assert_int_equal(cudaMalloc((void **)&out, sizeof got), cudaSuccess);
    PK_LAUNCH_CLUSTER(pair, 2, dim3(2), dim3(32), 4096, nullptr, m, out);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 2 * 16 * 64; i++)
        if (got[i] != x[(size_t)(i % (16 * 64))])
            fail_msg("block %d, element %d: %g", i / (16 * 64), i % (16 * 64), (double)got[i]);
    for (int i = 0; i < 2; i++)
        assert_true(got[2 * 16 * 64 + i] == x[0]);
    cudaFree(dx);
    cudaFree(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_without_swizzle),
        cmocka_unit_test(test_products_all_layouts),
        cmocka_unit_test(test_box_at_the_edge_is_filled_with_zeros),
        cmocka_unit_test(test_strides_in_any_order),
        cmocka_unit_test(test_box_wider_than_the_tensor),
        cmocka_unit_test(test_registers_move_between_warpgroups),
        cmocka_unit_test(test_sums_in_l2_are_seen_by_their_thread),
        cmocka_unit_test(test_blocks_of_a_cluster_load_for_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
