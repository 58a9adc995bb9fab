/* Every other op against the reference: odd sizes, strided inputs, shared memory, errors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"

static const enum pk_dtype floats[2] = {PK_F32, PK_F64};

/* ---- expressions ---- */

static void add_code(struct pk_expr *e, enum pk_ex op, int arg, double imm)
{
    e->code[e->count].op = (uint8_t)op;
    e->code[e->count].arg = (uint8_t)arg;
    e->code[e->count++].imm = imm;
}

static void test_expr_unary(void **state)
{
    static const struct {
        enum pk_ex op;
        double lo, hi;
    } ops[] = {
        {PK_EX_NEG, -3, 3},    {PK_EX_ABS, -3, 3},       {PK_EX_EXP, -20, 20},     {PK_EX_LOG, 1e-3, 9},
        {PK_EX_SQRT, 0, 9},    {PK_EX_RSQRT, 0.1, 9},    {PK_EX_RECIP, 0.1, 9},    {PK_EX_TANH, -9, 9},
        {PK_EX_ERF, -5, 5},    {PK_EX_SIGMOID, -30, 30}, {PK_EX_SIN, -9, 9},       {PK_EX_COS, -9, 9},
        {PK_EX_GELU, -9, 9},   {PK_EX_DGELU, -9, 9},     {PK_EX_GELU_TANH, -9, 9}, {PK_EX_DGELU_TANH, -9, 9},
        {PK_EX_FINITE, -1, 1},
    };

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
            for (int n = 1; n <= 40000; n = n * 7 + 4) {
                struct pk_expr e = {0};
                struct rig_case c = {
                    .op = PK_OP_EXPR, .attr.expr = &e, .n_in = 1, .n_out = 1, .tolerance = 1e-6};
                char name[64];

                snprintf(name, sizeof name, "unary %d of %d", (int)ops[i].op, n);
                c.name = name;
                add_code(&e, PK_EX_IN, 0, 0);
                add_code(&e, ops[i].op, 0, 0);
                c.in[0] = rig_random(floats[t], PK_SHAPE(n), ops[i].lo, ops[i].hi);
                c.out[0] = PK_SHAPE(n);
                c.out_dtype[0] = floats[t];
                c.share[0] = n % 2; /* in place now and then */
                rig_check(&c);
                rig_reset(NULL);
            }
}

static void test_expr_power(void **state)
{
    (void)state;
    for (int p = 0; p < 12; p++) {
        struct pk_expr e = {0};
        const double special[5] = {0, -1.5, 2, -0.25, 1};
        struct rig_case c = {.op = PK_OP_EXPR, .attr.expr = &e, .n_in = 1, .n_out = 1, .name = "power"};

        add_code(&e, PK_EX_IN, 0, 0);
        add_code(&e, PK_EX_POW, p, 0);
        c.in[0] = rig_values(PK_F32, PK_SHAPE(5), special);
        c.out[0] = PK_SHAPE(5);
        c.out_dtype[0] = PK_F32;
        rig_check(&c);
    }
}

static void test_expr_binary(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int op = PK_EX_ADD; op <= PK_EX_EQ; op++)
            for (int form = 0; form < 6; form++) {
                struct pk_expr e = {0};
                struct rig_case c = {
                    .op = PK_OP_EXPR, .attr.expr = &e, .n_in = 2, .n_out = 1, .name = "binary"};
                struct pk_shape s = PK_SHAPE(7, 5, 33);

                c.in[0] = rig_random(floats[t], s, 0.5, 2);
                c.in[1] = rig_random(floats[t], s, 0.5, 2);
                if (form == 1) { /* a row for all */
                    c.in[1].stride[0] = c.in[1].stride[1] = 0;
                } else if (form == 2) { /* a number for each row */
                    c.in[1].stride[0] = 5, c.in[1].stride[1] = 1, c.in[1].stride[2] = 0;
                } else if (form == 3) { /* one number */
                    memset(c.in[1].stride, 0, sizeof c.in[1].stride);
                } else if (form == 4) {
                    c.in[0] = rig_strided(&c.in[0]);
                } else if (form == 5) { /* the middle axis repeats */
                    c.in[0].stride[0] = 33, c.in[0].stride[1] = 0;
                }
                add_code(&e, PK_EX_IN, 0, 0);
                add_code(&e, PK_EX_IN, 1, 0);
                add_code(&e, (enum pk_ex)op, 0, 0);
                if (op == PK_EX_EQ) /* some are equal */
                    for (int i = 0; i < 30; i++)
                        memcpy((char *)c.in[0].data + i * 64, (char *)c.in[1].data + i * 64,
                               form == 0 ? 32 : 0);
                c.out[0] = s;
                c.out_dtype[0] = floats[t];
                rig_check(&c);
            }
}

/* A long program: constants on both sides, shared values, select, leftovers below the top. */
static void test_expr_program(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int n = 1; n < 9000; n = n * 3 + 5) {
            struct pk_expr e = {0};
            struct rig_case c = {.op = PK_OP_EXPR,
                                 .attr.expr = &e,
                                 .n_in = 3,
                                 .n_out = 1,
                                 .name = "program",
                                 .tolerance = 1e-5};

            add_code(&e, PK_EX_IN, 0, 0);      /* x */
            add_code(&e, PK_EX_DUP, 0, 0);     /* x x */
            add_code(&e, PK_EX_IN, 1, 0);      /* x x y */
            add_code(&e, PK_EX_MUL, 0, 0);     /* x xy */
            add_code(&e, PK_EX_CONST, 0, 2.5); /* x xy 2.5 */
            add_code(&e, PK_EX_DUP, 1, 0);     /* x xy 2.5 xy */
            add_code(&e, PK_EX_SUB, 0, 0);     /* x xy 2.5-xy */
            add_code(&e, PK_EX_TANH, 0, 0);
            add_code(&e, PK_EX_DUP, 2, 0); /* x xy t x */
            add_code(&e, PK_EX_CONST, 0, 0);
            add_code(&e, PK_EX_GT, 0, 0);     /* x xy t x>0 */
            add_code(&e, PK_EX_SELECT, 0, 0); /* x (x>0 ? xy : t) */
            add_code(&e, PK_EX_IN, 2, 0);
            add_code(&e, PK_EX_CONST, 0, 3);
            add_code(&e, PK_EX_CONST, 0, 4);
            add_code(&e, PK_EX_ADD, 0, 0); /* of constants */
            add_code(&e, PK_EX_DIV, 0, 0);
            add_code(&e, PK_EX_ADD, 0, 0);
            c.in[0] = rig_random(floats[t], PK_SHAPE(n), -2, 2);
            c.in[1] = rig_random(floats[t], PK_SHAPE(n), -2, 2);
            c.in[2] = rig_random(floats[t], PK_SHAPE(n), -2, 2);
            c.in[2].stride[0] = 0;
            c.out[0] = PK_SHAPE(n);
            c.out_dtype[0] = floats[t];
            c.share[0] = 2;
            rig_check(&c);
            e.count = 0;
            add_code(&e, PK_EX_CONST, 0, 1.5); /* ends in a push */
            c.share[0] = 0;
            rig_check(&c);
            e.count = 0;
            add_code(&e, PK_EX_IN, 1, 0);
            rig_check(&c);
            rig_reset(NULL);
        }
}

/* ---- reductions ---- */

static void test_reductions(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (uint32_t axes = 0; axes < 16; axes++)
            for (int form = 0; form < 2; form++) {
                struct rig_case c = {.op = PK_OP_SUM, .name = "sum", .n_in = 1, .n_out = 1, .floor = 1e-3};

                c.in[0] = rig_random(floats[t], PK_SHAPE(3, 13, 7, 65), -1, 1);
                if (form)
                    c.in[0] = rig_strided(&c.in[0]);
                c.attr.reduce.axes = axes;
                c.out_dtype[0] = floats[t];
                for (int i = 0; i < 4; i++)
                    if (!(axes >> i & 1))
                        c.out[0].dim[c.out[0].rank++] = c.in[0].shape.dim[i];
                rig_check(&c);
                c.op = PK_OP_MAX;
                c.name = "max";
                rig_check(&c);
                rig_reset(NULL);
            }
}

static void test_long_sums(void **state)
{
    (void)state;
    for (uint32_t axes = 1; axes < 4; axes++) {
        struct rig_case c = {.op = PK_OP_SUM, .name = "long sum", .n_in = 1, .n_out = 1, .floor = 10};

        c.in[0] = rig_random(PK_F32, axes == 2 ? PK_SHAPE(3, 100001) : PK_SHAPE(8001, 33), -1, 1);
        c.attr.reduce.axes = axes;
        c.out_dtype[0] = PK_F32;
        for (int i = 0; i < 2; i++)
            if (!(axes >> i & 1))
                c.out[0].dim[c.out[0].rank++] = c.in[0].shape.dim[i];
        rig_check(&c);
    }
}

static void test_sumsq(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct rig_case c = {.op = PK_OP_SUMSQ, .name = "sumsq", .n_in = 4, .n_out = 1};

        c.in[0] = rig_random(floats[t], PK_SHAPE(1), -1, 1);
        c.in[1] = rig_random(floats[t], PK_SHAPE(300, 333), -1, 1);
        c.in[2] = rig_random(floats[t], PK_SHAPE(31, 17), -1, 1);
        c.in[2] = rig_strided(&c.in[2]);
        c.in[3] = rig_random(floats[t], PK_SHAPE(0, 3), -1, 1);
        c.out[0] = PK_SHAPE(1);
        c.out_dtype[0] = floats[t];
        rig_check(&c);
    }
}

/* ---- norms, softmax, loss ---- */

static void test_norm(void **state)
{
    static const int64_t widths[] = {1, 5, 16, 48, 65, 192, 768};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int form = 0; form < 16; form++) {
                struct rig_case c = {.op = PK_OP_NORM,
                                     .name = "norm",
                                     .n_in = 2,
                                     .floor = 1e-3,
                                     .tolerance = 5e-6},
                                g;
                bool layer = form & 1;
                int64_t d = widths[w];

                if (layer && d == 1) /* nothing is left but noise over eps */
                    continue;
                c.attr.norm.kind = layer ? PK_NORM_LAYER : PK_NORM_RMS;
                c.attr.norm.eps_mode = form & 2 ? PK_EPS_SUM : PK_EPS_MEAN;
                c.attr.norm.eps = 1e-3;
                c.attr.norm.has_beta = form & 4;
                c.in[0] = rig_random(floats[t], PK_SHAPE(3, 23, d), -1, 2);
                c.in[1] = rig_random(floats[t], PK_SHAPE(d), -1, 1);
                if (form & 4)
                    c.in[c.n_in++] = rig_random(floats[t], PK_SHAPE(d), -1, 1);
                for (int i = 0; form & 8 && i < c.n_in; i++)
                    c.in[i] = rig_strided(&c.in[i]);
                c.n_out = layer ? 3 : 2;
                c.out[0] = c.in[0].shape;
                c.out[1] = c.out[2] = PK_SHAPE(3, 23);
                c.out_dtype[0] = c.out_dtype[1] = c.out_dtype[2] = floats[t];
                rig_check(&c);
                g = c;
                g.op = PK_OP_NORM_BWD;
                g.name = "norm_bwd";
                g.in[2] = rig_random(floats[t], c.in[0].shape, -1, 1);
                if (form & 8)
                    g.in[2] = rig_strided(&g.in[2]);
                g.in[3] = rig_random(floats[t], PK_SHAPE(3, 23), 0.5, 1.5);
                g.in[4] = rig_random(floats[t], PK_SHAPE(3, 23), -0.5, 0.5);
                g.n_in = layer ? 5 : 4;
                g.n_out = form & 4 ? 3 : 2;
                g.out[1] = g.out[2] = PK_SHAPE(d);
                rig_check(&g);
                /* what passes put on: y once more, and a gradient that came another way, in place or not */
                g.attr.norm.again = true;
                if (form & 4)
                    g.in[g.n_in++] = c.in[2];
                g.out[g.n_out] = g.out[0];
                g.out_dtype[g.n_out++] = floats[t];
                rig_check(&g);
                g.attr.norm.has_residual = true;
                g.in[g.n_in++] = rig_random(floats[t], c.in[0].shape, -1, 1);
                g.share[0] = form & 2 ? g.n_in : 0;
                rig_check(&g);
                g.attr.norm.again = false;
                if (form & 4) {
                    g.in[g.n_in - 2] = g.in[g.n_in - 1];
                    g.n_in--;
                }
                if (form & 8)
                    g.in[g.n_in - 1] = rig_strided(&g.in[g.n_in - 1]);
                g.share[0] = form & 8 ? 0 : g.n_in;
                g.n_out--;
                rig_check(&g);
                rig_reset(NULL);
            }
}

static void test_softmax(void **state)
{
    static const int64_t widths[] = {1, 7, 64, 197, 1031, 50257};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
            for (int form = 0; form < 2; form++) {
                struct rig_case c = {
                    .op = PK_OP_SOFTMAX, .name = "softmax", .n_in = 1, .n_out = 1, .tolerance = 1e-5};

                c.in[0] = rig_random(floats[t], PK_SHAPE(2, 3, widths[w]), -30, 30);
                if (form)
                    c.in[0] = rig_strided(&c.in[0]);
                c.out[0] = c.in[0].shape;
                c.out_dtype[0] = floats[t];
                rig_check(&c);
                c.op = PK_OP_SOFTMAX_BWD;
                c.name = "softmax_bwd";
                c.in[0] = rig_random(floats[t], c.out[0], 0, 1);
                c.in[1] = rig_random(floats[t], c.out[0], -1, 1);
                if (form)
                    c.in[1] = rig_strided(&c.in[1]);
                c.n_in = 2;
                rig_check(&c);
                rig_reset(NULL);
            }
}

static void test_cross_entropy(void **state)
{
    static const int64_t classes[] = {2, 10, 65, 50257};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (int form = 0; form < 4; form++) {
                struct rig_case c = {.op = PK_OP_CROSS_ENTROPY,
                                     .name = "cross_entropy",
                                     .n_in = 2,
                                     .n_out = 4},
                                g;
                int64_t m = 7, n = classes[k];
                struct pk_view lse;

                c.attr.cross_entropy.smoothing = form & 1 ? 0.1 : 0;
                c.attr.cross_entropy.ignore = -100;
                c.in[0] = rig_random(floats[t], PK_SHAPE(m, n), -9, 9);
                if (form & 2)
                    c.in[0] = rig_strided(&c.in[0]);
                c.in[1] = rig_random(PK_I32, PK_SHAPE(m), 0, (double)n);
                ((int32_t *)c.in[1].data)[2] = -100;
                c.out[0] = c.out[1] = c.out[2] = PK_SHAPE(1);
                c.out[3] = PK_SHAPE(m);
                for (int i = 0; i < 4; i++)
                    c.out_dtype[i] = floats[t];
                rig_check(&c);
                g = c;
                g.op = PK_OP_CROSS_ENTROPY_BWD;
                g.name = "cross_entropy_bwd";
                lse = rig_random(floats[t], PK_SHAPE(m), 9, 12);
                g.in[2] = lse;
                g.in[3] = rig_random(floats[t], PK_SHAPE(1), 0.1, 0.2);
                g.n_in = 4;
                g.n_out = 1;
                g.out[0] = PK_SHAPE(m, n);
                g.share[0] = form & 2 ? 0 : 1;
                rig_check(&g);
                rig_reset(NULL);
            }
}

/* Loss and its derivative at once: by the sum and by the mean, wider than the logits, in place. */
static void test_cross_entropy_with_gradient(void **state)
{
    static const int64_t classes[] = {2, 65, 1032, 5003};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t k = 0; k < sizeof classes / sizeof classes[0]; k++)
            for (int form = 0; form < 8; form++) {
                struct rig_case c = {
                    .op = PK_OP_CROSS_ENTROPY_GRAD, .name = "cross_entropy_grad", .n_in = 3, .n_out = 4};
                int64_t m = 7, n = classes[k], width = form & 2 ? (n + 71) / 64 * 64 : n;

                c.attr.cross_entropy.smoothing = form & 1 ? 0.1 : 0;
                c.attr.cross_entropy.ignore = -100;
                c.attr.cross_entropy.mean = form & 4;
                c.attr.cross_entropy.width = form & 2 ? width : 0;
                c.in[0] = rig_random(floats[t], PK_SHAPE(m, n), -9, 9);
                if (form == 3)
                    c.in[0] = rig_strided(&c.in[0]);
                c.in[1] = rig_random(PK_I32, PK_SHAPE(m), 0, (double)n);
                ((int32_t *)c.in[1].data)[2] = -100;
                c.in[2] = rig_random(floats[t], PK_SHAPE(1), 0.1, 0.2);
                c.out[0] = PK_SHAPE(m, width);
                c.out[1] = c.out[2] = c.out[3] = PK_SHAPE(1);
                for (int i = 0; i < 4; i++)
                    c.out_dtype[i] = floats[t];
                c.share[0] = form & 2 ? 0 : 1;
                rig_check(&c);
                rig_reset(NULL);
            }
}

/* The first of several equal maxima counts as the guess. */
static void test_correct_is_the_first_largest(void **state)
{
    const double logits[] = {1, 3, 3, 0, /**/ 3, 3, 1, 0, /**/ 5, 5, 5, 5};
    struct rig_case c = {.op = PK_OP_CROSS_ENTROPY, .name = "ties", .n_in = 2, .n_out = 4};

    (void)state;
    c.attr.cross_entropy.ignore = -1;
    for (int y = 0; y < 4; y++) {
        const double target[] = {y, (y + 1) % 4, y};

        c.in[0] = rig_values(PK_F32, PK_SHAPE(3, 4), logits);
        c.in[1] = rig_values(PK_I32, PK_SHAPE(3), target);
        c.out[0] = c.out[1] = c.out[2] = PK_SHAPE(1);
        c.out[3] = PK_SHAPE(3);
        rig_check(&c);
    }
}

/* ---- movement ---- */

static void test_copy(void **state)
{
    static const enum pk_dtype types[] = {PK_F32, PK_F64, PK_BF16, PK_I32, PK_U8};

    (void)state;
    for (int from = 0; from < 5; from++)
        for (int to = 0; to < 5; to++)
            for (int form = 0; form < 4; form++) {
                struct rig_case c = {.op = PK_OP_COPY, .name = "copy", .n_in = 1, .n_out = 1};

                c.in[0] = rig_random(types[from], PK_SHAPE(3, 37, 2, 65), 0, 200);
                if (form == 1)
                    c.in[0] = rig_strided(&c.in[0]);
                else if (form == 2)
                    c.in[0] = rig_transposed(c.in[0]);
                else if (form == 3)
                    c.in[0].stride[1] = 0;
                c.attr.copy.dtype = types[to];
                c.out[0] = c.in[0].shape;
                c.out_dtype[0] = types[to];
                rig_check(&c);
                rig_reset(NULL);
            }
}

static void test_long_copy(void **state)
{
    struct rig_case c = {.op = PK_OP_COPY, .name = "long copy", .n_in = 1, .n_out = 1};

    (void)state;
    c.in[0] = rig_random(PK_F32, PK_SHAPE(300007), 0, 1);
    c.out[0] = c.in[0].shape;
    rig_check(&c);
}

/* Images cut into windows of 7 x 7: lines of whole cache lines, more than the caches hold. */
static void test_copy_past_the_caches(void **state)
{
    struct rig_case c = {.op = PK_OP_COPY, .name = "windows", .n_in = 1, .n_out = 1};

    (void)state;
    for (int channels = 95; channels <= 96; channels++) {
        c.in[0] = rig_random(PK_F32, PK_SHAPE(7, 8, 7, 8, 7, channels), -1, 1);
        c.in[0].shape = PK_SHAPE(7, 8, 8, 7, 7, channels);
        c.in[0].stride[2] = 7 * channels;
        c.in[0].stride[3] = 8 * 7 * channels;
        c.out[0] = c.in[0].shape;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_fill_concat_pad(void **state)
{
    static const enum pk_dtype types[] = {PK_F32, PK_F64, PK_BF16, PK_I32, PK_U8};

    (void)state;
    for (int t = 0; t < 5; t++) {
        struct rig_case c = {.op = PK_OP_FILL, .name = "fill", .n_out = 1};

        c.attr.fill.dtype = types[t];
        c.attr.fill.value = 3;
        c.out[0] = PK_SHAPE(7, 10001);
        c.out_dtype[0] = types[t];
        rig_check(&c);
        for (int axis = 0; axis < 3; axis++) {
            c = (struct rig_case){.op = PK_OP_CONCAT, .name = "concat", .n_in = 3, .n_out = 1};
            c.attr.concat.axis = axis;
            c.out[0] = PK_SHAPE(4, 5, 6);
            c.out[0].dim[axis] = 0;
            c.out_dtype[0] = types[t];
            for (int i = 0; i < 3; i++) {
                struct pk_shape s = PK_SHAPE(4, 5, 6);

                s.dim[axis] = i * 2; /* one is empty */
                c.in[i] = rig_random(types[t], s, 0, 9);
                if (i == 2)
                    c.in[i] = rig_strided(&c.in[i]);
                c.out[0].dim[axis] += s.dim[axis];
            }
            rig_check(&c);
            c = (struct rig_case){.op = PK_OP_PAD, .name = "pad", .n_in = 1, .n_out = 1};
            c.in[0] = rig_random(types[t], PK_SHAPE(4, 5, 6), 0, 9);
            c.attr.pad.axis = axis;
            c.attr.pad.start = axis;
            c.attr.pad.extent = 9;
            c.out[0] = c.in[0].shape;
            c.out[0].dim[axis] = 9;
            c.out_dtype[0] = types[t];
            rig_check(&c);
        }
        rig_reset(NULL);
    }
}

static void test_by_index(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int form = 0; form < 2; form++) {
            struct rig_case c = {.op = PK_OP_GATHER, .name = "gather", .n_in = 2, .n_out = 1};

            c.in[0] = rig_random(floats[t], PK_SHAPE(50, 33), -1, 1);
            c.in[1] = rig_random(PK_I32, PK_SHAPE(4, 70), 0, 50);
            if (form)
                c.in[1] = rig_strided(&c.in[1]);
            c.out[0] = PK_SHAPE(4, 70, 33);
            c.out_dtype[0] = floats[t];
            rig_check(&c);
            for (int base = 0; base < 3; base++) {
                c = (struct rig_case){.op = PK_OP_SCATTER_ADD, .name = "scatter_add", .n_in = 2, .n_out = 1};
                c.in[0] = rig_random(PK_I32, PK_SHAPE(4, 70), 0, 50);
                c.in[1] = rig_random(floats[t], PK_SHAPE(4, 70, 133), -1, 1);
                if (form)
                    c.in[1] = rig_strided(&c.in[1]);
                c.attr.scatter_add.rows = 50;
                if (base) {
                    c.in[2] = rig_random(floats[t], PK_SHAPE(50, 133), -1, 1);
                    c.n_in = 3;
                    c.share[0] = base == 2 ? 3 : 0;
                    if (base == 1 && form)
                        c.in[2] = rig_strided(&c.in[2]);
                }
                c.out[0] = PK_SHAPE(50, 133);
                c.out_dtype[0] = floats[t];
                rig_check(&c);
            }
            c = (struct rig_case){.op = PK_OP_ONE_HOT, .name = "one_hot", .n_in = 1, .n_out = 1};
            c.in[0] = rig_random(PK_I32, PK_SHAPE(13, 3), -2, 9);
            c.attr.one_hot.classes = 7;
            c.attr.one_hot.dtype = floats[t];
            c.out[0] = PK_SHAPE(13, 3, 7);
            c.out_dtype[0] = floats[t];
            rig_check(&c);
            c = (struct rig_case){.op = PK_OP_CACHE_APPEND, .name = "cache_append", .n_in = 3, .n_out = 1};
            c.in[0] = rig_random(floats[t], PK_SHAPE(2, 3, 11, 5), -1, 1);
            c.in[1] = rig_random(floats[t], PK_SHAPE(2, 3, 4, 5), -1, 1);
            if (form)
                c.in[1] = rig_strided(&c.in[1]);
            c.in[2] = rig_values(PK_I32, form ? PK_SHAPE(2) : PK_SHAPE(1), (double[]){7, 2});
            c.out[0] = c.in[0].shape;
            c.out_dtype[0] = floats[t];
            c.share[0] = 1;
            rig_check(&c);
        }
}

/* ---- dropout and optimisers ---- */

static void test_dropout(void **state)
{
    static const struct pk_shape shapes[] = {{.rank = 1, .dim = {100}},
                                             {.rank = 2, .dim = {5, 1}},
                                             {.rank = 3, .dim = {4, 7, 197}},
                                             {.rank = 3, .dim = {300, 9, 64}},
                                             {.rank = 2, .dim = {3, 0}}};
    const double keys[3] = {-5, 123456789, 7};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++)
            for (int form = 0; form < 8; form++) {
                struct rig_case c = {.op = PK_OP_DROPOUT, .n_in = 2, .n_out = 1, .name = "dropout"};

                c.in[0] = rig_random(floats[t], shapes[i], -1, 1);
                c.in[1] = rig_values(PK_I32, PK_SHAPE(3), keys);
                c.attr.dropout.rate = form & 1 ? 0.1 : 0.75;
                c.attr.dropout.stream = form & 1 ? 0x7fffffffu : 3;
                c.attr.dropout.samples = form & 2;
                if (form & 4)
                    c.in[0] = rig_strided(&c.in[0]);
                else if (form == 2)
                    c.share[0] = 1;
                c.out[0] = shapes[i];
                c.out_dtype[0] = floats[t];
                rig_check(&c);
            }
}

/* The average of the weights, one more tensor that is written in place. */
static void with_average(struct rig_case *c, enum pk_dtype dtype, struct pk_shape s, double ema)
{
    c->attr.optim.ema = ema;
    c->in[c->n_in] = rig_random(dtype, s, -1, 1);
    c->out[c->n_out] = s;
    c->out_dtype[c->n_out] = dtype;
    c->n_in++;
    c->share[c->n_out] = c->n_in;
    c->n_out++;
}

/* The working copy in bf16, another. */
static void with_copy(struct rig_case *c, struct pk_shape s)
{
    c->attr.optim.copy = true;
    c->in[c->n_in] = rig_random(PK_BF16, s, -1, 1);
    c->out[c->n_out] = s;
    c->out_dtype[c->n_out] = PK_BF16;
    c->n_in++;
    c->share[c->n_out] = c->n_in;
    c->n_out++;
    c->tolerance = 8e-3; /* to the next number of bf16: a last bit of f32 may decide */
}

static void test_optimisers(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int form = 0; form < 16; form++) {
            struct rig_case c = {.op = PK_OP_ADAMW, .name = "adamw", .n_in = 6, .n_out = 3}, again;
            struct pk_shape s = form & 1 ? PK_SHAPE(33, 1001) : PK_SHAPE(13);

            for (int i = 0; i < 4; i++) {
                c.in[i] = rig_random(floats[t], s, i == 3 ? 0 : -1, 1);
                if (i != 1) {
                    c.out[i - (i > 1)] = s;
                    c.out_dtype[i - (i > 1)] = floats[t];
                    c.share[i - (i > 1)] = i + 1;
                }
            }
            if (form & 4)
                c.in[1] = rig_strided(&c.in[1]);
            c.in[4] = rig_values(floats[t], PK_SHAPE(4), (double[]){1e-2, 0.19, 0.002, form & 2 ? 0.85 : 0});
            c.in[5] = rig_values(floats[t], PK_SHAPE(2), (double[]){0.5, form != 3 && form != 11});
            c.attr.optim.beta1 = 0.9;
            c.attr.optim.cycled =
                form & 2; /* hyper[3] is beta1, of MSGDW below whether it is the first step */
            c.attr.optim.beta2 = 0.999;
            c.attr.optim.eps = 1e-8;
            c.attr.optim.weight_decay = 0.1;
            c.attr.optim.lr_mult = 0.5;
            again = c;
            if (form & 8)
                with_average(&c, floats[t], s, 0.9);
            rig_check(&c);
            if (t == 0) {
                with_copy(&c, s);
                rig_check(&c);
            }
            c = again;
            c.op = PK_OP_MSGDW;
            c.name = "msgdw";
            c.n_in = 5;
            c.n_out = 2;
            c.in[3] = c.in[4];
            c.in[4] = c.in[5];
            c.attr.optim.momentum = 0.9;
            c.attr.optim.dampening = form & 1 ? 0.1 : 0;
            c.attr.optim.nesterov = form & 4;
            c.attr.optim.l2 = form > 5;
            if (form & 8)
                with_average(&c, floats[t], s, 0.99996);
            rig_check(&c);
            if (t == 0) {
                with_copy(&c, s);
                rig_check(&c);
            }
            c = again;
            c.op = PK_OP_ACCUMULATE;
            c.name = "accumulate";
            c.n_in = 3;
            c.n_out = 1;
            c.in[2] = rig_values(floats[t], PK_SHAPE(1), (double[]){form & 2});
            rig_check(&c);
            c.op = PK_OP_BLEND;
            c.name = "blend";
            c.attr.optim.ema = form & 8 ? 0.9 : 0;
            rig_check(&c);
            rig_reset(NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_expr_unary, rig_reset),
        cmocka_unit_test_teardown(test_expr_power, rig_reset),
        cmocka_unit_test_teardown(test_expr_binary, rig_reset),
        cmocka_unit_test_teardown(test_expr_program, rig_reset),
        cmocka_unit_test_teardown(test_reductions, rig_reset),
        cmocka_unit_test_teardown(test_long_sums, rig_reset),
        cmocka_unit_test_teardown(test_sumsq, rig_reset),
        cmocka_unit_test_teardown(test_norm, rig_reset),
        cmocka_unit_test_teardown(test_softmax, rig_reset),
        cmocka_unit_test_teardown(test_cross_entropy, rig_reset),
        cmocka_unit_test_teardown(test_cross_entropy_with_gradient, rig_reset),
        cmocka_unit_test_teardown(test_correct_is_the_first_largest, rig_reset),
        cmocka_unit_test_teardown(test_copy, rig_reset),
        cmocka_unit_test_teardown(test_long_copy, rig_reset),
        cmocka_unit_test_teardown(test_copy_past_the_caches, rig_reset),
        cmocka_unit_test_teardown(test_fill_concat_pad, rig_reset),
        cmocka_unit_test_teardown(test_by_index, rig_reset),
        cmocka_unit_test_teardown(test_dropout, rig_reset),
        cmocka_unit_test_teardown(test_optimisers, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
