/* tests/formula/test_formula_random.c: 2,000 random formulas against a tree of this test's own, which is evaluated in
 * complex numbers (first derivatives by the complex step: Squire and Trapp, SIAM Review 1998) and in Taylor
 * coefficients to second order, piece by piece. POLYD_SEED draws others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <complex.h>
#undef I
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"

#define FORMULAS 2000
#define KEYS 4
#define NODES 64
#define STEP 1e-30

typedef double complex z;

static uint64_t state_of_random;

static uint32_t draw(uint32_t n)
{
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return (uint32_t)((state_of_random >> 20) % n);
}

static double uniform(double lo, double hi)
{
    return lo + (hi - lo) * ((double)draw(1u << 30) + 0.5) / (double)(1u << 30);
}

/* ---- trees ---- */

enum kind {
    NUMBER,
    S,
    N,
    NI,
    I,
    J,
    HEAD,
    HEADS,
    LAYER,
    LAYERS,
    WIDTH,
    PI,
    A,
    P,
    G,
    ADD,
    SUB,
    MUL,
    DIV,
    NEG,
    INTEGER,
    ROOT,
    GENERAL,
    ABS,
    SIGN,
    MIN,
    MAX,
    CLIP,
    FLOOR,
    EXP,
    EXPM1,
    LOG,
    LOG1P,
    SQRT,
    TANH,
    SIGMOID,
    SOFTPLUS,
    RELU,
    SILU,
    GELU,
    ERF,
    SIN,
    COS,
    GT,
    GE,
    LT,
    LE,
    EQ,
    WHERE,
    ROWSUM,
    ROWMAX,
    SOFTMAX,
    KINDS
};

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

struct node {
    enum kind kind;
    int kid[3];
    double number;
};
struct tree {
    struct node node[NODES];
    int n, root;
    bool rows;
};

static int grow(struct tree *t, int depth, bool rows);

static int put(struct tree *t, enum kind kind, int a, int b, int c)
{
    int at = t->n < NODES ? t->n++ : NODES - 1;

    t->node[at] = (struct node){kind, {a, b, c}, 0};
    return at;
}

static int leaf(struct tree *t)
{
    static const enum kind kinds[] = {S,     S,      S,     S,  S, N, NI, I, J,      HEAD,   HEADS,
                                      LAYER, LAYERS, WIDTH, PI, A, A, P,  G, NUMBER, NUMBER, NUMBER};
    enum kind kind = kinds[draw(sizeof kinds / sizeof *kinds)];
    int at = put(t, kind, -1, -1, -1);

    if (kind == NUMBER)
        t->node[at].number = draw(2) ? (double)draw(5) : (double)draw(200) / 40;
    return at;
}

/* A base that is never negative, as the grammar proves it. */
static int positive(struct tree *t, int depth, bool rows)
{
    int x = grow(t, depth - 1, rows);

    switch (draw(4)) {
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

    if (depth <= 0 || t->n > NODES - 16 || draw(8) == 0)
        return leaf(t);
    kind = ADD + (int)draw(KINDS - ADD);
    switch (kind) {
    case ADD:
    case SUB:
    case MUL:
    case DIV:
    case MIN:
    case MAX: {
        int a = grow(t, depth - 1, rows), b = grow(t, depth - 1, rows);

        return put(t, (enum kind)kind, a, b, -1);
    }
    case GT:
    case GE:
    case LT:
    case LE:
    case EQ:
    case WHERE: {
        int a = grow(t, depth - 1, rows), b = leaf(t), c, d;

        c = put(t, kind == WHERE ? GT : (enum kind)kind, a, b, -1);
        a = grow(t, depth - 1, rows);
        d = grow(t, depth - 1, rows);
        return put(t, WHERE, c, a, d);
    }
    case CLIP: {
        int a = grow(t, depth - 1, rows), b = put(t, NUMBER, -1, -1, -1), c = put(t, NUMBER, -1, -1, -1);

        t->node[b].number = 0.5 * draw(3);
        t->node[c].number = 1 + draw(3);
        return put(t, CLIP, a, b, c);
    }
    case INTEGER: {
        int a = grow(t, depth - 1, rows), at = put(t, INTEGER, a, -1, -1);

        t->node[at].number = (double)draw(7) - 2;
        return at;
    }
    case ROOT: {
        int a = positive(t, depth, rows), at = put(t, ROOT, a, -1, -1);

        t->node[at].number = 0.5 * (double)(1 + draw(5));
        return at;
    }
    case GENERAL: {
        int a = positive(t, depth, rows), b = put(t, draw(2) ? A : P, -1, -1, -1);

        return put(t, GENERAL, a, b, -1);
    }
    case ROWSUM:
    case ROWMAX:
    case SOFTMAX:
        if (!rows)
            return leaf(t);
        t->rows = true;
        return put(t, (enum kind)kind, grow(t, depth - 1, false), -1, -1);
    default:
        return put(t, (enum kind)kind, grow(t, depth - 1, rows), -1, -1);
    }
}

static void text_of(const struct tree *t, int at, char *out, size_t size)
{
    const struct node *x = &t->node[at];
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
        text_of(t, x->kid[0], out, size);
        SAY(" %s ", x->kind == ADD   ? "+"
                    : x->kind == SUB ? "-"
                    : x->kind == MUL ? "*"
                    : x->kind == DIV ? "/"
                                     : names[x->kind]);
        text_of(t, x->kid[1], out, size);
        SAY(")");
        break;
    case NEG:
        SAY("(-");
        text_of(t, x->kid[0], out, size);
        SAY(")");
        break;
    case INTEGER:
    case ROOT:
        SAY("(");
        text_of(t, x->kid[0], out, size);
        SAY("^(%g))", x->number);
        break;
    case GENERAL:
        SAY("(");
        text_of(t, x->kid[0], out, size);
        SAY("^");
        text_of(t, x->kid[1], out, size);
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
            text_of(t, x->kid[k], out, size);
        }
        SAY(")");
    }
#undef SAY
}

/* ---- values in complex numbers; a break is decided by the real part ---- */

struct place {
    z s[KEYS], a, p, g;
    int i, k;
    bool near_break; /* some decision was close */
};

static const double n_value = 16, head = 1, heads = 3, layer = 2, layers = 4, width = 8;

static z decide(struct place *p, double x, z yes, z no)
{
    if (fabs(x) < 1e-3)
        p->near_break = true;
    return isnan(x) ? NAN : x > 0 ? yes : no;
}

static z value_of(const struct tree *t, int at, struct place *p);

/* A branch that is not taken may be undefined; what is read may not. */
static z value(const struct tree *t, int at, struct place *p)
{
    z v = value_of(t, at, p);

    if (!isfinite(creal(v)))
        p->near_break = true;
    return v;
}

static z value_of(const struct tree *t, int at, struct place *p)
{
    const struct node *x = &t->node[at];
    z a = 0, b = 0, c = 0, r;

    if (x->kind == ROWSUM || x->kind == ROWMAX || x->kind == SOFTMAX) {
        z sum = 0, best = 0, mine = 0;
        const int kept = p->k;

        for (int k = 0; k < KEYS; k++) {
            p->k = k;
            a = value(t, x->kid[0], p);
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
        a = value(t, x->kid[0], p);
    if (x->kind == WHERE)
        return value(t, x->kid[creal(a) != 0 ? 1 : 2], p);
    if (x->kid[1] >= 0)
        b = value(t, x->kid[1], p);
    if (x->kid[2] >= 0)
        c = value(t, x->kid[2], p);
    if (x->kind >= GT && x->kind <= EQ && isnan(creal(a - b)))
        return 0; /* no number is larger than another */
    switch (x->kind) {
    case NUMBER:
        return x->number;
    case S:
        return p->s[p->k];
    case N:
        return n_value;
    case NI:
        return KEYS;
    case I:
        return p->i;
    case J:
        return p->k;
    case HEAD:
        return head;
    case HEADS:
        return heads;
    case LAYER:
        return layer;
    case LAYERS:
        return layers;
    case WIDTH:
        return width;
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

struct jet {
    double v, d1, d2;
    bool moves; /* depends on s here */
};

static struct jet chain(struct jet a, double f, double f1, double f2)
{
    if (!a.moves)
        return (struct jet){f, 0, 0, false};
    return (struct jet){f, f1 * a.d1, f2 * a.d1 * a.d1 + f1 * a.d2, true};
}

static struct jet mul(struct jet a, struct jet b)
{
    if (!a.moves && !b.moves)
        return (struct jet){a.v * b.v, 0, 0, false};
    if (!a.moves || !b.moves)
        return a.moves ? (struct jet){a.v * b.v, a.d1 * b.v, a.d2 * b.v, true}
                       : (struct jet){a.v * b.v, a.v * b.d1, a.v * b.d2, true};
    return (struct jet){a.v * b.v, a.d1 * b.v + a.v * b.d1, a.d2 * b.v + 2 * a.d1 * b.d1 + a.v * b.d2, true};
}

static struct jet power(struct jet a, double e)
{
    return chain(a, pow(a.v, e), e == 0 ? 0 : e * pow(a.v, e - 1),
                 e == 0 || e == 1 ? 0 : e * (e - 1) * pow(a.v, e - 2));
}

static struct jet constant(double v)
{
    return (struct jet){v, 0, 0, false};
}

/* The larger; at a tie the one that does not move, and no number where both do. */
static bool on_break;

static struct jet larger(struct jet a, struct jet b, int sign)
{
    if (isnan(a.v) || isnan(b.v))
        return constant(NAN);
    on_break = on_break || a.v == b.v;
    if (a.v == b.v)
        return !a.moves ? a : !b.moves ? b : constant(NAN);
    return sign * (a.v - b.v) > 0 ? a : b;
}

static struct jet jet_inside(const struct tree *t, int at, double s);
static bool singular;

static struct jet jet_of(const struct tree *t, int at, double s)
{
    struct jet j = jet_inside(t, at, s);

    singular = singular || !(fabs(j.v) < 1e50) || !(fabs(j.d1) < 1e50) || !(fabs(j.d2) < 1e50);
    return j;
}

static struct jet jet_inside(const struct tree *t, int at, double s)
{
    const struct node *x = &t->node[at];
    struct jet a = constant(0), b = a, c = a;
    double g;

    if (x->kid[0] >= 0)
        a = jet_of(t, x->kid[0], s);
    if (x->kind == WHERE)
        return jet_of(t, x->kid[a.v != 0 ? 1 : 2], s);
    if (x->kid[1] >= 0)
        b = jet_of(t, x->kid[1], s);
    if (x->kid[2] >= 0)
        c = jet_of(t, x->kid[2], s);
    switch (x->kind) {
    case NUMBER:
        return constant(x->number);
    case S:
        return (struct jet){s, 1, 0, true};
    case N:
        return constant(n_value);
    case NI:
        return constant(KEYS);
    case I:
        return constant(1);
    case J:
        return constant(2);
    case HEAD:
        return constant(head);
    case HEADS:
        return constant(heads);
    case LAYER:
        return constant(layer);
    case LAYERS:
        return constant(layers);
    case WIDTH:
        return constant(width);
    case PI:
        return constant(M_PI);
    case A:
        return constant(0.6);
    case P:
        return constant(1.3);
    case G:
        return constant(0.7);
    case ADD:
        return (struct jet){a.v + b.v, a.d1 + b.d1, a.d2 + b.d2, a.moves || b.moves};
    case SUB:
        return (struct jet){a.v - b.v, a.d1 - b.d1, a.d2 - b.d2, a.moves || b.moves};
    case MUL:
        return mul(a, b);
    case DIV:
        return mul(a, chain(b, 1 / b.v, -1 / (b.v * b.v), 2 / (b.v * b.v * b.v)));
    case NEG:
        return (struct jet){-a.v, -a.d1, -a.d2, a.moves};
    case INTEGER:
    case ROOT:
        return power(a, x->number);
    case GENERAL:
        return power(a, b.v);
    case ABS:
        on_break = on_break || a.v == 0;
        return a.v > 0 ? a : a.v < 0 ? (struct jet){-a.v, -a.d1, -a.d2, a.moves} : constant(a.v);
    case SIGN:
        on_break = on_break || a.v == 0;
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
        struct jet sig;

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
        on_break = on_break || a.v == b.v;
        return constant(a.v > b.v);
    case GE:
        on_break = on_break || a.v == b.v;
        return constant(a.v >= b.v);
    case LT:
        on_break = on_break || a.v == b.v;
        return constant(a.v < b.v);
    case LE:
        on_break = on_break || a.v == b.v;
        return constant(a.v <= b.v);
    case EQ:
        on_break = on_break || a.v == b.v;
        return constant(a.v == b.v);
    default:
        return constant(NAN);
    }
}

/* ---- the tests ---- */

static const struct pk_formula_param params[] = {{"p", PK_RANGE_POSITIVE, 0}, {"g", PK_RANGE_UNIT, 0}};

static void fill(const struct pk_formula *f, double *at)
{
    const struct pk_formula_param *own;
    int n = pk_formula_params(f, &own);

    memset(at, 0, PK_LEAVES * sizeof *at);
    at[PK_LEAF_N] = n_value;
    at[PK_LEAF_NI] = KEYS;
    at[PK_LEAF_I] = 1;
    at[PK_LEAF_J] = 2;
    at[PK_LEAF_HEAD] = head;
    at[PK_LEAF_HEADS] = heads;
    at[PK_LEAF_LAYER] = layer;
    at[PK_LEAF_LAYERS] = layers;
    at[PK_LEAF_WIDTH] = width;
    for (int k = 0; k < n; k++)
        at[PK_LEAF_PARAM + k] = own[k].name[0] == 'a' ? 0.6 : own[k].name[0] == 'p' ? 1.3 : 0.7;
}

/* A formula that was drawn; NULL if it does not depend on s, or is too long. */
static struct pk_formula *drawn(struct tree *t, char *text, size_t size, bool rows)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    enum pd_err err;

    t->n = 0;
    t->rows = false;
    t->root = grow(t, 4, rows);
    text[0] = 0;
    text_of(t, t->root, text, size);
    err = pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, params, 2, &f, &fault);
    if (err != PD_OK && !strstr(fault.text, "does not depend") && !strstr(fault.text, "divides by 0") &&
        !strstr(fault.text, "no finite number") && !strstr(fault.text, "different row functions") &&
        !strstr(fault.text, "too long"))
        fail_msg("'%s' at %d: %s", text, fault.at, fault.text);
    return f;
}

static bool close_to(double a, double b, double scale, double tolerance)
{
    return fabs(a - b) <= tolerance * (fabs(a) + fabs(b) + scale);
}

/* Value and gradients of sum_k w_k A_k by the programs of a plan, as a kernel computes them. */
static void by_plan(const struct pk_formula_plan *plan, double *at, const double *s, const double *w,
                    double *ret_a, double *ret_ds, double *ret_dp)
{
    double r[PK_FORMULA_RESULTS], g = 1, d = 0, f[KEYS];
    double drow[PK_FORMULA_ROWS] = {0};
    int next;

    memset(ret_dp, 0, PK_FORMULA_PARAMS * sizeof *ret_dp);
    at[PK_LEAF_SHIFT] = plan->shift_zero ? 0 : -INFINITY;
    for (int k = 0; plan->shift && k < KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        pk_formula_run(&plan->exponent, at, r);
        at[PK_LEAF_SHIFT] = fmax(at[PK_LEAF_SHIFT], r[0]);
    }
    for (int m = 0; m < plan->rows; m++)
        at[PK_LEAF_ROW + m] = plan->row[m] == PK_ROW_SUM ? 0 : -INFINITY;
    for (int k = 0; k < KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        pk_formula_run(plan->two_passes ? &plan->sums : &plan->value, at, r);
        f[k] = r[0];
        for (int m = 0; m < plan->rows; m++) {
            double x = r[m + !plan->two_passes], *to = &at[PK_LEAF_ROW + m];

            if (plan->row[m] == PK_ROW_SUM)
                *to += x;
            else if (x > *to || k == 0) {
                *to = x;
                at[PK_LEAF_ARG + m] = k;
            }
        }
    }
    if (!plan->two_passes) {
        pk_formula_run(&plan->turn, at, r);
        g = r[0];
        for (int k = 0; k < KEYS; k++)
            d += w[k] * f[k];
        at[PK_LEAF_D] = d;
        pk_formula_run(&plan->turn_back, at, r);
        next = 0;
        for (; next < plan->rows; next++)
            drow[next] = r[next];
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (plan->turn_scalars >> m & 1)
                ret_dp[m] += r[next++];
    } else {
        for (int k = 0; k < KEYS; k++) {
            at[PK_LEAF_S] = s[k];
            at[PK_LEAF_J] = k;
            at[PK_LEAF_DA] = w[k];
            pk_formula_run(&plan->before, at, r);
            for (int m = 0; m < plan->rows; m++)
                drow[m] += r[m];
        }
    }
    for (int m = 0; m < plan->rows; m++)
        at[PK_LEAF_DROW + m] = drow[m];
    for (int k = 0; k < KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        at[PK_LEAF_DA] = w[k] * g;
        pk_formula_run(&plan->back, at, r);
        ret_a[k] = r[0] * g;
        ret_ds[k] = r[1];
        next = 2;
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (plan->back_scalars >> m & 1)
                ret_dp[m] += r[next++];
    }
}

static bool moderate(double x)
{
    return isfinite(x) && fabs(x) < 1e6;
}

static void test_random_formulas_match_the_complex_step(void **state)
{
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    int checked = 0, with_rows = 0, near = 0, too_long = 0;

    (void)state;
    assert_non_null(plan);
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = drawn(&t, text, sizeof text, true);
        struct place p = {.i = 1, .a = 0.6, .p = 1.3, .g = 0.7};
        double at[PK_LEAVES], s[KEYS], w[KEYS], a[KEYS], ds[KEYS], dp[PK_FORMULA_PARAMS], own[KEYS],
            total = 0, size = 0;
        const struct pk_formula_param *name;
        bool ok = true;
        int n;
        enum pd_err err;

        if (!f)
            continue;
        fill(f, at);
        n = pk_formula_params(f, &name);
        for (int k = 0; k < KEYS; k++) {
            p.s[k] = s[k] = uniform(-2.5, 2.5);
            w[k] = uniform(-1, 1);
        }
        for (p.k = 0; p.k < KEYS; p.k++) {
            own[p.k] = creal(value(&t, t.root, &p));
            ok = ok && moderate(own[p.k]);
            total += fabs(own[p.k]);
        }
        err = pk_formula_plan(f, plan, NULL);
        if (err == PD_ERR_LIMIT)
            too_long++;
        near += p.near_break;
        if (!ok || p.near_break || err != PD_OK) {
            pk_formula_free(f);
            continue;
        }
        by_plan(plan, at, s, w, a, ds, dp);
        for (int k = 0; k < KEYS; k++)
            if (!close_to(a[k], own[k], total + 1, 1e-12))
                fail_msg("'%s' at s = %.17g, key %d: %.17g, should be %.17g", text, s[k], k, a[k], own[k]);
        for (int q = 0; q < KEYS + n; q++) {
            double reference = 0, mine = q < KEYS ? ds[q] : dp[q - KEYS];
            struct place moved = p;

            if (q < KEYS)
                moved.s[q] += _Complex_I * STEP;
            else if (name[q - KEYS].name[0] == 'a')
                moved.a += _Complex_I * STEP;
            else if (name[q - KEYS].name[0] == 'p')
                moved.p += _Complex_I * STEP;
            else
                moved.g += _Complex_I * STEP;
            for (moved.k = 0; moved.k < KEYS; moved.k++) {
                double d = cimag(value(&t, t.root, &moved)) / STEP;

                reference += w[moved.k] * d;
                size += fabs(d);
            }
            if (moderate(size) && !close_to(mine, reference, size + total + 1, 1e-9))
                fail_msg("'%s' at %.17g %.17g %.17g %.17g, derivative %d: %.17g, should be %.17g", text, s[0],
                         s[1], s[2], s[3], q, mine, reference);
        }
        checked++;
        with_rows += t.rows;
        pk_formula_free(f);
    }
    free(plan);
    print_message("%d formulas, %d with row functions, %d near a break and %d too long passed over\n",
                  checked, with_rows, near, too_long);
    assert_int_equal(checked, FORMULAS);
    assert_true(with_rows > FORMULAS / 10);
}

static void test_random_formulas_match_second_order_on_and_beyond_breaks(void **state)
{
    static const double points[] = {-1.7, -1, -0.5, 0, 0.5, 1, 1.3, 2};
    int checked = 0, second = 0;

    (void)state;
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = drawn(&t, text, sizeof text, false);
        struct pk_formula *by[3] = {f, NULL, NULL};
        bool constant_from[3] = {false, false, false};
        double value_from[3] = {0, 0, 0};

        if (!f)
            continue;
        for (int order = 1; order <= 2; order++) {
            struct pd_buf b;
            struct pk_formula_fault fault;

            pd_buf_init(&b, 30000);
            if (pk_formula_slope_text(f, PK_LEAF_S, order, &b) == PD_OK) {
                enum pd_err err = pk_formula_parse(b.data, b.len, PK_FORMULA_ACTIVATION, false, params, 2,
                                                   &by[order], &fault);

                if (err != PD_OK && strstr(fault.text, "does not depend")) {
                    char with_s[40000];

                    constant_from[order] = true;
                    snprintf(with_s, sizeof with_s, "s + (%s)", b.data);
                    if (pk_formula_parse(with_s, strlen(with_s), PK_FORMULA_ACTIVATION, false, params, 2,
                                         &by[order], &fault) == PD_OK) {
                        double at[PK_LEAVES];

                        fill(by[order], at);
                        value_from[order] = pk_formula_value(by[order], at);
                    }
                } else if (err != PD_OK && err != PD_ERR_LIMIT && !strstr(fault.text, "divides by 0") &&
                           !strstr(fault.text, "no finite number")) {
                    fail_msg("'%s', derivative %d '%s': %s", text, order, b.data, fault.text);
                }
            }
            pd_buf_done(&b);
        }
        for (size_t k = 0; k < sizeof points / sizeof *points; k++) {
            struct jet j = (on_break = singular = false, jet_of(&t, t.root, points[k]));
            const double reference[3] = {j.v, j.d1, j.d2};
            const bool broken = on_break, odd = singular;
            const bool steep = !(fabs(jet_of(&t, t.root, points[k] - 1e-9).d1) < 1e3) ||
                               !(fabs(jet_of(&t, t.root, points[k] + 1e-9).d1) < 1e3);

            on_break = broken;
            if (odd || !moderate(j.v))
                continue;
            for (int order = 1; order <= 2; order++) {
                double at[PK_LEAVES], v;

                if (!by[order] || !moderate(reference[order]) || !moderate(j.d1))
                    continue;
                fill(by[order], at);
                at[PK_LEAF_S] = points[k];
                v = constant_from[order] ? value_from[order] : pk_formula_value(by[order], at);
                /* On a break one side's slope is as good as the other's; it need not exist where that of a side is unbounded,
                 * and a second one need not exist. */
                if (on_break ? order == 1 && isnan(v) && !steep
                             : !close_to(v, reference[order], 1 + fabs(j.d1) + fabs(j.v), 1e-8))
                    fail_msg("'%s', derivative %d at %g: %.17g, should be %.17g", text, order, points[k], v,
                             reference[order]);
                second += order == 2;
            }
        }
        for (int order = 0; order < 3; order++)
            pk_formula_free(by[order]);
        checked++;
    }
    print_message("%d formulas, %d second derivatives\n", checked, second);
    assert_int_equal(checked, FORMULAS);
    assert_true(second > FORMULAS);
}

static void test_random_formulas_are_read_as_they_are_printed(void **state)
{
    int checked = 0;

    (void)state;
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = drawn(&t, text, sizeof text, true), *again = NULL;
        struct pk_formula_fault fault;
        struct pd_buf a, b;

        if (!f)
            continue;
        pd_buf_init(&a, 30000);
        pd_buf_init(&b, 30000);
        pk_formula_canonical(f, &a);
        if (pd_buf_err(&a) == PD_OK && a.len <= PK_FORMULA_TEXT &&
            pk_formula_parse(a.data, a.len, PK_FORMULA_ACTIVATION, false, params, 2, &again, &fault) == PD_OK)
            pk_formula_canonical(again, &b);
        else if (a.len <= PK_FORMULA_TEXT && !strstr(fault.text, "numbers, names and operators"))
            fail_msg("'%s' is printed as '%s': %s", text, a.data, fault.text);
        if (again && strcmp(a.data, b.data))
            fail_msg("'%s' is printed as '%s', and that as '%s'", text, a.data, b.data);
        pd_buf_done(&a);
        pd_buf_done(&b);
        pk_formula_free(f);
        pk_formula_free(again);
        checked++;
    }
    assert_int_equal(checked, FORMULAS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_formulas_match_the_complex_step),
        cmocka_unit_test(test_random_formulas_match_second_order_on_and_beyond_breaks),
        cmocka_unit_test(test_random_formulas_are_read_as_they_are_printed),
    };
    const char *given = getenv("POLYD_SEED");

    state_of_random = given ? strtoull(given, NULL, 10) : 20261124;
    printf("# POLYD_SEED=%llu\n", (unsigned long long)state_of_random);
    state_of_random = state_of_random * 0x9e3779b97f4a7c15ull | 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
