/* kernels/backend/cuda/device.cuh: helpers of kernels, and the rules by which the same source runs on the host
 * (tests/gpu/emu, compiled by g++ with PK_CUDA_EMULATED and its own <cuda_runtime.h>, <cuda_bf16.h>):
 *
 * - Kernels are started by PK_LAUNCH, never by <<< >>>.
 * - Blocks that run together (a cluster of sm 90, along x) are started by PK_LAUNCH_CLUSTER; they have no
 *   static shared memory.
 * - Dynamic shared memory is taken by PK_SHARED(type, name); static by __shared__.
 * - Of the language: threadIdx .. gridDim, __syncthreads, __syncwarp, __shfl_*_sync, __ballot_sync and the
 *   like with full masks, integer atomics, __launch_bounds__, __restrict__, __ldg, the float functions of
 *   math.h and the fast intrinsics (__expf, ...).
 * - Inline assembly is only in ptx.cuh and ptx_hopper.cuh, in small functions, each with its implementation for the
 *   emulation (mma, ldmatrix, cp.async, bulk tensor copies, mbarrier, wgmma).
 * - Blocks run in any order, in the emulation one after the other: no block waits for another.
 */
#pragma once

#ifdef __CUDACC_RTC__
#include "kernels/backend/cuda/rtc.cuh"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/backend/cuda/cuda.h"
#endif

#if !defined PK_CUDA_EMULATED && !defined __CUDACC_RTC__
#define PK_LAUNCH(kernel, grid, block, shared, stream, ...)                                                  \
    (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#define PK_LAUNCH_CLUSTER(kernel, cluster, grid, block, shared, stream, ...)                                 \
    pk_launch_cluster((kernel), (cluster), (grid), (block), (shared), (stream), __VA_ARGS__)
template <typename... P>
static inline void pk_launch_cluster(void (*kernel)(P...), unsigned cluster, dim3 grid, dim3 block,
                                     size_t shared, cudaStream_t stream, P... args)
{
    cudaLaunchAttribute blocks = {};
    cudaLaunchConfig_t config = {};

    blocks.id = cudaLaunchAttributeClusterDimension;
    blocks.val.clusterDim.x = cluster;
    blocks.val.clusterDim.y = blocks.val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &blocks;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, args...); /* cudaGetLastError has it, as of <<< >>> */
}
#endif
#ifndef PK_CUDA_EMULATED
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
