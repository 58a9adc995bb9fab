/* FORMULA: y = A v, where A is a formula of the logits and of their rows (kernels/formula/formula.h), in tiles as
 * ATTENTION (attention.c). One pass: A_ij = G_i F_ij, F and the row functions summed together, G applied to the row of
 * y. Two passes: the row functions first, then F, which reads them. A shift m, the largest exponent of a row, grows from
 * block to block, and the sums so far are multiplied by powers of exp(m_old - m_new).
 *
 * Tasks are (batch, head, group of queries). */
#include "kernels/backend/cpu/attention_formula.h"

static size_t scratch_of(const struct formula *f)
{
    struct cpu_scratch one = {0};
    struct tile t;
    struct state x;

    tile_scratch(&f->j, &t, &one);
    state_scratch(f, &x, &one);
    if (f->j.few) /* rows of TILE keys */
        (void)cpu_take(&one, (size_t)cpu_round_up(f->j.nk, BLOCK) * sizeof(real));
    return one.used;
}

static void formula_scratch(struct formula *f, struct cpu_scratch *s, int threads)
{
    const size_t bytes = scratch_of(f);
    char *scratch = cpu_take(s, bytes * (size_t)threads);

    job_scratch(&f->j, s, 0); /* bias by tiles, and masks as bits */
    f->j.scratch_bytes = bytes;
    f->j.scratch = scratch;
}

size_t PK_FN(formula_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct formula f;

    formula_shape(&f, c);
    formula_scratch(&f, &s, cpu_threads_of(b));
    return s.used;
}

/* exp(power (before - now)); 1 if nothing was summed before. */
INLINE vec shrink_of(vec before, vec now, double power)
{
    return vsel((before == now) | (before == -INFINITY), vset(1), vexp((before - now) * (real)power));
}

/* Raises the shift of a tile's rows to the tile's exponents; rescales sums and acc (may be NULL). */
static void shift_tile(const struct formula *f, struct state *t, const struct view *w, int64_t at, int64_t k0,
                       const real *s, real *acc)
{
    const int64_t nv = cpu_div_up(w->lanes, W), ld = f->j.ld;
    real old[TILE], shrink[TILE];
    bool shrunk = false;

    /* The shift of a row without a visible key so far is -infinity in `old` only: programs need a finite number. */
    for (int64_t v = 0; v < nv; v++)
        vst(old + v * W, vld(t->m + at + v * W));
    run_tile_part(&t->exponent, &t->l, nv, k0, w->n);
    for (int64_t r0 = 0; r0 < w->n; r0 += ROWS) {
        const int64_t n = cpu_min(ROWS, w->n - r0);
        real *none[2] = {NULL, NULL};
        struct operand u[PK_FORMULA_RESULTS];

        t->l.at[PK_LEAF_S] = s + r0 * TILE;
        t->l.line = w->n - 1 - r0;
        if (t->exponent.reads_j)
            block_keys(t, k0 + r0, n);
        run_block(&t->exponent, &t->l, n, nv, t->slot, none, u);
        max_block(w, r0, n, u[0], k0, t->m + at, NULL);
    }
    for (int64_t v = 0; v < nv; v++) {
        const vec before = vld(old + v * W), now = vld(t->m + at + v * W);

        vst(shrink + v * W, shrink_of(before, now, f->plan->value_power));
        for (int k = 0; k < f->plan->rows; k++) {
            const vec row = vld(t->row[k] + at + v * W); /* a maximum of nothing so far stays -infinity */

            vst(t->row[k] + at + v * W,
                vsel(row == -INFINITY, row, row * shrink_of(before, now, f->plan->row_power[k])));
        }
    }
    for (int64_t i = 0; acc && i < w->lanes; i++)
        shrunk = shrunk || shrink[i] != 1;
    for (int64_t i = 0; shrunk && i < w->lanes; i++)
        for (int64_t c = 0; c < ld; c += W)
            vst(acc + i * ld + c, vld(acc + i * ld + c) * shrink[i]);
}

/* Adds the results of a program from `first` on to the row functions. */
static void rows_block(const struct formula *f, struct state *t, const struct view *w, int64_t at, int64_t k0,
                       int64_t r0, int64_t n, const struct operand *x)
{
    for (int k = 0; k < f->plan->rows; k++)
        if (f->plan->row[k] == PK_ROW_SUM)
            sum_block(w, r0, n, x[k], t->row[k] + at);
        else
            max_block(w, r0, n, x[k], k0, t->row[k] + at, t->arg[k] + at);
}

static void rows_begin(const struct formula *f, struct state *t, int64_t n)
{
    for (int64_t i = 0; i < cpu_round_up(n, TILE); i++) {
        for (int k = 0; k < f->plan->rows; k++) {
            t->row[k][i] = f->plan->row[k] == PK_ROW_SUM ? 0 : -INFINITY;
            if (t->arg[k])
                t->arg[k][i] = 0;
        }
        if (t->m)
            t->m[i] = f->plan->shift_zero ? 0 : -INFINITY;
    }
}

/* Programs subtract the shift; it is 0 for a row without visible keys. Of n queries from `at` on. */
static void shift_end(struct state *t, int64_t at, int64_t n)
{
    for (int64_t i = at; t->m && i < at + cpu_round_up(n, TILE); i++)
        if (t->m[i] == -INFINITY)
            t->m[i] = 0;
}

/* One pass over a tile: 0 gathers the row functions of two passes; 1 replaces S by F, and gathers those of one pass. */
static void pass_tile(const struct formula *f, struct state *x, const struct view *w, int pass, int64_t at,
                      int64_t k0, real *s, real *acc)
{
    const struct pk_formula_plan *p = f->plan;
    const struct ready *program = pass == 0 ? &x->sums : &x->value;
    const bool gathers = p->rows && (pass == 0 || !p->two_passes);
    const int64_t nv = cpu_div_up(w->lanes, W);

    if (p->shift && (pass == 0 || !p->two_passes))
        shift_tile(f, x, w, at, k0, s, acc);
    if (pass == 1 && p->two_passes)
        shift_end(x, at, w->lanes);
    run_tile_part(program, &x->l, nv, k0, w->n);
    for (int64_t r0 = 0; r0 < w->n; r0 += ROWS) {
        const int64_t n = cpu_min(ROWS, w->n - r0);
        real *target[2] = {pass ? s + r0 * TILE : NULL, NULL};
        struct operand r[PK_FORMULA_RESULTS];

        x->l.at[PK_LEAF_S] = s + r0 * TILE;
        x->l.line = w->n - 1 - r0;
        if (program->reads_j)
            block_keys(x, k0 + r0, n);
        run_block(program, &x->l, n, nv, x->slot, target, r);
        if (gathers)
            rows_block(f, x, w, at, k0, r0, n, r + pass);
        if (pass)
            put_block(w, r0, n, r[0], s);
    }
}

static void forward_task(void *arg, int64_t task, int thread)
{
    const struct formula *f = arg;
    const struct attention *j = &f->j;
    const struct pk_formula_plan *p = f->plan;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t b = task / j->groups / j->heads, h = task / j->groups % j->heads;
    const int64_t q0 = task % j->groups * j->group, q1 = cpu_min(j->nq, q0 + j->group),
                  shift = shift_of(j, b);
    int64_t end = keys_of(j, b);
    struct draw draw = {0};
    struct tile t;
    struct state x;

    tile_scratch(j, &t, &scratch);
    state_scratch(f, &x, &scratch);
    state_head(f, &x, h);
    state_rows(f, &x, b, q0, q1 - q0);
    rows_begin(f, &x, q1 - q0);
    if (j->rng)
        draw = draw_of(j->rng, j->a->dropout, j->a->stream, j->batch * j->heads * j->nq);
    if (j->a->causal)
        end = cpu_max(0, cpu_min(end, q1 + shift));
    memset(t.acc, 0, (size_t)(cpu_round_up(q1 - q0, TILE) * j->ld) * sizeof(real));
    /* A tile that holds all keys takes both passes at once, over the same S. */
    for (int sweep = p->two_passes && end > j->keys ? 0 : 1; sweep < 2; sweep++) {
        const int first = p->two_passes && end <= j->keys ? 0 : sweep;

        for (int64_t k0 = 0; k0 < end; k0 += j->keys) {
            int64_t kn = cpu_min(j->keys, end - k0);

            load_keys(j, &t, b, h, k0, kn, false);
            for (int64_t i0 = q0; i0 < q1; i0 += TILE) {
                const int64_t lanes = cpu_min(TILE, q1 - i0), at = i0 - q0;
                const struct view w = view_of(j, b, shift, i0, lanes, k0, kn);
                real *acc = t.acc + at * j->ld;

                if (w.n == 0)
                    continue;
                load_transposed(lanes, j->d, j->q.p + b * j->q.sb + h * j->q.sh + i0 * j->q.sn, j->q.sn,
                                j->q.sd, (real)j->a->tau, t.qt);
                product_keys(j, w.n, lanes, t.kr, t.kp, t.qt, t.s);
                if (j->bias)
                    add_bias(j, &w, h, i0, k0, t.s);
                state_tile(f, &x, at);
                for (int pass = first; pass <= sweep; pass++)
                    pass_tile(f, &x, &w, pass, at, k0, t.s, acc);
                if (sweep == 0)
                    continue;
                if (p->two_passes)
                    mend_rows(f, &x, at, &w, t.s);
                if (j->rng) {
                    draw_tile(j, &draw, b, h, i0, lanes, k0, w.n, t.kept);
                    drop_tile(&w, t.kept, draw.factor, t.s);
                }
                product_queries(j, w.n, lanes, t.s, t.vr, acc);
            }
        }
    }
    shift_end(&x, 0, q1 - q0);
    for (int64_t i0 = q0; i0 < q1; i0 += TILE) {
        const int64_t lanes = cpu_min(TILE, q1 - i0), at = i0 - q0;

        state_tile(f, &x, at);
        turn_rows(f, &x, at, cpu_div_up(lanes, W));
        for (int64_t k = 0, o = 0; k < p->rows + p->shift + p->rows; k++) {
            const real *from = k < p->rows              ? x.row[k]
                               : k < p->rows + p->shift ? x.m
                                                        : x.arg[k - p->rows - p->shift];

            if (!from)
                continue;
            memcpy(j->sums + ((b * j->heads + h) * f->kept + o++) * j->nq + i0, from + at,
                   (size_t)lanes * sizeof(real));
        }
    }
    for (int64_t i = 0; i < q1 - q0; i++)
        if (x.live[i] == 0)
            memset(t.acc + i * j->ld, 0, (size_t)j->ld * sizeof(real));
    store_rows(q1 - q0, j->d, j->ld, t.acc, 1, x.g, j->y.p + b * j->y.sb + h * j->y.sh + q0 * j->y.sn,
               j->y.sn);
}

/* ---- few queries: each key and value is read once; lanes are keys ---- */

/* A leaf of the row as TILE equal lanes. */
static void spread(real *lanes, real x)
{
    for (int64_t v = 0; v < TILE / W; v++)
        vst(lanes + v * W, vset(x));
}

static void few_task(void *arg, int64_t task, int thread)
{
    const struct formula *f = arg;
    const struct attention *j = &f->j;
    const struct pk_formula_plan *p = f->plan;
    struct cpu_scratch scratch = {j->scratch + (size_t)thread * j->scratch_bytes, 0};
    const int64_t b = task / j->heads, h = task % j->heads, shift = shift_of(j, b);
    const real *k = j->k.p + b * j->k.sb + h * j->k.sh, *v = j->v.p + b * j->v.sb + h * j->v.sh;
    struct tile t;
    struct state x;
    real *s;

    tile_scratch(j, &t, &scratch);
    state_scratch(f, &x, &scratch);
    s = cpu_take(&scratch, (size_t)cpu_round_up(j->nk, BLOCK) * sizeof(real));
    state_head(f, &x, h);
    for (int64_t i = 0; i < j->nq; i++) {
        const real *q = j->q.p + b * j->q.sb + h * j->q.sh + i * j->q.sn;
        real *y = j->y.p + b * j->y.sb + h * j->y.sh + i * j->y.sn, at, count, seen;
        double row[PK_FORMULA_ROWS], top[PK_FORMULA_ROWS] = {0}, m = p->shift_zero ? 0 : -INFINITY;
        int64_t end = keys_of(j, b);
        struct view w;

        if (j->a->causal)
            end = cpu_max(0, cpu_min(end, i + shift + 1));
        w = view_of(j, b, shift, 0, 1, 0, end);
        w.n = end;
        state_rows(f, &x, b, i, 1);
        at = x.i[0];
        count = x.ni[0];
        seen = x.live[0];
        state_tile(f, &x, 0);
        spread(x.i, at);
        spread(x.ni, count);
        spread(x.live, seen);
        memset(y, 0, (size_t)j->d * sizeof(real));
        for (int64_t n = 0; n < cpu_round_up(end, TILE); n++)
            s[n] = n < end && row_shown(&w, n) ? vdot(j->d, q, k + n * j->k.sn) * (real)j->a->tau : 0;
        for (int r = 0; r < p->rows; r++)
            row[r] = p->row[r] == PK_ROW_SUM ? 0 : -INFINITY;
        /* pass 0: the shift; 1: row functions of two passes; 2: F, and row functions of one pass */
        for (int pass = p->shift ? 0 : p->two_passes ? 1 : 2; pass < 3; pass++) {
            const struct ready *program = pass == 0 ? &x.exponent : pass == 1 ? &x.sums : &x.value;

            if (pass == 1 && !p->two_passes)
                continue;
            if (pass && x.m)
                spread(x.m, m == -INFINITY ? 0 : (real)m);
            for (int r = 0; pass == 2 && p->two_passes && r < p->rows; r++) {
                spread(x.row[r], (real)row[r]);
                if (x.arg[r])
                    spread(x.arg[r], (real)top[r]);
            }
            run_row_part(program, &x.l, TILE / W);
            for (int64_t k0 = 0; k0 < end; k0 += BLOCK) {
                const int64_t n = cpu_min(BLOCK, end - k0), lines = cpu_div_up(n, TILE);
                real *target[2] = {pass == 2 ? s + k0 : NULL, NULL};
                struct operand r[PK_FORMULA_RESULTS];
                const int first = pass == 2 ? 1 : 0;

                for (int64_t e = 0; program->reads_j && e < lines * TILE; e++)
                    x.keys[e] = (real)(k0 + e);
                x.l.at[PK_LEAF_S] = s + k0;
                run_block(program, &x.l, lines, TILE / W, x.slot, target, r);
#define AT(o, e) (double)(o).p[(e) / TILE * (o).step + (e) % TILE]
                for (int64_t e = 0; e < n; e++) {
                    if (!row_shown(&w, k0 + e))
                        continue;
                    if (pass == 0) {
                        const double u = AT(r[0], e);

                        m = u > m || u != u ? u : m;
                    }
                    for (int a = 0; a < p->rows && (pass == 1 || (pass == 2 && !p->two_passes)); a++) {
                        const double u = AT(r[first + a], e);

                        if (p->row[a] == PK_ROW_SUM) {
                            row[a] += u;
                        } else if (u > row[a] || u != u) {
                            row[a] = u;
                            top[a] = (double)(k0 + e);
                        }
                    }
                }
                for (int64_t l = 0; pass == 2 && l < lines; l++)
                    for (int64_t c = 0; r[0].p != s + k0 && c < TILE / W; c++)
                        vst(s + k0 + l * TILE + c * W, vld(r[0].p + l * r[0].step + c * W));
#undef AT
            }
        }
        for (int r = 0; r < p->rows; r++)
            spread(x.row[r], (real)row[r]);
        turn_rows(f, &x, 0, 1);
        for (int64_t n = 0; n < end; n++) {
            const real *from = v + n * j->v.sn;
            real a = s[n];
            int64_t c = 0;

            if (!row_shown(&w, n))
                continue;
            for (int r = 0; p->two_passes && r < p->rows; r++)
                if ((real)row[r] == 0 && !isfinite((double)a))
                    a = 0;
            for (; c + W <= j->d; c += W)
                vst(y + c, vld(y + c) + a * vld(from + c));
            for (; c < j->d; c++)
                y[c] += a * from[c];
        }
        for (int64_t c = 0; c < j->d; c++)
            y[c] = x.live[0] == 0 ? 0 : y[c] * x.g[0];
        for (int64_t c = 0, o = 0; c < p->rows + p->shift + p->rows; c++) {
            const real *from = c < p->rows              ? x.row[c]
                               : c < p->rows + p->shift ? x.m
                                                        : x.arg[c - p->rows - p->shift];

            if (from)
                j->sums[((b * j->heads + h) * f->kept + o++) * j->nq + i] = from[0];
        }
    }
}

enum pd_err PK_FN(formula)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct formula f;

    (void)why;
    formula_shape(&f, c);
    if (f.j.nq == 0)
        return PD_OK;
    formula_scratch(&f, &s, cpu_pool_threads(b->pool));
    prepare(&f.j, b->pool);
    if (f.j.few)
        cpu_pool_run(b->pool, f.j.batch * f.j.heads, few_task, &f);
    else
        cpu_pool_run(b->pool, f.j.batch * f.j.heads * f.j.groups, forward_task, &f);
    return PD_OK;
}
