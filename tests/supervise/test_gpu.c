/* The supervisor on a machine whose GPUs are a text file (tests/devices/fake_nvml.c), with real workers in
 * the diagnostic role. Every test ends with the check of the whole store: no device in two runs, none still
 * held.
 */
#include <unistd.h>

#include "kernels/base/clock.h"
#include "tests/supervise/gpu_rig.h"

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
    await(f, a, JOB_RUN_RUNNING);
    await(f, b, JOB_RUN_RUNNING);
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
    await(f, cpu, JOB_RUN_RUNNING);
    marked(f, "run-3-1", "CUDA_VISIBLE_DEVICES=", value, sizeof value);
    assert_string_equal(value, "");
    c = submit(f, "cuda", 2);
    await_reason(f, c, "waiting for 2 GPUs: all are in use");
    cancel(f, a);
    await_reason(f, c, "waiting for 2 GPUs: 1 is free");
    cancel(f, b);
    await(f, c, JOB_RUN_RUNNING);
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
    assert_string_equal(info.reason,
                        "waiting for 2 GPUs: 1 is free, 1 is used by a foreign process (pid 4711)");
    assert_int_equal(sup_fit(f->sup, "cuda", 3, 0, &info, devices, sizeof devices, &why), PD_ERR_LIMIT);
    run = submit(f, "cuda", 2);
    await_reason(f, run, "waiting for 2 GPUs: 1 is free, 1 is used by a foreign process (pid 4711)");
    /* It waits for a stranger: another run may have the free one meanwhile. */
    cancel(f, run);
    run = submit(f, "cuda", 2);
    await_reason(f, run, "1 is used by a foreign process");
    snprintf(text, sizeof text, machine, "");
    machine_write(text);
    await(f, run, JOB_RUN_RUNNING);
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
    r = await(f, run, JOB_RUN_RUNNING);
    assert_int_equal(r.restarts, 0);
    devices_of(f, run, 1);
    assert_int_equal(attempt_cause, JOB_CAUSE_LOST);
    assert_string_equal(attempt_message, "cuda:0: XID 79: GPU has fallen off the bus");
    cancel(f, run);
    /* The next daemon knows it, too, though no driver tells it again. */
    down(f);
    machine_write(machine_of(2, ""));
    up(f);
    assert_string_equal(device(f, "cuda:0").state, "drained");
    run = submit(f, "cuda", 2);
    await_reason(f, run,
                 "waiting for 2 GPUs: 1 is free, 1 is drained (cuda:0: XID 79: GPU has fallen off the bus)");
    call(f, undrain_apply, (void *)"GPU-00");
    await(f, run, JOB_RUN_RUNNING);
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
    assert_int_equal(await(f, run, JOB_RUN_RUNNING).attempts, 1);
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
    r = await(f, run, JOB_RUN_ENDED);
    assert_int_equal(r.outcome, JOB_OUTCOME_FAILED);
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
    await_reason(f, run, "waiting for a GPU: none is free, 1 is drained (cuda:0: it has fallen off the bus)");
    call(f, undrain_apply, (void *)"GPU-00"); /* nobody can talk it into working */
    await_reason(f, run, "1 is broken (cuda:0: it has fallen off the bus)");
    machine_write(machine_of(1, ""));
    await(f, run, JOB_RUN_RUNNING);
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
    await_reason(f, run, "1 does not answer (cuda:0: the driver has not answered for");
    machine_write(machine_of(1, ""));
    await(f, run, JOB_RUN_RUNNING);
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
    await_reason(f, a, "waiting for a GPU: the only one is in use");
    assert_int_equal(await(f, b, JOB_RUN_RUNNING).attempts, 1);
    cancel(f, b);
    await(f, a, JOB_RUN_RUNNING);
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
    await(f, cpu, JOB_RUN_RUNNING);
    await_reason(
        f, run,
        "waiting for a GPU, but this machine has none: NVML cannot be initialised: Driver Not Loaded");
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
    await(f, one, JOB_RUN_RUNNING);
    assert_string_equal(devices_of(f, one, 1), "MIG-a1"); /* without a plan, the largest */
    two = submit(f, "cuda", 2);
    await(f, two, JOB_RUN_ENDED);
    assert_non_null(strstr(run_reason, "2 cuda slots can never be free: this machine has 0"));
    /* An error of the whole GPU takes its instances with it. */
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n"
                  "instance 0 0 uuid=MIG-a0 name=x total=10000 used=0 gi=1\n"
                  "instance 0 1 uuid=MIG-a1 name=x total=40000 used=0 gi=2\nxid 4001 0 95\n");
    await_reason(f, one, "waiting for a MIG instance: none is free, 2 are drained (cuda:0.0: XID 95");
    call(f, undrain_apply, (void *)"GPU-a");
    await(f, one, JOB_RUN_RUNNING);
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
    await_reason(f, run, "1 is drained (cuda:0: a fan is loud)");
    cpu = submit(f, "cpu", 1);
    await(f, cpu, JOB_RUN_RUNNING);
    assert_string_equal(devices_of(f, cpu, 1), "cpu:0");
    call(f, undrain_apply, (void *)"GPU-00");
    await(f, run, JOB_RUN_RUNNING);
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
