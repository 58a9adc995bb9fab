/* Quotients that are logistic functions: their exponentials may overflow, the sigmoid does not. */
#include <math.h>

#include "kernels/formula/internal.h"

static const struct num one = {1, 1, 1};

/* Whether a is above 0 and neither depends on the entry nor is learned, exp(b) aside: its logarithm is computed. */
static bool positive_constant(const struct nf *f, ref a)
{
    const struct nf_node *x = &f->node[a];
    const struct interval range = nf_interval(f, a);

    if (x->level == NF_PER_ENTRY || x->has_row)
        return false;
    if (x->op == NF_PRODUCT) {
        for (int i = 0; i < x->n; i++)
            if (!positive_constant(f, f->term[x->first + i].node))
                return false;
        return x->k.v > 0;
    }
    return nf_is_fn(f, a, FN_EXP) || (range.lo >= 0 && range.nonzero && !range.fails &&
                                      !nf_reads(f, a, PK_LEAF_PARAM, PK_LEAF_PARAM + PK_FORMULA_PARAMS - 1));
}

/* log of a positive constant. */
static ref log_of(struct nf *f, ref a)
{
    const struct nf_node x = f->node[a];
    ref sum;

    if (nf_is_fn(f, a, FN_EXP))
        return nf_kid(f, a, 0);
    if (x.op == NF_NUM)
        return x.k.v < 1 && num_usable(num_inv(x.k))
                   ? nf_neg(f, nf_fn(f, FN_LOG, nf_num(f, num_inv(x.k)), -1, -1))
                   : nf_fn(f, FN_LOG, a, -1, -1);
    if (x.op != NF_PRODUCT)
        return nf_fn(f, FN_LOG, a, -1, -1);
    sum = log_of(f, nf_num(f, x.k));
    for (int i = 0; i < x.n && sum >= 0; i++) {
        const struct nf_term t = f->term[x.first + i];

        sum = nf_add(f, sum, nf_scale(f, log_of(f, t.node), t.k));
    }
    return sum;
}

/* exp of what does not depend on the entry: exp(log(z)) is z. */
static ref exp_of(struct nf *f, ref a)
{
    const struct nf_node x = f->node[a];
    const struct nf_term whole = {a, one};
    const bool multiple = x.op == NF_PRODUCT && x.n == 1 && num_is(f->term[x.first].k, 1);
    const struct nf_term *t = x.op == NF_SUM || multiple ? f->term + x.first : &whole;
    const int n = t == &whole ? 1 : x.n;
    ref product = nf_int(f, 1), rest = a;

    for (int i = 0; i < n && product >= 0 && rest >= 0; i++) {
        const ref node = t[i].node;
        const struct num k = t == &whole ? one : x.op == NF_SUM ? t[i].k : x.k;

        if (!nf_is_fn(f, node, FN_LOG))
            continue;
        product = nf_mul(f, product, nf_power(f, nf_kid(f, node, 0), k));
        rest = nf_sub(f, rest, nf_scale(f, node, k));
    }
    return product < 0 || rest < 0 ? -1 : nf_mul(f, product, nf_fn(f, FN_EXP, rest, -1, -1));
}

/* Whether a sum is c + d exp(x) with positive constants c and d; its parts are numbers or terms. */
static bool logistic(const struct nf *f, ref a, struct nf_term *ret_c, struct nf_term *ret_dexp)
{
    const struct nf_node *x = &f->node[a];
    const bool number = x->op == NF_SUM && x->k.v != 0;
    int c = 0, exponentials = 0;

    if (x->op != NF_SUM || x->n + number != 2 || (number && x->k.v < 0))
        return false;
    for (int i = 0; i < x->n; i++) {
        const struct nf_term t = f->term[x->first + i];
        const struct nf_node *y = &f->node[t.node];

        if (t.k.v < 0)
            return false;
        if (positive_constant(f, t.node)) {
            *ret_c = t;
            c++;
            continue;
        }
        for (int m = 0; y->op == NF_PRODUCT && m < y->n; m++) {
            const struct nf_term factor = f->term[y->first + m];

            if (f->node[factor.node].level == NF_PER_ENTRY
                    ? !nf_is_fn(f, factor.node, FN_EXP) || !num_is(factor.k, 1)
                    : !positive_constant(f, factor.node))
                return false;
        }
        if (y->op != NF_PRODUCT && !nf_is_fn(f, t.node, FN_EXP))
            return false;
        *ret_dexp = t;
        exponentials++;
    }
    return c + number == 1 && exponentials == 1 && !f->node[ret_dexp->node].has_row;
}

/* The exponent of d exp(x), and d. */
static ref exponent_in(struct nf *f, struct nf_term t, ref *ret_d)
{
    const struct nf_node x = f->node[t.node];
    ref e = t.node;

    for (int i = 0; x.op == NF_PRODUCT && i < x.n; i++)
        if (f->node[f->term[x.first + i].node].level == NF_PER_ENTRY)
            e = f->term[x.first + i].node;
    *ret_d = nf_scale(f, nf_div(f, t.node, e), t.k);
    return nf_kid(f, e, 0);
}

#define POWER_MAX 16 /* of a sigmoid that an exponential is taken into */

/* (c + d exp(x))^-m = c^-m sigmoid(y)^m with y = log(c/d) - x, and exp(u) sigmoid(y)^j = exp(u + j y) sigmoid(-y)^j for j up
 * to m: exp(x) may overflow, a sigmoid does not. */
static ref steady_product(void *arg, struct nf *f, ref a)
{
    const struct nf_node x = f->node[a];
    ref r = nf_num(f, x.k), e = -1;
    bool changed = false;

    (void)arg;
    if (x.op != NF_PRODUCT || x.level != NF_PER_ENTRY)
        return -1;
    for (int i = 0; i < x.n; i++)
        if (nf_is_fn(f, f->term[x.first + i].node, FN_EXP) && num_is(f->term[x.first + i].k, 1))
            e = f->term[x.first + i].node;
    for (int i = 0; i < x.n && r >= 0; i++) {
        const struct nf_term t = f->term[x.first + i];
        struct nf_term c = {-1, one}, dexp;
        struct num rest;
        ref d, u, y, by;

        if (t.node == e)
            continue;
        if (!num_integer(t.k) || t.k.p >= 0 || !logistic(f, t.node, &c, &dexp)) {
            r = nf_mul(f, r, nf_power(f, t.node, t.k));
            continue;
        }
        changed = true;
        rest = num_neg(t.k); /* the sigmoid's power */
        u = exponent_in(f, dexp, &d);
        by = c.node < 0 ? nf_num(f, f->node[t.node].k) : nf_scale(f, c.node, c.k);
        if (by < 0 || d < 0)
            return -1;
        y = nf_sub(f, nf_sub(f, log_of(f, by), log_of(f, d)), u);
        r = nf_mul(f, r, nf_power(f, by, t.k));
        for (int j = 1; e >= 0 && j <= POWER_MAX && j <= -t.k.p; j++) {
            const struct num power = num_of(j, 1);
            const ref left = nf_add(f, nf_kid(f, e, 0), nf_scale(f, y, power));

            if (left < 0 || f->node[left].level == NF_PER_ENTRY)
                continue;
            r = nf_mul(f, r, exp_of(f, left));
            r = nf_mul(f, r, nf_power(f, nf_fn(f, FN_SIGMOID, nf_neg(f, y), -1, -1), power));
            rest = num_add(rest, num_neg(power));
            e = -1;
        }
        if (!num_is(rest, 0))
            r = nf_mul(f, r, nf_power(f, nf_fn(f, FN_SIGMOID, y, -1, -1), rest));
    }
    return !changed || r < 0 ? -1 : e >= 0 ? nf_mul(f, r, e) : r;
}

static bool steady_below(const struct nf *f, ref a, unsigned char *seen)
{
    const struct nf_node *x = &f->node[a];
    struct nf_term c, dexp;

    if (seen[a])
        return true;
    seen[a] = 1;
    for (int i = 0; i < x->n; i++) {
        const struct nf_term t = f->term[x->first + i];

        if (!steady_below(f, t.node, seen) ||
            (x->op == NF_PRODUCT && num_integer(t.k) && t.k.p < 0 && logistic(f, t.node, &c, &dexp)))
            return false;
    }
    return true;
}

ref formula_steady(struct nf *f, ref a)
{
    for (int round = 0; round < 8; round++) { /* a sigmoid's argument may hold more of them */
        unsigned char seen[NF_NODES] = {0};

        if (a < 0 || steady_below(f, a, seen))
            break;
        a = nf_map(f, a, steady_product, NULL);
    }
    return a;
}
