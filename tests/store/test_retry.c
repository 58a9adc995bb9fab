/* Doing again what failed, and pausing single runs: which moves the rows make, and which are refused with a
 * sentence. */
#include "daemon/polyd/store/verify.h"
#include "tests/lib/jump.h"
#include "tests/store/help.h"

#define SWEEP 4

struct sweep {
    int64_t job, runs[SWEEP];
    int count;
    int64_t time_limit_us;
};

static enum pd_err submit_sweep(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct sweep *s = ctx;
    struct store_job_new job = {
        .name = "sweep", .experiment = "e", .document = "{}", .planned = s->count, .trials = s->count};
    struct store_run_new run = {.document = "{}",
                                .device = "cpu",
                                .slots = 1,
                                .threads = 1,
                                .max_restarts = 3,
                                .total_steps = 9,
                                .time_limit_us = s->time_limit_us};
    enum pd_err err = store_job_insert(tx, &job, &s->job, why);

    for (int i = 0; err == PD_OK && i < s->count; i++) {
        run.trial = i;
        err = store_run_insert(tx, s->job, &run, &s->runs[i], why);
    }
    return err;
}

struct end {
    int64_t run;
    enum job_outcome outcome;
    bool started; /* its attempt is there */
};

/* An attempt, and the run's end. */
static enum pd_err end_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct end *e = ctx;
    struct store_attempt_new a = {.run_id = e->run, .devices = "cpu:0"};
    int n = 1;
    enum pd_err err = e->started ? PD_OK : store_attempt_insert(tx, &a, &n, why);

    if (err == PD_OK)
        err = store_attempt_move(tx, e->run, n, JOB_ATTEMPT_ENDED, JOB_CAUSE_FAILED, "broke", 1, why);
    return err == PD_OK ? store_run_move(tx, e->run, JOB_RUN_ENDED, e->outcome, "broke", why) : err;
}

static enum pd_err start_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_attempt_new a = {.run_id = *(int64_t *)ctx, .devices = "cpu:0"};
    int n;

    return store_attempt_insert(tx, &a, &n, why);
}

#define COMMAND(name, call)                                                                                  \
    static enum pd_err name(struct store_tx *tx, void *ctx, struct pd_why *why)                              \
    {                                                                                                        \
        int64_t id = *(int64_t *)ctx;                                                                        \
                                                                                                             \
        return call;                                                                                         \
    }
COMMAND(retry_job, store_job_retry(tx, id, -1, why))
COMMAND(pause_job, store_job_pause(tx, id, -1, why))
COMMAND(resume_job, store_job_resume(tx, id, -1, why))
COMMAND(cancel_job, store_job_cancel(tx, id, -1, "no", why))
COMMAND(retry_run, store_run_retry(tx, id, -1, why))
COMMAND(stale_run, store_run_retry(tx, id, 1, why))
COMMAND(pause_run, store_run_pause(tx, id, -1, why))
COMMAND(resume_run, store_run_resume(tx, id, -1, why))
COMMAND(backoff_run, store_run_set_backoff(tx, id, 2, store_tx_clock_us(tx) + 3600000000, why))

struct stands {
    enum job_run_state state;
    enum job_outcome outcome;
    int attempts, restarts;
    int64_t not_before_us, ended_us;
};

static bool of_run(void *ctx, const struct store_run *r)
{
    *(struct stands *)ctx = (struct stands){.state = r->state,
                                            .outcome = r->outcome,
                                            .attempts = r->attempts,
                                            .restarts = r->restarts,
                                            .not_before_us = r->not_before_us,
                                            .ended_us = r->ended_us};
    return true;
}

static struct stands look(struct fixture *f, int64_t run)
{
    struct stands s;
    struct pd_why why;

    assert_int_equal(store_run_get(f->s, run, of_run, &s, &why), PD_OK);
    return s;
}

struct job_stands {
    enum job_state state;
    int64_t ended, failed, ended_us;
    bool reason;
};

static bool of_job(void *ctx, const struct store_job *j)
{
    *(struct job_stands *)ctx = (struct job_stands){.state = j->state,
                                                    .ended = j->runs_ended,
                                                    .failed = j->runs_failed,
                                                    .ended_us = j->ended_us,
                                                    .reason = *j->reason != '\0'};
    return true;
}

static struct job_stands look_job(struct fixture *f, int64_t job)
{
    struct job_stands s;
    struct pd_why why;

    assert_int_equal(store_job_get(f->s, job, of_job, &s, &why), PD_OK);
    return s;
}

static void expect_refused(struct fixture *f,
                           enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), int64_t id,
                           const char *says)
{
    struct pd_why why = {""};

    assert_int_equal(call(f, apply, &id, &why), PD_ERR_CONFLICT);
    if (!strstr(why.text, says))
        fail_msg("'%s' does not say '%s'", why.text, says);
}

static void end_as(struct fixture *f, int64_t run, enum job_outcome outcome)
{
    struct end e = {.run = run, .outcome = outcome};
    struct pd_why why = {""};

    if (call(f, end_run, &e, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void ok(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
               int64_t id)
{
    struct pd_why why = {""};

    if (call(f, apply, &id, &why) != PD_OK)
        fail_msg("%s", why.text);
}

/* A failed attempt that took so long by the store's clock. */
static void end_after(struct fixture *f, int64_t run, int64_t us)
{
    struct end e = {.run = run, .outcome = JOB_OUTCOME_FAILED, .started = true};
    struct pd_why why = {""};

    ok(f, start_run, run);
    jump_boot_us += us;
    if (call(f, end_run, &e, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static struct sweep made(struct fixture *f, int count)
{
    struct sweep s = {.count = count};
    struct pd_why why;

    assert_int_equal(call(f, submit_sweep, &s, &why), PD_OK);
    return s;
}

static void test_retry_queues_the_failed_runs_of_a_sweep_alone(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 4);
    static const enum job_outcome outcomes[] = {JOB_OUTCOME_FAILED, JOB_OUTCOME_SUCCEEDED,
                                                JOB_OUTCOME_DIVERGED, JOB_OUTCOME_FAILED};

    for (int i = 0; i < 4; i++)
        end_as(f, s.runs[i], outcomes[i]);
    assert_true(look_job(f, s.job).state == JOB_FAILED && look_job(f, s.job).failed == 2);
    expect_refused(f, resume_job, s.job, "is failed: only a paused job can be resumed");
    assert_int_equal(look_job(f, s.job).state, JOB_FAILED);
    ok(f, retry_job, s.job);
    assert_true(look(f, s.runs[0]).state == JOB_RUN_QUEUED && look(f, s.runs[3]).state == JOB_RUN_QUEUED);
    assert_true(look(f, s.runs[0]).attempts == 1 && look(f, s.runs[0]).ended_us == 0);
    assert_true(look(f, s.runs[1]).state == JOB_RUN_ENDED && look(f, s.runs[2]).state == JOB_RUN_ENDED);
    assert_true(look_job(f, s.job).state == JOB_QUEUED && look_job(f, s.job).ended == 2);
    assert_true(look_job(f, s.job).failed == 0 && !look_job(f, s.job).ended_us && !look_job(f, s.job).reason);
    expect_sound(f);
    end_as(f, s.runs[0], JOB_OUTCOME_SUCCEEDED); /* a second attempt */
    assert_int_equal(look(f, s.runs[0]).attempts, 2);
    end_as(f, s.runs[3], JOB_OUTCOME_SUCCEEDED);
    assert_int_equal(look_job(f, s.job).state, JOB_DONE);
    expect_refused(f, retry_job, s.job, "is done and none of its runs failed");
    expect_sound(f);
}

static void test_retry_of_one_run_leaves_the_others(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 2);
    struct pd_why why;

    end_as(f, s.runs[0], JOB_OUTCOME_FAILED);
    expect_refused(f, retry_run, s.runs[1], "is queued: only a run that has failed");
    ok(f, retry_run, s.runs[0]); /* while its job still works */
    assert_true(look(f, s.runs[0]).state == JOB_RUN_QUEUED && look_job(f, s.job).state == JOB_RUNNING);
    end_as(f, s.runs[0], JOB_OUTCOME_FAILED);
    end_as(f, s.runs[1], JOB_OUTCOME_FAILED);
    assert_int_equal(call(f, stale_run, &s.runs[1], &why), PD_ERR_STALE);
    ok(f, retry_run, s.runs[1]);
    assert_true(look(f, s.runs[0]).outcome == JOB_OUTCOME_FAILED && look_job(f, s.job).failed == 1);
    ok(f, backoff_run, s.runs[1]);
    ok(f, retry_run, s.runs[1]); /* it waits after a failure: at once */
    assert_true(look(f, s.runs[1]).not_before_us == 0 && look(f, s.runs[1]).restarts == 0);
    ok(f, start_run, s.runs[1]);
    expect_refused(f, retry_run, s.runs[1], "is starting: only a run that has failed");
    expect_sound(f);
}

static void test_retry_is_refused_where_it_would_change_nothing(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 1), limited = {.count = 1, .time_limit_us = 1}, d = made(f, 1);
    struct pd_why why;
    int64_t none = 99;

    end_as(f, d.runs[0], JOB_OUTCOME_DIVERGED);
    expect_refused(f, retry_run, d.runs[0], "is diverged: only a run that has failed");
    end_as(f, s.runs[0], JOB_OUTCOME_FAILED);
    ok(f, retry_run, s.runs[0]);
    ok(f, cancel_job, s.job);
    expect_refused(f, retry_job, s.job, "was cancelled");
    expect_refused(f, retry_run, s.runs[0], "is cancelled: only a run that has failed");
    assert_int_equal(call(f, retry_run, &none, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(call(f, submit_sweep, &limited, &why), PD_OK);
    end_after(f, limited.runs[0], 1000);
    expect_refused(f, retry_run, limited.runs[0], "has used up its time limit");
    expect_refused(f, retry_job, limited.job, "used up their time limits");
    expect_sound(f);
}

struct registered {
    int64_t run, checkpoint, n;
};

static enum pd_err register_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct registered *m = ctx;
    struct store_checkpoint c = {
        .run_id = m->run, .attempt = 1, .step = 4, .kind = "latest", .path = "/nowhere", .digest = "d"};
    enum pd_err err = store_checkpoint_insert(tx, &c, &m->checkpoint, why);

    return err == PD_OK ? store_model_register(tx, "m", m->checkpoint, &m->n, why) : err;
}

COMMAND(unregister, store_model_delete(tx, "m", id, -1, "me", why))

/* A new attempt would remove the file of the version. */
static void test_retry_spares_a_run_that_became_a_model(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 2);
    struct registered m = {.run = s.runs[0]};
    struct pd_why why = {""};

    end_as(f, s.runs[0], JOB_OUTCOME_FAILED);
    end_as(f, s.runs[1], JOB_OUTCOME_FAILED);
    if (call(f, register_run, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    expect_refused(f, retry_run, s.runs[0], "is version 1 of model 'm': delete that version first");
    ok(f, retry_job, s.job); /* the other one */
    assert_true(look(f, s.runs[0]).state == JOB_RUN_ENDED && look(f, s.runs[1]).state == JOB_RUN_QUEUED);
    end_as(f, s.runs[1], JOB_OUTCOME_SUCCEEDED);
    assert_int_equal(look_job(f, s.job).state, JOB_FAILED);
    expect_refused(f, retry_job, s.job, "have become models");
    ok(f, unregister, m.n);
    ok(f, retry_run, s.runs[0]);
    assert_int_equal(look(f, s.runs[0]).state, JOB_RUN_QUEUED);
}

static void test_single_run_is_paused_and_resumed(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 3);

    ok(f, pause_run, s.runs[0]);
    ok(f, pause_run, s.runs[0]); /* asking twice is no error */
    assert_true(look(f, s.runs[0]).state == JOB_RUN_PAUSED && look(f, s.runs[1]).state == JOB_RUN_QUEUED);
    assert_int_equal(look_job(f, s.job).state, JOB_QUEUED);
    ok(f, resume_run, s.runs[0]);
    assert_int_equal(look(f, s.runs[0]).state, JOB_RUN_QUEUED);
    expect_refused(f, resume_run, s.runs[0], "is queued: only a paused run");
    ok(f, pause_run, s.runs[0]);
    ok(f, pause_job, s.job);
    expect_refused(f, resume_run, s.runs[0], "paused as a whole");
    ok(f, resume_job, s.job); /* all of them */
    assert_int_equal(look(f, s.runs[0]).state, JOB_RUN_QUEUED);
    end_as(f, s.runs[2], JOB_OUTCOME_FAILED);
    expect_refused(f, pause_run, s.runs[2], "is ended: it cannot be paused");
    ok(f, pause_job, s.job);
    ok(f, retry_run, s.runs[2]); /* it waits with the others */
    assert_int_equal(look(f, s.runs[2]).state, JOB_RUN_PAUSED);
    expect_sound(f);
}

struct wanted {
    int64_t run;
    bool pause;
};

static enum pd_err ask_pause(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct wanted *w = ctx;

    return store_run_pause_wanted(tx, w->run, &w->pause, why);
}

static void test_pause_of_a_working_run_waits_for_its_worker(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 2);
    struct wanted w = {.run = s.runs[0]};
    struct pd_why why;
    bool read = false;

    ok(f, start_run, s.runs[0]);
    ok(f, pause_run, s.runs[0]);
    assert_int_equal(look(f, s.runs[0]).state, JOB_RUN_STARTING);
    assert_int_equal(call(f, ask_pause, &w, &why), PD_OK);
    assert_int_equal(store_run_to_pause(f->s, s.runs[0], &read, &why), PD_OK);
    assert_true(w.pause && read);
    assert_int_equal(store_run_to_pause(f->s, s.runs[1], &read, &why), PD_OK);
    assert_false(read);
    ok(f, resume_run, s.runs[0]); /* before it has left */
    assert_int_equal(call(f, ask_pause, &w, &why), PD_OK);
    assert_false(w.pause);
}

static void test_run_of_a_job_of_one_is_its_job(void **state)
{
    struct fixture *f = *state;
    struct sweep s = made(f, 1);

    ok(f, pause_run, s.runs[0]);
    assert_true(look(f, s.runs[0]).state == JOB_RUN_PAUSED && look_job(f, s.job).state == JOB_PAUSED);
    ok(f, resume_run, s.runs[0]);
    assert_true(look(f, s.runs[0]).state == JOB_RUN_QUEUED && look_job(f, s.job).state == JOB_QUEUED);
    end_as(f, s.runs[0], JOB_OUTCOME_FAILED);
    ok(f, retry_job, s.job);
    assert_true(look(f, s.runs[0]).state == JOB_RUN_QUEUED && look_job(f, s.job).state == JOB_QUEUED);
    expect_sound(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_retry_queues_the_failed_runs_of_a_sweep_alone),
        TEST(test_retry_of_one_run_leaves_the_others),
        TEST(test_retry_is_refused_where_it_would_change_nothing),
        TEST(test_retry_spares_a_run_that_became_a_model),
        TEST(test_single_run_is_paused_and_resumed),
        TEST(test_pause_of_a_working_run_waits_for_its_worker),
        TEST(test_run_of_a_job_of_one_is_its_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
