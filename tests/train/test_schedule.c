/* Learning rates at the edges of their ranges; the curves themselves are golden cases (optim/schedule_*). */
#include <math.h>
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

/* The numbers of torch.optim.lr_scheduler.OneCycleLR (PyTorch 1.13), max_lr 0.1, total_steps 10, pct_start 0.4,
 * anneal_strategy linear, all else as it comes. */
static void test_schedule_one_cycle_is_that_of_torch(void **state)
{
    static const double lr[] = {0.004,     0.036,     0.068,     0.1,      0.0833334,
                                0.0666668, 0.0500002, 0.0333336, 0.016667, 4e-07};
    static const double beta1[] = {
        0.95, 0.91666666666667, 0.88333333333333, 0.85, 0.86666666666667, 0.88333333333333,
        0.9,  0.91666666666667, 0.93333333333333, 0.95};
    struct train_schedule s = {.curve = TRAIN_CURVE_ONE_CYCLE,
                               .lr = 0.1,
                               .warmup_lr = 0.1 / 25,
                               .min_lr = 0.1 / 25 / 1e4,
                               .warm = 4,
                               .total = 10,
                               .steps_per_unit = 1,
                               .beta1 = {0.95, 0.85}};

    (void)state;
    for (int i = 0; i < 10; i++) {
        assert_true(fabs(train_schedule_lr(&s, i) - lr[i]) < 1e-12);
        assert_true(fabs(train_schedule_beta1(&s, i) - beta1[i]) < 1e-12);
    }
}

static void test_schedule_one_cycle_at_its_edges(void **state)
{
    struct train_schedule s = {.curve = TRAIN_CURVE_ONE_CYCLE,
                               .lr = 1,
                               .warmup_lr = 0.5,
                               .min_lr = 0,
                               .warm = 1,
                               .total = 3,
                               .steps_per_unit = 1};

    (void)state;
    assert_true(near(train_schedule_lr(&s, 0), 1)); /* a warm-up of one step is the peak */
    assert_true(near(train_schedule_lr(&s, 1), 0.5));
    assert_true(near(train_schedule_lr(&s, 2), 0) && near(train_schedule_lr(&s, 9), 0));
    s.warm = 0;
    assert_true(near(train_schedule_lr(&s, 0), 2.0 / 3));
    s.warm = s.total;
    assert_true(near(train_schedule_lr(&s, 1), 0.75) && near(train_schedule_lr(&s, 2), 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_constant_after_warm_up),
        cmocka_unit_test(test_schedule_linear_ends_at_the_minimum),
        cmocka_unit_test(test_schedule_steps_fall_at_milestones),
        cmocka_unit_test(test_schedule_per_epoch_is_constant_within_one),
        cmocka_unit_test(test_schedule_one_cycle_is_that_of_torch),
        cmocka_unit_test(test_schedule_one_cycle_at_its_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
