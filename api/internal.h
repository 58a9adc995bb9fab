/* api/internal.h: the libmicrohttpd side, shared by the files that serve: connections, requests, waiting and
 * streams.
 *
 * Threads: those of loops.c run every callback of libmicrohttpd, a connection's all on one; the watcher
 * detects clients that disconnect while suspended, ends slow requests and triggers keep-alive comments;
 * completions come from any thread. `lock` guards the lists of waits, streams and connections and each
 * suspend/resume pair, so that a wake-up can never fall between "nothing to send" and "suspended".
 *
 * Invariant: a connection is suspended if and only if it is in `waits` or in `streams` with `asleep`. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>

#include <microhttpd.h>

#include "api/server.h"

#define HEADERS_MAX 8

struct header {
    const char *name;
    char *value; /* owned */
};

enum conn_phase { CONN_IDLE, CONN_BODY, CONN_BUSY };

struct conn {
    struct api_loop *loop;
    int fd;
    struct sockaddr_storage address; /* the client's */
    _Atomic int64_t deadline_us;     /* monotonic; 0 = the request is being answered */
    _Atomic int64_t since_us;        /* monotonic: when `phase` began */
    atomic_size_t body_bytes;        /* bytes of the body received so far */
    atomic_int phase;                /* enum conn_phase */
    bool spare;                      /* a reserved connection: probes only. Set once */
    bool leaving;                    /* was closed and no longer counts. Under the lock */
    struct conn *prev, *next;
};

struct api_wait {
    struct api *api;
    struct api_req *r; /* NULL when completed or abandoned */
    atomic_int refs;
    uint64_t id;
    void (*done)(void *data);
    void (*gone)(void *data);
    bool gone_called; /* gone was called */
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
    const char *target;       /* an address in libmicrohttpd's buffer, see framing.h */
    size_t target_len;
    struct api_params params;
    struct pd_buf body;
    size_t swallowed;
    int64_t start_us;
    bool begun, handled, answered, failed, gave_up;
    struct api_wait *wait, *waited;
    /* pool.c: `held` while a thread of the pool has the request or it is queued; `due` if the completion
     * arrived in the meantime. Both under the api's lock. */
    bool held, due;
    bool given; /* set by the loop when it has just queued the request */
    void (*pool_run)(struct api_req *);
    atomic_bool pool_left; /* the client disconnected while the request was queued */
    int64_t pool_us;
    uint64_t pool_id;
    struct api_req *pool_next;
    void (*next)(struct api_req *);
    void *state;
    void (*state_done)(void *);
    int status;
    const char *type;
    struct pd_buf out;
    const void *out_static;
    size_t out_static_len;
    struct api_stream *stream;
    struct api_sending *sending;  /* file.c: the answer is a file */
    struct api_uploading *upload; /* upload.c: the body is a file */
    int headers;
    struct header header[HEADERS_MAX];
    char uri[];
};

struct api {
    struct api_deps deps;
    const struct config *_Atomic config; /* the latest */
    struct api_settings set;
    struct api_loop *loops; /* set.threads of them at most */
    int loop_count;
    uint16_t port;
    int epoll_fd, wake_fd;
    pthread_t watcher;
    bool watching;
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* a wait ended */
    struct conn *conns;
    int conn_count; /* without those being closed */
    struct api_wait *waits;
    struct api_stream *streams;
    uint64_t next_id;
    atomic_bool stopping, draining;
    atomic_size_t body_bytes;
    atomic_int uploads; /* under way */
    atomic_int active;  /* requests whose handler was called and that are not complete */
    struct api_counters counters;
    struct api_core *core;
    struct api_pool *pool;
    char *settings_text; /* behind set */
};

/* ---- answer.c --------------------------------------------------------------------------------- */

/* Frees the headers that api_reply_header has set. */
void api_answer_free_headers(struct api_req *r);
/* Discards any reply set so far and marks the reply as set. */
void api_answer_reset(struct api_req *r);
enum MHD_Result api_answer_send(struct api_req *r);

/* ---- file.c ----------------------------------------------------------------------------------- */

/* Takes `s`; NULL without memory. */
struct MHD_Response *api_sending_response(struct api_sending *s);
/* NULL is fine. */
void api_sending_free(struct api_sending *s);

/* ---- upload.c --------------------------------------------------------------------------------- */

/* Called before the body. False: an error reply was set. */
bool api_upload_begin(struct api_req *r);
/* Handles a piece of the body: submits the write, or records its completion. Suspends the connection in
 * between. */
enum MHD_Result api_upload_take(struct api_req *r, const char *bytes, size_t *size);
/* Removes the file. */
void api_upload_free(struct api_req *r);

/* ---- wait.c ----------------------------------------------------------------------------------- */

void api_wait_unref(struct api_wait *w);
/* Abandons the wait of a request that ends without another call. */
void api_wait_drop(struct api_req *r);
/* Waits a limited time for the pending waits, then abandons them. */
void api_waits_end(struct api *api);
/* Calls every wait's `gone` once. */
void api_waits_notify_gone(struct api *api);
/* Registers `fd` with the watcher, which reports the client's disconnection once. */
void api_watch_fd(struct api *api, int fd, uint64_t id);
void api_unwatch_fd(struct api *api, int fd);

/* ---- streams.c -------------------------------------------------------------------------------- */

/* Under the lock. */
void api_stream_wake_locked(struct api_stream *s);
/* Triggers keep-alive comments of idle streams and wakes streams with `everything`. Under the lock.
 */
void api_streams_tick_locked(struct api *api, int64_t now_us);
ssize_t api_stream_read(void *cls, uint64_t pos, char *out, size_t size);
void api_stream_done(void *cls);

/* ---- connection.c: libmicrohttpd's callbacks ------------------------------------------------------- */

void *api_request_new(void *cls, const char *uri, struct MHD_Connection *connection);
void api_request_done(void *cls, struct MHD_Connection *connection, void **req_cls,
                      enum MHD_RequestTerminationCode code);
enum MHD_Result api_request_handle(void *cls, struct MHD_Connection *connection, const char *url,
                                   const char *method, const char *version, const char *upload_data,
                                   size_t *upload_size, void **req_cls);
/* `cls` is the loop. */
void api_connection_notify(void *cls, struct MHD_Connection *connection, void **socket_context,
                           enum MHD_ConnectionNotificationCode code);

/* ---- places.c --------------------------------------------------------------------------------- */

/* Whether a client of this address may connect. At the limit, the connection that has been idle longest, or
 * has the slowest body, is closed. Takes the lock. */
bool api_place_find(struct api *api, const struct sockaddr *address);
void api_conn_enter(struct conn *c, enum conn_phase phase, int64_t now_us);
/* Adds to and takes from the list of connections. Take the lock. */
void api_conn_add(struct api *api, struct conn *c);
void api_conn_remove(struct api *api, struct conn *c);
/* Closes connections past their deadline and with too slow bodies. Under the lock. */
void api_conns_tick_locked(struct api *api, int64_t now_us);

/* ---- pool.c ----------------------------------------------------------------------------------- */

/* api_pool_stop and api_pool_free must be called also after a failure. */
PD_NODISCARD enum pd_err api_pool_start(struct api *api, int threads, struct pd_why *why);
/* The client of a queued request has disconnected. */
void api_pool_gone(struct api *api, uint64_t id);
/* Answers the queued requests, then ends the threads. */
void api_pool_stop(struct api *api);
struct api_pool *api_pool_free(struct api_pool *p);

/* ---- loops.c ---------------------------------------------------------------------------------- */

/* Starts set.threads threads that accept from listen_fd and answer. Takes ownership of listen_fd, also on
 * failure; api_loops_end must be called in either case. */
PD_NODISCARD enum pd_err api_loops_start(struct api *api, int listen_fd, struct pd_why *why);
/* Use it instead of MHD_resume_connection. */
void api_resume(const struct conn *c, struct MHD_Connection *connection);
struct api *api_of_loop(const struct api_loop *loop);
/* No new connections from now on. */
void api_loops_refuse(struct api *api);
/* Ends the threads and closes every connection; nothing may be suspended. */
void api_loops_end(struct api *api);

/* ---- watch.c ---------------------------------------------------------------------------------- */

/* The watcher's thread; `arg` is the api. */
void *api_watcher_main(void *arg);
