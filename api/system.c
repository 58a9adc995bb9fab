/* Probes, version, configuration, queue, the contract, the page's files. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <microhttpd.h>

#include "api/gzip.h"
#include "api/handlers.h"
#include "api/json.h"
#include "api/openapi.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/job/gallery.h"
#include "daemon/job/job.h"
#include "daemon/job/metric.h"
#include "daemon/job/template.h"
#include "kernels/base/clock.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/file.h"
#include "web/assets.h"

#define ALIVE_MAX_US 10000000 /* a writer or supervisor silent for so long is not ready */
#define FILE_MAX (16u << 20)  /* a file of --web-dir */

/* ---- probes ----------------------------------------------------------------------------------- */

void api_healthz(struct api_req *r)
{
    api_reply_static(r, 200, "text/plain; charset=utf-8", "ok\n", 3);
}

void api_health(struct api_req *r)
{
    static const char body[] = "{\"status\":\"ok\"}";

    api_reply_static(r, 200, "application/json", body, sizeof body - 1);
}

void api_version_text(struct api_req *r)
{
    static const char body[] = POLYD_VERSION "\n";

    api_reply_static(r, 200, "text/plain; charset=utf-8", body, sizeof body - 1);
}

static bool probe(struct pd_buf *b, const char *name, bool ok, const char *reason)
{
    pd_buf_printf(b, "[%s] %s%s%s\n", ok ? "+" : "-", name, ok ? " ok" : " failed: ", ok ? "" : reason);
    return ok;
}

bool api_ready(struct api *api, struct pd_buf *b)
{
    const struct api_deps *deps = api_deps_of(api);
    struct pd_why why = {.text = ""};
    int64_t now = pd_clock_mono_us();
    bool ok = true;

    ok = probe(b, "accepting", !api_draining(api), "draining") && ok;
    ok = probe(b, "store", store_writer_health(deps->writer, &why) == PD_OK, why.text) && ok;
    ok =
        probe(b, "writer", now - store_writer_alive_us(deps->writer) < ALIVE_MAX_US, "no sign of life") && ok;
    ok = probe(b, "scheduler", now - sup_alive_us(deps->sup) < ALIVE_MAX_US, "no sign of life") && ok;
    return ok;
}

void api_readyz(struct api_req *r)
{
    char verbose[8];
    bool wants = api_query(r, "verbose", verbose, sizeof verbose);
    struct pd_buf b;
    bool ok;

    if (api_failed(r))
        return;
    pd_buf_init(&b, 0);
    ok = api_ready(api_of(r), &b);
    if (ok && !wants) {
        pd_buf_done(&b);
        pd_buf_str(&b, "ok\n");
    }
    if (!ok)
        api_retry_after(r, 1);
    api_reply(r, ok ? 200 : 503, "text/plain; charset=utf-8", &b);
}

/* ---- documents -------------------------------------------------------------------------------- */

void api_openapi_yaml(struct api_req *r)
{
    api_reply_static(r, 200, "application/yaml", api_openapi_yaml_text, api_openapi_yaml_text_len);
}

void api_openapi_json(struct api_req *r)
{
    api_reply_static(r, 200, "application/json", api_openapi_json_text, api_openapi_json_text_len);
}

/* Where to go on from here. */
void api_index(struct api_req *r)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "name", "polyd");
    api_json_kv_str(&b, "version", POLYD_VERSION);
    api_json_kv_str(&b, "contract", "/openapi.yaml");
    api_json_kv_str(&b, "fields", "/api/v1/fields");
    api_json_kv_str(&b, "page", "/");
    api_json_key(&b, "routes");
    api_json_open(&b, '[');
    for (size_t i = 0; i < api_routes_count; i++) {
        api_json_open(&b, '{');
        api_json_kv_str(&b, "method", api_method_name(api_routes[i].method));
        api_json_kv_str(&b, "path", api_routes[i].path);
        api_json_kv_str(&b, "operation", api_routes[i].operation);
        api_json_close(&b, '}');
    }
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

void api_version_get(struct api_req *r)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "name", "polyd");
    api_json_kv_str(&b, "version", POLYD_VERSION);
    api_json_kv_time(&b, "started", api_core_started_us(api_core_of(api_of(r))));
    api_json_key(&b, "libraries");
    api_json_open(&b, '{');
    api_json_kv_str(&b, "libmicrohttpd", MHD_get_version());
    api_json_kv_str(&b, "jansson", jansson_version_str());
    api_json_close(&b, '}');
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

/* A table that stays as it is while this polyd runs: the tag is that of its bytes. */
static void answer_table(struct api_req *r, enum pd_err (*table)(struct pd_buf *ret_json, struct pd_why *why))
{
    const char *seen = api_header(r, "If-None-Match");
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    enum pd_err err;
    char tag[24];

    pd_buf_init(&b, 0);
    err = table(&b, &why);
    if (err == PD_OK) {
        snprintf(tag, sizeof tag, "\"%08x-%zx\"", pd_crc32c(0, b.data, b.len), b.len);
        api_reply_header(r, "ETag", tag);
        api_reply_header(r, "Cache-Control", "no-cache");
        if (seen && api_etag_match(seen, tag, true)) {
            pd_buf_done(&b);
            api_reply_empty(r, 304);
            return;
        }
    }
    api_answer(r, err, &why, &b);
}

void api_field_list(struct api_req *r)
{
    answer_table(r, job_fields_json);
}

void api_metric_catalogue(struct api_req *r)
{
    answer_table(r, job_metrics_json);
}

void api_template_list(struct api_req *r)
{
    answer_table(r, job_templates_json);
}

void api_formula_list(struct api_req *r)
{
    answer_table(r, job_gallery_json);
}

void api_template_get(struct api_req *r)
{
    const char *name = api_param(r, 0), *text;
    const size_t i = job_template_find(name);
    struct pd_buf b;
    size_t len;

    if (i == job_template_count()) {
        api_fail(r, PD_ERR_NOT_FOUND, "there is no template '%s'; there are E01 to E18 and T1 to T20", name);
        return;
    }
    text = job_template_text(i, &len);
    pd_buf_init(&b, 0);
    pd_buf_append(&b, text, len);
    api_reply_json(r, 200, &b);
}

static bool secret(const char *key)
{
    return strstr(key, "secret") || strstr(key, "password") || strstr(key, "token") || strstr(key, "private");
}

void api_config_get(struct api_req *r)
{
    const struct config *config = api_config(api_of(r));
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_kv_str(&b, "file", config->file);
    api_json_key(&b, "settings");
    api_json_open(&b, '[');
    for (size_t i = 0; i < config_setting_count(config); i++) {
        struct config_setting s = config_setting_at(config, i);

        api_json_open(&b, '{');
        api_json_kv_str(&b, "section", s.section);
        api_json_kv_str(&b, "key", s.key);
        api_json_kv_str(&b, "value", secret(s.key) ? NULL : s.value);
        api_json_kv_str(&b, "source", config_source_name(s.source));
        api_json_kv_str(&b, "origin", s.origin);
        api_json_kv_str(&b, "meaning", s.meaning);
        api_json_close(&b, '}');
    }
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

/* ---- queue ------------------------------------------------------------------------------------- */

struct queued {
    int position;
    char *json;
};

struct queue_list {
    struct sup *sup;
    struct queued *rows;
    size_t count, size;
    bool failed;
};

static bool queue_row(void *ctx, const struct store_run *run)
{
    struct queue_list *q = ctx;
    struct sup_queue_info info = {.position = 0};
    struct pd_buf b;

    /* A run that the supervisor has not looked at yet stands at the end. */
    if (!sup_queue_get(q->sup, run->id, &info))
        info.position = 1 << 30;
    if (q->count == q->size) {
        size_t size = q->size ? q->size * 2 : 64;
        struct queued *rows = realloc(q->rows, size * sizeof *rows);

        if (!rows) {
            q->failed = true;
            return false;
        }
        q->rows = rows;
        q->size = size;
    }
    pd_buf_init(&b, 0);
    api_row_run(&b, run, NULL, q->sup, 0);
    q->rows[q->count].position = info.position;
    q->rows[q->count].json = pd_buf_take(&b);
    q->failed = q->failed || !q->rows[q->count].json;
    q->count++;
    return !q->failed;
}

static int by_position(const void *a, const void *b)
{
    const struct queued *x = a, *y = b;

    return (x->position > y->position) - (x->position < y->position);
}

void api_queue_list(struct api_req *r)
{
    static const int states[] = {JOB_RUN_QUEUED, JOB_RUN_PREEMPTED};
    struct store *store = api_reader(r);
    struct queue_list q = {.sup = api_deps_of(api_of(r))->sup};
    struct pd_why why = {.text = ""};
    enum pd_err err = PD_OK;
    struct pd_buf b;

    if (!store)
        return;
    for (size_t i = 0; i < 2 && err == PD_OK; i++) {
        struct store_run_query query = {
            .state = states[i], .outcome = -1, .order = STORE_ORDER_PRIORITY, .limit = STORE_PAGE_MAX};

        err = store_run_list(store, &query, queue_row, &q, &why);
    }
    if (err == PD_OK && q.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory for the queue");
    if (err == PD_OK && q.count)
        qsort(q.rows, q.count, sizeof *q.rows, by_position);
    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_key(&b, "queue");
    api_json_open(&b, '[');
    for (size_t i = 0; i < q.count; i++) {
        if (i < STORE_PAGE_MAX)
            api_json_raw(&b, q.rows[i].json);
        free(q.rows[i].json);
    }
    free(q.rows);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_answer(r, err, &why, &b);
}

/* ---- the page --------------------------------------------------------------------------------- */

static const char *type_of(const char *path)
{
    static const struct {
        const char *ending, *type;
    } types[] = {{".html", "text/html; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".mjs", "text/javascript; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".svg", "image/svg+xml"},
                 {".png", "image/png"},
                 {".json", "application/json"},
                 {".txt", "text/plain; charset=utf-8"},
                 {".woff2", "font/woff2"}};
    size_t len = strlen(path);

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        size_t n = strlen(types[i].ending);

        if (len > n && strcmp(path + len - n, types[i].ending) == 0)
            return types[i].type;
    }
    return "application/octet-stream";
}

static void page_headers(struct api_req *r, const char *type)
{
    api_reply_header(r, "Cache-Control", "no-cache");
    api_reply_header(r, "Referrer-Policy", "no-referrer");
    if (strncmp(type, "text/html", 9) == 0 || strncmp(type, "image/svg", 9) == 0)
        api_reply_header(r, "Content-Security-Policy", WEB_CONTENT_SECURITY_POLICY);
}

/* A file below the directory, for development; links and ".." do not lead out of it. */
static void file_from_dir(struct api_req *r, const char *dir, const char *name)
{
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    char path[4096], real[4096], root[4096];
    const char *type;
    enum pd_err err;

    if (!*name)
        name = "index.html";
    type = type_of(name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!realpath(dir, root) || !realpath(path, real) || strncmp(real, root, strlen(root)) != 0 ||
        real[strlen(root)] != '/') {
        api_fail(r, API_FAULT_NO_ROUTE, "no resource has the path %.200s", api_path(r));
        return;
    }
    pd_buf_init(&b, 0);
    err = pd_file_read(real, FILE_MAX, &b, &why);
    if (err != PD_OK) {
        pd_buf_done(&b);
        api_fail(r, API_FAULT_NO_ROUTE, "no resource has the path %.200s", api_path(r));
        return;
    }
    page_headers(r, type);
    api_reply(r, 200, type, &b);
}

void api_asset(struct api_req *r)
{
    const struct web_asset *asset;
    const char *encoding = api_header(r, "Accept-Encoding"), *seen = api_header(r, "If-None-Match");
    const char *web_dir = api_settings_of(r)->web_dir;
    char path[API_PARAM_BYTES + 1], tag[128];
    bool gzip;

    /* What npm brings is in no source folder: it always comes from the embedded files. */
    if (web_dir && strncmp(api_param(r, 0), "vendor/", 7) != 0) {
        file_from_dir(r, web_dir, api_param(r, 0));
        return;
    }
    snprintf(path, sizeof path, "/%s", api_param(r, 0));
    asset = web_asset_find(path);
    if (!asset) {
        api_fail(r, API_FAULT_NO_ROUTE, "no resource has the path %.200s", api_path(r));
        return;
    }
    gzip = asset->gzip && api_gzip_accepted(encoding);
    snprintf(tag, sizeof tag, "%s", asset->etag);
    if (gzip && strlen(tag) > 1 && strlen(tag) + 4 < sizeof tag)
        memcpy(tag + strlen(tag) - 1, "-gz\"", 5);
    page_headers(r, asset->content_type);
    api_reply_header(r, "ETag", tag);
    api_reply_header(r, "Vary", "Accept-Encoding");
    if (seen && api_etag_match(seen, tag, true)) {
        api_reply_empty(r, 304);
        return;
    }
    if (gzip)
        api_reply_header(r, "Content-Encoding", "gzip");
    api_reply_static(r, 200, asset->content_type, gzip ? asset->gzip : asset->bytes,
                     gzip ? asset->gzip_length : asset->length);
}
