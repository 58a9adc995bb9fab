/* Named groups of runs, and what the runs that share something have in common: mean and deviation. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "api/stats.h"
#include "daemon/polyd/store/tx.h"

#define GROUP_RUNS 10000 /* of one group, and of one change */
#define SAMPLES 100000   /* runs of one aggregation */
#define ROWS_MAX 1000    /* different labels of one aggregation */

/* ---- list and show ------------------------------------------------------------------------------ */

static void group_json(struct pd_buf *b, const struct store_group *g)
{
    api_json_open(b, '{');
    api_json_kv_str(b, "name", g->name);
    api_json_kv_int(b, "version", g->version);
    api_json_kv_str(b, "description", g->description);
    api_json_kv_int(b, "runs", g->runs);
    api_json_kv_time(b, "created", g->created_us);
    api_json_kv_time(b, "archived", g->archived_us);
    api_json_close(b, '}');
}

struct page {
    struct pd_buf b;
    int count, limit;
    int64_t last_id;
    bool more;
};

static bool list_row(void *ctx, const struct store_group *g)
{
    struct page *p = ctx;

    if (p->count == p->limit) {
        p->more = true;
        return false;
    }
    group_json(&p->b, g);
    p->last_id = g->id;
    p->count++;
    return true;
}

void api_group_list(struct api_req *r)
{
    static const char *const names[] = {"limit", "cursor", "archived", NULL};
    enum store_archived archived;
    struct page p = {.count = 0};
    struct pd_why why = {.text = ""};
    struct store *store;
    int64_t after;
    enum pd_err err;

    if (api_query_refuse_others(r, names) || !api_page_begin(r, "groups", &after, &p.limit) ||
        !api_query_archived(r, &archived) || !(store = api_reader(r)))
        return;
    pd_buf_init(&p.b, 0);
    api_json_open(&p.b, '{');
    api_json_key(&p.b, "groups");
    api_json_open(&p.b, '[');
    err = store_group_list(store, archived, after, p.limit + 1, list_row, &p, &why);
    api_page_end(r, &p.b, "groups", p.last_id, p.more);
    api_answer(r, err, &why, &p.b);
}

struct shown {
    struct api_req *r;
    struct pd_buf *b;
    bool conditional, unchanged;
};

static bool show_row(void *ctx, const struct store_group *g)
{
    struct shown *s = ctx;
    char tag[32];

    if (s->conditional && api_not_modified(s->r, g->version)) {
        s->unchanged = true;
        return false;
    }
    api_reply_header(s->r, "ETag", api_etag(g->version, tag));
    group_json(s->b, g);
    return false;
}

void api_answer_group(struct api_req *r, const char *name, int status, bool conditional)
{
    struct store *store = api_reader(r);
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    struct shown s = {.r = r, .b = &b, .conditional = conditional};
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    err = store_group_get(store, name, show_row, &s, &why);
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no group '%.200s'", name);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!s.unchanged)
        api_reply_json(r, status, &b);
    pd_buf_done(&b);
}

void api_group_get(struct api_req *r)
{
    api_answer_group(r, api_param(r, 0), 200, true);
}

/* ---- changes ------------------------------------------------------------------------------------ */

enum group_verb { GROUP_CREATE, GROUP_CHANGE };

struct change {
    struct api_write w; /* first */
    enum group_verb verb;
    char name[129];
    int64_t version;
    char *description; /* owned; NULL = as it is */
    int64_t *add, *drop;
    size_t add_count, drop_count;
};

static void change_done(struct api_write *w)
{
    struct change *c = (struct change *)(void *)w;

    free(c->description);
    free(c->add);
    free(c->drop);
}

static enum pd_err change_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct change *c = (struct change *)(void *)w;
    struct store_group_patch patch = {.description = c->description,
                                      .add = c->add,
                                      .add_count = c->add_count,
                                      .drop = c->drop,
                                      .drop_count = c->drop_count};
    size_t bad = 0;
    enum pd_err err = PD_OK;

    w->status = c->verb == GROUP_CREATE ? 201 : 200;
    if (c->verb == GROUP_CREATE)
        err = store_group_insert(tx, c->name, c->description, why);
    if (err == PD_OK && (c->verb == GROUP_CHANGE || c->add_count)) {
        if (c->verb == GROUP_CREATE)
            patch.description = NULL;
        err = store_group_update(tx, c->name, c->version, &patch, &bad, why);
        if (err == PD_ERR_INVALID)
            snprintf(w->param, sizeof w->param, "%s/%zu", c->verb == GROUP_CREATE ? "runs" : "add", bad);
    }
    return err;
}

static void change_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    struct change *c = (struct change *)(void *)w;
    char path[512];

    if (!w)
        return;
    api_answer_group(r, c->name, c->verb == GROUP_CREATE ? 201 : 200, false);
    if (c->verb == GROUP_CREATE && !api_failed(r)) {
        snprintf(path, sizeof path, "/api/v1/groups/%s", c->name);
        api_reply_header(r, "Location", path);
    }
}

/* The same letters as an experiment's: it stands in a path. */
static bool name_ok(const char *name)
{
    size_t n = strlen(name);

    return n >= 1 && n <= 128 &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

static bool read_ids(struct api_req *r, const char *key, json_t *list, int64_t **ret, size_t *ret_count)
{
    json_t *value;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) > GROUP_RUNS) {
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be an array of at most %d ids of runs", key,
                       GROUP_RUNS);
        return false;
    }
    *ret = calloc(json_array_size(list) + 1, sizeof **ret);
    if (!*ret) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the group");
        return false;
    }
    json_array_foreach(list, i, value) if (!json_is_string(value) ||
                                           !api_parse_id(json_string_value(value), &(*ret)[i]))
    {
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be an array of ids of runs, such as \"12\"", key);
        return false;
    }
    *ret_count = json_array_size(list);
    return true;
}

static void group_write(struct api_req *r, enum group_verb verb, int64_t version)
{
    struct change parsed = {.verb = verb, .version = version};
    bool create = verb == GROUP_CREATE;
    struct api_write *w;
    json_t *body, *value;
    const char *key;

    if (!(body = api_body_json(r, 0)))
        return;
    if (!create && !name_ok(api_param(r, 0)))
        api_fail(r, PD_ERR_NOT_FOUND, "there is no group '%.200s'", api_param(r, 0));
    else if (!create)
        snprintf(parsed.name, sizeof parsed.name, "%s", api_param(r, 0));
    else if (!json_is_string(json_object_get(body, "name")))
        api_fail_param(r, PD_ERR_INVALID, "name", "name is needed: a text");
    json_object_foreach(body, key, value)
    {
        if (api_failed(r))
            break;
        if (create && !strcmp(key, "name")) {
            if (json_string_length(value) != strlen(json_string_value(value)) ||
                !name_ok(json_string_value(value)))
                api_fail_param(r, PD_ERR_INVALID, key, "name must be 1 to 128 of A-Z a-z 0-9 . _ -");
            else
                snprintf(parsed.name, sizeof parsed.name, "%s", json_string_value(value));
        } else if (!strcmp(key, "description")) {
            if (!json_is_string(value) || json_string_length(value) > 4000 ||
                strlen(json_string_value(value)) != json_string_length(value))
                api_fail_param(r, PD_ERR_INVALID, key, "description must be a text of at most 4000 bytes");
            else if (!(parsed.description = strdup(json_string_value(value))))
                api_fail(r, PD_ERR_NOMEM, "no memory for the group");
        } else if (!strcmp(key, create ? "runs" : "add")) {
            read_ids(r, key, value, &parsed.add, &parsed.add_count);
        } else if (!create && !strcmp(key, "drop")) {
            read_ids(r, key, value, &parsed.drop, &parsed.drop_count);
        } else {
            api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'; %s", key,
                           create ? "name, description and runs are known"
                                  : "description, add and drop are known");
        }
    }
    if (!api_failed(r) && verb == GROUP_CHANGE && json_object_size(body) == 0)
        api_fail(r, PD_ERR_INVALID, "name one of description, add, drop");
    json_decref(body);
    w = api_failed(r) ? NULL : api_write_begin(r, sizeof parsed, create, change_done, change_answer);
    if (!w) {
        change_done(&parsed.w);
        return;
    }
    parsed.w = *w;
    *(struct change *)(void *)w = parsed; /* moved */
    w->apply = change_apply;
    api_write_submit(w, STORE_LANE_COMMAND, (int)(parsed.add_count + parsed.drop_count) + 2);
}

void api_group_create(struct api_req *r)
{
    group_write(r, GROUP_CREATE, -1);
}

void api_group_update(struct api_req *r)
{
    int64_t version;

    if (api_if_match(r, true, &version))
        group_write(r, GROUP_CHANGE, version);
}

/* ---- aggregation -------------------------------------------------------------------------------- */

struct row {
    char *label; /* owned */
    struct api_tally runs;
    struct api_stat stat[API_SAMPLE_KEYS];
};

struct table {
    struct api_choice choice;
    struct row *rows;
    size_t count;
    size_t at;
    int key;
    bool truncated, failed;
    int64_t samples;
};

static bool sample(void *ctx, const struct store_sample *m)
{
    struct table *t = ctx;

    if (t->key == 0) {
        if (!t->count || strcmp(t->rows[t->count - 1].label, m->label) != 0) {
            struct row *grown;

            if (t->count == ROWS_MAX) {
                t->truncated = true;
                return false;
            }
            grown = realloc(t->rows, (t->count + 1) * sizeof *grown);
            if (grown)
                t->rows = grown;
            if (!grown || !(grown[t->count] = (struct row){.label = strdup(m->label)}).label) {
                t->failed = true;
                return false;
            }
            t->count++;
        }
        t->at = t->count - 1;
        api_tally_add(&t->rows[t->at].runs, m);
        t->samples++;
    } else
        while (t->at < t->count && strcmp(t->rows[t->at].label, m->label) != 0)
            t->at++;
    if (t->at >= t->count)
        return false; /* beyond the last row that fits */
    if (t->choice.key_count)
        api_choice_add(&t->choice, &t->rows[t->at].stat[t->key], m);
    return true;
}

/* by=experiment, job, group, group:NAME, tag:KEY or field:/POINTER; `name` holds what follows the colon. */
static bool by_read(struct api_req *r, struct store_sample_query *q, char *name, size_t size)
{
    static const struct {
        const char *word;
        enum store_by by;
    } plain[] = {{"experiment", STORE_BY_EXPERIMENT}, {"job", STORE_BY_JOB}, {"group", STORE_BY_GROUP}};
    char text[400] = "";

    if (!api_query(r, "by", text, sizeof text) && api_failed(r))
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(text, plain[i].word)) {
            q->by = plain[i].by;
            return true;
        }
    if (!strncmp(text, "tag:", 4) && text[4])
        q->by = STORE_BY_TAG;
    else if (!strncmp(text, "group:", 6) && text[6])
        q->by = STORE_BY_GROUP;
    else if (!strncmp(text, "field:/", 7) && text[7])
        q->by = STORE_BY_FIELD;
    else {
        api_fail(r, API_FAULT_MALFORMED,
                 "by must be experiment, job, group, group:NAME, tag:KEY or field:/POINTER");
        return false;
    }
    snprintf(name, size, "%s", strchr(text, ':') + 1);
    q->name = name;
    return true;
}

void api_aggregate(struct api_req *r)
{
    static const char *const names[] = {"by", "metric", "value", "open", "experiment", "job", NULL};
    struct store_sample_query q = {.limit = SAMPLES};
    char name[400], experiment[160], text[24];
    struct pd_why why = {.text = ""};
    struct table t = {0};
    struct store *store;
    struct pd_buf b;
    enum pd_err err;

    if (api_query_refuse_others(r, names) || !by_read(r, &q, name, sizeof name) ||
        !api_choice_read(r, &t.choice))
        return;
    if (api_query(r, "experiment", experiment, sizeof experiment))
        q.experiment = experiment;
    if (api_query(r, "job", text, sizeof text) && !api_parse_id(text, &q.job_id))
        api_fail(r, API_FAULT_MALFORMED, "job must be an id");
    if (api_failed(r) || !(store = api_reader(r)))
        return;
    err = store_begin(store, &why);
    for (t.key = 0; err == PD_OK && (t.key == 0 || t.key < t.choice.key_count); t.key++) {
        t.at = 0;
        q.key = t.choice.key_count ? t.choice.keys[t.key] : NULL;
        err = store_sample_list(store, &q, sample, &t, &why);
    }
    store_end(store);
    if (err == PD_OK && t.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the table");
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "value", api_pick_name(t.choice.pick));
    api_json_kv_bool(&b, "truncated", t.truncated || t.samples == SAMPLES);
    api_json_key(&b, "rows");
    api_json_open(&b, '[');
    for (size_t i = 0; i < t.count; i++) {
        api_json_open(&b, '{');
        api_json_kv_str(&b, "label", t.rows[i].label);
        api_json_key(&b, "runs");
        api_tally_json(&b, &t.rows[i].runs);
        api_json_key(&b, "metrics");
        api_json_open(&b, '{');
        for (int k = 0; k < t.choice.key_count; k++) {
            api_json_key(&b, t.choice.keys[k]);
            api_stat_json(&b, &t.rows[i].stat[k]);
        }
        api_json_close(&b, '}');
        api_json_close(&b, '}');
        free(t.rows[i].label);
    }
    free(t.rows);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}
