/* kernels/comm/local.h: private to `local`: the layout of the shared memory, and how ranks wait on it.
 *
 * Every rank counts the barriers that it has reached; a barrier is passed when all ranks have reached that count.
 * All other memory is written before a barrier and read after it: barriers are the only synchronisation. */
#pragma once

#include <stdatomic.h>

#include "kernels/comm/comm.h"

#define LOCAL_MAGIC UINT64_C(0x31636d6d6f636470)
#define LOCAL_SMALL 4096 /* bytes that are exchanged with one barrier */
#define LOCAL_REASON 256

/* The operation that a rank begins. If the ranks differ, the operation is an error. */
struct local_post {
    int32_t kind, dtype, root;
    int64_t count;
};

struct local_rank {
    _Alignas(128) _Atomic uint32_t arrived; /* futex: barriers reached */
    _Atomic uint32_t sleepers;              /* on `arrived` */
    _Atomic int32_t pid;                    /* 0: not opened yet */
    _Atomic uint32_t left;
    uint64_t start;            /* of the process, clock ticks; written before pid */
    struct local_post post[2]; /* by the parity of the operation */
};

struct local_shared {
    uint64_t magic;
    uint8_t nonce[16];
    _Atomic uint32_t state; /* 0 made, 1 being laid out, 2 ready */
    int32_t ranks;
    uint64_t chunk_bytes, total_bytes;
    _Atomic uint32_t aborted; /* 0, 1 being written, 2 */
    char reason[LOCAL_REASON];
    struct local_rank rank[PK_COMM_RANKS_MAX];
};

struct pk_comm {
    const struct pk_comm_host *host; /* or NULL */
    struct local_shared *shared;
    size_t mapped;
    int rank, ranks;
    int64_t wait_us, stopped_us;
    size_t chunk_bytes;
    uint32_t barriers;   /* reached so far */
    uint64_t operations; /* begun so far */
    bool spin;           /* poll before sleeping: there is a processor for every rank */
    _Atomic int64_t waited_us;
    enum pd_err err; /* sticky */
    struct pd_why why;
    int64_t stopped_since_us[PK_COMM_RANKS_MAX]; /* 0: not stopped */
};

/* Waits until all ranks have reached the same barrier. PD_ERR_TIMEOUT after `wait_us`, PD_ERR_CLOSED if a rank
 * died, left or aborted; the sentence names it. */
enum pd_err local_barrier(struct pk_comm *c, int64_t wait_us, struct pd_why *why);
void local_abort(struct pk_comm *c, const char *reason);
/* PD_ERR_CLOSED if a rank has aborted or died; does not wait. */
enum pd_err local_look(struct pk_comm *c, struct pd_why *why);
/* Start time in clock ticks and state letter of a process (proc(5)); false if it does not exist. */
bool local_process(int32_t pid, uint64_t *ret_start, char *ret_state);
