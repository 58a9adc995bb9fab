/* Pictures: every kind that the decoders meet, damage at every byte, and what the transforms do to pixels. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
/* clang-format off */
#include <jpeglib.h>
#include <png.h>
/* clang-format on */

#include "daemon/worker/data/augment.h"
#include "daemon/worker/data/image.h"

enum { H = 40, W = 56 };

struct bytes {
    unsigned char *data;
    unsigned long len;
};

/* A smooth colour picture, so that JPEG keeps it nearly whole. */
static void paint(uint8_t *p, int channels)
{
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < channels; c++)
                *p++ = (uint8_t)(40 + c * 30 + 2 * y + (c == 1 ? x : 0));
}

static struct bytes jpeg(J_COLOR_SPACE space, int channels, bool progressive, bool adobe)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr err;
    struct bytes b = {0};
    uint8_t pixels[H * W * 4];

    paint(pixels, channels);
    c.err = jpeg_std_error(&err);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &b.data, &b.len);
    c.image_width = W;
    c.image_height = H;
    c.input_components = channels;
    c.in_color_space = space;
    jpeg_set_defaults(&c);
    jpeg_set_quality(&c, 95, TRUE);
    if (progressive)
        jpeg_simple_progression(&c);
    if (space == JCS_CMYK)
        c.write_Adobe_marker = adobe;
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < H) {
        JSAMPROW row = pixels + c.next_scanline * W * (unsigned)channels;

        (void)jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    return b;
}

static void png_put(png_structp png, png_bytep bytes, size_t len)
{
    struct bytes *b = png_get_io_ptr(png);

    b->data = realloc(b->data, b->len + len);
    assert_non_null(b->data);
    memcpy(b->data + b->len, bytes, len);
    b->len += len;
}

/* colour: PNG_COLOR_TYPE_*; a palette holds 256 shades of red to blue, entry 3 clear. */
static struct bytes png_of(int colour, int depth, bool interlaced)
{
    static const int samples[] = {1, 0, 3, 1, 2, 0, 4};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    struct bytes b = {0};
    uint8_t pixels[H * W * 4], row[W * 8];
    int n = samples[colour];

    paint(pixels, n);
    assert_int_equal(setjmp(png_jmpbuf(png)), 0);
    png_set_write_fn(png, &b, png_put, NULL);
    png_set_IHDR(png, info, W, H, depth, colour, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (colour == PNG_COLOR_TYPE_PALETTE) {
        png_color entry[256];
        png_byte clear[4] = {255, 255, 255, 0};

        for (int i = 0; i < 256; i++)
            entry[i] = (png_color){.red = (png_byte)i, .green = 7, .blue = (png_byte)(255 - i)};
        png_set_PLTE(png, info, entry, 1 << depth);
        png_set_tRNS(png, info, clear, depth >= 2 ? 4 : 2, NULL);
    }
    png_write_info(png, info);
    for (int pass = 0; pass < (interlaced ? png_set_interlace_handling(png) : 1); pass++)
        for (int y = 0; y < H; y++) {
            const uint8_t *from = pixels + y * W * n;

            memset(row, 0, sizeof row);
            for (int i = 0; i < W * n; i++) {
                if (depth == 16) {
                    row[2 * i] = from[i];
                    row[2 * i + 1] = 0xc3; /* to be dropped */
                } else if (depth == 8) {
                    row[i] = from[i];
                } else {
                    row[i * depth / 8] |= (uint8_t)((from[i] >> (8 - depth)) << (8 - depth - i * depth % 8));
                }
            }
            png_write_row(png, row);
        }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return b;
}

static void expect_near(const struct bytes *b, int channels, int tolerance, const uint8_t *want)
{
    struct data_image got = {0};
    struct pd_why why = {""};
    int32_t h = 0, w = 0;

    assert_int_equal(data_image_size(b->data, b->len, &h, &w, &why), PD_OK);
    assert_int_equal(h, H);
    assert_int_equal(w, W);
    assert_int_equal(data_image_decode(b->data, b->len, channels, 0, &got, &why), PD_OK);
    assert_int_equal(got.height, H);
    assert_int_equal(got.width, W);
    assert_int_equal(got.channels, channels);
    for (int i = 0; i < H * W * channels; i++)
        if (abs(got.pixels[i] - want[i]) > tolerance)
            fail_msg("byte %d is %d, wanted %d", i, got.pixels[i], want[i]);
    data_image_done(&got);
}

static uint8_t grey(int r, int g, int b)
{
    return (uint8_t)((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
}

static void to_grey(const uint8_t *rgb, uint8_t *to)
{
    for (int i = 0; i < H * W; i++)
        to[i] = grey(rgb[3 * i], rgb[3 * i + 1], rgb[3 * i + 2]);
}

static void test_jpeg_kinds(void **state)
{
    uint8_t rgb[H * W * 3], one[H * W], three[H * W * 3], inks[H * W * 4];
    struct bytes b;

    (void)state;
    paint(rgb, 3);
    to_grey(rgb, one);
    for (int progressive = 0; progressive < 2; progressive++) {
        b = jpeg(JCS_RGB, 3, progressive, false);
        expect_near(&b, 3, 8, rgb);
        expect_near(&b, 1, 8, one);
        free(b.data);
    }
    b = jpeg(JCS_GRAYSCALE, 1, false, false);
    paint(one, 1);
    for (int i = 0; i < H * W; i++)
        three[3 * i] = three[3 * i + 1] = three[3 * i + 2] = one[i];
    expect_near(&b, 3, 4, three);
    expect_near(&b, 1, 4, one);
    free(b.data);
    paint(inks, 4);
    for (int adobe = 0; adobe < 2; adobe++) {
        b = jpeg(JCS_CMYK, 4, false, adobe);
        for (int i = 0; i < H * W; i++)
            for (int c = 0; c < 3; c++) {
                /* Adobe's inks are stored inverted. */
                int ink = adobe ? 255 - inks[4 * i + c] : inks[4 * i + c];
                int k = adobe ? inks[4 * i + 3] : 255 - inks[4 * i + 3];

                three[3 * i + c] = (uint8_t)(k - (ink * k + 127) / 255);
            }
        expect_near(&b, 3, 6, three);
        to_grey(three, one);
        expect_near(&b, 1, 6, one);
        free(b.data);
    }
}

static void test_png_kinds(void **state)
{
    uint8_t rgb[H * W * 3], one[H * W], part[H * W * 4], three[H * W * 3];
    struct bytes b;

    (void)state;
    paint(rgb, 3);
    to_grey(rgb, one);
    for (int depth = 8; depth <= 16; depth += 8) {
        b = png_of(PNG_COLOR_TYPE_RGB, depth, depth == 16);
        expect_near(&b, 3, 0, rgb);
        expect_near(&b, 1, 0, one);
        free(b.data);
    }
    paint(part, 4);
    for (int i = 0; i < H * W; i++)
        memcpy(three + 3 * i, part + 4 * i, 3);
    b = png_of(PNG_COLOR_TYPE_RGB_ALPHA, 8, false);
    expect_near(&b, 3, 0, three);
    free(b.data);
    paint(part, 2);
    for (int i = 0; i < H * W; i++)
        one[i] = three[3 * i] = three[3 * i + 1] = three[3 * i + 2] = part[2 * i];
    b = png_of(PNG_COLOR_TYPE_GRAY_ALPHA, 16, false);
    expect_near(&b, 3, 0, three);
    expect_near(&b, 1, 0, one);
    free(b.data);
    for (int depth = 1; depth <= 16; depth *= 2) {
        int top = (1 << (depth > 8 ? 8 : depth)) - 1;

        paint(one, 1);
        for (int i = 0; i < H * W && depth < 8; i++)
            one[i] = (uint8_t)((one[i] >> (8 - depth)) * 255 / top);
        b = png_of(PNG_COLOR_TYPE_GRAY, depth, depth == 4);
        expect_near(&b, 1, 0, one);
        free(b.data);
    }
    for (int depth = 1; depth <= 8; depth *= 2) {
        paint(one, 1);
        for (int i = 0; i < H * W; i++) {
            int entry = one[i] >> (8 - depth);

            three[3 * i] = (uint8_t)entry;
            three[3 * i + 1] = 7;
            three[3 * i + 2] = (uint8_t)(255 - entry);
        }
        b = png_of(PNG_COLOR_TYPE_PALETTE, depth, false);
        expect_near(&b, 3, 0, three);
        to_grey(three, one);
        expect_near(&b, 1, 0, one);
        free(b.data);
    }
}

static void test_damage_is_refused_at_every_length(void **state)
{
    struct bytes all[] = {jpeg(JCS_RGB, 3, false, false), jpeg(JCS_RGB, 3, true, false),
                          png_of(PNG_COLOR_TYPE_RGB, 8, false), png_of(PNG_COLOR_TYPE_PALETTE, 4, true)};
    struct data_image got = {0};
    struct pd_why why;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        unsigned char *copy = malloc(all[i].len);

        assert_non_null(copy);
        /* Exactly as many bytes as said, so that a read beyond them is seen by a sanitizer. */
        for (unsigned long len = 0; len + (i < 2 ? 2 : 0) < all[i].len; len += 1 + len / 40) {
            unsigned char *cut = malloc(len ? len : 1);
            enum pd_err err;

            assert_non_null(cut);
            memcpy(cut, all[i].data, len);
            err = data_image_decode(cut, len, 3, 0, &got, &why);
            if (err == PD_OK)
                fail_msg("picture %zu, %lu of %lu bytes: accepted", i, len, all[i].len);
            assert_true(err == PD_ERR_CORRUPT || err == PD_ERR_UNSUPPORTED);
            assert_null(got.pixels);
            free(cut);
        }
        for (unsigned long at = 0; at < all[i].len; at++) { /* any outcome but a crash */
            memcpy(copy, all[i].data, all[i].len);
            copy[at] ^= (unsigned char)(1 + at * 37 % 255);
            if (data_image_decode(copy, all[i].len, 3, 0, &got, &why) == PD_OK)
                data_image_done(&got);
        }
        free(copy);
        free(all[i].data);
    }
}

static void test_limits_are_refused_before_memory_is_taken(void **state)
{
    struct bytes b = png_of(PNG_COLOR_TYPE_GRAY, 8, false), j = jpeg(JCS_GRAYSCALE, 1, false, false);
    struct data_image got = {0};
    struct pd_why why;
    int32_t h, w;

    (void)state;
    /* JPEG: the sizes stand behind the marker of the frame, big-endian. */
    for (unsigned long i = 2; i + 8 < j.len; i++)
        if (j.data[i] == 0xff && j.data[i + 1] == 0xc0) {
            memset(j.data + i + 5, 0x90, 4);
            break;
        }
    assert_int_equal(data_image_size(j.data, j.len, &h, &w, &why), PD_ERR_LIMIT);
    assert_int_equal(data_image_decode(j.data, j.len, 3, 0, &got, &why), PD_ERR_LIMIT);
    b.data[16] = 0x7f; /* PNG: the width's high byte; its sum is wrong now too */
    assert_true(data_image_size(b.data, b.len, &h, &w, &why) != PD_OK);
    assert_int_equal(data_image_size("GIF89a", 6, &h, &w, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(data_image_size("", 0, &h, &w, &why), PD_ERR_UNSUPPORTED);
    assert_int_equal(data_image_decode(b.data, DATA_IMAGE_BYTES_MAX + 1, 3, 0, &got, &why), PD_ERR_LIMIT);
    free(b.data);
    free(j.data);
}

static void test_scaled_decoding_keeps_the_shorter_side(void **state)
{
    struct bytes b = jpeg(JCS_RGB, 3, false, false);
    static const int32_t least[] = {41, 40, 20, 11, 10, 6, 5, 1}, side[] = {40, 40, 20, 20, 10, 10, 5, 5};
    struct data_image got = {0};
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(data_image_decode(b.data, b.len, 3, least[i], &got, &why), PD_OK);
        assert_int_equal(got.height, side[i]);
        assert_int_equal(got.width, W * side[i] / H);
        data_image_done(&got);
    }
    free(b.data);
}

static void test_eval_is_one_transform_for_files_and_requests(void **state)
{
    struct bytes b = jpeg(JCS_RGB, 3, false, false);
    struct data_eval_fit fit = {.channels = 3, .height = 14, .width = 14, .crop = 0.875};
    uint8_t one[3 * 14 * 14], two[3 * 14 * 14];
    struct data_image image = {0};
    struct pd_why why;

    (void)state;
    assert_int_equal(data_eval_least(&fit), 32);
    assert_int_equal(data_image_read_eval(b.data, b.len, &fit, one, &why), PD_OK);
    assert_int_equal(data_image_decode(b.data, b.len, 3, 32, &image, &why), PD_OK);
    assert_int_equal(data_image_fit_eval(&image, &fit, two, &why), PD_OK);
    assert_memory_equal(one, two, sizeof one);
    fit.channels = 1;
    assert_int_equal(data_image_fit_eval(&image, &fit, two, &why), PD_ERR_INVALID);
    data_image_done(&image);
    /* the right size and no crop: the pixels themselves, plane by plane */
    fit = (struct data_eval_fit){.channels = 3, .height = H, .width = W, .crop = 1};
    assert_int_equal(data_image_decode(b.data, b.len, 3, 0, &image, &why), PD_OK);
    {
        uint8_t *planes = malloc(3 * H * W);

        assert_non_null(planes);
        assert_int_equal(data_image_fit_eval(&image, &fit, planes, &why), PD_OK);
        for (int i = 0; i < H * W; i++)
            for (int c = 0; c < 3; c++)
                assert_int_equal(planes[c * H * W + i], image.pixels[3 * i + c]);
        free(planes);
    }
    /* rectangles cover the network's size */
    fit = (struct data_eval_fit){.channels = 3, .height = 8, .width = 30, .crop = 1};
    {
        uint8_t planes[3 * 8 * 30];

        assert_int_equal(data_image_fit_eval(&image, &fit, planes, &why), PD_OK);
    }
    data_image_done(&image);
    free(b.data);
}

/* Twice as wide as the network reads, or twice as high: the middle half, untouched. */
static void test_eval_takes_the_middle_of_a_long_picture(void **state)
{
    const struct data_eval_fit fit = {.channels = 1, .height = 8, .width = 8, .crop = 1};
    uint8_t pixels[8 * 16], planes[8 * 8];
    struct data_image image = {.pixels = pixels, .height = 8, .width = 16, .channels = 1};
    struct pd_why why;

    (void)state;
    for (int i = 0; i < 8 * 16; i++)
        pixels[i] = (uint8_t)(i * 7 + i * i % 31);
    assert_int_equal(data_image_fit_eval(&image, &fit, planes, &why), PD_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(planes[i], pixels[i / 8 * 16 + 4 + i % 8]);
    image.height = 16;
    image.width = 8;
    assert_int_equal(data_image_fit_eval(&image, &fit, planes, &why), PD_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(planes[i], pixels[(4 + i / 8) * 8 + i % 8]);
}

static void test_boxes_outside_are_refused(void **state)
{
    uint8_t pixels[12] = {0}, to[12];
    struct data_image image = {.pixels = pixels, .height = 2, .width = 2, .channels = 3};
    const struct data_box bad[] = {{-1, 0, 2, 2}, {0, 1, 2, 2}, {1, 0, 2, 2},
                                   {0, 0, 0, 1},  {0, 0, 1, 3}, {0, INT32_MAX, 1, INT32_MAX}};
    struct pd_why why;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(data_image_resize(&image, &bad[i], DATA_FILTER_BICUBIC, 2, 2, to, &why),
                         PD_ERR_INVALID);
}

static void test_draws_are_functions_of_their_place(void **state)
{
    struct data_draw a, b;
    double first[9];
    const double scale[2] = {.08, 1}, ratio[2] = {.75, 4 / 3.}, thin[2] = {50, 60};

    (void)state;
    data_draw_init(&a, 5, 2, 3, 7);
    for (int i = 0; i < 9; i++) {
        first[i] = data_draw_next(&a);
        assert_true(first[i] >= 0 && first[i] < 1);
        for (int k = 0; k < i; k++)
            assert_true(first[i] != first[k]);
    }
    data_draw_init(&b, 5, 2, 3, 7);
    for (int i = 0; i < 9; i++)
        assert_true(data_draw_next(&b) == first[i]);
    data_draw_init(&b, 5, 2, 3, 8);
    assert_true(data_draw_next(&b) != first[0]);
    for (int i = 0; i < 2000; i++) {
        struct data_box box;

        data_draw_init(&a, 1, 2, 0, i);
        box = data_rrc_box(&a, 1 + i % 37, 1 + i % 23, i % 5 ? scale : ratio, i % 3 ? ratio : thin);
        assert_true(box.top >= 0 && box.left >= 0 && box.height >= 1 && box.width >= 1);
        assert_true(box.top + box.height <= 1 + i % 37 && box.left + box.width <= 1 + i % 23);
    }
}

/* The originals under POLYD_SHARED: every subsampling, greys, odd sizes. */
static void test_real_photographs(void **state)
{
    const char *shared = getenv("POLYD_SHARED");
    struct data_eval_fit fit = {.channels = 3, .height = 64, .width = 64, .crop = 0.875};
    uint8_t head[512], *planes;
    char path[4096];
    int count = 0;
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/data/imagenet-samples/imagenet_samples.tar", shared ? shared : "");
    f = shared ? fopen(path, "rb") : NULL;
    if (!f)
        skip();
    planes = malloc(3 * 64 * 64);
    assert_non_null(planes);
    while (fread(head, 1, 512, f) == 512 && head[0]) {
        size_t len = strtoul((char *)head + 124, NULL, 8), capacity = (len + 511) / 512 * 512;
        uint8_t *bytes = malloc(capacity + 1);
        struct pd_why why;

        assert_non_null(bytes);
        assert_int_equal(fread(bytes, 1, capacity, f), capacity);
        if (head[156] == '0' && len) {
            if (data_image_read_eval(bytes, len, &fit, planes, &why) != PD_OK)
                fail_msg("%s: %s", (char *)head, why.text);
            count++;
        }
        free(bytes);
    }
    fclose(f);
    free(planes);
    assert_int_equal(count, 33);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jpeg_kinds),
        cmocka_unit_test(test_png_kinds),
        cmocka_unit_test(test_damage_is_refused_at_every_length),
        cmocka_unit_test(test_limits_are_refused_before_memory_is_taken),
        cmocka_unit_test(test_scaled_decoding_keeps_the_shorter_side),
        cmocka_unit_test(test_eval_is_one_transform_for_files_and_requests),
        cmocka_unit_test(test_eval_takes_the_middle_of_a_long_picture),
        cmocka_unit_test(test_boxes_outside_are_refused),
        cmocka_unit_test(test_draws_are_functions_of_their_place),
        cmocka_unit_test(test_real_photographs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
