#include "tests/supervise/gpu_rig.h"

#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "daemon/polyd/store/verify.h"
#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"

void up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK ||
        store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK ||
        sup_start(&f->o, f->w, &f->sup, &why) != PD_OK)
        fail_msg("%s", why.text);
}

void down(struct fixture *f)
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
    struct fixture *f = calloc(1, sizeof *f);

    unsetenv("POLYD_SELFTEST_FAIL_AT");
    set("POLYD_SELFTEST_STEPS", 1000000);
    set("POLYD_SELFTEST_STEP_US", 2000);
    strcpy(f->dir, "/tmp/polyd-gpu-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    f->o = (struct sup_options){.state_dir = f->dir,
                                .worker_path = WORKER_PATH,
                                .train_role = "selftest",
                                .cpu_slots = 2,
                                .cpu_threads = 1,
                                .gpus = "all",
                                .nvml = FAKE_NVML,
                                .gpu_sample_us = 20000,
                                .grace_us = 5000000,
                                .backoff_us = 50000};
    *state = f;
    return 0;
}

/* Processes that carry our mark; the variable of the first whose mark begins with `what`. */
int marked(const struct fixture *f, const char *what, const char *variable, char *out, size_t size)
{
    DIR *proc = opendir("/proc");
    struct dirent *d;
    char wanted[192];
    int n = 0;

    snprintf(wanted, sizeof wanted, "POLYD_MARK=%s:%s", f->dir, what);
    while (proc && (d = readdir(proc))) {
        char path[300], value[256] = "(unset)";
        struct pd_buf text;
        struct pd_why why;
        bool ours = false;

        if (d->d_name[0] < '1' || d->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/environ", d->d_name);
        pd_buf_init(&text, 0);
        if (pd_file_read(path, 1 << 20, &text, &why) == PD_OK)
            for (size_t at = 0; at < text.len; at += strlen(text.data + at) + 1) {
                ours = ours || !strncmp(text.data + at, wanted, strlen(wanted));
                if (variable && !strncmp(text.data + at, variable, strlen(variable)))
                    snprintf(value, sizeof value, "%s", text.data + at + strlen(variable));
            }
        pd_buf_done(&text);
        if (ours && !n++ && out)
            snprintf(out, size, "%s", value);
    }
    if (proc)
        closedir(proc);
    return n;
}

void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void complain(void *ctx, const char *text)
{
    (void)ctx;
    print_message("verify: %s\n", text);
}

int teardown(void **state)
{
    struct fixture *f = *state;
    char command[160];
    int64_t problems = 0;
    struct pd_why why = {""};

    f->o.drain_on_stop = true;
    if (f->sup)
        down(f);
    up(f); /* with drain_on_stop: what still works leaves */
    down(f);
    for (int i = 0; i < 1000 && marked(f, "", NULL, NULL, 0); i++)
        pause_ms(10);
    assert_int_equal(store_verify(f->dir, true, complain, NULL, &problems, &why), PD_OK);
    assert_int_equal(problems, 0);
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    assert_int_equal(system(command), 0);
    machine_end();
    free(f);
    return 0;
}

/* ---- helpers -------------------------------------------------------------------------------- */

struct ids {
    int64_t job, run;
    const char *device;
    int slots, max_restarts;
};

static enum pd_err submit_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct ids *ids = ctx;
    struct store_job_new job = {.name = "fit", .experiment = "e", .document = "{}"};
    struct store_run_new run = {.document = "{}",
                                .device = ids->device,
                                .slots = ids->slots,
                                .max_restarts = ids->max_restarts,
                                .total_steps = -1};
    enum pd_err err = store_job_insert(tx, &job, &ids->job, why);

    return err == PD_OK ? store_run_insert(tx, ids->job, &run, &ids->run, why) : err;
}

void call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *), void *ctx)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = apply, .ctx = ctx};
    struct pd_why why;

    assert_int_equal(store_writer_call(f->w, &work, &why), PD_OK);
    sup_notify(f->sup);
}

int64_t submit(struct fixture *f, const char *device, int slots)
{
    struct ids ids = {.device = device, .slots = slots};

    call(f, submit_apply, &ids);
    return ids.run;
}

enum pd_err cancel_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_cancel(tx, *(int64_t *)ctx, -1, "asked", why);
}

enum pd_err undrain_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_drain d = {.device = ctx, .name = "it", .reason = "mended", .who = "test"};

    return store_device_undrain(tx, &d, why);
}

enum pd_err drain_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_drain d = {.device = ctx, .name = "it", .reason = "a fan is loud", .who = "test"};

    return store_device_drain(tx, &d, why);
}

char run_reason[512];

static bool keep_run(void *ctx, const struct store_run *r)
{
    *(struct store_run *)ctx = *r;
    snprintf(run_reason, sizeof run_reason, "%s", r->reason);
    return true;
}

struct store_run await(struct fixture *f, int64_t run, enum job_run_state state)
{
    int64_t end_us = pd_clock_mono_us() + 60000000;
    struct store_run r = {0};
    struct pd_why why;

    do {
        assert_int_equal(store_run_get(f->s, run, keep_run, &r, &why), PD_OK);
        if (r.state == state)
            return r;
        pause_ms(5);
    } while (pd_clock_mono_us() < end_us);
    fail_msg("run %lld is %s, not %s (%s)", (long long)run, job_run_state_name(r.state),
             job_run_state_name(state), run_reason);
    return r;
}

void cancel(struct fixture *f, int64_t run)
{
    call(f, cancel_apply, &run);
    await(f, run, JOB_RUN_ENDED);
}

char attempt_devices[4096], attempt_message[512];
int attempt_n;
enum job_cause attempt_cause;

static bool keep_attempt(void *ctx, const struct store_attempt *a)
{
    (void)ctx;
    snprintf(attempt_devices, sizeof attempt_devices, "%s", a->devices);
    snprintf(attempt_message, sizeof attempt_message, "%s", a->message);
    attempt_n = a->n;
    attempt_cause = a->cause;
    return false; /* the newest comes last or first: asked for by number below */
}

struct wanted_attempt {
    int n;
};

static bool attempt_of(void *ctx, const struct store_attempt *a)
{
    const struct wanted_attempt *w = ctx;

    if (a->n == w->n)
        keep_attempt(NULL, a);
    return true;
}

const char *devices_of(struct fixture *f, int64_t run, int n)
{
    struct wanted_attempt w = {.n = n};
    struct pd_why why;

    attempt_devices[0] = attempt_message[0] = '\0';
    assert_int_equal(store_attempt_list(f->s, run, attempt_of, &w, &why), PD_OK);
    return attempt_devices;
}

struct look {
    const char *name;
    struct sup_device d;
    int count;
};

static void look_row(void *ctx, const struct sup_device *d)
{
    struct look *l = ctx;

    l->count++;
    if (!strcmp(l->name, d->name))
        l->d = *d;
}

struct sup_device device(struct fixture *f, const char *name)
{
    struct look l = {.name = name};

    sup_device_list(f->sup, look_row, &l);
    if (!l.d.name[0])
        fail_msg("there is no %s among %d devices", name, l.count);
    return l.d;
}

void await_state(struct fixture *f, const char *name, const char *state)
{
    struct sup_device d = {0};

    for (int i = 0; i < 3000; i++) {
        d = device(f, name);
        if (!strcmp(d.state, state))
            return;
        pause_ms(5);
    }
    fail_msg("%s is %s (%s), not %s", name, d.state, d.reason, state);
}

void await_reason(struct fixture *f, int64_t run, const char *reason)
{
    struct sup_queue_info info = {0};

    for (int i = 0; i < 3000; i++) {
        if (sup_queue_get(f->sup, run, &info) && strstr(info.reason, reason))
            return;
        pause_ms(5);
    }
    fail_msg("run %lld: \"%s\", not \"%s\"", (long long)run, info.reason, reason);
}

void await_step(struct fixture *f, int64_t run, int64_t step)
{
    struct sup_progress p;

    for (int i = 0; i < 6000; i++) {
        if (sup_progress_get(f->sup, run, &p) && p.step >= step)
            return;
        pause_ms(5);
    }
    fail_msg("run %lld did not reach step %lld", (long long)run, (long long)step);
}
