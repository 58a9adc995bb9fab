#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/polyd/devices/device.h"
#include "kernels/base/clock.h"
#include "tests/devices/machine.h"

#define INTERVAL_US 20000

static struct device_watch *watch(const char *gpus)
{
    struct device_watch_options o = {.library = FAKE_NVML, .gpus = gpus, .interval_us = INTERVAL_US};
    struct device_watch *w = NULL;
    struct pd_why why;

    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    return w;
}

/* Waits until the sample of a device says so. */
static struct device_sample until(struct device_watch *w, int i, bool (*says)(const struct device_sample *s))
{
    struct device_sample s[DEVICE_GPU_MAX] = {{0}};

    for (int turn = 0; turn < 2000; turn++) {
        struct timespec pause = {.tv_nsec = 5000000};

        device_watch_read(w, s, DEVICE_GPU_MAX);
        if (says(&s[i]))
            return s[i];
        nanosleep(&pause, NULL);
    }
    fail_msg("waited in vain; the last sample: %s", s[i].reason);
    return s[i];
}

static struct device_event event(struct device_watch *w)
{
    struct device_event e = {0};

    for (int turn = 0; turn < 2000; turn++) {
        struct timespec pause = {.tv_nsec = 5000000};

        if (device_watch_event(w, &e) && e.kind != DEVICE_EVENT_CHANGED)
            return e;
        nanosleep(&pause, NULL);
    }
    fail_msg("waited in vain for an event");
    return e;
}

static void test_device_cpu_slots_have_names_of_their_own(void **state)
{
    struct device d[4];
    struct device_env env;
    struct pd_why why;
    int count = 0;

    (void)state;
    assert_int_equal(device_list(2, 3, d, 4, &count, &why), PD_OK);
    assert_int_equal(count, 2);
    assert_string_equal(d[1].id, "cpu:1");
    assert_int_equal(d[1].threads, 3);
    assert_int_equal(d[1].gpu, -1);
    device_env(&d[1], &env);
    assert_string_equal(env.visible, "CUDA_VISIBLE_DEVICES=");
    assert_int_equal(device_list(5, 0, d, 4, &count, &why), PD_ERR_INVALID);
    assert_int_equal(device_list(1, -1, d, 4, &count, &why), PD_ERR_INVALID);
}

static void test_device_without_a_library_says_so(void **state)
{
    struct device_watch_options o = {.library = "/nonexistent/libnvidia-ml.so.1"};
    struct device_watch *w = NULL;
    struct pd_why why;
    int count = -1;

    (void)state;
    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    count = device_watch_devices(w, NULL, 0);
    assert_int_equal(count, 0);
    assert_non_null(
        strstr(device_watch_why(w), "/nonexistent/libnvidia-ml.so.1 cannot be loaded (no such library)"));
    assert_false(device_watch_driver(w)->loaded);
    device_watch_look(w);
    device_watch_stop(w);
    /* A library that is not NVML. */
    o.library = "libm.so.6";
    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    assert_non_null(strstr(device_watch_why(w), "the driver is too old"));
    device_watch_stop(w);
    o.library = FAKE_NVML;
    o.gpus = "none";
    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    assert_non_null(strstr(device_watch_why(w), "turned off"));
    device_watch_stop(w);
    assert_null(device_watch_stop(NULL));
}

static void test_device_a_driver_that_refuses_is_named(void **state)
{
    struct device_watch *w;
    int count;

    (void)state;
    machine_begin("init 9\n");
    w = watch("all");
    assert_non_null(strstr(device_watch_why(w), "Driver Not Loaded"));
    device_watch_stop(w);
    machine_write("driver 1\n");
    w = watch("all");
    assert_non_null(strstr(device_watch_why(w), "finds no GPU"));
    count = device_watch_devices(w, NULL, 0);
    assert_int_equal(count, 0);
    device_watch_stop(w);
    machine_end();
}

static void test_device_eight_gpus_are_found_with_their_facts(void **state)
{
    static struct device d[DEVICE_GPU_MAX];
    struct device_sample s[DEVICE_GPU_MAX];
    struct device_watch *w;
    struct device_env env;
    char text[8192];
    int count;

    (void)state;
    snprintf(text, sizeof text, "%slink 0 1 nvlink\nlink 2 3 switch\nlink 4 5 bridge\nlink 6 7 node\n",
             machine_of(8, "proc=77:4096 proc=78"));
    machine_begin(text);
    w = watch("all");
    count = device_watch_devices(w, d, DEVICE_GPU_MAX);
    assert_int_equal(count, 8);
    assert_string_equal(device_watch_why(w), "");
    assert_string_equal(device_watch_driver(w)->version, "580.65.06");
    assert_int_equal(device_watch_driver(w)->cuda_major, 13);
    assert_true(device_watch_driver(w)->events);
    assert_string_equal(d[3].id, "GPU-03");
    assert_string_equal(d[3].name, "cuda:3");
    assert_string_equal(d[3].kind, "cuda");
    assert_string_equal(d[3].model, "NVIDIA H200");
    assert_string_equal(d[3].pci, "00000000:13:00.0");
    assert_true(d[3].major == 9 && d[3].minor == 0 && d[3].memory_bytes == 150000000000);
    assert_true(d[3].gpu == 3 && d[3].instance == -1 && !d[3].split);
    device_env(&d[3], &env);
    assert_string_equal(env.visible, "CUDA_VISIBLE_DEVICES=GPU-03");
    assert_string_equal(env.order, "CUDA_DEVICE_ORDER=PCI_BUS_ID");
    assert_int_equal(device_watch_link(w, 0, 1), 4);
    assert_int_equal(device_watch_link(w, 3, 2), 3);
    assert_int_equal(device_watch_link(w, 4, 5), 2);
    assert_int_equal(device_watch_link(w, 6, 7), 1);
    assert_int_equal(device_watch_link(w, 0, 7), 0);
    device_watch_read(w, s, DEVICE_GPU_MAX); /* the start took one */
    assert_true(s[7].taken_us > 0 && !s[7].stale && !s[7].broken);
    assert_true(s[7].memory_used == 600000000 && s[7].memory_reserved == 600000000);
    assert_true(s[7].temperature_c == 31 && s[7].power_mw == 75000 && s[7].power_limit_mw == 700000);
    assert_true(s[7].utilization == 0 && s[7].ecc_uncorrected == 0 && s[7].sm_clock_mhz == 1980);
    assert_int_equal(s[7].process_count, 2);
    assert_true(s[7].processes[0].pid == 77 && s[7].processes[0].memory_bytes == 4096);
    assert_true(s[7].processes[1].pid == 78 && s[7].processes[1].memory_bytes == -1);
    device_watch_stop(w);
    machine_end();
}

static bool hot(const struct device_sample *s)
{
    return s->temperature_c == 80;
}

static bool stale(const struct device_sample *s)
{
    return s->stale;
}

static bool fresh(const struct device_sample *s)
{
    return !s->stale && s->temperature_c == 31;
}

static bool broken(const struct device_sample *s)
{
    return s->broken;
}

static void test_device_values_that_the_driver_lacks_are_unknown(void **state)
{
    struct device_watch *w;
    struct device_sample s[1];

    (void)state;
    machine_begin("driver 470\ngpu 0 uuid=GPU-a name=\"Old GPU\" total=1000 used=10\n");
    w = watch("all");
    device_watch_read(w, s, 1);
    assert_true(s[0].memory_used == 10 && s[0].memory_total == 1000 && s[0].memory_reserved == -1);
    assert_true(s[0].utilization == -1 && s[0].temperature_c == -1 && s[0].power_mw == -1);
    assert_true(s[0].ecc_corrected == -1 && s[0].process_count == 0);
    assert_false(s[0].broken);
    device_watch_stop(w);
    machine_end();
}

static void test_device_samples_follow_the_machine(void **state)
{
    struct device_watch *w;
    struct device_event e;

    (void)state;
    machine_begin(machine_of(2, ""));
    w = watch("all");
    machine_write("gpu 0 uuid=GPU-00 name=x total=1 used=1 temp=80\n"
                  "gpu 1 uuid=GPU-01 name=x total=1 used=1 temp=31 code=15\n");
    until(w, 0, hot);
    assert_string_equal(until(w, 1, broken).reason, "it has fallen off the bus");
    e = event(w);
    assert_true(e.kind == DEVICE_EVENT_BROKEN && e.index == 1);
    assert_false(device_watch_event(w, &e)); /* told once, however many samples say it */
    machine_write("gpu 0 uuid=GPU-00 name=x total=1 used=1 temp=31 remap_failed=1\n"
                  "gpu 1 uuid=GPU-01 name=x total=1 used=1 temp=31\n");
    until(w, 1, fresh);
    assert_non_null(strstr(until(w, 0, broken).reason, "could not be remapped"));
    device_watch_stop(w);
    machine_end();
}

static void test_device_xids_are_told_with_their_meaning(void **state)
{
    struct device_watch *w;
    struct device_sample s[2];
    struct device_event e;
    char text[4096];

    (void)state;
    snprintf(text, sizeof text, "%sxid 1 1 79\nxid 2 0 31\n", machine_of(2, ""));
    machine_begin(text);
    w = watch("all");
    e = event(w);
    assert_true(e.kind == DEVICE_EVENT_XID && e.index == 1 && e.xid == 79);
    assert_string_equal(e.reason, "XID 79: GPU has fallen off the bus");
    e = event(w);
    assert_true(e.index == 0 && e.xid == 31);
    device_watch_read(w, s, 2);
    assert_true(s[1].xids == 1 && s[1].last_xid == 79 && s[1].last_xid_us > 0);
    device_watch_stop(w);
    machine_end();
    assert_int_equal(device_xid_class(79), DEVICE_XID_FATAL);
    assert_int_equal(device_xid_class(63), DEVICE_XID_HARDWARE);
    assert_int_equal(device_xid_class(31), DEVICE_XID_PROGRAM);
    assert_int_equal(device_xid_class(12345), DEVICE_XID_NOTE);
    assert_string_equal(device_xid_text(12345), "");
}

static void test_device_mig_instances_are_units_of_their_own(void **state)
{
    static struct device d[DEVICE_GPU_MAX];
    struct device_watch *w;
    struct device_event e;
    int count;

    (void)state;
    machine_begin("driver 580\n"
                  "gpu 0 uuid=GPU-a name=\"H200\" total=1000 used=1 temp=40 mig=1 major=9 minor=0\n"
                  "instance 0 0 uuid=MIG-a0 name=\"H200 MIG 3g.71gb\" total=500 used=1 gi=2 proc=5:7\n"
                  "instance 0 2 uuid=MIG-a2 name=\"H200 MIG 1g.18gb\" total=100 used=1 gi=9\n"
                  "gpu 1 uuid=GPU-b name=\"H200\" total=1000 used=1 temp=40 mig=0\n");
    w = watch("all");
    count = device_watch_devices(w, d, DEVICE_GPU_MAX);
    assert_int_equal(count, 4);
    assert_true(d[0].split && d[0].instance == -1);
    assert_string_equal(d[1].id, "MIG-a0");
    assert_string_equal(d[1].name, "cuda:0.0");
    assert_string_equal(d[1].kind, "mig");
    assert_true(d[1].memory_bytes == 500 && d[1].gpu == 0 && !d[1].split && d[1].major == 9);
    assert_string_equal(d[2].name, "cuda:0.2");
    assert_string_equal(d[3].id, "GPU-b");
    assert_false(d[3].split);
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=1 used=1 mig=1\n"
                  "instance 0 2 uuid=MIG-a2 name=x total=1 used=1 gi=9\nxid 101 0 94 9\nxid 102 0 63\n");
    e = event(w);
    assert_true(e.xid == 94 && e.index == 2);
    e = event(w);
    assert_true(e.xid == 63 && e.index == 0);
    device_watch_stop(w);
    machine_end();
}

static int offered(const char *gpus)
{
    struct device_watch *w = watch(gpus);
    int count;

    count = device_watch_devices(w, NULL, 0);
    device_watch_stop(w);
    return count;
}

static void test_device_only_the_chosen_gpus_are_offered(void **state)
{
    (void)state;
    machine_begin(machine_of(8, ""));
    assert_int_equal(offered("all"), 8);
    assert_int_equal(offered("0, 3,GPU-07"), 3);
    assert_int_equal(offered("9"), 0);
    setenv("CUDA_VISIBLE_DEVICES", "1,2", 1);
    assert_int_equal(offered("auto"), 2);
    assert_int_equal(offered("all"), 8);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_int_equal(offered("auto"), 0);
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(offered("auto"), 8);
    machine_end();
}

static void test_device_a_driver_that_hangs_leaves_old_samples_marked(void **state)
{
    struct device_watch *w;
    struct device_sample s;
    int64_t began_us;
    char text[8192];

    (void)state;
    machine_begin(machine_of(2, ""));
    w = watch("all");
    snprintf(text, sizeof text, "%s", machine_of(2, "hang=60000"));
    machine_write(text);
    s = until(w, 0, stale);
    assert_non_null(strstr(s.reason, "the driver has not answered for"));
    s = until(w, 1, stale);
    assert_true(s.temperature_c == 31); /* the old value is still shown */
    machine_write(machine_of(2, ""));
    until(w, 0, fresh);
    /* Hanging again at the stop: it does not wait for the driver. */
    machine_write(text);
    until(w, 0, stale);
    began_us = pd_clock_mono_us();
    device_watch_stop(w);
    assert_true(pd_clock_mono_us() - began_us < 10000000);
    machine_write(machine_of(2, "")); /* the thread left behind ends, and frees the watch */
    machine_end();
}

static void test_device_a_start_does_not_wait_for_good(void **state)
{
    struct device_watch_options o = {.library = FAKE_NVML, .start_us = 200000};
    struct device_watch *w;
    struct pd_why why;
    int count;

    (void)state;
    machine_begin(machine_of(1, "hang=60000"));
    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    count = device_watch_devices(w, NULL, 0);
    assert_int_equal(count, 0);
    assert_string_equal(device_watch_why(w), "the NVIDIA driver does not answer");
    machine_write(machine_of(1, ""));
    device_watch_stop(w);
    machine_end();
}

static void count_call(void *ctx)
{
    __atomic_add_fetch((int *)ctx, 1, __ATOMIC_RELAXED);
}

static void test_device_a_look_comes_before_its_time(void **state)
{
    int calls = 0;
    struct device_watch_options o = {
        .library = FAKE_NVML, .interval_us = 3600000000, .changed = count_call, .ctx = &calls};
    struct device_watch *w;
    struct pd_why why;

    (void)state;
    machine_begin(machine_of(1, ""));
    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    machine_write(machine_of(1, "temp=80")); /* the first of two counts: it stays at 31 */
    machine_write("gpu 0 uuid=GPU-00 name=x total=1 used=1 temp=80\n");
    device_watch_look(w);
    until(w, 0, hot);
    for (int i = 0; i < 1000 && !__atomic_load_n(&calls, __ATOMIC_RELAXED); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_true(__atomic_load_n(&calls, __ATOMIC_RELAXED) > 0);
    device_watch_stop(w);
    machine_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_cpu_slots_have_names_of_their_own),
        cmocka_unit_test(test_device_without_a_library_says_so),
        cmocka_unit_test(test_device_a_driver_that_refuses_is_named),
        cmocka_unit_test(test_device_eight_gpus_are_found_with_their_facts),
        cmocka_unit_test(test_device_values_that_the_driver_lacks_are_unknown),
        cmocka_unit_test(test_device_samples_follow_the_machine),
        cmocka_unit_test(test_device_xids_are_told_with_their_meaning),
        cmocka_unit_test(test_device_mig_instances_are_units_of_their_own),
        cmocka_unit_test(test_device_only_the_chosen_gpus_are_offered),
        cmocka_unit_test(test_device_a_driver_that_hangs_leaves_old_samples_marked),
        cmocka_unit_test(test_device_a_start_does_not_wait_for_good),
        cmocka_unit_test(test_device_a_look_comes_before_its_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
