/* kernels/backend/cpu/attention_phi.h: the rows of phi.h as vector code: phi_NAME(s) is f, phi_NAME_df(s, v, d)
 * is f'(s) d with v = f(s). Powers are not included: the kernels unroll them by degree. */
#pragma once

#include "kernels/backend/cpu/vec.h"
#include "kernels/graph/phi.h"

INLINE vec phi_where(vec s, vec d)
{
    return vsel(s > 0, d, vzero());
}
INLINE vec phi_wave(vec s)
{
    vec f = vsin(s + (real)(M_PI / 4));

    return f * f;
}

/* clang-format off */
#define S s
#define V v
#define D d
#define NUM(x) vset((real)(x))
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define ABS(a) vabs(a)
#define EXP(a) vexp(a)
#define TANH(a) vtanh(a)
#define SIN(a) vsin(a)
#define COS(a) vcos(a)
#define SIGMOID(a) vsigmoid(a)
#define DSIGMOID(v) ((v) * (1 - (v)))
#define MAX0(a) vmax(a, vzero())
#define WHERE(a, b) phi_where(a, b)
#define WAVE(a) phi_wave(a)
#define DWAVE(a) vcos(2 * (a))
/* clang-format on */

#define PHI_ALONE(name, f, df)                                                                               \
    INLINE vec phi_##name(vec s)                                                                             \
    {                                                                                                        \
        return f;                                                                                            \
    }                                                                                                        \
    INLINE vec phi_##name##_df(vec s, vec v, vec d)                                                          \
    {                                                                                                        \
        (void)s;                                                                                             \
        (void)v;                                                                                             \
        return df;                                                                                           \
    }
#define PHI_HOMOGENEOUS PHI_ALONE
#define PHI_SUMMED PHI_ALONE
#define PHI_EXPONENTIAL PHI_ALONE
#define PHI_POWER(name, f, df)
#define PHI_ROW(constant, name, kind, f, df) PHI_##kind(name, f, df)
PK_EACH_PHI(PHI_ROW)

#undef PHI_ALONE
#undef PHI_HOMOGENEOUS
#undef PHI_SUMMED
#undef PHI_EXPONENTIAL
#undef PHI_POWER
#undef PHI_ROW
#include "kernels/graph/phi_end.h"
