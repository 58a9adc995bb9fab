/* Requests for inference: HTTP threads put one straight into the worker's connection (under sup.mutex), so
 * that only the way back passes the supervisor's thread. */
#include <stdlib.h>
#include <string.h>

#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"

const double sup_hist_seconds[SUP_HIST_BOUNDS] = {0.0001, 0.0003, 0.001, 0.003, 0.005, 0.01, 0.02,
                                                  0.05,   0.1,    0.25,  0.5,   1,     5,    30};
const double sup_hist_batch[SUP_HIST_BOUNDS] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256};

static void observe(struct sup_hist *h, const double *bounds, double value, int64_t times)
{
    int i = 0;

    while (i < SUP_HIST_BOUNDS && value > bounds[i])
        i++;
    h->count[i] += times;
    h->sum += value * (double)times;
}

/* Mutex held. The gaps between the tokens of a completion count as so many of their mean. */
static void take_timing(struct model *m, const struct wire_timing *t)
{
    struct sup_infer_stats *s = &m->stats;

    observe(&s->batch, sup_hist_batch, (double)t->batch, 1);
    observe(&s->queue, sup_hist_seconds, 1e-6 * (double)t->queue_us, 1);
    observe(&s->compute, sup_hist_seconds, 1e-6 * (double)t->compute_us, 1);
    s->tokens += (int64_t)t->tokens;
    if (t->first_us)
        observe(&s->first_token, sup_hist_seconds, 1e-6 * (double)t->first_us, 1);
    if (t->tokens > 1)
        observe(&s->inter_token, sup_hist_seconds, 1e-6 * (double)t->span_us / (double)(t->tokens - 1),
                (int64_t)t->tokens - 1);
}

static void end_call(struct model *m, struct call *c, enum pd_err err, const char *text)
{
    struct sup_result r = {
        .err = err, .text = text, .json = "", .last = true, .model = m->name, .version = m->version};

    c->part(c->ctx, &r);
    free(c);
}

/* Every open request gets its end. */
void model_fail_calls(struct sup *s, struct model *m, enum pd_err err, const char *text)
{
    struct call *c, *next;

    pthread_mutex_lock(&s->mutex);
    c = m->calls;
    m->calls = NULL;
    for (struct call *each = c; each; each = each->next)
        m->failures++;
    m->in_flight = m->waiting = m->running = 0;
    pthread_mutex_unlock(&s->mutex);
    for (; c; c = next) {
        next = c->next;
        end_call(m, c, c->cancelled ? PD_ERR_CANCELLED : err, text);
    }
}

/* ---- the way back --------------------------------------------------------------------------- */

void model_result(struct sup *s, struct model *m, uint64_t id, const uint8_t *p, size_t len)
{
    struct wire_tensor tensors[WIRE_TENSORS_MAX];
    struct sup_result r = {.json = "", .tensors = tensors, .model = m->name, .version = m->version};
    struct wire_timing timing;
    struct call *c;
    struct wire_field f;
    struct pd_why why;
    char text[512], *json = NULL;
    size_t pos = 0;

    r.last = wire_get_u32(p, len, WIRE_TAG_LAST, 0) != 0;
    r.err = (enum pd_err)wire_get_u32(p, len, WIRE_TAG_ERROR, PD_OK);
    if (r.err != PD_OK) {
        if (r.err >= PD_ERR_COUNT)
            r.err = PD_ERR_INTERNAL;
        wire_get_text(p, len, WIRE_TAG_TEXT, text, sizeof text);
        r.text = text;
        r.last = true;
    }
    while (wire_next(p, len, &pos, &f, NULL)) {
        if (f.tag == WIRE_TAG_JSON && !json) {
            json = strndup((const char *)f.bytes, f.len);
            r.json = json ? json : "";
            r.json_len = json ? f.len : 0;
        } else if (f.tag == WIRE_TAG_TENSOR && r.count < WIRE_TENSORS_MAX &&
                   wire_get_tensor(&f, &tensors[r.count], &why) == PD_OK)
            r.count++;
    }
    pthread_mutex_lock(&s->mutex);
    for (c = m->calls; c && c->id != id; c = c->next) {
    }
    if (c && r.last) {
        for (struct call **at = &m->calls; *at; at = &(*at)->next)
            if (*at == c) {
                *at = c->next;
                break;
            }
        m->in_flight--;
        if (r.err != PD_OK && !c->cancelled)
            m->failures++;
        m->stats.rejected += r.err == PD_ERR_BUSY;
        if (wire_get_timing(p, len, &timing))
            take_timing(m, &timing);
    }
    pthread_mutex_unlock(&s->mutex);
    if (c) { /* else: timed out or given up before */
        c->part(c->ctx, &r);
        if (r.last)
            free(c);
    }
    free(json);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

/* Mutex held. */
static void put_cancel(struct model *m, uint64_t id)
{
    size_t at;

    if (!m->conn)
        return;
    at = wire_begin(&m->conn->out, WIRE_CANCEL, 0, 0);
    wire_put_u64(&m->conn->out, WIRE_TAG_REQUEST, id);
    if (wire_end(&m->conn->out, at) != PD_OK)
        m->conn->out.failed = true;
}

void model_expire_calls(struct sup *s, struct model *m, int64_t now_us)
{
    struct call *late = NULL, *next;

    pthread_mutex_lock(&s->mutex);
    for (struct call **at = &m->calls; *at;) {
        struct call *c = *at;

        if (!c->deadline_us || now_us < c->deadline_us) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->next = late;
        late = c;
        m->in_flight--;
        m->failures++;
        put_cancel(m, c->id);
    }
    pthread_mutex_unlock(&s->mutex);
    for (; late; late = next) {
        next = late->next;
        end_call(m, late, PD_ERR_TIMEOUT, "the deadline passed");
    }
}

/* ---- from other threads --------------------------------------------------------------------- */

/* Mutex held: sends what it can now; the supervisor's thread does the rest when the socket has room. */
static void push(struct sup *s, struct conn *c)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = &c->source};
    struct pd_why why;

    if (c->out.failed || wire_out_write(&c->out, c->fd, &why) != PD_OK)
        return; /* the thread meets the same failure and closes */
    if (c->out.len && c->events != e.events) {
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
        c->events = e.events;
    }
}

enum pd_err sup_infer(struct sup *s, const struct sup_infer *req, uint64_t *ret_id, struct pd_why *why)
{
    struct call *c = calloc(1, sizeof *c);
    struct model *m;
    enum pd_err err = PD_OK;
    size_t at;

    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a request");
    *c = (struct call){.id = atomic_fetch_add(&s->next_call, 1),
                       .deadline_us = req->deadline_us > 0 ? pd_clock_mono_us() + req->deadline_us : 0,
                       .part = req->part,
                       .ctx = req->ctx};
    pthread_mutex_lock(&s->mutex);
    m = model_find(s, req->model, req->version);
    if (!m) {
        /* Say "try again" while a version of it is on its way. */
        for (struct model *other = s->models; other && !m; other = other->next)
            if (!strcmp(other->name, req->model) && other->state == SUP_MODEL_LOADING)
                m = other;
        err = m ? pd_fail(why, PD_ERR_CLOSED, "model '%s' is loading", req->model)
                : model_unknown(s, req->model, why);
    } else if (m->state != SUP_MODEL_READY || !m->conn || s->stopping)
        err = m->state == SUP_MODEL_UNAVAILABLE
                  ? pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded: %s", req->model, m->reason)
                  : pd_fail(why, PD_ERR_CLOSED, "model '%s' is %s", req->model,
                            m->state == SUP_MODEL_UNLOADING ? "being unloaded" : "loading");
    else if (m->in_flight >= s->o.infer_queue) {
        err = pd_fail(why, PD_ERR_BUSY, "model '%s' has %d requests waiting", req->model, m->in_flight);
        m->stats.rejected++;
    } else {
        struct pd_buf *b = &m->conn->out;

        at = wire_begin(b, WIRE_INFER, 0, c->id);
        wire_put_text(b, WIRE_TAG_KIND, req->kind);
        if (req->deadline_us > 0)
            wire_put_u64(b, WIRE_TAG_DEADLINE_US, (uint64_t)req->deadline_us);
        if (req->json)
            wire_put_bytes(b, WIRE_TAG_JSON, req->json, req->json_len);
        for (uint32_t i = 0; i < req->count; i++)
            wire_put_tensor(b, &req->tensors[i]);
        err = wire_end(b, at);
        if (err != PD_OK)
            err = pd_fail(why, err, "the request exceeds %u bytes", WIRE_PAYLOAD_MAX);
        else {
            c->next = m->calls;
            m->calls = c;
            m->in_flight++;
            m->requests++;
            *ret_id = c->id;
            c = NULL; /* moved */
            push(s, m->conn);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    free(c);
    return err;
}

void sup_infer_cancel(struct sup *s, uint64_t id)
{
    pthread_mutex_lock(&s->mutex);
    for (struct model *m = s->models; m; m = m->next)
        for (struct call *c = m->calls; c; c = c->next)
            if (c->id == id && !c->cancelled) {
                c->cancelled = true;
                put_cancel(m, id);
                if (m->conn)
                    push(s, m->conn);
            }
    pthread_mutex_unlock(&s->mutex);
}
