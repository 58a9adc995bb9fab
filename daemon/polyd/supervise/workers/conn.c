/* Connections of workers: accept, hello, heartbeats, and their end. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/polyd/supervise/workers/conn.h"
#include "daemon/polyd/supervise/workers/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define CONNECTIONS_MAX 512
#define GREETING_US 5000000      /* a connection must say hello within it */
#define READ_MOST (1u << 20)     /* bytes of one turn, so that none is starved */
#define OUT_MOST (64u << 20)     /* a worker that does not read is closed */
#define QUEUE_BYTES (256u << 10) /* so many bytes are queued at once, unless one frame is larger */

enum conn_state { CONN_NEW, CONN_OPEN, CONN_CLOSING };

struct conn {
    struct loop_source source;
    struct workers *workers;
    struct conn *next;
    uint64_t id;
    int fd;
    enum conn_state state;
    struct wire_in in;
    struct pd_buf out;
    unsigned events; /* registered with the loop */
    int64_t heard_us, beat_us, opened_us;
    unsigned version;
    pid_t peer;
    int rank;
    const struct conn_owner *owner; /* NULL = none, or none any more */
    void *self;                     /* the owner's */
    bool stalled;                   /* waits for the owner to read on */
    bool dead;
};

struct conn *conn_find(struct workers *w, uint64_t id)
{
    for (struct conn *c = w->conns; c; c = c->next)
        if (c->id == id && !c->dead)
            return c;
    return NULL;
}

uint64_t conn_id(const struct conn *c)
{
    return c->id;
}

pid_t conn_peer(const struct conn *c)
{
    return c->peer;
}

int conn_rank(const struct conn *c)
{
    return c->rank;
}

/* ---- frames to the worker -------------------------------------------------------------------- */

struct pd_buf *conn_out(struct conn *c)
{
    return &c->out;
}

bool conn_can_send(const struct conn *c, size_t bytes)
{
    return !c->out.len || c->out.len + bytes <= QUEUE_BYTES;
}

void conn_send(struct conn *c, struct pd_buf *frames)
{
    if (c->out.len || c->out.failed) {
        pd_buf_append(&c->out, frames->data, frames->len);
        pd_buf_done(frames);
        return;
    }
    pd_buf_done(&c->out);
    c->out = *frames;
    pd_buf_init(frames, 0);
}

void conn_end(struct conn *c, size_t begin)
{
    if (wire_end(&c->out, begin) != PD_OK)
        c->out.failed = true;
}

static void set_events(struct conn *c)
{
    unsigned events = (c->stalled ? 0 : EPOLLIN) | (c->out.len ? EPOLLOUT : 0);

    if (events != c->events && !c->dead) {
        loop_watch(c->workers->loop, &c->source, c->fd, events);
        c->events = events;
    }
}

void conn_flush(struct conn *c)
{
    struct pd_why why;
    enum pd_err err = PD_OK;

    if (c->dead)
        return;
    if (c->out.failed || c->out.len > OUT_MOST)
        err = PD_ERR_LIMIT;
    else if (c->out.len)
        err = wire_out_write(&c->out, c->fd, &why);
    if (err == PD_OK)
        set_events(c);
    if (err != PD_OK || (c->state == CONN_CLOSING && !c->out.len))
        conn_drop(c);
}

/* Also asks the owner for more. */
static void flush_all(struct conn *c)
{
    conn_flush(c);
    if (c->owner && c->owner->drained && !c->out.len)
        c->owner->drained(c->self, c);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Tells the owner, who is none from here on. */
static void leave(struct conn *c, bool silent)
{
    const struct conn_owner *owner = c->owner;

    c->owner = NULL;
    if (owner)
        owner->closed(c->self, c, silent);
}

static void drop(struct conn *c, bool silent)
{
    if (c->dead)
        return;
    c->dead = true;
    close(c->fd);
    c->fd = -1;
    leave(c, silent);
}

void conn_drop(struct conn *c)
{
    drop(c, false);
}

void conn_discard(struct conn *c)
{
    c->owner = NULL;
    drop(c, false);
}

void conn_bye(struct conn *c, const char *cause)
{
    size_t at = wire_begin(&c->out, WIRE_BYE, 0, 0);

    wire_put_text(&c->out, WIRE_TAG_CAUSE, cause);
    conn_end(c, at);
    leave(c, false);
    c->state = CONN_CLOSING;
    conn_flush(c);
}

void conn_sweep(void *workers)
{
    struct workers *w = workers;

    for (struct conn **at = &w->conns; *at;) {
        struct conn *c = *at;

        if (!c->dead) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        w->connections = --w->conn_count;
        wire_in_done(&c->in);
        pd_buf_done(&c->out);
        free(c);
    }
}

void conn_close_all(struct workers *w)
{
    for (struct conn *c = w->conns; c; c = c->next)
        conn_drop(c);
    conn_sweep(w);
}

/* ---- frames from the worker ------------------------------------------------------------------ */

void conn_welcome(struct conn *c, uint64_t acked, const struct conn_owner *owner, void *self)
{
    size_t at = wire_begin(&c->out, WIRE_WELCOME, 0, 0);

    wire_put_u32(&c->out, WIRE_TAG_VERSION_MAX, c->version);
    wire_put_u64(&c->out, WIRE_TAG_ACKED, acked);
    wire_put_u64(&c->out, WIRE_TAG_SEQ_BASE, acked);
    conn_end(c, at);
    c->owner = owner;
    c->self = self;
    c->state = CONN_OPEN;
}

static void hello(struct conn *c, const uint8_t *p, size_t len)
{
    uint32_t low = wire_get_u32(p, len, WIRE_TAG_VERSION_MIN, 0),
             high = wire_get_u32(p, len, WIRE_TAG_VERSION_MAX, 0);
    struct conn_hello h = {.run = (int64_t)wire_get_u64(p, len, WIRE_TAG_RUN, 0),
                           .attempt = (int)wire_get_u32(p, len, WIRE_TAG_ATTEMPT, 0),
                           .rank = (int)wire_get_u32(p, len, WIRE_TAG_RANK, 0)};
    struct wire_field token;

    if (!wire_find(p, len, WIRE_TAG_TOKEN, &token) || token.len != WIRE_TOKEN_BYTES) {
        conn_bye(c, "refused");
        return;
    }
    if (high < WIRE_VERSION_MIN || low > WIRE_VERSION) {
        conn_bye(c, "version");
        return;
    }
    c->version = high < WIRE_VERSION ? high : WIRE_VERSION;
    c->rank = h.rank;
    h.token = token.bytes;
    for (const struct workers_member *m = c->workers->members; m; m = m->next)
        if (m->hello && m->hello(m->self, c, &h)) {
            conn_flush(c);
            return;
        }
    conn_bye(c, "refused");
}

static void frame(struct conn *c, const struct wire_header *h, const uint8_t *p)
{
    c->workers->frames_in++;
    if (h->type == WIRE_HEARTBEAT)
        return;
    switch (c->state) {
    case CONN_NEW:
        if (h->type == WIRE_HELLO && h->version == 0)
            hello(c, p, h->len);
        else
            conn_drop(c);
        break;
    case CONN_OPEN:
        if (c->owner)
            c->owner->frame(c->self, c, h, p);
        break;
    case CONN_CLOSING:
        break;
    }
}

static void take_frames(struct conn *c)
{
    struct wire_header head;
    const uint8_t *payload;
    struct pd_why why;
    enum pd_err err = PD_OK;

    while (!c->dead && !c->stalled && (err = wire_in_next(&c->in, &head, &payload, &why)) == PD_OK)
        frame(c, &head, payload);
    if (!c->dead && !c->stalled && err != PD_ERR_NOT_FOUND && err != PD_OK) {
        pd_log(PD_LOG_WARNING, "supervise", "connection=broken pid=%d why=\"%s\"", (int)c->peer, why.text);
        conn_drop(c);
    }
}

void conn_stall(struct conn *c)
{
    c->stalled = true;
}

static void hear(struct conn *c, int64_t now_us)
{
    c->heard_us = now_us;
    if (c->owner)
        c->owner->heard(c->self, c, now_us);
}

void conn_read(struct conn *c)
{
    struct pd_why why;
    enum pd_err err;

    if (c->dead)
        return;
    err = wire_in_read(&c->in, c->fd, READ_MOST, &why);
    hear(c, pd_clock_mono_us());
    take_frames(c);
    if (err != PD_OK && !c->dead) {
        if (err != PD_ERR_CLOSED)
            pd_log(PD_LOG_WARNING, "supervise", "connection=lost pid=%d why=\"%s\"", (int)c->peer, why.text);
        conn_drop(c);
    }
    flush_all(c);
}

static void ready(void *self, unsigned events)
{
    struct conn *c = self;

    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        conn_read(c);
    else
        flush_all(c);
}

void conn_accept(void *workers, unsigned events)
{
    struct workers *w = workers;

    (void)events;
    for (;;) {
        struct ucred cred = {0};
        socklen_t len = sizeof cred;
        struct conn *c;
        int fd = accept4(w->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            return;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid()) {
            pd_log(PD_LOG_WARNING, "supervise", "connection=refused uid=%ld", (long)cred.uid);
            close(fd);
            continue;
        }
        c = w->conn_count < CONNECTIONS_MAX ? calloc(1, sizeof *c) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        c->source = (struct loop_source){.ready = ready, .self = c};
        c->workers = w;
        c->fd = fd;
        c->id = ++w->last_conn;
        c->peer = cred.pid;
        c->heard_us = c->beat_us = c->opened_us = pd_clock_mono_us();
        c->events = EPOLLIN;
        wire_in_init(&c->in);
        pd_buf_init(&c->out, 0);
        c->next = w->conns;
        w->conns = c;
        w->connections = ++w->conn_count;
        loop_watch(w->loop, &c->source, fd, EPOLLIN);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */

void conn_tick(void *workers, int64_t now_us)
{
    struct workers *w = workers;

    for (struct conn *c = w->conns; c; c = c->next) {
        bool silent;

        if (c->dead)
            continue;
        if (c->stalled && (!c->owner || c->owner->resume(c->self, c))) {
            c->stalled = false;
            c->heard_us = now_us;
            take_frames(c);
        }
        if (c->stalled) /* it is we who do not listen */
            hear(c, now_us);
        silent = now_us - c->heard_us > WIRE_SILENCE_US;
        if (silent || (c->state == CONN_NEW && now_us - c->opened_us > GREETING_US) ||
            (c->state == CONN_CLOSING && now_us - c->heard_us > GREETING_US)) {
            drop(c, silent);
            continue;
        }
        if (now_us - c->beat_us >= WIRE_HEARTBEAT_US && c->state == CONN_OPEN) {
            conn_end(c, wire_begin(&c->out, WIRE_HEARTBEAT, 0, 0));
            c->beat_us = now_us;
        }
        flush_all(c);
    }
}
