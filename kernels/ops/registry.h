/* kernels/ops/registry.h: one rule an op, each in its own file. */
#pragma once

#include "kernels/ops/rule.h"

extern const struct pk_rule pk_rule_reshape, pk_rule_permute, pk_rule_slice, pk_rule_broadcast;
extern const struct pk_rule pk_rule_copy, pk_rule_fill, pk_rule_concat, pk_rule_pad, pk_rule_gather;
extern const struct pk_rule pk_rule_scatter_add, pk_rule_one_hot, pk_rule_expr, pk_rule_sum, pk_rule_max;
extern const struct pk_rule pk_rule_sumsq, pk_rule_matmul, pk_rule_norm, pk_rule_norm_bwd;
extern const struct pk_rule pk_rule_softmax, pk_rule_softmax_bwd, pk_rule_cross_entropy;
extern const struct pk_rule pk_rule_cross_entropy_bwd, pk_rule_cross_entropy_grad, pk_rule_attention,
    pk_rule_attention_bwd;
extern const struct pk_rule pk_rule_attention_jvp, pk_rule_attention_bwd2;
extern const struct pk_rule pk_rule_attention_stats, pk_rule_cache_append, pk_rule_adamw, pk_rule_msgdw;
extern const struct pk_rule pk_rule_dropout, pk_rule_attention_state, pk_rule_accumulate;
extern const struct pk_rule pk_rule_all_reduce, pk_rule_broadcast_ranks;
