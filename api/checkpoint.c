#include "api/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "api/models.h"

/* Of a file in its run's folder, or in that of the registry (run 0), the path from the state folder on; NULL: it lies
 * elsewhere. */
static const char *in_state(const char *path, int64_t run)
{
    char tail[64];
    const char *slash = strrchr(path, '/');
    size_t len = run ? (size_t)snprintf(tail, sizeof tail, "/runs/%lld/checkpoints", (long long)run)
                     : (size_t)snprintf(tail, sizeof tail, "/models");

    if (!slash || (size_t)(slash - path) < len || strncmp(slash - len, tail, len) != 0)
        return NULL;
    return slash - len + 1;
}

static void take(struct api_found *f, int64_t run, int64_t step, const char *path, const char *digest)
{
    const char *tail = in_state(path, run);

    free(f->path);
    f->path = strdup(tail ? tail : "");
    f->full = f->full || !f->path;
    snprintf(f->sha256, sizeof f->sha256, "%s", digest);
    f->at.run = run;
    f->at.step = step;
    f->at.path = f->path;
    f->at.sha256 = f->sha256;
}

static void take_document(struct api_found *f, const char *document)
{
    f->document = strdup(document);
    f->full = f->full || !f->document;
    f->at.document = f->document;
}

/* ---- by a version of a model ---- */

static bool version_row(void *ctx, const struct store_model_version *v)
{
    struct api_found *f = ctx;

    snprintf(f->model, sizeof f->model, "%s:%lld", v->model, (long long)v->n);
    f->at.model = f->model;
    snprintf(f->name, sizeof f->name, "%s", v->model);
    f->n = v->n;
    take(f, v->run_id, v->step, v->path, v->digest);
    take_document(f, v->document);
    return false;
}

/* "name" (the highest version), "name:3", "name:alias". `place`: the member that names it. */
static enum pd_err find_version(struct store *store, const char *text, const char *place, struct api_found *f,
                                struct job_report *report, struct pd_why *why)
{
    char name[API_MODEL_MAX + 1] = "";
    const char *colon = strchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    int64_t n = 0;
    enum pd_err err = PD_OK;

    if (len <= API_MODEL_MAX)
        snprintf(name, sizeof name, "%.*s", (int)len, text);
    if (colon && !api_parse_id(colon + 1, &n))
        err = store_alias_get(store, name, colon + 1, &n, why);
    if (err == PD_OK)
        err = store_model_version_get(store, name, n, version_row, f, why);
    if (err != PD_ERR_NOT_FOUND)
        return err;
    job_report_error(report, place, "%s", why->text);
    return PD_ERR_INVALID;
}

/* ---- by a run ---- */

static bool run_row(void *ctx, const struct store_run *run)
{
    struct api_found *f = ctx;

    f->kind = run->kind;
    take_document(f, run->document);
    return false;
}

struct wish {
    struct api_found *found;
    const char *which;
};

/* Rows come newest first. */
static bool checkpoint_row(void *ctx, const struct store_checkpoint *c)
{
    struct wish *w = ctx;
    struct api_found *f = w->found;
    bool best = !strcmp(w->which, "best"), last = !strcmp(w->which, "last");

    if (best   ? !strcmp(c->kind, "best") && !f->path
        : last ? !f->path || c->step > f->at.step
               : c->step == strtoll(w->which, NULL, 10) && !f->path)
        take(f, c->run_id, c->step, c->path, c->digest);
    return true;
}

static enum pd_err find_run(struct store *store, const struct job_wanted *wanted, const char *at,
                            struct api_found *f, struct job_report *report, struct pd_why *why)
{
    char place[64], checkpoint[64];

    struct wish wish = {.found = f, .which = wanted->checkpoint};
    enum pd_err err = store_run_get(store, wanted->run, run_row, f, why);

    snprintf(place, sizeof place, "#%s/run", at);
    snprintf(checkpoint, sizeof checkpoint, "#%s/checkpoint", at);
    if (err == PD_ERR_NOT_FOUND) {
        job_report_error(report, place, "%s", why->text);
        return PD_ERR_INVALID;
    }
    if (err == PD_OK && !job_kind_has(f->kind, "model", 5)) {
        job_report_error(report, place, "is of kind %s, which has no model", job_kind_info(f->kind)->name);
        return PD_ERR_INVALID;
    }
    if (err == PD_OK)
        err = store_checkpoint_list(store, wanted->run, false, checkpoint_row, &wish, why);
    if (err != PD_OK || f->path || f->full)
        return err;
    if (wanted->checkpoint[0] == 'b' || wanted->checkpoint[0] == 'l')
        job_report_error(report, checkpoint, "run %lld has no %s checkpoint", (long long)wanted->run,
                         wanted->checkpoint);
    else
        job_report_error(report, checkpoint, "run %lld has no checkpoint at step %s", (long long)wanted->run,
                         wanted->checkpoint);
    return PD_ERR_INVALID;
}

/* ---- both ---- */

/* `at`: the member of the document that names it, "" or "/train/start"; `digest`: the one that has its digest. */
static enum pd_err find(struct store *store, const struct job_wanted *wanted, const char *at,
                        const char *digest, struct api_found *f, struct job_report *report,
                        struct pd_why *why)
{
    char place[64];
    enum pd_err err;

    snprintf(place, sizeof place, "#%s/%s", at, wanted->model[0] ? "model" : "run");
    err = wanted->model[0] ? find_version(store, wanted->model, place, f, report, why)
                           : find_run(store, wanted, at, f, report, why);

    if (err != PD_OK)
        return err;
    if (f->full)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the checkpoint's document");
    if (!f->path[0])
        job_report_error(report, place, "has its checkpoint outside the state folder");
    else if (wanted->sha256[0] && strcmp(wanted->sha256, f->sha256) != 0)
        job_report_error(report, digest, "is not the digest of the current checkpoint, %.12s", f->sha256);
    else
        return PD_OK;
    return PD_ERR_INVALID;
}

enum pd_err api_checkpoint_find(struct store *store, const struct job_wanted *wanted, const char *at,
                                struct api_found *ret, struct job_report *report, struct pd_why *why)
{
    return find(store, wanted, at, "#", ret, report, why);
}

void api_found_done(struct api_found *f)
{
    free(f->path);
    free(f->document);
}

static void note_named(const struct api_found *f, const char *param, struct api_named *ret)
{
    ret->param = param;
    memcpy(ret->model, f->name, sizeof ret->model);
    ret->n = f->n;
    memcpy(ret->sha256, f->sha256, sizeof ret->sha256);
}

/* What the document names, found, and the complete document. */
static enum pd_err fold(struct api_req *r, const char *json, size_t len, const struct job_wanted *wanted,
                        bool start, struct pd_buf *ret_json, struct api_named *ret_named,
                        struct job_report *report)
{
    struct api_found f = {.path = NULL};
    struct pd_why why = {.text = ""};
    struct store *store = api_reader(r);
    enum pd_err err;

    if (!store)
        return PD_ERR_IO;
    err = find(store, wanted, start ? "/train/start" : "",
               start ? "#/train/start/sha256" : "#/evaluate/sha256", &f, report, &why);
    if (err == PD_OK && !start && !f.document[0]) {
        job_report_error(report, "#/model", "was registered without a description of its network");
        err = PD_ERR_INVALID;
    }
    if (err == PD_OK)
        err = start ? job_start_fold(json, len, &f.at, ret_json, report)
                    : job_checkpoint_fold(json, len, &f.at, ret_json, report);
    if (err == PD_OK)
        note_named(&f, start ? "train/start/model" : "model", ret_named);
    else if (!report->error_count)
        api_fail_why(r, err, &why);
    api_found_done(&f);
    return err;
}

enum pd_err api_checkpoint_fold(struct api_req *r, const char *json, size_t len, struct pd_buf *ret_json,
                                struct api_named *ret_named, struct job_report *report)
{
    struct job_wanted wanted;
    enum pd_err err = job_checkpoint_wanted(json, len, &wanted, report);

    if (err == PD_OK && wanted.present)
        return fold(r, json, len, &wanted, false, ret_json, ret_named, report);
    if (err == PD_OK)
        err = job_start_wanted(json, len, &wanted, report);
    return err == PD_OK && wanted.present ? fold(r, json, len, &wanted, true, ret_json, ret_named, report)
                                          : err;
}

/* ---- the model that a job learns from ---- */

static enum pd_err find_teacher(struct store *store, const struct job_wanted *wanted, struct api_found *f,
                                struct job_report *report, struct pd_why *why)
{
    static const char place[] = "#/train/teacher/model";
    enum pd_err err = find_version(store, wanted->model, place, f, report, why);

    if (err != PD_OK)
        return err;
    if (f->full)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the teacher's document");
    if (!f->path[0])
        job_report_error(report, place, "has its checkpoint outside the state folder");
    else if (!f->document[0])
        job_report_error(report, place, "was registered without a description of its network");
    else if (wanted->sha256[0] && strcmp(wanted->sha256, f->sha256) != 0)
        job_report_error(report, "#/train/teacher/sha256", "is not the digest of %s, %.12s", f->model,
                         f->sha256);
    else
        return PD_OK;
    return PD_ERR_INVALID;
}

enum pd_err api_teacher_fold(struct api_req *r, const char *json, size_t len, struct pd_buf *ret_json,
                             struct api_named *ret_named, struct job_report *report)
{
    struct job_wanted wanted;
    struct api_found f = {.path = NULL};
    struct pd_why why = {.text = ""};
    struct store *store;
    enum pd_err err = job_teacher_wanted(json, len, &wanted, report);

    if (err != PD_OK || !wanted.present)
        return err;
    store = api_reader(r);
    if (!store)
        return PD_ERR_IO;
    err = find_teacher(store, &wanted, &f, report, &why);
    if (err == PD_OK)
        err = job_teacher_fold(json, len, &f.at, ret_json);
    if (err == PD_OK)
        note_named(&f, "train/teacher/model", ret_named);
    else if (!report->error_count)
        api_fail_why(r, err, &why);
    api_found_done(&f);
    return err;
}
