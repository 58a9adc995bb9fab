/* tests/golden/models.h: what the modules for whole networks share. */
#pragma once

#include "daemon/worker/model/model.h"
#include "tests/golden/network.h"
#include "tests/golden/rig.h"

/* The network that the config describes; false if it is none of ours. */
bool golden_model_spec(struct golden *c, struct model_spec *ret);
/* Every parameter from `prefix`.<name>; fails the case for missing and for unknown ones. */
void golden_put_params(struct golden *c, struct golden_rig *rig, const struct model *m, const char *prefix);
/* The same parameters in network.h's network; NULL for a config that it has no formulas for. */
struct network *golden_network(struct golden *c, const struct model *m, const char *prefix, int bits);
/* How far apart the gradients of two such are, of all parameters with `part` in their names as one vector, in
 * the 2-norm. */
double golden_gradient_distance(struct network *a, struct network *b, const char *part);
