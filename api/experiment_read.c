/* Reads an experiment from the store: its jobs, their combinations and runs, and which jobs were submitted
 * together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/experiment.h"

void experiment_cut(struct experiment *x, const char *fmt, ...)
{
    va_list ap;

    if (x->cut_count == sizeof x->cut / sizeof *x->cut)
        return;
    va_start(ap, fmt);
    vsnprintf(x->cut[x->cut_count++], EXPERIMENT_CUT_SIZE, fmt, ap);
    va_end(ap);
}

static void job_done(struct experiment_job *job)
{
    for (size_t i = 0; i < job->row_count; i++)
        json_decref(job->rows[i].values);
    for (size_t i = 0; i < job->series_count; i++)
        for (int pick = 0; pick < 3; pick++)
            free(job->series[i].value[pick]);
    free(job->rows);
    free(job->runs);
    free(job->name);
    free(job->notes);
    free(job->template_name);
    free(job->document);
    json_decref(job->sweep);
}

void experiment_free(struct experiment *x)
{
    if (!x)
        return;
    for (size_t i = 0; i < x->job_count; i++)
        job_done(&x->jobs[i]);
    for (size_t i = 0; i < x->set_count; i++)
        json_decref(x->sets[i].file);
    free(x);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

struct job_list {
    struct experiment *x;
    bool failed;
};

static bool take_job(void *ctx, const struct store_job *row)
{
    struct job_list *l = ctx;
    struct experiment_job *job = &l->x->jobs[l->x->job_count++];

    *job = (struct experiment_job){
        .id = row->id,
        .created_us = row->created_us,
        .started_us = row->started_us,
        .ended_us = row->ended_us,
        .points = row->points,
        .trials = row->trials,
        .planned = row->planned,
        .kind = row->kind,
        .state = row->state,
        .maximise = row->maximise,
        .name = strdup(row->name),
        .notes = strdup(row->notes),
        .template_name = strdup(row->template_name),
        .document = strdup(row->document),
        .sweep = *row->sweep ? json_loads(row->sweep, 0, NULL) : NULL,
    };
    snprintf(job->metric, sizeof job->metric, "%s", row->metric);
    l->failed = l->failed || !job->name || !job->notes || !job->template_name || !job->document ||
                (*row->sweep && !job->sweep);
    return !l->failed && l->x->job_count < EXPERIMENT_JOBS;
}

static bool take_head(void *ctx, const struct store_experiment *e)
{
    struct experiment *x = ctx;

    x->job_total = e->jobs;
    x->created_us = e->created_us;
    x->ended_us = e->ended_us;
    x->counts = e->runs;
    snprintf(x->name, sizeof x->name, "%s", e->name);
    snprintf(x->template_name, sizeof x->template_name, "%s", e->template_name);
    return false;
}

static enum pd_err read_jobs(struct experiment *x, struct pd_why *why)
{
    struct job_list list = {.x = x};
    struct store_job_query q = {
        .experiment = x->name, .state = -1, .archived = STORE_ARCHIVED_ANY, .limit = EXPERIMENT_JOBS};
    enum pd_err err = store_job_list(x->store, &q, take_job, &list, why);

    if (err == PD_OK && list.failed)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the experiment");
    for (size_t i = 0; 2 * i + 1 < x->job_count; i++) { /* oldest first */
        struct experiment_job swap = x->jobs[i];

        x->jobs[i] = x->jobs[x->job_count - 1 - i];
        x->jobs[x->job_count - 1 - i] = swap;
    }
    if (x->job_total > (int64_t)x->job_count)
        experiment_cut(x, "the newest %zu of %lld jobs", x->job_count, (long long)x->job_total);
    return err;
}

/* ---- combinations and runs --------------------------------------------------------------------- */

static bool grow(void **list, size_t count, size_t *capacity, size_t size)
{
    size_t more = *capacity ? 2 * *capacity : 32;
    void *grown = count < *capacity ? *list : realloc(*list, more * size);

    if (!grown)
        return false;
    *list = grown;
    if (count >= *capacity)
        *capacity = more;
    return true;
}

static bool take_run(struct experiment_job *job, const struct store_sample *m)
{
    bool fresh = !job->row_count || job->rows[job->row_count - 1].point != m->point;
    void *rows = job->rows, *runs = job->runs;
    bool ok = (!fresh || grow(&rows, job->row_count, &job->row_capacity, sizeof *job->rows)) &&
              grow(&runs, job->run_count, &job->run_capacity, sizeof *job->runs);
    struct experiment_row *row;

    job->rows = rows;
    job->runs = runs;
    if (!ok)
        return false;
    if (fresh) {
        job->rows[job->row_count] =
            (struct experiment_row){.point = m->point, .first = job->run_count, .base = job->row_count};
        job->row_count++;
    }
    row = &job->rows[job->row_count - 1];
    if (*m->sweep && !row->values)
        row->values = json_loads(m->sweep, 0, NULL);
    row->count++;
    api_tally_add(&row->runs, m);
    job->runs[job->run_count++] = (struct experiment_run){.id = m->run_id,
                                                          .trial = m->trial,
                                                          .seed = m->seed,
                                                          .started_us = m->started_us,
                                                          .last_step = m->step,
                                                          .last_us = m->has ? m->time_us : 0,
                                                          .row = job->row_count - 1,
                                                          .state = m->state,
                                                          .outcome = m->outcome};
    return true;
}

struct reading {
    struct experiment_job *job;
    struct experiment_series *series;
    bool first; /* the runs are taken, too */
    bool failed;
    size_t at;
};

/* The same snapshot: every reading meets the runs in the same order. */
static bool take_value(void *ctx, const struct store_sample *m)
{
    struct reading *r = ctx;
    size_t i = r->at++;

    if (r->first) {
        bool full = !(i & (i - 1)); /* at 0, 1, 2, 4, ..: room for twice as many */

        for (int pick = 0; full && pick < 3; pick++) {
            double *grown = realloc(r->series->value[pick], (i ? 2 * i : 1) * sizeof *grown);

            if (!grown) {
                r->failed = true;
                return false;
            }
            r->series->value[pick] = grown;
        }
        if (!take_run(r->job, m)) {
            r->failed = true;
            return false;
        }
    } else if (i >= r->job->run_count) {
        return false;
    }
    r->series->value[API_PICK_LAST][i] = m->has ? m->last : (double)NAN;
    r->series->value[API_PICK_MIN][i] = m->has ? m->min : (double)NAN;
    r->series->value[API_PICK_MAX][i] = m->has ? m->max : (double)NAN;
    return true;
}

enum pd_err experiment_series_get(struct experiment *x, struct experiment_job *job, const char *key,
                                  const struct experiment_series **ret, struct pd_why *why)
{
    struct reading r = {.job = job, .first = !job->series_count};
    struct store_sample_query q = {.by = STORE_BY_POINT,
                                   .job_id = job->id,
                                   .to_point = EXPERIMENT_POINTS - 1,
                                   .key = key,
                                   .limit = EXPERIMENT_RUNS};
    enum pd_err err;

    for (size_t i = 0; i < job->series_count; i++)
        if (!strcmp(job->series[i].key, key)) {
            *ret = &job->series[i];
            return PD_OK;
        }
    if (job->series_count == EXPERIMENT_SERIES)
        return pd_fail(why, PD_ERR_LIMIT, "more than %d metrics of one job", EXPERIMENT_SERIES);
    r.series = &job->series[job->series_count++];
    snprintf(r.series->key, sizeof r.series->key, "%s", key);
    for (int pick = 0; !r.first && pick < 3; pick++) {
        r.series->value[pick] = calloc(job->run_count + 1, sizeof(double));
        if (!r.series->value[pick])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the experiment");
    }
    err = store_sample_list(x->store, &q, take_value, &r, why);
    if (err == PD_OK && r.failed)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the experiment");
    *ret = r.series;
    return err;
}

/* The axis of arms: the first that does not hold numbers only. NULL: there is none, so that no combination is
 * the natural one to compare with. */
static const char *arm_axis(const struct experiment_job *job)
{
    json_t *axis, *value;
    size_t i, k;

    json_array_foreach(json_object_get(job->sweep, "axes"), i, axis)
    {
        const json_t *values = json_object_get(axis, "values");

        json_array_foreach(values, k, value) if (!json_is_number(value)) return json_string_value(
            json_object_get(axis, "pointer"));
    }
    return NULL;
}

/* A row is compared with the first one that differs from it in nothing but the arm. */
static void find_bases(struct experiment_job *job)
{
    const char *pointer = arm_axis(job), *key;
    json_t *value;

    for (size_t i = 0; pointer && i < job->row_count; i++)
        for (size_t k = 0; k < i && job->rows[i].base == i; k++) {
            bool same = job->rows[i].values && job->rows[k].values;

            json_object_foreach(job->rows[i].values, key, value) same =
                same &&
                (!strcmp(key, pointer) || json_equal(value, json_object_get(job->rows[k].values, key)));
            if (same)
                job->rows[i].base = k;
        }
}

static enum pd_err read_runs(struct experiment *x, struct experiment_job *job, struct pd_why *why)
{
    const struct experiment_series *series;
    enum pd_err err = experiment_series_get(x, job, job->metric, &series, why);

    for (size_t i = 0; err == PD_OK && i < job->run_count; i++) {
        const struct experiment_run *run = &job->runs[i];

        if (run->state == JOB_RUN_ENDED && run->outcome == JOB_OUTCOME_SUCCEEDED)
            api_stat_add(&job->rows[run->row].stat, series->value[API_PICK_LAST][i]);
    }
    find_bases(job);
    if (err == PD_OK && job->points > EXPERIMENT_POINTS)
        experiment_cut(x, "the first %d of %lld combinations of job %lld", EXPERIMENT_POINTS,
                       (long long)job->points, (long long)job->id);
    if (err == PD_OK && job->run_count == EXPERIMENT_RUNS)
        experiment_cut(x, "the first %d runs of job %lld", EXPERIMENT_RUNS, (long long)job->id);
    return err;
}

/* ---- submissions of templates ------------------------------------------------------------------ */

/* The template's file if the jobs were made from this version of it; a new reference. */
static json_t *file_of(const char *template_name, char variant[8])
{
    char name[8] = "";
    long long version = 0;
    size_t at, len;
    const char *text;
    json_t *file;

    if (sscanf(template_name, "%7s %7s %lld", name, variant, &version) != 3 ||
        (at = job_template_find(name)) == job_template_count())
        return NULL;
    text = job_template_text(at, &len);
    file = json_loadb(text, len, 0, NULL);
    if (json_integer_value(json_object_get(file, "version")) == version &&
        json_object_get(json_object_get(file, "variants"), variant))
        return file;
    json_decref(file);
    return NULL;
}

/* Jobs of one submission are made in one transaction: their ids follow each other and they were made at the
 * same moment. */
static void find_sets(struct experiment *x)
{
    for (size_t i = 0; i < x->job_count;) {
        const struct experiment_job *first = &x->jobs[i];
        struct experiment_set *set = &x->sets[x->set_count];
        size_t wanted = 1;

        if (!*first->template_name) {
            i++;
            continue;
        }
        x->set_count++;
        *set = (struct experiment_set){.first = i, .count = 1};
        set->file = file_of(first->template_name, set->variant);
        if (!set->file)
            set->why = "it was made from a version of the template that this polyd does not have";
        else
            wanted = json_array_size(json_object_get(
                json_object_get(json_object_get(set->file, "variants"), set->variant), "jobs"));
        while (set->count < wanted && i + set->count < x->job_count) {
            const struct experiment_job *next = &x->jobs[i + set->count];

            if (next->id != first->id + (int64_t)set->count || next->created_us != first->created_us ||
                strcmp(next->template_name, first->template_name) != 0)
                break;
            set->count++;
        }
        if (set->file && set->count < wanted)
            set->why = "not all jobs of this submission are there any more";
        i += set->count;
    }
}

enum pd_err experiment_read(struct store *store, const char *name, struct experiment **ret,
                            struct pd_why *why)
{
    struct experiment *x = calloc(1, sizeof *x);
    enum pd_err err;

    if (!x)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the experiment");
    x->store = store;
    err = store_experiment_get(store, name, take_head, x, why);
    if (err == PD_OK)
        err = read_jobs(x, why);
    for (size_t i = 0; err == PD_OK && i < x->job_count; i++)
        err = read_runs(x, &x->jobs[i], why);
    if (err == PD_OK) {
        find_sets(x);
        *ret = x;
        x = NULL; /* moved to the caller */
    }
    experiment_free(x);
    return err;
}
