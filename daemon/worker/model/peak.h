/* daemon/worker/model/peak.h: the measured peak rate of matrix products on a device, the denominator of utilisation. */
#pragma once

#include "kernels/backend/backend.h"
#include "kernels/base/err.h"

struct model_peak {
    double flops;  /* FLOP/s, a multiply-add counted as two; 0: unknown (no GPU) */
    int64_t n;     /* size of the product timed: n x n x n, bf16 with f32 accumulation */
    bool recalled; /* read from a record of an earlier worker on the same device, driver and library */
};

/* Reads the peak from the host's records; otherwise measures it and passes a record to the host. A measurement takes a few
 * dozen milliseconds on a GPU. The device is open and idle. A slow device (an emulated one) and one with little memory
 * are measured with smaller matrices; a CPU is not measured (flops 0). */
PD_NODISCARD enum pd_err model_peak_measure(const struct pk_backend_api *api, struct pk_backend *backend,
                                            const struct pk_host *host, struct model_peak *ret,
                                            struct pd_why *why);
