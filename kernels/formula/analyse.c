/* Properties of a formula that are known before a run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formula/internal.h"

static void note(struct pk_formula_report *r, const struct ast *x, const char *fmt, ...) PD_PRINTF(3, 4);

static void note(struct pk_formula_report *r, const struct ast *x, const char *fmt, ...)
{
    struct pk_formula_fault *w = &r->warning[r->warnings];
    va_list ap;

    if (r->warnings == (int)(sizeof r->warning / sizeof *r->warning))
        return;
    w->at = x->at;
    w->length = x->length;
    va_start(ap, fmt);
    vsnprintf(w->text, sizeof w->text, fmt, ap);
    va_end(ap);
    r->warnings++;
}

/* Marks the nodes of the tree that the formula uses with 1; those only below a branch of where() with 2. */
static void used(const struct pk_formula *f, int a, unsigned char mark, unsigned char *seen)
{
    if (a < 0 || seen[a] == 1 || seen[a] == mark)
        return;
    seen[a] = mark;
    for (int k = 0; k < 3; k++)
        used(f, f->ast[a].kid[k], f->ast[a].op == AST_FN && f->ast[a].fn == FN_WHERE && k ? 2 : mark, seen);
}

/* Whether one of many sampled logits gives a value that is not finite. */
static bool fails_somewhere(struct pk_formula *f, const double *leaf)
{
    double at[PK_LEAVES], s[8], a[8];

    memcpy(at, leaf, sizeof at);
    for (int k = -400; k <= 400; k++) {
        at[PK_LEAF_S] = k * 0.05;
        if (!f->nf.node[f->root].has_row && !isfinite(pk_formula_value(f, at)))
            return true;
    }
    for (int k = -20; k <= 20 && f->nf.node[f->root].has_row; k++) {
        for (int i = 0; i < 8; i++)
            s[i] = k * 0.5 + 0.05 * i;
        if (pk_formula_row_value(f, at, s, NULL, 8, a, NULL) != PD_OK)
            return true;
        for (int i = 0; i < 8; i++)
            if (!isfinite(a[i]))
                return true;
    }
    return false;
}

static const char *divisor_text(const struct pk_formula *f, ref a)
{
    if (nf_interval(&f->nf, a).lo >= 0 && f->nf.node[a].has_row)
        return "the divisor is 0 where all of the row's terms are 0; such a row gives 0";
    if (f->nf.node[a].has_row)
        return "the divisor can be 0, since the row's terms may cancel: such a row gives 0, and rows near it "
               "large numbers";
    if (f->nf.node[a].level == NF_PER_ENTRY)
        return "the divisor can be 0 for some logit: the value is then infinite";
    return "the divisor can become 0; a learned scalar stays above 0 as log or softplus";
}

static void warn(struct pk_formula *f, bool fails, struct pk_formula_report *r)
{
    unsigned char seen[AST_NODES] = {0};
    struct nf *nf = &f->nf;

    used(f, f->root_ast, 1, seen);
    for (int a = 0; a < f->n_ast; a++) {
        const struct ast *x = &f->ast[a];
        ref kid = x->kid[0] >= 0 ? f->built[x->kid[0]] : -1;
        struct interval in = kid >= 0 ? nf_interval(nf, kid) : (struct interval){0, 0, true, false};

        if (!seen[a] || kid < 0 ||
            (seen[a] == 2 && !fails)) /* a branch may be undefined where it is not taken */
            continue;
        if (x->op == AST_DIV && !nf_interval(nf, f->built[x->kid[1]]).nonzero)
            note(r, x, "%s", divisor_text(f, f->built[x->kid[1]]));
        else if (x->op == AST_POWER && nf->node[f->built[x->kid[1]]].op == NF_NUM &&
                 nf->node[f->built[x->kid[1]]].k.v < 0 && !in.nonzero)
            note(r, x, "the base can be 0 for some logit: a negative power of 0 is infinite");
        else if (x->op == AST_FN && x->fn == FN_LOG && !(in.lo >= 0 && in.nonzero))
            note(r, x, "the logarithm of %s: the value is %s", in.lo < 0 ? "a negative number" : "0",
                 in.lo < 0 ? "not a number for some logits" : "infinite for some logit");
        else if (x->op == AST_FN && x->fn == FN_LOG1P && !(in.lo > -1))
            note(r, x, "log1p of a number of at most -1: the value is not a number for some logits");
        else if (x->op == AST_MEANING && x->length == 4 && !strncmp(f->text + x->at, "sqrt", 4) && in.lo < 0)
            note(r, x, "the root of a negative number: the value is not a number for some logits");
    }
}

/* ---- exponentials that overflow ---- */

#define F32_EXPONENT 88.722839 /* log of the largest float */

/* The logit of smallest magnitude, below 88, at which u exceeds F32_EXPONENT; 0: none. */
static double overflow_logit(const struct nf *nf, ref u, const double *leaf)
{
    const int steps = 128;
    double at[PK_LEAVES];

    memcpy(at, leaf, sizeof at);
    for (int k = 1; k <= 2 * steps; k++) {
        const double sign = k % 2 ? 1 : -1;
        double far = 88.0 * ((k + 1) / 2) / steps, near = far - 88.0 / steps;

        at[PK_LEAF_S] = sign * far;
        if (!(nf_value(nf, u, at) > F32_EXPONENT))
            continue;
        for (int i = 0; i < 40; i++) {
            const double middle = (near + far) / 2;

            at[PK_LEAF_S] = sign * middle;
            if (nf_value(nf, u, at) > F32_EXPONENT)
                far = middle;
            else
                near = middle;
        }
        return sign * far;
    }
    return 0;
}

struct overflows {
    const struct nf *nf;
    const double *leaf;
    bool shifted; /* the row's maximum is subtracted from outermost exponents */
    double at
        [NF_NODES]; /* of exponentials: a logit at which they overflow; 0: they do not, or the node is done */
    unsigned char seen[NF_NODES];
};

/* Sets `at` of the exponentials that the formula computes. A branch of where() may overflow where it is not taken. */
static void find_overflows(struct overflows *o, ref a, bool inside)
{
    const struct nf_node *x = &o->nf->node[a];
    const bool exponential = nf_is_fn(o->nf, a, FN_EXP) && x->level == NF_PER_ENTRY;

    if (o->seen[a])
        return;
    o->seen[a] = 1;
    if (exponential && !x->has_row && (inside || !o->shifted))
        o->at[a] = overflow_logit(o->nf, nf_kid(o->nf, a, 0), o->leaf);
    for (int i = 0; i < (nf_is_fn(o->nf, a, FN_WHERE) ? 1 : x->n); i++)
        find_overflows(o, nf_kid(o->nf, a, i), inside || exponential);
}

/* Notes those below a that are not noted yet. */
static void note_overflows(struct overflows *o, const struct ast *x, ref a, struct pk_formula_report *r)
{
    if (o->seen[a])
        return;
    o->seen[a] = 1;
    if (o->at[a] != 0)
        note(r, x,
             "this exponential exceeds f32 at s = %.3g; the row's maximum is subtracted from exponents only "
             "in "
             "a quotient by a sum of the row, such as softmax",
             o->at[a]);
    for (int i = 0; i < o->nf->node[a].n; i++)
        note_overflows(o, x, nf_kid(o->nf, a, i), r);
}

static void warn_of_overflows(struct pk_formula *f, const double *leaf, struct pk_formula_report *r)
{
    struct overflows o = {.nf = &f->nf, .leaf = leaf};
    struct split s;
    ref root;

    if (formula_split(f, &s, NULL) != PD_OK)
        return;
    o.shifted = s.exponent >= 0;
    root = o.shifted ? f->root : formula_steady(&f->nf, f->root);
    if (root < 0)
        return;
    find_overflows(&o, root, false);
    memset(o.seen, 0, sizeof o.seen);
    for (int a = 0; a < f->n_ast; a++) /* what is inside comes first */
        if (f->built[a] >= 0)
            note_overflows(&o, &f->ast[a], f->built[a], r);
}

void pk_formula_report(struct pk_formula *f, const double *leaf, struct pk_formula_report *ret)
{
    struct nf *nf = &f->nf;
    struct interval range = nf_interval(nf, f->root);
    double zeros[8] = {0}, a[8], at[PK_LEAVES];
    const bool fails =
        fails_somewhere(f, leaf); /* where a branch fails, the bounds do not say whether it is taken */
    bool even = true, odd = true;

    memset(ret, 0, sizeof *ret);
    memcpy(at, leaf, sizeof at);
    ret->lo = range.lo;
    ret->hi = range.hi;
    ret->may_fail = range.fails || fails;
    ret->growth = NAN;
    ret->at_zero = NAN;
    if (pk_formula_row_value(f, leaf, zeros, NULL, nf->node[f->root].has_row ? 8 : 1, a, NULL) == PD_OK)
        ret->at_zero = a[0];
    if (!nf->node[f->root].has_row) {
        double far, farther;

        for (int k = 0; k < 64 && (even || odd); k++) {
            double s = 0.0371 * (k + 1) * (1 + 0.17 * k), p, q;

            at[PK_LEAF_S] = s;
            p = pk_formula_value(f, at);
            at[PK_LEAF_S] = -s;
            q = pk_formula_value(f, at);
            if (!(fabs(p - q) <= 1e-12 * (fabs(p) + fabs(q))))
                even = false;
            if (!(fabs(p + q) <= 1e-12 * (fabs(p) + fabs(q))))
                odd = false;
        }
        ret->parity = even ? PK_PARITY_EVEN : odd ? PK_PARITY_ODD : PK_PARITY_NONE;
        at[PK_LEAF_S] = 512;
        far = fabs(pk_formula_value(f, at));
        at[PK_LEAF_S] = 1024;
        farther = fabs(pk_formula_value(f, at));
        if (isinf(far) || isinf(farther) || farther / far > 1e12)
            ret->growth = INFINITY;
        else if (far > 0 && farther > 0)
            ret->growth = log2(farther / far);
        else
            ret->growth = farther == 0 && far == 0 ? -INFINITY : NAN;
        if (fabs(ret->growth - round(ret->growth)) < 0.01)
            ret->growth = round(ret->growth);
    }
    warn(f, fails, ret);
    warn_of_overflows(f, leaf, ret);
}
