/* Reading with limits, writing in RFC 8785 form, and moving about in a tree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/internal.h"

/* ---- Reading ---- */

static enum pd_err limits_check(json_t *v, int depth, struct pd_why *why)
{
    const char *key;
    json_t *child;
    size_t i;
    enum pd_err err;

    if (depth > JOB_MAX_DEPTH && (json_is_object(v) || json_is_array(v)))
        return pd_fail(why, PD_ERR_CORRUPT, "nested deeper than %d levels", JOB_MAX_DEPTH);
    if (json_is_string(v) && json_string_length(v) > JOB_MAX_STRING)
        return pd_fail(why, PD_ERR_CORRUPT, "a string is longer than %zu bytes", JOB_MAX_STRING);
    if (json_is_object(v)) {
        json_object_foreach(v, key, child)
        {
            err = limits_check(child, depth + 1, why);
            if (err != PD_OK)
                return err;
        }
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, child)
        {
            err = limits_check(child, depth + 1, why);
            if (err != PD_OK)
                return err;
        }
    }
    return PD_OK;
}

enum pd_err job_json_load(const char *text, size_t len, json_t **ret, struct pd_why *why)
{
    json_error_t e;
    json_t *v;
    enum pd_err err;

    if (len > JOB_MAX_BYTES)
        return pd_fail(why, PD_ERR_LIMIT, "the document has %zu bytes; at most %zu are allowed", len,
                       JOB_MAX_BYTES);
    v = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!v) {
        /* jansson says nothing when an allocation fails half-way. */
        if (!e.text[0])
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the document");
        switch ((int)json_error_code(&e)) {
        case json_error_out_of_memory:
            return pd_fail(why, PD_ERR_NOMEM, "no memory for the document");
        case json_error_stack_overflow:
            return pd_fail(why, PD_ERR_CORRUPT, "nested deeper than %d levels", JOB_MAX_DEPTH);
        case json_error_null_character:
        case json_error_null_byte_in_key:
            return pd_fail(why, PD_ERR_CORRUPT,
                           "not valid JSON: a text cannot hold \\u0000 (line %d, column %d)", e.line,
                           e.column);
        default:
            return pd_fail(why, PD_ERR_CORRUPT, "not valid JSON: %s (line %d, column %d)", e.text, e.line,
                           e.column);
        }
    }
    err = limits_check(v, 1, why);
    if (err != PD_OK) {
        json_decref(v);
        return err;
    }
    *ret = v;
    return PD_OK;
}

/* ---- Writing ---- */

/* The next UTF-16 code unit of a UTF-8 text, for comparing keys: RFC 8785 sorts by code units. A
 * pair's second half is held back in *low. */
static unsigned next_unit(const unsigned char **p, unsigned *low)
{
    const unsigned char *s = *p;
    unsigned c;

    if (*low) {
        c = *low;
        *low = 0;
        return c;
    }
    if (*s < 0x80) {
        *p = s + (*s != 0);
        return *s;
    }
    if (*s < 0xe0) {
        *p = s + 2;
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    }
    if (*s < 0xf0) {
        *p = s + 3;
        return (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    }
    *p = s + 4;
    c = ((s[0] & 7u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu)) - 0x10000;
    *low = 0xdc00 + (c & 0x3ff);
    return 0xd800 + (c >> 10);
}

static int key_compare(const void *a, const void *b)
{
    const unsigned char *s = *(const unsigned char *const *)a, *t = *(const unsigned char *const *)b;
    unsigned slow = 0, tlow = 0;

    for (;;) {
        unsigned x = next_unit(&s, &slow), y = next_unit(&t, &tlow);
        if (x != y)
            return x < y ? -1 : 1;
        if (!x)
            return 0;
    }
}

/* Digits without point or exponent in `digits`, value 0.d1d2d3... x 10^*ret_n: the shortest that reads
 * back as `v` (positive). */
static void shortest_digits(double v, char *digits, int *ret_n)
{
    char text[40];
    /* Any decimal of up to 15 digits survives the way through a normal double; so if the shortest has no
     * more, it is what 15 digits show, padded with zeros. Subnormals hold fewer. */
    int start = v < 2.2250738585072014e-308 ? 1 : 15;
    int exponent = 0;

    for (int n = start; n <= 17; n++) {
        snprintf(text, sizeof text, "%.*e", n - 1, v);
        if (n == 17 || strtod(text, NULL) == v)
            break;
        /* Below a power of two the doubles lie twice as close as above it: the nearest decimal
         * may fall on the narrow side and miss while its upper neighbour hits. */
        if (frexp(v, &exponent) == 0.5) {
            char *last = strchr(text, 'e') - 1;
            if (*last < '9') {
                ++*last;
                if (strtod(text, NULL) == v)
                    break;
            }
        }
    }
    *ret_n = atoi(strchr(text, 'e') + 1) + 1;
    *strchr(text, 'e') = '\0';
    digits[0] = text[0];
    strcpy(digits + 1, text[1] ? text + 2 : "");
    for (size_t k = strlen(digits); k > 1 && digits[k - 1] == '0'; k--)
        digits[k - 1] = '\0';
}

const char *job_json_number(double v, char *out)
{
    char digits[40];
    int n, k;
    char *o = out;

    if (v == 0)
        return strcpy(out, "0"); /* also -0 */
    if (v < 0) {
        *o++ = '-';
        v = -v;
    }
    shortest_digits(v, digits, &n);
    k = (int)strlen(digits);
    if (k <= n && n <= 21)
        sprintf(o, "%s%.*s", digits, n - k, "000000000000000000000");
    else if (0 < n && n <= 21)
        sprintf(o, "%.*s.%s", n, digits, digits + n);
    else if (-6 < n && n <= 0)
        sprintf(o, "0.%.*s%s", -n, "000000", digits);
    else if (k == 1)
        sprintf(o, "%se%+d", digits, n - 1);
    else
        sprintf(o, "%c.%se%+d", digits[0], digits + 1, n - 1);
    return out;
}

void job_json_string(const char *s, size_t len, struct pd_buf *b)
{
    static const char short_for[] = "\b\t\n\f\r\"\\", letter[] = "btnfr\"\\";
    size_t from = 0;

    pd_buf_str(b, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)s[i];
        const char *at = ch ? strchr(short_for, ch) : NULL;
        if (ch >= 0x20 && !at)
            continue;
        pd_buf_append(b, s + from, i - from);
        from = i + 1;
        if (at)
            pd_buf_printf(b, "\\%c", letter[at - short_for]);
        else
            pd_buf_printf(b, "\\u%04x", ch);
    }
    pd_buf_append(b, s + from, len - from);
    pd_buf_str(b, "\"");
}

static void write_object(const json_t *v, struct pd_buf *b)
{
    size_t count = json_object_size(v), n = 0;
    const char *few[32];
    const char **keys = count <= 32 ? few : malloc(count * sizeof *keys);
    const char *key;
    json_t *child;

    if (!keys) {
        b->failed = true;
        return;
    }
    json_object_foreach((json_t *)v, key, child) keys[n++] = key;
    qsort(keys, n, sizeof *keys, key_compare);
    pd_buf_str(b, "{");
    for (size_t i = 0; i < n; i++) {
        if (i)
            pd_buf_str(b, ",");
        job_json_string(keys[i], strlen(keys[i]), b);
        pd_buf_str(b, ":");
        job_json_write(json_object_get(v, keys[i]), b);
    }
    pd_buf_str(b, "}");
    if (keys != few)
        free(keys);
}

void job_json_write(const json_t *v, struct pd_buf *b)
{
    char number[40];

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        write_object(v, b);
        break;
    case JSON_ARRAY:
        pd_buf_str(b, "[");
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i)
                pd_buf_str(b, ",");
            job_json_write(json_array_get(v, i), b);
        }
        pd_buf_str(b, "]");
        break;
    case JSON_STRING:
        job_json_string(json_string_value(v), json_string_length(v), b);
        break;
    case JSON_INTEGER:
        /* As ECMAScript would print it: a double. */
        pd_buf_str(b, job_json_number((double)json_integer_value(v), number));
        break;
    case JSON_REAL:
        pd_buf_str(b, job_json_number(json_real_value(v), number));
        break;
    case JSON_TRUE:
        pd_buf_str(b, "true");
        break;
    case JSON_FALSE:
        pd_buf_str(b, "false");
        break;
    case JSON_NULL:
        pd_buf_str(b, "null");
        break;
    }
}

enum pd_err job_canonical(const char *json, size_t len, struct pd_buf *ret_json, struct pd_why *why)
{
    json_t *v = NULL;
    enum pd_err err = job_json_load(json, len, &v, why);

    if (err != PD_OK)
        return err;
    job_json_write(v, ret_json);
    json_decref(v);
    err = pd_buf_err(ret_json);
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for the canonical form");
}

/* ---- Trees ---- */

json_t *job_json_literal(const char *text)
{
    if (strcmp(text, "null") == 0)
        return json_null();
    if (strcmp(text, "true") == 0)
        return json_true();
    if (strcmp(text, "false") == 0)
        return json_false();
    if (strcmp(text, "{}") == 0)
        return json_object();
    if (strcmp(text, "[]") == 0)
        return json_array();
    if (text[0] == '"')
        return json_stringn(text + 1, strlen(text) - 2); /* the tables hold no escapes */
    if (text[0] == '[' || text[0] == '{')
        return json_loads(text, 0, NULL);
    return job_json_num(strtod(text, NULL));
}

const char *job_json_kind(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

/* The segment after the slash at `p`; returns its end. */
static const char *segment(const char *p, size_t *ret_len)
{
    size_t n = strcspn(p + 1, "/");

    *ret_len = n;
    return p + 1 + n;
}

json_t *job_json_num(double v)
{
    return v == floor(v) && fabs(v) < 1e15 ? json_integer((json_int_t)v) : json_real(v);
}

json_t *job_json_at(json_t *root, const char *pointer)
{
    json_t *v = root;
    size_t n;

    while (*pointer) {
        const char *key = pointer + 1;
        pointer = segment(pointer, &n);
        v = json_object_getn(v, key, n);
        if (!v)
            return NULL;
    }
    return v;
}

json_t *job_json_copy(json_t *v)
{
    json_t *copy, *child;
    const char *key;
    size_t i;

    if (json_is_object(v)) {
        copy = json_object();
        json_object_foreach(v, key, child)
        {
            if (json_object_set_new(copy, key, job_json_copy(child)) != 0)
                goto fail;
        }
        return copy;
    }
    if (json_is_array(v)) {
        copy = json_array();
        json_array_foreach(v, i, child)
        {
            if (json_array_append_new(copy, job_json_copy(child)) != 0)
                goto fail;
        }
        return copy;
    }
    return json_incref(v); /* never changed in place */
fail:
    json_decref(copy);
    return NULL;
}

bool job_json_merge(json_t *to, json_t *from)
{
    const char *key;
    json_t *child;

    json_object_foreach(from, key, child)
    {
        json_t *old = json_object_get(to, key);
        if (json_is_object(old) && json_is_object(child)) {
            if (!job_json_merge(old, child))
                return false;
        } else if (json_is_object(child)) {
            json_t *copy = job_json_copy(child); /* so that a later merge does not change the original */
            if (!copy || json_object_set_new(to, key, copy) != 0)
                return false;
        } else if (json_object_set(to, key, child) != 0) {
            return false;
        }
    }
    return true;
}

bool job_json_put(json_t *root, const char *pointer, json_t *v)
{
    json_t *at = root;
    size_t n;
    bool ok = false;

    if (!v)
        return false;
    for (;;) {
        const char *key = pointer + 1;
        json_t *next;
        pointer = segment(pointer, &n);
        if (!*pointer) {
            json_t *old = json_object_getn(at, key, n);
            if (json_is_object(old) && json_is_object(v))
                ok = job_json_merge(old, v);
            else
                ok = json_object_setn(at, key, n, v) == 0;
            break;
        }
        next = json_object_getn(at, key, n);
        if (!json_is_object(next)) {
            next = json_object();
            if (!next || json_object_setn_new(at, key, n, next) != 0)
                break;
        }
        at = next;
    }
    json_decref(v);
    return ok;
}
