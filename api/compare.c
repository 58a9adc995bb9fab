/* Comparison of runs: in which fields they differ, what they reached, and their series on one axis. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "api/stats.h"
#include "daemon/job/job.h"

#define RUNS_MAX 128
#define KEYS_MAX 32
#define CURVES_MAX 1024 /* runs x keys of one answer */

struct side {
    int64_t id, job_id, started_us;
    json_t *document;  /* resolved */
    json_t *submitted; /* the job's: what its author wrote */
    json_t *swept;     /* pointer -> value */
};

struct compare {
    struct store *store;
    struct sup *sup;
    struct side side[RUNS_MAX];
    int count;
    struct pd_buf *rows; /* NULL = not wanted */
    bool documents;      /* wanted */
    bool failed;
};

static void compare_free(struct compare *c)
{
    for (int i = 0; c && i < c->count; i++) {
        json_decref(c->side[i].document);
        json_decref(c->side[i].submitted);
        json_decref(c->side[i].swept);
    }
    free(c);
}

/* A run that is older than a field differs from a younger one only if the value in force then does. */
static json_t *whole_document(const char *text)
{
    struct pd_buf b;
    json_t *document = NULL;
    enum pd_err err;

    pd_buf_init(&b, 0);
    err = job_config_complete(text, strlen(text), &b, NULL);
    if (err != PD_ERR_NOMEM) /* what this version would refuse is compared as it was kept */
        document = json_loads(err == PD_OK ? b.data : text, 0, NULL);
    pd_buf_done(&b);
    return document;
}

static bool take_run(void *ctx, const struct store_run *run)
{
    struct compare *c = ctx;
    struct side *s = &c->side[c->count];

    *s = (struct side){.id = run->id, .job_id = run->job_id, .started_us = run->started_us};
    if (c->documents) {
        s->document = whole_document(run->document);
        s->swept = json_loads(run->sweep, 0, NULL);
        c->failed = c->failed || !s->document || !s->swept;
    }
    if (c->rows)
        api_row_run(c->rows, run, NULL, c->sup, 0);
    c->count++;
    return false;
}

static bool take_job(void *ctx, const struct store_job *job)
{
    struct side *s = ctx;

    s->submitted = json_loads(job->document, 0, NULL);
    return false;
}

/* The runs of ?run=, in the order asked for; their documents only if wanted, since these take most of the
 * time. NULL: the request has been failed. */
static struct compare *compare_read(struct api_req *r, struct pd_buf *rows, bool documents)
{
    struct compare *c = calloc(1, sizeof *c);
    struct pd_why why = {.text = ""};
    enum pd_err err = PD_OK;

    if (!c) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the comparison");
        return NULL;
    }
    c->rows = rows;
    c->documents = documents;
    c->sup = api_deps_of(api_of(r))->sup;
    c->store = api_reader(r);
    while (c->store && err == PD_OK) {
        char text[24];
        enum pd_err got = api_query_get(api_query_raw(r), "run", c->count, text, sizeof text);
        int64_t id;

        if (got == PD_ERR_NOT_FOUND)
            break;
        if (got != PD_OK || c->count == RUNS_MAX || !api_parse_id(text, &id)) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d runs, each an id", RUNS_MAX);
            break;
        }
        err = store_run_get(c->store, id, take_run, c, &why);
        if (err == PD_ERR_NOT_FOUND)
            api_fail(r, err, "there is no run %lld", (long long)id);
        if (err == PD_OK && documents) {
            struct side *s = &c->side[c->count - 1];

            err = store_job_get(c->store, s->job_id, take_job, s, &why);
            c->failed = c->failed || !s->submitted;
        }
    }
    if (err == PD_OK && c->failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the comparison");
    if (err != PD_OK && !api_failed(r))
        api_fail_why(r, err, &why);
    if (!api_failed(r) && c->count == 0)
        api_fail(r, API_FAULT_MALFORMED, "name at least one run: ?run=1&run=2");
    if (api_failed(r)) {
        compare_free(c);
        return NULL;
    }
    return c;
}

/* ---- fields ------------------------------------------------------------------------------------ */

/* Did the author name it, in the document or as an axis? An axis above it counts: its value is merged there.
 */
static bool named(const struct side *s, const char *pointer)
{
    const char *axis;
    json_t *value;

    if (api_json_at(s->submitted, pointer))
        return true;
    json_object_foreach(s->swept, axis, value)
    {
        size_t n = strlen(axis);

        if (!strncmp(axis, pointer, n) &&
            (!pointer[n] || (pointer[n] == '/' && api_json_at(value, pointer + n))))
            return true;
    }
    return false;
}

static char *text_of(const json_t *value)
{
    return value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
}

/* Clients write one number as 1 and as 1.0. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_real(a) ? json_is_number(b) : json_is_real(b) && json_is_number(a))
        return json_number_value(a) == json_number_value(b);
    if (!json_is_array(a) || !json_is_array(b) || json_array_size(a) != json_array_size(b))
        return json_equal(a, b);
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!same_value(json_array_get(a, i), json_array_get(b, i)))
            return false;
    return true;
}

struct fields {
    const struct compare *c;
    bool all, csv;
    struct pd_buf *b;
    struct pd_buf pointer; /* of the values that are walked */
    int64_t differing, same;
    bool failed;
};

/* A text without its quotes, anything else as JSON, what is not there as nothing. */
static void csv_value(struct pd_buf *b, const char *text)
{
    json_t *value = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;

    api_csv_str(b, json_is_string(value) ? json_string_value(value) : text ? text : "");
    json_decref(value);
}

/* `values` has one of each run; NULL where its document has none. */
static void leaf(struct fields *f, const json_t *const *values)
{
    const char *pointer = f->pointer.data;
    char *text[RUNS_MAX], *standard = NULL;
    bool differs = false;

    for (int i = 0; i < f->c->count; i++) {
        text[i] = text_of(values[i]);
        if (values[i] && !text[i])
            f->failed = true;
    }
    for (int i = 1; i < f->c->count; i++)
        differs = differs || (!text[0]) != (!text[i]) ||
                  (text[0] && strcmp(text[0], text[i]) != 0 && !same_value(values[0], values[i]));
    f->differing += differs;
    f->same += !differs;
    if (!differs && !f->all)
        goto out;
    standard = job_default_json(pointer);
    if (f->csv) {
        api_csv_str(f->b, pointer);
        csv_value(f->b, standard);
        for (int i = 0; i < f->c->count; i++)
            csv_value(f->b, text[i]);
        api_csv_line(f->b);
        goto out;
    }
    api_json_open(f->b, '{');
    api_json_kv_str(f->b, "pointer", pointer);
    api_json_kv_bool(f->b, "differs", differs);
    api_json_kv_raw(f->b, "default", standard);
    api_json_kv_bool(f->b, "has_default", standard != NULL);
    api_json_key(f->b, "values");
    api_json_open(f->b, '[');
    for (int i = 0; i < f->c->count; i++)
        api_json_raw(f->b, text[i]);
    api_json_close(f->b, ']');
    api_json_key(f->b, "named");
    api_json_open(f->b, '[');
    for (int i = 0; i < f->c->count; i++)
        api_json_bool(f->b, named(&f->c->side[i], pointer));
    api_json_close(f->b, ']');
    api_json_close(f->b, '}');
out:
    free(standard);
    for (int i = 0; i < f->c->count; i++)
        free(text[i]);
}

/* The members of any of the values, sorted; objects are entered, unless one of the runs has something else there
 * (a field that may be null or an object): then they are compared whole. */
static void walk(struct fields *f, const json_t *const *values)
{
    const int count = f->c->count;
    const size_t len = f->pointer.len;
    json_t *keys = json_object();
    const json_t **below = calloc((size_t)count, sizeof *below);
    const char **sorted = NULL, *key;
    size_t n, k = 0;
    json_t *unused;

    f->failed = f->failed || !keys || !below;
    for (int i = 0; i < count && !f->failed; i++) {
        if (!json_is_object(values[i]) && len) {
            leaf(f, values);
            goto out;
        }
        json_object_foreach((json_t *)values[i], key,
                            unused) if (json_object_set_new(keys, key, json_true()) != 0) f->failed = true;
    }
    /* Canonical documents are sorted, their union is not. */
    n = json_object_size(keys);
    sorted = calloc(n + 1, sizeof *sorted);
    f->failed = f->failed || !sorted;
    if (f->failed)
        goto out;
    json_object_foreach(keys, key, unused)
    {
        size_t j = k++;

        for (; j > 0 && strcmp(sorted[j - 1], key) > 0; j--)
            sorted[j] = sorted[j - 1];
        sorted[j] = key;
    }
    for (size_t i = 0; i < n && !f->failed; i++) {
        for (int side = 0; side < count; side++)
            below[side] = json_object_get(values[side], sorted[i]);
        api_json_pointer_add(&f->pointer, sorted[i]);
        f->failed = pd_buf_err(&f->pointer) != PD_OK;
        if (!f->failed)
            walk(f, below);
        f->pointer.len = len;
    }
out:
    free(sorted);
    free(below);
    json_decref(keys);
}

/* Writes the fields of all runs. */
static void fields(struct fields *f)
{
    const json_t *documents[RUNS_MAX];

    for (int i = 0; i < f->c->count; i++)
        documents[i] = f->c->side[i].document;
    pd_buf_init(&f->pointer, 0);
    walk(f, documents);
    pd_buf_done(&f->pointer);
}

/* ---- what they reached -------------------------------------------------------------------------- */

struct reached {
    json_t *keys; /* object: key -> null, as a set */
    bool failed;
};

static bool note_key(void *ctx, const struct store_series *m)
{
    struct reached *n = ctx;

    if (json_object_set_new(n->keys, m->key, json_null()) != 0)
        n->failed = true;
    return true;
}

static bool value_json(void *ctx, const struct store_series *m)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_num(b, "last", m->value);
    api_json_kv_num_or_null(b, "min", m->min);
    api_json_kv_num_or_null(b, "max", m->max);
    api_json_kv_int(b, "step", m->step);
    api_json_kv_int(b, "count", m->count);
    api_json_close(b, '}');
    return false;
}

static bool value_csv(void *ctx, const struct store_series *m)
{
    struct pd_buf *b = ctx;

    api_csv_num(b, m->value, false);
    api_csv_num(b, m->min, false);
    api_csv_num(b, m->max, false);
    return false;
}

/* One line a key: of the choice, else of all that any of the runs has. */
static enum pd_err metrics(struct compare *c, const struct api_choice *choice, bool csv, struct pd_buf *b,
                           struct pd_why *why)
{
    struct reached reached = {.keys = json_object()};
    enum pd_err err = reached.keys ? PD_OK : PD_ERR_NOMEM;
    const char *key;
    json_t *unused;

    for (int i = 0; err == PD_OK && i < choice->key_count; i++)
        reached.failed =
            json_object_set_new(reached.keys, choice->keys[i], json_null()) != 0 || reached.failed;
    for (int i = 0; err == PD_OK && !choice->key_count && i < c->count; i++)
        err = store_series_list(c->store, c->side[i].id, note_key, &reached, why);
    if (err == PD_OK && reached.failed)
        err = PD_ERR_NOMEM;
    if (err == PD_ERR_NOMEM)
        pd_fail(why, err, "no memory for the comparison");
    json_object_foreach(reached.keys, key, unused)
    {
        if (err != PD_OK)
            break;
        if (csv)
            api_csv_str(b, key);
        else {
            api_json_open(b, '{');
            api_json_kv_str(b, "key", key);
            api_json_key(b, "runs");
            api_json_open(b, '[');
        }
        for (int i = 0; err == PD_OK && i < c->count; i++) {
            err = store_series_get(c->store, c->side[i].id, key, csv ? value_csv : value_json, b, why);
            if (err == PD_ERR_NOT_FOUND) {
                err = PD_OK;
                if (csv)
                    pd_buf_str(b, ",,,");
                else
                    api_json_null(b);
            }
        }
        if (csv)
            api_csv_line(b);
        else {
            api_json_close(b, ']');
            api_json_close(b, '}');
        }
    }
    json_decref(reached.keys);
    return err;
}

void api_compare(struct api_req *r)
{
    static const char *const names[] = {"run", "all", "metric", NULL};
    struct api_choice choice;
    struct fields f = {0};
    struct pd_why why = {.text = ""};
    struct compare *c = NULL;
    struct pd_buf rows, b;
    enum pd_err err;

    pd_buf_init(&rows, 0);
    if (api_query_refuse_others(r, names) || !api_choice_read(r, &choice))
        return;
    f.all = api_query_flag(r, "all");
    if (api_failed(r) || !(c = compare_read(r, &rows, true)))
        goto out;
    pd_buf_init(&b, 0);
    f.c = c;
    f.b = &b;
    api_json_open(&b, '{');
    api_json_key(&b, "runs");
    api_json_open(&b, '[');
    if (rows.len)
        pd_buf_append(&b, rows.data, rows.len);
    api_json_close(&b, ']');
    api_json_key(&b, "fields");
    api_json_open(&b, '[');
    fields(&f);
    api_json_close(&b, ']');
    api_json_kv_int(&b, "differing", f.differing);
    api_json_kv_int(&b, "same", f.same);
    api_json_key(&b, "metrics");
    api_json_open(&b, '[');
    err = metrics(c, &choice, false, &b, &why);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    if (err == PD_OK && (f.failed || pd_buf_err(&rows) != PD_OK))
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the comparison");
    api_answer(r, err, &why, &b);
out:
    pd_buf_done(&rows);
    compare_free(c);
}

/* ---- series ------------------------------------------------------------------------------------ */

static bool latest_of(void *ctx, const struct store_series *m)
{
    struct api_curve_run *run = ctx;

    run->last_step = m->step;
    run->last_us = m->time_us;
    return false;
}

/* Not more curves than one answer should take; else fails the request. */
static bool curves_fit(struct api_req *r, const struct compare *c, int keys)
{
    if ((int64_t)c->count * keys > CURVES_MAX)
        api_fail(r, API_FAULT_MALFORMED, "%d runs by %d keys: at most %d curves in one answer", c->count,
                 keys, CURVES_MAX);
    return !api_failed(r);
}

/* All keys asked for; 0 after failing. */
static int keys_read(struct api_req *r, char keys[KEYS_MAX][STORE_KEY_MAX + 1])
{
    int n = 0;

    for (;; n++) {
        char key[STORE_KEY_MAX + 1];
        enum pd_err got = api_query_get(api_query_raw(r), "key", n, key, sizeof key);

        if (got == PD_ERR_NOT_FOUND)
            break;
        if (got != PD_OK || n == KEYS_MAX || !key[0]) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d keys of 1 to %d bytes, percent-encoded", KEYS_MAX,
                     STORE_KEY_MAX);
            return 0;
        }
        memcpy(keys[n], key, sizeof key);
    }
    return n;
}

struct overlay_csv {
    struct pd_buf *b;
    const char *key;
    int64_t run;
};

static void overlay_json(void *ctx, const struct api_curve_point *p)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_num(b, "x", p->x);
    if (p->across.n) {
        api_json_kv_num(b, "mean", p->across.mean);
        api_json_kv_num(b, "min", p->least);
        api_json_kv_num(b, "max", p->most);
    } else {
        api_json_kv_null(b, "mean");
        api_json_kv_null(b, "min");
        api_json_kv_null(b, "max");
    }
    api_json_kv_int(b, "count", p->count);
    api_json_kv_int(b, "nonfinite", p->nonfinite);
    api_json_close(b, '}');
}

static void overlay_csv(void *ctx, const struct api_curve_point *p)
{
    struct overlay_csv *o = ctx;

    api_csv_str(o->b, o->key);
    api_csv_int(o->b, o->run);
    api_csv_num(o->b, p->x, false);
    api_csv_num(o->b, p->across.mean, !p->across.n);
    api_csv_num(o->b, p->least, !p->across.n);
    api_csv_num(o->b, p->most, !p->across.n);
    api_csv_int(o->b, p->count);
    api_csv_int(o->b, p->nonfinite);
    api_csv_line(o->b);
}

/* The curve of each run by itself, on buckets of its own length. */
static enum pd_err overlay(struct compare *c, const struct api_curve_query *q, bool csv, struct pd_buf *b,
                           struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (int i = 0; err == PD_OK && i < c->count; i++) {
        struct api_curve_run run = {.run_id = c->side[i].id, .started_us = c->side[i].started_us};
        struct overlay_csv line = {.b = b, .key = q->key, .run = run.run_id};

        err = store_series_get(c->store, run.run_id, q->key, latest_of, &run, why);
        if (err == PD_ERR_NOT_FOUND)
            err = PD_OK;
        if (csv) {
            if (err == PD_OK)
                err = api_curve(c->store, q, &run, 1, overlay_csv, &line, why);
            continue;
        }
        api_json_open(b, '{');
        api_json_kv_id(b, "run_id", run.run_id);
        api_json_key(b, "data");
        api_json_open(b, '[');
        if (err == PD_OK)
            err = api_curve(c->store, q, &run, 1, overlay_json, b, why);
        api_json_close(b, ']');
        api_json_close(b, '}');
    }
    return err;
}

void api_compare_series(struct api_req *r)
{
    static const char *const names[] = {"run", "key", "x", "buckets", NULL};
    char(*keys)[STORE_KEY_MAX + 1] = calloc(KEYS_MAX, sizeof *keys);
    struct api_curve_query q;
    struct pd_why why = {.text = ""};
    struct compare *c = NULL;
    struct pd_buf b;
    enum pd_err err = PD_OK;
    int count = 0;

    if (!keys)
        api_fail(r, PD_ERR_NOMEM, "no memory for the keys");
    else if (!api_query_refuse_others(r, names) && api_curve_read(r, &q))
        count = keys_read(r, keys);
    if (!count || api_failed(r) || !(c = compare_read(r, NULL, false)) || !curves_fit(r, c, count))
        goto out;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "x", api_axis_name(q.x));
    api_json_key(&b, "series");
    api_json_open(&b, '[');
    for (int i = 0; err == PD_OK && i < count; i++) {
        memcpy(q.key, keys[i], sizeof q.key);
        api_json_open(&b, '{');
        api_json_kv_str(&b, "key", q.key);
        api_json_key(&b, "runs");
        api_json_open(&b, '[');
        err = overlay(c, &q, false, &b, &why);
        api_json_close(&b, ']');
        api_json_close(&b, '}');
    }
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
out:
    free(keys);
    compare_free(c);
}

/* ---- download ---------------------------------------------------------------------------------- */

static void runs_head(struct pd_buf *b, const struct compare *c, const char *const *whats, int count)
{
    for (int i = 0; i < c->count; i++)
        for (int k = 0; k < count; k++) {
            char text[48];

            snprintf(text, sizeof text, "run %lld%s%s", (long long)c->side[i].id, *whats[k] ? " " : "",
                     whats[k]);
            api_csv_str(b, text);
        }
    api_csv_line(b);
}

static enum pd_err export_series(struct api_req *r, struct compare *c, struct pd_buf *b, struct pd_why *why)
{
    static const char *const heads[] = {"key", "run", "", "mean", "min", "max", "count", "nonfinite"};
    char(*keys)[STORE_KEY_MAX + 1] = calloc(KEYS_MAX, sizeof *keys);
    struct api_curve_query q;
    enum pd_err err = keys ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the keys");
    int count = 0;

    if (err == PD_OK && api_curve_read(r, &q))
        count = keys_read(r, keys);
    if (count && !curves_fit(r, c, count))
        count = 0;
    for (size_t i = 0; count && i < sizeof heads / sizeof *heads; i++)
        api_csv_str(b, *heads[i] ? heads[i] : api_axis_name(q.x));
    api_csv_line(b);
    for (int i = 0; err == PD_OK && i < count; i++) {
        memcpy(q.key, keys[i], sizeof q.key);
        err = overlay(c, &q, true, b, why);
    }
    free(keys);
    return err;
}

void api_compare_export(struct api_req *r)
{
    static const char *const names[] = {"run", "what", "all", "metric", NULL};
    static const char *const series_names[] = {"run", "what", "key", "x", "buckets", NULL};
    static const char *const plain[] = {""}, *const triple[] = {"last", "min", "max"};
    struct api_choice choice;
    struct pd_why why = {.text = ""};
    struct compare *c = NULL;
    char what[8] = "fields", name[64];
    struct fields f = {.csv = true};
    struct pd_buf b;
    enum pd_err err = PD_OK;
    bool series;

    pd_buf_init(&b, 0);
    (void)api_query(r, "what", what, sizeof what);
    series = !strcmp(what, "series");
    if (!api_failed(r) && !series && strcmp(what, "fields") != 0 && strcmp(what, "metrics") != 0)
        api_fail(r, API_FAULT_MALFORMED, "what must be fields, metrics or series");
    if (api_failed(r) || api_query_refuse_others(r, series ? series_names : names) ||
        !api_choice_read(r, &choice))
        return;
    f.all = api_query_flag(r, "all");
    if (api_failed(r) || !(c = compare_read(r, NULL, !strcmp(what, "fields"))))
        return;
    if (series) {
        err = export_series(r, c, &b, &why);
    } else if (!strcmp(what, "fields")) {
        f.c = c;
        f.b = &b;
        api_csv_str(&b, "field");
        api_csv_str(&b, "default");
        runs_head(&b, c, plain, 1);
        fields(&f);
        if (f.failed)
            err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the comparison");
    } else {
        api_csv_str(&b, "metric");
        runs_head(&b, c, triple, 3);
        err = metrics(c, &choice, true, &b, &why);
    }
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    if (!api_failed(r)) {
        snprintf(name, sizeof name, "attachment; filename=\"compare-%s.csv\"", what);
        api_reply(r, 200, "text/csv; charset=utf-8", &b);
        api_reply_header(r, "Content-Disposition", name);
    }
    pd_buf_done(&b);
    compare_free(c);
}
