/* Placements, norms and activations of blocks: every gradient against central differences in f64, and the
 * ordinary block bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/data/data.h"
#include "daemon/worker/model/model.h"
#include "daemon/worker/model/net.h"
#include "daemon/worker/task/task.h"
#include "tests/lib/worst.h"

#define LEAVES 96

/* A planned graph with memory for every leaf. */
struct rig {
    struct pk_graph *g;
    struct pk_exec *e;
    struct pk_backend *b;
    void *memory[LEAVES];
    size_t count;
    uint64_t seed;
};

static double draw(struct rig *r)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(r->seed >> 32) * 0x1p-31;
}

static struct rig *rig_of(struct pk_graph *g)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct rig *r = calloc(1, sizeof *r);
    struct pd_why why;

    assert_non_null(r);
    r->g = g;
    r->seed = 1;
    assert_int_equal(api->open(NULL, 0, 1, &r->b, &why), PD_OK);
    if (pk_exec_new(g, api, r->b, &r->e, &why) != PD_OK)
        fail_msg("%s", why.text);
    r->count = pk_graph_leaf_count(g);
    assert_true(r->count <= LEAVES);
    for (size_t i = 0; i < r->count; i++) {
        struct pk_leaf leaf = pk_graph_leaf(g, i);
        size_t n = (size_t)pk_shape_count(&leaf.shape);

        r->memory[i] = api->alloc(r->b, leaf.bytes);
        for (size_t k = 0; k < n; k++) {
            double x = draw(r) * (strstr(leaf.name, "norm") || strstr(leaf.name, "mid") ? 0.2 : 0.8);

            /* gains about 1, integers 0 .. 4 */
            if (leaf.kind == PK_OP_PARAM && leaf.shape.rank == 1 && strstr(leaf.name, ".weight"))
                x += 1;
            if (leaf.dtype == PK_F64)
                ((double *)r->memory[i])[k] = x;
            else if (leaf.dtype == PK_F32)
                ((float *)r->memory[i])[k] = (float)x;
            else
                ((int32_t *)r->memory[i])[k] = (int32_t)(k % 5);
        }
        assert_int_equal(pk_exec_bind(r->e, leaf.name, r->memory[i], &why), PD_OK);
    }
    return r;
}

static void rig_free(struct rig *r)
{
    for (size_t i = 0; i < r->count; i++)
        pk_backend_cpu()->free(r->b, r->memory[i]);
    pk_exec_free(r->e);
    pk_graph_free(r->g);
    pk_backend_cpu()->close(r->b);
    free(r);
}

static double *leaf_data(struct rig *r, const char *name, size_t *ret_count)
{
    for (size_t i = 0; i < r->count; i++)
        if (!strcmp(pk_graph_leaf(r->g, i).name, name)) {
            struct pk_leaf leaf = pk_graph_leaf(r->g, i);

            if (ret_count)
                *ret_count = (size_t)pk_shape_count(&leaf.shape);
            return r->memory[i];
        }
    return NULL;
}

static void run(struct rig *r)
{
    struct pd_why why;

    if (pk_exec_run(r->e, &why) != PD_OK)
        fail_msg("%s", why.text);
}

static void read_out(struct rig *r, const char *name, double *to, size_t count)
{
    struct pd_why why;

    if (pk_exec_read(r->e, name, to, count * sizeof *to, &why) != PD_OK)
        fail_msg("%s", why.text);
}

/* The scalar whose gradients the graph gives: its loss, or sum(gy y). */
static double scalar(struct rig *r)
{
    size_t n = 0;
    const double *gy = leaf_data(r, "gy", &n);
    double *y, sum = 0;

    run(r);
    if (!gy) {
        read_out(r, "loss", &sum, 1);
        return sum;
    }
    y = malloc(n * sizeof *y);
    assert_non_null(y);
    read_out(r, "y", y, n);
    for (size_t i = 0; i < n; i++)
        sum += gy[i] * y[i];
    free(y);
    return sum;
}

/* Every element of every parameter that the graph has. */
static void check_gradients(struct rig *r, const char *what)
{
    const double h = 1e-5;

    for (size_t i = 0; i < r->count; i++) {
        struct pk_leaf leaf = pk_graph_leaf(r->g, i);
        size_t n = (size_t)pk_shape_count(&leaf.shape);
        double *x = r->memory[i], *grad;
        char name[96];

        if (leaf.kind != PK_OP_PARAM)
            continue;
        grad = malloc(n * sizeof *grad);
        assert_non_null(grad);
        run(r);
        snprintf(name, sizeof name, "grad/%s", leaf.name);
        read_out(r, strcmp(leaf.name, "h") ? name : "dh", grad, n);
        for (size_t k = 0; k<n; k += n> 64 ? 7 : 1) {
            double was = x[k], up, down, slope;

            x[k] = was + h;
            up = scalar(r);
            x[k] = was - h;
            down = scalar(r);
            x[k] = was;
            slope = (up - down) / (2 * h);
            if (!(fabs(slope - grad[k]) <= 2e-6 * fmax(1, fabs(slope))))
                fail_msg("%s: %s[%zu] is %.12g by the graph, %.12g by differences", what, leaf.name, k,
                         grad[k], slope);
        }
        free(grad);
    }
}

static struct model_spec base(const struct model_arch *arch)
{
    return (struct model_spec){.arch = arch,
                               .width = 8,
                               .depth = 1,
                               .heads = 2,
                               .mlp_width = 12,
                               .bias = true,
                               .final_norm = true,
                               .norm_eps = 1e-3,
                               .channels = 1,
                               .image_h = 4,
                               .image_w = 6,
                               .patch_h = 2,
                               .patch_w = 3,
                               .classes = arch == &model_gpt ? 0 : 5,
                               .vocab = 7,
                               .context = 6,
                               .pos = true,
                               .attention.phi = PK_PHI_SOFTMAX,
                               .attention.degree = 3,
                               .attention.n_for_scale = 4,
                               .attention.scale_value = 0.5,
                               .attention.scale_lr_mult = 1,
                               .attention.init_logit_std = -1,
                               .dtype = PK_F64};
}

static struct model *make(const struct model_spec *s)
{
    struct model *m = NULL;
    struct pd_why why;

    if (model_new(s, &m, &why) != PD_OK)
        fail_msg("%s", why.text);
    return m;
}

static void test_gradients_of_every_placement(void **state)
{
    (void)state;
    for (int at = MODEL_S1; at <= MODEL_POST; at++)
        for (int kind = 0; kind < 4; kind++) {
            struct model_spec s = base(kind % 2 ? &model_gpt : &model_vit);
            struct pk_graph *g = NULL;
            struct model *m;
            struct rig *r;
            struct pd_why why;
            char what[64];

            s.placement = (enum model_placement)at;
            s.attention.qk_norm = kind > 0;
            s.attention.qk_per_head = kind == 2;
            s.norm_kind = kind < 2 ? PK_NORM_LAYER : PK_NORM_RMS;
            s.norm_eps_mode = kind == 2 ? PK_EPS_SUM : PK_EPS_MEAN;
            s.mlp_relu = kind == 3;
            s.gelu_tanh = kind == 1;
            s.bias = kind != 3;
            if (kind > 1) {
                s.attention.phi = PK_PHI_POLY;
                s.attention.scale = MODEL_SCALE_LEARNED;
                s.attention.share = kind == 2 ? MODEL_SHARE_HEAD : MODEL_SHARE_LAYER;
            }
            m = make(&s);
            assert_int_equal(model_graph_block(m, 2, 4, kind % 2, &g, &why), PD_OK);
            r = rig_of(g);
            snprintf(what, sizeof what, "placement %d, form %d", at, kind);
            check_gradients(r, what);
            rig_free(r);
            model_free(m);
        }
}

/* Whole networks: position before and behind the InputNorm, both poolings, no final norm. */
static void test_gradients_of_whole_networks(void **state)
{
    (void)state;
    for (int form = 0; form < 6; form++) {
        struct model_spec s = base(form % 4 < 2 ? &model_vit : &model_gpt);
        struct model_train_options o = {.loss = &task_cross_entropy, .batch = 2, .context = 5};
        struct pk_graph *g = NULL;
        struct model *m;
        struct rig *r;
        struct pd_why why;
        char what[64];

        s.placement = MODEL_S5;
        s.norm_kind = PK_NORM_RMS;
        s.attention.qk_norm = true;
        s.pos_after = form % 2;
        s.pool = form % 2 ? MODEL_POOL_CLS : MODEL_POOL_MEAN;
        s.final_norm = form % 2;
        if (form > 3) { /* the same noise in every run of the graph */
            s.dropout = 0.3;
            s.drop_path = 0.4;
            s.drop_path_same = true;
        }
        m = make(&s);
        assert_int_equal(model_graph_train(m, &o, true, &g, &why), PD_OK);
        r = rig_of(g);
        snprintf(what, sizeof what, "network %d", form);
        check_gradients(r, what);
        rig_free(r);
        model_free(m);
    }
}

/* The activations and forms of attention that a job may name, with the scales each of them has. */
static void test_gradients_of_every_attention(void **state)
{
    static const struct {
        const char *what;
        enum pk_phi phi;
        int degree;
        const struct model_arch *arch;
        bool l1_tokens, qk_norm;
        double logit_bias, attn_dropout, row_power;
        enum pk_form form;
        enum model_scale scale;
        enum model_scale_param param;
        enum model_share share;
    } forms[] = {
        {.what = "sigmoid", .phi = PK_PHI_SIGMOID, .logit_bias = -1, .arch = &model_gpt},
        {.what = "taylor", .phi = PK_PHI_TAYLOR, .arch = &model_gpt, .attn_dropout = 0.2},
        {.what = "periodic", .phi = PK_PHI_PERIODIC, .arch = &model_vit},
        {.what = "sima", .phi = PK_PHI_POLY, .degree = 1, .l1_tokens = true, .arch = &model_vit},
        {.what = "cube, dropout", .phi = PK_PHI_POLY, .degree = 3, .attn_dropout = 0.4, .qk_norm = true},
        {.what = "log",
         .phi = PK_PHI_POLY,
         .degree = 2,
         .scale = MODEL_SCALE_LEARNED,
         .param = MODEL_PARAM_LOG},
        {.what = "softplus",
         .phi = PK_PHI_POLY,
         .degree = 4,
         .scale = MODEL_SCALE_LEARNED,
         .param = MODEL_PARAM_SOFTPLUS,
         .share = MODEL_SHARE_HEAD},
        {.what = "global",
         .phi = PK_PHI_POLY,
         .degree = 5,
         .scale = MODEL_SCALE_LEARNED,
         .share = MODEL_SHARE_GLOBAL,
         .arch = &model_gpt},
        {.what = "rows", .phi = PK_PHI_POLY, .degree = 3, .row_power = 0.5, .arch = &model_gpt},
        {.what = "linear", .phi = PK_PHI_POLY, .degree = 1, .form = PK_FORM_LINEAR, .arch = &model_gpt},
        {.what = "linear square",
         .phi = PK_PHI_POLY,
         .degree = 2,
         .form = PK_FORM_LINEAR,
         .scale = MODEL_SCALE_LEARNED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct model_spec s = base(forms[i].arch ? forms[i].arch : &model_vit);
        struct model_train_options o = {.loss = &task_cross_entropy, .batch = 2, .context = 5};
        struct pk_graph *g = NULL;
        struct model *m;
        struct rig *r;
        struct pd_why why;

        s.attention.phi = forms[i].phi;
        s.attention.degree = forms[i].degree;
        s.attention.l1_tokens = forms[i].l1_tokens;
        s.attention.qk_norm = forms[i].qk_norm;
        s.attention.logit_bias = forms[i].logit_bias;
        s.attention.dropout = forms[i].attn_dropout;
        s.attention.row_power = forms[i].row_power;
        s.attention.form = forms[i].form;
        s.attention.scale = forms[i].scale;
        s.attention.scale_param = forms[i].param;
        s.attention.share = forms[i].share;
        s.depth = forms[i].share == MODEL_SHARE_GLOBAL ? 2 : 1;
        m = make(&s);
        assert_int_equal(model_graph_train(m, &o, true, &g, &why), PD_OK);
        r = rig_of(g);
        check_gradients(r, forms[i].what);
        rig_free(r);
        model_free(m);
    }
}

/* What scales and scalars of this form start from and become: values, slopes, and back, of every size. */
static void test_softplus_of_every_size(void **state)
{
    static const double values[] = {1e-30, 1e-9, 6e-8, 1e-6, 1e-3, 0.0486, 0.0487, 0.5, 0.693147180559945,
                                    1,     20,   39.9, 40.1, 88.7, 88.8,   196,    710, 1e6};
    enum { N = sizeof values / sizeof *values };

    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        const enum pk_dtype dtype = wide ? PK_F64 : PK_F32;
        const double bound = wide ? 1e-14 : 3e-6;
        struct pk_graph *g = pk_graph_new(false);
        struct pk_val x = pk_param(g, "x", dtype, PK_SHAPE(N)), y = net_softplus(g, x), d;
        double y64[N], d64[N];
        float y32[N], d32[N];
        struct pd_why why;
        struct rig *r;

        pk_output(g, "y", y);
        pk_grad(g, y, pk_fill(g, dtype, PK_SHAPE(N), 1), &x, 1, &d);
        pk_output(g, "d", d);
        r = rig_of(g);
        for (int k = 0; k < N; k++)
            if (wide)
                ((double *)r->memory[0])[k] = net_softplus_inverse(values[k]);
            else
                ((float *)r->memory[0])[k] = (float)net_softplus_inverse(values[k]);
        run(r);
        assert_int_equal(
            pk_exec_read(r->e, "y", wide ? (void *)y64 : y32, wide ? sizeof y64 : sizeof y32, &why), PD_OK);
        assert_int_equal(
            pk_exec_read(r->e, "d", wide ? (void *)d64 : d32, wide ? sizeof d64 : sizeof d32, &why), PD_OK);
        for (int k = 0; k < N; k++) {
            const double at = wide ? ((double *)r->memory[0])[k] : (double)((float *)r->memory[0])[k];
            const double got = wide ? y64[k] : (double)y32[k], slope = wide ? d64[k] : (double)d32[k];
            const double exact = (at > 0 ? at : 0) + log1p(exp(-fabs(at))), rise = 1 / (1 + exp(-at));

            /* the stored number is rounded: at e^-69 that is 69 times the rounding of the value */
            if (!(fabs(got - exact) <= bound * exact) || !(fabs(slope - rise) <= bound * rise) ||
                !(fabs(got - values[k]) <= 3 * (1 + fabs(at)) * bound * values[k]))
                fail_msg("%g in %s: %.12g, should be %.12g; slope %.12g, should be %.12g", values[k],
                         wide ? "f64" : "f32", got, exact, slope, rise);
        }
        rig_free(r);
    }
}

/* Of matrices with this in their names. */
static void double_weights(struct rig *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct pk_leaf leaf = pk_graph_leaf(r->g, i);
        const int64_t n = pk_shape_count(&leaf.shape);

        for (int64_t k = 0;
             k < n && leaf.kind == PK_OP_PARAM && leaf.shape.rank == 2 && strstr(leaf.name, name); k++)
            ((double *)r->memory[i])[k] *= 2;
    }
}

/* The loss of each equation by each way of differentiating u, with an activation that has kernels of second order and one
 * that has none: gradients of second order, of the wave's residual of third order. */
static void test_gradients_of_equations(void **state)
{
    (void)state;
    for (int form = 0; form < 12; form++) {
        static const enum data_equation equations[] = {DATA_EQUATION_CONVECTION, DATA_EQUATION_REACTION,
                                                       DATA_EQUATION_WAVE};
        const bool softmax = form % 2, shift = form / 2 % 2;
        const struct model_spec s = {.arch = &model_pinnsformer,
                                     .width = 4,
                                     .depth = 1,
                                     .heads = 2,
                                     .mlp_width = 5,
                                     .head_width = 6,
                                     .bias = true,
                                     .norm_eps = 1e-6,
                                     .equation = equations[form / 4],
                                     .coefficient = 1.5,
                                     .context = 3,
                                     .step = 0.1,
                                     .grid = {3, 4},
                                     .test_grid = {3, 4},
                                     .attention.phi = softmax ? PK_PHI_SOFTMAX : PK_PHI_POLY,
                                     .attention.degree = 3,
                                     .attention.n_for_scale = 4,
                                     .attention.scale_value = 0.5,
                                     .attention.scale_lr_mult = 1,
                                     .attention.init_logit_std = -1,
                                     .dtype = PK_F64};
        const struct model_train_options o = {.loss = task_equation.loss, .batch = 1, .shift = shift};
        struct pk_graph *g = NULL;
        struct model *m = make(&s);
        struct rig *r;
        struct pd_why why;
        char what[64];

        if (model_graph_train(m, &o, true, &g, &why) != PD_OK)
            fail_msg("%s", why.text);
        r = rig_of(g);
        double_weights(r, "emb");
        double_weights(
            r, "attn"); /* smaller logits: the second derivative of softmax would be lost in roundings */
        snprintf(what, sizeof what, "%s, %s, %s", data_equation_name(s.equation),
                 softmax ? "softmax" : "poly", shift ? "shift" : "sum");
        check_gradients(r, what);
        rig_free(r);
        model_free(m);
    }
}

/* By hand, from the builder's words alone, what timm and nanoGPT write down. */
static struct pk_graph *ordinary(const struct model *m, bool gpt, int64_t batch, int64_t tokens)
{
    const struct model_spec *s = model_spec(m);
    struct pk_graph *g = pk_graph_new(false);
    struct pk_norm_spec norm = {.kind = PK_NORM_LAYER, .eps_mode = PK_EPS_MEAN, .eps = s->norm_eps};
    struct pk_attention_spec attention = {.phi = PK_PHI_SOFTMAX, .scale = 1, .causal = gpt};
    struct pk_val in = pk_param(g, "h", s->dtype, PK_SHAPE(batch, tokens, s->width)), h = in, x = in, p[13],
                  d[13];
    const char *const names[2][12] = {
        {"blocks.0.norm1.weight", "blocks.0.norm1.bias", "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias",
         "blocks.0.attn.proj.weight", "blocks.0.attn.proj.bias", "blocks.0.norm2.weight",
         "blocks.0.norm2.bias", "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1.bias", "blocks.0.mlp.fc2.weight",
         "blocks.0.mlp.fc2.bias"},
        {"transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias", "transformer.h.0.attn.c_attn.weight",
         "transformer.h.0.attn.c_attn.bias", "transformer.h.0.attn.c_proj.weight",
         "transformer.h.0.attn.c_proj.bias", "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
         "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_fc.bias",
         "transformer.h.0.mlp.c_proj.weight", "transformer.h.0.mlp.c_proj.bias"}};

    for (int i = 0; i < 12; i++)
        for (size_t k = 0; k < model_param_count(m); k++)
            if (!strcmp(model_param(m, k)->name, names[gpt][i]))
                p[i] = pk_param(g, names[gpt][i], s->dtype, model_param(m, k)->shape);
    x = pk_norm(g, x, p[0], p[1], norm);
    x = pk_linear(g, x, p[2], !gpt, p[3]);
    x = pk_attention_packed(g, pk_reshape(g, x, PK_SHAPE(batch, tokens, 3, s->heads, s->width / s->heads)),
                            attention);
    x = pk_linear(g, pk_reshape(g, x, PK_SHAPE(batch, tokens, s->width)), p[4], !gpt, p[5]);
    h = pk_add(g, h, x);
    x = pk_linear(g, pk_norm(g, h, p[6], p[7], norm), p[8], !gpt, p[9]);
    x = pk_linear(g, pk_gelu(g, x, s->gelu_tanh), p[10], !gpt, p[11]);
    x = pk_add(g, h, x);
    pk_output(g, "y", x);
    p[12] = in;
    pk_grad(g, x, pk_input(g, "gy", s->dtype, pk_shape_of(g, x)), p, 13, d);
    for (int i = 0; i < 12; i++) {
        char name[80];

        snprintf(name, sizeof name, "grad/%s", names[gpt][i]);
        pk_output(g, name, d[i]);
    }
    pk_output(g, "dh", d[12]);
    return g;
}

static void test_s1_is_the_ordinary_block_bit_for_bit(void **state)
{
    enum { B = 3, N = 17, D = 48 };

    (void)state;
    for (int gpt = 0; gpt < 2; gpt++) {
        struct model_spec s = base(gpt ? &model_gpt : &model_vit);
        static float y[2][B * N * D], d[2][4 * D * D];
        struct pk_graph *g = NULL;
        struct model *m;
        struct rig *r[2];
        struct pd_why why;

        s.width = D;
        s.heads = 3;
        s.mlp_width = 4 * D;
        s.gelu_tanh = gpt;
        s.attention.scale_value = 1;
        s.dtype = PK_F32;
        m = make(&s);
        assert_int_equal(model_graph_block(m, B, N, gpt, &g, &why), PD_OK);
        r[0] = rig_of(g);
        r[1] = rig_of(ordinary(m, gpt, B, N));
        for (size_t i = 0; i < r[1]->count; i++) { /* the same numbers */
            struct pk_leaf leaf = pk_graph_leaf(r[1]->g, i);
            const void *from = leaf_data(r[0], leaf.name, NULL);

            assert_non_null(from);
            memcpy(r[1]->memory[i], from, leaf.bytes);
        }
        for (int k = 0; k < 2; k++) {
            run(r[k]);
            assert_int_equal(pk_exec_read(r[k]->e, "y", y[k], sizeof y[k], &why), PD_OK);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        for (size_t i = 0; i < r[1]->count; i++) {
            struct pk_leaf leaf = pk_graph_leaf(r[1]->g, i);
            char name[80];

            snprintf(name, sizeof name, "grad/%s", leaf.name);
            for (int k = 0; leaf.kind == PK_OP_PARAM && k < 2; k++)
                assert_int_equal(
                    pk_exec_read(r[k]->e, strcmp(leaf.name, "h") ? name : "dh", d[k], leaf.bytes, &why),
                    PD_OK);
            if (leaf.kind == PK_OP_PARAM)
                assert_memory_equal(d[0], d[1], leaf.bytes);
        }
        rig_free(r[0]);
        rig_free(r[1]);
        model_free(m);
    }
}

/* Rates grow from 0 in the first block to the one given in the last, or are the same in all. */
static void test_stochastic_depth_grows_with_the_depth(void **state)
{
    (void)state;
    for (int same = 0; same < 2; same++) {
        struct model_spec s = base(&model_vit);
        struct model_train_options o = {.loss = &task_cross_entropy, .batch = 2};
        struct pk_graph *g = NULL;
        struct model *m;
        struct rig *r;
        struct pd_why why;

        s.depth = 3;
        s.drop_path = 0.999; /* as good as always */
        s.drop_path_same = same;
        m = make(&s);
        assert_int_equal(model_graph_train(m, &o, true, &g, &why), PD_OK);
        r = rig_of(g);
        run(r);
        for (int layer = 0; layer < 3; layer += 2) {
            double grad[12];
            char name[64];
            bool zero = true;

            snprintf(name, sizeof name, "grad/blocks.%d.mlp.fc1.bias", layer);
            read_out(r, name, grad, 12);
            for (int i = 0; i < 12; i++)
                zero &= grad[i] == 0;
            assert_int_equal(zero, same || layer == 2);
        }
        rig_free(r);
        model_free(m);
    }
}

static void count_norms(enum model_placement at, bool qk, size_t *ret_gains, bool *ret_input)
{
    struct model_spec s = base(&model_gpt);
    struct model *m;

    s.placement = at;
    s.attention.qk_norm = qk;
    s.norm_kind = PK_NORM_RMS;
    s.final_norm = false;
    m = make(&s);
    *ret_gains = 0;
    *ret_input = false;
    for (size_t i = 0; i < model_param_count(m); i++) {
        const struct model_param *p = model_param(m, i);
        bool input = !strcmp(p->name, "transformer.ln_in.weight");

        *ret_gains += p->role == MODEL_ROLE_GAIN && !input;
        *ret_input |= input;
        if (p->role == MODEL_ROLE_GAIN)
            assert_false(p->decay);
        assert_null(strstr(p->name, "ln_1.bias")); /* RMSNorm has no offset */
    }
    model_free(m);
}

/* kernels/ATTENTION.md 10: S1 2; S2 2+2; S3 the same and one InputNorm; S4 4+2; S5 3+2. */
static void test_norms_per_block_are_those_of_the_paper(void **state)
{
    static const struct {
        enum model_placement at;
        bool qk, input;
        size_t gains;
    } want[] = {{MODEL_S1, false, false, 2}, {MODEL_S2, true, false, 4}, {MODEL_S3, true, true, 4},
                {MODEL_S4, true, true, 6},   {MODEL_S5, true, true, 5},  {MODEL_POST, false, false, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        size_t gains;
        bool in;

        count_norms(want[i].at, want[i].qk, &gains, &in);
        assert_int_equal(gains, want[i].gains);
        assert_int_equal(in, want[i].input);
    }
}

/* MidNorm(c u) = MidNorm(u): in S4 and S5 a factor common to all heads changes the output by eps alone. */
static void test_mid_norm_cancels_a_common_scale(void **state)
{
    enum { N = 2 * 4 * 8 };

    (void)state;
    for (int at = MODEL_S3; at <= MODEL_S5; at++) {
        struct model_spec s = base(&model_vit);
        double y[2][N], off = 0, size = 0;
        struct pd_why why;

        s.placement = (enum model_placement)at;
        s.norm_kind = PK_NORM_RMS;
        s.norm_eps = 1e-12;
        s.attention.qk_norm = true;
        s.bias = false;
        s.attention.phi = PK_PHI_POLY;
        s.attention.scale = MODEL_SCALE_FIXED;
        for (int k = 0; k < 2; k++) {
            struct pk_graph *g = NULL;
            struct model *m;
            struct rig *r;

            s.attention.scale_value = k ? 50 : 0.5;
            m = make(&s);
            assert_int_equal(model_graph_block(m, 2, 4, false, &g, &why), PD_OK);
            r = rig_of(g);
            run(r);
            read_out(r, "y", y[k], N);
            rig_free(r);
            model_free(m);
        }
        for (int i = 0; i < N; i++) {
            off = worse(off, fabs(y[0][i] - y[1][i]));
            size = fmax(size, fabs(y[0][i]));
        }
        if (at == MODEL_S3)
            assert_true(off > 0.1 * size);
        else
            assert_true(off < 1e-6 * size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_every_placement),
        cmocka_unit_test(test_gradients_of_whole_networks),
        cmocka_unit_test(test_gradients_of_every_attention),
        cmocka_unit_test(test_softplus_of_every_size),
        cmocka_unit_test(test_gradients_of_equations),
        cmocka_unit_test(test_s1_is_the_ordinary_block_bit_for_bit),
        cmocka_unit_test(test_stochastic_depth_grows_with_the_depth),
        cmocka_unit_test(test_norms_per_block_are_those_of_the_paper),
        cmocka_unit_test(test_mid_norm_cancels_a_common_scale),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
