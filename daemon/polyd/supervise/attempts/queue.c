/* The scheduling cycle: reads what is queued, asks sched_cycle, starts what it says, and notes for everyone
 * else why it waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/sched/sched.h"
#include "daemon/polyd/supervise/attempts/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define QUEUE_LOOK 1000 /* runs looked at in one cycle, by priority and their number in the job */
#define QUEUE_JOBS 1000 /* and the next run of each of so many jobs, so that no job hides the others */

struct waiting {
    struct sched_item items[QUEUE_LOOK + QUEUE_JOBS];
    int count, capacity;
    struct attempts *s;
};

static bool in_hand(struct attempts *s, int64_t run)
{
    for (struct att *a = s->atts; a; a = a->next)
        if (a->run == run)
            return true;
    return false;
}

/* Runs of the job that have a process, or are about to. */
static int at_work(const struct attempts *s, int64_t job)
{
    int n = 0;

    for (const struct att *a = s->atts; a; a = a->next)
        n += a->job == job;
    return n;
}

/* When a run of the job was last started, as far as this daemon remembers. */
static int64_t served(const struct attempts *s, int64_t job)
{
    for (int i = 0; i < SERVED_MAX; i++)
        if (s->served[i].job == job)
            return s->served[i].us;
    return 0;
}

/* The entry that is forgotten is the one served longest ago. */
static void note_served(struct attempts *s, int64_t job)
{
    int at = 0;

    for (int i = 0; i < SERVED_MAX; i++) {
        if (s->served[i].job == job) {
            at = i;
            break;
        }
        if (s->served[i].us < s->served[at].us)
            at = i;
    }
    s->served[at].job = job;
    s->served[at].us = store_writer_clock_us(loop_writer(s->loop));
}

static bool note_run(void *ctx, const struct store_run *r)
{
    struct waiting *w = ctx;
    int64_t need_bytes;
    const char *kind;
    bool unfit;

    if (in_hand(w->s, r->id)) /* its row says queued still, or its last process has not left yet */
        return true;
    for (int i = 0; w->capacity > QUEUE_LOOK && i < w->count; i++)
        if (w->items[i].id == r->id) /* the second look meets runs of the first */
            return true;
    need_bytes = plans_bytes(w->s->plans, r->plan_digest);
    kind = devices_kind(w->s->devices, r->device, r->slots, need_bytes, &unfit);
    w->items[w->count++] = (struct sched_item){.id = r->id,
                                               .job = r->job_id,
                                               .active = at_work(w->s, r->job_id),
                                               .cap = (int)r->concurrency,
                                               .served_us = served(w->s, r->job_id),
                                               .priority = r->priority,
                                               .queued_us = r->clock_us,
                                               .not_before_us = r->not_before_us,
                                               .limit_us = r->time_limit_us,
                                               .slots = r->slots,
                                               .bytes = need_bytes * r->slots,
                                               .unfit = unfit,
                                               .kind = kind};
    return w->count < w->capacity;
}

struct start {
    struct attempts *s;
    const struct sched_item *item;
};

static void count_wait(struct attempts *s, int64_t us)
{
    int i = 0;

    while (i < SUP_WAITS && 1e-6 * (double)us > sup_wait_bounds_s[i])
        i++;
    pthread_mutex_lock(&s->lock);
    s->stats.waits[i]++;
    s->stats.wait_us_total += us > 0 ? us : 0;
    pthread_mutex_unlock(&s->lock);
}

static bool start_row(void *ctx, const struct store_run *r)
{
    struct start *st = ctx;
    int devices[DEVICES_PICK_MAX], count = 0;

    if (r->state == JOB_RUN_QUEUED) {
        int64_t need_bytes = plans_bytes(st->s->plans, r->plan_digest);

        count = devices_pick(st->s->devices, st->item->kind, st->item->slots, need_bytes, devices);
    }
    if (count) {
        att_start_run(st->s, r, devices, count);
        note_served(st->s, r->job_id);
        if (!r->attempts)
            count_wait(st->s, store_writer_clock_us(loop_writer(st->s->loop)) - r->clock_us);
    }
    return false;
}

struct fail_op {
    struct loop_op op;
    int64_t run;
    char reason[160];
};

static enum pd_err fail_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct fail_op *f = (struct fail_op *)op;
    enum pd_err err = store_run_move(tx, f->run, JOB_RUN_ENDED, JOB_OUTCOME_FAILED, f->reason, why);

    return err == PD_ERR_CONFLICT ? PD_OK : err; /* cancelled meanwhile */
}

static void fail_run(struct attempts *s, int64_t run, const char *reason)
{
    struct fail_op *f = calloc(1, sizeof *f);

    if (!f)
        return; /* the next cycle tries again */
    f->op.apply = fail_apply;
    f->run = run;
    snprintf(f->reason, sizeof f->reason, "%s", reason);
    loop_write(s->loop, &f->op);
}

static void note(struct attempts *s, const struct sched_item *item, struct queue_note *out)
{
    int64_t left_us = item->not_before_us - store_writer_clock_us(loop_writer(s->loop));

    *out = (struct queue_note){.run = item->id, .info.position = item->position};
    if (item->wake_us != SCHED_NEVER)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for its next attempt, which starts in %lld s", (long long)(left_us / 1000000 + 1));
    else if (item->capped)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for another run of its job to end: at most %d may run at the same time", item->cap);
    else if (item->behind)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for an earlier run, which needs more slots or memory, to start");
    else if (item->unfit && !item->short_of_memory)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for %d GPU%s with %.1f GB of memory: the free ones have less", item->slots,
                 item->slots == 1 ? "" : "s", 1e-9 * (double)item->bytes / item->slots);
    else
        devices_reason(s->devices, item->kind, item->slots, item->short_of_memory ? item->bytes : 0,
                       out->info.reason, sizeof out->info.reason);
}

/* Whether it can never start. For GPUs all known ones count, whole or split, present or gone: an operator may
 * be about to make other instances, and a run that was accepted when there were enough waits for them. */
static bool hopeless(const struct devices_look *look, const struct sched_item *item)
{
    if (!item->impossible || !strcmp(item->kind, "cpu"))
        return item->impossible;
    return look->known_gpus && item->slots > look->known_gpus;
}

static void keep_notes(struct attempts *s, const struct waiting *w, const struct devices_look *look)
{
    struct queue_note *notes = NULL;
    int count = 0, capacity = 0;

    for (int i = 0; i < w->count; i++)
        capacity += !w->items[i].start && !hopeless(look, &w->items[i]);
    if (capacity)
        notes = calloc((size_t)capacity, sizeof *notes);
    for (int i = 0; notes && i < w->count; i++)
        if (!w->items[i].start && !hopeless(look, &w->items[i])) {
            note(s, &w->items[i], &notes[count]);
            notes[count].info.position = count + 1;
            count++;
        }
    pthread_mutex_lock(&s->lock);
    free(s->notes);
    s->notes = notes;
    s->note_count = count;
    pthread_mutex_unlock(&s->lock);
}

static int busy_list(struct attempts *s, struct sched_busy *busy)
{
    int64_t boot_us = pd_clock_boot_us(), clock_us = store_writer_clock_us(loop_writer(s->loop));
    int n = 0;

    for (struct att *a = s->atts; a && n < DEVICE_MAX; a = a->next) {
        struct device device;
        bool drained;
        int back = 0;

        for (int i = 0; i < a->device_count; i++)
            back += devices_get(s->devices, a->devices[i], &device, &drained) && !drained;
        if (back)
            busy[n++] = (struct sched_busy){
                .kind = a->kind,
                .slots = back,
                .bytes = a->need_bytes * a->device_count,
                .until_us = a->limit_us ? clock_us + (a->limit_us - boot_us) + s->o->grace_us : SCHED_NEVER};
    }
    return n;
}

static int total_of(const struct sched_kind *kinds, int count, const char *kind)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(kinds[i].kind, kind))
            return kinds[i].total;
    return 0;
}

void queue_cycle(struct attempts *s)
{
    struct store_run_query q = {
        .state = JOB_RUN_QUEUED, .outcome = -1, .order = STORE_ORDER_TURN, .limit = QUEUE_LOOK};
    struct waiting *w = calloc(1, sizeof *w);
    struct sched_busy busy[DEVICE_MAX];
    struct devices_look look;
    int64_t begin_us = pd_clock_mono_us(), took_us;
    struct pd_why why;
    enum pd_err err;

    if (!w)
        return;
    w->s = s;
    w->capacity = QUEUE_LOOK;
    devices_look(s->devices, &look);
    err = store_run_list(loop_reader(s->loop), &q, note_run, w, &why);
    if (err == PD_OK && w->count >= QUEUE_LOOK / 2) {
        w->capacity += QUEUE_JOBS;
        err = store_run_next(loop_reader(s->loop), store_writer_clock_us(loop_writer(s->loop)), QUEUE_JOBS,
                             note_run, w, &why);
    }
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "queue=unreadable why=\"%s\"", why.text);
        free(w);
        return;
    }
    sched_cycle(w->items, w->count, look.kinds, DEVICES_KINDS, busy, busy_list(s, busy),
                store_writer_clock_us(loop_writer(s->loop)), s->o->age_us);
    s->wake_us = 0;
    for (int i = 0; i < w->count; i++) {
        struct sched_item *item = &w->items[i];
        struct start start = {.s = s, .item = item};
        char reason[160];

        if (hopeless(&look, item)) {
            snprintf(reason, sizeof reason, "%d %s slot%s can never be free: this machine has %d",
                     item->slots, item->kind, item->slots == 1 ? "" : "s",
                     total_of(look.kinds, DEVICES_KINDS, item->kind));
            fail_run(s, item->id, reason);
        } else if (item->start) {
            err = store_run_get(loop_reader(s->loop), item->id, start_row, &start, &why);
            if (err != PD_OK)
                pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=failed why=\"%s\"", (long long)item->id,
                       why.text);
        } else if (item->wake_us != SCHED_NEVER && (!s->wake_us || item->wake_us < s->wake_us))
            s->wake_us = item->wake_us;
    }
    keep_notes(s, w, &look);
    free(w);
    took_us = pd_clock_mono_us() - begin_us;
    pthread_mutex_lock(&s->lock);
    s->stats.cycles++;
    s->stats.cycle_us_total += took_us;
    if (took_us > s->stats.cycle_us_max)
        s->stats.cycle_us_max = took_us;
    pthread_mutex_unlock(&s->lock);
}
