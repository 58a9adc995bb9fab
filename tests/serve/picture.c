#include "tests/serve/picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>

void test_png(const uint8_t *pixels, int height, int width, int channels, uint8_t **ret, size_t *ret_len)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)width,
                       .height = (png_uint_32)height,
                       .format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB};
    png_alloc_size_t len = 0;

    if (!png_image_write_to_memory(&image, NULL, &len, 0, pixels, 0, NULL))
        abort();
    *ret = malloc(len);
    if (!*ret || !png_image_write_to_memory(&image, *ret, &len, 0, pixels, 0, NULL))
        abort();
    *ret_len = len;
}

void test_jpeg(const uint8_t *pixels, int height, int width, int channels, uint8_t **ret, size_t *ret_len)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long len = 0;

    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &bytes, &len);
    c.image_width = (JDIMENSION)width;
    c.image_height = (JDIMENSION)height;
    c.input_components = channels;
    c.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_start_compress(&c, TRUE);
    while (c.next_scanline < c.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)c.next_scanline * (size_t)(width * channels));

        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    *ret = bytes;
    *ret_len = len;
}
