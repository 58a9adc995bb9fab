/* XCiT in whole runs: stops at random moments leave no trace in parameters, buffers, averages; two ranks normalise by
 * the batch of both. What its numbers are is held against formulas in tests/wiring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/train/rig.h"

static const char *job(int slots, const char *attention, const char *train)
{
    static char text[2][2048];
    static int next;
    char *to = text[next++ % 2];

    snprintf(to, sizeof text[0],
             "{\"model\":{\"preset\":\"xcit_micro\",\"width\":8,\"depth\":1,\"heads\":2,\"mlp_ratio\":1,"
             "\"layerscale\":0.5},"
             "\"attention\":{%s},\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":\"count\","
             "\"train\":40,\"val\":11}},"
             "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":"
             "1,\"slots\":%d},"
             "\"train\":{\"steps\":12,\"batch\":8,\"eval_every\":5,\"checkpoint_every\":{\"steps\":4}%s}}",
             attention, slots, train);
    return to;
}
#define POLY "\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\""

static void test_xcit_resume_is_bit_identical_at_random_stops(void **state)
{
    (void)state;
    check_random_stops(job(1, POLY ",\"dropout\":0.1", ",\"dropout\":0.1,\"drop_path\":0.2"), 14);
    clear();
    check_random_stops(
        job(1, "\"class_attention\":\"softmax\"", ",\"accumulation\":2,\"ema\":0.9,\"clip_norm\":0.5"), 4);
    clear();
    check_random_stops(job(1, POLY, ",\"precision\":\"bf16\",\"accumulation\":2"), 2);
}

static void test_xcit_of_two_ranks_is_that_of_one(void **state)
{
    static const char *const forms[] = {",\"precision\":\"fp64\",\"drop_path\":0.2",
                                        ",\"precision\":\"fp64\",\"ema\":0.9,\"zero\":1",
                                        ",\"precision\":\"fp64\",\"accumulation\":2"};

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct book one = {0}, two = {0};
        struct train_outcome out;
        struct pd_why why;
        char alone[128];

        snprintf(alone, sizeof alone, "%.*s", (int)strcspn(forms[f], "z"), forms[f]); /* without "zero" */
        if (strstr(forms[f], "zero"))
            alone[strlen(alone) - 2] = '\0';
        clear();
        if (run(job(1, POLY, alone), &one, NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        clear();
        if (run_ranks(2, job(2, POLY, forms[f]), &two, NULL, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        near_points(&one, &two, 1e-9);
        close_book(&one);
        close_book(&two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_xcit_resume_is_bit_identical_at_random_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_xcit_of_two_ranks_is_that_of_one, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
