/* ATTENTION_BWD, in tiles (attention_tile.h), with P and dP computed again:
 *
 *     S' = K (tau Q)'    dP' = V dY'    dV += P' dY    dK += dS' (tau Q)    dQ += dS K
 *
 * Tasks are (batch, head), so that dK and dV belong to one task. The gradient of a learned scale is a double
 * per task, added in order. */
#include "kernels/backend/cpu/attention_phi.h"
#include "kernels/backend/cpu/attention_tile.h"

/* From x = S' and dp = dP' of a row: writes p to s and dS to g, and adds p dp to the gradient of the scale. */
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

/* By the kind of the row of phi.h. sums: 1 / sum of f; for EXPONENTIAL the log of the sum. */
#define ALONE(name) ROWS_BACKWARD(x += bias, phi_##name(x), phi_##name##_df(x, p, dp))
#define HOMOGENEOUS ALONE
#define SUMMED(name)                                                                                         \
    ROWS_BACKWARD((x += bias, f = phi_##name(x)), vld(sums + v * W) * f,                                     \
                  phi_##name##_df(x, f, vld(sums + v * W)) * (factor * dp - vld(delta + v * W)))
#define EXPONENTIAL(name)                                                                                    \
    ROWS_BACKWARD((void)0, phi_##name(x - vld(sums + v * W)),                                                \
                  phi_##name##_df(x, p, (factor * dp - vld(delta + v * W))))
#define POWER(name) (void)0
#define ROW(constant, name, kind, f, df)                                                                     \
    case constant:                                                                                           \
        kind(name);                                                                                          \
        break;

/* delta (softmax): rowsum(dY Y) of each query; NULL when the tile holds all keys, and the sum is then taken
 * from the tile itself, so that it cancels exactly where one key is visible. */
static double phi_backward(const struct attention *j, const struct view *w, real factor, const real *sums,
                           const real *delta, real *s, real *g)
{
    const int64_t nv = cpu_div_up(w->lanes, W);
    const bool scaled = j->scale != NULL;
    const struct pk_attention_attr *a = j->a;
    const real bias = (real)a->bias;
    vec acc[TILE / W], f;
    double total = 0;

    for (int64_t v = 0; v < nv; v++)
        acc[v] = vzero();
    if (pk_phi_shifted(a->phi) && !delta) {
        softmax_backward(w, factor, sums, s, g, acc);
    } else if (pk_phi_power(a->phi)) {
        switch (a->degree) {
        case 1:
            ROWS_BACKWARD(x += bias, x, dp);
            break;
        case 2:
            ROWS_BACKWARD(x += bias, x * x, x * dp);
            break;
        case 3:
            ROWS_BACKWARD((x += bias, f = x * x), f * x, f * dp);
            break;
        default:
            ROWS_BACKWARD((x += bias, f = vpow(x, a->degree - 1)), f * x, f * dp);
        }
    } else {
        switch (a->phi) {
            PK_EACH_PHI(ROW)
        default:
            break;
        }
    }
    if (scaled)
        for (int64_t v = 0; v < nv; v++)
            total += vsum_double(acc[v]);
    return total;
}

#undef ALONE
#undef HOMOGENEOUS
#undef SUMMED
#undef EXPONENTIAL
#undef POWER
#undef ROW

static void add_rows(int64_t n, int64_t lanes, const real *from, real *to)
{
    const int64_t nv = cpu_div_up(lanes, W);

    for (int64_t r = 0; r < n; r++)
        for (int64_t v = 0; v < nv; v++)
            vst(to + r * TILE + v * W, vld(to + r * TILE + v * W) + vld(from + r * TILE + v * W));
}

/* Factor on dS at the end: c and p, or 1 if dS holds c already. */
static double inner_of(const struct attention *j, int64_t h)
{
    if (pk_phi_normalised(j->a->phi))
        return 1;
    return pk_phi_power(j->a->phi) ? factor_of(j, h) * j->a->degree : factor_of(j, h);
}

/* dbias (NULL: none): (tiles, Nk, TILE) of this head, added to, still without the factors c and p. */
static void backward_pair(const struct attention *j, int64_t b, int64_t h, int thread, real *dbias)
{
    const struct pk_attention_attr *a = j->a;
    const bool softmax = pk_phi_shifted(a->phi), normalised = pk_phi_normalised(a->phi);
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    int64_t shift = shift_of(j, b), end = keys_of(j, b);
    const real *q = j->q.p + b * j->q.sb + h * j->q.sh, *y = j->y.p + b * j->y.sb + h * j->y.sh;
    const real *dy = j->dy.p + b * j->dy.sb + h * j->dy.sh;
    real *dq = j->dq.p + b * j->dq.sb + h * j->dq.sh, *dk = j->dk.p + b * j->dk.sb + h * j->dk.sh;
    real *dv = j->dv.p + b * j->dv.sb + h * j->dv.sh;
    const double c = factor_of(j, h);
    const bool by_tile = softmax && j->nk <= j->keys;
    const double inner = inner_of(j, h);
    double dscale = 0;
    struct draw draw = {0};
    struct tile t;

    tile_scratch(j, &t, &scratch);
    if (j->rng)
        draw = draw_of(j->rng, a->dropout, a->stream, j->batch * j->heads * j->nq);
    if (a->causal)
        end = cpu_max(0, cpu_min(end, j->nq + shift));
    memset(t.acc, 0, (size_t)(cpu_round_up(j->nq, TILE) * j->ld) * sizeof(real));
    for (int64_t i = 0; normalised && i < cpu_round_up(j->nq, TILE); i++) {
        const struct pk_view *l = j->sums_in;
        double sum = 0;
        real at;

        t.max[i] = t.sum[i] = 0;
        if (i >= j->nq)
            continue;
        at = ((const real *)l->data)[b * l->stride[0] + h * l->stride[1] + i * l->stride[2]];
        if (softmax)
            t.max[i] = at - (real)a->bias;
        else
            t.max[i] = at == 0 ? 0 : 1 / at;
        for (int64_t x = 0; !by_tile && x < j->d; x++)
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
            scale_rows(j, b, i0, lanes, t.dyr, t.dyt);
            product_keys(j, w.n, lanes, t.kr, t.kp, t.qt, t.s);
            product_keys(j, w.n, lanes, t.vr, t.vp, t.dyt, t.g);
            if (j->bias)
                add_bias(j, &w, h, i0, k0, t.s);
            if (j->rng) {
                draw_tile(j, &draw, b, h, i0, lanes, k0, w.n, t.kept);
                drop_tile(&w, t.kept, draw.factor, t.g);
            }
            dscale += phi_backward(j, &w, (real)c, t.max + i0, by_tile ? NULL : t.sum + i0, t.s, t.g);
            if (j->rng)
                drop_tile(&w, t.kept, draw.factor, t.s);
            if (dbias)
                add_rows(w.n, lanes, t.g, dbias + (i0 / TILE * j->nk + k0) * TILE);
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
    j->dscale[b * j->heads + h] = dscale * a->scale;
}

static void backward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const int64_t run = task / j->heads, h = task % j->heads, size = j->tiles * j->nk * TILE;
    real *dbias = j->bias ? j->dbias_t + task * size : NULL;

    if (dbias)
        memset(dbias, 0, (size_t)size * sizeof(real));
    for (int64_t b = run * j->batch / j->runs; b < (run + 1) * j->batch / j->runs; b++)
        backward_pair(j, b, h, thread, dbias);
}

/* Sums the runs in order and writes the sum in the layout of the bias. */
static void dbias_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    const int64_t h = task / j->nq, i = task % j->nq, size = j->tiles * j->nk * TILE;
    const real *from = j->dbias_t + h * size + i / TILE * j->nk * TILE + i % TILE;
    real *to = (real *)j->c->out[(j->a->packed ? 1 : 3) + j->a->has_scale].data + task * j->nk;
    const double inner = inner_of(j, h);

    (void)thread;
    for (int64_t k = 0; k < j->nk; k++) {
        double sum = 0;

        for (int64_t run = 0; run < j->runs; run++)
            sum += (double)from[run * j->heads * size + k * TILE];
        to[k] = (real)(sum * inner);
    }
}

enum pd_err PK_FN(attention_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct attention j;

    (void)why;
    attention_shape(&j, c);
    if (PK_FN(attention_is_linear)(&j)) {
        enum pd_err err = PK_FN(attention_linear_bwd)(b, &j);

        if (err != PD_OK)
            return err;
    } else {
        job_scratch(&j, &s, cpu_pool_threads(b->pool));
        prepare(&j, b->pool);
        cpu_pool_run(b->pool, j.runs * j.heads, backward_task, &j);
        if (j.bias)
            cpu_pool_run(b->pool, j.heads * j.nq, dbias_task, &j);
    }
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
