/* Completions: /v1/completions, and /generate of the Open Inference Protocol.
 *
 * One request makes one `gen` with a choice for each prompt and n; each choice is an inference request to the
 * supervisor, whose parts arrive on its thread and are appended under the gen's lock. The HTTP side first
 * waits until there is anything to say (so that a refusal still has its status), then either waits for the
 * end and answers with one object, or streams what has arrived. Lock order: gen, then the server's. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/completion.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"
#include "api/server.h"
#include "daemon/digest/digest.h"
#include "kernels/base/clock.h"

#define TEXT_MAX (16u << 20) /* bytes of one choice that wait to be sent */

struct choice {
    struct gen *gen;
    uint64_t id; /* of the supervisor; 0 = not sent */
    bool sent, ended, finish_sent;
    struct pd_buf text;                          /* arrived, not yet sent */
    struct pd_buf tokens, values, tops, offsets; /* bodies of the JSON arrays of logprobs, not yet sent */
    size_t chars;                                /* characters of all tokens so far */
    char finish[16];                             /* "" = goes on */
    int64_t prompt_tokens, completion_tokens;
};

struct gen {
    struct api *api;
    atomic_int refs; /* the request's, the stream's, and one for each choice under way */
    bool openai;
    struct api_completion c;
    char model[API_MODEL_MAX + 1]; /* as the answer names it */
    int64_t version;
    char id[40];
    int64_t created_s;
    int count;
    struct choice *choices;
    pthread_mutex_t lock;  /* guards what follows and the choices */
    struct api_wait *wait; /* who waits for the first news, or for the end */
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

static void gen_unref(struct gen *g)
{
    if (atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (int i = 0; i < g->count; i++) {
        pd_buf_done(&g->choices[i].text);
        pd_buf_done(&g->choices[i].tokens);
        pd_buf_done(&g->choices[i].values);
        pd_buf_done(&g->choices[i].tops);
        pd_buf_done(&g->choices[i].offsets);
        api_core_infer_leave(api_core_of(g->api));
    }
    free(g->choices);
    api_completion_done(&g->c);
    pd_buf_done(&g->out);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void gen_cancel(struct gen *g)
{
    uint64_t ids[API_COMPLETION_CHOICES_MAX];
    int n = 0;

    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < g->count; i++)
        if (g->choices[i].id && !g->choices[i].ended)
            ids[n++] = g->choices[i].id;
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < n; i++)
        sup_infer_cancel(api_deps_of(g->api)->sup, ids[i]);
}

/* ---- what arrives (supervisor's thread) ------------------------------------------------------- */

static const struct wire_tensor *tensor(const struct sup_result *part, const char *name, const char *dtype)
{
    for (uint32_t i = 0; i < part->count; i++)
        if (strcmp(part->tensors[i].name, name) == 0 && strcmp(part->tensors[i].dtype, dtype) == 0)
            return &part->tensors[i];
    return NULL;
}

static size_t count_chars(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static void add_logprobs(struct choice *c, const struct sup_result *part)
{
    const struct wire_tensor *text = tensor(part, "text", "UINT8"),
                             *lengths = tensor(part, "lengths", "INT32");
    const struct wire_tensor *values = tensor(part, "logprobs", "FP32");
    const struct wire_tensor *top_ids = tensor(part, "top_tokens", "INT32"),
                             *top_values = tensor(part, "top_logprobs", "FP32"),
                             *top_text = tensor(part, "top_text", "UINT8"),
                             *top_lengths = tensor(part, "top_lengths", "INT32");
    size_t count = lengths ? lengths->bytes / 4 : 0, at = 0, top_at = 0;
    size_t width = top_ids && count ? top_ids->bytes / 4 / count : 0;

    if (!text || !lengths || !values || values->bytes / 4 < count ||
        (width && (!top_values || top_values->bytes < top_ids->bytes || !top_text || !top_lengths ||
                   top_lengths->bytes < top_ids->bytes)))
        return;
    for (size_t i = 0; i < count; i++) {
        const char *bytes = (const char *)text->data + at;
        int32_t len;
        float value;
        bool shown;

        memcpy(&len, (const char *)lengths->data + 4 * i, 4);
        memcpy(&value, (const char *)values->data + 4 * i, 4);
        if (len < 0 || (size_t)len > text->bytes - at)
            return;
        if (c->tokens.len == 0) {
            /* The JSON writer looks at the byte before: an open array. */
            pd_buf_str(&c->tokens, "[");
            pd_buf_str(&c->values, "[");
            pd_buf_str(&c->tops, "[");
            pd_buf_str(&c->offsets, "[");
        }
        api_token_text(&c->tokens, bytes, (size_t)len);
        if (isfinite(value))
            api_json_num32(&c->values, value);
        else
            api_json_null(&c->values);
        api_json_int(&c->offsets, (int64_t)c->chars);
        c->chars += count_chars(bytes, (size_t)len);
        at += (size_t)len;
        shown = width && isfinite(value);
        if (shown)
            api_json_open(&c->tops, '{');
        else
            api_json_null(&c->tops);
        for (size_t k = 0; k < width; k++) {
            const char *name = (const char *)top_text->data + top_at;
            int32_t id, top_len;
            float top;

            memcpy(&id, (const char *)top_ids->data + 4 * (i * width + k), 4);
            memcpy(&top, (const char *)top_values->data + 4 * (i * width + k), 4);
            memcpy(&top_len, (const char *)top_lengths->data + 4 * (i * width + k), 4);
            if (top_len < 0 || (size_t)top_len > top_text->bytes - top_at)
                return;
            top_at += (size_t)top_len;
            if (!shown || id < 0 || !isfinite(top))
                continue;
            api_token_text(&c->tops, name, (size_t)top_len);
            pd_buf_append(&c->tops, ":", 1);
            api_json_num32(&c->tops, top);
        }
        if (shown)
            api_json_close(&c->tops, '}');
    }
}

static void read_end(struct choice *c, const struct sup_result *part)
{
    json_t *root = json_loadb(part->json ? part->json : "", part->json ? part->json_len : 0, 0, NULL);
    const char *finish = json_string_value(json_object_get(root, "finish_reason"));

    snprintf(c->finish, sizeof c->finish, "%s", finish ? finish : "stop");
    c->prompt_tokens = json_integer_value(json_object_get(root, "prompt_tokens"));
    c->completion_tokens = json_integer_value(json_object_get(root, "completion_tokens"));
    json_decref(root);
}

static void gen_part(void *ctx, const struct sup_result *part)
{
    struct choice *c = ctx;
    struct gen *g = c->gen;
    const struct wire_tensor *text = tensor(part, "text", "UINT8");
    bool last = part->last || part->err != PD_OK;
    struct api_wait *wait = NULL;

    pthread_mutex_lock(&g->lock);
    if (part->version)
        g->version = part->version;
    if (part->err != PD_OK && g->err == PD_OK) {
        g->err = part->err;
        pd_fail(&g->why, part->err, "%s", part->text ? part->text : pd_err_name(part->err));
    }
    if (part->err == PD_OK && text && g->err == PD_OK) {
        if (c->text.len + text->bytes > TEXT_MAX)
            g->err = pd_fail(&g->why, PD_ERR_LIMIT, "the text is too long");
        else
            pd_buf_append(&c->text, text->data, text->bytes);
        if (g->c.logprobs >= 0)
            add_logprobs(c, part);
    }
    if (last && !c->ended) {
        c->ended = true;
        if (part->err == PD_OK)
            read_end(c, part);
        g->open--;
    }
    if (g->wait && (g->err != PD_OK || (g->for_end ? g->open == 0 : true))) {
        /* With an error the end is not waited for: the others are cancelled. */
        wait = g->wait;
        g->wait = NULL;
    }
    if (g->stream)
        api_stream_wake(g->stream);
    pthread_mutex_unlock(&g->lock);
    if (wait)
        api_wait_end(wait);
    if (last)
        gen_unref(g);
}

/* ---- what is sent ----------------------------------------------------------------------------- */

static void write_logprobs(struct pd_buf *b, const struct gen *g, struct choice *c)
{
    struct {
        const char *key;
        struct pd_buf *from;
    } arrays[] = {{"tokens", &c->tokens},
                  {"token_logprobs", &c->values},
                  {"top_logprobs", &c->tops},
                  {"text_offset", &c->offsets}};

    api_json_key(b, "logprobs");
    if (g->c.logprobs < 0) {
        api_json_null(b);
        return;
    }
    api_json_open(b, '{');
    for (size_t i = 0; i < 4; i++) {
        api_json_key(b, arrays[i].key);
        if (arrays[i].from->len)
            pd_buf_append(b, arrays[i].from->data, arrays[i].from->len);
        else
            api_json_open(b, '[');
        api_json_close(b, ']');
        pd_buf_done(arrays[i].from);
    }
    api_json_close(b, '}');
}

static void write_head(struct pd_buf *b, const struct gen *g)
{
    api_json_open(b, '{');
    api_json_kv_str(b, "id", g->id);
    api_json_kv_str(b, "object", "text_completion");
    api_json_kv_int(b, "created", g->created_s);
    api_json_kv_str(b, "model", g->c.model);
}

static void write_usage(struct pd_buf *b, const struct gen *g)
{
    int64_t prompt = 0, completion = 0;

    for (int i = 0; i < g->count; i++) {
        /* n choices of one prompt read it once, as OpenAI counts. */
        if (i % g->c.n == 0)
            prompt += g->choices[i].prompt_tokens;
        completion += g->choices[i].completion_tokens;
    }
    api_json_key(b, "usage");
    api_json_open(b, '{');
    api_json_kv_int(b, "prompt_tokens", prompt);
    api_json_kv_int(b, "completion_tokens", completion);
    api_json_kv_int(b, "total_tokens", prompt + completion);
    api_json_close(b, '}');
}

static void write_choice(struct pd_buf *b, const struct gen *g, int index, const char *text, size_t len,
                         bool finish)
{
    struct choice *c = &g->choices[index];

    api_json_open(b, '{');
    api_json_key(b, "text");
    api_json_strn(b, text ? text : "", len);
    api_json_kv_int(b, "index", index);
    write_logprobs(b, g, c);
    api_json_kv_str(b, "finish_reason", finish ? c->finish : NULL);
    api_json_close(b, '}');
}

static void write_generated(struct pd_buf *b, const struct gen *g, const char *text, size_t len,
                            const bool *done)
{
    api_json_open(b, '{');
    if (g->c.id)
        api_json_kv_str(b, "id", g->c.id);
    api_json_kv_str(b, "model_name", g->model);
    api_json_kv_id(b, "model_version", g->version);
    api_json_key(b, "text_output");
    api_json_strn(b, text ? text : "", len);
    if (done)
        api_json_kv_bool(b, "done", *done);
    api_json_close(b, '}');
}

/* Everything that can be sent of a choice now, as one event. */
static void stream_choice(struct gen *g, int index)
{
    struct choice *c = &g->choices[index];
    size_t whole = c->ended ? c->text.len : api_utf8_complete(c->text.data, c->text.len);
    bool finish = c->ended && !c->finish_sent;

    if (!whole && !finish)
        return;
    pd_buf_str(&g->out, "data: ");
    if (g->openai) {
        write_head(&g->out, g);
        api_json_key(&g->out, "choices");
        api_json_open(&g->out, '[');
        write_choice(&g->out, g, index, c->text.data, whole, finish);
        api_json_close(&g->out, ']');
        if (g->c.include_usage)
            api_json_kv_null(&g->out, "usage");
        if (g->c.warnings.len)
            api_json_kv_raw(&g->out, "warnings", g->c.warnings.data);
        api_json_close(&g->out, '}');
    } else {
        write_generated(&g->out, g, c->text.data, whole, &finish);
    }
    pd_buf_str(&g->out, "\n\n");
    pd_buf_consume(&c->text, whole);
    c->finish_sent = c->finish_sent || finish;
}

static void stream_error(struct gen *g)
{
    const char *type;

    pd_buf_str(&g->out, "data: ");
    (void)api_fault_body(&g->out, g->openai ? API_SURFACE_OPENAI : API_SURFACE_OIP,
                         g->err == PD_ERR_CLOSED ? (int)API_FAULT_LOADING : (int)g->err, g->why.text, NULL,
                         NULL, &type);
    pd_buf_str(&g->out, "\n\n");
}

static ssize_t gen_read(void *state, char *out, size_t size)
{
    struct gen *g = state;
    size_t n;

    if (atomic_load(&g->gone))
        return API_STREAM_ABORT;
    if (g->sent == g->out.len) {
        g->out.len = g->sent = 0;
        if (g->done_sent)
            return API_STREAM_END;
        pthread_mutex_lock(&g->lock);
        if (g->err != PD_OK) {
            stream_error(g);
            g->done_sent = true;
        } else {
            for (int i = 0; i < g->count; i++)
                stream_choice(g, i);
            if (g->open == 0) {
                if (g->openai && g->c.include_usage) {
                    pd_buf_str(&g->out, "data: ");
                    write_head(&g->out, g);
                    pd_buf_str(&g->out, ",\"choices\":[]");
                    write_usage(&g->out, g);
                    api_json_close(&g->out, '}');
                    pd_buf_str(&g->out, "\n\n");
                }
                if (g->openai)
                    pd_buf_str(&g->out, "data: [DONE]\n\n");
                g->done_sent = true;
            }
        }
        pthread_mutex_unlock(&g->lock);
        if (pd_buf_err(&g->out) != PD_OK)
            return API_STREAM_ABORT;
    }
    n = g->out.len - g->sent;
    if (n == 0)
        return g->done_sent ? API_STREAM_END : 0;
    if (n > size)
        n = size;
    memcpy(out, g->out.data + g->sent, n);
    g->sent += n;
    return (ssize_t)n;
}

static void gen_stream_done(void *state)
{
    struct gen *g = state;

    pthread_mutex_lock(&g->lock);
    g->stream = NULL;
    pthread_mutex_unlock(&g->lock);
    gen_cancel(g);
    gen_unref(g);
}

static void gen_stream_gone(void *state)
{
    atomic_store(&((struct gen *)state)->gone, true);
}

static const struct api_stream_ops gen_ops = {
    .read = gen_read, .done = gen_stream_done, .gone = gen_stream_gone, .comments = true};

/* ---- the request ------------------------------------------------------------------------------ */

struct gen_wait {
    struct gen *gen; /* holds a reference */
};

static void gen_wait_done(void *data)
{
    struct gen_wait *w = data;

    if (w->gen)
        gen_unref(w->gen);
}

static void gen_gone(void *data)
{
    gen_cancel(((struct gen_wait *)data)->gen);
}

static void answer_whole(struct api_req *r, struct gen *g)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    if (g->openai) {
        write_head(&b, g);
        api_json_key(&b, "choices");
        api_json_open(&b, '[');
        for (int i = 0; i < g->count; i++)
            write_choice(&b, g, i, g->choices[i].text.data, g->choices[i].text.len, true);
        api_json_close(&b, ']');
        write_usage(&b, g);
        if (g->c.warnings.len)
            api_json_kv_raw(&b, "warnings", g->c.warnings.data);
        api_json_close(&b, '}');
    } else {
        write_generated(&b, g, g->choices[0].text.data, g->choices[0].text.len, NULL);
    }
    api_reply_json(r, 200, &b);
}

static void gen_answer(struct api_req *r)
{
    struct gen *g = ((struct gen_wait *)api_waited(r))->gen;
    enum pd_err err;
    struct pd_why why;

    pthread_mutex_lock(&g->lock);
    err = g->err;
    why = g->why;
    pthread_mutex_unlock(&g->lock);
    if (err != PD_OK) {
        gen_cancel(g);
        api_fail_infer(r, err, &why);
        return;
    }
    if (!g->c.stream) {
        answer_whole(r, g);
        return;
    }
    api_reply_header(r, "X-Accel-Buffering", "no");
    api_reply_header(r, "Cache-Control", "no-cache");
    atomic_fetch_add(&g->refs, 1); /* the stream's */
    /* Parts that arrive from here on wake the stream; those before are found by its first read. */
    pthread_mutex_lock(&g->lock);
    api_reply_stream(r, 200, "text/event-stream", &gen_ops, g, &g->stream);
    pthread_mutex_unlock(&g->lock);
}

static enum pd_err submit(struct gen *g, int i, int64_t version, struct pd_why *why)
{
    struct choice *c = &g->choices[i];
    const struct api_prompt *p = &g->c.prompt[i / g->c.n];
    struct wire_tensor prompt = {.name = "prompt", .rank = 1, .shape = {(int64_t)p->count}};
    struct sup_infer request;
    struct pd_buf params;
    uint64_t id;
    enum pd_err err;

    strcpy(prompt.dtype, p->tokens ? "INT32" : "UINT8");
    prompt.data = g->c.prompt_bytes.data ? g->c.prompt_bytes.data + p->offset : "";
    prompt.bytes = p->tokens ? 4 * p->count : p->count;
    pd_buf_init(&params, 0);
    api_completion_params(&g->c, i, &params);
    err = pd_buf_err(&params);
    if (err == PD_OK) {
        request = (struct sup_infer){
            .model = g->model,
            .version = version,
            .kind = "complete",
            .deadline_us = api_settings_get(g->api)->infer_timeout_us,
            .json = params.data,
            .json_len = params.len,
            .tensors = &prompt,
            .count = 1,
            .part = gen_part,
            .ctx = c,
        };
        atomic_fetch_add(&g->refs, 1); /* the choice's, dropped with its last part */
        err = sup_infer(api_deps_of(g->api)->sup, &request, &id, why);
        if (err != PD_OK)
            atomic_fetch_sub(&g->refs, 1);
    }
    pd_buf_done(&params);
    pthread_mutex_lock(&g->lock);
    if (err == PD_OK) {
        c->id = id;
    } else {
        c->ended = true;
        g->open--;
    }
    pthread_mutex_unlock(&g->lock);
    return err;
}

/* Takes `c` over. */
static void gen_start(struct api_req *r, struct api_completion *c, const char *model, int64_t version,
                      bool openai)
{
    int count = c->prompts * c->n;
    struct gen *g;
    struct api_wait *wait;
    struct pd_why why = {.text = ""};
    uint8_t random[12];
    enum pd_err err = PD_OK;

    if (!api_infer_allowed(r, count)) {
        api_completion_done(c);
        return;
    }
    g = calloc(1, sizeof *g);
    if (g)
        g->choices = calloc((size_t)count, sizeof *g->choices);
    if (!g || !g->choices || digest_random(random, sizeof random, &why) != PD_OK) {
        if (g)
            free(g->choices);
        free(g);
        for (int i = 0; i < count; i++)
            api_core_infer_leave(api_core_of(api_of(r)));
        api_completion_done(c);
        api_fail(r, PD_ERR_NOMEM, "no memory for the request");
        return;
    }
    if (!c->seeded)
        memcpy(&c->seed, random, sizeof c->seed);
    g->api = api_of(r);
    g->c = *c; /* moved */
    g->openai = openai;
    g->count = g->open = count;
    g->version = version;
    g->created_s = pd_clock_wall_us() / 1000000;
    snprintf(g->model, sizeof g->model, "%s", model);
    strcpy(g->id, "cmpl-");
    digest_hex(random, sizeof random, g->id + 5);
    pthread_mutex_init(&g->lock, NULL);
    pd_buf_init(&g->out, 0);
    for (int i = 0; i < count; i++) {
        g->choices[i].gen = g;
        pd_buf_init(&g->choices[i].text, 0);
        pd_buf_init(&g->choices[i].tokens, 0);
        pd_buf_init(&g->choices[i].values, 0);
        pd_buf_init(&g->choices[i].tops, 0);
        pd_buf_init(&g->choices[i].offsets, 0);
    }
    atomic_init(&g->refs, 1); /* the wait's */
    wait = api_wait_begin(r, sizeof(struct gen_wait), gen_wait_done, gen_answer);
    if (!wait) {
        gen_unref(g);
        return;
    }
    ((struct gen_wait *)api_wait_data(wait))->gen = g; /* moved */
    g->for_end = !g->c.stream;
    /* Nobody is told before all are on their way: g->wait is set at the end. */
    for (int i = 0; i < count && err == PD_OK; i++)
        err = submit(g, i, version, &why);
    pthread_mutex_lock(&g->lock);
    if (err != PD_OK && g->err == PD_OK) {
        g->err = err;
        g->why = why;
    }
    /* What has come meanwhile may already be what is waited for. */
    for (int i = 0; !g->for_end && i < count; i++)
        if (g->choices[i].text.len || g->choices[i].ended)
            err = PD_ERR_EXISTS;
    if (g->err != PD_OK || g->open == 0 || err != PD_OK) {
        pthread_mutex_unlock(&g->lock);
        api_wait_end(wait);
        return;
    }
    g->wait = wait;
    pthread_mutex_unlock(&g->lock);
    api_wait_watch(wait, gen_gone);
}

static int64_t openai_model(struct api_req *r, const char *text, char name[API_MODEL_MAX + 1])
{
    const char *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    int64_t n = 0;

    if (len < 1 || len > API_MODEL_MAX) {
        api_fail_param(r, PD_ERR_NOT_FOUND, "model", "there is no model '%.200s'", text);
        return -1;
    }
    memcpy(name, text, len);
    name[len] = '\0';
    if (colon && !api_parse_id(colon + 1, &n)) {
        n = api_model_version(r, name, colon + 1);
        if (!n)
            return -1;
    }
    return n;
}

void api_openai_completions(struct api_req *r)
{
    json_t *root = api_body_json(r, 0);
    struct api_completion c;
    struct pd_why why = {.text = ""};
    char param[64], model[API_MODEL_MAX + 1];
    int64_t version;
    enum pd_err err;

    if (!root)
        return;
    err = api_completion_parse(root, &c, param, &why);
    json_decref(root);
    if (err != PD_OK) {
        if (param[0])
            api_fail_param(r, (int)err, param, "%s", why.text[0] ? why.text : pd_err_name(err));
        else
            api_fail_why(r, err, &why);
        return;
    }
    version = openai_model(r, c.model, model);
    if (version < 0)
        api_completion_done(&c);
    else
        gen_start(r, &c, model, version, true);
}

void api_openai_chat(struct api_req *r)
{
    api_fail(r, API_FAULT_NOT_IMPLEMENTED,
             "these models continue a text and have no chat template: use POST /v1/completions");
}

static void generate(struct api_req *r, bool named, bool stream)
{
    json_t *root = api_body_json(r, 0);
    struct api_completion c;
    struct pd_why why = {.text = ""};
    char param[64];
    int64_t version = 0;
    enum pd_err err;

    if (!root)
        return;
    err = api_generate_parse(root, &c, param, &why);
    json_decref(root);
    if (err != PD_OK) {
        api_fail_why(r, err, &why);
        return;
    }
    c.stream = stream;
    if (named && !api_parse_id(api_param(r, 1), &version)) {
        version = api_model_version(r, api_param(r, 0), api_param(r, 1));
        if (!version) {
            api_completion_done(&c);
            return;
        }
    }
    gen_start(r, &c, api_param(r, 0), version, false);
}

void api_oip_generate(struct api_req *r)
{
    generate(r, false, false);
}

void api_oip_generate_version(struct api_req *r)
{
    generate(r, true, false);
}

void api_oip_generate_stream(struct api_req *r)
{
    generate(r, false, true);
}

void api_oip_generate_stream_version(struct api_req *r)
{
    generate(r, true, true);
}

/* ---- /v1/models ------------------------------------------------------------------------------- */

struct ready_names {
    struct pd_buf names; /* "name\0name\0" */
};

static void ready_row(void *ctx, const struct sup_model_info *m)
{
    struct ready_names *l = ctx;
    json_t *signature;
    const char *kind;

    if (m->state != SUP_MODEL_READY)
        return;
    signature = json_loads(m->signature, 0, NULL);
    kind = json_string_value(json_object_get(signature, "kind"));
    if (kind && strcmp(kind, "language") == 0) {
        bool seen = false;

        for (size_t at = 0; at < l->names.len; at += strlen(l->names.data + at) + 1)
            seen = seen || strcmp(l->names.data + at, m->model) == 0;
        if (!seen)
            pd_buf_append(&l->names, m->model, strlen(m->model) + 1);
    }
    json_decref(signature);
}

static bool created_row(void *ctx, const struct store_model *m)
{
    *(int64_t *)ctx = m->created_us;
    return false;
}

static void write_model(struct pd_buf *b, struct store *store, const char *name)
{
    int64_t created = 0;

    if (store_model_get(store, name, created_row, &created, NULL) != PD_OK)
        created = 0;
    api_json_open(b, '{');
    api_json_kv_str(b, "id", name);
    api_json_kv_str(b, "object", "model");
    api_json_kv_int(b, "created", created / 1000000);
    api_json_kv_str(b, "owned_by", "polyd");
    api_json_close(b, '}');
}

void api_openai_models(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct ready_names l;
    struct pd_buf b;

    if (!store)
        return;
    pd_buf_init(&l.names, 0);
    sup_model_list(api_deps_of(api_of(r))->sup, ready_row, &l);
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "object", "list");
    api_json_key(&b, "data");
    api_json_open(&b, '[');
    for (size_t at = 0; at < l.names.len; at += strlen(l.names.data + at) + 1)
        write_model(&b, store, l.names.data + at);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    pd_buf_done(&l.names);
    api_reply_json(r, 200, &b);
}

void api_openai_model(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct ready_names l;
    struct pd_buf b;
    bool found = false;

    if (!store)
        return;
    pd_buf_init(&l.names, 0);
    sup_model_list(api_deps_of(api_of(r))->sup, ready_row, &l);
    for (size_t at = 0; at < l.names.len; at += strlen(l.names.data + at) + 1)
        found = found || strcmp(l.names.data + at, api_param(r, 0)) == 0;
    pd_buf_done(&l.names);
    if (!found) {
        api_fail_param(r, PD_ERR_NOT_FOUND, "model", "no language model '%.128s' is ready", api_param(r, 0));
        return;
    }
    pd_buf_init(&b, 0);
    write_model(&b, store, api_param(r, 0));
    api_reply_json(r, 200, &b);
}
