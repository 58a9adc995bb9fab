/* Probes, version, configuration, devices, queue, Prometheus, the contract, the page's files. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>

#include <microhttpd.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/openapi.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/spec/spec.h"
#include "kernels/base/clock.h"
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
    api_reply_static(r, 200, "application/yaml", api_openapi_bytes, api_openapi_len);
}

void api_openapi_json(struct api_req *r)
{
    size_t len;
    const char *json = api_core_openapi_json(api_core_of(api_of(r)), &len);

    api_reply_static(r, 200, "application/json", json, len);
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

void api_field_list(struct api_req *r)
{
    struct pd_why why = {.text = ""};
    struct pd_buf b;
    enum pd_err err;

    pd_buf_init(&b, 0);
    err = spec_fields_json(&b, &why);
    api_answer(r, err, &why, &b);
}

static bool secret(const char *key)
{
    return strstr(key, "secret") || strstr(key, "password") || strstr(key, "token") || strstr(key, "private");
}

void api_config_get(struct api_req *r)
{
    const struct config *config = api_deps_of(api_of(r))->config;
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

/* ---- devices and queue ------------------------------------------------------------------------ */

static void device_row(void *ctx, const struct sup_device *d)
{
    struct pd_buf *b = ctx;

    api_json_open(b, '{');
    api_json_kv_str(b, "name", d->name);
    api_json_kv_str(b, "kind", d->kind);
    api_json_kv_str(b, "model", d->model);
    api_json_kv_int(b, "threads", d->threads);
    api_json_kv_int(b, "memory_bytes", d->memory_bytes);
    api_json_kv_str(b, "state", d->state);
    if (d->run_id) {
        api_json_kv_id(b, "run_id", d->run_id);
        api_json_kv_int(b, "attempt", d->attempt);
    } else {
        api_json_kv_null(b, "run_id");
        api_json_kv_null(b, "attempt");
    }
    api_json_close(b, '}');
}

void api_device_list(struct api_req *r)
{
    struct pd_buf b;

    pd_buf_init(&b, 0);
    api_json_open(&b, '{');
    api_json_key(&b, "devices");
    api_json_open(&b, '[');
    sup_device_list(api_deps_of(api_of(r))->sup, device_row, &b);
    api_json_close(&b, ']');
    api_json_close(&b, '}');
    api_reply_json(r, 200, &b);
}

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
    api_row_run(&b, run, q->sup, 0);
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
    static const int states[] = {SPEC_RUN_QUEUED, SPEC_RUN_PREEMPTED};
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

/* ---- Prometheus ------------------------------------------------------------------------------- */

static void family(struct pd_buf *b, const char *name, const char *type, const char *help)
{
    pd_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct pd_buf *b, const char *name, const char *help, double value)
{
    family(b, name, "gauge", help);
    pd_buf_printf(b, "%s %.17g\n", name, value);
}

static void counter(struct pd_buf *b, const char *name, const char *help, double value)
{
    family(b, name, "counter", help);
    pd_buf_printf(b, "%s %.17g\n", name, value);
}

static void label(struct pd_buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '\\' || *text == '"')
            pd_buf_append(b, "\\", 1);
        if (*text == '\n')
            pd_buf_str(b, "\\n");
        else
            pd_buf_append(b, text, 1);
    }
}

static void process_metrics(struct pd_buf *b, struct api_core *core)
{
    struct rusage usage;
    long pages = 0;
    int fds = 0;
    FILE *statm = fopen("/proc/self/statm", "re");
    DIR *dir = opendir("/proc/self/fd");

    if (statm) {
        if (fscanf(statm, "%*s %ld", &pages) != 1)
            pages = 0;
        fclose(statm);
    }
    if (dir) {
        while (readdir(dir))
            fds++;
        closedir(dir);
        fds -= 3; /* ".", ".." and the directory itself */
    }
    getrusage(RUSAGE_SELF, &usage);
    gauge(b, "process_resident_memory_bytes", "Resident memory of the daemon.",
          (double)pages * (double)sysconf(_SC_PAGESIZE));
    counter(b, "process_cpu_seconds_total", "Processor time of the daemon.",
            (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec));
    gauge(b, "process_open_fds", "Open file descriptors of the daemon.", fds);
    gauge(b, "process_start_time_seconds", "When the server started, seconds since 1970.",
          1e-6 * (double)api_core_started_us(core));
}

static void http_metrics(struct pd_buf *b, struct api_counters *c, struct api_core *core)
{
    unsigned long long sum = 0;

    (void)core;
    family(b, "polyd_http_requests_total", "counter", "Requests answered.");
    for (size_t i = 0; i <= API_ROUTES_MAX; i++) {
        if (i >= api_routes_count && i < API_ROUTES_MAX)
            continue;
        for (int j = 0; j < API_CODES; j++) {
            unsigned long long n = atomic_load_explicit(&c->requests[i][j], memory_order_relaxed);

            if (n)
                pd_buf_printf(b, "polyd_http_requests_total{route=\"%s\",method=\"%s\",code=\"%d\"} %llu\n",
                              i < api_routes_count ? api_routes[i].path : "none",
                              i < api_routes_count ? api_method_name(api_routes[i].method) : "none",
                              api_codes[j], n);
        }
    }
    family(b, "polyd_http_request_duration_seconds", "histogram",
           "From the request line to the end of the answer.");
    for (int i = 0; i <= API_DURATIONS; i++) {
        sum += atomic_load_explicit(&c->duration[i], memory_order_relaxed);
        if (i < API_DURATIONS)
            pd_buf_printf(b, "polyd_http_request_duration_seconds_bucket{le=\"%g\"} %llu\n",
                          1e-6 * (double)api_duration_bounds[i], sum);
    }
    pd_buf_printf(
        b,
        "polyd_http_request_duration_seconds_bucket{le=\"+Inf\"} %llu\n"
        "polyd_http_request_duration_seconds_sum %.6f\npolyd_http_request_duration_seconds_count %llu\n",
        sum, 1e-6 * (double)atomic_load(&c->duration_us), sum);
    gauge(b, "polyd_sse_clients", "Open event streams.", atomic_load(&c->sse_clients));
}

static void store_metrics(struct pd_buf *b, const struct store_stats *s)
{
    static const double bounds[11] = {0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008,
                                      0.016,   0.032,  0.064, 0.128, 0.256};
    static const char *const lanes[STORE_LANE_COUNT] = {"command", "worker", "metrics"};
    int64_t sum = 0;

    family(b, "polyd_db_commit_seconds", "histogram", "Duration of a group commit.");
    for (int i = 0; i < 12; i++) {
        sum += s->commit_hist[i];
        if (i < 11)
            pd_buf_printf(b, "polyd_db_commit_seconds_bucket{le=\"%g\"} %lld\n", bounds[i], (long long)sum);
    }
    pd_buf_printf(b,
                  "polyd_db_commit_seconds_bucket{le=\"+Inf\"} %lld\npolyd_db_commit_seconds_sum %.6f\n"
                  "polyd_db_commit_seconds_count %lld\n",
                  (long long)sum, 1e-6 * (double)s->commit_us_total, (long long)sum);
    gauge(b, "polyd_db_wal_bytes", "Size of the write-ahead log.", (double)s->wal_bytes);
    family(b, "polyd_db_queue_depth", "gauge", "Writes that wait for a commit.");
    for (int i = 0; i < STORE_LANE_COUNT; i++)
        pd_buf_printf(b, "polyd_db_queue_depth{lane=\"%s\"} %d\n", lanes[i], s->queued[i]);
    counter(b, "polyd_db_busy_total", "Writes that met a busy database.", (double)s->busy);
    counter(b, "polyd_metric_points_total", "Metric points stored since the start.", (double)s->points);
}

static void count_metrics(struct pd_buf *b, const struct store_counts *counts)
{
    double wait = 0;

    family(b, "polyd_jobs", "gauge", "Jobs by state.");
    for (int i = 0; i < SPEC_JOB_STATE_COUNT; i++)
        pd_buf_printf(b, "polyd_jobs{state=\"%s\"} %lld\n", spec_job_state_name((enum spec_job_state)i),
                      (long long)counts->jobs[i]);
    family(b, "polyd_runs", "gauge", "Runs by state.");
    for (int i = 0; i < SPEC_RUN_STATE_COUNT; i++)
        pd_buf_printf(b, "polyd_runs{state=\"%s\"} %lld\n", spec_run_state_name((enum spec_run_state)i),
                      (long long)counts->runs[i]);
    if (counts->oldest_queued_us)
        wait = 1e-6 * (double)(pd_clock_wall_us() - counts->oldest_queued_us);
    gauge(b, "polyd_queue_oldest_wait_seconds", "Waiting time of the run queued longest.",
          wait > 0 ? wait : 0);
}

struct model_counts {
    struct pd_buf requests, failures, running, waiting, memory;
};

static void model_row(void *ctx, const struct sup_model_info *m)
{
    struct model_counts *c = ctx;
    struct {
        struct pd_buf *b;
        const char *name;
        int64_t value;
    } lines[] = {{&c->requests, "polyd_infer_requests_total", m->requests},
                 {&c->failures, "polyd_infer_failures_total", m->failures},
                 {&c->running, "polyd_infer_running", m->running},
                 {&c->waiting, "polyd_infer_waiting", m->waiting},
                 {&c->memory, "polyd_model_memory_bytes", m->memory_bytes}};

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        pd_buf_printf(lines[i].b, "%s{model=\"", lines[i].name);
        label(lines[i].b, m->model);
        pd_buf_printf(lines[i].b, "\",version=\"%lld\"} %lld\n", (long long)m->version,
                      (long long)lines[i].value);
    }
}

static void model_metrics(struct pd_buf *b, struct sup *sup)
{
    struct model_counts c;
    struct {
        struct pd_buf *b;
        const char *name, *type, *help;
    } families[] = {{&c.requests, "polyd_infer_requests_total", "counter", "Inference requests answered."},
                    {&c.failures, "polyd_infer_failures_total", "counter", "Inference requests that failed."},
                    {&c.running, "polyd_infer_running", "gauge", "Inference requests in work."},
                    {&c.waiting, "polyd_infer_waiting", "gauge", "Inference requests that wait."},
                    {&c.memory, "polyd_model_memory_bytes", "gauge", "Resident memory of a model's worker."}};

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        pd_buf_init(families[i].b, 0);
    sup_model_list(sup, model_row, &c);
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (families[i].b->len) {
            family(b, families[i].name, families[i].type, families[i].help);
            pd_buf_append(b, families[i].b->data, families[i].b->len);
        }
        pd_buf_done(families[i].b);
    }
}

static void device_count(void *ctx, const struct sup_device *d)
{
    int *counts = ctx;

    counts[0]++;
    counts[1] += d->run_id != 0;
}

void api_metrics(struct api_req *r)
{
    const struct api_deps *deps = api_deps_of(api_of(r));
    struct api_core *core = api_core_of(api_of(r));
    struct api_counters *c = api_counters_of(api_of(r));
    struct store *store = api_reader(r);
    struct store_counts counts;
    struct store_stats stats;
    struct sup_stats sup;
    struct pd_why why = {.text = ""};
    int devices[2] = {0, 0};
    struct pd_buf b;
    enum pd_err err;

    if (!store)
        return;
    err = store_count(store, &counts, &why);
    if (err != PD_OK) {
        api_fail_why(r, err, &why);
        return;
    }
    store_writer_stats(deps->writer, &stats);
    sup_stats(deps->sup, &sup);
    sup_device_list(deps->sup, device_count, devices);
    pd_buf_init(&b, 0);
    family(&b, "polyd_build_info", "gauge", "Always 1; the labels name the build.");
    pd_buf_str(&b, "polyd_build_info{version=\"" POLYD_VERSION "\"} 1\n");
    process_metrics(&b, core);
    count_metrics(&b, &counts);
    store_metrics(&b, &stats);
    counter(&b, "polyd_scheduler_cycles_total", "Scheduling cycles.", (double)sup.cycles);
    counter(&b, "polyd_scheduler_cycle_seconds_total", "Time spent in scheduling cycles.",
            1e-6 * (double)sup.cycle_us_total);
    counter(&b, "polyd_workers_spawned_total", "Worker processes started.", (double)sup.spawned);
    counter(&b, "polyd_workers_adopted_total", "Worker processes found again after a restart.",
            (double)sup.adopted);
    counter(&b, "polyd_workers_killed_total", "Worker processes killed after their grace.",
            (double)sup.killed);
    counter(&b, "polyd_worker_hangs_total", "Live workers that fell silent.", (double)sup.hangs);
    counter(&b, "polyd_runs_requeued_total", "Runs queued again after a lost attempt.", (double)sup.requeued);
    gauge(&b, "polyd_worker_connections", "Workers connected.", sup.connections);
    gauge(&b, "polyd_devices", "Devices offered.", devices[0]);
    gauge(&b, "polyd_devices_allocated", "Devices held by runs.", devices[1]);
    http_metrics(&b, c, core);
    model_metrics(&b, deps->sup);
    counter(&b, "polyd_infer_rejected_total", "Inference requests turned away because a queue was full.",
            (double)atomic_load(&c->rejected));
    gauge(&b, "polyd_infer_in_flight", "Inference requests waiting or in work.", api_core_infer_count(core));
    api_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
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
        api_fail(r, API_FAULT_NO_ROUTE, "there is nothing at %.200s", api_path(r));
        return;
    }
    pd_buf_init(&b, 0);
    err = pd_file_read(real, FILE_MAX, &b, &why);
    if (err != PD_OK) {
        pd_buf_done(&b);
        api_fail(r, API_FAULT_NO_ROUTE, "there is nothing at %.200s", api_path(r));
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
        api_fail(r, API_FAULT_NO_ROUTE, "there is nothing at %.200s", api_path(r));
        return;
    }
    gzip = asset->gzip && encoding && strstr(encoding, "gzip") && !strstr(encoding, "gzip;q=0");
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
