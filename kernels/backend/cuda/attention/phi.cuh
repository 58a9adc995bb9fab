/* kernels/backend/cuda/attention/phi.cuh: the rows of phi.h on registers: att_phi_NAME(s) is f,
 * att_phi_NAME_df(s, v, d) is f'(s) d with v = f(s). Powers are not included: the kernels unroll them by degree. */
#pragma once

#include "kernels/backend/cuda/ptx.cuh"
#include "kernels/graph/phi.h"

__device__ __forceinline__ float att_logistic(float x)
{
    return pk_reciprocal(1.0f + __expf(-x));
}
/* 2x reduced modulo 2 pi: the fast sine has an error of 2^-21 only within one period. */
__device__ __forceinline__ float att_turn(float x)
{
    const float r = x * 0.318309886183790672f;

    return (r - rintf(r)) * 6.28318530717958648f;
}

/* clang-format off */
#define S s
#define V v
#define D d
#define NUM(x) ((float)(x))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define ABS(a) fabsf(a)
#define EXP(a) __expf(a)
#define TANH(a) tanhf(a)
#define SIN(a) sinf(a)
#define COS(a) cosf(a)
#define SIGMOID(a) att_logistic(a)
#define DSIGMOID(v) ((v) * (1.0f - (v)))
#define MAX0(a) fmaxf(a, 0.0f)
#define WHERE(a, b) ((a) > 0 ? (b) : 0.0f)
#define WAVE(a) (0.5f + 0.5f * __sinf(att_turn(a)))
#define DWAVE(a) __cosf(att_turn(a))
/* clang-format on */

#define ALONE(name, f, df)                                                                                   \
    __device__ __forceinline__ float att_phi_##name(float s)                                                 \
    {                                                                                                        \
        return f;                                                                                            \
    }                                                                                                        \
    __device__ __forceinline__ float att_phi_##name##_df(float s, float v, float d)                          \
    {                                                                                                        \
        (void)s;                                                                                             \
        (void)v;                                                                                             \
        return df;                                                                                           \
    }
#define HOMOGENEOUS ALONE
#define SUMMED ALONE
#define EXPONENTIAL ALONE
#define POWER(name, f, df)
#define ROW(constant, name, kind, f, df) kind(name, f, df)
PK_EACH_PHI(ROW)
#undef ALONE
#undef HOMOGENEOUS
#undef SUMMED
#undef EXPONENTIAL
#undef POWER
#undef ROW
#include "kernels/graph/phi_end.h"
