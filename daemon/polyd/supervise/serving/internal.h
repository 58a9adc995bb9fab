/* daemon/polyd/supervise/serving/internal.h: private to the module. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "daemon/polyd/devices/device.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/devices/devices.h"
#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/serving/serving.h"
#include "daemon/polyd/supervise/workers/conn.h"
#include "daemon/polyd/supervise/workers/proc.h"
#include "daemon/polyd/supervise/workers/workers.h"

struct call {
    struct call *next;
    uint64_t id;
    int64_t deadline_us; /* monotonic, 0 = none */
    int64_t patience_us; /* from a part to the next */
    void (*part)(void *ctx, const struct sup_result *r);
    void *ctx;
    struct pd_buf frame; /* until it is sent */
    bool cancelled;      /* by its client */
    bool cancel_due;     /* the worker was not notified yet */
};

struct load_wait {
    struct load_wait *next;
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why);
    void *ctx;
};

/* The lock guards what other threads read or write: next, name, version, state, wanted, reason, signature, peer,
 * the calls, the counts, stats, restarts and need_bytes. The rest is the loop's thread's. */
struct model {
    struct loop_source source;
    struct serving *serving;
    struct model *next;
    char *name;
    int64_t version;
    enum sup_model_state state;
    bool wanted; /* as in sup_model_info */
    char reason[256];
    char *signature;
    int serial; /* of the current worker: its "attempt" on the wire */
    uint8_t token[WIRE_TOKEN_BYTES];
    uint8_t token_sha256[32];
    char *document, *checkpoint, *digest;
    struct proc proc;
    struct conn *conn;
    int64_t heard_us;
    pid_t peer;                       /* of conn; 0 = there is none */
    struct call *calls;               /* sent, newest first */
    struct call *inbox, **inbox_tail; /* accepted, not sent; oldest first */
    int cancels_due;
    int in_flight, waiting, running;
    int64_t requests, failures, restarts;
    struct sup_infer_stats stats;
    /* its share of the memory budget; estimated from the checkpoint's size until it is ready */
    int64_t need_bytes;
    int64_t backoff_us, kill_us, ready_us;
    /* its worker is started then, or later if another version loads; 0 = it does not wait */
    int64_t retry_us;
    int device;         /* that its worker computes on; -1 = the CPU, or no worker */
    bool loading_first; /* it never answered a request: a failure ends the load */
    bool reported;      /* reason is its worker's own sentence */
    bool limited;       /* its worker was refused the memory that it needs */
    struct load_wait *loads, *unloads;
};

struct serving {
    struct loop *loop;
    struct workers *workers;
    struct devices *devices;
    const struct sup_options *o;
    struct loop_member member;
    struct workers_member workers_member;
    struct devices_listener listener;
    uint64_t last_serial;
    _Atomic uint64_t next_call;

    pthread_mutex_t lock;
    struct model *models;      /* lock, and the loop's thread alone writes it */
    struct loaded_op *records; /* the loop's thread's: model_write_loaded, not committed yet */
    struct inbox_post {
        struct loop_post post;
        struct serving *serving;
        bool posted; /* lock: processing of the inboxes is already scheduled */
    } inbox;
};

/* model.c */
/* The error sentence for a model without this loaded version; version 0: without any. Lock held. */
enum pd_err model_unknown(const struct serving *s, const char *name, int64_t version, struct pd_why *why);
/* Lock held. version 0: the highest ready one. */
struct model *model_find(struct serving *s, const char *name, int64_t version);
/* Adds it to the table, not started; NULL if out of memory. */
struct model *model_new(struct serving *s, const struct store_model_version *v);
/* Removes it from the table and frees it: no other reference may exist. */
void model_forget(struct serving *s, struct model *m);
void model_set_state(struct serving *s, struct model *m, enum sup_model_state state, const char *reason);
/* Starts its worker, now or after those that load, or fails the waiting loads. */
void model_begin_load(struct serving *s, struct model *m);

/* record.c */
void model_notify_loads(struct serving *s, struct model *m, enum pd_err err, const struct pd_why *why);
void model_notify_unloads(struct serving *s, struct model *m, enum pd_err err, const struct pd_why *why);
/* Records whether the version should be loaded after a restart. Those who wait for its load or unload are
 * answered then, and not before: a restart agrees with their answer, and a deletion that follows finds the row
 * as it should be. A store that cannot write is an error for them; the record follows when it can. */
void model_write_loaded(struct serving *s, struct model *m, bool loaded);
/* Adds `wait` to those of such a record of the version that is not committed yet. False: there is none. */
bool model_await_record(struct serving *s, const char *model, int64_t version, bool loaded,
                        struct load_wait *wait);
/* The lowest version above `after` with such a record; 0 = none. */
int64_t model_next_record(const struct serving *s, const char *model, int64_t after, bool loaded);
/* Answers those whose record waits for a store that cannot write: the error says what is loaded and what is not
 * recorded. Ten times a second. */
void model_answer_unrecorded(struct serving *s);

/* load.c. Its worker completes the requests in progress, and ends. */
void model_unload(struct serving *s, struct model *m);

/* infer.c */
/* Completes all open requests with an error. */
void model_fail_calls(struct serving *s, struct model *m, enum pd_err err, const char *text);
void model_expire_calls(struct serving *s, struct model *m, int64_t now_us);
/* Sends the requests of its inbox, as many as fit the connection or `all`, and the cancellations. */
void model_send(struct serving *s, struct model *m, bool all);
/* A part of an answer from the worker. */
void model_result(struct serving *s, struct model *m, uint64_t id, const uint8_t *p, size_t len);
