/* Attempts: their rows, moves, devices and progress. */
#include <string.h>

#include "daemon/polyd/store/tx_private.h"

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
    struct tx_run r;
    enum pd_err err;
    int n;

    err = tx_run_read(tx, a->run_id, &r, why);
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
        err = tx_move_event(tx, "attempt.state", r.job_id, a->run_id, n, NULL, "starting", "devices",
                            a->devices, NULL, why);
    r.attempts = n;
    if (err == PD_OK)
        err = tx_run_move(tx, a->run_id, &r, JOB_RUN_STARTING, JOB_OUTCOME_CANCELLED, NULL, why);
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

/* `clock_us`: when it moved. */
static enum pd_err attempt_move(struct store_tx *tx, int64_t run_id, int n, enum job_attempt_state to,
                                int64_t clock_us, enum job_cause cause, const char *message, int exit_status,
                                struct pd_why *why)
{
    const char *cause_name = to == JOB_ATTEMPT_ENDED ? job_cause_name(cause) : "";
    enum job_attempt_state from;
    sqlite3_stmt *st;
    int64_t job_id, held_us, now_us = tx->now_us - (tx->clock_us - clock_us);
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
    held_us = clock_us - sqlite3_column_int64(st, 2);
    held_us = held_us > 0 ? held_us : 0;
    if (!job_attempt_state_parse(db_text(st, 0), &from))
        err = pd_fail(why, PD_ERR_CORRUPT, "attempt %lld/%d is in an unknown state", (long long)run_id, n);
    db_done(st);
    if (err == PD_OK && !job_attempt_move_allowed(from, to))
        err = pd_fail(why, PD_ERR_CONFLICT, "attempt %lld/%d is %s: it cannot become %s", (long long)run_id,
                      n, job_attempt_state_name(from), job_attempt_state_name(to));
    if (err != PD_OK)
        return err;
    err = db_run(tx->db, why,
                 "UPDATE attempt SET state = ?3, cause = ?4, message = coalesce(?5, message), exit_status = "
                 "CASE WHEN ?6 >= "
                 "0 THEN ?6 ELSE exit_status END, started_us = CASE WHEN ?7 AND started_us = 0 THEN max(?9, "
                 "created_us) ELSE "
                 "started_us END, ended_us = CASE WHEN ?8 THEN max(?9, created_us, started_us) ELSE 0 END, "
                 "held_us = CASE WHEN ?8 THEN ?10 ELSE 0 END WHERE run_id = ?1 AND n = ?2",
                 "iitttiiiii", run_id, (int64_t)n, job_attempt_state_name(to), cause_name, message,
                 (int64_t)exit_status, (int64_t)(to == JOB_ATTEMPT_RUNNING),
                 (int64_t)(to == JOB_ATTEMPT_ENDED), now_us, held_us);
    if (err == PD_OK && to == JOB_ATTEMPT_ENDED) {
        err = db_run(tx->db, why,
                     "UPDATE allocation SET to_us = max(from_us, ?3) WHERE run_id = ?1 AND attempt = ?2",
                     "iii", run_id, (int64_t)n, clock_us);
        if (err == PD_OK)
            err = db_run(tx->db, why, "UPDATE run SET used_us = used_us + ?2 WHERE id = ?1", "ii", run_id,
                         held_us);
    }
    if (err == PD_OK)
        err = tx_move_event(tx, "attempt.state", job_id, run_id, n, job_attempt_state_name(from),
                            job_attempt_state_name(to), "cause", cause_name, message, why);
    return err;
}

enum pd_err store_attempt_move(struct store_tx *tx, int64_t run_id, int n, enum job_attempt_state to,
                               enum job_cause cause, const char *message, int exit_status, struct pd_why *why)
{
    return attempt_move(tx, run_id, n, to, tx->clock_us, cause, message, exit_status, why);
}

enum pd_err store_attempt_end_at(struct store_tx *tx, int64_t run_id, int n, int64_t clock_us,
                                 enum job_cause cause, const char *message, int exit_status,
                                 struct pd_why *why)
{
    return attempt_move(tx, run_id, n, JOB_ATTEMPT_ENDED, clock_us < tx->clock_us ? clock_us : tx->clock_us,
                        cause, message, exit_status, why);
}

enum pd_err store_attempt_set_start(struct store_tx *tx, int64_t run_id, int n, int64_t step,
                                    struct pd_why *why)
{
    return db_run(tx->db, why, "UPDATE attempt SET start_step = ?3 WHERE run_id = ?1 AND n = ?2", "iii",
                  run_id, (int64_t)n, step);
}

enum pd_err store_run_inputs(struct store_tx *tx, int64_t run_id, const char *data, const char *data_of,
                             const char *program, struct pd_why *why)
{
    return db_run(tx->db, why,
                  "UPDATE run SET data_sha256 = ?2, data_of = ?3, program_sha256 = ?4, version = version + 1 "
                  "WHERE id = ?1",
                  "ittt", run_id, data, data_of, program);
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
        return pd_fail(why, PD_ERR_CONFLICT, "frame %lld follows %lld: frames are missing", (long long)seq,
                       (long long)acked);
    return db_run(tx->db, why, "UPDATE attempt SET acked_seq = ?3 WHERE run_id = ?1 AND n = ?2", "iii",
                  run_id, (int64_t)n, seq);
}
