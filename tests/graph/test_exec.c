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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec_runs_a_linear_layer),
        cmocka_unit_test(test_exec_refuses_an_unbound_leaf),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
