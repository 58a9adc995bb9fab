/* Attention's bias, windows, dropout and linear forms against the reference: sizes on both sides of tiles and
 * blocks. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/attention_rig.h"

static const struct shape shapes[] = {
    {4, 2, 49, 49, 32}, {2, 3, 65, 70, 16}, {2, 1, 130, 1100, 16}, {6, 2, 3, 33, 7}};
static const double words[4] = {77, -9, 12345, 3}; /* the last: which share of a batch */

static void test_bias(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int phi = 0; phi < PK_PHIS; phi++) {
            enum pk_dtype dtype = phi == PK_PHI_POLY && i == 0 ? PK_F64 : PK_F32;
            struct pk_view bias = rig_random(dtype, PK_SHAPE(shapes[i].h, shapes[i].nq, shapes[i].nk), -1, 1);
            const double heads[3] = {0.5, -2, 1};
            struct pk_view scale = rig_values(dtype, PK_SHAPE(shapes[i].h), heads);

            if (phi % 2)
                bias = rig_strided(&bias);
            attention_check(&(struct attention_case){
                .name = "bias",
                .shape = shapes[i],
                .attr = {.phi = (enum pk_phi)phi, .degree = 3, .scale = 0.5, .causal = i % 2},
                .dtype = dtype,
                .spread = 1,
                .bias = &bias,
                .scale = phi == PK_PHI_POLY ? &scale : NULL,
                .tolerance = 2e-5});
            rig_reset(NULL);
        }
}

static void test_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int phi = 0; phi < PK_PHIS; phi++) {
            struct shape s = shapes[i];
            struct pk_view mask = rig_random(PK_U8, PK_SHAPE(s.b / 2, s.nq, s.nk), 0, 2), bias;

            /* A query that sees nothing and a key that nobody sees. */
            memset(mask.data, 0, (size_t)s.nk);
            for (int q = 0; q < s.nq; q++)
                ((uint8_t *)mask.data)[q * s.nk + 1] = 0;
            bias = rig_random(PK_F32, PK_SHAPE(s.h, s.nq, s.nk), -1, 1);
            if (phi % 2)
                mask = rig_strided(&mask);
            attention_check(&(struct attention_case){
                .name = "windows",
                .shape = s,
                .attr = {.phi = (enum pk_phi)phi, .degree = 1 + (int)i, .scale = 1, .causal = phi % 3 == 1},
                .dtype = PK_F32,
                .spread = 1,
                .mask = &mask,
                .bias = i % 2 ? &bias : NULL,
                .tolerance = 2e-5});
            rig_reset(NULL);
        }
}

static void test_dropout(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int phi = 0; phi < PK_PHIS; phi++) {
            struct pk_view rng = rig_values(PK_I32, PK_SHAPE(3 + phi % 2), words);

            attention_check(&(struct attention_case){.name = "dropout",
                                                     .shape = shapes[i],
                                                     .attr = {.phi = (enum pk_phi)phi,
                                                              .degree = 3,
                                                              .scale = 1,
                                                              .dropout = phi % 2 ? 0.1 : 0.5,
                                                              .stream = 9,
                                                              .causal = i % 2},
                                                     .dtype = i == 1 ? PK_F64 : PK_F32,
                                                     .spread = 1,
                                                     .rng = &rng,
                                                     .tolerance = 2e-5});
            rig_reset(NULL);
        }
}

static void test_linear_order(void **state)
{
    static const struct shape sizes[] = {{2, 2, 1, 1, 16},    {1, 2, 63, 63, 16},   {2, 3, 64, 64, 32},
                                         {1, 2, 65, 65, 64},  {1, 1, 200, 200, 48}, {2, 1, 130, 130, 7},
                                         {1, 2, 70, 150, 80}, {1, 1, 90, 33, 130}};
    const double heads[3] = {0.5, 0, -2};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int p = 1; p <= 2; p++)
            for (int causal = 0; causal < 2; causal++)
                for (int form = 0; form < 3; form++) {
                    struct shape s = sizes[i];
                    enum pk_dtype dtype = form == 2 ? PK_F64 : PK_F32;
                    struct pk_view mask = rig_random(PK_U8, PK_SHAPE(s.b, s.nk), 0, 2);
                    struct pk_view scale = rig_values(dtype, PK_SHAPE(form == 2 ? 1 : s.h), heads);

                    if (causal && s.nq != s.nk)
                        continue;
                    attention_check(&(struct attention_case){.name = "linear order",
                                                             .shape = s,
                                                             .attr = {.phi = PK_PHI_POLY,
                                                                      .degree = p,
                                                                      .scale = -0.5,
                                                                      .form = PK_FORM_LINEAR,
                                                                      .causal = causal,
                                                                      .packed = form == 2 && s.nq == s.nk},
                                                             .dtype = dtype,
                                                             .spread = 1,
                                                             .mask = form ? &mask : NULL,
                                                             .scale = form ? &scale : NULL,
                                                             .strided = form == 1,
                                                             .tolerance = 3e-5});
                    rig_reset(NULL);
                }
}

/* Keys at and beyond the length are not there, and what they hold does not matter. */
static void test_linear_order_with_lengths(void **state)
{
    int32_t lengths[2] = {70, 0};
    struct pk_view length = pk_view_dense(lengths, PK_I32, PK_SHAPE(2));

    (void)state;
    for (int p = 1; p <= 2; p++)
        attention_check(&(struct attention_case){
            .name = "linear order, lengths",
            .shape = {2, 2, 40, 100, 16},
            .attr = {.phi = PK_PHI_POLY, .degree = p, .scale = 1, .form = PK_FORM_LINEAR},
            .dtype = PK_F32,
            .spread = 1,
            .length = &length,
            .tolerance = 3e-5});
}

/* Rows divided by a power of their length: more queries than keys, single queries, both orders. */
static void test_rows(void **state)
{
    static const struct shape sizes[] = {
        {2, 2, 130, 130, 16}, {1, 2, 70, 20, 16}, {2, 1, 1, 40, 32}, {1, 1, 65, 65, 7}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int phi = PK_PHI_POLY; phi <= PK_PHI_RELU; phi++)
            for (int form = PK_FORM_QUADRATIC; form <= PK_FORM_LINEAR; form++) {
                enum pk_dtype dtype = i % 2 ? PK_F64 : PK_F32;
                const double c[1] = {-0.7};
                struct pk_view scale = rig_values(dtype, PK_SHAPE(1), c);

                if (form == PK_FORM_LINEAR && (phi != PK_PHI_POLY || sizes[i].nq != sizes[i].nk))
                    continue;
                attention_check(&(struct attention_case){.name = "rows",
                                                         .shape = sizes[i],
                                                         .attr = {.phi = (enum pk_phi)phi,
                                                                  .degree = 2,
                                                                  .scale = 1,
                                                                  .row_power = 0.5,
                                                                  .causal = true,
                                                                  .form = (enum pk_form)form},
                                                         .dtype = dtype,
                                                         .spread = 1,
                                                         .scale = &scale,
                                                         .tolerance = 3e-5});
                rig_reset(NULL);
            }
}

/* Prompts by chunks, single tokens, slots without work, a state that begins anew. */
static void test_state(void **state)
{
    static const struct shape sizes[] = {
        {3, 2, 1, 1, 64}, {3, 2, 4, 4, 16}, {3, 1, 70, 70, 32}, {3, 2, 9, 9, 7}, {3, 1, 130, 130, 16}};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int p = 1; p <= 2; p++)
            for (int t = 0; t < 2; t++) {
                struct shape s = sizes[i];
                enum pk_dtype dtype = t ? PK_F64 : PK_F32;
                const double heads[2] = {0.5, -2}, at[3] = {0, 11, 7};
                const double ends[3] = {(double)(s.nq + 1) / 2, 11 + s.nq, 7};
                struct rig_case c = {
                    .op = PK_OP_ATTENTION_STATE, .name = "state", .tolerance = 3e-5, .n_out = 2};
                int n = 0;

                c.attr.attention = (struct pk_attention_attr){.phi = PK_PHI_POLY,
                                                              .degree = p,
                                                              .tau = 0.3,
                                                              .scale = 0.7,
                                                              .row_power = t ? 0.5 : 0,
                                                              .causal = true,
                                                              .has_length = true,
                                                              .has_scale = t};
                for (; n < 3; n++) {
                    c.in[n] = rig_random(dtype, PK_SHAPE(s.b, s.h, s.nq, s.d), -1, 1);
                    if (t)
                        c.in[n] = rig_strided(&c.in[n]);
                }
                if (t)
                    c.in[n++] = rig_values(dtype, PK_SHAPE(s.h), heads);
                c.in[n++] = rig_values(PK_I32, PK_SHAPE(3), ends);
                c.in[n++] = rig_values(PK_I32, PK_SHAPE(3), at);
                c.in[n++] = rig_random(dtype, PK_SHAPE(s.b, s.h, pk_attention_features(p, s.d), s.d), -1, 1);
                c.n_in = n;
                c.out[0] = PK_SHAPE(s.b, s.nq, s.h, s.d);
                c.out[1] = c.in[n - 1].shape;
                c.out_dtype[0] = c.out_dtype[1] = dtype;
                c.share[1] = n;
                rig_check(&c);
                rig_reset(NULL);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bias, rig_reset),
        cmocka_unit_test_teardown(test_windows, rig_reset),
        cmocka_unit_test_teardown(test_dropout, rig_reset),
        cmocka_unit_test_teardown(test_linear_order, rig_reset),
        cmocka_unit_test_teardown(test_linear_order_with_lengths, rig_reset),
        cmocka_unit_test_teardown(test_rows, rig_reset),
        cmocka_unit_test_teardown(test_state, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
