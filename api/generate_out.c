/* What is sent of a completion: one object, or events. */
#include <stdlib.h>
#include <string.h>

#include "api/generate.h"
#include "api/json.h"

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
                    api_json_key(&g->out, "choices");
                    api_json_open(&g->out, '[');
                    api_json_close(&g->out, ']');
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
    api_gen_cancel(g);
    api_gen_unref(g);
}

static void gen_stream_gone(void *state)
{
    atomic_store(&((struct gen *)state)->gone, true);
}

const struct api_stream_ops api_gen_stream_ops = {
    .read = gen_read, .done = gen_stream_done, .gone = gen_stream_gone, .comments = true};

void api_gen_answer_whole(struct api_req *r, struct gen *g)
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
