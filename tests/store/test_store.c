/* The store through its public face, each test in a fresh directory. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <signal.h>
#include <sqlite3.h>

#include "daemon/store/tx.h"
#include "kernels/base/buf.h"
#include "kernels/base/clock.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
};

static void writer_up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK)
        fail_msg("%s", why.text);
    if (store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void writer_down(struct fixture *f)
{
    f->s = store_close(f->s);
    f->w = store_writer_stop(f->w);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    strcpy(f->dir, "/tmp/polyd-store-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    writer_up(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    writer_down(f);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

/* Runs `apply` in a commit of its own. */
static enum pd_err call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                        void *ctx, struct pd_why *why)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .rows = 1, .apply = apply, .ctx = ctx};

    return store_writer_call(f->w, &work, why);
}

struct ids {
    int64_t job, run;
    int attempt;
};

static enum pd_err submit(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {.name = "a \"quoted\" job", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 2, .max_restarts = 3, .total_steps = 100};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    return err == PD_OK ? store_run_insert(tx, ids->job, &run, &ids->run, why) : err;
}

static enum pd_err start_attempt(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_attempt_new a = {.run_id = ids->run, .devices = "cpu:0"};

    return store_attempt_insert(tx, &a, &ids->attempt, why);
}

static struct ids submitted(struct fixture *f)
{
    struct ids ids = {0};
    struct pd_why why;

    assert_int_equal(call(f, submit, &ids, &why), PD_OK);
    return ids;
}

static bool keep_job(void *ctx, const struct store_job *job)
{
    *(struct store_job *)ctx = *job;
    return true;
}

static struct store_job job_now(struct fixture *f, int64_t id)
{
    struct store_job job = {0};
    struct pd_why why;

    assert_int_equal(store_job_get(f->s, id, keep_job, &job, &why), PD_OK);
    return job;
}

static bool keep_run(void *ctx, const struct store_run *run)
{
    *(struct store_run *)ctx = *run;
    return true;
}

static struct store_run run_now(struct fixture *f, int64_t id)
{
    struct store_run run = {0};
    struct pd_why why;

    assert_int_equal(store_run_get(f->s, id, keep_run, &run, &why), PD_OK);
    return run;
}

/* ---- opening -------------------------------------------------------------------------------- */

static void test_store_start_refuses_second_daemon(void **state)
{
    struct fixture *f = *state;
    struct store_writer_options o = {.state_dir = f->dir};
    struct store_writer *second = NULL;
    struct pd_why why;

    assert_int_equal(store_writer_start(&o, &second, &why), PD_ERR_BUSY);
    assert_null(second);
}

static void poke(struct fixture *f, const char *sql)
{
    char path[128];
    sqlite3 *db;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void test_store_start_refuses_newer_schema(void **state)
{
    struct fixture *f = *state;
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why;

    writer_down(f);
    poke(f, "PRAGMA user_version = 9999");
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_ERR_VERSION);
    assert_non_null(strstr(why.text, "9999"));
    poke(f, "PRAGMA user_version = 1; PRAGMA application_id = 7");
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_ERR_VERSION);
}

static void test_store_start_refuses_missing_directory(void **state)
{
    struct store_writer_options o = {.state_dir = "/nonexistent/polyd"};
    struct store_writer *w;
    struct pd_why why;

    (void)state;
    assert_int_equal(store_writer_start(&o, &w, &why), PD_ERR_NOT_FOUND);
}

static void test_store_reader_refuses_to_write(void **state)
{
    struct fixture *f = *state;
    struct store *s;
    struct pd_why why;

    assert_int_equal(store_open_reader("/nonexistent/polyd.db", &s, &why), PD_ERR_IO);
    assert_int_equal(store_begin(f->s, &why), PD_OK);
    store_end(f->s);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void test_store_job_survives_reopening_and_ids_grow(void **state)
{
    struct fixture *f = *state;
    struct ids a = submitted(f), b;
    struct store_job job;

    writer_down(f);
    writer_up(f);
    job = job_now(f, a.job);
    assert_int_equal(job.state, SPEC_JOB_QUEUED);
    assert_int_equal(job.runs, 1);
    b = submitted(f);
    assert_true(b.job > a.job && b.run > a.run);
}

static enum pd_err submit_then_fail(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    enum pd_err err = submit(tx, ctx, why);

    return err == PD_OK ? pd_fail(why, PD_ERR_INVALID, "changed my mind") : err;
}

static void test_store_failed_work_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct ids ids = {0};
    struct pd_why why;

    assert_int_equal(call(f, submit_then_fail, &ids, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "changed my mind");
    assert_int_equal(store_job_get(f->s, ids.job, keep_job, &(struct store_job){0}, &why), PD_ERR_NOT_FOUND);
}

static enum pd_err cancel(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_cancel(tx, ((struct ids *)ctx)->job, -1, "asked", why);
}

static enum pd_err cancel_stale(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_cancel(tx, ((struct ids *)ctx)->job, 99, "asked", why);
}

static void test_store_cancel_of_queued_job_ends_it(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct pd_why why;

    assert_int_equal(call(f, cancel_stale, &ids, &why), PD_ERR_STALE);
    assert_int_equal(call(f, cancel, &ids, &why), PD_OK);
    assert_int_equal(job_now(f, ids.job).state, SPEC_JOB_CANCELLED);
    assert_int_equal(run_now(f, ids.run).state, SPEC_RUN_ENDED);
    assert_int_equal(run_now(f, ids.run).outcome, SPEC_OUTCOME_CANCELLED);
    assert_int_equal(call(f, cancel, &ids, &why), PD_ERR_CONFLICT);
}

static enum pd_err pause_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_pause(tx, ((struct ids *)ctx)->job, -1, why);
}

static enum pd_err resume_job(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_resume(tx, ((struct ids *)ctx)->job, -1, why);
}

static void test_store_pause_and_resume_of_queued_job(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct pd_why why;

    assert_int_equal(call(f, resume_job, &ids, &why), PD_ERR_CONFLICT);
    assert_int_equal(call(f, pause_job, &ids, &why), PD_OK);
    assert_int_equal(run_now(f, ids.run).state, SPEC_RUN_PAUSED);
    assert_int_equal(call(f, resume_job, &ids, &why), PD_OK);
    assert_int_equal(job_now(f, ids.job).state, SPEC_JOB_QUEUED);
    assert_int_equal(run_now(f, ids.run).state, SPEC_RUN_QUEUED);
}

static enum pd_err finish(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    enum pd_err err;

    err = store_attempt_move(tx, ids->run, ids->attempt, SPEC_ATTEMPT_RUNNING, 0, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, SPEC_RUN_RUNNING, 0, NULL, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, ids->run, ids->attempt, SPEC_ATTEMPT_ENDED, SPEC_CAUSE_DONE, "", 0, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, SPEC_RUN_ENDED, SPEC_OUTCOME_SUCCEEDED, NULL, why);
    return err;
}

struct fold {
    int64_t last_id;
    char job[32], run[32];
    int moves;
};

static bool fold_event(void *ctx, const struct store_event *e)
{
    struct fold *fold = ctx;
    const char *to = strstr(e->data, "\"to\":\"");
    char *out = !strcmp(e->kind, "job.state") ? fold->job : !strcmp(e->kind, "run.state") ? fold->run : NULL;

    assert_true(e->id > fold->last_id);
    fold->last_id = e->id;
    if (out && to)
        sscanf(to + 6, "%31[a-z]", out);
    fold->moves++;
    return true;
}

static void test_store_attempt_carries_run_and_job_to_the_end(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_event_query q = {.limit = 100};
    struct fold fold = {0};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    assert_int_equal(ids.attempt, 1);
    assert_int_equal(job_now(f, ids.job).state, SPEC_JOB_RUNNING);
    assert_int_equal(call(f, start_attempt, &ids, &why), PD_ERR_CONFLICT); /* already starting */
    assert_int_equal(call(f, finish, &ids, &why), PD_OK);
    assert_int_equal(job_now(f, ids.job).state, SPEC_JOB_DONE);
    assert_int_equal(store_event_list(f->s, &q, fold_event, &fold, &why), PD_OK);
    assert_string_equal(fold.job, "done");
    assert_string_equal(fold.run, "ended");
    assert_true(fold.moves >= 8);
}

/* ---- lists ---------------------------------------------------------------------------------- */

struct page {
    int64_t ids[8];
    int count;
};

static bool keep_id(void *ctx, const struct store_job *job)
{
    struct page *p = ctx;

    p->ids[p->count++] = job->id;
    return true;
}

static void test_store_job_list_pages_both_ways(void **state)
{
    struct fixture *f = *state;
    struct store_job_query q = {.state = -1, .limit = 2};
    struct page p = {0};
    struct ids ids[3];
    struct pd_why why;

    for (int i = 0; i < 3; i++)
        ids[i] = submitted(f);
    assert_int_equal(store_job_list(f->s, &q, keep_id, &p, &why), PD_OK);
    assert_int_equal(p.count, 2);
    assert_int_equal(p.ids[0], ids[2].job);
    q.after_id = p.ids[1];
    p.count = 0;
    assert_int_equal(store_job_list(f->s, &q, keep_id, &p, &why), PD_OK);
    assert_int_equal(p.count, 1);
    assert_int_equal(p.ids[0], ids[0].job);
    q = (struct store_job_query){.state = SPEC_JOB_QUEUED,
                                 .order = STORE_ORDER_OLDEST,
                                 .limit = 8,
                                 .name_like = "QUOTED",
                                 .experiment = "e"};
    p.count = 0;
    assert_int_equal(store_job_list(f->s, &q, keep_id, &p, &why), PD_OK);
    assert_int_equal(p.count, 3);
    q.experiment = "other";
    p.count = 0;
    assert_int_equal(store_job_list(f->s, &q, keep_id, &p, &why), PD_OK);
    assert_int_equal(p.count, 0);
    q.limit = 0;
    assert_int_equal(store_job_list(f->s, &q, keep_id, &p, &why), PD_ERR_INVALID);
}

/* ---- metrics -------------------------------------------------------------------------------- */

struct append {
    int64_t run;
    int attempt;
    struct store_metric *points;
    size_t count;
    int64_t news;
};

static enum pd_err append(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct append *a = ctx;

    return store_metric_append(tx, a->run, a->attempt, a->points, a->count, &a->news, why);
}

static int64_t append_points(struct fixture *f, int64_t run, int attempt, struct store_metric *points,
                             size_t count)
{
    struct append a = {.run = run, .attempt = attempt, .points = points, .count = count};
    struct pd_why why = {""};

    if (call(f, append, &a, &why) != PD_OK)
        fail_msg("%s", why.text);
    return a.news;
}

struct points {
    int count;
    struct store_point at[64];
};

static bool keep_point(void *ctx, const struct store_point *p)
{
    struct points *all = ctx;

    all->at[all->count++ % 64] = *p;
    return true;
}

static bool keep_series(void *ctx, const struct store_series *m)
{
    *(struct store_series *)ctx = *m;
    return true;
}

static void test_store_metrics_repeat_is_ignored_other_value_is_kept(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric points[] = {
        {.key = "loss/train", .step = 1, .time_us = 5, .value = 2.5},
        {.key = "loss/train", .step = 2, .time_us = 6, .value = (double)NAN},
        {.key = "loss/train", .step = 3, .time_us = 7, .value = (double)INFINITY},
    };
    struct store_metric other = {.key = "loss/train", .step = 1, .time_us = 5, .value = 9.0};
    struct store_point_query q = {
        .run_id = ids.run, .key = "loss/train", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct store_series m;
    struct points got = {0};
    struct pd_why why;

    assert_int_equal(append_points(f, ids.run, 0, points, 3), 3);
    assert_int_equal(append_points(f, ids.run, 0, points, 3), 0);
    assert_int_equal(append_points(f, ids.run, 0, &other, 1), 1);
    assert_int_equal(append_points(f, ids.run, 0, &other, 1), 0);
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 4);
    assert_true(got.at[0].value == 2.5 && got.at[1].value == 9.0);
    assert_true(isnan(got.at[2].value) && isinf(got.at[3].value));
    q.from_step = 1;
    q.skip = 1;
    q.limit = 1;
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 1);
    assert_true(got.at[0].value == 9.0);
    assert_int_equal(store_series_get(f->s, ids.run, "loss/train", keep_series, &m, &why), PD_OK);
    assert_true(m.count == 4 && m.step == 3 && m.min == 2.5 && m.max == 9.0);
    assert_int_equal(store_series_get(f->s, ids.run, "nothing", keep_series, &m, &why), PD_ERR_NOT_FOUND);
}

static void test_store_metrics_refuse_unknown_run_and_bad_key(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric point = {.key = "", .step = 1, .value = 1};
    struct append a = {.run = 4711, .points = &point, .count = 1};
    struct pd_why why;

    assert_int_equal(call(f, append, &a, &why), PD_ERR_NOT_FOUND);
    a.run = ids.run;
    assert_int_equal(call(f, append, &a, &why), PD_ERR_INVALID);
}

static enum pd_err attempt_from(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_attempt_new a = {.run_id = ids->run, .devices = "cpu:0", .start_step = 10};
    enum pd_err err;

    err = store_attempt_move(tx, ids->run, ids->attempt, SPEC_ATTEMPT_ENDED, SPEC_CAUSE_LOST, "gone", 9, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, SPEC_RUN_QUEUED, 0, "lost", why);
    return err == PD_OK ? store_attempt_insert(tx, &a, &ids->attempt, why) : err;
}

static void test_store_points_beyond_the_checkpoint_become_ghosts(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_metric points[20];
    struct store_point_query q = {
        .run_id = ids.run, .key = "x", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct points got = {0};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &ids, &why), PD_OK);
    for (int i = 0; i < 20; i++)
        points[i] = (struct store_metric){.key = "x", .step = i + 1, .time_us = i, .value = 1};
    append_points(f, ids.run, 1, points, 15); /* steps 1..15, checkpoint at 10 */
    assert_int_equal(call(f, attempt_from, &ids, &why), PD_OK);
    assert_int_equal(ids.attempt, 2);
    for (int i = 10; i < 20; i++)
        points[i].value = 2;
    append_points(f, ids.run, 2, points + 10, 10); /* steps 11..20 */
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 20);
    for (int i = 0; i < 20; i++)
        assert_true(got.at[i].step == i + 1 && got.at[i].value == (i < 10 ? 1 : 2));
    q.attempt = 1;
    got.count = 0;
    assert_int_equal(store_point_list(f->s, &q, keep_point, &got, &why), PD_OK);
    assert_int_equal(got.count, 15);
}

struct chart {
    int64_t points, buckets, last_step;
    double min, max, sum;
};

static bool add_bucket(void *ctx, const struct store_bucket *b)
{
    struct chart *c = ctx;

    assert_true(b->first_step <= b->last_step && b->first_step > c->last_step);
    c->last_step = b->last_step;
    c->buckets++;
    c->points += b->count;
    c->sum += b->mean * (double)(b->count - b->nonfinite);
    c->min = c->buckets == 1 || b->min < c->min ? b->min : c->min;
    c->max = c->buckets == 1 || b->max > c->max ? b->max : c->max;
    return true;
}

/* Buckets from points, from roll-ups and with cut ends must all represent every point once. */
static void test_store_buckets_hold_every_point_and_the_extremes(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    static struct store_metric points[1000];
    struct store_point_query q = {
        .run_id = ids.run, .key = "y", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct pd_why why;
    double sum = 0;

    for (int block = 0; block < 20; block++) {
        for (int i = 0; i < 1000; i++) {
            int step = block * 1000 + i;

            points[i] = (struct store_metric){.key = "y", .step = step, .time_us = step, .value = step % 777};
            if (step == 7003)
                points[i].value = 1e6;
            if (step == 12345)
                points[i].value = -1e6;
            sum += points[i].value;
        }
        append_points(f, ids.run, 0, points, 1000);
    }
    for (int n = 1; n <= 4000; n *= 5) {
        struct chart c = {.last_step = -1};
        int64_t total;

        assert_int_equal(store_bucket_list(f->s, &q, n, add_bucket, &c, &total, &why), PD_OK);
        assert_int_equal(c.points, 20000);
        assert_int_equal(total, 20000);
        assert_true(c.buckets <= n && c.max == 1e6 && c.min == -1e6);
        assert_true(fabs(c.sum - sum) < 1e-3);
    }
    q.from_step = 500;
    q.to_step = 18499;
    for (int n = 1; n <= 3000; n *= 9) {
        struct chart c = {.last_step = -1};

        assert_int_equal(store_bucket_list(f->s, &q, n, add_bucket, &c, NULL, &why), PD_OK);
        assert_int_equal(c.points, 18000);
        assert_true(c.last_step <= 18499);
    }
    assert_int_equal(store_bucket_list(f->s, &q, 0, add_bucket, NULL, NULL, &why), PD_ERR_INVALID);
}

static void test_store_rollups_survive_reopening_and_failed_neighbours(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct store_point_query q = {
        .run_id = ids.run, .key = "z", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct chart c = {.last_step = -1};
    struct pd_why why;

    for (int i = 0; i < 2500; i++) {
        struct store_metric point = {.key = "z", .step = i, .time_us = i, .value = i};

        if (i == 700 || i == 1700) {
            writer_down(f);
            writer_up(f);
        }
        append_points(f, ids.run, 0, &point, 1);
        if (i % 500 == 0) {
            struct ids other = {0};

            assert_int_equal(call(f, submit_then_fail, &other, &why), PD_ERR_INVALID);
        }
    }
    assert_int_equal(store_bucket_list(f->s, &q, 2, add_bucket, &c, NULL, &why), PD_OK);
    assert_int_equal(c.points, 2500);
    assert_true(c.max == 2499 && c.sum == 2499.0 * 2500 / 2);
}

/* ---- exactly once --------------------------------------------------------------------------- */

struct seq {
    struct ids ids;
    int64_t seq;
};

static enum pd_err ack(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct seq *s = ctx;

    return store_attempt_ack(tx, s->ids.run, s->ids.attempt, s->seq, why);
}

static void test_store_attempt_ack_takes_each_seq_once(void **state)
{
    struct fixture *f = *state;
    struct seq s = {.ids = submitted(f), .seq = 1};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &s.ids, &why), PD_OK);
    assert_int_equal(call(f, ack, &s, &why), PD_OK);
    assert_int_equal(call(f, ack, &s, &why), PD_ERR_EXISTS);
    s.seq = 3;
    assert_int_equal(call(f, ack, &s, &why), PD_ERR_CONFLICT);
    s.seq = 2;
    assert_int_equal(call(f, ack, &s, &why), PD_OK);
}

/* ---- idempotency ---------------------------------------------------------------------------- */

struct idem {
    uint8_t body[32];
    int status;
    struct pd_buf response;
    struct ids ids;
};

static enum pd_err submit_once(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct idem *i = ctx;
    enum pd_err err = store_idem_claim(tx, "POST /x", "key-1", i->body, &i->status, &i->response, why);

    if (err == PD_ERR_EXISTS)
        return PD_OK;
    if (err == PD_OK)
        err = submit(tx, &i->ids, why);
    return err == PD_OK ? store_idem_finish(tx, "POST /x", "key-1", 201, "first", 5, why) : err;
}

static void test_store_idempotency_same_key_same_answer(void **state)
{
    struct fixture *f = *state;
    struct idem i = {.body = {1}};
    struct pd_why why;

    pd_buf_init(&i.response, 0);
    assert_int_equal(call(f, submit_once, &i, &why), PD_OK);
    assert_true(i.ids.job > 0 && i.status == 0);
    i.ids.job = 0;
    assert_int_equal(call(f, submit_once, &i, &why), PD_OK);
    assert_int_equal(i.ids.job, 0);
    assert_int_equal(i.status, 201);
    assert_string_equal(i.response.data, "first");
    i.body[0] = 2;
    assert_int_equal(call(f, submit_once, &i, &why), PD_ERR_CONFLICT);
    i.body[0] = 1;
    pd_buf_done(&i.response);
    assert_int_equal(store_idem_get(f->s, "POST /x", "key-1", i.body, &i.status, &i.response, &why), PD_OK);
    assert_string_equal(i.response.data, "first");
    assert_int_equal(store_idem_get(f->s, "POST /x", "key-2", i.body, &i.status, &i.response, &why),
                     PD_ERR_NOT_FOUND);
    pd_buf_done(&i.response);
}

/* ---- models --------------------------------------------------------------------------------- */

struct model {
    struct ids ids;
    int64_t checkpoint, n;
};

static enum pd_err add_model(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct model *m = ctx;
    struct store_checkpoint c = {.run_id = m->ids.run,
                                 .attempt = 1,
                                 .step = 5,
                                 .kind = "best",
                                 .path = "/x/y",
                                 .bytes = 10,
                                 .digest = "00",
                                 .value = 0.5};
    enum pd_err err = store_checkpoint_insert(tx, &c, &m->checkpoint, why);

    if (err == PD_OK)
        err = store_model_register(tx, "m", m->checkpoint, &m->n, why);
    if (err == PD_OK)
        err = store_alias_set(tx, "m", "prod", m->n, why);
    return err == PD_OK ? store_model_set_loaded(tx, "m", m->n, true, why) : err;
}

static enum pd_err sweep(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_checkpoint_sweep(tx, ((struct model *)ctx)->ids.run, why);
}

static bool count_checkpoint(void *ctx, const struct store_checkpoint *c)
{
    (void)c;
    ++*(int *)ctx;
    return true;
}

static void test_store_checkpoints_without_their_file_are_marked(void **state)
{
    struct fixture *f = *state;
    struct model m = {.ids = submitted(f)};
    struct pd_why why;
    int count = 0;

    assert_int_equal(call(f, start_attempt, &m.ids, &why), PD_OK);
    assert_int_equal(call(f, finish, &m.ids, &why), PD_OK);
    assert_int_equal(call(f, add_model, &m, &why), PD_OK); /* of /x/y, which is not there */
    assert_int_equal(store_checkpoint_list(f->s, m.ids.run, false, count_checkpoint, &count, &why), PD_OK);
    assert_int_equal(count, 1);
    assert_int_equal(call(f, sweep, &m, &why), PD_OK);
    count = 0;
    assert_int_equal(store_checkpoint_list(f->s, m.ids.run, false, count_checkpoint, &count, &why), PD_OK);
    assert_int_equal(count, 0);
}

static enum pd_err drop_checkpoint(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_checkpoint_delete(tx, ((struct model *)ctx)->checkpoint, why);
}

static bool keep_version(void *ctx, const struct store_model_version *v)
{
    *(struct store_model_version *)ctx = *v;
    return true;
}

static void test_store_model_versions_and_aliases(void **state)
{
    struct fixture *f = *state;
    struct model m = {.ids = submitted(f)};
    struct store_model_version v;
    struct pd_why why;
    int64_t n;

    assert_int_equal(call(f, start_attempt, &m.ids, &why), PD_OK);
    assert_int_equal(call(f, add_model, &m, &why),
                     PD_ERR_CONFLICT); /* its worker may still remove the file */
    assert_int_equal(call(f, finish, &m.ids, &why), PD_OK);
    assert_int_equal(call(f, add_model, &m, &why), PD_OK);
    assert_int_equal(m.n, 1);
    assert_int_equal(call(f, add_model, &m, &why), PD_OK);
    assert_int_equal(m.n, 2);
    assert_int_equal(store_model_version_get(f->s, "m", 0, keep_version, &v, &why), PD_OK);
    assert_true(v.n == 2 && v.loaded && v.step == 5);
    assert_int_equal(store_alias_get(f->s, "m", "prod", &n, &why), PD_OK);
    assert_int_equal(n, 2);
    assert_int_equal(store_alias_get(f->s, "m", "none", &n, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(call(f, drop_checkpoint, &m, &why), PD_ERR_CONFLICT); /* a model needs it */
}

/* ---- the writer ----------------------------------------------------------------------------- */

struct many {
    struct fixture *f;
    int64_t run;
    _Atomic int done, failed;
};

static enum pd_err one_point(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    static int64_t step; /* writer thread only */
    struct many *m = ctx;
    struct store_metric point = {.key = "k", .step = ++step, .time_us = step, .value = 1};

    return store_metric_append(tx, m->run, 0, &point, 1, NULL, why);
}

static void count_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct many *m = ctx;

    (void)why;
    m->done++;
    if (err != PD_OK)
        m->failed++;
}

static void test_store_stop_commits_what_was_accepted(void **state)
{
    struct fixture *f = *state;
    struct many m = {.f = f, .run = submitted(f).run};
    struct store_series series;
    struct pd_why why;
    int accepted = 0;

    for (int i = 0; i < 20000; i++) {
        struct store_work work = {
            .lane = STORE_LANE_METRICS, .rows = 1, .apply = one_point, .done = count_done, .ctx = &m};
        enum pd_err err = store_writer_submit(f->w, &work, &why);

        if (err == PD_OK)
            accepted++;
        else
            assert_int_equal(err, PD_ERR_BUSY);
    }
    writer_down(f);
    assert_int_equal(m.done, accepted);
    assert_int_equal(m.failed, 0);
    writer_up(f);
    assert_int_equal(store_series_get(f->s, m.run, "k", keep_series, &series, &why), PD_OK);
    assert_int_equal(series.count, accepted);
}

static _Atomic int64_t heard_points, heard_event;

static void hear(void *ctx, const struct store_commit *c)
{
    (void)ctx;
    heard_points += c->points;
    if (c->events)
        heard_event = c->last_event_id;
}

static void test_store_listener_hears_commits(void **state)
{
    struct fixture *f = *state;
    struct store_metric point = {.key = "k", .step = 1, .value = 1};
    struct ids ids;
    struct pd_why why;
    int64_t last;

    heard_points = heard_event = 0;
    store_writer_listen(f->w, hear, NULL);
    ids = submitted(f);
    append_points(f, ids.run, 0, &point, 1);
    store_writer_listen(f->w, NULL, NULL);
    assert_int_equal(store_event_last(f->s, &last, &why), PD_OK);
    assert_int_equal(heard_event, last);
    assert_int_equal(heard_points, 1);
}

/* A limit on the size of files stands for a full disk. */
static void test_store_full_disk_refuses_then_recovers(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    static struct store_metric points[1000];
    struct append a = {.run = ids.run, .points = points, .count = 1000};
    struct store_work keeper = {
        .lane = STORE_LANE_METRICS, .rows = 1, .keep = true, .apply = one_point, .done = count_done};
    struct many m = {.f = f, .run = ids.run};
    struct rlimit was, limit;
    struct pd_why why;
    enum pd_err err = PD_OK;

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){.rlim_cur = 400 * 1024, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int64_t k = 0; k < 200 && err == PD_OK; k++) {
        for (int i = 0; i < 1000; i++)
            points[i] = (struct store_metric){.key = "f", .step = k * 1000 + i, .time_us = k, .value = 1};
        err = call(f, append, &a, &why);
    }
    assert_true(err == PD_ERR_FULL || err == PD_ERR_IO);
    assert_int_not_equal(store_writer_health(f->w, &why), PD_OK);
    assert_int_not_equal(call(f, submit, &ids, &why), PD_OK); /* refused at the door */
    keeper.ctx = &m;
    assert_int_equal(store_writer_submit(f->w, &keeper, &why), PD_OK); /* waits for better times */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    for (int64_t end_us = pd_clock_mono_us() + 20000000; m.done == 0 && pd_clock_mono_us() < end_us;)
        usleep(10000);
    assert_int_equal(m.done, 1);
    assert_int_equal(m.failed, 0);
    assert_int_equal(store_writer_health(f->w, &why), PD_OK);
    assert_int_equal(call(f, submit, &ids, &why), PD_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_store_start_refuses_second_daemon),
        TEST(test_store_start_refuses_newer_schema),
        TEST(test_store_start_refuses_missing_directory),
        TEST(test_store_reader_refuses_to_write),
        TEST(test_store_job_survives_reopening_and_ids_grow),
        TEST(test_store_failed_work_leaves_nothing),
        TEST(test_store_cancel_of_queued_job_ends_it),
        TEST(test_store_pause_and_resume_of_queued_job),
        TEST(test_store_attempt_carries_run_and_job_to_the_end),
        TEST(test_store_job_list_pages_both_ways),
        TEST(test_store_metrics_repeat_is_ignored_other_value_is_kept),
        TEST(test_store_metrics_refuse_unknown_run_and_bad_key),
        TEST(test_store_points_beyond_the_checkpoint_become_ghosts),
        TEST(test_store_buckets_hold_every_point_and_the_extremes),
        TEST(test_store_rollups_survive_reopening_and_failed_neighbours),
        TEST(test_store_attempt_ack_takes_each_seq_once),
        TEST(test_store_idempotency_same_key_same_answer),
        TEST(test_store_model_versions_and_aliases),
        TEST(test_store_checkpoints_without_their_file_are_marked),
        TEST(test_store_stop_commits_what_was_accepted),
        TEST(test_store_listener_hears_commits),
        TEST(test_store_full_disk_refuses_then_recovers),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
