/* kernels/backend/cuda/attention/hopper_bwd_builtin.cuh: the gradient on sm 90 for the built-in activations: kernels and
 * their launch, for hopper_bwd.cu and hopper_bwd_short.cu. */
#pragma once

#include "kernels/backend/cuda/attention/hopper_bwd_launch.cuh"
#include "kernels/backend/cuda/attention/hopper_phi.cuh"

template <int columns, int groups>
static __global__ void __launch_bounds__(backward_shape<columns, groups>::threads,
                                         backward_shape<columns, groups>::resident)
    backward(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
             const __grid_constant__ CUtensorMap mv, const __grid_constant__ CUtensorMap mdy,
             const __grid_constant__ struct backward_args a)
{
    backward_block<columns, groups, hopper_builtin>(mq, mk, mv, mdy, a, {});
}

template <int columns, int groups>
static __global__ void backward_dbias(const __grid_constant__ struct backward_args a, float *to)
{
    backward_bias_sum<columns, groups, hopper_builtin>(a, {}, to);
}

/* The learned scale's gradient, one or one for each head, from those of all (cluster, b, h). */
void hopper_bwd_dscale(struct pk_backend *b, const struct hopper_job *j, int cluster, bool each,
                       const float *part, float *to);

template <int columns, int groups>
static enum pd_err backward_launch_of(struct pk_backend *b, const struct pk_call *c,
                                      const struct hopper_job *j, struct pd_why *why)
{
    const struct pk_attention_attr *attr = &c->attr->attention;
    int out = attr->packed ? 1 : 3;
    struct backward_launch l = {};
    enum pd_err err = backward_prepare<columns, groups>(b, c, j, &l, why);

    if (err == PD_OK)
        err = hopper_allow((const void *)backward<columns, groups>, l.shared, why);
    if (err != PD_OK)
        return err;
    if (l.plan.cluster == 1)
        PK_LAUNCH((backward<columns, groups>), dim3(l.grid), dim3(l.threads), l.shared, b->stream, l.maps[0],
                  l.maps[1], l.maps[2], l.maps[3], l.args);
    else
        PK_LAUNCH_CLUSTER((backward<columns, groups>), (unsigned)l.plan.cluster, dim3(l.grid),
                          dim3(l.threads), l.shared, b->stream, l.maps[0], l.maps[1], l.maps[2], l.maps[3],
                          l.args);
    if (attr->has_scale) {
        hopper_bwd_dscale(b, j, l.plan.cluster, c->out[out].shape.dim[0] > 1, l.args.dscale_part,
                          (float *)c->out[out].data);
        out++;
    }
    if (attr->has_bias)
        PK_LAUNCH((backward_dbias<columns, groups>), backward_bias_grid(j), dim3(64), 0, b->stream, l.args,
                  (float *)c->out[out].data);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

/* hopper_bwd_short.cu */
enum pd_err hopper_bwd_short(struct pk_backend *b, const struct pk_call *c, const struct hopper_job *j,
                             struct pd_why *why);
