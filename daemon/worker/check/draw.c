/* Uniform and normal numbers by counter. */
#include "daemon/worker/check/draw.h"

#include <math.h>

#include "kernels/base/philox.h"

#define DOMAIN UINT64_C(0x636865636b000000) /* apart from the draws of training with the same seed */

struct check_draws check_draws(uint64_t seed, uint32_t stream, uint32_t index)
{
    return (struct check_draws){.key = seed ^ DOMAIN, .stream = stream, .index = index};
}

void check_uniform2(struct check_draws *d, double ret[2])
{
    const uint32_t counter[4] = {(uint32_t)d->at, (uint32_t)(d->at >> 32), d->stream, d->index};
    uint32_t w[4];

    d->at++;
    pd_philox(d->key, counter, w);
    for (int i = 0; i < 2; i++) {
        uint64_t bits = (uint64_t)w[2 * i + 1] << 32 | w[2 * i];

        ret[i] = ((double)(bits >> 11) + 0.5) / 9007199254740992.0;
    }
}

void check_normals(struct check_draws *d, double sigma, double *ret, size_t n)
{
    double u[2];

    for (size_t i = 0; i < n; i += 2) {
        double r, phase;

        check_uniform2(d, u);
        r = sigma * sqrt(-2 * log(u[0]));
        phase = 6.283185307179586476925 * u[1];
        ret[i] = r * cos(phase);
        if (i + 1 < n)
            ret[i + 1] = r * sin(phase);
    }
}
