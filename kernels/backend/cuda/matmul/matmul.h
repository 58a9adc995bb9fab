/* kernels/backend/cuda/matmul/matmul.h: a matrix product with strides and epilogue, as the kernels of fallback.cu take
 * it. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_operand {
    const void *data;
    enum pk_dtype dtype;
    int64_t rs, cs;            /* strides of rows and columns, in elements */
    int64_t step[PK_MAX_RANK]; /* of the leading axes */
};

/* out (.., M, N) dense = act(a b + bias) + residual, or a b times the slope of act at pre; leading axes that
 * continue each other are one. */
struct cuda_product {
    int64_t m, n, k, batch;
    int32_t lead;
    int64_t dim[PK_MAX_RANK];
    struct cuda_operand a, b, residual; /* residual.data NULL: none, unless has_residual or slope */
    const void *bias;
    enum pk_dtype bias_dtype;
    int64_t bias_step;
    bool has_bias, has_residual, keeps;
    bool slope; /* then `residual` is pre; a product never has both */
    enum pk_act act;
    enum pk_sums sums; /* extra sums; ignored by fallback.cu */
    void *out, *kept;  /* kept: a b + bias, where keeps */
    enum pk_dtype out_dtype;
};

/* Parts of the epilogue that remain after the library's product; a bit mask. */
enum { CUDA_FINISH_ACT = 1, CUDA_FINISH_SLOPE = 2, CUDA_FINISH_RESIDUAL = 4 };

/* The whole product by polyd's own kernel, for calls that the library does not support: any strides, any mixture of
 * types. Sums over K in order. */
enum pd_err cuda_product_fallback(struct pk_backend *b, const struct cuda_product *p, struct pd_why *why);
/* out = act(from) + residual, or from times the slope, as far as `what` says. `from` is dense and may be out.
 */
enum pd_err cuda_product_finish(struct pk_backend *b, const struct cuda_product *p, const void *from,
                                enum pk_dtype from_dtype, int what, struct pd_why *why);

#ifdef __cplusplus
}
#endif
