/* kernels/backend/cuda/optim.h: several optimiser calls in one launch. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the op is ADAMW, MSGDW, ACCUMULATE or BLEND. */
bool cuda_optim_is(enum pk_op op);

/* How many of the first `count` calls fit into one launch: consecutive calls of one such op on independent tensors.
 * 0 if the first is another op. */
size_t cuda_optim_together(const struct pk_call *calls, size_t count);

/* Enqueues `count` calls, at most the result of cuda_optim_together, as one launch. Results are bitwise those of
 * separate calls. */
enum pd_err cuda_optim_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pd_why *why);

#ifdef __cplusplus
}
#endif
