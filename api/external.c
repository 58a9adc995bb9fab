/* Runs that an external client executes: it opens them, reports to them and ends them. Their points go in as those of any run.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/digest/digest.h"
#include "daemon/job/job.h"
#include "daemon/polyd/store/tx.h"
#include "kernels/base/file.h"

#define LOG_MAX (INT64_C(64) << 20) /* bytes of a run's log */
#define CONFIG_KEY_MAX 256          /* bytes of a member's name in config */

/* ---- open ------------------------------------------------------------------------------------- */

struct opening {
    struct api_write w;                                     /* first */
    char *name, *experiment, *tags, *notes, *config, *body; /* owned; NULL = the default */
    int64_t total_steps;
};

static void opening_done(struct api_write *w)
{
    struct opening *o = (struct opening *)(void *)w;

    free(o->name);
    free(o->experiment);
    free(o->tags);
    free(o->notes);
    free(o->config);
    free(o->body);
}

static enum pd_err opening_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct opening *o = (struct opening *)(void *)w;
    char digest[DIGEST_SHA256_HEX_SIZE];
    struct store_job_new job = {.kind = JOB_KIND_EXTERNAL,
                                .name = o->name ? o->name : "run",
                                .experiment = o->experiment ? o->experiment : "default",
                                .tags = o->tags,
                                .notes = o->notes,
                                .document = o->body};
    struct store_run_new run = {.document = o->config ? o->config : "{}",
                                .config_digest = digest,
                                .device = "",
                                .total_steps = o->total_steps};
    struct store_run row = {.version = 1,
                            .kind = job.kind,
                            .state = JOB_RUN_RUNNING,
                            .name = job.name,
                            .experiment = job.experiment,
                            .reason = "",
                            .device = "",
                            .total_steps = o->total_steps,
                            .config_digest = digest,
                            .plan_digest = "",
                            .document = run.document,
                            .sweep = "{}",
                            .tags = o->tags ? o->tags : "{}"};
    enum pd_err err = store_job_insert(tx, &job, &row.job_id, why);

    digest_sha256_hex(run.document, strlen(run.document), digest);
    if (err == PD_OK)
        err = store_run_insert(tx, row.job_id, &run, &row.id, why);
    if (err != PD_OK)
        return err;
    row.created_us = row.started_us = store_tx_now_us(tx);
    api_row_run(&w->answer, &row, NULL, NULL, API_ROW_FULL);
    w->status = 201;
    return PD_OK;
}

static void opening_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (w)
        api_write_created(r, w, "/api/v1/runs");
}

/* A copy of a text of `least` to `most` bytes; fails the request otherwise. */
static char *text_of(struct api_req *r, const char *key, const json_t *value, size_t least, size_t most)
{
    size_t len = json_is_string(value) ? json_string_length(value) : 0;
    char *copy;

    if (!json_is_string(value) || len < least || len > most || strlen(json_string_value(value)) != len) {
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be a text of %zu to %zu bytes", key, least, most);
        return NULL;
    }
    copy = strdup(json_string_value(value));
    if (!copy)
        api_fail(r, PD_ERR_NOMEM, "no memory for the run");
    return copy;
}

static char *json_of(struct api_req *r, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(15));

    if (!text)
        api_fail(r, PD_ERR_NOMEM, "no memory for the run");
    return text;
}

/* Whether the levels of config and the names in it are within the limits; fails the request otherwise. Deeper JSON
 * would stop every query that looks into documents: SQLite reads 1000 or 2000 levels. */
static bool config_fits(struct api_req *r, const json_t *value, int depth)
{
    const char *key;
    json_t *member;
    size_t i;

    if (depth > JOB_MAX_DEPTH && (json_is_object(value) || json_is_array(value)))
        api_fail_param(r, PD_ERR_INVALID, "config", "config may be nested %d levels deep", JOB_MAX_DEPTH);
    json_object_foreach((json_t *)value, key, member)
    {
        if (strlen(key) > CONFIG_KEY_MAX)
            api_fail_param(r, PD_ERR_INVALID, "config",
                           "a member of config may have a name of at most %d bytes: '%.60s...'",
                           CONFIG_KEY_MAX, key);
        if (api_failed(r) || !config_fits(r, member, depth + 1))
            return false;
    }
    json_array_foreach(value, i, member)
    {
        if (api_failed(r) || !config_fits(r, member, depth + 1))
            return false;
    }
    return !api_failed(r);
}

static void opening_member(struct api_req *r, struct opening *o, const char *key, json_t *value)
{
    if (!strcmp(key, "name"))
        o->name = text_of(r, key, value, 1, 200);
    else if (!strcmp(key, "experiment"))
        o->experiment = text_of(r, key, value, 1, 128);
    else if (!strcmp(key, "notes"))
        o->notes = text_of(r, key, value, 0, 65536);
    else if (!strcmp(key, "tags"))
        o->tags = api_tags_ok(r, value) ? json_of(r, value) : NULL;
    else if (!strcmp(key, "config") && !json_is_object(value))
        api_fail_param(r, PD_ERR_INVALID, key, "config must be an object: {\"lr\": 0.1}");
    else if (!strcmp(key, "config"))
        o->config = config_fits(r, value, 1) ? json_of(r, value) : NULL;
    else if (strcmp(key, "total_steps") != 0)
        api_fail_param(
            r, PD_ERR_INVALID, key,
            "unknown member '%.100s'; a run has name, experiment, notes, tags, config and total_steps", key);
    else if (!json_is_integer(value) || json_integer_value(value) < 1)
        api_fail_param(r, PD_ERR_INVALID, key, "total_steps must be an integer of at least 1");
    else
        o->total_steps = json_integer_value(value);
}

void api_run_open(struct api_req *r)
{
    struct opening parsed = {.total_steps = -1}, *o;
    struct api_write *w;
    const char *key;
    json_t *body, *value;

    if (api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and opens no new runs");
        return;
    }
    body = api_body_json(r, 0);
    if (!body)
        return;
    json_object_foreach(body, key, value)
    {
        if (!api_failed(r))
            opening_member(r, &parsed, key, value);
    }
    if (!api_failed(r))
        parsed.body = json_of(r, body);
    json_decref(body);
    w = api_failed(r) || (!api_write_repeated(r) && !api_job_reserve(r))
            ? NULL
            : api_write_begin(r, sizeof *o, true, opening_done, opening_answer);
    if (!w) {
        opening_done(&parsed.w);
        return;
    }
    o = (struct opening *)(void *)w;
    o->name = parsed.name; /* moved, all of them */
    o->experiment = parsed.experiment;
    o->tags = parsed.tags;
    o->notes = parsed.notes;
    o->config = parsed.config;
    o->body = parsed.body;
    o->total_steps = parsed.total_steps;
    w->apply = opening_apply;
    api_write_submit(w, STORE_LANE_COMMAND, 4);
}

/* ---- reports, end ----------------------------------------------------------------------- */

struct report {
    struct api_write w; /* first */
    int64_t id, version;
    enum job_outcome outcome;
    char reason[512];
};

static void report_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (w)
        api_answer_run(r, ((struct report *)(void *)w)->id, false);
}

static enum pd_err beat_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    w->status = 200;
    return store_run_beat(tx, ((struct report *)(void *)w)->id, why);
}

void api_run_heartbeat(struct api_req *r)
{
    int64_t id = api_param_id(r, 0);
    struct api_write *w;

    if (!id || !api_empty_body(r))
        return;
    w = api_write_begin(r, sizeof(struct report), false, NULL, report_answer);
    if (!w)
        return;
    ((struct report *)(void *)w)->id = id;
    w->apply = beat_apply;
    api_write_submit(w, STORE_LANE_COMMAND, 1);
}

static enum pd_err finish_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct report *p = (struct report *)(void *)w;

    w->status = 200;
    return store_run_finish(tx, p->id, p->version, p->outcome, p->reason, why);
}

static bool finish_read(struct api_req *r, struct report *p)
{
    static const enum job_outcome allowed[] = {JOB_OUTCOME_SUCCEEDED, JOB_OUTCOME_FAILED,
                                               JOB_OUTCOME_CANCELLED};
    json_t *body = api_body_json(r, 0), *outcome, *value;
    const char *key;
    bool known = false;

    if (!body)
        return false;
    outcome = json_object_get(body, "outcome");
    for (size_t i = 0; json_is_string(outcome) && i < sizeof allowed / sizeof *allowed; i++)
        if (!strcmp(json_string_value(outcome), job_outcome_name(allowed[i]))) {
            p->outcome = allowed[i];
            known = true;
        }
    if (!known)
        api_fail_param(r, PD_ERR_INVALID, "outcome", "outcome must be succeeded, failed or cancelled");
    json_object_foreach(body, key, value)
    {
        if (api_failed(r) || !strcmp(key, "outcome"))
            continue;
        if (strcmp(key, "reason") != 0)
            api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'; outcome and reason are known",
                           key);
        else if (!json_is_string(value) || json_string_length(value) > 500)
            api_fail_param(r, PD_ERR_INVALID, key, "reason must be a text of at most 500 bytes");
        else
            snprintf(p->reason, sizeof p->reason, "%s", json_string_value(value));
    }
    json_decref(body);
    return !api_failed(r);
}

void api_run_finish(struct api_req *r)
{
    struct report parsed = {.id = api_param_id(r, 0)}, *p;
    struct api_write *w;

    if (!parsed.id || !api_if_match(r, false, &parsed.version) || !finish_read(r, &parsed))
        return;
    w = api_write_begin(r, sizeof *p, true, NULL, report_answer);
    if (!w)
        return;
    p = (struct report *)(void *)w;
    p->id = parsed.id;
    p->version = parsed.version;
    p->outcome = parsed.outcome;
    memcpy(p->reason, parsed.reason, sizeof p->reason);
    w->apply = finish_apply;
    api_write_submit(w, STORE_LANE_COMMAND, 4);
}

/* ---- its log ---------------------------------------------------------------------------------- */

struct log_write {
    struct api_write w; /* first */
    int64_t id, size;   /* size: of the log with the text */
    char path[4096];
    char *text; /* owned */
    size_t len;
};

static void log_done(struct api_write *w)
{
    free(((struct log_write *)(void *)w)->text);
}

/* Writes the text behind the first `bytes` bytes of the file, made if absent. What lies beyond them was never committed. */
static enum pd_err put_text(const struct log_write *l, int64_t bytes, int64_t *ret_size, struct pd_why *why)
{
    char dir[sizeof l->path];
    struct stat st = {.st_size = 0};
    enum pd_err err;
    int fd;

    snprintf(dir, sizeof dir, "%s", l->path);
    *strrchr(dir, '/') = '\0';
    err = pd_file_make_dirs(dir, why);
    if (err != PD_OK)
        return err;
    fd = open(l->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || fstat(fd, &st))
        err = pd_fail_errno(why, errno, "cannot open the run's log");
    if (st.st_size < bytes) /* the machine lost its power: the row reached the disk, the text did not */
        bytes = st.st_size;
    if (err == PD_OK && (ftruncate(fd, bytes) || lseek(fd, bytes, SEEK_SET) < 0))
        err = pd_fail_errno(why, errno, "cannot write the run's log");
    if (err == PD_OK)
        err = pd_file_write_all(fd, l->text, l->len, why);
    if (fd >= 0)
        close(fd);
    *ret_size = bytes + (int64_t)l->len;
    return err;
}

/* The file first, the row last. On the writer's thread, so that texts of several requests follow each other; repeatable,
 * so that a text whose commit failed, or whose request is repeated, is in the log once. */
static enum pd_err log_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct log_write *l = (struct log_write *)(void *)w;
    int64_t bytes = 0;
    enum pd_err err = store_run_log_begin(tx, l->id, &bytes, why);

    if (err != PD_OK)
        return err;
    if (bytes + (int64_t)l->len > LOG_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "the log of a run may have %lld bytes, this one has %lld",
                       (long long)LOG_MAX, (long long)bytes);
    err = put_text(l, bytes, &l->size, why);
    if (err == PD_OK)
        return store_run_logged(tx, l->id, l->size, why);
    /* Any other fault is of this file alone, not of the disk with the database. */
    return err == PD_ERR_FULL ? err : PD_ERR_INTERNAL;
}

static void log_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);
    struct pd_buf b;

    if (!w)
        return;
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_int(&b, "size", ((struct log_write *)(void *)w)->size);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

void api_run_log_append(struct api_req *r)
{
    const int64_t id = api_param_id(r, 0);
    struct api_run_facts run;
    struct log_write *l;
    struct store *store;
    json_t *body;
    char *text = NULL;
    size_t len = 0;

    if (!id || !(store = api_reader(r)) || !api_run_exists(r, store, id, &run))
        return;
    if (job_kind_info(run.kind)->worker) {
        api_fail(r, PD_ERR_CONFLICT, "run %lld is carried out by polyd: its worker writes its log",
                 (long long)id);
        return;
    }
    body = api_body_json(r, 0);
    if (!body)
        return;
    if (!json_is_string(json_object_get(body, "text")) || json_object_size(body) != 1) {
        api_fail_param(r, PD_ERR_INVALID, "text",
                       "text must be a text, and the only member: {\"text\": \"...\"}");
    } else {
        len = json_string_length(json_object_get(body, "text"));
        text = strdup(json_string_value(json_object_get(body, "text")));
        if (!text)
            api_fail(r, PD_ERR_NOMEM, "no memory for the text");
    }
    json_decref(body);
    l = api_failed(r) ? NULL : (void *)api_write_begin(r, sizeof *l, false, log_done, log_answer);
    if (!l) {
        free(text);
        return;
    }
    l->id = id;
    l->text = text; /* moved */
    l->len = len;
    sup_log_path(api_deps_of(api_of(r))->sup, id, 0, l->path, sizeof l->path);
    l->w.apply = log_apply;
    api_write_submit(&l->w, STORE_LANE_METRICS, 1);
}
