/* What becomes part of a product: gradients of a perceptron stay those of finite differences, whatever the
 * passes make of it, and the calls are those that were meant. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The calls of one plan, by what their products do. */
static struct {
    int products, keeps, slopes, sums[4], sum, expr;
} seen;

static bool (*inner_supports)(struct pk_backend *b, const struct pk_call *c);

static bool look(struct pk_backend *b, const struct pk_call *c)
{
    if (c->op == PK_OP_MATMUL) {
        seen.products++;
        seen.keeps += c->attr->matmul.keeps;
        seen.slopes += c->attr->matmul.slope;
        seen.sums[c->attr->matmul.sums]++;
    }
    seen.sum +=
        c->op == PK_OP_SUM && c->in[0].shape.rank > 1 && c->out[0].shape.dim[c->out[0].shape.rank - 1] > 1;
    seen.expr += c->op == PK_OP_EXPR;
    return inner_supports(b, c);
}

struct shape {
    int64_t lead, tokens, width, hidden;
    bool transposed, exact, bias;
};

static const char *const leaves[] = {"w1", "b1", "w2", "b2", "x"};

/* f = the sum of squares of a perceptron of two layers, and its gradients. */
static struct rig *perceptron(const struct shape *s, struct pk_backend_api *api)
{
    struct rig *r = rig_new(false);
    struct pk_graph *g = r->g;
    struct pk_val x = pk_input(
        g, "x", PK_F64, s->lead ? PK_SHAPE(s->lead, s->tokens, s->width) : PK_SHAPE(s->tokens, s->width));
    struct pk_val w1 = pk_param(
        g, "w1", PK_F64, s->transposed ? PK_SHAPE(s->hidden, s->width) : PK_SHAPE(s->width, s->hidden));
    struct pk_val w2 = pk_param(
        g, "w2", PK_F64, s->transposed ? PK_SHAPE(s->width, s->hidden) : PK_SHAPE(s->hidden, s->width));
    struct pk_val b1 = s->bias ? pk_param(g, "b1", PK_F64, PK_SHAPE(s->hidden)) : PK_NONE,
                  b2 = s->bias ? pk_param(g, "b2", PK_F64, PK_SHAPE(s->width)) : PK_NONE;
    struct pk_val h = pk_gelu(g, pk_linear(g, x, w1, s->transposed, b1), !s->exact);
    struct pk_val y = pk_linear(g, h, w2, s->transposed, b2), f = pk_sumsq(g, &y, 1);
    struct pk_val wrt[5] = {w1, b1, w2, b2, x}, grad[5];

    if (!s->bias)
        wrt[1] = wrt[3] = x;
    pk_output(g, "f", f);
    pk_grad(g, f, PK_NONE, wrt, 5, grad);
    for (int i = 0; i < 5; i++)
        if (s->bias || (i != 1 && i != 3)) {
            char name[8] = "d.";

            strcat(name, leaves[i]);
            pk_output(g, name, grad[i]);
        }
    *api = *r->api;
    inner_supports = api->supports;
    api->supports = look;
    r->api = api;
    memset(&seen, 0, sizeof seen);
    rig_plan(r);
    return r;
}

static void check(const struct shape *s)
{
    struct pk_backend_api api;
    struct rig *r = perceptron(s, &api);

    for (int i = 0; i < 5; i++)
        if (s->bias || (i != 1 && i != 3))
            rig_check_gradient(r, leaves[i], 1e-7);
    rig_free(r);
}

static void test_epilogues_gradients_are_those_of_differences(void **state)
{
    (void)state;
    for (int form = 0; form < 16; form++) {
        const struct shape s = {.lead = form & 1 ? 2 : 0,
                                .tokens = 3,
                                .width = 4,
                                .hidden = 5,
                                .transposed = form & 2,
                                .exact = form & 4,
                                .bias = !(form & 8)};

        check(&s);
    }
}

static void test_epilogues_are_found(void **state)
{
    struct pk_backend_api api;

    (void)state;
    for (int form = 0; form < 4; form++) {
        const struct shape s = {.lead = 2,
                                .tokens = 3,
                                .width = 4,
                                .hidden = 5,
                                .bias = true,
                                .transposed = form & 1,
                                .exact = form & 2};

        rig_free(perceptron(&s, &api));
        /* forward two; backward: the second layer's input and weight, the first one's */
        assert_true(seen.keeps > 0 && seen.slopes > 0);
        assert_int_equal(seen.sum, 0);
        assert_true(seen.sums[PK_SUMS_OUT] > 0); /* b1, by the product with the slope */
        assert_true(seen.sums[s.transposed ? PK_SUMS_A : PK_SUMS_B] > 0); /* b2, beside the gradient of w2 */
    }
}

/* In a mixed plan sums stay f32, and so stand beside products that end in f32. */
static bool look_mixed(struct pk_backend *b, const struct pk_call *c)
{
    if (c->op == PK_OP_MATMUL && c->attr->matmul.sums) {
        assert_int_equal(c->out[c->n_out - 1].dtype, PK_F32);
        assert_int_equal(c->out[0].dtype, PK_F32);
        assert_int_equal(c->in[0].dtype, PK_BF16);
    }
    if (c->op == PK_OP_MATMUL && c->attr->matmul.keeps)
        assert_int_equal(c->out[1].dtype, c->out[0].dtype);
    if (c->op == PK_OP_MATMUL && c->attr->matmul.slope)
        assert_int_equal(c->in[2].dtype, c->out[0].dtype);
    return look(b, c);
}

static void test_epilogues_of_mixed_plans(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_graph *g = r->g;
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(2, 6, 8)),
                  w1 = pk_param(g, "w1", PK_F32, PK_SHAPE(8, 16)),
                  b1 = pk_param(g, "b1", PK_F32, PK_SHAPE(16)),
                  w2 = pk_param(g, "w2", PK_F32, PK_SHAPE(16, 8)),
                  b2 = pk_param(g, "b2", PK_F32, PK_SHAPE(8));
    struct pk_val h = pk_gelu(g, pk_linear(g, x, w1, false, b1), true), y = pk_linear(g, h, w2, false, b2);
    struct pk_val wrt[4] = {w1, b1, w2, b2}, grad[4], f = pk_sumsq(g, &y, 1);
    struct pk_backend_api api = *r->api;
    struct pk_exec *e = NULL;

    (void)state;
    pk_grad(g, f, PK_NONE, wrt, 4, grad);
    for (int i = 0; i < 4; i++)
        pk_output(g, leaves[i], grad[i]);
    pk_graph_precision(g, PK_PRECISION_MIXED);
    memset(&seen, 0, sizeof seen);
    inner_supports = api.supports;
    api.supports = look_mixed;
    if (pk_exec_new(g, &api, NULL, &e, &r->why) != PD_OK)
        fail_msg("%s", r->why.text);
    assert_true(seen.keeps > 0 && seen.slopes > 0);
    assert_int_equal(seen.sums[PK_SUMS_OUT], 0);
    assert_true(seen.sums[PK_SUMS_B] >= 2);
    assert_int_equal(seen.sum, 0);
    pk_exec_free(e);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epilogues_gradients_are_those_of_differences),
        cmocka_unit_test(test_epilogues_are_found),
        cmocka_unit_test(test_epilogues_of_mixed_plans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
