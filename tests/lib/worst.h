/* tests/lib/worst.h: the largest of several errors. */
#pragma once

#include <math.h>

/* The larger of the two. A NaN is worse than every number and stays, where fmax() would drop it. Compare the
 * result by !(worst <= limit) or assert_true(worst <= limit): both fail for a NaN. */
static inline double worse(double worst, double error)
{
    return isnan(worst) || error <= worst ? worst : error;
}
