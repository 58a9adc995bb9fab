/* daemon/worker/data/image.h: pictures: from JPEG or PNG bytes to pixels, and from pixels to what a network
 * reads.
 *
 * Training, validation and serving meet here: a picture goes through data_image_decode and
 * data_image_fit_eval the same way in all three, so a served model sees what validation saw. Everything is
 * integer arithmetic of a fixed rule (Pillow's resampling), so the same bytes give the same pixels on every
 * machine and for every number of threads. No function keeps state; any thread may call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/err.h"

#define DATA_IMAGE_BYTES_MAX ((size_t)64 << 20)  /* of an encoded picture */
#define DATA_IMAGE_SIDE_MAX 32768                /* rows or columns as stored */
#define DATA_IMAGE_PIXELS_MAX ((int64_t)1 << 27) /* rows times columns, as stored: 384 MiB decoded */

/* How pixels between pixels are found. Bicubic has a = -0.5; both widen with the factor of a reduction. */
enum data_filter { DATA_FILTER_BICUBIC, DATA_FILTER_BILINEAR, DATA_FILTER_NEAREST };

/* Decoded: rows of pixels, each `channels` bytes, without padding. */
struct data_image {
    uint8_t *pixels; /* (height, width, channels); owned, data_image_done frees */
    int32_t height, width, channels;
};

/* Frees the pixels; the storage stays the caller's. NULL-safe for an image of zeros. */
void data_image_done(struct data_image *image);

/* Rows and columns of a JPEG or PNG, from its header. PD_ERR_UNSUPPORTED: neither format; PD_ERR_CORRUPT;
 * PD_ERR_LIMIT: beyond the limits above. */
PD_NODISCARD enum pd_err data_image_size(const void *bytes, size_t len, int32_t *ret_height,
                                         int32_t *ret_width, struct pd_why *why);

/* Decodes a JPEG (baseline or progressive; grey, YCbCr, RGB, CMYK, YCCK) or PNG (any colour type and depth)
 * to `channels` = 3 (RGB) or 1 (grey, by the weights .299 .587 .114). Grey is replicated, alpha is dropped
 * (as Pillow's convert does, no background is painted), 16 bits become 8 (their high byte), a palette is
 * resolved. Orientation tags are not looked at.
 *
 * `least` > 0 allows a JPEG to be decoded at 1/2, 1/4 or 1/8 of its size, as long as its shorter side stays
 * at least `least` pixels: much faster for large photographs. 0 decodes whole. A PNG is always whole.
 *
 * A damaged or truncated picture is PD_ERR_CORRUPT, never a grey remainder; other failures as above, or
 * PD_ERR_NOMEM. On PD_OK the caller owns ret->pixels. */
PD_NODISCARD enum pd_err data_image_decode(const void *bytes, size_t len, int32_t channels, int32_t least,
                                           struct data_image *ret, struct pd_why *why);

/* The part of a picture that is looked at, in its pixels. */
struct data_box {
    int32_t top, left, height, width;
};

/* Resamples the box to (height, width, channels) in `to`: horizontal pass first, each rounded to a byte; a
 * side that does not change is copied. PD_ERR_INVALID: the box leaves the picture. */
PD_NODISCARD enum pd_err data_image_resize(const struct data_image *from, const struct data_box *box,
                                           enum data_filter filter, int32_t height, int32_t width,
                                           uint8_t *to, struct pd_why *why);

/* How validation and serving prepare a picture. */
struct data_eval_fit {
    int32_t channels, height, width; /* what the network reads */
    double crop;                     /* 0 < crop <= 1: share of the resized picture that is kept */
    enum data_filter filter;
};

/* `least` of data_image_decode for pictures that are then fitted: twice the side that they are resized to,
 * so that a reduction in the decoder is never seen. A function of the sizes alone: training, validation,
 * caches and serving decode alike. */
int32_t data_eval_least(const struct data_eval_fit *fit);

/* The evaluation transform: the picture is resized so that it covers the network's size divided by `crop`
 * (the shorter side for a square), the middle is cut out. Writes bytes (channels, height, width), the order
 * that a network reads. With crop 1 a picture of the right size is only copied. */
PD_NODISCARD enum pd_err data_image_fit_eval(const struct data_image *from, const struct data_eval_fit *fit,
                                             uint8_t *to, struct pd_why *why);

/* The two above in one: bytes of a JPEG or PNG in, (channels, height, width) bytes out. What a request with
 * an image goes through. */
PD_NODISCARD enum pd_err data_image_read_eval(const void *bytes, size_t len, const struct data_eval_fit *fit,
                                              uint8_t *to, struct pd_why *why);
