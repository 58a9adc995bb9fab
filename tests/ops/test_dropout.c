/* Dropout as a caller meets it: what changes a mask and what does not, how much is kept, what is refused. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 40
#define COLUMNS 70

struct asked {
    double seed_low, seed_high, step, rate;
    uint32_t stream;
    bool samples;
};

/* The output for an input of ones; the caller frees it. */
static double *drop_ones(struct asked a)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_fill(r->g, PK_F32, PK_SHAPE(ROWS, COLUMNS), 1.0);
    struct pk_val rng = pk_input(r->g, "rng", PK_I32, PK_SHAPE(3));
    struct pk_val y =
        a.samples ? pk_drop_path(r->g, x, rng, a.rate, a.stream) : pk_dropout(r->g, x, rng, a.rate, a.stream);
    const double words[3] = {a.seed_low, a.seed_high, a.step};
    double *out;
    int64_t n;

    pk_output(r->g, "y", y);
    rig_plan(r);
    rig_set(r, "rng", words);
    rig_run(r);
    out = rig_read(r, "y", &n);
    assert_int_equal(n, ROWS * COLUMNS);
    rig_free(r);
    return out;
}

static bool same(struct asked a, struct asked b)
{
    double *x = drop_ones(a), *y = drop_ones(b);
    bool equal = memcmp(x, y, ROWS * COLUMNS * sizeof *x) == 0;

    free(x);
    free(y);
    return equal;
}

static void test_dropout_depends_on_seed_step_and_stream(void **state)
{
    const struct asked a = {5, 6, 7, 0.5, 8, false};

    (void)state;
    assert_true(same(a, a));
    assert_false(same(a, (struct asked){4, 6, 7, 0.5, 8, false}));
    assert_false(same(a, (struct asked){5, 7, 7, 0.5, 8, false}));
    assert_false(same(a, (struct asked){5, 6, 8, 0.5, 8, false}));
    assert_false(same(a, (struct asked){5, 6, 7, 0.5, 9, false}));
}

static void test_dropout_keeps_its_share_and_the_mean(void **state)
{
    static const double rates[] = {0.1, 0.5, 0.9};

    (void)state;
    for (int k = 0; k < 3; k++) {
        double *y = drop_ones((struct asked){1, 0, 0, rates[k], 0, false}), sum = 0, zeros = 0;
        double n = ROWS * COLUMNS, spread = sqrt(n * rates[k] * (1 - rates[k]));

        for (int i = 0; i < ROWS * COLUMNS; i++) {
            sum += y[i];
            zeros += y[i] == 0;
            assert_true(y[i] == 0 || fabs(y[i] * (1 - rates[k]) - 1) < 1e-6);
        }
        assert_true(fabs(zeros - n * rates[k]) < 4 * spread);
        assert_true(fabs(sum - n) < 4 * spread / (1 - rates[k]));
        free(y);
    }
}

static void test_drop_path_takes_whole_samples(void **state)
{
    double *y = drop_ones((struct asked){1, 0, 0, 0.5, 0, true});
    int kept = 0;

    (void)state;
    for (int r = 0; r < ROWS; r++) {
        for (int c = 1; c < COLUMNS; c++)
            assert_true(y[r * COLUMNS + c] == y[r * COLUMNS]);
        kept += y[r * COLUMNS] != 0;
    }
    assert_true(kept > 5 && kept < ROWS - 5);
    free(y);
}

/* Half `share` of the rows, drawn as if the whole were there. */
static double *drop_half(bool samples, double share)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_fill(r->g, PK_F32, PK_SHAPE(ROWS / 2, COLUMNS), 1.0);
    struct pk_val rng = pk_input(r->g, "rng", PK_I32, PK_SHAPE(4));
    const double words[4] = {5, 6, 7, share};
    double *out;
    int64_t n;

    pk_output(r->g, "y", samples ? pk_drop_path(r->g, x, rng, 0.5, 8) : pk_dropout(r->g, x, rng, 0.5, 8));
    rig_plan(r);
    rig_set(r, "rng", words);
    rig_run(r);
    out = rig_read(r, "y", &n);
    rig_free(r);
    return out;
}

static void test_shares_of_a_batch_have_the_masks_of_the_whole(void **state)
{
    (void)state;
    for (int samples = 0; samples < 2; samples++) {
        double *whole = drop_ones((struct asked){5, 6, 7, 0.5, 8, samples});

        for (int share = 0; share < 2; share++) {
            double *half = drop_half(samples, share);

            assert_memory_equal(half, whole + share * ROWS / 2 * COLUMNS, ROWS / 2 * COLUMNS * sizeof *half);
            free(half);
        }
        free(whole);
    }
}

static void test_dropout_is_the_identity_without_a_generator(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 3));
    struct pk_val rng = pk_input(r->g, "rng", PK_I32, PK_SHAPE(3));

    (void)state;
    assert_int_equal(pk_dropout(r->g, x, PK_NONE, 0.5, 1).id, x.id);
    assert_int_equal(pk_drop_path(r->g, x, PK_NONE, 0.5, 1).id, x.id);
    assert_int_equal(pk_dropout(r->g, x, rng, 0.0, 1).id, x.id);
    rig_free(r);
}

static void refused(double rate, uint32_t stream, enum pk_dtype rng_dtype, int64_t words, const char *says)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 3));

    pk_dropout(r->g, x, pk_input(r->g, "rng", rng_dtype, PK_SHAPE(words)), rate, stream);
    assert_int_equal(pk_graph_check(r->g, &r->why), PD_ERR_INVALID);
    if (!strstr(r->why.text, says))
        fail_msg("'%s' does not say '%s'", r->why.text, says);
    rig_free(r);
}

static void test_dropout_refuses_what_makes_no_sense(void **state)
{
    (void)state;
    refused(1.0, 0, PK_I32, 3, "rate");
    refused(-0.1, 0, PK_I32, 3, "rate");
    refused(NAN, 0, PK_I32, 3, "rate");
    refused(0.5, 0x80000000u, PK_I32, 3, "stream");
    refused(0.5, 0, PK_I32, 2, "seed");
    refused(0.5, 0, PK_I32, 5, "seed");
    refused(0.5, 0, PK_F32, 3, "seed");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout_depends_on_seed_step_and_stream),
        cmocka_unit_test(test_dropout_keeps_its_share_and_the_mean),
        cmocka_unit_test(test_drop_path_takes_whole_samples),
        cmocka_unit_test(test_shares_of_a_batch_have_the_masks_of_the_whole),
        cmocka_unit_test(test_dropout_is_the_identity_without_a_generator),
        cmocka_unit_test(test_dropout_refuses_what_makes_no_sense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
