/* kernels/base/json.h: writes JSON into a buffer.
 *
 * Commas are inserted by looking at the last byte of the buffer, so the buffer must be empty or hold only
 * output of these functions. Only allocation can fail; the buffer keeps that error (pd_buf_err). Text and
 * numbers are always valid JSON: bytes that are not UTF-8 become U+FFFD, and a number that is not finite
 * becomes null. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/buf.h"

/* '{', '}', '[' or ']'. */
void pd_json_open(struct pd_buf *b, char bracket);
void pd_json_close(struct pd_buf *b, char bracket);
void pd_json_key(struct pd_buf *b, const char *key);

void pd_json_strn(struct pd_buf *b, const char *text, size_t len);
/* NULL is written as null. */
void pd_json_str(struct pd_buf *b, const char *text);
/* A string formatted as by printf, cut at 4095 bytes. */
void pd_json_strf(struct pd_buf *b, const char *fmt, ...) PD_PRINTF(2, 3);
void pd_json_int(struct pd_buf *b, int64_t value);
void pd_json_uint(struct pd_buf *b, uint64_t value);
/* The fewest digits, at least 15, that read back as the same double, without trailing zeros; whole numbers
 * below 1e15 without exponent. */
void pd_json_num(struct pd_buf *b, double value);
/* The same for a float. */
void pd_json_num32(struct pd_buf *b, float value);
void pd_json_bool(struct pd_buf *b, bool value);
void pd_json_null(struct pd_buf *b);
/* Copies text that is JSON already, unchecked; NULL or "" becomes null. */
void pd_json_raw(struct pd_buf *b, const char *json);

/* Key and value in one call. */
void pd_json_kv_str(struct pd_buf *b, const char *key, const char *text);
void pd_json_kv_int(struct pd_buf *b, const char *key, int64_t value);
void pd_json_kv_uint(struct pd_buf *b, const char *key, uint64_t value);
void pd_json_kv_num(struct pd_buf *b, const char *key, double value);
void pd_json_kv_bool(struct pd_buf *b, const char *key, bool value);
/* An id: a string of digits, since a number in JSON is exact up to 2^53 only. */
void pd_json_id(struct pd_buf *b, int64_t id);
void pd_json_kv_id(struct pd_buf *b, const char *key, int64_t id);

/* Length of the valid UTF-8 sequence at text (1-4), 0 if there is none. */
size_t pd_utf8_step(const char *text, size_t len);
