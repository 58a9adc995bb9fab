/* daemon/polyd/supervise/workers/conn.h: connections of workers: accept, hello, heartbeats, and their end. On
 * the loop's thread alone.
 *
 *   accept --hello--> the member that knows the worker: conn_welcome --frames--> bye or end of file
 *
 * A connection that was dropped stays allocated, without an owner, until the turn ends. */
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
    /* Bytes came, or it is we who do not read. */
    void (*heard)(void *self, struct conn *c, int64_t now_us);
    /* It is not the owner's any more. `silent`: closed because nothing was heard. */
    void (*closed)(void *self, struct conn *c, bool silent);
    /* After conn_stall, ten times a second: may it be read again? NULL: it never stalls. */
    bool (*resume)(void *self, struct conn *c);
    /* All queued frames have been sent. May be NULL. */
    void (*drained)(void *self, struct conn *c);
};

/* Takes the worker: answers its hello, with the last frame that is stored. */
void conn_welcome(struct conn *c, uint64_t acked, const struct conn_owner *owner, void *self);
pid_t conn_peer(const struct conn *c);
int conn_rank(const struct conn *c);
/* Of all connections there ever were; conn_find: NULL if it is closed. */
uint64_t conn_id(const struct conn *c);
struct conn *conn_find(struct workers *w, uint64_t id);

/* For frames: wire_begin(conn_out(c), ...), fields, conn_end. They leave at conn_flush, or with the turn's.
 */
struct pd_buf *conn_out(struct conn *c);
/* A frame that could not be made closes the connection at its next flush. */
void conn_end(struct conn *c, size_t begin);
/* Room for a frame of so many bytes? Always, once all before it is sent. */
bool conn_has_room(const struct conn *c, size_t bytes);
/* Queues finished frames and empties their buffer. */
void conn_send(struct conn *c, struct pd_buf *frames);
void conn_flush(struct conn *c);

/* Takes what is in the socket now: its process is gone. */
void conn_read(struct conn *c);
/* From `frame`: reads no more until `resume` says so. */
void conn_stall(struct conn *c);

/* Queues a bye and closes when it is out. The owner is told at once. */
void conn_bye(struct conn *c, const char *cause);
void conn_drop(struct conn *c);
/* Drops it; the owner is not told. */
void conn_discard(struct conn *c);
