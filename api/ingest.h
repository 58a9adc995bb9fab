/* api/ingest.h: parser of a batch of metric points.
 *
 * {"points":[{"key":"loss/train","step":12,"value":0.5,"time":"2026-11-20T23:50:07.123Z"}, ...]}: one pass
 * over the bytes, without a tree. JSON, not SQLite, limits the ingest of metrics (kernels/PERFORMANCE.md 6),
 * hence a parser of its own for this one body. It accepts exactly JSON; the tests compare it with jansson. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/polyd/store/tx.h"
#include "kernels/base/err.h"

#define API_INGEST_POINTS_MAX 10000

struct api_batch {
    struct store_metric *points; /* owned; keys point into `text` */
    size_t count;
    char *text; /* owned */
};

/* `now_us` is the time of points without one. PD_OK: the caller frees with api_batch_done.
 * PD_ERR_CORRUPT: not JSON, or a member twice (400). PD_ERR_INVALID, PD_ERR_LIMIT: *ret_pointer (of
 * `pointer_size`) names the place, such as "#/points/3/step" (422). PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err api_batch_parse(const char *json, size_t len, int64_t now_us, struct api_batch *ret,
                                         char *pointer, size_t pointer_size, struct pd_why *why);
void api_batch_done(struct api_batch *b);

/* RFC 3339 in UTC ("2026-11-20T23:50:07.123Z", any number of decimals) as microseconds; false if it is not
 * that. */
bool api_parse_time(const char *text, size_t len, int64_t *ret_us);
