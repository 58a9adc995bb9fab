/* kernels/backend/cuda/matmul/plan.h: cuBLASLt objects and algorithm of a product, made once and looked up by key.
 *
 * A plan has one or two variants of a product: SIMPLE, with epilogues that every algorithm has, the rest being done by
 * polyd's kernels; and FUSED, with every epilogue that the library supports: pre-activation as auxiliary output, slope
 * of the activation, sums of an operand. The variant is chosen by timing, like the algorithm: the library may run a
 * fused epilogue as a second kernel. */
#pragma once

#include <cublasLt.h>

#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/matmul/matmul.h"

struct cuda_lt_key { /* compared bytewise: cleared before it is filled */
    int64_t m, n, k, batch;
    int64_t lda, ldb, ldc, ldx; /* of a, b, residual, and of the auxiliary matrix */
    int64_t step_a, step_b, step_c, step_x;
    int64_t workspace;
    int32_t in, out; /* enum pk_dtype */
    int32_t ta, tb;  /* a, b are transposed in memory */
    int32_t residual, epilogue;
    int32_t fused; /* the epilogue of FUSED; 0: there is no such variant */
    int32_t math;
    int32_t align_a, align_b, align_c, align_d, align_bias, align_x;
};

enum { CUDA_LT_SIMPLE, CUDA_LT_FUSED, CUDA_LT_WAYS };

struct cuda_lt_plan {
    struct cuda_lt_key key;
    bool used, fallback;                        /* fallback: the library does not support this key */
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

/* Runs the kernels that a variant needs after the library, for timing: `trial` has the call's pointers, except d, aux
 * and sums, which are in memory of the trial. */
typedef enum pd_err cuda_lt_rest_fn(void *user, int way, const struct cuda_lt_run *trial, struct pd_why *why);

/* The plan of a key; a new one is created and its algorithm chosen. Borrowed until the next call. */
enum pd_err cuda_lt_plan_of(struct pk_backend *b, const struct cuda_lt_key *k, const struct cuda_lt_run *r,
                            cuda_lt_rest_fn *rest, void *user, const struct cuda_lt_plan **ret,
                            struct pd_why *why);
/* Enqueues the product by the chosen variant. */
enum pd_err cuda_lt_start(struct pk_backend *b, const struct cuda_lt_plan *p, const struct cuda_lt_run *r,
                          struct pd_why *why);
