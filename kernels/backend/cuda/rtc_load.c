/* Compiled formulas on a device: one library for each plan, arithmetic and direction, until the back end is closed. */
#include "kernels/backend/cuda/rtc.h"

#ifdef PK_CUDA_EMULATED /* formula.cu interprets plans there */
void cuda_rtc_close(struct pk_backend *b)
{
    (void)b;
}
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/cuda/attention/formula.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

struct cuda_rtc {
    struct cuda_rtc *next;
    struct pk_formula_plan plan;
    const char *math;
    int head;
    enum cuda_formula_part part;
    cudaLibrary_t library;
};

static enum pd_err load(struct pk_backend *b, struct cuda_rtc *x, struct pd_why *why)
{
    static const char *const parts[] = {"the forward pass", "gradients", "diagnostics"};
    const int64_t from_us = pd_clock_mono_us();
    struct pd_buf source, code;
    char line[160];
    bool cached = false;
    enum pd_err err;

    pd_buf_init(&source, 0);
    pd_buf_init(&code, 0);
    cuda_formula_source(&x->plan, x->math, x->head, x->part, &source);
    err = pd_buf_err(&source);
    if (err == PD_OK)
        err = cuda_rtc_compile(source.data, b->sm, b->host ? b->host->cache_dir : NULL, &code, &cached, why);
    else
        err = pd_fail(why, err, "no memory for a formula's source");
    if (err == PD_OK) {
        const cudaError_t error = cudaLibraryLoadData(&x->library, code.data, NULL, NULL, 0, NULL, NULL, 0);

        if (error != cudaSuccess)
            err = cuda_fail(why, error, "loading a compiled formula");
    }
    if (err == PD_OK && b->host && b->host->log) {
        snprintf(line, sizeof line, "formula: kernels of %s, %s heads of %d, %s in %.2f s", parts[x->part],
                 x->math, x->head, cached ? "found" : "compiled",
                 (double)(pd_clock_mono_us() - from_us) / 1e6);
        b->host->log(b->host->user, PD_LOG_INFO, line);
    }
    pd_buf_done(&source);
    pd_buf_done(&code);
    return err;
}

enum pd_err cuda_rtc_formula(struct pk_backend *b, const struct pk_formula_plan *plan, const char *math,
                             int head, enum cuda_formula_part part, const char *name, const void **ret,
                             struct pd_why *why)
{
    struct cuda_rtc *x;
    cudaKernel_t kernel;
    enum pd_err err;

    for (x = b->rtc; x; x = x->next)
        if (x->math == math && x->head == head && x->part == part &&
            memcmp(&x->plan, plan, sizeof *plan) == 0)
            break;
    if (!x) {
        x = calloc(1, sizeof *x);
        if (!x)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a compiled formula");
        x->plan = *plan;
        x->math = math;
        x->head = head;
        x->part = part;
        err = load(b, x, why);
        if (err != PD_OK) {
            free(x);
            return err;
        }
        x->next = b->rtc;
        b->rtc = x;
    }
    PK_CUDA_TRY(cudaLibraryGetKernel(&kernel, x->library, name));
    *ret = (const void *)kernel;
    return PD_OK;
}

void cuda_rtc_close(struct pk_backend *b)
{
    while (b->rtc) {
        struct cuda_rtc *x = b->rtc;

        b->rtc = x->next;
        (void)cudaLibraryUnload(x->library);
        free(x);
    }
}
#endif
