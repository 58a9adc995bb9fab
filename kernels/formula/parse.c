/* Text to tree: tokens, the grammar (formula.h), and what is wrong with the text, by its characters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/nearest.h"
#include "kernels/formula/parse.h"

#define DEPTH 100 /* nesting of parentheses, signs and powers */

#define SYMMETRY(x) SYMMETRY_##x
#define FORMULA_MEANING(name, arity, text)
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    static double value_##id(double a, double b, double c)                                                   \
    {                                                                                                        \
        (void)b;                                                                                             \
        (void)c;                                                                                             \
        return (double)(value);                                                                              \
    }
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION

const struct fn_row fn_rows[FN_COUNT] = {
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    {name, slope, cuda, latex, torch, arity, SYMMETRY(symmetry), value_##id, interval},
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
};
#undef FORMULA_MEANING

static const struct {
    const char *name, *text;
    int arity;
} meanings[] = {
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)
#define FORMULA_MEANING(name, arity, text) {name, text, arity},
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
};
#define N_MEANINGS ((int)(sizeof meanings / sizeof *meanings))

static const char *const leaf_names[] = {
    [PK_LEAF_S] = "s",      [PK_LEAF_N] = "n",     [PK_LEAF_NI] = "ni",   [PK_LEAF_I] = "i",
    [PK_LEAF_J] = "j",      [PK_LEAF_HEAD] = "h",  [PK_LEAF_HEADS] = "H", [PK_LEAF_LAYER] = "l",
    [PK_LEAF_LAYERS] = "L", [PK_LEAF_WIDTH] = "d", [PK_LEAF_PI] = "pi",
};
#define N_LEAF_NAMES ((int)(sizeof leaf_names / sizeof *leaf_names))

/* Names that cannot be scalars, with an explanation: their meaning elsewhere, and what to write instead. */
static const struct {
    const char *name, *why;
} refused[] = {
    {"q", "a formula is a function of the logit s = q.k/sqrt(d) and its row: q and k are not visible to it. "
          "For feature "
          "maps of q and k (SimA, linear attention) take the activation 'sima' or 'poly' of degree 1 or 2"},
    {"k", "a formula is a function of the logit s and its row: keys are not visible to it. For feature maps "
          "of q and k "
          "take the activation 'sima' or 'poly' of degree 1 or 2"},
    {"v", "a formula gives the weight of a value, and cannot see the value"},
    {"x", "the logit is called s"},
    {"z", "the logit is called s"},
    {"S", "the logit of one entry is called s"},
    {"N", "the N of the scale is called n; the keys that a row sees are ni"},
    {"e", "write exp(1) for Euler's number"},
    {"inf", "there is no infinity in a formula; masks are applied for you"},
    {"nan", "there is no NaN in a formula"},
    {"gate", "per-token gates (FoX) read the token, which a formula cannot see; a decay by distance is "
             "softmax(s - a*(i-j)) with a learned a"},
    {"root", "an implicit threshold (sparsemax, entmax) is no closed formula of the logit; relu(s)/n or "
             "relu(s)^2/(1e-8+rowsum(relu(s)^2)) are sparse too"},
    {"entmax", "entmax has an implicit threshold, which is no closed formula of the logit; "
               "relu(s)^2/(1e-8+rowsum(relu(s)^2)) is sparse too"},
    {"sparsemax", "sparsemax has an implicit threshold, which is no closed formula of the logit; "
                  "relu(s)/(1e-8+rowsum(relu(s))) is sparse too"},
    {"cumsum", "sums along a row up to a key (CoPE) depend on the other keys' order; rowsum(x) is the sum of "
               "the whole row"},
    {"cumprod", "products along a row (stick-breaking) depend on the other keys' order; there are rowsum(x) "
                "and rowmax(x)"},
    {"s1",
     "there is one matrix of logits, s: differential attention takes the softmax of two, and no network here "
     "has a second; relu(softmax(s) - a/ni) takes small weights away from one"},
    {"s2",
     "there is one matrix of logits, s: differential attention takes the softmax of two, and no network here "
     "has a second; relu(softmax(s) - a/ni) takes small weights away from one"},
    {"sima", "SimA is a feature map of q and k, no function of the logit: take the activation 'sima'"},
    {"softmax1", "write exp(s)/(1+rowsum(exp(s)))"},
    {"rowmean", "write rowsum(x)/ni"},
    {"mean", "write rowsum(x)/ni"},
    {"sum", "the sum over the keys of a row is rowsum(x)"},
    {"ln", "the natural logarithm is log(x)"},
    {"pow", "write a^b"},
    {"tan", "tan has poles; there are sin, cos and tanh"},
    {"where", "where needs a condition and two values: where(s > 0, s, 0)"},
};

void parse_fail(struct parser *p, enum pd_err err, int at, int length, const char *fmt, ...)
{
    va_list ap;

    if (p->failed)
        return;
    p->failed = true;
    p->err = err;
    p->fault->at = at;
    p->fault->length = length > 0 ? length : 1;
    va_start(ap, fmt);
    vsnprintf(p->fault->text, sizeof p->fault->text, fmt, ap);
    va_end(ap);
}

static bool alpha(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool digit(int c)
{
    return c >= '0' && c <= '9';
}

static int peek(const struct parser *p, int ahead)
{
    return p->at + ahead < p->length ? (unsigned char)p->text[p->at + ahead] : 0;
}

/* A decimal number, exactly where 64 bits hold it. */
static void read_number(struct parser *p)
{
    bool point = false, any = false;
    char copy[64];
    int n;

    for (; digit(peek(p, 0)) || (peek(p, 0) == '.' && !point); p->at++)
        if (peek(p, 0) == '.')
            point = true;
        else
            any = true;
    if ((peek(p, 0) == 'e' || peek(p, 0) == 'E') &&
        (digit(peek(p, 1)) || ((peek(p, 1) == '-' || peek(p, 1) == '+') && digit(peek(p, 2)))))
        for (p->at += 2; digit(peek(p, 0));)
            p->at++;
    if (!any) {
        parse_fail(p, PD_ERR_INVALID, p->start, 1, "a number needs a digit");
        return;
    }
    n = p->at - p->start;
    if (!num_read(p->text + p->start, n, &p->number)) {
        if (n >= (int)sizeof copy) {
            parse_fail(p, PD_ERR_LIMIT, p->start, n, "a number of %d characters; at most %d", n,
                       (int)sizeof copy - 1);
            return;
        }
        memcpy(copy, p->text + p->start, (size_t)n);
        copy[n] = 0;
        p->number = num_inexact(strtod(copy, NULL));
    }
    if (!isfinite(p->number.v))
        parse_fail(p, PD_ERR_INVALID, p->start, n, "the number is too large for a double");
}

static void next(struct parser *p)
{
    int c;

    while (p->at < p->length &&
           (peek(p, 0) == ' ' || peek(p, 0) == '\t' || peek(p, 0) == '\n' || peek(p, 0) == '\r'))
        p->at++;
    p->start = p->at;
    c = peek(p, 0);
    if (p->at >= p->length) {
        p->token = T_END;
    } else if (digit(c) || c == '.') {
        p->token = T_NUMBER;
        read_number(p);
    } else if (alpha(c) && c != '_') {
        p->token = T_NAME;
        while (alpha(peek(p, 0)) || digit(peek(p, 0)))
            p->at++;
    } else {
        static const struct {
            char text[3];
            enum token token;
        } marks[] = {{">=", T_GE},   {"<=", T_LE},  {"==", T_EQ},    {"(", T_OPEN}, {")", T_CLOSE},
                     {",", T_COMMA}, {";", T_SEMI}, {"=", T_ASSIGN}, {"+", T_PLUS}, {"-", T_MINUS},
                     {"*", T_TIMES}, {"/", T_OVER}, {"^", T_POWER},  {">", T_GT},   {"<", T_LT}};
        size_t k = 0;

        if (c == '*' && peek(p, 1) == '*') {
            parse_fail(p, PD_ERR_INVALID, p->at, 2, "a power is written with ^: s^3");
            return;
        }
        while (k < sizeof marks / sizeof *marks &&
               strncmp(marks[k].text, p->text + p->at, strlen(marks[k].text)))
            k++;
        if (k == sizeof marks / sizeof *marks) {
            if (c == '|')
                parse_fail(p, PD_ERR_INVALID, p->at, 1, "an absolute value is written abs(s)");
            else if (c == '[' || c == '{')
                parse_fail(p, PD_ERR_INVALID, p->at, 1, "use ( and ) as brackets");
            else if (c >= 0x80)
                parse_fail(p, PD_ERR_INVALID, p->at, 1,
                           "a formula is written in ASCII: s, n, *, /, ^, sqrt(x), pi");
            else
                parse_fail(p, PD_ERR_INVALID, p->at, 1, "'%c' has no meaning in a formula",
                           c >= 32 ? c : '?');
            return;
        }
        p->token = marks[k].token;
        p->at += (int)strlen(marks[k].text);
    }
    p->end = p->at;
}

/* ---- tree ---- */

static bool holds_row(int meaning)
{
    return strstr(meanings[meaning].text, "rowsum") != NULL;
}

static int add(struct parser *p, enum ast_op op, int fn, int a, int b, int c, int at, int length)
{
    struct pk_formula *f = p->f;
    struct ast *x = &f->ast[f->n_ast];

    if (p->failed)
        return 0;
    if (f->n_ast == AST_NODES) {
        parse_fail(p, PD_ERR_LIMIT, at, length, "the formula has more than %d numbers, names and operators",
                   AST_NODES);
        return 0;
    }
    *x = (struct ast){.op = (uint8_t)op,
                      .fn = (uint8_t)fn,
                      .kid = {(int16_t)a, (int16_t)b, (int16_t)c},
                      .at = (int16_t)at,
                      .length = (int16_t)length,
                      .k = {0, 0, 1},
                      .has_row = op == AST_ROW || (op == AST_MEANING && holds_row(fn))};
    for (int k = 0; k < 3; k++)
        x->has_row = x->has_row || (x->kid[k] >= 0 && f->ast[x->kid[k]].has_row);
    f->built[f->n_ast] = -1;
    return f->n_ast++;
}

static int comparison(struct parser *p);
static int unary(struct parser *p);

static bool same(const struct parser *p, int start, int length, const char *name)
{
    return (int)strlen(name) == length && !strncmp(p->text + start, name, (size_t)length);
}

static int find_function(const struct parser *p, int start, int length)
{
    for (int k = 0; k < FN_COUNT; k++)
        if (fn_rows[k].name && same(p, start, length, fn_rows[k].name))
            return k;
    return -1;
}

static int find_meaning(const struct parser *p, int start, int length)
{
    for (int k = 0; k < N_MEANINGS; k++)
        if (same(p, start, length, meanings[k].name))
            return k;
    return -1;
}

static int find_leaf(const struct parser *p, int start, int length)
{
    for (int k = 0; k < N_LEAF_NAMES; k++)
        if (same(p, start, length, leaf_names[k]))
            return k;
    return -1;
}

static const char *why_refused(const struct parser *p, int start, int length)
{
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
        if (same(p, start, length, refused[k].name))
            return refused[k].why;
    return NULL;
}

static void suggest(const struct parser *p, int start, int length, char *out, size_t size)
{
    const char *names[FN_COUNT + MEANINGS + 2];
    char word[PK_FORMULA_NAME];
    size_t n = 0;

    out[0] = 0;
    if (length >= (int)sizeof word)
        return;
    memcpy(word, p->text + start, (size_t)length);
    word[length] = 0;
    for (int k = 0; k < FN_COUNT; k++)
        if (fn_rows[k].name)
            names[n++] = fn_rows[k].name;
    for (int k = 0; k < N_MEANINGS; k++)
        names[n++] = meanings[k].name;
    names[n++] = "rowsum";
    names[n++] = "rowmax";
    pd_did_you_mean(out, size, word, names, n);
}

static void expect(struct parser *p, enum token token, const char *what)
{
    if (p->failed)
        return;
    if (p->token != token) {
        if (p->token == T_END)
            parse_fail(p, PD_ERR_INVALID, p->start, 1, "%s is missing at the end", what);
        else
            parse_fail(p, PD_ERR_INVALID, p->start, p->end - p->start, "%s belongs here, not '%.*s'", what,
                       p->end - p->start > 20 ? 20 : p->end - p->start, p->text + p->start);
        return;
    }
    next(p);
}

/* A function's name was read, and "(" is the token. */
static int call(struct parser *p, int start, int length)
{
    int fn = find_function(p, start, length), meaning = fn < 0 ? find_meaning(p, start, length) : -1;
    bool sum = same(p, start, length, "rowsum"), row = sum || same(p, start, length, "rowmax");
    bool hidden = meaning >= 0 && holds_row(meaning);
    int arg[3] = {0}, n = 0,
        want = row            ? 1
               : fn >= 0      ? fn_rows[fn].arity
               : meaning >= 0 ? meanings[meaning].arity
                              : 0;
    char hint[80];

    if (fn < 0 && meaning < 0 && !row) {
        const char *why = why_refused(p, start, length);

        suggest(p, start, length, hint, sizeof hint);
        if (why)
            parse_fail(p, PD_ERR_INVALID, start, length, "%s", why);
        else if (find_leaf(p, start, length) >= 0)
            parse_fail(p, PD_ERR_INVALID, start, length,
                       "'%.*s' is a variable; a product is written with *: %.*s*(...)", length,
                       p->text + start, length, p->text + start);
        else
            parse_fail(p, PD_ERR_INVALID, start, length, "there is no function '%.*s'%s",
                       length > 40 ? 40 : length, p->text + start, hint);
        return 0;
    }
    if (row || hidden) {
        if (p->f->mode == PK_FORMULA_START)
            parse_fail(p, PD_ERR_INVALID, start, length,
                       "an initial value has no row: rowsum, rowmax and softmax are not available");
        if (p->row_depth)
            parse_fail(p, PD_ERR_INVALID, start, length,
                       "row functions do not nest: rowsum, rowmax and softmax may contain only s, positions "
                       "and scalars");
        p->row_depth++;
    }
    next(p);
    if (p->token != T_CLOSE)
        for (;;) {
            int a = comparison(p);

            if (p->failed)
                return 0;
            if (n < 3)
                arg[n] = a;
            n++;
            if (p->token != T_COMMA)
                break;
            next(p);
        }
    if (p->token == T_CLOSE && n != want)
        parse_fail(p, PD_ERR_INVALID, start, p->end - start, "%.*s takes %d argument%s, not %d", length,
                   p->text + start, want, want == 1 ? "" : "s", n);
    expect(p, T_CLOSE, "')'");
    if (row || hidden)
        p->row_depth--;
    if (row)
        return add(p, AST_ROW, sum ? PK_ROW_SUM : PK_ROW_MAX, arg[0], -1, -1, start, length);
    return fn >= 0 ? add(p, AST_FN, fn, arg[0], n > 1 ? arg[1] : -1, n > 2 ? arg[2] : -1, start, length)
                   : add(p, AST_MEANING, meaning, arg[0], n > 1 ? arg[1] : -1, n > 2 ? arg[2] : -1, start,
                         length);
}

static int name(struct parser *p)
{
    struct pk_formula *f = p->f;
    int start = p->start, length = p->end - p->start, leaf, k;
    const char *why;

    next(p);
    if (p->failed)
        return 0;
    if (p->args && length == 1 && p->text[start] >= 'a' && p->text[start] < 'a' + p->args &&
        p->token != T_OPEN)
        return add(p, AST_ARG, p->text[start] - 'a', -1, -1, -1, start, length);
    for (k = 0; k < p->locals; k++)
        if (p->local[k].length == length &&
            !strncmp(p->text + p->local[k].start, p->text + start, (size_t)length)) {
            if (p->row_depth && f->ast[p->local[k].node].has_row)
                parse_fail(p, PD_ERR_INVALID, start, length,
                           "row functions do not nest: '%.*s' contains one already", length, p->text + start);
            f->ast[p->local[k].node].named = true;
            p->local[k].used = true;
            return p->local[k].node;
        }
    if (p->token == T_OPEN)
        return call(p, start, length);
    leaf = find_leaf(p, start, length);
    if (leaf >= 0) {
        if (f->mode == PK_FORMULA_START &&
            (leaf == PK_LEAF_S || leaf == PK_LEAF_NI || leaf == PK_LEAF_I || leaf == PK_LEAF_J))
            parse_fail(p, PD_ERR_INVALID, start, length,
                       "an initial value cannot read '%s': it is a formula of n, h, H, l, L, d and pi",
                       leaf_names[leaf]);
        return add(p, AST_LEAF, leaf, -1, -1, -1, start, length);
    }
    if (find_function(p, start, length) >= 0 || find_meaning(p, start, length) >= 0 ||
        same(p, start, length, "rowsum") || same(p, start, length, "rowmax")) {
        parse_fail(p, PD_ERR_INVALID, start, length,
                   "the function %.*s needs its argument in brackets: %.*s(s)", length, p->text + start,
                   length, p->text + start);
        return 0;
    }
    why = why_refused(p, start, length);
    if (why) {
        parse_fail(p, PD_ERR_INVALID, start, length, "'%.*s' cannot be the name of a learned scalar: %s",
                   length, p->text + start, why);
        return 0;
    }
    if (f->mode == PK_FORMULA_START) {
        parse_fail(p, PD_ERR_INVALID, start, length,
                   "an initial value cannot read '%.*s': it is a formula of n, h, H, l, L, d and pi",
                   length > 40 ? 40 : length, p->text + start);
        return 0;
    }
    if (length >= PK_FORMULA_NAME) {
        parse_fail(p, PD_ERR_LIMIT, start, length, "a name has at most %d characters", PK_FORMULA_NAME - 1);
        return 0;
    }
    for (k = 0; k < f->n_param && !same(p, start, length, f->param[k].name); k++)
        ;
    if (k == f->n_param) {
        if (k == PK_FORMULA_PARAMS) {
            parse_fail(p, PD_ERR_LIMIT, start, length,
                       "'%.*s' would be learned scalar number 9; there may be %d", length, p->text + start,
                       PK_FORMULA_PARAMS);
            return 0;
        }
        memcpy(f->param[k].name, p->text + start, (size_t)length);
        f->param[k].name[length] = 0;
        f->param[k].at = start;
        f->n_param++;
    }
    return add(p, AST_LEAF, PK_LEAF_PARAM + k, -1, -1, -1, start, length);
}

static int primary(struct parser *p)
{
    int a;

    if (p->failed)
        return 0;
    switch (p->token) {
    case T_NUMBER:
        a = add(p, AST_NUM, 0, -1, -1, -1, p->start, p->end - p->start);
        if (!p->failed)
            p->f->ast[a].k = p->number;
        next(p);
        if (!p->failed && (p->token == T_NAME || p->token == T_OPEN || p->token == T_NUMBER))
            parse_fail(p, PD_ERR_INVALID, p->start, p->end - p->start, "a product is written with *: 2*s");
        return a;
    case T_NAME:
        a = name(p);
        if (!p->failed && (p->token == T_NAME || p->token == T_NUMBER || p->token == T_OPEN))
            parse_fail(p, PD_ERR_INVALID, p->start, p->end - p->start, "an operator is missing before '%.*s'",
                       p->end - p->start > 20 ? 20 : p->end - p->start, p->text + p->start);
        return a;
    case T_OPEN:
        next(p);
        a = comparison(p);
        expect(p, T_CLOSE, "')'");
        return a;
    case T_END:
        parse_fail(p, PD_ERR_INVALID, p->start, 1,
                   p->start ? "a value is missing at the end" : "the formula is empty");
        return 0;
    default:
        parse_fail(p, PD_ERR_INVALID, p->start, p->end - p->start, "a value belongs here, not '%.*s'",
                   p->end - p->start, p->text + p->start);
        return 0;
    }
}

static int unary(struct parser *p)
{
    int a, at = p->start;

    if (p->failed)
        return 0;
    if (++p->depth > DEPTH) {
        parse_fail(p, PD_ERR_LIMIT, p->start, 1, "the formula nests more than %d deep", DEPTH);
        return 0;
    }
    if (p->token == T_MINUS || p->token == T_PLUS) {
        bool minus = p->token == T_MINUS;

        next(p);
        a = unary(p);
        if (minus)
            a = add(p, AST_NEG, 0, a, -1, -1, at, 1);
    } else {
        a = primary(p);
        if (!p->failed && p->token == T_POWER) {
            int b, start = p->start;

            next(p);
            b = unary(p);
            a = add(p, AST_POWER, 0, a, b, -1, start, 1);
        }
    }
    p->depth--;
    return a;
}

static int chain(struct parser *p, bool products)
{
    int a = products ? unary(p) : chain(p, true);

    while (!p->failed && (products ? p->token == T_TIMES || p->token == T_OVER
                                   : p->token == T_PLUS || p->token == T_MINUS)) {
        enum ast_op op = p->token == T_TIMES  ? AST_MUL
                         : p->token == T_OVER ? AST_DIV
                         : p->token == T_PLUS ? AST_ADD
                                              : AST_SUB;
        int at = p->start;

        next(p);
        {
            int b = products ? unary(p) : chain(p, true);

            a = add(p, op, 0, a, b, -1, at, 1);
        }
    }
    return a;
}

static int comparison(struct parser *p)
{
    int a, at, length;
    enum ast_op op;

    if (p->failed)
        return 0;
    if (++p->depth > DEPTH) {
        parse_fail(p, PD_ERR_LIMIT, p->start, 1, "the formula nests more than %d deep", DEPTH);
        return 0;
    }
    a = chain(p, false);
    if (!p->failed && p->token >= T_GT && p->token <= T_EQ) {
        int b;

        op = p->token == T_GT   ? AST_GT
             : p->token == T_GE ? AST_GE
             : p->token == T_LT ? AST_LT
             : p->token == T_LE ? AST_LE
                                : AST_EQ;
        at = p->start;
        length = p->end - p->start;
        next(p);
        b = chain(p, false);
        a = add(p, op, 0, a, b, -1, at, length);
        if (!p->failed && p->token >= T_GT && p->token <= T_EQ)
            parse_fail(p, PD_ERR_INVALID, p->start, p->end - p->start,
                       "one comparison at a time; use brackets");
    } else if (!p->failed && p->token == T_ASSIGN) {
        parse_fail(p, PD_ERR_INVALID, p->start, 1,
                   "'=' names something at the start of a statement (t = s^2; ...); equality is ==");
    }
    p->depth--;
    return a;
}

static int statements(struct parser *p)
{
    for (;;) {
        int start = p->start, end = p->end, at = p->at;
        enum token token = p->token;

        if (token == T_NAME) {
            next(p);
            if (!p->failed && p->token == T_ASSIGN) {
                int node, length = end - start;
                bool known = find_leaf(p, start, length) >= 0 || find_function(p, start, length) >= 0 ||
                             find_meaning(p, start, length) >= 0 || same(p, start, length, "rowsum") ||
                             same(p, start, length, "rowmax");

                for (int k = 0; k < p->locals; k++)
                    known = known || (p->local[k].length == length &&
                                      !strncmp(p->text + p->local[k].start, p->text + start, (size_t)length));
                if (known)
                    parse_fail(p, PD_ERR_INVALID, start, length, "'%.*s' has a meaning already", length,
                               p->text + start);
                else if (p->locals == (int)(sizeof p->local / sizeof *p->local))
                    parse_fail(p, PD_ERR_LIMIT, start, length, "more than %d short names", p->locals);
                next(p);
                node = comparison(p);
                if (!p->failed && p->token == T_SEMI)
                    next(p);
                else if (!p->failed && p->token != T_END)
                    expect(p, T_SEMI, "';'");
                if (!p->failed && p->token == T_END)
                    parse_fail(p, PD_ERR_INVALID, p->start, 1, "after '%.*s = ...;' comes the formula itself",
                               length, p->text + start);
                if (p->failed)
                    return 0;
                p->local[p->locals].start = start;
                p->local[p->locals].length = length;
                p->local[p->locals++].node = node;
                continue;
            }
            if (p->failed)
                return 0;
            p->at = at;
            p->start = start;
            p->end = end;
            p->token = token;
        }
        return comparison(p);
    }
}

int parse_table_text(struct parser *p)
{
    next(p);
    return comparison(p);
}

const char *parse_meaning(int fn)
{
    return meanings[fn].text;
}

/* Scalars by name: the normal form does not depend on which of them the text names first. */
static void order_params(struct pk_formula *f)
{
    int place[PK_FORMULA_PARAMS];
    struct pk_formula_param kept[PK_FORMULA_PARAMS];

    memcpy(kept, f->param, sizeof kept);
    for (int k = 0; k < f->n_param; k++) {
        place[k] = 0;
        for (int i = 0; i < f->n_param; i++)
            place[k] += strcmp(kept[i].name, kept[k].name) < 0;
        f->param[place[k]] = kept[k];
    }
    for (int a = 0; a < f->n_ast; a++)
        if (f->ast[a].op == AST_LEAF && f->ast[a].fn >= PK_LEAF_PARAM)
            f->ast[a].fn = (uint8_t)(PK_LEAF_PARAM + place[f->ast[a].fn - PK_LEAF_PARAM]);
}

/* ---- checks of the whole formula ---- */

/* A name that is never read is a slip; its value would not be checked, and its scalars would be learned from nothing. */
static void check_names(struct parser *p)
{
    for (int k = 0; k < p->locals; k++)
        if (!p->local[k].used)
            parse_fail(p, PD_ERR_INVALID, p->local[k].start, p->local[k].length,
                       "'%.*s' is defined and never used", p->local[k].length, p->text + p->local[k].start);
}

/* Finds divisions by 0 also in factors that cancel. */
static void check_divisions(struct parser *p)
{
    struct pk_formula *f = p->f;

    for (int a = 0; a < f->n_ast && !p->failed; a++) {
        const struct ast *x = &f->ast[a];

        if (x->op == AST_DIV && f->built[x->kid[1]] >= 0 && nf_is_num(&f->nf, f->built[x->kid[1]], 0))
            parse_fail(p, PD_ERR_INVALID, x->at, 1, "this divides by 0");
    }
}

/* Whether some node below a is the same for every argument and then no finite number: exp(1000), pi^4000. `same`: nodes
 * that read nothing; `seen`: nodes that are finite. */
static bool infinite_below(const struct nf *f, ref a, const unsigned char *same, unsigned char *seen)
{
    static const double none[PK_LEAVES];
    const struct nf_node *x = &f->node[a];

    if (seen[a])
        return false;
    if (same[a] && !isfinite(nf_value(f, a, none)))
        return true;
    for (int i = 0; i < x->n; i++) {
        const struct nf_term t = f->term[x->first + i];

        if (infinite_below(f, t.node, same, seen))
            return true;
        if (same[t.node] && x->op == NF_SUM && !isfinite(t.k.v * nf_value(f, t.node, none)))
            return true;
        if (same[t.node] && x->op == NF_PRODUCT && !isfinite(pow(nf_value(f, t.node, none), fabs(t.k.v))))
            return true;
    }
    seen[a] = 1;
    return false;
}

static void check_constants(struct parser *p)
{
    struct pk_formula *f = p->f;
    unsigned char same[NF_NODES] = {0}, seen[NF_NODES] = {0};

    for (ref a = 0; a < f->nf.nodes; a++) {
        const struct nf_node *x = &f->nf.node[a];

        same[a] = x->op != NF_ROW && (x->op != NF_LEAF || x->fn == PK_LEAF_PI);
        for (int i = 0; i < x->n; i++) /* nodes below a come before it */
            same[a] = same[a] && same[f->nf.term[x->first + i].node];
    }
    for (int a = 0; a < f->n_ast && !p->failed; a++)
        if (f->built[a] >= 0 && infinite_below(&f->nf, f->built[a], same, seen))
            parse_fail(p, PD_ERR_INVALID, f->ast[a].at, f->ast[a].length, "this is no finite number");
}

enum pd_err pk_formula_parse(const char *text, size_t length, enum pk_formula_mode mode, bool causal,
                             const struct pk_formula_param *params, int n_params, struct pk_formula **ret,
                             struct pk_formula_fault *fault)
{
    struct pk_formula *f;
    struct parser p = {.fault = fault, .text = text};

    memset(fault, 0, sizeof *fault);
    if (length > PK_FORMULA_TEXT) {
        parse_fail(&p, PD_ERR_LIMIT, PK_FORMULA_TEXT, 1, "the formula has %zu bytes; at most %d", length,
                   PK_FORMULA_TEXT);
        return p.err;
    }
    f = calloc(1, sizeof *f);
    if (!f) {
        parse_fail(&p, PD_ERR_NOMEM, 0, 1, "no memory for a formula");
        return p.err;
    }
    memcpy(f->text, text, length);
    f->mode = mode;
    f->causal = causal;
    f->nf.owner = f;
    p.f = f;
    p.text = f->text;
    p.length = (int)length;
    for (int k = 0; k < FN_COUNT; k++)
        f->slope[k][0] = f->slope[k][1] = f->slope[k][2] = -1;
    if (memchr(text, 0, length))
        parse_fail(&p, PD_ERR_INVALID, (int)((const char *)memchr(text, 0, length) - text), 1,
                   "the text holds a NUL byte");
    if (!p.failed)
        next(&p);
    if (!p.failed)
        f->root_ast = statements(&p);
    if (!p.failed && p.token == T_SEMI)
        next(&p);
    if (!p.failed && p.token == T_CLOSE)
        parse_fail(&p, PD_ERR_INVALID, p.start, 1, "this ')' closes nothing");
    else if (!p.failed && p.token != T_END)
        parse_fail(&p, PD_ERR_INVALID, p.start, p.end - p.start, "an operator is missing before '%.*s'",
                   p.end - p.start > 20 ? 20 : p.end - p.start, f->text + p.start);
    if (!p.failed)
        check_names(&p);
    order_params(f);
    for (int k = 0; k < f->n_param; k++)
        for (int i = 0; i < n_params; i++)
            if (!strcmp(f->param[k].name, params[i].name))
                f->param[k].range = params[i].range;
    if (!p.failed)
        f->root = build_tree(&p, f->root_ast, NULL, false);
    if (!p.failed)
        check_divisions(&p);
    if (!p.failed)
        check_constants(&p);
    if (!p.failed && mode == PK_FORMULA_ACTIVATION && !pk_formula_reads(f, PK_LEAF_S))
        parse_fail(&p, PD_ERR_INVALID, 0, (int)length, "the formula does not depend on the logit s");
    if (!p.failed && pk_formula_row_functions(f) > PK_FORMULA_ROWS)
        parse_fail(&p, PD_ERR_LIMIT, 0, (int)length, "the formula has %d different row functions; at most %d",
                   pk_formula_row_functions(f), PK_FORMULA_ROWS);
    if (p.failed) {
        free(f);
        return p.err;
    }
    *ret = f;
    return PD_OK;
}

struct pk_formula *pk_formula_free(struct pk_formula *f)
{
    free(f);
    return NULL;
}

int pk_formula_params(const struct pk_formula *f, const struct pk_formula_param **ret)
{
    *ret = f->param;
    return f->n_param;
}

const char *pk_formula_leaf_name(enum pk_formula_leaf leaf)
{
    return (int)leaf < N_LEAF_NAMES ? leaf_names[leaf] : NULL;
}

void pk_formula_underline(const char *text, const struct pk_formula_fault *fault, struct pd_buf *out)
{
    size_t n = strlen(text), from = 0, to;

    for (size_t k = 0; k < n && k < (size_t)fault->at; k++)
        if (text[k] == '\n')
            from = k + 1;
    for (to = from; to < n && text[to] != '\n'; to++)
        ;
    pd_buf_append(out, text + from, to - from);
    pd_buf_str(out, "\n");
    for (size_t k = from; k < (size_t)fault->at; k++)
        pd_buf_str(out, text[k] == '\t' ? "\t" : " ");
    for (int k = 0; k < fault->length && (k == 0 || (size_t)(fault->at + k) < to); k++)
        pd_buf_str(out, "^");
}
