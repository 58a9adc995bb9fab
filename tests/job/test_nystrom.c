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

static void test_nystrom_n_is_the_context(void **state)
{
    struct parsed p = want_ok(POLY(""));
    const struct job_config *g = &job_first(p.job)->config;

    (void)state;
    assert_true(g->attention.n == 128);
    assert_true(g->attention.c0 == 1 / sqrt(128));
    done(&p);
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
        {NYSTROM("", "", ",\"attention\":{\"qk_norm\":true}"), "#/attention/qk_norm", "no norms"},
        {NYSTROM("", "", ",\"attention\":{\"activation\":\"sima\"}"), "#/attention/activation", "sima"},
        {NYSTROM("", "", ",\"attention\":{\"init_logit_std\":1}"), "#/attention/init_logit_std",
         "is not for"},
        {NYSTROM("", "", ",\"attention\":{\"dropout\":0.1}"), "#/attention/dropout", "no matrix of tokens"},
        {POLY(",\"scale\":\"learned\",\"scale_share\":\"global\",\"nystrom_apply\":\"separate\""),
         "#/attention/scale_share", "of a layer or of its heads"},
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
        cmocka_unit_test(test_nystrom_n_is_the_context),
        cmocka_unit_test(test_what_nystrom_has_not_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
