/* daemon/polyd/supervise/loop/loop.h: the supervisor's thread: an epoll loop, callbacks posted by other
 * threads, writes to the store, and periodic calls of the modules.
 *
 * The loop does not know its members: each registers its callbacks. Members, sources and everything
 * that their functions touch belong to the loop's thread (before loop_start: to the thread that starts it),
 * unless the member has a lock of its own. The loop's lock guards only the posted callbacks; no function is
 * called under it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/err.h"

struct loop;

/* What is called when a descriptor is ready. Outlives the descriptor. */
struct loop_source {
    void (*ready)(void *self, unsigned events);
    void *self;
};

/* A callback to run on the loop's thread. */
struct loop_post {
    void (*fn)(struct loop_post *p); /* owns p */
    struct loop_post *next;
};

/* A write: `apply` runs on the store's thread, `done` on the loop's. Allocated by its owner as the beginning
 * of a larger struct, freed by the loop. It remains queued while the disk fails. */
struct loop_op {
    struct loop_post post;
    struct loop *loop;
    void *owner; /* for `done` */
    enum pd_err (*apply)(struct store_tx *tx, struct loop_op *op, struct pd_why *why);
    void (*done)(struct loop_op *op);    /* NULL: a failure is logged */
    void (*release)(struct loop_op *op); /* frees its members; may be NULL */
    enum pd_err err;
    struct pd_why why;
    enum store_lane lane; /* the loop sets it */
    int rows;
};

/* The callbacks of a module, called in the order of registration; each may be NULL. */
struct loop_member {
    void *self;
    void (*tick)(void *self, int64_t now_us); /* ten times a second; monotonic time */
    void (*commands)(void *self);             /* rows may have changed: loop_commands, and once a second */
    void (*schedule)(
        void *self);          /* loop_schedule, and once a second; no longer called while the loop stops */
    void (*stop)(void *self); /* called once, when the loop begins to stop */
    bool (*idle)(void *self); /* whether the module is idle, so that a stop need not wait for it */
    void (*turn_end)(void *self); /* after every iteration: objects borrowed during it are no longer in use */
    struct loop_member *next;
};

PD_NODISCARD enum pd_err loop_new(struct store_writer *writer, struct loop **ret, struct pd_why *why);
/* `m` outlives the loop. Before loop_start. */
void loop_join(struct loop *l, struct loop_member *m);
PD_NODISCARD enum pd_err loop_start(struct loop *l, struct pd_why *why);
/* Ends the thread when every member is idle and every write is complete, at the latest after `patience_us`;
 * then waits only for the writes. Also valid for a loop that was never started. False: a write did not
 * complete, so the memory of the loop and its members must not be freed. */
PD_NODISCARD bool loop_stop(struct loop *l, int64_t patience_us);
/* After loop_stop. NULL is fine. Returns NULL. */
struct loop *loop_free(struct loop *l);

/* ---- from any thread ------------------------------------------------------------------------- */

void loop_post(struct loop *l, struct loop_post *p);
/* Requests a call of `commands` and `schedule` of all members. */
void loop_notify(struct loop *l);
bool loop_stopping(const struct loop *l);
/* Monotonic time of the last iteration; there is one at least every tenth of a second. */
int64_t loop_alive_us(const struct loop *l);
struct store_writer *loop_writer(const struct loop *l);

/* ---- from the loop's thread ------------------------------------------------------------------ */

/* Borrowed until loop_free. */
struct store *loop_reader(const struct loop *l);
/* Watches `fd` for EPOLLIN and so on until it is closed; call it again to change the events. */
void loop_watch(struct loop *l, struct loop_source *source, int fd, unsigned events);
/* Take ownership of the op. Writes to the worker queue are in order and wait if it is full. False: the
 * metrics queue is full, and the caller still owns the op. */
void loop_write(struct loop *l, struct loop_op *op);
PD_NODISCARD bool loop_write_metrics(struct loop *l, struct loop_op *op);
/* At the end of this turn. */
void loop_commands(struct loop *l);
void loop_schedule(struct loop *l);
