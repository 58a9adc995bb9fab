/* Learning rates at the edges of their ranges; the curves themselves are golden cases (optim/schedule_*). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/worker/train/schedule.h"

static bool near(double a, double b)
{
    return a - b < 1e-15 && b - a < 1e-15;
}

static void test_schedule_constant_after_warm_up(void **state)
{
    struct train_schedule s = {.curve = TRAIN_CURVE_CONSTANT,
                               .warm_form = TRAIN_WARM_NANOGPT,
                               .lr = 1,
                               .warm = 3,
                               .total = 10,
                               .shifted = true,
                               .steps_per_unit = 1};

    (void)state;
    assert_true(near(train_schedule_lr(&s, 0), 0.25));
    assert_true(near(train_schedule_lr(&s, 2), 0.75));
    assert_true(near(train_schedule_lr(&s, 3), 1));
    assert_true(near(train_schedule_lr(&s, 1000), 1));
}

static void test_schedule_linear_ends_at_the_minimum(void **state)
{
    struct train_schedule s = {.curve = TRAIN_CURVE_LINEAR,
                               .lr = 1,
                               .min_lr = 0.1,
                               .warm = 0,
                               .total = 9,
                               .shifted = true,
                               .steps_per_unit = 1};

    (void)state;
    assert_true(near(train_schedule_lr(&s, 0), 1));
    assert_true(near(train_schedule_lr(&s, 3), 0.7));
    assert_true(near(train_schedule_lr(&s, 9), 0.1));
}

static void test_schedule_steps_fall_at_milestones(void **state)
{
    const int64_t at[] = {5, 8};
    struct train_schedule s = {.curve = TRAIN_CURVE_STEP,
                               .lr = 1,
                               .min_lr = 0.02,
                               .factor = 0.1,
                               .milestones = at,
                               .milestone_count = 2,
                               .steps_per_unit = 1,
                               .total = 10};

    (void)state;
    assert_true(near(train_schedule_lr(&s, 4), 1));
    assert_true(near(train_schedule_lr(&s, 5), 0.1));
    assert_true(near(train_schedule_lr(&s, 8), 0.02));
}

static void test_schedule_per_epoch_is_constant_within_one(void **state)
{
    struct train_schedule s = {
        .curve = TRAIN_CURVE_COSINE, .lr = 1, .min_lr = 0, .total = 4, .shifted = true, .steps_per_unit = 10};

    (void)state;
    assert_true(near(train_schedule_lr(&s, 0), train_schedule_lr(&s, 9)));
    assert_true(train_schedule_lr(&s, 10) < train_schedule_lr(&s, 9));
    assert_true(near(train_schedule_lr(&s, 20), 0.5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_constant_after_warm_up),
        cmocka_unit_test(test_schedule_linear_ends_at_the_minimum),
        cmocka_unit_test(test_schedule_steps_fall_at_milestones),
        cmocka_unit_test(test_schedule_per_epoch_is_constant_within_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
