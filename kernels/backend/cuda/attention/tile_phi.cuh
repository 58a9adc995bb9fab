/* kernels/backend/cuda/attention/tile_phi.cuh: the rows of phi.h on the scores of a tile. */
#pragma once

#include "kernels/backend/cuda/attention/call.cuh"
#include "kernels/backend/cuda/attention/phi.cuh"
#include "kernels/backend/cuda/attention/tile.cuh"

/* x^n, n >= 1 */
__device__ __forceinline__ float att_power(float x, int n)
{
    float r = x;

    for (int i = 1; i < n; i++)
        r *= x;
    return r;
}

#define ATT_MAP(NT, x, f)                                                                                    \
    do {                                                                                                     \
        ATT_EACH(NT, n_, e_)                                                                                 \
        {                                                                                                    \
            const float v = (x)[n_][e_];                                                                     \
            (x)[n_][e_] = (f);                                                                               \
        }                                                                                                    \
    } while (0)

/* phi for rows of phi.h that need no statistics first; the caller computes the sums of normalised rows. */
template <int NT, bool POLY> __device__ __forceinline__ void att_phi(float (&x)[NT][4], const struct att &a)
{
    if (!POLY && !a.power) {
        switch (a.phi) {
#define ALONE(constant, name)                                                                                \
    case constant:                                                                                           \
        ATT_MAP(NT, x, att_phi_##name(v));                                                                   \
        break;
#define HOMOGENEOUS ALONE
#define SUMMED ALONE
#define POWER(constant, name)
#define EXPONENTIAL POWER
#define ROW(constant, name, kind, f, df) kind(constant, name)
            PK_EACH_PHI(ROW)
#undef ALONE
#undef HOMOGENEOUS
#undef SUMMED
#undef POWER
#undef EXPONENTIAL
#undef ROW
        default:
            break;
        }
        return;
    }
    switch (a.degree) {
    case 1:
        break;
    case 2:
        ATT_MAP(NT, x, v * v);
        break;
    case 3:
        ATT_MAP(NT, x, v * v * v);
        break;
    case 4:
        ATT_MAP(NT, x, (v * v) * (v * v));
        break;
    case 5:
        ATT_MAP(NT, x, (v * v) * (v * v) * v);
        break;
    case 6:
        ATT_MAP(NT, x, (v * v) * (v * v) * (v * v));
        break;
    default:
        ATT_MAP(NT, x, att_power(v, a.degree));
    }
}
