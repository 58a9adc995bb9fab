/* api/generate.h: a completion in progress, shared by the files that implement it.
 *
 * One request makes one `gen` with a choice for each prompt and n; each choice is an inference request to the
 * supervisor, whose parts arrive on its thread and are appended under the gen's lock. The HTTP side first
 * waits for the first part (so that a refusal can still set the status), then either waits for the end and
 * replies with one object, or streams the parts. Lock order: gen, then the server's. */
#pragma once

#include <pthread.h>

#include "api/completion.h"
#include "api/models.h"
#include "api/server.h"

struct choice {
    struct gen *gen;
    uint64_t id; /* of the supervisor; 0 = not sent */
    bool sent, ended, finish_sent;
    struct pd_buf text;                          /* arrived, not yet sent */
    struct pd_buf tokens, values, tops, offsets; /* bodies of the JSON arrays of logprobs, not yet sent */
    size_t chars;                                /* characters of all tokens so far */
    char finish[16];                             /* "": not finished */
    int64_t prompt_tokens, completion_tokens;
};

struct gen {
    struct api *api;
    atomic_int refs; /* references: the request, the stream, and each choice in progress */
    bool openai;
    struct api_completion c;
    char model[API_MODEL_MAX + 1]; /* as the answer names it */
    int64_t version;
    char id[40];
    int64_t created_s;
    int count;
    struct choice *choices;
    pthread_mutex_t lock;  /* guards the following members and the choices */
    struct api_wait *wait; /* wait for the first part, or for the end */
    bool for_end;
    struct api_stream *stream;
    int open; /* choices that have not ended */
    enum pd_err err;
    struct pd_why why;
    /* stream only, pool thread */
    struct pd_buf out;
    size_t sent;
    bool usage_sent, done_sent;
    atomic_bool gone;
};

/* generate.c */
void api_gen_unref(struct gen *g);
void api_gen_cancel(struct gen *g);
/* generate_in.c: a part of a choice; `ctx` is the choice. Supervisor's thread. */
void api_gen_part(void *ctx, const struct sup_result *part);
/* generate_out.c */
void api_gen_answer_whole(struct api_req *r, struct gen *g);
extern const struct api_stream_ops api_gen_stream_ops; /* its state is a gen */
