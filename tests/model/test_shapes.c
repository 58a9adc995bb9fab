/* The table of parameters, its sizes and initial values, the spec as metadata and from a document. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/data/safetensors.h"
#include "daemon/job/job.h"
#include "kernels/base/buf.h"
#include "tests/model/rig.h"

/* The network of a preset: on pictures of 224 x 224 in 1000 classes, or on text of `vocab` symbols. */
static struct model *preset(const char *name, const char *more, int32_t vocab)
{
    struct data_info data = {.kind = vocab ? DATA_TOKENS : DATA_IMAGES,
                             .channels = 3,
                             .height = 224,
                             .width = 224,
                             .classes = vocab ? 0 : 1000,
                             .vocab = vocab,
                             .context = 1024};
    struct job_config *c = NULL;
    struct model_spec s;
    struct model *m;
    struct pd_why why;
    char job[512];

    snprintf(job, sizeof job,
             "{\"model\":{\"preset\":\"%s\"%s},\"data\":{\"dataset\":\"%s\",\"path\":\"a/b\"},"
             "\"train\":{\"steps\":1}}",
             name, vocab ? more : ",\"patch\":14", vocab ? "text" : "mnist");
    if (job_config_load(job, strlen(job), &c, &why) != PD_OK)
        fail_msg("%s: %s", name, why.text);
    if (!vocab) { /* mnist stands in for pictures of the size that the shapes are published for */
        c->data.image_size[0] = c->data.image_size[1] = 224;
        c->model.patch[0] = c->model.patch[1] = atoi(more);
    }
    if (model_spec_from_config(c, &data, &s, &why) != PD_OK)
        fail_msg("%s: %s", name, why.text);
    job_config_free(c);
    m = make(&s);
    return m;
}

static void check_size(const char *name, const char *more, int32_t vocab, int64_t parameters)
{
    struct model *m = preset(name, more, vocab);

    if (model_param_elements(m) != parameters)
        fail_msg("%s has %lld parameters, published are %lld", name, (long long)model_param_elements(m),
                 (long long)parameters);
    model_free(m);
}

static void test_gpt2_presets_have_their_published_sizes(void **state)
{
    (void)state;
    check_size("gpt2", "", 50257, 124439808);
    check_size("gpt2_medium", "", 50257, 354823168);
    check_size("gpt2_large", "", 50257, 774030080);
    check_size("gpt2_1436m", "", 50257, 1438683648); /* 1438.7M, as the DNT paper counts */
    check_size("gpt2_xl", "", 50257, 1557611200);
}

static void test_vit_presets_have_their_published_sizes(void **state)
{
    (void)state;
    check_size("vit_tiny", "16", 0, 5717416);
    check_size("vit_small", "16", 0, 22050664);
    check_size("vit_b", "16", 0, 86567656);
    check_size("deit_b", "16", 0, 86567656);
    check_size("vit_l", "16", 0, 304326632);
    check_size("vit_h", "14", 0, 632045800);
}

/* The DNT paper counts without positions; each matrix weight once, S5's gains on top: 3 D + 2 d a block and 2
 * D.
 */
static void test_dnt_presets_have_their_published_sizes(void **state)
{
    static const struct {
        const char *name;
        int64_t width, depth;
        double millions;
    } text[] = {
        {"ldnt_small", 768, 12, 123.6}, {"ldnt_large", 1280, 36, 772.3}, {"ldnt_xl", 1536, 48, 1436.4}};
    static const struct {
        const char *name, *patch;
        double millions;
    } vision[] = {{"vdnt_large", "16", 304.3}, {"vdnt_huge", "14", 632.0}, {"vdnt_huge", "16", 632.2}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        int64_t d = text[i].width, want = 50304 * d + text[i].depth * (12 * d * d + 3 * d + 2 * 64) + 2 * d;

        check_size(text[i].name, ",\"pos\":\"none\"", 50304, want);
        assert_true(fabs((double)want / 1e6 - text[i].millions) < 0.06);
        check_size(text[i].name, "", 50304, want + 1024 * d);
    }
    for (size_t i = 0; i < 3; i++) {
        struct model *m = preset(vision[i].name, vision[i].patch, 0);

        assert_int_equal(model_spec(m)->placement, MODEL_S5);
        assert_int_equal(model_spec(m)->norm_kind, PK_NORM_RMS);
        assert_true(model_spec(m)->attention.qk_norm && model_spec(m)->bias);
        if (!(fabs((double)model_param_elements(m) / 1e6 - vision[i].millions) <= 0.1))
            fail_msg("%s has %lld parameters", vision[i].name, (long long)model_param_elements(m));
        model_free(m);
    }
}

static void test_names_layouts_and_decay_groups(void **state)
{
    struct model_spec s = vit_spec();
    struct model *m = make(&s);

    (void)state;
    assert_int_equal(named(m, "pos_embed")->shape.dim[1], 9);
    assert_false(named(m, "pos_embed")->decay);
    assert_false(named(m, "cls_token")->decay);
    assert_int_equal(named(m, "patch_embed.proj.weight")->shape.rank, 4);
    assert_int_equal(named(m, "patch_embed.proj.weight")->shape.dim[3], 3);
    assert_int_equal(named(m, "blocks.1.attn.qkv.weight")->shape.dim[0], 48);
    assert_true(named(m, "blocks.1.attn.qkv.weight")->decay);
    assert_false(named(m, "blocks.1.attn.qkv.bias")->decay);
    assert_non_null(named(m, "norm.weight"));
    assert_null(named(m, "blocks.0.attn.attn_scale"));
    model_free(m);
    s.pool = MODEL_POOL_MEAN;
    s.bias = false;
    s.attention.scale = MODEL_SCALE_LEARNED;
    s.attention.share = MODEL_SHARE_HEAD;
    s.attention.scale_param = MODEL_PARAM_LOG;
    s.attention.scale_lr_mult = 3;
    m = make(&s);
    assert_null(named(m, "cls_token"));
    assert_null(named(m, "head.bias"));
    assert_int_equal(named(m, "pos_embed")->shape.dim[1], 8);
    assert_non_null(named(m, "fc_norm.weight"));
    assert_int_equal(named(m, "blocks.0.attn.attn_scale_rho")->shape.dim[0], 2);
    assert_true(named(m, "blocks.0.attn.attn_scale_rho")->lr_mult == 3);
    assert_false(named(m, "blocks.0.attn.attn_scale_rho")->decay);
    model_free(m);
    s.attention.share = MODEL_SHARE_GLOBAL;
    s.attention.scale_param = MODEL_PARAM_DIRECT;
    s.attention.scale_decay = true;
    m = make(&s);
    assert_true(named(m, "attn_scale")->decay);
    model_free(m);
    s = gpt_spec();
    m = make(&s);
    assert_int_equal(named(m, "transformer.h.0.attn.c_attn.weight")->shape.dim[1], 48);
    assert_true(named(m, "transformer.wpe.weight")->decay); /* nanoGPT's rule */
    assert_null(named(m, "lm_head.weight"));
    model_free(m);
}

static void test_impossible_shapes_refused(void **state)
{
    struct model *m = NULL;
    struct pd_why why;
    struct model_spec s;

    (void)state;
#define REFUSED(change)                                                                                      \
    do {                                                                                                     \
        s = vit_spec();                                                                                      \
        change;                                                                                              \
        assert_int_equal(model_new(&s, &m, &why), PD_ERR_INVALID);                                           \
    } while (0)
    REFUSED(s.heads = 3);
    REFUSED(s.heads = 0);
    REFUSED(s.patch_h = 3);
    REFUSED(s.depth = 0);
    REFUSED(s.attention.degree = 9);
    REFUSED(s.norm_eps = 0);
    REFUSED(s.classes = 0);
    REFUSED(s.attention.scale_value = (double)NAN);
    REFUSED((s.attention.scale = MODEL_SCALE_LEARNED, s.attention.scale_param = MODEL_PARAM_LOG,
             s.attention.scale_value = -1));
    REFUSED(s.attention.dropout = 1);
    REFUSED(s.attention.row_power = 0.5); /* not causal */
    REFUSED((s.attention.form = PK_FORM_LINEAR, s.attention.phi = PK_PHI_SOFTMAX));
    REFUSED((s.attention.form = PK_FORM_LINEAR, s.attention.phi = PK_PHI_POLY, s.attention.degree = 3));
    REFUSED((s.attention.form = PK_FORM_LINEAR, s.attention.phi = PK_PHI_POLY, s.attention.degree = 2,
             s.attention.dropout = 0.1));
    REFUSED((s.attention.l1_tokens = true, s.attention.phi = PK_PHI_SOFTMAX));
    REFUSED((s.attention.l1_tokens = true, s.attention.phi = PK_PHI_POLY, s.attention.degree = 3));
#undef REFUSED
}

static double spread(const float *x, int64_t from, int64_t to, int64_t row, int64_t rows)
{
    double sum = 0;
    int64_t n = 0;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = from; k < to; k++, n++)
            sum += (double)x[r * row + k] * (double)x[r * row + k];
    return sqrt(sum / (double)n);
}

static float *start(const struct model *m, const char *name, uint64_t seed)
{
    const struct model_param *p = named(m, name);
    float *x = malloc((size_t)pk_shape_count(&p->shape) * sizeof *x);
    struct pd_why why;

    for (size_t i = 0; i < model_param_count(m); i++)
        if (model_param(m, i) == p)
            assert_int_equal(model_param_init(m, i, seed, x, &why), PD_OK);
    return x;
}

static void test_start_values_have_the_spread_asked_for(void **state)
{
    struct model_spec s = gpt_spec();
    struct model *m;
    float *x, *y;

    (void)state;
    s.width = 256;
    s.heads = 4;
    s.mlp_width = 1024;
    s.attention.init_logit_std = 0.6;
    m = make(&s);
    x = start(m, "transformer.h.0.attn.c_attn.weight", 1); /* [in, 3 out]: q and k columns, then v */
    assert_true(fabs(spread(x, 0, 512, 768, 256) - sqrt(0.6 / 256)) < 0.001);
    assert_true(fabs(spread(x, 512, 768, 768, 256) - 0.02) < 0.0005);
    y = start(m, "transformer.h.0.attn.c_attn.weight", 1);
    assert_memory_equal(x, y, 768 * 256 * sizeof *x);
    free(y);
    y = start(m, "transformer.h.1.attn.c_attn.weight", 1);
    assert_memory_not_equal(x, y, 768 * 256 * sizeof *x);
    free(x);
    free(y);
    x = start(m, "transformer.h.0.attn.c_proj.weight", 1); /* nanoGPT: 0.02 / sqrt(2 L) */
    assert_true(fabs(spread(x, 0, 65536, 0, 1) - 0.01) < 0.0003);
    free(x);
    model_free(m);
    s = vit_spec();
    s.width = 256;
    s.attention.init_logit_std = 0.6;
    m = make(&s);
    x = start(m, "blocks.0.attn.qkv.weight", 1); /* [3 out, in] */
    assert_true(fabs(spread(x, 0, 512 * 256, 0, 1) - sqrt(0.6 / 256)) < 0.001);
    assert_true(fabs(spread(x + 512 * 256, 0, 256 * 256, 0, 1) - 0.02) < 0.0005);
    free(x);
    model_free(m);
    s.init = MODEL_INIT_XAVIER;
    s.attention.init_logit_std = -1;
    m = make(&s);
    x = start(m, "blocks.0.attn.qkv.weight", 1);
    assert_true(fabs(spread(x, 0, 768 * 256, 0, 1) - sqrt(2.0 / 512)) < 0.001);
    free(x);
    model_free(m);
    s.init = MODEL_INIT_TRUNC_XAVIER;
    s.init_fused = true;
    m = make(&s);
    x = start(m, "blocks.0.attn.qkv.weight", 1);
    for (int i = 0; i < 768 * 256; i++)
        assert_true(fabs((double)x[i]) <= 2 * sqrt(2.0 / 1024) + 1e-9);
    free(x);
    model_free(m);
    s.attention.scale = MODEL_SCALE_LEARNED;
    s.attention.scale_param = MODEL_PARAM_SOFTPLUS;
    s.attention.scale_value = 0.25;
    m = make(&s);
    x = start(m, "blocks.0.attn.attn_scale_rho", 1);
    assert_true(fabs(log1p(exp((double)x[0])) - 0.25) < 1e-6);
    free(x);
    model_free(m);
}

static void test_metadata_gives_the_spec_back(void **state)
{
    struct model_spec s = vit_spec(), back;
    struct data_st_meta_item items[MODEL_META_ITEMS];
    struct data_st *st = NULL;
    struct pd_buf b;
    struct pd_why why;
    char *text = NULL;
    size_t count = 0;

    (void)state;
    s.attention.scale_value = 1.0 / 7;
    memset(&back, 0, sizeof back);
    assert_int_equal(model_spec_to_meta(&s, false, items, &count, &text, &why), PD_OK);
    pd_buf_init(&b, 0);
    assert_int_equal(data_st_header(NULL, 0, items, count, &b, &why), PD_OK);
    assert_int_equal(data_st_parse(b.data, b.len, &st, &why), PD_OK);
    assert_int_equal(model_spec_from_meta(st, &back, &why), PD_OK);
    assert_true(back.attention.scale_value == s.attention.scale_value && back.patch_w == 3 &&
                back.attention.phi == s.attention.phi && back.bias);
    data_st_free(st);
    pd_buf_done(&b);
    /* a missing and an absurd value */
    pd_buf_init(&b, 0);
    assert_int_equal(data_st_header(NULL, 0, items + 1, count - 1, &b, &why), PD_OK);
    assert_int_equal(data_st_parse(b.data, b.len, &st, &why), PD_OK);
    assert_int_equal(model_spec_from_meta(st, &back, &why), PD_ERR_CORRUPT);
    data_st_free(st);
    pd_buf_done(&b);
    for (size_t i = 0; i < count; i++) {
        const char *was = items[i].value;

        items[i].value = "1e9";
        pd_buf_init(&b, 0);
        assert_int_equal(data_st_header(NULL, 0, items, count, &b, &why), PD_OK);
        assert_int_equal(data_st_parse(b.data, b.len, &st, &why), PD_OK);
        if (model_spec_from_meta(st, &back, &why) == PD_OK) /* a number in range: also fine */
            assert_int_equal(model_spec_check(&back, &why), PD_OK);
        data_st_free(st);
        pd_buf_done(&b);
        items[i].value = was;
    }
    free(text);
}

static void test_config_gives_the_network_it_describes(void **state)
{
    static const char vit[] =
        "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\",\"scale\":"
        "\"learned\"},\"data\":{\"dataset\":\"mnist\",\"path\":\"a/b\"},\"train\":{\"steps\":1}}";
    static const char gpt[] =
        "{\"model\":{\"preset\":\"gpt2\"},\"data\":{\"dataset\":\"text\",\"path\":\"a/b\"},"
        "\"train\":{\"steps\":1}}";
    static const char row[] = "{\"model\":{\"preset\":\"gpt_micro\",\"bias\":true},\"attention\":{\"n_for_"
                              "scale\":\"row\"},\"data\":{"
                              "\"dataset\":\"text\",\"path\":\"a\"},\"train\":{\"steps\":1}}";
    struct data_info images = {.kind = DATA_IMAGES, .channels = 1, .height = 28, .width = 28, .classes = 10};
    struct data_info text = {.kind = DATA_TOKENS, .vocab = 256, .context = 1024};
    struct job_config *c = NULL;
    struct model_spec s;
    struct pd_why why;

    (void)state;
    if (job_config_load(vit, strlen(vit), &c, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(model_spec_from_config(c, &images, &s, &why), PD_OK);
    assert_int_equal(s.width, 64);
    assert_int_equal(s.patch_h, 4);
    assert_int_equal(s.pool, MODEL_POOL_MEAN);
    assert_int_equal(s.mlp_width, 256);
    assert_true(s.attention.n_for_scale == 49 && fabs(s.attention.scale_value - 1.0 / 7) < 1e-15);
    assert_int_equal(s.attention.degree, 3);
    assert_true(s.norm_eps == 1e-6 && !s.gelu_tanh && s.init == MODEL_INIT_TRUNC_NORMAL &&
                s.attention.init_logit_std < 0);
    assert_int_equal(model_spec_from_config(c, &text, &s, &why), PD_ERR_INVALID);
    images.height = 32;
    assert_int_equal(model_spec_from_config(c, &images, &s, &why), PD_ERR_UNSUPPORTED); /* 28 x 28 was said */
    job_config_free(c);
    if (job_config_load(gpt, strlen(gpt), &c, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(model_spec_from_config(c, &text, &s, &why), PD_OK);
    assert_int_equal(s.width, 768);
    assert_int_equal(s.context, 1024);
    assert_true(s.gelu_tanh && s.norm_eps == 1e-5 && s.init == MODEL_INIT_NORMAL);
    job_config_free(c);
    /* N of a row has no effect on rows that are normalised: they are trained, not refused. */
    if (job_config_load(row, strlen(row), &c, &why) != PD_OK)
        fail_msg("%s", why.text);
    if (model_spec_from_config(c, &text, &s, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_true(s.attention.row_power == 0 && !s.gelu_tanh && s.bias);
    job_config_free(c);
}

/* Each word of the document is a row of phi.h: of its name, or one with something besides. */
static void test_config_gives_the_activation(void **state)
{
    struct data_info images = {.kind = DATA_IMAGES, .channels = 1, .height = 28, .width = 28, .classes = 10};
    struct job_config *c = NULL;
    struct model_spec s;
    struct pd_why why;

    (void)state;
    for (int word = 0; word < JOB_ACTIVATION_COUNT; word++) {
        const char *name = job_activation_name(word), *row = name;
        char job[400];

        if (word == JOB_ACTIVATION_FORMULA) /* a text of its own, no row of phi.h: tests/wiring */
            continue;
        row = word == JOB_ACTIVATION_SIMA ? "poly" : word == JOB_ACTIVATION_SIGMOID_BIAS ? "sigmoid" : name;
        snprintf(job, sizeof job,
                 "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"%s\",\"degree\":3},"
                 "\"data\":{\"dataset\":\"mnist\",\"path\":\"a/b\"},\"train\":{\"steps\":1}}",
                 name);
        if (job_config_load(job, strlen(job), &c, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(c->attention.activation, word);
        if (model_spec_from_config(c, &images, &s, &why) != PD_OK)
            fail_msg("%s: %s", name, why.text);
        assert_string_equal(pk_phi_name(s.attention.phi), row);
        assert_int_equal(s.attention.degree, word == JOB_ACTIVATION_POLY ? 3 : 1);
        assert_true(s.attention.l1_tokens == (word == JOB_ACTIVATION_SIMA));
        assert_true((s.attention.logit_bias != 0) == (word == JOB_ACTIVATION_SIGMOID_BIAS));
        c->attention.activation = JOB_ACTIVATION_COUNT;
        assert_int_equal(model_spec_from_config(c, &images, &s, &why), PD_ERR_UNSUPPORTED);
        assert_non_null(strstr(why.text, "#/attention/activation: this activation is not available"));
        job_config_free(c);
    }
}

/* What changes no number beyond rounding is seen nowhere else. */
static void test_config_gives_the_order_of_the_products(void **state)
{
    static const char *const words[] = {"auto", "quadratic", "linear"};
    static const enum pk_form forms[] = {PK_FORM_AUTO, PK_FORM_QUADRATIC, PK_FORM_LINEAR};
    struct data_info images = {.kind = DATA_IMAGES, .channels = 1, .height = 28, .width = 28, .classes = 10};
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct job_config *c = NULL;
        struct model_spec s;
        char job[400];

        snprintf(
            job, sizeof job,
            "{\"model\":{\"preset\":\"vit_micro\"},\"attention\":{\"activation\":\"poly\",\"degree\":2,"
            "\"form\":\"%s\"},\"data\":{\"dataset\":\"mnist\",\"path\":\"a/b\"},\"train\":{\"steps\":1}}",
            words[i]);
        if (job_config_load(job, strlen(job), &c, &why) != PD_OK)
            fail_msg("%s", why.text);
        assert_int_equal(model_spec_from_config(c, &images, &s, &why), PD_OK);
        assert_int_equal(s.attention.form, forms[i]);
        job_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_gives_the_activation),
        cmocka_unit_test(test_config_gives_the_order_of_the_products),
        cmocka_unit_test(test_gpt2_presets_have_their_published_sizes),
        cmocka_unit_test(test_vit_presets_have_their_published_sizes),
        cmocka_unit_test(test_dnt_presets_have_their_published_sizes),
        cmocka_unit_test(test_names_layouts_and_decay_groups),
        cmocka_unit_test(test_impossible_shapes_refused),
        cmocka_unit_test(test_start_values_have_the_spread_asked_for),
        cmocka_unit_test(test_metadata_gives_the_spec_back),
        cmocka_unit_test(test_config_gives_the_network_it_describes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
