/* daemon/worker/train/setup.h: private to this module: settings that both the plan and the run derive from
 * the document.
 */
#pragma once

#include "daemon/worker/data/data.h"
#include "daemon/worker/model/model.h"
#include "daemon/job/job.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/train/schedule.h"
#include "daemon/worker/train/teacher.h"
#include "daemon/worker/train/train.h"

struct data_st;

#define TRAIN_DIGEST_SIZE 65
#define TRAIN_EVAL_MAX 8

/* A text of data.eval, opened with the tokenizer of the run's own. */
struct train_eval {
    const char *name; /* borrowed from the document */
    struct data_set *set;
};

struct train_setup {
    struct data_set *set;
    const struct data_info *info;
    struct train_eval eval[TRAIN_EVAL_MAX];
    size_t eval_count;
    struct model *model;
    struct teacher teacher; /* of a run with train.teacher; else zeros */
    const struct optim *optim;
    struct model_train_options options;
    struct train_schedule schedule;
    int64_t steps, eval_every, steps_per_epoch;
    int64_t parts;                /* of a step; options.batch is one part, batch all of them */
    int32_t batch;                /* of a step, of all ranks */
    int32_t eval_batch;           /* of one rank */
    int32_t probe_batch, context; /* context 0 for images */
    int64_t probe_every;          /* steps between probes; 0: no probes */
    bool probe_lead;              /* statistics include tokens that are not patches */
    struct model_maps maps;       /* of the document */
    uint32_t histogram_weights; /* bit w: distributions of the gradient of that weight (enum model_weight) */
    const double *histogram_at; /* fractions of the run at which they are computed; owned by the document */
    size_t histogram_count;     /* 0: no histograms */
    int64_t maps_every;         /* steps between heat maps; 0: no heat maps */
    bool keep_activations;      /* the graphs of a step do not recompute (train_recompute_choose) */
    int rank, ranks;
    int loader_threads;
    const struct task *task;
    enum data_scored scored;
    bool judge_averages; /* the averaged weights rank the checkpoints */
    const char
        *best_metric;   /* metric that ranks checkpoints: "acc/val", "loss/val", or with "_ema"; static */
    size_t best_number; /* its index among the task's numbers */
    struct {
        const char *metric; /* metric of early stopping (train.stop); static or from the document */
        size_t number;      /* its index among the task's numbers */
        bool averaged, maximise;
    } stop;
    bool maximise;
    char trajectory[TRAIN_DIGEST_SIZE];         /* digest of everything that determines the run's numbers */
    char earlier_trajectory[TRAIN_DIGEST_SIZE]; /* the same of the document's earlier_trajectory */
    char old_trajectory[TRAIN_DIGEST_SIZE];     /* the same in the form of checkpoints before 2026-11 */
    /* of an optimiser that searches along lines: its loss in words, and the digest of the trained parameters' names; else "" */
    char search_loss[200], search_params[TRAIN_DIGEST_SIZE];
};

/* Opens the data and creates the model. PD_ERR_UNSUPPORTED: this build cannot do it. `rank`: one of /resources/slots.
 * `state_dir`: base of a teacher's path. The caller owns the storage and calls train_setup_done whatever the result. */
PD_NODISCARD enum pd_err train_setup_init(struct train_setup *s, struct job_config *config,
                                          const struct data_root *roots, size_t root_count, const char *cache,
                                          const char *state_dir, int rank, bool headers_only,
                                          struct pd_why *why);
/* The same for an evaluation: data, network, task and the batch of evaluations only. `st`: the checkpoint, whose classes,
 * channels and tokenizer must equal those of the data; PD_ERR_INVALID names the field. Pixels are normalised by the
 * checkpoint's mean and deviation, not by the data's. PD_ERR_VERSION: as train_digest_function. */
PD_NODISCARD enum pd_err train_setup_score(struct train_setup *s, const struct job_config *config,
                                           const struct data_st *st, const struct data_root *roots,
                                           size_t root_count, const char *cache, bool headers_only,
                                           struct pd_why *why);
/* score.c: opens the checkpoint of an evaluation's document and verifies its digest. The caller owns *ret. */
PD_NODISCARD enum pd_err train_score_open(const struct job_config *config, const char *state_dir,
                                          struct data_st **ret, struct pd_why *why);
/* The step after which histogram i of gradients is computed: its fraction of the run, rounded. */
int64_t train_histogram_step(const struct train_setup *s, size_t i);
/* Whether value a of the ranking metric is better than b; a NaN is never better. */
bool train_better(const struct train_setup *s, double a, double b);
/* Changes the number of micro-batches, which must divide each rank's share; does not update the digest. */
void train_setup_divide(struct train_setup *s, int64_t parts);
void train_setup_done(struct train_setup *s);

/* Whether the class names of a checkpoint are those of the data, where both have some; PD_ERR_INVALID otherwise.
 * `field` of the document names the data or the file, `whose` the file. */
PD_NODISCARD enum pd_err train_setup_classes(const struct data_info *d, const struct data_st *st,
                                             const char *field, const char *whose, struct pd_why *why);

/* digest.c: both digests; and whether a checkpoint belongs to a run of the same trajectory. */
PD_NODISCARD enum pd_err train_digest_set(struct train_setup *s, const struct job_config *c,
                                          struct pd_why *why);
bool train_digest_fits(const struct train_setup *s, const struct data_st *st);
/* Whether the checkpoint's parameters are those of the function that this version makes of the run's document.
 * PD_ERR_VERSION names the setting that another version made otherwise. */
PD_NODISCARD enum pd_err train_digest_function(const struct train_setup *s, const struct data_st *st,
                                               struct pd_why *why);
/* Metadata of a checkpoint whose optimiser searches along lines: search_loss and search_params of its run. */
#define TRAIN_SEARCH_LOSS "polyd.optim.loss"
#define TRAIN_SEARCH_PARAMS "polyd.optim.params"
/* Whether the checkpoint's state of such an optimiser is of this run's loss, network and trained parameters.
 * PD_ERR_INVALID names #/train/start/optimizer. */
PD_NODISCARD enum pd_err train_digest_search(const struct train_setup *s, const struct data_st *st,
                                             struct pd_why *why);

/* plan.c: sets keep_activations by train.recompute. `auto` on a GPU: true if the forecast without recomputation is at most
 * TRAIN_KEEP_PERCENT of memory_bytes; false on a CPU, whose memory other runs share, and if memory_bytes is unknown (0). */
#define TRAIN_KEEP_PERCENT 85 /* the rest: driver, cuBLASLt, fragmentation */
PD_NODISCARD enum pd_err train_recompute_choose(struct train_setup *s, const struct job_config *c,
                                                const struct pk_backend_api *api, int64_t memory_bytes,
                                                struct pd_why *why);

/* Initial outcome of a run or evaluation: failed, without a step or values. */
void train_outcome_init(struct train_outcome *ret);

/* Finds the functions of the document's back end. PD_ERR_UNSUPPORTED or another error: this machine does not have it.
 * `plan`: for a forecast, which needs no driver. */
PD_NODISCARD enum pd_err train_backend(const struct job_config *config, bool plan,
                                       const struct pk_backend_api **ret, struct pd_why *why);
/* Whether a job computes in bf16 on the CPU; if so, writes a sentence of at most `cap` bytes about the implementation used
 * and the reason. `b`: the opened back end, or NULL for a forecast. */
bool train_bf16_note(const struct job_config *config, const struct pk_backend *b, char *ret, size_t cap);

/* train_run with a given back end; for tests. */
PD_NODISCARD enum pd_err train_run_on(struct job_config *config, const struct train_dirs *dirs,
                                      const struct train_host *host, const struct pk_backend_api *api,
                                      struct train_outcome *ret_outcome, struct pd_why *why);
