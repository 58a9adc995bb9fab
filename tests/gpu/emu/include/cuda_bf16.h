/* bfloat16 as CUDA spells it, in plain C++: see ../README.md. */
#pragma once

#include <cuda_runtime.h>

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    inline __nv_bfloat16(float x);
    inline operator float() const;
};
typedef __nv_bfloat16 nv_bfloat16;
struct __nv_bfloat16_raw {
    unsigned short x;
};

static inline float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}

/* Nearest even; a NaN becomes 0x7fff, as the instruction has it. */
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    unsigned u = __float_as_uint(x);
    __nv_bfloat16 r;

    if ((u & 0x7fffffffu) > 0x7f800000u)
        r.bits = 0x7fff;
    else
        r.bits = (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    return r;
}

inline __nv_bfloat16::__nv_bfloat16(float x) : bits(__float2bfloat16_rn(x).bits)
{
}

inline __nv_bfloat16::operator float() const
{
    return __bfloat162float(*this);
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    __nv_bfloat16 r;

    r.bits = x;
    return r;
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;

    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b)
    {
    }
};
typedef __nv_bfloat162 nv_bfloat162;

static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162(__float2bfloat16_rn(a), __float2bfloat16_rn(b));
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 a)
{
    return __floats2bfloat162_rn(a.x, a.y);
}
static inline __nv_bfloat162 __float2bfloat162_rn(float a)
{
    return __floats2bfloat162_rn(a, a);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 a)
{
    return make_float2(__bfloat162float(a.x), __bfloat162float(a.y));
}
static inline float __low2float(__nv_bfloat162 a)
{
    return __bfloat162float(a.x);
}
static inline float __high2float(__nv_bfloat162 a)
{
    return __bfloat162float(a.y);
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a)
{
    return a.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a)
{
    return a.y;
}
