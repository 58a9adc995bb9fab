/* Tree to normal form. What a power needs and what is no finite number is found here, with its characters. */
#include <math.h>
#include <string.h>

#include "kernels/formula/parse.h"

struct builder {
    struct parser *p;
    const ref *arg;
    bool trusted; /* a text of the table: powers need no proof */
};

static ref build(struct builder *b, int a);

static void push(struct builder *b, int a, int64_t k)
{
    struct nf *nf = &b->p->f->nf;
    ref r = build(b, a);

    if (nf->pooled == NF_POOL) {
        nf->full = true;
        parse_fail(b->p, PD_ERR_LIMIT, b->p->f->ast[a].at, 1, "the formula becomes too long");
        return;
    }
    nf->pool[nf->pooled].node = r;
    nf->pool[nf->pooled++].k = num_of(k, 1);
}

/* Whether x goes on a chain of + and -. A value with a short name is built once, however often the text reads it. */
static bool adds(const struct ast *x)
{
    return !x->named && (x->op == AST_ADD || x->op == AST_SUB || x->op == AST_NEG);
}

static bool multiplies(const struct ast *x)
{
    return !x->named && (x->op == AST_MUL || x->op == AST_DIV);
}

/* Chains of + and - in one go. */
static void gather(struct builder *b, int a, bool negative)
{
    const struct ast *const ast = b->p->f->ast, *x = &ast[a];

    do {
        const bool minus = (x->op == AST_SUB) != negative;

        if (x->op == AST_NEG)
            negative = !negative;
        else if (adds(&ast[x->kid[1]]))
            gather(b, x->kid[1], minus);
        else
            push(b, x->kid[1], minus ? -1 : 1);
        x = &ast[x->kid[0]];
    } while (adds(x));
    push(b, (int)(x - ast), negative ? -1 : 1);
}

static void gather_product(struct builder *b, int a, bool over)
{
    const struct ast *const ast = b->p->f->ast, *x = &ast[a];

    do {
        const bool under = (x->op == AST_DIV) != over;

        if (multiplies(&ast[x->kid[1]]))
            gather_product(b, x->kid[1], under);
        else
            push(b, x->kid[1], under ? -1 : 1);
        x = &ast[x->kid[0]];
    } while (multiplies(x));
    push(b, (int)(x - ast), over ? -1 : 1);
}

/* Fails if one of the gathered factors is 1 / 0. */
static void check_factors(struct builder *b, const struct ast *x, int32_t first)
{
    const struct pk_formula *f = b->p->f;

    for (const struct ast *y = x; multiplies(y); y = &f->ast[y->kid[0]])
        if (y->op == AST_DIV && nf_is_num(&f->nf, f->built[y->kid[1]], 0))
            x = y;
    for (int32_t k = first; k < f->nf.pooled; k++)
        if (f->nf.pool[k].k.v < 0 && nf_is_num(&f->nf, f->nf.pool[k].node, 0))
            parse_fail(b->p, PD_ERR_INVALID, x->at, x->length, "this divides by 0");
}

/* Integer powers, typed or collected from powers of powers and products. Beyond 2^63 they would not be exact. */
#define MOST_POWER 4096

static ref build_power(struct builder *b, const struct ast *x)
{
    struct pk_formula *f = b->p->f;
    struct nf *nf = &f->nf;
    ref base = build(b, x->kid[0]), e = build(b, x->kid[1]);
    struct interval range;

    if (base < 0 || e < 0)
        return -1;
    if (nf->node[e].op == NF_NUM && num_integer(nf->node[e].k)) {
        if (nf->node[e].k.p > MOST_POWER || nf->node[e].k.p < -MOST_POWER) {
            parse_fail(b->p, PD_ERR_LIMIT, x->at, x->length, "a power of %g; integer powers are -%d to %d",
                       nf->node[e].k.v, MOST_POWER, MOST_POWER);
            return -1;
        }
        return nf_power(nf, base, nf->node[e].k);
    }
    if (nf->node[e].op == NF_NUM && nf_interval(nf, base).lo >= 0)
        return nf_power(nf, base, nf->node[e].k);
    range = nf_interval(nf, base);
    if (!b->trusted && !(range.lo >= 0)) {
        parse_fail(b->p, PD_ERR_INVALID, x->at, x->length,
                   "a power that is no integer needs a base that is never negative; write sign(s)*abs(s)^a, "
                   "which keeps the sign, "
                   "or relu(s)^a");
        return -1;
    }
    if (b->trusted && nf->node[e].op == NF_NUM)
        return nf_power(nf, base, nf->node[e].k);
    return nf_fn(nf, FN_POWER, base, e, -1);
}

static ref build_new(struct builder *b, int a)
{
    struct pk_formula *f = b->p->f;
    struct nf *nf = &f->nf;
    const struct ast *x = &f->ast[a];
    const int32_t first = nf->pooled;
    ref arg[3] = {-1, -1, -1}, diff;

    switch ((enum ast_op)x->op) {
    case AST_NUM:
        return nf_num(nf, x->k);
    case AST_LEAF:
        return nf_leaf(nf, (enum pk_formula_leaf)x->fn);
    case AST_ARG:
        return b->arg[x->fn];
    case AST_NEG:
    case AST_ADD:
    case AST_SUB:
        gather(b, a, false);
        break;
    case AST_MUL:
    case AST_DIV:
        gather_product(b, a, false);
        check_factors(b, x, first);
        break;
    case AST_POWER:
        return build_power(b, x);
    case AST_GT:
    case AST_GE:
    case AST_LT:
    case AST_LE:
    case AST_EQ:
        arg[0] = build(b, x->kid[0]);
        arg[1] = build(b, x->kid[1]);
        if (b->p->failed)
            return -1;
        diff = x->op == AST_LT || x->op == AST_LE ? nf_sub(nf, arg[1], arg[0]) : nf_sub(nf, arg[0], arg[1]);
        return nf_fn(nf,
                     x->op == AST_EQ                      ? FN_EQ
                     : x->op == AST_GT || x->op == AST_LT ? FN_GT
                                                          : FN_GE,
                     diff, -1, -1);
    case AST_FN:
    case AST_MEANING:
    case AST_ROW:
        for (int k = 0; k < 3 && x->kid[k] >= 0; k++)
            arg[k] = build(b, x->kid[k]);
        if (b->p->failed)
            return -1;
        if (x->op == AST_FN)
            return nf_fn(nf, (enum fn)x->fn, arg[0], arg[1], arg[2]);
        if (x->op == AST_ROW)
            return nf_row(nf, (enum pk_formula_row)x->fn, arg[0]);
        return formula_text(f, parse_meaning(x->fn), strlen(parse_meaning(x->fn)), arg);
    }
    if (!b->p->failed)
        diff = x->op == AST_MUL || x->op == AST_DIV
                   ? nf_product(nf, nf->pool + first, nf->pooled - first, num_of(1, 1))
                   : nf_sum(nf, nf->pool + first, nf->pooled - first, num_of(0, 1));
    else
        diff = -1;
    nf->pooled = first;
    return diff;
}

static double highest_integer_power(const struct nf *nf, ref a)
{
    const struct nf_node *x = &nf->node[a];
    double most = 0;

    for (int i = 0; x->op == NF_PRODUCT && i < x->n; i++)
        if (nf->term[x->first + i].k.q <= 1) /* an integer, or not exact */
            most = fmax(most, fabs(nf->term[x->first + i].k.v));
    return most;
}

static ref build(struct builder *b, int a)
{
    struct pk_formula *f = b->p->f;

    if (b->p->failed)
        return -1;
    if (f->built[a] < 0 || b->arg) {
        ref r = build_new(b, a);

        if (r < 0 && !f->nf.infinite && !b->p->failed)
            parse_fail(b->p, PD_ERR_LIMIT, f->ast[a].at, f->ast[a].length, "the formula becomes too long");
        if (r < 0)
            parse_fail(b->p, PD_ERR_INVALID, f->ast[a].at, f->ast[a].length, "this is no finite number");
        if (r >= 0 && !b->arg && highest_integer_power(&f->nf, r) > MOST_POWER)
            parse_fail(b->p, PD_ERR_LIMIT, f->ast[a].at, f->ast[a].length,
                       "this collects a power of %g; at most %d", highest_integer_power(&f->nf, r),
                       MOST_POWER);
        f->built[a] = r;
    }
    return f->built[a];
}

ref build_tree(struct parser *p, int root, const ref *arg, bool trusted)
{
    struct builder b = {.p = p, .arg = arg, .trusted = trusted};

    return build(&b, root);
}

ref formula_text(struct pk_formula *f, const char *text, size_t length, const ref *arg)
{
    struct pk_formula_fault fault;
    struct parser p = {.f = f, .fault = &fault, .text = text, .length = (int)length, .args = 3};
    const int kept = f->n_ast, mode = f->mode;
    int root;
    ref r;

    f->mode = PK_FORMULA_ACTIVATION;
    root = parse_table_text(&p);
    r = p.failed ? -1 : build_tree(&p, root, arg, true);
    f->mode = mode;
    f->n_ast = kept; /* the tree of a text of functions.def is discarded */
    return r;
}
