/* Building, planning, running: what a caller of kernels/graph relies on. */
#include "tests/graph/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_exec_runs_a_linear_layer(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 2, 3));
    struct pk_val w = pk_param(r->g, "w", PK_F32, PK_SHAPE(4, 3)),
                  b = pk_param(r->g, "b", PK_F32, PK_SHAPE(4));
    int64_t n;
    double *y;

    (void)state;
    pk_output(r->g, "y", pk_linear(r->g, x, w, true, b));
    rig_plan(r);
    rig_run(r);
    y = rig_read(r, "y", &n);
    assert_int_equal(n, 16);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            double want = rig_get(r, "b", j);

            for (int k = 0; k < 3; k++)
                want += rig_get(r, "x", i * 3 + k) * rig_get(r, "w", j * 3 + k);
            assert_true(fabs(y[i * 4 + j] - want) < 1e-6);
        }
    free(y);
    rig_free(r);
}

static void test_exec_refuses_an_unbound_leaf(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2));

    (void)state;
    pk_output(r->g, "y", pk_scale(r->g, x, 2.0));
    assert_int_equal(pk_exec_new(r->g, r->api, r->backend, &r->exec, &r->why), PD_OK);
    assert_int_equal(pk_exec_run(r->exec, &r->why), PD_ERR_INVALID);
    assert_non_null(strstr(r->why.text, "'x'"));
    assert_int_equal(pk_exec_bind(r->exec, "z", NULL, &r->why), PD_ERR_NOT_FOUND);
    assert_int_equal(pk_exec_bind(r->exec, "x", (char *)0x1001, &r->why), PD_ERR_INVALID);
    rig_free(r);
}

static bool supports_no_matmul(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    return call->op != PK_OP_MATMUL;
}

static size_t much_workspace(struct pk_backend *b, const struct pk_call *call)
{
    (void)b;
    return call->op == PK_OP_MATMUL ? 100000 : 0;
}

static void test_exec_refuses_what_the_back_end_cannot_run(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_backend_api api = *r->api;
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 3));
    struct pk_exec *e = NULL;

    (void)state;
    pk_graph_scope(r->g, "head");
    pk_output(r->g, "y", pk_matmul(r->g, x, pk_transpose(r->g, x)));
    api.supports = supports_no_matmul;
    assert_int_equal(pk_exec_new(r->g, &api, r->backend, &e, &r->why), PD_ERR_UNSUPPORTED);
    assert_string_equal(r->why.text,
                        "head: back end 'reference' cannot run matmul of f32 (2, 3), f32 (3, 2)");
    assert_int_equal(pk_exec_new(r->g, &api, NULL, &e, &r->why),
                     PD_ERR_UNSUPPORTED); /* also without a device */
    api.abi = PK_BACKEND_ABI + 1;
    assert_int_equal(pk_exec_new(r->g, &api, r->backend, &e, &r->why), PD_ERR_VERSION);
    assert_int_equal(pk_exec_new(r->g, NULL, r->backend, &e, &r->why), PD_ERR_INVALID);
    assert_null(e);
    rig_free(r);
}

static void test_exec_forecast_counts_bytes_but_does_not_run(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_backend_api api = *r->api;
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(100, 30));
    struct pk_val w = pk_param(r->g, "w", PK_F32, PK_SHAPE(30, 10));
    struct pk_plan_report report;
    float y[1000];

    (void)state;
    pk_state(r->g, "ema", PK_F32, PK_SHAPE(30, 10), PK_CAT_EMA);
    pk_output(r->g, "y", pk_matmul(r->g, x, w));
    api.workspace_bytes = much_workspace;
    assert_int_equal(pk_exec_new(r->g, &api, NULL, &r->exec, &r->why), PD_OK);
    pk_exec_report(r->exec, &report);
    assert_int_equal(report.bytes[PK_CAT_INPUTS], 12000);
    assert_int_equal(report.bytes[PK_CAT_WEIGHTS], 1200);
    assert_int_equal(report.bytes[PK_CAT_EMA], 1200);
    assert_int_equal(report.bytes[PK_CAT_WORKSPACE], 100096); /* rounded to 256 */
    assert_int_equal(report.bytes[PK_CAT_ACTIVATIONS], 4096);
    assert_int_equal(report.arena_bytes, 104192);
    assert_int_equal(report.nodes, 1);
    assert_int_equal(pk_exec_run(r->exec, &r->why), PD_ERR_CONFLICT);
    assert_null(pk_exec_output(r->exec, "y", NULL));
    assert_int_equal(pk_exec_read(r->exec, "y", y, sizeof y, &r->why), PD_ERR_CONFLICT);
    rig_free(r);
}

static void test_exec_reads_outputs_by_name(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(2, 3));
    struct pk_shape shape;
    float y[6];

    (void)state;
    pk_output(r->g, "x2", pk_transpose(r->g, x)); /* a view: comes out dense */
    pk_output(r->g, "leaf", x);
    rig_plan(r);
    rig_run(r);
    assert_int_equal(pk_exec_read(r->exec, "x2", y, sizeof y, &r->why), PD_OK);
    for (int i = 0; i < 6; i++)
        assert_true(y[i] == (float)rig_get(r, "x", i % 2 * 3 + i / 2));
    assert_non_null(pk_exec_output(r->exec, "x2", &shape));
    assert_int_equal(shape.dim[0], 3);
    assert_ptr_equal(pk_exec_output(r->exec, "leaf", NULL), rig_leaf(r, "x"));
    assert_null(pk_exec_output(r->exec, "z", NULL));
    assert_int_equal(pk_exec_read(r->exec, "z", y, sizeof y, &r->why), PD_ERR_NOT_FOUND);
    assert_int_equal(pk_exec_read(r->exec, "x2", y, 4, &r->why), PD_ERR_INVALID);
    rig_free(r);
}

static void test_exec_may_be_bound_again(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F32, PK_SHAPE(1));
    float *other;

    (void)state;
    pk_output(r->g, "y", pk_scale(r->g, x, 2.0));
    rig_plan(r);
    other = r->api->alloc(r->backend, 4);
    *other = 21.0f;
    rig_run(r);
    assert_int_equal(pk_exec_bind(r->exec, "x", other, &r->why), PD_OK);
    rig_run(r);
    assert_true(rig_scalar(r, "y") == 42.0);
    r->api->free(r->backend, other);
    rig_free(r);
}

static void test_exec_outlives_its_graph(void **state)
{
    struct rig *r = rig_new(false);

    (void)state;
    pk_output(r->g, "y", pk_scale(r->g, pk_input(r->g, "x", PK_F64, PK_SHAPE(1)), 2.0));
    rig_plan(r);
    r->g = pk_graph_free(r->g);
    rig_run(r);
    rig_scalar(r, "y");
    rig_free(r);
}

static void collect(void *user, const char *node, const struct pk_view *out, int n)
{
    char *text = user;

    assert_int_equal(n, 1);
    assert_true(out[0].shape.dim[0] == 3 && ((const double *)out[0].data)[0] != 0.0);
    strncat(text, node, 200);
    strcat(text, " ");
}

static void test_exec_traces_every_node(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_param(r->g, "x", PK_F64, PK_SHAPE(3, 3));
    char text[1000] = "";

    (void)state;
    pk_graph_scope(r->g, "a");
    x = pk_softmax(r->g, x);
    pk_graph_scope(r->g, "b");
    pk_output(r->g, "y", pk_matmul(r->g, x, x));
    rig_plan(r);
    pk_exec_trace(r->exec, collect, text);
    rig_run(r);
    assert_string_equal(text, "a/softmax#2 b/matmul#3 ");
    pk_exec_trace(r->exec, NULL, NULL);
    rig_run(r);
    assert_string_equal(text, "a/softmax#2 b/matmul#3 ");
    rig_free(r);
}

static void test_exec_handles_empty_and_scalar_tensors(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val x = pk_input(r->g, "x", PK_F64, PK_SHAPE(0, 3)),
                  s = pk_input(r->g, "s", PK_F64, (struct pk_shape){0});
    struct pk_val w = pk_param(r->g, "w", PK_F64, PK_SHAPE(3, 2)), d;

    (void)state;
    x = pk_mul(r->g, pk_matmul(r->g, x, w), s);
    pk_output(r->g, "y", pk_sum(r->g, x, 3, false));
    pk_grad(r->g, pk_sum(r->g, x, 3, false), PK_NONE, &w, 1, &d);
    pk_output(r->g, "d", pk_sum(r->g, d, 3, false));
    rig_plan(r);
    rig_run(r);
    assert_true(rig_scalar(r, "y") == 0.0);
    assert_true(rig_scalar(r, "d") == 0.0);
    rig_free(r);
}

static void test_exec_stops_at_a_failing_node(void **state)
{
    struct rig *r = rig_new(false);
    struct pk_val table = pk_param(r->g, "t", PK_F32, PK_SHAPE(3, 2)),
                  i = pk_input(r->g, "i", PK_I32, PK_SHAPE(1));

    (void)state;
    pk_output(r->g, "y", pk_gather(r->g, table, i));
    rig_plan(r);
    rig_put(r, "i", 0, 3);
    assert_int_equal(pk_exec_run(r->exec, &r->why), PD_ERR_INVALID);
    assert_non_null(strstr(r->why.text, "3"));
    rig_put(r, "i", 0, 2);
    rig_run(r);
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec_runs_a_linear_layer),
        cmocka_unit_test(test_exec_refuses_an_unbound_leaf),
        cmocka_unit_test(test_exec_refuses_what_the_back_end_cannot_run),
        cmocka_unit_test(test_exec_forecast_counts_bytes_but_does_not_run),
        cmocka_unit_test(test_exec_reads_outputs_by_name),
        cmocka_unit_test(test_exec_may_be_bound_again),
        cmocka_unit_test(test_exec_outlives_its_graph),
        cmocka_unit_test(test_exec_traces_every_node),
        cmocka_unit_test(test_exec_handles_empty_and_scalar_tensors),
        cmocka_unit_test(test_exec_stops_at_a_failing_node),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
