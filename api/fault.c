#include "api/http.h"

#include <stdio.h>
#include <string.h>

#include "api/json.h"

/* The one place where an error becomes an HTTP status. */
static const struct api_fault_row rows[API_FAULT_COUNT] = {
    [PD_OK] = {500, 500, "internal", "server_error"}, /* never an error; reached only by our mistake */
    [PD_ERR_NOMEM] = {503, 503, "out_of_memory", "unavailable_error"},
    [PD_ERR_INVALID] = {422, 400, "invalid", "invalid_request_error"},
    [PD_ERR_NOT_FOUND] = {404, 404, "not_found", "invalid_request_error"},
    [PD_ERR_EXISTS] = {409, 409, "exists", "invalid_request_error"},
    [PD_ERR_CONFLICT] = {409, 409, "conflict", "invalid_request_error"},
    [PD_ERR_STALE] = {412, 412, "stale", "invalid_request_error"},
    [PD_ERR_IO] = {503, 503, "storage", "unavailable_error"},
    [PD_ERR_FULL] = {503, 503, "storage_full", "unavailable_error"},
    [PD_ERR_CORRUPT] = {500, 500, "corrupt", "server_error"},
    [PD_ERR_VERSION] = {500, 500, "version", "server_error"},
    [PD_ERR_LIMIT] = {422, 400, "limit", "invalid_request_error"},
    [PD_ERR_BUSY] = {503, 503, "busy", "unavailable_error"},
    [PD_ERR_TIMEOUT] = {504, 504, "timeout", "timeout_error"},
    [PD_ERR_CANCELLED] = {409, 409, "cancelled", "invalid_request_error"},
    [PD_ERR_CLOSED] = {503, 503, "closed", "unavailable_error"},
    [PD_ERR_DENIED] = {403, 403, "denied", "permission_error"},
    [PD_ERR_UNSUPPORTED] = {422, 400, "unsupported", "invalid_request_error"},
    [PD_ERR_INTERNAL] = {500, 500, "internal", "server_error"},
    [API_FAULT_MALFORMED] = {400, 400, "malformed", "invalid_request_error"},
    [API_FAULT_HOST] = {403, 403, "host_not_allowed", "permission_error"},
    [API_FAULT_ORIGIN] = {403, 403, "origin_not_allowed", "permission_error"},
    [API_FAULT_NO_ROUTE] = {404, 404, "no_such_path", "invalid_request_error"},
    [API_FAULT_METHOD] = {405, 405, "method_not_allowed", "invalid_request_error"},
    [API_FAULT_MEDIA_TYPE] = {415, 415, "media_type", "invalid_request_error"},
    [API_FAULT_BODY_TOO_LARGE] = {413, 413, "body_too_large", "invalid_request_error"},
    [API_FAULT_RANGE] = {416, 416, "range", "invalid_request_error"},
    [API_FAULT_NEEDS_MATCH] = {428, 428, "if_match_required", "invalid_request_error"},
    [API_FAULT_KEY_REUSED] = {422, 422, "idempotency_key_reused", "invalid_request_error"},
    [API_FAULT_KEY_MISSING] = {400, 400, "idempotency_key_invalid", "invalid_request_error"},
    [API_FAULT_OVERLOADED] = {429, 429, "overloaded", "rate_limit_error"},
    [API_FAULT_LOADING] = {503, 503, "loading", "unavailable_error"},
    [API_FAULT_DRAINING] = {503, 503, "draining", "unavailable_error"},
    [API_FAULT_NOT_IMPLEMENTED] = {404, 404, "not_offered", "invalid_request_error"},
};

const struct api_fault_row *api_fault_row(int fault)
{
    return &rows[fault > 0 && fault < API_FAULT_COUNT ? fault : PD_ERR_INTERNAL];
}

const char *api_status_title(int status)
{
    static const struct {
        int status;
        const char *title;
    } titles[] = {
        {400, "Bad Request"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {409, "Conflict"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {422, "Unprocessable Content"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };

    for (size_t i = 0; i < sizeof titles / sizeof titles[0]; i++)
        if (titles[i].status == status)
            return titles[i].title;
    return "Error";
}

int api_fault_body(struct pd_buf *b, enum api_surface surface, int fault, const char *message,
                   const char *details, const char *param, const char **ret_type)
{
    const struct api_fault_row *row = api_fault_row(fault);
    int status = row->status;

    *ret_type = "application/json";
    api_json_open(b, '{');
    switch (surface) {
    case API_SURFACE_OIP:
        status = row->compat_status;
        api_json_kv_str(b, "error", message);
        break;
    case API_SURFACE_OPENAI:
        status = row->compat_status;
        api_json_key(b, "error");
        api_json_open(b, '{');
        api_json_kv_str(b, "message", message);
        api_json_kv_str(b, "type", row->type);
        api_json_kv_str(b, "param", param);
        api_json_kv_str(b, "code", row->code);
        api_json_close(b, '}');
        break;
    case API_SURFACE_OWN:
    case API_SURFACE_PAGE:
        *ret_type = "application/problem+json";
        api_json_kv_str(b, "type", "about:blank");
        api_json_kv_str(b, "title", api_status_title(status));
        api_json_kv_int(b, "status", status);
        api_json_kv_str(b, "detail", message);
        api_json_key(b, "error");
        api_json_open(b, '{');
        api_json_kv_str(b, "code", row->code);
        api_json_kv_str(b, "message", message);
        api_json_close(b, '}');
        if (details) {
            api_json_kv_raw(b, "errors", details);
        } else if (param) {
            char pointer[160];

            snprintf(pointer, sizeof pointer, "#%s%s", *param ? "/" : "", param);
            api_json_key(b, "errors");
            api_json_open(b, '[');
            api_json_open(b, '{');
            api_json_kv_str(b, "pointer", pointer);
            api_json_kv_str(b, "detail", message);
            api_json_close(b, '}');
            api_json_close(b, ']');
        }
        break;
    }
    api_json_close(b, '}');
    return status;
}
