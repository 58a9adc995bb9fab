/* daemon/worker/data/tokenizer.h: text to token ids and back, one interface for six ways of cutting it.
 *
 *   bytes     ids 0..255
 *   chars     the distinct UTF-8 characters of a text, in code point order
 *   words     the words of a text (parted by blanks and line ends), the most frequent first; each line ends
 *             with <eos>, and what is not in the list is <unk>
 *   gpt2_bpe  GPT-2's byte-level byte-pair encoding, from its published files
 *   ids       no text at all: "3 17" are the ids 3 and 17; of a model that came without a tokenizer
 *   padded_bytes  id 0 is padding, and a byte b is the id b + 1, as in the Long Range Arena
 *
 * A tokenizer is read-only once made and may be used by several threads. It serialises to bytes, which a
 * checkpoint carries as the U8 tensor DATA_TOKENIZER_TENSOR: a served model needs no other file. A
 * checkpoint without that tensor was trained on bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

#define DATA_TOKENIZER_TENSOR "polyd.tokenizer"
#define DATA_VOCAB_MAX 4000000

enum data_tokenizer_kind {
    DATA_TOKENIZER_BYTES,
    DATA_TOKENIZER_CHARS,
    DATA_TOKENIZER_WORDS,
    DATA_TOKENIZER_GPT2_BPE,
    DATA_TOKENIZER_IDS,         /* of generated pictures, and of models without a tokenizer */
    DATA_TOKENIZER_PADDED_BYTES /* of texts of the Long Range Arena */
};

struct data_tokenizer;

/* Each on PD_OK: the caller owns *ret. */
PD_NODISCARD enum pd_err data_tokenizer_bytes_new(struct data_tokenizer **ret, struct pd_why *why);
PD_NODISCARD enum pd_err data_tokenizer_chars_new(const void *text, size_t len, struct data_tokenizer **ret,
                                                  struct pd_why *why);
PD_NODISCARD enum pd_err data_tokenizer_padded_bytes_new(struct data_tokenizer **ret, struct pd_why *why);
/* At most `most` words (0 = all), <eos> and <unk> included. */
PD_NODISCARD enum pd_err data_tokenizer_words_new(const void *text, size_t len, size_t most,
                                                  struct data_tokenizer **ret, struct pd_why *why);
PD_NODISCARD enum pd_err data_tokenizer_ids_new(int32_t vocab, struct data_tokenizer **ret,
                                                struct pd_why *why);
/* `vocab` is encoder.json or vocab.json (token text to id, ids 0..n-1 each once), `merges` vocab.bpe or
 * merges.txt (a "#version" line, then one pair a line in rank order). PD_ERR_CORRUPT names the line or token.
 */
PD_NODISCARD enum pd_err data_tokenizer_bpe_new(const void *vocab, size_t vocab_len, const void *merges,
                                                size_t merges_len, struct data_tokenizer **ret,
                                                struct pd_why *why);
/* The same from a folder that holds the two files under either pair of names. `dir` stays the caller's. */
PD_NODISCARD enum pd_err data_tokenizer_bpe_open(int dir, struct data_tokenizer **ret, struct pd_why *why);

/* Appends the serialised form; reads it back (every length and id is checked: PD_ERR_CORRUPT). */
PD_NODISCARD enum pd_err data_tokenizer_save(const struct data_tokenizer *t, struct pd_buf *out,
                                             struct pd_why *why);
PD_NODISCARD enum pd_err data_tokenizer_load(const void *bytes, size_t len, struct data_tokenizer **ret,
                                             struct pd_why *why);

struct data_tokenizer *data_tokenizer_free(struct data_tokenizer *t);

enum data_tokenizer_kind data_tokenizer_kind(const struct data_tokenizer *t);
/* "bytes", "chars", "words", "gpt2_bpe", "ids", "padded_bytes"; static. */
const char *data_tokenizer_kind_name(enum data_tokenizer_kind kind);
/* Ids are 0 .. vocab-1. */
int32_t data_tokenizer_vocab(const struct data_tokenizer *t);
/* The token that parts documents: <|endoftext|> or <eos>; -1 if there is none. */
int32_t data_tokenizer_end(const struct data_tokenizer *t);
/* What stands for an empty prompt: the end token, else a newline, else 0. */
int32_t data_tokenizer_start(const struct data_tokenizer *t);

/* A growing list of ids; zeroed to begin with, freed by the caller with free(items). */
struct data_ids {
    int32_t *items;
    size_t count, size;
};

/* Appends the ids of the text. Any bytes are taken (what is not UTF-8 is bytes of no letter); the text of a
 * special token such as <|endoftext|> becomes ordinary tokens unless `special`. chars: PD_ERR_INVALID for a
 * character that is not in the vocabulary. */
PD_NODISCARD enum pd_err data_tokenizer_encode(const struct data_tokenizer *t, const void *text, size_t len,
                                               bool special, struct data_ids *out, struct pd_why *why);

/* The bytes of one token, borrowed from the tokenizer; *ret_len may be part of a UTF-8 sequence. NULL for an
 * id out of range. words: the word and a blank behind it (<eos>: a newline). Decoding is joining these. */
const char *data_tokenizer_token(const struct data_tokenizer *t, int32_t id, size_t *ret_len);
/* Length of the longest token. */
size_t data_tokenizer_token_max(const struct data_tokenizer *t);

/* How many of the last bytes begin a UTF-8 sequence that has not come to its end: what a stream holds back
 * (0..3). Bytes that can never become a sequence are not held back. */
size_t data_utf8_unfinished(const void *bytes, size_t len);
