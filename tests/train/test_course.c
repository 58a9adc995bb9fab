/* Forms of training beside the plain one: each goes on bit for bit after a stop, and does what it says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/train/rig.h"

/* The deep one: DNT's S5 under momentum, with all noise. */
#define JOB(model, attention, train)                                                                         \
    "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"mlp_ratio\":"    \
    "2" model "},"                                                                                           \
    "\"attention\":{" attention "},"                                                                         \
    "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"          \
    "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"      \
    "\"train\":{\"steps\":24,\"batch\":8,\"eval_every\":7,\"checkpoint_every\":{\"steps\":6}" train "}}"

static void test_noise_of_a_step_is_the_same_after_a_stop(void **state)
{
    (void)state;
    check_random_stops(JOB("", "\"activation\":\"poly\",\"scale\":\"learned\"",
                           ",\"dropout\":0.2,\"drop_path\":0.3,\"optimizer\":{\"lr\":0.01}"),
                       3);
}

/* Noise changes the loss in training; the scores of a network do not depend on it. */
static void test_noise_is_of_training_alone(void **state)
{
    static const char *const jobs[] = {
        JOB("", "", ",\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"dropout\":0.4,\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"drop_path\":0.5,\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"drop_path\":0.5,\"drop_path_rule\":\"same\",\"optimizer\":{\"lr\":1e-12}"),
        JOB("", "", ",\"dropout\":0.4,\"seed\":0,\"optimizer\":{\"lr\":1e-12}"),
    };
    struct book b[5] = {{0}};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 5; i++) {
        clear();
        assert_int_equal(run(jobs[i], &b[i], NULL, 2, &out, &why), PD_OK);
        assert_true(fabs(find(&b[i], "loss/val", 7)->value - find(&b[0], "loss/val", 7)->value) < 1e-6);
        assert_true(find(&b[i], "attn/fro/1", 0)->value == find(&b[0], "attn/fro/1", 0)->value);
        for (int k = 0; k < i; k++)
            if (!(k == 1 && i == 4))
                assert_true(find(&b[i], "loss/train", 3)->value != find(&b[k], "loss/train", 3)->value);
    }
    assert_true(find(&b[4], "loss/train", 3)->value == find(&b[1], "loss/train", 3)->value);
    for (int i = 0; i < 5; i++)
        close_book(&b[i]);
}

static void test_deeply_normalised_network_runs_under_momentum(void **state)
{
    (void)state;
    check_random_stops(
        "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,\"pos_after\":"
        "true},"
        "\"norm\":{\"placement\":\"S5\"},\"attention\":{\"activation\":\"poly\",\"scale\":\"learned\"},"
        "\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\",\"train\":40,\"val\":11}},"
        "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":2},"
        "\"train\":{\"steps\":24,\"batch\":8,\"eval_every\":7,\"optimizer\":{\"name\":\"msgdw\"}}}",
        2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_noise_of_a_step_is_the_same_after_a_stop),
        T(test_noise_is_of_training_alone),
        T(test_deeply_normalised_network_runs_under_momentum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
