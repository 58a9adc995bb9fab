/* daemon/worker/data/text.c: texts as tokens.
 *
 * A text is divided by bytes first, then each part is cut into tokens on its own (ids.c), as the published
 * splits were made. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/data/path.h"
#include "daemon/worker/data/sentences.h"
#include "daemon/worker/data/set.h"

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
            return pd_fail(why, PD_ERR_DENIED, "'%s' leads outside its folder", file);
        if (*ret_fd < 0 && errno != ENOENT)
            return pd_fail_errno(why, errno, "cannot open '%s'", file);
    }
    return PD_OK;
}

/* Whether the text that is scored is a part of its own, which nothing else is made of. */
static bool wants_test_part(const struct data_options *o)
{
    return o->scored == DATA_SCORED_TEST && o->dataset != DATA_SET_TEXT && o->rule == DATA_SPLIT_GIVEN;
}

bool data_text_wants(const struct data_options *o, enum data_split part)
{
    if (o->tokens)
        return part == DATA_TEST;
    return part != DATA_TEST || o->rule == DATA_SPLIT_STANDARD || wants_test_part(o);
}

static enum pd_err read_file(struct data_set *set, const struct data_options *o, bool size_only,
                             int64_t given[DATA_SPLITS], struct pd_why *why)
{
    int fd = -1;
    int64_t at = 0;
    enum pd_err err = data_path_open(o->roots, o->root_count, o->path, false, &fd, why);

    if (err == PD_OK)
        err = data_text_append(set, fd, o->path, size_only, &at, why);
    given[DATA_TRAIN] = o->rule == DATA_SPLIT_STANDARD ? at : (int64_t)floor((double)at * 0.9);
    given[DATA_VAL] = at - given[DATA_TRAIN];
    return err;
}

static enum pd_err read_parts(struct data_set *set, const struct data_options *o, bool size_only,
                              int64_t given[DATA_SPLITS], struct pd_why *why)
{
    int fd, dir = -1;
    int64_t at = 0;
    enum pd_err err = data_path_open(o->roots, o->root_count, o->path, true, &dir, why);

    for (int part = 0; err == PD_OK && part < DATA_SPLITS; part++) {
        int64_t before = at;
        const char *const *name = part_files[part];

        if (!data_text_wants(o, (enum data_split)part))
            continue;
        for (fd = -1; *name && fd < 0 && err == PD_OK; name += fd < 0)
            err = data_part_open(dir, *name, &fd, why);
        if (fd >= 0)
            err = data_text_append(set, fd, *name, size_only, &at, why);
        given[part] = at - before;
    }
    if (err == PD_OK && !at)
        err =
            pd_fail(why, PD_ERR_NOT_FOUND, "'%s' has no %s.txt, ptb.%s.txt or wiki.%s.tokens", o->path,
                    o->tokens ? "test" : "train", o->tokens ? "test" : "train", o->tokens ? "test" : "train");
    if (dir >= 0)
        close(dir);
    return err;
}

/* Reads what is wanted; given[] are the bytes of the parts that the data set itself has (0: none). Under the rules other
 * than standard a test part of its own is no part of *ret_whole. */
static enum pd_err read_all(struct data_set *set, const struct data_options *o, bool size_only,
                            int64_t *ret_whole, int64_t given[DATA_SPLITS], struct pd_why *why)
{
    enum pd_err err = o->dataset == DATA_SET_TEXT    ? read_file(set, o, size_only, given, why)
                      : o->dataset == DATA_SET_TEXTS ? read_parts(set, o, size_only, given, why)
                                                     : data_documents_read(set, o, size_only, given, why);

    *ret_whole = given[DATA_TRAIN] + given[DATA_VAL];
    if (o->rule == DATA_SPLIT_STANDARD || o->tokens)
        *ret_whole += given[DATA_TEST];
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

/* The last end of a document in at+1 .. stop; stop itself where none ends there. */
static int64_t whole_documents(const struct data_ends *d, int64_t at, int64_t stop)
{
    size_t low = 0, high = d->count; /* ends before `low` are at most stop */

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (d->at[middle] <= stop)
            low = middle + 1;
        else
            high = middle;
    }
    return low && d->at[low - 1] > at ? d->at[low - 1] : stop;
}

/* The end of a part of `bytes` bytes from `at` in a text that ends at `end`. A document, or where there are none a
 * character, is not torn in two: the part ends before it. */
static int64_t end_of_part(const struct data_set *set, const struct data_options *o, int64_t at,
                           int64_t bytes, int64_t end)
{
    int64_t stop = whole_documents(&set->document, at, at + bytes);

    while (o->tokenizer != DATA_TOKENIZER_BYTES && set->text && bytes && stop > at && stop < end &&
           inside_character(set->text[stop]))
        stop--;
    return stop;
}

/* Lays parts of a text one behind the other. What a part of the training text leaves of its last document or character
 * goes to the next part, or at the end to none; a part with a file of its own leaves it to none. */
static void lay_out(const struct data_set *set, const struct data_options *o,
                    const int64_t given[DATA_SPLITS], struct places *p)
{
    const bool standard = o->rule == DATA_SPLIT_STANDARD;
    int64_t at = 0, end = standard ? given[DATA_TRAIN] : p->whole, own = given[DATA_TRAIN];

    for (int part = 0; part < DATA_SPLITS; part++) {
        int64_t stop;

        if (standard && part != DATA_TRAIN && given[part]) { /* a file of its own */
            p->start[part] = own;
            p->bytes[part] = end_of_part(set, o, own, p->bytes[part], own + given[part]) - own;
            own += given[part];
            continue;
        }
        stop = end_of_part(set, o, at, p->bytes[part], end);
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

/* A count beyond the bytes of a part's own files would take them from those of the next. */
static enum pd_err check_counts(const struct data_options *o, const int64_t given[DATA_SPLITS],
                                const int64_t bytes[DATA_SPLITS], struct pd_why *why)
{
    if (o->rule != DATA_SPLIT_COUNT || o->dataset == DATA_SET_TEXT || !given[DATA_TRAIN] || !given[DATA_VAL])
        return PD_OK;
    for (int part = 0; part < 2; part++)
        if (bytes[part] > given[part])
            return pd_fail(why, PD_ERR_INVALID,
                           "#/data/split/%s: %lld bytes are requested, the %s part of '%s' has %lld",
                           part ? "val" : "train", (long long)bytes[part], part ? "validation" : "training",
                           o->path, (long long)given[part]);
    return PD_OK;
}

static enum pd_err find_parts(struct data_set *set, const struct data_options *o, bool size_only,
                              struct places *p, struct pd_why *why)
{
    const char *name = o->path;
    int64_t given[DATA_SPLITS] = {0}, sum;
    enum pd_err err = read_all(set, o, size_only, &p->whole, given, why);

    if (err == PD_OK && o->tokens) {
        p->bytes[DATA_VAL] = p->whole;
        return PD_OK;
    }
    if (err == PD_OK)
        err = data_divide(o, p->whole, given, p->bytes, why);
    if (err == PD_OK)
        err = check_counts(o, given, p->bytes, why);
    if (err != PD_OK)
        return err;
    sum = p->bytes[DATA_TRAIN] + p->bytes[DATA_VAL];
    if (o->rule != DATA_SPLIT_STANDARD && sum > p->whole)
        return pd_fail(why, PD_ERR_INVALID, "#/data/split: more bytes are requested than the %lld of '%s'",
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
    if (o->tokens) { /* the test part is scored, and nothing else is needed */
        p->start[DATA_VAL] = p->start[DATA_TEST];
        p->bytes[DATA_VAL] = p->bytes[DATA_TEST];
        p->bytes[DATA_TRAIN] = p->bytes[DATA_TEST] = 0;
    }
    return err;
}

/* Lets the part that is scored stand for the validation part. */
static enum pd_err take_scored(const struct data_options *o, struct places *p, struct pd_why *why)
{
    const enum data_split part = data_scored_part(o->scored);

    if (part == DATA_VAL || o->tokens)
        return PD_OK;
    p->start[DATA_VAL] = p->start[part];
    p->bytes[DATA_VAL] = p->bytes[part];
    p->bytes[DATA_TEST] = 0;
    return p->bytes[DATA_VAL] < 1 ? data_no_test(o, why) : PD_OK;
}

/* A folder whose tokens are guessed from its size is not read; a smaller one is read once its size is known. */
static enum pd_err look_at_folder(struct data_set *set, const struct data_options *o, struct places *p,
                                  struct pd_why *why)
{
    enum pd_err err = find_parts(set, o, true, p, why);

    if (err != PD_OK || (size_t)p->whole > DATA_COUNTED_BYTES_MAX)
        return err;
    set->document.count = 0;
    set->unread_files = 0;
    *p = (struct places){.whole = 0};
    return find_parts(set, o, false, p, why);
}

static enum pd_err read_text(struct data_set *set, const struct data_options *o, bool headers_only,
                             struct places *p, struct pd_why *why)
{
    const bool size_only = headers_only && o->tokenizer == DATA_TOKENIZER_BYTES;

    if (o->dataset == DATA_SET_TEXT_GEN)
        return make_parts(set, o, size_only, p, why);
    if (o->dataset == DATA_SET_DOCUMENTS && headers_only && o->tokenizer == DATA_TOKENIZER_GPT2_BPE)
        return look_at_folder(set, o, p, why);
    return find_parts(set, o, size_only, p, why);
}

enum pd_err data_open_text(struct data_set *set, const struct data_options *o, bool headers_only,
                           struct pd_why *why)
{
    static const char *const part_name[] = {"training", "validation", "test"};
    const char *name = o->dataset == DATA_SET_TEXT_GEN ? "text_gen" : o->path;
    struct places p = {.whole = 0};
    enum pd_err err = read_text(set, o, headers_only, &p, why);

    if (err == PD_OK)
        err = take_scored(o, &p, why);
    if (err != PD_OK)
        return err;
    set->text_bytes = p.whole;
    if (o->tokenizer != DATA_TOKENIZER_BYTES && set->text)
        set->foreign_bytes = data_text_foreign(set->text, (size_t)p.whole);
    err = data_open_tokenizer(set, o, set->text, (size_t)p.whole, (size_t)p.bytes[DATA_TRAIN], why);
    if (err != PD_OK)
        return err;
    set->info.vocab = data_tokenizer_vocab(set->info.tokenizer);
    for (int i = 0; i < DATA_SPLITS && err == PD_OK; i++) {
        if (!p.bytes[i] && (i == DATA_TEST || o->tokens))
            continue;
        if (headers_only && o->tokenizer != DATA_TOKENIZER_BYTES &&
            (!set->text || (size_t)p.whole > DATA_COUNTED_BYTES_MAX)) {
            set->info.tokens[i] = p.bytes[i] / GUESSED_BYTES_PER_TOKEN;
            set->info.estimated = true;
        } else if (!set->text) {
            set->info.tokens[i] = p.bytes[i]; /* of bytes the size tells all */
        } else {
            err = data_open_ids(set, o, (enum data_split)i, p.start[i], (size_t)p.bytes[i], why);
            if (err != PD_OK)
                return err;
            set->info.tokens[i] = set->part[i].count;
        }
        set->info.count[i] = (set->info.tokens[i] - 1) / o->context;
        if (set->info.count[i] < 1)
            return pd_fail(why, PD_ERR_INVALID,
                           "#/data/split: the %s part of '%s' is shorter than data.context + 1",
                           part_name[o->tokens       ? DATA_TEST
                                     : i == DATA_VAL ? (int)data_scored_part(o->scored)
                                                     : i],
                           name);
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
