/* Runs in the order of a metric or field, page by page. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/store/db.h"

/* Texts are ordered by their first 64 characters, then by id: a place in the list stays short. */
#define VALUES                                                                                               \
    "WITH u AS (SELECT r.id AS id, CASE WHEN ?14 > 0 THEN (SELECT l.value FROM metric_latest l WHERE "       \
    "l.run_id = r.id AND l.key_id = ?14) WHEN ?15 IS NOT NULL THEN json_extract(r.document, ?15) ELSE CASE " \
    "?16 WHEN 'id' THEN r.id WHEN 'job' THEN r.job_id WHEN 'index' THEN r.n WHEN 'point' THEN r.point WHEN " \
    "'trial' THEN r.trial WHEN 'seed' THEN r.seed WHEN 'name' THEN j.name WHEN 'experiment' THEN "           \
    "j.experiment WHEN 'state' THEN r.state WHEN 'outcome' THEN nullif(r.outcome, '') WHEN 'priority' THEN " \
    "r.priority WHEN 'step' THEN r.step WHEN 'attempts' THEN r.attempts WHEN 'created' THEN r.created_us "   \
    "WHEN 'started' THEN nullif(r.started_us, 0) WHEN 'ended' THEN nullif(r.ended_us, 0) END END AS value "  \
    "FROM run r JOIN job j ON j.id = r.job_id AND j.deleted_us = 0 WHERE (?7 IS NULL OR CASE ?7 WHEN "       \
    "'active' THEN r.state <> "                                                                              \
    "'ended' ELSE r.state = ?7 END)" DB_RUN_FILTER
#define PAGE(above, direction)                                                                               \
    "), v AS (SELECT id, CASE typeof(value) WHEN 'text' THEN substr(value, 1, 64) ELSE value END AS value "  \
    "FROM u) SELECT " DB_RUN_COLUMNS ", v.value FROM v JOIN run r ON r.id = v.id JOIN job j ON j.id = "      \
    "r.job_id WHERE ?1 = 0 OR CASE WHEN ?17 THEN v.value IS NULL AND v.id " above " ?1 ELSE v.value IS "     \
    "NULL OR v.value " above " coalesce(?19, ?18) OR (v.value = coalesce(?19, ?18) AND v.id " above          \
    " ?1) END ORDER BY v.value IS NULL, v.value " direction ", v.id " direction " LIMIT ?4"
#define UP PAGE(">", "ASC")
#define DOWN PAGE("<", "DESC")
#define OF_JOB " AND r.job_id = ?6"
#define OF_ANY " AND ?6 = 0"

static bool is_field(const char *by)
{
    static const char *const fields[] = {"id",       "job",        "index",   "point",   "trial",    "seed",
                                         "name",     "experiment", "state",   "outcome", "priority", "step",
                                         "attempts", "created",    "started", "ended"};

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i], by))
            return true;
    return false;
}

/* The value of the last column as a place: "0", "n" and a number, "t" and a text. */
static void place_of(sqlite3_stmt *st, char out[STORE_PLACE_SIZE])
{
    int column = sqlite3_column_count(st) - 1;

    switch (sqlite3_column_type(st, column)) {
    case SQLITE_NULL:
        strcpy(out, "0");
        break;
    case SQLITE_TEXT:
        snprintf(out, STORE_PLACE_SIZE, "t%s", db_text(st, column));
        break;
    default:
        snprintf(out, STORE_PLACE_SIZE, "n%.17g", sqlite3_column_double(st, column));
        break;
    }
}

enum pd_err store_config_has(struct store *s, const char *pointer, bool *ret, struct pd_why *why)
{
    char path[512];
    int64_t one;
    enum pd_err err = PD_ERR_NOT_FOUND;

    if (db_json_path(pointer, path, sizeof path))
        err = db_int(&s->db, &one, why,
                     "SELECT 1 FROM run WHERE heard_us > 0 AND json_type(document, ?1) IS NOT NULL LIMIT 1",
                     "t", path);
    *ret = err == PD_OK;
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

enum pd_err store_run_sorted(struct store *s, const struct store_run_query *q,
                             const struct store_run_sort *sort,
                             bool (*row)(void *ctx, const struct store_run *run, const char *place),
                             void *ctx, struct pd_why *why)
{
    const char *state = q->state == STORE_RUN_ACTIVE ? "active"
                        : q->state >= 0              ? job_run_state_name((enum job_run_state)q->state)
                                                     : NULL;
    const char *outcome = q->outcome >= 0 ? job_outcome_name((enum job_outcome)q->outcome) : NULL;
    const char *after = sort->after ? sort->after : "", *field = NULL, *path = NULL, *sql;
    char json_path[512];
    int64_t key = 0;
    sqlite3_stmt *st;
    enum pd_err err = PD_OK;

    if (q->limit < 1 || q->limit > STORE_PAGE_MAX)
        return pd_fail(why, PD_ERR_INVALID, "no such page of runs");
    if (is_field(sort->by)) {
        field = sort->by;
    } else if (sort->by[0] == '/') {
        if (!db_json_path(sort->by, json_path, sizeof json_path))
            return pd_fail(why, PD_ERR_INVALID, "'%.100s' is not a pointer such as /train/optimizer/lr",
                           sort->by);
        path = json_path;
    } else {
        err = db_int(&s->db, &key, why, "SELECT id FROM metric_key WHERE name = ?1", "t", sort->by);
        if (err == PD_ERR_NOT_FOUND)
            return pd_fail(why, PD_ERR_INVALID, "no run has a metric or field '%.100s'", sort->by);
    }
    if (q->job_id)
        sql = sort->desc ? VALUES OF_JOB DOWN : VALUES OF_JOB UP;
    else
        sql = sort->desc ? VALUES OF_ANY DOWN : VALUES OF_ANY UP;
    if (err == PD_OK)
        err =
            db_bind(&s->db, &st, why, sql,
                    "ittitittttt"
                    "itittidt",
                    q->after_id, q->experiment, q->name_like, (int64_t)q->limit, outcome, q->job_id, state,
                    q->text, q->tag, q->tag_value, q->group, (int64_t)q->archived, q->kind, key, path, field,
                    (int64_t)(after[0] == '0'), after[0] == 'n' ? strtod(after + 1, NULL) : (double)NAN,
                    after[0] == 't' ? after + 1 : NULL);
    while (err == PD_OK && (err = db_step(&s->db, st, why)) == PD_OK) {
        char place[STORE_PLACE_SIZE];
        struct store_run run;

        db_run_row(st, &run);
        place_of(st, place);
        if (!row(ctx, &run, place)) {
            db_done(st);
            return PD_OK;
        }
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}
