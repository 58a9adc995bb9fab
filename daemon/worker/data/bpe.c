/* daemon/worker/data/bpe.c: GPT-2's byte-level byte-pair encoding.
 *
 * A text is cut into pieces by a regular expression (PCRE2, the one place that includes it), each piece
 * begins as its bytes, and the pair of neighbours that stands first in the list of merges is joined, until no
 * pair is listed. Since a merge's product can only be joined by later ones, joining one pair at a time gives
 * what joining all its occurrences at once does; data_bpe_init refuses lists that are not so.
 *
 * Words recur: what a piece became is remembered while one text is encoded. Long pieces go through a heap, so
 * that a megabyte without a blank takes no quadratic time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "daemon/worker/data/tokens.h"

/* White space as Unicode has it: \s of PCRE2 counts U+180E too. */
#define WS "\\t-\\r\\x{85}\\p{Z}"
static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++| ?\\p{N}++| ?[^" WS "\\p{L}\\p{N}]++|[" WS
                              "]+(?![^" WS "])|[" WS "]+";

#define WINDOW 32768       /* bytes that the expression is shown at once, if there is a place to cut */
#define SHORT 48           /* bytes of a piece that is merged by plain search */
#define REMEMBER_FROM 2048 /* shorter texts are encoded without a memory of words */
#define REMEMBERED_MAX 262144
#define TOKEN_TEXT_MAX 4096

struct pair {
    uint64_t key; /* left << 32 | right; all ones = free */
    int32_t rank, out;
};

struct data_bpe {
    int32_t byte[256]; /* id of each byte's token, -1 = none */
    struct pair *pairs;
    size_t mask;
    pcre2_code *split;
    bool jit;
};

/* ---- making ---- */

static size_t pair_slot(const struct data_bpe *b, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;

    return (h ^ h >> 32) & b->mask;
}

static const struct pair *find_pair(const struct data_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    for (size_t i = pair_slot(b, key);; i = (i + 1) & b->mask) {
        if (b->pairs[i].key == key)
            return &b->pairs[i];
        if (b->pairs[i].key == UINT64_MAX)
            return NULL;
    }
}

static enum pd_err add_merge(struct data_tokenizer *t, size_t rank, uint8_t *made, struct pd_why *why)
{
    struct data_bpe *b = t->bpe;
    const struct data_merge *m = &t->merges[rank];
    uint64_t key = (uint64_t)(uint32_t)m->left << 32 | (uint32_t)m->right;
    size_t left_len = 0, right_len = 0, out_len = 0, i;
    const char *left = data_tokenizer_token(t, m->left, &left_len);
    const char *right = data_tokenizer_token(t, m->right, &right_len);
    const char *out = data_tokenizer_token(t, m->out, &out_len);

    if (!left || !right || !out || left_len + right_len != out_len || memcmp(out, left, left_len) != 0 ||
        memcmp(out + left_len, right, right_len) != 0)
        return pd_fail(why, PD_ERR_CORRUPT, "merge %zu does not join its parts", rank + 1);
    if (!made[m->left] || !made[m->right])
        return pd_fail(why, PD_ERR_CORRUPT,
                       "merge %zu joins a token that is neither a byte nor the result of an earlier merge",
                       rank + 1);
    if (made[m->out])
        return pd_fail(why, PD_ERR_CORRUPT, "merge %zu has the same result as an earlier merge", rank + 1);
    made[m->out] = 1;
    for (i = pair_slot(b, key); b->pairs[i].key != UINT64_MAX; i = (i + 1) & b->mask)
        ;
    b->pairs[i] = (struct pair){.key = key, .rank = (int32_t)rank, .out = m->out};
    return PD_OK;
}

enum pd_err data_bpe_init(struct data_tokenizer *t, struct pd_why *why)
{
    struct data_bpe *b = calloc(1, sizeof *b);
    uint8_t *made = calloc((size_t)t->count, 1);
    size_t size = 16;
    int code = 0;
    PCRE2_SIZE at = 0;
    enum pd_err err = PD_OK;

    t->bpe = b;
    while (size < 2 * t->merge_count + 2)
        size *= 2;
    if (b)
        b->pairs = malloc(size * sizeof *b->pairs);
    if (!b || !made || !b->pairs) {
        free(made);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    }
    b->mask = size - 1;
    for (size_t i = 0; i < size; i++)
        b->pairs[i].key = UINT64_MAX;
    for (int i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;

        b->byte[i] = data_tokens_find(t, &byte, 1);
        if (b->byte[i] >= 0)
            made[b->byte[i]] = 1;
    }
    for (size_t i = 0; i < t->merge_count && err == PD_OK; i++)
        err = add_merge(t, i, made, why);
    free(made);
    if (err != PD_OK)
        return err;
    b->split = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!b->split)
        return pd_fail(why, PD_ERR_INTERNAL,
                       "the regular expression for words does not compile: error %d at %zu", code,
                       (size_t)at);
    /* Without a just-in-time compiler (or where memory may not be made executable) it is slower. */
    b->jit = pcre2_jit_compile(b->split, PCRE2_JIT_COMPLETE) == 0;
    return PD_OK;
}

void data_bpe_done(struct data_tokenizer *t)
{
    if (t->bpe) {
        pcre2_code_free(t->bpe->split);
        free(t->bpe->pairs);
        free(t->bpe);
        t->bpe = NULL;
    }
}

/* ---- the published files ---- */

/* The printable characters that stand for bytes in these files: code point of each byte. */
static void alphabet(uint16_t point[256])
{
    uint16_t next = 256;

    for (int b = 0; b < 256; b++)
        point[b] = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? (uint16_t)b : next++;
}

/* The bytes that a token's text stands for; a text with other characters stands for itself. */
static size_t token_bytes(const char *text, size_t len, const int16_t byte_of[512], uint8_t *to)
{
    size_t n = 0;

    for (size_t i = 0; i < len;) {
        size_t step = data_utf8_sequence((const uint8_t *)text + i, len - i);
        uint32_t c = (uint8_t)text[i];

        if (step == 2)
            c = (c & 0x1f) << 6 | ((uint8_t)text[i + 1] & 0x3f);
        if (step < 1 || step > 2 || c >= 512 || byte_of[c] < 0) {
            memcpy(to, text, len);
            return len;
        }
        to[n++] = (uint8_t)byte_of[c];
        i += step;
    }
    return n;
}

static enum pd_err read_vocab(json_t *vocab, struct data_tokenizer *t, struct pd_why *why)
{
    size_t count = json_object_size(vocab), total = 0;
    const char **texts = NULL;
    int16_t byte_of[512];
    uint16_t point[256];
    const char *key;
    json_t *value;
    enum pd_err err = PD_OK;

    if (!count || count > DATA_VOCAB_MAX)
        return pd_fail(why, PD_ERR_CORRUPT, "the vocabulary has %zu tokens, which is out of range", count);
    texts = calloc(count, sizeof *texts);
    t->start = malloc((count + 1) * sizeof *t->start);
    if (!texts || !t->start) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
        goto out;
    }
    t->count = (int32_t)count;
    json_object_foreach(vocab, key, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;

        if (id < 0 || id >= (json_int_t)count || texts[id] || strlen(key) > TOKEN_TEXT_MAX) {
            err = pd_fail(why, PD_ERR_CORRUPT,
                          "the vocabulary must have the ids 0 to %zu, each once; token '%.60s' violates this",
                          count - 1, key);
            goto out;
        }
        texts[id] = key;
        total += strlen(key);
    }
    t->bytes = malloc(total + 1);
    if (!t->bytes || total > UINT32_MAX) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
        goto out;
    }
    alphabet(point);
    memset(byte_of, 0xff, sizeof byte_of);
    for (int b = 0; b < 256; b++)
        byte_of[point[b]] = (int16_t)b;
    total = 0;
    for (size_t i = 0; i < count; i++) {
        t->start[i] = (uint32_t)total;
        total += token_bytes(texts[i], strlen(texts[i]), byte_of, (uint8_t *)t->bytes + total);
    }
    t->start[count] = (uint32_t)total;
    err = data_tokens_index(t, why);
out:
    free(texts);
    return err;
}

static int32_t id_of(const json_t *vocab, const char *text)
{
    const json_t *v = json_object_get(vocab, text);

    return v ? (int32_t)json_integer_value(v) : -1;
}

static enum pd_err read_merges(const json_t *vocab, const char *text, size_t len, struct data_tokenizer *t,
                               struct pd_why *why)
{
    const char *at = text, *end = text + len;
    size_t line = 0, size = 0;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *blank;
        char left[TOKEN_TEXT_MAX + 1], right[TOKEN_TEXT_MAX + 1], both[2 * TOKEN_TEXT_MAX + 1];
        struct data_merge m;
        size_t n;

        stop = stop ? stop : end;
        n = (size_t)(stop - at);
        if (n && at[n - 1] == '\r')
            n--;
        line++;
        if (!n || (line == 1 && n >= 8 && !memcmp(at, "#version", 8))) {
            at = stop + 1;
            continue;
        }
        blank = memchr(at, ' ', n);
        if (!blank || blank == at || blank == at + n - 1 ||
            memchr(blank + 1, ' ', (size_t)(at + n - blank - 1)) || memchr(at, 0, n) || n > TOKEN_TEXT_MAX)
            return pd_fail(why, PD_ERR_CORRUPT, "merges, line %zu: expected two tokens separated by a blank",
                           line);
        memcpy(left, at, (size_t)(blank - at));
        left[blank - at] = 0;
        memcpy(right, blank + 1, (size_t)(at + n - blank - 1));
        right[at + n - blank - 1] = 0;
        snprintf(both, sizeof both, "%s%s", left, right);
        m = (struct data_merge){id_of(vocab, left), id_of(vocab, right), id_of(vocab, both)};
        if (m.left < 0 || m.right < 0 || m.out < 0)
            return pd_fail(why, PD_ERR_CORRUPT, "merges, line %zu: '%.40s %.40s' is not in the vocabulary",
                           line, left, right);
        if (t->merge_count == size) {
            struct data_merge *more;

            if (size >= DATA_VOCAB_MAX)
                return pd_fail(why, PD_ERR_LIMIT, "more than %d merges", DATA_VOCAB_MAX);
            size = size ? 2 * size : 1024;
            more = realloc(t->merges, size * sizeof *more);
            if (!more)
                return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
            t->merges = more;
        }
        t->merges[t->merge_count++] = m;
        at = stop + 1;
    }
    return PD_OK;
}

enum pd_err data_tokenizer_bpe_new(const void *vocab, size_t vocab_len, const void *merges, size_t merges_len,
                                   struct data_tokenizer **ret, struct pd_why *why)
{
    struct data_tokenizer *t = calloc(1, sizeof *t);
    json_error_t where;
    json_t *o = NULL;
    enum pd_err err;

    if (!t)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a tokenizer");
    t->kind = DATA_TOKENIZER_GPT2_BPE;
    o = json_loadb(vocab, vocab_len, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(o))
        err = pd_fail(why, PD_ERR_CORRUPT, "the vocabulary is not a JSON object: %s",
                      o ? "another value" : where.text);
    else
        err = read_vocab(o, t, why);
    if (err == PD_OK)
        err = read_merges(o, merges, merges_len, t, why);
    if (err == PD_OK)
        err = data_bpe_init(t, why);
    json_decref(o);
    if (err != PD_OK) {
        data_tokenizer_free(t);
        return err;
    }
    *ret = t;
    return PD_OK;
}

/* ---- merging ---- */

/* Few symbols: the best pair is looked for each time. Returns how many are left. */
static size_t merge_short(const struct data_bpe *b, int32_t *id, size_t n)
{
    int32_t rank[SHORT], out[SHORT];

    for (size_t i = 0; i + 1 < n; i++) {
        const struct pair *p = find_pair(b, id[i], id[i + 1]);

        rank[i] = p ? p->rank : INT32_MAX;
        out[i] = p ? p->out : 0;
    }
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == INT32_MAX)
            break;
        id[best] = out[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            out[i - 1] = out[i];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct pair *p = find_pair(b, id[i], id[i + 1]);

            rank[i] = p ? p->rank : INT32_MAX;
            out[i] = p ? p->out : 0;
        }
    }
    return n;
}

struct candidate {
    int32_t rank, out;
    int32_t left, right; /* the ids that it joins: stale when they changed */
    uint32_t at;
};

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_put(struct candidate *heap, size_t *n, struct candidate c)
{
    size_t i = (*n)++;

    while (i && before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
}

static struct candidate heap_take(struct candidate *heap, size_t *n)
{
    struct candidate top = heap[0], last = heap[--*n];
    size_t i = 0;

    while (2 * i + 1 < *n) {
        size_t child = 2 * i + 1;

        if (child + 1 < *n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void propose(const struct data_bpe *b, const int32_t *id, const uint32_t *next, size_t n, uint32_t at,
                    struct candidate *heap, size_t *count)
{
    const struct pair *p = next[at] < n ? find_pair(b, id[at], id[next[at]]) : NULL;

    if (p)
        heap_put(heap, count,
                 (struct candidate){
                     .rank = p->rank, .out = p->out, .left = id[at], .right = id[next[at]], .at = at});
}

/* Many symbols: a heap of pairs and a list of neighbours. Each join adds at most two pairs: the heap holds at
 * most 3 n. */
static enum pd_err merge_long(const struct data_bpe *b, int32_t *id, size_t n, size_t *ret_n)
{
    struct candidate *heap = malloc(3 * n * sizeof *heap);
    uint32_t *next = malloc(2 * n * sizeof *next), *prev = next ? next + n : NULL;
    size_t count = 0, kept = 0;

    if (!heap || !next) {
        free(heap);
        free(next);
        return PD_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        next[i] = i + 1;
        prev[i] = i - 1; /* of the first: beyond n */
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        propose(b, id, next, n, i, heap, &count);
    while (count) {
        struct candidate c = heap_take(heap, &count);
        uint32_t right;

        if (id[c.at] != c.left || next[c.at] >= n || id[next[c.at]] != c.right)
            continue;
        right = next[c.at];
        id[c.at] = c.out;
        id[right] = -1;
        next[c.at] = next[right];
        if (next[right] < n)
            prev[next[right]] = c.at;
        if (prev[c.at] < n)
            propose(b, id, next, n, prev[c.at], heap, &count);
        propose(b, id, next, n, c.at, heap, &count);
    }
    for (size_t i = 0; i < n; i++)
        if (id[i] >= 0)
            id[kept++] = id[i];
    free(heap);
    free(next);
    *ret_n = kept;
    return PD_OK;
}

/* ---- encoding ---- */

struct known {
    const uint8_t *at; /* in the text; NULL = free */
    uint32_t len, n;
    size_t ids; /* where they stand in the output */
};

struct encoder {
    const struct data_tokenizer *t;
    struct data_ids *out;
    struct known *known;
    size_t mask, used;
    pcre2_match_data *match;
    struct pd_why *why;
};

static enum pd_err reserve(struct data_ids *out, size_t more)
{
    if (out->size - out->count < more) {
        size_t size = out->size ? out->size : 256;
        int32_t *items;

        while (size - out->count < more)
            size *= 2;
        items = realloc(out->items, size * sizeof *items);
        if (!items)
            return PD_ERR_NOMEM;
        out->items = items;
        out->size = size;
    }
    return PD_OK;
}

static enum pd_err encode_piece(struct encoder *e, const uint8_t *p, size_t len)
{
    const struct data_bpe *b = e->t->bpe;
    struct known *k = NULL;
    int32_t *id;
    size_t n = len;

    if (reserve(e->out, len) != PD_OK)
        return pd_fail(e->why, PD_ERR_NOMEM, "no memory for tokens");
    id = e->out->items + e->out->count;
    if (len == 1 && b->byte[*p] >= 0) {
        *id = b->byte[*p];
        e->out->count++;
        return PD_OK;
    }
    if (e->known && len <= 256) {
        size_t i = data_hash(p, len) & e->mask;

        for (k = &e->known[i]; k->at; k = &e->known[i = (i + 1) & e->mask])
            if (k->len == len && !memcmp(k->at, p, len)) {
                memcpy(id, e->out->items + k->ids, k->n * sizeof *id);
                e->out->count += k->n;
                return PD_OK;
            }
    }
    for (size_t i = 0; i < len; i++) {
        id[i] = b->byte[p[i]];
        if (id[i] < 0)
            return pd_fail(e->why, PD_ERR_INVALID, "the vocabulary has no token for the byte 0x%02x", p[i]);
    }
    if (len <= SHORT)
        n = merge_short(b, id, len);
    else if (len > INT32_MAX || merge_long(b, id, len, &n) != PD_OK)
        return pd_fail(e->why, PD_ERR_NOMEM, "no memory for tokens");
    if (k && e->used < REMEMBERED_MAX && 2 * e->used < e->mask) {
        *k = (struct known){.at = p, .len = (uint32_t)len, .n = (uint32_t)n, .ids = e->out->count};
        e->used++;
    }
    e->out->count += n;
    return PD_OK;
}

/* Whole UTF-8, cut by the expression. */
static enum pd_err encode_run(struct encoder *e, const uint8_t *p, size_t len)
{
    const struct data_bpe *b = e->t->bpe;
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(e->match);
    size_t at = 0;

    while (at < len) {
        int found = b->jit ? pcre2_jit_match(b->split, p, len, at, 0, e->match, NULL)
                           : pcre2_match(b->split, p, len, at, PCRE2_NO_UTF_CHECK, e->match, NULL);
        enum pd_err err;

        /* Every character is in one of the classes: a match begins where the last ended. */
        if (found < 0 || place[0] != at || place[1] <= at)
            return pd_fail(e->why, PD_ERR_INTERNAL, "the regular expression for words failed with error %d",
                           found);
        err = encode_piece(e, p + at, place[1] - at);
        if (err != PD_OK)
            return err;
        at = place[1];
    }
    return PD_OK;
}

/* Bytes that are no UTF-8 are a piece of their own. */
static enum pd_err encode_window(struct encoder *e, const uint8_t *p, size_t len)
{
    size_t at = 0, from = 0;
    enum pd_err err = PD_OK;

    while (err == PD_OK && at < len) {
        size_t n = data_utf8_sequence(p + at, len - at);

        if (n) {
            at += n;
            continue;
        }
        err = encode_run(e, p + from, at - from);
        from = at;
        while (at < len && !data_utf8_sequence(p + at, len - at))
            at++;
        if (err == PD_OK)
            err = encode_piece(e, p + from, at - from);
        from = at;
    }
    return err == PD_OK ? encode_run(e, p + from, len - from) : err;
}

static bool blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

enum pd_err data_bpe_encode(const struct data_tokenizer *t, const uint8_t *text, size_t len,
                            struct data_ids *out, struct pd_why *why)
{
    struct encoder e = {.t = t, .out = out, .why = why};
    enum pd_err err = PD_OK;

    if (!len)
        return PD_OK;
    e.match = pcre2_match_data_create(1, NULL);
    if (!e.match)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to encode a text");
    if (len >= REMEMBER_FROM) {
        size_t size = len / 4 < 2 * REMEMBERED_MAX ? 4096 : 2 * REMEMBERED_MAX;

        while (size < 2 * REMEMBERED_MAX && size < len / 4)
            size *= 2;
        e.known = calloc(size, sizeof *e.known); /* none is no failure: it is slower */
        e.mask = size - 1;
    }
    while (len && err == PD_OK) {
        size_t n = len < WINDOW ? len : WINDOW;

        /* Between a character of ASCII that is no blank and a blank a piece always ends, so the text may be
         * cut there. */
        while (n < len && !(blank(text[n]) && text[n - 1] < 0x80 && !blank(text[n - 1])))
            n++;
        err = encode_window(&e, text, n);
        text += n;
        len -= n;
    }
    free(e.known);
    pcre2_match_data_free(e.match);
    return err;
}
