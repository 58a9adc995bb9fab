/* daemon/worker/train/optim/optim.h: optimisers. Each is one file here, one entry of OPTIMS, and its row and fields in
 * daemon/job. */
#pragma once

#include "daemon/worker/model/model.h"

struct optim {
    struct model_optimiser graph;
    const char *saved[MODEL_STATES_MAX]; /* prefixes of its states in checkpoints: "optim.m." */
    int number;                          /* in trajectory digests before 2026-11 */
    /* It has a line search over all parameters as one vector: a step is line_step (line.h), its graphs are those of
     * model_graph_line, and `update` and `hyper` are NULL. */
    bool searches;
    /* The input `hyper` (kernels/graph/op/op.h) of a step at learning rate `lr`, with beta1 of the options. applied: number
     * of applied steps. */
    void (*hyper)(const struct model_train_options *o, int64_t applied, double lr, double ret[4]);
};

#define OPTIMS(X) X(adamw) X(msgdw) X(msgd_l2) X(lbfgs)
#define OPTIM_EXTERN(name) extern const struct optim optim_##name;
OPTIMS(OPTIM_EXTERN)
#undef OPTIM_EXTERN

/* The optimiser of that name; static. NULL: there is none. */
const struct optim *optim_find(const char *name);
/* Bytes of the states for parameters of `param_bytes` bytes. */
size_t optim_state_bytes(const struct optim *o, size_t param_bytes);
