/* kernels/backend/backend.h: the table of functions behind which a back end stands.
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

/* Ops and activations travel by number and attributes by place: one more of the former is another version by
 * itself; for one in another place, for other attributes and for other tables raise the first number. */
#define PK_BACKEND_ABI (5u + 256u * (PK_OP_COUNT - 39u) + 65536u * PK_PHIS)
static_assert(offsetof(struct pk_attr, matmul.sums) - offsetof(struct pk_attr, matmul) == 8 &&
                  offsetof(struct pk_attr, optim.copy) - offsetof(struct pk_attr, optim) == 66,
              "struct pk_attr has changed: raise PK_BACKEND_ABI");
#define PK_BACKEND_ENTRY "pk_backend_entry" /* the one symbol of a plug-in: a pk_backend_entry_fn */

struct pk_comm_api; /* kernels/comm/comm.h */
struct pk_comm;

/* What the host lends to a back end. Lives as long as the back end. */
struct pk_host {
    void (*log)(void *user, int level, const char *text);
    /* Measured choices (GEMM algorithms ...), kept by the daemon. get returns the bytes written into
     * `value` (0 = unknown); put reports a new record. Both may be NULL. */
    size_t (*tuned_get)(void *user, const char *key, void *value, size_t size);
    void (*tuned_put)(void *user, const char *key, const void *value, size_t size);
    void *user;
    /* The other ranks of the run: what ALL_REDUCE and BROADCAST_RANKS go through. Both NULL: there is one.
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
struct pk_captured; /* a list of calls as one thing that is started at once */
struct pk_slot;     /* host memory that travels to the device beside a running step */

/* How matmul treats f32 operands. */
enum pk_math { PK_MATH_F32, PK_MATH_TF32 };

/* What a measured choice is keyed by, and what a person is shown. Unknown texts are empty. */
struct pk_backend_info {
    char name[128];   /* "NVIDIA H200"; "cpu" */
    char uuid[48];    /* "GPU-..." */
    char driver[32];  /* version the driver supports, "13.0" */
    char library[64]; /* of products: "cublasLt 13.1.0" */
    int sm;           /* compute capability times ten; 0 = no GPU */
    int multiprocessors;
    size_t memory_total, memory_free; /* bytes on the device, now; 0 = unknown */
};

/* Where a piece of a slot goes: `bytes` from `offset` of the slot to back-end memory. */
struct pk_take {
    void *to;
    size_t offset, bytes;
};

/* All functions of an opened back end are called by one thread at a time. None is NULL but where it says so.
 */
struct pk_backend_api {
    uint32_t abi;     /* PK_BACKEND_ABI; stays the first member in every version */
    const char *name; /* "cpu", "cuda" */
    /* `device` is the ordinal, `threads` for the CPU (>= 1). On PD_OK the caller owns *ret. */
    enum pd_err (*open)(const struct pk_host *host, int device, int threads, struct pk_backend **ret,
                        struct pd_why *why);
    /* NULL is fine; returns NULL. */
    struct pk_backend *(*close)(struct pk_backend *b);
    /* Whether this call (data pointers not looked at) can run here. In supports and workspace_bytes `b` is
     * NULL when a plan is made without a device: the answer is then that of a machine with default settings.
     * A graph is refused at plan time
     * otherwise: there is no silent fallback. */
    bool (*supports)(struct pk_backend *b, const struct pk_call *call);
    /* Scratch the call needs; data pointers not looked at. */
    size_t (*workspace_bytes)(struct pk_backend *b, const struct pk_call *call);
    /* Device memory, 256-byte aligned. NULL when there is none. */
    void *(*alloc)(struct pk_backend *b, size_t bytes);
    void (*free)(struct pk_backend *b, void *memory);
    enum pd_err (*upload)(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why);
    enum pd_err (*download)(struct pk_backend *b, void *to, const void *from, size_t bytes,
                            struct pd_why *why);
    /* Runs the calls in order. Returns after the last has run (CPU) or was enqueued (CUDA). */
    enum pd_err (*run)(struct pk_backend *b, const struct pk_call *calls, size_t count, struct pd_why *why);
    /* Waits until everything enqueued has run. An error that a kernel found meanwhile (an index out of range)
     * comes out here. */
    enum pd_err (*sync)(struct pk_backend *b, struct pd_why *why);

    /* ---- since version 2 ---- */

    /* Whether `alloc` gives memory that the host may read and write once sync has returned. */
    bool host_memory;
    /* Records what run(calls) would enqueue, without running it, after those calls have run once. On PD_OK
     * the caller owns *ret; the calls' memory is named in it and stays the caller's; the calls themselves are
     * not looked at again. All three NULL: this back end has no capture. */
    enum pd_err (*capture)(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pk_captured **ret, struct pd_why *why);
    /* As run: enqueues the whole recording; the results are bitwise those of run. */
    enum pd_err (*replay)(struct pk_backend *b, struct pk_captured *captured, struct pd_why *why);
    /* NULL is fine; returns NULL. After sync only. */
    struct pk_captured *(*captured_free)(struct pk_backend *b, struct pk_captured *captured);

    /* Host memory that a device copies from and to without a detour (pinned). NULL when there is none. */
    void *(*alloc_host)(struct pk_backend *b, size_t bytes);
    void (*free_host)(struct pk_backend *b, void *memory);

    /* Input that travels while a step runs. A slot is pinned host memory with a twin on the device. Two slots
     * in turn are double buffering:
     *
     *     fill slot_host(s); slot_send(s);        the host's bytes leave for the twin, beside whatever runs
     *     slot_take(s, parts); run(calls);        in the order of runs: when the twin has arrived, its pieces
     *                                             are copied to where the calls read them
     *     slot_wait(s); fill slot_host(s) ...     the next batch but one
     *
     * slot_host's memory is the caller's to write except from slot_send until slot_wait returns (or sync).
     * What slot_take copies to may be in use by earlier runs: it waits for them on the device, not on the
     * host. A send after a take waits likewise. Taking a slot that was never sent is PD_ERR_CONFLICT. */
    enum pd_err (*slot_new)(struct pk_backend *b, size_t bytes, struct pk_slot **ret, struct pd_why *why);
    struct pk_slot *(*slot_free)(struct pk_backend *b, struct pk_slot *slot); /* waits; NULL is fine */
    void *(*slot_host)(struct pk_slot *slot);                                 /* 256-byte aligned */
    enum pd_err (*slot_send)(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
    enum pd_err (*slot_wait)(struct pk_backend *b, struct pk_slot *slot, struct pd_why *why);
    enum pd_err (*slot_take)(struct pk_backend *b, struct pk_slot *slot, const struct pk_take *parts,
                             size_t count, struct pd_why *why);

    /* Of the opened device. */
    enum pd_err (*info)(struct pk_backend *b, struct pk_backend_info *ret, struct pd_why *why);
    /* For the runs and captures that follow; PK_MATH_F32 at first. PD_ERR_UNSUPPORTED where there is no TF32.
     */
    enum pd_err (*set_math)(struct pk_backend *b, enum pk_math math, struct pd_why *why);
    /* What runs are enqueued on, a cudaStream_t: for who times them. NULL where runs wait (CPU). Borrowed. */
    void *(*stream)(struct pk_backend *b);

    /* ---- since version 5 ---- */

    /* Waits for the runs and copies `bytes` from back-end memory to the host, with one synchronisation instead of two.
     * For the few numbers that a step reports. Does not wait for slots in flight (slot_send). May be NULL: the caller
     * then uses sync and download. */
    enum pd_err (*read)(struct pk_backend *b, void *to, const void *from, size_t bytes, struct pd_why *why);
};

typedef const struct pk_backend_api *pk_backend_entry_fn(void);

/* The built-in CPU back end. Static. */
const struct pk_backend_api *pk_backend_cpu(void);

/* How it computes matrix products of bf16: true if by the library's, which were found to be faster here than
 * those of f32; false if by the reference implementation, which is slower. Writes a sentence that says why into
 * ret_why, of `cap` bytes. The first call of a process measures. */
bool pk_cpu_bf16(char *ret_why, size_t cap);
/* The same of an opened CPU back end, which may be held to one of the two (below). */
bool pk_cpu_bf16_of(const struct pk_backend *b, char *ret_why, size_t cap);
/* Fixes how an opened CPU back end computes matrix products of bf16, overriding the measurement: true for the library's
 * products, false for the reference implementation. A resumed run uses it to repeat the choice stored in its checkpoint,
 * so that its results are bitwise those of an uninterrupted run. Call it before planning: plans made earlier are
 * invalid. PD_ERR_UNSUPPORTED if the library has no products of bf16 for this processor; the choice is unchanged then. */
PD_NODISCARD enum pd_err pk_cpu_bf16_hold(struct pk_backend *b, bool products, struct pd_why *why);
