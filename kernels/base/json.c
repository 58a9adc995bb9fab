#include "kernels/base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void separate(struct pd_buf *b)
{
    char last = b->len ? b->data[b->len - 1] : '[';

    if (last != '{' && last != '[' && last != ':' && last != ' ' && last != '\n')
        pd_buf_append(b, ",", 1);
}

void pd_json_open(struct pd_buf *b, char bracket)
{
    separate(b);
    pd_buf_append(b, &bracket, 1);
}

void pd_json_close(struct pd_buf *b, char bracket)
{
    pd_buf_append(b, &bracket, 1);
}

size_t pd_utf8_step(const char *text, size_t len)
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

void pd_json_strn(struct pd_buf *b, const char *text, size_t len)
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
            step = pd_utf8_step(text + i, len - i);
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

void pd_json_str(struct pd_buf *b, const char *text)
{
    if (text)
        pd_json_strn(b, text, strlen(text));
    else
        pd_json_null(b);
}

void pd_json_strf(struct pd_buf *b, const char *fmt, ...)
{
    char text[4096];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pd_json_strn(b, text, n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void pd_json_key(struct pd_buf *b, const char *key)
{
    pd_json_str(b, key);
    pd_buf_append(b, ":", 1);
}

void pd_json_int(struct pd_buf *b, int64_t value)
{
    char text[24];

    separate(b);
    pd_buf_append(b, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)value));
}

void pd_json_uint(struct pd_buf *b, uint64_t value)
{
    char text[24];

    separate(b);
    pd_buf_append(b, text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value));
}

void pd_json_num(struct pd_buf *b, double value)
{
    char text[32];
    int n = 0;

    if (!isfinite(value)) {
        pd_json_null(b);
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(int64_t)value && !(value == 0 && signbit(value))) {
        pd_json_int(b, (int64_t)value);
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

void pd_json_num32(struct pd_buf *b, float value)
{
    char text[32];
    int n = 0;

    if (!isfinite(value)) {
        pd_json_null(b);
        return;
    }
    separate(b);
    for (int digits = 6; digits <= 9; digits++) {
        n = snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    pd_buf_append(b, text, (size_t)n);
}

void pd_json_bool(struct pd_buf *b, bool value)
{
    separate(b);
    pd_buf_str(b, value ? "true" : "false");
}

void pd_json_null(struct pd_buf *b)
{
    separate(b);
    pd_buf_append(b, "null", 4);
}

void pd_json_raw(struct pd_buf *b, const char *json)
{
    if (!json || !*json) {
        pd_json_null(b);
        return;
    }
    separate(b);
    pd_buf_str(b, json);
}

void pd_json_kv_str(struct pd_buf *b, const char *key, const char *text)
{
    pd_json_key(b, key);
    pd_json_str(b, text);
}

void pd_json_kv_int(struct pd_buf *b, const char *key, int64_t value)
{
    pd_json_key(b, key);
    pd_json_int(b, value);
}

void pd_json_kv_num(struct pd_buf *b, const char *key, double value)
{
    pd_json_key(b, key);
    pd_json_num(b, value);
}

void pd_json_kv_uint(struct pd_buf *b, const char *key, uint64_t value)
{
    pd_json_key(b, key);
    pd_json_uint(b, value);
}

void pd_json_kv_bool(struct pd_buf *b, const char *key, bool value)
{
    pd_json_key(b, key);
    pd_json_bool(b, value);
}

void pd_json_id(struct pd_buf *b, int64_t id)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)id);
    pd_json_str(b, text);
}

void pd_json_kv_id(struct pd_buf *b, const char *key, int64_t id)
{
    pd_json_key(b, key);
    pd_json_id(b, id);
}
