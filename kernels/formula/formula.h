/* kernels/formula/formula.h: an attention activation typed as text: parsed, checked, differentiated, compiled.
 *
 *     formula     = { name "=" comparison ";" } comparison [ ";" ]
 *     comparison  = sum [ ( ">" | ">=" | "<" | "<=" | "==" ) sum ]          1 if true, else 0
 *     sum         = product { ( "+" | "-" ) product }
 *     product     = unary { ( "*" | "/" ) unary }
 *     unary       = { "-" | "+" } power
 *     power       = primary [ "^" unary ]                                   right associative; -s^2 is -(s^2)
 *     primary     = number | name | function "(" comparison { "," comparison } ")" | "(" comparison ")"
 *     number      = digits [ "." digits ] [ ( "e" | "E" ) [ "+" | "-" ] digits ]
 *
 * Names: s (the logit), n (the N of the scale), ni (keys that the query's row sees), i, j (positions of query and
 * key, from 0), h, H (head, heads), l, L (layer, layers), d (width of a head), pi; functions (functions.def) and
 * rowsum(x), rowmax(x) over the keys that the row sees, which do not nest. Every other name is a short name
 * (name = ...;), which must be used, or a learned scalar, of which there may be 8.
 *
 * `x ^ k` takes an integer k from -4096 to 4096 with any x; another exponent only where x is proven not negative. A number
 * is exact if 64 bits hold it as a fraction, unless it has a point or an exponent and more than 15 digits: then, or if they
 * do not hold it, it is the nearest double.
 *
 * The parsed formula is kept in a normal form: sums of products with exact rational coefficients and powers, like
 * terms collected, factors cancelled. Two spellings with one normal form are one function (pk_formula_canonical).
 *
 * libc only. No function here keeps state; an object belongs to one thread at a time. */
#pragma once

#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

#define PK_FORMULA_TEXT 4096 /* bytes of a text */
#define PK_FORMULA_PARAMS 8  /* learned scalars */
#define PK_FORMULA_ROWS 4    /* row functions of one formula */
#define PK_FORMULA_CODE 128  /* instructions of a program */
#define PK_FORMULA_NAME 32   /* bytes of a scalar's name, with the NUL */
/* Bytes of a normal form as text, for those who print one: parts that short names share are written out each time. */
#define PK_FORMULA_CANONICAL ((size_t)64 * 1024)

/* Variables of a formula. Those from SHIFT on are read only by programs and cannot be named in the text. */
enum pk_formula_leaf {
    PK_LEAF_S,
    PK_LEAF_N,
    PK_LEAF_NI,
    PK_LEAF_I,
    PK_LEAF_J,
    PK_LEAF_HEAD,
    PK_LEAF_HEADS,
    PK_LEAF_LAYER,
    PK_LEAF_LAYERS,
    PK_LEAF_WIDTH,
    PK_LEAF_PI,
    PK_LEAF_PARAM,                                     /* and the seven after it */
    PK_LEAF_SHIFT = PK_LEAF_PARAM + PK_FORMULA_PARAMS, /* m: subtracted from every exponent of the row */
    PK_LEAF_ROW,                                       /* value of row function 0, and the three after it */
    PK_LEAF_ARG = PK_LEAF_ROW + PK_FORMULA_ROWS, /* the first key that attains row function k, a rowmax */
    PK_LEAF_DA = PK_LEAF_ARG + PK_FORMULA_ROWS,  /* gradient of the entry, times G where the plan has a G */
    PK_LEAF_D,                                   /* sum over the row of (gradient of A) F */
    PK_LEAF_DROW,                                /* gradient of row function k */
    PK_LEAVES = PK_LEAF_DROW + PK_FORMULA_ROWS
};
enum pk_formula_row { PK_ROW_SUM, PK_ROW_MAX };

/* Range of a learned scalar: any; above 0 (log, softplus); between 0 and 1 (sigmoid). */
enum pk_formula_range { PK_RANGE_ANY, PK_RANGE_POSITIVE, PK_RANGE_UNIT };

struct pk_formula_param {
    char name[PK_FORMULA_NAME];
    enum pk_formula_range range;
    int at; /* character of its first use in the text; -1: not used */
};

/* ACTIVATION: all variables. START: the initial value of a scalar, which may read only n, h, H, l, L, d and pi. */
enum pk_formula_mode { PK_FORMULA_ACTIVATION, PK_FORMULA_START };

/* An error or a warning about some characters of the text. */
struct pk_formula_fault {
    int at, length; /* bytes, from 0 */
    char text[320]; /* a sentence, with a suggestion where there is one */
};

struct pk_formula;

/* Parses `text`. params (n_params of them, `at` is ignored) gives the ranges of scalars; other scalars have range ANY.
 * `causal`: j <= i may be used in proofs. On PD_OK the caller owns *ret. PD_ERR_INVALID: the text is wrong;
 * PD_ERR_LIMIT: it is too long or too deep; *fault has the place and the reason. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err pk_formula_parse(const char *text, size_t length, enum pk_formula_mode mode,
                                          bool causal, const struct pk_formula_param *params, int n_params,
                                          struct pk_formula **ret, struct pk_formula_fault *fault);
struct pk_formula *pk_formula_free(struct pk_formula *f);

/* Appends the text and a line that underlines the fault, for a terminal. */
void pk_formula_underline(const char *text, const struct pk_formula_fault *fault, struct pd_buf *out);

/* The learned scalars, sorted by name: *ret[k] is leaf PK_LEAF_PARAM + k. Returns their number. Borrowed from f. */
int pk_formula_params(const struct pk_formula *f, const struct pk_formula_param **ret);
bool pk_formula_reads(const struct pk_formula *f, enum pk_formula_leaf leaf);
/* How many different row functions it has. */
int pk_formula_row_functions(const struct pk_formula *f);

/* ---- texts ---- */

/* Appends the normal form as text; parsing it gives the same normal form. Formulas with equal canonical texts are the
 * same function. */
void pk_formula_canonical(const struct pk_formula *f, struct pd_buf *out);
void pk_formula_latex(const struct pk_formula *f, struct pd_buf *out);
/* A Python function attention_weights(s, seen, n, ...) that computes A with PyTorch operations. */
void pk_formula_torch(const struct pk_formula *f, struct pd_buf *out);
/* The same for PyTorch's FlexAttention (flex.c): Python functions score_mod_of(n, ...), which gives the score_mod, and
 * attention(query, key, value, n, ...), which undoes FlexAttention's softmax. FlexAttention computes softmaxes alone, so
 * that A must be either softmax of something times a function of its row's sum, or a function of the entry alone that is
 * proven to lie above a constant. Anything else: PD_ERR_UNSUPPORTED, and `why` has the reason. */
PD_NODISCARD enum pd_err pk_formula_flex(struct pk_formula *f, struct pd_buf *out, struct pd_why *why);

/* ---- values, in doubles (for checks, tests and START) ---- */

/* leaf: values by enum pk_formula_leaf; PI is set here. NaN if the formula has row functions. */
double pk_formula_value(const struct pk_formula *f, const double *leaf);
/* A of one row of logits s[0..n-1]; key k is visible if seen[k] != 0 (NULL: all). leaf as above; S, J and NI are set
 * here. ret_slope (may be NULL): dA_k / ds_k with the row functions held fixed. */
PD_NODISCARD enum pd_err pk_formula_row_value(struct pk_formula *f, const double *leaf, const double *s,
                                              const unsigned char *seen, int64_t n, double *ret_a,
                                              double *ret_slope);

/* Names of enum pk_formula_leaf as typed ("ni"); NULL for those that cannot be. */
const char *pk_formula_leaf_name(enum pk_formula_leaf leaf);

/* ---- derivatives as formulas ---- */

/* d f / d leaf (row functions held fixed) as text in the grammar; order 1 or 2. PD_ERR_LIMIT: it is too long. */
PD_NODISCARD enum pd_err pk_formula_slope_text(struct pk_formula *f, enum pk_formula_leaf leaf, int order,
                                               struct pd_buf *out);

/* ---- programs ---- */

enum pk_formula_op {
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    PK_FO_##id,
#define FORMULA_MEANING(name, arity, text)
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
    PK_FO_ADD,
    PK_FO_SUB,
    PK_FO_MUL,
    PK_FO_DIV,
    PK_FO_NEG,
    PK_FO_RECIP,
    PK_FO_SQRT,
    PK_FO_RSQRT,
    PK_FO_POWI,   /* a ^ arg, arg >= 2 */
    PK_FO_MULADD, /* a b + c */
    PK_FO_COUNT
};

/* Operands of instructions: 0 .. : an earlier instruction; PK_FORMULA_LEAF(l): a leaf; PK_FORMULA_CONSTANT(k). */
#define PK_FORMULA_LEAF(l) (-1 - (int)(l))
#define PK_FORMULA_CONSTANT(k) (-64 - (int)(k))
#define PK_FORMULA_CONSTANTS 48
#define PK_FORMULA_RESULTS 16

/* A program with several results, common subexpressions shared. Instructions 0 .. per_row-1 depend on the row only (i,
 * ni, row functions, scalars); the others on the entry. Every result is an operand. */
struct pk_formula_program {
    int32_t count, per_row, constants, results;
    int32_t slots; /* buffers that the entry instructions need: code[].slot is below */
    struct {
        uint8_t op, arg, slot;
        int16_t in[3];
    } code[PK_FORMULA_CODE];
    double constant[PK_FORMULA_CONSTANTS];
    int16_t result[PK_FORMULA_RESULTS];
};

int pk_formula_arity(enum pk_formula_op op);
/* One entry in doubles, for tests and checks. */
void pk_formula_run(const struct pk_formula_program *p, const double *leaf, double *ret_results);
/* The program as statements of CUDA C (floats): "const float t0 = ...;". A leaf is a variable with the name as typed, or
 * x and its number where it has none. */
void pk_formula_cuda(const struct pk_formula_program *p, struct pd_buf *out);
/* The name of a result or operand in those statements. */
void pk_formula_cuda_operand(const struct pk_formula_program *p, int operand, struct pd_buf *out);

/* How kernels compute A.
 *
 *   ONE PASS    A_ij = G_i F_ij: F by `value`, G by `turn`, from the row functions of the whole row
 *   TWO PASSES  A_ij = F_ij, and F reads the row functions, which need a pass over the keys first
 *
 * If `shift`, m_i = max over visible keys of `exponent` (and of 0 if shift_zero) is SHIFT; F and the row functions use
 * exponentials with a multiple of m subtracted from the exponent. As m grows, what was summed is multiplied by
 * exp(power (m_old - m_new)): F by value_power (one pass), row function k by row_power[k].
 *
 * Backward: dr_k = gradient of row function k. One pass: `turn_back` gives dr_k and the scalars' part through G
 * from D; two passes: `before` gives each entry's part of dr_k. `back` gives F, dS and the scalars' part of an entry.
 * If a row function is 0 and A is not finite, the row of A and its gradients are 0. */
struct pk_formula_plan {
    int32_t params, rows;
    enum pk_formula_row row[PK_FORMULA_ROWS];
    bool two_passes, shift, shift_zero;
    double value_power, row_power[PK_FORMULA_ROWS];
    bool needs_d;                        /* turn_back reads D */
    bool reads_j, reads_row_position;    /* J; I or NI */
    struct pk_formula_program exponent;  /* u */
    struct pk_formula_program value;     /* F, then x_k of the row functions (one pass) */
    struct pk_formula_program sums;      /* x_k (two passes) */
    struct pk_formula_program turn;      /* G; per row */
    struct pk_formula_program before;    /* one pass: DA F; two passes: DA dA/dR_k */
    struct pk_formula_program turn_back; /* dr_k, then the scalars' part; per row */
    struct pk_formula_program back;      /* F, dS, then the scalars' part */
    struct pk_formula_program
        stats; /* A, dA/ds with row functions held fixed; for each row function dA/dR_k, dx_k/ds */
    uint8_t turn_scalars, back_scalars; /* bits: which scalars have a part */
};

/* PD_ERR_LIMIT: a program has more than PK_FORMULA_CODE instructions, or there are too many row functions. */
PD_NODISCARD enum pd_err pk_formula_plan(struct pk_formula *f, struct pk_formula_plan *ret,
                                         struct pd_why *why);

/* The name of a built-in activation that computes the same, or NULL: "softmax", "taylor", "periodic", "sigmoid_bias"
 * (sigmoid(s - log n)), or, with a factor c n^-alpha, "poly" of *ret_degree, "sigmoid" and "relu". *ret_constant and
 * *ret_alpha: c and alpha, without a factor 1 and 0; *ret_degree is 0 of all but poly. Learned scalars are not
 * recognised. */
const char *pk_formula_builtin(struct pk_formula *f, int *ret_degree, double *ret_constant,
                               double *ret_alpha);

/* ---- before the run (analyse.c) ---- */

enum pk_formula_parity { PK_PARITY_NONE, PK_PARITY_EVEN, PK_PARITY_ODD };

struct pk_formula_report {
    double at_zero;                /* A of a row whose logits are all 0 */
    double lo, hi;                 /* proven bounds of A; infinite: unbounded or unproven */
    enum pk_formula_parity parity; /* in s; NONE if there are row functions */
    bool may_fail;                 /* some finite logit gives NaN or an infinity */
    double
        growth; /* log2 of A(2 s) / A(s) for large s: the degree of growth; INFINITY: faster than any power;
                         NaN with row functions */
    int warnings;
    struct pk_formula_fault warning[8];
    struct pk_formula_fault note; /* empty text: no note */
};
/* leaf: values as for pk_formula_value. */
void pk_formula_report(struct pk_formula *f, const double *leaf, struct pk_formula_report *ret);
