/* api/completion.h: the body of POST /v1/completions, and of /generate, as a checked request. No I/O. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "kernels/base/buf.h"

#define API_COMPLETION_CHOICES_MAX 32 /* prompts x n */
#define API_COMPLETION_N_MAX 8
#define API_COMPLETION_TOKENS_MAX 65536 /* maximum of max_tokens, and of the tokens of one prompt */

struct api_prompt {
    bool tokens;   /* int32_t ids instead of bytes */
    size_t offset; /* into api_completion.prompt_bytes */
    size_t count;  /* bytes, or tokens */
};

struct api_completion {
    char *model; /* owned; as written: "name", "name:version", "name:alias" */
    char *id;    /* owned; /generate only: the client's id, NULL = none */
    int n;
    bool stream, include_usage, seeded, echo;
    int logprobs; /* -1 = none, else alternatives */
    uint64_t seed;
    int prompts;
    struct api_prompt prompt[API_COMPLETION_CHOICES_MAX];
    struct pd_buf prompt_bytes;
    struct pd_buf params;   /* the worker's parameters: an unclosed JSON object, without seed and stream */
    struct pd_buf warnings; /* JSON array of texts; empty buffer = none */
};

/* Reads OpenAI's body. `param` (64 bytes) receives the name of the invalid member. PD_ERR_INVALID,
 * PD_ERR_UNSUPPORTED, PD_ERR_LIMIT, PD_ERR_NOMEM. The caller frees with api_completion_done on PD_OK. */
PD_NODISCARD enum pd_err api_completion_parse(json_t *root, struct api_completion *ret, char param[64],
                                              struct pd_why *why);

/* Reads the body of /generate: {"text_input", "parameters":{..}}, where further top-level members are
 * parameters too. An unknown parameter is an error there. */
PD_NODISCARD enum pd_err api_generate_parse(json_t *root, struct api_completion *ret, char param[64],
                                            struct pd_why *why);

void api_completion_done(struct api_completion *c);

/* The worker's parameters of choice i; appended. */
void api_completion_params(const struct api_completion *c, int choice, struct pd_buf *out);

/* Representation of a token in logprobs: its text if it is UTF-8, else "bytes:\xe2\x82". */
void api_token_text(struct pd_buf *out, const char *bytes, size_t len);
