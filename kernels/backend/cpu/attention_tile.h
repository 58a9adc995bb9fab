/* kernels/backend/cpu/attention_tile.h: tiles of attention: scratch, what is visible, copies, products.
 *
 * A tile is TILE queries against a block of at most KEYS keys, stored transposed, (keys, TILE): vector lanes
 * are queries. So the softmax statistics of a query are lanes and need no horizontal sums, a masked key is
 * a whole row, and both kinds of products that follow read the tile by constant strides without packing. */
#pragma once

#include "kernels/backend/cpu/attention.h"
#include "kernels/backend/cpu/random.h"

/* Scratch of one thread. */
struct tile {
    real *kr, *vr;   /* rows of the key block, (keys, ld) */
    real *kp, *vp;   /* the same in panels, when d is too long for constant strides */
    real *qt, *dyt;  /* (d, TILE): tau Q' and dY' of the tile */
    real *qr, *dyr;  /* (TILE, ld) */
    real *s, *g;     /* (keys, TILE): S', then P'; dP', then dS' */
    real *acc;       /* forward: Y of the group; backward: dQ; (queries, ld) */
    real *dk, *dv;   /* (keys, ld) */
    real *max, *sum; /* forward: running statistics; backward: sums and rowsum(dY Y); per query */
    uint64_t *kept;  /* queries that dropout keeps in a key's row, as bits */
};

static inline void tile_scratch(const struct attention *j, struct tile *t, struct cpu_scratch *s)
{
    const size_t keys = (size_t)cpu_round_up(j->keys, MR), ld = (size_t)j->ld, d = (size_t)j->d,
                 one = sizeof(real);
    const size_t queries = (size_t)cpu_round_up(j->group, TILE);
    const bool backward = j->backward, panels = j->d > 2 * TILE;

    memset(t, 0, sizeof *t);
    if (j->few) {
        t->s = cpu_take(s, (size_t)j->nk * one);
        return;
    }
    t->kr = cpu_take(s, keys * ld * one);
    t->vr = cpu_take(s, keys * ld * one);
    if (panels) {
        t->kp = cpu_take(s, keys * d * one);
        t->vp = cpu_take(s, keys * d * one);
    }
    t->qt = cpu_take(s, d * TILE * one);
    t->s = cpu_take(s, keys * TILE * one);
    t->acc = cpu_take(s, queries * ld * one);
    t->max = cpu_take(s, queries * one);
    t->sum = cpu_take(s, queries * one);
    if (j->rng)
        t->kept = cpu_take(s, (size_t)cpu_round_up(j->keys, 64) * sizeof *t->kept);
    if (backward) {
        t->dyt = cpu_take(s, d * TILE * one);
        t->qr = cpu_take(s, TILE * ld * one);
        t->dyr = cpu_take(s, TILE * ld * one);
        t->g = cpu_take(s, keys * TILE * one);
        t->dk = cpu_take(s, keys * ld * one);
        t->dv = cpu_take(s, keys * ld * one);
    }
}

static inline void job_scratch(struct attention *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct tile t;

    tile_scratch(j, &t, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
    if (j->bias)
        j->bias_t = cpu_take(s, (size_t)(j->heads * j->tiles * j->nk * TILE) * sizeof(real));
    if (j->windows)
        j->seen = cpu_take(s, (size_t)(j->windows * j->tiles * j->nk) * sizeof *j->seen);
    if (!j->backward)
        return;
    j->dscale = cpu_take(s, (size_t)(j->batch * j->heads) * sizeof(double));
    if (j->bias)
        j->dbias_t = cpu_take(s, (size_t)(j->runs * j->heads * j->tiles * j->nk * TILE) * sizeof(real));
}

/* ---- preparation for all tiles ---- */

static inline void bias_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const int64_t h = task / j->tiles, i0 = task % j->tiles * TILE, lanes = cpu_min(TILE, j->nq - i0);
    const struct pk_view *v = j->bias;
    const real *from = (const real *)v->data + h * v->stride[0] + i0 * v->stride[1];
    real *to = j->bias_t + task * j->nk * TILE;

    (void)thread;
    memset(to, 0, (size_t)(j->nk * TILE) * sizeof(real));
    for (int64_t i = 0; i < lanes; i++)
        for (int64_t k = 0; k < j->nk; k++)
            to[k * TILE + i] = from[i * v->stride[1] + k * v->stride[2]];
}

static inline void seen_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const int64_t i0 = task % j->tiles * TILE, lanes = cpu_min(TILE, j->nq - i0);
    const struct pk_view *v = j->mask;
    const uint8_t *from = (const uint8_t *)v->data + task / j->tiles * v->stride[0] + i0 * v->stride[1];
    uint64_t *to = j->seen + task * j->nk;

    (void)thread;
    memset(to, 0, (size_t)j->nk * sizeof *to);
    for (int64_t i = 0; i < lanes; i++)
        for (int64_t k = 0; k < j->nk; k++)
            to[k] |= (uint64_t)(from[i * v->stride[1] + k * v->stride[2]] != 0) << i;
}

static inline void prepare(struct attention *j, struct cpu_pool *pool)
{
    if (j->bias)
        cpu_pool_run(pool, j->heads * j->tiles, bias_task, j);
    if (j->windows)
        cpu_pool_run(pool, j->windows * j->tiles, seen_task, j);
}

/* ---- visibility ---- */

/* The part of one tile that is visible: rows 0 .. n-1, of which those from `full` on only to the lanes
 * from (row - edge) on; hidden (may be NULL, with stride) names masked keys by 0. */
struct view {
    int64_t n, full, edge, lanes;
    const uint8_t *shown;
    int64_t shown_stride;
    const uint64_t *bits; /* window masks: the lanes that see a row; NULL = all */
};

static inline struct view view_of(const struct attention *j, int64_t b, int64_t shift, int64_t i0,
                                  int64_t lanes, int64_t k0, int64_t kn)
{
    struct view w = {.n = kn, .full = kn, .lanes = lanes};

    if (j->a->causal) {
        w.n = cpu_max(0, cpu_min(kn, i0 + lanes + shift - k0));
        w.full = cpu_max(0, cpu_min(w.n, i0 + shift + 1 - k0));
        w.edge = i0 + shift - k0;
    }
    if (j->windows) {
        if (!j->a->causal)
            w.edge = kn; /* every lane is past it */
        w.full = 0;
        w.bits = j->seen + (b % j->windows * j->tiles + i0 / TILE) * j->nk + k0;
    } else if (j->mask) {
        w.shown_stride = j->mask->stride[1];
        w.shown = (const uint8_t *)j->mask->data + b * j->mask->stride[0] + k0 * w.shown_stride;
    }
    return w;
}

INLINE bool row_shown(const struct view *w, int64_t r)
{
    return !w->shown || w->shown[r * w->shown_stride];
}
/* All ones where bit `v * W + i` is set. */
INLINE ivec lanes_of(uint64_t bits, int64_t v)
{
    ivec b = (ireal)(bits >> (v * W) & ((1u << W) - 1)) - (ivec){0};

    return (b & (((ivec){0} + 1) << vlane())) != 0;
}
/* All ones where lane `v * W + i` sees row r. */
INLINE ivec lanes_shown(const struct view *w, int64_t r, int64_t v)
{
    ivec m = vlane() + (ireal)(v * W) >= (ireal)(r - w->edge);

    return w->bits ? m & lanes_of(w->bits[r], v) : m;
}
INLINE vec masked(ivec m, vec x)
{
    return (vec)(m & (ivec)x);
}

/* ---- copies ---- */

#if CPU_AVX512 && !CPU_F64
/* Transposes a 16 x 16 square in registers: four rounds of exchanges between rows s apart. */
INLINE void transpose_square(vec *r)
{
#pragma GCC unroll 4
    for (int s = 8; s >= 1; s /= 2) {
        ivec lo = {0}, hi = {0};

        for (int i = 0; i < 16; i++) {
            lo[i] = i & s ? 16 + i - s : i;
            hi[i] = i & s ? 16 + i : i + s;
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (!(i & s)) {
                vec a = r[i], b = r[i + s];

                r[i] = (vec)_mm512_permutex2var_ps((__m512)a, (__m512i)lo, (__m512)b);
                r[i + s] = (vec)_mm512_permutex2var_ps((__m512)a, (__m512i)hi, (__m512)b);
            }
    }
}
#endif

/* to (d, TILE) = factor * rows', n <= TILE rows; lanes from n to whole vectors are 0. */
static inline void load_transposed(int64_t n, int64_t d, const real *from, int64_t sn, int64_t sd,
                                   real factor, real *to)
{
    const int64_t lanes = cpu_round_up(n, W);
    int64_t i = 0;

#if CPU_AVX512 && !CPU_F64
    if (sd == 1 && d % 16 == 0)
        for (; i < n; i += 16)
            for (int64_t c = 0; c < d; c += 16) {
                vec r[16];

#pragma GCC unroll 16
                for (int64_t k = 0; k < 16; k++)
                    r[k] = i + k < n ? vld(from + (i + k) * sn + c) * factor : vzero();
                transpose_square(r);
#pragma GCC unroll 16
                for (int64_t k = 0; k < 16; k++)
                    vst(to + (c + k) * TILE + i, r[k]);
            }
#endif
    for (; i < n; i++)
        for (int64_t c = 0; c < d; c++)
            to[c * TILE + i] = from[i * sn + c * sd] * factor;
    for (; i < lanes; i++)
        for (int64_t c = 0; c < d; c++)
            to[c * TILE + i] = 0;
}

/* to (n, ld) = factor * rows; columns from d to ld are 0. */
static inline void load_rows(int64_t n, int64_t d, int64_t ld, const real *from, int64_t sn, int64_t sd,
                             real factor, real *to)
{
    for (int64_t i = 0; i < n; i++) {
        const real *x = from + i * sn;
        real *t = to + i * ld;
        int64_t c = 0;

        if (sd == 1)
            for (; c + W <= d; c += W)
                vst(t + c, vld(x + c) * factor);
        for (; c < d; c++)
            t[c] = x[c * sd] * factor;
        for (; c < ld; c++)
            t[c] = 0;
    }
}

static inline void store_rows(int64_t n, int64_t d, int64_t ld, const real *from, real factor,
                              const real *row_factor, real *to, int64_t sn)
{
    for (int64_t i = 0; i < n; i++) {
        real f = row_factor ? factor * row_factor[i] : factor;
        const real *x = from + i * ld;
        real *t = to + i * sn;
        int64_t c = 0;

        for (; c + W <= d; c += W)
            vst(t + c, vld(x + c) * f);
        for (; c < d; c++)
            t[c] = x[c] * f;
    }
}

static inline void zero_rows(int64_t n, int64_t d, real *to, int64_t sn)
{
    for (int64_t i = 0; i < n; i++)
        memset(to + i * sn, 0, (size_t)d * sizeof(real));
}

/* Rows i0 .. i0+n-1 of dY times the factor of row_power, and the same transposed (NULL: omitted). */
static inline void scale_rows(const struct attention *j, int64_t b, int64_t i0, int64_t n, real *rows,
                              real *turned)
{
    for (int64_t i = 0; j->a->row_power != 0 && i < n; i++) {
        real f = row_factor(j, b, i0 + i);

        for (int64_t c = 0; c < j->ld; c++)
            rows[i * j->ld + c] *= f;
        for (int64_t c = 0; turned && c < j->d; c++)
            turned[c * TILE + i] *= f;
    }
}

/* ---- products ---- */

/* s (n, lanes) = rows of the key block times a transposed tile. */
static inline void product_keys(const struct attention *j, int64_t n, int64_t lanes, const real *rows,
                                const real *panels, const real *tile, real *s)
{
    int64_t nv = cpu_div_up(lanes, W);

    if (j->ld == TILE)
        micro_gemm(MICRO_ROW, n, nv, j->d, rows, tile, TILE, s, TILE, false);
    else if (panels)
        micro_gemm(MICRO_PANEL, n, nv, j->d, panels, tile, TILE, s, TILE, false);
    else
        micro_gemm(MICRO_ROW2, n, nv, j->d, rows, tile, TILE, s, TILE, false);
}

/* acc (lanes, d) += S (lanes, n) rows (n, d). */
static inline void product_queries(const struct attention *j, int64_t n, int64_t lanes, const real *s,
                                   const real *rows, real *acc)
{
    micro_gemm(MICRO_COL, lanes, cpu_div_up(j->d, W), n, s, rows, j->ld, acc, j->ld, true);
}

/* acc (n, d) += S' (n, lanes) rows (lanes, d). */
static inline void product_back(const struct attention *j, int64_t n, int64_t lanes, const real *s,
                                const real *rows, real *acc)
{
    micro_gemm(MICRO_ROW, n, cpu_div_up(j->d, W), lanes, s, rows, j->ld, acc, j->ld, true);
}

static inline void load_keys(const struct attention *j, const struct tile *t, int64_t b, int64_t h,
                             int64_t k0, int64_t n, bool values_as_panels)
{
    const real *k = j->k.p + b * j->k.sb + h * j->k.sh + k0 * j->k.sn;
    const real *v = j->v.p + b * j->v.sb + h * j->v.sh + k0 * j->v.sn;

    load_rows(n, j->d, j->ld, k, j->k.sn, j->k.sd, 1, t->kr);
    load_rows(n, j->d, j->ld, v, j->v.sn, j->v.sd, 1, t->vr);
    if (t->kp) {
        micro_pack(n, j->d, t->kr, j->ld, 1, t->kp);
        if (values_as_panels)
            micro_pack(n, j->d, t->vr, j->ld, 1, t->vp);
    }
}

/* ---- bias and dropout ---- */

static inline void add_bias(const struct attention *j, const struct view *w, int64_t h, int64_t i0,
                            int64_t k0, real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const real *from = j->bias_t + ((h * j->tiles + i0 / TILE) * j->nk + k0) * TILE;

    for (int64_t r = 0; r < w->n; r++)
        for (int64_t v = 0; v < nv; v++)
            vst(s + r * TILE + v * W, vld(s + r * TILE + v * W) + vld(from + r * TILE + v * W));
}

/* Draws which queries of the tile keep which of n keys from k0, a multiple of 64, on. */
static inline void draw_tile(const struct attention *j, const struct draw *d, int64_t b, int64_t h,
                             int64_t i0, int64_t lanes, int64_t k0, int64_t n, uint64_t *kept)
{
    const uint32_t row = d->first + (uint32_t)((b * j->heads + h) * j->nq + i0);

    for (int64_t g = 0; g < n; g += 64)
        for (int64_t l = 0; l < cpu_min(16, n - g); l++) {
            uint64_t bits[4] = {0};

            for (int64_t i = 0; i < lanes; i += LANES) {
                uvec c[4] = {uset((uint32_t)((k0 + g) / 4 + l)), ulane() + (row + (uint32_t)i), uset(d->step),
                             uset(d->stream)};

                uphilox(d->key, c);
                for (int w = 0; w < 4; w++)
                    bits[w] |= (uint64_t)uat_least(c[w], d->threshold) << i;
            }
            for (int w = 0; w < 4; w++)
                kept[g + 16 * w + l] = bits[w];
        }
}

static inline void drop_tile(const struct view *w, const uint64_t *kept, real factor, real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t r = 0; r < w->n; r++)
        for (int64_t v = 0; v < nv; v++)
            vst(s + r * TILE + v * W, masked(lanes_of(kept[r], v), vld(s + r * TILE + v * W) * factor));
}
