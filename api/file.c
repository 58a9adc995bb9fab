/* Memory per download is one block (READ_BYTES) and the header; a file of one part without a header goes from the
 * page cache to the socket by sendfile. */
#include "api/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/check.h"
#include "api/internal.h"
#include "api/range.h"
#include "daemon/digest/digest.h"

#define READ_BYTES (256u * 1024u)
#define AHEAD_BYTES                                                                                          \
    (4 * 1024 * 1024) /* the kernel is asked to read so far ahead: the loop must not wait for a disk */

void api_file_done(struct api_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->head);
    free(f->parts);
    *f = (struct api_file){.fd = -1};
}

/* What libmicrohttpd reads from. */
struct api_sending {
    struct api_file file;
    uint64_t first, count; /* of the file's bytes */
    uint64_t ahead;        /* of the file's bytes: asked for already */
};

/* Bytes at `at` of head and parts, at most `size`, from one of them; -1: the file is shorter than it was. */
static ssize_t read_at(struct api_sending *s, uint64_t at, char *out, size_t size)
{
    const struct api_file *f = &s->file;

    if (at < f->head_bytes) {
        size_t left = f->head_bytes - (size_t)at;

        memcpy(out, f->head + at, left < size ? left : size);
        return (ssize_t)(left < size ? left : size);
    }
    at -= f->head_bytes;
    for (size_t i = 0; i < f->part_count; i++) {
        const struct api_file_part *p = &f->parts[i];
        ssize_t n;

        if (at >= p->bytes) {
            at -= p->bytes;
            continue;
        }
        if (size > p->bytes - at)
            size = (size_t)(p->bytes - at);
        if (p->offset + at + size > s->ahead) {
            s->ahead = p->offset + at + AHEAD_BYTES;
            (void)posix_fadvise(f->fd, (off_t)(p->offset + at), AHEAD_BYTES, POSIX_FADV_WILLNEED);
        }
        do
            n = pread(f->fd, out, size, (off_t)(p->offset + at));
        while (n < 0 && errno == EINTR);
        return n > 0 ? n : -1;
    }
    return -1;
}

static ssize_t send_more(void *cls, uint64_t pos, char *out, size_t size)
{
    struct api_sending *s = cls;
    ssize_t n;

    if (pos >= s->count)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (size > s->count - pos)
        size = (size_t)(s->count - pos);
    n = read_at(s, s->first + pos, out, size);
    return n > 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

static void send_done(void *cls)
{
    struct api_sending *s = cls;

    api_file_done(&s->file);
    free(s);
}

void api_sending_free(struct api_sending *s)
{
    if (s)
        send_done(s);
}

struct MHD_Response *api_sending_response(struct api_sending *s)
{
    struct MHD_Response *response;

    if (!s->file.head_bytes && s->file.part_count == 1) {
        response =
            MHD_create_response_from_fd_at_offset64(s->count, s->file.fd, s->file.parts[0].offset + s->first);
        if (response)
            s->file.fd = -1; /* moved to libmicrohttpd */
        api_sending_free(s);
        return response;
    }
    response = MHD_create_response_from_callback(s->count, READ_BYTES, send_more, s, send_done);
    if (!response)
        api_sending_free(s);
    return response;
}

/* Strong tags are compared byte by byte; a date says nothing about these files. */
static bool range_is_current(struct api_req *r, const char *tag)
{
    const char *condition = api_header(r, "If-Range");

    return !condition || !strcmp(condition, tag);
}

static void digest_header(struct api_req *r, const char *sha256)
{
    uint8_t bytes[DIGEST_SHA256_BYTES];
    char base64[DIGEST_BASE64_SIZE(DIGEST_SHA256_BYTES)], value[80];

    if (!digest_unhex(sha256, bytes, sizeof bytes))
        return;
    snprintf(value, sizeof value, "sha-256=:%s:", digest_base64(bytes, sizeof bytes, base64));
    api_reply_header(r, "Repr-Digest", value);
}

void api_reply_file(struct api_req *r, struct api_file *f, const char *sha256, const char *name)
{
    const char *known = api_header(r, "If-None-Match");
    char tag[DIGEST_SHA256_HEX_SIZE + 2], text[256];
    uint64_t first = 0, count = f->bytes;
    enum api_range range = API_RANGE_WHOLE;
    struct api_sending *s;

    snprintf(tag, sizeof tag, "\"%s\"", sha256);
    if (range_is_current(r, tag))
        range = api_range_parse(api_header(r, "Range"), f->bytes, &first, &count);
    api_reply_header(r, "ETag", tag);
    api_reply_header(r, "Cache-Control", "no-cache");
    api_reply_header(r, "Accept-Ranges", "bytes");
    if (known && api_etag_match(known, tag, true)) {
        api_file_done(f);
        api_reply_empty(r, 304);
        return;
    }
    if (range == API_RANGE_OUTSIDE) {
        snprintf(text, sizeof text, "bytes */%llu", (unsigned long long)f->bytes);
        api_reply_header(r, "Content-Range", text);
        api_fail(r, API_FAULT_RANGE, "the file has %llu bytes, none of them in this range",
                 (unsigned long long)f->bytes);
        api_file_done(f);
        return;
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        api_file_done(f);
        api_fail(r, PD_ERR_NOMEM, "no memory for the download");
        return;
    }
    s->file = *f;
    s->first = first;
    s->count = count;
    *f = (struct api_file){.fd = -1}; /* moved */
    digest_header(r, sha256);
    snprintf(text, sizeof text, "attachment; filename=\"%s\"", name);
    api_reply_header(r, "Content-Disposition", text);
    if (range == API_RANGE_PART) {
        snprintf(text, sizeof text, "bytes %llu-%llu/%llu", (unsigned long long)first,
                 (unsigned long long)(first + count - 1), (unsigned long long)s->file.bytes);
        api_reply_header(r, "Content-Range", text);
    }
    api_answer_reset(r);
    r->sending = s;
    r->status = range == API_RANGE_PART ? 206 : 200;
    r->type = "application/octet-stream";
}
