/* daemon/worker/train/optim/optim.h: an optimiser is one file here, one word of OPTIMS, and its row and
 * fields in daemon/job. */
#pragma once

#include "daemon/worker/model/model.h"

struct optim {
    struct model_optimiser graph;
    const char *saved[MODEL_STATES_MAX]; /* of its states in checkpoints: "optim.m." */
    int number;                          /* in the digest of runs of before 2026-11 */
    /* It takes all parameters for one vector and searches along lines: a step is line_step (line.h), its graphs are those
     * of model_graph_line, and `update` and `hyper` are NULL. */
    bool searches;
    /* The numbers of a step at the rate `lr` as its ops read them (`hyper` in kernels/graph/op/op.h), with beta1 of the options.
     * applied: steps taken so far, skipped ones not counted. */
    void (*hyper)(const struct model_train_options *o, int64_t applied, double lr, double ret[4]);
};

#define OPTIMS(X) X(adamw) X(msgdw) X(msgd_l2) X(lbfgs)
#define OPTIM_EXTERN(name) extern const struct optim optim_##name;
OPTIMS(OPTIM_EXTERN)
#undef OPTIM_EXTERN

/* NULL: there is none of that name. */
const struct optim *optim_find(const char *name);
/* Bytes of the states of parameters that take so many. */
size_t optim_state_bytes(const struct optim *o, size_t param_bytes);
