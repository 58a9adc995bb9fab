/* kernels/backend/cuda/optim.h: optimiser calls that one launch does together. */
#pragma once

#include "kernels/backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ADAMW, MSGDW, ACCUMULATE and BLEND: what one launch does together. */
bool cuda_optim_is(enum pk_op op);

/* How many of the first `count` calls one launch can do: calls of one such op in a row, on tensors that have
 * nothing to do with each other. 0 if the first is none of them. */
size_t cuda_optim_together(const struct pk_call *calls, size_t count);

/* Enqueues `count` calls, at most what cuda_optim_together said, as one launch. The numbers are those of the
 * calls one by one. */
enum pd_err cuda_optim_run(struct pk_backend *b, const struct pk_call *calls, size_t count,
                           struct pd_why *why);

#ifdef __cplusplus
}
#endif
