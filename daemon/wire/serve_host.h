/* daemon/wire/serve_host.h: the interface between the serve role of a worker and the daemon.
 *
 * The worker fills this table and calls serve_run(host, ...) on its main thread; the link's own thread
 * receives the frames. Requests wait in a bounded queue after validation. All functions may be
 * called from any thread of the role. */
#pragma once

#include "daemon/wire/wire.h"

struct model_tuned_store;

struct serve_request {
    uint64_t id;
    /* pd_clock_mono_us value; 0 = none. After it: answer PD_ERR_TIMEOUT. A completion must have its first token
     * by then, and send its parts at intervals of less than the same time. */
    int64_t deadline_us;
    char kind[16];    /* "infer", "complete", "tokenize" or "detokenize" */
    const char *json; /* parameters, NUL-terminated; "{}" when absent */
    size_t json_len;
    uint32_t count;                               /* tensors */
    struct wire_tensor tensors[WIRE_TENSORS_MAX]; /* data borrowed from the request */
};

/* One part of an answer. All kinds except "complete" send one, with `last`. A completion sends one part per
 * token (few, if it is not streamed) and a last one. */
struct serve_result {
    enum pd_err err;  /* not PD_OK: `text` has the error; last is implied */
    const char *text; /* NULL unless err */
    const char *
        json; /* an object: of kind "infer" the answer's member `parameters`, of others members of it; or NULL */
    uint32_t count;
    const struct wire_tensor *tensors; /* borrowed during the call */
    bool last;
    const struct wire_timing *timing; /* with the last part; NULL = none */
};

struct serve_host {
    void *ctx;
    const char *model;      /* "name/version" */
    const char *job;        /* the resolved job document of the run that trained it, JSON */
    const char *checkpoint; /* path */
    const char *digest;     /* its registered SHA-256 in hex; a mismatch is refused. NULL = unknown */
    uint32_t threads;       /* CPU threads to use */
    bool bf16_weights;      /* store a language model's matrices in bf16 */
    bool cuda;              /* on the GPU that the process sees */
    /* Stores measured choices (daemon/worker/model/tuned.h), or NULL. */
    const struct model_tuned_store *tuned;
    int memory_kind; /* stored context of a completion: 0 = by size, 1 = a cache, 2 = a constant-size state */
    int64_t delay_us;      /* how long a request may wait to form a batch; 0 = not at all */
    uint64_t memory_bytes; /* memory limit of the model; 0 = no limit */
    /* Loaded and warm: `signature` is JSON {"platform":..,"inputs":[..],"outputs":[..],...}; memory_bytes is
     * the maximum memory of the model with all streams open. Call once. */
    void (*ready)(void *ctx, const char *signature, uint64_t memory_bytes);
    /* Waits for the next request, at most timeout_ms (-1 = for ever). PD_OK: the caller owns *ret and ends it
     * with `done`. PD_ERR_TIMEOUT: no request. PD_ERR_CLOSED: unload or stop: finish and return. */
    enum pd_err (*next)(void *ctx, int timeout_ms, struct serve_request **ret);
    /* Whether the client has disconnected (or the worker was asked to stop). Cheap enough for every decode
     * step. */
    bool (*cancelled)(void *ctx, const struct serve_request *req);
    /* Sends a part. Copies. After the last part nothing more may be sent for this request. */
    void (*reply)(void *ctx, const struct serve_request *req, const struct serve_result *part);
    /* Releases the request. Without a last part it is answered with PD_ERR_INTERNAL. */
    void (*done)(void *ctx, struct serve_request *req);
    /* A counter or gauge for /metrics goes with progress: requests waiting and running now. */
    void (*load)(void *ctx, uint32_t waiting, uint32_t running);
};
