/* tests/formula/test_formula_report.c: what is known of a formula before a run: warnings with their character, properties,
 * the forecast at measured logits, the scalar that scales A, FlexAttention's refusals, built-ins that are recognised. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formula/forecast.h"
#include "kernels/formula/formula.h"

static const struct pk_formula_param params[] = {{"g", PK_RANGE_UNIT, 0}, {"p", PK_RANGE_POSITIVE, 0}};

/* One head of one layer. */
static const struct pk_formula_heads *head_of(const double *leaf)
{
    static struct pk_formula_heads heads;

    heads.count = 1;
    memcpy(heads.leaf[0], leaf, sizeof heads.leaf[0]);
    return &heads;
}

static struct pk_formula *parse(const char *text)
{
    struct pk_formula *f = NULL;
    struct pk_formula_fault fault;

    if (pk_formula_parse(text, strlen(text), PK_FORMULA_ACTIVATION, false, params, 2, &f, &fault) != PD_OK)
        fail_msg("'%s': %s", text, fault.text);
    return f;
}

static void test_formula_report_warns_of_what_can_fail(void **state)
{
    static const struct {
        const char *text;
        int at;
    } warned[] = {{"log(s)", 0},
                  {"1/s", 1},
                  {"exp(s^2)", 0},
                  {"sqrt(s)", 0},
                  {"s^-2", 1},
                  {"1+s/(s-1)", 3},
                  {"softmax(c*tanh(s/c))", 16}};
    static const char *const quiet[] = {"s^3/(1+abs(s))", "where(s > 0, sqrt(s), 0)",
                                        "softmax(s)",     "exp(s)/(1+rowsum(exp(s)))",
                                        "log(1+s^2)",     "s/(1e-3+s^2)",
                                        "gelu(s)"};
    double leaf[PK_LEAVES];
    struct pk_formula_report r;

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 1;
    for (size_t k = 0; k < sizeof warned / sizeof *warned; k++) {
        struct pk_formula *f = parse(warned[k].text);

        pk_formula_report(f, leaf, &r);
        if (r.warnings != 1 || r.warning[0].at != warned[k].at)
            fail_msg("'%s': %d warnings, the first at %d: %s", warned[k].text, r.warnings, r.warning[0].at,
                     r.warning[0].text);
        pk_formula_free(f);
    }
    for (size_t k = 0; k < sizeof quiet / sizeof *quiet; k++) {
        struct pk_formula *f = parse(quiet[k]);

        pk_formula_report(f, leaf, &r);
        if (r.warnings)
            fail_msg("'%s': %s", quiet[k], r.warning[0].text);
        pk_formula_free(f);
    }
}

static void test_formula_report_says_where_an_exponential_overflows(void **state)
{
    static const struct {
        const char *text;
        int at; /* -1: nothing is to be warned of */
        const char *says;
    } known[] = {{"exp(s^2)", 0, "s = 9.42;"},
                 {"exp(s^3)", 0, "s = 4.46;"},
                 {"1+exp(-s^3)", 2, "s = -4.46;"},
                 {"exp(exp(s))", 0, "s = 4.49;"},
                 {"exp(10*s)", 0, "s = 8.87;"},
                 {"s/exp(10*s)", 1, "s = -8.87;"},
                 {"exp(s)*exp(3*s)", 6, "s = 22.2;"},
                 {"t = exp(s); t^3", 13, "s = 29.6;"},
                 {"exp(s)", -1, NULL}, /* at 88.7 */
                 {"exp(s/2)", -1, NULL},
                 {"exp(-s^2)", -1, NULL},
                 {"exp(min(10*s, 50))", -1, NULL},
                 {"where(s < 0, exp(10*s), 1)", -1, NULL},
                 {"exp(10*s)/(1+exp(10*s))", -1, NULL}, /* a sigmoid */
                 {"exp(10*s)/(n+exp(10*s))", -1, NULL},
                 {"n*exp(10*s)/(n+exp(10*s))^2", -1, NULL},
                 {"exp(10*s)/rowsum(exp(10*s))", -1, NULL},
                 {"t = exp(s^2); t/(1+rowsum(t))", -1, NULL},
                 {"exp(5*s-rowmax(5*s))", -1, NULL},
                 {"softmax(exp(10*s))", 8, "s = 8.87;"},
                 {"exp(10*s)/rowsum(s^2+1)", 0, "s = 8.87;"}};
    double leaf[PK_LEAVES];
    struct pk_formula_report r;

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 1;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k].text);

        pk_formula_report(f, leaf, &r);
        if (r.warnings != (known[k].at >= 0))
            fail_msg("'%s': %d warnings, the first: %s", known[k].text, r.warnings, r.warning[0].text);
        if (r.warnings && (r.warning[0].at != known[k].at || !strstr(r.warning[0].text, known[k].says)))
            fail_msg("'%s': at %d: %s", known[k].text, r.warning[0].at, r.warning[0].text);
        pk_formula_free(f);
    }
}

static void test_formula_report_of_branches_that_fail(void **state)
{
    static const struct {
        const char *text;
        bool fails;
    } known[] = {{"where(s>0, 1/(s-1), 1/(s+1))", true},
                 {"where(s>0, 1/(s-1), 1)", true},
                 {"where(s>0, 1, log(s))", true},
                 {"2*where(s>0, 1/(s-30), 1/(s+30))", true}, /* no sampled logit is a pole */
                 {"where(s>0, 1/s, 0)", false},
                 {"where(s>0, sqrt(s), 0)", false},
                 {"where(log(s)>0, s, 1)", false},
                 {"s^3/(1+abs(s))", false},
                 {"exp(s)/(1+rowsum(exp(s)))", false}};
    double leaf[PK_LEAVES];
    struct pk_formula_report r;

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 1;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k].text);

        pk_formula_report(f, leaf, &r);
        if (r.may_fail != known[k].fails)
            fail_msg("'%s' %s fail", known[k].text, r.may_fail ? "may" : "cannot");
        pk_formula_free(f);
    }
}

static void test_formula_report_of_known_functions(void **state)
{
    double leaf[PK_LEAVES];
    struct pk_formula_report r;
    struct pk_formula_forecast w;
    struct pk_formula *f;

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 1;
    leaf[PK_LEAF_N] = 64;
    f = parse("s^3/sqrt(n)");
    pk_formula_report(f, leaf, &r);
    assert_true(r.at_zero == 0 && r.parity == PK_PARITY_ODD && r.growth == 3 && isinf(r.lo) && isinf(r.hi));
    /* E ||A||_F^2 = N^2 15 std^6 / N for independent normal logits */
    pk_formula_forecast(f, head_of(leaf),
                        &(struct pk_formula_start){.keys = 64, .causal = false, .logit_std = 0.5, .width = 0},
                        &w);
    assert_true(fabs(w.norm - sqrt(64 * 15 * pow(0.5, 6))) < 1e-9);
    /* ||A||_F is N^(1/2) with n in proportion */
    assert_true(fabs(w.growth - 0.5) < 1e-9 && w.f32_over == 0 && w.bf16_over == 0);
    /* q and k of 8 entries: E s^6 = 15 std^6 d (d+2) (d+4) / d^3 */
    pk_formula_forecast(f, head_of(leaf),
                        &(struct pk_formula_start){.keys = 64, .causal = true, .logit_std = 0.5, .width = 8},
                        &w);
    assert_true(fabs(w.norm - sqrt(65 * 0.5 * 15 * pow(0.5, 6) * 10 * 12 / 64)) < 1e-6);
    pk_formula_free(f);
    f = parse("sigmoid(s)");
    pk_formula_report(f, leaf, &r);
    assert_true(r.at_zero == 0.5 && r.lo == 0 && r.hi == 1 && r.growth == 0 && r.parity == PK_PARITY_NONE);
    pk_formula_free(f);
    f = parse("softmax(s)");
    /* E sum_j A^2 of a row is about exp(std^2) / N */
    pk_formula_forecast(
        f, head_of(leaf),
        &(struct pk_formula_start){.keys = 257, .causal = false, .logit_std = 0.3, .width = 0}, &w);
    assert_true(fabs(w.norm - exp(0.5 * 0.09)) < 0.01 && fabs(w.growth) < 0.02);
    pk_formula_free(f);
    /* exp(20 s) leaves f32 where s > 4.436 deviations, and its normal numbers where s < -4.367 */
    f = parse("exp(20*s)");
    pk_formula_forecast(f, head_of(leaf),
                        &(struct pk_formula_start){.keys = 64, .causal = false, .logit_std = 1, .width = 0},
                        &w);
    assert_true(fabs(w.f32_over / (erfc(88.72284 / 20 / sqrt(2)) / 2) - 1) < 0.02);
    assert_true(fabs(w.bf16_under / (erfc(87.33655 / 20 / sqrt(2)) / 2) - 1) < 0.02);
    pk_formula_free(f);
}

/* Of measured logits, here spread evenly over [-1, 1] and then all but 0. */
static void test_formula_forecast_of_measured_logits(void **state)
{
    double leaf[PK_LEAVES] = {0}, counts[64];
    struct pk_formula_start start = {
        .keys = 32, .logit_std = 9, .counts = counts, .bins = 64, .low = -1, .high = 1};
    struct pk_formula_forecast w;
    struct pk_formula *f = parse("s^3");

    (void)state;
    for (int k = 0; k < 64; k++)
        counts[k] = 5;
    pk_formula_forecast(f, head_of(leaf), &start, &w);
    assert_true(fabs(w.norm - 32 / sqrt(7)) < 1e-5); /* E s^6 = 1/7 */
    pk_formula_free(f);
    f = parse("exp(s)/(1+rowsum(exp(s)))");
    pk_formula_forecast(f, head_of(leaf), &start, &w);
    /* a row's sum is near 32 sinh 1, its sum of squares near 16 sinh 2 */
    assert_true(fabs(w.norm / (sqrt(32 * 16 * sinh(2)) / (1 + 32 * sinh(1))) - 1) < 0.03);
    start.low = -1e-9;
    start.high = 1e-9;
    pk_formula_forecast(f, head_of(leaf), &start, &w);
    assert_true(fabs(w.norm - 32.0 / 33) < 1e-6);
    pk_formula_free(f);
}

static void test_formula_factor_is_the_scalar_that_scales_a(void **state)
{
    static const struct {
        const char *text, *factor; /* NULL: there is none */
    } known[] = {{"s^3/sqrt(n)", NULL},
                 {"a*s^3", "a"},
                 {"b*s/(1+a*abs(s))", "b"},
                 {"softmax(a*s)", NULL},
                 {"c*softmax(a*s)/2", "c"},
                 {"a^2*s", NULL},
                 {"s/a", NULL},
                 {"a*s+b", NULL}};
    double leaf[PK_LEAVES];

    (void)state;
    for (int k = 0; k < PK_LEAVES; k++)
        leaf[k] = 0.7;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k].text);
        const struct pk_formula_param *name;
        const int at = (pk_formula_params(f, &name), pk_formula_factor(f, head_of(leaf)));

        if (known[k].factor ? at < 0 || strcmp(name[at].name, known[k].factor) : at >= 0)
            fail_msg("%s: %d", known[k].text, at);
        pk_formula_free(f);
    }
}

static void test_formula_forecast_is_the_mean_square_of_heads(void **state)
{
    enum { N = 64, HEADS = 4 };
    const struct pk_formula_start start = {.keys = N, .causal = true, .logit_std = 1e-6, .width = 16};
    static struct pk_formula_heads heads = {.count = HEADS};
    struct pk_formula *f = parse("h*s^3");
    struct pk_formula_forecast w;
    double square = 0;

    (void)state;
    for (int h = 0; h < HEADS; h++) {
        heads.leaf[h][PK_LEAF_HEAD] = h;
        heads.leaf[h][PK_LEAF_HEADS] = HEADS;
        heads.leaf[h][PK_LEAF_N] = N;
    }
    pk_formula_forecast(
        f, &heads, &(struct pk_formula_start){.keys = N, .causal = false, .logit_std = 0.5, .width = 0}, &w);
    assert_true(fabs(w.norm / (N * sqrt(15 * pow(0.5, 6) * (0 + 1 + 4 + 9) / HEADS)) - 1) < 1e-6);
    pk_formula_free(f);
    /* logits are almost 0: A depends on the distance alone */
    f = parse("softmax(s - 2^(-8*(h+1)/H)*(i-j))");
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++) {
            const double slope = pow(2, -8.0 * (h + 1) / HEADS);
            double sum = 0, squares = 0;

            for (int k = 0; k <= i; k++) {
                sum += exp(-slope * k);
                squares += exp(-2 * slope * k);
            }
            square += squares / sum / sum / HEADS;
        }
    pk_formula_forecast(f, &heads, &start, &w);
    if (!(fabs(w.norm / sqrt(square) - 1) < 0.02))
        fail_msg("%g instead of %g", w.norm, sqrt(square));
    pk_formula_free(f);
}

static void test_formula_factor_scales_every_head(void **state)
{
    static const struct {
        const char *text;
        int factor;
    } known[] = {{"where(h==0, a*s, softmax(s))", -1},
                 {"where(l<1, a*s, s)", -1},
                 {"a*(h+1)*s", 0},
                 {"where(h==0, 0, a*s)", 0}};
    static struct pk_formula_heads heads = {.count = 4};

    (void)state;
    for (int p = 0; p < heads.count; p++) {
        heads.leaf[p][PK_LEAF_HEAD] = p % 2;
        heads.leaf[p][PK_LEAF_LAYER] = p / 2;
        heads.leaf[p][PK_LEAF_PARAM] = 0.7 + p;
    }
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k].text);
        const int at = pk_formula_factor(f, &heads);

        if (at != known[k].factor)
            fail_msg("%s: %d", known[k].text, at);
        pk_formula_free(f);
    }
}

static void test_formula_flex_refuses_what_no_softmax_reaches(void **state)
{
    static const struct {
        const char *text, *says; /* NULL: it can be written */
    } known[] = {{"softmax(s)", NULL},
                 {"relu(s)/n", NULL},
                 {"sigmoid(s-log(n))", NULL},
                 {"s^3/sqrt(n)", "lower bound"},
                 {"exp(s)/(exp(b)+rowsum(exp(s)))", NULL},
                 {"s^4/(1+rowsum(s^4))", NULL},
                 {"s/sqrt(rowsum(s^2))", "row's sum"},
                 {"relu(softmax(s)+a/ni)", "row's sum"},
                 {"exp(s-rowmax(s))", "row's sum"},
                 {"exp(s^2)", NULL},
                 {"1/s^2", "no finite value"}};

    (void)state;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        struct pk_formula *f = parse(known[k].text);
        struct pd_why why = {.text = ""};
        struct pd_buf b;
        enum pd_err err;

        pd_buf_init(&b, 0);
        err = pk_formula_flex(f, &b, &why);
        if (known[k].says ? err != PD_ERR_UNSUPPORTED || !strstr(why.text, known[k].says) : err != PD_OK)
            fail_msg("%s: %d, %s", known[k].text, err, why.text);
        if (!known[k].says)
            assert_non_null(strstr(b.data, "def score_mod_of(n"));
        pd_buf_done(&b);
        pk_formula_free(f);
    }
}

static void test_formula_scalars_hide_nothing_in_python(void **state)
{
    static const char *const names[] = {"score_mod_of",
                                        "score_mod",
                                        "flex_attention",
                                        "attention",
                                        "attention_weights",
                                        "torch",
                                        "math",
                                        "lambda",
                                        "def",
                                        "if",
                                        "seen",
                                        "query",
                                        "lse"};

    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char text[160], want[160];
        struct pk_formula *f;
        struct pd_why why;
        struct pd_buf b;

        /* the first has the name that the second would get */
        snprintf(text, sizeof text, "exp(%s_*s)/(exp(%s)+rowsum(exp(%s_*s)))", names[k], names[k], names[k]);
        snprintf(want, sizeof want, "def score_mod_of(n, %s__, %s_, offset=0):", names[k], names[k]);
        f = parse(text);
        pd_buf_init(&b, 0);
        assert_int_equal(pk_formula_flex(f, &b, &why), PD_OK);
        if (!strstr(b.data, want))
            fail_msg("'%s' is not in\n%s", want, b.data);
        pd_buf_done(&b);
        pd_buf_init(&b, 0);
        pk_formula_torch(f, &b);
        snprintf(want, sizeof want, "def attention_weights(s, seen, n, %s__, %s_):", names[k], names[k]);
        if (!strstr(b.data, want))
            fail_msg("'%s' is not in\n%s", want, b.data);
        pd_buf_done(&b);
        pk_formula_free(f);
    }
}

static void test_formula_builtins_are_recognised(void **state)
{
    static const struct {
        const char *text, *name;
        int degree;
        double c, alpha;
    } rows[] = {
        {"softmax(s)", "softmax", 0, 1, 0},
        {"exp(s)/rowsum(exp(s))", "softmax", 0, 1, 0},
        {"s^3/sqrt(n)", "poly", 3, 1, 0.5},
        {"s*s/4", "poly", 2, 0.25, 0},
        {"s", "poly", 1, 1, 0},
        {"sigmoid(s)/n", "sigmoid", 0, 1, 1},
        {"relu(s)/n", "relu", 0, 1, 1},
        {"1/(1+exp(-s))*n^-0.5", "sigmoid", 0, 1, 0.5},
        {"sigmoid(s-log(n))", "sigmoid_bias", 0, 1, 0},
        {"1/(1+n*exp(-s))", "sigmoid_bias", 0, 1, 0},
        {"exp(s)/(n+exp(s))", "sigmoid_bias", 0, 1, 0},
        {"exp(s)/(2+exp(s))", NULL, 0, 0, 0},
        {"exp(4*s)/((1e-160+exp(s))^2*rowsum(exp(2*s)))", NULL, 0, 0, 0}, /* 1e160^2 fits into no number */
        {"t=1+s+s^2/2;t/rowsum(t)", "taylor", 0, 1, 0},
        {"t=sin(s+pi/4)^2;t/rowsum(t)", "periodic", 0, 1, 0},
        {"s^7", NULL, 0, 0, 0},
        {"a*s^3", NULL, 0, 0, 0},
        {"softmax(2*s)", NULL, 0, 0, 0},
        {"s^3/(1+abs(s))", NULL, 0, 0, 0},
    };

    (void)state;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct pk_formula *f = parse(rows[k].text);
        int degree;
        double c, alpha;
        const char *name = pk_formula_builtin(f, &degree, &c, &alpha);

        if (!rows[k].name != !name || (name && (strcmp(name, rows[k].name) || degree != rows[k].degree ||
                                                c != rows[k].c || alpha != rows[k].alpha)))
            fail_msg("'%s' is %s, degree %d, c %g, alpha %g", rows[k].text, name ? name : "none", degree, c,
                     alpha);
        pk_formula_free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula_report_warns_of_what_can_fail),
        cmocka_unit_test(test_formula_report_says_where_an_exponential_overflows),
        cmocka_unit_test(test_formula_report_of_branches_that_fail),
        cmocka_unit_test(test_formula_report_of_known_functions),
        cmocka_unit_test(test_formula_forecast_of_measured_logits),
        cmocka_unit_test(test_formula_factor_is_the_scalar_that_scales_a),
        cmocka_unit_test(test_formula_forecast_is_the_mean_square_of_heads),
        cmocka_unit_test(test_formula_factor_scales_every_head),
        cmocka_unit_test(test_formula_flex_refuses_what_no_softmax_reaches),
        cmocka_unit_test(test_formula_scalars_hide_nothing_in_python),
        cmocka_unit_test(test_formula_builtins_are_recognised),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
