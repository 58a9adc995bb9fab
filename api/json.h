/* api/json.h: writing JSON into a buffer, and the few reading helpers the handlers share.
 *
 * The writer puts commas by itself: it looks at the last byte written. Nothing can fail
 * but memory, which the buffer remembers (pd_buf_err). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "kernels/base/buf.h"

/* '{', '}', '[' or ']'. */
void api_json_open(struct pd_buf *b, char bracket);
void api_json_close(struct pd_buf *b, char bracket);
void api_json_key(struct pd_buf *b, const char *key);

/* Bytes that are not UTF-8 come out as U+FFFD: what we write is always valid JSON. */
void api_json_strn(struct pd_buf *b, const char *text, size_t len);
/* NULL is written as null. */
void api_json_str(struct pd_buf *b, const char *text);
void api_json_int(struct pd_buf *b, int64_t value);
void api_json_uint(struct pd_buf *b, uint64_t value);
/* The shortest decimal that reads back as the same double; NaN and infinities as the strings of wire.md 1. */
void api_json_num(struct pd_buf *b, double value);
/* The same for a float. */
void api_json_num32(struct pd_buf *b, float value);
void api_json_bool(struct pd_buf *b, bool value);
void api_json_null(struct pd_buf *b);
/* RFC 3339 with milliseconds; 0 or less is null. */
void api_json_time(struct pd_buf *b, int64_t wall_us);
/* Text that is JSON already; NULL or "" is null. */
void api_json_raw(struct pd_buf *b, const char *json);

/* key and value in one. */
void api_json_kv_str(struct pd_buf *b, const char *key, const char *text);
void api_json_kv_int(struct pd_buf *b, const char *key, int64_t value);
void api_json_kv_num(struct pd_buf *b, const char *key, double value);
/* null where there is no number: NaN. */
void api_json_kv_num_or_null(struct pd_buf *b, const char *key, double value);
void api_json_kv_bool(struct pd_buf *b, const char *key, bool value);
void api_json_kv_null(struct pd_buf *b, const char *key);
void api_json_kv_time(struct pd_buf *b, const char *key, int64_t wall_us);
void api_json_kv_raw(struct pd_buf *b, const char *key, const char *json);
/* Ids are strings in JSON (wire.md 1). */
void api_json_id(struct pd_buf *b, int64_t id);
void api_json_kv_id(struct pd_buf *b, const char *key, int64_t id);

/* How many bytes of text[0..len) form complete UTF-8: a sequence cut off at the end (at most 3
 * bytes) is left out; bytes that can never become valid count as complete. */
size_t api_utf8_complete(const char *text, size_t len);
/* Length of the valid sequence at text (1-4), 0 if it is not valid UTF-8. */
size_t api_utf8_step(const char *text, size_t len);
bool api_utf8_valid(const char *text, size_t len);

/* A decimal id without sign or leading blanks, 1..INT64_MAX. */
bool api_parse_id(const char *text, int64_t *ret_id);
/* A decimal integer within [low, high]. */
bool api_parse_int(const char *text, int64_t low, int64_t high, int64_t *ret_value);

/* Did jansson fail for memory (then it may say nothing at all), rather than for the text? */
bool api_json_no_memory(const json_error_t *error);
