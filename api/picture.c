#include "api/picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/analysis.h"
#include "api/json.h"
#include "api/target.h"
#include "daemon/job/claim.h"

#define TEXT(tree, key) json_string_value(json_object_get(tree, key))
#define LAYERS 256 /* most of a network */

const struct experiment_run *picture_run(const struct experiment_job *job, const struct experiment_row *row)
{
    for (size_t i = row->first; i < row->first + row->count; i++)
        if (job->runs[i].state == JOB_RUN_ENDED && job->runs[i].outcome == JOB_OUTCOME_SUCCEEDED)
            return &job->runs[i];
    return &job->runs[row->first];
}

static void values_json(struct pd_buf *b, const struct experiment_row *row)
{
    char *text = row->values ? json_dumps(row->values, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;

    b->failed = b->failed || (row->values && !text);
    api_json_kv_raw(b, "values", text ? text : "{}");
    free(text);
}

void picture_place_json(struct pd_buf *b, const struct experiment_job *job, const struct experiment_row *row,
                        const struct experiment_run *run)
{
    api_json_open(b, '{');
    api_json_kv_id(b, "job_id", job->id);
    api_json_kv_id(b, "run_id", run->id);
    api_json_kv_int(b, "point", row->point);
    values_json(b, row);
}

/* ---- curves ------------------------------------------------------------------------------------ */

/* A line of a panel. */
struct line {
    const char *name; /* NULL: it is called by its values */
    const struct experiment_row *row;
    size_t of;            /* combinations of which it is the best */
    const json_t *target; /* where the paper's ends; NULL: not given, or of another size */
};

/* Runs of a job that succeeded, with the extent of one of their series, in order of combination. */
struct samples {
    struct api_curve_run *run;
    int64_t *point;
    size_t count, capacity;
    bool failed;
};

static bool take_sample(void *ctx, const struct store_sample *m)
{
    struct samples *s = ctx;

    if (m->state != JOB_RUN_ENDED || m->outcome != JOB_OUTCOME_SUCCEEDED)
        return true;
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        void *run = realloc(s->run, capacity * sizeof *s->run), *point = NULL;

        if (run) {
            s->run = run;
            point = realloc(s->point, capacity * sizeof *s->point);
        }
        if (!point) {
            s->failed = true;
            return false;
        }
        s->point = point;
        s->capacity = capacity;
    }
    s->point[s->count] = m->point;
    s->run[s->count++] = (struct api_curve_run){.run_id = m->run_id,
                                                .started_us = m->started_us,
                                                .last_step = m->step,
                                                .last_us = m->has ? m->time_us : 0};
    return true;
}

static void curve_point(void *ctx, const struct api_curve_point *p)
{
    api_curve_point_json(ctx, p);
}

static void panel_open(struct pd_buf *b, const char *form, const char *title,
                       const struct experiment_job *job, const char *metric)
{
    api_json_open(b, '{');
    api_json_kv_str(b, "form", form);
    api_json_kv_str(b, "title", title);
    api_json_kv_id(b, "job_id", job->id);
    api_json_kv_str(b, "metric", metric);
}

/* One metric over training. `tokens`: of every run; 0 = it is not of interest. */
static enum pd_err curves_json(struct pd_buf *b, struct experiment *x, const struct experiment_job *job,
                               const char *title, const char *metric, int64_t tokens,
                               const struct line *lines, size_t count, struct pd_why *why)
{
    struct store_sample_query q = {.by = STORE_BY_POINT,
                                   .job_id = job->id,
                                   .to_point = EXPERIMENT_POINTS - 1,
                                   .key = metric,
                                   .limit = EXPERIMENT_RUNS};
    struct api_curve_query curve = {.x = API_AXIS_STEP, .buckets = EXPERIMENT_BUCKETS};
    struct samples s = {0};
    enum pd_err err = store_sample_list(x->store, &q, take_sample, &s, why);

    if (err == PD_OK && s.failed)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the curves");
    snprintf(curve.key, sizeof curve.key, "%s", metric);
    panel_open(b, "curves", title, job, metric);
    api_json_key(b, "tokens");
    if (tokens > 0)
        api_json_int(b, tokens);
    else
        api_json_null(b);
    api_json_key(b, "lines");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < count; i++) {
        size_t first = 0, runs = 0;

        while (first < s.count && s.point[first] != lines[i].row->point)
            first++;
        while (first + runs < s.count && s.point[first + runs] == lines[i].row->point)
            runs++;
        api_json_open(b, '{');
        api_json_kv_str(b, "name", lines[i].name);
        api_json_kv_int(b, "point", lines[i].row->point);
        values_json(b, lines[i].row);
        api_json_kv_int(b, "of", (int64_t)lines[i].of);
        api_json_key(b, "target");
        if (json_is_number(lines[i].target))
            api_json_num(b, json_number_value(lines[i].target));
        else
            api_json_null(b);
        api_json_key(b, "data");
        api_json_open(b, '[');
        err = api_curve(x->store, &curve, s.run + first, runs, curve_point, b, why);
        api_json_close(b, ']');
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_close(b, '}');
    free(s.run);
    free(s.point);
    return err;
}

/* Lines that the template names, or all combinations that `only` takes; at most EXPERIMENT_CURVES. */
static size_t lines_of(const json_t *spec, bool small, const struct experiment_job *job, const json_t *patch,
                       bool by_patch, struct line lines[EXPERIMENT_CURVES])
{
    const json_t *named = json_object_get(spec, "lines"), *one;
    size_t i, count = 0;

    json_array_foreach(named, i, one)
    {
        struct line line = {.name = TEXT(one, "name"),
                            .target = small ? NULL : json_object_get(one, "target")};

        line.row = target_row(job, json_object_get(one, "match"), &line.of);
        if (line.row && count < EXPERIMENT_CURVES)
            lines[count++] = line;
    }
    for (i = 0; !named && i < job->row_count && count < EXPERIMENT_CURVES; i++)
        if (!by_patch || json_equal(job_claim_leaf(job->rows[i].values, "/model/patch"), patch) ||
            (!patch && !job_claim_leaf(job->rows[i].values, "/model/patch")))
            lines[count++] = (struct line){.row = &job->rows[i], .of = 1};
    return count;
}

struct layers {
    const char *metric;
    bool there[LAYERS + 1];
};

static bool take_layer(void *ctx, const struct store_series *s)
{
    struct layers *l = ctx;
    const size_t len = strlen(l->metric);
    int64_t layer;

    if (!strncmp(s->key, l->metric, len) && s->key[len] == '/' &&
        api_parse_int(s->key + len + 1, 1, LAYERS, &layer))
        l->there[layer] = true;
    return true;
}

/* A panel for each layer. Combinations of other patches, and so of other numbers of tokens, have panels of their own. */
static enum pd_err layers_json(struct pd_buf *b, struct experiment *x, const json_t *spec, bool small,
                               const struct experiment_job *job, struct pd_why *why)
{
    const char *metric = TEXT(spec, "metric");
    struct line lines[EXPERIMENT_CURVES];
    enum pd_err err = PD_OK;

    for (size_t i = 0; err == PD_OK && i < job->row_count; i++) {
        const json_t *patch = job_claim_leaf(job->rows[i].values, "/model/patch");
        struct layers l = {.metric = metric};
        const int64_t run = picture_run(job, &job->rows[i])->id;
        int64_t tokens = 0;
        bool seen = false;
        size_t count;

        for (size_t k = 0; k < i; k++) {
            const json_t *other = job_claim_leaf(job->rows[k].values, "/model/patch");

            seen = seen || json_equal(other, patch) || (!other && !patch);
        }
        if (seen)
            continue;
        count = lines_of(spec, small, job, patch, true, lines);
        err = store_series_list(x->store, run, take_layer, &l, why);
        if (err == PD_OK)
            err = api_run_tokens(x->store, run, &tokens, why);
        for (int layer = 1; err == PD_OK && layer <= LAYERS; layer++) {
            char key[STORE_KEY_MAX + 8], title[64];

            if (!l.there[layer])
                continue;
            snprintf(key, sizeof key, "%s/%d", metric, layer);
            snprintf(title, sizeof title, "layer %d", layer);
            err = curves_json(b, x, job, title, key, tokens, lines, count, why);
        }
    }
    return err;
}

/* ---- results of combinations ------------------------------------------------------------------- */

static enum pd_err cells_json(struct pd_buf *b, struct experiment *x, struct experiment_job *job,
                              const char *metric, struct pd_why *why)
{
    const struct experiment_series *series;
    enum pd_err err = experiment_series_get(x, job, metric, &series, why);

    if (err == PD_ERR_LIMIT) {
        experiment_cut(x, "of job %lld no %s", (long long)job->id, metric);
        return PD_OK;
    }
    panel_open(b, "cells", job->name, job, metric);
    api_json_key(b, "rows");
    api_json_open(b, '[');
    for (size_t i = 0; err == PD_OK && i < job->row_count; i++) {
        struct api_stat stat = target_stat(job, &job->rows[i], series);

        api_json_open(b, '{');
        api_json_kv_int(b, "point", job->rows[i].point);
        values_json(b, &job->rows[i]);
        api_json_key(b, "statistic");
        api_stat_json(b, &stat);
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    api_json_close(b, '}');
    return err;
}

/* ---- one figure -------------------------------------------------------------------------------- */

static enum pd_err panels_json(struct pd_buf *b, struct experiment *x, const json_t *spec, bool small,
                               struct experiment_job *job, struct pd_why *why)
{
    const char *is = TEXT(spec, "is"), *metric = TEXT(spec, "metric");
    struct line lines[EXPERIMENT_CURVES];

    if ((double)b->len > EXPERIMENT_BYTES) {
        experiment_cut(x, "no figure '%.60s' of job %lld", TEXT(spec, "title"), (long long)job->id);
        return PD_OK;
    }
    if (!job->run_count || !strcmp(is, "sweep") || !strcmp(is, "blocks"))
        return PD_OK; /* the analysis of the job has the one, its configuration the other */
    if (!strcmp(is, "curves"))
        return curves_json(b, x, job, job->name, metric, 0, lines,
                           lines_of(spec, small, job, NULL, false, lines), why);
    if (!strcmp(is, "layers"))
        return layers_json(b, x, spec, small, job, why);
    if (!strcmp(is, "against") || !strcmp(is, "grid"))
        return cells_json(b, x, job, metric, why);
    return picture_stored_json(b, x, is, job, why);
}

enum pd_err pictures_json(struct pd_buf *b, struct experiment *x, const struct experiment_set *set,
                          struct pd_why *why)
{
    const bool small = !strcmp(set->variant, "small");
    static const char *const texts[] = {"is", "title", "source", "paper"};
    const json_t *spec;
    enum pd_err err = PD_OK;
    size_t i;

    api_json_key(b, "pictures");
    api_json_open(b, '[');
    json_array_foreach(json_object_get(set->file, "pictures"), i, spec)
    {
        const json_t *at = json_object_get(spec, "job");

        api_json_open(b, '{');
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            api_json_kv_str(b, texts[k], TEXT(spec, texts[k]));
        api_json_key(b, "panels");
        api_json_open(b, '[');
        for (size_t k = 0; err == PD_OK && k < set->count; k++)
            if (!at || json_integer_value(at) == (json_int_t)k)
                err = panels_json(b, x, spec, small, &x->jobs[set->first + k], why);
        api_json_close(b, ']');
        api_json_close(b, '}');
    }
    api_json_close(b, ']');
    return err;
}
