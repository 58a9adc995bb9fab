/* api/server.h: shared by the parts of the module behind the handlers: counters, readers, the news of commits.
 */
#pragma once

#include <stdatomic.h>

#include "api/api.h"
#include "api/http.h"
#include "daemon/polyd/config/config.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/supervise.h"

#define API_ROUTES_MAX 128
#define API_CODES 24
#define API_DURATIONS 10

struct api_counters {
    atomic_int sse_clients;
    atomic_ullong requests[API_ROUTES_MAX + 1][API_CODES]; /* the last row: no route */
    atomic_ullong duration[API_DURATIONS + 1];             /* the last: above all bounds */
    atomic_ullong duration_us;
    atomic_ullong ingest_points;
    atomic_ullong rejected; /* inference requests turned away */
    atomic_ullong departed; /* clients that left before their request was begun */
    atomic_ullong conns_replaced, conns_slow, conns_refused;
};

/* Upper bounds of the duration buckets in microseconds. */
extern const int64_t api_duration_bounds[API_DURATIONS];
extern const int api_codes[API_CODES]; /* status of each column; 0 = any other */

void api_count_request(struct api_counters *c, const struct api_route *route, int status, int64_t us);

const struct api_deps *api_deps_of(struct api *api);
/* As it was read last; good as long as the api. */
const struct config *api_config(struct api *api);
struct api_counters *api_counters_of(struct api *api);
bool api_draining(struct api *api);
int api_connection_count(struct api *api);

/* The settings, from the configuration; `owned` is the memory behind its texts (freed by the caller). */
PD_NODISCARD enum pd_err api_settings_read(const struct config *config, struct api_settings *ret,
                                           char **ret_owned, struct pd_why *why);

/* ---- shared by the handlers: one per server --------------------------------------------------- */

#define API_CURSOR_KEY_BYTES 32

/* When the reads of this thread's request must be done, monotonic; 0 = there is no such time. */
int64_t api_pool_read_until_us(void);
/* Requests that wait for a thread of the pool. */
int api_pool_waiting(struct api *api);

struct api_core;
struct api_core *api_core_of(struct api *api);

PD_NODISCARD enum pd_err api_core_new(struct api *api, struct api_core **ret, struct pd_why *why);
/* No more news of commits after this. */
void api_core_stop(struct api_core *core);
struct api_core *api_core_free(struct api_core *core);

int64_t api_core_started_us(const struct api_core *core);
const uint8_t *api_core_cursor_key(const struct api_core *core);

/* Runs that got points in commits after *seq, at most `most`; moves *seq on. */
int api_core_changed_runs(struct api_core *core, uint64_t *seq, int64_t *out, int most);
uint64_t api_core_change_seq(struct api_core *core);

/* Is there room for one more job that has not ended? Counted once a second, and up with every call that said
 * yes. */
PD_NODISCARD enum pd_err api_core_job_room(struct api_core *core, struct store *store, int64_t most,
                                           bool *ret_room, struct pd_why *why);

/* Inference requests in flight: takes one of `most` places or says no. */
bool api_core_infer_enter(struct api_core *core, int most);
void api_core_infer_leave(struct api_core *core);
int api_core_infer_count(struct api_core *core);

/* This thread's read-only store; NULL after failing the request. Closed when the thread ends. */
struct store *api_reader(struct api_req *r);
/* The same for a stream, on its loop. */
struct store *api_reader_of(struct api *api, struct pd_why *why);
/* The newest event that a commit brought; -1 = none since the start. */
int64_t api_core_last_event(struct api_core *core);

/* ---- writes ----------------------------------------------------------------------------------- */

/* A write in flight, as the head of a handler's own struct in the wait's data. */
struct api_write {
    struct api *api;
    struct api_wait *wait;
    enum pd_err err;
    struct pd_why why;
    bool notify; /* tell the supervisor after the commit */
    /* Set by api_write_submit; the handler's work. */
    enum pd_err (*apply)(struct store_tx *tx, struct api_write *w, struct pd_why *why);
    /* Idempotency: filled by api_write_begin when the request carries a key. */
    char scope[200];
    char key[256];
    uint8_t body_sha256[32];
    bool keyed, replayed;
    /* Where in the request the fault lies that apply met: "points/3/key"; "" = nowhere. */
    char param[40];
    int status;           /* of the answer: set by apply, or replayed */
    struct pd_buf answer; /* body of the answer: made by apply, or replayed */
};

/* Whether the request repeats one whose answer is kept under its Idempotency-Key: the writer replays that
 * answer, so nothing that has changed since may refuse it. */
bool api_write_repeated(struct api_req *r);

/* Suspends the request and makes its data: `size` bytes that begin with a struct api_write. `done` frees what
 * follows it. Reads Idempotency-Key if `keyed`. NULL: the request has been failed. */
struct api_write *api_write_begin(struct api_req *r, size_t size, bool keyed,
                                  void (*done)(struct api_write *), void (*next)(struct api_req *));
/* Hands it to the writer; a refusal ends the wait with that error. */
void api_write_submit(struct api_write *w, enum store_lane lane, int rows);
/* In `next`: did it commit? Otherwise the request has been failed. */
struct api_write *api_write_result(struct api_req *r);
/* Answers with what was created below `path` ("/api/v1/jobs"), now or when the request came first: the stored
 * answer, its id in Location and its version in ETag. */
void api_write_created(struct api_req *r, struct api_write *w, const char *path);
/* In `next`: the write, whether or not it committed. */
struct api_write *api_write_of(struct api_req *r);
/* Ends the write without the writer: something failed before it could be handed over. */
void api_write_fail(struct api_write *w, enum pd_err err, const struct pd_why *why);

/* ---- pages of lists --------------------------------------------------------------------------- */

/* limit and cursor. `kind` names list and order. False: the request has been failed. */
bool api_page_begin(struct api_req *r, const char *kind, int64_t *ret_after, int *ret_limit);
/* The same with a greatest limit, which is also the default. */
bool api_page_begin_most(struct api_req *r, const char *kind, int most, int64_t *ret_after, int *ret_limit);
/* Closes the array, writes next and the Link header, closes the object. */
void api_page_end(struct api_req *r, struct pd_buf *b, const char *kind, int64_t last_id, bool more);
/* The same with a cursor of the caller's; NULL = no page follows. */
void api_page_close(struct api_req *r, struct pd_buf *b, const char *cursor);
bool api_query_order(struct api_req *r, enum store_order *ret_order);
/* Is there room for one more job? Otherwise fails with 429. */
bool api_job_room(struct api_req *r);
/* Tags of a job: an object of at most 100 texts. */
bool api_tags_ok(struct api_req *r, json_t *tags);
/* The empty object, or nothing. */
bool api_empty_body(struct api_req *r);
/* The body {"reason"?: text} of a cancel. */
bool api_reason(struct api_req *r, char *out, size_t size);

/* The families polyd_gpu_*; nothing where there is no GPU. */
void api_gpu_metrics(struct pd_buf *b, struct sup *sup);

/* Everything that /readyz checks, one line each. */
bool api_ready(struct api *api, struct pd_buf *b);

/* Is there such a run? Otherwise fails with 404. *ret (may be NULL): how it stands. */
struct api_run_facts {
    enum job_kind kind;
    enum job_run_state state;
    enum job_outcome outcome; /* meaningful when ended */
    int attempts;
};
bool api_run_exists(struct api_req *r, struct store *store, int64_t id, struct api_run_facts *ret);

/* ---- inference -------------------------------------------------------------------------------- */

const struct api_settings *api_settings_get(struct api *api);
/* Takes `places` of the inference places; false: the request has been failed with 429, or 503 while draining.
 */
bool api_infer_allowed(struct api_req *r, int places);
/* What the supervisor or the worker refused, in HTTP's words. */
void api_fail_infer(struct api_req *r, enum pd_err err, const struct pd_why *why);
