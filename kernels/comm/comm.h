/* kernels/comm/comm.h: sums and copies among the ranks of one run, as a table of functions with two
 * implementations.
 *
 * `local` is linked in: processes of one host, through shared memory. It serves CPU ranks directly and GPU
 * ranks through copies in host memory. `nccl` is a plug-in (comm_nccl.so) that exports one symbol,
 * pk_comm_entry, states the ABI it was built for, and takes no symbol from the executable.
 *
 * All ranks call the same functions in the same order with the same sizes. Results are bitwise equal on all
 * ranks; those of `local` also from run to run (sums are taken in the order of ranks). No call blocks for
 * ever: a rank that died, was stopped, or called `abort` is noticed within seconds, and the call fails with a
 * sentence that names it. After a failure every later call but `close` fails too. */
#pragma once

#include "kernels/base/err.h"
#include "kernels/graph/tensor.h"

#define PK_COMM_ABI 1u
#define PK_COMM_ID_MAX 256   /* bytes of an id, at most */
#define PK_COMM_RANKS_MAX 64 /* ranks of one run with `local` */
#define PK_COMM_ENTRY "pk_comm_entry"
/* Upper limit of thread blocks of a collective on a GPU (NCCL's maxCTAs). Each occupies a multiprocessor that
 * concurrent kernels then lack. NCCL moves about 20 GB/s per block, so the gradients take a small part of a step. */
#define PK_COMM_BLOCKS 8

struct pk_comm; /* one rank's end */

/* Services of the caller, borrowed until close. Each may be NULL. */
struct pk_comm_host {
    void (*log)(void *user, int level, const char *text); /* level as of syslog */
    /* Copy to and from buffers that the CPU cannot address. Both return when the work enqueued earlier and the
     * copy are done. NULL: buffers are host memory. */
    enum pd_err (*upload)(void *user, void *to, const void *from, size_t bytes, struct pd_why *why);
    enum pd_err (*download)(void *user, void *to, const void *from, size_t bytes, struct pd_why *why);
    void *user;
};

struct pk_comm_options {
    const void *id; /* id_bytes, made by one rank's make_id, the same for all */
    int rank, ranks;
    int device;         /* ordinal of the GPU; ignored by `local` */
    int64_t open_us;    /* time limit for all ranks to open; 0 = two minutes */
    int64_t wait_us;    /* longest wait for the others in one call; 0 = ten minutes */
    int64_t stopped_us; /* `local`: a process stopped by a signal for so long is lost; 0 = five seconds */
    size_t chunk_bytes; /* `local`: size of the buffer between the ranks; 0 = default */
};

struct pk_comm_api {
    uint32_t abi;     /* PK_COMM_ABI */
    const char *name; /* "local", "nccl" */
    size_t id_bytes;
    /* Whether calls only enqueue on `stream`, so that they can be captured. If false, calls run at once, and the
     * back end synchronises its stream before each. */
    bool enqueues;
    /* A new id. The process that made it opens it as one of the ranks. */
    enum pd_err (*make_id)(void *id, struct pd_why *why);
    /* Waits for all ranks. On PD_OK the caller owns *ret. `host` is borrowed until close. */
    enum pd_err (*open)(const struct pk_comm_host *host, const struct pk_comm_options *o,
                        struct pk_comm **ret, struct pd_why *why);
    /* Does not wait for other ranks. Recorded steps that hold calls of `c` must be freed first. NULL is fine;
     * returns NULL. */
    struct pk_comm *(*close)(struct pk_comm *c);
    /* Notifies the other ranks that this rank stops, and why; the first reason is kept. Ends calls in progress.
     * May be called from any thread. */
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
    /* Copies `memory` of rank `root` into `memory` of every rank. */
    enum pd_err (*broadcast)(struct pk_comm *c, void *memory, int64_t count, enum pk_dtype dtype, int root,
                             void *stream, struct pd_why *why);
    /* Returns when all ranks have called it; does not wait for work enqueued on the stream. */
    enum pd_err (*barrier)(struct pk_comm *c, void *stream, struct pd_why *why);
    /* Fails if enqueued work has failed (a peer died); otherwise PD_OK. */
    enum pd_err (*check)(struct pk_comm *c, struct pd_why *why);
    /* Total time in microseconds that calls waited for other ranks; negative if it is not measured. */
    int64_t (*waited_us)(const struct pk_comm *c);
};

/* The implementation in shared memory. Static. */
const struct pk_comm_api *pk_comm_local(void);

/* Opens the plug-in comm_nccl.so at `path` (NULL: in the folder of the program, else in ../lib/polyd from there) until
 * the process ends.
 * PD_ERR_NOT_FOUND: no such file. PD_ERR_UNSUPPORTED: it does not load, for example because libnccl.so.2 is
 * missing. PD_ERR_VERSION: it was built for another ABI, or is no plug-in. */
PD_NODISCARD enum pd_err pk_comm_load_nccl(const char *path, const struct pk_comm_api **ret,
                                           struct pd_why *why);
