#include "daemon/polyd/store/identity.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define PATH_SIZE 4096
#define MARKER "store-id"
#define MARKER_BEGIN "polyd store "
#define MOVING "old-unfinished" /* where an --init that was cut off has put things; the next one goes on */

/* What of a state folder belongs to its database. The marker goes last: as long as it is there, a start
 * without
 * --init is refused. */
static const char *const belongings[] = {
    "polyd.db", "polyd.db-wal", "polyd.db-shm", "polyd.db-journal", "polyd.db.before-migration", "runs",
    "models",   "blobs",        MARKER};

static enum pd_err join(char *out, const char *dir, const char *name, struct pd_why *why)
{
    if (snprintf(out, PATH_SIZE, "%s/%s", dir, name) >= PATH_SIZE)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    return PD_OK;
}

/* ---- the marker ----------------------------------------------------------------------------- */

static bool is_uuid(const char *text)
{
    return strspn(text, "0123456789abcdef") == STORE_UUID_SIZE - 1 && !text[STORE_UUID_SIZE - 1];
}

enum pd_err store_identity_marker(const char *state_dir, char out[STORE_UUID_SIZE], struct pd_why *why)
{
    char path[PATH_SIZE];
    struct pd_buf text;
    enum pd_err err = join(path, state_dir, MARKER, why);

    out[0] = '\0';
    if (err != PD_OK)
        return err;
    pd_buf_init(&text, 0);
    err = pd_file_read(path, 4096, &text, why);
    if (err == PD_ERR_NOT_FOUND) {
        pd_buf_done(&text);
        return PD_OK;
    }
    if (err == PD_OK) {
        size_t begin = strlen(MARKER_BEGIN);

        if (text.len > begin && !strncmp(text.data, MARKER_BEGIN, begin))
            snprintf(out, STORE_UUID_SIZE, "%.*s", (int)strcspn(text.data + begin, " \n"), text.data + begin);
        if (!is_uuid(out)) {
            out[0] = '\0';
            err = pd_fail(why, PD_ERR_CORRUPT, "'%s' does not contain the identity of a database", path);
        }
    }
    pd_buf_done(&text);
    return err;
}

static enum pd_err write_marker(const char *state_dir, const char *uuid, struct pd_why *why)
{
    char path[PATH_SIZE], text[256];
    enum pd_err err = join(path, state_dir, MARKER, why);
    int len = snprintf(text, sizeof text,
                       MARKER_BEGIN "%s\n"
                                    "The database polyd.db with this identity belongs to this folder and its "
                                    "runs: keep them together.\n",
                       uuid);

    return err == PD_OK ? pd_file_replace(path, text, (size_t)len, 0600, why) : err;
}

/* ---- what is in the folder ------------------------------------------------------------------ */

struct folder {
    const char *dir;
    char marker[STORE_UUID_SIZE]; /* "" = none */
    int64_t last_run;             /* greatest number in runs/, 0 = none */
    bool runs, models, wal;
    bool db_there; /* with at least one byte */
    bool db_empty; /* a file of no bytes */
};

static bool has_entries(const char *dir, const char *name, int64_t *ret_greatest)
{
    char path[PATH_SIZE];
    bool found = false;
    struct dirent *e;
    DIR *d;

    if (join(path, dir, name, NULL) != PD_OK || !(d = opendir(path)))
        return false;
    while ((e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        found = true;
        if (ret_greatest && isdigit((unsigned char)e->d_name[0]) && atoll(e->d_name) > *ret_greatest)
            *ret_greatest = atoll(e->d_name);
    }
    closedir(d);
    return found;
}

static enum pd_err look(const char *dir, struct folder *f, struct pd_why *why)
{
    char path[PATH_SIZE];
    struct stat st;
    enum pd_err err;

    *f = (struct folder){.dir = dir};
    err = store_identity_marker(dir, f->marker, why);
    if (err != PD_OK)
        return err;
    f->runs = has_entries(dir, "runs", &f->last_run);
    f->models = has_entries(dir, "models", NULL);
    err = join(path, dir, "polyd.db-wal", why);
    if (err != PD_OK)
        return err;
    /* SQLite writes the database's first page before its log: a log alone has lost its database. */
    f->wal = stat(path, &st) == 0 && st.st_size > 0;
    err = join(path, dir, "polyd.db", why);
    if (err == PD_OK && stat(path, &st) == 0) {
        f->db_there = st.st_size > 0;
        f->db_empty = st.st_size == 0;
    } else if (err == PD_OK && errno != ENOENT)
        err = pd_fail_errno(why, errno, "cannot look at '%s'", path);
    return err;
}

/* What shows that the folder had a database. */
static const char *held(const struct folder *f, char *out, size_t size)
{
    if (f->marker[0])
        snprintf(out, size, "the marker '%s' of database %.8s", MARKER, f->marker);
    else if (f->runs)
        snprintf(out, size, "the folder 'runs'");
    else if (f->models)
        snprintf(out, size, "the folder 'models'");
    else if (f->wal)
        snprintf(out, size, "the write-ahead log 'polyd.db-wal'");
    else
        return NULL;
    return out;
}

static enum pd_err lost(const struct folder *f, struct pd_why *why, const char *fmt, ...) PD_PRINTF(3, 4);
static enum pd_err lost(const struct folder *f, struct pd_why *why, const char *fmt, ...)
{
    char what[160], evidence[96];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!held(f, evidence, sizeof evidence))
        snprintf(evidence, sizeof evidence, "nothing else");
    return pd_fail(
        why, PD_ERR_CONFLICT,
        "the database polyd.db %s, but the state folder has %s: restore its own database, or run once: "
        "polyd --state-dir='%.150s' --init (moves the old runs to a subfolder and creates a new store)",
        what, evidence, f->dir);
}

/* ---- the database, before anything writes to it ---------------------------------------------- */

struct facts {
    char uuid[STORE_UUID_SIZE]; /* "" = none */
    int64_t version, application, tables, last_run;
};

static enum pd_err read_facts(struct db *d, struct facts *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    int64_t there = 0;
    enum pd_err err = db_int(d, &ret->version, why, "PRAGMA user_version", "");

    if (err == PD_OK)
        err = db_int(d, &ret->application, why, "PRAGMA application_id", "");
    if (err == PD_OK)
        err = db_int(d, &ret->tables, why, "SELECT count(*) FROM sqlite_master", "");
    if (err == PD_OK)
        err = db_int(d, &there, why,
                     "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'store'", "");
    if (err == PD_OK && there && ret->application == STORE_APPLICATION_ID) {
        err = db_bind(d, &st, why, "SELECT uuid FROM store", "");
        if (err == PD_OK && (err = db_step(d, st, why)) == PD_OK) {
            snprintf(ret->uuid, sizeof ret->uuid, "%s", db_text(st, 0));
            db_done(st);
        }
    }
    if (err == PD_OK)
        err = db_int(d, &there, why,
                     "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'sqlite_sequence'",
                     "");
    if (err == PD_OK && there)
        err = db_int(d, &ret->last_run, why,
                     "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'run'", "");
    return err;
}

/* `alone`: the file without its log, which may be another database's. Neither way changes a byte of them. */
static enum pd_err inspect(const char *dir, bool alone, struct facts *ret, struct pd_why *why)
{
    struct pd_buf uri;
    struct db d = {0};
    enum pd_err err;
    int rc;

    *ret = (struct facts){0};
    pd_buf_init(&uri, 0);
    pd_buf_str(&uri, "file:");
    for (const char *c = dir; *c; c++)
        if (isalnum((unsigned char)*c) || strchr("/-_.", *c))
            pd_buf_printf(&uri, "%c", *c);
        else
            pd_buf_printf(&uri, "%%%02x", (unsigned char)*c);
    pd_buf_str(&uri, alone ? "/polyd.db?immutable=1" : "/polyd.db");
    if (pd_buf_err(&uri) != PD_OK) {
        pd_buf_done(&uri);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a path");
    }
    rc = sqlite3_open_v2(
        uri.data, &d.db,
        SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX | (alone ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE), NULL);
    pd_buf_done(&uri);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(d.db, 1);
        sqlite3_db_config(d.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        err = read_facts(&d, ret, why);
    } else
        err = db_fail(&d, rc, why);
    db_close(&d);
    return err;
}

/* PD_ERR_CONFLICT: lost. */
static enum pd_err judge(const struct folder *f, struct pd_why *why)
{
    bool evidence = f->marker[0] || f->runs || f->models;
    struct facts facts;
    enum pd_err err;

    if (!f->db_there) {
        if (evidence || f->wal)
            return lost(f, why, "%s", f->db_empty ? "is empty" : "is missing");
        return PD_OK; /* a new folder, or one whose making was cut off */
    }
    if (f->marker[0] && inspect(f->dir, true, &facts, NULL) == PD_OK && facts.uuid[0]) {
        if (!strcmp(facts.uuid, f->marker))
            return PD_OK;
        return lost(f, why, "belongs to another folder (it is database %.8s)", facts.uuid);
    }
    err = inspect(f->dir, false, &facts, why);
    if (err == PD_ERR_CORRUPT && evidence)
        return lost(f, why, "is damaged (%.80s)", why ? why->text : "");
    if (err != PD_OK)
        return err;
    if (facts.application != STORE_APPLICATION_ID && (facts.version || facts.application || facts.tables))
        return evidence ? lost(f, why, "belongs to another program") : PD_OK; /* the migration refuses it */
    if (!facts.version)
        return evidence ? lost(f, why, "is empty") : PD_OK;
    if (f->marker[0] && strcmp(facts.uuid, f->marker) != 0)
        return facts.uuid[0] ? lost(f, why, "belongs to another folder (it is database %.8s)", facts.uuid)
                             : lost(f, why, "has no identity (it is older than the marker)");
    /* A run's folder is made after its row is on disk. */
    if (!f->marker[0] && f->last_run > facts.last_run)
        return lost(f, why, "belongs to another folder (it does not know run %lld)", (long long)f->last_run);
    return PD_OK;
}

/* ---- --init --------------------------------------------------------------------------------- */

static enum pd_err move(const char *from_dir, const char *to_dir, const char *name, struct pd_why *why)
{
    char from[PATH_SIZE], to[PATH_SIZE];
    enum pd_err err = join(from, from_dir, name, why);

    if (err == PD_OK)
        err = join(to, to_dir, name, why);
    if (err == PD_OK && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) && errno != ENOENT)
        err = pd_fail_errno(why, errno, "cannot move '%s' to '%s'", from, to);
    return err;
}

/* Gives the folder of a finished move its name. None there: nothing to do. */
static enum pd_err name_old(const char *dir, char *ret_name, size_t size, struct pd_why *why)
{
    char from[PATH_SIZE], to[PATH_SIZE], when[PD_CLOCK_TEXT_SIZE], name[64];
    size_t n = 0;
    enum pd_err err = join(from, dir, MOVING, why);

    pd_clock_format(when, sizeof when, pd_clock_wall_us());
    for (const char *c = when; *c && *c != '.'; c++)
        if (isalnum((unsigned char)*c))
            when[n++] = *c;
    when[n] = '\0';
    for (int i = 1; err == PD_OK; i++) {
        snprintf(name, sizeof name, i > 1 ? "old-%s-%d" : "old-%s", when, i);
        err = join(to, dir, name, why);
        if (err != PD_OK || renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
            break;
        if (errno == ENOENT)
            return PD_OK;
        if (errno != EEXIST)
            return pd_fail_errno(why, errno, "cannot rename '%s'", from);
    }
    if (err == PD_OK)
        err = pd_file_sync_dir(dir, why);
    if (err == PD_OK)
        snprintf(ret_name, size, "%s", name);
    return err;
}

static enum pd_err move_aside(const char *dir, struct pd_why *why)
{
    char to[PATH_SIZE], name[64] = "";
    enum pd_err err = join(to, dir, MOVING, why);

    if (err == PD_OK && mkdir(to, 0700) && errno != EEXIST)
        err = pd_fail_errno(why, errno, "cannot make '%s'", to);
    for (size_t i = 0; err == PD_OK && i < sizeof belongings / sizeof *belongings; i++)
        err = move(dir, to, belongings[i], why);
    if (err == PD_OK)
        err = pd_file_sync_dir(to, why);
    if (err == PD_OK)
        err = pd_file_sync_dir(dir, why);
    if (err == PD_OK)
        err = name_old(dir, name, sizeof name, why);
    if (err == PD_OK)
        pd_log(PD_LOG_WARNING, "store", "init=1 moved_to=%s/%s", dir, name);
    return err;
}

enum pd_err store_identity_admit(const char *state_dir, bool init, struct pd_why *why)
{
    struct pd_why own = {""};
    struct folder f;
    enum pd_err err = look(state_dir, &f, &own);

    if (err == PD_OK)
        err = judge(&f, &own);
    else if (err == PD_ERR_CORRUPT) /* the marker: the sentence names it */
        err =
            pd_fail(&own, PD_ERR_CONFLICT,
                    "'%.150s/" MARKER "' does not contain the identity of a database: restore it, or remove "
                    "it if polyd.db belongs to this folder, or run once: polyd --state-dir='%.150s' --init "
                    "(moves the old runs to a subfolder and creates a new store)",
                    state_dir, state_dir);
    if (init && err == PD_OK && f.db_there)
        pd_log(PD_LOG_INFO, "store", "init=ignored why=\"this folder has its database\"");
    if (init && err == PD_ERR_CONFLICT) {
        pd_log(PD_LOG_WARNING, "store", "init=1 why=\"%s\"", own.text);
        return move_aside(state_dir, why);
    }
    if (err == PD_OK && !f.db_there) {
        char name[64] = "";

        return name_old(state_dir, name, sizeof name,
                        why); /* of an --init that was cut off at its last step */
    }
    return err == PD_OK ? PD_OK : pd_fail(why, err, "%s", own.text);
}

/* ---- after the migration -------------------------------------------------------------------- */

enum pd_err store_identity_settle(struct db *d, const char *state_dir, bool external_checkpoint,
                                  char out[STORE_UUID_SIZE], struct pd_why *why)
{
    char marker[STORE_UUID_SIZE];
    sqlite3_stmt *st;
    enum pd_err err = db_bind(d, &st, why, "SELECT uuid FROM store", "");

    if (err == PD_OK)
        err = db_step(d, st, why);
    if (err == PD_ERR_NOT_FOUND)
        err = pd_fail(why, PD_ERR_CORRUPT, "the database has no identity");
    if (err != PD_OK)
        return err;
    snprintf(out, STORE_UUID_SIZE, "%s", db_text(st, 0));
    db_done(st);
    err = store_identity_marker(state_dir, marker, why);
    if (err != PD_OK || marker[0])
        return err;
    /* The identity goes into the file itself, where it is found without the log, which a database that was
     * copied here does not own. */
    if (!external_checkpoint)
        sqlite3_wal_checkpoint_v2(d->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    err = write_marker(state_dir, out, why);
    if (err == PD_OK)
        pd_log(PD_LOG_INFO, "store", "identity=%s", out);
    return err;
}
