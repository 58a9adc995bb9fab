#include "api/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"

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

static bool not_finite(struct pd_buf *b, double value)
{
    if (isfinite(value))
        return false;
    api_json_str(b, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    return true;
}

void api_json_num(struct pd_buf *b, double value)
{
    if (!not_finite(b, value))
        pd_json_num(b, value);
}

void api_json_num32(struct pd_buf *b, float value)
{
    if (!not_finite(b, (double)value))
        pd_json_num32(b, value);
}

void api_json_time(struct pd_buf *b, int64_t wall_us)
{
    char text[PD_CLOCK_TEXT_SIZE];

    if (wall_us <= 0)
        api_json_null(b);
    else
        api_json_str(b, pd_clock_format(text, sizeof text, wall_us));
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

void api_json_pointer_add(struct pd_buf *b, const char *key)
{
    pd_buf_append(b, "/", 1);
    for (const char *c = key; *c; c++)
        if (*c == '~' || *c == '/')
            pd_buf_str(b, *c == '~' ? "~0" : "~1");
        else
            pd_buf_append(b, c, 1);
}

/* Whether text[0..len) of a pointer, its escapes resolved, is the key. */
static bool names(const char *text, size_t len, const char *key)
{
    size_t i = 0;

    for (; i < len && *key; i++, key++) {
        const bool escape = text[i] == '~' && i + 1 < len && (text[i + 1] == '0' || text[i + 1] == '1');
        const char c = !escape ? text[i] : text[i + 1] == '0' ? '~' : '/';

        if (c != *key)
            return false;
        i += escape;
    }
    return i == len && !*key;
}

const json_t *api_json_at(const json_t *value, const char *pointer)
{
    while (value && *pointer == '/') {
        const size_t n = strcspn(++pointer, "/");
        const json_t *object = value;
        const char *key;
        json_t *member;

        if (!memchr(pointer, '~', n)) {
            value = json_object_getn(object, pointer, n);
        } else {
            value = NULL;
            json_object_foreach((json_t *)object, key, member) if (names(pointer, n, key)) value = member;
        }
        pointer += n;
    }
    return value;
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

const char *api_json_fault(const json_error_t *error)
{
    const enum json_error_code code = json_error_code(error);

    return code == json_error_null_character || code == json_error_null_byte_in_key
               ? "a text cannot hold \\u0000"
               : error->text;
}

bool api_json_no_memory(const json_error_t *error)
{
    return error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory;
}
