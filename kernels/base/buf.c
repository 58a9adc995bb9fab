#include "kernels/base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pd_buf_init(struct pd_buf *b, size_t limit)
{
    *b = (struct pd_buf){.limit = limit};
}

void pd_buf_done(struct pd_buf *b)
{
    free(b->data);
    *b = (struct pd_buf){.limit = b->limit};
}

void *pd_buf_reserve(struct pd_buf *b, size_t len)
{
    size_t need = b->len + len + 1; /* + the NUL */
    char *at;

    if (b->failed)
        return NULL;
    if (need < len || (b->limit && b->len + len > b->limit)) {
        b->failed = true;
        return NULL;
    }
    if (need > b->size) {
        size_t size = b->size ? b->size : 64;
        char *data;

        while (size < need)
            size = size > SIZE_MAX / 2 ? need : size * 2;
        data = realloc(b->data, size);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->size = size;
    }
    at = b->data + b->len;
    b->len += len;
    b->data[b->len] = '\0';
    return at;
}

void pd_buf_append(struct pd_buf *b, const void *bytes, size_t len)
{
    void *at = pd_buf_reserve(b, len);

    if (at && len)
        memcpy(at, bytes, len);
}

void pd_buf_str(struct pd_buf *b, const char *text)
{
    pd_buf_append(b, text, strlen(text));
}

void pd_buf_printf(struct pd_buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < sizeof small) {
        pd_buf_append(b, small, (size_t)n);
    } else {
        char *at = pd_buf_reserve(b, (size_t)n);

        if (at) {
            va_start(ap, fmt);
            vsnprintf(at, (size_t)n + 1, fmt, ap); /* pd_buf_reserve allocates the byte for the NUL */
            va_end(ap);
        }
    }
}

void pd_buf_consume(struct pd_buf *b, size_t len)
{
    if (len > b->len)
        len = b->len;
    if (!len)
        return;
    memmove(b->data, b->data + len, b->len - len);
    b->len -= len;
    b->data[b->len] = '\0';
}

char *pd_buf_take(struct pd_buf *b)
{
    char *data = b->data;

    if (b->failed) {
        pd_buf_done(b);
        return NULL;
    }
    *b = (struct pd_buf){.limit = b->limit};
    return data;
}

enum pd_err pd_buf_err(const struct pd_buf *b)
{
    if (!b->failed)
        return PD_OK;
    return b->limit && b->len >= b->limit / 2 ? PD_ERR_LIMIT : PD_ERR_NOMEM;
}
