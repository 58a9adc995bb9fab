/* Waiting: a request whose connection is suspended until another thread completes it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "api/internal.h"
#include "kernels/base/clock.h"

void api_wait_unref(struct api_wait *w)
{
    if (atomic_fetch_sub(&w->refs, 1) == 1) {
        if (w->done)
            w->done(w->data);
        free(w);
    }
}

void api_watch_fd(struct api *api, int fd, uint64_t id)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = id};

    /* The descriptor may still be registered from an earlier request of this connection. */
    if (epoll_ctl(api->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EEXIST)
        epoll_ctl(api->epoll_fd, EPOLL_CTL_MOD, fd, &ev);
}

void api_unwatch_fd(struct api *api, int fd)
{
    epoll_ctl(api->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static void wait_unlink(struct api *api, struct api_wait *w)
{
    if (w->prev)
        w->prev->next = w->next;
    else
        api->waits = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = w->next = NULL;
    if (w->gone)
        api_unwatch_fd(api, w->r->conn->fd);
    w->r = NULL;
    pthread_cond_signal(&api->quiet);
}

struct api_wait *api_wait_begin(struct api_req *r, size_t size, void (*done)(void *data),
                                void (*next)(struct api_req *))
{
    struct api *api = r->api;
    struct api_wait *w = calloc(1, sizeof *w + size);

    if (!w) {
        api_fail(r, PD_ERR_NOMEM, "no memory for the request");
        return NULL;
    }
    pthread_mutex_lock(&api->lock);
    if (api_stopping(api)) {
        pthread_mutex_unlock(&api->lock);
        free(w);
        api_fail(r, PD_ERR_CLOSED, "the server is stopping");
        return NULL;
    }
    w->api = api;
    w->r = r;
    atomic_init(&w->refs, 2); /* the request's and the completer's */
    w->id = ++api->next_id;
    w->done = done;
    w->next = api->waits;
    if (w->next)
        w->next->prev = w;
    api->waits = w;
    r->wait = w;
    r->next = next;
    if (!r->held)
        MHD_suspend_connection(r->connection);
    pthread_mutex_unlock(&api->lock);
    return w;
}

void *api_wait_data(struct api_wait *w)
{
    return w->data;
}

void *api_waited(struct api_req *r)
{
    return r->waited->data;
}

void api_wait_end(struct api_wait *w)
{
    struct api *api = w->api;

    pthread_mutex_lock(&api->lock);
    if (w->r) {
        struct api_req *r = w->r;

        wait_unlink(api, w);
        if (r->held)
            r->due = true; /* pool.c resumes it once the handler has returned */
        else
            api_resume(r->conn, r->connection);
    }
    pthread_mutex_unlock(&api->lock);
    api_wait_unref(w);
}

void api_wait_watch(struct api_wait *w, void (*gone)(void *data))
{
    struct api *api = w->api;

    pthread_mutex_lock(&api->lock);
    if (w->r) {
        w->gone = gone;
        api_watch_fd(api, w->r->conn->fd, w->id);
    }
    pthread_mutex_unlock(&api->lock);
}

void api_wait_drop(struct api_req *r)
{
    struct api_wait *w = r->wait;

    r->wait = NULL;
    pthread_mutex_lock(&r->api->lock);
    if (w->r)
        wait_unlink(r->api, w);
    pthread_mutex_unlock(&r->api->lock);
    api_wait_unref(w);
}

/* Waits a limited time for the pending waits, then abandons them. */
void api_waits_end(struct api *api)
{
    int64_t until = pd_clock_mono_us() + api->set.wait_timeout_us;
    struct timespec at = {.tv_sec = until / 1000000, .tv_nsec = until % 1000000 * 1000};

    pthread_mutex_lock(&api->lock);
    while (api->waits && pthread_cond_timedwait(&api->quiet, &api->lock, &at) == 0)
        ;
    while (api->waits) {
        struct api_req *r = api->waits->r;

        r->gave_up = true;
        wait_unlink(api, api->waits);
        api_resume(r->conn, r->connection);
    }
    pthread_mutex_unlock(&api->lock);
}

/* Calls every wait's `gone` once, without the lock: it may call modules that complete waits under locks of
 * their own. */
void api_waits_notify_gone(struct api *api)
{
    for (;;) {
        struct api_wait *found = NULL;

        pthread_mutex_lock(&api->lock);
        for (struct api_wait *w = api->waits; w && !found; w = w->next)
            if (w->gone && !w->gone_called)
                found = w;
        if (found) {
            found->gone_called = true;
            atomic_fetch_add(&found->refs, 1);
        }
        pthread_mutex_unlock(&api->lock);
        if (!found)
            return;
        found->gone(found->data);
        api_wait_unref(found);
    }
}
