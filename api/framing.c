#include "api/framing.h"

#include <stdint.h>
#include <string.h>
#include <strings.h>

/* Fields of which one value decides. */
enum single {
    SINGLE_LENGTH,
    SINGLE_ENCODING,
    SINGLE_HOST,
    SINGLE_TYPE,
    SINGLE_ORIGIN,
    SINGLE_EXPECT,
    SINGLE_KEY,
    SINGLE_AUTHORIZATION,
    SINGLE_TENSORS,
    SINGLE_COUNT
};

static const struct {
    const char *name, *twice;
} singles[SINGLE_COUNT] = {
    [SINGLE_LENGTH] = {"Content-Length", "the request has two Content-Length headers"},
    [SINGLE_ENCODING] = {"Transfer-Encoding", "the request has two Transfer-Encoding headers"},
    [SINGLE_HOST] = {"Host", "the request has two Host headers"},
    [SINGLE_TYPE] = {"Content-Type", "the request has two Content-Type headers"},
    [SINGLE_ORIGIN] = {"Origin", "the request has two Origin headers"},
    [SINGLE_EXPECT] = {"Expect", "the request has two Expect headers"},
    [SINGLE_KEY] = {"Idempotency-Key", "the request has two Idempotency-Key headers"},
    [SINGLE_AUTHORIZATION] = {"Authorization", "the request has two Authorization headers"},
    [SINGLE_TENSORS] = {"Inference-Header-Content-Length",
                        "the request has two Inference-Header-Content-Length headers"},
};

static bool is_token(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c <= ' ' || c >= 127 || strchr("\"(),/:;<=>?@[\\]{}", c))
            return false;
    }
    return len > 0;
}

static bool has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\t') || text[i] == 127)
            return true;
    return false;
}

static bool has_blank(const char *text)
{
    return has_control(text, strlen(text)) || strpbrk(text, " \t");
}

static bool is(const struct api_field *f, const char *name)
{
    return f->name_len == strlen(name) && strncasecmp(f->name, name, f->name_len) == 0;
}

static bool digits_only(const struct api_field *f)
{
    for (size_t i = 0; i < f->value_len; i++)
        if (f->value[i] < '0' || f->value[i] > '9')
            return false;
    return f->value_len > 0;
}

const char *api_framing_fault(const struct api_request_line *line, const struct api_field *fields,
                              size_t count)
{
    const struct api_field *found[SINGLE_COUNT] = {NULL};

    if (strlen(line->version) != 8 || strncmp(line->version, "HTTP/1.", 7) != 0 || line->version[7] < '0' ||
        line->version[7] > '9')
        return "the request's version is not of the form HTTP/1.1";
    if (!is_token(line->method, strlen(line->method)))
        return "the request's method has a character that methods may not have";
    if (has_blank(line->path) || (line->query && has_blank(line->query)))
        return "the request's target has a blank or a control character";
    for (size_t i = 0; i < count; i++) {
        const struct api_field *f = &fields[i];

        if (!is_token(f->name, f->name_len))
            return "a header's name has a character that names may not have";
        if (has_control(f->value, f->value_len))
            return "a header's value has a control character";
        for (int k = 0; k < SINGLE_COUNT; k++) {
            if (!is(f, singles[k].name))
                continue;
            if (found[k])
                return singles[k].twice;
            found[k] = f;
        }
    }
    if (!found[SINGLE_HOST] || !found[SINGLE_HOST]->value_len)
        return "the request has no Host header";
    if (found[SINGLE_LENGTH] && found[SINGLE_ENCODING])
        return "the request has both a Content-Length and a Transfer-Encoding";
    if (found[SINGLE_LENGTH] && !digits_only(found[SINGLE_LENGTH]))
        return "Content-Length is not a number";
    if (found[SINGLE_ENCODING]) {
        const struct api_field *f = found[SINGLE_ENCODING];

        if (f->value_len != strlen("chunked") || strncasecmp(f->value, "chunked", f->value_len) != 0)
            return "the only Transfer-Encoding that is read is 'chunked'";
        if (strcmp(line->version, "HTTP/1.0") == 0)
            return "HTTP/1.0 has no Transfer-Encoding";
    }
    return NULL;
}

/* Did a CRLF stand at `at`, which the library made zeros, inside the head? */
static bool was_crlf(const struct api_head_layout *head, uintptr_t at)
{
    size_t offset = at - (uintptr_t)head->method;

    return offset + 2 <= head->head_bytes && head->method[offset] == 0 && head->method[offset + 1] == 0;
}

bool api_framing_adjacent(const struct api_head_layout *head, const struct api_field *fields, size_t count)
{
    uintptr_t start = (uintptr_t)head->method, at;

    if ((uintptr_t)head->target != start + strlen(head->method) + 1 ||
        (uintptr_t)head->version != (uintptr_t)head->target + head->target_len + 1)
        return false;
    at = (uintptr_t)head->version + strlen(head->version);
    for (size_t i = 0; i < count; i++) {
        const struct api_field *f = &fields[i];

        if (!was_crlf(head, at))
            return false;
        at += 2;
        /* Between name and value are the colon and blanks. */
        if ((uintptr_t)f->name != at || (uintptr_t)f->value < at + f->name_len + 1)
            return false;
        at = (uintptr_t)f->value + f->value_len;
    }
    return was_crlf(head, at) && was_crlf(head, at + 2) && at + 4 == start + head->head_bytes;
}
