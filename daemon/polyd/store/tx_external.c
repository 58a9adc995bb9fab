/* Runs of external clients: they live as long as their client sends something. */
#include "daemon/polyd/store/tx_private.h"

/* For a command that only such runs know. */
static enum pd_err external_read(struct store_tx *tx, int64_t run_id, struct tx_run *ret, struct pd_why *why)
{
    enum pd_err err = tx_run_read(tx, run_id, ret, why);

    if (err == PD_OK && job_kind_info(ret->kind)->worker)
        err = pd_fail(why, PD_ERR_CONFLICT,
                      "polyd executes run %lld and determines its state; cancel it to end it",
                      (long long)run_id);
    return err;
}

static bool is_lost(const struct tx_run *r)
{
    return r->state == JOB_RUN_ENDED && r->outcome == JOB_OUTCOME_LOST;
}

static enum pd_err heard(struct store_tx *tx, int64_t run_id, struct tx_run *r, int64_t step,
                         struct pd_why *why)
{
    enum pd_err err = PD_OK;

    if (is_lost(r)) {
        err = tx_run_move(tx, run_id, r, JOB_RUN_RUNNING, JOB_OUTCOME_LOST, "", why);
        r->state = JOB_RUN_RUNNING;
    }
    if (err == PD_OK && r->state == JOB_RUN_RUNNING)
        err =
            db_run(tx->db, why,
                   "UPDATE run SET heard_us = ?2, step = max(step, ?3), version = version + 1 WHERE id = ?1",
                   "iii", run_id, tx->clock_us, step);
    return err;
}

enum pd_err store_run_heard(struct store_tx *tx, int64_t run_id, int64_t step, bool *ret_external,
                            struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err != PD_OK)
        return err;
    *ret_external = !job_kind_info(r.kind)->worker;
    return *ret_external ? heard(tx, run_id, &r, step, why) : PD_OK;
}

enum pd_err store_run_beat(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = external_read(tx, run_id, &r, why);

    if (err == PD_OK && r.state == JOB_RUN_ENDED && !is_lost(&r))
        err = pd_fail(why, PD_ERR_CONFLICT, "run %lld has ended: %s", (long long)run_id,
                      job_outcome_name(r.outcome));
    return err == PD_OK ? heard(tx, run_id, &r, -1, why) : err;
}

enum pd_err store_run_finish(struct store_tx *tx, int64_t run_id, int64_t version, enum job_outcome outcome,
                             const char *reason, struct pd_why *why)
{
    struct tx_run r;
    enum pd_err err = external_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r.version, version, why);
    if (err == PD_OK && is_lost(&r))
        err = heard(tx, run_id, &r, -1, why);
    if (err != PD_OK)
        return err;
    if (r.state == JOB_RUN_ENDED)
        return r.outcome == outcome
                   ? PD_OK
                   : pd_fail(why, PD_ERR_CONFLICT, "run %lld has ended: %s, not %s", (long long)run_id,
                             job_outcome_name(r.outcome), job_outcome_name(outcome));
    return tx_run_move(tx, run_id, &r, JOB_RUN_ENDED, outcome, reason, why);
}

enum pd_err store_run_lost(struct store_tx *tx, int64_t run_id, int64_t before_us, const char *reason,
                           struct pd_why *why)
{
    struct tx_run r;
    int64_t heard_us;
    enum pd_err err = external_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = db_int(tx->db, &heard_us, why, "SELECT heard_us FROM run WHERE id = ?1", "i", run_id);
    if (err != PD_OK || r.state != JOB_RUN_RUNNING || heard_us >= before_us)
        return err;
    return tx_run_move(tx, run_id, &r, JOB_RUN_ENDED, JOB_OUTCOME_LOST, reason, why);
}

enum pd_err store_run_log_begin(struct store_tx *tx, int64_t run_id, int64_t *ret_bytes, struct pd_why *why)
{
    enum pd_err err = store_run_beat(tx, run_id, why);

    return err == PD_OK
               ? db_int(tx->db, ret_bytes, why, "SELECT log_bytes FROM run WHERE id = ?1", "i", run_id)
               : err;
}

enum pd_err store_run_logged(struct store_tx *tx, int64_t run_id, int64_t bytes, struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE run SET log_bytes = ?2 WHERE id = ?1", "ii", run_id, bytes);
}
