/* The server's life: listening, the threads, the end. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/internal.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define ANSWER_GRACE_MS 1000 /* api_stop: for the last answers to leave */

static enum pd_err listen_on(const char *bind_text, uint16_t port, int *ret_fd, uint16_t *ret_port,
                             struct pd_why *why)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[8];
    int fd = -1, one = 1;
    enum pd_err err = PD_OK;

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(bind_text, service, &hints, &found) != 0)
        return pd_fail(why, PD_ERR_INVALID, "'%s' is not an IPv4 or IPv6 address", bind_text);
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err = pd_fail_errno(why, errno, "cannot make a socket");
        goto out;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0) {
        int e = errno;

        pd_fail_errno(why, e, "cannot listen on %s port %u", bind_text, port);
        err = PD_ERR_IO;
        goto out;
    }
    if (getsockname(fd, (struct sockaddr *)&address, &len) < 0) {
        err = pd_fail_errno(why, errno, "cannot tell the port");
        goto out;
    }
    *ret_port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                    : ((struct sockaddr_in *)&address)->sin_port);
    *ret_fd = fd;
    fd = -1; /* moved */
out:
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return err;
}

const struct config *api_config(struct api *api)
{
    return atomic_load(&api->config);
}

void api_reconfigure(struct api *api, const struct config *config)
{
    atomic_store(&api->config, config);
}

enum pd_err api_start(const struct api_deps *deps, struct api **ret_api, struct pd_why *why)
{
    struct api *api = calloc(1, sizeof *api);
    struct epoll_event wake = {.events = EPOLLIN};
    pthread_condattr_t attr;
    int fd = -1;
    enum pd_err err;

    if (!api)
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
    api->deps = *deps;
    atomic_init(&api->config, deps->config);
    api->epoll_fd = api->wake_fd = -1;
    pthread_mutex_init(&api->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&api->quiet, &attr);
    pthread_condattr_destroy(&attr);
    err = api_settings_read(deps->config, &api->set, &api->settings_text, why);
    if (err == PD_OK)
        err = api_core_new(api, &api->core, why);
    if (err != PD_OK)
        goto out;
    api->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    api->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (api->epoll_fd < 0 || api->wake_fd < 0 ||
        epoll_ctl(api->epoll_fd, EPOLL_CTL_ADD, api->wake_fd, &wake) < 0) {
        err = pd_fail_errno(why, errno, "cannot make the watcher's descriptors");
        goto out;
    }
    err = listen_on(api->set.bind, api->set.port, &fd, &api->port, why);
    if (err != PD_OK)
        goto out;
    err = api_pool_start(api, api->set.readers, why);
    if (err != PD_OK)
        goto out;
    if (pthread_create(&api->watcher, NULL, api_watcher_main, api) != 0) {
        err = pd_fail(why, PD_ERR_NOMEM, "cannot start the watcher's thread");
        goto out;
    }
    api->watching = true;
    err = api_loops_start(api, fd, why);
    fd = -1; /* moved */
    if (err != PD_OK)
        goto out;
    *ret_api = api;
    api = NULL; /* moved to the caller */
out:
    if (fd >= 0)
        close(fd);
    api_stop(api);
    api_free(api);
    return err;
}

uint16_t api_port(const struct api *api)
{
    return api->port;
}

void api_stop(struct api *api)
{
    if (!api)
        return;
    atomic_store(&api->draining, true);
    api_core_stop(api->core);
    pthread_mutex_lock(&api->lock);
    atomic_store(&api->stopping, true);
    for (struct api_stream *s = api->streams; s; s = s->next) {
        if (s->ops->gone)
            s->ops->gone(s->state);
        api_stream_wake_locked(s);
    }
    pthread_mutex_unlock(&api->lock);
    api_waits_notify_gone(api); /* unwanted work ends sooner */
    if (api->watching) {
        uint64_t one = 1;

        if (write(api->wake_fd, &one, sizeof one) < 0)
            pd_log(PD_LOG_WARNING, "api", "stop=watcher errno=%d", errno);
        pthread_join(api->watcher, NULL);
    }
    if (api->loops) {
        api_loops_refuse(api);
        api_pool_stop(api);
        api_waits_end(api);
        /* What was resumed still has to be written; stopping cuts connections off where they stand. */
        for (int i = 0; i < ANSWER_GRACE_MS / 5 && atomic_load(&api->active) > 0; i++)
            usleep(5000);
        api_loops_end(api);
    }
    api_pool_stop(api); /* where no loop was started */
}

struct api *api_free(struct api *api)
{
    if (!api)
        return NULL;
    api_core_free(api->core);
    api_pool_free(api->pool);
    free(api->settings_text);
    if (api->epoll_fd >= 0)
        close(api->epoll_fd);
    if (api->wake_fd >= 0)
        close(api->wake_fd);
    pthread_cond_destroy(&api->quiet);
    pthread_mutex_destroy(&api->lock);
    free(api);
    return NULL;
}
