#include "api/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"

static void separate(struct pd_buf *b)
{
    char last = b->len ? b->data[b->len - 1] : '[';

    if (last != '{' && last != '[' && last != ':' && last != ' ' && last != '\n')
        pd_buf_append(b, ",", 1);
}

void api_json_open(struct pd_buf *b, char bracket)
{
    separate(b);
    pd_buf_append(b, &bracket, 1);
}

void api_json_close(struct pd_buf *b, char bracket)
{
    pd_buf_append(b, &bracket, 1);
}

size_t api_utf8_step(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n;
    unsigned min_second = 0x80, max_second = 0xbf;

    if (len == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        n = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        n = 3;
        if (s[0] == 0xe0)
            min_second = 0xa0; /* overlong */
        if (s[0] == 0xed)
            max_second = 0x9f; /* surrogates */
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        n = 4;
        if (s[0] == 0xf0)
            min_second = 0x90;
        if (s[0] == 0xf4)
            max_second = 0x8f;
    } else {
        return 0;
    }
    if (len < n || s[1] < min_second || s[1] > max_second)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

bool api_utf8_valid(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = api_utf8_step(text + i, len - i);

        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

size_t api_utf8_complete(const char *text, size_t len)
{
    static const unsigned char filler[3] = {0x80, 0x80, 0x80};

    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char lead = (unsigned char)text[len - back];
        char trial[6];

        if ((lead & 0xc0) == 0x80)
            continue; /* inside a sequence: look further back for its start */
        if (lead < 0xc0)
            return len;
        if (api_utf8_step(text + len - back, back))
            return len;
        /* Could more bytes make it valid? Try continuation bytes, of which E0 and F0 want high ones first. */
        memcpy(trial, text + len - back, back);
        memcpy(trial + back, filler, sizeof filler);
        if (back == 1 && lead == 0xe0)
            trial[1] = (char)0xa0;
        if (back == 1 && lead == 0xf0)
            trial[1] = (char)0x90;
        if (api_utf8_step(trial, back + sizeof filler))
            return len - back;
        return len;
    }
    return len;
}

void api_json_strn(struct pd_buf *b, const char *text, size_t len)
{
    size_t run = 0, i = 0;

    separate(b);
    pd_buf_append(b, "\"", 1);
    while (i < len) {
        unsigned char c = (unsigned char)text[i];
        char escape[8];
        size_t step = 1, escape_len = 0;

        if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = (char)c;
            escape_len = 2;
        } else if (c < 0x20 || c == 0x7f) {
            escape_len = (size_t)snprintf(escape, sizeof escape, "\\u%04x", c);
        } else if (c >= 0x80) {
            step = api_utf8_step(text + i, len - i);
            if (step == 0) {
                memcpy(escape, "\xef\xbf\xbd", 3);
                escape_len = 3;
                step = 1;
            }
        }
        if (escape_len) {
            pd_buf_append(b, text + run, i - run);
            pd_buf_append(b, escape, escape_len);
            run = i + step;
        }
        i += step;
    }
    pd_buf_append(b, text + run, len - run);
    pd_buf_append(b, "\"", 1);
}

void api_json_str(struct pd_buf *b, const char *text)
{
    if (text)
        api_json_strn(b, text, strlen(text));
    else
        api_json_null(b);
}

void api_json_key(struct pd_buf *b, const char *key)
{
    api_json_str(b, key);
    pd_buf_append(b, ":", 1);
}

void api_json_int(struct pd_buf *b, int64_t value)
{
    char text[24];

    separate(b);
    pd_buf_append(b, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

void api_json_uint(struct pd_buf *b, uint64_t value)
{
    char text[24];

    separate(b);
    pd_buf_append(b, text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value));
}

static bool not_finite(struct pd_buf *b, double value)
{
    if (isfinite(value))
        return false;
    api_json_str(b, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    return true;
}

void api_json_num(struct pd_buf *b, double value)
{
    char text[32];
    int n = 0;

    if (not_finite(b, value))
        return;
    if (fabs(value) < 1e15 && value == (double)(int64_t)value && !(value == 0 && signbit(value))) {
        api_json_int(b, (int64_t)value);
        return;
    }
    separate(b);
    for (int digits = 15; digits <= 17; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    pd_buf_append(b, text, (size_t)n);
}

void api_json_num32(struct pd_buf *b, float value)
{
    char text[32];
    int n = 0;

    if (not_finite(b, (double)value))
        return;
    separate(b);
    for (int digits = 6; digits <= 9; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    pd_buf_append(b, text, (size_t)n);
}

void api_json_bool(struct pd_buf *b, bool value)
{
    separate(b);
    pd_buf_str(b, value ? "true" : "false");
}

void api_json_null(struct pd_buf *b)
{
    separate(b);
    pd_buf_append(b, "null", 4);
}

void api_json_time(struct pd_buf *b, int64_t wall_us)
{
    char text[PD_CLOCK_TEXT_SIZE];

    if (wall_us <= 0)
        api_json_null(b);
    else
        api_json_str(b, pd_clock_format(text, sizeof text, wall_us));
}

void api_json_raw(struct pd_buf *b, const char *json)
{
    if (!json || !*json) {
        api_json_null(b);
        return;
    }
    separate(b);
    pd_buf_str(b, json);
}

void api_json_kv_str(struct pd_buf *b, const char *key, const char *text)
{
    api_json_key(b, key);
    api_json_str(b, text);
}

void api_json_kv_int(struct pd_buf *b, const char *key, int64_t value)
{
    api_json_key(b, key);
    api_json_int(b, value);
}

void api_json_kv_num(struct pd_buf *b, const char *key, double value)
{
    api_json_key(b, key);
    api_json_num(b, value);
}

void api_json_kv_num_or_null(struct pd_buf *b, const char *key, double value)
{
    if (isnan(value))
        api_json_kv_null(b, key);
    else
        api_json_kv_num(b, key, value);
}

void api_json_kv_bool(struct pd_buf *b, const char *key, bool value)
{
    api_json_key(b, key);
    api_json_bool(b, value);
}

void api_json_kv_null(struct pd_buf *b, const char *key)
{
    api_json_key(b, key);
    api_json_null(b);
}

void api_json_kv_time(struct pd_buf *b, const char *key, int64_t wall_us)
{
    api_json_key(b, key);
    api_json_time(b, wall_us);
}

void api_json_kv_raw(struct pd_buf *b, const char *key, const char *json)
{
    api_json_key(b, key);
    api_json_raw(b, json);
}

void api_json_id(struct pd_buf *b, int64_t id)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)id);
    api_json_str(b, text);
}

void api_json_kv_id(struct pd_buf *b, const char *key, int64_t id)
{
    api_json_key(b, key);
    api_json_id(b, id);
}

bool api_parse_int(const char *text, int64_t low, int64_t high, int64_t *ret_value)
{
    char *end;
    long long value;

    if (!(text[0] >= '0' && text[0] <= '9') && !(text[0] == '-' && text[1] >= '0' && text[1] <= '9'))
        return false;
    if (strlen(text) > 19)
        return false;
    value = strtoll(text, &end, 10);
    if (*end || value < low || value > high || (text[0] == '9' && strlen(text) == 19 && value == INT64_MAX))
        return false;
    *ret_value = value;
    return true;
}

bool api_parse_id(const char *text, int64_t *ret_id)
{
    return text[0] >= '1' && text[0] <= '9' && api_parse_int(text, 1, INT64_MAX, ret_id);
}

bool api_json_no_memory(const json_error_t *error)
{
    return error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory;
}
