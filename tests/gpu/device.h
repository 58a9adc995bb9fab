/* tests/gpu/device.h: the CUDA back end that tests run on: the emulation, or with POLYD_TEST_GPU=1 the real
 * one. */
#pragma once

#include "kernels/backend/backend.h"

/* Opened once for the program; fails the test if it cannot. */
const struct pk_backend_api *gpu_api(void);
struct pk_backend *gpu_device(void);
int gpu_close(void **state); /* a cmocka group teardown */
bool gpu_is_emulated(void);
/* Ops that cases were left out for; named when the program ends. */
void gpu_note_missing(enum pk_op op);
void gpu_report_missing(void);
