/* tests/job/test_schema.c: documents of schema 1 mean what they meant; what came with schema 2. */
#include "tests/lib/text.h"
#include "tests/job/help.h"

/* What run n of the job says of the two fields of schema 2. */
static void want_run(const struct job_doc *job, int64_t n, const char *gelu, int64_t split_seed)
{
    json_t *run = run_json(job, n), *seed = job_json_at(run, "/data/split_seed");

    assert_int_equal(json_integer_value(job_json_at(run, "/schema")), JOB_SCHEMA);
    assert_string_equal(json_string_value(job_json_at(run, "/model/gelu")), gelu);
    assert_int_equal(json_is_null(seed) ? -1 : json_integer_value(seed), split_seed);
    json_decref(run);
}

static void want_doc(const char *doc, const char *gelu, int64_t split_seed)
{
    struct parsed p = parse(doc);

    if (p.err != PD_OK) {
        dump(&p);
        fail_msg("%s", doc);
    }
    want_run(p.job, 0, gelu, split_seed);
    done(&p);
}

static void test_resolved_documents_of_schema_1_keep_their_meaning(void **state)
{
    static const struct {
        const char *name;
        int gelu;
        const char *word;
    } cases[] = {{"digits.json", JOB_GELU_EXACT, "exact"}, {"text.json", JOB_GELU_TANH, "tanh"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        char *old = text_of(SCHEMA1, cases[i].name), *new, *again, *other;
        struct job_config *g = NULL;
        struct parsed p, q;
        struct pd_why why;

        if (job_config_load(old, strlen(old), &g, &why) != PD_OK)
            fail_msg("%s: %s", cases[i].name, why.text);
        assert_int_equal(g->model.gelu, cases[i].gelu);
        assert_int_equal(g->data.split_seed, -1);
        assert_int_equal(g->train.seed, 5);
        assert_int_equal(job_config_split_seed(g), 5);
        job_config_free(g);
        /* It resolves to the present schema, and that to itself. */
        p = parse(old);
        assert_int_equal(p.err, PD_OK);
        assert_int_equal(p.report.warning_count, 0);
        want_run(p.job, 0, cases[i].word, -1);
        new = run_text(p.job, 0);
        q = parse(new);
        assert_int_equal(q.err, PD_OK);
        again = run_text(q.job, 0);
        assert_string_equal(new, again);
        /* What it names itself holds. */
        other = with(old, "/model/gelu", cases[i].gelu ? "\"exact\"" : "\"tanh\"");
        want_doc(other, cases[i].gelu ? "exact" : "tanh", -1);
        free(other);
        other = with(old, "/data/split_seed", "3");
        want_doc(other, cases[i].word, 3);
        free(other);
        free(new);
        free(again);
        free(old);
        done(&p);
        done(&q);
    }
}

static void test_jobs_kept_before_schema_2_make_the_same_runs(void **state)
{
    char *old = text_of(SCHEMA1, "kept.json");
    struct job_report report;
    struct job_doc *job = NULL;
    struct parsed p = parse(old);
    struct pd_buf kept;

    (void)state;
    assert_null(strstr(old, "schema\":")); /* kept documents did not say it */
    job_report_init(&report);
    assert_int_equal(job_parse_stored(old, strlen(old), &job, &report), PD_OK);
    assert_int_equal(job_run_count(job), 4);
    for (int64_t n = 0; n < 4; n++)
        want_run(job, n, n < 2 ? "tanh" : "exact", -1);
    pd_buf_init(&kept, 0);
    assert_int_equal(job_document(job, &kept, NULL), PD_OK);
    assert_non_null(strstr(kept.data, "\"schema\":1"));
    pd_buf_done(&kept);
    job_free(job);
    /* The same text sent today: the sweep of biases sweeps biases alone. */
    assert_int_equal(p.err, PD_OK);
    for (int64_t n = 0; n < 4; n++)
        want_run(p.job, n, "exact", 0);
    pd_buf_init(&kept, 0);
    assert_int_equal(job_document(p.job, &kept, NULL), PD_OK);
    job = NULL;
    assert_int_equal(job_parse_stored(kept.data, kept.len, &job, &report), PD_OK);
    want_run(job, 0, "exact", 0);
    pd_buf_done(&kept);
    job_free(job);
    job_report_done(&report);
    done(&p);
    free(old);
}

#define BARE(bias)                                                                                           \
    "{\"model\":{\"arch\":\"gpt\",\"width\":8,\"depth\":1,\"heads\":1,\"bias\":" bias                        \
    "},\"data\":{\"dataset\":\"text\",\"path\":\"a\"},\"train\":{\"steps\":1}}"

static void test_gelu_is_the_presets_whatever_the_biases(void **state)
{
    const struct job_preset *preset;
    char *old;
    int arch;

    (void)state;
    for (size_t i = 0; (preset = job_preset_at(i, &arch)); i++) {
        const bool gpt = !strcmp(job_arch_name(arch), "gpt"), vit = !strcmp(job_arch_name(arch), "vit");
        const char *want = strncmp(preset->name, "gpt2", 4) == 0 ? "tanh" : "exact";
        char value[64], *doc, *biased;

        if (!gpt && !vit)
            continue;
        snprintf(value, sizeof value, "\"%s\"", preset->name);
        doc = with(gpt ? GPT : VIT, "/model/preset", value);
        if (vit) {
            biased = with(doc, "/model/patch", "7");
            free(doc);
            doc = biased;
        }
        want_doc(doc, want, 0);
        for (int bias = 0; bias < 2; bias++) {
            biased = with(doc, "/model/bias", bias ? "true" : "false");
            want_doc(biased, want, 0);
            /* Before, it followed them: the preset's word is of schema 2. */
            old = with(biased, "/schema", "1");
            want_doc(old, bias && gpt ? "tanh" : "exact", -1);
            free(old);
            free(biased);
        }
        free(doc);
    }
    want_doc(BARE("true"), "tanh", 0);
    want_doc(BARE("false"), "tanh", 0);
    want_doc("{\"model\":{\"arch\":\"vit\",\"width\":8,\"depth\":1,\"heads\":1},\"data\":{\"dataset\":"
             "\"mnist\"},\"train\":{\"steps\":1}}",
             "exact", 0);
}

/* How the data of a document that does not say are divided. */
static void want_rule(const char *base, const char *schema, const char *rule)
{
    char *doc = with(base, "/schema", schema);
    struct parsed p = parse(doc);
    json_t *run;

    assert_int_equal(p.err, PD_OK);
    run = run_json(p.job, 0);
    assert_string_equal(json_string_value(job_json_at(run, "/data/split/rule")), rule);
    json_decref(run);
    done(&p);
    free(doc);
}

static void test_documents_before_schema_3_keep_their_split(void **state)
{
    (void)state;
    for (int schema = 1; schema <= 2; schema++) {
        want_rule(VIT, schema == 1 ? "1" : "2", "given");
        want_rule(GPT, schema == 1 ? "1" : "2", "fraction");
    }
    want_rule(VIT, "3", "standard");
    want_rule(GPT, "3", "standard");
    /* What one says holds under every schema. */
    for (int i = 0; i < 3; i++) {
        static const char *const rules[] = {"given", "fraction", "standard"};
        char split[80], *doc;

        snprintf(split, sizeof split,
                 i == 1 ? "{\"rule\":\"%s\",\"train\":0.5,\"val\":0.1}" : "{\"rule\":\"%s\"}", rules[i]);
        doc = with(VIT, "/data/split", split);
        want_rule(doc, "1", rules[i]);
        want_rule(doc, "3", rules[i]);
        if (!i)
            want_warning(doc, "#/data/split/rule", "test files may be the validation part");
        free(doc);
    }
}

static void test_a_split_that_mixes_in_test_files_is_warned_of(void **state)
{
    static const struct {
        const char *doc, *split, *what;
    } cases[] = {
        {VIT, "{\"rule\":\"count\",\"train\":64,\"val\":8}",
         "with count the data set's test files may be the validation part"},
        {VIT, "{\"rule\":\"fraction\",\"train\":0.5,\"val\":0.1}",
         "part of the training and validation data"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *doc = with(cases[i].doc, "/data/split", cases[i].split);

        want_warning(doc, "#/data/split/rule", cases[i].what);
        free(doc);
    }
    /* Text and what polyd makes have no test files that these rules could reach. */
    for (size_t i = 0; i < 2; i++) {
        char *doc =
            i ? with(GPT, "/data/split", cases[1].split)
              : with("{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"digits_gen\"},\"train\":{"
                     "\"epochs\":1}}",
                     "/data/split", cases[0].split);
        struct parsed p = parse(doc);

        assert_int_equal(p.err, PD_OK);
        assert_int_equal(p.report.warning_count, 0);
        done(&p);
        free(doc);
    }
}

static void test_other_schemas_are_refused(void **state)
{
    char *doc = with(VIT, "/schema", "4");

    (void)state;
    want_only(doc, "#/schema", "at least 1 and at most 3");
    free(doc);
    doc = with(VIT, "/schema", "0");
    want_only(doc, "#/schema", "at least 1 and at most 3");
    free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolved_documents_of_schema_1_keep_their_meaning),
        cmocka_unit_test(test_jobs_kept_before_schema_2_make_the_same_runs),
        cmocka_unit_test(test_gelu_is_the_presets_whatever_the_biases),
        cmocka_unit_test(test_documents_before_schema_3_keep_their_split),
        cmocka_unit_test(test_a_split_that_mixes_in_test_files_is_warned_of),
        cmocka_unit_test(test_other_schemas_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
