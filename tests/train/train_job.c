/* train_job JOB.json CHECKPOINTS [ROOT=PATH ...]: one run without daemon or worker, for tuning recipes.
 * Prints evaluations and the outcome. Not installed. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/worker/train/train.h"
#include "kernels/base/file.h"

static bool wanted(const char *key)
{
    const char *extra = getenv("TRAIN_JOB_KEYS"); /* a prefix of further keys to print */

    return !strncmp(key, "loss/val", 8) || !strncmp(key, "acc/val", 7) || !strncmp(key, "mem/", 4) ||
           (extra && !strncmp(key, extra, strlen(extra)));
}

static void metrics(void *user, const struct train_point *p, size_t count)
{
    (void)user;
    for (size_t i = 0; i < count; i++)
        if (wanted(p[i].key))
            printf("%8lld  %-20s %.6g\n", (long long)p[i].step, p[i].key, p[i].value);
}

static void log_line(void *user, const char *line)
{
    (void)user;
    printf("# %s\n", line);
}

static void event(void *user, const char *kind, const char *text, const char *fields)
{
    (void)user;
    printf("# event %s: %s (%s)\n", kind, text, fields);
}

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static enum train_stop stop(void *user)
{
    (void)user;
    return stopped ? TRAIN_STOP_CHECKPOINT : TRAIN_STOP_NONE;
}

int main(int argc, char **argv)
{
    const struct train_host host = {.metrics = metrics, .event = event, .log = log_line, .stop = stop};
    struct data_root root[16];
    struct train_dirs dirs = {.roots = root};
    struct job_config *config = NULL;
    struct train_outcome out;
    struct pd_buf job;
    struct pd_why why;
    enum pd_err err;

    if (argc < 3) {
        fprintf(stderr, "usage: train_job JOB.json CHECKPOINTS [ROOT=PATH ...]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    dirs.checkpoints = argv[2];
    for (int i = 3; i < argc && dirs.root_count < 16; i++) {
        char *equals = strchr(argv[i], '=');

        if (!equals)
            continue;
        *equals = 0;
        root[dirs.root_count++] = (struct data_root){argv[i], equals + 1};
    }
    pd_buf_init(&job, 0);
    err = pd_file_read(argv[1], JOB_MAX_BYTES, &job, &why);
    if (err == PD_OK)
        err = job_config_load(job.data, job.len, &config, &why);
    if (err == PD_OK)
        err = train_run(config, &dirs, &host, &out, &why);
    job_config_free(config);
    pd_buf_done(&job);
    if (err != PD_OK) {
        fprintf(stderr, "train_job: %s\n", why.text);
        return 1;
    }
    printf("%s after %lld of %lld steps in %.1f s: loss/train %.4f loss/val %.4f %s %.4f; best %s %.4f at "
           "%lld\n",
           train_result_name(out.result), (long long)out.step, (long long)out.total, out.seconds,
           out.loss_train, out.loss_val, out.metric, out.metric_val, out.best_metric, out.best_value,
           (long long)out.best_step);
    return out.result == TRAIN_DONE ? 0 : 3;
}
