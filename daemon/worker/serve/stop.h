/* daemon/worker/serve/stop.h: finds stop strings in a text that arrives in pieces. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/serve/serve.h"

struct serve_stops {
    uint32_t count;
    size_t len[SERVE_STOPS_MAX];
    char bytes[SERVE_STOPS_MAX][SERVE_STOP_BYTES_MAX];
};

/* Looks at text[0..len), none of which has been released. True when a whole stop string stands in
 * it: *ret_safe is where the earliest one begins. Else *ret_safe is how many bytes cannot be the beginning
 * of a stop string that is still coming: those may be released. */
bool serve_stops_scan(const struct serve_stops *s, const char *text, size_t len, size_t *ret_safe);
