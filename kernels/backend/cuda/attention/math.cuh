/* kernels/backend/cuda/attention/math.cuh: the three arithmetics of attention: bf16 (mma m16n8k16), TF32 (mma
 * m16n8k8 of f32 data), f32 (no tensor cores). Layouts as tile.cuh has them.
 *
 * fragment: the left operands of a strip, which a kernel keeps in registers if heads are short. step: s (16, 8 NT)
 * += one step of them times tile'. add: acc (16, D) += p tile, for the channels from `c0` on; p in the layout of
 * `step`. */
#pragma once

#include "kernels/backend/cuda/ptx.cuh"

struct att_bf16 {
    typedef __nv_bfloat16 T;
    static const int STEP = 16;
    static const int PAD = 8;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

        pk_ldmatrix(f, own + lane % 16 * pitch + k * 16 + lane / 16 * 8);
    }
    template <int NT>
    static __device__ __forceinline__ void step(float (&s)[NT][4], const uint32_t f[4], const T *tile,
                                                int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];

            pk_ldmatrix(b, tile + (n * 8 + lane / 16 * 8 + lane % 8) * pitch + k * 16 + lane / 8 % 2 * 8);
            pk_mma_bf16(s[n], f, b[0], b[1]);
            pk_mma_bf16(s[n + 1], f, b[2], b[3]);
        }
    }
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP;

#pragma unroll
        for (int k = 0; k < NT / 2; k++) {
            const uint32_t f[4] = {pk_pack(p[2 * k][0], p[2 * k][1]), pk_pack(p[2 * k][2], p[2 * k][3]),
                                   pk_pack(p[2 * k + 1][0], p[2 * k + 1][1]),
                                   pk_pack(p[2 * k + 1][2], p[2 * k + 1][3])};

#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                uint32_t b[4];

                if (c0 + n * 8 >= d16)
                    break;
                pk_ldmatrix_transposed(b, tile + (k * 16 + lane % 16) * pitch + c0 + n * 8 + lane / 16 * 8);
                pk_mma_bf16(acc[n], f, b[0], b[1]);
                pk_mma_bf16(acc[n + 1], f, b[2], b[3]);
            }
        }
    }
};

struct att_tf32 {
    typedef float T;
    static const int STEP = 8;
    static const int PAD = 4;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;
        const T *at = own + g * pitch + k * 8 + t;

        f[0] = pk_tf32(at[0]);
        f[1] = pk_tf32(at[8 * pitch]);
        f[2] = pk_tf32(at[4]);
        f[3] = pk_tf32(at[8 * pitch + 4]);
    }
    template <int NT>
    static __device__ __forceinline__ void step(float (&s)[NT][4], const uint32_t f[4], const T *tile,
                                                int pitch, int k)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

#pragma unroll
        for (int n = 0; n < NT; n++) {
            const T *at = tile + (n * 8 + g) * pitch + k * 8 + t;

            pk_mma_tf32(s[n], f, pk_tf32(at[0]), pk_tf32(at[4]));
        }
    }
    /* The order of the eight rows of a step is free: rows 2t and 2t + 1, whose p a lane holds, take the
     * places t and t + 4. */
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

#pragma unroll
        for (int k = 0; k < NT; k++) {
            const uint32_t f[4] = {pk_tf32(p[k][0]), pk_tf32(p[k][2]), pk_tf32(p[k][1]), pk_tf32(p[k][3])};
            const T *at = tile + (k * 8 + 2 * t) * pitch + c0 + g;

#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                if (c0 + n * 8 >= d16)
                    break;
                pk_mma_tf32(acc[n], f, pk_tf32(at[n * 8]), pk_tf32(at[pitch + n * 8]));
            }
        }
    }
};

struct att_f32 {
    typedef float T;
    static const int STEP = 8;
    static const int PAD = 4;

    static __device__ __forceinline__ void fragment(uint32_t f[4], const T *own, int pitch, int k)
    {
        (void)f, (void)own, (void)pitch, (void)k;
    }
    template <int NT>
    static __device__ __forceinline__ void rows(float (&s)[NT][4], const T *own, const T *tile, int pitch,
                                                int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, g = lane / 4, t = lane % 4;

        for (int c = 0; c < d16; c += 4) {
            const float4 a = *(const float4 *)(own + g * pitch + c);
            const float4 b = *(const float4 *)(own + (g + 8) * pitch + c);

#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float4 x = *(const float4 *)(tile + (n * 8 + 2 * t + e) * pitch + c);

                    s[n][e] += a.x * x.x + a.y * x.y + a.z * x.z + a.w * x.w;
                    s[n][e + 2] += b.x * x.x + b.y * x.y + b.z * x.z + b.w * x.w;
                }
        }
    }
    template <int NT, int D>
    static __device__ __forceinline__ void add(float (&acc)[D / 8][4], const float (&p)[NT][4], const T *tile,
                                               int pitch, int c0, int d16)
    {
        const int lane = (int)threadIdx.x % PK_WARP, t = lane % 4;

#pragma unroll
        for (int k = 0; k < NT; k++)
            for (int u = 0; u < 4; u++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float a = __shfl_sync(PK_WARP_ALL, p[k][e], lane - t + u);
                    const float b = __shfl_sync(PK_WARP_ALL, p[k][e + 2], lane - t + u);
                    const T *at = tile + (k * 8 + 2 * u + e) * pitch + c0 + 2 * t;

#pragma unroll
                    for (int n = 0; n < D / 8; n++) {
                        if (c0 + n * 8 >= d16)
                            break;
                        acc[n][0] += a * at[n * 8];
                        acc[n][1] += a * at[n * 8 + 1];
                        acc[n][2] += b * at[n * 8];
                        acc[n][3] += b * at[n * 8 + 1];
                    }
                }
    }
};

/* s += own tile', with the strip in shared memory. */
template <class M, int NT>
__device__ __forceinline__ void att_scores(float (&s)[NT][4], const typename M::T *own,
                                           const typename M::T *tile, int pitch, int d16)
{
#pragma unroll 1
    for (int k = 0; k < d16 / M::STEP; k++) {
        uint32_t f[4];

        M::fragment(f, own, pitch, k);
        M::template step<NT>(s, f, tile, pitch, k);
    }
}
template <>
__device__ __forceinline__ void att_scores<att_f32, 4>(float (&s)[4][4], const float *own, const float *tile,
                                                       int pitch, int d16)
{
    att_f32::rows<4>(s, own, tile, pitch, d16);
}

/* A strip's left operands, in registers where heads are short. */
template <class M, int D> struct att_held {
    static constexpr bool HOLD = D <= 64 && sizeof(typename M::T) == 2;
    uint32_t f[HOLD ? D / M::STEP : 1][4];

    __device__ __forceinline__ void load(const typename M::T *own, int pitch, int d16)
    {
        if constexpr (HOLD)
#pragma unroll
            for (int c = 0; c < D / M::STEP; c++)
                if (c * M::STEP < d16)
                    M::fragment(f[c], own, pitch, c);
    }
    /* s += own tile' */
    template <int NT>
    __device__ __forceinline__ void scores(float (&s)[NT][4], const typename M::T *own,
                                           const typename M::T *tile, int pitch, int d16) const
    {
        if constexpr (HOLD) {
#pragma unroll
            for (int c = 0; c < D / M::STEP; c++)
                if (c * M::STEP < d16)
                    M::template step<NT>(s, f[c], tile, pitch, c);
        } else {
            att_scores<M, NT>(s, own, tile, pitch, d16);
        }
    }
};

template <int N> __device__ __forceinline__ void att_zero(float (&x)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[n][e] = 0;
}
