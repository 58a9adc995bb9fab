/* FORMULA_BWD, in tiles as ATTENTION_BWD (attention_bwd.c): S and dP = dY V' are recomputed, and the program `back`
 * computes F, dS and the scalars' parts from them.
 *
 * Gradients of row functions: with one pass, dr_k = D dG/dr_k with D = sum_j dA_ij F_ij = (dY Y)_i / G_i. If a G is 0
 * the quotient is undefined, and D is summed in a sweep of its own; so is dr_k with two passes.
 *
 * Tasks are (batch, head), so that dK, dV and the scalars' sums, in doubles, belong to one task. */
#include "kernels/backend/cpu/attention_formula.h"

static size_t scratch_of(const struct formula *f)
{
    struct cpu_scratch one = {0};
    struct tile t;
    struct state x;

    tile_scratch(&f->j, &t, &one);
    state_scratch(f, &x, &one);
    return one.used;
}

static void formula_scratch(struct formula *f, struct cpu_scratch *s, int threads)
{
    const size_t bytes = scratch_of(f);
    char *scratch = cpu_take(s, bytes * (size_t)threads);

    job_scratch(&f->j, s, 0); /* bias by tiles, masks as bits, runs of dbias */
    f->j.scratch_bytes = bytes;
    f->j.scratch = scratch;
    f->dscalars = cpu_take(s, (size_t)(f->j.batch * f->j.heads * f->plan->params) * sizeof(double));
}

size_t PK_FN(formula_bwd_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct formula f;

    formula_shape(&f, c);
    formula_scratch(&f, &s, cpu_threads_of(b));
    return s.used;
}

/* Loads the row statistics saved by FORMULA, and computes G. */
static void load_rows_of(const struct formula *f, struct state *x, int64_t b, int64_t h)
{
    const struct attention *j = &f->j;
    const struct pk_formula_plan *p = f->plan;
    const struct pk_view *v = j->sums_in;

    for (int64_t k = 0, o = 0; k < p->rows + p->shift + p->rows; k++) {
        real *to = k < p->rows ? x->row[k] : k < p->rows + p->shift ? x->m : x->arg[k - p->rows - p->shift];

        if (!to)
            continue;
        for (int64_t i = 0; i < cpu_round_up(j->nq, TILE); i++)
            to[i] =
                i < j->nq
                    ? ((const real *)
                           v->data)[b * v->stride[0] + h * v->stride[1] + o * v->stride[2] + i * v->stride[3]]
                    : 0;
        o++;
    }
    for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
        state_tile(f, x, i0);
        turn_rows(f, x, i0, TILE / W);
    }
}

struct pair {
    const struct formula *f;
    struct tile t;
    struct state x;
    struct draw draw;
    int64_t b, h, shift, end;
    const real *q, *dy;
};

/* S and dP of a tile; dY's rows and columns times `g` (NULL: as they are). */
static void products(struct pair *p, const struct view *w, int64_t i0, int64_t lanes, int64_t k0,
                     const real *g)
{
    const struct attention *j = &p->f->j;
    struct tile *t = &p->t;

    load_transposed(lanes, j->d, p->q + i0 * j->q.sn, j->q.sn, j->q.sd, (real)j->a->tau, t->qt);
    load_transposed(lanes, j->d, p->dy + i0 * j->dy.sn, j->dy.sn, j->dy.sd, 1, t->dyt);
    if (g) {
        load_rows(lanes, j->d, j->ld, p->q + i0 * j->q.sn, j->q.sn, j->q.sd, (real)j->a->tau, t->qr);
        load_rows(lanes, j->d, j->ld, p->dy + i0 * j->dy.sn, j->dy.sn, j->dy.sd, 1, t->dyr);
        for (int64_t i = 0; i < lanes; i++)
            for (int64_t c = 0; c < j->ld; c += W)
                vst(t->dyr + i * j->ld + c, vld(t->dyr + i * j->ld + c) * g[i]);
        for (int64_t c = 0; c < j->d; c++)
            for (int64_t v = 0; v < cpu_div_up(lanes, W); v++)
                vst(t->dyt + c * TILE + v * W, vld(t->dyt + c * TILE + v * W) * vld(g + v * W));
    }
    product_keys(j, w->n, lanes, t->kr, t->kp, t->qt, t->s);
    product_keys(j, w->n, lanes, t->vr, t->vp, t->dyt, t->g);
    if (j->bias)
        add_bias(j, w, p->h, i0, k0, t->s);
    if (j->rng) {
        draw_tile(j, &p->draw, p->b, p->h, i0, lanes, k0, w->n, t->kept);
        drop_tile(w, t->kept, p->draw.factor, t->g);
    }
}

static void sweep_begin(struct pair *p)
{
    struct state *x = &p->x;

    for (int64_t i = 0; i < cpu_round_up(p->f->j.nq, TILE); i++) {
        x->d[i] = 0;
        for (int k = 0; k < p->f->plan->rows; k++)
            x->drow[k][i] = 0;
    }
}

/* Adds the sums of `before` over a tile's keys: D of one pass, dr_k of two. */
static void sweep_tile(struct pair *p, const struct view *w, int64_t i0, int64_t k0)
{
    const struct formula *f = p->f;
    struct state *x = &p->x;
    const int64_t nv = cpu_div_up(w->lanes, W);

    state_tile(f, x, i0);
    run_tile_part(&x->before, &x->l, nv, k0, w->n);
    for (int64_t r0 = 0; r0 < w->n; r0 += ROWS) {
        const int64_t n = cpu_min(ROWS, w->n - r0);
        real *none[2] = {NULL, NULL};
        struct operand r[PK_FORMULA_RESULTS];

        x->l.at[PK_LEAF_S] = p->t.s + r0 * TILE;
        x->l.at[PK_LEAF_DA] = p->t.g + r0 * TILE;
        x->l.line = w->n - 1 - r0;
        if (x->before.reads_j)
            block_keys(x, k0 + r0, n);
        run_block(&x->before, &x->l, n, nv, x->slot, none, r);
        for (int k = 0; k < f->plan->before.results; k++)
            sum_block(w, r0, n, r[k], (f->plan->two_passes ? x->drow[k] : x->d) + i0);
    }
}

/* Completes the sums of n queries from i0 on. */
static void sweep_end(struct pair *p, int64_t i0, int64_t n)
{
    struct state *x = &p->x;
    const bool two = p->f->plan->two_passes;

    for (int64_t i = i0; i < i0 + n; i++)
        for (int k = 0; k < p->f->plan->rows; k++)
            if (x->live[i] == 0 || (two && x->row[k][i] == 0 && !isfinite((double)x->drow[k][i])))
                x->drow[k][i] = 0;
}

static void sweep(struct pair *p)
{
    const struct attention *j = &p->f->j;

    for (int64_t k0 = 0; k0 < p->end; k0 += j->keys) {
        const int64_t kn = cpu_min(j->keys, p->end - k0);

        load_keys(j, &p->t, p->b, p->h, k0, kn, true);
        for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
            const int64_t lanes = cpu_min(TILE, j->nq - i0);
            const struct view w = view_of(j, p->b, p->shift, i0, lanes, k0, kn);

            if (w.n == 0)
                continue;
            products(p, &w, i0, lanes, k0, NULL);
            sweep_tile(p, &w, i0, k0);
        }
    }
    sweep_end(p, 0, j->nq);
}

/* Whether a tile of the second sweep can take the first, too: of two passes, where it holds all keys and needs no other
 * dP. */
static bool sweeps_once(const struct pair *p)
{
    const struct pk_formula_plan *plan = p->f->plan;
    bool once = plan->two_passes && !plan->needs_d && p->end <= p->f->j.keys;

    for (int64_t i = 0; once && i < p->f->j.nq; i++)
        once = p->x.g[i] == 1 || p->x.live[i] == 0;
    return once;
}

/* Computes D and, with one pass, dr_k and the scalars' part through G. once: dr_k is left to backward_pair. */
static void turn_back(struct pair *p, bool once, double *dscalar)
{
    const struct formula *f = p->f;
    const struct attention *j = &f->j;
    const struct pk_formula_plan *plan = f->plan;
    struct state *x = &p->x;
    const real *y = j->y.p + p->b * j->y.sb + p->h * j->y.sh;
    bool unknown = plan->two_passes;

    for (int64_t i = 0; i < cpu_round_up(j->nq, TILE); i++) {
        double sum = 0;

        x->d[i] = 0;
        if (i >= j->nq || unknown || !plan->needs_d || x->live[i] == 0)
            continue;
        for (int64_t c = 0; c < j->d; c++)
            sum += (double)p->dy[i * j->dy.sn + c * j->dy.sd] * (double)y[i * j->y.sn + c * j->y.sd];
        unknown = x->g[i] == 0;
        x->d[i] = (real)(sum / (double)x->g[i]);
    }
    if (unknown && (plan->needs_d || plan->rows)) {
        sweep_begin(p);
        if (!once)
            sweep(p);
    }
    for (int64_t i = 0; i < j->nq; i++)
        if (x->live[i] == 0)
            x->d[i] = 0;
    for (int64_t i0 = 0; i0 < j->nq && plan->needs_d; i0 += TILE) {
        const int64_t lanes = cpu_min(TILE, j->nq - i0);
        int at = 0;

        state_tile(f, x, i0);
        run_row_part(&x->turn_back, &x->l, TILE / W);
        for (int k = 0; k < plan->rows && !plan->two_passes; k++) {
            const struct operand r = operand_of(&x->turn_back, &x->l, plan->turn_back.result[at++], NULL);

            for (int64_t i = 0; i < lanes; i++)
                x->drow[k][i0 + i] = x->live[i0 + i] != 0 ? r.p[i] : 0;
        }
        for (int k = 0; k < plan->params; k++) {
            struct operand r;

            if (!(plan->turn_scalars >> k & 1))
                continue;
            r = operand_of(&x->turn_back, &x->l, plan->turn_back.result[at++], NULL);
            for (int64_t i = 0; i < lanes; i++)
                dscalar[k] += x->live[i0 + i] != 0 ? (double)r.p[i] : 0;
        }
    }
}

/* 0 in the lanes whose rows of A are 0. */
static void still_rows(const struct state *x, int64_t i0, const struct view *w, real *tile)
{
    bool all = true;

    for (int64_t i = 0; i < w->lanes; i++)
        all = all && x->live[i0 + i] != 0;
    for (int64_t r = 0; !all && r < w->n; r++)
        for (int64_t v = 0; v < cpu_div_up(w->lanes, W); v++)
            vst(tile + r * TILE + v * W,
                vsel(vld(x->live + i0 + v * W) == 0, vzero(), vld(tile + r * TILE + v * W)));
}

static void backward_tile(struct pair *p, const struct view *w, int64_t i0, int64_t k0, double *dscalar)
{
    const struct formula *f = p->f;
    struct state *x = &p->x;
    const int64_t nv = cpu_div_up(w->lanes, W);
    real sum[PK_FORMULA_PARAMS][TILE] = {{0}};

    state_tile(f, x, i0);
    run_tile_part(&x->back, &x->l, nv, k0, w->n);
    for (int64_t r0 = 0; r0 < w->n; r0 += ROWS) {
        const int64_t n = cpu_min(ROWS, w->n - r0);
        real *target[2] = {p->t.s + r0 * TILE, p->t.g + r0 * TILE};
        struct operand r[PK_FORMULA_RESULTS];

        x->l.at[PK_LEAF_S] = target[0];
        x->l.at[PK_LEAF_DA] = target[1];
        x->l.line = w->n - 1 - r0;
        if (x->back.reads_j)
            block_keys(x, k0 + r0, n);
        run_block(&x->back, &x->l, n, nv, x->slot, target, r);
        for (int k = 2; k < f->plan->back.results; k++)
            sum_block(w, r0, n, r[k], sum[k - 2]);
        /* A result may be a leaf's tile itself: it is read before that tile is written. */
        if (r[1].p == target[0]) {
            put_block(w, r0, n, r[1], p->t.g);
            put_block(w, r0, n, r[0], p->t.s);
        } else {
            put_block(w, r0, n, r[0], p->t.s);
            put_block(w, r0, n, r[1], p->t.g);
        }
    }
    if (f->plan->two_passes) {
        mend_rows(f, x, i0, w, p->t.s);
        mend_rows(f, x, i0, w, p->t.g);
    }
    still_rows(x, i0, w, p->t.s);
    still_rows(x, i0, w, p->t.g);
    for (int k = 0, at = 0; k < f->plan->params; k++) {
        if (!(f->plan->back_scalars >> k & 1))
            continue;
        for (int64_t i = 0; i < w->lanes; i++) {
            bool none = x->live[i0 + i] == 0;

            for (int r = 0; r < f->plan->rows; r++)
                none =
                    none || (f->plan->two_passes && x->row[r][i0 + i] == 0 && !isfinite((double)sum[at][i]));
            dscalar[k] += none ? 0 : (double)sum[at][i];
        }
        at++;
    }
}

static void add_tile(const struct view *w, const real *from, real *to)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t r = 0; r < w->n; r++)
        for (int64_t v = 0; v < nv; v++)
            vst(to + r * TILE + v * W, vld(to + r * TILE + v * W) + vld(from + r * TILE + v * W));
}

/* dbias (NULL: none): (tiles, Nk, TILE) of this head, added to. */
static void backward_pair(const struct formula *f, int64_t b, int64_t h, int thread, real *dbias)
{
    const struct attention *j = &f->j;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    struct pair p = {.f = f,
                     .b = b,
                     .h = h,
                     .shift = shift_of(j, b),
                     .end = keys_of(j, b),
                     .q = j->q.p + b * j->q.sb + h * j->q.sh,
                     .dy = j->dy.p + b * j->dy.sb + h * j->dy.sh};
    real *dq = j->dq.p + b * j->dq.sb + h * j->dq.sh, *dk = j->dk.p + b * j->dk.sb + h * j->dk.sh;
    real *dv = j->dv.p + b * j->dv.sb + h * j->dv.sh, inner = 1;
    double dscalar[PK_FORMULA_PARAMS] = {0}, through[PK_FORMULA_PARAMS] = {0};
    struct tile *t = &p.t;
    bool equal = f->plan->rows == 0 && !j->bias, once;

    tile_scratch(j, t, &scratch);
    state_scratch(f, &p.x, &scratch);
    if (j->rng)
        p.draw = draw_of(j->rng, j->a->dropout, j->a->stream, j->batch * j->heads * j->nq);
    if (j->a->causal)
        p.end = cpu_max(0, cpu_min(p.end, j->nq + p.shift));
    state_head(f, &p.x, h);
    state_rows(f, &p.x, b, 0, j->nq);
    load_rows_of(f, &p.x, b, h);
    once = sweeps_once(&p);
    turn_back(&p, once, through);
    /* If G is equal for all rows and dS depends only on DA, G is applied to the results. */
    for (int64_t i = 0; i < j->nq; i++)
        equal = equal && p.x.g[i] == p.x.g[0];
    if (equal && j->nq > 0) {
        inner = p.x.g[0];
        for (int64_t i = 0; i < cpu_round_up(j->nq, TILE); i++)
            p.x.g[i] = 1;
    }
    memset(t->acc, 0, (size_t)(cpu_round_up(j->nq, TILE) * j->ld) * sizeof(real));
    for (int64_t k0 = 0; k0 < p.end; k0 += j->keys) {
        const int64_t kn = cpu_min(j->keys, p.end - k0);

        load_keys(j, t, b, h, k0, kn, true);
        memset(t->dk, 0, (size_t)(kn * j->ld) * sizeof(real));
        memset(t->dv, 0, (size_t)(kn * j->ld) * sizeof(real));
        for (int64_t i0 = 0; i0 < j->nq; i0 += TILE) {
            const int64_t lanes = cpu_min(TILE, j->nq - i0);
            const struct view w = view_of(j, b, p.shift, i0, lanes, k0, kn);

            if (w.n == 0)
                continue;
            products(&p, &w, i0, lanes, k0, p.x.g + i0);
            if (once) {
                sweep_tile(&p, &w, i0, k0);
                sweep_end(&p, i0, lanes);
            }
            backward_tile(&p, &w, i0, k0, dscalar);
            if (j->rng)
                drop_tile(&w, t->kept, p.draw.factor, t->s);
            if (dbias)
                add_tile(&w, t->g, dbias + (i0 / TILE * j->nk + k0) * TILE);
            product_back(j, w.n, lanes, t->s, t->dyr, t->dv);
            product_back(j, w.n, lanes, t->g, t->qr, t->dk);
            product_queries(j, w.n, lanes, t->g, t->kr, t->acc + i0 * j->ld);
        }
        store_rows(kn, j->d, j->ld, t->dk, inner, NULL, dk + k0 * j->dk.sn, j->dk.sn);
        store_rows(kn, j->d, j->ld, t->dv, inner, NULL, dv + k0 * j->dv.sn, j->dv.sn);
    }
    zero_rows(j->nk - p.end, j->d, dk + p.end * j->dk.sn, j->dk.sn);
    zero_rows(j->nk - p.end, j->d, dv + p.end * j->dv.sn, j->dv.sn);
    store_rows(j->nq, j->d, j->ld, t->acc, inner * (real)j->a->tau, NULL, dq, j->dq.sn);
    for (int k = 0; k < f->plan->params; k++)
        f->dscalars[(b * j->heads + h) * f->plan->params + k] = through[k] + dscalar[k] * (double)inner;
}

static void backward_task(void *arg, int64_t task, int thread)
{
    const struct formula *f = arg;
    const struct attention *j = &f->j;
    const int64_t run = task / j->heads, h = task % j->heads, size = j->tiles * j->nk * TILE;
    real *dbias = j->bias ? j->dbias_t + task * size : NULL;

    if (dbias)
        memset(dbias, 0, (size_t)size * sizeof(real));
    for (int64_t b = run * j->batch / j->runs; b < (run + 1) * j->batch / j->runs; b++)
        backward_pair(f, b, h, thread, dbias);
}

/* Sums the runs in order and writes the sum in the layout of the bias. */
static void dbias_task(void *arg, int64_t task, int thread)
{
    const struct formula *f = arg;
    const struct attention *j = &f->j;
    const int64_t h = task / j->nq, i = task % j->nq, size = j->tiles * j->nk * TILE;
    const real *from = j->dbias_t + h * size + i / TILE * j->nk * TILE + i % TILE;
    real *to = (real *)j->c->out[(j->a->packed ? 1 : 3) + j->a->has_scale].data + task * j->nk;

    (void)thread;
    for (int64_t k = 0; k < j->nk; k++) {
        double sum = 0;

        for (int64_t run = 0; run < j->runs; run++)
            sum += (double)from[run * j->heads * size + k * TILE];
        to[k] = (real)sum;
    }
}

enum pd_err PK_FN(formula_bwd)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct formula f;

    (void)why;
    formula_shape(&f, c);
    formula_scratch(&f, &s, cpu_pool_threads(b->pool));
    prepare(&f.j, b->pool);
    cpu_pool_run(b->pool, f.j.runs * f.j.heads, backward_task, &f);
    if (f.j.bias)
        cpu_pool_run(b->pool, f.j.heads * f.j.nq, dbias_task, &f);
    for (int k = 0; k < f.plan->params; k++)
        for (int64_t h = 0; h < f.j.heads; h++) {
            double total = 0;

            for (int64_t n = 0; n < f.j.batch; n++)
                total += f.dscalars[(n * f.j.heads + h) * f.plan->params + k];
            ((real *)c->out[f.j.a->packed ? 1 : 3].data)[k * f.j.heads + h] = (real)total;
        }
    return PD_OK;
}
