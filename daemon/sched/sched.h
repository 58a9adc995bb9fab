/* daemon/sched/sched.h: who starts next. One pure function of the queue, the devices and the time: no
 * threads, no clock, no store, so that a test can run a million schedules.
 *
 * Rules: higher priority first, and waiting raises it (ageing); equal ones in order of arrival. A run gets
 * all its slots or none. The first run that does not fit reserves the earliest moment at which it will; a
 * later run starts before it only if it surely ends by then or leaves enough slots (EASY backfill). So no
 * gang starves. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SCHED_NEVER INT64_MAX

/* A waiting run. */
struct sched_item {
    int64_t id;
    int priority;
    int64_t queued_us;     /* since when it waits */
    int64_t not_before_us; /* back-off; 0 = at once */
    int64_t limit_us;      /* surely ends so long after its start; 0 = unknown */
    int slots;             /* >= 1 */
    const char *kind;      /* "cpu", "cuda" */
    /* results */
    bool start;      /* start it now */
    int position;    /* 1 = next, in the order of priority; those backing off come last */
    int64_t wake_us; /* when the answer may change by time alone; SCHED_NEVER = only by an event */
    bool impossible; /* more slots than exist */
    bool behind;     /* it fits, but would delay an earlier one */
};

/* Devices of one kind that are held now. */
struct sched_busy {
    const char *kind;
    int slots;
    int64_t until_us; /* surely free at; SCHED_NEVER = unknown */
};

struct sched_kind {
    const char *kind;
    int total;
    int free;
};

/* Decides for all `items` (reordered by effective priority). `age_us`: waiting so long counts as one step of
 * priority; 0 = no ageing. `kinds[].free` is lowered by what is started. */
void sched_cycle(struct sched_item *items, int count, struct sched_kind *kinds, int kind_count,
                 const struct sched_busy *busy, int busy_count, int64_t now_us, int64_t age_us);
