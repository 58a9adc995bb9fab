/* Requests for inference: other threads make the frame and put it into the model's inbox; the loop's thread
 * sends it and takes the answer. One wake of that thread carries all requests that come before it wakes. */
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/serving/internal.h"
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

/* Lock held. The gaps between the tokens of a completion count as so many of their mean. */
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
    pd_buf_done(&c->frame);
    free(c);
}

/* Ends a list of calls that were taken off the model's. */
static void end_calls(struct model *m, struct call *list, enum pd_err err, const char *text)
{
    struct call *next;

    for (; list; list = next) {
        next = list->next;
        end_call(m, list, list->cancelled ? PD_ERR_CANCELLED : err, text);
    }
}

/* Lock held. Moves the calls for which `which` says true to the front of *to. */
static int take_calls(struct call **from, struct call **to,
                      bool (*which)(const struct call *c, int64_t now_us), int64_t now_us)
{
    int count = 0;

    while (*from) {
        struct call *c = *from;

        if (!which(c, now_us)) {
            from = &c->next;
            continue;
        }
        *from = c->next;
        c->next = *to;
        *to = c;
        count++;
    }
    return count;
}

/* Lock held. */
static int take_unsent(struct model *m, struct call **to, bool (*which)(const struct call *c, int64_t now_us),
                       int64_t now_us)
{
    int count = take_calls(&m->inbox, to, which, now_us);

    for (m->inbox_tail = &m->inbox; *m->inbox_tail; m->inbox_tail = &(*m->inbox_tail)->next) {
    }
    return count;
}

static bool is_any(const struct call *c, int64_t now_us)
{
    (void)c;
    (void)now_us;
    return true;
}

static bool is_late(const struct call *c, int64_t now_us)
{
    return c->deadline_us && now_us >= c->deadline_us;
}

static bool is_cancelled(const struct call *c, int64_t now_us)
{
    (void)now_us;
    return c->cancelled;
}

void model_fail_calls(struct serving *s, struct model *m, enum pd_err err, const char *text)
{
    struct call *list = NULL;

    pthread_mutex_lock(&s->lock);
    m->failures += take_calls(&m->calls, &list, is_any, 0) + take_unsent(m, &list, is_any, 0);
    m->in_flight = m->waiting = m->running = m->cancels_due = 0;
    pthread_mutex_unlock(&s->lock);
    end_calls(m, list, err, text);
}

/* ---- to the worker --------------------------------------------------------------------------- */

static void put_cancel(struct model *m, uint64_t id)
{
    size_t at;

    if (!m->conn)
        return;
    at = wire_begin(conn_out(m->conn), WIRE_CANCEL, 0, 0);
    wire_put_u64(conn_out(m->conn), WIRE_TAG_REQUEST, id);
    conn_end(m->conn, at);
}

/* Tells the worker of the requests that were cancelled after they had been sent, and ends the others. */
static void send_cancels(struct serving *s, struct model *m)
{
    struct call *unsent = NULL;

    pthread_mutex_lock(&s->lock);
    if (m->cancels_due) {
        for (struct call *c = m->calls; c; c = c->next)
            if (c->cancel_due) {
                c->cancel_due = false;
                put_cancel(m, c->id);
            }
        m->in_flight -= take_unsent(m, &unsent, is_cancelled, 0);
        m->cancels_due = 0;
    }
    pthread_mutex_unlock(&s->lock);
    end_calls(m, unsent, PD_ERR_CANCELLED, "the request was cancelled");
}

/* Moves the oldest request of the inbox to the sent ones; NULL = none, or no space for it. */
static struct call *next_to_send(struct serving *s, struct model *m, bool all)
{
    struct call *c;

    pthread_mutex_lock(&s->lock);
    c = m->inbox;
    if (c && !all && !conn_can_send(m->conn, c->frame.len))
        c = NULL;
    if (c) {
        m->inbox = c->next;
        if (!m->inbox)
            m->inbox_tail = &m->inbox;
        c->next = m->calls;
        m->calls = c;
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

void model_send(struct serving *s, struct model *m, bool all)
{
    struct call *c;
    bool more = true;

    send_cancels(s, m);
    while (more && m->conn) {
        for (more = false; (c = next_to_send(s, m, all)); more = true)
            conn_send(m->conn, &c->frame);
        conn_flush(m->conn);
    }
}

/* ---- the way back --------------------------------------------------------------------------- */

void model_result(struct serving *s, struct model *m, uint64_t id, const uint8_t *p, size_t len)
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
    pthread_mutex_lock(&s->lock);
    for (c = m->calls; c && c->id != id; c = c->next) {
    }
    if (c && c->deadline_us)
        c->deadline_us = pd_clock_mono_us() + c->patience_us;
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
    pthread_mutex_unlock(&s->lock);
    if (c) { /* else: timed out or given up before */
        c->part(c->ctx, &r);
        if (r.last) {
            pd_buf_done(&c->frame);
            free(c);
        }
    }
    free(json);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

void model_expire_calls(struct serving *s, struct model *m, int64_t now_us)
{
    struct call *late = NULL, *unsent = NULL;
    int count;

    pthread_mutex_lock(&s->lock);
    count = take_calls(&m->calls, &late, is_late, now_us) + take_unsent(m, &unsent, is_late, now_us);
    m->in_flight -= count;
    m->failures += count;
    pthread_mutex_unlock(&s->lock);
    for (const struct call *c = late; c; c = c->next)
        put_cancel(m, c->id);
    end_calls(m, late, PD_ERR_TIMEOUT, "the deadline passed");
    end_calls(m, unsent, PD_ERR_TIMEOUT, "the deadline passed");
}

/* ---- from other threads --------------------------------------------------------------------- */

/* The loop's thread: something is in an inbox, or was cancelled. */
static void look_into_inboxes(struct loop_post *p)
{
    struct serving *s = ((struct inbox_post *)p)->serving;

    pthread_mutex_lock(&s->lock);
    s->inbox.posted = false;
    pthread_mutex_unlock(&s->lock);
    for (struct model *m = s->models; m; m = m->next)
        model_send(s, m, false);
}

/* After a change of an inbox, without the lock. `posted`: what s->inbox.posted was when that was made. */
static void wake(struct serving *s, bool posted)
{
    if (posted)
        return;
    s->inbox.post.fn = look_into_inboxes;
    loop_post(s->loop, &s->inbox.post);
}

/* Lock held. The model that takes the request, or why none does. */
static enum pd_err admit(struct serving *s, const struct sup_infer *req, struct model **ret,
                         struct pd_why *why)
{
    struct model *m = *ret = model_find(s, req->model, req->version);

    if (!m) {
        /* Say "try again" while a version of it is on its way. */
        for (struct model *other = s->models; other && !m; other = other->next)
            if (!strcmp(other->name, req->model) && other->state == SUP_MODEL_LOADING)
                m = other;
        return m ? pd_fail(why, PD_ERR_CLOSED, "model '%s' is loading", req->model)
                 : model_unknown(s, req->model, req->version, why);
    }
    if (m->state != SUP_MODEL_READY || !m->peer || loop_stopping(s->loop))
        return m->state == SUP_MODEL_UNAVAILABLE
                   ? pd_fail(why, PD_ERR_NOT_FOUND, "model '%s' is not loaded: %s", req->model, m->reason)
                   : pd_fail(why, PD_ERR_CLOSED, "model '%s' is %s", req->model,
                             m->state == SUP_MODEL_UNLOADING ? "being unloaded" : "loading");
    if (m->in_flight >= s->o->infer_queue) {
        m->stats.rejected++;
        return pd_fail(why, PD_ERR_BUSY, "the queue of model '%s' is full with %d requests", req->model,
                       m->in_flight);
    }
    return PD_OK;
}

static enum pd_err make_frame(const struct sup_infer *req, struct call *c, struct pd_why *why)
{
    struct pd_buf *b = &c->frame;
    size_t at = wire_begin(b, WIRE_INFER, 0, c->id);
    enum pd_err err;

    wire_put_text(b, WIRE_TAG_KIND, req->kind);
    if (req->deadline_us > 0)
        wire_put_u64(b, WIRE_TAG_DEADLINE_US, (uint64_t)req->deadline_us);
    if (req->json)
        wire_put_bytes(b, WIRE_TAG_JSON, req->json, req->json_len);
    for (uint32_t i = 0; i < req->count; i++)
        wire_put_tensor(b, &req->tensors[i]);
    err = wire_end(b, at);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "the request exceeds %u bytes", WIRE_PAYLOAD_MAX);
}

enum pd_err serving_infer(struct serving *s, const struct sup_infer *req, uint64_t *ret_id,
                          struct pd_why *why)
{
    struct call *c;
    struct model *m;
    enum pd_err err;
    bool posted;

    /* Asked before the frame is made, which may have megabytes, and again when it is accepted. */
    pthread_mutex_lock(&s->lock);
    err = admit(s, req, &m, why);
    pthread_mutex_unlock(&s->lock);
    if (err != PD_OK)
        return err;
    c = calloc(1, sizeof *c);
    if (!c)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a request");
    *c = (struct call){.id = atomic_fetch_add(&s->next_call, 1),
                       .deadline_us = req->deadline_us > 0 ? pd_clock_mono_us() + req->deadline_us : 0,
                       .patience_us = req->deadline_us,
                       .part = req->part,
                       .ctx = req->ctx};
    pd_buf_init(&c->frame, 0);
    err = make_frame(req, c, why);
    pthread_mutex_lock(&s->lock);
    if (err == PD_OK)
        err = admit(s, req, &m, why);
    posted = s->inbox.posted;
    if (err == PD_OK) {
        *ret_id = c->id;
        *m->inbox_tail = c;
        m->inbox_tail = &c->next;
        c = NULL; /* moved */
        m->in_flight++;
        m->requests++;
        s->inbox.posted = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (err == PD_OK)
        wake(s, posted);
    else {
        pd_buf_done(&c->frame);
        free(c);
    }
    return err;
}

/* Lock held. */
static bool mark_cancelled(struct model *m, struct call *list, uint64_t id)
{
    for (struct call *c = list; c; c = c->next)
        if (c->id == id && !c->cancelled) {
            c->cancelled = c->cancel_due = true;
            m->cancels_due++;
            return true;
        }
    return false;
}

void serving_cancel(struct serving *s, uint64_t id)
{
    bool found = false, posted;

    pthread_mutex_lock(&s->lock);
    for (struct model *m = s->models; m && !found; m = m->next)
        found = mark_cancelled(m, m->calls, id) || mark_cancelled(m, m->inbox, id);
    posted = s->inbox.posted;
    if (found)
        s->inbox.posted = true;
    pthread_mutex_unlock(&s->lock);
    if (found)
        wake(s, posted);
}
