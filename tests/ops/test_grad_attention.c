/* Every activation of attention, with masks, lengths, biases and scales: first and second derivatives against
 * central differences in f64, fused and decomposed (M11). */
#include "tests/ops/grad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/graph/op/rule.h"

static struct pk_attention_spec spec_of(enum pk_phi phi, int p, bool causal)
{
    return (struct pk_attention_spec){.phi = phi, .degree = p, .scale = 0.7, .causal = causal};
}

MAKE(make_attention_softmax)
{
    struct pk_val q = P("q", 2, 2, 3, 4), k = P("k", 2, 2, 5, 4);

    return pk_attention(g, q, k, P("v", 2, 2, 5, 4), spec_of(PK_PHI_SOFTMAX, 0, false));
}
MAKE(make_attention_causal)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SOFTMAX, 0, true);

    s.scale = 1.0;
    return pk_attention_packed(g, P("qkv", 2, 4, 3, 2, 3), s);
}
MAKE(make_attention_cubic)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 3, true);
    struct pk_val qkv = P("qkv", 2, 4, 3, 2, 3);

    s.scale_value = P("c", 2);
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 4));
    return pk_attention_packed(g, qkv, s);
}
static void fill_mask(struct rig *r)
{
    const double m[8] = {1, 1, 0, 1, 0, 0, 1, 1};

    rig_set(r, "mask", m);
}
MAKE(make_attention_linear)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 1, true);
    struct pk_val q = P("q", 2, 2, 3, 4), k = P("k", 2, 2, 5, 4), v = P("v", 2, 2, 5, 4);

    s.scale_value = P("c", 1);
    s.length = pk_input(g, "length", PK_I32, PK_SHAPE(2));
    return pk_attention(g, q, k, v, s);
}
static void fill_length(struct rig *r)
{
    const double l[2] = {5, 3};

    rig_set(r, "length", l);
}
MAKE(make_attention_masked_softmax)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SOFTMAX, 0, true);

    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 4));
    return pk_attention_packed(g, P("qkv", 2, 4, 3, 2, 3), s);
}
MAKE(make_attention_sigmoid)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SIGMOID, 0, false);

    s.bias = -1.5;
    return pk_attention_packed(g, P("qkv", 1, 4, 3, 2, 3), s);
}
MAKE(make_attention_relu)
{
    return pk_attention_packed(g, P("qkv", 1, 4, 3, 2, 3), spec_of(PK_PHI_RELU, 0, true));
}

/* ---- position bias, windows, dropout, rows divided by their sums ---- */

static void fill_windows(struct rig *r)
{
    const double m[2 * 3 * 5] = {1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1,
                                 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0};

    rig_set(r, "mask", m);
}
static void fill_rng(struct rig *r)
{
    const double words[3] = {17, -4, 3};

    rig_set(r, "rng", words);
}
static void fill_windows_rng(struct rig *r)
{
    fill_windows(r);
    fill_rng(r);
}
static void fill_index(struct rig *r)
{
    const double at[4 * 4] = {3, 2, 1, 0, 4, 3, 2, 1, 5, 4, 3, 2, 6, 5, 4, 3};

    rig_set(r, "index", at);
}

/* Windows of 3 queries and 5 keys, two masks for four batches; a bias a head. */
static struct pk_val windows(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n,
                             struct pk_attention_spec s)
{
    struct pk_val q = P("q", 4, 2, 3, 2), k = P("k", 4, 2, 5, 2), v = P("v", 4, 2, 5, 2);

    s.bias_value = P("bias", 2, 3, 5);
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 3, 5));
    return pk_attention(g, q, k, v, s);
}
#define WINDOWS(f, phi, p)                                                                                   \
    MAKE(f)                                                                                                  \
    {                                                                                                        \
        return windows(g, leaf, name, n, spec_of(phi, p, false));                                            \
    }
WINDOWS(make_windows_softmax, PK_PHI_SOFTMAX, 0)
WINDOWS(make_windows_cubic, PK_PHI_POLY, 3)
WINDOWS(make_windows_linear, PK_PHI_POLY, 1)
WINDOWS(make_windows_sigmoid, PK_PHI_SIGMOID, 0)
WINDOWS(make_windows_relu, PK_PHI_RELU, 0)
WINDOWS(make_windows_taylor, PK_PHI_TAYLOR, 0)
WINDOWS(make_windows_periodic, PK_PHI_PERIODIC, 0)

MAKE(make_bias_of_table)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 2, true);
    struct pk_val qkv = P("qkv", 2, 4, 3, 2, 3);

    s.bias_value = pk_bias_of_table(g, P("table", 7, 2), pk_input(g, "index", PK_I32, PK_SHAPE(4, 4)));
    s.scale_value = P("c", 2);
    return pk_attention_packed(g, qkv, s);
}

static struct pk_val dropped(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n,
                             enum pk_phi phi, bool causal)
{
    struct pk_attention_spec s = spec_of(phi, 2, causal);
    struct pk_val qkv = P("qkv", 2, 4, 3, 2, 3);

    s.scale_value = P("c", 1);
    s.rng = pk_input(g, "rng", PK_I32, PK_SHAPE(3));
    s.dropout = 0.3;
    s.stream = 5;
    return pk_attention_packed(g, qkv, s);
}
MAKE(make_dropped_square)
{
    return dropped(g, leaf, name, n, PK_PHI_POLY, true);
}
MAKE(make_dropped_softmax)
{
    return dropped(g, leaf, name, n, PK_PHI_SOFTMAX, false);
}
MAKE(make_dropped_windows)
{
    struct pk_attention_spec s = spec_of(PK_PHI_TAYLOR, 0, false);

    s.rng = pk_input(g, "rng", PK_I32, PK_SHAPE(3));
    s.dropout = 0.5;
    return windows(g, leaf, name, n, s);
}
MAKE(make_taylor_causal)
{
    return pk_attention_packed(g, P("qkv", 1, 4, 3, 2, 3), spec_of(PK_PHI_TAYLOR, 0, true));
}

static struct pk_val normed(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n,
                            bool per_head)
{
    struct pk_val qkv = P("qkv", 2, 4, 3, 2, 3), part[3], gain[2];

    gain[0] = per_head ? P("gq", 2, 3) : P("gq", 3);
    gain[1] = per_head ? P("gk", 2, 3) : P("gk", 3);
    for (int i = 0; i < 3; i++)
        part[i] = pk_attention_part(g, qkv, i);
    for (int i = 0; i < 2; i++)
        part[i] = pk_qk_norm(g, part[i], gain[i], PK_EPS_MEAN, 1e-3);
    return pk_attention(g, part[0], part[1], part[2], spec_of(PK_PHI_POLY, 3, true));
}
MAKE(make_qk_norm_shared)
{
    return normed(g, leaf, name, n, false);
}
MAKE(make_qk_norm_per_head)
{
    return normed(g, leaf, name, n, true);
}
MAKE(make_sima)
{
    struct pk_val q = P("q", 2, 2, 4, 3), k = P("k", 2, 2, 4, 3), v = P("v", 2, 2, 4, 3);
    struct pk_attention_spec s = {.phi = PK_PHI_POLY, .degree = 1, .tau = 1, .scale = 1};

    return pk_attention(g, pk_l1_norm_tokens(g, q), pk_l1_norm_tokens(g, k), v, s);
}

/* ---- rows divided by a power of their length ---- */

static struct pk_val by_rows(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n,
                             enum pk_form form)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 2, true);

    s.row_power = 0.5;
    s.form = form;
    s.scale_value = P("c", 2);
    return pk_attention_packed(g, P("qkv", 2, 5, 3, 2, 3), s);
}
MAKE(make_rows_square)
{
    return by_rows(g, leaf, name, n, PK_FORM_QUADRATIC);
}
MAKE(make_rows_linear)
{
    return by_rows(g, leaf, name, n, PK_FORM_LINEAR);
}
MAKE(make_rows_length)
{
    struct pk_attention_spec s = spec_of(PK_PHI_SIGMOID, 0, true);
    struct pk_val q = P("q", 2, 2, 3, 4), k = P("k", 2, 2, 5, 4), v = P("v", 2, 2, 5, 4);

    s.row_power = 1;
    s.length = pk_input(g, "length", PK_I32, PK_SHAPE(2));
    return pk_attention(g, q, k, v, s);
}

/* ---- the linear forms ---- */

static struct pk_val linear(struct pk_graph *g, struct pk_val *leaf, const char **name, size_t *n, int p,
                            bool causal)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, p, causal);

    s.form = PK_FORM_LINEAR;
    s.scale_value = P("c", 2);
    return pk_attention_packed(g, P("qkv", 2, 5, 3, 2, 3), s);
}
MAKE(make_linear_1)
{
    return linear(g, leaf, name, n, 1, false);
}
MAKE(make_linear_2)
{
    return linear(g, leaf, name, n, 2, false);
}
MAKE(make_linear_1_causal)
{
    return linear(g, leaf, name, n, 1, true);
}
MAKE(make_linear_2_causal)
{
    return linear(g, leaf, name, n, 2, true);
}

/* ---- tangents: what is differentiated is the derivative along other leaves already ---- */

MAKE(make_jvp_cubic)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 3, true);
    struct pk_val q = P("q", 2, 2, 3, 2), k = P("k", 2, 2, 4, 2), v = P("v", 2, 2, 4, 2);
    struct pk_attention_tangent t = {
        .q = P("tq", 2, 2, 3, 2), .k = P("tk", 2, 2, 4, 2), .v = P("tv", 2, 2, 4, 2)};

    s.scale_value = P("c", 2);
    t.scale = P("tc", 2);
    s.row_power = 0.5;
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 4));
    return pk_attention_jvp(g, q, k, v, s, t);
}
MAKE(make_jvp_windows)
{
    struct pk_attention_spec s = spec_of(PK_PHI_POLY, 2, false);
    struct pk_val q = P("q", 4, 2, 3, 2), k = P("k", 4, 2, 5, 2), v = P("v", 4, 2, 5, 2);
    struct pk_attention_tangent t = {.k = P("tk", 4, 2, 5, 2)};

    s.bias_value = P("bias", 2, 3, 5);
    t.bias = P("tbias", 2, 3, 5);
    s.mask = pk_input(g, "mask", PK_U8, PK_SHAPE(2, 3, 5));
    return pk_attention_jvp(g, q, k, v, s, t);
}
MAKE(make_jvp_linear)
{
    struct pk_val q = P("q", 1, 2, 3, 4), k = P("k", 1, 2, 3, 4), v = P("v", 1, 2, 3, 4);

    return pk_attention_jvp(
        g, q, k, v, spec_of(PK_PHI_POLY, 1, false),
        (struct pk_attention_tangent){.q = P("tq", 1, 2, 3, 4), .v = P("tv", 1, 2, 3, 4)});
}
MAKE(make_jvp_softmax)
{
    struct pk_val q = P("q", 1, 2, 3, 2), k = P("k", 1, 2, 3, 2), v = P("v", 1, 2, 3, 2);

    return pk_attention_jvp(
        g, q, k, v, spec_of(PK_PHI_SOFTMAX, 0, true),
        (struct pk_attention_tangent){.q = P("tq", 1, 2, 3, 2), .k = P("tk", 1, 2, 3, 2)});
}

static const struct build builds[] = {
    {"attention softmax", make_attention_softmax, NULL, true},
    {"attention causal", make_attention_causal, NULL, true},
    {"attention cubic", make_attention_cubic, fill_mask, true},
    {"attention linear", make_attention_linear, fill_length, true},
    {"attention softmax masked", make_attention_masked_softmax, fill_mask, true},
    {"attention sigmoid", make_attention_sigmoid, NULL, true},
    {"attention relu", make_attention_relu, NULL, true},
    {"windows softmax", make_windows_softmax, fill_windows, true},
    {"windows cubic", make_windows_cubic, fill_windows, true},
    {"windows linear", make_windows_linear, fill_windows, true},
    {"windows sigmoid", make_windows_sigmoid, fill_windows, true},
    {"windows relu", make_windows_relu, fill_windows, true},
    {"windows taylor", make_windows_taylor, fill_windows, true},
    {"windows periodic", make_windows_periodic, fill_windows, true},
    {"bias of a table", make_bias_of_table, fill_index, true},
    {"dropout square", make_dropped_square, fill_rng, true},
    {"dropout softmax", make_dropped_softmax, fill_rng, true},
    {"dropout windows", make_dropped_windows, fill_windows_rng, true},
    {"taylor causal", make_taylor_causal, NULL, true},
    {"qk norm shared", make_qk_norm_shared, NULL, true},
    {"qk norm per head", make_qk_norm_per_head, NULL, true},
    {"sima", make_sima, NULL, true},
    {"rows", make_rows_square, NULL, true},
    {"rows, linear order", make_rows_linear, NULL, true},
    {"rows and lengths", make_rows_length, fill_length, true},
    {"tangent cubic", make_jvp_cubic, fill_mask, true},
    {"tangent windows", make_jvp_windows, fill_windows, true},
    {"tangent linear", make_jvp_linear, NULL, true},
    {"tangent softmax", make_jvp_softmax, NULL, true},
    {"linear x", make_linear_1, NULL, true},
    {"linear x^2", make_linear_2, NULL, true},
    {"linear x causal", make_linear_1_causal, NULL, true},
    {"linear x^2 causal", make_linear_2_causal, NULL, true},
};

static void test_attention_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
        grad_check(&builds[i], false, false);
        grad_check(&builds[i], true, false);
    }
}

static void test_attention_second_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++) {
        grad_check(&builds[i], true, true);
        grad_check(&builds[i], false, true);
    }
}

static void test_attention_jvp_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        for (int decomposed = 0; decomposed < 2; decomposed++)
            grad_check_jvp(&builds[i], decomposed);
}

static void count_kernels(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    int *kernels = user;

    (void)scope;
    (void)backward;
    kernels[call->op]++;
}

/* The general forward mode is what attention has of its own, and for x^p it comes to the same kernel. */
static void test_attention_has_the_tangent_of_the_general_mode(void **state)
{
    static const enum pk_phi phi[] = {PK_PHI_POLY, PK_PHI_SOFTMAX, PK_PHI_SIGMOID, PK_PHI_RELU};

    (void)state;
    for (size_t i = 0; i < sizeof phi / sizeof *phi; i++)
        for (int masked = 0; masked < 2; masked++) {
            struct pk_attention_spec s = spec_of(phi[i], 3, true);
            struct rig *r = rig_new(false);
            const char *const name[5] = {"q", "k", "v", "c", "b"};
            const struct pk_shape shape[5] = {PK_SHAPE(2, 2, 3, 2), PK_SHAPE(2, 2, 4, 2),
                                              PK_SHAPE(2, 2, 4, 2), PK_SHAPE(2), PK_SHAPE(2, 3, 4)};
            struct pk_val x[5], t[5], y, own, general;
            int kernels[PK_OP_COUNT] = {0};
            double *a, *b;
            int64_t n;

            for (int k = 0; k < 5; k++) {
                char text[4];

                snprintf(text, sizeof text, "t%s", name[k]);
                x[k] = pk_param(r->g, name[k], PK_F64, shape[k]);
                t[k] = pk_input(r->g, text, PK_F64, shape[k]);
            }
            s.scale_value = x[3];
            s.bias_value = x[4];
            if (masked)
                s.mask = pk_const(r->g, PK_U8, PK_SHAPE(2, 4), (const uint8_t[8]){1, 0, 1, 1, 0, 1, 1, 1});
            own = pk_attention_jvp(r->g, x[0], x[1], x[2], s,
                                   (struct pk_attention_tangent){t[0], t[1], t[2], t[3], t[4]});
            y = pk_attention(r->g, x[0], x[1], x[2], s);
            pk_jvp(r->g, &y, 1, x, t, 5, &general);
            pk_output(r->g, "own", own);
            pk_output(r->g, "general", general);
            rig_plan(r);
            pk_exec_each(r->exec, count_kernels, kernels);
            if (phi[i] == PK_PHI_POLY) { /* equal nodes are one, and the gradient is gone */
                assert_int_equal(kernels[PK_OP_ATTENTION_JVP], 1);
                assert_int_equal(kernels[PK_OP_ATTENTION_BWD] + kernels[PK_OP_ATTENTION_BWD2], 0);
            }
            rig_run(r);
            a = rig_read(r, "own", &n);
            b = rig_read(r, "general", &n);
            assert_int_equal(n, 2 * 3 * 2 * 2);
            for (int64_t k = 0; k < n; k++)
                if (!(fabs(a[k] - b[k]) <= 1e-12 * (1 + fabs(a[k]))))
                    fail_msg("%s: %.15g of its own, %.15g in general", pk_phi_name(phi[i]), a[k], b[k]);
            free(a);
            free(b);
            rig_free(r);
        }
}

static void test_fused_attention_equals_decomposed_attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check_fused_is_decomposed(&builds[i]);
}

/* The tangent is the slope of y along the tangents of the inputs. */
static void test_tangent_is_the_slope_of_y(void **state)
{
    const double step = 1e-6;

    (void)state;
    for (int phi = 0; phi < 2; phi++) {
        struct pk_attention_spec s = spec_of(phi ? PK_PHI_POLY : PK_PHI_SOFTMAX, 3, true);
        struct rig *r = rig_new(false);
        struct pk_val q = pk_param(r->g, "q", PK_F64, PK_SHAPE(1, 2, 3, 2)),
                      k = pk_param(r->g, "k", PK_F64, PK_SHAPE(1, 2, 3, 2)),
                      v = pk_param(r->g, "v", PK_F64, PK_SHAPE(1, 2, 3, 2)),
                      t = pk_param(r->g, "t", PK_F64, PK_SHAPE(1, 2, 3, 2));
        double *slope, *y[2], q0[12];
        int64_t n;

        pk_output(r->g, "y", pk_attention(r->g, q, k, v, s));
        pk_output(r->g, "slope", pk_attention_jvp(r->g, q, k, v, s, (struct pk_attention_tangent){.q = t}));
        rig_plan(r);
        rig_run(r);
        slope = rig_read(r, "slope", &n);
        assert_int_equal(n, 12);
        for (int i = 0; i < 12; i++)
            q0[i] = rig_get(r, "q", i);
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < 12; i++)
                rig_put(r, "q", i, q0[i] + (side ? step : -step) * rig_get(r, "t", i));
            rig_run(r);
            y[side] = rig_read(r, "y", &n);
        }
        for (int i = 0; i < 12; i++)
            assert_true(fabs((y[1][i] - y[0][i]) / (2 * step) - slope[i]) < 1e-8);
        free(y[0]);
        free(y[1]);
        free(slope);
        rig_free(r);
    }
}

/* What has no kernel says so instead of computing something else. */
static void test_tangents_of_other_activations_have_no_node(void **state)
{
    const struct pk_rule *rules[] = {pk_rule_of(PK_OP_ATTENTION_JVP), pk_rule_of(PK_OP_ATTENTION_BWD2)};
    struct pk_attr a = {.attention = {.phi = PK_PHI_SIGMOID, .tau = 1, .scale = 1}};
    struct pk_type in[8], out[6];
    struct pd_why why;
    int32_t n_out;

    (void)state;
    for (int i = 0; i < 8; i++)
        in[i] = (struct pk_type){PK_F32, PK_SHAPE(1, 1, 3, 2)};
    assert_int_equal(rules[0]->infer(&a, in, 6, out, &n_out, &why), PD_ERR_UNSUPPORTED);
    in[3].shape = PK_SHAPE(1, 3, 1, 2);
    assert_int_equal(rules[1]->infer(&a, in, 7, out, &n_out, &why), PD_ERR_UNSUPPORTED);
    a.attention.phi = PK_PHI_POLY;
    a.attention.degree = 2;
    assert_int_equal(rules[1]->infer(&a, in, 7, out, &n_out, &why), PD_OK);
    assert_int_equal(n_out, 4);
    assert_int_equal(rules[1]->infer(&a, in, 6, out, &n_out, &why), PD_ERR_INVALID);
    in[5].shape = PK_SHAPE(1, 1, 4, 2);
    assert_int_equal(rules[1]->infer(&a, in, 7, out, &n_out, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "tangent 1 must have its input's shape and dtype");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_grad_agrees_with_differences),
        cmocka_unit_test(test_attention_second_grad_agrees_with_differences),
        cmocka_unit_test(test_attention_jvp_agrees_with_differences),
        cmocka_unit_test(test_attention_has_the_tangent_of_the_general_mode),
        cmocka_unit_test(test_fused_attention_equals_decomposed_attention),
        cmocka_unit_test(test_tangent_is_the_slope_of_y),
        cmocka_unit_test(test_tangents_of_other_activations_have_no_node),
    };

#ifdef TEST_ON_CPU
    rig_backend = pk_backend_cpu;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
