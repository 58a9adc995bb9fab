/* Products against the reference: every layout, few rows and many, bias, residual, activation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"

static const enum pk_dtype floats[2] = {PK_F32, PK_F64};

static void matmul_by(int64_t m, int64_t n, int64_t k, int form, enum pk_dtype dtype, enum pk_dtype weights,
                      bool bias, int residual, enum pk_act act)
{
    struct rig_case c = {.op = PK_OP_MATMUL, .name = "matmul", .n_out = 1, .floor = 1e-6};
    char name[128];
    int next = 2;

    snprintf(name, sizeof name, "matmul %lld x %lld x %lld, form %d, bias %d, residual %d, act %d",
             (long long)m, (long long)n, (long long)k, form, bias, residual, (int)act);
    c.name = name;
    c.in[0] = form & 1 ? rig_transposed(rig_random(dtype, PK_SHAPE(k, m), -1, 1))
                       : rig_random(dtype, PK_SHAPE(m, k), -1, 1);
    c.in[1] = form & 2 ? rig_transposed(rig_random(weights, PK_SHAPE(n, k), -1, 1))
                       : rig_random(weights, PK_SHAPE(k, n), -1, 1);
    if (form & 4) {
        c.in[0] = rig_strided(&c.in[0]);
        c.in[1] = rig_strided(&c.in[1]);
    }
    if (bias) {
        c.in[next] = rig_random(dtype, PK_SHAPE(n), -1, 1);
        if (form & 4)
            c.in[next] = rig_strided(&c.in[next]);
        next++;
    }
    if (residual) {
        c.in[next] = rig_random(dtype, PK_SHAPE(m, n), -1, 1);
        if (residual == 2)
            c.share[0] = next + 1;
        if (residual == 1 && form & 4)
            c.in[next] = rig_strided(&c.in[next]);
        next++;
    }
    c.n_in = next;
    c.attr.matmul.has_bias = bias;
    c.attr.matmul.has_residual = residual != 0;
    c.attr.matmul.act = act;
    c.out[0] = PK_SHAPE(m, n);
    c.out_dtype[0] = dtype;
    c.tolerance = 5e-6;
    rig_check(&c);
}

static void matmul(int64_t m, int64_t n, int64_t k, int form, enum pk_dtype dtype, bool bias, int residual,
                   enum pk_act act)
{
    matmul_by(m, n, k, form, dtype, dtype, bias, residual, act);
}

static void test_matmul(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},     {3, 5, 7},      {64, 64, 64},  {65, 63, 127},
                                       {197, 33, 1},  {1, 700, 65},   {2, 40, 300},  {4, 513, 130},
                                       {5, 1, 64},    {130, 900, 70}, {16, 700, 65}, {7, 2100, 300},
                                       {12, 64, 768}, {13, 1030, 96}, {17, 40, 64}};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int form = 0; form < 8; form++) {
                int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];

                matmul(m, n, k, form, floats[t], false, 0, PK_ACT_NONE);
                matmul(m, n, k, form, floats[t], form & 1, form % 3, (enum pk_act)(form % 4));
                matmul(m, n, k, form, floats[t], true, 2, form & 1 ? PK_ACT_GELU : PK_ACT_NONE);
                rig_reset(NULL);
            }
    for (int form = 0; form < 8; form++) { /* sums long enough to be cut */
        matmul(33, 70, 5003, form, PK_F32, form & 1, form % 3, form & 2 ? PK_ACT_GELU : PK_ACT_NONE);
        matmul(33, 70, 2101, form, PK_F64, form & 2, form % 3, form & 1 ? PK_ACT_RELU : PK_ACT_NONE);
        rig_reset(NULL);
    }
    matmul(3, 4, 0, 0, PK_F32, true, 2, PK_ACT_NONE); /* a sum of nothing */
    matmul(3, 4, 0, 0, PK_F64, false, 0, PK_ACT_NONE);
    matmul(0, 4, 3, 0, PK_F32, false, 0, PK_ACT_NONE);
}

static void test_bf16_weights(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 7},    {1, 700, 65},  {16, 1030, 96},
                                       {7, 77, 300}, {64, 64, 64}, {65, 63, 127}, {33, 70, 5003}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 8; form++) {
            matmul_by(sizes[i][0], sizes[i][1], sizes[i][2], form, PK_F32, PK_BF16, form & 1, form % 3,
                      (enum pk_act)(form % 4));
            rig_reset(NULL);
        }
}

static struct pk_view halves(struct pk_shape shape, bool transposed)
{
    struct pk_view v = rig_random(PK_BF16, shape, -1, 1);

    return transposed ? rig_transposed(v) : v;
}

/* Both matrices bf16, as mixed precision has them: sums are f32 and are rounded once, so that of an output in
 * bf16 half a unit in the last place is the tolerance. */
static void test_products_of_bf16(void **state)
{
    static const int64_t sizes[][3] = {{3, 5, 7},      {17, 1, 1},      {64, 64, 64},
                                       {65, 63, 127},  {197, 33, 1},    {130, 900, 70},
                                       {33, 70, 5003}, {301, 270, 258}, {16, 1030, 96}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int form = 0; form < 8; form++) {
            const int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            struct rig_case c = {.op = PK_OP_MATMUL, .name = "bf16", .n_in = 2, .n_out = 1};
            const bool half = form & 4;

            c.in[0] = form & 1 ? halves(PK_SHAPE(k, m), true) : halves(PK_SHAPE(m, k), false);
            c.in[1] = form & 2 ? halves(PK_SHAPE(n, k), true) : halves(PK_SHAPE(k, n), false);
            if ((form + i) % 2) {
                c.attr.matmul.has_bias = true;
                c.in[c.n_in++] = rig_random((form + i) % 4 == 1 ? PK_BF16 : PK_F32, PK_SHAPE(n), -1, 1);
            }
            if ((form + i) % 3) {
                c.attr.matmul.has_residual = true;
                c.in[c.n_in++] = rig_random(half ? PK_BF16 : PK_F32, PK_SHAPE(m, n), -1, 1);
                if ((form + i) % 3 == 2)
                    c.share[0] = c.n_in;
            }
            c.attr.matmul.act = (enum pk_act)((form + i) % 4);
            c.out[0] = PK_SHAPE(m, n);
            c.out_dtype[0] = half ? PK_BF16 : PK_F32;
            c.tolerance = half ? 0x1p-8 : 1e-5;
            c.floor = 1;
            rig_check(&c);
            rig_reset(NULL);
        }
}

/* The slope of an activation, sums beside the product, what an activation is applied to, and batches. */
static void test_products_of_bf16_and_what_they_do_besides(void **state)
{
    (void)state;
    for (int form = 0; form < 16; form++) {
        const int64_t m = 40 + form, n = 300, k = 70;
        struct rig_case c = {
            .op = PK_OP_MATMUL, .name = "besides", .n_in = 2, .n_out = 1, .tolerance = 0x1p-8};

        c.in[0] = form & 1 ? halves(PK_SHAPE(k, m), true) : halves(PK_SHAPE(m, k), false);
        c.in[1] = form & 2 ? halves(PK_SHAPE(n, k), true) : halves(PK_SHAPE(k, n), false);
        c.out[0] = PK_SHAPE(m, n);
        c.out_dtype[0] = PK_BF16;
        c.attr.matmul.act = PK_ACT_GELU;
        if (form & 4) {
            c.attr.matmul.slope = true;
            c.in[c.n_in++] = rig_random(PK_BF16, PK_SHAPE(m, n), -2, 2);
        } else {
            c.attr.matmul.keeps = true;
            c.out[c.n_out] = PK_SHAPE(m, n);
            c.out_dtype[c.n_out++] = PK_BF16;
        }
        if (form & 8) {
            c.attr.matmul.sums = form & 1 ? PK_SUMS_A : form & 2 ? PK_SUMS_B : PK_SUMS_OUT;
            c.out[c.n_out] = form & 1 ? PK_SHAPE(m) : PK_SHAPE(n);
            c.out_dtype[c.n_out++] = PK_F32;
        }
        rig_check(&c);
        rig_reset(NULL);
    }
    for (int form = 0; form < 8; form++) { /* batches; form & 2: one matrix for all */
        struct rig_case c = {
            .op = PK_OP_MATMUL, .name = "batches", .n_in = 2, .n_out = 1, .tolerance = 0x1p-8};

        c.in[0] = form & 1 ? halves(PK_SHAPE(3, 2, 9, 33), true) : halves(PK_SHAPE(3, 2, 33, 9), false);
        c.in[1] = form & 2 ? halves(PK_SHAPE(9, 47), false) : halves(PK_SHAPE(3, 2, 9, 47), false);
        if (form & 2) {
            c.in[1].shape = PK_SHAPE(3, 2, 9, 47);
            c.in[1].stride[0] = c.in[1].stride[1] = 0;
            c.in[1].stride[2] = 47;
            c.in[1].stride[3] = 1;
        }
        if (form & 4)
            c.in[0] = rig_strided(&c.in[0]);
        c.out[0] = PK_SHAPE(3, 2, 33, 47);
        c.out_dtype[0] = PK_BF16;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_matmul_batched(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int form = 0; form < 16; form++) {
            int64_t m = form & 8 ? 5 : 17;
            struct rig_case c = {
                .op = PK_OP_MATMUL, .name = "batched", .n_in = 3, .n_out = 1, .tolerance = 5e-6};

            c.in[0] = form & 1 ? rig_transposed(rig_random(floats[t], PK_SHAPE(3, 2, 9, m), -1, 1))
                               : rig_random(floats[t], PK_SHAPE(3, 2, m, 9), -1, 1);
            c.in[1] = form & 2 ? rig_random(floats[t], PK_SHAPE(3, 2, 9, 33), -1, 1)
                               : rig_random(floats[t], PK_SHAPE(9, 33), -1, 1);
            if (!(form & 2)) { /* one matrix for all */
                c.in[1].shape = PK_SHAPE(3, 2, 9, 33);
                c.in[1].stride[0] = c.in[1].stride[1] = 0;
                c.in[1].stride[2] = 33;
                c.in[1].stride[3] = 1;
            }
            if (form & 4)
                c.in[0] = rig_strided(&c.in[0]);
            c.in[2] = rig_random(floats[t], PK_SHAPE(3, 2, m, 33), -1, 1);
            c.attr.matmul.has_residual = true;
            c.out[0] = PK_SHAPE(3, 2, m, 33);
            c.out_dtype[0] = floats[t];
            rig_check(&c);
        }
}

/* One product with GELU, bias and residual by the best level. */
static void run_rows(const float *x, const struct pk_view *w, const struct pk_view *bias, int64_t m,
                     int64_t n, int64_t k, int threads, float *to)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_attr attr = {.matmul = {.act = PK_ACT_GELU, .has_bias = true}};
    struct pk_view in[3] = {pk_view_dense((void *)(uintptr_t)x, PK_F32, PK_SHAPE(m, k)), *w, *bias};
    struct pk_view out = pk_view_dense(to, PK_F32, PK_SHAPE(m, n));
    struct pk_call call = {.op = PK_OP_MATMUL, .attr = &attr, .n_in = 3, .n_out = 1, .in = in, .out = &out};
    struct pk_backend *b = rig_backend(NULL, NULL, threads);
    struct pd_why why;

    assert_non_null(b);
    call.workspace_bytes = api->workspace_bytes(b, &call);
    call.workspace = rig_alloc(call.workspace_bytes + 1);
    assert_int_equal(api->run(b, &call, 1, &why), PD_OK);
}

/* A row's bits depend neither on how many rows go with it nor on the threads: what lets sequences be decoded
 * side by side. */
static void test_rows_alone(void **state)
{
    static const int64_t sizes[][2] = {{768, 768}, {3072, 768}, {768, 2309}, {40, 130}, {129, 1025}};

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int tied = 0; tied < 2; tied++) {
            int64_t k = sizes[s][0], n = sizes[s][1];
            struct pk_view x = rig_random(PK_F32, PK_SHAPE(16, k), -1, 1),
                           bias = rig_random(PK_F32, PK_SHAPE(n), -1, 1);
            struct pk_view w = tied ? rig_transposed(rig_random(PK_F32, PK_SHAPE(n, k), -1, 1))
                                    : rig_random(PK_F32, PK_SHAPE(k, n), -1, 1);
            float *all = rig_alloc((size_t)(16 * n) * sizeof *all),
                  *some = rig_alloc((size_t)(16 * n) * sizeof *some);

            run_rows(x.data, &w, &bias, 16, n, k, 1, all);
            for (int64_t rows = 1; rows <= 16; rows += rows < 3 ? 1 : 3)
                for (int64_t first = 0; first + rows <= 16; first += rows) {
                    run_rows((const float *)x.data + first * k, &w, &bias, rows, n, k, rows & 1 ? 2 : 1,
                             some);
                    if (memcmp(some, all + first * n, (size_t)(rows * n) * sizeof *some) != 0)
                        fail_msg("%lld x %lld, tied %d: rows %lld from %lld on differ from the same among 16",
                                 (long long)k, (long long)n, tied, (long long)rows, (long long)first);
                }
            rig_reset(NULL);
        }
}

/* What a product does beside itself: keeping what the activation is applied to, multiplying by its slope,
 * adding up. */
static void beside(int64_t m, int64_t n, int64_t k, int form, enum pk_dtype dtype, enum pk_act act,
                   bool slope, enum pk_sums sums)
{
    struct rig_case c = {.op = PK_OP_MATMUL, .name = "matmul", .n_in = 2, .n_out = 1, .floor = 1e-6};
    char name[128];

    snprintf(name, sizeof name, "matmul %lld x %lld x %lld, form %d, act %d, slope %d, sums %d", (long long)m,
             (long long)n, (long long)k, form, (int)act, slope, (int)sums);
    c.name = name;
    c.in[0] = form & 1 ? rig_transposed(rig_random(dtype, PK_SHAPE(k, m), -1, 1))
                       : rig_random(dtype, PK_SHAPE(m, k), -1, 1);
    c.in[1] = form & 2 ? rig_transposed(rig_random(dtype, PK_SHAPE(n, k), -1, 1))
                       : rig_random(dtype, PK_SHAPE(k, n), -1, 1);
    if (form & 4) {
        c.in[0] = rig_strided(&c.in[0]);
        c.in[1] = rig_strided(&c.in[1]);
    }
    c.attr.matmul.act = act;
    c.attr.matmul.slope = slope;
    c.attr.matmul.keeps = act != PK_ACT_NONE && !slope;
    c.attr.matmul.sums = sums;
    c.out[0] = PK_SHAPE(m, n);
    if (slope) {
        c.in[c.n_in] = rig_random(dtype, PK_SHAPE(m, n), -3, 3);
        if (form & 4)
            c.in[c.n_in] = rig_strided(&c.in[c.n_in]);
        c.n_in++;
    } else if (form & 1) {
        c.attr.matmul.has_bias = true;
        c.in[c.n_in++] = rig_random(dtype, PK_SHAPE(n), -1, 1);
    }
    if (c.attr.matmul.keeps)
        c.out[c.n_out++] = PK_SHAPE(m, n);
    if (sums)
        c.out[c.n_out++] = PK_SHAPE(sums == PK_SUMS_A ? m : n);
    for (int i = 0; i < c.n_out; i++)
        c.out_dtype[i] = dtype;
    c.tolerance = 5e-6;
    rig_check(&c);
}

static void test_matmul_keeps_slopes_and_sums(void **state)
{
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 5, 7},       {64, 64, 64},  {65, 63, 127},
                                       {5, 1, 64},   {130, 900, 70},  {16, 700, 65}, {33, 72, 2101},
                                       {17, 40, 64}, {40, 2000, 320}, {8, 8, 600}};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (int form = 0; form < 8; form++) {
                int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
                enum pk_act act = (enum pk_act)(1 + form % 3);

                beside(m, n, k, form, floats[t], act, false, (enum pk_sums)(form % 4));
                beside(m, n, k, form, floats[t], act, true, (enum pk_sums)((form + 1) % 4));
                beside(m, n, k, form, floats[t], PK_ACT_NONE, false, (enum pk_sums)(1 + form % 3));
                rig_reset(NULL);
            }
}

/* The slope is the derivative of the activation, by finite differences of the very op. */
static void test_matmul_slope_by_differences(void **state)
{
    static const double identity[4] = {1, 0, 0, 1}, h = 1e-6;

    (void)state;
    for (int act = PK_ACT_GELU; act <= PK_ACT_RELU; act++)
        for (int at = 0; at < 40; at++) {
            const double x = -4.02 + 0.2 * at; /* not at 0, ReLU's corner */
            const double one[4] = {1, 1, 1, 1}, low[4] = {x - h, x - h, x - h, x - h},
                         high[4] = {x + h, x + h, x + h, x + h}, there[4] = {x, x, x, x};
            const double *from[3] = {low, high, one};
            double y[3][4], kept[4];

            for (int i = 0; i < 3; i++) {
                struct pk_attr attr = {.matmul = {.act = (enum pk_act)act, .slope = i == 2, .keeps = i < 2}};
                struct pk_view in[3] = {rig_values(PK_F64, PK_SHAPE(2, 2), from[i]),
                                        rig_values(PK_F64, PK_SHAPE(2, 2), identity),
                                        rig_values(PK_F64, PK_SHAPE(2, 2), there)};
                struct pk_view out[2] = {pk_view_dense(y[i], PK_F64, PK_SHAPE(2, 2)),
                                         pk_view_dense(kept, PK_F64, PK_SHAPE(2, 2))};
                struct pk_call c = {.op = PK_OP_MATMUL,
                                    .attr = &attr,
                                    .n_in = i == 2 ? 3 : 2,
                                    .n_out = i == 2 ? 1 : 2,
                                    .in = in,
                                    .out = out};
                struct pd_why why = {""};

                c.workspace_bytes = pk_backend_cpu()->workspace_bytes(rig_backend(NULL, NULL, 1), &c);
                c.workspace = rig_alloc(c.workspace_bytes + 1);
                if (pk_backend_cpu()->run(rig_backend(NULL, NULL, 1), &c, 1, &why) != PD_OK)
                    fail_msg("%s", why.text);
                if (i < 2)
                    assert_memory_equal(kept, from[i], sizeof kept);
            }
            for (int k = 0; k < 4; k++)
                assert_true(fabs((y[1][k] - y[0][k]) / (2 * h) - y[2][k]) < 1e-8);
            rig_reset(NULL);
        }
}

int main(void)
{
    char why[200];

    setenv("POLYD_CPU_BF16", "products", 0); /* also where they do not pay */
    print_message("products of bf16 by %s (%s)\n",
                  pk_cpu_bf16(why, sizeof why) ? "the library" : "the reference", why);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_matmul, rig_reset),
        cmocka_unit_test_teardown(test_bf16_weights, rig_reset),
        cmocka_unit_test_teardown(test_products_of_bf16, rig_reset),
        cmocka_unit_test_teardown(test_products_of_bf16_and_what_they_do_besides, rig_reset),
        cmocka_unit_test_teardown(test_matmul_batched, rig_reset),
        cmocka_unit_test_teardown(test_rows_alone, rig_reset),
        cmocka_unit_test_teardown(test_matmul_keeps_slopes_and_sums, rig_reset),
        cmocka_unit_test_teardown(test_matmul_slope_by_differences, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
