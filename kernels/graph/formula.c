/* A formula's programs by primitives: this defines FORMULA and gives its derivatives of every order. */
#include "kernels/formula/formula.h"

#include <math.h>

#include "kernels/graph/build.h"

#define LOW (-1e30) /* below every logit that a float network makes */

struct scene {
    struct pk_graph *g;
    enum pk_dtype dtype;
    struct pk_val leaf[PK_LEAVES];
};

static struct pk_val number(const struct scene *s, double x)
{
    return pk_fill(s->g, s->dtype, PK_SHAPE(1), x);
}

static struct pk_val operand(const struct scene *s, const struct pk_formula_program *p, int o,
                             const struct pk_val *made)
{
    if (o >= 0)
        return made[o];
    if (o <= PK_FORMULA_CONSTANT(0))
        return number(s, p->constant[PK_FORMULA_CONSTANT(0) - o]);
    return s->leaf[-1 - o];
}

/* op of a > 0; where a is not, a constant, so that a branch that is not taken has a derivative of 0 and not 0 / 0. */
static struct pk_val above_zero(const struct scene *s, enum pk_ex op, struct pk_val a, double at_zero)
{
    struct pk_graph *g = s->g;
    struct pk_val above = pk_gt(g, a, number(s, 0));

    return pk_select(g, above, pk_unary(g, op, pk_select(g, above, a, number(s, 1))),
                     pk_select(g, pk_gt(g, number(s, 0), a), number(s, NAN), number(s, at_zero)));
}

/* a / b, likewise where b is 0. */
static struct pk_val quotient(const struct scene *s, struct pk_val a, struct pk_val b)
{
    struct pk_graph *g = s->g;
    struct pk_val zero = pk_eq(g, b, number(s, 0)), sign;

    sign = pk_sub(g, pk_gt(g, a, number(s, 0)), pk_gt(g, number(s, 0), a));
    return pk_select(g, zero, pk_mul(g, sign, number(s, INFINITY)),
                     pk_div(g, a, pk_select(g, zero, number(s, 1), b)));
}

/* Of a derivative of 0: a maximum over one element passes nothing back. Numbers beyond 2^30 are whole already, or nearly. */
static struct pk_val floor_of(const struct scene *s, struct pk_val x)
{
    struct pk_graph *g = s->g;
    struct pk_shape shape = pk_shape_of(g, x), one = shape;
    struct pk_val cut = pk_cast(g, pk_cast(g, x, PK_I32), s->dtype), whole, small;

    whole = pk_sub(g, cut, pk_gt(g, cut, x));
    small = pk_gt(g, number(s, 1073741824.0), pk_unary(g, PK_EX_ABS, x));
    one.dim[one.rank++] = 1;
    return pk_maximum(g, pk_reshape(g, pk_select(g, small, whole, x), one), 1u << shape.rank, false);
}

static struct pk_val instruction(const struct scene *s, enum pk_formula_op op, int arg, struct pk_val a,
                                 struct pk_val b, struct pk_val c)
{
    struct pk_graph *g = s->g;
    struct pk_val r = PK_NONE;

    switch (op) {
    case PK_FO_ADD:
        return pk_add(g, a, b);
    case PK_FO_SUB:
        return pk_sub(g, a, b);
    case PK_FO_MUL:
        return pk_mul(g, a, b);
    case PK_FO_DIV:
        return quotient(s, a, b);
    case PK_FO_NEG:
        return pk_scale(g, a, -1);
    case PK_FO_RECIP:
        return quotient(s, number(s, 1), a);
    case PK_FO_SQRT:
        return above_zero(s, PK_EX_SQRT, a, 0);
    case PK_FO_RSQRT:
        return above_zero(s, PK_EX_RSQRT, a, INFINITY);
    case PK_FO_POWI:
        return pk_power(g, a, arg);
    case PK_FO_MULADD:
        return pk_add(g, pk_mul(g, a, b), c);
#define UNARY(op, x) pk_unary(g, PK_EX_##op, x)
#define NUM(x) number(s, x)
#define ADD(x, y) pk_add(g, x, y)
#define SUB(x, y) pk_sub(g, x, y)
#define MUL(x, y) pk_mul(g, x, y)
#define NEG(x) pk_scale(g, x, -1)
#define GT(x, y) pk_gt(g, x, y)
#define EQ(x, y) pk_eq(g, x, y)
#define MAX(x, y) pk_max2(g, x, y)
#define WHERE(x, y, z) pk_select(g, x, y, z)
#define FLOOR(x) floor_of(s, x)
#define LOG(x) above_zero(s, PK_EX_LOG, x, -INFINITY)
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    case PK_FO_##id:                                                                                         \
        r = graph;                                                                                           \
        break;
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
#undef UNARY
#undef NUM
#undef ADD
#undef SUB
#undef MUL
#undef NEG
#undef GT
#undef EQ
#undef MAX
#undef WHERE
#undef FLOOR
#undef LOG
    case PK_FO_COUNT:
        break;
    }
    return r;
}

static void run(const struct scene *s, const struct pk_formula_program *p, struct pk_val *ret)
{
    struct pk_val made[PK_FORMULA_CODE];

    for (int i = 0; i < p->count; i++) {
        const enum pk_formula_op op = (enum pk_formula_op)p->code[i].op;
        const int arity = pk_formula_arity(op);
        const int16_t *in = p->code[i].in;

        made[i] = instruction(s, op, p->code[i].arg, operand(s, p, in[0], made),
                              arity > 1 ? operand(s, p, in[1], made) : PK_NONE,
                              arity > 2 ? operand(s, p, in[2], made) : PK_NONE);
    }
    for (int k = 0; k < p->results; k++)
        ret[k] = operand(s, p, p->result[k], made);
}

/* x where a query sees the key, else `other`. */
static struct pk_val shown(const struct scene *s, struct pk_val see, struct pk_val x, struct pk_val other)
{
    return see.id ? pk_select(s->g, see, x, other) : x;
}

/* Computes the row functions of arguments x[k] and stores them in the leaves. */
static void gather(struct scene *s, const struct pk_formula_plan *p, struct pk_val see,
                   const struct pk_val *x, struct pk_shape shape)
{
    for (int k = 0; k < p->rows; k++) {
        struct pk_val full = pk_broadcast(s->g, x[k], shape);

        s->leaf[PK_LEAF_ROW + k] =
            p->row[k] == PK_ROW_SUM
                ? pk_sum(s->g, shown(s, see, full, number(s, 0)), 1u << 3, true)
                : pk_maximum_flow(s->g, shown(s, see, full, number(s, LOW)), 1u << 3, true);
    }
}

/* Leaves i, j and ni: positions of query and key, and the number of keys that the query sees. */
static void positions(struct scene *s, const struct pk_attention_spec *spec, struct pk_val see,
                      struct pk_shape shape)
{
    struct pk_graph *g = s->g;
    const int64_t b = shape.dim[0], nq = shape.dim[2], nk = shape.dim[3];
    struct pk_val i = pk_reshape(g, pk_iota(g, s->dtype, nq), PK_SHAPE(1, 1, nq, 1));

    if (spec->causal && spec->length.id) {
        const int64_t n = pk_shape_of(g, spec->length).dim[0];

        i = pk_add(g, i,
                   pk_offset(g, pk_reshape(g, pk_cast(g, spec->length, s->dtype), PK_SHAPE(n, 1, 1, 1)),
                             -(double)nq));
    } else if (spec->causal) {
        i = pk_offset(g, i, (double)(nk - nq));
    }
    s->leaf[PK_LEAF_I] = i;
    s->leaf[PK_LEAF_J] = pk_reshape(g, pk_iota(g, s->dtype, nk), PK_SHAPE(1, 1, 1, nk));
    s->leaf[PK_LEAF_NI] =
        see.id
            ? pk_max2(g, pk_sum(g, pk_broadcast(g, see, PK_SHAPE(b, 1, nq, nk)), 1u << 3, true), number(s, 1))
            : number(s, (double)nk);
}

/* 1 where one of the row functions is 0 and x is not finite. */
static struct pk_val dead(const struct scene *s, const struct pk_formula_plan *p, struct pk_val x)
{
    struct pk_graph *g = s->g;
    struct pk_val any = pk_eq(g, s->leaf[PK_LEAF_ROW], number(s, 0));

    for (int k = 1; k < p->rows; k++)
        any = pk_max2(g, any, pk_eq(g, s->leaf[PK_LEAF_ROW + k], number(s, 0)));
    return pk_mul(g, any, pk_offset(g, pk_scale(g, pk_unary(g, PK_EX_FINITE, x), -1), 1));
}

struct pk_val pk_formula_weights(struct pk_graph *g, const struct pk_attention_spec *spec,
                                 struct pk_val logits, struct pk_val see)
{
    const struct pk_formula_plan *p = spec->formula.plan;
    const struct pk_shape shape = pk_shape_of(g, logits);
    struct scene s = {.g = g, .dtype = pk_dtype_of(g, logits)};
    struct pk_val r[PK_FORMULA_RESULTS], turn[PK_FORMULA_RESULTS], f, none;
    const struct {
        enum pk_formula_leaf leaf;
        double value;
    } uniform[] = {{PK_LEAF_N, spec->formula.n},
                   {PK_LEAF_HEADS, (double)shape.dim[1]},
                   {PK_LEAF_LAYER, spec->formula.layer},
                   {PK_LEAF_LAYERS, spec->formula.layers},
                   {PK_LEAF_PI, M_PI}};

    if (!g || g->err != PD_OK)
        return PK_NONE;
    for (size_t k = 0; k < sizeof uniform / sizeof *uniform; k++)
        s.leaf[uniform[k].leaf] = number(&s, uniform[k].value);
    s.leaf[PK_LEAF_WIDTH] = number(&s, spec->formula.width);
    s.leaf[PK_LEAF_HEAD] =
        pk_offset(g, pk_reshape(g, pk_iota(g, s.dtype, shape.dim[1]), PK_SHAPE(1, shape.dim[1], 1, 1)),
                  spec->formula.first_head);
    if (spec->formula.heads > 0)
        s.leaf[PK_LEAF_HEADS] = number(&s, spec->formula.heads);
    positions(&s, spec, see, shape);
    for (int k = 0; k < p->params; k++)
        s.leaf[PK_LEAF_PARAM + k] =
            pk_reshape(g, pk_slice(g, spec->scalars, 0, k, 1), PK_SHAPE(1, shape.dim[1], 1, 1));
    /* Hidden logits are replaced by the row's largest visible one, so that they make no NaN or infinity that the
     * visible ones do not make. */
    none = pk_maximum(g, shown(&s, see, logits, number(&s, LOW)), 1u << 3, true);
    none = pk_select(g, pk_eq(g, none, number(&s, LOW)), number(&s, 0), none);
    s.leaf[PK_LEAF_S] = shown(&s, see, logits, none);
    if (p->shift) {
        struct pk_val m;

        run(&s, &p->exponent, r);
        m = pk_maximum(g, pk_broadcast(g, r[0], shape), 1u << 3, true);
        s.leaf[PK_LEAF_SHIFT] = p->shift_zero ? pk_max2(g, m, number(&s, 0)) : m;
    }
    if (p->two_passes) {
        run(&s, &p->sums, r);
        gather(&s, p, see, r, shape);
        run(&s, &p->value, r);
        f = r[0];
        if (p->rows) {
            none = pk_broadcast(g, dead(&s, p, f), shape);
            for (int k = 0; k < p->rows; k++)
                s.leaf[PK_LEAF_ROW + k] = pk_select(g, none, number(&s, 1), s.leaf[PK_LEAF_ROW + k]);
            run(&s, &p->value, r);
            f = pk_select(g, none, number(&s, 0), r[0]);
        }
    } else {
        run(&s, &p->value, r);
        gather(&s, p, see, r + 1, shape);
        run(&s, &p->turn, turn);
        f = r[0];
        if (p->rows) {
            none = dead(&s, p, turn[0]);
            for (int k = 0; k < p->rows; k++)
                s.leaf[PK_LEAF_ROW + k] = pk_select(g, none, number(&s, 1), s.leaf[PK_LEAF_ROW + k]);
            run(&s, &p->turn, turn);
            f = pk_select(g, none, number(&s, 0), f);
        }
        f = pk_mul(g, f, turn[0]);
    }
    f = pk_broadcast(g, f, shape);
    return shown(&s, see, f, number(&s, 0));
}
