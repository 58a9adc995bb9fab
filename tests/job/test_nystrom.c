/* tests/job/test_nystrom.c: what a network that attends through landmarks asks of a document. */
#include <math.h>

#include "tests/job/help.h"

#define NYSTROM(model, data, rest)                                                                           \
    "{\"model\":{\"preset\":\"nystrom_micro\"" model "},\"data\":{\"dataset\":\"listops_gen\"" data          \
    "},\"train\":{\"steps\":4}" rest "}"
#define POLY(more) NYSTROM("", "", ",\"attention\":{\"activation\":\"poly\"" more "}")

static void test_nystrom_has_its_own_defaults(void **state)
{
    struct parsed p = want_ok(NYSTROM("", "", ""));
    const struct job_config *g = &job_first(p.job)->config;

    (void)state;
    assert_int_equal(g->model.context, 128);
    assert_int_equal(g->data.context, 128);
    assert_int_equal(g->model.landmarks, 16);
    assert_int_equal(g->model.conv_kernel, 35);
    assert_int_equal(g->model.pinv_iterations, 6);
    assert_int_equal(g->model.pinv_start, JOB_PINV_MATRIX_ABS);
    assert_int_equal(g->model.pool, JOB_POOL_MEAN);
    assert_int_equal(g->train.init, JOB_INIT_KAIMING);
    assert_true(g->norm.eps == 1e-5 && g->train.optimizer.weight_decay == 0);
    assert_true(g->data.zero_is_padding && g->data.depth == 3 && g->data.min_tokens == 1);
    done(&p);
}

static void test_pairs_have_half_the_context_each(void **state)
{
    (void)state;
    want_only("{\"model\":{\"preset\":\"nystrom_lra\",\"context\":96,\"landmarks\":32},\"data\":{\"dataset\":"
              "\"aan\",\"path\":\"a/b\"},\"train\":{\"steps\":4}}",
              "#/model/landmarks",
              "must divide half of model.context, the length of each sequence of a pair: 32 landmarks, 48");
    want_only("{\"model\":{\"preset\":\"nystrom_lra\",\"context\":97},\"data\":{\"dataset\":"
              "\"aan\",\"path\":\"a/b\"},\"train\":{\"steps\":4}}",
              "#/model/context", "must be even, half for each sequence of a pair, and is 97");
    want_only("{\"model\":{\"preset\":\"gpt_micro\"},\"data\":{\"dataset\":\"aan\",\"path\":\"a/b\"},"
              "\"train\":{\"steps\":4}}",
              "#/data/dataset", "holds pairs of texts, and a gpt reads one text");
}

static void test_nystrom_n_is_the_context(void **state)
{
    struct parsed p = want_ok(POLY(""));
    const struct job_config *g = &job_first(p.job)->config;

    (void)state;
    assert_true(g->attention.n == 128);
    assert_true(g->attention.c0 == 1 / sqrt(128));
    done(&p);
}

/* One encoder reads the two texts of a pair, one after the other. */
static void test_n_of_pairs_is_the_length_of_one_text(void **state)
{
    static const char *const sets[] = {"aan", "text_pairs"}, *const words[] = {"context", "keys"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct job_config *g;
        struct parsed p;
        char doc[300];

        snprintf(doc, sizeof doc,
                 "{\"model\":{\"preset\":\"nystrom_lra\"},\"data\":{\"dataset\":\"%s\",\"path\":\"a/b\"},"
                 "\"attention\":{\"activation\":\"poly\",\"n_for_scale\":\"%s\"},\"train\":{\"steps\":4}}",
                 sets[i / 2], words[i % 2]);
        p = want_ok(doc);
        g = &job_first(p.job)->config;
        assert_int_equal(g->model.context, 8192);
        assert_true(g->attention.n == 4096 && g->attention.c0 == 1.0 / 64);
        assert_int_equal(job_config_keys(g), 4096);
        assert_int_equal(job_config_tokens(g), 4096);
        done(&p);
    }
}

static void test_nystrom_length_follows_the_arena(void **state)
{
    static const struct {
        const char *set;
        int64_t reference, paper;
    } cases[] = {
        {"\"listops\",\"path\":\"a/b.tsv\"", 2048, 512}, {"\"imdb\",\"path\":\"a/b\"", 1024, 1024},
        {"\"aan\",\"path\":\"a/b\"", 8192, 4096},        {"\"text_pairs\",\"path\":\"a/b\"", 8192, 4096},
        {"\"lra_image\",\"path\":\"a/b\"", 1024, 4096},  {"\"pathfinder_gen\"", 1024, 8192},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int paper = 0; paper < 2; paper++) {
            char doc[300];
            struct parsed p;

            snprintf(doc, sizeof doc,
                     "{\"model\":{\"preset\":\"nystrom_lra\"},\"data\":{\"dataset\":%s%s},\"train\":{"
                     "\"steps\":4}}",
                     cases[i].set, paper ? ",\"lra_len\":\"paper\"" : "");
            p = want_ok(doc);
            assert_int_equal(job_first(p.job)->config.model.context,
                             paper ? cases[i].paper : cases[i].reference);
            done(&p);
        }
}

static void test_nystrom_recipes_are_the_authors(void **state)
{
    static const struct {
        const char *recipe;
        int64_t batch, warmup, steps, every;
    } cases[] = {{"lra_listops", 32, 1000, 5000, 50},
                 {"lra_text", 32, 8000, 20000, 500},
                 {"lra_retrieval", 32, 800, 30000, 300},
                 {"lra_image", 256, 175, 35000, 175},
                 {"lra_pathfinder", 256, 312, 62400, 312}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char doc[200];
        struct parsed p;
        const struct job_train *t;

        snprintf(doc, sizeof doc, "{\"recipe\":\"%s\",\"model\":{\"preset\":\"nystrom_lra\"}%s}",
                 cases[i].recipe, i == 4 ? "" : ",\"data\":{\"path\":\"a/b\"}");
        p = want_ok(doc);
        t = &job_first(p.job)->config.train;
        assert_int_equal(t->batch, cases[i].batch);
        assert_int_equal(t->schedule.warmup_steps, cases[i].warmup);
        assert_int_equal(t->steps, cases[i].steps);
        assert_int_equal(t->eval_every, cases[i].every);
        assert_int_equal(t->schedule.name, JOB_SCHEDULE_ONE_CYCLE);
        assert_true(t->optimizer.lr == 1e-4 && t->optimizer.eps == 1e-6 && t->optimizer.weight_decay == 0);
        assert_true(t->schedule.beta1[0] == 0.95 && t->schedule.beta1[1] == 0.85 && t->dropout == 0.1);
        assert_true(fabs(t->schedule.min_lr - 4e-10) < 1e-20);
        done(&p);
    }
}

static void test_what_nystrom_has_not_is_named(void **state)
{
    static const struct {
        const char *doc, *pointer, *what;
    } cases[] = {
        {NYSTROM(",\"landmarks\":12", "", ""), "#/model/landmarks",
         "must divide model.context: 12 landmarks, 128 tokens"},
        {NYSTROM("", ",\"context\":64", ""), "#/data/context", "is 64 and model.context 128"},
        {NYSTROM(",\"conv_kernel\":4", "", ""), "#/model/conv_kernel", "must be odd, and is 4"},
        {NYSTROM("", ",\"min_tokens\":129", ""), "#/data/min_tokens", "at most data.context, which is 128"},
        {NYSTROM(",\"pinv_start\":\"global_colsum\"", "", ",\"attention\":{\"activation\":\"poly\"}"),
         "#/model/pinv_start", "use matrix_abs"},
        {NYSTROM(",\"pinv_start\":\"global_abs\"", "", ",\"resources\":{\"slots\":2,\"device\":\"cpu\"}"),
         "#/model/pinv_start", "one slot"},
        {NYSTROM("", "", ",\"norm\":{\"placement\":\"S3\"},\"attention\":{\"qk_norm\":false}"),
         "#/norm/placement", "must be S1"},
        {NYSTROM("", "", ",\"attention\":{\"qk_norm\":true}"), "#/attention/qk_norm",
         "norms of queries and keys"},
        {NYSTROM("", "", ",\"attention\":{\"activation\":\"sima\"}"), "#/attention/activation", "sima"},
        {NYSTROM("", "", ",\"attention\":{\"init_logit_std\":1}"), "#/attention/init_logit_std",
         "is not supported by"},
        {NYSTROM("", "", ",\"attention\":{\"dropout\":0.1}"), "#/attention/dropout",
         "no attention matrix between tokens"},
        {POLY(",\"scale\":\"learned\",\"scale_share\":\"global\",\"nystrom_apply\":\"separate\""),
         "#/attention/scale_share", "shared by a layer or a head"},
        {"{\"model\":{\"preset\":\"nystrom_micro\"},\"data\":{\"dataset\":\"text_gen\"},"
         "\"train\":{\"steps\":4}}",
         "#/data/dataset", "\"text_gen\" has no classes, which a nystrom needs"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        want_only(cases[i].doc, cases[i].pointer, cases[i].what);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nystrom_has_its_own_defaults),
        cmocka_unit_test(test_pairs_have_half_the_context_each),
        cmocka_unit_test(test_nystrom_n_is_the_context),
        cmocka_unit_test(test_n_of_pairs_is_the_length_of_one_text),
        cmocka_unit_test(test_nystrom_length_follows_the_arena),
        cmocka_unit_test(test_nystrom_recipes_are_the_authors),
        cmocka_unit_test(test_what_nystrom_has_not_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
