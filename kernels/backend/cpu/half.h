/* kernels/backend/cpu/half.h: the choice between the library's products of bf16 and the reference implementation. */
#pragma once

#include "kernels/backend/cpu/cpu.h"

/* choice: POLYD_CPU_BF16, or NULL. instructions: whether the processor has any for bf16. measure_speedup: the speed of products
 * of bf16 relative to f32, 0 if there are none; called only where the answer depends on it. Pure apart from that. */
void cpu_half_choose(const char *choice, bool instructions, double (*measure_speedup)(void),
                     struct cpu_half *ret);
