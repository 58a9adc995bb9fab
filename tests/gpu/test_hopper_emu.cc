/* The emulation of sm 90's instructions by itself: that each mistake it promises to find is found, and what the driver
 * refuses. What the instructions do is in test_hopper_parts.cu, which a device runs too. */
#include "tests/gpu/hopper_parts.h"

#include <sys/wait.h>
#include <unistd.h>

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
    UNINITIALISED,
    REGISTERS /* more than the block has */
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

/* ---- registers ---- */

/* Two warpgroups wait for 240 registers a thread; the third keeps `kept` of the 168 that each begins with. */
template <int kept> static __global__ void deal(int *out)
{
    if (threadIdx.x / 128 == 2)
        pk_registers_fewer<kept>();
    else
        pk_registers_more<240>();
    if (threadIdx.x == 0)
        *out = kept;
}

template <int kept> static bool deal_ends(void)
{
    int status = 0, *out = nullptr;
    pid_t child;

    assert_int_equal(cudaMalloc((void **)&out, sizeof *out), cudaSuccess);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (kept > 24)
            (void)!freopen("/dev/null", "w", stderr);
        PK_LAUNCH(deal<kept>, dim3(1), dim3(384), 0, nullptr, out);
        cudaDeviceSynchronize();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    cudaFree(out);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void test_registers_that_a_block_has_not_are_waited_for(void **)
{
    assert_true(deal_ends<24>());
    assert_false(deal_ends<32>());
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

static void test_limits_of_a_cluster(void **)
{
    __nv_bfloat16 *dx = on_device(numbers(16 * 64, 11));
    const CUtensorMap m = map_of(dx, 1, 16, 64, 8, 64);
    float *out = nullptr;

    assert_int_equal(cudaMalloc((void **)&out, (2 * 16 * 64 + 2) * 4), cudaSuccess);
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
        cmocka_unit_test(test_maps_that_the_driver_refuses),
        cmocka_unit_test(test_mistakes_are_found),
        cmocka_unit_test(test_registers_that_a_block_has_not_are_waited_for),
        cmocka_unit_test(test_limits_of_a_cluster),
        cmocka_unit_test(test_mistakes_of_clusters_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
