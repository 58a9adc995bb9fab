/* The libmicrohttpd side: connections, requests, waiting and streams.
 *
 * Threads: a pool of two runs every callback of libmicrohttpd; the watcher sees clients that leave while
 * their connection is suspended, ends slow requests and asks for keep-alive comments; completions come from
 * anywhere. `lock` guards the lists of waits, streams and connections and each suspend/resume pair, so that a
 * wake-up can never fall between "nothing to send" and "suspended".
 *
 * Invariant: a connection is suspended if and only if it is in `waits` or in `streams` with `asleep`. */
#include "api/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "api/json.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define CONNECTION_MEMORY (64u * 1024u) /* header and buffers of one connection; also the longest header */
#define SWALLOW_MAX                                                                                          \
    (8u * 1024u * 1024u) /* a refused body up to this size is read to its end, so that the client sees why   \
                          */
#define BODIES_MAX (256u * 1024u * 1024u) /* bytes of request bodies held at once, all clients together */
#define COMMENT_US (15 * 1000000LL)       /* silence before a comment line (wire.md 1) */
#define TICK_MS 500
#define ANSWER_GRACE_MS 1000 /* api_stop: for the last answers to leave */
#define HEADERS_MAX 8

struct header {
    const char *name;
    char value[256];
};

struct conn {
    struct api *api;
    int fd;
    _Atomic int64_t deadline_us; /* monotonic; 0 = the request is being answered */
    struct conn *prev, *next;
};

struct api_wait {
    struct api *api;
    struct api_req *r; /* NULL once ended or given up */
    atomic_int refs;
    uint64_t id;
    void (*done)(void *data);
    void (*gone)(void *data);
    bool told; /* gone was called */
    struct api_wait *prev, *next;
    _Alignas(max_align_t) char data[];
};

struct api_stream {
    struct api *api;
    struct MHD_Connection *connection;
    struct conn *conn;
    const struct api_stream_ops *ops;
    void *state;
    uint64_t id;
    int64_t last_us;
    bool woken, asleep, comment_due, watched, left;
    struct api_stream *prev, *next;
};

struct api_req {
    struct api *api;
    struct MHD_Connection *connection;
    struct conn *conn;
    const struct api_route *route;
    enum api_surface surface;
    const char *path, *query; /* inside uri */
    struct api_params params;
    struct pd_buf body;
    size_t swallowed;
    int64_t start_us;
    bool begun, handled, answered, failed, gave_up;
    struct api_wait *wait, *waited;
    void (*next)(struct api_req *);
    void *state;
    void (*state_done)(void *);
    int status;
    const char *type;
    struct pd_buf out;
    const void *out_static;
    size_t out_static_len;
    struct api_stream *stream;
    int headers;
    struct header header[HEADERS_MAX];
    char uri[];
};

struct api {
    struct api_deps deps;
    struct api_settings set;
    struct MHD_Daemon *mhd;
    uint16_t port;
    int epoll_fd, wake_fd;
    pthread_t watcher;
    bool watching;
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* a wait ended */
    struct conn *conns;
    struct api_wait *waits;
    struct api_stream *streams;
    uint64_t next_id;
    atomic_bool stopping, draining;
    atomic_size_t body_bytes;
    atomic_int active; /* requests whose handler was called and that have not ended */
    struct api_counters counters;
    struct api_core *core;
    char *settings_text; /* behind set */
};

/* ---- small accessors -------------------------------------------------------------------------- */

struct api *api_of(struct api_req *r)
{
    return r->api;
}

const struct api_deps *api_deps_of(struct api *api)
{
    return &api->deps;
}

const struct api_settings *api_settings_of(struct api_req *r)
{
    return &r->api->set;
}

const struct api_settings *api_settings_get(struct api *api)
{
    return &api->set;
}

struct api_counters *api_counters_of(struct api *api)
{
    return &api->counters;
}

struct api_core *api_core_of(struct api *api)
{
    return api->core;
}

const char *api_param(struct api_req *r, int n)
{
    return n < r->params.count ? r->params.value[n] : "";
}

const char *api_header(struct api_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *api_body(struct api_req *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return r->body.data;
}

enum api_surface api_surface(struct api_req *r)
{
    return r->surface;
}

const char *api_path(struct api_req *r)
{
    return r->path;
}

const char *api_query_raw(struct api_req *r)
{
    return r->query;
}

bool api_failed(struct api_req *r)
{
    return r->failed;
}

bool api_stopping(struct api *api)
{
    return atomic_load_explicit(&api->stopping, memory_order_relaxed);
}

bool api_draining(struct api *api)
{
    return atomic_load_explicit(&api->draining, memory_order_relaxed);
}

void api_drain(struct api *api)
{
    atomic_store(&api->draining, true);
}

bool api_query(struct api_req *r, const char *name, char *out, size_t size)
{
    enum pd_err err = api_query_get(r->query, name, 0, out, size);

    if (err == PD_OK)
        return true;
    if (err != PD_ERR_NOT_FOUND)
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' is %s", name,
                 err == PD_ERR_LIMIT ? "too long" : "not well encoded");
    return false;
}

int64_t api_query_int(struct api_req *r, const char *name, int64_t low, int64_t high, int64_t missing)
{
    char text[32];
    int64_t value = missing;

    if (api_query(r, name, text, sizeof text) && !api_parse_int(text, low, high, &value)) {
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' must be an integer from %lld to %lld", name,
                 (long long)low, (long long)high);
        return missing;
    }
    return value;
}

bool api_query_flag(struct api_req *r, const char *name)
{
    char text[8];

    if (!api_query(r, name, text, sizeof text))
        return false;
    if (strcmp(text, "1") == 0 || strcmp(text, "true") == 0)
        return true;
    if (strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' must be 0 or 1", name);
    return false;
}

bool api_query_refuse_others(struct api_req *r, const char *const *names)
{
    char unknown[64];

    if (api_query_known(r->query, names, unknown, sizeof unknown))
        return false;
    api_fail(r, API_FAULT_MALFORMED, "unknown query parameter '%s'", unknown);
    return true;
}

int64_t api_param_id(struct api_req *r, int n)
{
    int64_t id;

    if (api_parse_id(api_param(r, n), &id))
        return id;
    api_fail(r, PD_ERR_NOT_FOUND, "there is no '%s' here: an id is a positive integer", api_param(r, n));
    return 0;
}

void *api_state_new(struct api_req *r, size_t size, void (*done)(void *))
{
    void *state = calloc(1, size);

    if (!state) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the request");
        return NULL;
    }
    if (r->state && r->state_done)
        r->state_done(r->state);
    free(r->state);
    r->state = state;
    r->state_done = done;
    return state;
}

void *api_state(struct api_req *r)
{
    return r->state;
}

json_t *api_body_json(struct api_req *r, unsigned flags)
{
    json_error_t error;
    json_t *value;

    if (r->body.len == 0 && (flags & API_JSON_EMPTY_OK)) {
        value = json_object();
        if (!value)
            api_fail(r, PD_ERR_NOMEM, "no memory for the body");
        return value;
    }
    value = json_loadb(r->body.data ? r->body.data : "", r->body.len, JSON_REJECT_DUPLICATES, &error);
    if (!value && api_json_no_memory(&error)) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the body");
        return NULL;
    }
    if (!value) {
        api_fail(r, API_FAULT_MALFORMED, "the body is not JSON: %s (line %d, column %d)", error.text,
                 error.line, error.column);
        return NULL;
    }
    if (!json_is_object(value) && !((flags & API_JSON_ARRAY_OK) && json_is_array(value))) {
        json_decref(value);
        api_fail(r, API_FAULT_MALFORMED, "the body must be a JSON object");
        return NULL;
    }
    return value;
}

/* ---- the answer ------------------------------------------------------------------------------- */

static void answer_reset(struct api_req *r)
{
    pd_buf_done(&r->out);
    r->out_static = NULL;
    r->out_static_len = 0;
    r->answered = true;
}

void api_reply(struct api_req *r, int status, const char *type, struct pd_buf *body)
{
    if (pd_buf_err(body) != PD_OK) {
        pd_buf_done(body);
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
        return;
    }
    answer_reset(r);
    r->status = status;
    r->type = type;
    r->out = *body;
    pd_buf_init(body, 0); /* moved */
}

void api_reply_json(struct api_req *r, int status, struct pd_buf *body)
{
    api_reply(r, status, "application/json", body);
}

void api_reply_static(struct api_req *r, int status, const char *type, const void *bytes, size_t len)
{
    answer_reset(r);
    r->status = status;
    r->type = type;
    r->out_static = bytes;
    r->out_static_len = len;
}

void api_reply_empty(struct api_req *r, int status)
{
    api_reply_static(r, status, NULL, "", 0);
}

void api_reply_header(struct api_req *r, const char *name, const char *value)
{
    struct header *h = NULL;

    for (int i = 0; i < r->headers; i++)
        if (strcmp(r->header[i].name, name) == 0)
            h = &r->header[i];
    if (!h) {
        if (r->headers == HEADERS_MAX)
            return;
        h = &r->header[r->headers++];
    }
    h->name = name;
    snprintf(h->value, sizeof h->value, "%s", value);
}

void api_retry_after(struct api_req *r, int seconds)
{
    char text[16];

    snprintf(text, sizeof text, "%d", seconds);
    api_reply_header(r, "Retry-After", text);
}

static void fail_full(struct api_req *r, int fault, const char *message, const char *details,
                      const char *param)
{
    struct pd_buf b;
    const char *type;
    int status;

    pd_buf_init(&b, 0);
    status = api_fault_body(&b, r->surface, fault, message, details, param, &type);
    answer_reset(r);
    r->failed = true;
    r->status = status;
    r->type = type;
    if (pd_buf_err(&b) != PD_OK) {
        pd_buf_done(&b);
        r->type = NULL;
        r->out_static = "";
        return;
    }
    r->out = b;
    if (status == 503 || status == 429) {
        bool has = false;

        for (int i = 0; i < r->headers; i++)
            has = has || strcmp(r->header[i].name, "Retry-After") == 0;
        if (!has)
            api_retry_after(r, 1);
    }
    if (status == 500) {
        char quoted[600], path[200];

        pd_log(PD_LOG_ERROR, "api", "path=%s status=%d why=%s", pd_log_quote(path, sizeof path, r->path),
               status, pd_log_quote(quoted, sizeof quoted, message));
    }
}

void api_fail(struct api_req *r, int fault, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, NULL, NULL);
}

void api_fail_why(struct api_req *r, enum pd_err err, const struct pd_why *why)
{
    fail_full(r, (int)err, why && why->text[0] ? why->text : pd_err_name(err), NULL, NULL);
}

void api_fail_details(struct api_req *r, int fault, const char *details, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, details, NULL);
}

void api_fail_param(struct api_req *r, int fault, const char *param, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, NULL, param);
}

/* ---- waiting ---------------------------------------------------------------------------------- */

static void wait_unref(struct api_wait *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1) {
        if (w->done)
            w->done(w->data);
        free(w);
    }
}

static void watch_fd(struct api *api, int fd, uint64_t id)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};

    /* The descriptor may still be registered from an earlier request of this connection. */
    if (epoll_ctl(api->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EEXIST)
        epoll_ctl(api->epoll_fd, EPOLL_CTL_MOD, fd, &ev);
}

static void unwatch_fd(struct api *api, int fd)
{
    epoll_ctl(api->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static void wait_unlink(struct api *api, struct api_wait *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        api->waits = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = w->next = NULL;
    if (w->gone)
        unwatch_fd(api, w->r->conn->fd);
    w->r = NULL;
    pthread_cond_signal(&api->quiet);
}

struct api_wait *api_wait_begin(struct api_req *r, size_t size, void (*done)(void *data),
                                void (*next)(struct api_req *))
{
    struct api *api = r->api;
    struct api_wait *w = calloc(1, sizeof *w + size);

    if (!w) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the request");
        return NULL;
    }
    pthread_mutex_lock(&api->lock);
    if (api_stopping(api)) {
        pthread_mutex_unlock(&api->lock);
        free(w);
        api_fail(r, PD_ERR_CLOSED, "the server is stopping");
        return NULL;
    }
    w->api = api;
    w->r = r;
    atomic_init(&w->refs, 2); /* the request's and the completer's */
    w->id = ++api->next_id;
    w->done = done;
    w->next = api->waits;
    if (w->next)
        w->next->prev = w;
    api->waits = w;
    r->wait = w;
    r->next = next;
    MHD_suspend_connection(r->connection);
    pthread_mutex_unlock(&api->lock);
    return w;
}

void *api_wait_data(struct api_wait *w)
{
    return w->data;
}

void *api_waited(struct api_req *r)
{
    return r->waited->data;
}

void api_wait_end(struct api_wait *w)
{
    struct api *api = w->api;

    pthread_mutex_lock(&api->lock);
    if (w->r) {
        struct MHD_Connection *connection = w->r->connection;

        wait_unlink(api, w);
        MHD_resume_connection(connection);
    }
    pthread_mutex_unlock(&api->lock);
    wait_unref(w);
}

void api_wait_watch(struct api_wait *w, void (*gone)(void *data))
{
    struct api *api = w->api;

    pthread_mutex_lock(&api->lock);
    if (w->r) {
        w->gone = gone;
        watch_fd(api, w->r->conn->fd, w->id);
    }
    pthread_mutex_unlock(&api->lock);
}

/* ---- streams ---------------------------------------------------------------------------------- */

static void stream_wake_locked(struct api_stream *s)
{
    s->woken = true;
    if (s->asleep) {
        s->asleep = false;
        if (s->watched)
            unwatch_fd(s->api, s->conn->fd);
        s->watched = false;
        MHD_resume_connection(s->connection);
    }
}

void api_stream_wake(struct api_stream *s)
{
    struct api *api = s->api;

    pthread_mutex_lock(&api->lock);
    stream_wake_locked(s);
    pthread_mutex_unlock(&api->lock);
}

void api_streams_wake(struct api *api)
{
    pthread_mutex_lock(&api->lock);
    for (struct api_stream *s = api->streams; s; s = s->next)
        if (s->ops->everything)
            stream_wake_locked(s);
    pthread_mutex_unlock(&api->lock);
}

static ssize_t stream_read(void *cls, uint64_t pos, char *out, size_t size)
{
    static const char comment[] = ": keep-alive\n\n";
    struct api_stream *s = cls;
    struct api *api = s->api;

    (void)pos;
    for (;;) {
        bool comment_due;
        ssize_t n;

        pthread_mutex_lock(&api->lock);
        s->woken = false;
        if (s->left) { /* nothing to write would mean never to find the socket closed */
            pthread_mutex_unlock(&api->lock);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        comment_due = s->comment_due && size >= sizeof comment - 1;
        if (comment_due)
            s->comment_due = false;
        pthread_mutex_unlock(&api->lock);
        n = s->ops->read(s->state, out, size);
        if (n == 0 && comment_due) {
            memcpy(out, comment, sizeof comment - 1);
            n = (ssize_t)sizeof comment - 1;
        }
        if (n == API_STREAM_END)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (n < 0)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        pthread_mutex_lock(&api->lock);
        if (n > 0) {
            s->last_us = pd_clock_mono_us();
            pthread_mutex_unlock(&api->lock);
            return n;
        }
        if (api_stopping(api)) {
            pthread_mutex_unlock(&api->lock);
            /* Events can be asked for again from the last id; another stream must be seen to be cut. */
            return s->ops->everything ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (s->woken) {
            pthread_mutex_unlock(&api->lock);
            continue;
        }
        s->asleep = true;
        MHD_suspend_connection(s->connection);
        if (s->ops->gone) {
            s->watched = true;
            watch_fd(api, s->conn->fd, s->id);
        }
        pthread_mutex_unlock(&api->lock);
        return 0;
    }
}

static void stream_done(void *cls)
{
    struct api_stream *s = cls;
    struct api *api = s->api;

    pthread_mutex_lock(&api->lock);
    if (s->prev)
        s->prev->next = s->next;
    else
        api->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pthread_mutex_unlock(&api->lock);
    if (s->ops->comments)
        atomic_fetch_sub(&api->counters.sse_clients, 1);
    s->ops->done(s->state);
    free(s);
}

void api_reply_stream(struct api_req *r, int status, const char *type, const struct api_stream_ops *ops,
                      void *state, struct api_stream **ret_stream)
{
    struct api *api = r->api;
    struct api_stream *s = calloc(1, sizeof *s);

    if (!s) {
        ops->done(state);
        api_fail(r, PD_ERR_NOMEM, "no memory for a stream");
        return;
    }
    s->api = api;
    s->connection = r->connection;
    s->conn = r->conn;
    s->ops = ops;
    s->state = state;
    s->last_us = pd_clock_mono_us();
    if (ret_stream)
        *ret_stream = s;
    pthread_mutex_lock(&api->lock);
    s->id = ++api->next_id;
    s->next = api->streams;
    if (s->next)
        s->next->prev = s;
    api->streams = s;
    pthread_mutex_unlock(&api->lock);
    if (ops->comments)
        atomic_fetch_add(&api->counters.sse_clients, 1);
    answer_reset(r);
    r->status = status;
    r->type = type;
    r->stream = s;
}

/* ---- one request ------------------------------------------------------------------------------ */

static void *request_new(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct api *api = cls;
    size_t len = strlen(uri);
    struct api_req *r = calloc(1, sizeof *r + len + 1);
    const union MHD_ConnectionInfo *info;
    char *query;

    if (!r)
        return NULL;
    r->api = api;
    r->connection = connection;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    r->conn = info ? info->socket_context : NULL;
    memcpy(r->uri, uri, len + 1);
    query = strchr(r->uri, '?');
    if (query)
        *query++ = '\0';
    r->path = r->uri;
    r->query = query;
    r->surface = api_surface_of(r->path);
    r->start_us = pd_clock_mono_us();
    pd_buf_init(&r->body, 0);
    pd_buf_init(&r->out, 0);
    return r;
}

static void request_done(void *cls, struct MHD_Connection *connection, void **req_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct api *api = cls;
    struct api_req *r = *req_cls;

    (void)connection;
    (void)code;
    if (!r)
        return;
    *req_cls = NULL;
    if (r->status)
        api_count_request(&api->counters, r->route, r->status, pd_clock_mono_us() - r->start_us);
    if (r->conn)
        atomic_store(&r->conn->deadline_us, pd_clock_mono_us() + (int64_t)api->set.idle_timeout_s * 1000000);
    if (r->handled)
        atomic_fetch_sub(&api->active, 1);
    if (r->stream) /* never given to libmicrohttpd */
        stream_done(r->stream);
    if (r->state && r->state_done)
        r->state_done(r->state);
    free(r->state);
    atomic_fetch_sub(&api->body_bytes, r->body.size);
    pd_buf_done(&r->body);
    pd_buf_done(&r->out);
    free(r);
}

static void refuse_method(struct api_req *r, const char *method, unsigned allowed)
{
    char allow[64] = "";

    for (int i = 0; i < API_METHOD_COUNT; i++) {
        if (!(allowed & 1u << i))
            continue;
        if (allow[0])
            strcat(allow, ", ");
        strcat(allow, api_method_name((enum api_method)i));
        if (i == API_GET)
            strcat(allow, ", HEAD");
    }
    api_reply_header(r, "Allow", allow);
    api_fail(r, API_FAULT_METHOD, "%.16s is not allowed here; allowed: %s", method, allow);
}

/* Most bytes of this request's body. */
static size_t body_limit(const struct api_req *r)
{
    size_t most = r->api->set.body_max;

    return r->route->body_limit < most ? r->route->body_limit : most;
}

/* Everything that can be said before the body has come. Sets an answer if the request is refused. */
static void request_check(struct api_req *r, const char *method_name, size_t *ret_declared)
{
    const struct api_allow *allow = &r->api->set.allow;
    const char *host = api_header(r, "Host"), *origin = api_header(r, "Origin");
    const char *declared = api_header(r, "Content-Length");
    enum api_method method = api_method_parse(method_name);
    unsigned allowed = 0;
    int64_t length = 0;

    if (declared && !api_parse_int(declared, 0, INT64_MAX - 1, &length)) {
        api_fail(r, API_FAULT_MALFORMED, "Content-Length is not a number");
        length = INT64_MAX;
    }
    *ret_declared = (size_t)length;
    if (r->failed)
        return;
    if (!host) {
        api_fail(r, API_FAULT_MALFORMED, "the request has no Host header");
        return;
    }
    if (!api_host_ok(allow, host)) {
        api_fail(r, API_FAULT_HOST,
                 "Host '%.100s' is not one of this server's names; see server.allowed_hosts", host);
        return;
    }
    if (origin && !api_origin_ok(allow, origin, host)) {
        api_fail(r, API_FAULT_ORIGIN,
                 "pages of '%.100s' may not call this server; see server.allowed_origins", origin);
        return;
    }
    if (r->path[0] != '/') {
        api_fail(r, API_FAULT_MALFORMED, "the request's target must be a path");
        return;
    }
    r->route = api_route_find(method, r->path, &r->params, &allowed);
    if (!r->route) {
        if (allowed)
            refuse_method(r, method_name, allowed);
        else
            api_fail(r, API_FAULT_NO_ROUTE, "there is nothing at %.200s", r->path);
        return;
    }
    r->surface = r->route->surface;
    if (method != API_GET && !api_content_type_ok(r->route->body, api_header(r, "Content-Type"))) {
        api_fail(r, API_FAULT_MEDIA_TYPE, "Content-Type must be application/json%s",
                 r->route->body == API_BODY_JSON_OR_BINARY ? " or application/octet-stream" : "");
        return;
    }
    if ((size_t)length > body_limit(r) && r->route->body != API_BODY_NONE) {
        api_fail(r, API_FAULT_BODY_TOO_LARGE, "the body has %lld bytes, this path takes at most %zu",
                 (long long)length, body_limit(r));
        return;
    }
    if (atomic_load(&r->api->body_bytes) + (size_t)length > BODIES_MAX)
        api_fail(r, PD_ERR_BUSY, "too many large requests at once");
}

static void body_append(struct api_req *r, const char *bytes, size_t len)
{
    size_t before = r->body.size;

    if (r->answered) {
        r->swallowed += len;
        return;
    }
    if (r->route->body == API_BODY_NONE) {
        /* Nothing is expected; clients that send "{}" with every POST are fine. */
        r->swallowed += len;
        if (r->swallowed > 1024)
            api_fail(r, API_FAULT_BODY_TOO_LARGE, "this path takes no body");
        return;
    }
    if (r->body.len + len > body_limit(r)) {
        api_fail(r, API_FAULT_BODY_TOO_LARGE, "this path takes at most %zu bytes", body_limit(r));
    } else if (atomic_load(&r->api->body_bytes) + len > BODIES_MAX) {
        api_fail(r, PD_ERR_BUSY, "too many large requests at once");
    } else {
        pd_buf_append(&r->body, bytes, len);
        if (pd_buf_err(&r->body) != PD_OK)
            api_fail(r, PD_ERR_NOMEM, "no memory for the body");
    }
    atomic_fetch_add(&r->api->body_bytes, r->body.size - before);
}

static enum MHD_Result send_answer(struct api_req *r)
{
    struct MHD_Response *response;
    enum MHD_Result result;
    bool cached = false;

    if (r->stream) {
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, stream_read, r->stream,
                                                     stream_done);
        if (!response)
            return MHD_NO;
        r->stream = NULL; /* moved */
    } else if (r->out.len) {
        size_t len = r->out.len;
        char *bytes = pd_buf_take(&r->out);

        response = MHD_create_response_from_buffer(len, bytes, MHD_RESPMEM_MUST_FREE);
        if (!response) {
            free(bytes);
            return MHD_NO;
        }
    } else {
        /* The cast drops const only for the signature: PERSISTENT bytes are never written. */
        response = MHD_create_response_from_buffer(r->out_static_len,
                                                   (void *)(uintptr_t)(r->out_static ? r->out_static : ""),
                                                   MHD_RESPMEM_PERSISTENT);
        if (!response)
            return MHD_NO;
    }
    if (r->type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, r->type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    for (int i = 0; i < r->headers; i++) {
        MHD_add_response_header(response, r->header[i].name, r->header[i].value);
        cached = cached || strcmp(r->header[i].name, "Cache-Control") == 0;
    }
    if (!cached)
        MHD_add_response_header(response, "Cache-Control", "no-store");
    result = MHD_queue_response(r->connection, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result access_handler(void *cls, struct MHD_Connection *connection, const char *url,
                                      const char *method, const char *version, const char *upload_data,
                                      size_t *upload_size, void **req_cls)
{
    struct api *api = cls;
    struct api_req *r = *req_cls;

    (void)connection;
    (void)url;
    (void)version;
    if (!r || !r->conn)
        return MHD_NO;
    if (!r->begun) {
        size_t declared = 0;

        r->begun = true;
        request_check(r, method, &declared);
        if (r->answered && declared > SWALLOW_MAX)
            return send_answer(r);
        atomic_store(&r->conn->deadline_us, pd_clock_mono_us() + (int64_t)api->set.body_timeout_s * 1000000);
        return MHD_YES;
    }
    if (*upload_size) {
        body_append(r, upload_data, *upload_size);
        *upload_size = 0;
        return r->swallowed > SWALLOW_MAX ? MHD_NO : MHD_YES;
    }
    if (r->wait) {
        r->waited = r->wait;
        r->wait = NULL; /* moved */
        if (r->gave_up)
            api_fail(r, PD_ERR_CLOSED,
                     "the server is stopping; whether the change was made is not known here");
        else
            r->next(r);
        wait_unref(r->waited);
        r->waited = NULL;
    } else if (!r->answered) {
        atomic_store(&r->conn->deadline_us, 0);
        atomic_fetch_add(&api->active, 1);
        r->handled = true;
        r->route->handler(r);
    }
    if (r->wait)
        return MHD_YES;
    if (!r->answered)
        api_fail(r, PD_ERR_INTERNAL, "the handler gave no answer");
    return send_answer(r);
}

static void connection_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                              enum MHD_ConnectionNotificationCode code)
{
    struct api *api = cls;
    struct conn *c = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        c = calloc(1, sizeof *c);
        if (!c || !info) {
            free(c);
            return; /* its requests are refused for want of a record */
        }
        c->api = api;
        c->fd = info->connect_fd;
        atomic_init(&c->deadline_us, pd_clock_mono_us() + (int64_t)api->set.header_timeout_s * 1000000);
        pthread_mutex_lock(&api->lock);
        c->next = api->conns;
        if (c->next)
            c->next->prev = c;
        api->conns = c;
        pthread_mutex_unlock(&api->lock);
        *socket_context = c;
    } else if (c) {
        pthread_mutex_lock(&api->lock);
        if (c->prev)
            c->prev->next = c->next;
        else
            api->conns = c->next;
        if (c->next)
            c->next->prev = c->prev;
        unwatch_fd(api, c->fd);
        pthread_mutex_unlock(&api->lock);
        free(c);
        *socket_context = NULL;
    }
}

static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    char text[400], quoted[500];

    (void)cls;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    pd_log(PD_LOG_DEBUG, "api", "library=%s", pd_log_quote(quoted, sizeof quoted, text));
}

/* ---- the watcher ------------------------------------------------------------------------------ */

static void client_gone(struct api *api, uint64_t id)
{
    struct api_wait *wait = NULL;

    pthread_mutex_lock(&api->lock);
    for (struct api_wait *w = api->waits; w; w = w->next) {
        if (w->id == id && w->gone && !w->told) {
            wait = w;
            w->told = true;
            atomic_fetch_add(&w->refs, 1);
            break;
        }
    }
    for (struct api_stream *s = api->streams; !wait && s; s = s->next) {
        if (s->id == id && s->asleep) {
            if (s->ops->gone)
                s->ops->gone(s->state);
            s->left = true;
            stream_wake_locked(s);
            break;
        }
    }
    pthread_mutex_unlock(&api->lock);
    if (wait) {
        wait->gone(wait->data);
        wait_unref(wait);
    }
}

static void watcher_tick(struct api *api)
{
    int64_t now = pd_clock_mono_us();

    pthread_mutex_lock(&api->lock);
    for (struct api_stream *s = api->streams; s; s = s->next) {
        if (s->asleep && s->ops->comments && now - s->last_us >= COMMENT_US) {
            s->comment_due = true;
            stream_wake_locked(s);
        } else if (s->ops->everything) {
            stream_wake_locked(s);
        }
    }
    for (struct conn *c = api->conns; c; c = c->next) {
        int64_t deadline = atomic_load(&c->deadline_us);

        if (deadline && now > deadline) {
            shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd closes it */
            atomic_store(&c->deadline_us, 0);
        }
    }
    pthread_mutex_unlock(&api->lock);
}

static void *watcher_main(void *arg)
{
    struct api *api = arg;
    int64_t last = 0;

    while (!api_stopping(api)) {
        struct epoll_event events[64];
        int n = epoll_wait(api->epoll_fd, events, 64, TICK_MS);

        for (int i = 0; i < n; i++) {
            if (events[i].data.u64)
                client_gone(api, events[i].data.u64);
        }
        if (pd_clock_mono_us() - last > TICK_MS * 900) {
            watcher_tick(api);
            last = pd_clock_mono_us();
        }
    }
    return NULL;
}

/* ---- start and stop --------------------------------------------------------------------------- */

static enum pd_err listen_on(const char *bind_text, uint16_t port, int *ret_fd, uint16_t *ret_port,
                             struct pd_why *why)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[8];
    int fd = -1, one = 1;
    enum pd_err err = PD_OK;

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(bind_text, service, &hints, &found) != 0)
        return pd_fail(why, PD_ERR_INVALID, "'%s' is not an IPv4 or IPv6 address", bind_text);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err = pd_fail_errno(why, errno, "cannot make a socket");
        goto out;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
        int e = errno;

        pd_fail_errno(why, e, "cannot listen on %s port %u", bind_text, port);
        err = PD_ERR_IO;
        goto out;
    }
    if (getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
        err = pd_fail_errno(why, errno, "cannot tell the port");
        goto out;
    }
    *ret_port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                    : ((struct sockaddr_in *)&address)->sin_port);
    *ret_fd = fd;
    fd = -1; /* moved */
out:
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return err;
}

enum pd_err api_start(const struct api_deps *deps, struct api **ret_api, struct pd_why *why)
{
    struct api *api = calloc(1, sizeof *api);
    struct epoll_event wake = {.events = EPOLLIN};
    pthread_condattr_t attr;
    int fd = -1;
    enum pd_err err;

    if (!api)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
    api->deps = *deps;
    api->epoll_fd = api->wake_fd = -1;
    pthread_mutex_init(&api->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&api->quiet, &attr);
    pthread_condattr_destroy(&attr);
    err = api_settings_read(deps->config, &api->set, &api->settings_text, why);
    if (err == PD_OK)
        err = api_core_new(api, &api->core, why);
    if (err != PD_OK)
        goto out;
    api->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    api->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (api->epoll_fd < 0 || api->wake_fd < 0 ||
        epoll_ctl(api->epoll_fd, EPOLL_CTL_ADD, api->wake_fd, &wake) < 0) {
        err = pd_fail_errno(why, errno, "cannot make the watcher's descriptors");
        goto out;
    }
    err = listen_on(api->set.bind, api->set.port, &fd, &api->port, why);
    if (err != PD_OK)
        goto out;
    if (pthread_create(&api->watcher, NULL, watcher_main, api) != 0) {
        err = pd_fail(why, PD_ERR_NOMEM, "cannot start the watcher's thread");
        goto out;
    }
    api->watching = true;
    api->mhd = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        access_handler, api, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)api->set.threads, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)api->set.connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)api->set.connections_per_ip, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)api->set.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, request_new, api,
        MHD_OPTION_NOTIFY_COMPLETED, request_done, api, MHD_OPTION_NOTIFY_CONNECTION, connection_notify, api,
        MHD_OPTION_END);
    if (!api->mhd) {
        err = pd_fail(why, PD_ERR_IO, "libmicrohttpd did not start on %s port %u", api->set.bind, api->port);
        goto out;
    }
    fd = -1; /* moved to libmicrohttpd, which closes it */
    *ret_api = api;
    api = NULL; /* moved to the caller */
out:
    if (fd >= 0)
        close(fd);
    api_stop(api);
    api_free(api);
    return err;
}

uint16_t api_port(const struct api *api)
{
    return api->port;
}

/* Lets the waits in flight end by themselves for a while, then gives them up. */
static void waits_end(struct api *api)
{
    int64_t until = pd_clock_mono_us() + api->set.wait_timeout_us;
    struct timespec at = {.tv_sec = until / 1000000, .tv_nsec = until % 1000000 * 1000};

    pthread_mutex_lock(&api->lock);
    while (api->waits && pthread_cond_timedwait(&api->quiet, &api->lock, &at) == 0)
        ;
    while (api->waits) {
        struct api_req *r = api->waits->r;

        r->gave_up = true;
        wait_unlink(api, api->waits);
        MHD_resume_connection(r->connection);
    }
    pthread_mutex_unlock(&api->lock);
}

/* Calls every wait's `gone` once, without the lock: it may call rooms that complete waits under locks of
 * their own. */
static void waits_tell_gone(struct api *api)
{
    for (;;) {
        struct api_wait *found = NULL;

        pthread_mutex_lock(&api->lock);
        for (struct api_wait *w = api->waits; w && !found; w = w->next)
            if (w->gone && !w->told)
                found = w;
        if (found) {
            found->told = true;
            atomic_fetch_add(&found->refs, 1);
        }
        pthread_mutex_unlock(&api->lock);
        if (!found)
            return;
        found->gone(found->data);
        wait_unref(found);
    }
}

void api_stop(struct api *api)
{
    if (!api)
        return;
    atomic_store(&api->draining, true);
    api_core_stop(api->core);
    pthread_mutex_lock(&api->lock);
    atomic_store(&api->stopping, true);
    for (struct api_stream *s = api->streams; s; s = s->next) {
        if (s->ops->gone)
            s->ops->gone(s->state);
        stream_wake_locked(s);
    }
    pthread_mutex_unlock(&api->lock);
    waits_tell_gone(api); /* unwanted work ends sooner */
    if (api->watching) {
        uint64_t one = 1;

        if (write(api->wake_fd, &one, sizeof one) < 0)
            pd_log(PD_LOG_WARNING, "api", "stop=watcher errno=%d", errno);
        pthread_join(api->watcher, NULL);
    }
    if (api->mhd) {
        int fd = MHD_quiesce_daemon(api->mhd);

        waits_end(api);
        /* What was resumed still has to be written; stopping cuts connections off where they stand. */
        for (int i = 0; i < ANSWER_GRACE_MS / 5 && atomic_load(&api->active) > 0; i++)
            usleep(5000);
        MHD_stop_daemon(api->mhd);
        api->mhd = NULL;
        if (fd >= 0)
            close(fd);
    }
}

struct api *api_free(struct api *api)
{
    if (!api)
        return NULL;
    api_core_free(api->core);
    free(api->settings_text);
    if (api->epoll_fd >= 0)
        close(api->epoll_fd);
    if (api->wake_fd >= 0)
        close(api->wake_fd);
    pthread_cond_destroy(&api->quiet);
    pthread_mutex_destroy(&api->lock);
    free(api);
    return NULL;
}
