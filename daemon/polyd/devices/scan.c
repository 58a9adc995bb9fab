/* The list of GPUs: how it is made, how it follows changes of the machine, and which GPUs polyd may use. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/devices/watch.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define HOLD_US 2000000 /* longest wait for a thread to return from the driver */

/* ---- the choice of GPUs ---------------------------------------------------------------------- */

/* Whether a list of indices and UUIDs (or beginnings of UUIDs, as in CUDA) names the device. */
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

/* False: the driver does not report the number of GPUs. */
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

/* A place in the list for a new device: at the end, or an entry that is no longer used. */
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

/* Two devices must not have the same name: the one that is gone loses it. */
static void rename_gone(struct device_watch *w)
{
    for (int i = 0; i < w->count; i++)
        for (int j = 0; w->devices[i].gone && j < w->count; j++)
            if (!w->devices[j].gone && !strcmp(w->devices[i].name, w->devices[j].name))
                snprintf(w->devices[i].name, sizeof w->devices[i].name, "gone:%d", i);
}

/* Its error counts stay when it returns; all other values are read again. */
static void sample_reset(struct device_sample *s)
{
    struct device_sample was = *s;

    *s = nvml_unknown;
    s->xids = was.xids;
    s->last_xid = was.last_xid;
    s->last_xid_us = was.last_xid_us;
}

/* Mutex held. Replaces the list by the scanned one. True if it has changed. */
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

        /* A GPU that fell off the bus is listed but reports nothing: it is broken, not gone, and its sample
         * says so. */
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

void device_watch_find(struct device_watch *w)
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
        snprintf(w->why, sizeof w->why, "NVML does not report the number of GPUs: %s",
                 nvml_text(w->nvml, code));
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
                 count ? "devices.gpus selects none of the driver's GPUs" : "the driver finds no GPU");
}

/* Makes the event thread wait outside of NVML; false if it hangs in the driver. */
static bool hold_events(struct device_watch *w)
{
    int64_t limit_us = pd_clock_mono_us() + HOLD_US;
    bool held;

    pthread_mutex_lock(&w->mutex);
    w->hold = true;
    pthread_cond_broadcast(&w->cond);
    while (w->events_run && !w->held && !w->stopping && pd_clock_mono_us() < limit_us)
        device_watch_wait(w, limit_us);
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

/* Opens NVML again, because the kernel module drives other GPUs: a session of NVML lists those of its
 * beginning. The event thread is outside and its event set is freed. */
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

void device_watch_rescan(struct device_watch *w)
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
        device_watch_notify(w);
}
