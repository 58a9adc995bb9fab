/* kernels/base/philox.h: Philox 4x32-10, a counter-based random generator (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", 2011).
 *
 * Four random words are a function of key and counter alone: there is no state, so the order of calls does not
 * matter. */
#pragma once

#include <stdint.h>

#define PD_PHILOX_M0 0xD2511F53u
#define PD_PHILOX_M1 0xCD9E8D57u
#define PD_PHILOX_W0 0x9E3779B9u /* added to the key from round to round */
#define PD_PHILOX_W1 0xBB67AE85u
#define PD_PHILOX_ROUNDS 10

static inline void pd_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < PD_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PD_PHILOX_M0 * c0, p1 = (uint64_t)PD_PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PD_PHILOX_W0;
        k1 += PD_PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
