/* The worker's link against a daemon made for the test: the other end of the socket, frame by frame. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/wire/serve_host.h"
#include "daemon/worker/process/link.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

struct fixture {
    char dir[64], socket[96], spool[96];
    int listen_fd, fd;
    struct wire_in in;
    struct pd_buf out;
    struct link *link;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    strcpy(f->dir, "/tmp/polyd-link-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->socket, sizeof f->socket, "%s/worker.sock", f->dir);
    snprintf(f->spool, sizeof f->spool, "%s/spool", f->dir);
    strcpy(addr.sun_path, f->socket);
    f->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listen_fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(f->listen_fd, 8), 0);
    f->fd = -1;
    pd_buf_init(&f->out, 0);
    wire_in_init(&f->in);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    link_stop(f->link);
    if (f->fd >= 0)
        close(f->fd);
    close(f->listen_fd);
    wire_in_done(&f->in);
    pd_buf_done(&f->out);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void link_up(struct fixture *f, struct link_options o)
{
    struct pd_why why;

    o.socket_path = f->socket;
    o.run = o.mortal ? 0 : 7;
    o.attempt = 2;
    memset(o.token, 0xab, sizeof o.token);
    assert_int_equal(link_start(&o, &f->link, &why), PD_OK);
}

/* The next frame of the type; others (heartbeat, progress) are skipped. Copies the payload. */
static struct wire_header expect(struct fixture *f, enum wire_type type, uint8_t *payload, size_t size)
{
    int64_t end_us = pd_clock_mono_us() + 10000000;

    while (pd_clock_mono_us() < end_us) {
        struct pollfd p = {.fd = f->fd, .events = POLLIN};
        struct wire_header h;
        const uint8_t *bytes;
        struct pd_why why;
        enum pd_err err = wire_in_next(&f->in, &h, &bytes, &why);

        if (err == PD_OK && h.type == (unsigned)type) {
            if (payload) {
                assert_true(h.len <= size);
                memcpy(payload, bytes, h.len);
            }
            return h;
        }
        if (err == PD_OK)
            continue;
        assert_int_equal(err, PD_ERR_NOT_FOUND);
        poll(&p, 1, 100);
        err = wire_in_read(&f->in, f->fd, 1 << 20, &why);
        if (err != PD_OK)
            fail_msg("waiting for %s: %s", wire_type_name(type), why.text);
    }
    fail_msg("no %s came", wire_type_name(type));
    return (struct wire_header){0};
}

static void flush(struct fixture *f)
{
    struct pd_why why;

    while (f->out.len)
        assert_int_equal(wire_out_write(&f->out, f->fd, &why), PD_OK);
}

static void take_connection(struct fixture *f)
{
    struct pollfd p = {.fd = f->listen_fd, .events = POLLIN};

    if (f->fd >= 0)
        close(f->fd);
    wire_in_done(&f->in);
    wire_in_init(&f->in);
    if (poll(&p, 1, 10000) != 1)
        fail_msg("nobody connected");
    f->fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(f->fd >= 0);
}

static void welcome(struct fixture *f, uint64_t acked)
{
    uint8_t payload[4096];
    struct wire_header h;
    size_t at;

    take_connection(f);
    h = expect(f, WIRE_HELLO, payload, sizeof payload);
    assert_int_equal(h.version, 0);
    assert_int_equal(wire_get_u32(payload, h.len, WIRE_TAG_ATTEMPT, 0), 2);
    at = wire_begin(&f->out, WIRE_WELCOME, 0, 0);
    wire_put_u32(&f->out, WIRE_TAG_VERSION_MAX, WIRE_VERSION);
    wire_put_u64(&f->out, WIRE_TAG_ACKED, acked);
    assert_int_equal(wire_end(&f->out, at), PD_OK);
    flush(f);
}

static void send_simple(struct fixture *f, enum wire_type type, enum wire_tag tag, uint64_t value)
{
    size_t at = wire_begin(&f->out, type, 0, 0);

    wire_put_u64(&f->out, tag, value);
    assert_int_equal(wire_end(&f->out, at), PD_OK);
    flush(f);
}

static void send_text(struct fixture *f, enum wire_type type, enum wire_tag tag, const char *text)
{
    size_t at = wire_begin(&f->out, type, 0, 0);

    wire_put_text(&f->out, tag, text);
    assert_int_equal(wire_end(&f->out, at), PD_OK);
    flush(f);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_link_resends_what_was_not_committed(void **state)
{
    struct fixture *f = *state;
    struct wire_header h;
    struct link_stats stats;

    link_up(f, (struct link_options){.spool_path = f->spool});
    for (int i = 0; i < 5; i++)
        link_event(f->link, "k", "text", "a=1 b=2");
    welcome(f, 0);
    for (uint64_t seq = 1; seq <= 5; seq++) {
        h = expect(f, WIRE_EVENT, NULL, 0);
        assert_int_equal(h.seq, seq);
    }
    send_simple(f, WIRE_ACK, WIRE_TAG_ACKED, 2);
    /* The daemon dies; the next one has committed 3. */
    welcome(f, 3);
    for (uint64_t seq = 4; seq <= 5; seq++) {
        h = expect(f, WIRE_EVENT, NULL, 0);
        assert_int_equal(h.seq, seq);
    }
    link_stats(f->link, &stats);
    assert_int_equal(stats.acked, 3);
}

static void expect_pairs(struct fixture *f, const char *const *want)
{
    uint8_t payload[4096];
    struct wire_header h = expect(f, WIRE_EVENT, payload, sizeof payload);
    struct wire_field field;
    size_t pos = 0;

    while (wire_next(payload, h.len, &pos, &field, NULL))
        if (field.tag == WIRE_TAG_PAIR) {
            assert_non_null(*want);
            assert_int_equal(field.len, strlen(*want));
            assert_memory_equal(field.bytes, *want, field.len);
            want++;
        }
    assert_null(*want);
}

static void test_link_event_leaves_names_of_files_whole(void **state)
{
    struct fixture *f = *state;

    link_up(f, (struct link_options){.spool_path = f->spool});
    link_event(f->link, "k", "text", "a=1 b=2");
    link_event(f->link, "bad_picture", "text", "file=train/golden retriever/a b=c .jpg");
    link_event(f->link, "checkpoint_removed", "text", "step=7 path=/var/my state/step-7.safetensors");
    welcome(f, 0);
    expect_pairs(f, (const char *const[]){"a=1", "b=2", NULL});
    expect_pairs(f, (const char *const[]){"file=train/golden retriever/a b=c .jpg", NULL});
    expect_pairs(f, (const char *const[]){"step=7", "path=/var/my state/step-7.safetensors", NULL});
}

static void test_link_metrics_go_before_the_checkpoint_that_follows_them(void **state)
{
    struct fixture *f = *state;
    uint8_t payload[65536];
    struct wire_header h;
    struct wire_field points;

    link_up(f, (struct link_options){.spool_path = f->spool});
    for (int i = 0; i < 1500; i++)
        link_metric(f->link, i % 2 ? "a" : "b", i, i, i);
    link_checkpoint(f->link, "latest", "/x", 1500, 10, "00", 0.5);
    welcome(f, 0);
    h = expect(f, WIRE_METRICS, payload, sizeof payload);
    assert_int_equal(h.seq, 1);
    assert_true(wire_find(payload, h.len, WIRE_TAG_POINTS, &points));
    assert_int_equal(points.len, WIRE_POINTS_MAX * WIRE_POINT_BYTES);
    h = expect(f, WIRE_METRICS, payload, sizeof payload);
    assert_int_equal(h.seq, 2);
    assert_true(wire_find(payload, h.len, WIRE_TAG_POINTS, &points));
    assert_int_equal(points.len, 500 * WIRE_POINT_BYTES);
    assert_int_equal(wire_point_at(&points, 499).step, 1499);
    h = expect(f, WIRE_CHECKPOINT_WRITTEN, payload, sizeof payload);
    assert_int_equal(h.seq, 3);
}

static void *acknowledge(void *arg)
{
    struct fixture *f = arg;

    expect(f, WIRE_CHECKPOINT_WRITTEN, NULL, 0);
    send_simple(f, WIRE_ACK, WIRE_TAG_ACKED, 1);
    return NULL;
}

static void test_link_knows_which_checkpoints_are_recorded(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;

    link_up(f, (struct link_options){.spool_path = f->spool});
    link_checkpoint(f->link, "latest", "/x", 10, 10, "00", 0.5);
    welcome(f, 0);
    assert_false(link_checkpoint_recorded(f->link, 10, false));
    assert_int_equal(pthread_create(&thread, NULL, acknowledge, f), 0);
    assert_true(link_checkpoint_recorded(f->link, 10, true));
    pthread_join(thread, NULL);
    link_checkpoint(f->link, "latest", "/x", 20, 10, "00", 0.5);
    assert_true(link_checkpoint_recorded(f->link, 10, false));
    assert_false(link_checkpoint_recorded(f->link, 20, false));
    assert_false(link_checkpoint_recorded(f->link, 30, true)); /* never written: nothing to wait for */
    link_signal_stop(f->link);
    assert_false(link_checkpoint_recorded(f->link, 20, true)); /* who is asked to leave does not wait */
}

static void test_link_flushes_a_lone_point_within_a_second(void **state)
{
    struct fixture *f = *state;
    int64_t begin_us;

    link_up(f, (struct link_options){.spool_path = f->spool});
    welcome(f, 0);
    begin_us = pd_clock_mono_us();
    link_metric(f->link, "a", 1, 1, 1);
    expect(f, WIRE_METRICS, NULL, 0);
    assert_true(pd_clock_mono_us() - begin_us < 5000000);
}

/* Memory for a few frames only: the rest goes through the spool, in order and whole. */
static void test_link_spools_beyond_its_memory(void **state)
{
    struct fixture *f = *state;
    static uint8_t payload[1 << 20];
    struct link_stats stats;
    struct wire_header h;
    char text[1000];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    link_up(f, (struct link_options){.spool_path = f->spool, .memory_bytes = 4096, .spool_bytes = 1 << 20});
    for (int i = 0; i < 100; i++)
        link_event(f->link, "k", text, NULL);
    link_stats(f->link, &stats);
    assert_true(stats.spooled > 80);
    welcome(f, 0);
    for (uint64_t seq = 1; seq <= 100; seq++) {
        char got[1200];

        h = expect(f, WIRE_EVENT, payload, sizeof payload);
        assert_int_equal(h.seq, seq);
        assert_true(wire_get_text(payload, h.len, WIRE_TAG_TEXT, got, sizeof got));
        assert_string_equal(got, text);
    }
    send_simple(f, WIRE_ACK, WIRE_TAG_ACKED, 100);
    link_event(f->link, "k", "after", NULL); /* memory again */
    h = expect(f, WIRE_EVENT, payload, sizeof payload);
    assert_int_equal(h.seq, 101);
}

static void test_link_drops_blobs_when_everything_is_full(void **state)
{
    struct fixture *f = *state;
    struct link_stats stats;
    char bytes[2000] = {0};

    link_up(f, (struct link_options){.memory_bytes = 4096});
    for (int i = 0; i < 10; i++)
        link_blob(f->link, "image", "k", i, "{}", bytes, sizeof bytes);
    link_stats(f->link, &stats);
    assert_true(stats.dropped_blobs >= 7);
    assert_true(stats.frames <= 3);
}

static void test_link_bye_waits_for_acknowledgements_and_an_answer(void **state)
{
    struct fixture *f = *state;
    uint8_t payload[4096];
    struct pd_why why;
    struct wire_header h;
    char cause[32];
    pid_t pid;

    /* The role's side blocks: the daemon is played by a child. */
    pid = fork();
    if (pid == 0) {
        welcome(f, 0);
        expect(f, WIRE_METRICS, NULL, 0);
        welcome(f, 0); /* lost before the acknowledgement */
        expect(f, WIRE_METRICS, NULL, 0);
        send_simple(f, WIRE_ACK, WIRE_TAG_ACKED, 1);
        h = expect(f, WIRE_BYE, payload, sizeof payload);
        wire_get_text(payload, h.len, WIRE_TAG_CAUSE, cause, sizeof cause);
        assert_string_equal(cause, "done");
        welcome(f, 1); /* lost before the answer: said again */
        expect(f, WIRE_BYE, NULL, 0);
        send_text(f, WIRE_BYE, WIRE_TAG_CAUSE, "recorded");
        sleep(1);
        _exit(0);
    }
    link_up(f, (struct link_options){.spool_path = f->spool});
    link_metric(f->link, "a", 1, 1, 1);
    assert_int_equal(link_bye(f->link, "done", 1, "", 15000000, &why), PD_OK);
}

static void *say_bye(void *arg)
{
    struct fixture *f = arg;
    struct pd_why why;

    return link_bye(f->link, "done", 8, "", 0, &why) == PD_OK ? f : NULL;
}

static void test_link_progress_goes_before_the_bye(void **state)
{
    struct fixture *f = *state;
    char phase[WIRE_PHASE_MAX + 1];
    uint8_t payload[4096];
    struct wire_header h;
    pthread_t thread;
    void *result;

    link_up(f, (struct link_options){.spool_path = f->spool});
    link_progress(f->link, 0, 8, false);
    link_phase(f->link, "compiling");
    welcome(f, 0);
    h = expect(f, WIRE_PROGRESS, payload, sizeof payload);
    assert_int_equal(wire_get_u64(payload, h.len, WIRE_TAG_STEP, 99), 0);
    assert_true(wire_get_text(payload, h.len, WIRE_TAG_PHASE, phase, sizeof phase));
    assert_string_equal(phase, "compiling");
    link_phase(f->link, NULL);
    h = expect(f, WIRE_PROGRESS, payload, sizeof payload); /* the end of a phase is told at once */
    assert_int_equal(wire_get_u64(payload, h.len, WIRE_TAG_STEP, 99), 0);
    assert_false(wire_get_text(payload, h.len, WIRE_TAG_PHASE, phase, sizeof phase));
    link_progress(f->link, 8, 8, false); /* a moment later: within the interval */
    assert_int_equal(pthread_create(&thread, NULL, say_bye, f), 0);
    h = expect(f, WIRE_PROGRESS, payload, sizeof payload);
    assert_int_equal(wire_get_u64(payload, h.len, WIRE_TAG_STEP, 99), 8);
    assert_int_equal(wire_get_u64(payload, h.len, WIRE_TAG_TOTAL, 99), 8);
    assert_false(wire_get_text(payload, h.len, WIRE_TAG_PHASE, phase, sizeof phase));
    expect(f, WIRE_BYE, NULL, 0);
    send_text(f, WIRE_BYE, WIRE_TAG_CAUSE, "recorded");
    pthread_join(thread, &result);
    assert_ptr_equal(result, f);
}

static void test_link_refused_worker_leaves_without_writing(void **state)
{
    struct fixture *f = *state;
    const struct link_assign *assign;
    struct pd_why why;

    link_up(f, (struct link_options){.spool_path = f->spool});
    take_connection(f);
    expect(f, WIRE_HELLO, NULL, 0);
    send_text(f, WIRE_BYE, WIRE_TAG_CAUSE, "refused");
    assert_int_equal(link_assigned(f->link, 5000, &assign, &why), PD_ERR_CLOSED);
    assert_int_equal(link_stop_asked(f->link), LINK_LEAVE_NOW);
    assert_int_equal(link_bye(f->link, "done", 1, "", 1000000, &why), PD_ERR_CLOSED);
}

static void test_link_takes_its_assignment_once(void **state)
{
    struct fixture *f = *state;
    const struct link_assign *a;
    struct pd_why why;
    size_t at;

    link_up(f, (struct link_options){.spool_path = f->spool});
    assert_int_equal(link_assigned(f->link, 10, &a, &why), PD_ERR_TIMEOUT);
    welcome(f, 0);
    at = wire_begin(&f->out, WIRE_ASSIGN, 0, 0);
    wire_put_text(&f->out, WIRE_TAG_ROLE, "train");
    wire_put_text(&f->out, WIRE_TAG_JOB, "{\"a\":1}");
    wire_put_text(&f->out, WIRE_TAG_RUN_DIR, "/runs/7");
    wire_put_text(&f->out, WIRE_TAG_DATA_ROOT, "corpora=/data/a=b");
    wire_put_u32(&f->out, WIRE_TAG_THREADS, 3);
    assert_int_equal(wire_end(&f->out, at), PD_OK);
    flush(f);
    assert_int_equal(link_assigned(f->link, 5000, &a, &why), PD_OK);
    assert_string_equal(a->role, "train");
    assert_string_equal(a->job, "{\"a\":1}");
    assert_int_equal(a->job_len, 7);
    assert_string_equal(a->roots[0].name, "corpora");
    assert_string_equal(a->roots[0].path, "/data/a=b");
    assert_int_equal(a->threads, 3);
    assert_null(a->checkpoint);
    send_simple(f, WIRE_CANCEL, WIRE_TAG_GRACE_US, 1);
    for (int i = 0; i < 500 && link_stop_asked(f->link) == LINK_GO_ON; i++)
        usleep(10000);
    assert_int_equal(link_stop_asked(f->link), LINK_CHECKPOINT_AND_LEAVE);
}

static const struct link_tuned h200 = {.gpu = "NVIDIA H200", .driver = "13.0", .library = "lt 1"};
static char recalled[256];

static void take_record(void *to, const char *key, const void *value, size_t size)
{
    size_t len = strlen(recalled);

    (void)to;
    snprintf(recalled + len, sizeof recalled - len, "%s=%.*s;", key, (int)size, (const char *)value);
}

struct recall {
    struct link *link;
    int timeout_ms;
    enum pd_err err;
};

static void *recall_thread(void *arg)
{
    struct recall *r = arg;
    struct pd_why why;

    r->err = link_tuned_recall(r->link, &h200, r->timeout_ms, take_record, NULL, &why);
    return NULL;
}

static void answer_records(struct fixture *f, const char *key, const char *value, bool last)
{
    size_t at = wire_begin(&f->out, WIRE_TUNED, 0, 0);

    if (key)
        wire_put_tuned(&f->out, key, value, strlen(value));
    if (last)
        wire_put_u32(&f->out, WIRE_TAG_LAST, 1);
    assert_int_equal(wire_end(&f->out, at), PD_OK);
    flush(f);
}

static void test_link_recalls_records_over_a_broken_connection(void **state)
{
    struct fixture *f = *state;
    struct recall r = {.timeout_ms = 20000};
    uint8_t payload[4096];
    struct wire_header h;
    pthread_t thread;
    char text[80];

    recalled[0] = '\0';
    link_up(f, (struct link_options){.rank = 1}); /* any rank asks for itself */
    welcome(f, 0);
    r.link = f->link;
    assert_int_equal(pthread_create(&thread, NULL, recall_thread, &r), 0);
    h = expect(f, WIRE_TUNED_ASK, payload, sizeof payload);
    assert_true(wire_get_text(payload, h.len, WIRE_TAG_GPU, text, sizeof text));
    assert_string_equal(text, "NVIDIA H200");
    answer_records(f, "lost", "half an answer", false);
    welcome(f, 0); /* another connection: asked again, from the beginning */
    expect(f, WIRE_TUNED_ASK, NULL, 0);
    answer_records(f, "a", "1", false);
    answer_records(f, "", "no key", false);
    answer_records(f, "b", "22", false);
    answer_records(f, NULL, NULL, true);
    pthread_join(thread, NULL);
    assert_int_equal(r.err, PD_OK);
    assert_string_equal(recalled, "a=1;b=22;");
    answer_records(f, "late", "unasked", true); /* nobody listens */
    send_simple(f, WIRE_CHECKPOINT_NOW, WIRE_TAG_STEP, 0);
    for (int i = 0; !link_checkpoint_asked(f->link) && i < 10000; i++)
        usleep(1000); /* until it was read: messages are taken in their order */
    r.timeout_ms = 100;
    recall_thread(&r);
    assert_int_equal(r.err, PD_ERR_TIMEOUT);
    send_simple(f, WIRE_CANCEL, WIRE_TAG_GRACE_US, 1);
    r.timeout_ms = 20000;
    recall_thread(&r);
    assert_int_equal(r.err, PD_ERR_CANCELLED);
}

static void test_link_reports_records_again_after_a_break(void **state)
{
    struct fixture *f = *state;
    static char long_key[WIRE_TUNED_KEY + 2];
    uint8_t payload[4096];
    const uint8_t *value;
    char key[WIRE_TUNED_KEY + 1], text[80];
    struct wire_header h;
    size_t pos = 0, size;
    int bad = 0;

    memset(long_key, 'k', sizeof long_key - 1);
    link_up(f, (struct link_options){.spool_path = f->spool});
    assert_true(link_tuned_report(f->link, &h200, "one", "1", 1));
    assert_false(link_tuned_report(f->link, &h200, long_key, "1", 1));
    assert_false(link_tuned_report(f->link, &h200, "", "1", 1));
    assert_false(link_tuned_report(f->link, &h200, "none", "", 0));
    welcome(f, 0);
    expect(f, WIRE_TUNED, NULL, 0);
    assert_true(link_tuned_report(f->link, &h200, "two", "22", 2));
    expect(f, WIRE_TUNED, NULL, 0);
    welcome(f, 0); /* who knows what of it was written */
    for (int i = 0; i < 2; i++) {
        h = expect(f, WIRE_TUNED, payload, sizeof payload);
        assert_int_equal(h.seq, 0); /* no data: not numbered */
        pos = 0;
        assert_true(wire_next_tuned(payload, h.len, &pos, key, &value, &size, &bad));
        assert_string_equal(key, i ? "two" : "one");
        assert_int_equal(size, i + 1);
        assert_true(wire_get_text(payload, h.len, WIRE_TAG_LIBRARY, text, sizeof text));
        assert_string_equal(text, "lt 1");
        assert_false(wire_next_tuned(payload, h.len, &pos, key, &value, &size, &bad));
    }
    assert_int_equal(bad, 0);
}

static void test_link_requests_answers_and_cancels(void **state)
{
    struct fixture *f = *state;
    const float data[2] = {1, 2};
    struct wire_tensor t = {.name = "x", .dtype = "FP32", .rank = 1, .shape = {2}, .data = data, .bytes = 8};
    struct serve_result part = {.tensors = &t, .count = 1, .last = true, .json = "{\"k\":1}"};
    struct serve_request *r1, *r2;
    uint8_t payload[4096];
    struct wire_header h;
    struct wire_field field;
    struct wire_tensor got;
    struct pd_why why;
    size_t at;

    link_up(f, (struct link_options){.mortal = true});
    assert_int_equal(link_request_next(f->link, 0, &r1), PD_ERR_TIMEOUT);
    welcome(f, 0);
    for (uint64_t id = 11; id <= 12; id++) {
        at = wire_begin(&f->out, WIRE_INFER, 0, id);
        wire_put_text(&f->out, WIRE_TAG_KIND, "infer");
        wire_put_tensor(&f->out, &t);
        assert_int_equal(wire_end(&f->out, at), PD_OK);
    }
    flush(f);
    assert_int_equal(link_request_next(f->link, 5000, &r1), PD_OK);
    assert_int_equal(link_request_next(f->link, 5000, &r2), PD_OK);
    assert_int_equal(r1->id, 11);
    assert_int_equal(r1->count, 1);
    assert_memory_equal(r1->tensors[0].data, data, 8);
    assert_string_equal(r1->json, "{}");
    link_request_reply(f->link, r1, &part);
    link_request_done(f->link, r1);
    h = expect(f, WIRE_INFER_RESULT, payload, sizeof payload);
    assert_int_equal(h.seq, 11);
    assert_int_equal(wire_get_u32(payload, h.len, WIRE_TAG_LAST, 0), 1);
    assert_true(wire_find(payload, h.len, WIRE_TAG_TENSOR, &field));
    assert_int_equal(wire_get_tensor(&field, &got, &why), PD_OK);
    assert_false(link_request_cancelled(f->link, r2));
    send_simple(f, WIRE_CANCEL, WIRE_TAG_REQUEST, 12);
    for (int i = 0; i < 500 && !link_request_cancelled(f->link, r2); i++)
        usleep(10000);
    assert_true(link_request_cancelled(f->link, r2));
    link_request_done(f->link, r2); /* given up: answered for it */
    h = expect(f, WIRE_INFER_RESULT, payload, sizeof payload);
    assert_int_equal(h.seq, 12);
    assert_int_equal(wire_get_u32(payload, h.len, WIRE_TAG_ERROR, 0), PD_ERR_INTERNAL);
    send_simple(f, WIRE_UNLOAD, WIRE_TAG_REQUEST, 0);
    assert_int_equal(link_request_next(f->link, 5000, &r1), PD_ERR_CLOSED);
}

/* The promise of kernels/PERFORMANCE.md 6: a scalar costs the training loop less than 2 us (here with a
 * generous factor for a loaded machine; the figure is printed). */
static void test_link_scalar_is_cheap(void **state)
{
    enum { COUNT = 200000 };
    struct fixture *f = *state;
    struct timespec a, b;
    double us;

    link_up(f, (struct link_options){.spool_path = f->spool});
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int i = 0; i < COUNT; i++)
        link_metric(f->link, i % 3 ? "loss/train" : "lr", i, i, i);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    us = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 1e3 / COUNT;
    print_message("a scalar costs %.3f us\n", us);
    assert_true(us < 20);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_link_resends_what_was_not_committed),
        TEST(test_link_event_leaves_names_of_files_whole),
        TEST(test_link_metrics_go_before_the_checkpoint_that_follows_them),
        TEST(test_link_knows_which_checkpoints_are_recorded),
        TEST(test_link_flushes_a_lone_point_within_a_second),
        TEST(test_link_spools_beyond_its_memory),
        TEST(test_link_drops_blobs_when_everything_is_full),
        TEST(test_link_bye_waits_for_acknowledgements_and_an_answer),
        TEST(test_link_progress_goes_before_the_bye),
        TEST(test_link_refused_worker_leaves_without_writing),
        TEST(test_link_takes_its_assignment_once),
        TEST(test_link_recalls_records_over_a_broken_connection),
        TEST(test_link_reports_records_again_after_a_break),
        TEST(test_link_requests_answers_and_cancels),
        TEST(test_link_scalar_is_cheap),
    };

    pd_log_set_level(PD_LOG_ERROR);
    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
