/* kernels/backend/cpu/dense.h: inputs that a kernel reads as dense memory. */
#pragma once

#include "kernels/backend/cpu/move.h"

/* Whether a view is row-major without gaps; strides of axes of extent 1 are ignored. */
static inline bool cpu_dense(const struct pk_view *v)
{
    int64_t step = 1;

    for (int i = v->shape.rank - 1; i >= 0; i--) {
        if (v->shape.dim[i] != 1 && v->stride[i] != step)
            return false;
        step *= v->shape.dim[i];
    }
    return true;
}

/* Bytes of a dense copy of `v`; 0 if it is dense already. */
static inline size_t cpu_dense_bytes(const struct pk_view *v)
{
    return cpu_dense(v) ? 0 : (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);
}

/* Replaces `v` by a dense copy in `copy`, of cpu_dense_bytes; does nothing if `copy` is NULL. */
static inline void cpu_dense_lay(struct pk_backend *b, struct pk_view *v, void *copy)
{
    if (!copy)
        return;
    cpu_copy_view(b, v, copy);
    *v = pk_view_dense(copy, v->dtype, v->shape);
}
