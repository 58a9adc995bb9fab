/* api/gzip.h: gzip compression of replies. No locks, no state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shorter replies are not compressed: they fit one packet in any case. */
#define API_GZIP_LEAST 1400

/* Whether the header Accept-Encoding (may be NULL) allows gzip. */
bool api_gzip_accepted(const char *encodings);

/* The compressed bytes; the caller frees them. NULL if out of memory or not smaller: send the bytes
 * uncompressed. */
char *api_gzip(const void *bytes, size_t len, size_t *ret_len);
