/* daemon/worker/train/reporter.c: see reporter.h. */
#include "daemon/worker/train/reporter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "kernels/base/clock.h"
#include "kernels/comm/comm.h"

#define POINTS_MAX 1000  /* of one report */
#define POINTS_FLUSH 900 /* leaves room for one boundary's smaller groups */
#define FLUSH_US 500000  /* points are at most this old when they leave */
#define LOG_US 5000000   /* a line in the log at least this often */

struct reporter {
    const struct train_host *host;
    struct reporter_meter meter;
    struct train_point points[POINTS_MAX];
    size_t point_count;
    int64_t step;
    int64_t flushed_us, logged_us;
    int64_t used_us, used_at_us; /* processor time of the process, and when it was read */
    double busy_us;              /* spent in steps since the last flush */
    double busy_flop;            /* of these steps */
    int64_t busy_steps;
    double loss;                            /* of the last step */
    int64_t data_waited_us, comm_waited_us; /* at the last flush */
    char **keys;                            /* of reporter_key */
    size_t key_count, key_capacity;
    int64_t bad; /* pictures that could not be decoded, as last reported */
    struct {
        int programs, found, kernels;
        int64_t us;
    } compiled; /* not yet reported */
};

enum pd_err reporter_new(const struct train_host *host, struct reporter **ret, struct pd_why *why)
{
    struct reporter *r = calloc(1, sizeof *r);

    if (!r)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for reports");
    r->host = host;
    r->flushed_us = r->logged_us = pd_clock_mono_us();
    *ret = r;
    return PD_OK;
}

struct reporter *reporter_free(struct reporter *r)
{
    for (size_t i = 0; r && i < r->key_count; i++)
        free(r->keys[i]);
    if (r)
        free(r->keys);
    free(r);
    return NULL;
}

void reporter_event(struct reporter *r, const char *kind, const char *fields, const char *text)
{
    if (r->host->event)
        r->host->event(r->host->user, kind, text, fields);
}

void reporter_log(struct reporter *r, const char *fmt, ...)
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

void reporter_progress(struct reporter *r, int64_t done, int64_t total)
{
    if (r->host->progress)
        r->host->progress(r->host->user, done, total);
}

void reporter_set_step(struct reporter *r, int64_t step)
{
    r->step = step;
}

void reporter_push(struct reporter *r, const char *key, double value)
{
    if (r->point_count == POINTS_MAX)
        reporter_send(r);
    r->points[r->point_count++] =
        (struct train_point){.key = key, .step = r->step, .wall_us = pd_clock_wall_us(), .value = value};
}

const char *reporter_key(struct reporter *r, const char *fmt, ...)
{
    char key[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(key, sizeof key, fmt, args);
    va_end(args);
    for (size_t i = 0; i < r->key_count; i++)
        if (!strcmp(r->keys[i], key))
            return r->keys[i];
    if (r->key_count == r->key_capacity) {
        size_t capacity = r->key_capacity ? 2 * r->key_capacity : 32;
        char **more = realloc(r->keys, capacity * sizeof *more);

        if (!more)
            return NULL;
        r->keys = more;
        r->key_capacity = capacity;
    }
    r->keys[r->key_count] = strdup(key);
    return r->keys[r->key_count] ? r->keys[r->key_count++] : NULL;
}

void reporter_blob(struct reporter *r, struct train_blob *blob)
{
    blob->step = r->step;
    if (r->host->blob)
        r->host->blob(r->host->user, blob);
}

void reporter_send(struct reporter *r)
{
    if (r->point_count && r->host->metrics)
        r->host->metrics(r->host->user, r->points, r->point_count);
    r->point_count = 0;
}

void reporter_log_points(struct reporter *r)
{
    for (size_t i = 0; i < r->point_count; i++)
        reporter_log(r, "%s %.6g", r->points[i].key, r->points[i].value);
}

void reporter_inputs(struct reporter *r, const struct data_set *set)
{
    const struct data_info *i = data_info(set);
    const char *program = r->host->program ? r->host->program : "";
    char fields[256];

    snprintf(fields, sizeof fields, "data=%s data_of=%s program=%s", i->digest,
             i->digest_of ? i->digest_of : "", program);
    reporter_event(r, "inputs", fields, "SHA-256 of the data's files and of the worker's executable");
    reporter_log(r, "data %.12s (%s), program %.12s", i->digest_of ? i->digest : "-",
                 i->digest_of ? i->digest_of : "generated", *program ? program : "-");
}

void reporter_warnings(struct reporter *r, const struct data_set *set)
{
    struct data_warning w[DATA_WARNINGS_MAX];
    size_t n = data_warnings(set, w);

    for (size_t i = 0; i < n; i++) {
        reporter_event(r, w[i].kind, w[i].fields, w[i].text);
        reporter_log(r, "%s", w[i].text);
    }
}

void reporter_bad(struct reporter *r, const struct data_set *set)
{
    char name[256], reason[256], fields[320];

    if (data_bad_count(set) == r->bad)
        return;
    while (data_bad_next(set, name, reason)) {
        snprintf(fields, sizeof fields, "file=%s", name);
        reporter_event(r, "bad_picture", fields, reason);
        reporter_log(r, "picture skipped: %s: %s", name, reason);
    }
    r->bad = data_bad_count(set);
    reporter_push(r, "data_bad", (double)r->bad);
}

/* ---- kernels that are compiled at the start ---- */

static void set_phase(const struct reporter *r, const char *text)
{
    if (r->host->phase)
        r->host->phase(r->host->user, text);
}

void reporter_compiling(void *reporter, const struct pk_compiling *now)
{
    struct reporter *r = reporter;
    char text[128];

    if (!now->ended) {
        snprintf(text, sizeof text, "compiling kernels of formulas: %s (%d of %d)", now->what, now->number,
                 now->of);
        set_phase(r, text);
        return;
    }
    r->compiled.programs++;
    r->compiled.found += now->found;
    r->compiled.kernels += now->kernels;
    r->compiled.us += now->us;
    if (now->number == now->of)
        set_phase(r, NULL);
}

void reporter_compiled(struct reporter *r)
{
    const int programs = r->compiled.programs, found = r->compiled.found;
    const double seconds = (double)r->compiled.us * 1e-6;
    char fields[96], text[160];

    if (!programs)
        return;
    snprintf(fields, sizeof fields, "kernels=%d programs=%d found=%d seconds=%.3f", r->compiled.kernels,
             programs, found, seconds);
    snprintf(text, sizeof text,
             "%d kernels of formulas are ready after %.1f s: %d programs compiled, %d found in the cache",
             r->compiled.kernels, seconds, programs - found, found);
    reporter_event(r, "compiled", fields, text);
    reporter_log(r, "%s", text);
    memset(&r->compiled, 0, sizeof r->compiled);
}

/* ---- means over steps ---- */

void reporter_measure(struct reporter *r, const struct reporter_meter *meter)
{
    r->meter = *meter;
}

void reporter_busy(struct reporter *r, int64_t us)
{
    r->busy_us += (double)us;
}

void reporter_step(struct reporter *r, int64_t us, double flop, double loss)
{
    reporter_busy(r, us);
    r->busy_flop += flop;
    r->busy_steps++;
    r->loss = loss;
}

/* Processors kept busy since the last report, and the most memory held so far. The first only sets the
 * mark: loading is not training. */
static void push_use(struct reporter *r, int64_t now)
{
    struct rusage use;
    int64_t used_us;

    if (getrusage(RUSAGE_SELF, &use) != 0)
        return;
    used_us = (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * (int64_t)1000000 + use.ru_utime.tv_usec +
              use.ru_stime.tv_usec;
    if (r->used_at_us && now > r->used_at_us)
        reporter_push(r, "sys/cpu", (double)(used_us - r->used_us) / (double)(now - r->used_at_us));
    reporter_push(r, "mem/peak", (double)use.ru_maxrss * 1024);
    r->used_us = used_us;
    r->used_at_us = now;
}

/* The share of busy time that was waiting; *last is what had been waited in all at the last flush. */
static double share_waited(const struct reporter *r, int64_t waited_us, int64_t *last)
{
    double share = r->busy_us > 0 ? (double)(waited_us - *last) / r->busy_us : 0;

    *last = waited_us;
    return share;
}

static void push_means(struct reporter *r, int64_t now)
{
    const struct reporter_meter *m = &r->meter;
    const double per_step = r->busy_us / (double)r->busy_steps, flops = r->busy_flop * 1e6 / r->busy_us;
    const int64_t comm_us = m->comm ? m->comm_api->waited_us(m->comm) : -1;

    reporter_push(r, "step_ms", per_step / 1000);
    push_use(r, now);
    reporter_push(r, "data_wait", share_waited(r, data_loader_waited_us(m->loader), &r->data_waited_us));
    if (comm_us >= 0)
        reporter_push(r, "comm/wait", share_waited(r, comm_us, &r->comm_waited_us));
    reporter_push(r, m->throughput, (double)m->units * 1e6 / per_step);
    reporter_push(r, "sys/flops", flops);
    if (m->peak_flops > 0)
        reporter_push(r, "sys/utilisation", flops / m->peak_flops);
    if (now - r->logged_us >= LOG_US) {
        reporter_log(r, "step %lld/%lld loss %.4f %.1f ms/step", (long long)r->step, (long long)m->steps,
                     r->loss, per_step / 1000);
        r->logged_us = now;
    }
    r->busy_us = r->busy_flop = 0;
    r->busy_steps = 0;
}

void reporter_flush(struct reporter *r)
{
    int64_t now = pd_clock_mono_us();

    if (r->busy_steps)
        push_means(r, now);
    reporter_send(r);
    reporter_progress(r, r->step, r->meter.steps);
    r->flushed_us = now;
}

void reporter_flush_due(struct reporter *r)
{
    if (r->point_count >= POINTS_FLUSH || pd_clock_mono_us() - r->flushed_us >= FLUSH_US)
        reporter_flush(r);
}
