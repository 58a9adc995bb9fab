/* api/range.h: the Range header of RFC 9110 section 14, as a plain function of text. */
#pragma once

#include <stdint.h>

enum api_range {
    API_RANGE_WHOLE, /* absent, of another unit, malformed, or of several ranges: it is ignored */
    API_RANGE_PART,
    API_RANGE_OUTSIDE /* well formed, and no byte of it exists: 416 */
};

/* The bytes that `header` (NULL: absent) asks of a file of `size` bytes. first and count are written only for
 * API_RANGE_PART. */
enum api_range api_range_parse(const char *header, uint64_t size, uint64_t *ret_first, uint64_t *ret_count);
