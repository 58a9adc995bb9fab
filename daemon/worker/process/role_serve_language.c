/* The serve role for completions: all open ones take their steps together. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/process/role_serve_internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"

static enum pd_err read_complete(struct role *r, struct item *it, struct pd_why *why)
{
    const struct serve_request *req = it->req;
    const struct wire_tensor *t = &req->tensors[0];
    enum pd_err err = serve_params_complete(req->json, req->json_len, &it->params, why);

    if (err == PD_OK)
        err = serve_sampling_check(&it->params.sampling, r->info->outputs, why);
    if (err != PD_OK)
        return err;
    if (req->count != 1 || strcmp(t->name, "prompt") != 0 || t->rank != 1)
        return pd_fail(why, PD_ERR_INVALID, "a completion takes one tensor, 'prompt', of one dimension");
    if (strcmp(t->dtype, "UINT8") == 0 && t->bytes == (size_t)t->shape[0]) {
        err = serve_tokenize(r->model, t->data, t->bytes, &it->prompt, why);
    } else if (strcmp(t->dtype, "INT32") == 0 && t->bytes == (size_t)t->shape[0] * sizeof(int32_t)) {
        pd_buf_append(&it->prompt, t->data, t->bytes);
        err = pd_buf_err(&it->prompt);
    } else {
        return pd_fail(why, PD_ERR_INVALID,
                       "tensor 'prompt' must be UINT8 bytes or INT32 token ids, as many as its shape states");
    }
    if (err == PD_OK && it->prompt.len / sizeof(int32_t) > (size_t)r->info->positions)
        return pd_fail(why, PD_ERR_LIMIT, "the prompt has %zu tokens, the model's context %lld",
                       it->prompt.len / sizeof(int32_t), (long long)r->info->positions);
    return err;
}

/* Adds a piece to what will be sent. */
static void collect(struct role *r, struct item *it, const struct serve_piece *piece)
{
    int32_t tops = it->params.sampling.logprobs;

    pd_buf_append(&it->text, piece->text, piece->len);
    for (size_t i = 0; i < piece->count; i++) {
        const struct serve_token *k = &piece->tokens[i];
        int32_t len = (int32_t)k->len;
        float logprob = k->scored ? k->logprob : NAN;

        pd_buf_append(&it->tokens, &k->id, sizeof k->id);
        pd_buf_append(&it->lengths, &len, sizeof len);
        if (tops < 0)
            continue;
        pd_buf_append(&it->logprobs, &logprob, sizeof logprob);
        for (int32_t j = 0; j < tops; j++) {
            bool there = k->scored && (uint32_t)j < k->tops;
            int32_t id = there ? k->top[j].id : -1, bytes;
            size_t n = 0;
            const char *name = there ? serve_token_text(r->model, id, &n) : "";

            logprob = there ? k->top[j].logprob : NAN;
            pd_buf_append(&it->top_tokens, &id, sizeof id);
            pd_buf_append(&it->top_logprobs, &logprob, sizeof logprob);
            bytes = (int32_t)n;
            pd_buf_append(&it->top_lengths, &bytes, sizeof bytes);
            pd_buf_append(&it->top_text, name, n);
        }
    }
}

static enum pd_err collected(const struct item *it)
{
    const struct pd_buf *bufs[] = {&it->text,     &it->tokens,      &it->lengths,
                                   &it->logprobs, &it->top_tokens,  &it->top_logprobs,
                                   &it->top_text, &it->top_lengths, &it->end};

    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) {
        if (pd_buf_err(bufs[i]) != PD_OK)
            return pd_buf_err(bufs[i]);
    }
    return PD_OK;
}

static void put_end(struct item *it, enum serve_finish finish)
{
    struct pd_buf *b = &it->end;

    pd_json_open(b, '{');
    pd_json_kv_str(b, "finish_reason", serve_finish_name(finish));
    pd_json_kv_uint(b, "prompt_tokens", serve_stream_prompt_tokens(it->stream));
    pd_json_kv_uint(b, "completion_tokens", serve_stream_completion_tokens(it->stream));
    pd_json_close(b, '}');
}

static void send_part(struct role *r, struct item *it, enum serve_finish finish)
{
    int64_t k = (int64_t)(it->tokens.len / sizeof(int32_t)), tops = it->params.sampling.logprobs;
    struct pd_buf *bufs[] = {&it->text,       &it->tokens,       &it->lengths,  &it->logprobs,
                             &it->top_tokens, &it->top_logprobs, &it->top_text, &it->top_lengths};
    struct wire_tensor out[8];
    struct serve_result part = {.tensors = out, .last = finish != SERVE_FINISH_NONE};
    struct wire_timing timing;

    out[part.count++] = role_tensor("text", "UINT8", it->text.data, it->text.len, (int64_t)it->text.len, -1);
    out[part.count++] = role_tensor("tokens", "INT32", it->tokens.data, it->tokens.len, k, -1);
    out[part.count++] = role_tensor("lengths", "INT32", it->lengths.data, it->lengths.len, k, -1);
    if (tops >= 0)
        out[part.count++] = role_tensor("logprobs", "FP32", it->logprobs.data, it->logprobs.len, k, -1);
    if (tops > 0) {
        out[part.count++] =
            role_tensor("top_tokens", "INT32", it->top_tokens.data, it->top_tokens.len, k, tops);
        out[part.count++] =
            role_tensor("top_logprobs", "FP32", it->top_logprobs.data, it->top_logprobs.len, k, tops);
        out[part.count++] = role_tensor("top_text", "UINT8", it->top_text.data, it->top_text.len,
                                        (int64_t)it->top_text.len, -1);
        out[part.count++] =
            role_tensor("top_lengths", "INT32", it->top_lengths.data, it->top_lengths.len, k, tops);
    }
    if (part.last) {
        part.json = it->end.data;
        timing = role_timing(it, it->rounds ? (it->rows + it->rounds / 2) / it->rounds : 1,
                             serve_stream_completion_tokens(it->stream));
        part.timing = &timing;
    }
    r->host->reply(r->host->ctx, it->req, &part);
    it->sent_us = pd_clock_mono_us();
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        pd_buf_consume(bufs[i], bufs[i]->len);
}

/* Without `stream` a part is sent only so often that the daemon sees progress before the deadline. */
static bool part_due(const struct item *it)
{
    return it->params.stream || (it->patience_us && pd_clock_mono_us() - it->sent_us >= it->patience_us / 4);
}

/* What one round gave a completion; true when it has been answered to the end. */
static bool take_turn(struct role *r, struct item *it, struct serve_turn *turn)
{
    const struct serve_piece *piece = &turn->piece;
    size_t made = serve_stream_completion_tokens(it->stream);
    enum pd_err err = turn->err;

    it->rounds += turn->batch > 0;
    it->rows += turn->batch;
    if (made > it->made) {
        it->last_us = pd_clock_mono_us();
        it->first_us = it->made ? it->first_us : it->last_us;
        it->made = made;
    }
    if (err == PD_OK) {
        collect(r, it, piece);
        if (piece->finish != SERVE_FINISH_NONE)
            put_end(it, piece->finish);
        err = collected(it);
        if (err != PD_OK)
            pd_fail(&turn->why, err, "no memory for the completion");
    }
    if (err != PD_OK) {
        role_item_fail(r, it, err, turn->why.text);
        return true;
    }
    if (piece->finish != SERVE_FINISH_NONE || (piece->count && part_due(it)))
        send_part(r, it, piece->finish);
    if (piece->finish == SERVE_FINISH_NONE)
        return false;
    role_item_free(r, it);
    return true;
}

static void open_waiting(struct role *r)
{
    struct item **link = &r->running, *it;

    while (*link)
        link = &(*link)->next;
    while (r->running_count < r->info->streams_max && (it = serve_queue_pop(r->queue))) {
        struct pd_why why = {{0}};
        enum pd_err err;

        it->begun_us = pd_clock_mono_us();
        err = serve_stream_open(r->model, (const int32_t *)(const void *)it->prompt.data,
                                it->prompt.len / sizeof(int32_t), &it->params.sampling, &it->stream, &why);

        if (err != PD_OK) {
            role_item_fail(r, it, err, why.text);
            continue;
        }
        *link = it;
        link = &it->next;
        r->running_count++;
    }
}

/* Opens streams for those that wait as far as slots go, then gives every open one its turn. */
static void run(struct role *r)
{
    struct serve_turn turn[SERVE_STREAMS_MAX];
    struct item **link;
    size_t count = 0, i = 0;

    for (link = &r->running; *link;) {
        struct item *it = *link;
        struct pd_why why = {{0}};
        enum pd_err err = role_unwanted(r, it, &why);

        if (err == PD_OK) {
            link = &it->next;
        } else {
            *link = it->next;
            r->running_count--;
            role_item_fail(r, it, err, why.text);
        }
    }
    open_waiting(r);
    r->host->load(r->host->ctx, serve_queue_count(r->queue), r->running_count);
    for (struct item *it = r->running; it; it = it->next)
        turn[count++].stream = it->stream;
    serve_turns(r->model, turn, count);
    for (link = &r->running; *link; i++) {
        struct item *next = (*link)->next;

        if (take_turn(r, *link, &turn[i])) {
            *link = next;
            r->running_count--;
        } else {
            link = &(*link)->next;
        }
    }
}

static enum pd_err push(struct role *r, struct item *it)
{
    uint64_t cost = it->prompt.len / sizeof(int32_t) + (uint64_t)it->params.sampling.max_tokens;

    it->sent_us = it->arrived_us;
    it->patience_us = it->req->deadline_us ? it->req->deadline_us - it->arrived_us : 0;
    return serve_queue_push(r->queue, it, cost, it->req->deadline_us);
}

const struct role_kind role_kind_language = {
    .form = &serve_kind_language,
    .request = "complete",
    .refusal = "language model: it completes text and does not classify",
    .read = read_complete,
    .push = push,
    .run = run,
};
