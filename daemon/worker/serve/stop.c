#include "daemon/worker/serve/stop.h"

#include <string.h>

bool serve_stops_scan(const struct serve_stops *s, const char *text, size_t len, size_t *ret_safe)
{
    size_t partial = len;

    /* A whole match ends the text at once, even while an earlier byte might still become a longer stop
     * string: the one that is complete first wins. */
    for (size_t at = 0; at < len; at++) {
        for (uint32_t i = 0; i < s->count; i++) {
            size_t have = len - at < s->len[i] ? len - at : s->len[i];

            if (memcmp(text + at, s->bytes[i], have) != 0)
                continue;
            if (have == s->len[i]) {
                *ret_safe = at;
                return true;
            }
            if (partial == len)
                partial = at;
        }
    }
    *ret_safe = partial;
    return false;
}
