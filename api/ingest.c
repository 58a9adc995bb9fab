#include "api/ingest.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"

#define NUMBER_MAX 64 /* bytes of a number; longer ones are refused */

struct in {
    const char *at, *end, *begin;
    char *text; /* where keys go; as long as the body, so it never runs out */
    size_t used;
    struct pd_why *why;
};

static void blanks(struct in *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\n' || *in->at == '\t' || *in->at == '\r'))
        in->at++;
}

static enum pd_err broken(struct in *in, const char *what)
{
    return pd_fail(in->why, PD_ERR_CORRUPT, "the body is not JSON: %s at byte %zu", what,
                   (size_t)(in->at - in->begin));
}

static bool take(struct in *in, char c)
{
    blanks(in);
    if (in->at < in->end && *in->at == c) {
        in->at++;
        return true;
    }
    return false;
}

static int hex4(const char *s)
{
    int value = 0;

    for (int i = 0; i < 4; i++) {
        int c = tolower((unsigned char)s[i]);

        if (!isxdigit(c))
            return -1;
        value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return value;
}

static size_t put_utf8(char *out, unsigned code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* A string, decoded to in->text with a NUL. Fails on anything that is not JSON and on NUL characters. */
static enum pd_err string(struct in *in, const char **ret, size_t *ret_len)
{
    char *out = in->text + in->used;
    size_t n = 0;

    if (!take(in, '"'))
        return broken(in, "expected a string");
    for (;;) {
        unsigned char c;

        if (in->at >= in->end)
            return broken(in, "a string without its end");
        c = (unsigned char)*in->at;
        if (c == '"')
            break;
        if (c < 0x20)
            return broken(in, "a control character in a string");
        if (c == '\\') {
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            const char *found;

            if (in->end - in->at < 2)
                return broken(in, "a string without its end");
            found = in->at[1] ? strchr(from, in->at[1]) : NULL;
            if (found) {
                out[n++] = to[found - from];
                in->at += 2;
                continue;
            }
            if (in->at[1] != 'u' || in->end - in->at < 6)
                return broken(in, "an unknown escape");
            {
                int code = hex4(in->at + 2), low;

                in->at += 6;
                if (code >= 0xd800 && code < 0xdc00 && in->end - in->at >= 6 && in->at[0] == '\\' &&
                    in->at[1] == 'u' && (low = hex4(in->at + 2)) >= 0xdc00 && low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    in->at += 6;
                } else if (code == 0) {
                    return broken(in, "a text cannot hold \\u0000");
                } else if (code < 0 || (code >= 0xd800 && code < 0xe000)) {
                    return broken(in, "an escape that is not a character");
                }
                n += put_utf8(out + n, (unsigned)code);
            }
            continue;
        }
        if (c < 0x80) {
            out[n++] = (char)c;
            in->at++;
        } else {
            size_t step = api_utf8_step(in->at, (size_t)(in->end - in->at));

            if (step == 0)
                return broken(in, "bytes that are not UTF-8");
            memcpy(out + n, in->at, step);
            n += step;
            in->at += step;
        }
    }
    in->at++;
    out[n] = '\0'; /* the closing quote's place */
    *ret = out;
    *ret_len = n;
    return PD_OK;
}

/* A JSON number. *ret_whole: it had neither fraction nor exponent and fits, its value is *ret_int. */
static enum pd_err number(struct in *in, double *ret, bool *ret_whole, int64_t *ret_int)
{
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *start, *p;
    bool negative, whole = true, exact = true;
    uint64_t mantissa = 0;
    int digits = 0, exponent = 0;

    blanks(in);
    start = p = in->at;
    negative = p < in->end && *p == '-';
    p += negative;
    if (p >= in->end || !isdigit((unsigned char)*p))
        return broken(in, "expected a number");
    if (*p == '0' && p + 1 < in->end && isdigit((unsigned char)p[1]))
        return broken(in, "a number that begins with 0");
    for (; p < in->end && isdigit((unsigned char)*p); p++) {
        if (mantissa || *p != '0')
            digits++;
        if (digits <= 18)
            mantissa = mantissa * 10 + (uint64_t)(*p - '0');
        else
            exact = whole = false;
    }
    if (p < in->end && *p == '.') {
        whole = false;
        p++;
        if (p >= in->end || !isdigit((unsigned char)*p))
            return broken(in, "a number without decimals after its point");
        for (; p < in->end && isdigit((unsigned char)*p); p++) {
            if (mantissa || *p != '0')
                digits++;
            if (digits <= 18) {
                mantissa = mantissa * 10 + (uint64_t)(*p - '0');
                exponent--;
            } else {
                exact = false;
            }
        }
    }
    if (p < in->end && (*p == 'e' || *p == 'E')) {
        bool minus;
        int value = 0;

        whole = false;
        p++;
        minus = p < in->end && *p == '-';
        if (p < in->end && (*p == '-' || *p == '+'))
            p++;
        if (p >= in->end || !isdigit((unsigned char)*p))
            return broken(in, "a number without its exponent");
        for (; p < in->end && isdigit((unsigned char)*p); p++)
            if (value < 10000)
                value = value * 10 + (*p - '0');
        exponent += minus ? -value : value;
    }
    if (p - start > NUMBER_MAX)
        return broken(in, "a number of too many digits");
    in->at = p;
    *ret_whole = whole;
    *ret_int = negative ? -(int64_t)mantissa : (int64_t)mantissa;
    /* Both factors are exact doubles, so one rounding gives the nearest double (Clinger's fast path). */
    if (exact && mantissa <= (UINT64_C(1) << 53) && exponent >= -22 && exponent <= 22) {
        double value = exponent < 0 ? (double)mantissa / tens[-exponent] : (double)mantissa * tens[exponent];

        *ret = negative ? -value : value;
    } else {
        char copy[NUMBER_MAX + 1];

        memcpy(copy, start, (size_t)(p - start));
        copy[p - start] = '\0';
        *ret = strtod(copy, NULL);
    }
    return PD_OK;
}

static bool two(const char *s, int low, int high, int *ret)
{
    if (!isdigit((unsigned char)s[0]) || !isdigit((unsigned char)s[1]))
        return false;
    *ret = (s[0] - '0') * 10 + (s[1] - '0');
    return *ret >= low && *ret <= high;
}

bool api_parse_time(const char *text, size_t len, int64_t *ret_us)
{
    static const int month_days[12] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century, year, month, day, hour, minute, second, era, shifted;
    int64_t us = 0, days;
    size_t at = 19;

    if (len < 20 || len > 40 || text[4] != '-' || text[7] != '-' || (text[10] != 'T' && text[10] != 't') ||
        text[13] != ':' || text[16] != ':' || (text[len - 1] != 'Z' && text[len - 1] != 'z') ||
        !two(text, 0, 99, &century) || !two(text + 2, 0, 99, &year) || !two(text + 5, 1, 12, &month) ||
        !two(text + 8, 1, 31, &day) || !two(text + 11, 0, 23, &hour) || !two(text + 14, 0, 59, &minute) ||
        !two(text + 17, 0, 60, &second))
        return false;
    year += century * 100;
    if (year < 1970 || day > month_days[month - 1] ||
        (month == 2 && day == 29 && (year % 4 != 0 || (year % 100 == 0 && year % 400 != 0))))
        return false;
    if (text[at] == '.') {
        int64_t unit = 100000;

        for (at++; at < len - 1; at++, unit /= 10) {
            if (!isdigit((unsigned char)text[at]))
                return false;
            us += (text[at] - '0') * unit;
        }
        if (at == 20)
            return false;
    }
    if (at != len - 1)
        return false;
    /* Days since 1970 by the proleptic Gregorian calendar, years beginning in March. */
    shifted = month <= 2 ? year - 1 : year;
    era = shifted / 400;
    days = (int64_t)era * 146097 + (shifted - era * 400) * 365 + (shifted - era * 400) / 4 -
           (shifted - era * 400) / 100 + (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1 - 719468;
    *ret_us = ((days * 24 + hour) * 60 + minute) * 60 * INT64_C(1000000) + (int64_t)second * 1000000 + us;
    return true;
}

/* One point. `pointer` follows the place that is read, for the message of a failure. */
static enum pd_err point(struct in *in, size_t index, int64_t now_us, struct store_metric *m,
                         const struct store_metric *last, char *pointer, size_t size)
{
    enum { KEY = 1, STEP = 2, VALUE = 4, TIME = 8 };
    unsigned seen = 0;
    enum pd_err err;

    if (!take(in, '{')) {
        snprintf(pointer, size, "#/points/%zu", index);
        blanks(in);
        return in->at < in->end ? pd_fail(in->why, PD_ERR_INVALID, "a point must be an object")
                                : broken(in, "it ends too soon");
    }
    m->time_us = now_us;
    if (!take(in, '}')) {
        do {
            const char *name, *text;
            size_t len;
            double value;
            bool whole = false;
            int64_t integer = 0;
            unsigned which;

            err = string(in, &name, &len);
            if (err != PD_OK)
                return err;
            if (!take(in, ':'))
                return broken(in, "expected ':'");
            which = strcmp(name, "key") == 0     ? KEY
                    : strcmp(name, "step") == 0  ? STEP
                    : strcmp(name, "value") == 0 ? VALUE
                    : strcmp(name, "time") == 0  ? TIME
                                                 : 0;
            snprintf(pointer, size, "#/points/%zu/%.60s", index, name);
            if (!which)
                return pd_fail(in->why, PD_ERR_INVALID, "unknown member '%.60s'", name);
            if (seen & which)
                return pd_fail(in->why, PD_ERR_CORRUPT, "%s occurs twice", pointer);
            seen |= which;
            blanks(in);
            if (which == KEY) {
                if (in->at >= in->end || *in->at != '"')
                    return in->at >= in->end ? broken(in, "it ends too soon")
                                             : pd_fail(in->why, PD_ERR_INVALID, "must be a text");
                err = string(in, &text, &len);
                if (err != PD_OK)
                    return err;
                if (len < 1 || len > STORE_KEY_MAX)
                    return pd_fail(in->why, PD_ERR_INVALID, "a key has 1 to %d bytes", STORE_KEY_MAX);
                /* The same key as in the point before needs no second copy. */
                if (last && strcmp(last->key, text) == 0) {
                    m->key = last->key;
                } else {
                    m->key = text;
                    in->used += len + 1;
                }
            } else if (in->at < in->end && *in->at == '"') {
                err = string(in, &text, &len);
                if (err != PD_OK)
                    return err;
                if (which == VALUE && strcmp(text, "NaN") == 0)
                    m->value = NAN;
                else if (which == VALUE && strcmp(text, "Infinity") == 0)
                    m->value = INFINITY;
                else if (which == VALUE && strcmp(text, "-Infinity") == 0)
                    m->value = -INFINITY;
                else if (which != TIME || !api_parse_time(text, len, &m->time_us))
                    return pd_fail(in->why, PD_ERR_INVALID,
                                   which == STEP ? "must be an integer"
                                   : which == VALUE
                                       ? "must be a number, or the text NaN, Infinity or -Infinity"
                                       : "must be RFC 3339 in UTC, or seconds since 1970");
            } else if (in->at < in->end && (*in->at == '-' || isdigit((unsigned char)*in->at))) {
                err = number(in, &value, &whole, &integer);
                if (err != PD_OK)
                    return err;
                if (which == STEP && !whole)
                    return pd_fail(in->why, PD_ERR_INVALID, "must be an integer of at most 18 digits");
                if (which == VALUE && !isfinite(value))
                    return pd_fail(in->why, PD_ERR_INVALID, "is too large for a double");
                if (which == TIME && !(value >= 0 && value < 1e11))
                    return pd_fail(in->why, PD_ERR_INVALID, "must be RFC 3339 in UTC, or seconds since 1970");
                if (which == STEP)
                    m->step = integer;
                else if (which == VALUE)
                    m->value = value;
                else
                    m->time_us = (int64_t)llround(value * 1e6);
            } else if (in->at < in->end && strchr("tfn[{", *in->at)) {
                return pd_fail(in->why, PD_ERR_INVALID, "must be a %s", which == TIME ? "time" : "number");
            } else {
                return broken(in, "expected a value");
            }
        } while (take(in, ','));
        if (!take(in, '}'))
            return broken(in, "expected ',' or '}'");
    }
    snprintf(pointer, size, "#/points/%zu", index);
    if ((seen & (KEY | STEP | VALUE)) != (KEY | STEP | VALUE))
        return pd_fail(in->why, PD_ERR_INVALID, "a point needs key, step and value");
    return PD_OK;
}

enum pd_err api_batch_parse(const char *json, size_t len, int64_t now_us, struct api_batch *ret,
                            char *pointer, size_t pointer_size, struct pd_why *why)
{
    struct in in = {.at = json, .begin = json, .end = json + len, .why = why};
    struct api_batch b = {.count = 0};
    size_t size = 0, n;
    const char *name;
    enum pd_err err;

    snprintf(pointer, pointer_size, "#");
    /* Decoded text is never longer than its JSON: \u escapes are 6 bytes for at most 3, pairs 12 for 4. */
    b.text = malloc(len + 1);
    if (!b.text)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the batch");
    in.text = b.text;
    if (!take(&in, '{')) {
        blanks(&in);
        if (in.at < in.end && strchr("[\"-0123456789tfn", *in.at))
            err = pd_fail(why, PD_ERR_INVALID,
                          "must be an object, {\"points\":[{\"key\",\"step\",\"value\"}, ...]}, not %s",
                          *in.at == '['   ? "an array"
                          : *in.at == '"' ? "a string"
                                          : "a number or a word");
        else
            err = broken(&in, "expected an object");
        goto out;
    }
    if (take(&in, '}')) {
        err = pd_fail(why, PD_ERR_INVALID, "lacks points; a batch is {\"points\":[...]}");
        goto out;
    }
    err = string(&in, &name, &n);
    if (err != PD_OK)
        goto out;
    snprintf(pointer, pointer_size, "#/%.60s", name);
    if (strcmp(name, "points") != 0) {
        err = pd_fail(why, PD_ERR_INVALID, "unknown member '%.60s'; a batch is {\"points\":[...]}", name);
        goto out;
    }
    if (!take(&in, ':') || !take(&in, '[')) {
        err = in.at < in.end ? pd_fail(why, PD_ERR_INVALID, "points must be an array")
                             : broken(&in, "it ends too soon");
        goto out;
    }
    if (!take(&in, ']')) {
        do {
            if (b.count == API_INGEST_POINTS_MAX) {
                snprintf(pointer, pointer_size, "#/points");
                err = pd_fail(why, PD_ERR_LIMIT, "more than %d points in one batch", API_INGEST_POINTS_MAX);
                goto out;
            }
            if (b.count == size) {
                struct store_metric *points;

                size = size ? size * 2 : 128;
                points = realloc(b.points, size * sizeof *points);
                if (!points) {
                    err = pd_fail(why, PD_ERR_NOMEM, "no memory for the batch");
                    goto out;
                }
                b.points = points;
            }
            memset(&b.points[b.count], 0, sizeof b.points[b.count]);
            err = point(&in, b.count, now_us, &b.points[b.count], b.count ? &b.points[b.count - 1] : NULL,
                        pointer, pointer_size);
            if (err != PD_OK)
                goto out;
            b.count++;
        } while (take(&in, ','));
        if (!take(&in, ']')) {
            err = broken(&in, "expected ',' or ']'");
            goto out;
        }
    }
    if (take(&in, ',')) {
        err = string(&in, &name, &n);
        if (err == PD_OK) {
            snprintf(pointer, pointer_size, "#/%.60s", name);
            err = strcmp(name, "points") == 0 ? pd_fail(why, PD_ERR_CORRUPT, "#/points occurs twice")
                                              : pd_fail(why, PD_ERR_INVALID, "unknown member '%.60s'", name);
        }
        goto out;
    }
    if (!take(&in, '}')) {
        err = broken(&in, "expected '}'");
        goto out;
    }
    blanks(&in);
    if (in.at != in.end) {
        err = broken(&in, "something follows the object");
        goto out;
    }
    *ret = b;
    b.text = NULL; /* moved to the caller, with the points */
    b.points = NULL;
out:
    api_batch_done(&b);
    return err;
}

void api_batch_done(struct api_batch *b)
{
    free(b->points);
    free(b->text);
    b->points = NULL;
    b->text = NULL;
    b->count = 0;
}
