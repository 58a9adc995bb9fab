/* tests/gpu/bridge.h: the CUDA back end for tests that keep their tensors in host memory. Memory of this back
 * end is the host's; every call's tensors travel to the device, and back after it has run. Calls in f64,
 * which only the CPU has, go to the CPU back end; both are counted. */
#pragma once

#include "kernels/backend/backend.h"

const struct pk_backend_api *gpu_bridge(void);
void gpu_bridge_counts(size_t *ret_device, size_t *ret_cpu);
