/* tests/gpu/emu/block.h: runs the blocks of one launch, cluster after cluster. Not reentrant. */
#pragma once

#include <cuda_runtime.h>

#undef __noinline__ /* the library spells its attributes so */

#define PK_EMU_SHARED_MOST ((size_t)227 << 10) /* of one block, dynamic, after opting in */

#define PK_EMU_CLUSTER_MOST 8 /* blocks of a cluster, of 1024 threads together */

void pk_emu_run_kernel(const char *name, unsigned cluster, dim3 grid, dim3 block, size_t shared,
                       void (*run)(const void *args), const void *args);
