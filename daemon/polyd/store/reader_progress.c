/* How far a run has come: whether it lives, the pace of its present attempt, the best value of a series. */
#include "daemon/polyd/store/db.h"

enum pd_err store_run_silent(struct store *s, int64_t before_us, bool (*row)(void *ctx, int64_t run_id),
                             void *ctx, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              "SELECT id FROM run WHERE state = 'running' AND heard_us > 0 AND heard_us < ?1 "
                              "ORDER BY heard_us LIMIT 1000",
                              "i", before_us);

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK)
        if (!row(ctx, sqlite3_column_int64(st, 0))) {
            db_done(st);
            return PD_OK;
        }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_run_to_pause(struct store *s, int64_t run_id, bool *ret, struct pd_why *why)
{
    int64_t wanted = 0;
    enum pd_err err = db_int(&s->db, &wanted, why, DB_PAUSE_WANTED, "i", run_id);

    *ret = wanted;
    return err;
}

enum pd_err store_run_pace(struct store *s, int64_t run_id, int n, struct store_pace *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        &s->db, &st, why,
        "SELECT start_step, started_us, created_us, ended_us FROM attempt WHERE run_id = ?1 AND n = ?2", "ii",
        run_id, (int64_t)n);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err != PD_OK)
        return err;
    *ret = (struct store_pace){.start_step = sqlite3_column_int64(st, 0),
                               .started_us = sqlite3_column_int64(st, 1),
                               .created_us = sqlite3_column_int64(st, 2),
                               .ended_us = sqlite3_column_int64(st, 3)};
    db_done(st);
    return PD_OK;
}

/* Attempt 0 is what clients noted. An attempt that went on from an earlier step has made the points beyond
 * that step again. */
#define BEST                                                                                                 \
    "SELECT m.step, m.value FROM metric m JOIN metric_key k ON k.id = m.key_id WHERE m.run_id = ?1 AND "     \
    "k.name = ?2 AND m.attempt > 0 AND abs(m.value) < 9e999 AND NOT EXISTS (SELECT 1 FROM attempt a WHERE "  \
    "a.run_id = m.run_id AND a.n > m.attempt AND a.start_step < m.step) ORDER BY "

enum pd_err store_run_best(struct store *s, int64_t run_id, const char *key, bool maximise,
                           struct store_best *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              maximise ? BEST "m.value DESC, m.step LIMIT 1" : BEST "m.value, m.step LIMIT 1",
                              "it", run_id, key);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err != PD_OK)
        return err;
    *ret = (struct store_best){.step = sqlite3_column_int64(st, 0), .value = db_real(st, 1)};
    db_done(st);
    return PD_OK;
}
