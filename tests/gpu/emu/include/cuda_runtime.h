/* CUDA C++ as far as polyd's kernels use it, for g++: see ../README.md. */
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <math.h>

#include "emu.h"

#define __host__
#define __device__
#define __global__
#define __constant__ static const
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif
/* One block runs at a time: its shared memory is memory of the program. The section is filled with NaN before
 * every block, as far as g++ puts a variable there (it does not for those of templates). */
#define __shared__ static __attribute__((section("pk_emu_shared")))

/* ---- vectors ---- */

#define PK_EMU_VECTOR(type, name, align2, align4)                                                            \
    struct name##1                                                                                           \
    {                                                                                                        \
        type x;                                                                                              \
    };                                                                                                       \
    struct alignas(align2) name##2                                                                           \
    {                                                                                                        \
        type x, y;                                                                                           \
    };                                                                                                       \
    struct name##3                                                                                           \
    {                                                                                                        \
        type x, y, z;                                                                                        \
    };                                                                                                       \
    struct alignas(align4) name##4                                                                           \
    {                                                                                                        \
        type x, y, z, w;                                                                                     \
    };                                                                                                       \
    static inline name##2 make_##name##2(type x, type y)                                                     \
    {                                                                                                        \
        return {x, y};                                                                                       \
    }                                                                                                        \
    static inline name##3 make_##name##3(type x, type y, type z)                                             \
    {                                                                                                        \
        return {x, y, z};                                                                                    \
    }                                                                                                        \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                                     \
    {                                                                                                        \
        return {x, y, z, w};                                                                                 \
    }
PK_EMU_VECTOR(float, float, 8, 16)
PK_EMU_VECTOR(int, int, 8, 16)
PK_EMU_VECTOR(unsigned, uint, 8, 16)
PK_EMU_VECTOR(short, short, 4, 8)
PK_EMU_VECTOR(unsigned short, ushort, 4, 8)
PK_EMU_VECTOR(signed char, char, 2, 4)
PK_EMU_VECTOR(unsigned char, uchar, 2, 4)
PK_EMU_VECTOR(double, double, 16, 16)
PK_EMU_VECTOR(long long, longlong, 16, 16)
PK_EMU_VECTOR(unsigned long long, ulonglong, 16, 16)
#undef PK_EMU_VECTOR

struct dim3 {
    unsigned x, y, z;

    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

/* ---- where a thread is ---- */

struct pk_emu_place {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
};
extern pk_emu_place pk_emu_here; /* of the running fiber */
#define threadIdx (pk_emu_here.thread)
#define blockIdx (pk_emu_here.block)
#define blockDim (pk_emu_here.block_dim)
#define gridDim (pk_emu_here.grid_dim)
static const int warpSize = 32;

/* ---- barriers, shuffles, votes ---- */

static inline void __syncthreads()
{
    pk_emu_barrier(0, 0);
}
int pk_emu_syncthreads_count(int predicate);
static inline int __syncthreads_count(int predicate)
{
    return pk_emu_syncthreads_count(predicate);
}
static inline int __syncthreads_or(int predicate)
{
    return pk_emu_syncthreads_count(predicate) != 0;
}
static inline int __syncthreads_and(int predicate)
{
    return pk_emu_syncthreads_count(!predicate) == 0;
}
void __syncwarp(unsigned mask = 0xffffffffu);
unsigned __activemask();
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __threadfence_system()
{
}
static inline void __nanosleep(unsigned)
{
}

enum pk_emu_shuffle { PK_EMU_SHFL_IDX, PK_EMU_SHFL_UP, PK_EMU_SHFL_DOWN, PK_EMU_SHFL_XOR };
/* Replaces the `size` bytes at `value` by those of the lane that `kind` and `arg` name. */
void pk_emu_shfl(enum pk_emu_shuffle kind, unsigned mask, void *value, size_t size, int arg, int width);

template <typename T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32)
{
    pk_emu_shfl(PK_EMU_SHFL_IDX, mask, &x, sizeof x, lane, width);
    return x;
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    pk_emu_shfl(PK_EMU_SHFL_UP, mask, &x, sizeof x, (int)delta, width);
    return x;
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32)
{
    pk_emu_shfl(PK_EMU_SHFL_DOWN, mask, &x, sizeof x, (int)delta, width);
    return x;
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int lanes, int width = 32)
{
    pk_emu_shfl(PK_EMU_SHFL_XOR, mask, &x, sizeof x, lanes, width);
    return x;
}

unsigned __ballot_sync(unsigned mask, int predicate);
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}
int pk_emu_reduce(unsigned mask, int x, int kind); /* 0 add, 1 min, 2 max, 3 or, 4 and */
static inline int __reduce_add_sync(unsigned mask, int x)
{
    return pk_emu_reduce(mask, x, 0);
}
static inline int __reduce_min_sync(unsigned mask, int x)
{
    return pk_emu_reduce(mask, x, 1);
}
static inline int __reduce_max_sync(unsigned mask, int x)
{
    return pk_emu_reduce(mask, x, 2);
}

/* ---- bits and numbers ---- */

template <typename To, typename From> static inline To pk_emu_bits(From x)
{
    To r;

    static_assert(sizeof(To) == sizeof(From), "same size");
    memcpy(&r, &x, sizeof r);
    return r;
}
static inline unsigned __float_as_uint(float x)
{
    return pk_emu_bits<unsigned>(x);
}
static inline int __float_as_int(float x)
{
    return pk_emu_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return pk_emu_bits<float>(x);
}
static inline float __int_as_float(int x)
{
    return pk_emu_bits<float>(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((unsigned long long)a * b) >> 32);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;

    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return (unsigned)(((((unsigned long long)hi << 32) | lo) << (n & 31)) >> 32);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    unsigned long long both = ((unsigned long long)b << 32) | a;
    unsigned r = 0;

    for (int i = 0; i < 4; i++)
        r |= (unsigned)(both >> (8 * (s >> (4 * i) & 7u)) & 0xffu) << (8 * i);
    return r;
}

using std::isfinite;
using std::isinf;
using std::isnan;

#define PK_EMU_MINMAX(type)                                                                                  \
    static inline type min(type a, type b)                                                                   \
    {                                                                                                        \
        return b < a ? b : a;                                                                                \
    }                                                                                                        \
    static inline type max(type a, type b)                                                                   \
    {                                                                                                        \
        return a < b ? b : a;                                                                                \
    }
PK_EMU_MINMAX(int)
PK_EMU_MINMAX(unsigned)
PK_EMU_MINMAX(long)
PK_EMU_MINMAX(unsigned long)
PK_EMU_MINMAX(long long)
PK_EMU_MINMAX(unsigned long long)
#undef PK_EMU_MINMAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}

static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
/* glibc has functions of these names: the approximations are the exact ones here. */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float a, float b)
{
    const float size = b < 0 ? -b : b;

    return size > 0x1p126f && size <= 0x1.fffffep127f ? a * 0.0f : a / b; /* as the manual says */
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __frsqrt_rn(float x)
{
    return rsqrtf(x);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __saturatef(float x)
{
    return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; /* NaN gives 0 */
}
static inline int __float2int_rn(float x)
{
    return (int)nearbyintf(x);
}
static inline int __float2int_rz(float x)
{
    return (int)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}

/* ---- memory ---- */

#define PK_EMU_LOAD(name)                                                                                    \
    template <typename T> static inline T name(const T *p)                                                   \
    {                                                                                                        \
        return *p;                                                                                           \
    }
PK_EMU_LOAD(__ldg)
PK_EMU_LOAD(__ldcs)
PK_EMU_LOAD(__ldcg)
PK_EMU_LOAD(__ldca)
PK_EMU_LOAD(__ldlu)
PK_EMU_LOAD(__ldcv)
#undef PK_EMU_LOAD
#define PK_EMU_STORE(name)                                                                                   \
    template <typename T> static inline void name(T *p, std::common_type_t<T> x)                             \
    {                                                                                                        \
        *p = x;                                                                                              \
    }
PK_EMU_STORE(__stcs)
PK_EMU_STORE(__stcg)
PK_EMU_STORE(__stwb)
PK_EMU_STORE(__stwt)
#undef PK_EMU_STORE

#define PK_EMU_ATOMIC(name, expr)                                                                            \
    template <typename T> static inline T name(T *p, std::common_type_t<T> x)                                \
    {                                                                                                        \
        T old = *p;                                                                                          \
                                                                                                             \
        *p = (T)(expr);                                                                                      \
        return old;                                                                                          \
    }
PK_EMU_ATOMIC(atomicAdd, old + x)
PK_EMU_ATOMIC(atomicSub, old - x)
PK_EMU_ATOMIC(atomicMax, old < x ? x : old)
PK_EMU_ATOMIC(atomicMin, x < old ? x : old)
PK_EMU_ATOMIC(atomicOr, old | x)
PK_EMU_ATOMIC(atomicAnd, old &x)
PK_EMU_ATOMIC(atomicXor, old ^ x)
PK_EMU_ATOMIC(atomicExch, x)
PK_EMU_ATOMIC(atomicInc, old >= x ? 0 : old + 1)
#undef PK_EMU_ATOMIC
template <typename T> static inline T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> x)
{
    T old = *p;

    if (old == expected)
        *p = x;
    return old;
}

static inline uint32_t pk_emu_cvta_shared(const void *p)
{
    return pk_emu_shared_address(p);
}
static inline size_t __cvta_generic_to_shared(const void *p)
{
    return pk_emu_shared_address(p);
}

/* A wait that has no end ends after few looks at the clock. */
static inline long long clock64()
{
    static long long clocks;

    return clocks += 1ll << 36;
}
[[noreturn]] static inline void __trap()
{
    fflush(stdout); /* of printf */
    pk_emu_fail("trap");
}

/* ---- launching ---- */

/* `args` is copied; run(copy) is one thread. cluster: blocks of one along x. */
void pk_emu_enqueue_kernel(const char *name, const void *kernel, unsigned cluster, dim3 grid, dim3 block,
                           size_t shared, cudaStream_t stream, void (*run)(const void *args),
                           const void *args, size_t bytes);
void *pk_emu_dynamic_shared();

/* Not by std::tuple: sources have types of the same name (struct job), which only what has no linkage keeps
 * apart. */
namespace
{
template <size_t I, typename T> struct pk_emu_argument {
    T value;
};
template <typename Numbers, typename... P> struct pk_emu_call;
template <size_t... I, typename... P>
struct pk_emu_call<std::index_sequence<I...>, P...> : pk_emu_argument<I, std::remove_cv_t<P>>... {
    void (*kernel)(P...);

    static void run(const void *args)
    {
        const pk_emu_call *c = static_cast<const pk_emu_call *>(args);

        c->kernel(static_cast<const pk_emu_argument<I, std::remove_cv_t<P>> *>(c)->value...);
    }
};
} // namespace

/* Arguments are converted and copied now, as a real launch does; the threads run when the stream does. */
template <typename... P, typename... A>
static inline void pk_emu_launch(const char *name, void (*kernel)(P...), unsigned cluster, dim3 grid,
                                 dim3 block, size_t shared, cudaStream_t stream, A &&...args)
{
    typedef pk_emu_call<std::make_index_sequence<sizeof...(P)>, P...> call;
    call c = {{static_cast<P>(args)}..., kernel};

    static_assert(sizeof...(P) == sizeof...(A), "arguments of a kernel");
    static_assert(std::is_trivially_copyable<call>::value, "arguments of a kernel are copied as bytes");
    pk_emu_enqueue_kernel(name, reinterpret_cast<const void *>(kernel), cluster, grid, block, shared, stream,
                          call::run, &c, sizeof c);
}
#define PK_LAUNCH(kernel, grid, block, shared, stream, ...)                                                  \
    pk_emu_launch(#kernel, (kernel), 1, (grid), (block), (shared), (stream), ##__VA_ARGS__)
#define PK_LAUNCH_CLUSTER(kernel, cluster, grid, block, shared, stream, ...)                                 \
    pk_emu_launch(#kernel, (kernel), (cluster), (grid), (block), (shared), (stream), ##__VA_ARGS__)
#define PK_SHARED(type, name) type *const name = static_cast<type *>(pk_emu_dynamic_shared())

/* Of templates: the C form takes const void *. */
template <typename T, typename = std::enable_if_t<std::is_function<T>::value>>
static inline cudaError_t cudaFuncSetAttribute(T *function, enum cudaFuncAttribute attr, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(function), attr, value);
}
template <typename T, typename = std::enable_if_t<std::is_function<T>::value>>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, T *function)
{
    return cudaFuncGetAttributes(attr, reinterpret_cast<const void *>(function));
}
template <typename T>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, T *, int threads,
                                                                        size_t shared)
{
    *count = (int)std::min<size_t>((size_t)(2048 / threads), shared ? (228u << 10) / shared : 32u);
    return cudaSuccess;
}
