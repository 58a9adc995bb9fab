/* The Open Inference Protocol's handlers. */
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"
#include "api/oip.h"
#include "api/server.h"

/* ---- server and model metadata ---------------------------------------------------------------- */

void api_oip_server(struct api_req *r)
{
    static const char body[] =
        "{\"name\":\"polyd\",\"version\":\"" POLYD_VERSION
        "\",\"extensions\":[\"binary_tensor_data\",\"model_repository\",\"generate\"]}";

    api_reply_static(r, 200, "application/json", body, sizeof body - 1);
}

void api_oip_live(struct api_req *r)
{
    static const char body[] = "{\"live\":true}";

    api_reply_static(r, 200, "application/json", body, sizeof body - 1);
}

static void count_unready(void *ctx, const struct sup_model_info *m)
{
    int *unready = ctx;

    *unready += m->wanted && m->state != SUP_MODEL_READY;
}

void api_oip_ready(struct api_req *r)
{
    static const char body[] = "{\"live\":true,\"ready\":true}";
    struct pd_buf checks;
    int unready = 0;
    bool ok;

    pd_buf_init(&checks, 0);
    ok = api_ready(api_of(r), &checks);
    pd_buf_done(&checks);
    sup_model_list(api_deps_of(api_of(r))->sup, count_unready, &unready);
    if (!ok)
        api_fail(r, API_FAULT_LOADING, "the server is not ready; see /readyz?verbose");
    else if (unready)
        api_fail(r, API_FAULT_LOADING, "%d model versions are not ready", unready);
    else
        api_reply_static(r, 200, "application/json", body, sizeof body - 1);
}

struct model_copy {
    bool found;
    int64_t version;
    enum sup_model_state state;
    struct pd_buf signature, reason;
};

static void copy_model(void *ctx, const struct sup_model_info *m)
{
    struct model_copy *c = ctx;

    c->found = true;
    c->version = m->version;
    c->state = m->state;
    pd_buf_str(&c->signature, m->signature);
    pd_buf_str(&c->reason, m->reason);
}

static void model_copy_done(struct model_copy *c)
{
    pd_buf_done(&c->signature);
    pd_buf_done(&c->reason);
}

/* The version in the path: a number, an alias; 0 if the path names none. -1: the request has been failed. */
static int64_t path_version(struct api_req *r, bool named)
{
    int64_t n;

    if (!named)
        return 0;
    if (api_parse_id(api_param(r, 1), &n))
        return n;
    n = api_model_version(r, api_param(r, 0), api_param(r, 1));
    return n ? n : -1;
}

/* Looks the model up among the loaded ones and fails unless it is ready. */
static bool ready_model(struct api_req *r, const char *model, int64_t version, struct model_copy *c)
{
    struct pd_why why = {.text = ""};
    enum pd_err err;

    memset(c, 0, sizeof *c);
    pd_buf_init(&c->signature, 0);
    pd_buf_init(&c->reason, 0);
    err = sup_model_get(api_deps_of(api_of(r))->sup, model, version, copy_model, c, &why);
    if (err != PD_OK)
        api_fail_why(r, PD_ERR_NOT_FOUND, &why);
    else if (!c->found || c->state == SUP_MODEL_UNAVAILABLE)
        api_fail(r, PD_ERR_NOT_FOUND,
                 c->reason.len ? "model '%.128s' is not loaded: %.200s"
                               : "model '%.128s' is not loaded%.200s",
                 model, c->reason.data ? c->reason.data : "");
    else if (c->state != SUP_MODEL_READY)
        api_fail(r, API_FAULT_LOADING, "model '%.128s' is not ready (%s)", model,
                 sup_model_state_name(c->state));
    if (!api_failed(r))
        return true;
    model_copy_done(c);
    return false;
}

static void model_metadata(struct api_req *r, bool named)
{
    const char *model = api_param(r, 0), *key;
    int64_t version = path_version(r, named);
    json_t *signature, *value, *inputs, *outputs;
    struct model_copy c;
    struct pd_buf b;
    char number[24], *text;

    if (version < 0 || !ready_model(r, model, version, &c))
        return;
    signature = json_loadb(c.signature.data ? c.signature.data : "", c.signature.len, 0, NULL);
    inputs = json_object_get(signature, "inputs");
    outputs = json_object_get(signature, "outputs");
    if (!json_is_array(inputs) || !json_is_array(outputs)) {
        json_decref(signature);
        model_copy_done(&c);
        api_fail(r, PD_ERR_INTERNAL, "the worker of '%.128s' gave no usable signature", model);
        return;
    }
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "name", model);
    api_json_key(&b, "versions");
    api_json_open(&b, '[');
    snprintf(number, sizeof number, "%lld", (long long)c.version);
    api_json_str(&b, number);
    api_json_close(&b, ']');
    value = json_object_get(signature, "platform");
    api_json_kv_str(&b, "platform", json_is_string(value) ? json_string_value(value) : "polyd_cpu");
    for (int i = 0; i < 2; i++) {
        text = json_dumps(i ? outputs : inputs, JSON_COMPACT);
        api_json_kv_raw(&b, i ? "outputs" : "inputs", text);
        free(text);
    }
    /* What else the worker says of itself: kind, classes or vocabulary, batch sizes. */
    api_json_key(&b, "parameters");
    api_json_open(&b, '{');
    json_object_foreach(signature, key, value)
    {
        if (strcmp(key, "inputs") == 0 || strcmp(key, "outputs") == 0 || strcmp(key, "platform") == 0)
            continue;
        text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        api_json_kv_raw(&b, key, text);
        free(text);
    }
    api_json_close(&b, '}');
    api_json_close(&b, '}');
    json_decref(signature);
    model_copy_done(&c);
    api_reply_json(r, 200, &b);
}

void api_oip_model(struct api_req *r)
{
    model_metadata(r, false);
}

void api_oip_model_version(struct api_req *r)
{
    model_metadata(r, true);
}

static void model_ready(struct api_req *r, bool named)
{
    int64_t version = path_version(r, named);
    struct model_copy c;
    struct pd_buf b;

    if (version < 0 || !ready_model(r, api_param(r, 0), version, &c))
        return;
    model_copy_done(&c);
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "name", api_param(r, 0));
    api_json_kv_bool(&b, "ready", true);
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

void api_oip_model_ready(struct api_req *r)
{
    model_ready(r, false);
}

void api_oip_model_version_ready(struct api_req *r)
{
    model_ready(r, true);
}

/* ---- repository ------------------------------------------------------------------------------- */

struct index_list {
    struct pd_buf b;
    struct sup *sup;
    bool ready_only;
};

static bool index_version(void *ctx, const struct store_model_version *v)
{
    struct index_list *l = ctx;
    struct model_copy c = {.state = SUP_MODEL_UNAVAILABLE};

    if (v->archived_us)
        return true;
    pd_buf_init(&c.signature, 0);
    pd_buf_init(&c.reason, 0);
    if (sup_model_get(l->sup, v->model, v->n, copy_model, &c, NULL) != PD_OK)
        c.state = SUP_MODEL_UNAVAILABLE;
    if (!l->ready_only || c.state == SUP_MODEL_READY) {
        api_json_open(&l->b, '{');
        api_json_kv_str(&l->b, "name", v->model);
        api_json_kv_id(&l->b, "version", v->n);
        api_json_kv_str(&l->b, "state", sup_model_state_name(c.state));
        api_json_kv_str(&l->b, "reason", c.reason.data ? c.reason.data : "");
        api_json_close(&l->b, '}');
    }
    model_copy_done(&c);
    return true;
}

struct name_list {
    char (*names)[API_MODEL_MAX + 1];
    size_t count, size;
    bool failed;
};

static bool keep_name(void *ctx, const struct store_model *m)
{
    struct name_list *l = ctx;

    if (l->count == l->size) {
        size_t size = l->size ? l->size * 2 : 32;
        char(*names)[API_MODEL_MAX + 1] = realloc(l->names, size * sizeof *names);

        if (!names) {
            l->failed = true;
            return false;
        }
        l->names = names;
        l->size = size;
    }
    snprintf(l->names[l->count++], API_MODEL_MAX + 1, "%s", m->name);
    return true;
}

void api_oip_repository_index(struct api_req *r)
{
    struct store *store = api_reader(r);
    struct index_list l = {.sup = api_deps_of(api_of(r))->sup};
    struct name_list names = {.count = 0};
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK), *ready = json_object_get(body, "ready");
    struct pd_why why = {.text = ""};
    enum pd_err err;

    if (ready && !json_is_boolean(ready))
        api_fail(r, PD_ERR_INVALID, "ready must be true or false");
    l.ready_only = json_is_true(ready);
    json_decref(body);
    if (!store || api_failed(r))
        return;
    pd_buf_init(&l.b, 0);
    api_json_open(&l.b, '[');
    err = store_model_list(store, STORE_ARCHIVED_WITHOUT, keep_name, &names, &why);
    if (err == PD_OK && names.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the index");
    for (size_t i = 0; i < names.count && err == PD_OK; i++)
        err = store_model_version_list(store, names.names[i], index_version, &l, &why);
    free(names.names);
    api_json_close(&l.b, ']');
    if (err != PD_OK) {
        pd_buf_done(&l.b);
        api_fail_why(r, err, &why);
        return;
    }
    api_reply_json(r, 200, &l.b);
}

static void repository_move(struct api_req *r, bool load)
{
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK), *params = json_object_get(body, "parameters");

    /* No parameter is known; one that would be ignored is refused. */
    if (params && (!json_is_object(params) || json_object_size(params)))
        api_fail(r, PD_ERR_UNSUPPORTED, "no parameters are available here");
    json_decref(body);
    if (api_failed(r))
        return;
    if (load && api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and loads nothing");
        return;
    }
    api_model_move(r, api_param(r, 0), 0, load);
}

void api_oip_repository_load(struct api_req *r)
{
    repository_move(r, true);
}

void api_oip_repository_unload(struct api_req *r)
{
    repository_move(r, false);
}

/* ---- infer ------------------------------------------------------------------------------------ */

struct infer {
    struct api *api;
    struct api_wait *wait;
    struct api_oip_request q;
    char model[API_MODEL_MAX + 1];
    _Atomic uint64_t id; /* 0 = not sent */
    bool entered;
    enum pd_err err;
    struct pd_why why;
    int64_t version;
    size_t header_len;
    struct pd_buf answer;
    /* A large answer, copied, to be written by a thread that may take long. */
    struct pd_buf copy, parameters;
    struct wire_tensor tensors[WIRE_TENSORS_MAX];
    uint32_t count;
    char answered_by[API_MODEL_MAX + 1];
};

#define LARGE_ANSWER ((size_t)64 * 1024) /* bytes of tensors */

static void infer_done(void *data)
{
    struct infer *in = data;

    if (in->entered)
        api_core_infer_leave(api_core_of(in->api));
    api_oip_request_done(&in->q);
    pd_buf_done(&in->answer);
    pd_buf_done(&in->copy);
    pd_buf_done(&in->parameters);
}

static bool is_large(const struct sup_result *part)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < part->count; i++)
        bytes += part->tensors[i].bytes;
    return bytes > LARGE_ANSWER && part->count <= WIRE_TENSORS_MAX;
}

static enum pd_err copy_tensors(struct infer *in, const struct sup_result *part)
{
    size_t at = 0;

    for (uint32_t i = 0; i < part->count; i++) {
        in->tensors[i] = part->tensors[i];
        pd_buf_append(&in->copy, part->tensors[i].data, part->tensors[i].bytes);
    }
    pd_buf_append(&in->parameters, part->json, strlen(part->json) + 1); /* with its end */
    if (pd_buf_err(&in->copy) != PD_OK || pd_buf_err(&in->parameters) != PD_OK)
        return pd_fail(&in->why, PD_ERR_NOMEM, "no memory for the answer");
    for (uint32_t i = 0; i < part->count; i++) {
        in->tensors[i].data = in->copy.data + at;
        at += in->tensors[i].bytes;
    }
    in->count = part->count;
    snprintf(in->answered_by, sizeof in->answered_by, "%s", part->model);
    return PD_OK;
}

/* Supervisor's thread: the tensors are borrowed, so a short reply is written here, and a long one is copied.
 */
static void infer_part(void *ctx, const struct sup_result *part)
{
    struct infer *in = ctx;

    if (part->err != PD_OK) {
        in->err = part->err;
        pd_fail(&in->why, part->err, "%s", part->text ? part->text : pd_err_name(part->err));
    } else if (part->count && is_large(part)) {
        in->version = part->version;
        in->err = copy_tensors(in, part);
    } else if (part->count) {
        in->version = part->version;
        in->err = api_oip_reply(&in->q, part->model, part->version, part->json, part->tensors, part->count,
                                &in->answer, &in->header_len, &in->why);
    } else if (!in->answer.len && !in->count) {
        in->err = pd_fail(&in->why, PD_ERR_INTERNAL, "the worker gave no outputs");
    }
    if (part->last || part->err != PD_OK)
        api_wait_end(in->wait);
}

static void infer_gone(void *data)
{
    struct infer *in = data;
    uint64_t id = atomic_load(&in->id);

    if (id)
        sup_infer_cancel(api_deps_of(in->api)->sup, id);
}

/* Maps a refusal by the supervisor or the worker to a reply. */
void api_fail_infer(struct api_req *r, enum pd_err err, const struct pd_why *why)
{
    const char *text = why->text[0] ? why->text : pd_err_name(err);

    if (err == PD_ERR_BUSY) {
        api_fail(r, API_FAULT_OVERLOADED, "%s", text); /* the model counted it */
    } else if (err == PD_ERR_CLOSED) {
        api_fail(r, API_FAULT_LOADING, "%s", text);
    } else {
        api_fail(r, (int)err, "%s", text);
    }
}

static void infer_write(struct api_req *r);

static void infer_answer(struct api_req *r)
{
    struct infer *in = api_waited(r);

    if (in->err == PD_OK && in->count) {
        (void)api_pool_give(r, true, infer_write);
        return;
    }
    if (in->err != PD_OK) {
        api_fail_infer(r, in->err, &in->why);
        return;
    }
    if (in->header_len) {
        char text[24];

        snprintf(text, sizeof text, "%zu", in->header_len);
        api_reply_header(r, "Inference-Header-Content-Length", text);
    }
    api_reply(r, 200, in->header_len ? "application/octet-stream" : "application/json", &in->answer);
}

/* A thread of the pool: writes the copied answer. */
static void infer_write(struct api_req *r)
{
    struct infer *in = api_waited(r);

    in->err = api_oip_reply(&in->q, in->answered_by, in->version, in->parameters.data, in->tensors, in->count,
                            &in->answer, &in->header_len, &in->why);
    in->count = 0;
    infer_answer(r);
}

bool api_infer_allowed(struct api_req *r, int places)
{
    struct api_core *core = api_core_of(api_of(r));

    if (api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining");
        return false;
    }
    for (int i = 0; i < places; i++) {
        if (api_core_infer_enter(core, api_settings_of(r)->infer_queue))
            continue;
        while (i--)
            api_core_infer_leave(core);
        atomic_fetch_add(&api_counters_of(api_of(r))->rejected, 1);
        api_fail(r, API_FAULT_OVERLOADED, "too many inference requests are waiting");
        return false;
    }
    return true;
}

static void infer(struct api_req *r, bool named)
{
    int64_t version = path_version(r, named), header_len = -1;
    const char *header = api_header(r, "Inference-Header-Content-Length");
    const char *type = api_header(r, "Content-Type");
    struct api_oip_request q;
    struct pd_why why = {.text = ""};
    struct pd_buf params;
    struct sup_infer request;
    struct api_wait *wait;
    struct infer *in;
    const char *body;
    uint64_t id;
    size_t len;
    enum pd_err err;

    if (version < 0)
        return;
    if (header && !api_parse_int(header, 0, INT64_MAX - 1, &header_len)) {
        api_fail(r, API_FAULT_MALFORMED, "Inference-Header-Content-Length must be a number of bytes");
        return;
    }
    if (!header && api_media_type_is(type, "application/octet-stream")) {
        api_fail(r, API_FAULT_MALFORMED, "a binary body needs Inference-Header-Content-Length");
        return;
    }
    body = api_body(r, &len);
    if (api_media_type_is(type, "image/jpeg") || api_media_type_is(type, "image/png"))
        err = api_oip_picture(body, len, &q, &why);
    else
        err = api_oip_parse(body, len, header_len, &q, &why);
    if (err != PD_OK) {
        api_fail(r, err == PD_ERR_CORRUPT ? API_FAULT_MALFORMED : (int)err, "%s", why.text);
        return;
    }
    if (!api_infer_allowed(r, 1)) {
        api_oip_request_done(&q);
        return;
    }
    wait = api_wait_begin(r, sizeof *in, infer_done, infer_answer);
    if (!wait) {
        api_core_infer_leave(api_core_of(api_of(r)));
        api_oip_request_done(&q);
        return;
    }
    in = api_wait_data(wait);
    in->api = api_of(r);
    in->wait = wait;
    in->q = q; /* moved */
    in->entered = true;
    pd_buf_init(&in->answer, 0);
    pd_buf_init(&in->copy, 0);
    pd_buf_init(&in->parameters, 0);
    pd_buf_init(&params, 0);
    api_oip_params(&in->q, &params);
    if (pd_buf_err(&params) != PD_OK) {
        in->err = pd_fail(&in->why, PD_ERR_NOMEM, "no memory for the request");
        api_wait_end(wait);
        pd_buf_done(&params);
        return;
    }
    request = (struct sup_infer){
        .model = api_param(r, 0),
        .version = version,
        .kind = "infer",
        .deadline_us = in->q.timeout_us ? in->q.timeout_us : api_settings_of(r)->infer_timeout_us,
        .json = params.data,
        .json_len = params.len,
        .tensors = in->q.tensors,
        .count = in->q.count,
        .part = infer_part,
        .ctx = in,
    };
    err = sup_infer(api_deps_of(api_of(r))->sup, &request, &id, &why);
    pd_buf_done(&params);
    if (err != PD_OK) {
        in->err = err;
        in->why = why;
        api_wait_end(wait);
        return;
    }
    atomic_store(&in->id, id);
    api_wait_watch(wait, infer_gone);
}

void api_oip_infer(struct api_req *r)
{
    infer(r, false);
}

void api_oip_infer_version(struct api_req *r)
{
    infer(r, true);
}
