/* The life of a link: start, assignment, bye, stop. */
#include "daemon/worker/process/link_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "kernels/base/clock.h"

void link_wake(struct link *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);

    (void)n; /* a full counter wakes as well */
}

static struct link *link_free(struct link *l)
{
    while (l->count) {
        struct link_entry *e = link_entry_at(l, 0);

        if (!e->spooled)
            free(e->bytes);
        l->head = (l->head + 1) % l->capacity;
        l->count--;
    }
    while (l->requests) {
        struct link_request *r = l->requests;

        l->requests = r->next;
        free(r->payload);
        free(r->json);
        free(r);
    }
    for (size_t i = 0; i < l->key_count; i++)
        free(l->keys[i]);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->spool_fd >= 0) {
        close(l->spool_fd);
        unlink(l->spool_path);
    }
    free(l->entries);
    free(l->assign_store);
    free(l->bye_text);
    pd_buf_done(&l->tuned_ask);
    pd_buf_done(&l->tuned_in);
    pd_buf_done(&l->tuned_out);
    pd_buf_done(&l->ready);
    free(l->socket_path);
    free(l->spool_path);
    free(l->log_path);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->changed);
    free(l);
    return NULL;
}

static void init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

enum pd_err link_start(const struct link_options *o, struct link **ret, struct pd_why *why)
{
    struct link *l = calloc(1, sizeof *l);
    int rc;

    if (!l)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the link");
    l->o = *o;
    l->next_seq = 1;
    l->step_sent = l->log_sent = -1;
    l->total = -1;
    l->requests_tail = &l->requests;
    l->spool_fd = -1;
    pthread_mutex_init(&l->mutex, NULL);
    init_cond(&l->changed);
    pd_buf_init(&l->tuned_ask, 0);
    pd_buf_init(&l->tuned_in, 0);
    pd_buf_init(&l->tuned_out, 0);
    pd_buf_init(&l->ready, 0);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->socket_path = strdup(o->socket_path);
    l->spool_path = o->spool_path ? strdup(o->spool_path) : NULL;
    l->log_path = o->log_path ? strdup(o->log_path) : NULL;
    if (l->wake_fd < 0 || !l->socket_path || (o->spool_path && !l->spool_path) ||
        (o->log_path && !l->log_path)) {
        link_free(l);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the link");
    }
    if (strlen(o->socket_path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        link_free(l);
        return pd_fail(why, PD_ERR_LIMIT, "the socket's path is too long: '%s'", o->socket_path);
    }
    if (l->spool_path) {
        l->spool_fd = open(l->spool_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (l->spool_fd < 0) {
            enum pd_err err = pd_fail_errno(why, errno, "cannot make the spool '%s'", l->spool_path);

            link_free(l);
            return err;
        }
    }
    rc = pthread_create(&l->thread, NULL, link_thread, l);
    if (rc) {
        link_free(l);
        return pd_fail_errno(why, rc, "cannot start the link's thread");
    }
    l->started = true;
    *ret = l;
    return PD_OK;
}

struct link *link_stop(struct link *l)
{
    if (!l)
        return NULL;
    pthread_mutex_lock(&l->mutex);
    l->stop_thread = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
    pthread_join(l->thread, NULL);
    return link_free(l);
}

void link_deadline_after(struct timespec *ts, int64_t us)
{
    clock_gettime(CLOCK_MONOTONIC, ts);
    ts->tv_sec += us / 1000000;
    ts->tv_nsec += us % 1000000 * 1000;
    if (ts->tv_nsec >= 1000000000L) {
        ts->tv_sec++;
        ts->tv_nsec -= 1000000000L;
    }
}

enum pd_err link_assigned(struct link *l, int timeout_ms, const struct link_assign **ret, struct pd_why *why)
{
    struct timespec until;
    enum pd_err err = PD_OK;
    int rc = 0;

    link_deadline_after(&until, (int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&l->mutex);
    while (!l->assigned && !l->refused && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    if (l->assigned)
        *ret = &l->assign;
    else if (l->refused)
        err = pd_fail(why, PD_ERR_CLOSED, "polyd refused this worker");
    else
        err = pd_fail(why, PD_ERR_TIMEOUT, "polyd sent no assignment within %d ms", timeout_ms);
    pthread_mutex_unlock(&l->mutex);
    return err;
}

void link_rendezvous_send(struct link *l, const void *bytes, size_t len)
{
    pthread_mutex_lock(&l->mutex);
    l->rendezvous_len = len < sizeof l->rendezvous ? len : sizeof l->rendezvous;
    memcpy(l->rendezvous, bytes, l->rendezvous_len);
    l->rendezvous_ours = true;
    l->rendezvous_sent = false;
    pthread_mutex_unlock(&l->mutex);
    link_wake(l);
}

enum pd_err link_rendezvous_wait(struct link *l, int timeout_ms, void *out, size_t *ret_len,
                                 struct pd_why *why)
{
    int64_t until_us = pd_clock_mono_us() + (int64_t)timeout_ms * 1000;
    enum pd_err err = PD_ERR_BUSY;

    pthread_mutex_lock(&l->mutex);
    while (err == PD_ERR_BUSY) {
        struct timespec soon;

        if (l->rendezvous_len) {
            memcpy(out, l->rendezvous, l->rendezvous_len);
            *ret_len = l->rendezvous_len;
            err = PD_OK;
        } else if (link_stop_asked(l) != LINK_GO_ON) {
            err = pd_fail(why, PD_ERR_CANCELLED, "stopped before rank 0 connected");
        } else if (pd_clock_mono_us() > until_us) {
            err = pd_fail(why, PD_ERR_TIMEOUT, "rank 0 did not connect within %d ms", timeout_ms);
        } else { /* a stop requested by a signal does not wake a thread */
            link_deadline_after(&soon, 200000);
            pthread_cond_timedwait(&l->changed, &l->mutex, &soon);
        }
    }
    pthread_mutex_unlock(&l->mutex);
    return err;
}

enum pd_err link_bye(struct link *l, const char *cause, int64_t step, const char *text, int64_t timeout_us,
                     struct pd_why *why)
{
    struct timespec until;
    enum pd_err err = PD_OK;
    int rc = 0;

    link_deadline_after(&until, timeout_us ? timeout_us : LINK_ALONE_US);
    pthread_mutex_lock(&l->mutex);
    snprintf(l->bye_cause, sizeof l->bye_cause, "%s", cause);
    l->bye_step = step;
    free(l->bye_text);
    l->bye_text = text ? strdup(text) : NULL;
    l->bye_wanted = true;
    link_wake(l);
    while (!l->bye_answered && !l->refused && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    if (l->bye_answered)
        err = PD_OK;
    else if (l->refused)
        err = pd_fail(why, PD_ERR_CLOSED, "polyd refused this worker");
    else
        err = pd_fail(why, PD_ERR_TIMEOUT, "polyd did not answer");
    pthread_mutex_unlock(&l->mutex);
    return err;
}
