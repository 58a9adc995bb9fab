/* tests/golden/attention.h: pieces of the attention cases that norms (QKNorm) uses too. */
#pragma once

#include <math.h>

#include "tests/golden/golden.h"

/* The op's attributes from the config; false (and a failed case) for an unknown activation. */
bool gold_attention_attr(struct gold *g, struct pk_attr *ret);
/* Tolerance in f32 of outputs, or of dq and dk. */
double gold_attention_rtol(const struct gold *g, const struct pk_attention_attr *a, bool gradient);
/* Largest |value| of a tensor; 0 if it is absent. */
double gold_yardstick(struct gold *g, const char *tensor);
struct pk_view gold_swap_heads(const struct pk_view *v);
struct pk_view gold_dense(struct gold *g, const struct pk_view *v);
void gold_compare_best(struct gold *g, const char *label, const struct pk_view *got, const char *want,
                       double rtol, double yardstick);
