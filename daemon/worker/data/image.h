/* daemon/worker/data/image.h: decodes JPEG and PNG files, and resizes pictures to a network's input.
 *
 * Training, validation and serving share these functions: validation and serving apply data_image_decode and
 * data_image_fit_eval alike, so a served model reads the pixels that validation read. All arithmetic is integer
 * (Pillow's resampling): the same bytes give the same pixels on every machine and for every number of threads. The
 * functions have no state; any thread may call them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_IMAGE_BYTES_MAX ((size_t)64 << 20)  /* bytes of an encoded picture */
#define DATA_IMAGE_SIDE_MAX 32768                /* rows or columns as stored */
#define DATA_IMAGE_PIXELS_MAX ((int64_t)1 << 27) /* rows times columns, as stored: 384 MiB decoded */

/* Interpolation. Bicubic has a = -0.5; the support of bicubic and bilinear grows with the factor of a reduction. */
enum data_filter { DATA_FILTER_BICUBIC, DATA_FILTER_BILINEAR, DATA_FILTER_NEAREST };

/* A decoded picture: rows of pixels, each `channels` bytes, without padding. */
struct data_image {
    uint8_t *pixels; /* (height, width, channels); owned, data_image_done frees */
    int32_t height, width, channels;
};

/* Frees the pixels and zeroes *image; a zeroed image is accepted. */
void data_image_done(struct data_image *image);

/* Rows and columns of a JPEG or PNG, from its header. PD_ERR_UNSUPPORTED: neither format; PD_ERR_CORRUPT;
 * PD_ERR_LIMIT: beyond the limits above. */
PD_NODISCARD enum pd_err data_image_size(const void *bytes, size_t len, int32_t *ret_height,
                                         int32_t *ret_width, struct pd_why *why);

/* Decodes a JPEG (baseline or progressive; grey, YCbCr, RGB, CMYK, YCCK) or PNG (any colour type and depth)
 * to `channels` = 3 (RGB) or 1 (grey, by the weights .299 .587 .114). Grey is replicated, alpha is dropped
 * without a background (as Pillow's convert does), 16-bit samples are reduced to their high byte, palettes are
 * resolved. Orientation tags are ignored.
 *
 * `least` > 0 allows the decoder to reduce a JPEG to 1/2, 1/4 or 1/8 as long as its shorter side keeps at least
 * `least` pixels, which is much faster for large photographs; 0: full size. A PNG is always decoded at full size.
 *
 * PD_ERR_CORRUPT: the picture is damaged or truncated (it is never completed with grey); PD_ERR_NOMEM; other errors as
 * data_image_size. On PD_OK the caller owns ret->pixels. */
PD_NODISCARD enum pd_err data_image_decode(const void *bytes, size_t len, int32_t channels, int32_t least,
                                           struct data_image *ret, struct pd_why *why);

/* A rectangle of a picture, in pixels. */
struct data_box {
    int32_t top, left, height, width;
};

/* Resamples the box to (height, width, channels) in `to`: first horizontally, then vertically, each pass rounded to
 * bytes; a pass that would not change the size is skipped. PD_ERR_INVALID: the box exceeds the picture. */
PD_NODISCARD enum pd_err data_image_resize(const struct data_image *from, const struct data_box *box,
                                           enum data_filter filter, int32_t height, int32_t width,
                                           uint8_t *to, struct pd_why *why);

/* The evaluation transform, of validation and serving. */
struct data_eval_fit {
    int32_t channels, height, width; /* of the network's input */
    double crop;                     /* centre crop: share of the resized picture's side, 0 < crop <= 1 */
    enum data_filter filter;
};

/* `least` of data_image_decode for pictures that data_image_fit_eval then resizes: twice the side after resizing. It
 * depends on the sizes alone, so training, validation, caches and serving decode alike. */
int32_t data_eval_least(const struct data_eval_fit *fit);

/* Applies the evaluation transform: resizes the picture until it covers the input's size divided by `crop` (the shorter
 * side for a square), then crops the centre. Writes `to`, U8 (channels, height, width). With crop 1 a picture of the
 * input's size is copied. */
PD_NODISCARD enum pd_err data_image_fit_eval(const struct data_image *from, const struct data_eval_fit *fit,
                                             uint8_t *to, struct pd_why *why);

/* data_image_decode and data_image_fit_eval: from the bytes of a JPEG or PNG to U8 (channels, height, width). Serving
 * reads the images of requests by it. */
PD_NODISCARD enum pd_err data_image_read_eval(const void *bytes, size_t len, const struct data_eval_fit *fit,
                                              uint8_t *to, struct pd_why *why);
