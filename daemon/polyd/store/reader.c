/* Queries of rows. Each variant of a list is its own literal: the planner then finds the index, and no text
 * is assembled at run time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/store/db.h"
#include "kernels/base/clock.h"

enum pd_err store_open_reader(const char *path, struct store **ret_store, struct pd_why *why)
{
    struct store *s = calloc(1, sizeof *s);
    enum pd_err err;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a store");
    err = db_open(&s->db, path, false, why);
    if (err == PD_OK)
        err = store_check_version(&s->db, why);
    if (err != PD_OK) {
        store_close(s);
        return err;
    }
    *ret_store = s;
    return PD_OK;
}

struct store *store_close(struct store *s)
{
    if (s) {
        db_close(&s->db);
        free(s);
    }
    return NULL;
}

/* An end that failed for lack of memory must not leave this thread reading one old snapshot for ever. */
static void leave(struct store *s)
{
    if (!sqlite3_get_autocommit(s->db.db) && db_run(&s->db, NULL, "COMMIT", "") != PD_OK &&
        !sqlite3_get_autocommit(s->db.db))
        sqlite3_exec(s->db.db, "ROLLBACK", NULL, NULL, NULL);
}

void store_reader_until(struct store *s, int64_t until_us)
{
    db_until(&s->db, until_us);
}

enum pd_err store_begin(struct store *s, struct pd_why *why)
{
    leave(s);
    return db_run(&s->db, why, "BEGIN", "");
}

void store_end(struct store *s)
{
    leave(s);
}

/* How every list ends: rows until the callback has enough. */
#define DB_EACH_ROW(s, st, row_type, read, row, ctx, err, why)                                               \
    do {                                                                                                     \
        while ((err = db_step(&(s)->db, st, why)) == PD_OK) {                                                \
            row_type each;                                                                                   \
                                                                                                             \
            read(st, &each);                                                                                 \
            if (!row(ctx, &each)) {                                                                          \
                db_done(st);                                                                                 \
                break;                                                                                       \
            }                                                                                                \
        }                                                                                                    \
        if (err == PD_ERR_NOT_FOUND)                                                                         \
            err = PD_OK;                                                                                     \
    } while (0)

static bool limit_ok(int limit)
{
    return limit >= 1 && limit <= STORE_PAGE_MAX;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

#define JOB_LIST "SELECT " DB_JOB_COLUMNS " FROM job WHERE deleted_us = 0 AND "
#define JOB_REST                                                                                             \
    " AND (?2 IS NULL OR experiment = ?2) AND (?3 IS NULL OR instr(lower(name), lower(?3))) AND CASE ?5 "    \
    "WHEN 0 THEN archived_us = 0 WHEN 1 THEN archived_us > 0 ELSE 1 END ORDER BY id "
#define JOB_PICK(condition)                                                                                  \
    (oldest ? JOB_LIST condition "id > ?1" JOB_REST "ASC LIMIT ?4"                                           \
            : JOB_LIST condition "id < ?1" JOB_REST "DESC LIMIT ?4")

enum pd_err store_job_list(struct store *s, const struct store_job_query *q,
                           bool (*row)(void *ctx, const struct store_job *job), void *ctx, struct pd_why *why)
{
    bool oldest = q->order == STORE_ORDER_OLDEST;
    int64_t after = q->after_id ? q->after_id : oldest ? 0 : INT64_MAX;
    const char *state = q->state >= 0 ? job_state_name((enum job_state)q->state) : NULL;
    const char *sql = state && q->sweep ? JOB_PICK("state = ?6 AND planned > 1 AND ")
                      : state           ? JOB_PICK("state = ?6 AND ")
                      : q->sweep        ? JOB_PICK("planned > 1 AND ")
                                        : JOB_PICK("");
    sqlite3_stmt *st;
    enum pd_err err;

    if (!limit_ok(q->limit) || q->order == STORE_ORDER_PRIORITY || q->order == STORE_ORDER_TURN)
        return pd_fail(why, PD_ERR_INVALID, "no such page of jobs");
    if (state)
        err = db_bind(&s->db, &st, why, sql, "ittiit", after, q->experiment, q->name_like, (int64_t)q->limit,
                      (int64_t)q->archived, state);
    else
        err = db_bind(&s->db, &st, why, sql, "ittii", after, q->experiment, q->name_like, (int64_t)q->limit,
                      (int64_t)q->archived);
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_job, db_job, row, ctx, err, why);
    return err;
}

enum pd_err store_job_get(struct store *s, int64_t id, bool (*row)(void *ctx, const struct store_job *job),
                          void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_job job;
    enum pd_err err = db_bind(&s->db, &st, why, JOB_LIST "id = ?1", "i", id);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no job %lld", (long long)id);
    if (err != PD_OK)
        return err;
    db_job(st, &job);
    row(ctx, &job);
    db_done(st);
    return PD_OK;
}

enum pd_err store_job_expanding(struct store *s, bool (*row)(void *ctx, const struct store_job *job),
                                void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                JOB_LIST "runs < planned AND +state IN ('queued', 'running') ORDER BY id LIMIT 1", "");

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_job, db_job, row, ctx, err, why);
    return err;
}

/* ---- runs ----------------------------------------------------------------------------------- */

#define RUN_LIST                                                                                             \
    "SELECT " DB_RUN_COLUMNS " FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE "
#define RUN_REST DB_RUN_FILTER " ORDER BY "
#define RUN_ACTIVE "r.state IN ('queued', 'starting', 'running', 'preempted', 'paused', 'cancelling')"
#define RUN_DESC " AND r.id < ?1" RUN_REST "r.id DESC LIMIT ?4"
#define RUN_ASC " AND r.id > ?1" RUN_REST "r.id ASC LIMIT ?4"
#define RUN_PRIORITY " AND r.id > ?1" RUN_REST "r.priority DESC, r.id ASC LIMIT ?4"
#define RUN_TURN " AND r.id > ?1" RUN_REST "r.priority DESC, r.n ASC, r.id ASC LIMIT ?4"
/* `+` keeps the planner from the state index where the job's runs are few. */
#define RUN_PICK(condition)                                                                                  \
    (q->order == STORE_ORDER_NEWEST   ? RUN_LIST condition RUN_DESC                                          \
     : q->order == STORE_ORDER_OLDEST ? RUN_LIST condition RUN_ASC                                           \
     : q->order == STORE_ORDER_TURN   ? RUN_LIST condition RUN_TURN                                          \
                                      : RUN_LIST condition RUN_PRIORITY)

enum pd_err store_run_list(struct store *s, const struct store_run_query *q,
                           bool (*row)(void *ctx, const struct store_run *run), void *ctx, struct pd_why *why)
{
    int64_t after = q->after_id ? q->after_id : q->order == STORE_ORDER_NEWEST ? INT64_MAX : 0;
    const char *state = q->state >= 0 ? job_run_state_name((enum job_run_state)q->state) : NULL;
    const char *outcome = q->outcome >= 0 ? job_outcome_name((enum job_outcome)q->outcome) : NULL;
    int64_t limit = q->limit;
    const char *sql;
    sqlite3_stmt *st;
    enum pd_err err;

    if (!limit_ok(q->limit))
        return pd_fail(why, PD_ERR_INVALID, "no such page of runs");
    if (q->job_id && q->state == STORE_RUN_ACTIVE)
        sql = RUN_PICK("r.job_id = ?6 AND +" RUN_ACTIVE);
    else if (q->job_id && state)
        sql = RUN_PICK("r.job_id = ?6 AND +r.state = ?7");
    else if (q->job_id)
        sql = RUN_PICK("r.job_id = ?6");
    else if (q->state == STORE_RUN_ACTIVE)
        sql = RUN_PICK(RUN_ACTIVE);
    else if (state)
        sql = RUN_PICK("r.state = ?7");
    else
        sql = RUN_PICK("1");
    err = db_bind(&s->db, &st, why, sql, "ittititttttit", after, q->experiment, q->name_like, limit, outcome,
                  q->job_id, state, q->text, q->tag, q->tag_value, q->group, (int64_t)q->archived, q->kind);
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_run, db_run_row, row, ctx, err, why);
    return err;
}

/* Along run_point, which has the runs of a job in their order, so that the many that have ended cost little. */
#define RUN_FIRST(condition)                                                                                 \
    "(SELECT q.id FROM run q WHERE q.job_id = j.id AND q.state = 'queued'" condition                         \
    " ORDER BY q.point, q.trial LIMIT 1)"

enum pd_err store_run_next(struct store *s, int64_t clock_us, int limit,
                           bool (*row)(void *ctx, const struct store_run *run), void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    if (!limit_ok(limit))
        return pd_fail(why, PD_ERR_INVALID, "no such page of runs");
    err = db_bind(&s->db, &st, why,
                  "SELECT " DB_RUN_COLUMNS " FROM job j CROSS JOIN run r ON r.id = coalesce(" RUN_FIRST(
                      " AND q.not_before_us <= ?1") ", " RUN_FIRST("") ") WHERE j.state IN ('queued', "
                                                                       "'running') ORDER BY j.id LIMIT ?2",
                  "ii", clock_us, (int64_t)limit);
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_run, db_run_row, row, ctx, err, why);
    return err;
}

static void inputs_row(sqlite3_stmt *st, struct store_inputs *ret)
{
    *ret = (struct store_inputs){.data_digest = db_text(st, 0),
                                 .data_digest_of = db_text(st, 1),
                                 .program_digest = db_text(st, 2),
                                 .runs = sqlite3_column_int64(st, 3)};
}

enum pd_err store_job_inputs(struct store *s, int64_t job_id,
                             bool (*row)(void *ctx, const struct store_inputs *inputs), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT data_sha256, data_of, program_sha256, count(*) FROM run WHERE job_id = ?1 "
                "AND program_sha256 <> '' GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 3 LIMIT ?2",
                "ii", job_id, (int64_t)STORE_INPUTS_MAX);

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_inputs, inputs_row, row, ctx, err, why);
    return err;
}

enum pd_err store_run_get(struct store *s, int64_t id, bool (*row)(void *ctx, const struct store_run *run),
                          void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_run run;
    enum pd_err err = db_bind(&s->db, &st, why, RUN_LIST "r.id = ?1", "i", id);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no run %lld", (long long)id);
    if (err != PD_OK)
        return err;
    db_run_row(st, &run);
    row(ctx, &run);
    db_done(st);
    return PD_OK;
}

enum pd_err store_attempt_list(struct store *s, int64_t run_id,
                               bool (*row)(void *ctx, const struct store_attempt *a), void *ctx,
                               struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    if (run_id)
        err = db_bind(&s->db, &st, why,
                      "SELECT " DB_ATTEMPT_COLUMNS " FROM attempt WHERE run_id = ?1 ORDER BY n", "i", run_id);
    else
        err = db_bind(&s->db, &st, why,
                      "SELECT " DB_ATTEMPT_COLUMNS " FROM attempt WHERE state <> 'ended' ORDER BY run_id, n",
                      "");
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_attempt, db_attempt, row, ctx, err, why);
    return err;
}

/* ---- checkpoints, events, blobs ------------------------------------------------------------- */

#define CHECKPOINT_COLUMNS                                                                                   \
    "id, run_id, attempt, step, kind, in_state(path), bytes, digest, value, created_us, deleted_us FROM "    \
    "checkpoint "

static void read_checkpoint(sqlite3_stmt *st, struct store_checkpoint *ret)
{
    *ret = (struct store_checkpoint){
        .id = sqlite3_column_int64(st, 0),
        .run_id = sqlite3_column_int64(st, 1),
        .attempt = sqlite3_column_int(st, 2),
        .step = sqlite3_column_int64(st, 3),
        .kind = db_text(st, 4),
        .path = db_text(st, 5),
        .bytes = sqlite3_column_int64(st, 6),
        .digest = db_text(st, 7),
        .value = db_real(st, 8),
        .created_us = sqlite3_column_int64(st, 9),
        .deleted_us = sqlite3_column_int64(st, 10),
    };
}

enum pd_err store_checkpoint_list(struct store *s, int64_t run_id, bool deleted,
                                  bool (*row)(void *ctx, const struct store_checkpoint *c), void *ctx,
                                  struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT " CHECKPOINT_COLUMNS "WHERE run_id = ?1 AND (?2 OR deleted_us = 0) ORDER BY id DESC",
                "ii", run_id, (int64_t)deleted);

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_checkpoint, read_checkpoint, row, ctx, err, why);
    return err;
}

enum pd_err store_checkpoint_get(struct store *s, int64_t id,
                                 bool (*row)(void *ctx, const struct store_checkpoint *c), void *ctx,
                                 struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_checkpoint c;
    enum pd_err err = db_bind(&s->db, &st, why, "SELECT " CHECKPOINT_COLUMNS "WHERE id = ?1", "i", id);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "there is no checkpoint %lld", (long long)id);
    if (err != PD_OK)
        return err;
    read_checkpoint(st, &c);
    row(ctx, &c);
    db_done(st);
    return PD_OK;
}

static void read_event(sqlite3_stmt *st, struct store_event *ret)
{
    *ret = (struct store_event){
        .id = sqlite3_column_int64(st, 0),
        .time_us = sqlite3_column_int64(st, 1),
        .kind = db_text(st, 2),
        .job_id = sqlite3_column_int64(st, 3),
        .run_id = sqlite3_column_int64(st, 4),
        .attempt = sqlite3_column_int64(st, 5),
        .data = db_text(st, 6),
    };
}

#define EVENT_LIST "SELECT id, time_us, kind, job_id, run_id, attempt, data FROM event WHERE id > ?1"

enum pd_err store_event_list(struct store *s, const struct store_event_query *q,
                             bool (*row)(void *ctx, const struct store_event *e), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    if (!limit_ok(q->limit))
        return pd_fail(why, PD_ERR_INVALID, "no such page of events");
    if (q->run_id)
        err = db_bind(&s->db, &st, why, EVENT_LIST " AND run_id = ?3 AND run_id <> 0 ORDER BY id LIMIT ?2",
                      "iii", q->since_id, (int64_t)q->limit, q->run_id);
    else if (q->job_id)
        err = db_bind(&s->db, &st, why, EVENT_LIST " AND job_id = ?3 AND job_id <> 0 ORDER BY id LIMIT ?2",
                      "iii", q->since_id, (int64_t)q->limit, q->job_id);
    else
        err = db_bind(&s->db, &st, why, EVENT_LIST " ORDER BY id LIMIT ?2", "ii", q->since_id,
                      (int64_t)q->limit);
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_event, read_event, row, ctx, err, why);
    return err;
}

enum pd_err store_run_event(struct store *s, int64_t run_id, const char *kind, struct pd_buf *out,
                            struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT data FROM event WHERE run_id = ?1 AND run_id <> 0 AND kind = ?2 ORDER BY id "
                "DESC LIMIT 1",
                "it", run_id, kind);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err != PD_OK)
        return err;
    pd_buf_str(out, db_text(st, 0));
    db_done(st);
    return pd_buf_err(out);
}

enum pd_err store_event_last(struct store *s, int64_t *ret_id, struct pd_why *why)
{
    return db_int(&s->db, ret_id, why, "SELECT coalesce(max(id), 0) FROM event", "");
}

static void read_blob(sqlite3_stmt *st, struct store_blob *ret)
{
    *ret = (struct store_blob){
        .id = sqlite3_column_int64(st, 0),
        .run_id = sqlite3_column_int64(st, 1),
        .attempt = sqlite3_column_int(st, 2),
        .key = db_text(st, 3),
        .kind = db_text(st, 4),
        .step = sqlite3_column_int64(st, 5),
        .time_us = sqlite3_column_int64(st, 6),
        .meta = db_text(st, 7),
        .sha256 = db_text(st, 8),
        .bytes = sqlite3_column_int64(st, 9),
    };
}

static void read_blob_key(sqlite3_stmt *st, struct store_blob_key *ret)
{
    *ret = (struct store_blob_key){.key = db_text(st, 0),
                                   .kind = db_text(st, 1),
                                   .count = sqlite3_column_int64(st, 2),
                                   .first_step = sqlite3_column_int64(st, 3),
                                   .last_step = sqlite3_column_int64(st, 4)};
}

enum pd_err store_blob_keys(struct store *s, int64_t run_id,
                            bool (*row)(void *ctx, const struct store_blob_key *k), void *ctx,
                            struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              "SELECT key, kind, count(DISTINCT step), min(step), max(step) FROM run_blob "
                              "WHERE run_id = ?1 GROUP BY key ORDER BY key",
                              "i", run_id);

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_blob_key, read_blob_key, row, ctx, err, why);
    return err;
}

#define BLOB_COLUMNS                                                                                         \
    "r.id, r.run_id, r.attempt, r.key, r.kind, r.step, r.time_us, r.meta, r.sha256, b.bytes FROM run_blob "  \
    "r "                                                                                                     \
    "JOIN blob b ON b.sha256 = r.sha256 "

enum pd_err store_blob_list(struct store *s, int64_t run_id, const char *key, int64_t after_step, int limit,
                            bool (*row)(void *ctx, const struct store_blob *b), void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    if (!limit_ok(limit))
        return pd_fail(why, PD_ERR_INVALID, "a page cannot have %d blobs", limit);
    err =
        db_bind(&s->db, &st, why,
                "SELECT " BLOB_COLUMNS
                "WHERE r.run_id = ?1 AND r.key = ?2 AND r.step > ?3 AND NOT EXISTS (SELECT 1 FROM run_blob n "
                "WHERE n.run_id = r.run_id AND n.key = r.key AND n.step = r.step AND n.id > r.id) "
                "ORDER BY r.step LIMIT ?4",
                "itii", run_id, key, after_step, (int64_t)limit);
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_blob, read_blob, row, ctx, err, why);
    return err;
}

enum pd_err store_blob_get(struct store *s, int64_t run_id, int64_t id,
                           void (*row)(void *ctx, const struct store_blob *b, const char *path), void *ctx,
                           struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_blob blob;
    char path[4096];
    enum pd_err err = db_bind(&s->db, &st, why, "SELECT " BLOB_COLUMNS "WHERE r.run_id = ?1 AND r.id = ?2",
                              "ii", run_id, id);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "run %lld has no blob %lld", (long long)run_id, (long long)id);
    if (err != PD_OK)
        return err;
    read_blob(st, &blob);
    if ((size_t)snprintf(path, sizeof path, "%s/blobs/%.2s/%s", s->db.dir, blob.sha256, blob.sha256) <
        sizeof path)
        row(ctx, &blob, path);
    else
        err = pd_fail(why, PD_ERR_LIMIT, "the path of blob %lld is too long", (long long)id);
    db_done(st);
    return err;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static void read_drain(sqlite3_stmt *st, struct store_drain *ret)
{
    *ret = (struct store_drain){.device = db_text(st, 0),
                                .name = db_text(st, 1),
                                .reason = db_text(st, 2),
                                .who = db_text(st, 3),
                                .time_us = sqlite3_column_int64(st, 4)};
}

enum pd_err store_drain_list(struct store *s, bool (*row)(void *ctx, const struct store_drain *d), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        &s->db, &st, why, "SELECT device, name, reason, who, time_us FROM device_drain ORDER BY device", "");

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_drain, read_drain, row, ctx, err, why);
    return err;
}

enum pd_err store_plan_get(struct store *s, const char *plan_digest, struct pd_buf *out, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why, "SELECT plan FROM plan WHERE digest = ?1", "t", plan_digest);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no plan is stored for this digest");
    if (err != PD_OK)
        return err;
    pd_buf_append(out, db_text(st, 0), (size_t)sqlite3_column_bytes(st, 0));
    db_done(st);
    return pd_buf_err(out);
}

enum pd_err store_idem_get(struct store *s, const char *scope, const char *key, const uint8_t body_sha256[32],
                           int *ret_status, struct pd_buf *response, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT body_sha256, status, response FROM idempotency WHERE scope = ?1 AND key = ?2 AND "
                "created_us > ?3 + (SELECT clock_base_us FROM store)",
                "tti", scope, key, pd_clock_boot_us() - STORE_IDEM_KEEP_US);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "the key is new");
    if (err != PD_OK)
        return err;
    if (memcmp(sqlite3_column_blob(st, 0), body_sha256, 32) != 0)
        err = pd_fail(why, PD_ERR_CONFLICT, "this Idempotency-Key was used with another body");
    else {
        *ret_status = sqlite3_column_int(st, 1);
        pd_buf_append(response, sqlite3_column_blob(st, 2), (size_t)sqlite3_column_bytes(st, 2));
        err = pd_buf_err(response);
    }
    db_done(st);
    return err;
}

enum pd_err store_count(struct store *s, struct store_counts *ret, struct pd_why *why)
{
    struct store_counts counts = {0};
    sqlite3_stmt *st;
    enum pd_err err;

    err =
        db_bind(&s->db, &st, why, "SELECT state, count(*) FROM job WHERE deleted_us = 0 GROUP BY state", "");
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        enum job_state state;

        if (job_state_parse(db_text(st, 0), &state))
            counts.jobs[state] = sqlite3_column_int64(st, 1);
    }
    if (err == PD_ERR_NOT_FOUND)
        err = db_bind(&s->db, &st, why,
                      "SELECT r.state, count(*) FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = "
                      "0 GROUP BY r.state",
                      "");
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        enum job_run_state state;

        if (job_run_state_parse(db_text(st, 0), &state))
            counts.runs[state] = sqlite3_column_int64(st, 1);
    }
    if (err == PD_ERR_NOT_FOUND)
        /* Its age by the store's clock, as a time of the wall clock: what is computed from it never is
         * negative. */
        err = db_int(&s->db, &counts.oldest_queued_us, why,
                     "SELECT coalesce((SELECT ?1 - max(?2 + (SELECT clock_base_us FROM store) - "
                     "min(clock_us), 0) FROM run "
                     "WHERE state = 'queued'), 0)",
                     "ii", pd_clock_wall_us(), pd_clock_boot_us());
    if (err == PD_OK)
        *ret = counts;
    return err;
}
