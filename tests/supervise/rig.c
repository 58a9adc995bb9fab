#include "tests/supervise/rig.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/store/tx.h"
#include "daemon/polyd/supervise/supervise.h"
#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"

void store_up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK ||
        store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK)
        fail_msg("%s", why.text);
}

void sup_up(struct fixture *f)
{
    struct pd_why why = {""};

    if (sup_start(&f->o, f->w, &f->sup, &why) != PD_OK)
        fail_msg("%s", why.text);
}

void all_down(struct fixture *f)
{
    f->sup = sup_stop(f->sup);
    f->s = store_close(f->s);
    f->w = store_writer_stop(f->w);
}

void set(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

int setup(void **state)
{
    static const char *const names[] = {"STEPS",    "STEP_US",   "EVERY",      "KEYS", "FAIL_AT",
                                        "CRASH_AT", "REFUSE_AT", "DIVERGE_AT", "FORK", "IGNORE"};
    struct fixture *f = calloc(1, sizeof *f);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];

        snprintf(name, sizeof name, "POLYD_SELFTEST_%s", names[i]);
        unsetenv(name);
    }
    strcpy(f->dir, "/tmp/polyd-sup-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->o = (struct sup_options){.state_dir = f->dir,
                                .worker_path =
                                    getenv("POLYD_TEST_WORKER") ? getenv("POLYD_TEST_WORKER") : WORKER_PATH,
                                .train_role = "selftest",
                                .cpu_slots = 2,
                                .cpu_threads = 1,
                                .grace_us = 5000000,
                                .backoff_us = 50000};
    store_up(f);
    sup_up(f);
    *state = f;
    return 0;
}

/* Processes that carry our mark. */
int marked(const struct fixture *f, pid_t *ret_pids, int most)
{
    DIR *proc = opendir("/proc");
    struct dirent *d;
    char wanted[128];
    int n = 0;

    snprintf(wanted, sizeof wanted, "POLYD_MARK=%s:", f->dir);
    while (proc && (d = readdir(proc))) {
        char path[300];
        struct pd_buf text;
        struct pd_why why;

        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/environ", d->d_name);
        pd_buf_init(&text, 0);
        if (pd_file_read(path, 1 << 20, &text, &why) == PD_OK)
            for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1)
                if (!strncmp(text.data + at, wanted, strlen(wanted))) {
                    if (n < most)
                        ret_pids[n] = (pid_t)atol(d->d_name);
                    n++;
                    break;
                }
        pd_buf_done(&text);
    }
    if (proc)
        closedir(proc);
    return n;
}

void pause_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    nanosleep(&pause, NULL);
}

int teardown(void **state)
{
    struct fixture *f = *state;
    char command[160];
    pid_t pids[64];
    int n;

    all_down(f);
    n = marked(f, pids, 64);
    for (int i = 0; i < n && i < 64; i++)
        kill(pids[i], SIGKILL);
    pause_ms(20);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    free(f);
    return 0;
}

/* ---- helpers -------------------------------------------------------------------------------- */

static enum pd_err submit_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {
        .name = "fit", .experiment = "e", .document = "{}", .register_name = ids->register_name};
    char digest[32] = "", plan[64];
    struct store_run_new run = {.document = "{}",
                                .device = "cpu",
                                .slots = ids->slots,
                                .plan_digest = digest,
                                .max_restarts = ids->max_restarts,
                                .total_steps = -1,
                                .time_limit_us = ids->limit_us,
                                .warn_before_us = ids->warn_us};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    if (ids->plan_bytes) {
        snprintf(digest, sizeof digest, "%llx", (long long)ids->plan_bytes);
        snprintf(plan, sizeof plan, "{\"total_bytes\":%lld}", (long long)ids->plan_bytes);
        if (err == PD_OK)
            err = store_plan_put(tx, digest, plan, why);
    }
    return err == PD_OK ? store_run_insert(tx, ids->job, &run, &ids->run, why) : err;
}

enum pd_err call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                 void *ctx)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = apply, .ctx = ctx};
    struct pd_why why;
    enum pd_err err = store_writer_call(f->w, &work, &why);

    if (f->sup)
        sup_notify(f->sup);
    return err;
}

struct ids submit(struct fixture *f, struct ids ids)
{
    ids.slots = ids.slots ? ids.slots : 1;
    assert_int_equal(call(f, submit_apply, &ids), PD_OK);
    return ids;
}

enum pd_err cancel_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_cancel(tx, ((struct ids *)ctx)->job, -1, "asked", why);
}

enum pd_err pause_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_pause(tx, ((struct ids *)ctx)->job, -1, why);
}

enum pd_err resume_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_job_resume(tx, ((struct ids *)ctx)->job, -1, why);
}

char run_reason[512];

static bool keep_run(void *ctx, const struct store_run *r)
{
    *(struct store_run *)ctx = *r;
    snprintf(run_reason, sizeof run_reason, "%s", r->reason);
    return true;
}

struct store_run run_now(struct fixture *f, int64_t id)
{
    struct store_run r = {0};
    struct pd_why why;

    assert_int_equal(store_run_get(f->s, id, keep_run, &r, &why), PD_OK);
    return r;
}

struct store_run await(struct fixture *f, int64_t run, enum job_run_state state, int seconds)
{
    int64_t end_us = pd_clock_mono_us() + seconds * INT64_C(1000000);
    struct store_run r;

    do {
        r = run_now(f, run);
        if (r.state == state)
            return r;
        pause_ms(5);
    } while (pd_clock_mono_us() < end_us);
    fail_msg("run %lld is %s after %d s, not %s (%s)", (long long)run, job_run_state_name(r.state), seconds,
             job_run_state_name(state), run_reason);
    return r;
}

void await_step(struct fixture *f, int64_t run, int64_t step)
{
    int64_t end_us = pd_clock_mono_us() + 120000000;
    struct sup_progress p;

    while (pd_clock_mono_us() < end_us) {
        if (sup_progress_get(f->sup, run, &p) && p.step >= step)
            return;
        pause_ms(5);
    }
    fail_msg("run %lld did not reach step %lld", (long long)run, (long long)step);
}

void await_no_process(struct fixture *f)
{
    int64_t end_us = pd_clock_mono_us() + 10000000;

    while (marked(f, NULL, 0)) {
        if (pd_clock_mono_us() > end_us)
            fail_msg("%d processes are left", marked(f, NULL, 0));
        pause_ms(10);
    }
}

struct series {
    int64_t next, count;
    double a, b;
    bool ok;
};

static double draw(int64_t step)
{
    uint64_t z = (uint64_t)step * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* Every step once, in order, with the value that an undisturbed run has. */
static bool check_point(void *ctx, const struct store_point *p)
{
    struct series *s = ctx;
    double x = draw(s->next), error = s->a * x + s->b - (3.0 * x - 1.0);

    if (p->step != s->next || p->value != error * error)
        s->ok = false;
    s->a -= 0.5 * error * x;
    s->b -= 0.5 * error;
    s->next++;
    s->count++;
    return true;
}

void check_series(struct fixture *f, int64_t run, int64_t steps)
{
    struct store_point_query q = {
        .run_id = run, .key = "loss", .from_step = INT64_MIN, .to_step = INT64_MAX, .attempt = -1};
    struct series s = {.next = 1, .ok = true};
    struct pd_why why;

    assert_int_equal(store_point_list(f->s, &q, check_point, &s, &why), PD_OK);
    if (!s.ok || s.count != steps)
        fail_msg("%lld points of %lld, as an undisturbed run has them: %d", (long long)s.count,
                 (long long)steps, s.ok);
}

int count_attempts;
enum job_cause last_cause;
enum job_attempt_state last_state;
char last_message[512];

static bool note_attempt(void *ctx, const struct store_attempt *a)
{
    (void)ctx;
    count_attempts++;
    last_cause = a->cause;
    last_state = a->state;
    if (a->message && *a->message)
        snprintf(last_message, sizeof last_message, "%s", a->message);
    return true;
}

void look_at_attempts(struct fixture *f, int64_t run)
{
    struct pd_why why;

    count_attempts = 0;
    last_message[0] = '\0';
    assert_int_equal(store_attempt_list(f->s, run, note_attempt, NULL, &why), PD_OK);
}

/* The worker of an attempt: the child of its shim. */
pid_t worker_pid(struct fixture *f, bool shim)
{
    pid_t pids[64];
    int n = marked(f, pids, 64);

    for (int i = 0; i < n; i++) {
        char path[64], text[4096] = "";
        FILE *file;
        size_t len;

        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pids[i]);
        file = fopen(path, "re");
        if (!file)
            continue;
        len = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        if (len > 14 && !strcmp(text + strlen(text) + 1, shim ? "shim" : "train"))
            return pids[i];
    }
    return 0;
}
