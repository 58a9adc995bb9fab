/* Completions: one stream each, with a key-value cache of the whole context (language.c).
 *
 * All tokens of a stream stand in `tokens`: the prompt, then what was made. The cache holds those in
 * [base, fed), token i at position i - base. A step feeds what is not in the cache yet (a chunk of prompt, or
 * the token made by the step before) and, when nothing is left to feed, samples the next token from the last
 * row's logits. Streams that have one token to read share a step; of those that have more, one reads a chunk.
 *
 * Tokens become a piece in order; `released` counts them. Without stop strings each goes at once; with them,
 * bytes wait that may still turn out to be the beginning of one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/serve/internal.h"
#include "daemon/worker/serve/stop.h"

struct serve_stream {
    struct serve *serve;
    struct serve_stream *next, *prev;
    struct serve_sampling sampling; /* its borrowed pointers are not used after open */
    struct serve_stops stops;
    struct serve_bias *bias;  /* owned */
    int32_t *tokens;          /* owned; prompt + max_tokens */
    struct serve_token *info; /* owned; parallel to tokens: scores */
    size_t prompt, total;
    size_t base, fed, released;
    bool *met; /* owned; which tokens there were up to `marked`; NULL without a repetition penalty */
    size_t marked;
    uint16_t *seen; /* owned; how often each token was made; NULL without penalties */
    struct serve_sampler sampler;
    float *logits; /* owned; what is sampled from: bias and penalties applied */
    bool seated;
    int32_t slot; /* if seated */
    /* the current piece */
    struct serve_token *piece;
    size_t pieces;      /* room in it */
    struct pd_buf text; /* bytes released by this piece, then those that are held back */
    bool scoring;       /* echoed prompt with log-probabilities: every row of it is looked at */
    bool ended;         /* the model produced the end of the text */
    bool finished;
};

/* GPT-2's <|endoftext|> parts documents. The <eos> of words is an ordinary end of line. */
bool serve_token_ends(const struct serve *s, int32_t id)
{
    return data_tokenizer_kind(s->tokenizer) == DATA_TOKENIZER_GPT2_BPE &&
           id == data_tokenizer_end(s->tokenizer);
}

/* ---- a stream ---- */

static enum pd_err check_prompt(const struct serve *s, const int32_t *prompt, size_t count,
                                struct pd_why *why)
{
    if (count > (size_t)s->info.positions)
        return pd_fail(why, PD_ERR_LIMIT, "the prompt has %zu tokens, the model's context %lld", count,
                       (long long)s->info.positions);
    for (size_t i = 0; i < count; i++) {
        int32_t id;

        memcpy(&id, &prompt[i], sizeof id);
        if (id < 0 || id >= s->info.outputs)
            return pd_fail(why, PD_ERR_INVALID, "prompt token %zu is %d; ids are 0..%lld", i, id,
                           (long long)s->info.outputs - 1);
    }
    return PD_OK;
}

enum pd_err serve_stream_open(struct serve *s, const int32_t *prompt, size_t count,
                              const struct serve_sampling *sampling, struct serve_stream **ret,
                              struct pd_why *why)
{
    int32_t start;
    const struct serve_sampling *p = sampling;
    struct serve_stream *t = NULL;
    size_t capacity;
    enum pd_err err;

    if (s->info.kind != &serve_kind_language)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a classifier cannot complete a text");
    if (count == 0) {
        start = data_tokenizer_start(s->tokenizer);
        prompt = &start;
        count = 1;
    }
    err = serve_sampling_check(p, s->info.outputs, why);
    if (err == PD_OK)
        err = check_prompt(s, prompt, count, why);
    if (err != PD_OK)
        return err;
    if (s->stream_count == s->info.streams_max)
        return pd_fail(why, PD_ERR_BUSY, "all %u streams are in use", s->info.streams_max);
    t = calloc(1, sizeof *t);
    if (!t)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for a stream");
    capacity = count + (size_t)p->max_tokens;
    t->serve = s;
    t->sampling = *p;
    t->sampling.bias = NULL;
    t->prompt = t->total = count;
    t->scoring = p->echo && p->logprobs >= 0;
    t->released = p->echo ? 0 : count;
    t->stops.count = p->stops;
    for (uint32_t i = 0; i < p->stops; i++) {
        t->stops.len[i] = p->stop[i].len;
        memcpy(t->stops.bytes[i], p->stop[i].bytes, p->stop[i].len);
    }
    t->tokens = malloc(capacity * sizeof *t->tokens);
    t->info = calloc(capacity, sizeof *t->info);
    t->logits = malloc((size_t)s->info.outputs * sizeof *t->logits);
    t->bias = malloc((p->biases + 1) * sizeof *t->bias);
    pd_buf_init(&t->text, 0);
    err = serve_sampler_init(&t->sampler, (int32_t)s->info.outputs);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        t->seen = calloc((size_t)s->info.outputs, sizeof *t->seen);
        if (!t->seen)
            err = PD_ERR_NOMEM;
    }
    if (p->repetition_penalty != 1) {
        t->met = calloc((size_t)s->info.outputs, sizeof *t->met);
        if (!t->met)
            err = PD_ERR_NOMEM;
    }
    if (err != PD_OK || !t->tokens || !t->info || !t->logits || !t->bias) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a stream of %zu tokens", capacity);
        goto out;
    }
    memcpy(t->tokens, prompt, count * sizeof *t->tokens);
    if (p->biases)
        memcpy(t->bias, p->bias, p->biases * sizeof *t->bias);
    err = serve_slot_take(s, t, &t->slot, why);
    if (err != PD_OK)
        goto out;
    t->seated = true;
    t->next = s->streams;
    if (t->next)
        t->next->prev = t;
    s->streams = t;
    s->stream_count++;
    *ret = t;
    t = NULL; /* moved to the caller */
out:
    serve_stream_close(t);
    return err;
}

struct serve_stream *serve_stream_close(struct serve_stream *t)
{
    struct serve *s;

    if (!t)
        return NULL;
    s = t->serve;
    if (t->seated) {
        serve_slot_give(s, t->slot);
        if (t->prev)
            t->prev->next = t->next;
        else
            s->streams = t->next;
        if (t->next)
            t->next->prev = t->prev;
        s->stream_count--;
    }
    serve_sampler_done(&t->sampler);
    free(t->tokens);
    free(t->info);
    free(t->logits);
    free(t->bias);
    free(t->seen);
    free(t->met);
    pd_buf_done(&t->text);
    free(t->piece);
    free(t);
    return NULL;
}

size_t serve_stream_prompt_tokens(const struct serve_stream *t)
{
    return t->prompt;
}

size_t serve_stream_completion_tokens(const struct serve_stream *t)
{
    return t->total - t->prompt;
}

void serve_stream_moved(struct serve_stream *t, int32_t slot)
{
    t->slot = slot;
}

int32_t serve_stream_position(const struct serve_stream *t)
{
    return (int32_t)(t->fed - t->base);
}

/* Log-probability of token `at` (already in t->tokens) and its alternatives under the model's raw logits. */
static void score(struct serve_stream *t, size_t at, const float *logits)
{
    int32_t count = (int32_t)t->serve->info.outputs, ids[SERVE_TOP_MAX];
    double sum = serve_logsumexp(logits, count);
    struct serve_token *info = &t->info[at];

    info->scored = true;
    info->logprob = (float)((double)logits[t->tokens[at]] - sum);
    info->tops = serve_top(logits, count, (uint32_t)t->sampling.logprobs, ids);
    for (uint32_t i = 0; i < info->tops; i++) {
        info->top[i].id = ids[i];
        info->top[i].logprob = (float)((double)logits[ids[i]] - sum);
    }
}

/* Tokens to read before the next can be chosen (or scored). A full cache is given up here. */
static size_t to_read(struct serve_stream *t)
{
    size_t context = (size_t)t->serve->info.positions, left, capacity;

    if (t->fed - t->base == context) {
        /* Full: keep the last half. Its keys carry the old positions, so it is read again. */
        t->base = t->total - (context + 1) / 2;
        t->fed = t->base;
    }
    left = t->total - t->fed;
    capacity = context - (t->fed - t->base);
    if (left > capacity)
        left = capacity;
    /* A prompt to be scored is read apart from what follows. */
    return t->scoring && t->fed < t->prompt && left > t->prompt - t->fed ? t->prompt - t->fed : left;
}

/* The repetition penalty: of prompt and text so far, each token once. */
static void repel(struct serve_stream *t)
{
    float r = (float)t->sampling.repetition_penalty;

    if (!t->met)
        return;
    for (; t->marked < t->total; t->marked++)
        t->met[t->tokens[t->marked]] = true;
    for (int64_t i = 0; i < t->serve->info.outputs; i++)
        if (t->met[i])
            t->logits[i] = t->logits[i] > 0 ? t->logits[i] / r : t->logits[i] * r;
}

/* Appends the next token, chosen from the logits after the last one. */
static enum pd_err choose(struct serve_stream *t, const float *logits, struct pd_why *why)
{
    struct serve *s = t->serve;
    const struct serve_sampling *p = &t->sampling;
    struct serve_pick pick = {.temperature = p->temperature,
                              .top_p = p->top_p,
                              .top_k = p->top_k,
                              .min_p = p->min_p,
                              .seed = p->seed,
                              .index = (uint64_t)(t->total - t->prompt)};
    int32_t id;

    memcpy(t->logits, logits, (size_t)s->info.outputs * sizeof *t->logits);
    for (uint32_t i = 0; i < p->biases; i++)
        t->logits[t->bias[i].token] += t->bias[i].bias;
    repel(t);
    for (int64_t i = 0; t->seen && i < s->info.outputs; i++) {
        if (t->seen[i])
            t->logits[i] -= (float)(p->presence_penalty + p->frequency_penalty * (double)t->seen[i]);
    }
    id = serve_sample(&t->sampler, t->logits, &pick);
    if (id < 0)
        return pd_fail(why, PD_ERR_INTERNAL, "the model's logits are not finite");
    t->tokens[t->total] = id;
    if (t->seen && t->seen[id] < UINT16_MAX)
        t->seen[id]++;
    if (p->logprobs >= 0)
        score(t, t->total, logits);
    t->total++;
    t->ended = serve_token_ends(s, id);
    return PD_OK;
}

static enum pd_err put_token(struct serve_stream *t, struct serve_piece *ret, uint32_t len)
{
    struct serve_token *k;

    if (ret->count == t->pieces) {
        size_t capacity = t->pieces ? t->pieces * 2 : 8;

        k = realloc(t->piece, capacity * sizeof *k);
        if (!k)
            return PD_ERR_NOMEM;
        t->piece = k;
        t->pieces = capacity;
    }
    k = &t->piece[ret->count++];
    *k = t->info[t->released];
    k->id = t->tokens[t->released];
    k->prompt = t->released < t->prompt;
    k->offset = (uint32_t)ret->len;
    k->len = len;
    ret->len += len;
    t->released++;
    return PD_OK;
}

/* Releases whole tokens up to `end`, whatever their text says. */
static enum pd_err release(struct serve_stream *t, size_t end, struct serve_piece *ret)
{
    enum pd_err err = PD_OK;

    while (t->released < end && err == PD_OK) {
        size_t len;
        const char *text = serve_token_text(t->serve, t->tokens[t->released], &len);

        pd_buf_append(&t->text, text, len);
        err = put_token(t, ret, (uint32_t)len);
    }
    return err;
}

/* Decides what of the tokens made so far may go, and whether the completion ends here. A stop string may
 * begin inside a token: of that one only the bytes before it go. */
static enum pd_err settle(struct serve_stream *t, struct serve_piece *ret)
{
    size_t begin = t->text.len, end = t->total - t->ended, keep, len;
    enum pd_err err = PD_OK;

    for (size_t i = t->released; i < end; i++) {
        const char *text = serve_token_text(t->serve, t->tokens[i], &len);

        pd_buf_append(&t->text, text, len);
    }
    if (pd_buf_err(&t->text) != PD_OK)
        return PD_ERR_NOMEM;
    if (serve_stops_scan(&t->stops, t->text.data ? t->text.data + begin : "", t->text.len - begin, &keep)) {
        ret->finish = SERVE_FINISH_STOP;
    } else if (t->ended || t->total - t->prompt == (size_t)t->sampling.max_tokens) {
        ret->finish = t->ended ? SERVE_FINISH_STOP : SERVE_FINISH_LENGTH;
        keep = t->text.len - begin; /* no more can come: what was held back is text */
    }
    while (t->released < end && err == PD_OK) {
        serve_token_text(t->serve, t->tokens[t->released], &len);
        if (len > keep && (ret->finish == SERVE_FINISH_NONE || keep == 0))
            break;
        len = len < keep ? len : keep;
        err = put_token(t, ret, (uint32_t)len);
        keep -= len;
    }
    t->text.len = ret->len; /* what is held back will be written again */
    return err;
}

/* Nothing is to be generated, and the prompt is read as far as its scores need. */
static bool prompt_only(const struct serve_stream *t)
{
    return t->sampling.max_tokens == 0 && (!t->scoring || t->fed + 1 >= t->prompt);
}

static enum pd_err no_memory(struct serve_stream *t, enum pd_err err, struct pd_why *why)
{
    return err == PD_OK ? PD_OK : pd_fail(why, err, "no memory for a completion of %zu tokens", t->total);
}

/* What goes without any computing: an echoed prompt that is not scored, or all of it when nothing follows. */
static enum pd_err begin_turn(struct serve_turn *turn)
{
    struct serve_stream *t = turn->stream;
    enum pd_err err = PD_OK;

    if (t->finished)
        return pd_fail(&turn->why, PD_ERR_CONFLICT, "the completion has ended");
    if (!t->scoring || prompt_only(t))
        err = release(t, t->prompt, &turn->piece);
    if (prompt_only(t)) {
        turn->piece.finish = SERVE_FINISH_LENGTH;
        t->finished = true;
    }
    return no_memory(t, err, &turn->why);
}

/* After `read` tokens more: scores, chooses, releases. `logits` are those after the last of them. */
static enum pd_err end_turn(struct serve_turn *turn, size_t read, const float *logits)
{
    struct serve_stream *t = turn->stream;
    struct serve_piece *piece = &turn->piece;
    enum pd_err err = PD_OK;

    t->fed += read;
    if (t->scoring) {
        if (t->fed < t->prompt)
            score(t, t->fed, logits);
        err = release(t, t->fed < t->prompt ? t->fed + 1 : t->prompt, piece);
        if (err == PD_OK && prompt_only(t)) {
            err = release(t, t->prompt, piece);
            piece->finish = SERVE_FINISH_LENGTH;
            t->finished = true;
            return no_memory(t, err, &turn->why);
        }
    }
    if (err != PD_OK || t->fed < t->total)
        return no_memory(t, err, &turn->why);
    err = choose(t, logits, &turn->why);
    if (err != PD_OK)
        return err;
    err = settle(t, piece);
    t->finished = piece->finish != SERVE_FINISH_NONE;
    return no_memory(t, err, &turn->why);
}

/* One chunk of one prompt. */
static enum pd_err read_chunk(struct serve *s, struct serve_turn *turn, size_t left)
{
    struct serve_stream *t = turn->stream;
    bool every = t->scoring && t->fed < t->prompt;
    const float *last = s->staging;
    int32_t read = 0;
    enum pd_err err = serve_chunk_read(s, t->slot, t->tokens + t->fed, (int32_t)left,
                                       serve_stream_position(t), every, &read, &turn->why);

    if (err != PD_OK)
        return err;
    for (int32_t i = 0; every && i + 1 < read; i++, last += s->columns)
        score(t, t->fed + (size_t)i + 1, last);
    return end_turn(turn, (size_t)read, last);
}

/* One token each of the slots [first, first + SERVE_DECODE_BATCH); at[i] is the turn of row i. */
static void decode_group(struct serve *s, int32_t first, struct serve_turn *const *at, int32_t count)
{
    struct serve_next next[SERVE_DECODE_BATCH] = {{0}};
    struct pd_why why = {""};
    enum pd_err err;

    for (int32_t r = 0; r < count; r++) {
        struct serve_stream *t = at[r] ? at[r]->stream : NULL;

        if (t)
            next[r] = (struct serve_next){true, t->tokens[t->fed], serve_stream_position(t)};
    }
    err = serve_decode_group(s, first, next, count, &why);
    for (int32_t r = 0; r < count; r++) {
        if (!at[r])
            continue;
        at[r]->batch = (uint32_t)count;
        at[r]->why = why;
        at[r]->err = err == PD_OK ? end_turn(at[r], 1, s->staging + r * s->columns) : err;
    }
}

void serve_turns(struct serve *s, struct serve_turn *turns, size_t count)
{
    struct serve_turn *row[SERVE_STREAMS_MAX + SERVE_DECODE_BATCH] = {NULL};
    struct serve_turn *reader = NULL;
    struct pd_why why = {""};
    size_t chunk = 0;
    enum pd_err err = serve_decode_begin(s, &why);

    for (size_t i = 0; i < count; i++) {
        struct serve_turn *turn = &turns[i];
        struct serve_stream *t = turn->stream;
        size_t left;

        turn->piece = (struct serve_piece){0};
        turn->batch = 0;
        turn->why = why;
        turn->err = err;
        t->text.len = 0;
        if (err == PD_OK)
            turn->err = begin_turn(turn);
        if (turn->err != PD_OK || turn->piece.finish != SERVE_FINISH_NONE)
            continue;
        left = to_read(t);
        if (left == 1) {
            row[t->slot] = turn;
        } else if (!reader) {
            reader = turn;
            chunk = left;
        }
    }
    for (int32_t first = 0; first < s->slots; first += SERVE_DECODE_BATCH) {
        int32_t rows = 0;

        for (int32_t r = 0; r < SERVE_DECODE_BATCH; r++)
            rows = row[first + r] ? r + 1 : rows;
        if (rows)
            decode_group(s, first, row + first, rows);
    }
    if (reader)
        reader->err = read_chunk(s, reader, chunk);
    for (size_t i = 0; i < count; i++) {
        turns[i].piece.tokens = turns[i].stream->piece;
        turns[i].piece.text = turns[i].stream->text.data ? turns[i].stream->text.data : "";
    }
}

enum pd_err serve_stream_step(struct serve_stream *t, struct serve_piece *ret, struct pd_why *why)
{
    struct serve_turn turn = {.stream = t};

    serve_turns(t->serve, &turn, 1);
    *ret = turn.piece;
    if (turn.err != PD_OK && why)
        *why = turn.why;
    return turn.err;
}
