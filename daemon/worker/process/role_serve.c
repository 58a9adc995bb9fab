/* One thread does everything: it takes what has come, and between two takings it runs one batch of the
 * classifier (and one slice of a request larger than a batch) or one step of all open completions together.
 * So a new request waits for at most one round, several completions advance concurrently, and no lock is
 * needed. When nothing is open it sleeps in host->next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/process/role_serve_internal.h"
#include "daemon/worker/process/role_tokens.h"
#include "kernels/base/clock.h"

/* ---- answering ---- */

void role_item_free(struct role *r, struct item *it)
{
    struct pd_buf *bufs[] = {&it->prepared, &it->prompt,      &it->text,       &it->tokens,
                             &it->lengths,  &it->logprobs,    &it->top_tokens, &it->top_logprobs,
                             &it->top_text, &it->top_lengths, &it->end};

    serve_stream_close(it->stream);
    free(it->scores.logits);
    free(it->scores.probabilities);
    free(it->scores.classes);
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        pd_buf_done(bufs[i]);
    r->host->done(r->host->ctx, it->req);
    free(it);
}

static void reply_error(struct role *r, struct serve_request *req, enum pd_err err, const char *text)
{
    struct serve_result part = {.err = err, .text = text, .last = true};

    r->host->reply(r->host->ctx, req, &part);
}

void role_item_fail(struct role *r, struct item *it, enum pd_err err, const char *text)
{
    reply_error(r, it->req, err, text);
    role_item_free(r, it);
}

enum pd_err role_unwanted(const struct role *r, const struct item *it, struct pd_why *why)
{
    if (r->host->cancelled(r->host->ctx, it->req))
        return pd_fail(why, PD_ERR_CANCELLED, "the client disconnected");
    if (it->req->deadline_us && !it->made && pd_clock_mono_us() >= it->req->deadline_us)
        return pd_fail(why, PD_ERR_TIMEOUT, "the deadline passed while the answer was computed");
    return PD_OK;
}

/* The name is one of ours: it fits. */
struct wire_tensor role_tensor(const char *name, const char *dtype, const void *data, size_t bytes,
                               int64_t rows, int64_t columns)
{
    struct wire_tensor t = {
        .rank = columns < 0 ? 1 : 2, .shape = {rows, columns < 0 ? 0 : columns}, .bytes = bytes};

    snprintf(t.name, sizeof t.name, "%s", name);
    snprintf(t.dtype, sizeof t.dtype, "%s", dtype);
    t.data = data ? data : "";
    return t;
}

struct wire_timing role_timing(const struct item *it, uint64_t batch, uint64_t tokens)
{
    return (struct wire_timing){
        .queue_us = (uint64_t)(it->begun_us - it->arrived_us),
        .compute_us = (uint64_t)(pd_clock_mono_us() - it->begun_us),
        .batch = batch,
        .tokens = tokens,
        .first_us = it->first_us ? (uint64_t)(it->first_us - it->arrived_us) : 0,
        .span_us = (uint64_t)(it->last_us - it->first_us),
    };
}

/* ---- the loop ---- */

static const struct role_kind *const kinds[] = {&role_kind_classify, &role_kind_classify_text,
                                                &role_kind_field, &role_kind_language};
enum { KINDS = sizeof kinds / sizeof *kinds };

static bool request_known(const char *request)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i]->request, request))
            return true;
    return false;
}

static const struct role_kind *kind_of(const struct serve_info *info)
{
    for (size_t i = 0; i < KINDS; i++)
        if (kinds[i]->form == info->kind)
            return kinds[i];
    return NULL;
}

static int64_t company_us(struct role *r)
{
    return r->kind->company_us ? r->kind->company_us(r) : 0;
}

static void admit(struct role *r, struct serve_request *req)
{
    struct item *it = NULL;
    struct pd_why why = {{0}};
    enum pd_err err;

    if (role_tokens_is(req)) {
        role_tokens_answer(r->host, r->model, req);
        r->host->done(r->host->ctx, req);
        return;
    }
    if (!request_known(req->kind)) {
        err = pd_fail(&why, PD_ERR_INVALID, "unknown request kind '%.15s'", req->kind);
        goto out;
    }
    if (strcmp(req->kind, r->kind->request) != 0) {
        err = pd_fail(&why, PD_ERR_UNSUPPORTED, "model %s is a %s", r->host->model, r->kind->refusal);
        goto out;
    }
    it = calloc(1, sizeof *it);
    if (!it) {
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a request");
        goto out;
    }
    it->req = req;
    it->arrived_us = pd_clock_mono_us();
    err = r->kind->read(r, it, &why);
    if (err != PD_OK)
        goto out;
    err = r->kind->push(r, it);
    if (err != PD_OK) {
        err = pd_fail(&why, err, "the queue of model %s is full", r->host->model);
        goto out;
    }
    return;
out:
    if (it) {
        role_item_fail(r, it, err, why.text);
    } else {
        reply_error(r, req, err, why.text);
        r->host->done(r->host->ctx, req);
    }
}

static bool is_gone(void *user, void *item)
{
    struct role *r = user;

    return r->host->cancelled(r->host->ctx, ((struct item *)item)->req);
}

static void drop_waiting(struct role *r)
{
    struct item *it;
    bool late;

    while ((it = serve_queue_drop(r->queue, pd_clock_mono_us(), is_gone, r, &late)))
        role_item_fail(r, it, late ? PD_ERR_TIMEOUT : PD_ERR_CANCELLED,
                       late ? "the deadline passed while the request waited" : "the client disconnected");
}

static void serve_requests(struct role *r)
{
    for (;;) {
        bool idle = !r->running && !r->large && serve_queue_count(r->queue) == 0;
        int64_t patience_us = r->large ? 0 : company_us(r);
        struct serve_request *req = NULL;
        enum pd_err err = r->host->next(r->host->ctx, idle ? -1 : (int)((patience_us + 999) / 1000), &req);

        while (err == PD_OK) {
            admit(r, req);
            err = r->host->next(r->host->ctx, 0, &req);
        }
        if (err == PD_ERR_CLOSED)
            break;
        drop_waiting(r);
        if (!r->large && company_us(r))
            continue;
        r->kind->run(r);
        if (!r->running && !r->large && serve_queue_count(r->queue) == 0)
            r->host->load(r->host->ctx, 0, 0);
    }
    for (struct item *it = r->running, *next; it; it = next) {
        next = it->next;
        role_item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
    }
    for (struct item *it = r->large, *next; it; it = next) {
        next = it->next;
        role_item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
    }
    for (struct item *it; (it = serve_queue_pop(r->queue));)
        role_item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
}

enum pd_err serve_run(const struct serve_host *host, struct pd_why *why)
{
    struct role r = {.host = host};
    struct serve_options options = {.job = host->job,
                                    .job_len = host->job ? strlen(host->job) : 0,
                                    .checkpoint = host->checkpoint,
                                    .digest = host->digest,
                                    .threads = (int)host->threads,
                                    .bf16_weights = host->bf16_weights,
                                    .cuda = host->cuda,
                                    .store = host->tuned,
                                    .memory = host->memory_kind == 1   ? SERVE_MEMORY_CACHE
                                              : host->memory_kind == 2 ? SERVE_MEMORY_STATE
                                                                       : SERVE_MEMORY_AUTO,
                                    .memory_max = host->memory_bytes};
    struct serve_memory memory;
    struct pd_buf signature;
    enum pd_err err;

    pd_buf_init(&signature, 0);
    r.batch = calloc(ROLE_SERVE_QUEUE, sizeof(struct item *));
    r.batch_samples = calloc(ROLE_SERVE_QUEUE, sizeof *r.batch_samples);
    err = serve_queue_new(ROLE_SERVE_QUEUE, ROLE_SERVE_COST, &r.queue);
    if (err != PD_OK || !r.batch || !r.batch_samples) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the queue");
        goto out;
    }
    err = serve_open(&options, &r.model, why);
    if (err != PD_OK)
        goto out;
    r.info = serve_info(r.model);
    r.kind = kind_of(r.info);
    if (!r.kind) {
        err = pd_fail(why, PD_ERR_UNSUPPORTED, "this build cannot serve a %s", serve_kind_name(r.info->kind));
        goto out;
    }
    err = serve_signature(r.model, &signature);
    if (err != PD_OK) {
        err = pd_fail(why, err, "no memory for the signature");
        goto out;
    }
    serve_memory(r.model, &memory);
    host->ready(host->ctx, signature.data, memory.most_bytes);
    serve_requests(&r);
out:
    pd_buf_done(&signature);
    serve_close(r.model);
    serve_queue_free(r.queue);
    free(r.batch_samples);
    free(r.batch);
    return err;
}
