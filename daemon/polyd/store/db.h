/* daemon/polyd/store/db.h: the module's own view of SQLite: connections with a statement cache, and a
 * printf-like binding. Private to the module: sqlite3.h is included nowhere else.
 *
 * Statements are string literals: the cache is keyed by their address, which excludes text assembled at run
 * time. */
#pragma once

#include <sqlite3.h>

#include "daemon/polyd/store/store.h"
#include "kernels/base/buf.h"

#define STORE_APPLICATION_ID 0x504f4c59 /* "POLY" */
#define STORE_STMT_BITS 9               /* cache entries, more than there are literals */
#define STORE_STMT_SLOTS (1 << STORE_STMT_BITS)

struct db {
    sqlite3 *db;
    char *dir;        /* the state folder: the file's own */
    int64_t until_us; /* monotonic deadline of queries; 0 = none */
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } slot[STORE_STMT_SLOTS];
};

struct store {
    struct db db;
};

/* Opens with SQLITE_OPEN_NOMUTEX and the settings of the role; nothing is migrated. */
enum pd_err db_open(struct db *d, const char *path, bool writer, struct pd_why *why);
void db_close(struct db *d);
/* See store_reader_until. */
void db_until(struct db *d, int64_t until_us);

/* The error of the last call on this connection as enum pd_err. Fills `why`. */
enum pd_err db_fail(struct db *d, int rc, struct pd_why *why);

/* Runs plain text of one or more statements without results. */
enum pd_err db_exec(struct db *d, const char *sql, struct pd_why *why);

/* The prepared statement, reset and bound by `types`, one letter an argument: i int64_t, t text (NULL =
 * NULL), d double (NaN = NULL), b blob (pointer and int64_t length). Borrowed until db_done. */
enum pd_err db_bind(struct db *d, sqlite3_stmt **ret, struct pd_why *why, const char *sql, const char *types,
                    ...);
/* Ends a query: resets the statement. */
void db_done(sqlite3_stmt *st);
/* One row: PD_OK, or PD_ERR_NOT_FOUND at the end (the statement is then reset), or the failure. */
enum pd_err db_step(struct db *d, sqlite3_stmt *st, struct pd_why *why);
/* Bind and run to the end a statement without rows. */
enum pd_err db_run(struct db *d, struct pd_why *why, const char *sql, const char *types, ...);
/* One integer of one row; PD_ERR_NOT_FOUND without a row. */
enum pd_err db_int(struct db *d, int64_t *ret, struct pd_why *why, const char *sql, const char *types, ...);

/* Every connection has the SQL function in_state(path): a path relative to the state folder as an absolute
 * one. */

/* "/attention/k" as SQLite's path $."attention"."k"; false: it is no such pointer, or too long. */
bool db_json_path(const char *pointer, char *out, size_t size);

const char *db_text(sqlite3_stmt *st, int column); /* never NULL */
double db_real(sqlite3_stmt *st, int column);      /* NULL = NaN */

/* The common end of all lists: calls back per row until the callback returns false. */
#define DB_EACH_ROW(s, st, row_type, read, row, ctx, err, why)                                               \
    do {                                                                                                     \
        while ((err = db_step(&(s)->db, st, why)) == PD_OK) {                                                \
            row_type each;                                                                                   \
                                                                                                             \
            read(st, &each);                                                                                 \
            if (!row(ctx, &each)) {                                                                          \
                db_done(st);                                                                                 \
                break;                                                                                       \
            }                                                                                                \
        }                                                                                                    \
        if (err == PD_ERR_NOT_FOUND)                                                                         \
            err = PD_OK;                                                                                     \
    } while (0)

/* The columns that the row readers expect, and the readers. */
#define DB_JOB_COLUMNS                                                                                       \
    "id, version, state, name, experiment, template, tags, notes, reason, register_name, owner, priority, "  \
    "runs, "                                                                                                 \
    "runs_ended, runs_failed, created_us, started_us, ended_us, document, planned, points, trials, "         \
    "concurrency, metric, mode, sweep, kind, archived_us, runs_deleted"
void db_job(sqlite3_stmt *st, struct store_job *ret);

#define DB_RUN_COLUMNS                                                                                       \
    "r.id, r.job_id, r.n, r.version, r.state, r.outcome, j.name, j.experiment, r.reason, r.device, "         \
    "r.slots, "                                                                                              \
    "r.threads, r.priority, r.max_restarts, r.attempts, r.restarts, r.step, r.total_steps, "                 \
    "r.time_limit_us, "                                                                                      \
    "r.warn_before_us, r.not_before_us, r.used_us, r.created_us, r.started_us, r.ended_us, "                 \
    "r.config_digest, "                                                                                      \
    "r.plan_digest, r.document, r.sweep, j.tags, r.point, r.trial, r.seed, j.concurrency, r.clock_us, "      \
    "j.kind, r.archived_us, j.archived_us, r.data_sha256, r.data_of, r.program_sha256"
/* Conditions of a list of runs r and their jobs j: ?2 experiment, ?3 name, ?5 outcome, ?8 text, ?9 and ?10
 * tag, ?11 group; NULL = any; ?12 enum store_archived, for which ?6 is the requested job. */
#define DB_RUN_FILTER                                                                                        \
    " AND (?2 IS NULL OR j.experiment = ?2) AND (?3 IS NULL OR instr(lower(j.name), lower(?3)))"             \
    " AND (?5 IS NULL OR r.outcome = ?5)"                                                                    \
    " AND (?8 IS NULL OR instr(lower(j.name || char(10) || j.experiment || char(10) || j.tags || char(10) "  \
    "|| r.sweep || char(10) || '#' || r.id), lower(?8)))"                                                    \
    " AND (?9 IS NULL OR EXISTS (SELECT 1 FROM json_each(j.tags) t WHERE t.key = ?9"                         \
    " AND (?10 IS NULL OR t.value = ?10)))"                                                                  \
    " AND (?11 IS NULL OR EXISTS (SELECT 1 FROM run_group_member m JOIN run_group g ON g.id = m.group_id"    \
    " WHERE m.run_id = r.id AND g.name = ?11))"                                                              \
    " AND CASE ?12 WHEN 0 THEN r.archived_us = 0 AND (j.archived_us = 0 OR ?6 <> 0)"                         \
    " WHEN 1 THEN r.archived_us > 0 OR j.archived_us > 0 ELSE 1 END AND (?13 IS NULL OR j.kind = ?13)"
void db_run_row(sqlite3_stmt *st, struct store_run *ret);

/* Whether run ?1 is paused: itself, or with its job. */
#define DB_PAUSE_WANTED                                                                                      \
    "SELECT r.held OR j.state = 'paused' FROM run r JOIN job j ON j.id = r.job_id WHERE r.id = ?1"

#define DB_ATTEMPT_COLUMNS                                                                                   \
    "run_id, n, state, cause, message, devices, pid, pid_start, acked_seq, start_step, step, log_bytes, "    \
    "created_us, started_us, ended_us, token_sha256, exit_status, clock_us"
void db_attempt(sqlite3_stmt *st, struct store_attempt *ret);

/* migrate.c: brings the file to this build's version inside one transaction; PD_ERR_VERSION if it is newer or
 * belongs to another program. An older file is first copied to `backup` (may be NULL). `busy` is called
 * periodically. */
struct store_busy {
    void (*fn)(void *ctx, const char *what); /* may be NULL */
    void *ctx;
};
enum pd_err store_migrate(struct db *d, const char *backup, struct store_busy busy, struct pd_why *why);
/* The version a migrated file has. */
int store_schema_version(void);
/* Checks without writing that the file belongs to polyd and has this version. */
enum pd_err store_check_version(struct db *d, struct pd_why *why);
