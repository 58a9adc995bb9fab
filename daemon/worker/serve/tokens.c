/* Text to the token ids of a served model and back. */
#include <stdlib.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/serve/internal.h"

/* A checkpoint without one was trained on bytes. */
enum pd_err serve_tokenizer_read(struct serve *s, const struct data_st *st, struct pd_why *why)
{
    const struct data_st_tensor *t = data_st_find(st, DATA_TOKENIZER_TENSOR);
    const struct model_spec *spec = model_spec(s->model);
    enum pd_err err;

    if (t && t->dtype != DATA_ST_U8)
        return pd_fail(why, PD_ERR_CORRUPT, "the checkpoint's tokenizer is not a sequence of bytes");
    err = t ? data_tokenizer_load(t->data, (size_t)t->bytes, &s->tokenizer, why)
            : data_tokenizer_bytes_new(&s->tokenizer, why);
    if (err == PD_OK && model_text_ids(spec) < data_tokenizer_vocab(s->tokenizer))
        err = pd_fail(why, PD_ERR_INVALID, "the model has %d tokens, its tokenizer (%s) %d",
                      model_text_ids(spec), data_tokenizer_kind_name(data_tokenizer_kind(s->tokenizer)),
                      data_tokenizer_vocab(s->tokenizer));
    return err;
}

bool serve_has_tokens(const struct serve *s)
{
    return s->tokenizer != NULL;
}

enum pd_err serve_tokenize(const struct serve *s, const void *text, size_t len, struct pd_buf *out,
                           struct pd_why *why)
{
    struct data_ids ids = {0};
    enum pd_err err;

    if (!serve_has_tokens(s))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this model does not read text");
    err = data_tokenizer_encode(s->tokenizer, text, len, true, &ids, why);
    if (err == PD_OK) {
        pd_buf_append(out, ids.items, ids.count * sizeof *ids.items);
        if (pd_buf_err(out) != PD_OK)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for %zu tokens", ids.count);
    }
    free(ids.items);
    return err;
}

const char *serve_token_text(const struct serve *s, int32_t id, size_t *ret_len)
{
    const char *text = data_tokenizer_token(s->tokenizer, id, ret_len);

    if (!text)
        *ret_len = 0;
    return text ? text : "";
}

enum pd_err serve_detokenize(const struct serve *s, const int32_t *ids, size_t count, struct pd_buf *out,
                             struct pd_why *why)
{
    if (!serve_has_tokens(s))
        return pd_fail(why, PD_ERR_UNSUPPORTED, "this model does not read tokens");
    for (size_t i = 0; i < count; i++) {
        size_t len;
        const char *text = data_tokenizer_token(s->tokenizer, ids[i], &len);

        if (!text)
            return pd_fail(why, PD_ERR_INVALID, "tokens[%zu] is %d; ids are 0..%lld", i, ids[i],
                           (long long)data_tokenizer_vocab(s->tokenizer) - 1);
        pd_buf_append(out, text, len);
    }
    if (out->failed)
        return pd_fail(why, pd_buf_err(out), "the text of %zu tokens is too long", count);
    return PD_OK;
}
