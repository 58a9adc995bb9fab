/* kernels/backend/cuda/ptx_hopper.cuh: instructions of sm 90 without a CUDA C++ function: barriers in shared memory
 * that count bytes (mbarrier), bulk copies of boxes of tensors, products by a warpgroup.
 *
 * Tiles. A tile of `rows` rows of C bf16 columns lies in shared memory as blocks of W = min(C, 64) columns,
 * one after the other, 1024-aligned; a block holds its rows at a pitch of 2 W bytes, with the 16-byte chunks
 * of a row exchanged as the bulk copy's swizzle of 2 W bytes (32, 64, 128) does: bits 4.. of an address are
 * XORed with bits 7.. (1, 2, 3 bits). As an operand of a product a tile may be read either way:
 *
 *     by rows      the tile's columns are what is summed over (K-major)
 *     by columns   the tile's rows are what is summed over (MN-major, "transposed")
 *
 * Registers of a product (64, N) by a warpgroup of 128 threads; warp w, lane l, g = l / 4, t = l % 4: d[4 j +
 * 2 r
 * + e] is row 16 w + g + 8 r, column 8 j + 2 t + e. As the left operand (64, 16): a[0], a[1] rows g and g +
 * 8, columns 2t, 2t+1; a[2], a[3] the same of columns 8 more. So d[8 k .. 8 k + 7], narrowed in pairs, is the
 * left operand of columns 16 k .. 16 k + 15.
 *
 * For the host (PK_CUDA_EMULATED) the functions are those of tests/gpu/emu/hopper.cc, written from the PTX
 * ISA's text alone and strict: registers of a product hold NaN until the wait, operands must not change while
 * it runs, bytes of a copy arrive late. */
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda.h>
#endif

#include "kernels/backend/cuda/device.cuh"
#include "kernels/backend/cuda/ptx.cuh"

/* Whether code for these instructions is being made: on the device only for sm_90a. */
#if defined(PK_CUDA_EMULATED) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PK_HOPPER 1
#endif

/* ---- operands ---- */

#define PK_SWIZZLE_128 1u
#define PK_SWIZZLE_64 2u
#define PK_SWIZZLE_32 3u

/* Descriptor of an operand at shared address `at`: "leading" and "stride" byte offsets, swizzle. */
__device__ __forceinline__ uint64_t pk_operand(uint32_t at, uint32_t leading, uint32_t stride,
                                               uint32_t swizzle)
{
    return (uint64_t)((at & 0x3ffffu) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)swizzle << 62;
}

template <int columns> struct pk_tile {
    static constexpr int width = columns < 64 ? columns : 64; /* of a block */
    static constexpr int pitch = 2 * width;
    static constexpr uint32_t swizzle = width == 64   ? PK_SWIZZLE_128
                                        : width == 32 ? PK_SWIZZLE_64
                                                      : PK_SWIZZLE_32;
    static_assert(columns == 16 || columns == 32 || columns % 64 == 0, "columns of a tile");

    /* Rows from `row` on (a multiple of 8), columns column .. column + 15, of a tile of `rows` rows. */
    static __device__ __forceinline__ uint64_t by_rows(uint32_t at, int rows, int row, int column)
    {
        return pk_operand(at + (uint32_t)(column / width * rows * pitch + row * pitch + column % width * 2),
                          16, 8 * pitch, swizzle);
    }
    /* Rows row .. row + 15; columns from `column` (a multiple of the width) on. */
    static __device__ __forceinline__ uint64_t by_columns(uint32_t at, int rows, int row, int column)
    {
        return pk_operand(at + (uint32_t)(column / width * rows * pitch + row * pitch),
                          (uint32_t)(rows * pitch), 8 * pitch, swizzle);
    }
};

/* Number of a warp, the same in all its lanes as far as the compiler can see. */
__device__ __forceinline__ int pk_warp_number(void)
{
    return __shfl_sync(PK_WARP_ALL, (int)threadIdx.x / PK_WARP, 0);
}

#ifndef PK_CUDA_EMULATED

__device__ __forceinline__ uint32_t pk_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

/* By one thread; others may use it after pk_barrier_publish (by that thread) and __syncthreads. */
__device__ __forceinline__ void pk_barrier_init(uint64_t *bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(pk_shared_address(bar)), "r"(arrivals)
                 : "memory");
}
__device__ __forceinline__ void pk_barrier_publish(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void pk_barrier_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\n" ::"r"(pk_shared_address(bar))
                 : "memory");
}
/* Arrives, and the phase lasts until `bytes` more have been copied. */
__device__ __forceinline__ void pk_barrier_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(pk_shared_address(bar)),
        "r"(bytes)
        : "memory");
}
/* Whether the phase of this parity is over; the hardware may wait a while before it returns false. */
__device__ __forceinline__ bool pk_barrier_try(uint64_t *bar, uint32_t parity)
{
    uint32_t over;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(over)
                 : "r"(pk_shared_address(bar)), "r"(parity)
                 : "memory");
    return over;
}
__device__ __forceinline__ bool pk_barrier_try_cluster(uint64_t *bar, uint32_t parity)
{
    uint32_t over;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}\n"
                 : "=r"(over)
                 : "r"(pk_shared_address(bar)), "r"(parity)
                 : "memory");
    return over;
}
/* Of `threads` threads, a multiple of 32; id 1 .. 15. */
__device__ __forceinline__ void pk_named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

/* ---- clusters: blocks that run together ---- */

__device__ __forceinline__ uint32_t pk_cluster_rank(void)
{
    uint32_t rank;

    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    return rank;
}
/* Of all threads of the cluster that have not returned; memory written before it is seen after it. */
__device__ __forceinline__ void pk_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;\n" ::
                     : "memory");
}
/* At the barrier that lies at this place in block `rank` of the cluster, which must not have left. */
__device__ __forceinline__ void pk_barrier_arrive_at(uint64_t *bar, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n"
                 "}\n" ::"r"(pk_shared_address(bar)),
                 "r"(rank)
                 : "memory");
}

/* ---- copies ---- */

__device__ __forceinline__ void pk_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
/* The box at coordinates (c0, c1, c2, c3), fastest first, to shared memory; what lies outside of the tensor
 * becomes 0. Its bytes are counted by `bar`. */
__device__ __forceinline__ void pk_bulk_load(void *to, const CUtensorMap *map, uint64_t *bar, int c0, int c1,
                                             int c2, int c3)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
        "%4, %5, %6}], [%2];\n" ::"r"(pk_shared_address(to)),
        "l"(map), "r"(pk_shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

/* The same to every block of the cluster whose bit is set: to the same place in each, counted by the barrier
 * at the same place in each. */
__device__ __forceinline__ void pk_bulk_load_cluster(void *to, const CUtensorMap *map, uint64_t *bar,
                                                     uint32_t blocks, int c0, int c1, int c2, int c3)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(pk_shared_address(to)),
                 "l"(map), "r"(pk_shared_address(bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
                 "h"((uint16_t)blocks)
                 : "memory");
}

/* Adds to four floats in global memory, 16-aligned. Only this thread may add there, so the order is fixed. It does not
 * wait for the result; a later load by pk_load4 of the same thread sees it. */
__device__ __forceinline__ void pk_add4(float4 *to, float4 v)
{
    asm volatile(
        "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(to)),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}
/* From L2, where pk_add4 adds. */
__device__ __forceinline__ float4 pk_load4(const float4 *from)
{
    float4 v;

    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return v;
}

/* ---- products by a warpgroup ---- */

/* Shared memory written by this thread may be read by products and bulk copies after the next barrier. */
__device__ __forceinline__ void pk_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
/* Registers written before this may be used by the following products. */
__device__ __forceinline__ void pk_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void pk_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
/* Waits for all groups but the latest `pending`. */
template <int pending> __device__ __forceinline__ void pk_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
}
/* The compiler does not know that products run asynchronously: this keeps uses of d (or a) after the preceding wait.
 */
template <int n> __device__ __forceinline__ void pk_wgmma_hold(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
template <int n> __device__ __forceinline__ void pk_wgmma_hold(uint32_t (&a)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

/* x, opaque to the compiler: values derived from it are recomputed rather than kept in registers. */
__device__ __forceinline__ int pk_opaque(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

template <int registers> __device__ __forceinline__ void pk_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(registers));
}
template <int registers> __device__ __forceinline__ void pk_registers_fewer(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(registers));
}

/* Within 2^-11 of tanh. */
__device__ __forceinline__ float pk_tanh(float x)
{
    float y;

    asm("tanh.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

/* Registers of the accumulator, as text and as operands. */
#define PK_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define PK_R32 PK_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PK_R48 PK_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define PK_R56 PK_R48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define PK_R64 PK_R56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define PK_D16                                                                                               \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),          \
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define PK_D32                                                                                               \
    PK_D16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),       \
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),           \
        "+f"(d[30]), "+f"(d[31])
#define PK_D48                                                                                               \
    PK_D32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]),       \
        "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),           \
        "+f"(d[46]), "+f"(d[47])
#define PK_D56                                                                                               \
    PK_D48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),       \
        "+f"(d[55])
#define PK_D64                                                                                               \
    PK_D56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),       \
        "+f"(d[63])

#define PK_WGMMA_SHARED(N, R, P0, P1, P2, P3, P4)                                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P2 ", 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" PK_R##R                         \
                 "}, %" P0 ", %" P1 ", p, 1, 1, %" P3 ", %" P4 ";\n}\n"                                      \
                 : PK_D##R                                                                                   \
                 : "l"(a), "l"(b), "r"((int)add), "n"((int)a_by_columns), "n"((int)b_by_columns))
#define PK_WGMMA_REGISTERS(N, R, P0, P1, P2, P3, P4, P5, P6)                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P5 ", 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.bf16.bf16 {" PK_R##R                         \
                 "}, {%" P0 ", %" P1 ", %" P2 ", %" P3 "}, %" P4 ", p, 1, 1, %" P6 ";\n}\n"                  \
                 : PK_D##R                                                                                   \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((int)add), "n"((int)b_by_columns))

/* d (64, N) = a (64, 16) b (16, N), plus d where `add`. Begins; d may be touched after commit and wait. */
template <int N, bool a_by_columns, bool b_by_columns>
__device__ __forceinline__ void pk_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add)
{
    static_assert(N == 32 || N == 64 || N == 96 || N == 112 || N == 128, "columns of a product");
    if constexpr (N == 32)
        PK_WGMMA_SHARED("32", 16, "16", "17", "18", "19", "20");
    else if constexpr (N == 64)
        PK_WGMMA_SHARED("64", 32, "32", "33", "34", "35", "36");
    else if constexpr (N == 96)
        PK_WGMMA_SHARED("96", 48, "48", "49", "50", "51", "52");
    else if constexpr (N == 112)
        PK_WGMMA_SHARED("112", 56, "56", "57", "58", "59", "60");
    else
        PK_WGMMA_SHARED("128", 64, "64", "65", "66", "67", "68");
}
/* The same with a in registers. */
template <int N, bool b_by_columns>
__device__ __forceinline__ void pk_wgmma(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint64_t b, bool add)
{
    static_assert(N == 32 || N == 64 || N == 96 || N == 112 || N == 128, "columns of a product");
    if constexpr (N == 32)
        PK_WGMMA_REGISTERS("32", 16, "16", "17", "18", "19", "20", "21", "22");
    else if constexpr (N == 64)
        PK_WGMMA_REGISTERS("64", 32, "32", "33", "34", "35", "36", "37", "38");
    else if constexpr (N == 96)
        PK_WGMMA_REGISTERS("96", 48, "48", "49", "50", "51", "52", "53", "54");
    else if constexpr (N == 112)
        PK_WGMMA_REGISTERS("112", 56, "56", "57", "58", "59", "60", "61", "62");
    else
        PK_WGMMA_REGISTERS("128", 64, "64", "65", "66", "67", "68", "69", "70");
}

#else

/* Implemented in tests/gpu/emu/hopper.cc. */
uint32_t emu_shared_address(const void *p);
void emu_barrier_init(uint64_t *bar, uint32_t arrivals);
void emu_barrier_publish(void);
void emu_barrier_arrive(uint64_t *bar, uint32_t bytes);
/* Waits. If the phase can never end: false, where the caller has a limit; else the emulation fails. */
bool emu_barrier_try(uint64_t *bar, uint32_t parity, bool limited);
#ifdef POLYD_CUDA_SPIN_LIMIT
#define PK_WAITS_ARE_LIMITED true
#else
#define PK_WAITS_ARE_LIMITED false
#endif
void emu_named_barrier(int id, int threads);
void emu_barrier_arrive_at(uint64_t *bar, unsigned rank);
void emu_cluster_sync(void);
/* blocks: of the cluster; 0: this one. */
void emu_bulk_load(void *to, const CUtensorMap *map, uint64_t *bar, const int *coordinates, int rank,
                   unsigned blocks);
void emu_fence_async(void);
void emu_wgmma_fence(void);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int pending);
/* a: four registers, or NULL where the left operand is the descriptor. */
void emu_wgmma(float *d, int columns, const uint32_t *a, uint64_t a_operand, uint64_t b_operand, bool add,
               bool a_by_columns, bool b_by_columns);
void emu_set_registers(int registers, bool more);
float emu_tanh(float x);

static inline uint32_t pk_shared_address(const void *p)
{
    return emu_shared_address(p);
}
static inline void pk_barrier_init(uint64_t *bar, uint32_t arrivals)
{
    emu_barrier_init(bar, arrivals);
}
static inline void pk_barrier_publish(void)
{
    emu_barrier_publish();
}
static inline void pk_barrier_arrive(uint64_t *bar)
{
    emu_barrier_arrive(bar, 0);
}
static inline void pk_barrier_expect(uint64_t *bar, uint32_t bytes)
{
    emu_barrier_arrive(bar, bytes);
}
static inline bool pk_barrier_try(uint64_t *bar, uint32_t parity)
{
    return emu_barrier_try(bar, parity, PK_WAITS_ARE_LIMITED);
}
static inline bool pk_barrier_try_cluster(uint64_t *bar, uint32_t parity)
{
    return emu_barrier_try(bar, parity, PK_WAITS_ARE_LIMITED);
}
static inline void pk_named_barrier(int id, int threads)
{
    emu_named_barrier(id, threads);
}
static inline void pk_map_prefetch(const CUtensorMap *map)
{
    (void)map;
}
static inline void pk_bulk_load(void *to, const CUtensorMap *map, uint64_t *bar, int c0, int c1, int c2,
                                int c3)
{
    const int c[4] = {c0, c1, c2, c3};

    emu_bulk_load(to, map, bar, c, 4, 0);
}
static inline void pk_bulk_load_cluster(void *to, const CUtensorMap *map, uint64_t *bar, uint32_t blocks,
                                        int c0, int c1, int c2, int c3)
{
    const int c[4] = {c0, c1, c2, c3};

    emu_bulk_load(to, map, bar, c, 4, blocks);
}
static inline uint32_t pk_cluster_rank(void)
{
    return pk_emu_rank();
}
static inline void pk_cluster_sync(void)
{
    emu_cluster_sync();
}
static inline void pk_barrier_arrive_at(uint64_t *bar, uint32_t rank)
{
    emu_barrier_arrive_at(bar, rank);
}
static inline void pk_add4(float4 *to, float4 v)
{
    emu_check(to, sizeof *to, sizeof *to);
    to->x += v.x;
    to->y += v.y;
    to->z += v.z;
    to->w += v.w;
}
static inline float4 pk_load4(const float4 *from)
{
    emu_check(from, sizeof *from, sizeof *from);
    return *from;
}
static inline void pk_fence_async(void)
{
    emu_fence_async();
}
static inline void pk_wgmma_fence(void)
{
    emu_wgmma_fence();
}
static inline void pk_wgmma_commit(void)
{
    emu_wgmma_commit();
}
template <int pending> static inline void pk_wgmma_wait(void)
{
    emu_wgmma_wait(pending);
}
template <typename T, int n> static inline void pk_wgmma_hold(T (&d)[n])
{
    (void)d;
}
static inline int pk_opaque(int x)
{
    return x;
}
template <int registers> static inline void pk_registers_more(void)
{
    emu_set_registers(registers, true);
}
template <int registers> static inline void pk_registers_fewer(void)
{
    emu_set_registers(registers, false);
}
static inline float pk_tanh(float x)
{
    return emu_tanh(x);
}
template <int N, bool a_by_columns, bool b_by_columns>
static inline void pk_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool add)
{
    emu_wgmma(d, N, NULL, a, b, add, a_by_columns, b_by_columns);
}
template <int N, bool b_by_columns>
static inline void pk_wgmma(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,
                            bool add)
{
    const uint32_t a[4] = {a0, a1, a2, a3};

    emu_wgmma(d, N, a, 0, b, add, false, b_by_columns);
}

#endif

/* ---- waiting ---- */

/* With POLYD_CUDA_SPIN_LIMIT (a build option: tests/gpu/run --limit-waits), a wait of more than that many clocks prints the barrier,
 * its parity, block and warp, and aborts the kernel, so that a deadlock ends within seconds and names its place. */
#ifdef POLYD_CUDA_SPIN_LIMIT
#include <stdio.h>

static __device__ __noinline__ void pk_barrier_stuck(uint32_t at, uint32_t parity)
{
    printf("a wait at the barrier in shared memory 0x%x, parity %u, has no end: block %d of %d, warp %d, "
           "lane %d\n",
           at, parity, (int)blockIdx.x, (int)gridDim.x, (int)threadIdx.x / 32, (int)threadIdx.x % 32);
    __trap();
}
#define PK_BARRIER_WAIT(try_it)                                                                              \
    do {                                                                                                     \
        const long long began = clock64();                                                                   \
                                                                                                             \
        while (!(try_it))                                                                                    \
            if (clock64() - began > (POLYD_CUDA_SPIN_LIMIT))                                                 \
                pk_barrier_stuck(pk_shared_address(bar), parity);                                            \
    } while (0)
#else
#define PK_BARRIER_WAIT(try_it)                                                                              \
    while (!(try_it)) {                                                                                      \
    }
#endif
/* Waits until the phase of this parity is over. Of a new barrier, phase 0 runs: parity 1 is over. */
__device__ __forceinline__ void pk_barrier_wait(uint64_t *bar, uint32_t parity)
{
    PK_BARRIER_WAIT(pk_barrier_try(bar, parity));
}
/* The same of a barrier at which other blocks of the cluster arrive. */
__device__ __forceinline__ void pk_barrier_wait_cluster(uint64_t *bar, uint32_t parity)
{
    PK_BARRIER_WAIT(pk_barrier_try_cluster(bar, parity));
}
