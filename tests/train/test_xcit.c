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

#define COUNTED "patch_embed.proj.0.1.num_batches_tracked"

static bool is_count(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && !strcmp(dot, ".num_batches_tracked");
}

/* As PyTorch has them: whole, and never a mean of other counts. */
static void want_counts(const char *path, int64_t steps)
{
    static const char *const names[] = {COUNTED, "ema." COUNTED};
    struct train_state state;
    struct data_st *st = NULL;
    struct pd_why why;

    assert_int_equal(train_checkpoint_open(path, &st, &state, &why), PD_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct data_st_tensor *t = data_st_find(st, names[i]);
        int64_t count;

        assert_non_null(t);
        assert_int_equal(t->dtype, DATA_ST_I64);
        memcpy(&count, t->data, sizeof count);
        assert_int_equal(count, steps);
    }
    data_st_free(st);
}

/* Writes the checkpoint anew as polyd did before 2026-12: counts are F32, and their averages have fractions. */
static void make_old(const char *path)
{
    static const char written[] =
        " format polyd.format polyd.sha256 polyd.step polyd.applied polyd.nonfinite "
        "polyd.consecutive polyd.eval_due polyd.best_step polyd.stop_waited "
        "polyd.applied_before polyd.loss_train polyd.loss_val polyd.metric_val "
        "polyd.best_value polyd.score polyd.stop_best ";
    float count, average;
    struct train_tensor tensors[512] = {{.memory = NULL}};
    struct data_st_meta_item meta[96];
    size_t metas = 0;
    struct train_file_info info;
    struct train_state state;
    struct data_st *st = NULL;
    struct pd_why why;

    assert_int_equal(train_checkpoint_open(path, &st, &state, &why), PD_OK);
    assert_true(data_st_count(st) < 512);
    count = (float)state.applied;
    average = count - 0.75f;
    for (size_t i = 0; i < data_st_count(st); i++) {
        tensors[i].st = *data_st_at(st, i);
        if (is_count(tensors[i].st.name)) {
            tensors[i].st.dtype = DATA_ST_F32;
            tensors[i].st.bytes = sizeof count;
            tensors[i].st.data = strncmp(tensors[i].st.name, "ema.", 4) != 0 ? &count : &average;
        }
    }
    for (size_t i = 0; i < data_st_meta_count(st); i++) {
        const char *value, *key = data_st_meta_at(st, i, &value);
        char word[100];

        snprintf(word, sizeof word, " %s ", key);
        if (!strstr(written, word))
            meta[metas++] = (struct data_st_meta_item){key, value};
    }
    if (train_checkpoint_write(path, tensors, data_st_count(st), &state, meta, metas, NULL, NULL, &info,
                               &why) != PD_OK)
        fail_msg("%s", why.text);
    data_st_free(st);
}

static void test_xcit_counts_are_whole_and_old_files_go_on(void **state)
{
    const char *json = job(1, POLY, ",\"ema\":0.9");
    struct book whole = {0}, part = {.stop_after_calls = 7, .how = TRAIN_STOP_CHECKPOINT}, rest = {0};
    struct train_outcome out;
    struct pd_why why = {""};
    char path[1024];

    (void)state;
    assert_int_equal(run(json, &whole, NULL, 1, &out, &why), PD_OK);
    want_counts(whole.last_path, 12);
    clear();
    assert_int_equal(run(json, &part, NULL, 1, &out, &why), PD_OK);
    snprintf(path, sizeof path, "%s", part.last_path);
    assert_true(out.step > 0 && out.step < 12);
    want_counts(path, out.step);
    make_old(path);
    if (run(json, &rest, path, 1, &out, &why) != PD_OK)
        fail_msg("%s", why.text);
    want_counts(rest.last_path, 12);
    assert_true(find(&rest, "loss/train", 12)->value == find(&whole, "loss/train", 12)->value);
    assert_true(find(&rest, "loss/val", 12)->value == find(&whole, "loss/val", 12)->value);
    close_book(&whole);
    close_book(&part);
    close_book(&rest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_xcit_resume_is_bit_identical_at_random_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_xcit_counts_are_whole_and_old_files_go_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_xcit_of_two_ranks_is_that_of_one, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
