/* daemon/polyd/supervise/supervise.h: the supervisor: one thread that schedules runs, owns the worker
 * processes and their connections, and forwards inference requests to the serving workers.
 *
 * It is driven by the rows: a client's command is a store write (tx.h) followed by sup_notify; the supervisor
 * reads which runs are queued, cancelling or paused, and acts. A restart therefore needs only the file. All
 * functions may be called from any thread. Callbacks run on the supervisor's thread: they must be quick, must
 * not wait, and may call any function here except sup_stop. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/wire/wire.h"
#include "kernels/base/err.h"

struct sup;
struct store_writer;

struct sup_data_root {
    const char *name, *path;
};

struct sup_options {
    const char *state_dir;   /* worker.sock, runs/ live here */
    const char *worker_path; /* the polyd-worker program */
    const char *train_role;  /* NULL = "train"; "selftest" = the diagnostic role for every run */
    int cpu_slots;           /* cpu devices offered; >= 1 */
    int cpu_threads;         /* threads of each */
    const char *gpus;      /* which GPUs are offered, see device_watch_options; NULL = none are looked for */
    const char *nvml;      /* the library; NULL = the driver's */
    int64_t gpu_sample_us; /* between two looks at the GPUs; 0 = 2 s */
    int64_t gpu_start_us;  /* how long the start waits for the driver; 0 = 30 s */
    int64_t grace_us;      /* between a cancel and the hard kill */
    int64_t backoff_us;    /* before the first restart; doubled each time, at most 5 min */
    int64_t age_us;        /* waiting so long raises a run's priority by one */
    /* Called by sup_start, on its thread, when it begins to take up what ran before, and for each attempt of
     * that. `what`: a sentence. May be NULL. */
    void (*busy)(void *ctx, const char *what);
    void *busy_ctx;
    int64_t silence_us;   /* silence after which an external run is lost; 0 = 10 min */
    int64_t hang_us;      /* silence of a live worker that counts as a hang; 0 = WIRE_HANG_US */
    int serve_threads;    /* CPU threads of a serving worker; 0 = cpu_threads */
    bool serve_cuda;      /* models are loaded on a GPU */
    bool serve_bf16;      /* language models are loaded with their matrices in bf16 */
    int64_t serve_memory; /* memory of all loaded models together; 0 = no limit */
    int serve_decode; /* stored context of a completion: 0 = by size, 1 = a cache, 2 = a constant-size state */
    int64_t serve_delay_us; /* how long a classification request may wait to form a batch */
    int64_t cache_bytes;    /* bound of the folder cache/; 0 = 16 GiB */
    int infer_queue;        /* requests in flight per model version; more are PD_ERR_BUSY. 0 = 256 */
    /* sup_stop asks the training workers to checkpoint and exit; otherwise they continue */
    bool drain_on_stop;
    const struct sup_data_root *roots; /* copied */
    int root_count;
};

/* Listens on worker.sock, reconciles every attempt that has not ended (adopt, requeue or fail), loads the
 * models that should be loaded, and starts the thread. The writer outlives the supervisor. */
PD_NODISCARD enum pd_err sup_start(const struct sup_options *o, struct store_writer *w, struct sup **ret,
                                   struct pd_why *why);
/* Stops the thread. Serving workers end; training workers continue without a daemon unless drain_on_stop.
 * Open calls get PD_ERR_CLOSED. NULL is fine. Returns NULL. */
struct sup *sup_stop(struct sup *s);

/* Replaces the data roots for attempts and plans that begin later. Names and paths are copied. */
PD_NODISCARD enum pd_err sup_set_roots(struct sup *s, const struct sup_data_root *roots, int count,
                                       struct pd_why *why);

/* Notifies the supervisor of a commit that concerns it (a job, a cancel, a pause, a resume). */
void sup_notify(struct sup *s);

/* Monotonic time of its last loop iteration (at least one per second). For the watchdog. */
int64_t sup_alive_us(struct sup *s);

/* ---- what the API shows --------------------------------------------------------------------- */

struct device;
struct device_sample;
struct device_driver;

struct sup_device {
    char name[32];   /* "cpu:0", "cuda:3", "cuda:0.1" */
    char kind[8];    /* "cpu"; "cuda": a whole GPU; "mig": an instance of one */
    char model[128]; /* processor or GPU name */
    int threads;
    int64_t memory_bytes;
    int64_t run_id; /* that holds it; 0 = free */
    int attempt;
    /* "free", "busy" (a run), "draining" (a run, its last one), "serving" (models; a run may join them),
     * "checking" (released a moment ago); out of service: "drained", "foreign" (another process computes
     * there), "broken", "stale" (the driver does not answer), "gone" (it was there), "split" (into MIG
     * instances) */
    char state[16];
    char id[64];         /* permanent id, as stored in rows */
    char reason[200];    /* reason for the state; may be "" */
    int models;          /* served there */
    char drained_by[64]; /* "" = it is in service */
    char drain_reason[160];
    int64_t drained_us;
    const struct device *facts;         /* NULL for a cpu slot, as the next; daemon/polyd/devices/device.h */
    const struct device_sample *sample; /* borrowed during the call */
};
/* Calls back for each. */
void sup_device_list(struct sup *s, void (*row)(void *ctx, const struct sup_device *d), void *ctx);

/* Whether jobs of device "cuda" can run: there are GPUs, and a worker that supports them. Otherwise ret_why
 * is a sentence. */
#define SUP_WHY_BYTES 480
bool sup_cuda(struct sup *s, char ret_why[SUP_WHY_BYTES]);

/* Number of GPUs (instances included) for jobs; if 0, a sentence with the reason. *ret_driver
 * (may be NULL): borrowed until the stop. */
int sup_gpu_count(struct sup *s, const char **ret_why, const struct device_driver **ret_driver);

struct sup_queue_info {
    int position;     /* 1 = next; 0 = not waiting */
    char reason[256]; /* "waiting for 2 GPUs, 1 free, 1 busy with a foreign process (pid 123)" */
};
/* False if the run was not in the queue at the supervisor's last cycle. */
bool sup_queue_get(struct sup *s, int64_t run_id, struct sup_queue_info *ret);

/* Forecast for a submission: the reason as for a queued run, or why it can never fit (PD_ERR_LIMIT).
 * need_bytes: bytes of its plan per slot; 0 = unknown. `devices`: names of the devices that it would get now,
 * "cuda:0,cuda:1"; "" if it would wait. */
PD_NODISCARD enum pd_err sup_fit(struct sup *s, const char *device, int slots, int64_t need_bytes,
                                 struct sup_queue_info *ret, char *devices, size_t size, struct pd_why *why);

/* Maximum memory per slot for this number of slots: for cpu slots a share of the machine's memory, otherwise
 * the memory of the largest device. 0 = unknown. */
int64_t sup_memory(struct sup *s, const char *device, int slots);

/* Live state of a run between two writes of the rows; false if no worker of it is connected. */
struct sup_progress {
    int64_t step, total;
    int64_t updated_us; /* wall clock */
    bool checkpointing;
    char phase[WIRE_PHASE_MAX + 1]; /* what its worker does between steps; "": nothing reported */
};
bool sup_progress_get(struct sup *s, int64_t run_id, struct sup_progress *ret);

/* The log of an attempt: writes its path. The file grows while the worker lives. attempt 0: an external run.
 */
void sup_log_path(struct sup *s, int64_t run_id, int attempt, char *out, size_t size);

#define SUP_WAITS 9
/* Upper bounds of sup_stats.waits; its last entry counts values above all of them. */
static const double sup_wait_bounds_s[SUP_WAITS] = {0.1, 1, 5, 15, 60, 300, 1800, 7200, 43200};

struct sup_stats {
    int64_t waits[SUP_WAITS + 1], wait_us_total;  /* from the creation of a run to its first start */
    int64_t cycles, cycle_us_total, cycle_us_max; /* scheduling */
    int64_t spawned, adopted, requeued, killed, hangs;
    int64_t frames_in, points_in;
    int connections;
};
void sup_stats(struct sup *s, struct sup_stats *ret);

/* ---- plans ---------------------------------------------------------------------------------- */

struct sup_planning {
    const char *document; /* resolved; copied */
    size_t len;
    const char *plan_digest; /* hex; NULL = the answer is not stored */
    const char *device;      /* "cpu" or "cuda", and the number of slots whose memory it may use */
    int slots;
    bool start;          /* asks for the start (plan --start), which is not stored */
    bool refresh;        /* the stored answer may be out of date: it is replaced */
    int64_t patience_us; /* then `done` gets PD_ERR_TIMEOUT, and the plan is only kept; 0 = two minutes */
    /* PD_ERR_INVALID: the document or its data are to blame, and the sentence names the field; other errors
     * say nothing of the document. `plan`: JSON, borrowed. */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why, const char *plan);
    void *ctx;
};

/* Bytes needed by a resolved job, from `polyd-worker plan` or, without `refresh`, the stored answer of an equal plan_digest.
 * PD_ERR_BUSY: too many concurrent requests. */
PD_NODISCARD enum pd_err sup_plan(struct sup *s, const struct sup_planning *asked, struct pd_why *why);

/* ---- data ------------------------------------------------------------------------------------ */

struct sup_listing {
    const char *root; /* only this data root, or NULL */
    const char *path; /* only entries below "<root>/<relative>", or NULL */
    /* PD_ERR_INVALID: an invalid path. `list`: JSON in the format of data_have (daemon/worker/data/have.h),
     * borrowed. */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why, const char *list);
    void *ctx;
};

/* Contents of the data roots, from `polyd-worker data`; PD_ERR_TIMEOUT after ten seconds. PD_ERR_BUSY: too
 * many concurrent requests. */
PD_NODISCARD enum pd_err sup_data_list(struct sup *s, const struct sup_listing *asked, struct pd_why *why);

/* ---- weights --------------------------------------------------------------------------------- */

#define SUP_WEIGHTS_ARGS 16
struct sup_weights {
    const char *args[SUP_WEIGHTS_ARGS + 1]; /* of `polyd-worker weights`; NULL-terminated; copied */
    const char *document;                   /* its standard input; copied; NULL = empty */
    const char *digest; /* key under which the answer is stored (at most 79 bytes); NULL = not stored */
    /* PD_ERR_INVALID: an invalid file. `answer`: JSON of the command (daemon/worker/weights), borrowed. */
    void (*done)(void *ctx, enum pd_err err, const struct pd_why *why, const char *answer);
    void *ctx;
};

/* Runs `polyd-worker weights` on files of weights. PD_ERR_BUSY: too many concurrent requests. */
PD_NODISCARD enum pd_err sup_weights_ask(struct sup *s, const struct sup_weights *asked, struct pd_why *why);

/* ---- serving -------------------------------------------------------------------------------- */

enum sup_model_state { SUP_MODEL_UNAVAILABLE, SUP_MODEL_LOADING, SUP_MODEL_READY, SUP_MODEL_UNLOADING };
/* "READY" and so on, as the Open Inference Protocol spells them. */
const char *sup_model_state_name(enum sup_model_state state);

/* Counts of values up to each bound, of those above the last, and their sum. */
#define SUP_HIST_BOUNDS 14
struct sup_hist {
    int64_t count[SUP_HIST_BOUNDS + 1];
    double sum;
};
extern const double sup_hist_seconds[SUP_HIST_BOUNDS]; /* bounds of the times */
extern const double sup_hist_batch[SUP_HIST_BOUNDS];   /* bounds of the batch sizes */

/* Statistics of the requests of one version since it was loaded. */
struct sup_infer_stats {
    struct sup_hist batch;                                    /* of each request */
    struct sup_hist queue, compute, first_token, inter_token; /* seconds */
    int64_t tokens, rejected;
};

struct sup_model_info {
    const char *model;
    int64_t version;
    enum sup_model_state state;
    bool wanted; /* should be loaded: was ready once and not unloaded since, also by an earlier daemon */
    const char *reason;    /* why it is unavailable; "" = it is not */
    const char *signature; /* JSON from the worker when ready; "" before */
    int in_flight, waiting, running;
    int64_t requests, failures, restarts;
    int64_t memory_bytes;                /* resident size of the worker; 0 = unknown */
    int64_t need_bytes;                  /* its maximum memory as reported; 0 = not ready yet */
    const struct sup_infer_stats *stats; /* NULL = not measured */
};
/* Calls back for each version that is or was loaded, under a lock. */
void sup_model_list(struct sup *s, void (*row)(void *ctx, const struct sup_model_info *m), void *ctx);
/* One version; version 0 = the highest ready one. PD_ERR_NOT_FOUND if it is not loaded. */
PD_NODISCARD enum pd_err sup_model_get(struct sup *s, const char *model, int64_t version,
                                       void (*row)(void *ctx, const struct sup_model_info *m), void *ctx,
                                       struct pd_why *why);

/* Loads a registered version (0 = highest) in a worker of its own. `done` (may be NULL) is called once: PD_OK
 * when it is READY and the store has it as loaded, else the error. Loading a ready version gives PD_OK
 * immediately. */
PD_NODISCARD enum pd_err sup_model_load(struct sup *s, const char *model, int64_t version,
                                        void (*done)(void *ctx, enum pd_err err, const struct pd_why *why),
                                        void *ctx, struct pd_why *why);
/* Unloads (0 = all versions), and forgets loads that failed. `done` (may be NULL) is called when the
 * worker's memory is free and the store has the version as not loaded. */
PD_NODISCARD enum pd_err sup_model_unload(struct sup *s, const char *model, int64_t version,
                                          void (*done)(void *ctx, enum pd_err err, const struct pd_why *why),
                                          void *ctx, struct pd_why *why);

struct sup_result {
    enum pd_err err; /* not PD_OK: the last part, with the error in `text` */
    const char *text;
    const char *json; /* NUL-terminated; "" when absent */
    size_t json_len;
    uint32_t count;
    const struct wire_tensor *tensors; /* borrowed during the callback */
    bool last;
    const char *model; /* who answered */
    int64_t version;
};

struct sup_infer {
    const char *model;
    int64_t version;     /* 0 = the highest ready one */
    const char *kind;    /* as in daemon/wire/serve_host.h */
    int64_t deadline_us; /* microseconds until the first part, and from each part to the next; 0 = none */
    const char *json;    /* parameters, copied; NULL = none */
    size_t json_len;
    const struct wire_tensor *tensors; /* copied */
    uint32_t count;
    /* Called for every part; exactly one part, the last, has `last` set (with PD_ERR_CANCELLED after
     * sup_infer_cancel, PD_ERR_CLOSED if the worker died, PD_ERR_TIMEOUT after the deadline). */
    void (*part)(void *ctx, const struct sup_result *r);
    void *ctx;
};
/* Sends the request to the model's worker. PD_ERR_NOT_FOUND: not loaded; PD_ERR_BUSY: its queue is full
 * (429); PD_ERR_CLOSED: loading, unloading or restarting (503). On PD_OK *ret_id names it. */
PD_NODISCARD enum pd_err sup_infer(struct sup *s, const struct sup_infer *req, uint64_t *ret_id,
                                   struct pd_why *why);
/* The client disconnected. The last part is still delivered. Unknown ids (already answered) are ignored. */
void sup_infer_cancel(struct sup *s, uint64_t id);
