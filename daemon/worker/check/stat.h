/* daemon/worker/check/stat.h: means with standard errors, slopes, small dense products. */
#pragma once

#include <stdint.h>
#include <stddef.h>

#define CHECK_Z99 2.5758293035489004 /* half width of a 99 % interval, in standard errors */

/* Running mean and variance (Welford); zero-initialised by the caller. */
struct check_stat {
    int64_t n;
    double mean, m2;
};
void check_stat_add(struct check_stat *s, double value);
double check_stat_var(const struct check_stat *s); /* unbiased; 0 with one value */
double check_stat_se(const struct check_stat *s);  /* of the mean */
/* Square root of the mean of squares, and its standard error to first order. */
double check_stat_root(const struct check_stat *s);
double check_stat_root_se(const struct check_stat *s);

/* Least-squares slope of log y against log x. n >= 2, all positive. */
double check_log_slope(const double *x, const double *y, size_t n);

/* c (n, m) = a (n, k) b (k, m), row-major. */
void check_product(double *c, const double *a, const double *b, int64_t n, int64_t k, int64_t m);
/* b (m, n) = a (n, m) transposed. */
void check_transpose(double *b, const double *a, int64_t n, int64_t m);
double check_dot(const double *a, const double *b, int64_t n);
/* E f(g) for g from N(0, 1), by the trapezoidal rule on [-12, 12]. */
double check_gauss_mean(double (*f)(double g, const void *user), const void *user);
