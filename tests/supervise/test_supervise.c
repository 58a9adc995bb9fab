/* The supervisor with real workers in the diagnostic role (y = a x + b). Each test has its own state
 * directory; a "restart" stops or abandons the supervisor and the store and opens them again. */
#include <dirent.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "tests/supervise/rig.h"

/* ---- tests ---------------------------------------------------------------------------------- */

static bool keep_version(void *ctx, const struct store_model_version *v)
{
    *(int64_t *)ctx = v->n;
    return true;
}

static void test_supervise_job_runs_to_its_end(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct store_run r;
    struct pd_why why;
    int64_t version = 0;
    char log[256];
    struct pd_buf text;

    ids = submit(f, (struct ids){.register_name = "line"});
    r = await(f, ids.run, JOB_RUN_ENDED, 20);
    assert_int_equal(r.outcome, JOB_OUTCOME_SUCCEEDED);
    assert_int_equal(r.step, 200);
    check_series(f, ids.run, 200);
    assert_int_equal(store_model_version_get(f->s, "line", 0, keep_version, &version, &why), PD_OK);
    assert_int_equal(version, 1);
    await_no_process(f);
    sup_log_path(f->sup, ids.run, 1, log, sizeof log);
    pd_buf_init(&text, 0);
    assert_int_equal(pd_file_read(log, 1 << 20, &text, &why), PD_OK);
    assert_non_null(strstr(text.data, "step 200 loss"));
    pd_buf_done(&text);
}

static void test_supervise_cancel_is_graceful(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 10);
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_CANCELLED);
    look_at_attempts(f, ids.run);
    assert_int_equal(last_cause, JOB_CAUSE_CANCELLED);
    await_no_process(f);
}

static void test_supervise_cancel_kills_who_does_not_listen(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    all_down(f);
    f->o.grace_us = 300000;
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_STEPS", 1000000);
    set("POLYD_SELFTEST_IGNORE", 1);
    set("POLYD_SELFTEST_FORK", 1);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 5);
    assert_true(marked(f, NULL, 0) >= 3); /* shim, worker, and what it left behind */
    assert_int_equal(call(f, cancel_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_CANCELLED);
    await_no_process(f);
}

static void test_supervise_stray_children_die_with_their_attempt(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_FORK", 1);
    set("POLYD_SELFTEST_STEPS", 20);
    ids = submit(f, (struct ids){0});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 10).outcome, JOB_OUTCOME_SUCCEEDED);
    await_no_process(f);
}

static void test_supervise_killed_worker_resumes_from_checkpoint(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

static void put(const struct fixture *f, const char *name, const char *fmt, ...) PD_PRINTF(3, 4);
static void put(const struct fixture *f, const char *name, const char *fmt, ...)
{
    char path[256], text[256];
    struct pd_why why;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    *strrchr(path, '/') = '\0';
    assert_int_equal(pd_file_make_dirs(path, &why), PD_OK);
    path[strlen(path)] = '/';
    assert_int_equal(pd_file_replace(path, text, strlen(text), 0600, &why), PD_OK);
}

static bool holds(const struct fixture *f, const char *name, const char *what)
{
    char path[256];
    struct pd_buf text;
    bool found;

    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    pd_buf_init(&text, 0);
    found = pd_file_read(path, 65536, &text, NULL) == PD_OK && text.data && strstr(text.data, what);
    pd_buf_done(&text);
    return found;
}

static void refused_folder(struct fixture *f, const char *says)
{
    struct store_run r = await(f, submit(f, (struct ids){0}).run, JOB_RUN_ENDED, 20);

    assert_int_equal(r.outcome, JOB_OUTCOME_FAILED);
    if (!strstr(run_reason, says))
        fail_msg("%s", run_reason);
}

static void test_supervise_worker_refuses_the_folder_of_another_run(void **state)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    struct fixture *f = *state;
    const char *store = store_writer_uuid(f->w);

    put(f, "runs/1/run-id", "polyd run 1 of store %.32s document %s\n", zeros, zeros);
    refused_folder(f, "belongs to run 1 of another database (00000000");
    put(f, "runs/2/run-id", "polyd run 77 of store %s document %s\n", store, zeros);
    refused_folder(f, "belongs to run 77, not 2");
    put(f, "runs/3/run-id", "polyd run 3 of store %s document %s\n", store, zeros);
    refused_folder(f, "belongs to run 3 of another document (00000000");
    put(f, "runs/4/run-id", "something else");
    refused_folder(f, "does not contain the run of this folder");
    put(f, "runs/5/checkpoints/step-000000000040.safetensors", "weights of long ago");
    refused_folder(f, "has checkpoints of another run: this is the first attempt of run 5");
    assert_true(holds(f, "runs/5/checkpoints/step-000000000040.safetensors", "weights of long ago"));
    assert_true(holds(f, "runs/2/run-id", "polyd run 77"));
}

/* A folder from before there were markers. */
static void test_supervise_unmarked_folder_of_a_run_at_work_gets_its_marker(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    char path[256];
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 4000);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    assert_true(holds(f, "runs/1/run-id", store_writer_uuid(f->w)));
    snprintf(path, sizeof path, "%s/runs/1/run-id", f->dir);
    assert_int_equal(unlink(path), 0);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 60).outcome, JOB_OUTCOME_SUCCEEDED);
    assert_true(holds(f, "runs/1/run-id", "polyd run 1 of store "));
    check_series(f, ids.run, 4000);
}

struct began {
    int64_t attempt, step;
};

static bool keep_began(void *ctx, const struct store_attempt *a)
{
    struct began *b = ctx;

    if (a->n == b->attempt)
        b->step = a->start_step;
    return true;
}

/* The daemon goes between the start of a worker and its first word: the next one must name the checkpoint. */
static void test_supervise_worker_adopted_before_its_assignment_resumes(void **state)
{
    struct fixture *f = *state;
    struct began began = {.attempt = 2, .step = -1};
    struct ids ids;
    struct pd_why why;
    char path[128];
    pid_t pid, pids[8];

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    all_down(f);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    await_no_process(f);
    store_up(f);
    sup_up(f);
    snprintf(path, sizeof path, "%s/worker.sock", f->dir);
    assert_int_equal(unlink(path), 0); /* the next worker finds nobody to speak to */
    for (int i = 0; i < 1000 && marked(f, pids, 8) < 2; i++)
        pause_ms(10);
    pause_ms(100);
    all_down(f);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    assert_int_equal(store_attempt_list(f->s, ids.run, keep_began, &began, &why), PD_OK);
    assert_true(began.step >= 40);
    check_series(f, ids.run, 1500);
}

static void test_supervise_killed_shim_takes_its_worker_along(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_FORK", 1);
    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    pid = worker_pid(f, true);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

static void test_supervise_stopped_worker_counts_as_hang(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct sup_stats stats;
    pid_t pid;

    all_down(f);
    f->o.hang_us = 3000000; /* more than between two heartbeats */
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGSTOP);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 60).outcome, JOB_OUTCOME_SUCCEEDED);
    sup_stats(f->sup, &stats);
    assert_true(stats.hangs >= 1);
    check_series(f, ids.run, 1500);
}

/* The silence that closes a connection (10 s) is part of the silence that is a hang (60 s; here 12 s), not
 * added. */
static void test_supervise_hang_counts_from_the_last_word(void **state)
{
    struct fixture *f = *state;
    struct sup_stats stats = {0};
    struct ids ids;
    int64_t from_us;
    pid_t pid;

    all_down(f);
    f->o.hang_us = 12000000;
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_STEPS", 4000);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGSTOP);
    from_us = pd_clock_mono_us();
    while (!stats.hangs && pd_clock_mono_us() - from_us < 30000000) {
        pause_ms(50);
        sup_stats(f->sup, &stats);
    }
    assert_in_range(pd_clock_mono_us() - from_us, 9000000, 19000000);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 60).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 4000);
}

/* A disk that refuses makes the daemon stop listening; the worker, which waits, does not hang. */
static void test_supervise_worker_that_waits_for_the_disk_does_not_hang(void **state)
{
    struct fixture *f = *state;
    struct store_writer_options o = {.state_dir = f->dir, .limits = {[STORE_LANE_METRICS] = 1}};
    struct rlimit was, limit;
    struct sup_stats stats;
    struct ids ids;
    struct pd_why why;

    all_down(f);
    f->o.hang_us = 3000000; /* more than between two heartbeats, less than the disk refuses */
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_OK);
    assert_int_equal(store_open_reader(store_writer_path(f->w), &f->s, &why), PD_OK);
    sup_up(f);
    set("POLYD_SELFTEST_STEPS", 2500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 50);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){.rlim_cur = 4096, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    pause_ms(5000);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    sup_stats(f->sup, &stats);
    assert_int_equal(stats.hangs, 0);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 60).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    check_series(f, ids.run, 2500);
}

/* A frame that cannot be stored costs its worker the connection, and nothing else: not the store its health. */
static void test_supervise_malformed_blob_stops_no_writes(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct pd_why why = {""};

    all_down(f);
    f->o.worker_path = FAKE_WORKER_PATH;
    store_up(f);
    sup_up(f);
    ids = submit(f, (struct ids){0});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    look_at_attempts(f, ids.run);
    assert_non_null(strstr(last_message, "vanished"));
    assert_int_equal(store_writer_health(f->w, &why), PD_OK);
    ids = submit(f, (struct ids){0});
    await(f, ids.run, JOB_RUN_ENDED, 20);
}

static void test_supervise_failing_run_uses_up_its_restarts(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_FAIL_AT", 5);
    ids = submit(f, (struct ids){.max_restarts = 2});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "asked to fail at step 5"));
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 3);
    assert_int_equal(last_cause, JOB_CAUSE_FAILED);
}

static void test_supervise_refused_run_is_not_tried_again(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_REFUSE_AT", 1);
    ids = submit(f, (struct ids){.max_restarts = 3});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_string_equal(run_reason, "asked to refuse at step 1");
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    assert_int_equal(last_cause, JOB_CAUSE_FAILED);
}

static void test_supervise_run_refused_after_progress_is_tried_again(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_CRASH_AT", 50); /* after two checkpoints */
    set("POLYD_SELFTEST_REFUSE_AT", 60);
    ids = submit(f, (struct ids){.max_restarts = 2});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "no restarts left"));
    look_at_attempts(f, ids.run);
    assert_true(count_attempts > 2);
}

static void test_supervise_progress_renews_the_restarts(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_CRASH_AT", 50); /* after two checkpoints */
    ids = submit(f, (struct ids){.max_restarts = 1});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 200);
}

struct gate {
    sem_t entered, open;
};

static enum pd_err hold_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct gate *g = ctx;
    struct timespec limit;

    (void)tx;
    (void)why;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 30; /* a test that fails in between must end */
    sem_post(&g->entered);
    sem_timedwait(&g->open, &limit);
    return PD_OK;
}

static enum pd_err restarted_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_set_backoff(tx, *(const int64_t *)ctx, 1, 0, why);
}

/* The worker dies while the writer is busy: its checkpoint and its end become rows together, and in this order. */
static void test_supervise_last_checkpoint_counts_as_progress(void **state)
{
    struct fixture *f = *state;
    struct store_work once = {.lane = STORE_LANE_COMMAND, .apply = restarted_apply}, hold = once;
    struct sup_stats stats = {0};
    struct gate gate;
    struct pd_why why;
    struct ids ids;

    set("POLYD_SELFTEST_CRASH_AT", 50); /* after two checkpoints */
    set("POLYD_SELFTEST_STEP_US", 20000);
    ids = submit(f, (struct ids){.max_restarts = 1});
    once.ctx = &ids.run;
    assert_int_equal(store_writer_call(f->w, &once, &why), PD_OK);
    for (int i = 0; i < 2000 && !worker_pid(f, false); i++)
        pause_ms(5);
    sem_init(&gate.entered, 0, 0);
    sem_init(&gate.open, 0, 0);
    hold.apply = hold_apply;
    hold.ctx = &gate;
    assert_int_equal(store_writer_submit(f->w, &hold, &why), PD_OK);
    sem_wait(&gate.entered);
    for (int i = 0; i < 4000 && !stats.requeued; i++) {
        pause_ms(5);
        sup_stats(f->sup, &stats);
    }
    set("POLYD_SELFTEST_STEP_US", 1000);
    sem_post(&gate.open);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 200);
}

static enum pd_err retry_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_retry(tx, ((struct ids *)ctx)->job, -1, why);
}

/* The retry of its job gives a run its restarts back while it works, too. */
static void test_supervise_retry_renews_the_restarts_of_a_working_run(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 100000);
    set("POLYD_SELFTEST_EVERY", 0);
    set("POLYD_SELFTEST_CRASH_AT", 15);
    ids = submit(f, (struct ids){.max_restarts = 1});
    await_step(f, ids.run, 30); /* of the second attempt, which may not fail */
    assert_int_equal(run_now(f, ids.run).restarts, 1);
    assert_int_equal(call(f, retry_apply, &ids), PD_OK);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    for (int i = 0;
         i < 2000 && run_now(f, ids.run).attempts < 3 && run_now(f, ids.run).state != JOB_RUN_ENDED; i++)
        pause_ms(5);
    assert_int_equal(run_now(f, ids.run).attempts, 3);
    assert_int_equal(run_now(f, ids.run).restarts, 1);
    await_step(f, ids.run, 5);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL); /* and no more than that */
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "attempt 3, no restarts left"));
}

static void test_supervise_diverged_is_a_result(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_DIVERGE_AT", 30);
    ids = submit(f, (struct ids){.max_restarts = 3});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_DIVERGED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
}

static void test_supervise_time_limit_ends_the_run(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000);
    ids = submit(f, (struct ids){.limit_us = 700000});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 10).outcome, JOB_OUTCOME_FAILED);
    assert_string_equal(run_reason, "time limit");
    look_at_attempts(f, ids.run);
    assert_int_equal(last_cause, JOB_CAUSE_TIME_LIMIT);
}

static bool earliest_checkpoint(void *ctx, const struct store_checkpoint *c)
{
    int64_t *us = ctx;

    if (!*us || c->created_us < *us)
        *us = c->created_us;
    return true;
}

static bool first_created(void *ctx, const struct store_attempt *a)
{
    *(int64_t *)ctx = a->created_us;
    return false;
}

/* The warning asks for a checkpoint. With less left than it is to come before, it must not come at the start.
 */
static void test_supervise_time_limit_below_the_warning_does_not_warn_at_once(void **state)
{
    struct fixture *f = *state;
    int64_t earliest_us = 0, begun_us = 0;
    struct pd_why why;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1000000);
    set("POLYD_SELFTEST_EVERY", 0);
    ids = submit(f, (struct ids){.limit_us = 2000000, .warn_us = 60000000});
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_FAILED);
    assert_string_equal(run_reason, "time limit");
    assert_int_equal(store_checkpoint_list(f->s, ids.run, true, earliest_checkpoint, &earliest_us, &why),
                     PD_OK);
    assert_int_equal(store_attempt_list(f->s, ids.run, first_created, &begun_us, &why), PD_OK);
    assert_true(earliest_us > 0);
    assert_true(earliest_us - begun_us >= 900000);
}

static void test_supervise_pause_and_resume(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 30);
    assert_int_equal(call(f, pause_apply, &ids), PD_OK);
    await(f, ids.run, JOB_RUN_PAUSED, 20);
    await_no_process(f);
    assert_int_equal(call(f, resume_apply, &ids), PD_OK);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 1500);
}

/* Resumed between the order to pause and the worker's leaving: the run goes on. */
static void test_supervise_resume_overtakes_the_pause(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 50);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGSTOP);
    assert_int_equal(call(f, pause_apply, &ids), PD_OK);
    for (int i = 0; i < 2000 && last_state != JOB_ATTEMPT_STOPPING; i++) {
        pause_ms(5);
        look_at_attempts(f, ids.run);
    }
    assert_int_equal(last_state, JOB_ATTEMPT_STOPPING);
    assert_int_equal(call(f, resume_apply, &ids), PD_OK);
    kill(pid, SIGCONT);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 1500);
}

static void test_supervise_worker_outlives_the_daemon(void **state)
{
    struct fixture *f = *state;
    struct sup_stats stats;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 50);
    all_down(f);
    assert_true(worker_pid(f, false) > 0);
    pause_ms(300);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    sup_stats(f->sup, &stats);
    assert_int_equal(stats.adopted, 1);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    check_series(f, ids.run, 1500);
    await_no_process(f);
}

/* While the daemon is away the worker ends: it waits with its goodbye. */
static void test_supervise_worker_finishes_without_the_daemon(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    set("POLYD_SELFTEST_STEPS", 1500); /* long enough to be seen at step 20 on a slow machine */
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 20);
    all_down(f);
    pause_ms(800);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 1);
    check_series(f, ids.run, 1500);
}

/* Both die: the next daemon requeues from the last checkpoint. */
static void test_supervise_worker_lost_while_the_daemon_is_away(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    pid_t pid;

    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){.max_restarts = 3});
    await_step(f, ids.run, 60);
    all_down(f);
    pid = worker_pid(f, false);
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    await_no_process(f);
    store_up(f);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    look_at_attempts(f, ids.run);
    assert_int_equal(count_attempts, 2);
    check_series(f, ids.run, 1500);
}

static void test_supervise_drain_on_stop_requeues(void **state)
{
    struct fixture *f = *state;
    struct ids ids;

    all_down(f);
    f->o.drain_on_stop = true;
    store_up(f);
    sup_up(f);
    set("POLYD_SELFTEST_STEPS", 1500);
    ids = submit(f, (struct ids){0});
    await_step(f, ids.run, 50);
    all_down(f);
    assert_int_equal(marked(f, NULL, 0), 0);
    store_up(f);
    assert_int_equal(run_now(f, ids.run).state, JOB_RUN_QUEUED);
    sup_up(f);
    assert_int_equal(await(f, ids.run, JOB_RUN_ENDED, 20).outcome, JOB_OUTCOME_SUCCEEDED);
    check_series(f, ids.run, 1500);
}

static void test_supervise_start_refuses_missing_worker(void **state)
{
    struct fixture *f = *state;
    struct sup_options o = f->o;
    struct sup *second;
    struct pd_why why;

    o.worker_path = "/nonexistent/polyd-worker";
    assert_int_equal(sup_start(&o, f->w, &second, &why), PD_ERR_NOT_FOUND);
    o = f->o;
    o.cpu_slots = 0;
    assert_int_equal(sup_start(&o, f->w, &second, &why), PD_ERR_INVALID);
}

static void note_load(void *ctx, enum pd_err err, const struct pd_why *why)
{
    (void)why;
    *(_Atomic int *)ctx = (int)err;
}

static void test_supervise_load_of_unknown_model_says_so(void **state)
{
    struct fixture *f = *state;
    _Atomic int result = -1;
    struct sup_infer req = {.model = "nothing", .kind = "infer"};
    struct pd_why why;
    uint64_t id;

    assert_int_equal(sup_model_load(f->sup, "nothing", 0, note_load, &result, &why), PD_OK);
    for (int i = 0; i < 400 && result < 0; i++)
        pause_ms(5);
    assert_int_equal(result, PD_ERR_NOT_FOUND);
    result = -1;
    assert_int_equal(sup_model_unload(f->sup, "nothing", 0, note_load, &result, &why), PD_OK);
    for (int i = 0; i < 400 && result < 0; i++)
        pause_ms(5);
    assert_int_equal(result, PD_ERR_NOT_FOUND);
    assert_int_equal(sup_infer(f->sup, &req, &id, &why), PD_ERR_NOT_FOUND);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_supervise_job_runs_to_its_end),
        TEST(test_supervise_cancel_is_graceful),
        TEST(test_supervise_cancel_kills_who_does_not_listen),
        TEST(test_supervise_stray_children_die_with_their_attempt),
        TEST(test_supervise_killed_worker_resumes_from_checkpoint),
        TEST(test_supervise_worker_refuses_the_folder_of_another_run),
        TEST(test_supervise_unmarked_folder_of_a_run_at_work_gets_its_marker),
        TEST(test_supervise_worker_adopted_before_its_assignment_resumes),
        TEST(test_supervise_killed_shim_takes_its_worker_along),
        TEST(test_supervise_stopped_worker_counts_as_hang),
        TEST(test_supervise_hang_counts_from_the_last_word),
        TEST(test_supervise_worker_that_waits_for_the_disk_does_not_hang),
        TEST(test_supervise_malformed_blob_stops_no_writes),
        TEST(test_supervise_failing_run_uses_up_its_restarts),
        TEST(test_supervise_refused_run_is_not_tried_again),
        TEST(test_supervise_run_refused_after_progress_is_tried_again),
        TEST(test_supervise_progress_renews_the_restarts),
        TEST(test_supervise_last_checkpoint_counts_as_progress),
        TEST(test_supervise_retry_renews_the_restarts_of_a_working_run),
        TEST(test_supervise_diverged_is_a_result),
        TEST(test_supervise_time_limit_ends_the_run),
        TEST(test_supervise_time_limit_below_the_warning_does_not_warn_at_once),
        TEST(test_supervise_pause_and_resume),
        TEST(test_supervise_resume_overtakes_the_pause),
        TEST(test_supervise_worker_outlives_the_daemon),
        TEST(test_supervise_worker_finishes_without_the_daemon),
        TEST(test_supervise_worker_lost_while_the_daemon_is_away),
        TEST(test_supervise_drain_on_stop_requeues),
        TEST(test_supervise_start_refuses_missing_worker),
        TEST(test_supervise_load_of_unknown_model_says_so),
    };

    if (!getenv("POLYD_TEST_LOUD"))
        pd_log_set_level(PD_LOG_ERROR);
    if (argc > 1) /* a pattern, for one test alone */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("supervise", tests, NULL, NULL);
}
