/* Jobs: list, show, change, cancel, pause, resume. */
#include <stdlib.h>
#include <string.h>

#include "api/cursor.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/tx.h"

#define LINK_MAX 8192u /* bytes of a Link header: clients limit the length of a head */

/* ---- list and show ---------------------------------------------------------------------------- */

struct page {
    struct pd_buf b;
    int count, limit;
    int64_t last_id;
    bool more;
    const char *tag, *tag_value;
    int seen;
};

/* Has the job the tag "key" or "key=value"? */
static bool tag_fits(const struct page *p, const char *tags)
{
    json_t *object, *value;
    bool fits = false;

    if (!p->tag)
        return true;
    object = json_loads(tags, 0, NULL);
    value = json_object_get(object, p->tag);
    if (json_is_string(value))
        fits = !p->tag_value || strcmp(json_string_value(value), p->tag_value) == 0;
    json_decref(object);
    return fits;
}

static bool list_row(void *ctx, const struct store_job *job)
{
    struct page *p = ctx;

    p->seen++;
    if (!tag_fits(p, job->tags)) {
        p->last_id = job->id;
        return true;
    }
    if (p->count == p->limit) {
        p->more = true;
        return false;
    }
    p->last_id = job->id;
    api_row_job(&p->b, job, 0);
    p->count++;
    return true;
}

/* The Link header's value. The other parameters stay as they are, but for what would end the address. */
static void write_link(struct pd_buf *b, const char *path, const char *query, const char *cursor)
{
    pd_buf_printf(b, "<%s?cursor=%s", path, cursor);
    while (query && *query) {
        const size_t n = strcspn(query, "&");
        const bool kept = n && strncmp(query, "cursor=", 7) != 0;

        if (kept)
            pd_buf_str(b, "&");
        for (size_t i = 0; kept && i < n; i++)
            if (query[i] == '>' || query[i] == '"')
                pd_buf_printf(b, "%%%02X", (unsigned)query[i]);
            else
                pd_buf_append(b, query + i, 1);
        query += n + (query[n] == '&');
    }
    pd_buf_str(b, ">; rel=\"next\"");
}

void api_page_close(struct api_req *r, struct pd_buf *b, const char *cursor)
{
    api_json_close(b, ']');
    if (cursor) {
        struct pd_buf link;

        api_json_kv_str(b, "next", cursor);
        pd_buf_init(&link, LINK_MAX);
        write_link(&link, api_path(r), api_query_raw(r), cursor);
        if (pd_buf_err(&link) == PD_OK)
            api_reply_header(r, "Link", link.data);
        pd_buf_done(&link);
    } else {
        api_json_kv_null(b, "next");
    }
    api_json_close(b, '}');
}

void api_page_end(struct api_req *r, struct pd_buf *b, const char *kind, int64_t last_id, bool more)
{
    char cursor[API_CURSOR_TEXT];

    if (more)
        api_cursor_write(api_core_cursor_key(api_core_of(api_of(r))), kind, last_id, cursor);
    api_page_close(r, b, more ? cursor : NULL);
}

static bool page_begin(struct api_req *r, const char *kind, int most, int missing, int64_t *ret_after,
                       int *ret_limit)
{
    char cursor[API_CURSOR_TEXT];

    *ret_after = 0;
    *ret_limit = (int)api_query_int(r, "limit", 1, most, missing);
    if (api_query(r, "cursor", cursor, sizeof cursor) &&
        !api_cursor_read(api_core_cursor_key(api_core_of(api_of(r))), kind, cursor, ret_after))
        api_fail(r, API_FAULT_MALFORMED,
                 "the cursor does not belong to this list; start with the first page");
    return !api_failed(r);
}

bool api_page_begin(struct api_req *r, const char *kind, int64_t *ret_after, int *ret_limit)
{
    return page_begin(r, kind, STORE_PAGE_MAX, 100, ret_after, ret_limit);
}

bool api_page_begin_most(struct api_req *r, const char *kind, int most, int64_t *ret_after, int *ret_limit)
{
    return page_begin(r, kind, most, most, ret_after, ret_limit);
}

bool api_query_order(struct api_req *r, enum store_order *ret_order)
{
    char text[16];

    *ret_order = STORE_ORDER_NEWEST;
    if (api_query(r, "order", text, sizeof text)) {
        if (strcmp(text, "oldest") == 0)
            *ret_order = STORE_ORDER_OLDEST;
        else if (strcmp(text, "newest") != 0)
            api_fail(r, API_FAULT_MALFORMED, "order must be newest or oldest");
    }
    return !api_failed(r);
}

void api_job_list(struct api_req *r)
{
    static const char *const names[] = {"limit", "cursor", "state", "experiment", "tag",
                                        "name",  "order",  "sweep", "archived",   NULL};
    struct store *store;
    struct store_job_query q = {.state = -1};
    struct page p = {.count = 0};
    char state[32], experiment[160], tag[512], name[256], kind[32];
    struct pd_why why = {.text = ""};
    enum job_state parsed;
    enum pd_err err = PD_OK;

    if (api_query_refuse_others(r, names) || !api_query_order(r, &q.order))
        return;
    snprintf(kind, sizeof kind, "jobs %d", (int)q.order);
    if (!api_page_begin(r, kind, &q.after_id, &p.limit))
        return;
    if (api_query(r, "state", state, sizeof state)) {
        if (!job_state_parse(state, &parsed)) {
            api_fail(r, API_FAULT_MALFORMED, "'%s' is not a state of jobs", state);
            return;
        }
        q.state = (int)parsed;
    }
    if (api_query(r, "experiment", experiment, sizeof experiment))
        q.experiment = experiment;
    if (api_query(r, "name", name, sizeof name))
        q.name_like = name;
    q.sweep = api_query_flag(r, "sweep");
    if (!api_query_archived(r, &q.archived))
        return;
    if (api_query(r, "tag", tag, sizeof tag)) {
        char *equals = strchr(tag, '=');

        if (equals)
            *equals++ = '\0';
        p.tag = tag;
        p.tag_value = equals;
    }
    if (api_failed(r) || !(store = api_reader(r)))
        return;
    pd_buf_init(&p.b, 0);
    api_json_open(&p.b, '{');
    api_json_key(&p.b, "jobs");
    api_json_open(&p.b, '[');
    q.limit = p.tag ? STORE_PAGE_MAX : p.limit + 1 > STORE_PAGE_MAX ? STORE_PAGE_MAX : p.limit + 1;
    /* A tag is looked for in at most ten pages of rows; the cursor goes on where the search stopped. */
    for (int pages = 0; err == PD_OK && !p.more && pages < 10; pages++) {
        p.seen = 0;
        err = store_job_list(store, &q, list_row, &p, &why);
        if (p.seen < q.limit)
            break;
        if (!p.tag) {
            p.more = p.more || p.count == p.limit;
            break;
        }
        q.after_id = p.last_id;
        if (pages == 9)
            p.more = true;
    }
    if (err != PD_OK) {
        pd_buf_done(&p.b);
        api_fail_why(r, err, &why);
        return;
    }
    api_page_end(r, &p.b, kind, p.last_id, p.more);
    api_reply_json(r, 200, &p.b);
}

void api_job_get(struct api_req *r)
{
    int64_t id = api_param_id(r, 0);

    if (id)
        api_answer_job(r, id, 200, true);
}

/* ---- changes ---------------------------------------------------------------------------------- */

enum job_verb { JOB_CANCEL, JOB_PAUSE, JOB_RESUME, JOB_RETRY, JOB_UPDATE };

struct change {
    struct api_write w; /* first */
    enum job_verb verb;
    int64_t id, version;
    char reason[512];
    char *name, *tags, *notes; /* owned; NULL = as it is */
    int priority;
    bool has_priority;
};

static void change_done(struct api_write *w)
{
    struct change *c = (struct change *)(void *)w;

    free(c->name);
    free(c->tags);
    free(c->notes);
}

static enum pd_err change_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct change *c = (struct change *)(void *)w;
    struct store_job_patch patch = {.name = c->name, .tags = c->tags, .notes = c->notes};
    int64_t version;

    w->status = 200;
    switch (c->verb) {
    case JOB_CANCEL:
        return store_job_cancel(tx, c->id, c->version, c->reason, why);
    case JOB_PAUSE:
        return store_job_pause(tx, c->id, c->version, why);
    case JOB_RESUME:
        return store_job_resume(tx, c->id, c->version, why);
    case JOB_RETRY:
        return store_job_retry(tx, c->id, c->version, why);
    case JOB_UPDATE:
        if (c->has_priority)
            patch.priority = &c->priority;
        return store_job_update(tx, c->id, c->version, &patch, &version, why);
    }
    return PD_ERR_INTERNAL;
}

static void change_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (w) /* a repeated command was carried out the first time: the job as it is now answers both */
        api_answer_job(r, ((struct change *)(void *)w)->id, 200, false);
}

bool api_reason(struct api_req *r, char *out, size_t size)
{
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK), *value;
    const char *key;

    if (!body)
        return false;
    snprintf(out, size, "cancelled by a client");
    json_object_foreach(body, key, value)
    {
        if (strcmp(key, "reason") != 0 || size == 0)
            api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'", key);
        else if (!json_is_string(value) || json_string_length(value) > 500)
            api_fail_param(r, PD_ERR_INVALID, key, "reason must be a text of at most 500 bytes");
        else
            snprintf(out, size, "%s", json_string_value(value));
    }
    json_decref(body);
    return !api_failed(r);
}

bool api_empty_body(struct api_req *r)
{
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK);

    if (!body)
        return false;
    if (json_object_size(body))
        api_fail(r, PD_ERR_INVALID, "this command takes an empty object");
    json_decref(body);
    return !api_failed(r);
}

static void job_command(struct api_req *r, enum job_verb verb)
{
    int64_t id = api_param_id(r, 0), version;
    char reason[512];
    struct api_write *w;
    struct change *c;

    if (!id || !api_if_match(r, false, &version))
        return;
    if (verb == JOB_CANCEL) {
        if (!api_reason(r, reason, sizeof reason))
            return;
    } else if (!api_empty_body(r)) {
        return;
    }
    w = api_write_begin(r, sizeof *c, true, change_done, change_answer);
    if (!w)
        return;
    c = (struct change *)(void *)w;
    c->verb = verb;
    c->id = id;
    c->version = version;
    if (verb == JOB_CANCEL)
        memcpy(c->reason, reason, sizeof reason);
    w->apply = change_apply;
    w->notify = true;
    api_write_submit(w, STORE_LANE_COMMAND, 4);
}

void api_job_cancel(struct api_req *r)
{
    job_command(r, JOB_CANCEL);
}

void api_job_pause(struct api_req *r)
{
    job_command(r, JOB_PAUSE);
}

void api_job_resume(struct api_req *r)
{
    job_command(r, JOB_RESUME);
}

void api_job_retry(struct api_req *r)
{
    job_command(r, JOB_RETRY);
}

bool api_tags_ok(struct api_req *r, json_t *tags)
{
    const char *key;
    json_t *value;

    if (!json_is_object(tags) || json_object_size(tags) > 100) {
        api_fail_param(r, PD_ERR_INVALID, "tags", "tags must be an object of at most 100 texts");
        return false;
    }
    json_object_foreach(tags, key, value) if (!*key || strlen(key) > 250 || !json_is_string(value) ||
                                              json_string_length(value) > 5000)
    {
        struct pd_buf pointer;

        pd_buf_init(&pointer, 0);
        pd_buf_str(&pointer, "tags");
        api_json_pointer_add(&pointer, key);
        api_fail_param(r, PD_ERR_INVALID, pd_buf_err(&pointer) == PD_OK ? pointer.data : "tags",
                       "tags: tag '%.60s': keys have 1 to 250 bytes, values are texts of at most 5000", key);
        pd_buf_done(&pointer);
        return false;
    }
    return true;
}

void api_job_update(struct api_req *r)
{
    int64_t id = api_param_id(r, 0), version;
    struct change parsed = {.id = id, .verb = JOB_UPDATE};
    struct api_write *w;
    struct change *c;
    const char *key;
    json_t *body, *value;

    if (!id || !api_if_match(r, true, &version))
        return;
    body = api_body_json(r, 0);
    if (!body)
        return;
    if (json_object_size(body) == 0)
        api_fail(r, PD_ERR_INVALID, "name one of name, notes, tags, priority");
    json_object_foreach(body, key, value)
    {
        size_t len = json_is_string(value) ? json_string_length(value) : 0;

        if (api_failed(r))
            break;
        if (strcmp(key, "name") == 0) {
            if (len < 1 || len > 200 || strlen(json_string_value(value)) != len)
                api_fail_param(r, PD_ERR_INVALID, key, "name must be a text of 1 to 200 bytes");
            else
                parsed.name = strdup(json_string_value(value));
        } else if (strcmp(key, "notes") == 0) {
            if (!json_is_string(value) || len > 65536 || strlen(json_string_value(value)) != len)
                api_fail_param(r, PD_ERR_INVALID, key, "notes must be a text of at most 65536 bytes");
            else
                parsed.notes = strdup(json_string_value(value));
        } else if (strcmp(key, "tags") == 0) {
            if (api_tags_ok(r, value))
                parsed.tags = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
        } else if (strcmp(key, "priority") == 0) {
            if (!json_is_integer(value) || json_integer_value(value) < -100 ||
                json_integer_value(value) > 100)
                api_fail_param(r, PD_ERR_INVALID, key, "priority must be an integer from -100 to 100");
            parsed.priority = (int)json_integer_value(value);
            parsed.has_priority = true;
        } else {
            api_fail_param(r, PD_ERR_INVALID, key,
                           "unknown member '%.100s'; name, notes, tags and priority can be changed", key);
        }
    }
    if (!api_failed(r) && ((json_object_get(body, "name") && !parsed.name) ||
                           (json_object_get(body, "notes") && !parsed.notes) ||
                           (json_object_get(body, "tags") && !parsed.tags)))
        api_fail(r, PD_ERR_NOMEM, "no memory for the change");
    json_decref(body);
    w = api_failed(r) ? NULL : api_write_begin(r, sizeof *c, false, change_done, change_answer);
    if (!w) {
        change_done(&parsed.w);
        return;
    }
    c = (struct change *)(void *)w;
    c->verb = JOB_UPDATE;
    c->id = id;
    c->version = version;
    c->name = parsed.name; /* moved, all three */
    c->tags = parsed.tags;
    c->notes = parsed.notes;
    c->priority = parsed.priority;
    c->has_priority = parsed.has_priority;
    w->apply = change_apply;
    w->notify = true;
    api_write_submit(w, STORE_LANE_COMMAND, 2);
}
