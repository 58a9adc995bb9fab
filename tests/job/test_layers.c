/* tests/job/test_layers.c: recipes, presets and overrides as layers; the data roots. */
#include <math.h>

#include "tests/job/help.h"

/* ---- Layers ---- */

static void check_value(const char *doc, const char *pointer, double want)
{
    struct parsed p = parse(doc);
    json_t *run;

    if (p.err != PD_OK) {
        dump(&p);
        fail_msg("%s", doc);
    }
    run = run_json(p.job, 0);
    if (json_number_value(job_json_at(run, pointer)) != want)
        fail_msg("%s: %s is not %g", doc, pointer, want);
    json_decref(run);
    done(&p);
}

#define RECIPE_GPT                                                                                           \
    "{\"recipe\":\"gpt2_owt\",\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"text\",\"path\":" \
    "\"a\",\"tokenizer\":\"bytes\"},"                                                                        \
    "\"train\":{\"precision\":\"fp32\"}}"

static void test_later_layers_win(void **state)
{
    char *doc;

    (void)state;
    /* recipe over built-in, document over recipe, overrides over document */
    check_value(RECIPE_GPT, "/train/optimizer/lr", 0.0006);
    check_value(RECIPE_GPT, "/train/steps", 600000);
    check_value(RECIPE_GPT, "/train/schedule/warmup_steps", 2000);
    doc = with(RECIPE_GPT, "/train/optimizer/lr", "0.5");
    check_value(doc, "/train/optimizer/lr", 0.5);
    free(doc);
    doc = with(RECIPE_GPT, "/overrides", "{\"/train/optimizer/lr\":0.25}");
    check_value(doc, "/train/optimizer/lr", 0.25);
    free(doc);
    /* Of a group the layer that names one key hides the other below it. */
    doc = with(RECIPE_GPT, "/train/epochs", "3");
    check_value(doc, "/train/epochs", 3);
    check_value(doc, "/train/steps", 0);
    free(doc);
    doc = with(RECIPE_GPT, "/overrides", "{\"/train/schedule\":{\"warmup_epochs\":0.5},\"/train/epochs\":2}");
    check_value(doc, "/train/schedule/warmup_epochs", 0.5);
    check_value(doc, "/train/schedule/warmup_steps", 0);
    free(doc);
    /* preset, and the document over it */
    doc = with(GPT, "/model/context", "16");
    check_value(doc, "/model/context", 16);
    check_value(doc, "/attention/n", 16);
    free(doc);
    /* an override may even choose the preset */
    doc = with(GPT, "/overrides", "{\"/model/preset\":\"gpt_nano\"}");
    check_value(doc, "/model/width", 384);
    free(doc);
    /* the more precise pointer wins, in whatever order they stand */
    doc = with(GPT, "/overrides",
               "{\"/train/optimizer/lr\":0.5,\"/train/optimizer\":{\"lr\":0.25,\"eps\":0.1}}");
    check_value(doc, "/train/optimizer/lr", 0.5);
    check_value(doc, "/train/optimizer/eps", 0.1);
    free(doc);
}

/* What each recipe says, to the letter; as much as fits no other recipe by accident. */
static void test_recipes_say_what_their_projects_do(void **state)
{
    static const struct {
        const char *recipe, *pointer, *want;
    } cases[] = {
        {"vit_b", "/train/epochs", "300"},
        {"vit_b", "/train/batch", "1024"},
        {"vit_b", "/train/optimizer/lr", "0.001"},
        {"vit_b", "/train/optimizer/weight_decay", "0.05"},
        {"vit_b", "/train/schedule/warmup_epochs", "5"},
        {"vit_b", "/train/schedule/warmup_lr", "1e-6"},
        {"vit_b", "/train/schedule/min_lr", "1e-5"},
        {"vit_b", "/train/schedule/shifted", "false"},
        {"vit_b", "/train/schedule/per", "\"epoch\""},
        {"vit_b", "/train/label_smoothing", "0.1"},
        {"vit_b", "/train/drop_path", "0.1"},
        {"vit_b", "/train/ema", "0.99996"},
        {"vit_b", "/data/augment/mixup", "0.8"},
        {"vit_b", "/data/augment/cutmix", "1"},
        {"vit_b", "/data/augment/erasing", "0.25"},
        {"vit_b", "/data/augment/flip", "0.5"},
        {"vit_b", "/data/augment/eval_crop", "0.875"},
        {"vit_b", "/data/augment/repeats", "3"},
        {"vit_b_augreg", "/train/batch", "4096"},
        {"vit_b_augreg", "/train/optimizer/weight_decay", "0.1"},
        {"vit_b_augreg", "/train/schedule/warmup_steps", "10000"},
        {"vit_b_augreg", "/train/schedule/min_lr", "0"},
        {"vit_b_augreg", "/train/clip_norm", "1"},
        {"vit_b_augreg", "/data/augment/interpolation", "\"bilinear\""},
        {"swin_b", "/train/schedule/warmup_epochs", "20"},
        {"swin_b", "/train/schedule/warmup_lr", "1e-6"},
        {"swin_b", "/train/schedule/min_lr", "1e-5"},
        {"swin_b", "/train/clip_norm", "5"},
        {"swin_b", "/train/drop_path", "0.5"},
        {"xcit_m24", "/train/epochs", "400"},
        {"xcit_m24", "/train/drop_path", "0.15"},
        {"xcit_m24", "/train/drop_path_rule", "\"same\""},
        {"xcit_m24", "/train/optimizer/decay_temperature", "true"},
        {"vit_tiny_tin", "/train/epochs", "200"},
        {"vit_tiny_tin", "/train/batch", "512"},
        {"vit_tiny_tin", "/train/optimizer/lr", "0.0005"},
        {"vit_tiny_tin", "/train/optimizer/weight_decay", "0.05"},
        {"vit_tiny_tin", "/train/schedule/warmup_epochs", "10"},
        {"vit_tiny_tin", "/train/schedule/min_lr", "1e-5"},
        {"vit_tiny_tin", "/train/label_smoothing", "0.1"},
        {"vit_tiny_tin", "/data/augment/rrc/scale", "[0.5,1]"},
        {"vit_tiny_tin", "/data/augment/flip", "0.5"},
        {"gpt2_owt", "/train/steps", "600000"},
        {"gpt2_owt", "/train/batch", "480"},
        {"gpt2_owt", "/train/optimizer/lr", "0.0006"},
        {"gpt2_owt", "/train/optimizer/betas", "[0.9,0.95]"},
        {"gpt2_owt", "/train/optimizer/weight_decay", "0.1"},
        {"gpt2_owt", "/train/schedule/warmup_steps", "2000"},
        {"gpt2_owt", "/train/schedule/min_lr", "6e-5"},
        {"gpt2_owt", "/train/clip_norm", "1"},
        {"gpt2_wt103", "/train/dropout", "0.1"},
        {"gpt2_wt103", "/train/batch", "64"},
        {"ldnt", "/train/steps", "200000"},
        {"ldnt", "/train/init", "\"xavier\""},
        {"vdnt", "/train/epochs", "150"},
        {"vdnt", "/train/optimizer/betas", "[0.9,0.99]"},
        {"vdnt", "/train/schedule/warmup_epochs", "60"},
        {"vdnt", "/train/schedule/min_lr", "1e-8"},
        {"vdnt", "/train/init", "\"trunc_xavier\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *want = json_loads(cases[i].want, JSON_DECODE_ANY, NULL), *got = NULL;

        for (size_t r = 0; r < job_recipe_count; r++)
            for (const struct job_item *item = job_recipes[r].items; item && item->pointer; item++)
                if (!strcmp(job_recipes[r].name, cases[i].recipe) && !strcmp(item->pointer, cases[i].pointer))
                    got = json_loads(item->json, JSON_DECODE_ANY, NULL);
        if (!want || !got || !json_equal(want, got))
            fail_msg("%s: %s is not %s", cases[i].recipe, cases[i].pointer, cases[i].want);
        json_decref(want);
        json_decref(got);
    }
}

/* Of two rows of one name the second would have no effect. */
static void test_names_of_recipes_and_presets_are_unique(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_recipe_count; i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(job_recipes[i].name, job_recipes[k].name);
    for (int arch = 0; arch < (int)job_names_arch.count; arch++) {
        const struct job_preset *list = job_network(arch)->presets;

        for (size_t i = 0; list && list[i].name; i++)
            for (size_t k = 0; k < i; k++)
                assert_string_not_equal(list[i].name, list[k].name);
    }
}

static void test_errors_point_at_the_layer_that_set_the_value(void **state)
{
    char *doc;

    (void)state;
    want_error(
        "{\"recipe\":\"gpt2_wt103\",\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\"}}",
        "#/recipe", "\"gpt2_wt103\" sets /data/eval: is for language models");
    doc = with(GPT, "/overrides", "{\"/train/batch\":0}");
    want_only(doc, "#/overrides/~1train~1batch", "must be at least 1");
    free(doc);
    doc = with(GPT, "/overrides", "{\"/train/optimizer\":{\"lr\":-1}}");
    want_only(doc, "#/overrides/~1train~1optimizer/lr", "must be greater than 0");
    free(doc);
    doc = with(GPT, "/sweep", "{\"axes\":[{\"pointer\":\"/train/batch\",\"values\":[16,0,8]}]}");
    want_only(doc, "#/sweep/axes/0/values/1", "must be at least 1");
    free(doc);
    doc = with(GPT, "/sweep",
               "{\"axes\":[{\"pointer\":\"/train/optimizer\",\"values\":[{\"lr\":1},{\"lr\":\"x\"}]}]}");
    want_only(doc, "#/sweep/axes/0/values/1/lr", "must be a number, not a string");
    free(doc);
    doc = with(GPT, "/sweep", "{\"axes\":[{\"pointer\":\"/train/batch\",\"linear\":[-1,1,3]}]}");
    want_only(doc, "#/sweep/axes/0", "must be at least 1");
    free(doc);
    /* an interaction of two axes */
    doc = with(GPT, "/sweep",
               "{\"axes\":[{\"pointer\":\"/model/width\",\"values\":[128,120]},{\"pointer\":\"/model/"
               "heads\",\"values\":[4,16]}]}");
    want_only(doc, "#/sweep/axes/1/values/1", "must divide the width: 120 is not a multiple of 16");
    free(doc);
    /* and one that points at neither */
    doc = with(GPT, "/sweep", "{\"axes\":[{\"pointer\":\"/model/context\",\"values\":[128,64]}]}");
    {
        char *more = with(doc, "/data/context", "100");
        want_only(more, "#/sweep", "run 1: #/data/context: must be at most model.context, which is 64");
        free(more);
    }
    free(doc);
}

static void test_overrides_refuse_what_they_must_not_touch(void **state)
{
    static const struct {
        const char *overrides, *pointer, *what;
    } cases[] = {
        {"{\"/sweep/metric\":\"x\"}", "#/overrides/~1sweep~1metric", "cannot be overridden"},
        {"{\"/overrides\":{}}", "#/overrides/~1overrides", "cannot be overridden"},
        {"{\"/schema\":1}", "#/overrides/~1schema", "cannot be overridden"},
        {"{\"train\":{}}", "#/overrides/train", "must be a JSON pointer"},
        {"{\"\":{}}", "#/overrides/", "must be a JSON pointer"},
        {"{\"/train\":5}", "#/overrides/~1train", "must be an object, not a number"},
        {"{\"/train\":{\"bach\":5}}", "#/overrides/~1train/bach", "did you mean 'batch'?"},
        {"{\"/train/batch/x\":5}", "#/overrides/~1train~1batch~1x", "unknown key"},
        {"{\"/\":5}", "#/overrides/~1", "unknown key"},
    };
    char many[8192] = "{";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(GPT, "/overrides", cases[i].overrides);
        want_only(doc, cases[i].pointer, cases[i].what);
        free(doc);
    }
    for (int i = 0; i < 101; i++)
        sprintf(many + strlen(many), "%s\"/x%d\":1", i ? "," : "", i);
    strcat(many, "}");
    {
        char *doc = with(GPT, "/overrides", many);
        want_only(doc, "#/overrides", "more than the 100 allowed");
        free(doc);
    }
}

static void test_tags_of_document_and_overrides_merge(void **state)
{
    char *tagged = with(GPT, "/tags", "{\"a\":\"1\",\"b\":\"2\"}");
    char *doc = with(tagged, "/overrides", "{\"/tags\":{\"b\":\"3\",\"c\":\"4\"}}");
    struct parsed p = want_ok(doc);
    const struct job_head *h = job_doc_head(p.job);

    (void)state;
    assert_int_equal(h->tag_count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(h->tags[i].value, h->tags[i].key[0] == 'a'   ? "1"
                                              : h->tags[i].key[0] == 'b' ? "3"
                                                                         : "4");
    done(&p);
    free(doc);
    free(tagged);
}

static void test_head_carries_dependencies_and_tags(void **state)
{
    char *a = with(GPT, "/depends_on", "[{\"job\":\"12\"},{\"job\":\"7\",\"when\":\"afternotok\"}]");
    char *b = with(a, "/resources", "{\"priority\":-5,\"max_restarts\":0}");
    struct parsed p = want_ok(b);
    const struct job_head *h = job_doc_head(p.job);

    (void)state;
    assert_int_equal(h->depends_on_count, 2);
    assert_string_equal(h->depends_on[0].job, "12");
    assert_int_equal(h->depends_on[0].when, JOB_WHEN_AFTEROK);
    assert_int_equal(h->depends_on[1].when, JOB_WHEN_AFTERNOTOK);
    assert_int_equal(h->resources.priority, -5);
    assert_int_equal(h->resources.max_restarts, 0);
    assert_int_equal(h->resources.time_limit_s, 0);
    assert_null(h->register_name);
    done(&p);
    free(a);
    free(b);
}

/* ---- Data roots ---- */

static void test_paths_stay_below_configured_roots(void **state)
{
    static const char *const roots[] = {"mnist", "corpora"};
    const struct job_env env = {.threads = 1,
                                .keep_best = -1,
                                .keep_latest = -1,
                                .root_count = 2,
                                .roots = roots,
                                .check_roots = true};
    const struct job_env bare = {.threads = 1, .keep_best = -1, .keep_latest = -1, .check_roots = true};
    struct parsed p;
    char *doc;

    (void)state;
    p = parse_env(VIT, &env);
    assert_int_equal(p.err, PD_OK);
    done(&p);
    p = parse_env(GPT, &env);
    assert_int_equal(p.err, PD_OK);
    done(&p);
    doc = with(GPT, "/data/path", "\"corporal/a\"");
    p = parse_env(doc, &env);
    assert_true(told(p.report.errors, p.report.error_count, "#/data/path", "no data root named 'corporal'"));
    done(&p);
    free(doc);
    p = parse_env(VIT, &bare);
    assert_true(told(p.report.errors, p.report.error_count, "#/data/path",
                     "no data root named 'mnist' is configured"));
    done(&p);
}

/* A name that ends as a table's is one file, which the job divides; another one a folder, which is divided: so before
 * schema 3. */
static void test_labelled_texts_are_divided_by_their_path(void **state)
{
    static const struct {
        const char *path, *rule;
        double train;
    } cases[] = {{"a/x.tsv", "fraction", 0.9},   {"a/x.csv.gz", "fraction", 0.9},
                 {"a/x.jsonl", "fraction", 0.9}, {"a/x.json", "given", 0},
                 {"a/tables.tsv/x", "given", 0}, {"a/.tsv", "fraction", 0.9},
                 {"a/x.txt.gz", "given", 0},     {"a", "given", 0}};
    static const char base[] = "{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"text_labels\"},"
                               "\"train\":{\"steps\":100}}";
    struct parsed p;
    char *doc;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], *old;
        json_t *run;

        snprintf(path, sizeof path, "\"%s\"", cases[i].path);
        old = with(base, "/data/path", path);
        doc = with(old, "/schema", "2");
        free(old);
        p = parse(doc);
        assert_int_equal(p.err, PD_OK);
        run = run_json(p.job, 0);
        assert_string_equal(json_string_value(job_json_at(run, "/data/split/rule")), cases[i].rule);
        assert_true(json_number_value(job_json_at(run, "/data/split/train")) == cases[i].train);
        json_decref(run);
        done(&p);
        free(doc);
    }
    p = parse(base);
    assert_true(told(p.report.errors, p.report.error_count, "#/data/path",
                     "is needed: a file of labelled texts or a folder of such files"));
    done(&p);
    doc = with(base, "/data",
               "{\"dataset\":\"text_labels\",\"path\":\"a/x.tsv\",\"split\":{\"rule\":\"given\"}}");
    p = parse(doc);
    assert_true(told(p.report.errors, p.report.error_count, "#/data/split/rule", "has no parts"));
    done(&p);
    free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_later_layers_win),
        cmocka_unit_test(test_recipes_say_what_their_projects_do),
        cmocka_unit_test(test_names_of_recipes_and_presets_are_unique),
        cmocka_unit_test(test_errors_point_at_the_layer_that_set_the_value),
        cmocka_unit_test(test_overrides_refuse_what_they_must_not_touch),
        cmocka_unit_test(test_tags_of_document_and_overrides_merge),
        cmocka_unit_test(test_head_carries_dependencies_and_tags),
        cmocka_unit_test(test_paths_stay_below_configured_roots),
        cmocka_unit_test(test_labelled_texts_are_divided_by_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
