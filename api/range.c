#include "api/range.h"

#include <stdbool.h>
#include <stddef.h>
#include <strings.h>

/* Digits at *at, moving it on; false without any, or beyond 2^64. */
static bool number(const char **at, uint64_t *ret)
{
    const char *p = *at;
    uint64_t n = 0;

    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return false;
    if (p == *at)
        return false;
    *at = p;
    *ret = n;
    return true;
}

static const char *blanks(const char *at)
{
    while (*at == ' ' || *at == '\t')
        at++;
    return at;
}

enum api_range api_range_parse(const char *header, uint64_t size, uint64_t *ret_first, uint64_t *ret_count)
{
    uint64_t first = 0, last = UINT64_MAX;
    bool suffix, open;

    if (!header || strncasecmp(header, "bytes=", 6) != 0)
        return API_RANGE_WHOLE;
    header = blanks(header + 6);
    suffix = *header == '-';
    if (!suffix && !number(&header, &first))
        return API_RANGE_WHOLE;
    if (*header++ != '-')
        return API_RANGE_WHOLE;
    open = !number(&header, &last);
    if (*blanks(header) || (suffix && open) || (!suffix && !open && last < first))
        return API_RANGE_WHOLE;
    if (suffix) { /* the last bytes, as many as there are */
        if (!last || !size)
            return API_RANGE_OUTSIDE;
        first = last < size ? size - last : 0;
        last = size - 1;
    }
    if (first >= size)
        return API_RANGE_OUTSIDE;
    if (open || last >= size)
        last = size - 1;
    *ret_first = first;
    *ret_count = last - first + 1;
    return API_RANGE_PART;
}
