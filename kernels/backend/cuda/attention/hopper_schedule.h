/* kernels/backend/cuda/attention/hopper_schedule.h: in which order the blocks of attention's forward kernel on
 * sm 90 take their units, and how long each is. The kernel's loader and its computing warps call these
 * functions, and so does the test that bounds how unevenly the work is shared (tests/gpu/test_schedule.c).
 *
 * A unit is one pass (a tile of queries) of one (batch, head), or all passes of one where its keys fit into
 * shared memory. Units are numbered head after head, so that concurrent blocks read the keys of the same
 * heads from L2; within a head the last pass, which under a causal mask is the longest, comes first. Block i
 * begins with unit i; after that, each block takes the next unit as soon as it has a free buffer. */
#pragma once

#include <stdbool.h>

#ifdef __CUDACC__
#define HOPPER_SCHEDULE static __host__ __device__ __forceinline__
#else
#define HOPPER_SCHEDULE static inline
#endif

/* Number of the unit that a block takes next, if `taken` units were taken before, in addition to the first of each of
 * `blocks` blocks. No unit is left if the result is at least the number of units. */
HOPPER_SCHEDULE int hopper_unit_next(int blocks, int taken)
{
    return blocks + taken;
}

/* (batch, head) of unit u, counted head by head; and its pass, if units are passes. */
HOPPER_SCHEDULE int hopper_unit_head(int u, int passes, bool together)
{
    return together ? u : u / passes;
}
HOPPER_SCHEDULE int hopper_unit_pass(int u, int passes)
{
    return passes - 1 - u % passes;
}

/* Tiles of `width` keys that queries before `query_end` see. Causal: query i sees keys j <= i + nk - nq. */
HOPPER_SCHEDULE int hopper_unit_tiles(bool causal, int nq, int nk, int query_end, int width)
{
    const int last = query_end < nq ? query_end : nq;
    const int seen = causal ? last + nk - nq : nk;

    return ((seen < 0 ? 0 : seen < nk ? seen : nk) + width - 1) / width;
}
