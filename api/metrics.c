/* GET /metrics: in the text format that Prometheus reads. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "api/handlers.h"
#include "api/json.h"
#include "api/rows.h"
#include "api/server.h"
#include "daemon/job/job.h"
#include "kernels/base/clock.h"

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

static void http_metrics(struct pd_buf *b, struct api_counters *c, int connections, int waiting)
{
    unsigned long long sum = 0;

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
    gauge(b, "polyd_http_connections", "Open connections.", connections);
    gauge(b, "polyd_http_waiting", "Requests that wait for a thread that reads the store.", waiting);
    counter(b, "polyd_http_departed_total", "Requests dropped because the client left while they waited.",
            (double)atomic_load(&c->departed));
    counter(b, "polyd_http_connections_replaced_total",
            "Connections closed to make a place for another: idle ones, or bodies that came slowly.",
            (double)atomic_load(&c->conns_replaced));
    counter(b, "polyd_http_slow_bodies_total", "Connections closed because a body came too slowly.",
            (double)atomic_load(&c->conns_slow));
    counter(b, "polyd_http_connections_refused_total", "Connections refused: all others were busy.",
            (double)atomic_load(&c->conns_refused));
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
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        pd_buf_printf(b, "polyd_jobs{state=\"%s\"} %lld\n", job_state_name((enum job_state)i),
                      (long long)counts->jobs[i]);
    family(b, "polyd_runs", "gauge", "Runs by state.");
    for (int i = 0; i < JOB_RUN_STATE_COUNT; i++)
        pd_buf_printf(b, "polyd_runs{state=\"%s\"} %lld\n", job_run_state_name((enum job_run_state)i),
                      (long long)counts->runs[i]);
    if (counts->oldest_queued_us)
        wait = 1e-6 * (double)(pd_clock_wall_us() - counts->oldest_queued_us);
    gauge(b, "polyd_queue_oldest_wait_seconds", "Waiting time of the run queued longest.",
          wait > 0 ? wait : 0);
}

struct model_counts {
    struct pd_buf requests, failures, running, waiting, memory, tokens, rejected;
    struct pd_buf batch, queue, compute, first_token, inter_token;
};

static void labels(struct pd_buf *b, const char *name, const struct sup_model_info *m)
{
    pd_buf_printf(b, "%s{model=\"", name);
    label(b, m->model);
    pd_buf_printf(b, "\",version=\"%lld\"", (long long)m->version);
}

static void histogram(struct pd_buf *b, const char *name, const struct sup_model_info *m,
                      const struct sup_hist *h, const double *bounds)
{
    char part[80];
    int64_t sum = 0;

    snprintf(part, sizeof part, "%s_bucket", name);
    for (int i = 0; i <= SUP_HIST_BOUNDS; i++) {
        sum += h->count[i];
        labels(b, part, m);
        if (i < SUP_HIST_BOUNDS)
            pd_buf_printf(b, ",le=\"%g\"} %lld\n", bounds[i], (long long)sum);
        else
            pd_buf_printf(b, ",le=\"+Inf\"} %lld\n", (long long)sum);
    }
    snprintf(part, sizeof part, "%s_sum", name);
    labels(b, part, m);
    pd_buf_printf(b, "} %.9g\n", h->sum);
    snprintf(part, sizeof part, "%s_count", name);
    labels(b, part, m);
    pd_buf_printf(b, "} %lld\n", (long long)sum);
}

static void model_row(void *ctx, const struct sup_model_info *m)
{
    struct model_counts *c = ctx;
    const struct sup_infer_stats *s = m->stats;
    struct {
        struct pd_buf *b;
        const char *name;
        int64_t value;
    } lines[] = {{&c->requests, "polyd_infer_requests_total", m->requests},
                 {&c->failures, "polyd_infer_failures_total", m->failures},
                 {&c->running, "polyd_infer_running", m->running},
                 {&c->waiting, "polyd_infer_waiting", m->waiting},
                 {&c->memory, "polyd_model_memory_bytes", m->memory_bytes},
                 {&c->tokens, "polyd_infer_tokens_total", s ? s->tokens : 0},
                 {&c->rejected, "polyd_infer_rejected_total", s ? s->rejected : 0}};

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        labels(lines[i].b, lines[i].name, m);
        pd_buf_printf(lines[i].b, "} %lld\n", (long long)lines[i].value);
    }
    if (!s)
        return;
    histogram(&c->batch, "polyd_infer_batch_size", m, &s->batch, sup_hist_batch);
    histogram(&c->queue, "polyd_infer_queue_seconds", m, &s->queue, sup_hist_seconds);
    histogram(&c->compute, "polyd_infer_compute_seconds", m, &s->compute, sup_hist_seconds);
    histogram(&c->first_token, "polyd_infer_time_to_first_token_seconds", m, &s->first_token,
              sup_hist_seconds);
    histogram(&c->inter_token, "polyd_infer_inter_token_seconds", m, &s->inter_token, sup_hist_seconds);
}

static void model_metrics(struct pd_buf *b, struct sup *sup)
{
    struct model_counts c;
    struct {
        struct pd_buf *b;
        const char *name, *type, *help;
    } families[] = {
        {&c.requests, "polyd_infer_requests_total", "counter", "Inference requests answered."},
        {&c.failures, "polyd_infer_failures_total", "counter", "Inference requests that failed."},
        {&c.running, "polyd_infer_running", "gauge", "Inference requests in work."},
        {&c.waiting, "polyd_infer_waiting", "gauge", "Inference requests that wait."},
        {&c.memory, "polyd_model_memory_bytes", "gauge", "Resident memory of a model's worker."},
        {&c.tokens, "polyd_infer_tokens_total", "counter", "Tokens made."},
        {&c.rejected, "polyd_infer_rejected_total", "counter",
         "Inference requests turned away because a model's queue was full."},
        {&c.batch, "polyd_infer_batch_size", "histogram",
         "Images, or sequences of a step, that a request was computed with."},
        {&c.queue, "polyd_infer_queue_seconds", "histogram",
         "From a request's arrival to the start of its work."},
        {&c.compute, "polyd_infer_compute_seconds", "histogram", "From the start of the work to the answer."},
        {&c.first_token, "polyd_infer_time_to_first_token_seconds", "histogram",
         "From a completion's arrival to its first token."},
        {&c.inter_token, "polyd_infer_inter_token_seconds", "histogram",
         "Between two tokens: each gap counts as the mean of its completion."}};

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

struct moves {
    struct pd_buf job, run;
};

static bool move_row(void *ctx, const struct store_tally *t)
{
    struct moves *m = ctx;
    bool job = !strcmp(t->kind, "job");

    if (job || !strcmp(t->kind, "run"))
        pd_buf_printf(job ? &m->job : &m->run, "polyd_%s_transitions_total{from=\"%s\",to=\"%s\"} %lld\n",
                      t->kind, *t->from ? t->from : "new", t->to, (long long)t->count);
    return true;
}

/* Counted in the store, by the transaction that moved: a restart does not set them back. */
static enum pd_err move_metrics(struct pd_buf *b, struct store *store, struct pd_why *why)
{
    struct moves m;
    enum pd_err err;

    pd_buf_init(&m.job, 0);
    pd_buf_init(&m.run, 0);
    err = store_tally_list(store, move_row, &m, why);
    family(b, "polyd_job_transitions_total", "counter", "Moves of jobs between states.");
    if (m.job.len)
        pd_buf_append(b, m.job.data, m.job.len);
    family(b, "polyd_run_transitions_total", "counter", "Moves of runs between states.");
    if (m.run.len)
        pd_buf_append(b, m.run.data, m.run.len);
    pd_buf_done(&m.job);
    pd_buf_done(&m.run);
    return err;
}

static void wait_metrics(struct pd_buf *b, const struct sup_stats *s)
{
    int64_t sum = 0;

    family(b, "polyd_job_wait_seconds", "histogram", "From the making of a run to its first start.");
    for (int i = 0; i <= SUP_WAITS; i++) {
        sum += s->waits[i];
        if (i < SUP_WAITS)
            pd_buf_printf(b, "polyd_job_wait_seconds_bucket{le=\"%g\"} %lld\n", sup_wait_bounds_s[i],
                          (long long)sum);
    }
    pd_buf_printf(b,
                  "polyd_job_wait_seconds_bucket{le=\"+Inf\"} %lld\npolyd_job_wait_seconds_sum %.6f\n"
                  "polyd_job_wait_seconds_count %lld\n",
                  (long long)sum, 1e-6 * (double)s->wait_us_total, (long long)sum);
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
    err = move_metrics(&b, store, &why);
    if (err != PD_OK) {
        pd_buf_done(&b);
        api_fail_why(r, err, &why);
        return;
    }
    wait_metrics(&b, &sup);
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
    api_gpu_metrics(&b, deps->sup);
    http_metrics(&b, c, api_connection_count(api_of(r)), api_pool_waiting(api_of(r)));
    model_metrics(&b, deps->sup);
    counter(&b, "polyd_infer_overloads_total", "Inference requests turned away by the server's own bound.",
            (double)atomic_load(&c->rejected));
    gauge(&b, "polyd_infer_in_flight", "Inference requests waiting or in work.", api_core_infer_count(core));
    api_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
