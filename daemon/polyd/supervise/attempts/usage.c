/* What a run takes of its GPUs, as series of the run: for the device of each rank the mean utilisation and
 * power, the greatest memory and temperature since the last point. The samples are those that the watch takes
 * anyway.
 *
 * A point comes every few seconds at first, later every thousandth of the attempt's age: a run of minutes
 * shows its seconds, and one of a month adds some thousand points a series, whatever the interval of samples
 * is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define EVERY_MOST_US 5000000 /* between two points of a young run, unless samples are rarer */
#define AGE_SHARE 1000        /* later: the age of the attempt over this */
#define SERIES 4

struct usage_op {
    struct loop_op op;
    int64_t run;
    int n;
    size_t count;
    struct store_metric points[DEVICES_PICK_MAX * SERIES];
    char keys[DEVICES_PICK_MAX * SERIES][40];
};

static enum pd_err usage_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct usage_op *u = (struct usage_op *)op;

    return store_metric_append(tx, u->run, u->n, u->points, u->count, NULL, why);
}

static void usage_done(struct loop_op *op)
{
    struct usage_op *u = (struct usage_op *)op;

    if (op->err != PD_OK)
        pd_log(PD_LOG_WARNING, "supervise", "run=%lld gpu_samples=unwritten why=\"%s\"", (long long)u->run,
               op->why.text);
}

static void add(struct usage_op *u, const struct att *a, int rank, const char *what, double value)
{
    char *key = u->keys[u->count];

    snprintf(key, sizeof u->keys[0], "system/gpu.%d/%s", rank, what);
    u->points[u->count++] =
        (struct store_metric){.key = key, .step = a->step, .time_us = pd_clock_wall_us(), .value = value};
}

static void greatest(int64_t *most, int64_t value)
{
    if (value > *most)
        *most = value;
}

/* A sample of the device of a rank, unless it was counted. */
static void take(struct att_usage *u, const struct device_sample *p)
{
    if (p->taken_us <= u->taken_us || p->stale || p->broken)
        return;
    u->taken_us = p->taken_us;
    u->samples++;
    if (p->utilization >= 0) {
        u->utilization += p->utilization;
        u->utilizations++;
    }
    if (p->power_mw >= 0) {
        u->power_mw += (double)p->power_mw;
        u->powers++;
    }
    greatest(&u->memory, p->memory_used);
    greatest(&u->temperature, p->temperature_c);
}

static void begin_anew(struct att *a)
{
    for (int k = 0; k < a->device_count; k++)
        a->usage[k] = (struct att_usage){.taken_us = a->usage[k].taken_us, .memory = -1, .temperature = -1};
}

/* Writes what was taken since the last time; false if nothing was, or the store's queue is full. */
static bool write_points(struct attempts *s, struct att *a)
{
    struct usage_op *u = calloc(1, sizeof *u);

    if (!u)
        return false;
    for (int k = 0; k < a->device_count; k++) {
        const struct att_usage *g = &a->usage[k];

        if (g->utilizations)
            add(u, a, k, "utilization", g->utilization / g->utilizations / 100);
        if (g->memory >= 0 && g->samples)
            add(u, a, k, "memory", (double)g->memory);
        if (g->powers)
            add(u, a, k, "power", g->power_mw / g->powers / 1000);
        if (g->temperature >= 0 && g->samples)
            add(u, a, k, "temperature", (double)g->temperature);
    }
    u->run = a->run;
    u->n = a->n;
    u->op.rows = (int)u->count;
    u->op.apply = usage_apply;
    u->op.done = usage_done;
    if (!u->count || !loop_write_metrics(s->loop, &u->op)) {
        free(u);
        return false;
    }
    begin_anew(a);
    return true;
}

static bool on_gpus(const struct att *a)
{
    return a->device_count && strcmp(a->kind, "cpu") != 0;
}

static int64_t pause_us(const struct attempts *s, const struct att *a, int64_t now_us)
{
    int64_t sample_us = s->o->gpu_sample_us > 0 ? s->o->gpu_sample_us : 2000000;
    int64_t least_us = 2 * sample_us < EVERY_MOST_US ? 2 * sample_us : EVERY_MOST_US;
    int64_t by_age_us = (now_us - a->begun_us) / AGE_SHARE;

    if (least_us < sample_us)
        least_us = sample_us;
    return by_age_us > least_us ? by_age_us : least_us;
}

void usage_tick(struct attempts *s, int64_t now_us)
{
    struct device_sample samples[DEVICES_PICK_MAX];

    for (struct att *a = s->atts; a; a = a->next) {
        if (a->phase != ATT_WORKING || !on_gpus(a))
            continue;
        if (!a->usage_us) { /* its first look: what was measured before is not its own */
            for (int k = 0; k < a->device_count; k++)
                a->usage[k].taken_us = now_us;
            begin_anew(a);
            a->usage_us = now_us + pause_us(s, a, now_us);
        }
        devices_samples(s->devices, a->devices, a->device_count, samples);
        for (int k = 0; k < a->device_count; k++)
            take(&a->usage[k], &samples[k]);
        if (now_us >= a->usage_us) {
            write_points(s, a);
            a->usage_us = now_us + pause_us(s, a, now_us);
        }
    }
}

void usage_end(struct attempts *s, struct att *a)
{
    if (on_gpus(a) && a->usage_us)
        write_points(s, a);
}
