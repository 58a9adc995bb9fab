/* kernels/comm/comm.h: sums and copies among the ranks of one run: the small table of functions behind which
 * an implementation stands.
 *
 * `local` is linked in: processes of one host, through shared memory; it serves CPU ranks, and ranks whose
 * back end is a GPU by way of host memory. `nccl` is a plug-in (comm_nccl.so) that exports one symbol,
 * pk_comm_entry, states the ABI it was built for, and takes no symbol from the executable.
 *
 * All ranks call the same functions in the same order with the same sizes. Results are bitwise equal on all
 * ranks; those of `local` also from run to run (sums are taken in the order of ranks). No call waits for
 * ever: a rank that died, was stopped, or left with `abort` is noticed within seconds, and the call fails
 * with a sentence that names it. After a failure every later call fails likewise; what is left to do is
 * close. */
#pragma once

#include "kernels/base/err.h"
#include "kernels/graph/tensor.h"

#define PK_COMM_ABI 1u
#define PK_COMM_ID_MAX 256   /* bytes of an id, at most */
#define PK_COMM_RANKS_MAX 64 /* of `local` */
#define PK_COMM_ENTRY "pk_comm_entry"
/* Blocks of a collective that runs on a GPU, at most (NCCL's maxCTAs), each on a multiprocessor that kernels
 * beside it cannot have. NCCL moves about 20 GB/s with each: gradients of a step take a small part of it. */
#define PK_COMM_BLOCKS 8

struct pk_comm; /* one rank's end */

/* What the caller lends; lives as long as the comm. All of it may be NULL. */
struct pk_comm_host {
    void (*log)(void *user, int level, const char *text); /* level as of syslog */
    /* How buffers are reached that the processor cannot read: both wait until the bytes are there and
     * whatever was enqueued before has run. NULL: buffers are host memory. */
    enum pd_err (*upload)(void *user, void *to, const void *from, size_t bytes, struct pd_why *why);
    enum pd_err (*download)(void *user, void *to, const void *from, size_t bytes, struct pd_why *why);
    void *user;
};

struct pk_comm_options {
    const void *id; /* id_bytes, made by one rank's make_id, the same for all */
    int rank, ranks;
    int device;         /* ordinal of the GPU; not looked at by `local` */
    int64_t open_us;    /* all ranks must have come within it; 0 = two minutes */
    int64_t wait_us;    /* longest wait for the others in one call; 0 = ten minutes */
    int64_t stopped_us; /* `local`: a process stopped by a signal for so long is lost; 0 = five seconds */
    size_t chunk_bytes; /* `local`: of the buffer between the ranks; 0 = a good one */
};

struct pk_comm_api {
    uint32_t abi;     /* PK_COMM_ABI */
    const char *name; /* "local", "nccl" */
    size_t id_bytes;
    /* Whether calls only enqueue on the stream they are given, so that they can be captured. Otherwise they
     * run at once, and a back end brings its stream to rest before. */
    bool enqueues;
    /* A new id. The process that made it opens it as one of the ranks. */
    enum pd_err (*make_id)(void *id, struct pd_why *why);
    /* Waits for all ranks. On PD_OK the caller owns *ret. `host` is borrowed until close. */
    enum pd_err (*open)(const struct pk_comm_host *host, const struct pk_comm_options *o,
                        struct pk_comm **ret, struct pd_why *why);
    /* Waits for no other rank. Recorded steps that hold its calls are to be gone before. NULL is fine;
     * returns NULL. */
    struct pk_comm *(*close)(struct pk_comm *c);
    /* Tells the others that this rank goes no further, and why; the first reason counts. Ends calls in
     * progress. From any thread. */
    void (*abort)(struct pk_comm *c, const char *reason);
    /* to = the sum over ranks; `to` may be `from`. root -1: on every rank; else on this rank alone, elsewhere
     * the contents of `to` are undefined. Types: f32, f64, bf16 (summed in f32, rounded once by `local`),
     * I32. `stream` is the back end's (cudaStream_t); NULL on the CPU. */
    enum pd_err (*all_reduce)(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, int root, void *stream, struct pd_why *why);
    /* from (ranks, count); to (count) = row `rank` of the sum. `to` may be that row of `from`. */
    enum pd_err (*reduce_scatter)(struct pk_comm *c, const void *from, void *to, int64_t count,
                                  enum pk_dtype dtype, void *stream, struct pd_why *why);
    /* from (count); to (ranks, count). `from` may be row `rank` of `to`. */
    enum pd_err (*all_gather)(struct pk_comm *c, const void *from, void *to, int64_t count,
                              enum pk_dtype dtype, void *stream, struct pd_why *why);
    /* `memory` of `root` on every rank. */
    enum pd_err (*broadcast)(struct pk_comm *c, void *memory, int64_t count, enum pk_dtype dtype, int root,
                             void *stream, struct pd_why *why);
    /* Until all ranks are here. */
    enum pd_err (*barrier)(struct pk_comm *c, void *stream, struct pd_why *why);
    /* Whether what was enqueued has failed by itself (a peer died). PD_OK while it has not. */
    enum pd_err (*check)(struct pk_comm *c, struct pd_why *why);
    /* Microseconds that calls have waited for other ranks in all; 0 where it is not known. */
    int64_t (*waited_us)(const struct pk_comm *c);
};

/* The one in shared memory. Static. */
const struct pk_comm_api *pk_comm_local(void);

/* Opens the plug-in comm_nccl.so (path, or NULL: beside the program) for as long as the process lives. The
 * reason why not is a sentence for people: no libnccl.so.2, another ABI. */
PD_NODISCARD enum pd_err pk_comm_load_nccl(const char *path, const struct pk_comm_api **ret,
                                           struct pd_why *why);
