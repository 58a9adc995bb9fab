/* A document whose kind works with a checkpoint, made complete: what is computed is that of the checkpoint's
 * run.
 *
 *   {"kind", "model" or "run" and "checkpoint", "split", "data", ...}
 *      + the run's resolved document + where the file is
 *      = {"kind", "evaluate": {..}, "model": {..}, "attention": {..}, "norm": {..}, "train": {..}, "data", ..}
 *
 * The complete form is taken as well, so that what a run was resolved to can be sent again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

/* Of the data, what a document may say: which samples. The rest is how they reach the network. */
#define SAMPLES "dataset, path, split, split_seed, eval"

/* The document, if its kind names a checkpoint; NULL otherwise, and without memory. */
static json_t *load(const char *json, size_t len, enum job_kind *ret_kind)
{
    json_t *doc = NULL;
    const char *word;

    if (job_json_load(json, len, &doc, NULL) != PD_OK)
        return NULL;
    word = json_string_value(json_object_get(doc, "kind"));
    if (word && job_kind_parse(word, ret_kind) && job_kind_info(*ret_kind)->inherits)
        return doc;
    json_decref(doc);
    return NULL;
}

static bool digits(const char *text)
{
    return text && *text && strlen(text) <= 18 && strspn(text, "0123456789") == strlen(text);
}

/* A run's id or a step, as a text or a number; -1: neither. */
static int64_t number_of(const json_t *v)
{
    const char *text = json_string_value(v);

    if (text)
        return digits(text) ? strtoll(text, NULL, 10) : -1;
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static void want_checkpoint(const json_t *v, struct job_wanted *w, struct job_report *report)
{
    const char *text = json_string_value(v);

    if (!v || (text && (!strcmp(text, "best") || !strcmp(text, "last"))))
        snprintf(w->checkpoint, sizeof w->checkpoint, "%s", text ? text : "best");
    else if (number_of(v) >= 0)
        snprintf(w->checkpoint, sizeof w->checkpoint, "%lld", (long long)number_of(v));
    else
        job_report_error(report, "#/checkpoint", "must be best, last, or the step of a checkpoint");
}

/* Absent, or a value of the row that it becomes. */
static bool is_split(const json_t *v)
{
    const struct job_names *names = job_field_find("/evaluate/split")->names;

    for (unsigned i = 0; json_is_string(v) && i < names->count; i++)
        if (!strcmp(names->names[i], json_string_value(v)))
            return true;
    return !v;
}

static void want_short(json_t *doc, struct job_wanted *w, struct job_report *report)
{
    const json_t *model = json_object_get(doc, "model"), *run = json_object_get(doc, "run"),
                 *checkpoint = json_object_get(doc, "checkpoint");
    const char *name = json_string_value(model);

    w->run = number_of(run);
    if (!is_split(json_object_get(doc, "split")))
        job_report_error(report, "#/split", "must be test, val or train");
    if (model && run)
        job_report_error(report, "#/run", "set this or model, not both");
    else if (!model && !run)
        job_report_error(report, "#/model",
                         "is needed: a version of a model, such as \"mnist:3\", or run with checkpoint");
    else if (model && checkpoint)
        job_report_error(report, "#/checkpoint", "requires run; a model version is a single checkpoint");
    else if (model && (!name || !*name || strlen(name) >= sizeof w->model))
        job_report_error(report, "#/model",
                         "must be a version of a model, such as \"mnist:3\", \"mnist\" or \"mnist:prod\"");
    else if (run && w->run < 1)
        job_report_error(report, "#/run", "must be the id of a run");
    else if (model)
        snprintf(w->model, sizeof w->model, "%s", name);
    else
        want_checkpoint(checkpoint, w, report);
}

/* Of a document that is complete: the very file. */
static void want_complete(json_t *named, struct job_wanted *w, struct job_report *report)
{
    const char *sha256 = json_string_value(json_object_get(named, "sha256")),
               *model = json_string_value(json_object_get(named, "model"));
    int64_t step = number_of(json_object_get(named, "step"));

    w->run = number_of(json_object_get(named, "run"));
    if (w->run < (model ? 0 : 1) || step < 0 || (model && strlen(model) >= sizeof w->model) || !sha256 ||
        strlen(sha256) + 1 != sizeof w->sha256)
        job_report_error(report, "#/evaluate",
                         "may only come from a resolved document; name model or run instead");
    else {
        snprintf(w->model, sizeof w->model, "%s", model ? model : "");
        snprintf(w->checkpoint, sizeof w->checkpoint, "%lld", (long long)step);
        memcpy(w->sha256, sha256, sizeof w->sha256);
    }
}

/* ---- the weights that training begins with ---- */

/* The member train.start, if the document trains and has one; *ret_doc is the caller's either way. */
static json_t *start_of(const char *json, size_t len, json_t **ret_doc)
{
    const char *kind;
    json_t *start;

    *ret_doc = NULL;
    if (job_json_load(json, len, ret_doc, NULL) != PD_OK)
        return NULL;
    kind = json_string_value(json_object_get(*ret_doc, "kind"));
    start = json_object_get(json_object_get(*ret_doc, "train"), "start");
    return json_is_object(start) && (!kind || !strcmp(kind, "train")) ? start : NULL;
}

enum pd_err job_start_wanted(const char *json, size_t len, struct job_wanted *ret, struct job_report *report)
{
    static const char at[] = "#/train/start";
    json_t *doc, *start = start_of(json, len, &doc), *model = json_object_get(start, "model"),
                 *run = json_object_get(start, "run"), *checkpoint = json_object_get(start, "checkpoint");
    const char *name = json_string_value(model), *which = json_string_value(checkpoint),
               *sha256 = json_string_value(json_object_get(start, "sha256"));
    size_t before = report->error_count;

    memset(ret, 0, sizeof *ret);
    ret->present = start != NULL;
    ret->run = number_of(run);
    if (start && sha256 && strlen(sha256) + 1 == sizeof ret->sha256) { /* complete: the very file */
        memcpy(ret->sha256, sha256, sizeof ret->sha256);
        snprintf(ret->model, sizeof ret->model, "%s", name && strlen(name) < sizeof ret->model ? name : "");
        snprintf(ret->checkpoint, sizeof ret->checkpoint, "%lld",
                 (long long)number_of(json_object_get(start, "step")));
        if (!ret->model[0] && ret->run < 1)
            job_report_error(report, at, "may only come from a resolved document; name model or run instead");
    } else if (start && (!model || json_is_null(model)) == (!run || json_is_null(run))) {
        job_report_error(report, at, "needs either model, such as \"mnist:3\", or run with checkpoint");
    } else if (start && name && *name && strlen(name) < sizeof ret->model && !checkpoint) {
        snprintf(ret->model, sizeof ret->model, "%s", name);
    } else if (start && model && !json_is_null(model)) {
        job_report_error(report, at,
                         "model must be a version of a model, such as \"mnist:3\", without checkpoint");
    } else if (start && ret->run < 1) {
        job_report_error(report, "#/train/start/run", "must be the id of a run");
    } else if (start && (!checkpoint || (which && (!strcmp(which, "best") || !strcmp(which, "last"))))) {
        snprintf(ret->checkpoint, sizeof ret->checkpoint, "%s", which ? which : "best");
    } else if (start && number_of(checkpoint) >= 0) {
        snprintf(ret->checkpoint, sizeof ret->checkpoint, "%lld", (long long)number_of(checkpoint));
    } else if (start) {
        job_report_error(report, "#/train/start/checkpoint",
                         "must be best, last, or the step of a checkpoint");
    }
    json_decref(doc);
    return report->failed ? PD_ERR_NOMEM : report->error_count > before ? PD_ERR_INVALID : PD_OK;
}

/* Of a document without a network: that of the file. */
static bool take_network(json_t *doc, const char *document, struct job_report *report)
{
    static const char *const sections[] = {"model", "attention", "norm"};
    struct pd_buf whole;
    json_t *from = NULL, *copy;
    struct pd_why why = {""};
    bool ok = true;
    enum pd_err err;

    if (json_object_get(doc, "model") || json_object_get(doc, "recipe") || json_object_get(doc, "template"))
        return true;
    if (!document[0]) {
        job_report_error(report, "#/model", "is needed: the file does not describe its network");
        return true;
    }
    pd_buf_init(&whole, 0);
    err = job_config_complete(document, strlen(document), &whole, &why);
    if (err == PD_ERR_INVALID)
        job_report_error(report, "#/model", "is needed: this version does not accept the file's network: %s",
                         why.text);
    ok =
        err == PD_ERR_INVALID || (err == PD_OK && job_json_load(whole.data, whole.len, &from, NULL) == PD_OK);
    for (size_t i = 0; from && ok && i < sizeof sections / sizeof *sections; i++) {
        json_t *v = json_object_get(from, sections[i]);

        if (!v || json_object_get(doc, sections[i]))
            continue;
        copy = job_json_copy(v);
        ok = copy && json_object_set_new(doc, sections[i], copy) == 0;
    }
    json_decref(from);
    pd_buf_done(&whole);
    return ok;
}

enum pd_err job_start_fold(const char *json, size_t len, const struct job_found *found,
                           struct pd_buf *ret_json, struct job_report *report)
{
    json_t *doc, *start = start_of(json, len, &doc);
    size_t before = report->error_count;
    char run[24];
    bool ok = start != NULL;

    snprintf(run, sizeof run, "%lld", (long long)found->run);
    if (ok)
        json_object_del(start, "checkpoint");
    ok = ok &&
         json_object_set_new(start, "model", found->model ? json_string(found->model) : json_null()) == 0 &&
         json_object_set_new(start, "run", found->run ? json_string(run) : json_null()) == 0 &&
         json_object_set_new(start, "step", json_integer(found->step)) == 0 &&
         json_object_set_new(start, "path", json_string(found->path)) == 0 &&
         json_object_set_new(start, "sha256", json_string(found->sha256)) == 0 &&
         take_network(doc, found->document, report);
    if (ok)
        job_json_write(doc, ret_json);
    ok = ok && pd_buf_err(ret_json) == PD_OK && !report->failed;
    json_decref(doc);
    return report->error_count > before && !report->failed ? PD_ERR_INVALID : ok ? PD_OK : PD_ERR_NOMEM;
}

enum pd_err job_checkpoint_wanted(const char *json, size_t len, struct job_wanted *ret,
                                  struct job_report *report)
{
    enum job_kind kind = JOB_KIND_TRAIN;
    json_t *doc = load(json, len, &kind), *named = json_object_get(doc, "evaluate");
    size_t before = report->error_count;

    memset(ret, 0, sizeof *ret);
    ret->present = doc != NULL;
    if (named)
        want_complete(named, ret, report);
    else if (doc)
        want_short(doc, ret, report);
    json_decref(doc);
    return report->failed ? PD_ERR_NOMEM : report->error_count > before ? PD_ERR_INVALID : PD_OK;
}

/* ---- the complete document ---- */

static bool refuse_value(struct job_report *report, const char *section, const char *key, const json_t *has)
{
    char place[160];
    struct pd_buf b;

    pd_buf_init(&b, 0);
    job_json_write(has, &b);
    if (pd_buf_err(&b) != PD_OK) {
        pd_buf_done(&b);
        return false;
    }
    snprintf(place, sizeof place, "#/%.60s%s%.60s", section, key ? "/" : "", key ? key : "");
    if (key)
        job_report_error(report, place, "is fixed by the checkpoint to %.200s: omit it", b.data);
    else
        job_report_error(report, place, "comes from the checkpoint's run: omit it");
    pd_buf_done(&b);
    return true;
}

static const struct job_dataset_info *dataset_of(const json_t *name)
{
    for (unsigned i = 0; json_is_string(name) && i < job_names_dataset.count; i++)
        if (!strcmp(job_names_dataset.names[i], json_string_value(name)))
            return job_dataset_info((enum job_dataset)i);
    return NULL;
}

/* The loss of an equation, and the limits of its domain, are part of the network's graph. */
static void check_equation(const json_t *had, const json_t *asked, struct job_report *report)
{
    const struct job_dataset_info *from = dataset_of(had), *to = dataset_of(asked);

    if (from && to && from != to && (from->equation > 0 || to->equation > 0))
        job_report_error(report, "#/data/dataset", "a network of %s cannot be scored on %s: omit data",
                         from->name, to->name);
}

/* What the document says of the data over what the run had: another data set starts from its own defaults. */
static bool fold_data(json_t *doc, json_t *run, struct job_report *report)
{
    json_t *asked = json_object_get(doc, "data"), *data = job_json_copy(json_object_get(run, "data")), *value;
    const json_t *dataset = json_object_get(asked, "dataset");
    const char *key;
    bool ok = data != NULL;

    if (asked && !json_is_object(asked)) { /* job_parse reports its type */
        json_decref(data);
        return true;
    }
    if (ok) /* what the run was scored on is not scored again unasked */
        json_object_del(data, "eval");
    if (ok)
        check_equation(json_object_get(data, "dataset"), dataset, report);
    if (ok && dataset && !json_equal(dataset, json_object_get(data, "dataset"))) {
        json_object_del(data, "path");
        json_object_del(data, "split");
        json_object_del(data, "split_seed");
    }
    json_object_foreach(asked, key, value)
    {
        const json_t *has = json_object_get(data, key);

        if (has && !job_kind_listed(SAMPLES, key, strlen(key)) && !json_equal(has, value))
            ok = ok && refuse_value(report, "data", key, has);
        else
            ok = ok && json_object_set(data, key, value) == 0;
    }
    ok = ok && json_object_set(doc, "data", data) == 0;
    json_decref(data);
    return ok;
}

/* Of a short document, which names a version where a complete one has the network. */
static const json_t *named_model(const json_t *doc)
{
    const json_t *v = json_object_get(doc, "model");

    return json_is_string(v) ? v : NULL;
}

/* The sections of the run; one that the document has must say the same. */
static bool inherit(json_t *doc, json_t *run, const char *sections, bool complete, struct job_report *report)
{
    const char *key;
    json_t *value;
    bool ok = true;

    json_object_foreach(run, key, value)
    {
        const json_t *has = json_object_get(doc, key);

        if (!job_kind_listed(sections, key, strlen(key)))
            continue;
        if (has && !(complete && json_equal(has, value)) && !(has == named_model(doc) && !complete))
            ok = ok && refuse_value(report, key, NULL, value);
        ok = ok && json_object_set(doc, key, value) == 0;
    }
    return ok;
}

/* What a job is called whose document does not say. */
static bool put_name(json_t *doc, const struct job_found *f)
{
    char name[200];

    if (f->model)
        snprintf(name, sizeof name, "%s of %.150s", json_string_value(json_object_get(doc, "kind")),
                 f->model);
    else
        snprintf(name, sizeof name, "%s of run %lld, step %lld",
                 json_string_value(json_object_get(doc, "kind")), (long long)f->run, (long long)f->step);
    return json_object_set_new(doc, "name", json_string(name)) == 0;
}

static json_t *found_json(const struct job_found *f, json_t *split)
{
    char run[24];

    snprintf(run, sizeof run, "%lld", (long long)f->run);
    return json_pack("{s:s?,s:s,s:I,s:s,s:s,s:O*}", "model", f->model, "run", run, "step",
                     (json_int_t)f->step, "path", f->path, "sha256", f->sha256, "split", split);
}

/* An equation has no test part, so its default is the part val. */
static bool put_split(json_t *place, const json_t *data)
{
    const struct job_dataset_info *set = dataset_of(json_object_get(data, "dataset"));

    return json_object_get(place, "split") || !set || !(set->equation > 0) ||
           json_object_set_new(place, "split", json_string("val")) == 0;
}

enum pd_err job_checkpoint_fold(const char *json, size_t len, const struct job_found *found,
                                struct pd_buf *ret_json, struct job_report *report)
{
    enum job_kind kind = JOB_KIND_TRAIN;
    struct pd_buf whole;
    json_t *doc = load(json, len, &kind), *run = NULL, *named, *place;
    size_t before = report->error_count;
    struct pd_why why = {""};
    enum pd_err err;
    bool ok;

    pd_buf_init(&whole, 0);
    err = job_config_complete(found->document, strlen(found->document), &whole, &why);
    if (err == PD_ERR_INVALID) /* an older build took it */
        job_report_error(report, "#", "this version does not accept the document of run %lld: %s",
                         (long long)found->run, why.text);
    ok = doc && err == PD_OK && job_json_load(whole.data, whole.len, &run, NULL) == PD_OK;
    named = json_object_get(doc, "evaluate");
    place = ok ? found_json(found, json_object_get(named ? named : doc, "split")) : NULL;
    ok = ok && place && put_split(place, json_object_get(run, "data")) &&
         (json_object_get(doc, "name") || put_name(doc, found)) &&
         inherit(doc, run, job_kind_info(kind)->inherits, named != NULL, report) &&
         fold_data(doc, run, report) && json_object_set(doc, "evaluate", place) == 0;
    for (size_t i = 0; ok && !named && i < 3; i++) {
        static const char *const consumed[] = {"run", "checkpoint", "split"};

        json_object_del(doc, consumed[i]);
    }
    if (ok)
        job_json_write(doc, ret_json);
    ok = ok && pd_buf_err(ret_json) == PD_OK && !report->failed;
    json_decref(place);
    json_decref(run);
    json_decref(doc);
    pd_buf_done(&whole);
    return report->error_count > before && !report->failed ? PD_ERR_INVALID : ok ? PD_OK : PD_ERR_NOMEM;
}
