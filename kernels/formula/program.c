/* Normal form to instructions. Values that depend only on the row come first; products share common factors; equal
 * subexpressions are computed once. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formula/internal.h"

static const struct num zero = {0, 0, 1}, one = {1, 1, 1};

#define NO_OPERAND INT16_MIN
#define CANDIDATES 96

struct maker {
    struct nf *f;
    struct pk_formula_program *p;
    uint8_t level[PK_FORMULA_CODE];
    int16_t memo[NF_NODES];
    ref polished[NF_NODES];
    unsigned char seen[NF_NODES], constant[NF_NODES]; /* constant: 0 unknown, 1 yes, 2 no */
    uint8_t divided[NF_NODES];                        /* products that divide by this base */
    ref candidate[CANDIDATES];
    int candidates;
    const char *limit;
};

/* ---- rewriting into a cheaper form ---- */

/* Whether no argument makes it NaN or infinite by a division, a root or a logarithm. */
static bool safe(const struct nf *f, ref a)
{
    return !nf_interval(f, a).fails;
}

/* The factors that all terms of a sum without constant share; 1 if none. */
static ref common(struct nf *f, ref a)
{
    const struct nf_node x = f->node[a];
    struct nf_term shared[32];
    int n = 0;
    ref first = f->term[x.first].node;
    bool product = f->node[first].op == NF_PRODUCT;

    if (!num_is(x.k, 0) || x.n < 2)
        return nf_int(f, 1);
    for (int i = 0; i < (product ? f->node[first].n : 1) && n < 32; i++)
        shared[n++] = product ? f->term[f->node[first].first + i] : (struct nf_term){first, one};
    for (int k = 1; k < x.n && n; k++) {
        ref t = f->term[x.first + k].node;
        bool many = f->node[t].op == NF_PRODUCT;
        int kept = 0;

        for (int i = 0; i < n; i++)
            for (int m = 0; m < (many ? f->node[t].n : 1); m++) {
                struct nf_term y = many ? f->term[f->node[t].first + m] : (struct nf_term){t, one};

                if (y.node != shared[i].node || (y.k.v > 0) != (shared[i].k.v > 0))
                    continue;
                shared[kept] = shared[i];
                if (fabs(y.k.v) < fabs(shared[i].k.v))
                    shared[kept].k = y.k;
                kept++;
                break;
            }
        n = kept;
    }
    return nf_product(f, shared, n, one);
}

static ref polish(struct maker *m, ref a)
{
    struct nf *f = m->f;
    const int32_t pooled = f->pooled;
    struct nf_node x;
    ref r, kid[3] = {-1, -1, -1};

    if (a < 0 || f->full)
        return -1;
    if (m->polished[a] >= 0)
        return m->polished[a];
    x = f->node[a];
    if (x.op == NF_NUM || x.op == NF_LEAF)
        return a;
    /* where(u > 0, X, where(-u > 0, -X, 0)) = sign(u) X */
    if (nf_is_fn(f, a, FN_WHERE)) {
        ref c = nf_kid(f, a, 0), yes = nf_kid(f, a, 1), no = nf_kid(f, a, 2);

        if (nf_is_fn(f, c, FN_GT) && nf_is_fn(f, no, FN_WHERE) && nf_is_fn(f, nf_kid(f, no, 0), FN_GT) &&
            nf_kid(f, nf_kid(f, no, 0), 0) == nf_neg(f, nf_kid(f, c, 0)) &&
            nf_is_num(f, nf_kid(f, no, 2), 0) && nf_kid(f, no, 1) == nf_neg(f, yes) && safe(f, yes)) {
            r = polish(m, nf_mul(f, nf_fn(f, FN_SIGN, nf_kid(f, c, 0), -1, -1), yes));
            goto out;
        }
    }
    if (f->pooled + x.n > NF_POOL) {
        f->full = true;
        return -1;
    }
    for (int i = 0; i < x.n; i++) {
        struct nf_term t = f->term[x.first + i];

        t.node = polish(m, t.node);
        if (t.node < 0)
            return -1;
        f->pool[f->pooled++] = t;
    }
    if (x.op == NF_SUM) {
        r = nf_sum(f, f->pool + pooled, x.n, x.k);
        if (r >= 0 && f->node[r].op == NF_SUM) {
            ref shared = common(f, r);

            if (shared >= 0 && !nf_is_num(f, shared, 1)) {
                struct nf_node y = f->node[r];
                const int32_t from = f->pooled;

                for (int i = 0; i < y.n && f->pooled < NF_POOL; i++) {
                    struct num k = f->term[y.first + i].k;
                    ref rest = nf_div(f, f->term[y.first + i].node, shared);

                    f->pool[f->pooled].node = rest;
                    f->pool[f->pooled++].k = k;
                }
                r = nf_mul(f, shared, nf_sum(f, f->pool + from, y.n, zero));
            }
        }
    } else if (x.op == NF_PRODUCT) {
        r = nf_product(f, f->pool + pooled, x.n, x.k);
    } else {
        for (int i = 0; i < x.n; i++)
            kid[i] = f->pool[pooled + i].node;
        r = nf_fn(f, (enum fn)x.fn, kid[0], kid[1], kid[2]);
    }
out:
    f->pooled = pooled;
    m->polished[a] = r;
    if (r >= 0)
        m->polished[r] = r;
    return r;
}

/* ---- instructions ---- */

static bool is_constant(struct maker *m, ref a)
{
    const struct nf_node *x = &m->f->node[a];
    bool yes = x->op != NF_ROW && (x->op != NF_LEAF || x->fn == PK_LEAF_PI);

    if (m->constant[a])
        return m->constant[a] == 1;
    for (int i = 0; i < x->n && yes; i++)
        yes = is_constant(m, m->f->term[x->first + i].node);
    m->constant[a] = yes ? 1 : 2;
    return yes;
}

static int16_t constant(struct maker *m, double v)
{
    struct pk_formula_program *p = m->p;

    for (int k = 0; k < p->constants; k++)
        if (memcmp(&p->constant[k], &v, sizeof v) == 0)
            return PK_FORMULA_CONSTANT(k);
    if (p->constants == PK_FORMULA_CONSTANTS) {
        m->limit = "different constants";
        return 0;
    }
    p->constant[p->constants++] = v;
    return PK_FORMULA_CONSTANT(p->constants - 1);
}

static enum nf_level level_of(const struct maker *m, int16_t operand)
{
    if (operand >= 0)
        return (enum nf_level)m->level[operand];
    if (operand <= PK_FORMULA_CONSTANT(0))
        return NF_UNIFORM;
    switch (-1 - operand) {
    case PK_LEAF_S:
    case PK_LEAF_J:
    case PK_LEAF_DA:
        return NF_PER_ENTRY;
    default:
        return NF_PER_ROW;
    }
}

int pk_formula_arity(enum pk_formula_op op)
{
    if ((int)op < FN_COUNT)
        return fn_rows[op].arity;
    return op == PK_FO_MULADD                                                         ? 3
           : op == PK_FO_ADD || op == PK_FO_SUB || op == PK_FO_MUL || op == PK_FO_DIV ? 2
                                                                                      : 1;
}

static int16_t instruction(struct maker *m, enum pk_formula_op op, int arg, int16_t a, int16_t b, int16_t c)
{
    struct pk_formula_program *p = m->p;
    const int arity = pk_formula_arity(op);
    enum nf_level level = level_of(m, a);

    if (m->limit)
        return 0;
    if (arity < 2)
        b = NO_OPERAND;
    if (arity < 3)
        c = NO_OPERAND;
    if (arity > 1 && level_of(m, b) > level)
        level = level_of(m, b);
    if (arity > 2 && level_of(m, c) > level)
        level = level_of(m, c);
    if ((op == PK_FO_ADD || op == PK_FO_MUL) && a > b) {
        int16_t t = a;

        a = b;
        b = t;
    }
    for (int i = 0; i < p->count; i++)
        if (p->code[i].op == op && p->code[i].arg == arg && p->code[i].in[0] == a && p->code[i].in[1] == b &&
            p->code[i].in[2] == c)
            return (int16_t)i;
    if (p->count == PK_FORMULA_CODE) {
        m->limit = "instructions";
        return 0;
    }
    p->code[p->count].op = (uint8_t)op;
    p->code[p->count].arg = (uint8_t)arg;
    p->code[p->count].in[0] = a;
    p->code[p->count].in[1] = b;
    p->code[p->count].in[2] = c;
    m->level[p->count] = (uint8_t)level;
    return (int16_t)p->count++;
}

static int16_t emit(struct maker *m, ref a);

/* b ^ e for e > 0. */
static int16_t emit_power(struct maker *m, int16_t b, struct num e)
{
    if (num_is(e, 1))
        return b;
    if (num_integer(e) && e.p <= 255)
        return e.p == 2 ? instruction(m, PK_FO_MUL, 0, b, b, 0)
                        : instruction(m, PK_FO_POWI, (int)e.p, b, 0, 0);
    if (num_integer(e)) { /* b^(64 q + r): POWER takes no negative base */
        int16_t most = emit_power(m, emit_power(m, b, num_of(64, 1)), num_of(e.p / 64, 1));

        return e.p % 64 ? instruction(m, PK_FO_MUL, 0, most, emit_power(m, b, num_of(e.p % 64, 1)), 0) : most;
    }
    if (e.q == 2 && e.p <= 255)
        return emit_power(m, instruction(m, PK_FO_SQRT, 0, b, 0, 0), num_of(e.p, 1));
    return instruction(m, PK_FO_POWER, 0, b, constant(m, e.v), 0);
}

static int degree(const struct nf *f, ref a)
{
    double d = 0;

    for (int i = 0; i < f->node[a].n; i++)
        d += fabs(f->term[f->node[a].first + i].k.v);
    return (int)ceil(d);
}

static bool divides(const struct nf *f, ref small, ref big)
{
    const struct nf_node *x = &f->node[small], *y = &f->node[big];

    for (int i = 0; i < x->n; i++) {
        const struct nf_term *t = &f->term[x->first + i];
        int k = 0;

        while (k < y->n && f->term[y->first + k].node != t->node)
            k++;
        if (k == y->n || (f->term[y->first + k].k.v > 0) != (t->k.v > 0) ||
            fabs(f->term[y->first + k].k.v) < fabs(t->k.v))
            return false;
    }
    return true;
}

/* big / small, where small divides big. A division of normal forms need not cancel (1+exp(s): its reciprocal is a
 * sigmoid). */
static ref quotient(struct nf *f, ref big, ref small)
{
    const struct nf_node x = f->node[big], y = f->node[small];
    const int32_t first = f->pooled;
    ref r;

    if (x.n > NF_POOL - first) {
        f->full = true;
        return -1;
    }
    for (int i = 0; i < x.n; i++) {
        struct nf_term t = f->term[x.first + i];

        for (int k = 0; k < y.n; k++)
            if (f->term[y.first + k].node == t.node)
                t.k = num_add(t.k, num_neg(f->term[y.first + k].k));
        if (!num_is(t.k, 0))
            f->pool[f->pooled++] = t;
    }
    r = nf_product(f, f->pool + first, f->pooled - first, num_mul(x.k, num_inv(y.k)));
    f->pooled = first;
    return r;
}

static int16_t emit_sum(struct maker *m, ref a, struct num scale);

/* Factors of one level, coefficient 1. */
static int16_t emit_factors(struct maker *m, ref a)
{
    struct nf *f = m->f;
    struct nf_node x;
    int16_t over = NO_OPERAND, under = NO_OPERAND;
    int best = -1;

    if (a < 0)
        return 0;
    if (m->memo[a] != NO_OPERAND)
        return m->memo[a];
    x = f->node[a];
    if (x.op != NF_PRODUCT)
        return emit(m, a);
    for (int i = 0; i < m->candidates; i++)
        if (m->candidate[i] != a && degree(f, m->candidate[i]) < degree(f, a) &&
            divides(f, m->candidate[i], a) &&
            (best < 0 || degree(f, m->candidate[i]) > degree(f, m->candidate[best])))
            best = i;
    if (best >= 0) {
        ref rest = quotient(f, a, m->candidate[best]);

        if (rest < 0 || f->node[rest].op != NF_PRODUCT || degree(f, rest) < degree(f, a)) {
            int16_t y = emit_factors(m, m->candidate[best]);

            over = instruction(m, PK_FO_MUL, 0, y, emit_factors(m, rest), 0);
            goto out;
        }
    }
    for (int i = 0; i < x.n; i++) {
        struct nf_term t = f->term[x.first + i];
        int16_t v;

        if (t.k.v > 0) {
            v = emit_power(m, emit(m, t.node), t.k);
        } else if (m->divided[t.node] > 1 && num_integer(t.k)) {
            v = emit_power(m, instruction(m, PK_FO_RECIP, 0, emit(m, t.node), 0, 0), num_neg(t.k));
        } else {
            v = emit_power(m, emit(m, t.node), num_neg(t.k));
            under = under == NO_OPERAND ? v : instruction(m, PK_FO_MUL, 0, under, v, 0);
            continue;
        }
        over = over == NO_OPERAND ? v : instruction(m, PK_FO_MUL, 0, over, v, 0);
    }
    if (under != NO_OPERAND && over == NO_OPERAND)
        over = instruction(m, PK_FO_RECIP, 0, under, 0, 0);
    else if (under != NO_OPERAND)
        over = instruction(m, PK_FO_DIV, 0, over, under, 0);
out:
    m->memo[a] = over;
    return over;
}

/* The part of a product that depends only on the row (`entry`: the other part), with coefficient 1. */
static ref part(struct nf *f, ref a, bool entry)
{
    const struct nf_node x = f->node[a];
    const int32_t from = f->pooled;
    ref r;

    for (int i = 0; i < x.n && f->pooled < NF_POOL; i++)
        if ((f->node[f->term[x.first + i].node].level == NF_PER_ENTRY) == entry)
            f->pool[f->pooled++] = f->term[x.first + i];
    r = nf_product(f, f->pool + from, f->pooled - from, one);
    f->pooled = from;
    return r;
}

static int16_t emit_product(struct maker *m, ref a, struct num scale)
{
    struct nf *f = m->f;
    const struct nf_node x = f->node[a];
    struct num k = num_mul(x.k, scale);
    ref row = part(f, a, false), entry = part(f, a, true), sum = -1;
    int16_t r, of_row = NO_OPERAND;

    if (row < 0 || entry < 0)
        return 0;
    if (!nf_is_num(f, row, 1))
        of_row = is_constant(m, row) ? constant(m, k.v * nf_value(f, row, NULL)) : emit_factors(m, row);
    if (of_row != NO_OPERAND && is_constant(m, row))
        k = one;
    /* A coefficient goes into a sum among the factors, where it costs nothing. */
    for (int i = 0; i < x.n && !num_is(k, 1) && of_row == NO_OPERAND; i++)
        if (f->node[f->term[x.first + i].node].op == NF_SUM && num_is(f->term[x.first + i].k, 1) &&
            f->node[f->term[x.first + i].node].level == NF_PER_ENTRY)
            sum = f->term[x.first + i].node;
    if (sum >= 0) {
        ref rest = nf_div(f, entry, sum);
        int16_t y = nf_is_num(f, rest, 1) ? NO_OPERAND : emit_factors(m, rest);

        r = emit_sum(m, sum, k);
        return y == NO_OPERAND ? r : instruction(m, PK_FO_MUL, 0, y, r, 0);
    }
    if (!num_is(k, 1)) {
        if (of_row != NO_OPERAND)
            of_row = num_is(k, -1) ? instruction(m, PK_FO_NEG, 0, of_row, 0, 0)
                                   : instruction(m, PK_FO_MUL, 0, of_row, constant(m, k.v), 0);
        else if (!num_is(k, -1) || nf_is_num(f, entry, 1))
            of_row = constant(m, k.v);
    }
    if (nf_is_num(f, entry, 1))
        return of_row == NO_OPERAND ? constant(m, k.v) : of_row;
    r = emit_factors(m, entry);
    if (of_row != NO_OPERAND)
        return instruction(m, PK_FO_MUL, 0, r, of_row, 0);
    return num_is(k, -1) ? instruction(m, PK_FO_NEG, 0, r, 0, 0) : r;
}

/* scale times the sum. Terms that depend only on the row come first, so that they are computed once per row. */
static int16_t emit_sum(struct maker *m, ref a, struct num scale)
{
    struct nf *f = m->f;
    const struct nf_node x = f->node[a];
    struct num c = num_mul(x.k, scale);
    int16_t acc = num_is(c, 0) ? NO_OPERAND : constant(m, c.v);

    for (int pass = 0; pass < 4; pass++) /* row, then entry; each: what is added, then what is subtracted */
        for (int i = 0; i < x.n; i++) {
            struct nf_term t = f->term[x.first + i];
            struct num k = num_mul(t.k, scale);
            const bool entry = f->node[t.node].level == NF_PER_ENTRY;
            int16_t v;

            if (entry != (pass > 1) || (k.v < 0) != (pass & 1))
                continue;
            if (is_constant(m, t.node))
                v = constant(m, nf_value(f, t.node, NULL));
            else if (acc == NO_OPERAND && !num_is(k, 1) && f->node[t.node].op == NF_PRODUCT) {
                acc = emit_product(m, t.node, k);
                continue;
            } else
                v = emit(m, t.node);
            if (acc == NO_OPERAND)
                acc = num_is(k, 1)    ? v
                      : num_is(k, -1) ? instruction(m, PK_FO_NEG, 0, v, 0, 0)
                                      : instruction(m, PK_FO_MUL, 0, v, constant(m, k.v), 0);
            else if (num_is(k, 1))
                acc = instruction(m, PK_FO_ADD, 0, acc, v, 0);
            else if (num_is(k, -1))
                acc = instruction(m, PK_FO_SUB, 0, acc, v, 0);
            else
                acc = instruction(m, PK_FO_MULADD, 0, v, constant(m, k.v), acc);
        }
    return acc == NO_OPERAND ? constant(m, 0) : acc;
}

static int16_t emit(struct maker *m, ref a)
{
    struct nf *f = m->f;
    struct nf_node x;
    int16_t in[3] = {0}, r = 0;

    if (a < 0 || f->full || m->limit)
        return 0;
    if (m->memo[a] != NO_OPERAND)
        return m->memo[a];
    x = f->node[a];
    if (is_constant(m, a))
        r = constant(m, nf_value(f, a, NULL));
    else if (x.op == NF_LEAF)
        r = PK_FORMULA_LEAF(x.fn);
    else if (x.op == NF_SUM)
        r = emit_sum(m, a, one);
    else if (x.op == NF_PRODUCT)
        r = emit_product(m, a, one);
    else {
        for (int i = 0; i < x.n; i++)
            in[i] = emit(m, f->term[x.first + i].node);
        r = instruction(m, (enum pk_formula_op)x.fn, 0, in[0], in[1], in[2]);
    }
    m->memo[a] = r;
    return r;
}

/* ---- sharing ---- */

static void add_candidate(struct maker *m, ref a)
{
    if (a < 0 || m->candidates == CANDIDATES || m->f->node[a].op != NF_PRODUCT || degree(m->f, a) < 2)
        return;
    for (int i = 0; i < m->candidates; i++)
        if (m->candidate[i] == a)
            return;
    m->candidate[m->candidates++] = a;
}

static void survey(struct maker *m, ref a)
{
    struct nf *f = m->f;
    const struct nf_node x = f->node[a];

    if (m->seen[a])
        return;
    m->seen[a] = 1;
    if (x.op == NF_PRODUCT) {
        for (int i = 0; i < x.n; i++)
            if (f->term[x.first + i].k.v < 0 && m->divided[f->term[x.first + i].node] < 255)
                m->divided[f->term[x.first + i].node]++;
        add_candidate(m, part(f, a, true));
        add_candidate(m, part(f, a, false));
    }
    for (int i = 0; i < x.n; i++)
        survey(m, f->term[x.first + i].node);
}

static void add_shared_parts(struct maker *m)
{
    struct nf *f = m->f;
    const int n = m->candidates < 40 ? m->candidates : 40;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            struct nf_term t[32];
            const struct nf_node x = f->node[m->candidate[i]], y = f->node[m->candidate[k]];
            int c = 0;

            for (int a = 0; a < x.n && c < 32; a++)
                for (int b = 0; b < y.n; b++) {
                    struct nf_term p = f->term[x.first + a], q = f->term[y.first + b];

                    if (p.node != q.node || (p.k.v > 0) != (q.k.v > 0))
                        continue;
                    t[c++] = fabs(p.k.v) < fabs(q.k.v) ? p : q;
                    break;
                }
            if (c)
                add_candidate(m, nf_product(f, t, c, one));
        }
}

/* ---- the whole ---- */

/* Instructions of the row first; then buffers for those of the entry. */
static void finish(struct maker *m)
{
    struct pk_formula_program *p = m->p;
    struct pk_formula_program sorted = *p;
    int16_t place[PK_FORMULA_CODE];
    int last[PK_FORMULA_CODE], n = 0, owner[PK_FORMULA_CODE];

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < p->count; i++)
            if ((m->level[i] == NF_PER_ENTRY) == (pass == 1)) {
                place[i] = (int16_t)n;
                sorted.code[n] = p->code[i];
                n++;
            }
        if (!pass)
            sorted.per_row = n;
    }
    for (int i = 0; i < n; i++) {
        last[i] = i;
        for (int k = 0; k < pk_formula_arity((enum pk_formula_op)sorted.code[i].op); k++)
            if (sorted.code[i].in[k] >= 0) {
                sorted.code[i].in[k] = place[sorted.code[i].in[k]];
                last[sorted.code[i].in[k]] = i;
            }
    }
    for (int k = 0; k < p->results; k++)
        if (p->result[k] >= 0) {
            sorted.result[k] = place[p->result[k]];
            last[sorted.result[k]] = n;
        }
    for (int i = 0; i < PK_FORMULA_CODE; i++)
        owner[i] = -1;
    for (int i = sorted.per_row; i < n; i++) {
        int s = 0;

        /* A buffer is free once its last reader has run; that reader may write over it. */
        while (owner[s] >= 0 && last[owner[s]] > i)
            s++;
        owner[s] = i;
        sorted.code[i].slot = (uint8_t)s;
        if (s + 1 > sorted.slots)
            sorted.slots = s + 1;
    }
    *p = sorted;
}

enum pd_err formula_compile(struct nf *f, const ref *result, int n, struct pk_formula_program *ret,
                            struct pd_why *why)
{
    struct maker m = {.f = f, .p = ret};
    ref polished[PK_FORMULA_RESULTS];

    memset(ret, 0, sizeof *ret);
    if (n > PK_FORMULA_RESULTS)
        return pd_fail(why, PD_ERR_LIMIT, "the formula needs %d results at once; at most %d", n,
                       PK_FORMULA_RESULTS);
    for (int i = 0; i < NF_NODES; i++) {
        m.memo[i] = NO_OPERAND;
        m.polished[i] = -1;
    }
    for (int k = 0; k < n; k++) {
        polished[k] = polish(&m, result[k]);
        if (polished[k] < 0)
            return pd_fail(why, PD_ERR_LIMIT, "the formula's derivative becomes too long");
        survey(&m, polished[k]);
    }
    add_shared_parts(&m);
    for (int k = 0; k < n; k++)
        ret->result[k] = emit(&m, polished[k]);
    ret->results = n;
    if (f->full)
        return pd_fail(why, PD_ERR_LIMIT, "the formula's derivative becomes too long");
    if (m.limit)
        return pd_fail(why, PD_ERR_LIMIT, "the formula and its derivatives take more than %d %s",
                       strcmp(m.limit, "instructions") ? PK_FORMULA_CONSTANTS : PK_FORMULA_CODE, m.limit);
    finish(&m);
    return PD_OK;
}

/* ---- running and printing ---- */

static double power(double x, int n)
{
    double r = 1;

    for (; n > 0; n >>= 1, x *= x)
        if (n & 1)
            r *= x;
    return r;
}

void pk_formula_run(const struct pk_formula_program *p, const double *leaf, double *ret_results)
{
    double value[PK_FORMULA_CODE];
#define OPERAND(o)                                                                                           \
    ((o) >= 0                        ? value[o]                                                              \
     : (o) <= PK_FORMULA_CONSTANT(0) ? p->constant[PK_FORMULA_CONSTANT(0) - (o)]                             \
     : -1 - (o) == PK_LEAF_PI        ? M_PI                                                                  \
                                     : leaf[-1 - (o)])

    for (int i = 0; i < p->count; i++) {
        enum pk_formula_op op = (enum pk_formula_op)p->code[i].op;
        const int16_t *in = p->code[i].in;
        const int arity = pk_formula_arity(op);
        double a = OPERAND(in[0]), b = arity > 1 ? OPERAND(in[1]) : 0, c = arity > 2 ? OPERAND(in[2]) : 0,
               r = 0;

        switch (op) {
        case PK_FO_ADD:
            r = a + b;
            break;
        case PK_FO_SUB:
            r = a - b;
            break;
        case PK_FO_MUL:
            r = a * b;
            break;
        case PK_FO_DIV:
            r = a / b;
            break;
        case PK_FO_NEG:
            r = -a;
            break;
        case PK_FO_RECIP:
            r = 1 / a;
            break;
        case PK_FO_SQRT:
            r = sqrt(a);
            break;
        case PK_FO_RSQRT:
            r = 1 / sqrt(a);
            break;
        case PK_FO_POWI:
            r = power(a, p->code[i].arg);
            break;
        case PK_FO_MULADD:
            r = a * b + c;
            break;
        default:
            r = fn_rows[op].value(a, b, c);
        }
        value[i] = r;
    }
    for (int k = 0; k < p->results; k++)
        ret_results[k] = OPERAND(p->result[k]);
#undef OPERAND
}

static void cuda_operand(const struct pk_formula_program *p, int16_t o, char *out, size_t size)
{
    if (o >= 0)
        snprintf(out, size, "t%d", o);
    else if (o <= PK_FORMULA_CONSTANT(0))
        snprintf(out, size, "%.9ef", p->constant[PK_FORMULA_CONSTANT(0) - o]);
    else if (pk_formula_leaf_name((enum pk_formula_leaf)(-1 - o)))
        snprintf(out, size, "%s", pk_formula_leaf_name((enum pk_formula_leaf)(-1 - o)));
    else
        snprintf(out, size, "x%d", -1 - o);
}

void pk_formula_cuda_operand(const struct pk_formula_program *p, int operand, struct pd_buf *out)
{
    char text[40];

    cuda_operand(p, (int16_t)operand, text, sizeof text);
    pd_buf_str(out, text);
}

static void fill(const char *pattern, char in[3][40], struct pd_buf *out)
{
    for (const char *c = pattern; *c; c++)
        if (c[0] == '$' && c[1] >= 'a' && c[1] <= 'c')
            pd_buf_str(out, in[*++c - 'a']);
        else
            pd_buf_append(out, c, 1);
}

void pk_formula_cuda(const struct pk_formula_program *p, struct pd_buf *out)
{
    for (int i = 0; i < p->count; i++) {
        enum pk_formula_op op = (enum pk_formula_op)p->code[i].op;
        char in[3][40] = {{0}};

        for (int k = 0; k < pk_formula_arity(op); k++)
            cuda_operand(p, p->code[i].in[k], in[k], sizeof in[k]);
        pd_buf_printf(out, "const float t%d = ", i);
        switch (op) {
        case PK_FO_ADD:
            fill("$a + $b", in, out);
            break;
        case PK_FO_SUB:
            fill("$a - $b", in, out);
            break;
        case PK_FO_MUL:
            fill("$a * $b", in, out);
            break;
        case PK_FO_DIV:
            fill("__fdividef($a, $b)", in, out);
            break;
        case PK_FO_NEG:
            fill("-$a", in, out);
            break;
        case PK_FO_RECIP:
            fill("__fdividef(1.0f, $a)", in, out);
            break;
        case PK_FO_SQRT:
            fill("sqrtf($a)", in, out);
            break;
        case PK_FO_RSQRT:
            fill("rsqrtf($a)", in, out);
            break;
        case PK_FO_POWI:
            for (int k = 0; k < p->code[i].arg; k++)
                fill(k ? " * $a" : "$a", in, out);
            break;
        case PK_FO_MULADD:
            fill("fmaf($a, $b, $c)", in, out);
            break;
        default:
            fill(fn_rows[op].cuda, in, out);
        }
        pd_buf_str(out, ";\n");
    }
}
