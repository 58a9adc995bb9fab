/* kernels/formula/internal.h: numbers, the parsed text and the normal form. Private to this folder. */
#pragma once

#include <stdint.h>

#include "kernels/formula/formula.h"

/* ---- exact numbers ---- */

/* p/q in lowest terms with q > 0; q = 0: not exact, and v alone counts. */
struct num {
    double v;
    int64_t p, q;
};

struct num num_of(int64_t p, int64_t q);
struct num num_inexact(double v);
struct num num_add(struct num a, struct num b);
struct num num_mul(struct num a, struct num b);
struct num num_neg(struct num a);
struct num num_inv(struct num a);
/* The value of a number of the grammar. False, and *ret is untouched, if it is to be the nearest double: 64 bits do not
 * hold it, or it has a point or an exponent and more than 15 digits (the text of a double has up to 17). */
bool num_read(const char *text, int length, struct num *ret);
/* a^e for an integer e. */
struct num num_power(struct num a, int64_t e);
bool num_is(struct num a, int64_t value);
bool num_integer(struct num a);
bool num_equal(struct num a, struct num b);
/* Finite and not 0. */
bool num_usable(struct num a);
int num_compare(struct num a, struct num b);

/* ---- functions ---- */

enum fn {
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    FN_##id,
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
    FN_COUNT
};
enum symmetry { SYMMETRY_NONE, SYMMETRY_EVEN, SYMMETRY_ODD };

/* Bounds of a value: lo <= x <= hi; `fails`: it may be NaN or infinite at some argument. */
struct interval {
    double lo, hi;
    bool nonzero, fails;
};

struct fn_row {
    const char *name, *slope, *cuda, *latex, *torch;
    int arity;
    enum symmetry symmetry;
    double (*value)(double a, double b, double c);
    struct interval (*interval)(const struct fn_row *f, const struct interval *in);
};
extern const struct fn_row fn_rows[FN_COUNT];
/* interval.c: the functions that the rows name. */
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval_of, cpu, cuda, latex, torch,      \
                         graph)                                                                              \
    struct interval interval_of(const struct fn_row *f, const struct interval *in);
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING

/* ---- normal form ---- */

enum nf_op { NF_NUM, NF_LEAF, NF_SUM, NF_PRODUCT, NF_FN, NF_ROW };

/* The dependence of a value: on neither row nor key, on the query's row, or on the entry. */
enum nf_level { NF_UNIFORM, NF_PER_ROW, NF_PER_ENTRY };

typedef int32_t ref; /* a node; below 0: none (the store is full) */

struct nf_term {
    ref node;
    struct num k; /* SUM: coefficient; PRODUCT: exponent */
};

struct nf_node {
    uint8_t op, level;
    uint8_t fn;   /* FN: enum fn; LEAF: enum pk_formula_leaf; ROW: enum pk_formula_row */
    bool has_row; /* a row function lies below */
    int32_t n, first;
    uint64_t hash;
    struct num k; /* NUM: itself; SUM: constant; PRODUCT: coefficient */
};

#define NF_NODES 5000
#define NF_TERMS 9000
#define NF_POOL 3000
#define NF_HASH 16384 /* a power of two above NF_NODES */
#define NF_STEPS 8192 /* into branches of selections, of a text that is read or of a derivative */

struct nf {
    struct nf_node node[NF_NODES];
    struct nf_term term[NF_TERMS];
    int16_t hash[NF_HASH];           /* node + 1; 0: free */
    struct interval range[NF_NODES]; /* where `ranged` */
    bool ranged[NF_NODES];
    struct nf_term pool[NF_POOL]; /* stack of terms of nodes under construction */
    int32_t nodes, terms, pooled, steps;
    bool full;                /* a node could not be made, and the rest is not to be used */
    bool infinite;            /* full, because a number was not finite */
    struct pk_formula *owner; /* of slopes and of the scalars' ranges */
};

/* Before a rewriting goes into the two branches of a selection. Branches share nodes, and each path to a node is a step:
 * false, and the store counts as full, after NF_STEPS of them. */
static inline bool nf_step(struct nf *f)
{
    f->full = f->full || ++f->steps > NF_STEPS;
    return !f->full;
}
ref nf_num(struct nf *f, struct num k);
ref nf_int(struct nf *f, int64_t k);
ref nf_leaf(struct nf *f, enum pk_formula_leaf leaf);
/* Sum of k_i times node_i, plus `constant`. */
ref nf_sum(struct nf *f, const struct nf_term *t, int n, struct num constant);
/* coefficient times the product of node_i ^ k_i. */
ref nf_product(struct nf *f, const struct nf_term *t, int n, struct num coefficient);
ref nf_fn(struct nf *f, enum fn fn, ref a, ref b, ref c);
ref nf_row(struct nf *f, enum pk_formula_row row, ref a);

ref nf_add(struct nf *f, ref a, ref b);
ref nf_sub(struct nf *f, ref a, ref b);
ref nf_mul(struct nf *f, ref a, ref b);
ref nf_div(struct nf *f, ref a, ref b);
ref nf_scale(struct nf *f, ref a, struct num k);
ref nf_power(struct nf *f, ref a, struct num e);
static inline ref nf_neg(struct nf *f, ref a)
{
    return nf_scale(f, a, num_of(-1, 1));
}
/* The first argument of a function, a term, ... */
static inline ref nf_kid(const struct nf *f, ref a, int i)
{
    return f->term[f->node[a].first + i].node;
}
static inline bool nf_is_num(const struct nf *f, ref a, int64_t k)
{
    return a >= 0 && f->node[a].op == NF_NUM && num_is(f->node[a].k, k);
}
static inline bool nf_is_fn(const struct nf *f, ref a, enum fn fn)
{
    return a >= 0 && f->node[a].op == NF_FN && f->node[a].fn == fn;
}
static inline bool nf_is_leaf(const struct nf *f, ref a, enum pk_formula_leaf leaf)
{
    return a >= 0 && f->node[a].op == NF_LEAF && f->node[a].fn == leaf;
}
int nf_compare(const struct nf *f, ref a, ref b);
/* Replaces nodes: map(arg, node) gives a node, or -1 to go on below. */
ref nf_map(struct nf *f, ref a, ref (*map)(void *arg, struct nf *f, ref node), void *arg);
/* Value in doubles: leaf[] by enum pk_formula_leaf, row functions by `rows` (may be NULL). */
double nf_value(const struct nf *f, ref a, const double *leaf);

/* derive.c: derivative by a leaf or a row function's node; 0 if `a` does not contain it. */
ref nf_derive(struct nf *f, ref a, ref by);

/* interval.c */
struct interval nf_interval(const struct nf *f, ref a);

/* ---- parsed text ---- */

enum ast_op {
    AST_NUM,
    AST_LEAF,
    AST_ARG,
    AST_NEG,
    AST_ADD,
    AST_SUB,
    AST_MUL,
    AST_DIV,
    AST_POWER,
    AST_GT,
    AST_GE,
    AST_LT,
    AST_LE,
    AST_EQ,
    AST_FN,
    AST_MEANING,
    AST_ROW
};

struct ast {
    uint8_t op, fn; /* fn: of FN, MEANING, LEAF, ARG, ROW */
    int16_t kid[3];
    int16_t at, length; /* characters of the text */
    bool has_row;       /* a row function lies below */
    bool named;         /* the value of a short name that the text reads */
    struct num k;
};

#define AST_NODES 640
#define MEANINGS 16

struct pk_formula {
    char text[PK_FORMULA_TEXT + 1];
    int mode; /* enum pk_formula_mode */
    bool causal;
    struct ast ast[AST_NODES];
    ref built[AST_NODES];
    int n_ast, root_ast;
    struct pk_formula_param param[PK_FORMULA_PARAMS];
    int n_param;
    ref root;
    ref slope[FN_COUNT][3]; /* slopes as trees of AST are built on demand: -1 not yet */
    struct nf nf;
};

/* build.c: the text of a row of functions.def with `arg` for a, b, c. -1 if the store is full. */
ref formula_text(struct pk_formula *f, const char *text, size_t length, const ref *arg);

/* ---- programs ---- */
/* program.c */
enum pd_err formula_compile(struct nf *f, const ref *result, int n, struct pk_formula_program *ret,
                            struct pd_why *why);
/* print.c */
enum formula_style { STYLE_TEXT, STYLE_LATEX, STYLE_TORCH };
void formula_print(const struct pk_formula *f, ref a, enum formula_style style, struct pd_buf *out);
/* Name of a leaf in Python; `space` is for one that Python reserves. */
const char *formula_torch_name(const struct pk_formula *f, int leaf, char *space, size_t size);

/* plan.c: A as F(s, rows) or G(rows) F(s), the row functions as leaves ROW + k, exponentials shifted by SHIFT. */
struct split {
    ref value, factor;      /* A = factor value */
    ref exponent;           /* u of the shift; -1: no shift */
    ref x[PK_FORMULA_ROWS]; /* argument of row function k */
    enum pk_formula_row row[PK_FORMULA_ROWS];
    int rows;
    bool two_passes, shift_zero;
    double value_power, row_power[PK_FORMULA_ROWS]; /* of the shift, as struct pk_formula_plan */
};
enum pd_err formula_split(struct pk_formula *f, struct split *ret, struct pd_why *why);
/* The same value, without quotients in which an exponential may overflow: exp(s)/(n+exp(s)) is sigmoid(s-log(n)). -1: the
 * store is full. */
ref formula_steady(struct nf *f, ref a);
/* Whether a leaf (of a level that only the row decides, too) lies below a. */
bool nf_reads(const struct nf *f, ref a, int first_leaf, int last_leaf);
