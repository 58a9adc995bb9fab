#include "kernels/backend/cpu/gemm.h"

#include <dlfcn.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

void cpu_gemm_one_thread(void)
{
    omp_set_num_threads(1);
}

static bool onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                         const float *b, int64_t ldb, bool add, float *c, int64_t ldc)
{
    return dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, add ? 1.0f : 0.0f, c,
                      ldc) == dnnl_success;
}

/* The few names of CBLAS that we use; the header would bind us to a library at link time. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
static void (*blas_sgemm)(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                          float *, int);
static void (*blas_dgemm)(int, int, int, int, int, int, double, const double *, int, const double *, int,
                          double, double *, int);

static bool openblas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                           const float *b, int64_t ldb, bool add, float *c, int64_t ldc)
{
    blas_sgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0f, a,
               (int)lda, b, (int)ldb, add ? 1.0f : 0.0f, c, (int)ldc);
    return true;
}

static bool openblas_dgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                           const double *b, int64_t ldb, bool add, double *c, int64_t ldc)
{
    blas_dgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, (int)m, (int)n, (int)k, 1.0, a,
               (int)lda, b, (int)ldb, add ? 1.0 : 0.0, c, (int)ldc);
    return true;
}

static bool openblas_found;

static void openblas_open(void)
{
    /* The serial build needs no word about threads; the others obey the variables read at load. */
    static const char *const names[] = {
        "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0",
        "libopenblas.so.0",
    };
    void (*set_threads)(int);
    void *lib = NULL;

#if defined __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        setenv("OPENBLAS_CORETYPE", "SKYLAKEX", 0);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        setenv("OPENBLAS_CORETYPE", "HASWELL", 0);
#endif
    for (size_t i = 0; !lib && i < sizeof names / sizeof names[0]; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    *(void **)&blas_sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)&blas_dgemm = dlsym(lib, "cblas_dgemm");
    *(void **)&set_threads = dlsym(lib, "openblas_set_num_threads");
    if (set_threads)
        set_threads(1);
    openblas_found = blas_sgemm && blas_dgemm;
}

const struct cpu_gemm *cpu_gemm_choose(const char *choice)
{
    static const struct cpu_gemm onednn = {"onednn", onednn_sgemm, NULL};
    static const struct cpu_gemm openblas = {"openblas", openblas_sgemm, openblas_dgemm};
    static const struct cpu_gemm own = {"own", NULL, NULL};
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (!choice || !*choice || strcmp(choice, "onednn") == 0)
        return &onednn;
    if (strcmp(choice, "own") == 0)
        return &own;
    if (strcmp(choice, "openblas") == 0) {
        pthread_once(&once, openblas_open);
        return openblas_found ? &openblas : NULL;
    }
    return NULL;
}
