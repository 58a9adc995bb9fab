/* kernels/base/nearest.h: suggests the known name nearest to a misspelt one. */
#pragma once

#include <stddef.h>

/* Damerau-Levenshtein distance (optimal string alignment), cut off at 3: three means three or more. */
unsigned pd_distance(const char *a, const char *b);

/* The nearest of the names within distance 2, and less than either length, or NULL. The first wins a tie.
 * *ret_distance (may be NULL) gets its distance, 3 if there is none. Borrowed from `names`. */
const char *pd_nearest(const char *text, const char *const *names, size_t count, unsigned *ret_distance);

/* "; did you mean 'x'?" or "" in `out`. Returns `out`. */
const char *pd_did_you_mean(char *out, size_t size, const char *text, const char *const *names, size_t count);
