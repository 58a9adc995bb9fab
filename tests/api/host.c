/* The real HTTP server, store and configuration with the fake supervisor, for the tests of api.
 *
 *   api_host STATE_DIR [flags of polyd]
 *
 * Prints "port N" when it listens. Then one command a line on standard input, answered by "ok" or "error
 * ...": start RUN            an attempt begins and runs end RUN              it ends, succeeded log RUN N
 * TEXT       appends TEXT and a newline to the log of attempt N checkpoint RUN STEP  a checkpoint row keys
 * RUN N             N metric keys of attempt 1, as its worker logs them points RUN ATTEMPT JSON      points
 * likewise expand               makes the runs that jobs still lack stall MS             the writer sleeps kept PATH a run with the resolved document of that file
 * drain, stop          api_drain; api_stop and exit (so does the end of the input) */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/api.h"
#include "api/ingest.h"
#include "daemon/polyd/config/config.h"
#include "daemon/job/job.h"
#include "daemon/polyd/store/store.h"
#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/expand.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "tests/api/fake_sup.h"

static sem_t go;

struct command {
    char verb[16];
    long long a, b;
    const char *document;
    struct api_batch batch; /* of "points" */
};

/* A run with the resolved document that an earlier version of polyd kept, of a job of its own. */
static enum pd_err insert_kept(struct store_tx *tx, const char *document, struct pd_why *why)
{
    struct store_job_new job = {.name = "kept",
                                .experiment = "default",
                                .document = document,
                                .planned = 1,
                                .points = 1,
                                .trials = 1,
                                .metric = "loss/val"};
    struct store_run_new run = {.document = document,
                                .config_digest = "",
                                .plan_digest = "",
                                .device = "cpu",
                                .slots = 1,
                                .threads = 1,
                                .total_steps = -1};
    int64_t id;
    enum pd_err err = store_job_insert(tx, &job, &id, why);

    return err == PD_OK ? store_run_insert(tx, id, &run, &id, why) : err;
}

static enum pd_err apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct command *c = ctx;
    enum pd_err err = PD_OK;
    int n = 0;

    if (c->document)
        return insert_kept(tx, c->document, why);
    if (strcmp(c->verb, "stall") == 0) {
        usleep((useconds_t)c->a * 1000);
        return PD_OK;
    }
    if (strcmp(c->verb, "hold") == 0) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 60; /* a test that died must not hold the stop up for ever */
        while (sem_timedwait(&go, &until) < 0 && errno == EINTR)
            ;
        return PD_OK;
    }
    if (strcmp(c->verb, "start") == 0) {
        struct store_attempt_new a = {.run_id = c->a, .devices = "cpu:0,cpu:1"};

        err = store_attempt_insert(tx, &a, &n, why);
        if (err == PD_OK)
            err = store_attempt_process(tx, c->a, n, 1, 1, why);
        if (err == PD_OK)
            err = store_attempt_move(tx, c->a, n, JOB_ATTEMPT_RUNNING, JOB_CAUSE_DONE, "", -1, why);
        if (err == PD_OK)
            err = store_run_move(tx, c->a, JOB_RUN_RUNNING, JOB_OUTCOME_SUCCEEDED, "", why);
    } else if (strcmp(c->verb, "backoff") == 0) {
        err = store_run_set_backoff(tx, c->a, (int)c->b, store_tx_now_us(tx) + 3600000000, why);
    } else if (strcmp(c->verb, "end") == 0) {
        err = store_attempt_move(tx, c->a, 1, JOB_ATTEMPT_ENDED, JOB_CAUSE_DONE, "done", 0, why);
        if (err == PD_OK)
            err = store_run_move(tx, c->a, JOB_RUN_ENDED, (enum job_outcome)c->b, "", why);
    } else if (strcmp(c->verb, "length") == 0) {
        err = store_attempt_progress(tx, c->a, 1, -1, c->b, -1, why);
    } else if (strcmp(c->verb, "checkpoint") == 0) {
        char path[64];
        struct store_checkpoint row = {.run_id = c->a,
                                       .attempt = 1,
                                       .step = c->b,
                                       .kind = "latest",
                                       .path = path,
                                       .bytes = 4096,
                                       .digest =
                                           "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
                                       .value = 0.25};
        int64_t id;

        snprintf(path, sizeof path, "/nowhere/checkpoint-%lld", (long long)c->b);
        err = store_checkpoint_insert(tx, &row, &id, why);
    } else if (strcmp(c->verb, "keys") == 0) {
        struct store_metric p = {.step = 1, .time_us = 1, .value = 0.5};
        char key[64];

        p.key = key;
        for (long long i = 0; i < c->b && err == PD_OK; i++) {
            snprintf(key, sizeof key, "w/%06lld", i);
            err = store_metric_append(tx, c->a, 1, &p, 1, NULL, why);
        }
    } else if (strcmp(c->verb, "points") == 0) {
        err = store_metric_append(tx, c->a, (int)c->b, c->batch.points, c->batch.count, NULL, why);
    } else {
        err = pd_fail(why, PD_ERR_INVALID, "unknown command");
    }
    return err;
}

int main(int argc, char **argv)
{
    const char *flags[64] = {argv[0]};
    char dir_flag[600], *line = NULL;
    size_t size = 0;
    struct config_report report;
    struct config *config = NULL;
    struct store_writer *writer = NULL;
    struct api *api = NULL;
    struct sup *sup = NULL;
    struct expander *expander = NULL;
    struct pd_why why = {.text = ""};
    int n = 1, rc = 1;

    if (argc < 2 || argc > 60) {
        fprintf(stderr, "usage: api_host STATE_DIR [flags]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    sem_init(&go, 0, 0);
    snprintf(dir_flag, sizeof dir_flag, "--state.dir=%s", argv[1]);
    flags[n++] = dir_flag;
    for (int i = 2; i < argc; i++)
        flags[n++] = argv[i];
    config_report_init(&report);
    if (config_load(n, flags, NULL, &config, &report) != PD_OK) {
        struct pd_buf text;

        pd_buf_init(&text, 0);
        config_report_text(&report, &text);
        fprintf(stderr, "%s", text.data ? text.data : "");
        pd_buf_done(&text);
        config_report_done(&report);
        return 2;
    }
    config_report_done(&report);
    pd_log_set_level((enum pd_log_level)config->log.level);
    {
        struct store_writer_options o = {.state_dir = argv[1], .lane_limit = 24};
        struct api_deps deps = {.config = config};

        if (store_writer_start(&o, &writer, &why) != PD_OK || !(sup = fake_sup_new(argv[1])))
            goto out;
        deps.writer = writer;
        deps.sup = sup;
        if (api_start(&deps, &api, &why) != PD_OK)
            goto out;
    }
    printf("port %u\n", api_port(api));
    fflush(stdout);
    while (getline(&line, &size, stdin) > 0) {
        struct command c = {.a = 0};
        struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = apply, .ctx = &c};
        enum pd_err err = PD_OK;

        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "stop") == 0)
            break;
        if (strcmp(line, "drain") == 0) {
            api_drain(api);
        } else if (strcmp(line, "expand") == 0) {
            if (!expander)
                err = expander_start(writer, NULL, NULL, &expander, &why);
            expander_wake(expander);
        } else if (strncmp(line, "log ", 4) == 0) {
            int attempt, at = 0;
            long long run;
            char path[1024];
            FILE *log;

            if (sscanf(line, "log %lld %d %n", &run, &attempt, &at) < 2 || !at)
                err = PD_ERR_INVALID;
            sup_log_path(sup, run, attempt, path, sizeof path);
            log = err == PD_OK ? fopen(path, "a") : NULL;
            if (log) {
                fprintf(log, "%s\n", line + at);
                fclose(log);
            }
        } else if (strncmp(line, "kept ", 5) == 0) {
            struct pd_buf text;

            pd_buf_init(&text, 0);
            err = pd_file_read(line + 5, JOB_MAX_BYTES, &text, &why);
            c.document = text.data;
            if (err == PD_OK)
                err = store_writer_call(writer, &work, &why);
            pd_buf_done(&text);
        } else if (strncmp(line, "points ", 7) == 0) { /* RUN ATTEMPT JSON: as its worker would */
            char pointer[128];
            int at = 0;

            if (sscanf(line, "%15s %lld %lld %n", c.verb, &c.a, &c.b, &at) < 3 || !at)
                err = PD_ERR_INVALID;
            else
                err = api_batch_parse(line + at, strlen(line + at), pd_clock_wall_us(), &c.batch, pointer,
                                      sizeof pointer, &why);
            if (err == PD_OK) {
                err = store_writer_call(writer, &work, &why);
                api_batch_done(&c.batch);
            }
        } else if (sscanf(line, "%15s %lld %lld", c.verb, &c.a, &c.b) < 1) {
            err = PD_ERR_INVALID;
        } else if (strcmp(c.verb, "go") == 0) {
            sem_post(&go);
        } else if (strcmp(c.verb, "stall") == 0 || strcmp(c.verb, "hold") == 0) {
            /* Not waited for. */
            static struct command stalls[64];
            static int stall;

            stalls[stall % 64] = c;
            work.ctx = &stalls[stall++ % 64];
            err = store_writer_submit(writer, &work, &why);
        } else {
            err = store_writer_call(writer, &work, &why);
        }
        if (err == PD_OK)
            printf("ok\n");
        else
            printf("error %s %s\n", pd_err_name(err), why.text);
        fflush(stdout);
    }
    free(line);
    rc = 0;
out:
    if (rc)
        fprintf(stderr, "api_host: %s\n", why.text);
    api_stop(api);
    sem_post(&go); /* what is held is committed after the server gave its requests up */
    sup_stop(sup);
    expander_stop(expander);
    store_writer_stop(writer);
    api_free(api);
    config_free(config);
    if (!rc)
        printf("stopped\n");
    return rc;
}
