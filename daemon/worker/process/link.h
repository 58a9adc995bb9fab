/* daemon/worker/process/link.h: the worker's connection to polyd. It never loses a data frame that polyd has
 * not committed.
 *
 * A thread of its own connects to the named socket, reconnects (0.05 to 2 s) when polyd is unavailable, and
 * sends the role's output. Data frames (metrics, checkpoints, events, blobs) have increasing numbers and are
 * stored, first in memory (64 MiB), then in a spool file (1 GiB), until polyd acknowledges their commit. When
 * both are full, blobs are dropped and counted, and other frames block the role.
 *
 * The functions may be called from any thread of the role. Adding a scalar takes well under 2 us: an append
 * to an open frame under a mutex that the other thread holds only briefly. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/wire/wire.h"

struct link;

#define LINK_MEMORY_BYTES ((size_t)64 << 20)
#define LINK_SPOOL_BYTES ((uint64_t)1 << 30)
#define LINK_FLUSH_US 1000000
#define LINK_ALONE_US                                                                                        \
    (INT64_C(24) * 3600 * 1000000) /* time without polyd after which the worker checkpoints and exits */

struct link_options {
    const char *socket_path;
    int64_t run; /* 0 = a serving worker */
    int attempt; /* or the serving worker's number */
    int rank;    /* of the attempt; only 0 has data */
    uint8_t token[WIRE_TOKEN_BYTES];
    const char *spool_path; /* NULL = no spool */
    const char *log_path;   /* log file whose size is reported; NULL = none */
    size_t memory_bytes;    /* 0 = LINK_MEMORY_BYTES */
    uint64_t spool_bytes;   /* 0 = LINK_SPOOL_BYTES */
    bool mortal;            /* a lost connection ends the worker (serving workers) */
};

/* Starts the thread. The caller owns *ret. */
PD_NODISCARD enum pd_err link_start(const struct link_options *o, struct link **ret, struct pd_why *why);
/* Stops the thread without waiting for acknowledgements. NULL is fine. Returns NULL. */
struct link *link_stop(struct link *l);

#define LINK_ROOTS_MAX 64
#define LINK_STARTS_MAX 8

/* The assignment from polyd. Everything is borrowed until link_stop. */
struct link_assign {
    char role[16];
    const char *job; /* JSON */
    size_t job_len;
    const char *run_dir;
    const char *store;      /* identity of polyd's database; "" = not given */
    const char *checkpoint; /* NULL = from scratch */
    int64_t checkpoint_step;
    const char *starts[LINK_STARTS_MAX];  /* `checkpoint`, then alternatives in case it is damaged */
    const char *digests[LINK_STARTS_MAX]; /* as polyd has recorded them, hex; "" = unknown */
    int start_count;
    const char *model;  /* "name/version", serving */
    const char *digest; /* of the checkpoint, hex; "" = unknown */
    int threads;
    int restarts;
    int ranks; /* processes of the attempt, >= 1 */
    struct {
        const char *name, *path;
    } roots[LINK_ROOTS_MAX];
    int root_count;
};

/* Waits for the assignment. PD_ERR_TIMEOUT; PD_ERR_CLOSED when polyd refused this worker. */
PD_NODISCARD enum pd_err link_assigned(struct link *l, int timeout_ms, const struct link_assign **ret,
                                       struct pd_why *why);

#define LINK_RENDEZVOUS_MAX 256
/* Rank 0: sends these bytes to the other ranks; repeated after every reconnection. */
void link_rendezvous_send(struct link *l, const void *bytes, size_t len);
/* The others: waits for them. `out` holds LINK_RENDEZVOUS_MAX. PD_ERR_CANCELLED: asked to stop in the meantime. */
PD_NODISCARD enum pd_err link_rendezvous_wait(struct link *l, int timeout_ms, void *out, size_t *ret_len,
                                              struct pd_why *why);

/* Measured choices of a back end on this device (daemon/worker/model/tuned.h).
 * Recall: requests them from polyd, waits for the answer, and calls `take` with each record. PD_ERR_TIMEOUT:
 * no answer in time; PD_ERR_CANCELLED: asked to stop in the meantime. Report: stored until the process ends
 * and sent again after every reconnection; beyond LINK_TUNED_BYTES false, and the record is lost. */
#define LINK_TUNED_BYTES ((size_t)8 << 20)
struct link_tuned {
    const char *gpu, *driver, *library;
};
PD_NODISCARD enum pd_err link_tuned_recall(struct link *l, const struct link_tuned *of, int timeout_ms,
                                           void (*take)(void *to, const char *key, const void *value,
                                                        size_t size),
                                           void *to, struct pd_why *why);
bool link_tuned_report(struct link *l, const struct link_tuned *of, const char *key, const void *value,
                       size_t size);

/* ---- data (numbered, stored until committed) ------------------------------------------------ */

void link_metric(struct link *l, const char *key, int64_t step, int64_t time_us, double value);
/* `pairs`: "key=value" separated by blanks; NULL = none. The value of `file` or `path` may hold blanks: it ends with the
 * text. */
void link_event(struct link *l, const char *kind, const char *text, const char *pairs);
void link_checkpoint(struct link *l, const char *kind, const char *path, int64_t step, uint64_t bytes,
                     const char *digest_hex, double value);
/* Whether polyd has committed the newest checkpoint of this step; with `wait`, waits for it until a stop is
 * requested. */
bool link_checkpoint_recorded(struct link *l, int64_t step, bool wait);
/* Dropped, and counted, when memory and spool are full. `meta` is JSON. */
void link_blob(struct link *l, const char *kind, const char *key, int64_t step, const char *meta,
               const void *bytes, size_t len);

/* ---- state ---------------------------------------------------------------------------------- */

/* Only the newest is sent, at most every half second. */
void link_progress(struct link *l, int64_t step, int64_t total, bool checkpointing);
/* Sent at once, and with the progress until it changes; copied, at most WIRE_PHASE_MAX bytes of it. NULL: nothing. */
void link_phase(struct link *l, const char *text);
/* From SIGTERM's handler: async-signal-safe. */
void link_signal_stop(struct link *l);

enum link_stop { LINK_GO_ON, LINK_CHECKPOINT_AND_LEAVE, LINK_LEAVE_NOW /* refused: write no more data */ };
/* Cheap: a relaxed atomic read. */
enum link_stop link_stop_asked(struct link *l);
/* True once per request. */
bool link_checkpoint_asked(struct link *l);

struct link_stats {
    uint64_t frames, acked, dropped_blobs, spooled, reconnects;
    size_t memory_bytes;
};
void link_stats(struct link *l, struct link_stats *ret);

/* Ends the link: waits for the commit of all data, then sends `bye`, which polyd acknowledges after its own
 * commit. Waits while polyd is unavailable (at most timeout_us; 0 = LINK_ALONE_US). PD_OK: polyd has recorded
 * the end. PD_ERR_CLOSED: refused. */
PD_NODISCARD enum pd_err link_bye(struct link *l, const char *cause, int64_t step, const char *text,
                                  int64_t timeout_us, struct pd_why *why);

/* ---- serving -------------------------------------------------------------------------------- */

struct serve_request;
struct serve_result;

/* Frames that are not kept. */
void link_send_ready(struct link *l, const char *signature, uint64_t memory_bytes);
void link_send_load(struct link *l, uint32_t waiting, uint32_t running);
/* See serve_host.h. */
PD_NODISCARD enum pd_err link_request_next(struct link *l, int timeout_ms, struct serve_request **ret);
bool link_request_cancelled(struct link *l, const struct serve_request *req);
void link_request_reply(struct link *l, const struct serve_request *req, const struct serve_result *part);
void link_request_done(struct link *l, struct serve_request *req);
