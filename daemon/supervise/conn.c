/* Connections of workers: accept, hello, heartbeats, and their end. A connection belongs to the supervisor's
 * thread; only the outgoing bytes of a serving worker are also written by HTTP threads, under sup.mutex. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define GREETING_US 5000000  /* a connection must say hello within it */
#define READ_MOST (1u << 20) /* bytes of one turn, so that none is starved */
#define OUT_MOST (64u << 20) /* a worker that does not read is closed */

struct conn *conn_by_id(struct sup *s, uint64_t id)
{
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->id == id && !c->dead)
            return c;
    return NULL;
}

struct pd_buf *conn_out(struct conn *c)
{
    return &c->out;
}

static void set_events(struct sup *s, struct conn *c)
{
    struct epoll_event e = {.events = (c->stalled ? 0 : EPOLLIN) | (c->out.len ? EPOLLOUT : 0),
                            .data.ptr = &c->source};

    if (e.events != c->events && !c->dead) {
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
        c->events = e.events;
    }
}

void conn_accept(struct sup *s)
{
    for (;;) {
        struct ucred cred = {0};
        socklen_t len = sizeof cred;
        struct conn *c;
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid()) {
            pd_log(PD_LOG_WARNING, "supervise", "connection=refused uid=%ld", (long)cred.uid);
            close(fd);
            continue;
        }
        c = s->conn_count < SUP_CONNECTIONS_MAX ? calloc(1, sizeof *c) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        c->source = (struct source){.kind = SOURCE_CONN, .self = c};
        c->fd = fd;
        c->id = ++s->next_conn;
        c->peer = cred.pid;
        c->heard_us = c->beat_us = c->opened_us = pd_clock_mono_us();
        c->events = EPOLLIN;
        wire_in_init(&c->in);
        pd_buf_init(&c->out, 0);
        c->next = s->conns;
        s->conns = c;
        s->conn_count++;
        sup_watch(s, &c->source, fd, EPOLLIN);
        pthread_mutex_lock(&s->mutex);
        s->stats.connections = s->conn_count;
        pthread_mutex_unlock(&s->mutex);
    }
}

void conn_drop(struct sup *s, struct conn *c)
{
    struct att *a = c->att;
    struct model *m = c->model;

    if (c->dead)
        return;
    c->dead = true;
    c->att = NULL;
    c->model = NULL;
    if (a && *att_conn_of(a, c->rank) == c) {
        *att_conn_of(a, c->rank) = NULL;
        if (!c->silent) /* a worker that hangs does not get the silence twice: to the close, and from it */
            att_heard(a, c->rank, pd_clock_mono_us());
    }
    if (m && m->conn == c) {
        pthread_mutex_lock(&s->mutex);
        m->conn = NULL; /* HTTP threads write no more */
        pthread_mutex_unlock(&s->mutex);
    } else
        m = NULL;
    close(c->fd);
    c->fd = -1;
    if (m)
        model_lost_conn(s, m);
}

void conn_sweep(struct sup *s)
{
    for (struct conn **at = &s->conns; *at;) {
        struct conn *c = *at;

        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        s->conn_count--;
        ingest_free(c->stalled);
        wire_in_done(&c->in);
        pd_buf_done(&c->out);
        free(c);
    }
}

void conn_flush(struct sup *s, struct conn *c)
{
    struct pd_why why;
    enum pd_err err = PD_OK;
    bool locked = c->state == CONN_MODEL;

    if (c->dead)
        return;
    if (locked)
        pthread_mutex_lock(&s->mutex);
    if (c->out.failed || c->out.len > OUT_MOST)
        err = PD_ERR_LIMIT;
    else if (c->out.len)
        err = wire_out_write(&c->out, c->fd, &why);
    if (err == PD_OK)
        set_events(s, c);
    if (locked)
        pthread_mutex_unlock(&s->mutex);
    if (err != PD_OK || (c->state == CONN_CLOSING && !c->out.len))
        conn_drop(s, c);
}

void conn_bye(struct sup *s, struct conn *c, const char *cause)
{
    size_t at = wire_begin(&c->out, WIRE_BYE, 0, 0);

    wire_put_text(&c->out, WIRE_TAG_CAUSE, cause);
    if (wire_end(&c->out, at) != PD_OK) {
        conn_drop(s, c);
        return;
    }
    if (c->att && *att_conn_of(c->att, c->rank) == c)
        *att_conn_of(c->att, c->rank) = NULL;
    c->att = NULL;
    c->state = CONN_CLOSING;
    conn_flush(s, c);
}

/* ---- hello ---------------------------------------------------------------------------------- */

static void welcome(struct conn *c, uint64_t acked)
{
    size_t at = wire_begin(&c->out, WIRE_WELCOME, 0, 0);

    wire_put_u32(&c->out, WIRE_TAG_VERSION_MAX, c->version);
    wire_put_u64(&c->out, WIRE_TAG_ACKED, acked);
    wire_put_u64(&c->out, WIRE_TAG_SEQ_BASE, acked);
    if (wire_end(&c->out, at) != PD_OK)
        c->out.failed = true;
}

static void hello(struct sup *s, struct conn *c, const uint8_t *p, size_t len)
{
    uint32_t low = wire_get_u32(p, len, WIRE_TAG_VERSION_MIN, 0),
             high = wire_get_u32(p, len, WIRE_TAG_VERSION_MAX, 0);
    int64_t run = (int64_t)wire_get_u64(p, len, WIRE_TAG_RUN, 0);
    int number = (int)wire_get_u32(p, len, WIRE_TAG_ATTEMPT, 0);
    uint8_t hash[32];
    struct wire_field token;
    struct conn **place;
    struct model *m;
    struct att *a;

    if (!wire_find(p, len, WIRE_TAG_TOKEN, &token) || token.len != WIRE_TOKEN_BYTES) {
        conn_bye(s, c, "refused");
        return;
    }
    if (high < WIRE_VERSION_MIN || low > WIRE_VERSION) {
        conn_bye(s, c, "version");
        return;
    }
    c->version = high < WIRE_VERSION ? high : WIRE_VERSION;
    if (!run) {
        m = model_by_token(s, number, token.bytes);
        if (!m) {
            conn_bye(s, c, "refused");
            return;
        }
        welcome(c, 0);
        c->state = CONN_MODEL;
        c->model = m;
        model_connected(s, m, c);
        conn_flush(s, c);
        return;
    }
    a = att_find(s, run, number);
    digest_sha256(token.bytes, token.len, hash);
    c->rank = (int)wire_get_u32(p, len, WIRE_TAG_RANK, 0);
    place = a ? att_conn_of(a, c->rank) : NULL;
    if (!place || a->phase == ATT_ENDED || !digest_equal(hash, a->token_sha256, sizeof hash)) {
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d hello=refused pid=%d", (long long)run,
               number, (int)c->peer);
        conn_bye(s, c, "refused");
        return;
    }
    if (*place && (*place)->peer != c->peer) {
        conn_bye(s, c, "refused"); /* already connected: a double start must not write twice */
        return;
    }
    if (*place) { /* the same process came again: its old connection is dead and we had not noticed */
        struct conn *old = *place;

        *place = NULL;
        old->att = NULL;
        conn_drop(s, old);
    }
    welcome(c, c->rank ? 0 : (uint64_t)a->acked);
    c->state = CONN_ATT;
    c->att = a;
    *place = c;
    att_connected(s, a, c);
    conn_flush(s, c);
}

static void frame(struct sup *s, struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    pthread_mutex_lock(&s->mutex);
    s->stats.frames_in++;
    pthread_mutex_unlock(&s->mutex);
    if (h->type == WIRE_HEARTBEAT)
        return;
    switch (c->state) {
    case CONN_NEW:
        if (h->type == WIRE_HELLO && h->version == 0)
            hello(s, c, p, h->len);
        else
            conn_drop(s, c);
        break;
    case CONN_ATT:
        att_frame(s, c, h, p);
        break;
    case CONN_MODEL:
        model_frame(s, c, h, p);
        break;
    case CONN_CLOSING:
        break;
    }
}

static void take_frames(struct sup *s, struct conn *c)
{
    struct wire_header head;
    const uint8_t *payload;
    struct pd_why why;
    enum pd_err err = PD_OK;

    while (!c->dead && !c->stalled && (err = wire_in_next(&c->in, &head, &payload, &why)) == PD_OK)
        frame(s, c, &head, payload);
    if (!c->dead && !c->stalled && err != PD_ERR_NOT_FOUND && err != PD_OK) {
        pd_log(PD_LOG_WARNING, "supervise", "connection=broken pid=%d why=\"%s\"", (int)c->peer, why.text);
        conn_drop(s, c);
    }
}

void conn_event(struct sup *s, struct conn *c, unsigned events)
{
    struct pd_why why;
    enum pd_err err;

    if (c->dead)
        return; /* an event of the same turn as its end */
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        err = wire_in_read(&c->in, c->fd, READ_MOST, &why);
        c->heard_us = pd_clock_mono_us();
        if (c->att)
            att_heard(c->att, c->rank, c->heard_us);
        if (c->model)
            c->model->heard_us = c->heard_us;
        take_frames(s, c);
        if (err != PD_OK && !c->dead) {
            if (err != PD_ERR_CLOSED)
                pd_log(PD_LOG_WARNING, "supervise", "connection=lost pid=%d why=\"%s\"", (int)c->peer,
                       why.text);
            conn_drop(s, c);
        }
    }
    conn_flush(s, c);
}

void conn_tick(struct sup *s, int64_t now_us)
{
    for (struct conn *c = s->conns; c; c = c->next) {
        size_t at;

        if (c->dead)
            continue;
        if (c->stalled && att_unstall(s, c)) {
            c->heard_us = now_us;
            take_frames(s, c);
        }
        if (c->stalled) { /* it is we who do not listen */
            c->heard_us = now_us;
            if (c->att)
                att_heard(c->att, c->rank, now_us);
        }
        c->silent = now_us - c->heard_us > WIRE_SILENCE_US;
        if (c->silent || (c->state == CONN_NEW && now_us - c->opened_us > GREETING_US) ||
            (c->state == CONN_CLOSING && now_us - c->heard_us > GREETING_US)) {
            conn_drop(s, c);
            continue;
        }
        if (now_us - c->beat_us >= WIRE_HEARTBEAT_US && (c->state == CONN_ATT || c->state == CONN_MODEL)) {
            pthread_mutex_lock(&s->mutex);
            at = wire_begin(&c->out, WIRE_HEARTBEAT, 0, 0);
            if (wire_end(&c->out, at) != PD_OK)
                c->out.failed = true;
            pthread_mutex_unlock(&s->mutex);
            c->beat_us = now_us;
        }
        conn_flush(s, c);
    }
}
