/* The watch: one thread finds the GPUs and samples them, another waits for XIDs. Both may be held by the
 * driver for good, so the memory they share is counted: who leaves last frees it, and nobody joins them.
 *
 * devices, links, driver and why are written before `found` and never after. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/device/nvml.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define INTERVAL_US 2000000
#define START_US 30000000
#define STOP_US 2000000
#define STALE_INTERVALS 5
#define STALE_LEAST_US 1000000
#define LOOK_US 3000000 /* after a device was given back its driver may need so long to clean up */
#define LOOK_EVERY_US 100000
#define EVENTS 64        /* waiting; older ones are lost when nobody takes them */
#define WAIT_MS 250      /* the event thread looks up this often */
#define RETRY_US 1000000 /* after a failed wait for events */

struct device_watch {
    pthread_mutex_t mutex;
    pthread_cond_t cond; /* found, look, stopping, closed */
    char *library, *gpus;
    int64_t interval_us;
    pthread_mutex_t call; /* around `changed`, so that the stop can be sure it is not under way */
    void (*changed)(void *ctx);
    void *ctx;
    int owners;  /* the caller and the threads */
    int threads; /* that use NVML */
    bool found, given_up, stopping, closed;

    struct nvml *nvml;
    struct device_driver driver;
    char why[256];
    struct device devices[DEVICE_GPU_MAX];
    void *handles[DEVICE_GPU_MAX];
    unsigned instances[DEVICE_GPU_MAX];
    uint8_t links[DEVICE_GPU_MAX][DEVICE_GPU_MAX];
    int count;
    void *set; /* of events; NULL = the driver has none */

    /* mutex: */
    struct device_sample samples[DEVICE_GPU_MAX];
    int asked;       /* the device whose sample is being taken; -1 = none */
    int64_t look_us; /* monotonic: until then samples are taken often */
    struct device_event events[EVENTS];
    int event_first, event_count;
};

/* Mutex held; lets it go. */
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
    free(w);
}

/* A thread ends; the last one closes NVML, since the other might be inside. */
static void thread_over(struct device_watch *w)
{
    bool last;

    pthread_mutex_lock(&w->mutex);
    last = --w->threads == 0;
    pthread_mutex_unlock(&w->mutex);
    if (last)
        w->nvml = nvml_close(w->nvml);
    pthread_mutex_lock(&w->mutex);
    w->closed = w->closed || last;
    pthread_cond_broadcast(&w->cond);
    leave(w);
}

/* Mutex held. Until `until_us` (monotonic) or a signal. */
static void wait_until(struct device_watch *w, int64_t until_us)
{
    struct timespec at = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};

    pthread_cond_timedwait(&w->cond, &w->mutex, &at);
}

static void tell(struct device_watch *w)
{
    pthread_mutex_lock(&w->call);
    if (w->changed)
        w->changed(w->ctx);
    pthread_mutex_unlock(&w->call);
}

/* ---- the choice of GPUs ---------------------------------------------------------------------- */

/* Is the device named by a list of indices and UUIDs (or beginnings of them, as CUDA takes them)? */
static bool listed(const char *list, const struct device *d, const char *gpu_id)
{
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        const char *next = at + len + (at[len] == ',');
        char one[DEVICE_ID_BYTES], *end;
        long index;

        while (len && *at == ' ') {
            at++;
            len--;
        }
        while (len && at[len - 1] == ' ')
            len--;
        if (len && len < sizeof one) {
            memcpy(one, at, len);
            one[len] = '\0';
            index = strtol(one, &end, 10);
            if (!*end ? index == d->gpu
                      : len > 4 && (!strncmp(d->id, one, len) || !strncmp(gpu_id, one, len)))
                return true;
        }
        at = next;
    }
    return false;
}

static bool wanted(const struct device_watch *w, const struct device *d, const char *gpu_id)
{
    const char *visible;

    if (!strcmp(w->gpus, "all"))
        return true;
    if (strcmp(w->gpus, "auto") != 0)
        return listed(w->gpus, d, gpu_id);
    visible = getenv("CUDA_VISIBLE_DEVICES");
    return !visible || listed(visible, d, gpu_id);
}

/* ---- finding --------------------------------------------------------------------------------- */

static void add(struct device_watch *w, const struct device *d, void *handle, unsigned gi)
{
    w->devices[w->count] = *d;
    w->handles[w->count] = handle;
    w->instances[w->count++] = gi;
}

static void find_gpu(struct device_watch *w, int index)
{
    struct device d, mig;
    void *handle, *part;
    unsigned gi = 0;
    int code = nvml_gpu(w->nvml, index, &handle, &d), most;

    if (code != NVML_CODE_OK) {
        pd_log(PD_LOG_WARNING, "device", "gpu=%d unusable=1 why=\"%s\"", index, nvml_text(w->nvml, code));
        return;
    }
    most = nvml_mig_most(w->nvml, handle);
    d.split = most > 0;
    if (wanted(w, &d, d.id))
        add(w, &d, handle, 0);
    for (int i = 0; i < most && w->count < DEVICE_GPU_MAX; i++)
        if (nvml_mig(w->nvml, handle, &d, i, &part, &mig, &gi) == NVML_CODE_OK && wanted(w, &mig, d.id))
            add(w, &mig, part, gi);
}

static void find_links(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        for (int j = i + 1; j < w->count; j++)
            if (w->devices[i].instance < 0 && w->devices[j].instance < 0)
                w->links[i][j] = w->links[j][i] = (uint8_t)nvml_link(w->nvml, w->handles[i], w->handles[j]);
}

static void find_events(struct device_watch *w)
{
    void *gpus[DEVICE_GPU_MAX];
    int count = 0;

    for (int i = 0; i < w->count; i++)
        if (w->devices[i].instance < 0)
            gpus[count++] = w->handles[i];
    w->set = count ? nvml_events_new(w->nvml, gpus, count) : NULL;
    w->driver.events = w->set != NULL;
}

static void find(struct device_watch *w)
{
    struct pd_why why = {""};
    int count = 0, code;

    w->nvml = nvml_open(w->library, &why);
    if (!w->nvml) {
        snprintf(w->why, sizeof w->why, "%s", why.text);
        return;
    }
    nvml_driver(w->nvml, &w->driver);
    code = nvml_count(w->nvml, &count);
    if (code != NVML_CODE_OK) {
        snprintf(w->why, sizeof w->why, "NVML does not count its GPUs: %s", nvml_text(w->nvml, code));
        return;
    }
    for (int i = 0; i < count && w->count < DEVICE_GPU_MAX; i++)
        find_gpu(w, i);
    find_links(w);
    find_events(w);
    if (!w->count)
        snprintf(w->why, sizeof w->why, "%s",
                 count ? "none of the driver's GPUs is offered (devices.gpus)" : "the driver finds no GPU");
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Mutex held. */
static void push(struct device_watch *w, const struct device_event *e)
{
    if (w->event_count == EVENTS) {
        w->event_first = (w->event_first + 1) % EVENTS;
        w->event_count--;
    }
    w->events[(w->event_first + w->event_count++) % EVENTS] = *e;
}

static void note_xid(struct device_watch *w, const char *uuid, unsigned gi, int xid)
{
    struct device_event e = {
        .kind = DEVICE_EVENT_XID, .index = -1, .xid = xid, .time_us = pd_clock_wall_us()};
    const char *text = device_xid_text(xid);

    for (int i = 0; i < w->count; i++) {
        const struct device *d = &w->devices[i];

        if (d->instance < 0 && !strcmp(d->id, uuid))
            e.index = i;
        else if (d->instance >= 0 && e.index >= 0 && w->devices[e.index].gpu == d->gpu &&
                 w->devices[e.index].instance < 0 && w->instances[i] == gi)
            e.index = i;
    }
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
    tell(w);
}

static void *event_thread(void *arg)
{
    struct device_watch *w = arg;
    bool over = false;

    while (!over) {
        char uuid[DEVICE_ID_BYTES] = "";
        unsigned gi = 0;
        int xid = 0, code = nvml_events_wait(w->nvml, w->set, WAIT_MS, uuid, sizeof uuid, &xid, &gi);

        if (code == NVML_CODE_OK)
            note_xid(w, uuid, gi, xid);
        pthread_mutex_lock(&w->mutex);
        if (code != NVML_CODE_OK && code != NVML_CODE_TIMEOUT && !w->stopping)
            wait_until(w, pd_clock_mono_us() + RETRY_US);
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

    pthread_mutex_lock(&w->mutex);
    w->asked = i;
    pthread_mutex_unlock(&w->mutex);
    (void)nvml_sample(w->nvml, w->handles[i], w->devices[i].instance >= 0, &s); /* s.broken says it all */
    s.taken_us = began_us;
    pthread_mutex_lock(&w->mutex);
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
        tell(w);
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

static void *sample_thread(void *arg)
{
    struct device_watch *w = arg;
    bool go;

    find(w);
    for (int i = 0; i < w->count; i++)
        sample(w, i);
    pthread_mutex_lock(&w->mutex);
    go = !w->given_up && w->count > 0;
    w->found = true;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->mutex);
    if (go && !(w->set && start_thread(w, event_thread)))
        pd_log(PD_LOG_WARNING, "device", "xid_events=0 the driver reports no errors by event");
    pthread_mutex_lock(&w->mutex);
    while (go && !w->stopping) {
        int64_t began_us = pd_clock_mono_us();
        int64_t pause_us =
            began_us < w->look_us && w->interval_us > LOOK_EVERY_US ? LOOK_EVERY_US : w->interval_us;
        bool asked;

        wait_until(w, began_us + pause_us);
        if (w->stopping)
            break;
        asked = pd_clock_mono_us() < w->look_us;
        pthread_mutex_unlock(&w->mutex);
        for (int i = 0; i < w->count; i++)
            sample(w, i);
        if (asked)
            tell(w);
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
    if (!w->library || !w->gpus) {
        free(w->library);
        free(w->gpus);
        free(w);
        return NULL;
    }
    w->interval_us = o->interval_us > 0 ? o->interval_us : INTERVAL_US;
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
        wait_until(w, limit_us);
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
        wait_until(w, limit_us);
    if (!w->closed)
        pd_log(PD_LOG_WARNING, "device", "stop=late the driver holds a thread of ours");
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

const struct device *device_watch_devices(const struct device_watch *w, int *ret_count)
{
    *ret_count = w->given_up ? 0 : w->count;
    return w->devices;
}

int device_watch_link(const struct device_watch *w, int a, int b)
{
    return w->links[a][b];
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
        if (now_us - s->taken_us <= limit_us)
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
    found = w->event_count > 0;
    if (found) {
        *ret = w->events[w->event_first];
        w->event_first = (w->event_first + 1) % EVENTS;
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
