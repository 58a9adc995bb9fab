/* kernels/backend/cuda/attention/hopper_phi.cuh: phi and its derivative on the registers of sm 90's
 * attention.
 *
 * Powers are unrolled by degree. Rows of phi.h are included if they need no sum over the row of A:
 * hopper_phi_NAME(s) and hopper_phi_NAME_df(s, v, d) as in phi.cuh; for rows that are not homogeneous also
 * hopper_phi_NAME_fine, with a small relative error, for logits biased far down (-ln n). */
#pragma once

#include "kernels/backend/cuda/attention/hopper.cuh"
#include "kernels/backend/cuda/attention/phi.cuh"
#include "kernels/graph/phi.h"

/* phi, as kernels switch on it: 1 .. 6 are x^1 .. x^6, then two for each row of phi.h. */
#define HOPPER_POWERS 6
#define HOPPER_ROW(phi) (HOPPER_POWERS + 1 + 2 * (int)(phi))
#define HOPPER_FINE(phi) (HOPPER_ROW(phi) + 1)

/* By tanh.approx: absolute error up to 2^-12. */
__device__ __forceinline__ float hopper_logistic(float x)
{
    return fmaf(pk_tanh(0.5f * x), 0.5f, 0.5f);
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
#define SIN(a) sinf(a)
#define COS(a) cosf(a)
#define DSIGMOID(v) ((v) - (v) * (v))
#define MAX0(a) fmaxf(a, 0.0f)
#define WAVE(a) (0.5f + 0.5f * __sinf(att_turn(a)))
#define DWAVE(a) __cosf(att_turn(a))
#define WHERE(a, b) (((a) > 0.0f ? 1.0f : 0.0f) * (b))
/* clang-format on */

#define FUNCTIONS(name, f, df)                                                                               \
    __device__ __forceinline__ float hopper_phi_##name(float s)                                              \
    {                                                                                                        \
        return f;                                                                                            \
    }                                                                                                        \
    __device__ __forceinline__ float hopper_phi_##name##_df(float s, float v, float d)                       \
    {                                                                                                        \
        (void)s;                                                                                             \
        (void)v;                                                                                             \
        return df;                                                                                           \
    }
#define NOT(name, f, df)
#define POWER NOT
#define SUMMED NOT
#define EXPONENTIAL NOT

#define TANH(a) pk_tanh(a)
#define SIGMOID(a) hopper_logistic(a)
#define ALONE(name, f, df) FUNCTIONS(name, f, df)
#define HOMOGENEOUS ALONE
#define ROW(constant, name, kind, f, df) kind(name, f, df)
PK_EACH_PHI(ROW)
#undef TANH
#undef SIGMOID
#undef HOMOGENEOUS
#undef ROW

#define TANH(a) tanhf(a)
#define SIGMOID(a) att_logistic(a)
#define HOMOGENEOUS NOT
#define ROW(constant, name, kind, f, df) kind(name##_fine, f, df)
PK_EACH_PHI(ROW)
#undef FUNCTIONS
#undef NOT
#undef POWER
#undef SUMMED
#undef EXPONENTIAL
#undef ALONE
#undef HOMOGENEOUS
#undef ROW
#include "kernels/graph/phi_end.h"

#define HOPPER_EACH(expr)                                                                                    \
    do {                                                                                                     \
        _Pragma("unroll") for (int i = 0; i < n; i++)                                                        \
        {                                                                                                    \
            const float x = s[i];                                                                            \
            s[i] = (expr);                                                                                   \
        }                                                                                                    \
    } while (0)

/* In place. tau, add: of what is not homogeneous where not affine, 1 and 0 where affine. */
template <int n> __device__ __forceinline__ void hopper_phi(int phi, float (&s)[n], float tau, float add)
{
    switch (phi) {
    case 1:
        break;
    case 2:
        HOPPER_EACH(x * x);
        break;
    case 3:
        HOPPER_EACH(x * x * x);
        break;
    case 4:
        HOPPER_EACH((x * x) * (x * x));
        break;
    case 5:
        HOPPER_EACH((x * x) * (x * x) * x);
        break;
    case 6:
        HOPPER_EACH((x * x * x) * (x * x * x));
        break;
#define ALONE(phi, name)                                                                                     \
    case HOPPER_ROW(phi):                                                                                    \
        HOPPER_EACH(hopper_phi_##name(fmaf(x, tau, add)));                                                   \
        break;                                                                                               \
    case HOPPER_FINE(phi):                                                                                   \
        HOPPER_EACH(hopper_phi_##name##_fine(fmaf(x, tau, add)));                                            \
        break;
#define HOMOGENEOUS(phi, name)                                                                               \
    case HOPPER_ROW(phi):                                                                                    \
        HOPPER_EACH(hopper_phi_##name(x));                                                                   \
        break;
#define NOT(phi, name)
#define POWER NOT
#define SUMMED NOT
#define EXPONENTIAL NOT
#define ROW(constant, name, kind, f, df) kind(constant, name)
        PK_EACH_PHI(ROW)
    default:
        break;
    }
}

/* From x (s) and dP (d) of one tile: P = phi(x), narrowed to pairs, goes to p; G = phi'(x) dP but for the
 * degree to s; the sum of P dP is added to `sum` where `summed`. One pass, so that registers of d are given up on the way.
 */
#define HOPPER_BOTH(setup, value, gradient)                                                                  \
    do {                                                                                                     \
        _Pragma("unroll") for (int i = 0; i < n; i += 2)                                                     \
        {                                                                                                    \
            float f[2];                                                                                      \
                                                                                                             \
            _Pragma("unroll") for (int e = 0; e < 2; e++)                                                    \
            {                                                                                                \
                const float x = s[i + e], w = d[i + e];                                                      \
                setup;                                                                                       \
                f[e] = (value);                                                                              \
                if constexpr (summed)                                                                        \
                    sum = fmaf(f[e], w, sum);                                                                \
                s[i + e] = (gradient);                                                                       \
            }                                                                                                \
            p[i / 2] = pk_pack(f[0], f[1]);                                                                  \
        }                                                                                                    \
    } while (0)

template <bool summed, int n>
__device__ __forceinline__ void hopper_phi_both(int phi, float (&s)[n], const float (&d)[n],
                                                uint32_t (&p)[n / 2], float tau, float add, float &sum)
{
    switch (phi) {
    case 1:
        HOPPER_BOTH((void)0, x, w);
        break;
    case 2:
        HOPPER_BOTH((void)0, x * x, x * w);
        break;
    case 3:
        HOPPER_BOTH(const float v = x * x, v * x, v * w);
        break;
    case 4:
        HOPPER_BOTH(const float v = x * x * x, v * x, v * w);
        break;
    case 5:
        HOPPER_BOTH(const float v = (x * x) * (x * x), v * x, v * w);
        break;
    case 6:
        HOPPER_BOTH(const float v = (x * x) * (x * x) * x, v * x, v * w);
        break;
#undef ALONE
#undef HOMOGENEOUS
#define BOTH(name, at)                                                                                       \
    HOPPER_BOTH(const float u = (at);                                                                        \
                const float v = hopper_phi_##name(u), v, hopper_phi_##name##_df(u, v, w))
#define ALONE(phi, name)                                                                                     \
    case HOPPER_ROW(phi):                                                                                    \
        BOTH(name, fmaf(x, tau, add));                                                                       \
        break;                                                                                               \
    case HOPPER_FINE(phi):                                                                                   \
        BOTH(name##_fine, fmaf(x, tau, add));                                                                \
        break;
#define HOMOGENEOUS(phi, name)                                                                               \
    case HOPPER_ROW(phi):                                                                                    \
        BOTH(name, x);                                                                                       \
        break;
        PK_EACH_PHI(ROW)
    default:
        break;
    }
}
#undef BOTH
#undef NOT
#undef POWER
#undef SUMMED
#undef EXPONENTIAL
#undef ALONE
#undef HOMOGENEOUS
#undef ROW

/* The activations of phi.h as hopper.cuh wants them; j.phi says which. */
struct hopper_builtin {
    struct use {
    };
    static constexpr bool by_head = false, strict = false;

    template <int n>
    static __device__ __forceinline__ void values(const struct hopper_job &j, const struct use &, int,
                                                  float (&s)[n], float tau, float add)
    {
        hopper_phi(j.phi, s, tau, add);
    }
    template <bool summed, int n>
    static __device__ __forceinline__ void both(const struct hopper_job &j, const struct use &, int,
                                                float (&s)[n], const float (&d)[n], uint32_t (&p)[n / 2],
                                                float tau, float add, float &sum)
    {
        hopper_phi_both<summed>(j.phi, s, d, p, tau, add, sum);
    }
    static __device__ __forceinline__ float factor_y(const struct hopper_job &j, const struct use &, int h)
    {
        return j.of_y * hopper_scale(j, h);
    }
    static __device__ __forceinline__ float factor_d(const struct hopper_job &j, const struct use &, int h)
    {
        return j.of_d * hopper_scale(j, h);
    }
};
