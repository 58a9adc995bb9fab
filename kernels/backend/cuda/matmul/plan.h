/* kernels/backend/cuda/matmul/plan.h: what a product needs of cuBLASLt, made once and found again by its key.
 *
 * A plan has one or two ways to do a product: SIMPLE, with the epilogues that every algorithm has, what is
 * left being done by kernels of ours; and FUSED, with all that the library can do at once: what the
 * activation is applied to as an auxiliary output, its slope, sums of an operand. Which is taken is measured
 * like the algorithm: a library may well do in two kernels of its own what it promises in one. */
#pragma once

#include <cublasLt.h>

#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/matmul/matmul.h"

struct cuda_lt_key { /* compared bytewise: cleared before it is filled */
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc, ldx; /* of our a, b, residual, and of what goes in or out besides */
    int64_t step_a, step_b, step_c, step_x;
    int64_t workspace;
    int32_t in, out; /* enum pk_dtype */
    int32_t ta, tb;  /* our a, b lie transposed */
    int32_t residual, epilogue;
    int32_t fused; /* the epilogue of the other way; 0: there is none */
    int32_t math;
    int32_t align_a, align_b, align_c, align_d, align_bias, align_x;
};

enum { CUDA_LT_SIMPLE, CUDA_LT_FUSED, CUDA_LT_WAYS };

struct cuda_lt_plan {
    struct cuda_lt_key key;
    bool used, fallback;                        /* fallback: the library has nothing for this key */
    int32_t way;                                /* that was chosen */
    cublasLtMatmulDesc_t desc[CUDA_LT_WAYS];    /* FUSED: NULL if there is none */
    cublasLtMatrixLayout_t first, second, c, d; /* of the library's operands */
    cublasLtMatmulAlgo_t algo;
};

/* One call's pointers. */
struct cuda_lt_run {
    const void *a, *b, *c, *bias;
    void *d[CUDA_LT_WAYS], *workspace;
    void *aux, *sums; /* of FUSED */
};

/* What a way leaves to be done, into memory of its own: `trial` are the same pointers, but for d, aux and
 * sums, which are of that memory. For measuring. */
typedef enum pd_err cuda_lt_rest_fn(void *user, int way, const struct cuda_lt_run *trial, struct pd_why *why);

/* The plan of a key, made and chosen for if it is new. Borrowed until the next. */
enum pd_err cuda_lt_plan_of(struct pk_backend *b, const struct cuda_lt_key *k, const struct cuda_lt_run *r,
                            cuda_lt_rest_fn *rest, void *user, const struct cuda_lt_plan **ret,
                            struct pd_why *why);
/* Enqueues the product itself, by the chosen way. */
enum pd_err cuda_lt_start(struct pk_backend *b, const struct cuda_lt_plan *p, const struct cuda_lt_run *r,
                          struct pd_why *why);
