/* kernels/backend/cpu/random.h: Philox (kernels/base/philox.h) for as many counters at once as a vector has
 * 32-bit lanes, and the draws of dropout (PK_OP_DROPOUT in op.h). */
#pragma once

#include "kernels/backend/cpu/vec.h"
#include "kernels/base/philox.h"

#define LANES ((int64_t)(VEC_BYTES / 4))

typedef uint32_t uvec __attribute__((vector_size(VEC_BYTES)));

INLINE uvec uset(uint32_t x)
{
    return x - (uvec){0};
}

INLINE uvec ulane(void)
{
    uvec r = {0};

    for (uint32_t i = 0; i < LANES; i++)
        r[i] = i;
    return r;
}

/* Both halves of the products of all lanes with m. */
INLINE void umul(uvec a, uint32_t m, uvec *lo, uvec *hi)
{
#if CPU_AVX512
    __m512i f = _mm512_set1_epi32((int)m), even = _mm512_mul_epu32((__m512i)a, f),
            odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), f);

    *lo = (uvec)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *hi = (uvec)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif CPU_AVX2
    __m256i f = _mm256_set1_epi32((int)m), even = _mm256_mul_epu32((__m256i)a, f),
            odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), f);

    *lo = (uvec)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *hi = (uvec)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    uvec h = {0};

    *lo = a * m;
    for (int i = 0; i < LANES; i++)
        h[i] = (uint32_t)((uint64_t)a[i] * m >> 32);
    *hi = h;
#endif
}

/* c: the four words of the counters; becomes the random words. */
INLINE void uphilox(uint64_t key, uvec c[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

#pragma GCC unroll 10
    for (int round = 0; round < PD_PHILOX_ROUNDS; round++) {
        uvec lo0, hi0, lo1, hi1;

        umul(c[0], PD_PHILOX_M0, &lo0, &hi0);
        umul(c[2], PD_PHILOX_M1, &lo1, &hi1);
        c[0] = hi1 ^ c[1] ^ uset(k0);
        c[1] = lo1;
        c[2] = hi0 ^ c[3] ^ uset(k1);
        c[3] = lo0;
        k0 += PD_PHILOX_W0;
        k1 += PD_PHILOX_W1;
    }
}

/* Bit i: lane i is at least t. */
INLINE uint32_t uat_least(uvec x, uint32_t t)
{
#if CPU_AVX512
    return _mm512_cmpge_epu32_mask((__m512i)x, _mm512_set1_epi32((int)t));
#elif CPU_AVX2
    return (uint32_t)_mm256_movemask_ps((__m256)(x >= uset(t)));
#else
    uint32_t bits = 0;

    for (int i = 0; i < LANES; i++)
        bits |= (uint32_t)(x[i] >= t) << i;
    return bits;
#endif
}

/* One dropout of a network at one step. */
struct draw {
    uint64_t key;
    uint32_t step, stream, threshold;
    uint32_t first; /* row of the whole batch that is row 0 here */
    real factor;    /* on elements that are kept */
};

/* rows: of this call, for a generator input with a share index. */
static inline struct draw draw_of(const struct pk_view *rng, double rate, uint32_t stream, int64_t rows)
{
    const int32_t *r = rng->data;
    const int64_t s = rng->stride[0];
    const int64_t share = rng->shape.dim[0] > 3 ? r[3 * s] : 0;

    return (struct draw){.key = (uint32_t)r[0] | (uint64_t)(uint32_t)r[s] << 32,
                         .step = (uint32_t)r[2 * s],
                         .stream = 0x80000000u + stream,
                         .threshold = (uint32_t)(rate * 0x1p32),
                         .first = (uint32_t)(share * rows),
                         .factor = (real)(1 / (1 - rate))};
}

/* Which of the 64 columns from `column` (a multiple of 64) on of a row are kept, as bits. */
INLINE uint64_t draw_columns(const struct draw *d, uint32_t row, int64_t column)
{
    uint64_t bits = 0;

    for (int64_t l = 0; l < 16; l += LANES) {
        uvec c[4] = {ulane() + (uint32_t)(column / 4 + l), uset(row + d->first), uset(d->step),
                     uset(d->stream)};

        uphilox(d->key, c);
        for (int w = 0; w < 4; w++)
            bits |= (uint64_t)uat_least(c[w], d->threshold) << (16 * w + l);
    }
    return bits;
}
