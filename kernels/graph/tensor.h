/* kernels/graph/tensor.h: element types and strided views of memory.
 *
 * Rows are tokens; shapes are written in the order of their axes, last axis fastest:
 * (B, N, D). A view owns nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PK_MAX_RANK 8

enum pk_dtype {
    PK_F32,  /* float */
    PK_F64,  /* double: the reference on the CPU */
    PK_BF16, /* for storage; arithmetic is in f32 */
    PK_I32,
    PK_U8, /* bytes and masks: 0 or 1 */
    PK_DTYPE_COUNT
};

/* Bytes of one element. */
size_t pk_dtype_size(enum pk_dtype dtype);
/* "f32", "f64", ...; static. */
const char *pk_dtype_name(enum pk_dtype dtype);
static inline bool pk_dtype_is_float(enum pk_dtype dtype)
{
    return dtype == PK_F32 || dtype == PK_F64 || dtype == PK_BF16;
}

/* A shape without memory. Rank 0 is a scalar (one element). Extents are >= 0. */
struct pk_shape {
    int32_t rank;
    int64_t dim[PK_MAX_RANK];
};

/* Builds a shape from its extents: PK_SHAPE(b, n, d). */
#define PK_SHAPE(...)                                                                                        \
    ((struct pk_shape){.rank = (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                \
                       .dim = {__VA_ARGS__}})

/* Number of elements. */
int64_t pk_shape_count(const struct pk_shape *s);
bool pk_shape_equal(const struct pk_shape *a, const struct pk_shape *b);
/* Writes "(2, 3, 64)" into `out`; returns it. */
const char *pk_shape_text(const struct pk_shape *s, char *out, size_t size);

/* A tensor in memory. Strides are in elements; 0 repeats an axis (broadcast).
 * `data` is borrowed. */
struct pk_view {
    void *data;
    enum pk_dtype dtype;
    struct pk_shape shape;
    int64_t stride[PK_MAX_RANK];
};

/* A dense row-major view of `data`. */
struct pk_view pk_view_dense(void *data, enum pk_dtype dtype, struct pk_shape shape);
/* Whether the elements are contiguous in row-major order (axes of extent 1 are ignored). */
bool pk_view_is_dense(const struct pk_view *v);
