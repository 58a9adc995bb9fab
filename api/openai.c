/* OpenAI's list of models, and what is not offered. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/server.h"

void api_openai_chat(struct api_req *r)
{
    api_fail(r, API_FAULT_NOT_IMPLEMENTED,
             "these models continue a text and have no chat template: use POST /v1/completions");
}

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
