/* Jobs, runs and attempts. Moves: the one function of each level checks the table (daemon/spec/state.h),
 * writes the row and its event. A job follows its runs (job_follow), in the same transaction. */
#include <stdio.h>
#include <string.h>

#include "daemon/store/tx_private.h"

int64_t store_tx_now_us(struct store_tx *tx)
{
    return tx->now_us;
}

int64_t store_tx_clock_us(struct store_tx *tx)
{
    return tx->clock_us;
}

/* ---- events --------------------------------------------------------------------------------- */

enum pd_err store_event_add(struct store_tx *tx, const char *kind, int64_t job_id, int64_t run_id,
                            int64_t attempt, const char *data, int64_t *ret_id, struct pd_why *why)
{
    enum pd_err err =
        db_run(tx->db, why,
               "INSERT INTO event (time_us, kind, job_id, run_id, attempt, data) VALUES (?1, ?2, ?3, ?4, "
               "?5, ?6)",
               "itiiit", tx->now_us, kind, job_id, run_id, attempt, data);

    if (err != PD_OK)
        return err;
    tx->commit.events = true;
    tx->commit.last_event_id = sqlite3_last_insert_rowid(tx->db->db);
    if (ret_id)
        *ret_id = tx->commit.last_event_id;
    return PD_OK;
}

/* The tally's kind is the event's without ".state". */
static enum pd_err tally(struct store_tx *tx, const char *kind, const char *from, const char *to,
                         struct pd_why *why)
{
    char level[16];

    snprintf(level, sizeof level, "%.*s", (int)strcspn(kind, "."), kind);
    return db_run(
        tx->db, why,
        "INSERT INTO tally (kind, past, next, count) VALUES (?1, ?2, ?3, 1) ON CONFLICT (kind, past, "
        "next) DO UPDATE SET count = count + 1",
        "ttt", level, from ? from : "", to);
}

/* {"from":..,"to":..,"<extra>":..,"reason":..} */
static enum pd_err move_event(struct store_tx *tx, const char *kind, int64_t job_id, int64_t run_id,
                              int64_t attempt, const char *from, const char *to, const char *extra_key,
                              const char *extra, const char *reason, struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    pd_buf_str(&b, "{");
    if (from) {
        pd_buf_str(&b, "\"from\":");
        store_json_text(&b, from);
        pd_buf_str(&b, ",");
    }
    pd_buf_str(&b, "\"to\":");
    store_json_text(&b, to);
    if (extra && *extra) {
        pd_buf_printf(&b, ",\"%s\":", extra_key);
        store_json_text(&b, extra);
    }
    if (reason && *reason) {
        pd_buf_str(&b, ",\"reason\":");
        store_json_text(&b, reason);
    }
    pd_buf_str(&b, "}");
    err = pd_buf_err(&b);
    if (err == PD_OK)
        err = store_event_add(tx, kind, job_id, run_id, attempt, b.data, NULL, why);
    if (err == PD_OK)
        err = tally(tx, kind, from, to, why);
    pd_buf_done(&b);
    return err;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static const char *or_empty(const char *text)
{
    return text ? text : "";
}

enum pd_err store_job_insert(struct store_tx *tx, const struct store_job_new *job, int64_t *ret_id,
                             struct pd_why *why)
{
    enum pd_err err;
    int64_t id;

    err = db_run(
        tx->db, why,
        "INSERT INTO job (state, name, experiment, template, tags, notes, register_name, owner, priority, "
        "created_us, document, planned, points, trials, concurrency, metric, mode, sweep) VALUES ('queued', "
        "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, max(1, ?11), max(1, ?12), max(1, ?13), ?14, ?15, ?16, ?17)",
        "tttttttiitiiiittt", job->name, job->experiment, or_empty(job->template_name),
        job->tags ? job->tags : "{}", or_empty(job->notes), or_empty(job->register_name),
        or_empty(job->owner), (int64_t)job->priority, tx->now_us, job->document, job->planned, job->points,
        job->trials, job->concurrency, job->metric ? job->metric : "loss/val", job->maximise ? "max" : "min",
        or_empty(job->sweep));
    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    err = move_event(tx, "job.state", id, 0, 0, NULL, "queued", "name", job->name, NULL, why);
    if (err == PD_OK)
        *ret_id = id;
    return err;
}

struct job_state {
    enum spec_job_state state;
    int64_t version, runs, planned, ended, failed;
};

static enum pd_err job_state(struct store_tx *tx, int64_t id, struct job_state *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        tx->db, &st, why,
        "SELECT state, version, runs, runs_ended, runs_failed, planned FROM job WHERE id = ?1", "i", id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no job %lld", (long long)id);
    if (err != PD_OK)
        return err;
    *ret = (struct job_state){.version = sqlite3_column_int64(st, 1),
                              .runs = sqlite3_column_int64(st, 2),
                              .ended = sqlite3_column_int64(st, 3),
                              .failed = sqlite3_column_int64(st, 4),
                              .planned = sqlite3_column_int64(st, 5)};
    if (!spec_job_state_parse(db_text(st, 0), &ret->state))
        err = pd_fail(why, PD_ERR_CORRUPT, "job %lld is in no known state", (long long)id);
    db_done(st);
    return err;
}

static enum pd_err job_move(struct store_tx *tx, int64_t id, enum spec_job_state from, enum spec_job_state to,
                            const char *reason, struct pd_why *why)
{
    enum pd_err err;
    bool final = spec_job_state_final(to);

    if (!spec_job_move_allowed(from, to))
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld is %s: it cannot become %s", (long long)id,
                       spec_job_state_name(from), spec_job_state_name(to));
    err = db_run(tx->db, why,
                 "UPDATE job SET state = ?2, version = version + 1, reason = coalesce(?3, reason), "
                 "started_us = CASE WHEN "
                 "?4 AND started_us = 0 THEN max(?6, created_us) ELSE started_us END, ended_us = CASE WHEN "
                 "?5 THEN max(?6, "
                 "created_us, started_us) ELSE 0 END WHERE id = ?1",
                 "ittiii", id, spec_job_state_name(to), reason, (int64_t)(to == SPEC_JOB_RUNNING),
                 (int64_t) final, tx->now_us);
    if (err != PD_OK)
        return err;
    return move_event(tx, "job.state", id, 0, 0, spec_job_state_name(from), spec_job_state_name(to), NULL,
                      NULL, reason, why);
}

static enum pd_err check_version_of(const char *what, int64_t id, int64_t have, int64_t wanted,
                                    struct pd_why *why)
{
    if (wanted >= 0 && wanted != have)
        return pd_fail(why, PD_ERR_STALE, "%s %lld has version %lld, not %lld", what, (long long)id,
                       (long long)have, (long long)wanted);
    return PD_OK;
}

/* Why a job failed: in the words of the first of its runs that did. */
static enum pd_err failed_reason(struct store_tx *tx, int64_t job_id, const struct job_state *j,
                                 struct pd_buf *out, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT id, reason FROM run WHERE job_id = ?1 AND outcome = 'failed' ORDER BY ended_us, id "
                "LIMIT 1",
                "i", job_id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return PD_OK;
    if (err != PD_OK)
        return err;
    if (j->runs > 1)
        pd_buf_printf(out, "%lld of %lld runs failed; run %lld: ", (long long)j->failed, (long long)j->runs,
                      (long long)sqlite3_column_int64(st, 0));
    pd_buf_str(out, db_text(st, 1));
    db_done(st);
    return pd_buf_err(out) == PD_OK ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the job's reason");
}

/* After a run ended: the counters, and the job's own end. */
static enum pd_err job_follow_end(struct store_tx *tx, int64_t job_id, enum spec_outcome outcome,
                                  struct pd_why *why)
{
    struct job_state j;
    struct pd_buf reason;
    enum pd_err err;
    int64_t cancelled;
    enum spec_job_state to;

    err = db_run(
        tx->db, why,
        "UPDATE job SET runs_ended = runs_ended + 1, runs_failed = runs_failed + ?2, version = version + 1 "
        "WHERE id = ?1",
        "ii", job_id, (int64_t)(outcome == SPEC_OUTCOME_FAILED));
    if (err == PD_OK)
        err = job_state(tx, job_id, &j, why);
    if (err != PD_OK || j.ended < j.planned || spec_job_state_final(j.state))
        return err;
    if (j.state == SPEC_JOB_CANCELLING)
        return job_move(tx, job_id, j.state, SPEC_JOB_CANCELLED, NULL, why);
    err = db_int(tx->db, &cancelled, why,
                 "SELECT count(*) FROM run WHERE job_id = ?1 AND outcome = 'cancelled'", "i", job_id);
    if (err != PD_OK)
        return err;
    if (cancelled == j.runs) {
        /* Each run was cancelled by itself: so is the job. */
        err = job_move(tx, job_id, j.state, SPEC_JOB_CANCELLING, "all runs were cancelled", why);
        return err == PD_OK ? job_move(tx, job_id, SPEC_JOB_CANCELLING, SPEC_JOB_CANCELLED, NULL, why) : err;
    }
    to = j.failed ? SPEC_JOB_FAILED : SPEC_JOB_DONE;
    /* From queued or paused (a run ended before it started, or while the others were paused) the
     * table knows only the way through running. */
    if (j.state == SPEC_JOB_PAUSED) {
        err = job_move(tx, job_id, SPEC_JOB_PAUSED, SPEC_JOB_QUEUED, NULL, why);
        j.state = SPEC_JOB_QUEUED;
    }
    if (err == PD_OK && j.state == SPEC_JOB_QUEUED)
        err = job_move(tx, job_id, SPEC_JOB_QUEUED, SPEC_JOB_RUNNING, NULL, why);
    pd_buf_init(&reason, 0);
    if (err == PD_OK && j.failed)
        err = failed_reason(tx, job_id, &j, &reason, why);
    if (err == PD_OK)
        err = job_move(tx, job_id, SPEC_JOB_RUNNING, to, reason.data, why);
    pd_buf_done(&reason);
    return err;
}

/* ---- runs ----------------------------------------------------------------------------------- */

enum pd_err store_run_insert(struct store_tx *tx, int64_t job_id, const struct store_run_new *run,
                             int64_t *ret_id, struct pd_why *why)
{
    struct job_state j;
    enum pd_err err;
    int64_t id, n;

    err = job_state(tx, job_id, &j, why);
    if (err != PD_OK)
        return err;
    n = j.runs;
    err = db_run(
        tx->db, why,
        "INSERT INTO run (job_id, n, state, device, slots, threads, priority, max_restarts, total_steps, "
        "time_limit_us, warn_before_us, created_us, config_digest, plan_digest, sweep, document, point, "
        "trial, seed, clock_us) VALUES (?1, ?2, 'queued', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, "
        "?14, ?15, "
        "?16, ?17, ?18, ?19)",
        "iitiiiiiiiittttiiii", job_id, n, run->device, (int64_t)run->slots, (int64_t)run->threads,
        (int64_t)run->priority, (int64_t)run->max_restarts, run->total_steps, run->time_limit_us,
        run->warn_before_us, tx->now_us, or_empty(run->config_digest), or_empty(run->plan_digest),
        run->sweep ? run->sweep : "{}", run->document, run->point, run->trial, run->seed, tx->clock_us);
    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    err = db_run(tx->db, why,
                 "UPDATE job SET runs = runs + 1, planned = max(planned, runs + 1), version = version + 1 "
                 "WHERE id = ?1",
                 "i", job_id);
    if (err == PD_OK)
        err = move_event(tx, "run.state", job_id, id, 0, NULL, "queued", NULL, NULL, NULL, why);
    if (err == PD_OK)
        *ret_id = id;
    return err;
}

struct run_state {
    enum spec_run_state state;
    int64_t job_id, version;
    int attempts;
};

static enum pd_err run_state(struct store_tx *tx, int64_t id, struct run_state *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why, "SELECT state, job_id, version, attempts FROM run WHERE id = ?1", "i", id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no run %lld", (long long)id);
    if (err != PD_OK)
        return err;
    *ret = (struct run_state){.job_id = sqlite3_column_int64(st, 1),
                              .version = sqlite3_column_int64(st, 2),
                              .attempts = sqlite3_column_int(st, 3)};
    if (!spec_run_state_parse(db_text(st, 0), &ret->state))
        err = pd_fail(why, PD_ERR_CORRUPT, "run %lld is in no known state", (long long)id);
    db_done(st);
    return err;
}

enum pd_err store_run_state(struct store_tx *tx, int64_t run_id, enum spec_run_state *ret, struct pd_why *why)
{
    struct run_state r;
    enum pd_err err = run_state(tx, run_id, &r, why);

    if (err == PD_OK)
        *ret = r.state;
    return err;
}

enum pd_err store_run_job_state(struct store_tx *tx, int64_t run_id, enum spec_job_state *ret,
                                struct pd_why *why)
{
    struct run_state r;
    struct job_state j;
    enum pd_err err = run_state(tx, run_id, &r, why);

    if (err == PD_OK)
        err = job_state(tx, r.job_id, &j, why);
    if (err == PD_OK)
        *ret = j.state;
    return err;
}

static enum pd_err run_move(struct store_tx *tx, int64_t id, const struct run_state *r,
                            enum spec_run_state to, enum spec_outcome outcome, const char *reason,
                            struct pd_why *why)
{
    const char *outcome_name = to == SPEC_RUN_ENDED ? spec_outcome_name(outcome) : "";
    struct job_state j;
    enum pd_err err;

    if (!spec_run_move_allowed(r->state, to))
        return pd_fail(why, PD_ERR_CONFLICT, "run %lld is %s: it cannot become %s", (long long)id,
                       spec_run_state_name(r->state), spec_run_state_name(to));
    /* A run began when its attempt did, before its first point; however the clock jumps, no time lies before
     * the one that must come first. */
    err =
        db_run(tx->db, why,
               "UPDATE run SET state = ?2, outcome = ?3, version = version + 1, reason = CASE WHEN ?3 = "
               "'cancelled' AND state = 'cancelling' AND reason <> '' THEN reason ELSE ?4 END, started_us = "
               "CASE WHEN ?5 AND started_us = 0 THEN max(coalesce((SELECT nullif(a.started_us, 0) FROM "
               "attempt a WHERE a.run_id = ?1 AND a.n = attempts), ?7), created_us) ELSE started_us END, "
               "ended_us = CASE WHEN ?6 THEN max(?7, created_us, started_us) ELSE 0 END WHERE id = ?1",
               "itttiii", id, spec_run_state_name(to), outcome_name, or_empty(reason),
               (int64_t)(to == SPEC_RUN_RUNNING), (int64_t)(to == SPEC_RUN_ENDED), tx->now_us);
    if (err == PD_OK)
        err = move_event(tx, "run.state", r->job_id, id, r->attempts, spec_run_state_name(r->state),
                         spec_run_state_name(to), "outcome", outcome_name, reason, why);
    if (err == PD_OK && to == SPEC_RUN_ENDED)
        return job_follow_end(tx, r->job_id, outcome, why);
    if (err == PD_OK && to == SPEC_RUN_STARTING) {
        err = job_state(tx, r->job_id, &j, why);
        if (err == PD_OK && j.state == SPEC_JOB_QUEUED)
            err = job_move(tx, r->job_id, j.state, SPEC_JOB_RUNNING, NULL, why);
    }
    return err;
}

enum pd_err store_run_move(struct store_tx *tx, int64_t run_id, enum spec_run_state to,
                           enum spec_outcome outcome, const char *reason, struct pd_why *why)
{
    struct run_state r;
    enum pd_err err = run_state(tx, run_id, &r, why);

    return err == PD_OK ? run_move(tx, run_id, &r, to, outcome, reason, why) : err;
}

enum pd_err store_run_set_reason(struct store_tx *tx, int64_t run_id, const char *reason, struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE run SET reason = ?2, version = version + 1 WHERE id = ?1", "it",
                  run_id, reason);
}

enum pd_err store_run_set_backoff(struct store_tx *tx, int64_t run_id, int restarts, int64_t not_before_us,
                                  struct pd_why *why)
{
    return db_run(tx->db, why,
                  "UPDATE run SET restarts = ?2, not_before_us = ?3, version = version + 1 WHERE id = ?1",
                  "iii", run_id, (int64_t)restarts, not_before_us);
}

enum pd_err store_job_next_run(struct store_tx *tx, int64_t job_id, int64_t *ret_n, int *ret_priority,
                               struct pd_why *why)
{
    struct job_state j;
    int64_t priority = 0;
    enum pd_err err = job_state(tx, job_id, &j, why);

    if (err == PD_OK)
        err = db_int(tx->db, &priority, why, "SELECT priority FROM job WHERE id = ?1", "i", job_id);
    if (err != PD_OK)
        return err;
    if (j.runs >= j.planned || (j.state != SPEC_JOB_QUEUED && j.state != SPEC_JOB_RUNNING))
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld takes no more runs", (long long)job_id);
    *ret_n = j.runs;
    *ret_priority = (int)priority;
    return PD_OK;
}

/* ---- commands ------------------------------------------------------------------------------- */

static enum pd_err run_cancel(struct store_tx *tx, int64_t id, struct run_state r, const char *reason,
                              struct pd_why *why)
{
    bool has_worker = r.state == SPEC_RUN_STARTING || r.state == SPEC_RUN_RUNNING;
    enum pd_err err = run_move(tx, id, &r, SPEC_RUN_CANCELLING, SPEC_OUTCOME_CANCELLED, reason, why);

    if (err != PD_OK || has_worker)
        return err; /* the supervisor ends it when the worker has gone */
    r.state = SPEC_RUN_CANCELLING;
    return run_move(tx, id, &r, SPEC_RUN_ENDED, SPEC_OUTCOME_CANCELLED, reason, why);
}

enum pd_err store_run_cancel(struct store_tx *tx, int64_t run_id, int64_t version, const char *reason,
                             struct pd_why *why)
{
    struct run_state r;
    enum pd_err err = run_state(tx, run_id, &r, why);

    if (err == PD_OK)
        err = check_version_of("run", run_id, r.version, version, why);
    if (err == PD_OK && r.state == SPEC_RUN_CANCELLING)
        return PD_OK; /* asking twice is no error */
    return err == PD_OK ? run_cancel(tx, run_id, r, reason, why) : err;
}

/* One page of the job's runs that have not ended, by id above `after`. */
#define RUNS_AT_ONCE 256
static enum pd_err live_runs(struct store_tx *tx, int64_t job_id, int64_t after, int64_t ids[RUNS_AT_ONCE],
                             int *ret_n, struct pd_why *why)
{
    sqlite3_stmt *st;
    int n = 0;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT id FROM run WHERE job_id = ?1 AND id > ?2 AND state <> 'ended' ORDER BY id LIMIT ?3",
                "iii", job_id, after, (int64_t)RUNS_AT_ONCE);

    while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK)
        ids[n++] = sqlite3_column_int64(st, 0);
    *ret_n = n;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum job_command { COMMAND_CANCEL, COMMAND_PAUSE, COMMAND_RESUME };

static enum pd_err run_command(struct store_tx *tx, int64_t id, enum job_command command, const char *reason,
                               bool *ret_works, struct pd_why *why)
{
    struct run_state r;
    enum pd_err err = run_state(tx, id, &r, why);

    if (err != PD_OK)
        return err;
    if (r.state == SPEC_RUN_STARTING || r.state == SPEC_RUN_RUNNING)
        *ret_works = true;
    switch (command) {
    case COMMAND_CANCEL:
        return r.state == SPEC_RUN_CANCELLING ? PD_OK : run_cancel(tx, id, r, reason, why);
    case COMMAND_PAUSE:
        /* One with a worker is paused by the supervisor, once its checkpoint is written. */
        if (r.state == SPEC_RUN_QUEUED || r.state == SPEC_RUN_PREEMPTED)
            return run_move(tx, id, &r, SPEC_RUN_PAUSED, SPEC_OUTCOME_CANCELLED, "paused with its job", why);
        return PD_OK;
    case COMMAND_RESUME:
        return r.state == SPEC_RUN_PAUSED
                   ? run_move(tx, id, &r, SPEC_RUN_QUEUED, SPEC_OUTCOME_CANCELLED, NULL, why)
                   : PD_OK;
    }
    return PD_OK;
}

static enum pd_err job_command(struct store_tx *tx, int64_t job_id, int64_t version, enum job_command command,
                               enum spec_job_state to, const char *reason, struct pd_why *why)
{
    int64_t ids[RUNS_AT_ONCE], after = 0;
    struct job_state j;
    bool works = false;
    enum pd_err err;
    int n;

    err = job_state(tx, job_id, &j, why);
    if (err == PD_OK)
        err = check_version_of("job", job_id, j.version, version, why);
    if (err == PD_OK && j.state == to && command != COMMAND_RESUME)
        return PD_OK; /* asking twice is no error */
    if (err == PD_OK)
        err = job_move(tx, job_id, j.state, to, reason ? reason : "", why);
    if (err == PD_OK && command == COMMAND_CANCEL) /* those not made yet never will be */
        err = db_run(tx->db, why, "UPDATE job SET planned = runs WHERE id = ?1", "i", job_id);
    if (err != PD_OK)
        return err;
    do {
        err = live_runs(tx, job_id, after, ids, &n, why);
        for (int i = 0; err == PD_OK && i < n; i++) {
            err = run_command(tx, ids[i], command, reason, &works, why);
            after = ids[i];
        }
    } while (err == PD_OK && n == RUNS_AT_ONCE);
    if (err != PD_OK)
        return err;
    if (command == COMMAND_CANCEL) {
        /* No run left, or there was none: then nothing else will end the job. */
        err = job_state(tx, job_id, &j, why);
        if (err == PD_OK && j.state == SPEC_JOB_CANCELLING && j.ended == j.runs)
            err = job_move(tx, job_id, j.state, SPEC_JOB_CANCELLED, NULL, why);
    }
    if (err == PD_OK && command == COMMAND_RESUME && works) /* resumed before its worker had left */
        err = job_move(tx, job_id, SPEC_JOB_QUEUED, SPEC_JOB_RUNNING, NULL, why);
    return err;
}

enum pd_err store_job_cancel(struct store_tx *tx, int64_t job_id, int64_t version, const char *reason,
                             struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_CANCEL, SPEC_JOB_CANCELLING, reason, why);
}

enum pd_err store_job_pause(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_PAUSE, SPEC_JOB_PAUSED, NULL, why);
}

enum pd_err store_job_resume(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_RESUME, SPEC_JOB_QUEUED, NULL, why);
}

enum pd_err store_job_retry(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    struct job_state j;
    enum pd_err err = job_state(tx, job_id, &j, why);

    if (err == PD_OK)
        err = check_version_of("job", job_id, j.version, version, why);
    if (err == PD_OK && (spec_job_state_final(j.state) || j.state == SPEC_JOB_CANCELLING))
        err = pd_fail(why, PD_ERR_CONFLICT, "job %lld is %s: send its document again to run it anew",
                      (long long)job_id, spec_job_state_name(j.state));
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE run SET restarts = 0, not_before_us = 0, version = version + 1 WHERE job_id = ?1 AND "
            "state <> 'ended' AND (restarts > 0 OR not_before_us > 0)",
            "i", job_id);
    return err == PD_OK ? store_event_add(tx, "job.retry", job_id, 0, 0, "{}", NULL, why) : err;
}

enum pd_err store_job_update(struct store_tx *tx, int64_t job_id, int64_t version,
                             const struct store_job_patch *patch, int64_t *ret_version, struct pd_why *why)
{
    int64_t priority = patch->priority ? *patch->priority : 0;
    struct job_state j;
    enum pd_err err = job_state(tx, job_id, &j, why);

    if (err == PD_OK)
        err = check_version_of("job", job_id, j.version, version, why);
    if (err == PD_OK)
        err = db_run(tx->db, why,
                     "UPDATE job SET name = coalesce(?2, name), tags = coalesce(?3, tags), notes = "
                     "coalesce(?4, notes), "
                     "priority = CASE WHEN ?5 THEN ?6 ELSE priority END, version = version + 1 WHERE id = ?1",
                     "itttii", job_id, patch->name, patch->tags, patch->notes,
                     (int64_t)(patch->priority != NULL), priority);
    if (err == PD_OK && patch->priority)
        err = db_run(
            tx->db, why,
            "UPDATE run SET priority = ?2, version = version + 1 WHERE job_id = ?1 AND state <> 'ended'",
            "ii", job_id, priority);
    if (err == PD_OK)
        err = store_event_add(tx, "job.changed", job_id, 0, 0, "{}", NULL, why);
    if (err == PD_OK && ret_version)
        *ret_version = j.version + 1;
    return err;
}

/* ---- attempts ------------------------------------------------------------------------------- */

static enum pd_err allocate(struct store_tx *tx, int64_t run_id, int n, const char *devices,
                            struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (const char *at = devices; err == PD_OK && *at;) {
        size_t len = strcspn(at, ",");
        char name[64];

        if (len >= sizeof name)
            return pd_fail(why, PD_ERR_INTERNAL, "a device name is too long");
        memcpy(name, at, len);
        name[len] = '\0';
        err = db_run(tx->db, why,
                     "INSERT INTO allocation (device, from_us, run_id, attempt) VALUES (?1, ?2, ?3, ?4)",
                     "tiii", name, tx->clock_us, run_id, (int64_t)n);
        at += len + (at[len] == ',');
    }
    return err;
}

enum pd_err store_attempt_insert(struct store_tx *tx, const struct store_attempt_new *a, int *ret_n,
                                 struct pd_why *why)
{
    struct run_state r;
    enum pd_err err;
    int n;

    err = run_state(tx, a->run_id, &r, why);
    if (err != PD_OK)
        return err;
    n = r.attempts + 1;
    err = db_run(tx->db, why,
                 "INSERT INTO attempt (run_id, n, state, devices, token_sha256, start_step, step, "
                 "created_us, clock_us) VALUES (?1, "
                 "?2, 'starting', ?3, ?4, ?5, ?5, ?6, ?7)",
                 "iitbiii", a->run_id, (int64_t)n, a->devices, a->token_sha256,
                 (int64_t)sizeof a->token_sha256, a->start_step, tx->now_us, tx->clock_us);
    if (err == PD_OK)
        err = db_run(tx->db, why, "UPDATE run SET attempts = ?2, step = ?3 WHERE id = ?1", "iii", a->run_id,
                     (int64_t)n, a->start_step);
    if (err == PD_OK)
        err = allocate(tx, a->run_id, n, a->devices, why);
    if (err == PD_OK)
        err = move_event(tx, "attempt.state", r.job_id, a->run_id, n, NULL, "starting", "devices", a->devices,
                         NULL, why);
    r.attempts = n;
    if (err == PD_OK)
        err = run_move(tx, a->run_id, &r, SPEC_RUN_STARTING, SPEC_OUTCOME_CANCELLED, NULL, why);
    if (err == PD_OK)
        *ret_n = n;
    return err;
}

enum pd_err store_attempt_process(struct store_tx *tx, int64_t run_id, int n, int64_t pid, int64_t pid_start,
                                  struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE attempt SET pid = ?3, pid_start = ?4 WHERE run_id = ?1 AND n = ?2",
                  "iiii", run_id, (int64_t)n, pid, pid_start);
}

enum pd_err store_attempt_move(struct store_tx *tx, int64_t run_id, int n, enum spec_attempt_state to,
                               enum spec_cause cause, const char *message, int exit_status,
                               struct pd_why *why)
{
    const char *cause_name = to == SPEC_ATTEMPT_ENDED ? spec_cause_name(cause) : "";
    enum spec_attempt_state from;
    sqlite3_stmt *st;
    int64_t job_id, held_us;
    enum pd_err err;

    err = db_bind(tx->db, &st, why,
                  "SELECT a.state, r.job_id, a.clock_us FROM attempt a JOIN run r ON r.id = a.run_id WHERE "
                  "a.run_id = ?1 "
                  "AND a.n = ?2",
                  "ii", run_id, (int64_t)n);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "run %lld has no attempt %d", (long long)run_id, n);
    if (err != PD_OK)
        return err;
    job_id = sqlite3_column_int64(st, 1);
    held_us = tx->clock_us - sqlite3_column_int64(st, 2);
    held_us = held_us > 0 ? held_us : 0;
    if (!spec_attempt_state_parse(db_text(st, 0), &from))
        err = pd_fail(why, PD_ERR_CORRUPT, "attempt %lld/%d is in no known state", (long long)run_id, n);
    db_done(st);
    if (err == PD_OK && !spec_attempt_move_allowed(from, to))
        err = pd_fail(why, PD_ERR_CONFLICT, "attempt %lld/%d is %s: it cannot become %s", (long long)run_id,
                      n, spec_attempt_state_name(from), spec_attempt_state_name(to));
    if (err != PD_OK)
        return err;
    err = db_run(tx->db, why,
                 "UPDATE attempt SET state = ?3, cause = ?4, message = coalesce(?5, message), exit_status = "
                 "CASE WHEN ?6 >= "
                 "0 THEN ?6 ELSE exit_status END, started_us = CASE WHEN ?7 AND started_us = 0 THEN max(?9, "
                 "created_us) ELSE "
                 "started_us END, ended_us = CASE WHEN ?8 THEN max(?9, created_us, started_us) ELSE 0 END, "
                 "held_us = CASE WHEN ?8 THEN ?10 ELSE 0 END WHERE run_id = ?1 AND n = ?2",
                 "iitttiiiii", run_id, (int64_t)n, spec_attempt_state_name(to), cause_name, message,
                 (int64_t)exit_status, (int64_t)(to == SPEC_ATTEMPT_RUNNING),
                 (int64_t)(to == SPEC_ATTEMPT_ENDED), tx->now_us, held_us);
    if (err == PD_OK && to == SPEC_ATTEMPT_ENDED) {
        err = db_run(tx->db, why,
                     "UPDATE allocation SET to_us = max(from_us, ?3) WHERE run_id = ?1 AND attempt = ?2",
                     "iii", run_id, (int64_t)n, tx->clock_us);
        if (err == PD_OK)
            err = db_run(tx->db, why, "UPDATE run SET used_us = used_us + ?2 WHERE id = ?1", "ii", run_id,
                         held_us);
    }
    if (err == PD_OK)
        err = move_event(tx, "attempt.state", job_id, run_id, n, spec_attempt_state_name(from),
                         spec_attempt_state_name(to), "cause", cause_name, message, why);
    return err;
}

enum pd_err store_attempt_set_start(struct store_tx *tx, int64_t run_id, int n, int64_t step,
                                    struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE attempt SET start_step = ?3 WHERE run_id = ?1 AND n = ?2", "iii",
                  run_id, (int64_t)n, step);
}

enum pd_err store_attempt_progressed(struct store_tx *tx, int64_t run_id, int n, bool *ret,
                                     struct pd_why *why)
{
    int64_t count = 0;
    enum pd_err err =
        db_int(tx->db, &count, why, "SELECT count(*) FROM checkpoint WHERE run_id = ?1 AND attempt = ?2",
               "ii", run_id, (int64_t)n);

    if (err == PD_OK)
        *ret = count > 0;
    return err;
}

enum pd_err store_attempt_progress(struct store_tx *tx, int64_t run_id, int n, int64_t step, int64_t total,
                                   int64_t log_bytes, struct pd_why *why)
{
    enum pd_err err =
        db_run(tx->db, why,
               "UPDATE attempt SET step = CASE WHEN ?3 >= 0 THEN ?3 ELSE step END, log_bytes = CASE WHEN ?4 "
               ">= 0 THEN ?4 ELSE log_bytes END WHERE run_id = ?1 AND n = ?2",
               "iiii", run_id, (int64_t)n, step, log_bytes);

    if (err == PD_OK && (step >= 0 || total >= 0))
        err = db_run(tx->db, why,
                     "UPDATE run SET step = CASE WHEN ?3 >= 0 THEN ?3 ELSE step END, total_steps = CASE WHEN "
                     "?4 >= 0 THEN "
                     "?4 ELSE total_steps END, version = version + 1 WHERE id = ?1 AND attempts = ?2",
                     "iiii", run_id, (int64_t)n, step, total);
    return err;
}

enum pd_err store_attempt_ack(struct store_tx *tx, int64_t run_id, int n, int64_t seq, struct pd_why *why)
{
    int64_t acked;
    enum pd_err err =
        db_int(tx->db, &acked, why, "SELECT acked_seq FROM attempt WHERE run_id = ?1 AND n = ?2", "ii",
               run_id, (int64_t)n);

    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "run %lld has no attempt %d", (long long)run_id, n);
    if (err != PD_OK)
        return err;
    if (seq <= acked)
        return pd_fail(why, PD_ERR_EXISTS, "frame %lld was stored before", (long long)seq);
    if (seq != acked + 1)
        return pd_fail(why, PD_ERR_CONFLICT, "frame %lld follows %lld: a gap", (long long)seq,
                       (long long)acked);
    return db_run(tx->db, why, "UPDATE attempt SET acked_seq = ?3 WHERE run_id = ?1 AND n = ?2", "iii",
                  run_id, (int64_t)n, seq);
}
