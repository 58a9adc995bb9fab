/* kernels/backend/cpu/gemm.h: the matrix product of one block, in one thread, from a library.
 *
 * oneDNN first (versions 2 and 3): it dispatches correctly by itself. OpenBLAS is opened at run time as the fallback and for
 * f64, with the core type named from cpuid before it loads, because the Debian 12 version runs its SSE3
 * kernels on processors that it does not know. Without either, our own kernels do the work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Row-major: C (M, N) = op(A) op(B) + (add ? C : 0); ta says that A is stored (K, M), tb B as (N, K). */
struct cpu_gemm {
    const char *name;
    bool (*sgemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, bool add, float *c, int64_t ldc);
    bool (*dgemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double *a, int64_t lda,
                  const double *b, int64_t ldb, bool add, double *c, int64_t ldc);
};

/* The library to use. `choice`: "onednn", "openblas", "own" or NULL for the best available. An entry is NULL if
 * polyd's own kernel is to be used. Returns NULL if there is no such library. */
const struct cpu_gemm *cpu_gemm_choose(const char *choice);

/* C = op(A) op(B) for two matrices of bf16 with sums in f32, by oneDNN. False: the library does not support it on this
 * processor. Its kernels are compiled at the first call of a shape and belong to the calling thread. */
bool cpu_gemm_half(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda,
                   const uint16_t *b, int64_t ldb, float *c, int64_t ldc);

/* Limits the libraries to one thread when called from this thread. */
void cpu_gemm_one_thread(void);
