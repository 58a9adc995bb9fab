/* What arrives of a completion, on the supervisor's thread. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/generate.h"
#include "api/json.h"

#define TEXT_MAX (16u << 20) /* bytes of one choice that wait to be sent */

static const struct wire_tensor *tensor(const struct sup_result *part, const char *name, const char *dtype)
{
    for (uint32_t i = 0; i < part->count; i++)
        if (strcmp(part->tensors[i].name, name) == 0 && strcmp(part->tensors[i].dtype, dtype) == 0)
            return &part->tensors[i];
    return NULL;
}

static size_t count_chars(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static void add_logprobs(struct choice *c, const struct sup_result *part)
{
    const struct wire_tensor *text = tensor(part, "text", "UINT8"),
                             *lengths = tensor(part, "lengths", "INT32");
    const struct wire_tensor *values = tensor(part, "logprobs", "FP32");
    const struct wire_tensor *top_ids = tensor(part, "top_tokens", "INT32"),
                             *top_values = tensor(part, "top_logprobs", "FP32");
    const struct wire_tensor *top_text = tensor(part, "top_text", "UINT8"),
                             *top_lengths = tensor(part, "top_lengths", "INT32");
    size_t count = lengths ? lengths->bytes / 4 : 0, at = 0, top_at = 0;
    size_t width = top_ids && count ? top_ids->bytes / 4 / count : 0;

    if (!text || !lengths || !values || values->bytes / 4 < count ||
        (width && (!top_values || top_values->bytes < top_ids->bytes || !top_text || !top_lengths ||
                   top_lengths->bytes < top_ids->bytes)))
        return;
    for (size_t i = 0; i < count; i++) {
        const char *bytes = (const char *)text->data + at;
        int32_t len;
        float value;

        memcpy(&len, (const char *)lengths->data + 4 * i, 4);
        memcpy(&value, (const char *)values->data + 4 * i, 4);
        if (len < 0 || (size_t)len > text->bytes - at)
            return;
        if (c->tokens.len == 0) {
            /* The JSON writer looks at the byte before: an open array. */
            pd_buf_str(&c->tokens, "[");
            pd_buf_str(&c->values, "[");
            pd_buf_str(&c->tops, "[");
            pd_buf_str(&c->offsets, "[");
        }
        api_token_text(&c->tokens, bytes, (size_t)len);
        if (isfinite(value))
            api_json_num32(&c->values, value);
        else
            api_json_null(&c->values);
        api_json_int(&c->offsets, (int64_t)c->chars);
        c->chars += count_chars(bytes, (size_t)len);
        at += (size_t)len;
        if (!width || !isfinite(value))
            api_json_null(&c->tops);
        else
            api_json_open(&c->tops, '{');
        for (size_t k = 0; k < width; k++) {
            const char *name = (const char *)top_text->data + top_at;
            int32_t id, n;
            float top;

            memcpy(&id, (const char *)top_ids->data + 4 * (i * width + k), 4);
            memcpy(&top, (const char *)top_values->data + 4 * (i * width + k), 4);
            memcpy(&n, (const char *)top_lengths->data + 4 * (i * width + k), 4);
            if (n < 0 || (size_t)n > top_text->bytes - top_at)
                return;
            top_at += (size_t)n;
            if (id < 0 || !isfinite(top) || !isfinite(value))
                continue;
            api_token_text(&c->tops, name, (size_t)n);
            pd_buf_append(&c->tops, ":", 1);
            api_json_num32(&c->tops, top);
        }
        if (width && isfinite(value))
            api_json_close(&c->tops, '}');
    }
}

static void read_end(struct choice *c, const struct sup_result *part)
{
    json_t *root = json_loadb(part->json ? part->json : "", part->json ? part->json_len : 0, 0, NULL);
    const char *finish = json_string_value(json_object_get(root, "finish_reason"));

    snprintf(c->finish, sizeof c->finish, "%s", finish ? finish : "stop");
    c->prompt_tokens = json_integer_value(json_object_get(root, "prompt_tokens"));
    c->completion_tokens = json_integer_value(json_object_get(root, "completion_tokens"));
    json_decref(root);
}

void api_gen_part(void *ctx, const struct sup_result *part)
{
    struct choice *c = ctx;
    struct gen *g = c->gen;
    const struct wire_tensor *text = tensor(part, "text", "UINT8");
    bool last = part->last || part->err != PD_OK;
    struct api_wait *wait = NULL;

    pthread_mutex_lock(&g->lock);
    if (part->version)
        g->version = part->version;
    if (part->err != PD_OK && g->err == PD_OK) {
        g->err = part->err;
        pd_fail(&g->why, part->err, "%s", part->text ? part->text : pd_err_name(part->err));
    }
    if (part->err == PD_OK && text && g->err == PD_OK) {
        if (c->text.len + text->bytes > TEXT_MAX)
            g->err = pd_fail(&g->why, PD_ERR_LIMIT, "the text is too long");
        else
            pd_buf_append(&c->text, text->data, text->bytes);
        if (g->c.logprobs >= 0)
            add_logprobs(c, part);
    }
    if (last && !c->ended) {
        c->ended = true;
        if (part->err == PD_OK)
            read_end(c, part);
        g->open--;
    }
    if (g->wait && (g->err != PD_OK || (g->for_end ? g->open == 0 : true))) {
        /* With an error the end is not waited for: the others are cancelled. */
        wait = g->wait;
        g->wait = NULL;
    }
    if (g->stream)
        api_stream_wake(g->stream);
    pthread_mutex_unlock(&g->lock);
    if (wait)
        api_wait_end(wait);
    if (last)
        api_gen_unref(g);
}
