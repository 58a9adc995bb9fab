/* The one table of routes. `polyd routes` prints it, and a test compares it with openapi.yaml. The
 * operationId is the handler's name. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/handlers.h"
#include "api/route.h"
#include "api/server.h"
#include "daemon/job/job.h"
#include "web/assets.h"

#define SMALL (64u * 1024u)
#define JOB (JOB_MAX_BYTES + 64u * 1024u) /* notes of a PATCH, and white space */
#define INGEST (4u * 1024u * 1024u)       /* 10 000 points */
#define TEXT (1024u * 1024u)
#define INFER (16u * 1024u * 1024u) /* what one frame to a worker holds */

#define ROW(method, path, handler, surface, body, limit, lane, probe, query)                                 \
    {                                                                                                        \
        API_##method, path, #handler, handler, surface, body, limit, API_LANE_##lane, probe, query           \
    }
#define ROUTE(method, path, handler, surface, body, limit, lane)                                             \
    ROW(method, path, handler, surface, body, limit, lane, false, false)
/* The same for a handler that looks at the query itself. */
#define ROUTE_QUERY(method, path, handler, surface, body, limit, lane)                                       \
    ROW(method, path, handler, surface, body, limit, lane, false, true)
/* Says how the server is. */
#define ROUTE_PROBE(method, path, handler, surface, lane)                                                    \
    ROW(method, path, handler, surface, API_BODY_NONE, 0, lane, true, false)

const struct api_route api_routes[] = {
    ROUTE_QUERY(GET, "/api/v1/jobs", api_job_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE_QUERY(POST, "/api/v1/jobs", api_job_submit, API_SURFACE_OWN, API_BODY_JSON, JOB, SHORT),
    ROUTE(GET, "/api/v1/jobs/{id}", api_job_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(PATCH, "/api/v1/jobs/{id}", api_job_update, API_SURFACE_OWN, API_BODY_JSON, JOB, LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/cancel", api_job_cancel, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/pause", api_job_pause, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/resume", api_job_resume, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/retry", api_job_retry, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(DELETE, "/api/v1/jobs/{id}", api_job_delete, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/archive", api_job_archive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/jobs/{id}/unarchive", api_job_unarchive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE_QUERY(GET, "/api/v1/runs", api_run_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/api/v1/runs", api_run_open, API_SURFACE_OWN, API_BODY_JSON, JOB, SHORT),
    ROUTE(GET, "/api/v1/runs/{id}", api_run_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/api/v1/runs/{id}/cancel", api_run_cancel, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/pause", api_run_pause, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/resume", api_run_resume, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/retry", api_run_retry, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(DELETE, "/api/v1/runs/{id}", api_run_delete, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/archive", api_run_archive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL,
          LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/unarchive", api_run_unarchive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/metrics", api_run_metrics, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE(POST, "/api/v1/runs/{id}/metrics", api_run_ingest, API_SURFACE_OWN, API_BODY_JSON, INGEST, LOOP),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/series", api_run_series, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/export", api_run_export, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/logs", api_run_logs, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE(POST, "/api/v1/runs/{id}/logs", api_run_log_append, API_SURFACE_OWN, API_BODY_JSON, TEXT, SHORT),
    ROUTE(POST, "/api/v1/runs/{id}/heartbeat", api_run_heartbeat, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE(POST, "/api/v1/runs/{id}/finish", api_run_finish, API_SURFACE_OWN, API_BODY_JSON, SMALL, LOOP),
    ROUTE(GET, "/api/v1/runs/{id}/checkpoints", api_run_checkpoints, API_SURFACE_OWN, API_BODY_NONE, 0,
          SHORT),
    ROUTE(GET, "/api/v1/runs/{id}/checkpoints/{checkpoint}/weights", api_checkpoint_weights, API_SURFACE_OWN,
          API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/runs/{id}/checkpoints/{checkpoint}/file", api_checkpoint_file, API_SURFACE_OWN,
          API_BODY_NONE, 0, SHORT),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/blobs", api_run_blobs, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/runs/{id}/blobs/{blob}", api_run_blob, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/runs/{id}/check", api_run_check, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/jobs/{id}/sweep", api_sweep_get, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/jobs/{id}/sweep/analysis", api_sweep_analysis, API_SURFACE_OWN, API_BODY_NONE,
                0, LONG),
    ROUTE_QUERY(GET, "/api/v1/jobs/{id}/sweep/curves", api_sweep_curves, API_SURFACE_OWN, API_BODY_NONE, 0,
                LONG),
    ROUTE_QUERY(GET, "/api/v1/jobs/{id}/sweep/export", api_sweep_export, API_SURFACE_OWN, API_BODY_NONE, 0,
                LONG),
    ROUTE_QUERY(GET, "/api/v1/compare", api_compare, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/compare/series", api_compare_series, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/compare/export", api_compare_export, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/aggregate", api_aggregate, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/groups", api_group_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/api/v1/groups", api_group_create, API_SURFACE_OWN, API_BODY_JSON, INGEST, SHORT),
    ROUTE(GET, "/api/v1/groups/{group}", api_group_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(PATCH, "/api/v1/groups/{group}", api_group_update, API_SURFACE_OWN, API_BODY_JSON, INGEST, SHORT),
    ROUTE(DELETE, "/api/v1/groups/{group}", api_group_delete, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/api/v1/groups/{group}/archive", api_group_archive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE(POST, "/api/v1/groups/{group}/unarchive", api_group_unarchive, API_SURFACE_OWN,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE_QUERY(GET, "/api/v1/experiments", api_experiment_list, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE(GET, "/api/v1/experiments/{experiment}", api_experiment_get, API_SURFACE_OWN, API_BODY_NONE, 0,
          LONG),
    ROUTE_QUERY(GET, "/api/v1/experiments/{experiment}/report", api_experiment_report, API_SURFACE_OWN,
                API_BODY_NONE, 0, LONG),
    ROUTE_QUERY(GET, "/api/v1/events", api_event_stream, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE_QUERY(GET, "/api/v1/models", api_model_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/models/{model}", api_model_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(DELETE, "/api/v1/models/{model}", api_model_delete, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/archive", api_model_archive, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/unarchive", api_model_unarchive, API_SURFACE_OWN,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE_QUERY(POST, "/api/v1/models/{model}/versions", api_model_register, API_SURFACE_OWN,
                API_BODY_JSON_OR_FILE, SMALL, SHORT),
    ROUTE(GET, "/api/v1/models/{model}/versions/{version}", api_model_version_get, API_SURFACE_OWN,
          API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/models/{model}/versions/{version}/weights", api_model_version_weights,
          API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/models/{model}/versions/{version}/file", api_model_version_file, API_SURFACE_OWN,
          API_BODY_NONE, 0, SHORT),
    ROUTE(DELETE, "/api/v1/models/{model}/versions/{version}", api_model_version_delete, API_SURFACE_OWN,
          API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/versions/{version}/archive", api_model_version_archive,
          API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/versions/{version}/unarchive", api_model_version_unarchive,
          API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/versions/{version}/load", api_model_load, API_SURFACE_OWN,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(POST, "/api/v1/models/{model}/versions/{version}/unload", api_model_unload, API_SURFACE_OWN,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(PUT, "/api/v1/models/{model}/aliases/{alias}", api_alias_set, API_SURFACE_OWN, API_BODY_JSON, SMALL,
          LOOP),
    ROUTE(DELETE, "/api/v1/models/{model}/aliases/{alias}", api_alias_delete, API_SURFACE_OWN, API_BODY_NONE,
          0, LOOP),
    ROUTE_QUERY(GET, "/api/v1/data", api_data_list, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/api/v1/devices", api_device_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/api/v1/devices/{device}/drain", api_device_drain, API_SURFACE_OWN, API_BODY_JSON_OR_EMPTY,
          SMALL, LOOP),
    ROUTE(POST, "/api/v1/devices/{device}/undrain", api_device_undrain, API_SURFACE_OWN,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(GET, "/api/v1/tuned", api_tuned_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/tuned/{device}", api_tuned_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(DELETE, "/api/v1/tuned/{device}", api_tuned_drop, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/api/v1/queue", api_queue_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/config", api_config_get, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE_QUERY(GET, "/api/v1/storage", api_storage_get, API_SURFACE_OWN, API_BODY_NONE, 0, LONG),
    ROUTE(GET, "/api/v1/fields", api_field_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/formulas", api_formula_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/api/v1/formulas/check", api_formula_check, API_SURFACE_OWN, API_BODY_JSON, SMALL, LONG),
    ROUTE(GET, "/api/v1/metrics/catalogue", api_metric_catalogue, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/templates", api_template_list, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1/templates/{template}", api_template_get, API_SURFACE_OWN, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/api/v1", api_index, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/api/v1/version", api_version_get, API_SURFACE_OWN, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/v2", api_oip_server, API_SURFACE_OIP, API_BODY_NONE, 0, LOOP),
    ROUTE_PROBE(GET, "/v2/health/live", api_oip_live, API_SURFACE_OIP, LOOP),
    ROUTE_PROBE(GET, "/v2/health/ready", api_oip_ready, API_SURFACE_OIP, LOOP),
    ROUTE(GET, "/v2/models/{model}", api_oip_model, API_SURFACE_OIP, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/v2/models/{model}/versions/{version}", api_oip_model_version, API_SURFACE_OIP, API_BODY_NONE,
          0, LOOP),
    ROUTE(GET, "/v2/models/{model}/ready", api_oip_model_ready, API_SURFACE_OIP, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/v2/models/{model}/versions/{version}/ready", api_oip_model_version_ready, API_SURFACE_OIP,
          API_BODY_NONE, 0, LOOP),
    ROUTE(POST, "/v2/models/{model}/infer", api_oip_infer, API_SURFACE_OIP, API_BODY_TENSORS, INFER, LOOP),
    ROUTE(POST, "/v2/models/{model}/versions/{version}/infer", api_oip_infer_version, API_SURFACE_OIP,
          API_BODY_TENSORS, INFER, LOOP),
    ROUTE(POST, "/v2/models/{model}/generate", api_oip_generate, API_SURFACE_OIP, API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/v2/models/{model}/versions/{version}/generate", api_oip_generate_version, API_SURFACE_OIP,
          API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/v2/models/{model}/generate_stream", api_oip_generate_stream, API_SURFACE_OIP, API_BODY_JSON,
          TEXT, LOOP),
    ROUTE(POST, "/v2/models/{model}/versions/{version}/generate_stream", api_oip_generate_stream_version,
          API_SURFACE_OIP, API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/v2/repository/index", api_oip_repository_index, API_SURFACE_OIP, API_BODY_JSON_OR_EMPTY,
          SMALL, SHORT),
    ROUTE(POST, "/v2/repository/models/{model}/load", api_oip_repository_load, API_SURFACE_OIP,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(POST, "/v2/repository/models/{model}/unload", api_oip_repository_unload, API_SURFACE_OIP,
          API_BODY_JSON_OR_EMPTY, SMALL, LOOP),
    ROUTE(GET, "/v1/models", api_openai_models, API_SURFACE_OPENAI, API_BODY_NONE, 0, SHORT),
    ROUTE(GET, "/v1/models/{model}", api_openai_model, API_SURFACE_OPENAI, API_BODY_NONE, 0, SHORT),
    ROUTE(POST, "/v1/completions", api_openai_completions, API_SURFACE_OPENAI, API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/v1/chat/completions", api_openai_chat, API_SURFACE_OPENAI, API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/tokenize", api_tokenize, API_SURFACE_OPENAI, API_BODY_JSON, TEXT, LOOP),
    ROUTE(POST, "/detokenize", api_detokenize, API_SURFACE_OPENAI, API_BODY_JSON, INFER, LOOP),
    ROUTE_PROBE(GET, "/healthz", api_healthz, API_SURFACE_PAGE, LOOP),
    ROUTE_PROBE(GET, "/readyz", api_readyz, API_SURFACE_PAGE, LOOP),
    ROUTE_PROBE(GET, "/health", api_health, API_SURFACE_PAGE, LOOP),
    ROUTE(GET, "/version", api_version_text, API_SURFACE_PAGE, API_BODY_NONE, 0, LOOP),
    ROUTE_PROBE(GET, "/metrics", api_metrics, API_SURFACE_PAGE, SHORT),
    ROUTE(GET, "/openapi.yaml", api_openapi_yaml, API_SURFACE_PAGE, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/openapi.json", api_openapi_json, API_SURFACE_PAGE, API_BODY_NONE, 0, LOOP),
    ROUTE(GET, "/{asset}", api_asset, API_SURFACE_PAGE, API_BODY_NONE, 0, LOOP),
};
const size_t api_routes_count = sizeof api_routes / sizeof api_routes[0];

_Static_assert(sizeof api_routes / sizeof api_routes[0] <= API_ROUTES_MAX,
               "the counters have a row for each route");

const struct api_route *api_route_find(enum api_method method, const char *path, struct api_params *params,
                                       unsigned *ret_allowed)
{
    unsigned allowed = 0;

    /* The page's files are the last route and take any path: they decide nothing about methods. */
    for (size_t i = 0; i < api_routes_count - 1; i++) {
        const struct api_route *route = &api_routes[i];

        if (method != route->method && allowed & 1u << route->method)
            continue;
        if (!api_path_match(route->path, path, params))
            continue;
        if (route->method == method)
            return route;
        allowed |= 1u << route->method;
    }
    if (!allowed && api_surface_of(path) == API_SURFACE_PAGE) {
        const struct api_route *page = &api_routes[api_routes_count - 1];

        if (api_path_match(page->path, path, params)) {
            if (method == API_GET)
                return page;
            if (web_asset_find(path))
                allowed = 1u << API_GET;
        }
    }
    *ret_allowed = allowed;
    return NULL;
}

void api_routes_print(FILE *out)
{
    for (size_t i = 0; i < api_routes_count; i++)
        fprintf(out, "%s %s %s\n", api_method_name(api_routes[i].method), api_routes[i].path,
                api_routes[i].operation);
}
