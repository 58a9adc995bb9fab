/* Sweeps: the results of a job's runs as a table of its combinations and as curves over its trials. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/cursor.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "api/stats.h"

#define RUNS_MAX 64000 /* of one page of combinations: 1000 points of 64 trials */
#define CURVES_MAX 64  /* combinations drawn at once */

/* ---- the job ----------------------------------------------------------------------------------- */

struct job_facts {
    char name[201];
    enum job_state state;
    int64_t version, runs, planned, points, trials, concurrency;
    char metric[STORE_KEY_MAX + 1];
    bool maximise;
    json_t *sweep; /* method and axes; NULL = none */
    bool failed;
};

static bool job_row(void *ctx, const struct store_job *job)
{
    struct job_facts *f = ctx;

    *f = (struct job_facts){.state = job->state,
                            .version = job->version,
                            .runs = job->runs,
                            .planned = job->planned,
                            .points = job->points,
                            .trials = job->trials,
                            .concurrency = job->concurrency,
                            .maximise = job->maximise,
                            .sweep = json_loads(job->sweep, 0, NULL)};
    f->failed = *job->sweep && !f->sweep;
    snprintf(f->name, sizeof f->name, "%s", job->name);
    snprintf(f->metric, sizeof f->metric, "%s", job->metric);
    return false;
}

static bool job_read(struct api_req *r, struct store *store, int64_t id, struct job_facts *f)
{
    struct pd_why why = {.text = ""};
    enum pd_err err = store_job_get(store, id, job_row, f, &why);

    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no job %lld", (long long)id);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (f->failed)
        api_fail(r, PD_ERR_NOMEM, "no memory for the sweep");
    return !api_failed(r);
}

/* ---- the table --------------------------------------------------------------------------------- */

struct member {
    int64_t run_id, trial, seed;
    size_t row;
    enum job_run_state state;
    enum job_outcome outcome;
    bool counts;
    double value[API_SAMPLE_KEYS];
    bool has[API_SAMPLE_KEYS];
};

struct row {
    int64_t point;
    char *values; /* JSON, owned */
    struct api_tally runs;
    struct api_stat stat[API_SAMPLE_KEYS];
};

/* A run of rows of the table, filled key by key. */
struct table {
    struct api_choice choice;
    struct row *rows;
    size_t row_count, row_capacity;
    struct member *members;
    size_t member_count, member_capacity;
    int key;     /* being read */
    size_t at;   /* next member, from the second key on */
    bool failed; /* no memory */
};

static void table_free(struct table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->row_count; i++)
        free(t->rows[i].values);
    free(t->rows);
    free(t->members);
    free(t);
}

/* Room for one more of `size` bytes. */
static bool grow(void **list, size_t count, size_t *capacity, size_t size)
{
    size_t more = *capacity ? 2 * *capacity : 64;
    void *grown;

    if (count < *capacity)
        return true;
    grown = realloc(*list, more * size);
    if (!grown)
        return false;
    *list = grown;
    *capacity = more;
    return true;
}

static struct member *new_member(struct table *t, const struct store_sample *m)
{
    void *rows = t->rows, *members = t->members;
    bool fresh = !t->row_count || t->rows[t->row_count - 1].point != m->point;
    bool ok = (!fresh || grow(&rows, t->row_count, &t->row_capacity, sizeof *t->rows)) &&
              grow(&members, t->member_count, &t->member_capacity, sizeof *t->members);
    struct member *out;

    t->rows = rows;
    t->members = members;
    if (!ok) {
        t->failed = true;
        return NULL;
    }
    if (fresh)
        t->rows[t->row_count++] = (struct row){.point = m->point};
    if (*m->sweep && !t->rows[t->row_count - 1].values &&
        !(t->rows[t->row_count - 1].values = strdup(m->sweep)))
        t->failed = true;
    out = &t->members[t->member_count++];
    *out = (struct member){.run_id = m->run_id,
                           .trial = m->trial,
                           .seed = m->seed,
                           .row = t->row_count - 1,
                           .state = m->state,
                           .outcome = m->outcome,
                           .counts = api_choice_counts(&t->choice, m)};
    api_tally_add(&t->rows[t->row_count - 1].runs, m);
    return out;
}

static bool table_sample(void *ctx, const struct store_sample *m)
{
    struct table *t = ctx;
    struct member *member;

    if (t->key == 0)
        member = new_member(t, m);
    else
        /* The same snapshot, the same order. */
        member = t->at < t->member_count ? &t->members[t->at++] : NULL;
    if (!member)
        return false;
    member->has[t->key] = m->has;
    member->value[t->key] = api_choice_value(&t->choice, m);
    if (t->choice.key_count)
        api_choice_add(&t->choice, &t->rows[member->row].stat[t->key], m);
    return true;
}

/* Within one snapshot of the caller's. */
static enum pd_err table_read(struct store *store, struct table *t, int64_t job, int64_t from, int64_t to,
                              struct pd_why *why)
{
    struct store_sample_query q = {
        .by = STORE_BY_POINT, .job_id = job, .from_point = from, .to_point = to, .limit = RUNS_MAX};
    enum pd_err err = PD_OK;

    for (t->key = 0; err == PD_OK && (t->key == 0 || t->key < t->choice.key_count); t->key++) {
        t->at = 0;
        q.key = t->choice.key_count ? t->choice.keys[t->key] : NULL;
        err = store_sample_list(store, &q, table_sample, t, why);
    }
    return err == PD_OK && t->failed ? pd_fail(why, PD_ERR_NOMEM, "no memory for the table") : err;
}

/* Of every metric the differences to the runs of the baseline with the same seeds, row less baseline. */
static void paired_json(struct pd_buf *b, const struct table *t, size_t first, size_t row,
                        const struct table *baseline)
{
    api_json_key(b, "paired");
    api_json_open(b, '{');
    for (int k = 0; k < t->choice.key_count; k++) {
        struct api_stat difference = {0};

        for (size_t i = first; i < t->member_count && t->members[i].row == row; i++)
            for (size_t j = 0; j < baseline->member_count; j++) {
                const struct member *one = &t->members[i], *other = &baseline->members[j];

                if (one->seed == other->seed && one->counts && other->counts)
                    api_stat_add(&difference, one->value[k] - other->value[k]);
            }
        api_json_key(b, t->choice.keys[k]);
        api_interval_json(b, &difference);
    }
    api_json_close(b, '}');
}

/* Of every metric the difference of the means, row less the best row. */
static void versus_json(struct pd_buf *b, const struct table *t, const struct row *row,
                        const struct row *best)
{
    api_json_key(b, "versus_best");
    api_json_open(b, '{');
    for (int k = 0; k < t->choice.key_count; k++) {
        api_json_key(b, t->choice.keys[k]);
        api_welch_json(b, &row->stat[k], &best->stat[k]);
    }
    api_json_close(b, '}');
}

/* baseline: of one row; without rows: the differences are not asked for. best: of one row; without rows: there
 * is none yet. */
static void row_json(struct pd_buf *b, const struct table *t, size_t i, size_t *member, bool with_runs,
                     const struct table *baseline, const struct table *best)
{
    const struct row *row = &t->rows[i];

    api_json_open(b, '{');
    api_json_kv_int(b, "point", row->point);
    api_json_kv_raw(b, "values", row->values ? row->values : "{}");
    api_json_key(b, "runs");
    api_tally_json(b, &row->runs);
    api_json_key(b, "metrics");
    api_json_open(b, '{');
    for (int k = 0; k < t->choice.key_count; k++) {
        api_json_key(b, t->choice.keys[k]);
        api_stat_json(b, &row->stat[k]);
    }
    api_json_close(b, '}');
    if (baseline->row_count && baseline->rows[0].point != row->point)
        paired_json(b, t, *member, i, baseline);
    if (best->row_count && best->rows[0].point != row->point)
        versus_json(b, t, row, &best->rows[0]);
    if (with_runs) {
        api_json_key(b, "trials");
        api_json_open(b, '[');
    }
    for (; *member < t->member_count && t->members[*member].row == i; ++*member) {
        const struct member *m = &t->members[*member];

        if (!with_runs)
            continue;
        api_json_open(b, '{');
        api_json_kv_id(b, "run_id", m->run_id);
        api_json_kv_int(b, "trial", m->trial);
        api_json_kv_int(b, "seed", m->seed);
        api_json_kv_str(b, "state", job_run_state_name(m->state));
        api_json_kv_str(b, "outcome", m->state == JOB_RUN_ENDED ? job_outcome_name(m->outcome) : NULL);
        api_json_key(b, "metrics");
        api_json_open(b, '{');
        for (int k = 0; k < t->choice.key_count; k++)
            if (m->has[k])
                api_json_kv_num(b, t->choice.keys[k], m->value[k]);
        api_json_close(b, '}');
        api_json_close(b, '}');
    }
    if (with_runs)
        api_json_close(b, ']');
    api_json_close(b, '}');
}

/* ---- the best ---------------------------------------------------------------------------------- */

struct best {
    struct api_choice choice;
    bool maximise;
    struct api_stat at; /* of the combination being read */
    int64_t point;      /* -1 = none */
    int64_t best_point;
    struct api_stat best;
    int64_t best_run, run_point;
    double run_value;
};

static bool better(const struct best *b, double one, double other)
{
    return b->maximise ? one > other : one < other;
}

static void best_close(struct best *b)
{
    if (b->at.n && (b->best_point < 0 || better(b, b->at.mean, b->best.mean))) {
        b->best_point = b->point;
        b->best = b->at;
    }
    b->at = (struct api_stat){0};
}

static bool best_sample(void *ctx, const struct store_sample *m)
{
    struct best *b = ctx;
    double reached;

    if (m->point != b->point) {
        best_close(b);
        b->point = m->point;
    }
    api_choice_add(&b->choice, &b->at, m);
    /* The definition of tx_job_register: the best value that the series reached; of equals the first run. */
    reached = !m->has ? (double)NAN : b->maximise ? m->max : m->min;
    if (api_choice_counts(&b->choice, m) && isfinite(reached) &&
        (!b->best_run || better(b, reached, b->run_value))) {
        b->best_run = m->run_id;
        b->run_point = m->point;
        b->run_value = reached;
    }
    return true;
}

static bool values_row(void *ctx, const struct store_sample *m)
{
    char **values = ctx;

    *values = strdup(m->sweep);
    return false;
}

/* *ret_point: of the best combination; -1 = none. */
static enum pd_err best_json(struct store *store, struct pd_buf *b, int64_t job, const struct job_facts *f,
                             const struct api_choice *choice, int64_t *ret_point, struct pd_why *why)
{
    struct best best = {.choice = *choice, .maximise = f->maximise, .point = -1, .best_point = -1};
    struct store_sample_query q = {
        .by = STORE_BY_POINT, .job_id = job, .to_point = INT64_MAX, .key = f->metric, .limit = RUNS_MAX};
    enum pd_err err = store_sample_list(store, &q, best_sample, &best, why);

    best_close(&best);
    api_json_key(b, "best");
    if (err != PD_OK || best.best_point < 0)
        api_json_null(b);
    else {
        char *values = NULL;

        q.from_point = q.to_point = best.best_point;
        err = store_sample_list(store, &q, values_row, &values, why);
        if (err == PD_OK && !values)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the table");
        api_json_open(b, '{');
        api_json_kv_int(b, "point", best.best_point);
        api_json_kv_raw(b, "values", values && *values ? values : "{}");
        api_json_key(b, "value");
        api_stat_json(b, &best.best);
        api_json_close(b, '}');
        free(values);
    }
    api_json_key(b, "best_run");
    if (!best.best_run)
        api_json_null(b);
    else {
        api_json_open(b, '{');
        api_json_kv_id(b, "run_id", best.best_run);
        api_json_kv_int(b, "point", best.run_point);
        api_json_kv_num(b, "value", best.run_value);
        api_json_close(b, '}');
    }
    *ret_point = best.best_point;
    return err;
}

/* ---- the answer -------------------------------------------------------------------------------- */

static void facts_json(struct pd_buf *b, int64_t id, const struct job_facts *f)
{
    char *text = f->sweep
                     ? json_dumps(json_object_get(f->sweep, "axes"), JSON_COMPACT | JSON_REAL_PRECISION(15))
                     : NULL;
    const char *method = json_string_value(json_object_get(f->sweep, "method"));

    api_json_kv_id(b, "job_id", id);
    api_json_kv_str(b, "name", f->name);
    api_json_kv_str(b, "state", job_state_name(f->state));
    api_json_kv_str(b, "method", f->sweep ? method ? method : "grid" : NULL);
    if (f->sweep && !text)
        b->failed = true;
    api_json_kv_raw(b, "axes", text ? text : "[]");
    api_json_kv_int(b, "points", f->points);
    api_json_kv_int(b, "trials", f->trials);
    api_json_kv_int(b, "concurrency", f->concurrency);
    api_json_kv_str(b, "metric", f->metric);
    api_json_kv_str(b, "mode", f->maximise ? "max" : "min");
    free(text);
}

static enum pd_err counts_json(struct store *store, struct pd_buf *b, int64_t id, const struct job_facts *f,
                               struct pd_why *why)
{
    struct store_run_counts counts;
    enum pd_err err = store_run_count(store, id, &counts, why);

    if (err != PD_OK)
        return err;
    api_json_key(b, "runs");
    api_json_open(b, '{');
    api_json_kv_int(b, "planned", f->planned);
    api_json_kv_int(b, "made", f->runs);
    for (int i = 0; i < JOB_RUN_STATE_COUNT; i++)
        api_json_kv_int(b, job_run_state_name((enum job_run_state)i), counts.state[i]);
    for (int i = 0; i < JOB_OUTCOME_COUNT; i++)
        api_json_kv_int(b, job_outcome_name((enum job_outcome)i), counts.outcome[i]);
    api_json_close(b, '}');
    return PD_OK;
}

/* The metric that ranks the runs, unless others are asked for. */
static void default_key(struct api_choice *c, const struct job_facts *f)
{
    if (!c->key_count)
        snprintf(c->keys[c->key_count++], sizeof c->keys[0], "%s", f->metric);
}

void api_sweep_get(struct api_req *r)
{
    static const char *const names[] = {"limit", "cursor", "metric",   "value",
                                        "open",  "runs",   "baseline", NULL};
    int64_t id = api_param_id(r, 0), after = 0, wanted, best_point = -1;
    struct job_facts f = {.name = ""};
    struct pd_why why = {.text = ""};
    struct store *store;
    struct table *t, *baseline, *best;
    struct pd_buf b;
    char kind[48];
    int limit;
    size_t member = 0;
    bool with_runs, more;
    enum pd_err err;

    if (!id || api_query_refuse_others(r, names))
        return;
    snprintf(kind, sizeof kind, "sweep %lld", (long long)id);
    t = calloc(1, sizeof *t);
    baseline = calloc(1, sizeof *baseline);
    best = calloc(1, sizeof *best);
    if (!t || !baseline || !best) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the table");
        goto out;
    }
    wanted = api_query_int(r, "baseline", 0, INT64_MAX, -1);
    with_runs = api_query_flag(r, "runs");
    if (!api_page_begin(r, kind, &after, &limit) || !api_choice_read(r, &t->choice) ||
        !(store = api_reader(r)))
        goto out;
    err = store_begin(store, &why);
    if (err != PD_OK) {
        api_fail_why(r, err, &why);
        goto out;
    }
    if (!job_read(r, store, id, &f)) {
        store_end(store);
        goto out;
    }
    default_key(&t->choice, &f);
    if (wanted >= 0) {
        baseline->choice = t->choice;
        err = table_read(store, baseline, id, wanted, wanted, &why);
        if (err != PD_OK || !baseline->row_count) {
            store_end(store);
            if (err != PD_OK)
                api_fail_why(r, err, &why);
            else
                api_fail_param(r, PD_ERR_INVALID, "baseline", "combination %lld has no runs",
                               (long long)wanted);
            goto out;
        }
    }
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    facts_json(&b, id, &f);
    api_json_kv_str(&b, "value", api_pick_name(t->choice.pick));
    err = counts_json(store, &b, id, &f, &why);
    if (err == PD_OK)
        err = best_json(store, &b, id, &f, &t->choice, &best_point, &why);
    best->choice = t->choice;
    if (err == PD_OK && best_point >= 0)
        err = table_read(store, best, id, best_point, best_point, &why);
    /* The cursor holds the number of combinations before, so that the first page's 0 is no special case. */
    if (err == PD_OK)
        err = table_read(store, t, id, after, after + limit - 1, &why);
    store_end(store);
    api_json_key(&b, "table");
    api_json_open(&b, '[');
    for (size_t i = 0; i < t->row_count; i++)
        row_json(&b, t, i, &member, with_runs, baseline, best);
    more = after + limit < f.points; /* a combination without runs has no row */
    api_page_end(r, &b, kind, after + limit, more);
    api_answer(r, err, &why, &b);
out:
    json_decref(f.sweep);
    table_free(t);
    table_free(baseline);
    table_free(best);
}

/* ---- curves ------------------------------------------------------------------------------------ */

struct curve {
    int64_t point;
    char *values;
    struct api_tally runs;
    struct api_curve_run *at;
    size_t count, capacity;
};

struct curves {
    struct api_choice choice; /* open */
    struct curve list[CURVES_MAX];
    int count;
    int64_t wanted[CURVES_MAX];
    int wanted_count;
    bool truncated, failed;
};

static void curves_free(struct curves *c)
{
    for (int i = 0; i < c->count; i++) {
        free(c->list[i].values);
        free(c->list[i].at);
    }
    free(c);
}

static bool curve_sample(void *ctx, const struct store_sample *m)
{
    struct curves *c = ctx;
    struct curve *at = c->count ? &c->list[c->count - 1] : NULL;
    bool wanted = !c->wanted_count;
    void *runs;

    for (int i = 0; i < c->wanted_count; i++)
        wanted = wanted || c->wanted[i] == m->point;
    if (!wanted)
        return true;
    if (!at || at->point != m->point) {
        if (c->count == CURVES_MAX) {
            c->truncated = true;
            return false;
        }
        at = &c->list[c->count++];
        *at = (struct curve){.point = m->point, .values = strdup(m->sweep)};
        c->failed = c->failed || !at->values;
    }
    api_tally_add(&at->runs, m);
    if (!api_choice_counts(&c->choice, m))
        return true;
    runs = at->at;
    if (!grow(&runs, at->count, &at->capacity, sizeof *at->at)) {
        c->failed = true;
        return false;
    }
    at->at = runs;
    at->at[at->count++] = (struct api_curve_run){.run_id = m->run_id,
                                                 .started_us = m->started_us,
                                                 .last_step = m->step,
                                                 .last_us = m->has ? m->time_us : 0};
    return true;
}

static void point_row(void *ctx, const struct api_curve_point *p)
{
    api_curve_point_json(ctx, p);
}

/* Reads point= (repeatable) and open=. NULL: failed. */
static struct curves *curves_read(struct api_req *r)
{
    struct curves *c = calloc(1, sizeof *c);

    if (!c) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the curves");
        return NULL;
    }
    c->choice.open = api_query_flag(r, "open");
    for (;;) {
        char text[24];
        enum pd_err got = api_query_get(api_query_raw(r), "point", c->wanted_count, text, sizeof text);

        if (got == PD_ERR_NOT_FOUND)
            break;
        if (got != PD_OK || c->wanted_count == CURVES_MAX ||
            !api_parse_int(text, 0, INT64_MAX, &c->wanted[c->wanted_count++])) {
            api_fail(r, API_FAULT_MALFORMED, "at most %d points, each the number of a combination",
                     CURVES_MAX);
            break;
        }
    }
    if (api_failed(r)) {
        free(c);
        return NULL;
    }
    return c;
}

static enum pd_err curves_find(struct store *store, struct curves *c, int64_t job, const char *key,
                               struct pd_why *why)
{
    struct store_sample_query q = {
        .by = STORE_BY_POINT, .job_id = job, .to_point = INT64_MAX, .key = key, .limit = RUNS_MAX};
    enum pd_err err = store_sample_list(store, &q, curve_sample, c, why);

    return err == PD_OK && c->failed ? pd_fail(why, PD_ERR_NOMEM, "no memory for the curves") : err;
}

void api_sweep_curves(struct api_req *r)
{
    static const char *const names[] = {"key", "x", "buckets", "point", "open", NULL};
    int64_t id = api_param_id(r, 0);
    struct job_facts f = {.name = ""};
    struct api_curve_query q;
    struct pd_why why = {.text = ""};
    struct curves *c = NULL;
    struct store *store;
    struct pd_buf b;
    enum pd_err err;

    if (!id || api_query_refuse_others(r, names) || !api_curve_read(r, &q) || !(c = curves_read(r)) ||
        !(store = api_reader(r)) || !job_read(r, store, id, &f))
        goto out;
    err = curves_find(store, c, id, q.key, &why);
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    facts_json(&b, id, &f);
    api_json_kv_str(&b, "key", q.key);
    api_json_kv_str(&b, "x", api_axis_name(q.x));
    api_json_kv_bool(&b, "truncated", c->truncated);
    api_json_key(&b, "curves");
    api_json_open(&b, '[');
    for (int i = 0; err == PD_OK && i < c->count; i++) {
        const struct curve *at = &c->list[i];

        api_json_open(&b, '{');
        api_json_kv_int(&b, "point", at->point);
        api_json_kv_raw(&b, "values", at->values && *at->values ? at->values : "{}");
        api_json_key(&b, "runs");
        api_tally_json(&b, &at->runs);
        api_json_key(&b, "data");
        api_json_open(&b, '[');
        err = api_curve(store, &q, at->at, at->count, point_row, &b, &why);
        api_json_close(&b, ']');
        api_json_close(&b, '}');
    }
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
out:
    json_decref(f.sweep);
    if (c)
        curves_free(c);
}

/* ---- download ---------------------------------------------------------------------------------- */

/* The swept values of a row, one cell an axis. */
static void csv_values(struct pd_buf *b, const json_t *axes, const char *values)
{
    json_t *object = json_loads(values ? values : "{}", 0, NULL), *axis;
    size_t i;

    json_array_foreach(axes, i, axis)
    {
        const json_t *v = json_object_get(object, json_string_value(json_object_get(axis, "pointer")));
        char *text = NULL;

        if (json_is_string(v))
            api_csv_str(b, json_string_value(v));
        else if (json_is_number(v))
            api_csv_num(b, json_number_value(v), false);
        else if (v && (text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))))
            api_csv_str(b, text);
        else
            api_csv_str(b, "");
        free(text);
    }
    json_decref(object);
}

static void csv_axes(struct pd_buf *b, const json_t *axes)
{
    json_t *axis;
    size_t i;

    json_array_foreach(axes, i, axis) api_csv_str(b, json_string_value(json_object_get(axis, "pointer")));
}

static void csv_head(struct pd_buf *b, const char *key, const char *what)
{
    char text[STORE_KEY_MAX + 16];

    snprintf(text, sizeof text, "%s %s", key, what);
    api_csv_str(b, text);
}

static void table_csv(struct pd_buf *b, const struct table *t, const json_t *axes)
{
    static const char *const stats[] = {"mean", "sd", "n", "min", "max"};
    static const char *const counts[] = {"runs",   "open",      "succeeded", "diverged",
                                         "failed", "cancelled", "lost"};

    api_csv_str(b, "point");
    csv_axes(b, axes);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        api_csv_str(b, counts[i]);
    for (int k = 0; k < t->choice.key_count; k++)
        for (int i = 0; i < 5; i++)
            csv_head(b, t->choice.keys[k], stats[i]);
    api_csv_line(b);
    for (size_t i = 0; i < t->row_count; i++) {
        const struct row *row = &t->rows[i];
        const int64_t runs[] = {row->runs.total,    row->runs.open,   row->runs.succeeded,
                                row->runs.diverged, row->runs.failed, row->runs.cancelled,
                                row->runs.lost};

        api_csv_int(b, row->point);
        csv_values(b, axes, row->values);
        for (size_t k = 0; k < sizeof runs / sizeof *runs; k++)
            api_csv_int(b, runs[k]);
        for (int k = 0; k < t->choice.key_count; k++) {
            const struct api_stat *s = &row->stat[k];

            api_csv_num(b, s->mean, !s->n);
            api_csv_num(b, api_stat_sd(s), s->n < 2);
            api_csv_int(b, s->n);
            api_csv_num(b, s->min, !s->n);
            api_csv_num(b, s->max, !s->n);
        }
        api_csv_line(b);
    }
}

static void runs_csv(struct pd_buf *b, const struct table *t, const json_t *axes)
{
    api_csv_str(b, "point");
    csv_axes(b, axes);
    for (int i = 0; i < 5; i++)
        api_csv_str(b, (const char *const[]){"trial", "run", "seed", "state", "outcome"}[i]);
    for (int k = 0; k < t->choice.key_count; k++)
        api_csv_str(b, t->choice.keys[k]);
    api_csv_line(b);
    for (size_t i = 0; i < t->member_count; i++) {
        const struct member *m = &t->members[i];

        api_csv_int(b, t->rows[m->row].point);
        csv_values(b, axes, t->rows[m->row].values);
        api_csv_int(b, m->trial);
        api_csv_int(b, m->run_id);
        api_csv_int(b, m->seed);
        api_csv_str(b, job_run_state_name(m->state));
        api_csv_str(b, m->state == JOB_RUN_ENDED ? job_outcome_name(m->outcome) : "");
        for (int k = 0; k < t->choice.key_count; k++)
            api_csv_num(b, m->value[k], !m->has[k]);
        api_csv_line(b);
    }
}

struct curve_csv {
    struct pd_buf *b;
    const struct curve *curve;
    const json_t *axes;
    const char *key;
};

static void curve_csv_point(void *ctx, const struct api_curve_point *p)
{
    struct curve_csv *c = ctx;

    api_csv_int(c->b, c->curve->point);
    csv_values(c->b, c->axes, c->curve->values);
    api_csv_num(c->b, p->x, false);
    api_csv_int(c->b, p->across.n);
    api_csv_num(c->b, p->across.mean, !p->across.n);
    api_csv_num(c->b, api_stat_sd(&p->across), p->across.n < 2);
    api_csv_num(c->b, p->least, !p->across.n);
    api_csv_num(c->b, p->most, !p->across.n);
    api_csv_int(c->b, p->nonfinite);
    api_csv_str(c->b, c->key);
    api_csv_line(c->b);
}

static enum pd_err curves_csv(struct store *store, struct pd_buf *b, struct curves *c,
                              const struct api_curve_query *q, const json_t *axes, struct pd_why *why)
{
    static const char *const heads[] = {"n", "mean", "sd", "min", "max", "nonfinite", "metric"};
    enum pd_err err = PD_OK;

    api_csv_str(b, "point");
    csv_axes(b, axes);
    api_csv_str(b, api_axis_name(q->x));
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        api_csv_str(b, heads[i]);
    api_csv_line(b);
    for (int i = 0; err == PD_OK && i < c->count; i++) {
        struct curve_csv one = {.b = b, .curve = &c->list[i], .axes = axes, .key = q->key};

        err = api_curve(store, q, c->list[i].at, c->list[i].count, curve_csv_point, &one, why);
    }
    return err;
}

static void export_curves(struct api_req *r, int64_t id)
{
    struct job_facts f = {.name = ""};
    struct api_curve_query q;
    struct pd_why why = {.text = ""};
    struct curves *c = NULL;
    struct store *store;
    struct pd_buf b;
    enum pd_err err;

    if (!api_curve_read(r, &q) || !(c = curves_read(r)) || !(store = api_reader(r)) ||
        !job_read(r, store, id, &f))
        goto out;
    pd_buf_init(&b, 0);
    err = curves_find(store, c, id, q.key, &why);
    if (err == PD_OK)
        err = curves_csv(store, &b, c, &q, json_object_get(f.sweep, "axes"), &why);
    if (err == PD_OK)
        api_reply(r, 200, "text/csv; charset=utf-8", &b);
    else
        api_fail_why(r, err, &why);
    pd_buf_done(&b);
out:
    json_decref(f.sweep);
    if (c)
        curves_free(c);
}

static void export_table(struct api_req *r, int64_t id, bool runs)
{
    struct job_facts f = {.name = ""};
    struct pd_why why = {.text = ""};
    struct table *t = calloc(1, sizeof *t);
    struct store *store;
    struct pd_buf b;
    enum pd_err err;

    if (!t) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the table");
        return;
    }
    if (!api_choice_read(r, &t->choice) || !(store = api_reader(r)))
        goto out;
    err = store_begin(store, &why);
    if (err != PD_OK)
        api_fail_why(r, err, &why);
    if (err != PD_OK || !job_read(r, store, id, &f)) {
        store_end(store);
        goto out;
    }
    default_key(&t->choice, &f);
    err = table_read(store, t, id, 0, INT64_MAX, &why);
    store_end(store);
    pd_buf_init(&b, 0);
    if (runs)
        runs_csv(&b, t, json_object_get(f.sweep, "axes"));
    else
        table_csv(&b, t, json_object_get(f.sweep, "axes"));
    if (err == PD_OK)
        api_reply(r, 200, "text/csv; charset=utf-8", &b);
    else
        api_fail_why(r, err, &why);
    pd_buf_done(&b);
out:
    json_decref(f.sweep);
    table_free(t);
}

void api_sweep_export(struct api_req *r)
{
    static const char *const table_names[] = {"what", "metric", "value", "open", NULL};
    static const char *const curve_names[] = {"what", "key", "x", "buckets", "point", "open", NULL};
    int64_t id = api_param_id(r, 0);
    char what[8] = "table", name[128];
    bool curves;

    if (!id)
        return;
    (void)api_query(r, "what", what, sizeof what);
    curves = !strcmp(what, "curves");
    if (!api_failed(r) && !curves && strcmp(what, "table") != 0 && strcmp(what, "runs") != 0)
        api_fail(r, API_FAULT_MALFORMED, "what must be table, runs or curves");
    if (api_failed(r) || api_query_refuse_others(r, curves ? curve_names : table_names))
        return;
    snprintf(name, sizeof name, "attachment; filename=\"sweep-%lld-%s.csv\"", (long long)id, what);
    if (curves)
        export_curves(r, id);
    else
        export_table(r, id, !strcmp(what, "runs"));
    if (!api_failed(r))
        api_reply_header(r, "Content-Disposition", name);
}
