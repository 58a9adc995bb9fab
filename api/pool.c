/* The threads that run handlers which read the store, take apart a large body or write a large answer, so
 * that the loops only move bytes and answer at once what needs neither.
 *
 * Two queues: short requests and long ones (route.h: lane). Half of the threads take long ones, and short
 * ones while there are none; the others take short ones alone. So a page of jobs never waits for charts of a
 * million points, nor these for an endless stream of pages.
 *
 * While a request is here its connection is suspended, and its handler may do what it may do on a loop,
 * waiting included: a completion that comes before the handler has returned is kept until then (`held`).
 * `lock` guards the queues; it may be taken under the api's lock, never the other way round. */
#include <stdlib.h>

#include "api/internal.h"
#include "kernels/base/clock.h"

struct pool_thread {
    struct api_pool *pool;
    pthread_t thread;
    bool takes_long;
};

struct queue {
    struct api_req *first, **last;
};

struct api_pool {
    struct api *api;
    pthread_mutex_t lock;
    pthread_cond_t more, more_short; /* for threads that take both, and for the others */
    struct queue queue[2];           /* short, long */
    bool ending;
    int count;
    struct pool_thread thread[];
};

/* When the store must have answered the handler of this thread; 0 = whenever. */
static _Thread_local int64_t read_until_us;

int64_t api_pool_read_until_us(void)
{
    return read_until_us;
}

static struct api_req *take(struct queue *q)
{
    struct api_req *r = q->first;

    if (r) {
        q->first = r->pool_next;
        if (!q->first)
            q->last = &q->first;
        r->pool_next = NULL;
    }
    return r;
}

/* Runs the handler, or answers for it. */
static void work(struct api *api, struct api_req *r)
{
    int64_t now_us = pd_clock_mono_us();

    pthread_mutex_lock(&api->lock);
    api_unwatch_fd(api, r->conn->fd);
    pthread_mutex_unlock(&api->lock);
    if (r->pool_left) {
        atomic_fetch_add(&api->counters.departed, 1);
        api_fail(r, PD_ERR_CANCELLED, "the client has left");
    } else if (api_stopping(api)) {
        api_fail(r, PD_ERR_CLOSED, "the server is stopping");
    } else if (now_us - r->pool_us > api->set.read_timeout_us && (!r->upload || r->handled)) {
        api_fail(r, PD_ERR_BUSY, "more requests wait than can be answered in time");
    } else {
        read_until_us = now_us + api->set.read_timeout_us;
        r->pool_run(r);
        read_until_us = 0;
    }
    pthread_mutex_lock(&api->lock);
    r->held = false;
    if (!r->wait || r->due) /* answered, or it waits for something that has come already */
        api_resume(r->conn, r->connection);
    pthread_mutex_unlock(&api->lock);
}

static void *pool_main(void *arg)
{
    struct pool_thread *t = arg;
    struct api_pool *p = t->pool;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct api_req *r = t->takes_long ? take(&p->queue[1]) : NULL;

        if (!r)
            r = take(&p->queue[0]);
        if (!r && p->ending)
            break;
        if (!r) {
            pthread_cond_wait(t->takes_long ? &p->more : &p->more_short, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        work(p->api, r);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

bool api_pool_give(struct api_req *r, bool is_long, void (*run)(struct api_req *))
{
    struct api *api = r->api;
    struct api_pool *p = api->pool;
    struct queue *q = &p->queue[is_long];

    pthread_mutex_lock(&api->lock);
    if (api_stopping(api)) {
        pthread_mutex_unlock(&api->lock);
        api_fail(r, PD_ERR_CLOSED, "the server is stopping");
        return false;
    }
    r->given = r->held = true;
    r->pool_run = run;
    r->pool_left = false;
    r->due = false;
    r->pool_us = pd_clock_mono_us();
    r->pool_id = ++api->next_id;
    MHD_suspend_connection(r->connection);
    api_watch_fd(api, r->conn->fd, r->pool_id);
    /* Under both locks: api_pool_stop must find what was given before the server began to stop. */
    pthread_mutex_lock(&p->lock);
    *q->last = r;
    q->last = &r->pool_next;
    pthread_cond_signal(&p->more);
    if (!is_long)
        pthread_cond_signal(&p->more_short);
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&api->lock);
    return true;
}

void api_pool_gone(struct api *api, uint64_t id)
{
    struct api_pool *p = api->pool;

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < 2; i++)
        for (struct api_req *r = p->queue[i].first; r; r = r->pool_next)
            if (r->pool_id == id)
                r->pool_left = true;
    pthread_mutex_unlock(&p->lock);
}

int api_pool_waiting(struct api *api)
{
    struct api_pool *p = api->pool;
    int n = 0;

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < 2; i++)
        for (const struct api_req *r = p->queue[i].first; r; r = r->pool_next)
            n++;
    pthread_mutex_unlock(&p->lock);
    return n;
}

enum pd_err api_pool_start(struct api *api, int threads, struct pd_why *why)
{
    struct api_pool *p = calloc(1, sizeof *p + (size_t)threads * sizeof p->thread[0]);

    if (!p)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
    p->api = api;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    pthread_cond_init(&p->more_short, NULL);
    for (int i = 0; i < 2; i++)
        p->queue[i].last = &p->queue[i].first;
    api->pool = p;
    for (int i = 0; i < threads; i++) {
        p->thread[i] = (struct pool_thread){.pool = p, .takes_long = i % 2 == 0};
        if (pthread_create(&p->thread[i].thread, NULL, pool_main, &p->thread[i]) != 0)
            return pd_fail(why, PD_ERR_NOMEM, "cannot start a thread that reads the store");
        p->count++;
    }
    return PD_OK;
}

void api_pool_stop(struct api *api)
{
    struct api_pool *p = api->pool;

    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->ending = true;
    pthread_cond_broadcast(&p->more);
    pthread_cond_broadcast(&p->more_short);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->count; i++)
        pthread_join(p->thread[i].thread, NULL);
    p->count = 0;
}

struct api_pool *api_pool_free(struct api_pool *p)
{
    if (p) {
        pthread_cond_destroy(&p->more);
        pthread_cond_destroy(&p->more_short);
        pthread_mutex_destroy(&p->lock);
        free(p);
    }
    return NULL;
}
