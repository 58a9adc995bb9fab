#include "api/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "daemon/job/job.h"
#include "kernels/base/clock.h"

static void text_or_null(struct pd_buf *b, const char *key, const char *text)
{
    api_json_kv_str(b, key, text && *text ? text : NULL);
}

/* What a job of several runs varies. */
static void sweep_head(struct pd_buf *b, const struct store_job *job)
{
    json_t *sweep, *method;
    char *axes;

    api_json_key(b, "sweep");
    if (job->planned <= 1) {
        api_json_null(b);
        return;
    }
    sweep = json_loads(job->sweep, 0, NULL);
    method = json_object_get(sweep, "method");
    axes = sweep ? json_dumps(json_object_get(sweep, "axes"), JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    api_json_open(b, '{');
    api_json_kv_str(b, "method", !sweep ? NULL : json_is_string(method) ? json_string_value(method) : "grid");
    if (*job->sweep && !axes)
        b->failed = true; /* it was valid when it was stored: no memory */
    api_json_kv_raw(b, "axes", axes ? axes : "[]");
    api_json_kv_int(b, "points", job->points);
    api_json_kv_int(b, "trials", job->trials);
    api_json_kv_int(b, "concurrency", job->concurrency);
    api_json_kv_str(b, "metric", job->metric);
    api_json_kv_str(b, "mode", job->maximise ? "max" : "min");
    api_json_close(b, '}');
    free(axes);
    json_decref(sweep);
}

void api_row_job(struct pd_buf *b, const struct store_job *job, unsigned flags)
{
    api_json_open(b, '{');
    api_json_kv_id(b, "id", job->id);
    api_json_kv_int(b, "version", job->version);
    api_json_kv_str(b, "kind", job_kind_info(job->kind)->name);
    api_json_kv_str(b, "state", job_state_name(job->state));
    api_json_kv_str(b, "name", job->name);
    api_json_kv_str(b, "experiment", job->experiment);
    text_or_null(b, "template", job->template_name);
    api_json_kv_raw(b, "tags", *job->tags ? job->tags : "{}");
    api_json_kv_str(b, "notes", job->notes);
    api_json_kv_str(b, "reason", job->reason);
    text_or_null(b, "register", job->register_name);
    api_json_kv_int(b, "priority", job->priority);
    api_json_key(b, "runs");
    api_json_open(b, '{');
    api_json_kv_int(b, "total", job->planned);
    api_json_kv_int(b, "made", job->runs);
    api_json_kv_int(b, "ended", job->runs_ended);
    api_json_kv_int(b, "failed", job->runs_failed);
    api_json_kv_int(b, "deleted", job->runs_deleted);
    api_json_close(b, '}');
    sweep_head(b, job);
    api_json_kv_time(b, "created", job->created_us);
    api_json_kv_time(b, "started", job->started_us);
    api_json_kv_time(b, "ended", job->ended_us);
    api_json_kv_time(b, "archived", job->archived_us);
    if (flags & API_ROW_FULL)
        api_json_kv_raw(b, "document", job->document);
    if (!(flags & API_ROW_OPEN))
        api_json_close(b, '}');
}

/* Seconds to the end at the mean pace of the present attempt; NaN where that is not known yet. */
static double eta_s(const struct store_pace *pace, const struct sup_progress *live)
{
    double left, taken, since = (double)(pd_clock_wall_us() - live->updated_us);

    if (live->total < 1 || !pace->started_us || live->step <= pace->start_step ||
        live->updated_us <= pace->started_us)
        return (double)NAN;
    taken = (double)(live->updated_us - pace->started_us) / (double)(live->step - pace->start_step);
    left = taken * (double)(live->total - live->step) - (since > 0 ? since : 0);
    return left > 0 ? 1e-6 * left : 0;
}

void api_row_run(struct pd_buf *b, const struct store_run *run, struct store *store, struct sup *sup,
                 unsigned flags)
{
    bool waits = run->state == JOB_RUN_QUEUED || run->state == JOB_RUN_PREEMPTED;
    struct sup_queue_info place = {.position = 0};
    struct sup_progress live;
    int64_t step = run->step, total = run->total_steps, used_us = run->used_us;
    struct store_pace pace;
    double eta = (double)NAN;
    const char *reason = run->reason, *phase = NULL;

    if (!job_kind_info(run->kind)->worker) /* no device is held: from its opening to its end */
        used_us = (run->ended_us ? run->ended_us : pd_clock_wall_us()) - run->started_us;
    if (used_us < 0)
        used_us = 0;
    if (run->state != JOB_RUN_ENDED && !waits && sup && sup_progress_get(sup, run->id, &live)) {
        if (live.step > step)
            step = live.step;
        if (live.total > 0)
            total = live.total;
        if (live.phase[0] && (run->state == JOB_RUN_STARTING || run->state == JOB_RUN_RUNNING))
            phase = live.phase;
        if (store && store_run_pace(store, run->id, run->attempts, &pace, NULL) == PD_OK) {
            int64_t held_us = pd_clock_wall_us() - pace.created_us;

            used_us += !pace.ended_us && held_us > 0 ? held_us
                                                     : 0; /* progress may outlive its attempt for a moment */
            if (run->state == JOB_RUN_RUNNING)
                eta = eta_s(&pace, &live);
        }
    }
    api_json_open(b, '{');
    api_json_kv_id(b, "id", run->id);
    api_json_kv_id(b, "job_id", run->job_id);
    api_json_kv_int(b, "index", run->n);
    api_json_kv_int(b, "point", run->point);
    api_json_kv_int(b, "trial", run->trial);
    api_json_kv_int(b, "seed", run->seed);
    api_json_kv_int(b, "version", run->version);
    api_json_kv_str(b, "kind", job_kind_info(run->kind)->name);
    api_json_kv_str(b, "name", run->name);
    api_json_kv_str(b, "experiment", run->experiment);
    api_json_kv_str(b, "state", job_run_state_name(run->state));
    api_json_kv_str(b, "outcome", run->state == JOB_RUN_ENDED ? job_outcome_name(run->outcome) : NULL);
    api_json_kv_str(b, "reason", reason);
    api_json_kv_str(b, "phase", phase);
    text_or_null(b, "device", run->device);
    api_json_kv_int(b, "slots", run->slots);
    api_json_kv_int(b, "threads", run->threads);
    api_json_kv_int(b, "priority", run->priority);
    api_json_kv_int(b, "attempts", run->attempts);
    api_json_kv_int(b, "restarts", run->restarts);
    api_json_kv_int(b, "max_restarts", run->max_restarts);
    if (step >= 0)
        api_json_kv_int(b, "step", step);
    else
        api_json_kv_null(b, "step");
    if (total >= 0)
        api_json_kv_int(b, "total_steps", total);
    else
        api_json_kv_null(b, "total_steps");
    api_json_kv_num_or_null(b, "eta_s", eta);
    api_json_kv_num(b, "used_s", 1e-6 * (double)used_us);
    if (run->time_limit_us > 0)
        api_json_kv_num(b, "time_limit_s", 1e-6 * (double)run->time_limit_us);
    else
        api_json_kv_null(b, "time_limit_s");
    api_json_kv_raw(b, "sweep", *run->sweep ? run->sweep : "{}");
    api_json_kv_raw(b, "tags", *run->tags ? run->tags : "{}");
    if (waits && sup && sup_queue_get(sup, run->id, &place)) {
        api_json_key(b, "queue");
        api_json_open(b, '{');
        api_json_kv_int(b, "position", place.position);
        api_json_kv_str(b, "reason", place.reason);
        api_json_close(b, '}');
    } else {
        api_json_kv_null(b, "queue");
    }
    if (!(flags & API_ROW_NO_DIGESTS)) {
        api_json_kv_str(b, "config_digest", run->config_digest);
        api_json_kv_str(b, "plan_digest", run->plan_digest);
        text_or_null(b, "data_digest", run->data_digest);
        text_or_null(b, "data_digest_of", run->data_digest_of);
        text_or_null(b, "program_digest", run->program_digest);
    }
    api_json_kv_time(b, "created", run->created_us);
    api_json_kv_time(b, "started", run->started_us);
    api_json_kv_time(b, "ended", run->ended_us);
    api_json_kv_time(b, "archived", run->archived_us);
    if (flags & API_ROW_FULL)
        api_json_kv_raw(b, "document", run->document);
    if (!(flags & API_ROW_OPEN))
        api_json_close(b, '}');
}

void api_row_attempt(struct pd_buf *b, const struct store_attempt *a)
{
    const char *device = a->devices;

    api_json_open(b, '{');
    api_json_kv_int(b, "n", a->n);
    api_json_kv_str(b, "state", job_attempt_state_name(a->state));
    api_json_kv_str(b, "cause", a->state == JOB_ATTEMPT_ENDED ? job_cause_name(a->cause) : NULL);
    api_json_kv_str(b, "message", a->message);
    api_json_key(b, "devices");
    api_json_open(b, '[');
    while (*device) {
        size_t n = strcspn(device, ",");

        api_json_strn(b, device, n);
        device += n + (device[n] == ',');
    }
    api_json_close(b, ']');
    api_json_kv_int(b, "start_step", a->start_step);
    api_json_kv_int(b, "step", a->step);
    api_json_kv_int(b, "log_bytes", a->log_bytes);
    if (a->exit_status >= 0)
        api_json_kv_int(b, "exit_status", a->exit_status);
    else
        api_json_kv_null(b, "exit_status");
    api_json_kv_time(b, "created", a->created_us);
    api_json_kv_time(b, "started", a->started_us);
    api_json_kv_time(b, "ended", a->ended_us);
    api_json_close(b, '}');
}

void api_row_checkpoint(struct pd_buf *b, const struct store_checkpoint *c)
{
    api_json_open(b, '{');
    api_json_kv_id(b, "id", c->id);
    api_json_kv_id(b, "run_id", c->run_id);
    api_json_kv_int(b, "attempt", c->attempt);
    api_json_kv_int(b, "step", c->step);
    api_json_kv_str(b, "kind", c->kind);
    api_json_kv_int(b, "bytes", c->bytes);
    api_json_kv_str(b, "digest", c->digest);
    if (isfinite(c->value))
        api_json_kv_num(b, "value", c->value);
    else
        api_json_kv_null(b, "value");
    api_json_kv_time(b, "created", c->created_us);
    api_json_close(b, '}');
}

void api_row_event(struct pd_buf *b, const struct store_event *e)
{
    api_json_open(b, '{');
    api_json_kv_id(b, "id", e->id);
    api_json_kv_str(b, "kind", e->kind);
    api_json_kv_time(b, "time", e->time_us);
    if (e->job_id)
        api_json_kv_id(b, "job_id", e->job_id);
    else
        api_json_kv_null(b, "job_id");
    if (e->run_id)
        api_json_kv_id(b, "run_id", e->run_id);
    else
        api_json_kv_null(b, "run_id");
    if (e->attempt)
        api_json_kv_int(b, "attempt", e->attempt);
    else
        api_json_kv_null(b, "attempt");
    api_json_kv_raw(b, "data", *e->data ? e->data : "{}");
    api_json_close(b, '}');
}

const char *api_etag(int64_t version, char out[32])
{
    snprintf(out, 32, "\"%lld\"", (long long)version);
    return out;
}

bool api_if_match(struct api_req *r, bool required, int64_t *ret_version)
{
    const char *header = api_header(r, "If-Match");
    char inside[32];
    size_t len;

    *ret_version = -1;
    if (!header) {
        if (!required)
            return true;
        api_fail(r, API_FAULT_NEEDS_MATCH, "this change needs If-Match with the tag last seen (ETag), or *");
        return false;
    }
    if (strcmp(header, "*") == 0)
        return true;
    len = strlen(header);
    if (len > 2 && len < sizeof inside && header[0] == '"' && header[len - 1] == '"') {
        memcpy(inside, header + 1, len - 2);
        inside[len - 2] = '\0';
        if (api_parse_id(inside, ret_version))
            return true;
    }
    /* Not one of our tags, so it cannot be the present one. */
    api_fail(r, PD_ERR_STALE, "If-Match does not name the present version");
    return false;
}

bool api_query_archived(struct api_req *r, enum store_archived *ret)
{
    char text[16];

    *ret = STORE_ARCHIVED_WITHOUT;
    if (api_query(r, "archived", text, sizeof text)) {
        if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0)
            *ret = STORE_ARCHIVED_ONLY;
        else if (strcmp(text, "any") == 0)
            *ret = STORE_ARCHIVED_ANY;
        else if (strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
            api_fail(r, API_FAULT_MALFORMED,
                     "archived must be false (without archived items), true (only archived items) or any");
    }
    return !api_failed(r);
}

bool api_not_modified(struct api_req *r, int64_t version)
{
    const char *seen = api_header(r, "If-None-Match");
    char tag[32];

    api_etag(version, tag);
    api_reply_header(r, "ETag", tag);
    api_reply_header(r, "Cache-Control", "no-cache");
    if (!seen || !api_etag_match(seen, tag, true))
        return false;
    api_reply_empty(r, 304);
    return true;
}

void api_answer(struct api_req *r, enum pd_err err, const struct pd_why *why, struct pd_buf *b)
{
    if (err == PD_OK)
        api_reply_json(r, 200, b);
    else
        api_fail_why(r, err, why);
    pd_buf_done(b);
}

/* ---- one row as the answer -------------------------------------------------------------------- */

struct best_key {
    const char *key; /* NULL = the document is none of ours */
    bool maximise;
};

struct answer {
    struct api_req *r;
    struct best_key best; /* of a run */
    struct store *store;
    struct pd_buf *b;
    struct sup *sup;
    bool conditional, unchanged;
};

static bool job_row(void *ctx, const struct store_job *job)
{
    struct answer *a = ctx;
    char tag[32];

    /* Until it has ended, its files grow while its tag stays. */
    if (a->conditional && job_state_final(job->state) && api_not_modified(a->r, job->version)) {
        a->unchanged = true;
        return false;
    }
    api_reply_header(a->r, "ETag", api_etag(job->version, tag));
    api_row_job(a->b, job, API_ROW_FULL | API_ROW_OPEN);
    return false;
}

void api_answer_job(struct api_req *r, int64_t id, int status, bool conditional)
{
    struct store *store = api_reader(r);
    struct pd_buf b;
    struct answer a = {.r = r, .b = &b, .conditional = conditional};
    struct pd_why why = {.text = ""};
    struct store_space space;
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    err = store_begin(store, &why);
    if (err == PD_OK)
        err = store_job_get(store, id, job_row, &a, &why);
    if (err == PD_OK && !a.unchanged)
        err = store_job_space(store, id, &space, &why);
    if (err == PD_OK && !a.unchanged) {
        api_json_key(&b, "bytes");
        api_space_json(&b, &space);
        api_json_close(&b, '}');
    }
    store_end(store);
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no job %lld", (long long)id);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!a.unchanged)
        api_reply_json(r, status, &b);
    pd_buf_done(&b);
}

static bool run_row(void *ctx, const struct store_run *run)
{
    struct answer *a = ctx;
    struct job_config *config = NULL;
    char tag[32];

    if (a->conditional && run->state == JOB_RUN_ENDED && api_not_modified(a->r, run->version)) {
        a->unchanged = true;
        return false;
    }
    api_reply_header(a->r, "ETag", api_etag(run->version, tag));
    api_row_run(a->b, run, a->store, a->sup, API_ROW_FULL | API_ROW_OPEN);
    if (job_kind_info(run->kind)->worker &&
        job_config_load(run->document, strlen(run->document), &config, NULL) == PD_OK)
        a->best.key = job_config_best_metric(config, &a->best.maximise);
    job_config_free(config);
    return false;
}

/* The best value so far of the metric by which the run's checkpoints are compared. */
static enum pd_err best_json(struct store *store, int64_t id, const struct best_key *key, struct pd_buf *b,
                             struct pd_why *why)
{
    struct store_best best;
    enum pd_err err =
        key->key ? store_run_best(store, id, key->key, key->maximise, &best, why) : PD_ERR_NOT_FOUND;

    api_json_key(b, "best");
    if (err == PD_OK) {
        api_json_open(b, '{');
        api_json_kv_str(b, "key", key->key);
        api_json_kv_num(b, "value", best.value);
        api_json_kv_int(b, "step", best.step);
        api_json_close(b, '}');
    } else {
        api_json_null(b);
    }
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

/* What the run took of the weights that it began with; null: it began with initial values, or has not begun. */
static enum pd_err start_json(struct store *store, int64_t id, struct pd_buf *b, struct pd_why *why)
{
    struct pd_buf data;
    enum pd_err err;

    pd_buf_init(&data, 0);
    err = store_run_event(store, id, "worker.started_from", &data, why);
    if (err == PD_OK)
        api_json_kv_raw(b, "started_from", data.data);
    else
        api_json_kv_null(b, "started_from");
    pd_buf_done(&data);
    return err == PD_ERR_NOT_FOUND ? PD_OK : err;
}

static bool attempt_row(void *ctx, const struct store_attempt *attempt)
{
    api_row_attempt(ctx, attempt);
    return true;
}

void api_answer_run(struct api_req *r, int64_t id, bool conditional)
{
    struct store *store = api_reader(r);
    struct pd_buf b;
    struct answer a = {
        .r = r, .b = &b, .store = store, .conditional = conditional, .sup = api_deps_of(api_of(r))->sup};
    struct pd_why why = {.text = ""};
    struct store_space space;
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    err = store_begin(store, &why);
    if (err == PD_OK) {
        err = store_run_get(store, id, run_row, &a, &why);
        if (err == PD_OK && !a.unchanged)
            err = best_json(store, id, &a.best, &b, &why);
        if (err == PD_OK && !a.unchanged)
            err = start_json(store, id, &b, &why);
        if (err == PD_OK && !a.unchanged)
            err = store_run_space(store, id, &space, &why);
        if (err == PD_OK && !a.unchanged) {
            api_json_key(&b, "bytes");
            api_space_json(&b, &space);
            api_json_key(&b, "attempt_list");
            api_json_open(&b, '[');
            err = store_attempt_list(store, id, attempt_row, &b, &why);
            api_json_close(&b, ']');
            api_json_close(&b, '}');
        }
        store_end(store);
    }
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no run %lld", (long long)id);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else if (!a.unchanged)
        api_reply_json(r, 200, &b);
    pd_buf_done(&b);
}
