/* ATTENTION_BWD, in tiles (attention_tile.h), with P and dP computed again:
 *
 *     S' = K (tau Q)'    dP' = V dY'    dV += P' dY    dK += dS' (tau Q)    dQ += dS K
 *
 * Tasks are (batch, head), so that dK and dV belong to one task. The gradient of a learned scale is a double
 * per task, added in order. */
#include "kernels/backend/cpu/attention_tile.h"

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
