/* Derivatives against central differences in f64: every op, every instruction of EXPR; twice for the
 * primitives, and through the fused derivatives. */
#include "tests/ops/grad.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/build.h"

MAKE(make_add)
{
    return pk_add(g, P("a", 2, 3), P("b", 3));
}
MAKE(make_sub)
{
    return pk_sub(g, P("a", 2, 1), P("b", 1, 3));
}
MAKE(make_mul)
{
    struct pk_val a = P("a", 2, 3);

    return pk_mul(g, pk_mul(g, a, P("b", 2, 1)), a);
}
MAKE(make_div)
{
    return pk_div(g, P("a", 2, 3), pk_offset(g, P("b", 2, 3), 2.0));
}
MAKE(make_max)
{
    return pk_max2(g, P("a", 3, 3), P("b", 3));
}
MAKE(make_select)
{
    struct pk_val a = P("a", 3, 3), b = P("b", 3, 3);

    return pk_select(g, pk_gt(g, a, b), pk_mul(g, a, a), pk_mul(g, b, a));
}
MAKE(make_power)
{
    struct pk_val a = P("a", 5);

    return pk_add(g, pk_power(g, a, 3),
                  pk_add(g, pk_power(g, a, 1), pk_add(g, pk_power(g, a, 0), pk_power(g, a, 2))));
}
MAKE(make_views)
{
    static const int32_t order[3] = {2, 0, 1};
    struct pk_val a = P("a", 2, 3, 4), p = pk_permute(g, a, order), s = pk_slice(g, p, 0, 1, 2);

    s = pk_reshape(g, s, PK_SHAPE(4, 3)); /* not in order: copies */
    return pk_mul(g, s,
                  pk_broadcast(g, pk_slice(g, pk_reshape(g, a, PK_SHAPE(24)), 0, 5, 3), PK_SHAPE(4, 3)));
}
MAKE(make_concat)
{
    struct pk_val a = P("a", 2, 3), b = P("b", 2, 2), both[3] = {a, b, a};
    struct pk_val y = pk_concat(g, 1, both, 3);

    return pk_mul(g, y, pk_slice(g, pk_concat(g, 1, both, 3), 1, 0, 8));
}
MAKE(make_sum)
{
    struct pk_val a = P("a", 2, 3, 2);

    return pk_mul(g, pk_sum(g, a, 5, true), pk_add(g, pk_mean(g, pk_mul(g, a, a), 2, true), a));
}
MAKE(make_largest)
{
    struct pk_val a = P("a", 2, 3, 4), b = P("b", 3, 1);
    struct pk_val top = pk_maximum_flow(g, pk_mul(g, a, b), 5, true); /* of two axes that are no neighbours */

    return pk_mul(g, pk_mul(g, a, top), pk_maximum_flow(g, a, 7, false));
}
MAKE(make_largest_gone)
{
    struct pk_val a = P("a", 3, 4);

    return pk_add(g, pk_maximum_flow(g, pk_mul(g, a, a), 2, false), pk_maximum_flow(g, P("b", 3), 0, false));
}
MAKE(make_all_reduce)
{
    struct pk_val a = P("a", 3, 4), sum = pk_all_reduce(g, pk_transpose(g, pk_mul(g, a, a)), -1);

    return pk_mul(g, pk_transpose(g, sum), a); /* of one rank; test_ranks_grad has two */
}
MAKE(make_sumsq)
{
    struct pk_val x[2];

    x[0] = P("a", 2, 3);
    x[1] = P("b", 4);
    return pk_sumsq(g, x, 2);
}
MAKE(make_matmul)
{
    return pk_matmul(g, P("a", 3, 4), P("b", 4, 2));
}
MAKE(make_matmul_batched)
{
    return pk_matmul(g, P("a", 2, 1, 3, 4), P("b", 3, 4, 2));
}
MAKE(make_matmul_one_weight)
{
    return pk_matmul(g, P("a", 2, 3, 4), pk_transpose(g, P("b", 2, 4)));
}
MAKE(make_matmul_one_left)
{
    return pk_matmul(g, P("a", 3, 4), P("b", 2, 4, 2));
}
MAKE(make_linear)
{
    struct pk_val x = P("x", 2, 3, 4), w = P("w", 5, 4);

    return pk_gelu(g, pk_linear(g, x, w, true, P("b", 5)), false);
}
MAKE(make_wave)
{
    return pk_wave(g, P("x", 2, 3, 4), P("a", 1), P("b", 1));
}
MAKE(make_gather)
{
    struct pk_val table = P("t", 5, 3), index = pk_input(g, "index", PK_I32, PK_SHAPE(2, 2));

    return pk_mul(g, pk_gather(g, table, index),
                  pk_gather(g, table, pk_reshape(g, index, PK_SHAPE(1, 2, 2))));
}
static void fill_gather(struct rig *r)
{
    const double index[4] = {4, 0, 4, 2};

    rig_set(r, "index", index);
}
MAKE(make_cast)
{
    return pk_mul(g, pk_copy(g, pk_transpose(g, P("a", 2, 3))), P("b", 3, 2));
}
MAKE(make_dropout)
{
    struct pk_val a = P("a", 3, 5), rng = pk_input(g, "rng", PK_I32, PK_SHAPE(3));

    return pk_mul(g, pk_dropout(g, pk_mul(g, a, a), rng, 0.4, 1), pk_dropout(g, a, rng, 0.3, 2));
}
MAKE(make_drop_path)
{
    struct pk_val a = P("a", 6, 2), rng = pk_input(g, "rng", PK_I32, PK_SHAPE(3));

    return pk_add(g, a, pk_drop_path(g, pk_mul(g, a, P("b", 2)), rng, 0.4, 1));
}
static void fill_rng(struct rig *r)
{
    const double words[3] = {17, -4, 3};

    rig_set(r, "rng", words);
}
MAKE(make_norm)
{
    struct pk_val x = P("x", 2, 3, 5), gamma = P("gamma", 5);

    return pk_norm(g, x, gamma, P("beta", 5), (struct pk_norm_spec){PK_NORM_LAYER, PK_EPS_MEAN, 1e-3});
}
MAKE(make_norm_sum)
{
    struct pk_val x = P("x", 3, 5);

    return pk_norm(g, x, P("gamma", 5), PK_NONE, (struct pk_norm_spec){PK_NORM_LAYER, PK_EPS_SUM, 1e-2});
}
MAKE(make_rms)
{
    struct pk_val x = P("x", 3, 5);

    return pk_norm(g, x, P("gamma", 5), PK_NONE, (struct pk_norm_spec){PK_NORM_RMS, PK_EPS_SUM, 1e-2});
}
MAKE(make_rms_beta)
{
    struct pk_val x = P("x", 3, 5), gamma = P("gamma", 5);

    return pk_norm(g, x, gamma, P("beta", 5), (struct pk_norm_spec){PK_NORM_RMS, PK_EPS_MEAN, 1e-3});
}
MAKE(make_softmax)
{
    return pk_softmax(g, P("x", 3, 4));
}
MAKE(make_cross_entropy)
{
    struct pk_val x = P("x", 5, 4);

    return pk_cross_entropy(g, x, pk_input(g, "target", PK_I32, PK_SHAPE(5)), 0.1, -1).loss_sum;
}
static void fill_targets(struct rig *r)
{
    const double t[5] = {3, -1, 0, 0, 2};

    rig_set(r, "target", t);
}

MAKE(make_conv)
{
    struct pk_val x = P("x", 2, 4, 5, 2);

    return pk_conv2d(g, x, P("w", 3, 3, 2, 3), 1, 1);
}
MAKE(make_conv_stride)
{
    static const int32_t order[4] = {0, 2, 1, 3};
    struct pk_val x = pk_permute(g, P("x", 1, 5, 6, 2), order); /* not dense */

    return pk_conv2d(g, x, pk_power(g, P("w", 3, 2, 2, 2), 2), 2, 1);
}
MAKE(make_depthwise)
{
    struct pk_val x = P("x", 2, 3, 4, 3);

    return pk_dwconv2d(g, x, P("w", 3, 3, 3));
}
MAKE(make_depthwise_long)
{
    struct pk_val x = P("x", 1, 6, 1, 2), w = pk_broadcast(g, P("w", 5, 1, 1), PK_SHAPE(5, 1, 2));

    return pk_dwconv2d(g, pk_mul(g, x, x), w);
}

static const struct build builds[] = {
    {"add", make_add, NULL, true},
    {"sub", make_sub, NULL, true},
    {"mul", make_mul, NULL, true},
    {"div", make_div, NULL, true},
    {"max", make_max, NULL, true},
    {"select", make_select, NULL, true},
    {"power", make_power, NULL, true},
    {"views", make_views, NULL, true},
    {"concat", make_concat, NULL, true},
    {"sum", make_sum, NULL, true},
    {"largest", make_largest, NULL, true},
    {"largest, its axis gone", make_largest_gone, NULL, true},
    {"all_reduce", make_all_reduce, NULL, true},
    {"sumsq", make_sumsq, NULL, true},
    {"matmul", make_matmul, NULL, true},
    {"matmul batched", make_matmul_batched, NULL, true},
    {"matmul, one weight", make_matmul_one_weight, NULL, true},
    {"matmul, one left", make_matmul_one_left, NULL, true},
    {"linear gelu", make_linear, NULL, true},
    {"wave", make_wave, NULL, true},
    {"gather", make_gather, fill_gather, true},
    {"copy", make_cast, NULL, true},
    {"dropout", make_dropout, fill_rng, true},
    {"drop path", make_drop_path, fill_rng, true},
    {"layer norm", make_norm, NULL, true},
    {"layer norm, eps on the sum", make_norm_sum, NULL, true},
    {"rms norm, eps on the sum", make_rms, NULL, true},
    {"rms norm with offset", make_rms_beta, NULL, true},
    {"softmax", make_softmax, NULL, true},
    {"cross entropy", make_cross_entropy, fill_targets, true},
    {"convolution", make_conv, NULL, true},
    {"convolution of stride 2", make_conv_stride, NULL, true},
    {"depthwise", make_depthwise, NULL, true},
    {"depthwise 5 x 1, one kernel for all", make_depthwise_long, NULL, true},
};

static void test_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check(&builds[i], false, false);
}

static void test_grad_of_decomposed_forms_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check(&builds[i], true, false);
}

static void test_grad_of_grad_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check(&builds[i], true, true);
}

static void test_grad_of_grad_goes_through_fused_derivatives(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check(&builds[i], false, true);
}

static void test_jvp_agrees_with_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        for (int decomposed = 0; decomposed < 2; decomposed++)
            grad_check_jvp(&builds[i], decomposed);
}

static void test_fused_forms_equal_decomposed_forms(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        grad_check_fused_is_decomposed(&builds[i]);
}

/* An op without a derivative is a decision, not an oversight. */
static void test_grad_exists_for_every_op(void **state)
{
    (void)state;
    for (int op = 0; op < PK_OP_COUNT; op++) {
        const struct pk_rule *rule = pk_rule_of((enum pk_op)op);
        bool none = rule->leaf || op == PK_OP_ATTENTION_STATS || op == PK_OP_FORMULA_STATS ||
                    op == PK_OP_ATTENTION_STATE || op == PK_OP_CACHE_APPEND || op == PK_OP_ACCUMULATE ||
                    op == PK_OP_BLEND || op == PK_OP_ADAMW || op == PK_OP_MSGDW ||
                    op == PK_OP_BROADCAST_RANKS;

        assert_non_null(rule);
        if ((rule->vjp != NULL) == none)
            fail_msg("%s %s", rule->name, none ? "has a derivative" : "has no derivative");
    }
}

/* Third order, to be sure that nothing stops at two. */
static void test_grad_third_order_of_a_chain(void **state)
{
    struct rig *r = rig_new(true);
    struct pk_val x = pk_param(r->g, "x", PK_F64, PK_SHAPE(4)), d1, d2;
    struct pk_val f = grad_weigh(r->g, pk_unary(r->g, PK_EX_TANH, pk_gelu(r->g, x, true)), "w");

    (void)state;
    pk_grad(r->g, f, PK_NONE, &x, 1, &d1);
    d1 = grad_weigh(r->g, d1, "w1");
    pk_grad(r->g, d1, PK_NONE, &x, 1, &d2);
    const char *name = "x";

    grad_check_first(r, grad_weigh(r->g, d2, "w2"), &x, &name, 1);
    rig_free(r);
}

static void test_grad_of_every_instruction(void **state)
{
    (void)state;
    for (int op = PK_EX_NEG; op <= PK_EX_FINITE; op++) {
        for (int second = 0; second < 2; second++) {
            struct rig *r;
            struct pk_val x, y;
            const char *name = "x";

            if (op == PK_EX_POW)
                continue; /* make_power */
            r = rig_new(false);
            x = pk_param(r->g, name, PK_F64, PK_SHAPE(7));
            /* Positive where only that is allowed; away from the corner of abs. */
            y = op == PK_EX_LOG || op == PK_EX_SQRT || op == PK_EX_RSQRT || op == PK_EX_RECIP ||
                        op == PK_EX_ABS
                    ? pk_offset(r->g, x, 1.5)
                    : pk_scale(r->g, x, 2.0);
            if (op == PK_EX_ABS)
                y = pk_scale(r->g, y, -1.0);
            y = grad_weigh(r->g, pk_unary(r->g, (enum pk_ex)op, y), "w1");
            if (second)
                grad_check_second(r, y, &x, &name, 1);
            else
                grad_check_first(r, y, &x, &name, 1);
            rig_free(r);
        }
    }
}

static void count_matmul(void *user, const char *node, const struct pk_view *out, int n)
{
    (void)out;
    (void)n;
    *(int *)user += strstr(node, "matmul") != NULL;
}

static void test_grad_visits_only_paths_to_what_is_asked(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_param(r->g, "x", PK_F64, PK_SHAPE(4, 4)),
                  w = pk_param(r->g, "w", PK_F64, PK_SHAPE(4, 4));
    struct pk_val frozen = x, y, d;
    int all = 0, one = 0;

    (void)state;
    for (int i = 0; i < 5; i++)
        frozen = pk_unary(r->g, PK_EX_TANH, pk_matmul(r->g, frozen, x));
    y = grad_weigh(r->g, pk_matmul(r->g, frozen, w), "k");
    pk_grad(r->g, y, PK_NONE, &w, 1, &d);
    pk_output(r->g, "d", d);
    rig_plan(r);
    pk_exec_trace(r->exec, count_matmul, &one);
    rig_run(r);
    assert_int_equal(one, 6 + 1); /* forward, and one product for w: nothing upstream */
    pk_grad(r->g, y, PK_NONE, &x, 1, &d);
    pk_output(r->g, "dx", d);
    rig_replan(r);
    pk_exec_trace(r->exec, count_matmul, &all);
    rig_run(r);
    assert_int_equal(all, 6 + 1 + 1 + 4 * 2 + 2); /* both operands depend on x */
    rig_free(r);
}

/* Of equals the first gets all, in row-major order of the reduced axes; elsewhere it cancels. */
static void test_grad_of_the_largest_goes_to_the_first(void **state)
{
    /* (2, 3, 2), reduced over the first and the last axis; the largest of the middle row's stands thrice */
    static const double x[12] = {1, 4, 0, 7, -3, -3, 4, 2, 7, 7, -5, -3}, weight[3] = {2, 3, 5};
    static const int first[3] = {1, 3, 4};

    (void)state;
    for (int flow = 0; flow < 2; flow++) {
        struct rig *r = rig_new(false);
        struct pk_val a = pk_param(r->g, "a", PK_F64, PK_SHAPE(2, 3, 2)), d;
        struct pk_val top = flow ? pk_maximum_flow(r->g, a, 5, false) : pk_maximum(r->g, a, 5, false);
        struct pk_val seed = pk_const(r->g, PK_F64, PK_SHAPE(3), weight);
        double *got;
        int64_t n;

        pk_grad(r->g, top, seed, &a, 1, &d);
        pk_output(r->g, "d", d);
        rig_plan(r);
        rig_set(r, "a", x);
        rig_run(r);
        got = rig_read(r, "d", &n);
        assert_int_equal(n, 12);
        for (int i = 0; i < 12; i++) {
            double want = 0;

            for (int k = 0; k < 3 && flow; k++)
                want += first[k] == i ? weight[k] : 0;
            if (got[i] != want)
                fail_msg("place %d gets %g, not %g", i, got[i], want);
        }
        free(got);
        rig_free(r);
    }
}

/* A maximum that cancels is as foreign to a derivative as an input: not one node more is emitted for it. */
static void test_grad_emits_nothing_for_a_maximum_that_cancels(void **state)
{
    uint32_t emitted[2];

    (void)state;
    for (int fed = 0; fed < 2; fed++) {
        struct pk_graph *g = pk_graph_new(true);
        struct pk_val x = pk_param(g, "x", PK_F64, PK_SHAPE(3, 4)), d, y;

        y = fed ? pk_input(g, "top", PK_F64, PK_SHAPE(3, 1)) : pk_maximum(g, x, 2, true);
        y = pk_unary(g, PK_EX_EXP, pk_sub(g, x, y));
        emitted[fed] = g->n_node;
        pk_grad(g, y, PK_NONE, &x, 1, &d);
        emitted[fed] = g->n_node - emitted[fed];
        pk_graph_free(g);
    }
    assert_int_equal(emitted[0], emitted[1]);
}

/* y0 = 3 a, y1 = a b, y2 = b: with da and without db; y2 does not change. */
static void test_jvp_of_several_values(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x[2], dx[2] = {PK_NONE, PK_NONE}, y[4], dy[5];

    (void)state;
    x[0] = pk_param(r->g, "a", PK_F64, PK_SHAPE(3));
    x[1] = pk_param(r->g, "b", PK_F64, PK_SHAPE(3));
    dx[0] = pk_input(r->g, "da", PK_F64, PK_SHAPE(3));
    y[0] = pk_scale(r->g, x[0], 3);
    y[1] = pk_mul(r->g, x[0], x[1]);
    y[2] = x[1];
    y[3] = x[0];
    pk_jvp(r->g, y, 4, x, dx, 2, dy);
    pk_jvp(r->g, y, 1, x, dx + 1, 1, dy + 4); /* nothing changes */
    for (int i = 0; i < 5; i++)
        pk_output(r->g, (const char *[]){"d0", "d1", "d2", "d3", "d4"}[i], dy[i]);
    rig_plan(r);
    rig_run(r);
    for (int i = 0; i < 5; i++) {
        double *got = rig_read(r, (const char *[]){"d0", "d1", "d2", "d3", "d4"}[i], NULL);

        for (int k = 0; k < 3; k++) {
            double da = rig_get(r, "da", k);
            const double want[5] = {3 * da, da * rig_get(r, "b", k), 0, da, 0};

            assert_true(fabs(got[k] - want[i]) < 1e-15);
        }
        free(got);
    }
    rig_free(r);
}

/* A tangent is a value like others: an equation's residual is made of it, and trained on. */
static void test_jvp_may_be_differentiated(void **state)
{
    (void)state;
    for (int decomposed = 0; decomposed < 2; decomposed++) {
        struct rig *r = rig_new(decomposed);
        struct pk_val leaf[8], y, t, dy;
        const char *name[8];
        size_t n = 0;

        y = make_norm(r->g, leaf, name, &n);
        y = pk_unary(r->g, PK_EX_SIN, pk_mul(r->g, y, y));
        t = pk_input(r->g, "t", PK_F64, pk_shape_of(r->g, leaf[0]));
        pk_jvp(r->g, &y, 1, leaf, &t, 1, &dy);
        grad_check_first(r, grad_weigh(r->g, dy, "w"), leaf, name, n);
        rig_free(r);
    }
}

struct counts {
    int matmul, fill, all;
};

static void count_nodes(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    struct counts *c = user;

    (void)scope;
    (void)backward;
    c->all++;
    c->matmul += call->op == PK_OP_MATMUL;
    c->fill += call->op == PK_OP_FILL;
}

/* Along three layers three products more: what flows back, and what it began with, is gone. */
static void test_jvp_leaves_no_backward_part(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F64, PK_SHAPE(4, 5)), t, y = x, dy;
    struct counts c = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[8];

        snprintf(name, sizeof name, "w%d", i);
        y = pk_unary(r->g, PK_EX_TANH, pk_matmul(r->g, y, pk_param(r->g, name, PK_F64, PK_SHAPE(5, 5))));
    }
    t = pk_input(r->g, "t", PK_F64, PK_SHAPE(4, 5));
    pk_jvp(r->g, &y, 1, &x, &t, 1, &dy);
    pk_output(r->g, "dy", dy);
    rig_plan(r);
    pk_exec_each(r->exec, count_nodes, &c);
    assert_int_equal(c.matmul, 6);
    assert_int_equal(c.fill, 0);
    if (c.all > 6 + 6) /* a function and a slope for each layer */
        fail_msg("%d nodes", c.all);
    rig_free(r);
}

static void test_jvp_refuses_what_has_none(void **state)
{
    struct pd_why why;
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val qkv = pk_param(g, "qkv", PK_F64, PK_SHAPE(1, 2, 3, 1, 2)), d;
    struct pk_val rows = pk_input(g, "x", PK_F64, PK_SHAPE(1, 2, 4)), t;
    struct pk_attention_stats s = pk_attention_stats_packed(
        g, qkv, rows, (struct pk_attention_spec){.phi = PK_PHI_POLY, .degree = 2, .scale = 1});

    (void)state;
    t = pk_input(g, "t", PK_F64, PK_SHAPE(1, 2, 3, 1, 2));
    pk_jvp(g, &s.fro, 1, &qkv, &t, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_UNSUPPORTED);
    assert_string_equal(why.text, "attention_stats has no derivative");
    assert_int_equal(d.id, 0);
    pk_graph_free(g);

    g = pk_graph_new(false);
    qkv = pk_param(g, "x", PK_F64, PK_SHAPE(2));
    t = pk_input(g, "t", PK_F64, PK_SHAPE(3));
    pk_jvp(g, &qkv, 1, &qkv, &t, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "jvp: tangent 0 must have its input's shape and dtype");
    pk_graph_free(g);

    g = pk_graph_new(false);
    qkv = pk_param(g, "x", PK_F64, PK_SHAPE(2));
    pk_jvp(g, &(struct pk_val){0}, 1, &qkv, &qkv, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_string_equal(why.text, "jvp: output 0 is no value of this graph");
    pk_graph_free(g);
}

static void test_grad_of_an_unreached_input_is_zero(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_param(r->g, "x", PK_F64, PK_SHAPE(2)), z = pk_param(r->g, "z", PK_F64, PK_SHAPE(3));
    struct pk_val in[2] = {x, z}, d[2];
    double *got;
    int64_t n;

    (void)state;
    pk_grad(r->g, pk_sumsq(r->g, &x, 1), PK_NONE, in, 2, d);
    pk_output(r->g, "d", d[1]);
    rig_plan(r);
    rig_run(r);
    got = rig_read(r, "d", &n);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++)
        assert_true(got[i] == 0.0);
    free(got);
    rig_free(r);
}

static void test_grad_refuses_what_has_none(void **state)
{
    struct pd_why why;
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val qkv = pk_param(g, "qkv", PK_F64, PK_SHAPE(1, 2, 3, 1, 2)), d;
    struct pk_val x = pk_input(g, "x", PK_F64, PK_SHAPE(1, 2, 4));
    struct pk_attention_stats s = pk_attention_stats_packed(
        g, qkv, x, (struct pk_attention_spec){.phi = PK_PHI_POLY, .degree = 2, .scale = 1});

    (void)state;
    pk_grad(g, s.fro, PK_NONE, &qkv, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(d.id, 0);
    pk_graph_free(g);

    g = pk_graph_new(false);
    x = pk_param(g, "x", PK_F64, PK_SHAPE(2));
    pk_grad(g, pk_all_reduce(g, x, 0), PK_NONE, &x, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_UNSUPPORTED);
    pk_graph_free(g);

    g = pk_graph_new(false);
    x = pk_param(g, "x", PK_F32, PK_SHAPE(2, (1 << 24) + 1));
    pk_grad(g, pk_maximum_flow(g, x, 2, false), PK_NONE, &x, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_LIMIT);
    pk_graph_free(g);

    g = pk_graph_new(false);
    x = pk_input(g, "i", PK_I32, PK_SHAPE(2));
    pk_grad(g, pk_cast(g, x, PK_F64), PK_NONE, &x, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    pk_graph_free(g);

    g = pk_graph_new(false);
    x = pk_param(g, "x", PK_F64, PK_SHAPE(2));
    pk_grad(g, x, pk_fill(g, PK_F64, PK_SHAPE(3), 1.0), &x, 1, &d);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    pk_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grad_agrees_with_differences),
        cmocka_unit_test(test_grad_of_decomposed_forms_agrees_with_differences),
        cmocka_unit_test(test_grad_of_grad_agrees_with_differences),
        cmocka_unit_test(test_grad_of_grad_goes_through_fused_derivatives),
        cmocka_unit_test(test_jvp_agrees_with_differences),
        cmocka_unit_test(test_jvp_of_several_values),
        cmocka_unit_test(test_jvp_may_be_differentiated),
        cmocka_unit_test(test_jvp_leaves_no_backward_part),
        cmocka_unit_test(test_jvp_refuses_what_has_none),
        cmocka_unit_test(test_fused_forms_equal_decomposed_forms),
        cmocka_unit_test(test_grad_exists_for_every_op),
        cmocka_unit_test(test_grad_third_order_of_a_chain),
        cmocka_unit_test(test_grad_of_every_instruction),
        cmocka_unit_test(test_grad_visits_only_paths_to_what_is_asked),
        cmocka_unit_test(test_grad_of_the_largest_goes_to_the_first),
        cmocka_unit_test(test_grad_emits_nothing_for_a_maximum_that_cancels),
        cmocka_unit_test(test_grad_of_an_unreached_input_is_zero),
        cmocka_unit_test(test_grad_refuses_what_has_none),
    };

#ifdef TEST_ON_CPU
    rig_backend = pk_backend_cpu;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
