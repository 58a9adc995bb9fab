/* Gangs: attempts of several processes, one a rank. Whatever happens to one happens to all, is said with its
 * number, and the run goes on from its checkpoint. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "tests/supervise/rig.h"

/* The process of a rank; 0 = there is none. */
static pid_t rank_pid(struct fixture *f, int rank)
{
    pid_t pids[64], found = 0;
    int n = marked(f, pids, 64);

    for (int i = 0; i < n && !found; i++) {
        char path[64];
        struct pd_buf text;
        struct pd_why why;

        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pids[i]);
        pd_buf_init(&text, 0);
        if (pd_file_read(path, 1 << 16, &text, &why) == PD_OK && text.len) {
            const char *role = text.data + strlen(text.data) + 1, *end = text.data + text.len;
            bool train = role < end && !strcmp(role, "train");

            for (const char *at = role; train && at < end; at += strlen(at) + 1)
                if (!strcmp(at, "--rank") && atoi(at + strlen(at) + 1) == rank)
                    found = pids[i];
        }
        pd_buf_done(&text);
    }
    return found;
}

static void again(struct fixture *f)
{
    all_down(f);
    store_up(f);
    sup_up(f);
}

static void test_gang_runs_to_its_end(void **state)
{
    struct fixture *f = *state;
    struct sup_stats stats;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000); /* it does not end while the test looks */
    ids = submit(f, (struct ids){.slots = 2});
    await_step(f, ids.run, 10);
    assert_true(rank_pid(f, 0) > 0 && rank_pid(f, 1) > 0);
    assert_int_equal(marked(f, NULL, 0), 3); /* and one shim */
    sup_stats(f->sup, &stats);
    assert_int_equal(stats.spawned, 1);
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_CANCELLED);
    await_no_process(f);
    set("POLYD_SELFTEST_STEPS", 1000);
    ids = submit(f, (struct ids){.slots = 2});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 1000);
    await_no_process(f);
    sup_stats(f->sup, &stats);
    assert_int_equal(stats.spawned, 2);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
}

static void test_gang_of_four_on_as_many_slots(void **state)
{
    struct fixture *f = *state;
    struct ids ids, behind;

    f->o.cpu_slots = 4;
    again(f);
    set("POLYD_SELFTEST_STEPS", 1000000);
    ids = submit(f, (struct ids){.slots = 4});
    await_step(f, ids.run, 5);
    for (int i = 0; i < 4; i++)
        assert_true(rank_pid(f, i) > 0);
    behind = submit(f, (struct ids){.slots = 2});
    assert_int_equal(run_now(f, behind.run).state, JOB_RUN_QUEUED); /* all slots or none */
    set("POLYD_SELFTEST_STEPS", 1000);
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_CANCELLED);
    ids = submit(f, (struct ids){.slots = 4});
    assert_int_equal(await(f, behind.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 1000);
    check_series(f, behind.run, 1000);
    await_no_process(f);
}

static void lose(struct fixture *f, int rank, int sig, const char *says)
{
    int64_t began_us;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.slots = 2, .max_restarts = 3});
    await_step(f, ids.run, 50);
    pid = rank_pid(f, rank);
    assert_true(pid > 0);
    began_us = pd_clock_mono_us();
    kill(pid, sig);
    for (;; pause_ms(10)) { /* the first attempt ends within seconds */
        look_at_attempts(f, ids.run);
        if (count_attempts > 1 || last_state == JOB_ATTEMPT_ENDED)
            break;
        assert_true(pd_clock_mono_us() - began_us < 20000000);
    }
    if (!strstr(last_message, says))
        fail_msg("'%s' does not say '%s'", last_message, says);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

static void test_gang_with_a_killed_rank_goes_on_from_its_checkpoint(void **state)
{
    lose(*state, 1, SIGKILL, "rank 1");
}

static void test_gang_without_its_first_goes_on_from_its_checkpoint(void **state)
{
    lose(*state, 0, SIGKILL, "rank 0");
}

static void test_gang_with_a_stopped_rank_goes_on_from_its_checkpoint(void **state)
{
    lose(*state, 1, SIGSTOP, "rank 1");
}

static void test_gang_with_its_first_stopped_goes_on_from_its_checkpoint(void **state)
{
    lose(*state, 0, SIGSTOP, "rank 0");
}

static void test_gang_tells_the_reason_of_the_rank_that_failed(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 300);
    set("POLYD_SELFTEST_FAIL_RANK", 1);
    ids = submit(f, (struct ids){.slots = 2, .max_restarts = 1});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    assert_non_null(strstr(last_message, "rank 1: asked to fail at step 30"));
    check_series(f, ids.run, 300);
    unsetenv("POLYD_SELFTEST_FAIL_RANK");
    await_no_process(f);
}

static void test_gang_is_cancelled_to_the_last_process(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000);
    ids = submit(f, (struct ids){.slots = 2});
    await_step(f, ids.run, 10);
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 10).outcome, JOB_OUTCOME_CANCELLED);
    await_no_process(f);
}

static void test_gang_that_does_not_listen_is_killed_whole(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    f->o.grace_us = 300000;
    again(f);
    set("POLYD_SELFTEST_STEPS", 1000000);
    set("POLYD_SELFTEST_IGNORE", 1);
    set("POLYD_SELFTEST_FORK", 1);
    ids = submit(f, (struct ids){.slots = 2});
    await_step(f, ids.run, 5);
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 10).outcome, JOB_OUTCOME_CANCELLED);
    await_no_process(f);
}

static void test_gang_pauses_and_resumes(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 600);
    ids = submit(f, (struct ids){.slots = 2});
    await_step(f, ids.run, 30);
    assert_int_equal(call(f, pause_apply, &ids), PD_OK);
    (void)await(f, ids.run, JOB_RUN_PAUSED, 10);
    await_no_process(f);
    assert_int_equal(call(f, resume_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 600);
}

static void test_gang_ends_at_its_time_limit(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000);
    ids = submit(f, (struct ids){.slots = 2, .limit_us = 1000000});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 15).outcome, JOB_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "time limit"));
    await_no_process(f);
}

static void test_gang_outlives_the_daemon(void **state)
{
    struct fixture *f = *state;
    struct sup_stats stats;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.slots = 2});
    await_step(f, ids.run, 50);
    all_down(f);
    assert_true(rank_pid(f, 0) > 0 && rank_pid(f, 1) > 0);
    pause_ms(300);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    sup_stats(f->sup, &stats);
    assert_int_equal(stats.adopted, 1);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

/* A rank dies while nobody looks: the rest leave, and the next daemon knows which it was. */
static void test_gang_lost_while_the_daemon_is_away(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.slots = 2, .max_restarts = 3});
    await_step(f, ids.run, 60);
    all_down(f);
    pid = rank_pid(f, 1);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    pause_ms(300);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    assert_non_null(strstr(last_message, "rank 1"));
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

/* A daemon that is killed, not stopped, the moment after the gang began: whatever had been said is said
 * again. */
static void test_gang_that_has_not_met_when_the_daemon_goes(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 300);
    for (int i = 0; i < 2; i++) {
        ids = submit(f, (struct ids){.slots = 2, .max_restarts = 3});
        pause_ms(5 * i);
        again(f);
        assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 30).outcome, JOB_OUTCOME_SUCCEEDED);
        check_series(f, ids.run, 300);
    }
    await_no_process(f);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_gang_runs_to_its_end),
        TEST(test_gang_of_four_on_as_many_slots),
        TEST(test_gang_with_a_killed_rank_goes_on_from_its_checkpoint),
        TEST(test_gang_without_its_first_goes_on_from_its_checkpoint),
        TEST(test_gang_with_a_stopped_rank_goes_on_from_its_checkpoint),
        TEST(test_gang_with_its_first_stopped_goes_on_from_its_checkpoint),
        TEST(test_gang_tells_the_reason_of_the_rank_that_failed),
        TEST(test_gang_is_cancelled_to_the_last_process),
        TEST(test_gang_that_does_not_listen_is_killed_whole),
        TEST(test_gang_pauses_and_resumes),
        TEST(test_gang_ends_at_its_time_limit),
        TEST(test_gang_outlives_the_daemon),
        TEST(test_gang_lost_while_the_daemon_is_away),
        TEST(test_gang_that_has_not_met_when_the_daemon_goes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
