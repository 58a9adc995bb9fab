/* Several processes train one network: the trajectory is that of one process on the same global batch. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/comm/comm.h"
#include "tests/train/rig.h"

/* A job with its number of ranks; two of them live at once. */
static const char *job(int ranks, const char *attention, const char *train)
{
    static char text[4][2048];
    static int next;
    char *to = text[next++ % 4];

    snprintf(to, sizeof text[0],
             "{\"model\":{\"preset\":\"vit_micro\",\"width\":8,\"depth\":2,\"heads\":2,\"patch\":7,"
             "\"mlp_ratio\":2},\"attention\":{%s},\"data\":{\"dataset\":\"digits_gen\",\"split\":{\"rule\":"
             "\"count\",\"train\":40,\"val\":11}},\"diagnostics\":{\"every\":5,\"probe_batch\":3},"
             "\"resources\":{\"device\":\"cpu\",\"threads\":1,\"slots\":%d},\"train\":{\"steps\":12,"
             "\"batch\":8,\"eval_every\":5,\"checkpoint_every\":{\"steps\":4}%s}}",
             attention, ranks, train);
    return to;
}
#define POLY "\"activation\":\"poly\",\"degree\":3,\"scale\":\"learned\",\"scale_share\":\"head\""

static const struct form {
    const char *attention, *train;
    double tolerance;
} forms[] = {
    {POLY, ",\"precision\":\"fp64\",\"clip_norm\":0.5,\"label_smoothing\":0.1", 1e-9},
    {POLY, ",\"clip_norm\":0.5,\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05}", 5e-4},
    /* all noise: every rank has its rows of the masks that one process would draw */
    {POLY ",\"dropout\":0.2", ",\"precision\":\"fp64\",\"dropout\":0.2,\"drop_path\":0.3", 1e-9},
    {"", ",\"precision\":\"fp64\",\"accumulation\":2,\"dropout\":0.1,\"clip_norm\":0.5", 1e-9},
    {"", ",\"precision\":\"fp64\",\"ema\":0.9,\"optimizer\":{\"name\":\"msgd_l2\",\"lr\":0.01}", 1e-9},
};

static void test_ranks_make_the_course_of_one_process(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        struct book one = {0};
        struct train_outcome out;
        struct pd_why why;

        clear();
        if (run(job(1, forms[f].attention, forms[f].train), &one, NULL, 1, &out, &why) != PD_OK)
            fail_msg("form %zu: %s", f, why.text);
        for (int ranks = 2; ranks <= 4; ranks += 2)
            for (int zero = 0; zero < 2; zero++) {
                struct book many = {0};
                char train[512];

                snprintf(train, sizeof train, "%s%s", forms[f].train, zero ? ",\"zero\":1" : "");
                clear();
                if (run_ranks(ranks, job(ranks, forms[f].attention, train), &many, NULL, &out, &why) != PD_OK)
                    fail_msg("form %zu, %d ranks: %s", f, ranks, why.text);
                assert_int_equal(out.result, TRAIN_DONE);
                near_points(&one, &many, forms[f].tolerance);
                close_book(&many);
            }
        close_book(&one);
    }
}

/* Again, and again after stops: to the bit. */
static void resume(int ranks, const char *train)
{
    struct book whole = {0};
    struct train_outcome out;
    uint8_t *want, *got;
    size_t want_len, got_len;
    struct pd_why why;

    clear();
    assert_int_equal(run_ranks(ranks, job(ranks, POLY, train), &whole, NULL, &out, &why), PD_OK);
    read_whole(out.latest_path, &want, &want_len);
    for (int trial = 0; trial < 3; trial++) {
        struct book pieces = {0};
        int stops = 0;

        clear();
        do {
            pieces.asked = 0;
            pieces.how = TRAIN_STOP_CHECKPOINT;
            pieces.stop_after_calls = trial ? 8 + 2 * trial : 0;
            if (run_ranks(ranks, job(ranks, POLY, train), &pieces, NULL, &out, &why) != PD_OK)
                fail_msg("%s", why.text);
            assert_true(++stops < 30);
        } while (out.result == TRAIN_STOPPED);
        assert_int_equal(out.result, TRAIN_DONE);
        assert_true((stops > 1) == (trial > 0));
        same_points(&whole, &pieces);
        read_whole(out.latest_path, &got, &got_len);
        assert_int_equal(got_len, want_len);
        assert_memory_equal(got, want, want_len);
        free(got);
        close_book(&pieces);
    }
    free(want);
    close_book(&whole);
}

static void test_reruns_and_resumed_runs_of_ranks_are_equal_to_the_bit(void **state)
{
    (void)state;
    resume(2, ",\"dropout\":0.1,\"clip_norm\":0.5");
    resume(2, ",\"zero\":1,\"ema\":0.9");
    resume(4, ",\"zero\":1,\"optimizer\":{\"name\":\"msgdw\",\"lr\":0.05}");
}

/* ---- products of bf16 ---- */

static pid_t first_rank;
static bool others_have_products; /* as the other ranks have measured; rank 0 has the reference */

static enum pd_err open_as_measured(const struct pk_host *host, int device, int threads,
                                    struct pk_backend **ret, struct pd_why *why)
{
    enum pd_err err = pk_backend_cpu()->open(host, device, threads, ret, why);

    return err == PD_OK ? pk_cpu_bf16_hold(*ret, others_have_products && getpid() != first_rank, why) : err;
}

static void test_ranks_multiply_as_rank_0_does(void **state)
{
    const char *text = job(2, POLY, ",\"precision\":\"bf16\"");
    struct pk_backend_api cpu = *pk_backend_cpu();
    struct pk_backend *b = NULL;
    struct train_outcome out;
    struct pd_why why = {""};
    uint8_t *bytes[2]; /* of the last checkpoint: weights in f32 */
    size_t len[2];
    bool both;

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &b, &why), PD_OK);
    both = pk_cpu_bf16_hold(b, true, &why) == PD_OK;
    pk_backend_cpu()->close(b);
    if (!both)
        skip(); /* there is the reference alone */
    first_rank = getpid();
    cpu.open = open_as_measured;
    run_api = &cpu;
    for (int i = 0; i < 2; i++) {
        struct book book = {0};

        clear();
        others_have_products = i;
        if (run_ranks(2, text, &book, NULL, &out, &why) != PD_OK)
            fail_msg("%s", why.text);
        read_whole(out.latest_path, &bytes[i], &len[i]);
        close_book(&book);
    }
    run_api = NULL;
    assert_int_equal(len[0], len[1]);
    assert_memory_equal(bytes[0], bytes[1], len[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* A checkpoint holds the whole state, whoever kept it: any number of ranks goes on from it. */
static void test_a_checkpoint_is_gone_on_from_by_another_number_of_ranks(void **state)
{
    static const int turns[] = {1, 2, 4, 2, 1, 4};
    struct book whole = {0}, pieces = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    clear();
    assert_int_equal(
        run(job(1, POLY, ",\"precision\":\"fp64\",\"dropout\":0.1"), &whole, NULL, 1, &out, &why), PD_OK);
    clear();
    out.result = TRAIN_STOPPED;
    for (int i = 0; i < 6 && out.result == TRAIN_STOPPED; i++) {
        const char *text = job(turns[i], POLY,
                               i % 2 ? ",\"precision\":\"fp64\",\"dropout\":0.1,\"zero\":1"
                                     : ",\"precision\":\"fp64\",\"dropout\":0.1");
        enum pd_err err;

        pieces.asked = 0;
        pieces.how = TRAIN_STOP_CHECKPOINT;
        pieces.stop_after_calls = 5;
        err = turns[i] > 1 ? run_ranks(turns[i], text, &pieces, NULL, &out, &why)
                           : run(text, &pieces, NULL, 1, &out, &why);
        if (err != PD_OK)
            fail_msg("turn %d: %s", i, why.text);
    }
    assert_int_equal(out.result, TRAIN_DONE);
    near_points(&whole, &pieces, 1e-9);
    close_book(&whole);
    close_book(&pieces);
}

static void test_who_counts_other_ranks_is_refused(void **state)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    clear();
    assert_int_equal(run(job(2, "", ""), &b, NULL, 1, &out, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "/resources/slots is 2, but 1 ranks have started"));
    close_book(&b);
}

static void test_a_cancelled_run_ends_on_every_rank(void **state)
{
    struct book b = {.how = TRAIN_STOP_CANCEL, .stop_after_calls = 4};
    struct train_outcome out;
    struct pd_why why;

    (void)state;
    clear();
    assert_int_equal(run_ranks(2, job(2, "", ""), &b, NULL, &out, &why), PD_OK);
    assert_int_equal(out.result, TRAIN_CANCELLED);
    close_book(&b);
}

static int64_t unmeasured(const struct pk_comm *c)
{
    (void)c;
    return -1;
}

static void test_waiting_is_reported_where_it_is_measured(void **state)
{
    struct pk_comm_api comm = *pk_comm_local();
    struct train_outcome out;
    struct pd_why why;
    enum pd_err err;

    (void)state;
    comm.waited_us = unmeasured;
    for (int i = 0; i < 2; i++) {
        struct book b = {0};

        clear();
        first_comm = i ? &comm : NULL;
        err = run_ranks(2, job(2, "", ""), &b, NULL, &out, &why);
        first_comm = NULL;
        assert_int_equal(err, PD_OK);
        assert_true((b.comm_waits > 0) == !i);
        close_book(&b);
    }
}

/* ---- a rank that fails ---- */

static struct pk_comm_api bad;
static int calls, fail_at;

static enum pd_err drop_dead(struct pk_comm *c, const void *from, void *to, int64_t count,
                             enum pk_dtype dtype, int to_rank, void *stream, struct pd_why *why)
{
    if (++calls == fail_at)
        raise(SIGKILL);
    return pk_comm_local()->all_reduce(c, from, to, count, dtype, to_rank, stream, why);
}

static enum pd_err refuse(struct pk_comm *c, const void *from, void *to, int64_t count, enum pk_dtype dtype,
                          int to_rank, void *stream, struct pd_why *why)
{
    if (++calls == fail_at)
        return pd_fail(why, PD_ERR_NOMEM, "the bucket has a hole");
    return pk_comm_local()->all_reduce(c, from, to, count, dtype, to_rank, stream, why);
}

/* What a processor with a fault would do: one number is off by one bit. */
static enum pd_err lie(struct pk_comm *c, const void *from, void *to, int64_t count, enum pk_dtype dtype,
                       int to_rank, void *stream, struct pd_why *why)
{
    enum pd_err err = pk_comm_local()->all_reduce(c, from, to, count, dtype, to_rank, stream, why);

    if (++calls == fail_at && err == PD_OK)
        ((uint8_t *)to)[2] ^= 1;
    return err;
}

/* The number of checkpoints that were reported. */
static int fails(enum pd_err (*how)(struct pk_comm *, const void *, void *, int64_t, enum pk_dtype, int,
                                    void *, struct pd_why *),
                 int at, enum pd_err theirs, const char *first_text, const char *last_text)
{
    struct book b = {0};
    struct train_outcome out;
    struct pd_why why = {""};
    enum pd_err err;
    int written;

    clear();
    bad = *pk_comm_local();
    bad.all_reduce = how;
    calls = 0;
    fail_at = at;
    others_comm = &bad;
    others = theirs;
    err = run_ranks(2, job(2, "", ""), &b, NULL, &out, &why);
    others_comm = NULL;
    others = PD_OK;
    assert_int_not_equal(err, PD_OK);
    assert_int_equal(out.result, TRAIN_FAILED);
    if (!strstr(why.text, first_text) || (last_text && !strstr(last_rank_why, last_text)))
        fail_msg("rank 0 says '%s', rank 1 '%s'", why.text, last_rank_why);
    written = b.written;
    close_book(&b);
    return written;
}

static void test_the_death_of_a_rank_ends_the_run_and_is_named(void **state)
{
    (void)state;
    fails(drop_dead, 9, PD_ERR_COUNT, "rank 1 (process", NULL);
}

static void test_the_failure_of_a_rank_is_told_by_all(void **state)
{
    (void)state;
    fails(refuse, 9, PD_ERR_NOMEM, "rank 1: the bucket has a hole", "the bucket has a hole");
}

static void test_ranks_that_drift_apart_are_found_at_a_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(fails(lie, 4, PD_ERR_CORRUPT, "the parameters of rank 1 are not those of rank 0",
                           "the parameters of rank 1 are not those of rank 0"),
                     0);
    assert_int_equal(files(), 0); /* nor was one written */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_make_the_course_of_one_process),
        cmocka_unit_test(test_reruns_and_resumed_runs_of_ranks_are_equal_to_the_bit),
        cmocka_unit_test(test_ranks_multiply_as_rank_0_does),
        cmocka_unit_test(test_a_checkpoint_is_gone_on_from_by_another_number_of_ranks),
        cmocka_unit_test(test_who_counts_other_ranks_is_refused),
        cmocka_unit_test(test_a_cancelled_run_ends_on_every_rank),
        cmocka_unit_test(test_waiting_is_reported_where_it_is_measured),
        cmocka_unit_test(test_the_death_of_a_rank_ends_the_run_and_is_named),
        cmocka_unit_test(test_the_failure_of_a_rank_is_told_by_all),
        cmocka_unit_test(test_ranks_that_drift_apart_are_found_at_a_checkpoint),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
