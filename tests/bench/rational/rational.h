/* tests/bench/rational/rational.h: attention of s^3 / (1 + |s|) written by hand in C, to compare the interpreter of formulas
 * with: the kernels of attention.c and attention_bwd.c with one row of phi.h replaced, compiled for one level of
 * instructions. Call with the back end and calls of ATTENTION and ATTENTION_BWD, activation sigmoid. */
#pragma once

#include "kernels/backend/backend.h"

/* Whether this processor has the instructions that the kernels were compiled for. */
bool rational_runs(void);
size_t rational_workspace(const struct pk_backend *b, const struct pk_call *c);
enum pd_err rational_forward(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
enum pd_err rational_backward(struct pk_backend *b, const struct pk_call *c, struct pd_why *why);
