/* daemon/worker/train/report.c: what a run says while it runs: events, lines of the log, points. */
#include <stdio.h>
#include <sys/resource.h>

#include "daemon/worker/train/run.h"
#include "kernels/base/clock.h"

#define LOG_US 5000000 /* a line in the log at least this often */

void train_say(struct run *r, const char *kind, const char *fields, const char *text)
{
    if (r->host->event)
        r->host->event(r->host->user, kind, text, fields);
}

void train_note(struct run *r, const char *fmt, ...) PD_PRINTF(2, 3);
void train_note(struct run *r, const char *fmt, ...)
{
    char line[512];
    va_list args;

    if (!r->host->log)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    r->host->log(r->host->user, line);
}

void train_push(struct run *r, const char *key, double value)
{
    if (r->point_count == TRAIN_POINTS_MAX) {
        if (r->host->metrics)
            r->host->metrics(r->host->user, r->points, r->point_count);
        r->point_count = 0;
    }
    r->points[r->point_count++] = (struct train_point){
        .key = key, .step = r->state.step, .wall_us = pd_clock_wall_us(), .value = value};
}

/* Processors kept busy since the last report, and the most memory held so far. The first only sets the
 * mark: loading is not training. */
static void push_use(struct run *r, int64_t now)
{
    struct rusage use;
    int64_t used_us;

    if (getrusage(RUSAGE_SELF, &use) != 0)
        return;
    used_us = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * (int64_t)1000000 + use.ru_utime.tv_usec +
              use.ru_stime.tv_usec;
    if (r->used_at_us && now > r->used_at_us)
        train_push(r, "sys/cpu", (double)(used_us - r->used_us) / (double)(now - r->used_at_us));
    train_push(r, "mem/peak", (double)use.ru_maxrss * 1024);
    r->used_us = used_us;
    r->used_at_us = now;
}

void train_say_warnings(struct run *r)
{
    struct data_warning w[DATA_WARNINGS_MAX];
    size_t n = data_warnings(r->setup.set, w);

    for (size_t i = 0; i < n; i++) {
        train_say(r, w[i].kind, w[i].fields, w[i].text);
        train_note(r, "%s", w[i].text);
    }
}

void train_say_bad(struct run *r)
{
    char name[256], reason[256], fields[320];

    if (data_bad_count(r->setup.set) == r->bad)
        return;
    while (data_bad_next(r->setup.set, name, reason)) {
        snprintf(fields, sizeof fields, "file=%s", name);
        train_say(r, "bad_picture", fields, reason);
        train_note(r, "picture left out: %s: %s", name, reason);
    }
    r->bad = data_bad_count(r->setup.set);
    train_push(r, "data_bad", (double)r->bad);
}

void train_flush(struct run *r)
{
    int64_t now = pd_clock_mono_us();

    if (r->busy_steps) {
        double per_step = r->busy_us / (double)r->busy_steps;
        const struct task *task = r->setup.task;
        int64_t units = r->setup.batch * task->units(r->setup.info);

        train_push(r, "step_ms", per_step / 1000);
        push_use(r, now);
        if (r->loader) {
            int64_t waited = data_loader_waited_us(r->loader);

            train_push(r, "data_wait", r->busy_us > 0 ? (double)(waited - r->waited_us) / r->busy_us : 0);
            r->waited_us = waited;
        }
        if (r->lent.comm) {
            int64_t waited = r->lent.comm_api->waited_us(r->lent.comm);

            train_push(r, "comm/wait",
                       r->busy_us > 0 ? (double)(waited - r->comm_waited_us) / r->busy_us : 0);
            r->comm_waited_us = waited;
        }
        train_push(r, task->throughput, (double)units * 1e6 / per_step);
        train_push(r, "sys/flops", r->step_flop * 1e6 / per_step);
        if (r->peak.flops > 0)
            train_push(r, "sys/utilisation", r->step_flop * 1e6 / per_step / r->peak.flops);
        if (now - r->logged_us >= LOG_US) {
            train_note(r, "step %lld/%lld loss %.4f %.1f ms/step", (long long)r->state.step,
                       (long long)r->setup.steps, r->state.loss_train, per_step / 1000);
            r->logged_us = now;
        }
        r->busy_us = 0;
        r->busy_steps = 0;
    }
    if (r->point_count && r->host->metrics)
        r->host->metrics(r->host->user, r->points, r->point_count);
    r->point_count = 0;
    if (r->host->progress)
        r->host->progress(r->host->user, r->state.step, r->setup.steps);
    r->flushed_us = now;
}
