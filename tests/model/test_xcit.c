/* XCiT as graphs: a step that is not finite changes no byte of any buffer; evaluation writes none; mixed precision plans
 * every graph; published sizes. */
#include "tests/model/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/safetensors.h"
#include "daemon/worker/task/task.h"
#include "daemon/worker/train/optim/optim.h"
#include "kernels/base/buf.h"

#define BATCH 4
#define SIDE 8

static struct model_spec spec(void)
{
    struct model_spec s = {.arch = &model_xcit,
                           .width = 8,
                           .depth = 1,
                           .heads = 2,
                           .mlp_width = 8,
                           .bias = true,
                           .final_norm = true,
                           .classes = 5,
                           .norm_eps = 1e-6,
                           .channels = 3,
                           .image_h = SIDE,
                           .image_w = SIDE,
                           .patch_h = 4,
                           .patch_w = 4,
                           .pos = true,
                           .layerscale = 1,
                           .class_depth = 2,
                           .dtype = PK_F32};

    s.attention = (struct model_attention){.phi = PK_PHI_POLY,
                                           .degree = 3,
                                           .scale = MODEL_SCALE_FIXED,
                                           .scale_value = 0.5,
                                           .n_for_scale = 4,
                                           .scale_lr_mult = 1,
                                           .init_logit_std = -1};
    s.class_attention = s.attention;
    return s;
}

static struct model_train_options options(void)
{
    return (struct model_train_options){.loss = &task_cross_entropy,
                                        .batch = BATCH,
                                        .optimizer = &optim_find("msgdw")->graph,
                                        .momentum = 0.9};
}

static void put_images(struct rig *r, float first)
{
    const int32_t target[BATCH] = {3, 0, 4, 1};
    float x[BATCH * 3 * SIDE * SIDE];

    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i * 37 % 64) / 16 - 2;
    x[0] = first;
    put(r, "input", x);
    put(r, "target", target);
}

/* All parameters and buffers, one behind the other. */
static char *all_bytes(const struct model *m, const struct model_store *store)
{
    char *all = malloc(model_param_bytes(m)), *at = all;

    assert_non_null(all);
    for (size_t i = 0; i < model_param_count(m); i++) {
        const size_t bytes = (size_t)pk_shape_count(&model_param(m, i)->shape) * sizeof(float);

        memcpy(at, model_store_data(store, i), bytes);
        at += bytes;
    }
    return all;
}

static void test_xcit_a_step_that_is_not_finite_changes_no_byte(void **state)
{
    const struct model_spec s = spec();
    struct model *m = make(&s);
    const struct model_train_options o = options();
    struct model_store *store = NULL;
    struct pk_backend *b = NULL;
    struct rig r = {0}, eval = {0};
    struct pd_why why;
    char *start, *before, *after;
    float report[5];

    (void)state;
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 2, &b, &why), PD_OK);
    assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
    assert_int_equal(model_store_init(store, 5, &why), PD_OK);
    assert_int_equal(model_graph_train(m, &o, false, &r.g, &why), PD_OK);
    plan(&r, store, b, NULL);
    for (size_t i = 0; i < r.count; i++)
        if (r.memory[i] && pk_graph_leaf(r.g, i).kind == PK_OP_STATE)
            memset(r.memory[i], 0, pk_graph_leaf(r.g, i).bytes);
    put(&r, "hyper", (const float[4]){1e-2f, 0.1f, 0.01f, 1});
    start = all_bytes(m, store);
    put_images(&r, 0.25f);
    assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    before = all_bytes(m, store);
    for (size_t i = model_trained_count(m); i < model_param_count(m);
         i++) { /* a good step moves each of them */
        const char *x = model_store_data(store, i);
        size_t at = 0;

        for (size_t k = 0; k < i; k++)
            at += (size_t)pk_shape_count(&model_param(m, k)->shape) * sizeof(float);
        assert_memory_not_equal(x, start + at,
                                (size_t)pk_shape_count(&model_param(m, i)->shape) * sizeof(float));
    }
    put_images(&r, INFINITY);
    assert_int_equal(pk_exec_run(r.e, &why), PD_OK);
    assert_int_equal(pk_exec_read(r.e, "report", report, sizeof report, &why), PD_OK);
    assert_true(report[4] == 0); /* not applied */
    after = all_bytes(m, store);
    assert_memory_equal(before, after, model_param_bytes(m));
    free(after);
    assert_int_equal(model_graph_eval(m, &task_cross_entropy, BATCH, 0, &eval.g, &why), PD_OK);
    plan(&eval, store, b, NULL);
    put_images(&eval, 0.25f);
    assert_int_equal(pk_exec_run(eval.e, &why), PD_OK);
    after = all_bytes(m, store);
    assert_memory_equal(before, after, model_param_bytes(m));
    free(start);
    free(before);
    free(after);
    close_rig(&eval, b);
    close_rig(&r, b);
    model_store_free(store);
    model_free(m);
    pk_backend_cpu()->close(b);
}

/* Published: 26 and 84 million for 1000 classes at 224 x 224 (arXiv:2106.09681, table 1). */
static void test_xcit_has_the_published_parameters(void **state)
{
    static const struct {
        int32_t width, depth;
        double millions;
    } sizes[] = {{384, 12, 26}, {512, 24, 84}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model_spec s = spec();
        struct model *m;

        s.width = sizes[i].width;
        s.depth = sizes[i].depth;
        s.heads = 8;
        s.mlp_width = 4 * s.width;
        s.classes = 1000;
        s.image_h = s.image_w = 224;
        s.patch_h = s.patch_w = 16;
        m = make(&s);
        assert_true(fabs((double)model_param_elements(m) * 1e-6 - sizes[i].millions) < 0.5);
        model_free(m);
    }
}

static void test_xcit_lists_every_attention_module(void **state)
{
    struct model_spec s = spec();
    struct model *m = make(&s);

    (void)state;
    assert_int_equal(model_attention_count(m), 3);
    assert_string_equal(model_attention_path(m, 0), "blocks.0.attn");
    assert_string_equal(model_attention_path(m, 2), "cls_attn_blocks.1.attn");
    assert_false(model_attention_has_jac_q(m, 0)); /* norms stand between */
    assert_true(model_attention_has_jac_q(m, 1));
    model_free(m);
}

/* As PyTorch writes one: parameter i is i, and how many batches were tracked is a whole number of 64 bits. */
static void test_xcit_reads_files_of_its_authors(void **state)
{
    const struct model_spec s = spec();
    struct model *m = make(&s);
    struct data_st_tensor t[128] = {{0}};
    struct model_store *store = NULL;
    struct pk_backend *b = NULL;
    struct data_st *st = NULL;
    struct pd_buf bytes;
    struct pd_why why;

    (void)state;
    assert_true(model_param_count(m) < 128);
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);

        t[i].name = p->name;
        t[i].dtype = strstr(p->name, "num_batches_tracked") ? DATA_ST_I64 : DATA_ST_F32;
        t[i].rank = p->shape.rank;
        memcpy(t[i].dim, p->shape.dim, sizeof t[i].dim);
    }
    pd_buf_init(&bytes, 0);
    assert_int_equal(data_st_header(t, model_param_count(m), NULL, 0, &bytes, &why), PD_OK);
    for (size_t i = 0; i < model_param_count(m); i++)
        for (int64_t k = 0; k < pk_shape_count(&model_param(m, i)->shape); k++) {
            const float x = (float)i;
            const int64_t whole = (int64_t)i;

            if (t[i].dtype == DATA_ST_I64)
                pd_buf_append(&bytes, &whole, sizeof whole);
            else
                pd_buf_append(&bytes, &x, sizeof x);
        }
    if (data_st_parse(bytes.data, bytes.len, &st, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_int_equal(pk_backend_cpu()->open(NULL, 0, 1, &b, &why), PD_OK);
    assert_int_equal(model_store_new(m, pk_backend_cpu(), b, &store, &why), PD_OK);
    if (model_store_read(store, st, &why) != PD_OK)
        fail_msg("%s", why.text);
    for (size_t i = 0; i < model_param_count(m); i++)
        assert_true(*(const float *)model_store_data(store, i) == (float)i);
    model_store_free(store);
    data_st_free(st);
    pd_buf_done(&bytes);
    model_free(m);
    pk_backend_cpu()->close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xcit_a_step_that_is_not_finite_changes_no_byte),
        cmocka_unit_test(test_xcit_has_the_published_parameters),
        cmocka_unit_test(test_xcit_lists_every_attention_module),
        cmocka_unit_test(test_xcit_reads_files_of_its_authors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
