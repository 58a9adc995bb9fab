/* Statistics of a gradient's tail, of numbers for which they are known. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <math.h>

#include <cmocka.h>

#include "daemon/worker/train/tails.h"

/* 1 .. 1000, of both signs. */
static void count_up(double g[1000])
{
    for (int i = 0; i < 1000; i++)
        g[(i * 37) % 1000] = i % 2 ? i + 1 : -(i + 1);
}

static void test_tails_of_whole_numbers(void **state)
{
    static double g[1000];
    struct tails t;
    double squares = 0, top = 0, logs = 0;

    (void)state;
    count_up(g);
    tails_of(g, 1000, &t);
    for (int i = 1; i <= 1000; i++) {
        squares += (double)i * i;
        top += i > 990 ? (double)i * i : 0;
        logs += i > 990 ? log(i / 990.0) : 0;
    }
    assert_int_equal(t.count, 1000);
    assert_float_equal(t.rms, sqrt(squares / 1000), 1e-9);
    assert_float_equal(t.ratio, 999.0 / 500, 1e-12);
    assert_float_equal(t.share, top / squares, 1e-12);
    assert_float_equal(t.hill, 10 / logs, 1e-9);
    assert_int_equal(t.zeros + t.below + t.above, 0);
    /* from 1 on: a bin ends at 10^(k/10), so 1 alone is in the first */
    assert_float_equal(t.bin[-TAILS_LOW * TAILS_DECADE], 1, 0);
    assert_float_equal(t.bin[(3 - TAILS_LOW) * TAILS_DECADE], 1, 0);             /* 1000 */
    assert_float_equal(t.bin[(3 - TAILS_LOW) * TAILS_DECADE - 1], 999 - 794, 0); /* 795 .. 999 */
}

static void test_tails_of_a_shifted_pair_have_the_kurtosis_of_the_pair(void **state)
{
    double g[] = {9, 11, 9, 11}; /* +-1 about 10 */
    struct tails t;

    (void)state;
    tails_of(g, 4, &t);
    assert_float_equal(t.kurtosis, 1, 1e-12);
}

static void test_tails_do_not_change_with_a_factor(void **state)
{
    static double a[1000], b[1000];
    struct tails s, t;

    (void)state;
    count_up(a);
    count_up(b);
    for (int i = 0; i < 1000; i++)
        b[i] *= 1e-5;
    tails_of(a, 1000, &s);
    tails_of(b, 1000, &t);
    assert_float_equal(s.kurtosis, t.kurtosis, 1e-9);
    assert_float_equal(s.hill, t.hill, 1e-9);
    assert_float_equal(s.ratio, t.ratio, 1e-9);
    assert_float_equal(s.share, t.share, 1e-12);
}

static void test_tails_beyond_the_bins_are_counted_apart(void **state)
{
    double g[] = {0, 1e-17, -1e5, 0, 1e-16};
    struct tails t;
    double in = 0;

    (void)state;
    tails_of(g, 5, &t);
    for (int i = 0; i < TAILS_BINS; i++)
        in += t.bin[i];
    assert_int_equal(t.zeros, 2);
    assert_int_equal(t.above, 1);
    assert_float_equal(in + (double)t.below, 2, 0);
}

static void test_tails_that_have_no_value_are_not_numbers(void **state)
{
    double zeros[] = {0, 0, 0}, one[] = {3};
    struct tails t;

    (void)state;
    tails_of(zeros, 3, &t);
    assert_true(isnan(t.kurtosis) && isnan(t.hill) && isnan(t.ratio) && isnan(t.share));
    assert_float_equal(t.rms, 0, 0);
    tails_of(one, 1, &t);
    assert_true(isnan(t.kurtosis) && isnan(t.hill) && isnan(t.share));
    assert_float_equal(t.ratio, 1, 0);
}

/* With NaN everywhere that a selection starts from, and beside infinity alone. */
static void test_tails_of_entries_that_are_not_finite_are_counted_above(void **state)
{
    double g[] = {(double)NAN, 1, 0, (double)NAN, -3, 1e-17, (double)INFINITY, (double)NAN};
    double infinite[200];
    struct tails t;

    (void)state;
    tails_of(g, 8, &t);
    assert_int_equal(t.count, 8);
    assert_int_equal(t.zeros, 1);
    assert_int_equal(t.below, 1);
    assert_int_equal(t.above, 4);
    assert_float_equal(t.bin[-TAILS_LOW * TAILS_DECADE], 1, 0);
    assert_true(isnan(t.rms) && isnan(t.kurtosis) && isnan(t.hill) && isnan(t.ratio) && isnan(t.share));
    for (int i = 0; i < 200; i++)
        infinite[i] = i ? i : -(double)INFINITY;
    tails_of(infinite, 200, &t);
    assert_int_equal(t.above, 1);
    assert_true(isinf(t.rms) && isnan(t.kurtosis) && isnan(t.hill) && isnan(t.ratio) && isnan(t.share));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tails_of_whole_numbers),
        cmocka_unit_test(test_tails_of_a_shifted_pair_have_the_kurtosis_of_the_pair),
        cmocka_unit_test(test_tails_do_not_change_with_a_factor),
        cmocka_unit_test(test_tails_beyond_the_bins_are_counted_apart),
        cmocka_unit_test(test_tails_that_have_no_value_are_not_numbers),
        cmocka_unit_test(test_tails_of_entries_that_are_not_finite_are_counted_above),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
