/* kernels/graph/op/attention.h: types in mixed precision and cost of ATTENTION, its derivatives and its statistics,
 * for the rules (rule.h). Private to this folder. */
#pragma once

#include "kernels/graph/op/rule.h"

enum pk_want pk_attention_want(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_want pk_attention_want_bwd(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_want pk_attention_want_stats(const struct pk_attr *attr, int32_t n_in, int32_t k);
enum pk_makes pk_attention_makes(const struct pk_attr *attr, int32_t n_out, int32_t k);
enum pk_makes pk_attention_makes_bwd(const struct pk_attr *attr, int32_t n_out, int32_t k);

/* Number of inputs with a derivative: q, k, v (packed: qkv), then scale (of a formula: scalars) and bias. */
static inline int32_t pk_attention_wrt(const struct pk_attention_attr *a)
{
    return (a->packed ? 1 : 3) + a->has_scale + a->has_bias;
}
/* Number of inputs of ATTENTION and of FORMULA. */
static inline int32_t pk_attention_ins(const struct pk_attention_attr *a)
{
    return pk_attention_wrt(a) + a->has_mask + a->has_length + a->has_rng;
}
/* The vjp of ATTENTION_BWD, or of FORMULA_BWD (formula): the derivative of the decomposed form, which equals that node, is
 * differentiated; y and the row statistics are functions of the other inputs. */
void pk_attention_vjp_bwd_decomposed(struct pk_vjp *v, bool formula);

void pk_attention_cost(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_bwd(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_stats(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_jvp(const struct pk_call *c, struct pk_cost *ret);
void pk_attention_cost_bwd2(const struct pk_call *c, struct pk_cost *ret);
