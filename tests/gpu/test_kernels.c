/* What the cases of tests/backend do not reach in the kernels of kernels/backend/cuda: every way of dividing
 * the work, packs of four and their ends, long rows, sums in two launches, sorted positions; and what only a
 * device has: indices that are found wrong while running, masks that must be the CPU's bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/backend/rig.h"
#include "tests/gpu/device.h"

static uint64_t coin_state = 42;

static uint32_t coin(uint32_t sides)
{
    coin_state = coin_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(coin_state >> 33) % sides;
}

/* ---- expressions ---- */

static void add_code(struct pk_expr *e, enum pk_ex op, int arg, double imm)
{
    e->code[e->count].op = (uint8_t)op;
    e->code[e->count].arg = (uint8_t)arg;
    e->code[e->count++].imm = imm;
}

/* A program of up to `length` instructions and what it takes to leave one value. Its values stay small, and
 * it compares nothing that rounding could turn round. */
static void random_program(struct pk_expr *e, int inputs, int mask, int length)
{
    static const enum pk_ex unary[] = {PK_EX_NEG,     PK_EX_ABS, PK_EX_TANH,
                                       PK_EX_SIGMOID, PK_EX_COS, PK_EX_GELU};
    static const enum pk_ex binary[] = {PK_EX_ADD, PK_EX_SUB, PK_EX_MUL, PK_EX_MAX, PK_EX_MIN};
    int depth = 0;

    memset(e, 0, sizeof *e);
    while (e->count < length || depth > 1) {
        bool room = e->count + depth < PK_EXPR_MAX - 4 && depth < PK_EXPR_STACK - 1 && e->count < length;
        uint32_t what = coin(8);

        if (depth == 0 || (what < 3 && room)) {
            if (depth > 0 && coin(3) == 0)
                add_code(e, PK_EX_DUP, (int)coin((uint32_t)depth), 0);
            else if (coin(4) == 0)
                add_code(e, PK_EX_CONST, 0, coin(9) * 0.25 - 1);
            else
                add_code(e, PK_EX_IN, (int)coin((uint32_t)inputs), 0);
            depth++;
        } else if (what == 3 && depth >= 2 && room) {
            add_code(e, PK_EX_IN, mask, 0);
            add_code(e, PK_EX_SELECT, 0, 0);
            depth--;
        } else if (depth >= 2) {
            add_code(e, binary[coin(5)], 0, 0);
            depth--;
        } else {
            add_code(e, unary[coin(6)], 0, 0);
        }
    }
}

static void test_random_programs(void **state)
{
    static const struct pk_shape shapes[] = {{.rank = 3, .dim = {3, 5, 33}},
                                             {.rank = 3, .dim = {2, 8, 64}},
                                             {.rank = 1, .dim = {1}},
                                             {.rank = 2, .dim = {9, 132}},
                                             {.rank = 4, .dim = {2, 3, 4, 20}}};

    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        struct pk_expr e;
        struct rig_case c = {.op = PK_OP_EXPR, .attr.expr = &e, .n_out = 1, .tolerance = 1e-4, .floor = 1};
        struct pk_shape s = shapes[turn % 5];
        int inputs = 1 + turn % 11;
        char name[64];

        snprintf(name, sizeof name, "random program %d", turn);
        c.name = name;
        random_program(&e, inputs, inputs, 1 + (int)coin(turn % 3 ? 12 : PK_EXPR_MAX - 12));
        for (int i = 0; i < inputs; i++) {
            c.in[i] = rig_random(PK_F32, s, -1, 1);
            if (coin(4) == 0)
                c.in[i] = rig_strided(&c.in[i]);
            for (int k = 0; k < s.rank && coin(2); k++) /* some axes repeat */
                if (coin(3) == 0)
                    c.in[i].stride[k] = 0;
        }
        c.in[inputs] = rig_random(PK_U8, s, 0, 2);
        c.n_in = inputs + 1;
        c.out[0] = s;
        c.out_dtype[0] = PK_F32;
        rig_check(&c);
        rig_reset(NULL);
    }
}

/* As many values at once as the stack holds, and as many inputs. */
static void test_deep_program(void **state)
{
    struct pk_expr e = {0};
    struct rig_case c = {.op = PK_OP_EXPR, .attr.expr = &e, .n_in = 12, .n_out = 1, .name = "deep"};

    (void)state;
    for (int i = 0; i < PK_EXPR_STACK; i++) {
        add_code(&e, PK_EX_IN, i % 12, 0);
        if (i % 3 == 1)
            add_code(&e, PK_EX_TANH, 0, 0);
    }
    for (int i = 0; i < PK_EXPR_STACK - 1; i++)
        add_code(&e, i % 4 == 3 ? PK_EX_MUL : PK_EX_SUB, 0, 0);
    for (int i = 0; i < 12; i++)
        c.in[i] = rig_random(PK_F32, PK_SHAPE(2051), -1, 1);
    c.out[0] = PK_SHAPE(2051);
    c.out_dtype[0] = PK_F32;
    c.tolerance = 1e-5;
    rig_check(&c);
    rig_reset(NULL);
}

/* ---- movement ---- */

static const enum pk_dtype types[4] = {PK_F32, PK_BF16, PK_I32, PK_U8};

static void copy_case(struct pk_view x, enum pk_dtype to, const char *name)
{
    struct rig_case c = {.op = PK_OP_COPY, .name = name, .n_in = 1, .n_out = 1};

    c.in[0] = x;
    c.attr.copy.dtype = to;
    c.out[0] = x.shape;
    c.out_dtype[0] = to;
    rig_check(&c);
}

static void test_copies(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct pk_view x = rig_random(types[t], PK_SHAPE(2, 65, 130), 0, 200), part = x, turned;

        copy_case(rig_transposed(x), types[t], "squares turned over");
        turned = rig_transposed(rig_random(types[t], PK_SHAPE(3, 64, 4), 0, 9));
        copy_case(turned, types[t], "narrow squares");
        part.data = (char *)x.data + 2 * pk_dtype_size(types[t]);
        part.shape.dim[2] = 128; /* rows that begin two elements late, of a length that units divide */
        copy_case(part, types[t], "unaligned rows");
        x = rig_random(types[t], PK_SHAPE(2, 6, 3, 4, 64), 0, 200); /* one of three, as in packed attention */
        part = x;
        part.shape = PK_SHAPE(2, 4, 6, 64);
        part.stride[1] = 64;
        part.stride[2] = 768;
        part.stride[3] = 1;
        copy_case(part, types[t], "heads before tokens");
        for (int to = 0; to < 4; to++) {
            copy_case(part, types[to], "heads before tokens, cast");
            copy_case(rig_random(types[t], PK_SHAPE(0, 7), 0, 1), types[to], "nothing");
        }
        rig_reset(NULL);
    }
    copy_case(rig_values(PK_F32, PK_SHAPE(6), (double[]){3e9, -3e9, NAN, 1.9, -1.9, 2147483520}), PK_I32,
              "saturating casts");
    copy_case(rig_values(PK_F32, PK_SHAPE(6), (double[]){300, -3, NAN, 1.9, -0.5, 255}), PK_U8,
              "saturating casts to bytes");
    copy_case(rig_values(PK_I32, PK_SHAPE(4), (double[]){16777217, -16777219, 2147483647, -5}), PK_F32,
              "integers beyond 24 bits");
    copy_case(rig_values(PK_F32, PK_SHAPE(5), (double[]){INFINITY, -INFINITY, NAN, 1.00390625, 1.01171875}),
              PK_BF16, "ends and ties of bf16");
    rig_reset(NULL);
}

static void test_units(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++)
        for (int axis = 0; axis < 3; axis++) {
            struct rig_case c = {.op = PK_OP_CONCAT, .name = "concat of units", .n_in = 2, .n_out = 1};

            c.attr.concat.axis = axis;
            for (int i = 0; i < 2; i++) {
                struct pk_shape s = PK_SHAPE(4, 6, 64);

                s.dim[axis] = i ? 32 : 16;
                c.in[i] = rig_random(types[t], s, 0, 9);
            }
            c.out[0] = c.in[0].shape;
            c.out[0].dim[axis] = 48;
            c.out_dtype[0] = types[t];
            rig_check(&c);
            c = (struct rig_case){.op = PK_OP_PAD, .name = "pad of units", .n_in = 1, .n_out = 1};
            c.in[0] = rig_random(types[t], PK_SHAPE(4, 6, 64), 0, 9);
            if (axis == 1)
                c.in[0] = rig_strided(&c.in[0]);
            c.attr.pad.axis = axis;
            c.attr.pad.start = 16;
            c.attr.pad.extent = 96;
            c.out[0] = c.in[0].shape;
            c.out[0].dim[axis] = 96;
            c.out_dtype[0] = types[t];
            rig_check(&c);
            c = (struct rig_case){.op = PK_OP_ONE_HOT, .name = "one_hot of units", .n_in = 1, .n_out = 1};
            c.in[0] = rig_random(PK_I32, PK_SHAPE(37, 2), -1, 8);
            c.attr.one_hot.classes = axis == 0 ? 8 : axis == 1 ? 1 : 33;
            c.attr.one_hot.dtype = types[t];
            c.out[0] = PK_SHAPE(37, 2, c.attr.one_hot.classes);
            c.out_dtype[0] = types[t];
            rig_check(&c);
            rig_reset(NULL);
        }
    for (int t = 0; t < 2; t++) {
        struct rig_case c = {.op = PK_OP_GATHER, .name = "gather of units", .n_in = 2, .n_out = 1};

        c.in[0] = rig_random(types[t], PK_SHAPE(40, 64), -1, 1);
        c.in[1] = rig_random(PK_I32, PK_SHAPE(130), 0, 40);
        c.out[0] = PK_SHAPE(130, 64);
        c.out_dtype[0] = types[t];
        rig_check(&c);
        c = (struct rig_case){.op = PK_OP_CACHE_APPEND, .name = "cache of units", .n_in = 3, .n_out = 1};
        c.in[0] = rig_random(types[t], PK_SHAPE(3, 2, 11, 64), -1, 1);
        c.in[1] = rig_random(types[t], PK_SHAPE(3, 2, 4, 64), -1, 1);
        c.in[2] = rig_values(PK_I32, PK_SHAPE(3), (double[]){7, 0, 3});
        c.out[0] = c.in[0].shape;
        c.out_dtype[0] = types[t];
        c.share[0] = 1;
        rig_check(&c);
        rig_reset(NULL);
    }
}

/* ---- rows ---- */

static void norm_case(int64_t rows, int64_t d, bool layer, bool strided)
{
    struct rig_case c = {.op = PK_OP_NORM, .n_in = 3, .n_out = 3, .floor = 1e-2, .tolerance = 1e-5}, g;
    char name[80];

    snprintf(name, sizeof name, "%s of (%d, %d)%s", layer ? "layernorm" : "rmsnorm", (int)rows, (int)d,
             strided ? ", strided" : "");
    c.name = name;
    c.attr.norm.kind = layer ? PK_NORM_LAYER : PK_NORM_RMS;
    c.attr.norm.eps = 1e-5;
    c.attr.norm.has_beta = true;
    c.in[0] = rig_random(PK_F32, PK_SHAPE(rows, d), -1, 2);
    if (strided)
        c.in[0] = rig_strided(&c.in[0]);
    c.in[1] = rig_random(PK_F32, PK_SHAPE(d), 0.5, 1);
    c.in[2] = rig_random(PK_F32, PK_SHAPE(d), -1, 1);
    c.n_out = layer ? 3 : 2;
    c.out[0] = PK_SHAPE(rows, d);
    c.out[1] = c.out[2] = PK_SHAPE(rows);
    c.out_dtype[0] = c.out_dtype[1] = c.out_dtype[2] = PK_F32;
    rig_check(&c);
    g = c;
    g.op = PK_OP_NORM_BWD;
    g.in[2] = rig_random(PK_F32, PK_SHAPE(rows, d), -1, 1);
    g.in[3] = rig_random(PK_F32, PK_SHAPE(rows), 0.5, 1.5);
    g.in[4] = rig_random(PK_F32, PK_SHAPE(rows), -0.5, 0.5);
    g.n_in = layer ? 5 : 4;
    g.n_out = 3;
    g.out[1] = g.out[2] = PK_SHAPE(d);
    rig_check(&g);
    g.attr.norm.again = g.attr.norm.has_residual = true;
    g.in[g.n_in++] = c.in[2];
    g.in[g.n_in++] = rig_random(PK_F32, PK_SHAPE(rows, d), -1, 1);
    g.out[3] = g.out[0];
    g.out_dtype[3] = PK_F32;
    g.n_out = 4;
    g.share[0] = rows % 2 ? g.n_in : 0; /* dx lies on the residual */
    rig_check(&g);
    rig_reset(NULL);
}

static void test_norm_widths(void **state)
{
    static const int64_t widths[] = {3, 64, 100, 256, 384, 512, 700, 1024, 1025, 2048, 4096, 8192, 8200};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int form = 0; form < 2; form++)
            norm_case(form ? 1 : 6, widths[w], form, w % 3 == 2 && !form);
    norm_case(9001, 8, true, false); /* more rows than groups: shares of several */
    norm_case(2200, 130, false, false);
    norm_case(1100, 1028, true, false); /* blocks with several rows */
}

static void test_softmax_widths(void **state)
{
    static const int64_t widths[] = {2, 12, 196, 512, 513, 1024, 4100, 8192, 8193};

    (void)state;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        struct rig_case c = {
            .op = PK_OP_SOFTMAX, .name = "softmax", .n_in = 1, .n_out = 1, .tolerance = 1e-5};

        c.in[0] = rig_random(PK_F32, PK_SHAPE(5, widths[w]), -30, 30);
        c.out[0] = c.in[0].shape;
        rig_check(&c);
        c.op = PK_OP_SOFTMAX_BWD;
        c.in[0] = rig_random(PK_F32, c.out[0], 0, 1);
        c.in[1] = rig_random(PK_F32, c.out[0], -1, 1);
        c.n_in = 2;
        c.floor = 1;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_cross_entropy_rows(void **state)
{
    static const int64_t classes[] = {1, 3, 64, 1000, 1024, 1028, 4099, 50304};

    (void)state;
    for (size_t k = 0; k < sizeof classes / sizeof *classes; k++)
        for (int form = 0; form < 4; form++) {
            struct rig_case c = {.op = PK_OP_CROSS_ENTROPY, .n_in = 2, .n_out = 4, .name = "cross_entropy"},
                            g;
            int64_t n = classes[k], m = form == 3 ? 1 : 5;
            float *x;

            c.attr.cross_entropy.smoothing = form & 1 ? 0.1 : 0;
            c.attr.cross_entropy.ignore = -1;
            c.in[0] = rig_random(PK_F32, PK_SHAPE(m, n), -9, 9);
            c.in[1] = rig_random(PK_I32, PK_SHAPE(m), 0, (double)n);
            x = c.in[0].data;
            for (int64_t i = 0; i < m; i++) {
                ((int32_t *)c.in[1].data)[i] = form == 2 ? -1 : ((int32_t *)c.in[1].data)[i];
                x[i * n + (i % 2 ? n - 1 : n / 2)] = 12; /* equal largest, the first at another place */
                x[i * n + n / 3] = 12;
                if (n > 4 && form == 0)
                    ((int32_t *)c.in[1].data)[i] = (int32_t)(i == 3 ? n / 2 : n / 3);
                if (n > 8 && form < 2)
                    x[i * n + 1] = x[i * n + 5] = -INFINITY;
            }
            if (form == 1) /* all of a thread's share is nothing */
                for (int64_t i = 8; i < n / 4; i++)
                    x[i] = -INFINITY;
            if (form == 1) /* smoothing takes the mean of all */
                for (int64_t i = 0; i < m * n; i++)
                    x[i] = isinf(x[i]) ? -80 : x[i];
            c.out[0] = c.out[1] = c.out[2] = PK_SHAPE(1);
            c.out[3] = PK_SHAPE(m);
            c.tolerance = 4e-6;
            rig_check(&c);
            g = c;
            g.op = PK_OP_CROSS_ENTROPY_BWD;
            g.name = "cross_entropy_bwd";
            g.in[2] = rig_random(PK_F32, PK_SHAPE(m), 12, 14);
            g.in[3] = rig_values(PK_F32, PK_SHAPE(1), (double[]){0.125});
            g.n_in = 4;
            g.n_out = 1;
            g.out[0] = c.in[0].shape;
            g.share[0] = form == 1; /* in place */
            g.floor = 1e-3;
            g.tolerance = 1e-5;
            rig_check(&g);
            /* both at once: out of shared memory from 1028 on, where rows lie on 16 bytes */
            g = c;
            g.op = PK_OP_CROSS_ENTROPY_GRAD;
            g.name = "cross_entropy_grad";
            g.in[2] = rig_values(PK_F32, PK_SHAPE(1), (double[]){0.125});
            g.attr.cross_entropy.mean = form != 2;
            g.attr.cross_entropy.width = form == 0 ? (n + 127) / 64 * 64 : 0;
            g.n_in = 3;
            g.out[0] = form == 0 ? PK_SHAPE(m, g.attr.cross_entropy.width) : c.in[0].shape;
            for (int i = 1; i < 4; i++)
                g.out[i] = PK_SHAPE(1);
            g.share[0] = form == 1;
            g.floor = 1e-3;
            g.tolerance = 1e-5;
            rig_check(&g);
            rig_reset(NULL);
        }
}

static void test_sums_in_two_launches(void **state)
{
    static const struct {
        struct pk_shape shape;
        uint32_t axes;
    } cases[] = {{{.rank = 2, .dim = {20000, 8}}, 1},     {{.rank = 2, .dim = {5000, 132}}, 1},
                 {{.rank = 1, .dim = {300000}}, 1},       {{.rank = 2, .dim = {2, 40004}}, 2},
                 {{.rank = 3, .dim = {40, 50, 36}}, 3},   {{.rank = 3, .dim = {40, 50, 36}}, 5},
                 {{.rank = 3, .dim = {3, 2000, 12}}, 2},  {{.rank = 2, .dim = {3000, 3}}, 2},
                 {{.rank = 2, .dim = {3000, 3}}, 1},      {{.rank = 3, .dim = {4, 0, 8}}, 2},
                 {{.rank = 4, .dim = {6, 7, 90, 40}}, 9}, {{.rank = 2, .dim = {1, 1}}, 3}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int form = 0; form < 3; form++) {
            struct rig_case c = {.op = form == 2 ? PK_OP_MAX : PK_OP_SUM, .n_in = 1, .n_out = 1, .floor = 10};
            char name[64];

            if (form == 2 && pk_shape_count(&cases[i].shape) == 0)
                continue;
            snprintf(name, sizeof name, "reduction %d, form %d", (int)i, form);
            c.name = name;
            c.in[0] = rig_random(PK_F32, cases[i].shape, -1, 1);
            if (form == 1)
                c.in[0] = rig_strided(&c.in[0]);
            c.attr.reduce.axes = cases[i].axes;
            for (int a = 0; a < cases[i].shape.rank; a++)
                if (!(cases[i].axes >> a & 1))
                    c.out[0].dim[c.out[0].rank++] = cases[i].shape.dim[a];
            if (form == 2)
                ((float *)c.in[0].data)[pk_shape_count(&cases[i].shape) / 2] = NAN;
            rig_check(&c);
            rig_reset(NULL);
        }
}

static void test_many_sums_of_squares(void **state)
{
    struct rig_case c = {.op = PK_OP_SUMSQ, .name = "sumsq", .n_in = RIG_MAX_IN, .n_out = 1};

    (void)state;
    for (int i = 0; i < RIG_MAX_IN; i++) {
        c.in[i] = rig_random(PK_F32, PK_SHAPE(1 + i, i == 4 ? 20000 : i == 6 ? 0 : 77), -1, 1);
        if (i % 5 == 3)
            c.in[i] = rig_transposed(c.in[i]);
        if (i % 5 == 1)
            c.in[i] = rig_strided(&c.in[i]);
    }
    c.out[0] = PK_SHAPE(1);
    rig_check(&c);
    rig_reset(NULL);
}

/* ---- scatter ---- */

static void scatter_case(int64_t positions, int64_t rows, int64_t d, int how, const char *name)
{
    for (int base = 0; base < 3; base++) {
        struct rig_case c = {.op = PK_OP_SCATTER_ADD, .name = name, .n_in = base ? 3 : 2, .n_out = 1};

        c.in[0] = rig_random(PK_I32, PK_SHAPE(positions), 0, (double)rows);
        for (int64_t i = 0; i < positions; i++)
            if (how == 1 || (how == 2 && i % 3))
                ((int32_t *)c.in[0].data)[i] = (int32_t)(rows / 2);
        c.in[1] = rig_random(PK_F32, PK_SHAPE(positions, d), -1, 1);
        if (base)
            c.in[2] = rig_random(PK_F32, PK_SHAPE(rows, d), -1, 1);
        c.share[0] = base == 2 ? 3 : 0;
        c.attr.scatter_add.rows = rows;
        c.out[0] = PK_SHAPE(rows, d);
        c.tolerance = 4e-6;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_scatter(void **state)
{
    (void)state;
    scatter_case(5000, 300, 20, 0, "scatter of many");
    scatter_case(5000, 300, 20, 1, "scatter to one row");
    scatter_case(4500, 40, 7, 2, "scatter mostly to one row");
    scatter_case(3000, 70000, 2, 0, "scatter to many rows"); /* keys of three bytes */
    scatter_case(100, 50000, 3, 2, "few positions, many rows");
    scatter_case(5000, 3, 1028, 0, "wide rows");
    scatter_case(0, 40, 8, 0, "scatter of nothing");
}

/* ---- calls on their own ---- */

static struct pk_view to_device(const struct pk_view *v)
{
    struct pk_view r = *v;
    size_t bytes = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);

    r.data = gpu_api()->alloc(gpu_device(), bytes);
    assert_non_null(r.data);
    assert_int_equal(gpu_api()->upload(gpu_device(), r.data, v->data, bytes, NULL), PD_OK);
    return r;
}

static void from_device(const struct pk_view *v, void *to)
{
    size_t bytes = (size_t)pk_shape_count(&v->shape) * pk_dtype_size(v->dtype);

    assert_int_equal(gpu_api()->download(gpu_device(), to, v->data, bytes, NULL), PD_OK);
}

static void let_go(struct pk_view *v, int n)
{
    while (n > 0)
        gpu_api()->free(gpu_device(), v[--n].data);
}

/* Runs a call on dense tensors, on both back ends; ret_gpu and ret_cpu get output 0. */
static void run_both(const struct rig_case *c, void *ret_gpu, void *ret_cpu)
{
    struct pk_backend *cpu = rig_backend(NULL, NULL, 1);
    struct pk_view in[RIG_MAX_IN], out[RIG_MAX_OUT], host[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = out};
    struct pd_why why = {""};

    for (int i = 0; i < c->n_in; i++)
        in[i] = to_device(&c->in[i]);
    for (int i = 0; i < c->n_out; i++) {
        host[i] = rig_random(c->out_dtype[i], c->out[i], 0, 1);
        out[i] = to_device(&host[i]);
    }
    call.workspace_bytes = gpu_api()->workspace_bytes(gpu_device(), &call);
    call.workspace = gpu_api()->alloc(gpu_device(), call.workspace_bytes + 1);
    if (gpu_api()->run(gpu_device(), &call, 1, &why) != PD_OK || gpu_api()->sync(gpu_device(), &why) != PD_OK)
        fail_msg("%s: %s", c->name, why.text);
    from_device(&out[0], ret_gpu);
    gpu_api()->free(gpu_device(), call.workspace);
    let_go(in, c->n_in);
    let_go(out, c->n_out);
    call.in = c->in;
    call.out = host;
    call.workspace_bytes = pk_backend_cpu()->workspace_bytes(cpu, &call);
    call.workspace = rig_alloc(call.workspace_bytes);
    assert_int_equal(pk_backend_cpu()->run(cpu, &call, 1, &why), PD_OK);
    memcpy(ret_cpu, host[0].data, (size_t)pk_shape_count(&c->out[0]) * pk_dtype_size(c->out_dtype[0]));
}

static void test_dropout_masks_are_the_cpus_bits(void **state)
{
    static const int64_t columns[] = {1, 3, 63, 64, 65, 127, 200, 256, 260, 768};
    const double keys[3] = {-77, 19, 1000003};

    (void)state;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int samples = 0; samples < 2; samples++) {
            struct rig_case c = {.op = PK_OP_DROPOUT, .n_in = 2, .n_out = 1, .name = "dropout"};
            int64_t n = 6 * 5 * columns[i];
            float *gpu = rig_alloc((size_t)n * 4), *cpu = rig_alloc((size_t)n * 4);

            c.in[0] = rig_random(PK_F32, PK_SHAPE(6, 5, columns[i]), 1, 2);
            c.in[1] = rig_values(PK_I32, PK_SHAPE(3), keys);
            c.attr.dropout.rate = 0.3;
            c.attr.dropout.stream = 9;
            c.attr.dropout.samples = samples;
            c.out[0] = c.in[0].shape;
            run_both(&c, gpu, cpu);
            assert_memory_equal(gpu, cpu, (size_t)n * 4);
            rig_reset(NULL);
        }
}

/* Runs of one index that lie within a tile of the sorted positions, and all runs where positions are few, are
 * added exactly as the CPU adds them. */
static void test_scatter_adds_in_the_order_of_the_index(void **state)
{
    static const struct {
        int64_t positions, rows;
    } cases[] = {{4000, 9}, {64, 100000}, {6400, 1000}};

    (void)state;
    for (int k = 0; k < 3; k++) {
        struct rig_case c = {.op = PK_OP_SCATTER_ADD, .n_in = 3, .n_out = 1, .name = "scatter order"};
        int64_t n = cases[k].rows * 5;
        float *gpu = rig_alloc((size_t)n * 4), *cpu = rig_alloc((size_t)n * 4);

        c.in[0] = rig_random(PK_I32, PK_SHAPE(cases[k].positions), 0, (double)cases[k].rows);
        if (k == 2) /* each tile of 64 is ten runs, in a shuffled order */
            for (int i = 0; i < 6400; i++) {
                int at = i * 2459 % 6400;

                ((int32_t *)c.in[0].data)[i] = at / 64 * 10 + at % 64 / 7;
            }
        c.in[1] = rig_random(PK_F32, PK_SHAPE(cases[k].positions, 5), -1, 1);
        c.in[2] = rig_random(PK_F32, PK_SHAPE(cases[k].rows, 5), -1, 1);
        c.attr.scatter_add.rows = cases[k].rows;
        c.out[0] = PK_SHAPE(cases[k].rows, 5);
        run_both(&c, gpu, cpu);
        assert_memory_equal(gpu, cpu, (size_t)n * 4);
        rig_reset(NULL);
    }
}

/* Tensors without elements beside some that have them. */
static void test_nothing_in_and_something_out(void **state)
{
    struct rig_case c = {.op = PK_OP_CROSS_ENTROPY, .n_in = 2, .n_out = 4, .name = "loss of nothing"};

    (void)state;
    c.in[0] = rig_random(PK_F32, PK_SHAPE(0, 7), 0, 1);
    c.in[1] = rig_random(PK_I32, PK_SHAPE(0), 0, 1);
    c.attr.cross_entropy.ignore = -1;
    c.out[0] = c.out[1] = c.out[2] = PK_SHAPE(1);
    c.out[3] = PK_SHAPE(0);
    rig_check(&c);
    c = (struct rig_case){.op = PK_OP_NORM_BWD, .n_in = 5, .n_out = 3, .name = "norm of nothing"};
    c.attr.norm.has_beta = true;
    c.in[0] = c.in[2] = rig_random(PK_F32, PK_SHAPE(0, 12), 0, 1);
    c.in[1] = rig_random(PK_F32, PK_SHAPE(12), 0, 1);
    c.in[3] = c.in[4] = rig_random(PK_F32, PK_SHAPE(0), 0, 1);
    c.out[0] = PK_SHAPE(0, 12);
    c.out[1] = c.out[2] = PK_SHAPE(12);
    rig_check(&c);
    c = (struct rig_case){.op = PK_OP_SUMSQ, .n_in = 2, .n_out = 1, .name = "squares of nothing"};
    c.in[0] = c.in[1] = rig_random(PK_F32, PK_SHAPE(3, 0), 0, 1);
    c.out[0] = PK_SHAPE(1);
    rig_check(&c);
    rig_reset(NULL);
}

/* ---- what a kernel finds wrong ---- */

static enum pd_err run_on_device(const struct rig_case *c, struct pd_why *why, struct pk_view *ret_out)
{
    static struct pk_view in[RIG_MAX_IN], out[RIG_MAX_OUT];
    struct pk_call call = {
        .op = c->op, .attr = &c->attr, .n_in = c->n_in, .n_out = c->n_out, .in = in, .out = out};
    enum pd_err err;

    for (int i = 0; i < c->n_in; i++)
        in[i] = to_device(&c->in[i]);
    for (int i = 0; i < c->n_out; i++) {
        struct pk_view v = rig_random(c->out_dtype[i], c->out[i], 5, 6);

        out[i] = c->share[i] ? in[c->share[i] - 1] : to_device(&v);
    }
    call.workspace_bytes = gpu_api()->workspace_bytes(gpu_device(), &call);
    call.workspace = gpu_api()->alloc(gpu_device(), call.workspace_bytes + 1);
    assert_int_equal(gpu_api()->run(gpu_device(), &call, 1, why), PD_OK);
    err = gpu_api()->sync(gpu_device(), why);
    assert_int_equal(gpu_api()->sync(gpu_device(), NULL), PD_OK); /* said once */
    if (ret_out)
        from_device(&out[0], ret_out->data);
    gpu_api()->free(gpu_device(), call.workspace);
    for (int i = 0; i < c->n_out; i++)
        if (!c->share[i])
            let_go(&out[i], 1);
    let_go(in, c->n_in);
    return err;
}

static void test_bad_indices(void **state)
{
    struct rig_case gather = {.op = PK_OP_GATHER, .n_in = 2, .n_out = 1}, scatter, loss, append;
    struct pk_view result = rig_random(PK_F32, PK_SHAPE(3, 8), 0, 1);
    struct pd_why why = {""};

    (void)state;
    gather.in[0] = rig_random(PK_F32, PK_SHAPE(4, 8), 1, 2);
    gather.in[1] = rig_values(PK_I32, PK_SHAPE(3), (double[]){1, 4, 0});
    gather.out[0] = PK_SHAPE(3, 8);
    assert_int_equal(run_on_device(&gather, &why, &result), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "gather: index 4"));
    assert_memory_equal(result.data, (float *)gather.in[0].data + 8, 32); /* the others are there */
    assert_memory_equal((float *)result.data + 16, gather.in[0].data, 32);
    ((int32_t *)gather.in[1].data)[1] = -1;
    assert_int_equal(run_on_device(&gather, &why, NULL), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "gather: index -1"));
    ((int32_t *)gather.in[1].data)[1] = 3;
    assert_int_equal(run_on_device(&gather, &why, NULL), PD_OK);

    for (int few = 0; few < 2; few++) {
        const int64_t rows = few ? 4 : 5000, positions = few ? 3 : 2000;

        scatter = (struct rig_case){.op = PK_OP_SCATTER_ADD, .n_in = 2, .n_out = 1};
        scatter.in[0] = rig_random(PK_I32, PK_SHAPE(positions), 0, (double)rows);
        scatter.in[1] = rig_random(PK_F32, PK_SHAPE(positions, 4), -1, 1);
        scatter.attr.scatter_add.rows = rows;
        scatter.out[0] = PK_SHAPE(rows, 4);
        assert_int_equal(run_on_device(&scatter, &why, NULL), PD_OK);
        ((int32_t *)scatter.in[0].data)[2] = (int32_t)rows;
        assert_int_equal(run_on_device(&scatter, &why, NULL), PD_ERR_INVALID);
        assert_non_null(strstr(why.text, "scatter_add"));
    }

    loss = (struct rig_case){.op = PK_OP_CROSS_ENTROPY, .n_in = 2, .n_out = 4};
    loss.in[0] = rig_random(PK_F32, PK_SHAPE(3, 7), -1, 1);
    loss.in[1] = rig_values(PK_I32, PK_SHAPE(3), (double[]){0, 7, -100});
    loss.attr.cross_entropy.ignore = -100;
    loss.out[0] = loss.out[1] = loss.out[2] = PK_SHAPE(1);
    loss.out[3] = PK_SHAPE(3);
    assert_int_equal(run_on_device(&loss, &why, NULL), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "cross_entropy: index 7"));
    loss.op = PK_OP_CROSS_ENTROPY_BWD;
    loss.in[2] = rig_random(PK_F32, PK_SHAPE(3), 1, 2);
    loss.in[3] = rig_random(PK_F32, PK_SHAPE(1), 1, 2);
    loss.n_in = 4;
    loss.n_out = 1;
    loss.out[0] = PK_SHAPE(3, 7);
    assert_int_equal(run_on_device(&loss, &why, NULL), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "cross_entropy_bwd: index 7"));

    for (int n = 7; n < 2000; n += 1093) { /* a warp's rows, and a block's */
        loss.op = PK_OP_CROSS_ENTROPY_GRAD;
        loss.in[0] = rig_random(PK_F32, PK_SHAPE(3, n), -1, 1);
        loss.in[1] = rig_values(PK_I32, PK_SHAPE(3), (double[]){0, n, -100});
        loss.in[2] = loss.in[3];
        loss.n_in = 3;
        loss.n_out = 4;
        loss.out[0] = PK_SHAPE(3, n);
        for (int i = 1; i < 4; i++)
            loss.out[i] = PK_SHAPE(1);
        assert_int_equal(run_on_device(&loss, &why, NULL), PD_ERR_INVALID);
        assert_non_null(
            strstr(why.text, n == 7 ? "cross_entropy: index 7" : "cross_entropy_grad: index 1100"));
    }

    append = (struct rig_case){.op = PK_OP_CACHE_APPEND, .n_in = 3, .n_out = 1, .share = {1}};
    append.in[0] = rig_random(PK_F32, PK_SHAPE(2, 1, 5, 4), -1, 1);
    append.in[1] = rig_random(PK_F32, PK_SHAPE(2, 1, 2, 4), -1, 1);
    append.out[0] = append.in[0].shape;
    for (int bad = -1; bad < 6; bad++) {
        bool fits = bad >= 0 && bad <= 3;

        append.in[2] = rig_values(PK_I32, PK_SHAPE(2), (double[]){0, bad});
        assert_int_equal(run_on_device(&append, &why, NULL), fits ? PD_OK : PD_ERR_INVALID);
    }
    rig_reset(NULL);
}

static void test_the_maximum_of_nothing_is_refused(void **state)
{
    struct pk_view x = rig_random(PK_F32, PK_SHAPE(3, 0), 0, 1), y = rig_random(PK_F32, PK_SHAPE(3), 0, 1);
    struct pk_attr attr = {.reduce.axes = 2};
    struct pk_view out = to_device(&y);
    struct pk_call c = {.op = PK_OP_MAX, .attr = &attr, .n_in = 1, .n_out = 1, .in = &x, .out = &out};
    struct pd_why why = {""};

    (void)state;
    assert_int_equal(gpu_api()->run(gpu_device(), &c, 1, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "maximum"));
    let_go(&out, 1);
    rig_reset(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_random_programs, rig_reset),
        cmocka_unit_test_teardown(test_deep_program, rig_reset),
        cmocka_unit_test_teardown(test_copies, rig_reset),
        cmocka_unit_test_teardown(test_units, rig_reset),
        cmocka_unit_test_teardown(test_norm_widths, rig_reset),
        cmocka_unit_test_teardown(test_softmax_widths, rig_reset),
        cmocka_unit_test_teardown(test_cross_entropy_rows, rig_reset),
        cmocka_unit_test_teardown(test_sums_in_two_launches, rig_reset),
        cmocka_unit_test_teardown(test_many_sums_of_squares, rig_reset),
        cmocka_unit_test_teardown(test_scatter, rig_reset),
        cmocka_unit_test_teardown(test_dropout_masks_are_the_cpus_bits, rig_reset),
        cmocka_unit_test_teardown(test_scatter_adds_in_the_order_of_the_index, rig_reset),
        cmocka_unit_test_teardown(test_nothing_in_and_something_out, rig_reset),
        cmocka_unit_test_teardown(test_bad_indices, rig_reset),
        cmocka_unit_test_teardown(test_the_maximum_of_nothing_is_refused, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
