/* tests/graph/test_program.c: derivatives of elementwise programs on breaks and in pieces that are not taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "kernels/graph/op/program.h"

/* The program at x: constants are folded on loading. */
static double at(const struct pk_expr *p, const double *x, int n)
{
    struct pk_dag d;
    int32_t in[PK_EXPR_INPUTS], r;

    pk_dag_init(&d);
    for (int k = 0; k < n; k++)
        in[k] = pk_dag_const(&d, x[k]);
    r = pk_dag_load(&d, p, in);
    assert_int_equal(d.node[r].op, PK_EX_CONST);
    return d.node[r].imm;
}

/* d p / dx at x, of order 1 or 2. */
static double slope(struct pk_expr p, int order, double x)
{
    for (; order > 0; order--) {
        struct pk_dag d;
        struct pk_expr next;
        uint8_t used[PK_EXPR_INPUTS];
        int32_t in, root, grad;
        int n;

        pk_dag_init(&d);
        in = pk_dag_in(&d, 0);
        root = pk_dag_load(&d, &p, &in);
        pk_dag_diff(&d, root, pk_dag_const(&d, 1.0), &in, 1, &grad);
        if (grad < 0)
            return 0;
        assert_true(pk_dag_store(&d, grad, &next, used, &n));
        p = next;
    }
    return at(&p, &x, 1);
}

static void test_program_piece_that_is_not_taken_has_no_slope(void **state)
{
    /* sqrt(max(x, 0)); where(x > 0, sqrt(x), 0); where(x > 0, log(x), 2); |min(-x, 0)| */
    static const struct pk_expr programs[] = {
        {4, {{PK_EX_IN, 0, 0}, {PK_EX_CONST, 0, 0}, {PK_EX_MAX, 0, 0}, {PK_EX_SQRT, 0, 0}}},
        {7,
         {{PK_EX_IN, 0, 0},
          {PK_EX_SQRT, 0, 0},
          {PK_EX_CONST, 0, 0},
          {PK_EX_IN, 0, 0},
          {PK_EX_CONST, 0, 0},
          {PK_EX_GT, 0, 0},
          {PK_EX_SELECT, 0, 0}}},
        {7,
         {{PK_EX_IN, 0, 0},
          {PK_EX_LOG, 0, 0},
          {PK_EX_CONST, 0, 2},
          {PK_EX_IN, 0, 0},
          {PK_EX_CONST, 0, 0},
          {PK_EX_GT, 0, 0},
          {PK_EX_SELECT, 0, 0}}},
        {5, {{PK_EX_IN, 0, 0}, {PK_EX_NEG, 0, 0}, {PK_EX_CONST, 0, 0}, {PK_EX_MIN, 0, 0}, {PK_EX_ABS, 0, 0}}},
    };

    (void)state;
    for (size_t k = 0; k < 3; k++)
        for (int order = 1; order <= 2; order++)
            for (double x = -1; x <= 0; x += 1)
                assert_true(slope(programs[k], order, x) == 0);
    assert_true(slope(programs[0], 1, 4) == 0.25);
    assert_true(slope(programs[1], 1, 4) == 0.25);
    assert_true(slope(programs[1], 2, 4) == -0.03125);
    assert_true(slope(programs[2], 1, 4) == 0.25);
    assert_true(slope(programs[3], 1, 4) == 1); /* |min(-x, 0)| = x for x > 0 */
    assert_true(slope(programs[3], 1, -4) == 0);
    assert_true(slope(programs[3], 1, 0) == 0);
}

static void test_program_root_of_an_absolute_value_is_flat_at_zero(void **state)
{
    static const struct pk_expr p = {3, {{PK_EX_IN, 0, 0}, {PK_EX_ABS, 0, 0}, {PK_EX_SQRT, 0, 0}}};

    (void)state;
    assert_true(slope(p, 1, 0) == 0);
    assert_true(slope(p, 1, 4) == 0.25);
    assert_true(slope(p, 1, -4) == -0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_program_piece_that_is_not_taken_has_no_slope),
        cmocka_unit_test(test_program_root_of_an_absolute_value_is_flat_at_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
