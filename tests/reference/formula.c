/* Attention by a formula. A comes from the programs of the forward part alone, by an interpreter of its own; derivatives
 * come from numbers with a slope (v + d e, e^2 = 0) that go through those, never from the programs of the backward part. */
#include "kernels/formula/formula.h"
#include "tests/reference/internal.h"

struct slope {
    double v, d;
};

static struct slope of(double v, double d)
{
    return (struct slope){v, d};
}
/* f(a), of slope f' a'. What does not move has none, whatever f' is. */
static struct slope through(struct slope a, double f, double df)
{
    return of(f, a.d == 0 ? 0 : df * a.d);
}
static struct slope add(struct slope a, struct slope b)
{
    return of(a.v + b.v, a.d + b.d);
}
static struct slope mul(struct slope a, struct slope b)
{
    return of(a.v * b.v, (a.d == 0 ? 0 : a.d * b.v) + (b.d == 0 ? 0 : b.d * a.v));
}
static struct slope recip(struct slope a)
{
    return through(a, 1 / a.v, -1 / (a.v * a.v));
}

static struct slope power(struct slope a, struct slope b)
{
    if (!(a.v > 0))
        return of(b.v == 0 ? 1 : pow(a.v, b.v), 0);
    return of(pow(a.v, b.v), (a.d == 0 ? 0 : a.d * b.v * pow(a.v, b.v - 1)) +
                                 (b.d == 0 ? 0 : b.d * log(a.v) * pow(a.v, b.v)));
}

static struct slope instruction(enum pk_formula_op op, int arg, struct slope a, struct slope b,
                                struct slope c)
{
    double f;

    switch (op) {
    case PK_FO_ADD:
        return add(a, b);
    case PK_FO_SUB:
        return of(a.v - b.v, a.d - b.d);
    case PK_FO_MUL:
        return mul(a, b);
    case PK_FO_DIV:
        return of(a.v / b.v, mul(a, recip(b)).d);
    case PK_FO_NEG:
        return of(-a.v, -a.d);
    case PK_FO_RECIP:
        return recip(a);
    case PK_FO_SQRT:
        return through(a, sqrt(a.v), 0.5 / sqrt(a.v));
    case PK_FO_RSQRT:
        return through(a, 1 / sqrt(a.v), -0.5 / (a.v * sqrt(a.v)));
    case PK_FO_POWI:
        return through(a, pow(a.v, arg), arg * pow(a.v, arg - 1));
    case PK_FO_MULADD:
        return add(mul(a, b), c);
    case PK_FO_ABS:
        return through(a, fabs(a.v), (a.v > 0) - (a.v < 0));
    case PK_FO_SIGN:
        return of((a.v > 0) - (a.v < 0), 0);
    case PK_FO_FLOOR:
        return of(floor(a.v), 0);
    case PK_FO_MAX:
        return a.v > b.v || isnan(a.v) ? a : b;
    case PK_FO_MIN:
        return a.v < b.v || isnan(a.v) ? a : b;
    case PK_FO_GT:
        return of(a.v > 0, 0);
    case PK_FO_GE:
        return of(a.v >= 0, 0);
    case PK_FO_EQ:
        return of(a.v == 0, 0);
    case PK_FO_WHERE:
        return a.v != 0 ? b : c;
    case PK_FO_EXP:
        return through(a, exp(a.v), exp(a.v));
    case PK_FO_EXPM1:
        return through(a, expm1(a.v), exp(a.v));
    case PK_FO_LOG:
        return through(a, log(a.v), 1 / a.v);
    case PK_FO_LOG1P:
        return through(a, log1p(a.v), 1 / (1 + a.v));
    case PK_FO_TANH:
        f = tanh(a.v);
        return through(a, f, 1 - f * f);
    case PK_FO_SIGMOID:
        f = 1 / (1 + exp(-a.v));
        return through(a, f, f * (1 - f));
    case PK_FO_SOFTPLUS:
        return through(a, fmax(a.v, 0) + log1p(exp(-fabs(a.v))), 1 / (1 + exp(-a.v)));
    case PK_FO_ERF:
        return through(a, erf(a.v), 2 / sqrt(M_PI) * exp(-a.v * a.v));
    case PK_FO_SIN:
        return through(a, sin(a.v), cos(a.v));
    case PK_FO_COS:
        return through(a, cos(a.v), -sin(a.v));
    case PK_FO_POWER:
        return power(a, b);
    default:
        assert(0);
        return a;
    }
}

static struct slope operand(const struct pk_formula_program *p, int o, const struct slope *made,
                            const struct slope *leaf)
{
    if (o >= 0)
        return made[o];
    if (o == INT16_MIN) /* the instruction takes fewer */
        return of(0, 0);
    return o <= PK_FORMULA_CONSTANT(0) ? of(p->constant[PK_FORMULA_CONSTANT(0) - o], 0) : leaf[-1 - o];
}

static void run(const struct pk_formula_program *p, const struct slope *leaf, struct slope *ret)
{
    struct slope made[PK_FORMULA_CODE] = {{0, 0}};

    for (int i = 0; i < p->count; i++)
        made[i] = instruction(
            (enum pk_formula_op)p->code[i].op, p->code[i].arg, operand(p, p->code[i].in[0], made, leaf),
            operand(p, p->code[i].in[1], made, leaf), operand(p, p->code[i].in[2], made, leaf));
    for (int k = 0; k < p->results; k++)
        ret[k] = operand(p, p->result[k], made, leaf);
}

struct scene {
    struct attention t;
    const struct pk_formula_plan *plan;
    const struct pk_formula_attr *attr;
    struct slope leaf[PK_LEAVES]; /* of the head and the row */
    struct slope *s, *a;          /* logits and A of the row (Nk) */
    bool *seen;
    int64_t n; /* how many are seen */
};

static struct scene begin(const struct pk_call *c)
{
    struct scene x = {.t = ref_attention_open(c), .attr = &c->attr->formula, .plan = c->attr->formula.plan};

    x.s = calloc((size_t)x.t.nk + 1, sizeof *x.s);
    x.a = calloc((size_t)x.t.nk + 1, sizeof *x.a);
    x.seen = calloc((size_t)x.t.nk + 1, sizeof *x.seen);
    assert(x.s && x.a && x.seen);
    return x;
}

static void end(struct scene *x)
{
    free(x->s);
    free(x->a);
    free(x->seen);
    ref_attention_close(&x->t);
}

static void begin_row(struct scene *x, int64_t b, int64_t h, int64_t i)
{
    const struct attention *t = &x->t;
    const double *q = t->q + ((b * t->h + h) * t->nq + i) * t->d;
    const double ends = t->length ? get(t->length, count(t->length) > 1 ? b : 0) : (double)t->nk;

    x->leaf[PK_LEAF_N] = of(x->attr->n, 0);
    x->leaf[PK_LEAF_I] = of(t->a.causal ? (double)i + ends - (double)t->nq : (double)i, 0);
    x->leaf[PK_LEAF_HEAD] = of((double)h, 0);
    x->leaf[PK_LEAF_HEADS] = of((double)t->h, 0);
    x->leaf[PK_LEAF_LAYER] = of(x->attr->layer, 0);
    x->leaf[PK_LEAF_LAYERS] = of(x->attr->layers, 0);
    x->leaf[PK_LEAF_WIDTH] = of((double)t->d, 0);
    x->leaf[PK_LEAF_PI] = of(M_PI, 0);
    for (int k = 0; k < x->plan->params; k++)
        x->leaf[PK_LEAF_PARAM + k] = of(get(t->scale, k * t->h + h), 0);
    x->n = 0;
    for (int64_t j = 0; j < t->nk; j++) {
        const double *k = t->k + ((b * t->h + h) * t->nk + j) * t->d;
        double dot = 0;

        for (int64_t c = 0; c < t->d; c++)
            dot += q[c] * k[c];
        x->seen[j] = ref_sees(t, b, i, j);
        x->n += x->seen[j];
        x->s[j] = of(t->a.tau * dot + (t->bias ? get(t->bias, (h * t->nq + i) * t->nk + j) : 0), 0);
    }
    x->leaf[PK_LEAF_NI] = of((double)(x->n ? x->n : 1), 0);
}

/* A of the row into x->a. held: the row functions have no slope. */
static void weigh(struct scene *x, bool held)
{
    const struct pk_formula_plan *p = x->plan;
    struct slope r[PK_FORMULA_RESULTS], *leaf = x->leaf, g = of(1, 0);
    bool zero = false;

    leaf[PK_LEAF_SHIFT] = of(p->shift_zero ? 0 : -INFINITY, 0);
    for (int k = 0; k < p->rows; k++)
        leaf[PK_LEAF_ROW + k] = of(p->row[k] == PK_ROW_SUM ? 0 : -INFINITY, 0);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j < x->t.nk; j++) {
            x->a[j] = pass ? x->a[j] : of(0, 0);
            if (!x->seen[j])
                continue;
            leaf[PK_LEAF_S] = x->s[j];
            leaf[PK_LEAF_J] = of((double)j, 0);
            if (!pass) {
                if (p->shift) {
                    run(&p->exponent, leaf, r);
                    leaf[PK_LEAF_SHIFT].v = fmax(leaf[PK_LEAF_SHIFT].v, r[0].v);
                }
                continue;
            }
            run(p->two_passes ? &p->sums : &p->value, leaf, r);
            x->a[j] = r[0];
            for (int k = 0; k < p->rows; k++) {
                struct slope *to = &leaf[PK_LEAF_ROW + k], got = r[k + !p->two_passes];

                if (p->row[k] == PK_ROW_SUM)
                    *to = add(*to, got);
                else if (got.v > to->v || isnan(got.v))
                    *to = got;
            }
        }
    for (int k = 0; k < p->rows; k++) {
        zero = zero || leaf[PK_LEAF_ROW + k].v == 0;
        if (held)
            leaf[PK_LEAF_ROW + k].d = 0;
    }
    if (!p->two_passes) {
        run(&p->turn, leaf, r);
        g = zero && !isfinite(r[0].v) ? of(0, 0) : r[0];
    }
    for (int64_t j = 0; j < x->t.nk; j++) {
        if (!x->seen[j])
            continue;
        if (p->two_passes) {
            leaf[PK_LEAF_S] = x->s[j];
            leaf[PK_LEAF_J] = of((double)j, 0);
            run(&p->value, leaf, r);
            x->a[j] = zero && !isfinite(r[0].v) ? of(0, 0) : r[0];
        } else {
            x->a[j] = g.v == 0 && g.d == 0 ? of(0, 0) : mul(x->a[j], g);
        }
    }
}

void ref_formula(const struct pk_call *c)
{
    struct scene x = begin(c);
    const struct attention *t = &x.t;

    for (int64_t b = 0; b < t->b; b++)
        for (int64_t h = 0; h < t->h; h++)
            for (int64_t i = 0; i < t->nq; i++) {
                begin_row(&x, b, h, i);
                weigh(&x, false);
                for (int64_t e = 0; e < t->d; e++) {
                    double y = 0;

                    for (int64_t j = 0; j < t->nk; j++)
                        if (x.seen[j])
                            y += ref_dropout_factor(t, b, h, i, j) * x.a[j].v *
                                 t->v[((b * t->h + h) * t->nk + j) * t->d + e];
                    put(&c->out[0], ((b * t->nq + i) * t->h + h) * t->d + e, y);
                }
                if (c->n_out == 1)
                    continue;
                /* row functions, the shift, the keys that attain a maximum */
                for (int64_t k = 0, o = 0; k < 2 * x.plan->rows + x.plan->shift; k++) {
                    const int64_t at = k - x.plan->rows - x.plan->shift;
                    double kept = 0;

                    if (k < x.plan->rows) {
                        kept = x.leaf[PK_LEAF_ROW + k].v;
                    } else if (at < 0) {
                        kept = x.n ? x.leaf[PK_LEAF_SHIFT].v : 0;
                    } else if (x.plan->row[at] == PK_ROW_SUM) {
                        continue;
                    } else {
                        for (int64_t j = t->nk; j-- > 0;) {
                            struct slope r[PK_FORMULA_RESULTS];

                            if (!x.seen[j])
                                continue;
                            x.leaf[PK_LEAF_S] = x.s[j];
                            x.leaf[PK_LEAF_J] = of((double)j, 0);
                            run(x.plan->two_passes ? &x.plan->sums : &x.plan->value, x.leaf, r);
                            if (r[at + !x.plan->two_passes].v == x.leaf[PK_LEAF_ROW + at].v)
                                kept = (double)j;
                        }
                    }
                    put(&c->out[1], ((b * t->h + h) * c->out[1].shape.dim[2] + o++) * t->nq + i, kept);
                }
            }
    end(&x);
}

/* The slope of sum_j w_j A_j. */
static double along(struct scene *x, const double *w)
{
    double sum = 0;

    weigh(x, false);
    for (int64_t j = 0; j < x->t.nk; j++)
        if (x->seen[j] && w[j] != 0)
            sum += w[j] * x->a[j].d;
    return sum;
}

void ref_formula_bwd(const struct pk_call *c)
{
    struct scene x = begin(c);
    const struct attention *t = &x.t;
    const struct pk_view *dy = &c->in[t->after + 1];
    const int64_t params = x.plan->params;
    const int qkv = t->a.packed ? 1 : 3;
    size_t nq = (size_t)(t->b * t->h * t->nq * t->d) + 1, nk = (size_t)(t->b * t->h * t->nk * t->d) + 1;
    double *dq = calloc(nq, sizeof *dq), *dk = calloc(nk, sizeof *dk), *dv = calloc(nk, sizeof *dv);
    double *w = calloc((size_t)t->nk + 1, sizeof *w), *dp = calloc((size_t)(params * t->h) + 1, sizeof *dp);
    double *db = calloc((size_t)(t->h * t->nq * t->nk) + 1, sizeof *db);

    assert(dq && dk && dv && w && dp && db);
    for (int64_t b = 0; b < t->b; b++)
        for (int64_t h = 0; h < t->h; h++)
            for (int64_t i = 0; i < t->nq; i++) {
                const int64_t qi = ((b * t->h + h) * t->nq + i) * t->d;

                begin_row(&x, b, h, i);
                weigh(&x, false);
                for (int64_t j = 0; j < t->nk; j++) {
                    const int64_t kj = ((b * t->h + h) * t->nk + j) * t->d;
                    const double keep = x.seen[j] ? ref_dropout_factor(t, b, h, i, j) : 0;

                    w[j] = 0;
                    for (int64_t e = 0; e < t->d; e++) {
                        double g = get(dy, ((b * t->nq + i) * t->h + h) * t->d + e);

                        w[j] += keep * g * t->v[kj + e];
                        dv[kj + e] += keep * x.a[j].v * g;
                    }
                }
                for (int64_t k = 0; k < params; k++) {
                    x.leaf[PK_LEAF_PARAM + k].d = 1;
                    dp[k * t->h + h] += along(&x, w);
                    x.leaf[PK_LEAF_PARAM + k].d = 0;
                }
                for (int64_t j = 0; j < t->nk; j++) {
                    const int64_t kj = ((b * t->h + h) * t->nk + j) * t->d;
                    double ds;

                    if (!x.seen[j])
                        continue;
                    x.s[j].d = 1;
                    ds = along(&x, w);
                    x.s[j].d = 0;
                    db[(h * t->nq + i) * t->nk + j] += ds;
                    for (int64_t e = 0; e < t->d; e++) {
                        dq[qi + e] += t->a.tau * ds * t->k[kj + e];
                        dk[kj + e] += t->a.tau * ds * t->q[qi + e];
                    }
                }
            }
    ref_put_gradients(c, t, dq, dk, dv);
    for (int64_t k = 0; k < params * t->h; k++)
        put(&c->out[qkv], k, dp[k]);
    for (int64_t k = 0; t->bias && k < t->h * t->nq * t->nk; k++)
        put(&c->out[qkv + (params > 0)], k, db[k]);
    free(dq);
    free(dk);
    free(dv);
    free(w);
    free(dp);
    free(db);
    end(&x);
}

void ref_formula_stats(const struct pk_call *c)
{
    struct scene x = begin(c);
    const struct attention *t = &x.t;
    const struct pk_view *rows = &c->in[t->after];
    const int64_t width = rows->shape.dim[2];
    double *jk = calloc((size_t)(t->nk * t->d) + 1, sizeof *jk);

    assert(jk);
    for (int64_t b = 0; b < t->b; b++)
        for (int64_t h = 0; h < t->h; h++) {
            double fro = 0, jac = 0, jacq = 0, n = 0, sum = 0, square = 0, top = 0, broken = 0;

            for (int64_t i = 0; i < t->nq; i++) {
                double x2 = 0;
                bool zero = false;

                begin_row(&x, b, h, i);
                for (int64_t e = 0; e < width; e++)
                    x2 += pow(get(rows, (b * t->nq + i) * width + e), 2);
                memset(jk, 0, (size_t)(t->nk * t->d) * sizeof *jk);
                for (int64_t m = 0; m < t->nk; m++) {
                    if (!x.seen[m])
                        continue;
                    n++;
                    sum += x.s[m].v;
                    square += x.s[m].v * x.s[m].v;
                    top = fmax(top, fabs(x.s[m].v));
                    x.s[m].d = 1;
                    weigh(&x, true);
                    for (int k = 0; k < x.plan->rows; k++)
                        zero = zero || x.leaf[PK_LEAF_ROW + k].v == 0;
                    broken += !zero && (!isfinite(x.a[m].v) || !isfinite(x.a[m].d));
                    fro += x.a[m].v * x.a[m].v;
                    weigh(&x, false);
                    x.s[m].d = 0;
                    for (int64_t j = 0; j < t->nk; j++) {
                        if (!x.seen[j])
                            continue;
                        jac += x.a[j].d * x.a[j].d;
                        for (int64_t e = 0; e < t->d; e++)
                            jk[j * t->d + e] += x.a[j].d * t->k[((b * t->h + h) * t->nk + m) * t->d + e];
                    }
                }
                for (int64_t j = 0; j < t->nk * t->d; j++)
                    jacq += t->a.tau * t->a.tau * x2 * jk[j] * jk[j];
            }
            put(&c->out[0], b * t->h + h, sqrt(fro));
            put(&c->out[1], b * t->h + h, sqrt(jac));
            put(&c->out[2], b * t->h + h, sqrt(jacq));
            put(&c->out[3], b * t->h + h, n > 0 ? sqrt(fmax(0, square / n - sum / n * (sum / n))) : 0);
            put(&c->out[4], b * t->h + h, top);
            put(&c->out[5], b * t->h + h, broken);
        }
    free(jk);
    end(&x);
}
