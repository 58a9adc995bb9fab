#include "api/route.h"

#include <string.h>

/* Kept apart from the table (routes.c), so that tests and the fuzzer link without the handlers. */

static const char *const method_names[API_METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};

enum api_method api_method_parse(const char *method)
{
    if (strcmp(method, "HEAD") == 0)
        return API_GET;
    for (int i = 0; i < API_METHOD_COUNT; i++)
        if (strcmp(method, method_names[i]) == 0)
            return (enum api_method)i;
    return API_METHOD_UNKNOWN;
}

const char *api_method_name(enum api_method method)
{
    return method < API_METHOD_COUNT ? method_names[method] : "?";
}

static bool under(const char *path, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(path, prefix, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

enum api_surface api_surface_of(const char *path)
{
    if (under(path, "/v2"))
        return API_SURFACE_OIP;
    if (under(path, "/v1") || under(path, "/tokenize") || under(path, "/detokenize"))
        return API_SURFACE_OPENAI;
    if (under(path, "/api/v1"))
        return API_SURFACE_OWN;
    return API_SURFACE_PAGE;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

enum pd_err api_percent_decode(const char *in, size_t len, bool plus, char *out, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        char c = in[i];

        if (c == '%') {
            int high = -1, low = -1;

            if (len - i > 2) {
                high = hex_value(in[i + 1]);
                low = hex_value(in[i + 2]);
            }
            if (high < 0 || low < 0)
                return PD_ERR_INVALID;
            c = (char)(high * 16 + low);
            i += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        if (c == '\0')
            return PD_ERR_INVALID;
        if (n + 1 >= size)
            return PD_ERR_LIMIT;
        out[n++] = c;
    }
    if (size == 0)
        return PD_ERR_LIMIT;
    out[n] = '\0';
    return PD_OK;
}

bool api_path_match(const char *tmpl, const char *path, struct api_params *params)
{
    struct api_params found;
    const char *t = tmpl, *p = path;

    found.count = 0;
    for (;;) {
        size_t tn = strcspn(t, "/"), pn = strcspn(p, "/");

        if (strcmp(t, "{asset}") == 0 && found.count < API_PARAMS_MAX) {
            if (api_percent_decode(p, strlen(p), false, found.value[found.count], API_PARAM_BYTES) != PD_OK)
                return false;
            found.count++;
            break;
        }
        if (tn > 2 && t[0] == '{') {
            if (pn == 0 || found.count == API_PARAMS_MAX ||
                api_percent_decode(p, pn, false, found.value[found.count], API_PARAM_BYTES) != PD_OK)
                return false;
            found.count++;
        } else if (tn != pn || memcmp(t, p, tn) != 0) {
            return false;
        }
        t += tn;
        p += pn;
        if (*t != *p)
            return false;
        if (*t == '\0')
            break;
        t++;
        p++;
    }
    params->count = found.count;
    for (int i = 0; i < found.count; i++)
        memcpy(params->value[i], found.value[i], API_PARAM_BYTES);
    return true;
}

/* Takes the next name=value piece off the query string; false at its end. */
static bool next_pair(const char **cursor, const char **name, size_t *name_len, const char **value,
                      size_t *value_len)
{
    const char *q = *cursor;
    size_t n;

    while (*q == '&')
        q++;
    if (*q == '\0')
        return false;
    n = strcspn(q, "&");
    *name = q;
    *name_len = strcspn(q, "=&");
    if (*name_len < n) {
        *value = q + *name_len + 1;
        *value_len = n - *name_len - 1;
    } else {
        *value = q + n;
        *value_len = 0;
    }
    *cursor = q + n;
    return true;
}

enum pd_err api_query_get(const char *query, const char *name, int n, char *out, size_t size)
{
    const char *key, *value;
    size_t key_len, value_len;
    char decoded[128];

    while (query && next_pair(&query, &key, &key_len, &value, &value_len)) {
        if (api_percent_decode(key, key_len, true, decoded, sizeof decoded) != PD_OK ||
            strcmp(decoded, name) != 0)
            continue;
        if (n-- == 0)
            return api_percent_decode(value, value_len, true, out, size);
    }
    return PD_ERR_NOT_FOUND;
}

bool api_query_known(const char *query, const char *const *names, char *unknown, size_t size)
{
    const char *key, *value;
    size_t key_len, value_len;

    while (query && next_pair(&query, &key, &key_len, &value, &value_len)) {
        char decoded[128];
        const char *const *n = names;

        if (api_percent_decode(key, key_len, true, decoded, sizeof decoded) != PD_OK)
            memcpy(decoded, "?", 2);
        while (*n && strcmp(*n, decoded) != 0)
            n++;
        if (!*n) {
            size_t len = strlen(decoded);

            if (len >= size)
                len = size - 1;
            memcpy(unknown, decoded, len);
            unknown[len] = '\0';
            return false;
        }
    }
    return true;
}
