/* daemon/worker/check/net.h: a small vision transformer (daemon/worker/model) on generated digits, for statements about
 * whole networks. */
#pragma once

#include "daemon/worker/check/engine.h"

struct check_net {
    struct model *model;
    struct check_engine en; /* a graph of model.h, with its parameters as leaves */
    int32_t batch;
};

/* The spec of a network for 28 x 28 grey digits in ten classes with patches of `patch` x `patch` pixels. S1 has LayerNorm,
 * S2 to S5 have RMSNorm and QKNorm. */
struct model_spec check_net_spec(enum model_placement placement, int32_t width, int32_t depth, int32_t patch,
                                 enum pk_dtype dtype);

/* Opens a training step with the named optimiser and weight decay 0; NULL: a graph of gradients (outputs "grad/<param>").
 * Parameters are zero. False: the check has failed, nothing is open. */
bool check_net_train(struct check *c, struct check_net *net, const struct model_spec *spec,
                     const char *optimiser, int32_t batch);
/* Opens the forward pass: output "logits". */
bool check_net_forward(struct check *c, struct check_net *net, const struct model_spec *spec, int32_t batch);
void check_net_close(struct check_net *net);

/* Initialises the parameters with the check's current seed. */
void check_net_init(struct check *c, struct check_net *net);
/* Copies the parameters of `from` with equal names and sizes. */
void check_net_copy(struct check *c, struct check_net *net, struct check_net *from);
/* The memory of parameter i; NULL after an error, or if the graph does not use it. */
void *check_net_param(struct check *c, struct check_net *net, size_t i, size_t *ret_count);
/* Writes the digits first .. first + batch - 1 of the current seed to "input" and, if the graph has it, "target". */
void check_net_digits(struct check *c, struct check_net *net, int64_t first);
/* Takes `steps` training steps at learning rate `lr` on digits from 0 on. Progress goes from `share` to share + part. False:
 * the check was cancelled or has failed. */
bool check_net_steps(struct check *c, struct check_net *net, const char *optimiser, int64_t steps, double lr,
                     double share, double part);
