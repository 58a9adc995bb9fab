/* Runs: list, show, series, charts, export, checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "api/cursor.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/job/job.h"
#include "daemon/job/kind.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/clock.h"

#define LATEST_MAX 16    /* metrics added to each run of a list */
#define FIELDS_MAX 16    /* members of the resolved document added to each run of a list */
#define POINTER_MAX 128  /* bytes of such a member's pointer */
#define KEYS_MAX 64      /* series of one chart request or export */
#define EXPORT_PAGE 1000 /* points read in one short transaction */

/* ---- list and show ---------------------------------------------------------------------------- */

struct run_page {
    struct pd_buf b;
    struct sup *sup;
    struct store *store;
    char keys[LATEST_MAX][STORE_KEY_MAX + 1];
    int key_count;
    char fields[FIELDS_MAX][POINTER_MAX + 1];
    int field_count;
    unsigned row; /* flags of api_row_run */
    int count, limit;
    int64_t last_id;
    bool more;
    char place[STORE_PLACE_SIZE],
        after[STORE_PLACE_SIZE]; /* of a sorted list: of the last row, of the page before */
    int64_t ids[STORE_PAGE_MAX];
    size_t ends[STORE_PAGE_MAX]; /* where each run's object ends in b, its brace left open */
};

/* The members asked for; what the document lacks is left out. */
static void add_fields(struct run_page *p, const struct store_run *run)
{
    json_t *document = json_loads(run->document, 0, NULL);

    api_json_key(&p->b, "fields");
    api_json_open(&p->b, '{');
    for (int i = 0; i < p->field_count; i++) {
        const json_t *value = api_json_at(document, p->fields[i]);
        char *text =
            value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;

        if (text)
            api_json_kv_raw(&p->b, p->fields[i], text);
        free(text);
    }
    api_json_close(&p->b, '}');
    json_decref(document);
}

static bool list_row(void *ctx, const struct store_run *run);

/* Of a sorted list: the place of the last row shown begins the next page. */
static bool sorted_row(void *ctx, const struct store_run *run, const char *place)
{
    struct run_page *p = ctx;
    bool on = list_row(ctx, run);

    if (on)
        snprintf(p->place, sizeof p->place, "%s", place);
    return on;
}

static bool list_row(void *ctx, const struct store_run *run)
{
    struct run_page *p = ctx;

    if (p->count == p->limit) {
        p->more = true;
        return false;
    }
    api_row_run(&p->b, run, p->store, p->sup, p->row);
    if (p->field_count)
        add_fields(p, run);
    p->last_id = run->id;
    p->ids[p->count] = run->id;
    p->ends[p->count++] = p->b.len;
    if (!p->key_count)
        api_json_close(&p->b, '}');
    return true;
}

static bool latest_row(void *ctx, const struct store_series *m)
{
    struct pd_buf *b = ctx;

    api_json_kv_num(b, m->key, m->value);
    return false;
}

/* Copies the rows with their latest values put in. The queries come after the list's, whose statement is
 * done. */
static enum pd_err add_latest(struct run_page *p, struct pd_buf *out, struct pd_why *why)
{
    size_t start = 0;
    enum pd_err err = pd_buf_err(&p->b);

    for (int i = 0; i < p->count && err == PD_OK; i++) {
        pd_buf_append(out, p->b.data + start, p->ends[i] - start);
        start = p->ends[i];
        api_json_key(out, "latest");
        api_json_open(out, '{');
        for (int k = 0; k < p->key_count && err == PD_OK; k++) {
            err = store_series_get(p->store, p->ids[i], p->keys[k], latest_row, out, why);
            if (err == PD_ERR_NOT_FOUND)
                err = PD_OK;
        }
        api_json_close(out, '}');
        api_json_close(out, '}');
    }
    return err;
}

/* A field of the job document, or one of the configuration of an external run. */
static bool field_known(struct api_req *r, const char *pointer)
{
    struct store *store;
    struct pd_why why = {.text = ""};
    bool has = job_pointer_known(pointer);
    enum pd_err err = PD_OK;

    if (!has && (store = api_reader(r)))
        err = store_config_has(store, pointer, &has, &why);
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    return has;
}

/* The page of a sorted list that a request begins at. False: the request has been failed. */
static bool sorted_begin(struct api_req *r, struct run_page *p, const char *kind, struct store_run_query *q,
                         struct store_run_sort *sort)
{
    char cursor[API_CURSOR_AT_TEXT], order[16];

    p->limit = (int)api_query_int(r, "limit", 1, STORE_PAGE_MAX, 100);
    if (api_query(r, "order", order, sizeof order))
        api_fail(r, API_FAULT_MALFORMED,
                 "order is for lists without sort; sort=id, with desc=1, is the same");
    else if (sort->by[0] == '/' && !field_known(r, sort->by) && !api_failed(r))
        api_fail(r, API_FAULT_MALFORMED,
                 "sort: neither the job document nor a run's own config has a field '%.100s'", sort->by);
    else if (!sort->by[0])
        api_fail(r, API_FAULT_MALFORMED, "sort must name a metric, a field or a pointer");
    if (!api_failed(r) && api_query(r, "cursor", cursor, sizeof cursor)) {
        if (!api_cursor_read_at(api_core_cursor_key(api_core_of(api_of(r))), kind, cursor, &q->after_id,
                                p->after, sizeof p->after))
            api_fail(r, API_FAULT_MALFORMED,
                     "the cursor does not belong to this list; start with the first page");
        sort->after = p->after;
    }
    return !api_failed(r);
}

void api_run_list(struct api_req *r)
{
    static const char *const names[] = {
        "limit", "cursor", "job",   "experiment", "state", "name",  "outcome",  "metric", "order", "text",
        "tag",   "field",  "group", "sort",       "desc",  "brief", "archived", "kind",   NULL};
    struct store_run_query q = {.state = -1, .outcome = -1};
    struct store_run_sort sort = {.by = NULL};
    struct run_page *p;
    char by[STORE_KEY_MAX + 1], sorted[STORE_KEY_MAX + 32];
    char text[32], experiment[160], name[256], words[256], tag[512], group[160], kind[32];
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    enum pd_err err;

    if (api_query_refuse_others(r, names) || !api_query_order(r, &q.order))
        return;
    p = api_state_new(r, sizeof *p, NULL);
    if (!p)
        return;
    snprintf(kind, sizeof kind, "runs %d", (int)q.order);
    if (api_query(r, "sort", by, sizeof by))
        sort.by = by;
    sort.desc = api_query_flag(r, "desc");
    if (api_failed(r))
        return;
    p->row = API_ROW_OPEN | (api_query_flag(r, "brief") ? API_ROW_NO_DIGESTS : 0);
    if (sort.by) {
        snprintf(sorted, sizeof sorted, "runs by %s %d", by, sort.desc);
        if (!sorted_begin(r, p, sorted, &q, &sort))
            return;
    } else if (sort.desc) {
        api_fail(r, API_FAULT_MALFORMED, "desc needs sort: ?sort=acc/val&desc=1");
        return;
    } else if (!api_page_begin(r, kind, &q.after_id, &p->limit)) {
        return;
    }
    if (api_query(r, "state", text, sizeof text)) {
        enum job_run_state state;

        if (strcmp(text, "active") == 0)
            q.state = STORE_RUN_ACTIVE;
        else if (job_run_state_parse(text, &state))
            q.state = (int)state;
        else
            api_fail(r, API_FAULT_MALFORMED, "'%s' is not a state of runs", text);
    }
    if (api_query(r, "outcome", text, sizeof text)) {
        enum job_outcome outcome;

        if (job_outcome_parse(text, &outcome))
            q.outcome = (int)outcome;
        else
            api_fail(r, API_FAULT_MALFORMED, "'%s' is not an outcome", text);
    }
    if (api_query(r, "kind", text, sizeof text)) {
        enum job_kind kind_of_job;

        if (job_kind_parse(text, &kind_of_job))
            q.kind = job_kind_info(kind_of_job)->name;
        else
            api_fail(r, API_FAULT_MALFORMED, "'%s' is not a kind of job", text);
    }
    if (api_query(r, "job", text, sizeof text) && !api_parse_id(text, &q.job_id))
        api_fail(r, API_FAULT_MALFORMED, "job must be an id");
    if (!api_query_archived(r, &q.archived))
        return;
    if (api_query(r, "experiment", experiment, sizeof experiment))
        q.experiment = experiment;
    if (api_query(r, "name", name, sizeof name))
        q.name_like = name;
    if (api_query(r, "text", words, sizeof words))
        q.text = words;
    if (api_query(r, "group", group, sizeof group))
        q.group = group;
    if (api_query(r, "tag", tag, sizeof tag)) {
        char *equals = strchr(tag, '=');

        q.tag = tag;
        if (equals) {
            *equals = 0;
            q.tag_value = equals + 1;
        }
    }
    for (;;) {
        char key[STORE_KEY_MAX + 1];
        enum pd_err got = api_query_get(api_query_raw(r), "metric", p->key_count, key, sizeof key);

        if (got == PD_ERR_NOT_FOUND)
            break;
        if (got != PD_OK || p->key_count == LATEST_MAX) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d metric keys of at most %d bytes", LATEST_MAX,
                     STORE_KEY_MAX);
            break;
        }
        memcpy(p->keys[p->key_count++], key, sizeof key);
    }
    for (;;) {
        char pointer[POINTER_MAX + 1];
        enum pd_err got = api_query_get(api_query_raw(r), "field", p->field_count, pointer, sizeof pointer);

        if (got == PD_ERR_NOT_FOUND)
            break;
        if (got != PD_OK || p->field_count == FIELDS_MAX || pointer[0] != '/') {
            api_fail(r, API_FAULT_MALFORMED, "at most %d fields, each a pointer such as /train/optimizer/lr",
                     FIELDS_MAX);
            break;
        }
        memcpy(p->fields[p->field_count++], pointer, sizeof pointer);
    }
    if (api_failed(r) || !(p->store = api_reader(r)))
        return;
    p->sup = api_deps_of(api_of(r))->sup;
    pd_buf_init(&p->b, 0);
    pd_buf_init(&b, 0);
    /* One more than asked for tells whether another page follows; at the largest page the next one may be
     * empty. */
    q.limit = p->limit < STORE_PAGE_MAX ? p->limit + 1 : STORE_PAGE_MAX;
    err = sort.by ? store_run_sorted(p->store, &q, &sort, sorted_row, p, &why)
                  : store_run_list(p->store, &q, list_row, p, &why);
    if (p->limit == STORE_PAGE_MAX && p->count == p->limit)
        p->more = true;
    api_json_open(&b, '{');
    api_json_key(&b, "runs");
    api_json_open(&b, '[');
    if (err == PD_OK && p->key_count)
        err = add_latest(p, &b, &why);
    else if (err == PD_OK && p->b.len)
        pd_buf_append(&b, p->b.data, p->b.len);
    pd_buf_done(&p->b);
    if (err != PD_OK) {
        pd_buf_done(&b);
        if (sort.by && err == PD_ERR_INVALID)
            api_fail(r, API_FAULT_MALFORMED, "sort: %s", why.text);
        else
            api_fail_why(r, err, &why);
        return;
    }
    if (sort.by && p->more) {
        char cursor[API_CURSOR_AT_TEXT];

        api_cursor_write_at(api_core_cursor_key(api_core_of(api_of(r))), sorted, p->last_id, p->place,
                            cursor);
        api_page_close(r, &b, cursor);
    } else {
        api_page_end(r, &b, kind, p->last_id, p->more);
    }
    api_reply_json(r, 200, &b);
}

void api_run_get(struct api_req *r)
{
    int64_t id = api_param_id(r, 0);

    if (id)
        api_answer_run(r, id, true);
}

/* ---- series ----------------------------------------------------------------------------------- */

static bool exists_row(void *ctx, const struct store_run *run)
{
    *(struct api_run_facts *)ctx = (struct api_run_facts){
        .kind = run->kind, .state = run->state, .outcome = run->outcome, .attempts = run->attempts};
    return false;
}

bool api_run_exists(struct api_req *r, struct store *store, int64_t id, struct api_run_facts *ret)
{
    struct pd_why why = {.text = ""};
    struct api_run_facts facts = {.attempts = 0};
    enum pd_err err = store_run_get(store, id, exists_row, &facts, &why);

    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no run %lld", (long long)id);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    if (ret)
        *ret = facts;
    return err == PD_OK;
}

struct series_page {
    struct pd_buf b;
    int count, limit;
    int64_t last_id;
    bool more;
};

static bool series_row(void *ctx, const struct store_series *m)
{
    struct series_page *p = ctx;
    struct pd_buf *b = &p->b;

    if (p->count++ == p->limit) {
        p->more = true;
        return false;
    }
    p->last_id = m->key_id;
    api_json_open(b, '{');
    api_json_kv_str(b, "key", m->key);
    api_json_kv_int(b, "count", m->count);
    api_json_kv_int(b, "attempt", m->attempt);
    api_json_kv_int(b, "step", m->step);
    api_json_kv_time(b, "time", m->time_us);
    api_json_kv_num(b, "value", m->value);
    api_json_kv_num_or_null(b, "min", m->min); /* of the finite values */
    api_json_kv_num_or_null(b, "max", m->max);
    api_json_close(b, '}');
    return true;
}

void api_run_metrics(struct api_req *r)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    int64_t id = api_param_id(r, 0), after;
    struct series_page p = {.count = 0};
    struct store *store;
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (!id || api_query_refuse_others(r, names) ||
        !api_page_begin_most(r, "series", STORE_RUN_KEYS_MAX, &after, &p.limit) || !(store = api_reader(r)) ||
        !api_run_exists(r, store, id, NULL))
        return;
    pd_buf_init(&p.b, 0);
    api_json_open(&p.b, '{');
    api_json_kv_id(&p.b, "run_id", id);
    api_json_key(&p.b, "series");
    api_json_open(&p.b, '[');
    err = store_series_page(store, id, after, p.limit + 1, series_row, &p, &why);
    api_page_end(r, &p.b, "series", p.last_id, p.more);
    api_answer(r, err, &why, &p.b);
}

/* All values of `key`, NULL after failing. The caller frees *ret_keys. */
static bool read_keys(struct api_req *r, char (**ret_keys)[STORE_KEY_MAX + 1], int *ret_count)
{
    char(*keys)[STORE_KEY_MAX + 1] = calloc(KEYS_MAX, sizeof *keys);
    int n = 0;

    if (!keys) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the keys");
        return false;
    }
    for (;; n++) {
        char key[STORE_KEY_MAX + 1];
        enum pd_err err = api_query_get(api_query_raw(r), "key", n, key, sizeof key);

        if (err == PD_ERR_NOT_FOUND)
            break;
        if (err != PD_OK || n == KEYS_MAX || !key[0]) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d keys of 1 to %d bytes, percent-encoded", KEYS_MAX,
                     STORE_KEY_MAX);
            free(keys);
            return false;
        }
        memcpy(keys[n], key, sizeof key);
    }
    *ret_keys = keys;
    *ret_count = n;
    return true;
}

struct chart {
    struct pd_buf b;
    int buckets;
};

static bool bucket_row(void *ctx, const struct store_bucket *bucket)
{
    struct chart *c = ctx;
    struct pd_buf *b = &c->b;

    c->buckets++;
    api_json_open(b, '{');
    api_json_kv_int(b, "first_step", bucket->first_step);
    api_json_kv_int(b, "last_step", bucket->last_step);
    api_json_kv_time(b, "first_time", bucket->first_us);
    api_json_kv_time(b, "last_time", bucket->last_us);
    api_json_kv_num(b, "min", bucket->min);
    api_json_kv_num(b, "max", bucket->max);
    api_json_kv_num(b, "mean", bucket->mean);
    api_json_kv_int(b, "count", bucket->count);
    api_json_kv_int(b, "nonfinite", bucket->nonfinite);
    api_json_close(b, '}');
    return true;
}

void api_run_series(struct api_req *r)
{
    static const char *const names[] = {"key", "buckets", "from_step", "to_step", "attempt", NULL};
    int64_t id = api_param_id(r, 0);
    struct store_point_query q = {.run_id = id};
    struct store *store;
    char(*keys)[STORE_KEY_MAX + 1];
    struct pd_why why = {.text = ""};
    enum pd_err err = PD_OK;
    struct pd_buf b;
    int buckets, count;

    if (!id || api_query_refuse_others(r, names))
        return;
    buckets = (int)api_query_int(r, "buckets", 1, STORE_BUCKETS_MAX, 1000);
    q.from_step = api_query_int(r, "from_step", INT64_MIN + 1, INT64_MAX - 1, INT64_MIN);
    q.to_step = api_query_int(r, "to_step", INT64_MIN + 1, INT64_MAX - 1, INT64_MAX);
    q.attempt = (int)api_query_int(r, "attempt", 0, 1000000, -1);
    if (api_failed(r) || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL) ||
        !read_keys(r, &keys, &count))
        return;
    if (count == 0) {
        free(keys);
        api_fail(r, API_FAULT_MALFORMED, "name at least one key: ?key=loss/train");
        return;
    }
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_id(&b, "run_id", id);
    api_json_key(&b, "series");
    api_json_open(&b, '[');
    for (int i = 0; i < count && err == PD_OK; i++) {
        struct chart c = {.buckets = 0};
        int64_t points = 0;

        pd_buf_init(&c.b, 0);
        q.key = keys[i];
        err = store_bucket_list(store, &q, buckets, bucket_row, &c, &points, &why);
        api_json_open(&b, '{');
        api_json_kv_str(&b, "key", keys[i]);
        api_json_kv_int(&b, "points", points);
        api_json_kv_int(&b, "buckets", c.buckets);
        api_json_key(&b, "data");
        api_json_open(&b, '[');
        if (c.b.len)
            pd_buf_append(&b, c.b.data, c.b.len);
        if (err == PD_OK)
            err = pd_buf_err(&c.b);
        pd_buf_done(&c.b);
        api_json_close(&b, ']');
        api_json_close(&b, '}');
    }
    free(keys);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}

/* ---- export ----------------------------------------------------------------------------------- */

struct export
{
    struct api *api;
    int64_t run;
    bool json;
    char(*keys)[STORE_KEY_MAX + 1];
    int count, at, size;
    bool begun, ended, failed;
    bool inside;             /* some point of the key has been read */
    int64_t last_step, same; /* points of last_step so far: the next page skips them */
    int page_points;
    bool any;          /* a JSON element was written */
    struct pd_buf out; /* formatted, not yet sent */
    size_t sent;
};

static bool export_point(void *ctx, const struct store_point *p)
{
    struct export *e = ctx;
    struct pd_buf *b = &e->out;
    const char *key = e->keys[e->at];
    char time[PD_CLOCK_TEXT_SIZE];

    e->page_points++;
    e->same = e->inside && p->step == e->last_step ? e->same + 1 : 1;
    e->last_step = p->step;
    e->inside = true;
    if (e->json) {
        pd_buf_str(b, e->any ? ",\n" : "\n"); /* the writer puts no comma after a newline */
        e->any = true;
        api_json_open(b, '{');
        api_json_kv_str(b, "key", key);
        api_json_kv_int(b, "step", p->step);
        api_json_kv_time(b, "time", p->time_us);
        api_json_kv_int(b, "attempt", p->attempt);
        api_json_kv_num(b, "value", p->value);
        api_json_close(b, '}');
        return true;
    }
    if (strpbrk(key, ",\"\r\n")) {
        pd_buf_append(b, "\"", 1);
        for (const char *c = key; *c; c++) {
            if (*c == '"')
                pd_buf_append(b, "\"", 1);
            pd_buf_append(b, c, 1);
        }
        pd_buf_append(b, "\"", 1);
    } else {
        pd_buf_str(b, key);
    }
    pd_buf_printf(b, ",%lld,%s,%d,", (long long)p->step, pd_clock_format(time, sizeof time, p->time_us),
                  p->attempt);
    {
        size_t at = b->len;

        pd_buf_append(b, ":", 1); /* so that the number's writer puts no comma */
        api_json_num(b, p->value);
        if (pd_buf_err(b) == PD_OK) {
            /* Take the colon and the quotes of "NaN" off again. */
            size_t from = at + 1, len = b->len - from;

            if (b->data[from] == '"') {
                from++;
                len -= 2;
            }
            memmove(b->data + at, b->data + from, len);
            b->len = at + len;
            b->data[b->len] = '\0';
        }
    }
    pd_buf_append(b, "\n", 1);
    return true;
}

/* Formats the next page into `out`. */
static enum pd_err export_page(struct export *e, struct store *store, struct pd_why *why)
{
    struct store_point_query q = {.run_id = e->run,
                                  .key = e->keys[e->at],
                                  .from_step = e->inside ? e->last_step : INT64_MIN,
                                  .to_step = INT64_MAX,
                                  .attempt = -1,
                                  .skip = e->inside ? e->same : 0,
                                  .limit = EXPORT_PAGE};
    enum pd_err err;

    e->page_points = 0;
    err = store_point_list(store, &q, export_point, e, why);
    if (e->page_points == 0) {
        e->at++;
        e->inside = false;
    }
    return err == PD_OK ? pd_buf_err(&e->out) : err;
}

static ssize_t export_read(void *state, char *out, size_t size)
{
    struct export *e = state;
    struct pd_why why;
    size_t n;

    if (e->sent == e->out.len && !e->ended) {
        struct store *store = api_reader_of(e->api, &why);

        e->out.len = 0;
        e->sent = 0;
        if (!e->begun)
            pd_buf_str(&e->out, e->json ? "[" : "key,step,time,attempt,value\n");
        e->begun = true;
        while (e->out.len < 8192 && e->at < e->count)
            if (!store || export_page(e, store, &why) != PD_OK)
                return API_STREAM_ABORT;
        if (e->at == e->count) {
            if (e->json)
                pd_buf_str(&e->out, "\n]\n");
            e->ended = true;
        }
        if (pd_buf_err(&e->out) != PD_OK)
            return API_STREAM_ABORT;
    }
    n = e->out.len - e->sent;
    if (n == 0)
        return API_STREAM_END;
    if (n > size)
        n = size;
    memcpy(out, e->out.data + e->sent, n);
    e->sent += n;
    return (ssize_t)n;
}

static void export_done(void *state)
{
    struct export *e = state;

    pd_buf_done(&e->out);
    free(e->keys);
    free(e);
}

static const struct api_stream_ops export_ops = {.read = export_read, .done = export_done};

static bool export_key(void *ctx, const struct store_series *m)
{
    struct export *e = ctx;

    if (e->count == e->size) {
        int size = e->size ? e->size * 2 : 64;
        char(*keys)[STORE_KEY_MAX + 1] = realloc(e->keys, (size_t)size * sizeof *keys);

        if (!keys) {
            e->failed = true;
            return false;
        }
        e->keys = keys;
        e->size = size;
    }
    snprintf(e->keys[e->count++], STORE_KEY_MAX + 1, "%s", m->key);
    return true;
}

void api_run_export(struct api_req *r)
{
    static const char *const names[] = {"format", "key", NULL};
    int64_t id = api_param_id(r, 0);
    struct pd_why why = {.text = ""};
    char format[16] = "csv", name[96];
    struct store *store;
    struct export *e;
    enum pd_err err = PD_OK;

    if (!id || api_query_refuse_others(r, names))
        return;
    (void)api_query(r, "format", format, sizeof format);
    if (!api_failed(r) && strcmp(format, "csv") != 0 && strcmp(format, "json") != 0)
        api_fail(r, API_FAULT_MALFORMED, "format must be csv or json");
    if (api_failed(r) || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL))
        return;
    e = calloc(1, sizeof *e);
    if (!e) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the export");
        return;
    }
    pd_buf_init(&e->out, 0);
    e->api = api_of(r);
    e->run = id;
    e->json = strcmp(format, "json") == 0;
    if (!read_keys(r, &e->keys, &e->count)) {
        export_done(e);
        return;
    }
    e->size = KEYS_MAX;
    if (e->count == 0)
        err = store_series_list(store, id, export_key, e, &why);
    if (err == PD_OK && e->failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the keys");
    if (err != PD_OK) {
        export_done(e);
        api_fail_why(r, err, &why);
        return;
    }
    snprintf(name, sizeof name, "attachment; filename=\"run-%lld.%s\"", (long long)id, format);
    api_reply_header(r, "Content-Disposition", name);
    api_reply_stream(r, 200, e->json ? "application/json" : "text/csv; charset=utf-8", &export_ops, e, NULL);
}

/* ---- checkpoints ------------------------------------------------------------------------------ */

static bool checkpoint_row(void *ctx, const struct store_checkpoint *c)
{
    api_row_checkpoint(ctx, c);
    return true;
}

/* The metric that ranks a run's checkpoints, or null. */
static bool ranked_by(void *ctx, const struct store_run *run)
{
    struct job_config *config = NULL;
    const char *key = NULL;
    bool maximise;

    if (job_kind_info(run->kind)->worker &&
        job_config_load(run->document, strlen(run->document), &config, NULL) == PD_OK)
        key = job_config_best_metric(config, &maximise);
    api_json_kv_str(ctx, "metric", key);
    job_config_free(config);
    return false;
}

void api_run_checkpoints(struct api_req *r)
{
    int64_t id = api_param_id(r, 0);
    struct store *store;
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    enum pd_err err;

    if (!id || !(store = api_reader(r)) || !api_run_exists(r, store, id, NULL))
        return;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_key(&b, "checkpoints");
    api_json_open(&b, '[');
    err = store_checkpoint_list(store, id, false, checkpoint_row, &b, &why);
    api_json_close(&b, ']');
    if (err == PD_OK)
        err = store_run_get(store, id, ranked_by, &b, &why);
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}
