/* ATTENTION and ATTENTION_BWD of x and x^2 in linear form: with features F(x) such that
 * <F(q), F(k)> = (q k)^p,
 *
 *     St = F(K)' V      Y = c F(tau Q) St
 *
 * Causal attention goes in chunks of TILE tokens: scores within a chunk are computed directly, and St is the sum over
 * all tokens before the chunk.
 *
 * Features of x^2 are the products x_a x_b, a <= b; those of keys carry the factor 2 of a < b. They are computed a
 * block at a time, x_a times up to TILE values of b from a on, for a tile of tokens, and used in a small product
 * immediately: neither all features of a token nor an N x N matrix are stored. St is (features, ld), in the cache.
 *
 * Backward, without the factor c:
 *
 *     dF(Q) = dY St'    dSt = F(tau Q)' dY    dF(K) = V dSt'    dV = F(K) dSt
 *
 * the first in the order of chunks, the others in reverse. Since Y is homogeneous in q, sum(dY Y) = sum(q dq) / p,
 * which is the gradient of a learned scale. Masked keys are treated as k = v = 0, which is exact for these powers.
 *
 * Tasks are (batch, head). */
#include "kernels/backend/cpu/attention_features.h"

/* Scratch of one thread. Rows have W spare elements after the last, because blocks begin at any element. */
struct scratch {
    real *state;              /* (features, ld): St, then dSt */
    real *kr, *vr, *qr, *dyr; /* (TILE, ld) */
    real *qt, *dyt;           /* (ld, TILE), for the squares of chunks */
    real *panel;              /* where d is too long for constant strides */
    real *f, *st;             /* (TILE, TILE): features; (d, TILE): a block of St, transposed */
    real *s, *g;              /* (TILE, TILE) */
    real *acc, *dk, *dv;      /* (TILE, ld) */
};

static void take_all(const struct attention *j, struct scratch *t, struct cpu_scratch *s)
{
    const size_t rows = (size_t)(TILE * j->ld + W) * sizeof(real),
                 square = (size_t)(TILE * TILE) * sizeof(real);
    const size_t turned = (size_t)(j->ld * TILE) * sizeof(real);

    memset(t, 0, sizeof *t);
    t->state = cpu_take(s, (size_t)(feature_count(j) * j->ld) * sizeof(real));
    t->kr = cpu_take(s, rows);
    t->vr = cpu_take(s, rows);
    t->qr = cpu_take(s, rows);
    t->acc = cpu_take(s, rows);
    t->f = cpu_take(s, square);
    t->qt = cpu_take(s, turned);
    t->s = cpu_take(s, square);
    if (j->ld > 2 * TILE)
        t->panel = cpu_take(s, (size_t)(cpu_round_up(TILE, MR) * j->d) * sizeof(real));
    if (j->c->op != PK_OP_ATTENTION_BWD)
        return;
    t->dyr = cpu_take(s, rows);
    t->dyt = cpu_take(s, turned);
    t->st = cpu_take(s, turned);
    t->g = cpu_take(s, square);
    t->dk = cpu_take(s, rows);
    t->dv = cpu_take(s, rows);
}

static void take_job(struct attention *j, struct cpu_scratch *s, int threads)
{
    struct cpu_scratch one = {0};
    struct scratch t;

    take_all(j, &t, &one);
    j->scratch_bytes = one.used;
    j->scratch = cpu_take(s, one.used * (size_t)threads);
    j->dscale = cpu_take(s, (size_t)(j->batch * j->heads) * sizeof(double));
}

bool PK_FN(attention_is_linear)(const struct attention *j)
{
    const struct pk_attention_attr *a = j->a;
    double square, linear;

    if (a->form == PK_FORM_QUADRATIC ||
        pk_attention_not_linear(a, j->nq, j->nk, j->mask ? j->mask->shape.rank : 0))
        return false;
    if (a->form == PK_FORM_LINEAR)
        return true;
    square = (double)j->nq * (double)j->nk * (a->causal ? 1 : 2);
    linear = (double)(j->nq + j->nk) * (double)feature_count(j) *
             (j->c->op == PK_OP_ATTENTION_BWD ? LINEAR_COST_BWD : LINEAR_COST);
    if (a->causal)
        linear += (double)j->nq * TILE * 2;
    return linear < square;
}

size_t PK_FN(attention_linear_workspace)(struct attention *j, int threads)
{
    struct cpu_scratch s = {0};

    take_job(j, &s, threads);
    return s.used;
}

/* ---- helpers ---- */

static const real *row_at(const struct rows *x, int64_t b, int64_t h, int64_t i)
{
    return x->p + b * x->sb + h * x->sh + i * x->sn;
}

/* Rows i0 .. i0+n-1 of keys or values; those that are masked become 0. */
static void load_seen(const struct attention *j, const struct rows *x, int64_t b, int64_t h, int64_t i0,
                      int64_t n, real *to)
{
    const int64_t end = keys_of(j, b);

    load_rows(n, j->d, j->ld, row_at(x, b, h, i0), x->sn, x->sd, 1, to);
    for (int64_t i = 0; i < n; i++)
        if (i0 + i >= end ||
            (j->mask &&
             !((const uint8_t *)j->mask->data)[b * j->mask->stride[0] + (i0 + i) * j->mask->stride[1]]))
            memset(to + i * j->ld, 0, (size_t)j->ld * sizeof(real));
}

/* dx += the gradient of x from dF(x) = y state' */
static void apply_back(const struct attention *j, struct scratch *t, bool key, int64_t n, const real *x,
                       const real *y, real *dx)
{
    struct block k;

    if (t->panel)
        micro_pack(n, j->d, y, j->ld, 1, t->panel);
    for (bool more = block_first(j, &k); more; more = block_next(j, &k)) {
        load_transposed(k.n, j->d, t->state + k.at * j->ld, j->ld, 1, 1, t->st);
        product_keys(j, n, k.n, y, t->panel, t->st, t->f);
        for (int64_t i = 0; i < n; i++) {
            real *g = t->f + i * TILE, *to = dx + i * j->ld + k.b0;
            const real *from = x + i * j->ld;

            if (j->a->degree == 1) {
                for (int64_t c = 0; c < k.n; c += W)
                    vst(to + c, vld(to + c) + vld(g + c));
            } else {
                const real two = key ? 2 : 1, a = two * from[k.a];
                vec dot = vzero();

                if (key && k.b0 == k.a)
                    g[0] *= (real)0.5;
                for (int64_t c = 0; c < k.n; c += W) { /* g is 0 after the block */
                    vst(to + c, vld(to + c) + a * vld(g + c));
                    dot += vld(g + c) * vld(from + k.b0 + c);
                }
                dx[i * j->ld + k.a] += two * vsum(dot);
            }
        }
    }
}

/* From s = q k and g = dA: A and dS. */
static void square_backward(const struct attention *j, int64_t n, real *s, real *g)
{
    const int64_t nv = cpu_div_up(n, W);

    for (int64_t r = 0; r < n; r++)
        for (int64_t v = 0; v < nv; v++) {
            ivec m = vlane() + (ireal)(v * W) >= (ireal)r;
            real *at = s + r * TILE + v * W, *gat = g + r * TILE + v * W;
            vec x = vld(at), d = vld(gat);

            vst(at, masked(m, j->a->degree == 1 ? x : x * x));
            vst(gat, masked(m, j->a->degree == 1 ? d : 2 * x * d));
        }
}

/* s (n keys, n queries) = rows tile, for any length of rows. */
static void product_chunk(const struct attention *j, struct scratch *t, int64_t n, const real *rows,
                          const real *tile, real *s)
{
    if (t->panel)
        micro_pack(n, j->d, rows, j->ld, 1, t->panel);
    product_keys(j, n, n, rows, t->panel, tile, s);
}

/* ---- forward ---- */

static void state_of_keys(const struct attention *j, struct scratch *t, int64_t b, int64_t h)
{
    for (int64_t k0 = 0; k0 < j->nk; k0 += TILE) {
        int64_t n = cpu_min(TILE, j->nk - k0);

        load_seen(j, &j->k, b, h, k0, n, t->kr);
        load_seen(j, &j->v, b, h, k0, n, t->vr);
        accumulate(j, t->f, true, n, t->kr, t->vr, t->state, j->ld);
    }
}

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t b = task / j->heads, h = task % j->heads;
    struct scratch t;

    take_all(j, &t, &scratch);
    memset(t.state, 0, (size_t)(feature_count(j) * j->ld) * sizeof(real));
    memset(t.qr, 0, (size_t)(TILE * j->ld + W) * sizeof(real));
    memset(t.kr, 0, (size_t)(TILE * j->ld + W) * sizeof(real));
    if (!j->a->causal)
        state_of_keys(j, &t, b, h);
    for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
        int64_t n = cpu_min(TILE, j->nq - i0);
        const real *q = row_at(&j->q, b, h, i0);

        load_rows(n, j->d, j->ld, q, j->q.sn, j->q.sd, (real)j->a->tau, t.qr);
        memset(t.acc, 0, (size_t)(n * j->ld) * sizeof(real));
        apply(j, t.f, false, n, t.qr, t.state, j->ld, t.acc);
        if (j->a->causal) {
            load_seen(j, &j->k, b, h, i0, n, t.kr);
            load_seen(j, &j->v, b, h, i0, n, t.vr);
            load_transposed(n, j->d, q, j->q.sn, j->q.sd, (real)j->a->tau, t.qt);
            product_chunk(j, &t, n, t.kr, t.qt, t.s);
            square_forward(j, n, t.s);
            product_queries(j, n, n, t.s, t.vr, t.acc);
            accumulate(j, t.f, true, n, t.kr, t.vr, t.state, j->ld);
        }
        scale_rows(j, b, i0, n, t.acc, NULL);
        store_rows(n, j->d, j->ld, t.acc, (real)factor_of(j, h), NULL,
                   j->y.p + b * j->y.sb + h * j->y.sh + i0 * j->y.sn, j->y.sn);
    }
}

enum pd_err PK_FN(attention_linear)(struct pk_backend *b, struct attention *j)
{
    struct cpu_scratch s = {j->c->workspace, 0};

    take_job(j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j->batch * j->heads, forward_task, j);
    return PD_OK;
}

/* ---- backward ---- */

/* dQ, and the parts of dK and dV within chunks, all without c; returns sum(tau q dq). */
static double backward_queries(const struct attention *j, struct scratch *t, int64_t b, int64_t h)
{
    real *dq = j->dq.p + b * j->dq.sb + h * j->dq.sh, *dk = j->dk.p + b * j->dk.sb + h * j->dk.sh;
    real *dv = j->dv.p + b * j->dv.sb + h * j->dv.sh;
    const real tau = (real)j->a->tau;
    double total = 0;

    if (!j->a->causal)
        state_of_keys(j, t, b, h);
    for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
        int64_t n = cpu_min(TILE, j->nq - i0);
        const real *q = row_at(&j->q, b, h, i0), *dy = row_at(&j->dy, b, h, i0);

        load_rows(n, j->d, j->ld, q, j->q.sn, j->q.sd, tau, t->qr);
        load_rows(n, j->d, j->ld, dy, j->dy.sn, j->dy.sd, 1, t->dyr);
        scale_rows(j, b, i0, n, t->dyr, NULL);
        memset(t->acc, 0, (size_t)(n * j->ld) * sizeof(real));
        apply_back(j, t, false, n, t->qr, t->dyr, t->acc);
        if (j->a->causal) {
            load_seen(j, &j->k, b, h, i0, n, t->kr);
            load_seen(j, &j->v, b, h, i0, n, t->vr);
            load_transposed(n, j->d, q, j->q.sn, j->q.sd, tau, t->qt);
            load_transposed(n, j->d, t->dyr, j->ld, 1, 1, t->dyt);
            product_chunk(j, t, n, t->kr, t->qt, t->s);
            product_chunk(j, t, n, t->vr, t->dyt, t->g);
            square_backward(j, n, t->s, t->g);
            product_queries(j, n, n, t->g, t->kr, t->acc);
            memset(t->dk, 0, (size_t)(n * j->ld) * sizeof(real));
            memset(t->dv, 0, (size_t)(n * j->ld) * sizeof(real));
            product_back(j, n, n, t->s, t->dyr, t->dv);
            product_back(j, n, n, t->g, t->qr, t->dk);
            store_rows(n, j->d, j->ld, t->dk, 1, NULL, dk + i0 * j->dk.sn, j->dk.sn);
            store_rows(n, j->d, j->ld, t->dv, 1, NULL, dv + i0 * j->dv.sn, j->dv.sn);
            accumulate(j, t->f, true, n, t->kr, t->vr, t->state, j->ld);
        }
        for (int64_t i = 0; j->scale && i < n; i++)
            for (int64_t c = 0; c < j->d; c++)
                total += (double)t->qr[i * j->ld + c] * (double)t->acc[i * j->ld + c];
        store_rows(n, j->d, j->ld, t->acc, (real)(factor_of(j, h) * j->a->tau), NULL, dq + i0 * j->dq.sn,
                   j->dq.sn);
    }
    return total;
}

static void load_queries(const struct attention *j, struct scratch *t, int64_t b, int64_t h, int64_t i0,
                         int64_t n)
{
    load_rows(n, j->d, j->ld, row_at(&j->q, b, h, i0), j->q.sn, j->q.sd, (real)j->a->tau, t->qr);
    load_rows(n, j->d, j->ld, row_at(&j->dy, b, h, i0), j->dy.sn, j->dy.sd, 1, t->dyr);
    scale_rows(j, b, i0, n, t->dyr, NULL);
}

/* dK and dV, the last chunk first. */
static void backward_keys(const struct attention *j, struct scratch *t, int64_t b, int64_t h)
{
    real *dk = j->dk.p + b * j->dk.sb + h * j->dk.sh, *dv = j->dv.p + b * j->dv.sb + h * j->dv.sh;
    const real c = (real)factor_of(j, h);

    for (int64_t i0 = 0; !j->a->causal && i0 < j->nq; i0 += TILE) {
        int64_t n = cpu_min(TILE, j->nq - i0);

        load_queries(j, t, b, h, i0, n);
        accumulate(j, t->f, false, n, t->qr, t->dyr, t->state, j->ld);
    }
    for (int64_t k0 = (cpu_max(1, j->nk) - 1) / TILE * TILE; k0 >= 0; k0 -= TILE) {
        int64_t n = cpu_min(TILE, j->nk - k0);

        load_seen(j, &j->k, b, h, k0, n, t->kr);
        load_seen(j, &j->v, b, h, k0, n, t->vr);
        if (j->a->causal) {
            load_rows(n, j->d, j->ld, dk + k0 * j->dk.sn, j->dk.sn, 1, 1, t->dk);
            load_rows(n, j->d, j->ld, dv + k0 * j->dv.sn, j->dv.sn, 1, 1, t->dv);
        } else {
            memset(t->dk, 0, (size_t)(n * j->ld) * sizeof(real));
            memset(t->dv, 0, (size_t)(n * j->ld) * sizeof(real));
        }
        apply(j, t->f, true, n, t->kr, t->state, j->ld, t->dv);
        apply_back(j, t, true, n, t->kr, t->vr, t->dk);
        if (j->a->causal) {
            load_queries(j, t, b, h, k0, n);
            accumulate(j, t->f, false, n, t->qr, t->dyr, t->state, j->ld);
        }
        store_rows(n, j->d, j->ld, t->dk, c, NULL, dk + k0 * j->dk.sn, j->dk.sn);
        store_rows(n, j->d, j->ld, t->dv, c, NULL, dv + k0 * j->dv.sn, j->dv.sn);
    }
}

static void backward_task(void *arg, int64_t task, int thread)
{
    const struct attention *j = arg;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t b = task / j->heads, h = task % j->heads;
    const size_t state = (size_t)(feature_count(j) * j->ld) * sizeof(real);
    const size_t rows = (size_t)(TILE * j->ld + W) * sizeof(real);
    struct scratch t;

    take_all(j, &t, &scratch);
    memset(t.state, 0, state);
    memset(t.qr, 0, rows);
    memset(t.kr, 0, rows);
    memset(t.acc, 0, rows);
    memset(t.dk, 0, rows);
    j->dscale[task] = backward_queries(j, &t, b, h) / j->a->degree * j->a->scale;
    memset(t.state, 0, state);
    backward_keys(j, &t, b, h);
}

enum pd_err PK_FN(attention_linear_bwd)(struct pk_backend *b, struct attention *j)
{
    struct cpu_scratch s = {j->c->workspace, 0};

    take_job(j, &s, cpu_pool_threads(b->pool));
    cpu_pool_run(b->pool, j->batch * j->heads, backward_task, j);
    return PD_OK;
}
