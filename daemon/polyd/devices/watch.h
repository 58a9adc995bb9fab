/* daemon/polyd/devices/watch.h: shared by watch.c (threads, samples, events, the caller's interface) and
 * scan.c (finding GPUs).
 *
 * driver and why are written before `found` and never after. Only the finding thread writes devices, handles
 * and links, under the mutex, and reads them without it. Only it opens and closes NVML, while the other
 * thread is blocked outside (`hold`). */
#pragma once

#include <pthread.h>

#include "daemon/polyd/devices/nvml.h"

#define DEVICE_WATCH_EVENTS 64 /* queue length; the oldest are dropped when it is full */

struct found {
    struct device device;
    void *handle;
    unsigned gi;
};

struct device_watch {
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* found, look, stopping, closed, hold, held */
    char *library, *gpus, *bus;
    int64_t interval_us, rescan_us;
    pthread_mutex_t call; /* around `changed`, so that the stop can be sure it is not under way */
    void (*changed)(void *ctx);
    void *ctx;
    int owners;  /* the caller and the threads */
    int threads; /* that use NVML */
    bool found, given_up, stopping, closed;

    struct nvml *nvml;
    struct device_driver driver;
    char why[256];
    uint64_t bus_seen;                 /* devices on the bus when NVML was opened */
    struct found scan[DEVICE_GPU_MAX]; /* of the finding thread, as the next */
    bool lost[DEVICE_GPU_MAX];         /* by NVML's index: listed, but queries fail */
    int scan_count;
    bool hurry; /* a handle has become invalid: rescan immediately */

    /* mutex: */
    struct device devices[DEVICE_GPU_MAX];
    void *handles[DEVICE_GPU_MAX];
    unsigned instances[DEVICE_GPU_MAX];
    uint8_t links[DEVICE_GPU_MAX][DEVICE_GPU_MAX];
    bool forgotten[DEVICE_GPU_MAX];
    int count;
    void *set;                   /* of events; NULL = the driver has none */
    bool events_run, hold, held; /* the event thread lives; is to stay outside of NVML; does so */
    struct device_sample samples[DEVICE_GPU_MAX];
    int asked;       /* the device whose sample is being taken; -1 = none */
    int64_t look_us; /* monotonic: frequent sampling until then */
    bool list_changed;
    struct device_event events[DEVICE_WATCH_EVENTS];
    int event_first, event_count;
};

/* Mutex held. Until `until_us` (monotonic) or a signal. */
void device_watch_wait(struct device_watch *w, int64_t until_us);
/* Calls `changed`. */
void device_watch_notify(struct device_watch *w);

/* The finding thread: opens NVML and creates the first list, or sets `why`. */
void device_watch_find(struct device_watch *w);
/* Rescans the devices, at most every rescan_us unless a handle has become invalid.
 */
void device_watch_rescan(struct device_watch *w);
