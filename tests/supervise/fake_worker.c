/* A stand-in for polyd-worker in its serve role: the real link, no model. What it does is written in the
 * request's JSON, or in FAKE_SERVE of its environment: "echo"   gives the tensors back        "stream"  three
 * parts, then the last "wait"   answers when it is cancelled  "crash"   abort() "drip"   eight parts in 0.8 s, then
 * the last "stall"  three parts, then "wait" FAKE_SERVE=refuse  the load
 * fails with a reason; FAKE_SERVE=slow  it takes half a second; FAKE_SERVE="needs N"  it
 * takes a tenth of a second and N bytes, and fails with less. In the role train it sends one
 * malformed frame and leaves when its connection is closed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/wire/serve_host.h"
#include "daemon/wire/wire.h"
#include "daemon/worker/process/link.h"
#include "kernels/base/log.h"

static const char *after(int argc, char **argv, const char *name, int nth)
{
    for (int i = 0; i + 1 < argc; i++)
        if (!strcmp(argv[i], name) && nth-- == 0)
            return argv[i + 1];
    return NULL;
}

static void answer(struct link *l, struct serve_request *r)
{
    if (strstr(r->json, "crash"))
        abort();
    for (int i = 0; i < (strstr(r->json, "drip") ? 8 : strstr(r->json, "stall") ? 3 : 0); i++) {
        struct serve_result part = {.json = "{\"piece\":1}"};

        usleep(100000);
        link_request_reply(l, r, &part);
    }
    if (strstr(r->json, "wait") || strstr(r->json, "stall")) {
        struct serve_result none = {.err = PD_ERR_CANCELLED, .text = "cancelled", .last = true};

        for (int i = 0; i < 2000 && !link_request_cancelled(l, r); i++)
            usleep(5000);
        link_request_reply(l, r, &none);
    } else if (strstr(r->json, "stream")) {
        for (int i = 0; i < 4; i++) {
            struct serve_result part = {.json = "{\"piece\":1}", .last = i == 3};

            link_request_reply(l, r, &part);
        }
    } else {
        struct serve_result all = {.tensors = r->tensors, .count = r->count, .json = r->json, .last = true};

        link_request_reply(l, r, &all);
    }
    link_request_done(l, r);
}

/* A blob without its bytes, past the link, which makes none. */
static int send_malformed(int argc, char **argv, const uint8_t token[WIRE_TOKEN_BYTES])
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pd_buf b;
    uint8_t answer[4096];
    size_t hello, blob;

    pd_buf_init(&b, 0);
    hello = wire_begin(&b, WIRE_HELLO, 0, 0);
    wire_put_u32(&b, WIRE_TAG_VERSION_MIN, WIRE_VERSION);
    wire_put_u32(&b, WIRE_TAG_VERSION_MAX, WIRE_VERSION);
    wire_put_u64(&b, WIRE_TAG_RUN, (uint64_t)atoll(after(argc, argv, "--run", 0)));
    wire_put_u32(&b, WIRE_TAG_ATTEMPT, (uint32_t)atoi(after(argc, argv, "--attempt", 0)));
    wire_put_bytes(&b, WIRE_TAG_TOKEN, token, WIRE_TOKEN_BYTES);
    if (wire_end(&b, hello) != PD_OK)
        return 2;
    blob = wire_begin(&b, WIRE_BLOB, 0, 1);
    wire_put_text(&b, WIRE_TAG_KIND, "matrix");
    wire_put_text(&b, WIRE_TAG_KEY, "k");
    if (wire_end(&b, blob) != PD_OK)
        return 2;
    snprintf(to.sun_path, sizeof to.sun_path, "%s", after(argc, argv, "--socket", 0));
    if (connect(fd, (struct sockaddr *)&to, sizeof to) || write(fd, b.data, b.len) != (ssize_t)b.len)
        return 2;
    pd_buf_done(&b);
    while (read(fd, answer, sizeof answer) > 0) {
    }
    close(fd);
    return 1;
}

int main(int argc, char **argv)
{
    const char *mode = getenv("FAKE_SERVE") ? getenv("FAKE_SERVE") : "";
    struct link_options o = {.socket_path = after(argc, argv, "--socket", 0),
                             .attempt = atoi(after(argc, argv, "--attempt", 0)),
                             .mortal = true};
    const struct link_assign *assign;
    struct serve_request *r;
    struct link *l;
    struct pd_why why;
    unsigned long long needs = 0;
    char path[1024];
    int fd;

    pd_log_set_level(PD_LOG_ERROR);
    snprintf(path, sizeof path, "%s/lock", after(argc, argv, "--dir", 0));
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    flock(fd, LOCK_EX);
    if (read(3, o.token, sizeof o.token) != (ssize_t)sizeof o.token)
        return 1;
    if (!strcmp(after(argc, argv, "--", 0), "train"))
        return send_malformed(argc, argv, o.token);
    if (link_start(&o, &l, &why) != PD_OK)
        return 1;
    if (link_assigned(l, 10000, &assign, &why) != PD_OK) {
        link_stop(l);
        return 1;
    }
    if (!strcmp(mode, "slow"))
        usleep(500000);
    if (!strcmp(mode, "refuse")) {
        int status = link_bye(l, "failed", 0, "the file is broken", 2000000, &why) == PD_OK ? 1 : 2;

        link_stop(l);
        return status;
    }
    if (!strncmp(mode, "needs ", 6)) {
        const unsigned long long most = strtoull(after(argc, argv, "--memory", 0), NULL, 10);

        needs = strtoull(mode + 6, NULL, 10);
        usleep(100000);
        if (most && most < needs) {
            int status =
                link_bye(l, "limit", 0, "the model needs more memory", 2000000, &why) == PD_OK ? 1 : 2;

            link_stop(l);
            return status;
        }
    }
    link_send_ready(l, "{\"platform\":\"fake\"}", needs);
    while (link_request_next(l, -1, &r) == PD_OK)
        answer(l, r);
    if (link_bye(l, "done", 0, "", 2000000, &why) != PD_OK)
        return 1;
    link_stop(l);
    return 0;
}
