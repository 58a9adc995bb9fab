/* Jobs come in.
 *
 *   request  --template-> the documents that it stands for: one, or several that are accepted together
 *   document --fold--->  no such checkpoint or teacher: 422
 *            --parse--> errors: 422
 *            --place--> never fits: 422
 *            --plan---> kept, or made by the planner while the client waits (PATIENCE_US): an error of the
 *                       document or its data is 422 too; a missing plan is a warning
 *            --write--> 201
 *
 * The commit judges last: a repeated request is answered as the first time, whatever a plan has shown since.
 * accept_unplanned=1 leaves out place and plan. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/handlers.h"
#include "api/checkpoint.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "api/submit.h"
#include "daemon/job/job.h"
#include "daemon/job/template.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/expand.h"

#define READY_RUNS 32        /* runs made with the job; the rest come after it (supervise/expand.h) */
#define PATIENCE_US 10000000 /* for the plan of a submission */

/* ---- submit ----------------------------------------------------------------------------------- */

void api_job_request_done(struct job_request *q)
{
    for (size_t i = 0; i < q->count; i++) {
        job_free(q->part[i].job);
        job_report_done(&q->part[i].report);
    }
    q->count = 0;
}

/* The first job that has errors; NULL: none. */
static struct job_report *wrong(struct job_request *q)
{
    for (size_t i = 0; i < q->count; i++)
        if (q->part[i].report.error_count)
            return &q->part[i].report;
    return NULL;
}

/* What is to be stored of one job. */
struct part {
    struct job_doc *job;       /* of the request */
    struct job_report *report; /* of the request */
    struct pd_buf document, tags, warnings, sweep, kept;
    struct expand_run ready[READY_RUNS];
    int64_t id;
};

struct submit {
    struct api_write w; /* first */
    struct job_request request;
    struct part part[JOB_TEMPLATE_JOBS];
    size_t planned; /* parts whose plan has been looked at */
};

static void submit_done(struct api_write *w)
{
    struct submit *s = (struct submit *)(void *)w;

    for (size_t k = 0; k < s->request.count; k++) {
        struct part *p = &s->part[k];

        pd_buf_done(&p->document);
        pd_buf_done(&p->tags);
        pd_buf_done(&p->warnings);
        pd_buf_done(&p->sweep);
        pd_buf_done(&p->kept);
        for (int i = 0; i < READY_RUNS; i++)
            expand_run_done(&p->ready[i]);
    }
    api_job_request_done(&s->request);
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
    api_problems_json(&b, report->errors, report->error_count);
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

/* Stores one job and appends its part of the answer, which is kept with it, so that a repeated request gets this
 * very one. */
static enum pd_err insert(struct store_tx *tx, struct submit *s, struct part *p, struct pd_why *why)
{
    struct pd_buf *answer = &s->w.answer;
    const struct job_head *head = job_doc_head(p->job);
    struct store_job_new job = {
        .kind = head->kind,
        .name = head->name,
        .experiment = head->experiment,
        .template_name = s->request.template_name,
        .tags = p->tags.data,
        .notes = head->notes,
        .register_name = head->register_name,
        .document = p->document.data,
        .priority = (int)head->resources.priority,
        .planned = head->run_count,
        .points = head->points,
        .trials = head->trials,
        .concurrency = head->concurrency,
        .metric = head->metric,
        .maximise = head->mode == JOB_MODE_MAX,
        .sweep = p->sweep.data ? p->sweep.data : "",
    };
    int64_t made = head->run_count < READY_RUNS ? head->run_count : READY_RUNS, run[READY_RUNS];
    struct store_job row = {.version = 1 + made}; /* each run that joins counts the version up */
    enum pd_err err = store_job_insert(tx, &job, &p->id, why);

    for (int64_t n = 0; n < made && err == PD_OK; n++)
        err = expand_run_insert(tx, head, p->id, (int)head->resources.priority, &p->ready[n], &run[n], why);
    if (err != PD_OK)
        return err;
    row.id = p->id;
    row.kind = head->kind;
    row.state = JOB_QUEUED;
    row.name = head->name;
    row.experiment = head->experiment;
    row.template_name = s->request.template_name;
    row.tags = p->tags.data;
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
    row.document = p->document.data;
    api_row_job(answer, &row, API_ROW_FULL | API_ROW_OPEN);
    api_json_key(answer, "run_ids");
    api_json_open(answer, '[');
    for (int64_t n = 0; n < made; n++)
        api_json_id(answer, run[n]);
    api_json_close(answer, ']');
    api_json_kv_raw(answer, "warnings", p->warnings.data);
    api_json_close(answer, '}');
    return PD_OK;
}

static enum pd_err insert_all(struct store_tx *tx, struct submit *s, struct pd_why *why)
{
    const bool several = s->request.count > 1;
    struct pd_buf *answer = &s->w.answer;
    enum pd_err err = PD_OK;

    if (several) {
        api_json_open(answer, '{');
        api_json_kv_str(answer, "template", s->request.template_name);
        api_json_kv_str(answer, "experiment", s->request.experiment);
        api_json_key(answer, "jobs");
        api_json_open(answer, '[');
    }
    for (size_t i = 0; i < s->request.count && err == PD_OK; i++)
        err = insert(tx, s, &s->part[i], why);
    if (several) {
        api_json_close(answer, ']');
        api_json_close(answer, '}');
    }
    s->w.status = 201;
    return err;
}

/* Whether the versions that the documents name are still those that were read: one may have been deleted while the
 * request was planned. From the commit on, a deletion finds the job. */
static enum pd_err check_named(struct store_tx *tx, struct submit *s, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < 2 * s->request.count && err == PD_OK; i++) {
        const struct api_named *named = &s->request.part[i / 2].named[i % 2];

        if (named->n)
            err = store_version_check(tx, named->model, named->n, named->sha256, why);
        if (err == PD_ERR_NOT_FOUND) {
            snprintf(s->w.param, sizeof s->w.param, "%s", named->param);
            err = PD_ERR_INVALID;
        }
    }
    return err;
}

/* What is wrong with the document matters only here: a repeated request has had its answer. */
static enum pd_err submit_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct submit *s = (struct submit *)(void *)w;
    enum pd_err err;

    if (wrong(&s->request))
        return pd_fail(why, PD_ERR_INVALID, "the job cannot run");
    err = check_named(tx, s, why);
    return err == PD_OK ? insert_all(tx, s, why) : err;
}

static void submit_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (!w) {
        struct submit *s = (struct submit *)(void *)api_write_of(r);

        if (s->w.err == PD_ERR_INVALID && wrong(&s->request))
            fail_report(r, PD_ERR_INVALID, wrong(&s->request));
        return;
    }
    api_write_created(r, w, "/api/v1/jobs");
}

bool api_job_reserve(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct pd_why why = {.text = ""};
    bool fits = false;
    enum pd_err err;

    if (!store)
        return false;
    err = api_core_job_reserve(api_core_of(api_of(r)), store, api_settings_of(r)->jobs, &fits, &why);
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!fits)
        api_fail(r, API_FAULT_OVERLOADED, "%lld jobs have not ended, which is the limit (limits.jobs)",
                 (long long)api_settings_of(r)->jobs);
    return err == PD_OK && fits;
}

/* ---- a submission -------------------------------------------------------------------------------- */

/* Whether this machine can ever hold it; else an error of the report. */
static void check_place(struct sup *sup, const struct job_head *head, struct job_report *report)
{
    struct sup_queue_info place;
    struct pd_why why = {.text = ""};
    char devices[2048];

    if (sup_fit(sup, api_device_of(head), (int)head->resources.slots, 0, &place, devices, sizeof devices,
                &why) != PD_OK)
        job_report_error(report, "#/resources/slots", "%s", why.text);
}

static void commit(struct submit *s)
{
    bool good = true;

    for (size_t i = 0; i < s->request.count; i++) {
        struct part *p = &s->part[i];

        api_problems_json(&p->warnings, p->report->warnings, p->report->warning_count);
        good = good && pd_buf_err(&p->warnings) == PD_OK && !p->report->failed;
    }
    if (good) {
        api_write_submit(&s->w, STORE_LANE_COMMAND, (int)s->request.count * (READY_RUNS + 2));
    } else {
        struct pd_why why = {.text = "no memory for the job"};

        api_write_fail(&s->w, PD_ERR_NOMEM, &why);
    }
}

/* What the plan of a part says of it, or where there is none `text`, the reason; not that of `why` itself. */
static enum pd_err weigh(struct submit *s, struct part *p, enum pd_err err, const char *text,
                         const char *plan, struct pd_why *why)
{
    char place[128];

    if (err == PD_OK) {
        struct plan_verdict verdict;

        err = api_plan_judge(api_deps_of(s->w.api)->sup, job_doc_head(p->job), &p->ready[0], plan, &verdict,
                             p->report, why);
        if (err == PD_OK && verdict.too_large)
            job_report_error(p->report, "#/train/batch", "%s", verdict.text);
    } else if (err == PD_ERR_INVALID) {
        const char *detail = pd_why_place(text, place, sizeof place);

        job_report_error(p->report, place, "%s", detail);
        err = PD_OK;
    } else if (err != PD_ERR_NOMEM && err != PD_ERR_CLOSED) {
        const char *detail = pd_why_place(text, place, sizeof place);

        job_report_warning(p->report, place, "accepted without a plan: %s", detail);
        err = PD_OK;
    } else {
        pd_fail(why, err, "%s", text);
    }
    return err;
}

static void submit_plan(struct submit *s);

/* Any thread. */
static void submit_planned(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan)
{
    struct submit *s = ctx;
    struct part *p = &s->part[s->planned++];
    struct pd_why bad = {.text = ""};

    if (err != PD_OK && err != PD_ERR_INVALID && p->kept.len) /* of files that have changed at most */
        err = weigh(s, p, PD_OK, "", p->kept.data, &bad);
    else
        err = weigh(s, p, err, why ? why->text : "", plan, &bad);
    if (err == PD_OK)
        submit_plan(s);
    else
        api_write_fail(&s->w, err, &bad);
}

/* Looks at the plans of the parts in turn, kept ones or new ones, and commits behind the last. */
static void submit_plan(struct submit *s)
{
    struct pd_why why = {.text = ""}, no_plan = {.text = ""};
    enum pd_err err = PD_OK;

    while (s->planned < s->request.count && err == PD_OK) {
        struct part *p = &s->part[s->planned];
        const struct expand_run *run = &p->ready[0];
        const struct job_head *head = job_doc_head(p->job);
        struct sup_planning asked = {.document = run->document.data,
                                     .len = run->document.len,
                                     .plan_digest = run->plan_digest,
                                     .device = api_device_of(head),
                                     .slots = (int)head->resources.slots,
                                     .refresh = api_plan_of_files(run),
                                     .patience_us = PATIENCE_US,
                                     .done = submit_planned,
                                     .ctx = s};

        if (p->kept.len && !asked.refresh) {
            s->planned++;
            err = weigh(s, p, PD_OK, "", p->kept.data, &why);
            continue;
        }
        err = sup_plan(api_deps_of(s->w.api)->sup, &asked, &no_plan);
        if (err == PD_OK)
            return; /* submit_planned goes on */
        s->planned++;
        if (p->kept.len)
            err = weigh(s, p, PD_OK, "", p->kept.data, &why);
        else
            err = weigh(s, p, err, no_plan.text, NULL, &why);
    }
    if (err == PD_OK)
        commit(s);
    else
        api_write_fail(&s->w, err, &why);
}

/* Plans of equal runs that are kept. */
static void find_plans(struct api_req *r, struct submit *s)
{
    struct pd_why why = {.text = ""};
    struct store *store = api_reader_of(api_of(r), &why);

    for (size_t i = 0; store && i < s->request.count; i++)
        if (store_plan_get(store, s->part[i].ready[0].plan_digest, &s->part[i].kept, &why) != PD_OK)
            pd_buf_done(&s->part[i].kept);
}

/* What is to be stored of a job. */
static enum pd_err prepare(struct part *p, struct pd_why *why)
{
    enum pd_err err;

    tags_json(&p->tags, job_doc_head(p->job));
    err = job_document(p->job, &p->document, why);
    if (err == PD_OK)
        sweep_json(&p->sweep, p->document.data);
    for (int64_t n = 0; n < job_run_count(p->job) && n < READY_RUNS && err == PD_OK; n++)
        err = expand_run_make(p->job, n, &p->ready[n], why);
    if (err == PD_OK && (pd_buf_err(&p->tags) != PD_OK || pd_buf_err(&p->sweep) != PD_OK))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the job");
    return err;
}

/* Takes the request over; a job of NULL: its report says what is wrong with its document. `judged`: by place and
 * plan. */
static void submit(struct api_req *r, struct job_request *q, bool judged)
{
    struct pd_why why = {.text = ""};
    struct api_write *w = api_write_begin(r, sizeof(struct submit), true, submit_done, submit_answer);
    struct submit *s;
    enum pd_err err = PD_OK;

    if (!w)
        return;
    s = (struct submit *)(void *)w;
    s->request = *q; /* moved */
    q->count = 0;
    w->apply = submit_apply;
    w->notify = true;
    for (size_t i = 0; i < s->request.count; i++) {
        struct part *p = &s->part[i];

        p->job = s->request.part[i].job;
        p->report = &s->request.part[i].report;
        pd_buf_init(&p->document, 0);
        pd_buf_init(&p->tags, 0);
        pd_buf_init(&p->warnings, 0);
        pd_buf_init(&p->sweep, 0);
        pd_buf_init(&p->kept, 1 << 20);
        if (p->job && err == PD_OK)
            err = prepare(p, &why);
    }
    if (err != PD_OK) {
        api_write_fail(w, err, &why);
    } else if (judged) {
        find_plans(r, s);
        submit_plan(s);
    } else {
        commit(s);
    }
}

/* ---- reading a request ---------------------------------------------------------------------------- */

/* Reads one document; what is wrong with it goes to its report. */
static enum pd_err parse(struct api_req *r, const struct job_env *env, const char *json, size_t len,
                         struct job_read *ret)
{
    struct pd_buf begun, taught; /* with the file of the checkpoint or start; with that of the teacher too */
    enum pd_err err;

    pd_buf_init(&begun, JOB_MAX_BYTES);
    pd_buf_init(&taught, JOB_MAX_BYTES);
    err = api_checkpoint_fold(r, json, len, &begun, &ret->named[0], &ret->report);
    if (err == PD_OK && begun.len) {
        json = begun.data;
        len = begun.len;
    }
    if (err == PD_OK)
        err = api_teacher_fold(r, json, len, &taught, &ret->named[1], &ret->report);
    if (err == PD_OK && taught.len) {
        json = taught.data;
        len = taught.len;
    }
    if (err == PD_OK)
        err = job_parse(json, len, env, &ret->job, &ret->report);
    pd_buf_done(&begun);
    pd_buf_done(&taught);
    return err;
}

/* The first data root below which the place lies. */
static bool find_data(void *user, const char *place, char *ret_path, size_t size)
{
    const struct config *config = user;

    for (size_t i = 0; i < config->data.count; i++) {
        const struct config_root *root = &config->data.roots[i];
        char path[4096];

        if (snprintf(path, sizeof path, "%s/%s", root->path, place) < (int)sizeof path &&
            access(path, R_OK) == 0)
            return snprintf(ret_path, size, "%s/%s", root->name, place) < (int)size;
    }
    return false;
}

/* All documents of a request; it ends at the first that is wrong. */
static enum pd_err read_request(struct api_req *r, const struct job_env *env, const char *json, size_t len,
                                struct job_request *ret)
{
    const struct job_template_places places = {(void *)api_config(api_of(r)), find_data};
    struct job_template_docs docs;
    enum pd_err err;

    job_report_init(&ret->part[0].report);
    ret->count = 1;
    err = job_template_fold(json, len, &places, &docs, &ret->part[0].report);
    if (err == PD_OK && !docs.count) {
        err = parse(r, env, json, len, &ret->part[0]);
    } else if (err == PD_OK) {
        snprintf(ret->template_name, sizeof ret->template_name, "%s", docs.name);
        snprintf(ret->experiment, sizeof ret->experiment, "%s", docs.experiment);
        for (size_t i = 0; i < docs.count && err == PD_OK; i++) {
            if (i)
                job_report_init(&ret->part[ret->count++].report);
            err = parse(r, env, docs.json[i].data, docs.json[i].len, &ret->part[i]);
        }
    }
    job_template_docs_done(&docs);
    return err;
}

/* ---- the handler ------------------------------------------------------------------------------ */

static bool depends(const struct job_request *q)
{
    for (size_t i = 0; i < q->count; i++)
        if (job_doc_head(q->part[i].job)->depends_on_count)
            return true;
    return false;
}

void api_job_submit(struct api_req *r)
{
    static const char *const names[] = {"dry_run", "start", "accept_unplanned", NULL};
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
    struct job_request q = {.count = 0};
    char no_cuda[SUP_WHY_BYTES];
    const char *body;
    size_t len;
    bool dry, start, unplanned;
    enum pd_err err;

    if (api_query_refuse_others(r, names))
        return;
    dry = api_query_flag(r, "dry_run");
    start = api_query_flag(r, "start");
    unplanned = api_query_flag(r, "accept_unplanned");
    if (start && !dry && !api_failed(r))
        api_fail(r, API_FAULT_MALFORMED, "start is for a dry run: ?dry_run=1&start=1");
    if (api_failed(r))
        return;
    if (!dry && api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and takes no new jobs");
        return;
    }
    body = api_body(r, &len);
    env.cuda = sup_cuda(api_deps_of(api_of(r))->sup, no_cuda);
    env.no_cuda = env.cuda ? NULL : no_cuda;
    err = read_request(r, &env, body ? body : "", len, &q);
    if (err != PD_OK) {
        /* A checkpoint that it named may have gone since the same request came first. */
        if (!api_failed(r) && !dry && wrong(&q) && api_write_repeated(r))
            submit(r, &q, false);
        else if (!api_failed(r))
            fail_report(r, err, wrong(&q) ? wrong(&q) : &q.part[0].report);
    } else if (depends(&q)) {
        /* Accepting it without waiting for the other job would be a lie. */
        api_fail_param(r, PD_ERR_UNSUPPORTED, "depends_on",
                       "depends_on: dependencies between jobs are not available yet");
    } else if (dry) {
        api_dry_run(r, &q, start);
    } else if (api_write_repeated(r)) {
        submit(r, &q, false);
    } else if (api_job_reserve(r)) {
        for (size_t i = 0; i < q.count && !unplanned; i++)
            check_place(api_deps_of(api_of(r))->sup, job_doc_head(q.part[i].job), &q.part[i].report);
        if (wrong(&q))
            fail_report(r, PD_ERR_INVALID, wrong(&q));
        else
            submit(r, &q, !unplanned);
    }
    api_job_request_done(&q);
}
