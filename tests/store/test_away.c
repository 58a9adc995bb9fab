/* Archive and delete: what goes at once, what goes bit by bit, what is refused, and that a check of the
 * folder finds nothing at any moment between. */
#include <sys/stat.h>

#include "daemon/digest/digest.h"
#include "kernels/base/file.h"
#include "tests/store/help.h"

struct command {
    int64_t id, version;
    const char *name;
    int64_t n;
    bool archive, worked;
    int rows;
    struct store_blob_pass blobs;
};

#define COMMAND(fn, call)                                                                                    \
    static enum pd_err fn(struct store_tx *tx, void *ctx, struct pd_why *why)                                \
    {                                                                                                        \
        struct command *c = ctx;                                                                             \
        return call;                                                                                         \
    }
COMMAND(delete_job, store_job_delete(tx, c->id, c->version, "a test", why))
COMMAND(delete_run, store_run_delete(tx, c->id, c->version, "a test", why))
COMMAND(delete_model, store_model_delete(tx, c->name, c->n, c->version, "a test", why))
COMMAND(archive_job, store_job_archive(tx, c->id, c->version, c->archive, why))
COMMAND(archive_run, store_run_archive(tx, c->id, c->version, c->archive, why))
COMMAND(archive_model, store_model_archive(tx, c->name, c->n, c->version, c->archive, why))
COMMAND(archive_group, store_group_archive(tx, c->name, c->version, c->archive, why))
COMMAND(load_model, store_model_set_loaded(tx, c->name, c->n, c->archive, why))
COMMAND(set_alias, store_alias_set(tx, c->name, "prod", c->n, why))
COMMAND(cancel_run, store_run_cancel(tx, c->id, -1, "enough", why))
COMMAND(retry_job, store_job_retry(tx, c->id, -1, why))
COMMAND(clean_rows, store_clean_rows(tx, c->rows, &c->worked, why))
COMMAND(clean_blobs, store_clean_blobs(tx, &c->blobs, why))
COMMAND(remnant_done, store_remnant_done(tx, c->id, why))

static void expect(struct fixture *f, enum pd_err (*fn)(struct store_tx *, void *, struct pd_why *),
                   struct command c, enum pd_err wanted, const char *says)
{
    struct pd_why why = {""};
    enum pd_err err = call(f, fn, &c, &why);

    if (err != wanted || (says && !strstr(why.text, says)))
        fail_msg("%s: '%s', wanted %s: '%s'", pd_err_name(err), why.text, pd_err_name(wanted),
                 says ? says : "");
}

static int64_t count_of(struct fixture *f, const char *sql)
{
    char path[128];
    sqlite3_stmt *st;
    sqlite3 *db;
    int64_t n;

    snprintf(path, sizeof path, "%s/polyd.db", f->dir);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    n = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    return n;
}

/* ---- a job whose runs have everything that runs can have --------------------------------------------- */

#define POINTS 2500

struct made {
    struct fixture *f;
    int runs;
    const char
        *sweep; /* NULL: each run is a point of its own; else all are trials of one, with these values */
    int64_t job, run[4], checkpoint[4];
    enum job_outcome outcome;
    char sha[DIGEST_SHA256_HEX_SIZE]; /* of a blob that all of its runs show */
};

static enum pd_err make_run(struct store_tx *tx, struct made *m, int i, struct pd_why *why)
{
    char path[160];
    struct store_run_new run = {.document = "{}",
                                .device = "cpu",
                                .slots = 1,
                                .threads = 1,
                                .total_steps = POINTS,
                                .point = m->sweep ? 0 : i,
                                .trial = m->sweep ? i : 0,
                                .sweep = m->sweep ? m->sweep : ""};
    struct store_attempt_new a = {.devices = "cpu:0"};
    struct store_checkpoint c = {
        .attempt = 1, .step = 2, .kind = "best", .path = path, .bytes = 5, .digest = "d"};
    struct store_blob b = {
        .attempt = 1, .key = "norm", .kind = "histogram", .meta = "{}", .sha256 = m->sha, .bytes = 3};
    struct store_metric points[POINTS];
    enum pd_err err = store_run_insert(tx, m->job, &run, &m->run[i], why);
    int n;

    for (int k = 0; k < POINTS; k++)
        points[k] =
            (struct store_metric){.key = k % 2 ? "loss" : "acc", .step = k, .time_us = k + 1, .value = k};
    a.run_id = c.run_id = b.run_id = m->run[i];
    snprintf(path, sizeof path, "%s/runs/%lld/checkpoints/step-2", m->f->dir, (long long)m->run[i]);
    if (err == PD_OK)
        err = store_attempt_insert(tx, &a, &n, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, m->run[i], n, JOB_ATTEMPT_RUNNING, JOB_CAUSE_DONE, NULL, -1, why);
    if (err == PD_OK)
        err = store_run_move(tx, m->run[i], JOB_RUN_RUNNING, JOB_OUTCOME_SUCCEEDED, NULL, why);
    if (err == PD_OK)
        err = store_metric_append(tx, m->run[i], n, points, POINTS, NULL, why);
    if (err == PD_OK)
        err = store_checkpoint_insert(tx, &c, &m->checkpoint[i], why);
    if (err == PD_OK)
        err = store_blob_insert(tx, &b, why);
    if (err == PD_OK)
        err = store_attempt_progress(tx, m->run[i], n, 2, POINTS, 11, why);
    if (err == PD_OK)
        err = store_attempt_move(tx, m->run[i], n, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, NULL, 0, why);
    return err == PD_OK ? store_run_move(tx, m->run[i], JOB_RUN_ENDED, m->outcome, "so it ended", why) : err;
}

static enum pd_err make(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct made *m = ctx;
    struct store_job_new job = {.name = "j",
                                .experiment = "e",
                                .document = "{}",
                                .planned = m->runs,
                                .points = m->sweep ? 1 : m->runs,
                                .trials = m->sweep ? m->runs : 1};
    struct store_group_patch patch = {.add = m->run, .add_count = 1};
    size_t bad;
    enum pd_err err = store_job_insert(tx, &job, &m->job, why);

    for (int i = 0; err == PD_OK && i < m->runs; i++)
        err = make_run(tx, m, i, why);
    if (err == PD_OK)
        err = store_group_insert(tx, "g", "", why);
    return err == PD_OK || err == PD_ERR_EXISTS ? store_group_update(tx, "g", -1, &patch, &bad, why) : err;
}

static struct made made_as(struct made m)
{
    struct fixture *f = m.f;
    char path[200];
    struct pd_why why = {""};

    digest_sha256_hex("abc", 3, m.sha);
    snprintf(path, sizeof path, "%s/blobs/%.2s", f->dir, m.sha);
    assert_int_equal(pd_file_make_dirs(path, &why), PD_OK);
    snprintf(path, sizeof path, "%s/blobs/%.2s/%s", f->dir, m.sha, m.sha);
    assert_int_equal(pd_file_replace(path, "abc", 3, 0600, &why), PD_OK);
    if (call(f, make, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (int i = 0; i < m.runs; i++) {
        snprintf(path, sizeof path, "%s/runs/%lld/checkpoints", f->dir, (long long)m.run[i]);
        assert_int_equal(pd_file_make_dirs(path, &why), PD_OK);
        strcat(path, "/step-2");
        assert_int_equal(pd_file_replace(path, "12345", 5, 0600, &why), PD_OK);
    }
    expect_sound(f);
    return m;
}

static struct made made(struct fixture *f, int runs, enum job_outcome outcome)
{
    return made_as((struct made){.f = f, .runs = runs, .outcome = outcome});
}

static bool there(struct fixture *f, const char *sha)
{
    char path[200];

    snprintf(path, sizeof path, "%s/blobs/%.2s/%s", f->dir, sha, sha);
    return access(path, F_OK) == 0;
}

static bool known(struct fixture *f, int64_t run)
{
    struct pd_why why;
    bool is;

    assert_int_equal(store_run_known(f->s, run, &is, &why), PD_OK);
    return is;
}

/* All that is left to do, step by step; the folder is sound between any two. Returns the steps. */
static int clean(struct fixture *f, int rows)
{
    for (int steps = 0;; steps++) {
        struct command step = {.rows = rows};
        struct pd_why why;

        assert_int_equal(call(f, clean_rows, &step, &why), PD_OK);
        if (steps % 5 == 0)
            expect_sound(f);
        if (!step.worked)
            return steps;
        assert_true(steps < 1000);
    }
}

static bool count_run(void *ctx, const struct store_run *run)
{
    (void)run;
    ++*(int *)ctx;
    return true;
}

static int listed(struct fixture *f, enum store_archived archived, int64_t job)
{
    struct store_run_query q = {
        .state = -1, .outcome = -1, .limit = 100, .archived = archived, .job_id = job};
    struct pd_why why;
    int n = 0;

    assert_int_equal(store_run_list(f->s, &q, count_run, &n, &why), PD_OK);
    return n;
}

static bool count_sorted(void *ctx, const struct store_run *run, const char *place)
{
    (void)run;
    (void)place;
    ++*(int *)ctx;
    return true;
}

static int sorted(struct fixture *f, enum store_archived archived)
{
    struct store_run_query q = {.state = -1, .outcome = -1, .limit = 100, .archived = archived};
    struct store_run_sort sort = {.by = "loss", .desc = true};
    struct pd_why why;
    int n = 0;

    assert_int_equal(store_run_sorted(f->s, &q, &sort, count_sorted, &n, &why), PD_OK);
    return n;
}

/* ---- deletion ------------------------------------------------------------------------------------------ */

static const char rows_of_run[] =
    "SELECT (SELECT count(*) FROM run WHERE id = 1) + (SELECT count(*) FROM attempt WHERE run_id = 1) + "
    "(SELECT "
    "count(*) FROM allocation WHERE run_id = 1) + (SELECT count(*) FROM checkpoint WHERE run_id = 1) + "
    "(SELECT "
    "count(*) FROM run_blob WHERE run_id = 1) + (SELECT count(*) FROM run_group_member WHERE run_id = 1)";
static const char points_of_run[] = "SELECT (SELECT count(*) FROM metric WHERE run_id = 1) + (SELECT "
                                    "count(*) FROM metric_rollup WHERE run_id = 1) + "
                                    "(SELECT count(*) FROM metric_latest WHERE run_id = 1)";

static void test_a_deleted_run_leaves_nothing_but_its_event(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 2, JOB_OUTCOME_FAILED);

    assert_int_equal(m.run[0], 1);
    expect(f, delete_run, (struct command){.id = 1, .version = 1}, PD_ERR_STALE, "run 1 has version");
    expect(f, delete_run, (struct command){.id = 1, .version = -1}, PD_OK, NULL);
    assert_int_equal(count_of(f, rows_of_run), 0);
    assert_true(count_of(f, points_of_run) >= POINTS); /* they go bit by bit, */
    assert_false(known(f, 1));                         /* and nobody sees them */
    expect(f, delete_run, (struct command){.id = 1, .version = -1}, PD_ERR_NOT_FOUND, "no run 1");
    expect_sound(f);
    assert_true(clean(f, 100) > POINTS / 100);
    assert_int_equal(count_of(f, points_of_run), 0);
    assert_int_equal(count_of(f, "SELECT count(*) FROM event WHERE run_id = 1 AND kind <> 'run.deleted'"), 0);
    assert_int_equal(count_of(f, "SELECT count(*) FROM event WHERE run_id = 1"), 1);
    assert_int_equal(
        count_of(f, "SELECT count(*) FROM audit WHERE what = 'run.deleted' AND target = 'run 1' AND who = "
                    "'a test'"),
        1);
    /* The other one has all of its own; the job counts both. */
    assert_int_equal(count_of(f, "SELECT count(*) FROM metric WHERE run_id = 2"), POINTS);
    assert_int_equal(
        count_of(f, "SELECT runs * 1000 + runs_ended * 100 + runs_failed * 10 + runs_deleted FROM job"),
        2211);
    assert_int_equal(listed(f, STORE_ARCHIVED_ANY, 0), 1);
    /* The folder of the run is somebody else's to remove; then nothing is left. */
    assert_int_equal(count_of(f, "SELECT run_id FROM remnant WHERE rows_gone = 1"), 1);
    expect(f, remnant_done, (struct command){.id = 1}, PD_OK, NULL);
    assert_int_equal(count_of(f, "SELECT count(*) FROM remnant"), 0);
    expect_sound(f);
}

static void test_a_file_goes_with_the_last_run_that_shows_it(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 2, JOB_OUTCOME_SUCCEEDED);

    expect(f, delete_run, (struct command){.id = m.run[0], .version = -1}, PD_OK, NULL);
    expect(f, clean_blobs, (struct command){0}, PD_OK, NULL);
    assert_true(there(f, m.sha)); /* the other one shows it */
    expect_sound(f);
    expect(f, delete_run, (struct command){.id = m.run[1], .version = -1}, PD_OK, NULL);
    assert_int_equal(count_of(f, "SELECT count(*) FROM job WHERE deleted_us > 0"),
                     1); /* the last one takes the job along */
    clean(f, 1000);
    expect(f, clean_blobs, (struct command){0}, PD_OK, NULL);
    assert_false(there(f, m.sha));
    assert_int_equal(
        count_of(f, "SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM blob) + (SELECT count(*) "
                    "FROM remnant_blob)"),
        0);
    expect_sound(f);
}

static bool keep_group(void *ctx, const struct store_group *g)
{
    *(struct store_group *)ctx = *g;
    return true;
}

static struct store_group group_of(struct fixture *f)
{
    struct store_group g;
    struct pd_why why;

    assert_int_equal(store_group_get(f->s, "g", keep_group, &g, &why), PD_OK);
    return g;
}

static void test_a_deleted_job_is_hidden_at_once_with_its_runs(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 3, JOB_OUTCOME_SUCCEEDED);
    struct store_group before = group_of(f), group;
    struct store_counts counts;
    struct store_space space;
    struct pd_why why;
    int64_t deleting;
    struct append a = {.run = m.run[0],
                       .points =
                           (struct store_metric[]){{.key = "mine", .step = 1, .time_us = 1, .value = 1}},
                       .count = 1};

    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_OK, NULL);
    assert_int_equal(count_of(f, "SELECT count(*) FROM run"), 3); /* still there, and nobody sees them */
    for (int i = 0; i < 3; i++)
        assert_false(known(f, m.run[i]));
    assert_int_equal(listed(f, STORE_ARCHIVED_ANY, 0) + sorted(f, STORE_ARCHIVED_ANY), 0);
    assert_int_equal(store_count(f->s, &counts, &why), PD_OK);
    assert_int_equal(counts.jobs[JOB_DONE], 0);
    assert_int_equal(counts.runs[JOB_RUN_ENDED], 0);
    assert_int_equal(store_all_space(f->s, &space, &deleting, &why), PD_OK);
    assert_true(space.checkpoints == 0 && space.logs == 0 && space.blobs == 0 && deleting == 3);
    group = group_of(f);
    assert_int_equal(group.runs, 0); /* it had the first run */
    assert_true(group.version > before.version);
    assert_int_equal(call(f, append, &a, &why), PD_ERR_NOT_FOUND);
    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_ERR_NOT_FOUND, "no job");
    expect(f, archive_run, (struct command){.id = m.run[0], .version = -1, .archive = true}, PD_ERR_NOT_FOUND,
           NULL);
    expect_sound(f);
    clean(f, 500);
    assert_int_equal(group_of(f).version, group.version); /* nothing changes that one could see */
    assert_int_equal(
        count_of(f, "SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM run) + (SELECT count(*) FROM "
                    "metric) + (SELECT count(*) FROM event WHERE job_id > 0)"),
        1);
    assert_int_equal(count_of(f, "SELECT count(*) FROM remnant WHERE rows_gone = 1"), 3);
    expect_sound(f);
}

static void test_a_deleted_job_is_sound_while_its_events_go(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    int64_t events = count_of(f, "SELECT count(*) FROM event WHERE job_id > 0");

    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_OK, NULL);
    assert_true(events > 3);
    for (int i = 0; i < 4; i++) { /* the first one takes the run */
        expect(f, clean_rows, (struct command){.rows = 1}, PD_OK, NULL);
        expect_sound(f);
    }
    assert_int_equal(count_of(f, "SELECT count(*) FROM job"), 1);
    assert_true(count_of(f, "SELECT count(*) FROM event WHERE job_id > 0") < events);
}

static bool keep_sweep(void *ctx, const struct store_sample *m)
{
    if (m->sweep[0])
        snprintf(ctx, 64, "%lld: %s", (long long)m->trial, m->sweep);
    return true;
}

static void test_a_combination_keeps_its_values_when_its_first_run_is_deleted(void **state)
{
    struct fixture *f = *state;
    struct made m = made_as(
        (struct made){.f = f, .runs = 3, .outcome = JOB_OUTCOME_FAILED, .sweep = "{\"/train/seed\":7}"});
    struct store_sample_query q = {
        .by = STORE_BY_POINT, .job_id = m.job, .to_point = 9, .key = "loss", .limit = 10};
    char sweep[64] = "";
    struct pd_why why;

    assert_int_equal(store_sample_list(f->s, &q, keep_sweep, sweep, &why), PD_OK);
    assert_string_equal(sweep, "0: {\"/train/seed\":7}");
    expect(f, delete_run, (struct command){.id = m.run[0], .version = -1}, PD_OK, NULL);
    assert_int_equal(store_sample_list(f->s, &q, keep_sweep, sweep, &why), PD_OK);
    assert_string_equal(sweep, "1: {\"/train/seed\":7}");
}

static enum pd_err clean_all_blobs(struct fixture *f, struct store_blob_pass *ret)
{
    struct command c = {.blobs = {.worked = true}};
    struct pd_why why;
    enum pd_err err = PD_OK;

    while (err == PD_OK && c.blobs.worked)
        err = call(f, clean_blobs, &c, &why);
    *ret = c.blobs;
    return err;
}

static void test_a_file_that_cannot_be_removed_stops_no_other(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    struct store_blob_pass pass;
    struct pd_why why;
    char path[200], inside[210];

    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_OK, NULL);
    clean(f, 1000);
    writer_down(f);
    poke(f,
         "INSERT INTO remnant_blob (sha256) VALUES ('00112233445566778899aabbccddeeff00112233445566778899aabb"
         "ccddeeff')");
    writer_up(f);
    snprintf(path, sizeof path,
             "%s/blobs/00/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", f->dir);
    snprintf(inside, sizeof inside, "%s/x", path);
    assert_int_equal(pd_file_make_dirs(inside, &why), PD_OK); /* a folder cannot be unlinked */
    assert_int_equal(clean_all_blobs(f, &pass), PD_OK);
    assert_int_equal(pass.kept, 1);
    assert_non_null(strstr(pass.why.text, path));
    assert_false(there(f, m.sha));
    assert_int_equal(count_of(f, "SELECT count(*) FROM remnant_blob"), 1);
    rmdir(inside);
    rmdir(path);
    assert_int_equal(clean_all_blobs(f, &pass), PD_OK); /* the next pass tries it again */
    assert_int_equal(pass.kept + count_of(f, "SELECT count(*) FROM remnant_blob"), 0);
}

static void test_a_restart_goes_on_with_what_is_left(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 2, JOB_OUTCOME_SUCCEEDED);

    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_OK, NULL);
    for (int i = 0; i < 3; i++)
        expect(f, clean_rows, (struct command){.rows = 200}, PD_OK, NULL);
    writer_down(f);
    writer_up(f);
    expect_sound(f);
    assert_true(count_of(f, "SELECT count(*) FROM metric") > 0);
    clean(f, 1000);
    assert_int_equal(count_of(f, "SELECT (SELECT count(*) FROM metric) + (SELECT count(*) FROM run)"), 0);
    /* Numbers are never given again: the folders may still be there. */
    assert_true(made(f, 1, JOB_OUTCOME_SUCCEEDED).run[0] > m.run[1]);
}

static void test_what_has_not_ended_is_refused(void **state)
{
    struct fixture *f = *state;
    struct ids ids = submitted(f);

    expect(f, delete_job, (struct command){.id = ids.job, .version = -1}, PD_ERR_CONFLICT,
           "is queued: cancel it");
    expect(f, delete_run, (struct command){.id = ids.run, .version = -1}, PD_ERR_CONFLICT,
           "is queued: cancel it");
    expect(f, archive_job, (struct command){.id = ids.job, .version = -1, .archive = true}, PD_ERR_CONFLICT,
           "to archive it");
    expect(f, archive_run, (struct command){.id = ids.run, .version = -1, .archive = true}, PD_ERR_CONFLICT,
           "to archive it");
    expect(f, cancel_run, (struct command){.id = ids.run}, PD_OK, NULL);
    expect(f, delete_run, (struct command){.id = ids.run, .version = -1}, PD_OK, NULL);
    expect(f, delete_job, (struct command){.id = ids.job, .version = -1}, PD_ERR_NOT_FOUND, NULL);
    clean(f, 100);
    expect_sound(f);
}

static enum pd_err register_checkpoint(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct made *m = ctx;
    int64_t n;

    return store_model_register(tx, "digits", m->checkpoint[0], &n, why);
}

static void test_what_a_model_was_made_of_stays(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 2, JOB_OUTCOME_SUCCEEDED);
    struct pd_why why;

    assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
    assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
    expect(f, delete_run, (struct command){.id = m.run[0], .version = -1}, PD_ERR_CONFLICT,
           "is version 1 of model 'digits': delete that version first");
    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_ERR_CONFLICT,
           "version 1 of model 'digits'");
    expect(f, set_alias, (struct command){.name = "digits", .n = 1}, PD_OK, NULL);
    expect(f, load_model, (struct command){.name = "digits", .n = 2, .archive = true}, PD_OK, NULL);
    expect(f, delete_model, (struct command){.name = "digits", .n = 1, .version = -1}, PD_ERR_CONFLICT,
           "has the alias 'prod'");
    expect(f, delete_model, (struct command){.name = "digits", .n = 2, .version = -1}, PD_ERR_CONFLICT,
           "version 2 of model 'digits' is loaded");
    expect(f, delete_model, (struct command){.name = "digits", .version = -1}, PD_ERR_CONFLICT, "version 2");
    expect(f, archive_model, (struct command){.name = "digits", .version = -1, .archive = true},
           PD_ERR_CONFLICT, "is loaded: unload it first");
    expect(f, delete_model, (struct command){.name = "digits", .n = 7, .version = -1}, PD_ERR_NOT_FOUND,
           "no version 7");
    expect(f, delete_model, (struct command){.name = "none", .version = -1}, PD_ERR_NOT_FOUND,
           "no model 'none'");
    expect(f, delete_model, (struct command){.name = "digits", .n = 1, .version = 99}, PD_ERR_STALE, NULL);
    expect(f, load_model, (struct command){.name = "digits", .n = 2}, PD_OK, NULL);
    expect(f, delete_model, (struct command){.name = "digits", .n = 2, .version = -1}, PD_OK, NULL);
    /* Its number is not given again. */
    assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
    assert_int_equal(count_of(f, "SELECT max(n) FROM model_version"), 3);
    expect(f, delete_model, (struct command){.name = "digits", .version = -1}, PD_OK, NULL);
    assert_int_equal(
        count_of(f, "SELECT (SELECT count(*) FROM model) + (SELECT count(*) FROM model_version) + (SELECT "
                    "count(*) FROM model_alias)"),
        0);
    assert_int_equal(count_of(f, "SELECT count(*) FROM audit WHERE what = 'model.deleted'"), 2);
    expect(f, delete_job, (struct command){.id = m.job, .version = -1}, PD_OK, NULL);
    clean(f, 1000);
    expect_sound(f);
}

struct needs {
    const char *document;
    bool later; /* the run is still to come */
    struct ids ids;
};

static enum pd_err submit_needs(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct needs *n = ctx;
    struct store_job_new job = {
        .name = "j", .experiment = "e", .document = n->later ? n->document : "{}", .planned = 1};
    struct store_run_new run = {
        .document = n->document, .device = "cpu", .slots = 1, .threads = 1, .total_steps = 1};
    enum pd_err err = store_job_insert(tx, &job, &n->ids.job, why);

    return err == PD_OK && !n->later ? store_run_insert(tx, n->ids.job, &run, &n->ids.run, why) : err;
}

static enum pd_err cancel_needs(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    const struct needs *n = ctx;

    return n->later ? store_job_cancel(tx, n->ids.job, -1, "enough", why)
                    : store_run_cancel(tx, n->ids.run, -1, "enough", why);
}

static void test_a_version_that_a_run_needs_stays(void **state)
{
    static const struct {
        const char *document;
        bool needs;
    } cases[] = {
        {"{\"train\":{\"teacher\":{\"model\":\"digits:1\"}}}", true},
        {"{\"train\":{\"start\":{\"model\":\"digits:1\"}}}", true},
        {"{\"kind\":\"evaluate\",\"evaluate\":{\"model\":\"digits:1\"}}", true},
        {"{\"train\":{\"teacher\":{\"model\":\"digits:12\"},\"start\":{\"model\":\"two_digits:1\"}}}", false},
        {"{\"name\":\"digits:1\",\"train\":{\"teacher\":null}}", false},
    };
    struct fixture *f = *state;
    struct made m = made(f, 1, JOB_OUTCOME_SUCCEEDED);

    for (size_t i = 0; i < 2 * (sizeof cases / sizeof *cases); i++) {
        struct needs n = {.document = cases[i / 2].document, .later = i % 2};
        struct command version = {.name = "digits", .n = 1, .version = -1}, whole = version;
        struct pd_why why = {""};
        char says[80];

        whole.n = 0;
        assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
        assert_int_equal(call(f, submit_needs, &n, &why), PD_OK);
        if (cases[i / 2].needs) {
            snprintf(says, sizeof says, "%s %lld, which has not ended, needs this version of model 'digits'",
                     n.later ? "job" : "run", (long long)(n.later ? n.ids.job : n.ids.run));
            expect(f, delete_model, version, PD_ERR_CONFLICT, says);
            expect(f, delete_model, whole, PD_ERR_CONFLICT, "needs a version of model 'digits'");
        } else {
            expect(f, delete_model, version, PD_OK, NULL);
        }
        assert_int_equal(call(f, cancel_needs, &n, &why), PD_OK);
        expect(f, delete_model, whole, PD_OK, NULL);
    }
}

/* ---- archive ----------------------------------------------------------------------------------------------
 */

static const char versions_of_job_1[] = "SELECT sum(version) FROM run WHERE job_id = 1";

static void test_lists_leave_out_what_is_archived(void **state)
{
    struct fixture *f = *state;
    int64_t versions;
    struct made two = made(f, 2, JOB_OUTCOME_FAILED), one = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    struct command job = {.id = two.job, .version = -1, .archive = true},
                   run = {.id = two.run[0], .version = -1};

    run.archive = true;
    expect(f, archive_run, run, PD_OK, NULL);
    expect(f, archive_run, run, PD_OK, NULL); /* asking twice is no error */
    assert_int_equal(count_of(f, "SELECT count(*) FROM event WHERE kind = 'run.archived'"), 1);
    assert_int_equal(listed(f, STORE_ARCHIVED_WITHOUT, 0), 2);
    assert_int_equal(listed(f, STORE_ARCHIVED_ONLY, 0), 1);
    assert_int_equal(listed(f, STORE_ARCHIVED_ANY, 0), 3);
    assert_int_equal(sorted(f, STORE_ARCHIVED_WITHOUT), 2);
    assert_int_equal(sorted(f, STORE_ARCHIVED_ONLY), 1);
    expect(f, archive_job, job, PD_OK, NULL);
    assert_int_equal(listed(f, STORE_ARCHIVED_WITHOUT, 0), 1);
    assert_int_equal(listed(f, STORE_ARCHIVED_ONLY, 0), 2);
    assert_int_equal(sorted(f, STORE_ARCHIVED_ONLY), 2);
    assert_int_equal(listed(f, STORE_ARCHIVED_WITHOUT, two.job),
                     1); /* of the job that was asked for: its own marks count */
    run.archive = false;
    expect(f, archive_run, run, PD_ERR_CONFLICT, "is archived as a whole");
    /* The run of a job of one is its job. */
    expect(f, archive_run, (struct command){.id = one.run[0], .version = -1, .archive = true}, PD_OK, NULL);
    assert_int_equal(count_of(f, "SELECT count(*) FROM job WHERE archived_us > 0"), 2);
    expect_sound(f);
    /* What goes on again is archived no more, and the tags of its runs change with it. */
    versions = count_of(f, versions_of_job_1);
    expect(f, retry_job, job, PD_OK, NULL);
    assert_int_equal(count_of(f, versions_of_job_1), versions + 6); /* each is queued again, too */
    assert_int_equal(count_of(f, "SELECT count(*) FROM job WHERE archived_us > 0 AND id = 1"), 0);
    assert_int_equal(listed(f, STORE_ARCHIVED_WITHOUT, 0), 2);
    expect_sound(f);
}

static bool count_group(void *ctx, const struct store_group *g)
{
    (void)g;
    ++*(int *)ctx;
    return true;
}

static bool count_model(void *ctx, const struct store_model *m)
{
    (void)m;
    ++*(int *)ctx;
    return true;
}

static void test_models_and_groups_are_archived_too(void **state)
{
    struct fixture *f = *state;
    struct made m = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    struct command model = {.name = "digits", .version = -1, .archive = true},
                   group = {.name = "g", .version = -1, .archive = true};
    struct pd_why why;
    int n[4] = {0};

    assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
    expect(f, archive_model, model, PD_OK, NULL);
    expect(f, archive_group, group, PD_OK, NULL);
    assert_int_equal(store_model_list(f->s, STORE_ARCHIVED_WITHOUT, count_model, &n[0], &why), PD_OK);
    assert_int_equal(store_model_list(f->s, STORE_ARCHIVED_ONLY, count_model, &n[1], &why), PD_OK);
    assert_int_equal(store_group_list(f->s, STORE_ARCHIVED_WITHOUT, 0, 10, count_group, &n[2], &why), PD_OK);
    assert_int_equal(store_group_list(f->s, STORE_ARCHIVED_ANY, 0, 10, count_group, &n[3], &why), PD_OK);
    assert_true(n[0] == 0 && n[1] == 1 && n[2] == 0 && n[3] == 1);
    model.n = 1;
    expect(f, archive_model, model, PD_OK, NULL);
    expect(f, load_model, (struct command){.name = "digits", .n = 1, .archive = true}, PD_OK, NULL);
    assert_int_equal(count_of(f, "SELECT count(*) FROM model_version WHERE archived_us > 0"),
                     0); /* what is loaded is not, */
    assert_int_equal(count_of(f, "SELECT count(*) FROM model WHERE archived_us > 0"), 0); /* nor its model */
    model.n = 0;
    model.archive = group.archive = false;
    expect(f, archive_model, model, PD_OK, NULL);
    expect(f, archive_group, group, PD_OK, NULL);
    assert_int_equal(
        count_of(f, "SELECT (SELECT count(*) FROM model WHERE archived_us > 0) + (SELECT count(*) FROM "
                    "run_group WHERE archived_us > 0)"),
        0);
}

/* ---- what things take
 * --------------------------------------------------------------------------------------- */

static bool first_size(void *ctx, const struct store_job_size *j)
{
    int64_t *out = ctx;

    out[0] = j->job_id;
    out[1] = j->bytes;
    out[2]++;
    return true;
}

static void test_bytes_are_counted_by_run_by_job_and_in_all(void **state)
{
    struct fixture *f = *state;
    struct made two = made(f, 2, JOB_OUTCOME_SUCCEEDED), one = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    struct store_space space;
    struct pd_why why;
    int64_t deleting, top[3] = {0};

    assert_int_equal(store_run_space(f->s, one.run[0], &space, &why), PD_OK);
    assert_true(space.checkpoints == 5 && space.logs == 11 && space.blobs == 3);
    assert_int_equal(store_job_space(f->s, two.job, &space, &why), PD_OK);
    assert_true(space.checkpoints == 10 && space.logs == 22 && space.blobs == 3);
    assert_int_equal(store_all_space(f->s, &space, &deleting, &why), PD_OK);
    assert_true(space.checkpoints == 15 && space.logs == 33 && space.blobs == 3 && deleting == 0);
    assert_int_equal(store_job_sizes(f->s, 10, first_size, top, &why), PD_OK);
    assert_true(top[0] == one.job && top[1] == 16 && top[2] == 2); /* the smaller one comes last */
    expect(f, delete_job, (struct command){.id = two.job, .version = -1}, PD_OK, NULL);
    assert_int_equal(store_all_space(f->s, &space, &deleting, &why), PD_OK);
    assert_true(space.checkpoints == 5 && space.logs == 11 && deleting == 2);
}

/* ---- polyd verify
 * -------------------------------------------------------------------------------------------- */

static void keep_words(void *ctx, const char *text)
{
    char *said = ctx;

    snprintf(said + strlen(said), 4096 - strlen(said), "%s\n", text);
}

static void test_verify_sees_what_a_deletion_may_not_leave(void **state)
{
    static const struct {
        const char *wrong, *says, *right;
    } cases[] = {
        {"UPDATE job SET runs_deleted = 1", "0 failed, 1 deleted; there are 1, 1, 0",
         "UPDATE job SET runs_deleted = 0"},
        {"UPDATE run SET archived_us = 5, state = 'queued', outcome = ''", "run 1 is archived and queued",
         "UPDATE run SET archived_us = 0, state = 'ended', outcome = 'succeeded'"},
        {"UPDATE job SET archived_us = 5, state = 'running'", "job 1 is archived and running",
         "UPDATE job SET archived_us = 0, state = 'done'"},
        {"UPDATE job SET deleted_us = 5, state = 'running'", "job 1 is deleted and running",
         "UPDATE job SET deleted_us = 0, state = 'done'"},
        {"INSERT INTO remnant (run_id, deleted_us) VALUES (1, 1)", "run 1 is deleted and still there",
         "DELETE FROM remnant"},
        {"INSERT INTO remnant (run_id, deleted_us, rows_gone) VALUES (1, 1, 1)",
         "run 1 is deleted and has points", "DELETE FROM remnant"},
        {"INSERT INTO metric_latest SELECT 77, key_id, attempt, step, ts_us, value, count, min, max FROM "
         "metric_latest",
         "metric points name run 77, which is not there", "DELETE FROM metric_latest WHERE run_id = 77"},
        {"DELETE FROM run_blob", "no run shows blob ba7816bf",
         "INSERT INTO run_blob (run_id, attempt, key, kind, step, time_us, sha256) SELECT 1, 1, 'k', 'x', 0, "
         "0, sha256 "
         "FROM blob"},
        {"UPDATE model SET versions = 0", "model digits counts 0 versions and has version 1",
         "UPDATE model SET versions = 1"},
        {"UPDATE job SET deleted_us = 5", "a model version names run 1, whose job is deleted",
         "UPDATE job SET deleted_us = 0"},
    };
    struct fixture *f = *state;
    struct made m = made(f, 1, JOB_OUTCOME_SUCCEEDED);
    struct pd_why why;

    assert_int_equal(call(f, register_checkpoint, &m, &why), PD_OK);
    writer_down(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[4096] = "";
        int64_t n = 0;

        poke(f, cases[i].wrong);
        assert_int_equal(store_verify(f->dir, false, keep_words, said, &n, &why), PD_OK);
        if (!strstr(said, cases[i].says))
            fail_msg("not said: '%s', but: %s", cases[i].says, said);
        poke(f, cases[i].right);
        expect_sound(f);
    }
    writer_up(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_deleted_run_leaves_nothing_but_its_event),
        TEST(test_a_file_goes_with_the_last_run_that_shows_it),
        TEST(test_a_version_that_a_run_needs_stays),
        TEST(test_a_deleted_job_is_hidden_at_once_with_its_runs),
        TEST(test_a_deleted_job_is_sound_while_its_events_go),
        TEST(test_a_combination_keeps_its_values_when_its_first_run_is_deleted),
        TEST(test_a_file_that_cannot_be_removed_stops_no_other),
        TEST(test_a_restart_goes_on_with_what_is_left),
        TEST(test_what_has_not_ended_is_refused),
        TEST(test_what_a_model_was_made_of_stays),
        TEST(test_lists_leave_out_what_is_archived),
        TEST(test_models_and_groups_are_archived_too),
        TEST(test_bytes_are_counted_by_run_by_job_and_in_all),
        TEST(test_verify_sees_what_a_deletion_may_not_leave),
    };

    return cmocka_run_group_tests_name("away", tests, NULL, NULL);
}
