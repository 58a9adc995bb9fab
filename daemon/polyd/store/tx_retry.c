/* Doing again what failed: the same run with its number, from its last checkpoint, as a new attempt. */
#include "daemon/polyd/store/tx_private.h"

#define FAILED_AT_ONCE 256

static enum pd_err check_job(int64_t job_id, const struct tx_job *j, struct pd_why *why)
{
    switch (j->state) {
    case JOB_CANCELLING:
    case JOB_CANCELLED:
        return pd_fail(why, PD_ERR_CONFLICT, "job %lld was cancelled: submit its document again",
                       (long long)job_id);
    case JOB_DONE:
        return pd_fail(why, PD_ERR_CONFLICT,
                       "job %lld is done and none of its runs failed: submit its document again to repeat it",
                       (long long)job_id);
    default:
        return PD_OK;
    }
}

/* Whether it may run again. It needs time: if its limit is used up, it would fail again at once. Its checkpoints
 * must not be versions of models: its worker would remove or replace their files. */
static enum pd_err check_run(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    int64_t over = 0;
    enum pd_err err =
        db_int(tx->db, &over, why,
               "SELECT time_limit_us > 0 AND used_us >= time_limit_us FROM run WHERE id = ?1", "i", run_id);

    if (err == PD_OK && over)
        err = pd_fail(why, PD_ERR_CONFLICT,
                      "run %lld has used up its time limit: submit its document again with a longer one",
                      (long long)run_id);
    return err == PD_OK ? tx_run_has_no_model(tx, run_id, why) : err;
}

static enum pd_err fresh_restarts(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    return db_run(
        tx->db, why,
        "UPDATE run SET restarts = 0, not_before_us = 0, held = 0, version = version + 1 WHERE id = ?1", "i",
        run_id);
}

/* Queues a failed run again; of a paused job it waits with the others. */
static enum pd_err again(struct store_tx *tx, int64_t run_id, struct tx_run *r, enum job_state job,
                         struct pd_why *why)
{
    enum pd_err err = check_run(tx, run_id, why);

    if (err == PD_OK)
        err = fresh_restarts(tx, run_id, why);
    if (err == PD_OK)
        err = tx_run_move(tx, run_id, r, JOB_RUN_QUEUED, JOB_OUTCOME_FAILED, "", why);
    if (err != PD_OK || job != JOB_PAUSED)
        return err;
    r->state = JOB_RUN_QUEUED;
    return tx_run_move(tx, run_id, r, JOB_RUN_PAUSED, JOB_OUTCOME_FAILED, "paused with its job", why);
}

enum pd_err store_run_retry(struct store_tx *tx, int64_t run_id, int64_t version, struct pd_why *why)
{
    struct tx_run r;
    struct tx_job j;
    int64_t waits = 0;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r.version, version, why);
    if (err == PD_OK)
        err = tx_check_carried_out("run", run_id, r.kind, why);
    if (err == PD_OK && r.state == JOB_RUN_QUEUED)
        err = db_int(tx->db, &waits, why, "SELECT not_before_us > 0 FROM run WHERE id = ?1", "i", run_id);
    if (err != PD_OK)
        return err;
    if (waits)
        return fresh_restarts(tx, run_id, why);
    if (r.state != JOB_RUN_ENDED || r.outcome != JOB_OUTCOME_FAILED)
        return pd_fail(
            why, PD_ERR_CONFLICT,
            "run %lld is %s: only a run that has failed, or that waits after a failure, can be retried",
            (long long)run_id,
            r.state == JOB_RUN_ENDED ? job_outcome_name(r.outcome) : job_run_state_name(r.state));
    err = tx_job_read(tx, r.job_id, &j, why);
    if (err == PD_OK)
        err = check_job(r.job_id, &j, why);
    return err == PD_OK ? again(tx, run_id, &r, j.state, why) : err;
}

/* One page of the job's failed runs, by id above `after`. */
static enum pd_err failed_runs(struct store_tx *tx, int64_t job_id, int64_t after,
                               int64_t ids[FAILED_AT_ONCE], int *ret_n, struct pd_why *why)
{
    sqlite3_stmt *st;
    int n = 0;
    enum pd_err err = db_bind(
        tx->db, &st, why,
        "SELECT id FROM run WHERE job_id = ?1 AND id > ?2 AND outcome = 'failed' ORDER BY id LIMIT ?3", "iii",
        job_id, after, (int64_t)FAILED_AT_ONCE);

    while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK)
        ids[n++] = sqlite3_column_int64(st, 0);
    *ret_n = n;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

/* All failed runs; those that may not run again stay as they are. */
static enum pd_err again_all(struct store_tx *tx, int64_t job_id, enum job_state job, int64_t *ret_count,
                             struct pd_why *why)
{
    int64_t ids[FAILED_AT_ONCE], after = 0;
    struct pd_why refused;
    enum pd_err err;
    int n;

    do {
        err = failed_runs(tx, job_id, after, ids, &n, why);
        for (int i = 0; err == PD_OK && i < n; i++) {
            struct tx_run r;

            after = ids[i];
            if (check_run(tx, ids[i], &refused) == PD_ERR_CONFLICT)
                continue;
            err = tx_run_read(tx, ids[i], &r, why);
            if (err == PD_OK)
                err = again(tx, ids[i], &r, job, why);
            if (err == PD_OK)
                ++*ret_count;
        }
    } while (err == PD_OK && n == FAILED_AT_ONCE);
    return err;
}

enum pd_err store_job_retry(struct store_tx *tx, int64_t job_id, int64_t version, struct pd_why *why)
{
    struct tx_job j;
    int64_t count = 0;
    enum pd_err err = tx_job_read(tx, job_id, &j, why);

    if (err == PD_OK)
        err = tx_check_version("job", job_id, j.version, version, why);
    if (err == PD_OK)
        err = tx_check_carried_out("job", job_id, j.kind, why);
    if (err == PD_OK)
        err = check_job(job_id, &j, why);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE run SET restarts = 0, not_before_us = 0, version = version + 1 WHERE job_id = ?1 AND "
            "state <> 'ended' AND (restarts > 0 OR not_before_us > 0)",
            "i", job_id);
    if (err == PD_OK)
        err = again_all(tx, job_id, j.state, &count, why);
    if (err == PD_OK && !count && j.state == JOB_FAILED)
        err = pd_fail(why, PD_ERR_CONFLICT,
                      "no run of job %lld can be retried: the failed runs are deleted, have used up their "
                      "time limits or have become models; submit its document again",
                      (long long)job_id);
    return err == PD_OK ? store_event_add(tx, "job.retry", job_id, 0, 0, "{}", NULL, why) : err;
}
