/* tests/job/test_metric.c: the catalogue of metrics, and what is asked of it. */
#include "daemon/job/metric.h"

#include "tests/job/help.h"

#define SWIN                                                                                                 \
    "{\"model\":{\"preset\":\"swin_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"
#define SWIN_OF_ONE                                                                                          \
    "{\"model\":{\"preset\":\"swin_micro\",\"head_counts\":[1,2]},\"data\":{\"dataset\":\"mnist\"},"         \
    "\"train\":{"                                                                                            \
    "\"epochs\":1}}"
#define XCIT                                                                                                 \
    "{\"model\":{\"preset\":\"xcit_micro\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"

static bool one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (!strcmp(*words, word))
            return true;
    return false;
}

static void test_every_row_is_whole_and_its_key_unique(void **state)
{
    static const char *const units[] = {"share",   "bytes",  "nats",      "ms",       "watts",
                                        "celsius", "flop/s", "samples/s", "tokens/s", NULL};

    (void)state;
    assert_true(job_metric_count > 30);
    for (size_t i = 0; i < job_metric_count; i++) {
        const struct job_metric *m = &job_metrics[i];

        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(job_metrics[k].key, m->key);
        assert_true(m->title && *m->title && m->source && m->text);
        assert_int_equal(m->text[strlen(m->text) - 1], '.');
        assert_int_equal(m->source[strlen(m->source) - 1], '.');
        assert_true(!m->unit || one_of(m->unit, units));
        assert_true(!m->panel == !m->series);
        assert_true(!strstr(m->key, "<head>") == !m->heads);
        assert_true((m->group == JOB_METRIC_LAYERS) == (strstr(m->key, "<layer>") != NULL));
        assert_true((m->group == JOB_METRIC_GPUS) == (strstr(m->key, "<rank>") != NULL));
    }
}

static void test_a_key_finds_its_row(void **state)
{
    static const char *const found[][2] = {
        {"loss/val", "loss/val"},
        {"attn/fro/3", "attn/fro/<layer>[/<head>]"},
        {"attn/fro/12/10", "attn/fro/<layer>[/<head>]"},
        {"system/gpu.0/power", "system/gpu.<rank>/power"},
        {"system/gpu.17/memory", "system/gpu.<rank>/memory"},
    };
    static const char *const none[] = {"",
                                       "loss",
                                       "loss/val/1",
                                       "loss/valid",
                                       "attn/fro",
                                       "attn/fro/",
                                       "attn/fro/0",
                                       "attn/fro/01",
                                       "attn/fro/-1",
                                       "attn/fro/1/",
                                       "attn/fro/1/0",
                                       "attn/fro/1/2/3",
                                       "attn/fro/1x",
                                       "attn/fro/99999999999999999999",
                                       "system/gpu./power",
                                       "system/gpu.0/volts",
                                       "attn/fro/<layer>[/<head>]",
                                       "my/own"};

    (void)state;
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        const struct job_metric *m = job_metric_find(found[i][0]);

        assert_non_null(m);
        assert_string_equal(m->key, found[i][1]);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (job_metric_find(none[i]))
            fail_msg("'%s' has a row", none[i]);
}

static bool writes(const char *text, const char *key)
{
    struct parsed p = parse(text);
    struct job_config *config = NULL;
    json_t *run = run_json(p.job, 0);
    struct pd_buf b;
    bool answer;

    pd_buf_init(&b, 0);
    job_json_write(run, &b);
    json_decref(run);
    assert_int_equal(job_config_load(b.data, b.len, &config, NULL), PD_OK);
    answer = job_config_writes(config, key);
    job_config_free(config);
    pd_buf_done(&b);
    done(&p);
    return answer;
}

static void test_what_a_run_writes_follows_its_document(void **state)
{
    static const struct {
        const char *doc, *set, *value, *key;
        bool want;
    } cases[] = {
        {VIT, "/name", "\"x\"", "loss/val", true},
        {VIT, "/name", "\"x\"", "tokens_per_s", false},
        {GPT, "/name", "\"x\"", "tokens_per_s", true},
        {VIT, "/name", "\"x\"", "system/gpu.0/power", true}, /* the daemon's, whatever the run */
        {VIT, "/name", "\"x\"", "system/mine", false},
        {VIT, "/name", "\"x\"", "comm/wait", false},
        {VIT, "/attention", "{\"activation\":\"softmax\"}", "scale/c/1", false},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"fixed\"}", "scale/c/1", true},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"learned\"}", "scale/c/1/1", false},
        {VIT, "/attention", "{\"activation\":\"poly\",\"scale\":\"learned\",\"scale_share\":\"head\"}",
         "scale/c/1/1", true},
        {VIT, "/name", "\"x\"", "attn/fro/1/1", true},
        {VIT, "/name", "\"x\"", "attn/fro/1/9999", false},
        {VIT, "/name", "\"x\"", "attn/fro/9999", false},
        {VIT, "/name", "\"x\"", "loss/test", true},
        {PINN, "/name", "\"x\"", "loss/test", false},
        {PINN, "/name", "\"x\"", "rmae/val", true},
        {PINN, "/name", "\"x\"", "rmae/train", false}, /* of an evaluation of the training grid alone */
        {PINN, "/train/ema", "0.9", "rrmse/train_ema", false},
        {XCIT, "/name", "\"x\"", "attn/fro/6/4", true}, /* four layers, two of the class token */
        {XCIT, "/name", "\"x\"", "attn/fro/7", false},
        {XCIT, "/name", "\"x\"", "attn/jac_q_fro/4", false},
        {XCIT, "/name", "\"x\"", "attn/jac_q_fro/5", true},
        {XCIT, "/name", "\"x\"", "act/rms/1", false},
        {VIT, "/name", "\"x\"", "act/rms/1", true},
        {XCIT, "/diagnostics", "{\"heatmaps\":{}}", "attn/same_row/1", false},
        {VIT, "/diagnostics", "{\"heatmaps\":{}}", "attn/same_row/1", true},
        {XCIT, "/attention", "{\"activation\":\"poly\",\"class_attention\":\"softmax\"}", "scale/c/4", true},
        {XCIT, "/attention", "{\"activation\":\"poly\",\"class_attention\":\"softmax\"}", "scale/c/5", false},
        {XCIT, "/attention", "{\"activation\":\"poly\"}", "scale/c/5", true},
        {SWIN, "/name", "\"x\"", "attn/fro/2/2", true}, /* two layers of two heads, two of four */
        {SWIN, "/name", "\"x\"", "attn/fro/2/3", false},
        {SWIN, "/name", "\"x\"", "attn/fro/3/4", true},
        {SWIN, "/name", "\"x\"", "attn/fro/4/5", false},
        {SWIN, "/attention", "{\"activation\":\"poly\",\"scale\":\"learned\",\"scale_share\":\"head\"}",
         "scale/c/3/4", true},
        {SWIN_OF_ONE, "/attention",
         "{\"activation\":\"poly\",\"scale\":\"learned\",\"scale_share\":\"head\"}", "scale/c/3/2", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = with(cases[i].doc, cases[i].set, cases[i].value);

        if (writes(text, cases[i].key) != cases[i].want)
            fail_msg("%s of %s", cases[i].key, text);
        free(text);
    }
}

/* What a row says of cross-entropy or nats is false of an equation, which writes some of these rows too. */
static void test_rows_that_an_equation_writes_say_what_they_are_there(void **state)
{
    static const char *const keys[] = {"loss/train", "loss/val"};
    char *text = with(PINN, "/name", "\"x\"");

    (void)state;
    for (size_t i = 0; i < 2; i++)
        assert_true(writes(text, keys[i]));
    free(text);
    text = with(PINN, "/train/ema", "0.9");
    for (size_t i = 0; i < job_metric_count; i++) {
        const struct job_metric *m = &job_metrics[i];

        if (m->unit && !strcmp(m->unit, "nats") && !strchr(m->key, '<') && writes(text, m->key))
            assert_non_null(strstr(m->text, "equation"));
    }
    free(text);
}

static void test_the_catalogue_is_served_with_every_member(void **state)
{
    struct pd_buf b;
    json_t *top, *list;

    (void)state;
    pd_buf_init(&b, 0);
    assert_int_equal(job_metrics_json(&b, NULL), PD_OK);
    top = json_loadb(b.data, b.len, 0, NULL);
    list = json_object_get(top, "metrics");
    assert_int_equal(json_array_size(list), job_metric_count);
    for (size_t i = 0; i < job_metric_count; i++) {
        assert_int_equal(json_object_size(json_array_get(list, i)), 11);
        assert_string_equal(json_string_value(json_object_get(json_array_get(list, i), "key")),
                            job_metrics[i].key);
    }
    json_decref(top);
    pd_buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_whole_and_its_key_unique),
        cmocka_unit_test(test_a_key_finds_its_row),
        cmocka_unit_test(test_what_a_run_writes_follows_its_document),
        cmocka_unit_test(test_rows_that_an_equation_writes_say_what_they_are_there),
        cmocka_unit_test(test_the_catalogue_is_served_with_every_member),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
