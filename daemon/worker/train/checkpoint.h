/* daemon/worker/train/checkpoint.h: a file with the state of a run at a step boundary.
 *
 * A safetensors file: the parameters under their names, the optimiser's states as `optim.m.<name>` and
 * `optim.v.<name>`, everything else (step, counts, best value, the network's shape) as metadata. The metadata
 * `polyd.sha256` is the digest of the whole file with its own 64 digits read as zeros, so a file can be
 * verified by itself. The order of samples and random numbers are functions of seed and step, so the step is
 * the only position stored. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/data/safetensors.h"
#include "kernels/base/err.h"

/* State that is saved in addition to tensors. */
struct train_state {
    int64_t step;    /* finished steps */
    int64_t applied; /* of those, how many changed the parameters: t of the bias corrections */
    int64_t
        applied_before;  /* steps of the run whose optimiser state this one loaded (train.start.optimizer) */
    int64_t nonfinite;   /* the others */
    int64_t consecutive; /* skipped ones at the end */
    bool eval_due;       /* the evaluation of this step was still to be made */
    double loss_train, loss_val, metric_val; /* last known; NaN if none */
    double best_value;
    int64_t best_step;   /* -1 = none */
    double stop_best;    /* the value that early stopping counts from; NaN = none */
    int64_t stop_waited; /* consecutive evaluations without improvement */
    double score;        /* value of the ranking metric measured at this step; NaN if none */
};

/* A tensor to save: its bytes are in st.data, or `get` copies them to host memory. */
struct train_tensor {
    struct data_st_tensor st;
    void *memory; /* the back end's; unused with st.data */
    bool whole;   /* counts in `memory`, as st describes them (F32 or F64): the file has them as I64 */
    bool fresh;   /* a state that train.start does not set: zero, whatever its file has */
};

struct train_file_info {
    uint64_t bytes;
    uint8_t sha256[32]; /* of the file */
};

/* Writes `path` atomically: temporary file in the same folder, fsync, rename, fsync of the directory. On
 * failure no temporary file is left and an existing `path` is untouched. PD_ERR_FULL: no space. */
PD_NODISCARD enum pd_err train_checkpoint_write(const char *path, const struct train_tensor *tensors,
                                                size_t count, const struct train_state *state,
                                                const struct data_st_meta_item *meta, size_t meta_count,
                                                enum pd_err (*get)(void *user, void *to, const void *memory,
                                                                   size_t bytes, struct pd_why *why),
                                                void *user, struct train_file_info *ret, struct pd_why *why);

/* Opens and checks: format, digest, state. PD_ERR_CORRUPT names what is wrong. The caller owns *ret. */
PD_NODISCARD enum pd_err train_checkpoint_open(const char *path, struct data_st **ret,
                                               struct train_state *ret_state, struct pd_why *why);

/* "step-000000001500.safetensors"; NULL-terminated into out. */
#define TRAIN_CHECKPOINT_NAME_SIZE 48
const char *train_checkpoint_name(char out[TRAIN_CHECKPOINT_NAME_SIZE], int64_t step);
/* The step of such a name, or -1. */
int64_t train_checkpoint_step(const char *name);
