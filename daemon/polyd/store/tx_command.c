/* What clients ask of jobs and runs: cancel, pause, resume, retry, change. */
#include "daemon/polyd/store/tx_private.h"

static enum pd_err run_cancel(struct store_tx *tx, int64_t id, struct tx_run r, const char *reason,
                              struct pd_why *why)
{
    bool has_worker =
        job_kind_info(r.kind)->worker && (r.state == JOB_RUN_STARTING || r.state == JOB_RUN_RUNNING);
    enum pd_err err = tx_run_move(tx, id, &r, JOB_RUN_CANCELLING, JOB_OUTCOME_CANCELLED, reason, why);

    if (err != PD_OK || has_worker)
        return err; /* the supervisor ends it when the worker has gone */
    r.state = JOB_RUN_CANCELLING;
    return tx_run_move(tx, id, &r, JOB_RUN_ENDED, JOB_OUTCOME_CANCELLED, reason, why);
}

enum pd_err store_run_cancel(struct store_tx *tx, int64_t run_id, int64_t version, const char *reason,
                             struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r.version, version, why);
    if (err == PD_OK && r.state == JOB_RUN_CANCELLING)
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

enum pd_err tx_check_carried_out(const char *what, int64_t id, enum job_kind kind, struct pd_why *why)
{
    return job_kind_info(kind)->worker ? PD_OK
                                       : pd_fail(why, PD_ERR_CONFLICT,
                                                 "%s %lld is %s: an external client executes it, so polyd "
                                                 "can neither pause nor repeat it",
                                                 what, (long long)id, job_kind_info(kind)->name);
}

enum job_command { COMMAND_CANCEL, COMMAND_PAUSE, COMMAND_RESUME };

static enum pd_err run_command(struct store_tx *tx, int64_t id, enum job_command command, const char *reason,
                               bool *ret_works, struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = tx_run_read(tx, id, &r, why);

    if (err != PD_OK)
        return err;
    if (r.state == JOB_RUN_STARTING || r.state == JOB_RUN_RUNNING)
        *ret_works = true;
    switch (command) {
    case COMMAND_CANCEL:
        return r.state == JOB_RUN_CANCELLING ? PD_OK : run_cancel(tx, id, r, reason, why);
    case COMMAND_PAUSE:
        /* One with a worker is paused by the supervisor, once its checkpoint is written. */
        if (r.state == JOB_RUN_QUEUED || r.state == JOB_RUN_PREEMPTED)
            return tx_run_move(tx, id, &r, JOB_RUN_PAUSED, JOB_OUTCOME_CANCELLED, "paused with its job", why);
        return PD_OK;
    case COMMAND_RESUME:
        return r.state == JOB_RUN_PAUSED
                   ? tx_run_move(tx, id, &r, JOB_RUN_QUEUED, JOB_OUTCOME_CANCELLED, NULL, why)
                   : PD_OK;
    }
    return PD_OK;
}

static enum pd_err job_command(struct store_tx *tx, int64_t job_id, int64_t version, enum job_command command,
                               enum job_state to, const char *reason, struct pd_why *why)
{
    int64_t ids[RUNS_AT_ONCE], after = 0;
    struct tx_job j;
    bool works = false;
    enum pd_err err;
    int n;

    err = tx_job_read(tx, job_id, &j, why);
    if (err == PD_OK)
        err = tx_check_version("job", job_id, j.version, version, why);
    if (err == PD_OK && command != COMMAND_CANCEL)
        err = tx_check_carried_out("job", job_id, j.kind, why);
    if (err == PD_OK && j.state == to && command != COMMAND_RESUME)
        return PD_OK; /* asking twice is no error */
    /* A failed job may become queued, too, but only by a retry, which queues its runs. */
    if (err == PD_OK && command == COMMAND_RESUME && j.state != JOB_PAUSED)
        err = pd_fail(why, PD_ERR_CONFLICT, "job %lld is %s: only a paused job can be resumed",
                      (long long)job_id, job_state_name(j.state));
    if (err == PD_OK)
        err = tx_job_move(tx, job_id, j.state, to, reason ? reason : "", why);
    if (err == PD_OK && command == COMMAND_RESUME) /* and those that were paused by themselves */
        err = db_run(tx->db, why, "UPDATE run SET held = 0 WHERE job_id = ?1", "i", job_id);
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
        err = tx_job_read(tx, job_id, &j, why);
        if (err == PD_OK && j.state == JOB_CANCELLING && j.ended == j.runs)
            err = tx_job_move(tx, job_id, j.state, JOB_CANCELLED, NULL, why);
    }
    if (err == PD_OK && command == COMMAND_RESUME && works) /* resumed before its worker had left */
        err = tx_job_move(tx, job_id, JOB_QUEUED, JOB_RUNNING, NULL, why);
    return err;
}

enum pd_err store_job_cancel(struct store_tx *tx, int64_t job_id, int64_t version, const char *reason,
                             struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_CANCEL, JOB_CANCELLING, reason, why);
}

enum pd_err store_job_pause(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_PAUSE, JOB_PAUSED, NULL, why);
}

enum pd_err store_job_resume(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    return job_command(tx, job_id, version, COMMAND_RESUME, JOB_QUEUED, NULL, why);
}

/* ---- one run ---------------------------------------------------------------------------------- */

/* A run with its job, for a command that applies only to runs executed by polyd. */
static enum pd_err read_both(struct store_tx *tx, int64_t run_id, int64_t version, struct tx_run *r,
                             struct tx_job *j, struct pd_why *why)
{
    enum pd_err err = tx_run_read(tx, run_id, r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r->version, version, why);
    if (err == PD_OK)
        err = tx_check_carried_out("run", run_id, r->kind, why);
    return err == PD_OK ? tx_job_read(tx, r->job_id, j, why) : err;
}

/* Asked for, or taken back, while a worker has the run: the supervisor looks at it. */
static enum pd_err set_held(struct store_tx *tx, int64_t run_id, bool held, struct pd_why *why)
{
    return db_run(tx->db, why,
                  "UPDATE run SET held = ?2, reason = ?3, version = version + 1 WHERE id = ?1 AND held <> ?2",
                  "iit", run_id, (int64_t)held, held ? "pausing: its worker writes a checkpoint" : "");
}

enum pd_err store_run_pause(struct store_tx *tx, int64_t run_id, int64_t version, struct pd_why *why)
{
    struct tx_run r;
    struct tx_job j;
    enum pd_err err = read_both(tx, run_id, version, &r, &j, why);

    if (err != PD_OK || r.state == JOB_RUN_PAUSED)
        return err; /* asking twice is no error */
    if (r.state == JOB_RUN_ENDED || r.state == JOB_RUN_CANCELLING)
        return pd_fail(why, PD_ERR_CONFLICT, "run %lld is %s: it cannot be paused", (long long)run_id,
                       job_run_state_name(r.state));
    if (j.planned == 1) /* the run is the job */
        return store_job_pause(tx, r.job_id, -1, why);
    err = set_held(tx, run_id, true, why);
    if (err == PD_OK && (r.state == JOB_RUN_QUEUED || r.state == JOB_RUN_PREEMPTED))
        err = tx_run_move(tx, run_id, &r, JOB_RUN_PAUSED, JOB_OUTCOME_CANCELLED, "paused", why);
    return err;
}

enum pd_err store_run_resume(struct store_tx *tx, int64_t run_id, int64_t version, struct pd_why *why)
{
    struct tx_run r;
    struct tx_job j;
    int64_t held;
    enum pd_err err = read_both(tx, run_id, version, &r, &j, why);

    if (err == PD_OK)
        err = db_int(tx->db, &held, why, "SELECT held FROM run WHERE id = ?1", "i", run_id);
    if (err != PD_OK)
        return err;
    if (j.state == JOB_PAUSED && j.planned == 1)
        return store_job_resume(tx, r.job_id, -1, why);
    if (j.state == JOB_PAUSED)
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld is paused as a whole: resume the job",
                       (long long)r.job_id);
    if (r.state != JOB_RUN_PAUSED && !(held && (r.state == JOB_RUN_STARTING || r.state == JOB_RUN_RUNNING)))
        return pd_fail(why, PD_ERR_CONFLICT, "run %lld is %s: only a paused run can be resumed",
                       (long long)run_id, job_run_state_name(r.state));
    err = set_held(tx, run_id, false, why);
    if (err == PD_OK && r.state == JOB_RUN_PAUSED)
        err = tx_run_move(tx, run_id, &r, JOB_RUN_QUEUED, JOB_OUTCOME_CANCELLED, "", why);
    return err;
}

enum pd_err store_run_pause_wanted(struct store_tx *tx, int64_t run_id, bool *ret, struct pd_why *why)
{
    int64_t wanted = 0;
    enum pd_err err = db_int(tx->db, &wanted, why, DB_PAUSE_WANTED, "i", run_id);

    if (err == PD_OK)
        *ret = wanted;
    return err;
}

/* ---- changes ---------------------------------------------------------------------------------- */

enum pd_err store_job_update(struct store_tx *tx, int64_t job_id, int64_t version,
                             const struct store_job_patch *patch, int64_t *ret_version, struct pd_why *why)
{
    int64_t priority = patch->priority ? *patch->priority : 0;
    struct tx_job j;
    enum pd_err err = tx_job_read(tx, job_id, &j, why);

    if (err == PD_OK)
        err = tx_check_version("job", job_id, j.version, version, why);
    if (err == PD_OK && patch->priority)
        err = tx_check_carried_out("job", job_id, j.kind, why);
    if (err == PD_OK)
        err = db_run(tx->db, why,
                     "UPDATE job SET name = coalesce(?2, name), tags = coalesce(?3, tags), notes = "
                     "coalesce(?4, notes), "
                     "priority = CASE WHEN ?5 THEN ?6 ELSE priority END, version = version + 1 WHERE id = ?1",
                     "itttii", job_id, patch->name, patch->tags, patch->notes,
                     (int64_t)(patch->priority != NULL), priority);
    /* A run shows the name and the tags of its job. */
    if (err == PD_OK && (patch->priority || patch->name || patch->tags))
        err = db_run(tx->db, why,
                     "UPDATE run SET priority = CASE WHEN ?2 AND state <> 'ended' THEN ?3 ELSE priority END, "
                     "version = version + 1 WHERE job_id = ?1 AND (?4 OR state <> 'ended')",
                     "iiii", job_id, (int64_t)(patch->priority != NULL), priority,
                     (int64_t)(patch->name || patch->tags));
    if (err == PD_OK)
        err = store_event_add(tx, "job.changed", job_id, 0, 0, "{}", NULL, why);
    if (err == PD_OK && ret_version)
        *ret_version = j.version + 1;
    return err;
}
