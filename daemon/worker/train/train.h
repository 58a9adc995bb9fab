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
 *   every step            loss/train  lr  grad/norm (before clipping), and the task's: acc/train (images)
 *   about twice a second  step_ms  samples_per_s or tokens_per_s  (means since the last report)
 *                         data_wait (share of that time in which a step waited for its batch, 0..1)
 *                         comm/wait (likewise for other ranks, where there are any)
 *                         sys/flops (per second, in products and attention of this rank; nothing that is
 *                         computed twice counts twice)
 *                         sys/utilisation (that as a share of sys/peak_flops; on a GPU)
 *   every eval_every      loss/val  acc/val or ppl/val; with train.ema the same of the averaged weights as
 *                         loss/val_ema and acc/val_ema or ppl/val_ema;
 *                         (an evaluation by itself: the same once, named by the samples that it scored)
 *                         ppl/val_at/n: perplexity at the range of positions in the context that ends with n
 *   at the end            loss/test  acc/test or ppl/test, ppl/test_at/n, and of each set of data.eval
 *                         loss/eval/<name>  ppl/eval/<name>  ppl/eval_at/<name>/n; with train.ema of the averages too
 *                         sys/cpu (processors kept busy)  mem/peak (bytes: the most the process held)
 *   once per start        mem/arena (bytes: the arena of all graphs)  steps_per_epoch
 *                         mem/optimizer (bytes: allocated for the optimiser's states)  mem/optimizer_per_parameter
 *                         sys/peak_flops (per second, of the GPU: large products in bf16, measured)
 *   when it happens       nonfinite (skipped steps so far)
 *                         data_bad (pictures that could not be decoded so far)
 *   diagnostics.every     attn/fro/l  attn/jac_fro/l  attn/jac_q_fro/l  logit/std/l  logit/max/l, means over
 *                         the probe batch and the heads (logit/max: the largest; no jac_q_fro with qk_norm);
 *                         the same with /l/h for one head; scale/c/l, and scale/c/l/h where a scale is
 *                         learned per head; act/rms/l (root mean square behind block l)
 *   histograms.at         grad/kurtosis/w  grad/hill/w  grad/ratio/w  grad/top_share/w of the gradient of weight w in
 *                         all blocks (tails.h); grad/layer_ratio/w: the largest rms of a block over the least
 *   heatmaps.every, end   attn/entropy/l/h  attn/rank/l/h  attn/negative/l/h of chosen layers and heads, of pictures
 *                         attn/same_row/l/h  attn/same_column/l/h (maps.h), and their means over
 *                         those heads without /h (model.h: model_graph_maps)
 *
 * Accuracies are fractions 0..1. `step` counts finished steps: loss/train of the first step has step 1. */
struct train_point {
    const char *key; /* borrowed during the callback */
    int64_t step;
    int64_t wall_us;
    double value; /* may be non-finite: a diverging loss is shown as it is */
};

/* Numbers that are drawn rather than plotted, of one step. All of it is borrowed during the callback. */
struct train_blob {
    const char *kind; /* "matrix", "histogram" */
    /* l = layer, h = head, both from 1; meta has shape and dtype, and the members named here:
     *   attn/map/l/h           mean of A over the probe batch, (queries, keys); with "grid" [rows, columns] of
     *                          patches behind "lead" other tokens, "causal", "samples"; "between" says what they are
     *                          where they are not tokens: "channels" of a head, "landmarks" (of a Nystromformer F2),
     *                          "class" (the class token asks all tokens)
     *   attn/softmax/l/h       the same of the softmax of the same logits; not where A is that
     *   attn/displacement/l/h  between tokens alone: mean |A| by where the key lies: of pictures (row, column) less the query's, from
     *                          -(rows - 1), -(columns - 1) on; of texts place less the query's; "from" has these.
     *                          Tokens that are no patch are left out; hidden pairs count as none
     *   logit/histogram/l/h    counts of visible logits in equal bins between "lo" and "hi"
     *   grad/histogram/w/l     counts of |g| in bins of a tenth of a decade between "lo" and "hi", of the gradient of
     *                          weight w (w_q, w_k, w_v, w_o, w_1, w_2) in block l; without /l of all blocks together.
     *                          Also in meta: count, zeros, below, above, rms, kurtosis, hill, ratio, top_share (tails.h)
     *   pde/u, pde/exact, pde/error
     *                          of an equation u on the evaluation grid, the exact solution and the size of their
     *                          difference, (times, places); "rows" and "columns" have the axes' names and ends */
    const char *key;
    int64_t step;
    const char *meta;  /* JSON object */
    const void *bytes; /* little-endian, dense, as meta says */
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

/* Callbacks; all but `stop` may be NULL. They run on the training thread and must return soon. */
struct train_host {
    void *user;
    /* A batch of at most 1000 points, at least every half second while there are any. */
    void (*metrics)(void *user, const struct train_point *points, size_t count);
    /* kind: "inputs" (digests of the data and the program), "start", "started_from", "resume", "checkpoint_fallback",
     * "checkpoint_removed", "checkpoint_failed", "nonfinite", "bad_picture", "early_stop", "tested", "bf16", or a kind of data_warnings (data.h). fields: "key=value" pairs,
     * blank-separated. */
    void (*event)(void *user, const char *kind, const char *text, const char *fields);
    void (*progress)(void *user, int64_t step, int64_t total);
    /* After fsync and rename: the file is whole. */
    void (*checkpoint_written)(void *user, const struct train_checkpoint_info *info);
    /* Whether the checkpoint of this step, written by this call, is recorded where `starts` comes from: until
     * a newer one is, it is not removed. `wait`: until it is, or a stop is asked for. NULL: all are. */
    bool (*checkpoint_recorded)(void *user, int64_t step, bool wait);
    /* May be dropped by the host where it cannot be sent on. */
    void (*blob)(void *user, const struct train_blob *blob);
    /* A line for the attempt's log. */
    void (*log)(void *user, const char *line);
    /* Asked at every step boundary and inside evaluation. */
    enum train_stop (*stop)(void *user);
    /* True once per request for a checkpoint. */
    bool (*checkpoint_now)(void *user);
    /* Store of measured choices (daemon/worker/model/tuned.h); NULL: a file in train_dirs.cache. */
    const struct model_tuned_store *tuned;
    const char *program; /* SHA-256 of the worker's executable, in hex; NULL = not known */
};

/* One of several processes that carry out a run together (data parallel): as many as /resources/slots says,
 * each with this rank's share of every global batch. Only rank 0 reads and writes checkpoints, reports, and
 * is asked whether to stop; the others follow it at step boundaries. Should one fail, all do, and the
 * sentence names the first. */
struct train_ranks {
    int rank, ranks; /* ranks 0 or 1: alone */
    const struct pk_comm_api *comm;
    const void *id; /* made by `comm`, the same for all */
};

struct train_dirs {
    const char *checkpoints; /* directory of this run; made if missing */
    const struct data_root *roots;
    size_t root_count;
    /* The checkpoints to go on from: the first, or where it is damaged, which is reported (event
     * checkpoint_fallback), the next. None is left: from the seed. No other file is ever gone on from,
     * whatever lies in `checkpoints`. */
    const char *const *starts;
    size_t start_count;
    int threads;       /* CPU threads; 0 = the document's /resources/threads */
    const char *state; /* folder of the paths of train.start and of a teacher; NULL = there is none */
    const char *cache; /* folder for tokens and decoded pictures, made if missing; NULL = none is kept */
    struct train_ranks ranks;
};

enum train_result {
    TRAIN_DONE,
    TRAIN_DIVERGED,  /* train.nonfinite_limit consecutive steps were skipped */
    TRAIN_STOPPED,   /* asked to; the last step is in a checkpoint */
    TRAIN_CANCELLED, /* asked to; nothing was written after the request */
    TRAIN_FAILED     /* see why */
};

struct train_outcome {
    enum train_result result;
    int64_t step, total;    /* finished and planned steps */
    int64_t nonfinite;      /* skipped steps */
    double loss_train;      /* of the last step; NaN before the first */
    double loss_val;        /* of the last evaluation; NaN before the first */
    double metric_val;      /* acc/val or ppl/val likewise */
    char metric[16];        /* "acc/val" or "ppl/val" */
    char best_metric[16];   /* "acc/val" (largest) of images, "loss/val" (smallest) of text, or _ema */
    double best_value;      /* NaN before the first evaluation */
    int64_t best_step;      /* -1 likewise */
    char best_path[1024];   /* the best checkpoint still kept, "" = none */
    char latest_path[1024]; /* the newest checkpoint, "" = none */
    double seconds;         /* wall time of this call */
    bool lasting;           /* it failed by its document or its data: another attempt would end alike */
};

/* Runs to an outcome; binds the config to the size of its data (job_config_bind). PD_OK for every result but
 * TRAIN_FAILED; then the error says why. *ret_outcome is filled in every case. `host` and `dirs` are borrowed
 * during the call. A file size limit must not kill the process: its owner ignores SIGXFSZ. */
PD_NODISCARD enum pd_err train_run(struct job_config *config, const struct train_dirs *dirs,
                                   const struct train_host *host, struct train_outcome *ret_outcome,
                                   struct pd_why *why);

/* Scores the checkpoint that the document names, once, on the samples that it asks for: the points have the
 * checkpoint's step, progress counts batches. `state_dir`: what the path of the checkpoint begins in; of
 * `dirs`, checkpoints, starts and ranks are not used. Otherwise as train_run; a stop leaves no points. */
PD_NODISCARD enum pd_err train_score(struct job_config *config, const struct train_dirs *dirs,
                                     const char *state_dir, const struct train_host *host,
                                     struct train_outcome *ret_outcome, struct pd_why *why);
/* The byte forecast of train_score, as train_plan; "scored_samples" instead of what concerns training. */
PD_NODISCARD enum pd_err train_score_plan(struct job_config *config, const char *state_dir,
                                          const struct data_root *roots, size_t root_count, const char *cache,
                                          struct pd_buf *ret_json, struct pd_why *why);

/* The byte forecast of the run, without training: one JSON object
 * {"bytes":{"weights":..,"gradients":..,...},"arena_bytes":..,"total_bytes":..,"parameters":..,
 *  "steps":..,"steps_per_epoch":..,"train_samples":..,"val_samples":..,"test_samples":..,"checkpoint_bytes":..,"n_for_scale":..,
 *  "scale":..,"warnings":[{"pointer":"#/data/path","detail":".."}]}, warnings as data_warnings has them.
 * gradients, activations and workspace share the arena (arena_bytes); in mixed precision so do the weights,
 * which then are the bf16 copies of the parameters, and the parameters themselves are "master"; total_bytes =
 * weights + moments + inputs of the training, evaluation and probe graphs + arena_bytes, which is what the largest
 * of them wants: they run one at a time. "bytes" are the training graph's. Where the total is more than
 * memory_bytes (0: any number will do), "accumulated":{"accumulation":..,"total_bytes":..} is the first
 * greater /train/accumulation, of some twice as large as the one before, with which it fits, or the greatest.
 * Reads only the headers of
 * the data, and of a text what its number of tokens needs; `cache` and `state_dir` as in train_dirs. Appends to *ret_json. */
PD_NODISCARD enum pd_err train_plan(struct job_config *config, const char *state_dir,
                                    const struct data_root *roots, size_t root_count, const char *cache,
                                    int64_t memory_bytes, struct pd_buf *ret_json, struct pd_why *why);

/* What the run will measure at step 0, and how long a step takes, by its own code: on the CPU, on one rank, with the
 * document's seed and the first samples of its data. One JSON object
 * {"samples":..,"seed":..,"step_s":..,"threads":..,"layers":[{"norm":..,"logit_std":..,"logit_max":..,"broken":..,
 *  "logits":{"low":..,"high":..,"counts":[..]}}]}: layers are attention modules, norm is attn/fro, broken formula_broken,
 * logits the histogram of head 1 over the probe batch; null where the network or its activation has none. Changes
 * *config. Appends to *ret_json. */
PD_NODISCARD enum pd_err train_preview(struct job_config *config, const char *state_dir,
                                       const struct data_root *roots, size_t root_count, const char *cache,
                                       struct pd_buf *ret_json, struct pd_why *why);

/* What one step of the run moves through memory and multiplies, counted node by node at the given speeds
 * (kernels/graph/roofline.h), as tables for people: no measurement, and no device is needed. Appends to
 * *ret_text. Otherwise as train_plan. */
struct pk_peaks;
PD_NODISCARD enum pd_err train_count(struct job_config *config, const char *state_dir,
                                     const struct data_root *roots, size_t root_count, const char *cache,
                                     int64_t memory_bytes, const struct pk_peaks *peaks,
                                     struct pd_buf *ret_text, struct pd_why *why);

/* "done", "diverged", "stopped", "cancelled", "failed"; static. */
const char *train_result_name(enum train_result result);
