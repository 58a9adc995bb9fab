/* Getting rid of things: delete, archive, unarchive. Jobs, runs, models, versions; groups are deleted in
 * groups.c. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/models.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/log.h"

#define WHO "a client"

enum away_what { AWAY_JOB, AWAY_RUN, AWAY_MODEL, AWAY_GROUP };
enum away_verb { AWAY_DELETE, AWAY_ARCHIVE, AWAY_UNARCHIVE };

struct away {
    struct api_write w; /* first */
    enum away_what what;
    enum away_verb verb;
    int64_t id;                   /* of a job or run; of a model: the version, 0 = the model itself */
    char name[API_MODEL_MAX + 1]; /* of a model or group */
    int64_t seen;
};

static enum pd_err delete_it(struct store_tx *tx, const struct away *a, struct pd_why *why)
{
    switch (a->what) {
    case AWAY_JOB:
        return store_job_delete(tx, a->id, a->seen, WHO, why);
    case AWAY_RUN:
        return store_run_delete(tx, a->id, a->seen, WHO, why);
    case AWAY_MODEL:
        return store_model_delete(tx, a->name, a->id, a->seen, WHO, why);
    case AWAY_GROUP:
        return store_group_delete(tx, a->name, a->seen, why);
    }
    return PD_ERR_INTERNAL;
}

static enum pd_err archive_it(struct store_tx *tx, const struct away *a, bool archive, struct pd_why *why)
{
    switch (a->what) {
    case AWAY_JOB:
        return store_job_archive(tx, a->id, a->seen, archive, why);
    case AWAY_RUN:
        return store_run_archive(tx, a->id, a->seen, archive, why);
    case AWAY_MODEL:
        return store_model_archive(tx, a->name, a->id, a->seen, archive, why);
    case AWAY_GROUP:
        return store_group_archive(tx, a->name, a->seen, archive, why);
    }
    return PD_ERR_INTERNAL;
}

static enum pd_err away_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    const struct away *a = (const struct away *)(const void *)w;

    w->status = a->verb == AWAY_DELETE ? 204 : 200;
    return a->verb == AWAY_DELETE ? delete_it(tx, a, why) : archive_it(tx, a, a->verb == AWAY_ARCHIVE, why);
}

/* The supervisor remembers a version whose load failed. */
static void forget_model(struct api_req *r, const struct away *a)
{
    struct pd_why why;
    enum pd_err err = sup_model_unload(api_deps_of(api_of(r))->sup, a->name, a->id, NULL, NULL, &why);

    if (err != PD_OK && err != PD_ERR_NOT_FOUND)
        pd_log(PD_LOG_WARNING, "api", "model=%s forgotten=0 why=\"%s\"", a->name, why.text);
}

static void away_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    const struct away *a = (const struct away *)(const void *)w;

    if (!w)
        return;
    if (a->verb == AWAY_DELETE && a->what == AWAY_MODEL)
        forget_model(r, a);
    if (a->verb == AWAY_DELETE)
        api_reply_empty(r, 204);
    else if (a->what == AWAY_JOB)
        api_answer_job(r, a->id, 200, false);
    else if (a->what == AWAY_RUN)
        api_answer_run(r, a->id, false);
    else if (a->what == AWAY_GROUP)
        api_answer_group(r, a->name, 200, false);
    else if (a->id)
        api_answer_version(r, a->name, a->id, 200);
    else
        api_answer_model(r, a->name);
}

/* A deletion needs the tag last seen, as every change that cannot be taken back. */
static bool tag_ok(struct api_req *r, struct away *asked)
{
    return api_if_match(r, asked->verb == AWAY_DELETE, &asked->seen);
}

/* `asked`: what, verb, id, name, and the tag. */
static void away(struct api_req *r, struct away asked)
{
    struct api_write *w;
    struct away *a;

    if (asked.verb != AWAY_DELETE && !api_empty_body(r))
        return;
    w = api_write_begin(r, sizeof *a, asked.verb != AWAY_DELETE, NULL, away_answer);
    if (!w)
        return;
    a = (struct away *)(void *)w;
    asked.w = *w;
    *a = asked;
    w->apply = away_apply;
    w->notify = asked.verb == AWAY_DELETE; /* the rows and files that are left */
    api_write_submit(w, STORE_LANE_COMMAND, 8);
}

static void by_id(struct api_req *r, enum away_what what, enum away_verb verb)
{
    struct away asked = {.what = what, .verb = verb, .id = api_param_id(r, 0)};

    if (asked.id && tag_ok(r, &asked))
        away(r, asked);
}

/* ---- models: what a worker holds stays -------------------------------------------------------- */

struct held {
    const char *model;
    int64_t n; /* 0 = any version */
    int64_t found;
    enum sup_model_state state;
};

static void held_row(void *ctx, const struct sup_model_info *m)
{
    struct held *h = ctx;

    if (strcmp(m->model, h->model) == 0 && (!h->n || m->version == h->n) &&
        m->state != SUP_MODEL_UNAVAILABLE && (!h->found || m->version < h->found)) {
        h->found = m->version;
        h->state = m->state;
    }
}

/* The row says what is wanted in memory; the supervisor knows what is, and what is on its way. */
static bool in_memory(struct api_req *r, const char *model, int64_t n)
{
    struct held h = {.model = model, .n = n};

    sup_model_list(api_deps_of(api_of(r))->sup, held_row, &h);
    if (h.found)
        api_fail(r, PD_ERR_CONFLICT, "version %lld of model '%.128s' is loaded (%s): unload it first",
                 (long long)h.found, model, sup_model_state_name(h.state));
    return h.found != 0;
}

static void by_model(struct api_req *r, bool version, enum away_verb verb)
{
    struct away asked = {.what = AWAY_MODEL, .verb = verb};
    const char *model = api_param(r, 0);

    if (!api_model_name_ok(model)) {
        api_fail(r, PD_ERR_NOT_FOUND, "there is no model '%.128s'", model);
        return;
    }
    if (!tag_ok(r, &asked))
        return;
    snprintf(asked.name, sizeof asked.name, "%s", model);
    if (version)
        asked.id = api_model_version(r, model, api_param(r, 1));
    if (api_failed(r) || (verb != AWAY_UNARCHIVE && in_memory(r, model, asked.id)))
        return;
    away(r, asked);
}

static void by_group(struct api_req *r, enum away_verb verb)
{
    struct away asked = {.what = AWAY_GROUP, .verb = verb};
    const char *group = api_param(r, 0);

    if (strlen(group) > API_MODEL_MAX) {
        api_fail(r, PD_ERR_NOT_FOUND, "there is no group '%.200s'", group);
        return;
    }
    if (!tag_ok(r, &asked))
        return;
    snprintf(asked.name, sizeof asked.name, "%s", group);
    away(r, asked);
}

/* ---- the routes --------------------------------------------------------------------------------- */

void api_job_delete(struct api_req *r)
{
    by_id(r, AWAY_JOB, AWAY_DELETE);
}

void api_job_archive(struct api_req *r)
{
    by_id(r, AWAY_JOB, AWAY_ARCHIVE);
}

void api_job_unarchive(struct api_req *r)
{
    by_id(r, AWAY_JOB, AWAY_UNARCHIVE);
}

void api_run_delete(struct api_req *r)
{
    by_id(r, AWAY_RUN, AWAY_DELETE);
}

void api_run_archive(struct api_req *r)
{
    by_id(r, AWAY_RUN, AWAY_ARCHIVE);
}

void api_run_unarchive(struct api_req *r)
{
    by_id(r, AWAY_RUN, AWAY_UNARCHIVE);
}

void api_model_delete(struct api_req *r)
{
    by_model(r, false, AWAY_DELETE);
}

void api_model_archive(struct api_req *r)
{
    by_model(r, false, AWAY_ARCHIVE);
}

void api_model_unarchive(struct api_req *r)
{
    by_model(r, false, AWAY_UNARCHIVE);
}

void api_model_version_delete(struct api_req *r)
{
    by_model(r, true, AWAY_DELETE);
}

void api_model_version_archive(struct api_req *r)
{
    by_model(r, true, AWAY_ARCHIVE);
}

void api_model_version_unarchive(struct api_req *r)
{
    by_model(r, true, AWAY_UNARCHIVE);
}

void api_group_delete(struct api_req *r)
{
    by_group(r, AWAY_DELETE);
}

void api_group_archive(struct api_req *r)
{
    by_group(r, AWAY_ARCHIVE);
}

void api_group_unarchive(struct api_req *r)
{
    by_group(r, AWAY_UNARCHIVE);
}
