/* How A is computed: row functions become values per row, exponentials are shifted, factors per row are moved out. */
#include <math.h>
#include <string.h>

#include "kernels/formula/internal.h"

static const struct num zero = {0, 0, 1}, one = {1, 1, 1};

static bool reads_below(const struct nf *f, ref a, int first, int last, unsigned char *seen)
{
    const struct nf_node *x = &f->node[a];

    if (seen[a])
        return false;
    seen[a] = 1;
    if (x->op == NF_LEAF && x->fn >= first && x->fn <= last)
        return true;
    for (int i = 0; i < x->n; i++)
        if (reads_below(f, f->term[x->first + i].node, first, last, seen))
            return true;
    return false;
}

bool nf_reads(const struct nf *f, ref a, int first, int last)
{
    unsigned char seen[NF_NODES] = {0};

    return a >= 0 && reads_below(f, a, first, last, seen);
}

/* ---- the shift ---- */

/* exp(k u) is z^k e for z = exp(m), e = exp(k u - k m), so every value is z^k v. A sum of terms with different k takes
 * the largest k; the other terms are divided by powers of z = exp(m), a value per row. */
struct shifter {
    struct nf *f;
    ref u, m;
    bool failed, shift_zero;
    unsigned char known[NF_NODES];
    ref value[NF_NODES];
    struct num k[NF_NODES];
};

/* Whether a = k b for a number k > 0. */
static bool ratio(const struct nf *f, ref a, ref b, struct num *ret_k)
{
    const struct nf_node *x = &f->node[a], *y = &f->node[b];
    const struct nf_term bare_x = {a, one}, bare_y = {b, one};
    const bool sums = x->op == NF_SUM && y->op == NF_SUM;
    const struct nf_term *t = sums || x->op == NF_PRODUCT ? f->term + x->first : &bare_x,
                         *u = sums || y->op == NF_PRODUCT ? f->term + y->first : &bare_y;
    const int n = t == &bare_x ? 1 : x->n, m = u == &bare_y ? 1 : y->n;
    const struct num over = sums ? t[0].k : x->op == NF_PRODUCT ? x->k : one;
    const struct num under = sums ? u[0].k : y->op == NF_PRODUCT ? y->k : one;
    const struct num k = num_mul(over, num_inv(under));

    if (n != m || !num_usable(num_inv(under)) || !num_usable(k) || k.v < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (t[i].node != u[i].node ||
            !(fabs(t[i].k.v - (sums ? k.v : 1) * u[i].k.v) <= 1e-14 * fabs(t[i].k.v)))
            return false;
    *ret_k = k;
    return !sums || fabs(x->k.v - k.v * y->k.v) <= 1e-14 * fabs(x->k.v);
}

static ref lift(struct shifter *s, ref a, struct num *ret_k);

static ref divide(struct shifter *s, ref v, struct num by)
{
    struct nf *f = s->f;

    if (num_is(by, 0))
        return v;
    s->shift_zero = true;
    return nf_mul(f, v, nf_fn(f, FN_EXP, nf_scale(f, s->m, num_neg(by)), -1, -1));
}

static ref lift_new(struct shifter *s, ref a, struct num *ret_k)
{
    struct nf *f = s->f;
    const struct nf_node x = f->node[a];
    struct num kid_k[3] = {zero, zero, zero}, top = zero;
    ref kid[3] = {-1, -1, -1}, r = -1;
    const int32_t from = f->pooled;

    *ret_k = zero;
    switch ((enum nf_op)x.op) {
    case NF_NUM:
    case NF_LEAF:
        return a;
    case NF_PRODUCT:
        for (int i = 0; i < x.n && f->pooled < NF_POOL; i++) {
            struct num e = f->term[x.first + i].k;
            ref v = lift(s, f->term[x.first + i].node, &top);

            f->pool[f->pooled].node = v;
            f->pool[f->pooled++].k = e;
            *ret_k = num_add(*ret_k, num_mul(top, e));
        }
        r = s->failed ? -1 : nf_product(f, f->pool + from, x.n, x.k);
        break;
    case NF_SUM: {
        struct num most = num_is(x.k, 0) ? num_inexact(-INFINITY) : zero;

        for (int i = 0; i < x.n && !s->failed; i++) {
            lift(s, f->term[x.first + i].node, &top);
            if (top.v > most.v)
                most = top;
        }
        for (int i = 0; i < x.n && f->pooled < NF_POOL && !s->failed; i++) {
            struct num c = f->term[x.first + i].k;
            ref v = lift(s, f->term[x.first + i].node, &top);

            v = divide(s, v, num_add(most, num_neg(top)));
            f->pool[f->pooled].node = v;
            f->pool[f->pooled++].k = c;
        }
        if (!s->failed && !num_is(x.k, 0) && f->pooled < NF_POOL) {
            ref v = divide(s, nf_int(f, 1), most);

            f->pool[f->pooled].node = v;
            f->pool[f->pooled++].k = x.k;
        }
        r = s->failed ? -1 : nf_sum(f, f->pool + from, f->pooled - from, zero);
        *ret_k = most;
        break;
    }
    case NF_ROW:
        kid[0] = lift(s, f->term[x.first].node, ret_k);
        r = s->failed ? -1 : nf_row(f, (enum pk_formula_row)x.fn, kid[0]);
        break;
    case NF_FN:
        if (x.fn == FN_EXP && x.level == NF_PER_ENTRY) {
            const ref u = f->term[x.first].node;

            if (!ratio(f, u, s->u, ret_k))
                return -1;
            return nf_fn(f, FN_EXP, nf_sub(f, u, nf_scale(f, s->m, *ret_k)), -1, -1);
        }
        for (int i = 0; i < x.n && !s->failed; i++) {
            kid[i] = lift(s, f->term[x.first + i].node, &kid_k[i]);
            if (kid_k[i].v > top.v || i == 0)
                top = kid_k[i];
        }
        if (s->failed)
            return -1;
        switch ((enum fn)x.fn) {
        case FN_GT:
        case FN_GE:
        case FN_EQ:
        case FN_SIGN:
            break;
        case FN_ABS:
            *ret_k = top;
            break;
        case FN_MAX:
        case FN_MIN:
            /* 0 is of every degree */
            if (nf_is_num(f, kid[1], 0))
                top = kid_k[1] = kid_k[0];
            for (int i = 0; i < 2; i++)
                kid[i] = divide(s, kid[i], num_add(top, num_neg(kid_k[i])));
            *ret_k = top;
            break;
        case FN_WHERE:
            s->failed = s->failed || !num_is(kid_k[0], 0);
            if (nf_is_num(f, kid[1], 0))
                kid_k[1] = kid_k[2];
            if (nf_is_num(f, kid[2], 0))
                kid_k[2] = kid_k[1];
            top = kid_k[1].v > kid_k[2].v ? kid_k[1] : kid_k[2];
            for (int i = 1; i < 3; i++)
                kid[i] = divide(s, kid[i], num_add(top, num_neg(kid_k[i])));
            *ret_k = top;
            break;
        default:
            for (int i = 0; i < x.n; i++)
                s->failed = s->failed || !num_is(kid_k[i], 0);
        }
        r = s->failed ? -1 : nf_fn(f, (enum fn)x.fn, kid[0], kid[1], kid[2]);
        break;
    }
    f->pooled = from;
    return r;
}

static ref lift(struct shifter *s, ref a, struct num *ret_k)
{
    if (a < 0 || s->failed || s->f->full) {
        s->failed = true;
        *ret_k = zero;
        return -1;
    }
    if (!s->known[a]) {
        struct num k = zero;
        ref r = lift_new(s, a, &k);

        s->known[a] = 1;
        s->value[a] = r;
        s->k[a] = k;
        if (r < 0)
            s->failed = true;
    }
    *ret_k = s->k[a];
    return s->value[a];
}

/* An exponent that depends on the entry, and of which all others are positive multiples: -1 if there is none, -2 if
 * others are no multiples. */
static ref exponent_of(const struct nf *f, ref a, ref found, unsigned char *seen)
{
    const struct nf_node x = f->node[a];
    struct num k;

    if (seen[a])
        return found;
    seen[a] = 1;
    if (nf_is_fn(f, a, FN_EXP) && x.level == NF_PER_ENTRY)
        return found == -1                                                ? f->term[x.first].node
               : found >= 0 && ratio(f, f->term[x.first].node, found, &k) ? found
                                                                          : -2;
    for (int i = 0; i < x.n && found != -2; i++)
        found = exponent_of(f, f->term[x.first + i].node, found, seen);
    return found;
}

/* ---- row functions ---- */

static void find_rows(const struct nf *f, ref a, unsigned char *seen, ref *row, int *n)
{
    const struct nf_node *x = &f->node[a];

    if (seen[a])
        return;
    seen[a] = 1;
    if (x->op == NF_ROW && *n < PK_FORMULA_ROWS)
        row[(*n)++] = a;
    for (int i = 0; i < x->n; i++)
        find_rows(f, f->term[x->first + i].node, seen, row, n);
}

struct replacement {
    ref row[PK_FORMULA_ROWS];
    int n;
};

static ref replace_row(void *arg, struct nf *f, ref node)
{
    const struct replacement *r = arg;

    for (int k = 0; k < r->n; k++)
        if (r->row[k] == node)
            return nf_leaf(f, (enum pk_formula_leaf)(PK_LEAF_ROW + k));
    return -1;
}

static void separate(struct nf *f, struct split *s)
{
    ref a = s->value;
    const struct nf_node x = f->node[a];
    ref inside = -1, outside = -1;
    const int32_t from = f->pooled;

    if (x.op == NF_PRODUCT) {
        for (int i = 0; i < x.n && f->pooled < NF_POOL; i++)
            if (f->node[f->term[x.first + i].node].level == NF_PER_ENTRY)
                f->pool[f->pooled++] = f->term[x.first + i];
        inside = nf_product(f, f->pool + from, f->pooled - from, one);
        f->pooled = from;
        for (int i = 0; i < x.n && f->pooled < NF_POOL; i++)
            if (f->node[f->term[x.first + i].node].level != NF_PER_ENTRY)
                f->pool[f->pooled++] = f->term[x.first + i];
        outside = nf_product(f, f->pool + from, f->pooled - from, x.k);
        f->pooled = from;
    } else {
        inside = a;
        outside = nf_int(f, 1);
    }
    if (inside < 0 || outside < 0)
        return;
    if (nf_reads(f, inside, PK_LEAF_ROW, PK_LEAF_ROW + PK_FORMULA_ROWS - 1)) {
        s->two_passes = true;
        return;
    }
    s->value = inside;
    s->factor = outside;
}

static enum pd_err too_long(const struct nf *f, const char *what, struct pd_why *why)
{
    if (f->infinite)
        return pd_fail(why, PD_ERR_LIMIT, "%s has a number that is not finite", what);
    return pd_fail(why, PD_ERR_LIMIT, "%s becomes too long", what);
}

static const char derivative[] = "the formula's derivative";

/* ---- powers of the shift ---- */

/* A value is proportional to exp(-power m). */
struct powers {
    const struct nf *f;
    bool failed; /* some value is not */
    unsigned char known[NF_NODES];
    double power[NF_NODES];
};

static double power_of(struct powers *p, ref a);

/* The power that all of n terms have, 0 aside. */
static double common_power(struct powers *p, const struct nf_term *t, int n)
{
    double common = 0;
    bool any = false;

    for (int i = 0; i < n; i++) {
        const double power = power_of(p, t[i].node);

        if (nf_is_num(p->f, t[i].node, 0))
            continue;
        p->failed = p->failed || (any && !(fabs(power - common) <= 1e-9));
        common = power;
        any = true;
    }
    return common;
}

static double new_power(struct powers *p, ref a)
{
    const struct nf *f = p->f;
    const struct nf_node *x = &f->node[a];
    const struct nf_term *t = f->term + x->first;
    double power = 0;

    switch ((enum nf_op)x->op) {
    case NF_NUM:
    case NF_LEAF:
    case NF_ROW:
        return 0;
    case NF_SUM:
        power = common_power(p, t, x->n);
        p->failed = p->failed || (x->k.v != 0 && !(fabs(power) <= 1e-9));
        return power;
    case NF_PRODUCT:
        for (int i = 0; i < x->n; i++)
            power += t[i].k.v * power_of(p, t[i].node);
        return power;
    case NF_FN:
        break;
    }
    switch ((enum fn)x->fn) {
    case FN_EXP: {
        const struct nf_node *u = &f->node[t[0].node];

        /* exponents are sums, or multiples of m alone */
        if (u->op == NF_LEAF && u->fn == PK_LEAF_SHIFT)
            return -1;
        for (int i = 0; i < u->n && (u->op == NF_SUM || u->n == 1); i++)
            if (nf_is_leaf(f, f->term[u->first + i].node, PK_LEAF_SHIFT))
                return -(u->op == NF_SUM ? f->term[u->first + i].k.v : u->k.v);
        p->failed = p->failed || nf_reads(f, t[0].node, PK_LEAF_SHIFT, PK_LEAF_SHIFT);
        return 0;
    }
    case FN_GT:
    case FN_GE:
    case FN_EQ:
    case FN_SIGN:
        (void)power_of(p, t[0].node);
        return 0;
    case FN_ABS:
    case FN_MAX:
    case FN_MIN:
        return common_power(p, t, x->n);
    case FN_WHERE:
        (void)power_of(p, t[0].node);
        return common_power(p, t + 1, 2);
    default:
        for (int i = 0; i < x->n; i++)
            p->failed = p->failed || !(fabs(power_of(p, t[i].node)) <= 1e-9);
        return 0;
    }
}

static double power_of(struct powers *p, ref a)
{
    if (!p->known[a]) {
        p->power[a] = new_power(p, a);
        p->known[a] = 1;
    }
    return p->power[a];
}

static bool find_powers(const struct nf *f, struct split *s)
{
    struct powers p = {.f = f};

    s->value_power = s->two_passes ? 0 : power_of(&p, s->value);
    for (int k = 0; k < s->rows; k++)
        s->row_power[k] = power_of(&p, s->x[k]);
    return !p.failed;
}

static enum pd_err split(struct pk_formula *f, bool shifts, struct split *ret, struct pd_why *why)
{
    struct nf *nf = &f->nf;
    struct split s = {.value = f->root, .exponent = -1, .x = {-1, -1, -1, -1}};
    unsigned char seen[NF_NODES] = {0};
    struct replacement r = {.n = 0};

    nf->steps = 0;
    if (shifts) {
        ref u = exponent_of(nf, f->root, -1, seen);
        struct shifter shift = {.f = nf, .u = u};
        struct num k = zero;
        ref v;

        if (u >= 0 && !nf->node[u].has_row) { /* the shift comes before the row functions */
            shift.m = nf_leaf(nf, PK_LEAF_SHIFT);
            v = lift(&shift, f->root, &k);
            if (!shift.failed && num_is(k, 0)) {
                s.value = v;
                s.exponent = u;
                s.shift_zero = shift.shift_zero;
            }
        }
    }
    if (s.exponent < 0)
        s.value = formula_steady(nf, s.value);
    if (nf->full || s.value < 0)
        return too_long(nf, "the formula with normalised rows", why);
    s.factor = nf_int(nf, 1);
    memset(seen, 0, sizeof seen);
    find_rows(nf, s.value, seen, r.row, &r.n);
    s.rows = r.n;
    for (int k = 0; k < r.n; k++) {
        s.row[k] = (enum pk_formula_row)nf->node[r.row[k]].fn;
        s.x[k] = nf_kid(nf, r.row[k], 0);
    }
    s.value = nf_map(nf, s.value, replace_row, &r);
    if (s.value >= 0)
        separate(nf, &s);
    if (nf->full || s.value < 0)
        return too_long(nf, "the formula with normalised rows", why);
    if (s.exponent >= 0 && !find_powers(nf, &s))
        return split(f, false, ret, why);
    *ret = s;
    return PD_OK;
}

enum pd_err formula_split(struct pk_formula *f, struct split *ret, struct pd_why *why)
{
    return split(f, f->nf.node[f->root].has_row, ret, why);
}

/* ---- the programs ---- */

struct list {
    ref result[PK_FORMULA_RESULTS];
    int n;
};

static void put(struct list *l, ref a)
{
    if (l->n < PK_FORMULA_RESULTS)
        l->result[l->n++] = a;
}

static enum pd_err compile(struct nf *f, const struct list *l, struct pk_formula_program *ret,
                           struct pd_why *why)
{
    for (int k = 0; k < l->n; k++)
        if (l->result[k] < 0)
            return too_long(f, derivative, why);
    return formula_compile(f, l->result, l->n, ret, why);
}

/* d x_k / d by; for a maximum only at the key that attains it. Keys are compared by index: values computed in another
 * order of operations need not be bitwise equal. */
static ref row_slope(struct nf *f, const struct split *s, int k, ref by)
{
    ref d = nf_derive(f, s->x[k], by);

    if (d < 0 || s->row[k] == PK_ROW_SUM || nf_is_num(f, d, 0))
        return d;
    return nf_fn(f, FN_WHERE,
                 nf_fn(f, FN_EQ,
                       nf_sub(f, nf_leaf(f, PK_LEAF_J), nf_leaf(f, (enum pk_formula_leaf)(PK_LEAF_ARG + k))),
                       -1, -1),
                 d, nf_int(f, 0));
}

/* The gradient of leaf `by` through an entry: DA dF/d by, and the part through the row functions. */
static ref flow(struct nf *f, const struct split *s, ref by)
{
    ref d = nf_derive(f, s->value, by), sum = d < 0 ? -1 : nf_mul(f, d, nf_leaf(f, PK_LEAF_DA));

    for (int k = 0; k < s->rows && sum >= 0; k++) {
        ref row = nf_leaf(f, (enum pk_formula_leaf)(PK_LEAF_ROW + k)),
            through = nf_derive(f, s->two_passes ? s->value : s->factor, row);
        ref x = row_slope(f, s, k, by), drow = nf_leaf(f, (enum pk_formula_leaf)(PK_LEAF_DROW + k));

        if (nf_is_num(f, through, 0)) /* read by conditions alone */
            continue;
        x = x < 0 || through < 0 ? -1 : nf_mul(f, x, drow);
        /* A row function in a branch that is not taken has no gradient, and may have no slope. */
        if (x >= 0 && (s->two_passes || nf_interval(f, nf_derive(f, s->x[k], by)).fails))
            x = nf_fn(f, FN_WHERE, nf_fn(f, FN_EQ, drow, -1, -1), nf_int(f, 0), x);
        sum = x < 0 ? -1 : nf_add(f, sum, x);
    }
    return sum;
}

enum pd_err pk_formula_plan(struct pk_formula *f, struct pk_formula_plan *ret, struct pd_why *why)
{
    struct nf *nf = &f->nf;
    struct split s;
    struct list value = {.n = 0}, sums = {.n = 0}, turn = {.n = 0}, before = {.n = 0}, turn_back = {.n = 0},
                back = {.n = 0}, stats = {.n = 0};
    enum pd_err err = formula_split(f, &s, why);
    ref d = nf_leaf(nf, PK_LEAF_D), da = nf_leaf(nf, PK_LEAF_DA), a;

    if (err != PD_OK)
        return err;
    memset(ret, 0, sizeof *ret);
    ret->params = f->n_param;
    ret->rows = s.rows;
    memcpy(ret->row, s.row, sizeof ret->row);
    ret->two_passes = s.two_passes;
    ret->shift = s.exponent >= 0;
    ret->shift_zero = s.shift_zero;
    ret->value_power = s.value_power;
    memcpy(ret->row_power, s.row_power, sizeof ret->row_power);
    ret->reads_j = pk_formula_reads(f, PK_LEAF_J);
    for (int k = 0; k < s.rows; k++)
        ret->reads_j = ret->reads_j || s.row[k] == PK_ROW_MAX;
    ret->reads_row_position = pk_formula_reads(f, PK_LEAF_I) || pk_formula_reads(f, PK_LEAF_NI);

    put(&value, s.value);
    for (int k = 0; k < s.rows; k++)
        put(s.two_passes ? &sums : &value, s.x[k]);
    put(&turn, s.factor);
    if (s.two_passes)
        for (int k = 0; k < s.rows; k++)
            put(&before,
                nf_mul(nf, da, nf_derive(nf, s.value, nf_leaf(nf, (enum pk_formula_leaf)(PK_LEAF_ROW + k)))));
    else
        put(&before, nf_mul(nf, da, s.value));
    for (int k = 0; k < s.rows && !s.two_passes; k++)
        put(&turn_back,
            nf_mul(nf, d, nf_derive(nf, s.factor, nf_leaf(nf, (enum pk_formula_leaf)(PK_LEAF_ROW + k)))));
    put(&back, s.value);
    put(&back, flow(nf, &s, nf_leaf(nf, PK_LEAF_S)));
    for (int k = 0; k < f->n_param; k++) {
        ref by = nf_leaf(nf, (enum pk_formula_leaf)(PK_LEAF_PARAM + k)), through = flow(nf, &s, by);
        ref outer = nf_derive(nf, s.factor, by);

        if (through < 0 || outer < 0)
            return too_long(nf, derivative, why);
        if (!nf_is_num(nf, through, 0)) {
            ret->back_scalars |= (uint8_t)(1u << k);
            put(&back, through);
        }
        if (!nf_is_num(nf, outer, 0)) {
            ret->turn_scalars |= (uint8_t)(1u << k);
            put(&turn_back, nf_mul(nf, d, outer));
        }
    }
    ret->needs_d = turn_back.n > 0;
    a = s.two_passes ? s.value : nf_mul(nf, s.factor, s.value);
    if (a < 0)
        return too_long(nf, derivative, why);
    put(&stats, a);
    put(&stats, nf_derive(nf, a, nf_leaf(nf, PK_LEAF_S)));
    for (int k = 0; k < s.rows; k++) {
        put(&stats, nf_derive(nf, a, nf_leaf(nf, (enum pk_formula_leaf)(PK_LEAF_ROW + k))));
        put(&stats, row_slope(nf, &s, k, nf_leaf(nf, PK_LEAF_S)));
    }
    if (s.exponent >= 0) {
        struct list exponent = {{s.exponent}, 1};

        err = compile(nf, &exponent, &ret->exponent, why);
    }
    if (err == PD_OK)
        err = compile(nf, &value, &ret->value, why);
    if (err == PD_OK && sums.n)
        err = compile(nf, &sums, &ret->sums, why);
    if (err == PD_OK)
        err = compile(nf, &turn, &ret->turn, why);
    if (err == PD_OK)
        err = compile(nf, &before, &ret->before, why);
    if (err == PD_OK)
        err = compile(nf, &turn_back, &ret->turn_back, why);
    if (err == PD_OK)
        err = compile(nf, &back, &ret->back, why);
    if (err == PD_OK)
        err = compile(nf, &stats, &ret->stats, why);
    return err;
}

/* ---- values of a row ---- */

enum pd_err pk_formula_row_value(struct pk_formula *f, const double *leaf, const double *s,
                                 const unsigned char *seen, int64_t n, double *ret_a, double *ret_slope)
{
    struct nf *nf = &f->nf;
    struct split x;
    double at[PK_LEAVES], g;
    bool empty = false;
    ref slope = -1;
    enum pd_err err = formula_split(f, &x, NULL);
    int64_t count = 0;

    if (err != PD_OK)
        return err;
    if (ret_slope) {
        slope = nf_derive(nf, x.value, nf_leaf(nf, PK_LEAF_S));
        if (slope < 0)
            return PD_ERR_LIMIT;
    }
    memcpy(at, leaf, sizeof at);
    for (int64_t k = 0; k < n; k++)
        count += !seen || seen[k];
    at[PK_LEAF_NI] = (double)(count ? count : 1);
    at[PK_LEAF_SHIFT] = x.shift_zero ? 0 : -INFINITY;
    for (int64_t k = 0; k < n && x.exponent >= 0; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = (double)k;
        if (!seen || seen[k])
            at[PK_LEAF_SHIFT] = fmax(at[PK_LEAF_SHIFT], nf_value(nf, x.exponent, at));
    }
    for (int r = 0; r < x.rows; r++) {
        double total = x.row[r] == PK_ROW_SUM ? 0 : -INFINITY;

        for (int64_t k = 0; k < n; k++) {
            double v;

            if (seen && !seen[k])
                continue;
            at[PK_LEAF_S] = s[k];
            at[PK_LEAF_J] = (double)k;
            v = nf_value(nf, x.x[r], at);
            total = x.row[r] == PK_ROW_SUM ? total + v : v > total || isnan(v) ? v : total;
        }
        at[PK_LEAF_ROW + r] = total;
        empty = empty || total == 0;
    }
    g = nf_value(nf, x.factor, at);
    for (int64_t k = 0; k < n; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = (double)k;
        ret_a[k] = seen && !seen[k] ? 0 : g * nf_value(nf, x.value, at);
        if (empty && !isfinite(ret_a[k]))
            ret_a[k] = 0;
        if (ret_slope)
            ret_slope[k] = seen && !seen[k] ? 0 : g * nf_value(nf, slope, at);
    }
    return PD_OK;
}

/* ---- built-ins ---- */

static ref text(struct pk_formula *f, const char *t)
{
    return formula_text(f, t, strlen(t), NULL);
}

const char *pk_formula_builtin(struct pk_formula *f, int *ret_degree, double *ret_constant, double *ret_alpha)
{
    static const struct {
        const char *text, *name;
    } whole[] = {{"softmax(s)", "softmax"},
                 {"(1+s+s^2/2)/rowsum(1+s+s^2/2)", "taylor"},
                 {"sin(s+pi/4)^2/rowsum(sin(s+pi/4)^2)", "periodic"},
                 {"sigmoid(s-log(n))", "sigmoid_bias"}},
      part[] = {{"sigmoid(s)", "sigmoid"}, {"relu(s)", "relu"}};
    struct nf *nf = &f->nf;
    const struct nf_node x = nf->node[f->root];
    const ref steady = formula_steady(nf, f->root);
    double c = 1, alpha = 0;
    ref rest = f->root;

    *ret_degree = 0;
    *ret_constant = 1;
    *ret_alpha = 0;
    for (size_t k = 0; k < sizeof whole / sizeof *whole; k++) {
        const ref same = text(f, whole[k].text); /* below 0: it does not fit */

        if (same >= 0 && (same == f->root || same == steady))
            return whole[k].name;
    }
    if (x.op == NF_PRODUCT) {
        ref n = nf_leaf(nf, PK_LEAF_N);

        c = x.k.v;
        for (int i = 0; i < x.n; i++)
            if (nf->term[x.first + i].node == n)
                alpha = -nf->term[x.first + i].k.v;
        if (!num_usable(num_inv(x.k)))
            return NULL;
        rest = nf_scale(nf, rest, num_inv(x.k));
        if (rest >= 0 && alpha != 0) {
            struct num e = zero;

            for (int i = 0; i < x.n; i++)
                if (nf->term[x.first + i].node == n)
                    e = nf->term[x.first + i].k;
            rest = nf_div(nf, rest, nf_power(nf, n, e));
        }
    }
    if (rest < 0 || !isfinite(c))
        return NULL;
    *ret_constant = c;
    *ret_alpha = alpha;
    for (size_t k = 0; k < sizeof part / sizeof *part; k++)
        if (text(f, part[k].text) == rest)
            return part[k].name;
    for (int p = 1; p <= 6; p++)
        if (nf_power(nf, nf_leaf(nf, PK_LEAF_S), num_of(p, 1)) == rest) {
            *ret_degree = p;
            return "poly";
        }
    return NULL;
}
