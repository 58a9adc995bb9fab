/* kernels/backend/cuda/attention/attention.h: which kernels run attention.
 *
 * The entries of the table are those of attention.cu, bwd.cu, stats.cu and
 * state.cu (cuda.h declares them). ATTENTION and ATTENTION_BWD are handed to hopper*.cu
 * where cuda_attention_hopper_supports says so; everything else runs here, on any
 * device from sm 80 on: tiles of mma.sync for bf16, and for f32 where b->math is TF32; sums of products in
 * f32 otherwise.
 *
 * The answers depend only on b and on the shapes, dtypes and attributes of the call (b may be NULL, data pointers are
 * ignored), so that a plan made without a device is valid on it. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest head dimension that any attention kernel supports. */
#define CUDA_ATTENTION_HEAD_MOST 256

/* ---- hopper*.cu: WGMMA and bulk copies, only sm 90 ---- */

/* Whether the kernels for sm 90 run this ATTENTION or ATTENTION_BWD (c->op). False if they were not compiled. */
bool cuda_attention_hopper_supports(const struct pk_backend *b, const struct pk_call *c);
/* The same of FORMULA, or of dq, dk, dv and the gradient of the bias of FORMULA_BWD: an entry of A must be a function of its
 * logit, of numbers of the head and of scalars; going back, each scalar must be a factor of the whole. */
bool cuda_formula_hopper_supports(const struct pk_backend *b, const struct pk_call *c);
/* Either op; only if cuda_attention_hopper_supports. */
size_t cuda_attention_hopper_workspace(const struct pk_backend *b, const struct pk_call *c);
enum pd_err cuda_attention_hopper(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
enum pd_err cuda_attention_hopper_bwd(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);

#ifdef __cplusplus
}
#endif
