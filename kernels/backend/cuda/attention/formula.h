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

/* The kernels of one op, which are compiled together: FORM_FORWARD_KERNELS and so on of formula.cuh and formula_stats.cuh; those
 * of sm 90, HOPPER_FORWARD_KERNELS and so on, of hopper_formula.cuh. */
enum cuda_formula_part {
    CUDA_FORMULA_FORWARD,
    CUDA_FORMULA_BACKWARD,
    CUDA_FORMULA_STATS,
    CUDA_FORMULA_HOPPER_FORWARD,
    CUDA_FORMULA_HOPPER_BACKWARD,
    CUDA_FORMULA_HOPPER_SCALARS /* the gradient of a formula with scalars */
};
#define CUDA_FORMULA_PARTS 6

/* Template arguments of a kernel for sm 90 (hopper_fwd.cuh, hopper_bwd.cuh, which has no stages). Zeros: of another one. */
struct cuda_tiles {
    int columns, keys, groups, stages;
};

/* formula.cu: how many kernels a part has. */
int cuda_formula_kernels(enum cuda_formula_part part);

/* Whether `turn`, the plan's program of G, reads only numbers that are known when a call is enqueued: no scalar, no head, nothing
 * of a row. */
bool cuda_formula_turn_fixed(const struct pk_formula_plan *plan);

struct cuda_program; /* rtc.h */

/* The same with the kernels of a program, as C symbols formula_NAME: the whole source for NVRTC. */
void cuda_formula_source(const struct cuda_program *p, struct pd_buf *out);

#ifdef __cplusplus
}
#endif
