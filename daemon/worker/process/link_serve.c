/* Inference requests and their answers. */
#include "daemon/worker/process/link_internal.h"

#include <errno.h>
#include <stdlib.h>

#include "kernels/base/log.h"

void link_answer(struct link *l, uint64_t id, enum pd_err err, const char *text)
{
    size_t at = wire_begin(&l->ready, WIRE_INFER_RESULT, 0, id);

    wire_put_u32(&l->ready, WIRE_TAG_ERROR, (uint32_t)err);
    wire_put_text(&l->ready, WIRE_TAG_TEXT, text);
    wire_put_u32(&l->ready, WIRE_TAG_LAST, 1);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "answer=dropped request=%llu", (unsigned long long)id);
}

void link_send_ready(struct link *l, const char *signature, uint64_t memory_bytes)
{
    size_t at;

    pthread_mutex_lock(&l->mutex);
    at = wire_begin(&l->ready, WIRE_READY, 0, 0);
    wire_put_text(&l->ready, WIRE_TAG_JSON, signature);
    wire_put_u64(&l->ready, WIRE_TAG_MEMORY, memory_bytes);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "ready=dropped");
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
}

void link_send_load(struct link *l, uint32_t waiting, uint32_t running)
{
    size_t at;

    pthread_mutex_lock(&l->mutex);
    at = wire_begin(&l->ready, WIRE_PROGRESS, 0, 0);
    wire_put_u64(&l->ready, WIRE_TAG_STEP, running);
    wire_put_u64(&l->ready, WIRE_TAG_TOTAL, waiting);
    if (wire_end(&l->ready, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "load=dropped");
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
}

static struct link_request *first_waiting(struct link *l)
{
    for (struct link_request *r = l->requests; r; r = r->next)
        if (!r->taken)
            return r;
    return NULL;
}

enum pd_err link_request_next(struct link *l, int timeout_ms, struct serve_request **ret)
{
    struct timespec until;
    struct link_request *r;
    enum pd_err err = PD_OK;
    int rc = 0;

    link_deadline_after(&until, timeout_ms < 0 ? INT64_C(3600) * 1000000 : (int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&l->mutex);
    while (!(r = first_waiting(l)) && !l->refused && !l->unloading && link_stop_asked(l) == LINK_GO_ON &&
           rc != ETIMEDOUT) {
        if (!timeout_ms)
            break;
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
        if (timeout_ms < 0)
            rc = 0;
    }
    if (l->refused)
        err = PD_ERR_CLOSED;
    else if (r) {
        r->taken = true;
        *ret = &r->pub;
    } else
        err = l->unloading || link_stop_asked(l) != LINK_GO_ON ? PD_ERR_CLOSED : PD_ERR_TIMEOUT;
    pthread_mutex_unlock(&l->mutex);
    return err;
}

bool link_request_cancelled(struct link *l, const struct serve_request *req)
{
    const struct link_request *r = (const struct link_request *)req;
    bool cancelled;

    pthread_mutex_lock(&l->mutex);
    cancelled = r->cancelled || l->refused;
    pthread_mutex_unlock(&l->mutex);
    return cancelled;
}

void link_request_reply(struct link *l, const struct serve_request *req, const struct serve_result *part)
{
    struct link_request *r = (struct link_request *)req;
    struct pd_buf *b = &l->ready;
    size_t at;

    pthread_mutex_lock(&l->mutex);
    if (!r->answered) {
        at = wire_begin(b, WIRE_INFER_RESULT, 0, r->pub.id);
        if (part->err != PD_OK) {
            wire_put_u32(b, WIRE_TAG_ERROR, (uint32_t)part->err);
            wire_put_text(b, WIRE_TAG_TEXT, part->text ? part->text : pd_err_name(part->err));
        }
        if (part->json)
            wire_put_text(b, WIRE_TAG_JSON, part->json);
        for (uint32_t i = 0; i < part->count; i++)
            wire_put_tensor(b, &part->tensors[i]);
        if (part->timing)
            wire_put_timing(b, part->timing);
        if (part->last || part->err != PD_OK)
            wire_put_u32(b, WIRE_TAG_LAST, 1);
        r->answered = part->last || part->err != PD_OK;
        if (wire_end(b, at) != PD_OK) {
            link_answer(l, r->pub.id, PD_ERR_LIMIT, "the answer is too large");
            r->answered = true;
        }
    }
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
}

void link_request_done(struct link *l, struct serve_request *req)
{
    struct link_request *r = (struct link_request *)req;

    pthread_mutex_lock(&l->mutex);
    if (!r->answered)
        link_answer(l, r->pub.id, PD_ERR_INTERNAL, "the model gave no answer");
    for (struct link_request **at = &l->requests; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            if (!r->next)
                l->requests_tail = at;
            break;
        }
    l->request_count--;
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
    free(r->payload);
    free(r->json);
    free(r);
}
