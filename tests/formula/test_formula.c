/* tests/formula/test_formula.c: formulas as typed: the normal form, errors with their character, the table of
 * functions, slopes on and beyond breaks, how rows are normalised. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/formula.h"

static const struct pk_formula_param params[] = {{"g", PK_RANGE_UNIT, 0}, {"p", PK_RANGE_POSITIVE, 0}};

static struct pk_formula *parse(const char *text)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;

    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, params, 2, &f, &fault) != PD_OK)
        fail_msg("'%s': %s", text, fault.text);
    return f;
}

static char *canonical(const char *text)
{
    struct pk_formula *f = parse(text);
    struct pd_buf b;
    char *out;

    pd_buf_init(&b, 0);
    pk_formula_canonical(f, &b);
    out = pd_buf_take(&b);
    pk_formula_free(f);
    return out;
}

static void test_formula_spellings_of_one_function_have_one_normal_form(void **state)
{
    static const char *const same[][2] = {
        {"s*s*s", "s^3"},
        {"2*s+3*s", "5*s"},
        {"s + s/s - 1", "s"},
        {"(1+s)*2", "2*s+2"},
        {"1/(2*s^2+2)", "0.5/(1+s^2)"},
        {"(1-s)^2", "(s-1)^2"},
        {"log(1+exp(s))", "softplus(s)"},
        {"log1p(exp(2*s))", "softplus(2*s)"},
        {"exp(s)/(1+exp(s))", "sigmoid(s)"},
        {"1/(1+exp(-s))", "sigmoid(s)"},
        {"exp(s)/(exp(s)+1)^2", "sigmoid(s)*sigmoid(-s)"},
        {"exp(s)*exp(-a)", "exp(s-a)"},
        {"exp(s)^3", "exp(3*s)"},
        {"sqrt(s^2)", "abs(s)"},
        {"sqrt(4*s^2)", "2*abs(s)"},
        {"sign(s)*s", "abs(s)"},
        {"sign(s)*abs(s)", "s"},
        {"abs(-2*s)", "2*abs(s)"},
        {"abs(s)^2", "s^2"},
        {"abs(1-s)", "abs(s-1)"},
        {"tanh(-s)", "-tanh(s)"},
        {"cos(-s)", "cos(s)"},
        {"max(0,s)", "relu(s)"},
        {"max(s,0)", "relu(s)"},
        {"min(max(s,-1),1)", "clip(s,-1,1)"},
        {"where(s>0,s,s)", "s"},
        {"where(1>0,s,2)", "s"},
        {"relu(s^2)", "s^2"},
        {"t=1+s+s^2/2; t/rowsum(t)", "(1+s+s*s*0.5)/rowsum(0.5*s^2+s+1)"},
        {"softmax(s)", "exp(s)/rowsum(exp(s))"},
        {"0.1*s+0.2*s", "0.3*s"},
        {"s^2^1", "s^2"},
        {"-s^2", "-(s^2)"},
        {"s - -s", "2*s"},
        {"s\n+\ts", "2*s"},
        {"s/3*3", "s"},
        {"4611686018427387904*s/4611686018427387904", "s"},
        {"p^2^0.5*s", "p^(2^0.5)*s"},
    };

    (void)state;
    for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
        char *a = canonical(same[k][0]), *b = canonical(same[k][1]);

        if (strcmp(a, b))
            fail_msg("'%s' is '%s' and '%s' is '%s'", same[k][0], a, same[k][1], b);
        free(a);
        free(b);
    }
}

static void test_formula_different_functions_differ(void **state)
{
    static const char *const different[][2] = {
        {"s^2", "s^3"},
        {"-s^2", "(-s)^2"},
        {"s-a", "a-s"},
        {"abs(s)", "s"},
        {"2^s", "s^2"},
        {"s/n", "s/ni"},
        {"a*s", "b*s"},
        {"rowsum(s)*s", "s^2"},
        {"s*rowmax(s)", "s*rowsum(s)"},
        {"sqrt(s)^2", "abs(s)"},
        {"1.234567890125*s", "1.23456789012*s"},
        {"12345/4096*s", "3.01391601562*s"},
        {"s+0.0000123456789012345", "s+0.0000123456789012"},
    };

    (void)state;
    for (size_t k = 0; k < sizeof different / sizeof *different; k++) {
        char *a = canonical(different[k][0]), *b = canonical(different[k][1]);

        assert_string_not_equal(a, b);
        free(a);
        free(b);
    }
}

/* The same value and the same text, bit for bit. */
static void test_formula_numbers_are_read_as_they_are_printed(void **state)
{
    static const char *const numbers[] = {
        "1.234567890125", "1.23456789012", "12345/4096", "1/3", "0.5", "1e-8", "1.5e-5", "0.0000123456789012",
        "1/1024", "1e-12", "12345678.1234", "0.1", "123456789012.5", "2/1000003",
        /* More digits than are exact, or not exact with few digits: 2^-13, 10^18, 10^-13. */
        "3.14159265358979323846", "1234567890.12345678", "1.2345678901234567e18", "12345678901234567", "1e30",
        "0.00012207031250000000000000", "1000000000000000000.0", "1e-20*1e7", "0.50000000000000000000000",
        "1/3^41"};

    (void)state;
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        double leaf[PK_LEAVES] = {0}, v;
        char text[64], *printed, *again;
        struct pk_formula *f;

        snprintf(text, sizeof text, "s*(%s)", numbers[k]);
        leaf[PK_LEAF_S] = 1;
        f = parse(text);
        v = pk_formula_value(f, leaf);
        pk_formula_free(f);
        printed = canonical(text);
        again = canonical(printed);
        f = parse(printed);
        if (strcmp(printed, again) || pk_formula_value(f, leaf) != v)
            fail_msg("%s: '%s', then '%s'; %.17g, then %.17g", text, printed, again, v,
                     pk_formula_value(f, leaf));
        pk_formula_free(f);
        free(printed);
        free(again);
    }
}

static void test_formula_powers_are_read_as_they_are_printed(void **state)
{
    static const char *const powers[][2] = {{"s^64*s^64", "s^128"},
                                            {"(s^10)^10", "s^100"},
                                            {"(s^64)^64", "s^4096"},
                                            {"(s^-16)^17", "1/s^272"},
                                            {"sqrt(relu(s)^255)", "sqrt(relu(s))^255"}};

    (void)state;
    for (size_t k = 0; k < sizeof powers / sizeof *powers; k++) {
        char *printed = canonical(powers[k][0]), *again = canonical(printed);

        assert_string_equal(printed, powers[k][1]);
        assert_string_equal(again, printed);
        free(printed);
        free(again);
    }
}

static void test_formula_latex_shows_the_same_function(void **state)
{
    static const char *const known[][2] = {
        {"softmax(s)", "\\frac{e^{s}}{\\sum_j e^{s}}"},
        {"s^3/rowsum(abs(s))^2", "\\frac{s^{3}}{\\left(\\sum_j \\left|s\\right|\\right)^{2}}"},
        {"softmax(s)/(1+abs(s))",
         "\\frac{e^{s}}{\\left(\\sum_j e^{s}\\right)\\,\\left(\\left|s\\right| + 1\\right)}"},
        {"s*rowsum(relu(s)^p)^b", "s\\,\\left(\\sum_j \\max\\left(s, 0\\right)^{p}\\right)^{b}"},
        {"s-rowmax(s)", "s - \\max_j s"},
        {"rowsum(s+s^2)*s", "s\\,\\left(\\sum_j \\left(s + s^{2}\\right)\\right)"},
        {"a_1*s+a_2", "\\mathit{a\\_2} + s\\,\\mathit{a\\_1}"},
        {"ab*s", "s\\,\\mathit{ab}"},
        {"a______________________________*s", NULL},
        {"s/(1e-8+s^2)", "\\frac{s}{s^{2} + 10^{-8}}"},
        {"1.5e-8*s", "1.5\\cdot 10^{-8}\\,s"},
        {"0.25*s", "0.25\\,s"},
        /* bases of powers */
        {"where(s>0,s,-s)^2", "\\left(\\begin{cases}s & \\left[s > 0\\right]\\\\ -s & "
                              "\\text{else}\\end{cases}\\right)^{2}"},
        {"2*where(s>0,1,2)", "2\\,\\left(\\begin{cases}1 & \\left[s > 0\\right]\\\\ 2 & "
                             "\\text{else}\\end{cases}\\right)"},
        {"abs(s)^3", "\\left|s\\right|^{3}"},
        {"(s>0)^2*s", "s\\,\\left[s > 0\\right]^{2}"},
        {"(exp(s)-1)^2", "\\left(e^{s} - 1\\right)^{2}"},
        {"s*exp(n*pi)^(1/3)", "s\\,e^{\\frac{n\\,\\pi}{3}}"},
        {"relu(s/(1+s))^p", "\\max\\left(\\frac{s}{s + 1}, 0\\right)^{p}"},
        {"abs(s)^p^2", "\\left|s\\right|^{p^{2}}"},
        {"(abs(s)^p)^1.5", "\\sqrt{\\left|s\\right|^{p}}^{3}"},
        {"s*1e-20^(1/3)", "\\left(9.9999999999999995\\cdot 10^{-21}\\right)^{\\frac{1}{3}}\\,s"},
        {"s*(1/3)^(1/3)", "\\left(\\frac{1}{3}\\right)^{\\frac{1}{3}}\\,s"},
        {"rowsum(s)^-2*s^-3", "\\frac{1}{s^{3}\\,\\left(\\sum_j s\\right)^{2}}"},
    };

    (void)state;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k][0]);
        struct pd_buf b, long_name;

        pd_buf_init(&b, 0);
        pd_buf_init(&long_name, 0);
        pk_formula_latex(f, &b);
        pd_buf_str(&long_name, "s\\,\\mathit{a");
        for (int i = 1; i < PK_FORMULA_NAME - 1; i++)
            pd_buf_str(&long_name, "\\_");
        pd_buf_str(&long_name, "}");
        if (strcmp(b.data, known[k][1] ? known[k][1] : long_name.data))
            fail_msg("'%s' is shown as '%s'", known[k][0], b.data);
        pd_buf_done(&b);
        pd_buf_done(&long_name);
        pk_formula_free(f);
    }
}

static void test_formula_errors_name_the_character(void **state)
{
    static const struct {
        const char *text;
        int at, length;
        const char *says;
    } wrong[] = {
        {"", 0, 1, "empty"},
        {"s +", 3, 1, "missing at the end"},
        {"(s", 2, 1, "')' is missing"},
        {"s)", 1, 1, "closes nothing"},
        {"s**2", 1, 2, "written with ^"},
        {"2s", 1, 1, "written with *"},
        {"a s", 2, 1, "operator is missing"},
        {"s(1)", 0, 1, "variable"},
        {"sofmax(s)", 0, 6, "did you mean 'softmax'"},
        {"1 + lag(s)", 4, 3, "did you mean 'log'"},
        {"sin s", 0, 3, "sin(s)"},
        {"|s|", 0, 1, "abs(s)"},
        {"[s]", 0, 1, "( and )"},
        {"s#", 1, 1, "no meaning"},
        {"s\xc2\xb2", 1, 1, "ASCII"},
        {"max(s)", 0, 6, "takes 2 arguments, not 1"},
        {"exp()", 0, 5, "takes 1 argument, not 0"},
        {"q*k", 0, 1, "SimA"},
        {"x^3", 0, 1, "logit is called s"},
        {"cumsum(s)", 0, 6, "CoPE"},
        {"entmax(s)", 0, 6, "threshold"},
        {"gate*s", 0, 4, "per-token gates"},
        {"softmax(s)*cumprod(1-sigmoid(s))", 11, 7, "stick-breaking"},
        {"softmax(s1) - a*softmax(s2)", 8, 2, "differential attention"},
        {"relu(s-root(1))^2", 7, 4, "relu(s)/n"},
        {"sima(s)", 0, 4, "activation 'sima'"},
        {"rowsum(softmax(s))", 7, 7, "do not nest"},
        {"t = rowsum(s); rowmax(t*s)", 22, 1, "do not nest"},
        {"s^0.5", 1, 1, "sign(s)*abs(s)^a"},
        {"s^a", 1, 1, "relu(s)^a"},
        {"s^4097", 1, 1, "-4096 to 4096"},
        {"((s^64)^64)^2", 11, 1, "power of 8192"},
        {"(s^64)^-64/s", 10, 1, "power of 4097"},
        {"s/0", 1, 1, "divides by 0"},
        {"s/(2-1-1)", 1, 1, "divides by 0"},
        {"s*2/(2-1-1)/3", 3, 1, "divides by 0"},
        {"1e308*10*s", 8, 1, "no finite number"},
        {"s*1e308*10/2", 10, 1, "no finite number"},
        {"10*(1e308*s+1)", 2, 1, "no finite number"},
        {"abs(10*(1e308*s+1)-10*(1e308*s+2)+s^2)", 21, 1, "no finite number"},
        {"sign(1e300*(1e300*s+1)-1e300*(1e300*s+2)+s^2)", 28, 1, "no finite number"},
        {"abs(1e200*(1e200*s+1)-1e200*(1e200*s+s^2))", 27, 1, "no finite number"},
        {"abs((1e308*s+1)*10+(s-1e308*s)*10)", 30, 1, "no finite number"},
        {"s*abs(10*(1e308*n+n^2)-10*(1e308*n+1))", 25, 1, "no finite number"},
        {"1e308*s+1e308*s", 7, 1, "no finite number"},
        {"(1e200*s)^2", 9, 1, "no finite number"},
        {"s*exp(1000)", 2, 3, "no finite number"},
        {"s+log(1-1)", 2, 3, "no finite number"},
        {"s*softmax(1000)", 2, 7, "no finite number"},
        {"(pi*s)^1000", 6, 1, "no finite number"},
        {"1e300*(exp(500)+s)", 5, 1, "no finite number"},
        {"s/(1e-200*1e-200)", 1, 1, "no finite number"},
        {"s/(0*2)", 1, 1, "divides by 0"},
        {"a", 0, 1, "does not depend on the logit"},
        {"s/s", 0, 3, "does not depend on the logit"},
        {"s = 2", 0, 1, "has a meaning already"},
        {"t = 2; t = 3; s", 7, 1, "has a meaning already"},
        {"t = a*s; s^3", 0, 1, "'t' is defined and never used"},
        {"t = 1/0; s", 0, 1, "'t' is defined and never used"},
        {"u = s^2; long_name = u; u", 9, 9, "'long_name' is defined and never used"},
        {"t = s;", 6, 1, "comes the formula itself"},
        {"s > 1 > 0", 6, 1, "one comparison"},
        {"2 = s", 2, 1, "equality is =="},
        {"1e999*s", 0, 5, "too large"},
        {".*s", 0, 1, "needs a digit"},
        {"a+b+c+f+u+o+r+t+w*s", 16, 1, "number 9"},
        {"rowsum(s)+rowsum(s^2)+rowsum(s^3)+rowsum(s^4)+rowsum(s^5)+s", 0, 59, "5 different row functions"},
    };

    (void)state;
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;
        enum pd_err err = pk_formula_parse(wrong[k].text, strlen(wrong[k].text), PK_FORMULA_ACTIVATION, false,
                                           params, 2, &f, &fault);

        if (err == PD_OK)
            fail_msg("'%s' was taken", wrong[k].text);
        assert_true(err == PD_ERR_INVALID || err == PD_ERR_LIMIT);
        assert_null(f);
        if (!strstr(fault.text, wrong[k].says) || fault.at != wrong[k].at || fault.length != wrong[k].length)
            fail_msg("'%s': at %d, length %d: %s", wrong[k].text, fault.at, fault.length, fault.text);
    }
}

/* Divisions of a sum by its leading coefficient, where a quotient would overflow, vanish or be rounded. */
static void test_formula_comparisons_of_extreme_coefficients(void **state)
{
    static const char *const texts[] = {"1e-310*s+s^2",         "1e-200*s+1e200*s^2",   "1e200*s+1e-200*s^2",
                                        "1e-150*(1e-150*s+10)", "1e306*s-1.7e307*s^2",  "4e-324*s-1",
                                        "0.1e-300*s+3",         "1.7e308*s-1.2e308",    "49e-30*s-1/3",
                                        "s*1e-310-n*1e-311",    "1e-308*s+1e-309*s^2+1"};
    double leaf[PK_LEAVES];

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 0.75;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
        for (double s = -2; s <= 2; s += 0.5) {
            char text[64];
            struct pk_formula *f;
            double x, got;

            leaf[PK_LEAF_S] = s;
            f = parse(texts[k]);
            x = pk_formula_value(f, leaf);
            pk_formula_free(f);
            for (int which = 0; which < 3; which++) {
                static const char *const names[] = {"abs(%s)", "sign(%s)", "(%s) > 0"};
                const double want = which == 0 ? fabs(x) : which == 1 ? (x > 0) - (x < 0) : x > 0;

                snprintf(text, sizeof text, names[which], texts[k]);
                f = parse(text);
                got = pk_formula_value(f, leaf);
                if (got != want && !(fabs(got - want) <= 1e-12 * fabs(want)))
                    fail_msg("'%s' at %g: %g, should be %g", text, s, got, want);
                pk_formula_free(f);
            }
        }
}

static void test_formula_limits_are_errors(void **state)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    char text[PK_FORMULA_TEXT + 16];

    (void)state;
    memset(text, '(', sizeof text);
    assert_int_equal(pk_formula_parse(text, 200, PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault),
                     PD_ERR_LIMIT);
    assert_non_null(strstr(fault.text, "deep"));
    memset(text, '-', sizeof text);
    assert_int_equal(pk_formula_parse(text, 4000, PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault),
                     PD_ERR_LIMIT);
    assert_int_equal(
        pk_formula_parse(text, PK_FORMULA_TEXT + 1, PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault),
        PD_ERR_LIMIT);
    for (size_t k = 0; k + 1 < PK_FORMULA_TEXT; k += 2)
        memcpy(text + k, "s+", 2);
    assert_int_equal(
        pk_formula_parse(text, PK_FORMULA_TEXT - 1, PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault),
        PD_ERR_LIMIT);
    assert_non_null(strstr(fault.text, "numbers, names and operators"));
    assert_int_equal(pk_formula_parse("s\0s", 3, PK_FORMULA_ACTIVATION, false, NULL, 0, &f, &fault),
                     PD_ERR_INVALID);
    assert_int_equal(fault.at, 1);
    assert_null(f);
}

/* 15 short names, each `step` of the one before: the tree's paths are a power of it. %1$s: the one before. */
static char *names_of_names(const char *step, const char *last)
{
    struct pd_buf b;
    char before[8] = "s";

    pd_buf_init(&b, 0);
    for (char c = 'a'; c < 'a' + 15; c++) {
        pd_buf_printf(&b, "%c1=", c);
        for (const char *t = step; *t; t++)
            pd_buf_printf(&b, "%.*s", *t == '$' ? (int)strlen(before) : 1, *t == '$' ? before : t);
        pd_buf_str(&b, ";");
        snprintf(before, sizeof before, "%c1", c);
    }
    pd_buf_printf(&b, last, before);
    return pd_buf_take(&b);
}

static void test_formula_short_names_are_read_once_however_often_they_are_named(void **state)
{
    static const struct {
        const char *step, *last;
        enum pd_err parsed, planned;
        const char *text; /* normal form, or NULL */
    } names[] = {
        {"$+$+$+$+$+$+$+$+$+$", "%s", PD_OK, PD_OK, "1000000000000000*s"},
        {"$-$-$-$", "%s", PD_OK, PD_OK, "-32768*s"},
        {"tanh($)*tanh($)", "%s", PD_OK, PD_OK, NULL},
        {"$*exp($)*$*exp($)/$/$/$*exp($)", "exp(%s)", PD_OK, PD_ERR_LIMIT, NULL},
        {"sin($)+cos($)+sin($)+tanh($)", "s+rowsum(%s)", PD_OK, PD_ERR_LIMIT, NULL},
        /* selections of selections, whose sum and whose derivative go into every branch */
        {"where(s>1,$,where(s>2,$,where(s>3,$,where(s>4,$,2*s^2))))", "s*%s", PD_OK, PD_ERR_LIMIT, NULL},
    };

    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char *text = names_of_names(names[k].step, names[k].last), *normal;
        struct pk_formula_plan *plan = malloc(sizeof *plan);
        struct pk_formula *f = NULL;
        struct pk_formula_fault fault;
        enum pd_err err;

        assert_non_null(plan);
        err = pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, params, 2, &f, &fault);
        if (err != names[k].parsed)
            fail_msg("'%s': %d, %s", text, err, fault.text);
        err = pk_formula_plan(f, plan, NULL);
        if (err != names[k].planned)
            fail_msg("'%s': plan %d", text, err);
        if (names[k].text) {
            normal = canonical(text);
            assert_string_equal(normal, names[k].text);
            free(normal);
        }
        pk_formula_free(f);
        free(plan);
        free(text);
    }
}

/* The longest texts that are taken: memory is bounded whatever they say. Sanitizers report no memory in use. */
static void test_formula_takes_less_than_a_mebibyte(void **state)
{
    struct pd_buf text;

    (void)state;
    pd_buf_init(&text, 0);
    for (int i = 0; i < 40; i++)
        pd_buf_printf(&text, "%stanh(s*%d)*gelu(s+%d)", i ? "+" : "", i + 1, i);
    while (text.len < PK_FORMULA_TEXT - 1)
        pd_buf_str(&text, " ");
    for (int i = 0; i < 3; i++) {
        const struct mallinfo2 before = mallinfo2();
        struct pk_formula *f = parse(text.data);
        const struct mallinfo2 after = mallinfo2();

        assert_true(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd <= 1u << 20);
        pk_formula_free(f);
    }
    pd_buf_done(&text);
}

static void test_formula_underlines(void **state)
{
    struct pk_formula_fault fault = {.at = 7, .length = 3};
    struct pd_buf b;

    (void)state;
    pd_buf_init(&b, 0);
    pk_formula_underline("t = 2;\nlag(s)", &fault, &b);
    assert_string_equal(b.data, "lag(s)\n^^^");
    pd_buf_done(&b);
}

static void test_formula_initial_value_reads_sizes_alone(void **state)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;
    double leaf[PK_LEAVES] = {0};
    static const char *const wrong[] = {"s", "ni", "i+j", "a", "rowsum(1)", "softmax(1)"};

    (void)state;
    leaf[PK_LEAF_N] = 16;
    leaf[PK_LEAF_HEAD] = 3;
    leaf[PK_LEAF_HEADS] = 4;
    assert_int_equal(
        pk_formula_parse("1/sqrt(n) + 2^(-8*(h+1)/H)", 26, PK_FORMULA_START, false, NULL, 0, &f, &fault),
        PD_OK);
    assert_true(fabs(pk_formula_value(f, leaf) - (0.25 + 1.0 / 256)) < 1e-15);
    f = pk_formula_free(f);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        assert_int_equal(
            pk_formula_parse(wrong[k], strlen(wrong[k]), PK_FORMULA_START, false, NULL, 0, &f, &fault),
            PD_ERR_INVALID);
        assert_non_null(strstr(fault.text, "initial value"));
        assert_int_equal(fault.at, 0);
    }
}

/* ---- slopes on and beyond breaks ---- */

static double slope(const char *text, int order, double s)
{
    struct pk_formula *f = parse(text), *d;
    struct pk_formula_fault fault;
    struct pd_buf b;
    double leaf[PK_LEAVES], v;

    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 1;
    leaf[PK_LEAF_S] = s;
    pd_buf_init(&b, 0);
    assert_int_equal(pk_formula_slope_text(f, PK_LEAF_S, order, &b), PD_OK);
    pk_formula_free(f);
    /* A derivative may be a constant: no activation. */
    if (pk_formula_parse(b.data, b.len, PK_FORMULA_ACTIVATION, false, params, 2, &d, &fault) != PD_OK) {
        assert_non_null(strstr(fault.text, "does not depend"));
        v = strtod(b.data, NULL);
    } else {
        v = pk_formula_value(d, leaf);
        pk_formula_free(d);
    }
    pd_buf_done(&b);
    return v;
}

static void test_formula_piece_that_is_not_taken_never_poisons_a_slope(void **state)
{
    (void)state;
    for (int order = 1; order <= 2; order++)
        for (double s = -1; s <= 0; s += 1) {
            assert_true(slope("sqrt(relu(s))", order, s) == 0);
            assert_true(slope("where(s > 0, sqrt(s), 0)", order, s) == 0);
            assert_true(slope("relu(s)^1.5", order, s) == 0);
            assert_true(slope("relu(s)^p", order, s) == 0);
            assert_true(slope("where(s > 0, log(s), 0)*3", order, s) == 0);
            assert_true(slope("exp(where(s > 0, 1/s, 2))", order, s) == 0);
        }
    assert_true(slope("relu(s)", 1, 0) == 0);
    assert_true(slope("abs(s)", 1, 0) == 0);
    assert_true(slope("sqrt(abs(s))", 1, 0) == 0);
    assert_true(slope("log(1+exp(s))", 1, 800) == 1);
    assert_true(slope("exp(s)/(1+exp(s))", 1, 800) == 0);
    assert_true(fabs(slope("sqrt(relu(s))", 1, 4) - 0.25) < 1e-15);
}

/* ---- the table ---- */

/* Each row by the table alone: its slope is that of its value, its interval holds, every printer has a text. */
static void one_function(const char *name, int arity, double (*value)(double, double, double))
{
    static const double at[] = {-2.75, -1.3, -0.4, 0.35, 0.9, 1.6, 3.2};
    char text[64];
    struct pk_formula *f;
    struct pk_formula_report report;
    struct pd_buf b;
    double leaf[PK_LEAVES] = {0};
    int tried = 0;

    snprintf(text, sizeof text, arity == 1 ? "%s(s)" : arity == 2 ? "%s(s, p)" : "%s(p > 2, s, 3)", name);
    if (arity == 3)
        leaf[PK_LEAF_PARAM] = 5;
    else
        leaf[PK_LEAF_PARAM] = 0.7;
    f = parse(text);
    pk_formula_report(f, leaf, &report);
    for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
        const double h = 1e-6;
        double lo, hi, v, d;
        struct pk_formula_plan *plan = malloc(sizeof *plan);
        double result[PK_FORMULA_RESULTS];

        assert_non_null(plan);
        if (arity == 3) {
            v = value(1, at[k], 3);
            lo = value(1, at[k] - h, 3);
            hi = value(1, at[k] + h, 3);
        } else {
            v = value(at[k], 0.7, 0);
            lo = value(at[k] - h, 0.7, 0);
            hi = value(at[k] + h, 0.7, 0);
        }
        leaf[PK_LEAF_S] = at[k];
        leaf[PK_LEAF_DA] = 1;
        if (!isfinite(v) || !isfinite(lo) || !isfinite(hi)) {
            free(plan);
            continue;
        }
        tried++;
        assert_true(v >= report.lo && v <= report.hi);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        pk_formula_run(&plan->back, leaf, result);
        d = (hi - lo) / (2 * h);
        if (!(fabs(result[0] - v) <= 1e-12 * (1 + fabs(v)) && fabs(result[1] - d) <= 1e-7 * (1 + fabs(d))))
            fail_msg("%s at %g: value %.17g, should be %.17g; slope %.17g, should be %.17g", text, at[k],
                     result[0], v, result[1], d);
        free(plan);
    }
    assert_true(tried >= 3);
    pd_buf_init(&b, 0);
    pk_formula_latex(f, &b);
    assert_true(b.len > 1);
    pk_formula_torch(f, &b);
    assert_non_null(strstr(b.data, "def attention_weights"));
    pd_buf_done(&b);
    pk_formula_free(f);
}

#define FORMULA_MEANING(name, arity, text)
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    static double of_##id(double a, double b, double c)                                                      \
    {                                                                                                        \
        (void)b;                                                                                             \
        (void)c;                                                                                             \
        return (double)(value);                                                                              \
    }
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION

static void test_formula_table_is_all_that_a_function_needs(void **state)
{
    (void)state;
#define FORMULA_FUNCTION(id, name, arity, symmetry, value, slope, interval, cpu, cuda, latex, torch, graph)  \
    assert_true(strlen(#cpu) > 1 && strlen(cuda) > 1 && strlen(latex) > 1 && strlen(torch) > 1);             \
    if (name)                                                                                                \
        one_function(name, arity, of_##id);
#include "kernels/formula/functions.def"
#undef FORMULA_FUNCTION
#undef FORMULA_MEANING
}

/* ---- programs and rows ---- */

static int operations(const char *text)
{
    struct pk_formula *f = parse(text);
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    int n;

    assert_non_null(plan);
    assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
    n = plan->back.count - plan->back.per_row;
    free(plan);
    pk_formula_free(f);
    return n;
}

static void test_formula_value_and_slope_share_operations(void **state)
{
    (void)state;
    /* One of them multiplies by the gradient. */
    assert_true(operations("s^3/(1+abs(s))") <= 10);
    assert_true(operations("s^3") <= 4);
    assert_true(operations("softmax(s)") <= 5);
    assert_true(operations("a*s^3/sqrt(n)") <= 4);
}

static void test_formula_too_long_for_a_program_is_an_error(void **state)
{
    char text[2048] = "s";
    struct pk_formula *f;
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    struct pd_why why = {{0}};

    (void)state;
    assert_non_null(plan);
    for (int k = 1; k < 60; k++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "+sin(%d*s)*cos(s/%d)", k, k + 100);
    f = parse(text);
    assert_int_equal(pk_formula_plan(f, plan, &why), PD_ERR_LIMIT);
    assert_non_null(strstr(why.text, "128 instructions"));
    pk_formula_free(f);
    free(plan);
}

/* A factor 1 + exp(x) of a slope does not cancel by division, since its reciprocal is a sigmoid. */
static void test_formula_factors_that_programs_share_are_divided_out(void **state)
{
    static const char *const texts[] = {"softmax(exp(g-s)-s)", "softmax(2*j-s+exp(a-s))", "exp(s+exp(s))",
                                        "(1+exp(s))/rowsum(s^2)", "exp(exp(s)+s)*(1+exp(s))^2"};

    (void)state;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        struct pk_formula *f = parse(texts[k]), *d = NULL;
        struct pk_formula_fault fault;
        struct pk_formula_plan *plan = malloc(sizeof *plan);
        double leaf[PK_LEAVES], r[PK_FORMULA_RESULTS];
        struct pd_buf b;

        assert_non_null(plan);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        for (int i = 0; i < plan->turn.count; i++)
            for (int q = 0; q < pk_formula_arity((enum pk_formula_op)plan->turn.code[i].op); q++)
                assert_int_not_equal(plan->turn.code[i].in[q], PK_FORMULA_LEAF(PK_LEAF_S));
        for (int i = 0; i < PK_LEAVES; i++)
            leaf[i] = 0.75;
        if (!plan->rows) {
            pd_buf_init(&b, 0);
            assert_int_equal(pk_formula_slope_text(f, PK_LEAF_S, 1, &b), PD_OK);
            assert_int_equal(
                pk_formula_parse(b.data, b.len, PK_FORMULA_ACTIVATION, false, params, 2, &d, &fault), PD_OK);
            leaf[PK_LEAF_DA] = 1;
            pk_formula_run(&plan->back, leaf, r);
            assert_true(fabs(r[0] / pk_formula_value(f, leaf) - 1) < 1e-12);
            assert_true(fabs(r[1] / pk_formula_value(d, leaf) - 1) < 1e-12);
            pd_buf_done(&b);
            pk_formula_free(d);
        }
        pk_formula_free(f);
        free(plan);
    }
}

/* No instruction raises to more than 255, and pow is for bases that are not negative. */
static void test_formula_large_integer_powers_keep_the_sign(void **state)
{
    static const struct {
        const char *text;
        double power;
    } powers[] = {
        {"s^64*s^63", 127},       {"(s^5)^51", 255},    {"(s^16)^16", 256},  {"s^64*s^64*s^64*s^64*s", 257},
        {"((s^17)^15)^15", 3825}, {"(s^-16)^-17", 272}, {"(s^-19)^15", -285}};

    (void)state;
    for (size_t k = 0; k < sizeof powers / sizeof *powers; k++)
        for (double s = -1.01; s < -0.95; s += 0.02) {
            struct pk_formula *f = parse(powers[k].text);
            struct pk_formula_plan *plan = malloc(sizeof *plan);
            double at[PK_LEAVES] = {0}, r[PK_FORMULA_RESULTS];
            const double want = pow(s, powers[k].power), rise = powers[k].power * pow(s, powers[k].power - 1);

            assert_non_null(plan);
            assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
            for (int i = 0; i < plan->back.count; i++)
                assert_int_not_equal(plan->back.code[i].op, PK_FO_POWER);
            at[PK_LEAF_S] = s;
            at[PK_LEAF_DA] = 1;
            pk_formula_run(&plan->back, at, r);
            if (!(fabs(r[0] - want) <= 1e-12 * fabs(want)) || !(fabs(r[1] - rise) <= 1e-12 * fabs(rise)))
                fail_msg("'%s' at %g: %g, should be %g; slope %g, should be %g", powers[k].text, s, r[0],
                         want, r[1], rise);
            pk_formula_free(f);
            free(plan);
        }
}

static void test_formula_row_of_large_logits_is_stable(void **state)
{
    static const char *const texts[] = {"softmax(s)",
                                        "exp(s)/(exp(b)+rowsum(exp(s)))",
                                        "exp(s)/(1+rowsum(exp(s)))",
                                        "relu(exp(s)-1)/(1e-8+rowsum(abs(exp(s)-1)))",
                                        "relu(softmax(s)+a/ni)",
                                        "exp(2*s)/sqrt(rowsum(exp(4*s)))"};
    double leaf[PK_LEAVES], s[4] = {3000, 2999, -4000, 2990}, a[4], low[4] = {0, -1, -7000, -10}, b[4];

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 0.25;
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        struct pk_formula *f = parse(texts[t]);

        assert_int_equal(pk_formula_row_value(f, leaf, s, NULL, 4, a, NULL), PD_OK);
        for (int k = 0; k < 4; k++)
            assert_true(isfinite(a[k]) && a[k] >= 0 && a[k] <= 2);
        if (t == 0) {
            assert_int_equal(pk_formula_row_value(f, leaf, low, NULL, 4, b, NULL), PD_OK);
            assert_memory_equal(a, b, sizeof a);
        }
        pk_formula_free(f);
    }
}

/* A as a kernel computes it. */
static void run_row(const struct pk_formula_plan *p, const double *s, int n, double *ret_a)
{
    double at[PK_LEAVES] = {0}, r[PK_FORMULA_RESULTS], g = 1;

    at[PK_LEAF_N] = at[PK_LEAF_NI] = n;
    at[PK_LEAF_SHIFT] = p->shift_zero ? 0 : -INFINITY;
    for (int k = 0; k < n && p->shift; k++) {
        at[PK_LEAF_S] = s[k];
        pk_formula_run(&p->exponent, at, r);
        at[PK_LEAF_SHIFT] = fmax(at[PK_LEAF_SHIFT], r[0]);
    }
    for (int m = 0; m < p->rows; m++)
        at[PK_LEAF_ROW + m] = p->row[m] == PK_ROW_SUM ? 0 : -INFINITY;
    for (int k = 0; k < n; k++) {
        at[PK_LEAF_S] = s[k];
        pk_formula_run(p->two_passes ? &p->sums : &p->value, at, r);
        for (int m = 0; m < p->rows; m++) {
            const double x = r[m + !p->two_passes];

            at[PK_LEAF_ROW + m] =
                p->row[m] == PK_ROW_SUM ? at[PK_LEAF_ROW + m] + x : fmax(at[PK_LEAF_ROW + m], x);
        }
    }
    if (!p->two_passes) {
        pk_formula_run(&p->turn, at, r);
        g = r[0];
    }
    for (int k = 0; k < n; k++) {
        at[PK_LEAF_S] = s[k];
        pk_formula_run(&p->value, at, r);
        ret_a[k] = g * r[0];
    }
}

static void test_formula_exponents_may_name_row_functions(void **state)
{
    static const double rows[][3] = {{3000, 2999, 2997}, {-2000, -1999, -2001}, {0.5, 0, -0.5}};
    static const char *const texts[] = {"t = s - rowmax(s); exp(t)/(2+exp(t))",
                                        "t = s - rowsum(s)/ni; exp(t)/(2+exp(t))"};

    (void)state;
    for (int text = 0; text < 2; text++) {
        struct pk_formula *f = parse(texts[text]);
        struct pk_formula_plan *plan = malloc(sizeof *plan);
        struct pd_buf torch;

        assert_non_null(plan);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        for (int m = 0; m < 3; m++) {
            const double *s = rows[m], middle = (s[0] + s[1] + s[2]) / 3, top = fmax(s[0], fmax(s[1], s[2]));
            double a[3];

            run_row(plan, s, 3, a);
            for (int k = 0; k < 3; k++) {
                const double want = 1 / (1 + 2 * exp((text ? middle : top) - s[k]));

                if (!(fabs(a[k] - want) < 1e-12))
                    fail_msg("'%s' at %g: %g, should be %g", texts[text], s[k], a[k], want);
            }
        }
        pd_buf_init(&torch, 0);
        pk_formula_torch(f, &torch);
        assert_null(strstr(strstr(torch.data, "_w = "), "row"));
        pd_buf_done(&torch);
        pk_formula_free(f);
        free(plan);
    }
}

/* One exponential above a power of a sum: as many sigmoids take it as its exponent has. */
static void test_formula_quotients_of_exponentials_stand_large_logits(void **state)
{
    static const struct {
        const char *text;
        int u, m; /* exp(u s) / (3 + exp(s))^m, times 3^k */
        double scale;
    } rows[] = {{"exp(s)/(3+exp(s))", 1, 1, 1},      {"exp(s)/(3+exp(s))^2", 1, 2, 1},
                {"n*exp(s)/(n+exp(s))^2", 1, 2, 3},  {"exp(2*s)/(n+exp(s))^3", 2, 3, 1},
                {"exp(s)/(n+exp(s))^3", 1, 3, 1},    {"n*exp(3*s)/(n+exp(s))^3", 3, 3, 3},
                {"exp(-s)/(1/3+exp(-s))^2", 1, 2, 9}};
    static const double at[] = {-4000, -30, -1, 0, 0.5, 2, 40, 4000};

    (void)state;
    for (size_t t = 0; t < sizeof rows / sizeof *rows; t++) {
        struct pk_formula *f = parse(rows[t].text);
        struct pk_formula_plan *plan = malloc(sizeof *plan);

        assert_non_null(plan);
        assert_int_equal(pk_formula_plan(f, plan, NULL), PD_OK);
        for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
            const double s[3] = {at[k], 1, -1}, x = at[k] - log(3);
            const double want = rows[t].scale * pow(3, rows[t].u - rows[t].m) *
                                (x < 0 ? exp(rows[t].u * x) / pow(1 + exp(x), rows[t].m)
                                       : exp((rows[t].u - rows[t].m) * x) / pow(1 + exp(-x), rows[t].m));
            double a[3];

            run_row(plan, s, 3, a);
            if (!(fabs(a[0] - want) <= 1e-12 * want + 1e-300))
                fail_msg("'%s' at %g: %g, should be %g", rows[t].text, s[0], a[0], want);
        }
        pk_formula_free(f);
        free(plan);
    }
}

static void test_formula_row_without_a_sum_is_zero(void **state)
{
    static const char *const texts[] = {"s/sqrt(rowsum(s^2))", "s^2/rowsum(s^2)", "softmax(s)",
                                        "relu(s)/rowsum(relu(s))"};
    const unsigned char none[3] = {0, 0, 0};
    double leaf[PK_LEAVES] = {0}, zero[3] = {0, 0, 0}, a[3];

    (void)state;
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
        struct pk_formula *f = parse(texts[t]);

        assert_int_equal(pk_formula_row_value(f, leaf, zero, t == 2 ? none : NULL, 3, a, NULL), PD_OK);
        for (int k = 0; k < 3; k++)
            assert_true(a[k] == 0);
        pk_formula_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_spellings_of_one_function_have_one_normal_form),
        cmocka_unit_test(test_formula_different_functions_differ),
        cmocka_unit_test(test_formula_numbers_are_read_as_they_are_printed),
        cmocka_unit_test(test_formula_powers_are_read_as_they_are_printed),
        cmocka_unit_test(test_formula_latex_shows_the_same_function),
        cmocka_unit_test(test_formula_errors_name_the_character),
        cmocka_unit_test(test_formula_comparisons_of_extreme_coefficients),
        cmocka_unit_test(test_formula_limits_are_errors),
        cmocka_unit_test(test_formula_short_names_are_read_once_however_often_they_are_named),
        cmocka_unit_test(test_formula_takes_less_than_a_mebibyte),
        cmocka_unit_test(test_formula_underlines),
        cmocka_unit_test(test_formula_initial_value_reads_sizes_alone),
        cmocka_unit_test(test_formula_piece_that_is_not_taken_never_poisons_a_slope),
        cmocka_unit_test(test_formula_table_is_all_that_a_function_needs),
        cmocka_unit_test(test_formula_value_and_slope_share_operations),
        cmocka_unit_test(test_formula_too_long_for_a_program_is_an_error),
        cmocka_unit_test(test_formula_factors_that_programs_share_are_divided_out),
        cmocka_unit_test(test_formula_large_integer_powers_keep_the_sign),
        cmocka_unit_test(test_formula_row_of_large_logits_is_stable),
        cmocka_unit_test(test_formula_exponents_may_name_row_functions),
        cmocka_unit_test(test_formula_quotients_of_exponentials_stand_large_logits),
        cmocka_unit_test(test_formula_row_without_a_sum_is_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
