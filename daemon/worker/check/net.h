/* daemon/worker/check/net.h: a small vision transformer of polyd's own module for networks (daemon/worker/model), on
 * digits that polyd draws: what statements about whole networks are tried on. */
#pragma once

#include "daemon/worker/check/engine.h"

struct check_net {
    struct model *model;
    struct check_engine en; /* a graph of model.h, with its parameters as leaves */
    int32_t batch;
};

/* Gray digits of 28 x 28 in ten classes, patches of `patch` pixels. S1 has LayerNorm, S2 to S5 RMSNorm and QKNorm. */
struct model_spec check_net_spec(enum model_placement placement, int32_t width, int32_t depth, int32_t patch,
                                 enum pk_dtype dtype);

/* The step of training with the optimiser of this name at weight decay 0; NULL: a graph of gradients (outputs
 * "grad/<param>"). Parameters are zero. False: the check has failed, nothing is open. */
bool check_net_train(struct check *c, struct check_net *net, const struct model_spec *spec,
                     const char *optimiser, int32_t batch);
/* The network alone: output "logits". */
bool check_net_forward(struct check *c, struct check_net *net, const struct model_spec *spec, int32_t batch);
void check_net_close(struct check_net *net);

/* Initial parameters as the module draws them; seed 0 is as good as any. */
void check_net_init(struct check *c, struct check_net *net);
/* Parameters of the same names and sizes take the values that they have in `from`. */
void check_net_copy(struct check *c, struct check_net *net, struct check_net *from);
/* Parameter i in its leaf; NULL after an error, or if the graph does not have it. */
void *check_net_param(struct check *c, struct check_net *net, size_t i, size_t *ret_count);
/* Puts the digits first .. first + batch - 1 of this seed into "input" and, if the graph has it, "target". */
void check_net_digits(struct check *c, struct check_net *net, int64_t first);
/* Training steps at the rate `lr`, with digits from 0 on; false: stopped, or an error. share, part: of check_go. */
bool check_net_steps(struct check *c, struct check_net *net, const char *optimiser, int64_t steps, double lr,
                     double share, double part);
