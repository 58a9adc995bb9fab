/* Kinds of jobs, and documents that name a checkpoint. */
#include "tests/job/help.h"

#define SHA "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_each_kind_has_a_row_and_is_found_by_its_name(void **state)
{
    (void)state;
    for (int i = 0; i < JOB_KIND_COUNT; i++) {
        const struct job_kind_info *info = job_kind_info((enum job_kind)i);
        enum job_kind kind = JOB_KIND_COUNT;

        assert_true(info->name && info->meaning);
        assert_true(job_kind_parse(info->name, &kind) && kind == (enum job_kind)i);
        assert_true(info->worker == (info->takes != NULL));
    }
    assert_true(job_kind_has(JOB_KIND_EVALUATE, "attention", 9));
    assert_false(job_kind_has(JOB_KIND_EVALUATE, "sweep", 5));
    assert_false(job_kind_has(JOB_KIND_SELFTEST, "data", 4));
    assert_false(job_kind_listed("names, data", "name", 4));
}

static void refuses(const char *document, const char *pointer, const char *words)
{
    struct parsed p = parse(document);

    if (p.err != PD_ERR_INVALID || !told(p.report.errors, p.report.error_count, pointer, words)) {
        dump(&p);
        fail_msg("%s: expected %s: %s", document, pointer, words);
    }
    done(&p);
}

static void test_a_kind_takes_its_own_members_alone(void **state)
{
    struct parsed p = want_ok("{\"kind\":\"selftest\",\"resources\":{\"slots\":2}}");
    json_t *run = run_json(p.job, 0);

    (void)state;
    assert_int_equal(job_doc_head(p.job)->kind, JOB_KIND_SELFTEST);
    assert_string_equal(json_string_value(json_object_get(run, "kind")), "selftest");
    assert_null(json_object_get(run, "model"));
    assert_null(json_object_get(run, "train"));
    assert_null(json_object_get(run, "trials"));
    json_decref(run);
    done(&p);
    refuses("{\"kind\":\"selftest\",\"train\":{\"steps\":3}}", "#/train",
            "a job of kind selftest has no train");
    refuses("{\"kind\":\"selftest\",\"sweep\":null}", "#/sweep", "its members are name, experiment");
    refuses("{\"kind\":\"external\",\"model\":{}}", "#/kind", "must be one of train, evaluate, selftest");
    refuses("{\"evaluate\":{\"split\":\"val\"}}", "#/evaluate", "a job of kind train has no evaluate");
    refuses("{\"kind\":\"train\",\"overrides\":{\"/kind\":\"selftest\"}}", "#/overrides/~1kind",
            "cannot be overridden");
}

static void test_what_no_kind_has_hides_no_other_error(void **state)
{
    struct parsed p = parse("{\"kind\":\"evalute\"}");

    (void)state;
    assert_int_equal(p.err, PD_ERR_INVALID);
    assert_int_equal(p.report.error_count, 1);
    assert_true(told(p.report.errors, 1, "#/kind", "did you mean 'evaluate'?"));
    done(&p);
}

static void test_an_evaluation_has_one_device_and_no_curves(void **state)
{
    char *doc = with(EVALUATE, "/resources", "{\"slots\":2,\"device\":\"cpu\"}");

    (void)state;
    refuses(doc, "#/resources/slots", "runs on one device");
    free(doc);
    assert_false(job_kind_info(JOB_KIND_EVALUATE)->curves);
}

/* ---- check ---- */

static void test_a_check_has_the_parameters_of_its_statement_with_defaults(void **state)
{
    struct parsed p = want_ok("{\"kind\":\"check\",\"check\":\"T4\",\"params\":{\"N\":[4,8],\"d\":2.0}}");
    json_t *run = run_json(p.job, 0), *params = json_object_get(run, "params");
    struct job_config *config = NULL;
    const struct job_param *param;
    char *text = json_dumps(run, 0);
    size_t count = 0;

    (void)state;
    while ((param = job_theorem_param(JOB_THEOREM_T4, count))) {
        assert_non_null(json_object_get(params, param->name));
        count++;
    }
    assert_int_equal(json_object_size(params), count);
    assert_int_equal(json_integer_value(json_object_get(params, "seeds")), 3);
    assert_int_equal(json_array_size(json_object_get(params, "N")), 2);
    assert_true(json_is_integer(json_object_get(params, "d"))); /* 2.0 is 2 */
    assert_null(json_object_get(run, "train"));
    assert_int_equal(job_config_load(text, strlen(text), &config, NULL), PD_OK);
    assert_int_equal(config->check.theorem, JOB_THEOREM_T4);
    assert_int_equal(config->check.params.count, count);
    assert_true(job_param_find(&config->check.params, "N")->items[1] == 8);
    assert_true(job_param_find(&config->check.params, "D")->items[0] == 24);
    assert_null(job_param_find(&config->check.params, "kappa"));
    job_config_free(config);
    free(text);
    json_decref(run);
    done(&p);
}

static void test_a_check_refuses_wrong_parameters_by_name(void **state)
{
    static const struct {
        const char *params, *pointer, *words;
    } cases[] = {
        {"{\"M\":1}", "#/params/M", "T4 has no such parameter"},
        {"{\"draw\":100}", "#/params/draw", "did you mean 'draws'?"},
        {"{\"kappa\":[1]}", "#/params/kappa", "T4 has no such parameter"},
        {"{\"d\":0}", "#/params/d", "must be at least 1 and at most 256"},
        {"{\"d\":257}", "#/params/d", "must be at least 1 and at most 256"},
        {"{\"d\":1.5}", "#/params/d", "must be an integer, not a fraction"},
        {"{\"d\":\"8\"}", "#/params/d", "must be an integer, not a string"},
        {"{\"d\":[8]}", "#/params/d", "must be an integer, not an array"},
        {"{\"N\":16}", "#/params/N", "must be an array of 1 to 32 numbers"},
        {"{\"N\":[]}", "#/params/N", "must be an array of 1 to 32 numbers"},
        {"{\"N\":[8,8]}", "#/params/N", "must be strictly increasing"},
        {"{\"N\":[8,true]}", "#/params/N", "must be an array of integers"},
        {"{\"N\":[8,5000]}", "#/params/N", "at most 1024"},
        {"{\"sigma_x\":null}", "#/params/sigma_x", "must be a number"},
        {"{\"seeds\":17}", "#/params/seeds", "at most 16"},
        {"{\"seed\":-1}", "#/params/seed", "must be at least 0"},
        {"3", "#/params", "must be an object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(CHECK, "/params", cases[i].params);

        refuses(doc, cases[i].pointer, cases[i].words);
        free(doc);
    }
    refuses("{\"kind\":\"check\"}", "#/check", "is needed");
    refuses("{\"kind\":\"check\",\"check\":\"T21\"}", "#/check", "must be one of T1, T2");
    refuses("{\"kind\":\"check\",\"check\":\"T4\",\"train\":{\"steps\":3}}", "#/train",
            "a job of kind check has no train");
    refuses("{\"kind\":\"check\",\"check\":\"T4\",\"resources\":{\"device\":\"cuda\"}}", "#/resources/device",
            "computes on the CPU");
    refuses("{\"kind\":\"check\",\"check\":\"T4\",\"resources\":{\"slots\":2}}", "#/resources/slots",
            "runs on one device");
}

/* auto is the CPU, also where there is a GPU. */
static void test_a_check_takes_no_gpu(void **state)
{
    const struct job_env env = {.threads = 2, .cuda = true, .keep_best = -1, .keep_latest = -1};
    struct parsed p = parse_env(CHECK, &env);

    (void)state;
    assert_int_equal(p.err, PD_OK);
    assert_int_equal(job_doc_head(p.job)->resources.device, JOB_DEVICE_CPU);
    done(&p);
}

/* Every default is a value that the row allows. */
static void test_the_parameters_of_every_statement_have_good_defaults(void **state)
{
    (void)state;
    for (int t = 0; t < JOB_THEOREM_COUNT; t++) {
        char doc[64];
        struct parsed p;

        snprintf(doc, sizeof doc, "{\"kind\":\"check\",\"check\":\"%s\"}",
                 job_theorem_name((enum job_theorem)t));
        p = want_ok(doc);
        done(&p);
        for (size_t i = 0; job_theorem_param((enum job_theorem)t, i); i++) {
            const struct job_param *a = job_theorem_param((enum job_theorem)t, i);

            assert_true(a->meaning && a->min < a->max);
            for (size_t k = 0; k < i; k++)
                assert_string_not_equal(a->name, job_theorem_param((enum job_theorem)t, k)->name);
        }
    }
}

/* ---- wanted ---- */

static void wants(const char *document, const char *model, int64_t run, const char *checkpoint)
{
    struct job_report report;
    struct job_wanted w;

    job_report_init(&report);
    assert_int_equal(job_checkpoint_wanted(document, strlen(document), &w, &report), PD_OK);
    assert_true(w.present);
    assert_string_equal(w.model, model);
    if (!model[0])
        assert_int_equal(w.run, run);
    assert_string_equal(w.checkpoint, checkpoint);
    job_report_done(&report);
}

static void wants_not(const char *document, const char *pointer)
{
    struct job_report report;
    struct job_wanted w;

    job_report_init(&report);
    assert_int_equal(job_checkpoint_wanted(document, strlen(document), &w, &report), PD_ERR_INVALID);
    if (!told(report.errors, report.error_count, pointer, ""))
        fail_msg("%s: no error at %s", document, pointer);
    job_report_done(&report);
}

static void test_a_checkpoint_is_named_by_version_or_by_run(void **state)
{
    struct job_report report;
    struct job_wanted w;

    (void)state;
    wants("{\"kind\":\"evaluate\",\"model\":\"mnist:3\"}", "mnist:3", 0, "");
    wants("{\"kind\":\"evaluate\",\"run\":\"12\"}", "", 12, "best");
    wants("{\"kind\":\"evaluate\",\"run\":12,\"checkpoint\":\"last\"}", "", 12, "last");
    wants("{\"kind\":\"evaluate\",\"run\":\"12\",\"checkpoint\":30,\"split\":\"val\"}", "", 12, "30");
    wants(EVALUATE, "", 12, "30");
    wants_not("{\"kind\":\"evaluate\"}", "#/model");
    wants_not("{\"kind\":\"evaluate\",\"model\":{\"preset\":\"vit_micro\"}}", "#/model");
    wants_not("{\"kind\":\"evaluate\",\"model\":\"a\",\"run\":\"1\"}", "#/run");
    wants_not("{\"kind\":\"evaluate\",\"model\":\"a\",\"checkpoint\":\"best\"}", "#/checkpoint");
    wants_not("{\"kind\":\"evaluate\",\"run\":\"-1\"}", "#/run");
    wants_not("{\"kind\":\"evaluate\",\"run\":\"1\",\"checkpoint\":\"newest\"}", "#/checkpoint");
    wants_not("{\"kind\":\"evaluate\",\"run\":\"1\",\"split\":\"all\"}", "#/split");
    wants_not("{\"kind\":\"evaluate\",\"evaluate\":{\"run\":\"1\"}}", "#/evaluate");
    job_report_init(&report);
    assert_int_equal(job_checkpoint_wanted(VIT, strlen(VIT), &w, &report), PD_OK);
    assert_false(w.present);
    assert_int_equal(job_checkpoint_wanted("[", 1, &w, &report), PD_OK);
    assert_false(w.present);
    job_report_done(&report);
}

/* ---- the complete document ---- */

static enum pd_err fold(const char *document, const char *of_run, struct pd_buf *ret,
                        struct job_report *report)
{
    const struct job_found found = {.run = 12,
                                    .step = 30,
                                    .path = "runs/12/checkpoints/a.safetensors",
                                    .sha256 = SHA,
                                    .document = of_run};

    return job_checkpoint_fold(document, strlen(document), &found, ret, report);
}

static void folds_not_of(const char *of_run, const char *document, const char *pointer, const char *words)
{
    struct job_report report;
    struct pd_buf out;

    pd_buf_init(&out, 0);
    job_report_init(&report);
    assert_int_equal(fold(document, of_run, &out, &report), PD_ERR_INVALID);
    if (!told(report.errors, report.error_count, pointer, words))
        fail_msg("%s: expected %s: %s", document, pointer, words);
    job_report_done(&report);
    pd_buf_done(&out);
}

static void folds_not(const char *document, const char *pointer, const char *words)
{
    folds_not_of(VIT, document, pointer, words);
}

/* The resolved document of the complete one; and that again is the same. */
static json_t *folded(const char *document, const char *of_run)
{
    struct job_report report;
    struct pd_buf out, again, run;
    struct parsed p;
    char *text;
    json_t *v;

    pd_buf_init(&out, 0);
    pd_buf_init(&again, 0);
    pd_buf_init(&run, 0);
    job_report_init(&report);
    assert_int_equal(job_config_complete(of_run, strlen(of_run), &run, NULL), PD_OK);
    assert_int_equal(fold(document, run.data, &out, &report), PD_OK);
    p = want_ok(out.data);
    text = run_text(p.job, 0);
    v = run_json(p.job, 0);
    assert_int_equal(fold(text, run.data, &again, &report), PD_OK);
    done(&p);
    p = want_ok(again.data);
    free(text);
    text = run_text(p.job, 0);
    {
        json_t *same = json_loads(text, 0, NULL);

        assert_true(json_equal(v, same));
        json_decref(same);
    }
    free(text);
    done(&p);
    job_report_done(&report);
    pd_buf_done(&run);
    pd_buf_done(&again);
    pd_buf_done(&out);
    return v;
}

static const char *text_at(json_t *v, const char *pointer)
{
    return json_string_value(job_json_at(v, pointer));
}

static void test_the_complete_document_computes_what_the_run_did(void **state)
{
    static const char run[] =
        "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\"},"
        "\"data\":{\"dataset\":\"mnist\",\"path\":\"a/b\",\"image_size\":20,\"split\":{\"rule\":"
        "\"count\",\"train\":64,\"val\":8}},\"train\":{\"epochs\":1}}";
    json_t *v = folded("{\"kind\":\"evaluate\",\"run\":\"12\",\"name\":\"e\"}", run);

    (void)state;
    assert_string_equal(text_at(v, "/attention/activation"), "poly");
    assert_string_equal(text_at(v, "/data/path"), "a/b");
    assert_string_equal(text_at(v, "/data/split/rule"), "count");
    assert_string_equal(text_at(v, "/evaluate/sha256"), SHA);
    assert_string_equal(text_at(v, "/evaluate/split"), "test");
    assert_string_equal(text_at(v, "/name"), "e");
    assert_null(json_object_get(v, "run"));
    assert_null(json_object_get(v, "diagnostics"));
    json_decref(v);
    /* another set begins from its own defaults, and is seen as the checkpoint sees pictures */
    v = folded(
        "{\"kind\":\"evaluate\",\"run\":\"12\",\"split\":\"val\",\"data\":{\"dataset\":\"digits_gen\"}}",
        run);
    assert_string_equal(text_at(v, "/data/split/rule"), "standard");
    assert_string_equal(text_at(v, "/evaluate/split"), "val");
    assert_int_equal(json_integer_value(job_json_at(v, "/data/image_size")), 20);
    assert_true(json_is_null(job_json_at(v, "/data/path")));
    json_decref(v);
}

static void test_what_the_checkpoint_says_cannot_be_changed(void **state)
{
    (void)state;
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"train\":{\"steps\":3}}", "#/train", "omit it");
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"model\":{\"preset\":\"vit_tiny\"}}", "#/model",
              "omit it");
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"attention\":\"poly\"}", "#/attention", "omit it");
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"data\":{\"image_size\":14}}", "#/data/image_size",
              "is fixed by the checkpoint to 28");
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"data\":{\"tokenizer\":\"chars\"}}", "#/data/tokenizer",
              "is fixed by the checkpoint to \"bytes\"");
}

static void test_an_equation_is_scored_on_itself_alone(void **state)
{
    (void)state;
    folds_not_of(WAVE, "{\"kind\":\"evaluate\",\"run\":\"12\",\"data\":{\"dataset\":\"pde_reaction\"}}",
                 "#/data/dataset", "a network of pde_wave cannot be scored on pde_reaction: omit data");
    folds_not_of(WAVE, "{\"kind\":\"evaluate\",\"model\":\"w:1\",\"data\":{\"dataset\":\"digits_gen\"}}",
                 "#/data/dataset", "a network of pde_wave cannot be scored on digits_gen: omit data");
    folds_not("{\"kind\":\"evaluate\",\"run\":\"12\",\"data\":{\"dataset\":\"pde_wave\"}}", "#/data/dataset",
              "a network of mnist cannot be scored on pde_wave: omit data");
    folds_not_of(WAVE,
                 "{\"kind\":\"evaluate\",\"run\":\"12\",\"data\":{\"dataset\":\"pde_wave\","
                 "\"pde\":{\"grid\":7}}}",
                 "#/data/pde", "}: omit it");
    json_decref(
        folded("{\"kind\":\"evaluate\",\"run\":\"12\",\"split\":\"val\",\"data\":{\"dataset\":\"pde_wave\"}}",
               WAVE));
}

static void test_an_equation_is_scored_on_its_evaluation_grid_by_default(void **state)
{
    json_t *v = folded("{\"kind\":\"evaluate\",\"run\":\"12\"}", WAVE);

    (void)state;
    assert_string_equal(text_at(v, "/evaluate/split"), "val");
    json_decref(v);
    v = folded("{\"kind\":\"evaluate\",\"run\":\"12\",\"split\":\"train\"}", WAVE);
    assert_string_equal(text_at(v, "/evaluate/split"), "train");
    json_decref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_has_a_row_and_is_found_by_its_name),
        cmocka_unit_test(test_a_kind_takes_its_own_members_alone),
        cmocka_unit_test(test_what_no_kind_has_hides_no_other_error),
        cmocka_unit_test(test_an_evaluation_has_one_device_and_no_curves),
        cmocka_unit_test(test_a_check_has_the_parameters_of_its_statement_with_defaults),
        cmocka_unit_test(test_a_check_refuses_wrong_parameters_by_name),
        cmocka_unit_test(test_a_check_takes_no_gpu),
        cmocka_unit_test(test_the_parameters_of_every_statement_have_good_defaults),
        cmocka_unit_test(test_a_checkpoint_is_named_by_version_or_by_run),
        cmocka_unit_test(test_the_complete_document_computes_what_the_run_did),
        cmocka_unit_test(test_what_the_checkpoint_says_cannot_be_changed),
        cmocka_unit_test(test_an_equation_is_scored_on_itself_alone),
        cmocka_unit_test(test_an_equation_is_scored_on_its_evaluation_grid_by_default),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
