/* The language model: one stream per completion, each with a key-value cache of the whole context.
 *
 * All tokens of a stream stand in `tokens`: the prompt, then what was made. The cache holds those in
 * [base, fed), token i at position i - base. A step feeds what is not in the cache yet (a chunk of prompt, or
 * the token made by the step before) and, when nothing is left to feed, samples the next token from the last
 * row's logits. Every stream is computed alone, so that no bit of it depends on its neighbours.
 *
 * Tokens become a piece in order; `released` counts them. Without stop strings each goes at once; with them,
 * bytes wait that may still turn out to be the beginning of one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/internal.h"
#include "daemon/serve/stop.h"

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
    uint16_t *seen; /* owned; how often each token was made; NULL without penalties */
    struct serve_sampler sampler;
    float *logits; /* owned; what is sampled from: bias and penalties applied */
    void *cache;   /* back-end memory: keys and values of every layer */
    size_t cache_bytes;
    /* the current piece */
    struct serve_token *piece;
    char *text;   /* owned; bytes of the tokens from `released` on */
    bool scoring; /* echoed prompt with log-probabilities: read token by token */
    bool finished;
};

/* ---- the model ---- */

/* Binds the caches of one stream to a bucket, unless they are. */
static enum pd_err bind_cache(struct serve *s, struct serve_bucket *b, const struct serve_stream *t,
                              void *cache, struct pd_why *why)
{
    char *at = cache;

    if (t && b->bound == t)
        return PD_OK;
    b->bound = NULL;
    for (int32_t l = 0; l < s->layers; l++) {
        char name[32];
        enum pd_err err;

        snprintf(name, sizeof name, "cache_k/%d", l);
        err = pk_exec_bind(b->exec, name, at, why);
        if (err != PD_OK)
            return err;
        snprintf(name, sizeof name, "cache_v/%d", l);
        err = pk_exec_bind(b->exec, name, at + s->cache_layer_bytes, why);
        if (err != PD_OK)
            return err;
        at += 2 * s->cache_layer_bytes;
    }
    b->bound = t;
    return PD_OK;
}

/* Runs a bucket over `count` tokens that stand at `position`; the logits of the last one go to s->staging. */
static enum pd_err run_tokens(struct serve *s, struct serve_bucket *b, const int32_t *tokens, int32_t count,
                              int32_t position, struct pd_why *why)
{
    int32_t input[SERVE_CHUNK] = {0}, pos[SERVE_CHUNK];
    int32_t length = position + b->size, pick = count - 1;
    size_t bytes = (size_t)b->size * sizeof(int32_t);
    enum pd_err err;

    memcpy(input, tokens, (size_t)count * sizeof(int32_t));
    for (int32_t i = 0; i < b->size; i++)
        pos[i] = position + i;
    err = s->api->upload(s->backend, s->input, input, bytes, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->pos, pos, bytes, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->position, &position, sizeof position, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->length, &length, sizeof length, why);
    if (err == PD_OK)
        err = s->api->upload(s->backend, s->pick, &pick, sizeof pick, why);
    if (err == PD_OK)
        err = pk_exec_run(b->exec, why);
    if (err == PD_OK)
        err = pk_exec_read(b->exec, "logits", s->staging, (size_t)s->info.outputs * sizeof(float), why);
    return err;
}

static enum pd_err alloc_cache(struct serve *s, void **ret, struct pd_why *why)
{
    static const char zeros[1 << 16];
    size_t bytes = 2 * (size_t)s->layers * s->cache_layer_bytes;
    void *cache = NULL;
    enum pd_err err = serve_alloc(s, bytes, &s->memory.cache_bytes, &cache, why);

    /* Zeroed, so that no bit of an earlier client's text can reach this one, whatever a kernel reads. */
    for (size_t at = 0; err == PD_OK && at < bytes; at += sizeof zeros) {
        size_t n = bytes - at < sizeof zeros ? bytes - at : sizeof zeros;

        err = s->api->upload(s->backend, (char *)cache + at, zeros, n, why);
    }
    if (err != PD_OK && cache) {
        s->api->free(s->backend, cache);
        s->memory.cache_bytes -= bytes;
        cache = NULL;
    }
    if (err == PD_OK)
        *ret = cache;
    return err;
}

enum pd_err serve_language_open(struct serve *s, struct pd_why *why)
{
    static const int32_t sizes[] = {1, 16, 64, SERVE_CHUNK};
    const struct model_spec *spec = model_spec(s->model);
    void *scratch = NULL;
    size_t bytes = SERVE_CHUNK * sizeof(int32_t);
    enum pd_err err;

    if (spec->dtype != PK_F32)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "only models of element type f32 are served");
    if (spec->vocab != 256)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a vocabulary of %d tokens is not bytes", spec->vocab);
    s->info.outputs = spec->vocab;
    s->info.context = spec->context;
    s->layers = spec->depth;
    s->cache_layer_bytes = (size_t)spec->context * (size_t)spec->width * sizeof(float);
    s->cache_layer_bytes = (s->cache_layer_bytes + 255) / 256 * 256; /* each layer's must be aligned */
    s->staging = calloc((size_t)spec->vocab, sizeof *s->staging);
    if (!s->staging)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the logits");
    err = serve_alloc(s, bytes, &s->memory.inputs_bytes, &s->input, why);
    if (err == PD_OK)
        err = serve_alloc(s, bytes, &s->memory.inputs_bytes, &s->pos, why);
    if (err == PD_OK)
        err = serve_alloc(s, sizeof(int32_t), &s->memory.inputs_bytes, &s->position, why);
    if (err == PD_OK)
        err = serve_alloc(s, sizeof(int32_t), &s->memory.inputs_bytes, &s->length, why);
    if (err == PD_OK)
        err = serve_alloc(s, sizeof(int32_t), &s->memory.inputs_bytes, &s->pick, why);
    if (err == PD_OK)
        err = alloc_cache(s, &scratch, why);
    for (size_t i = 0; err == PD_OK && i < sizeof sizes / sizeof sizes[0]; i++) {
        const struct {
            const char *name;
            void *memory;
        } inputs[] = {{"input", s->input},
                      {"pos", s->pos},
                      {"position", s->position},
                      {"length", s->length},
                      {"pick", s->pick}};
        struct pk_graph *graph = NULL;
        int32_t zero = 0;

        if (i > 0 && sizes[i] > spec->context)
            break;
        err = model_graph_decode(s->model, 1, sizes[i], spec->context, &graph, why);
        if (err == PD_OK)
            err = serve_bucket_add(s, graph, sizes[i], why);
        for (size_t k = 0; err == PD_OK && k < sizeof inputs / sizeof inputs[0]; k++)
            err = pk_exec_bind(s->bucket[i].exec, inputs[k].name, inputs[k].memory, why);
        if (err == PD_OK)
            err = bind_cache(s, &s->bucket[i], NULL, scratch, why);
        if (err == PD_OK)
            err = run_tokens(s, &s->bucket[i], &zero, 1, 0, why); /* warm-up */
    }
    if (scratch) {
        s->api->free(s->backend, scratch);
        s->memory.cache_bytes -= 2 * (size_t)s->layers * s->cache_layer_bytes;
    }
    return err;
}

enum pd_err serve_tokenize(const struct serve *s, const void *text, size_t len, struct pd_buf *out,
                           struct pd_why *why)
{
    const uint8_t *bytes = text;
    int32_t *ids;

    if (s->info.kind != SERVE_LANGUAGE)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a classifier reads no text");
    if (len == 0)
        return PD_OK;
    ids = pd_buf_reserve(out, len * sizeof *ids);
    if (!ids)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for %zu tokens", len);
    for (size_t i = 0; i < len; i++) {
        int32_t id = bytes[i];

        memcpy(&ids[i], &id, sizeof id); /* the buffer need not be aligned */
    }
    return PD_OK;
}

/* ---- a stream ---- */

static enum pd_err check_prompt(const struct serve *s, const int32_t *prompt, size_t count,
                                struct pd_why *why)
{
    if (count > (size_t)s->info.context)
        return pd_fail(why, PD_ERR_LIMIT, "the prompt has %zu tokens, the model's context holds %lld", count,
                       (long long)s->info.context);
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
    static const int32_t newline = '\n';
    const struct serve_sampling *p = sampling;
    struct serve_stream *t = NULL;
    size_t room;
    enum pd_err err;

    if (s->info.kind != SERVE_LANGUAGE)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "a classifier completes no text");
    if (count == 0) {
        prompt = &newline;
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
    room = count + (size_t)p->max_tokens;
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
    t->tokens = malloc(room * sizeof *t->tokens);
    t->info = calloc(room, sizeof *t->info);
    t->logits = malloc((size_t)s->info.outputs * sizeof *t->logits);
    t->bias = malloc((p->biases + 1) * sizeof *t->bias);
    t->text = malloc(room);
    t->piece = malloc(room * sizeof *t->piece);
    err = serve_sampler_init(&t->sampler, (int32_t)s->info.outputs);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
        t->seen = calloc((size_t)s->info.outputs, sizeof *t->seen);
        if (!t->seen)
            err = PD_ERR_NOMEM;
    }
    if (err != PD_OK || !t->tokens || !t->info || !t->logits || !t->bias || !t->text || !t->piece) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for a stream of %zu tokens", room);
        goto out;
    }
    memcpy(t->tokens, prompt, count * sizeof *t->tokens);
    if (p->biases)
        memcpy(t->bias, p->bias, p->biases * sizeof *t->bias);
    err = alloc_cache(s, &t->cache, why);
    if (err != PD_OK)
        goto out;
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
    if (t->cache) {
        for (size_t i = 0; i < s->buckets; i++) {
            /* The address of a later stream may be the same: it must not take these caches for its own. */
            if (s->bucket[i].bound == t)
                s->bucket[i].bound = NULL;
        }
        s->api->free(s->backend, t->cache);
        s->memory.cache_bytes -= 2 * (size_t)s->layers * s->cache_layer_bytes;
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
    free(t->text);
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

/* Log-probability of token `at` (already in t->tokens) and its alternatives under the model's raw logits. */
static void score(struct serve_stream *t, size_t at)
{
    const float *logits = t->serve->staging;
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

/* Feeds the next chunk of what is not in the cache yet. */
static enum pd_err feed(struct serve_stream *t, struct pd_why *why)
{
    struct serve *s = t->serve;
    size_t context = (size_t)s->info.context, left, i = s->buckets;
    int32_t position, count;
    struct serve_bucket *b;
    enum pd_err err;

    if (t->fed - t->base == context) {
        /* Full: keep the last half. Its keys carry the old positions, so it is read anew. */
        t->base = t->total - (context + 1) / 2;
        t->fed = t->base;
    }
    left = t->total - t->fed;
    position = (int32_t)(t->fed - t->base);
    if (left > context - (size_t)position)
        left = context - (size_t)position;
    if (t->scoring && t->fed < t->prompt)
        left = 1;
    /* The smallest bucket that reads all at once, else the largest; padding must not run past the cache. */
    for (i = 0; i + 1 < s->buckets; i++) {
        if ((size_t)s->bucket[i].size >= left)
            break;
    }
    while (i > 0 && (size_t)position + (size_t)s->bucket[i].size > context)
        i--;
    b = &s->bucket[i];
    count = left < (size_t)b->size ? (int32_t)left : b->size;
    err = bind_cache(s, b, t, t->cache, why);
    if (err == PD_OK)
        err = run_tokens(s, b, t->tokens + t->fed, count, position, why);
    if (err != PD_OK)
        return err;
    t->fed += (size_t)count;
    if (t->scoring && t->fed < t->prompt)
        score(t, t->fed);
    return PD_OK;
}

/* Appends the next token, chosen from the logits in s->staging. */
static enum pd_err choose(struct serve_stream *t, struct pd_why *why)
{
    struct serve *s = t->serve;
    const struct serve_sampling *p = &t->sampling;
    struct serve_pick pick = {.temperature = p->temperature,
                              .top_p = p->top_p,
                              .seed = p->seed,
                              .index = (uint64_t)(t->total - t->prompt)};
    int32_t id;

    memcpy(t->logits, s->staging, (size_t)s->info.outputs * sizeof *t->logits);
    for (uint32_t i = 0; i < p->biases; i++)
        t->logits[t->bias[i].token] += t->bias[i].bias;
    for (int64_t i = 0; t->seen && i < s->info.outputs; i++) {
        if (t->seen[i])
            t->logits[i] -= (float)(p->presence_penalty + p->frequency_penalty * (double)t->seen[i]);
    }
    id = serve_sample(&t->sampler, t->logits, &pick);
    if (id < 0)
        return pd_fail(why, PD_ERR_INTERNAL, "the model gave logits that are not finite");
    t->tokens[t->total] = id;
    if (t->seen && t->seen[id] < UINT16_MAX)
        t->seen[id]++;
    if (p->logprobs >= 0)
        score(t, t->total);
    t->total++;
    return PD_OK;
}

/* Releases tokens [t->released, end). A token of this tokenizer is one byte. */
static void release(struct serve_stream *t, size_t end, struct serve_piece *ret)
{
    for (; t->released < end; t->released++) {
        struct serve_token *k = &t->piece[ret->count];

        *k = t->info[t->released];
        k->id = t->tokens[t->released];
        k->prompt = t->released < t->prompt;
        k->offset = (uint32_t)ret->len;
        k->len = 1;
        t->text[ret->len++] = (char)k->id;
        ret->count++;
    }
    ret->tokens = t->piece;
    ret->text = t->text;
}

/* Decides what of the tokens made so far may go, and whether the completion ends here. */
static void settle(struct serve_stream *t, struct serve_piece *ret)
{
    size_t keep, from = t->released, held = t->total - from;
    char *text = t->text + ret->len; /* behind an echo that goes with this piece */

    for (size_t i = 0; i < held; i++)
        text[i] = (char)t->tokens[from + i];
    if (serve_stops_scan(&t->stops, text, held, &keep)) {
        ret->finish = SERVE_FINISH_STOP;
    } else if (t->total - t->prompt == (size_t)t->sampling.max_tokens) {
        ret->finish = SERVE_FINISH_LENGTH;
        keep = held; /* no more can come: what was held back is text */
    }
    release(t, from + keep, ret);
}

/* Nothing is to be generated, and the prompt is read as far as its scores need. */
static bool prompt_only(const struct serve_stream *t)
{
    return t->sampling.max_tokens == 0 && (!t->scoring || t->fed + 1 >= t->prompt);
}

enum pd_err serve_stream_step(struct serve_stream *t, struct serve_piece *ret, struct pd_why *why)
{
    enum pd_err err;

    *ret = (struct serve_piece){0};
    if (t->finished)
        return pd_fail(why, PD_ERR_CONFLICT, "the completion has ended");
    /* The prompt of an echo goes first: at once, or as its tokens are scored. */
    if (!t->scoring)
        release(t, t->prompt, ret);
    if (!prompt_only(t)) {
        err = feed(t, why);
        if (err != PD_OK)
            return err;
        if (t->scoring)
            release(t, t->fed < t->prompt ? t->fed + 1 : t->prompt, ret);
    }
    if (prompt_only(t)) {
        release(t, t->prompt, ret);
        ret->finish = SERVE_FINISH_LENGTH;
        t->finished = true;
        return PD_OK;
    }
    if (t->fed < t->total)
        return PD_OK;
    err = choose(t, why);
    if (err != PD_OK)
        return err;
    settle(t, ret);
    t->finished = ret->finish != SERVE_FINISH_NONE;
    return PD_OK;
}
