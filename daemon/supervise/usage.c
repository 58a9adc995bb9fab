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

#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define EVERY_MOST_US 5000000 /* between two points of a young run, unless samples are rarer */
#define AGE_SHARE 1000        /* later: the age of the attempt over this */
#define SERIES 4

struct usage_op {
    struct op op;
    int64_t run;
    int n;
    size_t count;
    struct store_metric points[SUP_ATTEMPT_DEVICES * SERIES];
    char keys[SUP_ATTEMPT_DEVICES * SERIES][40];
};

static enum pd_err usage_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct usage_op *u = (struct usage_op *)op;

    return store_metric_append(tx, u->run, u->n, u->points, u->count, NULL, why);
}

static void usage_done(struct sup *s, struct op *op)
{
    struct usage_op *u = (struct usage_op *)op;

    (void)s;
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

/* Writes what was taken since the last time; false if nothing was, or the store has no room now. */
static bool write_points(struct sup *s, struct att *a)
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
    u->op.lane = STORE_LANE_METRICS;
    u->op.rows = (int)u->count;
    u->op.apply = usage_apply;
    u->op.done = usage_done;
    if (!u->count || sup_write(s, &u->op) == PD_ERR_BUSY) {
        free(u);
        return false;
    }
    begin_anew(a);
    return true;
}

static bool on_gpus(const struct sup *s, const struct att *a)
{
    return a->device_count && a->devices[0] >= s->gpu_first;
}

static int64_t pause_us(const struct sup *s, const struct att *a, int64_t now_us)
{
    int64_t sample_us = s->o.gpu_sample_us > 0 ? s->o.gpu_sample_us : 2000000;
    int64_t least_us = 2 * sample_us < EVERY_MOST_US ? 2 * sample_us : EVERY_MOST_US;
    int64_t by_age_us = (now_us - a->begun_us) / AGE_SHARE;

    if (least_us < sample_us)
        least_us = sample_us;
    return by_age_us > least_us ? by_age_us : least_us;
}

void usage_tick(struct sup *s, int64_t now_us)
{
    bool any = false;

    for (const struct att *a = s->atts; a && !any; a = a->next)
        any = a->phase == ATT_WORKING && on_gpus(s, a);
    if (!any)
        return;
    pthread_mutex_lock(&s->mutex);
    slots_look(s);
    for (struct att *a = s->atts; a; a = a->next) {
        if (a->phase != ATT_WORKING || !on_gpus(s, a))
            continue;
        if (!a->usage_us) { /* its first look: what was measured before is not its own */
            for (int k = 0; k < a->device_count; k++)
                a->usage[k].taken_us = now_us;
            begin_anew(a);
            a->usage_us = now_us + pause_us(s, a, now_us);
        }
        for (int k = 0; k < a->device_count; k++)
            take(&a->usage[k], &s->samples[a->devices[k] - s->gpu_first]);
    }
    pthread_mutex_unlock(&s->mutex);
    for (struct att *a = s->atts; a; a = a->next)
        if (a->phase == ATT_WORKING && on_gpus(s, a) && now_us >= a->usage_us) {
            write_points(s, a);
            a->usage_us = now_us + pause_us(s, a, now_us);
        }
}

void usage_end(struct sup *s, struct att *a)
{
    if (on_gpus(s, a) && a->usage_us)
        write_points(s, a);
}
