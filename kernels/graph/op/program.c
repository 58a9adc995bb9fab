#include "kernels/graph/op/program.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int arity;
} ex[PK_EX_COUNT] = {
    [PK_EX_IN] = {"in", 0},
    [PK_EX_CONST] = {"const", 0},
    [PK_EX_DUP] = {"dup", 0},
    [PK_EX_ADD] = {"add", 2},
    [PK_EX_SUB] = {"sub", 2},
    [PK_EX_MUL] = {"mul", 2},
    [PK_EX_DIV] = {"div", 2},
    [PK_EX_MAX] = {"max", 2},
    [PK_EX_MIN] = {"min", 2},
    [PK_EX_GT] = {"gt", 2},
    [PK_EX_EQ] = {"eq", 2},
    [PK_EX_SELECT] = {"select", 3},
    [PK_EX_NEG] = {"neg", 1},
    [PK_EX_ABS] = {"abs", 1},
    [PK_EX_EXP] = {"exp", 1},
    [PK_EX_LOG] = {"log", 1},
    [PK_EX_SQRT] = {"sqrt", 1},
    [PK_EX_RSQRT] = {"rsqrt", 1},
    [PK_EX_RECIP] = {"recip", 1},
    [PK_EX_TANH] = {"tanh", 1},
    [PK_EX_ERF] = {"erf", 1},
    [PK_EX_SIGMOID] = {"sigmoid", 1},
    [PK_EX_SIN] = {"sin", 1},
    [PK_EX_COS] = {"cos", 1},
    [PK_EX_POW] = {"pow", 1},
    [PK_EX_GELU] = {"gelu", 1},
    [PK_EX_DGELU] = {"dgelu", 1},
    [PK_EX_GELU_TANH] = {"gelu_tanh", 1},
    [PK_EX_DGELU_TANH] = {"dgelu_tanh", 1},
    [PK_EX_FINITE] = {"finite", 1},
};

int pk_ex_arity(enum pk_ex op)
{
    return (unsigned)op < PK_EX_COUNT ? ex[op].arity : 0;
}

const char *pk_ex_name(enum pk_ex op)
{
    return (unsigned)op < PK_EX_COUNT ? ex[op].name : "unknown";
}

const char *pk_expr_check(const struct pk_expr *program, int32_t inputs)
{
    int depth = 0;

    if (program->count < 1 || program->count > PK_EXPR_MAX)
        return "the program is empty or too long";
    for (int32_t i = 0; i < program->count; i++) {
        enum pk_ex op = program->code[i].op;

        if ((unsigned)op >= PK_EX_COUNT)
            return "unknown instruction";
        if (op == PK_EX_IN && program->code[i].arg >= inputs)
            return "the program reads an input that does not exist";
        if (op == PK_EX_DUP && program->code[i].arg >= depth)
            return "the program duplicates a value below its stack";
        if (depth < ex[op].arity)
            return "the program's stack runs empty";
        depth += 1 - ex[op].arity;
        if (depth > PK_EXPR_STACK)
            return "the program's stack is too deep";
    }
    return NULL;
}

void pk_dag_init(struct pk_dag *d)
{
    d->count = 0;
    d->full = false;
}

static int32_t node(struct pk_dag *d, enum pk_ex op, int arg, double imm, int32_t a, int32_t b, int32_t c)
{
    for (int32_t i = 0; i < d->count; i++)
        if (d->node[i].op == op && d->node[i].arg == arg && d->node[i].kid[0] == a &&
            d->node[i].kid[1] == b && d->node[i].kid[2] == c &&
            memcmp(&d->node[i].imm, &imm, sizeof imm) == 0)
            return i;
    if (d->count == PK_DAG_MAX) {
        d->full = true;
        return 0;
    }
    d->node[d->count].op = (uint8_t)op;
    d->node[d->count].arg = (uint8_t)arg;
    d->node[d->count].imm = imm;
    d->node[d->count].kid[0] = a;
    d->node[d->count].kid[1] = b;
    d->node[d->count].kid[2] = c;
    return d->count++;
}

int32_t pk_dag_in(struct pk_dag *d, int input)
{
    return node(d, PK_EX_IN, input, 0.0, -1, -1, -1);
}

int32_t pk_dag_const(struct pk_dag *d, double value)
{
    return node(d, PK_EX_CONST, 0, value, -1, -1, -1);
}

static bool is_const(const struct pk_dag *d, int32_t i, double *ret)
{
    if (d->node[i].op != PK_EX_CONST)
        return false;
    *ret = d->node[i].imm;
    return true;
}

static double gauss(double x) /* the density of the normal distribution */
{
    return exp(-0.5 * x * x) * 0.39894228040143267794;
}

static double cdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

/* sqrt(2/pi) and the cubic coefficient of the tanh form */
#define GT_K 0.79788456080286535588
#define GT_C 0.044715

static double fold(enum pk_ex op, int arg, double a, double b, double c)
{
    double r = 1.0, t;

    switch (op) {
    case PK_EX_ADD:
        return a + b;
    case PK_EX_SUB:
        return a - b;
    case PK_EX_MUL:
        return a * b;
    case PK_EX_DIV:
        return a / b;
    case PK_EX_MAX:
        return a > b ? a : b;
    case PK_EX_MIN:
        return a < b ? a : b;
    case PK_EX_GT:
        return a > b;
    case PK_EX_EQ:
        return a == b;
    case PK_EX_SELECT:
        return c != 0.0 ? a : b;
    case PK_EX_NEG:
        return -a;
    case PK_EX_ABS:
        return fabs(a);
    case PK_EX_EXP:
        return exp(a);
    case PK_EX_LOG:
        return log(a);
    case PK_EX_SQRT:
        return sqrt(a);
    case PK_EX_RSQRT:
        return 1.0 / sqrt(a);
    case PK_EX_RECIP:
        return 1.0 / a;
    case PK_EX_TANH:
        return tanh(a);
    case PK_EX_ERF:
        return erf(a);
    case PK_EX_SIGMOID:
        return 1.0 / (1.0 + exp(-a));
    case PK_EX_SIN:
        return sin(a);
    case PK_EX_COS:
        return cos(a);
    case PK_EX_POW:
        for (int i = 0; i < arg; i++)
            r *= a;
        return r;
    case PK_EX_GELU:
        return a * cdf(a);
    case PK_EX_DGELU:
        return cdf(a) + a * gauss(a);
    case PK_EX_GELU_TANH:
        return 0.5 * a * (1.0 + tanh(GT_K * (a + GT_C * a * a * a)));
    case PK_EX_DGELU_TANH:
        t = tanh(GT_K * (a + GT_C * a * a * a));
        return 0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * GT_K * (1.0 + 3.0 * GT_C * a * a);
    case PK_EX_FINITE:
        return isfinite(a) ? 1.0 : 0.0;
    case PK_EX_IN:
    case PK_EX_CONST:
    case PK_EX_DUP:
    case PK_EX_COUNT:
        break;
    }
    return NAN;
}

int32_t pk_dag_op(struct pk_dag *d, enum pk_ex op, int arg, int32_t a, int32_t b, int32_t c)
{
    int arity = ex[op].arity;
    double x = 0.0, y = 0.0, z = 0.0;
    bool cx = is_const(d, a, &x), cy = arity > 1 && is_const(d, b, &y), cz = arity > 2 && is_const(d, c, &z);

    if (cx && (arity < 2 || cy) && (arity < 3 || cz))
        return pk_dag_const(d, fold(op, arg, x, y, z));
    switch (op) {
    case PK_EX_ADD:
        if (cx && x == 0.0)
            return b;
        if (cy && y == 0.0)
            return a;
        break;
    case PK_EX_SUB:
        if (cy && y == 0.0)
            return a;
        if (cx && x == 0.0)
            return pk_dag_op(d, PK_EX_NEG, 0, b, -1, -1);
        break;
    case PK_EX_MUL:
        if (cx && x == 1.0)
            return b;
        if (cy && y == 1.0)
            return a;
        if (cx && x == -1.0)
            return pk_dag_op(d, PK_EX_NEG, 0, b, -1, -1);
        if (cy && y == -1.0)
            return pk_dag_op(d, PK_EX_NEG, 0, a, -1, -1);
        break;
    case PK_EX_DIV:
        if (cy && y == 1.0)
            return a;
        break;
    case PK_EX_NEG:
        if (d->node[a].op == PK_EX_NEG)
            return d->node[a].kid[0];
        break;
    case PK_EX_POW:
        if (arg == 0)
            return pk_dag_const(d, 1.0);
        if (arg == 1)
            return a;
        break;
    case PK_EX_SELECT:
        if (a == b)
            return a;
        if (cz)
            return z != 0.0 ? a : b;
        break;
    default:
        break;
    }
    /* Operands of commutative instructions are sorted, so that a + b and b + a are one node. */
    if ((op == PK_EX_ADD || op == PK_EX_MUL || op == PK_EX_EQ) && a > b) {
        int32_t swap = a;

        a = b;
        b = swap;
    }
    return node(d, op, op == PK_EX_POW ? arg : 0, 0.0, a, arity > 1 ? b : -1, arity > 2 ? c : -1);
}

int32_t pk_dag_load(struct pk_dag *d, const struct pk_expr *program, const int32_t *in)
{
    int32_t stack[PK_EXPR_STACK + 1] = {0};
    int n = 0;

    for (int32_t i = 0; i < program->count; i++) {
        enum pk_ex op = program->code[i].op;
        int arg = program->code[i].arg, arity = ex[op].arity;
        int32_t r;

        if (op == PK_EX_IN)
            r = in[arg];
        else if (op == PK_EX_CONST)
            r = pk_dag_const(d, program->code[i].imm);
        else if (op == PK_EX_DUP)
            r = stack[n - 1 - arg];
        else
            r = pk_dag_op(d, op, arg, stack[n - arity], arity > 1 ? stack[n - arity + 1] : -1,
                          arity > 2 ? stack[n - arity + 2] : -1);
        n -= arity;
        stack[n++] = r;
    }
    return stack[n - 1];
}

/* Local derivatives: g times the derivative of node i by its operand k; -1 for zero. */
static int32_t local(struct pk_dag *d, int32_t i, int k, int32_t g)
{
    enum pk_ex op = d->node[i].op;
    int32_t a = d->node[i].kid[0], b = d->node[i].kid[1], c = d->node[i].kid[2];
    int arg = d->node[i].arg;

#define OP1(o, x) pk_dag_op(d, PK_EX_##o, 0, x, -1, -1)
#define OP2(o, x, y) pk_dag_op(d, PK_EX_##o, 0, x, y, -1)
#define K(v) pk_dag_const(d, v)
#define P(x, n) pk_dag_op(d, PK_EX_POW, n, x, -1, -1)
    switch (op) {
    case PK_EX_ADD:
        return g;
    case PK_EX_SUB:
        return k == 0 ? g : OP1(NEG, g);
    case PK_EX_MUL:
        return OP2(MUL, g, k == 0 ? b : a);
    case PK_EX_DIV: /* a/b: 1/b, -(a/b)/b */
        return k == 0 ? OP2(DIV, g, b) : OP1(NEG, OP2(DIV, OP2(MUL, g, i), b));
    /* Select instead of multiply: the gradient of the branch that is not taken may be infinite. */
    case PK_EX_MAX: /* a tie goes to b: relu'(0) = 0 */
        return k == 0 ? pk_dag_op(d, PK_EX_SELECT, 0, g, K(0.0), OP2(GT, a, b))
                      : pk_dag_op(d, PK_EX_SELECT, 0, K(0.0), g, OP2(GT, a, b));
    case PK_EX_MIN:
        return k == 0 ? pk_dag_op(d, PK_EX_SELECT, 0, g, K(0.0), OP2(GT, b, a))
                      : pk_dag_op(d, PK_EX_SELECT, 0, K(0.0), g, OP2(GT, b, a));
    case PK_EX_SELECT:
        if (k == 2)
            return -1;
        return k == 0 ? pk_dag_op(d, PK_EX_SELECT, 0, g, K(0.0), c)
                      : pk_dag_op(d, PK_EX_SELECT, 0, K(0.0), g, c);
    case PK_EX_NEG:
        return OP1(NEG, g);
    case PK_EX_ABS:
        return pk_dag_op(d, PK_EX_SELECT, 0, g,
                         pk_dag_op(d, PK_EX_SELECT, 0, OP1(NEG, g), K(0.0), OP2(GT, K(0.0), a)),
                         OP2(GT, a, K(0.0)));
    case PK_EX_EXP:
        return OP2(MUL, g, i);
    case PK_EX_LOG:
        return OP2(DIV, g, a);
    case PK_EX_SQRT:
        return OP2(DIV, OP2(MUL, g, K(0.5)), i);
    case PK_EX_RSQRT:
        return OP2(MUL, OP2(MUL, g, K(-0.5)), P(i, 3));
    case PK_EX_RECIP:
        return OP1(NEG, OP2(MUL, g, OP2(MUL, i, i)));
    case PK_EX_TANH:
        return OP2(MUL, g, OP2(SUB, K(1.0), OP2(MUL, i, i)));
    case PK_EX_ERF: /* 2/sqrt(pi) exp(-x^2) */
        return OP2(MUL, g, OP2(MUL, K(1.12837916709551257390), OP1(EXP, OP1(NEG, OP2(MUL, a, a)))));
    case PK_EX_SIGMOID:
        return OP2(MUL, g, OP2(MUL, i, OP2(SUB, K(1.0), i)));
    case PK_EX_SIN:
        return OP2(MUL, g, OP1(COS, a));
    case PK_EX_COS:
        return OP1(NEG, OP2(MUL, g, OP1(SIN, a)));
    case PK_EX_POW:
        return arg == 0 ? -1 : OP2(MUL, g, OP2(MUL, K(arg), P(a, arg - 1)));
    case PK_EX_GELU:
        return OP2(MUL, g, OP1(DGELU, a));
    case PK_EX_DGELU: /* phi(x) (2 - x^2) */
        return OP2(MUL, g,
                   OP2(MUL, OP2(MUL, K(0.39894228040143267794), OP1(EXP, OP2(MUL, K(-0.5), OP2(MUL, a, a)))),
                       OP2(SUB, K(2.0), OP2(MUL, a, a))));
    case PK_EX_GELU_TANH:
        return OP2(MUL, g, OP1(DGELU_TANH, a));
    case PK_EX_DGELU_TANH: {
        /* u = k (x + c x^3), t = tanh u: (1-t^2) u' + x/2 (1-t^2) (u'' - 2 t u'^2) */
        int32_t xx = OP2(MUL, a, a);
        int32_t t = OP1(TANH, OP2(MUL, K(GT_K), OP2(ADD, a, OP2(MUL, K(GT_C), P(a, 3)))));
        int32_t s = OP2(SUB, K(1.0), OP2(MUL, t, t));
        int32_t u1 = OP2(ADD, K(GT_K), OP2(MUL, K(3.0 * GT_C * GT_K), xx));
        int32_t u2 = OP2(MUL, K(6.0 * GT_C * GT_K), a);
        int32_t curve = OP2(SUB, u2, OP2(MUL, K(2.0), OP2(MUL, t, OP2(MUL, u1, u1))));

        return OP2(MUL, g, OP2(MUL, s, OP2(ADD, u1, OP2(MUL, OP2(MUL, K(0.5), a), curve))));
    }
    default: /* GT, EQ, FINITE: steps; leaves */
        return -1;
    }
#undef OP1
#undef OP2
#undef K
#undef P
}

/* local() is linear in g, so it is applied inside the branches of a selection: an infinite slope in the branch that is
 * not taken (1 / sqrt(-1)) is then not multiplied by a selected 0, but not selected itself. */
static int32_t flow(struct pk_dag *d, int32_t i, int k, int32_t g)
{
    int32_t a = d->node[g].kid[0], b = d->node[g].kid[1], c = d->node[g].kid[2], x, y;
    double value;

    if (is_const(d, g, &value) && value == 0.0)
        return g;
    if (d->node[g].op == PK_EX_SELECT) {
        x = flow(d, i, k, a);
        y = flow(d, i, k, b);
        return x < 0 || y < 0 ? -1 : pk_dag_op(d, PK_EX_SELECT, 0, x, y, c);
    }
    if (d->node[g].op == PK_EX_ADD && (d->node[a].op == PK_EX_SELECT || d->node[b].op == PK_EX_SELECT)) {
        x = flow(d, i, k, a);
        y = flow(d, i, k, b);
        return x < 0 || y < 0 ? -1 : pk_dag_op(d, PK_EX_ADD, 0, x, y, -1);
    }
    return local(d, i, k, g);
}

void pk_dag_diff(struct pk_dag *d, int32_t root, int32_t seed, const int32_t *wrt, int n, int32_t *ret)
{
    int32_t adjoint[PK_DAG_MAX];
    bool path[PK_DAG_MAX] = {false};

    for (int32_t i = 0; i < PK_DAG_MAX; i++)
        adjoint[i] = -1;
    for (int j = 0; j < n; j++)
        path[wrt[j]] = true;
    for (int32_t i = 0; i <= root; i++)
        for (int k = 0; k < ex[d->node[i].op].arity; k++)
            path[i] = path[i] || path[d->node[i].kid[k]];
    adjoint[root] = seed;
    /* Operands precede their users, so all users of node i are visited before it. New nodes are added above root and
     * never visited. */
    for (int32_t i = root; i >= 0 && !d->full; i--) {
        if (adjoint[i] < 0 || !path[i])
            continue;
        for (int k = 0; k < ex[d->node[i].op].arity; k++) {
            int32_t kid = d->node[i].kid[k], in;

            if (!path[kid])
                continue;
            in = flow(d, i, k, adjoint[i]);
            if (in >= 0)
                adjoint[kid] = adjoint[kid] < 0 ? in : pk_dag_op(d, PK_EX_ADD, 0, adjoint[kid], in, -1);
        }
    }
    for (int j = 0; j < n; j++)
        ret[j] = adjoint[wrt[j]];
}

struct writer {
    const struct pk_dag *d;
    struct pk_expr *out;
    uint8_t *used;
    int n_used;
    int sp, place[PK_DAG_MAX]; /* stack position of a shared node; -1: not computed yet */
    bool ok;
};

static void push(struct writer *w, enum pk_ex op, int arg, double imm)
{
    struct pk_expr *o = w->out;

    if (o->count == PK_EXPR_MAX) {
        w->ok = false;
        return;
    }
    o->code[o->count].op = (uint8_t)op;
    o->code[o->count].arg = (uint8_t)arg;
    o->code[o->count].imm = imm;
    o->count++;
    w->sp += 1 - ex[op].arity;
    if (w->sp > PK_EXPR_STACK)
        w->ok = false;
}

static void write_node(struct writer *w, int32_t i, bool fresh)
{
    enum pk_ex op = w->d->node[i].op;

    if (!w->ok)
        return;
    if (op == PK_EX_IN) {
        int at = 0;

        while (at < w->n_used && w->used[at] != w->d->node[i].arg)
            at++;
        if (at == w->n_used) {
            if (at == PK_EXPR_INPUTS) {
                w->ok = false;
                return;
            }
            w->used[w->n_used++] = w->d->node[i].arg;
        }
        push(w, PK_EX_IN, at, 0.0);
    } else if (op == PK_EX_CONST) {
        push(w, PK_EX_CONST, 0, w->d->node[i].imm);
    } else if (!fresh && w->place[i] >= 0) {
        push(w, PK_EX_DUP, w->sp - 1 - w->place[i], 0.0);
    } else {
        for (int k = 0; k < ex[op].arity; k++)
            write_node(w, w->d->node[i].kid[k], false);
        push(w, op, w->d->node[i].arg, 0.0);
    }
}

bool pk_dag_store(const struct pk_dag *d, int32_t root, struct pk_expr *ret, uint8_t *ret_used, int *ret_n)
{
    struct writer w = {.d = d, .out = ret, .used = ret_used, .ok = !d->full};
    int32_t uses[PK_DAG_MAX] = {0};

    memset(ret, 0, sizeof *ret);
    if (d->full)
        return false;
    for (int32_t i = 0; i < d->count; i++)
        w.place[i] = -1;
    uses[root] = 1;
    for (int32_t i = root; i >= 0; i--)
        for (int k = 0; uses[i] && k < ex[d->node[i].op].arity; k++)
            uses[d->node[i].kid[k]]++;
    /* Shared subexpressions are computed first and stay at the bottom of the stack. */
    for (int32_t i = 0; i < root; i++)
        if (uses[i] > 1 && ex[d->node[i].op].arity > 0) {
            write_node(&w, i, true);
            w.place[i] = w.sp - 1;
        }
    write_node(&w, root, true);
    *ret_n = w.n_used;
    return w.ok;
}
