/* Attention on the emulated GPU: sizes on both sides of strips and tiles, every activation and option, in
 * bf16, TF32 and f32. The ordinary run takes options in pairs; POLYD_TEST_FULL=1 the whole product. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend/cuda/cuda.h"
#include "tests/gpu/attention_case.h"

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

const struct pk_backend_api *pk_backend_entry(void);

static const struct {
    enum pk_dtype dtype;
    enum pk_math math;
} kinds[] = {{PK_BF16, PK_MATH_F32}, {PK_F32, PK_MATH_TF32}, {PK_F32, PK_MATH_F32}};

static bool full(void)
{
    return getenv("POLYD_TEST_FULL") != NULL;
}

static void check(const char *name, int kind, struct attention_shape shape, struct pk_attention_attr attr)
{
    attention_check(&(struct attention_case){.name = name,
                                             .shape = shape,
                                             .attr = attr,
                                             .dtype = kinds[kind].dtype,
                                             .math = kinds[kind].math,
                                             .spread = attr.phi == PK_PHI_POLY ? 1.5 : 2});
    attention_reset(NULL);
}

static const struct pk_attention_attr softmax = {.phi = PK_PHI_SOFTMAX, .scale = 1};
static const struct pk_attention_attr cubic = {.phi = PK_PHI_POLY, .degree = 3, .scale = 0.25};

/* N mod 128 in {0, 1, 63, 64, 65, 127}, 1, 49, 197; alone and packed, causal or not. */
static void test_sizes(void **state)
{
    static const int sizes[] = {1, 49, 63, 64, 65, 127, 128, 129, 197};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int v = 0; v < (full() ? 12 : 2); v++) {
            const int kind = full() ? v / 4 : (i + v) % 3, n = sizes[i];
            struct pk_attention_attr a = v % 2 ? softmax : cubic;

            a.causal = full() ? v / 2 % 2 : (i + v) / 2 % 2;
            a.packed = i % 2;
            check("size", kind, (struct attention_shape){1, 2, n, n, 16}, a);
        }
}

static void test_head_dimensions(void **state)
{
    static const int dims[] = {16, 32, 48, 64, 80, 128, 7, 40, 130, 256};

    (void)state;
    for (int i = 0; i < COUNT(dims); i++)
        for (int kind = 0; kind < 3; kind++) {
            struct pk_attention_attr a = i % 2 ? softmax : cubic;

            if (!full() && dims[i] > 128 && kind == 1)
                continue;
            check("head dimension", kind, (struct attention_shape){1, 2, 33, 40, dims[i]}, a);
            a.packed = a.causal = true;
            if (full() || dims[i] == 48 || dims[i] == 80)
                check("head dimension, packed", kind, (struct attention_shape){2, 3, 37, 37, dims[i]}, a);
        }
}

static void test_degrees(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int kind = 0; kind < 3; kind++) {
            if (!full() && p > 3 && kind != p % 3)
                continue;
            check("degree", kind, (struct attention_shape){1, 2, 33, 33, 16},
                  (struct pk_attention_attr){.phi = PK_PHI_POLY, .degree = p, .scale = 0.5, .causal = p % 2});
        }
}

/* Every activation with every option; a pair of options at a time, or all of them. */
static void test_options(void **state)
{
    enum { CAUSAL, PACKED, BIAS, LENGTH, DROPOUT, STRIDED, LOGIT, ROW, MASK, WINDOW, SCALE, HEADS, OPTIONS };

    (void)state;
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int x = 0; x < OPTIONS; x++)
            for (int y = x; y < OPTIONS; y++) {
                const unsigned on = 1u << x | 1u << y;
                const int kind = (phi + x + y) % 3;
                struct attention_case c = {
                    .name = "options",
                    .shape = {2, 3, 35, 40, 16},
                    .attr = {.phi = (enum pk_phi)phi, .degree = 1 + (x + y) % 6, .scale = 0.5},
                    .dtype = kinds[kind].dtype,
                    .math = kinds[kind].math,
                    .spread = 1.5};

                if (!full() && (x * 7 + y * 3 + phi) % 4 != 0 && x != y)
                    continue;
                c.attr.causal = on >> CAUSAL & 1;
                c.attr.packed = on >> PACKED & 1;
                c.bias = on >> BIAS & 1;
                c.length = on >> LENGTH & 1;
                c.dropout = on >> DROPOUT & 1;
                c.strided = on >> STRIDED & 1;
                c.attr.bias = on >> LOGIT & 1 ? -0.75 : 0;
                if (on >> ROW & 1 && !pk_phi_normalised((enum pk_phi)phi)) {
                    c.attr.causal = true;
                    c.attr.row_power = 0.5;
                }
                c.mask = on >> MASK & 1 ? MASK_KEYS : on >> WINDOW & 1 ? MASK_WINDOWS : MASK_NONE;
                c.scale = on >> HEADS & 1 ? SCALE_HEADS : on >> SCALE & 1 ? SCALE_LAYER : SCALE_NONE;
                if (c.attr.packed)
                    c.shape.nk = c.shape.nq;
                attention_check(&c);
                attention_reset(NULL);
            }
}

/* Blocks of several pairs, of several strips a warp, streams of many tiles. */
static void test_deals(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct attention_case c = {.name = "windows of 49",
                                   .shape = {4, 3, 49, 49, 32},
                                   .attr = cubic,
                                   .dtype = kinds[kind].dtype,
                                   .math = kinds[kind].math,
                                   .spread = 1.5,
                                   .mask = MASK_WINDOWS,
                                   .bias = true,
                                   .scale = SCALE_HEADS};

        attention_check(&c);
        c.attr.phi = PK_PHI_SOFTMAX;
        attention_check(&c);
        attention_reset(NULL);
        check("five tokens", kind, (struct attention_shape){7, 2, 5, 5, 16}, softmax);
        check("five tokens", kind, (struct attention_shape){7, 2, 5, 5, 16}, cubic);
        check("one token", kind, (struct attention_shape){3, 2, 1, 1, 48}, cubic);
        check("more queries", kind, (struct attention_shape){1, 1, 150, 20, 16}, cubic);
        check("more keys", kind, (struct attention_shape){1, 1, 20, 400, 16}, kind == 1 ? softmax : cubic);
    }
    {
        struct pk_attention_attr a = softmax;

        a.causal = true;
        check("streams", 0, (struct attention_shape){1, 1, 130, 500, 16}, a);
        check("streams", 1, (struct attention_shape){1, 1, 200, 200, 80}, a);
        check("streams", 0, (struct attention_shape){1, 1, 420, 420, 64}, cubic);
    }
}

/* The gradients of up to 256 keys in one pass: strips of a warp, one and two, tiles of queries, runs of a
 * batch. */
static void test_short_rows(void **state)
{
    static const struct attention_shape sizes[] = {
        {3, 2, 49, 49, 32},  {2, 3, 1, 17, 64},   {4, 2, 65, 63, 48}, {3, 2, 33, 65, 16},
        {2, 1, 70, 197, 64}, {1, 3, 10, 129, 64}, {2, 2, 40, 256, 8}, {7, 2, 30, 16, 24}};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int v = 0; v < (full() ? 12 : 2); v++) {
            const int phi = full() ? v / 2 : (i + v) % 2 ? PK_PHI_POLY : (i + 2 * v) % PK_PHIS;
            struct attention_case c = {
                .name = "short rows",
                .shape = sizes[i],
                .attr = {.phi = (enum pk_phi)phi, .degree = 1 + (i + v) % 5, .scale = 0.5},
                .dtype = PK_BF16,
                .spread = 1.5,
                .bias = v != 1,
                .scale = v % 3 ? SCALE_HEADS : SCALE_LAYER,
                .dropout = (i + v) % 4 == 3,
                .length = (i + v) % 5 == 1,
                .swapped = i % 2,
                .mask = (i + v) % 3 == 1 ? MASK_KEYS : MASK_NONE};

            c.attr.causal = (i + v) % 3 == 0;
            if (c.attr.causal && !pk_phi_normalised((enum pk_phi)phi) && v == 2)
                c.attr.row_power = 0.5;
            attention_check(&c);
            attention_reset(NULL);
        }
}

/* Decoding: few queries, keys in parts. */
static void test_decoding(void **state)
{
    (void)state;
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int nq = 1; nq <= 16; nq += full() ? 5 : 15) {
            struct attention_case c = {
                .name = "decoding",
                .shape = {2, 2, nq, 600, 48},
                .attr = {.phi = (enum pk_phi)phi, .degree = 3, .scale = 0.5, .causal = nq > 1},
                .dtype = kinds[phi % 3].dtype,
                .math = kinds[phi % 3].math,
                .spread = 1,
                .length = nq > 1,
                .scale = SCALE_HEADS,
                .forward = true};

            attention_check(&c);
            attention_reset(NULL);
        }
}

static void test_degenerate(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int p = 0; p <= 3; p++) {
            struct attention_case c = {.name = "zero q and k",
                                       .shape = {2, 2, 33, 33, 16},
                                       .attr = p ? cubic : softmax,
                                       .dtype = kinds[kind].dtype,
                                       .math = kinds[kind].math,
                                       .mask = MASK_KEYS};

            c.attr.degree = p;
            attention_check(&c);
            c.name = "c = 0";
            c.spread = 1;
            c.scale = SCALE_ZERO;
            attention_check(&c);
            c.name = "huge logits";
            c.scale = SCALE_LAYER;
            c.spread = 15;
            c.loose = p ? 0 : 5; /* tests/golden/README.md 10: 1e-4 in f32, for "biglogits" */
            attention_check(&c);
            attention_reset(NULL);
        }
}

/* Where the power of a masked score overflows, the result must still be exactly 0. */
static void test_masked_overflow(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct attention_call c = {
            .name = "masked overflow",
            .op = PK_OP_ATTENTION,
            .attr.attention = {.phi = PK_PHI_POLY, .degree = 5, .tau = 1, .scale = 1, .has_mask = true},
            .n_in = 4,
            .n_out = 1,
            .out = {PK_SHAPE(1, 10, 1, 16)},
            .tolerance = 0.05,
            .math = kinds[kind].math};
        uint8_t *seen;

        c.in[0] = attention_random(kinds[kind].dtype, PK_SHAPE(1, 1, 10, 16), 0.5, 1);
        c.in[1] = attention_random(kinds[kind].dtype, PK_SHAPE(1, 1, 40, 16), 0.5, 1);
        c.in[2] = attention_random(kinds[kind].dtype, PK_SHAPE(1, 1, 40, 16), -1, 1);
        c.in[3] = attention_random(PK_U8, PK_SHAPE(1, 40), 0, 1);
        seen = c.in[3].data;
        for (int j = 0; j < 40; j++) {
            seen[j] = j < 20;
            for (int x = 0; x < 16 && j >= 20; x++) {
                if (kinds[kind].dtype == PK_BF16)
                    ((uint16_t *)c.in[1].data)[j * 16 + x] = 0x7149; /* 1e30 */
                else
                    ((float *)c.in[1].data)[j * 16 + x] = 1e30f;
            }
        }
        attention_call_check(&c);
        c.op = PK_OP_ATTENTION_BWD;
        c.in[4] = attention_random(kinds[kind].dtype, PK_SHAPE(1, 10, 1, 16), -1, 1);
        c.in[5] = attention_random(kinds[kind].dtype, PK_SHAPE(1, 10, 1, 16), -1, 1);
        c.n_in = 6;
        c.n_out = 3;
        for (int i = 0; i < 3; i++)
            c.out[i] = c.in[i].shape;
        attention_call_check(&c);
        attention_reset(NULL);
    }
}

/* x and x^2 by features, in one chunk and in several: against the square's definition. */
static void test_linear_order(void **state)
{
    static const struct attention_shape sizes[] = {
        {2, 2, 1, 1, 16},   {2, 3, 64, 64, 32},   {1, 1, 65, 65, 48},   {2, 1, 70, 70, 7},
        {1, 1, 20, 70, 80}, {1, 1, 300, 300, 16}, {1, 1, 130, 130, 64}, {1, 1, 33, 20, 130}};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int p = 1; p <= 2; p++)
            for (int v = 0; v < 6; v++) {
                const int kind = v % 3;
                struct attention_case c = {.name = "linear order",
                                           .shape = sizes[i],
                                           .attr = {.phi = PK_PHI_POLY,
                                                    .degree = p,
                                                    .scale = -0.5,
                                                    .form = PK_FORM_LINEAR,
                                                    .causal = v / 3},
                                           .dtype = kinds[kind].dtype,
                                           .math = kinds[kind].math,
                                           .spread = 1};

                if (c.attr.causal && c.shape.nq != c.shape.nk)
                    continue;
                if (!full() && ((i + p + v) % 3 != 0 || i > 5))
                    continue;
                c.mask = (i + v) % 2 ? MASK_KEYS : MASK_NONE;
                c.scale = (i + v) % 4 == 1 ? SCALE_HEADS : v % 2 ? SCALE_LAYER : SCALE_NONE;
                c.strided = (i + p) % 3 == 0;
                c.attr.row_power = c.attr.causal && v == 4 ? 0.5 : 0;
                c.length = !c.attr.causal && i % 2;
                c.attr.packed = c.shape.nq == c.shape.nk && i == 2;
                attention_check(&c);
                attention_reset(NULL);
            }
}

/* The same in bf16 with short heads: kernels of their own, in chunks of 256 tokens and in as many as fill a
 * device. */
static void test_linear_order_in_bf16(void **state)
{
    static const struct attention_shape sizes[] = {
        {1, 2, 300, 300, 16}, {1, 1, 256, 256, 64}, {1, 1, 257, 257, 24}, {1, 1, 260, 530, 8},
        {1, 1, 70, 40, 32},   {2, 2, 15, 15, 40},   {2, 1, 70, 70, 48},   {1, 1, 600, 600, 8}};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int p = 1; p <= 2; p++)
            for (int causal = 0; causal < 2; causal++) {
                struct attention_case c = {.name = "linear order in bf16",
                                           .shape = sizes[i],
                                           .attr = {.phi = PK_PHI_POLY,
                                                    .degree = p,
                                                    .scale = -0.5,
                                                    .form = PK_FORM_LINEAR,
                                                    .causal = causal},
                                           .dtype = PK_BF16,
                                           .spread = 1};

                if (!full() && i > 5)
                    break;
                if (causal && c.shape.nq != c.shape.nk)
                    continue;
                c.mask = (i + p) % 2 ? MASK_KEYS : MASK_NONE;
                c.scale = (i + p) % 3 == 0 ? SCALE_HEADS : p == 1 ? SCALE_NONE : SCALE_LAYER;
                c.strided = i == 5;
                c.swapped = i == 1;
                c.length = !causal && i % 2;
                c.attr.packed = c.shape.nq == c.shape.nk && i == 6;
                attention_check(&c);
                attention_reset(NULL);
            }
}

/* Blocks of sm 86 have at most 99 KiB of shared memory. */
static void test_linear_order_in_little_shared_memory(void **state)
{
    (void)state;
    attention_close();
    setenv("POLYD_EMU_SM", "86", 1);
    attention_open_without_hopper(pk_backend_entry());
    for (int causal = 0; causal < 2; causal++)
        for (int n = 256; n <= 520; n += 264) {
            const struct attention_case c = {.name = "linear order in little shared memory",
                                             .shape = {1, 1, n, n, 64},
                                             .attr = {.phi = PK_PHI_POLY,
                                                      .degree = 2,
                                                      .scale = -0.5,
                                                      .form = PK_FORM_LINEAR,
                                                      .causal = causal},
                                             .dtype = PK_BF16,
                                             .scale = SCALE_HEADS,
                                             .spread = 1};

            attention_check(&c);
            attention_reset(NULL);
        }
    attention_close();
    setenv("POLYD_EMU_SM", "80", 1);
    attention_open_without_hopper(pk_backend_entry());
}

static void test_stats(void **state)
{
    (void)state;
    for (int phi = 0; phi < PK_PHIS; phi++)
        for (int v = 0; v < 4; v++) {
            const enum pk_dtype dtype = v % 2 ? PK_F32 : PK_BF16;
            struct attention_call c = {.name = "stats",
                                       .op = PK_OP_ATTENTION_STATS,
                                       .attr.attention = {.phi = (enum pk_phi)phi,
                                                          .degree = 3,
                                                          .scale = -0.5,
                                                          .tau = 0.25,
                                                          .causal = v & 1,
                                                          .packed = v & 2,
                                                          .has_scale = true,
                                                          .has_mask = true,
                                                          .bias = phi == PK_PHI_SIGMOID ? -2 : 0},
                                       .n_out = 5,
                                       .tolerance = 1e-4};
            const double heads[3] = {1, -2, 0.5};
            uint8_t *seen;
            int n = 0;

            if (v & 1 && !pk_phi_normalised((enum pk_phi)phi))
                c.attr.attention.row_power = 0.5;
            if (v & 2) {
                c.in[n++] = attention_random(dtype, PK_SHAPE(2, 65, 3, 3, 16), -1, 1);
            } else {
                c.in[n++] = attention_random(dtype, PK_SHAPE(2, 3, 20, 40), -1, 1);
                c.in[n++] = attention_random(dtype, PK_SHAPE(2, 3, 65, 40), -1, 1);
                c.in[n] = c.in[n - 1];
                n++;
            }
            c.in[n++] = attention_values(PK_F32, PK_SHAPE(3), heads);
            c.in[n] = attention_random(PK_U8, PK_SHAPE(2, 65), 0, 2);
            seen = c.in[n++].data;
            seen[0] = 1;
            memset(seen + 65, 0, 65);
            c.in[n++] = attention_random(v & 2 ? PK_F32 : dtype, PK_SHAPE(2, v & 2 ? 65 : 20, 24), -1, 1);
            c.n_in = n;
            for (int o = 0; o < 5; o++) {
                c.out[o] = PK_SHAPE(2, 3);
                c.wide[o] = true;
            }
            attention_call_check(&c);
            attention_reset(NULL);
        }
}

static void test_state_of_constant_size(void **state)
{
    static const struct attention_shape sizes[] = {
        {3, 2, 1, 0, 64}, {3, 2, 21, 0, 32}, {3, 2, 9, 0, 7}, {3, 1, 40, 0, 16}, {3, 1, 2, 0, 130}};

    (void)state;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int p = 1; p <= 2; p++)
            for (int t = 0; t < 2; t++) {
                const struct attention_shape s = sizes[i];
                const double heads[2] = {0.5, -2}, at[3] = {0, 11, 7};
                const double ends[3] = {(double)(s.nq + 1) / 2, 11 + s.nq, 7};
                struct attention_call c = {.name = "state",
                                           .op = PK_OP_ATTENTION_STATE,
                                           .attr.attention = {.phi = PK_PHI_POLY,
                                                              .degree = p,
                                                              .tau = 0.3,
                                                              .scale = 0.7,
                                                              .row_power = t ? 0.5 : 0,
                                                              .causal = true,
                                                              .has_length = true,
                                                              .has_scale = t},
                                           .n_out = 2,
                                           .tolerance = t ? 1e-5 : 0.01};
                int n = 0;

                for (; n < 3; n++) {
                    c.in[n] = attention_random(t ? PK_F32 : PK_BF16, PK_SHAPE(s.b, s.h, s.nq, s.d), -1, 1);
                    if (t)
                        c.in[n] = attention_strided(&c.in[n]);
                }
                if (t)
                    c.in[n++] = attention_values(PK_F32, PK_SHAPE(s.h), heads);
                c.in[n++] = attention_values(PK_I32, PK_SHAPE(3), ends);
                c.in[n++] = attention_values(PK_I32, PK_SHAPE(3), at);
                c.in[n++] = attention_random(i % 2 || t ? PK_F32 : PK_BF16,
                                             PK_SHAPE(s.b, s.h, pk_attention_features(p, s.d), s.d), -1, 1);
                c.n_in = n;
                c.out[0] = PK_SHAPE(s.b, s.nq, s.h, s.d);
                c.out[1] = c.in[n - 1].shape;
                c.share[1] = n;
                attention_call_check(&c);
                attention_reset(NULL);
            }
}

/* The tangent of y and the second derivative, each option with each degree in turn. */
static void test_tangents(void **state)
{
    (void)state;
    for (int second = 0; second < 2; second++)
        for (int v = 0; v < 12; v++) {
            const struct attention_shape sizes[] = {{2, 2, 5, 5, 32}, {2, 2, 35, 40, 16}, {1, 1, 70, 33, 80}};
            const struct attention_shape s = sizes[v % 3];
            const double heads[2] = {0.5, -2}, turned[2] = {-1, 0.25}, lengths[2] = {4, 33};
            const bool packed = s.nq == s.nk && v & 1;
            struct attention_call c = {.name = second ? "second derivative" : "tangent",
                                       .op = second ? PK_OP_ATTENTION_BWD2 : PK_OP_ATTENTION_JVP,
                                       .attr.attention = {.phi = PK_PHI_POLY,
                                                          .degree = 1 + v % 5,
                                                          .scale = 0.7,
                                                          .tau = 0.3,
                                                          .bias = v % 4 == 3 ? 0.25 : 0,
                                                          .causal = v % 4 == 1,
                                                          .row_power = v == 5 ? 0.5 : 0,
                                                          .packed = packed,
                                                          .has_scale = v & 1,
                                                          .has_bias = v & 2,
                                                          .has_mask = v & 4,
                                                          .has_length = v & 8},
                                       .math = v & 4 ? PK_MATH_TF32 : PK_MATH_F32,
                                       .tolerance = v & 4 ? 0.02 : 2e-5};
            int n = 0;

            for (int round = 0; round < 2; round++) {
                if (packed) {
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.b, s.nq, 3, s.h, s.d), -1, 1);
                } else {
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.b, s.h, s.nq, s.d), -1, 1);
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.b, s.h, s.nk, s.d), -1, 1);
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.b, s.h, s.nk, s.d), -1, 1);
                }
                for (int i = 0; v == 7 && i < n; i++)
                    c.in[i] = attention_strided(&c.in[i]);
                if (v & 1)
                    c.in[n++] = attention_values(PK_F32, PK_SHAPE(s.h), round ? turned : heads);
                if (v & 2)
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.h, s.nq, s.nk), -1, 1);
                if (round)
                    break;
                c.n_out = n;
                for (int i = 0; i < n; i++)
                    c.out[i] = c.in[i].shape;
                if (v & 4)
                    c.in[n++] = attention_random(PK_U8, PK_SHAPE(s.b, s.nk), 0, 2);
                if (v & 8)
                    c.in[n++] = attention_values(PK_I32, PK_SHAPE(s.b), lengths);
                if (second)
                    c.in[n++] = attention_random(PK_F32, PK_SHAPE(s.b, s.nq, s.h, s.d), -1, 1);
            }
            c.n_in = n;
            if (!second)
                c.n_out = 0;
            c.out[c.n_out++] = PK_SHAPE(s.b, s.nq, s.h, s.d);
            attention_call_check(&c);
            attention_reset(NULL);
        }
}

/* A host that keeps one measured choice. */
struct keeper {
    char key[128];
    int64_t ns[2]; /* square, linear */
    bool known, full;
    int asked, told;
};

static size_t recall(void *user, const char *key, void *value, size_t size)
{
    struct keeper *k = user;

    k->asked++;
    if (!k->known || strcmp(key, k->key) != 0 || size != sizeof k->ns)
        return 0;
    memcpy(value, k->ns, size);
    return size;
}

static void keep(void *user, const char *key, const void *value, size_t size)
{
    struct keeper *k = user;

    k->told++;
    if (k->full)
        return;
    assert_int_equal(size, sizeof k->ns);
    snprintf(k->key, sizeof k->key, "%s", key);
    memcpy(k->ns, value, size);
    k->known = true;
}

/* Where the model may be wrong both orders are timed once, when the workspace is asked for; the record
 * decides then, and the workspace serves either. */
static void test_measured_order(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    struct keeper keeper = {.full = true};
    const struct pk_host host = {.tuned_get = recall, .tuned_put = keep, .user = &keeper};
    struct pk_backend *b;
    struct pk_attr attr = {.attention = {.phi = PK_PHI_POLY, .degree = 1, .tau = 0.25, .scale = 1}};
    struct pk_view in[3], out = attention_random(PK_BF16, PK_SHAPE(1, 256, 1, 8), 0, 0), got = out;
    struct pk_call c = {.op = PK_OP_ATTENTION, .attr = &attr, .n_in = 3, .n_out = 1, .in = in, .out = &out};
    struct pd_why why;
    void *memory[4], *work;
    uint16_t first[2][256 * 8];
    size_t bytes;

    (void)state;
    assert_int_equal(api->open(&host, 0, 1, &b, &why), PD_OK);
    for (int i = 0; i < 3; i++)
        in[i] = attention_random(PK_BF16, PK_SHAPE(1, 1, 256, 8), -1, 1);

    /* A host that forgets is told once. */
    bytes = api->workspace_bytes(b, &c);
    assert_true(bytes > 0);
    assert_int_equal(api->workspace_bytes(b, &c), bytes);
    assert_int_equal(keeper.told, 1);
    assert_true(api->workspace_bytes(NULL, &c) > 0); /* without a device it serves either as well */
    api->close(b);

    keeper.full = false;
    assert_int_equal(api->open(&host, 0, 1, &b, &why), PD_OK);
    assert_int_equal(api->workspace_bytes(b, &c), bytes);
    assert_int_equal(keeper.told, 2);
    assert_string_equal(keeper.key, "attention_order/p1/n256/d8/full/bf16/fwd");
    assert_true(keeper.ns[0] >= 0 && keeper.ns[1] >= 0);
    assert_int_equal(api->workspace_bytes(b, &c), bytes);
    assert_int_equal(keeper.told, 2); /* once */

    /* The record decides, not the clock of this run: the answers of the orders differ in their last bits. */
    for (int i = 0; i < 3; i++) {
        memory[i] = api->alloc(b, sizeof first[0]);
        assert_int_equal(api->upload(b, memory[i], in[i].data, sizeof first[0], &why), PD_OK);
        in[i].data = memory[i];
    }
    out.data = memory[3] = api->alloc(b, sizeof first[0]);
    work = api->alloc(b, bytes);
    c.workspace = work;
    c.workspace_bytes = bytes;
    for (int linear = 0; linear < 2; linear++) {
        keeper.ns[0] = 10;
        keeper.ns[1] = linear ? 9 : 11;
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        assert_int_equal(api->sync(b, &why), PD_OK);
        assert_int_equal(api->download(b, first[linear], out.data, sizeof first[0], &why), PD_OK);
        attr.attention.form = linear ? PK_FORM_LINEAR : PK_FORM_QUADRATIC;
        assert_int_equal(api->run(b, &c, 1, &why), PD_OK);
        assert_int_equal(api->download(b, got.data, out.data, sizeof first[0], &why), PD_OK);
        assert_memory_equal(got.data, first[linear], sizeof first[0]);
        attr.attention.form = PK_FORM_AUTO;
    }
    assert_memory_not_equal(first[0], first[1], sizeof first[0]);

    /* Far from where the orders meet nobody is asked. */
    keeper.asked = 0;
    for (int i = 0; i < 3; i++)
        in[i].shape = PK_SHAPE(1, 1, 255, 8);
    out.shape = PK_SHAPE(1, 255, 1, 8);
    assert_int_equal(api->workspace_bytes(b, &c), 0);
    attr.attention.degree = 2;
    assert_int_equal(api->workspace_bytes(b, &c), 0);
    assert_int_equal(keeper.asked, 0);
    for (int i = 0; i < 4; i++)
        api->free(b, memory[i]);
    api->free(b, work);
    api->close(b);
}

/* Longer heads than shared memory is made for are refused when the graph is planned. */
static void test_long_heads_are_refused(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    struct pk_attr attr = {.attention = {.phi = PK_PHI_POLY, .degree = 3, .tau = 0.25, .scale = 1}};
    struct pk_view in[3], out;
    const struct pk_call c = {
        .op = PK_OP_ATTENTION, .attr = &attr, .n_in = 3, .n_out = 1, .in = in, .out = &out};

    (void)state;
    for (int d = 256; d <= 257; d++) {
        for (int i = 0; i < 3; i++)
            in[i] = pk_view_dense(NULL, PK_F32, PK_SHAPE(1, 1, 4, d));
        out = pk_view_dense(NULL, PK_F32, PK_SHAPE(1, 4, 1, d));
        assert_true(api->supports(NULL, &c) == (d == 256));
    }
}

/* Also on a device that has them: what is proved here are the other kernels. */
static void test_kernels_of_sm_90_are_disabled(void **state)
{
    const struct pk_backend_api *api = pk_backend_entry();
    struct pk_backend *b = NULL;

    (void)state;
    assert_false(attention_device()->hopper);
    setenv("POLYD_EMU_SM", "90", 1);
    assert_int_equal(api->open(NULL, 0, 1, &b, NULL), PD_OK);
    setenv("POLYD_EMU_SM", "80", 1);
    assert_false(b->hopper);
    api->close(b);
}

static int open_all(void **state)
{
    (void)state;
    setenv("POLYD_EMU_SM", "80", 1); /* the kernels of sm 90 have a test of their own */
    attention_open_without_hopper(pk_backend_entry());
    return 0;
}

static int close_all(void **state)
{
    attention_reset(state);
    attention_close();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_of_sm_90_are_disabled),
        cmocka_unit_test_teardown(test_sizes, attention_reset),
        cmocka_unit_test_teardown(test_head_dimensions, attention_reset),
        cmocka_unit_test_teardown(test_degrees, attention_reset),
        cmocka_unit_test_teardown(test_options, attention_reset),
        cmocka_unit_test_teardown(test_deals, attention_reset),
        cmocka_unit_test_teardown(test_short_rows, attention_reset),
        cmocka_unit_test_teardown(test_decoding, attention_reset),
        cmocka_unit_test_teardown(test_degenerate, attention_reset),
        cmocka_unit_test_teardown(test_masked_overflow, attention_reset),
        cmocka_unit_test_teardown(test_linear_order, attention_reset),
        cmocka_unit_test_teardown(test_linear_order_in_bf16, attention_reset),
        cmocka_unit_test_teardown(test_linear_order_in_little_shared_memory, attention_reset),
        cmocka_unit_test_teardown(test_measured_order, attention_reset),
        cmocka_unit_test(test_long_heads_are_refused),
        cmocka_unit_test_teardown(test_tangents, attention_reset),
        cmocka_unit_test_teardown(test_stats, attention_reset),
        cmocka_unit_test_teardown(test_state_of_constant_size, attention_reset),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}
