/* Our own GEMM: the fallback without a library and the one for f64. Blocks of A are packed into panels
 * of MR rows, blocks of B into panels of two vectors; micro.h does the arithmetic. */
#include "kernels/backend/cpu/own_gemm.h"

#include "kernels/backend/cpu/micro.h"

/* A block of KC x NC of B stays in the second-level cache, a panel of KC x two vectors in the first. */
#define KC 256
#define NC 512
#define MC 96

size_t PK_FN(own_gemm_scratch)(void)
{
    return sizeof(real) * (size_t)(KC * NC + MC * KC + MR * 2 * W + 64);
}

static void pack_b(int64_t k_count, int64_t n, const real *b, int64_t rs, int64_t cs, real *to)
{
    const int64_t nr = 2 * W;

    for (int64_t j = 0; j < n; j += nr, to += nr * k_count) {
        int64_t cols = cpu_min(nr, n - j);

        if (cs == 1) {
            for (int64_t k = 0; k < k_count; k++) {
                memcpy(to + k * nr, b + k * rs + j, (size_t)cols * sizeof(real));
                for (int64_t c = cols; c < nr; c++)
                    to[k * nr + c] = 0;
            }
        } else {
            for (int64_t c = 0; c < cols; c++)
                for (int64_t k = 0; k < k_count; k++)
                    to[k * nr + c] = b[k * rs + (j + c) * cs];
            for (int64_t c = cols; c < nr; c++)
                for (int64_t k = 0; k < k_count; k++)
                    to[k * nr + c] = 0;
        }
    }
}

void PK_FN(own_gemm)(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const void *a_, int64_t lda,
                     const void *b_, int64_t ldb, bool add, void *c_, int64_t ldc, void *scratch)
{
    const real *a = a_, *b = b_;
    const int64_t ars = ta ? 1 : lda, acs = ta ? lda : 1, brs = tb ? 1 : ldb, bcs = tb ? ldb : 1, nr = 2 * W;
    real *c = c_, *pb = scratch, *pa = pb + KC * NC, *edge = pa + MC * KC;

    if (k == 0 && !add)
        for (int64_t i = 0; i < m; i++)
            memset(c + i * ldc, 0, (size_t)n * sizeof(real));
    for (int64_t j0 = 0; j0 < n; j0 += NC) {
        int64_t nb = cpu_min(NC, n - j0);

        for (int64_t k0 = 0; k0 < k; k0 += KC) {
            int64_t kb = cpu_min(KC, k - k0);
            bool adding = add || k0 > 0;

            pack_b(kb, nb, b + k0 * brs + j0 * bcs, brs, bcs, pb);
            for (int64_t i0 = 0; i0 < m; i0 += MC) {
                int64_t mb = cpu_min(MC, m - i0);

                micro_pack(mb, kb, a + i0 * ars + k0 * acs, ars, acs, pa);
                for (int64_t j = 0; j < nb; j += nr)
                    for (int64_t i = 0; i < mb; i += MR) {
                        int64_t rows = cpu_min(MR, mb - i), cols = cpu_min(nr, nb - j);
                        real *at = c + (i0 + i) * ldc + j0 + j;

                        if (cols == nr) {
                            micro_rows(rows, 2, kb, pa + i * kb, 1, MR, pb + j * kb, nr, at, ldc, adding);
                        } else {
                            micro_rows(rows, 2, kb, pa + i * kb, 1, MR, pb + j * kb, nr, edge, nr, false);
                            for (int64_t r = 0; r < rows; r++)
                                for (int64_t x = 0; x < cols; x++)
                                    at[r * ldc + x] = edge[r * nr + x] + (adding ? at[r * ldc + x] : 0);
                        }
                    }
            }
        }
    }
}

size_t PK_FN(block_scratch)(const struct pk_backend *b)
{
#if CPU_F64
    const bool own = !b || !b->gemm->dgemm;
#else
    const bool own = b && !b->gemm->sgemm;
#endif

    return own ? (PK_FN(own_gemm_scratch)() + 63) & ~(size_t)63 : 0;
}

bool PK_FN(block_product)(struct pk_backend *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                          const real *x, int64_t ldx, const real *y, int64_t ldy, bool add, real *to,
                          int64_t ldc, void *scratch)
{
    bool done = false;

#if CPU_F64
    if (b->gemm->dgemm)
        done = b->gemm->dgemm(ta, tb, m, n, k, x, ldx, y, ldy, add, to, ldc);
#else
    if (b->gemm->sgemm)
        done = b->gemm->sgemm(ta, tb, m, n, k, x, ldx, y, ldy, add, to, ldc);
#endif
    if (!done && scratch) {
        PK_FN(own_gemm)(ta, tb, m, n, k, x, ldx, y, ldy, add, to, ldc, scratch);
        done = true;
    }
    return done;
}

double PK_FN(fma_peak)(int64_t turns)
{
    vec acc[12], x = vset((real)1.0000001), y = vset((real)1e-9);
    volatile real sink;

    for (int i = 0; i < 12; i++)
        acc[i] = vset((real)i);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            acc[i] = acc[i] * x + y;
    for (int i = 1; i < 12; i++)
        acc[0] += acc[i];
    sink = vsum(acc[0]);
    (void)sink;
    return 2.0 * 12 * (double)W * (double)turns;
}
