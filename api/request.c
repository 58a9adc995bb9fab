/* What a handler sees of its request: parameters, query, headers, body. */
#include <stdlib.h>
#include <string.h>

#include "api/internal.h"
#include "api/json.h"

struct api *api_of(struct api_req *r)
{
    return r->api;
}

const struct api_deps *api_deps_of(struct api *api)
{
    return &api->deps;
}

const struct api_settings *api_settings_of(struct api_req *r)
{
    return &r->api->set;
}

const struct api_settings *api_settings_get(struct api *api)
{
    return &api->set;
}

struct api_counters *api_counters_of(struct api *api)
{
    return &api->counters;
}

struct api_core *api_core_of(struct api *api)
{
    return api->core;
}

const char *api_param(struct api_req *r, int n)
{
    return n < r->params.count ? r->params.value[n] : "";
}

const char *api_header(struct api_req *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *api_body(struct api_req *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return r->body.data;
}

enum api_surface api_surface(struct api_req *r)
{
    return r->surface;
}

const char *api_path(struct api_req *r)
{
    return r->path;
}

const char *api_query_raw(struct api_req *r)
{
    return r->query;
}

bool api_failed(struct api_req *r)
{
    return r->failed;
}

bool api_stopping(struct api *api)
{
    return atomic_load_explicit(&api->stopping, memory_order_relaxed);
}

bool api_draining(struct api *api)
{
    return atomic_load_explicit(&api->draining, memory_order_relaxed);
}

void api_drain(struct api *api)
{
    atomic_store(&api->draining, true);
}

bool api_query(struct api_req *r, const char *name, char *out, size_t size)
{
    enum pd_err err = api_query_get(r->query, name, 0, out, size);

    if (err == PD_OK)
        return true;
    if (err != PD_ERR_NOT_FOUND)
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' is %s", name,
                 err == PD_ERR_LIMIT ? "too long" : "not well encoded");
    return false;
}

int64_t api_query_int(struct api_req *r, const char *name, int64_t low, int64_t high, int64_t missing)
{
    char text[32];
    int64_t value = missing;

    if (api_query(r, name, text, sizeof text) && !api_parse_int(text, low, high, &value)) {
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' must be an integer from %lld to %lld", name,
                 (long long)low, (long long)high);
        return missing;
    }
    return value;
}

bool api_query_flag(struct api_req *r, const char *name)
{
    char text[8];

    if (!api_query(r, name, text, sizeof text))
        return false;
    if (strcmp(text, "1") == 0 || strcmp(text, "true") == 0)
        return true;
    if (strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        api_fail(r, API_FAULT_MALFORMED, "query parameter '%s' must be 0 or 1", name);
    return false;
}

bool api_query_refuse_others(struct api_req *r, const char *const *names)
{
    char unknown[64];

    if (api_query_known(r->query, names, unknown, sizeof unknown))
        return false;
    api_fail(r, API_FAULT_MALFORMED, "unknown query parameter '%s'", unknown);
    return true;
}

int64_t api_param_id(struct api_req *r, int n)
{
    int64_t id;

    if (api_parse_id(api_param(r, n), &id))
        return id;
    api_fail(r, PD_ERR_NOT_FOUND, "there is no '%s' here: an id is a positive integer", api_param(r, n));
    return 0;
}

void *api_state_new(struct api_req *r, size_t size, void (*done)(void *))
{
    void *state = calloc(1, size);

    if (!state) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the request");
        return NULL;
    }
    if (r->state && r->state_done)
        r->state_done(r->state);
    free(r->state);
    r->state = state;
    r->state_done = done;
    return state;
}

void *api_state(struct api_req *r)
{
    return r->state;
}

json_t *api_body_json(struct api_req *r, unsigned flags)
{
    json_error_t error;
    json_t *value;

    if (r->body.len == 0 && (flags & API_JSON_EMPTY_OK)) {
        value = json_object();
        if (!value)
            api_fail(r, PD_ERR_NOMEM, "no memory for the body");
        return value;
    }
    value = json_loadb(r->body.data ? r->body.data : "", r->body.len, JSON_REJECT_DUPLICATES, &error);
    if (!value && api_json_no_memory(&error)) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the body");
        return NULL;
    }
    if (!value) {
        api_fail(r, API_FAULT_MALFORMED, "the body is not JSON: %s (line %d, column %d)",
                 api_json_fault(&error), error.line, error.column);
        return NULL;
    }
    if (!json_is_object(value) && !((flags & API_JSON_ARRAY_OK) && json_is_array(value))) {
        json_decref(value);
        api_fail(r, API_FAULT_MALFORMED, "the body must be a JSON object");
        return NULL;
    }
    return value;
}
