/* kernels/backend/cuda/move/move.h: copies of views, used inside other ops. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A dense copy of a view, cast to `dtype`, to memory that does not overlap it. Enqueued on b->stream. */
enum pd_err cuda_copy_view(struct pk_backend *b, const struct pk_view *from, void *to, enum pk_dtype dtype,
                           struct pd_why *why);

#ifdef __cplusplus
}
#endif
