/* kernels/formula/parse.h: the parser, shared by parse.c (text to tree) and build.c (tree to normal form). Private to this folder. */
#pragma once

#include "kernels/formula/internal.h"

enum token {
    T_END,
    T_NUMBER,
    T_NAME,
    T_OPEN,
    T_CLOSE,
    T_COMMA,
    T_SEMI,
    T_ASSIGN,
    T_PLUS,
    T_MINUS,
    T_TIMES,
    T_OVER,
    T_POWER,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_EQ
};

struct parser {
    struct pk_formula *f;
    struct pk_formula_fault *fault;
    const char *text;
    int length, at, depth, row_depth;
    enum token token;
    int start, end; /* of the token */
    struct num number;
    int args; /* of a text of the table: a, b, c are arguments; 0: a text as typed */
    struct {
        int start, length, node;
        bool used;
    } local[16];
    int locals;
    bool failed;
    enum pd_err err;
};

/* parse.c: the first fault is kept, at `length` characters from `at` on. */
void parse_fail(struct parser *p, enum pd_err err, int at, int length, const char *fmt, ...) PD_PRINTF(5, 6);
/* The root of a text of functions.def: one expression, without scalars. */
int parse_table_text(struct parser *p);
/* The text of a FORMULA_MEANING. */
const char *parse_meaning(int fn);

/* build.c: the normal form below `root`; -1 after a fault. arg: a, b, c of a text of functions.def, or NULL. trusted: powers need
 * no proof. */
ref build_tree(struct parser *p, int root, const ref *arg, bool trusted);
