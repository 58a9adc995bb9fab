/* What clients ask of things that have ended: archive them, bring them back, delete them.
 *
 * A deletion is two things. Here, in the client's transaction, a run leaves every table that names it, and a
 * job is hidden with all its runs. What is large goes later and bit by bit (tx_clean.c): a run's points, a
 * job's runs, the files. */
#include <stdio.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

static enum pd_err note(struct store_tx *tx, const char *kind, int64_t job_id, int64_t run_id,
                        struct pd_why *why)
{
    return store_event_add(tx, kind, job_id, run_id, 0, "{}", NULL, why);
}

static enum pd_err job_must_have_ended(const char *verb, int64_t id, const struct tx_job *j,
                                       struct pd_why *why)
{
    return job_state_final(j->state)
               ? PD_OK
               : pd_fail(why, PD_ERR_CONFLICT, "job %lld is %s: cancel it, or wait for its end, to %s it",
                         (long long)id, job_state_name(j->state), verb);
}

static enum pd_err run_must_have_ended(const char *verb, int64_t id, const struct tx_run *r,
                                       struct pd_why *why)
{
    return r->state == JOB_RUN_ENDED
               ? PD_OK
               : pd_fail(why, PD_ERR_CONFLICT, "run %lld is %s: cancel it, or wait for its end, to %s it",
                         (long long)id, job_run_state_name(r->state), verb);
}

/* ---- archive -------------------------------------------------------------------------------------- */

enum pd_err store_job_archive(struct store_tx *tx, int64_t job_id, int64_t version, bool archive,
                              struct pd_why *why)
{
    struct tx_job j;
    enum pd_err err = tx_job_read(tx, job_id, &j, why);

    if (err == PD_OK)
        err = tx_check_version("job", job_id, j.version, version, why);
    if (err == PD_OK && archive)
        err = job_must_have_ended("archive", job_id, &j, why);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE job SET archived_us = CASE WHEN ?2 THEN ?3 ELSE 0 END, version = version + 1 WHERE "
            "id = ?1 AND (archived_us > 0) <> ?2",
            "iii", job_id, (int64_t)archive, tx->now_us);
    if (err != PD_OK || !sqlite3_changes(tx->db->db))
        return err; /* asking twice is no error */
    /* A run's representation shows whether its job is archived, so its ETag must change too. */
    err = db_run(tx->db, why, "UPDATE run SET version = version + 1 WHERE job_id = ?1", "i", job_id);
    return err == PD_OK ? note(tx, archive ? "job.archived" : "job.unarchived", job_id, 0, why) : err;
}

enum pd_err store_run_archive(struct store_tx *tx, int64_t run_id, int64_t version, bool archive,
                              struct pd_why *why)
{
    struct tx_run r;
    struct tx_job j;
    int64_t whole = 0;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r.version, version, why);
    if (err == PD_OK && archive)
        err = run_must_have_ended("archive", run_id, &r, why);
    if (err == PD_OK)
        err = tx_job_read(tx, r.job_id, &j, why);
    if (err != PD_OK)
        return err;
    if (j.planned == 1) /* the run is the job */
        return store_job_archive(tx, r.job_id, -1, archive, why);
    err = db_int(tx->db, &whole, why, "SELECT archived_us > 0 FROM job WHERE id = ?1", "i", r.job_id);
    if (err == PD_OK && whole && !archive)
        err = pd_fail(why, PD_ERR_CONFLICT, "job %lld is archived as a whole: unarchive the job",
                      (long long)r.job_id);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE run SET archived_us = CASE WHEN ?2 THEN ?3 ELSE 0 END, version = version + 1 WHERE "
            "id = ?1 AND (archived_us > 0) <> ?2",
            "iii", run_id, (int64_t)archive, tx->now_us);
    if (err != PD_OK || !sqlite3_changes(tx->db->db))
        return err;
    return note(tx, archive ? "run.archived" : "run.unarchived", r.job_id, run_id, why);
}

/* ---- delete --------------------------------------------------------------------------------------- */

/* The row says that a model version was made of a checkpoint: its first two columns name it. */
static enum pd_err no_model(struct store_tx *tx, const char *what, int64_t id, sqlite3_stmt *st,
                            struct pd_why *why)
{
    enum pd_err err = db_step(tx->db, st, why);

    if (err != PD_OK)
        return err == PD_ERR_NOT_FOUND ? PD_OK : err;
    err = pd_fail(why, PD_ERR_CONFLICT,
                  "a checkpoint of %s %lld is version %lld of model '%s': delete that version first", what,
                  (long long)id, (long long)sqlite3_column_int64(st, 1), db_text(st, 0));
    db_done(st);
    return err;
}

static enum pd_err job_has_no_model(struct store_tx *tx, int64_t job_id, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT m.name, v.n FROM model_version v JOIN run r ON r.id = v.run_id JOIN model m "
                "ON m.id = v.model_id WHERE r.job_id = ?1 ORDER BY m.name, v.n LIMIT 1",
                "i", job_id);

    return err == PD_OK ? no_model(tx, "job", job_id, st, why) : err;
}

enum pd_err tx_run_has_no_model(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why,
                "SELECT m.name, v.n FROM model_version v JOIN model m ON m.id = v.model_id WHERE "
                "v.run_id = ?1 ORDER BY m.name, v.n LIMIT 1",
                "i", run_id);

    return err == PD_OK ? no_model(tx, "run", run_id, st, why) : err;
}

/* {"name":..,"experiment":..,"runs":n} for the event and the audit log. */
static enum pd_err describe_job(struct store_tx *tx, int64_t job_id, struct pd_buf *b, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        tx->db, &st, why, "SELECT name, experiment, runs - runs_deleted FROM job WHERE id = ?1", "i", job_id);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK)
        return err;
    pd_json_open(b, '{');
    pd_json_kv_str(b, "name", db_text(st, 0));
    pd_json_kv_str(b, "experiment", db_text(st, 1));
    pd_json_kv_int(b, "runs", sqlite3_column_int64(st, 2));
    pd_json_close(b, '}');
    db_done(st);
    return pd_buf_err(b) == PD_OK ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for an event");
}

/* The event, and a line in the audit log. `kind` is "job.deleted" or "run.deleted". */
static enum pd_err record_deletion(struct store_tx *tx, const char *who, const char *kind, int64_t job_id,
                                   int64_t run_id, struct pd_why *why)
{
    char target[32];
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    snprintf(target, sizeof target, run_id ? "run %lld" : "job %lld", (long long)(run_id ? run_id : job_id));
    err = describe_job(tx, job_id, &b, why);
    if (err == PD_OK)
        err = store_event_add(tx, kind, job_id, run_id, 0, b.data, NULL, why);
    if (err == PD_OK)
        err = store_audit(tx, who, kind, target, b.data, NULL, why);
    pd_buf_done(&b);
    return err;
}

enum pd_err store_job_delete(struct store_tx *tx, int64_t job_id, int64_t version, const char *who,
                             struct pd_why *why)
{
    static const char *const leave[] = {
        "UPDATE run_group SET version = version + 1 WHERE id IN (SELECT m.group_id FROM run r JOIN "
        "run_group_member m ON m.run_id = r.id WHERE r.job_id = ?1)",
        "DELETE FROM run_group_member WHERE run_id IN (SELECT id FROM run WHERE job_id = ?1)",
    };
    struct tx_job j;
    enum pd_err err = tx_job_read(tx, job_id, &j, why);

    if (err == PD_OK)
        err = tx_check_version("job", job_id, j.version, version, why);
    if (err == PD_OK)
        err = job_must_have_ended("delete", job_id, &j, why);
    if (err == PD_OK)
        err = job_has_no_model(tx, job_id, why);
    if (err == PD_OK)
        err = record_deletion(tx, who, "job.deleted", job_id, 0, why);
    for (size_t i = 0; err == PD_OK && i < sizeof leave / sizeof *leave; i++)
        err = db_run(tx->db, why, leave[i], "i", job_id);
    return err == PD_OK
               ? db_run(tx->db, why, "UPDATE job SET deleted_us = ?2, version = version + 1 WHERE id = ?1",
                        "ii", job_id, tx->now_us)
               : err;
}

enum pd_err store_run_delete(struct store_tx *tx, int64_t run_id, int64_t version, const char *who,
                             struct pd_why *why)
{
    struct tx_run r;
    struct tx_job j;
    enum pd_err err = tx_run_read(tx, run_id, &r, why);

    if (err == PD_OK)
        err = tx_check_version("run", run_id, r.version, version, why);
    if (err == PD_OK)
        err = run_must_have_ended("delete", run_id, &r, why);
    if (err == PD_OK)
        err = tx_run_has_no_model(tx, run_id, why);
    if (err == PD_OK)
        err = tx_job_read(tx, r.job_id, &j, why);
    if (err != PD_OK)
        return err;
    if (job_state_final(j.state) && j.runs - j.deleted == 1) /* with its last run an ended job goes */
        return store_job_delete(tx, r.job_id, -1, who, why);
    err = record_deletion(tx, who, "run.deleted", r.job_id, run_id, why);
    return err == PD_OK ? tx_run_bury(tx, run_id, &r, why) : err;
}

/* ---- models --------------------------------------------------------------------------------------- */

/* The event, and a line in the audit log. */
static enum pd_err record_model_deletion(struct store_tx *tx, const char *who, const char *kind,
                                         const char *model, int64_t n, struct pd_why *why)
{
    char target[300];
    enum pd_err err = tx_model_event(tx, kind, model, n, NULL, 0, why);

    if (n)
        snprintf(target, sizeof target, "model %.200s version %lld", model, (long long)n);
    else
        snprintf(target, sizeof target, "model %.200s", model);
    return err == PD_OK ? store_audit(tx, who, kind, target, NULL, NULL, why) : err;
}

/* The model's row, and that the version is there; n = 0: only the model. */
static enum pd_err model_find(struct store_tx *tx, const char *model, int64_t n, int64_t version,
                              int64_t *ret_id, struct pd_why *why)
{
    int64_t there;
    enum pd_err err = store_model_check(tx, model, version, why);

    if (err == PD_OK)
        err = db_int(tx->db, ret_id, why, "SELECT id FROM model WHERE name = ?1", "t", model);
    if (err == PD_OK && n) {
        err = db_int(tx->db, &there, why, "SELECT 1 FROM model_version WHERE model_id = ?1 AND n = ?2", "ii",
                     *ret_id, n);
        if (err == PD_ERR_NOT_FOUND)
            err = pd_fail(why, err, "no version %lld of model '%s'", (long long)n, model);
    }
    return err;
}

/* n = 0: none of its versions. */
static enum pd_err not_loaded(struct store_tx *tx, const char *model, int64_t id, int64_t n,
                              struct pd_why *why)
{
    int64_t loaded;
    enum pd_err err =
        db_int(tx->db, &loaded, why,
               "SELECT n FROM model_version WHERE model_id = ?1 AND (?2 = 0 OR n = ?2) AND loaded "
               "= 1 ORDER BY n LIMIT 1",
               "ii", id, n);

    if (err == PD_OK)
        return pd_fail(why, PD_ERR_CONFLICT, "version %lld of model '%s' is loaded: unload it first",
                       (long long)loaded, model);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

static enum pd_err no_alias(struct store_tx *tx, const char *model, int64_t id, int64_t n, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        tx->db, &st, why,
        "SELECT alias FROM model_alias WHERE model_id = ?1 AND n = ?2 ORDER BY alias LIMIT 1", "ii", id, n);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK)
        return err == PD_ERR_NOT_FOUND ? PD_OK : err;
    err = pd_fail(why, PD_ERR_CONFLICT,
                  "version %lld of model '%s' has the alias '%s': move or delete the alias first",
                  (long long)n, model, db_text(st, 0));
    db_done(st);
    return err;
}

/* Whether `document` names a version of a model: ?1 is "name:", ?2 the version, 0 any. Most documents do not have the text
 * anywhere, and are not parsed. */
#define MODEL_AT(path) "json_extract(document, '" path "')"
#define NAMES_AT(path)                                                                                       \
    "ifnull(CASE ?2 WHEN 0 THEN substr(" MODEL_AT(path) ", 1, length(?1)) = ?1 "                             \
                                                        "ELSE " MODEL_AT(path) " = ?1 || ?2 END, 0)"
#define TEACHER NAMES_AT("$.train.teacher.model")
#define START NAMES_AT("$.train.start.model")
#define EVALUATED NAMES_AT("$.evaluate.model")
#define NAMES_VERSION                                                                                        \
    "CASE WHEN instr(document, ?1) THEN " TEACHER " OR " START " OR " EVALUATED " ELSE 0 END"

/* n = 0: none of its versions. A run reads the file at each start of its worker; a job may have runs to come. The index
 * of states is used, not the table (+id): most runs have ended. */
static enum pd_err not_needed(struct store_tx *tx, const char *model, int64_t n, struct pd_why *why)
{
    static const struct {
        const char *what, *sql;
    } users[] = {
        {"run", "SELECT id FROM run WHERE state IN ('queued', 'starting', 'running', 'preempted', 'paused', "
                "'cancelling') AND " NAMES_VERSION " ORDER BY +id LIMIT 1"},
        {"job",
         "SELECT id FROM job WHERE state IN ('queued', 'running', 'paused', 'cancelling') AND " NAMES_VERSION
         " ORDER BY +id LIMIT 1"}};
    char start[200]; /* names have at most 128 characters */

    snprintf(start, sizeof start, "%.190s:", model);
    for (size_t i = 0; i < sizeof users / sizeof *users; i++) {
        int64_t id;
        enum pd_err err = db_int(tx->db, &id, why, users[i].sql, "ti", start, n);

        if (err == PD_OK)
            return pd_fail(why, PD_ERR_CONFLICT,
                           "%s %lld, which has not ended, needs %s of model '%s': cancel it, or let it end",
                           users[i].what, (long long)id, n ? "this version" : "a version", model);
        if (err != PD_ERR_NOT_FOUND)
            return err;
    }
    return PD_OK;
}

enum pd_err store_model_archive(struct store_tx *tx, const char *model, int64_t n, int64_t version,
                                bool archive, struct pd_why *why)
{
    int64_t id;
    bool changed;
    enum pd_err err = model_find(tx, model, n, version, &id, why);

    if (err == PD_OK && archive)
        err = not_loaded(tx, model, id, n, why);
    if (err == PD_OK && n)
        err = db_run(
            tx->db, why,
            "UPDATE model_version SET archived_us = CASE WHEN ?3 THEN ?4 ELSE 0 END WHERE model_id = ?1 "
            "AND n = ?2 AND (archived_us > 0) <> ?3",
            "iiii", id, n, (int64_t)archive, tx->now_us);
    else if (err == PD_OK)
        err = db_run(tx->db, why,
                     "UPDATE model SET archived_us = CASE WHEN ?2 THEN ?3 ELSE 0 END WHERE id = ?1 AND "
                     "(archived_us > 0) <> ?2",
                     "iii", id, (int64_t)archive, tx->now_us);
    changed = err == PD_OK && sqlite3_changes(tx->db->db);
    if (changed)
        err = db_run(tx->db, why, "UPDATE model SET version = version + 1 WHERE id = ?1", "i", id);
    if (changed && err == PD_OK)
        err = tx_model_event(tx, archive ? "model.archived" : "model.unarchived", model, n, NULL, 0, why);
    return err;
}

enum pd_err store_model_delete(struct store_tx *tx, const char *model, int64_t n, int64_t version,
                               const char *who, struct pd_why *why)
{
    int64_t id;
    enum pd_err err = model_find(tx, model, n, version, &id, why);

    if (err == PD_OK)
        err = not_loaded(tx, model, id, n, why);
    if (err == PD_OK && n)
        err = no_alias(tx, model, id, n, why);
    if (err == PD_OK)
        err = not_needed(tx, model, n, why);
    if (err == PD_OK && n) {
        err = db_run(tx->db, why, "DELETE FROM model_version WHERE model_id = ?1 AND n = ?2", "ii", id, n);
        if (err == PD_OK)
            err = db_run(tx->db, why, "UPDATE model SET version = version + 1 WHERE id = ?1", "i", id);
    } else if (err == PD_OK) {
        err = db_run(tx->db, why, "DELETE FROM model_alias WHERE model_id = ?1", "i", id);
        if (err == PD_OK)
            err = db_run(tx->db, why, "DELETE FROM model_version WHERE model_id = ?1", "i", id);
        if (err == PD_OK)
            err = db_run(tx->db, why, "DELETE FROM model WHERE id = ?1", "i", id);
    }
    if (err == PD_OK)
        err = tx_weights_bury(tx, why);
    return err == PD_OK ? record_model_deletion(tx, who, "model.deleted", model, n, why) : err;
}
