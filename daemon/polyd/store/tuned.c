/* Measured choices of back ends: kept by device, driver, library and the back end's own key. They cost time
 * to make, never correctness: what does not fit is left out, what is too much goes, the oldest first. */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "daemon/polyd/store/tx_private.h"
#include "kernels/base/json.h"

/* ---- writing --------------------------------------------------------------------------------- */

enum pd_err store_tuned_add(struct store_tx *tx, const struct store_tuned *t, bool *ret_new,
                            struct pd_why *why)
{
    size_t key = strlen(t->key);
    enum pd_err err;

    if (!t->device[0] || strlen(t->device) > 127)
        return pd_fail(why, PD_ERR_INVALID, "a measured choice has no device");
    if (!key || key > STORE_TUNED_KEY || !t->size || t->size > STORE_TUNED_VALUE)
        return pd_fail(why, PD_ERR_INVALID,
                       "a measured choice has a key of %zu and a value of %zu bytes, which is out of range",
                       key, t->size);
    err =
        db_run(tx->db, why,
               "INSERT INTO tuned (device, driver, library, key, value, run_id, time_us) VALUES (?1, ?2, ?3, "
               "?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
               "ttttbii", t->device, t->driver, t->library, t->key, t->value, (int64_t)t->size, t->run_id,
               tx->now_us);
    if (err == PD_OK && ret_new)
        *ret_new = sqlite3_changes(tx->db->db) == 1;
    return err;
}

enum pd_err store_tuned_trim(struct store_tx *tx, const char *device, int64_t *ret_gone, struct pd_why *why)
{
    int64_t have = 0, all = 0, gone = 0;
    enum pd_err err = db_int(tx->db, &have, why, "SELECT count(*) FROM tuned WHERE device = ?1", "t", device);

    if (err == PD_OK && have > STORE_TUNED_DEVICE) {
        err =
            db_run(tx->db, why,
                   "DELETE FROM tuned WHERE id IN (SELECT id FROM tuned WHERE device = ?1 ORDER BY id LIMIT "
                   "?2)",
                   "ti", device, have - STORE_TUNED_DEVICE);
        gone += have - STORE_TUNED_DEVICE;
    }
    if (err == PD_OK)
        err = db_int(tx->db, &all, why, "SELECT count(*) FROM tuned", "");
    if (err == PD_OK && all > STORE_TUNED_ALL) {
        err = db_run(tx->db, why, "DELETE FROM tuned WHERE id IN (SELECT id FROM tuned ORDER BY id LIMIT ?1)",
                     "i", all - STORE_TUNED_ALL);
        gone += all - STORE_TUNED_ALL;
    }
    if (err == PD_OK && ret_gone)
        *ret_gone = gone;
    return err;
}

enum pd_err store_tuned_drop(struct store_tx *tx, const char *device, int64_t version, const char *who,
                             struct pd_why *why)
{
    int64_t have = 0, count = 0;
    struct pd_buf before;
    enum pd_err err =
        db_int(tx->db, &count, why, "SELECT count(*) FROM tuned WHERE device = ?1", "t", device);

    if (err == PD_OK && !count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "no measured choices are stored for '%.127s'", device);
    if (err == PD_OK)
        err = db_int(tx->db, &have, why, "SELECT max(id) FROM tuned WHERE device = ?1", "t", device);
    if (err == PD_OK && version >= 0 && version != have)
        return pd_fail(why, PD_ERR_STALE, "the choices of '%.127s' have version %lld, not %lld", device,
                       (long long)have, (long long)version);
    if (err == PD_OK)
        err = db_run(tx->db, why, "DELETE FROM tuned WHERE device = ?1", "t", device);
    if (err != PD_OK)
        return err;
    pd_buf_init(&before, 0);
    pd_json_open(&before, '{');
    pd_json_kv_int(&before, "records", count);
    pd_json_close(&before, '}');
    err = pd_buf_err(&before);
    if (err == PD_OK)
        err = store_audit(tx, who, "tuned.dropped", device, before.data, NULL, why);
    pd_buf_done(&before);
    return err;
}

/* ---- reading --------------------------------------------------------------------------------- */

enum pd_err store_tuned_list(struct store *s, const char *device, const char *driver, const char *library,
                             bool (*row)(void *ctx, const struct store_tuned *t), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT key, value, run_id, time_us FROM tuned WHERE device = ?1 AND driver = ?2 "
                "AND library = ?3 ORDER BY id",
                "ttt", device, driver, library);
    bool more = true;

    while (err == PD_OK && more && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_tuned t = {.device = device,
                                .driver = driver,
                                .library = library,
                                .key = db_text(st, 0),
                                .value = sqlite3_column_blob(st, 1),
                                .size = (size_t)sqlite3_column_bytes(st, 1),
                                .run_id = sqlite3_column_int64(st, 2),
                                .time_us = sqlite3_column_int64(st, 3)};

        if (!t.key[0] || strlen(t.key) != (size_t)sqlite3_column_bytes(st, 0) ||
            strlen(t.key) > STORE_TUNED_KEY || t.size > STORE_TUNED_VALUE)
            t.size = 0;
        more = row(ctx, &t);
    }
    if (err == PD_OK)
        db_done(st); /* stopped early */
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_tuned_sums(struct store *s, const char *device,
                             bool (*row)(void *ctx, const struct store_tuned_sum *t), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                "SELECT device, driver, library, count(*), sum(length(CAST(key AS BLOB)) + length(value)), "
                "min(time_us), "
                "max(time_us), (SELECT max(o.id) FROM tuned o WHERE o.device = t.device) FROM tuned t WHERE "
                "?1 IS NULL "
                "OR device = ?1 GROUP BY device, driver, library ORDER BY device, driver, library",
                "t", device);
    bool more = true;

    while (err == PD_OK && more && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_tuned_sum t = {.device = db_text(st, 0),
                                    .driver = db_text(st, 1),
                                    .library = db_text(st, 2),
                                    .records = sqlite3_column_int64(st, 3),
                                    .bytes = sqlite3_column_int64(st, 4),
                                    .first_us = sqlite3_column_int64(st, 5),
                                    .last_us = sqlite3_column_int64(st, 6),
                                    .version = sqlite3_column_int64(st, 7)};

        more = row(ctx, &t);
    }
    if (err == PD_OK)
        db_done(st);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}
