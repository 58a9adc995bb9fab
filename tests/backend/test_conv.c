/* Convolutions against the reference: strides, pads, kernels that are no squares, borders, strided inputs, tiles of
 * which the last is not full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/backend/rig.h"

static const enum pk_dtype floats[2] = {PK_F32, PK_F64};

struct size {
    int64_t batch, height, width, ci, co, kh, kw;
    int32_t stride, pad;
};

static const struct size sizes[] = {
    {2, 5, 6, 3, 4, 3, 3, 1, 1},                                  /* the grid stays */
    {1, 8, 8, 1, 8, 3, 3, 2, 1},                                  /* of one channel, by halves */
    {2, 9, 7, 5, 3, 3, 3, 2, 1},                                  /* odd sides */
    {1, 7, 9, 4, 6, 5, 3, 3, 2},                                  /* stride 3, a kernel that is no square */
    {3, 4, 4, 2, 2, 2, 2, 2, 0},                                  /* patches */
    {1, 6, 6, 2, 3, 1, 1, 2, 0},                                  /* positions that no tap reaches */
    {1, 3, 3, 2, 2, 3, 3, 1, 2},                                  /* padded by more than the kernel needs */
    {1, 3, 2, 3, 2, 5, 5, 1, 2},                                  /* larger than the images */
    {2, 20, 33, 16, 20, 3, 3, 1, 1},                              /* several tiles and chunks */
    {1, 34, 31, 40, 17, 3, 3, 2, 1}, {1, 5, 5, 2, 2, 3, 3, 7, 1}, /* a stride beyond the images */
};

static int64_t places(int64_t n, int64_t k, const struct size *s)
{
    return (n + 2 * s->pad - k) / s->stride + 1;
}

static void check(const struct size *s, enum pk_dtype dtype, bool strided)
{
    const struct pk_shape x = PK_SHAPE(s->batch, s->height, s->width, s->ci),
                          w = PK_SHAPE(s->kh, s->kw, s->ci, s->co),
                          y = PK_SHAPE(s->batch, places(s->height, s->kh, s), places(s->width, s->kw, s),
                                       s->co);
    const struct {
        enum pk_op op;
        struct pk_shape in[2], out;
        int64_t extent[2];
    } form[] = {{PK_OP_CONV2D, {x, w}, y, {0, 0}},
                {PK_OP_CONV2D_DX, {y, w}, x, {s->height, s->width}},
                {PK_OP_CONV2D_DW, {x, y}, w, {s->kh, s->kw}}};

    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        struct rig_case c = {.op = form[i].op, .n_in = 2, .n_out = 1};
        char name[96];

        snprintf(name, sizeof name, "form %zu of %lld x %lld x %lld, kernel %lld x %lld, stride %d", i,
                 (long long)s->height, (long long)s->width, (long long)s->ci, (long long)s->kh,
                 (long long)s->kw, s->stride);
        c.name = name;
        c.attr.conv.stride = s->stride;
        c.attr.conv.pad = s->pad;
        c.attr.conv.extent[0] = form[i].extent[0];
        c.attr.conv.extent[1] = form[i].extent[1];
        for (int k = 0; k < 2; k++) {
            c.in[k] = rig_random(dtype, form[i].in[k], -1, 1);
            if (strided)
                c.in[k] = rig_strided(&c.in[k]);
        }
        c.out[0] = form[i].out;
        c.out_dtype[0] = dtype;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_convolutions(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int strided = 0; strided < 2; strided++)
                check(&sizes[i], floats[t], strided);
}

static void test_convolution_of_no_images(void **state)
{
    (void)state;
    check(&(struct size){0, 5, 5, 3, 4, 3, 3, 1, 1}, PK_F32, false);
}

static void check_depthwise(const struct size *s, enum pk_dtype dtype, bool strided)
{
    const struct pk_shape x = PK_SHAPE(s->batch, s->height, s->width, s->ci),
                          w = PK_SHAPE(s->kh, s->kw, s->ci);

    for (int form = 0; form < 3; form++) {
        struct rig_case c = {.op = form < 2 ? PK_OP_DWCONV2D : PK_OP_DWCONV2D_DW, .n_in = 2, .n_out = 1};
        char name[96];

        snprintf(name, sizeof name, "depthwise %d of %lld x %lld x %lld, kernel %lld x %lld", form,
                 (long long)s->height, (long long)s->width, (long long)s->ci, (long long)s->kh,
                 (long long)s->kw);
        c.name = name;
        c.attr.conv.flip = form == 1;
        if (form == 2) {
            c.attr.conv.extent[0] = s->kh;
            c.attr.conv.extent[1] = s->kw;
        }
        c.in[0] = rig_random(dtype, x, -1, 1);
        c.in[1] = rig_random(dtype, form < 2 ? w : x, -1, 1);
        for (int k = 0; strided && k < 2; k++)
            c.in[k] = rig_strided(&c.in[k]);
        if (strided && form < 2) /* one kernel for all channels */
            c.in[1].stride[2] = 0;
        c.out[0] = form < 2 ? x : w;
        c.out_dtype[0] = dtype;
        rig_check(&c);
        rig_reset(NULL);
    }
}

static void test_depthwise_convolutions(void **state)
{
    static const struct size each[] = {
        {.batch = 2, .height = 7, .width = 9, .ci = 5, .kh = 3, .kw = 3},
        {.batch = 1, .height = 14, .width = 14, .ci = 64, .kh = 3, .kw = 3},
        {.batch = 2, .height = 3, .width = 20, .ci = 33, .kh = 3, .kw = 3},
        {.batch = 1, .height = 2, .width = 1, .ci = 3, .kh = 3, .kw = 3},   /* smaller than the kernel */
        {.batch = 2, .height = 50, .width = 1, .ci = 8, .kh = 35, .kw = 1}, /* along one axis */
        {.batch = 1, .height = 4, .width = 30, .ci = 7, .kh = 1, .kw = 7},
        {.batch = 2,
         .height = 5,
         .width = 9,
         .ci = 17,
         .kh = 1,
         .kw = 3}, /* one line for each row of the output */
        {.batch = 3,
         .height = 5,
         .width = 6,
         .ci = 150,
         .kh = 3,
         .kw = 3}, /* an odd row, two blocks of channels */
        {.batch = 1, .height = 9, .width = 8, .ci = 130, .kh = 5, .kw = 5},
        {.batch = 3, .height = 4, .width = 4, .ci = 1, .kh = 1, .kw = 1},
        {.batch = 0, .height = 4, .width = 4, .ci = 3, .kh = 3, .kw = 3},
    };

    /* So large that the result is stored past the caches. */
    static const struct size large = {.batch = 2, .height = 61, .width = 70, .ci = 256, .kh = 3, .kw = 3};

    (void)state;
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof each / sizeof *each; i++)
            for (int strided = 0; strided < 2; strided++)
                check_depthwise(&each[i], floats[t], strided);
    check_depthwise(&large, PK_F32, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_convolutions, rig_reset),
        cmocka_unit_test_teardown(test_convolution_of_no_images, rig_reset),
        cmocka_unit_test_teardown(test_depthwise_convolutions, rig_reset),
    };

    return cmocka_run_group_tests(tests, NULL, rig_close_all);
}
