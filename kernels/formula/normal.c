/* The normal form: a store of unique nodes. A sum's terms are neither sums nor numbers, and their coefficients are kept
 * in the sum; a product's factors are neither products nor (to an integer power) numbers. Terms and factors are
 * sorted. */
#include <math.h>
#include <string.h>

#include "kernels/formula/internal.h"

static const struct num zero = {0, 0, 1}, one = {1, 1, 1};

static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccdull;
}

static uint64_t hash_num(struct num k)
{
    double v = k.v + 0.0; /* -0 is 0; an exact number and the double that it is are equal */
    uint64_t bits = 0;

    memcpy(&bits, &v, sizeof bits);
    return mix(bits, 0);
}

static bool same_node(const struct nf *f, const struct nf_node *a, const struct nf_node *b,
                      const struct nf_term *t)
{
    if (a->op != b->op || a->fn != b->fn || a->n != b->n || !num_equal(a->k, b->k))
        return false;
    for (int i = 0; i < a->n; i++)
        if (f->term[a->first + i].node != t[i].node || !num_equal(f->term[a->first + i].k, t[i].k))
            return false;
    return true;
}

static ref intern(struct nf *f, struct nf_node node, const struct nf_term *t)
{
    uint64_t h = mix(mix(node.op, node.fn), hash_num(node.k));
    uint32_t at;
    bool finite = isfinite(node.k.v);

    for (int i = 0; i < node.n; i++)
        finite = finite && isfinite(t[i].k.v);
    if (!finite) {
        f->full = f->infinite = true;
        return -1;
    }
    for (int i = 0; i < node.n; i++) {
        if (t[i].node < 0)
            return -1;
        h = mix(mix(h, f->node[t[i].node].hash), hash_num(t[i].k));
        if (f->node[t[i].node].level > node.level)
            node.level = f->node[t[i].node].level;
        node.has_row = node.has_row || f->node[t[i].node].has_row;
    }
    for (at = (uint32_t)h & (NF_HASH - 1); f->hash[at]; at = (at + 1) & (NF_HASH - 1))
        if (f->node[f->hash[at] - 1].hash == h && same_node(f, &f->node[f->hash[at] - 1], &node, t))
            return f->hash[at] - 1;
    if (f->nodes == NF_NODES || f->terms + node.n > NF_TERMS) {
        f->full = true;
        return -1;
    }
    node.hash = h;
    node.first = f->terms;
    for (int i = 0; i < node.n; i++)
        f->term[f->terms++] = t[i];
    f->node[f->nodes] = node;
    f->hash[at] = (int16_t)(f->nodes + 1);
    return f->nodes++;
}

int nf_compare(const struct nf *f, ref a, ref b)
{
    static const int rank[] = {
        [NF_NUM] = 0, [NF_LEAF] = 1, [NF_FN] = 2, [NF_ROW] = 3, [NF_PRODUCT] = 4, [NF_SUM] = 5};
    const struct nf_node *x = &f->node[a], *y = &f->node[b];
    int n = x->n < y->n ? x->n : y->n, c;

    if (a == b)
        return 0;
    if (x->op != y->op)
        return rank[x->op] < rank[y->op] ? -1 : 1;
    if (x->fn != y->fn)
        return x->fn < y->fn ? -1 : 1;
    for (int i = 0; i < n; i++) {
        c = nf_compare(f, f->term[x->first + i].node, f->term[y->first + i].node);
        if (c)
            return c;
        c = num_compare(f->term[y->first + i].k, f->term[x->first + i].k); /* high powers first */
        if (c)
            return c;
    }
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return num_compare(x->k, y->k);
}

ref nf_num(struct nf *f, struct num k)
{
    return intern(f, (struct nf_node){.op = NF_NUM, .k = k}, NULL);
}

ref nf_int(struct nf *f, int64_t k)
{
    return nf_num(f, num_of(k, 1));
}

ref nf_leaf(struct nf *f, enum pk_formula_leaf leaf)
{
    enum nf_level level = leaf == PK_LEAF_S || leaf == PK_LEAF_J || leaf == PK_LEAF_DA       ? NF_PER_ENTRY
                          : leaf == PK_LEAF_NI || leaf == PK_LEAF_I || leaf >= PK_LEAF_SHIFT ? NF_PER_ROW
                                                                                             : NF_UNIFORM;

    return intern(f, (struct nf_node){.op = NF_LEAF, .fn = (uint8_t)leaf, .level = (uint8_t)level}, NULL);
}

static bool push(struct nf *f, ref node, struct num k)
{
    if (node < 0 || f->pooled == NF_POOL) {
        f->full = true;
        return false;
    }
    f->pool[f->pooled].node = node;
    f->pool[f->pooled++].k = k;
    return true;
}

/* Stable: merges neighbouring runs of 1, 2, 4, ... terms. */
static void sort(const struct nf *f, struct nf_term *t, int n)
{
    struct nf_term left[NF_POOL];

    for (int run = 1; run < n; run *= 2)
        for (int from = 0; from + run < n; from += 2 * run) {
            const int middle = from + run, end = n - middle < run ? n : middle + run;

            if (nf_compare(f, t[middle - 1].node, t[middle].node) <= 0)
                continue;
            memcpy(left, t + from, (size_t)run * sizeof *left);
            for (int i = 0, k = middle, to = from; i < run; to++)
                t[to] = k < end && nf_compare(f, left[i].node, t[k].node) > 0 ? t[k++] : left[i++];
        }
}

/* Sorts the pool from `first` on and collects like terms. */
static int collect(struct nf *f, int32_t first)
{
    struct nf_term *t = f->pool + first;
    int n = f->pooled - first, kept = 0;

    sort(f, t, n);
    for (int i = 0; i < n; i++) {
        if (kept && t[kept - 1].node == t[i].node)
            t[kept - 1].k = num_add(t[kept - 1].k, t[i].k);
        else
            t[kept++] = t[i];
        if (num_is(t[kept - 1].k, 0))
            kept--;
    }
    f->pooled = first + kept;
    return kept;
}

/* ---- sums ---- */

static void push_sum(struct nf *f, ref a, struct num k, struct num *constant)
{
    const struct nf_node *x;

    if (a < 0) {
        f->full = true;
        return;
    }
    x = &f->node[a];
    if (x->op == NF_NUM) {
        *constant = num_add(*constant, num_mul(k, x->k));
    } else if (x->op == NF_SUM) {
        *constant = num_add(*constant, num_mul(k, x->k));
        for (int i = 0; i < x->n; i++)
            push(f, f->term[x->first + i].node, num_mul(k, f->term[x->first + i].k));
    } else if (x->op == NF_PRODUCT && !num_is(x->k, 1)) {
        struct num c = x->k;

        a = nf_product(f, f->term + x->first, x->n, one);
        push(f, a, num_mul(k, c));
    } else {
        push(f, a, k);
    }
}

ref nf_sum(struct nf *f, const struct nf_term *t, int n, struct num constant)
{
    const int32_t first = f->pooled;
    ref r = -1;
    int kept;

    for (int i = 0; i < n && !f->full; i++)
        push_sum(f, t[i].node, t[i].k, &constant);
    if (f->full)
        goto out;
    kept = collect(f, first);
    t = f->pool + first;
    /* Selections with the same condition become one. */
    for (int i = 0; i < kept; i++)
        for (int k = i + 1; k < kept && nf_is_fn(f, t[i].node, FN_WHERE); k++)
            if (nf_is_fn(f, t[k].node, FN_WHERE) && nf_kid(f, t[i].node, 0) == nf_kid(f, t[k].node, 0)) {
                struct nf_term yes[2] = {{nf_kid(f, t[i].node, 1), t[i].k},
                                         {nf_kid(f, t[k].node, 1), t[k].k}};
                struct nf_term no[2] = {{nf_kid(f, t[i].node, 2), t[i].k}, {nf_kid(f, t[k].node, 2), t[k].k}};
                ref cond = nf_kid(f, t[i].node, 0), a, b;

                if (!nf_step(f))
                    goto out;
                a = nf_sum(f, yes, 2, zero);
                b = nf_sum(f, no, 2, zero);
                f->pool[first + i] = (struct nf_term){nf_fn(f, FN_WHERE, cond, a, b), one};
                f->pool[first + k] = f->pool[first + kept - 1];
                f->pooled--;
                r = f->full ? -1 : nf_sum(f, f->pool + first, kept - 1, constant);
                goto out;
            }
    if (kept == 0)
        r = nf_num(f, constant);
    else if (kept == 1 && num_is(constant, 0))
        r = num_is(t[0].k, 1) ? t[0].node : nf_product(f, (struct nf_term[]){{t[0].node, one}}, 1, t[0].k);
    else
        r = intern(f, (struct nf_node){.op = NF_SUM, .n = kept, .k = constant}, t);
out:
    f->pooled = first;
    return r;
}

/* ---- products ---- */

/* The square root of an exact number, if it is exact. */
static bool root(struct num k, struct num *ret)
{
    int64_t p, q;

    if (!k.q || k.p < 0)
        return false;
    p = (int64_t)llround(sqrt((double)k.p));
    q = (int64_t)llround(sqrt((double)k.q));
    if (p > 3000000000 || q > 3000000000 || p * p != k.p || q * q != k.q)
        return false;
    *ret = num_of(p, q);
    return true;
}

static bool even(struct num e)
{
    return num_integer(e) && e.p % 2 == 0;
}

/* A sum as a factor: its leading coefficient goes to the product's. */
static void push_sum_power(struct nf *f, ref a, struct num e, struct num *coefficient)
{
    const struct nf_node *x = &f->node[a];
    struct num c = f->term[x->first].k, r;

    if (!num_integer(e) && c.v < 0)
        c = num_neg(c);
    if (!num_is(c, 1) && c.v != 0 && c.q) {
        if (num_integer(e))
            *coefficient = num_mul(*coefficient, num_power(c, e.p));
        else if (e.q == 2 && root(c, &r))
            *coefficient = num_mul(*coefficient, num_power(r, e.p));
        else
            push(f, nf_num(f, c), e);
        a = nf_sum(f, (struct nf_term[]){{a, num_inv(c)}}, 1, zero);
        if (a < 0)
            return;
        x = &f->node[a];
    }
    /* 1 / (1 + exp(x)) = sigmoid(-x) */
    if (num_integer(e) && e.p < 0 && x->op == NF_SUM && x->n == 1 && num_is(x->k, 1) &&
        nf_is_fn(f, f->term[x->first].node, FN_EXP) && num_is(f->term[x->first].k, 1)) {
        a = nf_fn(f, FN_SIGMOID, nf_neg(f, nf_kid(f, f->term[x->first].node, 0)), -1, -1);
        e = num_neg(e);
    }
    push(f, a, e);
}

/* Whether (b^k)^e is b^(k e), or |b|^(k e) for even k. */
static bool power_of_power(struct nf *f, ref b, struct num k, ref *ret)
{
    if (nf_interval(f, b).lo >= 0)
        *ret = b;
    else if (even(k))
        *ret = nf_fn(f, FN_ABS, b, -1, -1);
    else
        return false;
    return true;
}

static void push_product(struct nf *f, ref a, struct num e, struct num *coefficient)
{
    const struct nf_node *x;
    struct num r;

    if (a < 0 || f->full) {
        f->full = true;
        return;
    }
    x = &f->node[a];
    switch ((enum nf_op)x->op) {
    case NF_NUM:
        if (num_integer(e))
            *coefficient = num_mul(*coefficient, num_power(x->k, e.p));
        else if (x->k.v <= 0)
            *coefficient =
                num_mul(*coefficient, x->k.v == 0 && e.v > 0 ? zero : num_inexact(pow(x->k.v, e.v)));
        else if (num_is(x->k, 1))
            break;
        else if (e.q == 2 && root(x->k, &r))
            *coefficient = num_mul(*coefficient, num_power(r, e.p));
        else
            push(f, a, e);
        return;
    case NF_PRODUCT: {
        const int32_t first = x->first, n = x->n;
        bool all = num_integer(e) || x->k.v > 0;
        ref base;

        for (int i = 0; i < n && all && !num_integer(e); i++)
            all = power_of_power(f, f->term[first + i].node, f->term[first + i].k, &base);
        if (!all) {
            push(f, a, e);
            return;
        }
        push_product(f, nf_num(f, f->node[a].k), e, coefficient);
        for (int i = 0; i < n; i++) {
            struct num k = f->term[first + i].k;

            base = f->term[first + i].node;
            if (!num_integer(e))
                power_of_power(f, base, k, &base);
            push_product(f, base, num_mul(k, e), coefficient);
        }
        return;
    }
    case NF_SUM:
        push_sum_power(f, a, e, coefficient);
        return;
    case NF_FN:
        if (x->fn == FN_ABS && even(e))
            push_product(f, nf_kid(f, a, 0), e, coefficient);
        else
            push(f, a, e);
        return;
    case NF_LEAF:
    case NF_ROW:
        push(f, a, e);
        return;
    }
}

/* Applies one rewriting to the collected factors; true if there was one, and the factors must be collected again. */
static bool rewrite(struct nf *f, int32_t first, int n)
{
    struct nf_term *t = f->pool + first;
    int exponent = -1;

    for (int i = 0; i < n; i++) {
        if (nf_is_fn(f, t[i].node, FN_EXP)) {
            if (exponent >= 0 || !num_is(t[i].k, 1)) { /* exp(a)^p exp(b)^q = exp(p a + q b) */
                struct nf_term sum[2] = {{nf_kid(f, t[i].node, 0), t[i].k}, {-1, zero}};
                int m = 1;

                if (exponent >= 0)
                    sum[m++] = (struct nf_term){nf_kid(f, t[exponent].node, 0), t[exponent].k};
                t[i].node = nf_fn(f, FN_EXP, nf_sum(f, sum, m, zero), -1, -1);
                t[i].k = one;
                if (exponent >= 0) {
                    t[exponent] = t[n - 1];
                    f->pooled--;
                }
                return true;
            }
            exponent = i;
        }
        if (nf_is_fn(f, t[i].node, FN_ABS) && even(t[i].k)) {
            t[i].node = nf_kid(f, t[i].node, 0);
            return true;
        }
        /* Roots may have combined to an integer power, whose base must be expanded. */
        if (num_integer(t[i].k) &&
            (f->node[t[i].node].op == NF_PRODUCT || f->node[t[i].node].op == NF_NUM ||
             (f->node[t[i].node].op == NF_SUM && !num_is(f->term[f->node[t[i].node].first].k, 1) &&
              f->term[f->node[t[i].node].first].k.q)))
            return true;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            if (i == k || !nf_is_fn(f, t[i].node, FN_SIGN) || !num_is(t[i].k, 1))
                continue;
            /* sign(b) b = |b|, sign(b) |b| = b */
            if (t[k].node == nf_kid(f, t[i].node, 0) && num_integer(t[k].k) && t[k].k.p >= 1) {
                t[i].node = nf_fn(f, FN_ABS, t[k].node, -1, -1);
                t[k].k = num_add(t[k].k, num_of(-1, 1));
                return true;
            }
            if (nf_is_fn(f, t[k].node, FN_ABS) && nf_kid(f, t[k].node, 0) == nf_kid(f, t[i].node, 0) &&
                num_is(t[k].k, 1)) {
                t[i].node = nf_kid(f, t[k].node, 0);
                t[k].k = zero;
                return true;
            }
        }
    /* exp(-m y) sigmoid(y)^k = sigmoid(-y)^m sigmoid(y)^(k-m) */
    for (int k = 0; k < n && exponent >= 0; k++) {
        ref y, u = nf_kid(f, t[exponent].node, 0);

        if (!nf_is_fn(f, t[k].node, FN_SIGMOID) || !num_integer(t[k].k) || t[k].k.p < 1 || t[k].k.p > 8)
            continue;
        y = nf_kid(f, t[k].node, 0);
        for (int64_t m = t[k].k.p; m >= 1; m--) {
            struct nf_term sum[2] = {{u, one}, {y, num_of(m, 1)}};

            if (!nf_is_num(f, nf_sum(f, sum, 2, zero), 0))
                continue;
            t[exponent].node = nf_fn(f, FN_SIGMOID, nf_neg(f, y), -1, -1);
            t[exponent].k = num_of(m, 1);
            t[k].k = num_add(t[k].k, num_of(-m, 1));
            return true;
        }
    }
    return false;
}

ref nf_product(struct nf *f, const struct nf_term *t, int n, struct num coefficient)
{
    const int32_t first = f->pooled;
    ref r = -1;
    int kept;

    for (int i = 0; i < n && !f->full; i++)
        push_product(f, t[i].node, t[i].k, &coefficient);
    for (;;) {
        if (f->full)
            goto out;
        kept = collect(f, first);
        if (!rewrite(f, first, kept))
            break;
        if (f->full)
            goto out;
        /* The result of a rewriting may be nested again. */
        {
            const int32_t from = f->pooled, to = first;

            for (int32_t i = to; i < from && !f->full; i++) {
                struct nf_term x = f->pool[i];

                if (!num_is(x.k, 0))
                    push_product(f, x.node, x.k, &coefficient);
            }
            memmove(f->pool + to, f->pool + from, (size_t)(f->pooled - from) * sizeof *f->pool);
            f->pooled -= from - to;
        }
    }
    t = f->pool + first;
    if (num_is(coefficient, 0) || kept == 0)
        r = nf_num(f, coefficient);
    else if (kept == 1 && num_is(t[0].k, 1) && num_is(coefficient, 1))
        r = t[0].node;
    else if (kept == 1 && num_is(t[0].k, 1) && f->node[t[0].node].op == NF_SUM) {
        ref sum = t[0].node;
        const struct nf_node *x = &f->node[sum];
        const int32_t from = f->pooled;

        for (int i = 0; i < x->n; i++)
            push(f, f->term[x->first + i].node, num_mul(coefficient, f->term[x->first + i].k));
        if (!f->full)
            r = nf_sum(f, f->pool + from, x->n, num_mul(coefficient, x->k));
    } else
        r = intern(f, (struct nf_node){.op = NF_PRODUCT, .n = kept, .k = coefficient}, t);
out:
    f->pooled = first;
    return r;
}

ref nf_add(struct nf *f, ref a, ref b)
{
    return nf_sum(f, (struct nf_term[]){{a, one}, {b, one}}, 2, zero);
}
ref nf_sub(struct nf *f, ref a, ref b)
{
    return nf_sum(f, (struct nf_term[]){{a, one}, {b, num_of(-1, 1)}}, 2, zero);
}
ref nf_mul(struct nf *f, ref a, ref b)
{
    return nf_product(f, (struct nf_term[]){{a, one}, {b, one}}, 2, one);
}
ref nf_div(struct nf *f, ref a, ref b)
{
    return nf_product(f, (struct nf_term[]){{a, one}, {b, num_of(-1, 1)}}, 2, one);
}
ref nf_scale(struct nf *f, ref a, struct num k)
{
    return nf_product(f, (struct nf_term[]){{a, one}}, 1, k);
}
ref nf_power(struct nf *f, ref a, struct num e)
{
    return nf_product(f, (struct nf_term[]){{a, e}}, 1, one);
}

ref nf_row(struct nf *f, enum pk_formula_row row, ref a)
{
    struct nf_term t = {a, one};

    if (a < 0)
        return -1;
    return intern(
        f, (struct nf_node){.op = NF_ROW, .fn = (uint8_t)row, .n = 1, .level = NF_PER_ROW, .has_row = true},
        &t);
}

/* ---- functions ---- */

/* The number that a is a multiple of, as a sum's leading coefficient or a product's. */
static struct num content(const struct nf *f, ref a)
{
    const struct nf_node *x = &f->node[a];

    return x->op == NF_SUM ? f->term[x->first].k : x->op == NF_PRODUCT || x->op == NF_NUM ? x->k : one;
}

/* a divided by its content k. False if that is not 1 then: a quotient may be rounded, overflow or vanish. A second step
 * corrects the rounding of the first; with each the content comes closer to 1. */
static bool primitive(struct nf *f, ref a, struct num k, ref *ret)
{
    const struct nf_node *x = &f->node[a];
    const struct num by = num_inv(k);
    struct num left = num_mul(k, by);

    if (num_is(k, 1) || !num_usable(k) || !num_usable(by) || !(fabs(left.v - 1) < fabs(k.v - 1)))
        return false;
    for (int i = 0; x->op == NF_SUM && i < x->n; i++)
        if (!num_usable(num_mul(f->term[x->first + i].k, by)))
            return false;
    if (x->op == NF_SUM && !num_is(x->k, 0) && !num_usable(num_mul(x->k, by)))
        return false;
    *ret = nf_scale(f, a, by);
    return true;
}

static ref fold(struct nf *f, enum fn fn, ref a, ref b, ref c)
{
    const struct fn_row *row = &fn_rows[fn];
    double x = f->node[a].k.v, y = b >= 0 ? f->node[b].k.v : 0, z = c >= 0 ? f->node[c].k.v : 0, v;

    switch (fn) {
    case FN_MAX:
        return num_compare(f->node[a].k, f->node[b].k) >= 0 ? a : b;
    case FN_MIN:
        return num_compare(f->node[a].k, f->node[b].k) <= 0 ? a : b;
    case FN_WHERE:
        return x != 0 ? b : c;
    case FN_ABS:
        return nf_num(f, x < 0 ? num_neg(f->node[a].k) : f->node[a].k);
    case FN_SIGN:
    case FN_GT:
    case FN_GE:
    case FN_EQ:
        return nf_int(f, (int64_t)row->value(x, y, z));
    case FN_FLOOR:
        return fabs(x) < 1e15 ? nf_int(f, (int64_t)floor(x)) : -1;
    default:
        v = row->value(x, y, z);
        if ((x == 0 || (fn == FN_LOG && x == 1)) && fabs(v) <= 1 && v * 2 == floor(v * 2))
            return nf_num(f, num_of((int64_t)(v * 2), 2));
        return -1;
    }
}

ref nf_fn(struct nf *f, enum fn fn, ref a, ref b, ref c)
{
    const struct fn_row *row = &fn_rows[fn];
    struct nf_term t[3] = {{a, one}, {b, one}, {c, one}};
    struct num k;
    ref r;

    for (int i = 0; i < row->arity; i++)
        if (t[i].node < 0) {
            f->full = true;
            return -1;
        }
    if (f->node[a].op == NF_NUM && (row->arity < 2 || fn == FN_WHERE || f->node[b].op == NF_NUM) &&
        (r = fold(f, fn, a, b, c)) >= 0)
        return r;
    k = content(f, a);
    if (row->symmetry != SYMMETRY_NONE && k.v < 0) {
        r = nf_fn(f, fn, nf_neg(f, a), b, c);
        return row->symmetry == SYMMETRY_EVEN ? r : nf_neg(f, r);
    }
    switch (fn) {
    case FN_ABS:
        if (nf_interval(f, a).lo >= 0)
            return a;
        if (f->node[a].op == NF_PRODUCT) { /* |x y^3| = |x| |y|^3 */
            const int32_t first = f->node[a].first, n = f->node[a].n, pooled = f->pooled;

            for (int i = 0; i < n; i++) {
                ref base = f->term[first + i].node;

                push(f, num_integer(f->term[first + i].k) ? nf_fn(f, FN_ABS, base, -1, -1) : base,
                     f->term[first + i].k);
            }
            r = f->full ? -1 : nf_product(f, f->pool + pooled, n, k);
            f->pooled = pooled;
            return r;
        }
        if (primitive(f, a, k, &r))
            return nf_scale(f, nf_fn(f, fn, r, -1, -1), k);
        if (nf_is_fn(f, a, FN_ABS))
            return a;
        break;
    case FN_SIGN:
        if (primitive(f, a, k, &r))
            return nf_fn(f, fn, r, -1, -1);
        if (nf_interval(f, a).lo >= 0 && nf_interval(f, a).nonzero)
            return nf_int(f, 1);
        break;
    case FN_GT:
    case FN_GE:
    case FN_EQ: {
        struct interval range = nf_interval(f, a);

        if (k.v < 0)
            k = num_neg(k);
        if (primitive(f, a, k, &r))
            return nf_fn(f, fn, r, -1, -1);
        if (range.fails)
            break;
        if (fn == FN_GT && range.lo >= 0 && range.nonzero)
            return nf_int(f, 1);
        if (fn == FN_GE && range.lo >= 0)
            return nf_int(f, 1);
        if (range.hi < 0)
            return nf_int(f, 0);
        break;
    }
    case FN_MAX:
    case FN_MIN:
        if (a == b)
            return a;
        /* The argument that depends on less comes last; it gets the slope at a tie. */
        if (f->node[a].op == NF_NUM || f->node[a].level < f->node[b].level ||
            (f->node[b].op != NF_NUM && f->node[a].level == f->node[b].level && nf_compare(f, a, b) > 0)) {
            t[0].node = b;
            t[1].node = a;
        }
        if (nf_is_num(f, t[1].node, 0) && !nf_interval(f, t[0].node).fails) {
            struct interval range = nf_interval(f, t[0].node);

            if (range.lo >= 0)
                return fn == FN_MAX ? t[0].node : t[1].node;
            if (range.hi <= 0)
                return fn == FN_MAX ? t[1].node : t[0].node;
        }
        break;
    case FN_WHERE:
        if (b == c)
            return b;
        if (nf_is_fn(f, b, FN_WHERE) && nf_kid(f, b, 0) == a)
            return nf_fn(f, fn, a, nf_kid(f, b, 1), c);
        if (nf_is_fn(f, c, FN_WHERE) && nf_kid(f, c, 0) == a)
            return nf_fn(f, fn, a, b, nf_kid(f, c, 2));
        break;
    case FN_EXP:
        if (nf_is_fn(f, a, FN_LOG) && nf_interval(f, nf_kid(f, a, 0)).lo >= 0)
            return nf_kid(f, a, 0);
        break;
    case FN_LOG:
        if (nf_is_fn(f, a, FN_EXP))
            return nf_kid(f, a, 0);
        /* log(1 + exp(x)) */
        if (f->node[a].op == NF_SUM && f->node[a].n == 1 && num_is(f->node[a].k, 1) && num_is(k, 1) &&
            nf_is_fn(f, nf_kid(f, a, 0), FN_EXP))
            return nf_fn(f, FN_SOFTPLUS, nf_kid(f, nf_kid(f, a, 0), 0), -1, -1);
        break;
    case FN_LOG1P:
        if (nf_is_fn(f, a, FN_EXP))
            return nf_fn(f, FN_SOFTPLUS, nf_kid(f, a, 0), -1, -1);
        break;
    case FN_POWER:
        if (f->node[b].op == NF_NUM)
            return nf_power(f, a, f->node[b].k);
        if (nf_is_num(f, a, 1))
            return a;
        if (nf_is_fn(f, a, FN_EXP))
            return nf_fn(f, FN_EXP, nf_mul(f, b, nf_kid(f, a, 0)), -1, -1);
        if (f->node[a].op == NF_PRODUCT &&
            k.v > 0) { /* (c x y^2)^b = c^b x^b |y|^(2 b) of factors that are not negative */
            const int32_t first = f->node[a].first, n = f->node[a].n, pooled = f->pooled;
            bool all = true;
            ref base = -1;

            for (int i = 0; i < n && all; i++)
                all = power_of_power(f, f->term[first + i].node, f->term[first + i].k, &base);
            for (int i = 0; i < n && all; i++) {
                struct num e = f->term[first + i].k;

                power_of_power(f, f->term[first + i].node, e, &base);
                push(f, nf_fn(f, FN_POWER, base, nf_scale(f, b, e), -1), one);
            }
            if (all && !num_is(k, 1))
                push(f, nf_fn(f, FN_POWER, nf_num(f, k), b, -1), one);
            if (all)
                r = f->full ? -1 : nf_product(f, f->pool + pooled, f->pooled - pooled, one);
            f->pooled = pooled;
            if (all)
                return r;
        }
        /* If a > 0: exp(b log a); the logarithm is then computed per row. */
        if (f->node[a].level < NF_PER_ENTRY && nf_interval(f, a).lo >= 0 && nf_interval(f, a).nonzero)
            return nf_fn(f, FN_EXP, nf_mul(f, b, nf_fn(f, FN_LOG, a, -1, -1)), -1, -1);
        break;
    default:
        break;
    }
    return intern(f, (struct nf_node){.op = NF_FN, .fn = (uint8_t)fn, .n = row->arity}, t);
}

/* ---- rewriting, values ---- */

static ref map_below(struct nf *f, ref a, ref (*map)(void *arg, struct nf *f, ref node), void *arg, ref *memo)
{
    struct nf_node x;
    const int32_t first = f->pooled;
    ref r;

    if (a < 0 || f->full)
        return -1;
    if (memo[a] >= 0)
        return memo[a];
    x = f->node[a];
    r = map(arg, f, a);
    if (r < 0 && (x.op == NF_NUM || x.op == NF_LEAF))
        r = a;
    if (r < 0) {
        for (int i = 0; i < x.n; i++) {
            struct num k = f->term[x.first + i].k;

            r = map_below(f, f->term[x.first + i].node, map, arg, memo);
            if (r < 0 || !push(f, r, k)) {
                f->pooled = first;
                return -1;
            }
        }
        if (x.op == NF_SUM)
            r = nf_sum(f, f->pool + first, x.n, x.k);
        else if (x.op == NF_PRODUCT)
            r = nf_product(f, f->pool + first, x.n, x.k);
        else {
            ref kid[3] = {-1, -1, -1};

            for (int i = 0; i < x.n; i++)
                kid[i] = f->pool[first + i].node;
            r = x.op == NF_ROW ? nf_row(f, (enum pk_formula_row)x.fn, kid[0])
                               : nf_fn(f, (enum fn)x.fn, kid[0], kid[1], kid[2]);
        }
        f->pooled = first;
    }
    memo[a] = r;
    return r;
}

ref nf_map(struct nf *f, ref a, ref (*map)(void *arg, struct nf *f, ref node), void *arg)
{
    ref memo[NF_NODES];

    memset(memo, 0xff, sizeof memo);
    return map_below(f, a, map, arg, memo);
}

static double power(double x, struct num e)
{
    if (num_integer(e) && e.p >= -64 && e.p <= 64) {
        double r = 1, b = x;

        for (int64_t k = e.p < 0 ? -e.p : e.p; k; k >>= 1) {
            if (k & 1)
                r *= b;
            b *= b;
        }
        return e.p < 0 ? 1 / r : r;
    }
    return e.v == 0.5 ? sqrt(x) : pow(x, e.v);
}

static double value_of(const struct nf *f, ref a, const double *leaf, double *memo, unsigned char *known)
{
    const struct nf_node *x = &f->node[a];
    const struct nf_term *t = f->term + x->first;
    double v = 0, kid[3] = {0};

    if (known[a])
        return memo[a];
    switch ((enum nf_op)x->op) {
    case NF_NUM:
        v = x->k.v;
        break;
    case NF_LEAF:
        v = x->fn == PK_LEAF_PI ? M_PI : leaf[x->fn];
        break;
    case NF_SUM:
        v = x->k.v;
        for (int i = 0; i < x->n; i++)
            v += t[i].k.v * value_of(f, t[i].node, leaf, memo, known);
        break;
    case NF_PRODUCT:
        v = x->k.v;
        for (int i = 0; i < x->n; i++)
            v *= power(value_of(f, t[i].node, leaf, memo, known), t[i].k);
        break;
    case NF_FN:
        for (int i = 0; i < x->n; i++)
            kid[i] = value_of(f, t[i].node, leaf, memo, known);
        v = fn_rows[x->fn].value(kid[0], kid[1], kid[2]);
        break;
    case NF_ROW:
        v = NAN;
        break;
    }
    memo[a] = v;
    known[a] = 1;
    return v;
}

double nf_value(const struct nf *f, ref a, const double *leaf)
{
    double memo[NF_NODES];
    unsigned char known[NF_NODES];

    memset(known, 0, (size_t)(a + 1));
    return value_of(f, a, leaf, memo, known);
}

double pk_formula_value(const struct pk_formula *f, const double *leaf)
{
    return nf_value(&f->nf, f->root, leaf);
}

static void reads(const struct nf *f, ref a, unsigned char *seen)
{
    if (seen[a])
        return;
    seen[a] = 1;
    for (int i = 0; i < f->node[a].n; i++)
        reads(f, f->term[f->node[a].first + i].node, seen);
}

bool pk_formula_reads(const struct pk_formula *f, enum pk_formula_leaf leaf)
{
    unsigned char seen[NF_NODES] = {0};

    reads(&f->nf, f->root, seen);
    for (int32_t a = 0; a < f->nf.nodes; a++)
        if (seen[a] && f->nf.node[a].op == NF_LEAF && f->nf.node[a].fn == leaf)
            return true;
    return false;
}

int pk_formula_row_functions(const struct pk_formula *f)
{
    unsigned char seen[NF_NODES] = {0};
    int n = 0;

    reads(&f->nf, f->root, seen);
    for (int32_t a = 0; a < f->nf.nodes; a++)
        n += seen[a] && f->nf.node[a].op == NF_ROW;
    return n;
}
