/* Nystromformers in whole runs: stops at random moments leave no trace, and two ranks compute what one process does. What
 * their numbers are is held against formulas in tests/wiring. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/train/rig.h"

static const char *job(int slots, const char *data, const char *more, const char *train)
{
    static char text[2][2048];
    static int next;
    char *to = text[next++ % 2];

    snprintf(to, sizeof text[0],
             "{\"model\":{\"preset\":\"nystrom_micro\",\"width\":8,\"depth\":1,\"heads\":2,\"mlp_ratio\":1,"
             "\"conv_kernel\":5%s},"
             "\"data\":{%s,\"split\":{\"train\":40,\"val\":11,\"test\":3}},"
             "\"diagnostics\":{\"every\":5,\"probe_batch\":3},\"resources\":{\"device\":\"cpu\",\"threads\":"
             "1,\"slots\":%d},"
             "\"train\":{\"steps\":12,\"batch\":8,\"eval_every\":5,\"checkpoint_every\":{\"steps\":4}%s}}",
             more, data, slots, train);
    return to;
}
#define LISTOPS "\"dataset\":\"listops_gen\""
#define SMALL ",\"context\":32,\"landmarks\":4"
#define PICTURES "\"dataset\":\"pathfinder_gen\""
#define SIXTEEN ",\"context\":256,\"landmarks\":16"
#define POLY "},\"attention\":{\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\""

static void test_nystrom_resume_is_bit_identical_at_random_stops(void **state)
{
    (void)state;
    check_random_stops(job(1, PICTURES, SIXTEEN POLY, ",\"dropout\":0.1"), 6);
    clear();
    check_random_stops(job(1, LISTOPS, SMALL, ",\"dropout\":0.1,\"drop_path\":0.2"), 6);
    clear();
    check_random_stops(job(1, LISTOPS, SMALL POLY, ",\"accumulation\":2,\"ema\":0.9,\"clip_norm\":0.5"), 3);
    clear();
    check_random_stops(job(1, LISTOPS, SMALL, ",\"precision\":\"bf16\""), 2);
}

static void test_nystrom_of_two_ranks_is_that_of_one(void **state)
{
    static const struct {
        const char *data, *model, *train;
    } forms[] = {{LISTOPS, SMALL POLY, ",\"dropout\":0.1,\"drop_path\":0.2"},
                 {LISTOPS, SMALL, ",\"ema\":0.9,\"accumulation\":2"},
                 {PICTURES, SIXTEEN POLY, ""}};

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct book one = {0}, two = {0};
        struct train_outcome out;
        struct pd_why why;
        char train[128];

        snprintf(train, sizeof train, ",\"precision\":\"fp64\"%s", forms[f].train);
        clear();
        if (run(job(1, forms[f].data, forms[f].model, train), &one, NULL, 1, &out, &why) != PD_OK)
            fail_msg("form %zu: %s", f, why.text);
        clear();
        if (run_ranks(2, job(2, forms[f].data, forms[f].model, train), &two, NULL, &out, &why) != PD_OK)
            fail_msg("form %zu, two ranks: %s", f, why.text);
        near_points(&one, &two, 1e-9);
        close_book(&one);
        close_book(&two);
    }
}

static double largest_residual(const struct book *b)
{
    double most = 0;

    for (size_t i = 0; i < b->count; i++)
        if (!strncmp(b->points[i].key, "nystrom/residual/", 17) && b->points[i].value > most)
            most = b->points[i].value;
    return most;
}

/* One step of the pseudo-inverse leaves much of it, thirty leave little; a run says so once. */
static void test_nystrom_large_residual_is_one_event(void **state)
{
    static const struct {
        const char *steps;
        bool large;
    } forms[] = {{",\"pinv_iterations\":1", true}, {",\"pinv_iterations\":30", false}};

    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        struct book b = {0};
        struct train_outcome out;
        struct pd_why why;
        char model[128], *event;

        snprintf(model, sizeof model, "%s%s", SMALL, forms[f].steps);
        clear();
        if (run(job(1, LISTOPS, model, ""), &b, NULL, 1, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_true((largest_residual(&b) > 0.01) == forms[f].large);
        event = strstr(b.events, "large_residual");
        assert_true((event != NULL) == forms[f].large);
        assert_null(event ? strstr(event + 1, "large_residual") : NULL);
        close_book(&b);
    }
}

/* attention.n_valid multiplies the three matrices of a sequence by the root of n over its tokens, and with them their
 * derivative by W_Q, though x stays what it is. Of one sequence of the probe, before the first step. */
static void test_nystrom_n_valid_scales_the_norm_and_its_derivative_alike(void **state)
{
    static const char *const sizes[] = {SMALL, ",\"context\":32,\"landmarks\":32"}; /* the other is exact */

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        double norm[2], slope[2];

        for (int valid = 0; valid < 2; valid++) {
            struct book b = {0};
            struct train_outcome out;
            struct pd_why why;
            char model[256], text[2048], *probe;

            snprintf(model, sizeof model, "%s" POLY ",\"n_valid\":%s", sizes[f], valid ? "true" : "false");
            snprintf(text, sizeof text, "%s", job(1, LISTOPS, model, ",\"precision\":\"fp64\""));
            probe = strstr(text, "\"probe_batch\":3");
            assert_non_null(probe);
            probe[strlen("\"probe_batch\":")] = '1';
            clear();
            if (run(text, &b, NULL, 1, &out, &why) != PD_OK)
                fail_msg("%s", why.text);
            norm[valid] = find(&b, "attn/fro/1", 0)->value;
            slope[valid] = find(&b, "attn/jac_q_fro/1", 0)->value;
            close_book(&b);
        }
        assert_true(norm[1] > 1.01 * norm[0]); /* the sequence has padding */
        assert_true(fabs(slope[1] / slope[0] / (norm[1] / norm[0]) - 1) < 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nystrom_resume_is_bit_identical_at_random_stops, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_nystrom_of_two_ranks_is_that_of_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nystrom_large_residual_is_one_event, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nystrom_n_valid_scales_the_norm_and_its_derivative_alike, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
