/* tests/serve/picture.h: pictures as clients send them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Rows of (width, channels) bytes, channels 1 or 3, as PNG or JPEG; the caller frees *ret. */
void test_png(const uint8_t *pixels, int height, int width, int channels, uint8_t **ret, size_t *ret_len);
void test_jpeg(const uint8_t *pixels, int height, int width, int channels, uint8_t **ret, size_t *ret_len);
