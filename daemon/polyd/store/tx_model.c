/* Checkpoints, models, blobs, plans, idempotency, audit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

/* ---- checkpoints ---------------------------------------------------------------------------- */

static enum pd_err job_of_run(struct store_tx *tx, int64_t run_id, int64_t *ret, struct pd_why *why)
{
    enum pd_err err = db_int(tx->db, ret, why, "SELECT job_id FROM run WHERE id = ?1", "i", run_id);

    return err == PD_ERR_NOT_FOUND ? pd_fail(why, err, "no run %lld", (long long)run_id) : err;
}

/* Of a file in the folder of its run, the path from the state folder on: the row is good wherever that lies.
 */
static const char *stored_path(int64_t run_id, const char *path, char *out, size_t size)
{
    const char *name = strrchr(path, '/');
    char tail[64];
    size_t len;

    if (!name)
        return path;
    len = (size_t)snprintf(tail, sizeof tail, "/runs/%lld/checkpoints", (long long)run_id);
    if ((size_t)(name - path) < len || strncmp(name - len, tail, len) != 0)
        return path;
    return snprintf(out, size, "%s%s", tail + 1, name) < (int)size ? out : path;
}

enum pd_err store_checkpoint_insert(struct store_tx *tx, const struct store_checkpoint *c, int64_t *ret_id,
                                    struct pd_why *why)
{
    struct pd_buf b;
    int64_t job_id, id;
    char path[512];
    enum pd_err err = job_of_run(tx, c->run_id, &job_id, why);

    /* A run that was paused before an evaluation writes its file again after it. */
    if (err == PD_OK)
        err = store_checkpoint_delete_path(tx, c->run_id, c->path, why);
    if (err != PD_OK)
        return err;
    err =
        db_run(tx->db, why,
               "INSERT INTO checkpoint (run_id, attempt, step, kind, path, bytes, digest, value, "
               "created_us) VALUES (?1, "
               "?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
               "iiittitdi", c->run_id, (int64_t)c->attempt, c->step, c->kind,
               stored_path(c->run_id, c->path, path, sizeof path), c->bytes, c->digest, c->value, tx->now_us);
    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_id(&b, "id", id);
    pd_json_kv_int(&b, "step", c->step);
    pd_json_kv_int(&b, "bytes", c->bytes);
    pd_json_kv_str(&b, "kind", c->kind);
    pd_json_close(&b, '}');
    err = pd_buf_err(&b);
    if (err == PD_OK)
        err = store_event_add(tx, "checkpoint", job_id, c->run_id, c->attempt, b.data, NULL, why);
    pd_buf_done(&b);
    if (err == PD_OK && ret_id)
        *ret_id = id;
    return err;
}

enum pd_err store_checkpoint_delete(struct store_tx *tx, int64_t id, struct pd_why *why)
{
    int64_t used;
    enum pd_err err =
        db_int(tx->db, &used, why, "SELECT count(*) FROM model_version WHERE checkpoint_id = ?1", "i", id);

    if (err == PD_OK && used)
        return pd_fail(why, PD_ERR_CONFLICT, "checkpoint %lld belongs to a model", (long long)id);
    if (err == PD_OK)
        err = db_run(tx->db, why, "UPDATE checkpoint SET deleted_us = ?2 WHERE id = ?1 AND deleted_us = 0",
                     "ii", id, tx->now_us);
    if (err == PD_OK && sqlite3_changes(tx->db->db) != 1)
        err = pd_fail(why, PD_ERR_NOT_FOUND, "there is no checkpoint %lld", (long long)id);
    return err;
}

enum pd_err store_checkpoint_delete_path(struct store_tx *tx, int64_t run_id, const char *path,
                                         struct pd_why *why)
{
    char stored[512];

    return db_run(tx->db, why,
                  "UPDATE checkpoint SET deleted_us = ?3 WHERE run_id = ?1 AND path = ?2 AND deleted_us = 0",
                  "iti", run_id, stored_path(run_id, path, stored, sizeof stored), tx->now_us);
}

#define SWEEP_AT_ONCE 64

enum pd_err store_checkpoint_sweep(struct store_tx *tx, int64_t run_id, struct pd_why *why)
{
    int64_t after = 0, gone[SWEEP_AT_ONCE];
    sqlite3_stmt *st;
    int seen, count;
    enum pd_err err;

    do {
        seen = count = 0;
        err = db_bind(
            tx->db, &st, why,
            "SELECT id, in_state(path) FROM checkpoint WHERE run_id = ?1 AND id > ?2 AND deleted_us = 0 "
            "ORDER BY id LIMIT ?3",
            "iii", run_id, after, (int64_t)SWEEP_AT_ONCE);
        while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK) {
            after = sqlite3_column_int64(st, 0);
            seen++;
            if (access(db_text(st, 1), F_OK) && errno == ENOENT)
                gone[count++] = after;
        }
        if (err == PD_ERR_NOT_FOUND)
            err = PD_OK;
        for (int i = 0; err == PD_OK && i < count; i++)
            err = db_run(tx->db, why, "UPDATE checkpoint SET deleted_us = ?2 WHERE id = ?1", "ii", gone[i],
                         tx->now_us);
    } while (err == PD_OK && seen == SWEEP_AT_ONCE);
    return err;
}

enum pd_err store_checkpoint_choose(struct store_tx *tx, int64_t run_id, int64_t *ret_id, struct pd_why *why)
{
    enum pd_err err =
        db_int(tx->db, ret_id, why,
               "SELECT id FROM checkpoint WHERE run_id = ?1 AND deleted_us = 0 ORDER BY kind = 'best' DESC, "
               "step DESC, id DESC LIMIT 1",
               "i", run_id);

    struct tx_run r;

    if (err != PD_ERR_NOT_FOUND)
        return err;
    if (tx_run_read(tx, run_id, &r, NULL) != PD_OK)
        return pd_fail(why, err, "there is no run %lld", (long long)run_id);
    if (r.state == JOB_RUN_ENDED)
        return pd_fail(why, err, "run %lld ended as %s and has no checkpoint", (long long)run_id,
                       job_outcome_name(r.outcome));
    return pd_fail(why, err,
                   "run %lld has no checkpoint yet: one is written at the interval of "
                   "train.checkpoint_every, at each best "
                   "evaluation and at the end",
                   (long long)run_id);
}

enum pd_err store_blob_insert(struct store_tx *tx, const struct store_blob *b, struct pd_why *why)
{
    enum pd_err err =
        db_run(tx->db, why,
               "INSERT INTO blob (sha256, bytes, created_us) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
               "tii", b->sha256, b->bytes, tx->now_us);

    if (err == PD_OK)
        err = db_run(tx->db, why,
                     "INSERT INTO run_blob (run_id, attempt, key, kind, step, time_us, meta, sha256) VALUES "
                     "(?1, ?2, ?3, "
                     "?4, ?5, ?6, ?7, ?8)",
                     "iittiitt", b->run_id, (int64_t)b->attempt, b->key, b->kind, b->step, b->time_us,
                     b->meta, b->sha256);
    return err;
}

/* ---- models --------------------------------------------------------------------------------- */

enum pd_err tx_model_event(struct store_tx *tx, const char *kind, const char *model, int64_t n,
                           const char *alias, int64_t run_id, struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "model", model);
    if (n)
        pd_json_kv_id(&b, "version", n);
    if (alias)
        pd_json_kv_str(&b, "alias", alias);
    pd_json_close(&b, '}');
    err = pd_buf_err(&b);
    if (err == PD_OK)
        err = store_event_add(tx, kind, 0, run_id, 0, b.data, NULL, why);
    pd_buf_done(&b);
    return err;
}

static enum pd_err model_id(struct store_tx *tx, const char *name, int64_t *ret, struct pd_why *why)
{
    enum pd_err err = db_int(tx->db, ret, why, "SELECT id FROM model WHERE name = ?1", "t", name);

    return err == PD_ERR_NOT_FOUND ? pd_fail(why, err, "no model '%s'", name) : err;
}

enum pd_err tx_version_next(struct store_tx *tx, const char *model, int64_t *ret_id, int64_t *ret_n,
                            struct pd_why *why)
{
    enum pd_err err = db_run(
        tx->db, why, "INSERT INTO model (name, created_us) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
        "ti", model, tx->now_us);

    if (err == PD_OK)
        err = db_run(tx->db, why,
                     "UPDATE model SET versions = versions + 1, version = version + 1, archived_us = 0 WHERE "
                     "name = ?1",
                     "t", model);
    if (err == PD_OK)
        err = model_id(tx, model, ret_id, why);
    return err == PD_OK ? db_int(tx->db, ret_n, why, "SELECT versions FROM model WHERE id = ?1", "i", *ret_id)
                        : err;
}

enum pd_err store_model_register(struct store_tx *tx, const char *model, int64_t checkpoint_id,
                                 int64_t *ret_n, struct pd_why *why)
{
    struct tx_run r;
    int64_t run_id, id, n = 0;
    enum pd_err err;

    err = db_int(tx->db, &run_id, why, "SELECT run_id FROM checkpoint WHERE id = ?1 AND deleted_us = 0", "i",
                 checkpoint_id);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "there is no checkpoint %lld", (long long)checkpoint_id);
    if (err == PD_OK)
        err = tx_run_read(tx, run_id, &r, why);
    if (err == PD_OK && r.state != JOB_RUN_ENDED) /* its worker may remove older checkpoints as it goes on */
        return pd_fail(why, PD_ERR_CONFLICT,
                       "run %lld has not ended: register its checkpoint after it has ended",
                       (long long)run_id);
    if (err == PD_OK)
        err = tx_version_next(tx, model, &id, &n, why);
    if (err == PD_OK)
        err = db_run(tx->db, why,
                     "INSERT INTO model_version (model_id, n, run_id, checkpoint_id, created_us) VALUES (?1, "
                     "?2, ?3, ?4, "
                     "?5)",
                     "iiiii", id, n, run_id, checkpoint_id, tx->now_us);
    if (err == PD_OK)
        err = tx_model_event(tx, "model.registered", model, n, NULL, run_id, why);
    if (err == PD_OK)
        *ret_n = n;
    return err;
}

enum pd_err tx_job_register(struct store_tx *tx, int64_t job_id, struct pd_why *why)
{
    int64_t checkpoint, n;
    char model[512];
    sqlite3_stmt *st;
    enum pd_err err;

    err = db_bind(
        tx->db, &st, why,
        "SELECT j.register_name, c.id FROM job j JOIN run r ON r.job_id = j.id "
        "AND r.outcome = 'succeeded' JOIN checkpoint c ON c.run_id = r.id AND c.deleted_us = 0 LEFT JOIN "
        "metric_latest l ON l.run_id = r.id AND l.key_id = (SELECT id FROM metric_key WHERE name = j.metric) "
        "WHERE j.id = ?1 AND j.register_name <> '' ORDER BY CASE j.mode WHEN 'max' THEN "
        "-l.max ELSE l.min END NULLS LAST, r.id, c.kind = 'best' DESC, c.step DESC, c.id DESC LIMIT 1",
        "i", job_id);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return PD_OK;
    if (err != PD_OK)
        return err;
    snprintf(model, sizeof model, "%s", db_text(st, 0));
    checkpoint = sqlite3_column_int64(st, 1);
    db_done(st);
    return store_model_register(tx, model, checkpoint, &n, why);
}

enum pd_err store_model_set_loaded(struct store_tx *tx, const char *model, int64_t n, bool loaded,
                                   struct pd_why *why)
{
    enum pd_err err = db_run(
        tx->db, why,
        "UPDATE model_version SET loaded = ?3, archived_us = CASE WHEN ?3 THEN 0 ELSE archived_us END WHERE "
        "n = ?2 AND model_id = (SELECT id FROM model WHERE "
        "name = ?1)",
        "tii", model, n, (int64_t)loaded);

    if (err == PD_OK && sqlite3_changes(tx->db->db) != 1)
        return pd_fail(why, PD_ERR_NOT_FOUND, "no version %lld of model '%s'", (long long)n, model);
    if (err == PD_OK && loaded) /* lists show what is served */
        err = db_run(tx->db, why,
                     "UPDATE model SET archived_us = 0, version = version + 1 WHERE name = ?1 AND "
                     "archived_us > 0",
                     "t", model);
    return err == PD_OK
               ? tx_model_event(tx, loaded ? "model.loaded" : "model.unloaded", model, n, NULL, 0, why)
               : err;
}

enum pd_err store_model_check(struct store_tx *tx, const char *model, int64_t version, struct pd_why *why)
{
    int64_t present;
    enum pd_err err = db_int(tx->db, &present, why, "SELECT version FROM model WHERE name = ?1", "t", model);

    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no model '%s'", model);
    if (err == PD_OK && version >= 0 && version != present)
        return pd_fail(why, PD_ERR_STALE, "model '%s' has changed in the meantime", model);
    return err;
}

enum pd_err store_version_check(struct store_tx *tx, const char *model, int64_t n, const char *digest,
                                struct pd_why *why)
{
    int64_t there;
    enum pd_err err =
        db_int(tx->db, &there, why,
               "SELECT 1 FROM model m JOIN model_version v ON v.model_id = m.id LEFT JOIN checkpoint c ON "
               "c.id = v.checkpoint_id LEFT JOIN weights w ON w.id = v.weights_id WHERE m.name = ?1 AND "
               "v.n = ?2 AND coalesce(c.digest, w.digest) = ?3",
               "tit", model, n, digest);

    return err == PD_ERR_NOT_FOUND
               ? pd_fail(why, err, "no version %lld of model '%s': it was deleted in the meantime",
                         (long long)n, model)
               : err;
}

enum pd_err store_alias_set(struct store_tx *tx, const char *model, const char *alias, int64_t n,
                            struct pd_why *why)
{
    int64_t id, there;
    enum pd_err err = model_id(tx, model, &id, why);

    if (err != PD_OK)
        return err;
    if (!n) {
        err = db_run(tx->db, why, "DELETE FROM model_alias WHERE model_id = ?1 AND alias = ?2", "it", id,
                     alias);
        if (err == PD_OK && sqlite3_changes(tx->db->db) != 1)
            return pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' has no alias '%s'", model, alias);
    } else {
        err = db_int(tx->db, &there, why, "SELECT 1 FROM model_version WHERE model_id = ?1 AND n = ?2", "ii",
                     id, n);
        if (err == PD_ERR_NOT_FOUND)
            return pd_fail(why, err, "no version %lld of model '%s'", (long long)n, model);
        if (err == PD_OK)
            err = db_run(tx->db, why,
                         "INSERT INTO model_alias (model_id, alias, n, updated_us) VALUES (?1, ?2, ?3, ?4) "
                         "ON CONFLICT "
                         "(model_id, alias) DO UPDATE SET n = excluded.n, updated_us = excluded.updated_us",
                         "itii", id, alias, n, tx->now_us);
    }
    if (err == PD_OK)
        err = db_run(tx->db, why, "UPDATE model SET version = version + 1 WHERE id = ?1", "i", id);
    return err == PD_OK ? tx_model_event(tx, "model.alias", model, n, alias, 0, why) : err;
}

/* ---- the rest ------------------------------------------------------------------------------- */

enum pd_err store_plan_put(struct store_tx *tx, const char *plan_digest, const char *plan, struct pd_why *why)
{
    return db_run(tx->db, why,
                  "INSERT INTO plan (digest, plan, created_us) VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO "
                  "UPDATE SET plan = "
                  "excluded.plan, created_us = excluded.created_us",
                  "tti", plan_digest, plan, tx->now_us);
}

enum pd_err store_idem_claim(struct store_tx *tx, const char *scope, const char *key,
                             const uint8_t body_sha256[32], int *ret_status, struct pd_buf *response,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    err = db_bind(
        tx->db, &st, why,
        "SELECT body_sha256, status, response, created_us FROM idempotency WHERE scope = ?1 AND key = ?2",
        "tt", scope, key);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_OK) {
        bool old = sqlite3_column_int64(st, 3) <= tx->clock_us - STORE_IDEM_KEEP_US;
        bool same = !memcmp(sqlite3_column_blob(st, 0), body_sha256, 32);

        if (!old && same) {
            *ret_status = sqlite3_column_int(st, 1);
            pd_buf_append(response, sqlite3_column_blob(st, 2), (size_t)sqlite3_column_bytes(st, 2));
        }
        db_done(st);
        if (!old)
            return !same ? pd_fail(why, PD_ERR_CONFLICT, "this Idempotency-Key was used with another body")
                   : pd_buf_err(response) != PD_OK
                       ? pd_fail(why, PD_ERR_NOMEM, "no memory for the first answer")
                       : pd_fail(why, PD_ERR_EXISTS, "answered before");
        err = db_run(tx->db, why, "DELETE FROM idempotency WHERE scope = ?1 AND key = ?2", "tt", scope, key);
    } else if (err == PD_ERR_NOT_FOUND)
        err = PD_OK;
    if (err != PD_OK)
        return err;
    return db_run(tx->db, why,
                  "INSERT INTO idempotency (scope, key, body_sha256, status, response, created_us) VALUES "
                  "(?1, ?2, ?3, 0, "
                  "x'', ?4)",
                  "ttbi", scope, key, body_sha256, (int64_t)32, tx->clock_us);
}

enum pd_err store_idem_finish(struct store_tx *tx, const char *scope, const char *key, int status,
                              const void *response, size_t len, struct pd_why *why)
{
    return db_run(tx->db, why,
                  "UPDATE idempotency SET status = ?3, response = ?4 WHERE scope = ?1 AND key = ?2", "ttib",
                  scope, key, (int64_t)status, response, (int64_t)len);
}

enum pd_err store_audit(struct store_tx *tx, const char *who, const char *what, const char *target,
                        const char *before, const char *after, struct pd_why *why)
{
    return db_run(
        tx->db, why,
        "INSERT INTO audit (time_us, who, what, target, before, after) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        "ittttt", tx->now_us, who, what, target, before, after);
}
