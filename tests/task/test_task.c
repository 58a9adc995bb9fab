/* The table of tasks, their evaluators, and what they ask of a data set. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/job.h"
#include "daemon/worker/task/task.h"

static struct pd_why why;

/* An evaluation graph's outputs: the numbers of one batch. */
struct outputs {
    double loss_sum, count, correct;
    bool broken;
};

static enum pd_err read_outputs(void *user, const char *name, double *to, size_t count, struct pd_why *reason)
{
    const struct outputs *o = user;

    if (!strncmp(name, "range_",
                 6)) { /* of 1, 2, 3-4 and 5: the loss is twice the last position in each batch */
        const double loss[] = {2, 4, 8, 10};

        assert_int_equal(count, 4);
        for (size_t i = 0; i < count; i++)
            to[i] = !strcmp(name, "range_loss") ? loss[i] : (double)(i + 1);
        return PD_OK;
    }
    assert_int_equal(count, 1);
    if (o->broken && !strcmp(name, "correct"))
        return pd_fail(reason, PD_ERR_IO, "no correct ones");
    *to = !strcmp(name, "loss_sum") ? o->loss_sum : !strcmp(name, "count") ? o->count : o->correct;
    return PD_OK;
}

/* Two batches of 4 and 1 counted targets. */
static void evaluate(const struct task *t, double number[TASK_NUMBERS_MAX], double at[TASK_RANGES_MAX])
{
    struct outputs batch[] = {{.loss_sum = 5, .count = 4, .correct = 1}, {.loss_sum = 2.5, .count = 1}};
    struct task_score score;

    t->begin(&score, 5);
    for (size_t i = 0; i < 2; i++) {
        const struct task_outputs from = {.user = &batch[i], .read = read_outputs};

        assert_int_equal(t->add(&score, &from, &why), PD_OK);
    }
    assert_true(score.count <= MODEL_SUMS_MAX);
    t->end(&score, number);
    if (t->ranges)
        t->end_at(&score, at);
}

static void test_task_evaluations_are_means_over_all_targets(void **state)
{
    double images[TASK_NUMBERS_MAX], tokens[TASK_NUMBERS_MAX], at[TASK_RANGES_MAX];

    (void)state;
    evaluate(&task_classify, images, at);
    evaluate(&task_language, tokens, at);
    assert_true(at[0] == exp(2) && at[1] == exp(2) && at[2] == exp(8.0 / 3) && at[3] == exp(2.5));
    assert_string_equal(task_classify.numbers[1].key[DATA_SCORED_VAL], "acc/val");
    assert_string_equal(task_language.numbers[1].key[DATA_SCORED_VAL], "ppl/val");
    assert_true(images[0] == 1.5 && tokens[0] == 1.5);
    assert_true(images[1] == 0.2);
    assert_true(tokens[1] == exp(1.5));
}

static void test_task_ranges_of_positions_are_powers_of_two_and_end_with_the_context(void **state)
{
    static const struct {
        int32_t context;
        size_t count;
        int32_t last[8];
    } cases[] = {{1, 1, {1}},
                 {2, 2, {1, 2}},
                 {3, 3, {1, 2, 3}},
                 {8, 4, {1, 2, 4, 8}},
                 {100, 8, {1, 2, 4, 8, 16, 32, 64, 100}}};
    int32_t last[TASK_RANGES_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(task_language.ranges(cases[i].context, last), cases[i].count);
        assert_memory_equal(last, cases[i].last, cases[i].count * sizeof *last);
    }
    assert_int_equal(task_language.ranges(1 << 20, last), 21);
    assert_null(task_classify.ranges);
}

static void test_task_an_evaluation_fails_with_the_graph(void **state)
{
    struct outputs batch = {.count = 1, .broken = true};
    const struct task_outputs from = {.user = &batch, .read = read_outputs};
    struct task_score score;

    (void)state;
    task_classify.begin(&score, 0);
    assert_int_equal(task_classify.add(&score, &from, &why), PD_ERR_IO);
    assert_string_equal(why.text, "no correct ones");
}

static void test_task_steps_of_images_have_an_accuracy(void **state)
{
    const double report[] = {1.25, 8, 6};

    (void)state;
    assert_string_equal(task_classify.steps[0].key, "acc/train");
    assert_true(task_classify.steps[0].of(report) == 0.75);
    assert_true(task_classify.steps[0].unmixed);
    assert_null(task_classify.steps[1].key);
    assert_string_equal(task_classify_text.steps[0].key, "acc/train");
    assert_null(task_language.steps[0].key);
}

/* The rows of daemon/job and the files here are the same tasks, and what ranks checkpoints is measured. */
static void test_task_every_data_set_of_the_build_has_a_task_that_measures_its_best(void **state)
{
    size_t seen = 0;

    (void)state;
    for (int i = 0; job_dataset_info((enum job_dataset)i); i++) {
        struct job_config c = {.data = {.dataset = i}};
        const struct job_task *words = job_config_task(&c);
        const struct task *t = task_find(words->name);
        size_t best, averaged;
        bool maximise;

        if (!job_dataset_info((enum job_dataset)i)->available)
            continue;
        assert_non_null(t);
        assert_int_equal(task_number(t, words->best, &best, &why), PD_OK);
        assert_int_equal(task_number(t, words->best_averaged, &averaged, &why), PD_OK);
        assert_int_equal(best, averaged);
        assert_string_equal(job_config_best_metric(&c, &maximise), words->best);
        c.train.ema = 0.9;
        c.train.ema_serve = true;
        assert_string_equal(job_config_best_metric(&c, &maximise), words->best_averaged);
        seen++;
    }
    assert_true(seen >= 10);
    assert_int_equal(task_number(&task_classify, "ppl/val", &seen, &why), PD_ERR_INTERNAL);
    assert_string_equal(why.text, "task classify measures no ppl/val");
    assert_null(task_find("none"));
}

static void test_task_of_a_network_follows_from_what_it_reads(void **state)
{
    const struct model_spec vit = {.arch = &model_vit, .classes = 2}, gpt = {.arch = &model_gpt},
                            labels = {.arch = &model_gpt, .classes = 2};

    (void)state;
    assert_ptr_equal(task_of(&vit), &task_classify);
    assert_ptr_equal(task_of(&gpt), &task_language);
    assert_ptr_equal(task_of(&labels), &task_classify_text);
}

static void test_task_refuses_a_data_set_without_its_inputs(void **state)
{
    const struct data_options o = {
        .dataset = DATA_SET_DIGITS_GEN, .rule = DATA_SPLIT_COUNT, .train_count = 4, .val_count = 2};
    struct task other = task_classify;
    struct data_set *set = NULL;

    (void)state;
    assert_int_equal(data_open(&o, true, &set, &why), PD_OK);
    assert_int_equal(task_check(&task_classify, set, &why), PD_OK);
    assert_int_equal(task_check(&task_language, set, &why), PD_ERR_UNSUPPORTED);
    assert_string_equal(why.text, "task language reads 'input' of i32, the data set has u8");
    other.inputs[2].name = "mask";
    other.inputs[2].dtype = PK_U8;
    assert_int_equal(task_check(&other, set, &why), PD_ERR_UNSUPPORTED);
    assert_string_equal(why.text, "task classify reads 'mask' of u8, the data set has none");
    data_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_task_evaluations_are_means_over_all_targets),
        cmocka_unit_test(test_task_ranges_of_positions_are_powers_of_two_and_end_with_the_context),
        cmocka_unit_test(test_task_an_evaluation_fails_with_the_graph),
        cmocka_unit_test(test_task_steps_of_images_have_an_accuracy),
        cmocka_unit_test(test_task_every_data_set_of_the_build_has_a_task_that_measures_its_best),
        cmocka_unit_test(test_task_of_a_network_follows_from_what_it_reads),
        cmocka_unit_test(test_task_refuses_a_data_set_without_its_inputs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
