/* The CPU back end by itself: vector functions over their whole range, denormals, bad indices, refusals, its
 * other matrix library. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"
#include "tests/lib/worst.h"

static const enum pk_dtype floats[2] = {PK_F32, PK_F64};

static void add_code(struct pk_expr *e, enum pk_ex op, int arg, double imm)
{
    e->code[e->count].op = (uint8_t)op;
    e->code[e->count].arg = (uint8_t)arg;
    e->code[e->count++].imm = imm;
}

static void apply(struct pk_backend *b, enum pk_ex op, struct pk_view *x, struct pk_view *y)
{
    struct pk_expr e = {0};
    struct pk_attr attr = {.expr = &e};
    struct pk_call c = {.op = PK_OP_EXPR, .attr = &attr, .n_in = 1, .n_out = 1, .in = x, .out = y};
    struct pd_why why;

    add_code(&e, PK_EX_IN, 0, 0);
    add_code(&e, op, 0, 0);
    assert_int_equal(pk_backend_cpu()->run(b, &c, 1, &why), PD_OK);
}

static void test_functions_within_ulps(void **state)
{
    enum { N = 400000 };
    static const struct {
        enum pk_ex op;
        double (*exact)(double);
        double lo, hi, ulps;
    } fns[] = {{PK_EX_EXP, exp, -87.3, 88.7, 2}, {PK_EX_TANH, tanh, -12, 12, 3},
               {PK_EX_ERF, erf, -5, 5, 2},       {PK_EX_LOG, log, 1e-44, 3e38, 1},
               {PK_EX_LOG, log, 0.5, 2, 1},      {PK_EX_SIN, sin, -30, 30, 1.5},
               {PK_EX_COS, cos, -30, 30, 1.5},   {PK_EX_SIN, sin, -1e6, 1e6, 1.5},
               {PK_EX_COS, cos, -1e6, 1e6, 1.5}, {PK_EX_SIN, sin, -1e9, 1e9, 1.5}};
    struct pk_view x = rig_random(PK_F32, PK_SHAPE(N), 0, 1), y = rig_random(PK_F32, PK_SHAPE(N), 0, 1);
    float *px = x.data, *py = y.data;

    (void)state;
    for (int l = 0; l < 3; l++) {
        struct pk_backend *b = rig_backend(rig_levels[l], NULL, 2);

        if (!b)
            continue;
        for (size_t f = 0; f < sizeof fns / sizeof *fns; f++) {
            double worst = 0;

            for (int i = 0; i < N; i++) /* even steps, and half of them towards zero over 60 octaves */
                px[i] = i % 2 ? (float)(fns[f].lo + (fns[f].hi - fns[f].lo) * i / N)
                              : (float)ldexp(fns[f].hi / 16, -(int)(60.0 * i / N)) *
                                    (i % 4 || fns[f].op == PK_EX_LOG ? 1 : -1);
            apply(b, fns[f].op, &x, &y);
            for (int i = 0; i < N; i++) {
                double want = fns[f].exact((double)px[i]), ulp;

                ulp = fabs((double)nextafterf((float)want, INFINITY) - (double)(float)want);
                worst = worse(worst, fabs((double)py[i] - want) / ulp);
            }
            if (!(worst <= fns[f].ulps))
                fail_msg("function %d at %s: %.2f units in the last place", (int)fns[f].op, rig_levels[l],
                         worst);
        }
        px[0] = INFINITY, px[1] = -INFINITY, px[2] = NAN, px[3] = 0, px[4] = 100, px[5] = -100;
        apply(b, PK_EX_EXP, &x, &y);
        assert_true(isinf(py[0]) && py[1] == 0 && isnan(py[2]) && py[3] == 1 && isinf(py[4]) && py[5] == 0);
        apply(b, PK_EX_LOG, &x, &y);
        assert_true(isinf(py[0]) && isnan(py[1]) && isnan(py[2]) && py[3] == -INFINITY && isnan(py[5]));
        apply(b, PK_EX_SIN, &x, &y);
        assert_true(isnan(py[0]) && isnan(py[1]) && isnan(py[2]) && py[3] == 0);
        apply(b, PK_EX_COS, &x, &y);
        assert_true(isnan(py[0]) && isnan(py[1]) && isnan(py[2]) && py[3] == 1);
        apply(b, PK_EX_TANH, &x, &y);
        assert_true(py[0] == 1 && py[1] == -1 && isnan(py[2]) && py[3] == 0 && py[4] == 1 && py[5] == -1);
        apply(b, PK_EX_ERF, &x, &y);
        assert_true(py[0] == 1 && py[1] == -1 && isnan(py[2]) && py[3] == 0 && py[4] == 1 && py[5] == -1);
        apply(b, PK_EX_FINITE, &x, &y);
        assert_true(py[0] == 0 && py[1] == 0 && py[2] == 0 && py[3] == 1 && py[4] == 1);
    }
}

static void test_denormals_are_zero_inside_and_whole_outside(void **state)
{
    struct pk_view x = rig_random(PK_F32, PK_SHAPE(40), 0, 1), y = rig_random(PK_F32, PK_SHAPE(40), 0, 1);
    struct pk_backend *other = rig_backend("avx2", NULL, 2);
    volatile float tiny = 1e-40f;

    (void)state;
    for (int i = 0; i < 40; i++)
        ((float *)x.data)[i] = tiny;
    if (other) /* a level that this processor or this build may lack */
        apply(other, PK_EX_NEG, &x, &y);
    apply(rig_backend(NULL, NULL, 2), PK_EX_SQRT, &x, &y);
#if defined __x86_64__
    for (int i = 0; i < 40; i++)
        assert_true(((float *)y.data)[i] == 0);
#endif
    assert_true(tiny * 0.5f != 0); /* the caller's own arithmetic is as it was */
}

static void test_bad_indices_are_errors(void **state)
{
    struct pk_backend *b = rig_backend(NULL, NULL, 2);
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_attr attr = {0};
    struct pk_view in[4], out[4];
    struct pk_call c = {.attr = &attr, .in = in, .out = out};
    struct pd_why why;

    (void)state;
    for (int bad = -1; bad <= 5; bad += 6) {
        in[0] = rig_random(PK_F32, PK_SHAPE(5, 3), 0, 1);
        in[1] = rig_values(PK_I32, PK_SHAPE(2), (double[]){0, bad});
        out[0] = rig_random(PK_F32, PK_SHAPE(2, 3), 0, 1);
        c.op = PK_OP_GATHER;
        c.n_in = 2;
        c.n_out = 1;
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
        assert_non_null(strstr(why.text, bad < 0 ? "-1" : "5"));
        in[0] = in[1];
        in[1] = rig_random(PK_F32, PK_SHAPE(2, 3), 0, 1);
        out[0] = rig_random(PK_F32, PK_SHAPE(5, 3), 0, 1);
        c.op = PK_OP_SCATTER_ADD;
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
        in[1] = in[0];
        in[0] = rig_random(PK_F32, PK_SHAPE(2, 5), 0, 1);
        for (int i = 0; i < 4; i++)
            out[i] = rig_random(PK_F32, i == 3 ? PK_SHAPE(2) : PK_SHAPE(1), 0, 1);
        attr.cross_entropy.ignore = -100;
        c.op = PK_OP_CROSS_ENTROPY;
        c.n_out = 4;
        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
        in[2] = rig_random(PK_F32, PK_SHAPE(2), 0, 1);
        in[3] = rig_random(PK_F32, PK_SHAPE(1), 0, 1);
        out[0] = rig_random(PK_F32, PK_SHAPE(2, 5), 0, 1);
        c.op = PK_OP_CROSS_ENTROPY_BWD;
        c.n_in = 4;
        c.n_out = 1;
        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
        for (int i = 1; i < 4; i++)
            out[i] = rig_random(PK_F32, PK_SHAPE(1), 0, 1);
        c.op = PK_OP_CROSS_ENTROPY_GRAD;
        in[2] = in[3];
        c.n_in = 3;
        c.n_out = 4;
        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
        c.n_out = 1;
        in[0] = rig_random(PK_F32, PK_SHAPE(1, 1, 5, 2), 0, 1);
        in[1] = rig_random(PK_F32, PK_SHAPE(1, 1, 1, 2), 0, 1);
        in[2] = rig_values(PK_I32, PK_SHAPE(1), (double[]){bad});
        out[0] = in[0];
        c.op = PK_OP_CACHE_APPEND;
        c.n_in = 3;
        assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID);
    }
    attr.reduce.axes = 1;
    in[0] = rig_random(PK_F32, PK_SHAPE(0, 2), 0, 1);
    out[0] = rig_random(PK_F32, PK_SHAPE(2), 0, 1);
    c.op = PK_OP_MAX;
    c.n_in = 1;
    assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INVALID); /* the maximum of nothing */
    c.op = PK_OP_SUM;
    assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
    assert_true(((float *)out[0].data)[1] == 0);
}

static void test_refusals(void **state)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_attr attr = {.norm = {.eps = 1}};
    struct pk_view in[2] = {rig_random(PK_F64, PK_SHAPE(2, 3), 0, 1), rig_random(PK_BF16, PK_SHAPE(3), 0, 1)},
                   out[2];
    struct pk_call c = {.op = PK_OP_NORM, .attr = &attr, .n_in = 2, .n_out = 2, .in = in, .out = out};
    struct pk_backend *b = NULL;
    struct pd_why why;

    (void)state;
    setenv("POLYD_CPU_LEVEL", "sse9", 1);
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "sse9"));
    setenv("POLYD_CPU_LEVEL", "", 1);
    setenv("POLYD_CPU_GEMM", "magic", 1);
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "magic"));
    setenv("POLYD_CPU_GEMM", "", 1);
    assert_int_equal(api->open(NULL, 1, 1, &b, &why), PD_ERR_INVALID);
    assert_int_equal(api->open(NULL, 0, 0, &b, &why), PD_ERR_INVALID);
    assert_null(b);
    assert_null(api->close(NULL));
    out[0] = rig_random(PK_BF16, PK_SHAPE(2, 3), 0, 1);
    out[1] = rig_random(PK_BF16, PK_SHAPE(2), 0, 1);
    b = rig_backend(NULL, NULL, 2);
    assert_false(api->supports(b, &c)); /* bf16 goes with f32 alone */
    in[0].dtype = in[1].dtype = out[0].dtype = out[1].dtype = PK_F32;
    assert_true(api->supports(b, &c));
    assert_true(api->supports(NULL, &c)); /* a plan without a device */
    assert_true(api->workspace_bytes(NULL, &c) > 0);
    assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_INTERNAL); /* no workspace was given */
    c.op = PK_OP_RESHAPE;
    assert_false(api->supports(b, &c));
    assert_int_equal(api->run(b, &c, 1, &why), PD_ERR_UNSUPPORTED);
}

/* Products by OpenBLAS where it is installed. */
static void test_openblas(void **state)
{
    struct pk_backend *blas = rig_backend(NULL, "openblas", 2), *ours = rig_backend(NULL, "own", 2);
    const struct pk_backend_api *api = pk_backend_cpu();

    (void)state;
    if (!blas) {
        print_message("OpenBLAS is not installed: skipped\n");
        skip();
    }
    for (int t = 0; t < 2; t++) {
        struct pk_view in[2] = {rig_random(floats[t], PK_SHAPE(70, 300), -1, 1),
                                rig_random(floats[t], PK_SHAPE(300, 90), -1, 1)};
        struct pk_view a = rig_random(floats[t], PK_SHAPE(70, 90), 0, 1),
                       b = rig_random(floats[t], PK_SHAPE(70, 90), 0, 1);
        struct pk_attr attr = {0};
        struct pk_call c = {.op = PK_OP_MATMUL, .attr = &attr, .n_in = 2, .n_out = 1, .in = in, .out = &a};
        struct pd_why why;

        c.workspace_bytes = api->workspace_bytes(ours, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(blas, &c, 1, &why), PD_OK);
        c.out = &b;
        assert_int_equal(api->run(ours, &c, 1, &why), PD_OK);
        for (int i = 0; i < 6300; i++)
            if (t)
                assert_true(fabs(((double *)a.data)[i] - ((double *)b.data)[i]) < 1e-12);
            else
                assert_true(fabsf(((float *)a.data)[i] - ((float *)b.data)[i]) < 1e-4f);
    }
}

/* The average of a parameter that does not change, at a decay that f32 rounds. */
static void test_average_of_a_constant_is_that_constant(void **state)
{
    enum { N = 19, STEPS = 5000 };
    const struct pk_attr attr = {.optim = {.ema = 0.9999999, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8}};

    (void)state;
    for (int l = 0; l < 3; l++)
        for (int d = 0; d < 2; d++) {
            const double hyper[4] = {0, 1, 1, 1}, gate[2] = {1, 1};
            struct pk_backend *b = rig_backend(rig_levels[l], NULL, 1);
            struct pk_view p = rig_random(floats[d], PK_SHAPE(N), 0.5, 2),
                           g = rig_random(floats[d], PK_SHAPE(N), -1, 1),
                           m = rig_random(floats[d], PK_SHAPE(N), 0, 0),
                           v = rig_random(floats[d], PK_SHAPE(N), 0, 0),
                           average = rig_random(floats[d], PK_SHAPE(N), 0, 0),
                           blended = rig_random(floats[d], PK_SHAPE(N), 0, 0);
            struct pk_view in[] = {p,
                                   g,
                                   m,
                                   v,
                                   rig_values(floats[d], PK_SHAPE(4), hyper),
                                   rig_values(floats[d], PK_SHAPE(2), gate),
                                   average},
                           out[] = {p, m, v, average}, from[] = {blended, p, in[5]};
            const struct pk_call calls[] = {
                {.op = PK_OP_ADAMW, .attr = &attr, .n_in = 7, .n_out = 4, .in = in, .out = out},
                {.op = PK_OP_BLEND, .attr = &attr, .n_in = 3, .n_out = 1, .in = from, .out = from}};
            const size_t bytes = N * pk_dtype_size(floats[d]);

            if (!b)
                continue;
            memcpy(average.data, p.data, bytes);
            memcpy(blended.data, p.data, bytes);
            for (int i = 0; i < STEPS; i++)
                assert_int_equal(pk_backend_cpu()->run(b, calls, 2, NULL), PD_OK);
            for (int i = 0; i < N; i++) {
                const double x = rig_get(p.data, floats[d], i), one = rig_get(average.data, floats[d], i),
                             two = rig_get(blended.data, floats[d], i);

                if (!(fabs(one - x) <= 1e-6 * x && fabs(two - x) <= 1e-6 * x))
                    fail_msg("%s: averages %.9g and %.9g of the constant %.9g", rig_levels[l], one, two, x);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_functions_within_ulps, rig_reset),
        cmocka_unit_test_teardown(test_denormals_are_zero_inside_and_whole_outside, rig_reset),
        cmocka_unit_test_teardown(test_bad_indices_are_errors, rig_reset),
        cmocka_unit_test_teardown(test_refusals, rig_reset),
        cmocka_unit_test_teardown(test_openblas, rig_reset),
        cmocka_unit_test_teardown(test_average_of_a_constant_is_that_constant, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
