/* Attention by the kernels of sm 90 (warpgroup products, bulk copies) on the emulated GPU, against plain
 * loops in double: sizes around the tiles of every kernel, every activation, masks, biases, scales. Which of
 * them the ordinary run takes: cover.h; with POLYD_TEST_FULL=1 some are longer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cuda/attention/attention.h"
#include "tests/gpu/attention_case.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

const struct pk_backend_api *pk_backend_entry(void);

static bool full(void)
{
    return getenv("POLYD_TEST_FULL") != NULL;
}

static void check(struct attention_case c)
{
    c.dtype = PK_BF16;
    c.hopper = true;
    c.attr.form = PK_FORM_QUADRATIC; /* x and x^2 too */
    if (c.spread == 0)
        c.spread = c.attr.phi == PK_PHI_POLY ? 1.5 : 2;
    if (c.attr.scale == 0)
        c.attr.scale = 0.25;
    if (c.attr.phi == PK_PHI_POLY && c.attr.degree == 0)
        c.attr.degree = 3;
    attention_check(&c);
    attention_reset(NULL);
}

/* Sizes on both sides of tiles of 64 and 128 queries, 64, 112 and 128 keys. */
static void test_sizes(void **state)
{
    static const int sizes[] = {1, 63, 64, 65, 127, 128, 191, 192, 193, 197, 256, 257, 320};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int causal = 0; causal < 2; causal++)
            check((struct attention_case){.name = "size",
                                          .shape = {1, 1 + i % 2, sizes[i], sizes[i], 64},
                                          .attr = {.phi = PK_PHI_POLY,
                                                   .degree = 1 + (i + causal) % 6,
                                                   .causal = causal,
                                                   .packed = (i + causal) % 2 == 0}});
}

/* Every activation in every kernel. */
static void test_activations(void **state)
{
    static const struct attention_shape shapes[] = {{1, 2, 49, 49, 32},
                                                    {2, 1, 60, 60, 64},
                                                    {1, 1, 70, 200, 64},
                                                    {1, 1, 197, 197, 64},
                                                    {1, 1, 130, 70, 128}};

    (void)state;
    for (int phi = 0; phi < 9; phi++)
        for (int i = 0; i < COUNT(shapes); i++) {
            struct pk_attention_attr a = {.phi = PK_PHI_POLY, .degree = phi + 1};

            if (phi >= 6) {
                a.phi = phi == 8 ? PK_PHI_RELU : PK_PHI_SIGMOID;
                a.bias = phi == 7 ? -4.0 : 0.0;
                a.degree = 0;
            }
            check((struct attention_case){.name = "activation", .shape = shapes[i], .attr = a});
        }
}

static void test_head_dimensions(void **state)
{
    static const int dims[] = {8, 16, 24, 32, 48, 64, 80, 96, 128};

    (void)state;
    for (int i = 0; i < COUNT(dims); i++)
        check((struct attention_case){.name = "head dimension",
                                      .shape = {2, 2, 33, 40, dims[i]},
                                      .attr = {.phi = PK_PHI_POLY, .causal = i % 2}});
    for (int i = 0; i < COUNT(dims); i++)
        check((struct attention_case){.name = "head dimension, packed",
                                      .shape = {1, 2, 133, 133, dims[i]},
                                      .attr = {.phi = PK_PHI_POLY, .packed = true}});
}

/* Nq and Nk apart: later queries of a causal row see all, earlier ones nothing. */
static void test_queries_and_keys(void **state)
{
    static const int pairs[][2] = {{1, 300}, {70, 129}, {129, 70}, {260, 140}, {140, 390}};

    (void)state;
    for (int i = 0; i < COUNT(pairs); i++)
        for (int causal = 0; causal < 2; causal++)
            check((struct attention_case){
                .name = "queries and keys",
                .shape = {1, 1, pairs[i][0], pairs[i][1], i % 2 ? 128 : 64},
                .attr = {.phi = i % 2 ? PK_PHI_RELU : PK_PHI_POLY, .causal = causal}});
}

/* Read where they lie: tokens outside of heads, gaps between rows, in every kernel. */
static void test_layouts(void **state)
{
    static const struct attention_shape shapes[] = {
        {2, 3, 49, 49, 32}, {2, 2, 40, 50, 64}, {1, 2, 130, 200, 64}, {2, 1, 90, 70, 24}, {1, 2, 70, 80, 80}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        check((struct attention_case){
            .name = "layout", .shape = shapes[i], .attr = {.phi = PK_PHI_POLY}, .swapped = true});
}

/* A recorded run gives the bits of the run, also from inputs that came after the recording: the maps of
 * tensors are part of it. */
static void test_capture(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    enum { N = 70, H = 2, D = 64, QKV = N * 3 * H * D, Y = N * H * D };
    struct pk_attr attr = {
        .attention = {
            .phi = PK_PHI_POLY, .degree = 3, .tau = 0.125, .scale = 0.25, .packed = true, .causal = true}};
    struct pk_view in[3], out[2], x[2];
    struct pk_call calls[2] = {
        {.op = PK_OP_ATTENTION, .attr = &attr, .n_in = 1, .n_out = 1, .in = in, .out = &out[0]},
        {.op = PK_OP_ATTENTION_BWD, .attr = &attr, .n_in = 3, .n_out = 1, .in = in, .out = &out[1]}};
    uint16_t run[QKV], replayed[QKV], old[QKV];
    struct pk_backend *b = NULL;
    struct pk_captured *captured = NULL;
    struct pd_why why = {""};

    (void)state;
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    for (int i = 0; i < 2; i++)
        x[i] = attention_random(PK_BF16, PK_SHAPE(1, N, 3, H, D), -1, 1);
    in[0] = pk_view_dense(api->alloc(b, QKV * 2), PK_BF16, PK_SHAPE(1, N, 3, H, D));
    in[1] = out[0] = pk_view_dense(api->alloc(b, Y * 2), PK_BF16, PK_SHAPE(1, N, H, D));
    in[2] = out[0];
    out[1] = pk_view_dense(api->alloc(b, QKV * 2), PK_BF16, in[0].shape);
    for (int i = 0; i < 2; i++) {
        assert_true(cuda_attention_hopper_supports(NULL, &calls[i]));
        calls[i].workspace_bytes = api->workspace_bytes(b, &calls[i]);
        calls[i].workspace = api->alloc(b, calls[i].workspace_bytes ? calls[i].workspace_bytes : 1);
    }
    assert_int_equal(api->upload(b, in[0].data, x[0].data, QKV * 2, &why), PD_OK);
    assert_int_equal(api->run(b, calls, 2, &why), PD_OK);
    assert_int_equal(api->sync(b, &why), PD_OK);
    assert_int_equal(api->download(b, old, out[1].data, QKV * 2, &why), PD_OK);
    assert_int_equal(api->capture(b, calls, 2, &captured, &why), PD_OK);
    assert_int_equal(api->upload(b, in[0].data, x[1].data, QKV * 2, &why), PD_OK);
    assert_int_equal(api->run(b, calls, 2, &why), PD_OK);
    assert_int_equal(api->sync(b, &why), PD_OK);
    assert_int_equal(api->download(b, run, out[1].data, QKV * 2, &why), PD_OK);
    assert_memory_not_equal(run, old, sizeof run);
    memset(replayed, 0xff, sizeof replayed);
    assert_int_equal(api->upload(b, out[1].data, replayed, QKV * 2, &why), PD_OK);
    assert_int_equal(api->replay(b, captured, &why), PD_OK);
    assert_int_equal(api->sync(b, &why), PD_OK);
    assert_int_equal(api->download(b, replayed, out[1].data, QKV * 2, &why), PD_OK);
    assert_memory_equal(run, replayed, sizeof run);
    captured = api->captured_free(b, captured);
    for (int i = 0; i < 2; i++)
        api->free(b, calls[i].workspace);
    api->free(b, in[0].data);
    api->free(b, out[0].data);
    api->free(b, out[1].data);
    api->close(b);
}

/* Rows that bulk copies cannot read are said, not misread. */
static void test_misaligned_rows_are_refused(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    struct pk_attr attr = {
        .attention = {.phi = PK_PHI_POLY, .degree = 3, .tau = 1, .scale = 1, .packed = true}};
    struct pk_view in, out;
    struct pk_call call = {
        .op = PK_OP_ATTENTION, .attr = &attr, .n_in = 1, .n_out = 1, .in = &in, .out = &out};
    struct pk_backend *b = NULL;
    struct pd_why why = {""};
    char *memory, *result;

    (void)state;
    assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
    memory = api->alloc(b, 8192);
    result = api->alloc(b, 8192);
    in = pk_view_dense(memory + 2, PK_BF16, PK_SHAPE(1, 4, 3, 1, 64));
    out = pk_view_dense(result, PK_BF16, PK_SHAPE(1, 4, 1, 64));
    assert_int_equal(api->run(b, &call, 1, &why), PD_ERR_UNSUPPORTED);
    assert_non_null(strstr(why.text, "16-byte aligned"));
    api->free(b, memory);
    api->free(b, result);
    api->close(b);
}

/* Masks of keys and windows, biases; with learned scales and powers of the row in turn. */
static void test_options(void **state)
{
    static const struct attention_shape shapes[] = {{4, 2, 49, 49, 32},
                                                    {4, 1, 50, 64, 64},
                                                    {4, 1, 131, 197, 64},
                                                    {2, 1, 300, 300, 64},
                                                    {2, 2, 70, 150, 96}};

    (void)state;
    for (int i = 0; i < COUNT(shapes); i++)
        for (int o = 0; o < 8; o++) {
            struct attention_case c = {.name = "options", .shape = shapes[i]};

            c.attr.phi = o % 3 == 0 ? PK_PHI_POLY : o % 3 == 1 ? PK_PHI_SIGMOID : PK_PHI_RELU;
            c.attr.degree = c.attr.phi == PK_PHI_POLY ? 1 + (i + o) % 3 : 0;
            c.mask = o == 1 || o == 4 || o == 7 ? MASK_KEYS : o == 2 || o == 5 ? MASK_WINDOWS : MASK_NONE;
            c.bias = o >= 5;
            c.scale = (enum attention_scale)((i + o) % 4);
            c.attr.causal = (i + o) % 2;
            c.attr.row_power = c.attr.causal && o % 2 ? 0.5 : 0.0;
            check(c);
        }
}

/* Several windows a block, one head after the other: what is kept from one to the next. */
static void test_windows(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check(
            (struct attention_case){.name = "windows",
                                    .shape = {12, 3, 49, i % 2 ? 49 : 36, i < 2 ? 32 : 64},
                                    .attr = {.phi = i == 3 ? PK_PHI_SIGMOID : PK_PHI_POLY, .causal = i == 1},
                                    .mask = MASK_WINDOWS,
                                    .bias = i != 1,
                                    .scale = SCALE_LAYER});
}

/* More tiles of queries than one pass holds, and more heads than the device has room for at once. */
static void test_long_and_many(void **state)
{
    (void)state;
    check((struct attention_case){
        .name = "long", .shape = {1, 1, full() ? 2200 : 1100, 260, 64}, .attr = {.phi = PK_PHI_POLY}});
    check((struct attention_case){.name = "long, causal",
                                  .shape = {1, 1, full() ? 2200 : 590, full() ? 2200 : 590, full() ? 64 : 72},
                                  .attr = {.phi = PK_PHI_POLY, .causal = true}});
    for (int causal = 0; causal < 2; causal++) /* keys in tiles of 96 */
        check((struct attention_case){.name = "96 keys",
                                      .shape = {1, 1, 200, 570, 64},
                                      .attr = {.phi = PK_PHI_POLY, .causal = causal},
                                      .bias = causal,
                                      .forward = causal}); /* so long a bias has its gradient elsewhere */
    /* More passes than blocks: they take them from a counter, which must be 0 again for the next launch. */
    check((struct attention_case){.name = "passes in turn",
                                  .shape = {2, 2, full() ? 1500 : 700, 530, 64},
                                  .attr = {.phi = PK_PHI_POLY, .causal = true},
                                  .forward = true});
    /* Enough heads for the device: a block each, though dQ is in the workspace, and in two chunks. */
    check((struct attention_case){.name = "heads for all",
                                  .shape = {2, 2, 330, 260, 64},
                                  .attr = {.phi = PK_PHI_POLY, .causal = true}});
    if (full())
        check((struct attention_case){.name = "heads for all, chunks",
                                      .shape = {2, 2, 1100, 1100, 64},
                                      .attr = {.phi = PK_PHI_POLY, .causal = true}});
    /* Two blocks a head: one has a tile of keys more, or the causal mask leaves it none. */
    for (int causal = 0; causal < 2; causal++)
        check(
            (struct attention_case){.name = "pairs of blocks",
                                    .shape = {3, 1, 321, 520, 64},
                                    .attr = {.phi = causal ? PK_PHI_SIGMOID : PK_PHI_POLY, .causal = causal},
                                    .scale = SCALE_HEADS});
    check(
        (struct attention_case){.name = "many", .shape = {60, 5, 20, 30, 32}, .attr = {.phi = PK_PHI_POLY}});
    check((struct attention_case){
        .name = "many, biased", .shape = {60, 5, 20, 30, 32}, .attr = {.phi = PK_PHI_POLY}, .bias = true});
}

/* The kernels of sm 90 can be forbidden on a machine whose users must go on without them. */
static void test_forbidden(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    struct pk_attr attr = {.attention = {.phi = PK_PHI_POLY, .degree = 3, .packed = true}};
    struct pk_view in = pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 100, 3, 4, 64));
    struct pk_call c = {.op = PK_OP_ATTENTION, .attr = &attr, .n_in = 1, .n_out = 1, .in = &in};
    struct pk_backend *b = NULL;
    struct pd_why why = {""};

    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        setenv("POLYD_CUDA_HOPPER", allowed ? "1" : "0", 1);
        assert_int_equal(api->open(NULL, 0, 1, &b, &why), PD_OK);
        assert_int_equal(cuda_attention_hopper_supports(b, &c), allowed);
        b = api->close(b);
    }
    unsetenv("POLYD_CUDA_HOPPER");
}

static void test_zeros_and_huge_logits(void **state)
{
    (void)state;
    for (int p = 1; p <= 4; p++) {
        check((struct attention_case){.name = "huge",
                                      .shape = {1, 1, 70, 70, 64},
                                      .attr = {.phi = PK_PHI_POLY, .degree = p},
                                      .spread = 60});
        check((struct attention_case){.name = "tiny",
                                      .shape = {1, 1, 70, 70, 64},
                                      .attr = {.phi = PK_PHI_POLY, .degree = p},
                                      .spread = 1e-3});
    }
}

/* What is theirs and what is not. */
static void test_supports(void **state)
{
    struct pk_attr attr = {.attention = {.phi = PK_PHI_POLY, .degree = 3, .packed = true}};
    struct pk_view in[3] = {pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 100, 3, 4, 64))};
    struct pk_call c = {.op = PK_OP_ATTENTION, .attr = &attr, .n_in = 1, .n_out = 1, .in = in};

    (void)state;
    assert_true(cuda_attention_hopper_supports(NULL, &c));
    attr.attention.degree = 7;
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    attr.attention.degree = 3;
    attr.attention.phi = PK_PHI_SOFTMAX;
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    attr.attention.phi = PK_PHI_SIGMOID;
    assert_true(cuda_attention_hopper_supports(NULL, &c));
    attr.attention.has_rng = true;
    attr.attention.dropout = 0.1;
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    attr.attention.has_rng = false;
    in[0] = pk_view_dense(NULL, PK_F32, PK_SHAPE(2, 100, 3, 4, 64));
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    in[0] = pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 100, 3, 4, 60));
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    in[0] = pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 0, 3, 4, 64));
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    in[0] = pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 100, 3, 4, 136));
    assert_false(cuda_attention_hopper_supports(NULL, &c));
    c.op = PK_OP_ATTENTION_STATS;
    in[0] = pk_view_dense(NULL, PK_BF16, PK_SHAPE(2, 100, 3, 4, 64));
    assert_false(cuda_attention_hopper_supports(NULL, &c));
}

static int open_device(void **state)
{
    (void)state;
    setenv("POLYD_EMU_SM", "90", 1);
    /* The sizes here are made for the emulation's four multiprocessors: on a device too, blocks take several units. */
    setenv("POLYD_CUDA_MULTIPROCESSORS", "4", 0);
    attention_open(pk_backend_entry());
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    attention_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_supports, attention_reset),
        cmocka_unit_test_teardown(test_sizes, attention_reset),
        cmocka_unit_test_teardown(test_activations, attention_reset),
        cmocka_unit_test_teardown(test_head_dimensions, attention_reset),
        cmocka_unit_test_teardown(test_queries_and_keys, attention_reset),
        cmocka_unit_test_teardown(test_layouts, attention_reset),
        cmocka_unit_test_teardown(test_capture, attention_reset),
        cmocka_unit_test_teardown(test_misaligned_rows_are_refused, attention_reset),
        cmocka_unit_test_teardown(test_options, attention_reset),
        cmocka_unit_test_teardown(test_windows, attention_reset),
        cmocka_unit_test_teardown(test_long_and_many, attention_reset),
        cmocka_unit_test_teardown(test_forbidden, attention_reset),
        cmocka_unit_test_teardown(test_zeros_and_huge_logits, attention_reset),
    };

    return cmocka_run_group_tests(tests, open_device, close_device);
}
