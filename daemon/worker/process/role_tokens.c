/* A tokenizer's answer needs no step of the model: it is given between two steps and never waits in the
 * queue. */
#include "daemon/worker/process/role_tokens.h"

#include <string.h>

#include "daemon/worker/process/role_serve_internal.h"
#include "kernels/base/json.h"

bool role_tokens_is(const struct serve_request *req)
{
    return strcmp(req->kind, "tokenize") == 0 || strcmp(req->kind, "detokenize") == 0;
}

static struct wire_tensor vector(const char *name, const char *dtype, const struct pd_buf *b, size_t item)
{
    return role_tensor(name, dtype, b->data, b->len, (int64_t)(b->len / item), -1);
}

/* The request's one tensor, of one dimension and the size that its shape says. */
static enum pd_err check(const struct serve_request *req, const char *name, const char *dtype, size_t item,
                         struct pd_why *why)
{
    const struct wire_tensor *t = &req->tensors[0];

    if (req->count != 1 || strcmp(t->name, name) != 0 || strcmp(t->dtype, dtype) != 0 || t->rank != 1 ||
        t->shape[0] < 0 || t->bytes / item != (size_t)t->shape[0] || t->bytes % item)
        return pd_fail(why, PD_ERR_INVALID, "%s takes one tensor, '%s', %s of one dimension", req->kind, name,
                       dtype);
    return PD_OK;
}

static enum pd_err tokenize(const struct serve_host *host, const struct serve *model,
                            const struct serve_request *req, struct pd_why *why)
{
    struct pd_buf ids, lengths, text, json;
    struct wire_tensor out[3];
    struct serve_result part = {.tensors = out, .count = 3, .last = true};
    enum pd_err err = check(req, "text", "UINT8", 1, why);

    pd_buf_init(&ids, 0);
    pd_buf_init(&lengths, 0);
    pd_buf_init(&text, 0);
    pd_buf_init(&json, 0);
    if (err == PD_OK)
        err = serve_tokenize(model, req->tensors[0].data, req->tensors[0].bytes, &ids, why);
    for (size_t i = 0; err == PD_OK && i < ids.len / sizeof(int32_t); i++) {
        int32_t id, len;
        size_t n;
        const char *bytes;

        memcpy(&id, ids.data + i * sizeof id, sizeof id);
        bytes = serve_token_text(model, id, &n);
        len = (int32_t)n;
        pd_buf_append(&lengths, &len, sizeof len);
        pd_buf_append(&text, bytes, n);
    }
    pd_json_open(&json, '{');
    pd_json_kv_int(&json, "positions", serve_info(model)->positions);
    pd_json_close(&json, '}');
    if (err == PD_OK && (lengths.failed || text.failed || json.failed))
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the tokens");
    if (err == PD_OK) {
        out[0] = vector("tokens", "INT32", &ids, sizeof(int32_t));
        out[1] = vector("lengths", "INT32", &lengths, sizeof(int32_t));
        out[2] = vector("text", "UINT8", &text, 1);
        part.json = json.data;
        host->reply(host->ctx, req, &part);
    }
    pd_buf_done(&ids);
    pd_buf_done(&lengths);
    pd_buf_done(&text);
    pd_buf_done(&json);
    return err;
}

static enum pd_err detokenize(const struct serve_host *host, const struct serve *model,
                              const struct serve_request *req, struct pd_why *why)
{
    struct pd_buf ids, text;
    struct wire_tensor out[1];
    struct serve_result part = {.tensors = out, .count = 1, .last = true};
    enum pd_err err = check(req, "tokens", "INT32", sizeof(int32_t), why);

    pd_buf_init(&ids, 0);
    pd_buf_init(&text, ROLE_TOKENS_TEXT_MAX);
    if (err == PD_OK) { /* a frame's tensors need not be aligned */
        pd_buf_append(&ids, req->tensors[0].data, req->tensors[0].bytes);
        err = pd_buf_err(&ids);
        if (err != PD_OK)
            pd_fail(why, err, "no memory for the tokens");
    }
    if (err == PD_OK)
        err = serve_detokenize(model, (const int32_t *)(const void *)ids.data, ids.len / sizeof(int32_t),
                               &text, why);
    if (err == PD_OK) {
        out[0] = vector("text", "UINT8", &text, 1);
        host->reply(host->ctx, req, &part);
    }
    pd_buf_done(&ids);
    pd_buf_done(&text);
    return err;
}

void role_tokens_answer(const struct serve_host *host, const struct serve *model,
                        const struct serve_request *req)
{
    struct pd_why why = {""};
    struct serve_result failed = {.text = why.text, .last = true};
    bool back = strcmp(req->kind, "detokenize") == 0;

    if (!serve_has_tokens(model))
        failed.err =
            pd_fail(&why, PD_ERR_UNSUPPORTED, "model %s is a classifier: it has no tokens", host->model);
    else
        failed.err = back ? detokenize(host, model, req, &why) : tokenize(host, model, req, &why);
    if (failed.err != PD_OK)
        host->reply(host->ctx, req, &failed);
}
