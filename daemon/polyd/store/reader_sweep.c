/* Runs as members of something: of a combination of their sweep, of a named group, of what shares a tag. The
 * statistics are the caller's: SQLite has no standard deviation. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/polyd/store/db.h"

/* ---- samples -------------------------------------------------------------------------------- */

/* A run without the series still counts: it failed before the first point, or has not begun. */
#define SAMPLE_COLUMNS                                                                                       \
    "r.id, r.job_id, r.point, r.trial, r.seed, r.state, r.outcome, l.run_id IS NOT NULL, l.step, l.value, "  \
    "l.min, l.max, r.started_us, l.ts_us, "
#define LABEL_COLUMN 14
#define LABEL_SIZE 32
#define SAMPLE_SERIES                                                                                        \
    " LEFT JOIN metric_latest l ON l.run_id = r.id AND l.key_id = (SELECT id FROM metric_key WHERE name = "  \
    "?1) "
#define SAMPLE_ANY                                                                                           \
    "WHERE j.deleted_us = 0 AND (?2 IS NULL OR j.experiment = ?2) AND (?3 = 0 OR r.job_id = ?3) "
#define SAMPLE_END "ORDER BY label, r.id LIMIT ?4"

static const char *const sample_sql[] = {
    /* All runs of a combination have the same swept values: they are read from its first run that is left. */
    [STORE_BY_POINT] =
        "SELECT " SAMPLE_COLUMNS
        "'' AS label, CASE WHEN EXISTS (SELECT 1 FROM run x WHERE x.job_id = r.job_id AND "
        "x.point = r.point AND x.trial < r.trial) THEN '' ELSE r.sweep END FROM run r" SAMPLE_SERIES
        "WHERE r.job_id = ?3 AND r.point BETWEEN ?6 AND ?7 ORDER BY r.point, r.trial LIMIT ?4",
    [STORE_BY_GROUP] = "SELECT " SAMPLE_COLUMNS
                       "g.name AS label, '' FROM run_group g JOIN run_group_member m ON m.group_id = g.id "
                       "JOIN run r ON r.id = m.run_id JOIN job j ON j.id = r.job_id" SAMPLE_SERIES SAMPLE_ANY
                       "AND (?5 IS NULL OR g.name = ?5) " SAMPLE_END,
    [STORE_BY_EXPERIMENT] =
        "SELECT " SAMPLE_COLUMNS
        "j.experiment AS label, '' FROM job j JOIN run r ON r.job_id = j.id" SAMPLE_SERIES SAMPLE_ANY
            SAMPLE_END,
    [STORE_BY_JOB] =
        "SELECT " SAMPLE_COLUMNS
        "j.id AS label, '' FROM job j JOIN run r ON r.job_id = j.id" SAMPLE_SERIES SAMPLE_ANY SAMPLE_END,
    [STORE_BY_TAG] =
        "SELECT " SAMPLE_COLUMNS
        "t.value AS label, '' FROM job j JOIN json_each(j.tags) t ON t.key = ?5 JOIN run r ON r.job_id = "
        "j.id" SAMPLE_SERIES SAMPLE_ANY SAMPLE_END,
    [STORE_BY_FIELD] =
        "SELECT " SAMPLE_COLUMNS
        "json_extract(r.document, ?5) AS label, '' FROM job j JOIN run r ON r.job_id = j.id" SAMPLE_SERIES
            SAMPLE_ANY "AND label IS NOT NULL " SAMPLE_END,
};

/* As many as the text has. */
static const char *const types[] = {
    [STORE_BY_POINT] = "ttiitii", [STORE_BY_GROUP] = "ttiit", [STORE_BY_EXPERIMENT] = "ttii",
    [STORE_BY_JOB] = "ttii",      [STORE_BY_TAG] = "ttiit",   [STORE_BY_FIELD] = "ttiit",
};

bool db_json_path(const char *pointer, char *out, size_t size)
{
    size_t len = (size_t)snprintf(out, size, "$");

    while (*pointer == '/') {
        size_t n = strcspn(++pointer, "/");

        if (len + n + 4 > size || !n || memchr(pointer, '"', n))
            return false;
        out[len++] = '.';
        out[len++] = '"';
        for (const char *end = pointer + n; pointer < end; pointer++)
            if (pointer[0] == '~' && (pointer[1] == '0' || pointer[1] == '1'))
                out[len++] = *++pointer == '0' ? '~' : '/';
            else
                out[len++] = *pointer;
        out[len++] = '"';
        out[len] = '\0';
    }
    return !*pointer && len > 1;
}

/* Clients write one number as 1 and as 1.0. SQLite sorts both together, so their labels must be the same. */
static const char *label_of(sqlite3_stmt *st, char out[LABEL_SIZE])
{
    const double value = sqlite3_column_type(st, LABEL_COLUMN) == SQLITE_FLOAT
                             ? sqlite3_column_double(st, LABEL_COLUMN)
                             : (double)NAN;

    if (value != trunc(value) || fabs(value) > 9007199254740992.0)
        return db_text(st, LABEL_COLUMN);
    snprintf(out, LABEL_SIZE, "%lld", (long long)value);
    return out;
}

/* `label` has the label if the column has another. */
static void read_sample(sqlite3_stmt *st, struct store_sample *ret, char label[LABEL_SIZE])
{
    *ret = (struct store_sample){
        .run_id = sqlite3_column_int64(st, 0),
        .job_id = sqlite3_column_int64(st, 1),
        .point = sqlite3_column_int64(st, 2),
        .trial = sqlite3_column_int64(st, 3),
        .seed = sqlite3_column_int64(st, 4),
        .has = sqlite3_column_int(st, 7),
        .step = sqlite3_column_int64(st, 8),
        .last = db_real(st, 9),
        .min = db_real(st, 10),
        .max = db_real(st, 11),
        .started_us = sqlite3_column_int64(st, 12),
        .time_us = sqlite3_column_int64(st, 13),
        .label = label_of(st, label),
        .sweep = db_text(st, 15),
    };
    job_run_state_parse(db_text(st, 5), &ret->state);
    job_outcome_parse(db_text(st, 6), &ret->outcome);
}

enum pd_err store_sample_list(struct store *s, const struct store_sample_query *q,
                              bool (*row)(void *ctx, const struct store_sample *m), void *ctx,
                              struct pd_why *why)
{
    char path[512];
    const char *name = q->name;
    sqlite3_stmt *st;
    enum pd_err err;

    if (q->by == STORE_BY_FIELD) {
        if (!db_json_path(q->name, path, sizeof path))
            return pd_fail(why, PD_ERR_INVALID, "'%.100s' is not a pointer such as /attention/scale",
                           q->name);
        name = path;
    }
    err = db_bind(&s->db, &st, why, sample_sql[q->by], types[q->by], q->key, q->experiment, q->job_id,
                  (int64_t)q->limit, name, q->from_point, q->to_point);
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_sample m;
        char label[LABEL_SIZE];

        read_sample(st, &m, label);
        if (!row(ctx, &m)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

/* The rows (state, outcome, count) of a statement that is bound. */
static enum pd_err read_counts(struct store *s, sqlite3_stmt *st, struct store_run_counts *ret,
                               struct pd_why *why)
{
    struct store_run_counts counts = {0};
    enum pd_err err;

    while ((err = db_step(&s->db, st, why)) == PD_OK) {
        enum job_run_state state;
        enum job_outcome outcome;
        int64_t n = sqlite3_column_int64(st, 2);

        if (job_run_state_parse(db_text(st, 0), &state))
            counts.state[state] += n;
        if (job_outcome_parse(db_text(st, 1), &outcome))
            counts.outcome[outcome] += n;
    }
    if (err != PD_ERR_NOT_FOUND)
        return err;
    *ret = counts;
    return PD_OK;
}

enum pd_err store_run_count(struct store *s, int64_t job_id, struct store_run_counts *ret, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        &s->db, &st, why,
        "SELECT state, outcome, count(*) FROM run WHERE job_id = ?1 GROUP BY state, outcome", "i", job_id);

    return err == PD_OK ? read_counts(s, st, ret, why) : err;
}

/* ---- experiments ---------------------------------------------------------------------------- */

#define EXPERIMENT_LIST                                                                                      \
    "SELECT experiment, (SELECT t.template FROM job t WHERE t.experiment = j.experiment AND t.deleted_us = " \
    "0 ORDER BY t.id DESC LIMIT 1), count(*), min(created_us), CASE WHEN min(ended_us) > 0 THEN "            \
    "max(ended_us) ELSE 0 END FROM job j WHERE deleted_us = 0 AND "

static enum pd_err experiment_counts(struct store *s, struct store_experiment *e, struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              "SELECT r.state, r.outcome, count(*) FROM job j JOIN run r ON r.job_id = j.id "
                              "WHERE j.experiment = ?1 AND j.deleted_us = 0 GROUP BY 1, 2",
                              "t", e->name);

    return err == PD_OK ? read_counts(s, st, &e->runs, why) : err;
}

static enum pd_err experiment_rows(struct store *s, sqlite3_stmt *st,
                                   bool (*row)(void *ctx, const struct store_experiment *e), void *ctx,
                                   bool *ret_any, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_experiment e = {.name = db_text(st, 0),
                                     .template_name = db_text(st, 1),
                                     .jobs = sqlite3_column_int64(st, 2),
                                     .created_us = sqlite3_column_int64(st, 3),
                                     .ended_us = sqlite3_column_int64(st, 4)};

        *ret_any = true;
        err = experiment_counts(s, &e, why);
        if (err != PD_OK || !row(ctx, &e)) {
            db_done(st);
            return err;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_experiment_list(struct store *s, const char *after, int limit,
                                  bool (*row)(void *ctx, const struct store_experiment *e), void *ctx,
                                  struct pd_why *why)
{
    bool any = false;
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why,
                EXPERIMENT_LIST "(?1 IS NULL OR experiment > ?1) GROUP BY experiment ORDER BY experiment "
                                "LIMIT ?2",
                "ti", after, (int64_t)limit);

    return err == PD_OK ? experiment_rows(s, st, row, ctx, &any, why) : err;
}

enum pd_err store_experiment_get(struct store *s, const char *name,
                                 bool (*row)(void *ctx, const struct store_experiment *e), void *ctx,
                                 struct pd_why *why)
{
    bool any = false;
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why, EXPERIMENT_LIST "experiment = ?1 GROUP BY experiment", "t", name);

    if (err == PD_OK)
        err = experiment_rows(s, st, row, ctx, &any, why);
    return err == PD_OK && !any ? pd_fail(why, PD_ERR_NOT_FOUND, "no experiment '%.200s'", name) : err;
}

/* ---- groups --------------------------------------------------------------------------------- */

#define GROUP_LIST                                                                                           \
    "SELECT g.id, g.version, g.name, g.description, (SELECT count(*) FROM run_group_member m JOIN run r "    \
    "ON r.id = m.run_id JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE m.group_id = g.id), "       \
    "g.created_us, g.archived_us FROM run_group g WHERE "

static void read_group(sqlite3_stmt *st, struct store_group *ret)
{
    *ret = (struct store_group){
        .id = sqlite3_column_int64(st, 0),
        .version = sqlite3_column_int64(st, 1),
        .name = db_text(st, 2),
        .description = db_text(st, 3),
        .runs = sqlite3_column_int64(st, 4),
        .created_us = sqlite3_column_int64(st, 5),
        .archived_us = sqlite3_column_int64(st, 6),
    };
}

enum pd_err store_group_list(struct store *s, enum store_archived archived, int64_t after_id, int limit,
                             bool (*row)(void *ctx, const struct store_group *g), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              GROUP_LIST "g.id > ?1 AND CASE ?3 WHEN 0 THEN g.archived_us = 0 WHEN 1 THEN "
                                         "g.archived_us > 0 ELSE 1 END ORDER BY g.id LIMIT ?2",
                              "iii", after_id, (int64_t)limit, (int64_t)archived);

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_group g;

        read_group(st, &g);
        if (!row(ctx, &g)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_group_get(struct store *s, const char *name,
                            bool (*row)(void *ctx, const struct store_group *g), void *ctx,
                            struct pd_why *why)
{
    struct store_group g;
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why, GROUP_LIST "g.name = ?1", "t", name);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no group '%.200s'", name);
    if (err != PD_OK)
        return err;
    read_group(st, &g);
    row(ctx, &g);
    db_done(st);
    return PD_OK;
}

/* ---- the tally ------------------------------------------------------------------------------ */

enum pd_err store_tally_list(struct store *s, bool (*row)(void *ctx, const struct store_tally *t), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err =
        db_bind(&s->db, &st, why, "SELECT kind, past, next, count FROM tally ORDER BY kind, past, next", "");

    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        struct store_tally t = {.kind = db_text(st, 0),
                                .from = db_text(st, 1),
                                .to = db_text(st, 2),
                                .count = sqlite3_column_int64(st, 3)};

        if (!row(ctx, &t)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}
