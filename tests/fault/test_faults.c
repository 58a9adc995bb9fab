/* One fault each against a real polyd: a second daemon, a newer database, a worker that hangs, a full disk, a
 * damaged checkpoint, children that fork twice, a clock that jumps, allocations that fail. */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "tests/fault/failmalloc.h"
#include "tests/fault/rig.h"
#include "tests/fault/verify.h"
#include "tests/lib/schema4.h"

static struct rig rig;
static bool clock_jumped; /* intervals and event times, which are wall time, then overlap: not checked */

static int setup(void **state)
{
    static const char *const names[] = {"STEPS", "STEP_US", "EVERY", "FORK", "IGNORE", "CRASH_AT", "FAIL_AT"};
    char name[64];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(name, sizeof name, "POLYD_SELFTEST_%s", names[i]);
        unsetenv(name);
    }
    setenv("POLYD_SELFTEST", "1", 1);
    rig_init(&rig, "fault");
    rig.args[0] = "--devices.cpu_slots=2";
    rig.args[1] = "--devices.threads_per_slot=1";
    rig.args[2] = "--worker.grace_s=2";
    return 0;
}

static int teardown(void **state)
{
    struct pd_buf out;
    int bad;

    (void)state;
    rig_stop(&rig, SIGKILL);
    pd_buf_init(&out, 0);
    bad = access(rig.state, F_OK) == 0 && !clock_jumped ? verify_state(rig.state, false, &out) : 0;
    bad += access(rig.state, F_OK) == 0 ? verify_modes(rig.state, &out) : 0;
    if (bad)
        print_message("%s", out.data);
    pd_buf_done(&out);
    clock_jumped = false;
    /* Whatever the test left running belongs to this rig alone. */
    for (int i = 0; i < 100; i++) {
        pid_t pids[64];
        int n = rig_workers(&rig, "train", pids, 32);

        n += rig_workers(&rig, "shim", pids + n, 32);
        if (n == 0)
            break;
        while (n--)
            kill(pids[n], SIGKILL);
        rig_sleep_us(10000);
    }
    rig_done(&rig, bad != 0);
    return bad != 0;
}

static void up(void)
{
    int status = 0;

    if (!rig_start(&rig, &status))
        fail_msg("polyd did not start: status %d, log in %s/polyd.log", status, rig.dir);
}

static int64_t submit(const char *name, const char *more)
{
    struct rig_reply p;
    char body[1024];
    int64_t id;

    snprintf(body, sizeof body,
             "{\"name\":\"%s\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"}%s}",
             name, more);
    rig_http(&rig, "POST", "/api/v1/jobs", NULL, body, &p);
    if (p.status != 201)
        fail_msg("submission: %d %s", p.status, p.body.data ? p.body.data : "");
    id = rig_json_int(p.body.data, "id");
    rig_reply_done(&p);
    return id;
}

/* The job's state, or "" when there is no answer. */
static const char *job_state(int64_t id)
{
    static char state[32];
    struct rig_reply p;
    char path[64];

    snprintf(path, sizeof path, "/api/v1/jobs/%" PRId64, id);
    rig_http(&rig, "GET", path, NULL, NULL, &p);
    if (p.status != 200 || !rig_json_text(p.body.data, "state", state, sizeof state))
        state[0] = 0;
    rig_reply_done(&p);
    return state;
}

static bool wait_state(int64_t id, const char *wanted, int timeout_ms)
{
    for (int waited = 0; waited < timeout_ms; waited += 20) {
        if (strcmp(job_state(id), wanted) == 0)
            return true;
        rig_sleep_us(20000);
    }
    print_message("job %" PRId64 " is '%s', not '%s'\n", id, job_state(id), wanted);
    return false;
}

static int64_t ask(const char *sql)
{
    sqlite3_stmt *st = NULL;
    sqlite3 *db = NULL;
    char path[128];
    int64_t value = -1;

    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(db, 5000);
        if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW)
            value = sqlite3_column_int64(st, 0);
    }
    sqlite3_finalize(st);
    sqlite3_close(db);
    return value;
}

/* ---- the daemon itself ---- */

static void test_second_daemon_on_the_directory_is_refused(void **state)
{
    struct rig other;
    int status = 0;

    (void)state;
    up();
    other = rig;
    other.port = (uint16_t)(rig.port == 65535 ? rig.port - 1 : rig.port + 1);
    assert_false(rig_start(&other, &status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_true(wait_state(submit("after", ",\"train\":{\"steps\":5}"), "done", 20000));
}

static void test_newer_database_is_refused_and_left_alone(void **state)
{
    char path[128], command[256];
    int status = 0;
    int64_t version;
    sqlite3 *db = NULL;

    (void)state;
    up();
    submit("before", ",\"train\":{\"steps\":1}");
    assert_int_equal(rig_stop(&rig, SIGTERM), 0);
    version = ask("PRAGMA user_version");
    assert_true(version >= 1);
    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    snprintf(command, sizeof command, "PRAGMA user_version = %" PRId64, version + 1);
    assert_int_equal(sqlite3_exec(db, command, NULL, NULL, NULL), SQLITE_OK);
    assert_false(rig_start(&rig, &status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    assert_int_equal(ask("SELECT count(*) FROM job"), 1);
    snprintf(command, sizeof command, "PRAGMA user_version = %" PRId64, version);
    assert_int_equal(sqlite3_exec(db, command, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    up();
}

/* SIGTERM ends the daemon, not the runs; a new daemon adopts them and the run is one attempt. */
static void test_runs_outlive_a_restart(void **state)
{
    int64_t id;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "300", 1);
    setenv("POLYD_SELFTEST_STEP_US", "5000", 1);
    up();
    id = submit("outlives", ",\"train\":{\"steps\":300}");
    assert_true(wait_state(id, "running", 10000));
    rig_sleep_us(200000);
    assert_int_equal(rig_stop(&rig, SIGTERM), 0);
    rig_sleep_us(100000);
    up();
    assert_true(wait_state(id, "done", 30000));
    assert_int_equal(ask("SELECT count(*) FROM attempt"), 1);
    assert_int_equal(rig_check_points(&rig, 300), 0);
}

static void run_sql(const char *sql)
{
    char path[128], *error = NULL;
    sqlite3 *db = NULL;

    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error);
    sqlite3_close(db);
}

/* A folder of schema 4 whose worker is at work while polyd is replaced by this one. */
static void test_old_folder_with_a_running_attempt_is_upgraded(void **state)
{
    char sql[2048], path[160];
    int64_t id;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "600", 1);
    setenv("POLYD_SELFTEST_STEP_US", "5000", 1);
    up();
    id = submit("upgraded", ",\"train\":{\"steps\":600}");
    for (int i = 0; i < 1000 && ask("SELECT count(*) FROM checkpoint") < 2; i++)
        rig_sleep_us(10000);
    rig_stop(&rig, SIGKILL);
    snprintf(sql, sizeof sql, SCHEMA4_SQL, rig.state);
    run_sql(sql);
    snprintf(path, sizeof path, "%s/store-id", rig.state);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/runs/1/run-id", rig.state);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ask("SELECT count(*) FROM checkpoint WHERE path NOT LIKE '/%'"), 0);
    up();
    assert_int_equal(ask("SELECT count(*) FROM checkpoint WHERE path LIKE '/%'"), 0);
    assert_true(wait_state(id, "done", 60000));
    assert_int_equal(ask("SELECT count(*) FROM attempt"), 1);
    assert_int_equal(rig_check_points(&rig, 600), 0);
    snprintf(path, sizeof path, "%s/store-id", rig.state);
    assert_int_equal(access(path, F_OK), 0);
}

/* The state folder is moved while nothing runs: the run goes on from its checkpoint in the new place. */
static void test_state_folder_may_be_moved(void **state)
{
    char old[sizeof rig.state];
    int64_t id;
    pid_t pid;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "600", 1);
    setenv("POLYD_SELFTEST_STEP_US", "5000", 1);
    up();
    id = submit("moved", ",\"train\":{\"steps\":600}");
    for (int i = 0; i < 1000 && ask("SELECT count(*) FROM checkpoint") < 2; i++)
        rig_sleep_us(10000);
    assert_int_equal(rig_workers(&rig, "train", &pid, 1), 1);
    rig_stop(&rig, SIGKILL);
    kill(pid, SIGKILL);
    assert_true(rig_wait_alone(&rig, 10000));
    strcpy(old, rig.state);
    snprintf(rig.state, sizeof rig.state, "%.60s/moved", rig.dir);
    assert_int_equal(rename(old, rig.state), 0);
    setenv("POLYD_SELFTEST_STEP_US", "100", 1);
    up();
    assert_true(wait_state(id, "done", 60000));
    assert_true(ask("SELECT start_step FROM attempt WHERE n = 2") >= 40);
    assert_int_equal(rig_check_points(&rig, 600), 0);
}

/* ---- workers ---- */

static void test_worker_that_crashes_is_begun_again_from_its_checkpoint(void **state)
{
    int64_t id;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "100", 1);
    setenv("POLYD_SELFTEST_EVERY", "10", 1);
    setenv("POLYD_SELFTEST_CRASH_AT", "55", 1);
    up();
    id = submit("crash", ",\"train\":{\"steps\":100}");
    assert_true(wait_state(id, "done", 30000));
    assert_int_equal(ask("SELECT count(*) FROM attempt"), 2);
    assert_int_equal(ask("SELECT start_step FROM attempt WHERE n = 2"), 50);
    assert_int_equal(rig_check_points(&rig, 100), 0);
}

static void test_worker_that_hangs_is_killed_and_begun_again(void **state)
{
    pid_t pid;
    int64_t id, from;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "400", 1);
    setenv("POLYD_SELFTEST_STEP_US", "5000", 1);
    setenv("POLYD_SELFTEST_HANG_MS", "3000", 1);
    up();
    unsetenv("POLYD_SELFTEST_HANG_MS");
    id = submit("hang", ",\"train\":{\"steps\":400}");
    assert_true(wait_state(id, "running", 10000));
    rig_sleep_us(300000);
    assert_int_equal(rig_workers(&rig, "train", &pid, 1), 1);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    from = pd_clock_mono_us();
    assert_true(wait_state(id, "done", 60000));
    print_message("hang: done %.1f s after the stop\n", (double)(pd_clock_mono_us() - from) / 1e6);
    assert_int_equal(ask("SELECT count(*) FROM attempt"), 2);
    assert_int_equal(rig_check_points(&rig, 400), 0);
    assert_int_equal(kill(pid, 0), -1);
}

static void test_children_that_forked_twice_die_with_the_run(void **state)
{
    int64_t done, cancelled;

    (void)state;
    setenv("POLYD_SELFTEST_FORK", "1", 1);
    setenv("POLYD_SELFTEST_STEPS", "20", 1);
    up();
    done = submit("strays", ",\"train\":{\"steps\":20}");
    assert_true(wait_state(done, "done", 20000));
    assert_true(rig_wait_alone(&rig, 10000));
    assert_int_equal(rig_stop(&rig, SIGTERM), 0);
    /* Also when the run does not want to end and must be killed, and when the shim itself is. */
    setenv("POLYD_SELFTEST_IGNORE", "1", 1);
    setenv("POLYD_SELFTEST_STEPS", "100000", 1);
    up();
    cancelled = submit("stubborn", ",\"train\":{\"steps\":100000}");
    assert_true(wait_state(cancelled, "running", 10000));
    {
        struct rig_reply p;
        char path[64];

        snprintf(path, sizeof path, "/api/v1/jobs/%" PRId64 "/cancel", cancelled);
        rig_http(&rig, "POST", path, NULL, "{}", &p);
        assert_int_equal(p.status, 200);
        rig_reply_done(&p);
    }
    assert_true(wait_state(cancelled, "cancelled", 20000));
    assert_true(rig_wait_alone(&rig, 10000));
    unsetenv("POLYD_SELFTEST_IGNORE");
}

static void test_killed_shim_leaves_no_stray(void **state)
{
    pid_t pid;
    int64_t id;

    (void)state;
    setenv("POLYD_SELFTEST_FORK", "1", 1);
    setenv("POLYD_SELFTEST_STEPS", "300", 1);
    setenv("POLYD_SELFTEST_STEP_US", "10000", 1);
    up();
    id = submit("shim", ",\"train\":{\"steps\":300}");
    assert_true(wait_state(id, "running", 10000));
    rig_sleep_us(100000);
    assert_int_equal(rig_workers(&rig, "shim", &pid, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_true(wait_state(id, "done", 30000));
    assert_true(rig_wait_alone(&rig, 10000));
    assert_int_equal(rig_check_points(&rig, 300), 0);
}

/* A real training run: the newest checkpoint is damaged while nobody runs; the next attempt says so and goes
 * on from the one before. */
static void test_damaged_checkpoint_falls_back(void **state)
{
    int64_t id;
    char path[512] = "";
    sqlite3_stmt *st = NULL;
    sqlite3 *db = NULL;
    pid_t pid;
    int fd;

    (void)state;
    unsetenv("POLYD_SELFTEST");
    up();
    id = submit(
        "damaged",
        ",\"train\":{\"steps\":400,\"batch\":8,\"checkpoint_every\":{\"steps\":10},\"keep\":{\"latest\":3}},"
        "\"resources\":{\"device\":\"cpu\",\"threads\":1}");
    for (int i = 0; i < 1500 && rig_workers(&rig, "train", &pid, 1) != 1; i++)
        rig_sleep_us(20000);
    assert_int_equal(rig_workers(&rig, "train", &pid, 1), 1);
    for (int i = 0; i < 1500 && ask("SELECT count(*) FROM checkpoint WHERE deleted_us = 0") < 2; i++)
        rig_sleep_us(20000);
    assert_true(ask("SELECT count(*) FROM checkpoint WHERE deleted_us = 0") >= 2);
    /* Daemon first, then the worker: the run rests while its file is damaged. */
    rig_stop(&rig, SIGKILL);
    assert_int_equal(kill(pid, SIGKILL), 0);
    snprintf(path, sizeof path, "%s/polyd.db", rig.state);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(
            db, "SELECT path FROM checkpoint WHERE deleted_us = 0 ORDER BY step DESC, id DESC LIMIT 1", -1,
            &st, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    snprintf(path, sizeof path, "%s/%s", rig.state, (const char *)sqlite3_column_text(st, 0));
    sqlite3_finalize(st);
    sqlite3_close(db);
    fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\xff\xff\xff\xff", 4, 20000), 4);
    close(fd);
    up();
    assert_true(wait_state(id, "done", 120000));
    assert_true(ask("SELECT count(*) FROM event WHERE kind LIKE '%checkpoint_fallback%' OR data LIKE "
                    "'%checkpoint_fallback%'") >= 1);
    /* The damaged file is of a step that the run reached again and wrote anew, or is no longer referred to:
     * the check of all checkpoints by digest at the end of the test sees to that. */
}

/* ---- disk ---- */

/* No file may grow any more, as on a full disk: writes are refused and said to be, the daemon lives, and when
 * there is room again it goes on by itself. */
static void test_full_disk_refuses_writes_and_recovers(void **state)
{
    struct rlimit full = {.rlim_max = RLIM_INFINITY}, roomy = {RLIM_INFINITY, RLIM_INFINITY};
    struct rig_reply p;
    struct stat st;
    char path[128], body[256];
    int status, refused = 0;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "5", 1);
    up();
    submit("first", ",\"train\":{\"steps\":5}");
    snprintf(path, sizeof path, "%s/polyd.db-wal", rig.state);
    assert_int_equal(stat(path, &st), 0);
    full.rlim_cur = (rlim_t)st.st_size;
    assert_int_equal(prlimit(rig.pid, RLIMIT_FSIZE, &full, NULL), 0);
    for (int i = 0; i < 2000 && !refused; i++) {
        snprintf(body, sizeof body,
                 "{\"name\":\"full-%d\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_"
                 "gen\"},"
                 "\"train\":{\"steps\":5}}",
                 i);
        rig_http(&rig, "POST", "/api/v1/jobs", NULL, body, &p);
        refused = p.status != 201;
        if (refused)
            print_message("full disk after %d submissions: %d %s\n", i, p.status,
                          p.body.data ? p.body.data : "");
        status = p.status;
        rig_reply_done(&p);
    }
    assert_true(refused);
    assert_true(status == 507 || status == 503);
    assert_int_equal(waitpid(rig.pid, &status, WNOHANG), 0);
    rig_http(&rig, "GET", "/readyz", NULL, NULL, &p);
    assert_int_equal(p.status, 503);
    rig_reply_done(&p);
    rig_http(&rig, "GET", "/api/v1/jobs", NULL, NULL, &p);
    assert_int_equal(p.status, 200); /* reading goes on */
    rig_reply_done(&p);
    assert_int_equal(prlimit(rig.pid, RLIMIT_FSIZE, &roomy, NULL), 0);
    for (int i = 0; i < 500; i++) {
        rig_http(&rig, "GET", "/readyz", NULL, NULL, &p);
        status = p.status;
        rig_reply_done(&p);
        if (status == 200)
            break;
        rig_sleep_us(20000);
    }
    assert_int_equal(status, 200);
    submit("after", ",\"train\":{\"steps\":5}");
}

/* ---- time ---- */

/* The wall clock an hour forward, an hour back, and back again while a run goes on: deadlines are on the
 * other clock. */
static void test_wall_clock_that_jumps(void **state)
{
    static const char *const libraries[] = {"/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
                                            "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"};
    static const char *const jumps[] = {"+3600\n", "-3600\n", "+0\n"};
    char path[128];
    int64_t id, last = 0, from = pd_clock_mono_us();

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer must be loaded first in this build\n");
    skip();
#endif
    for (size_t i = 0; i < 2 && !rig.preload; i++)
        rig.preload = access(libraries[i], R_OK) == 0 ? libraries[i] : NULL;
    if (!rig.preload) {
        print_message("skipped: libfaketime is not installed\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/clock", rig.dir);
    assert_int_equal(pd_file_replace(path, "+0\n", 3, 0600, NULL), PD_OK);
    setenv("FAKETIME_TIMESTAMP_FILE", path, 1);
    setenv("FAKETIME_NO_CACHE", "1", 1);
    setenv("DONT_FAKE_MONOTONIC", "1", 1);
    setenv("FAKETIME_FORCE_MONOTONIC_FIX", "0", 1); /* its workaround breaks waits on the monotonic clock */
    setenv("POLYD_SELFTEST_STEPS", "400", 1);
    setenv("POLYD_SELFTEST_STEP_US", "5000", 1);
    clock_jumped = true;
    up();
    unsetenv("FAKETIME_TIMESTAMP_FILE");
    unsetenv("FAKETIME_NO_CACHE");
    unsetenv("DONT_FAKE_MONOTONIC");
    unsetenv("FAKETIME_FORCE_MONOTONIC_FIX");
    id = submit("jumps", ",\"train\":{\"steps\":400},\"resources\":{\"time_limit_s\":600}");
    assert_true(wait_state(id, "running", 10000));
    for (size_t i = 0; i < 3; i++) {
        int64_t next;

        rig_sleep_us(400000);
        assert_int_equal(pd_file_replace(path, jumps[i], strlen(jumps[i]), 0600, NULL), PD_OK);
        rig_sleep_us(100000);
        next = submit("during", ",\"train\":{\"steps\":400}");
        assert_true(next > last);
        last = next;
    }
    assert_true(wait_state(id, "done", 30000));
    assert_int_equal(ask("SELECT count(*) FROM attempt WHERE run_id = 1"), 1);
    assert_true(pd_clock_mono_us() - from < 60000000);
    assert_int_equal(rig_check_points(&rig, 400), 0);
}

/* ---- memory ---- */

struct request {
    const char *method, *path, *body;
    int status;
};

/* In each kind of request the n-th allocation fails: an error or the right answer, never the end of the
 * daemon; and the next request finds it well. */
static void test_failing_allocations_do_not_end_the_daemon(void **state)
{
    static const struct request requests[] = {
        {"GET", "/api/v1/jobs?limit=10", NULL, 200},
        {"GET", "/api/v1/jobs/1", NULL, 200},
        {"GET", "/api/v1/runs?limit=10", NULL, 200},
        {"GET", "/api/v1/runs/1/metrics", NULL, 200},
        {"GET", "/api/v1/runs/1/series?key=loss", NULL, 200},
        {"GET", "/api/v1/jobs/1/sweep?runs=1&metric=loss&metric=a", NULL, 200},
        {"GET", "/api/v1/jobs/1/sweep/curves?key=loss", NULL, 200},
        {"GET", "/api/v1/jobs/1/sweep/export?what=curves&key=loss", NULL, 200},
        {"GET", "/api/v1/compare?run=1&run=2", NULL, 200},
        {"GET", "/api/v1/compare/series?run=1&run=2&key=loss", NULL, 200},
        {"GET", "/api/v1/aggregate?by=field:/train/seed&metric=loss", NULL, 200},
        {"GET", "/api/v1/groups", NULL, 200},
        {"GET", "/api/v1/devices", NULL, 200},
        {"GET", "/api/v1/config", NULL, 200},
        {"GET", "/metrics", NULL, 200},
        {"GET", "/openapi.json", NULL, 200},
        {"POST", "/api/v1/runs/1/metrics", "{\"points\":[{\"key\":\"m\",\"step\":1,\"value\":2,\"time\":5}]}",
         200},
        {"POST", "/api/v1/jobs",
         "{\"name\":\"m\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},"
         "\"train\":{\"steps\":1}}",
         201},
        {"POST", "/v2/models/none/infer",
         "{\"inputs\":[{\"name\":\"a\",\"shape\":[1],\"datatype\":\"FP32\",\"data\":[1]}]}", 404},
        {"POST", "/v1/completions", "{\"model\":\"none\",\"prompt\":\"a\"}", 404},
    };
    char path[128], library[600], *slash;
    struct failmalloc zero = {0}, *page;
    long total = 0;
    int fd, status;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: a sanitizer owns malloc in this build\n");
    skip();
#endif
    snprintf(library, sizeof library - 32, "%s", rig.polyd);
    slash = strrchr(library, '/');
    strcpy(slash, "/libfailmalloc.so");
    snprintf(path, sizeof path, "%s/malloc", rig.dir);
    assert_int_equal(pd_file_replace(path, &zero, sizeof zero, 0600, NULL), PD_OK);
    fd = open(path, O_RDWR | O_CLOEXEC);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    assert_true(page != MAP_FAILED);
    setenv("POLYD_FAILMALLOC", path, 1);
    setenv("POLYD_SELFTEST_STEPS", "5", 1);
    rig.preload = library;
    up();
    unsetenv("POLYD_FAILMALLOC");
    assert_true(
        wait_state(submit("one", ",\"train\":{\"steps\":5},\"trials\":2,\"sweep\":{\"axes\":[{\"pointer\":"
                                 "\"/train/optimizer/lr\",\"values\":[0.1,0.2]}]}"),
                   "done", 40000));
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        const struct request *q = &requests[i];
        bool untouched = false;
        struct rig_reply p;
        long n = 1, hits = 0;

        rig_http(&rig, q->method, q->path, NULL, q->body, &p);
        if (p.status != q->status)
            fail_msg("%s %s: %d %s", q->method, q->path, p.status, p.body.data ? p.body.data : "");
        rig_reply_done(&p);
        /* Every one of the first hundred, then ever fewer: what lies far in is repetition. */
        for (; !untouched && n < 20000; n += 1 + n / 100) {
            atomic_store(&page->failed, 0);
            atomic_store(&page->left, n);
            atomic_store(&page->armed, 1);
            rig_http(&rig, q->method, q->path, NULL, q->body, &p);
            atomic_store(&page->armed, 0);
            untouched = atomic_load(&page->failed) == 0;
            hits += !untouched;
            if (untouched && p.status != q->status)
                fail_msg("%s %s: %d although nothing failed", q->method, q->path, p.status);
            rig_reply_done(&p);
            if (waitpid(rig.pid, &status, WNOHANG) == rig.pid) {
                rig.pid = 0;
                fail_msg("%s %s: the daemon died of allocation %ld (status %d)", q->method, q->path, n,
                         status);
            }
        }
        total += hits;
        rig_http(&rig, q->method, q->path, NULL, q->body, &p);
        if (p.status != q->status)
            fail_msg("%s %s: %d after failures that have ended", q->method, q->path, p.status);
        rig_reply_done(&p);
    }
    munmap(page, sizeof *page);
    print_message("%ld allocations failed in turn\n", total);
    assert_true(total > 100);
    rig.preload = NULL;
}

/* ---- a sweep that is expanded bit by bit ---- */

#define SWEEP_POINTS 1500

/* Kills while the rows are being made: in the end each combination is there once, with the seed and number of
 * its trial. */
static void test_kills_while_a_sweep_expands_lose_and_double_no_run(void **state)
{
    struct rig_reply p;
    char sql[256], path[64];
    int64_t job, made = 0;
    int kills = 0;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "1000000", 1);
    setenv("POLYD_SELFTEST_STEP_US", "50000", 1);
    up();
    job = submit("sweep",
                 ",\"trials\":2,\"train\":{\"steps\":10,\"seed\":7},\"sweep\":{\"concurrency\":1,\"axes\":["
                 "{\"pointer\":\"/train/optimizer/lr\",\"log\":[0.0001,0.1,750]}]}");
    snprintf(path, sizeof path, "/api/v1/jobs/%" PRId64, job);
    for (int i = 0; i < 3000 && made < SWEEP_POINTS; i++) { /* two minutes: a sanitizer is slow */
        rig_sleep_us(40000);
        rig_http(&rig, "GET", path, NULL, NULL, &p);
        if (p.status == 200)
            made = rig_json_int(p.body.data, "made");
        rig_reply_done(&p);
        if (kills < 8 && made > kills * SWEEP_POINTS / 10 + 32 && made < SWEEP_POINTS) {
            rig_stop(&rig, SIGKILL);
            kills++;
            up();
        }
    }
    assert_int_equal(made, SWEEP_POINTS);
    print_message("%d kills while %d runs were made\n", kills, SWEEP_POINTS);
    assert_true(kills >= 3);
    rig_http(&rig, "POST", strcat(path, "/cancel"), NULL, "{}", &p);
    assert_int_equal(p.status, 200);
    rig_reply_done(&p);
    assert_true(wait_state(job, "cancelled", 20000));
    assert_int_equal(rig_stop(&rig, SIGTERM), 0);
    assert_int_equal(ask("SELECT count(*) FROM run"), SWEEP_POINTS);
    assert_int_equal(ask("SELECT count(DISTINCT n) FROM run WHERE n BETWEEN 0 AND 1499"), SWEEP_POINTS);
    assert_int_equal(
        ask("SELECT count(*) FROM run WHERE point = n / 2 AND trial = n % 2 AND seed = 7 + trial"),
        SWEEP_POINTS);
    assert_int_equal(ask("SELECT count(DISTINCT config_digest) FROM run"), SWEEP_POINTS);
    snprintf(sql, sizeof sql, "SELECT count(*) FROM job WHERE runs = %d AND planned = %d", SWEEP_POINTS,
             SWEEP_POINTS);
    assert_int_equal(ask(sql), 1);
}

/* A harness that a time-out kills must leave nobody behind, though its workers outlive daemons. */
static void test_a_killed_harness_leaves_no_process(void **state)
{
    struct rig other;
    pid_t pids[8], child;
    int ends[2], n = 1;

    (void)state;
    setenv("POLYD_SELFTEST_STEPS", "1000000", 1);
    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        rig_init(&rig, "orphan");
        rig.args[0] = "--devices.cpu_slots=1";
        rig.args[1] = NULL;
        if (!rig_start(&rig, NULL)) {
            fprintf(stderr, "orphan: polyd did not start, see %s\n", rig.dir);
            _exit(2);
        }
        submit("orphan", ",\"train\":{\"steps\":10}");
        for (int i = 0; i < 400 && rig_workers(&rig, "train", pids, 8) == 0; i++)
            rig_sleep_us(20000);
        if (write(ends[1], &rig, sizeof rig) != (ssize_t)sizeof rig)
            _exit(3);
        pause();
        _exit(4);
    }
    close(ends[1]); /* if the child fails, the read must end */
    assert_int_equal(read(ends[0], &other, sizeof other), (ssize_t)sizeof other);
    assert_true(rig_workers(&other, "train", pids, 8) > 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 500 && n; i++) {
        rig_sleep_us(20000);
        n = rig_workers(&other, "train", pids, 8) + rig_workers(&other, "shim", pids, 8);
    }
    assert_int_equal(n, 0);
    for (int i = 0; i < 500 && kill(other.pid, 0) == 0; i++)
        rig_sleep_us(20000);
    assert_int_not_equal(kill(other.pid, 0), 0);
    other.pid = 0;
    other.guard = 0;
    rig_done(&other, false);
    close(ends[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_second_daemon_on_the_directory_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_newer_database_is_refused_and_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_runs_outlive_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_folder_with_a_running_attempt_is_upgraded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_state_folder_may_be_moved, setup, teardown),
        cmocka_unit_test_setup_teardown(test_worker_that_crashes_is_begun_again_from_its_checkpoint, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_worker_that_hangs_is_killed_and_begun_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_children_that_forked_twice_die_with_the_run, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_shim_leaves_no_stray, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_checkpoint_falls_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk_refuses_writes_and_recovers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wall_clock_that_jumps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_kills_while_a_sweep_expands_lose_and_double_no_run, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_killed_harness_leaves_no_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failing_allocations_do_not_end_the_daemon, setup, teardown),
    };

    if (argc > 1) /* a pattern, for one test alone */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
