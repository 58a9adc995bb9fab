/* daemon/polyd/sched/sched.h: who starts next. One pure function of the queue, the devices and the time: no
 * threads, no clock, no store, so that a test can run a million schedules.
 *
 * Rules: higher priority first, and waiting raises it (ageing); equal ones in order of arrival, but the jobs
 * take turns: the second run of a job (those at work count) comes after the first of every other, so that a
 * sweep of a thousand runs holds nobody up. Only the next run of a job of which nothing runs grows older: a
 * job that is served does not wait. No job runs more at once than its cap. A run gets all its slots or none.
 * The first run that does not fit reserves the earliest moment at which it will; a later run starts before it
 * only if it surely ends by then or leaves enough slots (EASY backfill). So no gang starves. A run that waits
 * for slots out of service reserves nothing: nobody knows when they come back. Where the slots of a kind
 * share one memory, a run needs room in it as it needs slots; one that needs more than there is has it alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SCHED_NEVER INT64_MAX

/* A waiting run. */
struct sched_item {
    int64_t id, job;
    int active;        /* runs of its job at work now */
    int64_t served_us; /* when a run of its job was last started; 0 = never */
    int cap;           /* runs of its job at once; 0 = any number */
    int priority;
    int64_t queued_us;     /* since when it waits */
    int64_t not_before_us; /* back-off; 0 = at once */
    int64_t limit_us;      /* surely ends so long after its start; 0 = unknown */
    int slots;             /* >= 1 */
    const char *kind;      /* "cpu", "cuda" */
    int64_t bytes; /* of the kind's memory, for all slots together; 0 = unknown: none is kept for it */
    bool unfit;    /* too few of the devices that are free have the memory that it needs of each */
    /* results */
    bool start;           /* start it now */
    int position;         /* 1 = next, in the order of priority; those backing off come last */
    int64_t wake_us;      /* when the answer may change by time alone; SCHED_NEVER = only by an event */
    bool impossible;      /* more slots than exist */
    bool blocked;         /* it waits for slots that are out of service, or are unfit */
    bool short_of_memory; /* there are slots, but no room in the memory that they share */
    bool behind;          /* it fits, but would delay an earlier one */
    bool capped;          /* its job runs as many as it may */
    int turn;             /* runs of its job at work or before it */
};

/* Devices of one kind that are held now. */
struct sched_busy {
    const char *kind;
    int slots;
    int64_t until_us; /* surely free at; SCHED_NEVER = unknown */
    int64_t bytes;    /* of the kind's memory */
};

struct sched_kind {
    const char *kind;
    int total;
    int free;
    int out;                     /* out of service: neither free nor held by a run that will end */
    int64_t memory, memory_free; /* bytes that its slots share; memory 0: each has its own */
};

/* Decides for all `items` (reordered by effective priority). `age_us`: waiting so long counts as one step of
 * priority; 0 = no ageing. `kinds[].free` and memory_free are lowered by what is started. */
void sched_cycle(struct sched_item *items, int count, struct sched_kind *kinds, int kind_count,
                 const struct sched_busy *busy, int busy_count, int64_t now_us, int64_t age_us);

/* Chooses `wanted` of the usable units: the set with the best connections, by `link` (0 = far to 4 = near,
 * any unit to any other; NULL = all alike). A single unit is one that its neighbours miss least, so that what
 * is well connected stays together; among equals the lower numbers. Writes ascending indices to `ret`;
 * returns how many: `wanted`, or 0 if fewer are usable. Greedy from every unit, so exact for pairs and near
 * it beyond. */
int sched_pick(const bool *usable, int units, int wanted, int (*link)(void *ctx, int a, int b), void *ctx,
               int *ret);
