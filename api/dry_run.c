/* A job, or the jobs of a template, planned and described; nothing is kept. Plans are made one after the other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/formula_json.h"
#include "api/json.h"
#include "api/server.h"
#include "api/submit.h"

/* Starts at the suggested initial value, until its norm is as close to the ceiling as CLOSE. */
#define CORRECTIONS 3
#define CLOSE 0.05
#define SLOW_S 5 /* seconds of a step from which only the run's own start is tried */

/* One job of it. */
struct dry_part {
    struct expand_run run;
    struct pd_buf plan, start;       /* start: of a formula */
    struct job_config *with_formula; /* of the run; NULL: it has no formula */
    double factor;   /* on A, which puts its norm at softmax's ceiling; NAN: it is not measured */
    int corrections; /* of that factor */
    char plan_error[sizeof((struct pd_why *)0)->text], start_error[sizeof((struct pd_why *)0)->text];
};

struct dry {
    struct api_wait *wait;
    struct sup *sup;
    struct job_request request;
    struct dry_part part[JOB_TEMPLATE_JOBS];
    size_t planned;
    bool start; /* try the start of formulas too */
};

static void dry_done(void *data)
{
    struct dry *d = data;

    for (size_t i = 0; i < d->request.count; i++) {
        pd_buf_done(&d->part[i].plan);
        pd_buf_done(&d->part[i].start);
        job_config_free(d->part[i].with_formula);
        expand_run_done(&d->part[i].run);
    }
    api_job_request_done(&d->request);
}

static void dry_plan(struct dry *d);

/* Sets with_formula. */
static enum pd_err find_formula(struct dry_part *p, const struct job_doc *job, struct pd_why *why)
{
    struct job_config *config = NULL;
    enum pd_err err = PD_OK;

    if (job_doc_head(job)->kind == JOB_KIND_TRAIN)
        err = job_config_load(p->run.document.data, p->run.document.len, &config, why);
    if (config && config->attention.activation == JOB_ACTIVATION_FORMULA)
        p->with_formula = config;
    else
        job_config_free(config);
    return err;
}

static enum pd_err dry_ask(struct dry *d, bool start, const char *document, struct pd_why *why);

/* Copies the sentence of an error. */
static void dry_failed(char out[sizeof((struct pd_why *)0)->text], enum pd_err err, const struct pd_why *why)
{
    snprintf(out, sizeof((struct pd_why *)0)->text, "%s", why && why->text[0] ? why->text : pd_err_name(err));
}

static void dry_corrected(void *ctx, enum pd_err err, const struct pd_why *why, const char *start);

/* Requests a start at the suggested initial value: the logits of later layers depend on the norm in earlier ones, so that
 * the norm is not quite proportional to the factor. False: no start was requested. */
static bool dry_correct(struct dry *d)
{
    struct dry_part *p = &d->part[d->planned];
    struct pd_why why = {.text = ""};
    json_t *start = json_loads(p->start.data, 0, NULL);
    char *document = NULL;
    bool asked = !(json_number_value(json_object_get(start, "step_s")) > SLOW_S) &&
                 api_formula_at_ceiling(p->with_formula, p->run.document.data, start, &p->factor, &document,
                                        &why) == PD_OK &&
                 document && dry_ask(d, true, document, &why) == PD_OK;

    json_decref(start);
    free(document);
    return asked;
}

/* Any thread. A start that fails leaves the factor as it is. */
static void dry_corrected(void *ctx, enum pd_err err, const struct pd_why *why, const char *start)
{
    struct dry *d = ctx;
    struct dry_part *p = &d->part[d->planned];
    json_t *got = err == PD_OK ? json_loads(start, 0, NULL) : NULL;
    const double off = sqrt((double)job_config_keys(p->with_formula)) / api_formula_norm(got);

    (void)why;
    json_decref(got);
    if (isfinite(off) && off > 0) {
        p->factor *= off;
        if (fabs(off - 1) > CLOSE && ++p->corrections < CORRECTIONS && dry_correct(d))
            return;
    }
    d->planned++;
    dry_plan(d);
}

/* Any thread. */
static void dry_started(void *ctx, enum pd_err err, const struct pd_why *why, const char *start)
{
    struct dry *d = ctx;
    struct dry_part *p = &d->part[d->planned];

    if (err == PD_OK) {
        pd_buf_str(&p->start, start);
        if (pd_buf_err(&p->start) == PD_OK && dry_correct(d))
            return;
    } else {
        dry_failed(p->start_error, err, why);
    }
    d->planned++;
    dry_plan(d);
}

/* Any thread. A formula is tried next. */
static void dry_planned(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan)
{
    struct dry *d = ctx;
    struct dry_part *p = &d->part[d->planned];
    struct pd_why no_start = {.text = ""};

    if (err == PD_OK)
        pd_buf_str(&p->plan, plan);
    else
        dry_failed(p->plan_error, err, why);
    if (err == PD_OK && d->start && p->with_formula) {
        err = dry_ask(d, true, NULL, &no_start);
        if (err != PD_OK)
            dry_started(d, err, &no_start, NULL);
        return;
    }
    d->planned++;
    dry_plan(d);
}

/* The plan of the job whose turn it is, or its start; document: another one than the run's. */
static enum pd_err dry_ask(struct dry *d, bool start, const char *document, struct pd_why *why)
{
    const struct dry_part *p = &d->part[d->planned];
    const struct job_head *head = job_doc_head(d->request.part[d->planned].job);
    const struct sup_planning asked = {.document = document ? document : p->run.document.data,
                                       .len = document ? strlen(document) : p->run.document.len,
                                       .plan_digest = document ? NULL : p->run.plan_digest,
                                       .device = api_device_of(head),
                                       .slots = (int)head->resources.slots,
                                       .start = start,
                                       .refresh = api_plan_of_files(&p->run),
                                       .done = document ? dry_corrected
                                               : start  ? dry_started
                                                        : dry_planned,
                                       .ctx = d};

    return sup_plan(d->sup, &asked, why);
}

/* Plans the next job, or ends the wait behind the last. */
static void dry_plan(struct dry *d)
{
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (d->planned == d->request.count) {
        api_wait_end(d->wait);
        return;
    }
    err = expand_run_make(d->request.part[d->planned].job, 0, &d->part[d->planned].run, &why);
    if (err == PD_OK)
        err = find_formula(&d->part[d->planned], d->request.part[d->planned].job, &why);
    if (err == PD_OK)
        err = dry_ask(d, false, NULL, &why);
    if (err != PD_OK)
        dry_planned(d, err, &why, NULL);
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

/* What the formula of the first run is, and what its start has shown. */
static enum pd_err formula_json(struct pd_buf *b, const struct dry_part *p, struct pd_why *why)
{
    json_t *start = p->start.len ? json_loads(p->start.data, 0, NULL) : NULL;
    enum pd_err err = PD_OK;

    api_json_key(b, "formula");
    if (p->with_formula)
        err = api_formula_of_job(b, p->with_formula, start, p->factor, why);
    else
        api_json_null(b);
    api_json_kv_raw(b, "start", p->start.data);
    api_json_kv_str(b, "start_error", p->start_error[0] ? p->start_error : NULL);
    json_decref(start);
    return err;
}

/* The members of one job's answer; PD_ERR_NOMEM. */
static enum pd_err dry_json(struct pd_buf *b, struct dry *d, size_t i, struct pd_why *why)
{
    struct dry_part *p = &d->part[i];
    struct job_doc *job = d->request.part[i].job;
    struct job_report *report = &d->request.part[i].report;
    const struct job_head *head = job_doc_head(job);
    struct plan_verdict verdict = {.need_bytes = 0};
    struct sup_queue_info place = {.position = 0};
    struct pd_why never = {.text = ""};
    char devices[2048] = "";
    enum pd_err err = PD_OK;

    /* Plans are kept without the schedule, so this one may be of a run that differs there. */
    if (p->plan.len)
        err = api_plan_judge(d->sup, head, &p->run, p->plan.data, &verdict, report, why);
    if (err != PD_OK)
        return err;
    if (sup_fit(d->sup, api_device_of(head), (int)head->resources.slots, verdict.need_bytes, &place, devices,
                sizeof devices, &never) != PD_OK)
        snprintf(place.reason, sizeof place.reason, "never fits: %.140s", never.text);
    if (verdict.too_large) {
        job_report_warning(report, "#/train/batch", "%s", verdict.text);
        place.position = 0;
        devices[0] = '\0';
        snprintf(place.reason, sizeof place.reason, "never fits: %s", verdict.text);
    }
    if (report->error_count) {
        snprintf(p->plan_error, sizeof p->plan_error, "%s: %s", report->errors[0].pointer,
                 report->errors[0].detail);
        pd_buf_done(&p->plan);
    }
    api_json_kv_int(b, "runs", job_run_count(job));
    api_json_kv_int(b, "points", head->points);
    api_json_kv_int(b, "trials", head->trials);
    expansion_json(b, job);
    api_json_kv_raw(b, "document", p->run.document.data);
    api_json_key(b, "warnings");
    api_problems_json(b, report->warnings, report->warning_count);
    api_json_key(b, "queue");
    api_json_open(b, '{');
    api_json_kv_int(b, "position", place.position);
    api_json_kv_str(b, "reason", place.reason);
    api_json_key(b, "devices");
    names_json(b, devices);
    api_json_close(b, '}');
    api_json_kv_raw(b, "plan", p->plan.data);
    api_json_kv_str(b, "plan_error", p->plan_error[0] ? p->plan_error : NULL);
    return formula_json(b, p, why);
}

static void dry_answer(struct api_req *r)
{
    struct dry *d = api_waited(r);
    const bool several = d->request.count > 1;
    struct pd_why why = {.text = ""};
    enum pd_err err = PD_OK;
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_bool(&b, "dry_run", true);
    if (d->request.template_name[0])
        api_json_kv_str(&b, "template", d->request.template_name);
    if (several) {
        int64_t runs = 0;

        for (size_t i = 0; i < d->request.count; i++)
            runs += job_run_count(d->request.part[i].job);
        api_json_kv_str(&b, "experiment", d->request.experiment);
        api_json_kv_int(&b, "runs", runs);
        api_json_key(&b, "jobs");
        api_json_open(&b, '[');
    }
    for (size_t i = 0; i < d->request.count && err == PD_OK; i++) {
        if (several)
            api_json_open(&b, '{');
        err = dry_json(&b, d, i, &why);
        if (several)
            api_json_close(&b, '}');
    }
    if (several)
        api_json_close(&b, ']');
    api_json_close(&b, '}');
    if (err == PD_OK) {
        api_reply_json(r, 200, &b);
    } else {
        pd_buf_done(&b);
        api_fail_why(r, PD_ERR_NOMEM, &why);
    }
}

void api_dry_run(struct api_req *r, struct job_request *q, bool start)
{
    struct api_wait *wait = api_wait_begin(r, sizeof(struct dry), dry_done, dry_answer);
    struct dry *d;

    if (!wait)
        return;
    d = api_wait_data(wait);
    d->wait = wait;
    d->sup = api_deps_of(api_of(r))->sup;
    d->request = *q; /* moved */
    d->start = start;
    q->count = 0;
    for (size_t i = 0; i < d->request.count; i++) {
        pd_buf_init(&d->part[i].plan, 0);
        pd_buf_init(&d->part[i].start, 0);
        d->part[i].factor = NAN;
    }
    dry_plan(d);
}
