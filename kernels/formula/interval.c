/* Bounds of values, for proofs that a power, a division, a root or a logarithm is defined. */
#include <math.h>

#include "kernels/formula/internal.h"

static struct interval make(double lo, double hi)
{
    struct interval r = {lo, hi, lo > 0 || hi < 0, false};

    if (isnan(lo))
        r.lo = -INFINITY;
    if (isnan(hi))
        r.hi = INFINITY;
    return r;
}

struct interval iv_abs(const struct fn_row *f, const struct interval *in)
{
    struct interval r;

    (void)f;
    if (in->lo >= 0)
        return *in;
    r = make(in->hi < 0 ? -in->hi : 0, fmax(-in->lo, in->hi));
    r.nonzero = in->nonzero;
    r.fails = in->fails;
    return r;
}

/* For an increasing function. */
struct interval iv_up(const struct fn_row *f, const struct interval *in)
{
    double lo = f->value(in->lo, 0, 0), hi = f->value(in->hi, 0, 0);
    struct interval r = make(lo, hi);

    r.fails = in->fails;
    if (lo >= 0 && f == &fn_rows[FN_EXP])
        r.nonzero = true; /* exp is above 0; an overflow is reported as growth, not as a failure */
    if (f == &fn_rows[FN_SIGMOID] || f == &fn_rows[FN_SOFTPLUS])
        r.nonzero = true;
    if (f->symmetry == SYMMETRY_ODD && f != &fn_rows[FN_SIGN])
        r.nonzero = in->nonzero;
    return r;
}

struct interval iv_max(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(fmax(in[0].lo, in[1].lo), fmax(in[0].hi, in[1].hi));

    (void)f;
    r.nonzero = r.nonzero || (in[0].nonzero && in[0].lo >= 0) || (in[1].nonzero && in[1].lo >= 0) ||
                (in[0].nonzero && in[1].nonzero);
    r.fails = in[0].fails || in[1].fails;
    return r;
}

struct interval iv_min(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(fmin(in[0].lo, in[1].lo), fmin(in[0].hi, in[1].hi));

    (void)f;
    r.nonzero = r.nonzero || (in[0].nonzero && in[1].nonzero);
    r.fails = in[0].fails || in[1].fails;
    return r;
}

struct interval iv_step(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(0, 1);

    (void)f;
    r.fails = in->fails;
    return r;
}

/* A branch may fail where it is not taken: x <= 0 need not hold for log(x) after x > 0. A condition that is NaN chooses
 * one of the branches. */
struct interval iv_where(const struct fn_row *f, const struct interval *in)
{
    const struct interval a = in[1], b = in[2];
    struct interval r = make(fmin(a.lo, b.lo), fmax(a.hi, b.hi));

    (void)f;
    r.nonzero = r.nonzero || (a.nonzero && b.nonzero);
    r.fails = a.fails && b.fails;
    return r;
}

struct interval iv_log(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(in->lo > 0 ? log(in->lo) : -INFINITY, in->hi > 0 ? log(in->hi) : INFINITY);

    (void)f;
    r.fails = in->fails || !(in->lo >= 0 && in->nonzero);
    return r;
}

struct interval iv_log1p(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(in->lo > -1 ? log1p(in->lo) : -INFINITY, in->hi > -1 ? log1p(in->hi) : INFINITY);

    (void)f;
    r.fails = in->fails || !(in->lo > -1);
    return r;
}

struct interval iv_wave(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(-1, 1);

    (void)f;
    r.fails = in->fails;
    return r;
}

struct interval iv_power(const struct fn_row *f, const struct interval *in)
{
    struct interval r = make(0, INFINITY);

    (void)f;
    r.nonzero = in[0].nonzero;
    r.fails = in[0].fails || in[1].fails || in[0].lo < 0 || (!in[0].nonzero && in[1].lo < 0);
    return r;
}

static struct interval add(struct interval a, struct interval b)
{
    struct interval r = make(a.lo + b.lo, a.hi + b.hi);

    r.nonzero = r.nonzero || (a.lo >= 0 && b.lo >= 0 && (a.nonzero || b.nonzero)) ||
                (a.hi <= 0 && b.hi <= 0 && (a.nonzero || b.nonzero));
    r.fails = a.fails || b.fails;
    return r;
}

static double product(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

static struct interval mul(struct interval a, struct interval b)
{
    double p = product(a.lo, b.lo), q = product(a.lo, b.hi), r = product(a.hi, b.lo), s = product(a.hi, b.hi);
    struct interval x = make(fmin(fmin(p, q), fmin(r, s)), fmax(fmax(p, q), fmax(r, s)));

    x.nonzero = x.nonzero || (a.nonzero && b.nonzero);
    x.fails = a.fails || b.fails;
    return x;
}

static struct interval scale(struct interval a, double k)
{
    struct interval r = mul(a, make(k, k));

    r.nonzero = a.nonzero && k != 0;
    return r;
}

static struct interval raise(struct interval a, struct num e)
{
    struct interval r;
    double lo, hi;

    if (e.v < 0) {
        struct num up = num_neg(e);

        r = raise(a, up);
        lo = r.lo;
        hi = r.hi;
        if (!r.nonzero) {
            bool above = lo >= 0, below = hi <= 0;

            r = make(above ? (hi > 0 ? 1 / hi : 0) : -INFINITY, below && !above ? 1 / lo : INFINITY);
            r.nonzero = true;
            r.fails = true;
            return r;
        }
        if (lo < 0 && hi > 0) {
            bool fails = r.fails;

            r = make(-INFINITY, INFINITY);
            r.nonzero = true;
            r.fails = fails;
            return r;
        }
        /* 0 itself is excluded where a bound is 0 */
        {
            bool fails = r.fails;

            r = make(hi == 0 ? -INFINITY : 1 / hi, lo == 0 ? INFINITY : 1 / lo);
            r.nonzero = true;
            r.fails = fails;
        }
        return r;
    }
    if (num_integer(e)) {
        lo = pow(a.lo, e.v);
        hi = pow(a.hi, e.v);
        if (e.p % 2 == 0) {
            double big = fmax(lo, hi);

            r = make(a.lo > 0 || a.hi < 0 ? fmin(lo, hi) : 0, big);
        } else {
            r = make(lo, hi);
        }
        r.nonzero = a.nonzero;
        r.fails = a.fails;
        return r;
    }
    r = make(a.lo > 0 ? pow(a.lo, e.v) : 0, a.hi > 0 ? pow(a.hi, e.v) : 0);
    r.nonzero = a.nonzero;
    r.fails = a.fails || a.lo < 0;
    return r;
}

static struct interval leaf(const struct nf *f, int which)
{
    static const struct interval any = {-INFINITY, INFINITY, false, false},
                                 above = {0, INFINITY, true, false};
    static const struct interval from_zero = {0, INFINITY, false, false},
                                 from_one = {1, INFINITY, true, false};

    switch (which) {
    case PK_LEAF_N:
    case PK_LEAF_NI:
    case PK_LEAF_HEADS:
    case PK_LEAF_LAYERS:
    case PK_LEAF_WIDTH:
        return from_one;
    case PK_LEAF_I:
    case PK_LEAF_J:
    case PK_LEAF_HEAD:
    case PK_LEAF_LAYER:
        return from_zero;
    case PK_LEAF_PI:
        return make(M_PI, M_PI);
    default:
        break;
    }
    if (which >= PK_LEAF_PARAM && which < PK_LEAF_PARAM + PK_FORMULA_PARAMS) {
        enum pk_formula_range range = f->owner->param[which - PK_LEAF_PARAM].range;

        if (range == PK_RANGE_UNIT) {
            struct interval r = make(0, 1);

            r.nonzero = true;
            return r;
        }
        return range == PK_RANGE_POSITIVE ? above : any;
    }
    return any;
}

/* i - j and j + 1 - i of causal rows: the difference of positions is never negative. */
static bool distance(const struct nf *f, const struct nf_node *x, int *i_at, int *j_at)
{
    *i_at = *j_at = -1;
    for (int k = 0; k < x->n; k++) {
        const struct nf_node *y = &f->node[f->term[x->first + k].node];

        if (y->op == NF_LEAF && y->fn == PK_LEAF_I)
            *i_at = k;
        if (y->op == NF_LEAF && y->fn == PK_LEAF_J)
            *j_at = k;
    }
    return f->owner->causal && *i_at >= 0 && *j_at >= 0 &&
           num_is(num_add(f->term[x->first + *i_at].k, f->term[x->first + *j_at].k), 0);
}

static struct interval find(const struct nf *f, ref a)
{
    const struct nf_node *x = &f->node[a];
    const struct nf_term *t = f->term + x->first;
    struct interval r = make(0, 0), kid[3];
    int i_at, j_at;

    switch ((enum nf_op)x->op) {
    case NF_NUM:
        r = make(x->k.v, x->k.v);
        r.fails = !isfinite(x->k.v);
        return r;
    case NF_LEAF:
        return leaf(f, x->fn);
    case NF_SUM:
        r = make(x->k.v, x->k.v);
        if (distance(f, x, &i_at, &j_at))
            r = add(r, scale((struct interval){0, INFINITY, false, false}, t[i_at].k.v));
        else
            i_at = j_at = -1;
        for (int k = 0; k < x->n; k++)
            if (k != i_at && k != j_at)
                r = add(r, scale(nf_interval(f, t[k].node), t[k].k.v));
        return r;
    case NF_PRODUCT:
        r = make(x->k.v, x->k.v);
        for (int k = 0; k < x->n; k++)
            r = mul(r, raise(nf_interval(f, t[k].node), t[k].k));
        return r;
    case NF_FN:
        for (int k = 0; k < x->n; k++)
            kid[k] = nf_interval(f, t[k].node);
        return fn_rows[x->fn].interval(&fn_rows[x->fn], kid);
    case NF_ROW:
        r = nf_interval(f, t[0].node);
        if (x->fn == PK_ROW_SUM) { /* of at least one key */
            r.hi = r.hi > 0 ? INFINITY : r.hi;
            r.lo = r.lo < 0 ? -INFINITY : r.lo;
            r.nonzero = r.nonzero && (r.lo >= 0 || r.hi <= 0);
        }
        return r;
    }
    return r;
}

struct interval nf_interval(const struct nf *f, ref a)
{
    struct nf *cache = (struct nf *)(uintptr_t)f; /* only the cache of ranges is written */

    if (a < 0)
        return (struct interval){-INFINITY, INFINITY, false, true};
    if (!f->ranged[a]) {
        struct interval r = find(f, a);

        cache->range[a] = r;
        cache->ranged[a] = true;
    }
    return f->range[a];
}
