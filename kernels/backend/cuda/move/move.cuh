/* kernels/backend/cuda/move/move.cuh: helpers of kernels that move elements. A thread moves EACH units of one size, a
 * block's width apart, and loads all of them before it stores the first. */
#pragma once

#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define EACH 4 /* units of one thread */

static inline unsigned blocks_of(int64_t units, int64_t per_block)
{
    return (unsigned)cuda_div_up(units, per_block);
}

/* kernel<unit> of so many bytes. Needs `b`. */
#define LAUNCH_BY_UNIT(bytes, kernel, grid, block, ...)                                                      \
    do {                                                                                                     \
        if ((bytes) == 16)                                                                                   \
            PK_LAUNCH(kernel<cuda_quad>, grid, block, 0, b->stream, __VA_ARGS__);                            \
        else if ((bytes) == 4)                                                                               \
            PK_LAUNCH(kernel<uint32_t>, grid, block, 0, b->stream, __VA_ARGS__);                             \
        else if ((bytes) == 2)                                                                               \
            PK_LAUNCH(kernel<uint16_t>, grid, block, 0, b->stream, __VA_ARGS__);                             \
        else                                                                                                 \
            PK_LAUNCH(kernel<uint8_t>, grid, block, 0, b->stream, __VA_ARGS__);                              \
    } while (0)

/* The bytes of v as an element of t, repeated. */
static inline uint32_t pattern_of(enum pk_dtype t, double v)
{
    uint32_t bits;
    float f = (float)v;

    switch (t) {
    case PK_F32:
        memcpy(&bits, &f, sizeof bits);
        return bits;
    case PK_BF16: /* to nearest, ties to even; a NaN stays one */
        memcpy(&bits, &f, sizeof bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            bits |= 0x00400000u;
        else
            bits += 0x7fffu + (bits >> 16 & 1u);
        return bits >> 16 | (bits & 0xffff0000u);
    case PK_I32:
        return v != v               ? 0u
               : v >= 2147483647.0  ? 0x7fffffffu
               : v <= -2147483648.0 ? 0x80000000u
                                    : (uint32_t)(int32_t)v;
    default:
        return 0x01010101u * (v != v || v <= 0 ? 0u : v >= 255 ? 255u : (uint32_t)v);
    }
}
