#include "api/target.h"

#include <math.h>
#include <string.h>

#include "api/json.h"
#include "daemon/job/claim.h"
#include "daemon/job/metric.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))

const struct experiment_row *target_row(const struct experiment_job *job, const json_t *alternatives,
                                        size_t *ret_of)
{
    const struct experiment_row *best = NULL;
    const double sign = job->maximise ? 1 : -1;

    *ret_of = 0;
    for (size_t i = 0; i < job->row_count; i++) {
        const struct experiment_row *row = &job->rows[i];

        if (!job_claim_matches(alternatives, row->values))
            continue;
        ++*ret_of;
        if (!best || (row->stat.n && (!best->stat.n || sign * row->stat.mean > sign * best->stat.mean)))
            best = row;
    }
    return best;
}

struct api_stat target_stat(const struct experiment_job *job, const struct experiment_row *row,
                            const struct experiment_series *series)
{
    struct api_stat stat = {0};

    for (size_t k = row->first; k < row->first + row->count; k++)
        if (job->runs[k].state == JOB_RUN_ENDED && job->runs[k].outcome == JOB_OUTCOME_SUCCEEDED)
            api_stat_add(&stat, series->value[API_PICK_LAST][k]);
    return stat;
}

/* A column of a table: the job that it shows, and the metric. */
struct column {
    const json_t *spec;
    struct experiment_job *job, *first; /* first: has the first row; NULL: none */
    const char *metric;
    double times; /* shares in per cent */
    size_t value; /* which of a row's values of the paper is its */
};

/* A row of a column. NaN: there is no number. */
struct line {
    const struct experiment_job *job;
    const struct experiment_row *row;
    size_t of;
    double paper, here, sd;
    int64_t n;
};

static struct experiment_job *job_of(struct experiment *x, const struct experiment_set *set,
                                     const json_t *number)
{
    const size_t i = (size_t)json_integer_value(number);

    return json_is_integer(number) && i < set->count ? &x->jobs[set->first + i] : NULL;
}

static enum pd_err series_of(struct experiment *x, struct experiment_job *job, const char *metric,
                             const struct experiment_series **ret, struct pd_why *why)
{
    enum pd_err err = experiment_series_get(x, job, metric, ret, why);

    if (err != PD_ERR_LIMIT)
        return err;
    experiment_cut(x, "of job %lld no %s", (long long)job->id, metric);
    *ret = NULL;
    return PD_OK;
}

/* Takes the first metric that a combination of the job has, else the first. */
static enum pd_err choose_metric(struct experiment *x, struct column *c, struct pd_why *why)
{
    const json_t *names = json_object_get(c->spec, "metrics"), *name;
    enum pd_err err = PD_OK;
    size_t i;

    c->metric = json_string_value(json_array_get(names, 0));
    json_array_foreach(names, i, name)
    {
        const struct experiment_series *series = NULL;

        if (c->job)
            err = series_of(x, c->job, json_string_value(name), &series, why);
        if (err != PD_OK || !series)
            return err;
        for (size_t k = 0; k < c->job->row_count; k++)
            if (target_stat(c->job, &c->job->rows[k], series).n) {
                c->metric = json_string_value(name);
                return PD_OK;
            }
    }
    return PD_OK;
}

static enum pd_err read_line(struct experiment *x, const struct column *c, const json_t *spec, bool first,
                             struct line *ret, struct pd_why *why)
{
    struct experiment_job *job = first && c->first ? c->first : c->job;
    const json_t *paper = json_array_get(json_object_get(spec, "values"), c->value);
    const struct experiment_series *series = NULL;
    struct api_stat stat;
    enum pd_err err;

    *ret = (struct line){.job = job,
                         .paper = json_is_number(paper) ? json_number_value(paper) : (double)NAN,
                         .here = (double)NAN,
                         .sd = (double)NAN};
    if (!job)
        return PD_OK;
    ret->row = target_row(job, job == c->first ? NULL : json_object_get(spec, "match"), &ret->of);
    err = series_of(x, job, c->metric, &series, why);
    if (err != PD_OK || !series || !ret->row)
        return err;
    stat = target_stat(job, ret->row, series);
    ret->n = stat.n;
    if (stat.n) {
        ret->here = c->times * stat.mean;
        ret->sd = c->times * api_stat_sd(&stat);
    }
    return PD_OK;
}

static void line_json(struct pd_buf *b, const char *name, const struct line *l, const struct line *first)
{
    const bool base = l == first;

    api_json_open(b, '{');
    api_json_kv_str(b, "name", name);
    if (l->job)
        api_json_kv_id(b, "job_id", l->job->id);
    else
        api_json_kv_null(b, "job_id");
    if (l->row)
        api_json_kv_int(b, "point", l->row->point);
    else
        api_json_kv_null(b, "point");
    api_json_kv_int(b, "of", (int64_t)l->of);
    api_json_kv_num_or_null(b, "paper", l->paper);
    api_json_kv_num_or_null(b, "here", l->here);
    api_json_kv_num_or_null(b, "sd", l->sd);
    api_json_kv_int(b, "n", l->n);
    api_json_kv_num_or_null(b, "here_less_paper", l->here - l->paper);
    api_json_kv_num_or_null(b, "paper_less_first", base ? (double)NAN : l->paper - first->paper);
    api_json_kv_num_or_null(b, "here_less_first", base ? (double)NAN : l->here - first->here);
    api_json_close(b, '}');
}

static enum pd_err column_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                               const json_t *target, size_t at, const json_t *spec, struct pd_why *why)
{
    const json_t *place = json_object_get(spec, "value"), *row;
    struct column c = {.spec = spec,
                       .job = job_of(x, set, json_object_get(spec, "job")),
                       .first = job_of(x, set, json_object_get(spec, "first")),
                       .value = place ? (size_t)json_integer_value(place) : at,
                       .times = 1};
    enum pd_err err = choose_metric(x, &c, why);
    const struct job_metric *known = c.metric ? job_metric_find(c.metric) : NULL;
    struct line first = {0}, other;
    size_t i;

    if (known && known->unit && !strcmp(known->unit, "share") && !strcmp(TEXT(target, "unit"), "%"))
        c.times = 100;
    api_json_open(b, '{');
    api_json_kv_str(b, "name", TEXT(spec, "name"));
    api_json_kv_str(b, "metric", c.metric);
    api_json_key(b, "rows");
    api_json_open(b, '[');
    json_array_foreach(json_object_get(target, "rows"), i, row)
    {
        struct line *line = i ? &other : &first;

        if (err == PD_OK)
            err = read_line(x, &c, row, !i, line, why);
        if (err == PD_OK)
            line_json(b, TEXT(row, "name"), line, &first);
    }
    api_json_close(b, ']');
    api_json_close(b, '}');
    return err;
}

enum pd_err targets_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                         struct pd_why *why)
{
    const json_t *target, *spec;
    enum pd_err err = PD_OK;
    size_t i, k;

    api_json_key(b, "targets");
    api_json_open(b, '[');
    json_array_foreach(json_object_get(set->file, "targets"), i, target)
    {
        const json_t *small = strcmp(set->variant, "small") != 0 ? NULL : json_object_get(target, "small");

        api_json_open(b, '{');
        api_json_kv_str(b, "title", TEXT(target, "title"));
        api_json_kv_str(b, "source", TEXT(target, "source"));
        api_json_kv_str(b, "unit", TEXT(target, "unit"));
        api_json_key(b, "columns");
        api_json_open(b, '[');
        json_array_foreach(small ? small : json_object_get(target, "columns"), k, spec) if (err == PD_OK)
            err = column_json(b, x, set, target, k, spec, why);
        api_json_close(b, ']');
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    return err;
}
