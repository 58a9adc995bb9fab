/* Serving through the supervisor, with a stand-in for the worker (fake_worker.c). */
#include <setjmp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/clock.h"
#include "kernels/base/log.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct sup *sup;
    int64_t memory; /* serve.memory_bytes */
};

static void up(struct fixture *f)
{
    struct store_writer_options store = {.state_dir = f->dir};
    struct sup_options o = {.state_dir = f->dir,
                            .worker_path =
                                getenv("POLYD_TEST_FAKE") ? getenv("POLYD_TEST_FAKE") : FAKE_WORKER_PATH,
                            .cpu_slots = 1,
                            .cpu_threads = 1,
                            .grace_us = 1000000,
                            .serve_memory = f->memory,
                            .infer_queue = 4};
    struct pd_why why = {""};

    if (store_writer_start(&store, &f->w, &why) != PD_OK || sup_start(&o, f->w, &f->sup, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void down(struct fixture *f)
{
    f->sup = sup_stop(f->sup);
    f->w = store_writer_stop(f->w);
}

#define VERSIONS 4

/* A run that has ended, and versions of the model "m" made of its checkpoint. */
static enum pd_err fill(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_job_new job = {.name = "j", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 1, .total_steps = 2};
    struct store_checkpoint c = {
        .attempt = 1, .step = 2, .kind = "best", .path = "/dev/null", .bytes = 300, .digest = "00"};
    int64_t id, n, checkpoint;
    enum pd_err err = store_job_insert(tx, &job, &id, why);

    (void)ctx;
    if (err == PD_OK)
        err = store_run_insert(tx, id, &run, &c.run_id, why);
    if (err == PD_OK)
        err = store_run_cancel(tx, c.run_id, -1, "", why);
    if (err == PD_OK)
        err = store_checkpoint_insert(tx, &c, &checkpoint, why);
    for (int i = 0; err == PD_OK && i < VERSIONS; i++)
        err = store_model_register(tx, "m", checkpoint, &n, why);
    return err;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = fill};
    struct pd_why why = {""};

    unsetenv("FAKE_SERVE");
    strcpy(f->dir, "/tmp/polyd-serve-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    up(f);
    if (store_writer_call(f->w, &work, &why) != PD_OK)
        fail_msg("%s", why.text);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    char command[128];

    down(f);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

static void pause_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    nanosleep(&pause, NULL);
}

static char last_reason[512];

static void note(void *ctx, enum pd_err err, const struct pd_why *why)
{
    memcpy(last_reason, why->text, sizeof last_reason);
    atomic_store((_Atomic int *)ctx, (int)err);
}

static int wait_result(_Atomic int *result)
{
    for (int i = 0; i < 4000 && atomic_load(result) < 0; i++)
        pause_ms(5);
    return atomic_load(result);
}

static int load(struct fixture *f, int64_t version)
{
    _Atomic int result = -1;
    struct pd_why why;

    assert_int_equal(sup_model_load(f->sup, "m", version, note, &result, &why), PD_OK);
    return wait_result(&result);
}

static int unload(struct fixture *f, int64_t version)
{
    _Atomic int result = -1;
    struct pd_why why;

    assert_int_equal(sup_model_unload(f->sup, "m", version, note, &result, &why), PD_OK);
    return wait_result(&result);
}

struct answer {
    _Atomic int parts, over;
    enum pd_err err;
    int64_t version;
    float data[2];
    uint32_t count;
};

static void take(void *ctx, const struct sup_result *r)
{
    struct answer *a = ctx;

    a->err = r->err;
    a->version = r->version;
    a->count = r->count;
    if (r->count && r->tensors[0].bytes == sizeof a->data)
        memcpy(a->data, r->tensors[0].data, sizeof a->data);
    a->parts++;
    if (r->last)
        a->over++;
}

static enum pd_err ask(struct fixture *f, const char *json, int64_t deadline_us, int64_t version,
                       struct answer *a, uint64_t *ret_id)
{
    static const float data[2] = {3, 4};
    struct wire_tensor t = {
        .name = "x", .dtype = "FP32", .rank = 1, .shape = {2}, .data = data, .bytes = sizeof data};
    struct sup_infer req = {.model = "m",
                            .version = version,
                            .kind = "infer",
                            .deadline_us = deadline_us,
                            .json = json,
                            .json_len = strlen(json),
                            .tensors = &t,
                            .count = 1,
                            .part = take,
                            .ctx = a};
    struct pd_why why;

    memset(a, 0, sizeof *a);
    return sup_infer(f->sup, &req, ret_id, &why);
}

static void wait_over(struct answer *a)
{
    for (int i = 0; i < 4000 && !a->over; i++)
        pause_ms(5);
    assert_int_equal(a->over, 1);
}

static void wait_ready(struct fixture *f)
{
    struct answer a;
    uint64_t id;

    for (int i = 0; i < 2000; i++) {
        if (ask(f, "echo", 0, 0, &a, &id) == PD_OK) {
            wait_over(&a);
            if (a.err == PD_OK)
                return;
        }
        pause_ms(10);
    }
    fail_msg("the model does not come back");
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_serving_load_infer_unload(void **state)
{
    struct fixture *f = *state;
    struct answer a;
    uint64_t id;

    assert_int_equal(ask(f, "echo", 0, 0, &a, &id), PD_ERR_NOT_FOUND);
    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(load(f, 1), PD_OK); /* again: at once */
    assert_int_equal(load(f, 2), PD_OK);
    assert_int_equal(ask(f, "echo", 0, 0, &a, &id), PD_OK);
    wait_over(&a);
    assert_true(a.err == PD_OK && a.count == 1 && a.data[1] == 4 && a.version == 2); /* the highest */
    assert_int_equal(ask(f, "stream", 0, 1, &a, &id), PD_OK);
    wait_over(&a);
    assert_true(a.parts == 4 && a.version == 1);
    assert_int_equal(unload(f, 0), PD_OK);
    assert_int_equal(ask(f, "echo", 0, 0, &a, &id), PD_ERR_NOT_FOUND);
    assert_int_equal(unload(f, 0), PD_ERR_NOT_FOUND);
    assert_int_equal(load(f, VERSIONS + 1), PD_ERR_NOT_FOUND);
}

static void no_row(void *ctx, const struct sup_model_info *m)
{
    (void)ctx;
    (void)m;
    fail_msg("a version that is not loaded");
}

static void test_serving_a_version_that_is_not_loaded_is_named(void **state)
{
    static const char *const sentence = "model 'm' has no loaded version 9; loaded: 2, 1; POST "
                                        "/api/v1/models/NAME/versions/N/load loads a version";
    struct fixture *f = *state;
    struct sup_infer req = {.model = "m", .version = 9, .kind = "infer"};
    struct pd_why why;
    uint64_t id;

    assert_int_equal(sup_model_get(f->sup, "m", 9, no_row, NULL, &why), PD_ERR_NOT_FOUND);
    assert_ptr_equal(strstr(why.text, "model 'm' is not loaded; "), why.text);
    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(load(f, 2), PD_OK);
    assert_int_equal(sup_model_get(f->sup, "m", 9, no_row, NULL, &why), PD_ERR_NOT_FOUND);
    assert_string_equal(why.text, sentence);
    assert_int_equal(sup_infer(f->sup, &req, &id, &why), PD_ERR_NOT_FOUND);
    assert_string_equal(why.text, sentence);
}

static void test_serving_failed_load_says_why(void **state)
{
    struct fixture *f = *state;

    setenv("FAKE_SERVE", "refuse", 1);
    assert_int_equal(load(f, 1), PD_ERR_UNSUPPORTED);
    assert_string_equal(last_reason, "the file is broken");
    unsetenv("FAKE_SERVE");
    assert_int_equal(load(f, 1), PD_OK); /* a later try is free to succeed */
}

static void test_serving_cancel_and_deadline(void **state)
{
    struct fixture *f = *state;
    struct answer a;
    uint64_t id;

    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(ask(f, "wait", 0, 0, &a, &id), PD_OK);
    pause_ms(50);
    assert_int_equal(a.over, 0);
    sup_infer_cancel(f->sup, id);
    wait_over(&a);
    assert_int_equal(a.err, PD_ERR_CANCELLED);
    sup_infer_cancel(f->sup, id); /* too late: nothing happens */
    assert_int_equal(ask(f, "wait", 200000, 0, &a, &id), PD_OK);
    wait_over(&a);
    assert_int_equal(a.err, PD_ERR_TIMEOUT);
    wait_ready(f); /* the deadline cancelled it: the worker is free again */
}

static void test_serving_deadline_begins_again_with_each_part(void **state)
{
    struct fixture *f = *state;
    struct answer a;
    uint64_t id;

    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(ask(f, "drip", 500000, 0, &a, &id), PD_OK);
    wait_over(&a);
    assert_int_equal(a.err, PD_OK);
    assert_int_equal(a.parts, 9);
    assert_int_equal(ask(f, "stall", 500000, 0, &a, &id), PD_OK);
    wait_over(&a);
    assert_int_equal(a.err, PD_ERR_TIMEOUT);
    assert_int_equal(a.parts, 4);
    wait_ready(f);
}

static void test_serving_queue_is_bounded(void **state)
{
    struct fixture *f = *state;
    struct answer a[5];
    uint64_t id[5];

    assert_int_equal(load(f, 1), PD_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ask(f, "wait", 0, 0, &a[i], &id[i]), PD_OK);
    assert_int_equal(ask(f, "wait", 0, 0, &a[4], &id[4]), PD_ERR_BUSY);
    for (int i = 0; i < 4; i++)
        sup_infer_cancel(f->sup, id[i]);
    for (int i = 0; i < 4; i++)
        wait_over(&a[i]);
}

#define LARGE (WIRE_PAYLOAD_MAX / 2)

static enum pd_err ask_large(struct fixture *f, const char *json, const void *data, struct answer *a,
                             uint64_t *ret_id)
{
    struct wire_tensor t = {
        .name = "x", .dtype = "UINT8", .rank = 1, .shape = {LARGE}, .data = data, .bytes = LARGE};
    struct sup_infer req = {.model = "m",
                            .kind = "infer",
                            .json = json,
                            .json_len = strlen(json),
                            .tensors = &t,
                            .count = 1,
                            .part = take,
                            .ctx = a};
    struct pd_why why;

    memset(a, 0, sizeof *a);
    return sup_infer(f->sup, &req, ret_id, &why);
}

/* More than a socket takes at once: what has no room waits in the inbox, and is sent or cancelled there. */
static void test_serving_large_requests_wait_for_room(void **state)
{
    struct fixture *f = *state;
    uint8_t *data = calloc(1, LARGE);
    struct answer a[4];
    uint64_t id[4];

    assert_non_null(data);
    assert_int_equal(load(f, 1), PD_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ask_large(f, "echo", data, &a[i], &id[i]), PD_OK);
    for (int i = 0; i < 4; i++) {
        wait_over(&a[i]);
        assert_int_equal(a[i].err, PD_OK);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(ask_large(f, "wait", data, &a[i], &id[i]), PD_OK);
    for (int i = 3; i >= 0; i--)
        sup_infer_cancel(f->sup, id[i]);
    for (int i = 0; i < 4; i++) {
        wait_over(&a[i]);
        assert_int_equal(a[i].err, PD_ERR_CANCELLED);
    }
    free(data);
}

struct asker {
    struct fixture *f;
    pthread_t thread;
    int wrong; /* answers that are neither one echo nor one end after a cancel */
};

static void *ask_often(void *ctx)
{
    struct asker *asker = ctx;

    for (int i = 0; i < 200; i++) {
        bool cancel = i % 5 == 0;
        struct answer a;
        uint64_t id;
        enum pd_err err;

        while ((err = ask(asker->f, "echo", i % 7 ? 0 : 20000000, 0, &a, &id)) == PD_ERR_BUSY)
            pause_ms(1);
        if (err != PD_OK) {
            asker->wrong++;
            break;
        }
        if (cancel)
            sup_infer_cancel(asker->f->sup, id);
        for (int k = 0; k < 20000 && !a.over; k++)
            pause_ms(1);
        if (a.over != 1 || a.parts != 1 || (a.err != PD_OK && !(cancel && a.err == PD_ERR_CANCELLED)))
            asker->wrong++;
    }
    return NULL;
}

static void counts(void *ctx, const struct sup_model_info *m)
{
    int64_t *count = ctx;

    count[0] = m->in_flight;
    count[1] = m->requests;
    count[2] = m->failures;
}

static void test_serving_requests_of_many_threads_are_answered_once(void **state)
{
    struct fixture *f = *state;
    struct asker askers[6] = {0};
    struct pd_why why;
    int64_t count[3];

    assert_int_equal(load(f, 1), PD_OK);
    for (int i = 0; i < 6; i++) {
        askers[i].f = f;
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_often, &askers[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].wrong, 0);
    }
    assert_int_equal(sup_model_get(f->sup, "m", 1, counts, count, &why), PD_OK);
    assert_int_equal(count[0], 0);
    assert_int_equal(count[1], 6 * 200);
    assert_int_equal(count[2], 0);
}

static enum pd_err queue_run(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_job_new job = {.name = "k", .experiment = "e", .document = "{}"};
    struct store_run_new run = {
        .document = "{}", .device = "cpu", .slots = 1, .threads = 1, .total_steps = 2};
    int64_t id;
    enum pd_err err = store_job_insert(tx, &job, &id, why);

    return err == PD_OK ? store_run_insert(tx, id, &run, ctx, why) : err;
}

static bool has_ended(void *ctx, const struct store_run *r)
{
    *(bool *)ctx = r->state == JOB_RUN_ENDED;
    return false;
}

static void restarts(void *ctx, const struct sup_model_info *m)
{
    *(int64_t *)ctx = m->restarts;
}

/* The fake worker leaves no exit status where it cannot train, as if the shim had been killed: what it leaves
 * behind is looked for, and the model's worker is not of it. */
static void test_serving_models_outlive_a_killed_attempt(void **state)
{
    struct fixture *f = *state;
    int64_t run, count = -1;
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = queue_run, .ctx = &run};
    struct store *s;
    struct pd_why why = {""};
    bool ended = false;

    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(store_writer_call(f->w, &work, &why), PD_OK);
    assert_int_equal(store_open_reader(store_writer_path(f->w), &s, &why), PD_OK);
    sup_notify(f->sup);
    for (int i = 0; i < 4000 && !ended; i++) {
        assert_int_equal(store_run_get(s, run, has_ended, &ended, &why), PD_OK);
        pause_ms(5);
    }
    store_close(s);
    assert_true(ended);
    wait_ready(f);
    assert_int_equal(sup_model_get(f->sup, "m", 1, restarts, &count, &why), PD_OK);
    assert_int_equal(count, 0);
}

static void test_serving_crash_fails_the_request_and_restarts(void **state)
{
    struct fixture *f = *state;
    struct answer a, b;
    uint64_t id;

    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(ask(f, "wait", 0, 0, &b, &id), PD_OK);
    assert_int_equal(ask(f, "crash", 0, 0, &a, &id), PD_OK);
    sup_infer_cancel(f->sup, id - 1); /* lets the worker come to the second */
    wait_over(&a);
    wait_over(&b);
    assert_int_equal(a.err, PD_ERR_CLOSED);
    wait_ready(f);
}

static void test_serving_loading_says_try_again(void **state)
{
    struct fixture *f = *state;
    _Atomic int result = -1;
    struct answer a;
    struct pd_why why;
    uint64_t id;
    enum pd_err err = PD_ERR_NOT_FOUND;

    setenv("FAKE_SERVE", "slow", 1);
    assert_int_equal(sup_model_load(f->sup, "m", 1, note, &result, &why), PD_OK);
    for (int i = 0; i < 200 && err == PD_ERR_NOT_FOUND; i++) {
        err = ask(f, "echo", 0, 0, &a, &id);
        pause_ms(1);
    }
    assert_int_equal(err, PD_ERR_CLOSED);
    wait_ready(f);
    assert_int_equal(wait_result(&result), PD_OK);
}

static void test_serving_wanted_models_are_loaded_at_start(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(load(f, 2), PD_OK);
    down(f);
    up(f);
    wait_ready(f);
}

static void version_state(void *ctx, const struct sup_model_info *m)
{
    *(enum sup_model_state *)ctx = m->state;
}

/* A version that is not in the supervisor's list is unavailable. */
static enum sup_model_state state_of(struct fixture *f, int64_t n)
{
    enum sup_model_state at = SUP_MODEL_UNAVAILABLE;
    struct pd_why why;

    return sup_model_get(f->sup, "m", n, version_state, &at, &why) == PD_OK ? at : SUP_MODEL_UNAVAILABLE;
}

/* What the store has when the answer comes. */
struct recorded {
    struct fixture *f;
    int64_t version;
    bool loaded;
    _Atomic int result;
};

static bool recorded_row(void *ctx, const struct store_model_version *v)
{
    ((struct recorded *)ctx)->loaded = v->loaded;
    return true;
}

static void note_recorded(void *ctx, enum pd_err err, const struct pd_why *why)
{
    struct recorded *r = ctx;
    struct store *store;
    struct pd_why none;

    memcpy(last_reason, why->text, sizeof last_reason);
    assert_int_equal(store_open_reader(store_writer_path(r->f->w), &store, &none), PD_OK);
    assert_int_equal(store_model_version_get(store, "m", r->version, recorded_row, r, &none), PD_OK);
    store_close(store);
    atomic_store(&r->result, (int)err);
}

/* A deletion that follows an unload must not find the version loaded. */
static void test_serving_answers_when_the_store_has_it(void **state)
{
    struct fixture *f = *state;
    struct recorded loaded = {.f = f, .version = 1, .result = -1}, gone = loaded, failed = loaded;
    struct pd_why why;

    assert_int_equal(sup_model_load(f->sup, "m", 1, note_recorded, &loaded, &why), PD_OK);
    assert_int_equal(wait_result(&loaded.result), PD_OK);
    assert_true(loaded.loaded);
    gone.loaded = true;
    assert_int_equal(sup_model_unload(f->sup, "m", 1, note_recorded, &gone, &why), PD_OK);
    assert_int_equal(wait_result(&gone.result), PD_OK);
    assert_false(gone.loaded);

    /* wanted, but it cannot be loaded any more after a restart */
    assert_int_equal(load(f, 1), PD_OK);
    down(f);
    setenv("FAKE_SERVE", "refuse", 1);
    up(f);
    for (int i = 0; i < 4000 && state_of(f, 1) != SUP_MODEL_UNAVAILABLE; i++)
        pause_ms(5);
    failed.loaded = true;
    assert_int_equal(sup_model_unload(f->sup, "m", 1, note_recorded, &failed, &why), PD_OK);
    assert_int_equal(wait_result(&failed.result), PD_OK);
    assert_false(failed.loaded);
}

struct gate {
    sem_t entered, open;
};

static enum pd_err hold(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct gate *g = ctx;
    struct timespec limit;

    (void)tx;
    (void)why;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 30; /* a test that fails in between must end */
    sem_post(&g->entered);
    sem_timedwait(&g->open, &limit);
    return PD_OK;
}

/* Nothing is committed until sem_post(&g->open). */
static void hold_writer(struct fixture *f, struct gate *g)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = hold, .ctx = g};
    struct pd_why why;

    sem_init(&g->entered, 0, 0);
    sem_init(&g->open, 0, 0);
    assert_int_equal(store_writer_submit(f->w, &work, &why), PD_OK);
    sem_wait(&g->entered);
}

static void test_serving_answers_each_client_when_the_store_has_it(void **state)
{
    struct fixture *f = *state;
    _Atomic int loads[2] = {-1, -1}, unloads[2] = {-1, -1};
    struct gate gate;
    struct pd_why why;

    hold_writer(f, &gate);
    assert_int_equal(sup_model_load(f->sup, "m", 1, note, &loads[0], &why), PD_OK);
    wait_ready(f);
    assert_int_equal(sup_model_load(f->sup, "m", 1, note, &loads[1], &why), PD_OK);
    assert_int_equal(load(f, 99), PD_ERR_NOT_FOUND); /* both are waiting: this was asked later */
    assert_int_equal(atomic_load(&loads[0]), -1);
    assert_int_equal(atomic_load(&loads[1]), -1);
    sem_post(&gate.open);
    for (int i = 0; i < 2; i++)
        assert_int_equal(wait_result(&loads[i]), PD_OK);

    hold_writer(f, &gate);
    assert_int_equal(sup_model_unload(f->sup, "m", 1, note, &unloads[0], &why), PD_OK);
    for (int i = 0; i < 4000 && state_of(f, 1) != SUP_MODEL_UNAVAILABLE; i++)
        pause_ms(5);
    assert_int_equal(sup_model_unload(f->sup, "m", 1, note, &unloads[1], &why), PD_OK);
    assert_int_equal(unload(f, 99), PD_ERR_NOT_FOUND);
    assert_int_equal(atomic_load(&unloads[0]), -1);
    assert_int_equal(atomic_load(&unloads[1]), -1);
    sem_post(&gate.open);
    for (int i = 0; i < 2; i++)
        assert_int_equal(wait_result(&unloads[i]), PD_OK);
    assert_int_equal(unload(f, 1), PD_ERR_NOT_FOUND);
}

/* A limit on the size of files stands for a full disk. */
static void test_serving_full_disk_is_an_answer_and_the_record_follows(void **state)
{
    struct fixture *f = *state;
    struct rlimit was, limit;
    struct pd_why why;

    assert_int_equal(load(f, 1), PD_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){.rlim_cur = 4096, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_not_equal(load(f, 2), PD_OK); /* its record is the first write that meets the limit */
    assert_non_null(strstr(last_reason, "the version is loaded, but that is recorded only when"));
    assert_int_equal(state_of(f, 2), SUP_MODEL_READY); /* it serves */
    assert_int_not_equal(unload(f, 1), PD_OK);
    assert_non_null(strstr(last_reason, "the version is unloaded, but that is recorded only when"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    for (int i = 0; i < 4000 && store_writer_health(f->w, &why) != PD_OK; i++)
        pause_ms(5);
    down(f);
    up(f);
    wait_ready(f);
    assert_int_equal(state_of(f, 2), SUP_MODEL_READY);
    assert_int_equal(state_of(f, 1), SUP_MODEL_UNAVAILABLE);
}

/* Waits until no version loads; how many are ready. */
static int ready_versions(struct fixture *f)
{
    for (int i = 0; i < 4000; i++) {
        int ready = 0, loading = 0;

        for (int64_t n = 1; n <= VERSIONS; n++) {
            enum sup_model_state at = state_of(f, n);

            ready += at == SUP_MODEL_READY;
            loading += at == SUP_MODEL_LOADING;
        }
        if (!loading)
            return ready;
        pause_ms(5);
    }
    fail_msg("a version loads for ever");
    return 0;
}

/* Files of 300 bytes that need 120: what fits when loaded one after the other fits after a restart, and what does not fit
 * is loaded once there is room. */
static void test_serving_what_fits_is_loaded_again(void **state)
{
    struct fixture *f = *state;

    f->memory = 600;
    down(f);
    up(f);
    setenv("FAKE_SERVE", "needs 120", 1);
    for (int64_t n = 1; n <= VERSIONS; n++)
        assert_int_equal(load(f, n), PD_OK);
    down(f);
    up(f);
    assert_int_equal(ready_versions(f), VERSIONS);
    down(f);
    f->memory = 250;
    up(f);
    assert_int_equal(ready_versions(f), 2);
    for (int64_t n = 1; n <= VERSIONS; n++) {
        enum sup_model_state at = SUP_MODEL_UNAVAILABLE;
        struct pd_why why;

        assert_int_equal(sup_model_get(f->sup, "m", n, version_state, &at, &why), PD_OK);
        if (at != SUP_MODEL_READY)
            continue;
        assert_int_equal(unload(f, n), PD_OK);
        break;
    }
    assert_int_equal(ready_versions(f), 2);
}

static void test_serving_parallel_loads_stay_within_the_limit(void **state)
{
    struct fixture *f = *state;
    _Atomic int result[2] = {-1, -1};
    struct pd_why why;

    f->memory = 1000;
    down(f);
    up(f);
    setenv("FAKE_SERVE", "needs 600", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(sup_model_load(f->sup, "m", i + 1, note, (void *)&result[i], &why), PD_OK);
    for (int i = 0; i < 4000 && (atomic_load(&result[0]) < 0 || atomic_load(&result[1]) < 0); i++)
        pause_ms(5);
    assert_int_equal(atomic_load(&result[0]), PD_OK);
    assert_int_equal(atomic_load(&result[1]), PD_ERR_LIMIT);
    assert_string_equal(last_reason, "the model needs more memory");
}

/* Crashes version 1, and asks at once that it be loaded; the result of that load. */
static int load_after_a_crash(struct fixture *f)
{
    struct answer a;
    uint64_t id;

    assert_int_equal(ask(f, "crash", 0, 1, &a, &id), PD_OK);
    wait_over(&a);
    return load(f, 1);
}

static void test_serving_a_load_during_restarts_ends(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(load(f, 1), PD_OK);
    setenv("FAKE_SERVE", "refuse", 1);
    assert_int_equal(load_after_a_crash(f), PD_ERR_CLOSED);
    assert_string_equal(last_reason, "the file is broken");
    unsetenv("FAKE_SERVE");
    assert_int_equal(load(f, 1), PD_OK);
}

static void why_it_is_not_ready(void *ctx, const struct sup_model_info *m)
{
    snprintf(ctx, 256, "%s", m->state == SUP_MODEL_LOADING ? m->reason : "");
}

/* The other version takes all memory while the first one is restarted. */
static void restarts_of(void *ctx, const struct sup_model_info *m)
{
    *(int64_t *)ctx = m->restarts;
}

static void test_serving_a_load_ends_where_no_worker_can_be_started(void **state)
{
    struct fixture *f = *state;
    int64_t restarts = 0;
    struct answer a;
    struct pd_why why;
    uint64_t id;
    char reason[256] = "";

    f->memory = 600;
    down(f);
    up(f);
    setenv("FAKE_SERVE", "needs 120", 1);
    assert_int_equal(load(f, 1), PD_OK);
    setenv("FAKE_SERVE", "refuse", 1);
    assert_int_equal(ask(f, "crash", 0, 1, &a, &id), PD_OK);
    wait_over(&a);
    for (int i = 0; i < 4000 && restarts < 3; i++) { /* the next one follows in some seconds */
        assert_int_equal(sup_model_get(f->sup, "m", 1, restarts_of, &restarts, &why), PD_OK);
        pause_ms(5);
    }
    setenv("FAKE_SERVE", "needs 600", 1);
    assert_int_equal(load(f, 2), PD_OK);
    assert_int_equal(load(f, 1), PD_ERR_LIMIT);
    assert_non_null(strstr(last_reason, "1 loaded versions use 600 of serve.memory_bytes = 600"));
    assert_int_equal(sup_model_get(f->sup, "m", 1, why_it_is_not_ready, reason, &why), PD_OK);
    assert_non_null(strstr(reason, "serve.memory_bytes"));
    assert_int_equal(unload(f, 2), PD_OK);
    assert_int_equal(load(f, 1), PD_OK); /* long before the next restart */
}

static void test_serving_stop_ends_open_requests(void **state)
{
    struct fixture *f = *state;
    struct answer a;
    uint64_t id;

    assert_int_equal(load(f, 1), PD_OK);
    assert_int_equal(ask(f, "wait", 0, 0, &a, &id), PD_OK);
    down(f);
    assert_int_equal(a.over, 1);
    assert_int_equal(a.err, PD_ERR_CLOSED);
    up(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_serving_load_infer_unload),
        TEST(test_serving_a_version_that_is_not_loaded_is_named),
        TEST(test_serving_failed_load_says_why),
        TEST(test_serving_cancel_and_deadline),
        TEST(test_serving_deadline_begins_again_with_each_part),
        TEST(test_serving_queue_is_bounded),
        TEST(test_serving_large_requests_wait_for_room),
        TEST(test_serving_requests_of_many_threads_are_answered_once),
        TEST(test_serving_models_outlive_a_killed_attempt),
        TEST(test_serving_crash_fails_the_request_and_restarts),
        TEST(test_serving_loading_says_try_again),
        TEST(test_serving_wanted_models_are_loaded_at_start),
        TEST(test_serving_what_fits_is_loaded_again),
        TEST(test_serving_parallel_loads_stay_within_the_limit),
        TEST(test_serving_answers_when_the_store_has_it),
        TEST(test_serving_answers_each_client_when_the_store_has_it),
        TEST(test_serving_full_disk_is_an_answer_and_the_record_follows),
        TEST(test_serving_a_load_during_restarts_ends),
        TEST(test_serving_a_load_ends_where_no_worker_can_be_started),
        TEST(test_serving_stop_ends_open_requests),
    };

    if (!getenv("POLYD_TEST_LOUD"))
        pd_log_set_level(PD_LOG_ERROR);
    return cmocka_run_group_tests_name("serving", tests, NULL, NULL);
}
