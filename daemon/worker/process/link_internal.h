/* daemon/worker/process/link_internal.h: internals of the link, shared by its sources.
 *
 * One mutex guards everything; the thread holds it except while it polls, reads, writes and spools. Entries
 * are a queue of finished frames, oldest first: `sent` of them have been sent on this connection, and an
 * acknowledgement removes them from the front. A reconnection sets `sent` back to zero, and polyd skips what
 * it has committed. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/wire/serve_host.h"
#include "daemon/worker/process/link.h"
#include "kernels/base/buf.h"

#define LINK_CHECKPOINTS 256 /* newest checkpoints whose commit is tracked */
#define LINK_KEYS_OPEN 1024  /* distinct keys of one metrics frame; a power of two */

struct link_entry {
    uint64_t seq;
    uint32_t len;
    bool spooled;
    union {
        uint8_t *bytes;
        uint64_t offset;
    };
};

struct link_request {
    struct serve_request pub;
    uint8_t *payload; /* owned; tensors point into it */
    char *json;
    bool cancelled, answered, taken;
    struct link_request *next; /* all requests not yet done */
};

struct link {
    struct link_options o;
    char *socket_path, *spool_path, *log_path;
    pthread_t thread;
    bool started;
    int wake_fd, spool_fd;

    pthread_mutex_t mutex;
    pthread_cond_t changed; /* assignment, space, acknowledgement, bye, request */

    /* the queue of kept frames */
    struct link_entry *entries;
    size_t head, count, capacity, sent;
    uint64_t next_seq;
    size_t memory_bytes;
    uint64_t spool_end, spool_held; /* bytes written; bytes of entries still waiting */
    uint64_t acked, dropped_blobs, spooled, reconnects;

    /* the open metrics frame */
    struct wire_point points[WIRE_POINTS_MAX];
    size_t point_count;
    char *keys[LINK_KEYS_OPEN]; /* in order */
    size_t key_count;
    uint16_t key_slot[2 * LINK_KEYS_OPEN]; /* hash: index + 1 */
    int64_t open_since_us;

    struct {
        int64_t step;
        uint64_t seq;
    } checkpoints[LINK_CHECKPOINTS]; /* a ring */
    size_t checkpoint_count;         /* since the start */

    /* state */
    int64_t step, total, step_sent, log_sent;
    bool checkpointing, progress_dirty, phase_dirty;
    char phase[WIRE_PHASE_MAX + 1]; /* "": none */
    bool assigned, refused, stop_thread, welcomed;
    struct link_assign assign;
    char *assign_store; /* holds the text that assign points at */
    bool bye_wanted, bye_answered;
    char bye_cause[32];
    char *bye_text;
    int64_t bye_step;
    uint8_t rendezvous[LINK_RENDEZVOUS_MAX]; /* to send, or received */
    size_t rendezvous_len;
    bool rendezvous_ours, rendezvous_sent;
    struct pd_buf tuned_ask; /* the frame; empty = no request */
    bool tuned_asked;        /* over this connection */
    bool tuned_known;        /* the answer is whole */
    struct pd_buf tuned_in;  /* fields of the answer */
    struct pd_buf tuned_out; /* frames of new records, all of them */
    size_t tuned_sent;       /* bytes of them sent over this connection */
    struct pd_buf ready;     /* frames to send once connected: ready, load, results */
    struct link_request *requests, **requests_tail;
    int request_count;
    bool unloading;

    _Atomic int stop;
    _Atomic bool checkpoint_now;
    _Atomic bool signalled;
};

/* Wakes the thread. */
void link_wake(struct link *l);
/* CLOCK_MONOTONIC, `us` from now. */
void link_deadline_after(struct timespec *ts, int64_t us);

/* ---- the mutex is held in the following functions ---- */

/* The i-th stored frame, 0 = oldest. */
struct link_entry *link_entry_at(struct link *l, size_t i);
/* Finishes `b` (begun with seq l->next_seq at 0) and stores it. */
void link_submit(struct link *l, struct pd_buf *b, bool may_drop);
/* Memory and spool are full. */
bool link_full(const struct link *l);
/* Waits while they are. */
void link_wait_for_space(struct link *l);
/* Discards stored frames up to `acked`. */
void link_acknowledge(struct link *l, uint64_t acked);
/* Stores the open metrics frame, if it holds points. */
void link_close_metrics(struct link *l);
/* Polyd refuses this worker, which exits immediately. */
void link_refuse(struct link *l);
/* Ends an inference request with an error. */
void link_answer(struct link *l, uint64_t id, enum pd_err err, const char *text);
/* One frame from polyd; false ends the connection. */
bool link_take_frame(struct link *l, const struct wire_header *h, const uint8_t *p);

/* Part of the answer to link_tuned_recall. */
void link_take_tuned(struct link *l, const uint8_t *p, size_t len);
/* Moves the request and new records into the connection's buffer. */
void link_fill_tuned(struct link *l, struct pd_buf *out);

/* The thread: connects, converses, reconnects. Takes the mutex itself. */
void *link_thread(void *arg);
