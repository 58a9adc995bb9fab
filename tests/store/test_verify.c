/* polyd verify must see what it claims to see: each rule is broken once behind the store's back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/store/verify.h"
#include "kernels/base/file.h"

struct fixture {
    char dir[64], file[96];
    char digest[DIGEST_SHA256_HEX_SIZE];
    int64_t job, run;
    char said[8192];
};

static enum pd_err fill(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct fixture *f = ctx;
    struct store_job_new job = {.name = "j", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 1, .total_steps = 2};
    struct store_attempt_new a = {.devices = "cpu:0,cpu:1"};
    struct store_metric points[] = {{.key = "loss", .step = 1, .time_us = 1, .value = 2},
                                    {.key = "loss", .step = 2, .time_us = 2, .value = 1}};
    struct store_checkpoint c = {.attempt = 1,
                                 .step = 2,
                                 .kind = "best",
                                 .path = f->file,
                                 .bytes = 5,
                                 .digest = f->digest,
                                 .value = 1};
    enum pd_err err = store_job_insert(tx, &job, &f->job, why);
    int n;

    if (err == PD_OK)
        err = store_run_insert(tx, f->job, &run, &f->run, why);
    a.run_id = c.run_id = f->run;
    if (err == PD_OK)
        err = store_attempt_insert(tx, &a, &n, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, f->run, n, JOB_ATTEMPT_RUNNING, JOB_CAUSE_DONE, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, f->run, JOB_RUN_RUNNING, JOB_OUTCOME_SUCCEEDED, NULL, why);
    if (err == PD_OK)
        err = store_metric_append(tx, f->run, n, points, 2, NULL, why);
    if (err == PD_OK)
        err = store_checkpoint_insert(tx, &c, NULL, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, f->run, n, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, NULL, 0, why);
    return err == PD_OK ? store_run_move(tx, f->run, JOB_RUN_ENDED, JOB_OUTCOME_SUCCEEDED, NULL, why) : err;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct store_writer_options o = {.state_dir = f->dir};
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = fill, .ctx = f};
    struct store_writer *w;
    struct pd_why why = {""};

    strcpy(f->dir, "/tmp/polyd-verify-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->file, sizeof f->file, "%s/checkpoint", f->dir);
    assert_int_equal(pd_file_replace(f->file, "12345", 5, 0600, &why), PD_OK);
    digest_sha256_hex("12345", 5, f->digest);
    assert_int_equal(store_writer_start(&o, &w, &why), PD_OK);
    if (store_writer_call(w, &work, &why) != PD_OK)
        fail_msg("%s", why.text);
    store_writer_stop(w);
    *state = f;
    return 0;
}

/* The file of the same step, with other contents. */
static enum pd_err write_again(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct fixture *f = ctx;
    struct store_checkpoint c = {.run_id = f->run,
                                 .attempt = 1,
                                 .step = 2,
                                 .kind = "best",
                                 .path = f->file,
                                 .bytes = 6,
                                 .digest = f->digest,
                                 .value = 1};

    return store_checkpoint_insert(tx, &c, NULL, why);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void note(void *ctx, const char *text)
{
    struct fixture *f = ctx;

    if (strlen(f->said) + strlen(text) + 2 < sizeof f->said) {
        strcat(f->said, text);
        strcat(f->said, "\n");
    }
}

static int64_t problems(struct fixture *f, bool read_all)
{
    struct pd_why why = {""};
    int64_t n = -1;

    f->said[0] = '\0';
    if (store_verify(f->dir, read_all, note, f, &n, &why) != PD_OK)
        fail_msg("%s", why.text);
    return n;
}

static void poke(struct fixture *f, const char *sql)
{
    char path[128], *message = NULL;
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK)
        fail_msg("%s", message);
    sqlite3_close(db);
}

static void sees(void **state, const char *sql, const char *what)
{
    struct fixture *f = *state;

    poke(f, sql);
    assert_true(problems(f, true) > 0);
    if (!strstr(f->said, what))
        fail_msg("not said: '%s', but: %s", what, f->said);
}

static void test_verify_finds_nothing_in_good_order(void **state)
{
    assert_int_equal(problems(*state, true), 0);
}

static void test_verify_refuses_what_is_no_state(void **state)
{
    struct pd_why why;
    int64_t n;

    (void)state;
    assert_int_not_equal(store_verify("/nonexistent", true, note, NULL, &n, &why), PD_OK);
}

static void test_verify_sees_a_state_without_its_event(void **state)
{
    sees(state, "UPDATE job SET state = 'failed'", "job 1 is 'failed', but 'done' by its events");
}

static void test_verify_sees_a_forbidden_move(void **state)
{
    sees(state,
         "INSERT INTO event (time_us, kind, job_id, data) VALUES (1, 'job.state', 1, "
         "'{\"from\":\"done\",\"to\":\"queued\"}');"
         "UPDATE job SET state = 'queued'",
         "job 1 moved from 'done' to 'queued', which is not allowed");
}

static void test_verify_sees_a_move_from_another_state(void **state)
{
    sees(state,
         "INSERT INTO event (time_us, kind, run_id, data) VALUES (1, 'run.state', 1, "
         "'{\"from\":\"running\",\"to\":\"ended\"}')",
         "run 1 moved from 'running' while it was 'ended'");
}

static void test_verify_sees_a_lost_point(void **state)
{
    sees(state, "DELETE FROM metric WHERE step = 2", "series loss: 1 points, but by roll-ups 2");
}

static void test_verify_sees_a_doubled_point(void **state)
{
    sees(state,
         "INSERT INTO metric SELECT run_id, key_id, attempt, step, ts_us, 1, 9.0 FROM metric WHERE step = 2",
         "series loss: 3 points, but by its latest row 2");
}

static void test_verify_sees_a_device_in_two_runs(void **state)
{
    sees(state,
         "PRAGMA foreign_keys = OFF; INSERT INTO allocation VALUES ('cpu:0', (SELECT from_us FROM allocation "
         "LIMIT 1) - 1, "
         "99, 1, 0)",
         "device cpu:0 was held by run 99 and run 1 at once");
}

static void test_verify_sees_a_job_that_lacks_runs(void **state)
{
    sees(state, "UPDATE job SET planned = 3", "job 1 is done with 1 of 3 runs");
}

static void test_verify_sees_a_run_out_of_place(void **state)
{
    sees(state, "UPDATE run SET trial = 1", "run 1 is number 0 and says point 0, trial 1");
}

static void test_verify_sees_a_broken_reference(void **state)
{
    sees(state, "PRAGMA foreign_keys = OFF; INSERT INTO model_alias VALUES (7, 'x', 1, 0)",
         "foreign_key_check");
}

static void test_verify_sees_wrong_accounts(void **state)
{
    sees(state, "UPDATE run SET used_us = used_us + 5", "its attempts");
}

static void test_verify_sees_intervals_that_cannot_be(void **state)
{
    sees(state, "UPDATE job SET ended_us = started_us - 5", "job 1 ended 5 us before it started");
    sees(state, "UPDATE job SET ended_us = started_us, created_us = started_us + 1",
         "job 1 started before it was made");
    sees(state, "UPDATE run SET ended_us = created_us - 7, started_us = 0",
         "run 1 ended 7 us before it was made");
    sees(state, "UPDATE attempt SET ended_us = created_us - 9, started_us = created_us",
         "attempt 1/1 ended 9 us before it started");
    sees(state, "UPDATE attempt SET held_us = -3", "attempt 1/1 held its devices for -3 us");
    sees(state, "UPDATE allocation SET to_us = from_us - 2 WHERE device = 'cpu:1'",
         "device cpu:1 was given back by run 1 2 us before it was taken");
}

static void test_verify_sees_wrong_counts(void **state)
{
    sees(state, "UPDATE job SET runs_failed = 1", "job 1 counts 1 runs, 1 ended, 1 failed");
}

static void test_verify_sees_a_device_that_is_still_held(void **state)
{
    sees(state, "UPDATE allocation SET to_us = 0 WHERE device = 'cpu:1'", "has ended but holds cpu:1");
}

static void test_verify_sees_missing_short_and_changed_files(void **state)
{
    struct fixture *f = *state;
    struct pd_why why;

    assert_int_equal(pd_file_replace(f->file, "12346", 5, 0600, &why), PD_OK);
    assert_int_equal(problems(f, true), 1);
    assert_non_null(strstr(f->said, "digest"));
    assert_int_equal(problems(f, false), 0); /* quick looks at sizes only */
    assert_int_equal(pd_file_replace(f->file, "1234", 4, 0600, &why), PD_OK);
    assert_int_equal(problems(f, false), 1);
    unlink(f->file);
    assert_int_equal(problems(f, false), 1);
    assert_non_null(strstr(f->said, "missing"));
}

static void test_verify_accepts_a_checkpoint_that_was_written_again(void **state)
{
    struct fixture *f = *state;
    struct store_writer_options o = {.state_dir = f->dir};
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = write_again, .ctx = f};
    struct store_writer *w;
    struct pd_why why = {""};

    assert_int_equal(pd_file_replace(f->file, "123456", 6, 0600, &why), PD_OK);
    digest_sha256_hex("123456", 6, f->digest);
    assert_int_equal(store_writer_start(&o, &w, &why), PD_OK);
    if (store_writer_call(w, &work, &why) != PD_OK)
        fail_msg("%s", why.text);
    store_writer_stop(w);
    if (problems(f, true) != 0)
        fail_msg("%s", f->said);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_verify_finds_nothing_in_good_order),
        TEST(test_verify_refuses_what_is_no_state),
        TEST(test_verify_sees_a_state_without_its_event),
        TEST(test_verify_sees_a_forbidden_move),
        TEST(test_verify_sees_a_move_from_another_state),
        TEST(test_verify_sees_a_lost_point),
        TEST(test_verify_sees_a_doubled_point),
        TEST(test_verify_sees_a_device_in_two_runs),
        TEST(test_verify_sees_a_job_that_lacks_runs),
        TEST(test_verify_sees_a_run_out_of_place),
        TEST(test_verify_sees_a_broken_reference),
        TEST(test_verify_sees_wrong_accounts),
        TEST(test_verify_sees_intervals_that_cannot_be),
        TEST(test_verify_sees_wrong_counts),
        TEST(test_verify_sees_a_device_that_is_still_held),
        TEST(test_verify_sees_missing_short_and_changed_files),
        TEST(test_verify_accepts_a_checkpoint_that_was_written_again),
    };

    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
