/* Models, their versions and aliases. */
#include "daemon/polyd/store/db.h"

#define MODEL_LIST                                                                                           \
    "SELECT id, name, description, (SELECT coalesce(max(n), 0) FROM model_version WHERE model_id = id), "    \
    "created_us, version, archived_us FROM model "

static void read_model(sqlite3_stmt *st, struct store_model *ret)
{
    *ret = (struct store_model){
        .id = sqlite3_column_int64(st, 0),
        .name = db_text(st, 1),
        .description = db_text(st, 2),
        .versions = sqlite3_column_int64(st, 3),
        .created_us = sqlite3_column_int64(st, 4),
        .version = sqlite3_column_int64(st, 5),
        .archived_us = sqlite3_column_int64(st, 6),
    };
}

enum pd_err store_model_list(struct store *s, enum store_archived archived,
                             bool (*row)(void *ctx, const struct store_model *m), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(
        &s->db, &st, why,
        MODEL_LIST
        "WHERE CASE ?1 WHEN 0 THEN archived_us = 0 WHEN 1 THEN archived_us > 0 ELSE 1 END ORDER BY name",
        "i", (int64_t)archived);

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_model, read_model, row, ctx, err, why);
    return err;
}

enum pd_err store_model_get(struct store *s, const char *name,
                            bool (*row)(void *ctx, const struct store_model *m), void *ctx,
                            struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_model m;
    enum pd_err err = db_bind(&s->db, &st, why, MODEL_LIST "WHERE name = ?1", "t", name);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, err, "no model '%s'", name);
    if (err != PD_OK)
        return err;
    read_model(st, &m);
    row(ctx, &m);
    db_done(st);
    return PD_OK;
}

/* Of a checkpoint's run, or of weights that the registry owns. */
#define VERSION_LIST                                                                                         \
    "SELECT m.id, m.name, v.n, v.run_id, v.checkpoint_id, in_state(coalesce(c.path, w.path)), "              \
    "coalesce(c.digest, w.digest), coalesce(c.bytes, w.bytes), coalesce(c.step, w.step), "                   \
    "coalesce(r.document, w.document), v.loaded, v.created_us, v.archived_us, m.version, "                   \
    "coalesce(w.origin, 'run'), coalesce(w.source, '{}') FROM model m JOIN model_version v ON "              \
    "v.model_id = m.id LEFT JOIN checkpoint c ON c.id = v.checkpoint_id LEFT JOIN run r ON r.id = v.run_id " \
    "LEFT JOIN weights w ON w.id = v.weights_id "

static void read_version(sqlite3_stmt *st, struct store_model_version *ret)
{
    *ret = (struct store_model_version){
        .model_id = sqlite3_column_int64(st, 0),
        .model = db_text(st, 1),
        .n = sqlite3_column_int64(st, 2),
        .run_id = sqlite3_column_int64(st, 3),
        .checkpoint_id = sqlite3_column_int64(st, 4),
        .path = db_text(st, 5),
        .digest = db_text(st, 6),
        .bytes = sqlite3_column_int64(st, 7),
        .step = sqlite3_column_int64(st, 8),
        .document = db_text(st, 9),
        .loaded = sqlite3_column_int(st, 10) != 0,
        .created_us = sqlite3_column_int64(st, 11),
        .archived_us = sqlite3_column_int64(st, 12),
        .model_version = sqlite3_column_int64(st, 13),
        .origin = db_text(st, 14),
        .source = db_text(st, 15),
    };
}

enum pd_err store_model_version_list(struct store *s, const char *model,
                                     bool (*row)(void *ctx, const struct store_model_version *v), void *ctx,
                                     struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err;

    if (model)
        err = db_bind(&s->db, &st, why, VERSION_LIST "WHERE m.name = ?1 ORDER BY v.n DESC", "t", model);
    else
        err = db_bind(&s->db, &st, why, VERSION_LIST "WHERE v.loaded = 1 ORDER BY m.name, v.n DESC", "");
    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_model_version, read_version, row, ctx, err, why);
    return err;
}

enum pd_err store_model_version_get(struct store *s, const char *model, int64_t n,
                                    bool (*row)(void *ctx, const struct store_model_version *v), void *ctx,
                                    struct pd_why *why)
{
    sqlite3_stmt *st;
    struct store_model_version v;
    enum pd_err err = db_bind(
        &s->db, &st, why, VERSION_LIST "WHERE m.name = ?1 AND (?2 = 0 OR v.n = ?2) ORDER BY v.n DESC LIMIT 1",
        "ti", model, n);

    if (err == PD_OK)
        err = db_step(&s->db, st, why);
    if (err == PD_ERR_NOT_FOUND)
        return n ? pd_fail(why, err, "no version %lld of model '%s'", (long long)n, model)
                 : pd_fail(why, err, "no model '%s'", model);
    if (err != PD_OK)
        return err;
    read_version(st, &v);
    row(ctx, &v);
    db_done(st);
    return PD_OK;
}

static void read_alias(sqlite3_stmt *st, struct store_alias *ret)
{
    *ret = (struct store_alias){
        .model = db_text(st, 0),
        .alias = db_text(st, 1),
        .n = sqlite3_column_int64(st, 2),
        .updated_us = sqlite3_column_int64(st, 3),
    };
}

enum pd_err store_alias_list(struct store *s, const char *model,
                             bool (*row)(void *ctx, const struct store_alias *a), void *ctx,
                             struct pd_why *why)
{
    sqlite3_stmt *st;
    enum pd_err err = db_bind(&s->db, &st, why,
                              "SELECT m.name, a.alias, a.n, a.updated_us FROM model m JOIN model_alias a ON "
                              "a.model_id = m.id WHERE m.name = ?1 ORDER BY a.alias",
                              "t", model);

    if (err == PD_OK)
        DB_EACH_ROW(s, st, struct store_alias, read_alias, row, ctx, err, why);
    return err;
}

enum pd_err store_alias_get(struct store *s, const char *model, const char *alias, int64_t *ret_n,
                            struct pd_why *why)
{
    enum pd_err err =
        db_int(&s->db, ret_n, why,
               "SELECT a.n FROM model m JOIN model_alias a ON a.model_id = m.id WHERE m.name = ?1 AND "
               "a.alias = ?2",
               "tt", model, alias);

    return err == PD_ERR_NOT_FOUND ? pd_fail(why, err, "model '%s' has no alias '%s'", model, alias) : err;
}
