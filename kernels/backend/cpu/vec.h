/* kernels/backend/cpu/vec.h: the element type, the vectors and the vector functions of one copy.
 *
 * Built on the compiler's vector types, so that every level reads the same source; a handful of
 * intrinsics where the compiler needs help. Included only by files compiled once per level and type. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/backend/cpu/cpu.h"

#if defined __x86_64__
#include <immintrin.h>
#endif

#ifndef CPU_F64
#error "compile with CPU_F64=0 or 1 and one CPU_AVX..."
#endif
#if !defined CPU_AVX512
#define CPU_AVX512 0
#endif
#if !defined CPU_AVX2
#define CPU_AVX2 0
#endif

#if CPU_AVX512
#define CPU_LEVEL_NAME avx512
#define VEC_BYTES 64
#elif CPU_AVX2
#define CPU_LEVEL_NAME avx2
#define VEC_BYTES 32
#else
#define CPU_LEVEL_NAME portable
#define VEC_BYTES 16
#endif

#if CPU_F64
typedef double real;
typedef int64_t ireal;
#define PK_TYPE_NAME f64
#define PK_DTYPE PK_F64_DTYPE
#define REAL_DTYPE ((enum pk_dtype)1)
#else
typedef float real;
typedef int32_t ireal;
#define PK_TYPE_NAME f32
#define REAL_DTYPE PK_F32
#endif

#define PK_PASTE2(name, level, type) cpu_##name##_##level##_##type
#define PK_PASTE(name, level, type) PK_PASTE2(name, level, type)
#define PK_FN(name) PK_PASTE(name, CPU_LEVEL_NAME, PK_TYPE_NAME)

#define INLINE static inline __attribute__((always_inline, unused))

typedef real vec __attribute__((vector_size(VEC_BYTES)));
typedef ireal ivec __attribute__((vector_size(VEC_BYTES)));
typedef real vec_unaligned __attribute__((vector_size(VEC_BYTES), aligned(sizeof(real)), may_alias));
#define W ((int64_t)(VEC_BYTES / sizeof(real)))

INLINE vec vld(const real *p)
{
    return (vec) * (const vec_unaligned *)p;
}
INLINE void vst(real *p, vec v)
{
    *(vec_unaligned *)p = (vec_unaligned)v;
}
INLINE vec vset(real x)
{
    return x - (vec){0};
}
INLINE vec vzero(void)
{
    return (vec){0};
}
/* The first n < W lanes; the others are 0. */
INLINE vec vldn(const real *p, int64_t n)
{
#if CPU_AVX512 && !CPU_F64
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif CPU_AVX512
    return (vec)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#else
    vec v = {0};

    memcpy(&v, p, (size_t)n * sizeof(real));
    return v;
#endif
}
INLINE void vstn(real *p, vec v, int64_t n)
{
#if CPU_AVX512 && !CPU_F64
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif CPU_AVX512
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
#else
    memcpy(p, &v, (size_t)n * sizeof(real));
#endif
}
/* Lanes of a where m is all ones, of b where it is 0. */
INLINE vec vsel(ivec m, vec a, vec b)
{
    return (vec)((m & (ivec)a) | (~m & (ivec)b));
}
/* Whether any lane of m, each all ones or 0, is set. */
INLINE bool vany(ivec m)
{
#if CPU_AVX512 && !CPU_F64
    return _mm512_movepi32_mask((__m512i)m) != 0;
#elif CPU_AVX2 && !CPU_F64
    return _mm256_movemask_ps((__m256)m) != 0;
#else
    bool any = false;

    for (int i = 0; i < W; i++)
        any = any || m[i];
    return any;
#endif
}
/* Like the instruction: b if either is NaN. */
INLINE vec vmax(vec a, vec b)
{
#if CPU_AVX512 && !CPU_F64
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif CPU_AVX512
    return (vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif CPU_AVX2 && !CPU_F64
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif CPU_AVX2
    return (vec)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    return vsel(a > b, a, b);
#endif
}
INLINE vec vmin(vec a, vec b)
{
    return -vmax(-a, -b);
}
/* a b - c, rounded once. */
#if CPU_AVX512 && !CPU_F64
INLINE vec vmul_sub(vec a, vec b, vec c)
{
    return (vec)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif CPU_AVX2 && !CPU_F64
INLINE vec vmul_sub(vec a, vec b, vec c)
{
    return (vec)_mm256_fmsub_ps((__m256)a, (__m256)b, (__m256)c);
}
#endif
INLINE vec vabs(vec a)
{
    return (vec)((ivec)a & ~(ivec)vset((real)-0.0));
}
INLINE vec vsqrt(vec a)
{
#if CPU_AVX512 && !CPU_F64
    return (vec)_mm512_sqrt_ps((__m512)a);
#elif CPU_AVX512
    return (vec)_mm512_sqrt_pd((__m512d)a);
#else
    for (int i = 0; i < W; i++)
        a[i] = (real)sqrt((double)a[i]);
    return a;
#endif
}
/* Sums and maxima of lanes, in a fixed order. */
INLINE real vsum(vec v)
{
    real t[W];

    memcpy(t, &v, sizeof t);
    for (int64_t s = W / 2; s > 0; s /= 2)
        for (int64_t i = 0; i < s; i++)
            t[i] += t[i + s];
    return t[0];
}
INLINE double vsum_double(vec v)
{
    double t = 0;

    for (int i = 0; i < W; i++)
        t += (double)v[i];
    return t;
}
INLINE real vmax_lane(vec v)
{
    real t = v[0];

    for (int i = 1; i < W; i++)
        t = v[i] > t ? v[i] : t;
    return t;
}
INLINE ivec vlane(void)
{
    ivec r = {0};

    for (int i = 0; i < W; i++)
        r[i] = i;
    return r;
}

#define VLANES(expr)                                                                                         \
    do {                                                                                                     \
        vec r_ = {0};                                                                                        \
        for (int i_ = 0; i_ < W; i_++) {                                                                     \
            double x_ = (double)x[i_];                                                                       \
            r_[i_] = (real)(expr);                                                                           \
        }                                                                                                    \
        return r_;                                                                                           \
    } while (0)

#if CPU_F64
/* f64 uses the C library's functions. */
INLINE vec vlog(vec x)
{
    VLANES(log(x_));
}
INLINE vec vsin(vec x)
{
    VLANES(sin(x_));
}
INLINE vec vcos(vec x)
{
    VLANES(cos(x_));
}
INLINE void vsincos(vec x, vec *ret_sin, vec *ret_cos)
{
    *ret_sin = vsin(x);
    *ret_cos = vcos(x);
}
INLINE vec vexp(vec x)
{
    VLANES(exp(x_));
}
INLINE vec vtanh(vec x)
{
    VLANES(tanh(x_));
}
INLINE vec verf(vec x)
{
    VLANES(erf(x_));
}
#else
/* About 1/d for d >= 1: an estimate and a Newton step, where the processor has the estimate. */
INLINE vec vrecip(vec d)
{
#if CPU_AVX512
    vec r = (vec)_mm512_rcp14_ps((__m512)d);

    return r * (2 - d * r);
#else
    return 1 / d;
#endif
}
/* exp by 2^n e^r with |r| <= ln 2 / 2, polynomial of degree 7 (Cephes): error below 2 units in the last
 * place. Adding 1.5 * 2^23 rounds to an integer. AVX-512 has an instruction for p 2^n, which overflows and underflows
 * by itself (to 0: pool.h); else n, which then lies in the lowest bits, is added to the exponent of p, since 2^n itself
 * need not be a float where the result is. */
INLINE vec vexp(vec x)
{
    const vec magic = vset(12582912.0f);
#if CPU_AVX512 /* a NaN is the second operand, and stays */
    vec xc = (vec)_mm512_min_ps(_mm512_set1_ps(89.0f), _mm512_max_ps(_mm512_set1_ps(-104.0f), (__m512)x));
#else
    vec xc = vsel(x > 89.0f, vset(89.0f), vsel(x < -88.0f, vset(-88.0f), x));
#endif
    vec t = xc * 1.44269504088896341f + magic;
    vec n = t - magic;
    vec r = xc - n * 0.693359375f - n * -2.12194440e-4f;
    vec p = vset(1.9875691500e-4f);

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
#if CPU_AVX512
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    p = (vec)((ivec)p + (((ivec)t - 0x4b400000) << 23));
    p = vsel(x <= 88.7228390f, p, x * INFINITY); /* a NaN stays */
    return vsel(x < -87.3365447f, vzero(), p);
#endif
}
/* tanh: odd polynomial below 0.625 (Cephes), else 1 - 2 / (e^2|x| + 1). */
INLINE vec vtanh(vec x)
{
    vec a = vabs(x), z = x * x;
    vec p = vset(-5.70498872745e-3f);
    vec big = 1.0f - 2.0f / (vexp(a + a) + 1.0f);

    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    big = (vec)((ivec)big | ((ivec)x & (ivec)vset(-0.0f)));
    return vsel(a < 0.625f, p, big);
}
/* log: e log 2 + log m with m in sqrt(1/2) .. sqrt(2), polynomial of degree 8 (Cephes): error below 1 unit in the
 * last place. Subnormal numbers are scaled first. AVX-512 has an instruction for e and one for m; what they give for 0,
 * infinity, negative numbers and NaN makes the sum right without a test. */
INLINE vec vlog(vec x)
{
#if CPU_AVX512
    const __m512 whole = (__m512)x;
    const __m512 half = _mm512_getmant_ps(whole, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan); /* 1 .. 2 */
    const __mmask16 high = _mm512_cmp_ps_mask(half, _mm512_set1_ps(1.41421356f), _CMP_GE_OQ);
    const vec e =
        (vec)_mm512_mask_add_ps(_mm512_getexp_ps(whole), high, _mm512_getexp_ps(whole), _mm512_set1_ps(1.0f));
    /* finite, so that the last term alone is infinite at 0 and at infinity */
    const vec near =
        (vec)_mm512_min_ps(_mm512_max_ps((__m512)e, _mm512_set1_ps(-150.0f)), _mm512_set1_ps(150.0f));
    vec m = (vec)_mm512_mask_mul_ps(half, high, half, _mm512_set1_ps(0.5f)) - 1;
    vec z, p = vset(7.0376836292e-2f);
#else
    const ivec tiny = x < 1.17549435e-38f;
    const vec y = vsel(tiny, x * 8388608.0f, x);
    const ivec bits = (ivec)y;
    vec m = (vec)((bits & 0x007fffff) | 0x3f000000); /* 1/2 .. 1 */
    const ivec low = m < 0.707106781f;
    const vec e = __builtin_convertvector((bits >> 23) - 126 + low - (tiny & 23), vec), near = e;
    vec z, p = vset(7.0376836292e-2f);

    m = m - 1 + vsel(low, m, vzero());
#endif
    z = m * m;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * z - 2.12194440e-4f * near - 0.5f * z;
    p = m + p + 0.693359375f * e;
#if !CPU_AVX512
    p = vsel(x < INFINITY, p, x); /* an infinity and a NaN stay */
    p = vsel(x == 0, vset(-INFINITY), p);
    p = vsel(x < 0, vset(NAN), p);
#endif
    return p;
}
/* x = n pi/2 + r + lo with |r| <= pi/4: returns r; *ret_n holds n mod 4 in its lowest bits, *ret_lo what r lost by
 * rounding. Right for |x| <= TURN_MAX.
 *
 * With fused multiply-adds: pi/2 as three floats. x - n P1 is exact. n P2 is the float c and the rest n P2 - c; the
 * error of r = (x - n P1) - c is a float too, because x - n P1 is a multiple of the last place of c. Without them, the
 * same in doubles. */
#define TURN_MAX 65536.0f
INLINE vec vreduce(vec x, ivec *ret_n, vec *ret_lo)
{
#if CPU_AVX2 || CPU_AVX512
    const vec magic = vset(12582912.0f), p2 = vset(-4.37113883e-8f); /* 1.5 2^23: rounds to an integer */
    const vec t = x * 0.636619772f + magic, n = t - magic, high = x - n * 1.57079637f;
    vec c = n * p2, r;

    __asm__("" : "+x"(c)); /* the compiler must not fuse this product with the subtractions below */
    r = high - c;
    *ret_n = (ivec)t;
    *ret_lo = (high - r) - c - vmul_sub(n, p2, c) - n * -1.71512451e-15f;
    return r;
#else
    typedef double wide __attribute__((vector_size(2 * VEC_BYTES)));
    const wide magic = 6755399441055744.0 - (wide){0}; /* 1.5 2^52 */
    wide d = __builtin_convertvector(x, wide), n = (d * 0.63661977236758134308 + magic) - magic;
    vec r;

    d = d - n * 1.57079632673412561417e+00 - n * 6.07710050650619224932e-11;
    r = __builtin_convertvector(d, vec);
    *ret_n = __builtin_convertvector(n, ivec);
    *ret_lo = __builtin_convertvector(d - __builtin_convertvector(r, wide), vec);
    return r;
#endif
}
/* Both functions of x from one reduction, by polynomials on -pi/4 .. pi/4 (Cephes): error below 1.5 units in the last
 * place. An argument beyond TURN_MAX is left to the C library, lane by lane. */
INLINE void vsincos(vec x, vec *ret_sin, vec *ret_cos)
{
    const ivec far = vabs(x) > TURN_MAX;
    ivec n, odd;
    vec lo, r = vreduce(x, &n, &lo), z = r * r, s, c;

    s = (z * -1.9515295891e-4f + 8.3321608736e-3f) * z - 1.6666654611e-1f;
    s = s * (z * r) + lo + r;
    c = (z * 2.443315711809948e-5f - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
    c = (c * z - 0.5f) * z + 1.0f;
    odd = -(n & 1);
    *ret_sin = (vec)((ivec)vsel(odd, c, s) ^ ((n & 2) << 30));
    *ret_cos = (vec)((ivec)vsel(odd, s, c) ^ (((n + 1) & 2) << 30));
    if (__builtin_expect(vany(far), 0))
        for (int i = 0; i < W; i++)
            if (far[i]) {
                (*ret_sin)[i] = (float)sin((double)x[i]);
                (*ret_cos)[i] = (float)cos((double)x[i]);
            }
}
INLINE vec vsin(vec x)
{
    vec s, c;

    vsincos(x, &s, &c);
    return s;
}
INLINE vec vcos(vec x)
{
    vec s, c;

    vsincos(x, &s, &c);
    return c;
}
/* erf: odd polynomial below 0.9277, else 1 - e^p(|x|) (after N. Juffa): error about 1 unit in the last place.
 */
INLINE vec verf(vec x)
{
    vec a = vabs(x), s = x * x;
    vec r = a * -1.72853470e-5f + 3.83197126e-4f;
    vec u = a * -3.88396438e-3f + 2.42546219e-2f;
    vec q = vset(-5.96761703e-4f);

    r = r * s + u;
    r = r * a - 1.06777877e-1f;
    r = r * a - 6.34846687e-1f;
    r = r * a - 1.28717512e-1f;
    r = r * a - a;
    r = 1.0f - vexp(r);
    r = vsel(a > 4.0f, vset(1.0f), r); /* from 3.93 on the float is 1; keeps the polynomial in its range */
    r = (vec)((ivec)r | ((ivec)x & (ivec)vset(-0.0f)));
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    q = q * x + x;
    return vsel(a > 0.927734375f, r, q);
}
#endif

INLINE vec vsigmoid(vec x)
{
    return 1 / (1 + vexp(-x));
}
#if CPU_F64
INLINE vec vgelu(vec x)
{
    return (real)0.5 * x * (1 + verf(x * (real)0.70710678118654752440));
}
INLINE vec vdgelu(vec x)
{
    vec phi = (real)0.39894228040143267794 * vexp((real)-0.5 * x * x);

    return (real)0.5 * (1 + verf(x * (real)0.70710678118654752440)) + x * phi;
}
#else
/* The normal distribution Phi(x), and e = exp(-x^2 / 2). The tail Phi(-|x|) is e times a polynomial in
 * t = 1 / (1 + 0.26 |x|) of relative error 2e-8 (fitted to erfcx on 0..13): so it is right in relative terms
 * too, which 1 + erf is not, and costs one exponential. */
INLINE vec vnormal(vec x, vec *ret_e)
{
    vec a = vabs(x), t = vrecip(a * 0.26f + 1), p = vset(0.03106697089970112f), e = vexp(-0.5f * x * x);

    p = p * t - 0.15557904541492462f;
    p = p * t + 0.25722065567970276f;
    p = p * t - 0.157572403550148f;
    p = p * t + 0.1655854731798172f;
    p = p * t + 0.04901789501309395f;
    p = p * t + 0.10355571657419205f;
    p = p * t + 0.10294108092784882f;
    p = p * t + 0.103763647377491f;
    p = p * t * e;
    *ret_e = e;
    return vsel(x > 0, 1 - p, p);
}
INLINE vec vgelu(vec x)
{
    vec e;

    return x * vnormal(x, &e);
}
INLINE vec vdgelu(vec x)
{
    vec e, phi = vnormal(x, &e);

    return phi + x * (0.39894228040143267794f * e);
}
#endif
#define GELU_C ((real)0.79788456080286535588)
#define GELU_A ((real)0.044715)
INLINE vec vgelu_tanh(vec x)
{
    return (real)0.5 * x * (1 + vtanh(GELU_C * (x + GELU_A * x * x * x)));
}
INLINE vec vdgelu_tanh(vec x)
{
    vec x2 = x * x, t = vtanh(GELU_C * (x + GELU_A * x2 * x));

    return (real)0.5 * (1 + t) + (real)0.5 * x * (1 - t * t) * (GELU_C * (1 + 3 * GELU_A * x2));
}
/* x^p by repeated squaring; x^0 = 1. */
INLINE vec vpow(vec x, int p)
{
    vec r = vset(1), b = x;

    for (; p > 0; p >>= 1) {
        if (p & 1)
            r = r * b;
        if (p > 1)
            b = b * b;
    }
    return r;
}
/* Sum of a[i] b[i], dense. */
INLINE real vdot(int64_t n, const real *a, const real *b)
{
    vec s0 = vzero(), s1 = vzero(), s2 = vzero(), s3 = vzero();
    int64_t k = 0;

    for (; k + 4 * W <= n; k += 4 * W) {
        s0 += vld(a + k) * vld(b + k);
        s1 += vld(a + k + W) * vld(b + k + W);
        s2 += vld(a + k + 2 * W) * vld(b + k + 2 * W);
        s3 += vld(a + k + 3 * W) * vld(b + k + 3 * W);
    }
    for (; k + W <= n; k += W)
        s0 += vld(a + k) * vld(b + k);
    if (k < n)
        s1 += vldn(a + k, n - k) * vldn(b + k, n - k);
    return vsum((s0 + s1) + (s2 + s3));
}
