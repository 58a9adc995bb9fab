/* Streams: answers of unknown length, read while there is something and asleep in between. */
#include <stdlib.h>
#include <string.h>

#include "api/internal.h"
#include "kernels/base/clock.h"

#define COMMENT_US (15 * 1000000LL) /* silence before a comment line */

void api_stream_wake_locked(struct api_stream *s)
{
    s->woken = true;
    if (s->asleep) {
        s->asleep = false;
        if (s->watched)
            api_unwatch_fd(s->api, s->conn->fd);
        s->watched = false;
        api_resume(s->conn, s->connection);
    }
}

void api_stream_wake(struct api_stream *s)
{
    struct api *api = s->api;

    pthread_mutex_lock(&api->lock);
    api_stream_wake_locked(s);
    pthread_mutex_unlock(&api->lock);
}

void api_streams_wake(struct api *api)
{
    pthread_mutex_lock(&api->lock);
    for (struct api_stream *s = api->streams; s; s = s->next)
        if (s->ops->everything)
            api_stream_wake_locked(s);
    pthread_mutex_unlock(&api->lock);
}

void api_streams_tick_locked(struct api *api, int64_t now_us)
{
    for (struct api_stream *s = api->streams; s; s = s->next) {
        if (s->asleep && s->ops->comments && now_us - s->last_us >= COMMENT_US) {
            s->comment_due = true;
            api_stream_wake_locked(s);
        } else if (s->ops->everything) {
            api_stream_wake_locked(s);
        }
    }
}

ssize_t api_stream_read(void *cls, uint64_t pos, char *out, size_t size)
{
    static const char comment[] = ": keep-alive\n\n";
    struct api_stream *s = cls;
    struct api *api = s->api;

    (void)pos;
    for (;;) {
        bool comment_due;
        ssize_t n;

        pthread_mutex_lock(&api->lock);
        s->woken = false;
        if (s->left) { /* nothing to write would mean never to find the socket closed */
            pthread_mutex_unlock(&api->lock);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        comment_due = s->comment_due && size >= sizeof comment - 1;
        if (comment_due)
            s->comment_due = false;
        pthread_mutex_unlock(&api->lock);
        n = s->ops->read(s->state, out, size);
        if (n == 0 && comment_due) {
            memcpy(out, comment, sizeof comment - 1);
            n = (ssize_t)sizeof comment - 1;
        }
        if (n == API_STREAM_END)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (n < 0)
            return MHD_CONTENT_READER_END_WITH_ERROR;
        pthread_mutex_lock(&api->lock);
        if (n > 0) {
            s->last_us = pd_clock_mono_us();
            pthread_mutex_unlock(&api->lock);
            return n;
        }
        if (api_stopping(api)) {
            pthread_mutex_unlock(&api->lock);
            /* Events can be asked for again from the last id; another stream must be seen to be cut. */
            return s->ops->everything ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (s->woken) {
            pthread_mutex_unlock(&api->lock);
            continue;
        }
        s->asleep = true;
        MHD_suspend_connection(s->connection);
        if (s->ops->gone) {
            s->watched = true;
            api_watch_fd(api, s->conn->fd, s->id);
        }
        pthread_mutex_unlock(&api->lock);
        return 0;
    }
}

void api_stream_done(void *cls)
{
    struct api_stream *s = cls;
    struct api *api = s->api;

    pthread_mutex_lock(&api->lock);
    if (s->prev)
        s->prev->next = s->next;
    else
        api->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    pthread_mutex_unlock(&api->lock);
    if (s->ops->comments)
        atomic_fetch_sub(&api->counters.sse_clients, 1);
    s->ops->done(s->state);
    free(s);
}

void api_reply_stream(struct api_req *r, int status, const char *type, const struct api_stream_ops *ops,
                      void *state, struct api_stream **ret_stream)
{
    struct api *api = r->api;
    struct api_stream *s = calloc(1, sizeof *s);

    if (!s) {
        ops->done(state);
        api_fail(r, PD_ERR_NOMEM, "no memory for a stream");
        return;
    }
    s->api = api;
    s->connection = r->connection;
    s->conn = r->conn;
    s->ops = ops;
    s->state = state;
    s->last_us = pd_clock_mono_us();
    if (ret_stream)
        *ret_stream = s;
    pthread_mutex_lock(&api->lock);
    s->id = ++api->next_id;
    s->next = api->streams;
    if (s->next)
        s->next->prev = s;
    api->streams = s;
    pthread_mutex_unlock(&api->lock);
    if (ops->comments)
        atomic_fetch_add(&api->counters.sse_clients, 1);
    api_answer_reset(r);
    r->status = status;
    r->type = type;
    r->stream = s;
}
