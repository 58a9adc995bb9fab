/* A document as a job, and a resolved document as a configuration. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/spec/internal.h"

struct spec_job {
    json_t *document;
    json_t *overrides;    /* as a tree; or NULL */
    json_t *override_map; /* borrowed from the document; or NULL */
    struct spec_sweep sweep;
    int64_t schema;         /* of the document */
    struct spec_env env;    /* without the roots: paths were checked when the job came */
    struct spec_run *first; /* run 0: the head lives in its arena */
    struct spec_head head;
};

static const struct spec_env plain_env = {.threads = 1, .keep_best = -1, .keep_latest = -1};

/* ---- Overrides ---- */

static enum pd_err override_one(struct spec_ctx *c, const char *pointer, json_t *value)
{
    const struct spec_field *f = spec_field_find(pointer);
    enum pd_err err = PD_OK;
    struct pd_buf place;
    char said[384], parent[256];

    pd_buf_init(&place, 0);
    pd_buf_str(&place, "#/overrides");
    spec_pointer_add(&place, pointer);
    if (pd_buf_err(&place) != PD_OK) {
        err = PD_ERR_NOMEM;
        goto out;
    }
    if (pointer[0] != '/') {
        spec_report_error(c->report, place.data, "must be a JSON pointer such as \"/train/batch\"");
    } else if (strncmp(pointer, "/sweep", 6) == 0 || strcmp(pointer, "/overrides") == 0 ||
               strcmp(pointer, "/schema") == 0) {
        spec_report_error(c->report, place.data, "cannot be overridden");
    } else if (f || spec_field_below(pointer)) {
        json_t *copy;
        if ((!f || f->type == SPEC_T_OBJECT) && json_is_object(value)) {
            spec_keys_check(c, value, pointer, place.data);
        } else if (!f) {
            spec_report_error(c->report, place.data, "must be an object, not %s", spec_json_kind(value));
            goto out;
        }
        copy = spec_json_copy(value);
        if (!copy || !spec_json_put(c->overrides, pointer, copy))
            err = PD_ERR_NOMEM;
    } else {
        const char *slash = strrchr(pointer, '/');
        snprintf(parent, sizeof parent, "%.*s", (int)(slash - pointer < 255 ? slash - pointer : 255),
                 pointer);
        spec_report_error(c->report, place.data, "%s",
                          spec_keys_unknown(said, sizeof said, parent, slash + 1));
    }
out:
    pd_buf_done(&place);
    return err;
}

/* Folds the map of pointers into a tree; the more precise pointer wins over one above it. */
static enum pd_err overrides_read(struct spec_ctx *c)
{
    json_t *map = json_object_get(c->document, "overrides"), *value, *low, *high;
    const char *key, *keys[100];
    size_t n = 0;
    enum pd_err err;

    if (!map)
        return PD_OK;
    if (!json_is_object(map)) {
        spec_report_error(c->report, "#/overrides", "must be an object, not %s", spec_json_kind(map));
        return PD_OK;
    }
    if (json_object_size(map) > 100) {
        spec_report_error(c->report, "#/overrides", "at most 100 overrides, and there are %zu",
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
        json_t *both = spec_json_copy(low);
        bool merged = both && spec_json_merge(both, high) && json_object_set(c->overrides, "tags", both) == 0;
        json_decref(both);
        if (!merged)
            return PD_ERR_NOMEM;
    }
    return PD_OK;
}

/* ---- Runs ---- */

static void ctx_init(struct spec_ctx *c, const struct spec_job *job, struct spec_report *report)
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
static enum pd_err run_resolve(const struct spec_job *job, int64_t n, bool want_json,
                               struct spec_report *report, struct spec_ctx *c, struct spec_point *point)
{
    int64_t trials = job->head.trials;

    ctx_init(c, job, report);
    memset(point, 0, sizeof *point);
    if (job->sweep.count) {
        if (!spec_sweep_point(&job->sweep, n / trials, point))
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
    return spec_resolve(c);
}

static void ctx_done(struct spec_ctx *c, struct spec_point *point)
{
    if (c->sweep)
        spec_point_done(c->sweep, point);
    c->run = spec_run_free(c->run);
    json_decref(c->out);
    c->out = NULL;
}

/* ---- Parsing ---- */

#define MOST_FAILING_RUNS 5

#define OF_THE_JOB (-1) /* a warning about the sweep itself, which no run has */

/* Adds what a combination warns of; seen[i] counts how often warning i was met. */
static void warnings_add(struct spec_report *r, const struct spec_report *other, int64_t *seen)
{
    for (size_t k = 0; k < other->warning_count; k++) {
        const struct spec_problem *w = &other->warnings[k];
        size_t i = 0;
        while (i < r->warning_count && (strcmp(r->warnings[i].pointer, w->pointer) != 0 ||
                                        strcmp(r->warnings[i].detail, w->detail) != 0))
            i++;
        if (i == r->warning_count && i < SPEC_MAX_PROBLEMS) {
            seen[i] = 0;
            spec_report_warning(r, w->pointer, "%s", w->detail);
        }
        if (i < r->warning_count)
            seen[i]++;
    }
}

/* Keeps of the warnings those that hold in every combination, or in every one with the entry of an axis
 * that they are about: in a sweep only what never has an effect is worth a word. */
static void warnings_keep(const struct spec_job *job, struct spec_report *r, const int64_t *seen)
{
    size_t kept = 0;

    for (size_t i = 0; i < r->warning_count; i++) {
        size_t axis, entry;
        int64_t of = job->head.points;
        if (sscanf(r->warnings[i].pointer, "#/sweep/axes/%zu/values/%zu/", &axis, &entry) == 2)
            of = spec_sweep_uses(&job->sweep, of, axis, entry);
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
struct course {
    char digest[SPEC_DIGEST_SIZE];
    int64_t seed, run;
};

static int by_course(const void *a, const void *b)
{
    const struct course *x = a, *y = b;
    int order = strcmp(x->digest, y->digest);

    if (order == 0)
        order = (x->seed > y->seed) - (x->seed < y->seed);
    return order ? order : (x->run > y->run) - (x->run < y->run);
}

static void forget(json_t *root, const char *pointer);
static enum pd_err tree_digest(const json_t *v, const char *facts, char out[SPEC_DIGEST_SIZE],
                               struct pd_why *why);

/* Puts what has no effect at its default in the resolved document. False without memory. */
static bool level_idle(struct spec_ctx *c)
{
    for (size_t i = 0; i < spec_field_count; i++) {
        const struct spec_field *f = &spec_fields[i];
        if (!f->useful || f->useful(c->run) || !spec_json_at(c->out, f->pointer))
            continue;
        if (!f->def)
            forget(c->out, f->pointer);
        else if (!spec_json_put(c->out, f->pointer, spec_json_literal(f->def)))
            return false;
    }
    return true;
}

/* Fills in the courses of the trials of one resolved combination; changes its document. */
static enum pd_err courses_of(struct spec_ctx *c, int64_t first, int64_t trials, struct course *ret)
{
    enum pd_err err;

    if (!level_idle(c))
        return PD_ERR_NOMEM;
    forget(c->out, "/train/seed");
    err = tree_digest(c->out, NULL, ret->digest, NULL);
    for (int64_t t = trials - 1; t >= 0; t--) {
        ret[t] = *ret;
        ret[t].seed = c->g->train.seed + t;
        ret[t].run = first + t;
    }
    return err;
}

/* Says how many runs compute what an earlier one does. */
static void warn_repeated(struct spec_report *report, struct course *courses, int64_t count)
{
    int64_t repeated = 0, one = 0, other = 0;

    qsort(courses, (size_t)count, sizeof *courses, by_course);
    for (int64_t i = 1; i < count; i++) {
        if (strcmp(courses[i].digest, courses[i - 1].digest) != 0 || courses[i].seed != courses[i - 1].seed)
            continue;
        if (!repeated++ || courses[i].run < other) {
            one = courses[i - 1].run;
            other = courses[i].run;
        }
    }
    if (repeated)
        spec_report_warning(report, "#/sweep",
                            "%lld of %lld runs repeat another one: run %lld computes the same as run %lld",
                            (long long)repeated, (long long)count, (long long)other, (long long)one);
}

/* Checks the runs after the first; each combination once, since trials differ in the seed only. */
static enum pd_err check_points(struct spec_job *job, struct spec_report *report)
{
    size_t first_errors = report->error_count, failing = 0;
    int64_t seen[SPEC_MAX_PROBLEMS] = {0}, trials = job->head.trials;
    bool known = spec_metric_known(&job->first->config, job->head.metric);
    struct course *courses;
    enum pd_err err = PD_OK;

    if (job->head.points < 2)
        goto done;
    courses = calloc((size_t)job->head.run_count, sizeof *courses);
    if (!courses)
        return PD_ERR_NOMEM;
    for (int64_t p = 0; p < job->head.points && failing < MOST_FAILING_RUNS && err != PD_ERR_NOMEM; p++) {
        struct spec_report one;
        struct spec_ctx c;
        struct spec_point point;

        spec_report_init(&one);
        err = run_resolve(job, p * trials, true, &one, &c, &point);
        if (err == PD_OK) {
            known = known || spec_metric_known(&c.run->config, job->head.metric);
            err = courses_of(&c, p * trials, trials, &courses[p * trials]);
        }
        ctx_done(&c, &point);
        /* The first combination was checked with the job, in its environment. */
        for (size_t i = 0; p > 0 && i < one.error_count; i++) {
            const struct spec_problem *e = &one.errors[i];
            bool told = false;
            for (size_t k = 0; k < first_errors && !told; k++)
                told = strcmp(report->errors[k].pointer, e->pointer) == 0;
            if (told)
                continue;
            if (strncmp(e->pointer, "#/sweep/axes/", 13) == 0)
                spec_report_error(report, e->pointer, "%s", e->detail);
            else
                spec_report_error(report, "#/sweep", "run %lld: %s: %s", (long long)(p * trials), e->pointer,
                                  e->detail);
        }
        failing += one.error_count > 0;
        warnings_add(report, &one, seen);
        for (size_t i = 0; p == 0 && i < report->warning_count; i++)
            seen[i] = seen[i] ? seen[i] : OF_THE_JOB;
        spec_report_done(&one);
        if (report->failed)
            err = PD_ERR_NOMEM;
    }
    if (err != PD_ERR_NOMEM) {
        warnings_keep(job, report, seen);
        if (!report->error_count)
            warn_repeated(report, courses, job->head.run_count);
        err = report->failed ? PD_ERR_NOMEM : PD_OK;
    }
    free(courses);
done:
    if (job->head.sweep && !known && err != PD_ERR_NOMEM && !report->error_count) {
        spec_metric_warn(report, &job->first->config, job->head.metric);
        err = report->failed ? PD_ERR_NOMEM : err;
    }
    return err;
}

static void head_fill(struct spec_job *job, bool sweep)
{
    const struct spec_run *run = job->first;

    job->head = run->head;
    job->head.name = run->config.name;
    job->head.experiment = run->config.experiment;
    job->head.resources = run->config.resources;
    job->head.sweep = sweep;
    if (!job->head.metric)
        job->head.metric = "loss/val";
    job->head.points = spec_sweep_points(&job->sweep);
    job->head.run_count = job->head.points * job->head.trials;
}

static enum pd_err job_check(struct spec_job *job, const struct spec_env *env, struct spec_report *report)
{
    struct spec_ctx c;
    struct spec_point point;
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
    spec_keys_check(&c, job->document, "", "#");
    err = overrides_read(&c);
    job->overrides = c.overrides;
    job->override_map = c.override_map;
    if (err != PD_OK)
        goto out;
    before = report->error_count;
    spec_sweep_parse(&c, &job->sweep);
    c.lenient = report->error_count > before;
    /* The number of runs is judged before any is made. A bad number of trials is its row's affair. */
    if (json_object_get(c.overrides, "trials"))
        trials = json_object_get(c.overrides, "trials");
    trial_count = json_is_integer(trials) ? json_integer_value(trials) : 1;
    trial_count = trial_count < 1 || trial_count > 64 ? 1 : trial_count;
    if (spec_sweep_points(&job->sweep) * trial_count > SPEC_MAX_RUNS) {
        spec_report_error(report, "#/sweep", "makes more than %d runs (combinations x trials)",
                          SPEC_MAX_RUNS);
        c.lenient = true;
    }
    if (job->sweep.count) {
        if (!spec_sweep_point(&job->sweep, 0, &point)) {
            err = PD_ERR_NOMEM;
            goto out;
        }
        c.sweep = &job->sweep;
        c.point = &point;
    }
    err = c.nomem ? PD_ERR_NOMEM : spec_resolve(&c);
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
 * Where there can be none, that is said here, of the word that was written, and env->no_cuda is taken as
 * said. */
static bool gpus_fold(json_t *doc, struct spec_env *env, struct spec_report *report)
{
    json_t *resources = json_object_get(doc, "resources"), *gpus = json_object_get(resources, "gpus"),
           *device = json_object_get(resources, "device"), *slots = json_object_get(resources, "slots");
    const char *word = json_string_value(device);

    if (!gpus)
        return true;
    if (!json_is_integer(gpus) || json_integer_value(gpus) < 1 || json_integer_value(gpus) > 1024)
        spec_report_error(report, "#/resources/gpus", "must be an integer from 1 to 1024");
    else if (device && !(word && (!strcmp(word, "cuda") || !strcmp(word, "auto"))))
        spec_report_error(report, "#/resources/gpus",
                          "means device \"cuda\", which /resources/device contradicts");
    else if (slots && !json_equal(slots, gpus))
        spec_report_error(report, "#/resources/gpus",
                          "means so many slots, which /resources/slots contradicts");
    else {
        if (env->no_cuda)
            spec_report_error(report, "#/resources/gpus", "%s", env->no_cuda);
        env->no_cuda = NULL;
        return json_object_set(resources, "slots", gpus) == 0 &&
               json_object_set_new(resources, "device", json_string("cuda")) == 0 &&
               json_object_del(resources, "gpus") == 0;
    }
    return false;
}

enum pd_err spec_job_parse(const char *json, size_t len, const struct spec_env *env,
                           struct spec_job **ret_job, struct spec_report *report)
{
    struct spec_job *job = calloc(1, sizeof *job);
    struct spec_env now;
    struct pd_why why;
    json_t *schema;
    enum pd_err err;

    if (!job)
        return PD_ERR_NOMEM;
    if (!env)
        env = &plain_env;
    job->env = *env;
    job->env.roots = NULL;
    job->env.root_count = 0;
    job->env.check_roots = false;
    job->env.no_cuda = NULL; /* decided now, once */
    job->schema = env->schema ? env->schema : SPEC_SCHEMA;
    job->head.trials = 1;
    err = spec_json_load(json, len, &job->document, &why);
    if (err == PD_OK && !json_is_object(job->document))
        err = pd_fail(&why, PD_ERR_CORRUPT, "the document must be an object, not %s",
                      spec_json_kind(job->document));
    if (err != PD_OK) {
        if (err != PD_ERR_NOMEM)
            spec_report_error(report, "#", "%s", why.text);
        if (report->failed)
            err = PD_ERR_NOMEM;
        goto out;
    }
    schema = json_object_get(job->document, "schema");
    if (json_is_integer(schema) && json_integer_value(schema) >= 1 &&
        json_integer_value(schema) <= SPEC_SCHEMA)
        job->schema = json_integer_value(schema); /* another value is its row's affair */
    now = *env;
    if (!gpus_fold(job->document, &now, report)) {
        err = report->failed || !report->error_count ? PD_ERR_NOMEM : PD_ERR_INVALID;
        goto out;
    }
    err = job_check(job, &now, report);
    if (err == PD_OK) {
        *ret_job = job;
        job = NULL; /* moved to the caller */
    }
out:
    spec_job_free(job);
    return err;
}

enum pd_err spec_job_parse_kept(const char *json, size_t len, struct spec_job **ret_job,
                                struct spec_report *report)
{
    struct spec_env env = plain_env;

    env.schema = 1; /* which was not written into kept documents */
    return spec_job_parse(json, len, &env, ret_job, report);
}

struct spec_job *spec_job_free(struct spec_job *job)
{
    if (job) {
        spec_run_free(job->first);
        spec_sweep_done(&job->sweep);
        json_decref(job->overrides);
        json_decref(job->document);
        free(job);
    }
    return NULL;
}

const struct spec_head *spec_job_head(const struct spec_job *job)
{
    return &job->head;
}

int64_t spec_job_run_count(const struct spec_job *job)
{
    return job->head.run_count;
}

int64_t spec_job_run_trial(const struct spec_job *job, int64_t n)
{
    return n % job->head.trials;
}

/* ---- One run of a job ---- */

/* Resolves run n and hands out the first error in words. */
static enum pd_err run_take(const struct spec_job *job, int64_t n, bool want_json, struct spec_ctx *c,
                            struct spec_point *point, struct pd_why *why)
{
    struct spec_report report;
    enum pd_err err;

    memset(c, 0, sizeof *c);
    memset(point, 0, sizeof *point);
    if (n < 0 || n >= job->head.run_count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "the job has no run %lld", (long long)n);
    spec_report_init(&report);
    err = run_resolve(job, n, want_json, &report, c, point);
    if (err == PD_ERR_NOMEM)
        pd_fail(why, err, "no memory to resolve run %lld", (long long)n);
    else if (err != PD_OK && report.error_count)
        pd_fail(why, err, "%s: %s", report.errors[0].pointer, report.errors[0].detail);
    spec_report_done(&report);
    return err;
}

static enum pd_err written(struct pd_buf *b, struct pd_why *why)
{
    enum pd_err err = pd_buf_err(b);

    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the document");
}

enum pd_err spec_job_run_resolve(const struct spec_job *job, int64_t n, struct pd_buf *ret_json,
                                 struct pd_why *why)
{
    struct spec_ctx c;
    struct spec_point point;
    enum pd_err err = run_take(job, n, true, &c, &point, why);

    if (err == PD_OK) {
        spec_json_write(c.out, ret_json);
        err = written(ret_json, why);
    }
    ctx_done(&c, &point);
    return err;
}

int64_t spec_job_run_seed(const struct spec_job *job, int64_t n)
{
    struct spec_ctx c;
    struct spec_point point;
    int64_t seed = 0;

    if (run_take(job, n, false, &c, &point, NULL) == PD_OK)
        seed = c.g->train.seed;
    ctx_done(&c, &point);
    return seed;
}

enum pd_err spec_job_run_config(const struct spec_job *job, int64_t n, struct spec_config **ret_config,
                                struct pd_why *why)
{
    struct spec_ctx c;
    struct spec_point point;
    enum pd_err err = run_take(job, n, false, &c, &point, why);

    if (err == PD_OK) {
        *ret_config = c.g;
        c.run = NULL; /* moved to the caller */
    }
    ctx_done(&c, &point);
    return err;
}

enum pd_err spec_job_run_params(const struct spec_job *job, int64_t n, struct pd_buf *ret_json,
                                struct pd_why *why)
{
    struct spec_point point;
    json_t *out;
    enum pd_err err = PD_OK;

    if (n < 0 || n >= job->head.run_count)
        return pd_fail(why, PD_ERR_NOT_FOUND, "the job has no run %lld", (long long)n);
    out = json_object();
    memset(&point, 0, sizeof point);
    if (!out || !spec_sweep_point(&job->sweep, n / job->head.trials, &point)) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the parameters of run %lld", (long long)n);
        goto out;
    }
    for (size_t i = 0; i < job->sweep.count; i++) {
        if (json_object_set(out, job->sweep.axes[i].pointer, point.values[i]) != 0) {
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the parameters of run %lld", (long long)n);
            goto out;
        }
    }
    spec_json_write(out, ret_json);
    err = written(ret_json, why);
out:
    spec_point_done(&job->sweep, &point);
    json_decref(out);
    return err;
}

/* ---- The document to keep ---- */

/* Writes the value at the pointer unless the document has one. */
static bool put_missing(json_t *doc, const char *pointer, json_t *v)
{
    if (spec_json_at(doc, pointer)) {
        json_decref(v);
        return true;
    }
    return spec_json_put(doc, pointer, v);
}

static bool document_fold(const struct spec_job *job, json_t *doc)
{
    json_t *sweep = json_object_get(doc, "sweep"), *axes = json_object_get(sweep, "axes");
    const struct spec_config *g = &job->first->config;

    json_object_del(doc, "overrides");
    if (job->overrides && !spec_json_merge(doc, job->overrides))
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
    if (json_is_string(spec_json_at(doc, "/resources/device")))
        json_object_del(json_object_get(doc, "resources"), "device"); /* auto */
    return put_missing(doc, "/schema", json_integer(job->schema)) &&
           put_missing(doc, "/resources/device",
                       json_string(g->resources.device == SPEC_DEVICE_CUDA ? "cuda" : "cpu")) &&
           put_missing(doc, "/resources/threads", json_integer(g->resources.threads)) &&
           put_missing(doc, "/train/keep/best", json_integer(g->train.keep_best)) &&
           put_missing(doc, "/train/keep/latest", json_integer(g->train.keep_latest));
}

enum pd_err spec_job_document(const struct spec_job *job, struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *doc = spec_json_copy(job->document);
    enum pd_err err;

    if (!doc || !document_fold(job, doc)) {
        json_decref(doc);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the document");
    }
    spec_json_write(doc, ret_json);
    json_decref(doc);
    err = written(ret_json, why);
    return err;
}

/* ---- Configurations ---- */

/* A document of exactly one run. */
static enum pd_err one_run(const char *json, size_t len, struct spec_job **ret_job, struct pd_why *why)
{
    struct spec_report report;
    struct spec_job *job = NULL;
    enum pd_err err;

    spec_report_init(&report);
    err = spec_job_parse(json, len, NULL, &job, &report);
    if (err == PD_ERR_NOMEM) {
        pd_fail(why, err, "no memory for the configuration");
    } else if (err != PD_OK) {
        pd_fail(why, err, "%s: %s", report.errors[0].pointer, report.errors[0].detail);
    } else if (job->head.run_count != 1) {
        err = pd_fail(why, PD_ERR_INVALID, "the document describes %lld runs, and one is wanted",
                      (long long)job->head.run_count);
    } else {
        *ret_job = job;
        job = NULL; /* moved to the caller */
    }
    spec_job_free(job);
    spec_report_done(&report);
    return err;
}

enum pd_err spec_config_load(const char *json, size_t len, struct spec_config **ret_config,
                             struct pd_why *why)
{
    struct spec_job *job;
    enum pd_err err = one_run(json, len, &job, why);

    if (err != PD_OK)
        return err;
    *ret_config = &job->first->config;
    job->first = NULL; /* moved to the caller */
    spec_job_free(job);
    return PD_OK;
}

enum pd_err spec_config_complete(const char *json, size_t len, struct pd_buf *ret_json, struct pd_why *why)
{
    struct spec_job *job;
    enum pd_err err = one_run(json, len, &job, why);

    if (err != PD_OK)
        return err;
    err = spec_job_run_resolve(job, 0, ret_json, why);
    spec_job_free(job);
    return err;
}

struct spec_config *spec_config_free(struct spec_config *config)
{
    if (config)
        spec_run_free(config->owner);
    return NULL;
}

/* ---- Digests ---- */

static enum pd_err tree_digest(const json_t *v, const char *facts, char out[SPEC_DIGEST_SIZE],
                               struct pd_why *why)
{
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    spec_json_write(v, &b);
    if (facts)
        pd_buf_printf(&b, "\n%s", facts);
    err = written(&b, why);
    if (err == PD_OK)
        digest_sha256_hex(b.data, b.len, out);
    pd_buf_done(&b);
    return err;
}

enum pd_err spec_config_digest(const char *json, size_t len, char out[SPEC_DIGEST_SIZE], struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = spec_json_load(json, len, &v, why);

    if (err == PD_OK)
        err = tree_digest(v, NULL, out, why);
    json_decref(v);
    return err;
}

/* Takes the key at the pointer out of its object. */
static void forget(json_t *root, const char *pointer)
{
    const char *slash = strrchr(pointer, '/');
    char parent[128];

    snprintf(parent, sizeof parent, "%.*s", (int)(slash - pointer), pointer);
    json_object_del(spec_json_at(root, parent), slash + 1);
}

enum pd_err spec_plan_digest(const char *json, size_t len, const char *facts, char out[SPEC_DIGEST_SIZE],
                             struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = spec_json_load(json, len, &v, why);

    if (err == PD_OK && !json_is_object(v))
        err = pd_fail(why, PD_ERR_CORRUPT, "the document must be an object, not %s", spec_json_kind(v));
    if (err == PD_OK) {
        for (size_t i = 0; i < spec_field_count; i++) {
            if (spec_fields[i].flags & SPEC_F_NOPLAN)
                forget(v, spec_fields[i].pointer);
        }
        err = tree_digest(v, facts ? facts : "", out, why);
    }
    json_decref(v);
    return err;
}
