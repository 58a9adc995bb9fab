#include "kernels/graph/tensor.h"

#include <inttypes.h>
#include <stdio.h>

size_t pk_dtype_size(enum pk_dtype dtype)
{
    static const uint8_t size[PK_DTYPE_COUNT] = {
        [PK_F32] = 4, [PK_F64] = 8, [PK_BF16] = 2, [PK_I32] = 4, [PK_U8] = 1};

    return (unsigned)dtype < PK_DTYPE_COUNT ? size[dtype] : 0;
}

const char *pk_dtype_name(enum pk_dtype dtype)
{
    static const char *const name[PK_DTYPE_COUNT] = {
        [PK_F32] = "f32", [PK_F64] = "f64", [PK_BF16] = "bf16", [PK_I32] = "i32", [PK_U8] = "u8"};

    return (unsigned)dtype < PK_DTYPE_COUNT ? name[dtype] : "unknown";
}

int64_t pk_shape_count(const struct pk_shape *s)
{
    int64_t n = 1;

    for (int32_t i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

bool pk_shape_equal(const struct pk_shape *a, const struct pk_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

const char *pk_shape_text(const struct pk_shape *s, char *out, size_t size)
{
    size_t at = 0;

    if (!size)
        return out;
    out[0] = '\0';
    for (int32_t i = 0; i < s->rank && at + 1 < size; i++) {
        int n = snprintf(out + at, size - at, "%s%" PRId64, i ? ", " : "(", s->dim[i]);

        at += n > 0 ? (size_t)n : 0;
    }
    if (at + 1 < size)
        snprintf(out + at, size - at, s->rank ? ")" : "()");
    return out;
}

struct pk_view pk_view_dense(void *data, enum pk_dtype dtype, struct pk_shape shape)
{
    struct pk_view v = {.data = data, .dtype = dtype, .shape = shape};
    int64_t step = 1;

    for (int32_t i = shape.rank; i-- > 0;) {
        v.stride[i] = step;
        step *= shape.dim[i];
    }
    return v;
}

bool pk_view_is_dense(const struct pk_view *v)
{
    int64_t step = 1;

    for (int32_t i = v->shape.rank; i-- > 0;) {
        if (v->shape.dim[i] != 1 && v->stride[i] != step)
            return false;
        step *= v->shape.dim[i];
    }
    return true;
}
