/* kernels/graph/op/attention.h: types in mixed precision and cost of ATTENTION, its derivatives and its statistics,
 * for the rules (rule.h). Private to this folder. */
#pragma once

#include "kernels/graph/op/rule.h"

enum pk_want pk_attention_want(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_want pk_attention_want_bwd(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_want pk_attention_want_stats(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_makes pk_attention_makes(const struct pk_attr *attr, int32_t n_out, int32_t k);
enum pk_makes pk_attention_makes_bwd(const struct pk_attr *attr, int32_t n_out, int32_t k);

void pk_attention_cost(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_bwd(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_stats(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_jvp(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_bwd2(const struct pk_call *c, struct pk_cost *ret);
