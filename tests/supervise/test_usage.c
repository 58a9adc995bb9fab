/* What runs take of their GPUs becomes series of the run. */
#include <math.h>

#include "kernels/base/clock.h"
#include "tests/supervise/gpu_rig.h"

#define WORDS " name=x total=100000 used=%d util=%d memutil=0 power=200000 temp=60\n"

struct found {
    int gpus;
    int64_t count;         /* of points, all series of gpu.0/utilization */
    double utilization[2]; /* the latest of each rank */
    double memory, most_memory, power, temperature;
    int attempt;
};

static bool series(void *ctx, const struct store_series *m)
{
    struct found *f = ctx;
    char what[32];
    int rank;

    if (sscanf(m->key, "system/gpu.%d/%31s", &rank, what) != 2)
        return true;
    f->gpus++;
    if (!strcmp(what, "utilization")) {
        f->utilization[rank & 1] = m->value;
        f->count += rank ? 0 : m->count;
        f->attempt = m->attempt;
    }
    if (rank)
        return true;
    if (!strcmp(what, "memory")) {
        f->memory = m->value;
        f->most_memory = m->max;
    }
    if (!strcmp(what, "power"))
        f->power = m->value;
    if (!strcmp(what, "temperature"))
        f->temperature = m->value;
    return true;
}

static struct found look(struct fixture *f, int64_t run)
{
    struct found found = {.gpus = 0};
    struct pd_why why;

    assert_int_equal(store_series_list(f->s, run, series, &found, &why), PD_OK);
    return found;
}

static struct found until_points(struct fixture *f, int64_t run, int64_t count)
{
    struct found found = {.gpus = 0};

    for (int i = 0; i < 4000; i++) {
        found = look(f, run);
        if (found.count >= count)
            return found;
        pause_ms(5);
    }
    fail_msg("run %lld has %lld points", (long long)run, (long long)found.count);
    return found;
}

static void machine(int first, int second, int used)
{
    char text[512];

    snprintf(text, sizeof text, "driver 580\ngpu 0 uuid=GPU-a" WORDS "gpu 1 uuid=GPU-b" WORDS, used, first,
             used, second);
    machine_write(text);
}

static void test_usage_of_each_rank_is_a_series_of_the_run(void **state)
{
    struct fixture *f = *state;
    int64_t run, cpu, began_us;
    struct found found;

    machine_begin("driver 580\n");
    machine(50, 75, 5000);
    up(f);
    began_us = pd_clock_mono_us();
    run = submit(f, "cuda", 2);
    cpu = submit(f, "cpu", 1);
    found = until_points(f, run, 5);
    assert_int_equal(found.gpus, 8);
    assert_true(found.utilization[0] == 0.5 && found.utilization[1] == 0.75);
    assert_true(found.memory == 5000 && found.power == 200 && found.temperature == 60);
    assert_int_equal(found.attempt, 1);
    /* Bounded: no point sooner than two samples after the one before. */
    assert_true(found.count <= (pd_clock_mono_us() - began_us) / (2 * f->o.gpu_sample_us) + 1);
    machine(20, 75, 9000);
    for (int i = 0; i < 4000 && look(f, run).utilization[0] != 0.2; i++)
        pause_ms(5);
    found = look(f, run);
    assert_true(found.utilization[0] == 0.2 && found.most_memory == 9000);
    assert_int_equal(look(f, cpu).gpus, 0);
    /* A daemon that adopts the run goes on with it. */
    down(f);
    found.count = 0;
    up(f);
    found = look(f, run);
    until_points(f, run, found.count + 2);
    cancel(f, run);
    cancel(f, cpu);
    await_state(f, "cuda:0", "free");
    found = look(f, run);
    pause_ms(150);
    assert_int_equal(look(f, run).count, found.count); /* nothing comes after the end */
}

static void test_usage_leaves_out_what_the_driver_does_not_tell(void **state)
{
    struct fixture *f = *state;
    struct found found = {.gpus = 0};
    int64_t run;

    machine_begin("driver 580\ngpu 0 uuid=GPU-a name=x total=100000 used=0 mig=1 util=90 temp=50 power=1000\n"
                  "instance 0 0 uuid=MIG-0 name=x total=40000 used=777 gi=1\n");
    up(f);
    run = submit(f, "cuda", 1);
    for (int i = 0; i < 4000 && !found.gpus; i++) {
        found = look(f, run);
        pause_ms(5);
    }
    assert_int_equal(found.gpus, 1);
    assert_true(found.memory == 777); /* of an instance that is all */
    cancel(f, run);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_usage_of_each_rank_is_a_series_of_the_run),
        TEST(test_usage_leaves_out_what_the_driver_does_not_tell),
    };

    return cmocka_run_group_tests_name("usage", tests, NULL, NULL);
}
