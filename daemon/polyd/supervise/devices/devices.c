/* What other modules ask of the devices: each function takes the lock for as long as it looks or writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/polyd/supervise/devices/internal.h"
#include "kernels/base/clock.h"

enum pd_err devices_start(struct loop *l, struct workers *w, const struct devices_options *o,
                          struct devices **ret, struct pd_why *why)
{
    struct devices *ds = calloc(1, sizeof *ds);
    enum pd_err err;

    if (!ds)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the devices");
    ds->loop = l;
    ds->workers = w;
    pthread_mutex_init(&ds->lock, NULL);
    err = device_list(o->cpu_slots, o->cpu_threads, ds->devices, DEVICE_CPU_MAX, &ds->device_count, why);
    if (err == PD_OK)
        err = gpu_start(ds, o, why);
    if (err != PD_OK) {
        devices_free(ds);
        return err;
    }
    ds->member = (struct loop_member){.self = ds, .tick = gpu_tick, .commands = gpu_commands};
    loop_join(l, &ds->member);
    *ret = ds;
    return PD_OK;
}

void devices_listen(struct devices *ds, struct devices_listener *listener)
{
    listener->next = ds->listeners;
    ds->listeners = listener;
}

struct devices *devices_free(struct devices *ds)
{
    if (!ds)
        return NULL;
    ds->watch = device_watch_stop(ds->watch);
    pthread_mutex_destroy(&ds->lock);
    free(ds);
    return NULL;
}

/* ---- what they are --------------------------------------------------------------------------- */

bool devices_get(struct devices *ds, int i, struct device *ret, bool *ret_drained)
{
    bool there;

    pthread_mutex_lock(&ds->lock);
    there = i < ds->device_count;
    if (there)
        *ret = ds->devices[i];
    if (there && ret_drained)
        *ret_drained = ds->held[i].drained;
    pthread_mutex_unlock(&ds->lock);
    return there;
}

/* Copies of one device, so that nothing is formatted under the lock. */
struct device_row {
    struct sup_device out;
    struct device facts;
    struct device_sample sample;
};

/* Lock held. False: it is no news. */
static bool fill_row(const struct devices *ds, int i, struct device_row *r)
{
    const struct device *d = &ds->devices[i];
    bool gpu = slot_is_gpu(ds, i);

    if (d->gone && d->instance >= 0 && !ds->held[i].by.run)
        return false; /* an instance that was taken apart */
    r->facts = *d;
    if (gpu)
        r->sample = ds->samples[i - ds->gpu_first];
    r->out = (struct sup_device){.threads = d->threads,
                                 .memory_bytes = d->memory_bytes,
                                 .run_id = ds->held[i].by.run,
                                 .attempt = ds->held[i].by.attempt,
                                 .models = ds->held[i].models,
                                 .facts = gpu ? &r->facts : NULL,
                                 .sample = gpu ? &r->sample : NULL};
    memcpy(r->out.name, d->name, sizeof r->out.name);
    memcpy(r->out.kind, d->kind, sizeof r->out.kind);
    memcpy(r->out.model, d->model, sizeof r->out.model);
    memcpy(r->out.id, d->id, sizeof r->out.id);
    snprintf(r->out.state, sizeof r->out.state, "%s",
             slot_state_name(slot_state(ds, i, r->out.reason, sizeof r->out.reason)));
    if (ds->held[i].drained) {
        memcpy(r->out.drained_by, ds->held[i].drained_by, sizeof r->out.drained_by);
        memcpy(r->out.drain_reason, ds->held[i].drain_reason, sizeof r->out.drain_reason);
        r->out.drained_us = ds->held[i].drained_us;
    }
    return true;
}

void devices_list(struct devices *ds, void (*row)(void *ctx, const struct sup_device *d), void *ctx)
{
    struct device_row r;
    bool more = true;

    for (int i = 0; more; i++) {
        bool shown = false;

        pthread_mutex_lock(&ds->lock);
        if (!i)
            slots_look(ds);
        more = i < ds->device_count;
        if (more)
            shown = fill_row(ds, i, &r);
        pthread_mutex_unlock(&ds->lock);
        if (shown)
            row(ctx, &r.out);
    }
}

bool devices_cuda(struct devices *ds, char ret_why[SUP_WHY_BYTES])
{
    pthread_mutex_lock(&ds->lock);
    gpu_why_none(ds, ret_why, SUP_WHY_BYTES);
    pthread_mutex_unlock(&ds->lock);
    return !ret_why[0];
}

int devices_gpu_count(struct devices *ds, const char **ret_why, const struct device_driver **ret_driver)
{
    static const struct device_driver none;
    const char *why;
    int count;

    pthread_mutex_lock(&ds->lock);
    count = gpu_count(ds, &why);
    pthread_mutex_unlock(&ds->lock);
    if (ret_why)
        *ret_why = why;
    if (ret_driver)
        *ret_driver = ds->watch ? device_watch_driver(ds->watch) : &none;
    return count;
}

int64_t devices_memory(struct devices *ds, const char *device, int slots)
{
    bool cpu = !strcmp(device, "cpu");
    int64_t bytes, instance;

    pthread_mutex_lock(&ds->lock);
    bytes = slots_memory(ds, device);
    instance = cpu || slots > 1 ? 0 : slots_memory(ds, "mig");
    pthread_mutex_unlock(&ds->lock);
    bytes = instance > bytes ? instance : bytes;
    return cpu && slots > 1 ? bytes / slots : bytes;
}

enum pd_err devices_fit(struct devices *ds, const char *device, int slots, int64_t need_bytes, int ahead,
                        struct sup_queue_info *ret, char *devices, size_t size, struct pd_why *why)
{
    int chosen[DEVICES_PICK_MAX], count = 0;
    const char *kind;
    struct slot_count c;
    enum pd_err err = PD_OK;
    size_t len = 0;
    bool full;

    /* The queue's order by priority is seen at the next cycle; here only its length counts. */
    devices[0] = '\0';
    pthread_mutex_lock(&ds->lock);
    slots_look(ds);
    kind = slots_kind(ds, device, slots, need_bytes);
    c = slots_count(ds, kind);
    full = !strcmp(kind, "cpu") && slots_memory_held(ds, kind) &&
           need_bytes * slots > slots_memory(ds, kind) - slots_memory_held(ds, kind);
    if (!ahead && !full)
        count = slots_pick(ds, kind, slots, need_bytes, chosen);
    if (!c.total)
        err = pd_fail(why, PD_ERR_LIMIT, "this machine has no %s device", device);
    else if (slots > c.total)
        err = pd_fail(why, PD_ERR_LIMIT, "%d %s slots are requested, this machine has %d", slots, device,
                      c.total);
    else {
        ret->position = ahead + 1;
        if (count)
            snprintf(ret->reason, sizeof ret->reason, "would start at once");
        else if (full && slots <= c.free)
            slots_memory_reason(ds, kind, need_bytes * slots, ret->reason, sizeof ret->reason);
        else
            slots_reason(ds, kind, slots, ret->reason, sizeof ret->reason);
        for (int i = 0; i < count && len < size; i++)
            len += (size_t)snprintf(devices + len, size - len, "%s%s", i ? "," : "",
                                    ds->devices[chosen[i]].name);
    }
    pthread_mutex_unlock(&ds->lock);
    return err;
}

void devices_samples(struct devices *ds, const int *devices, int count, struct device_sample *ret)
{
    pthread_mutex_lock(&ds->lock);
    for (int i = 0; i < count; i++)
        ret[i] = ds->samples[devices[i] - ds->gpu_first];
    pthread_mutex_unlock(&ds->lock);
}

/* ---- who gets them --------------------------------------------------------------------------- */

void devices_look(struct devices *ds, struct devices_look *ret)
{
    static const char *const kinds[DEVICES_KINDS] = {"cpu", "cuda", "mig"};

    *ret = (struct devices_look){0};
    pthread_mutex_lock(&ds->lock);
    slots_look(ds);
    for (int i = 0; i < DEVICES_KINDS; i++) {
        struct slot_count c = slots_count(ds, kinds[i]);

        ret->kinds[i] = (struct sched_kind){.kind = kinds[i], .total = c.total, .free = c.free, .out = c.out};
    }
    ret->kinds[0].memory = slots_memory(ds, "cpu");
    ret->kinds[0].memory_free = ret->kinds[0].memory - slots_memory_held(ds, "cpu");
    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count; i++)
        ret->known_gpus += ds->devices[i].instance < 0;
    pthread_mutex_unlock(&ds->lock);
}

const char *devices_kind(struct devices *ds, const char *device, int slots, int64_t need_bytes,
                         bool *ret_unfit)
{
    const char *kind;

    pthread_mutex_lock(&ds->lock);
    kind = slots_kind(ds, device, slots, need_bytes);
    *ret_unfit = slots_unfit(ds, kind, slots, need_bytes);
    pthread_mutex_unlock(&ds->lock);
    return kind;
}

int devices_pick(struct devices *ds, const char *kind, int slots, int64_t need_bytes, int *ret)
{
    int count;

    pthread_mutex_lock(&ds->lock);
    count = slots_pick(ds, kind, slots, need_bytes, ret);
    pthread_mutex_unlock(&ds->lock);
    return count;
}

void devices_reason(struct devices *ds, const char *kind, int slots, int64_t short_bytes, char *out,
                    size_t size)
{
    pthread_mutex_lock(&ds->lock);
    if (short_bytes)
        slots_memory_reason(ds, kind, short_bytes, out, size);
    else
        slots_reason(ds, kind, slots, out, size);
    pthread_mutex_unlock(&ds->lock);
}

void devices_hold(struct devices *ds, const int *devices, int count, const struct devices_holder *holder)
{
    pthread_mutex_lock(&ds->lock);
    for (int i = 0; i < count; i++)
        ds->held[devices[i]].by = *holder;
    pthread_mutex_unlock(&ds->lock);
}

void devices_release(struct devices *ds, const int *devices, int count)
{
    bool look = false;

    pthread_mutex_lock(&ds->lock);
    for (int i = 0; i < count; i++) {
        ds->held[devices[i]].by = (struct devices_holder){0};
        ds->held[devices[i]].freed_us = pd_clock_mono_us();
        look = look || slot_is_gpu(ds, devices[i]);
    }
    pthread_mutex_unlock(&ds->lock);
    if (look)
        device_watch_look(ds->watch);
}

int devices_serve(struct devices *ds, char none[SUP_WHY_BYTES])
{
    int device;

    pthread_mutex_lock(&ds->lock);
    slots_look(ds);
    gpu_why_none(ds, none, SUP_WHY_BYTES);
    device = none[0] ? -1 : slots_pick_serving(ds);
    if (device >= 0)
        ds->held[device].models++;
    else if (!none[0])
        slots_why_none(ds, none, SUP_WHY_BYTES);
    pthread_mutex_unlock(&ds->lock);
    return device;
}

void devices_unserve(struct devices *ds, int device)
{
    pthread_mutex_lock(&ds->lock);
    ds->held[device].models--;
    ds->held[device].freed_us = pd_clock_mono_us();
    pthread_mutex_unlock(&ds->lock);
    device_watch_look(ds->watch);
}
