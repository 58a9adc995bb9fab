/* tests/gpu/emu/block.h: runs the blocks of one launch, one after the other. Not reentrant. */
#pragma once

#include <cuda_runtime.h>

#undef __noinline__ /* the library spells its attributes so */

#define PK_EMU_SHARED_MOST ((size_t)227 << 10) /* of one block, dynamic, after opting in */

void pk_emu_run_kernel(const char *name, dim3 grid, dim3 block, size_t shared, void (*run)(const void *args),
                       const void *args);
