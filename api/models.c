/* The registry: models, versions, aliases; loading and unloading. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/models.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/polyd/store/tx.h"

/* ---- rows ------------------------------------------------------------------------------------- */

struct live {
    bool found;
    enum sup_model_state state;
    struct pd_buf reason, signature;
};

static void live_row(void *ctx, const struct sup_model_info *m)
{
    struct live *l = ctx;

    l->found = true;
    l->state = m->state;
    pd_buf_str(&l->reason, m->reason);
    pd_buf_str(&l->signature, m->signature);
}

static void kv_id_or_null(struct pd_buf *b, const char *key, int64_t id)
{
    if (id)
        api_json_kv_id(b, key, id);
    else
        api_json_kv_null(b, key);
}

static bool version_row(struct pd_buf *b, const struct store_model_version *v, struct sup *sup)
{
    struct live live = {.state = SUP_MODEL_UNAVAILABLE};

    pd_buf_init(&live.reason, 0);
    pd_buf_init(&live.signature, 0);
    if (sup_model_get(sup, v->model, v->n, live_row, &live, NULL) != PD_OK)
        live.found = false;
    api_json_open(b, '{');
    api_json_kv_str(b, "model", v->model);
    api_json_kv_id(b, "version", v->n);
    api_json_kv_str(b, "state", sup_model_state_name(live.state));
    api_json_kv_str(b, "reason", live.reason.data ? live.reason.data : "");
    api_json_kv_str(b, "origin", v->origin);
    api_json_kv_raw(b, "source", v->source);
    kv_id_or_null(b, "run_id", v->run_id);
    kv_id_or_null(b, "checkpoint_id", v->checkpoint_id);
    api_json_kv_int(b, "step", v->step);
    api_json_kv_int(b, "bytes", v->bytes);
    api_json_kv_str(b, "digest", v->digest);
    api_json_kv_bool(b, "wanted", v->loaded);
    api_json_kv_raw(b, "signature", live.state == SUP_MODEL_READY ? live.signature.data : NULL);
    api_json_kv_time(b, "created", v->created_us);
    api_json_kv_time(b, "archived", v->archived_us);
    api_json_close(b, '}');
    pd_buf_done(&live.reason);
    pd_buf_done(&live.signature);
    return true;
}

struct version_list {
    struct pd_buf *b;
    struct sup *sup;
    int64_t version; /* of the model's row */
};

static bool list_version(void *ctx, const struct store_model_version *v)
{
    struct version_list *l = ctx;

    l->version = v->model_version;
    return version_row(l->b, v, l->sup);
}

static bool list_alias(void *ctx, const struct store_alias *a)
{
    api_json_kv_id(ctx, a->alias, a->n);
    return true;
}

struct model_name {
    char name[API_MODEL_MAX + 1];
    char *description;
    int64_t created_us, versions, version, archived_us;
};

static enum pd_err model_json(struct pd_buf *b, struct store *store, struct sup *sup,
                              const struct model_name *m, struct pd_why *why)
{
    struct version_list l = {.b = b, .sup = sup};
    enum pd_err err;

    api_json_open(b, '{');
    api_json_kv_str(b, "name", m->name);
    api_json_kv_str(b, "description", m->description ? m->description : "");
    if (m->versions)
        api_json_kv_id(b, "latest", m->versions);
    else
        api_json_kv_null(b, "latest");
    api_json_key(b, "aliases");
    api_json_open(b, '{');
    err = store_alias_list(store, m->name, list_alias, b, why);
    api_json_close(b, '}');
    api_json_key(b, "versions");
    api_json_open(b, '[');
    if (err == PD_OK)
        err = store_model_version_list(store, m->name, list_version, &l, why);
    api_json_close(b, ']');
    api_json_kv_time(b, "created", m->created_us);
    api_json_kv_time(b, "archived", m->archived_us);
    api_json_close(b, '}');
    return err;
}

struct names {
    struct model_name *items;
    size_t count, size;
    bool failed;
};

static bool keep_name(void *ctx, const struct store_model *m)
{
    struct names *n = ctx;
    struct model_name *item;

    if (n->count == n->size) {
        size_t size = n->size ? n->size * 2 : 16;
        struct model_name *items = realloc(n->items, size * sizeof *items);

        if (!items) {
            n->failed = true;
            return false;
        }
        n->items = items;
        n->size = size;
    }
    item = &n->items[n->count++];
    snprintf(item->name, sizeof item->name, "%s", m->name);
    item->description = strdup(m->description);
    item->created_us = m->created_us;
    item->versions = m->versions;
    item->version = m->version;
    item->archived_us = m->archived_us;
    return true;
}

static void names_done(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->items[i].description);
    free(n->items);
}

void api_model_list(struct api_req *r)
{
    static const char *const known[] = {"archived", NULL};
    enum store_archived archived;
    struct store *store;
    struct sup *sup = api_deps_of(api_of(r))->sup;
    struct names names = {.count = 0};
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    enum pd_err err;

    if (api_query_refuse_others(r, known) || !api_query_archived(r, &archived) || !(store = api_reader(r)))
        return;
    pd_buf_init(&b, 0);
    err = store_model_list(store, archived, keep_name, &names, &why);
    if (err == PD_OK && names.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the models");
    api_json_open(&b, '{');
    api_json_key(&b, "models");
    api_json_open(&b, '[');
    for (size_t i = 0; i < names.count && err == PD_OK; i++)
        err = model_json(&b, store, sup, &names.items[i], &why);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    names_done(&names);
    api_answer(r, err, &why, &b);
}

void api_answer_model(struct api_req *r, const char *name)
{
    struct store *store = api_reader(r);
    struct names names = {.count = 0};
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    char tag[32];
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    err = store_model_get(store, name, keep_name, &names, &why);
    if (err == PD_OK && names.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the model");
    /* The tag is the registry row's. What is loaded changes without it, so it gives no 304. */
    if (err == PD_OK)
        api_reply_header(r, "ETag", api_etag(names.items[0].version, tag));
    if (err == PD_OK)
        err = model_json(&b, store, api_deps_of(api_of(r))->sup, &names.items[0], &why);
    names_done(&names);
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "there is no model '%.128s'", name);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else
        api_reply_json(r, 200, &b);
    pd_buf_done(&b);
}

void api_model_get(struct api_req *r)
{
    api_answer_model(r, api_param(r, 0));
}

/* ---- versions --------------------------------------------------------------------------------- */

void api_answer_version(struct api_req *r, const char *model, int64_t n, int status)
{
    struct store *store = api_reader(r);
    struct pd_buf b;
    struct version_list l = {.b = &b, .sup = api_deps_of(api_of(r))->sup};
    struct pd_why why = {.text = ""};
    char tag[32];
    enum pd_err err;

    if (!store)
        return;
    pd_buf_init(&b, 0);
    err = store_model_version_get(store, model, n, list_version, &l, &why);
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "model '%.128s' has no version %lld", model, (long long)n);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    else {
        api_reply_header(r, "ETag", api_etag(l.version, tag));
        api_reply_json(r, status, &b);
    }
    pd_buf_done(&b);
}

static bool any_version(void *ctx, const struct store_model_version *v)
{
    *(int64_t *)ctx = v->n;
    return false;
}

int64_t api_model_version(struct api_req *r, const char *model, const char *text)
{
    struct store *store = api_reader(r);
    struct pd_why why = {.text = ""};
    int64_t n = 0;
    enum pd_err err;

    if (!store)
        return 0;
    if (api_parse_id(text, &n)) {
        int64_t wanted = n;

        err = store_model_version_get(store, model, wanted, any_version, &n, &why);
    } else {
        err = store_alias_get(store, model, text, &n, &why);
    }
    if (err == PD_ERR_NOT_FOUND)
        api_fail(r, err, "model '%.128s' has no version or alias '%.128s'", model, text);
    else if (err != PD_OK)
        api_fail_why(r, err, &why);
    return err == PD_OK ? n : 0;
}

void api_model_version_get(struct api_req *r)
{
    int64_t n = api_model_version(r, api_param(r, 0), api_param(r, 1));

    if (n)
        api_answer_version(r, api_param(r, 0), n, 200);
}

/* ---- names and ids ----------------------------------------------------------------------------- */

bool api_model_name_ok(const char *name)
{
    size_t len = strlen(name);

    if (len < 1 || len > API_MODEL_MAX || name[0] == '.')
        return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return false;
    return true;
}

int64_t api_id_member(struct api_req *r, json_t *body, const char *key)
{
    json_t *value = json_object_get(body, key);
    int64_t id = 0;

    if (value && (!json_is_string(value) || !api_parse_id(json_string_value(value), &id)))
        api_fail_param(r, PD_ERR_INVALID, key, "%s must be an id as text, such as \"12\"", key);
    return id;
}

/* ---- aliases ---------------------------------------------------------------------------------- */

struct alias_change {
    struct api_write w; /* first */
    char model[API_MODEL_MAX + 1], alias[API_MODEL_MAX + 1];
    int64_t n, seen;
};

static enum pd_err alias_apply(struct store_tx *tx, struct api_write *w, struct pd_why *why)
{
    struct alias_change *a = (struct alias_change *)(void *)w;
    enum pd_err err = store_model_check(tx, a->model, a->seen, why);

    w->status = 200;
    if (err != PD_OK)
        return err;
    err = store_alias_set(tx, a->model, a->alias, a->n, why);
    if (err != PD_ERR_NOT_FOUND || !a->n)
        return err;
    strcpy(w->param, "version"); /* the model exists, as was checked */
    return PD_ERR_INVALID;
}

static void alias_answer(struct api_req *r)
{
    struct api_write *w = api_write_result(r);

    if (w)
        api_answer_model(r, ((struct alias_change *)(void *)w)->model);
}

static void alias_change(struct api_req *r, int64_t n)
{
    const char *model = api_param(r, 0), *alias = api_param(r, 1);
    struct api_write *w;
    struct alias_change *a;
    int64_t seen;

    if (!api_if_match(r, true, &seen))
        return;
    if (!api_model_name_ok(model)) {
        api_fail(r, PD_ERR_NOT_FOUND, "there is no model '%.128s'", model);
        return;
    }
    if (!api_model_name_ok(alias) || isdigit((unsigned char)alias[0])) {
        api_fail(r, PD_ERR_INVALID, "an alias has 1 to %d of A-Z a-z 0-9 . _ - and begins with a letter",
                 API_MODEL_MAX);
        return;
    }
    w = api_write_begin(r, sizeof *a, false, NULL, alias_answer);
    if (!w)
        return;
    a = (struct alias_change *)(void *)w;
    snprintf(a->model, sizeof a->model, "%s", model);
    snprintf(a->alias, sizeof a->alias, "%s", alias);
    a->n = n;
    a->seen = seen;
    w->apply = alias_apply;
    api_write_submit(w, STORE_LANE_COMMAND, 2);
}

void api_alias_set(struct api_req *r)
{
    json_t *body = api_body_json(r, 0), *value;
    const char *key;
    int64_t n;

    if (!body)
        return;
    json_object_foreach(body, key, value) if (strcmp(key, "version") != 0)
        api_fail_param(r, PD_ERR_INVALID, key, "unknown member '%.100s'", key);
    n = api_id_member(r, body, "version");
    if (!api_failed(r) && !n)
        api_fail_param(r, PD_ERR_INVALID, "version", "version is required");
    json_decref(body);
    if (!api_failed(r))
        alias_change(r, n);
}

void api_alias_delete(struct api_req *r)
{
    alias_change(r, 0);
}

/* ---- load and unload -------------------------------------------------------------------------- */

struct loading {
    struct api_wait *wait;
    char model[API_MODEL_MAX + 1];
    int64_t n;
    enum pd_err err;
    struct pd_why why;
};

static void load_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct loading *l = ctx;

    l->err = err;
    if (why)
        l->why = *why;
    api_wait_end(l->wait);
}

static void load_answer(struct api_req *r)
{
    struct loading *l = api_waited(r);

    if (l->err != PD_OK)
        api_fail_why(r, l->err, &l->why);
    else if (api_surface(r) == API_SURFACE_OIP)
        api_reply_empty(r, 200);
    else
        api_answer_version(r, l->model, l->n, 200);
}

void api_model_move(struct api_req *r, const char *model, int64_t n, bool load)
{
    struct sup *sup = api_deps_of(api_of(r))->sup;
    struct api_wait *wait = api_wait_begin(r, sizeof(struct loading), NULL, load_answer);
    struct pd_why why = {.text = ""};
    struct loading *l;
    enum pd_err err;

    if (!wait)
        return;
    l = api_wait_data(wait);
    l->wait = wait;
    snprintf(l->model, sizeof l->model, "%s", model);
    l->n = n;
    err = load ? sup_model_load(sup, model, n, load_done, l, &why)
               : sup_model_unload(sup, model, n, load_done, l, &why);
    if (err != PD_OK)
        load_done(l, err, &why);
}

static bool empty_body(struct api_req *r)
{
    json_t *body = api_body_json(r, API_JSON_EMPTY_OK);

    if (body && json_object_size(body))
        api_fail(r, PD_ERR_INVALID, "this command takes an empty object");
    json_decref(body);
    return !api_failed(r);
}

static void version_move(struct api_req *r, bool load)
{
    int64_t n;

    if (!empty_body(r))
        return;
    if (load && api_draining(api_of(r))) {
        api_fail(r, API_FAULT_DRAINING, "the server is draining and loads nothing");
        return;
    }
    n = api_model_version(r, api_param(r, 0), api_param(r, 1));
    if (n)
        api_model_move(r, api_param(r, 0), n, load);
}

void api_model_load(struct api_req *r)
{
    version_move(r, true);
}

void api_model_unload(struct api_req *r)
{
    version_move(r, false);
}
