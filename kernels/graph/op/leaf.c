/* Leaves: memory bound from outside. They have no inputs and no shape rule; pk_input, pk_param and pk_state
 * make them. */
#include "kernels/graph/op/registry.h"

const struct pk_rule pk_rule_input = {.name = "input", .leaf = true, .fed = true};
const struct pk_rule pk_rule_param = {.name = "param", .leaf = true, .trained = true};
const struct pk_rule pk_rule_state = {.name = "state", .leaf = true};
