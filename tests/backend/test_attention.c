/* Fused attention against the reference: sizes, masks, lengths, degenerate inputs, factors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/attention_rig.h"

static void check(const char *name, struct shape s, struct pk_attention_attr a, enum pk_dtype dtype,
                  double spread, const struct pk_view *mask, const struct pk_view *length,
                  const struct pk_view *scale, bool strided, double tolerance)
{
    attention_check(&(struct attention_case){.name = name,
                                             .shape = s,
                                             .attr = a,
                                             .dtype = dtype,
                                             .spread = spread,
                                             .mask = mask,
                                             .length = length,
                                             .scale = scale,
                                             .strided = strided,
                                             .tolerance = tolerance});
}

static const struct pk_attention_attr softmax = {.phi = PK_PHI_SOFTMAX, .scale = 1};
static const struct pk_attention_attr cubic = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.25};

static void test_sizes(void **state)
{
    static const int sizes[] = {1, 63, 64, 65, 127, 197};
    static const int dims[] = {16, 32, 48, 64, 80, 7, 130};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int causal = 0; causal < 2; causal++) {
            int d = dims[i % 5], n = sizes[i];
            struct pk_attention_attr a = softmax, c = cubic;

            a.causal = c.causal = causal;
            check("softmax", (struct shape){1, 2, n, n, d}, a, PK_F32, 2, NULL, NULL, NULL, false, 1e-5);
            check("cubic", (struct shape){1, 2, n, n, d}, c, PK_F32, 1, NULL, NULL, NULL, false, 1e-5);
            a.packed = c.packed = true;
            check("packed softmax", (struct shape){1, 2, n, n, d}, a, PK_F64, 2, NULL, NULL, NULL, false,
                  1e-5);
            check("packed cubic", (struct shape){1, 2, n, n, d}, c, PK_F64, 1, NULL, NULL, NULL, false, 1e-5);
            rig_reset(NULL);
        }
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        check("dims", (struct shape){1, 1, 37, 65, dims[i]}, softmax, PK_F32, 1, NULL, NULL, NULL, false,
              1e-5);
        check("dims", (struct shape){1, 1, 65, 37, dims[i]}, cubic, PK_F32, 1, NULL, NULL, NULL, true, 1e-5);
        rig_reset(NULL);
    }
}

/* More keys than a block holds, more queries than a forward task takes, more pairs than the few. */
static void test_blocks(void **state)
{
    struct pk_attention_attr a = softmax, c = cubic;

    (void)state;
    for (int causal = 0; causal < 2; causal++) {
        a.causal = c.causal = causal;
        check("blocks softmax", (struct shape){1, 1, 200, 1100, 16}, a, PK_F32, 3, NULL, NULL, NULL, false,
              2e-5);
        check("blocks cubic", (struct shape){1, 1, 200, 1100, 16}, c, PK_F32, 1, NULL, NULL, NULL, false,
              2e-5);
        check("pairs", (struct shape){4, 5, 70, 70, 16}, a, PK_F32, 1, NULL, NULL, NULL, false, 1e-5);
        rig_reset(NULL);
    }
}

static void test_few_queries(void **state)
{
    int32_t lengths[2] = {40, 97};
    struct pk_view length = pk_view_dense(lengths, PK_I32, PK_SHAPE(2));

    (void)state;
    for (int nq = 1; nq <= 5; nq++)
        for (int phi = 0; phi < PK_PHIS; phi++) {
            struct pk_attention_attr a = {
                .phi = (enum pk_phi)phi, .degree = 5, .scale = 0.5, .causal = nq > 1};

            check("few", (struct shape){2, 3, nq, 100, 48}, a, PK_F32, 1, NULL, &length, NULL, false, 1e-5);
            check("few", (struct shape){2, 3, nq, 100, 40}, a, PK_F64, 1, NULL, &length, NULL, false, 1e-5);
        }
}

static void test_masks(void **state)
{
    uint8_t visible[3][65];
    int32_t lengths[3] = {65, 0, 20}, one = 30;
    struct pk_view mask = pk_view_dense(visible, PK_U8, PK_SHAPE(3, 65));
    struct pk_view length = pk_view_dense(lengths, PK_I32, PK_SHAPE(3)),
                   same = pk_view_dense(&one, PK_I32, PK_SHAPE(1));

    (void)state;
    memset(visible[0], 1, 65);
    memset(visible[1], 0, 65); /* nothing is visible */
    for (int i = 0; i < 65; i++)
        visible[2][i] = i % 3 == 1; /* the first key is masked: causal row 0 sees nothing */
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int causal = 0; causal < 2; causal++) {
            struct pk_attention_attr a = {
                .phi = (enum pk_phi)phi, .degree = 1 + phi + causal, .scale = 1, .causal = causal};

            check("mask", (struct shape){3, 2, 65, 65, 16}, a, PK_F32, 1, &mask, NULL, NULL, false, 1e-5);
            check("length", (struct shape){3, 2, 33, 65, 16}, a, PK_F32, 1, NULL, &length, NULL, false, 1e-5);
            check("both", (struct shape){3, 2, 65, 65, 16}, a, PK_F64, 1, &mask, &same, NULL, false, 1e-5);
            check("more queries than keys", (struct shape){1, 2, 65, 20, 16}, a, PK_F32, 1, NULL, NULL, NULL,
                  false, 1e-5);
            rig_reset(NULL);
        }
}

/* What a cache holds beyond the length does not count, not even NaN: few queries and many. */
static void test_nothing_beyond_the_length_is_read(void **state)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_backend *b = rig_backend(NULL, NULL, 1);
    int32_t lengths[2] = {21, 0};
    struct pd_why why;

    (void)state;
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int nq = 1; nq < 40; nq += 38)
            for (int bad = 0; bad < 2; bad++) {
                static float kept[2 * 2 * 40 * 16];
                struct pk_attr attr = {
                    .attention = {
                        .phi = (enum pk_phi)phi, .degree = 3, .tau = 0.25, .scale = 1, .has_length = true}};
                struct pk_view in[4], out[2];
                struct pk_call c = {.op = PK_OP_ATTENTION,
                                    .attr = &attr,
                                    .n_in = 4,
                                    .n_out = pk_phi_normalised((enum pk_phi)phi) ? 2 : 1,
                                    .in = in,
                                    .out = out};

                rig_reset(NULL); /* the same numbers both times */
                out[0] = rig_random(PK_F32, PK_SHAPE(2, nq, 2, 16), 0, 0);
                out[1] = rig_random(PK_F32, PK_SHAPE(2, 2, nq), 0, 0);
                in[0] = rig_random(PK_F32, PK_SHAPE(2, 2, nq, 16), -1, 1);
                in[1] = rig_random(PK_F32, PK_SHAPE(2, 2, 70, 16), -1, 1);
                in[2] = rig_random(PK_F32, PK_SHAPE(2, 2, 70, 16), -1, 1);
                in[3] = pk_view_dense(lengths, PK_I32, PK_SHAPE(2));
                for (int i = 1; bad && i < 3; i++)
                    for (int x = 0; x < 2 * 2 * 70 * 16; x++)
                        if (x / 16 % 70 >= lengths[x / 16 / 140])
                            ((float *)in[i].data)[x] = NAN;
                c.workspace_bytes = api->workspace_bytes(b, &c);
                c.workspace = rig_alloc(c.workspace_bytes);
                assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
                if (bad)
                    assert_memory_equal(kept, out[0].data, (size_t)(2 * nq * 2 * 16) * sizeof(float));
                memcpy(kept, out[0].data, (size_t)(2 * nq * 2 * 16) * sizeof(float));
            }
}

/* Where the power of a masked score overflows, the result must still be exactly 0. */
static void test_masked_overflow(void **state)
{
    uint8_t visible[40];
    struct pk_view mask = pk_view_dense(visible, PK_U8, PK_SHAPE(1, 40)), huge;
    struct pk_attr attr = {
        .attention = {.phi = PK_PHI_POLY, .degree = 5, .tau = 1, .scale = 1, .has_mask = true}};
    const struct pk_backend_api *api = pk_backend_cpu();

    (void)state;
    for (int i = 0; i < 40; i++)
        visible[i] = i < 20;
    for (int l = 0; l < 3; l++) {
        struct pk_backend *b = rig_backend(rig_levels[l], NULL, 2);
        struct pk_view in[6], out[3];
        struct pk_call c = {
            .op = PK_OP_ATTENTION, .attr = &attr, .n_in = 4, .n_out = 1, .in = in, .out = out};
        struct pd_why why;

        if (!b)
            continue;
        in[0] = rig_random(PK_F32, PK_SHAPE(1, 1, 10, 16), 0.5, 1);
        huge = rig_random(PK_F32, PK_SHAPE(1, 1, 40, 16), 0.5, 1);
        for (int i = 20 * 16; i < 40 * 16; i++)
            ((float *)huge.data)[i] = 1e30f;
        in[1] = huge;
        in[2] = rig_random(PK_F32, PK_SHAPE(1, 1, 40, 16), -1, 1);
        in[3] = mask;
        out[0] = rig_random(PK_F32, PK_SHAPE(1, 10, 1, 16), 0, 1);
        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        for (int i = 0; i < 160; i++)
            assert_true(isfinite(((float *)out[0].data)[i]));
        in[4] = out[0];
        in[5] = rig_random(PK_F32, PK_SHAPE(1, 10, 1, 16), -1, 1);
        for (int i = 0; i < 3; i++)
            out[i] = rig_random(PK_F32, in[i].shape, 0, 1);
        c.op = PK_OP_ATTENTION_BWD;
        c.n_in = 6;
        c.n_out = 3;
        c.workspace_bytes = api->workspace_bytes(b, &c);
        c.workspace = rig_alloc(c.workspace_bytes);
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        for (int i = 20 * 16; i < 40 * 16; i++) {
            assert_true(((float *)out[1].data)[i] == 0);
            assert_true(((float *)out[2].data)[i] == 0);
        }
        for (int i = 0; i < 160; i++)
            assert_true(isfinite(((float *)out[0].data)[i]));
    }
}

static void test_degrees_and_scales(void **state)
{
    const double layer[1] = {-0.7}, zero[1] = {0}, heads[3] = {0.5, 0, -2};

    (void)state;
    for (int t = 0; t < 2; t++) {
        enum pk_dtype dtype = t ? PK_F64 : PK_F32;
        struct pk_view one = rig_values(dtype, PK_SHAPE(1), layer),
                       none = rig_values(dtype, PK_SHAPE(1), zero);
        struct pk_view each = rig_values(dtype, PK_SHAPE(3), heads);

        for (int p = 1; p <= 8; p++) {
            struct pk_attention_attr a = {
                .phi = PK_PHI_POLY, .degree = p, .scale = 0.5, .causal = p % 2, .packed = p > 4};

            check("degree", (struct shape){2, 3, 33, 33, 16}, a, dtype, 1.5, NULL, NULL, NULL, p % 3 == 0,
                  2e-5);
            check("c per layer", (struct shape){2, 3, 33, 33, 16}, a, dtype, 1, NULL, NULL, &one, false,
                  2e-5);
            check("c = 0", (struct shape){2, 3, 33, 33, 16}, a, dtype, 1, NULL, NULL, &none, false, 2e-5);
            check("c per head", (struct shape){2, 3, 33, 33, 16}, a, dtype, 1, NULL, NULL, &each, false,
                  2e-5);
        }
        for (int phi = 0; phi < PK_PHIS; phi++) {
            struct pk_attention_attr a = {
                .phi = (enum pk_phi)phi, .degree = 2, .scale = -1, .bias = phi ? -0.5 : 0};

            check("scaled phi", (struct shape){2, 3, 33, 40, 16}, a, dtype, 1, NULL, NULL, &each, false,
                  2e-5);
        }
        rig_reset(NULL);
    }
}

static void test_zero_and_huge(void **state)
{
    (void)state;
    for (int p = 1; p <= 3; p++) {
        struct pk_attention_attr a = {.phi = PK_PHI_POLY, .degree = p, .scale = 1};

        check("zero q and k", (struct shape){1, 2, 65, 65, 16}, a, PK_F32, 0, NULL, NULL, NULL, false, 1e-5);
    }
    check("zero q and k", (struct shape){1, 2, 65, 65, 16}, softmax, PK_F32, 0, NULL, NULL, NULL, false,
          1e-5);
    check("huge logits", (struct shape){1, 2, 65, 65, 16}, softmax, PK_F32, 20, NULL, NULL, NULL, false,
          2e-4);
    check("huge logits", (struct shape){1, 2, 65, 65, 16}, cubic, PK_F32, 20, NULL, NULL, NULL, false, 1e-4);
    check("huge logits, blocks", (struct shape){1, 1, 65, 700, 16}, softmax, PK_F64, 20, NULL, NULL, NULL,
          false, 1e-3);
}

static void test_stats(void **state)
{
    uint8_t visible[2][65];
    struct pk_view mask = pk_view_dense(visible, PK_U8, PK_SHAPE(2, 65));

    (void)state;
    memset(visible, 1, sizeof visible);
    visible[1][0] = visible[1][3] = 0;
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int v = 0; v < 4; v++) {
            struct rig_case c = {.op = PK_OP_ATTENTION_STATS, .name = "stats", .tolerance = 2e-5, .n_out = 5};
            int n = 0;

            c.attr.attention = (struct pk_attention_attr){
                .phi = (enum pk_phi)phi,
                .degree = 3,
                .scale = -0.5,
                .tau = 0.25,
                .causal = v & 1,
                .row_power = v & 1 && !pk_phi_normalised((enum pk_phi)phi) ? 0.5 : 0,
                .packed = v & 2,
                .has_mask = true,
                .bias = phi == PK_PHI_SIGMOID ? -2 : 0};
            if (v & 2) {
                c.in[n++] = rig_random(v & 1 ? PK_F64 : PK_F32, PK_SHAPE(2, 65, 3, 3, 16), -1, 1);
            } else {
                c.in[n++] = rig_random(v & 1 ? PK_F64 : PK_F32, PK_SHAPE(2, 3, 20, 16), -1, 1);
                c.in[n++] = rig_random(v & 1 ? PK_F64 : PK_F32, PK_SHAPE(2, 3, 65, 16), -1, 1);
                c.in[n] = c.in[n - 1];
                n++;
            }
            c.in[n++] = mask;
            c.in[n++] = rig_random(v & 1 ? PK_F64 : PK_F32, PK_SHAPE(2, v & 2 ? 65 : 20, 24), -1, 1);
            c.n_in = n;
            for (int o = 0; o < 5; o++) {
                c.out[o] = PK_SHAPE(2, 3);
                c.out_dtype[o] = v & 1 ? PK_F64 : PK_F32;
            }
            rig_check(&c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_sizes, rig_reset),
        cmocka_unit_test_teardown(test_blocks, rig_reset),
        cmocka_unit_test_teardown(test_few_queries, rig_reset),
        cmocka_unit_test_teardown(test_masks, rig_reset),
        cmocka_unit_test_teardown(test_nothing_beyond_the_length_is_read, rig_reset),
        cmocka_unit_test_teardown(test_masked_overflow, rig_reset),
        cmocka_unit_test_teardown(test_degrees_and_scales, rig_reset),
        cmocka_unit_test_teardown(test_zero_and_huge, rig_reset),
        cmocka_unit_test_teardown(test_stats, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
