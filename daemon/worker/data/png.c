/* daemon/worker/data/png.c: PNG by libpng; the one place that includes png.h.
 *
 * Like jpeg.c: errors come by longjmp, and what must survive them lives in one struct. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "daemon/worker/data/codec.h"

/* Text and colour profiles beyond this are not worth their memory. */
#define CHUNK_BYTES_MAX (8u << 20)

struct picture {
    png_structp png;
    png_infop info;
    const uint8_t *bytes;
    size_t left;
    enum pd_err failed;
    char text[160];
    uint8_t *pixels;
    png_bytep *rows;
    jmp_buf out;
};

static void leave(struct picture *p, enum pd_err err, const char *text)
{
    p->failed = err;
    snprintf(p->text, sizeof p->text, "%s", text);
    longjmp(p->out, 1);
}

static void on_error(png_structp png, png_const_charp text)
{
    leave(png_get_error_ptr(png), PD_ERR_CORRUPT, text);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep to, size_t len)
{
    struct picture *p = png_get_io_ptr(png);

    if (len > p->left)
        leave(p, PD_ERR_CORRUPT, "the file ends early");
    memcpy(to, p->bytes, len);
    p->bytes += len;
    p->left -= len;
}

static void done(struct picture *p)
{
    if (p->png)
        png_destroy_read_struct(&p->png, &p->info, NULL);
    free(p->rows);
    free(p->pixels);
}

static void start(struct picture *p)
{
    struct pd_why why;
    enum pd_err err;

    p->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, p, on_error, on_warning);
    if (p->png)
        p->info = png_create_info_struct(p->png);
    if (!p->info)
        leave(p, PD_ERR_NOMEM, "no memory to decode");
    png_set_read_fn(p->png, p, on_read);
    png_set_user_limits(p->png, 0x7fffffff, 0x7fffffff); /* our own limits come next */
    png_set_chunk_malloc_max(p->png, CHUNK_BYTES_MAX);
    png_read_info(p->png, p->info);
    err = data_image_check(png_get_image_height(p->png, p->info), png_get_image_width(p->png, p->info), &why);
    if (err != PD_OK)
        leave(p, err, why.text);
}

enum pd_err data_png_size(const void *bytes, size_t len, int32_t *ret_height, int32_t *ret_width,
                          struct pd_why *why)
{
    struct picture p = {.bytes = bytes, .left = len};

    if (setjmp(p.out)) {
        done(&p);
        return pd_fail(why, p.failed, "PNG: %s", p.text);
    }
    start(&p);
    *ret_height = (int32_t)png_get_image_height(p.png, p.info);
    *ret_width = (int32_t)png_get_image_width(p.png, p.info);
    done(&p);
    return PD_OK;
}

/* Asks the library for 8-bit RGB or grey; its own grey of a colour is another rule, so colours stay. */
static void decode(struct picture *p, int32_t *ret_samples)
{
    int colour = png_get_color_type(p->png, p->info);
    size_t height = png_get_image_height(p->png, p->info), width = png_get_image_width(p->png, p->info);

    if (colour == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(p->png);
    if (colour == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(p->png, p->info) < 8)
        png_set_expand_gray_1_2_4_to_8(p->png);
    if (png_get_bit_depth(p->png, p->info) == 16)
        png_set_strip_16(p->png);
    png_set_strip_alpha(p->png);
    (void)png_set_interlace_handling(p->png);
    png_read_update_info(p->png, p->info);
    *ret_samples = png_get_channels(p->png, p->info);
    if ((*ret_samples != 1 && *ret_samples != 3) || png_get_bit_depth(p->png, p->info) != 8 ||
        png_get_rowbytes(p->png, p->info) != width * (size_t)*ret_samples)
        leave(p, PD_ERR_INTERNAL, "an unexpected form of pixels");
    p->pixels = malloc(height * width * 3);
    p->rows = malloc(height * sizeof *p->rows);
    if (!p->pixels || !p->rows)
        leave(p, PD_ERR_NOMEM, "no memory for the pixels");
    for (size_t y = 0; y < height; y++)
        p->rows[y] = p->pixels + y * width * (size_t)*ret_samples;
    png_read_image(p->png, p->rows);
    png_read_end(p->png, NULL);
}

/* The library has written `samples` a pixel; makes them `channels`, in place. */
static void convert(uint8_t *pixels, size_t count, int32_t samples, int32_t channels)
{
    if (samples == 1 && channels == 3)
        for (size_t i = count; i-- > 0;)
            pixels[3 * i] = pixels[3 * i + 1] = pixels[3 * i + 2] = pixels[i];
    if (samples == 3 && channels == 1)
        for (size_t i = 0; i < count; i++)
            pixels[i] = data_grey(pixels + 3 * i);
}

enum pd_err data_png_decode(const void *bytes, size_t len, int32_t channels, struct data_image *ret,
                            struct pd_why *why)
{
    struct picture p = {.bytes = bytes, .left = len};
    int32_t samples = 0;

    if (setjmp(p.out)) {
        done(&p);
        return pd_fail(why, p.failed, "PNG: %s", p.text);
    }
    start(&p);
    decode(&p, &samples);
    ret->height = (int32_t)png_get_image_height(p.png, p.info);
    ret->width = (int32_t)png_get_image_width(p.png, p.info);
    ret->channels = channels;
    convert(p.pixels, (size_t)ret->height * (size_t)ret->width, samples, channels);
    ret->pixels = p.pixels;
    p.pixels = NULL; /* moved to the caller */
    done(&p);
    return PD_OK;
}
