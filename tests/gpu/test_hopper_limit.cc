/* What a kernel with POLYD_CUDA_SPIN_LIMIT prints when it waits at a barrier whose phase never ends, on the emulation: the
 * barrier, its parity, block, warp and lane; and that it aborts. A wait that ends is not disturbed. */
#include "tests/gpu/hopper_parts.h"

#include <sys/wait.h>
#include <unistd.h>

/* Block 1 forgets to announce the bytes of its second copy, and its warp 2 alone waits for them. */
static __global__ void forgetful(const __grid_constant__ CUtensorMap m, bool forgets)
{
    PK_SHARED(unsigned char, shared);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared + 16384);

    if (threadIdx.x == 0) {
        pk_barrier_init(bar, 1);
        pk_barrier_publish();
        pk_barrier_expect(bar, 8192);
        pk_bulk_load(shared, &m, bar, 0, 0, 0, 0);
    }
    __syncthreads();
    pk_barrier_wait(bar, 0);
    if (threadIdx.x == 0 && !(forgets && blockIdx.x == 1)) {
        pk_barrier_expect(bar, 8192);
        pk_bulk_load(shared, &m, bar, 0, 0, 0, 0);
    }
    if (threadIdx.x / 32 == 2)
        pk_barrier_wait(bar, 1);
}

/* Launches it in another process; what that printed is in `text`. */
static int launch(bool forgets, char *text, size_t cap)
{
    __nv_bfloat16 *p = on_device(numbers(64 * 64, 1));
    const CUtensorMap m = map_of(p, 1, 64, 64, 64, 64);
    int status = 0, ends[2];
    ssize_t n;
    size_t len = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        PK_LAUNCH(forgetful, dim3(3), dim3(128), 20480, nullptr, m, forgets);
        cudaDeviceSynchronize();
        _exit(0);
    }
    close(ends[1]);
    while (len + 1 < cap && (n = read(ends[0], text + len, cap - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    cudaFree(p);
    return status;
}

static void test_a_wait_without_end_names_its_place(void **)
{
    char text[4096];
    const int status = launch(true, text, sizeof text);

    print_message("%s", text);
    assert_true(WIFSIGNALED(status));
    assert_non_null(strstr(text, "a wait at the barrier in shared memory 0x"));
    assert_non_null(strstr(text, ", parity 1, has no end: block 1 of 3, warp 2, lane "));
    assert_non_null(strstr(text, "trap"));
}

static void test_a_wait_that_ends_is_silent(void **)
{
    char text[4096];

    assert_int_equal(launch(false, text, sizeof text), 0);
    assert_string_equal(text, "");
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_without_end_names_its_place),
        cmocka_unit_test(test_a_wait_that_ends_is_silent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
