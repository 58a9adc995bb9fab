/* tests/golden/bf16.h: the vectors in bf16 (GOLDEN_MATH=bf16), which carries eight bits where the references
 * carry fifty. Two ways to compare; no tolerance is made of what an implementation gives:
 *
 * - attention op by op (bf16.c): q, k, v and dy are rounded to bf16, attention of the CPU in f64 of these
 *   very numbers is the reference (the f64 run of the same program holds it against the vector), and an
 *   element may be off by a share of what was added up for it: for y that is sum_j |A_ij| |v_j|
 *   (kernels/ENGINE.md 10), for the gradients the sums of their own terms;
 * - whole graphs, planned in mixed precision: against the vector itself, within GOLD_BF16_TIMES what an
 *   emulation of bf16 is off. Who made the vectors measured one and wrote it into each file; what is not
 *   there network.h measures again. */
#pragma once

#include <stdbool.h>

#include "tests/golden/golden.h"

/* What tests/golden/README.md 9 multiplies the error of its emulation by, to make loss_tol_bf16. */
#define GOLD_BF16_TIMES 4

/* GOLDEN_MATH: "", "bf16" or "tf32"; and whether it is bf16. */
const char *gold_math(void);
bool gold_bf16(void);
/* The relative tolerance of a tensor: in f32 `rtol`, in bf16 what the file has measured of it (of `part`,
 * where it has several) times GOLD_BF16_TIMES. Fails a case that has not. */
double gold_band(struct gold *g, const char *part, double rtol);
/* Of a learned scale's gradient in blocks and models, relative to what was added up for it. */
double gold_scale_band(const struct gold *g);
/* Forward and backward of the case in bf16, apart and packed, in quadratic and, where it exists, linear
 * order. */
void gold_attention_bf16(struct gold *g, const struct pk_attr *attr);
