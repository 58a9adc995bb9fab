/* A normal form as text: the grammar itself, LaTeX, Python with PyTorch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formula/internal.h"

enum strength { OF_SUM, OF_PRODUCT, OF_POWER }; /* precedence of the surrounding operator */

struct printer {
    const struct pk_formula *f;
    enum formula_style style;
    struct pd_buf *out;
};

static void print(struct printer *p, ref a, enum strength place);

/* A number as printf writes it; LaTeX: 1.5e-08 as 1.5 times a power of ten. */
static void digits(struct printer *p, const char *text)
{
    const char *e = strchr(text, 'e');

    if (p->style != STYLE_LATEX || !e) {
        pd_buf_str(p->out, text);
        return;
    }
    if (e - text > 1 || *text != '1')
        pd_buf_printf(p->out, "%.*s\\cdot ", (int)(e - text), text);
    pd_buf_printf(p->out, "10^{%d}", atoi(e + 1));
}

/* A number that is not exact may have a text that is read as an exact one: it is written as that one. */
static struct num as_read(struct num k)
{
    struct num r = k;
    char text[40];

    if (!k.q && isfinite(k.v)) {
        snprintf(text, sizeof text, "%.17g", fabs(k.v));
        if (num_read(text, (int)strlen(text), &r) && k.v < 0)
            r = num_neg(r);
    }
    return r;
}

static void number(struct printer *p, struct num k)
{
    char text[40];

    if (k.q == 1) {
        pd_buf_printf(p->out, "%lld", (long long)k.p);
    } else if (k.q) {
        pd_buf_printf(p->out, p->style == STYLE_LATEX ? "\\frac{%lld}{%lld}" : "%lld/%lld", (long long)k.p,
                      (long long)k.q);
    } else {
        snprintf(text, sizeof text, "%.17g", k.v);
        digits(p, text);
    }
}

/* A number below about 10^12 over a power of ten is shorter as a decimal, unless it has more digits than are printed. */
static bool decimal(struct num k, char *out, size_t size)
{
    if (!k.q || k.q == 1 || llabs(k.p) > 1000000000000)
        return false;
    for (int places = 1; places <= 12; places++) {
        struct num x = num_mul(k, num_power(num_of(10, 1), places));

        if (x.q != 1)
            continue;
        if (places > 4)
            snprintf(out, size, "%.12g", k.v);
        else
            snprintf(out, size, "%.*f", places, k.v);
        return places <= 4 || llabs(x.p) < 1000000000000;
    }
    return false;
}

/* Whether the Python texts give a name a meaning: Python's keywords, and what the texts define or call. */
static bool taken(const char *name)
{
    static const char names[] =
        " and as assert async await break class continue def del elif else except finally for from global"
        " if import in is lambda nonlocal not or pass raise return try while with yield False None True"
        " attention attention_weights block_mask counts flex_attention key lse math offset out pick"
        " query scale score_mod score_mod_of seen seen_values term torch value ";
    char word[PK_FORMULA_NAME + 2];

    snprintf(word, sizeof word, " %s ", name);
    return strstr(names, word) != NULL;
}

/* A scalar's name in Python: with underscores that make it no other scalar's if the name is taken. */
static const char *python_name(const struct pk_formula *f, int param, char *space, size_t size)
{
    const char *name = f->param[param].name;

    if (!taken(name))
        return name;
    snprintf(space, size, "%s_", name);
    for (int k = 0; k < f->n_param; k++) /* sorted: a_ comes before a__ */
        if (!strcmp(f->param[k].name, space) && strlen(space) + 1 < size)
            strcat(space, "_");
    return space;
}

static const char *leaf_name(const struct printer *p, int leaf, char *space, size_t size)
{
    const char *name = pk_formula_leaf_name((enum pk_formula_leaf)leaf);

    if (leaf >= PK_LEAF_PARAM && leaf < PK_LEAF_PARAM + PK_FORMULA_PARAMS) {
        name = p->f->param[leaf - PK_LEAF_PARAM].name;
        if (p->style == STYLE_TORCH)
            return python_name(p->f, leaf - PK_LEAF_PARAM, space, size);
        if (p->style == STYLE_LATEX && strlen(name) > 1) {
            size_t n = (size_t)snprintf(space, size, "\\mathit{");

            for (const char *c = name; *c && n + 4 < size; c++) {
                if (*c == '_')
                    space[n++] = '\\';
                space[n++] = *c;
            }
            space[n++] = '}';
            space[n] = 0;
            return space;
        }
        return name;
    }
    if (p->style == STYLE_LATEX)
        switch (leaf) {
        case PK_LEAF_NI:
            return "n_i";
        case PK_LEAF_PI:
            return "\\pi";
        default:
            return name;
        }
    if (p->style == STYLE_TORCH && leaf == PK_LEAF_PI)
        return "math.pi";
    if (name)
        return name;
    if (leaf == PK_LEAF_SHIFT)
        return "_m";
    snprintf(space, size, "_r%d", leaf - PK_LEAF_ROW);
    return space;
}

static void open_if(struct printer *p, bool yes)
{
    if (yes)
        pd_buf_str(p->out, p->style == STYLE_LATEX ? "\\left(" : "(");
}
static void close_if(struct printer *p, bool yes)
{
    if (yes)
        pd_buf_str(p->out, p->style == STYLE_LATEX ? "\\right)" : ")");
}

static const char *power_mark(const struct printer *p)
{
    return p->style == STYLE_TORCH ? "**" : "^";
}

/* base ^ e for e > 0. */
static void factor(struct printer *p, ref base, struct num e, bool alone)
{
    e = as_read(e);
    if (num_is(e, 1)) {
        print(p, base, alone && p->style == STYLE_LATEX ? OF_SUM : OF_PRODUCT);
    } else if (e.q == 2) {
        if (p->style == STYLE_LATEX) {
            pd_buf_str(p->out, "\\sqrt{");
            print(p, base, OF_SUM);
            pd_buf_str(p->out, "}");
        } else if (p->style == STYLE_TORCH) {
            /* torch.sqrt takes no Python number, so a root is written as a power. */
            print(p, base, OF_POWER);
            pd_buf_printf(p->out, "**(%lld/2)", (long long)e.p);
            return;
        } else {
            pd_buf_str(p->out, "sqrt(");
            print(p, base, OF_SUM);
            pd_buf_str(p->out, ")");
        }
        if (e.p != 1)
            pd_buf_printf(p->out, p->style == STYLE_LATEX ? "^{%lld}" : "^%lld", (long long)e.p);
    } else {
        print(p, base, OF_POWER);
        pd_buf_str(p->out, power_mark(p));
        if (p->style == STYLE_LATEX)
            pd_buf_str(p->out, "{");
        else if (!num_integer(e))
            pd_buf_str(p->out, "(");
        number(p, e);
        if (p->style == STYLE_LATEX)
            pd_buf_str(p->out, "}");
        else if (!num_integer(e))
            pd_buf_str(p->out, ")");
    }
}

/* |k| times the factors; the sign has been written. */
static void product(struct printer *p, ref a, struct num k, bool bare)
{
    const struct nf *f = &p->f->nf;
    const struct nf_node *x = &f->node[a];
    const struct nf_term single = {a, num_of(1, 1)};
    const struct nf_term *t = bare ? &single : f->term + x->first;
    const int n = bare ? 1 : x->n;
    int under = 0, over = 0, written = 0;
    bool fraction, short_form;
    char text[40];

    k = as_read(k);
    short_form = decimal(k, text, sizeof text) && fabs(k.v) != 0.5;

    if (k.v < 0)
        k = num_neg(k);
    short_form = short_form && decimal(k, text, sizeof text);
    for (int i = 0; i < n; i++)
        under += t[i].k.v < 0;
    over = n - under;
    fraction = p->style == STYLE_LATEX && (under || (k.q > 1 && !short_form));
    if (fraction)
        pd_buf_str(p->out, "\\frac{");
    if (short_form) {
        digits(p, text);
        written = 1;
    } else if (!k.q ? k.v != 1 : k.p != 1) {
        number(p, k.q ? num_of(k.p, 1) : k);
        written = 1;
    }
    for (int i = 0; i < n; i++)
        if (t[i].k.v > 0) {
            if (written)
                pd_buf_str(p->out, p->style == STYLE_LATEX ? "\\," : "*");
            factor(p, t[i].node, t[i].k, fraction && over == 1 && !written);
            written = 1;
        }
    if (!written)
        pd_buf_str(p->out, "1");
    if (p->style == STYLE_LATEX) {
        if (!fraction)
            return;
        pd_buf_str(p->out, "}{");
        written = 0;
        if (k.q > 1 && !short_form) {
            pd_buf_printf(p->out, "%lld", (long long)k.q);
            written = 1;
        }
        for (int i = 0; i < n; i++)
            if (t[i].k.v < 0) {
                if (written)
                    pd_buf_str(p->out, "\\,");
                factor(p, t[i].node, num_neg(t[i].k), under == 1 && !written);
                written = 1;
            }
        pd_buf_str(p->out, "}");
        return;
    }
    if (k.q > 1 && !short_form)
        pd_buf_printf(p->out, "/%lld", (long long)k.q);
    for (int i = 0; i < n; i++)
        if (t[i].k.v < 0) {
            pd_buf_str(p->out, "/");
            factor(p, t[i].node, num_neg(t[i].k), false);
        }
}

static bool negative(const struct nf *f, ref a, struct num k)
{
    return k.v < 0 || (f->node[a].op == NF_PRODUCT && f->node[a].k.v * k.v < 0);
}

static void term(struct printer *p, ref a, struct num k)
{
    const struct nf_node *x = &p->f->nf.node[a];

    if (x->op == NF_PRODUCT)
        product(p, a, num_mul(k, x->k), false);
    else if (num_is(k, 1) || num_is(k, -1))
        print(p, a, OF_SUM); /* no term is a sum */
    else
        product(p, a, k, true);
}

static void with_pattern(struct printer *p, const char *pattern, ref a)
{
    const struct nf *f = &p->f->nf;

    for (const char *c = pattern; *c; c++)
        if (c[0] == '$' && c[1] >= 'a' && c[1] <= 'c')
            print(p, nf_kid(f, a, *++c - 'a'), OF_SUM);
        else
            pd_buf_append(p->out, c, 1);
}

/* Arguments of PyTorch's functions must be tensors: an expression without a tensor is converted to one. */
static void torch_function(struct printer *p, ref a)
{
    const struct nf *f = &p->f->nf;
    const struct nf_node *x = &f->node[a];

    for (const char *c = fn_rows[x->fn].torch; *c; c++)
        if (c[0] == '$' && c[1] >= 'a' && c[1] <= 'c') {
            pd_buf_str(p->out, "_w(");
            print(p, nf_kid(f, a, *++c - 'a'), OF_SUM);
            pd_buf_str(p->out, ")");
        } else {
            pd_buf_append(p->out, c, 1);
        }
}

static void function(struct printer *p, ref a, enum strength place)
{
    const struct nf *f = &p->f->nf;
    const struct nf_node *x = &f->node[a];
    const struct fn_row *row = &fn_rows[x->fn];

    if (p->style == STYLE_TORCH) {
        torch_function(p, a);
        return;
    }
    if (x->fn == FN_POWER) {
        open_if(p, place == OF_POWER);
        print(p, nf_kid(f, a, 0), OF_POWER);
        pd_buf_str(p->out, p->style == STYLE_LATEX ? "^{" : "^(");
        print(p, nf_kid(f, a, 1), OF_SUM);
        pd_buf_str(p->out, p->style == STYLE_LATEX ? "}" : ")");
        close_if(p, place == OF_POWER);
        return;
    }
    if (p->style == STYLE_LATEX) {
        const bool wrap = (place == OF_POWER && x->fn == FN_EXP) || (place != OF_SUM && x->fn == FN_WHERE);

        open_if(p, wrap);
        with_pattern(p, row->latex, a);
        close_if(p, wrap);
        return;
    }
    if (x->fn == FN_GT || x->fn == FN_GE || x->fn == FN_EQ) {
        pd_buf_str(p->out, "(");
        print(p, nf_kid(f, a, 0), OF_SUM);
        pd_buf_str(p->out, x->fn == FN_GT ? " > 0)" : x->fn == FN_GE ? " >= 0)" : " == 0)");
        return;
    }
    if (x->fn == FN_MAX && nf_is_num(f, nf_kid(f, a, 1), 0)) {
        pd_buf_str(p->out, "relu(");
        print(p, nf_kid(f, a, 0), OF_SUM);
        pd_buf_str(p->out, ")");
        return;
    }
    pd_buf_printf(p->out, "%s(", row->name);
    for (int i = 0; i < x->n; i++) {
        if (i)
            pd_buf_str(p->out, ", ");
        print(p, nf_kid(f, a, i), OF_SUM);
    }
    pd_buf_str(p->out, ")");
}

static void print(struct printer *p, ref a, enum strength place)
{
    const struct nf *f = &p->f->nf;
    const struct nf_node *x = &f->node[a];
    char space[2 * PK_FORMULA_NAME + 16], text[40];

    if (p->out->failed) /* shared parts are written out each time: the buffer's limit ends it */
        return;
    switch ((enum nf_op)x->op) {
    case NF_NUM: {
        const struct num k = as_read(x->k);
        bool wrap = place == OF_POWER && (k.v < 0 || k.q > 1);

        if (!k.q && place == OF_POWER &&
            p->style == STYLE_LATEX) { /* it may be a product with a power of ten */
            snprintf(text, sizeof text, "%.17g", k.v);
            wrap = wrap || strchr(text, 'e');
        }
        open_if(p, wrap || (place == OF_PRODUCT && k.v < 0));
        if (decimal(k, text, sizeof text))
            digits(p, text);
        else
            number(p, k);
        close_if(p, wrap || (place == OF_PRODUCT && k.v < 0));
        break;
    }
    case NF_LEAF:
        pd_buf_str(p->out, leaf_name(p, x->fn, space, sizeof space));
        break;
    case NF_SUM: {
        bool constant_first = f->term[x->first].k.v < 0 && x->k.v > 0;

        open_if(p, place != OF_SUM);
        if (constant_first)
            print(p, nf_num((struct nf *)(uintptr_t)f, x->k), OF_SUM);
        for (int i = 0; i < x->n; i++) {
            struct nf_term t = f->term[x->first + i];
            bool minus = negative(f, t.node, t.k);

            if (i || constant_first)
                pd_buf_str(p->out, minus ? " - " : " + ");
            else if (minus)
                pd_buf_str(p->out, "-");
            term(p, t.node, minus ? num_neg(t.k) : t.k);
        }
        if (!constant_first && !num_is(x->k, 0)) {
            pd_buf_str(p->out, x->k.v < 0 ? " - " : " + ");
            print(p, nf_num((struct nf *)(uintptr_t)f, x->k.v < 0 ? num_neg(x->k) : x->k), OF_SUM);
        }
        close_if(p, place != OF_SUM);
        break;
    }
    case NF_PRODUCT:
        open_if(p, place == OF_POWER || (place == OF_PRODUCT && x->k.v < 0));
        if (x->k.v < 0)
            pd_buf_str(p->out, "-");
        product(p, a, x->k, false);
        close_if(p, place == OF_POWER || (place == OF_PRODUCT && x->k.v < 0));
        break;
    case NF_FN:
        function(p, a, place);
        break;
    case NF_ROW:
        if (p->style == STYLE_LATEX) {
            open_if(p, place != OF_SUM);
            pd_buf_str(p->out, x->fn == PK_ROW_SUM ? "\\sum_j " : "\\max_j ");
            print(p, nf_kid(f, a, 0), OF_PRODUCT);
            close_if(p, place != OF_SUM);
        } else {
            pd_buf_str(p->out, x->fn == PK_ROW_SUM ? "rowsum(" : "rowmax(");
            print(p, nf_kid(f, a, 0), OF_SUM);
            pd_buf_str(p->out, ")");
        }
        break;
    }
}

void formula_print(const struct pk_formula *f, ref a, enum formula_style style, struct pd_buf *out)
{
    struct printer p = {f, style, out};

    print(&p, a, OF_SUM);
}

const char *formula_torch_name(const struct pk_formula *f, int leaf, char *space, size_t size)
{
    const struct printer p = {f, STYLE_TORCH, NULL};

    return leaf_name(&p, leaf, space, size);
}

void pk_formula_canonical(const struct pk_formula *f, struct pd_buf *out)
{
    formula_print(f, f->root, STYLE_TEXT, out);
}

void pk_formula_latex(const struct pk_formula *f, struct pd_buf *out)
{
    formula_print(f, f->root, STYLE_LATEX, out);
}

static void assign(const struct pk_formula *f, const char *name, ref a, struct pd_buf *out)
{
    pd_buf_printf(out, "    %s = ", name);
    formula_print(f, a, STYLE_TORCH, out);
    pd_buf_str(out, "\n");
}

void pk_formula_torch(const struct pk_formula *f, struct pd_buf *out)
{
    struct pk_formula *writable = (struct pk_formula *)(uintptr_t)f; /* nodes are added, none changes */
    struct printer p = {f, STYLE_TORCH, out};
    char space[PK_FORMULA_NAME + 16];
    struct split s;
    bool empty = false;

    if (formula_split(writable, &s, NULL) != PD_OK) {
        pd_buf_str(out, "# the formula is too long to be written out\n");
        return;
    }
    pd_buf_str(out, "import math\n\nimport torch\n\n\ndef attention_weights(s, seen, n");
    for (int k = 0; k < f->n_param; k++)
        pd_buf_printf(out, ", %s", leaf_name(&p, PK_LEAF_PARAM + k, space, sizeof space));
    for (int leaf = PK_LEAF_HEAD; leaf <= PK_LEAF_WIDTH; leaf++)
        if (pk_formula_reads(f, (enum pk_formula_leaf)leaf))
            pd_buf_printf(out, ", %s", pk_formula_leaf_name((enum pk_formula_leaf)leaf));
    pd_buf_str(out, "):\n    \"\"\"A of logits s (..., queries, keys); seen: bool of the same shape, True "
                    "where a query sees a "
                    "key.\n\n    ");
    pk_formula_canonical(f, out);
    pd_buf_str(out, "\n    \"\"\"\n    _w = lambda x: torch.as_tensor(x, dtype=s.dtype, device=s.device)\n");
    if (pk_formula_reads(f, PK_LEAF_NI))
        pd_buf_str(out, "    ni = seen.sum(-1, keepdim=True).clamp(min=1).to(s.dtype)\n");
    if (pk_formula_reads(f, PK_LEAF_I))
        pd_buf_str(
            out,
            "    i = torch.arange(s.shape[-2], device=s.device)[:, None] + (s.shape[-1] - s.shape[-2])\n");
    /* a hidden pair must not give a NaN, whose gradient would stay one behind the selection */
    pd_buf_str(out, "    s = torch.where(seen, s, _w(0.0))\n");
    if (pk_formula_reads(f, PK_LEAF_J))
        pd_buf_printf(out, "    j = torch.where(seen, torch.arange(s.shape[-1], device=s.device), %s)\n",
                      pk_formula_reads(f, PK_LEAF_I) ? "i" : "0");
    if (s.exponent >= 0) {
        pd_buf_str(out, "    _m = torch.where(seen, _w(");
        formula_print(f, s.exponent, STYLE_TORCH, out);
        pd_buf_str(out, "), _w(-math.inf)).amax(-1, keepdim=True).detach()\n");
        pd_buf_str(out, s.shift_zero ? "    _m = _m.clamp(min=0)\n"
                                     : "    _m = torch.where(_m == -math.inf, _w(0.0), _m)\n");
    }
    for (int k = 0; k < s.rows; k++) {
        pd_buf_printf(out, "    _r%d = torch.where(seen, _w(", k);
        formula_print(f, s.x[k], STYLE_TORCH, out);
        pd_buf_str(out, s.row[k] == PK_ROW_SUM ? "), _w(0.0)).sum(-1, keepdim=True)\n"
                                               : "), _w(-math.inf)).amax(-1, keepdim=True)\n");
        empty = true;
    }
    assign(f, "_a", nf_mul(&writable->nf, s.factor, s.value), out);
    if (empty) {
        pd_buf_str(out, "    _empty = ");
        for (int k = 0; k < s.rows; k++)
            pd_buf_printf(out, k ? " | (_r%d == 0)" : "(_r%d == 0)", k);
        pd_buf_str(out, "\n    _a = torch.where(_empty & ~torch.isfinite(_a), _w(0.0), _a)\n");
    }
    pd_buf_str(out, "    return torch.where(seen, _a, _w(0.0))\n");
}
