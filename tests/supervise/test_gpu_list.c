/* The supervisor when the list of GPUs changes under it: runs on what is gone start again elsewhere, nothing
 * is placed there, and what comes is used. */
#include "kernels/base/clock.h"
#include "tests/supervise/gpu_rig.h"

#define GPU(i, id) "gpu " #i " uuid=" id " name=x total=100000 used=0\n"

static void test_gpu_list_a_run_leaves_a_gpu_that_is_gone(void **state)
{
    struct fixture *f = *state;
    struct store_run r;
    int64_t a, b, c;

    machine_begin("driver 580\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    up(f);
    a = submit(f, "cuda", 1);
    await_step(f, a, 5);
    assert_string_equal(devices_of(f, a, 1), "GPU-a");
    machine_write("driver 580\n" GPU(0, "GPU-b"));
    await_step(f, a, 6);
    for (int i = 0; i < 2000 && strcmp(devices_of(f, a, 2), "GPU-b") != 0; i++)
        pause_ms(5);
    r = await(f, a, JOB_RUN_RUNNING);
    assert_int_equal(r.attempts, 2);
    assert_int_equal(r.restarts, 0); /* not the run's own fault */
    assert_string_equal(devices_of(f, a, 1), "GPU-a");
    assert_int_equal(attempt_cause, JOB_CAUSE_LOST);
    assert_non_null(strstr(attempt_message, "cuda:0: the driver lists the GPU no longer"));
    assert_string_equal(device(f, "cuda:0").id, "GPU-b");
    /* Nothing is placed there, and nobody is told that it could never be: it may come back. */
    b = submit(f, "cuda", 1);
    await_reason(f, b, "waiting for a GPU: none is free, 1 is gone (gone:0: the driver lists it no longer)");
    c = submit(f, "cuda", 2);
    await_reason(f, c, "1 is gone");
    assert_int_equal(sup_gpu_count(f->sup, NULL, NULL), 1);
    machine_write("driver 580\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    await(f, b, JOB_RUN_RUNNING);
    assert_string_equal(devices_of(f, b, 1), "GPU-a");
    assert_string_equal(device(f, "cuda:1").id, "GPU-b");
    assert_int_equal(device(f, "cuda:1").run_id, a); /* its place and its run stayed */
    cancel(f, a);
    cancel(f, b);
    await(f, c, JOB_RUN_RUNNING);
    cancel(f, c);
}

static void test_gpu_list_the_first_gpu_of_a_machine_is_used(void **state)
{
    struct fixture *f = *state;
    char why[SUP_WHY_BYTES];
    int64_t run;

    machine_begin("driver 580\n");
    up(f);
    assert_false(sup_cuda(f->sup, why));
    assert_string_equal(why, "this node has no NVIDIA GPU: the driver finds no GPU");
    run = submit(f, "cuda", 1);
    await_reason(f, run, "waiting for a GPU, but this machine has none: the driver finds no GPU");
    machine_write("driver 580\n" GPU(0, "GPU-a"));
    await(f, run, JOB_RUN_RUNNING);
    assert_string_equal(devices_of(f, run, 1), "GPU-a");
    assert_true(sup_cuda(f->sup, why));
    assert_string_equal(why, "");
    cancel(f, run);
    machine_write("driver 580\n");
    await_state(f, "cuda:0", "gone");
    assert_false(sup_cuda(f->sup, why));
    assert_string_equal(why, "this node has no NVIDIA GPU: the driver lists its GPUs no longer");
}

static void test_gpu_list_instances_are_made_anew(void **state)
{
    struct fixture *f = *state;
    int64_t one, two;

    machine_begin("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n"
                  "instance 0 0 uuid=MIG-0 name=x total=40000 used=0 gi=1\n");
    up(f);
    one = submit(f, "cuda", 1);
    await_step(f, one, 5);
    assert_string_equal(devices_of(f, one, 1), "MIG-0");
    two = submit(f, "cuda", 1);
    await_reason(f, two, "waiting for a MIG instance: the only one is in use");
    /* Taken apart under a run; while there is none, both wait, and neither is given up. */
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n");
    await_reason(f, one, "this machine has none: its GPUs are split, and no MIG instance was made");
    await_reason(f, two, "this machine has none: its GPUs are split, and no MIG instance was made");
    assert_string_equal(devices_of(f, one, 1), "MIG-0");
    assert_non_null(strstr(attempt_message, "the MIG instance was taken apart"));
    machine_write("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1\n"
                  "instance 0 0 uuid=MIG-1 name=x total=20000 used=0 gi=1\n"
                  "instance 0 1 uuid=MIG-2 name=x total=20000 used=0 gi=2\n");
    await(f, one, JOB_RUN_RUNNING);
    await(f, two, JOB_RUN_RUNNING);
    assert_string_equal(device(f, "cuda:0.0").id, "MIG-1"); /* the old one is not shown any more */
    cancel(f, one);
    cancel(f, two);
    /* A whole GPU again. */
    machine_write("driver 580\n" GPU(0, "GPU-a"));
    await_state(f, "cuda:0", "free");
    one = submit(f, "cuda", 1);
    await(f, one, JOB_RUN_RUNNING);
    assert_string_equal(devices_of(f, one, 1), "GPU-a");
    cancel(f, one);
}

static void test_gpu_list_what_is_drained_is_so_when_it_comes_back(void **state)
{
    struct fixture *f = *state;
    int64_t run;

    machine_begin("driver 580\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    up(f);
    call(f, drain_apply, (void *)"GPU-b");
    await_state(f, "cuda:1", "drained");
    machine_write("driver 580\n" GPU(0, "GPU-a"));
    await_state(f, "cuda:1", "gone");
    machine_write("driver 580\n" GPU(0, "GPU-a") GPU(1, "GPU-b"));
    await_state(f, "cuda:1", "drained");
    run = submit(f, "cuda", 2);
    await_reason(f, run, "waiting for 2 GPUs: 1 is free, 1 is drained (cuda:1: a fan is loud)");
    call(f, undrain_apply, (void *)"GPU-b");
    await(f, run, JOB_RUN_RUNNING);
    cancel(f, run);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_gpu_list_a_run_leaves_a_gpu_that_is_gone),
        TEST(test_gpu_list_the_first_gpu_of_a_machine_is_used),
        TEST(test_gpu_list_instances_are_made_anew),
        TEST(test_gpu_list_what_is_drained_is_so_when_it_comes_back),
    };

    return cmocka_run_group_tests_name("gpu list", tests, NULL, NULL);
}
