/* api/range.h: the Range header of RFC 9110 section 14, as a plain function of text. */
#pragma once

#include <stdint.h>

enum api_range {
    API_RANGE_WHOLE, /* absent, of another unit, malformed, or with several ranges: ignored */
    API_RANGE_PART,
    API_RANGE_OUTSIDE /* well formed, but outside the file: 416 */
};

/* The bytes that `header` (NULL: absent) requests from a file of `size` bytes. first and count are written
 * only for API_RANGE_PART. */
enum api_range api_range_parse(const char *header, uint64_t size, uint64_t *ret_first, uint64_t *ret_count);
