/* The scheduling cycle: reads what is queued, asks sched_cycle, starts what it says, and notes for everyone
 * else why it waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sched/sched.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define QUEUE_LOOK 1000  /* runs looked at in one cycle: the first of every job before the second of any */
#define QUEUE_OLDEST 200 /* and these by age alone, so that the end of a long sweep is seen, too */

struct waiting {
    struct sched_item items[QUEUE_LOOK + QUEUE_OLDEST];
    int count, room;
    struct sup *s;
};

static bool in_hand(struct sup *s, int64_t run)
{
    for (struct att *a = s->atts; a; a = a->next)
        if (a->run == run)
            return true;
    return false;
}

/* Runs of the job that have a process, or are about to. */
static int at_work(const struct sup *s, int64_t job)
{
    int n = 0;

    for (const struct att *a = s->atts; a; a = a->next)
        n += a->job == job;
    return n;
}

/* When a run of the job was last started, as far as this daemon remembers. */
static int64_t served(const struct sup *s, int64_t job)
{
    for (int i = 0; i < SUP_SERVED_MAX; i++)
        if (s->served[i].job == job)
            return s->served[i].us;
    return 0;
}

/* The entry that is forgotten is the one served longest ago. */
static void note_served(struct sup *s, int64_t job)
{
    int at = 0;

    for (int i = 0; i < SUP_SERVED_MAX; i++) {
        if (s->served[i].job == job) {
            at = i;
            break;
        }
        if (s->served[i].us < s->served[at].us)
            at = i;
    }
    s->served[at].job = job;
    s->served[at].us = store_writer_clock_us(s->writer);
}

/* What the run's plan says that it needs on each device; 0 = unknown. Runs of a sweep mostly share a plan. */
int64_t queue_plan_bytes(struct sup *s, const char *digest)
{
    struct plan_memo *memo =
        &s->plan_memo[(digest[0] ? (unsigned)digest[0] * 31 + (unsigned)digest[1] : 0) % SUP_PLAN_MEMOS];
    struct pd_buf plan;
    struct pd_why why;
    long long bytes = 0;
    const char *at;

    if (digest[0] && !strcmp(memo->digest, digest))
        return memo->bytes;
    pd_buf_init(&plan, 1 << 20);
    if (store_plan_get(s->reader, digest, &plan, &why) == PD_OK && plan.data &&
        (at = strstr(plan.data, "\"total_bytes\":")) && sscanf(at + 14, " %lld", &bytes) != 1)
        bytes = 0;
    pd_buf_done(&plan);
    if (bytes > 0) { /* one that is not there yet may come */
        snprintf(memo->digest, sizeof memo->digest, "%s", digest);
        memo->bytes = bytes;
    }
    return bytes > 0 ? bytes : 0;
}

static bool note_run(void *ctx, const struct store_run *r)
{
    struct waiting *w = ctx;
    int64_t need_bytes;
    const char *kind;
    bool unfit;

    if (in_hand(w->s, r->id)) /* its row says queued still, or its last process has not left yet */
        return true;
    for (int i = 0; w->room > QUEUE_LOOK && i < w->count; i++)
        if (w->items[i].id == r->id) /* the second look meets runs of the first */
            return true;
    need_bytes = queue_plan_bytes(w->s, r->plan_digest);
    pthread_mutex_lock(&w->s->mutex);
    kind = slots_kind(w->s, r->device, r->slots, need_bytes);
    unfit = slots_unfit(w->s, kind, r->slots, need_bytes);
    pthread_mutex_unlock(&w->s->mutex);
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
    return w->count < w->room;
}

struct start {
    struct sup *s;
    const struct sched_item *item;
};

static void count_wait(struct sup *s, int64_t us)
{
    int i = 0;

    while (i < SUP_WAITS && 1e-6 * (double)us > sup_wait_bounds_s[i])
        i++;
    pthread_mutex_lock(&s->mutex);
    s->stats.waits[i]++;
    s->stats.wait_us_total += us > 0 ? us : 0;
    pthread_mutex_unlock(&s->mutex);
}

static bool start_row(void *ctx, const struct store_run *r)
{
    struct start *st = ctx;
    int devices[SUP_ATTEMPT_DEVICES], count = 0;

    if (r->state == SPEC_RUN_QUEUED) {
        int64_t need_bytes = queue_plan_bytes(st->s, r->plan_digest);

        pthread_mutex_lock(&st->s->mutex);
        count = slots_pick(st->s, st->item->kind, st->item->slots, need_bytes, devices);
        pthread_mutex_unlock(&st->s->mutex);
    }
    if (count) {
        att_start_run(st->s, r, devices, count);
        note_served(st->s, r->job_id);
        if (!r->attempts)
            count_wait(st->s, store_writer_clock_us(st->s->writer) - r->clock_us);
    }
    return false;
}

struct fail_op {
    struct op op;
    int64_t run;
    char reason[160];
};

static enum pd_err fail_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct fail_op *f = (struct fail_op *)op;
    enum pd_err err = store_run_move(tx, f->run, SPEC_RUN_ENDED, SPEC_OUTCOME_FAILED, f->reason, why);

    return err == PD_ERR_CONFLICT ? PD_OK : err; /* cancelled meanwhile */
}

static void fail_run(struct sup *s, int64_t run, const char *reason)
{
    struct fail_op *f = calloc(1, sizeof *f);

    if (!f)
        return; /* the next cycle tries again */
    f->op.lane = STORE_LANE_WORKER;
    f->op.apply = fail_apply;
    f->run = run;
    snprintf(f->reason, sizeof f->reason, "%s", reason);
    if (sup_write(s, &f->op) != PD_OK)
        free(f);
}

static void note(struct sup *s, const struct sched_item *item, struct queue_note *out)
{
    *out = (struct queue_note){.run = item->id, .info.position = item->position};
    if (item->wake_us != SCHED_NEVER)
        snprintf(out->info.reason, sizeof out->info.reason, "waiting %lld s before the next attempt",
                 (long long)((item->not_before_us - store_writer_clock_us(s->writer)) / 1000000 + 1));
    else if (item->capped)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for another run of its job to end: it runs at most %d at once", item->cap);
    else if (item->behind)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting behind an earlier run that needs more slots or memory");
    else if (item->short_of_memory)
        slots_memory_reason(s, item->kind, item->bytes, out->info.reason, sizeof out->info.reason);
    else if (item->unfit)
        snprintf(out->info.reason, sizeof out->info.reason,
                 "waiting for %d GPU%s with %.1f GB of memory: those that are free have less", item->slots,
                 item->slots == 1 ? "" : "s", 1e-9 * (double)item->bytes / item->slots);
    else
        slots_reason(s, item->kind, item->slots, out->info.reason, sizeof out->info.reason);
}

/* Can it never start? Of GPUs that only counts which are known, whole or split, there or gone: an operator
 * may be about to make other instances, and a run that was accepted when there were enough waits for them. */
static bool hopeless(const struct sup *s, const struct sched_item *item)
{
    int known = 0;

    if (!item->impossible || !strcmp(item->kind, "cpu"))
        return item->impossible;
    for (int i = s->gpu_first; i < s->gpu_first + s->gpu_count; i++)
        known += s->devices[i].instance < 0;
    return known && item->slots > known;
}

static void keep_notes(struct sup *s, const struct waiting *w)
{
    struct queue_note *notes = NULL;
    int count = 0;

    for (int i = 0; i < w->count; i++)
        count += !w->items[i].start && !hopeless(s, &w->items[i]);
    if (count)
        notes = calloc((size_t)count, sizeof *notes);
    pthread_mutex_lock(&s->mutex);
    free(s->notes);
    s->notes = notes;
    s->note_count = 0;
    for (int i = 0; notes && i < w->count; i++)
        if (!w->items[i].start && !hopeless(s, &w->items[i])) {
            note(s, &w->items[i], &notes[s->note_count]);
            notes[s->note_count].info.position = s->note_count + 1;
            s->note_count++;
        }
    pthread_mutex_unlock(&s->mutex);
}

static int busy_list(struct sup *s, struct sched_busy *busy)
{
    int64_t boot_us = pd_clock_boot_us(), clock_us = store_writer_clock_us(s->writer);
    int n = 0;

    for (struct att *a = s->atts; a && n < SUP_DEVICES_MAX; a = a->next) {
        int back = 0;

        for (int i = 0; i < a->device_count; i++)
            back += !s->held[a->devices[i]].drained;
        if (back)
            busy[n++] = (struct sched_busy){
                .kind = s->devices[a->devices[0]].kind,
                .slots = back,
                .bytes = a->need_bytes * a->device_count,
                .until_us = a->limit_us ? clock_us + (a->limit_us - boot_us) + s->o.grace_us : SCHED_NEVER};
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

void queue_cycle(struct sup *s)
{
    static const char *const kind_names[] = {"cpu", "cuda", "mig"};
    struct store_run_query q = {
        .state = SPEC_RUN_QUEUED, .outcome = -1, .order = STORE_ORDER_TURN, .limit = QUEUE_LOOK};
    struct waiting *w = calloc(1, sizeof *w);
    struct sched_busy busy[SUP_DEVICES_MAX];
    struct sched_kind kinds[3] = {0};
    int64_t begin_us = pd_clock_mono_us(), took_us;
    struct pd_why why;
    enum pd_err err;

    if (!w)
        return;
    w->s = s;
    w->room = QUEUE_LOOK;
    pthread_mutex_lock(&s->mutex);
    slots_look(s);
    pthread_mutex_unlock(&s->mutex);
    err = store_run_list(s->reader, &q, note_run, w, &why);
    if (err == PD_OK && w->count >= QUEUE_LOOK / 2) {
        q.order = STORE_ORDER_OLDEST;
        q.limit = QUEUE_OLDEST;
        w->room += QUEUE_OLDEST;
        err = store_run_list(s->reader, &q, note_run, w, &why);
    }
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "queue=unreadable why=\"%s\"", why.text);
        free(w);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < 3; i++) {
        struct slot_count c = slots_count(s, kind_names[i]);

        kinds[i] = (struct sched_kind){.kind = kind_names[i], .total = c.total, .free = c.free, .out = c.out};
    }
    kinds[0].memory = slots_memory(s, "cpu");
    kinds[0].memory_free = kinds[0].memory - slots_memory_held(s, "cpu");
    pthread_mutex_unlock(&s->mutex);
    sched_cycle(w->items, w->count, kinds, 3, busy, busy_list(s, busy), store_writer_clock_us(s->writer),
                s->o.age_us);
    s->wake_us = 0;
    for (int i = 0; i < w->count; i++) {
        struct sched_item *item = &w->items[i];
        struct start start = {.s = s, .item = item};
        char reason[160];

        if (hopeless(s, item)) {
            snprintf(reason, sizeof reason, "%d %s slot%s can never be free: this machine has %d",
                     item->slots, item->kind, item->slots == 1 ? "" : "s", total_of(kinds, 3, item->kind));
            fail_run(s, item->id, reason);
        } else if (item->start) {
            err = store_run_get(s->reader, item->id, start_row, &start, &why);
            if (err != PD_OK)
                pd_log(PD_LOG_ERROR, "supervise", "run=%lld start=failed why=\"%s\"", (long long)item->id,
                       why.text);
        } else if (item->wake_us != SCHED_NEVER && (!s->wake_us || item->wake_us < s->wake_us))
            s->wake_us = item->wake_us;
    }
    keep_notes(s, w);
    free(w);
    took_us = pd_clock_mono_us() - begin_us;
    pthread_mutex_lock(&s->mutex);
    s->stats.cycles++;
    s->stats.cycle_us_total += took_us;
    if (took_us > s->stats.cycle_us_max)
        s->stats.cycle_us_max = took_us;
    pthread_mutex_unlock(&s->mutex);
}
