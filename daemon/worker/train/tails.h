/* daemon/worker/train/tails.h: private to this module: the distribution of the absolute values of a gradient:
 * counts in log-spaced bins, and statistics of its tail that a common factor does not change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TAILS_DECADE 10 /* bins of a decade */
#define TAILS_LOW (-16) /* decimal logarithm of the first edge */
#define TAILS_HIGH 4    /* and of the last */
#define TAILS_BINS ((TAILS_HIGH - TAILS_LOW) * TAILS_DECADE)

struct tails {
    int64_t count;
    int64_t zeros;          /* exactly 0, in no bin */
    int64_t below, above;   /* beyond the edges; above: infinite and NaN too */
    double bin[TAILS_BINS]; /* bin i: 10^(TAILS_LOW + i / TAILS_DECADE) <= |g| < the next edge */
    double rms;             /* root of the mean square */
    double kurtosis;        /* fourth central moment over the square of the second; 3 for a normal */
    double
        hill; /* Hill's tail index of the largest 1 %: 1 / mean of log(|g| / the largest |g| below them). Small
                     values: a heavy tail */
    double ratio; /* the 99.9 % quantile of |g| over its median */
    double share; /* share of the largest 1 % in the sum of squares */
};

/* Computes the statistics of g[0 .. count - 1], count >= 1; reorders g. The largest 1 % are the largest count / 100
 * elements, at least one. The quantile q is the ceil(q count)-th smallest value. An undefined statistic (all values equal,
 * or 0) is NaN; if an element is not finite, all are but rms, which may be infinite. */
void tails_of(double *g, int64_t count, struct tails *ret);
