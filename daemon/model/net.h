/* daemon/model/net.h: private to this room: what a model is made of. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "daemon/model/model.h"

struct model {
    struct model_spec spec;
    struct model_param *param;
    size_t count, size;
};

/* Patches of an image. */
int64_t model_patches(const struct model_spec *s);
/* Last part of a learned scale's name. */
const char *model_scale_name(const struct model_spec *s);

/* ---- the optimiser part of a training graph ---- */

struct model_optim_item {
    const char *name;
    struct pk_val param, grad;
    bool decay;
    double lr_mult;
};

/* Emits clipping and one update per item, with the inputs, states and outputs that model_graph_train names.
 * loss PK_NONE: the gate looks at the gradient alone. */
void model_emit_optimiser(struct pk_graph *g, const struct model_train_options *o, struct pk_val loss,
                          const struct model_optim_item *item, size_t count);
