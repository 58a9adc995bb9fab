/* Jobs: submit, dry run, list, show, change, cancel, pause, resume. */
#include <stdlib.h>
#include <string.h>

#include "api/cursor.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/spec/spec.h"
#include "daemon/store/tx.h"
#include "daemon/supervise/expand.h"

#define READY_RUNS 32 /* runs made with the job; the rest come after it (supervise/expand.h) */

/* ---- submit ----------------------------------------------------------------------------------- */

struct submit {
    struct api_write w; /* first */
    struct spec_job *job;
    struct pd_buf document, tags, warnings, sweep;
    struct expand_run ready[READY_RUNS];
    int64_t id;
};

static void submit_done(struct api_write *w)
{
    struct submit *s = (struct submit *)(void *)w;

    spec_job_free(s->job);
    pd_buf_done(&s->document);
    pd_buf_done(&s->tags);
    pd_buf_done(&s->warnings);
    pd_buf_done(&s->sweep);
    for (int i = 0; i < READY_RUNS; i++)
        expand_run_done(&s->ready[i]);
}

static void problems(struct pd_buf *b, const struct spec_problem *list, size_t count)
{
    api_json_open(b, '[');
    for (size_t i = 0; i < count; i++) {
        api_json_open(b, '{');
        api_json_kv_str(b, "pointer", list[i].pointer);
        api_json_kv_str(b, "detail", list[i].detail);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
}

static void fail_report(struct api_req *r, enum pd_err err, const struct spec_report *report)
{
    struct pd_buf b;
    int fault = err == PD_ERR_LIMIT     ? API_FAULT_BODY_TOO_LARGE
                : err == PD_ERR_CORRUPT ? API_FAULT_MALFORMED
                                        : (int)err;

    if (err == PD_ERR_NOMEM || report->error_count == 0) {
        api_fail(r, err == PD_OK ? PD_ERR_INTERNAL : (int)err, "the job document could not be read");
        return;
    }
    pd_buf_init(&b, 0);
    problems(&b, report->errors, report->error_count);
    if (pd_buf_err(&b) != PD_OK)
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
    else if (report->error_count == 1)
        api_fail_details(r, fault, b.data, "%s: %s", report->errors[0].pointer, report->errors[0].detail);
    else
        api_fail_details(r, fault, b.data, "%zu errors in the job document%s", report->error_count,
                         report->truncated ? " (there are more)" : "");
    pd_buf_done(&b);
}

static void tags_json(struct pd_buf *b, const struct spec_head *head)
{
    api_json_open(b, '{');
    for (size_t i = 0; i < head->tag_count; i++)
        api_json_kv_str(b, head->tags[i].key, head->tags[i].value);
    api_json_close(b, '}');
}

/* Method and axes of the document to store: what an override removed is gone there. */
static void sweep_json(struct pd_buf *b, const char *document)
{
    json_t *all = json_loads(document, 0, NULL), *sweep = json_object_get(all, "sweep");
    char *text = json_is_object(sweep) ? json_dumps(sweep, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

    if (text)
        pd_buf_str(b, text);
    else if (!all || json_is_object(sweep))
        b->failed = true; /* no memory: the document is ours */
    free(text);
    json_decref(all);
}

static enum pd_err submit_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct submit *s = (struct submit *)(void *)w;
    const struct spec_head *head = spec_job_head(s->job);
    struct store_job_new job = {
        .name = head->name,
        .experiment = head->experiment,
        .tags = s->tags.data,
        .notes = head->notes,
        .register_name = head->register_name,
        .document = s->document.data,
        .priority = (int)head->resources.priority,
        .planned = head->run_count,
        .points = head->points,
        .trials = head->trials,
        .concurrency = head->concurrency,
        .metric = head->metric,
        .maximise = head->mode == SPEC_MODE_MAX,
        .sweep = s->sweep.data ? s->sweep.data : "",
    };
    int64_t made = head->run_count < READY_RUNS ? head->run_count : READY_RUNS, run[READY_RUNS];
    struct store_job row = {.version = 1 + made}; /* each run that joins counts the version up */
    enum pd_err err = store_job_insert(tx, &job, &s->id, why);

    for (int64_t n = 0; n < made && err == PD_OK; n++)
        err = expand_run_insert(tx, head, s->id, (int)head->resources.priority, &s->ready[n], &run[n], why);
    if (err != PD_OK)
        return err;
    /* The answer belongs to the same commit, so that a repeated request gets this very one. */
    row.id = s->id;
    row.state = SPEC_JOB_QUEUED;
    row.name = head->name;
    row.experiment = head->experiment;
    row.template_name = "";
    row.tags = s->tags.data;
    row.notes = head->notes ? head->notes : "";
    row.reason = "";
    row.register_name = head->register_name ? head->register_name : "";
    row.priority = job.priority;
    row.runs = made;
    row.planned = head->run_count;
    row.points = head->points;
    row.trials = head->trials;
    row.concurrency = head->concurrency;
    row.metric = head->metric;
    row.maximise = job.maximise;
    row.sweep = job.sweep;
    row.created_us = store_tx_now_us(tx);
    row.document = s->document.data;
    api_row_job(&w->answer, &row, API_ROW_FULL | API_ROW_OPEN);
    api_json_key(&w->answer, "run_ids");
    api_json_open(&w->answer, '[');
    for (int64_t n = 0; n < made; n++)
        api_json_id(&w->answer, run[n]);
    api_json_close(&w->answer, ']');
    api_json_kv_raw(&w->answer, "warnings", s->warnings.data);
    api_json_close(&w->answer, '}');
    w->status = 201;
    return PD_OK;
}

static void submit_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    char text[64], tag[32];
    long long id = 0, version = 0;

    if (!w)
        return;
    /* New or repeated, the stored answer begins so. */
    if (!w->answer.data || sscanf(w->answer.data, "{\"id\":\"%lld\",\"version\":%lld", &id, &version) != 2) {
        api_fail(r, PD_ERR_INTERNAL, "the stored answer cannot be read");
        return;
    }
    if (w->replayed)
        api_reply_header(r, "Idempotency-Replayed", "true");
    snprintf(text, sizeof text, "/api/v1/jobs/%lld", id);
    api_reply_header(r, "Location", text);
    api_reply_header(r, "ETag", api_etag(version, tag));
    api_reply_json(r, w->status, &w->answer);
}

/* What the planner found odd about the data. */
static void plan_warnings(const json_t *facts, struct spec_report *report)
{
    const json_t *list = json_object_get(facts, "warnings");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pointer = json_string_value(json_object_get(json_array_get(list, i), "pointer"));
        const char *detail = json_string_value(json_object_get(json_array_get(list, i), "detail"));

        if (pointer && detail)
            spec_report_warning(report, pointer, "%s", detail);
    }
}

/* What the plan says of the run, its number of training samples above all: more errors and warnings. */
static enum pd_err judge(const struct expand_run *run, const char *plan, struct spec_report *report,
                         struct pd_why *why)
{
    json_t *facts = json_loads(plan, 0, NULL), *samples = json_object_get(facts, "train_samples");
    enum pd_err err = PD_OK;

    if (json_is_integer(samples))
        err = spec_run_judge(run->document.data, run->document.len, json_integer_value(samples), report, why);
    plan_warnings(facts, report);
    json_decref(facts);
    return err;
}

/* ---- dry run ---------------------------------------------------------------------------------- */

struct dry {
    struct api_wait *wait;
    struct spec_job *job;
    struct spec_report report;
    struct expand_run run;
    struct pd_buf plan;
    char plan_error[sizeof((struct pd_why *)0)->text];
    struct sup_queue_info place;
    char device[8], devices[2048];
};

static void dry_done(void *data)
{
    struct dry *d = data;

    spec_job_free(d->job);
    spec_report_done(&d->report);
    pd_buf_done(&d->plan);
    expand_run_done(&d->run);
}

static void dry_planned(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan)
{
    struct dry *d = ctx;

    if (err == PD_OK)
        pd_buf_str(&d->plan, plan);
    else
        snprintf(d->plan_error, sizeof d->plan_error, "%s",
                 why && why->text[0] ? why->text : pd_err_name(err));
    api_wait_end(d->wait);
}

#define EXPANSION_SHOWN 100

static void expansion_json(struct pd_buf *b, const struct spec_job *job)
{
    int64_t trials = spec_job_head(job)->trials;

    api_json_key(b, "expansion");
    api_json_open(b, '[');
    for (int64_t n = 0; n < spec_job_run_count(job) && n < EXPANSION_SHOWN; n++) {
        struct pd_why why;
        struct pd_buf values;

        pd_buf_init(&values, 0);
        if (spec_job_run_params(job, n, &values, &why) != PD_OK)
            b->failed = true; /* only for memory */
        api_json_open(b, '{');
        api_json_kv_int(b, "index", n);
        api_json_kv_int(b, "point", n / trials);
        api_json_kv_int(b, "trial", n % trials);
        api_json_kv_int(b, "seed", spec_job_run_seed(job, n));
        api_json_kv_raw(b, "values", values.data);
        api_json_close(b, '}');
        pd_buf_done(&values);
    }
    api_json_close(b, ']');
}

/* "cuda:0,cuda:1" */
static void names_json(struct pd_buf *b, const char *names)
{
    api_json_open(b, '[');
    while (*names) {
        size_t n = strcspn(names, ",");

        api_json_strn(b, names, n);
        names += n + (names[n] == ',');
    }
    api_json_close(b, ']');
}

static void dry_answer(struct api_req *r)
{
    struct dry *d = api_waited(r);
    struct pd_why why = {.text = ""};
    struct pd_buf b;

    /* Plans are kept without the schedule, so this one may be of a run that differs there. */
    if (d->plan.len && judge(&d->run, d->plan.data, &d->report, &why) != PD_OK) {
        api_fail_why(r, PD_ERR_NOMEM, &why);
        return;
    }
    if (d->report.error_count) {
        snprintf(d->plan_error, sizeof d->plan_error, "%s: %s", d->report.errors[0].pointer,
                 d->report.errors[0].detail);
        pd_buf_done(&d->plan);
    }
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_bool(&b, "dry_run", true);
    api_json_kv_int(&b, "runs", spec_job_run_count(d->job));
    api_json_kv_int(&b, "points", spec_job_head(d->job)->points);
    api_json_kv_int(&b, "trials", spec_job_head(d->job)->trials);
    expansion_json(&b, d->job);
    api_json_kv_raw(&b, "document", d->run.document.data);
    api_json_key(&b, "warnings");
    problems(&b, d->report.warnings, d->report.warning_count);
    api_json_key(&b, "queue");
    api_json_open(&b, '{');
    api_json_kv_int(&b, "position", d->place.position);
    api_json_kv_str(&b, "reason", d->place.reason);
    api_json_key(&b, "devices");
    names_json(&b, d->devices);
    api_json_close(&b, '}');
    api_json_kv_raw(&b, "plan", d->plan.data);
    api_json_kv_str(&b, "plan_error", d->plan_error[0] ? d->plan_error : NULL);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

static void dry_run(struct api_req *r, struct spec_job *job, struct spec_report *report)
{
    struct sup *sup = api_deps_of(api_of(r))->sup;
    const struct spec_head *head = spec_job_head(job);
    struct pd_why why = {.text = ""};
    struct api_wait *wait;
    struct dry *d;
    enum pd_err err;

    wait = api_wait_begin(r, sizeof *d, dry_done, dry_answer);
    if (!wait) {
        spec_job_free(job);
        return;
    }
    d = api_wait_data(wait);
    d->wait = wait;
    d->job = job;        /* moved */
    d->report = *report; /* moved */
    spec_report_init(report);
    pd_buf_init(&d->plan, 0);
    snprintf(d->device, sizeof d->device, "%s", head->resources.device == SPEC_DEVICE_CUDA ? "cuda" : "cpu");
    err = sup_fit(sup, d->device, (int)head->resources.slots, (int)head->resources.priority, &d->place,
                  d->devices, sizeof d->devices, &why);
    if (err != PD_OK)
        snprintf(d->place.reason, sizeof d->place.reason, "never fits: %.140s", why.text);
    err = expand_run_make(d->job, 0, &d->run, &why);
    if (err == PD_OK)
        err = sup_plan(sup, d->run.document.data, d->run.document.len, d->run.plan_digest, dry_planned, d,
                       &why);
    if (err != PD_OK)
        dry_planned(d, err, &why, NULL);
}

/* Judges the job by the plan of its first run, where one is kept: answers, and returns false, if it cannot
 * run. */
static bool judged(struct api_req *r, struct spec_job *job, struct spec_report *report)
{
    struct store *store = api_reader(r);
    struct expand_run run;
    struct pd_buf plan;
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (!store)
        return false;
    err = expand_run_make(job, 0, &run, &why);
    if (err == PD_OK) {
        pd_buf_init(&plan, 1 << 20);
        err = store_plan_get(store, run.plan_digest, &plan, &why);
        if (err == PD_OK)
            err = judge(&run, plan.data, report, &why);
        else if (err == PD_ERR_NOT_FOUND)
            err = PD_OK;
        pd_buf_done(&plan);
        expand_run_done(&run);
    }
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (report->error_count)
        fail_report(r, PD_ERR_INVALID, report);
    return !api_failed(r);
}

static bool room_for_job(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct pd_why why = {.text = ""};
    bool room = false;
    enum pd_err err;

    if (!store)
        return false;
    err = api_core_job_room(api_core_of(api_of(r)), store, api_settings_of(r)->jobs, &room, &why);
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!room)
        api_fail(r, API_FAULT_OVERLOADED, "%lld jobs have not ended, which is the limit (limits.jobs)",
                 (long long)api_settings_of(r)->jobs);
    return err == PD_OK && room;
}

/* ---- the handler ------------------------------------------------------------------------------ */

void api_job_submit(struct api_req *r)
{
    static const char *const names[] = {"dry_run", NULL};
    const struct config *config = api_deps_of(api_of(r))->config;
    struct spec_env env = {
        .threads = config->devices.threads_per_slot,
        .cuda = false,
        .no_cuda = NULL,
        .keep_best = config->keep.best,
        .keep_latest = config->keep.latest,
        .root_count = config->data.count,
        .roots = config->data.names,
        .check_roots = true,
    };
    struct spec_report report;
    struct spec_job *job = NULL;
    struct pd_why why = {.text = ""};
    char no_cuda[SUP_WHY_BYTES];
    struct api_write *w;
    struct submit *s;
    const char *body;
    size_t len;
    bool dry;
    enum pd_err err;

    if (api_query_refuse_others(r, names))
        return;
    dry = api_query_flag(r, "dry_run");
    if (api_failed(r))
        return;
    if (!dry && api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and takes no new jobs");
        return;
    }
    body = api_body(r, &len);
    env.cuda = sup_cuda(api_deps_of(api_of(r))->sup, no_cuda);
    env.no_cuda = env.cuda ? NULL : no_cuda;
    spec_report_init(&report);
    err = spec_job_parse(body ? body : "", len, &env, &job, &report);
    if (err != PD_OK) {
        fail_report(r, err, &report);
        spec_report_done(&report);
        return;
    }
    if (spec_job_head(job)->depends_on_count) {
        /* Accepting it without waiting for the other job would be a lie. */
        api_fail_param(r, PD_ERR_UNSUPPORTED, "depends_on",
                       "dependencies between jobs are not available yet");
        spec_job_free(job);
    } else if (dry) {
        dry_run(r, job, &report);
    } else if (!api_write_repeated(r) && (!room_for_job(r) || !judged(r, job, &report))) {
        spec_job_free(job);
    } else {
        w = api_write_begin(r, sizeof *s, true, submit_done, submit_answer);
        if (!w) {
            spec_job_free(job);
            spec_report_done(&report);
            return;
        }
        s = (struct submit *)(void *)w;
        s->job = job; /* moved */
        w->apply = submit_apply;
        w->notify = true;
        pd_buf_init(&s->document, 0);
        pd_buf_init(&s->tags, 0);
        pd_buf_init(&s->warnings, 0);
        pd_buf_init(&s->sweep, 0);
        problems(&s->warnings, report.warnings, report.warning_count);
        tags_json(&s->tags, spec_job_head(job));
        err = spec_job_document(job, &s->document, &why);
        if (err == PD_OK)
            sweep_json(&s->sweep, s->document.data);
        for (int64_t n = 0; n < spec_job_run_count(job) && n < READY_RUNS && err == PD_OK; n++)
            err = expand_run_make(job, n, &s->ready[n], &why);
        if (err == PD_OK && (pd_buf_err(&s->warnings) != PD_OK || pd_buf_err(&s->tags) != PD_OK ||
                             pd_buf_err(&s->sweep) != PD_OK))
            err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the job");
        if (err == PD_OK)
            api_write_submit(w, STORE_LANE_COMMAND, READY_RUNS + 2);
        else
            api_write_fail(w, err, &why);
    }
    spec_report_done(&report);
}

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

void api_page_close(struct api_req *r, struct pd_buf *b, const char *cursor)
{
    api_json_close(b, ']');
    if (cursor) {
        char link[1024];
        const char *query = api_query_raw(r);
        size_t used;

        api_json_kv_str(b, "next", cursor);
        used = (size_t)snprintf(link, sizeof link, "<%s?cursor=%s", api_path(r), cursor);
        /* The other parameters stay: copied raw, for they are percent-encoded already. */
        while (query && *query) {
            size_t n = strcspn(query, "&");

            if (n && strncmp(query, "cursor=", 7) != 0 && used + n + 24 < sizeof link &&
                !memchr(query, '>', n) && !memchr(query, '"', n))
                used += (size_t)snprintf(link + used, sizeof link - used, "&%.*s", (int)n, query);
            query += n + (query[n] == '&');
        }
        snprintf(link + used, sizeof link - used, ">; rel=\"next\"");
        api_reply_header(r, "Link", link);
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
        api_fail(r, API_FAULT_MALFORMED, "this cursor is not one of this list; begin at the first page");
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
                                        "name",  "order",  "sweep", NULL};
    struct store *store;
    struct store_job_query q = {.state = -1};
    struct page p = {.count = 0};
    char state[32], experiment[160], tag[512], name[256], kind[32];
    struct pd_why why = {.text = ""};
    enum spec_job_state parsed;
    enum pd_err err = PD_OK;

    if (api_query_refuse_others(r, names) || !api_query_order(r, &q.order))
        return;
    snprintf(kind, sizeof kind, "jobs %d", (int)q.order);
    if (!api_page_begin(r, kind, &q.after_id, &p.limit))
        return;
    if (api_query(r, "state", state, sizeof state)) {
        if (!spec_job_state_parse(state, &parsed)) {
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
            api_fail_param(r, PD_ERR_INVALID, key, "must be a text of at most 500 bytes");
        else
            snprintf(out, size, "%s", json_string_value(value));
    }
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
    } else {
        json_t *body = api_body_json(r, API_JSON_EMPTY_OK);

        if (!body)
            return;
        if (json_object_size(body))
            api_fail(r, PD_ERR_INVALID, "this command takes an empty object");
        json_decref(body);
        if (api_failed(r))
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

static bool tags_check(struct api_req *r, json_t *tags)
{
    const char *key;
    json_t *value;

    if (!json_is_object(tags) || json_object_size(tags) > 100) {
        api_fail_param(r, PD_ERR_INVALID, "tags", "must be an object of at most 100 texts");
        return false;
    }
    json_object_foreach(tags, key, value) if (!*key || strlen(key) > 250 || !json_is_string(value) ||
                                              json_string_length(value) > 5000)
    {
        api_fail_param(r, PD_ERR_INVALID, "tags",
                       "tag '%.60s': keys have 1 to 250 bytes, values are texts of at most 5000", key);
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
                api_fail_param(r, PD_ERR_INVALID, key, "must be a text of 1 to 200 bytes");
            else
                parsed.name = strdup(json_string_value(value));
        } else if (strcmp(key, "notes") == 0) {
            if (!json_is_string(value) || len > 65536 || strlen(json_string_value(value)) != len)
                api_fail_param(r, PD_ERR_INVALID, key, "must be a text of at most 65536 bytes");
            else
                parsed.notes = strdup(json_string_value(value));
        } else if (strcmp(key, "tags") == 0) {
            if (tags_check(r, value))
                parsed.tags = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
        } else if (strcmp(key, "priority") == 0) {
            if (!json_is_integer(value) || json_integer_value(value) < -100 ||
                json_integer_value(value) > 100)
                api_fail_param(r, PD_ERR_INVALID, key, "must be an integer from -100 to 100");
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
