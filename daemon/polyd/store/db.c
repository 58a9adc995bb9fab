#include "daemon/polyd/store/db.h"

#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITER_BUSY_MS 2000 /* longer than any write of ours */
#define READER_BUSY_MS 5000

static enum pd_err err_of_rc(int rc)
{
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_DONE:
    case SQLITE_ROW:
        return PD_OK;
    case SQLITE_FULL:
        return PD_ERR_FULL;
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
        return PD_ERR_IO;
    case SQLITE_CONSTRAINT:
        return PD_ERR_CONFLICT;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return PD_ERR_CORRUPT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return PD_ERR_BUSY;
    case SQLITE_NOMEM:
        return PD_ERR_NOMEM;
    case SQLITE_TOOBIG:
        return PD_ERR_LIMIT;
    case SQLITE_INTERRUPT:
        return PD_ERR_CANCELLED;
    default:
        return PD_ERR_INTERNAL;
    }
}

#define LATE_OPS 4000 /* steps of SQLite's machine between two looks at the clock: some 50 us */

static bool is_late(const struct db *d)
{
    return d->until_us && pd_clock_mono_us() > d->until_us;
}

static enum pd_err fail_late(struct pd_why *why)
{
    return pd_fail(why, PD_ERR_TIMEOUT, "the read exceeds server.read_timeout_ms; request less at once");
}

static int on_progress(void *ctx)
{
    return is_late(ctx);
}

void db_until(struct db *d, int64_t until_us)
{
    if (!until_us != !d->until_us)
        sqlite3_progress_handler(d->db, until_us ? LATE_OPS : 0, until_us ? on_progress : NULL, d);
    d->until_us = until_us;
}

enum pd_err db_fail(struct db *d, int rc, struct pd_why *why)
{
    if ((rc & 0xff) == SQLITE_INTERRUPT && d->until_us)
        return fail_late(why);
    return pd_fail(why, err_of_rc(rc), "sqlite: %s (%d)", d->db ? sqlite3_errmsg(d->db) : sqlite3_errstr(rc),
                   rc);
}

enum pd_err db_exec(struct db *d, const char *sql, struct pd_why *why)
{
    int rc = sqlite3_exec(d->db, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? PD_OK : db_fail(d, rc, why);
}

static void in_state(sqlite3_context *ctx, int argc, sqlite3_value **argv)
{
    const char *dir = sqlite3_user_data(ctx), *path = (const char *)sqlite3_value_text(argv[0]);
    char *whole;

    (void)argc;
    if (!path || *path == '/' || !*path) {
        sqlite3_result_value(ctx, argv[0]);
        return;
    }
    whole = sqlite3_mprintf("%s/%s", dir, path);
    if (whole)
        sqlite3_result_text(ctx, whole, -1, sqlite3_free);
    else
        sqlite3_result_error_nomem(ctx);
}

enum pd_err db_open(struct db *d, const char *path, bool writer, struct pd_why *why)
{
    int flags =
        SQLITE_OPEN_NOMUTEX | (writer ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY);
    enum pd_err err;
    int rc;

    memset(d, 0, sizeof *d);
    rc = sqlite3_open_v2(path, &d->db, flags, NULL);
    if (rc != SQLITE_OK) {
        err = pd_fail(why, err_of_rc(rc), "cannot open '%s': %s", path,
                      d->db ? sqlite3_errmsg(d->db) : "no memory");
        db_close(d);
        return err;
    }
    sqlite3_extended_result_codes(d->db, 1);
    d->dir = strdup(path);
    if (d->dir && strrchr(d->dir, '/'))
        *strrchr(d->dir, '/') = '\0';
    if (!d->dir || sqlite3_create_function_v2(d->db, "in_state", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                              d->dir, in_state, NULL, NULL, NULL) != SQLITE_OK) {
        db_close(d);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the database");
    }
    sqlite3_busy_timeout(d->db, writer ? WRITER_BUSY_MS : READER_BUSY_MS);
    if (writer)
        /* 4000 pages (16 MB) between checkpoints: a checkpoint rewrites pages, and fewer of them are
         * rewritten twice. The journal is cut back to 64 MB after a long reader. */
        err = db_exec(d,
                      "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                      "PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -65536;"
                      "PRAGMA wal_autocheckpoint = 4000; PRAGMA temp_store = MEMORY;",
                      why);
    else
        err = db_exec(d,
                      "PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -8192;"
                      "PRAGMA temp_store = MEMORY;",
                      why);
    if (err != PD_OK)
        db_close(d);
    return err;
}

void db_close(struct db *d)
{
    for (size_t i = 0; i < STORE_STMT_SLOTS; i++)
        if (d->slot[i].stmt)
            sqlite3_finalize(d->slot[i].stmt);
    sqlite3_close(d->db);
    free(d->dir);
    memset(d, 0, sizeof *d);
}

static enum pd_err db_prepare(struct db *d, sqlite3_stmt **ret, struct pd_why *why, const char *sql)
{
    size_t at = ((uintptr_t)sql * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - STORE_STMT_BITS);
    int rc;

    for (size_t i = 0; i < STORE_STMT_SLOTS; i++, at = (at + 1) % STORE_STMT_SLOTS) {
        if (d->slot[at].sql == sql) {
            *ret = d->slot[at].stmt;
            return PD_OK;
        }
        if (!d->slot[at].sql) {
            rc = sqlite3_prepare_v3(d->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &d->slot[at].stmt, NULL);
            if (rc != SQLITE_OK)
                return db_fail(d, rc, why);
            d->slot[at].sql = sql;
            *ret = d->slot[at].stmt;
            return PD_OK;
        }
    }
    return pd_fail(why, PD_ERR_INTERNAL, "the statement cache is full");
}

static enum pd_err bind_list(struct db *d, sqlite3_stmt *st, struct pd_why *why, const char *types,
                             va_list ap)
{
    int rc = SQLITE_OK;

    for (int i = 1; *types && rc == SQLITE_OK; types++, i++) {
        switch (*types) {
        case 'i':
            rc = sqlite3_bind_int64(st, i, va_arg(ap, int64_t));
            break;
        case 'd': {
            double v = va_arg(ap, double);

            rc = isnan(v) ? sqlite3_bind_null(st, i) : sqlite3_bind_double(st, i, v);
            break;
        }
        case 't': {
            const char *text = va_arg(ap, const char *);

            rc = text ? sqlite3_bind_text(st, i, text, -1, SQLITE_STATIC) : sqlite3_bind_null(st, i);
            break;
        }
        case 'b': {
            const void *bytes = va_arg(ap, const void *);
            int64_t len = va_arg(ap, int64_t);

            rc = len ? sqlite3_bind_blob64(st, i, bytes, (sqlite3_uint64)len, SQLITE_STATIC)
                     : sqlite3_bind_zeroblob(st, i, 0);
            break;
        }
        default:
            return pd_fail(why, PD_ERR_INTERNAL, "no binding of type '%c'", *types);
        }
    }
    return rc == SQLITE_OK ? PD_OK : db_fail(d, rc, why);
}

static enum pd_err bind_va(struct db *d, sqlite3_stmt **ret, struct pd_why *why, const char *sql,
                           const char *types, va_list ap)
{
    sqlite3_stmt *st = NULL;
    enum pd_err err = is_late(d) ? fail_late(why) : db_prepare(d, &st, why, sql);

    if (err != PD_OK)
        return err;
    sqlite3_reset(st);
    err = bind_list(d, st, why, types, ap);
    if (err == PD_OK)
        *ret = st;
    return err;
}

enum pd_err db_bind(struct db *d, sqlite3_stmt **ret, struct pd_why *why, const char *sql, const char *types,
                    ...)
{
    va_list ap;
    enum pd_err err;

    va_start(ap, types);
    err = bind_va(d, ret, why, sql, types, ap);
    va_end(ap);
    return err;
}

void db_done(sqlite3_stmt *st)
{
    sqlite3_reset(st);
    sqlite3_clear_bindings(st); /* what was bound is the caller's and may go now */
}

enum pd_err db_step(struct db *d, sqlite3_stmt *st, struct pd_why *why)
{
    int rc = sqlite3_step(st);
    enum pd_err err;

    if (rc == SQLITE_ROW)
        return PD_OK;
    err = rc == SQLITE_DONE ? PD_ERR_NOT_FOUND : db_fail(d, rc, why);
    db_done(st);
    return err;
}

static enum pd_err first_row(struct db *d, sqlite3_stmt **ret, struct pd_why *why, const char *sql,
                             const char *types, va_list ap)
{
    enum pd_err err = bind_va(d, ret, why, sql, types, ap);

    return err == PD_OK ? db_step(d, *ret, why) : err;
}

enum pd_err db_run(struct db *d, struct pd_why *why, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st;
    va_list ap;
    enum pd_err err;

    va_start(ap, types);
    err = first_row(d, &st, why, sql, types, ap);
    va_end(ap);
    if (err == PD_OK)
        db_done(st); /* a row of RETURNING or a pragma: of no interest */
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err db_int(struct db *d, int64_t *ret, struct pd_why *why, const char *sql, const char *types, ...)
{
    sqlite3_stmt *st;
    va_list ap;
    enum pd_err err;

    va_start(ap, types);
    err = first_row(d, &st, why, sql, types, ap);
    va_end(ap);
    if (err == PD_OK) {
        *ret = sqlite3_column_int64(st, 0);
        db_done(st);
    }
    return err;
}

const char *db_text(sqlite3_stmt *st, int column)
{
    const char *text = (const char *)sqlite3_column_text(st, column);

    return text ? text : "";
}

double db_real(sqlite3_stmt *st, int column)
{
    return sqlite3_column_type(st, column) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(st, column);
}

void db_job(sqlite3_stmt *st, struct store_job *ret)
{
    *ret = (struct store_job){
        .id = sqlite3_column_int64(st, 0),
        .version = sqlite3_column_int64(st, 1),
        .name = db_text(st, 3),
        .experiment = db_text(st, 4),
        .template_name = db_text(st, 5),
        .tags = db_text(st, 6),
        .notes = db_text(st, 7),
        .reason = db_text(st, 8),
        .register_name = db_text(st, 9),
        .owner = db_text(st, 10),
        .priority = sqlite3_column_int(st, 11),
        .runs = sqlite3_column_int64(st, 12),
        .runs_ended = sqlite3_column_int64(st, 13),
        .runs_failed = sqlite3_column_int64(st, 14),
        .created_us = sqlite3_column_int64(st, 15),
        .started_us = sqlite3_column_int64(st, 16),
        .ended_us = sqlite3_column_int64(st, 17),
        .document = db_text(st, 18),
        .planned = sqlite3_column_int64(st, 19),
        .points = sqlite3_column_int64(st, 20),
        .trials = sqlite3_column_int64(st, 21),
        .concurrency = sqlite3_column_int64(st, 22),
        .metric = db_text(st, 23),
        .maximise = !strcmp(db_text(st, 24), "max"),
        .sweep = db_text(st, 25),
        .archived_us = sqlite3_column_int64(st, 27),
        .runs_deleted = sqlite3_column_int64(st, 28),
    };
    job_kind_parse(db_text(st, 26), &ret->kind);
    job_state_parse(db_text(st, 2), &ret->state);
}

void db_run_row(sqlite3_stmt *st, struct store_run *ret)
{
    *ret = (struct store_run){
        .id = sqlite3_column_int64(st, 0),
        .job_id = sqlite3_column_int64(st, 1),
        .n = sqlite3_column_int64(st, 2),
        .version = sqlite3_column_int64(st, 3),
        .name = db_text(st, 6),
        .experiment = db_text(st, 7),
        .reason = db_text(st, 8),
        .device = db_text(st, 9),
        .slots = sqlite3_column_int(st, 10),
        .threads = sqlite3_column_int(st, 11),
        .priority = sqlite3_column_int(st, 12),
        .max_restarts = sqlite3_column_int(st, 13),
        .attempts = sqlite3_column_int(st, 14),
        .restarts = sqlite3_column_int(st, 15),
        .step = sqlite3_column_int64(st, 16),
        .total_steps = sqlite3_column_int64(st, 17),
        .time_limit_us = sqlite3_column_int64(st, 18),
        .warn_before_us = sqlite3_column_int64(st, 19),
        .not_before_us = sqlite3_column_int64(st, 20),
        .used_us = sqlite3_column_int64(st, 21),
        .created_us = sqlite3_column_int64(st, 22),
        .started_us = sqlite3_column_int64(st, 23),
        .ended_us = sqlite3_column_int64(st, 24),
        .config_digest = db_text(st, 25),
        .plan_digest = db_text(st, 26),
        .document = db_text(st, 27),
        .sweep = db_text(st, 28),
        .tags = db_text(st, 29),
        .point = sqlite3_column_int64(st, 30),
        .trial = sqlite3_column_int64(st, 31),
        .seed = sqlite3_column_int64(st, 32),
        .concurrency = sqlite3_column_int64(st, 33),
        .clock_us = sqlite3_column_int64(st, 34),
        .archived_us = sqlite3_column_int64(st, sqlite3_column_int64(st, 36) ? 36 : 37),
        .data_digest = db_text(st, 38),
        .data_digest_of = db_text(st, 39),
        .program_digest = db_text(st, 40),
    };
    job_kind_parse(db_text(st, 35), &ret->kind);
    job_run_state_parse(db_text(st, 4), &ret->state);
    job_outcome_parse(db_text(st, 5), &ret->outcome);
}

void db_attempt(sqlite3_stmt *st, struct store_attempt *ret)
{
    const void *token = sqlite3_column_blob(st, 15);

    *ret = (struct store_attempt){
        .run_id = sqlite3_column_int64(st, 0),
        .n = sqlite3_column_int(st, 1),
        .message = db_text(st, 4),
        .devices = db_text(st, 5),
        .pid = sqlite3_column_int64(st, 6),
        .pid_start = sqlite3_column_int64(st, 7),
        .acked_seq = sqlite3_column_int64(st, 8),
        .start_step = sqlite3_column_int64(st, 9),
        .step = sqlite3_column_int64(st, 10),
        .log_bytes = sqlite3_column_int64(st, 11),
        .created_us = sqlite3_column_int64(st, 12),
        .started_us = sqlite3_column_int64(st, 13),
        .ended_us = sqlite3_column_int64(st, 14),
        .exit_status = sqlite3_column_int(st, 16),
        .clock_us = sqlite3_column_int64(st, 17),
    };
    if (token && sqlite3_column_bytes(st, 15) == (int)sizeof ret->token_sha256)
        memcpy(ret->token_sha256, token, sizeof ret->token_sha256);
    job_attempt_state_parse(db_text(st, 2), &ret->state);
    job_cause_parse(db_text(st, 3), &ret->cause);
}
