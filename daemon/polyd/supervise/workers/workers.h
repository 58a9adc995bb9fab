/* daemon/polyd/supervise/workers/workers.h: common parts of all workers: the program, the socket that they
 * connect to, the data roots, and the cleanup of unknown processes.
 *
 * Processes are in proc.h, connections in conn.h, measured choices in tuned.h. All of it belongs to the
 * loop's thread, except what says otherwise; there is no lock. */
#pragma once

#include "daemon/polyd/supervise/loop/loop.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/err.h"

#define WORKERS_PATH_MAX 1024 /* bytes of a path made below the state directory */

struct workers;
struct conn;
struct conn_hello;

struct workers_options {
    const char *state_dir, *worker_path; /* copied */
    const struct sup_data_root *roots;   /* copied */
    int root_count;
};

/* A module that has workers. */
struct workers_member {
    void *self;
    /* A worker has connected. If it is the module's, conn_welcome has been called, and true returned. */
    bool (*hello)(void *self, struct conn *c, const struct conn_hello *h);
    /* Whether the module knows a live process with this mark ("run-7-1"). Unknown ones are killed. */
    bool (*knows)(void *self, const char *mark);
    struct workers_member *next;
};

PD_NODISCARD enum pd_err workers_new(struct loop *l, const struct workers_options *o, struct workers **ret,
                                     struct pd_why *why);
/* `m` outlives the workers. Before loop_start. */
void workers_join(struct workers *w, struct workers_member *m);
/* Makes the socket; accepts from the loop's first turn. */
PD_NODISCARD enum pd_err workers_listen(struct workers *w, struct pd_why *why);
/* Closes all connections, notifies their owners, and removes the socket. */
void workers_close(struct workers *w);
/* NULL is fine. Returns NULL. */
struct workers *workers_free(struct workers *w);

/* Any thread: these do not change. */
const char *workers_state_dir(const struct workers *w);
const char *workers_socket(const struct workers *w);

/* Borrowed for the turn. */
const struct sup_data_root *workers_roots(const struct workers *w, int *ret_count);
/* Any thread: for workers that start later. Copied. */
PD_NODISCARD enum pd_err workers_set_roots(struct workers *w, const struct sup_data_root *roots, int count,
                                           struct pd_why *why);

/* Kills every process of this state directory that no member knows. */
void workers_kill_strays(struct workers *w);
/* Any thread: adds the counters of this module. */
void workers_stats(const struct workers *w, struct sup_stats *ret);
