#include "api/check.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HOST_BYTES 256 /* DNS names have at most 253 */

bool api_host_split(const char *host, char *name, size_t size, int *ret_port)
{
    const char *end;
    size_t len;
    int port = -1;

    if (host[0] == '[') {
        end = strchr(host, ']');
        if (!end)
            return false;
        end++;
    } else {
        end = host + strcspn(host, ":");
    }
    len = (size_t)(end - host);
    if (len == 0 || len >= size)
        return false;
    if (*end == ':') {
        char *rest;
        long value;

        if (!isdigit((unsigned char)end[1]))
            return false;
        value = strtol(end + 1, &rest, 10);
        if (*rest || value < 1 || value > 65535)
            return false;
        port = (int)value;
    } else if (*end) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)host[i];

        if (c <= ' ' || c >= 127 || strchr("/?#@\\\"'<>", c))
            return false;
        name[i] = (char)tolower(c);
    }
    if (len > 1 && name[len - 1] == '.') /* "localhost." is the same name */
        len--;
    name[len] = '\0';
    *ret_port = port;
    return true;
}

static bool loopback_name(const char *name)
{
    struct in_addr v4;

    if (strcmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0)
        return true;
    return inet_pton(AF_INET, name, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

/* Copies the next trimmed item of a comma-separated list; items too long for it are passed over. */
static bool list_next(const char **cursor, char *item, size_t size)
{
    const char *p = *cursor;

    while (p && *p) {
        size_t n, len;

        p += strspn(p, ", \t");
        n = strcspn(p, ",");
        len = n;
        while (len && (p[len - 1] == ' ' || p[len - 1] == '\t'))
            len--;
        *cursor = p + n;
        if (len && len < size) {
            memcpy(item, p, len);
            item[len] = '\0';
            return true;
        }
        p += n;
    }
    return false;
}

static bool listed_host(const char *list, const char *name, int port)
{
    char item[HOST_BYTES], item_name[HOST_BYTES];
    int item_port;

    while (list_next(&list, item, sizeof item))
        if (api_host_split(item, item_name, sizeof item_name, &item_port) && strcmp(item_name, name) == 0 &&
            (item_port < 0 || item_port == port))
            return true;
    return false;
}

bool api_host_ok(const struct api_allow *allow, const char *host)
{
    char name[HOST_BYTES];
    int port;

    if (!host || !api_host_split(host, name, sizeof name, &port))
        return false;
    if (loopback_name(name) || listed_host(allow->hosts, name, port))
        return true;
    /* A wildcard address is not a host name: then the configuration must list the names. */
    return allow->bind && allow->bind[0] && strcmp(allow->bind, "0.0.0.0") != 0 &&
           strcmp(allow->bind, "::") != 0 && listed_host(allow->bind, name, port);
}

bool api_origin_ok(const struct api_allow *allow, const char *origin, const char *host)
{
    char item[HOST_BYTES], origin_name[HOST_BYTES], host_name[HOST_BYTES];
    const char *list = allow->origins, *authority;
    int origin_port, host_port, default_port;

    while (list_next(&list, item, sizeof item))
        if (strcasecmp(item, origin) == 0)
            return true;
    if (strncasecmp(origin, "http://", 7) == 0) {
        authority = origin + 7;
        default_port = 80;
    } else if (strncasecmp(origin, "https://", 8) == 0) {
        authority = origin + 8;
        default_port = 443;
    } else {
        return false;
    }
    if (!host || !api_host_split(authority, origin_name, sizeof origin_name, &origin_port) ||
        !api_host_split(host, host_name, sizeof host_name, &host_port))
        return false;
    if (origin_port < 0)
        origin_port = default_port;
    if (host_port < 0)
        host_port = default_port;
    return origin_port == host_port && strcmp(origin_name, host_name) == 0;
}

bool api_media_type_is(const char *type, const char *wanted)
{
    size_t n = strlen(wanted);

    if (!type)
        return false;
    type += strspn(type, " \t");
    return strncasecmp(type, wanted, n) == 0 && (type[n] == '\0' || strchr("; \t", type[n]));
}

bool api_content_type_ok(enum api_body body, const char *type)
{
    switch (body) {
    case API_BODY_NONE:
        return !type || api_media_type_is(type, "application/json");
    case API_BODY_JSON:
    case API_BODY_JSON_OR_EMPTY:
        return api_media_type_is(type, "application/json");
    case API_BODY_TENSORS:
        return api_media_type_is(type, "application/json") ||
               api_media_type_is(type, "application/octet-stream") || api_media_type_is(type, "image/jpeg") ||
               api_media_type_is(type, "image/png");
    case API_BODY_JSON_OR_FILE:
        return api_media_type_is(type, "application/json") ||
               api_media_type_is(type, "application/octet-stream");
    }
    return false;
}

bool api_etag_match(const char *list, const char *tag, bool weak)
{
    char item[128];

    while (list_next(&list, item, sizeof item)) {
        const char *it = item;

        if (strcmp(it, "*") == 0)
            return true;
        if (weak && strncmp(it, "W/", 2) == 0)
            it += 2;
        if (strcmp(it, tag) == 0)
            return true;
    }
    return false;
}

bool api_idempotency_key(const char *header, char *out, size_t size)
{
    size_t len = strlen(header);
    bool quoted = len >= 2 && header[0] == '"' && header[len - 1] == '"';
    size_t n = 0;

    if (quoted) {
        header++;
        len -= 2;
    }
    for (size_t i = 0; i < len; i++) {
        char c = header[i];

        if (quoted && c == '\\' && i + 1 < len)
            c = header[++i];
        else if (quoted && (c == '"' || c == '\\'))
            return false;
        if (c < ' ' || c > '~' || (!quoted && (c == ' ' || c == '"' || c == ',' || c == ';')))
            return false;
        if (n + 1 >= size || n == 255)
            return false;
        out[n++] = c;
    }
    if (n == 0)
        return false;
    out[n] = '\0';
    return true;
}
