/* kernels/backend/cpu/matmul.h: private to matmul.c, matmul_half.c and gemv.c: one product, planned. */
#pragma once

#include <stdatomic.h>

#include "kernels/backend/cpu/ops.h"

/* Rows up to which b is read once, at memory bandwidth, instead of being packed by the GEMM library. The sums of a row
 * do not depend on the number of rows, so results of decoding are bitwise identical to unbatched ones. */
#define CPU_FEW_ROWS 16

struct cpu_matrix {
    const real *data;
    int64_t rs, cs; /* strides of rows and columns */
    bool copied;
};

struct cpu_matmul {
    struct pk_backend *b;
    const struct pk_call *c;
    int64_t m, n, k, bm, bn, blocks_m, blocks_n, batch;
    int64_t splits, split_k; /* long sums are cut: each part reads its rows once */
    real *partial;           /* (splits, m, n) when there is more than one */
    int lead;                /* leading axes */
    struct cpu_matrix x, y;
    bool ta, tb, few; /* transposed; CPU_FEW_ROWS or less */
    bool half;        /* b is bf16; read directly for few rows, else converted once */
    int64_t lda, ldb;
    enum pk_act act;
    const struct pk_view *bias, *residual;
    const struct pk_view
        *pre;               /* the product is multiplied by the slope of act at pre; NULL: act is applied */
    real *kept;             /* the pre-activation is written here too; or NULL */
    bool residual_in_place; /* the residual shares the output's memory */
    real *out;
    char *own_scratch;        /* of each thread */
    int64_t few_bn, few_cols; /* columns of one task; tasks in a row */
    struct cpu_few_column *column;
    real *temp; /* per thread: a block whose residual is still in the output */
    real *copy_x, *copy_y;
    atomic_bool failed; /* the library refused a block */
};

/* The product of a call, cut into blocks. */
void PK_FN(matmul_plan)(struct cpu_matmul *p, struct pk_backend *b, const struct pk_call *c);

/* The sums of an epilogue as a call of SUM, without workspace. */
struct cpu_matmul_sums {
    struct pk_attr attr;
    struct pk_view in;
    struct pk_call call;
};
void PK_FN(matmul_sums)(const struct pk_call *c, struct cpu_matmul_sums *s);

/* o = act(t + bias) + residual for n values of a row; bias and residual are dense or NULL. Writes the pre-activation to
 * `kept` unless that is NULL. With `pre`: o = t slope(pre). */
void PK_FN(matmul_finish_row)(enum pk_act act, int64_t n, const real *t, const real *bias,
                              const real *residual, const real *pre, real *kept, real *o);

/* Operand number `batch`; `size`: elements of one when the operand was copied. */
const real *PK_FN(matmul_operand)(const struct cpu_matmul *p, const struct pk_view *v,
                                  const struct cpu_matrix *x, int64_t size, int64_t batch);

/* The same for b, which may be bf16: the address of element 0. */
const char *PK_FN(matmul_b)(const struct cpu_matmul *p, int64_t batch);

/* Columns j .. j+n-1 of row i of matrix number `batch`: finished from t into the output. Strided bias and
 * residual go through small buffers. */
void PK_FN(matmul_finish)(const struct cpu_matmul *p, int64_t batch, int64_t i, int64_t j, int64_t n,
                          const real *t);

/* The whole product when p->few, and its scratch. */
void PK_FN(matmul_few_scratch)(struct cpu_matmul *p, struct cpu_scratch *s);
void PK_FN(matmul_few)(struct cpu_matmul *p);
