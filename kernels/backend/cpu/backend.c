/* The table of the CPU back end: opening it, choosing the level of instructions, running calls in order. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend/cpu/cpu.h"

#define HUGE_PAGE ((size_t)2 << 20)

static const char *const level_name[CPU_LEVEL_COUNT] = {"portable", "avx2", "avx512"};

static enum cpu_level level_best(void)
{
#if defined CPU_X86_LEVELS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("fma"))
        return CPU_LEVEL_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return CPU_LEVEL_AVX2;
#endif
    return CPU_LEVEL_PORTABLE;
}

const struct cpu_ops *cpu_ops_of(enum cpu_level level, bool f64)
{
    switch (level) {
#if defined CPU_X86_LEVELS
    case CPU_LEVEL_AVX512:
        return f64 ? &cpu_ops_avx512_f64 : &cpu_ops_avx512_f32;
    case CPU_LEVEL_AVX2:
        return f64 ? &cpu_ops_avx2_f64 : &cpu_ops_avx2_f32;
#endif
    default:
        return f64 ? &cpu_ops_portable_f64 : &cpu_ops_portable_f32;
    }
}

int cpu_threads_of(const struct pk_backend *b)
{
    long n;

    if (b)
        return cpu_pool_threads(b->pool);
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 1024 ? 1024 : (int)n;
}

static void log_line(const struct pk_host *host, int level, const char *text)
{
    if (host && host->log)
        host->log(host->user, level, text);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Compares the library's product with the peak of multiply-adds, both on this thread: a library that
 * does not recognise the processor is detected at the start. Takes about 10 ms. */
static void self_test(const struct pk_backend *b)
{
    enum { N = 384 };
    const struct cpu_ops *ops = cpu_ops_of(b->level, false);
    float *m = aligned_alloc(64, 3 * N * N * sizeof *m);
    void *scratch = aligned_alloc(64, (ops->own_gemm_scratch() + 63) / 64 * 64);
    double peak = 0, speed = 0;
    char text[200];

    if (!m || !scratch)
        goto out;
    for (int i = 0; i < 3 * N * N; i++)
        m[i] = (float)(i % 17) * 0.0625f;
    for (int turn = 0; turn < 3; turn++) {
        double t0 = seconds(), t1, flops = ops->fma_peak(100000);

        t1 = seconds();
        peak = t1 > t0 && flops / (t1 - t0) > peak ? flops / (t1 - t0) : peak;
        t0 = t1;
        if (b->gemm->sgemm)
            b->gemm->sgemm(false, false, N, N, N, m, N, m + N * N, N, false, m + 2 * N * N, N);
        else
            ops->own_gemm(false, false, N, N, N, m, N, m + N * N, N, false, m + 2 * N * N, N, scratch);
        t1 = seconds();
        speed = t1 > t0 && 2.0 * N * N * N / (t1 - t0) > speed ? 2.0 * N * N * N / (t1 - t0) : speed;
    }
    snprintf(text, sizeof text,
             "level=%s gemm=%s threads=%d gemm_gflops=%.0f fma_peak_gflops=%.0f denormals=zero",
             level_name[b->level], b->gemm->name, cpu_pool_threads(b->pool), speed / 1e9, peak / 1e9);
    log_line(b->host, 6, text);
    if (speed < 0.5 * peak) {
        snprintf(text, sizeof text,
                 "why=\"gemm=%s reaches only %.0f %% of the multiply-add peak on this processor\"",
                 b->gemm->name, 100 * speed / peak);
        log_line(b->host, 4, text);
    }
out:
    free(scratch);
    free(m);
}

static struct pk_backend *cpu_close(struct pk_backend *b)
{
    if (b) {
        cpu_pool_free(b->pool);
        free(b);
    }
    return NULL;
}

static enum pd_err cpu_open(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                            struct pd_why *why)
{
    const char *level = getenv("POLYD_CPU_LEVEL"), *gemm = getenv("POLYD_CPU_GEMM"),
               *half = getenv("POLYD_CPU_BF16");
    struct pk_backend *b;
    struct cpu_calm was;
    enum pd_err err;

    if (device != 0)
        return pd_fail(why, PD_ERR_INVALID, "the cpu back end has device 0 only, not %d", device);
    b = calloc(1, sizeof *b);
    if (!b)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the cpu back end");
    b->host = host;
    b->level = level_best();
    if (level && *level) {
        int l = 0;

        while (l < CPU_LEVEL_COUNT && strcmp(level, level_name[l]) != 0)
            l++;
        if (l == CPU_LEVEL_COUNT) {
            err =
                pd_fail(why, PD_ERR_INVALID, "POLYD_CPU_LEVEL is '%s': use portable, avx2 or avx512", level);
            goto out;
        }
        if (l > (int)b->level) {
            err = pd_fail(why, PD_ERR_UNSUPPORTED,
                          "POLYD_CPU_LEVEL is '%s', but this processor or this build supports only %s", level,
                          level_name[b->level]);
            goto out;
        }
        b->level = (enum cpu_level)l;
    }
    b->gemm = cpu_gemm_choose(gemm);
    if (!b->gemm) {
        err = pd_fail(why, PD_ERR_INVALID,
                      "POLYD_CPU_GEMM is '%s': use onednn, own, or openblas where it is installed", gemm);
        goto out;
    }
    if (!cpu_half_known(half)) {
        err = pd_fail(why, PD_ERR_INVALID, "POLYD_CPU_BF16 is '%s': use auto, products or reference", half);
        goto out;
    }
    err = cpu_pool_new(threads, &b->pool, why);
    if (err != PD_OK)
        goto out;
    cpu_calm_enter(&was);
    self_test(b);
    cpu_calm_leave(&was);
    *ret = b;
    b = NULL; /* moved to the caller */
out:
    cpu_close(b);
    return err;
}

/* The element type that decides between f32 and f64: that of the first float among outputs and inputs. */
static enum pk_dtype dtype_of(const struct pk_call *c)
{
    for (int i = 0; i < c->n_out; i++)
        if (pk_dtype_is_float(c->out[i].dtype))
            return c->out[i].dtype;
    for (int i = 0; i < c->n_in; i++)
        if (pk_dtype_is_float(c->in[i].dtype))
            return c->in[i].dtype;
    return PK_F32;
}

static bool moves_only(enum pk_op op)
{
    switch (op) {
    case PK_OP_COPY:
    case PK_OP_FILL:
    case PK_OP_CONCAT:
    case PK_OP_PAD:
    case PK_OP_GATHER:
    case PK_OP_ONE_HOT:
    case PK_OP_CACHE_APPEND:
    case PK_OP_ALL_REDUCE:
    case PK_OP_BROADCAST_RANKS:
        return true;
    default:
        return false;
    }
}

static bool cpu_supports(struct pk_backend *b, const struct pk_call *c)
{
    enum pk_dtype t = dtype_of(c);

    (void)b;
    if ((unsigned)c->op >= PK_OP_COUNT || !cpu_ops_of(CPU_LEVEL_PORTABLE, false)->run[c->op])
        return false;
    if (cpu_widens(c))
        return cpu_widen_supports(c);
    if (moves_only(c->op))
        return true;
    if (c->op == PK_OP_EXPR && t == PK_BF16)
        t = PK_F32; /* what it computes in */
    if (t != PK_F32 && t != PK_F64)
        return false;
    for (int i = 0; i < c->n_in; i++)
        if (pk_dtype_is_float(c->in[i].dtype) && c->in[i].dtype != t && !cpu_is_copy(c, i) &&
            !(t == PK_F32 && c->in[i].dtype == PK_BF16 &&
              (c->op == PK_OP_EXPR || (c->op == PK_OP_MATMUL && i == 1))))
            return false;
    return true;
}

static const struct cpu_ops *ops_of(const struct pk_backend *b, const struct pk_call *c)
{
    return cpu_ops_of(b ? b->level : level_best(), dtype_of(c) == PK_F64);
}

static size_t cpu_workspace_bytes(struct pk_backend *b, const struct pk_call *c)
{
    cpu_workspace_fn *fn = (unsigned)c->op < PK_OP_COUNT ? ops_of(b, c)->workspace[c->op] : NULL;

    if (cpu_half_takes(b, c))
        return (ops_of(b, c)->half_workspace(b, c) + 255) & ~(size_t)255;
    if (cpu_widens(c))
        return cpu_widen_workspace(ops_of(b, c), b, c);
    return fn ? (fn(b, c) + 255) & ~(size_t)255 : 0;
}

/* Large blocks ask for huge pages: a model's weights are read from end to end, and with small pages the walks
 * through page tables cost a third of the memory's rate. */
static void *cpu_alloc(struct pk_backend *b, size_t bytes)
{
    size_t size = bytes ? (bytes + 255) & ~(size_t)255 : 256;
    void *p = NULL;

    (void)b;
    if (posix_memalign(&p, size >= HUGE_PAGE ? HUGE_PAGE : 256, size) != 0)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (size >= HUGE_PAGE)
        (void)madvise(p, size & ~(HUGE_PAGE - 1), MADV_HUGEPAGE); /* a hint; failure does not matter */
#endif
    return p;
}

static void cpu_free(struct pk_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static enum pd_err cpu_transfer(struct pk_backend *b, void *to, const void *from, size_t bytes,
                                struct pd_why *why)
{
    (void)b;
    (void)why;
    memcpy(to, from, bytes);
    return PD_OK;
}

static enum pd_err cpu_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pd_why *why)
{
    struct cpu_calm was;
    enum pd_err err = PD_OK;

    cpu_calm_enter(&was);

    for (size_t i = 0; i < count && err == PD_OK; i++) {
        const struct pk_call *c = &calls[i];
        cpu_run_fn *fn = (unsigned)c->op < PK_OP_COUNT ? ops_of(b, c)->run[c->op] : NULL;

        if (!fn)
            err = pd_fail(why, PD_ERR_UNSUPPORTED, "the cpu back end has no kernel for op %d", (int)c->op);
        else if (c->workspace_bytes < cpu_workspace_bytes(b, c))
            err = pd_fail(why, PD_ERR_INTERNAL, "op %d was given %zu bytes of workspace and needs %zu",
                          (int)c->op, c->workspace_bytes, cpu_workspace_bytes(b, c));
        else if (cpu_half_takes(b, c))
            err = ops_of(b, c)->half_matmul(b, c, why);
        else if (cpu_widens(c))
            err = cpu_widen(fn, ops_of(b, c), b, c, why);
        else
            err = fn(b, c, why);
    }
    cpu_calm_leave(&was);
    return err;
}

static enum pd_err cpu_sync(struct pk_backend *b, struct pd_why *why)
{
    (void)b;
    (void)why;
    return PD_OK;
}

static void *cpu_stream(struct pk_backend *b)
{
    (void)b;
    return NULL;
}

const struct pk_backend_api *pk_backend_cpu(void)
{
    static const struct pk_backend_api api = {
        .abi = PK_BACKEND_ABI,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .supports = cpu_supports,
        .workspace_bytes = cpu_workspace_bytes,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .upload = cpu_transfer,
        .download = cpu_transfer,
        .run = cpu_run,
        .sync = cpu_sync,
        .host_memory = true,
        .alloc_host = cpu_alloc_host,
        .free_host = cpu_free_host,
        .slot_new = cpu_slot_new,
        .slot_free = cpu_slot_free,
        .slot_host = cpu_slot_host,
        .slot_send = cpu_slot_send,
        .slot_wait = cpu_slot_wait,
        .slot_take = cpu_slot_take,
        .info = cpu_info,
        .set_math = cpu_set_math,
        .stream = cpu_stream,
    };

    return &api;
}
