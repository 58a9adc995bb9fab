/* `polyd verify`: the invariants that can be read off a state directory, on one snapshot. Works beside a
 * running daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/digest/digest.h"
#include "daemon/store/db.h"
#include "daemon/store/identity.h"
#include "daemon/store/verify.h"

struct check {
    struct db *db;
    void (*problem)(void *ctx, const char *text);
    void *ctx;
    int64_t problems;
};

static void complain(struct check *c, const char *fmt, ...) PD_PRINTF(2, 3);
static void complain(struct check *c, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c->problems++;
    c->problem(c->ctx, text);
}

/* ---- 9: the file itself --------------------------------------------------------------------- */

static enum pd_err check_file(struct check *c, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(c->db, &st, why, "PRAGMA integrity_check", "");

    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK)
        if (strcmp(db_text(st, 0), "ok") != 0)
            complain(c, "integrity_check: %s", db_text(st, 0));
    if (err == PD_ERR_NOT_FOUND)
        err = db_bind(c->db, &st, why, "PRAGMA foreign_key_check", "");
    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK)
        complain(c, "foreign_key_check: table %s row %lld refers to a missing row of %s", db_text(st, 0),
                 (long long)sqlite3_column_int64(st, 1), db_text(st, 2));
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

/* The folder's marker names this database. */
static enum pd_err check_identity(struct check *c, const char *state_dir, struct pd_why *why)
{
    char marker[STORE_UUID_SIZE];
    struct pd_why reason;
    sqlite3_stmt *st;
    enum pd_err err = store_identity_marker(state_dir, marker, &reason);

    if (err != PD_OK)
        complain(c, "%s", reason.text);
    else if (!marker[0])
        complain(c, "'%s' has no marker store-id", state_dir);
    err = db_bind(c->db, &st, why, "SELECT uuid FROM store", "");
    if (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        if (marker[0] && strcmp(marker, db_text(st, 0)) != 0)
            complain(c, "the marker store-id names database %s, polyd.db is database %s", marker,
                     db_text(st, 0));
        db_done(st);
    }
    return err;
}

/* ---- 6, 7: states are the fold of their events, by allowed moves ---------------------------- */

static bool allowed(const char *kind, const char *from, const char *to)
{
    if (!strcmp(kind, "job.state")) {
        enum spec_job_state a, b;

        return spec_job_state_parse(from, &a) && spec_job_state_parse(to, &b) && spec_job_move_allowed(a, b);
    }
    if (!strcmp(kind, "run.state")) {
        enum spec_run_state a, b;

        return spec_run_state_parse(from, &a) && spec_run_state_parse(to, &b) && spec_run_move_allowed(a, b);
    }
    {
        enum spec_attempt_state a, b;

        return spec_attempt_state_parse(from, &a) && spec_attempt_state_parse(to, &b) &&
               spec_attempt_move_allowed(a, b);
    }
}

/* Rows: kind, entity text, row's state, event's from, event's to; ordered by entity, then event. */
static enum pd_err check_fold(struct check *c, const char *sql, const char *kind, struct pd_why *why)
{
    char entity[64] = "", state[32] = "", row[32] = "";
    sqlite3_stmt *st;
    enum pd_err err = db_bind(c->db, &st, why, sql, "");

    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        const char *name = db_text(st, 0), *from = db_text(st, 2), *to = db_text(st, 3);

        if (strcmp(name, entity) != 0) {
            if (*entity && strcmp(state, row) != 0)
                complain(c, "%s is '%s', its events say '%s'", entity, row, state);
            snprintf(entity, sizeof entity, "%s", name);
            snprintf(row, sizeof row, "%s", db_text(st, 1));
            state[0] = '\0';
        }
        if (strcmp(from, state) != 0)
            complain(c, "%s moved from '%s' while it was '%s'", entity, from, state);
        else if (*from && !allowed(kind, from, to))
            complain(c, "%s moved from '%s' to '%s', which is not allowed", entity, from, to);
        snprintf(state, sizeof state, "%s", to);
    }
    if (err == PD_ERR_NOT_FOUND && *entity && strcmp(state, row) != 0)
        complain(c, "%s is '%s', its events say '%s'", entity, row, state);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

#define FOLD_COLUMNS ", json_extract(e.data, '$.from'), json_extract(e.data, '$.to') FROM event e JOIN "

static enum pd_err check_states(struct check *c, struct pd_why *why)
{
    enum pd_err err;

    err = check_fold(c,
                     "SELECT 'job ' || x.id, x.state" FOLD_COLUMNS
                     "job x ON x.id = e.job_id WHERE e.kind = 'job.state' ORDER BY x.id, e.id",
                     "job.state", why);
    if (err == PD_OK)
        err = check_fold(c,
                         "SELECT 'run ' || x.id, x.state" FOLD_COLUMNS
                         "run x ON x.id = e.run_id WHERE e.kind = 'run.state' ORDER BY x.id, e.id",
                         "run.state", why);
    if (err == PD_OK)
        err = check_fold(
            c,
            "SELECT 'attempt ' || x.run_id || '/' || x.n, x.state" FOLD_COLUMNS
            "attempt x ON x.run_id = e.run_id AND x.n = e.attempt WHERE e.kind = 'attempt.state' ORDER BY "
            "x.run_id, x.n, e.id",
            "attempt.state", why);
    return err;
}

/* ---- rules that are one query --------------------------------------------------------------- */

/* Each row of the query is a sentence. */
static enum pd_err check_none(struct check *c, const char *sql, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(c->db, &st, why, sql, "");

    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK)
        complain(c, "%s", db_text(st, 0));
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

static const char *const rules[] = {
    /* 3: the counts of roll-ups and latest values are those of the points */
    "SELECT 'run ' || p.run_id || ' series ' || k.name || ': ' || p.n || ' points, roll-ups say ' || "
    "coalesce(r.n, 0) FROM "
    "(SELECT run_id, key_id, attempt, count(*) AS n FROM metric GROUP BY run_id, key_id, attempt) p JOIN "
    "metric_key k ON "
    "k.id = p.key_id LEFT JOIN (SELECT run_id, key_id, attempt, sum(count) AS n FROM metric_rollup GROUP BY "
    "run_id, "
    "key_id, attempt) r ON r.run_id = p.run_id AND r.key_id = p.key_id AND r.attempt = p.attempt WHERE p.n "
    "<> "
    "coalesce(r.n, 0)",
    "SELECT 'run ' || p.run_id || ' series ' || k.name || ': ' || p.n || ' points, its latest row says ' || "
    "coalesce(l.count, 0) FROM (SELECT run_id, key_id, count(*) AS n FROM metric GROUP BY run_id, key_id) p "
    "JOIN "
    "metric_key k ON k.id = p.key_id LEFT JOIN metric_latest l ON l.run_id = p.run_id AND l.key_id = "
    "p.key_id WHERE p.n <> "
    "coalesce(l.count, 0)",
    "SELECT 'metric points name run ' || m.run_id || ', which is not there' FROM (SELECT DISTINCT run_id "
    "FROM "
    "metric_latest) m LEFT JOIN run r ON r.id = m.run_id WHERE r.id IS NULL",
    /* 1, 4: no device was in two attempts at once; time used is the sum of the intervals */
    "SELECT 'device ' || a.device || ' was held by run ' || a.run_id || ' and run ' || b.run_id || ' at "
    "once' FROM "
    "allocation a JOIN allocation b ON b.device = a.device AND (b.from_us, b.run_id, b.attempt) > "
    "(a.from_us, a.run_id, "
    "a.attempt) AND (a.to_us = 0 OR b.from_us < a.to_us)",
    "SELECT 'run ' || r.id || ' used ' || r.used_us || ' us, its attempts ' || s.used FROM run r JOIN "
    "(SELECT run_id, "
    "sum(held_us) AS used FROM attempt WHERE state = 'ended' GROUP BY run_id) s ON "
    "s.run_id = r.id "
    "WHERE r.used_us <> s.used",
    "SELECT 'attempt ' || a.run_id || '/' || a.n || ' has ended but holds ' || l.device FROM attempt a JOIN "
    "allocation l "
    "ON l.run_id = a.run_id AND l.attempt = a.n WHERE a.state = 'ended' AND l.to_us = 0",
    /* intervals that cannot be */
    "SELECT 'job ' || id || ' started before it was made' FROM job WHERE started_us <> 0 AND started_us < "
    "created_us",
    "SELECT 'job ' || id || ' ended ' || (max(created_us, started_us) - ended_us) || ' us before it ' || "
    "CASE WHEN "
    "started_us > 0 THEN 'started' ELSE 'was made' END FROM job WHERE ended_us <> 0 AND ended_us < "
    "max(created_us, "
    "started_us)",
    "SELECT 'run ' || id || ' started before it was made' FROM run WHERE started_us <> 0 AND started_us < "
    "created_us",
    "SELECT 'run ' || id || ' ended ' || (max(created_us, started_us) - ended_us) || ' us before it ' || "
    "CASE WHEN "
    "started_us > 0 THEN 'started' ELSE 'was made' END FROM run WHERE ended_us <> 0 AND ended_us < "
    "max(created_us, "
    "started_us)",
    "SELECT 'attempt ' || run_id || '/' || n || ' started before it was made' FROM attempt WHERE started_us "
    "<> 0 AND "
    "started_us < created_us",
    "SELECT 'attempt ' || run_id || '/' || n || ' ended ' || (max(created_us, started_us) - ended_us) || ' "
    "us before it ' "
    "|| CASE WHEN started_us > 0 THEN 'started' ELSE 'was made' END FROM attempt WHERE ended_us <> 0 AND "
    "ended_us < "
    "max(created_us, started_us)",
    "SELECT 'attempt ' || run_id || '/' || n || ' held its devices for ' || held_us || ' us' FROM attempt "
    "WHERE held_us "
    "< 0",
    "SELECT 'run ' || id || ' used ' || used_us || ' us' FROM run WHERE used_us < 0",
    "SELECT 'device ' || device || ' was given back by run ' || run_id || ' ' || (from_us - to_us) || ' us "
    "before it was "
    "taken' FROM allocation WHERE to_us <> 0 AND to_us < from_us",
    /* levels agree with each other */
    "SELECT 'run ' || r.id || ' has ended but attempt ' || a.n || ' has not' FROM run r JOIN attempt a ON "
    "a.run_id = r.id "
    "WHERE r.state = 'ended' AND a.state <> 'ended'",
    "SELECT 'run ' || run_id || ' has ' || count(*) || ' live attempts' FROM attempt WHERE state <> 'ended' "
    "GROUP BY "
    "run_id HAVING count(*) > 1",
    "SELECT 'job ' || j.id || ' counts ' || j.runs || ' runs, ' || j.runs_ended || ' ended, ' || "
    "j.runs_failed || ' failed; "
    "there are ' || count(r.id) || ', ' || coalesce(sum(r.state = 'ended'), 0) || ', ' || "
    "coalesce(sum(r.outcome IN ('failed', 'lost')), "
    "0) FROM job j LEFT JOIN run r ON r.job_id = j.id GROUP BY j.id HAVING j.runs <> count(r.id) OR "
    "j.runs_ended <> "
    "coalesce(sum(r.state = 'ended'), 0) OR j.runs_failed <> coalesce(sum(r.outcome IN ('failed', 'lost')), "
    "0)",
    "SELECT 'job ' || j.id || ' is ' || j.state || ' though all its runs have ended' FROM job j WHERE j.runs "
    "> 0 AND "
    "j.runs_ended = j.planned AND j.state NOT IN ('done', 'failed', 'cancelled')",
    "SELECT 'job ' || id || ' is ' || state || ' with ' || runs || ' of ' || planned || ' runs' FROM job "
    "WHERE "
    "runs > planned OR (state IN ('done', 'failed', 'cancelled') AND runs <> planned)",
    "SELECT 'run ' || r.id || ' is number ' || r.n || ' and says point ' || r.point || ', trial ' || r.trial "
    "FROM run "
    "r JOIN job j ON j.id = r.job_id WHERE r.point <> r.n / j.trials OR r.trial <> r.n % j.trials",
    "SELECT 'an idempotency key of ' || scope || ' has no answer' FROM idempotency WHERE status = 0",
};

/* ---- 5: artifacts --------------------------------------------------------------------------- */

static void check_artifact(struct check *c, const char *what, const char *path, int64_t bytes,
                           const char *digest, bool read_all, bool live)
{
    char found[DIGEST_SHA256_HEX_SIZE];
    struct pd_why why;
    struct stat st;

    if (stat(path, &st) && live)
        return; /* its worker removes files a moment before it says so */
    if (stat(path, &st))
        complain(c, "%s: the file '%s' is missing", what, path);
    else if (st.st_size != bytes)
        complain(c, "%s: '%s' has %lld bytes, not %lld", what, path, (long long)st.st_size, (long long)bytes);
    else if (read_all && digest_file_hex(path, found, &why) != PD_OK)
        complain(c, "%s: %s", what, why.text);
    else if (read_all && strcmp(found, digest) != 0)
        complain(c, "%s: the digest of '%s' does not match", what, path);
}

static enum pd_err check_artifacts(struct check *c, const char *state_dir, bool read_all, struct pd_why *why)
{
    sqlite3_stmt *st;
    char what[64], path[4096];
    enum pd_err err = db_bind(c->db, &st, why,
                              "SELECT c.id, in_state(c.path), c.bytes, c.digest, r.state <> 'ended' FROM "
                              "checkpoint c JOIN run r ON "
                              "r.id = c.run_id WHERE c.deleted_us = 0",
                              "");

    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        snprintf(what, sizeof what, "checkpoint %lld", (long long)sqlite3_column_int64(st, 0));
        check_artifact(c, what, db_text(st, 1), sqlite3_column_int64(st, 2), db_text(st, 3), read_all,
                       sqlite3_column_int(st, 4) != 0);
    }
    if (err == PD_ERR_NOT_FOUND)
        err = db_bind(c->db, &st, why, "SELECT sha256, bytes FROM blob", "");
    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        const char *sha = db_text(st, 0);

        snprintf(what, sizeof what, "blob %.16s", sha);
        snprintf(path, sizeof path, "%s/blobs/%.2s/%s", state_dir, sha, sha);
        check_artifact(c, what, path, sqlite3_column_int64(st, 1), sha, read_all, false);
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_verify(const char *state_dir, bool read_all, void (*problem)(void *ctx, const char *text),
                         void *ctx, int64_t *ret_problems, struct pd_why *why)
{
    struct check c = {.problem = problem, .ctx = ctx};
    struct store *s = NULL;
    char path[4096];
    enum pd_err err;

    if ((size_t)snprintf(path, sizeof path, "%s/polyd.db", state_dir) >= sizeof path)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    err = store_open_reader(path, &s, why);
    if (err == PD_OK)
        err = store_begin(s, why);
    if (err != PD_OK) {
        store_close(s);
        return err;
    }
    c.db = &s->db;
    err = check_file(&c, why);
    if (err == PD_OK)
        err = check_identity(&c, state_dir, why);
    if (err == PD_OK)
        err = check_states(&c, why);
    for (size_t i = 0; err == PD_OK && i < sizeof rules / sizeof *rules; i++)
        err = check_none(&c, rules[i], why);
    if (err == PD_OK)
        err = check_artifacts(&c, state_dir, read_all, why);
    store_end(s);
    store_close(s);
    if (err == PD_OK)
        *ret_problems = c.problems;
    return err;
}
