/* What is handed out of a checkpoint: a header of its own before ranges of the checkpoint's bytes. */
#include <stdlib.h>
#include <string.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/train/checkpoint.h"
#include "daemon/worker/weights/weights.h"
#include "kernels/base/json.h"

#define AVERAGES "ema."

static bool starts(const char *text, const char *prefix)
{
    return !strncmp(text, prefix, strlen(prefix));
}

/* The exported tensors, in the order of their bytes. The names are borrowed from `st`. */
static size_t choose(const struct data_st *st, struct data_st_tensor *to)
{
    const char *serve = data_st_meta(st, "polyd.serve");
    const bool averages = serve && !strcmp(serve, "ema");
    size_t n = 0;

    for (size_t i = 0; i < data_st_count(st); i++) {
        const struct data_st_tensor *t = data_st_at(st, i);
        const bool average = starts(t->name, AVERAGES);

        if (average != averages || starts(t->name, "optim.") || starts(t->name, "polyd."))
            continue;
        to[n] = *t;
        to[n++].name += average ? strlen(AVERAGES) : 0;
    }
    return n;
}

/* Those that describe the network and what it reads; the rest belongs to the run. */
static size_t describe(const struct data_st *st, const char *document, struct data_st_meta_item *to)
{
    size_t n = 0;

    to[n++] = (struct data_st_meta_item){"format", "pt"}; /* what other readers expect */
    for (size_t i = 0; i < data_st_meta_count(st); i++) {
        const char *value, *key = data_st_meta_at(st, i, &value);

        if (starts(key, "polyd.model.") || starts(key, "polyd.data.") || starts(key, "polyd.formula") ||
            !strcmp(key, "polyd.step") || (!document && !strcmp(key, WEIGHTS_DOCUMENT)))
            to[n++] = (struct data_st_meta_item){key, value};
    }
    if (document)
        to[n++] = (struct data_st_meta_item){WEIGHTS_DOCUMENT, document};
    return n;
}

static void write_json(struct pd_buf *out, const struct data_st *st, const struct pd_buf *header,
                       const struct data_st_tensor *tensors, size_t count)
{
    struct digest_sha256 hash;
    uint8_t digest[DIGEST_SHA256_BYTES];
    char hex[DIGEST_SHA256_HEX_SIZE];
    size_t len;
    const uint8_t *file = data_st_bytes(st, &len);
    uint64_t total = header->len;

    digest_sha256_init(&hash);
    digest_sha256_update(&hash, header->data, header->len);
    pd_json_open(out, '{');
    pd_json_key(out, "parts");
    pd_json_open(out, '[');
    for (size_t i = 0, next; i < count; i = next) {
        const uint8_t *from = tensors[i].data;
        uint64_t bytes = 0;

        for (next = i; next < count && (const uint8_t *)tensors[next].data == from + bytes; next++)
            bytes += tensors[next].bytes;
        digest_sha256_update(&hash, from, (size_t)bytes);
        total += bytes;
        pd_json_open(out, '[');
        pd_json_uint(out, (uint64_t)(from - file));
        pd_json_uint(out, bytes);
        pd_json_close(out, ']');
    }
    pd_json_close(out, ']');
    digest_sha256_final(&hash, digest);
    pd_json_kv_uint(out, "bytes", total);
    pd_json_kv_str(out, "sha256", digest_hex(digest, sizeof digest, hex));
    pd_json_key(out, "header");
    pd_json_strn(out, header->data + 8, header->len - 8);
    pd_json_close(out, '}');
}

enum pd_err weights_layout(const char *path, const char *document, struct pd_buf *ret_json,
                           struct pd_why *why)
{
    struct data_st *st = NULL;
    struct data_st_tensor *tensors = NULL;
    struct data_st_meta_item *meta = NULL;
    struct train_state state;
    struct pd_buf header;
    size_t count;
    enum pd_err err = train_checkpoint_open(path, &st, &state, why);

    pd_buf_init(&header, 0);
    if (err != PD_OK)
        goto out;
    tensors = calloc(data_st_count(st) + 1, sizeof *tensors);
    meta = calloc(data_st_meta_count(st) + 2, sizeof *meta);
    if (!tensors || !meta) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the weights of '%s'", path);
        goto out;
    }
    count = choose(st, tensors);
    if (!count)
        err = pd_fail(why, PD_ERR_CORRUPT, "'%s' has no weights", path);
    else
        err = data_st_header(tensors, count, meta, describe(st, document, meta), &header, why);
    if (err != PD_OK)
        goto out;
    write_json(ret_json, st, &header, tensors, count);
    err = pd_buf_err(ret_json);
    if (err != PD_OK)
        (void)pd_fail(why, err, "no memory for the layout of '%s'", path);
out:
    free(tensors);
    free(meta);
    pd_buf_done(&header);
    data_st_free(st);
    return err;
}
