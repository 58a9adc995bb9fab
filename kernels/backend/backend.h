/* kernels/backend/backend.h: the interface of a back end, as a table of functions.
 *
 * A back end runs nodes; it plans nothing and allocates nothing while running. The CPU back end
 * is linked in; others are plug-ins (backend_cuda.so) that export one symbol,
 * pk_backend_entry, state the ABI they were built for, and receive the host's services as a
 * table, so that they take no symbol from the executable. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "kernels/base/err.h"
#include "kernels/graph/op/op.h"

/* Plug-ins receive ops and activations as numbers and attributes as a struct. A new op or activation changes the
 * version by itself. Raise the first number for a changed order, changed attributes or a changed table. */
#define PK_BACKEND_ABI (8u + 256u * (PK_OP_COUNT - 39u) + 65536u * PK_PHIS)
static_assert(offsetof(struct pk_attr, matmul.sums) - offsetof(struct pk_attr, matmul) == 8 &&
                  offsetof(struct pk_attr, optim.copy) - offsetof(struct pk_attr, optim) == 66,
              "struct pk_attr has changed: raise PK_BACKEND_ABI");
#define PK_READ_LATER_MOST 192
#define PK_BACKEND_ENTRY "pk_backend_entry" /* the one symbol of a plug-in: a pk_backend_entry_fn */

struct pk_comm_api; /* kernels/comm/comm.h */
struct pk_comm;

/* Services of the host. Lives as long as the back end. */
struct pk_host {
    void (*log)(void *user, int level, const char *text);
    /* Measured choices (GEMM algorithms ...), stored by the daemon. get returns the bytes written into
     * `value` (0 = unknown); put reports a new record. Both may be NULL. */
    size_t (*tuned_get)(void *user, const char *key, void *value, size_t size);
    void (*tuned_put)(void *user, const char *key, const void *value, size_t size);
    void *user;
    /* Folder in which the back end may keep files that it can make again; made when needed. NULL: none. */
    const char *cache_dir;
    /* Collectives for ALL_REDUCE and BROADCAST_RANKS. Both NULL: the run has one rank.
     * May be set after `open` (staging through the back end needs an open one), but before the first run. */
    const struct pk_comm_api *comm_api;
    struct pk_comm *comm;
};

/* One node, ready to run: all memory is the caller's and stays put during the call. */
struct pk_call {
    enum pk_op op;
    const struct pk_attr *attr;
    int32_t n_in, n_out;
    const struct pk_view *in;
    const struct pk_view *out;
    void *workspace; /* >= workspace_bytes(this call), 256-byte aligned; contents undefined */
    size_t workspace_bytes;
};

struct pk_backend;  /* one opened device */
struct pk_captured; /* a recorded list of calls, launched as a whole */
struct pk_slot;     /* host memory that is copied to the device while a step runs */

/* How matmul treats f32 operands. */
enum pk_math { PK_MATH_F32, PK_MATH_TF32 };

/* The device, for keys of measured choices and for display. Unknown texts are empty. */
struct pk_backend_info {
    char name[128];   /* "NVIDIA H200"; "cpu" */
    char uuid[48];    /* "GPU-..." */
    char driver[32];  /* version the driver supports, "13.0" */
    char library[64]; /* for matrix products: "cublasLt 13.1.0" */
    int sm;           /* compute capability times ten; 0 = no GPU */
    int multiprocessors;
    size_t memory_total, memory_free; /* bytes on the device, now; 0 = unknown */
};

/* One copy out of a slot: `bytes` from `offset` of the slot to back-end memory. */
struct pk_take {
    void *to;
    size_t offset, bytes;
};

/* One program of kernels that is compiled at run time, as pk_backend_api.compile reports it. */
struct pk_compiling {
    const char *what; /* such as "gradients in bf16"; borrowed during the callback */
    int number, of;   /* which of the programs that this call of compile makes, from 1 */
    bool ended;       /* false: it begins now, and the members below are 0 */
    bool found;       /* it was compiled earlier and is read from the cache folder */
    int kernels;      /* in the program */
    int64_t us;       /* wall time that it took, loading included */
};
typedef void pk_compile_note(void *user, const struct pk_compiling *now);

/* All functions of an opened back end are called by one thread at a time. None is NULL unless its comment allows it.
 */
struct pk_backend_api {
    uint32_t abi;     /* PK_BACKEND_ABI; stays the first member in every version */
    const char *name; /* "cpu", "cuda" */
    /* `device` is the ordinal, `threads` for the CPU (>= 1). On PD_OK the caller owns *ret. */
    enum pd_err (*open)(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                        struct pd_why *why);
    /* NULL is fine; returns NULL. */
    struct pk_backend *(*close)(struct pk_backend *b);
    /* Whether this back end can run the call (data pointers are ignored); otherwise the graph is refused when it
     * is planned: there is no silent fallback. In supports and workspace_bytes `b` is NULL when a plan is made
     * without a device; the answer is then that of a machine with default settings. */
    bool (*supports)(struct pk_backend *b, const struct pk_call *call);
    /* Bytes of scratch that the call needs; data pointers are ignored. */
    size_t (*workspace_bytes)(struct pk_backend *b, const struct pk_call *call);
    /* Device memory, 256-byte aligned. NULL if out of memory. */
    void *(*alloc)(struct pk_backend *b, size_t bytes);
    void (*free)(struct pk_backend *b, void *memory);
    enum pd_err (*upload)(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why);
    enum pd_err (*download)(struct pk_backend *b, void *to, const void *from, size_t bytes,
                            struct pd_why *why);
    /* Runs the calls in order. Returns after the last has run (CPU) or was enqueued (CUDA). */
    enum pd_err (*run)(struct pk_backend *b, const struct pk_call *calls, size_t count, struct pd_why *why);
    /* Waits until everything enqueued has run. Returns the error that a kernel has found meanwhile (an index out
     * of range). */
    enum pd_err (*sync)(struct pk_backend *b, struct pd_why *why);

    /* ---- since version 2 ---- */

    /* Whether `alloc` gives memory that the host may read and write once sync has returned. */
    bool host_memory;
    /* Records what run(calls) would enqueue, without running it; those calls must have run once. On PD_OK the
     * caller owns *ret. The recording refers to the memory of the calls, which stays the caller's; the array
     * `calls` is not read again. capture, replay and captured_free NULL: this back end has no capture. */
    enum pd_err (*capture)(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pk_captured **ret, struct pd_why *why);
    /* As run: enqueues the whole recording; the results are bitwise those of run. */
    enum pd_err (*replay)(struct pk_backend *b, struct pk_captured *captured, struct pd_why *why);
    /* NULL is fine; returns NULL. After sync only. */
    struct pk_captured *(*captured_free)(struct pk_backend *b, struct pk_captured *captured);

    /* Pinned host memory. NULL if out of memory. */
    void *(*alloc_host)(struct pk_backend *b, size_t bytes);
    void (*free_host)(struct pk_backend *b, void *memory);

    /* Input that is copied while a step runs. A slot is pinned host memory with a buffer of the same size on the
     * device. Two slots that alternate are double buffering:
     *
     *     fill slot_host(s); slot_send(s);        starts the copy to the device, concurrent with runs
     *     slot_take(s, parts); run(calls);        in the order of runs: when the copy is complete, its parts are
     *                                             copied to where the calls read them
     *     slot_wait(s); fill slot_host(s) ...     the next batch but one
     *
     * The caller may write slot_host's memory except from slot_send until slot_wait (or sync) returns. The
     * destinations of slot_take may be in use by earlier runs: it waits for them on the device, not on the host.
     * A send after a take waits likewise. Taking a slot that was never sent is PD_ERR_CONFLICT. */
    enum pd_err (*slot_new)(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why);
    struct pk_slot *(*slot_free)(struct pk_backend *b, struct pk_slot *slot); /* waits; NULL is fine */
    void *(*slot_host)(struct pk_slot *slot);                                 /* 256-byte aligned */
    enum pd_err (*slot_send)(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
    enum pd_err (*slot_wait)(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
    enum pd_err (*slot_take)(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                             size_t count, struct pd_why *why);

    /* Of the opened device. */
    enum pd_err (*info)(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why);
    /* For the runs and captures that follow; the default is PK_MATH_F32. PD_ERR_UNSUPPORTED without TF32. */
    enum pd_err (*set_math)(struct pk_backend *b, enum pk_math math, struct pd_why *why);
    /* The cudaStream_t that runs are enqueued on, for timing them; NULL on the CPU, where runs block. Borrowed. */
    void *(*stream)(struct pk_backend *b);

    /* ---- since version 5 ---- */

    /* Waits for the runs and copies `bytes` from back-end memory to the host, with one synchronisation instead of two.
     * For the few numbers that a step reports. Does not wait for copies started by slot_send. May be NULL: the caller
     * then uses sync and download. */
    enum pd_err (*read)(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why);

    /* ---- since version 6 ---- */

    /* read in two halves, so that the next run can be enqueued in between and the device never waits for the host.
     * read_later enqueues the copy of at most PK_READ_LATER_MOST bytes, and of the kernels' error, to one of two places
     * (0 or 1) in pinned memory; read_wait waits for that copy, not for later runs, and returns what read would have.
     * Each read_later is followed by one read_wait before its place is used again. Both may be NULL. */
    enum pd_err (*read_later)(struct pk_backend *b, int place, const void *from, size_t bytes,
                              struct pd_why *why);
    enum pd_err (*read_wait)(struct pk_backend *b, int place, void *to, size_t bytes, struct pd_why *why);

    /* ---- since version 7 ---- */

    /* Compiles and loads the kernels of these calls that exist only as a formula's text, unless they are loaded already:
     * running the calls then compiles nothing. Without it the first run does the same, unreported. Data pointers are
     * ignored; set_math precedes it, because a program is compiled for one arithmetic. `note` (may be NULL) is called
     * before and after each program. PD_ERR_UNSUPPORTED: no compiler here; PD_ERR_TIMEOUT: one program took longer than
     * the limit. NULL: this back end has no such kernels. */
    enum pd_err (*compile)(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           pk_compile_note *note, void *user, struct pd_why *why);
};

typedef const struct pk_backend_api *pk_backend_entry_fn(void);

/* The built-in CPU back end. Static. */
const struct pk_backend_api *pk_backend_cpu(void);

/* How the CPU back end computes matrix products of bf16: true: with the library's bf16 products, which measured
 * faster here than those of f32; false: with the reference implementation, which is slower. Writes the reason, a
 * sentence, into ret_why of `cap` bytes. The first call of a process measures. */
bool pk_cpu_bf16(char *ret_why, size_t cap);
/* The same for an opened CPU back end, whose choice may be fixed (pk_cpu_bf16_hold). */
bool pk_cpu_bf16_of(const struct pk_backend *b, char *ret_why, size_t cap);
/* Fixes how an opened CPU back end computes matrix products of bf16, overriding the measurement: true for the library's
 * products, false for the reference implementation. A resumed run uses it to repeat the choice stored in its checkpoint,
 * so that its results are bitwise those of an uninterrupted run. Call it before planning: plans made earlier are
 * invalid. PD_ERR_UNSUPPORTED if the library has no products of bf16 for this processor; the choice is unchanged then. */
PD_NODISCARD enum pd_err pk_cpu_bf16_hold(struct pk_backend *b, bool products, struct pd_why *why);
