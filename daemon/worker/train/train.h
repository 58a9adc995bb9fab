/* daemon/worker/train/train.h: one training run inside a worker, from resolved document to outcome.
 *
 * train_run builds the graphs (daemon/worker/model), feeds them (daemon/worker/data), steps, evaluates,
 * measures the probe batch and writes checkpoints. It uses no socket and no database: reports go to the
 * host's callbacks. Everything runs on the calling thread, except that a loader thread prepares the next
 * batch and the back end has its pool. Its results depend only on the document, the data and the initial
 * checkpoint, not on time, threads, or the number of stops and resumes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/data/data.h"
#include "kernels/base/buf.h"
#include "kernels/base/err.h"

struct model_tuned_store;
struct pk_comm_api;
struct job_config;

/* One scalar. Keys (l = layer, h = head, both from 1):
 *   every step            loss/train  lr  grad/norm (before clipping), and the task's: acc/train (images, unless mixed)
 *   about twice a second  step_ms  samples_per_s or tokens_per_s  (means since the last report)
 *                         data_wait (share of that time in which a step waited for its batch, 0..1)
 *                         comm/wait (the same for other ranks, with several ranks; not with NCCL)
 *                         sys/flops (FLOP per second in matrix products and attention of this rank, without
 *                         recomputation)
 *                         sys/utilisation (sys/flops divided by sys/peak_flops; on a GPU)
 *   every eval_every      loss/val  acc/val or ppl/val; with train.ema the same for the averaged weights as
 *                         loss/val_ema and acc/val_ema or ppl/val_ema;
 *                         (kind evaluate: the same once, with the key of the scored part)
 *                         ppl/val_at/n: perplexity at the range of positions in the context that ends with n
 *   at the end            loss/test  acc/test or ppl/test, ppl/test_at/n, and for each set of data.eval
 *                         loss/eval/<name>  ppl/eval/<name>  ppl/eval_at/<name>/n; with train.ema for the averages too
 *                         sys/cpu (mean number of busy processors)  mem/peak (bytes: largest resident memory)
 *   once per start        mem/arena (bytes: the arena of all graphs)  steps_per_epoch
 *                         mem/optimizer (bytes: allocated for the optimiser's states)  mem/optimizer_per_parameter
 *                         sys/peak_flops (per second, of the GPU: large products in bf16, measured)
 *   when it happens       nonfinite (skipped steps so far)
 *                         data_bad (pictures that could not be decoded so far)
 *   diagnostics.every     attn/fro/l  attn/jac_fro/l  attn/jac_q_fro/l  logit/std/l  logit/max/l, means over
 *                         the probe batch and the heads (logit/max: the largest; no jac_q_fro with qk_norm);
 *                         the same with /l/h for one head; scale/c/l, and scale/c/l/h for scales learned
 *                         per head; act/rms/l (root mean square of the output of block l)
 *   histograms.at         grad/kurtosis/w  grad/hill/w  grad/ratio/w  grad/top_share/w of the gradient of weight w in
 *                         all blocks (tails.h); grad/layer_ratio/w: the largest rms of a block over the smallest
 *   heatmaps.every, end   attn/entropy/l/h  attn/rank/l/h  attn/negative/l/h of selected layers and heads, for pictures
 *                         attn/same_row/l/h  attn/same_column/l/h (maps.h), and their means over
 *                         these heads without /h (model.h: model_graph_maps)
 *
 * Accuracies are fractions 0..1. `step` counts finished steps: loss/train of the first step has step 1. */
struct train_point {
    const char *key; /* borrowed during the callback */
    int64_t step;
    int64_t wall_us;
    double value; /* may be non-finite, for example a diverging loss */
};

/* A matrix or histogram of one step. All members are borrowed during the callback. */
struct train_blob {
    const char *kind; /* "matrix", "histogram" */
    /* l = layer, h = head, both from 1; meta has shape and dtype, and the members in quotes:
     *   attn/map/l/h           mean of A over the probe batch, (queries, keys); with "grid" [rows, columns] of
     *                          patches after "lead" other tokens, "causal", "samples"; "between" if rows and columns
     *                          are not tokens: "channels" of a head, "landmarks" (F2 of a Nystromformer),
     *                          "class" (one query, the class token)
     *   attn/softmax/l/h       the same for the softmax of the same logits; absent if A is softmax
     *   attn/displacement/l/h  between tokens only: mean |A| by displacement from the query to the key: for pictures
     *                          (row, column), from -(rows - 1), -(columns - 1) on; for texts the position; "from" has
     *                          the first displacement. Tokens that are not patches and hidden pairs are excluded
     *   logit/histogram/l/h    counts of visible logits in equal bins between "lo" and "hi"
     *   grad/histogram/w/l     counts of |g| in bins of a tenth of a decade between "lo" and "hi", of the gradient of
     *                          weight w (w_q, w_k, w_v, w_o, w_1, w_2) in block l; without /l for all blocks together.
     *                          Also in meta: count, zeros, below, above, rms, kurtosis, hill, ratio, top_share (tails.h)
     *   pde/u, pde/exact, pde/error
     *                          u on the evaluation grid, the exact solution, and the absolute difference,
     *                          (t, x); "rows" and "columns" have the axes' names and ranges */
    const char *key;
    int64_t step;
    const char *meta;  /* JSON object */
    const void *bytes; /* little-endian, dense; shape and dtype are in meta */
    size_t len;
};

enum train_stop { TRAIN_STOP_NONE, TRAIN_STOP_CHECKPOINT, TRAIN_STOP_CANCEL };

struct train_checkpoint_info {
    const char *path; /* absolute; borrowed during the callback */
    int64_t step;
    uint64_t bytes;
    uint8_t sha256[32]; /* of the whole file */
    bool best;          /* the best evaluation so far was at this step */
    /* "acc/val" or "loss/val", or the same with _ema; the value it had at the last evaluation */
    const char *metric;
    double value; /* NaN before the first evaluation */
};

/* Callbacks; all but `stop` may be NULL. They run on the training thread and must return quickly. */
struct train_host {
    void *user;
    /* Receives a batch of at most 1000 points, at least every half second if there are any. */
    void (*metrics)(void *user, const struct train_point *points, size_t count);
    /* kind: "inputs" (digests of the data and the program), "start", "started_from", "resume", "data_changed" (fields data, before), "checkpoint_fallback",
     * "checkpoint_removed", "checkpoint_failed", "nonfinite", "stalled" (of a line search: no step changes anything from `step` on, at the same rate), "bad_picture",
     * "early_stop", "tested", "bf16", "compiled" (kernels made for formulas at this start: fields kernels, programs, found (in the cache), seconds), or a kind of data_warnings (data.h). fields: "key=value" pairs,
     * blank-separated; `file` and `path` are last and may hold blanks. */
    void (*event)(void *user, const char *kind, const char *text, const char *fields);
    void (*progress)(void *user, int64_t step, int64_t total);
    /* What the run does between steps that takes long, such as "compiling kernels of formulas: gradients in bf16 (2 of 4)";
     * NULL: nothing. Borrowed during the callback. */
    void (*phase)(void *user, const char *text);
    /* Called after fsync and rename. */
    void (*checkpoint_written)(void *user, const struct train_checkpoint_info *info);
    /* Whether polyd has recorded the checkpoint of this step, so that a later attempt may start from it; it is retained
     * until a newer one is recorded. `wait`: waits until it is recorded or a stop is requested. NULL: all are recorded. */
    bool (*checkpoint_recorded)(void *user, int64_t step, bool wait);
    /* The host may drop a blob that it cannot send. */
    void (*blob)(void *user, const struct train_blob *blob);
    /* A line for the attempt's log. */
    void (*log)(void *user, const char *line);
    /* Called at every step boundary and during evaluation. */
    enum train_stop (*stop)(void *user);
    /* True once per request for a checkpoint. */
    bool (*checkpoint_now)(void *user);
    /* Store of measured choices (daemon/worker/model/tuned.h); NULL: a file in train_dirs.cache. */
    const struct model_tuned_store *tuned;
    const char *program; /* SHA-256 of the worker's executable, in hex; NULL: unknown */
};

/* One of the /resources/slots processes of a data-parallel run, each with its rank's share of every global batch. Only
 * rank 0 reads and writes checkpoints, reports, and calls `stop`; the others follow its decisions at step boundaries. If
 * one rank fails, all fail, and the sentence names the first. */
struct train_ranks {
    int rank, ranks; /* ranks 0 or 1: one process */
    const struct pk_comm_api *comm;
    const void *id; /* created by `comm`, equal on all ranks */
};

struct train_dirs {
    const char *checkpoints; /* directory of this run; created if missing */
    const struct data_root *roots;
    size_t root_count;
    /* The checkpoints to resume from: the first that is not damaged (event checkpoint_fallback if it is not the first of
     * the list). If none is usable, the run starts from the seed. Other files in `checkpoints` are never used. */
    const char *const *starts;
    /* SHA-256 of each, in hex, as polyd has recorded it; NULL or "": unknown. A file with another digest is reported
     * again: it was written again, and the worker ended before polyd heard of it. */
    const char *const *start_digests;
    size_t start_count;
    int threads;       /* CPU threads; 0: the document's /resources/threads */
    const char *state; /* base of the paths of train.start and of a teacher; NULL: none */
    const char *cache; /* folder for tokens and decoded pictures, created if missing; NULL: no cache */
    struct train_ranks ranks;
};

enum train_result {
    TRAIN_DONE,
    TRAIN_DIVERGED,  /* train.nonfinite_limit consecutive steps were skipped */
    TRAIN_STOPPED,   /* on request; the last step is in a checkpoint */
    TRAIN_CANCELLED, /* on request; nothing was written after the request */
    TRAIN_FAILED     /* see why */
};

struct train_outcome {
    enum train_result result;
    int64_t step, total;    /* finished and planned steps */
    int64_t nonfinite;      /* skipped steps */
    double loss_train;      /* of the last step; NaN before the first */
    double loss_val;        /* of the last evaluation; NaN before the first */
    double metric_val;      /* acc/val or ppl/val; NaN before the first evaluation */
    char metric[16];        /* "acc/val" or "ppl/val" */
    char best_metric[16];   /* "acc/val" (largest) of images, "loss/val" (smallest) of text, or _ema */
    double best_value;      /* NaN before the first evaluation */
    int64_t best_step;      /* -1 before the first evaluation */
    char best_path[1024];   /* the best retained checkpoint; "": none */
    char latest_path[1024]; /* the newest checkpoint; "": none */
    double seconds;         /* wall time of this call */
    bool lasting; /* the document, its data or a checkpoint are at fault: another attempt would fail too */
    bool
        gone; /* a registered file that it needs was deleted: so would a later attempt of a run that could read it */
};

/* Executes the run; binds the config to the size of its data (job_config_bind). PD_OK for every result but TRAIN_FAILED,
 * for which it returns an error. *ret_outcome is filled in every case. `host` and `dirs` are borrowed during the call. The
 * caller ignores SIGXFSZ, so that a file size limit does not kill the process. */
PD_NODISCARD enum pd_err train_run(struct job_config *config, const struct train_dirs *dirs,
                                   const struct train_host *host, struct train_outcome *ret_outcome,
                                   struct pd_why *why);

/* Scores the document's checkpoint once, on the part that the document selects. The points have the checkpoint's step;
 * progress counts batches. `state_dir`: base of the checkpoint's path; checkpoints, starts and ranks of `dirs` are not
 * used. Otherwise as train_run; after a stop no points are reported. */
PD_NODISCARD enum pd_err train_score(struct job_config *config, const struct train_dirs *dirs,
                                     const char *state_dir, const struct train_host *host,
                                     struct train_outcome *ret_outcome, struct pd_why *why);
/* The memory forecast of train_score, as train_plan, with "scored_samples" instead of the members about training. */
PD_NODISCARD enum pd_err train_score_plan(struct job_config *config, const char *state_dir,
                                          const struct data_root *roots, size_t root_count, const char *cache,
                                          struct pd_buf *ret_json, struct pd_why *why);

/* Appends the memory forecast of the run to *ret_json, without training: one JSON object
 * {"bytes":{"weights":..,"gradients":..,...},"arena_bytes":..,"total_bytes":..,"parameters":..,
 *  "steps":..,"steps_per_epoch":..,"train_samples":..,"val_samples":..,"test_samples":..,"checkpoint_bytes":..,"n_for_scale":..,
 *  "scale":..,"warnings":[{"pointer":"#/data/path","detail":".."}]}, with the warnings of data_warnings.
 * Gradients, activations and workspace share the arena (arena_bytes). In mixed precision "weights" are the bf16 copies, in
 * the arena too, and the parameters are "master". total_bytes = weights + moments + inputs of the training, evaluation and
 * probe graphs + arena_bytes, the arena of the largest graph, since they run one at a time. "bytes" are those of the
 * training graph. If the total exceeds memory_bytes (0: no limit), "accumulated":{"accumulation":..,"total_bytes":..} has
 * the first larger /train/accumulation that fits, of a series that about doubles, or else the largest of them. Reads only
 * the headers of the data, and as much of a text as its number of tokens needs. `cache` and `state_dir` as in train_dirs. */
PD_NODISCARD enum pd_err train_plan(struct job_config *config, const char *state_dir,
                                    const struct data_root *roots, size_t root_count, const char *cache,
                                    int64_t memory_bytes, struct pd_buf *ret_json, struct pd_why *why);

/* Appends the diagnostics of step 0 and the duration of a step to *ret_json, computed by the run's code on the CPU with one
 * rank, the document's seed and the first samples of its data. One JSON object
 * {"samples":..,"seed":..,"step_s":..,"threads":..,"layers":[{"norm":..,"logit_std":..,"logit_max":..,"broken":..,
 *  "logits":{"low":..,"high":..,"counts":[..]}}]}: layers are attention modules, norm is attn/fro, broken formula_broken,
 * logits the histogram of head 1 over the probe batch; null if the network or its activation has none. Changes
 * *config. */
PD_NODISCARD enum pd_err train_preview(struct job_config *config, const char *state_dir,
                                       const struct data_root *roots, size_t root_count, const char *cache,
                                       struct pd_buf *ret_json, struct pd_why *why);

/* Appends the roofline of one step to *ret_text, as tables: bytes and FLOP of each node and their time at the given peaks
 * (kernels/graph/roofline.h), counted without a device. Otherwise as train_plan. */
struct pk_peaks;
PD_NODISCARD enum pd_err train_count(struct job_config *config, const char *state_dir,
                                     const struct data_root *roots, size_t root_count, const char *cache,
                                     int64_t memory_bytes, const struct pk_peaks *peaks,
                                     struct pd_buf *ret_text, struct pd_why *why);

/* "done", "diverged", "stopped", "cancelled", "failed"; static. */
const char *train_result_name(enum train_result result);
