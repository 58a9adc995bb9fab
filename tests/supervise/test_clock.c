/* The wall clock jumps under the supervisor: back-off and time limits do not see it. */
#include "tests/supervise/rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "tests/lib/jump.h"

static int clock_setup(void **state)
{
    jump_wall_us = jump_boot_us = 0;
    return setup(state);
}

static int clock_teardown(void **state)
{
    jump_wall_us = jump_boot_us = 0;
    return teardown(state);
}

static void test_back_off_ends_though_the_clock_is_set_back(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    int64_t from_us;

    all_down(f);
    f->o.backoff_us = 2000000;
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_CRASH_AT", 15); /* of the first attempt, before its first checkpoint */
    ids = submit(f, (struct ids){.max_restarts = 3});
    for (int i = 0; i < 1000 && run_now(f, ids.run).restarts == 0; i++)
        pause_ms(10);
    assert_int_equal(run_now(f, ids.run).restarts, 1);
    from_us = pd_clock_mono_us();
    jump_wall_us = -JUMP_HOUR_US;
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    assert_true(pd_clock_mono_us() - from_us > 1000000); /* nor does it end at once */
}

static void test_back_off_lasts_though_the_clock_is_set_ahead(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    all_down(f);
    f->o.backoff_us = 3000000;
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_CRASH_AT", 15);
    ids = submit(f, (struct ids){.max_restarts = 3});
    for (int i = 0; i < 1000 && run_now(f, ids.run).restarts == 0; i++)
        pause_ms(10);
    jump_wall_us = JUMP_HOUR_US;
    pause_ms(1500);
    assert_int_equal(run_now(f, ids.run).attempts, 1);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
}

/* Ahead while no daemon runs: the next one must not take the jump for time that the run has used. */
static void test_time_limit_does_not_see_a_jump_over_a_restart(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct store_run r;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.limit_us = 600 * INT64_C(1000000)});
    await_step(f, ids.run, 50);
    all_down(f);
    jump_wall_us = JUMP_HOUR_US;
    store_up(f);
    sup_up(f);
    r = await(f, ids.run, JOB_RUN_ENDED, 20);
    assert_int_equal(r.outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    assert_true(run_now(f, ids.run).used_us < 60 * INT64_C(1000000));
    check_series(f, ids.run, 1500);
}

/* Everything is killed, as by a loss of power or the stop of a container; the next start is an hour later. */
static void test_time_while_everything_was_off_is_not_used(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.limit_us = 600 * INT64_C(1000000), .max_restarts = 3});
    await_step(f, ids.run, 50);
    all_down(f);
    /* The shim would note an exit of its worker, which follows it. */
    assert_true((pid = worker_pid(f, true)) > 0 && !kill(pid, SIGKILL));
    await_no_process(f);
    jump_wall_us = jump_boot_us = JUMP_HOUR_US;
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    assert_true(run_now(f, ids.run).used_us < 60 * INT64_C(1000000));
    check_series(f, ids.run, 1500);
}

/* The worker dies half an hour after the daemon, and its shim notes when. */
static void test_time_until_a_death_without_the_daemon_is_used(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    char path[128];
    struct timespec times[2];
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    all_down(f);
    assert_true((pid = worker_pid(f, false)) > 0 && !kill(pid, SIGKILL));
    await_no_process(f);
    snprintf(path, sizeof path, "%s/runs/%lld/attempt-1/exit", f->dir, (long long)ids.run);
    times[0] = times[1] = (struct timespec){.tv_sec = pd_clock_wall_us() / 1000000 + 1800};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    jump_wall_us = jump_boot_us = JUMP_HOUR_US;
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    assert_in_range(run_now(f, ids.run).used_us, 1790 * INT64_C(1000000), 1860 * INT64_C(1000000));
}

static void test_time_limit_counts_the_time_asleep(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct store_run r;

    set("POLYD_SELFTEST_STEPS", 100000);
    ids = submit(f, (struct ids){.limit_us = 600 * INT64_C(1000000)});
    await_step(f, ids.run, 50);
    jump_boot_us = 700 * INT64_C(1000000);
    r = await(f, ids.run, JOB_RUN_ENDED, 20);
    assert_int_equal(r.outcome, JOB_OUTCOME_FAILED);
    assert_string_equal(run_reason, "time limit");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, clock_setup, clock_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_back_off_ends_though_the_clock_is_set_back),
        TEST(test_back_off_lasts_though_the_clock_is_set_ahead),
        TEST(test_time_limit_does_not_see_a_jump_over_a_restart),
        TEST(test_time_while_everything_was_off_is_not_used),
        TEST(test_time_until_a_death_without_the_daemon_is_used),
        TEST(test_time_limit_counts_the_time_asleep),
    };

    return cmocka_run_group_tests_name("supervise_clock", tests, NULL, NULL);
}
