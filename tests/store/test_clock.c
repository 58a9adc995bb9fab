/* The wall clock jumps: waits, limits, accounts and idempotency go by the store's own clock, and no interval
 * is negative or impossible. */
#include <sqlite3.h>

#include "daemon/polyd/store/verify.h"
#include "kernels/base/clock.h"
#include "tests/lib/jump.h"
#include "tests/store/help.h"

static int clock_setup(void **state)
{
    jump_wall_us = jump_boot_us = 0;
    return setup(state);
}

static struct store_run found_run;
static struct store_attempt found_attempt;

static bool keep_run(void *ctx, const struct store_run *r)
{
    (void)ctx;
    found_run = *r;
    return true;
}

static bool keep_attempt(void *ctx, const struct store_attempt *a)
{
    (void)ctx;
    found_attempt = *a;
    return true;
}

static void look(struct fixture *f, int64_t run)
{
    struct pd_why why;

    assert_int_equal(store_run_get(f->s, run, keep_run, NULL, &why), PD_OK);
    assert_int_equal(store_attempt_list(f->s, run, keep_attempt, NULL, &why), PD_OK);
}

static enum pd_err begin(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    enum pd_err err = start_attempt(tx, ctx, why);

    if (err == PD_OK)
        err = store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_RUNNING, JOB_CAUSE_LOST, NULL, -1,
                                 why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, JOB_RUN_RUNNING, JOB_OUTCOME_CANCELLED, NULL, why);
    return err;
}

static enum pd_err finish(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    enum pd_err err =
        store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, NULL, 0, why);

    return err == PD_OK ? store_run_move(tx, ids->run, JOB_RUN_ENDED, JOB_OUTCOME_SUCCEEDED, NULL, why) : err;
}

/* Runs on one device, one after the other; the wall clock is set by `jump_us` in the middle of the first. */
static void run_over_a_jump(struct fixture *f, int64_t jump_us, int64_t sleep_us)
{
    struct ids ids = submitted(f), next;
    struct pd_why why;

    assert_int_equal(call(f, begin, &ids, &why), PD_OK);
    jump_wall_us += jump_us;
    jump_boot_us += sleep_us;
    assert_int_equal(call(f, finish, &ids, &why), PD_OK);
    look(f, ids.run);
    assert_true(found_run.started_us >= found_run.created_us && found_run.ended_us >= found_run.started_us);
    assert_true(found_attempt.started_us >= found_attempt.created_us);
    assert_true(found_attempt.ended_us >= found_attempt.started_us);
    assert_in_range(found_run.used_us, sleep_us, sleep_us + 60000000);
    next = submitted(f);
    assert_int_equal(call(f, begin, &next, &why), PD_OK);
    assert_int_equal(call(f, finish, &next, &why), PD_OK);
    assert_int_equal(problems(f), 0);
}

static void test_clock_set_back_leaves_no_negative_time(void **state)
{
    run_over_a_jump(*state, -JUMP_HOUR_US, 0);
}

static void test_clock_set_ahead_uses_up_no_time(void **state)
{
    run_over_a_jump(*state, JUMP_HOUR_US, 0);
}

static void test_clock_counts_time_asleep(void **state)
{
    run_over_a_jump(*state, 0, JUMP_HOUR_US); /* the wall clock says the same as ever */
}

static const uint8_t body[32] = {1};

struct claim {
    int status;
    struct pd_buf response;
};

static enum pd_err claim(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct claim *c = ctx;
    enum pd_err err = store_idem_claim(tx, "jobs", "key", body, &c->status, &c->response, why);

    return err == PD_OK ? store_idem_finish(tx, "jobs", "key", 201, "first", 5, why) : err;
}

static enum pd_err claim_now(struct fixture *f)
{
    struct claim c = {0};
    struct pd_why why;
    enum pd_err err;

    pd_buf_init(&c.response, 0);
    err = call(f, claim, &c, &why);
    pd_buf_done(&c.response);
    return err;
}

static enum pd_err get_now(struct fixture *f)
{
    struct pd_buf response;
    struct pd_why why;
    int status;
    enum pd_err err;

    pd_buf_init(&response, 0);
    err = store_idem_get(f->s, "jobs", "key", body, &status, &response, &why);
    pd_buf_done(&response);
    return err;
}

static void test_idempotency_lasts_a_day_by_the_clock_that_nobody_sets(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(claim_now(f), PD_OK);
    jump_wall_us = 25 * JUMP_HOUR_US; /* a day ahead: a repeated request still is one */
    assert_int_equal(get_now(f), PD_OK);
    assert_int_equal(claim_now(f), PD_ERR_EXISTS);
    jump_wall_us = -100 * JUMP_HOUR_US;
    assert_int_equal(get_now(f), PD_OK);
    assert_int_equal(claim_now(f), PD_ERR_EXISTS);
    writer_down(f); /* nor does a restart lose it */
    jump_wall_us = 30 * JUMP_HOUR_US;
    writer_up(f);
    assert_int_equal(get_now(f), PD_OK);
    jump_boot_us = 25 * JUMP_HOUR_US; /* a day has passed */
    assert_int_equal(get_now(f), PD_ERR_NOT_FOUND);
    assert_int_equal(claim_now(f), PD_OK);
}

static void test_store_clock_goes_on_over_restarts(void **state)
{
    struct fixture *f = *state;
    int64_t before_us = store_writer_clock_us(f->w), now_us;

    assert_true(before_us >= pd_clock_wall_us() - 1000000); /* it began at the wall clock */
    writer_down(f);
    jump_wall_us = 5 * JUMP_HOUR_US;
    writer_up(f);
    now_us = store_writer_clock_us(f->w);
    assert_in_range(now_us - before_us, 0, 60000000); /* of the daemon: exactly */
    writer_down(f);
    poke(f, "UPDATE store SET boot = 'another start of the machine'");
    jump_boot_us = 10000000 - pd_clock_boot_us(); /* ten seconds ago */
    jump_wall_us = -1000 * JUMP_HOUR_US;
    writer_up(f);
    assert_true(store_writer_clock_us(f->w) >= before_us - 20000000); /* of the machine: never back */
    before_us = store_writer_clock_us(f->w);
    writer_down(f);
    poke(f, "UPDATE store SET boot = 'yet another'");
    jump_wall_us = 48 * JUMP_HOUR_US; /* two days off, by a wall clock that is right */
    writer_up(f);
    assert_in_range(store_writer_clock_us(f->w) - before_us, 47 * JUMP_HOUR_US, 49 * JUMP_HOUR_US);
}

/* Of the previous daemon, though the machine was off since, and though a start came to nothing. */
static void test_store_knows_until_when_the_previous_daemon_wrote(void **state)
{
    struct fixture *f = *state;
    int64_t before_us;

    assert_int_equal(store_writer_previous_us(f->w), 0);
    submitted(f);
    jump_boot_us = jump_wall_us = JUMP_HOUR_US;
    submitted(f);
    before_us = store_writer_clock_us(f->w);
    for (int start = 0; start < 3; start++) {
        writer_down(f);
        poke(f, "UPDATE store SET boot = 'another start of the machine'");
        jump_wall_us += 48 * JUMP_HOUR_US;
        writer_up(f);
        assert_in_range(store_writer_previous_us(f->w), before_us - 11000000, before_us);
        assert_true(store_writer_clock_us(f->w) > before_us + 47 * JUMP_HOUR_US);
    }
    submitted(f);
    writer_down(f);
    writer_up(f);
    assert_true(store_writer_previous_us(f->w) > before_us + 140 * JUMP_HOUR_US);
}

static void test_oldest_wait_is_never_negative(void **state)
{
    struct fixture *f = *state;
    struct store_counts counts;
    struct pd_why why;

    assert_int_equal(store_count(f->s, &counts, &why), PD_OK);
    assert_int_equal(counts.oldest_queued_us, 0);
    submitted(f);
    jump_wall_us = -JUMP_HOUR_US;
    assert_int_equal(store_count(f->s, &counts, &why), PD_OK);
    assert_in_range(pd_clock_wall_us() - counts.oldest_queued_us, 0, 60000000);
}

#define CLOCK(name) cmocka_unit_test_setup_teardown(name, clock_setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CLOCK(test_clock_set_back_leaves_no_negative_time),
        CLOCK(test_clock_set_ahead_uses_up_no_time),
        CLOCK(test_clock_counts_time_asleep),
        CLOCK(test_idempotency_lasts_a_day_by_the_clock_that_nobody_sets),
        CLOCK(test_store_clock_goes_on_over_restarts),
        CLOCK(test_store_knows_until_when_the_previous_daemon_wrote),
        CLOCK(test_oldest_wait_is_never_negative),
    };

    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
