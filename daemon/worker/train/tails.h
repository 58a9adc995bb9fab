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
    int64_t below, above;   /* beyond the edges */
    double bin[TAILS_BINS]; /* bin i: 10^(TAILS_LOW + i / TAILS_DECADE) <= |g| < the next edge */
    double rms;             /* root of the mean square */
    double kurtosis;        /* fourth central moment over the square of the second; 3 for a normal */
    double hill;  /* Hill's tail index of the largest 1 %: the reciprocal of the mean of log(|g| / the
                                  largest |g| that is not among them). Small: a heavy tail */
    double ratio; /* the 99.9 % quantile of |g| over its median */
    double share; /* of the sum of squares, what the largest 1 % have */
};

/* Of g[0 .. count - 1], count >= 1; the order of g changes. The largest 1 % are count / 100, at least one. A quantile q
 * is the value with ceil(q count) values up to it, itself included. Where a statistic has no value (all are equal, or
 * 0) it is NaN. */
void tails_of(double *g, int64_t count, struct tails *ret);
