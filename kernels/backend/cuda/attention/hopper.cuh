/* kernels/backend/cuda/attention/hopper.cuh: shared by both directions of attention on sm 90: the call as a struct for
 * the kernels, and visibility. Also read by NVRTC.
 *
 * The kernels are templates over an activation F: hopper_builtin (hopper_phi.cuh) or hopper_formula (hopper_formula.cuh).
 * F has, all static:
 *
 *     use            a struct that is a parameter of the kernel
 *     by_head        whether values and both read the head h (0 if not)
 *     strict         whether F of a logit of 0 may be infinite: then what lies beyond queries and keys is masked too
 *     values(j, use, h, s, tau, add)                     s = F(tau s + add)
 *     both<summed>(j, use, h, s, d, p, tau, add, sum)    from scores s and dP d: P to p as pairs, dP F' to s; the sum of P dP
 *                                                        is added to `sum` where `summed`
 *     factor_y(j, use, h), factor_d(j, use, h)           what y and dV, and dS, are multiplied by at the end
 *
 * If phi is homogeneous (x^p, relu), X = q k^T is left unscaled, and tau and c are one factor of the result. If a bias
 * is added to the logits ("affine"), they are tau X + bias first. Masks select 0 after phi. */
#pragma once

#include "kernels/backend/cuda/attention/hopper_schedule.h"
#include "kernels/backend/cuda/ptx_hopper.cuh"

/* Longest side of a bias whose gradient is supported here: the sums of each block take 1 MiB at 512. */
#define HOPPER_BIASED 512

/* Registers of a thread of a kernel that has a multiprocessor to itself. setmaxnreg deals out the block's: a warpgroup waits
 * for ever for registers that no other gives up. */
#define HOPPER_REGISTERS(threads) (65536 / (threads) / 8 * 8)

/* Rows of one tensor: element (b, h, i, c) at p + b sb + h sh + i sn + c. */
struct hopper_rows {
    __nv_bfloat16 *p;
    int64_t sb, sh, sn;
};

struct hopper_job {
    int batch, heads, nq, nk, d;
    int phi;          /* the number that hopper_phi switches on */
    bool homogeneous; /* phi(t x) is a power of t times phi(x), t > 0 */
    bool causal, affine;
    float tau, add;       /* logit = tau X + add + bias where affine, or not homogeneous */
    float row_power;      /* row i of A is divided by n^row_power */
    float scale;          /* c without the learned factor */
    float of_y;           /* y = of_y c P v, P unscaled */
    float of_d;           /* dS = of_d c G (times tau in dq, dk): p tau^(p - 1), tau's power as above */
    bool learns;          /* c has a learned factor; learned may be NULL where only sizes are asked for */
    const float *learned; /* NULL, or one for each head at learned_step */
    int64_t learned_step;
    const float *bias; /* NULL, or (H, Nq, Nk) */
    int64_t bias_h, bias_q, bias_k;
    const uint8_t
        *mask; /* NULL, or key j of batch b at b mask_b + j mask_k; windows: row b % windows, query */
    int64_t mask_b, mask_q, mask_k;
    int windows; /* 0: a mask of keys */
};

/* ---- visibility ---- */

__device__ __forceinline__ const uint8_t *hopper_mask(const struct hopper_job &j, int b)
{
    return j.mask + (j.windows ? b % j.windows : b) * j.mask_b;
}

/* Batch number i of those a block takes in turn: the same window of all images, then the next window. */
__device__ __forceinline__ int hopper_batch_at(const struct hopper_job &j, int i)
{
    const int images = j.windows && j.batch % j.windows == 0 ? j.batch / j.windows : 0;

    return images ? i % images * j.windows + i / images : i;
}

/* Bits 0 .. last, none below 0, all from 31 on. */
__device__ __forceinline__ uint32_t hopper_bits_to(int last)
{
    return last < 0 ? 0u : last >= 31 ? ~0u : (2u << last) - 1u;
}

/* Keeps the elements of a product's registers whose bit is set: bits[r][i] are columns 32 i .. of row half r.
 */
template <int n, int words>
__device__ __forceinline__ void hopper_keep(float (&s)[n], const uint32_t (&bits)[2][words])
{
    const int t2 = 2 * (threadIdx.x % 4);

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < words; i++) {
            const uint32_t mine = bits[r][i] >> t2;

#pragma unroll
            for (int j = 0; j < 4 && 4 * i + j < n / 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(mine & (1u << (8 * j + e))))
                        s[4 * (4 * i + j) + 2 * r + e] = 0.0f;
        }
}

/* What hopper_keep does, to pairs. */
template <int n, int words>
__device__ __forceinline__ void hopper_keep_pairs(uint32_t (&p)[n], const uint32_t (&bits)[2][words])
{
    const int t2 = 2 * (threadIdx.x % 4);

#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < words; i++) {
            const uint32_t mine = bits[r][i] >> t2;

#pragma unroll
            for (int j = 0; j < 4 && 4 * i + j < n / 2; j++)
                p[2 * (4 * i + j) + r] &=
                    (mine & (1u << 8 * j) ? 0xffffu : 0u) | (mine & (2u << 8 * j) ? 0xffff0000u : 0u);
        }
}

/* n^-row_power, n the keys that row sees without masks. */
__device__ __forceinline__ float hopper_row_factor(const struct hopper_job &j, int row, int shift)
{
    return exp2f(-j.row_power * log2f((float)max(1, row + 1 + shift)));
}
__device__ __forceinline__ float hopper_scale(const struct hopper_job &j, int h)
{
    return j.scale * (j.learned ? j.learned[h * j.learned_step] : 1.0f);
}

/* Rows row .. row + 63 of a tile as left operand. */
template <int columns>
__device__ __forceinline__ void hopper_hold(uint32_t (&a)[columns / 4], const unsigned char *tile, int row)
{
    const int lane = threadIdx.x % PK_WARP;

    static_assert(columns == 64, "one block of columns, rows of 128 bytes");
    row += threadIdx.x % 128 / PK_WARP * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < columns; c += 16) {
        uint32_t r[4];

        pk_ldmatrix(r, tile + row * 128 + ((c / 8 + lane / 16) ^ (row % 8)) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[c / 4 + i] = r[i];
    }
}

/* ---- results ---- */

/* Rows of a product (64, columns), times f[r] of row half r, to rows row .. of `to` (at its batch and head),
 * columns column .. below d; rows below `rows`. A quad exchanges its pieces so that each lane writes 16
 * bytes. */
template <int columns>
__device__ __forceinline__ void hopper_store(const float (&o)[columns / 2], float f0, float f1,
                                             __nv_bfloat16 *to, int64_t sn, int row, int rows, int column,
                                             int d)
{
    const int lane = threadIdx.x % PK_WARP, t = lane % 4;

    row += threadIdx.x % 128 / PK_WARP * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < columns / 8; j += 4) {
            const float f = r ? f1 : f0;
            uint32_t u[4], got;

#pragma unroll
            for (int i = 0; i < 4; i++)
                u[i] = pk_pack(f * o[4 * (j + i) + 2 * r], f * o[4 * (j + i) + 2 * r + 1]);
            got = __shfl_xor_sync(PK_WARP_ALL, t & 1 ? u[0] : u[1], 1);
            (t & 1 ? u[0] : u[1]) = got;
            got = __shfl_xor_sync(PK_WARP_ALL, t & 1 ? u[2] : u[3], 1);
            (t & 1 ? u[2] : u[3]) = got;
            got = __shfl_xor_sync(PK_WARP_ALL, t & 2 ? u[0] : u[2], 2);
            (t & 2 ? u[0] : u[2]) = got;
            got = __shfl_xor_sync(PK_WARP_ALL, t & 2 ? u[1] : u[3], 2);
            (t & 2 ? u[1] : u[3]) = got;
            if (row + 8 * r < rows && column + 8 * (j + t) < d)
                *reinterpret_cast<uint4 *>(to + (row + 8 * r) * sn + column + 8 * (j + t)) =
                    make_uint4(u[0], u[1], u[2], u[3]);
        }
}
