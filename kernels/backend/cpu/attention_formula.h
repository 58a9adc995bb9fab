/* kernels/backend/cpu/attention_formula.h: the programs of a formula (kernels/formula/formula.h) over blocks of a tile.
 *
 *     a block: ROWS keys by TILE queries              an operand: an address and a step from row to row
 *
 *        query 0 .. TILE-1                              instruction of the entry   a buffer of the block   TILE
 *     key  +---------------+                            S, J, DA                   the tile, its keys      TILE
 *       0  |               |  one instruction           instruction of the row     TILE lanes              0
 *       :  |               |  runs over all of it       I, NI, ROW, SHIFT, ...     TILE lanes              0
 *  ROWS-1  +---------------+  before the next           constants, scalars         TILE equal lanes        0
 *                                                       a function of i - j        a line of the tile      -1
 *
 * What depends on i - j alone (and on scalars) has one value on each diagonal of a tile: it is computed once per diagonal,
 * along a line, and row r + 1 of the tile reads that line one element before row r.
 *
 * So an instruction costs one loop over memory of the first cache level. A result may be written directly into the tile
 * if no later instruction reads the old value. */
#pragma once

#include "kernels/backend/cpu/attention_tile.h"
#include "kernels/formula/formula.h"

#define KEYS_TWICE                                                                                           \
    1024        /* keys of a block of a formula of two passes: up to here S is computed once for both */
#define ROWS 16 /* keys of a block: 1024 elements, so that a few buffers fit the first cache level */
#define BLOCK (ROWS * TILE)

/* ---- vector functions that no other kernel has ---- */

#if CPU_F64
INLINE vec vlog1p(vec x)
{
    VLANES(log1p(x_));
}
INLINE vec vexpm1(vec x)
{
    VLANES(expm1(x_));
}
INLINE vec vfloor(vec x)
{
    VLANES(floor(x_));
}
INLINE vec vpower(vec a, vec b)
{
    vec r = {0};

    for (int i = 0; i < W; i++)
        r[i] = (real)pow((double)a[i], (double)b[i]);
    return r;
}
#else
/* log(1 + x) = log u + log((1 + x) / u), where u is 1 + x rounded: the second is (x - (u - 1)) / u to all places. */
INLINE vec vlog1p(vec x)
{
    const vec u = 1 + x, lost = (x - (u - 1)) * vrecip(u);

    return vlog(u) + vsel((u > 0) & (u < INFINITY), lost, vzero());
}
/* Taylor's series on -1..1, else e^x - 1: error below 4 units in the last place. */
INLINE vec vexpm1(vec x)
{
    vec p = vset(1.0f / 39916800.0f);

    p = p * x + 1.0f / 3628800.0f;
    p = p * x + 1.0f / 362880.0f;
    p = p * x + 1.0f / 40320.0f;
    p = p * x + 1.0f / 5040.0f;
    p = p * x + 1.0f / 720.0f;
    p = p * x + 1.0f / 120.0f;
    p = p * x + 1.0f / 24.0f;
    p = p * x + 1.0f / 6.0f;
    p = p * x + 0.5f;
    p = p * (x * x) + x;
    return vsel(vabs(x) < 1.0f, p, vexp(x) - 1.0f);
}
INLINE vec vfloor(vec x)
{
    const vec t =
        __builtin_convertvector(__builtin_convertvector(vsel(vabs(x) < 8388608.0f, x, vzero()), ivec), vec);

    return vsel(vabs(x) < 8388608.0f, t - vsel(t > x, vset(1), vzero()), x);
}
/* a^b of a >= 0: e^(b log a). */
INLINE vec vpower(vec a, vec b)
{
    return vsel(a > 0, vexp(b * vlog(a)),
                vsel(b == 0, vset(1), vsel(a == 0, vsel(b > 0, vzero(), vset(INFINITY)), vset(NAN))));
}
#endif

/* ---- programs ---- */

#define LINES 16 /* instructions computed along lines; further ones are computed per entry */

/* Two instructions in one loop, which spares a buffer: the second alone reads the first's result x. */
enum first { FIRST_ADD, FIRST_SUB, FIRST_MUL, FIRST_ABS, FIRSTS };
enum then { THEN_ADD, THEN_SUB, THEN_FROM, THEN_MUL, THEN_OVER, THEN_RECIP, THEN_EXP, THENS };
#define PAIR(first, then) (PK_FO_COUNT + (first)*THENS + (then))

/* An instruction of the entry or a pair. */
struct step {
    int16_t op; /* enum pk_formula_op, or a PAIR */
    int16_t i;  /* the instruction whose result this is */
    int16_t in[3];
    uint8_t arg, arity;
};

/* A program with its buffers. */
struct ready {
    const struct pk_formula_program *p;
    real *constant; /* (constants, TILE) */
    real *row;      /* (per_row, TILE) */
    real *line;     /* (lines, length) */
    int64_t length;
    int lines, steps;
    bool reads_j;
    bool direct[2]; /* result 0 may be written directly over S, result 1 over DA */
    /* Set up to the program's count: */
    int8_t line_of[PK_FORMULA_CODE]; /* of an instruction; -1: it is computed per entry */
    struct step step[PK_FORMULA_CODE];
};

/* Addresses of the leaves: TILE lanes each; S, J and DA are rows of the block. */
struct leaves {
    const real *at[PK_LEAVES];
    int64_t line; /* where the block's first row begins in a line */
};

static inline bool leaf_of_entry(int leaf)
{
    return leaf == PK_LEAF_S || leaf == PK_LEAF_J || leaf == PK_LEAF_DA;
}

static inline int arity_of(int op)
{
    switch (op) {
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    case PK_FO_##id:                                                                                         \
        return arity;
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
    case PK_FO_MULADD:
        return 3;
    case PK_FO_ADD:
    case PK_FO_SUB:
    case PK_FO_MUL:
    case PK_FO_DIV:
        return 2;
    default:
        return 1;
    }
}

/* Whether an operand has one value for all entries of a head: constants, scalars, and what is computed from them. */
static inline bool uniform_operand(const struct pk_formula_program *p, const bool *uniform, int o)
{
    if (o >= 0)
        return o < p->per_row && uniform[o];
    if (o <= PK_FORMULA_CONSTANT(0))
        return true;
    switch (-1 - o) {
    case PK_LEAF_N:
    case PK_LEAF_HEAD:
    case PK_LEAF_HEADS:
    case PK_LEAF_LAYER:
    case PK_LEAF_LAYERS:
    case PK_LEAF_WIDTH:
    case PK_LEAF_PI:
        return true;
    default:
        return -1 - o >= PK_LEAF_PARAM && -1 - o < PK_LEAF_PARAM + PK_FORMULA_PARAMS;
    }
}

/* Finds the instructions that depend on i - j alone. */
static inline void find_lines(struct ready *r)
{
    const struct pk_formula_program *p = r->p;
    bool uniform[PK_FORMULA_CODE];

    for (int i = 0; i < p->count; i++) {
        const int16_t *in = p->code[i].in;
        const int arity = arity_of(p->code[i].op);
        const bool distance = p->code[i].op == PK_FO_SUB &&
                              ((in[0] == PK_FORMULA_LEAF(PK_LEAF_I) && in[1] == PK_FORMULA_LEAF(PK_LEAF_J)) ||
                               (in[0] == PK_FORMULA_LEAF(PK_LEAF_J) && in[1] == PK_FORMULA_LEAF(PK_LEAF_I)));
        bool all = true, any = false;

        uniform[i] = i < p->per_row;
        for (int k = 0; k < arity; k++) {
            const bool line = in[k] >= p->per_row && r->line_of[in[k]] >= 0,
                       same = uniform_operand(p, uniform, in[k]);

            uniform[i] = uniform[i] && same;
            all = all && (line || same);
            any = any || line;
        }
        if (i >= p->per_row && (distance || (all && any)) && r->lines < LINES)
            r->line_of[i] = (int8_t)r->lines++;
    }
}

/* The pair of instruction i and the next one k; false if they are none. uses: how often a result is read. */
static inline bool pair_of(const struct pk_formula_program *p, int i, int k, const uint8_t *uses,
                           struct step *ret)
{
    const int16_t *in = p->code[i].in, *then_in = p->code[k].in;
    const bool left = then_in[0] == i;
    int first, then;

    switch (p->code[i].op) {
    case PK_FO_ADD:
        first = FIRST_ADD;
        break;
    case PK_FO_SUB:
        first = FIRST_SUB;
        break;
    case PK_FO_MUL:
        first = FIRST_MUL;
        break;
    case PK_FO_ABS:
        first = FIRST_ABS;
        break;
    default:
        return false;
    }
    switch (p->code[k].op) {
    case PK_FO_ADD:
        then = THEN_ADD;
        break;
    case PK_FO_SUB:
        then = left ? THEN_SUB : THEN_FROM;
        break;
    case PK_FO_MUL:
        then = THEN_MUL;
        break;
    case PK_FO_DIV:
        then = THEN_OVER;
        break;
    case PK_FO_RECIP:
        then = THEN_RECIP;
        break;
    case PK_FO_EXP:
        then = THEN_EXP;
        break;
    default:
        return false;
    }
    if (uses[i] != 1 || (!left && (then >= THEN_RECIP || then_in[1] != i)) || (left && then == THEN_OVER))
        return false;
    *ret = (struct step){.op = (int16_t)PAIR(first, then), .i = (int16_t)k, .arity = 3};
    ret->in[0] = in[0];
    ret->in[1] = first == FIRST_ABS ? in[0] : in[1];
    ret->in[2] = then >= THEN_RECIP ? in[0] : then_in[left];
    return true;
}

static inline void find_steps(struct ready *r)
{
    const struct pk_formula_program *p = r->p;
    uint8_t uses[PK_FORMULA_CODE] = {0};

    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < arity_of(p->code[i].op); k++)
            if (p->code[i].in[k] >= 0)
                uses[p->code[i].in[k]]++;
    for (int k = 0; k < p->results; k++)
        if (p->result[k] >= 0)
            uses[p->result[k]] = 2;
    for (int i = p->per_row; i < p->count; i++) {
        struct step *s = &r->step[r->steps];
        int next = i + 1;

        if (r->line_of[i] >= 0)
            continue;
        while (next < p->count && r->line_of[next] >= 0)
            next++;
        r->steps++;
        if (next < p->count && pair_of(p, i, next, uses, s)) {
            i = next;
            continue;
        }
        *s = (struct step){.op = p->code[i].op,
                           .i = (int16_t)i,
                           .arg = p->code[i].arg,
                           .arity = (uint8_t)arity_of(p->code[i].op)};
        memcpy(s->in, p->code[i].in, sizeof s->in);
    }
}

/* keys: of a tile, 0 if its lanes are not queries. */
static inline void ready_program(struct ready *r, const struct pk_formula_program *p, int64_t keys,
                                 struct cpu_scratch *s)
{
    int last_s = -1, last_da = -1;

    memset(r, 0, offsetof(struct ready, line_of));
    memset(r->line_of, -1, (size_t)p->count);
    r->p = p;
    r->constant = cpu_take(s, (size_t)(p->constants * TILE) * sizeof(real));
    r->row = cpu_take(s, (size_t)(p->per_row * TILE) * sizeof(real));
    if (keys)
        find_lines(r);
    r->length = cpu_round_up(keys + TILE, TILE);
    r->line = r->lines ? cpu_take(s, (size_t)(r->lines * r->length) * sizeof(real)) : NULL;
    if (!s->base)
        return;
    find_steps(r);
    for (int k = 0; k < p->constants; k++)
        for (int i = 0; i < TILE; i++)
            r->constant[k * TILE + i] = (real)p->constant[k];
    for (int i = 0; i < p->count; i++)
        for (int k = 0; r->line_of[i] < 0 && k < arity_of(p->code[i].op); k++) {
            last_s = p->code[i].in[k] == PK_FORMULA_LEAF(PK_LEAF_S) ? i : last_s;
            last_da = p->code[i].in[k] == PK_FORMULA_LEAF(PK_LEAF_DA) ? i : last_da;
            r->reads_j = r->reads_j || p->code[i].in[k] == PK_FORMULA_LEAF(PK_LEAF_J);
        }
    for (int k = 0; k < p->results; k++) {
        r->reads_j = r->reads_j || p->result[k] == PK_FORMULA_LEAF(PK_LEAF_J);
        if (k && p->result[k] == PK_FORMULA_LEAF(PK_LEAF_S)) /* read after the program */
            last_s = p->count;
        if (k != 1 && p->result[k] == PK_FORMULA_LEAF(PK_LEAF_DA))
            last_da = p->count;
    }
    r->direct[0] = p->results > 0 && p->result[0] >= p->per_row && r->line_of[p->result[0]] < 0 &&
                   last_s <= p->result[0];
    r->direct[1] = p->results > 1 && p->result[1] >= p->per_row && r->line_of[p->result[1]] < 0 &&
                   last_da <= p->result[1] && p->result[1] != p->result[0];
}

/* One instruction over n rows of nv vectors. */
INLINE void run_rows(int op, int arg, int64_t n, const int64_t nv, real *o, const real *pa, int64_t sa,
                     const real *pb, int64_t sb, const real *pc, int64_t sc)
{
#define EACH(expr)                                                                                           \
    for (int64_t r = 0; r < n; r++)                                                                          \
        for (int64_t v = 0; v < nv; v++) {                                                                   \
            const vec a = vld(pa + r * sa + v * W), b = vld(pb + r * sb + v * W),                            \
                      c = vld(pc + r * sc + v * W);                                                          \
                                                                                                             \
            (void)a;                                                                                         \
            (void)b;                                                                                         \
            (void)c;                                                                                         \
            vst(o + r * TILE + v * W, expr);                                                                 \
        }                                                                                                    \
    break

    switch (op) {
    case PK_FO_ADD:
        EACH(a + b);
    case PK_FO_SUB:
        EACH(a - b);
    case PK_FO_MUL:
        EACH(a * b);
    case PK_FO_DIV:
        EACH(a / b);
    case PK_FO_NEG:
        EACH(-a);
    case PK_FO_RECIP:
        EACH(1 / a);
    case PK_FO_SQRT:
        EACH(vsqrt(a));
    case PK_FO_RSQRT:
        EACH(1 / vsqrt(a));
    case PK_FO_MULADD:
        EACH(a * b + c);
    case PK_FO_POWI:
        if (arg == 3) {
            EACH(a * a * a);
        }
        if (arg == 4) {
            EACH((a * a) * (a * a));
        }
        EACH(vpow(a, arg));
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    case PK_FO_##id:                                                                                         \
        EACH(cpu);
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
#define PAIRS(first, x)                                                                                      \
    case PAIR(first, THEN_ADD):                                                                              \
        EACH((x) + c);                                                                                       \
    case PAIR(first, THEN_SUB):                                                                              \
        EACH((x)-c);                                                                                         \
    case PAIR(first, THEN_FROM):                                                                             \
        EACH(c - (x));                                                                                       \
    case PAIR(first, THEN_MUL):                                                                              \
        EACH((x)*c);                                                                                         \
    case PAIR(first, THEN_OVER):                                                                             \
        EACH(c / (x));                                                                                       \
    case PAIR(first, THEN_RECIP):                                                                            \
        EACH(1 / (x));                                                                                       \
    case PAIR(first, THEN_EXP):                                                                              \
        EACH(vexp(x));
        PAIRS(FIRST_ADD, a + b)
        PAIRS(FIRST_SUB, a - b)
        PAIRS(FIRST_MUL, a * b)
        PAIRS(FIRST_ABS, vabs(a))
#undef PAIRS
    default:
        break;
    }
#undef EACH
}

/* Whole rows of a tile are unrolled. Kept out of line: there is one copy of the switch for each. */
static __attribute__((noinline)) void run_whole(int op, int arg, int64_t n, real *o, const real *pa,
                                                int64_t sa, const real *pb, int64_t sb, const real *pc,
                                                int64_t sc)
{
    run_rows(op, arg, n, TILE / W, o, pa, sa, pb, sb, pc, sc);
}
static __attribute__((noinline)) void run_part(int op, int arg, int64_t n, int64_t nv, real *o,
                                               const real *pa, int64_t sa, const real *pb, int64_t sb,
                                               const real *pc, int64_t sc)
{
    run_rows(op, arg, n, nv, o, pa, sa, pb, sb, pc, sc);
}

struct operand {
    const real *p;
    int64_t step;
};

static inline struct operand operand_of(const struct ready *f, const struct leaves *l, int o,
                                        real *const *out)
{
    if (o >= f->p->per_row)
        return f->line_of[o] < 0 ? (struct operand){out[o], TILE}
                                 : (struct operand){f->line + f->line_of[o] * f->length + l->line, -1};
    if (o >= 0)
        return (struct operand){f->row + o * TILE, 0};
    if (o <= PK_FORMULA_CONSTANT(0))
        return (struct operand){f->constant + (PK_FORMULA_CONSTANT(0) - o) * TILE, 0};
    return (struct operand){l->at[-1 - o], leaf_of_entry(-1 - o) ? TILE : 0};
}

static inline void run_step(const struct ready *f, const struct leaves *l, const struct step *s, int64_t n,
                            int64_t nv, real *const *out, real *o)
{
    const struct operand a = operand_of(f, l, s->in[0], out),
                         b = s->arity > 1 ? operand_of(f, l, s->in[1], out) : a,
                         c = s->arity > 2 ? operand_of(f, l, s->in[2], out) : a;

    if (nv == TILE / W)
        run_whole(s->op, s->arg, n, o, a.p, a.step, b.p, b.step, c.p, c.step);
    else
        run_part(s->op, s->arg, n, nv, o, a.p, a.step, b.p, b.step, c.p, c.step);
}

static inline void run_one(const struct ready *f, const struct leaves *l, int i, int64_t n, int64_t nv,
                           real *const *out, real *o)
{
    struct step s = {
        .op = f->p->code[i].op, .arg = f->p->code[i].arg, .arity = (uint8_t)arity_of(f->p->code[i].op)};

    memcpy(s.in, f->p->code[i].in, sizeof s.in);
    run_step(f, l, &s, n, nv, out, o);
}

/* The instructions of the row, over nv vectors of queries. */
static inline void run_row_part(const struct ready *f, const struct leaves *l, int64_t nv)
{
    for (int i = 0; i < f->p->per_row; i++)
        run_one(f, l, i, 1, nv, NULL, f->row + i * TILE);
}

/* The instructions of the row and those along lines, of a tile of n keys from k0 on. Element e of a line is the diagonal
 * of i - j = (first query - k0) - (n - 1) + e. */
static inline void run_tile_part(const struct ready *f, const struct leaves *l, int64_t nv, int64_t k0,
                                 int64_t n)
{
    const int64_t rows = cpu_div_up(n - 1 + TILE, TILE);

    run_row_part(f, l, f->lines ? TILE / W : nv); /* lines read all lanes of what is uniform */
    for (int i = f->p->per_row; f->lines && i < f->p->count; i++) {
        const int16_t *in = f->p->code[i].in;
        struct operand o[3] = {{0}};
        real *to = f->line + f->line_of[i] * f->length;

        if (f->line_of[i] < 0)
            continue;
        if (in[0] == PK_FORMULA_LEAF(PK_LEAF_I) || in[0] == PK_FORMULA_LEAF(PK_LEAF_J)) {
            const real sign = in[0] == PK_FORMULA_LEAF(PK_LEAF_I) ? 1 : -1,
                       from = l->at[PK_LEAF_I][0] - (real)(k0 + n - 1);

            for (int64_t e = 0; e < rows * TILE; e++)
                to[e] = sign * (from + (real)e);
            continue;
        }
        for (int k = 0; k < 3; k++) {
            o[k] = k < arity_of(f->p->code[i].op) ? operand_of(f, l, in[k], NULL) : o[0];
            if (o[k].step < 0)
                o[k] = (struct operand){f->line + f->line_of[in[k]] * f->length, TILE};
        }
        run_whole(f->p->code[i].op, f->p->code[i].arg, rows, to, o[0].p, o[0].step, o[1].p, o[1].step, o[2].p,
                  o[2].step);
    }
}

/* The instructions of the entry, over n <= ROWS keys. slot: (slots, BLOCK). target[k] (k < 2, may be NULL): the block
 * of the tile where result k may be written. ret: the address of every result, which need not be its target. */
static inline void run_block(const struct ready *f, const struct leaves *l, int64_t n, int64_t nv, real *slot,
                             real *const *target, struct operand *ret)
{
    real *out[PK_FORMULA_CODE];

    for (int at = 0; at < f->steps; at++) {
        const int i = f->step[at].i;

        out[i] = slot + f->p->code[i].slot * BLOCK;
        for (int k = 0; k < 2; k++)
            if (target[k] && f->direct[k] && f->p->result[k] == i)
                out[i] = target[k];
        run_step(f, l, &f->step[at], n, nv, out, out[i]);
    }
    for (int k = 0; k < f->p->results; k++)
        ret[k] = operand_of(f, l, f->p->result[k], out);
}

/* ---- shared by the kernels ---- */

struct formula {
    struct attention j;
    uint64_t reads; /* leaves that some program reads, as bits */
    const struct pk_formula_plan *plan;
    const struct pk_formula_attr *attr;
    const struct pk_view *scalars; /* (P, H); NULL: none */
    int64_t kept;                  /* R of ops.def: rows, then the shift, then ARG of every maximum */
    bool argmax;
    double *dscalars; /* backward: (B, H, P) */
};

static inline int64_t formula_kept(const struct pk_formula_plan *p)
{
    int64_t n = p->rows + p->shift;

    for (int k = 0; k < p->rows; k++)
        n += p->row[k] == PK_ROW_MAX;
    return n;
}

static inline uint64_t leaves_read(const struct pk_formula_program *p)
{
    uint64_t reads = 0;

    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < arity_of(p->code[i].op); k++)
            if (p->code[i].in[k] < 0 && p->code[i].in[k] > PK_FORMULA_CONSTANT(0))
                reads |= 1ull << (-1 - p->code[i].in[k]);
    for (int k = 0; k < p->results; k++)
        if (p->result[k] < 0 && p->result[k] > PK_FORMULA_CONSTANT(0))
            reads |= 1ull << (-1 - p->result[k]);
    return reads;
}

static inline void formula_shape(struct formula *f, const struct pk_call *c)
{
    memset(f, 0, sizeof *f);
    attention_shape(&f->j, c);
    f->attr = &c->attr->formula;
    f->plan = f->attr->plan;
    f->scalars = f->j.scale;
    f->j.scale = NULL;
    if (f->plan->two_passes)
        f->j.keys = cpu_min(KEYS_TWICE, cpu_max(1, f->j.nk));
    f->kept = formula_kept(f->plan);
    f->reads = leaves_read(&f->plan->exponent) | leaves_read(&f->plan->value) | leaves_read(&f->plan->sums) |
               leaves_read(&f->plan->turn) | leaves_read(&f->plan->before) |
               leaves_read(&f->plan->turn_back) | leaves_read(&f->plan->back);
    for (int k = 0; k < f->plan->rows; k++)
        f->argmax = f->argmax || f->plan->row[k] == PK_ROW_MAX;
    if (c->op == PK_OP_FORMULA && f->kept)
        f->j.sums = c->out[1].data;
    if (c->op == PK_OP_FORMULA_BWD && f->kept)
        f->j.sums_in = &c->in[f->j.after + 2];
}

/* Scratch of one thread, in addition to struct tile. */
struct state {
    struct ready exponent, value, sums, turn, before, turn_back, back;
    real *slot;                 /* buffers of blocks, for the program that needs most */
    real *keys;                 /* J of a block */
    real *uniform[PK_LEAVES];   /* TILE equal lanes; NULL: not uniform */
    real *i, *ni;               /* of the task's queries */
    real *row[PK_FORMULA_ROWS]; /* row functions */
    real *arg[PK_FORMULA_ROWS]; /* keys that attain them */
    real *m, *g, *live;         /* the shift; G; 1, or 0 where the row of A is 0 regardless of the programs */
    real *d, *drow[PK_FORMULA_ROWS];
    struct leaves l;
};

static inline void state_scratch(const struct formula *f, struct state *t, struct cpu_scratch *s)
{
    static const uint8_t uniform[] = {PK_LEAF_N,      PK_LEAF_HEAD,  PK_LEAF_HEADS, PK_LEAF_LAYER,
                                      PK_LEAF_LAYERS, PK_LEAF_WIDTH, PK_LEAF_PI};
    const struct pk_formula_plan *p = f->plan;
    const size_t one = sizeof(real), queries = (size_t)cpu_round_up(f->j.group, TILE) * one;
    const int64_t keys = f->j.few ? 0 : f->j.keys;
    int slots = p->value.slots;

    /* ready_program sets up the programs that the plan has. */
    memset((char *)t + offsetof(struct state, slot), 0, sizeof *t - offsetof(struct state, slot));
    ready_program(&t->value, &p->value, keys, s);
    ready_program(&t->turn, &p->turn, 0, s);
    if (p->shift) {
        ready_program(&t->exponent, &p->exponent, keys, s);
        slots = slots > p->exponent.slots ? slots : p->exponent.slots;
        t->m = cpu_take(s, queries);
    }
    if (p->two_passes) {
        ready_program(&t->sums, &p->sums, keys, s);
        slots = slots > p->sums.slots ? slots : p->sums.slots;
    }
    if (f->j.backward) {
        ready_program(&t->before, &p->before, keys, s);
        ready_program(&t->turn_back, &p->turn_back, 0, s);
        ready_program(&t->back, &p->back, keys, s);
        slots = slots > p->before.slots ? slots : p->before.slots;
        slots = slots > p->back.slots ? slots : p->back.slots;
        t->d = cpu_take(s, queries);
        for (int k = 0; k < p->rows; k++)
            t->drow[k] = cpu_take(s, queries);
    }
    t->slot = cpu_take(s, (size_t)slots * BLOCK * one);
    t->keys = cpu_take(s, BLOCK * one);
    t->i = cpu_take(s, queries);
    t->ni = cpu_take(s, queries);
    t->g = cpu_take(s, queries);
    t->live = cpu_take(s, queries);
    for (int k = 0; k < p->rows; k++) {
        t->row[k] = cpu_take(s, queries);
        if (p->row[k] == PK_ROW_MAX)
            t->arg[k] = cpu_take(s, queries);
    }
    for (size_t k = 0; k < sizeof uniform; k++)
        if (f->reads >> uniform[k] & 1)
            t->uniform[uniform[k]] = cpu_take(s, TILE * one);
    for (int k = PK_LEAF_PARAM; k < PK_LEAF_PARAM + p->params; k++)
        if (f->reads >> k & 1)
            t->uniform[k] = cpu_take(s, TILE * one);
}

static inline double scalar_of(const struct formula *f, int k, int64_t h)
{
    return (double)((const real *)f->scalars->data)[k * f->scalars->stride[0] + h * f->scalars->stride[1]];
}

/* Sets the leaves that depend on the head. */
static inline void state_head(const struct formula *f, struct state *t, int64_t h)
{
    double value[PK_LEAVES] = {[PK_LEAF_N] = f->attr->n,
                               [PK_LEAF_HEAD] = (double)h,
                               [PK_LEAF_HEADS] = (double)f->j.heads,
                               [PK_LEAF_LAYER] = f->attr->layer,
                               [PK_LEAF_LAYERS] = f->attr->layers,
                               [PK_LEAF_WIDTH] = (double)f->j.d,
                               [PK_LEAF_PI] = M_PI};

    for (int k = 0; k < f->plan->params; k++)
        value[PK_LEAF_PARAM + k] = scalar_of(f, k, h);
    for (int k = 0; k < PK_LEAVES; k++)
        for (int i = 0; t->uniform[k] && i < TILE; i++)
            t->uniform[k][i] = (real)value[k];
}

/* Positions and key counts of n queries from q0 on, of batch b, and which of them have a visible key. */
static inline void state_rows(const struct formula *f, struct state *t, int64_t b, int64_t q0, int64_t n)
{
    const struct attention *j = &f->j;
    const int64_t shift = shift_of(j, b), keys = keys_of(j, b);

    if (!j->mask && !j->a->causal) {
        for (int64_t i = 0; i < cpu_round_up(n, TILE); i++) {
            t->i[i] = (real)((int)q0 + (int)i);
            t->ni[i] = (real)cpu_max(1, keys);
            t->live[i] = i < n && keys > 0 ? 1 : 0;
        }
        return;
    }
    for (int64_t i = 0; i < cpu_round_up(n, TILE); i++) {
        const int64_t at = q0 + i, end = j->a->causal ? cpu_max(0, cpu_min(keys, at + shift + 1)) : keys;
        int64_t count = end;

        if (i < n && j->mask) {
            const struct pk_view *v = j->mask;
            const uint8_t *m =
                (const uint8_t *)v->data +
                (j->windows ? b % j->windows * v->stride[0] + at * v->stride[1] : b * v->stride[0]);
            const int64_t step = v->stride[j->windows ? 2 : 1];

            count = 0;
            for (int64_t k = 0; k < end; k++)
                count += m[k * step] != 0;
        }
        t->i[i] = (real)(j->a->causal ? at + shift : at);
        t->ni[i] = (real)cpu_max(1, count);
        t->live[i] = i < n && count > 0 ? 1 : 0;
    }
}

/* Sets the leaves of the tile whose queries begin `at` after the task's first. */
static inline void state_tile(const struct formula *f, struct state *t, int64_t at)
{
    for (int k = 0; k < PK_LEAVES; k++)
        t->l.at[k] = t->uniform[k];
    t->l.at[PK_LEAF_I] = t->i + at;
    t->l.at[PK_LEAF_NI] = t->ni + at;
    t->l.at[PK_LEAF_J] = t->keys;
    if (t->m)
        t->l.at[PK_LEAF_SHIFT] = t->m + at;
    if (t->d)
        t->l.at[PK_LEAF_D] = t->d + at;
    for (int k = 0; k < f->plan->rows; k++) {
        t->l.at[PK_LEAF_ROW + k] = t->row[k] + at;
        if (t->arg[k])
            t->l.at[PK_LEAF_ARG + k] = t->arg[k] + at;
        if (t->drow[k])
            t->l.at[PK_LEAF_DROW + k] = t->drow[k] + at;
    }
}

static inline void block_keys(struct state *t, int64_t from, int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t v = 0; v < TILE / W; v++)
            vst(t->keys + r * TILE + v * W, vset((real)(from + r)));
}

/* Copies a result into rows r0 .. r0+n-1 of a tile, 0 where hidden. A result already in place is only masked. */
static inline void put_block(const struct view *w, int64_t r0, int64_t n, struct operand from, real *tile)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    if (from.p == tile + r0 * TILE && r0 + n <= w->full && !w->shown)
        return;
    for (int64_t r = 0; r < n; r++) {
        real *to = tile + (r0 + r) * TILE;
        const real *x = from.p + r * from.step;

        if (!row_shown(w, r0 + r)) {
            for (int64_t v = 0; v < nv; v++)
                vst(to + v * W, vzero());
        } else if (r0 + r < w->full) {
            for (int64_t v = 0; x != to && v < nv; v++)
                vst(to + v * W, vld(x + v * W));
        } else {
            for (int64_t v = 0; v < nv; v++)
                vst(to + v * W, masked(lanes_shown(w, r0 + r, v), vld(x + v * W)));
        }
    }
}

/* Adds a result's visible entries to sum (TILE lanes). */
static inline void sum_block(const struct view *w, int64_t r0, int64_t n, struct operand from, real *sum)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t v = 0; v < nv; v++) {
        vec total = vld(sum + v * W);

        for (int64_t r = 0; r < n; r++) {
            const vec x = vld(from.p + r * from.step + v * W);

            if (!row_shown(w, r0 + r))
                continue;
            total += r0 + r < w->full ? x : masked(lanes_shown(w, r0 + r, v), x);
        }
        vst(sum + v * W, total);
    }
}

/* The maximum of a result's visible entries, and the first key (from k0 on) that attains it; arg may be NULL. NaN
 * propagates. */
static inline void max_block(const struct view *w, int64_t r0, int64_t n, struct operand from, int64_t k0,
                             real *max, real *arg)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t v = 0; v < nv; v++) {
        vec top = vld(max + v * W), at = arg ? vld(arg + v * W) : vzero();

        for (int64_t r = 0; r < n; r++) {
            const vec x = vld(from.p + r * from.step + v * W);
            ivec more = (x > top) | (x != x);

            if (!row_shown(w, r0 + r))
                continue;
            if (r0 + r >= w->full)
                more &= lanes_shown(w, r0 + r, v);
            top = vsel(more, x, top);
            at = vsel(more, vset((real)(k0 + r0 + r)), at);
        }
        vst(max + v * W, top);
        if (arg)
            vst(arg + v * W, at);
    }
}

/* G of a tile's rows from their row functions, nv vectors. G and `live` are 0 if a row has no visible key, or if a row
 * function is 0 and G is not finite. */
static inline void turn_rows(const struct formula *f, struct state *t, int64_t at, int64_t nv)
{
    struct operand g;

    run_row_part(&t->turn, &t->l, nv);
    g = operand_of(&t->turn, &t->l, f->plan->turn.result[0], NULL);
    for (int64_t v = 0; v < nv; v++) {
        vec x = vld(g.p + v * W);
        ivec dead = vld(t->live + at + v * W) == 0;
        ivec zero = {0};

        for (int k = 0; k < f->plan->rows; k++)
            zero |= vld(t->row[k] + at + v * W) == 0;
        dead |= zero & ~(vabs(x) < INFINITY);
        vst(t->g + at + v * W, vsel(dead, vzero(), x));
        vst(t->live + at + v * W, vsel(dead, vzero(), vset(1)));
    }
}

/* Two passes: if a row function is 0, values that are not finite become 0. */
static inline void mend_rows(const struct formula *f, const struct state *t, int64_t at, const struct view *w,
                             real *s)
{
    const int64_t nv = cpu_div_up(w->lanes, W);

    for (int64_t v = 0; v < nv; v++) {
        ivec zero = {0};
        bool any = false;

        for (int k = 0; k < f->plan->rows; k++)
            zero |= vld(t->row[k] + at + v * W) == 0;
        for (int i = 0; i < W; i++)
            any = any || zero[i];
        for (int64_t r = 0; any && r < w->n; r++) {
            const vec x = vld(s + r * TILE + v * W);

            vst(s + r * TILE + v * W, vsel(zero & ~(vabs(x) < INFINITY), vzero(), x));
        }
    }
}
