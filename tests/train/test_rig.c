/* The comparisons themselves: what they let pass is not tested by the tests that use them. */
#include <math.h>

#include "tests/lib/worst.h"
#include "tests/train/rig.h"

static void test_far_point_finds_every_difference(void **state)
{
    struct point want[] = {{"loss/train", 1, 0.5}, {"loss/train", 2, 40}, {"lr", 2, 0.25}};
    struct point got[] = {{"loss/train", 1, 0.5}, {"loss/train", 2, 40}, {"lr", 2, 0.25}};
    struct book a = {.points = want, .count = 3}, b = {.points = got, .count = 3};

    (void)state;
    assert_null(far_point(&a, &b, 0));
    got[1].value = 40.3;
    assert_null(far_point(&a, &b, 0.01));
    assert_ptr_equal(far_point(&a, &b, 0.001), &want[1]);
    for (int i = 0; i < 3; i++) {
        const double was = want[i].value;

        got[1].value = 40;
        got[i].value = NAN;
        assert_ptr_equal(far_point(&a, &b, 0.01), &want[i]);
        got[i].value = INFINITY;
        assert_ptr_equal(far_point(&a, &b, 0.01), &want[i]);
        got[i].value = was;
        want[i].value = NAN;
        assert_ptr_equal(far_point(&a, &b, 0.01), &want[i]);
        want[i].value = was;
    }
    b.count = 2;
    assert_ptr_equal(far_point(&a, &b, 0.01), &want[2]);
}

static void test_worse_keeps_a_nan(void **state)
{
    (void)state;
    assert_true(worse(0, 2) == 2 && worse(3, 2) == 3 && worse(0, 0) == 0);
    assert_true(isnan(worse(1, NAN)) && isnan(worse(worse(1, NAN), 2)) && isinf(worse(1, INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_point_finds_every_difference),
        cmocka_unit_test(test_worse_keeps_a_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
