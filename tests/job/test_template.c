/* Experiments by name: what a request becomes that names one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/job/job.h"
#include "daemon/job/template.h"

static struct job_template_docs docs;
static struct job_report report;

static int setup(void **state)
{
    (void)state;
    job_report_init(&report);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    job_report_done(&report);
    job_template_docs_done(&docs);
    return 0;
}

static enum pd_err fold(const char *json)
{
    return job_template_fold(json, strlen(json), NULL, &docs, &report);
}

/* As if the data roots held this one place. */
static bool find_one(void *user, const char *place, char *ret_path, size_t size)
{
    return !strcmp(place, user) && snprintf(ret_path, size, "r/%s", place) < (int)size;
}

static enum pd_err fold_with(const char *json, const char *place)
{
    const struct job_template_places places = {(void *)(uintptr_t)place, find_one};

    return job_template_fold(json, strlen(json), &places, &docs, &report);
}

static json_t *document(size_t i)
{
    json_t *doc = json_loadb(docs.json[i].data, docs.json[i].len, 0, NULL);

    assert_non_null(doc);
    return doc;
}

static void want(json_t *doc, const char *expected, const char *first, const char *second)
{
    json_t *value = json_object_get(doc, first), *like = json_loads(expected, JSON_DECODE_ANY, NULL);

    value = second ? json_object_get(value, second) : value;
    if (!json_equal(value, like))
        fail_msg("%s %s is %s, expected %s", first, second ? second : "",
                 json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT), expected);
    json_decref(like);
}

/* Real data where a root has them, what polyd makes where none has, and what the request names in any case. */
static void test_template_takes_the_data_that_are_there(void **state)
{
    static const struct {
        const char *request, *place, *dataset, *path;
    } cases[] = {
        {"{\"template\":\"E04\"}", "mnist", "\"mnist\"", "\"r/mnist\""},
        {"{\"template\":\"E04\"}", "tinyshakespeare/input.txt", "\"digits_gen\"", NULL},
        {"{\"template\":\"E11\"}", "tinyshakespeare/input.txt", "\"text\"",
         "\"r/tinyshakespeare/input.txt\""},
        {"{\"template\":\"E11\"}", "mnist", "\"text_gen\"", NULL},
        {"{\"template\":\"E04\",\"data\":{\"dataset\":\"digits_gen\"}}", "mnist", "\"digits_gen\"", NULL},
        {"{\"template\":\"E04\",\"data\":{\"path\":\"own/m\"}}", "mnist", "\"mnist\"", "\"own/m\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *doc;

        assert_int_equal(fold_with(cases[i].request, cases[i].place), PD_OK);
        doc = document(0);
        want(doc, cases[i].dataset, "data", "dataset");
        want(doc, cases[i].dataset, "tags", "data");
        assert_null(json_object_get(json_object_get(doc, "data"), "any"));
        if (cases[i].path)
            want(doc, cases[i].path, "data", "path");
        else
            assert_null(json_object_get(json_object_get(doc, "data"), "path"));
        json_decref(doc);
        job_template_docs_done(&docs);
    }
}

/* Every variant is a set of documents that the job table takes, or names what is missing. */
static void test_template_each_resolves_or_says_what_is_missing(void **state)
{
    static const char *const variants[] = {"small", "paper"};
    size_t run = 0, refused = 0;

    (void)state;
    assert_int_equal(job_template_count(), 38);
    for (size_t i = 0; i < job_template_count(); i++)
        for (size_t v = 0; v < 2; v++) {
            char request[128];

            snprintf(request, sizeof request, "{\"template\":\"%s\",\"variant\":\"%s\"%s}",
                     job_template_name(i), variants[v],
                     v ? ",\"data\":{\"path\":\"sets/of-the-paper\",\"tokenizer_path\":null}" : "");
            setup(NULL);
            if (fold(request) != PD_OK) {
                assert_int_equal(report.error_count, 1);
                assert_string_equal(report.errors[0].pointer, "#/template");
                assert_non_null(strstr(report.errors[0].detail, "cannot run yet: "));
                assert_int_equal(docs.count, 0);
                refused++;
            }
            for (size_t k = 0; k < docs.count; k++) {
                struct job_doc *job = NULL;
                json_t *doc = document(k);

                if (strstr(docs.json[k].data, "gpt2_bpe")) /* its files are the user's */
                    json_object_set_new(json_object_get(doc, "data"), "tokenizer_path",
                                        json_string("sets/gpt2"));
                else
                    json_object_del(json_object_get(doc, "data"), "tokenizer_path");
                {
                    char *text = json_dumps(doc, JSON_COMPACT);

                    if (job_parse(text, strlen(text), NULL, &job, &report) != PD_OK)
                        fail_msg("%s, job %zu: %s: %s", request, k, report.errors[0].pointer,
                                 report.errors[0].detail);
                    free(text);
                }
                assert_true(job_doc_head(job)->run_count <= 300);
                assert_string_equal(job_doc_head(job)->experiment, job_template_name(i));
                job_free(job);
                json_decref(doc);
                run++;
            }
            teardown(NULL);
        }
    assert_true(run >= 15);
    assert_true(refused > 40 && refused + run > 64);
}

static void test_template_is_changed_member_by_member(void **state)
{
    json_t *doc;

    (void)state;
    assert_int_equal(fold("{\"template\":\"E04\",\"name\":\"mine\",\"trials\":1,\"tags\":{\"who\":\"me\"},"
                          "\"train\":{\"steps\":7,\"optimizer\":{\"lr\":0.01}},\"model\":{\"width\":32}}"),
                     PD_OK);
    assert_int_equal(docs.count, 1);
    assert_string_equal(docs.name, "E04 small 2");
    assert_string_equal(docs.experiment, "E04");
    doc = document(0);
    want(doc, "\"mine\"", "name", NULL);
    want(doc, "1", "trials", NULL);
    want(doc, "{\"who\":\"me\",\"template\":\"E04\",\"variant\":\"small\",\"data\":\"digits_gen\"}", "tags", NULL);
    want(doc, "7", "train", "steps");
    assert_null(json_object_get(json_object_get(doc, "train"), "epochs")); /* which steps replace */
    want(doc, "64", "train", "batch");
    want(doc, "{\"name\":\"adamw\",\"lr\":0.01}", "train", "optimizer");
    want(doc, "\"vit_micro\"", "model", "preset");
    want(doc, "32", "model", "width");
    assert_null(json_object_get(doc, "template"));
    assert_null(json_object_get(doc, "variant"));
    json_decref(doc);
}

static void test_template_a_preset_replaces_the_model_and_a_recipe_the_training(void **state)
{
    json_t *doc;

    (void)state;
    assert_int_equal(fold("{\"template\":\"E09\",\"model\":{\"preset\":\"vit_tiny\"},\"experiment\":\"x\"}"),
                     PD_OK);
    assert_int_equal(docs.count, 2);
    assert_string_equal(docs.experiment, "x");
    for (size_t i = 0; i < 2; i++) {
        doc = document(i);
        want(doc, "{\"preset\":\"vit_tiny\"}", "model", NULL);
        want(doc, "\"x\"", "experiment", NULL);
        json_decref(doc);
    }
    job_template_docs_done(&docs);
    assert_int_equal(fold("{\"template\":\"E04\",\"recipe\":\"deit_b\",\"train\":{\"batch\":8}}"), PD_OK);
    doc = document(0);
    want(doc, "{\"batch\":8}", "train", NULL);
    want(doc, "\"deit_b\"", "recipe", NULL);
    json_decref(doc);
}

static void test_template_refuses_by_name(void **state)
{
    static const struct {
        const char *json, *pointer, *says;
    } wrong[] = {
        {"{\"template\":\"E19\"}", "#/template", "unknown template"},
        {"{\"template\":\"\"}", "#/template", "unknown template"},
        {"{\"template\":\"E07\"}", "#/template", "E07 in its variant \"small\" cannot run yet: detection"},
        {"{\"template\":\"theory/T3\"}", "#/template", "T3 in its variant"},
        {"{\"template\":\"E01\",\"variant\":\"large\"}", "#/variant", "must be"},
        {"{\"template\":\"E01\",\"variant\":3}", "#/variant", "must be"}};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(fold(wrong[i].json), PD_ERR_INVALID);
        assert_int_equal(report.error_count, 1);
        assert_string_equal(report.errors[0].pointer, wrong[i].pointer);
        if (!strstr(report.errors[0].detail, wrong[i].says))
            fail_msg("%s", report.errors[0].detail);
        assert_int_equal(docs.count, 0);
        teardown(NULL);
        setup(NULL);
    }
    /* What is no template is left to the table. */
    assert_int_equal(fold("{\"template\":null}"), PD_OK);
    assert_int_equal(docs.count, 0);
    assert_int_equal(fold("{\"template\":1}"), PD_OK);
    assert_int_equal(docs.count, 0);
    assert_int_equal(fold("[1"), PD_OK);
    assert_int_equal(docs.count, 0);
    assert_int_equal(report.error_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_each_resolves_or_says_what_is_missing),
        cmocka_unit_test(test_template_takes_the_data_that_are_there),
        cmocka_unit_test_setup_teardown(test_template_is_changed_member_by_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_template_a_preset_replaces_the_model_and_a_recipe_the_training,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_template_refuses_by_name, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
