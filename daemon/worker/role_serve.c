/* One thread does everything: it takes what has come, and between two takings it runs one batch of the
 * classifier (and one slice of a request larger than a batch) or one step of all open completions together.
 * So a new request waits for at most one round, several completions advance side by side, and no lock is
 * needed. When nothing is open it sleeps in host->next. */
#include "daemon/worker/role_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/params.h"
#include "daemon/serve/queue.h"
#include "daemon/serve/serve.h"
#include "kernels/base/clock.h"

/* One request from its arrival to its last part. */
struct item {
    struct item *next; /* among the running */
    struct serve_request *req;
    struct serve_params params;
    int64_t images;       /* infer */
    struct pd_buf pixels; /* infer: pictures as the model reads them */
    struct serve_scores
        scores; /* infer, of a request that is computed in slices: of `scored` images so far */
    int64_t scored;
    struct pd_buf prompt; /* complete: int32_t ids */
    struct serve_stream *stream;
    int64_t arrived_us, begun_us, first_us, last_us; /* first, last: tokens */
    size_t made;                                     /* tokens so far */
    uint64_t rounds, rows;                           /* steps of the model, and sequences in them */
    /* Parts of the answer not sent yet: all of them without `stream`. */
    struct pd_buf text, tokens, lengths, logprobs, top_tokens, top_logprobs, top_text, top_lengths;
};

struct role {
    const struct serve_host *host;
    struct serve *model;
    const struct serve_info *info;
    struct serve_queue *queue;
    struct item *running; /* completions with a stream, in order of arrival */
    uint32_t running_count;
    struct item *large; /* infer: more images than a batch; each gets a slice in turn */
    uint32_t large_count;
    uint64_t large_images; /* of all of them */
    struct serve_images *batch_images;
    struct item **batch; /* both: ROLE_SERVE_QUEUE entries */
};

/* ---- answering ---- */

static void item_free(struct role *r, struct item *it)
{
    struct pd_buf *bufs[] = {&it->pixels,   &it->prompt,     &it->text,       &it->tokens,
                             &it->lengths,  &it->logprobs,   &it->top_tokens, &it->top_logprobs,
                             &it->top_text, &it->top_lengths};

    serve_stream_close(it->stream);
    free(it->scores.logits);
    free(it->scores.probabilities);
    free(it->scores.classes);
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        pd_buf_done(bufs[i]);
    r->host->done(r->host->ctx, it->req);
    free(it);
}

static void reply_error(struct role *r, struct serve_request *req, enum pd_err err, const char *text)
{
    struct serve_result part = {.err = err, .text = text, .last = true};

    r->host->reply(r->host->ctx, req, &part);
}

static void item_fail(struct role *r, struct item *it, enum pd_err err, const char *text)
{
    reply_error(r, it->req, err, text);
    item_free(r, it);
}

/* Why an answer is not wanted any more: the client left, or the deadline passed. PD_OK: it is. */
static enum pd_err unwanted(const struct role *r, const struct item *it, struct pd_why *why)
{
    if (r->host->cancelled(r->host->ctx, it->req))
        return pd_fail(why, PD_ERR_CANCELLED, "the client left");
    if (it->req->deadline_us && pd_clock_mono_us() >= it->req->deadline_us)
        return pd_fail(why, PD_ERR_TIMEOUT, "the deadline passed while the answer was made");
    return PD_OK;
}

/* The name is one of ours: it fits. */
static struct wire_tensor tensor(const char *name, const char *dtype, const void *data, size_t bytes,
                                 int64_t rows, int64_t columns)
{
    struct wire_tensor t = {
        .rank = columns < 0 ? 1 : 2, .shape = {rows, columns < 0 ? 0 : columns}, .bytes = bytes};

    snprintf(t.name, sizeof t.name, "%s", name);
    snprintf(t.dtype, sizeof t.dtype, "%s", dtype);
    t.data = data ? data : "";
    return t;
}

static struct wire_timing timing_of(const struct item *it, uint64_t batch, uint64_t tokens)
{
    return (struct wire_timing){
        .queue_us = (uint64_t)(it->begun_us - it->arrived_us),
        .compute_us = (uint64_t)(pd_clock_mono_us() - it->begun_us),
        .batch = batch,
        .tokens = tokens,
        .first_us = it->first_us ? (uint64_t)(it->first_us - it->arrived_us) : 0,
        .span_us = (uint64_t)(it->last_us - it->first_us),
    };
}

/* ---- classifier ---- */

/* A tensor of BYTES: each element a picture. */
static enum pd_err read_pictures(struct role *r, struct item *it, struct pd_why *why)
{
    const struct wire_tensor *t = &it->req->tensors[0];
    size_t size = (size_t)(r->info->channels * r->info->height * r->info->width), left = t->bytes;
    const char *at = t->data;
    enum pd_err err = PD_OK;

    if (t->rank != 1 || t->shape[0] < 1 || t->shape[0] > (int64_t)r->info->batch_max)
        return pd_fail(why, PD_ERR_INVALID, "input 'image' of BYTES must have the shape [n], 1 <= n <= %u",
                       r->info->batch_max);
    for (int64_t i = 0; i < t->shape[0] && err == PD_OK; i++) {
        struct pd_why inner = {""};
        uint32_t len = 0;
        void *to;

        if (left >= sizeof len)
            memcpy(&len, at, sizeof len);
        if (left < sizeof len || len > left - sizeof len)
            return pd_fail(why, PD_ERR_INVALID, "input 'image': element %lld runs past the end",
                           (long long)i);
        to = pd_buf_reserve(&it->pixels, size);
        if (!to)
            return pd_fail(why, PD_ERR_NOMEM, "no memory for %lld pictures", (long long)t->shape[0]);
        err = serve_picture_read(r->model, at + sizeof len, len, to, &inner);
        if (err != PD_OK)
            return pd_fail(why, err, "input 'image', picture %lld: %s", (long long)i, inner.text);
        at += sizeof len + len;
        left -= sizeof len + len;
    }
    if (left)
        return pd_fail(why, PD_ERR_INVALID, "input 'image' has %zu bytes behind its last element", left);
    it->images = t->shape[0];
    return PD_OK;
}

static enum pd_err read_infer(struct role *r, struct item *it, struct pd_why *why)
{
    const struct serve_request *req = it->req;
    const struct serve_info *info = r->info;
    const struct wire_tensor *t = &req->tensors[0];
    const int64_t want[3] = {info->channels, info->height, info->width};
    int64_t elements = info->channels * info->height * info->width;
    bool bytes, shape;
    enum pd_err err = serve_params_infer(req->json, req->json_len, &it->params, why);

    if (err != PD_OK)
        return err;
    if (req->count != 1 || strcmp(t->name, "image") != 0)
        return pd_fail(why, PD_ERR_INVALID, "this model takes one input, 'image'");
    if (strcmp(t->dtype, "BYTES") == 0)
        return read_pictures(r, it, why);
    bytes = strcmp(t->dtype, "UINT8") == 0;
    if (!bytes && strcmp(t->dtype, "FP32") != 0)
        return pd_fail(why, PD_ERR_INVALID, "input 'image' is FP32, UINT8 or BYTES, not %s", t->dtype);
    shape = t->rank == 4 && t->shape[0] >= 1 && t->shape[0] <= (int64_t)ROLE_SERVE_COST;
    for (int i = 0; shape && i < 3; i++)
        shape = t->shape[i + 1] == want[i];
    if (!shape)
        return pd_fail(why, PD_ERR_INVALID,
                       "input 'image' must have the shape [n,%lld,%lld,%lld], 1 <= n <= %u",
                       (long long)want[0], (long long)want[1], (long long)want[2], ROLE_SERVE_COST);
    if (t->bytes != (size_t)(t->shape[0] * elements) * (bytes ? 1 : sizeof(float)))
        return pd_fail(why, PD_ERR_INVALID, "input 'image' holds %zu bytes, its shape says otherwise",
                       t->bytes);
    it->images = t->shape[0];
    return PD_OK;
}

static void reply_scores(struct role *r, struct item *it, const struct serve_scores *scores, int64_t first,
                         int64_t batch)
{
    size_t n = (size_t)it->images, classes = (size_t)r->info->outputs, row = classes * sizeof(float);
    struct wire_tensor out[4];
    struct pd_buf labels;
    struct wire_timing timing = timing_of(it, (uint64_t)batch, 0);
    struct serve_result part = {.tensors = out, .last = true, .timing = &timing};

    if (it->params.outputs & SERVE_OUT_LOGITS)
        out[part.count++] = tensor("logits", "FP32", scores->logits + (size_t)first * classes, n * row,
                                   it->images, r->info->outputs);
    if (it->params.outputs & SERVE_OUT_PROBABILITIES)
        out[part.count++] = tensor("probabilities", "FP32", scores->probabilities + (size_t)first * classes,
                                   n * row, it->images, r->info->outputs);
    if (it->params.outputs & SERVE_OUT_CLASS)
        out[part.count++] =
            tensor("class", "INT64", scores->classes + first, n * sizeof(int64_t), it->images, -1);
    pd_buf_init(&labels, 0);
    if (it->params.outputs & SERVE_OUT_LABEL && r->info->labels) {
        for (size_t i = 0; i < n; i++) {
            int64_t c = scores->classes[(size_t)first + i];
            const char *name = c >= 0 ? r->info->labels[c] : "";
            uint32_t len = (uint32_t)strlen(name);

            pd_buf_append(&labels, &len, sizeof len);
            pd_buf_append(&labels, name, len);
        }
        if (pd_buf_err(&labels) == PD_OK)
            out[part.count++] = tensor("label", "BYTES", labels.data, labels.len, it->images, -1);
    }
    r->host->reply(r->host->ctx, it->req, &part);
    pd_buf_done(&labels);
}

static enum pd_err scores_new(const struct role *r, int64_t images, struct serve_scores *ret,
                              struct pd_why *why)
{
    size_t row = (size_t)r->info->outputs * sizeof(float);

    ret->logits = malloc((size_t)images * row);
    ret->probabilities = malloc((size_t)images * row);
    ret->classes = malloc((size_t)images * sizeof(int64_t));
    if (!ret->logits || !ret->probabilities || !ret->classes)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the scores of %lld images", (long long)images);
    return PD_OK;
}

static struct serve_images images_of(const struct item *it)
{
    const struct wire_tensor *t = &it->req->tensors[0];

    return (struct serve_images){.data = it->pixels.len ? it->pixels.data : t->data,
                                 .bytes = it->pixels.len || strcmp(t->dtype, "UINT8") == 0,
                                 .count = it->images};
}

static void classify_items(struct role *r, size_t count, int64_t images)
{
    struct serve_scores scores = {.logits = NULL};
    struct pd_why why = {{0}};
    enum pd_err err;
    int64_t first = 0;

    for (size_t i = 0; i < count; i++) {
        r->batch[i]->begun_us = pd_clock_mono_us();
        r->batch_images[i] = images_of(r->batch[i]);
    }
    err = scores_new(r, images, &scores, &why);
    if (err == PD_OK)
        err = serve_classify(r->model, r->batch_images, count, &scores, &why);
    if (err != PD_OK && count > 1) {
        /* One bad picture must not spoil its neighbours' answers: each again, alone. */
        for (size_t i = 0; i < count; i++) {
            struct item *it = r->batch[0] = r->batch[i];

            classify_items(r, 1, it->images);
        }
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        struct item *it = r->batch[i];

        if (err != PD_OK) {
            item_fail(r, it, err, why.text);
            continue;
        }
        reply_scores(r, it, &scores, first, images);
        first += it->images;
        item_free(r, it);
    }
out:
    free(scores.logits);
    free(scores.probabilities);
    free(scores.classes);
}

/* The next images of a large request, at most a batch of them. */
static enum pd_err score_more(struct role *r, struct item *it, struct pd_why *why)
{
    size_t row = (size_t)r->info->outputs, done = (size_t)it->scored;
    size_t elements = (size_t)(r->info->channels * r->info->height * r->info->width);
    struct serve_scores to = {.logits = it->scores.logits + done * row,
                              .probabilities = it->scores.probabilities + done * row,
                              .classes = it->scores.classes + done};
    struct serve_images part = images_of(it);
    enum pd_err err;

    part.first = it->scored;
    part.data = (const char *)part.data + done * elements * (part.bytes ? 1 : sizeof(float));
    part.count -= it->scored;
    if (part.count > (int64_t)r->info->batch_max)
        part.count = r->info->batch_max;
    err = serve_classify(r->model, &part, 1, &to, why);
    it->scored += part.count;
    return err;
}

/* One batch for the request at the head of the large ones, which goes to their end. So what came later waits
 * for one batch, not for thousands of images, and several large ones advance side by side. */
static void run_slice(struct role *r)
{
    struct item *it = r->large, **end = &r->large;
    struct pd_why why = {{0}};
    enum pd_err err = unwanted(r, it, &why);

    r->large = it->next;
    it->next = NULL;
    if (err == PD_OK && !it->begun_us) {
        it->begun_us = pd_clock_mono_us();
        err = scores_new(r, it->images, &it->scores, &why);
    }
    if (err == PD_OK)
        err = score_more(r, it, &why);
    if (err == PD_OK && it->scored < it->images) {
        while (*end)
            end = &(*end)->next;
        *end = it;
        return;
    }
    r->large_count--;
    r->large_images -= (uint64_t)it->images;
    if (err != PD_OK) {
        item_fail(r, it, err, why.text);
    } else {
        reply_scores(r, it, &it->scores, 0, r->info->batch_max);
        item_free(r, it);
    }
}

/* How long the oldest request still waits for company: 0 = a batch is to be run now. */
static int64_t company_us(struct role *r)
{
    const struct item *it = serve_queue_peek(r->queue);
    int64_t left;

    if (!it || r->info->kind != SERVE_CLASSIFIER || serve_queue_cost(r->queue) >= r->info->batch_max)
        return 0;
    left = it->arrived_us + r->host->delay_us - pd_clock_mono_us();
    return left > 0 ? left : 0;
}

/* Takes as many waiting requests as fit one batch and answers them. */
static void run_small(struct role *r)
{
    size_t count = 0;
    int64_t images = 0;
    struct item *it;

    while (count < ROLE_SERVE_QUEUE && (it = serve_queue_peek(r->queue))) {
        if (count && images + it->images > (int64_t)r->info->batch_max)
            break;
        r->batch[count++] = serve_queue_pop(r->queue);
        images += it->images;
    }
    if (count) {
        r->host->load(r->host->ctx, serve_queue_count(r->queue) + r->large_count, (uint32_t)count);
        classify_items(r, count, images);
    }
}

static void run_classifier(struct role *r)
{
    if (!company_us(r))
        run_small(r);
    if (r->large) {
        r->host->load(r->host->ctx, serve_queue_count(r->queue) + r->large_count - 1, 1);
        run_slice(r);
    }
}

/* ---- language model ---- */

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
                       "tensor 'prompt' is UINT8 bytes or INT32 token ids of its shape's size");
    }
    if (err == PD_OK && it->prompt.len / sizeof(int32_t) > (size_t)r->info->positions)
        return pd_fail(why, PD_ERR_LIMIT, "the prompt has %zu tokens, the model's context holds %lld",
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
    const struct pd_buf *bufs[] = {&it->text,       &it->tokens,       &it->lengths,  &it->logprobs,
                                   &it->top_tokens, &it->top_logprobs, &it->top_text, &it->top_lengths};

    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) {
        if (pd_buf_err(bufs[i]) != PD_OK)
            return pd_buf_err(bufs[i]);
    }
    return PD_OK;
}

static void send_part(struct role *r, struct item *it, enum serve_finish finish)
{
    int64_t k = (int64_t)(it->tokens.len / sizeof(int32_t)), tops = it->params.sampling.logprobs;
    struct pd_buf *bufs[] = {&it->text,       &it->tokens,       &it->lengths,  &it->logprobs,
                             &it->top_tokens, &it->top_logprobs, &it->top_text, &it->top_lengths};
    struct wire_tensor out[8];
    struct serve_result part = {.tensors = out, .last = finish != SERVE_FINISH_NONE};
    struct wire_timing timing;
    char json[128];

    out[part.count++] = tensor("text", "UINT8", it->text.data, it->text.len, (int64_t)it->text.len, -1);
    out[part.count++] = tensor("tokens", "INT32", it->tokens.data, it->tokens.len, k, -1);
    out[part.count++] = tensor("lengths", "INT32", it->lengths.data, it->lengths.len, k, -1);
    if (tops >= 0)
        out[part.count++] = tensor("logprobs", "FP32", it->logprobs.data, it->logprobs.len, k, -1);
    if (tops > 0) {
        out[part.count++] = tensor("top_tokens", "INT32", it->top_tokens.data, it->top_tokens.len, k, tops);
        out[part.count++] =
            tensor("top_logprobs", "FP32", it->top_logprobs.data, it->top_logprobs.len, k, tops);
        out[part.count++] =
            tensor("top_text", "UINT8", it->top_text.data, it->top_text.len, (int64_t)it->top_text.len, -1);
        out[part.count++] =
            tensor("top_lengths", "INT32", it->top_lengths.data, it->top_lengths.len, k, tops);
    }
    if (part.last) {
        snprintf(json, sizeof json,
                 "{\"finish_reason\":\"%s\",\"prompt_tokens\":%zu,\"completion_tokens\":%zu}",
                 serve_finish_name(finish), serve_stream_prompt_tokens(it->stream),
                 serve_stream_completion_tokens(it->stream));
        part.json = json;
        timing = timing_of(it, it->rounds ? (it->rows + it->rounds / 2) / it->rounds : 1,
                           serve_stream_completion_tokens(it->stream));
        part.timing = &timing;
    }
    r->host->reply(r->host->ctx, it->req, &part);
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        pd_buf_consume(bufs[i], bufs[i]->len);
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
        err = collected(it);
        if (err != PD_OK)
            pd_fail(&turn->why, err, "no memory for the completion");
    }
    if (err != PD_OK) {
        item_fail(r, it, err, turn->why.text);
        return true;
    }
    if (piece->finish != SERVE_FINISH_NONE || (it->params.stream && piece->count))
        send_part(r, it, piece->finish);
    if (piece->finish == SERVE_FINISH_NONE)
        return false;
    item_free(r, it);
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
            item_fail(r, it, err, why.text);
            continue;
        }
        *link = it;
        link = &it->next;
        r->running_count++;
    }
}

/* Opens streams for those that wait as far as slots go, then gives every open one its turn. */
static void run_language(struct role *r)
{
    struct serve_turn turn[SERVE_STREAMS_MAX];
    struct item **link;
    size_t count = 0, i = 0;

    for (link = &r->running; *link;) {
        struct item *it = *link;
        struct pd_why why = {{0}};
        enum pd_err err = unwanted(r, it, &why);

        if (err == PD_OK) {
            link = &it->next;
        } else {
            *link = it->next;
            r->running_count--;
            item_fail(r, it, err, why.text);
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

/* ---- the loop ---- */

/* The large ones have a bound of their own: they do not fill the queue for the others. */
static enum pd_err push_large(struct role *r, struct item *it)
{
    struct item **end = &r->large;

    if (r->large_count == ROLE_SERVE_QUEUE ||
        (r->large_count && r->large_images + (uint64_t)it->images > ROLE_SERVE_COST))
        return PD_ERR_BUSY;
    while (*end)
        end = &(*end)->next;
    *end = it;
    r->large_count++;
    r->large_images += (uint64_t)it->images;
    return PD_OK;
}

static void admit(struct role *r, struct serve_request *req)
{
    bool infer = strcmp(req->kind, "infer") == 0, complete = strcmp(req->kind, "complete") == 0;
    struct item *it = NULL;
    struct pd_why why = {{0}};
    enum pd_err err;
    uint64_t cost;

    if (!infer && !complete) {
        err = pd_fail(&why, PD_ERR_INVALID, "unknown kind of request '%.15s'", req->kind);
        goto out;
    }
    if (infer != (r->info->kind == SERVE_CLASSIFIER)) {
        err = pd_fail(&why, PD_ERR_UNSUPPORTED, "model %s is a %s", r->host->model,
                      infer ? "language model: it completes text and does not classify"
                            : "classifier: it does not complete text");
        goto out;
    }
    it = calloc(1, sizeof *it);
    if (!it) {
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for a request");
        goto out;
    }
    it->req = req;
    it->arrived_us = pd_clock_mono_us();
    err = infer ? read_infer(r, it, &why) : read_complete(r, it, &why);
    if (err != PD_OK)
        goto out;
    cost = infer ? (uint64_t)it->images
                 : it->prompt.len / sizeof(int32_t) + (uint64_t)it->params.sampling.max_tokens;
    if (infer && it->images > (int64_t)r->info->batch_max)
        err = push_large(r, it);
    else
        err = serve_queue_push(r->queue, it, cost, req->deadline_us);
    if (err != PD_OK) {
        err = pd_fail(&why, err, "the queue of model %s is full", r->host->model);
        goto out;
    }
    return;
out:
    if (it) {
        item_fail(r, it, err, why.text);
    } else {
        reply_error(r, req, err, why.text);
        r->host->done(r->host->ctx, req);
    }
}

static bool is_gone(void *user, void *item)
{
    struct role *r = user;

    return r->host->cancelled(r->host->ctx, ((struct item *)item)->req);
}

static void drop_waiting(struct role *r)
{
    struct item *it;
    bool late;

    while ((it = serve_queue_drop(r->queue, pd_clock_mono_us(), is_gone, r, &late)))
        item_fail(r, it, late ? PD_ERR_TIMEOUT : PD_ERR_CANCELLED,
                  late ? "the deadline passed while the request waited" : "the client left");
}

static void serve_requests(struct role *r)
{
    for (;;) {
        bool idle = !r->running && !r->large && serve_queue_count(r->queue) == 0;
        int64_t patience_us = r->large ? 0 : company_us(r);
        struct serve_request *req = NULL;
        enum pd_err err = r->host->next(r->host->ctx, idle ? -1 : (int)((patience_us + 999) / 1000), &req);

        while (err == PD_OK) {
            admit(r, req);
            err = r->host->next(r->host->ctx, 0, &req);
        }
        if (err == PD_ERR_CLOSED)
            break;
        drop_waiting(r);
        if (!r->large && company_us(r))
            continue;
        if (r->info->kind == SERVE_CLASSIFIER)
            run_classifier(r);
        else
            run_language(r);
        if (!r->running && !r->large && serve_queue_count(r->queue) == 0)
            r->host->load(r->host->ctx, 0, 0);
    }
    for (struct item *it = r->running, *next; it; it = next) {
        next = it->next;
        item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
    }
    for (struct item *it = r->large, *next; it; it = next) {
        next = it->next;
        item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
    }
    for (struct item *it; (it = serve_queue_pop(r->queue));)
        item_fail(r, it, PD_ERR_CLOSED, "the model is being unloaded");
}

enum pd_err serve_run(const struct serve_host *host, struct pd_why *why)
{
    struct role r = {.host = host};
    struct serve_options options = {.job = host->job,
                                    .job_len = host->job ? strlen(host->job) : 0,
                                    .checkpoint = host->checkpoint,
                                    .digest = host->digest,
                                    .threads = (int)host->threads,
                                    .bf16_weights = host->bf16_weights,
                                    .cuda = host->cuda,
                                    .keeper = host->tuned,
                                    .memory = host->memory_kind == 1   ? SERVE_MEMORY_CACHE
                                              : host->memory_kind == 2 ? SERVE_MEMORY_STATE
                                                                       : SERVE_MEMORY_AUTO,
                                    .memory_max = host->memory_bytes};
    struct serve_memory memory;
    struct pd_buf signature;
    enum pd_err err;

    pd_buf_init(&signature, 0);
    r.batch = calloc(ROLE_SERVE_QUEUE, sizeof(struct item *));
    r.batch_images = calloc(ROLE_SERVE_QUEUE, sizeof *r.batch_images);
    err = serve_queue_new(ROLE_SERVE_QUEUE, ROLE_SERVE_COST, &r.queue);
    if (err != PD_OK || !r.batch || !r.batch_images) {
        err = pd_fail(why, PD_ERR_NOMEM, "no memory for the queue");
        goto out;
    }
    err = serve_open(&options, &r.model, why);
    if (err != PD_OK)
        goto out;
    r.info = serve_info(r.model);
    err = serve_signature(r.model, &signature);
    if (err != PD_OK) {
        err = pd_fail(why, err, "no memory for the signature");
        goto out;
    }
    serve_memory(r.model, &memory);
    host->ready(host->ctx, signature.data, memory.most_bytes);
    serve_requests(&r);
out:
    pd_buf_done(&signature);
    serve_close(r.model);
    serve_queue_free(r.queue);
    free(r.batch_images);
    free(r.batch);
    return err;
}
