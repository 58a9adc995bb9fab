/* Completions: /v1/completions, and /generate of the Open Inference Protocol. */
#include <stdlib.h>
#include <string.h>

#include "api/generate.h"
#include "api/handlers.h"
#include "api/json.h"
#include "daemon/digest/digest.h"
#include "kernels/base/clock.h"

void api_gen_unref(struct gen *g)
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

void api_gen_cancel(struct gen *g)
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

struct gen_wait {
    struct gen *gen; /* holds a reference */
};

static void gen_wait_done(void *data)
{
    struct gen_wait *w = data;

    if (w->gen)
        api_gen_unref(w->gen);
}

static void gen_gone(void *data)
{
    api_gen_cancel(((struct gen_wait *)data)->gen);
}

static void gen_answer(struct api_req *r)
{
    struct gen *g = ((struct gen_wait *)api_waited(r))->gen;
    struct api_stream *stream = NULL;
    enum pd_err err;
    struct pd_why why;

    pthread_mutex_lock(&g->lock);
    err = g->err;
    why = g->why;
    pthread_mutex_unlock(&g->lock);
    if (err != PD_OK) {
        api_gen_cancel(g);
        api_fail_infer(r, err, &why);
        return;
    }
    if (!g->c.stream) {
        api_gen_answer_whole(r, g);
        return;
    }
    api_reply_header(r, "X-Accel-Buffering", "no");
    api_reply_header(r, "Cache-Control", "no-cache");
    atomic_fetch_add(&g->refs, 1); /* the stream's */
    /* Without the lock, which the stream's `done` takes if it cannot be made. */
    api_reply_stream(r, 200, "text/event-stream", &api_gen_stream_ops, g, &stream);
    /* Parts that arrive from here on wake the stream; those before are found by its first read. */
    pthread_mutex_lock(&g->lock);
    g->stream = stream;
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
            .part = api_gen_part,
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
        api_gen_unref(g);
        return;
    }
    ((struct gen_wait *)api_wait_data(wait))->gen = g; /* moved */
    g->for_end = !g->c.stream;
    /* Completions are not reported before all requests are sent: g->wait is set at the end. */
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

int64_t api_model_of_text(struct api_req *r, const char *text, char name[API_MODEL_MAX + 1])
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
    version = api_model_of_text(r, c.model, model);
    if (version < 0)
        api_completion_done(&c);
    else
        gen_start(r, &c, model, version, true);
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
