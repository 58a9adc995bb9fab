/* daemon/worker/check/draw.h: random numbers of checks, by Philox (kernels/base/philox.h). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A stream of random numbers, determined by seed, stream and index. */
struct check_draws {
    uint64_t key;
    uint32_t stream, index; /* the quantity drawn; the number of its instance */
    uint64_t at;            /* blocks of four words drawn so far */
};

struct check_draws check_draws(uint64_t seed, uint32_t stream, uint32_t index);
/* Two uniform numbers in (0, 1) with 53 random bits each. */
void check_uniform2(struct check_draws *d, double ret[2]);
/* n independent numbers from N(0, sigma^2), by Box and Muller. */
void check_normals(struct check_draws *d, double sigma, double *ret, size_t n);
