/* daemon/worker/data/ids.c: the tokenizer of a text, and the tokens of each part of it.
 *
 * What a tokenizer other than `bytes` makes of a part is kept in a cache (cache.h) under a digest of tokenizer,
 * text and the ends of its documents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/digest/digest.h"
#include "daemon/worker/data/cache.h"
#include "daemon/worker/data/set.h"
#include "daemon/worker/data/tokens.h"

#define CACHE_WAIT_MS (20 * 60 * 1000)

/* ---- tokenizers ---- */

static enum pd_err make_tokenizer(struct data_set *set, const struct data_options *o, const void *text,
                                  size_t whole, size_t train, struct pd_why *why)
{
    int dir = -1;
    enum pd_err err;

    switch (o->tokenizer) {
    case DATA_TOKENIZER_BYTES:
        return data_tokenizer_bytes_new(&set->tokenizer, why);
    case DATA_TOKENIZER_CHARS: /* of the whole text: a character met in validation alone has its id too */
        return data_tokenizer_chars_new(text, whole, &set->tokenizer, why);
    case DATA_TOKENIZER_WORDS:
        return data_tokenizer_words_new(text, train, 0, &set->tokenizer, why);
    case DATA_TOKENIZER_GPT2_BPE:
        break;
    case DATA_TOKENIZER_IDS:
    case DATA_TOKENIZER_PADDED_BYTES:
        return pd_fail(why, PD_ERR_UNSUPPORTED,
                       "#/data/tokenizer: a text cannot be read with the tokenizer %s",
                       data_tokenizer_kind_name(o->tokenizer));
    }
    err = data_path_open(o->roots, o->root_count, o->tokenizer_path, true, &dir, why);
    if (err == PD_OK)
        err = data_tokenizer_bpe_open(o->roots, o->root_count, o->tokenizer_path, &set->tokenizer, why);
    else if (why && err == PD_ERR_NOT_FOUND)
        snprintf(
            why->text + strlen(why->text), sizeof why->text - strlen(why->text),
            "; gpt2_bpe needs encoder.json and vocab.bpe, or vocab.json and merges.txt: name their folder");
    if (err != PD_OK && err != PD_ERR_NOMEM)
        pd_why_at(why, "#/data/tokenizer_path");
    if (dir >= 0)
        close(dir);
    return err;
}

enum pd_err data_open_tokenizer(struct data_set *set, const struct data_options *o, const void *text,
                                size_t whole, size_t train, struct pd_why *why)
{
    enum pd_err err = o->tokens ? PD_OK : make_tokenizer(set, o, text, whole, train, why);

    if (err == PD_OK)
        set->info.tokenizer = o->tokens ? o->tokens : set->tokenizer;
    return err;
}

/* ---- tokens ---- */

/* A piece of the text, and those of its documents that end in it. */
struct piece {
    const uint8_t *text;
    size_t len;
    const int64_t *end; /* from the beginning of the piece on */
    size_t ends;
};

/* The documents of a folder end with the tokenizer's end token. */
static enum pd_err piece_of(const struct data_set *set, int64_t start, size_t len, struct piece *ret,
                            int64_t **ret_ends, struct pd_why *why)
{
    const struct data_ends *d = &set->document;
    size_t first = 0, n = 0;

    *ret = (struct piece){.text = set->text + start, .len = len};
    if (data_tokenizer_kind(set->info.tokenizer) != DATA_TOKENIZER_GPT2_BPE)
        return PD_OK;
    while (first < d->count && d->at[first] <= start)
        first++;
    while (first + n < d->count && d->at[first + n] <= start + (int64_t)len)
        n++;
    *ret_ends = n ? malloc(n * sizeof **ret_ends) : NULL;
    if (n && !*ret_ends)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the ends of documents");
    for (size_t i = 0; i < n; i++)
        (*ret_ends)[i] = d->at[first + i] - start;
    ret->end = *ret_ends;
    ret->ends = n;
    return PD_OK;
}

static enum pd_err key_of(const struct data_tokenizer *t, const struct piece *p, uint8_t key[32],
                          struct pd_why *why)
{
    static const char version[] = "tokens 1\n";
    struct digest_sha256 hash;
    struct pd_buf saved;
    uint64_t size;
    enum pd_err err;

    pd_buf_init(&saved, 0);
    err = data_tokenizer_save(t, &saved, why);
    size = saved.len;
    digest_sha256_init(&hash);
    digest_sha256_update(&hash, version, sizeof version - 1);
    digest_sha256_update(&hash, &size, sizeof size);
    digest_sha256_update(&hash, saved.data, saved.len);
    digest_sha256_update(&hash, p->text, p->len);
    digest_sha256_update(&hash, p->end ? (const void *)p->end : "", p->ends * sizeof *p->end);
    digest_sha256_final(&hash, key);
    pd_buf_done(&saved);
    return err;
}

static bool use_map(struct data_set *set, int part, struct data_cache *c)
{
    int width = data_tokenizer_vocab(set->info.tokenizer) <= 65536 ? 2 : 4;
    int32_t vocab = data_tokenizer_vocab(set->info.tokenizer);
    size_t len;
    const void *ids = data_cache_bytes(c, &len);

    if (len % (size_t)width)
        return false;
    for (size_t i = 0; i < len / (size_t)width; i++)
        if (width == 2 ? ((const uint16_t *)ids)[i] >= vocab : ((const uint32_t *)ids)[i] >= (uint32_t)vocab)
            return false;
    set->map[part] = c;
    set->part[part] =
        (struct data_ids_view){.ids = ids, .width = width, .count = (int64_t)(len / (size_t)width)};
    return true;
}

static enum pd_err tokenise(struct data_set *set, int part, const struct piece *p, struct pd_why *why)
{
    struct data_ids *ids = &set->made[part];
    const int32_t end = data_tokenizer_end(set->info.tokenizer);
    int64_t at = 0;
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < p->ends && err == PD_OK; at = p->end[i++]) {
        err = data_tokenizer_encode(set->info.tokenizer, p->text + at, (size_t)(p->end[i] - at), false, ids,
                                    why);
        if (err == PD_OK && data_ids_add(ids, end) != PD_OK)
            err = pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
    }
    if (err == PD_OK)
        err = data_tokenizer_encode(set->info.tokenizer, p->text + at, p->len - (size_t)at, false, ids, why);
    if (err != PD_OK)
        return err;
    set->work.tokenised_bytes += (int64_t)p->len;
    set->part[part] = (struct data_ids_view){.ids = ids->items, .width = 4, .count = (int64_t)ids->count};
    return PD_OK;
}

static enum pd_err write_ids(struct data_cache_writer *w, const struct data_ids *ids, int width,
                             struct pd_why *why)
{
    enum pd_err err = PD_OK;

    for (size_t i = 0; i < ids->count && err == PD_OK; i += 8192) {
        uint16_t narrow[8192];
        size_t n = ids->count - i < 8192 ? ids->count - i : 8192;

        for (size_t k = 0; width == 2 && k < n; k++)
            narrow[k] = (uint16_t)ids->items[i + k];
        err = width == 2 ? data_cache_write(w, narrow, n * 2, why)
                         : data_cache_write(w, ids->items + i, n * 4, why);
    }
    return err;
}

/* From the cache, or made and, if that succeeds, kept. */
static enum pd_err open_piece(struct data_set *set, const struct data_options *o, int part,
                              const struct piece *p, struct pd_why *why)
{
    int width = data_tokenizer_vocab(set->info.tokenizer) <= 65536 ? 2 : 4;
    struct data_cache_writer *w = NULL;
    struct data_cache *c = NULL;
    struct pd_why ignored;
    uint8_t key[32];
    enum pd_err err;

    if (!o->cache_dir)
        return tokenise(set, part, p, why);
    err = key_of(set->info.tokenizer, p, key, why);
    if (err != PD_OK)
        return err;
    err = data_cache_open(o->cache_dir, key, &c, &ignored);
    if (err != PD_OK) {
        err = data_cache_begin(o->cache_dir, key, p->len, CACHE_WAIT_MS, &w, &ignored);
        if (err == PD_ERR_EXISTS)
            err = data_cache_open(o->cache_dir, key, &c, &ignored);
    }
    if (c && use_map(set, part, c)) {
        set->work.cache_hits++;
        return PD_OK;
    }
    data_cache_close(c);
    set->work.cache_misses++;
    err = tokenise(set, part, p, why);
    if (w && err == PD_OK && write_ids(w, &set->made[part], width, &ignored) == PD_OK) {
        err = data_cache_commit(w, set->made[part].count * (size_t)width, &ignored);
        /* From here on the file serves, and the memory is given back. */
        if (err == PD_OK && data_cache_open(o->cache_dir, key, &c, &ignored) == PD_OK) {
            if (use_map(set, part, c)) {
                free(set->made[part].items);
                set->made[part] = (struct data_ids){0};
            } else {
                data_cache_close(c);
            }
        }
        return PD_OK;
    }
    data_cache_abandon(w);
    return err;
}

enum pd_err data_open_ids(struct data_set *set, const struct data_options *o, enum data_split part,
                          int64_t start, size_t len, struct pd_why *why)
{
    struct piece p;
    int64_t *ends = NULL;
    enum pd_err err;

    if (o->tokenizer == DATA_TOKENIZER_BYTES) {
        set->part[part] = (struct data_ids_view){.ids = set->text + start, .width = 1, .count = (int64_t)len};
        return PD_OK;
    }
    err = piece_of(set, start, len, &p, &ends, why);
    if (err == PD_OK && p.ends && data_tokenizer_end(set->info.tokenizer) < 0)
        err = pd_fail(why, PD_ERR_INVALID,
                      "#/data/tokenizer_path: the vocabulary lacks <|endoftext|>, which ends a document");
    if (err == PD_OK)
        err = open_piece(set, o, part, &p, why);
    free(ends);
    return err;
}
