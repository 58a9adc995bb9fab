/* The list of GPUs follows the machine: gone, back, new, split anew, and a session of NVML that must be
 * opened again. The machine is a text file (fake_nvml.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/polyd/devices/device.h"
#include "kernels/base/clock.h"
#include "tests/devices/machine.h"

static struct device d[DEVICE_GPU_MAX];
static struct device_sample s[DEVICE_GPU_MAX];
static char bus[64];

static struct device_watch *watch(void)
{
    struct device_watch_options o = {
        .library = FAKE_NVML, .gpus = "all", .interval_us = 10000, .bus = bus[0] ? bus : "/nonexistent"};
    struct device_watch *w = NULL;
    struct pd_why why;

    assert_int_equal(device_watch_start(&o, &w, &why), PD_OK);
    return w;
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Waits until the list is another one; reads it. */
static int changed(struct device_watch *w)
{
    struct device_event e;

    for (int turn = 0; turn < 2000; turn++) {
        if (device_watch_event(w, &e) && e.kind == DEVICE_EVENT_CHANGED)
            return device_watch_devices(w, d, DEVICE_GPU_MAX);
        pause_ms(5);
    }
    fail_msg("the list has not changed");
    return 0;
}

static void sampled(struct device_watch *w, int i)
{
    for (int turn = 0; turn < 2000; turn++) {
        device_watch_read(w, s, DEVICE_GPU_MAX);
        if (s[i].taken_us && !s[i].stale)
            return;
        pause_ms(5);
    }
    fail_msg("%s was not sampled", d[i].name);
}

static void write_gpus(const char *text)
{
    char all[4096];

    snprintf(all, sizeof all, "driver 580\n%s", text);
    machine_write(all);
}

#define GPU(i, id) "gpu " #i " uuid=" id " name=\"H200\" total=1000 used=1 temp=40 mig=0\n"
#define SPLIT(i, id) "gpu " #i " uuid=" id " name=\"H200\" total=1000 used=1 temp=40 mig=1\n"
#define PART(i, k, id) "instance " #i " " #k " uuid=" id " name=\"H200 MIG\" total=500 used=1 gi=" #k "\n"

static void test_rescan_a_gpu_goes_and_comes_back_to_its_place(void **state)
{
    struct device_watch *w;
    struct device_event e;

    (void)state;
    machine_begin("driver 580\n" GPU(0, "GPU-a") GPU(1, "GPU-b") GPU(2, "GPU-c"));
    w = watch();
    assert_int_equal(device_watch_devices(w, d, DEVICE_GPU_MAX), 3);
    pause_ms(200); /* several looks: nothing has changed */
    assert_false(device_watch_event(w, &e));
    write_gpus(GPU(0, "GPU-a") GPU(1, "GPU-c")); /* numbers move when one is gone */
    assert_int_equal(changed(w), 3);
    assert_true(!d[0].gone && d[1].gone && !d[2].gone);
    assert_string_equal(d[1].id, "GPU-b");
    assert_string_equal(d[2].id, "GPU-c");
    assert_string_equal(d[2].name, "cuda:1");
    assert_string_not_equal(d[1].name, "cuda:1"); /* two must not bear one name */
    device_watch_read(w, s, DEVICE_GPU_MAX);
    assert_true(!s[1].stale && !s[1].broken && s[1].taken_us == 0);
    /* A new one stands behind; the place of one that may come back is not given away. */
    write_gpus(GPU(0, "GPU-a") GPU(1, "GPU-c") GPU(2, "GPU-new"));
    assert_int_equal(changed(w), 4);
    assert_string_equal(d[3].id, "GPU-new");
    sampled(w, 3);
    write_gpus(GPU(0, "GPU-a") GPU(1, "GPU-b") GPU(2, "GPU-c"));
    assert_int_equal(changed(w), 4);
    assert_true(!d[1].gone && d[3].gone);
    assert_string_equal(d[1].name, "cuda:1");
    assert_string_equal(d[2].name, "cuda:2");
    sampled(w, 1);
    device_watch_stop(w);
    machine_end();
}

static void test_rescan_errors_of_a_new_gpu_are_heard(void **state)
{
    struct device_watch *w;
    struct device_event e = {0};

    (void)state;
    machine_begin("driver 580\n");
    w = watch();
    assert_int_equal(device_watch_devices(w, d, DEVICE_GPU_MAX), 0);
    assert_non_null(strstr(device_watch_why(w), "finds no GPU"));
    write_gpus(GPU(0, "GPU-a"));
    assert_int_equal(changed(w), 1);
    assert_string_equal(d[0].id, "GPU-a");
    sampled(w, 0);
    write_gpus(GPU(0, "GPU-a") "xid 201 0 79\n");
    for (int turn = 0; turn < 2000 && e.xid != 79; turn++) {
        pause_ms(5);
        (void)device_watch_event(w, &e);
    }
    assert_true(e.kind == DEVICE_EVENT_XID && e.xid == 79 && e.index == 0);
    device_watch_stop(w);
    machine_end();
}

static void test_rescan_instances_made_anew_take_places_that_were_given_up(void **state)
{
    struct device_watch *w;

    (void)state;
    machine_begin("driver 580\n" GPU(0, "GPU-a"));
    w = watch();
    assert_int_equal(device_watch_devices(w, d, DEVICE_GPU_MAX), 1);
    write_gpus(SPLIT(0, "GPU-a") PART(0, 0, "MIG-0") PART(0, 1, "MIG-1"));
    assert_int_equal(changed(w), 3);
    assert_true(d[0].split && d[1].instance == 0 && d[2].instance == 1);
    for (int round = 0; round < 100; round++) { /* far more than there are places */
        char text[512];

        snprintf(text, sizeof text,
                 SPLIT(0, "GPU-a") "instance 0 0 uuid=MIG-r%d name=\"H200 MIG\" total=%d used=1 gi=1\n",
                 round, 100 + round);
        write_gpus(text);
        assert_true(changed(w) <= 4);
        for (int i = 1; i < 4; i++)
            if (d[i].gone)
                device_watch_forget(w, i);
    }
    write_gpus(GPU(0, "GPU-a"));
    changed(w);
    assert_false(d[0].split);
    device_watch_stop(w);
    machine_end();
}

static void test_rescan_a_gpu_off_the_bus_is_broken_and_not_gone(void **state)
{
    struct device_watch *w;
    struct device_event e = {0};

    (void)state;
    machine_begin("driver 580\nfreeze\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    w = watch();
    write_gpus("freeze\n" GPU(0, "GPU-a"));
    for (int turn = 0; turn < 2000 && e.kind != DEVICE_EVENT_BROKEN; turn++) {
        pause_ms(5);
        (void)device_watch_event(w, &e);
        assert_int_not_equal(e.kind, DEVICE_EVENT_CHANGED);
    }
    assert_int_equal(e.index, 1);
    assert_non_null(strstr(e.reason, "off the bus"));
    pause_ms(150);
    assert_int_equal(device_watch_devices(w, d, DEVICE_GPU_MAX), 2);
    assert_false(d[1].gone);
    device_watch_stop(w);
    machine_end();
}

static void bus_entry(const char *name, int there)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", bus, name);
    assert_int_equal(there ? mkdir(path, 0700) : rmdir(path), 0);
}

static void test_rescan_opens_nvml_anew_when_the_bus_changes(void **state)
{
    struct device_watch *w;
    struct device_event e;

    (void)state;
    snprintf(bus, sizeof bus, "/tmp/polyd-bus-XXXXXX");
    assert_non_null(mkdtemp(bus));
    bus_entry("0000:18:00.0", 1);
    machine_begin("driver 580\nfreeze\n" GPU(0, "GPU-a"));
    w = watch();
    assert_int_equal(device_watch_devices(w, d, DEVICE_GPU_MAX), 1);
    write_gpus("freeze\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    pause_ms(200);
    assert_false(device_watch_event(w, &e)); /* the session lists what it began with */
    bus_entry("0000:19:00.0", 1);
    assert_int_equal(changed(w), 2);
    assert_string_equal(d[1].id, "GPU-b");
    sampled(w, 1);
    /* Its errors are heard in the new session. */
    write_gpus("freeze\n" GPU(0, "GPU-a") GPU(1, "GPU-b") "xid 301 1 48\n");
    e.xid = 0;
    for (int turn = 0; turn < 2000 && e.xid != 48; turn++) {
        pause_ms(5);
        (void)device_watch_event(w, &e);
    }
    assert_true(e.xid == 48 && e.index == 1);
    /* The module is unloaded: nothing can be opened, and all that was said grows old. */
    machine_write("init 9\n");
    bus_entry("0000:19:00.0", 0);
    for (int turn = 0; turn < 2000 && !s[0].stale; turn++) {
        pause_ms(5);
        device_watch_read(w, s, DEVICE_GPU_MAX);
    }
    assert_true(s[0].stale);
    write_gpus("freeze\n" GPU(0, "GPU-a"));
    assert_int_equal(changed(w), 2); /* GPU-b is gone */
    assert_true(!d[0].gone && d[1].gone);
    sampled(w, 0);
    device_watch_stop(w);
    machine_end();
    bus_entry("0000:18:00.0", 0);
    rmdir(bus);
    bus[0] = '\0';
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rescan_a_gpu_goes_and_comes_back_to_its_place),
        cmocka_unit_test(test_rescan_errors_of_a_new_gpu_are_heard),
        cmocka_unit_test(test_rescan_instances_made_anew_take_places_that_were_given_up),
        cmocka_unit_test(test_rescan_a_gpu_off_the_bus_is_broken_and_not_gone),
        cmocka_unit_test(test_rescan_opens_nvml_anew_when_the_bus_changes),
    };

    return cmocka_run_group_tests_name("rescan", tests, NULL, NULL);
}
