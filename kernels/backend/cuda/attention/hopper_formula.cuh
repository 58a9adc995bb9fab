/* kernels/backend/cuda/attention/hopper_formula.cuh: formulas on sm 90: the kernels of hopper_fwd.cuh and hopper_bwd_block.cuh
 * around a formula's programs (formula.cuh), for the formulas that
 * cuda_formula_hopper_supports names (attention.h): an entry depends on its logit alone. Then G is one number of a head: it is the factor of y, and of
 * dV and dS; job.scale where F::turn_fixed. Also read by NVRTC. */
#pragma once

#include "kernels/backend/cuda/attention/formula.cuh"
#include "kernels/backend/cuda/attention/hopper_bwd_block.cuh"
#include "kernels/backend/cuda/attention/hopper_fwd.cuh"

/* F: a formula as formula.cuh has it; this one is the F of hopper.cuh. */
template <class F> struct hopper_formula {
    typedef struct form_use use;
    static constexpr bool by_head = true, strict = true;

    /* What depends on N alone is computed for every tile, so that no register keeps it through the loop over tiles. */
    static __device__ __forceinline__ struct form_head hidden(struct form_head u)
    {
        u.n = __int_as_float(pk_opaque(__float_as_int(u.n)));
        return u;
    }
    template <int n>
    static __device__ __forceinline__ void values(const struct hopper_job &j, const use &x, int h,
                                                  float (&s)[n], float tau, float /* 0 */)
    {
        const struct form_head u = hidden(form_head_of<F>(j.heads, j.d, x, h));
        const struct form_row row = {};

#pragma unroll
        for (int i = 0; i < n; i++) {
            float o[FORM_RESULTS];

            F::value(u, row, s[i] * tau, 0, 0, o);
            s[i] = o[0];
        }
    }
    template <bool summed, int n>
    static __device__ __forceinline__ void both(const struct hopper_job &j, const use &x, int h,
                                                float (&s)[n], const float (&d)[n], uint32_t (&p)[n / 2],
                                                float tau, float /* 0 */, float &)
    {
        const struct form_head u = hidden(form_head_of<F>(j.heads, j.d, x, h));
        const struct form_row row = {};

        static_assert(!summed, "G's gradient is not summed here");
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            float f[2];

#pragma unroll
            for (int e = 0; e < 2; e++) {
                float o[FORM_RESULTS];

                F::back(u, row, s[i + e] * tau, 0, d[i + e], o);
                f[e] = o[0];
                s[i + e] = o[1];
            }
            p[i / 2] = pk_pack(f[0], f[1]);
        }
    }
    static __device__ __forceinline__ float factor_y(const struct hopper_job &j, const use &x, int h)
    {
        const struct form_head u = form_head_of<F>(j.heads, j.d, x, h);
        const struct form_row row = {};
        float o[FORM_RESULTS];

        /* Computed here, what depends on N alone would be computed before the loop over tiles and take a register through
         * it. */
        if (F::turn_fixed(u))
            return hopper_scale(j, h);
        F::turn(u, row, 0, 0, 0, o);
        return o[0];
    }
    static __device__ __forceinline__ float factor_d(const struct hopper_job &j, const use &x, int h)
    {
        return factor_y(j, x, h);
    }
};

/* The kernels of one formula and shape of tiles: Y(name, threads, blocks of a multiprocessor, parameters, body), X as in
 * formula.cuh. */
#define HOPPER_FORWARD_KERNELS(X, Y)                                                                         \
    Y(hopper_forward, (forward_shape<columns, keys, groups, stages>::threads),                               \
      (forward_shape<columns, keys, groups, stages>::resident),                                              \
      (const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,                       \
       const __grid_constant__ CUtensorMap mv, const __grid_constant__ struct forward_args a,                \
       const __grid_constant__ struct form_use u),                                                           \
      (forward_block<columns, keys, groups, stages, hopper_formula<F>>(mq, mk, mv, a, u)))
#define HOPPER_BACKWARD_KERNELS(X, Y)                                                                        \
    Y(hopper_backward, (backward_shape<columns, groups>::threads),                                           \
      (backward_shape<columns, groups>::resident),                                                           \
      (const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,                       \
       const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap mdy,                      \
       const __grid_constant__ struct backward_args a, const __grid_constant__ struct form_use u),           \
      (backward_block<columns, groups, hopper_formula<F>>(mq, mk, mv, mdy, a, u)))                           \
    Y(hopper_bias, 64, 1,                                                                                    \
      (const __grid_constant__ struct backward_args a, const __grid_constant__ struct form_use u,            \
       float *to),                                                                                           \
      (backward_bias_sum<columns, groups, hopper_formula<F>>(a, u, to)))
#define HOPPER_SCALARS_KERNELS(X, Y) HOPPER_BACKWARD_KERNELS(X, Y) FORM_SCALARS_KERNELS(X)
