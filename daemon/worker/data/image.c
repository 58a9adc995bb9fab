/* daemon/worker/data/image.c: which format it is, and resampling.
 *
 * Resampling is Pillow's: for each row or column of the result the taps under a filter that widens with the
 * reduction, their weights normalised and rounded to 22 bits, sums rounded to bytes after each of the two
 * passes. Integers throughout, so the result does not depend on the machine. */
#include "daemon/worker/data/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/codec.h"

#define WEIGHT_BITS 22 /* 32 less 8 of a byte less 2 for sums outside 0..255 */

void data_image_done(struct data_image *image)
{
    free(image->pixels);
    *image = (struct data_image){0};
}

enum pd_err data_image_check(int64_t height, int64_t width, struct pd_why *why)
{
    if (height < 1 || width < 1)
        return pd_fail(why, PD_ERR_CORRUPT, "the picture has no pixels");
    if (height > DATA_IMAGE_SIDE_MAX || width > DATA_IMAGE_SIDE_MAX || height * width > DATA_IMAGE_PIXELS_MAX)
        return pd_fail(
            why, PD_ERR_LIMIT,
            "the picture has %lld x %lld pixels; at most %d per side and %lld in total are supported",
            (long long)height, (long long)width, DATA_IMAGE_SIDE_MAX, (long long)DATA_IMAGE_PIXELS_MAX);
    return PD_OK;
}

enum format { UNKNOWN, JPEG, PNG };

static enum format format_of(const void *bytes, size_t len)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff}, png[] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};

    if (len >= sizeof jpeg && !memcmp(bytes, jpeg, sizeof jpeg))
        return JPEG;
    if (len >= sizeof png && !memcmp(bytes, png, sizeof png))
        return PNG;
    return UNKNOWN;
}

static enum pd_err check_bytes(const void *bytes, size_t len, enum format *ret, struct pd_why *why)
{
    *ret = format_of(bytes, len);
    if (*ret == UNKNOWN)
        return pd_fail(why, PD_ERR_UNSUPPORTED, "the file is neither JPEG nor PNG");
    if (len > DATA_IMAGE_BYTES_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "the picture has %zu bytes; the limit is %zu", len,
                       DATA_IMAGE_BYTES_MAX);
    return PD_OK;
}

enum pd_err data_image_size(const void *bytes, size_t len, int32_t *ret_height, int32_t *ret_width,
                            struct pd_why *why)
{
    enum format format;
    enum pd_err err = check_bytes(bytes, len, &format, why);

    if (err != PD_OK)
        return err;
    return format == JPEG ? data_jpeg_size(bytes, len, ret_height, ret_width, why)
                          : data_png_size(bytes, len, ret_height, ret_width, why);
}

enum pd_err data_image_decode(const void *bytes, size_t len, int32_t channels, int32_t least,
                              struct data_image *ret, struct pd_why *why)
{
    enum format format;
    enum pd_err err = check_bytes(bytes, len, &format, why);

    if (err != PD_OK)
        return err;
    if (channels != 1 && channels != 3)
        return pd_fail(why, PD_ERR_INVALID, "pictures have 1 or 3 channels, not %d", channels);
    return format == JPEG ? data_jpeg_decode(bytes, len, channels, least, ret, why)
                          : data_png_decode(bytes, len, channels, ret, why);
}

/* ---- resampling ---- */

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* The taps of one direction: result i is the sum of weight[i * most + k] times source first[i] + k. */
struct taps {
    int32_t most; /* room for each */
    int32_t *first, *count;
    int32_t *weight;
};

static void taps_done(struct taps *t)
{
    free(t->first);
    free(t->weight);
}

static bool taps_init(struct taps *t, enum data_filter filter, int32_t from, int32_t to)
{
    double ratio = (double)from / to, wide = ratio > 1 ? ratio : 1;
    double reach = (filter == DATA_FILTER_BICUBIC ? 2 : 1) * wide;
    double *exact;

    t->most = (int32_t)ceil(reach) * 2 + 1;
    t->first = malloc((size_t)to * 2 * sizeof *t->first);
    t->count = t->first ? t->first + to : NULL;
    t->weight = calloc((size_t)to * (size_t)t->most, sizeof *t->weight);
    exact = malloc((size_t)t->most * sizeof *exact);
    if (!t->first || !t->weight || !exact) {
        free(exact);
        taps_done(t);
        return false;
    }
    for (int32_t i = 0; i < to; i++) {
        double centre = (i + 0.5) * ratio, sum = 0;
        int32_t low = (int32_t)(centre - reach + 0.5), high = (int32_t)(centre + reach + 0.5), n;

        low = low < 0 ? 0 : low;
        high = high > from ? from : high;
        n = high - low;
        for (int32_t k = 0; k < n; k++) {
            double x = (k + low - centre + 0.5) / wide;

            exact[k] = filter == DATA_FILTER_BICUBIC ? bicubic(x) : bilinear(x);
            sum += exact[k];
        }
        for (int32_t k = 0; k < n; k++) {
            double w = sum != 0 ? exact[k] / sum : exact[k]; // NOLINT: as Pillow compares

            t->weight[(size_t)i * (size_t)t->most + (size_t)k] =
                (int32_t)((w < 0 ? -0.5 : 0.5) + w * (1 << WEIGHT_BITS));
        }
        t->first[i] = low;
        t->count[i] = n;
    }
    free(exact);
    return true;
}

static inline uint8_t to_byte(int32_t sum)
{
    int32_t v = sum >> WEIGHT_BITS;

    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

#define HALF (1 << (WEIGHT_BITS - 1))

typedef int32_t four __attribute__((vector_size(16)));
typedef uint8_t four_bytes __attribute__((vector_size(4)));

/* Compiled for AVX2 as well, chosen when the program is loaded; integers, so both give the same bytes. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

/* Pixels of three channels: a pixel and the byte behind it are read at once, which is why the caller keeps off the
 * last taps of a row. */
WIDE static int32_t colours_across(const uint8_t *restrict from, const struct taps *t, int32_t width,
                                   int32_t source_width, uint8_t *restrict to)
{
    int32_t x = 0;

    for (; x < width && t->first[x] + t->count[x] < source_width; x++) {
        const int32_t *w = t->weight + (size_t)x * (size_t)t->most;
        const uint8_t *p = from + (size_t)t->first[x] * 3;
        four sum = {HALF, HALF, HALF, HALF};

        for (int32_t k = 0; k < t->count[x]; k++, p += 3) {
            four_bytes pixel;

            memcpy(&pixel, p, 4);
            sum += __builtin_convertvector(pixel, four) * w[k];
        }
        for (int c = 0; c < 3; c++)
            to[3 * x + c] = to_byte(sum[c]);
    }
    return x;
}

/* One row of the result's width from one row of `source_width` pixels of the source. */
static void row_across(const uint8_t *restrict from, const struct taps *t, int32_t width,
                       int32_t source_width, int32_t channels, uint8_t *restrict to)
{
    for (int32_t x = channels == 3 ? colours_across(from, t, width, source_width, to) : 0; x < width; x++) {
        const int32_t *w = t->weight + (size_t)x * (size_t)t->most;
        const uint8_t *p = from + (size_t)t->first[x] * (size_t)channels;
        int32_t n = t->count[x];

        if (channels == 3) {
            int32_t r = HALF, g = HALF, b = HALF;

            for (int32_t k = 0; k < n; k++, p += 3) {
                r += w[k] * p[0];
                g += w[k] * p[1];
                b += w[k] * p[2];
            }
            to[3 * x] = to_byte(r);
            to[3 * x + 1] = to_byte(g);
            to[3 * x + 2] = to_byte(b);
        } else {
            int32_t v = HALF;

            for (int32_t k = 0; k < n; k++)
                v += w[k] * p[k];
            to[x] = to_byte(v);
        }
    }
}

/* One row of the result from `n` rows of the source, `len` bytes each, one after the other. */
WIDE static void row_down(const uint8_t *restrict from, const int32_t *restrict w, int32_t n, size_t len,
                          int32_t *restrict sum, uint8_t *restrict to)
{
    for (size_t i = 0; i < len; i++)
        sum[i] = HALF;
    for (int32_t k = 0; k < n; k++, from += len) {
        int32_t weight = w[k];

        for (size_t i = 0; i < len; i++)
            sum[i] += weight * from[i];
    }
    for (size_t i = 0; i < len; i++)
        to[i] = to_byte(sum[i]);
}

/* Places are found by adding the ratio again and again, as Pillow does: at exact halves the rounding of the
 * sum decides. */
static void nearest(const struct data_image *from, const struct data_box *box, int32_t height, int32_t width,
                    uint8_t *to)
{
    size_t channels = (size_t)from->channels;
    double down = (double)box->height / height, across = (double)box->width / width, y = down * 0.5;

    for (int32_t i = 0; i < height; i++, y += down) {
        double x = across * 0.5;

        for (int32_t j = 0; j < width; j++, x += across, to += channels) {
            int32_t row = box->top + (int32_t)y, column = box->left + (int32_t)x;

            memcpy(to, from->pixels + ((size_t)row * (size_t)from->width + (size_t)column) * channels,
                   channels);
        }
    }
}

enum pd_err data_image_resize(const struct data_image *from, const struct data_box *box,
                              enum data_filter filter, int32_t height, int32_t width, uint8_t *to,
                              struct pd_why *why)
{
    struct taps across = {0}, down = {0};
    size_t channels = (size_t)from->channels, stride = (size_t)from->width * channels;
    size_t len = (size_t)width * channels;
    const uint8_t *corner;
    uint8_t *middle = NULL;
    int32_t *sum = NULL;
    enum pd_err err = PD_OK;

    if (box->top < 0 || box->left < 0 || box->height < 1 || box->width < 1 || height < 1 || width < 1 ||
        box->top > from->height - box->height || box->left > from->width - box->width)
        return pd_fail(why, PD_ERR_INVALID, "the crop exceeds the picture");
    corner = from->pixels + (size_t)box->top * stride + (size_t)box->left * channels;
    if (filter == DATA_FILTER_NEAREST) {
        nearest(from, box, height, width, to);
        return PD_OK;
    }
    if (box->height == height && box->width == width) {
        for (int32_t y = 0; y < height; y++)
            memcpy(to + (size_t)y * len, corner + (size_t)y * stride, len);
        return PD_OK;
    }
    if ((box->width != width && !taps_init(&across, filter, box->width, width)) ||
        (box->height != height && !taps_init(&down, filter, box->height, height)))
        goto nomem;
    if (box->height == height) {
        for (int32_t y = 0; y < height; y++)
            row_across(corner + (size_t)y * stride, &across, width, box->width, from->channels,
                       to + (size_t)y * len);
        goto out;
    }
    middle = malloc((size_t)box->height * len);
    sum = malloc(len * sizeof *sum);
    if (!middle || !sum)
        goto nomem;
    for (int32_t y = 0; y < box->height; y++) {
        const uint8_t *row = corner + (size_t)y * stride;

        if (box->width == width)
            memcpy(middle + (size_t)y * len, row, len);
        else
            row_across(row, &across, width, box->width, from->channels, middle + (size_t)y * len);
    }
    for (int32_t y = 0; y < height; y++)
        row_down(middle + (size_t)down.first[y] * len, down.weight + (size_t)y * (size_t)down.most,
                 down.count[y], len, sum, to + (size_t)y * len);
    goto out;
nomem:
    err = pd_fail(why, PD_ERR_NOMEM, "no memory to resize a picture");
out:
    taps_done(&across);
    taps_done(&down);
    free(middle);
    free(sum);
    return err;
}

/* ---- evaluation ---- */

static int32_t covered(int32_t side, double crop)
{
    return (int32_t)floor(side / crop);
}

int32_t data_eval_least(const struct data_eval_fit *fit)
{
    return 2 * covered(fit->height > fit->width ? fit->height : fit->width, fit->crop);
}

/* n / 2 rounded to the nearest, halves to the even: where the middle begins. */
static int32_t half_even(int32_t n)
{
    return n / 2 + (n % 2 && n / 2 % 2);
}

enum pd_err data_image_fit_pixels(const struct data_image *from, const struct data_eval_fit *fit, uint8_t *to,
                                  struct pd_why *why)
{
    int64_t high = covered(fit->height, fit->crop), wide = covered(fit->width, fit->crop);
    struct data_box all = {.height = from->height, .width = from->width};
    size_t pixel = (size_t)fit->channels, row = (size_t)fit->width * pixel;
    uint8_t *whole;
    int32_t top, left;
    enum pd_err err;

    if (from->channels != fit->channels)
        return pd_fail(why, PD_ERR_INVALID, "the picture has %d channels, the network reads %d",
                       from->channels, fit->channels);
    if (high * from->width >= wide * from->height)
        wide = high * from->width / from->height;
    else
        high = wide * from->height / from->width;
    if (high * wide > DATA_IMAGE_PIXELS_MAX)
        return pd_fail(why, PD_ERR_LIMIT, "a picture of %d x %d pixels is too narrow to be resized",
                       from->height, from->width);
    if (high == fit->height && wide == fit->width)
        return data_image_resize(from, &all, fit->filter, fit->height, fit->width, to, why);
    whole = malloc((size_t)(high * wide) * pixel);
    if (!whole)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to fit a picture");
    err = data_image_resize(from, &all, fit->filter, (int32_t)high, (int32_t)wide, whole, why);
    top = half_even((int32_t)high - fit->height);
    left = half_even((int32_t)wide - fit->width);
    for (int32_t y = 0; err == PD_OK && y < fit->height; y++)
        memcpy(to + (size_t)y * row, whole + ((size_t)(top + y) * (size_t)wide + (size_t)left) * pixel, row);
    free(whole);
    return err;
}

enum pd_err data_image_fit_eval(const struct data_image *from, const struct data_eval_fit *fit, uint8_t *to,
                                struct pd_why *why)
{
    size_t channels = (size_t)fit->channels, count = (size_t)fit->height * (size_t)fit->width;
    uint8_t *pixels = malloc(count * channels);
    enum pd_err err;

    if (!pixels)
        return pd_fail(why, PD_ERR_NOMEM, "no memory to fit a picture");
    err = data_image_fit_pixels(from, fit, pixels, why);
    for (size_t c = 0; err == PD_OK && c < channels; c++)
        for (size_t i = 0; i < count; i++)
            to[c * count + i] = pixels[i * channels + c];
    free(pixels);
    return err;
}

enum pd_err data_image_read_eval(const void *bytes, size_t len, const struct data_eval_fit *fit, uint8_t *to,
                                 struct pd_why *why)
{
    struct data_image image = {0};
    enum pd_err err = data_image_decode(bytes, len, fit->channels, data_eval_least(fit), &image, why);

    if (err == PD_OK)
        err = data_image_fit_eval(&image, fit, to, why);
    data_image_done(&image);
    return err;
}
