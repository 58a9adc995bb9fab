/* The parts of a request line and of headers that api reads by itself: path, query, percent-encoding, Host,
 * Origin, Content-Type, entity tags, idempotency keys, cursors, ids and times. The bytes are one text, cut at
 * newlines into up to three pieces, since most functions compare two. */
#include <stdlib.h>
#include <string.h>

#include "api/check.h"
#include "api/cursor.h"
#include "api/ingest.h"
#include "api/json.h"
#include "api/route.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void path(const char *text)
{
    static const char *const templates[] = {"/api/v1/jobs/{id}", "/v2/models/{m}/versions/{v}/infer",
                                            "/x/{a}/y", "/{asset}", "/api/v1/jobs"};
    struct api_params p;

    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        if (!api_path_match(templates[i], text, &p))
            continue;
        if (p.count < 0 || p.count > API_PARAMS_MAX)
            abort();
        for (int k = 0; k < p.count; k++) {
            if (strlen(p.value[k]) >= API_PARAM_BYTES)
                abort();
        }
    }
    (void)api_surface_of(text);
    (void)api_method_parse(text);
}

static void query(const char *text, const char *name)
{
    static const char *const names[] = {"a", "limit", "cursor", NULL};
    char value[64], other[32];

    for (int n = 0; n < 3; n++) {
        if (api_query_get(text, name, n, value, sizeof value) == PD_OK && strlen(value) >= sizeof value)
            abort();
    }
    if (!api_query_known(text, names, other, sizeof other) && strlen(other) >= sizeof other)
        abort();
    if (api_percent_decode(text, strlen(text), true, value, sizeof value) == PD_OK &&
        strlen(value) > strlen(text))
        abort();
}

static void headers(const char *a, const char *b)
{
    struct api_allow allow = {.hosts = b, .origins = b, .bind = "127.0.0.1"};
    char name[64], key[64];
    int port;

    if (api_host_split(a, name, sizeof name, &port) &&
        (strlen(name) >= sizeof name || port < -1 || port > 65535))
        abort();
    (void)api_host_ok(&allow, a);
    (void)api_origin_ok(&allow, a, b);
    for (int body = API_BODY_NONE; body <= API_BODY_TENSORS; body++)
        (void)api_content_type_ok((enum api_body)body, a);
    (void)api_media_type_is(a, "application/json");
    (void)api_etag_match(a, b, false);
    (void)api_etag_match(a, b, true);
    if (api_idempotency_key(a, key, sizeof key) && (strlen(key) >= sizeof key || !*key))
        abort();
}

static void values(const char *text, size_t len)
{
    static const uint8_t secret[32] = {1, 2, 3};
    char again[API_CURSOR_TEXT];
    int64_t id, us;
    size_t at = 0, step;

    if (api_cursor_read(secret, "jobs newest", text, &id) &&
        strcmp(api_cursor_write(secret, "jobs newest", id, again), text) != 0)
        abort(); /* one place has one text */
    if (api_parse_id(text, &id) && id < 1)
        abort();
    if (api_parse_int(text, -5, 5, &id) && (id < -5 || id > 5))
        abort();
    (void)api_parse_time(text, len, &us);
    if (api_utf8_complete(text, len) > len || len - api_utf8_complete(text, len) > 3)
        abort();
    while (at < len && (step = api_utf8_step(text + at, len - at)) > 0) {
        if (step > 4 || at + step > len)
            abort();
        at += step;
    }
    if (api_utf8_valid(text, len) != (at == len))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *piece[3], *text = malloc(len + 1), *line;
    int count = 1;

    if (!text)
        return 0;
    if (len)
        memcpy(text, bytes, len);
    text[len] = 0;
    values(text, len);
    piece[0] = piece[1] = piece[2] = text;
    for (line = text; count < 3 && (line = strchr(line, '\n')); count++) {
        *line++ = 0;
        piece[count] = line;
    }
    for (int i = 0; i < count; i++) {
        /* Copies of exactly this length: a byte read beyond the end is seen. */
        char *one = strdup(piece[i]);

        path(one);
        query(one, piece[(i + 1) % 3]);
        headers(one, piece[(i + 1) % 3]);
        free(one);
    }
    free(text);
    return 0;
}
