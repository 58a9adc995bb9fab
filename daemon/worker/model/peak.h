/* daemon/worker/model/peak.h: how fast a device multiplies, measured: what utilisation is a share of. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"

struct model_peak {
    double flops;  /* per second, a multiplication and an addition being two; 0: not known (no GPU) */
    int64_t n;     /* of what was timed: square matrices of bf16, n x n x n, f32 sums */
    bool recalled; /* by a record of an earlier worker on the same device, driver and library */
};

/* Asks the host's records, else measures - a few dozen milliseconds on a GPU; a device that is too slow for
 * large matrices, as an emulated one is, is judged by small ones - and hands the host a record. The device is
 * open and nothing runs on it. A CPU is not measured: flops 0. Memory that does not suffice makes the
 * matrices smaller. */
PD_NODISCARD enum pd_err model_peak_measure(const struct pk_backend_api *api, struct pk_backend *backend,
                                            const struct pk_host *host, struct model_peak *ret,
                                            struct pd_why *why);
