/* kernels/backend/cuda/rtc.cuh: what the device headers use of the C library and of CUDA's headers, for NVRTC, which is
 * given no include path: headers of a toolkit may not be there, or be of another version. */
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

#define INFINITY __int_as_float(0x7f800000)

struct __nv_bfloat16 {
    uint16_t bits;
};
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}
/* To nearest, ties to even. */
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x)
{
    __nv_bfloat16 r;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
}

/* A map of a tensor for bulk copies, as <cuda.h> has it: the driver knows what is in it. */
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};
