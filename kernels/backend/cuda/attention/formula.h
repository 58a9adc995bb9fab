/* kernels/backend/cuda/attention/formula.h: the kernels of a formula, compiled while a run is set up. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/base/buf.h"
#include "kernels/formula/formula.h"

/* formula_source.c: appends the plan as CUDA C: the type `form_formula` that formula.cuh is instantiated with. Only numbers
 * and names of polyd's own are printed, nothing of the text as typed. */
void cuda_formula_type(const struct pk_formula_plan *plan, struct pd_buf *out);

/* The kernels of one op, which are compiled together: FORM_FORWARD_KERNELS and so on of formula.cuh and formula_stats.cuh. */
enum cuda_formula_part { CUDA_FORMULA_FORWARD, CUDA_FORMULA_BACKWARD, CUDA_FORMULA_STATS };
#define CUDA_FORMULA_PARTS 3

/* formula.cu: how many kernels a part has. */
int cuda_formula_kernels(enum cuda_formula_part part);

/* The same with these kernels, as C symbols formula_NAME: the whole source for NVRTC. math: a type of math.cuh; head:
 * channels of a block, 64 or 128. */
void cuda_formula_source(const struct pk_formula_plan *plan, const char *math, int head,
                         enum cuda_formula_part part, struct pd_buf *out);

#ifdef __cplusplus
}
#endif
