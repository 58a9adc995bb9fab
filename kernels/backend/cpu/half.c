/* Whether bf16 products are faster on this processor. The instructions alone do not decide: AVX512_BF16 doubles the rate
 * on one vendor's processors and halves it on another's. So bf16 and f32 products are timed alternately, by this
 * thread's CPU clock, and the library's bf16 product is used if its best time is at least WORTH times as fast.
 * Otherwise widen.c computes them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

#include "kernels/backend/cpu/half.h"

#define WORTH 1.5
#define SIDE 384 /* of the square matrices */
#define TURNS 33 /* enough that a busy machine does not hide the difference */
#define FEW 16   /* rows of a product that memory bounds, not arithmetic; CPU_FEW_ROWS of matmul.h */

static struct cpu_half found;

bool cpu_half_known(const char *choice)
{
    return !choice || !*choice || strcmp(choice, "auto") == 0 || strcmp(choice, "products") == 0 ||
           strcmp(choice, "reference") == 0;
}

static bool has_instructions(void)
{
#if defined __x86_64__
    unsigned a, b, c, d;

    if (!__builtin_cpu_supports("avx512f"))
        return false;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1) /* AMX-BF16 */
        return true;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1; /* AVX512_BF16 */
#else
    return false;
#endif
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The speed of a bf16 product relative to f32; 0: out of memory, or not supported by the library. */
static double measure(void)
{
    const struct cpu_gemm *gemm = cpu_gemm_choose(NULL);
    float *x = aligned_alloc(64, sizeof *x * 3 * SIDE * SIDE);
    uint16_t *h = aligned_alloc(64, sizeof *h * 2 * SIDE * SIDE);
    double full = 0, half = 0;
    struct cpu_calm was;
    bool ok = x && h;

    cpu_calm_enter(&was);
    for (int i = 0; ok && i < 3 * SIDE * SIDE; i++)
        x[i] = (float)(i % 17) * 0.0625f;
    for (int i = 0; ok && i < 2 * SIDE * SIDE; i++)
        h[i] = (uint16_t)(0x3f80 + i % 17);
    for (int turn = 0; ok && turn < TURNS; turn++) {
        double t0 = seconds(), t1, t2;

        ok = gemm->sgemm(false, false, SIDE, SIDE, SIDE, x, SIDE, x + SIDE * SIDE, SIDE, false,
                         x + 2 * SIDE * SIDE, SIDE);
        t1 = seconds();
        ok = ok && cpu_gemm_half(false, false, SIDE, SIDE, SIDE, h, SIDE, h + SIDE * SIDE, SIDE,
                                 x + 2 * SIDE * SIDE, SIDE);
        t2 = seconds();
        if (turn == 0) /* kernels are made */
            continue;
        full = turn == 1 || t1 - t0 < full ? t1 - t0 : full;
        half = turn == 1 || t2 - t1 < half ? t2 - t1 : half;
    }
    cpu_calm_leave(&was);
    free(x);
    free(h);
    return ok && half > 0 ? full / half : 0;
}

void cpu_half_choose(const char *choice, bool instructions, double (*measure_speedup)(void),
                     struct cpu_half *ret)
{
    struct cpu_half h = {.products = false};

    if (choice && strcmp(choice, "reference") == 0) {
        snprintf(h.why, sizeof h.why, "POLYD_CPU_BF16 is reference");
    } else if (choice && strcmp(choice, "products") == 0) {
        h.speedup = measure_speedup();
        h.products = h.speedup > 0;
        snprintf(h.why, sizeof h.why,
                 h.products ? "POLYD_CPU_BF16 is products; they are %.2f times as fast as those of f32"
                            : "POLYD_CPU_BF16 is products, but onednn has none for this processor",
                 h.speedup);
    } else if (!instructions) {
        snprintf(h.why, sizeof h.why, "this processor has no instructions for bf16");
    } else {
        h.speedup = measure_speedup();
        h.products = h.speedup >= WORTH;
        if (h.speedup > 0)
            snprintf(
                h.why, sizeof h.why,
                "products of bf16 are %.2f times as fast as those of f32 on this processor, and %.1f times "
                "is what it takes",
                h.speedup, WORTH);
        else
            snprintf(h.why, sizeof h.why, "onednn has no products of bf16 for this processor");
    }
    *ret = h;
}

static void choose(void)
{
    cpu_half_choose(getenv("POLYD_CPU_BF16"), has_instructions(), measure, &found);
}

const struct cpu_half *cpu_half(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, choose);
    return &found;
}

/* The other libraries have no products of bf16. b NULL: a machine with default settings. */
static bool by_onednn(const struct pk_backend *b)
{
    const struct cpu_gemm *gemm = b ? b->gemm : cpu_gemm_choose(getenv("POLYD_CPU_GEMM"));

    return gemm == cpu_gemm_choose("onednn");
}

static bool products_of(const struct pk_backend *b)
{
    return b && b->half_held ? b->half_products : cpu_half()->products;
}

bool pk_cpu_bf16_of(const struct pk_backend *b, char *ret_why, size_t cap)
{
    if (!b->half_held)
        return pk_cpu_bf16(ret_why, cap);
    snprintf(ret_why, cap, "the run began so");
    return b->half_products;
}

enum pd_err pk_cpu_bf16_hold(struct pk_backend *b, bool products, struct pd_why *why)
{
    if (products && (!has_instructions() || !by_onednn(b)))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this processor or its library has no products of bf16");
    b->half_held = true;
    b->half_products = products;
    return PD_OK;
}

bool pk_cpu_bf16(char *ret_why, size_t cap)
{
    const struct cpu_half *h = cpu_half();

    if (!by_onednn(NULL)) {
        snprintf(ret_why, cap, "POLYD_CPU_GEMM is %s, which has no products of bf16",
                 getenv("POLYD_CPU_GEMM"));
        return false;
    }
    snprintf(ret_why, cap, "%s", h->why);
    return h->products;
}

static bool matrix_fits(const struct pk_view *v)
{
    const int r = v->shape.rank;

    return v->dtype == PK_BF16 &&
           cpu_strides_fit(v->shape.dim[r - 2], v->shape.dim[r - 1], v->stride[r - 2], v->stride[r - 1]);
}

bool cpu_half_takes(const struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_view *o = &c->out[0];
    const int r = o->shape.rank;

    if (c->op != PK_OP_MATMUL || c->in[0].dtype != PK_BF16 || c->in[1].dtype != PK_BF16)
        return false;
    for (int i = 0; i < r; i++)
        if (o->shape.dim[i] == 0)
            return false;
    return o->shape.dim[r - 2] > FEW && c->in[0].shape.dim[c->in[0].shape.rank - 1] > 0 &&
           matrix_fits(&c->in[0]) && matrix_fits(&c->in[1]) && by_onednn(b) && products_of(b);
}
