/* The planner's quality on the graphs of the real models: arena at most 1.1 of what is live. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/worker/train/optim/optim.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/task/task.h"
#include "kernels/graph/roofline.h"

static const struct model_train_options options = {.loss = &task_cross_entropy,
                                                   .batch = 8,
                                                   .context = 256,
                                                   .clip_norm = 1.0,
                                                   .optimizer = &optim_adamw.graph,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.95,
                                                   .eps = 1e-8,
                                                   .weight_decay = 0.1};

static struct model_spec vit(int32_t image, int32_t patch, int32_t width, int32_t heads, enum pk_phi phi,
                             int32_t depth)
{
    return (struct model_spec){.arch = &model_vit,
                               .width = width,
                               .depth = depth,
                               .heads = heads,
                               .mlp_width = 4 * width,
                               .bias = true,
                               .final_norm = true,
                               .norm_eps = 1e-6,
                               .channels = 3,
                               .image_h = image,
                               .image_w = image,
                               .patch_h = patch,
                               .patch_w = patch,
                               .classes = 200,
                               .attention.phi = phi,
                               .attention.degree = 3,
                               .attention.scale = phi == PK_PHI_POLY ? MODEL_SCALE_LEARNED : MODEL_SCALE_NONE,
                               .attention.n_for_scale = 196,
                               .attention.scale_value = 1.0 / 14,
                               .attention.scale_lr_mult = 1.0,
                               .attention.init_logit_std = -1.0,
                               .dtype = PK_F32};
}

static struct model_spec gpt(int32_t width, int32_t depth, int32_t heads, int32_t context, enum pk_phi phi)
{
    return (struct model_spec){.arch = &model_gpt,
                               .width = width,
                               .depth = depth,
                               .heads = heads,
                               .mlp_width = 4 * width,
                               .gelu_tanh = true,
                               .bias = true,
                               .final_norm = true,
                               .norm_eps = 1e-5,
                               .vocab = 50257,
                               .context = context,
                               .pos = true,
                               .attention.phi = phi,
                               .attention.degree = 3,
                               .attention.scale = phi == PK_PHI_POLY ? MODEL_SCALE_FIXED : MODEL_SCALE_NONE,
                               .attention.n_for_scale = 1024,
                               .attention.scale_value = 1.0 / 32,
                               .attention.scale_lr_mult = 1.0,
                               .init = MODEL_INIT_NORMAL,
                               .attention.init_logit_std = -1.0,
                               .dtype = PK_F32};
}

/* DNT's block in place of the ordinary one. */
static struct model_spec s5(struct model_spec s)
{
    s.placement = MODEL_S5;
    s.norm_kind = PK_NORM_RMS;
    s.attention.qk_norm = true;
    s.gelu_tanh = false;
    return s;
}

static struct model_spec swin_t(enum pk_phi phi)
{
    static const int32_t depth[] = {2, 2, 6, 2}, heads[] = {3, 6, 12, 24};
    struct model_spec s = vit(224, 4, 96, 3, phi, 12);

    s.arch = &model_swin;
    s.norm_eps = 1e-5;
    s.window = 7;
    for (int i = 0; i < 4; i++) {
        s.stage_depth[i] = depth[i];
        s.stage_heads[i] = heads[i];
    }
    s.attention.n_for_scale = 49;
    return s;
}

static struct model_spec xcit_s12(enum pk_phi phi)
{
    struct model_spec s = vit(224, 16, 384, 8, phi, 12);

    s.arch = &model_xcit;
    s.pool = MODEL_POOL_CLS;
    s.pos = true;
    s.layerscale = 1;
    s.class_depth = 2;
    s.class_attention = s.attention;
    return s;
}

static struct model_spec deit(int32_t width, int32_t heads, enum pk_phi phi)
{
    struct model_spec s = vit(224, 16, width, heads, phi, 12);

    s.arch = &model_deit;
    s.pool = MODEL_POOL_CLS;
    s.pos = true;
    return s;
}

static struct model_spec nystrom(int32_t context, enum pk_phi phi)
{
    struct model_spec s = gpt(64, 2, 2, context, phi);

    s.arch = &model_nystrom;
    s.mlp_width = 128;
    s.gelu_tanh = false;
    s.vocab = 32;
    s.classes = 10;
    s.pool = MODEL_POOL_MEAN;
    s.landmarks = 128;
    s.conv_kernel = 35;
    s.pinv_iterations = 6;
    s.zero_pads = true;
    s.init = MODEL_INIT_KAIMING;
    return s;
}

static struct model_spec pinn(enum pk_phi phi)
{
    struct model_spec s = gpt(32, 1, 2, 5, phi);

    s.arch = &model_pinnsformer;
    s.mlp_width = 256;
    s.head_width = 512;
    s.norm_eps = 1e-6;
    s.vocab = 0;
    s.pos = false;
    s.gelu_tanh = false;
    s.equation = DATA_EQUATION_CONVECTION;
    s.coefficient = 50;
    s.step = 1e-4;
    for (int i = 0; i < 2; i++)
        s.grid[i] = s.test_grid[i] = 51;
    s.init = MODEL_INIT_XAVIER;
    return s;
}

static void check(const char *what, struct pk_graph *g)
{
    struct pk_exec *e = NULL;
    struct pk_plan_report r;
    struct pd_why why = {.text = ""};

    if (pk_exec_new(g, pk_backend_cpu(), NULL, &e, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    pk_exec_report(e, &r);
    print_message("%-28s %5zu kernels  arena %8.1f MiB  live %8.1f MiB  x%.3f\n", what, r.nodes,
                  (double)r.arena_bytes / 1048576, (double)r.live_bound / 1048576,
                  (double)r.arena_bytes / (double)r.live_bound);
    assert_true((double)r.arena_bytes <= 1.1 * (double)r.live_bound);
    pk_exec_free(e);
    pk_graph_free(g);
}

/* At most so many multiplications and additions in matrix products. */
static void check_products(const char *what, struct pk_graph *g, double flop)
{
    struct pk_roofline r = {.tiny = 0};
    struct pk_exec *e = NULL;
    struct pd_why why = {.text = ""};
    double sum;

    if (pk_exec_new(g, pk_backend_cpu(), NULL, &e, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    pk_roofline_add(&r, e, &PK_PEAKS_H200, 1);
    sum = r.kind[PK_KIND_MATMUL][0].flop + r.kind[PK_KIND_MATMUL][1].flop;
    print_message("%-28s %.2f GFLOP of at most %.2f\n", what, sum * 1e-9, flop * 1e-9);
    assert_true(sum > 0.9 * flop && sum <= flop);
    pk_exec_free(e);
}

static void check_model(const char *what, struct model_spec spec, int32_t batch, int32_t context)
{
    struct model_train_options o = options;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct pd_why why = {.text = ""};

    if (model_new(&spec, &m, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    o.batch = batch;
    o.context = context;
    for (int clip = 0; clip < 2; clip++) {
        o.clip_norm = clip;
        if (model_graph_train(m, &o, false, &g, &why) != PD_OK)
            fail_msg("%s: %s", what, why.text);
        check(what, g);
    }
    if (model_graph_eval(m, &task_cross_entropy, batch, context, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    check("  evaluation", g);
    if (model_graph_probe(m, batch, context, true, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    check("  probe", g);
    if (spec.arch == &model_gpt) {
        if (model_graph_decode(m, 4, 1, context, &g, &why) != PD_OK)
            fail_msg("%s: %s", what, why.text);
        check("  decode", g);
    }
    model_free(m);
}

static void check_taught(const char *what, struct model_spec spec, struct model_spec teacher, int32_t batch)
{
    struct model_distil distil = {.soft = false, .alpha = 0.5, .tau = 1};
    struct model_train_options o = options;
    struct model *m = NULL, *t = NULL;
    struct pk_graph *g = NULL;
    struct pd_why why = {.text = ""};

    if (model_new(&spec, &m, &why) != PD_OK || model_new(&teacher, &t, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    distil.teacher = t;
    o.distil = &distil;
    o.batch = batch;
    if (model_graph_train(m, &o, false, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    check(what, g);
    if (model_graph_eval(m, &task_cross_entropy, batch, 0, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    check("  evaluation", g);
    model_free(m);
    model_free(t);
}

/* Loss and gradient of one evaluation within a line search. */
static void check_equation(const char *what, struct model_spec spec)
{
    struct model_train_options o = options;
    struct model *m = NULL;
    struct pk_graph *g = NULL;
    struct pd_why why = {.text = ""};

    if (model_new(&spec, &m, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    o.loss = task_equation.loss;
    o.batch = 1;
    o.line_rows = 1;
    o.line_numbers = 64;
    if (model_graph_line(m, &o, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    /* u once, its derivatives by x and t once together, and twice of each for the gradient of the loss. */
    check_products(what, g, 6.0 * 2 * 453561 * 51 * 51 * 5);
    check(what, g);
    if (model_graph_eval(m, task_equation.loss, 1, 0, &g, &why) != PD_OK)
        fail_msg("%s: %s", what, why.text);
    check("  evaluation", g);
    model_free(m);
}

static void test_plan_of_other_networks_is_close_to_the_bound(void **state)
{
    (void)state;
    check_model("Swin-T 224, batch 8", swin_t(PK_PHI_SOFTMAX), 8, 0);
    check_model("Swin-T 224, x^3 learned", swin_t(PK_PHI_POLY), 8, 0);
    check_model("XCiT-S12/16 224, batch 8", xcit_s12(PK_PHI_SOFTMAX), 8, 0);
    check_model("XCiT-S12/16 224, x^3 learned", xcit_s12(PK_PHI_POLY), 8, 0);
    check_taught("DeiT-Ti by ViT-B, batch 8", deit(192, 3, PK_PHI_SOFTMAX),
                 vit(224, 16, 768, 12, PK_PHI_SOFTMAX, 12), 8);
    check_taught("DeiT-S x^3 by Swin-T, batch 8", deit(384, 6, PK_PHI_POLY), swin_t(PK_PHI_SOFTMAX), 8);
    check_model("Nystromformer 2048, batch 8", nystrom(2048, PK_PHI_SOFTMAX), 8, 2048);
    check_model("Nystromformer 2048, x^3", nystrom(2048, PK_PHI_POLY), 8, 2048);
    check_equation("PINNsformer 51 x 51", pinn(PK_PHI_SOFTMAX));
    check_equation("PINNsformer 51 x 51, x^3", pinn(PK_PHI_POLY));
}

static void test_plan_of_the_real_models_is_close_to_the_bound(void **state)
{
    (void)state;
    check_model("ViT-Tiny 64/4, batch 32", vit(64, 4, 192, 3, PK_PHI_SOFTMAX, 12), 32, 0);
    check_model("ViT-Tiny 64/4, x^3 learned", vit(64, 4, 192, 3, PK_PHI_POLY, 12), 32, 0);
    check_model("ViT-B/16 224, batch 8", vit(224, 16, 768, 12, PK_PHI_SOFTMAX, 12), 8, 0);
    check_model("GPT 6x384x6, T 256, batch 8", gpt(384, 6, 6, 256, PK_PHI_SOFTMAX), 8, 256);
    check_model("GPT-2 124M, T 1024, batch 4", gpt(768, 12, 12, 1024, PK_PHI_POLY), 4, 1024);
    check_model("GPT-2 1558M, T 1024, batch 1", gpt(1600, 48, 25, 1024, PK_PHI_SOFTMAX), 1, 1024);
    check_model("L-DNT-Small, T 1024, batch 2", s5(gpt(768, 12, 12, 1024, PK_PHI_POLY)), 2, 1024);
    check_model("L-DNT-XL, T 1024, batch 1", s5(gpt(1536, 48, 24, 1024, PK_PHI_SOFTMAX)), 1, 1024);
    check_model("V-DNT-Huge 224/14, batch 2", s5(vit(224, 14, 1280, 16, PK_PHI_SOFTMAX, 32)), 2, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_of_other_networks_is_close_to_the_bound),
        cmocka_unit_test(test_plan_of_the_real_models_is_close_to_the_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
