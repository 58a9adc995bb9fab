/* daemon/worker/data/text.c: texts as tokens.
 *
 * A text is divided by bytes first, then each part is cut into tokens on its own, as the published splits
 * were made. What a tokenizer other than `bytes` makes of a part is kept in a cache (cache.h) under a digest
 * of tokenizer and text. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/data/cache.h"
#include "daemon/worker/data/path.h"
#include "daemon/worker/data/sentences.h"
#include "daemon/worker/data/set.h"
#include "daemon/digest/digest.h"

#define CACHE_WAIT_MS (20 * 60 * 1000)
#define GUESSED_BYTES_PER_TOKEN 4

/* text_gen. The sentences of each part begin at a number of their own: no draw belongs to two parts. */
#define GENERATED_TRAIN 1000000
#define GENERATED_VAL 100000
#define GENERATED_TEST 100000
#define GENERATED_FIRST(part) ((uint64_t)(part) << 32)

/* The files of a folder that is divided: the first of each row that is there. */
static const char *const part_files[DATA_SPLITS][8] = {
    {"train.txt", "ptb.train.txt", "wiki.train.tokens", "wiki.train.raw", "train.tokens", NULL},
    {"valid.txt", "ptb.valid.txt", "wiki.valid.tokens", "wiki.valid.raw", "valid.tokens", "val.txt",
     "validation.txt", NULL},
    {"test.txt", "ptb.test.txt", "wiki.test.tokens", "wiki.test.raw", "test.tokens", NULL},
};

bool data_part_text_named(const char *name)
{
    for (int part = 0; part < 2; part++)
        for (const char *const *known = part_files[part]; *known; known++) {
            size_t n = strlen(*known);

            if (!strncmp(name, *known, n) && (!name[n] || !strcmp(name + n, ".gz")))
                return true;
        }
    return false;
}

enum pd_err data_part_open(int dir, const char *name, int *ret_fd, struct pd_why *why)
{
    for (int zipped = 0; zipped < 2 && *ret_fd < 0; zipped++) {
        char file[64];

        snprintf(file, sizeof file, "%s%s", name, zipped ? ".gz" : "");
        *ret_fd = data_open_beneath(dir, file, O_RDONLY | O_NONBLOCK);
        if (*ret_fd < 0 && (errno == EXDEV || errno == ELOOP))
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads out of its folder", file);
        if (*ret_fd < 0 && errno != ENOENT)
            return pd_fail_errno(why, errno, "cannot open '%s'", file);
    }
    return PD_OK;
}

/* Whether the text that is scored is a part of its own, which nothing else is made of. */
static bool wants_test_part(const struct data_options *o)
{
    return o->scored == DATA_SCORED_TEST && o->dataset == DATA_SET_TEXTS && o->rule == DATA_SPLIT_GIVEN;
}

/* Reads everything; given[] are the bytes of the parts that the data set itself has (0: none). Under the rules other
 * than standard the test part is read only where it is wanted, and is no part of *ret_whole. */
static enum pd_err read_all(struct data_set *set, const struct data_options *o, bool size_only,
                            int64_t *ret_whole, int64_t given[DATA_SPLITS], struct pd_why *why)
{
    const bool standard = o->rule == DATA_SPLIT_STANDARD;
    int fd = -1, dir = -1;
    int64_t at = 0;
    enum pd_err err;

    if (o->dataset == DATA_SET_TEXT) {
        err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why);
        if (err == PD_OK)
            err = data_text_append(set, fd, o->path, size_only, &at, why);
        given[0] = o->rule == DATA_SPLIT_STANDARD ? at : (int64_t)floor((double)at * 0.9);
        given[1] = at - given[0];
        *ret_whole = at;
        return err;
    }
    err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);
    for (int part = 0; err == PD_OK && part < (standard || wants_test_part(o) ? DATA_SPLITS : 2); part++) {
        int64_t before = at;
        const char *const *name = part_files[part];

        for (fd = -1; *name && fd < 0 && err == PD_OK; name += fd < 0)
            err = data_part_open(dir, *name, &fd, why);
        if (fd >= 0)
            err = data_text_append(set, fd, *name, size_only, &at, why);
        given[part] = at - before;
    }
    if (err == PD_OK && !at)
        err = pd_fail(why, PD_ERR_NOT_FOUND, "'%s' holds no train.txt, ptb.train.txt or wiki.train.tokens",
                      o->path);
    if (dir >= 0)
        close(dir);
    *ret_whole = at - (standard ? 0 : given[DATA_TEST]);
    return err;
}

/* Makes the text of text_gen: each part from sentences of its own. */
static enum pd_err make_all(struct data_set *set, const struct data_options *o, bool size_only,
                            int64_t bytes[DATA_SPLITS], struct pd_why *why)
{
    static const int64_t usual[DATA_SPLITS] = {GENERATED_TRAIN, GENERATED_VAL, GENERATED_TEST};
    int64_t at = 0, whole;
    enum pd_err err = data_divide_made(o, usual, bytes, why);

    if (err != PD_OK)
        return err;
    whole = bytes[DATA_TRAIN] + bytes[DATA_VAL] + bytes[DATA_TEST];
    if (whole > DATA_GENERATED_BYTES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "#/data/split: at most %lld bytes are generated",
                       (long long)DATA_GENERATED_BYTES_MAX);
    if (size_only)
        return PD_OK;
    set->text = malloc((size_t)whole);
    if (!set->text)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a generated text");
    for (int part = 0; part < DATA_SPLITS; at += bytes[part++])
        data_sentences_write(o->seed, GENERATED_FIRST(part), set->text + at, (size_t)bytes[part]);
    return PD_OK;
}

/* ---- tokenizers ---- */

enum pd_err data_open_tokenizer(struct data_set *set, const struct data_options *o, const void *text,
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
    }
    err = data_path_open(o->roots, o->root_count, o->tokenizer_path, true, &dir, why);
    if (err == PD_OK)
        err = data_tokenizer_bpe_open(dir, &set->tokenizer, why);
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

static enum pd_err key_of(const struct data_tokenizer *t, const uint8_t *text, size_t len, uint8_t key[32],
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
    digest_sha256_update(&hash, text, len);
    digest_sha256_final(&hash, key);
    pd_buf_done(&saved);
    return err;
}

/* ---- tokens ---- */

static bool use_map(struct data_set *set, int part, struct data_cache *c)
{
    int width = data_tokenizer_vocab(set->tokenizer) <= 65536 ? 2 : 4;
    int32_t vocab = data_tokenizer_vocab(set->tokenizer);
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

static enum pd_err tokenise(struct data_set *set, int part, const uint8_t *text, size_t len,
                            struct pd_why *why)
{
    struct data_ids *ids = &set->made[part];
    enum pd_err err = data_tokenizer_encode(set->tokenizer, text, len, false, ids, why);

    if (err != PD_OK)
        return err;
    set->work.tokenised_bytes += (int64_t)len;
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

/* The tokens of one part: from the cache, or made and, if that goes, kept. */
static enum pd_err open_part(struct data_set *set, const struct data_options *o, int part,
                             const uint8_t *text, size_t len, struct pd_why *why)
{
    int width = data_tokenizer_vocab(set->tokenizer) <= 65536 ? 2 : 4;
    struct data_cache_writer *w = NULL;
    struct data_cache *c = NULL;
    struct pd_why ignored;
    uint8_t key[32];
    enum pd_err err;

    if (o->tokenizer == DATA_TOKENIZER_BYTES) {
        set->part[part] = (struct data_ids_view){.ids = text, .width = 1, .count = (int64_t)len};
        return PD_OK;
    }
    if (!o->cache_dir)
        return tokenise(set, part, text, len, why);
    err = key_of(set->tokenizer, text, len, key, why);
    if (err != PD_OK)
        return err;
    err = data_cache_open(o->cache_dir, key, &c, &ignored);
    if (err != PD_OK) {
        err = data_cache_begin(o->cache_dir, key, len, CACHE_WAIT_MS, &w, &ignored);
        if (err == PD_ERR_EXISTS)
            err = data_cache_open(o->cache_dir, key, &c, &ignored);
    }
    if (c && use_map(set, part, c)) {
        set->work.cache_hits++;
        return PD_OK;
    }
    data_cache_close(c);
    set->work.cache_misses++;
    err = tokenise(set, part, text, len, why);
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

/* Where the parts lie in set->text. */
struct places {
    int64_t start[DATA_SPLITS], bytes[DATA_SPLITS];
    int64_t
        whole; /* bytes that tokenizers are made of: all, but for a test part that is read for an evaluation alone */
};

static bool inside_character(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

/* Lays parts of a text one behind the other. A character is not torn in two: it goes to the next part, or at the end to
 * none. */
static void lay_out(const struct data_set *set, const struct data_options *o,
                    const int64_t given[DATA_SPLITS], struct places *p)
{
    const bool standard = o->rule == DATA_SPLIT_STANDARD;
    int64_t at = 0, end = standard ? given[DATA_TRAIN] : p->whole, own = given[DATA_TRAIN];

    for (int part = 0; part < DATA_SPLITS; part++) {
        int64_t stop;

        if (standard && part != DATA_TRAIN && given[part]) { /* a file of its own */
            p->start[part] = own;
            own += given[part];
            continue;
        }
        stop = at + p->bytes[part];
        while (o->tokenizer != DATA_TOKENIZER_BYTES && p->bytes[part] && stop > at && stop < end &&
               inside_character(set->text[stop]))
            stop--;
        p->start[part] = at;
        if (part + 1 < DATA_SPLITS && p->bytes[part + 1] && !(standard && given[part + 1]))
            p->bytes[part + 1] += at + p->bytes[part] - stop;
        p->bytes[part] = stop - at;
        at = stop;
    }
}

/* Under the rules other than standard: what is tested is the set's own test part, or what the two others leave. */
static void find_test(const struct data_options *o, const int64_t given[DATA_SPLITS], struct places *p)
{
    int64_t left = p->start[DATA_VAL] + p->bytes[DATA_VAL];

    p->start[DATA_TEST] = wants_test_part(o) ? p->whole : left;
    p->bytes[DATA_TEST] = wants_test_part(o) ? given[DATA_TEST] : p->whole - left;
}

static enum pd_err find_parts(struct data_set *set, const struct data_options *o, bool size_only,
                              struct places *p, struct pd_why *why)
{
    const char *name = o->path;
    int64_t given[DATA_SPLITS] = {0}, sum;
    enum pd_err err = read_all(set, o, size_only, &p->whole, given, why);

    if (err == PD_OK)
        err = data_divide(o, p->whole, given, p->bytes, why);
    if (err != PD_OK)
        return err;
    sum = p->bytes[DATA_TRAIN] + p->bytes[DATA_VAL];
    if (o->rule != DATA_SPLIT_STANDARD && sum > p->whole)
        return pd_fail(why, PD_ERR_INVALID, "#/data/split: asks for more bytes than the %lld of '%s'",
                       (long long)p->whole, name);
    lay_out(set, o, given, p);
    if (o->rule != DATA_SPLIT_STANDARD && o->scored == DATA_SCORED_TEST)
        find_test(o, given, p);
    return PD_OK;
}

static enum pd_err make_parts(struct data_set *set, const struct data_options *o, bool size_only,
                              struct places *p, struct pd_why *why)
{
    enum pd_err err = make_all(set, o, size_only, p->bytes, why);

    p->start[DATA_VAL] = p->bytes[DATA_TRAIN];
    p->start[DATA_TEST] = p->start[DATA_VAL] + p->bytes[DATA_VAL];
    p->whole = p->start[DATA_TEST] + (o->rule == DATA_SPLIT_STANDARD ? p->bytes[DATA_TEST] : 0);
    return err;
}

/* Lets the part that is scored stand for the validation part. */
static enum pd_err take_scored(const struct data_options *o, struct places *p, struct pd_why *why)
{
    const enum data_split part = data_scored_part(o->scored);

    if (part == DATA_VAL)
        return PD_OK;
    p->start[DATA_VAL] = p->start[part];
    p->bytes[DATA_VAL] = p->bytes[part];
    p->bytes[DATA_TEST] = 0;
    return p->bytes[DATA_VAL] < 1 ? data_no_test(o, why) : PD_OK;
}

enum pd_err data_open_text(struct data_set *set, const struct data_options *o, bool headers_only,
                           struct pd_why *why)
{
    static const char *const part_name[] = {"training", "validation", "test"};
    const bool generated = o->dataset == DATA_SET_TEXT_GEN,
               size_only = headers_only && o->tokenizer == DATA_TOKENIZER_BYTES;
    const char *name = generated ? "text_gen" : o->path;
    struct places p = {.whole = 0};
    enum pd_err err =
        generated ? make_parts(set, o, size_only, &p, why) : find_parts(set, o, size_only, &p, why);

    if (err == PD_OK)
        err = take_scored(o, &p, why);
    if (err != PD_OK)
        return err;
    set->text_bytes = p.whole;
    if (o->tokenizer != DATA_TOKENIZER_BYTES)
        set->foreign_bytes = data_text_foreign(set->text, (size_t)p.whole);
    err = data_open_tokenizer(set, o, set->text, (size_t)p.whole, (size_t)p.bytes[DATA_TRAIN], why);
    if (err != PD_OK)
        return err;
    set->info.tokenizer = set->tokenizer;
    set->info.vocab = data_tokenizer_vocab(set->tokenizer);
    for (int i = 0; i < DATA_SPLITS && err == PD_OK; i++) {
        if (i == DATA_TEST && !p.bytes[i])
            continue;
        if (headers_only && o->tokenizer != DATA_TOKENIZER_BYTES &&
            (size_t)p.whole > DATA_COUNTED_BYTES_MAX) {
            set->info.tokens[i] = p.bytes[i] / GUESSED_BYTES_PER_TOKEN;
            set->info.estimated = true;
        } else if (!set->text) {
            set->info.tokens[i] = p.bytes[i]; /* of bytes the size tells all */
        } else {
            err = open_part(set, o, i, set->text + p.start[i], (size_t)p.bytes[i], why);
            if (err != PD_OK)
                return err;
            set->info.tokens[i] = set->part[i].count;
        }
        set->info.count[i] = (set->info.tokens[i] - 1) / o->context;
        if (set->info.count[i] < 1)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/data/split: the %s part of '%s' is shorter than data.context + 1",
                           part_name[i == DATA_VAL ? (int)data_scored_part(o->scored) : i], name);
        if (set->info.count[i] > UINT32_MAX)
            return pd_fail(why, PD_ERR_LIMIT, "more than 2^32 sequences");
    }
    if (headers_only || o->tokenizer != DATA_TOKENIZER_BYTES) {
        /* With `bytes` the text itself is the tokens. */
        free(set->text);
        set->text = NULL;
        for (int i = 0; i < DATA_SPLITS && headers_only; i++)
            set->part[i].ids = NULL;
    }
    return err;
}
