/* Named groups of runs, and secrets. */
#include <string.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

static enum pd_err group_find(struct store_tx *tx, const char *name, int64_t version, int64_t *ret_id,
                              struct pd_why *why)
{
    int64_t have;
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(tx->db, &st, why, "SELECT id, version FROM run_group WHERE name = ?1", "t", name);

    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "there is no group '%.200s'", name);
    if (err != PD_OK)
        return err;
    *ret_id = sqlite3_column_int64(st, 0);
    have = sqlite3_column_int64(st, 1);
    db_done(st);
    if (version >= 0 && version != have)
        return pd_fail(why, PD_ERR_STALE, "group '%.200s' has version %lld, not %lld", name, (long long)have,
                       (long long)version);
    return PD_OK;
}

static enum pd_err group_event(struct store_tx *tx, const char *kind, const char *name, struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    pd_json_open(&b, '{');
    pd_json_kv_str(&b, "group", name);
    pd_json_close(&b, '}');
    err = pd_buf_err(&b);
    if (err == PD_OK)
        err = store_event_add(tx, kind, 0, 0, 0, b.data, NULL, why);
    pd_buf_done(&b);
    return err;
}

enum pd_err store_group_insert(struct store_tx *tx, const char *name, const char *description,
                               struct pd_why *why)
{
    int64_t id;
    enum pd_err err = db_int(tx->db, &id, why, "SELECT id FROM run_group WHERE name = ?1", "t", name);

    if (err == PD_OK)
        return pd_fail(why, PD_ERR_EXISTS, "group '%.200s' exists already", name);
    if (err != PD_ERR_NOT_FOUND)
        return err;
    err = db_run(tx->db, why, "INSERT INTO run_group (name, description, created_us) VALUES (?1, ?2, ?3)",
                 "tti", name, description ? description : "", tx->now_us);
    return err == PD_OK ? group_event(tx, "group.created", name, why) : err;
}

enum pd_err store_group_update(struct store_tx *tx, const char *name, int64_t version,
                               const struct store_group_patch *patch, size_t *ret_index, struct pd_why *why)
{
    struct tx_run r;
    int64_t id;
    enum pd_err err = group_find(tx, name, version, &id, why);

    for (size_t i = 0; err == PD_OK && i < patch->add_count; i++) {
        err = tx_run_read(tx, patch->add[i], &r, why);
        if (err == PD_ERR_NOT_FOUND) {
            *ret_index = i;
            err = pd_fail(why, PD_ERR_INVALID, "there is no run %lld", (long long)patch->add[i]);
        }
        if (err == PD_OK)
            err = db_run(
                tx->db, why,
                "INSERT INTO run_group_member (group_id, run_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                "ii", id, patch->add[i]);
    }
    for (size_t i = 0; err == PD_OK && i < patch->drop_count; i++)
        err = db_run(tx->db, why, "DELETE FROM run_group_member WHERE group_id = ?1 AND run_id = ?2", "ii",
                     id, patch->drop[i]);
    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE run_group SET description = coalesce(?2, description), version = version + 1 WHERE "
            "id = ?1",
            "it", id, patch->description);
    return err == PD_OK ? group_event(tx, "group.changed", name, why) : err;
}

enum pd_err store_group_delete(struct store_tx *tx, const char *name, int64_t version, struct pd_why *why)
{
    int64_t id;
    enum pd_err err = group_find(tx, name, version, &id, why);

    if (err == PD_OK)
        err = db_run(tx->db, why, "DELETE FROM run_group WHERE id = ?1", "i", id);
    return err == PD_OK ? group_event(tx, "group.deleted", name, why) : err;
}

enum pd_err store_group_archive(struct store_tx *tx, const char *name, int64_t version, bool archive,
                                struct pd_why *why)
{
    int64_t id;
    enum pd_err err = group_find(tx, name, version, &id, why);

    if (err == PD_OK)
        err = db_run(
            tx->db, why,
            "UPDATE run_group SET archived_us = CASE WHEN ?2 THEN ?3 ELSE 0 END, version = version + 1 "
            "WHERE id = ?1 AND (archived_us > 0) <> ?2",
            "iii", id, (int64_t)archive, tx->now_us);
    if (err != PD_OK || !sqlite3_changes(tx->db->db))
        return err; /* asking twice is no error */
    return group_event(tx, archive ? "group.archived" : "group.unarchived", name, why);
}

enum pd_err store_secret(struct store_tx *tx, const char *name, const uint8_t fresh[32], uint8_t ret[32],
                         struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_run(tx->db, why, "INSERT INTO secret (name, value) VALUES (?1, ?2) ON CONFLICT DO NOTHING", "tb",
               name, fresh, (int64_t)32);

    if (err == PD_OK)
        err = db_bind(tx->db, &st, why, "SELECT value FROM secret WHERE name = ?1", "t", name);
    if (err == PD_OK)
        err = db_step(tx->db, st, why);
    if (err != PD_OK)
        return err;
    if (sqlite3_column_bytes(st, 0) == 32)
        memcpy(ret, sqlite3_column_blob(st, 0), 32);
    else
        err = pd_fail(why, PD_ERR_CORRUPT, "the secret '%s' has %d bytes", name, sqlite3_column_bytes(st, 0));
    db_done(st);
    return err;
}
