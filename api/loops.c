/* The threads that run libmicrohttpd, one instance of it each, on one listening socket.
 *
 * libmicrohttpd's own pool is not used: its threads take up to 128 events from epoll at once and, if there
 * were exactly so many, wait for more before they look at any (0.9.75 to 1.0.1: MHD_epoll); when all clients
 * of a thread wait for their answers nothing more comes, and they stay without one until a connection's idle
 * time is over. Here a thread waits for the instance's descriptor by itself and then lets it run without
 * waiting.
 *
 * An instance is touched by its own thread alone, but for api_resume, and before and after the thread's life.
 * What MHD_resume_connection writes for the thread may be read by an MHD_run that had looked for resumed
 * connections already. So every resume also raises `resumed`, and wakes a thread that is about to wait;
 * the thread says that it will wait before it looks at `resumed`. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/internal.h"
#include "kernels/base/log.h"

#define LEAVING_MAX 1024                /* connections cut off that libmicrohttpd has not closed yet */
#define CONNECTION_MEMORY (64u * 1024u) /* header and buffers of one connection; also the longest header */

/* Later libraries refuse bare line feeds and folded lines at this level. With 0.9.75 api/framing.h sees to
 * that and to what the strict level of that library checks, whose own refusals write their head twice. */
#if MHD_VERSION >= 0x00097701
#define STRICT_OPTION MHD_OPTION_CLIENT_DISCIPLINE_LVL
#define STRICT_LEVEL 1
#else
#define STRICT_OPTION MHD_OPTION_STRICT_FOR_CLIENT
#define STRICT_LEVEL 0
#endif

enum phase { ACCEPTING, ANSWERING, ENDED };

struct api_loop {
    struct api *api;
    struct MHD_Daemon *mhd;
    int wake_fd;
    pthread_t thread;
    bool running;
    atomic_int phase; /* enum phase */
    atomic_bool resumed, waiting;
};

static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    char text[400], quoted[500];

    (void)cls;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    pd_log(PD_LOG_DEBUG, "api", "library=%s", pd_log_quote(quoted, sizeof quoted, text));
}

static enum MHD_Result may_connect(void *cls, const struct sockaddr *address, socklen_t len)
{
    (void)len;
    return api_place_find(cls, address) ? MHD_YES : MHD_NO;
}

static void wake(struct api_loop *l)
{
    uint64_t one = 1;

    if (write(l->wake_fd, &one, sizeof one) < 0)
        pd_log(PD_LOG_WARNING, "api", "wake=loop errno=%d", errno);
}

static void enter(struct api_loop *l, enum phase phase)
{
    atomic_store(&l->phase, phase);
    wake(l);
}

void api_resume(const struct conn *c, struct MHD_Connection *connection)
{
    struct api_loop *l = c->loop;

    MHD_resume_connection(connection);
    atomic_store(&l->resumed, true);
    if (atomic_load(&l->waiting))
        wake(l);
}

struct api *api_of_loop(const struct api_loop *loop)
{
    return loop->api;
}

/* Until there is something for the instance to do. */
static void loop_wait(struct api_loop *l, struct pollfd fds[2])
{
    unsigned long long ms = 0;
    bool limited = MHD_get_timeout(l->mhd, &ms) == MHD_YES;
    uint64_t wakes;

    if (limited && !ms)
        return;
    atomic_store(&l->waiting, true);
    if (!atomic_exchange(&l->resumed, false))
        poll(fds, 2, !limited ? -1 : ms < INT_MAX ? (int)ms : INT_MAX);
    atomic_store(&l->waiting, false);
    if (fds[1].revents && read(l->wake_fd, &wakes, sizeof wakes) < 0)
        pd_log(PD_LOG_WARNING, "api", "woken=loop errno=%d", errno);
    fds[1].revents = 0;
}

static void *loop_main(void *arg)
{
    struct api_loop *l = arg;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd fds[] = {{.fd = info->epoll_fd, .events = POLLIN}, {.fd = l->wake_fd, .events = POLLIN}};
    int phase, seen = ACCEPTING;

    while ((phase = atomic_load(&l->phase)) != ENDED) {
        if (phase != seen)
            close(MHD_quiesce_daemon(l->mhd));
        seen = phase;
        loop_wait(l, fds);
        MHD_run(l->mhd);
    }
    return NULL;
}

/* Takes listen_fd, also when it fails. */
static enum pd_err loop_start(struct api *api, struct api_loop *l, int listen_fd, int connections,
                              struct pd_why *why)
{
    l->api = api;
    atomic_init(&l->phase, ACCEPTING);
    atomic_init(&l->resumed, false);
    atomic_init(&l->waiting, false);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (listen_fd < 0 || l->wake_fd < 0) {
        int e = errno;

        if (listen_fd >= 0)
            close(listen_fd);
        return pd_fail_errno(why, e, "cannot make a server thread's descriptors");
    }
    l->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, may_connect, api, api_request_handle,
        api, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL, MHD_OPTION_LISTEN_SOCKET, listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)api->set.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        STRICT_OPTION, STRICT_LEVEL, MHD_OPTION_URI_LOG_CALLBACK, api_request_new, api,
        MHD_OPTION_NOTIFY_COMPLETED, api_request_done, api, MHD_OPTION_NOTIFY_CONNECTION,
        api_connection_notify, l, MHD_OPTION_END);
    if (!l->mhd) {
        close(listen_fd);
        return pd_fail(why, PD_ERR_IO, "libmicrohttpd did not start on %s port %u", api->set.bind, api->port);
    }
    if (pthread_create(&l->thread, NULL, loop_main, l) != 0)
        return pd_fail(why, PD_ERR_NOMEM, "cannot start a server thread");
    l->running = true;
    return PD_OK;
}

enum pd_err api_loops_start(struct api *api, int listen_fd, struct pd_why *why)
{
    int count = api->set.threads < api->set.connections ? api->set.threads : api->set.connections;
    /* Never met: places.c keeps the bound, for all instances together. */
    int most = api->set.connections + api->set.connections_reserved + LEAVING_MAX;
    enum pd_err err = PD_OK;

    api->loops = calloc((size_t)count, sizeof *api->loops);
    if (!api->loops) {
        close(listen_fd);
        return pd_fail(why, PD_ERR_NOMEM, "no memory for the server");
    }
    for (int i = 0; i < count && err == PD_OK; i++) {
        int fd = i + 1 < count ? fcntl(listen_fd, F_DUPFD_CLOEXEC, 0) : listen_fd;

        err = loop_start(api, &api->loops[i], fd, most, why);
        api->loop_count++;
        if (err != PD_OK && i + 1 < count)
            close(listen_fd);
    }
    return err;
}

void api_loops_refuse(struct api *api)
{
    for (int i = 0; i < api->loop_count; i++)
        enter(&api->loops[i], ANSWERING);
}

void api_loops_end(struct api *api)
{
    for (int i = 0; i < api->loop_count; i++) {
        struct api_loop *l = &api->loops[i];

        if (l->running) {
            enter(l, ENDED);
            pthread_join(l->thread, NULL);
        }
        if (l->mhd)
            MHD_stop_daemon(l->mhd);
        if (l->wake_fd >= 0)
            close(l->wake_fd);
    }
    free(api->loops);
    api->loops = NULL;
    api->loop_count = 0;
}
