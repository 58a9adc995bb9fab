/* How much the way from HTTP to the worker and back adds to a model's own time: one image, Open Inference
 * Protocol with binary tensors, one connection. The model's own time is serve_classify in this process on the
 * same checkpoint, called in turn with the requests so that both meet the same machine. `bench_infer
 * [REQUESTS]`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sqlite3.h>

#include "daemon/worker/serve/serve.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "tests/fault/rig.h"

#define PIXELS (28 * 28)

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void show(const char *what, double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, compare);
    printf("%-28s p50 %8.0f us   p90 %8.0f us   p99 %8.0f us\n", what, us[n / 2], us[n * 9 / 10],
           us[n * 99 / 100]);
}

/* One whole answer from a kept connection; its status, 0 on a broken one. */
static int read_answer(int fd, char *buf, size_t size)
{
    size_t len = 0, want = 0;
    char *end = NULL, *at;

    while (!want || len < want) {
        ssize_t n = read(fd, buf + len, size - 1 - len);

        if (n <= 0)
            return 0;
        len += (size_t)n;
        buf[len] = 0;
        if (!end && (end = strstr(buf, "\r\n\r\n"))) {
            at = strcasestr(buf, "\r\nContent-Length:");
            want = (size_t)(end + 4 - buf) + (at ? strtoul(at + 17, NULL, 10) : 0);
        }
    }
    return atoi(buf + 9);
}

static bool wait_reply(struct rig *r, const char *method, const char *path, const char *text,
                       const char *body)
{
    for (int i = 0; i < 3000; i++) {
        struct rig_reply p;
        bool found;

        rig_http(r, method, path, NULL, body, &p);
        found = p.status == 200 && (!text || (p.body.data && strstr(p.body.data, text)));
        rig_reply_done(&p);
        if (found)
            return true;
        rig_sleep_us(20000);
    }
    return false;
}

int main(int argc, char **argv)
{
    int n = argc > 1 ? atoi(argv[1]) : 1000, fd, header_len;
    static char answer[1 << 16], request[8192], checkpoint[512];
    static uint8_t image[PIXELS];
    char header[256], path[128];
    double *own = calloc((size_t)n, sizeof *own), *all = calloc((size_t)n, sizeof *all);
    struct serve_options o = {.checkpoint = checkpoint, .threads = 1};
    struct serve_samples part = {.data = image, .bytes = true, .count = 1};
    float logits[16];
    struct serve_scores scores = {.logits = logits};
    struct serve *s = NULL;
    struct pd_why why = {{0}};
    struct rig_reply p;
    struct rig r;
    sqlite3_stmt *st = NULL;
    sqlite3 *db = NULL;
    size_t request_len;

    rig_init(&r, "bench");
    pd_log_set_level(PD_LOG_WARNING);
    r.args[0] = "--devices.threads_per_slot=1";
    if (!own || !all || !rig_start(&r, NULL))
        return 1;
    rig_http(&r, "POST", "/api/v1/jobs", NULL,
             "{\"name\":\"bench\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},"
             "\"train\":{\"steps\":5,"
             "\"batch\":8},\"register\":\"bench\"}",
             &p);
    rig_reply_done(&p);
    if (!wait_reply(&r, "GET", "/api/v1/jobs/1", "\"state\":\"done\"", NULL) ||
        !wait_reply(&r, "POST", "/v2/repository/models/bench/load", NULL, "{}") ||
        !wait_reply(&r, "GET", "/v2/models/bench/ready", "true", NULL)) {
        printf("the model did not come up\n");
        rig_done(&r, true);
        return 1;
    }
    snprintf(path, sizeof path, "%s/polyd.db", r.state);
    if (sqlite3_open(path, &db) != SQLITE_OK ||
        sqlite3_prepare_v2(db, "SELECT path FROM checkpoint ORDER BY id DESC LIMIT 1", -1, &st, NULL) !=
            SQLITE_OK ||
        sqlite3_step(st) != SQLITE_ROW)
        return 1;
    snprintf(checkpoint, sizeof checkpoint, "%s/%s", r.state, (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    sqlite3_close(db);
    if (serve_open(&o, &s, &why) != PD_OK) {
        printf("%s\n", why.text);
        return 1;
    }
    header_len = snprintf(
        header, sizeof header,
        "{\"inputs\":[{\"name\":\"image\",\"shape\":[1,1,28,28],\"datatype\":\"UINT8\",\"parameters\":"
        "{\"binary_data_size\":%d}}],\"parameters\":{\"binary_data_output\":true}}",
        PIXELS);
    request_len =
        (size_t)snprintf(request, sizeof request,
                         "POST /v2/models/bench/infer HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                         "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
                         "Content-Length: %d\r\n\r\n%s",
                         r.port, header_len, header_len + PIXELS, header);
    memcpy(request + request_len, image, PIXELS);
    request_len += PIXELS;
    fd = rig_connect(&r);
    for (int i = -20; i < n; i++) {
        int64_t a = pd_clock_mono_us(), b, c;
        int status;

        if (serve_classify(s, &part, 1, &scores, &why) != PD_OK)
            return 1;
        b = pd_clock_mono_us();
        if (pd_file_write_all(fd, request, request_len, NULL) != PD_OK ||
            (status = read_answer(fd, answer, sizeof answer)) != 200) {
            printf("request %d failed: %.300s\n", i, answer);
            return 1;
        }
        c = pd_clock_mono_us();
        if (i >= 0) {
            own[i] = (double)(b - a);
            all[i] = (double)(c - b);
        }
    }
    show("the model alone", own, n);
    show("over HTTP, binary", all, n);
    printf("%-28s p50 %8.0f us\n", "added", all[n / 2] - own[n / 2]);
    serve_close(s);
    close(fd);
    rig_done(&r, false);
    return 0;
}
