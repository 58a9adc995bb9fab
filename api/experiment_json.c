/* An experiment as JSON: of the API, of the page, and of the report, which is drawn from it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/analysis.h"
#include "api/claims.h"
#include "api/experiment.h"
#include "api/json.h"
#include "api/picture.h"
#include "api/rows.h"
#include "api/server.h"
#include "api/target.h"
#include "api/theory.h"
#include "kernels/base/clock.h"

#define COMPACT (JSON_COMPACT | JSON_REAL_PRECISION(15))

/* `failed` of the buffer: a tree of the store's could not be written for lack of memory. */
static void kv_tree(struct pd_buf *b, const char *key, const json_t *tree, const char *missing)
{
    char *text = tree ? json_dumps(tree, COMPACT) : NULL;

    if (tree && !text)
        b->failed = true;
    api_json_kv_raw(b, key, text ? text : missing);
    free(text);
}

/* ---- the head ---------------------------------------------------------------------------------- */

static struct api_tally tally_of(const struct store_run_counts *c)
{
    struct api_tally t = {.succeeded = c->outcome[JOB_OUTCOME_SUCCEEDED],
                          .diverged = c->outcome[JOB_OUTCOME_DIVERGED],
                          .failed = c->outcome[JOB_OUTCOME_FAILED],
                          .cancelled = c->outcome[JOB_OUTCOME_CANCELLED]};

    for (int i = 0; i < JOB_RUN_STATE_COUNT; i++)
        t.total += c->state[i];
    t.open = t.total - c->state[JOB_RUN_ENDED];
    t.lost = c->state[JOB_RUN_ENDED] - t.succeeded - t.diverged - t.failed - t.cancelled;
    return t;
}

void experiment_head_json(struct pd_buf *b, const struct store_experiment *e)
{
    struct api_tally runs = tally_of(&e->runs);

    api_json_open(b, '{');
    api_json_kv_str(b, "name", e->name);
    api_json_kv_str(b, "template", *e->template_name ? e->template_name : NULL);
    api_json_kv_int(b, "jobs", e->jobs);
    api_json_key(b, "runs");
    api_tally_json(b, &runs);
    api_json_kv_time(b, "created", e->created_us);
    api_json_kv_time(b, "ended", e->ended_us);
}

/* The template of the newest submission, or the one that has the label's name. */
static void question_json(struct pd_buf *b, const struct experiment *x)
{
    static const char *const texts[] = {"name", "title", "question", "source"};
    const json_t *file = x->set_count ? x->sets[x->set_count - 1].file : NULL;
    const char *key;
    json_t *variant;

    api_json_key(b, "question");
    if (!file) {
        api_json_null(b);
        return;
    }
    api_json_open(b, '{');
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        api_json_kv_str(b, texts[i], json_string_value(json_object_get(file, texts[i])));
    api_json_kv_int(b, "version", json_integer_value(json_object_get(file, "version")));
    api_json_key(b, "variants");
    api_json_open(b, '{');
    json_object_foreach(json_object_get(file, "variants"), key, variant)
    {
        const char *refused = json_string_value(json_object_get(variant, "refused"));

        api_json_key(b, key);
        api_json_open(b, '{');
        api_json_kv_str(b, refused ? "refused" : "shows",
                        refused ? refused : json_string_value(json_object_get(variant, "shows")));
        api_json_close(b, '}');
    }
    api_json_close(b, '}');
    api_json_close(b, '}');
}

/* ---- submissions ------------------------------------------------------------------------------- */

/* Members that say nothing of what the runs compute. */
static bool about(const char *pointer)
{
    static const char *const names[] = {"/name", "/experiment", "/tags",      "/notes",  "/priority",
                                        "/kind", "/register",   "/resources", "/schema", "/train/keep"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(pointer, names[i]))
            return true;
    return false;
}

struct changes {
    struct pd_buf *b;
    int count;
};

static void differences(struct changes *c, const json_t *mine, const json_t *asked, const char *pointer)
{
    const char *key;
    json_t *value;
    char below[256];

    if (about(pointer))
        return;
    if (!json_is_object(mine) || !json_is_object(asked)) {
        if (mine != asked && !json_equal(mine, asked) && c->count++ < EXPERIMENT_CHANGES)
            api_json_str(c->b, pointer);
        return;
    }
    json_object_foreach((json_t *)asked, key, value)
    {
        snprintf(below, sizeof below, "%s/%s", pointer, key);
        differences(c, json_object_get(mine, key), value, below);
    }
    json_object_foreach((json_t *)mine, key, value) if (!json_object_get(asked, key))
    {
        snprintf(below, sizeof below, "%s/%s", pointer, key);
        differences(c, value, NULL, below);
    }
}

/* The template's document with the data that a job of it took among the alternatives; a new reference. */
static json_t *asked_of(const json_t *job, const json_t *mine)
{
    json_t *asked = json_deep_copy(job), *data = json_object_get(asked, "data"), *one;
    json_t *any = json_incref(json_object_get(data, "any"));
    const json_t *own = json_object_get(mine, "data");
    const char *path = json_string_value(json_object_get(own, "path")),
               *slash = path ? strchr(path, '/') : NULL;
    size_t i;

    if (any)
        json_object_del(data, "any");
    json_array_foreach(any, i, one)
    {
        const char *place = json_string_value(json_object_get(one, "path"));

        if (!json_equal(json_object_get(one, "dataset"), json_object_get(own, "dataset")))
            continue;
        json_object_update(data, one);
        if (place && slash && !strcmp(slash + 1, place)) /* below whichever root */
            json_object_set_new(data, "path", json_string(path));
        break;
    }
    json_decref(any);
    return asked;
}

/* In which fields the jobs differ from the template's documents. */
static void changes_json(struct pd_buf *b, const struct experiment *x, const struct experiment_set *set)
{
    const json_t *jobs =
        json_object_get(json_object_get(json_object_get(set->file, "variants"), set->variant), "jobs");
    struct changes c = {.b = b};

    api_json_key(b, "changed");
    api_json_open(b, '[');
    for (size_t i = 0; i < set->count && i < json_array_size(jobs); i++) {
        json_t *mine = json_loads(x->jobs[set->first + i].document, 0, NULL);
        json_t *asked = asked_of(json_array_get(jobs, i), mine);

        differences(&c, mine, asked, "");
        json_decref(asked);
        json_decref(mine);
    }
    api_json_close(b, ']');
}

static enum pd_err sets_json(struct pd_buf *b, struct experiment *x, bool full, enum claim_verdict *ret_worst,
                             bool *ret_judged, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    *ret_worst = CLAIM_HOLDS;
    *ret_judged = false;
    api_json_key(b, "submissions");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < x->set_count; i++) {
        const struct experiment_set *set = &x->sets[i];
        const json_t *variant = json_object_get(json_object_get(set->file, "variants"), set->variant);
        enum claim_verdict verdict;
        bool counts;

        api_json_open(b, '{');
        api_json_kv_str(b, "template", x->jobs[set->first].template_name);
        api_json_kv_str(b, "shows", json_string_value(json_object_get(variant, "shows")));
        api_json_key(b, "jobs");
        api_json_open(b, '[');
        for (size_t k = 0; k < set->count; k++)
            api_json_id(b, x->jobs[set->first + k].id);
        api_json_close(b, ']');
        changes_json(b, x, set);
        err = claims_json(b, x, set, &verdict, &counts, why);
        if (err == PD_OK)
            err = targets_json(b, x, set, why);
        if (err == PD_OK && full)
            err = pictures_json(b, x, set, why);
        api_json_close(b, '}');
        if (counts && verdict > *ret_worst)
            *ret_worst = verdict;
        *ret_judged = *ret_judged || counts;
    }
    api_json_close(b, ']');
    return err;
}

/* ---- jobs -------------------------------------------------------------------------------------- */

/* Row less base, seed by seed, of the metric's last value. */
static void paired_json(struct pd_buf *b, const struct experiment_job *job, size_t i)
{
    const struct experiment_row *row = &job->rows[i], *base = &job->rows[row->base];
    const double *value = job->series[0].value[API_PICK_LAST];
    struct api_stat difference = {0};
    struct pd_buf interval;

    api_json_key(b, "paired");
    if (row == base) {
        api_json_null(b);
        return;
    }
    for (size_t k = row->first; k < row->first + row->count; k++)
        for (size_t m = base->first; m < base->first + base->count; m++) {
            const struct experiment_run *one = &job->runs[k], *other = &job->runs[m];

            if (one->seed == other->seed && one->state == JOB_RUN_ENDED && other->state == JOB_RUN_ENDED &&
                one->outcome == JOB_OUTCOME_SUCCEEDED && other->outcome == JOB_OUTCOME_SUCCEEDED)
                api_stat_add(&difference, value[k] - value[m]);
        }
    pd_buf_init(&interval, 0);
    api_interval_json(&interval, &difference);
    api_json_open(b, '{');
    api_json_kv_int(b, "against", base->point);
    api_json_kv_raw(b, "difference", interval.data);
    api_json_close(b, '}');
    b->failed = b->failed || interval.failed;
    pd_buf_done(&interval);
}

/* The same metric of the test part, which nothing is selected by; *ret NULL: the metric is not of the validation
 * part, or no run has a value of it. */
static enum pd_err tested(struct experiment *x, struct experiment_job *job,
                          const struct experiment_series **ret, struct pd_why *why)
{
    const size_t len = strlen(job->metric);
    char key[STORE_KEY_MAX + 8];
    bool any = false;
    enum pd_err err;

    *ret = NULL;
    if (len < 4 || strcmp(job->metric + len - 4, "/val") != 0)
        return PD_OK;
    snprintf(key, sizeof key, "%.*s/test", (int)len - 4, job->metric);
    err = experiment_series_get(x, job, key, ret, why);
    if (err == PD_ERR_LIMIT) {
        experiment_cut(x, "of job %lld no %s", (long long)job->id, key);
        err = PD_OK;
    }
    for (size_t i = 0; *ret && i < job->run_count; i++)
        any = any || isfinite((*ret)->value[API_PICK_LAST][i]);
    if (err != PD_OK || !any)
        *ret = NULL;
    return err;
}

static void tested_json(struct pd_buf *b, const struct experiment_job *job, const struct experiment_row *row,
                        const struct experiment_series *test)
{
    struct api_stat stat = {0};

    api_json_key(b, "test");
    if (!test) {
        api_json_null(b);
        return;
    }
    for (size_t k = row->first; k < row->first + row->count; k++)
        if (job->runs[k].state == JOB_RUN_ENDED && job->runs[k].outcome == JOB_OUTCOME_SUCCEEDED)
            api_stat_add(&stat, test->value[API_PICK_LAST][k]);
    api_stat_json(b, &stat);
}

static void row_json(struct pd_buf *b, const struct experiment_job *job, size_t i,
                     const struct experiment_series *test)
{
    const struct experiment_row *row = &job->rows[i];

    api_json_open(b, '{');
    api_json_kv_int(b, "point", row->point);
    kv_tree(b, "values", row->values, "{}");
    api_json_key(b, "runs");
    api_tally_json(b, &row->runs);
    api_json_key(b, "statistic");
    api_stat_json(b, &row->stat);
    tested_json(b, job, row, test);
    paired_json(b, job, i);
    api_json_close(b, '}');
}

static void runs_json(struct pd_buf *b, const struct experiment_job *job)
{
    const double *value = job->series[0].value[API_PICK_LAST];

    api_json_key(b, "run_list");
    api_json_open(b, '[');
    for (size_t i = 0; i < job->run_count; i++) {
        const struct experiment_run *run = &job->runs[i];

        api_json_open(b, '{');
        api_json_kv_id(b, "run_id", run->id);
        api_json_kv_int(b, "point", job->rows[run->row].point);
        api_json_kv_int(b, "trial", run->trial);
        api_json_kv_int(b, "seed", run->seed);
        api_json_kv_str(b, "state", job_run_state_name(run->state));
        api_json_kv_str(b, "outcome", run->state == JOB_RUN_ENDED ? job_outcome_name(run->outcome) : NULL);
        api_json_kv_num_or_null(b, "value", value[i]);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
}

/* ---- what the report adds ---------------------------------------------------------------------- */

static void curve_point(void *ctx, const struct api_curve_point *p)
{
    api_curve_point_json(ctx, p);
}

/* The metric over training, of the runs of each combination that succeeded. */
static enum pd_err curves_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                               struct pd_why *why)
{
    struct api_curve_query q = {.x = API_AXIS_STEP, .buckets = EXPERIMENT_BUCKETS};
    struct api_curve_run *runs = calloc(job->run_count + 1, sizeof *runs);
    enum pd_err err = runs ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the curves");

    snprintf(q.key, sizeof q.key, "%s", job->metric);
    api_json_key(b, "curves");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < job->row_count && i < EXPERIMENT_CURVES; i++) {
        const struct experiment_row *row = &job->rows[i];
        size_t count = 0;

        for (size_t k = row->first; k < row->first + row->count && count < API_CURVE_RUNS; k++)
            if (job->runs[k].state == JOB_RUN_ENDED && job->runs[k].outcome == JOB_OUTCOME_SUCCEEDED)
                runs[count++] = (struct api_curve_run){.run_id = job->runs[k].id,
                                                       .started_us = job->runs[k].started_us,
                                                       .last_step = job->runs[k].last_step,
                                                       .last_us = job->runs[k].last_us};
        api_json_open(b, '{');
        api_json_kv_int(b, "point", row->point);
        api_json_key(b, "data");
        api_json_open(b, '[');
        err = api_curve(x->store, &q, runs, count, curve_point, b, why);
        api_json_close(b, ']');
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    free(runs);
    return err;
}

static bool first_run(void *ctx, const struct store_run *run)
{
    struct pd_buf *b = ctx;

    api_json_kv_id(b, "run_id", run->id);
    api_json_kv_str(b, "device", *run->device ? run->device : NULL);
    api_json_kv_str(b, "config_digest", *run->config_digest ? run->config_digest : NULL);
    api_json_kv_raw(b, "document", *run->document ? run->document : "{}");
    return false;
}

/* The resolved document of the job's first run, from which the others differ in swept values and seed. */
static enum pd_err configuration_json(struct pd_buf *b, struct experiment *x,
                                      const struct experiment_job *job, struct pd_why *why)
{
    enum pd_err err = PD_OK;

    api_json_key(b, "configuration");
    if (!job->run_count) {
        api_json_null(b);
        return PD_OK;
    }
    api_json_open(b, '{');
    err = store_run_get(x->store, job->runs[0].id, first_run, b, why);
    api_json_close(b, '}');
    return err;
}

static bool inputs_row(void *ctx, const struct store_inputs *i)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_str(b, "data_digest", *i->data_digest ? i->data_digest : NULL);
    api_json_kv_str(b, "data_digest_of", *i->data_digest_of ? i->data_digest_of : NULL);
    api_json_kv_str(b, "program_digest", i->program_digest);
    api_json_kv_int(b, "runs", i->runs);
    api_json_close(b, '}');
    return true;
}

/* What the job's runs were computed from. */
static enum pd_err inputs_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                               struct pd_why *why)
{
    enum pd_err err;

    api_json_key(b, "inputs");
    api_json_open(b, '[');
    err = store_job_inputs(x->store, job->id, inputs_row, b, why);
    api_json_close(b, ']');
    return err;
}

/* The sweep against its last axis of numbers: panels by the other axes, best values, slopes; null: it has none. */
static enum pd_err analysis_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                                 struct pd_why *why)
{
    struct api_analysis_query *q = calloc(1, sizeof *q);
    struct pd_why unused = {.text = ""};
    enum pd_err err = q ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for the analysis");
    struct pd_buf part;

    if (!q)
        return err;
    pd_buf_init(&part, 0);
    err = job->sweep ? api_analysis_json(x->store, job->id, q, &part, NULL, &unused) : PD_ERR_INVALID;
    free(q);
    if (err == PD_ERR_LIMIT)
        experiment_cut(x, "analysis of job %lld: %.90s", (long long)job->id, unused.text);
    if (err == PD_ERR_INVALID || err == PD_ERR_LIMIT) {
        api_json_kv_null(b, "analysis");
        err = PD_OK;
    } else if (err != PD_OK) {
        *why = unused;
    } else {
        api_json_kv_raw(b, "analysis", part.data);
        b->failed = b->failed || part.failed;
    }
    pd_buf_done(&part);
    return err;
}

static enum pd_err job_json(struct pd_buf *b, struct experiment *x, struct experiment_job *job, bool full,
                            struct pd_why *why)
{
    const struct experiment_series *test;
    struct api_tally runs = {0};
    enum pd_err err = tested(x, job, &test, why);

    if (err != PD_OK)
        return err;
    for (size_t i = 0; i < job->row_count; i++) {
        runs.total += job->rows[i].runs.total;
        runs.open += job->rows[i].runs.open;
        runs.succeeded += job->rows[i].runs.succeeded;
        runs.diverged += job->rows[i].runs.diverged;
        runs.failed += job->rows[i].runs.failed;
        runs.cancelled += job->rows[i].runs.cancelled;
        runs.lost += job->rows[i].runs.lost;
    }
    api_json_open(b, '{');
    api_json_kv_id(b, "id", job->id);
    api_json_kv_str(b, "name", job->name);
    api_json_kv_str(b, "kind", job_kind_info(job->kind)->name);
    api_json_kv_str(b, "state", job_state_name(job->state));
    api_json_kv_str(b, "template", *job->template_name ? job->template_name : NULL);
    api_json_kv_str(b, "notes", job->notes);
    api_json_kv_time(b, "created", job->created_us);
    api_json_kv_time(b, "started", job->started_us);
    api_json_kv_time(b, "ended", job->ended_us);
    api_json_key(b, "runs");
    api_tally_json(b, &runs);
    api_json_kv_int(b, "planned", job->planned);
    api_json_kv_int(b, "points", job->points);
    api_json_kv_int(b, "trials", job->trials);
    kv_tree(b, "axes", json_object_get(job->sweep, "axes"), "[]");
    api_json_kv_str(b, "metric", job->metric);
    api_json_kv_str(b, "mode", job->maximise ? "max" : "min");
    api_json_kv_str(b, "test_metric", test ? test->key : NULL);
    api_json_key(b, "table");
    api_json_open(b, '[');
    for (size_t i = 0; i < job->row_count; i++)
        row_json(b, job, i, test);
    api_json_close(b, ']');
    api_json_key(b, "checks");
    err = theory_results_json(b, x->store, job, full, why);
    if (err != PD_OK) {
        api_json_close(b, '}');
        return err;
    }
    if (full) {
        runs_json(b, job);
        if ((double)b->len > EXPERIMENT_BYTES) {
            experiment_cut(x, "curves, analysis and configuration of job %lld", (long long)job->id);
            api_json_kv_raw(b, "curves", "[]");
            api_json_kv_null(b, "analysis");
            api_json_kv_null(b, "configuration");
        } else {
            if (job->row_count > EXPERIMENT_CURVES)
                experiment_cut(x, "curves of the first %d of %zu combinations of job %lld", EXPERIMENT_CURVES,
                               job->row_count, (long long)job->id);
            err = curves_json(b, x, job, why);
            if (err == PD_OK)
                err = analysis_json(b, x, job, why);
            if (err == PD_OK)
                err = configuration_json(b, x, job, why);
        }
    }
    if (full && err == PD_OK)
        err = inputs_json(b, x, job, why);
    api_json_close(b, '}');
    return err;
}

/* The label of a run that its client opened may hold any character. */
static void report_link(struct pd_buf *b, const char *name)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    char path[3 * 128 + 40];
    int n = snprintf(path, sizeof path, "/api/v1/experiments/");

    for (const char *c = name; *c; c++)
        n += snprintf(path + n, sizeof path - (size_t)n, strchr(plain, *c) ? "%c" : "%%%02X",
                      (unsigned char)*c);
    snprintf(path + n, sizeof path - (size_t)n, "/report");
    api_json_kv_str(b, "report", path);
}

enum pd_err experiment_json(struct pd_buf *b, struct experiment *x, bool full, struct pd_why *why)
{
    const struct store_experiment head = {.name = x->name,
                                          .template_name = x->template_name,
                                          .jobs = x->job_total,
                                          .created_us = x->created_us,
                                          .ended_us = x->ended_us,
                                          .runs = x->counts};
    enum claim_verdict worst;
    bool judged;
    enum pd_err err;

    experiment_head_json(b, &head);
    question_json(b, x);
    err = sets_json(b, x, full, &worst, &judged, why);
    api_json_kv_str(b, "verdict", judged ? claim_verdict_name(worst) : NULL);
    api_json_key(b, "job_list");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < x->job_count; i++)
        err = job_json(b, x, &x->jobs[i], full, why);
    api_json_close(b, ']');
    api_json_key(b, "cut");
    api_json_open(b, '[');
    for (size_t i = 0; i < x->cut_count; i++)
        api_json_str(b, x->cut[i]);
    api_json_close(b, ']');
    report_link(b, x->name);
    if (full) {
        api_json_kv_time(b, "made", pd_clock_wall_us());
        api_json_kv_str(b, "polyd", POLYD_VERSION);
    }
    api_json_close(b, '}');
    return err;
}
