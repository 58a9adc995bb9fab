/* POST /tokenize and /detokenize: vLLM's form. The worker that serves the model answers, with the tokenizer
 * that its completions use. */
#include <stdlib.h>
#include <string.h>

#include "api/completion.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"

#define TOKENS_MAX (1 << 20)             /* ids of one request: as many as a text of /tokenize can have */
#define LARGE_ANSWER ((size_t)64 * 1024) /* bytes of tensors: written by a thread that may take long */

struct tokens {
    struct api *api;
    struct api_wait *wait;
    _Atomic uint64_t id; /* 0 = not sent */
    bool entered, back, strings;
    enum pd_err err;
    struct pd_why why;
    int64_t positions;
    struct pd_buf ids, lengths, text; /* as the worker sent them */
};

static void tokens_done(void *data)
{
    struct tokens *t = data;

    if (t->entered)
        api_core_infer_leave(api_core_of(t->api));
    pd_buf_done(&t->ids);
    pd_buf_done(&t->lengths);
    pd_buf_done(&t->text);
}

/* Supervisor's thread: the tensors are borrowed. */
static void tokens_part(void *ctx, const struct sup_result *part)
{
    struct tokens *t = ctx;
    const struct {
        const char *name;
        struct pd_buf *to;
    } known[] = {{"tokens", &t->ids}, {"lengths", &t->lengths}, {"text", &t->text}};
    json_t *facts;

    if (part->err != PD_OK)
        t->err = pd_fail(&t->why, part->err, "%s", part->text ? part->text : pd_err_name(part->err));
    for (uint32_t i = 0; part->err == PD_OK && i < part->count; i++)
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            if (!strcmp(part->tensors[i].name, known[k].name)) {
                pd_buf_append(known[k].to, part->tensors[i].data, part->tensors[i].bytes);
                if (known[k].to->failed)
                    t->err = pd_fail(&t->why, PD_ERR_NOMEM, "no memory for the answer");
            }
    if (part->err == PD_OK && part->json_len) {
        facts = json_loadb(part->json, part->json_len, 0, NULL);
        t->positions = json_integer_value(json_object_get(facts, "positions"));
        json_decref(facts);
    }
    if (part->last || part->err != PD_OK)
        api_wait_end(t->wait);
}

static void tokens_gone(void *data)
{
    struct tokens *t = data;
    uint64_t id = atomic_load(&t->id);

    if (id)
        sup_infer_cancel(api_deps_of(t->api)->sup, id);
}

static void write_strings(struct pd_buf *b, const struct tokens *t)
{
    size_t at = 0;

    api_json_key(b, "token_strs");
    api_json_open(b, '[');
    for (size_t i = 0; i < t->lengths.len / sizeof(int32_t); i++) {
        int32_t len;

        memcpy(&len, t->lengths.data + i * sizeof len, sizeof len);
        if (len < 0 || (size_t)len > t->text.len - at)
            break;
        api_token_text(b, t->text.data ? t->text.data + at : "", (size_t)len);
        at += (size_t)len;
    }
    api_json_close(b, ']');
}

static void tokens_write(struct api_req *r)
{
    const struct tokens *t = api_waited(r);
    size_t count = t->ids.len / sizeof(int32_t);
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    if (t->back) {
        api_json_key(&b, "prompt");
        api_json_strn(&b, t->text.data ? t->text.data : "", t->text.len);
    } else {
        api_json_kv_int(&b, "count", (int64_t)count);
        api_json_kv_int(&b, "max_model_len", t->positions);
        api_json_key(&b, "tokens");
        api_json_open(&b, '[');
        for (size_t i = 0; i < count; i++) {
            int32_t id;

            memcpy(&id, t->ids.data + i * sizeof id, sizeof id);
            api_json_int(&b, id);
        }
        api_json_close(&b, ']');
        if (t->strings)
            write_strings(&b, t);
        else
            api_json_kv_null(&b, "token_strs");
    }
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

static void tokens_answer(struct api_req *r)
{
    const struct tokens *t = api_waited(r);

    if (t->err == PD_ERR_INVALID && t->back)
        api_fail_param(r, PD_ERR_INVALID, "tokens", "%s", t->why.text);
    else if (t->err == PD_ERR_INVALID)
        api_fail_param(r, PD_ERR_INVALID, "prompt", "prompt: %s", t->why.text);
    else if (t->err != PD_OK)
        api_fail_infer(r, t->err, &t->why);
    else if (t->ids.len + t->lengths.len + t->text.len > LARGE_ANSWER)
        (void)api_pool_give(r, true, tokens_write);
    else
        tokens_write(r);
}

/* Sends `tensor` to the model that `model` names. The tensor is copied. */
static void tokens_ask(struct api_req *r, const char *model, const struct wire_tensor *tensor, bool back,
                       bool strings)
{
    char name[API_MODEL_MAX + 1];
    int64_t version = api_model_of_text(r, model, name);
    struct pd_why why = {.text = ""};
    struct sup_infer request;
    struct api_wait *wait;
    struct tokens *t;
    uint64_t id;
    enum pd_err err;

    if (version < 0 || !api_infer_allowed(r, 1))
        return;
    wait = api_wait_begin(r, sizeof *t, tokens_done, tokens_answer);
    if (!wait) {
        api_core_infer_leave(api_core_of(api_of(r)));
        return;
    }
    t = api_wait_data(wait);
    t->api = api_of(r);
    t->wait = wait;
    t->entered = true;
    t->back = back;
    t->strings = strings;
    pd_buf_init(&t->ids, 0);
    pd_buf_init(&t->lengths, 0);
    pd_buf_init(&t->text, 0);
    request = (struct sup_infer){
        .model = name,
        .version = version,
        .kind = back ? "detokenize" : "tokenize",
        .deadline_us = api_settings_of(r)->infer_timeout_us,
        .json = "{}",
        .json_len = 2,
        .tensors = tensor,
        .count = 1,
        .part = tokens_part,
        .ctx = t,
    };
    err = sup_infer(api_deps_of(api_of(r))->sup, &request, &id, &why);
    if (err != PD_OK) {
        t->err = pd_fail(&t->why, err, "%s", why.text);
        api_wait_end(wait);
        return;
    }
    atomic_store(&t->id, id);
    api_wait_watch(wait, tokens_gone);
}

/* ---- the bodies ------------------------------------------------------------------------------- */

static bool flag(struct api_req *r, const char *key, const json_t *value, bool *ret)
{
    if (json_is_boolean(value) || json_is_null(value))
        *ret = json_is_true(value);
    else
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be true or false", key);
    return !api_failed(r);
}

/* The member `model`; NULL: the request has been failed. */
static const char *model_in(struct api_req *r, json_t *body)
{
    const char *model = json_string_value(json_object_get(body, "model"));

    if (!model)
        api_fail_param(r, PD_ERR_INVALID, "model", "model must be the name of a served language model");
    return model;
}

static const json_t *text_in(struct api_req *r, json_t *body)
{
    const json_t *prompt = json_object_get(body, "prompt"), *content = json_object_get(body, "content");

    if (prompt && content)
        api_fail_param(r, PD_ERR_INVALID, "content", "content is another name of prompt: give one of them");
    else if (content && !json_is_string(content))
        api_fail_param(r, PD_ERR_INVALID, "content", "content must be a text");
    else if (!content && !json_is_string(prompt))
        api_fail_param(r, PD_ERR_INVALID, "prompt", "prompt must be a text");
    return content ? content : prompt;
}

void api_tokenize(struct api_req *r)
{
    struct wire_tensor text = {.name = "text", .dtype = "UINT8", .rank = 1};
    bool strings = false, special = true;
    const char *key, *model;
    const json_t *prompt;
    json_t *body = api_body_json(r, 0), *value;

    if (!body)
        return;
    json_object_foreach(body, key, value)
    {
        if (api_failed(r))
            break;
        if (!strcmp(key, "return_token_strs"))
            flag(r, key, value, &strings);
        else if (!strcmp(key, "add_special_tokens"))
            flag(r, key, value, &special); /* these tokenizers add none to a text */
        else if (!strcmp(key, "messages"))
            api_fail_param(r, PD_ERR_UNSUPPORTED, key,
                           "messages needs a chat template, which these models have not: use prompt");
        else if (strcmp(key, "model") != 0 && strcmp(key, "prompt") != 0 && strcmp(key, "content") != 0)
            api_fail_param(r, PD_ERR_INVALID, key,
                           "unknown member '%.100s'; model, prompt (or content), add_special_tokens and "
                           "return_token_strs are known",
                           key);
    }
    model = api_failed(r) ? NULL : model_in(r, body);
    prompt = model ? text_in(r, body) : NULL;
    if (!api_failed(r)) {
        text.data = json_string_value(prompt);
        text.bytes = json_string_length(prompt);
        text.shape[0] = (int64_t)text.bytes;
        tokens_ask(r, model, &text, false, strings);
    }
    json_decref(body);
}

static void read_ids(struct api_req *r, const json_t *list, struct pd_buf *ids)
{
    if (!json_is_array(list) || json_array_size(list) > TOKENS_MAX) {
        api_fail_param(r, PD_ERR_INVALID, "tokens", "tokens must be an array of at most %d token ids",
                       TOKENS_MAX);
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        int32_t id = (int32_t)json_integer_value(item);

        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX) {
            api_fail_param(r, PD_ERR_INVALID, "tokens",
                           "tokens[%zu] is not a token id: ids are integers from 0", i);
            return;
        }
        pd_buf_append(ids, &id, sizeof id);
    }
    if (ids->failed)
        api_fail(r, PD_ERR_NOMEM, "no memory for the tokens");
}

void api_detokenize(struct api_req *r)
{
    struct wire_tensor tokens = {.name = "tokens", .dtype = "INT32", .rank = 1};
    json_t *body = api_body_json(r, 0), *value;
    const char *key, *model;
    struct pd_buf ids;

    if (!body)
        return;
    pd_buf_init(&ids, 0);
    json_object_foreach(body, key,
                        value) if (!api_failed(r) && strcmp(key, "model") != 0 && strcmp(key, "tokens") != 0)
        api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'; model and tokens are known", key);
    model = api_failed(r) ? NULL : model_in(r, body);
    if (model)
        read_ids(r, json_object_get(body, "tokens"), &ids);
    if (!api_failed(r)) {
        tokens.data = ids.data ? ids.data : "";
        tokens.bytes = ids.len;
        tokens.shape[0] = (int64_t)(ids.len / sizeof(int32_t));
        tokens_ask(r, model, &tokens, true, false);
    }
    pd_buf_done(&ids);
    json_decref(body);
}
