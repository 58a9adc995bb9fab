/* The watch: one thread finds the GPUs, samples them and looks whether they are still the same; another waits
 * for XIDs. Both may be held by the driver for good, so the memory they share is counted: who leaves last
 * frees it, and nobody joins them.
 *
 * driver and why are written before `found` and never after. The finding thread alone writes devices, handles
 * and links, under the mutex; it reads them without. NVML is opened and closed by it alone, while the other
 * thread is held outside (`hold`). */
#include <dirent.h>
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
#define RESCAN_INTERVALS 5
#define LOOK_US 3000000 /* after a device was given back its driver may need so long to clean up */
#define LOOK_EVERY_US 100000
#define EVENTS 64        /* waiting; older ones are lost when nobody takes them */
#define WAIT_MS 250      /* the event thread looks up this often */
#define HOLD_US 2000000  /* how long it may take to come out of the driver */
#define RETRY_US 1000000 /* after a failed wait for events */

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
    free(w->bus);
    free(w);
}

/* A thread ends; the last one closes NVML, since the other might be inside. */
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

static void scan_add(struct device_watch *w, const struct device *d, const char *gpu_id, void *handle,
                     unsigned gi)
{
    if (w->scan_count < DEVICE_GPU_MAX && wanted(w, d, gpu_id))
        w->scan[w->scan_count++] = (struct found){.device = *d, .handle = handle, .gi = gi};
}

static void scan_gpu(struct device_watch *w, int index)
{
    struct device d, mig;
    void *handle, *part;
    unsigned gi = 0;
    int code = nvml_gpu(w->nvml, index, &handle, &d), most;

    if (code != NVML_CODE_OK) {
        if (!w->lost[index])
            pd_log(PD_LOG_WARNING, "device", "gpu=%d unusable=1 why=\"%s\"", index, nvml_text(w->nvml, code));
        w->lost[index] = true;
        return;
    }
    w->lost[index] = false;
    most = nvml_mig_most(w->nvml, handle);
    d.split = most > 0;
    scan_add(w, &d, d.id, handle, 0);
    for (int i = 0; i < most; i++)
        if (nvml_mig(w->nvml, handle, &d, i, &part, &mig, &gi) == NVML_CODE_OK)
            scan_add(w, &mig, d.id, part, gi);
}

/* False: the driver does not count its GPUs. */
static bool scan(struct device_watch *w, int *ret_count, int *ret_code)
{
    int count = 0, code = nvml_count(w->nvml, &count);

    w->scan_count = 0;
    *ret_code = code;
    *ret_count = count;
    if (code != NVML_CODE_OK)
        return false;
    for (int i = 0; i < DEVICE_GPU_MAX; i++)
        if (i < count)
            scan_gpu(w, i);
        else
            w->lost[i] = false;
    return true;
}

static int slot_of(const struct device_watch *w, const char *id)
{
    for (int i = 0; i < w->count; i++)
        if (!strcmp(w->devices[i].id, id))
            return i;
    return -1;
}

/* A place for a device that has none: behind the others, or where nobody needs one any more. */
static int slot_new(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        if (w->devices[i].gone && w->forgotten[i])
            return i;
    return w->count < DEVICE_GPU_MAX ? w->count++ : -1;
}

static bool same(const struct device *a, const struct device *b)
{
    return a->gpu == b->gpu && a->instance == b->instance && a->split == b->split && a->gone == b->gone &&
           a->memory_bytes == b->memory_bytes && !strcmp(a->name, b->name);
}

/* Two devices must not bear one name: the one that is gone gives it up. */
static void rename_gone(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        for (int j = 0; w->devices[i].gone && j < w->count; j++)
            if (!w->devices[j].gone && !strcmp(w->devices[i].name, w->devices[j].name))
                snprintf(w->devices[i].name, sizeof w->devices[i].name, "gone:%d", i);
}

/* Its errors are still its errors when it comes back; all else is to be asked anew. */
static void sample_reset(struct device_sample *s)
{
    struct device_sample was = *s;

    *s = nvml_unknown;
    s->xids = was.xids;
    s->last_xid = was.last_xid;
    s->last_xid_us = was.last_xid_us;
}

/* Mutex held. What was scanned becomes the list. True if it is another one than before. */
static bool merge(struct device_watch *w)
{
    bool here[DEVICE_GPU_MAX] = {false}, changed = false;

    for (int k = 0; k < w->scan_count; k++) {
        const struct found *f = &w->scan[k];
        int i = slot_of(w, f->device.id);
        bool is_new = i < 0;

        if (is_new && (i = slot_new(w)) < 0)
            continue;
        if (is_new)
            w->samples[i] = nvml_unknown;
        else if (w->devices[i].gone)
            sample_reset(&w->samples[i]);
        changed = changed || is_new || !same(&w->devices[i], &f->device);
        w->devices[i] = f->device;
        w->handles[i] = f->handle;
        w->instances[i] = f->gi;
        w->forgotten[i] = false;
        here[i] = true;
    }
    for (int i = 0; i < w->count; i++) {
        struct device *d = &w->devices[i];

        /* Listed without a word is what a GPU off the bus does: it is broken, not gone, and its sample says
         * so. */
        if (here[i] || d->gone || (d->gpu >= 0 && d->gpu < DEVICE_GPU_MAX && w->lost[d->gpu]))
            continue;
        d->gone = true;
        w->handles[i] = NULL;
        sample_reset(&w->samples[i]);
        changed = true;
    }
    rename_gone(w);
    return changed;
}

static void find_links(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        for (int j = i + 1; j < w->count; j++) {
            const struct device *a = &w->devices[i], *b = &w->devices[j];
            uint8_t level = 0;

            if (a->instance < 0 && b->instance < 0 && !a->gone && !b->gone)
                level = (uint8_t)nvml_link(w->nvml, w->handles[i], w->handles[j]);
            pthread_mutex_lock(&w->mutex);
            w->links[i][j] = w->links[j][i] = level;
            pthread_mutex_unlock(&w->mutex);
        }
}

/* The event thread is outside. */
static void find_events(struct device_watch *w)
{
    void *gpus[DEVICE_GPU_MAX], *set;
    int count = 0;

    for (int i = 0; i < w->count; i++)
        if (w->devices[i].instance < 0 && !w->devices[i].gone)
            gpus[count++] = w->handles[i];
    set = nvml_events_new(w->nvml, gpus, count);
    pthread_mutex_lock(&w->mutex);
    w->set = set;
    pthread_mutex_unlock(&w->mutex);
}

/* What the module drives now, as a number; 0 = it does not say. */
static uint64_t bus_now(const struct device_watch *w)
{
    DIR *dir = opendir(w->bus);
    uint64_t sum = 0;
    struct dirent *e;

    while (dir && (e = readdir(dir))) {
        uint64_t h = UINT64_C(14695981039346656037);

        for (const char *c = e->d_name; *c; c++)
            h = (h ^ (unsigned char)*c) * UINT64_C(1099511628211);
        sum += h; /* in any order */
    }
    if (dir)
        closedir(dir);
    return sum;
}

static void find(struct device_watch *w)
{
    struct pd_why why = {""};
    int count, code;

    w->bus_seen = bus_now(w);
    w->nvml = nvml_open(w->library, &why);
    if (!w->nvml) {
        snprintf(w->why, sizeof w->why, "%s", why.text);
        return;
    }
    nvml_driver(w->nvml, &w->driver);
    if (!scan(w, &count, &code)) {
        snprintf(w->why, sizeof w->why, "NVML does not count its GPUs: %s", nvml_text(w->nvml, code));
        return;
    }
    pthread_mutex_lock(&w->mutex);
    merge(w);
    pthread_mutex_unlock(&w->mutex);
    find_links(w);
    find_events(w);
    w->driver.events = w->set != NULL;
    if (!w->count)
        snprintf(w->why, sizeof w->why, "%s",
                 count ? "none of the driver's GPUs is offered (devices.gpus)" : "the driver finds no GPU");
}

/* Has the event thread wait outside of NVML; false if the driver holds it. */
static bool hold_events(struct device_watch *w)
{
    int64_t limit_us = pd_clock_mono_us() + HOLD_US;
    bool held;

    pthread_mutex_lock(&w->mutex);
    w->hold = true;
    pthread_cond_broadcast(&w->cond);
    while (w->events_run && !w->held && !w->stopping && pd_clock_mono_us() < limit_us)
        wait_until(w, limit_us);
    held = !w->events_run || w->held;
    if (!held) {
        w->hold = false;
        pthread_cond_broadcast(&w->cond);
    }
    pthread_mutex_unlock(&w->mutex);
    return held;
}

static void release_events(struct device_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->hold = false;
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->mutex);
}

/* The module drives other GPUs than when NVML was opened: a session of NVML lists those of its beginning. The
 * event thread is outside, its set is freed. */
static void reopen(struct device_watch *w, uint64_t bus)
{
    struct pd_why why = {""};
    bool was_open = w->nvml != NULL;

    w->nvml = nvml_close(w->nvml);
    w->nvml = nvml_open(w->library, &why);
    if (w->nvml) {
        w->bus_seen = bus;
        pd_log(PD_LOG_INFO, "device", "nvml=reopened why=\"the driver's GPUs have changed\"");
    } else if (was_open)
        pd_log(PD_LOG_WARNING, "device", "nvml=closed why=\"%s\"", why.text);
}

/* Are the devices still the same? Never more often than every rescan_us, but for a handle that led nowhere.
 */
static void rescan(struct device_watch *w)
{
    uint64_t bus = bus_now(w);
    bool other_bus = !w->nvml || bus != w->bus_seen, changed = false, held = false;
    int count, code;

    w->hurry = false;
    if (other_bus && (held = hold_events(w))) {
        if (w->nvml)
            nvml_events_free(w->nvml, w->set);
        pthread_mutex_lock(&w->mutex);
        w->set = NULL;
        pthread_mutex_unlock(&w->mutex);
        reopen(w, bus);
    }
    if (w->nvml && scan(w, &count, &code)) {
        pthread_mutex_lock(&w->mutex);
        changed = merge(w);
        if (changed)
            w->list_changed = true;
        pthread_mutex_unlock(&w->mutex);
    }
    if (changed) {
        find_links(w);
        if (!held && (held = hold_events(w)))
            nvml_events_free(w->nvml, w->set);
    }
    if (held && w->nvml && (changed || other_bus))
        find_events(w);
    if (held)
        release_events(w);
    if (changed)
        tell(w);
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
    tell(w);
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
            wait_until(w, pd_clock_mono_us() + RETRY_US);
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
    int code;

    if (w->devices[i].gone || !w->nvml)
        return;
    pthread_mutex_lock(&w->mutex);
    w->asked = i;
    pthread_mutex_unlock(&w->mutex);
    code = nvml_sample(w->nvml, w->handles[i], w->devices[i].instance >= 0, &s);
    s.taken_us = began_us;
    pthread_mutex_lock(&w->mutex);
    if (code == NVML_CODE_NOT_FOUND) { /* nothing is known of it: what was said last grows old */
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

    find(w);
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
        if (w->hurry || pd_clock_mono_us() - scanned_us >= w->rescan_us) {
            rescan(w);
            scanned_us = pd_clock_mono_us();
        }
        sample_all(w);
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

int device_watch_devices(struct device_watch *w, struct device *ret, int most)
{
    int count;

    if (w->given_up)
        return 0;
    pthread_mutex_lock(&w->mutex);
    count = w->count;
    memcpy(ret, w->devices, (size_t)(count < most ? count : most) * sizeof *ret);
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
