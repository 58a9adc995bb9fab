/* The answer of a request: set by its handler, handed to libmicrohttpd once. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/gzip.h"
#include "api/internal.h"
#include "kernels/base/log.h"

void api_answer_reset(struct api_req *r)
{
    pd_buf_done(&r->out);
    api_sending_free(r->sending);
    r->sending = NULL;
    r->out_static = NULL;
    r->out_static_len = 0;
    r->answered = true;
}

void api_reply(struct api_req *r, int status, const char *type, struct pd_buf *body)
{
    if (pd_buf_err(body) != PD_OK) {
        pd_buf_done(body);
        api_fail(r, PD_ERR_NOMEM, "no memory for the answer");
        return;
    }
    api_answer_reset(r);
    r->status = status;
    r->type = type;
    r->out = *body;
    pd_buf_init(body, 0); /* moved */
}

void api_reply_json(struct api_req *r, int status, struct pd_buf *body)
{
    api_reply(r, status, "application/json", body);
}

void api_reply_static(struct api_req *r, int status, const char *type, const void *bytes, size_t len)
{
    api_answer_reset(r);
    r->status = status;
    r->type = type;
    r->out_static = bytes;
    r->out_static_len = len;
}

void api_reply_empty(struct api_req *r, int status)
{
    api_reply_static(r, status, NULL, "", 0);
}

void api_reply_header(struct api_req *r, const char *name, const char *value)
{
    struct header *h = NULL;
    char *copy = strdup(value);

    if (!copy)
        return;
    for (int i = 0; i < r->headers; i++)
        if (strcmp(r->header[i].name, name) == 0)
            h = &r->header[i];
    if (!h) {
        if (r->headers == HEADERS_MAX) {
            free(copy);
            return;
        }
        h = &r->header[r->headers++];
    }
    free(h->value);
    *h = (struct header){.name = name, .value = copy};
}

void api_answer_free_headers(struct api_req *r)
{
    while (r->headers)
        free(r->header[--r->headers].value);
}

void api_retry_after(struct api_req *r, int seconds)
{
    char text[16];

    snprintf(text, sizeof text, "%d", seconds);
    api_reply_header(r, "Retry-After", text);
}

static void fail_full(struct api_req *r, int fault, const char *message, const char *details,
                      const char *param)
{
    struct pd_buf b;
    const char *type;
    int status;

    pd_buf_init(&b, 0);
    status = api_fault_body(&b, r->surface, fault, message, details, param, &type);
    api_answer_reset(r);
    r->failed = true;
    r->status = status;
    r->type = type;
    if (pd_buf_err(&b) != PD_OK) {
        pd_buf_done(&b);
        r->type = NULL;
        r->out_static = "";
        return;
    }
    r->out = b;
    if (status == 503 || status == 429) {
        bool has = false;

        for (int i = 0; i < r->headers; i++)
            has = has || strcmp(r->header[i].name, "Retry-After") == 0;
        if (!has)
            api_retry_after(r, 1);
    }
    if (status == 500) {
        char quoted[600], path[200];

        pd_log(PD_LOG_ERROR, "api", "path=%s status=%d why=%s", pd_log_quote(path, sizeof path, r->path),
               status, pd_log_quote(quoted, sizeof quoted, message));
    }
}

void api_fail(struct api_req *r, int fault, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, NULL, NULL);
}

void api_fail_why(struct api_req *r, enum pd_err err, const struct pd_why *why)
{
    fail_full(r, (int)err, why && why->text[0] ? why->text : pd_err_name(err), NULL, NULL);
}

void api_fail_details(struct api_req *r, int fault, const char *details, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, details, NULL);
}

void api_fail_param(struct api_req *r, int fault, const char *param, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_full(r, fault, message, NULL, param);
}

enum MHD_Result api_answer_send(struct api_req *r)
{
    struct MHD_Response *response;
    enum MHD_Result result;
    bool cached = false, varies = false, gzip = false;

    if (r->stream) {
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, api_stream_read, r->stream,
                                                     api_stream_done);
        if (!response)
            return MHD_NO;
        r->stream = NULL; /* moved */
    } else if (r->sending) {
        response = api_sending_response(r->sending);
        r->sending = NULL; /* moved */
        if (!response)
            return MHD_NO;
    } else if (r->out.len) {
        size_t len = r->out.len, less = 0;
        char *bytes = pd_buf_take(&r->out), *small = NULL;

        varies = len >= API_GZIP_LEAST && r->type && strncmp(r->type, "application/json", 16) == 0;
        if (varies && api_gzip_accepted(api_header(r, "Accept-Encoding")))
            small = api_gzip(bytes, len, &less);
        if (small) {
            free(bytes);
            bytes = small;
            len = less;
            gzip = true;
        }

        response = MHD_create_response_from_buffer(len, bytes, MHD_RESPMEM_MUST_FREE);
        if (!response) {
            free(bytes);
            return MHD_NO;
        }
    } else {
        /* The cast drops const only for the signature: PERSISTENT bytes are never written. */
        response = MHD_create_response_from_buffer(r->out_static_len,
                                                   (void *)(uintptr_t)(r->out_static ? r->out_static : ""),
                                                   MHD_RESPMEM_PERSISTENT);
        if (!response)
            return MHD_NO;
    }
    if (r->type)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, r->type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (varies)
        MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, "Accept-Encoding");
    if (gzip)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_ENCODING, "gzip");
    for (int i = 0; i < r->headers; i++) {
        MHD_add_response_header(response, r->header[i].name, r->header[i].value);
        cached = cached || strcmp(r->header[i].name, "Cache-Control") == 0;
    }
    if (!cached)
        MHD_add_response_header(response, "Cache-Control", "no-store");
    result = MHD_queue_response(r->connection, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return result;
}
