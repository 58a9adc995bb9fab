/* The builder: shapes come out as op.h says, wrong input is named, the first error sticks. */
#include "tests/graph/rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/op/rule.h"

static void shape_is(struct pk_graph *g, struct pk_val v, const char *want)
{
    char text[128];
    struct pk_shape s = pk_shape_of(g, v);
    struct pd_why why;

    if (pk_graph_check(g, &why) != PD_OK)
        fail_msg("%s", why.text);
    assert_string_equal(pk_shape_text(&s, text, sizeof text), want);
}

static void test_build_infers_shapes(void **state)
{
    static const int32_t order[3] = {2, 0, 1};
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(2, 3, 4)),
                  i = pk_input(g, "i", PK_I32, PK_SHAPE(5, 2));
    struct pk_val w = pk_param(g, "w", PK_F32, PK_SHAPE(7, 4)), both[2] = {x, x};

    (void)state;
    shape_is(g, pk_permute(g, x, order), "(4, 2, 3)");
    shape_is(g, pk_transpose(g, x), "(2, 4, 3)");
    shape_is(g, pk_slice(g, x, 1, 1, 2), "(2, 2, 4)");
    shape_is(g, pk_reshape(g, pk_transpose(g, x), PK_SHAPE(24)), "(24)");
    shape_is(g, pk_broadcast(g, w, PK_SHAPE(2, 7, 4)), "(2, 7, 4)");
    shape_is(g, pk_concat(g, 2, both, 2), "(2, 3, 8)");
    shape_is(g, pk_gather(g, w, i), "(5, 2, 4)");
    shape_is(g, pk_gather(g, pk_transpose(g, w), i), "(5, 2, 7)");
    shape_is(g, pk_one_hot(g, i, 9, PK_F32), "(5, 2, 9)");
    shape_is(g, pk_sum(g, x, 5, false), "(3)");
    shape_is(g, pk_sum(g, x, 5, true), "(1, 3, 1)");
    shape_is(g, pk_sum(g, x, 7, false), "()");
    shape_is(g, pk_sumsq(g, both, 2), "(1)");
    shape_is(g, pk_linear(g, x, w, true, PK_NONE), "(2, 3, 7)");
    shape_is(g, pk_matmul(g, w, pk_transpose(g, x)), "(2, 7, 3)");
    shape_is(g, pk_cast(g, x, PK_F64), "(2, 3, 4)");
    shape_is(g, pk_add(g, x, pk_slice(g, x, 0, 0, 1)), "(2, 3, 4)");
    assert_int_equal(pk_dtype_of(g, pk_one_hot(g, i, 9, PK_F64)), PK_F64);
    assert_int_equal(pk_graph_leaf_count(g), 3);
    assert_int_equal(pk_graph_leaf(g, 2).bytes, 7 * 4 * 4);
    pk_graph_free(g);
}

struct wrong {
    const char *says; /* must be in the message */
    void (*make)(struct pk_graph *g);
};

static struct pk_val f(struct pk_graph *g, struct pk_shape s)
{
    char name[32];

    snprintf(name, sizeof name, "leaf%zu", pk_graph_leaf_count(g));
    return pk_param(g, name, PK_F32, s);
}

static struct pk_val ints(struct pk_graph *g, struct pk_shape s)
{
    char name[32];

    snprintf(name, sizeof name, "leaf%zu", pk_graph_leaf_count(g));
    return pk_input(g, name, PK_I32, s);
}

#define WRONG(n, ...)                                                                                        \
    static void wrong_##n(struct pk_graph *g)                                                                \
    {                                                                                                        \
        __VA_ARGS__;                                                                                         \
    }

WRONG(matmul, pk_matmul(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(4, 5))))
WRONG(matmul_lead, pk_matmul(g, f(g, PK_SHAPE(2, 3, 4)), f(g, PK_SHAPE(3, 4, 5))))
WRONG(matmul_rank, pk_matmul(g, f(g, PK_SHAPE(3)), f(g, PK_SHAPE(3, 5))))
WRONG(matmul_dtype, pk_matmul(g, f(g, PK_SHAPE(3, 3)), pk_cast(g, f(g, PK_SHAPE(3, 5)), PK_F64)))
WRONG(add, pk_add(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(4))))
WRONG(add_dtype, pk_add(g, f(g, PK_SHAPE(2)), ints(g, PK_SHAPE(2))))
WRONG(reshape, pk_reshape(g, f(g, PK_SHAPE(2, 3)), PK_SHAPE(5)))
WRONG(reshape_negative, pk_reshape(g, f(g, PK_SHAPE(2, 3)), PK_SHAPE(-2, -3)))
WRONG(permute, const int32_t twice[2] = {0, 0}; pk_permute(g, f(g, PK_SHAPE(2, 3)), twice))
WRONG(transpose, pk_transpose(g, f(g, PK_SHAPE(2))))
WRONG(slice, pk_slice(g, f(g, PK_SHAPE(2, 3)), 1, 2, 2))
WRONG(slice_axis, pk_slice(g, f(g, PK_SHAPE(2, 3)), 2, 0, 1))
WRONG(slice_huge, pk_slice(g, f(g, PK_SHAPE(2, 3)), 1, INT64_MAX, 2))
WRONG(broadcast, pk_broadcast(g, f(g, PK_SHAPE(2, 3)), PK_SHAPE(2, 4)))
WRONG(broadcast_down, pk_broadcast(g, f(g, PK_SHAPE(2, 3)), PK_SHAPE(1, 3)))
WRONG(fill, pk_fill(g, PK_DTYPE_COUNT, PK_SHAPE(1), 0.0))
WRONG(concat, const struct pk_val x[2] = {f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(3, 3))}; pk_concat(g, 1, x, 2))
WRONG(concat_none, pk_concat(g, 0, NULL, 0))
WRONG(gather, pk_gather(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(2))))
WRONG(one_hot, pk_one_hot(g, ints(g, PK_SHAPE(2)), 0, PK_F32))
WRONG(sum, pk_sum(g, f(g, PK_SHAPE(2)), 2, false))
WRONG(max, pk_maximum(g, f(g, PK_SHAPE(0, 2)), 1, false))
WRONG(unary, pk_unary(g, PK_EX_ADD, f(g, PK_SHAPE(2))))
WRONG(power, pk_power(g, f(g, PK_SHAPE(2)), -1))
WRONG(linear, pk_linear(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(3)), true, PK_NONE))
WRONG(norm, pk_norm(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(2)), PK_NONE, (struct pk_norm_spec){0}))
WRONG(norm_beta,
      pk_norm(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(3)), f(g, PK_SHAPE(2)), (struct pk_norm_spec){0}))
WRONG(norm_eps,
      pk_norm(g, f(g, PK_SHAPE(2, 3)), f(g, PK_SHAPE(3)), PK_NONE, (struct pk_norm_spec){.eps = -1.0}))
WRONG(softmax, pk_softmax(g, ints(g, PK_SHAPE(2))))
WRONG(loss, pk_cross_entropy(g, f(g, PK_SHAPE(2, 3)), ints(g, PK_SHAPE(3)), 0.0, -1))
WRONG(loss_smoothing, pk_cross_entropy(g, f(g, PK_SHAPE(2, 3)), ints(g, PK_SHAPE(2)), 1.5, -1))
WRONG(packed, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 4, 1, 2)), (struct pk_attention_spec){.scale = 1.0}))
WRONG(degree, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 1, 2)),
                                  (struct pk_attention_spec){.phi = PK_PHI_POLY, .scale = 1.0}))
WRONG(phi, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 1, 2)),
                               (struct pk_attention_spec){.phi = PK_PHIS, .scale = 1.0}))
WRONG(scale, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 4, 2)),
                                 (struct pk_attention_spec){.scale = 1.0, .scale_value = f(g, PK_SHAPE(3))}))
WRONG(mask, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 4, 2)),
                                (struct pk_attention_spec){.scale = 1.0, .mask = f(g, PK_SHAPE(2, 3))}))
WRONG(length, pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 4, 2)),
                                  (struct pk_attention_spec){.scale = 1.0, .length = ints(g, PK_SHAPE(3))}))
WRONG(attention, pk_attention(g, f(g, PK_SHAPE(2, 3, 4, 5)), f(g, PK_SHAPE(2, 3, 4, 6)),
                              f(g, PK_SHAPE(2, 3, 4, 6)), (struct pk_attention_spec){.scale = 1.0}))
WRONG(stats, pk_attention_stats_packed(g, f(g, PK_SHAPE(2, 3, 3, 4, 2)), f(g, PK_SHAPE(2, 4, 8)),
                                       (struct pk_attention_spec){.scale = 1.0}))
WRONG(cache, pk_cache_append(g, f(g, PK_SHAPE(1, 1, 2, 2)), f(g, PK_SHAPE(1, 1, 3, 2)), ints(g, PK_SHAPE(1))))
WRONG(cache_leaf, pk_cache_append(g, pk_scale(g, f(g, PK_SHAPE(1, 1, 2, 2)), 2.0), f(g, PK_SHAPE(1, 1, 1, 2)),
                                  ints(g, PK_SHAPE(1))))
WRONG(state_result, struct pk_val x = f(g, PK_SHAPE(1, 1, 2, 2)), at = ints(g, PK_SHAPE(1));
      struct pk_val y = pk_attention_state(g, x, x, x,
                                           pk_state(g, "s", PK_F32, PK_SHAPE(1, 1, 2, 2), PK_CAT_CACHE), at,
                                           (struct pk_attention_spec){
                                               .phi = PK_PHI_POLY, .degree = 1, .scale = 1.0, .length = at});
      pk_accumulate(g, y, y, f(g, PK_SHAPE(1))))
WRONG(adamw, pk_adamw(g, f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(3)),
                      f(g, PK_SHAPE(4)), f(g, PK_SHAPE(2)), (struct pk_optim_spec){0}))
WRONG(adamw_leaf, struct pk_val p = f(g, PK_SHAPE(2));
      pk_adamw(g, pk_scale(g, p, 2.0), p, f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(4)),
               f(g, PK_SHAPE(2)), (struct pk_optim_spec){0}))
WRONG(msgdw, pk_msgdw(g, f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(3)),
                      f(g, PK_SHAPE(2)), (struct pk_optim_spec){0}))
WRONG(blend, pk_blend(g, pk_param(g, "s", PK_F32, PK_SHAPE(2)), f(g, PK_SHAPE(3)), f(g, PK_SHAPE(1)), 0.5))
WRONG(blend_gate,
      pk_blend(g, pk_param(g, "s", PK_F32, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(2)), 0.5))
WRONG(blend_keep, pk_blend(g, pk_param(g, "s", PK_F32, PK_SHAPE(2)), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(1)), 1))
WRONG(blend_leaf, pk_blend(g, pk_scale(g, f(g, PK_SHAPE(2)), 2.0), f(g, PK_SHAPE(2)), f(g, PK_SHAPE(1)), 0.5))
WRONG(nothing, pk_add(g, f(g, PK_SHAPE(2)), PK_NONE))
WRONG(foreign, pk_copy(g, (struct pk_val){77}))
WRONG(output, pk_output(g, "y", PK_NONE))
WRONG(output_twice, struct pk_val x = f(g, PK_SHAPE(2)); pk_output(g, "y", x); pk_output(g, "y", x))
WRONG(leaf_twice, pk_input(g, "n", PK_F32, PK_SHAPE(1)); pk_param(g, "n", PK_F32, PK_SHAPE(1)))
WRONG(leaf_name, pk_input(g, "", PK_F32, PK_SHAPE(1)))
WRONG(leaf_extent, pk_input(g, "n", PK_F32, PK_SHAPE(1, -1)))
WRONG(grad_none, struct pk_val x = f(g, PK_SHAPE(2)), d; pk_grad(g, PK_NONE, PK_NONE, &x, 1, &d))
WRONG(grad_wrt, struct pk_val x = f(g, PK_SHAPE(2)), n = PK_NONE, d; pk_grad(g, x, PK_NONE, &n, 1, &d))

static const struct wrong wrongs[] = {
    {"inner extents", wrong_matmul},
    {"leading axes", wrong_matmul_lead},
    {"matrices", wrong_matmul_rank},
    {"one float dtype", wrong_matmul_dtype},
    {"do not fit", wrong_add},
    {"one float dtype", wrong_add_dtype},
    {"number of elements", wrong_reshape},
    {"negative", wrong_reshape_negative},
    {"permutation", wrong_permute},
    {"two axes", wrong_transpose},
    {"outside axis 1", wrong_slice},
    {"no axis 2", wrong_slice_axis},
    {"outside axis 1", wrong_slice_huge},
    {"does not broadcast to (2, 4)", wrong_broadcast},
    {"does not broadcast", wrong_broadcast_down},
    {"unknown dtype", wrong_fill},
    {"another axis", wrong_concat},
    {"takes 1", wrong_concat_none},
    {"i32 index", wrong_gather},
    {"at least one class", wrong_one_hot},
    {"axis that is not there", wrong_sum},
    {"no elements", wrong_max},
    {"one operand", wrong_unary},
    {"power -1", wrong_power},
    {"weight matrix", wrong_linear},
    {"as long as a row", wrong_norm},
    {"offset", wrong_norm_beta},
    {"eps is negative", wrong_norm_eps},
    {"float dtype", wrong_softmax},
    {"one i32 target", wrong_loss},
    {"smoothing", wrong_loss_smoothing},
    {"(B, N, 3, H, d)", wrong_packed},
    {"degree 0", wrong_degree},
    {"unknown activation", wrong_phi},
    {"scale must be", wrong_scale},
    {"mask must be", wrong_mask},
    {"length must be", wrong_length},
    {"q (B, H, Nq, d)", wrong_attention},
    {"(B, Nq, D)", wrong_stats},
    {"n <= T", wrong_cache},
    {"neither", wrong_cache_leaf},
    {"neither", wrong_state_result},
    {"parameter's shape", wrong_adamw},
    {"neither", wrong_adamw_leaf},
    {"hyper must be (4)", wrong_msgdw},
    {"the shape of the state", wrong_blend},
    {"the last input must be (1)", wrong_blend_gate},
    {"is not in [0, 1)", wrong_blend_keep},
    {"neither", wrong_blend_leaf},
    {"no value of this graph", wrong_nothing},
    {"no value of this graph", wrong_foreign},
    {"no value of this graph", wrong_output},
    {"output 'y' exists already", wrong_output_twice},
    {"leaf 'n' exists already", wrong_leaf_twice},
    {"needs a name", wrong_leaf_name},
    {"negative extent", wrong_leaf_extent},
    {"grad: the output is no value of this graph", wrong_grad_none},
    {"no value of this graph", wrong_grad_wrt},
};

static void test_build_names_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pd_why why = {.text = ""};

        pk_graph_scope(g, "blocks.3.attn");
        wrongs[i].make(g);
        if (pk_graph_check(g, &why) == PD_OK)
            fail_msg("case %zu (%s) went through", i, wrongs[i].says);
        if (!strstr(why.text, wrongs[i].says) || strncmp(why.text, "blocks.3.attn: ", 15) != 0)
            fail_msg("case %zu says \"%s\", not \"%s\"", i, why.text, wrongs[i].says);
        pk_graph_free(g);
    }
}

/* The decomposed forms check what their primitives would not. */
static void test_build_decomposed_forms_refuse_the_same(void **state)
{
    static void (*const cases[])(struct pk_graph *) = {
        wrong_norm,  wrong_softmax, wrong_loss,   wrong_packed,    wrong_degree,
        wrong_scale, wrong_mask,    wrong_length, wrong_attention, wrong_phi};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pk_graph *g = pk_graph_new(true);
        struct pd_why why;

        cases[i](g);
        assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
        pk_graph_free(g);
    }
}

static void test_build_decomposed_powers_have_an_end(void **state)
{
    struct pk_graph *g = pk_graph_new(true);
    struct pd_why why;

    (void)state;
    pk_attention_packed(g, f(g, PK_SHAPE(2, 3, 3, 1, 2)),
                        (struct pk_attention_spec){.phi = PK_PHI_POLY, .degree = 256, .scale = 1.0});
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "power 256: only 0 to 255"));
    pk_graph_free(g);
}

static void test_build_activations_have_names(void **state)
{
    (void)state;
    for (int phi = 0; phi < PK_PHIS; phi++)
        assert_int_equal(pk_phi_find(pk_phi_name((enum pk_phi)phi)), phi);
    assert_string_equal(pk_phi_name(PK_PHI_RELU), "relu");
    assert_null(pk_phi_name(PK_PHIS));
    assert_int_equal(pk_phi_find("rel"), PK_PHIS);
    assert_true(pk_phi_normalised(PK_PHI_SOFTMAX) && pk_phi_normalised(PK_PHI_PERIODIC) &&
                !pk_phi_normalised(PK_PHI_SIGMOID) && !pk_phi_normalised(PK_PHI_POLY));
    assert_true(pk_phi_shifted(PK_PHI_SOFTMAX) && !pk_phi_shifted(PK_PHI_TAYLOR));
    assert_true(pk_phi_power(PK_PHI_POLY) && !pk_phi_power(PK_PHI_RELU));
}

static void test_build_first_error_sticks(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(2, 3)), bad;
    struct pk_exec *e = NULL;
    struct pd_why why;

    (void)state;
    bad = pk_matmul(g, x, x);
    assert_int_equal(bad.id, 0);
    assert_int_equal(pk_add(g, x, x).id, 0);
    assert_int_equal(pk_input(g, "y", PK_F32, PK_SHAPE(1)).id, 0);
    pk_grad(g, x, PK_NONE, &x, 1, &bad);
    assert_int_equal(bad.id, 0);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "matmul of f32 (2, 3), f32 (2, 3): the inner extents differ");
    assert_int_equal(pk_exec_new(g, NULL, NULL, &e, &why), PD_ERR_INVALID);
    assert_null(e);
    pk_graph_free(g);
    assert_int_equal(pk_graph_check(NULL, &why), PD_ERR_NOMEM);
    assert_int_equal(pk_add(NULL, x, x).id, 0);
    assert_null(pk_graph_free(NULL));
    assert_null(pk_exec_free(NULL));
}

static void test_build_views_share_memory(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val qkv = pk_input(r->g, "qkv", PK_F32, PK_SHAPE(2, 4, 3, 2, 5));
    struct pk_plan_report report;

    (void)state;
    for (int i = 0; i < 3; i++) {
        static const int32_t order[4] = {0, 2, 1, 3};
        char name[8];

        snprintf(name, sizeof name, "s%d", i);
        pk_output(
            r->g, name,
            pk_sum(
                r->g,
                pk_permute(r->g, pk_reshape(r->g, pk_slice(r->g, qkv, 2, i, 1), PK_SHAPE(2, 4, 2, 5)), order),
                12, false));
    }
    rig_plan(r);
    pk_exec_report(r->exec, &report);
    assert_int_equal(report.nodes, 3); /* the sums: nothing was copied */
    rig_free(r);
}

static void test_build_tensor_names_and_shapes(void **state)
{
    char text[64];
    struct pk_shape scalar = {.rank = 0}, big = PK_SHAPE(123456789, 123456789, 123456789);
    struct pk_view v = pk_view_dense(NULL, PK_F32, PK_SHAPE(2, 1, 3));

    (void)state;
    assert_int_equal(pk_dtype_size(PK_BF16), 2);
    assert_int_equal(pk_dtype_size(PK_DTYPE_COUNT), 0);
    assert_string_equal(pk_dtype_name(PK_U8), "u8");
    assert_string_equal(pk_dtype_name(PK_DTYPE_COUNT), "unknown");
    assert_int_equal(pk_shape_count(&scalar), 1);
    assert_string_equal(pk_shape_text(&scalar, text, sizeof text), "()");
    assert_int_equal(strlen(pk_shape_text(&big, text, 9)), 8);
    assert_true(pk_view_is_dense(&v));
    v.stride[1] = 77; /* of one element: no matter */
    assert_true(pk_view_is_dense(&v));
    v.stride[0] = 4;
    assert_false(pk_view_is_dense(&v));
    assert_string_equal(pk_category_name(PK_CAT_MOMENT2), "moment2");
    assert_string_equal(pk_category_name(PK_CAT_COUNT), "unknown");
    for (int op = 0; op < PK_OP_COUNT; op++)
        assert_string_not_equal(pk_op_name((enum pk_op)op), "unknown");
    assert_string_equal(pk_op_name(PK_OP_COUNT), "unknown");
}

/* What a rule leaves out is a decision: the defaults of passes, planner and roofline are not for every op. */
static void test_build_rules_are_whole(void **state)
{
    (void)state;
    for (int op = 0; op < PK_OP_COUNT; op++) {
        const struct pk_rule *rule = pk_rule_of((enum pk_op)op);
        const struct pk_attr attr = {.shape = {.rank = 0}};
        int32_t at[PK_MAX_WRITES], writes = pk_op_writes((enum pk_op)op, &attr, rule->max_in, at);
        bool kernel = !rule->leaf && !rule->view;

        for (int other = 0; other < op; other++)
            assert_string_not_equal(rule->name, pk_op_name((enum pk_op)other));
        if ((rule->kind == PK_KIND_NONE) == kernel || (rule->infer == NULL) != rule->leaf ||
            (rule->leaf && rule->view) || (rule->fed && rule->trained) || (writes > 0) != !!rule->writes)
            fail_msg("the rule of %s contradicts itself", rule->name);
        for (int32_t i = 0; i < writes; i++)
            assert_in_range(at[i], 0, rule->max_in - 1);
        if (rule->shares_columns && !rule->shares)
            fail_msg("%s shares columns of no input", rule->name);
    }
    assert_null(pk_rule_of(PK_OP_COUNT));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_build_infers_shapes),
        cmocka_unit_test(test_build_names_what_is_wrong),
        cmocka_unit_test(test_build_decomposed_forms_refuse_the_same),
        cmocka_unit_test(test_build_decomposed_powers_have_an_end),
        cmocka_unit_test(test_build_activations_have_names),
        cmocka_unit_test(test_build_first_error_sticks),
        cmocka_unit_test(test_build_views_share_memory),
        cmocka_unit_test(test_build_tensor_names_and_shapes),
        cmocka_unit_test(test_build_rules_are_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
