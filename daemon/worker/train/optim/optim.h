/* daemon/worker/train/optim/optim.h: an optimiser is one file here, one word of OPTIMS, and its row and
 * fields in daemon/job. */
#pragma once

#include "daemon/worker/model/model.h"

/* What an optimiser may ask of a run within one step: loss, gradient and update of the batch at hand, with
 * the numbers `hyper` as the ops read them (kernels/graph/op/op.h). One that searches along a line asks more
 * than once. */
struct optim_closure {
    void *user;
    enum pd_err (*evaluate)(void *user, const double hyper[4], struct pd_why *why);
};

struct optim {
    struct model_optimiser graph;
    const char *saved[MODEL_STATES_MAX]; /* of its states in checkpoints: "optim.m." */
    int number;                          /* in the digest of runs of before 2026-11 */
    /* It takes all parameters for one vector and searches along lines: a step is line_step (line.h), its graphs are those
     * of model_graph_line, and `update` and `step` are NULL. */
    bool searches;
    /* One step at the rate `lr`, with beta1 of the options. applied: steps taken so far, skipped ones not counted. */
    enum pd_err (*step)(const struct optim_closure *c, const struct model_train_options *o, int64_t applied,
                        double lr, struct pd_why *why);
};

#define OPTIMS(X) X(adamw) X(msgdw) X(msgd_l2) X(lbfgs)
#define OPTIM_EXTERN(name) extern const struct optim optim_##name;
OPTIMS(OPTIM_EXTERN)
#undef OPTIM_EXTERN

/* NULL: there is none of that name. */
const struct optim *optim_find(const char *name);
/* Bytes of the states of parameters that take so many. */
size_t optim_state_bytes(const struct optim *o, size_t param_bytes);
