/* Runs that their client carries out: they begin at once, live as long as something is heard of them, and a
 * file of the schema before them is migrated. */
#include <math.h>
#include <sqlite3.h>

#include "daemon/polyd/store/verify.h"
#include "kernels/base/file.h"
#include "tests/lib/jump.h"
#include "tests/store/help.h"

static int external_setup(void **state)
{
    jump_wall_us = jump_boot_us = 0;
    return setup(state);
}

static enum pd_err open_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {
        .kind = JOB_KIND_EXTERNAL, .name = "mine", .experiment = "e", .document = "{}"};
    struct store_run_new run = {.document = "{\"lr\":0.5}", .device = "", .total_steps = -1};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    return err == PD_OK ? store_run_insert(tx, ids->job, &run, &ids->run, why) : err;
}

static struct ids opened(struct fixture *f)
{
    struct ids ids = {0};
    struct pd_why why;

    assert_int_equal(call(f, open_run, &ids, &why), PD_OK);
    return ids;
}

struct stands {
    enum job_run_state state;
    enum job_outcome outcome;
    enum job_kind kind;
    enum job_state job;
    int64_t step, ended, failed;
    bool ended_at;
    char reason[64];
};

static bool of_run(void *ctx, const struct store_run *r)
{
    struct stands *s = ctx;

    s->state = r->state;
    s->outcome = r->outcome;
    s->kind = r->kind;
    s->step = r->step;
    s->ended_at = r->ended_us != 0;
    snprintf(s->reason, sizeof s->reason, "%s", r->reason);
    assert_true((!r->started_us || r->started_us >= r->created_us) &&
                (!r->ended_us || r->ended_us >= r->started_us));
    return true;
}

static bool of_job(void *ctx, const struct store_job *j)
{
    struct stands *s = ctx;

    s->job = j->state;
    s->ended = j->runs_ended;
    s->failed = j->runs_failed;
    return true;
}

static struct stands look(struct fixture *f, struct ids ids)
{
    struct stands s;
    struct pd_why why;

    assert_int_equal(store_run_get(f->s, ids.run, of_run, &s, &why), PD_OK);
    assert_int_equal(store_job_get(f->s, ids.job, of_job, &s, &why), PD_OK);
    return s;
}

struct act {
    int64_t run, step, before_us;
    enum job_outcome outcome;
    bool external;
};

static enum pd_err hear(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct act *a = ctx;

    return store_run_heard(tx, a->run, a->step, &a->external, why);
}

static enum pd_err beat(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_beat(tx, ((struct act *)ctx)->run, why);
}

static enum pd_err lose(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct act *a = ctx;

    return store_run_lost(tx, a->run, a->before_us, "silence", why);
}

static enum pd_err finish(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct act *a = ctx;

    return store_run_finish(tx, a->run, -1, a->outcome, "said so", why);
}

static enum pd_err cancel(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_cancel(tx, *(int64_t *)ctx, -1, "enough", why);
}

static enum pd_err pause_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_pause(tx, *(int64_t *)ctx, -1, why);
}

static bool count_run(void *ctx, int64_t run_id)
{
    (void)run_id;
    ++*(int *)ctx;
    return true;
}

static int silent(struct fixture *f, int64_t for_us)
{
    struct pd_why why;
    int n = 0;

    assert_int_equal(store_run_silent(f->s, store_writer_clock_us(f->w) - for_us, count_run, &n, &why),
                     PD_OK);
    return n;
}

static void test_external_run_begins_at_once_and_ends_by_its_word(void **state)
{
    struct fixture *f = *state;
    struct ids ids = opened(f);
    struct act a = {.run = ids.run, .step = 7, .outcome = JOB_OUTCOME_SUCCEEDED};
    struct stands s = look(f, ids);
    struct pd_why why;

    assert_true(s.kind == JOB_KIND_EXTERNAL && s.state == JOB_RUN_RUNNING && s.job == JOB_RUNNING);
    assert_int_equal(call(f, hear, &a, &why), PD_OK);
    assert_true(a.external && look(f, ids).step == 7);
    a.step = 3; /* an earlier step does not set it back */
    assert_int_equal(call(f, hear, &a, &why), PD_OK);
    assert_int_equal(look(f, ids).step, 7);
    assert_int_equal(call(f, finish, &a, &why), PD_OK);
    s = look(f, ids);
    assert_true(s.state == JOB_RUN_ENDED && s.outcome == JOB_OUTCOME_SUCCEEDED && s.job == JOB_DONE);
    assert_string_equal(s.reason, "said so");
    assert_int_equal(call(f, finish, &a, &why), PD_OK); /* the same word again */
    a.outcome = JOB_OUTCOME_FAILED;
    assert_int_equal(call(f, finish, &a, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, beat, &a, &why), PD_ERR_CONFLICT);
    assert_non_null(strstr(why.text, "has ended: succeeded"));
    expect_sound(f);
}

static void test_external_run_is_lost_by_boot_time_and_comes_back(void **state)
{
    struct fixture *f = *state;
    struct ids ids = opened(f);
    struct act a = {.run = ids.run, .step = -1};
    struct pd_why why;
    struct stands s;

    jump_wall_us = 5 * JUMP_HOUR_US; /* somebody sets the clock: no silence */
    assert_int_equal(silent(f, JUMP_HOUR_US), 0);
    jump_boot_us = 2 * JUMP_HOUR_US;
    assert_int_equal(silent(f, JUMP_HOUR_US), 1);
    a.before_us = store_writer_clock_us(f->w) - 3 * JUMP_HOUR_US; /* it was heard of meanwhile */
    assert_int_equal(call(f, lose, &a, &why), PD_OK);
    assert_int_equal(look(f, ids).state, JOB_RUN_RUNNING);
    a.before_us = store_writer_clock_us(f->w) - JUMP_HOUR_US;
    assert_int_equal(call(f, lose, &a, &why), PD_OK);
    s = look(f, ids);
    assert_true(s.state == JOB_RUN_ENDED && s.outcome == JOB_OUTCOME_LOST && s.job == JOB_FAILED);
    assert_true(s.ended == 1 && s.failed == 1 && silent(f, JUMP_HOUR_US) == 0);
    expect_sound(f);
    assert_int_equal(call(f, beat, &a, &why), PD_OK);
    s = look(f, ids);
    assert_true(s.state == JOB_RUN_RUNNING && s.job == JOB_RUNNING && !s.ended_at);
    assert_true(s.ended == 0 && s.failed == 0);
    assert_string_equal(s.reason, "");
    jump_boot_us = 4 * JUMP_HOUR_US;
    a.before_us = store_writer_clock_us(f->w);
    assert_int_equal(call(f, lose, &a, &why), PD_OK);
    a.outcome = JOB_OUTCOME_FAILED; /* lost was a guess: its own word is better */
    assert_int_equal(call(f, finish, &a, &why), PD_OK);
    s = look(f, ids);
    assert_true(s.outcome == JOB_OUTCOME_FAILED && s.job == JOB_FAILED && s.failed == 1);
    expect_sound(f);
}

static void test_external_run_outlives_a_restart(void **state)
{
    struct fixture *f = *state;
    struct ids ids = opened(f);
    struct act a = {.run = ids.run, .step = -1, .outcome = JOB_OUTCOME_CANCELLED};
    struct pd_why why;

    writer_down(f);
    writer_up(f);
    assert_int_equal(look(f, ids).state, JOB_RUN_RUNNING);
    assert_int_equal(call(f, beat, &a, &why), PD_OK);
    assert_int_equal(call(f, finish, &a, &why), PD_OK);
    assert_int_equal(look(f, ids).job, JOB_CANCELLED);
    expect_sound(f);
}

static void test_external_run_is_cancelled_at_once_and_cannot_be_paused(void **state)
{
    struct fixture *f = *state;
    struct ids ids = opened(f);
    struct act a = {.run = ids.run, .step = -1};
    struct pd_why why;

    assert_int_equal(call(f, pause_job, &ids.job, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, cancel, &ids.job, &why), PD_OK);
    assert_true(look(f, ids).outcome == JOB_OUTCOME_CANCELLED && look(f, ids).job == JOB_CANCELLED);
    assert_int_equal(call(f, hear, &a, &why), PD_OK); /* late points are welcome, and change nothing */
    assert_int_equal(look(f, ids).state, JOB_RUN_ENDED);
    assert_int_equal(call(f, beat, &a, &why), PD_ERR_CONFLICT);
    expect_sound(f);
}

static void test_run_with_a_worker_is_not_its_client_s(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct act a = {.run = ids.run, .step = 99, .external = true, .outcome = JOB_OUTCOME_SUCCEEDED};
    struct pd_why why;

    assert_int_equal(call(f, hear, &a, &why), PD_OK);
    assert_true(!a.external && look(f, ids).step == 0);
    assert_int_equal(call(f, beat, &a, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, finish, &a, &why), PD_ERR_CONFLICT);
    assert_non_null(strstr(why.text, "polyd executes run"));
    assert_int_equal(look(f, ids).state, JOB_RUN_QUEUED);
    a.run = 99;
    assert_int_equal(call(f, finish, &a, &why), PD_ERR_NOT_FOUND);
}

static sqlite3 *raw(struct fixture *f)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static void run_sql(sqlite3 *db, const char *sql)
{
    char *error = NULL;

    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s", error);
}

static double ask(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st;
    double value;

    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    value = sqlite3_column_type(st, 0) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(st, 0);
    sqlite3_finalize(st);
    return value;
}

/* A file of schema 5 with a run to whose loss a client has added points. */
static void old_file(struct fixture *f)
{
    static const char *const names[] = {"0001_init", "0002_sweep", "0003_device", "0004_tuned",
                                        "0005_identity"};
    char path[600];
    sqlite3 *db;

    writer_down(f);
    snprintf(path, sizeof path, "rm -f '%s'/polyd.db* '%s'/store-id", f->dir, f->dir);
    assert_int_equal(system(path), 0);
    db = raw(f);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pd_buf sql;

        pd_buf_init(&sql, 0);
        snprintf(path, sizeof path, "%s/migrations/%s.sql", POLYD_SOURCE_DIR, names[i]);
        assert_int_equal(pd_file_read(path, 1 << 20, &sql, NULL), PD_OK);
        run_sql(db, sql.data);
        pd_buf_done(&sql);
    }
    run_sql(
        db,
        "INSERT INTO job (id, state, name, experiment, runs, runs_ended, planned, created_us, document) "
        "VALUES "
        "(1, 'done', 'old', 'e', 1, 1, 1, 5, '{}');"
        "INSERT INTO run (id, job_id, n, state, outcome, device, slots, threads, priority, max_restarts, "
        "created_us, ended_us, config_digest, plan_digest, document) VALUES (1, 1, 0, 'ended', 'succeeded', "
        "'cpu', 1, 1, 0, 3, 5, 9, 'c', 'p', '{}');"
        "INSERT INTO metric_key (id, name) VALUES (1, 'loss/val'), (2, 'mine');"
        "INSERT INTO metric VALUES (1, 1, 0, 60, 9, 0, 0.0001), (1, 1, 1, 10, 6, 0, 3.0), (1, 1, 1, 20, 7, "
        "0, "
        "2.5), (1, 1, 1, 30, 8, 0, NULL), (1, 2, 0, 4, 9, 0, -1);"
        "INSERT INTO metric_rollup VALUES (1, 1, 0, 0, 1, 0, 60, 60, 9, 9, 0.0001, 0.0001, 0.0001), "
        "(1, 1, 1, 0, 3, 1, 10, 30, 6, 8, 2.5, 3, 5.5), (1, 2, 0, 0, 1, 0, 4, 4, 9, 9, -1, -1, -1);"
        "INSERT INTO metric_latest VALUES (1, 1, 0, 60, 9, 0.0001, 4, 0.0001, 3), (1, 2, 0, 4, 9, -1, 1, -1, "
        "-1);"
        "PRAGMA application_id = 1347374169; PRAGMA user_version = 5;");
    sqlite3_close(db);
}

static void test_store_migrates_a_file_of_schema_5(void **state)
{
    struct fixture *f = *state;
    struct ids ids;
    struct act a = {.before_us = INT64_MAX};
    struct pd_why why;
    sqlite3 *db;

    old_file(f);
    writer_up(f);
    db = raw(f);
    assert_true(
        ask(db, "SELECT value IS NULL AND attempt = 1 AND step = 30 AND count = 4 AND min = 2.5 AND max = 3 "
                "FROM metric_latest WHERE key_id = 1") == 1);
    assert_true(ask(db, "SELECT value = -1 AND attempt = 0 FROM metric_latest WHERE key_id = 2") == 1);
    assert_true(ask(db, "SELECT kind = 'train' FROM job") == 1);
    assert_true(ask(db, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'") == 0);
    assert_int_equal(sqlite3_exec(db, "UPDATE run SET outcome = 'strange'", NULL, NULL, NULL),
                     SQLITE_CONSTRAINT);
    sqlite3_close(db);
    ids = opened(f); /* no slots */
    a.run = ids.run;
    assert_int_equal(call(f, lose, &a, &why), PD_OK);
    assert_int_equal(look(f, ids).outcome, JOB_OUTCOME_LOST);
}

#define EXTERNAL(name) cmocka_unit_test_setup_teardown(name, external_setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EXTERNAL(test_external_run_begins_at_once_and_ends_by_its_word),
        EXTERNAL(test_external_run_is_lost_by_boot_time_and_comes_back),
        EXTERNAL(test_external_run_outlives_a_restart),
        EXTERNAL(test_external_run_is_cancelled_at_once_and_cannot_be_paused),
        EXTERNAL(test_run_with_a_worker_is_not_its_client_s),
        EXTERNAL(test_store_migrates_a_file_of_schema_5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
