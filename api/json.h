/* api/json.h: the API's JSON conventions (non-finite numbers, times) and the parsing helpers of the handlers.
 * The writer is kernels/base/json.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "kernels/base/json.h"

#define api_json_open pd_json_open
#define api_json_close pd_json_close
#define api_json_key pd_json_key
#define api_json_strn pd_json_strn
#define api_json_str pd_json_str
#define api_json_int pd_json_int
#define api_json_uint pd_json_uint
#define api_json_bool pd_json_bool
#define api_json_null pd_json_null
#define api_json_raw pd_json_raw
#define api_json_id pd_json_id
#define api_json_kv_str pd_json_kv_str
#define api_json_kv_int pd_json_kv_int
#define api_json_kv_bool pd_json_kv_bool
#define api_json_kv_id pd_json_kv_id
#define api_utf8_step pd_utf8_step

/* As pd_json_num, but NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity". */
void api_json_num(struct pd_buf *b, double value);
void api_json_num32(struct pd_buf *b, float value);
/* RFC 3339 with milliseconds; 0 or less is null. */
void api_json_time(struct pd_buf *b, int64_t wall_us);

void api_json_kv_num(struct pd_buf *b, const char *key, double value);
/* null where there is no number: NaN. */
void api_json_kv_num_or_null(struct pd_buf *b, const char *key, double value);
void api_json_kv_null(struct pd_buf *b, const char *key);
void api_json_kv_time(struct pd_buf *b, const char *key, int64_t wall_us);
void api_json_kv_raw(struct pd_buf *b, const char *key, const char *json);

/* Appends "/key" to a JSON pointer, escaped (RFC 6901). */
void api_json_pointer_add(struct pd_buf *b, const char *key);
/* The value at the pointer, borrowed; NULL if there is none. Objects are entered, arrays are not. */
const json_t *api_json_at(const json_t *value, const char *pointer);

/* How many bytes of text[0..len) form complete UTF-8: a sequence cut off at the end (at most 3
 * bytes) is left out; bytes that can never become valid count as complete. */
size_t api_utf8_complete(const char *text, size_t len);
bool api_utf8_valid(const char *text, size_t len);

/* A decimal id without sign or leading blanks, 1..INT64_MAX. */
bool api_parse_id(const char *text, int64_t *ret_id);
/* A decimal integer within [low, high]. */
bool api_parse_int(const char *text, int64_t low, int64_t high, int64_t *ret_value);

/* What is wrong with the text, borrowed from `error`. */
const char *api_json_fault(const json_error_t *error);
/* Whether jansson failed for lack of memory (it may then give no message) rather than because of the text. */
bool api_json_no_memory(const json_error_t *error);
