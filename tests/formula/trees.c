#include "tests/formula/trees.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

uint64_t tree_seed;
double tree_i = 1, tree_j = 2, tree_keys = TREE_KEYS;

uint32_t tree_draw(uint32_t n)
{
    tree_seed ^= tree_seed << 13;
    tree_seed ^= tree_seed >> 7;
    tree_seed ^= tree_seed << 17;
    return (uint32_t)((tree_seed >> 20) % n);
}

double tree_uniform(double lo, double hi)
{
    return lo + (hi - lo) * ((double)tree_draw(1u << 30) + 0.5) / (double)(1u << 30);
}

/* ---- trees ---- */

static const char *const names[KINDS] = {
    [S] = "s",
    [N] = "n",
    [NI] = "ni",
    [I] = "i",
    [J] = "j",
    [HEAD] = "h",
    [HEADS] = "H",
    [LAYER] = "l",
    [LAYERS] = "L",
    [WIDTH] = "d",
    [PI] = "pi",
    [A] = "a",
    [P] = "p",
    [G] = "g",
    [ABS] = "abs",
    [SIGN] = "sign",
    [MIN] = "min",
    [MAX] = "max",
    [CLIP] = "clip",
    [FLOOR] = "floor",
    [EXP] = "exp",
    [EXPM1] = "expm1",
    [LOG] = "log",
    [LOG1P] = "log1p",
    [SQRT] = "sqrt",
    [TANH] = "tanh",
    [SIGMOID] = "sigmoid",
    [SOFTPLUS] = "softplus",
    [RELU] = "relu",
    [SILU] = "silu",
    [GELU] = "gelu",
    [ERF] = "erf",
    [SIN] = "sin",
    [COS] = "cos",
    [WHERE] = "where",
    [ROWSUM] = "rowsum",
    [ROWMAX] = "rowmax",
    [SOFTMAX] = "softmax",
    [GT] = ">",
    [GE] = ">=",
    [LT] = "<",
    [LE] = "<=",
    [EQ] = "==",
};

static int grow(struct tree *t, int depth, bool rows);

static int put(struct tree *t, enum tree_kind kind, int a, int b, int c)
{
    int at = t->n < TREE_NODES ? t->n++ : TREE_NODES - 1;

    t->node[at] = (struct tree_node){kind, {a, b, c}, 0};
    return at;
}

static int leaf(struct tree *t)
{
    static const enum tree_kind kinds[] = {S,     S,      S,     S,  S, N, NI, I, J,      HEAD,   HEADS,
                                           LAYER, LAYERS, WIDTH, PI, A, A, P,  G, NUMBER, NUMBER, NUMBER};
    enum tree_kind kind = kinds[tree_draw(sizeof kinds / sizeof *kinds)];
    int at = put(t, kind, -1, -1, -1);

    if (kind == NUMBER)
        t->node[at].number = tree_draw(2) ? (double)tree_draw(5) : (double)tree_draw(200) / 40;
    return at;
}

/* A base that is never negative, as the grammar proves it. */
static int positive(struct tree *t, int depth, bool rows)
{
    int x = grow(t, depth - 1, rows);

    switch (tree_draw(4)) {
    case 0:
        return put(t, ABS, x, -1, -1);
    case 1:
        return put(t, EXP, x, -1, -1);
    case 2:
        return put(t, RELU, x, -1, -1);
    default:
        return put(t, SIGMOID, x, -1, -1);
    }
}

static int grow(struct tree *t, int depth, bool rows)
{
    int kind;

    if (depth <= 0 || t->n > TREE_NODES - 16 || tree_draw(8) == 0)
        return leaf(t);
    kind = ADD + (int)tree_draw(KINDS - ADD);
    switch (kind) {
    case ADD:
    case SUB:
    case MUL:
    case DIV:
    case MIN:
    case MAX: {
        int a = grow(t, depth - 1, rows), b = grow(t, depth - 1, rows);

        return put(t, (enum tree_kind)kind, a, b, -1);
    }
    case GT:
    case GE:
    case LT:
    case LE:
    case EQ:
    case WHERE: {
        int a = grow(t, depth - 1, rows), b = leaf(t), c, d;

        c = put(t, kind == WHERE ? GT : (enum tree_kind)kind, a, b, -1);
        a = grow(t, depth - 1, rows);
        d = grow(t, depth - 1, rows);
        return put(t, WHERE, c, a, d);
    }
    case CLIP: {
        int a = grow(t, depth - 1, rows), b = put(t, NUMBER, -1, -1, -1), c = put(t, NUMBER, -1, -1, -1);

        t->node[b].number = 0.5 * tree_draw(3);
        t->node[c].number = 1 + tree_draw(3);
        return put(t, CLIP, a, b, c);
    }
    case INTEGER: {
        int a = grow(t, depth - 1, rows), at = put(t, INTEGER, a, -1, -1);

        t->node[at].number = (double)tree_draw(7) - 2;
        return at;
    }
    case ROOT: {
        int a = positive(t, depth, rows), at = put(t, ROOT, a, -1, -1);

        t->node[at].number = 0.5 * (double)(1 + tree_draw(5));
        return at;
    }
    case GENERAL: {
        int a = positive(t, depth, rows), b = put(t, tree_draw(2) ? A : P, -1, -1, -1);

        return put(t, GENERAL, a, b, -1);
    }
    case ROWSUM:
    case ROWMAX:
    case SOFTMAX:
        if (!rows)
            return leaf(t);
        t->rows = true;
        return put(t, (enum tree_kind)kind, grow(t, depth - 1, false), -1, -1);
    default:
        return put(t, (enum tree_kind)kind, grow(t, depth - 1, rows), -1, -1);
    }
}

static void tree_text(const struct tree *t, int at, char *out, size_t size)
{
    const struct tree_node *x = &t->node[at];
    size_t n = strlen(out);

#define SAY(...) (n = strlen(out), (void)snprintf(out + n, size - n, __VA_ARGS__))
    switch (x->kind) {
    case NUMBER:
        SAY("%.10g", x->number);
        break;
    case ADD:
    case SUB:
    case MUL:
    case DIV:
    case GT:
    case GE:
    case LT:
    case LE:
    case EQ:
        SAY("(");
        tree_text(t, x->kid[0], out, size);
        SAY(" %s ", x->kind == ADD   ? "+"
                    : x->kind == SUB ? "-"
                    : x->kind == MUL ? "*"
                    : x->kind == DIV ? "/"
                                     : names[x->kind]);
        tree_text(t, x->kid[1], out, size);
        SAY(")");
        break;
    case NEG:
        SAY("(-");
        tree_text(t, x->kid[0], out, size);
        SAY(")");
        break;
    case INTEGER:
    case ROOT:
        SAY("(");
        tree_text(t, x->kid[0], out, size);
        SAY("^(%g))", x->number);
        break;
    case GENERAL:
        SAY("(");
        tree_text(t, x->kid[0], out, size);
        SAY("^");
        tree_text(t, x->kid[1], out, size);
        SAY(")");
        break;
    default:
        SAY("%s", names[x->kind]);
        if (x->kid[0] < 0)
            break;
        SAY("(");
        for (int k = 0; k < 3 && x->kid[k] >= 0; k++) {
            if (k)
                SAY(", ");
            tree_text(t, x->kid[k], out, size);
        }
        SAY(")");
    }
#undef SAY
}

/* ---- values in complex numbers; a break is decided by the real part ---- */

double tree_head = 1, tree_heads = 3, tree_width = 8;
static const double tree_n = 16, layer = 2, layers = 4;

static z decide(struct tree_place *p, double x, z yes, z no)
{
    if (fabs(x) < 1e-3)
        p->near_break = true;
    return isnan(x) ? NAN : x > 0 ? yes : no;
}

static z value_of(const struct tree *t, int at, struct tree_place *p);

/* A branch that is not taken may be undefined; what is read may not. */
z tree_value(const struct tree *t, int at, struct tree_place *p)
{
    z v = value_of(t, at, p);

    if (!isfinite(creal(v)))
        p->near_break = true;
    return v;
}

static z value_of(const struct tree *t, int at, struct tree_place *p)
{
    const struct tree_node *x = &t->node[at];
    z a = 0, b = 0, c = 0, r;

    if (x->kind == ROWSUM || x->kind == ROWMAX || x->kind == SOFTMAX) {
        z sum = 0, best = 0, mine = 0;
        const int kept = p->k;

        for (int k = 0; k < TREE_KEYS; k++) {
            p->k = k;
            a = tree_value(t, x->kid[0], p);
            if (x->kind == SOFTMAX)
                a = cexp(a);
            sum += a;
            if (k && fabs(creal(a) - creal(best)) < 1e-3)
                p->near_break = true;
            if (!k || creal(a) > creal(best))
                best = a;
            if (k == kept)
                mine = a;
        }
        p->k = kept;
        return x->kind == ROWSUM ? sum : x->kind == ROWMAX ? best : mine / sum;
    }
    if (x->kid[0] >= 0)
        a = tree_value(t, x->kid[0], p);
    if (x->kind == WHERE)
        return tree_value(t, x->kid[creal(a) != 0 ? 1 : 2], p);
    if (x->kid[1] >= 0)
        b = tree_value(t, x->kid[1], p);
    if (x->kid[2] >= 0)
        c = tree_value(t, x->kid[2], p);
    if (x->kind >= GT && x->kind <= EQ && isnan(creal(a - b)))
        return 0; /* no number is larger than another */
    switch (x->kind) {
    case NUMBER:
        return x->number;
    case S:
        return p->s[p->k];
    case N:
        return tree_n;
    case NI:
        return TREE_KEYS;
    case I:
        return p->i;
    case J:
        return p->k;
    case HEAD:
        return tree_head;
    case HEADS:
        return tree_heads;
    case LAYER:
        return layer;
    case LAYERS:
        return layers;
    case WIDTH:
        return tree_width;
    case PI:
        return M_PI;
    case A:
        return p->a;
    case P:
        return p->p;
    case G:
        return p->g;
    case ADD:
        return a + b;
    case SUB:
        return a - b;
    case MUL:
        return a * b;
    case DIV:
        return a / b;
    case NEG:
        return -a;
    case INTEGER:
        r = 1;
        for (int k = 0; k < (int)fabs(x->number); k++)
            r *= a;
        return x->number < 0 ? 1 / r : r;
    case ROOT:
    case GENERAL:
        b = x->kind == ROOT ? x->number : b;
        p->near_break = p->near_break || creal(a) < 1e-12;
        return creal(a) == 0 ? 0 : cexp(b * clog(a));
    case ABS:
        return decide(p, creal(a), a, -a);
    case SIGN:
        return decide(p, creal(a), 1, -1);
    case MAX:
        return decide(p, creal(a - b), a, b);
    case MIN:
        return decide(p, creal(a - b), b, a);
    case CLIP:
        a = decide(p, creal(a - b), a, b);
        return decide(p, creal(a - c), c, a);
    case RELU:
        return decide(p, creal(a), a, 0);
    case FLOOR:
        if (creal(a) - floor(creal(a)) < 1e-3 || creal(a) - floor(creal(a)) > 1 - 1e-3)
            p->near_break = true;
        return floor(creal(a));
    case EXP:
        return cexp(a);
    case EXPM1:
        return expm1(creal(a)) + _Complex_I * cimag(cexp(a));
    case LOG:
        return creal(a) > 0 ? clog(a) : NAN;
    case LOG1P:
        p->near_break = p->near_break || creal(a) < -0.99;
        return creal(a) > -1 ? log1p(creal(a)) + _Complex_I * cimag(clog(1 + a)) : NAN;
    case SQRT:
        p->near_break = p->near_break || creal(a) < 1e-12;
        return creal(a) >= 0 ? csqrt(a) : NAN;
    case TANH:
        return ctanh(a);
    case SIGMOID:
        return 1 / (1 + cexp(-a));
    case SOFTPLUS:
        return clog(1 + cexp(a));
    case SILU:
        return a / (1 + cexp(-a));
    case ERF:
        return erf(creal(a)) + _Complex_I * cimag(a) * 2 / sqrt(M_PI) * exp(-creal(a) * creal(a));
    case GELU: {
        double u = creal(a), density = exp(-0.5 * u * u) / sqrt(2 * M_PI), cdf = 0.5 * (1 + erf(u / sqrt(2)));

        return u * cdf + _Complex_I * cimag(a) * (cdf + u * density);
    }
    case SIN:
    case COS: /* of a large argument the last bits decide */
        p->near_break = p->near_break || fabs(creal(a)) > 100;
        return x->kind == SIN ? csin(a) : ccos(a);
    case GT:
        return decide(p, creal(a - b), 1, 0);
    case GE:
        return decide(p, creal(b - a), 0, 1);
    case LT:
        return decide(p, creal(b - a), 1, 0);
    case LE:
        return decide(p, creal(a - b), 0, 1);
    case EQ:
        if (fabs(creal(a - b)) < 1e-3)
            p->near_break = true;
        return creal(a) == creal(b) ? 1 : 0;
    default:
        return NAN;
    }
}

/* ---- to second order, piece by piece: what does not move has no derivative, whatever its factor ---- */

static struct tree_jet chain(struct tree_jet a, double f, double f1, double f2)
{
    if (!a.moves)
        return (struct tree_jet){f, 0, 0, false};
    return (struct tree_jet){f, f1 * a.d1, f2 * a.d1 * a.d1 + f1 * a.d2, true};
}

static struct tree_jet mul(struct tree_jet a, struct tree_jet b)
{
    if (!a.moves && !b.moves)
        return (struct tree_jet){a.v * b.v, 0, 0, false};
    if (!a.moves || !b.moves)
        return a.moves ? (struct tree_jet){a.v * b.v, a.d1 * b.v, a.d2 * b.v, true}
                       : (struct tree_jet){a.v * b.v, a.v * b.d1, a.v * b.d2, true};
    return (struct tree_jet){a.v * b.v, a.d1 * b.v + a.v * b.d1, a.d2 * b.v + 2 * a.d1 * b.d1 + a.v * b.d2,
                             true};
}

static struct tree_jet power(struct tree_jet a, double e)
{
    return chain(a, pow(a.v, e), e == 0 ? 0 : e * pow(a.v, e - 1),
                 e == 0 || e == 1 ? 0 : e * (e - 1) * pow(a.v, e - 2));
}

static struct tree_jet constant(double v)
{
    return (struct tree_jet){v, 0, 0, false};
}

/* The larger; at a tie the one that does not move, and no number where both do. */
bool tree_on_break, tree_singular;

static struct tree_jet larger(struct tree_jet a, struct tree_jet b, int sign)
{
    if (isnan(a.v) || isnan(b.v))
        return constant(NAN);
    tree_on_break = tree_on_break || a.v == b.v;
    if (a.v == b.v)
        return !a.moves ? a : !b.moves ? b : constant(NAN);
    return sign * (a.v - b.v) > 0 ? a : b;
}

static struct tree_jet jet_inside(const struct tree *t, int at, double s);

struct tree_jet tree_jet_at(const struct tree *t, int at, double s)
{
    struct tree_jet j = jet_inside(t, at, s);

    tree_singular = tree_singular || !(fabs(j.v) < 1e50) || !(fabs(j.d1) < 1e50) || !(fabs(j.d2) < 1e50);
    return j;
}

static struct tree_jet jet_inside(const struct tree *t, int at, double s)
{
    const struct tree_node *x = &t->node[at];
    struct tree_jet a = constant(0), b = a, c = a;
    double g;

    if (x->kid[0] >= 0)
        a = tree_jet_at(t, x->kid[0], s);
    if (x->kind == WHERE)
        return tree_jet_at(t, x->kid[a.v != 0 ? 1 : 2], s);
    if (x->kid[1] >= 0)
        b = tree_jet_at(t, x->kid[1], s);
    if (x->kid[2] >= 0)
        c = tree_jet_at(t, x->kid[2], s);
    switch (x->kind) {
    case NUMBER:
        return constant(x->number);
    case S:
        return (struct tree_jet){s, 1, 0, true};
    case N:
        return constant(tree_n);
    case NI:
        return constant(tree_keys);
    case I:
        return constant(tree_i);
    case J:
        return constant(tree_j);
    case HEAD:
        return constant(tree_head);
    case HEADS:
        return constant(tree_heads);
    case LAYER:
        return constant(layer);
    case LAYERS:
        return constant(layers);
    case WIDTH:
        return constant(tree_width);
    case PI:
        return constant(M_PI);
    case A:
        return constant(0.6);
    case P:
        return constant(1.3);
    case G:
        return constant(0.7);
    case ADD:
        return (struct tree_jet){a.v + b.v, a.d1 + b.d1, a.d2 + b.d2, a.moves || b.moves};
    case SUB:
        return (struct tree_jet){a.v - b.v, a.d1 - b.d1, a.d2 - b.d2, a.moves || b.moves};
    case MUL:
        return mul(a, b);
    case DIV:
        return mul(a, chain(b, 1 / b.v, -1 / (b.v * b.v), 2 / (b.v * b.v * b.v)));
    case NEG:
        return (struct tree_jet){-a.v, -a.d1, -a.d2, a.moves};
    case INTEGER:
    case ROOT:
        return power(a, x->number);
    case GENERAL:
        return power(a, b.v);
    case ABS:
        tree_on_break = tree_on_break || a.v == 0;
        return a.v > 0 ? a : a.v < 0 ? (struct tree_jet){-a.v, -a.d1, -a.d2, a.moves} : constant(a.v);
    case SIGN:
        tree_on_break = tree_on_break || a.v == 0;
        return constant((a.v > 0) - (a.v < 0));
    case MAX:
        return larger(a, b, 1);
    case MIN:
        return larger(a, b, -1);
    case CLIP:
        return larger(larger(a, b, 1), c, -1);
    case RELU:
        return larger(a, constant(0), 1);
    case FLOOR:
        return constant(floor(a.v));
    case EXP:
        return chain(a, exp(a.v), exp(a.v), exp(a.v));
    case EXPM1:
        return chain(a, expm1(a.v), exp(a.v), exp(a.v));
    case LOG:
        return chain(a, log(a.v), 1 / a.v, -1 / (a.v * a.v));
    case LOG1P:
        return chain(a, log1p(a.v), 1 / (1 + a.v), -1 / ((1 + a.v) * (1 + a.v)));
    case SQRT:
        return chain(a, sqrt(a.v), 0.5 / sqrt(a.v), -0.25 / (a.v * sqrt(a.v)));
    case TANH:
        g = tanh(a.v);
        return chain(a, g, 1 - g * g, -2 * g * (1 - g * g));
    case SIGMOID:
    case SOFTPLUS:
    case SILU: {
        struct tree_jet sig;

        g = 1 / (1 + exp(-a.v));
        sig = chain(a, g, g * (1 - g), g * (1 - g) * (1 - 2 * g));
        return x->kind == SIGMOID ? sig
               : x->kind == SILU  ? mul(a, sig)
                                  : chain(a, fmax(a.v, 0) + log1p(exp(-fabs(a.v))), g, g * (1 - g));
    }
    case ERF:
        g = 2 / sqrt(M_PI) * exp(-a.v * a.v);
        return chain(a, erf(a.v), g, -2 * a.v * g);
    case GELU:
        g = exp(-0.5 * a.v * a.v) / sqrt(2 * M_PI);
        return chain(a, a.v * 0.5 * (1 + erf(a.v / sqrt(2))), 0.5 * (1 + erf(a.v / sqrt(2))) + a.v * g,
                     g * (2 - a.v * a.v));
    case SIN:
        return chain(a, sin(a.v), cos(a.v), -sin(a.v));
    case COS:
        return chain(a, cos(a.v), -sin(a.v), -cos(a.v));
    case GT:
        tree_on_break = tree_on_break || a.v == b.v;
        return constant(a.v > b.v);
    case GE:
        tree_on_break = tree_on_break || a.v == b.v;
        return constant(a.v >= b.v);
    case LT:
        tree_on_break = tree_on_break || a.v == b.v;
        return constant(a.v < b.v);
    case LE:
        tree_on_break = tree_on_break || a.v == b.v;
        return constant(a.v <= b.v);
    case EQ:
        tree_on_break = tree_on_break || a.v == b.v;
        return constant(a.v == b.v);
    default:
        return constant(NAN);
    }
}

/* ---- formulas ---- */

const struct pk_formula_param tree_params[2] = {{"p", PK_RANGE_POSITIVE, 0}, {"g", PK_RANGE_UNIT, 0}};

void tree_fill(const struct pk_formula *f, double *at)
{
    const struct pk_formula_param *own;
    int n = pk_formula_params(f, &own);

    memset(at, 0, PK_LEAVES * sizeof *at);
    at[PK_LEAF_N] = tree_n;
    at[PK_LEAF_NI] = tree_keys;
    at[PK_LEAF_I] = tree_i;
    at[PK_LEAF_J] = tree_j;
    at[PK_LEAF_HEAD] = tree_head;
    at[PK_LEAF_HEADS] = tree_heads;
    at[PK_LEAF_LAYER] = layer;
    at[PK_LEAF_LAYERS] = layers;
    at[PK_LEAF_WIDTH] = tree_width;
    for (int k = 0; k < n; k++)
        at[PK_LEAF_PARAM + k] = own[k].name[0] == 'a' ? 0.6 : own[k].name[0] == 'p' ? 1.3 : 0.7;
}

/* A formula that was drawn; NULL if it does not depend on s, or is too long. */
struct pk_formula *tree_formula(struct tree *t, char *text, size_t size, bool rows)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    enum pd_err err;

    t->n = 0;
    t->rows = false;
    t->root = grow(t, 4, rows);
    text[0] = 0;
    tree_text(t, t->root, text, size);
    err = pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, tree_params, 2, &f, &fault);
    if (err != PD_OK && !strstr(fault.text, "does not depend") && !strstr(fault.text, "divides by 0") &&
        !strstr(fault.text, "no finite number") && !strstr(fault.text, "different row functions") &&
        !strstr(fault.text, "too long"))
        fail_msg("'%s' at %d: %s", text, fault.at, fault.text);
    return f;
}
