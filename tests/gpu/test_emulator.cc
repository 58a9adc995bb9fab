/* The emulation by itself: that what kernels may rely on holds, and that each mistake it promises to find is
 * found: a process of its own makes it, and is to end with the sentence. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend/cuda/device.cuh"
#include "tests/gpu/emu/note.h"

extern "C" {
#include <cmocka.h>
}

#define COUNT 256

static cudaStream_t stream, side;
static int *numbers; /* COUNT on the device */

static int open_all(void **)
{
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
           cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) != cudaSuccess ||
           cudaMalloc((void **)&numbers, COUNT * sizeof *numbers) != cudaSuccess;
}

static int close_all(void **)
{
    return cudaFree(numbers) != cudaSuccess || cudaStreamDestroy(stream) != cudaSuccess ||
           cudaStreamDestroy(side) != cudaSuccess;
}

static void read_back(int *to)
{
    assert_int_equal(cudaMemcpy(to, numbers, COUNT * sizeof *to, cudaMemcpyDeviceToHost), cudaSuccess);
}

/* ---- what holds ---- */

static __global__ void reverse_kernel(int *x)
{
    PK_SHARED(int, s);

    s[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

static __global__ void warp_kernel(int *x)
{
    const int lane = (int)threadIdx.x % PK_WARP;
    int sum = lane;

    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(PK_WARP_ALL, sum, d);
    sum += 1000 * __popc(__ballot_sync(PK_WARP_ALL, lane % 3 == 0));
    if (lane >= 8) /* the others go on without these */
        return;
    sum += __shfl_sync(0xff, lane, 7);
    x[threadIdx.x / PK_WARP * 8 + lane] = sum + 10 * __syncthreads_count(lane < 3);
}

static void test_threads_meet(void **)
{
    static const char *const orders[] = {"forward", "reverse", "random"};
    int got[COUNT];

    for (const char *order : orders) {
        setenv("POLYD_EMU_ORDER", order, 1);
        PK_LAUNCH(reverse_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        read_back(got);
        for (int i = 0; i < COUNT; i++)
            assert_int_equal(got[i], COUNT - 1 - i);
        PK_LAUNCH(warp_kernel, 1, 64, 0, stream, numbers);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        read_back(got);
        for (int i = 0; i < 16; i++)
            assert_int_equal(got[i], 496 + 11000 + 7 + 60);
    }
    unsetenv("POLYD_EMU_ORDER");
}

static __global__ void lacks_barrier_kernel(int *x)
{
    PK_SHARED(int, s);

    s[threadIdx.x] = (int)threadIdx.x;
    x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

static void test_missing_barrier_shows(void **)
{
    int one[COUNT], other[COUNT];

    PK_LAUNCH(lacks_barrier_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
    cudaStreamSynchronize(stream);
    read_back(one);
    setenv("POLYD_EMU_ORDER", "reverse", 1);
    PK_LAUNCH(lacks_barrier_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
    cudaStreamSynchronize(stream);
    unsetenv("POLYD_EMU_ORDER");
    read_back(other);
    assert_memory_not_equal(one, other, sizeof one);
    assert_int_equal(one[0], -1); /* shared memory begins as NaN */
}

static __global__ void copy_late_kernel(const int *from, int *x)
{
    PK_SHARED(int, s);
    int before;

    pk_emu_cp_async(s + 4 * threadIdx.x, from + 4 * threadIdx.x, 16, 16);
    pk_emu_cp_commit();
    before = s[4 * threadIdx.x];
    pk_emu_cp_wait(0);
    x[COUNT / 2 + 2 * threadIdx.x] = before;
    x[COUNT / 2 + 2 * threadIdx.x + 1] = s[4 * threadIdx.x + 3];
}

static void test_asynchronous_copies_are_late(void **)
{
    int got[COUNT];

    PK_LAUNCH(reverse_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
    PK_LAUNCH(copy_late_kernel, 1, 32, 512, stream, numbers, numbers);
    cudaStreamSynchronize(stream);
    read_back(got);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(got[COUNT / 2 + 2 * i], -1);
        assert_int_equal(got[COUNT / 2 + 2 * i + 1], COUNT - 1 - (4 * i + 3));
    }
}

static __global__ void add_kernel(int *x, int what)
{
    x[threadIdx.x] += what;
}

static void test_streams_are_put_off(void **)
{
    int got[COUNT], *pinned;
    cudaEvent_t event;

    assert_int_equal(cudaMallocHost((void **)&pinned, COUNT * sizeof *pinned), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    memset(pinned, 0, COUNT * sizeof *pinned);
    cudaMemcpyAsync(numbers, pinned, COUNT * sizeof *pinned, cudaMemcpyHostToDevice, side);
    pinned[0] = 5; /* too early: the copy has not begun */
    PK_LAUNCH(add_kernel, 1, COUNT, 0, side, numbers, 1);
    assert_int_equal(cudaStreamQuery(side), cudaErrorNotReady);
    cudaStreamSynchronize(side);
    read_back(got);
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 1);
    /* Ordered by an event, whatever the host waits for first. */
    PK_LAUNCH(add_kernel, 1, COUNT, 0, side, numbers, 10);
    cudaEventRecord(event, side);
    cudaStreamWaitEvent(stream, event);
    PK_LAUNCH(add_kernel, 1, 1, 0, stream, numbers, 100);
    cudaStreamSynchronize(stream);
    read_back(got);
    assert_int_equal(got[0], 116);
    cudaEventDestroy(event);
    cudaFreeHost(pinned);
}

static void test_graphs(void **)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t fork, join;
    int got[COUNT];
    void *p;

    cudaEventCreate(&fork);
    cudaEventCreate(&join);
    cudaMemset(numbers, 0, COUNT * sizeof *numbers);
    cudaDeviceSynchronize();
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    PK_LAUNCH(add_kernel, 1, COUNT, 0, stream, numbers, 1);
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(side, fork);
    PK_LAUNCH(add_kernel, 1, COUNT, 0, side, numbers, 2);
    cudaEventRecord(join, side);
    cudaStreamWaitEvent(stream, join);
    PK_LAUNCH(add_kernel, 1, 1, 0, stream, numbers, 4);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    read_back(got);
    assert_int_equal(got[0], 0); /* recording runs nothing */
    assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    cudaStreamSynchronize(stream);
    read_back(got);
    assert_int_equal(got[0], 21);
    assert_int_equal(got[1], 9);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);

    cudaStreamBeginCapture(stream,
                           cudaStreamCaptureModeThreadLocal); /* a side stream that does not come back */
    cudaEventRecord(fork, stream);
    cudaStreamWaitEvent(side, fork);
    PK_LAUNCH(add_kernel, 1, COUNT, 0, side, numbers, 2);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); /* allocating while recording */
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); /* waiting while recording */
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
}

/* An event of a recording is none outside of it. */
static void test_events_of_a_recording(void **)
{
    cudaEvent_t event;
    cudaGraph_t graph;

    cudaEventCreate(&event);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(event, stream);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(side, event), cudaErrorCapturedEvent);
    assert_int_equal(cudaEventSynchronize(event), cudaErrorCapturedEvent);
    assert_int_equal(cudaEventRecord(event, stream), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(side, event), cudaSuccess);
    (void)cudaGetLastError();
    cudaEventDestroy(event);
    cudaGraphDestroy(graph);
}

/* The limit of shared memory is the kernel's: lowering it takes it from what was recorded. */
static void test_recorded_kernels_keep_their_room(void **)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    assert_int_equal(
        cudaFuncSetAttribute(reverse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10),
        cudaSuccess);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    PK_LAUNCH(reverse_kernel, 1, 32, 60 << 10, stream, numbers);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaFuncSetAttribute(reverse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 50 << 10);
    assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaErrorInvalidValue);
    cudaFuncSetAttribute(reverse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 << 10);
    assert_int_equal(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
    (void)cudaGetLastError();
    cudaStreamSynchronize(stream);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

/* Ordinary memory of the host is not promised to have been read when an asynchronous copy returns. */
static void test_pageable_memory_is_read_late(void **)
{
    int one[COUNT], got[COUNT];

    for (int &x : one)
        x = 1;
    assert_int_equal(cudaMemcpyAsync(numbers, one, sizeof one, cudaMemcpyHostToDevice, stream), cudaSuccess);
    one[3] = 2;
    cudaStreamSynchronize(stream);
    read_back(got);
    assert_int_equal(got[3], 2);
}

/* A child of a process that has begun cannot go on with the device. */
static void test_a_fork_loses_the_device(void **)
{
    int status, count;
    pid_t child;

    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    fflush(nullptr);
    child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(cudaSetDevice(0) == cudaErrorInitializationError &&
                      cudaGetDeviceCount(&count) == cudaErrorInitializationError
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_launches_that_cannot_be(void **)
{
    PK_LAUNCH(reverse_kernel, 1, 1025, 0, stream, numbers);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PK_LAUNCH(reverse_kernel, 0, 32, 0, stream, numbers);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PK_LAUNCH(reverse_kernel, 1, 32, 50 << 10, stream, numbers); /* not opted in */
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(reverse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 50 << 10),
        cudaSuccess);
    PK_LAUNCH(reverse_kernel, 1, 32, 50 << 10, stream, numbers);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaMemcpy(numbers, numbers + 1, COUNT * sizeof *numbers, cudaMemcpyDeviceToDevice),
                     cudaErrorInvalidValue);
    (void)cudaGetLastError();
    cudaStreamSynchronize(stream);
}

/* ---- mistakes that are found ---- */

static __global__ void split_barrier_kernel(int *x)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        x[threadIdx.x] = __shfl_sync(PK_WARP_ALL, 1, 0);
}
static __global__ void diverged_kernel(int *x)
{
    x[threadIdx.x] = threadIdx.x % 2 ? __shfl_sync(PK_WARP_ALL, 1, 0) : __shfl_xor_sync(PK_WARP_ALL, 1, 1);
}
static __global__ void beyond_kernel(int *x)
{
    PK_SHARED(int, s);

    s[threadIdx.x + 1] = 1;
    x[threadIdx.x] = s[threadIdx.x + 1];
}
#if !defined __SANITIZE_ADDRESS__
static __global__ void overrun_kernel(int *x)
{
    x[threadIdx.x + 1] = 1;
}
#endif
static __global__ void misaligned_kernel(int *x)
{
    PK_SHARED(int, s);

    pk_emu_cp_async(s, x + 1, 16, 16);
}
static __global__ void foreign_mask_kernel(int *x)
{
    x[threadIdx.x] = (int)__ballot_sync(0x1, 1);
}

static void split_barrier()
{
    PK_LAUNCH(split_barrier_kernel, dim3(1, 2), 32, 0, stream, numbers);
}
static void diverged()
{
    PK_LAUNCH(diverged_kernel, 1, 32, 0, stream, numbers);
}
static void beyond()
{
    PK_LAUNCH(beyond_kernel, 1, 32, 128, stream, numbers);
}
#if !defined __SANITIZE_ADDRESS__ /* which ends the process itself */
static void overrun()
{
    PK_LAUNCH(overrun_kernel, 1, COUNT, 0, stream, numbers);
}
#endif
static void misaligned()
{
    PK_LAUNCH(misaligned_kernel, 1, 1, 1024, stream, numbers);
}
static void foreign_mask()
{
    PK_LAUNCH(foreign_mask_kernel, 1, 32, 0, stream, numbers);
}

static void test_mistakes_are_found(void **)
{
    static const struct {
        void (*make)();
        const char *sentence, *where;
    } mistakes[] = {
        {split_barrier, "no thread can go on", "in kernel split_barrier_kernel, block (0, 0, 0)"},
        {diverged, "warp 0 has diverged", "in kernel diverged_kernel"},
        {beyond, "beyond the 128 bytes of dynamic shared memory", "in kernel beyond_kernel"},
#if !defined __SANITIZE_ADDRESS__
        {overrun, "memory after an allocation of 1024 bytes was written", "cudaStreamSynchronize"},
#endif
        {misaligned, "not aligned to 16 bytes", "in kernel misaligned_kernel"},
        {foreign_mask, "is not in its own mask", "in kernel foreign_mask_kernel"},
    };

    for (const auto &m : mistakes) {
        int ends[2], status;
        char said[2000] = "";
        size_t n = 0;
        ssize_t got;
        pid_t child;

        assert_int_equal(pipe(ends), 0);
        fflush(nullptr);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dup2(ends[1], 2);
            for (int fatal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL})
                signal(fatal, SIG_DFL); /* cmocka's own handlers would run the other tests */
            m.make();
            cudaStreamSynchronize(stream);
            _exit(0);
        }
        close(ends[1]);
        while (n + 1 < sizeof said && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0)
            n += (size_t)got;
        close(ends[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("'%s' was not found (said: %s)", m.sentence, said);
        if (!strstr(said, m.sentence) || !strstr(said, m.where))
            fail_msg("'%s ... %s' was not said, but: %s", m.sentence, m.where, said);
    }
}

struct noted {
    int launches;
    uint64_t what[4];
};

static void note(void *user, const char *name, uint64_t what)
{
    noted *n = static_cast<noted *>(user);

    assert_non_null(strstr(name, n->launches < 2 ? "reverse_kernel" : "warp_kernel"));
    n->what[n->launches++] = what;
}

static void test_noted_launches_do_not_run(void **)
{
    noted n = {};
    int got[COUNT];

    assert_int_equal(cudaMemset(numbers, 0, sizeof got), cudaSuccess);
    pk_emu_note(note, &n);
    for (int i = 0; i < 2; i++)
        PK_LAUNCH(reverse_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
    PK_LAUNCH(warp_kernel, 1, COUNT, 0, stream, numbers);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    pk_emu_note(nullptr, nullptr);
    read_back(got);
    for (int i : got)
        assert_int_equal(i, 0);
    assert_int_equal(n.launches, 3);
    assert_true(n.what[0] == n.what[1] && n.what[0] != n.what[2]);
    PK_LAUNCH(reverse_kernel, 1, COUNT, COUNT * sizeof(int), stream, numbers);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    read_back(got);
    assert_int_equal(got[0], COUNT - 1);
    assert_int_equal(n.launches, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_meet),
        cmocka_unit_test(test_missing_barrier_shows),
        cmocka_unit_test(test_asynchronous_copies_are_late),
        cmocka_unit_test(test_streams_are_put_off),
        cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_events_of_a_recording),
        cmocka_unit_test(test_pageable_memory_is_read_late),
        cmocka_unit_test(test_a_fork_loses_the_device),
        cmocka_unit_test(test_launches_that_cannot_be), /* before somebody opts in */
        cmocka_unit_test(test_recorded_kernels_keep_their_room),
        cmocka_unit_test(test_noted_launches_do_not_run),
        cmocka_unit_test(test_mistakes_are_found),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
