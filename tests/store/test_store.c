/* The store through its public face, each test in a fresh directory. */
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include "kernels/base/clock.h"
#include "tests/store/help.h"

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

static void test_store_start_refuses_newer_schema(void **state)
{
    struct fixture *f = *state;
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why;
    char marker[128];

    writer_down(f);
    poke(f, "PRAGMA user_version = 9999");
    assert_int_equal(store_writer_start(&o, &f->w, &why), PD_ERR_VERSION);
    assert_non_null(strstr(why.text, "9999"));
    poke(f, "PRAGMA user_version = 1; PRAGMA application_id = 7");
    snprintf(marker, sizeof marker, "%s/store-id", f->dir);
    assert_int_equal(unlink(marker), 0); /* beside a marker it counts as lost: test_identity.c */
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
    assert_int_equal(job.state, JOB_QUEUED);
    assert_int_equal(job.runs, 1);
    b = submitted(f);
    assert_true(b.job > a.job && b.run > a.run);
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
    assert_int_equal(job_now(f, ids.job).state, JOB_CANCELLED);
    assert_int_equal(run_now(f, ids.run).state, JOB_RUN_ENDED);
    assert_int_equal(run_now(f, ids.run).outcome, JOB_OUTCOME_CANCELLED);
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
    assert_int_equal(run_now(f, ids.run).state, JOB_RUN_PAUSED);
    assert_int_equal(call(f, resume_job, &ids, &why), PD_OK);
    assert_int_equal(job_now(f, ids.job).state, JOB_QUEUED);
    assert_int_equal(run_now(f, ids.run).state, JOB_RUN_QUEUED);
}

static enum pd_err finish(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    enum pd_err err;

    err = store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_RUNNING, 0, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, JOB_RUN_RUNNING, 0, NULL, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, ids->run, ids->attempt, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, "", 0, why);
    if (err == PD_OK)
        err = store_run_move(tx, ids->run, JOB_RUN_ENDED, JOB_OUTCOME_SUCCEEDED, NULL, why);
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
    assert_int_equal(job_now(f, ids.job).state, JOB_RUNNING);
    assert_int_equal(call(f, start_attempt, &ids, &why), PD_ERR_CONFLICT); /* already starting */
    assert_int_equal(call(f, finish, &ids, &why), PD_OK);
    assert_int_equal(job_now(f, ids.job).state, JOB_DONE);
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
    q = (struct store_job_query){.state = JOB_QUEUED,
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

struct choice {
    struct ids ids;
    int64_t id[3], chosen;
};

static enum pd_err add_three(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    static const char *const kinds[] = {"latest", "best", "latest"}, *const paths[] = {"a", "b", "c"};
    struct choice *k = ctx;
    enum pd_err err = PD_OK;

    for (int i = 0; err == PD_OK && i < 3; i++) {
        struct store_checkpoint c = {.run_id = k->ids.run,
                                     .attempt = 1,
                                     .step = 10 * (i + 1),
                                     .kind = kinds[i],
                                     .path = paths[i],
                                     .digest = "00"};

        err = store_checkpoint_insert(tx, &c, &k->id[i], why);
    }
    return err;
}

static enum pd_err choose(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct choice *k = ctx;

    return store_checkpoint_choose(tx, k->ids.run, &k->chosen, why);
}

static enum pd_err diverge(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct choice *k = ctx;
    enum pd_err err =
        store_attempt_move(tx, k->ids.run, 1, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, "done", 0, why);

    return err == PD_OK ? store_run_move(tx, k->ids.run, JOB_RUN_ENDED, JOB_OUTCOME_DIVERGED, "", why) : err;
}

/* The error tells a run that may still write a checkpoint from one that has ended. */
static void test_store_no_checkpoint_says_whether_one_may_come(void **state)
{
    struct fixture *f = *state;
    struct choice k = {.ids = submitted(f)};
    struct pd_why why;
    char sentence[100];

    assert_int_equal(call(f, start_attempt, &k.ids, &why), PD_OK);
    assert_int_equal(call(f, choose, &k, &why), PD_ERR_NOT_FOUND);
    assert_non_null(strstr(why.text, "has no checkpoint yet: "));
    assert_int_equal(call(f, diverge, &k, &why), PD_OK);
    assert_int_equal(call(f, choose, &k, &why), PD_ERR_NOT_FOUND);
    snprintf(sentence, sizeof sentence, "run %lld ended as diverged and has no checkpoint",
             (long long)k.ids.run);
    assert_string_equal(why.text, sentence);
}

static enum pd_err drop_best(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_checkpoint_delete(tx, ((struct choice *)ctx)->id[1], why);
}

/* A run's model is its best checkpoint, though a later one is there; without one the latest. */
static void test_store_chooses_the_best_checkpoint_then_the_latest(void **state)
{
    struct fixture *f = *state;
    struct choice k = {.ids = submitted(f)};
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &k.ids, &why), PD_OK);
    assert_int_equal(call(f, choose, &k, &why), PD_ERR_NOT_FOUND);
    assert_int_equal(call(f, add_three, &k, &why), PD_OK);
    assert_int_equal(call(f, choose, &k, &why), PD_OK);
    assert_int_equal(k.chosen, k.id[1]);
    assert_int_equal(call(f, drop_best, &k, &why), PD_OK);
    assert_int_equal(call(f, choose, &k, &why), PD_OK);
    assert_int_equal(k.chosen, k.id[2]);
}

struct kept_path {
    struct ids ids;
    char path[256], found[256];
    int count;
};

static enum pd_err add_path(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct kept_path *k = ctx;
    struct store_checkpoint c = {
        .run_id = k->ids.run, .attempt = 1, .step = 1, .kind = "latest", .path = k->path, .digest = "00"};

    return store_checkpoint_insert(tx, &c, NULL, why);
}

static enum pd_err drop_path(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct kept_path *k = ctx;

    return store_checkpoint_delete_path(tx, k->ids.run, k->path, why);
}

static bool keep_path(void *ctx, const struct store_checkpoint *c)
{
    struct kept_path *k = ctx;

    snprintf(k->found, sizeof k->found, "%s", c->path);
    k->count++;
    return true;
}

static const char *path_now(struct fixture *f, struct kept_path *k)
{
    struct pd_why why;

    k->count = 0;
    assert_int_equal(store_checkpoint_list(f->s, k->ids.run, false, keep_path, k, &why), PD_OK);
    return k->count ? k->found : "none";
}

static void test_store_checkpoint_paths_follow_the_folder(void **state)
{
    struct fixture *f = *state;
    struct kept_path k = {.ids = submitted(f)};
    char old[64], wanted[256];
    struct pd_why why;

    assert_int_equal(call(f, start_attempt, &k.ids, &why), PD_OK);
    snprintf(k.path, sizeof k.path, "%s/runs/1/checkpoints/step-1", f->dir);
    assert_int_equal(call(f, add_path, &k, &why), PD_OK);
    assert_string_equal(path_now(f, &k), k.path);
    writer_down(f);
    strcpy(old, f->dir);
    strcat(f->dir, "-moved");
    assert_int_equal(rename(old, f->dir), 0);
    writer_up(f);
    snprintf(wanted, sizeof wanted, "%s/runs/1/checkpoints/step-1", f->dir);
    assert_string_equal(path_now(f, &k), wanted);
    assert_int_equal(call(f, drop_path, &k, &why), PD_OK); /* by the name it had in the old place */
    assert_string_equal(path_now(f, &k), "none");
    strcpy(k.path, "/elsewhere/runs/2/checkpoints/step-1"); /* not this run's folder: kept as it is */
    assert_int_equal(call(f, add_path, &k, &why), PD_OK);
    assert_string_equal(path_now(f, &k), k.path);
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
static struct store_commit_run heard_runs[STORE_COMMIT_RUNS];
static int heard_run_count;

static void hear(void *ctx, const struct store_commit *c)
{
    (void)ctx;
    heard_points += c->points;
    if (c->events)
        heard_event = c->last_event_id;
    for (int i = 0; i < c->run_count; i++)
        heard_runs[heard_run_count++] = c->runs[i];
}

#define MANY 300

static enum pd_err submit_and_log_many(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_metric point = {.key = "k", .step = 1, .value = 1};
    struct ids *ids = ctx;
    int64_t news;
    enum pd_err err = PD_OK;

    for (int i = 0; err == PD_OK && i < 2 * MANY; i++) {
        point.step = i;
        err = i < MANY ? submit(tx, &ids[i], why) : PD_OK;
        if (err == PD_OK)
            err = store_metric_append(tx, ids[i % MANY].run, 0, &point, 1, &news, why);
    }
    return err;
}

static void test_store_listener_hears_commits(void **state)
{
    struct fixture *f = *state;
    struct store_metric point = {.key = "k", .step = 1, .value = 1};
    struct ids ids;
    struct pd_why why;
    int64_t last;

    heard_points = heard_event = heard_run_count = 0;
    store_writer_listen(f->w, hear, NULL);
    ids = submitted(f);
    append_points(f, ids.run, 0, &point, 1);
    store_writer_listen(f->w, NULL, NULL);
    assert_int_equal(store_event_last(f->s, &last, &why), PD_OK);
    assert_int_equal(heard_event, last);
    assert_int_equal(heard_points, 1);
    assert_int_equal(heard_run_count, 1);
    assert_int_equal(heard_runs[0].run_id, ids.run);
    assert_int_equal(heard_runs[0].job_id, ids.job);
}

static void test_store_listener_hears_each_of_many_runs_once(void **state)
{
    static struct ids ids[MANY];
    struct fixture *f = *state;
    struct pd_why why;

    heard_points = heard_run_count = 0;
    store_writer_listen(f->w, hear, NULL);
    assert_int_equal(call(f, submit_and_log_many, ids, &why), PD_OK);
    store_writer_listen(f->w, NULL, NULL);
    assert_int_equal(heard_points, 2 * MANY);
    assert_int_equal(heard_run_count, MANY);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(heard_runs[i].run_id, ids[i].run);
        assert_int_equal(heard_runs[i].job_id, ids[i].job);
    }
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
    assert_int_not_equal(call(f, submit, &ids, &why), PD_OK); /* refused at once */
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

/* An administrator's tool holds the file's lock for longer than the writer waits. */
static void test_store_kept_work_outlasts_the_lock_of_another_program(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);
    struct many m = {.f = f, .run = ids.run};
    struct store_work keeper = {.lane = STORE_LANE_METRICS,
                                .rows = 1,
                                .keep = true,
                                .apply = one_point,
                                .done = count_done,
                                .ctx = &m};
    struct pd_why why;
    sqlite3 *other;

    assert_int_equal(sqlite3_open(store_writer_path(f->w), &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(store_writer_submit(f->w, &keeper, &why), PD_OK);
    assert_int_equal(call(f, submit, &ids, &why), PD_ERR_BUSY); /* a client is answered */
    assert_int_equal(m.done, 0);
    assert_int_equal(sqlite3_exec(other, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(other);
    for (int64_t end_us = pd_clock_mono_us() + 20000000; m.done == 0 && pd_clock_mono_us() < end_us;)
        usleep(10000);
    assert_int_equal(m.done, 1);
    assert_int_equal(m.failed, 0);
    assert_int_equal(call(f, submit, &ids, &why), PD_OK);
}

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
        TEST(test_store_idempotency_same_key_same_answer),
        TEST(test_store_checkpoints_without_their_file_are_marked),
        TEST(test_store_chooses_the_best_checkpoint_then_the_latest),
        TEST(test_store_no_checkpoint_says_whether_one_may_come),
        TEST(test_store_checkpoint_paths_follow_the_folder),
        TEST(test_store_model_versions_and_aliases),
        TEST(test_store_stop_commits_what_was_accepted),
        TEST(test_store_listener_hears_commits),
        TEST(test_store_listener_hears_each_of_many_runs_once),
        TEST(test_store_full_disk_refuses_then_recovers),
        TEST(test_store_kept_work_outlasts_the_lock_of_another_program),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
