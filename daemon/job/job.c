/* A document as a job, and a resolved document as a configuration. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/job/internal.h"

struct job_doc {
    json_t *document;
    json_t *overrides;    /* as a tree; or NULL */
    json_t *override_map; /* borrowed from the document; or NULL */
    struct job_sweep sweep;
    int64_t schema;        /* of the document */
    struct job_env env;    /* without the roots: paths were checked when the job came */
    struct job_run *first; /* run 0: the head lives in its arena */
    struct job_head head;
};

static const struct job_env default_env = {.threads = 1, .keep_best = -1, .keep_latest = -1};

/* ---- Overrides ---- */

static enum pd_err override_one(struct job_ctx *c, const char *pointer, json_t *value)
{
    const struct job_field *f = job_field_find(pointer);
    enum pd_err err = PD_OK;
    struct pd_buf place;
    char sentence[384], parent[256];

    pd_buf_init(&place, 0);
    pd_buf_str(&place, "#/overrides");
    job_pointer_add(&place, pointer);
    if (pd_buf_err(&place) != PD_OK) {
        err = PD_ERR_NOMEM;
        goto out;
    }
    if (pointer[0] != '/') {
        job_report_error(c->report, place.data, "must be a JSON pointer such as \"/train/batch\"");
    } else if (strncmp(pointer, "/sweep", 6) == 0 || strcmp(pointer, "/overrides") == 0 ||
               strcmp(pointer, "/schema") == 0 || strcmp(pointer, "/kind") == 0) {
        job_report_error(c->report, place.data, "cannot be overridden");
    } else if (f || job_field_below(pointer)) {
        json_t *copy;
        if ((!f || f->type == JOB_T_OBJECT) && json_is_object(value)) {
            job_keys_check(c, value, pointer, place.data);
        } else if (!f) {
            job_report_error(c->report, place.data, "must be an object, not %s", job_json_kind(value));
            goto out;
        }
        copy = job_json_copy(value);
        if (!copy || !job_json_put(c->overrides, pointer, copy))
            err = PD_ERR_NOMEM;
    } else {
        const char *slash = strrchr(pointer, '/');
        snprintf(parent, sizeof parent, "%.*s", (int)(slash - pointer < 255 ? slash - pointer : 255),
                 pointer);
        job_report_error(c->report, place.data, "%s",
                         job_keys_unknown(sentence, sizeof sentence, parent, slash + 1));
    }
out:
    pd_buf_done(&place);
    return err;
}

/* Folds the map of pointers into a tree; the more precise pointer wins over one above it. */
static enum pd_err overrides_read(struct job_ctx *c)
{
    json_t *map = json_object_get(c->document, "overrides"), *value, *low, *high;
    const char *key, *keys[100];
    size_t n = 0;
    enum pd_err err;

    if (!map)
        return PD_OK;
    if (!json_is_object(map)) {
        job_report_error(c->report, "#/overrides", "must be an object, not %s", job_json_kind(map));
        return PD_OK;
    }
    if (json_object_size(map) > 100) {
        job_report_error(c->report, "#/overrides", "has %zu overrides, more than the 100 allowed",
                         json_object_size(map));
        return PD_OK;
    }
    c->override_map = map;
    c->overrides = json_object();
    if (!c->overrides)
        return PD_ERR_NOMEM;
    json_object_foreach(map, key, value)
    {
        size_t at = n++;
        while (at > 0 && strlen(keys[at - 1]) > strlen(key)) {
            keys[at] = keys[at - 1];
            at--;
        }
        keys[at] = key;
    }
    for (size_t i = 0; i < n; i++) {
        err = override_one(c, keys[i], json_object_get(map, keys[i]));
        if (err != PD_OK)
            return err;
    }
    /* Tags merge instead of replacing each other. */
    low = json_object_get(c->document, "tags");
    high = json_object_get(c->overrides, "tags");
    if (json_is_object(low) && json_is_object(high)) {
        json_t *both = job_json_copy(low);
        bool merged = both && job_json_merge(both, high) && json_object_set(c->overrides, "tags", both) == 0;
        json_decref(both);
        if (!merged)
            return PD_ERR_NOMEM;
    }
    return PD_OK;
}

/* ---- Runs ---- */

static void ctx_init(struct job_ctx *c, const struct job_doc *job, struct job_report *report)
{
    memset(c, 0, sizeof *c);
    c->env = &job->env;
    c->report = report;
    c->document = job->document;
    c->schema = job->schema;
    c->overrides = job->overrides;
    c->override_map = job->override_map;
}

/* Resolves run n; `want_json`: with the document in c->out. The caller releases c with ctx_done. */
static enum pd_err run_resolve(const struct job_doc *job, int64_t n, bool want_json,
                               struct job_report *report, struct job_ctx *c, struct job_point *point)
{
    int64_t trials = job->head.trials;

    ctx_init(c, job, report);
    memset(point, 0, sizeof *point);
    if (job->sweep.count) {
        if (!job_sweep_point(&job->sweep, n / trials, point))
            return PD_ERR_NOMEM;
        c->sweep = &job->sweep;
        c->point = point;
    }
    c->trial = n % trials;
    if (want_json) {
        c->out = json_object();
        if (!c->out)
            return PD_ERR_NOMEM;
    }
    return job_resolve(c);
}

static void ctx_done(struct job_ctx *c, struct job_point *point)
{
    if (c->sweep)
        job_point_done(c->sweep, point);
    c->run = job_run_free(c->run);
    json_decref(c->out);
    c->out = NULL;
}

/* ---- Parsing ---- */

#define MOST_FAILING_RUNS 5

#define OF_THE_JOB (-1) /* a warning about the sweep itself, which no run has */

/* Adds what a combination warns of; seen[i] counts how often warning i was met. */
static void warnings_add(struct job_report *r, const struct job_report *other, int64_t *seen)
{
    for (size_t k = 0; k < other->warning_count; k++) {
        const struct job_problem *w = &other->warnings[k];
        size_t i = 0;
        while (i < r->warning_count && (strcmp(r->warnings[i].pointer, w->pointer) != 0 ||
                                        strcmp(r->warnings[i].detail, w->detail) != 0))
            i++;
        if (i == r->warning_count && i < JOB_MAX_PROBLEMS) {
            seen[i] = 0;
            job_report_warning(r, w->pointer, "%s", w->detail);
        }
        if (i < r->warning_count)
            seen[i]++;
    }
}

/* Removes a warning unless it holds in every combination, or in every combination with the axis entry that it names: a
 * sweep reports only settings that never have an effect. */
static void warnings_filter(const struct job_doc *job, struct job_report *r, const int64_t *seen)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->warning_count; i++) {
        size_t axis, entry;
        int64_t of = job->head.points;
        if (sscanf(r->warnings[i].pointer, "#/sweep/axes/%zu/values/%zu/", &axis, &entry) == 2)
            of = job_sweep_uses(&job->sweep, of, axis, entry);
        if (seen[i] == of || seen[i] == OF_THE_JOB) {
            r->warnings[kept++] = r->warnings[i];
        } else {
            free(r->warnings[i].pointer);
            free(r->warnings[i].detail);
        }
    }
    r->warning_count = kept;
}

/* What one run computes: the digest of all that has an effect but the seed, and the seed. */
struct trajectory {
    char digest[JOB_DIGEST_SIZE];
    int64_t seed, run;
};

static int by_trajectory(const void *a, const void *b)
{
    const struct trajectory *x = a, *y = b;
    int order = strcmp(x->digest, y->digest);

    if (order == 0)
        order = (x->seed > y->seed) - (x->seed < y->seed);
    return order ? order : (x->run > y->run) - (x->run < y->run);
}

/* Puts what has no effect at its default in the resolved document. False without memory. */
static bool level_idle(struct job_ctx *c)
{
    for (size_t i = 0; i < job_field_count; i++) {
        const struct job_field *f = &job_fields[i];
        if (!f->useful || f->useful(c->run) || !job_json_at(c->out, f->pointer))
            continue;
        if (!f->def)
            job_json_forget(c->out, f->pointer);
        else if (!job_json_put(c->out, f->pointer, job_json_literal(f->def)))
            return false;
    }
    return true;
}

/* Two spellings of one formula compute the same: replaces it by the digest of its normal form, if that is not too long.
 * False without memory. */
static bool level_spelling(struct job_ctx *c)
{
    char digest[JOB_DIGEST_SIZE];
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (!json_is_string(job_json_at(c->out, "/attention/formula")))
        return true;
    err = job_formula_digest(&c->run->config, digest, &why);
    return err == PD_OK ? job_json_put(c->out, "/attention/formula", json_string(digest))
                        : err != PD_ERR_NOMEM;
}

/* Fills in `all` of the trials of one resolved combination; changes its document. */
static enum pd_err trajectories_of(struct job_ctx *c, int64_t first, int64_t trials, struct trajectory *ret)
{
    enum pd_err err;

    if (!level_idle(c))
        return PD_ERR_NOMEM;
    job_json_forget(c->out, "/train/seed");
    if (!level_spelling(c))
        return PD_ERR_NOMEM;
    err = job_tree_digest(c->out, NULL, ret->digest, NULL);
    for (int64_t t = trials - 1; t >= 0; t--) {
        ret[t] = *ret;
        ret[t].seed = c->g->train.seed + t;
        ret[t].run = first + t;
    }
    return err;
}

/* The formula of an axis' value; NULL: it has none. */
static const char *formula_of(const struct job_axis *axis, const json_t *value)
{
    if (!strcmp(axis->pointer, "/attention"))
        value = json_object_get(value, "formula");
    else if (strcmp(axis->pointer, "/attention/formula") != 0)
        return NULL;
    return json_string_value(value);
}

/* Names two entries of an axis that spell one formula differently, of two combinations that compute the same; once. */
static void warn_spelling(const struct job_sweep *s, struct job_report *report, int64_t one, int64_t other)
{
    struct job_point first, second;
    const bool both = job_sweep_point(s, one, &first);

    if (!both || !job_sweep_point(s, other, &second)) {
        report->failed = true;
        if (both)
            job_point_done(s, &first);
        return;
    }
    for (size_t k = 0; k < s->count; k++) {
        const char *a = formula_of(&s->axes[k], first.values[k]),
                   *b = formula_of(&s->axes[k], second.values[k]);
        char place[64];
        bool known = false;

        if (!a || !b || !strcmp(a, b))
            continue;
        snprintf(place, sizeof place, "#/sweep/axes/%zu/values/%zu", s->axes[k].index, second.entry[k]);
        for (size_t i = 0; i < report->warning_count; i++)
            known = known || !strcmp(report->warnings[i].pointer, place);
        if (!known)
            job_report_warning(report, place,
                               "\"%.100s\" is the same function as \"%.100s\", entry %zu of the list", b, a,
                               first.entry[k]);
    }
    job_point_done(s, &first);
    job_point_done(s, &second);
}

/* Says how many runs compute what an earlier one does. */
static void warn_repeated(const struct job_doc *job, struct job_report *report, struct trajectory *all,
                          int64_t count)
{
    int64_t repeated = 0, one = 0, other = 0;

    qsort(all, (size_t)count, sizeof *all, by_trajectory);
    for (int64_t i = 1; i < count; i++) {
        if (strcmp(all[i].digest, all[i - 1].digest) != 0 || all[i].seed != all[i - 1].seed)
            continue;
        warn_spelling(&job->sweep, report, all[i - 1].run / job->head.trials, all[i].run / job->head.trials);
        if (!repeated++ || all[i].run < other) {
            one = all[i - 1].run;
            other = all[i].run;
        }
    }
    if (repeated)
        job_report_warning(report, "#/sweep",
                           "%lld of %lld runs are duplicates: run %lld computes the same as run %lld",
                           (long long)repeated, (long long)count, (long long)other, (long long)one);
}

/* Checks the runs after the first; each combination once, since trials differ in the seed only. */
static enum pd_err check_points(struct job_doc *job, struct job_report *report)
{
    size_t first_errors = report->error_count, failing = 0;
    int64_t seen[JOB_MAX_PROBLEMS] = {0}, trials = job->head.trials;
    bool known = job_metric_known(&job->first->config, job->head.metric);
    struct trajectory *all;
    enum pd_err err = PD_OK;

    if (job->head.points < 2)
        goto done;
    all = calloc((size_t)job->head.run_count, sizeof *all);
    if (!all)
        return PD_ERR_NOMEM;
    for (int64_t p = 0; p < job->head.points && failing < MOST_FAILING_RUNS && err != PD_ERR_NOMEM; p++) {
        struct job_report one;
        struct job_ctx c;
        struct job_point point;

        job_report_init(&one);
        err = run_resolve(job, p * trials, true, &one, &c, &point);
        if (err == PD_OK) {
            known = known || job_metric_known(&c.run->config, job->head.metric);
            err = trajectories_of(&c, p * trials, trials, &all[p * trials]);
        }
        ctx_done(&c, &point);
        /* The first combination was checked with the job, in its environment. */
        for (size_t i = 0; p > 0 && i < one.error_count; i++) {
            const struct job_problem *e = &one.errors[i];
            bool repeated = false;
            for (size_t k = 0; k < first_errors && !repeated; k++)
                repeated = strcmp(report->errors[k].pointer, e->pointer) == 0;
            if (repeated)
                continue;
            if (strncmp(e->pointer, "#/sweep/axes/", 13) == 0)
                job_report_error(report, e->pointer, "%s", e->detail);
            else
                job_report_error(report, "#/sweep", "run %lld: %s: %s", (long long)(p * trials), e->pointer,
                                 e->detail);
        }
        failing += one.error_count > 0;
        warnings_add(report, &one, seen);
        for (size_t i = 0; p == 0 && i < report->warning_count; i++)
            seen[i] = seen[i] ? seen[i] : OF_THE_JOB;
        job_report_done(&one);
        if (report->failed)
            err = PD_ERR_NOMEM;
    }
    if (err != PD_ERR_NOMEM) {
        warnings_filter(job, report, seen);
        if (!report->error_count)
            warn_repeated(job, report, all, job->head.run_count);
        err = report->failed ? PD_ERR_NOMEM : PD_OK;
    }
    free(all);
done:
    if (job->head.sweep && err != PD_ERR_NOMEM && job_metric_tested(job->head.metric)) {
        job_report_error(report, "#/sweep/metric",
                         "\"%.100s\" is measured on the test part, which ranks no runs; use a validation "
                         "metric such as \"%s\"",
                         job->head.metric, job_config_best_metric(&job->first->config, &(bool){false}));
        err = report->failed ? PD_ERR_NOMEM : PD_ERR_INVALID;
    }
    if (job->head.sweep && !known && err != PD_ERR_NOMEM && !report->error_count) {
        job_metric_warn(report, &job->first->config, job->head.metric);
        err = report->failed ? PD_ERR_NOMEM : err;
    }
    if (job->head.sweep && known && err != PD_ERR_NOMEM) {
        job_metric_warn_mode(report, job->head.metric, job->head.mode);
        err = report->failed ? PD_ERR_NOMEM : err;
    }
    return err;
}

static void head_fill(struct job_doc *job, bool sweep)
{
    const struct job_run *run = job->first;

    job->head = run->head;
    job->head.kind = (enum job_kind)run->config.kind;
    job->head.name = run->config.name;
    job->head.experiment = run->config.experiment;
    job->head.resources = run->config.resources;
    job->head.sweep = sweep;
    if (!job->head.metric)
        job->head.metric = "loss/val";
    job->head.points = job_sweep_points(&job->sweep);
    job->head.run_count = job->head.points * job->head.trials;
}

/* Reports the members of the document that its kind does not have. A word that is no kind of a document is
 * reported by its row. */
static void members_check(json_t *document, struct job_report *report)
{
    enum job_kind kind = JOB_KIND_TRAIN;
    const char *word = json_string_value(json_object_get(document, "kind")), *key;
    json_t *value;

    if (word && (!job_kind_parse(word, &kind) || !job_kind_info(kind)->worker))
        return;
    json_object_foreach(document, key, value)
    {
        char place[64];

        snprintf(place, sizeof place, "#/%.60s", key);
        if (!strchr(key, '/') && (job_field_find(place + 1) || job_field_below(place + 1)) &&
            !job_kind_has(kind, key, strlen(key)))
            job_report_error(report, place, "a job of kind %s has no %s; its members are %s",
                             job_kind_info(kind)->name, key, job_kind_info(kind)->takes);
    }
}

static enum pd_err job_check(struct job_doc *job, const struct job_env *env, struct job_report *report)
{
    struct job_ctx c;
    struct job_point point;
    enum pd_err err;
    json_t *sweep = json_object_get(job->document, "sweep"),
           *trials = json_object_get(job->document, "trials");
    int64_t trial_count;
    size_t before;

    memset(&point, 0, sizeof point);
    ctx_init(&c, job, report);
    c.env = env;
    c.check_roots = env->check_roots;
    c.in_job = true;
    job_keys_check(&c, job->document, "", "#");
    members_check(job->document, report);
    err = overrides_read(&c);
    job->overrides = c.overrides;
    job->override_map = c.override_map;
    if (err != PD_OK)
        goto out;
    before = report->error_count;
    job_sweep_parse(&c, &job->sweep);
    c.lenient = report->error_count > before;
    /* The number of runs is judged before any is made. A bad number of trials is its row's affair. */
    if (json_object_get(c.overrides, "trials"))
        trials = json_object_get(c.overrides, "trials");
    trial_count = json_is_integer(trials) ? json_integer_value(trials) : 1;
    trial_count = trial_count < 1 || trial_count > 64 ? 1 : trial_count;
    if (job_sweep_points(&job->sweep) * trial_count > JOB_MAX_RUNS) {
        job_report_error(report, "#/sweep", "gives more than %d runs (combinations x trials)", JOB_MAX_RUNS);
        c.lenient = true;
    }
    if (job->sweep.count) {
        if (!job_sweep_point(&job->sweep, 0, &point)) {
            err = PD_ERR_NOMEM;
            goto out;
        }
        c.sweep = &job->sweep;
        c.point = &point;
    }
    err = c.nomem ? PD_ERR_NOMEM : job_resolve(&c);
    if (err == PD_ERR_NOMEM || report->failed) {
        err = PD_ERR_NOMEM;
        goto out;
    }
    if (!c.lenient && c.run->head.trials >= 1) {
        job->first = c.run;
        c.run = NULL;
        head_fill(job, json_is_object(sweep));
        err = check_points(job, report);
        if (err != PD_OK)
            goto out;
    }
    err = report->error_count ? PD_ERR_INVALID : PD_OK;
out:
    ctx_done(&c, &point);
    return err;
}

/* /resources/gpus: n is short for device cuda and slots n. False: it contradicts them, or there is no memory.
 * If this machine cannot have GPUs (env->no_cuda), the error is reported here, because the member that the
 * client wrote is /resources/gpus; env->no_cuda is then cleared, so that it is not reported again. */
static bool gpus_fold(json_t *doc, struct job_env *env, struct job_report *report)
{
    json_t *resources = json_object_get(doc, "resources"), *gpus = json_object_get(resources, "gpus"),
           *device = json_object_get(resources, "device"), *slots = json_object_get(resources, "slots");
    const char *word = json_string_value(device);

    if (!gpus)
        return true;
    if (!json_is_integer(gpus) || json_integer_value(gpus) < 1 || json_integer_value(gpus) > 1024)
        job_report_error(report, "#/resources/gpus", "must be an integer from 1 to 1024");
    else if (device && !(word && (!strcmp(word, "cuda") || !strcmp(word, "auto"))))
        job_report_error(report, "#/resources/gpus",
                         "implies device \"cuda\", which contradicts /resources/device");
    else if (slots && !json_equal(slots, gpus))
        job_report_error(report, "#/resources/gpus",
                         "implies that many slots, which contradicts /resources/slots");
    else {
        if (env->no_cuda)
            job_report_error(report, "#/resources/gpus", "%s", env->no_cuda);
        env->no_cuda = NULL;
        return json_object_set(resources, "slots", gpus) == 0 &&
               json_object_set_new(resources, "device", json_string("cuda")) == 0 &&
               json_object_del(resources, "gpus") == 0;
    }
    return false;
}

enum pd_err job_parse(const char *json, size_t len, const struct job_env *env, struct job_doc **ret_job,
                      struct job_report *report)
{
    struct job_doc *job = calloc(1, sizeof *job);
    struct job_formulas formulas = {.list = NULL};
    struct job_env now;
    struct pd_why why;
    json_t *schema;
    enum pd_err err;

    if (!job)
        return PD_ERR_NOMEM;
    if (!env)
        env = &default_env;
    job->env = *env;
    job->env.roots = NULL;
    job->env.root_count = 0;
    job->env.check_roots = false;
    job->env.no_cuda = NULL; /* decided now, once */
    job->schema = env->schema ? env->schema : JOB_SCHEMA;
    job->head.trials = 1;
    err = job_json_load(json, len, &job->document, &why);
    if (err == PD_OK && !json_is_object(job->document))
        err = pd_fail(&why, PD_ERR_CORRUPT, "the document must be an object, not %s",
                      job_json_kind(job->document));
    if (err != PD_OK) {
        if (err != PD_ERR_NOMEM)
            job_report_error(report, "#", "%s", why.text);
        if (report->failed)
            err = PD_ERR_NOMEM;
        goto out;
    }
    schema = json_object_get(job->document, "schema");
    if (json_is_integer(schema) && json_integer_value(schema) >= 1 &&
        json_integer_value(schema) <= JOB_SCHEMA)
        job->schema = json_integer_value(schema); /* another value is its row's affair */
    now = *env;
    if (!gpus_fold(job->document, &now, report) || !job_formulas_fold(job->document, report, &formulas)) {
        err = report->failed || !report->error_count ? PD_ERR_NOMEM : PD_ERR_INVALID;
        goto out;
    }
    err = job_check(job, &now, report);
    if (err == PD_OK) {
        *ret_job = job;
        job = NULL; /* moved to the caller */
    }
out:
    if (!job_formulas_done(&formulas, report) && err != PD_ERR_NOMEM) {
        if (err == PD_OK)
            *ret_job = job_free(*ret_job);
        err = PD_ERR_NOMEM;
    }
    job_free(job);
    return err;
}

enum pd_err job_parse_stored(const char *json, size_t len, struct job_doc **ret_job,
                             struct job_report *report)
{
    struct job_env env = default_env;

    env.schema = 1; /* which was not written into kept documents */
    env.stored = true;
    return job_parse(json, len, &env, ret_job, report);
}

struct job_doc *job_free(struct job_doc *job)
{
    if (job) {
        job_run_free(job->first);
        job_sweep_done(&job->sweep);
        json_decref(job->overrides);
        json_decref(job->document);
        free(job);
    }
    return NULL;
}

const struct job_head *job_doc_head(const struct job_doc *job)
{
    return &job->head;
}

int64_t job_run_count(const struct job_doc *job)
{
    return job->head.run_count;
}

int64_t job_run_trial(const struct job_doc *job, int64_t n)
{
    return n % job->head.trials;
}

/* ---- One run of a job ---- */

/* Resolves run n and returns the first error as a sentence. */
static enum pd_err run_take(const struct job_doc *job, int64_t n, bool want_json, struct job_ctx *c,
                            struct job_point *point, struct pd_why *why)
{
    struct job_report report;
    enum pd_err err;

    memset(c, 0, sizeof *c);
    memset(point, 0, sizeof *point);
    if (n < 0 || n >= job->head.run_count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "the job has no run %lld", (long long)n);
    job_report_init(&report);
    err = run_resolve(job, n, want_json, &report, c, point);
    if (err == PD_ERR_NOMEM)
        pd_fail(why, err, "no memory to resolve run %lld", (long long)n);
    else if (err != PD_OK && report.error_count)
        pd_fail(why, err, "%s: %s", report.errors[0].pointer, report.errors[0].detail);
    job_report_done(&report);
    return err;
}

static enum pd_err written(struct pd_buf *b, struct pd_why *why)
{
    enum pd_err err = pd_buf_err(b);

    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the document");
}

enum pd_err job_run_resolve(const struct job_doc *job, int64_t n, struct pd_buf *ret_json, struct pd_why *why)
{
    struct job_ctx c;
    struct job_point point;
    enum pd_err err = run_take(job, n, true, &c, &point, why);

    if (err == PD_OK) {
        job_json_write(c.out, ret_json);
        err = written(ret_json, why);
    }
    ctx_done(&c, &point);
    return err;
}

int64_t job_run_seed(const struct job_doc *job, int64_t n)
{
    struct job_ctx c;
    struct job_point point;
    int64_t seed = 0;

    if (run_take(job, n, false, &c, &point, NULL) == PD_OK)
        seed = c.g->train.seed;
    ctx_done(&c, &point);
    return seed;
}

enum pd_err job_run_params(const struct job_doc *job, int64_t n, struct pd_buf *ret_json, struct pd_why *why)
{
    struct job_point point;
    json_t *out;
    enum pd_err err = PD_OK;

    if (n < 0 || n >= job->head.run_count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "the job has no run %lld", (long long)n);
    out = json_object();
    memset(&point, 0, sizeof point);
    if (!out || !job_sweep_point(&job->sweep, n / job->head.trials, &point)) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the parameters of run %lld", (long long)n);
        goto out;
    }
    for (size_t i = 0; i < job->sweep.count; i++) {
        if (json_object_set(out, job->sweep.axes[i].pointer, point.values[i]) != 0) {
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the parameters of run %lld", (long long)n);
            goto out;
        }
    }
    job_json_write(out, ret_json);
    err = written(ret_json, why);
out:
    job_point_done(&job->sweep, &point);
    json_decref(out);
    return err;
}

const struct job_run *job_first(const struct job_doc *job)
{
    return job->first;
}

/* ---- The document to keep ---- */

/* Writes the value at the pointer unless the document has one. */
static bool put_missing(json_t *doc, const char *pointer, json_t *v)
{
    if (job_json_at(doc, pointer)) {
        json_decref(v);
        return true;
    }
    return job_json_put(doc, pointer, v);
}

static bool document_fold(const struct job_doc *job, json_t *doc)
{
    json_t *sweep = json_object_get(doc, "sweep"), *axes = json_object_get(sweep, "axes");
    const struct job_config *g = &job->first->config;

    json_object_del(doc, "overrides");
    if (job->overrides && !job_json_merge(doc, job->overrides))
        return false;
    /* Axes that an override removed. */
    for (size_t i = json_array_size(axes); i-- > 0;) {
        const char *p = json_string_value(json_object_get(json_array_get(axes, i), "pointer"));
        if (p && json_object_get(job->override_map, p))
            json_array_remove(axes, i);
    }
    if (sweep && json_array_size(axes) == 0)
        json_object_set_new(doc, "sweep", json_null());
    /* What came from the environment. A recipe's or preset's value is the same in any. */
    if (json_is_string(job_json_at(doc, "/resources/device")))
        json_object_del(json_object_get(doc, "resources"), "device"); /* auto */
    return put_missing(doc, "/schema", json_integer(job->schema)) &&
           put_missing(doc, "/resources/device",
                       json_string(g->resources.device == JOB_DEVICE_CUDA ? "cuda" : "cpu")) &&
           put_missing(doc, "/resources/threads", json_integer(g->resources.threads)) &&
           (!job_kind_has(job->head.kind, "train", 5) ||
            (put_missing(doc, "/train/keep/best", json_integer(g->train.keep_best)) &&
             put_missing(doc, "/train/keep/latest", json_integer(g->train.keep_latest))));
}

enum pd_err job_document(const struct job_doc *job, struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *doc = job_json_copy(job->document);
    enum pd_err err;

    if (!doc || !document_fold(job, doc)) {
        json_decref(doc);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the document");
    }
    job_json_write(doc, ret_json);
    json_decref(doc);
    err = written(ret_json, why);
    return err;
}

/* ---- Configurations ---- */

/* A document of exactly one run. */
static enum pd_err one_run(const char *json, size_t len, struct job_doc **ret_job, struct pd_why *why)
{
    struct job_env env = default_env;
    struct job_report report;
    struct job_doc *job = NULL;
    enum pd_err err;

    env.stored = true;
    job_report_init(&report);
    err = job_parse(json, len, &env, &job, &report);
    if (err == PD_ERR_NOMEM) {
        pd_fail(why, err, "no memory for the configuration");
    } else if (err != PD_OK) {
        pd_fail(why, err, "%s: %s", report.errors[0].pointer, report.errors[0].detail);
    } else if (job->head.run_count != 1) {
        err = pd_fail(why, PD_ERR_INVALID, "the document describes %lld runs, expected one",
                      (long long)job->head.run_count);
    } else {
        *ret_job = job;
        job = NULL; /* moved to the caller */
    }
    job_free(job);
    job_report_done(&report);
    return err;
}

enum pd_err job_config_load(const char *json, size_t len, struct job_config **ret_config, struct pd_why *why)
{
    struct job_doc *job;
    enum pd_err err = one_run(json, len, &job, why);

    if (err != PD_OK)
        return err;
    err = job_trajectory(job, false, job->first->config.trajectory, why);
    if (err == PD_OK)
        err = job_trajectory(job, true, job->first->config.earlier_trajectory, why);
    if (err == PD_OK) {
        *ret_config = &job->first->config;
        job->first = NULL; /* moved to the caller */
    }
    job_free(job);
    return err;
}

enum pd_err job_config_complete(const char *json, size_t len, struct pd_buf *ret_json, struct pd_why *why)
{
    struct job_doc *job;
    enum pd_err err = one_run(json, len, &job, why);

    if (err != PD_OK)
        return err;
    err = job_run_resolve(job, 0, ret_json, why);
    job_free(job);
    return err;
}

struct job_config *job_config_free(struct job_config *config)
{
    if (config)
        job_run_free(config->owner);
    return NULL;
}
