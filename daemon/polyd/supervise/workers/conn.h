/* daemon/polyd/supervise/workers/conn.h: connections of workers: accept, hello, heartbeats, and their end. On
 * the loop's thread alone.
 *
 *   accept --hello--> the member that knows the worker: conn_welcome --frames--> bye or end of file
 *
 * A dropped connection remains allocated, without an owner, until the end of the loop iteration. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/wire/wire.h"

struct conn;
struct workers;

struct conn_hello {
    int64_t run; /* 0 = a serving worker */
    int attempt, rank;
    const uint8_t *token; /* WIRE_TOKEN_BYTES */
};

struct conn_owner {
    void (*frame)(void *self, struct conn *c, const struct wire_header *h, const uint8_t *payload);
    /* Bytes arrived, or reading is suspended. */
    void (*heard)(void *self, struct conn *c, int64_t now_us);
    /* The connection is closed. `silent`: because of missing heartbeats. */
    void (*closed)(void *self, struct conn *c, bool silent);
    /* After conn_stall, ten times a second: whether reading may resume. NULL: it never stalls. */
    bool (*resume)(void *self, struct conn *c);
    /* All queued frames have been sent. May be NULL. */
    void (*drained)(void *self, struct conn *c);
};

/* Accepts the worker: answers its hello with the number of the last stored frame. */
void conn_welcome(struct conn *c, uint64_t acked, const struct conn_owner *owner, void *self);
pid_t conn_peer(const struct conn *c);
int conn_rank(const struct conn *c);
/* Unique among all connections; conn_find returns NULL for a closed one. */
uint64_t conn_id(const struct conn *c);
struct conn *conn_find(struct workers *w, uint64_t id);

/* For frames: wire_begin(conn_out(c), ...), fields, conn_end. They are sent at conn_flush, or at the end of
 * the loop iteration.
 */
struct pd_buf *conn_out(struct conn *c);
/* A frame that could not be built closes the connection at its next flush. */
void conn_end(struct conn *c, size_t begin);
/* Whether a frame of this size fits the output buffer. Always true if the buffer is empty. */
bool conn_can_send(const struct conn *c, size_t bytes);
/* Queues finished frames and empties their buffer. */
void conn_send(struct conn *c, struct pd_buf *frames);
void conn_flush(struct conn *c);

/* Reads the rest of the socket after its process has ended. */
void conn_read(struct conn *c);
/* Called from `frame`: suspends reading until `resume` returns true. */
void conn_stall(struct conn *c);

/* Queues a bye and closes after sending it. The owner is notified immediately. */
void conn_bye(struct conn *c, const char *cause);
void conn_drop(struct conn *c);
/* Closes it without notifying the owner. */
void conn_discard(struct conn *c);
