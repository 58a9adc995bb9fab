/* What the passes make one node of: it is one, and computes what the parts did. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/graph/build.h"
#include "tests/graph/net.h"

struct seen {
    int of[PK_OP_COUNT], backward_norm, residual, again, mean;
};

static void see(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    struct seen *s = user;

    (void)scope;
    s->of[call->op]++;
    s->backward_norm += call->op == PK_OP_NORM && backward;
    s->residual += call->op == PK_OP_NORM_BWD && call->attr->norm.has_residual;
    s->again += call->op == PK_OP_NORM_BWD && call->attr->norm.again;
    s->mean += call->op == PK_OP_CROSS_ENTROPY_GRAD && call->attr->cross_entropy.mean;
}

static struct seen seen_of(const struct pk_exec *e)
{
    struct seen s;

    memset(&s, 0, sizeof s);
    pk_exec_each(e, see, &s);
    return s;
}

/* ---- loss ---- */

enum from { FROM_SUM, FROM_MEAN, FROM_INPUT, FROM_TWO, FROM_SQUARE };

/* Logits of x w against targets, and w's gradient of what `from` says. */
static struct rig *loss_rig(enum from from, double seed)
{
    struct rig *r = rig_new(false);
    struct pk_val w = pk_param(r->g, "w", PK_F64, PK_SHAPE(3, 9));
    struct pk_val logits = pk_matmul(r->g, pk_input(r->g, "x", PK_F64, PK_SHAPE(6, 3)), w), grad, y,
                  out = PK_NONE;
    struct pk_loss loss =
        pk_cross_entropy(r->g, logits, pk_input(r->g, "target", PK_I32, PK_SHAPE(6)), 0.1, -1);

    y = from == FROM_MEAN     ? pk_div(r->g, loss.loss_sum, loss.count)
        : from == FROM_SQUARE ? pk_mul(r->g, loss.loss_sum, loss.loss_sum)
                              : loss.loss_sum;
    if (from == FROM_INPUT)
        out = pk_input(r->g, "seed", PK_F64, PK_SHAPE(1));
    pk_grad(r->g, y, out, &w, 1, &grad);
    if (from == FROM_TWO) { /* two derivatives of one loss */
        struct pk_val other;

        pk_grad(r->g, y, pk_fill(r->g, PK_F64, PK_SHAPE(1), 2), &w, 1, &other);
        grad = pk_add(r->g, grad, other);
    }
    pk_output(r->g, "y", y);
    pk_output(r->g, "grad", grad);
    pk_output(r->g, "count", loss.count);
    pk_output(r->g, "correct", loss.correct);
    rig_plan(r);
    rig_set(r, "target", (const double[]){3, 0, -1, 8, 5, -1});
    if (from == FROM_INPUT)
        rig_set(r, "seed", &seed);
    rig_run(r);
    return r;
}

static void near(struct rig *a, struct rig *b, const char *output)
{
    int64_t n, m;
    double *x = rig_read(a, output, &n), *y = rig_read(b, output, &m);

    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(x[i] - y[i]) <= 1e-13 * (1 + fabs(y[i]))))
            fail_msg("%s[%d]: %.17g, apart %.17g", output, (int)i, x[i], y[i]);
    free(x);
    free(y);
}

static void test_loss_and_derivative_become_one(void **state)
{
    struct rig *sum = loss_rig(FROM_SUM, 0), *mean = loss_rig(FROM_MEAN, 0), *apart = loss_rig(FROM_INPUT, 1),
               *quarter = loss_rig(FROM_INPUT, 0.25);
    struct seen s = seen_of(sum->exec), m = seen_of(mean->exec), a = seen_of(apart->exec);

    (void)state;
    assert_int_equal(s.of[PK_OP_CROSS_ENTROPY_GRAD], 1);
    assert_int_equal(s.of[PK_OP_CROSS_ENTROPY] + s.of[PK_OP_CROSS_ENTROPY_BWD], 0);
    assert_int_equal(s.mean, 0);
    assert_int_equal(m.of[PK_OP_CROSS_ENTROPY_GRAD], 1);
    assert_int_equal(m.of[PK_OP_CROSS_ENTROPY] + m.of[PK_OP_CROSS_ENTROPY_BWD], 0);
    assert_int_equal(m.mean, 1);
    assert_int_equal(a.of[PK_OP_CROSS_ENTROPY_GRAD], 0); /* nobody knows beforehand */
    assert_int_equal(a.of[PK_OP_CROSS_ENTROPY], 1);
    near(sum, apart, "y");
    near(sum, apart, "grad");
    near(sum, apart, "count");
    near(sum, apart, "correct");
    near(mean, quarter, "grad"); /* four targets count */
    near(mean, quarter, "correct");
    assert_true(fabs(4 * rig_scalar(mean, "y") - rig_scalar(apart, "y")) < 1e-12);
    rig_free(sum);
    rig_free(mean);
    rig_free(apart);
    rig_free(quarter);
}

static void test_loss_stays_apart_where_its_derivative_waits_for_it(void **state)
{
    struct rig *square = loss_rig(FROM_SQUARE, 0), *apart = loss_rig(FROM_INPUT, 0),
               *two = loss_rig(FROM_TWO, 0), *three = loss_rig(FROM_INPUT, 3);
    double by = 2 * rig_scalar(apart, "y");

    (void)state;
    assert_int_equal(seen_of(square->exec).of[PK_OP_CROSS_ENTROPY_BWD], 1);
    assert_int_equal(seen_of(two->exec).of[PK_OP_CROSS_ENTROPY_BWD], 2);
    near(two, three, "grad");
    rig_set(apart, "seed", &by); /* d y^2 = 2 y dy */
    rig_run(apart);
    near(square, apart, "grad");
    rig_free(square);
    rig_free(apart);
    rig_free(two);
    rig_free(three);
}

/* The op by itself: values, derivatives of its derivative, width. */
static void test_loss_gradient_differentiates(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        struct rig *r = rig_new(false);
        struct pk_val in[3] = {pk_param(r->g, "x", PK_F64, PK_SHAPE(5, 4)),
                               pk_input(r->g, "target", PK_I32, PK_SHAPE(5)),
                               pk_param(r->g, "dloss", PK_F64, PK_SHAPE(1))};
        struct pk_attr attr = pk_attr_zero();
        struct pk_val out[PK_MAX_OUT], f, wrt[2] = {in[0], in[2]}, d[2];
        int64_t width = form & 2 ? 7 : 4;

        attr.cross_entropy.smoothing = 0.1;
        attr.cross_entropy.ignore = -1;
        attr.cross_entropy.mean = form & 1;
        attr.cross_entropy.width = form & 2 ? width : 0;
        pk_emit(r->g, PK_OP_CROSS_ENTROPY_GRAD, &attr, in, 3, out);
        assert_int_equal(pk_shape_of(r->g, out[0]).dim[1], width);
        f = pk_sum(r->g, pk_mul(r->g, out[0], pk_input(r->g, "weight", PK_F64, PK_SHAPE(5, width))), 3,
                   false);
        f = pk_add(r->g, f, pk_scale(r->g, pk_reshape(r->g, out[1], PK_SHAPE()), 0.3));
        pk_grad(r->g, f, PK_NONE, wrt, 2, d);
        pk_output(r->g, "f", f);
        pk_output(r->g, "d.x", d[0]);
        pk_output(r->g, "d.dloss", d[1]);
        rig_plan(r);
        rig_set(r, "target", (const double[]){3, -1, 0, 0, 2});
        rig_check_gradient(r, "x", 1e-7);
        rig_check_gradient(r, "dloss", 1e-7);
        rig_free(r);
    }
}

static void test_loss_gradient_refuses(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val in[3] = {pk_input(g, "x", PK_F32, PK_SHAPE(5, 4)), pk_input(g, "t", PK_I32, PK_SHAPE(5)),
                           pk_input(g, "d", PK_F32, PK_SHAPE(1))};
    struct pk_attr attr = pk_attr_zero();
    struct pd_why why;

    (void)state;
    attr.cross_entropy.width = 3;
    pk_emit(g, PK_OP_CROSS_ENTROPY_GRAD, &attr, in, 3, NULL);
    assert_int_equal(pk_graph_check(g, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "width"));
    pk_graph_free(g);
}

/* ---- norms ---- */

/* x + norm(x) w, and the gradient of it. late: what flows past the norm is known only after what flows
 * through. */
static struct rig *residual_rig(enum pk_norm_kind kind)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_param(r->g, "x", PK_F64, PK_SHAPE(4, 6)),
                  gamma = pk_param(r->g, "gamma", PK_F64, PK_SHAPE(6));
    struct pk_val beta = kind == PK_NORM_LAYER ? pk_param(r->g, "beta", PK_F64, PK_SHAPE(6)) : PK_NONE;
    struct pk_val wrt[3] = {x, gamma, beta}, d[3];
    struct pk_val h = pk_norm(r->g, x, gamma, beta, (struct pk_norm_spec){kind, PK_EPS_MEAN, 1e-2}), y, f;

    y = pk_add(r->g, x, pk_unary(r->g, PK_EX_TANH, h));
    f = pk_sum(r->g, pk_mul(r->g, y, pk_input(r->g, "weight", PK_F64, PK_SHAPE(4, 6))), 3, false);
    pk_grad(r->g, f, PK_NONE, wrt, kind == PK_NORM_LAYER ? 3 : 2, d);
    pk_output(r->g, "f", f);
    pk_output(r->g, "d.x", d[0]);
    pk_output(r->g, "d.gamma", d[1]);
    if (kind == PK_NORM_LAYER)
        pk_output(r->g, "d.beta", d[2]);
    rig_plan(r);
    return r;
}

static void test_what_passes_a_norm_is_added_by_its_derivative(void **state)
{
    (void)state;
    for (int kind = PK_NORM_LAYER; kind <= PK_NORM_RMS; kind++) {
        struct rig *r = residual_rig((enum pk_norm_kind)kind);

        assert_int_equal(seen_of(r->exec).residual, 1);
        rig_check_gradient(r, "x", 1e-6);
        rig_check_gradient(r, "gamma", 1e-6);
        if (kind == PK_NORM_LAYER)
            rig_check_gradient(r, "beta", 1e-6);
        rig_free(r);
    }
}

/* A whole training graph: every norm but the last has a residual beside it, none is made twice, and what a
 * step gives is what it gives when nothing is read outside its lifetime. */
static void test_a_transformer_has_its_norms_joined(void **state)
{
    const struct net n = {.batch = 2,
                          .tokens = 64,
                          .width = 32,
                          .heads = 2,
                          .depth = 3,
                          .vocabulary = 50,
                          .dtype = PK_F32,
                          .train = true,
                          .clip = true,
                          .attention = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.1, .causal = true}};

    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        struct pk_graph *g = pk_graph_new(false);
        struct pk_exec *e = NULL;
        struct pd_why why = {""};
        struct seen s;

        net_build(g, &n);
        pk_graph_precision(g, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
        if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
            fail_msg("%s", why.text);
        s = seen_of(e);
        assert_int_equal(s.of[PK_OP_NORM_BWD], 7);
        assert_int_equal(s.residual, 6);
        assert_int_equal(s.of[PK_OP_NORM], 7 + s.backward_norm);
        assert_int_equal(s.backward_norm, 0);
        assert_true(s.again > 0);
        assert_int_equal(s.of[PK_OP_CROSS_ENTROPY_GRAD], 1);
        assert_int_equal(s.of[PK_OP_CROSS_ENTROPY] + s.of[PK_OP_CROSS_ENTROPY_BWD], 0);
        pk_exec_free(e);
        pk_graph_free(g);
    }
}

/* A graph that never recomputes: no norm is computed twice, and no elementwise node of the forward part has a copy in the
 * backward part; what is kept takes memory. */
static void test_nothing_is_computed_twice_where_that_is_forbidden(void **state)
{
    const struct net n = {.batch = 4,
                          .tokens = 64,
                          .width = 32,
                          .heads = 2,
                          .depth = 3,
                          .vocabulary = 50,
                          .dtype = PK_F32,
                          .train = true,
                          .attention = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.1, .causal = true}};
    static const enum pk_recompute ways[2] = {PK_RECOMPUTE_SMALLER, PK_RECOMPUTE_NEVER};

    (void)state;
    for (int mixed = 0; mixed < 2; mixed++) {
        struct pk_plan_report report[2];
        struct seen s[2];

        for (int way = 0; way < 2; way++) {
            struct pk_graph *g = pk_graph_new(false);
            struct pk_exec *e = NULL;
            struct pd_why why = {""};

            net_build(g, &n);
            pk_graph_precision(g, mixed ? PK_PRECISION_MIXED : PK_PRECISION_FULL);
            pk_graph_recompute(g, ways[way]);
            if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
                fail_msg("%s", why.text);
            s[way] = seen_of(e);
            pk_exec_report(e, &report[way]);
            pk_exec_free(e);
            pk_graph_free(g);
        }
        assert_true(s[0].again > 0);
        assert_int_equal(s[1].again, 0);
        assert_int_equal(s[1].backward_norm, 0);
        assert_int_equal(s[1].of[PK_OP_NORM], 7);
        assert_true(s[1].of[PK_OP_EXPR] < s[0].of[PK_OP_EXPR]);
        assert_true(report[1].nodes < report[0].nodes);
        assert_true(report[1].arena_bytes > report[0].arena_bytes);
    }
}

static void see_columns(void *user, const char *scope, bool backward, const struct pk_call *call)
{
    int *wide = user;

    (void)scope;
    (void)backward;
    if (call->op == PK_OP_CROSS_ENTROPY_GRAD)
        wide[0] = (int)call->in[0].shape.dim[1] * 10000 + (int)call->out[0].shape.dim[1];
    for (int32_t k = 0; call->op == PK_OP_MATMUL && k < 2; k++)
        for (int32_t i = 0; i < call->in[k].shape.rank; i++)
            wide[1] += call->in[k].shape.dim[i] == 1088;
    for (int32_t i = 0; call->op == PK_OP_MATMUL && i < call->in[0].shape.rank; i++)
        wide[2] += call->in[0].shape.dim[i] == 1030;
}

/* Logits of a mixed plan lie in rows of a multiple of 64; in f32, and where somebody else reads them, as they
 * are. */
static void test_logits_lie_aligned(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) { /* mixed; in f32; read by the caller; few */
        struct pk_graph *g = pk_graph_new(false);
        const int64_t v = form == 3 ? 1000 : 1030;
        struct pk_val w = pk_param(g, "w", PK_F32, PK_SHAPE(v, 32)),
                      x = pk_param(g, "x", PK_F32, PK_SHAPE(64, 32));
        struct pk_val b = pk_input(g, "b", PK_F32, PK_SHAPE(64, 32)), logits, wrt[2] = {w, x}, grad[2];
        struct pk_exec *e = NULL;
        struct pd_why why = {""};
        int wide[3] = {0};

        logits = pk_linear(g, pk_mul(g, x, b), w, true, PK_NONE);
        pk_grad(g, pk_cross_entropy(g, logits, pk_input(g, "t", PK_I32, PK_SHAPE(64)), 0, -1).loss_sum,
                PK_NONE, wrt, 2, grad);
        pk_output(g, "dw", grad[0]);
        pk_output(g, "dx", grad[1]);
        if (form == 2)
            pk_output(g, "logits", logits);
        pk_graph_precision(g, form == 1 ? PK_PRECISION_FULL : PK_PRECISION_MIXED);
        if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
            fail_msg("%s", why.text);
        pk_exec_each(e, see_columns, wide);
        assert_int_equal(wide[0], form == 0 ? 10301088 : form == 3 ? 10001000 : 10301030);
        assert_int_equal(wide[1], form == 0 ? 4 : 0); /* w' forward; dlogits and w; dlogits' */
        if (form == 0)
            assert_int_equal(wide[2], 0);
        pk_exec_free(e);
        pk_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_and_derivative_become_one),
        cmocka_unit_test(test_loss_stays_apart_where_its_derivative_waits_for_it),
        cmocka_unit_test(test_loss_gradient_differentiates),
        cmocka_unit_test(test_loss_gradient_refuses),
        cmocka_unit_test(test_what_passes_a_norm_is_added_by_its_derivative),
        cmocka_unit_test(test_logits_lie_aligned),
        cmocka_unit_test(test_a_transformer_has_its_norms_joined),
        cmocka_unit_test(test_nothing_is_computed_twice_where_that_is_forbidden),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
