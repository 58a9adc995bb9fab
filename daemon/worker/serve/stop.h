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

/* Searches text[0..len), of which nothing has been released. True: it contains a complete stop string, and *ret_safe is
 * the offset of the earliest one. False: *ret_safe is the number of bytes that may be released, because no stop string can
 * begin in them. */
bool serve_stops_scan(const struct serve_stops *s, const char *text, size_t len, size_t *ret_safe);
