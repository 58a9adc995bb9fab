/* kernels/backend/backend.h: the table of functions behind which a back end stands.
 *
 * A back end runs nodes; it plans nothing and allocates nothing while running. The CPU back end
 * is linked in; others are plug-ins (backend_cuda.so) that export one symbol,
 * pk_backend_entry, state the ABI they were built for, and receive the host's services as a
 * table, so that they take no symbol from the executable. */
#pragma once

#include "kernels/base/err.h"
#include "kernels/ops/op.h"

#define PK_BACKEND_ABI 1u

/* What the host lends to a back end. Lives as long as the back end. */
struct pk_host {
    void (*log)(void *user, int level, const char *text);
    /* Measured choices (GEMM algorithms ...), kept by the daemon. get returns the bytes written into
     * `value` (0 = unknown); put reports a new record. Both may be NULL. */
    size_t (*tuned_get)(void *user, const char *key, void *value, size_t size);
    void (*tuned_put)(void *user, const char *key, const void *value, size_t size);
    void *user;
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

struct pk_backend; /* one opened device */

struct pk_backend_api {
    uint32_t abi;     /* PK_BACKEND_ABI */
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
    /* Waits until everything enqueued has run. */
    enum pd_err (*sync)(struct pk_backend *b, struct pd_why *why);
};

/* The built-in CPU back end. Static. */
const struct pk_backend_api *pk_backend_cpu(void);
