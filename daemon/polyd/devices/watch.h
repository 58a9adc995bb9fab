/* daemon/polyd/devices/watch.h: what the two halves of the watch share: watch.c (threads, samples, events,
 * the caller) and scan.c (which GPUs there are).
 *
 * driver and why are written before `found` and never after. The finding thread alone writes devices, handles
 * and links, under the mutex; it reads them without. NVML is opened and closed by it alone, while the other
 * thread is held outside (`hold`). */
#pragma once

#include <pthread.h>

#include "daemon/polyd/devices/nvml.h"

#define DEVICE_WATCH_EVENTS 64 /* waiting; older ones are lost when nobody takes them */

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
    uint64_t bus_seen;                 /* what the bus looked like when NVML was opened */
    struct found scan[DEVICE_GPU_MAX]; /* of the finding thread, as the next */
    bool lost[DEVICE_GPU_MAX];         /* by NVML's index: listed, but it says nothing of itself */
    int scan_count;
    bool hurry; /* a handle led nowhere: look at once */

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
    int64_t look_us; /* monotonic: until then samples are taken often */
    bool list_changed;
    struct device_event events[DEVICE_WATCH_EVENTS];
    int event_first, event_count;
};

/* Mutex held. Until `until_us` (monotonic) or a signal. */
void device_watch_wait(struct device_watch *w, int64_t until_us);
/* Calls `changed`. */
void device_watch_tell(struct device_watch *w);

/* The finding thread: opens NVML and makes the first list, or says in `why` that there is none. */
void device_watch_find(struct device_watch *w);
/* Are the devices still the same? Never more often than every rescan_us, but for a handle that led nowhere.
 */
void device_watch_rescan(struct device_watch *w);
