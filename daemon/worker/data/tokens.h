/* daemon/worker/data/tokens.h: private to this module: the representation of a tokenizer. */
#pragma once

#include "daemon/worker/data/tokenizer.h"

struct data_merge {
    int32_t left, right, out;
};

struct data_bpe; /* tables of byte-pair encoding; bpe.c */

struct data_tokenizer {
    enum data_tokenizer_kind kind;
    int32_t count;
    char *bytes;     /* all tokens, concatenated */
    uint32_t *start; /* count + 1 offsets into `bytes` */
    int32_t end, unknown;
    size_t longest;
    int32_t *slot; /* hash table from a token's bytes (words: without the blank) to its id; -1: free */
    size_t mask;
    struct data_merge *merges; /* in rank order */
    size_t merge_count;
    struct data_bpe *bpe;
};

/* Computes `slot`, `end`, `unknown` and `longest` from kind, count, bytes and start. */
PD_NODISCARD enum pd_err data_tokens_index(struct data_tokenizer *t, struct pd_why *why);
/* The id of a token's bytes (words: the word alone), or -1. */
int32_t data_tokens_find(const struct data_tokenizer *t, const void *bytes, size_t len);
/* Length (1..4) of the complete UTF-8 sequence at `p`; 0: there is none. */
size_t data_utf8_sequence(const uint8_t *p, size_t left);

/* Appends one id. PD_ERR_NOMEM. */
PD_NODISCARD enum pd_err data_ids_add(struct data_ids *out, int32_t id);

/* Builds t->bpe from tokens and merges. PD_ERR_CORRUPT: a merge joins tokens that neither bytes nor earlier merges
 * produce, or two merges have one product. */
PD_NODISCARD enum pd_err data_bpe_init(struct data_tokenizer *t, struct pd_why *why);
void data_bpe_done(struct data_tokenizer *t);
PD_NODISCARD enum pd_err data_bpe_encode(const struct data_tokenizer *t, const uint8_t *text, size_t len,
                                         struct data_ids *out, struct pd_why *why);

static inline uint64_t data_hash(const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    uint64_t h = 0x9E3779B97F4A7C15u ^ len, word;

    for (; len >= 8; p += 8, len -= 8) {
        __builtin_memcpy(&word, p, 8);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < len; i++)
        word |= (uint64_t)p[i] << 8 * i;
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}
