/* Connections and requests, as libmicrohttpd reports them: what may be refused before the body has come, the
 * body, the handler's calls, the end. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "api/framing.h"
#include "api/internal.h"
#include "api/json.h"
#include "api/models.h"
#include "kernels/base/clock.h"

/* A refused body up to this size is read to its end, so that the client sees why. */
#define SWALLOW_MAX (8u * 1024u * 1024u)
/* Lines of a request's head. */
#define FIELDS_MAX 128u
/* Bytes of request bodies held at once, of all clients together. */
#define BODIES_MAX (256u * 1024u * 1024u)

void *api_request_new(void *cls, const char *uri, struct MHD_Connection *connection)
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
    r->target = uri;
    r->target_len = len;
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

void api_request_done(void *cls, struct MHD_Connection *connection, void **req_cls,
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
    if (r->conn) {
        int64_t now_us = pd_clock_mono_us();

        atomic_store(&r->conn->deadline_us, now_us + (int64_t)api->set.idle_timeout_s * 1000000);
        api_conn_enter(r->conn, CONN_IDLE, now_us);
    }
    if (r->handled)
        atomic_fetch_sub(&api->active, 1);
    if (r->stream) /* never given to libmicrohttpd */
        api_stream_done(r->stream);
    api_sending_free(r->sending); /* likewise */
    api_upload_free(r);
    if (r->wait) /* resumed, and the client left before the handler was called again */
        api_wait_drop(r);
    if (r->waited)
        api_wait_unref(r->waited);
    if (r->state && r->state_done)
        r->state_done(r->state);
    free(r->state);
    atomic_fetch_sub(&api->body_bytes, r->body.size);
    pd_buf_done(&r->body);
    pd_buf_done(&r->out);
    api_answer_free_headers(r);
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

/* Whether the body is a file to be kept as it comes. */
static bool is_file(struct api_req *r)
{
    return r->route->body == API_BODY_JSON_OR_FILE &&
           api_media_type_is(api_header(r, "Content-Type"), "application/octet-stream");
}

/* Most bytes of this request's body. */
static size_t body_limit(const struct api_req *r)
{
    size_t most = r->api->set.body_max;

    if (r->upload)
        return r->api->set.upload_max;

    return r->route->body_limit < most ? r->route->body_limit : most;
}

struct field_list {
    size_t count;
    struct api_field field[FIELDS_MAX];
};

static enum MHD_Result add_field(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_len,
                                 const char *value, size_t value_len)
{
    struct field_list *list = cls;

    (void)kind;
    if (list->count < FIELDS_MAX)
        list->field[list->count] = (struct api_field){name, value ? value : "", name_len, value_len};
    list->count++;
    return MHD_YES;
}

/* Refuses a head that can be read in two ways. */
static void framing_check(struct api_req *r, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const struct api_request_line line = {
        .method = method, .path = r->path, .query = r->query, .version = version};
    struct field_list list = {.count = 0};
    const char *fault = NULL;

    MHD_get_connection_values_n(r->connection, MHD_HEADER_KIND, add_field, &list);
    if (list.count > FIELDS_MAX) {
        api_fail(r, API_FAULT_MALFORMED, "the request has more than %u headers", FIELDS_MAX);
        return;
    }
#if MHD_VERSION < 0x00097701 /* later ones refuse such lines themselves (loops.c) */
    {
        struct api_head_layout head = {.method = method,
                                       .target = r->target,
                                       .version = version,
                                       .target_len = r->target_len,
                                       .head_bytes = info ? info->header_size : 0};

        if (!api_framing_adjacent(&head, list.field, list.count))
            fault =
                "each line of the request's head must end in CRLF, none may be continued on the next, and "
                "one blank separates the parts of the first";
    }
#else
    (void)info;
#endif
    if (!fault)
        fault = api_framing_fault(&line, list.field, list.count);
    if (fault)
        api_fail(r, API_FAULT_MALFORMED, "%s", fault);
}

/* The checks that do not need the body. Sets an error reply if the request is refused. */
static void request_check(struct api_req *r, const char *method_name, size_t *ret_declared)
{
    const struct api_allow *allow = &r->api->set.allow;
    const char *host = api_header(r, "Host"), *origin = api_header(r, "Origin");
    const char *declared = api_header(r, "Content-Length");
    enum api_method method = api_method_parse(method_name);
    unsigned allowed = 0;
    int64_t length = 0;

    if (declared && !api_parse_int(declared, 0, INT64_MAX - 1, &length))
        length = INT64_MAX; /* digits, says framing_check; too many of them */
    *ret_declared = (size_t)length;
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
            api_fail(r, API_FAULT_NO_ROUTE, "no resource has the path %.200s", r->path);
        return;
    }
    r->surface = r->route->surface;
    if (r->conn->spare && !r->route->probe) {
        api_fail(r, PD_ERR_BUSY,
                 "all %d connections are busy (server.max_connections); the last one is reserved for probes",
                 r->api->set.connections);
        return;
    }
    if (method != API_GET && !api_content_type_ok(r->route->body, api_header(r, "Content-Type"))) {
        api_fail(r, API_FAULT_MEDIA_TYPE, "Content-Type must be application/json%s",
                 r->route->body == API_BODY_TENSORS ? ", application/octet-stream, image/jpeg or image/png"
                 : r->route->body == API_BODY_JSON_OR_FILE ? " or application/octet-stream"
                                                           : "");
        return;
    }
    if (is_file(r) && (!api_register_check(r) || !api_upload_begin(r)))
        return;
    if ((size_t)length > body_limit(r) && r->route->body != API_BODY_NONE) {
        api_fail(r, API_FAULT_BODY_TOO_LARGE, "the body has %lld bytes, this path takes at most %zu",
                 (long long)length, body_limit(r));
        return;
    }
    if (!r->upload && atomic_load(&r->api->body_bytes) + (size_t)length > BODIES_MAX)
        api_fail(r, PD_ERR_BUSY, "too many large requests are in progress");
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
        api_fail(r, PD_ERR_BUSY, "too many large requests are in progress");
    } else {
        pd_buf_append(&r->body, bytes, len);
        if (pd_buf_err(&r->body) != PD_OK)
            api_fail(r, PD_ERR_NOMEM, "no memory for the body");
    }
    atomic_fetch_add(&r->api->body_bytes, r->body.size - before);
}

enum MHD_Result api_request_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *upload_data,
                                   size_t *upload_size, void **req_cls)
{
    struct api *api = cls;
    struct api_req *r = *req_cls;

    (void)connection;
    (void)url;
    if (!r || !r->conn)
        return MHD_NO;
    if (!r->begun) {
        size_t declared = 0;
        int64_t now_us;

        r->begun = true;
        framing_check(r, method, version);
        if (r->failed) /* answered before the body, libmicrohttpd closes the connection */
            return api_answer_send(r);
        request_check(r, method, &declared);
        if (r->answered && (declared > SWALLOW_MAX || r->conn->spare))
            return api_answer_send(r); /* and the connection is closed */
        now_us = pd_clock_mono_us();
        /* A file may take as long as it comes fast enough (places.c). */
        atomic_store(&r->conn->deadline_us,
                     r->upload ? 0 : now_us + (int64_t)api->set.body_timeout_s * 1000000);
        atomic_store(&r->conn->body_bytes, 0);
        api_conn_enter(r->conn, CONN_BODY, now_us);
        return MHD_YES;
    }
    if (*upload_size && r->upload && !r->answered) {
        size_t before = *upload_size;
        enum MHD_Result result = api_upload_take(r, upload_data, upload_size);

        atomic_fetch_add(&r->conn->body_bytes, before - *upload_size);
        return result;
    }
    if (*upload_size) {
        atomic_fetch_add(&r->conn->body_bytes, *upload_size);
        body_append(r, upload_data, *upload_size);
        *upload_size = 0;
        /* The rest of a refused file is read, so that its client sees why. */
        return r->swallowed > SWALLOW_MAX + (r->upload ? body_limit(r) : 0) ? MHD_NO : MHD_YES;
    }
    if (r->wait) {
        r->waited = r->wait;
        r->wait = NULL; /* moved */
        if (r->gave_up)
            api_fail(r, PD_ERR_CLOSED,
                     "the server is stopping; whether the change was made is not known here");
        else
            r->next(r);
    } else if (!r->answered && !r->handled) {
        bool is_long = r->route->lane == API_LANE_LONG || r->body.len > API_LOOP_BODY;

        atomic_store(&r->conn->deadline_us, 0);
        api_conn_enter(r->conn, CONN_BUSY, pd_clock_mono_us());
        atomic_fetch_add(&api->active, 1);
        r->handled = true;
        /* An unknown parameter is a mistake of the client that would go unnoticed. */
        if (r->route->surface != API_SURFACE_OWN || r->route->query ||
            !api_query_refuse_others(r, (const char *const[]){NULL})) {
            if (is_long || r->route->lane == API_LANE_SHORT) {
                (void)api_pool_give(r, is_long, r->route->handler);
            } else {
                r->route->handler(r);
            }
        }
    }
    if (r->given) { /* it may be a thread of the pool's by now */
        r->given = false;
        return MHD_YES;
    }
    if (r->waited)
        api_wait_unref(r->waited);
    r->waited = NULL;
    if (r->wait)
        return MHD_YES;
    if (!r->answered)
        api_fail(r, PD_ERR_INTERNAL, "the handler gave no answer");
    return api_answer_send(r);
}

void api_connection_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                           enum MHD_ConnectionNotificationCode code)
{
    struct api_loop *loop = cls;
    struct api *api = api_of_loop(loop);
    struct conn *c = *socket_context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

        c = calloc(1, sizeof *c);
        if (!c || !info) {
            free(c);
            return; /* its requests are refused because there is no record */
        }
        c->loop = loop;
        c->fd = info->connect_fd;
        info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        if (info && info->client_addr)
            memcpy(&c->address, info->client_addr,
                   info->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                            : sizeof(struct sockaddr_in));
        atomic_init(&c->deadline_us, pd_clock_mono_us() + (int64_t)api->set.header_timeout_s * 1000000);
        atomic_init(&c->body_bytes, 0);
        api_conn_enter(c, CONN_IDLE, pd_clock_mono_us());
        api_conn_add(api, c);
        *socket_context = c;
    } else if (c) {
        api_conn_remove(api, c);
        free(c);
        *socket_context = NULL;
    }
}
