/* polyd: connects its modules and watches over them.
 *
 * The main thread starts store, supervisor and api, then waits for signals and feeds systemd's watchdog, but
 * only while the store's writer and the supervisor show signs of life.
 *   SIGTERM, SIGINT  stop in order: api, supervisor, store. Training workers stay and are found again
 *   SIGHUP           reads data roots, [keep] and the log level again, and says what else needs a restart
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/api.h"
#include "daemon/polyd/config/config.h"
#include "daemon/polyd/doctor.h"
#include "daemon/polyd/gc.h"
#include "daemon/polyd/notify.h"
#include "daemon/job/job.h"
#include "daemon/job/metric.h"
#include "daemon/polyd/state_dir.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/store/verify.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define EXIT_LOST                                                                                            \
    78 /* the state folder's database is lost: EX_CONFIG; the unit file does not start it again */
#define START_MORE_US (INT64_C(60) * 1000000)
#define ALIVE_US 20000000                /* a thread silent for so long is taken for dead */
#define AGE_US (INT64_C(3600) * 1000000) /* an hour of waiting raises a run's priority by one */

extern char **environ;

struct daemon {
    struct config *config;
    struct store_writer *writer;
    struct sup *sup;
    struct api *api;
    struct config **renewed; /* by SIGHUP; older ones may be in use */
    size_t renewals;
};

static void print_buf(FILE *out, struct pd_buf *b)
{
    if (b->data)
        fwrite(b->data, 1, b->len, out);
    pd_buf_done(b);
}

/* ---- polyd verify --------------------------------------------------------------------------- */

static void print_problem(void *ctx, const char *text)
{
    (void)ctx;
    printf("%s\n", text);
}

static int verify(const struct config *config)
{
    struct pd_why why;
    int64_t problems = 0;
    bool quick = config->arg_count > 1 && !strcmp(config->args[1], "quick");

    if (config->arg_count > (quick ? 2 : 1)) {
        fprintf(stderr, "polyd verify: no such argument: %s\n", config->args[quick ? 2 : 1]);
        return 2;
    }
    if (store_verify(config->state.dir, !quick, print_problem, NULL, &problems, &why) != PD_OK) {
        fprintf(stderr, "polyd verify: %s\n", why.text);
        return 1;
    }
    printf("%s: %lld problem%s\n", config->state.dir, (long long)problems, problems == 1 ? "" : "s");
    return problems ? 1 : 0;
}

static int collect(const struct config *config)
{
    bool dry = config->arg_count > 1 && !strcmp(config->args[1], "--dry-run");

    if (config->arg_count > (dry ? 2 : 1)) {
        fprintf(
            stderr,
            "polyd gc: no such argument: %s; the only one is --dry-run, and flags of polyd come before gc\n",
            config->args[dry ? 2 : 1]);
        return 2;
    }
    return gc(config, dry);
}

/* ---- start and stop ------------------------------------------------------------------------- */

static void log_failure(const char *what, enum pd_err err, const struct pd_why *why)
{
    char quoted[600];

    pd_log(PD_LOG_ERROR, "polyd", "%s=failed error=%s why=%s", what, pd_err_name(err),
           pd_log_quote(quoted, sizeof quoted, why->text));
}

/* systemd aborts a start without notifications; each notification extends the time by a minute. Sent when the activity
 * changes, else once per second. */
static void busy(void *ctx, const char *what)
{
    static char last[128];
    static int64_t logged_us;
    int64_t now_us = pd_clock_mono_us();

    (void)ctx;
    if (!strcmp(what, last) && now_us - logged_us < 1000000)
        return;
    snprintf(last, sizeof last, "%s", what);
    logged_us = now_us;
    notify_send("EXTEND_TIMEOUT_USEC=%lld\nSTATUS=%s", (long long)START_MORE_US, what);
}

/* *ret_status: what the program's exit status is to be if it failed. */
static struct sup_data_root *roots_of(const struct config *c)
{
    struct sup_data_root *roots = calloc(c->data.count + 1, sizeof *roots);

    for (size_t i = 0; roots && i < c->data.count; i++)
        roots[i] = (struct sup_data_root){.name = c->data.roots[i].name, .path = c->data.roots[i].path};
    return roots;
}

static enum pd_err start(struct daemon *d, int *ret_status)
{
    const struct config *c = d->config;
    struct store_writer_options store = {.state_dir = c->state.dir,
                                         .init = c->action == CONFIG_ACTION_INIT,
                                         .busy = busy,
                                         .external_checkpoint = c->store.checkpoint_external != 0,
                                         .limits = {[STORE_LANE_COMMAND] = (int)c->limits.submissions,
                                                    [STORE_LANE_WORKER] = (int)c->limits.updates,
                                                    [STORE_LANE_METRICS] = (int)c->limits.metrics}};
    struct sup_data_root *roots = roots_of(c);
    struct sup_options sup = {.state_dir = c->state.dir,
                              .busy = busy,
                              .worker_path = c->worker.path,
                              .cpu_slots = (int)c->devices.cpu_slots,
                              .cpu_threads = (int)c->devices.threads_per_slot,
                              .nvml = c->devices.nvml,
                              .gpu_sample_us = c->devices.gpu_sample_ms * 1000,
                              .grace_us = c->worker.grace_s * 1000000,
                              .age_us = AGE_US,
                              .silence_us = c->runs.silence_s * 1000000,
                              .cache_bytes = c->cache.max_bytes > 0 ? c->cache.max_bytes : 1,
                              .infer_queue = (int)c->serve.queue,
                              .serve_cuda = c->serve.device == CONFIG_SERVE_CUDA,
                              .serve_bf16 = c->serve.weights == CONFIG_WEIGHTS_BF16,
                              .serve_decode = (int)c->serve.decode,
                              .serve_memory = c->serve.memory_bytes,
                              .serve_delay_us = c->serve.batch_delay_us,
                              .roots = roots,
                              .root_count = (int)c->data.count};
    const char *selftest = getenv("POLYD_SELFTEST");
    struct api_deps deps = {.config = c};
    struct pd_why why = {""};
    struct pd_buf gpus;
    enum pd_err err = PD_OK;

    pd_buf_init(&gpus, 0);
    for (size_t i = 0; i < c->devices.gpus.count; i++)
        pd_buf_printf(&gpus, "%s%s", i ? "," : "", c->devices.gpus.items[i]);
    sup.gpus = gpus.data ? gpus.data : "none"; /* an empty list names none */
    if (!roots || gpus.failed)
        err = pd_fail(&why, PD_ERR_NOMEM, "no memory to start");
    if (selftest && !strcmp(selftest, "1")) {
        /* For fault tests: every run gets the diagnostic role (daemon/worker/kinds/selftest.c). */
        sup.train_role = "selftest";
        const char *hang_ms = getenv("POLYD_SELFTEST_HANG_MS");

        sup.backoff_us = 20000;
        sup.hang_us = hang_ms ? atoll(hang_ms) * 1000 : 0;
        pd_log(PD_LOG_WARNING, "polyd", "selftest=1 why=\"runs are not trained\"");
    }
    if (err == PD_OK)
        err = state_dir_open(c->state.dir, &why);
    if (err != PD_OK)
        log_failure("state", err, &why);
    if (err == PD_OK && (err = store_writer_start(&store, &d->writer, &why)) != PD_OK) {
        log_failure("store", err, &why);
        if (err == PD_ERR_CONFLICT)
            *ret_status = EXIT_LOST;
    }
    if (err == PD_OK && (err = sup_start(&sup, d->writer, &d->sup, &why)) != PD_OK)
        log_failure("supervise", err, &why);
    deps.writer = d->writer;
    deps.sup = d->sup;
    if (err == PD_OK && (err = api_start(&deps, &d->api, &why)) != PD_OK)
        log_failure("api", err, &why);
    free(roots);
    pd_buf_done(&gpus);
    return err;
}

static void stop(struct daemon *d)
{
    notify_send("STOPPING=1\nSTATUS=finishing requests");
    api_stop(d->api);
    d->sup = sup_stop(d->sup);
    d->writer = store_writer_stop(d->writer);
    d->api = api_free(d->api);
    for (size_t i = 0; i < d->renewals; i++)
        config_free(d->renewed[i]);
    free(d->renewed);
}

/* Applies the settings that may change in a running daemon; the configuration itself stays constant, because threads read it. */
static enum pd_err renew(struct daemon *d, struct config *fresh, struct pd_buf *left, struct pd_why *why)
{
    const struct config *now = d->renewals ? d->renewed[d->renewals - 1] : d->config;
    struct config **more = realloc(d->renewed, (d->renewals + 1) * sizeof(struct config *));
    struct sup_data_root *roots = roots_of(fresh);
    enum pd_err err = more && roots ? PD_OK : pd_fail(why, PD_ERR_NOMEM, "no memory for a configuration");

    if (more)
        d->renewed = more;
    if (err == PD_OK) {
        config_renew(fresh, now, left);
        err = sup_set_roots(d->sup, roots, (int)fresh->data.count, why);
    }
    if (err == PD_OK) {
        d->renewed[d->renewals++] = fresh;
        api_reconfigure(d->api, fresh);
        pd_log_set_level((enum pd_log_level)fresh->log.level);
    }
    free(roots);
    return err;
}

static void reload(struct daemon *d, int argc, char **argv)
{
    struct config_report report;
    struct config *fresh = NULL;
    struct pd_buf text, left;
    struct pd_why why = {""};

    notify_send("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)pd_clock_mono_us());
    config_report_init(&report);
    pd_buf_init(&text, 0);
    pd_buf_init(&left, 0);
    if (config_load(argc, (const char *const *)argv, (const char *const *)environ, &fresh, &report) ==
        PD_OK) {
        if (renew(d, fresh, &left, &why) == PD_OK) {
            pd_log(PD_LOG_INFO, "polyd",
                   "reload=done log_level=%lld data_roots=%zu keep_best=%lld keep_latest=%lld",
                   (long long)fresh->log.level, fresh->data.count, (long long)fresh->keep.best,
                   (long long)fresh->keep.latest);
            if (left.len)
                pd_log(PD_LOG_WARNING, "polyd", "reload=partial needs a restart: %s", left.data);
            fresh = NULL; /* moved */
        } else {
            pd_log(PD_LOG_ERROR, "polyd", "reload=refused why=\"%s\"", why.text);
        }
    } else {
        config_report_text(&report, &text);
        pd_log(PD_LOG_ERROR, "polyd", "reload=refused why=\"%.*s\"",
               (int)strcspn(text.data ? text.data : "", "\n"), text.data ? text.data : "");
    }
    pd_buf_done(&text);
    pd_buf_done(&left);
    config_report_done(&report);
    config_free(fresh);
    notify_send("READY=1");
}

static bool alive(const struct daemon *d)
{
    int64_t now_us = pd_clock_mono_us();

    return now_us - store_writer_alive_us(d->writer) < ALIVE_US && now_us - sup_alive_us(d->sup) < ALIVE_US;
}

/* Until a signal asks for the end. */
static void watch(struct daemon *d, int argc, char **argv, const sigset_t *signals)
{
    int64_t watchdog_us = notify_watchdog_us(), fed_us = 0;
    bool was_alive = true;

    for (;;) {
        struct timespec timeout = {.tv_sec = 1};
        int64_t now_us = pd_clock_mono_us();
        int sig;

        if (alive(d) != was_alive) {
            was_alive = !was_alive;
            pd_log(was_alive ? PD_LOG_INFO : PD_LOG_ERROR, "polyd", "alive=%d", was_alive);
        }
        if (watchdog_us && was_alive &&
            now_us - fed_us >= (watchdog_us < 1000000 ? 0 : watchdog_us - 1000000)) {
            notify_send("WATCHDOG=1");
            fed_us = now_us;
        }
        if (watchdog_us && watchdog_us < 1000000)
            timeout = (struct timespec){.tv_nsec = watchdog_us * 1000};
        sig = sigtimedwait(signals, NULL, &timeout);
        if (sig == SIGTERM || sig == SIGINT) {
            pd_log(PD_LOG_INFO, "polyd", "signal=%s", sig == SIGTERM ? "TERM" : "INT");
            return;
        }
        if (sig == SIGHUP)
            reload(d, argc, argv);
    }
}

/* systemd names the device and inode of its pipe. */
static bool journal_reads_stderr(void)
{
    const char *text = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat s;

    return text && sscanf(text, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &s) == 0 &&
           s.st_dev == device && s.st_ino == inode;
}

static int run(struct config *config, int argc, char **argv)
{
    struct daemon d = {.config = config};
    struct rlimit files;
    sigset_t signals;
    int status = 1;
    enum pd_err err;

    pd_log_set_level((enum pd_log_level)config->log.level);
    pd_log_omit_priority(!journal_reads_stderr());
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files); /* best effort: the limits of the api fit the smaller one too */
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a full disk is an error that the store reports */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* inherited by every thread: they come to us alone */
    pd_log(PD_LOG_INFO, "polyd", "version=%s pid=%d state=%s config=%s", POLYD_VERSION, (int)getpid(),
           config->state.dir, config->file ? config->file : "none");
    err = start(&d, &status);
    if (err == PD_OK) {
        pd_log(PD_LOG_INFO, "polyd", "listening=%s port=%u", config->server.listen, api_port(d.api));
        notify_send("READY=1\nSTATUS=listening on %s port %u", config->server.listen, api_port(d.api));
        watch(&d, argc, argv, &signals);
    }
    stop(&d);
    if (err == PD_OK)
        pd_log(PD_LOG_INFO, "polyd", "stopped=1");
    return err == PD_OK ? 0 : status;
}

static int table_print(const char *name, enum pd_err (*table)(struct pd_buf *ret_text, struct pd_why *why))
{
    struct pd_buf text;
    struct pd_why why;

    pd_buf_init(&text, 0);
    if (table(&text, &why) != PD_OK) {
        fprintf(stderr, "polyd %s: %s\n", name, why.text);
        pd_buf_done(&text);
        return 1;
    }
    print_buf(stdout, &text);
    return 0;
}

static int command(struct config *config)
{
    if (!strcmp(config->args[0], "doctor") && config->arg_count == 1)
        return doctor(config);

    if (!strcmp(config->args[0], "verify"))
        return verify(config);
    if (!strcmp(config->args[0], "gc"))
        return collect(config);
    if (!strcmp(config->args[0], "routes") && config->arg_count == 1) {
        api_routes_print(stdout);
        return 0;
    }
    if (!strcmp(config->args[0], "fields") && config->arg_count == 1)
        return table_print("fields", job_fields_text);
    if (!strcmp(config->args[0], "metrics") && config->arg_count == 1)
        return table_print("metrics", job_metrics_json);
    fprintf(stderr, "polyd: no command '%s'; commands are:", config->args[0]);
    for (const struct config_command *c = config_commands; c->name; c++)
        fprintf(stderr, "%s %s%s%s", c == config_commands ? "" : ",", c->name, *c->args ? " " : "", c->args);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct config_report report;
    struct config *config = NULL;
    struct pd_buf text;
    int status = 0;

    config_report_init(&report);
    pd_buf_init(&text, 0);
    if (config_load(argc, (const char *const *)argv, (const char *const *)environ, &config, &report) !=
        PD_OK) {
        config_report_text(&report, &text);
        print_buf(stderr, &text);
        config_report_done(&report);
        return 2;
    }
    config_report_text(&report, &text);
    print_buf(stderr, &text); /* warnings */
    config_report_done(&report);
    switch (config->action) {
    case CONFIG_ACTION_HELP:
        config_help(&text);
        print_buf(stdout, &text);
        break;
    case CONFIG_ACTION_VERSION:
        printf("polyd " POLYD_VERSION "\n");
        break;
    case CONFIG_ACTION_SAMPLE:
        config_sample(&text);
        print_buf(stdout, &text);
        break;
    case CONFIG_ACTION_MANUAL:
        config_manual(&text);
        print_buf(stdout, &text);
        break;
    case CONFIG_ACTION_FORMAT:
        config_manual_conf(&text);
        print_buf(stdout, &text);
        break;
    case CONFIG_ACTION_CHECK:
        printf("configuration is fine%s%s\n", config->file ? ": " : "", config->file ? config->file : "");
        break;
    case CONFIG_ACTION_RUN:
        status = config->arg_count ? command(config) : run(config, argc, argv);
        break;
    case CONFIG_ACTION_INIT:
        if (config->arg_count) {
            fprintf(stderr, "polyd: --init runs the daemon; '%s' is a command of its own\n", config->args[0]);
            status = 2;
        } else
            status = run(config, argc, argv);
        break;
    }
    config_free(config);
    return status;
}
