/* kernels/backend/cuda/attention/hopper_formula.h: FORMULA and FORMULA_BWD on sm 90, for formula.cu: of calls of which
 * cuda_formula_hopper_supports is true (attention.h). */
#pragma once

#include "kernels/backend/cuda/attention/attention.h"

struct form_use;

/* Sets the part and the tiles. */
void hopper_formula_program(const struct pk_call *c, struct cuda_program *ret);
/* FORMULA_BWD: at the beginning of the workspace, a multiple of 256 bytes. */
size_t hopper_formula_workspace(const struct pk_backend *b, const struct pk_call *c);
enum pd_err hopper_formula_run(struct pk_backend *b, const struct pk_call *c, const struct cuda_program *p,
                               const struct form_use *u, struct pd_why *why);
