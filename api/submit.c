/* Jobs come in: submit and dry run.
 *
 *   document --fold--->  no such checkpoint: 422
 *            --parse--> errors: 422
 *            --place--> never fits: 422
 *            --plan---> kept, or made by the planner while the client waits (PATIENCE_US): what it finds
 * wrong with the document or its data is 422 too; want of a plan is a warning
 *            --write--> 201
 *
 * The commit judges last: a repeated request is answered as the first time, whatever a plan has shown since.
 * accept_unplanned=1 leaves out place and plan. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/checkpoint.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/job/job.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/expand.h"

#define READY_RUNS 32        /* runs made with the job; the rest come after it (supervise/expand.h) */
#define PATIENCE_US 10000000 /* for the plan of a submission */

/* ---- submit ----------------------------------------------------------------------------------- */

struct submit {
    struct api_write w; /* first */
    struct job_doc *job;
    struct job_report report;
    struct pd_buf document, tags, warnings, sweep;
    struct expand_run ready[READY_RUNS];
    int64_t id;
};

static void submit_done(struct api_write *w)
{
    struct submit *s = (struct submit *)(void *)w;

    job_free(s->job);
    job_report_done(&s->report);
    pd_buf_done(&s->document);
    pd_buf_done(&s->tags);
    pd_buf_done(&s->warnings);
    pd_buf_done(&s->sweep);
    for (int i = 0; i < READY_RUNS; i++)
        expand_run_done(&s->ready[i]);
}

static void problems(struct pd_buf *b, const struct job_problem *list, size_t count)
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

static void fail_report(struct api_req *r, enum pd_err err, const struct job_report *report)
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

static void tags_json(struct pd_buf *b, const struct job_head *head)
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

static enum pd_err insert(struct store_tx *tx, struct submit *s, struct pd_why *why)
{
    struct api_write *w = &s->w;
    const struct job_head *head = job_doc_head(s->job);
    struct store_job_new job = {
        .kind = head->kind,
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
        .maximise = head->mode == JOB_MODE_MAX,
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
    row.kind = head->kind;
    row.state = JOB_QUEUED;
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

/* What is wrong with the document matters only here: a repeated request has had its answer. */
static enum pd_err submit_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct submit *s = (struct submit *)(void *)w;

    return s->report.error_count ? pd_fail(why, PD_ERR_INVALID, "the job cannot run") : insert(tx, s, why);
}

static void submit_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (!w) {
        const struct submit *s = (const struct submit *)(const void *)api_write_of(r);

        if (s->w.err == PD_ERR_INVALID && s->report.error_count)
            fail_report(r, PD_ERR_INVALID, &s->report);
        return;
    }
    api_write_created(r, w, "/api/v1/jobs");
}

/* What the planner found odd about the data. */
static void plan_warnings(const json_t *facts, struct job_report *report)
{
    const json_t *list = json_object_get(facts, "warnings");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *pointer = json_string_value(json_object_get(json_array_get(list, i), "pointer"));
        const char *detail = json_string_value(json_object_get(json_array_get(list, i), "detail"));

        if (pointer && detail)
            job_report_warning(report, pointer, "%s", detail);
    }
}

struct verdict {
    int64_t need_bytes; /* of each slot; 0 = unknown */
    bool too_large;     /* for this machine: `text` says how much */
    char text[200];
};

static const char *device_of(const struct job_head *head)
{
    return head->resources.device == JOB_DEVICE_CUDA ? "cuda" : "cpu";
}

/* Whether the plan is larger than what each slot can have of this machine; then the words for it. */
static bool too_large(struct sup *sup, const struct job_head *head, const json_t *facts, char *out,
                      size_t size)
{
    int64_t need = json_integer_value(json_object_get(facts, "total_bytes"));
    const json_t *less = json_object_get(facts, "accumulated");
    int64_t parts = json_integer_value(json_object_get(less, "accumulation"));
    int slots = (int)head->resources.slots;
    bool cpu = head->resources.device != JOB_DEVICE_CUDA;
    int64_t have = sup_memory(sup, device_of(head), slots);
    int times = cpu ? slots : 1;
    int n;

    if (!have || need <= have)
        return false;
    n = snprintf(out, size, "needs %.1f GB%s, %s has %.1f GB", 1e-9 * (double)need * times,
                 cpu && slots > 1 ? " in all slots" : "", cpu ? "this machine" : "the largest GPU",
                 1e-9 * (double)have * times);
    if (parts)
        snprintf(out + n, size - (size_t)n, "; with train.accumulation %lld it needs %.1f GB",
                 (long long)parts,
                 1e-9 * (double)json_integer_value(json_object_get(less, "total_bytes")) * times);
    return true;
}

/* What the plan says of the run, its number of training samples above all: more errors and warnings. */
static enum pd_err judge(struct sup *sup, const struct job_head *head, const struct expand_run *run,
                         const char *plan, struct verdict *ret, struct job_report *report, struct pd_why *why)
{
    json_t *facts = json_loads(plan, 0, NULL), *samples = json_object_get(facts, "train_samples");
    enum pd_err err = PD_OK;

    if (json_is_integer(samples))
        err = job_run_judge(run->document.data, run->document.len, json_integer_value(samples), report, why);
    plan_warnings(facts, report);
    ret->need_bytes = json_integer_value(json_object_get(facts, "total_bytes"));
    ret->too_large = too_large(sup, head, facts, ret->text, sizeof ret->text);
    json_decref(facts);
    return err;
}

/* ---- dry run ---------------------------------------------------------------------------------- */

struct dry {
    struct api_wait *wait;
    struct job_doc *job;
    struct job_report report;
    struct expand_run run;
    struct pd_buf plan;
    char plan_error[sizeof((struct pd_why *)0)->text];
};

static void dry_done(void *data)
{
    struct dry *d = data;

    job_free(d->job);
    job_report_done(&d->report);
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

static void expansion_json(struct pd_buf *b, const struct job_doc *job)
{
    int64_t trials = job_doc_head(job)->trials;

    api_json_key(b, "expansion");
    api_json_open(b, '[');
    for (int64_t n = 0; n < job_run_count(job) && n < EXPANSION_SHOWN; n++) {
        struct pd_why why;
        struct pd_buf values;

        pd_buf_init(&values, 0);
        if (job_run_params(job, n, &values, &why) != PD_OK)
            b->failed = true; /* only for memory */
        api_json_open(b, '{');
        api_json_kv_int(b, "index", n);
        api_json_kv_int(b, "point", n / trials);
        api_json_kv_int(b, "trial", n % trials);
        api_json_kv_int(b, "seed", job_run_seed(job, n));
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
    const struct job_head *head = job_doc_head(d->job);
    struct sup *sup = api_deps_of(api_of(r))->sup;
    struct verdict verdict = {.need_bytes = 0};
    struct sup_queue_info place = {.position = 0};
    char devices[2048] = "";
    struct pd_why why = {.text = ""};
    struct pd_buf b;

    /* Plans are kept without the schedule, so this one may be of a run that differs there. */
    if (d->plan.len && judge(sup, head, &d->run, d->plan.data, &verdict, &d->report, &why) != PD_OK) {
        api_fail_why(r, PD_ERR_NOMEM, &why);
        return;
    }
    if (sup_fit(sup, device_of(head), (int)head->resources.slots, verdict.need_bytes, &place, devices,
                sizeof devices, &why) != PD_OK)
        snprintf(place.reason, sizeof place.reason, "never fits: %.140s", why.text);
    if (verdict.too_large) {
        job_report_warning(&d->report, "#/train/batch", "%s", verdict.text);
        place.position = 0;
        devices[0] = '\0';
        snprintf(place.reason, sizeof place.reason, "never fits: %s", verdict.text);
    }
    if (d->report.error_count) {
        snprintf(d->plan_error, sizeof d->plan_error, "%s: %s", d->report.errors[0].pointer,
                 d->report.errors[0].detail);
        pd_buf_done(&d->plan);
    }
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_bool(&b, "dry_run", true);
    api_json_kv_int(&b, "runs", job_run_count(d->job));
    api_json_kv_int(&b, "points", job_doc_head(d->job)->points);
    api_json_kv_int(&b, "trials", job_doc_head(d->job)->trials);
    expansion_json(&b, d->job);
    api_json_kv_raw(&b, "document", d->run.document.data);
    api_json_key(&b, "warnings");
    problems(&b, d->report.warnings, d->report.warning_count);
    api_json_key(&b, "queue");
    api_json_open(&b, '{');
    api_json_kv_int(&b, "position", place.position);
    api_json_kv_str(&b, "reason", place.reason);
    api_json_key(&b, "devices");
    names_json(&b, devices);
    api_json_close(&b, '}');
    api_json_kv_raw(&b, "plan", d->plan.data);
    api_json_kv_str(&b, "plan_error", d->plan_error[0] ? d->plan_error : NULL);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

static void dry_run(struct api_req *r, struct job_doc *job, struct job_report *report)
{
    struct sup *sup = api_deps_of(api_of(r))->sup;
    const struct job_head *head = job_doc_head(job);
    struct pd_why why = {.text = ""};
    struct api_wait *wait;
    struct dry *d;
    enum pd_err err;

    wait = api_wait_begin(r, sizeof *d, dry_done, dry_answer);
    if (!wait) {
        job_free(job);
        return;
    }
    d = api_wait_data(wait);
    d->wait = wait;
    d->job = job;        /* moved */
    d->report = *report; /* moved */
    job_report_init(report);
    pd_buf_init(&d->plan, 0);
    err = expand_run_make(d->job, 0, &d->run, &why);
    if (err == PD_OK) {
        struct sup_planning asked = {.document = d->run.document.data,
                                     .len = d->run.document.len,
                                     .plan_digest = d->run.plan_digest,
                                     .device = device_of(head),
                                     .slots = (int)head->resources.slots,
                                     .done = dry_planned,
                                     .ctx = d};

        err = sup_plan(sup, &asked, &why);
    }
    if (err != PD_OK)
        dry_planned(d, err, &why, NULL);
}

bool api_job_room(struct api_req *r)
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

/* ---- a submission -------------------------------------------------------------------------------- */

/* Whether this machine can ever hold it; else an error of the report. */
static void check_place(struct sup *sup, const struct job_head *head, struct job_report *report)
{
    struct sup_queue_info place;
    struct pd_why why = {.text = ""};
    char devices[2048];

    if (sup_fit(sup, device_of(head), (int)head->resources.slots, 0, &place, devices, sizeof devices, &why) !=
        PD_OK)
        job_report_error(report, "#/resources/slots", "%s", why.text);
}

static void commit(struct submit *s)
{
    problems(&s->warnings, s->report.warnings, s->report.warning_count);
    if (pd_buf_err(&s->warnings) == PD_OK && !s->report.failed) {
        api_write_submit(&s->w, STORE_LANE_COMMAND, READY_RUNS + 2);
    } else {
        struct pd_why why = {.text = "no memory for the job"};

        api_write_fail(&s->w, PD_ERR_NOMEM, &why);
    }
}

/* Any thread. */
static void submit_planned(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan)
{
    struct submit *s = ctx;
    struct pd_why bad = {.text = ""};
    char place[128];

    if (err == PD_OK) {
        struct verdict verdict;

        err = judge(api_deps_of(s->w.api)->sup, job_doc_head(s->job), &s->ready[0], plan, &verdict,
                    &s->report, &bad);
        if (err == PD_OK && verdict.too_large)
            job_report_error(&s->report, "#/train/batch", "%s", verdict.text);
        why = &bad;
    } else if (err == PD_ERR_INVALID) {
        const char *detail = pd_why_place(why->text, place, sizeof place);

        job_report_error(&s->report, place, "%s", detail);
        err = PD_OK;
    } else if (err != PD_ERR_NOMEM && err != PD_ERR_CLOSED) {
        const char *detail = pd_why_place(why->text, place, sizeof place);

        job_report_warning(&s->report, place, "accepted without a plan: %s", detail);
        err = PD_OK;
    }
    if (err == PD_OK)
        commit(s);
    else
        api_write_fail(&s->w, err, why);
}

/* From the kept plan of an equal run, or by a new one. */
static void submit_plan(struct api_req *r, struct submit *s)
{
    struct sup *sup = api_deps_of(api_of(r))->sup;
    const struct expand_run *run = &s->ready[0];
    const struct job_head *head = job_doc_head(s->job);
    struct sup_planning asked = {.document = run->document.data,
                                 .len = run->document.len,
                                 .plan_digest = run->plan_digest,
                                 .device = device_of(head),
                                 .slots = (int)head->resources.slots,
                                 .patience_us = PATIENCE_US,
                                 .done = submit_planned,
                                 .ctx = s};
    struct pd_why why = {.text = ""};
    struct store *store = api_reader_of(api_of(r), &why);
    struct pd_buf kept;
    enum pd_err err;

    pd_buf_init(&kept, 1 << 20);
    err = store ? store_plan_get(store, run->plan_digest, &kept, &why) : PD_ERR_IO;
    if (err == PD_OK) {
        submit_planned(s, PD_OK, NULL, kept.data);
    } else {
        err = sup_plan(sup, &asked, &why);
        if (err != PD_OK)
            submit_planned(s, err, &why, NULL);
    }
    pd_buf_done(&kept);
}

/* Takes the job over. `judged`: by its place and its plan. */
/* What is to be stored of the job. */
static enum pd_err prepare(struct submit *s, struct pd_why *why)
{
    enum pd_err err;

    tags_json(&s->tags, job_doc_head(s->job));
    err = job_document(s->job, &s->document, why);
    if (err == PD_OK)
        sweep_json(&s->sweep, s->document.data);
    for (int64_t n = 0; n < job_run_count(s->job) && n < READY_RUNS && err == PD_OK; n++)
        err = expand_run_make(s->job, n, &s->ready[n], why);
    if (err == PD_OK && (pd_buf_err(&s->tags) != PD_OK || pd_buf_err(&s->sweep) != PD_OK))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the job");
    return err;
}

/* Takes the job; NULL: the report says what is wrong with its document. */
static void submit(struct api_req *r, struct job_doc *job, struct job_report *report, bool judged)
{
    struct pd_why why = {.text = ""};
    struct api_write *w = api_write_begin(r, sizeof(struct submit), true, submit_done, submit_answer);
    struct submit *s;
    enum pd_err err;

    if (!w) {
        job_free(job);
        return;
    }
    s = (struct submit *)(void *)w;
    s->job = job;        /* moved */
    s->report = *report; /* moved */
    job_report_init(report);
    w->apply = submit_apply;
    w->notify = true;
    pd_buf_init(&s->document, 0);
    pd_buf_init(&s->tags, 0);
    pd_buf_init(&s->warnings, 0);
    pd_buf_init(&s->sweep, 0);
    err = job ? prepare(s, &why) : PD_OK;
    if (err != PD_OK)
        api_write_fail(w, err, &why);
    else if (judged)
        submit_plan(r, s);
    else
        commit(s);
}

/* ---- the handler ------------------------------------------------------------------------------ */

void api_job_submit(struct api_req *r)
{
    static const char *const names[] = {"dry_run", "accept_unplanned", NULL};
    const struct config *config = api_config(api_of(r));
    struct job_env env = {
        .threads = config->devices.threads_per_slot,
        .cuda = false,
        .no_cuda = NULL,
        .keep_best = config->keep.best,
        .keep_latest = config->keep.latest,
        .root_count = config->data.count,
        .roots = config->data.names,
        .check_roots = true,
    };
    struct job_report report;
    struct job_doc *job = NULL;
    char no_cuda[SUP_WHY_BYTES];
    struct pd_buf complete;
    const char *body;
    size_t len;
    bool dry, unplanned;
    enum pd_err err;

    if (api_query_refuse_others(r, names))
        return;
    dry = api_query_flag(r, "dry_run");
    unplanned = api_query_flag(r, "accept_unplanned");
    if (api_failed(r))
        return;
    if (!dry && api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and takes no new jobs");
        return;
    }
    body = api_body(r, &len);
    env.cuda = sup_cuda(api_deps_of(api_of(r))->sup, no_cuda);
    env.no_cuda = env.cuda ? NULL : no_cuda;
    job_report_init(&report);
    pd_buf_init(&complete, JOB_MAX_BYTES);
    err = api_checkpoint_fold(r, body ? body : "", len, &complete, &report);
    if (err == PD_OK && complete.len)
        err = job_parse(complete.data, complete.len, &env, &job, &report);
    else if (err == PD_OK)
        err = job_parse(body ? body : "", len, &env, &job, &report);
    pd_buf_done(&complete);
    if (err != PD_OK) {
        /* A checkpoint that it named may have gone since the same request came first. */
        if (!api_failed(r) && !dry && report.error_count && api_write_repeated(r))
            submit(r, NULL, &report, false);
        else if (!api_failed(r))
            fail_report(r, err, &report);
        job_report_done(&report);
        return;
    }
    if (job_doc_head(job)->depends_on_count) {
        /* Accepting it without waiting for the other job would be a lie. */
        api_fail_param(r, PD_ERR_UNSUPPORTED, "depends_on",
                       "depends_on: dependencies between jobs are not available yet");
        job_free(job);
    } else if (dry) {
        dry_run(r, job, &report);
    } else if (api_write_repeated(r)) {
        submit(r, job, &report, false);
    } else if (!api_job_room(r)) {
        job_free(job);
    } else {
        if (!unplanned)
            check_place(api_deps_of(api_of(r))->sup, job_doc_head(job), &report);
        if (report.error_count) {
            fail_report(r, PD_ERR_INVALID, &report);
            job_free(job);
        } else {
            submit(r, job, &report, !unplanned);
        }
    }
    job_report_done(&report);
}
