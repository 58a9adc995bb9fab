#include "tests/fault/verify.h"

#include <ctype.h>
#include <dirent.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sqlite3.h>

#include "daemon/digest/digest.h"
#include "daemon/job/state.h"
#include "kernels/base/file.h"

#define BREACHES_MAX 50

struct check {
    sqlite3 *db;
    const char *dir;
    struct pd_buf *out;
    int breaches;
};

static void breach(struct check *c, const char *fmt, ...) PD_PRINTF(2, 3);

static void breach(struct check *c, const char *fmt, ...)
{
    char line[1024];
    va_list args;

    if (++c->breaches > BREACHES_MAX)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    pd_buf_printf(c->out, "%s\n", line);
}

static sqlite3_stmt *query(struct check *c, const char *sql)
{
    sqlite3_stmt *st = NULL;

    if (sqlite3_prepare_v2(c->db, sql, -1, &st, NULL) != SQLITE_OK)
        breach(c, "cannot ask '%s': %s", sql, sqlite3_errmsg(c->db));
    return st;
}

static const char *text(sqlite3_stmt *st, int i)
{
    const unsigned char *t = sqlite3_column_text(st, i);

    return t ? (const char *)t : "";
}

/* Each row of the query is a breach: its columns are printed behind `what`. */
static void none(struct check *c, const char *what, const char *sql)
{
    sqlite3_stmt *st = query(c, sql);

    while (st && sqlite3_step(st) == SQLITE_ROW) {
        char line[512];
        size_t at = 0;

        for (int i = 0; i < sqlite3_column_count(st) && at < sizeof line; i++)
            at += (size_t)snprintf(line + at, sizeof line - at, "%s%s=%s", i ? " " : "",
                                   sqlite3_column_name(st, i), text(st, i));
        breach(c, "%s: %s", what, line);
    }
    sqlite3_finalize(st);
}

static void check_integrity(struct check *c)
{
    sqlite3_stmt *st = query(c, "PRAGMA integrity_check");

    while (st && sqlite3_step(st) == SQLITE_ROW) {
        if (strcmp(text(st, 0), "ok") != 0)
            breach(c, "integrity_check: %s", text(st, 0));
    }
    sqlite3_finalize(st);
    none(c, "foreign_key_check", "PRAGMA foreign_key_check");
}

/* ---- states are the fold of their events ---- */

static bool job_allowed(const char *from, const char *to)
{
    enum job_state a, b;

    return job_state_parse(from, &a) && job_state_parse(to, &b) && job_move_allowed(a, b);
}

static bool run_allowed(const char *from, const char *to)
{
    enum job_run_state a, b;

    return job_run_state_parse(from, &a) && job_run_state_parse(to, &b) && job_run_move_allowed(a, b);
}

static bool attempt_allowed(const char *from, const char *to)
{
    enum job_attempt_state a, b;

    return job_attempt_state_parse(from, &a) && job_attempt_state_parse(to, &b) &&
           job_attempt_move_allowed(a, b);
}

/* Columns: a text that names the thing, its state, from, to; ordered by thing and event. */
static void check_fold(struct check *c, const char *what, const char *first, const char *sql,
                       bool (*allowed)(const char *from, const char *to))
{
    sqlite3_stmt *st = query(c, sql);
    char thing[64] = "", state[32] = "", now[32] = "";

    while (st && sqlite3_step(st) == SQLITE_ROW) {
        const char *name = text(st, 0), *from = text(st, 2), *to = text(st, 3);

        if (strcmp(name, thing) != 0) {
            if (*thing && strcmp(state, now) != 0)
                breach(c, "%s %s is '%s', its events say '%s'", what, thing, state, now);
            snprintf(thing, sizeof thing, "%s", name);
            now[0] = 0;
        }
        snprintf(state, sizeof state, "%s", text(st, 1));
        if (!*now && (*from || strcmp(to, first) != 0))
            breach(c, "%s %s begins with a move from '%s' to '%s'", what, thing, from, to);
        if (*now && strcmp(now, from) != 0)
            breach(c, "%s %s moves from '%s' while it is '%s'", what, thing, from, now);
        if (*now && !allowed(from, to))
            breach(c, "%s %s: the move from '%s' to '%s' is not allowed", what, thing, from, to);
        snprintf(now, sizeof now, "%s", to);
    }
    if (*thing && strcmp(state, now) != 0)
        breach(c, "%s %s is '%s', its events say '%s'", what, thing, state, now);
    sqlite3_finalize(st);
}

static void check_states(struct check *c, bool ended)
{
    check_fold(c, "job", "queued",
               "SELECT j.id, j.state, json_extract(e.data, '$.from'), json_extract(e.data, '$.to') "
               "FROM job j LEFT JOIN event e ON e.job_id = j.id AND e.kind = 'job.state' ORDER BY j.id, e.id",
               job_allowed);
    check_fold(c, "run", "queued",
               "SELECT r.id, r.state, json_extract(e.data, '$.from'), json_extract(e.data, '$.to') "
               "FROM run r LEFT JOIN event e ON e.run_id = r.id AND e.kind = 'run.state' ORDER BY r.id, e.id",
               run_allowed);
    check_fold(c, "attempt", "starting",
               "SELECT a.run_id || '/' || a.n, a.state, json_extract(e.data, '$.from'), json_extract(e.data, "
               "'$.to') "
               "FROM attempt a LEFT JOIN event e ON e.run_id = a.run_id AND e.attempt = a.n "
               "AND e.kind = 'attempt.state' ORDER BY a.run_id, a.n, e.id",
               attempt_allowed);
    none(c, "state event of nothing",
         "SELECT id, kind, job_id, run_id FROM event e WHERE (job_id <> 0 AND NOT EXISTS (SELECT 1 FROM job "
         "WHERE id = "
         "e.job_id)) OR (run_id <> 0 AND NOT EXISTS (SELECT 1 FROM run WHERE id = e.run_id))");
    none(c, "a later event with an earlier time",
         "SELECT id, time_us FROM (SELECT id, time_us, lag(time_us) OVER (ORDER BY id) AS before FROM event) "
         "WHERE before > time_us + 5000000"); /* the wall clock may be set back a little */
    none(c, "ids that could be given out again",
         "SELECT name, seq FROM sqlite_sequence WHERE (name = 'event' AND seq < (SELECT max(id) FROM event)) "
         "OR (name = 'job' AND seq < (SELECT max(id) FROM job)) OR (name = 'run' AND seq < (SELECT max(id) "
         "FROM run))");
    none(c, "run with two live attempts",
         "SELECT run_id, count(*) AS live FROM attempt WHERE state <> 'ended' GROUP BY run_id HAVING "
         "count(*) > 1");
    none(c, "live attempt of a run that does not run",
         "SELECT a.run_id, a.n, a.state, r.state AS run FROM attempt a JOIN run r ON r.id = a.run_id "
         "WHERE a.state <> 'ended' AND r.state NOT IN ('starting', 'running', 'cancelling')");
    none(c, "run without the attempt it needs",
         "SELECT id, state FROM run r WHERE state IN ('starting', 'running') AND NOT EXISTS (SELECT 1 FROM "
         "attempt a "
         "WHERE a.run_id = r.id AND a.state <> 'ended')");
    none(c, "attempts miscounted",
         "SELECT id, attempts FROM run r WHERE attempts <> (SELECT count(*) FROM attempt WHERE run_id = "
         "r.id)");
    none(c, "job that miscounts its runs",
         "SELECT id, runs, runs_ended, runs_failed FROM job j WHERE runs <> (SELECT count(*) FROM run WHERE "
         "job_id = "
         "j.id) OR runs_ended <> (SELECT count(*) FROM run WHERE job_id = j.id AND state = 'ended') OR "
         "runs_failed <> "
         "(SELECT count(*) FROM run WHERE job_id = j.id AND outcome = 'failed')");
    none(c, "job ended before its runs",
         "SELECT id, state FROM job j WHERE state IN ('done', 'failed', 'cancelled') AND EXISTS (SELECT 1 "
         "FROM run "
         "WHERE job_id = j.id AND state <> 'ended')");
    if (ended) {
        none(c, "attempt that has not ended", "SELECT run_id, n, state FROM attempt WHERE state <> 'ended'");
        none(c, "device still held", "SELECT device, run_id, attempt FROM allocation WHERE to_us = 0");
    }
}

static void check_devices(struct check *c)
{
    none(c, "device in two attempts at once",
         "SELECT a.device, a.run_id AS run1, a.attempt AS attempt1, b.run_id AS run2, b.attempt AS attempt2 "
         "FROM allocation a JOIN allocation b ON a.device = b.device AND (a.run_id, a.attempt) < (b.run_id, "
         "b.attempt) "
         "WHERE a.from_us < iif(b.to_us = 0, 9e18, b.to_us) AND b.from_us < iif(a.to_us = 0, 9e18, a.to_us)");
    none(c, "interval that ends before it begins",
         "SELECT device, run_id, attempt FROM allocation WHERE to_us <> 0 AND to_us < from_us");
    none(c, "device held by an ended attempt",
         "SELECT l.device, l.run_id, l.attempt FROM allocation l JOIN attempt a ON a.run_id = l.run_id AND "
         "a.n = "
         "l.attempt WHERE a.state = 'ended' AND l.to_us = 0");
}

static void check_metrics(struct check *c)
{
    none(c, "point of no run",
         "SELECT run_id, count(*) AS points FROM metric WHERE run_id NOT IN (SELECT id FROM run) GROUP BY "
         "run_id");
    none(c, "roll-ups that miscount",
         "SELECT m.run_id, m.key_id, m.attempt, m.n AS points, r.n AS rolled FROM (SELECT run_id, key_id, "
         "attempt, "
         "count(*) AS n FROM metric GROUP BY 1, 2, 3) m LEFT JOIN (SELECT run_id, key_id, attempt, "
         "sum(count) AS n FROM "
         "metric_rollup GROUP BY 1, 2, 3) r USING (run_id, key_id, attempt) WHERE m.n IS NOT r.n");
    none(c, "latest values that miscount",
         "SELECT m.run_id, m.key_id, m.n AS points, l.count FROM (SELECT run_id, key_id, count(*) AS n FROM "
         "metric "
         "GROUP BY 1, 2) m LEFT JOIN metric_latest l USING (run_id, key_id) WHERE m.n IS NOT l.count");
}

static void check_checkpoints(struct check *c)
{
    sqlite3_stmt *st =
        query(c, "SELECT id, path, bytes, digest FROM checkpoint WHERE deleted_us = 0 ORDER BY id");

    while (st && sqlite3_step(st) == SQLITE_ROW) {
        char hex[DIGEST_SHA256_HEX_SIZE], path[1024];
        struct pd_why why = {{0}};
        struct stat info;

        snprintf(path, sizeof path, "%s/%s", c->dir, text(st, 1));
        if (*text(st, 1) == '/')
            breach(c, "checkpoint %s: '%s' is not relative to the state folder", text(st, 0), text(st, 1));
        else if (stat(path, &info) != 0)
            breach(c, "checkpoint %s: no file %s", text(st, 0), path);
        else if (info.st_size != sqlite3_column_int64(st, 2))
            breach(c, "checkpoint %s: %s has %lld bytes, not %s", text(st, 0), text(st, 1),
                   (long long)info.st_size, text(st, 2));
        else if (digest_file_hex(path, hex, &why) != PD_OK)
            breach(c, "checkpoint %s: %s", text(st, 0), why.text);
        else if (strcmp(hex, text(st, 3)) != 0)
            breach(c, "checkpoint %s: %s has another digest", text(st, 0), text(st, 1));
    }
    sqlite3_finalize(st);
}

static struct {
    struct pd_buf *out;
    int bad;
} modes;

static int check_mode(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    mode_t wanted = S_ISDIR(st->st_mode) ? 0700 : 0600;

    (void)type;
    (void)ftw;
    if ((st->st_mode & 07777) != wanted) {
        pd_buf_printf(modes.out, "%s has mode %o, not %o\n", path, (unsigned)st->st_mode & 07777,
                      (unsigned)wanted);
        modes.bad++;
    }
    return 0;
}

int verify_modes(const char *state_dir, struct pd_buf *out)
{
    modes.out = out;
    modes.bad = 0;
    nftw(state_dir, check_mode, 16, FTW_PHYS);
    return modes.bad;
}

int verify_state(const char *state_dir, bool ended, struct pd_buf *out)
{
    struct check c = {.dir = state_dir, .out = out};
    char path[512];

    snprintf(path, sizeof path, "%s/polyd.db", state_dir);
    /* Writable, since a database whose writer was killed must be recovered from its log before it is read. */
    if (sqlite3_open_v2(path, &c.db, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK) {
        breach(&c, "cannot open %s: %s", path, sqlite3_errmsg(c.db));
    } else {
        sqlite3_busy_timeout(c.db, 5000);
        check_integrity(&c);
        check_states(&c, ended);
        check_devices(&c);
        check_metrics(&c);
        check_checkpoints(&c);
    }
    sqlite3_close(c.db);
    return c.breaches;
}

static bool file_names(const char *path, const char *dir)
{
    struct pd_buf b;
    bool found;

    pd_buf_init(&b, 0);
    found = pd_file_read(path, (size_t)1 << 20, &b, NULL) == PD_OK && b.len &&
            memmem(b.data, b.len, dir, strlen(dir));
    pd_buf_done(&b);
    return found;
}

int verify_processes(const char *state_dir, struct pd_buf *out)
{
    DIR *proc = opendir("/proc");
    struct dirent *e;
    int count = 0;

    while (proc && (e = readdir(proc))) {
        char path[300], comm[300] = "";
        FILE *f;
        char state = 0;

        if (!isdigit((unsigned char)e->d_name[0]) || atoi(e->d_name) == (int)getpid())
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        f = fopen(path, "r");
        if (!f)
            continue;
        if (fscanf(f, "%*d (%255[^)]) %c", comm, &state) != 2)
            state = 'Z';
        fclose(f);
        snprintf(path, sizeof path, "/proc/%s/cmdline", e->d_name);
        if (state == 'Z' || state == 'X')
            continue;
        if (!file_names(path, state_dir)) {
            snprintf(path, sizeof path, "/proc/%s/environ", e->d_name);
            if (!file_names(path, state_dir))
                continue;
        }
        pd_buf_printf(out, "process %s (%s), state %c\n", e->d_name, comm, state);
        count++;
    }
    if (proc)
        closedir(proc);
    return count;
}
