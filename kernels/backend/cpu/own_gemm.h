/* kernels/backend/cpu/own_gemm.h: entries of own_gemm.c for the copy being compiled; see cpu.h. */
#pragma once

#include "kernels/backend/cpu/vec.h"

void PK_FN(own_gemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                     const void *b, int64_t ldb, bool add, void *c, int64_t ldc, void *scratch);
size_t PK_FN(own_gemm_scratch)(void);
double PK_FN(fma_peak)(int64_t turns);

/* One block in this thread, by the library or else by polyd's kernels: C (M, N) = op(A) op(B) [+ C]. False: the
 * library failed. `scratch`: block_scratch bytes per thread, a multiple of 64; 0: none is needed. b NULL: a
 * machine with default settings. */
bool PK_FN(block_product)(struct pk_backend *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                          const real *x, int64_t ldx, const real *y, int64_t ldy, bool add, real *to,
                          int64_t ldc, void *scratch);
size_t PK_FN(block_scratch)(const struct pk_backend *b);
