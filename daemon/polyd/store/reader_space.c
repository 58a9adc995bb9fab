/* What runs and jobs take on disk, and which of their files are still wanted. */
#include "daemon/polyd/store/db.h"

/* After a step was done again there are two rows of one file. */
#define FILES(condition)                                                                                     \
    "(SELECT coalesce(sum(b), 0) FROM (SELECT max(c.bytes) AS b FROM run r JOIN job j ON j.id = r.job_id "   \
    "AND "                                                                                                   \
    "j.deleted_us = 0 JOIN checkpoint c ON c.run_id = r.id AND c.deleted_us = 0 WHERE " condition            \
    " GROUP BY c.run_id, c.path))"
#define LOGS(condition)                                                                                      \
    "(SELECT coalesce(sum(r.log_bytes + (SELECT coalesce(sum(a.log_bytes), 0) FROM attempt a WHERE "         \
    "a.run_id = "                                                                                            \
    "r.id)), 0) FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE " condition ")"
#define BLOBS(condition)                                                                                     \
    "(SELECT coalesce(sum(bytes), 0) FROM blob WHERE sha256 IN (SELECT x.sha256 FROM run_blob x JOIN run r " \
    "ON r.id = x.run_id JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE " condition "))"
#define SPACE(condition) "SELECT " FILES(condition) ", " LOGS(condition) ", " BLOBS(condition)

static enum pd_err read_space(struct store *s, const char *sql, int64_t id, struct store_space *ret,
                              struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why, sql, "i", id);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err != PD_OK)
        return err;
    *ret = (struct store_space){.checkpoints = sqlite3_column_int64(st, 0),
                                .logs = sqlite3_column_int64(st, 1),
                                .blobs = sqlite3_column_int64(st, 2)};
    db_done(st);
    return PD_OK;
}

enum pd_err store_run_space(struct store *s, int64_t run_id, struct store_space *ret, struct pd_why *why)
{
    return read_space(s, SPACE("r.id = ?1"), run_id, ret, why);
}

enum pd_err store_job_space(struct store *s, int64_t job_id, struct store_space *ret, struct pd_why *why)
{
    return read_space(s, SPACE("r.job_id = ?1"), job_id, ret, why);
}

enum pd_err store_all_space(struct store *s, struct store_space *ret, int64_t *ret_deleting,
                            struct pd_why *why)
{
    enum pd_err err = read_space(s, SPACE("?1 = 0"), 0, ret, why);

    if (err == PD_OK)
        err = db_int(&s->db, &ret->weights, why, "SELECT coalesce(sum(bytes), 0) FROM weights", "");
    return err == PD_OK
               ? db_int(&s->db, ret_deleting, why,
                        "SELECT (SELECT count(*) FROM remnant) + (SELECT count(*) FROM job j JOIN run r "
                        "ON r.job_id = j.id WHERE j.deleted_us > 0)",
                        "")
               : err;
}

enum pd_err store_job_sizes(struct store *s, int limit,
                            bool (*row)(void *ctx, const struct store_job_size *j), void *ctx,
                            struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        &s->db, &st, why,
        "WITH f AS (SELECT r.job_id AS job, max(c.bytes) AS b FROM run r JOIN checkpoint c ON c.run_id = "
        "r.id AND "
        "c.deleted_us = 0 GROUP BY c.run_id, c.path UNION ALL SELECT r.job_id, r.log_bytes + "
        "coalesce((SELECT "
        "sum(a.log_bytes) FROM attempt a WHERE a.run_id = r.id), 0) FROM run r) SELECT j.id, j.name, "
        "j.experiment, "
        "j.runs - j.runs_deleted, sum(f.b) AS bytes, j.archived_us FROM f JOIN job j ON j.id = f.job AND "
        "j.deleted_us = 0 GROUP BY j.id HAVING bytes > 0 ORDER BY bytes DESC, j.id LIMIT ?1",
        "i", (int64_t)limit);

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_job_size j = {.job_id = sqlite3_column_int64(st, 0),
                                   .name = db_text(st, 1),
                                   .experiment = db_text(st, 2),
                                   .runs = sqlite3_column_int64(st, 3),
                                   .bytes = sqlite3_column_int64(st, 4),
                                   .archived_us = sqlite3_column_int64(st, 5)};

        if (!row(ctx, &j)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_run_known(struct store *s, int64_t run_id, bool *ret, struct pd_why *why)
{
    int64_t one;
    enum pd_err err =
        db_int(&s->db, &one, why,
               "SELECT 1 FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE r.id = ?1", "i",
               run_id);

    *ret = err == PD_OK;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_blob_known(struct store *s, const char *sha256, bool *ret, struct pd_why *why)
{
    int64_t one;
    enum pd_err err = db_int(&s->db, &one, why, "SELECT 1 FROM blob WHERE sha256 = ?1", "t", sha256);

    *ret = err == PD_OK;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_weights_known(struct store *s, const char *name, bool *ret, struct pd_why *why)
{
    int64_t one;
    enum pd_err err =
        db_int(&s->db, &one, why, "SELECT 1 FROM weights WHERE path = 'models/' || ?1", "t", name);

    *ret = err == PD_OK;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_remnant_list(struct store *s, int64_t after, bool (*row)(void *ctx, int64_t run_id),
                               void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT run_id FROM remnant WHERE rows_gone = 1 AND run_id > ?1 ORDER BY run_id", "i", after);

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK)
        if (!row(ctx, sqlite3_column_int64(st, 0))) {
            db_done(st);
            return PD_OK;
        }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}
