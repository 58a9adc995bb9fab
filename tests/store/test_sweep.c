/* Sweeps, groups and the migration that brought them, through the store's public face and SQLite's own eyes.
 */
#include <math.h>
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

#include "daemon/polyd/store/tx.h"
#include "kernels/base/file.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
};

static void up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK ||
        store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static int setup_empty(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    strcpy(f->dir, "/tmp/polyd-sweep-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    *state = f;
    return 0;
}

static int setup(void **state)
{
    setup_empty(state);
    up(*state);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    store_close(f->s);
    store_writer_stop(f->w);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static sqlite3 *raw(const struct fixture *f)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    return db;
}

static int64_t ask(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st = NULL;
    int64_t value;

    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), sql);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    value = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return value;
}

static enum pd_err call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                        void *ctx, struct pd_why *why)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1, .apply = apply, .ctx = ctx};

    return store_writer_call(f->w, &work, why);
}

/* ---- the migration -------------------------------------------------------------------------- */

/* A file of schema 1 with a sweep of 2 x 3, a single run and their events. */
static void old_file(const struct fixture *f)
{
    static const char rows[] =
        "INSERT INTO job (id, state, name, experiment, runs, runs_ended, created_us, document) VALUES "
        "(1, 'running', 'sweep', 'e', 6, 1, 5, "
        "'{\"trials\":3,\"sweep\":{\"axes\":[{\"pointer\":\"/attention/k\",\"values\":"
        "[1,2]}],\"metric\":\"acc/val\",\"mode\":\"max\",\"concurrency\":2}}'),"
        "(2, 'done', 'one', 'e', 1, 1, 6, '{\"sweep\":null}'), (3, 'queued', 'odd', 'e', 1, 0, 7, 'no json');"
        "WITH n (i) AS (VALUES (0), (1), (2), (3), (4), (5)) INSERT INTO run (job_id, n, state, outcome, "
        "device, slots, "
        "threads, priority, max_restarts, created_us, config_digest, plan_digest, document) SELECT 1, i, "
        "CASE i WHEN 0 "
        "THEN 'ended' ELSE 'queued' END, CASE i WHEN 0 THEN 'succeeded' ELSE '' END, 'cpu', 1, 1, 0, 3, 8, "
        "'c', 'p', "
        "'{\"train\":{\"seed\":' || (40 + i % 3) || '}}' FROM n;"
        "INSERT INTO run (job_id, n, state, outcome, device, slots, threads, priority, max_restarts, "
        "created_us, "
        "config_digest, plan_digest, document) VALUES (2, 0, 'ended', 'failed', 'cpu', 1, 1, 0, 3, 9, 'c', "
        "'p', '{}'), "
        "(3, 0, 'queued', '', 'cpu', 1, 1, 0, 3, 9, 'c', 'p', 'no json');"
        "INSERT INTO event (time_us, kind, job_id, data) VALUES (1, 'job.state', 1, '{\"to\":\"queued\"}'), "
        "(2, 'job.state', "
        "1, '{\"from\":\"queued\",\"to\":\"running\"}'), (3, 'job.state', 2, '{\"to\":\"queued\"}'), (4, "
        "'worker.start', 2, "
        "'{}');"
        "PRAGMA application_id = 1347374169; PRAGMA user_version = 1;";
    struct pd_buf sql;
    sqlite3 *db = raw(f);
    char *error = NULL, path[600];

    pd_buf_init(&sql, 0);
    snprintf(path, sizeof path, "%s/migrations/0001_init.sql", POLYD_SOURCE_DIR);
    assert_int_equal(pd_file_read(path, 1 << 20, &sql, NULL), PD_OK);
    if (sqlite3_exec(db, sql.data, NULL, NULL, &error) != SQLITE_OK ||
        sqlite3_exec(db, rows, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s", error);
    pd_buf_done(&sql);
    sqlite3_close(db);
}

static bool keep_job(void *ctx, const struct store_job *job)
{
    struct store_job *out = ctx;

    *out = *job;
    out->metric = strcmp(job->metric, "acc/val") == 0 ? "acc/val" : "loss/val";
    return false;
}

static void test_store_migrates_a_file_of_schema_1_with_rows(void **state)
{
    struct fixture *f = *state;
    struct store_job job;
    struct pd_why why;
    sqlite3 *db;

    old_file(f);
    up(f);
    assert_int_equal(store_job_get(f->s, 1, keep_job, &job, &why), PD_OK);
    assert_true(job.planned == 6 && job.points == 2 && job.trials == 3 && job.concurrency == 2 &&
                job.maximise);
    assert_string_equal(job.metric, "acc/val");
    assert_int_equal(store_job_get(f->s, 2, keep_job, &job, &why), PD_OK);
    assert_true(job.planned == 1 && job.points == 1 && job.trials == 1 && !job.maximise);
    db = raw(f);
    assert_int_equal(
        ask(db,
            "SELECT count(*) FROM run WHERE job_id = 1 AND point = n / 3 AND trial = n % 3 AND seed = 40 + "
            "trial"),
        6);
    assert_int_equal(
        ask(db, "SELECT json_extract(sweep, '$.axes[0].pointer') = '/attention/k' FROM job WHERE id = 1"), 1);
    assert_int_equal(ask(db, "SELECT planned = 1 AND sweep = '' FROM job WHERE id = 3"), 1);
    assert_int_equal(ask(db, "SELECT count FROM tally WHERE kind = 'job' AND past = '' AND next = 'queued'"),
                     2);
    assert_int_equal(ask(db, "SELECT count(*) FROM tally"), 2);
    assert_true(ask(db, "PRAGMA user_version") >= 2);
    assert_int_equal(ask(db, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
    sqlite3_close(db);
}

/* ---- plans of queries ----------------------------------------------------------------------- */

/* The lines of the plan, one after the other. */
static void plan_of(sqlite3 *db, const char *sql, char *out, size_t size)
{
    char text[4096];
    sqlite3_stmt *st = NULL;
    size_t len = 0;

    snprintf(text, sizeof text, "EXPLAIN QUERY PLAN %s", sql);
    if (sqlite3_prepare_v2(db, text, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), sql);
    *out = '\0';
    while (sqlite3_step(st) == SQLITE_ROW && len < size)
        len += (size_t)snprintf(out + len, size - len, "%s\n", (const char *)sqlite3_column_text(st, 3));
    sqlite3_finalize(st);
}

static void expect_plan(sqlite3 *db, const char *sql, const char *wanted)
{
    char plan[2048];

    plan_of(db, sql, plan, sizeof plan);
    if (!strstr(plan, wanted) || strstr(plan, "SCAN r\n") || strstr(plan, "SCAN run\n") ||
        strstr(plan, "SCAN job\n"))
        fail_msg("%s\nplans as\n%swithout %s", sql, plan, wanted);
}

static void test_store_sweep_queries_use_their_indexes(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db = raw(f);

    expect_plan(db,
                "SELECT r.id, r.point, r.trial, r.seed, r.state, r.outcome FROM run r WHERE r.job_id = 1 AND "
                "r.point BETWEEN "
                "2 AND 9 ORDER BY r.point, r.trial LIMIT 10",
                "COVERING INDEX run_point (job_id=? AND point>? AND point<?)");
    expect_plan(db, "SELECT state, outcome, count(*) FROM run WHERE job_id = 1 GROUP BY state, outcome",
                "COVERING INDEX run_point (job_id=?)");
    expect_plan(
        db, "SELECT id FROM job WHERE runs < planned AND +state IN ('queued', 'running') ORDER BY id LIMIT 1",
        "job_expanding");
    expect_plan(db, "SELECT id FROM job WHERE planned > 1 AND id < 99 ORDER BY id DESC LIMIT 10",
                "job_sweep");
    expect_plan(db,
                "SELECT r.id FROM run r WHERE r.state = 'queued' AND r.id > 0 ORDER BY r.priority DESC, r.n "
                "ASC, r.id ASC "
                "LIMIT 1000",
                "run_turn (state=?)");
    expect_plan(db,
                "SELECT r.id FROM run r WHERE r.state = 'queued' AND r.id > 0 ORDER BY r.id ASC LIMIT 200",
                "run_state (state=? AND id>?)");
    expect_plan(db,
                "SELECT q.id FROM run q WHERE q.job_id = 1 AND q.state = 'queued' ORDER BY q.point, q.trial "
                "LIMIT 1",
                "COVERING INDEX run_point (job_id=?)");
    expect_plan(db, "SELECT m.group_id FROM run_group_member m WHERE m.run_id = 4",
                "run_group_of (run_id=?)");
    sqlite3_close(db);
}

/* ---- a job made bit by bit ------------------------------------------------------------------ */

struct made {
    int64_t job, run;
    int count;
    int64_t next;
    int priority;
    enum job_outcome outcome; /* of end_run */
};

static enum pd_err make_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct made *m = ctx;
    struct store_job_new job = {
        .name = "s", .experiment = "e", .document = "{}", .planned = 4, .points = 2, .trials = 2};

    return store_job_insert(tx, &job, &m->job, why);
}

static enum pd_err make_runs(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct made *m = ctx;
    enum pd_err err = store_job_next_run(tx, m->job, &m->next, &m->priority, why);

    for (int i = 0; err == PD_OK && i < m->count; i++) {
        struct store_run_new run = {.document = "{}",
                                    .device = "cpu",
                                    .slots = 1,
                                    .point = (m->next + i) / 2,
                                    .trial = (m->next + i) % 2,
                                    .seed = (m->next + i) % 2};

        err = store_run_insert(tx, m->job, &run, &m->run, why);
    }
    return err;
}

static enum pd_err end_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct made *m = ctx;
    struct store_attempt_new a = {.run_id = m->run, .devices = "cpu:0"};
    int n;
    enum pd_err err = store_attempt_insert(tx, &a, &n, why);

    if (err == PD_OK)
        err = store_run_move(tx, m->run, JOB_RUN_RUNNING, JOB_OUTCOME_SUCCEEDED, NULL, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, m->run, n, JOB_ATTEMPT_RUNNING, JOB_CAUSE_DONE, NULL, 0, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, m->run, n, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, NULL, 0, why);
    return err == PD_OK ? store_run_move(tx, m->run, JOB_RUN_ENDED, m->outcome, NULL, why) : err;
}

static enum pd_err cancel_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_cancel(tx, ((struct made *)ctx)->run, -1, "asked", why);
}

static enum pd_err cancel_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_cancel(tx, ((struct made *)ctx)->job, -1, "asked", why);
}

static enum pd_err pause_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_pause(tx, ((struct made *)ctx)->job, -1, why);
}

static enum job_state state_of(struct fixture *f, int64_t id)
{
    struct store_job job;
    struct pd_why why;

    assert_int_equal(store_job_get(f->s, id, keep_job, &job, &why), PD_OK);
    return job.state;
}

static bool count_job(void *ctx, const struct store_job *job)
{
    *(int64_t *)ctx = job->id;
    return true;
}

static int64_t expanding(struct fixture *f)
{
    struct pd_why why;
    int64_t id = 0;

    assert_int_equal(store_job_expanding(f->s, count_job, &id, &why), PD_OK);
    return id;
}

static void test_store_job_ends_only_when_all_planned_runs_have(void **state)
{
    struct fixture *f = *state;
    struct made m = {.count = 3};
    struct pd_why why = {""};
    int64_t first;

    assert_int_equal(call(f, make_job, &m, &why), PD_OK);
    assert_int_equal(expanding(f), m.job);
    assert_int_equal(call(f, make_runs, &m, &why), PD_OK);
    assert_int_equal(m.next, 0);
    first = m.run - 2;
    for (int i = 0; i < 3; i++) {
        m.run = first + i;
        assert_int_equal(call(f, end_run, &m, &why), PD_OK);
    }
    assert_int_equal(state_of(f, m.job), JOB_RUNNING); /* the fourth is to come */
    m.count = 1;
    assert_int_equal(call(f, make_runs, &m, &why), PD_OK);
    assert_int_equal(m.next, 3);
    assert_int_equal(expanding(f), 0);
    assert_int_equal(call(f, make_runs, &m, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, end_run, &m, &why), PD_OK);
    assert_int_equal(state_of(f, m.job), JOB_DONE);
}

static void test_store_paused_job_is_not_expanded_and_a_cancelled_one_never_is(void **state)
{
    struct fixture *f = *state;
    struct made m = {.count = 2};
    struct pd_why why = {""};

    assert_int_equal(call(f, make_job, &m, &why), PD_OK);
    assert_int_equal(call(f, make_runs, &m, &why), PD_OK);
    assert_int_equal(call(f, pause_job, &m, &why), PD_OK);
    assert_int_equal(expanding(f), 0);
    assert_int_equal(call(f, make_runs, &m, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, cancel_job, &m, &why), PD_OK);
    assert_int_equal(state_of(f, m.job), JOB_CANCELLED);
    assert_int_equal(expanding(f), 0);
    {
        sqlite3 *db = raw(f);

        assert_int_equal(ask(db, "SELECT planned = 2 AND runs = 2 AND runs_ended = 2 FROM job"), 1);
        sqlite3_close(db);
    }
}

/* ---- the next run of each job --------------------------------------------------------------- */

struct next {
    int64_t ids[8];
    int count;
};

static bool keep_next(void *ctx, const struct store_run *r)
{
    struct next *n = ctx;

    n->ids[n->count++] = r->id;
    return n->count < 8;
}

static struct next next_runs(struct fixture *f, int limit)
{
    struct next n = {.count = 0};
    struct pd_why why = {""};

    if (store_run_next(f->s, store_writer_clock_us(f->w), limit, keep_next, &n, &why) != PD_OK)
        fail_msg("%s", why.text);
    return n;
}

static enum pd_err back_off(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_set_backoff(tx, ((struct made *)ctx)->run, 1, store_tx_clock_us(tx) + 3600000000, why);
}

static void test_store_next_runs_are_one_of_each_job(void **state)
{
    struct fixture *f = *state;
    struct made a = {.count = 3}, b = {.count = 2}, ended = {.count = 1}, paused = {.count = 1};
    struct made *all[] = {&a, &b, &ended, &paused};
    struct pd_why why = {""};
    struct next n;
    int64_t first;

    for (int i = 0; i < 4; i++) {
        assert_int_equal(call(f, make_job, all[i], &why), PD_OK);
        assert_int_equal(call(f, make_runs, all[i], &why), PD_OK);
    }
    assert_int_equal(call(f, end_run, &ended, &why), PD_OK);
    assert_int_equal(call(f, pause_job, &paused, &why), PD_OK);
    first = a.run - 2;
    n = next_runs(f, 8);
    assert_true(n.count == 2 && n.ids[0] == first && n.ids[1] == b.run - 1);
    a.run = first;
    assert_int_equal(call(f, end_run, &a, &why), PD_OK);
    a.run = first + 1;
    assert_int_equal(call(f, back_off, &a, &why), PD_OK);
    n = next_runs(f, 1); /* the oldest job; its third run may start */
    assert_true(n.count == 1 && n.ids[0] == first + 2);
    a.run = first + 2;
    assert_int_equal(call(f, back_off, &a, &why), PD_OK);
    n = next_runs(f, 8);
    assert_true(n.count == 2 && n.ids[0] == first + 1);
}

/* ---- the best run's model ------------------------------------------------------------------- */

struct ranked {
    struct made made;
    bool maximise;
};

/* Two trials: the first reached 0.9 and 0.2, the second 0.5 and 0.1; the second has the later checkpoint. */
static enum pd_err make_ranked(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ranked *r = ctx;
    struct store_job_new job = {.name = "s",
                                .experiment = "e",
                                .document = "{}",
                                .planned = 2,
                                .trials = 2,
                                .metric = "m",
                                .maximise = r->maximise,
                                .register_name = r->maximise ? "most" : "least"};
    struct store_run_new run = {.document = "{}", .device = "cpu", .slots = 1};
    enum pd_err err = store_job_insert(tx, &job, &r->made.job, why);

    for (int i = 0; err == PD_OK && i < 2; i++) {
        struct store_metric points[] = {{.key = "m", .step = 1, .time_us = 1, .value = i ? 0.5 : 0.9},
                                        {.key = "m", .step = 2, .time_us = 2, .value = i ? 0.1 : 0.2}};
        struct store_checkpoint c = {
            .attempt = 1, .step = 10 + i, .kind = "best", .path = "/nowhere", .digest = "d"};

        err = store_run_insert(tx, r->made.job, &run, &r->made.run, why);
        if (err == PD_OK)
            err = store_metric_append(tx, r->made.run, 0, points, 2, NULL, why);
        c.run_id = r->made.run;
        if (err == PD_OK)
            err = store_checkpoint_insert(tx, &c, NULL, why);
        c.kind = "latest"; /* of a later step, and yet not the run's model */
        c.path = "/nowhere/later";
        c.step = 20 + i;
        if (err == PD_OK)
            err = store_checkpoint_insert(tx, &c, NULL, why);
    }
    return err;
}

static void test_store_registers_the_best_run_by_the_metric_of_the_job(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db = raw(f);

    for (int maximise = 0; maximise < 2; maximise++) {
        struct ranked r = {.maximise = maximise};
        struct pd_why why = {""};
        int64_t last;

        if (call(f, make_ranked, &r, &why) != PD_OK)
            fail_msg("%s", why.text);
        last = r.made.run;
        for (int i = 0; i < 2; i++) {
            r.made.run = last - 1 + i;
            assert_int_equal(call(f, end_run, &r.made, &why), PD_OK);
        }
        assert_int_equal(ask(db, "SELECT count(*) FROM model_version"), 1 + maximise);
        /* 0.9 is the first run's, 0.1 the second's. */
        assert_int_equal(ask(db, "SELECT run_id FROM model_version ORDER BY model_id DESC LIMIT 1"),
                         maximise ? last - 1 : last);
        assert_int_equal(ask(db, "SELECT c.step FROM model_version v JOIN checkpoint c ON c.id = "
                                 "v.checkpoint_id ORDER BY v.model_id DESC LIMIT 1"),
                         maximise ? 10 : 11);
    }
    sqlite3_close(db);
}

/* The second run is the better one, but only the first, which ended before it, succeeded. */
static void test_store_registers_when_the_last_run_diverges_or_is_cancelled(void **state)
{
    struct fixture *f = *state;
    sqlite3 *db = raw(f);

    for (int cancelled = 0; cancelled < 2; cancelled++) {
        struct ranked r = {.maximise = false};
        struct pd_why why = {""};
        int64_t last;

        if (call(f, make_ranked, &r, &why) != PD_OK)
            fail_msg("%s", why.text);
        last = r.made.run;
        r.made.run = last - 1;
        assert_int_equal(call(f, end_run, &r.made, &why), PD_OK);
        assert_int_equal(ask(db, "SELECT count(*) FROM model_version"), cancelled);
        r.made.run = last;
        r.made.outcome = JOB_OUTCOME_DIVERGED;
        assert_int_equal(call(f, cancelled ? cancel_run : end_run, &r.made, &why), PD_OK);
        assert_int_equal(state_of(f, r.made.job), JOB_DONE);
        assert_int_equal(ask(db, "SELECT count(*) FROM model_version"), cancelled + 1);
        assert_int_equal(ask(db, "SELECT run_id FROM model_version ORDER BY n DESC LIMIT 1"), last - 1);
    }
    sqlite3_close(db);
}

static void test_store_registers_nothing_for_a_job_that_failed(void **state)
{
    struct fixture *f = *state;
    struct ranked r = {.maximise = false};
    struct pd_why why = {""};
    sqlite3 *db = raw(f);

    assert_int_equal(call(f, make_ranked, &r, &why), PD_OK);
    assert_int_equal(call(f, end_run, &r.made, &why), PD_OK);
    r.made.run--;
    r.made.outcome = JOB_OUTCOME_FAILED;
    assert_int_equal(call(f, end_run, &r.made, &why), PD_OK);
    assert_int_equal(state_of(f, r.made.job), JOB_FAILED);
    assert_int_equal(ask(db, "SELECT count(*) FROM model_version"), 0);
    sqlite3_close(db);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_store_migrates_a_file_of_schema_1_with_rows, setup_empty,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_store_sweep_queries_use_their_indexes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_job_ends_only_when_all_planned_runs_have, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_next_runs_are_one_of_each_job, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_registers_the_best_run_by_the_metric_of_the_job, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_store_registers_when_the_last_run_diverges_or_is_cancelled,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_registers_nothing_for_a_job_that_failed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_store_paused_job_is_not_expanded_and_a_cancelled_one_never_is,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
