/* The smallest kernel: if it loads, this plug-in has code for the device. */
#include "kernels/backend/cuda/backend.h"
#include "kernels/backend/cuda/device.cuh"

#ifndef POLYD_CUDA_ARCHS
#define POLYD_CUDA_ARCHS "the host"
#endif

static __global__ void probe_kernel(uint32_t *out)
{
    *out = 0;
}

extern "C" enum pd_err cuda_probe(struct pd_why *why)
{
    struct cudaFuncAttributes attr;
    cudaError_t error = cudaFuncGetAttributes(&attr, (const void *)probe_kernel);

    if (error == cudaSuccess)
        return PD_OK;
    (void)cudaGetLastError();
    return pd_fail(why, PD_ERR_UNSUPPORTED, "this build of polyd has no code for the GPU (it has: %s): %s",
                   POLYD_CUDA_ARCHS, cudaGetErrorString(error));
}
