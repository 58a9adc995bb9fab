/* daemon/polyd/sched/sched.h: the scheduler. A pure function of queue, devices and time: no threads, no
 * clock, no store, so that a test can run a million schedules.
 *
 * Rules: higher priority first, and waiting raises it (ageing); equal priorities start in order of arrival,
 * but jobs take turns: the second run of a job (running ones included) comes after the first of every other
 * job, so that a sweep of a thousand runs does not block others. Only the next run of a job without running
 * runs ages. A job never exceeds its limit of simultaneous runs. A run gets all its slots or none. The first
 * run that does not fit reserves the earliest time at which it will fit; a later run starts before it only if
 * it is certain to end by then or leaves enough slots (EASY backfill), so multi-slot runs do not starve. A
 * run that waits for slots out of service reserves nothing, because their return is unknown. If the slots of
 * a kind share memory, a run needs enough free memory as well as slots; a run that needs more than the total
 * gets the memory exclusively.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SCHED_NEVER INT64_MAX

/* A waiting run. */
struct sched_item {
    int64_t id, job;
    int active;        /* running runs of its job */
    int64_t served_us; /* when a run of its job was last started; 0 = never */
    int cap;           /* maximum number of simultaneous runs of its job; 0 = no limit */
    int priority;
    int64_t queued_us;     /* since when it waits */
    int64_t not_before_us; /* back-off; 0 = at once */
    int64_t limit_us;      /* maximum duration; 0 = unknown */
    int slots;             /* >= 1 */
    const char *kind;      /* "cpu", "cuda" */
    int64_t
        bytes;  /* memory that it needs on the kind, for all slots together; 0 = unknown: none is reserved */
    bool unfit; /* too few free devices have the memory that it needs on each */
    /* results */
    bool start;           /* start it now */
    int position;         /* 1 = next, in order of priority; runs in back-off come last */
    int64_t wake_us;      /* when the decision may change without an event; SCHED_NEVER = never */
    bool impossible;      /* more slots than exist */
    bool blocked;         /* waits for slots that are out of service or unfit */
    bool short_of_memory; /* there are slots, but too little of the memory that they share */
    bool behind;          /* fits, but would delay an earlier run */
    bool capped;          /* its job has reached its limit */
    int turn;             /* runs of its job that run or precede it */
};

/* Devices of one kind that are held now. */
struct sched_busy {
    const char *kind;
    int slots;
    int64_t until_us; /* latest time of release; SCHED_NEVER = unknown */
    int64_t bytes;    /* of the kind's memory */
};

struct sched_kind {
    const char *kind;
    int total;
    int free;
    int out;                     /* out of service: neither free nor held by a run */
    int64_t memory, memory_free; /* bytes shared by its slots; memory 0: each slot has its own */
};

/* Decides for all `items` (reordered by effective priority). `age_us`: waiting time that raises the priority
 * by one; 0 = no ageing. Started runs reduce `kinds[].free` and memory_free. */
void sched_cycle(struct sched_item *items, int count, struct sched_kind *kinds, int kind_count,
                 const struct sched_busy *busy, int busy_count, int64_t now_us, int64_t age_us);

/* Chooses `wanted` of the usable units: the set with the best connections, by `link` (0 = far to 4 = near,
 * any unit to any other; NULL = all alike). A single unit is chosen such that well-connected groups stay
 * intact; ties prefer lower indices. Writes ascending indices to `ret`; returns how many: `wanted`, or 0 if
 * fewer are usable. Greedy from every unit: exact for pairs, approximate beyond. */
int sched_pick(const bool *usable, int units, int wanted, int (*link)(void *ctx, int a, int b), void *ctx,
               int *ret);
