/* ATTENTION: y = c phi(tau q k^T) v without ever holding N x N, in tiles (attention_tile.h):
 *
 *     S' = K (tau Q)'          Y += P V
 *
 * Polynomials are additive over key blocks; softmax keeps a running maximum and sum when there is more than
 * one block. Masks act after phi, by choosing 0: a masked entry is exactly 0 even where phi overflows.
 * Factors that are one number per head (c, p, tau) are applied to results, not to scores.
 *
 * Tasks are (batch, head, group of queries). */
#include "kernels/backend/cpu/attention_phi.h"
#include "kernels/backend/cpu/attention_tile.h"

size_t PK_FN(attention_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct attention j;

    attention_shape(&j, c);
    if (PK_FN(attention_is_linear)(&j))
        return PK_FN(attention_linear_workspace)(&j, cpu_threads_of(b));
    job_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
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

static void power_forward(const struct pk_attention_attr *a, const struct view *w, real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const real bias = (real)a->bias;

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

/* For rows of phi.h that need no statistics first. */
static void phi_forward(const struct pk_attention_attr *a, const struct view *w, real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const real bias = (real)a->bias;

    if (pk_phi_power(a->phi)) {
        power_forward(a, w, s);
        return;
    }
    switch (a->phi) {
#define ALONE(constant, name)                                                                                \
    case constant:                                                                                           \
        ROWS_FORWARD(phi_##name(x + bias));                                                                  \
        break;
#define HOMOGENEOUS ALONE
#define SUMMED ALONE
#define POWER(constant, name)
#define EXPONENTIAL POWER
#define ROW(constant, name, kind, f, df) kind(constant, name)
        PK_EACH_PHI(ROW)
    default:
        break;
    }
}

/* Adds the rows of a tile to the sums of earlier blocks. */
static void add_sums(const struct view *w, const real *s, real *sum)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t v = 0; v < nv; v++) {
        vec total = vld(sum + v * W);

        for (int64_t r = 0; r < w->n; r++)
            total += vld(s + r * TILE + v * W);
        vst(sum + v * W, total);
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

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const bool softmax = pk_phi_shifted(j->a->phi), normalised = pk_phi_normalised(j->a->phi);
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t b = task / j->groups / j->heads, h = task / j->groups % j->heads;
    int64_t q0 = task % j->groups * j->group, q1 = cpu_min(j->nq, q0 + j->group), shift = shift_of(j, b);
    int64_t end = keys_of(j, b);
    real factor = (real)factor_of(j, h);
    struct draw draw = {0};
    struct tile t;

    tile_scratch(j, &t, &scratch);
    if (j->rng)
        draw = draw_of(j->rng, j->a->dropout, j->a->stream, j->batch * j->heads * j->nq);
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
            if (j->bias)
                add_bias(j, &w, h, i0, k0, t.s);
            if (softmax)
                softmax_forward(j, &w, t.s, t.max + (i0 - q0), t.sum + (i0 - q0), acc, k0 == 0);
            else
                phi_forward(j->a, &w, t.s);
            if (normalised && !softmax)
                add_sums(&w, t.s, t.sum + (i0 - q0));
            if (j->rng) {
                draw_tile(j, &draw, b, h, i0, lanes, k0, w.n, t.kept);
                drop_tile(&w, t.kept, draw.factor, t.s);
            }
            product_queries(j, w.n, lanes, t.s, t.vr, acc);
        }
    }
    for (int64_t i = q0; normalised && i < q1; i++) {
        real sum = t.sum[i - q0], *out = &j->sums[(b * j->heads + h) * j->nq + i];

        /* A bias shifts every logit by the same amount: it cancels in softmax's A and changes only the sum. */
        if (!softmax)
            *out = sum;
        else
            *out = sum > 0 || sum != sum ? t.max[i - q0] + (real)(log((double)sum) + j->a->bias)
                                         : (real)-INFINITY;
        t.sum[i - q0] = sum == 0 ? 0 : 1 / sum;
    }
    for (int64_t i = q0; j->a->row_power != 0 && i < q1; i++)
        t.sum[i - q0] = row_factor(j, b, i);
    store_rows(q1 - q0, j->d, j->ld, t.acc, factor, normalised || j->a->row_power != 0 ? t.sum : NULL,
               j->y.p + b * j->y.sb + h * j->y.sh + q0 * j->y.sn, j->y.sn);
}

/* ---- few queries: each key and value is read once ---- */

INLINE real phi_one(const struct pk_attention_attr *a, real s)
{
    const vec x = vset(s + (real)a->bias);

    if (pk_phi_power(a->phi))
        return vpow(x, a->degree)[0];
    switch (a->phi) {
#undef ALONE
#define ALONE(constant, name)                                                                                \
    case constant:                                                                                           \
        return phi_##name(x)[0];
        PK_EACH_PHI(ROW)
    default:
        return 0;
    }
}
#undef ALONE
#undef HOMOGENEOUS
#undef SUMMED
#undef POWER
#undef EXPONENTIAL
#undef ROW

static void few_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const bool softmax = pk_phi_shifted(j->a->phi);
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
        if (pk_phi_normalised(j->a->phi)) {
            real *out = &j->sums[(b * j->heads + h) * j->nq + i];

            if (!softmax)
                *out = (real)sum;
            else
                *out = sum > 0 || sum != sum ? max + (real)(log(sum) + j->a->bias) : (real)-INFINITY;
            factor = sum == 0 ? 0 : factor / (real)sum;
        }
        if (j->a->row_power != 0)
            factor *= row_factor(j, b, i);
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
    if (j.nq == 0)
        return PD_OK;
    if (PK_FN(attention_is_linear)(&j))
        return PK_FN(attention_linear)(b, &j);
    job_scratch(&j, &s, cpu_pool_threads(b->pool));
    prepare(&j, b->pool);
    if (j.few)
        cpu_pool_run(b->pool, j.batch * j.heads, few_task, &j);
    else
        cpu_pool_run(b->pool, j.batch * j.heads * j.groups, forward_task, &j);
    return PD_OK;
}
