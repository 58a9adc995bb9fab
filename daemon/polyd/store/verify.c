/* `polyd verify`: the invariants that can be read off a state directory, on one snapshot. Works with a
 * running daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/digest/digest.h"
#include "daemon/polyd/store/db.h"
#include "daemon/polyd/store/identity.h"
#include "daemon/polyd/store/verify.h"

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
        enum job_state a, b;

        return job_state_parse(from, &a) && job_state_parse(to, &b) && job_move_allowed(a, b);
    }
    if (!strcmp(kind, "run.state")) {
        enum job_run_state a, b;

        return job_run_state_parse(from, &a) && job_run_state_parse(to, &b) && job_run_move_allowed(a, b);
    }
    {
        enum job_attempt_state a, b;

        return job_attempt_state_parse(from, &a) && job_attempt_state_parse(to, &b) &&
               job_attempt_move_allowed(a, b);
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
                complain(c, "%s is '%s', but '%s' by its events", entity, row, state);
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
        complain(c, "%s is '%s', but '%s' by its events", entity, row, state);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

#define FOLD_COLUMNS ", json_extract(e.data, '$.from'), json_extract(e.data, '$.to') FROM event e JOIN "

static enum pd_err check_states(struct check *c, struct pd_why *why)
{
    enum pd_err err;

    err = check_fold(
        c,
        "SELECT 'job ' || x.id, x.state" FOLD_COLUMNS
        /* the events of a deleted job go first */
        "job x ON x.id = e.job_id AND x.deleted_us = 0 WHERE e.kind = 'job.state' ORDER BY x.id, e.id",
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

/* Of deleted runs the points go bit by bit. */
#define NOT_GOING " AND p.run_id NOT IN (SELECT run_id FROM remnant)"

static const char *const rules[] = {
    /* 3: the counts of roll-ups and latest values are those of the points */
    "SELECT 'run ' || p.run_id || ' series ' || k.name || ': ' || p.n || ' points, but by roll-ups ' || "
    "coalesce(r.n, 0) FROM "
    "(SELECT run_id, key_id, attempt, count(*) AS n FROM metric GROUP BY run_id, key_id, attempt) p JOIN "
    "metric_key k ON "
    "k.id = p.key_id LEFT JOIN (SELECT run_id, key_id, attempt, sum(count) AS n FROM metric_rollup GROUP BY "
    "run_id, "
    "key_id, attempt) r ON r.run_id = p.run_id AND r.key_id = p.key_id AND r.attempt = p.attempt WHERE p.n "
    "<> "
    "coalesce(r.n, 0)" NOT_GOING,
    "SELECT 'run ' || p.run_id || ' series ' || k.name || ': ' || p.n || ' points, but by its latest row ' "
    "|| "
    "coalesce(l.count, 0) FROM (SELECT run_id, key_id, count(*) AS n FROM metric GROUP BY run_id, key_id) p "
    "JOIN "
    "metric_key k ON k.id = p.key_id LEFT JOIN metric_latest l ON l.run_id = p.run_id AND l.key_id = "
    "p.key_id WHERE p.n <> "
    "coalesce(l.count, 0)" NOT_GOING,
    "SELECT 'metric points name run ' || m.run_id || ', which is not there' FROM (SELECT DISTINCT run_id "
    "FROM "
    "metric_latest) m LEFT JOIN run r ON r.id = m.run_id WHERE r.id IS NULL AND m.run_id NOT IN (SELECT "
    "run_id "
    "FROM remnant)",
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
    "j.runs_failed || ' failed, ' || j.runs_deleted || ' deleted; "
    "there are ' || count(r.id) || ', ' || coalesce(sum(r.state = 'ended'), 0) || ', ' || "
    "coalesce(sum(r.outcome IN ('failed', 'lost')), "
    "0) FROM job j LEFT JOIN run r ON r.job_id = j.id GROUP BY j.id HAVING j.runs <> count(r.id) + "
    "j.runs_deleted OR j.runs_ended <> "
    "coalesce(sum(r.state = 'ended'), 0) + j.runs_deleted OR j.runs_failed <> coalesce(sum(r.outcome IN "
    "('failed', 'lost')), "
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
    /* what was put away or deleted has ended, and leaves nothing that names it */
    "SELECT 'job ' || id || ' is archived and ' || state FROM job WHERE archived_us > 0 AND state NOT IN "
    "('done', "
    "'failed', 'cancelled')",
    "SELECT 'job ' || id || ' is deleted and ' || state FROM job WHERE deleted_us > 0 AND state NOT IN "
    "('done', "
    "'failed', 'cancelled')",
    "SELECT 'run ' || id || ' is archived and ' || state FROM run WHERE archived_us > 0 AND state <> 'ended'",
    "SELECT 'run ' || r.id || ' is deleted and still there' FROM remnant m JOIN run r ON r.id = m.run_id",
    "SELECT 'run ' || m.run_id || ' is deleted and has points' FROM remnant m WHERE m.rows_gone = 1 AND "
    "EXISTS "
    "(SELECT 1 FROM metric p WHERE p.run_id = m.run_id)",
    "SELECT 'a model version names run ' || v.run_id || ', whose job is deleted' FROM model_version v JOIN "
    "run r ON "
    "r.id = v.run_id JOIN job j ON j.id = r.job_id WHERE j.deleted_us > 0",
    "SELECT 'no run shows blob ' || sha256 FROM blob WHERE NOT EXISTS (SELECT 1 FROM run_blob r WHERE "
    "r.sha256 = "
    "blob.sha256)",
    "SELECT 'model ' || m.name || ' counts ' || m.versions || ' versions and has version ' || v.n FROM model "
    "m JOIN "
    "model_version v ON v.model_id = m.id WHERE v.n > m.versions",
    "SELECT 'an idempotency key of ' || scope || ' has no answer' FROM idempotency WHERE status = 0",
};

/* ---- 5: artifacts --------------------------------------------------------------------------- */

/* With a running daemon: a deletion may have removed the row in the meantime, and then the file. */
static bool row_stays(const char *state_dir, const char *sql, const char *key)
{
    char path[4096];
    struct store *s;
    int64_t one;
    bool stays = true;

    snprintf(path, sizeof path, "%.4000s/polyd.db", state_dir);
    if (store_open_reader(path, &s, NULL) == PD_OK) {
        stays = db_int(&s->db, &one, NULL, sql, "t", key) != PD_ERR_NOT_FOUND;
        store_close(s);
    }
    return stays;
}

struct artifact {
    const char *path, *digest;
    int64_t bytes;
    bool live;
    const char *row, *key; /* finds its row: a query with one parameter */
    char what[64];
};

static void check_artifact(struct check *c, const char *state_dir, const struct artifact *a, bool read_all)
{
    char found[DIGEST_SHA256_HEX_SIZE];
    struct pd_why why = {""};
    bool missing, wrong_size, unread = false, differs = false;
    struct stat st;

    missing = stat(a->path, &st) != 0;
    if (missing && a->live)
        return; /* its worker removes files a moment before it says so */
    wrong_size = !missing && st.st_size != a->bytes;
    if (!missing && !wrong_size && read_all) {
        unread = digest_file_hex(a->path, found, &why) != PD_OK;
        differs = !unread && strcmp(found, a->digest) != 0;
    }
    if (!(missing || wrong_size || unread || differs) || !row_stays(state_dir, a->row, a->key))
        return;
    if (missing)
        complain(c, "%s: the file '%s' is missing", a->what, a->path);
    else if (wrong_size)
        complain(c, "%s: '%s' has %lld bytes, not %lld", a->what, a->path, (long long)st.st_size,
                 (long long)a->bytes);
    else if (unread)
        complain(c, "%s: %s", a->what, why.text);
    else
        complain(c, "%s: the digest of '%s' does not match", a->what, a->path);
}

static enum pd_err check_artifacts(struct check *c, const char *state_dir, bool read_all, struct pd_why *why)
{
    sqlite3_stmt *st;
    char path[4096], key[24];
    struct artifact a;
    enum pd_err err = db_bind(c->db, &st, why,
                              "SELECT c.id, in_state(c.path), c.bytes, c.digest, r.state <> 'ended' FROM "
                              "checkpoint c JOIN run r ON "
                              "r.id = c.run_id WHERE c.deleted_us = 0",
                              "");

    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        a = (struct artifact){.path = db_text(st, 1),
                              .bytes = sqlite3_column_int64(st, 2),
                              .digest = db_text(st, 3),
                              .live = sqlite3_column_int(st, 4) != 0,
                              .row = "SELECT 1 FROM checkpoint WHERE id = ?1 AND deleted_us = 0",
                              .key = key};
        snprintf(key, sizeof key, "%lld", (long long)sqlite3_column_int64(st, 0));
        snprintf(a.what, sizeof a.what, "checkpoint %s", key);
        check_artifact(c, state_dir, &a, read_all);
    }
    if (err == PD_ERR_NOT_FOUND)
        err = db_bind(c->db, &st, why,
                      "SELECT path, in_state(path), bytes, digest FROM weights WHERE deleted_us = 0", "");
    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        a = (struct artifact){.path = db_text(st, 1),
                              .bytes = sqlite3_column_int64(st, 2),
                              .digest = db_text(st, 3),
                              .row = "SELECT 1 FROM weights WHERE path = ?1 AND deleted_us = 0",
                              .key = db_text(st, 0)};
        snprintf(a.what, sizeof a.what, "%.60s", db_text(st, 0));
        check_artifact(c, state_dir, &a, read_all);
    }
    if (err == PD_ERR_NOT_FOUND)
        err = db_bind(c->db, &st, why, "SELECT sha256, bytes FROM blob", "");
    while (err == PD_OK && (err = db_step(c->db, st, why)) == PD_OK) {
        a = (struct artifact){.path = path,
                              .bytes = sqlite3_column_int64(st, 1),
                              .digest = db_text(st, 0),
                              .row = "SELECT 1 FROM blob WHERE sha256 = ?1",
                              .key = db_text(st, 0)};
        snprintf(a.what, sizeof a.what, "blob %.16s", a.digest);
        snprintf(path, sizeof path, "%s/blobs/%.2s/%s", state_dir, a.digest, a.digest);
        check_artifact(c, state_dir, &a, read_all);
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
