/* api/server.h: shared by the handlers: counters, readers, notification of commits.
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
    atomic_ullong rejected; /* inference requests refused */
    atomic_ullong departed; /* clients that disconnected before their request was started */
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

/* Deadline for the reads of this thread's request, monotonic; 0 = none. */
int64_t api_pool_read_until_us(void);
/* Requests that wait for a thread of the pool. */
int api_pool_waiting(struct api *api);

struct api_core;
struct api_core *api_core_of(struct api *api);

PD_NODISCARD enum pd_err api_core_new(struct api *api, struct api_core **ret, struct pd_why *why);
/* No notification of commits after this call. */
void api_core_stop(struct api_core *core);
struct api_core *api_core_free(struct api_core *core);

int64_t api_core_started_us(const struct api_core *core);
const uint8_t *api_core_cursor_key(const struct api_core *core);

/* Runs that got points in commits after *seq, at most `most`, those that have waited longest first; moves *seq on
 * past them, and past all if there are fewer. `job` and `run` limit them, 0 = any. */
int api_core_changed_runs(struct api_core *core, uint64_t *seq, int64_t job, int64_t run, int64_t *out,
                          int most);
uint64_t api_core_change_seq(struct api_core *core);

/* Whether the limit allows one more job that has not ended. The count is refreshed once a second and
 * increased with every call that returns true. */
PD_NODISCARD enum pd_err api_core_job_reserve(struct api_core *core, struct store *store, int64_t most,
                                              bool *ret_fits, struct pd_why *why);

/* Takes one of the `most` places for concurrent inference requests; false if all are in use. */
bool api_core_infer_enter(struct api_core *core, int most);
void api_core_infer_leave(struct api_core *core);
int api_core_infer_count(struct api_core *core);

/* This thread's read-only store; NULL after failing the request. Closed when the thread ends. */
struct store *api_reader(struct api_req *r);
/* The same for a stream, on its loop. */
struct store *api_reader_of(struct api *api, struct pd_why *why);
/* Id of the newest committed event; -1 = none since the start. */
int64_t api_core_last_event(struct api_core *core);

/* ---- writes ----------------------------------------------------------------------------------- */

/* A pending write; the first member of a handler's own struct in the data of the wait. */
struct api_write {
    struct api *api;
    struct api_wait *wait;
    enum pd_err err;
    struct pd_why why;
    bool notify; /* notify the supervisor after the commit */
    /* Set by api_write_submit; the handler's operation. */
    enum pd_err (*apply)(struct store_tx *tx, struct api_write *w, struct pd_why *why);
    /* Idempotency: filled by api_write_begin when the request carries a key. */
    char scope[200];
    char key[256];
    uint8_t body_sha256[32];
    bool keyed, replayed;
    /* Position of the error found by apply in the request: "points/3/key"; "" = none. */
    char param[40];
    int status;           /* of the answer: set by apply, or replayed */
    struct pd_buf answer; /* body of the answer: made by apply, or replayed */
};

/* Whether the request repeats one whose reply is stored under its Idempotency-Key. The writer replays that
 * reply, so later changes must not refuse the request. */
bool api_write_repeated(struct api_req *r);

/* Suspends the request and allocates its data: `size` bytes that begin with a struct api_write. `done` frees
 * the rest. Reads Idempotency-Key if `keyed`. NULL: an error reply was set. */
struct api_write *api_write_begin(struct api_req *r, size_t size, bool keyed,
                                  void (*done)(struct api_write *), void (*next)(struct api_req *));
/* Submits it to the writer; a refusal ends the wait with that error. */
void api_write_submit(struct api_write *w, enum store_lane lane, int rows);
/* In `next`: whether it was committed. Otherwise an error reply was set. */
struct api_write *api_write_result(struct api_req *r);
/* Replies with the object created below `path` ("/api/v1/jobs"), by this request or by its first attempt: the
 * stored reply, its id in Location and its version in ETag. */
void api_write_created(struct api_req *r, struct api_write *w, const char *path);
/* In `next`: the write, committed or not. */
struct api_write *api_write_of(struct api_req *r);
/* Ends the write after a failure before it could be submitted. */
void api_write_fail(struct api_write *w, enum pd_err err, const struct pd_why *why);

/* ---- pages of lists --------------------------------------------------------------------------- */

/* Reads limit and cursor. `kind` names list and order. False: an error reply was set. */
bool api_page_begin(struct api_req *r, const char *kind, int64_t *ret_after, int *ret_limit);
/* The same with a maximum limit, which is also the default. */
bool api_page_begin_most(struct api_req *r, const char *kind, int most, int64_t *ret_after, int *ret_limit);
/* Closes the array, writes next and the Link header, closes the object. */
void api_page_end(struct api_req *r, struct pd_buf *b, const char *kind, int64_t last_id, bool more);
/* The same with the caller's cursor; NULL = last page. */
void api_page_close(struct api_req *r, struct pd_buf *b, const char *cursor);
bool api_query_order(struct api_req *r, enum store_order *ret_order);
/* Whether the limit allows one more job. Otherwise sets a 429 reply. */
bool api_job_reserve(struct api_req *r);
/* Tags of a job: an object of at most 100 texts. */
bool api_tags_ok(struct api_req *r, json_t *tags);
/* The empty object, or nothing. */
bool api_empty_body(struct api_req *r);
/* The body {"reason"?: text} of a cancel. */
bool api_reason(struct api_req *r, char *out, size_t size);

/* The families polyd_gpu_*; empty without a GPU. */
void api_gpu_metrics(struct pd_buf *b, struct sup *sup);

/* All checks of /readyz, one line each. */
bool api_ready(struct api *api, struct pd_buf *b);

/* Whether the run exists. Otherwise sets a 404 reply. *ret (may be NULL): its state. */
struct api_run_facts {
    enum job_kind kind;
    enum job_run_state state;
    enum job_outcome outcome; /* meaningful when ended */
    int attempts;
};
bool api_run_exists(struct api_req *r, struct store *store, int64_t id, struct api_run_facts *ret);

/* ---- inference -------------------------------------------------------------------------------- */

const struct api_settings *api_settings_get(struct api *api);
/* Takes `places` of the inference places; false: a 429 reply was set, or 503 while draining.
 */
bool api_infer_allowed(struct api_req *r, int places);
/* Maps a refusal by the supervisor or the worker to a reply. */
void api_fail_infer(struct api_req *r, enum pd_err err, const struct pd_why *why);
