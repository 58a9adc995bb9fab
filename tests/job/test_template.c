/* Experiments by name: what a request becomes that names one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "daemon/job/claim.h"
#include "daemon/job/job.h"
#include "daemon/job/metric.h"
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
                     v && job_template_name(i)[0] == 'E'
                         ? ",\"data\":{\"path\":\"sets/of-the-paper\",\"tokenizer_path\":null}"
                         : "");
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
    assert_true(refused < 20 && refused + run > 64);
}

/* A check of the theory is one document, and takes parameters. */
static void test_template_of_a_check_takes_parameters(void **state)
{
    static const char *const names[] = {"T4", "theory/T4"};
    json_t *doc;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char request[96];

        snprintf(request, sizeof request, "{\"template\":\"%s\",\"params\":{\"seeds\":1}}", names[i]);
        assert_int_equal(fold(request), PD_OK);
        assert_int_equal(docs.count, 1);
        assert_string_equal(docs.name, "T4 small 2");
        assert_string_equal(docs.experiment, "T4");
        doc = document(0);
        want(doc, "\"check\"", "kind", NULL);
        want(doc, "\"T4\"", "check", NULL);
        want(doc, "{\"seeds\":1}", "params", NULL);
        json_decref(doc);
        job_template_docs_done(&docs);
    }
}

/* How many combinations of the job have the values of the point. */
static size_t fitting(const struct job_doc *job, const json_t *point)
{
    size_t found = 0;

    for (int64_t n = 0; n < job_run_count(job); n++) {
        struct pd_buf b;
        json_t *values;

        if (job_run_trial(job, n))
            continue;
        pd_buf_init(&b, 0);
        assert_int_equal(job_run_params(job, n, &b, NULL), PD_OK);
        values = json_loadb(b.data, b.len, 0, NULL);
        found += job_claim_fits(point, values);
        json_decref(values);
        pd_buf_done(&b);
    }
    return found;
}

/* A resolved document of the first run that a term names writes the metric. */
static void wants_metric(const struct job_doc *job, const char *key)
{
    const struct job_metric *metric = job_metric_find(key);
    struct job_config *config = NULL;
    struct pd_buf b;

    if (!metric)
        fail_msg("no metric '%s'", key);
    pd_buf_init(&b, 0);
    assert_int_equal(job_run_resolve(job, 0, &b, NULL), PD_OK);
    assert_int_equal(job_config_load(b.data, b.len, &config, NULL), PD_OK);
    if (metric->written && !metric->written(config))
        fail_msg("its runs do not write '%s'", key);
    job_config_free(config);
    pd_buf_done(&b);
}

/* The job's sweep varies a number there. */
static void wants_axis(const struct job_doc *job, const char *pointer)
{
    struct pd_buf b;
    json_t *values;

    pd_buf_init(&b, 0);
    assert_int_equal(job_run_params(job, 0, &b, NULL), PD_OK);
    values = json_loadb(b.data, b.len, 0, NULL);
    if (!json_is_number(json_object_get(values, pointer)))
        fail_msg("its sweep has no number at '%s'", pointer);
    json_decref(values);
    pd_buf_done(&b);
}

static size_t check_side(const struct job_claim *c, const struct job_claim_side *side, struct job_doc **jobs,
                         size_t job_count)
{
    for (size_t t = 0; t < side->count; t++) {
        const struct job_claim_term *term = &side->term[t];

        assert_true(term->job < job_count);
        wants_metric(jobs[term->job], c->metric);
        for (size_t p = 0; p < term->count; p++)
            if (fitting(jobs[term->job], term->point[p]) != 1)
                fail_msg("'%s': a point fits %zu combinations", c->sentence,
                         fitting(jobs[term->job], term->point[p]));
    }
    return side->count;
}

static void test_template_each_claim_names_what_its_jobs_have(void **state)
{
    size_t judged = 0;

    (void)state;
    for (size_t i = 0; i < job_template_count(); i++) {
        struct job_doc *jobs[JOB_TEMPLATE_JOBS] = {0};
        char request[64];
        size_t len;
        const char *text = job_template_text(i, &len);
        json_t *file = json_loadb(text, len, 0, NULL), *claim, *small;
        json_t *claims;
        size_t k;

        small = json_object_get(json_object_get(file, "variants"), "small");
        claims = json_object_get(small, "claims");
        assert_null(json_object_get(json_object_get(json_object_get(file, "variants"), "paper"), "claims"));
        assert_true(json_is_array(claims) == !json_object_get(small, "refused"));
        setup(NULL);
        snprintf(request, sizeof request, "{\"template\":\"%s\"}", job_template_name(i));
        if (claims)
            assert_int_equal(fold(request), PD_OK);
        for (k = 0; claims && k < docs.count; k++)
            assert_int_equal(job_parse(docs.json[k].data, docs.json[k].len, NULL, &jobs[k], &report), PD_OK);
        json_array_foreach(claims, k, claim)
        {
            struct job_claim c;
            struct pd_why why = {.text = ""};

            if (job_claim_read(claim, &c, &why) != PD_OK)
                fail_msg("%s, claim %zu: %s", job_template_name(i), k, why.text);
            if (c.slope_axis) {
                assert_true(c.slope_job < docs.count);
                wants_metric(jobs[c.slope_job], c.metric);
                wants_axis(jobs[c.slope_job], c.slope_axis);
                continue;
            }
            judged += check_side(&c, &c.arm, jobs, docs.count) > 0;
            check_side(&c, &c.against, jobs, docs.count);
        }
        for (k = 0; k < JOB_TEMPLATE_JOBS; k++)
            job_free(jobs[k]);
        json_decref(file);
        teardown(NULL);
    }
    assert_true(judged >= 60);
}

static void test_template_claim_refuses_what_is_not_its_vocabulary(void **state)
{
    static const char arm[] = "\"arm\":{\"point\":{}},\"against\":0";
    static const struct {
        const char *more, *says;
    } wrong[] = {
        {"\"is\":\"equal\",\"metric\":\"a\"", "is"},
        {"\"is\":\"less\"", "metric"},
        {"\"is\":\"less\",\"metric\":\"a\",\"margin\":-1", "margin"},
        {"\"is\":\"less\",\"metric\":\"a\",\"value\":\"mean\"", "value"},
        {"\"is\":\"less\",\"metric\":\"a\",\"relative\":1", "relative"},
        {"\"is\":\"less\",\"metric\":\"a\",\"distance\":true", "arm"},
        {"\"is\":\"less\",\"metric\":\"a\",\"seed\":1", "no member 'seed'"},
        {"\"is\":\"less\",\"metric\":\"a\",\"slope\":{\"axis\":\"/attention/k\"}", "slope"}, /* and an arm */
    };
    char text[256];

    (void)state;
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        bool good = i == sizeof wrong / sizeof *wrong;
        struct pd_why why = {.text = ""};
        struct job_claim c;
        json_t *json;

        snprintf(text, sizeof text, "{\"says\":\"x\",%s,%s}",
                 good ? "\"is\":\"less\",\"metric\":\"a\"" : wrong[i].more, arm);
        json = json_loads(text, 0, NULL);
        assert_int_equal(job_claim_read(json, &c, &why), good ? PD_OK : PD_ERR_INVALID);
        if (!good && !strstr(why.text, wrong[i].says))
            fail_msg("%s", why.text);
        json_decref(json);
    }
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
    want(doc, "{\"who\":\"me\",\"template\":\"E04\",\"variant\":\"small\",\"data\":\"digits_gen\"}", "tags",
         NULL);
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
        cmocka_unit_test_setup_teardown(test_template_of_a_check_takes_parameters, setup, teardown),
        cmocka_unit_test(test_template_each_claim_names_what_its_jobs_have),
        cmocka_unit_test(test_template_claim_refuses_what_is_not_its_vocabulary),
        cmocka_unit_test_setup_teardown(test_template_is_changed_member_by_member, setup, teardown),
        cmocka_unit_test_setup_teardown(test_template_a_preset_replaces_the_model_and_a_recipe_the_training,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_template_refuses_by_name, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
