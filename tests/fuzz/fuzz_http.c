/* The parts of a request line and of headers that api reads by itself: path, query, percent-encoding, Host,
 * Origin, Content-Type, entity tags, idempotency keys, cursors, ids and times. The bytes are one text, cut at
 * newlines into up to three pieces, since most functions compare two. And the head of a request, cut in place
 * the lenient way that libmicrohttpd has: what api accepts of it must be strict. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/check.h"
#include "api/cursor.h"
#include "api/framing.h"
#include "api/ingest.h"
#include "api/json.h"
#include "api/range.h"
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
    for (int body = API_BODY_NONE; body <= API_BODY_JSON_OR_FILE; body++)
        (void)api_content_type_ok((enum api_body)body, a);
    (void)api_media_type_is(a, "application/json");
    (void)api_etag_match(a, b, false);
    (void)api_etag_match(a, b, true);
    for (uint64_t size = 0; size <= 1000; size += 500) {
        uint64_t first, count;

        if (api_range_parse(a, size, &first, &count) == API_RANGE_PART &&
            (!count || first >= size || count > size - first))
            abort();
    }
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

/* Ends the next line with zeros at CRLF or LF. NULL: there is none. */
static char *cut_line(char **at, const char *end)
{
    char *line = *at, *lf = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;

    if (!lf)
        return NULL;
    *lf = 0;
    if (lf > line && lf[-1] == '\r')
        lf[-1] = 0;
    *at = lf + 1;
    return line;
}

/* Did the accepted bytes have CRLF after every line, nothing else below a blank but tabs, and one host? */
static void strict(const uint8_t *bytes, size_t len)
{
    int hosts = 0, lengths = 0, encodings = 0;

    for (size_t i = 0; i < len; i++) {
        if (bytes[i] == '\n' ? i == 0 || bytes[i - 1] != '\r'
                             : bytes[i] < ' ' && bytes[i] != '\t' &&
                                   !(bytes[i] == '\r' && i + 1 < len && bytes[i + 1] == '\n'))
            abort();
        if (bytes[i] == '\n' && i + 1 < len) {
            const char *next = (const char *)bytes + i + 1;
            size_t left = len - i - 1;

            if (*next == ' ' || *next == '\t')
                abort();
            hosts += left > 5 && strncasecmp(next, "host:", 5) == 0;
            lengths += left > 15 && strncasecmp(next, "content-length:", 15) == 0;
            encodings += left > 18 && strncasecmp(next, "transfer-encoding:", 18) == 0;
        }
    }
    if (hosts != 1 || lengths + encodings > 1)
        abort();
}

static void head(const uint8_t *bytes, size_t len)
{
    struct api_field fields[16];
    struct api_request_line line = {.method = NULL};
    struct api_head_layout layout = {.method = NULL};
    char *text = malloc(len + 1), *at = text, *one, *blank;
    size_t count = 0;
    bool ended = false;

    if (!text)
        return;
    if (len)
        memcpy(text, bytes, len);
    text[len] = 0;
    one = cut_line(&at, text + len);
    if (!one || !(blank = strchr(one, ' ')))
        goto out;
    *blank++ = 0;
    line.method = layout.method = one;
    blank += strspn(blank, " ");
    line.path = layout.target = blank;
    blank = strrchr(blank, ' ');
    if (!blank)
        goto out;
    *blank++ = 0;
    line.version = layout.version = blank;
    layout.target_len = strlen(layout.target);
    while (count < 16 && (one = cut_line(&at, text + len))) {
        char *colon = strchr(one, ':');

        if (!*one) {
            ended = true;
            break;
        }
        if (*one == ' ' || *one == '\t') /* folded: joined to what stands before it, without a trace */
            continue;
        if (!colon)
            goto out;
        *colon++ = 0;
        colon += strspn(colon, " \t");
        fields[count++] = (struct api_field){one, colon, strlen(one), strlen(colon)};
    }
    layout.head_bytes = (size_t)(at - text);
    /* A zero byte at the end of a line cannot always be told from a CR that was overwritten. */
    if (ended && !memchr(bytes, 0, len) && api_framing_adjacent(&layout, fields, count) &&
        !api_framing_fault(&line, fields, count))
        strict(bytes, layout.head_bytes);
out:
    free(text);
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
    head(bytes, len);
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
