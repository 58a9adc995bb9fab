/* api/gzip.h: answers in gzip's form, for clients that take it. Nothing in here locks or keeps anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shorter answers are sent as they are: they fit one packet either way. */
#define API_GZIP_LEAST 1400

/* Does the header Accept-Encoding (may be NULL) allow gzip? */
bool api_gzip_accepted(const char *encodings);

/* The bytes compressed; the caller frees them. NULL if there is no memory or nothing is gained: send the
 * plain ones. */
char *api_gzip(const void *bytes, size_t len, size_t *ret_len);
