/* kernels/graph/op/registry.h: declares the rule of each op; one file per op. */
#pragma once

#include "kernels/graph/op/rule.h"

#define PK_OP(OP, name) extern const struct pk_rule pk_rule_##name;
#include "kernels/graph/op/ops.def"
#undef PK_OP
