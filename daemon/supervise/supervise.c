/* The supervisor's thread: one epoll over the listening socket, connections, pidfds and a wake-up counter,
 * with a tick for deadlines. Other threads and the store's writer put work into the post box. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/sched/sched.h"
#include "daemon/supervise/expand.h"
#include "daemon/supervise/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

#define TICK_MS 100      /* deadlines are kept this exactly */
#define STOP_US 20000000 /* serving workers and open writes get so long at a stop */

/* ---- posts ---------------------------------------------------------------------------------- */

static void wake(struct sup *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->wake_fd, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

void sup_post(struct sup *s, struct post *p)
{
    p->next = NULL;
    pthread_mutex_lock(&s->mutex);
    if (!s->posts)
        wake(s); /* under the lock: once the post is taken, sup_stop may free the supervisor */
    *s->posts_tail = p;
    s->posts_tail = &p->next;
    pthread_mutex_unlock(&s->mutex);
}

static void run_posts(struct sup *s)
{
    struct post *p, *next;

    pthread_mutex_lock(&s->mutex);
    p = s->posts;
    s->posts = NULL;
    s->posts_tail = &s->posts;
    pthread_mutex_unlock(&s->mutex);
    for (; p; p = next) {
        next = p->next;
        p->fn(s, p);
    }
}

/* ---- writes --------------------------------------------------------------------------------- */

static void op_back(struct sup *s, struct post *p)
{
    struct op *op = (struct op *)p;

    s->ops--;
    if (op->done)
        op->done(s, op);
    else if (op->err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "write=failed error=%s why=\"%s\"", pd_err_name(op->err),
               op->why.text);
    if (op->release)
        op->release(op);
    free(op);
}

static enum pd_err op_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct op *op = ctx;

    return op->apply(tx, op, why);
}

static void op_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct op *op = ctx;

    op->err = err;
    op->why = *why;
    op->post.fn = op_back;
    sup_post(op->sup, &op->post);
}

static enum pd_err submit(struct sup *s, struct op *op)
{
    struct store_work work = {
        .lane = op->lane, .rows = op->rows, .keep = true, .apply = op_apply, .done = op_done, .ctx = op};

    return store_writer_submit(s->writer, &work, &op->why);
}

static void refused(struct sup *s, struct op *op, enum pd_err err)
{
    op->err = err;
    op->post.fn = op_back;
    sup_post(s, &op->post);
}

enum pd_err sup_write(struct sup *s, struct op *op)
{
    enum pd_err err = PD_ERR_BUSY;

    op->sup = s;
    s->ops++;
    /* Worker state keeps its order: nothing overtakes what waits for room. */
    if (op->lane == STORE_LANE_METRICS || !s->deferred)
        err = submit(s, op);
    if (err == PD_OK)
        return PD_OK;
    if (err != PD_ERR_BUSY)
        refused(
            s, op,
            err); /* a stop: the rows are reconciled at the next start. Its owner hears of it as of any end */
    else if (op->lane == STORE_LANE_METRICS) {
        s->ops--;
        return err;
    } else {
        op->post.next = NULL;
        *s->deferred_tail = &op->post;
        s->deferred_tail = &op->post.next;
    }
    return PD_OK;
}

/* The lane was full: again, in order. */
static void write_deferred(struct sup *s)
{
    while (s->deferred) {
        struct op *op = (struct op *)s->deferred;
        struct post *next = s->deferred->next; /* the writer may be done with the op before we look again */
        enum pd_err err = submit(s, op);

        if (err == PD_ERR_BUSY)
            return;
        s->deferred = next;
        if (!s->deferred)
            s->deferred_tail = &s->deferred;
        if (err != PD_OK)
            refused(s, op, err);
    }
}

void sup_watch(struct sup *s, struct source *source, int fd, unsigned events)
{
    struct epoll_event e = {.events = events, .data.ptr = source};

    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &e) && errno == EEXIST)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void dispatch(struct sup *s, struct source *source, unsigned events)
{
    uint64_t count;
    ssize_t n;

    switch (source->kind) {
    case SOURCE_WAKE:
        n = read(s->wake_fd, &count, sizeof count);
        (void)n;
        break;
    case SOURCE_LISTEN:
        conn_accept(s);
        break;
    case SOURCE_CONN:
        conn_event(s, source->self, events);
        break;
    case SOURCE_ATT:
        att_gone(s, source->self);
        break;
    case SOURCE_MODEL:
        model_gone(s, source->self);
        break;
    case SOURCE_PLAN:
        plan_gone(s, source->self);
        break;
    }
}

static void tick(struct sup *s)
{
    int64_t now_us = pd_clock_mono_us();

    write_deferred(s);
    att_tick(s, now_us);
    model_tick(s, now_us);
    conn_tick(s, now_us);
    plan_tick(s, now_us);
    gpu_tick(s, now_us);
    usage_tick(s, now_us);
    if (s->wake_us && store_writer_clock_us(s->writer) >= s->wake_us)
        s->schedule = true;
}

static bool finished(struct sup *s, int64_t stop_us)
{
    bool idle;

    if (!s->quit)
        return false;
    idle = !s->plans && model_all_gone(s) && s->ops == 0;
    if (s->o.drain_on_stop)
        idle = idle && !s->atts;
    return idle || pd_clock_mono_us() > stop_us;
}

static void *sup_thread(void *arg)
{
    struct sup *s = arg;
    struct epoll_event events[64];
    int64_t ticked_us = 0, stop_us = INT64_MAX, looked_us = 0;

    while (!finished(s, stop_us)) {
        int n = epoll_wait(s->epoll_fd, events, 64, TICK_MS);
        int64_t now_us = pd_clock_mono_us();
        bool stopping;

        atomic_store(&s->alive_us, now_us);
        for (int i = 0; i < n; i++)
            dispatch(s, events[i].data.ptr, events[i].events);
        run_posts(s);
        pthread_mutex_lock(&s->mutex);
        stopping = s->stopping;
        pthread_mutex_unlock(&s->mutex);
        if (stopping && !s->quit) {
            s->quit = true;
            stop_us = now_us + STOP_US + (s->o.drain_on_stop ? s->o.grace_us : 0);
            model_stop_all(s);
            if (s->o.drain_on_stop)
                att_stop_all(s);
        }
        if (now_us - ticked_us >= TICK_MS * 1000) {
            tick(s);
            ticked_us = now_us;
        }
        /* Once a second without being asked: a notification may have been lost with a failed write. */
        if (now_us - looked_us >= 1000000)
            s->commands = s->schedule = true;
        if (s->commands) {
            s->commands = false;
            looked_us = now_us;
            gpu_commands(s);
            att_commands(s);
            silence_look(s);
        }
        if (s->schedule && !s->quit) {
            s->schedule = false;
            queue_cycle(s);
        }
        conn_sweep(s);
    }
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static enum pd_err listen_here(struct sup *s, struct pd_why *why)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    mode_t mask;
    int rc;

    if (strlen(s->socket_path) >= sizeof addr.sun_path)
        return pd_fail(why, PD_ERR_LIMIT, "the path '%s' exceeds the %zu bytes of a socket's name",
                       s->socket_path, sizeof addr.sun_path - 1);
    strcpy(addr.sun_path, s->socket_path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return pd_fail_errno(why, errno, "cannot make a socket");
    unlink(s->socket_path); /* of a daemon that was killed: we hold the lock of the directory */
    mask = umask(0177);
    rc = bind(s->listen_fd, (struct sockaddr *)&addr, sizeof addr);
    umask(mask);
    if (rc || listen(s->listen_fd, 128))
        return pd_fail_errno(why, errno, "cannot listen on '%s'", s->socket_path);
    return PD_OK;
}

static void roots_free(struct sup_data_root *roots, int count)
{
    for (int i = 0; i < count && roots; i++) {
        free((char *)roots[i].name);
        free((char *)roots[i].path);
    }
    free(roots);
}

static struct sup_data_root *roots_copy(const struct sup_data_root *from, int count)
{
    struct sup_data_root *roots = calloc((size_t)count + 1, sizeof *roots);
    bool whole = roots != NULL;

    for (int i = 0; i < count && whole; i++) {
        roots[i].name = strdup(from[i].name);
        roots[i].path = strdup(from[i].path);
        whole = roots[i].name && roots[i].path;
    }
    if (!whole) {
        roots_free(roots, count);
        return NULL;
    }
    return roots;
}

static struct sup *sup_free(struct sup *s)
{
    gpu_stop(s); /* it posts to us */
    s->expander = expander_stop(s->expander);
    for (struct conn *c = s->conns; c; c = c->next)
        conn_drop(s, c);
    conn_sweep(s);
    model_free_all(s);
    plan_free_all(s);
    while (s->atts) {
        struct att *a = s->atts;

        s->atts = a->next;
        att_free(a);
    }
    if (s->listen_fd >= 0) {
        close(s->listen_fd);
        unlink(s->socket_path);
    }
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    s->reader = store_close(s->reader);
    roots_free(s->roots, s->o.root_count);
    free(s->notes);
    free(s->state_dir);
    free(s->worker_path);
    free(s->train_role);
    free(s->socket_path);
    pthread_mutex_destroy(&s->mutex);
    free(s);
    return NULL;
}

static enum pd_err copy_options(struct sup *s, const struct sup_options *o, struct pd_why *why)
{
    char real[4096];

    s->o = *o;
    if (s->o.grace_us <= 0)
        s->o.grace_us = 30 * INT64_C(1000000);
    if (s->o.backoff_us <= 0)
        s->o.backoff_us = 1000000;
    if (s->o.hang_us <= 0)
        s->o.hang_us = WIRE_HANG_US;
    if (s->o.silence_us <= 0)
        s->o.silence_us = 600 * INT64_C(1000000);
    if (s->o.infer_queue <= 0)
        s->o.infer_queue = 256;
    if (!realpath(o->state_dir, real))
        return pd_fail_errno(why, errno, "cannot find the state directory '%s'", o->state_dir);
    if (strlen(real) > SUP_PATH_MAX - 128)
        return pd_fail(why, PD_ERR_LIMIT, "the state directory's name is too long");
    s->state_dir = strdup(real);
    s->worker_path = strdup(o->worker_path);
    s->train_role = strdup(o->train_role ? o->train_role : "train");
    if (!s->state_dir || asprintf(&s->socket_path, "%s/worker.sock", s->state_dir) < 0)
        s->socket_path = NULL;
    s->roots = roots_copy(o->roots, o->root_count);
    if (!s->state_dir || !s->worker_path || !s->train_role || !s->socket_path || !s->roots)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    if (access(s->worker_path, X_OK))
        return pd_fail_errno(why, errno, "the worker program '%s' cannot be run", s->worker_path);
    return device_list(o->cpu_slots, o->cpu_threads, s->devices, DEVICE_CPU_MAX, &s->device_count, why);
}

static bool mark_live(struct sup *s, const char *mark)
{
    return att_mark_live(s, mark) || model_mark_live(s, mark);
}

static enum pd_err begin(struct sup *s, struct pd_why *why)
{
    enum pd_err err;

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->wake_fd < 0)
        return pd_fail_errno(why, errno, "cannot make the supervisor's poll");
    s->wake_source = (struct source){.kind = SOURCE_WAKE, .self = s};
    s->listen_source = (struct source){.kind = SOURCE_LISTEN, .self = s};
    sup_watch(s, &s->wake_source, s->wake_fd, EPOLLIN);
    err = store_open_reader(store_writer_path(s->writer), &s->reader, why);
    if (err == PD_OK)
        err = gpu_start(s, why);
    if (err == PD_OK)
        err = att_reconcile(s, why);
    if (err != PD_OK)
        return err;
    strays_kill(s, mark_live);
    err = listen_here(s, why);
    if (err == PD_OK)
        err = model_start_all(s, why);
    if (err == PD_OK)
        sup_watch(s, &s->listen_source, s->listen_fd, EPOLLIN);
    return err;
}

static void notified(struct sup *s, struct post *p)
{
    s->schedule = s->commands = true;
    free(p);
}

static void notify(struct sup *s)
{
    struct post *p = calloc(1, sizeof *p);

    if (!p)
        return; /* it looks by itself within a second */
    p->fn = notified;
    sup_post(s, p);
}

static void made_runs(void *ctx)
{
    notify(ctx);
}

enum pd_err sup_start(const struct sup_options *o, struct store_writer *w, struct sup **ret,
                      struct pd_why *why)
{
    struct sup *s = calloc(1, sizeof *s);
    enum pd_err err;
    int rc;

    if (!s)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    s->writer = w;
    s->since_us = store_writer_clock_us(w);
    s->posts_tail = &s->posts;
    s->deferred_tail = &s->deferred;
    s->epoll_fd = s->wake_fd = s->listen_fd = -1;
    s->schedule = s->commands = true;
    s->next_serial = (uint64_t)(pd_clock_wall_us() & 0x3fffffff) + 1; /* not that of a worker left over */
    atomic_store(&s->next_call, 1);
    atomic_store(&s->alive_us, pd_clock_mono_us());
    pthread_mutex_init(&s->mutex, NULL);
    err = copy_options(s, o, why);
    if (err == PD_OK)
        err = begin(s, why);
    if (err == PD_OK)
        err = expander_start(w, made_runs, s, &s->expander, why);
    if (err == PD_OK) {
        rc = pthread_create(&s->thread, NULL, sup_thread, s);
        if (rc)
            err = pd_fail_errno(why, rc, "cannot start the supervisor");
    }
    if (err != PD_OK) {
        if (s->expander)
            expander_halt(s->expander);
        s->o.root_count = s->roots ? s->o.root_count : 0;
        /* Writes of the reconciliation may be under way: they come back to us. */
        for (int i = 0; i < 500 && s->ops; i++) {
            struct timespec pause = {.tv_nsec = 10000000};

            write_deferred(s);
            run_posts(s);
            nanosleep(&pause, NULL);
        }
        sup_free(s);
        return err;
    }
    s->thread_started = true;
    *ret = s;
    return PD_OK;
}

struct sup *sup_stop(struct sup *s)
{
    if (!s)
        return NULL;
    pthread_mutex_lock(&s->mutex);
    s->stopping = true;
    pthread_mutex_unlock(&s->mutex);
    expander_halt(s->expander); /* it posts to us */
    wake(s);
    pthread_join(s->thread, NULL);
    /* A write that the disk still refuses: the writer must give it back before its memory goes. */
    while (s->ops) {
        struct timespec pause = {.tv_nsec = 10000000};

        write_deferred(s);
        run_posts(s);
        nanosleep(&pause, NULL);
        if (store_writer_health(s->writer, NULL) != PD_OK)
            break; /* it holds them until it stops: leak the supervisor rather than crash */
    }
    if (s->ops)
        return NULL;
    run_posts(s);
    return sup_free(s);
}

void sup_notify(struct sup *s)
{
    expander_wake(s->expander);
    notify(s);
}

int64_t sup_alive_us(struct sup *s)
{
    return atomic_load(&s->alive_us);
}

/* ---- what the API shows --------------------------------------------------------------------- */

void sup_device_list(struct sup *s, void (*row)(void *ctx, const struct sup_device *d), void *ctx)
{
    pthread_mutex_lock(&s->mutex);
    slots_look(s);
    for (int i = 0; i < s->device_count; i++) {
        const struct device *d = &s->devices[i];
        bool gpu = i >= s->gpu_first && i < s->gpu_first + s->gpu_count;
        struct sup_device out = {.threads = d->threads,
                                 .memory_bytes = d->memory_bytes,
                                 .run_id = s->held[i].run,
                                 .attempt = s->held[i].attempt,
                                 .models = s->held[i].models,
                                 .facts = gpu ? d : NULL,
                                 .sample = gpu ? &s->samples[i - s->gpu_first] : NULL};

        if (d->gone && d->instance >= 0 && !s->held[i].run)
            continue; /* an instance that was taken apart is no news */
        memcpy(out.name, d->name, sizeof out.name);
        memcpy(out.kind, d->kind, sizeof out.kind);
        memcpy(out.model, d->model, sizeof out.model);
        memcpy(out.id, d->id, sizeof out.id);
        snprintf(out.state, sizeof out.state, "%s",
                 slot_state_name(slot_state(s, i, out.reason, sizeof out.reason)));
        if (s->held[i].drained) {
            memcpy(out.drained_by, s->held[i].drained_by, sizeof out.drained_by);
            memcpy(out.drain_reason, s->held[i].drain_reason, sizeof out.drain_reason);
            out.drained_us = s->held[i].drained_us;
        }
        row(ctx, &out);
    }
    pthread_mutex_unlock(&s->mutex);
}

bool sup_queue_get(struct sup *s, int64_t run_id, struct sup_queue_info *ret)
{
    bool found = false;

    pthread_mutex_lock(&s->mutex);
    for (int i = 0; i < s->note_count && !found; i++)
        if (s->notes[i].run == run_id) {
            *ret = s->notes[i].info;
            found = true;
        }
    pthread_mutex_unlock(&s->mutex);
    return found;
}

struct roots_post {
    struct post post;
    struct sup_data_root *roots;
    int count;
};

static void take_roots(struct sup *s, struct post *post)
{
    struct roots_post *p = (struct roots_post *)post;

    roots_free(s->roots, s->o.root_count);
    s->roots = p->roots;
    s->o.root_count = p->count;
    free(p);
}

enum pd_err sup_set_roots(struct sup *s, const struct sup_data_root *roots, int count, struct pd_why *why)
{
    struct roots_post *p = calloc(1, sizeof *p);

    if (p)
        p->roots = roots_copy(roots, count);
    if (!p || !p->roots) {
        free(p);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the data roots");
    }
    p->post.fn = take_roots;
    p->count = count;
    sup_post(s, &p->post);
    return PD_OK;
}

int64_t sup_memory(struct sup *s, const char *device, int slots)
{
    bool cpu = !strcmp(device, "cpu");
    int64_t bytes, instance;

    pthread_mutex_lock(&s->mutex);
    bytes = slots_memory(s, device);
    instance = cpu || slots > 1 ? 0 : slots_memory(s, "mig");
    pthread_mutex_unlock(&s->mutex);
    bytes = instance > bytes ? instance : bytes;
    return cpu && slots > 1 ? bytes / slots : bytes;
}

enum pd_err sup_fit(struct sup *s, const char *device, int slots, int64_t need_bytes,
                    struct sup_queue_info *ret, char *devices, size_t size, struct pd_why *why)
{
    int chosen[SUP_ATTEMPT_DEVICES], count = 0, ahead;
    const char *kind = device;
    struct slot_count c;
    enum pd_err err = PD_OK;
    size_t len = 0;
    bool full;

    /* the queue's order by priority is seen at the next cycle; here only its length counts */
    devices[0] = '\0';
    pthread_mutex_lock(&s->mutex);
    slots_look(s);
    kind = slots_kind(s, device, slots, need_bytes);
    c = slots_count(s, kind);
    ahead = s->note_count;
    full = !strcmp(kind, "cpu") && slots_memory_held(s, kind) &&
           need_bytes * slots > slots_memory(s, kind) - slots_memory_held(s, kind);
    if (!ahead && !full)
        count = slots_pick(s, kind, slots, need_bytes, chosen);
    if (!c.total)
        err = pd_fail(why, PD_ERR_LIMIT, "this machine has no %s device", device);
    else if (slots > c.total)
        err = pd_fail(why, PD_ERR_LIMIT, "%d %s slots are asked for, this machine has %d", slots, device,
                      c.total);
    else {
        ret->position = ahead + 1;
        if (count)
            snprintf(ret->reason, sizeof ret->reason, "would start at once");
        else if (full && slots <= c.free)
            slots_memory_reason(s, kind, need_bytes * slots, ret->reason, sizeof ret->reason);
        else
            slots_reason(s, kind, slots, ret->reason, sizeof ret->reason);
        for (int i = 0; i < count && len < size; i++)
            len +=
                (size_t)snprintf(devices + len, size - len, "%s%s", i ? "," : "", s->devices[chosen[i]].name);
    }
    pthread_mutex_unlock(&s->mutex);
    return err;
}

bool sup_progress_get(struct sup *s, int64_t run_id, struct sup_progress *ret)
{
    bool found = false;

    pthread_mutex_lock(&s->mutex);
    for (struct att *a = s->atts; a && !found; a = a->next)
        if (a->run == run_id && a->updated_us) {
            *ret = (struct sup_progress){.step = a->step,
                                         .total = a->total,
                                         .updated_us = a->updated_us,
                                         .checkpointing = a->checkpointing};
            found = true;
        }
    pthread_mutex_unlock(&s->mutex);
    return found;
}

void sup_log_path(struct sup *s, int64_t run_id, int attempt, char *out, size_t size)
{
    char dir[SUP_PATH_MAX];

    if (attempt)
        att_dir(s, run_id, attempt, dir, sizeof dir);
    else
        snprintf(dir, sizeof dir, "%s/runs/%lld", s->state_dir, (long long)run_id);
    snprintf(out, size, "%s/log", dir);
}

void sup_stats(struct sup *s, struct sup_stats *ret)
{
    pthread_mutex_lock(&s->mutex);
    *ret = s->stats;
    pthread_mutex_unlock(&s->mutex);
}
