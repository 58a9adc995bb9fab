/* kernels/backend/cpu/micro.h: small matrix products in registers, C (M, N) = A B [+ C].
 *
 * MR rows by two vectors of columns are accumulated in registers over the whole of K. B is (K, N) with
 * rows of whole vectors; C has rows of whole vectors. A is read element by element (broadcast), so any
 * layout will do: packed panels of MR rows, or a tile whose rows or columns lie TILE apart. */
#pragma once

#include "kernels/backend/cpu/vec.h"

#if CPU_AVX512
#define MR 12
#else
#define MR 4 /* 16 registers: 8 sums, 2 of B, 1 of A; the rest is spare */
#endif
#define TILE 64 /* queries of an attention tile: row length of its scratch */

enum micro_a {
    MICRO_PANEL, /* panels of MR rows, each (K, MR); the last panel is padded with zeros */
    MICRO_COL,   /* A[i, k] at k * TILE + i */
    MICRO_ROW,   /* A[i, k] at i * TILE + k */
    MICRO_ROW2   /* A[i, k] at i * 2 * TILE + k */
};

INLINE void micro_body(const int m, const int nv, int64_t k_count, const real *restrict a, const int64_t rs,
                       const int64_t cs, const real *restrict b, int64_t ldb, real *restrict c, int64_t ldc,
                       bool add)
{
    vec acc[MR][2];

#pragma GCC unroll 12
    for (int i = 0; i < m; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[i][v] = vzero();
    for (int64_t k = 0; k < k_count; k++) {
        vec bv[2];

#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            bv[v] = vld(b + v * W);
#pragma GCC unroll 12
        for (int i = 0; i < m; i++) {
            vec av = vset(a[i * rs]);

#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[i][v] += av * bv[v];
        }
        a += cs;
        b += ldb;
    }
#pragma GCC unroll 12
    for (int i = 0; i < m; i++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            real *p = c + i * ldc + v * W;

            vst(p, add ? vld(p) + acc[i][v] : acc[i][v]);
        }
}

#define MICRO_CASE(m)                                                                                        \
    do {                                                                                                     \
        if (nv == 2)                                                                                         \
            micro_body(m, 2, k_count, a, rs, cs, b, ldb, c, ldc, add);                                       \
        else                                                                                                 \
            micro_body(m, 1, k_count, a, rs, cs, b, ldb, c, ldc, add);                                       \
    } while (0)

/* Up to MR rows from `a` against nv <= 2 vectors. */
INLINE void micro_rows(int64_t m, int nv, int64_t k_count, const real *a, const int64_t rs, const int64_t cs,
                       const real *b, int64_t ldb, real *c, int64_t ldc, bool add)
{
#if MR == 12
    if (m == 12) {
        MICRO_CASE(12);
        return;
    }
    if (m >= 8) {
        MICRO_CASE(8);
        a += 8 * rs, c += 8 * ldc, m -= 8;
    }
#endif
    if (m >= 4) {
        MICRO_CASE(4);
        a += 4 * rs, c += 4 * ldc, m -= 4;
    }
    if (m >= 2) {
        MICRO_CASE(2);
        a += 2 * rs, c += 2 * ldc, m -= 2;
    }
    if (m)
        MICRO_CASE(1);
}

/* C (m, nv vectors) = A B. */
INLINE void micro_gemm(const enum micro_a kind, int64_t m, int64_t nv, int64_t k_count, const real *a,
                       const real *b, int64_t ldb, real *c, int64_t ldc, bool add)
{
    const int64_t rs = kind == MICRO_ROW ? TILE : kind == MICRO_ROW2 ? 2 * TILE : 1;
    const int64_t cs = kind == MICRO_PANEL ? MR : kind == MICRO_COL ? TILE : 1;

    for (int64_t i = 0; i < m; i += MR) {
        const real *ai = kind == MICRO_PANEL ? a + i * k_count : a + i * rs;

        for (int64_t v = 0; v < nv; v += 2)
            micro_rows(cpu_min(MR, m - i), (int)cpu_min(2, nv - v), k_count, ai, rs, cs, b + v * W, ldb,
                       c + i * ldc + v * W, ldc, add);
    }
}

/* Packs rows of a matrix (element (i, k) at i * rs + k * cs) into panels for MICRO_PANEL: room for
 * round_up(m, MR) * k_count elements. */
static inline void micro_pack(int64_t m, int64_t k_count, const real *a, int64_t rs, int64_t cs, real *to)
{
    for (int64_t i = 0; i < m; i += MR, to += MR * k_count) {
        int64_t rows = cpu_min(MR, m - i);
        const real *from = a + i * rs;

        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < k_count; k++)
                to[k * MR + r] = from[r * rs + k * cs];
        for (int64_t r = rows; r < MR; r++)
            for (int64_t k = 0; k < k_count; k++)
                to[k * MR + r] = 0;
    }
}
