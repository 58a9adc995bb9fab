/* daemon/worker/data/philox.h: which random numbers are drawn outside the graph. The generator itself
 * is in kernels/base.
 *
 * What is drawn depends on what is asked alone, never on the order of asking. */
#pragma once

#include "kernels/base/philox.h"

/* What a counter is for: the last word, so that two uses never share numbers. Those from
 * 0x80000000 on belong to the graph (PK_OP_DROPOUT). */
enum data_stream {
    DATA_STREAM_SHUFFLE = 1,
    DATA_STREAM_AUGMENT,
    DATA_STREAM_WINDOW,
    DATA_STREAM_SPLIT,
    DATA_STREAM_DIGIT,
    DATA_STREAM_INIT,
    DATA_STREAM_SENTENCE,
    DATA_STREAM_MIX, /* of a group of pictures, by the place of its first */
    DATA_STREAM_SEQUENCE
};

/* Words for position `index` of epoch `epoch` (below 2^32) in a stream. */
static inline void data_random(uint64_t seed, enum data_stream stream, uint64_t epoch, uint64_t index,
                               uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)epoch, (uint32_t)stream};

    pd_philox(seed, counter, out);
}

/* Uniform in 0 .. bound-1 from one word (bias below bound / 2^32). */
static inline uint32_t data_bounded(uint32_t word, uint32_t bound)
{
    return (uint32_t)((uint64_t)word * bound >> 32);
}

/* Uniform in [0, 1), 2^-32 apart. */
static inline double data_unit(uint32_t word)
{
    return word * 0x1p-32;
}
