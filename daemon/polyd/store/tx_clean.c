/* What deletions leave behind, removed in batches: the runs of deleted jobs, the points and events of deleted
 * runs, files that no run shows any more. Each step is a short transaction of its own, and what is left to do
 * stands in the rows. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/polyd/store/tx_private.h"

#define RUNS_AT_ONCE 16
#define BLOBS_AT_ONCE 64

/* ---- a run leaves the tables ---------------------------------------------------------------------- */

enum pd_err tx_run_bury(struct store_tx *tx, int64_t run_id, const struct tx_run *r, struct pd_why *why)
{
    /* Children before parents, as the foreign keys require. Removing a member changes the group, so its ETag
     * must change. */
    static const char *const steps[] = {
        "INSERT OR IGNORE INTO remnant_blob (sha256) SELECT sha256 FROM run_blob WHERE run_id = ?1",
        "DELETE FROM run_blob WHERE run_id = ?1",
        "DELETE FROM checkpoint WHERE run_id = ?1",
        "UPDATE run_group SET version = version + 1 WHERE id IN (SELECT group_id FROM run_group_member WHERE "
        "run_id = ?1)",
        "DELETE FROM run_group_member WHERE run_id = ?1",
        "DELETE FROM allocation WHERE run_id = ?1",
        "DELETE FROM attempt WHERE run_id = ?1",
        "DELETE FROM run WHERE id = ?1",
    };
    bool failed = r->outcome == JOB_OUTCOME_FAILED || r->outcome == JOB_OUTCOME_LOST;
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < sizeof steps / sizeof *steps; i++)
        err = db_run(tx->db, why, steps[i], "i", run_id);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "DELETE FROM blob WHERE sha256 IN (SELECT sha256 FROM remnant_blob) AND NOT EXISTS (SELECT 1 "
            "FROM run_blob r WHERE r.sha256 = blob.sha256)",
            "");
    if (err == PD_OK)
        err = db_run(tx->db, why, "INSERT INTO remnant (run_id, deleted_us) VALUES (?1, ?2)", "ii", run_id,
                     tx->now_us);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE job SET runs_deleted = runs_deleted + 1, runs_failed = runs_failed - ?2, version = "
            "version + 1 WHERE id = ?1",
            "ii", r->job_id, (int64_t)failed);
    return err;
}

/* ---- jobs ----------------------------------------------------------------------------------------- */

/* The first run of a deleted job with an id above `after`. tx_run_read does not find runs of such jobs. */
static enum pd_err read_hidden(struct store_tx *tx, int64_t job_id, int64_t after, int64_t *ret_id,
                               struct tx_run *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(tx->db, &st, why,
                              "SELECT id, outcome FROM run WHERE job_id = ?1 AND id > ?2 ORDER BY id LIMIT 1",
                              "ii", job_id, after);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK)
        return err;
    *ret_id = sqlite3_column_int64(st, 0);
    *ret = (struct tx_run){.job_id = job_id, .state = JOB_RUN_ENDED};
    job_outcome_parse(db_text(st, 1), &ret->outcome);
    db_done(st);
    return PD_OK;
}

/* A part of a deleted job; *ret_worked = false: there is none. */
static enum pd_err clean_job(struct store_tx *tx, int rows, bool *ret_worked, struct pd_why *why)
{
    int64_t job_id, run_id = 0;
    struct tx_run r;
    int runs = 0;
    enum pd_err err = db_int(tx->db, &job_id, why, "SELECT id FROM job WHERE deleted_us > 0 LIMIT 1", "");

    *ret_worked = err == PD_OK;
    if (err != PD_OK)
        return err == PD_ERR_NOT_FOUND ? PD_OK : err;
    while (runs < RUNS_AT_ONCE && (err = read_hidden(tx, job_id, run_id, &run_id, &r, why)) == PD_OK) {
        err = tx_run_bury(tx, run_id, &r, why);
        if (err != PD_OK)
            return err;
        runs++;
    }
    if (runs || err != PD_ERR_NOT_FOUND)
        return err == PD_ERR_NOT_FOUND ? PD_OK : err;
    err = db_run(
        tx->db, why,
        "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE job_id = ?1 AND job_id <> 0 AND kind "
        "NOT IN ('job.deleted', 'run.deleted') LIMIT ?2)",
        "ii", job_id, (int64_t)rows);
    if (err != PD_OK || sqlite3_changes(tx->db->db))
        return err;
    return db_run(tx->db, why, "DELETE FROM job WHERE id = ?1", "i", job_id);
}

/* ---- runs ----------------------------------------------------------------------------------------- */

static enum pd_err clean_run(struct store_tx *tx, int rows, bool *ret_worked, struct pd_why *why)
{
    static const char *const steps[] = {
        "DELETE FROM metric WHERE run_id = ?1 AND (key_id, attempt, step, ts_us, dup) IN (SELECT key_id, "
        "attempt, "
        "step, ts_us, dup FROM metric WHERE run_id = ?1 LIMIT ?2)",
        "DELETE FROM metric_rollup WHERE run_id = ?1 AND (key_id, attempt, chunk) IN (SELECT key_id, "
        "attempt, "
        "chunk FROM metric_rollup WHERE run_id = ?1 LIMIT ?2)",
        "DELETE FROM metric_latest WHERE run_id = ?1 AND key_id IN (SELECT key_id FROM metric_latest WHERE "
        "run_id "
        "= ?1 LIMIT ?2)",
        "DELETE FROM event WHERE id IN (SELECT id FROM event WHERE run_id = ?1 AND run_id <> 0 AND kind <> "
        "'run.deleted' LIMIT ?2)",
    };
    int64_t run_id;
    enum pd_err err = db_int(tx->db, &run_id, why,
                             "SELECT run_id FROM remnant WHERE rows_gone = 0 ORDER BY run_id LIMIT 1", "");

    *ret_worked = err == PD_OK;
    if (err != PD_OK)
        return err == PD_ERR_NOT_FOUND ? PD_OK : err;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        err = db_run(tx->db, why, steps[i], "ii", run_id, (int64_t)rows);
        if (err != PD_OK || sqlite3_changes(tx->db->db))
            return err;
    }
    return db_run(tx->db, why, "UPDATE remnant SET rows_gone = 1 WHERE run_id = ?1", "i", run_id);
}

enum pd_err store_clean_rows(struct store_tx *tx, int rows, bool *ret_worked, struct pd_why *why)
{
    enum pd_err err = clean_job(tx, rows, ret_worked, why);

    return err == PD_OK && !*ret_worked ? clean_run(tx, rows, ret_worked, why) : err;
}

enum pd_err store_remnant_done(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    return db_run(tx->db, why, "DELETE FROM remnant WHERE run_id = ?1 AND rows_gone = 1", "i", run_id);
}

/* ---- blobs ---------------------------------------------------------------------------------------- */

/* The rows have been gone for at least one commit. A run that brings the same bytes again writes file and row
 * on this very thread: either its row is seen here, or it finds no file and writes one. */
enum pd_err store_clean_blobs(struct store_tx *tx, struct store_blob_pass *pass, struct pd_why *why)
{
    char sha[BLOBS_AT_ONCE][STORE_DIGEST_HEX], path[4096];
    bool gone[BLOBS_AT_ONCE];
    int count = 0;
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT b.sha256, EXISTS (SELECT 1 FROM blob WHERE blob.sha256 = b.sha256) FROM "
                "remnant_blob b WHERE b.sha256 > ?1 ORDER BY b.sha256 LIMIT ?2",
                "ti", pass->after, (int64_t)BLOBS_AT_ONCE);

    while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK) {
        bool shown = sqlite3_column_int(st, 1), fits;

        snprintf(sha[count], sizeof sha[count], "%s", db_text(st, 0));
        fits = (size_t)snprintf(path, sizeof path, "%s/blobs/%.2s/%s", tx->db->dir, sha[count], sha[count]) <
               sizeof path;
        gone[count] = shown || !fits || !unlink(path) || errno == ENOENT;
        if (!gone[count] && !pass->kept++)
            (void)pd_fail_errno(&pass->why, errno, "cannot remove '%s'", path);
        count++;
    }
    if (err == PD_ERR_NOT_FOUND)
        err = PD_OK;
    for (int i = 0; err == PD_OK && i < count; i++)
        if (gone[i])
            err = db_run(tx->db, why, "DELETE FROM remnant_blob WHERE sha256 = ?1", "t", sha[i]);
    if (count)
        snprintf(pass->after, sizeof pass->after, "%s", sha[count - 1]);
    pass->worked = count > 0;
    return err;
}
