#include "api/completion.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"

enum member {
    M_MODEL,
    M_PROMPT,
    M_MAX_TOKENS,
    M_TEMPERATURE,
    M_TOP_P,
    M_N,
    M_STREAM,
    M_STREAM_OPTIONS,
    M_LOGPROBS,
    M_ECHO,
    M_STOP,
    M_TOP_K,
    M_MIN_P,
    M_REPETITION,
    M_PRESENCE,
    M_FREQUENCY,
    M_BEST_OF,
    M_LOGIT_BIAS,
    M_SEED,
    M_USER,
    M_SUFFIX,
    M_COUNT
};

static const char *const member_names[M_COUNT] = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "echo",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "best_of",
    "logit_bias",
    "seed",
    "user",
    "suffix",
};

/* What of these /generate takes as parameters. */
static const bool generate_takes[M_COUNT] = {
    [M_MAX_TOKENS] = true, [M_TEMPERATURE] = true, [M_TOP_P] = true, [M_STOP] = true,
    [M_PRESENCE] = true,   [M_FREQUENCY] = true,   [M_TOP_K] = true, [M_MIN_P] = true,
    [M_REPETITION] = true, [M_LOGIT_BIAS] = true,  [M_SEED] = true,  [M_ECHO] = true,
};

static enum pd_err number_in(struct api_completion *c, const char *name, json_t *value, double low,
                             double high, bool open_low, struct pd_why *why)
{
    double x = json_number_value(value);

    if (!json_is_number(value) || !(open_low ? x > low : x >= low) || !(x <= high))
        return pd_fail(why, PD_ERR_INVALID, "%s must be a number %s %g and at most %g", name,
                       open_low ? "above" : "from", low, high);
    api_json_kv_num(&c->params, name, x);
    return PD_OK;
}

static enum pd_err integer_in(const char *name, json_t *value, int64_t low, int64_t high, int64_t *ret,
                              struct pd_why *why)
{
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
        return pd_fail(why, PD_ERR_INVALID, "%s must be an integer from %lld to %lld", name, (long long)low,
                       (long long)high);
    *ret = json_integer_value(value);
    return PD_OK;
}

static enum pd_err flag(const char *name, json_t *value, bool *ret, struct pd_why *why)
{
    if (!json_is_boolean(value))
        return pd_fail(why, PD_ERR_INVALID, "%s must be true or false", name);
    *ret = json_is_true(value);
    return PD_OK;
}

static enum pd_err read_stop(struct api_completion *c, json_t *value, struct pd_why *why)
{
    size_t count = json_is_array(value) ? json_array_size(value) : 1;

    if (count > 4 || !(json_is_array(value) || json_is_string(value)))
        return pd_fail(why, PD_ERR_INVALID, "stop must be a text or an array of at most 4");
    if (count == 0)
        return PD_OK;
    api_json_key(&c->params, "stop");
    api_json_open(&c->params, '[');
    for (size_t i = 0; i < count; i++) {
        json_t *item = json_is_array(value) ? json_array_get(value, i) : value;

        if (!json_is_string(item) || json_string_length(item) < 1 || json_string_length(item) > 256)
            return pd_fail(why, PD_ERR_INVALID, "each stop must be a text of 1 to 256 bytes");
        api_json_strn(&c->params, json_string_value(item), json_string_length(item));
    }
    api_json_close(&c->params, ']');
    return PD_OK;
}

static enum pd_err read_bias(struct api_completion *c, json_t *value, struct pd_why *why)
{
    const char *key;
    json_t *item;

    if (!json_is_object(value) || json_object_size(value) > 300)
        return pd_fail(why, PD_ERR_INVALID, "logit_bias must be an object of at most 300 members");
    if (json_object_size(value) == 0)
        return PD_OK;
    api_json_key(&c->params, "logit_bias");
    api_json_open(&c->params, '{');
    json_object_foreach(value, key, item)
    {
        int64_t token;

        if (!api_parse_int(key, 0, INT32_MAX, &token) || !json_is_number(item) ||
            fabs(json_number_value(item)) > 100)
            return pd_fail(why, PD_ERR_INVALID, "logit_bias maps token ids to numbers from -100 to 100");
        api_json_kv_num(&c->params, key, json_number_value(item));
    }
    api_json_close(&c->params, '}');
    return PD_OK;
}

static enum pd_err add_prompt(struct api_completion *c, json_t *value, struct pd_why *why)
{
    struct api_prompt *p;

    if (c->prompts == API_COMPLETION_CHOICES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "prompt has more than %d texts", API_COMPLETION_CHOICES_MAX);
    p = &c->prompt[c->prompts++];
    p->offset = c->prompt_bytes.len;
    if (json_is_string(value)) {
        p->count = json_string_length(value);
        pd_buf_append(&c->prompt_bytes, json_string_value(value), p->count);
        while (c->prompt_bytes.len % 4) /* token ids may follow */
            pd_buf_append(&c->prompt_bytes, "", 1);
        return PD_OK;
    }
    p->tokens = true;
    p->count = json_array_size(value);
    if (!json_is_array(value) || p->count == 0 || p->count > API_COMPLETION_TOKENS_MAX)
        return pd_fail(why, PD_ERR_INVALID, "a prompt is a text or an array of 1 to %d token ids",
                       API_COMPLETION_TOKENS_MAX);
    for (size_t i = 0; i < p->count; i++) {
        json_t *item = json_array_get(value, i);
        int32_t id;

        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX)
            return pd_fail(why, PD_ERR_INVALID, "a prompt's token ids are integers from 0");
        id = (int32_t)json_integer_value(item);
        pd_buf_append(&c->prompt_bytes, &id, sizeof id);
    }
    return PD_OK;
}

static enum pd_err read_prompt(struct api_completion *c, json_t *value, struct pd_why *why)
{
    json_t *first = json_array_get(value, 0);
    enum pd_err err = PD_OK;

    if (json_is_string(value))
        return add_prompt(c, value, why);
    if (!json_is_array(value) || !(json_is_string(first) || json_is_array(first) || json_is_number(first)))
        return pd_fail(why, PD_ERR_INVALID,
                       "prompt must be a text, texts, token ids, or arrays of token ids");
    if (json_is_number(first))
        return add_prompt(c, value, why);
    for (size_t i = 0; i < json_array_size(value) && err == PD_OK; i++) {
        json_t *item = json_array_get(value, i);

        if (json_typeof(item) != json_typeof(first) || !(json_is_string(item) || json_is_array(item)))
            return pd_fail(why, PD_ERR_INVALID, "prompt mixes texts and token ids");
        err = add_prompt(c, item, why);
    }
    return err;
}

static enum pd_err read_member(struct api_completion *c, enum member m, json_t *value, struct pd_why *why)
{
    const char *name = member_names[m], *key;
    int64_t integer = 0;
    json_t *item;
    enum pd_err err = PD_OK;

    switch (m) {
    case M_MODEL:
        if (!json_is_string(value) || json_string_length(value) < 1 || json_string_length(value) > 300)
            return pd_fail(why, PD_ERR_INVALID, "model must be a model's name");
        c->model = strdup(json_string_value(value));
        return c->model ? PD_OK : PD_ERR_NOMEM;
    case M_PROMPT:
        return read_prompt(c, value, why);
    case M_MAX_TOKENS:
        err = integer_in(name, value, 0, API_COMPLETION_TOKENS_MAX, &integer, why);
        if (err == PD_OK)
            api_json_kv_int(&c->params, name, integer);
        return err;
    case M_TEMPERATURE:
        return number_in(c, name, value, 0, 2, false, why);
    case M_TOP_P:
        return number_in(c, name, value, 0, 1, true, why);
    case M_TOP_K:
        err = integer_in(name, value, 0, 1000000, &integer, why);
        if (err == PD_OK)
            api_json_kv_int(&c->params, name, integer);
        return err;
    case M_MIN_P:
        return number_in(c, name, value, 0, 1, false, why);
    case M_REPETITION:
        return number_in(c, name, value, 0.1, 10, false, why);
    case M_PRESENCE:
    case M_FREQUENCY:
        return number_in(c, name, value, -2, 2, false, why);
    case M_N:
        err = integer_in(name, value, 1, API_COMPLETION_N_MAX, &integer, why);
        if (err == PD_OK)
            c->n = (int)integer;
        return err;
    case M_STREAM:
        return flag(name, value, &c->stream, why);
    case M_STREAM_OPTIONS:
        if (!json_is_object(value))
            return pd_fail(why, PD_ERR_INVALID, "stream_options must be an object");
        json_object_foreach(value, key, item)
        {
            if (strcmp(key, "include_usage") != 0)
                return pd_fail(why, PD_ERR_INVALID, "stream_options has include_usage only");
            err = flag(key, item, &c->include_usage, why);
            if (err != PD_OK)
                return err;
        }
        return PD_OK;
    case M_LOGPROBS:
        err = integer_in(name, value, 0, 5, &integer, why);
        if (err == PD_OK) {
            c->logprobs = (int)integer;
            api_json_kv_int(&c->params, name, integer);
        }
        return err;
    case M_ECHO:
        err = flag(name, value, &c->echo, why);
        if (err == PD_OK)
            api_json_kv_bool(&c->params, name, c->echo);
        return err;
    case M_STOP:
        return read_stop(c, value, why);
    case M_LOGIT_BIAS:
        return read_bias(c, value, why);
    case M_SEED:
        if (!json_is_integer(value))
            return pd_fail(why, PD_ERR_INVALID, "seed must be an integer");
        c->seed = (uint64_t)json_integer_value(value);
        c->seeded = true;
        return PD_OK;
    case M_USER:
        return json_is_string(value) ? PD_OK : pd_fail(why, PD_ERR_INVALID, "user must be a text");
    case M_BEST_OF:
        return PD_OK; /* compared with n at the end */
    case M_SUFFIX:
        return pd_fail(why, PD_ERR_UNSUPPORTED, "suffix is not available: these models only continue a text");
    case M_COUNT:
        break;
    }
    return PD_ERR_INTERNAL;
}

static void begin(struct api_completion *c)
{
    memset(c, 0, sizeof *c);
    c->n = 1;
    c->logprobs = -1;
    pd_buf_init(&c->prompt_bytes, 0);
    pd_buf_init(&c->params, 0);
    pd_buf_init(&c->warnings, 0);
    api_json_open(&c->params, '{');
}

static enum member member_find(const char *key)
{
    int m = 0;

    while (m < M_COUNT && strcmp(member_names[m], key) != 0)
        m++;
    return (enum member)m;
}

static enum pd_err memory(const struct api_completion *c, struct pd_why *why)
{
    if (pd_buf_err(&c->params) != PD_OK || pd_buf_err(&c->prompt_bytes) != PD_OK ||
        pd_buf_err(&c->warnings) != PD_OK)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the request");
    return PD_OK;
}

enum pd_err api_completion_parse(json_t *root, struct api_completion *ret, char param[64], struct pd_why *why)
{
    struct api_completion c;
    const char *key;
    json_t *value, *best_of = json_object_get(root, "best_of");
    enum pd_err err = PD_OK;

    param[0] = '\0';
    begin(&c);
    json_object_foreach(root, key, value)
    {
        enum member m = member_find(key);

        snprintf(param, 64, "%s", key);
        if (m == M_COUNT) {
            char text[160];

            snprintf(text, sizeof text, "unknown member '%.100s' was ignored", key);
            if (c.warnings.len == 0)
                api_json_open(&c.warnings, '[');
            api_json_str(&c.warnings, text);
        } else if (!json_is_null(value)) { /* null is OpenAI's way of saying "default" */
            err = read_member(&c, m, value, why);
            if (err != PD_OK)
                goto out;
        }
    }
    if (c.warnings.len)
        api_json_close(&c.warnings, ']');
    if (!c.model || !c.prompts) {
        snprintf(param, 64, "%s", c.model ? "prompt" : "model");
        err = pd_fail(why, PD_ERR_INVALID, "%s is required", param);
        goto out;
    }
    if (best_of && !json_is_null(best_of) &&
        (!json_is_integer(best_of) || json_integer_value(best_of) != c.n)) {
        snprintf(param, 64, "best_of");
        err = pd_fail(why, PD_ERR_UNSUPPORTED,
                      "best_of must be equal to n: choosing among more is not available");
        goto out;
    }
    if (c.prompts * c.n > API_COMPLETION_CHOICES_MAX) {
        snprintf(param, 64, "n");
        err = pd_fail(why, PD_ERR_LIMIT, "prompts times n are at most %d", API_COMPLETION_CHOICES_MAX);
        goto out;
    }
    if (c.include_usage && !c.stream) {
        snprintf(param, 64, "stream_options");
        err = pd_fail(why, PD_ERR_INVALID, "stream_options needs stream: true");
        goto out;
    }
    param[0] = '\0';
    err = memory(&c, why);
out:
    if (err == PD_OK)
        *ret = c;
    else
        api_completion_done(&c);
    return err;
}

enum pd_err api_generate_parse(json_t *root, struct api_completion *ret, char param[64], struct pd_why *why)
{
    struct api_completion c;
    json_t *objects[2] = {root, json_object_get(root, "parameters")};
    const char *key;
    json_t *value;
    enum pd_err err = PD_OK;

    param[0] = '\0';
    begin(&c);
    if (objects[1] && !json_is_object(objects[1])) {
        snprintf(param, 64, "parameters");
        err = pd_fail(why, PD_ERR_INVALID, "parameters must be an object");
        goto out;
    }
    for (int i = 0; i < 2; i++) {
        json_object_foreach(objects[i], key, value)
        {
            enum member m = member_find(key);

            snprintf(param, 64, "%s", key);
            if (i == 0 && strcmp(key, "parameters") == 0)
                continue;
            if (i == 0 && strcmp(key, "text_input") == 0) {
                err = json_is_string(value) ? add_prompt(&c, value, why)
                                            : pd_fail(why, PD_ERR_INVALID, "text_input must be a text");
            } else if (i == 0 && strcmp(key, "id") == 0) {
                if (!json_is_string(value) || json_string_length(value) > 256)
                    err = pd_fail(why, PD_ERR_INVALID, "id must be a text of at most 256 bytes");
                else
                    c.id = strdup(json_string_value(value));
            } else if (m == M_COUNT || !generate_takes[m]) {
                err = pd_fail(why, PD_ERR_INVALID, "unknown parameter '%.100s'", key);
            } else if (i == 1 && json_object_get(root, key)) {
                err = pd_fail(why, PD_ERR_INVALID, "parameter '%s' is given twice", key);
            } else if (!json_is_null(value)) {
                err = read_member(&c, m, value, why);
            }
            if (err != PD_OK)
                goto out;
        }
    }
    if (!c.prompts) {
        snprintf(param, 64, "text_input");
        err = pd_fail(why, PD_ERR_INVALID, "text_input is required");
        goto out;
    }
    err = memory(&c, why);
out:
    if (err == PD_OK)
        *ret = c;
    else
        api_completion_done(&c);
    return err;
}

void api_completion_done(struct api_completion *c)
{
    free(c->model);
    free(c->id);
    c->model = c->id = NULL;
    pd_buf_done(&c->prompt_bytes);
    pd_buf_done(&c->params);
    pd_buf_done(&c->warnings);
}

void api_completion_params(const struct api_completion *c, int choice, struct pd_buf *out)
{
    /* Choices of one prompt differ by their seeds; those of different prompts need not. */
    uint64_t seed = (c->seed + (uint64_t)(choice % c->n)) & (UINT64_MAX >> 11);

    pd_buf_append(out, c->params.data, c->params.len);
    api_json_kv_int(out, "seed", (int64_t)seed);
    api_json_kv_bool(out, "stream", c->stream);
    api_json_close(out, '}');
}

void api_token_text(struct pd_buf *out, const char *bytes, size_t len)
{
    struct pd_buf b;

    if (api_utf8_valid(bytes, len)) {
        api_json_strn(out, bytes, len);
        return;
    }
    pd_buf_init(&b, 0);
    pd_buf_str(&b, "bytes:");
    for (size_t i = 0; i < len; i++)
        pd_buf_printf(&b, "\\x%02x", (unsigned char)bytes[i]);
    api_json_strn(out, b.data ? b.data : "", b.len);
    pd_buf_done(&b);
}
