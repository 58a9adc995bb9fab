/* api/http.h: the interface between handlers and requests. Only internal.h sees libmicrohttpd.
 *
 * A handler is called when the whole body has arrived. It ends in one of three ways:
 *   - it sets the answer (api_reply*, api_fail*);
 *   - it sets a stream (api_reply_stream), read until its end;
 *   - it waits (api_wait_begin), submits the operation to another thread, and `next` is called on the
 *     loop after api_wait_end; `next` ends in one of the three ways again.
 * A request belongs to one thread at a time: a loop, or a thread of pool.c; only api_wait_end, api_wait_gone
 * and api_stream_wake may be called from elsewhere. */
#pragma once

#include <stdarg.h>
#include <sys/types.h>

#include <jansson.h>

#include "api/route.h"
#include "api/settings.h"
#include "kernels/base/buf.h"

struct api;
struct api_req;

/* ---- the request ------------------------------------------------------------------------------- */

struct api *api_of(struct api_req *r);
const struct api_settings *api_settings_of(struct api_req *r);
/* The n-th parameter of the path template, decoded. */
const char *api_param(struct api_req *r, int n);
/* NULL if absent. Borrowed until the request ends. */
const char *api_header(struct api_req *r, const char *name);
/* The body's bytes; may be NULL when `*ret_len` is 0. NUL-terminated otherwise. */
const char *api_body(struct api_req *r, size_t *ret_len);
enum api_surface api_surface(struct api_req *r);
const char *api_path(struct api_req *r); /* raw, without the query */

/* Copies the first value of a query parameter to `out`: true if present. An invalid or too long value sets an
 * error reply (api_failed is true afterwards) and returns false. */
bool api_query(struct api_req *r, const char *name, char *out, size_t size);
/* Integer in [low, high]; `missing` if absent. Otherwise sets a 400 reply. */
int64_t api_query_int(struct api_req *r, const char *name, int64_t low, int64_t high, int64_t missing);
/* "1" or "true", "0" or "false"; absent = false. */
bool api_query_flag(struct api_req *r, const char *name);
const char *api_query_raw(struct api_req *r);
/* Refuses parameters not on the NULL-terminated list: true if it refused. */
bool api_query_refuse_others(struct api_req *r, const char *const *names);
/* Path parameter n as an id; fails with 404 and returns 0 otherwise. */
int64_t api_param_id(struct api_req *r, int n);

/* Whether the reply that was set is an error. */
bool api_failed(struct api_req *r);

/* Memory that lives as long as the request; NULL fails. `done` may be NULL. One slot: a second call replaces
 * it. */
void *api_state_new(struct api_req *r, size_t size, void (*done)(void *));
void *api_state(struct api_req *r);

/* The body as JSON: object (or array if `array_ok`); duplicate keys and malformed text fail the request with
 * 400 and return NULL. An empty body gives an empty object if `empty_ok`. The caller owns the reference. */
#define API_JSON_EMPTY_OK 1u
#define API_JSON_ARRAY_OK 2u
json_t *api_body_json(struct api_req *r, unsigned flags);

/* ---- the answer -------------------------------------------------------------------------------- */

/* Moves the bytes out of `body` (left empty). A buffer that ran out of memory gives 503. */
void api_reply(struct api_req *r, int status, const char *type, struct pd_buf *body);
void api_reply_json(struct api_req *r, int status, struct pd_buf *body);
/* Borrowed bytes with static lifetime. */
void api_reply_static(struct api_req *r, int status, const char *type, const void *bytes, size_t len);
void api_reply_empty(struct api_req *r, int status);
/* Before or after api_reply; copied. At most 8; without memory it is left out. */
void api_reply_header(struct api_req *r, const char *name, const char *value);

/* HTTP-only failures, continuing the numbering of enum pd_err so that one table serves both. */
enum api_fault {
    API_FAULT_MALFORMED = PD_ERR_COUNT, /* 400: not JSON, an invalid header or parameter */
    API_FAULT_HOST,                     /* 403 */
    API_FAULT_ORIGIN,                   /* 403 */
    API_FAULT_NO_ROUTE,                 /* 404 */
    API_FAULT_METHOD,                   /* 405 */
    API_FAULT_MEDIA_TYPE,               /* 415 */
    API_FAULT_BODY_TOO_LARGE,           /* 413 */
    API_FAULT_RANGE,                    /* 416 */
    API_FAULT_NEEDS_MATCH,              /* 428 */
    API_FAULT_KEY_REUSED,               /* 422: Idempotency-Key with another body */
    API_FAULT_KEY_MISSING,              /* 400 */
    API_FAULT_OVERLOADED,               /* 429: this client may retry */
    API_FAULT_LOADING,                  /* 503: a model that is not ready yet */
    API_FAULT_DRAINING,                 /* 503 */
    API_FAULT_NOT_IMPLEMENTED,          /* 404 with a message: a known path that this server does not offer */
    API_FAULT_COUNT
};

struct api_fault_row {
    int status;        /* on /api/v1 and pages */
    int compat_status; /* on /v2 and /v1 */
    const char *code;  /* error.code */
    const char *type;  /* OpenAI's error.type */
};
/* The table. `fault` is an enum pd_err or an enum api_fault. */
const struct api_fault_row *api_fault_row(int fault);
const char *api_status_title(int status);

/* Writes the error body in the format of the surface. `details` is a JSON array text of {pointer, detail}, or
 * NULL; `param` is OpenAI's member, or NULL. Returns the status. Pure: tests call it. */
int api_fault_body(struct pd_buf *b, enum api_surface surface, int fault, const char *message,
                   const char *details, const char *param, const char **ret_type);

/* Sets the reply; a later call replaces it. */
void api_fail(struct api_req *r, int fault, const char *fmt, ...) PD_PRINTF(3, 4);
void api_fail_why(struct api_req *r, enum pd_err err, const struct pd_why *why);
/* The same with a list of {pointer, detail} (text of a JSON array). */
void api_fail_details(struct api_req *r, int fault, const char *details, const char *fmt, ...)
    PD_PRINTF(4, 5);
/* The same with the name of the invalid member: `param` of OpenAI, a pointer in /api/v1. The sentence names
 * it too, since clients often show the sentence only. */
void api_fail_param(struct api_req *r, int fault, const char *param, const char *fmt, ...) PD_PRINTF(4, 5);
void api_retry_after(struct api_req *r, int seconds);

/* ---- waiting ----------------------------------------------------------------------------------- */

/* A ticket shared by the request and the thread that completes it. Its data (zeroed, `size` bytes) lives
 * until both have released it: a completion after the server abandoned the request writes to memory that is
 * no longer read. */
struct api_wait;

/* Suspends the connection. Call it BEFORE submitting the operation, which may complete immediately. `done`
 * frees what the data owns (not the data). NULL: out of memory or stopping, the answer is set. */
struct api_wait *api_wait_begin(struct api_req *r, size_t size, void (*done)(void *data),
                                void (*next)(struct api_req *));
void *api_wait_data(struct api_wait *w);
/* In `next`: the data of the completed ticket. NULL if the server is stopping and abandoned the request. */
void *api_waited(struct api_req *r);
/* Completes: the pool calls `next`. Exactly once per ticket. Any thread. */
void api_wait_end(struct api_wait *w);
/* Calls `gone(arg)` once, on the watcher thread, if the client disconnects before api_wait_end. */
void api_wait_watch(struct api_wait *w, void (*gone)(void *data));

/* ---- the pool ---------------------------------------------------------------------------------- */

/* Called on a loop as the last action of a handler or `next`: `run` is called on a thread for long operations
 * (pool.c), and ends in one of the three ways; the data of api_waited remain valid until then. False: the
 * server is stopping, the answer is set. */
bool api_pool_give(struct api_req *r, bool is_long, void (*run)(struct api_req *));

/* ---- streams ----------------------------------------------------------------------------------- */

#define API_STREAM_END (-1)
#define API_STREAM_ABORT (-2) /* abort the connection, so that the client detects the incomplete reply */

struct api_stream;

struct api_stream_ops {
    /* Writes up to `size` bytes to `out`; 0 = no data now (sleep until woken); or END, ABORT. Pool thread. */
    ssize_t (*read)(void *state, char *out, size_t size);
    /* Releases the state and the stream. Pool thread, or the stopping thread. */
    void (*done)(void *state);
    /* The client disconnected while the stream slept, or the server stops. May be NULL. Called under the
     * server's lock: it may only set a flag. */
    void (*gone)(void *state);
    bool comments;   /* a comment line every 15 s of silence (text/event-stream) */
    bool everything; /* woken by api_streams_wake, and twice a second */
};

/* The stream owns `state` from now on, also on failure. *ret_stream (may be NULL) is good for
 * api_stream_wake until `done`. */
void api_reply_stream(struct api_req *r, int status, const char *type, const struct api_stream_ops *ops,
                      void *state, struct api_stream **ret_stream);
/* More data are available: `read` will be called again. Any thread; the caller ensures that `done` has not
 * run. */
void api_stream_wake(struct api_stream *s);
/* Wakes all streams with `everything` after a commit. Any thread. */
void api_streams_wake(struct api *api);
bool api_stopping(struct api *api);
