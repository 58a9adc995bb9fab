/* What the loop calls, and what other threads ask. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/attempts/internal.h"

static void tick(void *self, int64_t now_us)
{
    struct attempts *s = self;

    att_tick(s, now_us);
    usage_tick(s, now_us);
    if (s->wake_us && store_writer_clock_us(loop_writer(s->loop)) >= s->wake_us)
        loop_schedule(s->loop);
}

static void commands(void *self)
{
    att_commands(self);
    silence_look(self);
}

static void schedule(void *self)
{
    queue_cycle(self);
}

static void stop(void *self)
{
    const struct attempts *s = self;

    if (s->o->drain_on_stop)
        att_stop_all(self);
}

static bool idle(void *self)
{
    const struct attempts *s = self;

    return !s->o->drain_on_stop || !s->atts;
}

enum pd_err attempts_new(struct loop *l, struct workers *w, struct devices *devices, struct plans *plans,
                         const struct sup_options *o, struct attempts **ret, struct pd_why *why)
{
    struct attempts *s = calloc(1, sizeof *s);

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    s->train_role = strdup(o->train_role ? o->train_role : "train");
    if (!s->train_role) {
        free(s);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    }
    s->loop = l;
    s->workers = w;
    s->devices = devices;
    s->plans = plans;
    s->o = o;
    s->since_us = store_writer_clock_us(loop_writer(l));
    pthread_mutex_init(&s->lock, NULL);
    s->member = (struct loop_member){
        .self = s, .tick = tick, .commands = commands, .schedule = schedule, .stop = stop, .idle = idle};
    loop_join(l, &s->member);
    s->workers_member = (struct workers_member){.self = s, .hello = att_hello, .knows = att_knows};
    workers_join(w, &s->workers_member);
    s->listener = (struct devices_listener){.self = s, .run_fault = att_device_fault};
    devices_listen(devices, &s->listener);
    *ret = s;
    return PD_OK;
}

struct attempts *attempts_free(struct attempts *s)
{
    if (!s)
        return NULL;
    while (s->atts) {
        struct att *a = s->atts;

        s->atts = a->next;
        att_free(a);
    }
    free(s->notes);
    free(s->train_role);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

/* ---- from other threads ---------------------------------------------------------------------- */

bool attempts_queue_get(struct attempts *s, int64_t run, struct sup_queue_info *ret)
{
    bool found = false;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->note_count && !found; i++)
        if (s->notes[i].run == run) {
            *ret = s->notes[i].info;
            found = true;
        }
    pthread_mutex_unlock(&s->lock);
    return found;
}

int attempts_waiting(struct attempts *s)
{
    int count;

    pthread_mutex_lock(&s->lock);
    count = s->note_count;
    pthread_mutex_unlock(&s->lock);
    return count;
}

bool attempts_progress(struct attempts *s, int64_t run, struct sup_progress *ret)
{
    bool found = false;

    pthread_mutex_lock(&s->lock);
    for (const struct att *a = s->atts; a && !found; a = a->next)
        if (a->run == run && a->updated_us) {
            *ret = (struct sup_progress){.step = a->step,
                                         .total = a->total,
                                         .updated_us = a->updated_us,
                                         .checkpointing = a->checkpointing};
            snprintf(ret->phase, sizeof ret->phase, "%s", a->between_steps);
            found = true;
        }
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool attempts_hold_folder(struct attempts *s, int64_t run)
{
    bool held = false;

    /* A worker may still write after its bye. */
    pthread_mutex_lock(&s->lock);
    for (const struct att *a = s->atts; a && !held; a = a->next)
        held = a->run == run;
    pthread_mutex_unlock(&s->lock);
    return held;
}

void attempts_log_path(const struct attempts *s, int64_t run, int n, char *out, size_t size)
{
    char dir[WORKERS_PATH_MAX];

    if (n)
        att_dir(s, run, n, dir, sizeof dir);
    else
        snprintf(dir, sizeof dir, "%s/runs/%lld", workers_state_dir(s->workers), (long long)run);
    snprintf(out, size, "%s/log", dir);
}

void attempts_stats(struct attempts *s, struct sup_stats *ret)
{
    pthread_mutex_lock(&s->lock);
    *ret = s->stats;
    pthread_mutex_unlock(&s->lock);
}
