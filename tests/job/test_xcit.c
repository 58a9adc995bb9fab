/* tests/job/test_xcit.c: what a network that attends between channels asks of a document. */
#include <math.h>

#include "tests/job/help.h"

#define XCIT(model, more)                                                                                    \
    "{\"model\":{\"preset\":\"xcit_micro\"" model                                                            \
    "},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}" more "}"
#define POLY(more) XCIT("", ",\"attention\":{\"activation\":\"poly\"" more "}")

static void test_xcit_has_its_own_defaults(void **state)
{
    struct parsed p = want_ok(XCIT("", ""));
    const struct job_config *g = &job_first(p.job)->config;

    (void)state;
    assert_int_equal(g->model.pos, JOB_POS_FOURIER);
    assert_int_equal(g->model.pool, JOB_POOL_CLS);
    assert_int_equal(g->attention.class_attention, JOB_CLASS_ATTENTION_SAME);
    assert_true(isnan(g->model.layerscale));
    assert_int_equal(job_config_patches(g), 49);
    assert_int_equal(job_config_tokens(g), 49);
    assert_int_equal(job_config_keys(g), 16);
    done(&p);
}

static void test_xcit_n_is_patches_or_channels(void **state)
{
    static const struct {
        const char *doc;
        double n;
    } cases[] = {{POLY(""), 49},
                 {POLY(",\"n_for_scale\":\"patches\""), 49},
                 {POLY(",\"n_for_scale\":\"channels\""), 16},
                 {POLY(",\"n_for_scale\":\"keys\""), 16},
                 {POLY(",\"n_for_scale\":5"), 5}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct parsed p = want_ok(cases[i].doc);
        const struct job_config *g = &job_first(p.job)->config;

        assert_true(g->attention.n == cases[i].n);
        assert_true(g->attention.c0 == 1 / sqrt(cases[i].n));
        done(&p);
    }
}

static void test_xcit_layerscale_is_of_the_preset(void **state)
{
    struct parsed p = want_ok("{\"model\":{\"preset\":\"xcit_m24\"},\"data\":{\"dataset\":\"imagenet1k\"},"
                              "\"train\":{\"epochs\":1}}");

    (void)state;
    assert_true(job_first(p.job)->config.model.layerscale == 1e-5);
    done(&p);
}

static void test_what_xcit_has_not_is_named(void **state)
{
    static const struct {
        const char *doc, *pointer, *what;
    } cases[] = {
        {XCIT(",\"patch\":7", ""), "#/model/patch", "is 7x7; the stem of a xcit halves the image"},
        {XCIT(",\"patch\":[4,2]", ""), "#/model/patch", "is 4x2"},
        {XCIT(",\"width\":63,\"heads\":1", ""), "#/model/width", "needs a multiple of 2"},
        {XCIT(",\"pool\":\"mean\"", ""), "#/model/pool", "must be cls"},
        {XCIT(",\"pos\":\"learned\"", ""), "#/model/pos", "use fourier or none"},
        {XCIT("", ",\"norm\":{\"placement\":\"S3\"},\"attention\":{\"qk_norm\":false}"), "#/norm/placement",
         "must be S1"},
        {XCIT("", ",\"attention\":{\"qk_norm\":true}"), "#/attention/qk_norm",
         "already normalises queries and keys"},
        {XCIT("", ",\"attention\":{\"activation\":\"sima\"}"), "#/attention/activation",
         "normalises over tokens itself"},
        {XCIT("", ",\"attention\":{\"init_logit_std\":1}"), "#/attention/init_logit_std",
         "which are cosines"},
        {POLY(",\"scale\":\"learned\",\"scale_share\":\"global\""), "#/attention/scale_share",
         "two types of attention"},
        {POLY(",\"degree\":2,\"form\":\"linear\""), "#/attention/form", "use auto"},
        {"{\"model\":{\"preset\":\"vit_micro\",\"pos\":\"fourier\"},\"data\":{\"dataset\":\"mnist\"},"
         "\"train\":{"
         "\"epochs\":1}}",
         "#/model/pos", "a vit has no fourier embedding"},
        {"{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\",\"n_for_scale\":"
         "\"channels\"},"
         "\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
         "#/attention/n_for_scale", "a vit attends between tokens"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        want_only(cases[i].doc, cases[i].pointer, cases[i].what);
}

#define TINY(image, batch, more)                                                                             \
    "{\"model\":{\"preset\":\"xcit_micro\",\"patch\":4},\"data\":{\"dataset\":\"mnist\",\"image_"            \
    "size\":" image "},\"train\":{\"epochs\":1,\"batch\":" batch more "}"

/* One value per channel would become the norm's bias, whatever the image is. */
static void test_xcit_needs_two_values_of_each_channel(void **state)
{
    static const char *const fine[] = {TINY("4", "2", "}"), TINY("[4,8]", "1", "}"),
                                       TINY("4", "2", "},\"resources\":{\"slots\":2}"),
                                       TINY("4", "4", ",\"accumulation\":2}")};

    (void)state;
    want_only(TINY("4", "1", "}"), "#/train/batch", "raise train.batch to at least 2 x accumulation, 2,");
    want_only(TINY("4", "3", ",\"accumulation\":3}"), "#/train/batch", "2 x accumulation, 6,");
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        struct parsed p = want_ok(fine[i]);

        done(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xcit_has_its_own_defaults),
        cmocka_unit_test(test_xcit_n_is_patches_or_channels),
        cmocka_unit_test(test_xcit_layerscale_is_of_the_preset),
        cmocka_unit_test(test_what_xcit_has_not_is_named),
        cmocka_unit_test(test_xcit_needs_two_values_of_each_channel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
