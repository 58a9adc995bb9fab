/* tests/formula/test_formula_random.c: 2,000 random formulas against trees of this folder's own (trees.h). POLYD_SEED draws
 * others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/formula/trees.h"

#define FORMULAS 2000
#define STEP 1e-30

static bool close_to(double a, double b, double scale, double tolerance)
{
    return fabs(a - b) <= tolerance * (fabs(a) + fabs(b) + scale);
}

/* Value and gradients of sum_k w_k A_k by the programs of a plan, as a kernel computes them. */
static void by_plan(const struct pk_formula_plan *plan, double *at, const double *s, const double *w,
                    double *ret_a, double *ret_ds, double *ret_dp)
{
    double r[PK_FORMULA_RESULTS], g = 1, d = 0, f[TREE_KEYS];
    double drow[PK_FORMULA_ROWS] = {0};
    int next;

    memset(ret_dp, 0, PK_FORMULA_PARAMS * sizeof *ret_dp);
    at[PK_LEAF_SHIFT] = plan->shift_zero ? 0 : -INFINITY;
    for (int k = 0; plan->shift && k < TREE_KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        pk_formula_run(&plan->exponent, at, r);
        at[PK_LEAF_SHIFT] = fmax(at[PK_LEAF_SHIFT], r[0]);
    }
    for (int m = 0; m < plan->rows; m++)
        at[PK_LEAF_ROW + m] = plan->row[m] == PK_ROW_SUM ? 0 : -INFINITY;
    for (int k = 0; k < TREE_KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        pk_formula_run(plan->two_passes ? &plan->sums : &plan->value, at, r);
        f[k] = r[0];
        for (int m = 0; m < plan->rows; m++) {
            double x = r[m + !plan->two_passes], *to = &at[PK_LEAF_ROW + m];

            if (plan->row[m] == PK_ROW_SUM)
                *to += x;
            else if (x > *to || k == 0) {
                *to = x;
                at[PK_LEAF_ARG + m] = k;
            }
        }
    }
    if (!plan->two_passes) {
        pk_formula_run(&plan->turn, at, r);
        g = r[0];
        for (int k = 0; k < TREE_KEYS; k++)
            d += w[k] * f[k];
        at[PK_LEAF_D] = d;
        pk_formula_run(&plan->turn_back, at, r);
        next = 0;
        for (; next < plan->rows; next++)
            drow[next] = r[next];
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (plan->turn_scalars >> m & 1)
                ret_dp[m] += r[next++];
    } else {
        for (int k = 0; k < TREE_KEYS; k++) {
            at[PK_LEAF_S] = s[k];
            at[PK_LEAF_J] = k;
            at[PK_LEAF_DA] = w[k];
            pk_formula_run(&plan->before, at, r);
            for (int m = 0; m < plan->rows; m++)
                drow[m] += r[m];
        }
    }
    for (int m = 0; m < plan->rows; m++)
        at[PK_LEAF_DROW + m] = drow[m];
    for (int k = 0; k < TREE_KEYS; k++) {
        at[PK_LEAF_S] = s[k];
        at[PK_LEAF_J] = k;
        at[PK_LEAF_DA] = w[k] * g;
        pk_formula_run(&plan->back, at, r);
        ret_a[k] = r[0] * g;
        ret_ds[k] = r[1];
        next = 2;
        for (int m = 0; m < PK_FORMULA_PARAMS; m++)
            if (plan->back_scalars >> m & 1)
                ret_dp[m] += r[next++];
    }
}

static bool moderate(double x)
{
    return isfinite(x) && fabs(x) < 1e6;
}

static void test_random_formulas_match_the_complex_step(void **state)
{
    struct pk_formula_plan *plan = malloc(sizeof *plan);
    int checked = 0, with_rows = 0, near = 0, too_long = 0;

    (void)state;
    assert_non_null(plan);
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = tree_formula(&t, text, sizeof text, true);
        struct tree_place p = {.i = 1, .a = 0.6, .p = 1.3, .g = 0.7};
        double at[PK_LEAVES], s[TREE_KEYS], w[TREE_KEYS], a[TREE_KEYS], ds[TREE_KEYS], dp[PK_FORMULA_PARAMS],
            own[TREE_KEYS], total = 0, size = 0;
        const struct pk_formula_param *name;
        bool ok = true;
        int n;
        enum pd_err err;

        if (!f)
            continue;
        tree_fill(f, at);
        n = pk_formula_params(f, &name);
        for (int k = 0; k < TREE_KEYS; k++) {
            p.s[k] = s[k] = tree_uniform(-2.5, 2.5);
            w[k] = tree_uniform(-1, 1);
        }
        for (p.k = 0; p.k < TREE_KEYS; p.k++) {
            own[p.k] = creal(tree_value(&t, t.root, &p));
            ok = ok && moderate(own[p.k]);
            total += fabs(own[p.k]);
        }
        err = pk_formula_plan(f, plan, NULL);
        if (err == PD_ERR_LIMIT)
            too_long++;
        near += p.near_break;
        if (!ok || p.near_break || err != PD_OK) {
            pk_formula_free(f);
            continue;
        }
        by_plan(plan, at, s, w, a, ds, dp);
        for (int k = 0; k < TREE_KEYS; k++)
            if (!close_to(a[k], own[k], total + 1, 1e-12))
                fail_msg("'%s' at s = %.17g, key %d: %.17g, should be %.17g", text, s[k], k, a[k], own[k]);
        for (int q = 0; q < TREE_KEYS + n; q++) {
            double reference = 0, mine = q < TREE_KEYS ? ds[q] : dp[q - TREE_KEYS];
            struct tree_place moved = p;

            if (q < TREE_KEYS)
                moved.s[q] += _Complex_I * STEP;
            else if (name[q - TREE_KEYS].name[0] == 'a')
                moved.a += _Complex_I * STEP;
            else if (name[q - TREE_KEYS].name[0] == 'p')
                moved.p += _Complex_I * STEP;
            else
                moved.g += _Complex_I * STEP;
            for (moved.k = 0; moved.k < TREE_KEYS; moved.k++) {
                double d = cimag(tree_value(&t, t.root, &moved)) / STEP;

                reference += w[moved.k] * d;
                size += fabs(d);
            }
            if (moderate(size) && !close_to(mine, reference, size + total + 1, 1e-9))
                fail_msg("'%s' at %.17g %.17g %.17g %.17g, derivative %d: %.17g, should be %.17g", text, s[0],
                         s[1], s[2], s[3], q, mine, reference);
        }
        checked++;
        with_rows += t.rows;
        pk_formula_free(f);
    }
    free(plan);
    print_message("%d formulas, %d with row functions, %d near a break and %d too long passed over\n",
                  checked, with_rows, near, too_long);
    assert_int_equal(checked, FORMULAS);
    assert_true(with_rows > FORMULAS / 10);
}

static void test_random_formulas_match_second_order_on_and_beyond_breaks(void **state)
{
    static const double points[] = {-1.7, -1, -0.5, 0, 0.5, 1, 1.3, 2};
    int checked = 0, second = 0;

    (void)state;
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = tree_formula(&t, text, sizeof text, false);
        struct pk_formula *by[3] = {f, NULL, NULL};
        bool constant_from[3] = {false, false, false};
        double value_from[3] = {0, 0, 0};

        if (!f)
            continue;
        for (int order = 1; order <= 2; order++) {
            struct pd_buf b;
            struct pk_formula_fault fault;

            pd_buf_init(&b, 30000);
            if (pk_formula_slope_text(f, PK_LEAF_S, order, &b) == PD_OK) {
                enum pd_err err = pk_formula_parse(b.data, b.len, PK_FORMULA_ACTIVATION, false, tree_params,
                                                   2, &by[order], &fault);

                if (err != PD_OK && strstr(fault.text, "does not depend")) {
                    char with_s[40000];

                    constant_from[order] = true;
                    snprintf(with_s, sizeof with_s, "s + (%s)", b.data);
                    if (pk_formula_parse(with_s, strlen(with_s), PK_FORMULA_ACTIVATION, false, tree_params, 2,
                                         &by[order], &fault) == PD_OK) {
                        double at[PK_LEAVES];

                        tree_fill(by[order], at);
                        value_from[order] = pk_formula_value(by[order], at);
                    }
                } else if (err != PD_OK && err != PD_ERR_LIMIT && !strstr(fault.text, "divides by 0") &&
                           !strstr(fault.text, "no finite number")) {
                    fail_msg("'%s', derivative %d '%s': %s", text, order, b.data, fault.text);
                }
            }
            pd_buf_done(&b);
        }
        for (size_t k = 0; k < sizeof points / sizeof *points; k++) {
            struct tree_jet j = (tree_on_break = tree_singular = false, tree_jet_at(&t, t.root, points[k]));
            const double reference[3] = {j.v, j.d1, j.d2};
            const bool broken = tree_on_break, odd = tree_singular;
            const bool steep = !(fabs(tree_jet_at(&t, t.root, points[k] - 1e-9).d1) < 1e3) ||
                               !(fabs(tree_jet_at(&t, t.root, points[k] + 1e-9).d1) < 1e3);

            tree_on_break = broken;
            if (odd || !moderate(j.v))
                continue;
            for (int order = 1; order <= 2; order++) {
                double at[PK_LEAVES], v;

                if (!by[order] || !moderate(reference[order]) || !moderate(j.d1))
                    continue;
                tree_fill(by[order], at);
                at[PK_LEAF_S] = points[k];
                v = constant_from[order] ? value_from[order] : pk_formula_value(by[order], at);
                /* On a break one side's slope is as good as the other's; it need not exist where that of a side is unbounded,
                 * and a second one need not exist. */
                if (tree_on_break ? order == 1 && isnan(v) && !steep
                                  : !close_to(v, reference[order], 1 + fabs(j.d1) + fabs(j.v), 1e-8))
                    fail_msg("'%s', derivative %d at %g: %.17g, should be %.17g", text, order, points[k], v,
                             reference[order]);
                second += order == 2;
            }
        }
        for (int order = 0; order < 3; order++)
            pk_formula_free(by[order]);
        checked++;
    }
    print_message("%d formulas, %d second derivatives\n", checked, second);
    assert_int_equal(checked, FORMULAS);
    assert_true(second > FORMULAS);
}

static void test_random_formulas_are_read_as_they_are_printed(void **state)
{
    int checked = 0;

    (void)state;
    for (int trial = 0; checked < FORMULAS && trial < 8 * FORMULAS; trial++) {
        struct tree t;
        char text[4096];
        struct pk_formula *f = tree_formula(&t, text, sizeof text, true), *again = NULL;
        struct pk_formula_fault fault;
        struct pd_buf a, b;

        if (!f)
            continue;
        pd_buf_init(&a, 30000);
        pd_buf_init(&b, 30000);
        pk_formula_canonical(f, &a);
        if (pd_buf_err(&a) == PD_OK && a.len <= PK_FORMULA_TEXT &&
            pk_formula_parse(a.data, a.len, PK_FORMULA_ACTIVATION, false, tree_params, 2, &again, &fault) ==
                PD_OK)
            pk_formula_canonical(again, &b);
        else if (a.len <= PK_FORMULA_TEXT && !strstr(fault.text, "numbers, names and operators"))
            fail_msg("'%s' is printed as '%s': %s", text, a.data, fault.text);
        if (again && strcmp(a.data, b.data))
            fail_msg("'%s' is printed as '%s', and that as '%s'", text, a.data, b.data);
        pd_buf_done(&a);
        pd_buf_done(&b);
        pk_formula_free(f);
        pk_formula_free(again);
        checked++;
    }
    assert_int_equal(checked, FORMULAS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_formulas_match_the_complex_step),
        cmocka_unit_test(test_random_formulas_match_second_order_on_and_beyond_breaks),
        cmocka_unit_test(test_random_formulas_are_read_as_they_are_printed),
    };
    const char *given = getenv("POLYD_SEED");

    tree_seed = given ? strtoull(given, NULL, 10) : 20261124;
    printf("# POLYD_SEED=%llu\n", (unsigned long long)tree_seed);
    tree_seed = tree_seed * 0x9e3779b97f4a7c15ull | 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
