/* The watch: one thread finds the GPUs, samples them and checks whether the list has changed; another waits
 * for XIDs. Both may hang in the driver for ever, so they are never joined; their shared memory has a
 * reference count, and the last user frees it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/polyd/devices/watch.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define INTERVAL_US 2000000
#define START_US 30000000
#define STOP_US 2000000
#define STALE_INTERVALS 5
#define STALE_LEAST_US 1000000
#define RESCAN_INTERVALS 5
#define LOOK_US 3000000 /* after the release of a device its driver may take so long to clean up */
#define LOOK_EVERY_US 100000
#define WAIT_MS 250      /* the event thread looks up this often */
#define RETRY_US 1000000 /* after a failed wait for events */

/* Mutex held; releases it. */
static void leave(struct device_watch *w)
{
    bool last = --w->owners == 0;

    pthread_mutex_unlock(&w->mutex);
    if (!last)
        return;
    pthread_cond_destroy(&w->cond);
    pthread_mutex_destroy(&w->mutex);
    pthread_mutex_destroy(&w->call);
    free(w->library);
    free(w->gpus);
    free(w->bus);
    free(w);
}

/* A thread ends. The last one closes NVML, because the other one may be inside it. */
static void thread_over(struct device_watch *w)
{
    bool last;

    pthread_mutex_lock(&w->mutex);
    last = --w->threads == 0;
    pthread_mutex_unlock(&w->mutex);
    if (last && w->nvml)
        nvml_events_free(w->nvml, w->set);
    if (last)
        w->nvml = nvml_close(w->nvml);
    pthread_mutex_lock(&w->mutex);
    w->closed = w->closed || last;
    pthread_cond_broadcast(&w->cond);
    leave(w);
}

void device_watch_wait(struct device_watch *w, int64_t until_us)
{
    struct timespec at = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};

    pthread_cond_timedwait(&w->cond, &w->mutex, &at);
}

void device_watch_notify(struct device_watch *w)
{
    pthread_mutex_lock(&w->call);
    if (w->changed)
        w->changed(w->ctx);
    pthread_mutex_unlock(&w->call);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Mutex held. */
static void push(struct device_watch *w, const struct device_event *e)
{
    if (w->event_count == DEVICE_WATCH_EVENTS) {
        w->event_first = (w->event_first + 1) % DEVICE_WATCH_EVENTS;
        w->event_count--;
    }
    w->events[(w->event_first + w->event_count++) % DEVICE_WATCH_EVENTS] = *e;
}

static void note_xid(struct device_watch *w, const char *uuid, unsigned gi, int xid)
{
    struct device_event e = {
        .kind = DEVICE_EVENT_XID, .index = -1, .xid = xid, .time_us = pd_clock_wall_us()};
    const char *text = device_xid_text(xid);
    int whole = -1;

    pthread_mutex_lock(&w->mutex);
    for (int i = 0; i < w->count; i++) {
        const struct device *d = &w->devices[i];

        if (d->instance < 0 && !strcmp(d->id, uuid))
            whole = e.index = i;
    }
    for (int i = 0; whole >= 0 && i < w->count; i++) {
        const struct device *d = &w->devices[i];

        if (d->instance >= 0 && !d->gone && d->gpu == w->devices[whole].gpu && w->instances[i] == gi)
            e.index = i;
    }
    pthread_mutex_unlock(&w->mutex);
    if (e.index < 0) {
        pd_log(PD_LOG_WARNING, "device", "gpu=%s xid=%d ignored=1", *uuid ? uuid : "unknown", xid);
        return;
    }
    snprintf(e.reason, sizeof e.reason, "XID %d%s%s", xid, *text ? ": " : "", text);
    pthread_mutex_lock(&w->mutex);
    w->samples[e.index].xids++;
    w->samples[e.index].last_xid = xid;
    w->samples[e.index].last_xid_us = e.time_us;
    push(w, &e);
    pthread_mutex_unlock(&w->mutex);
    device_watch_notify(w);
}

static void *event_thread(void *arg)
{
    struct device_watch *w = arg;
    bool over = false;

    while (!over) {
        char uuid[DEVICE_ID_BYTES] = "";
        unsigned gi = 0;
        int xid = 0, code;
        void *set;

        pthread_mutex_lock(&w->mutex);
        while (!w->stopping && (w->hold || !w->set)) {
            if (w->held != w->hold)
                pthread_cond_broadcast(&w->cond);
            w->held = w->hold;
            device_watch_wait(w, pd_clock_mono_us() + RETRY_US);
        }
        w->held = false;
        over = w->stopping;
        set = w->set;
        pthread_mutex_unlock(&w->mutex);
        if (over)
            break;
        code = nvml_events_wait(w->nvml, set, WAIT_MS, uuid, sizeof uuid, &xid, &gi);
        if (code == NVML_CODE_OK)
            note_xid(w, uuid, gi, xid);
        pthread_mutex_lock(&w->mutex);
        if (code != NVML_CODE_OK && code != NVML_CODE_TIMEOUT && !w->stopping)
            device_watch_wait(w, pd_clock_mono_us() + RETRY_US);
        over = w->stopping;
        pthread_mutex_unlock(&w->mutex);
    }
    thread_over(w);
    return NULL;
}

/* ---- samples --------------------------------------------------------------------------------- */

static void sample(struct device_watch *w, int i)
{
    struct device_sample s;
    struct device_event e = {.kind = DEVICE_EVENT_BROKEN, .index = i, .time_us = pd_clock_wall_us()};
    int64_t began_us = pd_clock_mono_us();
    bool news;
    int code;

    if (w->devices[i].gone || !w->nvml)
        return;
    pthread_mutex_lock(&w->mutex);
    w->asked = i;
    pthread_mutex_unlock(&w->mutex);
    code = nvml_sample(w->nvml, w->handles[i], w->devices[i].instance >= 0, &s);
    s.taken_us = began_us;
    pthread_mutex_lock(&w->mutex);
    if (code == NVML_CODE_NOT_FOUND) { /* no sample: the last one gets older */
        w->hurry = true;
        w->asked = -1;
        pthread_mutex_unlock(&w->mutex);
        return;
    }
    s.xids = w->samples[i].xids;
    s.last_xid = w->samples[i].last_xid;
    s.last_xid_us = w->samples[i].last_xid_us;
    news = s.broken && !w->samples[i].broken;
    if (news) {
        memcpy(e.reason, s.reason, sizeof e.reason);
        push(w, &e);
    }
    w->samples[i] = s;
    w->asked = -1;
    pthread_mutex_unlock(&w->mutex);
    if (news)
        device_watch_notify(w);
}

static bool start_thread(struct device_watch *w, void *(*run)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    pthread_mutex_lock(&w->mutex);
    w->owners++;
    w->threads++;
    pthread_mutex_unlock(&w->mutex);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, run, w);
    pthread_attr_destroy(&attr);
    if (rc) {
        pthread_mutex_lock(&w->mutex);
        w->owners--;
        w->threads--;
        pthread_mutex_unlock(&w->mutex);
    }
    return rc == 0;
}

static void sample_all(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        sample(w, i);
}

static void *sample_thread(void *arg)
{
    struct device_watch *w = arg;
    int64_t scanned_us;
    bool go;

    device_watch_find(w);
    sample_all(w);
    scanned_us = pd_clock_mono_us();
    pthread_mutex_lock(&w->mutex);
    /* Without a driver there is nothing to wait for; without a GPU there is. */
    go = !w->given_up && w->nvml && w->driver.loaded;
    w->found = w->events_run = true;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->mutex);
    if (!go || !start_thread(w, event_thread)) {
        pthread_mutex_lock(&w->mutex);
        w->events_run = false;
        pthread_mutex_unlock(&w->mutex);
    }
    if (go && !(w->driver.events && w->events_run))
        pd_log(PD_LOG_WARNING, "device", "xid_events=0 why=\"the driver does not report errors as events\"");
    pthread_mutex_lock(&w->mutex);
    while (go && !w->stopping) {
        int64_t began_us = pd_clock_mono_us();
        int64_t pause_us =
            began_us < w->look_us && w->interval_us > LOOK_EVERY_US ? LOOK_EVERY_US : w->interval_us;
        bool asked;

        device_watch_wait(w, began_us + pause_us);
        if (w->stopping)
            break;
        asked = pd_clock_mono_us() < w->look_us;
        pthread_mutex_unlock(&w->mutex);
        if (w->hurry || pd_clock_mono_us() - scanned_us >= w->rescan_us) {
            device_watch_rescan(w);
            scanned_us = pd_clock_mono_us();
        }
        sample_all(w);
        if (asked)
            device_watch_notify(w);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    thread_over(w);
    return NULL;
}

/* ---- for the caller -------------------------------------------------------------------------- */

static struct device_watch *watch_new(const struct device_watch_options *o)
{
    struct device_watch *w = calloc(1, sizeof *w);
    pthread_condattr_t attr;

    if (!w)
        return NULL;
    w->library = strdup(o->library && *o->library ? o->library : "libnvidia-ml.so.1");
    w->gpus = strdup(o->gpus && *o->gpus ? o->gpus : "auto");
    w->bus = strdup(o->bus && *o->bus ? o->bus : "/proc/driver/nvidia/gpus");
    if (!w->library || !w->gpus || !w->bus) {
        free(w->library);
        free(w->gpus);
        free(w->bus);
        free(w);
        return NULL;
    }
    w->interval_us = o->interval_us > 0 ? o->interval_us : INTERVAL_US;
    w->rescan_us = o->rescan_us > 0 ? o->rescan_us : RESCAN_INTERVALS * w->interval_us;
    w->changed = o->changed;
    w->ctx = o->ctx;
    w->asked = -1;
    w->owners = 1;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_mutex_init(&w->call, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->cond, &attr);
    pthread_condattr_destroy(&attr);
    return w;
}

enum pd_err device_watch_start(const struct device_watch_options *o, struct device_watch **ret,
                               struct pd_why *why)
{
    int64_t limit_us = pd_clock_mono_us() + (o->start_us > 0 ? o->start_us : START_US);
    struct device_watch *w = watch_new(o);

    if (!w)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to watch devices");
    *ret = w;
    if (!strcmp(w->gpus, "none")) {
        snprintf(w->why, sizeof w->why, "GPUs are turned off (devices.gpus = none)");
        w->closed = true;
        return PD_OK;
    }
    if (!start_thread(w, sample_thread)) {
        *ret = NULL;
        pthread_mutex_lock(&w->mutex);
        leave(w);
        return pd_fail(why, PD_ERR_NOMEM, "cannot start the thread that watches GPUs");
    }
    pthread_mutex_lock(&w->mutex);
    while (!w->found && pd_clock_mono_us() < limit_us)
        device_watch_wait(w, limit_us);
    w->given_up = !w->found;
    pthread_mutex_unlock(&w->mutex);
    return PD_OK;
}

struct device_watch *device_watch_stop(struct device_watch *w)
{
    int64_t limit_us = pd_clock_mono_us() + STOP_US;

    if (!w)
        return NULL;
    pthread_mutex_lock(&w->call);
    w->changed = NULL;
    pthread_mutex_unlock(&w->call);
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    pthread_cond_broadcast(&w->cond);
    while (!w->closed && pd_clock_mono_us() < limit_us)
        device_watch_wait(w, limit_us);
    if (!w->closed)
        pd_log(PD_LOG_WARNING, "device", "stop=late why=\"a thread of polyd hangs in the driver\"");
    leave(w);
    return NULL;
}

const char *device_watch_why(const struct device_watch *w)
{
    /* given_up never changes after the start, and `why` may still be written then. */
    return w->given_up ? "the NVIDIA driver does not answer" : w->why;
}

const struct device_driver *device_watch_driver(const struct device_watch *w)
{
    static const struct device_driver none;

    return w->given_up ? &none : &w->driver;
}

int device_watch_devices(struct device_watch *w, struct device *ret, int most)
{
    int count;

    if (w->given_up)
        return 0;
    pthread_mutex_lock(&w->mutex);
    count = w->count;
    for (int i = 0; i < count && i < most; i++) /* ret may be NULL if most is 0 */
        ret[i] = w->devices[i];
    pthread_mutex_unlock(&w->mutex);
    return count;
}

void device_watch_forget(struct device_watch *w, int index)
{
    pthread_mutex_lock(&w->mutex);
    w->forgotten[index] = w->devices[index].gone;
    pthread_mutex_unlock(&w->mutex);
}

int device_watch_link(struct device_watch *w, int a, int b)
{
    int level;

    pthread_mutex_lock(&w->mutex);
    level = w->links[a][b];
    pthread_mutex_unlock(&w->mutex);
    return level;
}

void device_watch_read(struct device_watch *w, struct device_sample *ret, int most)
{
    int64_t now_us = pd_clock_mono_us(), limit_us = w->interval_us * STALE_INTERVALS;

    if (w->given_up)
        return;
    if (limit_us < STALE_LEAST_US)
        limit_us = STALE_LEAST_US;
    pthread_mutex_lock(&w->mutex);
    for (int i = 0; i < w->count && i < most; i++) {
        struct device_sample *s = &ret[i];

        *s = w->samples[i];
        if (w->devices[i].gone || !s->taken_us || now_us - s->taken_us <= limit_us)
            continue;
        s->stale = true;
        if (w->asked >= 0 && w->asked != i)
            snprintf(s->reason, sizeof s->reason, "the driver has not answered for %lld s (asked about %s)",
                     (long long)((now_us - s->taken_us) / 1000000), w->devices[w->asked].name);
        else
            snprintf(s->reason, sizeof s->reason, "the driver has not answered for %lld s",
                     (long long)((now_us - s->taken_us) / 1000000));
    }
    pthread_mutex_unlock(&w->mutex);
}

bool device_watch_event(struct device_watch *w, struct device_event *ret)
{
    bool found;

    pthread_mutex_lock(&w->mutex);
    found = w->list_changed || w->event_count > 0;
    if (w->list_changed) {
        *ret = (struct device_event){.kind = DEVICE_EVENT_CHANGED,
                                     .index = -1,
                                     .time_us = pd_clock_wall_us(),
                                     .reason = "the devices changed"};
        w->list_changed = false;
    } else if (found) {
        *ret = w->events[w->event_first];
        w->event_first = (w->event_first + 1) % DEVICE_WATCH_EVENTS;
        w->event_count--;
    }
    pthread_mutex_unlock(&w->mutex);
    return found;
}

void device_watch_look(struct device_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->look_us = pd_clock_mono_us() + LOOK_US;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}
