/* The watcher: sees clients that leave while their connection is suspended, ends slow requests, asks for
 * keep-alive comments. */
#include <sys/epoll.h>

#include "api/internal.h"
#include "kernels/base/clock.h"

#define TICK_MS 500

static void client_gone(struct api *api, uint64_t id)
{
    struct api_wait *wait = NULL;

    pthread_mutex_lock(&api->lock);
    for (struct api_wait *w = api->waits; w; w = w->next) {
        if (w->id == id && w->gone && !w->gone_called) {
            wait = w;
            w->gone_called = true;
            atomic_fetch_add(&w->refs, 1);
            break;
        }
    }
    for (struct api_stream *s = api->streams; !wait && s; s = s->next) {
        if (s->id == id && s->asleep) {
            if (s->ops->gone)
                s->ops->gone(s->state);
            s->left = true;
            api_stream_wake_locked(s);
            break;
        }
    }
    pthread_mutex_unlock(&api->lock);
    if (wait) {
        wait->gone(wait->data);
        api_wait_unref(wait);
    } else {
        api_pool_gone(api, id);
    }
}

static void watcher_tick(struct api *api)
{
    int64_t now = pd_clock_mono_us();

    pthread_mutex_lock(&api->lock);
    api_streams_tick_locked(api, now);
    api_conns_tick_locked(api, now);
    pthread_mutex_unlock(&api->lock);
}

void *api_watcher_main(void *arg)
{
    struct api *api = arg;
    int64_t last = 0;

    while (!api_stopping(api)) {
        struct epoll_event events[64];
        int n = epoll_wait(api->epoll_fd, events, 64, TICK_MS);

        for (int i = 0; i < n; i++) {
            if (events[i].data.u64)
                client_gone(api, events[i].data.u64);
        }
        if (pd_clock_mono_us() - last > TICK_MS * 900) {
            watcher_tick(api);
            last = pd_clock_mono_us();
        }
    }
    return NULL;
}
