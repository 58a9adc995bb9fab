/* kernels/backend/cuda/ptx.cuh: instructions without a CUDA C++ function, for sm 80 and later: products of small
 * matrices by a warp, their loads from shared memory, asynchronous copies. Those only of sm 90 are in ptx_hopper.cuh.
 *
 * Below, lane l of a warp has g = l / 4 (its group) and t = l % 4 (its thread in the group).
 *
 * For the host (PK_CUDA_EMULATED) each has its documented meaning, by the hooks of tests/gpu/emu/include/emu.h: a
 * product or a load is done once for the whole warp, when all of its lanes have reached it; copies complete at the
 * wait that asks for them. */
#pragma once

#include "kernels/backend/cuda/device.cuh"

/* ---- products: d += a b ---- */

/* (16, 16) (16, 8). a: rows g (0, 2) and g + 8 (1, 3), columns 2t, 2t+1 (0, 1) and 8 more (2, 3). b: rows 2t,
 * 2t+1 and 8 more, column g. d: row g, columns 2t, 2t+1; row g + 8, the same. Lower half first. */
__device__ __forceinline__ void pk_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
/* (16, 8) (8, 8) in tf32. a: rows g (0, 2) and g + 8 (1, 3), columns t (0, 1) and t + 4 (2, 3). b: rows t and
 * t + 4, column g. d as above. */
__device__ __forceinline__ void pk_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

/* ---- loads ---- */

/* Four 8 x 8 matrices of 16-bit elements in shared memory: lanes 8 i .. 8 i + 7 name the rows, 16 aligned
 * bytes each, of matrix i. r[i]: row g, columns 2t, 2t+1; transposed: rows 2t, 2t+1 of column g. */
__device__ __forceinline__ void pk_ldmatrix(uint32_t r[4], const void *row);
__device__ __forceinline__ void pk_ldmatrix_transposed(uint32_t r[4], const void *row);

/* 16 bytes from global to shared memory, or zeros where they are not `there` (`from` is then not read). They
 * may be read after pk_copy_wait and a barrier. */
__device__ __forceinline__ void pk_copy16(void *to, const void *from, bool there);
/* Commits this thread's copies as a group. */
__device__ __forceinline__ void pk_copy_commit(void);
/* Waits for all groups but the latest `pending`. */
template <int pending> __device__ __forceinline__ void pk_copy_wait(void);

/* ---- numbers ---- */

__device__ __forceinline__ uint32_t pk_tf32(float x);               /* rounded to nearest, ties away from 0 */
__device__ __forceinline__ uint32_t pk_pack(float low, float high); /* two bf16 */
__device__ __forceinline__ float pk_reciprocal(float x);            /* within an ulp or so */
__device__ __forceinline__ float pk_exp2(float x);                  /* within two ulp; 0 for -inf */
__device__ __forceinline__ uint32_t pk_mul_bf16(uint32_t a, uint32_t b); /* two products, rounded once each */

#ifndef PK_CUDA_EMULATED

__device__ __forceinline__ void pk_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void pk_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void pk_ldmatrix(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void pk_ldmatrix_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void pk_copy16(void *to, const void *from, bool there)
{
    const uint32_t read = there ? 16 : 0;

    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from), "r"(read)
        : "memory");
}

__device__ __forceinline__ void pk_copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

template <int pending> __device__ __forceinline__ void pk_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

__device__ __forceinline__ uint32_t pk_tf32(float x)
{
    uint32_t r;

    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ uint32_t pk_pack(float low, float high)
{
    uint32_t r;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float pk_reciprocal(float x)
{
    float r;

    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ float pk_exp2(float x)
{
    float r;

    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ uint32_t pk_mul_bf16(uint32_t a, uint32_t b)
{
    uint32_t r;

    /* a b - 0: sm 80 has no product alone. */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    return r;
}

#else

#include <math.h>
#include <string.h>

struct pk_emu_mma {
    float *d;
    const uint32_t *a;
    uint32_t b[2];
};

static inline float pk_emu_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Columns of a (k to one register) and where they lie. */
template <int half> static void pk_emu_product(void *const *lanes, void *)
{
    const int depth = half ? 16 : 8;
    float a[16][16], b[16][8];

    for (int l = 0; l < 32; l++) {
        const struct pk_emu_mma *m = (const struct pk_emu_mma *)lanes[l];
        const int g = l / 4, t = l % 4;

        for (int i = 0; i < 4; i++)
            for (int e = 0; e <= half; e++) {
                const int column = half ? 2 * t + e + i / 2 * 8 : t + i / 2 * 4;
                const uint32_t bits = half ? (m->a[i] >> (16 * e)) << 16 : m->a[i];

                a[g + i % 2 * 8][column] = pk_emu_float(bits);
                if (i < 2) {
                    const int row = half ? 2 * t + e + i * 8 : t + i * 4;

                    b[row][g] = pk_emu_float(half ? (m->b[i] >> (16 * e)) << 16 : m->b[i]);
                }
            }
    }
    for (int l = 0; l < 32; l++) {
        const struct pk_emu_mma *m = (const struct pk_emu_mma *)lanes[l];
        const int g = l / 4, t = l % 4;

        for (int i = 0; i < 4; i++) {
            float sum = m->d[i];

            for (int k = 0; k < depth; k++)
                sum += a[g + i / 2 * 8][k] * b[k][2 * t + i % 2];
            m->d[i] = sum;
        }
    }
}

__device__ __forceinline__ void pk_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    struct pk_emu_mma m = {d, a, {b0, b1}};

    pk_emu_warp(PK_WARP_ALL, "mma.m16n8k16.bf16", &m, pk_emu_product<1>, nullptr);
}

__device__ __forceinline__ void pk_mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    /* The instruction reads the 19 upper bits. */
    const uint32_t top[4] = {a[0] & ~0x1fffu, a[1] & ~0x1fffu, a[2] & ~0x1fffu, a[3] & ~0x1fffu};
    struct pk_emu_mma m = {d, top, {b0 & ~0x1fffu, b1 & ~0x1fffu}};

    pk_emu_warp(PK_WARP_ALL, "mma.m16n8k8.tf32", &m, pk_emu_product<0>, nullptr);
}

struct pk_emu_matrix {
    uint32_t *r;
    const void *row;
};

template <bool transposed> static void pk_emu_matrices(void *const *lanes, void *)
{
    for (int i = 0; i < 4; i++) {
        uint16_t m[8][8];

        for (int r = 0; r < 8; r++) {
            const void *row = ((const struct pk_emu_matrix *)lanes[8 * i + r])->row;

            memcpy(m[r], row, 16);
        }
        for (int l = 0; l < 32; l++) {
            const int g = l / 4, t = l % 4;
            const uint16_t low = transposed ? m[2 * t][g] : m[g][2 * t],
                           high = transposed ? m[2 * t + 1][g] : m[g][2 * t + 1];

            ((const struct pk_emu_matrix *)lanes[l])->r[i] = low | (uint32_t)high << 16;
        }
    }
}

__device__ __forceinline__ void pk_ldmatrix(uint32_t r[4], const void *row)
{
    struct pk_emu_matrix m = {r, row};

    if (pk_emu_shared_address(row) % 16)
        pk_emu_fail("ldmatrix: a row at %p", row);
    pk_emu_warp(PK_WARP_ALL, "ldmatrix.x4", &m, pk_emu_matrices<false>, nullptr);
}

__device__ __forceinline__ void pk_ldmatrix_transposed(uint32_t r[4], const void *row)
{
    struct pk_emu_matrix m = {r, row};

    if (pk_emu_shared_address(row) % 16)
        pk_emu_fail("ldmatrix: a row at %p", row);
    pk_emu_warp(PK_WARP_ALL, "ldmatrix.x4.trans", &m, pk_emu_matrices<true>, nullptr);
}

__device__ __forceinline__ void pk_copy16(void *to, const void *from, bool there)
{
    pk_emu_cp_async(to, from, 16, there ? 16 : 0);
}

__device__ __forceinline__ void pk_copy_commit(void)
{
    pk_emu_cp_commit();
}

template <int pending> __device__ __forceinline__ void pk_copy_wait(void)
{
    pk_emu_cp_wait(pending);
}

__device__ __forceinline__ uint32_t pk_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return isfinite(x) ? (bits + 0x1000u) & ~0x1fffu : bits;
}

static inline uint32_t pk_emu_half(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

__device__ __forceinline__ uint32_t pk_pack(float low, float high)
{
    return pk_emu_half(low) | pk_emu_half(high) << 16;
}

__device__ __forceinline__ float pk_reciprocal(float x)
{
    return 1.0f / x;
}

__device__ __forceinline__ float pk_exp2(float x)
{
    return exp2f(x);
}

__device__ __forceinline__ uint32_t pk_mul_bf16(uint32_t a, uint32_t b)
{
    return pk_pack(pk_emu_float(a << 16) * pk_emu_float(b << 16),
                   pk_emu_float(a & 0xffff0000u) * pk_emu_float(b & 0xffff0000u));
}

#endif
