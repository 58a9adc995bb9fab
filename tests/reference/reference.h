/* tests/reference/reference.h: a back end of plain loops, to compare others with.
 *
 * Every op straight from its formula (op.h, kernels/ATTENTION.md), element by element, all arithmetic in
 * double whatever the dtype of the tensors: in f64 it is the definition, in f32 the correctly rounded answer.
 * It shares no code with kernels/. Slow. */
#pragma once

#include "kernels/backend/backend.h"

const struct pk_backend_api *reference_backend(void);
