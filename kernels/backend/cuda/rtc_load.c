/* Compiled programs of formulas on a device: each once, until the back end is closed.
 *
 * The emulation interprets formulas (attention/formula.cu). Its programs are compiled only if POLYD_NVRTC names a library,
 * so that tests can watch compilations, and are never loaded. */
#include "kernels/backend/cuda/rtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/log.h"

struct cuda_rtc {
    struct cuda_rtc *next;
    struct pk_formula_plan plan; /* that program.plan points at */
    struct cuda_program program;
#ifndef PK_CUDA_EMULATED
    cudaLibrary_t library;
#endif
};

static bool same(const struct cuda_program *a, const struct cuda_program *b)
{
    return a->math == b->math && a->head == b->head && a->part == b->part &&
           memcmp(&a->tiles, &b->tiles, sizeof a->tiles) == 0 &&
           (a->plan == b->plan || memcmp(a->plan, b->plan, sizeof *a->plan) == 0);
}

static struct cuda_rtc *find(const struct pk_backend *b, const struct cuda_program *p)
{
    struct cuda_rtc *x = b->rtc;

    while (x && !same(&x->program, p))
        x = x->next;
    return x;
}

static enum pd_err put_on_device(struct cuda_rtc *x, const struct pd_buf *code, struct pd_why *why)
{
#ifdef PK_CUDA_EMULATED
    (void)x;
    (void)code;
#else
    const cudaError_t error = cudaLibraryLoadData(&x->library, code->data, NULL, NULL, 0, NULL, NULL, 0);

    if (error != cudaSuccess)
        return cuda_fail(why, error, "loading a compiled formula");
#endif
    (void)why;
    return PD_OK;
}

/* "gradients in bf16" */
static const char *describe(const struct cuda_program *p, char *out, size_t size)
{
    static const char *const parts[CUDA_FORMULA_PARTS] = {"the forward pass", "gradients", "diagnostics",
                                                          "the forward pass", "gradients", "gradients"};

    snprintf(out, size, "%s in %s", parts[p->part], p->math + strlen("att_"));
    return out;
}

/* Compiles and loads; `now` receives what took how long. */
static enum pd_err add(struct pk_backend *b, const struct cuda_program *p, struct cuda_rtc **ret,
                       struct pk_compiling *now, struct pd_why *why)
{
    const int64_t from_us = pd_clock_mono_us();
    struct cuda_rtc *x = calloc(1, sizeof *x);
    struct pd_buf source, code;
    char line[160], what[48];
    enum pd_err err;

    if (!x)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a compiled formula");
    x->plan = *p->plan;
    x->program = *p;
    x->program.plan = &x->plan;
    pd_buf_init(&source, 0);
    pd_buf_init(&code, 0);
    cuda_formula_source(&x->program, &source);
    err = pd_buf_err(&source);
    if (err == PD_OK)
        err = cuda_rtc_compile(source.data, b->sm, b->host ? b->host->cache_dir : NULL, CUDA_RTC_LIMIT_MS,
                               &code, &now->found, why);
    else
        err = pd_fail(why, err, "no memory for a formula's source");
    if (err == PD_OK)
        err = put_on_device(x, &code, why);
    pd_buf_done(&source);
    pd_buf_done(&code);
    if (err != PD_OK) {
        free(x);
        return err;
    }
    now->kernels = cuda_formula_kernels(p->part);
    now->us = pd_clock_mono_us() - from_us;
    if (b->host && b->host->log) {
        snprintf(line, sizeof line, "formula: kernels of %s, heads of at most %d, %s in %.2f s",
                 describe(p, what, sizeof what), p->head, now->found ? "found" : "compiled",
                 (double)now->us / 1e6);
        b->host->log(b->host->user, PD_LOG_INFO, line);
    }
    x->next = b->rtc;
    b->rtc = x;
    *ret = x;
    return PD_OK;
}

#ifndef PK_CUDA_EMULATED
enum pd_err cuda_rtc_kernel(struct pk_backend *b, const struct cuda_program *p, const char *name,
                            const void **ret, struct pd_why *why)
{
    struct cuda_rtc *x = find(b, p);
    struct pk_compiling now = {NULL};
    cudaKernel_t kernel;

    if (!x) {
        const enum pd_err err = add(b, p, &x, &now, why);

        if (err != PD_OK)
            return err;
    }
    PK_CUDA_TRY(cudaLibraryGetKernel(&kernel, x->library, name));
    *ret = (const void *)kernel;
    return PD_OK;
}
#endif

static bool compiles(void)
{
#ifdef PK_CUDA_EMULATED
    const char *named = getenv("POLYD_NVRTC");

    return named && *named;
#else
    return true;
#endif
}

static enum pd_err make(struct pk_backend *b, const struct cuda_program *p, int number, int of,
                        pk_compile_note *note, void *user, struct pd_why *why)
{
    char what[48];
    struct pk_compiling now = {.what = describe(p, what, sizeof what), .number = number, .of = of};
    struct cuda_rtc *x;
    enum pd_err err;

    if (note)
        note(user, &now);
    err = add(b, p, &x, &now, why);
    now.ended = true;
    if (note && err == PD_OK)
        note(user, &now);
    return err;
}

enum pd_err cuda_compile(struct pk_backend *b, const struct pk_call *calls, size_t count,
                         pk_compile_note *note, void *user, struct pd_why *why)
{
    struct cuda_program *missing;
    enum pd_err err = PD_OK;
    int n = 0;

    if (!compiles())
        return PD_OK;
    PK_CUDA_TRY(cudaSetDevice(b->device));
    missing = calloc(count + 1, sizeof *missing);
    if (!missing)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to compile formulas");
    for (size_t i = 0; i < count; i++) {
        struct cuda_program *p = &missing[n];
        bool known;

        if (!cuda_ops[calls[i].op].compiled)
            continue;
        cuda_ops[calls[i].op].compiled(b, &calls[i], p);
        known = find(b, p) != NULL;
        for (int k = 0; k < n && !known; k++)
            known = same(&missing[k], p);
        n += !known;
    }
    for (int k = 0; k < n && err == PD_OK; k++)
        err = make(b, &missing[k], k + 1, n, note, user, why);
    free(missing);
    return err;
}

void cuda_rtc_close(struct pk_backend *b)
{
    while (b->rtc) {
        struct cuda_rtc *x = b->rtc;

        b->rtc = x->next;
#ifndef PK_CUDA_EMULATED
        (void)cudaLibraryUnload(x->library);
#endif
        free(x);
    }
}
