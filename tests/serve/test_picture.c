/* A classifier looks at JPEG and PNG as validation would. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/worker/data/image.h"
#include "daemon/worker/serve/serve.h"
#include "tests/serve/checkpoint.h"
#include "tests/serve/picture.h"

#define SIDE 12

static char dir[64], path[4][96]; /* by channels */
static struct pd_why why;

static struct serve *open_model(int channels)
{
    struct serve_options o = {.checkpoint = path[channels], .threads = 1, .batch_max = 2};
    struct serve *s = NULL;

    if (serve_open(&o, &s, &why) != PD_OK)
        fail_msg("serve_open: %s", why.text);
    return s;
}

static void draw(uint8_t *pixels, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pixels[i] = (uint8_t)(i * 37 + i / 7 * 11);
}

/* The planes that the network reads, from rows of pixels. */
static void planes(const uint8_t *pixels, int channels, uint8_t *to)
{
    for (int c = 0; c < channels; c++)
        for (int i = 0; i < SIDE * SIDE; i++)
            to[c * SIDE * SIDE + i] = pixels[i * channels + c];
}

static void base64(const uint8_t *bytes, size_t len, char *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < len; i += 3) {
        uint32_t v = (uint32_t)bytes[i] << 16 | (uint32_t)(i + 1 < len ? bytes[i + 1] : 0) << 8 |
                     (uint32_t)(i + 2 < len ? bytes[i + 2] : 0);

        *out++ = digits[v >> 18];
        *out++ = digits[v >> 12 & 63];
        *out++ = i + 1 < len ? digits[v >> 6 & 63] : '=';
        *out++ = i + 2 < len ? digits[v & 63] : '=';
    }
    *out = '\0';
}

static void test_png_of_the_right_size_is_its_pixels(void **state)
{
    (void)state;
    for (int channels = 1; channels <= 3; channels += 2) {
        uint8_t pixels[SIDE * SIDE * 3], want[SIDE * SIDE * 3], got[SIDE * SIDE * 3], *png;
        char text[4096], url[4200];
        struct serve *s = open_model(channels);
        size_t n = (size_t)(SIDE * SIDE * channels), len;

        draw(pixels, n);
        planes(pixels, channels, want);
        test_png(pixels, SIDE, SIDE, channels, &png, &len);
        assert_int_equal(serve_picture_read(s, png, len, got, &why), PD_OK);
        assert_memory_equal(got, want, n);
        base64(png, len, text);
        memset(got, 0, n);
        assert_int_equal(serve_picture_read(s, text, strlen(text), got, &why), PD_OK);
        assert_memory_equal(got, want, n);
        snprintf(url, sizeof url, "data:image/png;base64,%s", text);
        memset(got, 0, n);
        assert_int_equal(serve_picture_read(s, url, strlen(url), got, &why), PD_OK);
        assert_memory_equal(got, want, n);
        free(png);
        serve_close(s);
    }
}

static void test_jpeg_of_another_size_is_fitted_as_validation_fits(void **state)
{
    uint8_t pixels[40 * 30 * 3], want[SIDE * SIDE * 3], got[SIDE * SIDE * 3], *jpeg;
    const struct data_eval_fit fit = {.channels = 3, .height = SIDE, .width = SIDE, .crop = 1};
    struct serve *s = open_model(3);
    size_t len;

    (void)state;
    draw(pixels, sizeof pixels);
    test_jpeg(pixels, 30, 40, 3, &jpeg, &len);
    assert_int_equal(serve_picture_read(s, jpeg, len, got, &why), PD_OK);
    assert_int_equal(data_image_read_eval(jpeg, len, &fit, want, &why), PD_OK);
    assert_memory_equal(got, want, sizeof want);
    free(jpeg);
    serve_close(s);
}

static void test_what_is_no_picture_is_refused(void **state)
{
    uint8_t pixels[SIDE * SIDE * 3], got[SIDE * SIDE * 3], *png, *jpeg;
    struct serve *s = open_model(3), *odd = open_model(2);
    size_t len, jpeg_len;

    (void)state;
    draw(pixels, sizeof pixels);
    test_png(pixels, SIDE, SIDE, 3, &png, &len);
    test_jpeg(pixels, SIDE, SIDE, 3, &jpeg, &jpeg_len);
    assert_int_equal(serve_picture_read(s, "hello", 5, got, &why), PD_ERR_INVALID);
    assert_non_null(strstr(why.text, "JPEG"));
    assert_int_equal(serve_picture_read(s, "", 0, got, &why), PD_ERR_INVALID);
    assert_int_equal(serve_picture_read(s, "data:image/png;base64,", 22, got, &why), PD_ERR_INVALID);
    for (size_t n = 0; n + 12 < len; n += 7)
        assert_int_equal(serve_picture_read(s, png, n, got, &why), PD_ERR_INVALID);
    for (size_t n = 0; n < jpeg_len - 2; n += 7)
        assert_int_equal(serve_picture_read(s, jpeg, n, got, &why), PD_ERR_INVALID);
    /* A header that promises 30000 x 30000 pixels: refused before anything is allocated for them. */
    memcpy(png + 16, "\0\0\x75\x30\0\0\x75\x30", 8);
    assert_int_not_equal(serve_picture_read(s, png, len, got, &why), PD_OK);
    assert_int_equal(serve_picture_read(odd, jpeg, jpeg_len, got, &why), PD_ERR_UNSUPPORTED);
    assert_false(serve_pictures(odd));
    free(png);
    free(jpeg);
    serve_close(odd);
    serve_close(s);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/polyd-picture-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    for (int c = 1; c <= 3; c++) {
        struct model_spec spec = test_vit_spec(PK_PHI_SOFTMAX);

        spec.channels = c;
        snprintf(path[c], sizeof path[c], "%s/%d.safetensors", dir, c);
        test_checkpoint_write(path[c], &spec, 5);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int c = 1; c <= 3; c++)
        unlink(path[c]);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_of_the_right_size_is_its_pixels),
        cmocka_unit_test(test_jpeg_of_another_size_is_fitted_as_validation_fits),
        cmocka_unit_test(test_what_is_no_picture_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
