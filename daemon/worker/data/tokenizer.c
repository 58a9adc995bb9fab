/* daemon/worker/data/tokenizer.c: the table of tokens, its serialised form, and the cutting by bytes,
 * characters and words; byte pairs are bpe.c's.
 *
 * Serialised, all numbers little-endian u32: "PDTOK001", kind, tokens, merges; the length of each token; the
 * bytes of all; left, right and product of each merge. */
#include "daemon/worker/data/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/tokens.h"

#define MAGIC "PDTOK001"
#define FILE_MAX ((size_t)256 << 20) /* of a vocabulary or a list of merges */
#define TOKEN_BYTES_MAX 65536

static const char end_of_text[] = "<|endoftext|>";

const char *data_tokenizer_kind_name(enum data_tokenizer_kind kind)
{
    static const char *const names[] = {"bytes", "chars", "words", "gpt2_bpe", "ids", "padded_bytes"};

    return names[kind];
}

enum data_tokenizer_kind data_tokenizer_kind(const struct data_tokenizer *t)
{
    return t->kind;
}

int32_t data_tokenizer_vocab(const struct data_tokenizer *t)
{
    return t->count;
}

int32_t data_tokenizer_end(const struct data_tokenizer *t)
{
    return t->end;
}

int32_t data_tokenizer_start(const struct data_tokenizer *t)
{
    int32_t newline = data_tokens_find(t, "\n", 1);

    return t->end >= 0 ? t->end : newline >= 0 ? newline : 0;
}

size_t data_tokenizer_token_max(const struct data_tokenizer *t)
{
    return t->longest;
}

const char *data_tokenizer_token(const struct data_tokenizer *t, int32_t id, size_t *ret_len)
{
    if (id < 0 || id >= t->count)
        return NULL;
    *ret_len = t->start[id + 1] - t->start[id];
    return t->bytes + t->start[id];
}

struct data_tokenizer *data_tokenizer_free(struct data_tokenizer *t)
{
    if (t) {
        data_bpe_done(t);
        free(t->bytes);
        free(t->start);
        free(t->slot);
        free(t->merges);
        free(t);
    }
    return NULL;
}

enum pd_err data_ids_add(struct data_ids *out, int32_t id)
{
    if (out->count == out->size) {
        size_t size = out->size ? out->size * 2 : 256;
        int32_t *more = realloc(out->items, size * sizeof *more);

        if (!more)
            return PD_ERR_NOMEM;
        out->items = more;
        out->size = size;
    }
    out->items[out->count++] = id;
    return PD_OK;
}

/* ---- the table ---- */

/* What is looked up: words carry a blank for decoding that is no part of them. */
static size_t key_len(const struct data_tokenizer *t, int32_t id)
{
    size_t len = t->start[id + 1] - t->start[id];

    return t->kind == DATA_TOKENIZER_WORDS && len > 1 ? len - 1 : len;
}

int32_t data_tokens_find(const struct data_tokenizer *t, const void *bytes, size_t len)
{
    for (size_t i = data_hash(bytes, len) & t->mask; t->slot[i] >= 0; i = (i + 1) & t->mask)
        if (key_len(t, t->slot[i]) == len && !memcmp(t->bytes + t->start[t->slot[i]], bytes, len))
            return t->slot[i];
    return -1;
}

enum pd_err data_tokens_index(struct data_tokenizer *t, struct pd_why *why)
{
    size_t size = 16;

    while (size < 2 * (size_t)t->count)
        size *= 2;
    t->slot = malloc(size * sizeof *t->slot);
    if (!t->slot)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    memset(t->slot, 0xff, size * sizeof *t->slot);
    t->mask = size - 1;
    t->longest = 0;
    for (int32_t id = 0; id < t->count; id++) {
        size_t len = t->start[id + 1] - t->start[id];
        const char *bytes = t->bytes + t->start[id];
        size_t i;

        if (len > t->longest)
            t->longest = len;
        /* Two tokens of the same bytes can be decoded; the first is what text becomes. */
        if (data_tokens_find(t, bytes, key_len(t, id)) >= 0)
            continue;
        for (i = data_hash(bytes, key_len(t, id)) & t->mask; t->slot[i] >= 0; i = (i + 1) & t->mask)
            ;
        t->slot[i] = id;
    }
    t->end = t->unknown = -1;
    if (t->kind == DATA_TOKENIZER_WORDS) {
        t->end = data_tokens_find(t, "\n", 1);
        t->unknown = data_tokens_find(t, "<unk>", 5);
    } else if (t->kind == DATA_TOKENIZER_GPT2_BPE) {
        t->end = data_tokens_find(t, end_of_text, sizeof end_of_text - 1);
    }
    return PD_OK;
}

/* A tokenizer of these tokens, lengths in `len`. */
static enum pd_err make(enum data_tokenizer_kind kind, const void *bytes, const uint32_t *len, int32_t count,
                        struct data_tokenizer **ret, struct pd_why *why)
{
    struct data_tokenizer *t = calloc(1, sizeof *t);
    size_t total = 0;
    enum pd_err err = PD_ERR_NOMEM;

    if (t)
        t->start = malloc(((size_t)count + 1) * sizeof *t->start);
    if (!t || !t->start)
        goto nomem;
    t->kind = kind;
    t->count = count;
    for (int32_t i = 0; i < count; i++) {
        t->start[i] = (uint32_t)total;
        total += len[i];
    }
    t->start[count] = (uint32_t)total;
    t->bytes = malloc(total ? total : 1);
    if (!t->bytes)
        goto nomem;
    memcpy(t->bytes, bytes, total);
    err = data_tokens_index(t, why);
    if (err != PD_OK) {
        data_tokenizer_free(t);
        return err;
    }
    *ret = t;
    return PD_OK;
nomem:
    data_tokenizer_free(t);
    return pd_fail(why, err, "no memory for a tokenizer");
}

enum pd_err data_tokenizer_bytes_new(struct data_tokenizer **ret, struct pd_why *why)
{
    uint8_t bytes[256];
    uint32_t len[256];

    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
        len[i] = 1;
    }
    return make(DATA_TOKENIZER_BYTES, bytes, len, 256, ret, why);
}

enum pd_err data_tokenizer_padded_bytes_new(struct data_tokenizer **ret, struct pd_why *why)
{
    uint8_t bytes[256];
    uint32_t len[257] = {0};

    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
        len[i + 1] = 1;
    }
    return make(DATA_TOKENIZER_PADDED_BYTES, bytes, len, 257, ret, why);
}

/* ---- UTF-8 ---- */

size_t data_utf8_sequence(const uint8_t *p, size_t left)
{
    size_t n;
    uint32_t c;

    if (!left)
        return 0;
    if (p[0] < 0x80)
        return 1;
    n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > left)
        return 0;
    c = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    if ((n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) || (n == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 0;
    return n;
}

size_t data_utf8_unfinished(const void *bytes, size_t len)
{
    const uint8_t *p = bytes;

    for (size_t back = 1; back <= 3 && back <= len; back++) {
        uint8_t lead = p[len - back];
        size_t n = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        uint8_t trial[4] = {lead, 0x80, 0x80, 0x80};

        if ((lead & 0xc0) == 0x80)
            continue; /* inside a sequence: look for its beginning */
        if (lead < 0xc2 || lead > 0xf4 || back >= n)
            return 0;
        /* The second byte of some leads is limited: one that fits, unless it is there to be judged. */
        if (lead == 0xe0 || lead == 0xf0)
            trial[1] = 0xbf;
        if (lead == 0xf0)
            trial[1] = 0x90;
        if (back > 1)
            memcpy(trial + 1, p + len - back + 1, back - 1);
        return data_utf8_sequence(trial, n) == n ? back : 0;
    }
    return 0;
}

/* A character, or a byte that is part of none. */
static size_t character(const uint8_t *p, size_t left)
{
    size_t n = data_utf8_sequence(p, left);

    return n ? n : 1;
}

/* ---- counting what a text holds ---- */

struct entry {
    const uint8_t *at;
    uint32_t len;
    uint64_t count;
};

struct tally {
    struct entry *slot;
    size_t mask, used;
};

static bool tally_add(struct tally *t, const uint8_t *at, size_t len)
{
    size_t i;

    if (2 * (t->used + 1) > t->mask) {
        size_t size = t->slot ? 2 * (t->mask + 1) : 4096;
        struct entry *more = calloc(size, sizeof *more);

        if (!more)
            return false;
        for (size_t k = 0; t->slot && k <= t->mask; k++) {
            if (!t->slot[k].count)
                continue;
            i = data_hash(t->slot[k].at, t->slot[k].len) & (size - 1);
            while (more[i].count)
                i = (i + 1) & (size - 1);
            more[i] = t->slot[k];
        }
        free(t->slot);
        t->slot = more;
        t->mask = size - 1;
    }
    i = data_hash(at, len) & t->mask;
    while (t->slot[i].count && (t->slot[i].len != len || memcmp(t->slot[i].at, at, len) != 0))
        i = (i + 1) & t->mask;
    if (!t->slot[i].count) {
        t->slot[i].at = at;
        t->slot[i].len = (uint32_t)len;
        t->used++;
    }
    t->slot[i].count++;
    return true;
}

/* The entries to the front, free slots behind. */
static size_t tally_pack(struct tally *t)
{
    size_t n = 0;

    for (size_t i = 0; t->slot && i <= t->mask; i++)
        if (t->slot[i].count)
            t->slot[n++] = t->slot[i];
    return n;
}

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->at, y->at, x->len < y->len ? x->len : y->len);

    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static int by_count(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return by_bytes(a, b);
}

/* Tokens from entries, each followed by `behind` (0 = nothing) but the newline. */
static enum pd_err make_from(enum data_tokenizer_kind kind, const struct entry *e, size_t n, char behind,
                             struct data_tokenizer **ret, struct pd_why *why)
{
    struct pd_buf bytes;
    uint32_t *len;
    enum pd_err err;

    if (n > DATA_VOCAB_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "the text has %zu different tokens; the limit is %d", n,
                       DATA_VOCAB_MAX);
    pd_buf_init(&bytes, UINT32_MAX);
    len = malloc((n ? n : 1) * sizeof *len);
    for (size_t i = 0; len && i < n; i++) {
        bool blank = behind && !(e[i].len == 1 && e[i].at[0] == '\n');

        pd_buf_append(&bytes, e[i].at, e[i].len);
        if (blank)
            pd_buf_append(&bytes, &behind, 1);
        len[i] = e[i].len + blank;
    }
    err = len ? pd_buf_err(&bytes) : PD_ERR_NOMEM;
    err = err == PD_OK ? make(kind, bytes.data, len, (int32_t)n, ret, why)
                       : pd_fail(why, err, "no memory for a tokenizer");
    free(len);
    pd_buf_done(&bytes);
    return err;
}

enum pd_err data_tokenizer_chars_new(const void *text, size_t len, struct data_tokenizer **ret,
                                     struct pd_why *why)
{
    const uint8_t *p = text, *end = p + len;
    struct tally t = {0};
    enum pd_err err;

    if (!len)
        return pd_fail(why, PD_ERR_INVALID, "an empty text has no characters");
    while (p < end) {
        size_t n = character(p, (size_t)(end - p));

        if (!tally_add(&t, p, n)) {
            free(t.slot);
            return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
        }
        p += n;
    }
    t.used = tally_pack(&t);
    qsort(t.slot, t.used, sizeof *t.slot, by_bytes);
    err = make_from(DATA_TOKENIZER_CHARS, t.slot, t.used, 0, ret, why);
    free(t.slot);
    return err;
}

/* The next word or newline from *p on; false at the end. */
static bool next_word(const uint8_t **p, const uint8_t *end, const uint8_t **ret, size_t *ret_len)
{
    const uint8_t *at = *p;

    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\v' || *at == '\f'))
        at++;
    if (at == end)
        return false;
    *ret = at;
    if (*at == '\n') {
        at++;
    } else {
        while (at < end && *at != ' ' && (*at < '\t' || *at > '\r'))
            at++;
    }
    *ret_len = (size_t)(at - *ret);
    *p = at;
    return true;
}

enum pd_err data_tokenizer_words_new(const void *text, size_t len, size_t most, struct data_tokenizer **ret,
                                     struct pd_why *why)
{
    static const uint8_t newline[] = "\n", unknown[] = "<unk>";
    const uint8_t *p = text, *end = p + len, *word = NULL;
    struct tally t = {0};
    bool has_end = false, has_unknown = false;
    size_t n = 0, kept, taken = 0, ordinary = 0;
    enum pd_err err = PD_ERR_NOMEM;

    while (next_word(&p, end, &word, &n)) {
        if (n >= TOKEN_BYTES_MAX) {
            err = pd_fail(why, PD_ERR_LIMIT, "a word has %zu bytes, which is too long", n);
            goto out;
        }
        if (!tally_add(&t, word, n)) {
            (void)pd_fail(why, err, "no memory for a tokenizer");
            goto out;
        }
        has_end |= *word == '\n';
        has_unknown |= n == 5 && !memcmp(word, unknown, 5);
    }
    /* Both are there whatever the text holds. */
    if ((!has_end && !tally_add(&t, newline, 1)) || (!has_unknown && !tally_add(&t, unknown, 5))) {
        (void)pd_fail(why, err, "no memory for a tokenizer");
        goto out;
    }
    t.used = tally_pack(&t);
    qsort(t.slot, t.used, sizeof *t.slot, by_count);
    kept = most && most < t.used ? most : t.used;
    for (size_t i = 0; kept >= 2 && i < t.used; i++) {
        const struct entry *w = &t.slot[i];
        bool always = (w->len == 1 && w->at[0] == '\n') || (w->len == 5 && !memcmp(w->at, unknown, 5));

        if (always || ordinary < kept - 2) {
            ordinary += !always;
            t.slot[taken++] = *w;
        }
    }
    if (kept < 2)
        err = pd_fail(why, PD_ERR_INVALID, "a vocabulary needs at least <eos> and <unk>");
    else
        err = make_from(DATA_TOKENIZER_WORDS, t.slot, taken, ' ', ret, why);
out:
    free(t.slot);
    return err;
}

/* ---- ids ---- */

/* Id `id` as its text, "17 "; returns the length. */
static uint32_t id_text(int32_t id, char out[16])
{
    return (uint32_t)snprintf(out, 16, "%d ", id);
}

enum pd_err data_tokenizer_ids_new(int32_t vocab, struct data_tokenizer **ret, struct pd_why *why)
{
    uint32_t *len = vocab > 0 && vocab <= DATA_VOCAB_MAX ? malloc((size_t)vocab * sizeof *len) : NULL;
    struct pd_buf bytes;
    enum pd_err err;

    pd_buf_init(&bytes, 0);
    for (int32_t id = 0; len && id < vocab; id++) {
        char text[16];

        len[id] = id_text(id, text);
        pd_buf_append(&bytes, text, len[id]);
    }
    if (!len || pd_buf_err(&bytes) != PD_OK)
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer of %d ids", vocab);
    else
        err = make(DATA_TOKENIZER_IDS, bytes.data, len, vocab, ret, why);
    pd_buf_done(&bytes);
    free(len);
    return err;
}

static bool is_id(const struct data_tokenizer *t, int32_t id)
{
    char text[16];
    uint32_t len = id_text(id, text);

    return t->start[id + 1] - t->start[id] == len && !memcmp(t->bytes + t->start[id], text, len);
}

static enum pd_err encode_ids(const struct data_tokenizer *t, const uint8_t *p, size_t len,
                              struct data_ids *out, struct pd_why *why)
{
    for (size_t i = 0; i < len;) {
        int64_t id = 0;
        size_t from = i;

        if (p[i] == ' ' || p[i] == '\n') {
            i++;
            continue;
        }
        for (; i < len && p[i] >= '0' && p[i] <= '9' && id < (int64_t)1e15; i++)
            id = 10 * id + (p[i] - '0');
        if (i > from && id >= t->count)
            return pd_fail(why, PD_ERR_INVALID, "id %lld is not in the vocabulary, whose ids are 0 to %d",
                           (long long)id, t->count - 1);
        if (i == from || (i < len && p[i] != ' ' && p[i] != '\n'))
            return pd_fail(
                why, PD_ERR_INVALID,
                "this model has no tokenizer: text must be ids from 0 to %d separated by blanks, such as "
                "\"3 17\"",
                t->count - 1);
        if (data_ids_add(out, (int32_t)id) != PD_OK)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
    }
    return PD_OK;
}

/* ---- encoding ---- */

static enum pd_err encode_chars(const struct data_tokenizer *t, const uint8_t *p, size_t len,
                                struct data_ids *out, struct pd_why *why)
{
    const uint8_t *end = p + len;

    while (p < end) {
        size_t n = character(p, (size_t)(end - p));
        int32_t id = data_tokens_find(t, p, n);

        if (id < 0)
            return pd_fail(why, PD_ERR_INVALID, "the character '%.*s' was not in the text of the vocabulary",
                           data_utf8_sequence(p, n) ? (int)n : 0, (const char *)p);
        if (data_ids_add(out, id) != PD_OK)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
        p += n;
    }
    return PD_OK;
}

static enum pd_err encode_words(const struct data_tokenizer *t, const uint8_t *p, size_t len,
                                struct data_ids *out, struct pd_why *why)
{
    const uint8_t *end = p + len, *word = NULL;
    size_t n = 0;

    while (next_word(&p, end, &word, &n)) {
        int32_t id = data_tokens_find(t, word, n);

        if (data_ids_add(out, id >= 0 ? id : t->unknown) != PD_OK)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
    }
    return PD_OK;
}

enum pd_err data_tokenizer_encode(const struct data_tokenizer *t, const void *text, size_t len, bool special,
                                  struct data_ids *out, struct pd_why *why)
{
    const uint8_t *p = text;
    enum pd_err err = PD_OK;

    switch (t->kind) {
    case DATA_TOKENIZER_BYTES:
    case DATA_TOKENIZER_PADDED_BYTES:
        for (size_t i = 0; i < len; i++)
            if (data_ids_add(out, p[i] + (t->kind == DATA_TOKENIZER_PADDED_BYTES)) != PD_OK)
                return pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
        return PD_OK;
    case DATA_TOKENIZER_CHARS:
        return encode_chars(t, p, len, out, why);
    case DATA_TOKENIZER_WORDS:
        return encode_words(t, p, len, out, why);
    case DATA_TOKENIZER_IDS:
        return encode_ids(t, p, len, out, why);
    case DATA_TOKENIZER_GPT2_BPE:
        break;
    }
    while (err == PD_OK && len) {
        const uint8_t *mark =
            special && t->end >= 0 ? memmem(p, len, end_of_text, sizeof end_of_text - 1) : NULL;
        size_t n = mark ? (size_t)(mark - p) : len;

        err = data_bpe_encode(t, p, n, out, why);
        if (err == PD_OK && mark) {
            if (data_ids_add(out, t->end) != PD_OK)
                return pd_fail(why, PD_ERR_NOMEM, "no memory for tokens");
            n += sizeof end_of_text - 1;
        }
        p += n;
        len -= n;
    }
    return err;
}

/* ---- serialised ---- */

static void put(struct pd_buf *out, uint32_t v)
{
    const uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};

    pd_buf_append(out, b, 4);
}

enum pd_err data_tokenizer_save(const struct data_tokenizer *t, struct pd_buf *out, struct pd_why *why)
{
    pd_buf_append(out, MAGIC, 8);
    put(out, (uint32_t)t->kind);
    put(out, (uint32_t)t->count);
    put(out, (uint32_t)t->merge_count);
    for (int32_t i = 0; i < t->count; i++)
        put(out, t->start[i + 1] - t->start[i]);
    pd_buf_append(out, t->bytes, t->start[t->count]);
    for (size_t i = 0; i < t->merge_count; i++) {
        put(out, (uint32_t)t->merges[i].left);
        put(out, (uint32_t)t->merges[i].right);
        put(out, (uint32_t)t->merges[i].out);
    }
    return pd_buf_err(out) == PD_OK ? PD_OK : pd_fail(why, pd_buf_err(out), "no memory for a tokenizer");
}

static uint32_t get(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

enum pd_err data_tokenizer_load(const void *from, size_t len, struct data_tokenizer **ret, struct pd_why *why)
{
    const uint8_t *p = from;
    struct data_tokenizer *t = NULL;
    uint64_t total = 0, want;
    uint32_t kind, count, merges, *lens = NULL;
    enum pd_err err;

    if (len < 20 || memcmp(p, MAGIC, 8) != 0)
        return pd_fail(why, PD_ERR_CORRUPT, "not a tokenizer file");
    kind = get(p + 8);
    count = get(p + 12);
    merges = get(p + 16);
    if (kind > DATA_TOKENIZER_PADDED_BYTES || !count || count > DATA_VOCAB_MAX || merges > DATA_VOCAB_MAX ||
        (merges && kind != DATA_TOKENIZER_GPT2_BPE) || (kind == DATA_TOKENIZER_BYTES && count != 256) ||
        (kind == DATA_TOKENIZER_PADDED_BYTES && count != 257) || len - 20 < 4ull * count)
        return pd_fail(why, PD_ERR_CORRUPT, "the tokenizer's header is invalid");
    lens = malloc(count * sizeof *lens);
    if (!lens)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    for (uint32_t i = 0; i < count; i++) {
        lens[i] = get(p + 20 + 4 * (size_t)i);
        total += lens[i];
        if (lens[i] > TOKEN_BYTES_MAX + 1 ||
            (!lens[i] && kind != DATA_TOKENIZER_GPT2_BPE && kind != DATA_TOKENIZER_PADDED_BYTES)) {
            err = pd_fail(why, PD_ERR_CORRUPT, "token %u has an invalid length", i);
            goto out;
        }
    }
    want = 20 + 4ull * count + total + 12ull * merges;
    if (total > UINT32_MAX || want != len) {
        err = pd_fail(why, PD_ERR_CORRUPT, "the tokenizer has %zu bytes instead of %llu", len,
                      (unsigned long long)want);
        goto out;
    }
    err = make((enum data_tokenizer_kind)kind, p + 20 + 4 * (size_t)count, lens, (int32_t)count, &t, why);
    if (err != PD_OK)
        goto out;
    for (uint32_t i = 0; kind == DATA_TOKENIZER_BYTES && i < 256; i++)
        if (lens[i] != 1 || (uint8_t)t->bytes[i] != i)
            err = pd_fail(why, PD_ERR_CORRUPT, "token %u of the tokenizer is wrong", i);
    for (uint32_t i = 0; kind == DATA_TOKENIZER_PADDED_BYTES && err == PD_OK && i < 257; i++)
        if (lens[i] != (i > 0) || (i && (uint8_t)t->bytes[i - 1] != i - 1))
            err = pd_fail(why, PD_ERR_CORRUPT, "token %u of the tokenizer is wrong", i);
    for (uint32_t i = 0; kind == DATA_TOKENIZER_IDS && err == PD_OK && i < count; i++)
        if (!is_id(t, (int32_t)i))
            err = pd_fail(why, PD_ERR_CORRUPT, "token %u of the tokenizer is wrong", i);
    if (kind == DATA_TOKENIZER_WORDS && (t->end < 0 || t->unknown < 0))
        err = pd_fail(why, PD_ERR_CORRUPT, "the tokenizer has no <eos> or no <unk>");
    if (err == PD_OK && kind == DATA_TOKENIZER_GPT2_BPE) {
        p += len - 12ull * merges;
        t->merges = malloc((merges ? merges : 1) * sizeof *t->merges);
        t->merge_count = t->merges ? merges : 0;
        for (uint32_t i = 0; i < t->merge_count; i++, p += 12)
            t->merges[i] = (struct data_merge){(int32_t)get(p), (int32_t)get(p + 4), (int32_t)get(p + 8)};
        err = t->merges ? data_bpe_init(t, why) : pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    }
out:
    free(lens);
    if (err != PD_OK) {
        data_tokenizer_free(t);
        return err;
    }
    *ret = t;
    return PD_OK;
}

/* ---- from a folder ---- */

static enum pd_err read_first(const struct data_root *roots, size_t root_count, const char *folder,
                              const char *const names[2], struct pd_buf *out, struct pd_why *why)
{
    struct stat s;
    ssize_t n = 0;
    void *to;
    int fd = -1;
    enum pd_err err = PD_ERR_NOT_FOUND;

    for (int i = 0; i < 2 && err == PD_ERR_NOT_FOUND; i++)
        err = data_path_open_in(roots, root_count, folder, names[i], &fd, why);
    if (err == PD_ERR_NOT_FOUND)
        return pd_fail(why, PD_ERR_NOT_FOUND, "the tokenizer's folder has neither %s nor %s", names[0],
                       names[1]);
    if (err != PD_OK)
        return err;
    if (fstat(fd, &s) != 0) {
        close(fd);
        return pd_fail(why, PD_ERR_IO, "cannot read '%s'", names[0]);
    }
    if ((uint64_t)s.st_size > FILE_MAX) {
        close(fd);
        return pd_fail(why, PD_ERR_LIMIT, "'%s' holds more than %zu bytes", names[0], FILE_MAX);
    }
    to = pd_buf_reserve(out, (size_t)s.st_size + 1);
    if (to)
        n = read(fd, to, (size_t)s.st_size);
    close(fd);
    if (!to)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for '%s'", names[0]);
    if (n != s.st_size)
        return pd_fail(why, PD_ERR_IO, "cannot read '%s'", names[0]);
    out->len = (size_t)n;
    return PD_OK;
}

enum pd_err data_tokenizer_bpe_open(const struct data_root *roots, size_t root_count, const char *folder,
                                    struct data_tokenizer **ret, struct pd_why *why)
{
    static const char *const vocab_names[2] = {"encoder.json", "vocab.json"};
    static const char *const merges_names[2] = {"vocab.bpe", "merges.txt"};
    struct pd_buf vocab, merges;
    enum pd_err err;

    pd_buf_init(&vocab, 0);
    pd_buf_init(&merges, 0);
    err = read_first(roots, root_count, folder, vocab_names, &vocab, why);
    if (err == PD_OK)
        err = read_first(roots, root_count, folder, merges_names, &merges, why);
    if (err == PD_OK)
        err = data_tokenizer_bpe_new(vocab.data, vocab.len, merges.data, merges.len, ret, why);
    pd_buf_done(&vocab);
    pd_buf_done(&merges);
    return err;
}
