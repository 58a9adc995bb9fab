/* daemon/worker/serve/serve.h: a trained model, opened for inference.
 *
 * The graphs are those of training in inference form (daemon/worker/model); this module binds the weights of
 * one checkpoint to them, stores the key-value caches, and converts logits to classes or tokens. All memory
 * of a model is allocated when the model or a stream is opened, and released when it is closed. One thread
 * uses a model; other threads may only call serve_info. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/buf.h"
#include "kernels/base/err.h"

#define SERVE_BATCH_MAX 256u          /* samples in one call of a classifier's graph */
#define SERVE_TEXTS_MAX 256           /* texts of one request */
#define SERVE_TEXT_TOKENS_MAX 8192    /* tokens in one call of a graph of texts, unless one text has more */
#define SERVE_STREAMS_MAX 64u         /* completions decoded concurrently */
#define SERVE_TOKENS_MAX 65536        /* most tokens of one completion */
#define SERVE_STOPS_MAX 4u            /* stop strings of one completion */
#define SERVE_STOP_BYTES_MAX 256u     /* length of one */
#define SERVE_TOP_MAX 5u              /* alternatives reported with each token */
#define SERVE_BIAS_MAX 300u           /* entries of logit_bias */
#define SERVE_POSITIONS_MAX (1 << 24) /* tokens of a stream that has no end of its context */
#define SERVE_PIXELS_MAX 64000000     /* rows times columns of one picture as it comes */
#define SERVE_CHUNK 256               /* prompt tokens read by one step */

/* A serving form, named by a task (daemon/worker/task): images to classes, texts to classes, points to
 * the solution of an equation, or a text and its continuation. */
struct serve_kind;
extern const struct serve_kind serve_kind_classify, serve_kind_classify_text, serve_kind_field,
    serve_kind_language;

/* The state of a stream. */
enum serve_memory_kind {
    SERVE_MEMORY_AUTO,  /* what is smaller */
    SERVE_MEMORY_CACHE, /* keys and values of every position */
    SERVE_MEMORY_STATE, /* a state of constant size: attention of x and x^2 only */
};

struct model_tuned_store;

struct serve_options {
    const char *job; /* resolved job document of the run that trained it, JSON */
    size_t job_len;
    const char *checkpoint; /* safetensors file */
    const char *digest;     /* its SHA-256 in hex; NULL = only the file's own checks */
    int threads;            /* >= 1 */
    enum serve_memory_kind memory;
    uint64_t memory_max; /* PD_ERR_LIMIT if the model may need more; 0 = no limit */
    bool bf16_weights;   /* store a language model's matrices in bf16: half the memory, faster tokens */
    bool cuda;           /* on the GPU that the process sees: matrices, activations and caches in bf16 */
    const char *tuned;   /* folder of a back end's measured choices (model_tuned_new); NULL = none */
    const struct model_tuned_store *store; /* stores them instead of the folder; may be NULL */
    uint32_t batch_max;                    /* largest batch bucket of a classifier, of either kind; 0 = 32 */
    uint32_t streams_max;                  /* 0 = 16 */
};

struct serve_info {
    const struct serve_kind *kind;
    const char *platform;            /* "polyd_cpu", "polyd_cuda"; static */
    int64_t channels, height, width; /* images to classes: one image */
    int64_t outputs;                 /* classes, the vocabulary, or of a field 1 */
    double domain[2];                /* field: upper ends of x and t; both begin at 0 */
    const char *const *labels;       /* classifiers: names of the classes; NULL = it has none */
    int64_t context;                 /* of tokens: positions of the model */
    /* language: context of a stream, and maximum length of a prompt; texts to classes: maximum tokens of a text */
    int64_t positions;
    /* texts to classes: the pseudo-inverse starts from a value of the batch, so a batch holds texts of one request */
    bool apart;
    bool state;          /* language: a stream has a constant-size state */
    size_t stream_bytes; /* language: memory of one stream */
    uint32_t batch_max, streams_max;
    uint64_t step; /* optimiser step of the checkpoint */
};

struct serve_memory {
    size_t weights_bytes;
    size_t cache_bytes;  /* of the streams open now */
    size_t arena_bytes;  /* activations and workspace of the largest bucket, shared by all */
    size_t inputs_bytes; /* constants included */
    size_t most_bytes;   /* total with all streams open */
};

struct serve;
struct serve_stream;

/* Reads the checkpoint, checks its digest, plans and binds the graphs and runs each once (warm-up). On PD_OK
 * the caller owns *ret. PD_ERR_CORRUPT: digest or format; PD_ERR_INVALID: a tensor is missing or has
 * another shape than the job document says; PD_ERR_UNSUPPORTED: an architecture that cannot be served;
 * PD_ERR_LIMIT: exceeds memory_max. On failure all memory is released. */
PD_NODISCARD enum pd_err serve_open(const struct serve_options *options, struct serve **ret,
                                    struct pd_why *why);

/* Closes its streams too. NULL is fine. Always returns NULL. */
struct serve *serve_close(struct serve *s);

const struct serve_info *serve_info(const struct serve *s);
/* "classifier", "text_classifier", "field", "language": as in the signature; static. */
const char *serve_kind_name(const struct serve_kind *kind);
void serve_memory(const struct serve *s, struct serve_memory *ret);

/* The model's metadata as one JSON object: {"platform", "kind": "classifier" | "text_classifier" | "field" |
 * "language", "inputs": [{"name","datatype","shape"}], "outputs": [...], "classes" | "vocabulary" | "equation",
 * "context", "weights", "batch_max", "streams_max", "memory_bytes"}. -1 in a shape is the batch. */
PD_NODISCARD enum pd_err serve_signature(const struct serve *s, struct pd_buf *out);

/* ---- classifiers ---- */

/* Tolerance for noise added to an image; values normalised by a client lie beyond it. */
#define SERVE_PIXEL_LOW (-0.5f)
#define SERVE_PIXEL_HIGH 1.5f

/* Images one after the other, each (C, H, W); texts, each serve_text_ints int32_t as serve_text_read
 * makes them; or points, each two floats. */
struct serve_samples {
    const void *data;
    bool bytes; /* images: true: UINT8, 0..255. false: FP32 on the scale 0..1, what bytes / 255 gives */
    int64_t count;
    int64_t first; /* index of the first in the client's request, for errors */
};

/* Whether this model accepts JPEG and PNG. */
bool serve_pictures(const struct serve *s);
/* A JPEG or PNG, or its base64 text, as one image of bytes: decoded, fitted as validation fits pictures, (C,
 * H, W) in `to`. PD_ERR_INVALID: damaged, or not an image; PD_ERR_LIMIT: more than SERVE_PIXELS_MAX pixels.
 * Any thread may call. */
PD_NODISCARD enum pd_err serve_picture_read(const struct serve *s, const void *bytes, size_t len, uint8_t *to,
                                            struct pd_why *why);

/* Size of an encoded text, and the encoding: the number of tokens (all, or the first ones where training would have cut:
 * by the data set, else at `positions` of struct serve_info), the tokens, then zeros. PD_ERR_INVALID: a character outside
 * the tokenizer's vocabulary, a word that is none of ListOps, or too many tokens for a network with landmarks whose
 * training cut none. Any thread may call. */
size_t serve_text_ints(const struct serve *s);
/* Maximum number of texts in one request: SERVE_TEXTS_MAX, fewer for very long texts. */
int64_t serve_texts_max(const struct serve *s);
PD_NODISCARD enum pd_err serve_text_read(const struct serve *s, const void *text, size_t len, int32_t *to,
                                         struct pd_why *why);

/* The same of ids as they are; of a pair the first half of them is the first text. PD_ERR_INVALID: more of them than
 * positions, an odd number for a pair, or an id that no text may hold. */
PD_NODISCARD enum pd_err serve_ids_read(const struct serve *s, const int64_t *ids, size_t count, int32_t *to,
                                        struct pd_why *why);

/* Answers in the order of the samples; each may be NULL. */
struct serve_scores {
    float *logits;        /* (count, classes) */
    float *probabilities; /* (count, classes): softmax of the logits */
    int64_t *classes;     /* (count): the first largest */
};

/* Classifies all samples of all parts, in batches of the next larger bucket. A part belongs to one request (see
 * serve_info.apart). The caller's arrays hold the sum of the counts. Of images: a float that is not finite or far off the scale 0..1 (below
 * SERVE_PIXEL_LOW, above SERVE_PIXEL_HIGH) is PD_ERR_INVALID: it is 0..255, or normalised already. */
PD_NODISCARD enum pd_err serve_classify(struct serve *s, const struct serve_samples *parts, size_t count,
                                        const struct serve_scores *ret, struct pd_why *why);

/* ---- fields ---- */

/* serve_classify gives u as the logits (count, 1) of samples that are points, each two floats (x, t); a
 * coordinate that is not finite is PD_ERR_INVALID. */

/* How many points lie outside the domain; where some do, *ret_first is the first of them. */
int64_t serve_points_outside(const struct serve *s, const void *points, int64_t count, int64_t *ret_first);

/* ---- language model ---- */

struct serve_bias {
    int32_t token;
    float bias; /* added to its logit; -100..100 */
};

struct serve_sampling {
    int32_t max_tokens; /* 0..SERVE_TOKENS_MAX; 0 only with echo */
    double temperature; /* 0 = the most likely token, always; else 0 < t <= 2 */
    /* 0..1: the smallest set of tokens whose probabilities reach it; includes the most likely one */
    double top_p;
    int32_t top_k; /* 1..SERVE_TOP_K_MAX: number of most likely tokens, ties to the smaller id; 0 = all */
    double min_p;  /* 0..1: only tokens with at least this share of the likeliest one's probability */
    double presence_penalty, frequency_penalty; /* -2..2, by the tokens generated so far */
    /* 0.1..10: the logit z of each token of prompt and text so far becomes z/r if z > 0, else z r; 1 = none
     */
    double repetition_penalty;
    uint64_t seed;
    int32_t logprobs; /* alternatives 0..SERVE_TOP_MAX; -1 = no log-probabilities at all */
    bool echo;        /* the prompt comes first */
    uint32_t stops;
    struct {
        const void *bytes; /* borrowed during serve_stream_open */
        size_t len;        /* 1..SERVE_STOP_BYTES_MAX */
    } stop[SERVE_STOPS_MAX];
    const struct serve_bias *bias; /* borrowed during serve_stream_open */
    uint32_t biases;
};

#define SERVE_TOP_K_MAX 1000000

/* max_tokens 16, temperature 1, top_p 1, no top_k, min_p and penalties, seed 0, logprobs -1, no echo, no
 * stops. */
void serve_sampling_default(struct serve_sampling *ret);
/* PD_ERR_INVALID, with the member named, when a value is out of range for a model of so many tokens. */
PD_NODISCARD enum pd_err serve_sampling_check(const struct serve_sampling *p, int64_t vocabulary,
                                              struct pd_why *why);

enum serve_finish {
    SERVE_FINISH_NONE,   /* not finished */
    SERVE_FINISH_STOP,   /* a stop string, or the token that ends a text; neither is part of the text */
    SERVE_FINISH_LENGTH, /* max_tokens */
};

/* One released token. Its bytes begin at `offset` of the piece's text. */
struct serve_token {
    int32_t id;
    uint32_t offset, len;
    bool prompt;   /* an echoed one */
    bool scored;   /* logprob and top are set (not for the first token of a prompt) */
    float logprob; /* natural logarithm under the model: before temperature, penalties and bias */
    uint32_t tops; /* entries of top, likeliest first */
    struct {
        int32_t id;
        float logprob;
    } top[SERVE_TOP_MAX];
};

/* Output of one step. May be empty: a prompt is read in chunks, and bytes that may begin a stop string are
 * retained until it is certain that they do not. */
struct serve_piece {
    const struct serve_token *tokens;
    size_t count;
    const char *text; /* not terminated; not necessarily whole UTF-8 sequences */
    size_t len;
    enum serve_finish finish;
};

/* Takes a stream slot for one completion. Token ids as the model's tokenizer makes them (serve_tokenize). An
 * empty prompt is replaced by the token that begins a text (end of text, else a newline). PD_ERR_LIMIT: the
 * prompt is longer than the context; PD_ERR_INVALID: a sampling value or a token out of range, named in
 * `why`; PD_ERR_BUSY: all slots taken. On PD_OK the caller owns *ret. */
PD_NODISCARD enum pd_err serve_stream_open(struct serve *s, const int32_t *prompt, size_t count,
                                           const struct serve_sampling *sampling, struct serve_stream **ret,
                                           struct pd_why *why);

/* A stream's part in a round. */
struct serve_turn {
    struct serve_stream *stream;
    struct serve_piece piece; /* set by serve_turns; borrowed until the stream's next turn or close */
    uint32_t batch;           /* rows computed together with it; 0 = none, or a chunk of a prompt */
    enum pd_err err;          /* of this stream alone */
    struct pd_why why;
};

/* One round of the streams (each at most once): those that need one token read for their next one share a
 * step of the model; of the others, the first reads up to SERVE_CHUNK tokens of its prompt, and the rest wait
 * for another round (with empty pieces). A long prompt therefore delays other streams by at most one chunk.
 */
void serve_turns(struct serve *s, struct serve_turn *turns, size_t count);

/* A round of one stream. Reads up to SERVE_CHUNK prompt tokens, or generates one token. The piece is borrowed
 * until the next step or close. After a finish the stream can only be closed (a further step is
 * PD_ERR_CONFLICT).
 *
 * A stream's tokens depend on its prompt, sampling and seed only, never on concurrent streams: the rows of a batch are
 * bitwise identical to unbatched ones. When the context is full, its last half is read again as a new prompt and the
 * stream continues. PD_ERR_INTERNAL: the model's logits are not finite. */
PD_NODISCARD enum pd_err serve_stream_step(struct serve_stream *t, struct serve_piece *ret,
                                           struct pd_why *why);

/* Releases the slot and its cache. NULL is fine. Always returns NULL. */
struct serve_stream *serve_stream_close(struct serve_stream *t);

/* Number of prompt tokens; number of generated tokens, released or not. */
size_t serve_stream_prompt_tokens(const struct serve_stream *t);
size_t serve_stream_completion_tokens(const struct serve_stream *t);

/* The bytes of a token, perhaps a part of a UTF-8 sequence; "" beyond the vocabulary. Borrowed from the
 * model. */
const char *serve_token_text(const struct serve *s, int32_t id, size_t *ret_len);
/* Whether the model reads text. */
bool serve_has_tokens(const struct serve *s);
/* Appends the ids of the text to `out` as int32_t. PD_ERR_UNSUPPORTED for a classifier. */
PD_NODISCARD enum pd_err serve_tokenize(const struct serve *s, const void *text, size_t len,
                                        struct pd_buf *out, struct pd_why *why);
/* Appends the text of the ids to `out`. PD_ERR_INVALID names the position of an id beyond the vocabulary;
 * PD_ERR_LIMIT: more than out->limit; PD_ERR_UNSUPPORTED for a classifier. */
PD_NODISCARD enum pd_err serve_detokenize(const struct serve *s, const int32_t *ids, size_t count,
                                          struct pd_buf *out, struct pd_why *why);

/* "stop" or "length"; NULL for SERVE_FINISH_NONE. Static. */
const char *serve_finish_name(enum serve_finish finish);
