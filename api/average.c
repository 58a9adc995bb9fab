/* The member average of a registration: which files it names, found in the store. */
#include "api/average.h"

#include <stdlib.h>
#include <string.h>

#include "api/checkpoint.h"
#include "api/json.h"
#include "api/server.h"

#define ENTRIES_MIN 2
#define ENTRIES_MAX 64 /* as the worker takes */

void api_average_done(struct api_average *a)
{
    pd_buf_done(&a->list);
    json_decref(a->sources);
    free(a->document);
}

/* ---- what an entry names ---- */

static bool member_known(const char *key)
{
    return !strcmp(key, "run") || !strcmp(key, "checkpoint") || !strcmp(key, "model");
}

static void read_checkpoint(const json_t *v, const char *at, struct job_wanted *w, struct job_report *report)
{
    const char *text = json_string_value(v);
    char place[64];
    int64_t step = -1;

    snprintf(place, sizeof place, "#%s/checkpoint", at);
    if (!v || (text && (!strcmp(text, "best") || !strcmp(text, "last"))))
        snprintf(w->checkpoint, sizeof w->checkpoint, "%s", v ? text : "best");
    else if (text ? api_parse_int(text, 0, INT64_MAX, &step)
                  : json_is_integer(v) && (step = json_integer_value(v)) >= 0)
        snprintf(w->checkpoint, sizeof w->checkpoint, "%lld", (long long)step);
    else
        job_report_error(report, place, "must be best, last, or the step of a checkpoint");
}

static void read_entry(json_t *entry, const char *at, struct job_wanted *w, struct job_report *report)
{
    const json_t *run = json_object_get(entry, "run"), *model = json_object_get(entry, "model");
    const char *name = json_string_value(model), *id = json_string_value(run);
    char place[200];
    const char *key;
    json_t *value;

    memset(w, 0, sizeof *w);
    snprintf(place, sizeof place, "#%s", at);
    if (!json_is_object(entry) || !run == !model) {
        job_report_error(report, place,
                         "must name a checkpoint (run and checkpoint) or a version of a model (model)");
        return;
    }
    json_object_foreach(entry, key, value)
    {
        snprintf(place, sizeof place, "#%s/%.100s", at, key);
        if (!member_known(key))
            job_report_error(report, place,
                             "is not a member of a checkpoint; the members are run, checkpoint and model");
    }
    snprintf(place, sizeof place, "#%s/%s", at, run ? "run" : "model");
    if (run &&
        !(id ? api_parse_id(id, &w->run) : json_is_integer(run) && (w->run = json_integer_value(run)) > 0))
        job_report_error(report, place, "must be the id of a run");
    else if (model && (!name || !*name || strlen(name) >= sizeof w->model))
        job_report_error(report, place, "must be a version of a model, such as \"mnist:3\"");
    else if (model && json_object_get(entry, "checkpoint"))
        job_report_error(report, place, "is one checkpoint by itself: leave out checkpoint");
    else if (model)
        snprintf(w->model, sizeof w->model, "%s", name);
    else
        read_checkpoint(json_object_get(entry, "checkpoint"), at, w, report);
}

/* ---- what was found ---- */

static json_t *source_of(const struct api_found *f)
{
    char run[24];

    snprintf(run, sizeof run, "%lld", (long long)f->at.run);
    return f->at.model
               ? json_pack("{s:s,s:I,s:s}", "model", f->at.model, "step", (json_int_t)f->at.step, "sha256",
                           f->sha256)
               : json_pack("{s:s,s:I,s:s}", "run", run, "step", (json_int_t)f->at.step, "sha256", f->sha256);
}

static void check_twice(const struct api_average *a, const struct api_found *f, const char *at,
                        struct job_report *report)
{
    char place[64];
    json_t *other;
    size_t i;

    snprintf(place, sizeof place, "#%s", at);
    json_array_foreach(a->sources, i,
                       other) if (!strcmp(json_string_value(json_object_get(other, "sha256")), f->sha256))
        job_report_error(report, place, "is the file of #/average/%zu", i);
}

/* PD_ERR_INVALID: the report says why. */
static enum pd_err take_entry(struct api_req *r, struct store *store, json_t *entry, size_t i,
                              struct api_average *a, struct job_report *report, struct pd_why *why)
{
    const size_t before = report->error_count;
    struct api_found f = {.path = NULL};
    struct job_wanted wanted;
    char at[40];
    enum pd_err err;

    snprintf(at, sizeof at, "/average/%zu", i);
    read_entry(entry, at, &wanted, report);
    if (report->error_count > before)
        return PD_ERR_INVALID;
    err = api_checkpoint_find(store, &wanted, at, &f, report, why);
    if (err == PD_OK) {
        check_twice(a, &f, at, report);
        pd_buf_printf(&a->list, "%s %s/%s\n", f.sha256, api_config(api_of(r))->state.dir, f.path);
        if (!a->document)
            a->document = strdup(f.document);
        if (!a->document || json_array_append_new(a->sources, source_of(&f)) != 0 ||
            pd_buf_err(&a->list) != PD_OK)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for the list of checkpoints");
    }
    api_found_done(&f);
    return err;
}

static void fail_report(struct api_req *r, const struct job_report *report)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '[');
    for (size_t i = 0; i < report->error_count; i++) {
        api_json_open(&b, '{');
        api_json_kv_str(&b, "pointer", report->errors[i].pointer);
        api_json_kv_str(&b, "detail", report->errors[i].detail);
        api_json_close(&b, '}');
    }
    api_json_close(&b, ']');
    if (pd_buf_err(&b) != PD_OK || report->failed)
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
    else
        api_fail_details(r, PD_ERR_INVALID, b.data, "%s: %s", report->errors[0].pointer,
                         report->errors[0].detail);
    pd_buf_done(&b);
}

bool api_average_read(struct api_req *r, json_t *entries, struct api_average *ret)
{
    const size_t count = json_array_size(entries);
    struct job_report report;
    struct store *store = NULL;
    struct pd_why why = {.text = ""};
    enum pd_err err = PD_OK;
    json_t *entry;
    size_t i;

    pd_buf_init(&ret->list, 0);
    ret->document = NULL;
    ret->sources = json_array();
    if (!json_is_array(entries) || count < ENTRIES_MIN || count > ENTRIES_MAX) {
        api_fail_param(r, PD_ERR_INVALID, "average", "average must be a list of %d to %d checkpoints",
                       ENTRIES_MIN, ENTRIES_MAX);
        return false;
    }
    if (!ret->sources) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the list of checkpoints");
        return false;
    }
    store = api_reader(r);
    if (!store)
        return false;
    job_report_init(&report);
    json_array_foreach(entries, i, entry)
    {
        err = take_entry(r, store, entry, i, ret, &report, &why);
        if (err != PD_OK && err != PD_ERR_INVALID)
            break;
    }
    if (err != PD_OK && err != PD_ERR_INVALID)
        api_fail_why(r, err, &why);
    else if (report.error_count || report.failed)
        fail_report(r, &report);
    job_report_done(&report);
    return !api_failed(r);
}
