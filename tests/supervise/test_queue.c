/* tests/supervise/test_queue.c: the queue of the supervisor with real workers: runs that fit nowhere or not yet, why they
 * wait, and the expansion of sweeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/base/log.h"
#include "tests/supervise/rig.h"

static void test_supervise_gang_that_never_fits_fails_with_a_reason(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submit(f, (struct ids){.slots = 3});

    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "can never be free"));
}

static void test_supervise_queue_says_why(void **state)
{
    struct fixture *f = *state;
    struct sup_queue_info info = {0};
    struct ids a, b;

    set("POLYD_SELFTEST_STEPS", 1000000);
    a = submit(f, (struct ids){.slots = 2});
    await_step(f, a.run, 5);
    b = submit(f, (struct ids){0});
    for (int i = 0; i < 4000 && !sup_queue_get(f->sup, b.run, &info); i++)
        pause_ms(5);
    assert_string_equal(info.reason, "waiting for a CPU slot: all are in use");
    assert_int_equal(info.position, 1);
    call(f, cancel_apply, &b);
    await(f, b.run, JOB_RUN_ENDED, 20);
    call(f, cancel_apply, &a);
    await(f, a.run, JOB_RUN_ENDED, 20);
}

/* Two slots share one memory: what does not fit beside the one that runs waits until it has ended, also over
 * a restart of the daemon; and a small one that would fit does not overtake it for ever. */
static void test_supervise_memory_of_plans_is_not_promised_twice(void **state)
{
    struct fixture *f = *state;
    int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    struct sup_queue_info info = {0};
    struct ids a, b, c;
    struct pd_why why;
    char devices[64];

    set("POLYD_SELFTEST_STEPS", 1000000);
    a = submit(f, (struct ids){.plan_bytes = machine / 10 * 6});
    await_step(f, a.run, 5);
    b = submit(f, (struct ids){.plan_bytes = machine / 10 * 5});
    for (int i = 0; i < 4000 && !sup_queue_get(f->sup, b.run, &info); i++)
        pause_ms(5);
    if (!strstr(info.reason, "waiting for memory: its plan needs"))
        fail_msg("%s", info.reason);
    c = submit(f, (struct ids){.plan_bytes = machine / 10});
    for (int i = 0; i < 4000 && !sup_queue_get(f->sup, c.run, &info); i++)
        pause_ms(5);
    assert_string_equal(info.reason,
                        "waiting for an earlier run, which needs more slots or memory, to start");
    f->sup = sup_stop(f->sup);
    sup_up(f);
    await_step(f, a.run, 50);
    for (int i = 0; i < 4000 && !sup_queue_get(f->sup, b.run, &info); i++)
        pause_ms(5);
    assert_non_null(strstr(info.reason, "waiting for memory"));
    /* what a submission would meet */
    assert_int_equal(sup_fit(f->sup, "cpu", 1, machine / 2, &info, devices, sizeof devices, &why), PD_OK);
    assert_string_equal(devices, "");
    assert_int_equal(sup_memory(f->sup, "cpu", 2), machine / 2);
    call(f, cancel_apply, &a);
    await(f, a.run, JOB_RUN_ENDED, 10);
    await_step(f, b.run, 5);
    await_step(f, c.run, 5);
    call(f, cancel_apply, &b);
    call(f, cancel_apply, &c);
    await(f, b.run, JOB_RUN_ENDED, 10);
    await(f, c.run, JOB_RUN_ENDED, 10);
}

/* ---- sweeps ---- */

/* More runs than are made with a job (none here), as the API would leave them. */
#define SWEEP_DOCUMENT                                                                                       \
    "{\"name\":\"fit\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},"          \
    "\"train\":{\"steps\":9,"                                                                                \
    "\"seed\":3},\"resources\":{\"device\":\"cpu\"},\"trials\":2,\"sweep\":{\"concurrency\":1,\"axes\":[{"   \
    "\"pointer\":"                                                                                           \
    "\"/train/optimizer/lr\",\"values\":[0.1,0.2,0.3]}]}}"

static enum pd_err sweep_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {.name = "fit",
                                .experiment = "e",
                                .document = SWEEP_DOCUMENT,
                                .planned = 6,
                                .points = 3,
                                .trials = 2,
                                .concurrency = 1};

    return store_job_insert(tx, &job, &ids->job, why);
}

struct sweep_look {
    int made, ended, at_work, most_at_work;
    int64_t ids[8];
    bool right; /* point, trial, seed as they should be */
};

static bool look_at_run(void *ctx, const struct store_run *r)
{
    struct sweep_look *l = ctx;

    l->right = l->right && r->point == r->n / 2 && r->trial == r->n % 2 && r->seed == 3 + r->trial;
    l->ids[l->made++ % 8] = r->id;
    l->ended += r->state == JOB_RUN_ENDED;
    l->at_work += r->state == JOB_RUN_STARTING || r->state == JOB_RUN_RUNNING;
    return true;
}

static void look(struct fixture *f, int64_t job, struct sweep_look *l)
{
    struct store_run_query q = {
        .job_id = job, .state = -1, .outcome = -1, .order = STORE_ORDER_OLDEST, .limit = 100};
    struct pd_why why;

    l->made = l->ended = l->at_work = 0;
    l->right = true;
    assert_int_equal(store_run_list(f->s, &q, look_at_run, l, &why), PD_OK);
    if (l->at_work > l->most_at_work)
        l->most_at_work = l->at_work;
}

/* Two slots are free, and the sweep may use one. Paused in the middle it makes and starts nothing. */
static void test_supervise_sweep_is_expanded_and_capped(void **state)
{
    struct fixture *f = *state;
    struct sweep_look l = {0};
    struct ids ids = {0};

    set("POLYD_SELFTEST_STEPS", 20);
    assert_int_equal(call(f, sweep_apply, &ids), PD_OK);
    for (int i = 0; i < 20000 && (l.ended < 2 || l.made < 6); i++) {
        pause_ms(5);
        look(f, ids.job, &l);
    }
    assert_int_equal(l.made, 6);
    assert_true(l.right);
    assert_int_equal(call(f, pause_apply, &ids), PD_OK);
    for (int i = 0; i < 4000 && l.at_work; i++) {
        pause_ms(5);
        look(f, ids.job, &l);
    }
    assert_int_equal(l.at_work, 0);
    assert_true(l.ended < 6);
    assert_int_equal(call(f, resume_apply, &ids), PD_OK);
    for (int i = 0; i < 6000 && l.ended < 6; i++) {
        pause_ms(5);
        look(f, ids.job, &l);
    }
    assert_int_equal(l.ended, 6);
    assert_int_equal(l.most_at_work, 1);
    await_no_process(f);
}

/* More than a cycle looks at by priority, of which one may run. */
static enum pd_err crowd_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {.name = "fit",
                                .experiment = "e",
                                .document = "{}",
                                .planned = 1201,
                                .trials = 1201,
                                .concurrency = 1};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .priority = 1, .total_steps = -1};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    for (int i = 0; err == PD_OK && i < 1201; i++) {
        run.trial = i;
        err = store_run_insert(tx, ids->job, &run, &ids->run, why);
    }
    return err;
}

static void test_supervise_crowd_of_one_job_hides_no_other(void **state)
{
    struct fixture *f = *state;
    struct ids crowd = {0}, one, two;
    struct sup_queue_info info = {0};

    set("POLYD_SELFTEST_STEPS", 1000000);
    assert_int_equal(call(f, crowd_apply, &crowd), PD_OK);
    one = submit(f, (struct ids){0});
    await_step(f, one.run, 5); /* the second slot is free, and the crowd may not use it */
    two = submit(f, (struct ids){0});
    for (int i = 0; i < 2000 && !sup_queue_get(f->sup, two.run, &info); i++)
        pause_ms(5);
    assert_string_not_equal(info.reason, "");
    call(f, cancel_apply, &crowd);
    await_step(f, two.run, 5);
    call(f, cancel_apply, &one);
    call(f, cancel_apply, &two);
    await(f, one.run, JOB_RUN_ENDED, 10);
    await(f, two.run, JOB_RUN_ENDED, 10);
}

/* An old build kept a document that makes no runs any more: said, not silent. */
static enum pd_err broken_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {
        .name = "fit", .experiment = "e", .document = "{\"attention\":{\"degree\":77}}", .planned = 6};

    return store_job_insert(tx, &job, &ids->job, why);
}

static char job_reason[256];

static bool keep_state(void *ctx, const struct store_job *job)
{
    *(enum job_state *)ctx = job->state;
    snprintf(job_reason, sizeof job_reason, "%s", job->reason);
    return false;
}

static void test_supervise_job_that_cannot_be_expanded_is_cancelled_with_a_reason(void **state)
{
    struct fixture *f = *state;
    enum job_state now = JOB_QUEUED;
    struct ids ids = {0};
    struct pd_why why;

    assert_int_equal(call(f, broken_apply, &ids), PD_OK);
    for (int i = 0; i < 2000 && now != JOB_CANCELLED; i++) {
        pause_ms(5);
        assert_int_equal(store_job_get(f->s, ids.job, keep_state, &now, &why), PD_OK);
    }
    assert_int_equal(now, JOB_CANCELLED);
    assert_non_null(strstr(job_reason, "cannot be made"));
}

/* The daemon goes away in order; the worker goes on and finds the next one. */
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_supervise_gang_that_never_fits_fails_with_a_reason),
        TEST(test_supervise_queue_says_why),
        TEST(test_supervise_memory_of_plans_is_not_promised_twice),
        TEST(test_supervise_sweep_is_expanded_and_capped),
        TEST(test_supervise_crowd_of_one_job_hides_no_other),
        TEST(test_supervise_job_that_cannot_be_expanded_is_cancelled_with_a_reason),
    };

    if (!getenv("POLYD_TEST_LOUD"))
        pd_log_set_level(PD_LOG_ERROR);
    if (argc > 1) /* a pattern, for one test alone */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("supervise queue", tests, NULL, NULL);
}
