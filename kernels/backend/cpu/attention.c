/* ATTENTION and ATTENTION_BWD: y = c phi(tau q k^T) v without ever holding N x N.
 *
 * A tile is TILE queries against a block of at most KEYS keys, stored transposed, (keys, TILE): vector lanes
 * are queries. So the softmax statistics of a query are lanes and need no horizontal sums, a masked key is
 * a whole row, and both kinds of products that follow read the tile by constant strides without packing:
 *
 *     S' = K (tau Q)'          forward and backward      Y  += P V
 *     dP' = V dY'              backward                  dV += P' dY    dK += dS' (tau Q)    dQ += dS K
 *
 * Polynomials are additive over key blocks; softmax keeps a running maximum and sum when there is more than
 * one block. Masks act after phi, by choosing 0: a masked entry is exactly 0 even where phi overflows.
 * Factors that are one number per head (c, p, tau) are applied to results, not to scores.
 *
 * Forward tasks are (batch, head, group of queries); backward tasks are (batch, head), so that dK and dV
 * belong to one task. The gradient of a learned scale is a double per task, added in order. */
#include "kernels/backend/cpu/attention.h"

/* Scratch of one thread. */
struct tile {
    real *kr, *vr;   /* rows of the key block, (keys, ld) */
    real *kp, *vp;   /* the same in panels, when d is too long for constant strides */
    real *qt, *dyt;  /* (d, TILE): tau Q' and dY' of the tile */
    real *qr, *dyr;  /* (TILE, ld) */
    real *s, *g;     /* (keys, TILE): S', then P'; dP', then dS' */
    real *acc;       /* forward: Y of the group; backward: dQ; (queries, ld) */
    real *dk, *dv;   /* (keys, ld) */
    real *max, *sum; /* forward: running statistics; backward: lse and rowsum(dY Y); per query */
};

static void tile_scratch(const struct attention *j, struct tile *t, struct cpu_scratch *s)
{
    const size_t keys = (size_t)cpu_round_up(j->keys, MR), ld = (size_t)j->ld, d = (size_t)j->d,
                 one = sizeof(real);
    const size_t queries = (size_t)cpu_round_up(j->group, TILE);
    bool backward = j->c->op == PK_OP_ATTENTION_BWD, panels = j->d > 2 * TILE;

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
    if (backward) {
        t->dyt = cpu_take(s, d * TILE * one);
        t->qr = cpu_take(s, TILE * ld * one);
        t->dyr = cpu_take(s, TILE * ld * one);
        t->g = cpu_take(s, keys * TILE * one);
        t->dk = cpu_take(s, keys * ld * one);
        t->dv = cpu_take(s, keys * ld * one);
    }
}

static void job_scratch(struct attention *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct tile t;

    tile_scratch(j, &t, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
    if (j->c->op == PK_OP_ATTENTION_BWD)
        j->dscale = cpu_take(s, (size_t)(j->batch * j->heads) * sizeof(double));
}

size_t PK_FN(attention_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct attention j;

    attention_shape(&j, c);
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

/* ---- what is visible ---- */

/* The part of one tile that is visible: rows 0 .. n-1, of which those from `full` on only to the lanes
 * from (row - edge) on; hidden (may be NULL, with stride) names masked keys by 0. */
struct view {
    int64_t n, full, edge, lanes;
    const uint8_t *shown;
    int64_t shown_stride;
};

static struct view view_of(const struct attention *j, int64_t b, int64_t shift, int64_t i0, int64_t lanes,
                           int64_t k0, int64_t kn)
{
    struct view w = {.n = kn, .full = kn, .lanes = lanes};

    if (j->a->causal) {
        w.n = cpu_max(0, cpu_min(kn, i0 + lanes + shift - k0));
        w.full = cpu_max(0, cpu_min(w.n, i0 + shift + 1 - k0));
        w.edge = i0 + shift - k0;
    }
    if (j->mask) {
        w.shown_stride = j->mask->stride[1];
        w.shown = (const uint8_t *)j->mask->data + b * j->mask->stride[0] + k0 * w.shown_stride;
    }
    return w;
}

INLINE bool row_shown(const struct view *w, int64_t r)
{
    return !w->shown || w->shown[r * w->shown_stride];
}
/* All ones where lane `v * W + i` sees row r. */
INLINE ivec lanes_shown(const struct view *w, int64_t r, int64_t v)
{
    return vlane() + (ireal)(v * W) >= (ireal)(r - w->edge);
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
static void load_transposed(int64_t n, int64_t d, const real *from, int64_t sn, int64_t sd, real factor,
                            real *to)
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
static void load_rows(int64_t n, int64_t d, int64_t ld, const real *from, int64_t sn, int64_t sd, real factor,
                      real *to)
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

static void store_rows(int64_t n, int64_t d, int64_t ld, const real *from, real factor,
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

static void zero_rows(int64_t n, int64_t d, real *to, int64_t sn)
{
    for (int64_t i = 0; i < n; i++)
        memset(to + i * sn, 0, (size_t)d * sizeof(real));
}

/* ---- products ---- */

/* s (n, lanes) = rows of the key block times a transposed tile. */
static void product_keys(const struct attention *j, int64_t n, int64_t lanes, const real *rows,
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
static void product_queries(const struct attention *j, int64_t n, int64_t lanes, const real *s,
                            const real *rows, real *acc)
{
    micro_gemm(MICRO_COL, lanes, cpu_div_up(j->d, W), n, s, rows, j->ld, acc, j->ld, true);
}

/* acc (n, d) += S' (n, lanes) rows (lanes, d). */
static void product_back(const struct attention *j, int64_t n, int64_t lanes, const real *s, const real *rows,
                         real *acc)
{
    micro_gemm(MICRO_ROW, n, cpu_div_up(j->d, W), lanes, s, rows, j->ld, acc, j->ld, true);
}

/* ---- phi, forward ---- */

#define ROWS_FORWARD(f)                                                                                      \
    do {                                                                                                     \
        for (int64_t r = 0; r < w->n; r++) {                                                                 \
            real *row = s + r * TILE;                                                                        \
            if (!row_shown(w, r)) {                                                                          \
                for (int64_t v = 0; v < nv; v++)                                                             \
                    vst(row + v * W, vzero());                                                               \
            } else if (r < w->full) {                                                                        \
                for (int64_t v = 0; v < nv; v++) {                                                           \
                    vec x = vld(row + v * W);                                                                \
                    vst(row + v * W, f);                                                                     \
                }                                                                                            \
            } else {                                                                                         \
                for (int64_t v = 0; v < nv; v++) {                                                           \
                    vec x = vld(row + v * W);                                                                \
                    vst(row + v * W, masked(lanes_shown(w, r, v), f));                                       \
                }                                                                                            \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

static void phi_forward(const struct pk_attention_attr *a, const struct view *w, real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const real bias = (real)a->bias;

    switch (a->phi) {
    case PK_PHI_SIGMOID:
        ROWS_FORWARD(vsigmoid(x + bias));
        break;
    case PK_PHI_RELU:
        ROWS_FORWARD(vmax(x + bias, vzero()));
        break;
    default:
        if (bias != 0)
            for (int64_t r = 0; r < w->n; r++)
                for (int64_t v = 0; v < nv; v++)
                    vst(s + r * TILE + v * W, vld(s + r * TILE + v * W) + bias);
        switch (a->degree) {
        case 1:
            ROWS_FORWARD(x);
            break;
        case 2:
            ROWS_FORWARD(x * x);
            break;
        case 3:
            ROWS_FORWARD(x * x * x);
            break;
        default:
            ROWS_FORWARD(vpow(x, a->degree));
        }
    }
}

/* exp of the tile against the running maximum; the accumulated output shrinks when the maximum grows. */
static void softmax_forward(const struct attention *j, const struct view *w, real *s, real *max, real *sum,
                            real *acc, bool first)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const vec lowest = vset(-INFINITY);
    real shrink[TILE];
    bool shrunk = false;

    for (int64_t v = 0; v < nv; v++) {
        vec old = vld(max + v * W), m = old, base, f, total;

        for (int64_t r = 0; r < w->n; r++) {
            real *at = s + r * TILE + v * W;

            if (!row_shown(w, r))
                continue;
            if (r >= w->full)
                vst(at, vsel(lanes_shown(w, r, v), vld(at), lowest));
            m = vmax(vld(at), m);
        }
        vst(max + v * W, m);
        base = vsel(m == lowest, vzero(), m);
        f = vexp(old - base);
        total = first ? vzero() : vld(sum + v * W) * f;
        for (int64_t r = 0; r < w->n; r++) {
            real *at = s + r * TILE + v * W;
            vec e = row_shown(w, r) ? vexp(vld(at) - base) : vzero();

            total += e;
            vst(at, e);
        }
        vst(sum + v * W, total);
        vst(shrink + v * W, f);
    }
    for (int64_t i = 0; !first && i < w->lanes; i++)
        shrunk = shrunk || shrink[i] != 1;
    for (int64_t i = 0; shrunk && i < w->lanes; i++)
        for (int64_t c = 0; c < j->ld; c += W)
            vst(acc + i * j->ld + c, vld(acc + i * j->ld + c) * shrink[i]);
}

static void load_keys(const struct attention *j, const struct tile *t, int64_t b, int64_t h, int64_t k0,
                      int64_t n, bool values_as_panels)
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

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const bool softmax = j->a->phi == PK_PHI_SOFTMAX;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t b = task / j->groups / j->heads, h = task / j->groups % j->heads;
    int64_t q0 = task % j->groups * j->group, q1 = cpu_min(j->nq, q0 + j->group), shift = shift_of(j, b);
    int64_t end = keys_of(j, b);
    real factor = (real)factor_of(j, h);
    struct tile t;

    tile_scratch(j, &t, &scratch);
    if (j->a->causal)
        end = cpu_max(0, cpu_min(end, q1 + shift));
    memset(t.acc, 0, (size_t)(cpu_round_up(q1 - q0, TILE) * j->ld) * sizeof(real));
    for (int64_t i = 0; i < cpu_round_up(q1 - q0, TILE); i++) {
        t.max[i] = -INFINITY;
        t.sum[i] = 0;
    }
    for (int64_t k0 = 0; k0 < end; k0 += j->keys) {
        int64_t kn = cpu_min(j->keys, end - k0);

        load_keys(j, &t, b, h, k0, kn, false);
        for (int64_t i0 = q0; i0 < q1; i0 += TILE) {
            int64_t lanes = cpu_min(TILE, q1 - i0);
            struct view w = view_of(j, b, shift, i0, lanes, k0, kn);
            real *acc = t.acc + (i0 - q0) * j->ld;

            if (w.n == 0)
                continue;
            load_transposed(lanes, j->d, j->q.p + b * j->q.sb + h * j->q.sh + i0 * j->q.sn, j->q.sn, j->q.sd,
                            (real)j->a->tau, t.qt);
            product_keys(j, w.n, lanes, t.kr, t.kp, t.qt, t.s);
            if (softmax)
                softmax_forward(j, &w, t.s, t.max + (i0 - q0), t.sum + (i0 - q0), acc, k0 == 0);
            else
                phi_forward(j->a, &w, t.s);
            product_queries(j, w.n, lanes, t.s, t.vr, acc);
        }
    }
    if (softmax)
        for (int64_t i = q0; i < q1; i++) {
            real sum = t.sum[i - q0];

            /* A bias shifts every logit alike: it cancels in A and counts in lse alone. */
            j->lse[(b * j->heads + h) * j->nq + i] =
                sum > 0 || sum != sum ? t.max[i - q0] + (real)(log((double)sum) + j->a->bias)
                                      : (real)-INFINITY;
            t.sum[i - q0] = sum == 0 ? 0 : 1 / sum;
        }
    store_rows(q1 - q0, j->d, j->ld, t.acc, factor, softmax ? t.sum : NULL,
               j->y.p + b * j->y.sb + h * j->y.sh + q0 * j->y.sn, j->y.sn);
}

/* ---- few queries: each key and value is read once ---- */

INLINE real phi_one(const struct pk_attention_attr *a, real x)
{
    switch (a->phi) {
    case PK_PHI_SIGMOID:
        return vsigmoid(vset(x + (real)a->bias))[0];
    case PK_PHI_RELU:
        x += (real)a->bias;
        return x > 0 ? x : 0;
    default:
        return vpow(vset(x + (real)a->bias), a->degree)[0];
    }
}

static void few_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const bool softmax = j->a->phi == PK_PHI_SOFTMAX;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t b = task / j->heads, h = task % j->heads, shift = shift_of(j, b);
    const real *k = j->k.p + b * j->k.sb + h * j->k.sh, *v = j->v.p + b * j->v.sb + h * j->v.sh;
    struct tile t;

    tile_scratch(j, &t, &scratch);
    for (int64_t i = 0; i < j->nq; i++) {
        const real *q = j->q.p + b * j->q.sb + h * j->q.sh + i * j->q.sn;
        real *y = j->y.p + b * j->y.sb + h * j->y.sh + i * j->y.sn, max = -INFINITY,
             factor = (real)factor_of(j, h);
        int64_t end = keys_of(j, b);
        struct view w;
        double sum = 0;

        if (j->a->causal)
            end = cpu_max(0, cpu_min(end, i + shift + 1));
        w = view_of(j, b, shift, 0, 1, 0, end);
        for (int64_t n = 0; n < end; n++) {
            if (!row_shown(&w, n))
                continue;
            t.s[n] = vdot(j->d, q, k + n * j->k.sn) * (real)j->a->tau;
            if (softmax)
                max = t.s[n] > max ? t.s[n] : max;
        }
        for (int64_t n = 0; softmax && n < end; n += W) {
            int64_t lanes = cpu_min(W, end - n);

            if (lanes == W)
                vst(t.s + n, vexp(vld(t.s + n) - max));
            else
                vstn(t.s + n, vexp(vldn(t.s + n, lanes) - max), lanes);
        }
        memset(y, 0, (size_t)j->d * sizeof(real));
        for (int64_t n = 0; n < end; n++) {
            const real *from = v + n * j->v.sn;
            real p;
            int64_t c = 0;

            if (!row_shown(&w, n))
                continue;
            p = softmax ? t.s[n] : phi_one(j->a, t.s[n]);
            sum += (double)p;
            for (; c + W <= j->d; c += W)
                vst(y + c, vld(y + c) + p * vld(from + c));
            for (; c < j->d; c++)
                y[c] += p * from[c];
        }
        if (softmax) {
            j->lse[(b * j->heads + h) * j->nq + i] =
                sum > 0 || sum != sum ? max + (real)(log(sum) + j->a->bias) : (real)-INFINITY;
            factor = sum == 0 ? 0 : factor / (real)sum;
        }
        for (int64_t c = 0; c < j->d; c++)
            y[c] *= factor;
    }
}

enum pd_err PK_FN(attention)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct attention j;

    (void)why;
    attention_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    if (j.nq == 0)
        return PD_OK;
    if (j.few)
        cpu_pool_run(b->pool, j.batch * j.heads, few_task, &j);
    else
        cpu_pool_run(b->pool, j.batch * j.heads * j.groups, forward_task, &j);
    return PD_OK;
}

/* ---- backward ---- */

/* From x = S' and dp = dP' of a row: p goes to s, ds to g, and p dp to the gradient of the scale. */
#define ROWS_BACKWARD(setup, f_p, f_ds)                                                                      \
    do {                                                                                                     \
        for (int64_t r = 0; r < w->n; r++) {                                                                 \
            real *row = s + r * TILE, *grow = g + r * TILE;                                                  \
            const bool shown = row_shown(w, r), whole = r < w->full;                                         \
            for (int64_t v = 0; v < nv; v++) {                                                               \
                vec x = vld(row + v * W), dp = vld(grow + v * W), p, ds;                                     \
                setup;                                                                                       \
                p = (f_p);                                                                                   \
                ds = (f_ds);                                                                                 \
                if (!shown) {                                                                                \
                    p = ds = dp = vzero();                                                                   \
                } else if (!whole) {                                                                         \
                    ivec m = lanes_shown(w, r, v);                                                           \
                    p = masked(m, p);                                                                        \
                    ds = masked(m, ds);                                                                      \
                    dp = masked(m, dp);                                                                      \
                }                                                                                            \
                vst(row + v * W, p);                                                                         \
                vst(grow + v * W, ds);                                                                       \
                if (scaled)                                                                                  \
                    acc[v] += p * dp;                                                                        \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

/* Softmax when the tile holds all keys of its queries. The rounding of lse (large for large logits) is taken
 * out by the row's own sum, and rowsum(P dP) comes from the tile, so that the gradient vanishes exactly where
 * one key is visible. Leaves rowsum(P dP) in acc. */
static void softmax_backward(const struct view *w, real factor, const real *lse, real *s, real *g, vec *acc)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t v = 0; v < nv; v++) {
        const vec l = vld(lse + v * W);
        vec sum = vzero(), dot = vzero(), one_over;

        for (int64_t r = 0; r < w->n; r++) {
            real *at = s + r * TILE + v * W;
            vec p = vzero();

            if (row_shown(w, r)) {
                p = vexp(vld(at) - l);
                if (r >= w->full)
                    p = masked(lanes_shown(w, r, v), p);
                sum += p;
                dot += p * vld(g + r * TILE + v * W);
            }
            vst(at, p);
        }
        one_over = vsel(sum == 0, vzero(), 1 / sum);
        dot *= one_over;
        for (int64_t r = 0; r < w->n; r++) {
            real *at = s + r * TILE + v * W, *gat = g + r * TILE + v * W;
            vec p = vld(at) * one_over, ds = factor * p * (vld(gat) - dot);

            vst(at, p);
            vst(gat, ds);
        }
        acc[v] = dot;
    }
}

/* delta (softmax): rowsum(dY Y) of each query; NULL when the tile holds all keys, and the sum is then taken
 * from the tile itself, so that it cancels exactly where one key is visible. */
static double phi_backward(const struct attention *j, const struct view *w, real factor, const real *lse,
                           const real *delta, real *s, real *g)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const bool scaled = j->scale != NULL;
    const struct pk_attention_attr *a = j->a;
    const real bias = (real)a->bias;
    vec acc[TILE / W], power;
    double total = 0;

    for (int64_t v = 0; v < nv; v++)
        acc[v] = vzero();
    switch (a->phi) {
    case PK_PHI_SOFTMAX:
        if (delta) {
            ROWS_BACKWARD((void)0, vexp(x - vld(lse + v * W)), p * (factor * dp - vld(delta + v * W)));
            break;
        }
        softmax_backward(w, factor, lse, s, g, acc);
        break;
    case PK_PHI_SIGMOID:
        ROWS_BACKWARD((void)0, vsigmoid(x + bias), p * (1 - p) * dp);
        break;
    case PK_PHI_RELU:
        ROWS_BACKWARD(x += bias, vmax(x, vzero()), vsel(x > 0, dp, vzero()));
        break;
    case PK_PHI_POLY:
        switch (a->degree) {
        case 1:
            ROWS_BACKWARD(x += bias, x, dp);
            break;
        case 2:
            ROWS_BACKWARD(x += bias, x * x, x * dp);
            break;
        case 3:
            ROWS_BACKWARD((x += bias, power = x * x), power * x, power * dp);
            break;
        default:
            ROWS_BACKWARD((x += bias, power = vpow(x, a->degree - 1)), power * x, power * dp);
        }
        break;
    }
    if (scaled)
        for (int64_t v = 0; v < nv; v++)
            total += vsum_double(acc[v]);
    return total;
}

static void backward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const struct pk_attention_attr *a = j->a;
    const bool softmax = a->phi == PK_PHI_SOFTMAX;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t b = task / j->heads, h = task % j->heads, shift = shift_of(j, b), end = keys_of(j, b);
    const real *q = j->q.p + b * j->q.sb + h * j->q.sh, *y = j->y.p + b * j->y.sb + h * j->y.sh;
    const real *dy = j->dy.p + b * j->dy.sb + h * j->dy.sh;
    real *dq = j->dq.p + b * j->dq.sb + h * j->dq.sh, *dk = j->dk.p + b * j->dk.sb + h * j->dk.sh;
    real *dv = j->dv.p + b * j->dv.sb + h * j->dv.sh;
    const double c = factor_of(j, h);
    /* What multiplies dS at the end: c and p here, or nothing where dS holds c already. */
    const bool one_block = j->nk <= j->keys;
    const double inner = softmax ? 1 : a->phi == PK_PHI_POLY ? c * a->degree : c;
    double dscale = 0;
    struct tile t;

    tile_scratch(j, &t, &scratch);
    if (a->causal)
        end = cpu_max(0, cpu_min(end, j->nq + shift));
    memset(t.acc, 0, (size_t)(cpu_round_up(j->nq, TILE) * j->ld) * sizeof(real));
    for (int64_t i = 0; softmax && i < cpu_round_up(j->nq, TILE); i++) {
        const struct pk_view *l = j->lse_in;
        double sum = 0;

        t.max[i] = t.sum[i] = 0;
        if (i >= j->nq)
            continue;
        t.max[i] =
            ((const real *)l->data)[b * l->stride[0] + h * l->stride[1] + i * l->stride[2]] - (real)a->bias;
        for (int64_t x = 0; !one_block && x < j->d; x++)
            sum += (double)dy[i * j->dy.sn + x * j->dy.sd] * (double)y[i * j->y.sn + x * j->y.sd];
        t.sum[i] = (real)sum;
    }
    for (int64_t k0 = 0; k0 < end; k0 += j->keys) {
        int64_t kn = cpu_min(j->keys, end - k0);

        load_keys(j, &t, b, h, k0, kn, true);
        memset(t.dk, 0, (size_t)(kn * j->ld) * sizeof(real));
        memset(t.dv, 0, (size_t)(kn * j->ld) * sizeof(real));
        for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
            int64_t lanes = cpu_min(TILE, j->nq - i0);
            struct view w = view_of(j, b, shift, i0, lanes, k0, kn);

            if (w.n == 0)
                continue;
            load_transposed(lanes, j->d, q + i0 * j->q.sn, j->q.sn, j->q.sd, (real)a->tau, t.qt);
            load_rows(lanes, j->d, j->ld, q + i0 * j->q.sn, j->q.sn, j->q.sd, (real)a->tau, t.qr);
            load_transposed(lanes, j->d, dy + i0 * j->dy.sn, j->dy.sn, j->dy.sd, 1, t.dyt);
            load_rows(lanes, j->d, j->ld, dy + i0 * j->dy.sn, j->dy.sn, j->dy.sd, 1, t.dyr);
            product_keys(j, w.n, lanes, t.kr, t.kp, t.qt, t.s);
            product_keys(j, w.n, lanes, t.vr, t.vp, t.dyt, t.g);
            dscale += phi_backward(j, &w, (real)c, t.max + i0, one_block ? NULL : t.sum + i0, t.s, t.g);
            product_back(j, w.n, lanes, t.s, t.dyr, t.dv);
            product_back(j, w.n, lanes, t.g, t.qr, t.dk);
            product_queries(j, w.n, lanes, t.g, t.kr, t.acc + i0 * j->ld);
        }
        store_rows(kn, j->d, j->ld, t.dk, (real)inner, NULL, dk + k0 * j->dk.sn, j->dk.sn);
        store_rows(kn, j->d, j->ld, t.dv, (real)c, NULL, dv + k0 * j->dv.sn, j->dv.sn);
    }
    zero_rows(j->nk - end, j->d, dk + end * j->dk.sn, j->dk.sn);
    zero_rows(j->nk - end, j->d, dv + end * j->dv.sn, j->dv.sn);
    store_rows(j->nq, j->d, j->ld, t.acc, (real)(inner * a->tau), NULL, dq, j->dq.sn);
    j->dscale[task] = dscale * a->scale;
}

enum pd_err PK_FN(attention_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct attention j;

    (void)why;
    attention_shape(&j, c);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j.batch * j.heads, backward_task, &j);
    if (j.scale) {
        real *out = c->out[j.a->packed ? 1 : 3].data;
        int64_t n = j.scale->shape.dim[0];

        for (int64_t i = 0; i < n; i++) {
            double total = 0;

            for (int64_t t = 0; t < j.batch * j.heads; t++)
                if (n == 1 || t % j.heads == i)
                    total += j.dscale[t];
            out[i] = (real)total;
        }
    }
    return PD_OK;
}
