/* Jobs, runs and attempts. Moves: the one function of each level checks the table (daemon/job/state.h),
 * writes the row and its event. A job follows its runs (job_follow), in the same transaction. */
#include <stdio.h>
#include <string.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

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
enum pd_err tx_move_event(struct store_tx *tx, const char *kind, int64_t job_id, int64_t run_id,
                          int64_t attempt, const char *from, const char *to, const char *extra_key,
                          const char *extra, const char *reason, struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    if (from)
        pd_json_kv_str(&b, "from", from);
    pd_json_kv_str(&b, "to", to);
    if (extra && *extra)
        pd_json_kv_str(&b, extra_key, extra);
    if (reason && *reason)
        pd_json_kv_str(&b, "reason", reason);
    pd_json_close(&b, '}');
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
        "created_us, document, planned, points, trials, concurrency, metric, mode, sweep, kind) VALUES "
        "('queued', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, max(1, ?11), max(1, ?12), max(1, ?13), ?14, "
        "?15, "
        "?16, ?17, ?18)",
        "tttttttiitiiiitttt", job->name, job->experiment, or_empty(job->template_name),
        job->tags ? job->tags : "{}", or_empty(job->notes), or_empty(job->register_name),
        or_empty(job->owner), (int64_t)job->priority, tx->now_us, job->document, job->planned, job->points,
        job->trials, job->concurrency, job->metric ? job->metric : "loss/val", job->maximise ? "max" : "min",
        or_empty(job->sweep), job_kind_info(job->kind)->name);
    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    err = tx_move_event(tx, "job.state", id, 0, 0, NULL, "queued", "name", job->name, NULL, why);
    if (err == PD_OK)
        *ret_id = id;
    return err;
}

enum pd_err tx_job_read(struct store_tx *tx, int64_t id, struct tx_job *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        tx->db, &st, why,
        "SELECT state, version, runs, runs_ended, runs_failed, planned, kind, runs_deleted FROM job WHERE id "
        "= ?1 AND deleted_us = 0",
        "i", id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no job %lld", (long long)id);
    if (err != PD_OK)
        return err;
    *ret = (struct tx_job){.version = sqlite3_column_int64(st, 1),
                           .runs = sqlite3_column_int64(st, 2),
                           .ended = sqlite3_column_int64(st, 3),
                           .failed = sqlite3_column_int64(st, 4),
                           .planned = sqlite3_column_int64(st, 5),
                           .deleted = sqlite3_column_int64(st, 7)};
    if (!job_state_parse(db_text(st, 0), &ret->state) || !job_kind_parse(db_text(st, 6), &ret->kind))
        err = pd_fail(why, PD_ERR_CORRUPT, "job %lld has an unknown state or kind", (long long)id);
    db_done(st);
    return err;
}

enum pd_err tx_job_move(struct store_tx *tx, int64_t id, enum job_state from, enum job_state to,
                        const char *reason, struct pd_why *why)
{
    enum pd_err err;
    bool final = job_state_final(to);

    if (!job_move_allowed(from, to))
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld is %s: it cannot become %s", (long long)id,
                       job_state_name(from), job_state_name(to));
    if (job_state_final(from)) { /* it is archived no longer, which its runs show, too */
        err =
            db_run(tx->db, why,
                   "UPDATE run SET version = version + 1 WHERE job_id = ?1 AND (SELECT archived_us FROM job "
                   "WHERE id = ?1) > 0",
                   "i", id);
        if (err != PD_OK)
            return err;
    }
    err = db_run(tx->db, why,
                 "UPDATE job SET state = ?2, version = version + 1, reason = coalesce(?3, reason), "
                 "started_us = CASE WHEN "
                 "?4 AND started_us = 0 THEN max(?6, created_us) ELSE started_us END, ended_us = CASE WHEN "
                 "?5 THEN max(?6, "
                 "created_us, started_us) ELSE 0 END, archived_us = CASE WHEN ?5 THEN archived_us ELSE 0 END "
                 "WHERE id = ?1",
                 "ittiii", id, job_state_name(to), reason, (int64_t)(to == JOB_RUNNING), (int64_t) final,
                 tx->now_us);
    if (err != PD_OK)
        return err;
    return tx_move_event(tx, "job.state", id, 0, 0, job_state_name(from), job_state_name(to), NULL, NULL,
                         reason, why);
}

enum pd_err tx_check_version(const char *what, int64_t id, int64_t have, int64_t wanted, struct pd_why *why)
{
    if (wanted >= 0 && wanted != have)
        return pd_fail(why, PD_ERR_STALE, "%s %lld has version %lld, not %lld", what, (long long)id,
                       (long long)have, (long long)wanted);
    return PD_OK;
}

/* Why a job failed: in the words of the first of its runs that did. */
static enum pd_err failed_reason(struct store_tx *tx, int64_t job_id, const struct tx_job *j,
                                 struct pd_buf *out, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(tx->db, &st, why,
                              "SELECT id, reason FROM run WHERE job_id = ?1 AND outcome IN ('failed', "
                              "'lost') ORDER BY ended_us, id "
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
static enum pd_err job_follow_end(struct store_tx *tx, int64_t job_id, enum job_outcome outcome,
                                  struct pd_why *why)
{
    struct tx_job j;
    struct pd_buf reason;
    enum pd_err err;
    int64_t cancelled;
    enum job_state to;

    err = db_run(
        tx->db, why,
        "UPDATE job SET runs_ended = runs_ended + 1, runs_failed = runs_failed + ?2, version = version + 1 "
        "WHERE id = ?1",
        "ii", job_id, (int64_t)(outcome == JOB_OUTCOME_FAILED || outcome == JOB_OUTCOME_LOST));
    if (err == PD_OK)
        err = tx_job_read(tx, job_id, &j, why);
    if (err != PD_OK || j.ended < j.planned || job_state_final(j.state))
        return err;
    if (j.state == JOB_CANCELLING)
        return tx_job_move(tx, job_id, j.state, JOB_CANCELLED, NULL, why);
    err = db_int(tx->db, &cancelled, why,
                 "SELECT count(*) FROM run WHERE job_id = ?1 AND outcome = 'cancelled'", "i", job_id);
    if (err != PD_OK)
        return err;
    if (cancelled == j.runs - j.deleted) {
        /* Each run that is still there was cancelled by itself: so is the job. */
        err = tx_job_move(tx, job_id, j.state, JOB_CANCELLING, "all runs were cancelled", why);
        return err == PD_OK ? tx_job_move(tx, job_id, JOB_CANCELLING, JOB_CANCELLED, NULL, why) : err;
    }
    to = j.failed ? JOB_FAILED : JOB_DONE;
    /* From queued or paused (a run ended before it started, or while the others were paused) the
     * table knows only the way through running. */
    if (j.state == JOB_PAUSED) {
        err = tx_job_move(tx, job_id, JOB_PAUSED, JOB_QUEUED, NULL, why);
        j.state = JOB_QUEUED;
    }
    if (err == PD_OK && j.state == JOB_QUEUED)
        err = tx_job_move(tx, job_id, JOB_QUEUED, JOB_RUNNING, NULL, why);
    pd_buf_init(&reason, 0);
    if (err == PD_OK && j.failed)
        err = failed_reason(tx, job_id, &j, &reason, why);
    if (err == PD_OK)
        err = tx_job_move(tx, job_id, JOB_RUNNING, to, reason.data, why);
    pd_buf_done(&reason);
    return err == PD_OK && to == JOB_DONE ? tx_job_register(tx, job_id, why) : err;
}

/* ---- runs ----------------------------------------------------------------------------------- */

enum pd_err store_run_insert(struct store_tx *tx, int64_t job_id, const struct store_run_new *run,
                             int64_t *ret_id, struct pd_why *why)
{
    struct tx_job j;
    enum pd_err err;
    const char *state;
    int64_t id, n;
    bool waits;

    err = tx_job_read(tx, job_id, &j, why);
    if (err != PD_OK)
        return err;
    n = j.runs;
    waits = job_kind_info(j.kind)->worker;
    state = job_run_state_name(waits ? JOB_RUN_QUEUED : JOB_RUN_RUNNING);
    err = db_run(
        tx->db, why,
        "INSERT INTO run (job_id, n, device, slots, threads, priority, max_restarts, total_steps, "
        "time_limit_us, warn_before_us, created_us, config_digest, plan_digest, sweep, document, point, "
        "trial, seed, clock_us, state, started_us, heard_us) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, "
        "?10, ?11, ?12, ?13, "
        "?14, ?15, "
        "?16, ?17, ?18, ?19, ?20, ?21, ?22)",
        "iitiiiiiiiittttiiiitii", job_id, n, run->device, (int64_t)run->slots, (int64_t)run->threads,
        (int64_t)run->priority, (int64_t)run->max_restarts, run->total_steps, run->time_limit_us,
        run->warn_before_us, tx->now_us, or_empty(run->config_digest), or_empty(run->plan_digest),
        run->sweep ? run->sweep : "{}", run->document, run->point, run->trial, run->seed, tx->clock_us, state,
        waits ? (int64_t)0 : tx->now_us, waits ? (int64_t)0 : tx->clock_us);
    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    err = db_run(tx->db, why,
                 "UPDATE job SET runs = runs + 1, planned = max(planned, runs + 1), version = version + 1 "
                 "WHERE id = ?1",
                 "i", job_id);
    if (err == PD_OK)
        err = tx_move_event(tx, "run.state", job_id, id, 0, NULL, state, NULL, NULL, NULL, why);
    if (err == PD_OK && !waits && j.state == JOB_QUEUED)
        err = tx_job_move(tx, job_id, j.state, JOB_RUNNING, NULL, why);
    if (err == PD_OK)
        *ret_id = id;
    return err;
}

enum pd_err tx_run_read(struct store_tx *tx, int64_t id, struct tx_run *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT r.state, r.job_id, r.version, r.attempts, r.outcome, j.kind FROM run r JOIN job j ON "
                "j.id = r.job_id AND j.deleted_us = 0 WHERE r.id = ?1",
                "i", id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no run %lld", (long long)id);
    if (err != PD_OK)
        return err;
    *ret = (struct tx_run){.job_id = sqlite3_column_int64(st, 1),
                           .version = sqlite3_column_int64(st, 2),
                           .attempts = sqlite3_column_int(st, 3)};
    if (!job_run_state_parse(db_text(st, 0), &ret->state) || !job_kind_parse(db_text(st, 5), &ret->kind) ||
        (ret->state == JOB_RUN_ENDED && !job_outcome_parse(db_text(st, 4), &ret->outcome)))
        err = pd_fail(why, PD_ERR_CORRUPT, "run %lld has an unknown state or kind", (long long)id);
    db_done(st);
    return err;
}

enum pd_err store_run_state(struct store_tx *tx, int64_t run_id, enum job_run_state *ret, struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err == PD_OK)
        *ret = r.state;
    return err;
}

/* A run that had ended goes on: its job's counters, and the job too if it had failed. */
static enum pd_err job_follow_reopened(struct store_tx *tx, int64_t job_id, enum job_run_state to,
                                       struct pd_why *why)
{
    struct tx_job j;
    enum pd_err err = db_run(tx->db, why,
                             "UPDATE job SET runs_ended = runs_ended - 1, runs_failed = runs_failed - 1, "
                             "version = version + 1 WHERE id = ?1",
                             "i", job_id);

    if (err == PD_OK)
        err = tx_job_read(tx, job_id, &j, why);
    if (err != PD_OK || !job_state_final(j.state))
        return err;
    return tx_job_move(tx, job_id, j.state, to == JOB_RUN_RUNNING ? JOB_RUNNING : JOB_QUEUED, "", why);
}

enum pd_err tx_run_move(struct store_tx *tx, int64_t id, const struct tx_run *r, enum job_run_state to,
                        enum job_outcome outcome, const char *reason, struct pd_why *why)
{
    const char *outcome_name = to == JOB_RUN_ENDED ? job_outcome_name(outcome) : "";
    struct tx_job j;
    enum pd_err err;

    if (!job_run_move_allowed(r->state, to))
        return pd_fail(why, PD_ERR_CONFLICT, "run %lld is %s: it cannot become %s", (long long)id,
                       job_run_state_name(r->state), job_run_state_name(to));
    /* A run began when its attempt did, before its first point; however the clock jumps, no time lies before
     * the one that must come first. */
    err = db_run(
        tx->db, why,
        "UPDATE run SET state = ?2, outcome = ?3, version = version + 1, reason = CASE WHEN ?3 = "
        "'cancelled' AND state = 'cancelling' AND reason <> '' THEN reason ELSE ?4 END, started_us = "
        "CASE WHEN ?5 AND started_us = 0 THEN max(coalesce((SELECT nullif(a.started_us, 0) FROM "
        "attempt a WHERE a.run_id = ?1 AND a.n = attempts), ?7), created_us) ELSE started_us END, "
        "ended_us = CASE WHEN ?6 THEN max(?7, created_us, started_us) ELSE 0 END, archived_us = 0 WHERE id "
        "= ?1",
        "itttiii", id, job_run_state_name(to), outcome_name, or_empty(reason),
        (int64_t)(to == JOB_RUN_RUNNING), (int64_t)(to == JOB_RUN_ENDED), tx->now_us);
    if (err == PD_OK)
        err = tx_move_event(tx, "run.state", r->job_id, id, r->attempts, job_run_state_name(r->state),
                            job_run_state_name(to), "outcome", outcome_name, reason, why);
    if (err == PD_OK && to == JOB_RUN_ENDED)
        return job_follow_end(tx, r->job_id, outcome, why);
    if (err == PD_OK && r->state == JOB_RUN_ENDED)
        return job_follow_reopened(tx, r->job_id, to, why);
    if (err == PD_OK && to == JOB_RUN_STARTING) {
        err = tx_job_read(tx, r->job_id, &j, why);
        if (err == PD_OK && j.state == JOB_QUEUED)
            err = tx_job_move(tx, r->job_id, j.state, JOB_RUNNING, NULL, why);
    }
    return err;
}

enum pd_err store_run_move(struct store_tx *tx, int64_t run_id, enum job_run_state to,
                           enum job_outcome outcome, const char *reason, struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    return err == PD_OK ? tx_run_move(tx, run_id, &r, to, outcome, reason, why) : err;
}

enum pd_err store_run_set_reason(struct store_tx *tx, int64_t run_id, const char *reason, struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE run SET reason = ?2, version = version + 1 WHERE id = ?1", "it",
                  run_id, reason);
}

enum pd_err store_run_restarts(struct store_tx *tx, int64_t run_id, int *ret, struct pd_why *why)
{
    int64_t restarts = 0;
    enum pd_err err = db_int(tx->db, &restarts, why, "SELECT restarts FROM run WHERE id = ?1", "i", run_id);

    if (err == PD_OK)
        *ret = (int)restarts;
    return err;
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
    struct tx_job j;
    int64_t priority = 0;
    enum pd_err err = tx_job_read(tx, job_id, &j, why);

    if (err == PD_OK)
        err = db_int(tx->db, &priority, why, "SELECT priority FROM job WHERE id = ?1", "i", job_id);
    if (err != PD_OK)
        return err;
    if (j.runs >= j.planned || (j.state != JOB_QUEUED && j.state != JOB_RUNNING))
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld accepts no further runs", (long long)job_id);
    *ret_n = j.runs;
    *ret_priority = (int)priority;
    return PD_OK;
}
