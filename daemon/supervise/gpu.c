/* GPUs: found and watched by daemon/device, and taken out of service when the driver reports a fault of
 * theirs. Their list follows the machine: what is gone takes no run, what comes is used after a look at it. A
 * fault of the device is never counted against the run that met it: it starts again elsewhere, from its last
 * checkpoint and not from a new one, which might hold what a broken memory made of the weights. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define ASK_MS 20000 /* a worker that opens its plug-ins loads some large libraries */

/* ---- the start ------------------------------------------------------------------------------- */

static void news(struct sup *s, struct post *p)
{
    gpu_tick(s, pd_clock_mono_us());
    s->schedule = true;
    free(p);
}

/* From a thread of the watch. */
static void changed(void *ctx)
{
    struct post *p = calloc(1, sizeof *p);

    if (!p)
        return; /* the next tick looks by itself */
    p->fn = news;
    sup_post(ctx, p);
}

/* What `polyd-worker info` says of the back end for GPUs: "plugins":{"backend_cuda":"why it does not open"}.
 */
static void ask_worker(struct sup *s)
{
    char *argv[] = {(char *)"polyd-worker", (char *)"info", NULL}, text[4096] = "", mark[SUP_PATH_MAX + 64];
    int fd = memfd_create("info", MFD_CLOEXEC);
    struct pollfd wait = {.fd = -1, .events = POLLIN};
    struct pd_why why = {""};
    struct proc proc = {.fd = -1};
    const char *at;
    ssize_t n = 0;

    snprintf(mark, sizeof mark, "%s:info", s->state_dir);
    if (fd >= 0 && proc_spawn(s, argv, NULL, 0, -1, fd, -1, mark, NULL, &proc, &why) == PD_OK) {
        wait.fd = proc.fd;
        if (poll(&wait, 1, ASK_MS) != 1)
            proc_signal(&proc, SIGKILL);
        poll(&wait, 1, ASK_MS);
        proc_reap(s, &proc);
        n = pread(fd, text, sizeof text - 1, 0);
    }
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    at = strstr(text, "\"backend_cuda\":\"");
    if (at)
        snprintf(s->no_cuda, sizeof s->no_cuda, "%.*s", (int)strcspn(at + 16, "\""), at + 16);
    else
        snprintf(s->no_cuda, sizeof s->no_cuda, "the worker does not say whether it computes on GPUs%s%s",
                 why.text[0] ? ": " : "", why.text);
}

int gpu_count(const struct sup *s, const char **ret_why)
{
    int count = 0, there = 0;

    for (int i = s->gpu_first; i < s->gpu_first + s->gpu_count; i++) {
        there += !s->devices[i].gone;
        count += !s->devices[i].gone && !s->devices[i].split;
    }
    *ret_why = count          ? ""
               : !s->watch    ? "nobody looks for GPUs"
               : there        ? "its GPUs are split, and no MIG instance was made"
               : s->gpu_count ? "the driver lists its GPUs no longer"
                              : device_watch_why(s->watch);
    return count;
}

void gpu_why_none(const struct sup *s, char *out, size_t size)
{
    const char *why;

    if (!gpu_count(s, &why))
        snprintf(out, size, "this node has no NVIDIA GPU: %s", why);
    else
        snprintf(out, size, "%s", s->no_cuda);
}

bool sup_cuda(struct sup *s, char ret_why[SUP_WHY_BYTES])
{
    pthread_mutex_lock(&s->mutex);
    gpu_why_none(s, ret_why, SUP_WHY_BYTES);
    pthread_mutex_unlock(&s->mutex);
    return !ret_why[0];
}

/* Asked once, also where the driver has no GPU yet: one may come. */
static void judge(struct sup *s)
{
    if (s->watch && device_watch_driver(s->watch)->loaded && strcmp(s->train_role, "selftest") != 0)
        ask_worker(s); /* the diagnostic role computes nothing */
    if (s->gpu_count && s->no_cuda[0])
        pd_log(PD_LOG_WARNING, "supervise", "cuda=refused why=\"%s\"", s->no_cuda);
}

static void log_device(const struct device *d, const char *news)
{
    pd_log(PD_LOG_INFO, "device", "gpu=%s id=%s model=\"%s\" memory=%lld capability=%d.%d%s%s", d->name,
           d->id, d->model, (long long)d->memory_bytes, d->major, d->minor, d->split ? " split=1" : "", news);
}

enum pd_err gpu_start(struct sup *s, struct pd_why *why)
{
    struct device_watch_options o = {.library = s->o.nvml,
                                     .gpus = s->o.gpus,
                                     .interval_us = s->o.gpu_sample_us,
                                     .start_us = s->o.gpu_start_us,
                                     .changed = changed,
                                     .ctx = s};
    const struct device_driver *driver;
    enum pd_err err;

    s->gpu_first = s->device_count;
    s->o.gpus = s->o.nvml = NULL; /* borrowed for the start alone */
    if (!o.gpus) {
        judge(s);
        return PD_OK;
    }
    err = device_watch_start(&o, &s->watch, why);
    if (err != PD_OK)
        return err;
    driver = device_watch_driver(s->watch);
    s->gpu_count = device_watch_devices(s->watch, &s->devices[s->gpu_first], DEVICE_GPU_MAX);
    s->device_count += s->gpu_count;
    for (int i = s->gpu_first; i < s->device_count; i++)
        log_device(&s->devices[i], "");
    if (s->gpu_count)
        pd_log(PD_LOG_INFO, "device", "gpus=%d driver=%s cuda=%d.%d", s->gpu_count, driver->version,
               driver->cuda_major, driver->cuda_minor);
    else
        pd_log(PD_LOG_INFO, "device", "gpus=0 why=\"%s\"", device_watch_why(s->watch));
    judge(s);
    gpu_commands(s);
    return PD_OK;
}

void gpu_stop(struct sup *s)
{
    s->watch = device_watch_stop(s->watch);
}

int sup_gpu_count(struct sup *s, const char **ret_why, const struct device_driver **ret_driver)
{
    static const struct device_driver none;
    const char *why;
    int count;

    pthread_mutex_lock(&s->mutex);
    count = gpu_count(s, &why);
    pthread_mutex_unlock(&s->mutex);
    if (ret_why)
        *ret_why = why;
    if (ret_driver)
        *ret_driver = s->watch ? device_watch_driver(s->watch) : &none;
    return count;
}

/* ---- out of service -------------------------------------------------------------------------- */

struct drains {
    struct sup *s;
    struct {
        bool on;
        char reason[160], who[64];
        int64_t time_us;
    } rows[SUP_DEVICES_MAX];
};

static bool drain_row(void *ctx, const struct store_drain *d)
{
    struct drains *all = ctx;

    for (int i = 0; i < all->s->device_count; i++) {
        if (strcmp(all->s->devices[i].id, d->device) != 0)
            continue;
        all->rows[i].on = true;
        all->rows[i].time_us = d->time_us;
        snprintf(all->rows[i].reason, sizeof all->rows[i].reason, "%s", d->reason);
        snprintf(all->rows[i].who, sizeof all->rows[i].who, "%s", d->who);
    }
    return true;
}

void gpu_commands(struct sup *s)
{
    struct drains all = {.s = s};
    struct pd_why why;
    enum pd_err err;

    /* Our own drain is in memory before its row is: do not read it away. */
    if (s->drains_writing)
        return;
    err = store_drain_list(s->reader, drain_row, &all, &why);
    if (err != PD_OK) {
        pd_log(PD_LOG_ERROR, "supervise", "drains=unreadable why=\"%s\"", why.text);
        return;
    }
    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < s->device_count; i++) {
        s->schedule = s->schedule || s->held[i].drained != all.rows[i].on;
        s->held[i].drained = all.rows[i].on;
        s->held[i].drained_us = all.rows[i].time_us;
        memcpy(s->held[i].drain_reason, all.rows[i].reason, sizeof s->held[i].drain_reason);
        memcpy(s->held[i].drained_by, all.rows[i].who, sizeof s->held[i].drained_by);
    }
    pthread_mutex_unlock(&s->mutex);
}

struct gpu_op {
    struct op op;
    char device[DEVICE_ID_BYTES], name[32], reason[160];
    bool drain;
    int xid;
    int64_t job, run;
    int attempt;
};

static enum pd_err gpu_apply(struct store_tx *tx, struct op *op, struct pd_why *why)
{
    struct gpu_op *g = (struct gpu_op *)op;
    struct store_drain d = {.device = g->device, .name = g->name, .reason = g->reason, .who = "polyd"};
    enum pd_err err = PD_OK;

    if (g->xid) {
        struct pd_buf b;

        pd_buf_init(&b, 0);
        pd_buf_str(&b, "{\"device\":");
        store_json_text(&b, g->device);
        pd_buf_str(&b, ",\"name\":");
        store_json_text(&b, g->name);
        pd_buf_printf(&b, ",\"xid\":%d,\"reason\":", g->xid);
        store_json_text(&b, g->reason);
        pd_buf_str(&b, "}");
        err = pd_buf_err(&b);
        if (err == PD_OK)
            err = store_event_add(tx, "device.xid", g->job, g->run, g->attempt, b.data, NULL, why);
        pd_buf_done(&b);
    }
    return err == PD_OK && g->drain ? store_device_drain(tx, &d, why) : err;
}

static void gpu_written(struct sup *s, struct op *op)
{
    struct gpu_op *g = (struct gpu_op *)op;

    if (g->drain)
        s->drains_writing--;
    if (op->err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "device=%s event=unwritten why=\"%s\"", g->name, op->why.text);
}

static void write_event(struct sup *s, int i, const struct att *a, int xid, bool drain, const char *reason)
{
    struct gpu_op *g = calloc(1, sizeof *g);

    if (!g) {
        pd_log(PD_LOG_ERROR, "supervise", "device=%s event=unwritten no memory", s->devices[i].name);
        return;
    }
    g->op.lane = STORE_LANE_WORKER;
    g->op.apply = gpu_apply;
    g->op.done = gpu_written;
    g->op.rows = 3;
    memcpy(g->device, s->devices[i].id, sizeof g->device);
    memcpy(g->name, s->devices[i].name, sizeof g->name);
    snprintf(g->reason, sizeof g->reason, "%s", reason);
    g->drain = drain;
    g->xid = xid;
    if (a) {
        g->job = a->job;
        g->run = a->run;
        g->attempt = a->n;
    }
    if (drain)
        s->drains_writing++;
    if (sup_write(s, &g->op) != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "device=%s event=refused", s->devices[i].name);
}

/* In memory at once, so that nothing starts there while the row is written. */
static void take_out(struct sup *s, int i, const char *reason)
{
    pd_log(PD_LOG_WARNING, "device", "gpu=%s state=drained why=\"%s\"", s->devices[i].name, reason);
    pthread_mutex_lock(&s->mutex);
    if (!s->held[i].drained) {
        s->held[i].drained = true;
        s->held[i].drained_us = pd_clock_wall_us();
        snprintf(s->held[i].drain_reason, sizeof s->held[i].drain_reason, "%s", reason);
        snprintf(s->held[i].drained_by, sizeof s->held[i].drained_by, "polyd");
    }
    pthread_mutex_unlock(&s->mutex);
}

/* ---- what the driver reports ----------------------------------------------------------------- */

static bool holds(const struct att *a, int device)
{
    for (int i = 0; i < a->device_count; i++)
        if (a->devices[i] == device)
            return true;
    return false;
}

/* An error of a whole GPU concerns the runs on its instances, too. */
static bool concerned(const struct sup *s, const struct att *a, int device)
{
    if (holds(a, device))
        return true;
    for (int i = s->gpu_first; s->devices[device].split && i < s->gpu_first + s->gpu_count; i++)
        if (i != device && s->devices[i].gpu == s->devices[device].gpu && holds(a, i))
            return true;
    return false;
}

/* Its device is gone: it cannot even be asked to leave. */
static void lose(struct sup *s, struct att *a, int device, const char *reason)
{
    if (a->phase != ATT_WORKING || a->fault[0])
        return;
    snprintf(a->fault, sizeof a->fault, "%s: %s", s->devices[device].name, reason);
    pd_log(PD_LOG_WARNING, "supervise", "run=%lld attempt=%d device=%s fault=\"%s\"", (long long)a->run, a->n,
           s->devices[device].name, reason);
    if (!a->stopping) {
        a->stopping = true;
        a->cause = SPEC_CAUSE_LOST;
    }
    a->kill_us = pd_clock_mono_us();
}

/* An error of a program: of this one, unless it goes on. */
static void suspect(struct sup *s, struct att *a, int device, const char *reason, int64_t now_us)
{
    if (a->phase != ATT_WORKING || a->stopping)
        return;
    snprintf(a->xid, sizeof a->xid, "%s reported %s", s->devices[device].name, reason);
    a->xid_us = now_us;
    a->xid_step = a->step;
}

/* What a device that is gone takes with it: the runs on it start again elsewhere, and so do the models. */
static void bereave(struct sup *s, int i)
{
    const char *why = s->devices[i].instance >= 0 ? "the MIG instance was taken apart"
                                                  : "the driver lists the GPU no longer";

    for (struct att *a = s->atts; a; a = a->next)
        if (holds(a, i))
            lose(s, a, i, why);
    model_device_lost(s, i, why);
}

static bool same_facts(const struct device *a, const struct device *b)
{
    return a->gone == b->gone && a->split == b->split && a->memory_bytes == b->memory_bytes &&
           !strcmp(a->name, b->name);
}

/* The devices are others than before: those that were known keep their place. */
static void take_list(struct sup *s)
{
    struct device *fresh = calloc(DEVICE_GPU_MAX, sizeof *fresh);
    int count;

    if (!fresh) {
        pd_log(PD_LOG_ERROR, "device", "list=unread no memory");
        return; /* nothing new is used; what is gone grows stale */
    }
    count = device_watch_devices(s->watch, fresh, DEVICE_GPU_MAX);
    for (int k = 0; k < s->gpu_count && k < count; k++) { /* by the name that it had */
        const struct device *d = &s->devices[s->gpu_first + k];

        if (d->gone || !fresh[k].gone || strcmp(d->id, fresh[k].id) != 0)
            continue;
        pd_log(PD_LOG_WARNING, "device", "gpu=%s id=%s state=gone", d->name, d->id);
        bereave(s, s->gpu_first + k);
    }
    pthread_mutex_lock(&s->mutex);
    for (int k = 0; k < count; k++) {
        int i = s->gpu_first + k;
        struct device *d = &s->devices[i];
        bool known = k < s->gpu_count && !strcmp(d->id, fresh[k].id);

        if (!known)
            memset(&s->held[i], 0, sizeof s->held[i]);
        if (!known || (d->gone && !fresh[k].gone))
            s->held[i].freed_us = pd_clock_mono_us(); /* used after a look at it */
        if (!fresh[k].gone && (!known || !same_facts(d, &fresh[k])))
            log_device(&fresh[k], !known ? " new=1" : d->gone ? " back=1" : " changed=1");
        *d = fresh[k];
    }
    s->gpu_count = count;
    s->device_count = s->gpu_first + count;
    slots_look(s);
    pthread_mutex_unlock(&s->mutex);
    free(fresh);
    gpu_commands(s); /* one that came back may be drained */
    s->schedule = true;
}

/* Places of instances that are gone and that nobody holds may be given to others. */
static void forget_gone(struct sup *s)
{
    for (int i = s->gpu_first; i < s->gpu_first + s->gpu_count; i++)
        if (s->devices[i].gone && s->devices[i].instance >= 0 && !s->held[i].run && !s->held[i].models)
            device_watch_forget(s->watch, i - s->gpu_first);
}

static void take_event(struct sup *s, const struct device_event *e, int64_t now_us)
{
    int i = s->gpu_first + e->index;
    enum device_xid what = e->kind == DEVICE_EVENT_BROKEN ? DEVICE_XID_FATAL : device_xid_class(e->xid);
    const struct att *first = NULL;

    if (e->kind == DEVICE_EVENT_CHANGED) {
        take_list(s);
        return;
    }
    if (e->index >= s->gpu_count)
        return; /* of a device that we have not read yet: its sample says so, too */
    pd_log(PD_LOG_WARNING, "device", "gpu=%s %s", s->devices[i].name, e->reason);
    for (struct att *a = s->atts; a; a = a->next) {
        if (!concerned(s, a, i))
            continue;
        first = a;
        if (what == DEVICE_XID_FATAL)
            lose(s, a, i, e->reason);
        else if (what == DEVICE_XID_PROGRAM)
            suspect(s, a, i, e->reason, now_us);
    }
    if (what == DEVICE_XID_FATAL)
        model_device_lost(s, i, e->reason);
    if (what >= DEVICE_XID_HARDWARE)
        take_out(s, i, e->reason);
    write_event(s, i, first, e->xid, what >= DEVICE_XID_HARDWARE, e->reason);
    s->schedule = true;
}

void gpu_tick(struct sup *s, int64_t now_us)
{
    struct device_event e;

    if (!s->watch)
        return;
    while (device_watch_event(s->watch, &e))
        take_event(s, &e, now_us);
    forget_gone(s);
    for (struct att *a = s->atts; a; a = a->next) {
        if (!a->xid[0] || a->phase != ATT_WORKING || a->stopping)
            continue;
        if (a->step > a->xid_step)
            a->xid[0] = '\0'; /* it goes on: the error was not its own */
        else if (now_us - a->xid_us > s->o.grace_us) {
            a->stopping = true;
            a->cause = SPEC_CAUSE_FAILED;
            a->kill_us = now_us;
        }
    }
}
