/* daemon/train/setup.h: private to this room: what both the plan and the run derive from the document. */
#pragma once

#include "daemon/data/data.h"
#include "daemon/model/model.h"
#include "daemon/spec/spec.h"
#include "daemon/train/schedule.h"
#include "daemon/train/train.h"

#define TRAIN_DIGEST_SIZE 65

struct train_setup {
    struct data_set *set;
    const struct data_info *info;
    struct model *model;
    struct model_train_options options;
    struct train_schedule schedule;
    int64_t steps, eval_every, steps_per_epoch;
    int64_t parts;                /* of a step; options.batch is one part, batch all of them */
    int32_t batch;                /* of a step, of all ranks */
    int32_t eval_batch;           /* of one rank */
    int32_t probe_batch, context; /* context 0 for images */
    int rank, ranks;
    int loader_threads;
    bool classifier;
    bool judge_averages;            /* they tell which checkpoint is best */
    const char *best_metric;        /* static: "acc/val", "loss/val", or the same of the averages */
    char digest[TRAIN_DIGEST_SIZE]; /* of all that decides the course of the run */
};

/* Opens the data and makes the model; refuses what this build cannot do. `rank`: of
 * /resources/slots. The caller owns the storage and
 * calls train_setup_done whatever the result. */
PD_NODISCARD enum pd_err train_setup_init(struct train_setup *s, struct spec_config *config,
                                          const struct data_root *roots, size_t root_count, const char *cache,
                                          int rank, bool headers_only, struct pd_why *why);
/* The same batch in so many parts, which divide each rank's share; the digest is not made anew. */
void train_setup_divide(struct train_setup *s, int64_t parts);
void train_setup_done(struct train_setup *s);

/* The back end that the document names. PD_ERR_UNSUPPORTED and the like with a sentence where it cannot be
 * had on this machine. `plan`: for a forecast, which needs no driver. */
PD_NODISCARD enum pd_err train_backend(const struct spec_config *config, bool plan,
                                       const struct pk_backend_api **ret, struct pd_why *why);

/* train_run with a given back end: what tests use. */
PD_NODISCARD enum pd_err train_run_on(struct spec_config *config, const struct train_dirs *dirs,
                                      const struct train_host *host, const struct pk_backend_api *api,
                                      struct train_outcome *ret_outcome, struct pd_why *why);
