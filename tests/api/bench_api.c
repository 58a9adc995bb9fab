/* bench_api PORT MODE CONNECTIONS SECONDS [ARGUMENT]: closed-loop load on a local polyd, from one thread.
 *
 *   get PATH         one GET after the other on each connection
 *   submit BODY      the job document BODY (the server's limit of open jobs must be high)
 *   ingest RUN:N     batches of N metric points to run RUN, each step new
 *   infer MODEL:DIMS binary inference of FP32 zeros, DIMS such as 1,1,28,28 (input "image")
 *                    or 1,4 (input "x")
 *
 * Prints requests per second, points per second where they apply, and latencies p50, p90, p99, max in
 * microseconds, then a count of answers that were not 2xx. Loopback only. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/base/buf.h"
#include "kernels/base/clock.h"

#define CONNECTIONS_MAX 512
#define SAMPLES_MAX 4000000

struct client {
    int fd;
    struct pd_buf out, in;
    size_t sent;
    int64_t begun_us;
};

static const char *mode, *argument;
static int64_t next_step, points_per_request;
static uint32_t *samples;
static size_t sample_count;
static int64_t done, failed;
static int last_failure;

static void request(struct client *c)
{
    c->out.len = c->sent = 0;
    if (strcmp(mode, "get") == 0) {
        pd_buf_printf(&c->out, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", argument);
    } else if (strcmp(mode, "submit") == 0) {
        pd_buf_printf(&c->out,
                      "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      "Content-Length: %zu\r\n\r\n%s",
                      strlen(argument), argument);
    } else if (strcmp(mode, "ingest") == 0) {
        struct pd_buf body;
        long run = strtol(argument, NULL, 10);

        pd_buf_init(&body, 0);
        pd_buf_str(&body, "{\"points\":[");
        for (int64_t i = 0; i < points_per_request; i++) {
            /* Ten keys a step, as a training loop logs. */
            int64_t n = next_step++;

            pd_buf_printf(&body, "%s{\"key\":\"bench/k%lld\",\"step\":%lld,\"value\":%.6g,\"time\":%lld}",
                          i ? "," : "", (long long)(n % 10), (long long)(n / 10), 1.0 / (1.0 + (double)n),
                          1700000000LL + (long long)(n / 1000));
        }
        pd_buf_str(&body, "]}");
        pd_buf_printf(
            &c->out,
            "POST /api/v1/runs/%ld/metrics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: %zu\r\n\r\n",
            run, body.len);
        pd_buf_append(&c->out, body.data, body.len);
        pd_buf_done(&body);
    } else {
        const char *colon = strchr(argument, ':');
        char header[512];
        size_t bytes = 4;
        int n;

        for (const char *d = colon; d; d = strchr(d + 1, ','))
            bytes *= (size_t)strtol(d + 1, NULL, 10);
        n = snprintf(header, sizeof header,
                     "{\"inputs\":[{\"name\":\"%s\",\"shape\":[%s],\"datatype\":\"FP32\",\"parameters\":{"
                     "\"binary_data_size\":%zu}}],"
                     "\"parameters\":{\"binary_data_output\":true}}",
                     strchr(strchr(colon, ',') + 1, ',') ? "image" : "x", colon + 1, bytes);
        pd_buf_printf(&c->out,
                      "POST /v2/models/%.*s/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                      "application/octet-stream\r\n"
                      "Inference-Header-Content-Length: %d\r\nContent-Length: %zu\r\n\r\n%s",
                      (int)(colon - argument), argument, n, (size_t)n + bytes, header);
        memset(pd_buf_reserve(&c->out, bytes), 0, bytes);
    }
    c->begun_us = pd_clock_mono_us();
}

static bool push(struct client *c)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);

        if (n < 0)
            return errno == EAGAIN;
        c->sent += (size_t)n;
    }
    return true;
}

/* Takes one whole answer off c->in; false if more is needed. */
static bool answered(struct client *c, int *status)
{
    char *end, *length;
    size_t head, body = 0;

    if (!c->in.len || !(end = strstr(c->in.data, "\r\n\r\n")))
        return false;
    head = (size_t)(end - c->in.data) + 4;
    length = strcasestr(c->in.data, "\ncontent-length:");
    if (length && length < end)
        body = (size_t)strtoul(length + 16, NULL, 10);
    if (c->in.len < head + body)
        return false;
    *status = (int)strtol(c->in.data + 9, NULL, 10);
    pd_buf_consume(&c->in, head + body);
    return true;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static struct client clients[CONNECTIONS_MAX];
    int epoll = epoll_create1(0), connections, one = 1;
    int64_t begun, until;
    double seconds;

    if (argc < 6) {
        fprintf(stderr, "usage: bench_api PORT get|submit|ingest|infer CONNECTIONS SECONDS ARGUMENT\n");
        return 2;
    }
    address.sin_port = htons((uint16_t)strtol(argv[1], NULL, 10));
    mode = argv[2];
    connections = (int)strtol(argv[3], NULL, 10);
    seconds = strtod(argv[4], NULL);
    argument = argv[5];
    if (connections < 1 || connections > CONNECTIONS_MAX ||
        (strcmp(mode, "get") != 0 && !strchr(argument, ':')))
        return 2;
    if (strcmp(mode, "ingest") == 0)
        points_per_request = strtol(strchr(argument, ':') + 1, NULL, 10);
    next_step = pd_clock_wall_us() / 1000 * 10; /* new steps in every invocation */
    samples = malloc(SAMPLES_MAX * sizeof *samples);
    if (epoll < 0 || !samples)
        return 1;
    begun = pd_clock_mono_us();
    until = begun + (int64_t)(seconds * 1e6);
    for (int i = 0; i < connections; i++) {
        struct client *c = &clients[i];
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0) {
            perror("connect");
            return 1;
        }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        pd_buf_init(&c->out, 0);
        pd_buf_init(&c->in, 0);
        request(c);
        if (!push(c) || epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &ev) < 0)
            return 1;
    }
    while (pd_clock_mono_us() < until) {
        struct epoll_event events[64];
        int n = epoll_wait(epoll, events, 64, 100);

        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            char piece[65536];
            ssize_t got = recv(c->fd, piece, sizeof piece, 0);
            int status;

            if (got == 0 || (got < 0 && errno != EAGAIN)) {
                fprintf(
                    stderr,
                    "bench_api: the server closed connection %d after %.1f s and %lld answers (%s): %zu of "
                    "%zu bytes of a request sent, %.3f s ago; %zu bytes of its answer had come\n",
                    (int)(c - clients), 1e-6 * (double)(pd_clock_mono_us() - begun), (long long)done,
                    got ? strerror(errno) : "end of stream", c->sent, c->out.len,
                    1e-6 * (double)(pd_clock_mono_us() - c->begun_us), c->in.len);
                return 1;
            }
            if (got > 0)
                pd_buf_append(&c->in, piece, (size_t)got);
            if (answered(c, &status)) {
                int64_t now = pd_clock_mono_us();

                if (sample_count < SAMPLES_MAX)
                    samples[sample_count++] = (uint32_t)(now - c->begun_us);
                done++;
                if (status < 200 || status > 299) {
                    failed++;
                    last_failure = status;
                }
                request(c);
            }
            if (!push(c))
                return 1;
        }
    }
    seconds = 1e-6 * (double)(pd_clock_mono_us() - begun);
    if (!sample_count)
        return 1;
    qsort(samples, sample_count, sizeof *samples, by_value);
    printf("%s %.40s: %.0f requests/s", mode, argument, (double)done / seconds);
    if (points_per_request)
        printf(", %.0f points/s", (double)(done - failed) * (double)points_per_request / seconds);
    printf(", p50 %u p90 %u p99 %u max %u us, %lld not 2xx", samples[sample_count / 2],
           samples[sample_count * 9 / 10], samples[sample_count * 99 / 100], samples[sample_count - 1],
           (long long)failed);
    if (failed)
        printf(" (the last %d)", last_failure);
    printf("\n");
    return 0;
}
