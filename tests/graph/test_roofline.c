/* The count of bytes and products: each op's by hand, and tables of a small plan. */
#include <stddef.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels/graph/roofline.h"

static struct pk_view dense(enum pk_dtype dtype, struct pk_shape shape)
{
    return pk_view_dense(NULL, dtype, shape);
}

static void test_products_count_each_matrix_once(void **state)
{
    struct pk_attr attr = {0};
    struct pk_view in[3] = {dense(PK_BF16, PK_SHAPE(8, 16)), dense(PK_BF16, PK_SHAPE(16, 32)),
                            dense(PK_F32, PK_SHAPE(32))};
    struct pk_view out = dense(PK_BF16, PK_SHAPE(8, 32));
    struct pk_call call = {PK_OP_MATMUL, &attr, 3, 1, in, &out, NULL, 0};
    struct pk_cost c;

    (void)state;
    attr.matmul.has_bias = true;
    c = pk_call_cost(&call);
    assert_int_equal(c.kind, PK_KIND_MATMUL);
    assert_true(c.read == (8 * 16 + 16 * 32) * 2 + 32 * 4);
    assert_true(c.written == 8 * 32 * 2);
    assert_true(c.flop == 2 * 8 * 16 * 32);
    /* 8192 flop at 8192/s: one second; 1920 bytes at 960/s: two. */
    assert_true(pk_cost_seconds(&c, &(struct pk_peaks){8192, 1e9}) == 1);
    assert_true(fabs(pk_cost_seconds(&c, &(struct pk_peaks){1e9, 960}) - 2) < 0.1);
}

/* 8 x 8 pixels by a kernel of 3 x 3 at every second place, with pads: 4 x 4 places of 27 x 5 products. */
static void test_convolutions_count_every_tap_at_every_place(void **state)
{
    const struct pk_shape x = PK_SHAPE(2, 8, 8, 3), w = PK_SHAPE(3, 3, 3, 5), y = PK_SHAPE(2, 4, 4, 5);
    const struct {
        enum pk_op op;
        struct pk_shape in[2], out;
    } form[] = {{PK_OP_CONV2D, {x, w}, y}, {PK_OP_CONV2D_DX, {y, w}, x}, {PK_OP_CONV2D_DW, {x, y}, w}};
    struct pk_attr attr = {0};

    (void)state;
    attr.conv.stride = 2;
    attr.conv.pad = 1;
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        struct pk_view in[2] = {dense(PK_F32, form[i].in[0]), dense(PK_F32, form[i].in[1])};
        struct pk_view out = dense(PK_F32, form[i].out);
        const struct pk_cost c = pk_call_cost(&(struct pk_call){form[i].op, &attr, 2, 1, in, &out, NULL, 0});

        assert_int_equal(c.kind, PK_KIND_CONVOLUTION);
        assert_true(c.flop == 2.0 * 2 * 4 * 4 * 27 * 5);
        assert_true(c.read + c.written == 4 * (2 * 8 * 8 * 3 + 27 * 5 + 2 * 4 * 4 * 5));
    }
}

static void test_depthwise_convolutions_count_every_tap_at_every_pixel(void **state)
{
    struct pk_attr attr = {0};
    struct pk_view in[2] = {dense(PK_BF16, PK_SHAPE(2, 6, 5, 4)), dense(PK_F32, PK_SHAPE(3, 3, 4))};
    struct pk_view out = dense(PK_BF16, PK_SHAPE(2, 6, 5, 4));
    struct pk_cost c = pk_call_cost(&(struct pk_call){PK_OP_DWCONV2D, &attr, 2, 1, in, &out, NULL, 0});

    (void)state;
    assert_int_equal(c.kind, PK_KIND_CONVOLUTION);
    assert_true(c.flop == 2.0 * 2 * 6 * 5 * 4 * 9);
    assert_true(c.read == 2 * 240 + 4 * 36 && c.written == 2 * 240);
    c = pk_call_cost(
        &(struct pk_call){PK_OP_DWCONV2D_DW, &attr, 2, 1, (struct pk_view[]){out, in[0]}, &in[1], NULL, 0});
    assert_true(c.flop == 2.0 * 2 * 6 * 5 * 4 * 9);
}

static void test_a_repeated_axis_is_read_once(void **state)
{
    struct pk_attr attr = {0};
    struct pk_view in[2] = {dense(PK_F32, PK_SHAPE(4, 10)), dense(PK_F32, PK_SHAPE(4, 10))};
    struct pk_view out = dense(PK_F32, PK_SHAPE(4, 10));
    struct pk_call call = {PK_OP_EXPR, &attr, 2, 1, in, &out, NULL, 0};
    struct pk_cost c;

    (void)state;
    in[1].stride[0] = 0;
    c = pk_call_cost(&call);
    assert_int_equal(c.kind, PK_KIND_ELEMENTWISE);
    assert_true(c.read == 160 + 40 && c.written == 160 && c.flop == 0);
}

static void test_a_gather_reads_the_rows_it_takes(void **state)
{
    struct pk_attr attr = {0};
    struct pk_view in[2] = {dense(PK_F32, PK_SHAPE(1000, 8)), dense(PK_I32, PK_SHAPE(5))};
    struct pk_view out = dense(PK_BF16, PK_SHAPE(5, 8));
    struct pk_call call = {PK_OP_GATHER, &attr, 2, 1, in, &out, NULL, 0};
    struct pk_cost c = pk_call_cost(&call);

    (void)state;
    assert_true(c.read == 5 * 4 + 5 * 8 * 4 && c.written == 5 * 8 * 2);
}

static void test_attention_counts_what_performance_counts(void **state)
{
    struct pk_attr attr = {0};
    struct pk_view in[4] = {dense(PK_BF16, PK_SHAPE(2, 64, 3, 4, 16)), dense(PK_BF16, PK_SHAPE(2, 64, 4, 16)),
                            dense(PK_BF16, PK_SHAPE(2, 64, 4, 16)), dense(PK_F32, PK_SHAPE(2, 4, 64))};
    struct pk_view out[2] = {dense(PK_BF16, PK_SHAPE(2, 64, 4, 16)), dense(PK_F32, PK_SHAPE(2, 4, 64))};
    struct pk_call call = {PK_OP_ATTENTION, &attr, 1, 1, in, out, NULL, 0};
    const double one = 2.0 * 64 * 64 * 4 * 16, y = 2 * 64 * 4 * 16 * 2; /* B N^2 H d; bytes of y */
    struct pk_cost c;

    (void)state;
    attr.attention.packed = true;
    attr.attention.phi = PK_PHI_POLY;
    attr.attention.degree = 3;
    c = pk_call_cost(&call); /* 4 B H N^2 d, and 8 bytes a token, head and channel */
    assert_true(c.flop == 4 * one && c.read + c.written == 4 * y);
    attr.attention.causal = true;
    assert_true(pk_call_cost(&call).flop == 2 * one);
    attr.attention.causal = false;
    call.op = PK_OP_ATTENTION_BWD;
    call.n_in = 3;
    out[0] = in[0];
    c = pk_call_cost(&call); /* 10 and 14: x^p looks at no y */
    assert_true(c.flop == 10 * one && c.read + c.written == 7 * y);
    attr.attention.phi = PK_PHI_SOFTMAX; /* y and the sums of rows */
    call.n_in = 4;
    c = pk_call_cost(&call);
    assert_true(c.flop == 10 * one && c.read + c.written == 8 * y + 2 * 4 * 64 * 4);
    /* x in linear order: a state of d columns for each query */
    attr.attention.phi = PK_PHI_POLY;
    attr.attention.degree = 1;
    attr.attention.form = PK_FORM_LINEAR;
    call.op = PK_OP_ATTENTION;
    call.n_in = 1;
    out[0] = dense(PK_BF16, PK_SHAPE(2, 64, 4, 16));
    assert_true(pk_call_cost(&call).flop == 4.0 * 2 * 4 * 64 * 16 * 16);
}

static void test_every_op_has_a_cost(void **state)
{
    (void)state;
    for (int k = 0; k < PK_KIND_COUNT; k++)
        assert_string_not_equal(pk_kind_name((enum pk_kind)k), "unknown");
    assert_string_equal(pk_kind_name(PK_KIND_COUNT), "unknown");
}

/* Two products and a norm: what the tables say of the plan. */
static void test_a_plan_is_added_up(void **state)
{
    struct pk_graph *g = pk_graph_new(false);
    struct pk_val x = pk_input(g, "x", PK_F32, PK_SHAPE(64, 32)),
                  w = pk_param(g, "w", PK_F32, PK_SHAPE(32, 32));
    struct pk_val gain = pk_param(g, "gain", PK_F32, PK_SHAPE(32)), y, grad;
    const struct pk_peaks at = {1e6, 1e6};
    struct pk_norm_spec rms = {PK_NORM_RMS, PK_EPS_MEAN, 1e-5};
    const double xb = 64 * 32 * 4, wb = 32 * 32 * 4;
    struct pk_roofline r = {0};
    struct pk_exec *e = NULL;
    struct pd_why why = {""};
    struct pd_buf text;

    (void)state;
    y = pk_norm(g, pk_matmul(g, x, w), gain, PK_NONE, rms);
    pk_output(g, "y", y);
    pk_grad(g, y, pk_input(g, "dy", PK_F32, PK_SHAPE(64, 32)), &w, 1, &grad);
    pk_output(g, "dw", grad);
    if (pk_exec_new(g, NULL, NULL, &e, &why) != PD_OK)
        fail_msg("%s", why.text);
    pk_roofline_add(&r, e, &at, 3); /* three times over */
    assert_true(r.kind[PK_KIND_MATMUL][0].calls == 3 && r.kind[PK_KIND_MATMUL][1].calls == 3);
    assert_true(r.kind[PK_KIND_MATMUL][0].read == 3 * (xb + wb));
    assert_true(r.kind[PK_KIND_MATMUL][0].written == 3 * xb);
    assert_true(r.kind[PK_KIND_MATMUL][0].flop == 3 * 2 * 64 * 32 * 32);
    assert_true(r.kind[PK_KIND_NORM][0].written == 3 * (xb + 64 * 4)); /* y and rstd */
    /* x, gain, dy, rstd -> dx, dgain */
    assert_true(r.kind[PK_KIND_NORM][1].read == 3 * (2 * xb + 32 * 4 + 64 * 4));
    assert_true(r.kind[PK_KIND_NORM][1].written == 3 * (xb + 32 * 4));
    assert_true(r.total.calls == 12 && r.tiny == 0);
    assert_true(
        fabs(r.total.seconds - (r.kind[PK_KIND_MATMUL][0].seconds + r.kind[PK_KIND_MATMUL][1].seconds +
                                r.kind[PK_KIND_NORM][0].seconds + r.kind[PK_KIND_NORM][1].seconds)) < 1e-9);
    pd_buf_init(&text, 0);
    pk_roofline_text(&r, &at, &text);
    assert_int_equal(pk_roofline_nodes(e, &at, 1, 2, &text, &why), PD_OK);
    assert_non_null(strstr(text.data, "counted, not measured"));
    assert_non_null(strstr(text.data, "matmul f32(64, 32) <- f32(64, 32) f32(32, 32)"));
    assert_null(strstr(text.data, "d norm_bwd")); /* two lines were asked for: the products are the longest */
    pd_buf_done(&text);
    pd_buf_init(&text, 16);
    assert_int_not_equal(pk_roofline_nodes(e, &at, 1, 9, &text, &why), PD_OK);
    pd_buf_done(&text);
    memset(&r, 0, sizeof r);
    pk_roofline_add(&r, e, &(struct pk_peaks){1e15, 1e15}, 1);
    assert_true(r.tiny == 4);
    pk_exec_free(e);
    pk_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_count_each_matrix_once),
        cmocka_unit_test(test_convolutions_count_every_tap_at_every_place),
        cmocka_unit_test(test_depthwise_convolutions_count_every_tap_at_every_pixel),
        cmocka_unit_test(test_a_repeated_axis_is_read_once),
        cmocka_unit_test(test_a_gather_reads_the_rows_it_takes),
        cmocka_unit_test(test_attention_counts_what_performance_counts),
        cmocka_unit_test(test_every_op_has_a_cost),
        cmocka_unit_test(test_a_plan_is_added_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
