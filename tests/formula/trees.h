/* tests/formula/trees.h: random formulas as trees of this folder's own, which are evaluated in complex numbers (first
 * derivatives by the complex step: Squire and Trapp, SIAM Review 1998) and in Taylor coefficients to second order, piece by
 * piece. They share no code with kernels/formula. */
#pragma once

#include <complex.h>
#undef I
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/formula/formula.h"

#define TREE_KEYS 4 /* of a row that is evaluated */
#define TREE_NODES 64

typedef double complex z;

/* State of the generator, not 0. */
extern uint64_t tree_seed;
uint32_t tree_draw(uint32_t n);
double tree_uniform(double lo, double hi);

enum tree_kind {
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

struct tree_node {
    enum tree_kind kind;
    int kid[3];
    double number;
};
struct tree {
    struct tree_node node[TREE_NODES];
    int n, root;
    bool rows;
};

/* A tree that was drawn, its text and what the parser makes of it; rows: with row functions. NULL if it does not depend on
 * s, or is too long. Any other error fails the test. */
struct pk_formula *tree_formula(struct tree *t, char *text, size_t size, bool rows);
extern const struct pk_formula_param tree_params[2];
/* Values of the leaves but s and row functions; the scalars a, p, g are 0.6, 1.3, 0.7. */
void tree_fill(const struct pk_formula *f, double *at);
/* i, j and ni of tree_fill and of jets. */
extern double tree_i, tree_j, tree_keys;
/* h, H and d. */
extern double tree_head, tree_heads, tree_width;

/* ---- values in complex numbers; a break is decided by the real part ---- */

struct tree_place {
    z s[TREE_KEYS], a, p, g;
    int i, k;
    bool near_break; /* some decision was close */
};

z tree_value(const struct tree *t, int at, struct tree_place *p);

/* ---- to second order, piece by piece: what does not move has no derivative, whatever its factor ---- */

struct tree_jet {
    double v, d1, d2;
    bool moves; /* depends on s here */
};
/* The tree without row functions at s. Sets the flags: a decision was a tie; something on the way is beyond 1e50. */
struct tree_jet tree_jet_at(const struct tree *t, int at, double s);
extern bool tree_on_break, tree_singular;
