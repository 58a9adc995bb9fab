/* daemon/worker/data/codec.h: private to this module: decoders of single formats. The caller has recognised the format
 * by its first bytes. Arguments and errors are those of image.h. */
#pragma once

#include "daemon/worker/data/image.h"

PD_NODISCARD enum pd_err data_jpeg_size(const void *bytes, size_t len, int32_t *ret_height,
                                        int32_t *ret_width, struct pd_why *why);
PD_NODISCARD enum pd_err data_jpeg_decode(const void *bytes, size_t len, int32_t channels, int32_t least,
                                          struct data_image *ret, struct pd_why *why);
PD_NODISCARD enum pd_err data_png_size(const void *bytes, size_t len, int32_t *ret_height, int32_t *ret_width,
                                       struct pd_why *why);
PD_NODISCARD enum pd_err data_png_decode(const void *bytes, size_t len, int32_t channels,
                                         struct data_image *ret, struct pd_why *why);

/* Checks extents read from a header. PD_ERR_LIMIT: larger than image.h allows; PD_ERR_CORRUPT: not positive. */
PD_NODISCARD enum pd_err data_image_check(int64_t height, int64_t width, struct pd_why *why);
/* Luma of a colour: ITU-R 601 weights in 16-bit fixed point, as in Pillow. */
static inline uint8_t data_grey(const uint8_t rgb[3])
{
    return (uint8_t)((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >> 16);
}

/* data_image_fit_eval with the result in the order of a picture, (height, width, channels). */
PD_NODISCARD enum pd_err data_image_fit_pixels(const struct data_image *from, const struct data_eval_fit *fit,
                                               uint8_t *to, struct pd_why *why);
