/* tests/golden/bf16.h: the vectors in bf16 (GOLDEN_MATH=bf16), which carries eight bits where the references
 * carry fifty. Two ways to compare, with all their tolerances in the table of bf16.c:
 *
 * - attention op by op: q, k, v and dy are rounded to bf16, attention of the CPU in f64 of these very numbers
 *   is the reference (the f64 run of the same program holds it against the vector), and an element may be off
 *   by a share of what was added up for it: for y that is sum_j |A_ij| |v_j| (engine.md 10), for the
 *   gradients the sums of their own terms;
 * - whole graphs, planned in mixed precision: against the vector itself, relative to its largest element. */
#pragma once

#include <stdbool.h>

#include "tests/golden/golden.h"

/* Numbers held to a share of what was added up for them, learned scales' gradients, are held in bf16 to this
 * many times the share: one rounding (2^-8) where f32 has 2e-5. */
#define GOLD_BF16_SUMS 200

/* Whether GOLDEN_MATH says bf16. */
bool gold_bf16(void);
/* The tolerance of a tensor of this name in a graph of this case, as gold_compare takes it; 0 if the table
 * has none: what is exact in every precision keeps its own. */
double gold_bf16_rtol(const struct gold *g, const char *label);
/* Forward and backward of the case in bf16, apart and packed, in quadratic and, where it exists, linear
 * order. */
void gold_attention_bf16(struct gold *g, const struct pk_attr *attr);
