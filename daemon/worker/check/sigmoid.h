/* daemon/worker/check/sigmoid.h: sums of sigmoid attention. Also called by the golden tests. */
#pragma once

#include <stdint.h>

/* ret (d) = sum over j < n of sigmoid(u . key_j + bias) value_j; keys and values (n, d), row-major. */
void check_sigmoid_sum(const double *u, const double *keys, const double *values, int64_t n, int64_t d,
                       double bias, double *ret);
