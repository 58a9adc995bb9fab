/* Texts to classes: the tokens of a batch of texts, padded on the right, and of each the row of its last
 * token. */
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/serve/internal.h"
#include "kernels/base/json.h"

static enum pd_err read_text_model(struct serve *s, const struct data_st *st, const char *path,
                                   struct pd_why *why)
{
    const struct model_spec *spec = model_spec(s->model);
    enum pd_err err = serve_tokenizer_read(s, st, why);

    s->info.context = s->info.positions = spec->context;
    s->info.apart = spec->landmarks && spec->pinv_start != MODEL_PINV_MATRIX_ABS;
    return err == PD_OK ? serve_labels_read(s, st, path, why) : err;
}

/* Long texts make smaller batches. */
static uint32_t largest_batch(const struct serve *s)
{
    uint32_t size = s->info.batch_max;

    while (size > 1 && size * s->info.positions > SERVE_TEXT_TOKENS_MAX)
        size = (size + 1) / 2;
    return size;
}

static enum pd_err open_graphs(struct serve *s, struct pd_why *why)
{
    const size_t largest = s->info.batch_max = largest_batch(s), tokens = largest * (size_t)s->info.positions;
    size_t *total = &s->memory.inputs_bytes;
    enum pd_err err;

    s->ids = calloc(tokens + largest, sizeof *s->ids);
    if (!s->ids)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a batch of %zu texts", largest);
    err = serve_alloc(s, tokens * sizeof *s->ids, total, &s->input, why);
    if (err == PD_OK)
        err = serve_alloc(s, largest * sizeof *s->ids, total, &s->pick, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->input, s->ids, tokens * sizeof *s->ids, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->pick, s->ids + tokens, largest * sizeof *s->ids, why);
    if (err != PD_OK)
        return err;
    return serve_classes_open(s, 1, (int32_t)s->info.positions,
                              (struct serve_input[]){{"input", s->input}, {"last", s->pick}},
                              model_spec(s->model)->pairs ? 1 : 2, why);
}

size_t serve_text_ints(const struct serve *s)
{
    return 1 + (size_t)s->info.positions;
}

#define REQUEST_INTS ((int64_t)1 << 24) /* of all texts of one request */

int64_t serve_texts_max(const struct serve *s)
{
    int64_t fit = REQUEST_INTS / (int64_t)serve_text_ints(s);

    return fit < 1 ? 1 : fit < SERVE_TEXTS_MAX ? fit : SERVE_TEXTS_MAX;
}

/* Positions of one text. */
static size_t positions_of(const struct serve *s)
{
    return (size_t)s->info.positions / (model_spec(s->model)->pairs ? 2 : 1);
}

static enum pd_err too_many(const struct serve *s, size_t count, struct pd_why *why)
{
    return pd_fail(why, PD_ERR_INVALID, "the text has %zu tokens, the model %zu positions%s", count,
                   positions_of(s), model_spec(s->model)->pairs ? " for each text" : "");
}

/* The tokens of a text, as many as training would read; *ret_count: how many. */
static enum pd_err put_tokens(const struct serve *s, const char *text, size_t len, int32_t *to,
                              int32_t *ret_count, struct pd_why *why)
{
    const size_t fit = positions_of(s), most = s->most && s->most < fit ? s->most : fit;
    struct data_ids ids = {0};
    enum pd_err err = data_tokenizer_encode(s->tokenizer, text, len, false, &ids, why);

    /* What averages over all its positions, and never read the beginning of a sequence, has no use for one. */
    if (err == PD_OK && model_spec(s->model)->landmarks && !s->cuts && ids.count > most)
        err = too_many(s, ids.count, why);
    if (err == PD_OK) {
        *ret_count = (int32_t)(ids.count < most ? ids.count : most);
        if (ids.count)
            memcpy(to, ids.items, (size_t)*ret_count * sizeof *to);
    }
    free(ids.items);
    return err;
}

/* The expression without what training leaves out. Words of no expression would become <unk>, which was never trained. */
static enum pd_err put_expression(const struct serve *s, const char *text, size_t len, int32_t *to,
                                  int32_t *ret_count, struct pd_why *why)
{
    struct pd_buf clean;
    enum pd_err err;

    pd_buf_init(&clean, 0);
    err = data_listops_clean(text, len, &clean, why);
    if (err == PD_OK && pd_buf_err(&clean) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a text");
    if (err == PD_OK)
        err = put_tokens(s, clean.data ? clean.data : "", clean.len, to, ret_count, why);
    pd_buf_done(&clean);
    return err;
}

enum pd_err serve_text_read(const struct serve *s, const void *text, size_t len, int32_t *to,
                            struct pd_why *why)
{
    const bool pairs = model_spec(s->model)->pairs;
    const char *tab = pairs ? memchr(text, '\t', len) : NULL;
    const size_t first = tab ? (size_t)(tab - (const char *)text) : len;
    enum pd_err err;

    if (pairs && !tab)
        return pd_fail(why, PD_ERR_INVALID,
                       "the model reads two texts separated by a tab; the text has no tab");
    memset(to, 0, serve_text_ints(s) * sizeof *to);
    err = (s->listops ? put_expression : put_tokens)(s, text, first, to + 1, &to[0], why);
    return err == PD_OK && tab
               ? put_tokens(s, tab + 1, len - first - 1, to + 1 + s->info.positions / 2, &to[0], why)
               : err;
}

enum pd_err serve_ids_read(const struct serve *s, const int64_t *ids, size_t count, int32_t *to,
                           struct pd_why *why)
{
    const size_t parts = model_spec(s->model)->pairs ? 2 : 1, each = count / parts, most = positions_of(s);
    const int32_t known = model_text_ids(model_spec(s->model));

    if (count % parts)
        return pd_fail(why, PD_ERR_INVALID, "%zu tokens cannot be divided into two texts of equal length",
                       count);
    if (each > most)
        return too_many(s, each, why);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= known)
            return pd_fail(why, PD_ERR_INVALID, "id %lld is not in the vocabulary, whose ids are 0 to %d",
                           (long long)ids[i], known - 1);
    memset(to, 0, serve_text_ints(s) * sizeof *to);
    to[0] = (int32_t)each;
    for (size_t i = 0; i < count; i++)
        to[1 + i / (each ? each : 1) * most + i % (each ? each : 1)] = (int32_t)ids[i];
    return PD_OK;
}

/* As training does: padding on the right, and one token of it where a text has none. */
static enum pd_err put_text(struct serve *s, const struct serve_samples *part, int64_t i, int64_t row,
                            struct pd_why *why)
{
    const int64_t tokens = s->info.positions;
    const int32_t *from = (const int32_t *)part->data + (size_t)i * serve_text_ints(s);

    (void)why;
    memcpy(s->ids + row * tokens, from + 1, (size_t)tokens * sizeof *s->ids);
    s->ids[s->info.batch_max * tokens + row] = (int32_t)(row * tokens) + (from[0] ? from[0] - 1 : 0);
    return PD_OK;
}

/* Padding repeats the first text, so the largest value of a batch remains the same. */
static enum pd_err send_texts(struct serve *s, int64_t used, int32_t size, struct pd_why *why)
{
    const size_t tokens = (size_t)s->info.positions;
    int32_t *last = s->ids + s->info.batch_max * tokens;
    enum pd_err err;

    for (int64_t row = used; row < size; row++) {
        memcpy(s->ids + (size_t)row * tokens, s->ids, tokens * sizeof *s->ids);
        last[row] = last[0] + (int32_t)(row * (int64_t)tokens);
    }
    err = s->api->upload(s->backend, s->input, s->ids, (size_t)size * tokens * sizeof *s->ids, why);
    return err == PD_OK ? s->api->upload(s->backend, s->pick, last, (size_t)size * sizeof *last, why) : err;
}

static void put_signature(const struct serve *s, struct pd_buf *out)
{
    pd_json_kv_str(out, "tokenizer", data_tokenizer_kind_name(data_tokenizer_kind(s->tokenizer)));
    pd_json_key(out, "inputs");
    pd_json_open(out, '[');
    serve_put_tensor(out, "text", "BYTES", NULL, 0);
    pd_json_close(out, ']');
    serve_put_classes(s, out);
    pd_json_kv_int(out, "vocabulary", data_tokenizer_vocab(s->tokenizer));
    pd_json_kv_int(out, "context", s->info.positions);
    pd_json_kv_bool(out, "pairs", model_spec(s->model)->pairs);
}

const struct serve_kind serve_kind_classify_text = {
    .name = "text_classifier",
    .read = read_text_model,
    .open = open_graphs,
    .signature = put_signature,
    .put = put_text,
    .send = send_texts,
};
