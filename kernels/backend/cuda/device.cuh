/* kernels/backend/cuda/device.cuh: what kernels share, and the few rules that let the same source run on the
 * host (tests/gpu/emu, compiled by g++ with PK_CUDA_EMULATED and its own <cuda_runtime.h>, <cuda_bf16.h>):
 *
 * - Kernels are started by PK_LAUNCH, never by <<< >>>.
 * - Dynamic shared memory is taken by PK_SHARED(type, name); static by __shared__.
 * - Of the language: threadIdx .. gridDim, __syncthreads, __syncwarp, __shfl_*_sync, __ballot_sync and the
 *   like with full masks, integer atomics, __launch_bounds__, __restrict__, __ldg, the float functions of
 *   math.h and the fast intrinsics (__expf, ...).
 * - Inline assembly stands in ptx.cuh alone, in small functions, each with its meaning for the emulation
 *   beside it (mma, ldmatrix, cp.async, bulk tensor copies, mbarrier, wgmma).
 * - Blocks run in any order, in the emulation one after the other: no block waits for another.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend/cuda/cuda.h"

#ifndef PK_CUDA_EMULATED
#define PK_LAUNCH(kernel, grid, block, shared, stream, ...)                                                  \
    (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define PK_SHARED(type, name)                                                                                \
    extern __shared__ __align__(1024) unsigned char pk_shared_memory_[];                                     \
    type *const name = reinterpret_cast<type *>(pk_shared_memory_)
#endif

#define PK_WARP 32
#define PK_WARP_ALL 0xffffffffu

/* ---- elements: read and written as float ---- */

__device__ __forceinline__ float pk_float(float x)
{
    return x;
}
__device__ __forceinline__ float pk_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T> __device__ __forceinline__ T pk_narrow(float x);
template <> __device__ __forceinline__ float pk_narrow<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 pk_narrow<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* ---- sums of a warp and of a block, in a fixed order; every thread gets the result ---- */

__device__ __forceinline__ float pk_warp_sum(float x)
{
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(PK_WARP_ALL, x, d);
    return x;
}
__device__ __forceinline__ float pk_warp_max(float x)
{
    for (int d = PK_WARP / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(PK_WARP_ALL, x, d));
    return x;
}
