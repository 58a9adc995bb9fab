/* daemon/polyd/supervise/workers/internal.h: private to the module. */
#pragma once

#include <stdatomic.h>

#include "daemon/polyd/supervise/workers/workers.h"

struct workers {
    struct loop *loop;
    struct loop_member member;
    struct workers_member *members, **members_tail;
    char *state_dir, *worker_path, *socket_path;
    struct sup_data_root *roots;
    int root_count;
    int listen_fd;
    struct loop_source listen_source;
    struct conn *conns;
    int conn_count;
    uint64_t last_conn;
    _Atomic int64_t frames_in, killed; /* for any thread */
    _Atomic int connections;
};

/* conn.c */
void conn_accept(void *workers, unsigned events);
void conn_tick(void *workers, int64_t now_us);
void conn_sweep(void *workers);
void conn_close_all(struct workers *w);
