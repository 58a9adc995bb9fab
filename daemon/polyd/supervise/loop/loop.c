/* The turns of the supervisor's thread: descriptors, posts, ticks, commands, schedule, end of the turn. */
#include "daemon/polyd/supervise/loop/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/store/store.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define TICK_MS 100     /* deadlines are kept this exactly */
#define LOOK_US 1000000 /* so often commands and queue are read from the store unasked */

struct loop {
    struct store_writer *writer;
    struct store *reader;
    int epoll_fd, wake_fd;
    struct loop_source wake_source;
    struct loop_member *members, **members_tail;
    pthread_t thread;
    bool started;
    bool commands, schedule;                     /* asked for in this turn */
    struct loop_post *deferred, **deferred_tail; /* writes that wait for space in the worker queue */
    _Atomic int ops;                             /* on the writer's thread, or deferred */
    _Atomic bool stopping;
    int64_t patience_us; /* of the stop; written before `stopping` */
    _Atomic int64_t alive_us;

    pthread_mutex_t lock; /* guards the rest */
    struct loop_post *posts, **posts_tail;
    bool notified;
};

/* ---- posts ----------------------------------------------------------------------------------- */

static void wake(struct loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

/* Edge-triggered, so the counter need not be read. */
static void woken(void *self, unsigned events)
{
    (void)self;
    (void)events;
}

void loop_post(struct loop *l, struct loop_post *p)
{
    p->next = NULL;
    pthread_mutex_lock(&l->lock);
    if (!l->posts)
        wake(l); /* under the lock: once the post is taken, the loop may be freed */
    *l->posts_tail = p;
    l->posts_tail = &p->next;
    pthread_mutex_unlock(&l->lock);
}

void loop_notify(struct loop *l)
{
    pthread_mutex_lock(&l->lock);
    if (!l->notified)
        wake(l);
    l->notified = true;
    pthread_mutex_unlock(&l->lock);
}

static void run_posts(struct loop *l)
{
    struct loop_post *p, *next;

    pthread_mutex_lock(&l->lock);
    p = l->posts;
    l->posts = NULL;
    l->posts_tail = &l->posts;
    if (l->notified)
        l->commands = l->schedule = true;
    l->notified = false;
    pthread_mutex_unlock(&l->lock);
    for (; p; p = next) {
        next = p->next;
        p->fn(p);
    }
}

/* ---- writes ---------------------------------------------------------------------------------- */

static void op_back(struct loop_post *p)
{
    struct loop_op *op = (struct loop_op *)p;

    op->loop->ops--;
    if (op->done)
        op->done(op);
    else if (op->err != PD_OK)
        pd_log(PD_LOG_ERROR, "supervise", "write=failed error=%s why=\"%s\"", pd_err_name(op->err),
               op->why.text);
    if (op->release)
        op->release(op);
    free(op);
}

static enum pd_err op_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct loop_op *op = ctx;

    return op->apply(tx, op, why);
}

static void op_done(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct loop_op *op = ctx;

    op->err = err;
    op->why = *why;
    op->post.fn = op_back;
    loop_post(op->loop, &op->post);
}

static enum pd_err submit(struct loop *l, struct loop_op *op)
{
    struct store_work work = {
        .lane = op->lane, .rows = op->rows, .keep = true, .apply = op_apply, .done = op_done, .ctx = op};

    return store_writer_submit(l->writer, &work, &op->why);
}

/* The store stops: the rows are reconciled at the next start. */
static void refused(struct loop *l, struct loop_op *op, enum pd_err err)
{
    op->err = err;
    op->post.fn = op_back;
    loop_post(l, &op->post);
}

void loop_write(struct loop *l, struct loop_op *op)
{
    /* The queue is FIFO: nothing overtakes a write that waits for space. */
    enum pd_err err = PD_ERR_BUSY;

    op->loop = l;
    op->lane = STORE_LANE_WORKER;
    l->ops++;
    if (!l->deferred)
        err = submit(l, op);
    if (err == PD_ERR_BUSY) {
        op->post.next = NULL;
        *l->deferred_tail = &op->post;
        l->deferred_tail = &op->post.next;
    } else if (err != PD_OK)
        refused(l, op, err);
}

bool loop_write_metrics(struct loop *l, struct loop_op *op)
{
    enum pd_err err;

    op->loop = l;
    op->lane = STORE_LANE_METRICS;
    l->ops++;
    err = submit(l, op);
    if (err == PD_ERR_BUSY) {
        l->ops--;
        return false;
    }
    if (err != PD_OK)
        refused(l, op, err);
    return true;
}

/* The lane was full: again, in order. */
static void write_deferred(struct loop *l)
{
    while (l->deferred) {
        struct loop_op *op = (struct loop_op *)l->deferred;
        struct loop_post *next =
            l->deferred->next; /* the writer may be done with the op before we look again */
        enum pd_err err = submit(l, op);

        if (err == PD_ERR_BUSY)
            return;
        l->deferred = next;
        if (!l->deferred)
            l->deferred_tail = &l->deferred;
        if (err != PD_OK)
            refused(l, op, err);
    }
}

/* ---- turns ----------------------------------------------------------------------------------- */

void loop_watch(struct loop *l, struct loop_source *source, int fd, unsigned events)
{
    struct epoll_event e = {.events = events, .data.ptr = source};

    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, fd, &e) && errno == ENOENT)
        epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e);
}

void loop_commands(struct loop *l)
{
    l->commands = true;
}

void loop_schedule(struct loop *l)
{
    l->schedule = true;
}

static bool finished(struct loop *l, int64_t stop_us)
{
    bool idle = l->ops == 0;

    for (struct loop_member *m = l->members; m && idle; m = m->next)
        idle = !m->idle || m->idle(m->self);
    return idle || pd_clock_mono_us() > stop_us;
}

static void *run(void *arg)
{
    struct loop *l = arg;
    struct epoll_event events[64];
    int64_t ticked_us = 0, looked_us = 0, stop_us = 0; /* 0 = it does not stop */

    while (!stop_us || !finished(l, stop_us)) {
        int n = epoll_wait(l->epoll_fd, events, 64, TICK_MS);
        int64_t now_us = pd_clock_mono_us();

        l->alive_us = now_us;
        for (int i = 0; i < n; i++) {
            struct loop_source *source = events[i].data.ptr;

            source->ready(source->self, events[i].events);
        }
        run_posts(l);
        if (l->stopping && !stop_us) {
            stop_us = now_us + l->patience_us;
            for (struct loop_member *m = l->members; m; m = m->next)
                if (m->stop)
                    m->stop(m->self);
        }
        if (now_us - ticked_us >= TICK_MS * 1000) {
            write_deferred(l);
            for (struct loop_member *m = l->members; m; m = m->next)
                if (m->tick)
                    m->tick(m->self, now_us);
            ticked_us = now_us;
        }
        if (now_us - looked_us >= LOOK_US)
            l->commands = l->schedule = true;
        if (l->commands) {
            l->commands = false;
            looked_us = now_us;
            for (struct loop_member *m = l->members; m; m = m->next)
                if (m->commands)
                    m->commands(m->self);
        }
        if (l->schedule && !stop_us) {
            l->schedule = false;
            for (struct loop_member *m = l->members; m; m = m->next)
                if (m->schedule)
                    m->schedule(m->self);
        }
        for (struct loop_member *m = l->members; m; m = m->next)
            if (m->turn_end)
                m->turn_end(m->self);
    }
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

enum pd_err loop_new(struct store_writer *writer, struct loop **ret, struct pd_why *why)
{
    struct loop *l = calloc(1, sizeof *l);
    enum pd_err err;

    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the supervisor");
    l->writer = writer;
    l->members_tail = &l->members;
    l->posts_tail = &l->posts;
    l->deferred_tail = &l->deferred;
    l->alive_us = pd_clock_mono_us();
    pthread_mutex_init(&l->lock, NULL);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->epoll_fd < 0 || l->wake_fd < 0)
        err = pd_fail_errno(why, errno, "cannot make the supervisor's poll");
    else
        err = store_open_reader(store_writer_path(writer), &l->reader, why);
    if (err != PD_OK) {
        loop_free(l);
        return err;
    }
    l->wake_source = (struct loop_source){.ready = woken, .self = l};
    loop_watch(l, &l->wake_source, l->wake_fd, EPOLLIN | EPOLLET);
    *ret = l;
    return PD_OK;
}

void loop_join(struct loop *l, struct loop_member *m)
{
    m->next = NULL;
    *l->members_tail = m;
    l->members_tail = &m->next;
}

enum pd_err loop_start(struct loop *l, struct pd_why *why)
{
    int rc = pthread_create(&l->thread, NULL, run, l);

    if (rc)
        return pd_fail_errno(why, rc, "cannot start the supervisor");
    l->started = true;
    return PD_OK;
}

bool loop_stop(struct loop *l, int64_t patience_us)
{
    l->patience_us = patience_us;
    l->stopping = true;
    if (l->started) {
        wake(l);
        pthread_join(l->thread, NULL);
    }
    l->started = false;
    /* The writer must give a write back before its memory goes, even one that the disk refuses still. */
    while (l->ops) {
        struct timespec pause = {.tv_nsec = 10000000};

        write_deferred(l);
        run_posts(l);
        nanosleep(&pause, NULL);
        if (store_writer_health(l->writer, NULL) != PD_OK)
            break; /* it keeps them until it stops */
    }
    run_posts(l);
    return l->ops == 0;
}

struct loop *loop_free(struct loop *l)
{
    if (!l)
        return NULL;
    l->reader = store_close(l->reader);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

bool loop_stopping(const struct loop *l)
{
    return l->stopping;
}

int64_t loop_alive_us(const struct loop *l)
{
    return l->alive_us;
}

struct store_writer *loop_writer(const struct loop *l)
{
    return l->writer;
}

struct store *loop_reader(const struct loop *l)
{
    return l->reader;
}
