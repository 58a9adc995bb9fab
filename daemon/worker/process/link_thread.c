/* The conversation with polyd: connecting, sending in order, hearing, reconnecting. */
#include "daemon/worker/process/link_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/log.h"

#define RECONNECT_MIN_US 50000
#define RECONNECT_MAX_US 2000000
#define PROGRESS_US 500000
#define LOG_US 1000000
#define OUT_BYTES ((size_t)1 << 20) /* bytes handed to the socket's buffer ahead */
#define MORTAL_US 3000000           /* a serving worker looks for polyd so long at its start */

static uint64_t pid_start(void)
{
    char text[1024], *at;
    uint64_t start = 0;
    FILE *f = fopen("/proc/self/stat", "re");

    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')'))) {
        /* The name may hold blanks: count from its closing bracket. Field 22 is the 20th after it. */
        for (int i = 0; i < 20 && at; i++)
            at = strchr(at + 1, ' ');
        if (at)
            start = strtoull(at + 1, NULL, 10);
    }
    if (f)
        fclose(f);
    return start;
}

static int dial(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof addr.sun_path)
        return -1;
    strcpy(addr.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr)) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void put_hello(struct link *l, struct pd_buf *out)
{
    size_t at = wire_begin(out, WIRE_HELLO, 0, 0);

    wire_put_u32(out, WIRE_TAG_VERSION_MIN, WIRE_VERSION_MIN);
    wire_put_u32(out, WIRE_TAG_VERSION_MAX, WIRE_VERSION);
    wire_put_u64(out, WIRE_TAG_RUN, (uint64_t)l->o.run);
    wire_put_u32(out, WIRE_TAG_ATTEMPT, (uint32_t)l->o.attempt);
    wire_put_u32(out, WIRE_TAG_RANK, (uint32_t)l->o.rank);
    wire_put_bytes(out, WIRE_TAG_TOKEN, l->o.token, sizeof l->o.token);
    wire_put_u32(out, WIRE_TAG_PID, (uint32_t)getpid());
    wire_put_u64(out, WIRE_TAG_PID_START, pid_start());
    wire_put_text(out, WIRE_TAG_BUILD, POLYD_VERSION);
    wire_put_u64(out, WIRE_TAG_LOWEST_SEQ, l->count ? link_entry_at(l, 0)->seq : 0);
    if (wire_end(out, at) != PD_OK)
        pd_log(PD_LOG_ERROR, "link", "hello=dropped");
}

/* Moves frames into the connection's buffer: kept ones in order, then those of the moment. Mutex held. */
static void fill(struct link *l, struct pd_buf *out, int64_t now_us, int64_t *progress_us, int64_t *log_us)
{
    if (!l->welcomed)
        return;
    if (l->ready.len) {
        pd_buf_append(out, l->ready.data, l->ready.len);
        l->ready.len = 0;
        if (l->ready.size > OUT_BYTES)
            pd_buf_done(&l->ready);
    }
    if (l->rendezvous_ours && !l->rendezvous_sent) {
        size_t at = wire_begin(out, WIRE_RENDEZVOUS, 0, 0);

        wire_put_bytes(out, WIRE_TAG_COMM_ID, l->rendezvous, l->rendezvous_len);
        l->rendezvous_sent = wire_end(out, at) == PD_OK;
    }
    link_fill_tuned(l, out);
    if (l->point_count && now_us - l->open_since_us >= LINK_FLUSH_US)
        link_close_metrics(l);
    while (l->sent < l->count && out->len < OUT_BYTES) {
        struct link_entry *e = link_entry_at(l, l->sent);

        if (!e->spooled)
            pd_buf_append(out, e->bytes, e->len);
        else {
            void *at = pd_buf_reserve(out, e->len);

            if (!at || pread(l->spool_fd, at, e->len, (off_t)e->offset) != (ssize_t)e->len) {
                pd_log(PD_LOG_ERROR, "link", "spool=unreadable seq=%llu", (unsigned long long)e->seq);
                out->len -= at ? e->len : 0;
                return;
            }
        }
        l->sent++;
    }
    /* A run shorter than the interval still says how long it was to be. */
    if (l->progress_dirty && (now_us - *progress_us >= PROGRESS_US || l->phase_dirty || l->bye_wanted)) {
        size_t at = wire_begin(out, WIRE_PROGRESS, 0, 0);

        wire_put_u64(out, WIRE_TAG_STEP, (uint64_t)l->step);
        wire_put_u64(out, WIRE_TAG_TOTAL, (uint64_t)l->total);
        wire_put_text(out, WIRE_TAG_STATE, l->checkpointing ? "checkpointing" : "running");
        if (l->phase[0])
            wire_put_text(out, WIRE_TAG_PHASE, l->phase);
        if (wire_end(out, at) == PD_OK)
            l->progress_dirty = l->phase_dirty = false;
        *progress_us = now_us;
    }
    if (l->log_path && (now_us - *log_us >= LOG_US || l->bye_wanted)) {
        struct stat st;

        *log_us = now_us;
        if (stat(l->log_path, &st) == 0 && st.st_size != l->log_sent) {
            size_t at = wire_begin(out, WIRE_LOG_OFFSET, 0, 0);

            wire_put_u64(out, WIRE_TAG_BYTES, (uint64_t)st.st_size);
            if (wire_end(out, at) == PD_OK)
                l->log_sent = st.st_size;
        }
    }
}

/* The bye goes last: when every data frame is acknowledged. Mutex held. */
static bool put_bye(struct link *l, struct pd_buf *out)
{
    size_t at;

    if (!l->welcomed || !l->bye_wanted || l->bye_answered || l->point_count || l->count)
        return false;
    at = wire_begin(out, WIRE_BYE, 0, 0);
    wire_put_text(out, WIRE_TAG_CAUSE, l->bye_cause);
    wire_put_u64(out, WIRE_TAG_STEP, (uint64_t)l->bye_step);
    wire_put_text(out, WIRE_TAG_TEXT, l->bye_text ? l->bye_text : "");
    return wire_end(out, at) == PD_OK;
}

static void put_heartbeat(struct pd_buf *out)
{
    size_t at = wire_begin(out, WIRE_HEARTBEAT, 0, 0);

    if (wire_end(out, at) != PD_OK)
        out->len = at;
}

/* One connection from hello to its end. The mutex is not held on entry. */
static void converse(struct link *l, int fd)
{
    struct wire_in in;
    struct pd_buf out;
    int64_t heard_us = pd_clock_mono_us(), beat_us = heard_us, progress_us = 0, log_us = 0;
    bool alive = true, bye_sent = false;

    wire_in_init(&in);
    pd_buf_init(&out, 0);
    pthread_mutex_lock(&l->mutex);
    put_hello(l, &out);
    l->welcomed = false;
    pthread_mutex_unlock(&l->mutex);
    while (alive) {
        struct pollfd poll_fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = l->wake_fd, .events = POLLIN}};
        int64_t now_us = pd_clock_mono_us();
        struct wire_header head;
        const uint8_t *payload;
        struct pd_why why;
        uint64_t count;
        enum pd_err err;

        pthread_mutex_lock(&l->mutex);
        if (l->stop_thread) {
            pthread_mutex_unlock(&l->mutex);
            break;
        }
        if (l->bye_wanted)
            link_close_metrics(l);
        fill(l, &out, now_us, &progress_us, &log_us);
        if (!bye_sent)
            bye_sent = put_bye(l, &out);
        pthread_mutex_unlock(&l->mutex);
        if (now_us - beat_us >= WIRE_HEARTBEAT_US) {
            put_heartbeat(&out);
            beat_us = now_us;
        }
        if (out.failed || (out.len && wire_out_write(&out, fd, &why) != PD_OK))
            break;
        if (now_us - heard_us > WIRE_SILENCE_US)
            break;
        if (out.len)
            poll_fds[0].events |= POLLOUT;
        if (poll(poll_fds, 2, 200) < 0 && errno != EINTR)
            break;
        if (poll_fds[1].revents & POLLIN) {
            ssize_t n = read(l->wake_fd, &count, sizeof count);

            (void)n;
        }
        if (!(poll_fds[0].revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        err = wire_in_read(&in, fd, OUT_BYTES, &why);
        heard_us = pd_clock_mono_us();
        alive = err == PD_OK;
        /* What came before the end still counts: a bye is followed by the close. */
        pthread_mutex_lock(&l->mutex);
        while ((err = wire_in_next(&in, &head, &payload, &why)) == PD_OK)
            if (!link_take_frame(l, &head, payload)) {
                alive = false;
                break;
            }
        pthread_mutex_unlock(&l->mutex);
        if (err != PD_OK && err != PD_ERR_NOT_FOUND) {
            pd_log(PD_LOG_WARNING, "link", "connection=broken why=\"%s\"", why.text);
            alive = false;
        }
    }
    wire_in_done(&in);
    pd_buf_done(&out);
}

void *link_thread(void *arg)
{
    struct link *l = arg;
    int64_t pause_us = RECONNECT_MIN_US, alone_since_us = pd_clock_mono_us();
    bool over = false;

    while (!over) {
        int fd = dial(l->socket_path);
        int64_t now_us;

        if (fd >= 0) {
            bool welcomed;

            converse(l, fd);
            close(fd);
            pthread_mutex_lock(&l->mutex);
            welcomed = l->welcomed;
            l->welcomed = false;
            l->reconnects++;
            pthread_mutex_unlock(&l->mutex);
            if (welcomed) {
                pause_us = RECONNECT_MIN_US;
                alone_since_us = pd_clock_mono_us();
            }
        }
        now_us = pd_clock_mono_us();
        pthread_mutex_lock(&l->mutex);
        if (l->o.mortal && (l->assigned || now_us - alone_since_us > MORTAL_US))
            link_refuse(l); /* a serving worker without polyd has no requests */
        if (now_us - alone_since_us > LINK_ALONE_US && link_stop_asked(l) == LINK_GO_ON)
            atomic_store(&l->stop, LINK_CHECKPOINT_AND_LEAVE);
        if (l->bye_wanted || (l->point_count && now_us - l->open_since_us >= LINK_FLUSH_US))
            link_close_metrics(l);
        over = l->stop_thread || l->refused || l->bye_answered;
        pthread_mutex_unlock(&l->mutex);
        if (!over) {
            struct pollfd p = {.fd = l->wake_fd, .events = POLLIN};
            int64_t until_us = now_us + pause_us;

            /* Wakes are for frames that must wait anyway: only the stop matters here. */
            while (!over && (now_us = pd_clock_mono_us()) < until_us) {
                uint64_t count;

                if (poll(&p, 1, (int)((until_us - now_us) / 1000) + 1) > 0) {
                    ssize_t n = read(l->wake_fd, &count, sizeof count);
                    struct timespec breath = {.tv_nsec = 5000000};

                    (void)n;
                    nanosleep(&breath, NULL); /* a busy role must not turn the pause into a spin */
                }
                pthread_mutex_lock(&l->mutex);
                over = l->stop_thread;
                pthread_mutex_unlock(&l->mutex);
            }
            pause_us = pause_us * 2 < RECONNECT_MAX_US ? pause_us * 2 : RECONNECT_MAX_US;
        }
    }
    pthread_mutex_lock(&l->mutex);
    if (!l->bye_answered)
        link_refuse(l);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}
