/* The supervisor on a machine whose GPUs are a text file (tests/device/fake_nvml.c), with real workers in the
 * diagnostic role. Every test ends with the check of the whole store: no device in two runs, none still held.
 */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "daemon/store/tx.h"
#include "daemon/store/verify.h"
#include "daemon/supervise/supervise.h"
#include "kernels/base/buf.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "tests/device/machine.h"

struct fixture {
    char dir[64];
    struct store_writer *w;
    struct store *s;
    struct sup *sup;
    struct sup_options o;
};

static void up(struct fixture *f)
{
    struct store_writer_options o = {.state_dir = f->dir};
    struct pd_why why = {""};

    if (store_writer_start(&o, &f->w, &why) != PD_OK ||
        store_open_reader(store_writer_path(f->w), &f->s, &why) != PD_OK ||
        sup_start(&f->o, f->w, &f->sup, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void down(struct fixture *f)
{
    f->sup = sup_stop(f->sup);
    f->s = store_close(f->s);
    f->w = store_writer_stop(f->w);
}

static void set(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int setup(void **state)
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
static int marked(const struct fixture *f, const char *what, const char *variable, char *out, size_t size)
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

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

static void complain(void *ctx, const char *text)
{
    (void)ctx;
    print_message("verify: %s\n", text);
}

static int teardown(void **state)
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

static void call(struct fixture *f, enum pd_err (*apply)(struct store_tx *, void *, struct pd_why *),
                 void *ctx)
{
    struct store_work work = {.lane = STORE_LANE_COMMAND, .apply = apply, .ctx = ctx};
    struct pd_why why;

    assert_int_equal(store_writer_call(f->w, &work, &why), PD_OK);
    sup_notify(f->sup);
}

static int64_t submit(struct fixture *f, const char *device, int slots)
{
    struct ids ids = {.device = device, .slots = slots};

    call(f, submit_apply, &ids);
    return ids.run;
}

static enum pd_err cancel_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    return store_run_cancel(tx, *(int64_t *)ctx, -1, "asked", why);
}

static enum pd_err undrain_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_drain d = {.device = ctx, .name = "it", .reason = "mended", .who = "test"};

    return store_device_undrain(tx, &d, why);
}

static enum pd_err drain_apply(struct store_tx *tx, void *ctx, struct pd_why *why)
{
    struct store_drain d = {.device = ctx, .name = "it", .reason = "a fan is loud", .who = "test"};

    return store_device_drain(tx, &d, why);
}

static char run_reason[512];

static bool keep_run(void *ctx, const struct store_run *r)
{
    *(struct store_run *)ctx = *r;
    snprintf(run_reason, sizeof run_reason, "%s", r->reason);
    return true;
}

static struct store_run await(struct fixture *f, int64_t run, enum spec_run_state state)
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
    fail_msg("run %lld is %s, not %s (%s)", (long long)run, spec_run_state_name(r.state),
             spec_run_state_name(state), run_reason);
    return r;
}

static void cancel(struct fixture *f, int64_t run)
{
    call(f, cancel_apply, &run);
    await(f, run, SPEC_RUN_ENDED);
}

static char attempt_devices[4096], attempt_message[512];
static int attempt_n;
static enum spec_cause attempt_cause;

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

static const char *devices_of(struct fixture *f, int64_t run, int n)
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

static struct sup_device device(struct fixture *f, const char *name)
{
    struct look l = {.name = name};

    sup_device_list(f->sup, look_row, &l);
    if (!l.d.name[0])
        fail_msg("there is no %s among %d devices", name, l.count);
    return l.d;
}

static void await_state(struct fixture *f, const char *name, const char *state)
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

static void await_reason(struct fixture *f, int64_t run, const char *reason)
{
    struct sup_queue_info info = {0};

    for (int i = 0; i < 3000; i++) {
        if (sup_queue_get(f->sup, run, &info) && strstr(info.reason, reason))
            return;
        pause_ms(5);
    }
    fail_msg("run %lld: \"%s\", not \"%s\"", (long long)run, info.reason, reason);
}

static void await_step(struct fixture *f, int64_t run, int64_t step)
{
    struct sup_progress p;

    for (int i = 0; i < 6000; i++) {
        if (sup_progress_get(f->sup, run, &p) && p.step >= step)
            return;
        pause_ms(5);
    }
    fail_msg("run %lld did not reach step %lld", (long long)run, (long long)step);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_gpu_each_run_has_its_own(void **state)
{
    struct fixture *f = *state;
    char value[256];
    int64_t a, b, c, cpu;

    machine_begin(machine_of(2, ""));
    up(f);
    assert_string_equal(device(f, "cuda:1").state, "free");
    a = submit(f, "cuda", 1);
    b = submit(f, "cuda", 1);
    await(f, a, SPEC_RUN_RUNNING);
    await(f, b, SPEC_RUN_RUNNING);
    assert_string_equal(devices_of(f, a, 1), "GPU-00");
    assert_string_equal(devices_of(f, b, 1), "GPU-01");
    assert_int_equal(device(f, "cuda:0").run_id, a);
    assert_string_equal(device(f, "cuda:1").state, "busy");
    /* A worker sees its GPU; one on the CPU sees none. */
    assert_true(marked(f, "run-2-1", "CUDA_VISIBLE_DEVICES=", value, sizeof value) > 0);
    assert_string_equal(value, "GPU-01");
    marked(f, "run-2-1", "CUDA_DEVICE_ORDER=", value, sizeof value);
    assert_string_equal(value, "PCI_BUS_ID");
    cpu = submit(f, "cpu", 1);
    await(f, cpu, SPEC_RUN_RUNNING);
    marked(f, "run-3-1", "CUDA_VISIBLE_DEVICES=", value, sizeof value);
    assert_string_equal(value, "");
    c = submit(f, "cuda", 2);
    await_reason(f, c, "waiting for 2 GPUs, 0 free");
    cancel(f, a);
    await_reason(f, c, "waiting for 2 GPUs, 1 free");
    cancel(f, b);
    await(f, c, SPEC_RUN_RUNNING);
    assert_string_equal(devices_of(f, c, 1), "GPU-00,GPU-01"); /* all or none */
    cancel(f, c);
    cancel(f, cpu);
    await_state(f, "cuda:0", "free");
}

static void test_gpu_a_foreign_process_makes_it_busy(void **state)
{
    static const char machine[] = "driver 580\ngpu 0 uuid=GPU-a name=x total=150000000000 used=1\n"
                                  "gpu 1 uuid=GPU-b name=x total=150000000000 used=1 %s\n";
    struct fixture *f = *state;
    struct sup_queue_info info;
    struct pd_why why;
    char text[512], devices[64];
    int64_t run;

    snprintf(text, sizeof text, machine, "proc=4711:5000");
    machine_begin(text);
    up(f);
    await_state(f, "cuda:1", "foreign");
    assert_string_equal(device(f, "cuda:1").reason, "a foreign process (pid 4711)");
    assert_int_equal(sup_fit(f->sup, "cuda", 1, 0, &info, devices, sizeof devices, &why), PD_OK);
    assert_string_equal(devices, "cuda:0");
    assert_string_equal(info.reason, "would start at once");
    assert_int_equal(sup_fit(f->sup, "cuda", 2, 0, &info, devices, sizeof devices, &why), PD_OK);
    assert_string_equal(devices, "");
    assert_string_equal(info.reason, "waiting for 2 GPUs, 1 free, 1 busy with a foreign process (pid 4711)");
    assert_int_equal(sup_fit(f->sup, "cuda", 3, 0, &info, devices, sizeof devices, &why), PD_ERR_LIMIT);
    run = submit(f, "cuda", 2);
    await_reason(f, run, "waiting for 2 GPUs, 1 free, 1 busy with a foreign process (pid 4711)");
    /* It waits for a stranger: another run may have the free one meanwhile. */
    cancel(f, run);
    run = submit(f, "cuda", 2);
    await_reason(f, run, "1 busy with a foreign process");
    snprintf(text, sizeof text, machine, "");
    machine_write(text);
    await(f, run, SPEC_RUN_RUNNING);
    /* A process on a GPU that is ours is nobody's concern. */
    snprintf(text, sizeof text, machine, "proc=4711:5000");
    machine_write(text);
    pause_ms(100);
    assert_string_equal(device(f, "cuda:1").state, "busy");
    cancel(f, run);
    await_state(f, "cuda:1", "foreign");
    await_state(f, "cuda:0", "free");
    /* Much memory without a process that can be seen; less, or what a desktop holds, is fine. */
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=150000000000 used=9000000000\n"
                  "gpu 1 uuid=GPU-b name=x total=150000000000 used=2000000000 draws=1900000000\n");
    await_state(f, "cuda:0", "foreign");
    assert_string_equal(device(f, "cuda:0").reason,
                        "a process that cannot be seen from here (9.0 GB in use)");
    await_state(f, "cuda:1", "free");
}

static void test_gpu_a_hardware_fault_drains_it_and_moves_its_run(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    struct store_run r;
    int64_t run;

    machine_begin(machine_of(2, ""));
    up(f);
    run = submit(f, "cuda", 1); /* max_restarts 0: a fault of the device does not count */
    await_step(f, run, 30);
    snprintf(text, sizeof text, "%sxid 1001 0 79\n", machine_of(2, ""));
    machine_write(text);
    await_state(f, "cuda:0", "drained");
    assert_string_equal(device(f, "cuda:0").reason, "XID 79: GPU has fallen off the bus");
    assert_string_equal(device(f, "cuda:0").drained_by, "polyd");
    for (int i = 0; i < 3000 && !*devices_of(f, run, 2); i++)
        pause_ms(5);
    assert_string_equal(devices_of(f, run, 2), "GPU-01");
    r = await(f, run, SPEC_RUN_RUNNING);
    assert_int_equal(r.restarts, 0);
    devices_of(f, run, 1);
    assert_int_equal(attempt_cause, SPEC_CAUSE_LOST);
    assert_string_equal(attempt_message, "cuda:0: XID 79: GPU has fallen off the bus");
    cancel(f, run);
    /* The next daemon knows it, too, though no driver tells it again. */
    down(f);
    machine_write(machine_of(2, ""));
    up(f);
    assert_string_equal(device(f, "cuda:0").state, "drained");
    run = submit(f, "cuda", 2);
    await_reason(f, run,
                 "waiting for 2 GPUs, 1 free, 1 drained (cuda:0: XID 79: GPU has fallen off the bus)");
    call(f, undrain_apply, (void *)"GPU-00");
    await(f, run, SPEC_RUN_RUNNING);
    cancel(f, run);
}

static void test_gpu_a_lesser_fault_lets_the_run_end(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    int64_t run;

    machine_begin(machine_of(1, ""));
    up(f);
    run = submit(f, "cuda", 1);
    await_step(f, run, 5);
    snprintf(text, sizeof text, "%sxid 2001 0 63\nxid 2002 0 31\nxid 2003 0 999\n", machine_of(1, ""));
    machine_write(text);
    await_state(f, "cuda:0", "draining");
    for (int i = 0; i < 3000 && device(f, "cuda:0").sample->xids < 3; i++)
        pause_ms(5);
    assert_int_equal(device(f, "cuda:0").run_id, run);
    await_step(f, run, 200); /* the page fault was not its own: it goes on */
    assert_int_equal(await(f, run, SPEC_RUN_RUNNING).attempts, 1);
    cancel(f, run);
    await_state(f, "cuda:0", "drained");
}

static void test_gpu_a_programs_fault_fails_its_run(void **state)
{
    struct fixture *f = *state;
    char text[4096];
    struct store_run r;
    int64_t run;

    machine_begin(machine_of(1, ""));
    f->o.grace_us = 300000;
    set("POLYD_SELFTEST_STEP_US", 60000000); /* stuck, as behind a dead context */
    up(f);
    run = submit(f, "cuda", 1);
    await_step(f, run, 1);
    snprintf(text, sizeof text, "%sxid 3001 0 31\n", machine_of(1, ""));
    machine_write(text);
    r = await(f, run, SPEC_RUN_ENDED);
    assert_int_equal(r.outcome, SPEC_OUTCOME_FAILED);
    assert_non_null(strstr(run_reason, "cuda:0 reported XID 31: GPU memory page fault"));
    await_state(f, "cuda:0", "free"); /* the GPU is fine */
}

static void test_gpu_off_the_bus_is_not_used(void **state)
{
    struct fixture *f = *state;
    int64_t run;

    machine_begin(machine_of(1, ""));
    up(f);
    run = submit(f, "cuda", 1);
    await_step(f, run, 5);
    machine_write(machine_of(1, "code=15"));
    await_reason(f, run, "waiting for 1 GPU, 0 free, 1 drained (cuda:0: it has fallen off the bus)");
    call(f, undrain_apply, (void *)"GPU-00"); /* nobody can talk it into working */
    await_reason(f, run, "1 broken (cuda:0: it has fallen off the bus)");
    machine_write(machine_of(1, ""));
    await(f, run, SPEC_RUN_RUNNING);
    cancel(f, run);
}

static void test_gpu_of_a_silent_driver_is_not_used(void **state)
{
    struct fixture *f = *state;
    int64_t run;

    machine_begin(machine_of(1, ""));
    up(f);
    machine_write(machine_of(1, "hang=600000"));
    await_state(f, "cuda:0", "stale");
    run = submit(f, "cuda", 1);
    await_reason(f, run, "1 stale (cuda:0: the driver has not answered for");
    machine_write(machine_of(1, ""));
    await(f, run, SPEC_RUN_RUNNING);
    /* The driver falls silent under a run: that goes on, and the supervisor with it. */
    machine_write(machine_of(1, "hang=600000"));
    await_step(f, run, 100);
    assert_string_equal(device(f, "cuda:0").state, "busy");
    cancel(f, run);
    machine_write(machine_of(1, ""));
}

static void test_gpu_stays_held_over_a_restart(void **state)
{
    struct fixture *f = *state;
    int64_t a, b;

    machine_begin(
        "driver 580\ngpu 0 uuid=GPU-a name=x total=1 used=0\ngpu 1 uuid=GPU-b name=x total=1 used=0\n");
    up(f);
    a = submit(f, "cuda", 1);
    b = submit(f, "cuda", 1);
    await_step(f, a, 5);
    await_step(f, b, 5);
    cancel(f, a);
    down(f);
    /* The first GPU is gone, and the other has its number now. */
    machine_write("driver 580\ngpu 0 uuid=GPU-b name=x total=1 used=0\n");
    up(f);
    assert_int_equal(device(f, "cuda:0").run_id, b);
    a = submit(f, "cuda", 1);
    await_reason(f, a, "waiting for 1 GPU, 0 free");
    assert_int_equal(await(f, b, SPEC_RUN_RUNNING).attempts, 1);
    cancel(f, b);
    await(f, a, SPEC_RUN_RUNNING);
    assert_string_equal(devices_of(f, a, 1), "GPU-b");
    cancel(f, a);
}

static void test_gpu_without_a_driver_its_runs_wait_and_others_go(void **state)
{
    struct fixture *f = *state;
    const char *why;
    int64_t run, cpu;

    machine_begin("init 9\n");
    up(f);
    assert_int_equal(sup_gpu_count(f->sup, &why, NULL), 0);
    assert_non_null(strstr(why, "Driver Not Loaded"));
    run = submit(f, "cuda", 1); /* accepted when there was a GPU, say */
    cpu = submit(f, "cpu", 1);
    await(f, cpu, SPEC_RUN_RUNNING);
    await_reason(f, run, "waiting for 1 GPU, this machine has none: NVML does not start: Driver Not Loaded");
    cancel(f, cpu);
    cancel(f, run);
}

static void test_gpu_instances_are_for_runs_of_one_slot(void **state)
{
    struct fixture *f = *state;
    int64_t one, two;

    machine_begin("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n"
                  "instance 0 0 uuid=MIG-a0 name=x total=10000 used=0 gi=1\n"
                  "instance 0 1 uuid=MIG-a1 name=x total=40000 used=0 gi=2\n");
    up(f);
    assert_string_equal(device(f, "cuda:0").state, "split");
    assert_int_equal(sup_gpu_count(f->sup, NULL, NULL), 2);
    one = submit(f, "cuda", 1);
    await(f, one, SPEC_RUN_RUNNING);
    assert_string_equal(devices_of(f, one, 1), "MIG-a1"); /* without a plan, the largest */
    two = submit(f, "cuda", 2);
    await(f, two, SPEC_RUN_ENDED);
    assert_non_null(strstr(run_reason, "2 cuda slots can never be free: this machine has 0"));
    /* An error of the whole GPU takes its instances with it. */
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n"
                  "instance 0 0 uuid=MIG-a0 name=x total=10000 used=0 gi=1\n"
                  "instance 0 1 uuid=MIG-a1 name=x total=40000 used=0 gi=2\nxid 4001 0 95\n");
    await_reason(f, one, "waiting for 1 MIG instance, 0 free, 2 drained (cuda:0.0: XID 95");
    call(f, undrain_apply, (void *)"GPU-a");
    await(f, one, SPEC_RUN_RUNNING);
    cancel(f, one);
}

static void test_gpu_an_operator_takes_a_device_out(void **state)
{
    struct fixture *f = *state;
    int64_t run, cpu;

    machine_begin(machine_of(1, ""));
    up(f);
    call(f, drain_apply, (void *)"GPU-00");
    call(f, drain_apply, (void *)"GPU-00"); /* twice is once */
    call(f, drain_apply, (void *)"cpu:1");
    await_state(f, "cuda:0", "drained");
    await_state(f, "cpu:1", "drained");
    assert_string_equal(device(f, "cuda:0").drained_by, "test");
    run = submit(f, "cuda", 1);
    await_reason(f, run, "1 drained (cuda:0: a fan is loud)");
    cpu = submit(f, "cpu", 1);
    await(f, cpu, SPEC_RUN_RUNNING);
    assert_string_equal(devices_of(f, cpu, 1), "cpu:0");
    call(f, undrain_apply, (void *)"GPU-00");
    await(f, run, SPEC_RUN_RUNNING);
    cancel(f, run);
    cancel(f, cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gpu_each_run_has_its_own, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_a_foreign_process_makes_it_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_a_hardware_fault_drains_it_and_moves_its_run, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_gpu_a_lesser_fault_lets_the_run_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_a_programs_fault_fails_its_run, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_off_the_bus_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_of_a_silent_driver_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_stays_held_over_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_without_a_driver_its_runs_wait_and_others_go, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_gpu_instances_are_for_runs_of_one_slot, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gpu_an_operator_takes_a_device_out, setup, teardown),
    };

    return cmocka_run_group_tests_name("gpu", tests, NULL, NULL);
}
