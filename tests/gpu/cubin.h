/* tests/gpu/cubin.h: what a cubin says of its kernels, read from the ELF file itself, so that no tool of CUDA is needed. */
#pragma once

#include <stddef.h>

struct cubin_kernel {
    char name[64];
    int registers; /* of a thread */
    int stack_bytes; /* of a thread, in local memory: registers that are spilled, and arrays that are indexed at run time */
};

/* The kernels of a cubin, by name; returns their number, at most `most`. -1: this is no cubin, or it has no resources
 * listed. */
int cubin_kernels(const void *image, size_t bytes, struct cubin_kernel *ret, int most);
