/* Versions of models whose weights belong to the registry itself: uploaded, read from a data root, averaged. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/polyd/store/tx_private.h"

#define FILES_AT_ONCE 64

enum pd_err store_weights_register(struct store_tx *tx, const char *model, const struct store_weights *w,
                                   int64_t *ret_n, struct pd_why *why)
{
    int64_t id, model_id, n;
    enum pd_err err = db_run(
        tx->db, why,
        "INSERT INTO weights (path, bytes, digest, origin, source, document, step, created_us) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        "tittttii", w->path, w->bytes, w->digest, w->origin, w->source, w->document, w->step, tx->now_us);

    if (err != PD_OK)
        return err;
    id = sqlite3_last_insert_rowid(tx->db->db);
    err = tx_version_next(tx, model, &model_id, &n, why);
    if (err == PD_OK)
        err =
            db_run(tx->db, why,
                   "INSERT INTO model_version (model_id, n, weights_id, created_us) VALUES (?1, ?2, ?3, ?4)",
                   "iiii", model_id, n, id, tx->now_us);
    if (err == PD_OK)
        err = tx_model_event(tx, "model.registered", model, n, NULL, 0, why);
    if (err == PD_OK)
        *ret_n = n;
    return err;
}

enum pd_err tx_weights_bury(struct store_tx *tx, struct pd_why *why)
{
    return db_run(tx->db, why,
                  "UPDATE weights SET deleted_us = ?1 WHERE deleted_us = 0 AND NOT EXISTS (SELECT 1 FROM "
                  "model_version v WHERE v.weights_id = weights.id)",
                  "i", tx->now_us);
}

/* The row goes after the file: a step that is cut off between is done again. */
enum pd_err store_clean_weights(struct store_tx *tx, bool *ret_worked, struct pd_why *why)
{
    int64_t gone[FILES_AT_ONCE];
    int count = 0;
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        tx->db, &st, why, "SELECT id, in_state(path) FROM weights WHERE deleted_us > 0 ORDER BY id LIMIT ?1",
        "i", (int64_t)FILES_AT_ONCE);

    while (err == PD_OK && (err = db_step(tx->db, st, why)) == PD_OK)
        if (!unlink(db_text(st, 1)) || errno == ENOENT)
            gone[count++] = sqlite3_column_int64(st, 0);
    if (err == PD_ERR_NOT_FOUND)
        err = PD_OK;
    for (int i = 0; err == PD_OK && i < count; i++)
        err = db_run(tx->db, why, "DELETE FROM weights WHERE id = ?1", "i", gone[i]);
    *ret_worked = count > 0;
    return err;
}
