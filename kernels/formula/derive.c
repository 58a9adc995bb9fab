/* Derivatives, forward through the normal form. In the product of a slope and an inner derivative the selection is
 * outermost: the factor goes into the branches, and a branch that is 0 stays 0 even if the factor is not finite. */
#include <string.h>

#include "kernels/formula/internal.h"

static const struct num zero = {0, 0, 1};

/* Whether the node is a selection: k where(...), or a sum that has such a term. */
static bool selects(const struct nf *f, ref a)
{
    const struct nf_node *x = &f->node[a];

    if (nf_is_fn(f, a, FN_WHERE))
        return true;
    if (x->op == NF_PRODUCT)
        return x->n == 1 && num_is(f->term[x->first].k, 1) && nf_is_fn(f, f->term[x->first].node, FN_WHERE);
    for (int i = 0; x->op == NF_SUM && i < x->n; i++)
        if (nf_is_fn(f, f->term[x->first + i].node, FN_WHERE))
            return true;
    return false;
}

static ref times(struct nf *f, ref p, ref q)
{
    struct nf_node x;
    ref r;

    if (p < 0 || q < 0 || f->full)
        return -1;
    if (nf_is_num(f, p, 0) || nf_is_num(f, q, 0))
        return nf_int(f, 0);
    if (nf_is_num(f, p, 1))
        return q;
    if (nf_is_num(f, q, 1))
        return p;
    if (!selects(f, p)) {
        if (!selects(f, q))
            return nf_mul(f, p, q);
        r = p;
        p = q;
        q = r;
    }
    if (!nf_step(f))
        return -1;
    x = f->node[p];
    if (x.op == NF_FN)
        return nf_fn(f, FN_WHERE, nf_kid(f, p, 0), times(f, nf_kid(f, p, 1), q),
                     times(f, nf_kid(f, p, 2), q));
    if (x.op == NF_PRODUCT)
        return nf_scale(f, times(f, f->term[x.first].node, q), x.k);
    {
        ref sum, chosen = -1, rest;
        struct num k = zero;
        int selections = 0;

        for (int i = 0; i < x.n; i++)
            if (nf_is_fn(f, f->term[x.first + i].node, FN_WHERE)) {
                chosen = f->term[x.first + i].node;
                k = f->term[x.first + i].k;
                selections++;
            }
        if (selections <= 3) { /* |s| - s is 0 in one branch: the rest of the sum goes into the branches */
            struct nf_term yes[2], no[2];

            rest = nf_sub(f, p, nf_scale(f, chosen, k));
            yes[0] = (struct nf_term){nf_kid(f, chosen, 1), k};
            no[0] = (struct nf_term){nf_kid(f, chosen, 2), k};
            yes[1] = no[1] = (struct nf_term){rest, num_of(1, 1)};
            return rest < 0 ? -1
                            : nf_fn(f, FN_WHERE, nf_kid(f, chosen, 0), times(f, nf_sum(f, yes, 2, zero), q),
                                    times(f, nf_sum(f, no, 2, zero), q));
        }
        sum = nf_scale(f, q, x.k);

        for (int i = 0; i < x.n; i++)
            sum = nf_add(f, sum, nf_scale(f, times(f, f->term[x.first + i].node, q), f->term[x.first + i].k));
        return sum;
    }
}

/* The slope of a function's node by argument i. */
static ref slope_of(struct nf *f, ref a, int i)
{
    const struct nf_node *x = &f->node[a];
    const char *text = fn_rows[x->fn].slope;
    ref arg[3] = {-1, -1, -1};

    for (int k = 0; k < x->n; k++)
        arg[k] = f->term[x->first + k].node;
    for (; i > 0; i--)
        text = strchr(text, ';') + 1;
    return formula_text(f->owner, text, strcspn(text, ";"), arg);
}

struct derivation {
    struct nf *f;
    ref by;
    ref memo[NF_NODES]; /* -2: not yet */
};

static ref derive(struct derivation *d, ref a)
{
    struct nf *f = d->f;
    struct nf_node x = f->node[a];
    const int32_t first = f->pooled;
    ref r;

    if (a == d->by)
        return nf_int(f, 1);
    if (d->memo[a] != -2)
        return d->memo[a];
    r = nf_int(f, 0);
    switch ((enum nf_op)x.op) {
    case NF_NUM:
    case NF_LEAF:
    case NF_ROW:
        break;
    case NF_SUM:
        for (int i = 0; i < x.n && r >= 0; i++) {
            struct num k = f->term[x.first + i].k;
            ref dx = derive(d, f->term[x.first + i].node);

            if (dx < 0 || f->pooled == NF_POOL) {
                r = -1;
                break;
            }
            f->pool[f->pooled].node = dx;
            f->pool[f->pooled++].k = k;
        }
        if (r >= 0)
            r = nf_sum(f, f->pool + first, x.n, zero);
        f->pooled = first;
        break;
    case NF_PRODUCT:
        for (int i = 0; i < x.n && r >= 0; i++) {
            ref dx = derive(d, f->term[x.first + i].node), rest;
            struct num k = f->term[x.first + i].k;

            if (dx < 0) {
                r = -1;
                break;
            }
            if (nf_is_num(f, dx, 0))
                continue;
            if (f->pooled + x.n > NF_POOL) {
                r = -1;
                break;
            }
            for (int m = 0; m < x.n; m++) {
                f->pool[f->pooled] = f->term[x.first + m];
                if (m == i)
                    f->pool[f->pooled].k = num_add(k, num_of(-1, 1));
                f->pooled++;
            }
            rest = nf_product(f, f->pool + first, x.n, num_mul(x.k, k));
            f->pooled = first;
            r = nf_add(f, r, times(f, rest, dx));
        }
        break;
    case NF_FN:
        for (int i = 0; i < x.n && r >= 0; i++) {
            ref dx = derive(d, f->term[x.first + i].node);

            if (dx < 0) {
                r = -1;
                break;
            }
            if (!nf_is_num(f, dx, 0))
                r = nf_add(f, r, times(f, slope_of(f, a, i), dx));
        }
        break;
    }
    if (f->full)
        r = -1;
    d->memo[a] = r;
    return r;
}

ref nf_derive(struct nf *f, ref a, ref by)
{
    struct derivation d = {.f = f, .by = by};

    if (a < 0 || by < 0)
        return -1;
    f->steps = 0;
    for (int i = 0; i < NF_NODES; i++)
        d.memo[i] = -2;
    return derive(&d, a);
}

enum pd_err pk_formula_slope_text(struct pk_formula *f, enum pk_formula_leaf leaf, int order,
                                  struct pd_buf *out)
{
    ref a = f->root, by = nf_leaf(&f->nf, leaf);

    for (int k = 0; k < order; k++)
        a = nf_derive(&f->nf, a, by);
    if (a < 0)
        return PD_ERR_LIMIT;
    formula_print(f, a, STYLE_TEXT, out);
    return pd_buf_err(out);
}
