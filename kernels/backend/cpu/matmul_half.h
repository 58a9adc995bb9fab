/* kernels/backend/cpu/matmul_half.h: entries of matmul_half.c for the copy being compiled (f32 only); see cpu.h. */
#pragma once

#include "kernels/backend/cpu/vec.h"

#if !CPU_F64
cpu_run_fn PK_FN(matmul_half);
cpu_workspace_fn PK_FN(matmul_half_workspace);
void PK_FN(from_half)(int64_t n, const uint16_t *x, float *y);
void PK_FN(to_half)(int64_t n, const float *x, uint16_t *y);
#endif
