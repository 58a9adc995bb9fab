/* daemon/data/philox.h: Philox 4x32-10, a counter-based random generator (Salmon et al. 2011).
 *
 * Four random words from a key and a counter, with no state between calls: what is drawn depends on what is
 * asked alone, never on the order of asking. */
#pragma once

#include <stdint.h>

/* What a counter is for: the last word, so that two uses never share numbers. */
enum data_stream {
    DATA_STREAM_SHUFFLE = 1,
    DATA_STREAM_AUGMENT,
    DATA_STREAM_WINDOW,
    DATA_STREAM_SPLIT,
    DATA_STREAM_DIGIT,
    DATA_STREAM_INIT
};

static inline void data_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Words for position `index` of epoch `epoch` (below 2^32) in a stream. */
static inline void data_random(uint64_t seed, enum data_stream stream, uint64_t epoch, uint64_t index,
                               uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)epoch, (uint32_t)stream};

    data_philox(seed, counter, out);
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
