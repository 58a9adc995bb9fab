/* daemon/worker/data/philox.h: the random numbers used outside of graphs. The generator is kernels/base/philox.h.
 *
 * Each number is a function of (seed, stream, epoch, index), never of the order of calls. */
#pragma once

#include "kernels/base/philox.h"

/* The last word of the counter, so that two uses never share numbers. Values from 0x80000000 on belong to graphs
 * (PK_OP_DROPOUT). */
enum data_stream {
    DATA_STREAM_SHUFFLE = 1,
    DATA_STREAM_AUGMENT,
    DATA_STREAM_WINDOW,
    DATA_STREAM_SPLIT,
    DATA_STREAM_DIGIT,
    DATA_STREAM_INIT,
    DATA_STREAM_SENTENCE,
    DATA_STREAM_MIX, /* of a group of pictures; index: the position of its first picture */
    DATA_STREAM_SEQUENCE
};

/* Draws four words for position `index` of epoch `epoch` (below 2^32) in a stream. */
static inline void data_random(uint64_t seed, enum data_stream stream, uint64_t epoch, uint64_t index,
                               uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)epoch, (uint32_t)stream};

    pd_philox(seed, counter, out);
}

/* Maps one word to 0 .. bound-1 uniformly (bias below bound / 2^32). */
static inline uint32_t data_bounded(uint32_t word, uint32_t bound)
{
    return (uint32_t)((uint64_t)word * bound >> 32);
}

/* Maps one word to [0, 1) uniformly, in steps of 2^-32. */
static inline double data_unit(uint32_t word)
{
    return word * 0x1p-32;
}
