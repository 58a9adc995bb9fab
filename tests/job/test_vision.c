/* tests/job/test_vision.c: what networks of images beyond ViT ask of a document. */
#include <math.h>

#include "tests/job/help.h"

#define SWIN(model)                                                                                          \
    "{\"model\":{\"arch\":\"swin\"" model "},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}"
#define MICRO(model, data)                                                                                   \
    "{\"model\":{\"preset\":\"swin_micro\"" model "},\"data\":{\"dataset\":\"mnist\"" data                   \
    "},\"train\":{\"epochs\":1}}"
#define LISTS ",\"widths\":[8,16],\"depths\":[2,1],\"head_counts\":[1,2],\"patch\":2"

static void test_swin_takes_extents_from_its_lists(void **state)
{
    struct parsed p = want_ok(SWIN(LISTS));
    const struct job_config *g = &job_first(p.job)->config;

    (void)state;
    assert_int_equal(g->model.width, 8);
    assert_int_equal(g->model.depth, 3);
    assert_int_equal(g->model.heads, 1);
    assert_int_equal(job_config_window(g), 49);
    assert_int_equal(job_config_mlp_width(g), 32);
    assert_true(g->norm.eps == 1e-5);
    done(&p);
}

/* N and c of the document are those of the first stage. */
static void test_swin_n_is_that_of_the_first_stage(void **state)
{
    static const struct {
        const char *attention;
        double n;
    } cases[] = {{"", 49},
                 {",\"n_for_scale\":\"keys\"", 49},
                 {",\"n_for_scale\":\"patches\"", 196},
                 {",\"n_for_scale\":9", 9}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        const struct job_config *g;
        struct parsed p;

        snprintf(text, sizeof text,
                 "{\"model\":{\"arch\":\"swin\"" LISTS "},\"attention\":{\"activation\":\"poly\"%s},"
                 "\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
                 cases[i].attention);
        p = want_ok(text);
        g = &job_first(p.job)->config;
        assert_true(g->attention.n == cases[i].n);
        assert_true(g->attention.c0 == 1 / sqrt(cases[i].n));
        done(&p);
    }
}

/* Of a scalar of a formula: the initial values of the modules that it belongs to, each with its stage's N and heads. */
static void test_initial_values_of_scalars_are_checked_in_every_stage(void **state)
{
    static const struct {
        const char *model, *n, *per, *init;
        const char *what; /* NULL: accepted */
    } cases[] = {
        {"\"arch\":\"swin\"" LISTS, "window", "head", "1+h", NULL},
        {"\"arch\":\"swin\"" LISTS, "window", "head", "2*(1-h)", "is 0, and with this form must be above 0"},
        {"\"arch\":\"swin\"" LISTS, "patches", "layer", "n-48", NULL},
        {"\"arch\":\"swin\"" LISTS, "patches", "layer", "n-100", "is -51, and"},
        {"\"arch\":\"swin\"" LISTS, "window", "layer", "n-40", NULL},
        {"\"arch\":\"swin\"" LISTS ",\"window\":14", "window", "layer", "n-100", "is -51, and"},
        {"\"arch\":\"swin\"" LISTS, "60", "layer", "n-59", NULL},
        {"\"arch\":\"swin\"" LISTS, "window", "layer", "2+L-l-H", NULL},
        {"\"arch\":\"swin\"" LISTS, "window", "layer", "L-l-H", "is -1, and"},
        {"\"arch\":\"swin\"" LISTS, "patches", "global", "n-100", NULL},
        {"\"arch\":\"swin\"" LISTS, "patches", "global", "n-100-l", "reads the layer l, but per global"},
        {"\"preset\":\"vit_micro\"", "patches", "layer", "1+h", "reads the head h, but per layer"},
        {"\"preset\":\"vit_micro\"", "patches", "global", "1+h+l", "reads the head h, but per global"},
        {"\"preset\":\"vit_micro\"", "patches", "layer", "1+l", NULL},
        {"\"preset\":\"vit_micro\"", "patches", "head", "1-h", "is 0, and"},
        {"\"preset\":\"vit_micro\"", "patches", "layer", "3-l", "is 0, and"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool count = cases[i].n[0] == '6';
        char text[640];

        snprintf(text, sizeof text,
                 "{\"model\":{%s},\"attention\":{\"activation\":\"formula\",\"formula\":\"a*s^3\",\"n_for_"
                 "scale\":%s%s%s,"
                 "\"params\":{\"a\":{\"init\":\"%s\",\"per\":\"%s\",\"form\":\"log\"}}},\"data\":{"
                 "\"dataset\":\"mnist\"},"
                 "\"train\":{\"epochs\":1}}",
                 cases[i].model, count ? "" : "\"", cases[i].n, count ? "" : "\"", cases[i].init,
                 cases[i].per);
        if (cases[i].what) {
            want_only(text, "#/attention/params/a/init", cases[i].what);
        } else {
            struct parsed p = want_ok(text);

            done(&p);
        }
    }
}

static void test_swin_lists_that_do_not_fit_are_named(void **state)
{
    static const struct {
        const char *doc, *pointer, *what;
    } cases[] = {
        {SWIN(""), "#/model/widths", "is needed by a swin: the width of each stage"},
        {SWIN(",\"widths\":[8,16]"), "#/model/depths", "is needed by a swin: the blocks of each stage"},
        {SWIN(",\"widths\":[8,16],\"depths\":[1],\"head_counts\":[1,2]"), "#/model/depths",
         "has 1 stages, but model.widths has 2"},
        {SWIN(",\"widths\":[8,12],\"depths\":[1,1],\"head_counts\":[1,2],\"patch\":2"), "#/model/widths",
         "must double from stage to stage: stage 2 has 12, not 16"},
        {SWIN(",\"widths\":[8,16],\"depths\":[1,1],\"head_counts\":[1,3],\"patch\":2"), "#/model/head_counts",
         "3 heads do not divide the width 16 of stage 2"},
        {SWIN(",\"widths\":[8,16],\"depths\":[1,1],\"head_counts\":[1,2],\"patch\":4"), "#/model/patch",
         "28x28 pixels in patches of 4x4 are 7x7 patches, which cannot be halved 1 time, as 2 stages need: "
         "each "
         "side of data.image_size must be a multiple of model.patch x 2"},
        {MICRO(",\"patch\":4", ""), "#/model/patch", "28x28 pixels in patches of 4x4 are 7x7 patches"},
        {MICRO("", ",\"image_size\":[28,14]"), "#/data/image_size",
         "28x14 pixels in patches of 2x2 are 14x7 patches"},
        {MICRO(",\"depths\":[1,1,1],\"widths\":[8,16,32],\"head_counts\":[1,1,1]", ""), "#/model/depths",
         "cannot be halved 2 times, as 3 stages need"},
        {MICRO(",\"head_counts\":[3,4]", ""), "#/model/head_counts",
         "3 heads do not divide the width 32 of stage 1"},
        {SWIN(LISTS ",\"window\":5"), "#/model/window", "stage 1 has 14x14 tokens, a window 5"},
        {"{\"model\":{\"preset\":\"swin_micro\"},\"attention\":{\"activation\":\"poly\",\"degree\":2,"
         "\"form\":\"linear\"},\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
         "#/attention/form", "a swin adds relative positions to them; use auto or quadratic"},
        {SWIN(LISTS ",\"pool\":\"cls\""), "#/model/pool", "a swin has no class token"},
        {SWIN(LISTS ",\"width\":9"), "#/model/width", "follows from the lists of a swin"},
        {SWIN(LISTS ",\"depth\":2"), "#/model/depth", "follows from the lists of a swin"},
        {SWIN(LISTS ",\"heads\":2"), "#/model/heads", "follows from the lists of a swin"},
        {"{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\",\"n_for_scale\":"
         "\"window\"},"
         "\"data\":{\"dataset\":\"mnist\"},\"train\":{\"epochs\":1}}",
         "#/attention/n_for_scale", "a vit has no windows"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        want_only(cases[i].doc, cases[i].pointer, cases[i].what);
}

#define TAUGHT(arch, teacher)                                                                                \
    "{\"model\":{\"arch\":\"" arch "\",\"width\":8,\"depth\":1,\"heads\":1,\"patch\":7},\"data\":{"          \
    "\"dataset\":\"mnist\"},\"train\":{\"epochs\":1" teacher "}}"
static void test_deit_needs_a_teacher_that_was_found(void **state)
{
    struct parsed p = want_ok(TAUGHT("deit", ",\"teacher\":" TEACHER));

    (void)state;
    assert_int_equal(job_first(p.job)->config.model.pool, JOB_POOL_CLS);
    assert_int_equal(job_config_keys(&job_first(p.job)->config), 18);
    assert_int_equal(job_config_tokens(&job_first(p.job)->config), 16);
    done(&p);
    want_only(TAUGHT("deit", ""), "#/train/teacher", "is needed by a deit, whose distillation head");
    want_only(TAUGHT("deit", ",\"teacher\":{\"model\":\"a\"}"), "#/train/teacher/model",
              "overrides and axes cannot set a teacher");
    want_only(TAUGHT("vit", ",\"teacher\":" TEACHER), "#/train/teacher", "a vit has no distillation head");
    for (size_t i = 0; i < 2; i++) { /* before the model is looked for */
        const char *text = i ? "{\"model\":{\"preset\":\"swin_t\"},\"train\":{\"teacher\":{\"model\":\"a\"}}}"
                             : TAUGHT("vit", ",\"teacher\":{\"model\":\"a\"}");
        struct job_report report;
        struct job_wanted wanted;

        job_report_init(&report);
        assert_int_equal(job_teacher_wanted(text, strlen(text), &wanted, &report), PD_ERR_INVALID);
        assert_false(wanted.present);
        assert_true(told(report.errors, report.error_count, "#/train/teacher", "has no distillation head"));
        job_report_done(&report);
    }
}

#define MIXED_IN(batch, augment, more)                                                                       \
    "{\"model\":{\"preset\":\"vit_micro\"},\"data\":{\"dataset\":\"mnist\",\"augment\":{" augment            \
    "}},\"train\":{\"epochs\":1,\"batch\":" batch more "}"
#define MIXED(augment, more) MIXED_IN("64", augment, more)

/* By default a group is what a slot takes at once; as a computed value it is part of the trajectory. */
static void test_a_mixing_group_is_what_a_slot_takes_at_once(void **state)
{
    static const struct {
        const char *doc;
        int64_t group;
    } cases[] = {
        {MIXED("\"mixup\":0.8", "}"), 64},
        {MIXED("\"cutmix\":1", ",\"accumulation\":2},\"resources\":{\"slots\":4}"), 8},
        {MIXED("\"mixup\":0.8,\"mix_group\":4", "},\"resources\":{\"slots\":2}"), 4},
        {MIXED("\"flip\":0.5", "}"), 0},
    };
    char digest[4][JOB_DIGEST_SIZE];
    struct pd_why why;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct parsed p = want_ok(cases[i].doc);

        assert_int_equal(job_first(p.job)->config.data.augment.mix_group, cases[i].group);
        assert_int_equal(job_trajectory(p.job, false, digest[i], &why), PD_OK);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(digest[i], digest[k]);
        done(&p);
    }
}

static void test_a_mixing_group_that_does_not_fit_is_named(void **state)
{
    (void)state;
    want_only(MIXED("\"mixup\":0.8,\"mix_group\":48", "}"), "#/data/augment/mix_group",
              "groups of 48 do not divide 64 images (batch 64 over 1 slots in 1 micro-batches)");
    want_only(MIXED("\"mixup\":0.8,\"mix_group\":64", "},\"resources\":{\"slots\":2}"),
              "#/data/augment/mix_group", "groups of 64 do not divide 32 images");
    want_only(MIXED_IN("1", "\"mixup\":0.8", "}"), "#/train/batch",
              "a multiple of 2 x slots x accumulation, 2");
    want_only(MIXED_IN("12", "\"cutmix\":1", ",\"accumulation\":2},\"resources\":{\"slots\":2}"),
              "#/train/batch", "it gives 3; use a multiple of 2 x slots x accumulation, 8");
    want_only(MIXED("\"cutmix\":1,\"mix_group\":3", "}"), "#/data/augment/mix_group", "must be even");
    want_only(MIXED("\"cutmix\":1,\"mix_group\":null", "}"), "#/data/augment/mix_group", "must be even");
}

/* That RandAugment is on decides numbers, even where each of its members is the default. */
static void test_randaugment_is_part_of_the_trajectory(void **state)
{
    static const char *const docs[] = {MIXED("\"randaugment\":{}", "}"), MIXED("\"randaugment\":null", "}"),
                                       MIXED("\"randaugment\":{\"m\":5}", "}")};
    char digest[3][JOB_DIGEST_SIZE];
    struct pd_why why;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct parsed p = want_ok(docs[i]);

        assert_int_equal(job_trajectory(p.job, false, digest[i], &why), PD_OK);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(digest[i], digest[k]);
        done(&p);
    }
}

static void test_recipes_of_imagenet_are_not_refused(void **state)
{
    static const struct {
        const char *recipe, *preset, *train;
    } cases[] = {{"vit_b", "vit_b", "{}"},
                 {"deit_b", "deit_b", "{}"},
                 {"swin_b", "swin_b", "{}"},
                 {"vdnt", "vdnt_large", "{}"},
                 {"vdnt", "vdnt_huge", "{}"},
                 {"vit_b_augreg", "vit_b", "{}"},
                 {"deit_b_distilled", "deit_b_distilled", "{\"teacher\":" TEACHER "}"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        struct parsed p;

        snprintf(text, sizeof text, "{\"recipe\":\"%s\",\"model\":{\"preset\":\"%s\"},\"train\":%s}",
                 cases[i].recipe, cases[i].preset, cases[i].train);
        p = want_ok(text);
        done(&p);
    }
}

static void test_repeats_need_an_epoch_of_256(void **state)
{
    struct parsed p = want_ok(MIXED("\"repeats\":3", "}"));
    struct job_config g = job_first(p.job)->config;
    struct pd_why why;

    (void)state;
    assert_int_equal(job_config_bind(&g, 1100, &why), PD_OK);
    assert_int_equal(g.bound.steps_per_epoch, 1024 / 64);
    assert_int_equal(job_config_bind(&g, 255, &why), PD_ERR_INVALID);
    assert_non_null(
        strstr(why.text, "#/data/augment/repeats: needs at least 256 training images, and there are 255"));
    done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swin_takes_extents_from_its_lists),
        cmocka_unit_test(test_swin_n_is_that_of_the_first_stage),
        cmocka_unit_test(test_initial_values_of_scalars_are_checked_in_every_stage),
        cmocka_unit_test(test_swin_lists_that_do_not_fit_are_named),
        cmocka_unit_test(test_deit_needs_a_teacher_that_was_found),
        cmocka_unit_test(test_a_mixing_group_is_what_a_slot_takes_at_once),
        cmocka_unit_test(test_a_mixing_group_that_does_not_fit_is_named),
        cmocka_unit_test(test_randaugment_is_part_of_the_trajectory),
        cmocka_unit_test(test_recipes_of_imagenet_are_not_refused),
        cmocka_unit_test(test_repeats_need_an_epoch_of_256),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
