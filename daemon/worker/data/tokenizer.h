/* daemon/worker/data/tokenizer.h: converts text to token ids and back. Six kinds share one interface:
 *
 *   bytes     ids 0..255
 *   chars     the distinct UTF-8 characters of a text, in code point order
 *   words     the words of a text, separated by blanks and newlines, most frequent first; each line ends with <eos>; a
 *             word outside the vocabulary is <unk>
 *   gpt2_bpe  GPT-2's byte-level byte-pair encoding, from its published files
 *   ids       decimal ids: "3 17" are the ids 3 and 17; for models without a tokenizer
 *   padded_bytes  id 0 is padding, byte b has id b + 1, as in the Long Range Arena
 *
 * A tokenizer is immutable; several threads may use it. A checkpoint carries its serialised form as the U8 tensor
 * DATA_TOKENIZER_TENSOR, so a served model needs no other file. A checkpoint without that tensor was trained on
 * bytes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

struct data_root;

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

/* On PD_OK the caller owns *ret. */
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
/* The same from the folder "<root>/<relative>" with the two files under either pair of names. */
PD_NODISCARD enum pd_err data_tokenizer_bpe_open(const struct data_root *roots, size_t root_count,
                                                 const char *folder, struct data_tokenizer **ret,
                                                 struct pd_why *why);

/* Appends the serialised form to `out`; data_tokenizer_load reads it and checks every length and id (PD_ERR_CORRUPT). */
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
/* The token between documents: <|endoftext|> or <eos>; -1: there is none. */
int32_t data_tokenizer_end(const struct data_tokenizer *t);
/* The token used for an empty prompt: the end token, else a newline, else id 0. */
int32_t data_tokenizer_start(const struct data_tokenizer *t);

/* A growing list of ids. The caller zeroes it before use and frees `items` with free. */
struct data_ids {
    int32_t *items;
    size_t count, size;
};

/* Appends the ids of a text. The text need not be valid UTF-8. The characters of a special token such as <|endoftext|>
 * become ordinary tokens unless `special`. PD_ERR_INVALID (chars): a character is not in the vocabulary. */
PD_NODISCARD enum pd_err data_tokenizer_encode(const struct data_tokenizer *t, const void *text, size_t len,
                                               bool special, struct data_ids *out, struct pd_why *why);

/* The bytes of one token, borrowed from the tokenizer; they may end within a UTF-8 sequence. NULL: the id is out of
 * range. words: the word and a blank (<eos>: a newline). A sequence is decoded by concatenating its tokens. */
const char *data_tokenizer_token(const struct data_tokenizer *t, int32_t id, size_t *ret_len);
/* Length of the longest token. */
size_t data_tokenizer_token_max(const struct data_tokenizer *t);

/* The number (0..3) of bytes at the end that begin an incomplete UTF-8 sequence, which a stream holds back. Bytes that
 * cannot become a valid sequence do not count. */
size_t data_utf8_unfinished(const void *bytes, size_t len);
