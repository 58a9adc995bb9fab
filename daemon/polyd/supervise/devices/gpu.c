/* GPUs: found and watched by daemon/polyd/devices, and taken out of service when the driver reports a fault
 * of theirs. Their list follows the machine: what is gone takes no run, what comes is used after a look at
 * it. A fault of the device is never counted against the run that met it: it starts again elsewhere, from its
 * last checkpoint and not from a new one, which might hold what a broken memory made of the weights. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/polyd/store/store.h"
#include "daemon/polyd/supervise/answer.h"
#include "daemon/polyd/supervise/devices/internal.h"
#include "daemon/polyd/supervise/workers/proc.h"
#include "daemon/polyd/supervise/workers/workers.h"
#include "kernels/base/clock.h"
#include "kernels/base/json.h"
#include "kernels/base/log.h"

#define ASK_MS 20000 /* a worker that opens its plug-ins loads some large libraries */

/* ---- the start ------------------------------------------------------------------------------- */

static void take_news(struct loop_post *post)
{
    struct news *n = (struct news *)post;
    struct devices *ds = n->devices;

    n->posted = false; /* before the look: what comes from here on is news again */
    gpu_tick(ds, pd_clock_mono_us());
    loop_schedule(ds->loop);
}

/* From a thread of the watch. */
static void changed(void *ctx)
{
    struct news *n = &((struct devices *)ctx)->news;

    if (!atomic_exchange(&n->posted, true))
        loop_post(n->devices->loop, &n->post);
}

/* What `polyd-worker info` says of the back end for GPUs: "plugins":{"backend_cuda":"why it does not open"}.
 */
static void ask_worker(struct devices *ds)
{
    char *argv[] = {(char *)"polyd-worker", (char *)"info", NULL}, text[4096], mark[WORKERS_PATH_MAX + 64];
    int fd = memfd_create("info", MFD_CLOEXEC);
    struct pollfd wait = {.fd = -1, .events = POLLIN};
    struct pd_why why = {""};
    struct proc proc = {.fd = -1};
    struct answer_info info;
    ssize_t n = 0;

    snprintf(mark, sizeof mark, "%s:info", workers_state_dir(ds->workers));
    if (fd >= 0 && proc_spawn(ds->workers, argv, NULL, 0, -1, fd, -1, mark, NULL, &proc, &why) == PD_OK) {
        wait.fd = proc.fd;
        if (poll(&wait, 1, ASK_MS) != 1)
            proc_signal(&proc, SIGKILL);
        poll(&wait, 1, ASK_MS);
        proc_reap(&proc);
        n = pread(fd, text, sizeof text, 0);
    }
    if (fd >= 0)
        close(fd);
    if (n > 0 && answer_info_read(text, (size_t)n, &info))
        snprintf(ds->no_cuda, sizeof ds->no_cuda, "%.*s", (int)sizeof ds->no_cuda - 1, info.backend_cuda);
    else
        snprintf(ds->no_cuda, sizeof ds->no_cuda, "the worker does not report whether it can use GPUs%s%s",
                 why.text[0] ? ": " : "", why.text);
}

int gpu_count(const struct devices *ds, const char **ret_why)
{
    int count = 0, there = 0;

    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count; i++) {
        there += !ds->devices[i].gone;
        count += !ds->devices[i].gone && !ds->devices[i].split;
    }
    *ret_why = count           ? ""
               : !ds->watch    ? "polyd does not look for GPUs"
               : there         ? "its GPUs are split, and no MIG instance was made"
               : ds->gpu_count ? "the driver lists its GPUs no longer"
                               : device_watch_why(ds->watch);
    return count;
}

void gpu_why_none(const struct devices *ds, char *out, size_t size)
{
    const char *why;

    if (!gpu_count(ds, &why))
        snprintf(out, size, "this node has no NVIDIA GPU: %s", why);
    else
        snprintf(out, size, "%s", ds->no_cuda);
}

/* Asked once, also where the driver has no GPU yet: one may come. */
static void judge(struct devices *ds, bool ask)
{
    if (ds->watch && device_watch_driver(ds->watch)->loaded && ask)
        ask_worker(ds);
    if (ds->gpu_count && ds->no_cuda[0])
        pd_log(PD_LOG_WARNING, "supervise", "cuda=refused why=\"%s\"", ds->no_cuda);
}

static void log_device(const struct device *d, const char *news)
{
    pd_log(PD_LOG_INFO, "device", "gpu=%s id=%s model=\"%s\" memory=%lld capability=%d.%d%s%s", d->name,
           d->id, d->model, (long long)d->memory_bytes, d->major, d->minor, d->split ? " split=1" : "", news);
}

enum pd_err gpu_start(struct devices *ds, const struct devices_options *options, struct pd_why *why)
{
    struct device_watch_options o = {.library = options->nvml,
                                     .gpus = options->gpus,
                                     .interval_us = options->sample_us,
                                     .start_us = options->start_us,
                                     .changed = changed,
                                     .ctx = ds};
    const struct device_driver *driver;
    enum pd_err err;

    ds->gpu_first = ds->device_count;
    ds->news.post.fn = take_news;
    ds->news.devices = ds;
    if (!o.gpus) {
        judge(ds, options->ask_worker);
        return PD_OK;
    }
    err = device_watch_start(&o, &ds->watch, why);
    if (err != PD_OK)
        return err;
    driver = device_watch_driver(ds->watch);
    ds->gpu_count = device_watch_devices(ds->watch, &ds->devices[ds->gpu_first], DEVICE_GPU_MAX);
    ds->device_count += ds->gpu_count;
    for (int i = ds->gpu_first; i < ds->device_count; i++)
        log_device(&ds->devices[i], "");
    if (ds->gpu_count)
        pd_log(PD_LOG_INFO, "device", "gpus=%d driver=%s cuda=%d.%d", ds->gpu_count, driver->version,
               driver->cuda_major, driver->cuda_minor);
    else
        pd_log(PD_LOG_INFO, "device", "gpus=0 why=\"%s\"", device_watch_why(ds->watch));
    judge(ds, options->ask_worker);
    gpu_commands(ds);
    return PD_OK;
}

/* ---- out of service -------------------------------------------------------------------------- */

struct drains {
    const struct devices *ds;
    struct {
        bool on;
        char reason[160], who[64];
        int64_t time_us;
    } rows[DEVICE_MAX];
};

static bool drain_row(void *ctx, const struct store_drain *d)
{
    struct drains *all = ctx;

    for (int i = 0; i < all->ds->device_count; i++) {
        if (strcmp(all->ds->devices[i].id, d->device) != 0)
            continue;
        all->rows[i].on = true;
        all->rows[i].time_us = d->time_us;
        snprintf(all->rows[i].reason, sizeof all->rows[i].reason, "%s", d->reason);
        snprintf(all->rows[i].who, sizeof all->rows[i].who, "%s", d->who);
    }
    return true;
}

void gpu_commands(void *devices)
{
    struct devices *ds = devices;
    struct drains all = {.ds = ds};
    struct pd_why why;
    enum pd_err err;

    /* Our own drain is in memory before its row is: do not read it away. */
    if (ds->drains_writing)
        return;
    err = store_drain_list(loop_reader(ds->loop), drain_row, &all, &why);
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "drains=unreadable why=\"%s\"", why.text);
        return;
    }
    pthread_mutex_lock(&ds->lock);
    for (int i = 0; i < ds->device_count; i++) {
        if (ds->held[i].drained != all.rows[i].on)
            loop_schedule(ds->loop);
        ds->held[i].drained = all.rows[i].on;
        ds->held[i].drained_us = all.rows[i].time_us;
        memcpy(ds->held[i].drain_reason, all.rows[i].reason, sizeof ds->held[i].drain_reason);
        memcpy(ds->held[i].drained_by, all.rows[i].who, sizeof ds->held[i].drained_by);
    }
    pthread_mutex_unlock(&ds->lock);
}

struct gpu_op {
    struct loop_op op;
    char device[DEVICE_ID_BYTES], name[32], reason[160];
    bool drain;
    int xid;
    int64_t job, run;
    int attempt;
};

static enum pd_err gpu_apply(struct store_tx *tx, struct loop_op *op, struct pd_why *why)
{
    struct gpu_op *g = (struct gpu_op *)op;
    struct store_drain d = {.device = g->device, .name = g->name, .reason = g->reason, .who = "polyd"};
    enum pd_err err = PD_OK;

    if (g->xid) {
        struct pd_buf b;

        pd_buf_init(&b, 0);
        pd_json_open(&b, '{');
        pd_json_kv_str(&b, "device", g->device);
        pd_json_kv_str(&b, "name", g->name);
        pd_json_kv_int(&b, "xid", g->xid);
        pd_json_kv_str(&b, "reason", g->reason);
        pd_json_close(&b, '}');
        err = pd_buf_err(&b);
        if (err == PD_OK)
            err = store_event_add(tx, "device.xid", g->job, g->run, g->attempt, b.data, NULL, why);
        pd_buf_done(&b);
    }
    return err == PD_OK && g->drain ? store_device_drain(tx, &d, why) : err;
}

static void gpu_written(struct loop_op *op)
{
    struct devices *ds = op->owner;
    struct gpu_op *g = (struct gpu_op *)op;

    if (g->drain)
        ds->drains_writing--;
    if (op->err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "device=%s event=unwritten why=\"%s\"", g->name, op->why.text);
}

static void write_event(struct devices *ds, int i, const struct devices_holder *by, int xid, bool drain,
                        const char *reason)
{
    struct gpu_op *g = calloc(1, sizeof *g);

    if (!g) {
        pd_log(PD_LOG_ERROR, "supervise", "device=%s event=unwritten no memory", ds->devices[i].name);
        return;
    }
    g->op.apply = gpu_apply;
    g->op.owner = ds;
    g->op.done = gpu_written;
    g->op.rows = 3;
    memcpy(g->device, ds->devices[i].id, sizeof g->device);
    memcpy(g->name, ds->devices[i].name, sizeof g->name);
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    g->drain = drain;
    g->xid = xid;
    g->job = by->job;
    g->run = by->run;
    g->attempt = by->attempt;
    if (drain)
        ds->drains_writing++;
    loop_write(ds->loop, &g->op);
}

/* In memory at once, so that nothing starts there while the row is written. */
static void take_out(struct devices *ds, int i, const char *reason)
{
    pd_log(PD_LOG_WARNING, "device", "gpu=%s state=drained why=\"%s\"", ds->devices[i].name, reason);
    pthread_mutex_lock(&ds->lock);
    if (!ds->held[i].drained) {
        ds->held[i].drained = true;
        ds->held[i].drained_us = pd_clock_wall_us();
        snprintf(ds->held[i].drain_reason, sizeof ds->held[i].drain_reason, "%s", reason);
        snprintf(ds->held[i].drained_by, sizeof ds->held[i].drained_by, "polyd");
    }
    pthread_mutex_unlock(&ds->lock);
}

/* ---- what the driver reports ----------------------------------------------------------------- */

/* An error of a whole GPU concerns what runs on its instances, too. */
static bool concerned(const struct devices *ds, int i, int device)
{
    return i == device ||
           (ds->devices[device].split && i >= ds->gpu_first && ds->devices[i].gpu == ds->devices[device].gpu);
}

static void notify_run(struct devices *ds, const struct devices_holder *by, int device, bool fatal,
                       const char *reason)
{
    for (struct devices_listener *l = ds->listeners; l; l = l->next)
        if (l->run_fault)
            l->run_fault(l->self, by->run, by->attempt, ds->devices[device].name, fatal, reason);
}

static void notify_lost(struct devices *ds, int device, const char *reason)
{
    for (struct devices_listener *l = ds->listeners; l; l = l->next)
        if (l->lost)
            l->lost(l->self, device, ds->devices[device].name, reason);
}

/* *ret_by: a run that holds it, 0 = none does. */
static void notify_holders(struct devices *ds, int device, enum device_xid what, const char *reason,
                           struct devices_holder *ret_by)
{
    *ret_by = (struct devices_holder){0};
    for (int i = 0; i < ds->device_count; i++)
        if (ds->held[i].by.run && concerned(ds, i, device)) {
            *ret_by = ds->held[i].by;
            if (what == DEVICE_XID_FATAL || what == DEVICE_XID_PROGRAM)
                notify_run(ds, ret_by, device, what == DEVICE_XID_FATAL, reason);
        }
    if (what == DEVICE_XID_FATAL)
        notify_lost(ds, device, reason);
}

/* What a device that is gone takes with it: the runs on it start again elsewhere, and so do the models. */
static void lose(struct devices *ds, int i)
{
    const char *why = ds->devices[i].instance >= 0 ? "the MIG instance was taken apart"
                                                   : "the driver lists the GPU no longer";

    if (ds->held[i].by.run)
        notify_run(ds, &ds->held[i].by, i, true, why);
    notify_lost(ds, i, why);
}

static bool same_facts(const struct device *a, const struct device *b)
{
    return a->gone == b->gone && a->split == b->split && a->memory_bytes == b->memory_bytes &&
           !strcmp(a->name, b->name);
}

/* The devices are others than before: those that were known keep their place. */
static void take_list(struct devices *ds)
{
    struct device *fresh = calloc(DEVICE_GPU_MAX, sizeof *fresh);
    int count;

    if (!fresh) {
        pd_log(PD_LOG_ERROR, "device", "list=unread no memory");
        return; /* nothing new is used; what is gone grows stale */
    }
    count = device_watch_devices(ds->watch, fresh, DEVICE_GPU_MAX);
    for (int k = 0; k < ds->gpu_count && k < count; k++) { /* by the name that it had */
        const struct device *d = &ds->devices[ds->gpu_first + k];

        if (d->gone || !fresh[k].gone || strcmp(d->id, fresh[k].id) != 0)
            continue;
        pd_log(PD_LOG_WARNING, "device", "gpu=%s id=%s state=gone", d->name, d->id);
        lose(ds, ds->gpu_first + k);
    }
    pthread_mutex_lock(&ds->lock);
    for (int k = 0; k < count; k++) {
        int i = ds->gpu_first + k;
        struct device *d = &ds->devices[i];
        bool known = k < ds->gpu_count && !strcmp(d->id, fresh[k].id);

        if (!known)
            memset(&ds->held[i], 0, sizeof ds->held[i]);
        if (!known || (d->gone && !fresh[k].gone))
            ds->held[i].freed_us = pd_clock_mono_us(); /* used after a look at it */
        if (!fresh[k].gone && (!known || !same_facts(d, &fresh[k])))
            log_device(&fresh[k], !known ? " new=1" : d->gone ? " back=1" : " changed=1");
        *d = fresh[k];
    }
    ds->gpu_count = count;
    ds->device_count = ds->gpu_first + count;
    slots_look(ds);
    pthread_mutex_unlock(&ds->lock);
    free(fresh);
    gpu_commands(ds); /* one that came back may be drained */
    loop_schedule(ds->loop);
}

/* Frees the places of MIG instances that no longer exist, unless a run or a model still holds the device. */
static void forget_gone(struct devices *ds)
{
    for (int i = ds->gpu_first; i < ds->gpu_first + ds->gpu_count; i++)
        if (ds->devices[i].gone && ds->devices[i].instance >= 0 && !ds->held[i].by.run && !ds->held[i].models)
            device_watch_forget(ds->watch, i - ds->gpu_first);
}

static void take_event(struct devices *ds, const struct device_event *e)
{
    int i = ds->gpu_first + e->index;
    enum device_xid what = e->kind == DEVICE_EVENT_BROKEN ? DEVICE_XID_FATAL : device_xid_class(e->xid);
    struct devices_holder by;

    if (e->kind == DEVICE_EVENT_CHANGED) {
        take_list(ds);
        return;
    }
    if (e->index >= ds->gpu_count)
        return; /* of a device that we have not read yet: its sample says so, too */
    pd_log(PD_LOG_WARNING, "device", "gpu=%s %s", ds->devices[i].name, e->reason);
    notify_holders(ds, i, what, e->reason, &by);
    if (what >= DEVICE_XID_HARDWARE)
        take_out(ds, i, e->reason);
    write_event(ds, i, &by, e->xid, what >= DEVICE_XID_HARDWARE, e->reason);
    loop_schedule(ds->loop);
}

void gpu_tick(void *devices, int64_t now_us)
{
    struct devices *ds = devices;
    struct device_event e;

    (void)now_us;
    if (!ds->watch)
        return;
    while (device_watch_event(ds->watch, &e))
        take_event(ds, &e);
    forget_gone(ds);
    pthread_mutex_lock(&ds->lock);
    slots_look(ds);
    pthread_mutex_unlock(&ds->lock);
}
