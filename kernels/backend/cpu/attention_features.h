/* kernels/backend/cpu/attention_features.h: features of x and x^2, a block at a time (attention_linear.c). */
#pragma once

#include "kernels/backend/cpu/attention_tile.h"

/* Features x_a x_b, b = b0 .. b0 + n - 1, are rows `at` and on of St. x^1: just x_b. */
struct block {
    int64_t a, b0, n, at;
};

static inline int64_t feature_count(const struct attention *j)
{
    return j->a->degree == 1 ? j->d : j->d * (j->d + 1) / 2;
}

static inline bool block_first(const struct attention *j, struct block *x)
{
    *x = (struct block){0, 0, cpu_min(TILE, j->d), 0};
    return true;
}

static inline bool block_next(const struct attention *j, struct block *x)
{
    x->at += x->n;
    x->b0 += x->n;
    if (x->b0 >= j->d) {
        if (j->a->degree == 1 || ++x->a >= j->d)
            return false;
        x->b0 = x->a;
    }
    x->n = cpu_min(TILE, j->d - x->b0);
    return true;
}

/* f (n, block) = features of n rows. */
static inline void features(const struct attention *j, const struct block *k, bool key, int64_t n,
                            const real *x, real *f)
{
    for (int64_t i = 0; i < n; i++) {
        const real *from = x + i * j->ld;
        const real by = j->a->degree == 1 ? 1 : key ? 2 * from[k->a] : from[k->a];

        for (int64_t c = 0; c < k->n; c += W)
            vst(f + i * TILE + c, by * vld(from + k->b0 + c));
        if (j->a->degree == 2 && key && k->b0 == k->a)
            f[i * TILE] *= (real)0.5;
    }
}

/* state (features, ls) += F(x)' y; f is scratch (TILE, TILE) */
static inline void accumulate(const struct attention *j, real *f, bool key, int64_t n, const real *x,
                              const real *y, real *state, int64_t ls)
{
    struct block k;

    for (bool more = block_first(j, &k); more; more = block_next(j, &k)) {
        features(j, &k, key, n, x, f);
        micro_gemm(MICRO_COL, k.n, cpu_div_up(j->d, W), n, f, y, j->ld, state + k.at * ls, ls, true);
    }
}

/* acc += F(x) state */
static inline void apply(const struct attention *j, real *f, bool key, int64_t n, const real *x,
                         const real *state, int64_t ls, real *acc)
{
    struct block k;

    for (bool more = block_first(j, &k); more; more = block_next(j, &k)) {
        features(j, &k, key, n, x, f);
        micro_gemm(MICRO_ROW, n, cpu_div_up(j->d, W), k.n, f, state + k.at * ls, ls, acc, j->ld, true);
    }
}

/* s = phi of the scores within a chunk; lanes are queries, and key r is visible from lane r on. */
static inline void square_forward(const struct attention *j, int64_t n, real *s)
{
    const int64_t nv = cpu_div_up(n, W);

    for (int64_t r = 0; r < n; r++)
        for (int64_t v = 0; v < nv; v++) {
            vec x = vld(s + r * TILE + v * W);

            vst(s + r * TILE + v * W,
                masked(vlane() + (ireal)(v * W) >= (ireal)r, j->a->degree == 1 ? x : x * x));
        }
}
