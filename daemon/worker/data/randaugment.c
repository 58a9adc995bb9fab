/* daemon/worker/data/randaugment.c: see randaugment.h. */
#include "daemon/worker/data/randaugment.h"

#include <math.h>
#include <string.h>

#define PI 3.141592653589793238462643
#define LEVELS 10.0 /* the greatest level */

double data_ra_arg(enum data_ra_op op, double level, int sign, bool increasing)
{
    const double share = level / LEVELS;

    switch (op) {
    case DATA_RA_ROTATE:
        return sign * share * 30;
    case DATA_RA_SHEAR_X:
    case DATA_RA_SHEAR_Y:
        return sign * share * 0.3;
    case DATA_RA_TRANSLATE_X:
    case DATA_RA_TRANSLATE_Y:
        return sign * share * 0.45;
    case DATA_RA_POSTERIZE:
        return increasing ? 4 - floor(share * 4) : floor(share * 4);
    case DATA_RA_SOLARIZE:
        return increasing ? 256 - floor(share * 256) : floor(share * 256);
    case DATA_RA_SOLARIZE_ADD:
        return fmin(128, floor(share * 110));
    case DATA_RA_COLOR:
    case DATA_RA_CONTRAST:
    case DATA_RA_BRIGHTNESS:
    case DATA_RA_SHARPNESS:
        return increasing ? fmax(0.1, 1 + sign * share * 0.9) : share * 1.8 + 0.1;
    default:
        return 0;
    }
}

/* ---- tables of 256 entries, of each channel ---- */

static void through(const uint8_t *from, size_t pixels, int32_t channels, uint8_t table[3][256], uint8_t *to)
{
    for (size_t i = 0; i < pixels; i++)
        for (int32_t c = 0; c < channels; c++)
            to[i * (size_t)channels + (size_t)c] = table[c][from[i * (size_t)channels + (size_t)c]];
}

static void count(const uint8_t *from, size_t pixels, int32_t channels, int32_t channel, int64_t bins[256])
{
    memset(bins, 0, 256 * sizeof *bins);
    for (size_t i = 0; i < pixels; i++)
        bins[from[i * (size_t)channels + (size_t)channel]]++;
}

static uint8_t clip(double x)
{
    return x <= 0 ? 0 : x >= 255 ? 255 : (uint8_t)x;
}

/* The least value becomes 0, the greatest 255. */
static void stretch(const int64_t bins[256], uint8_t table[256])
{
    int low = 0, high = 255;
    double scale;

    while (low < 255 && !bins[low])
        low++;
    while (high > 0 && !bins[high])
        high--;
    scale = high > low ? 255.0 / (high - low) : 1;
    for (int i = 0; i < 256; i++)
        table[i] = high > low ? clip(i * scale + -low * scale) : (uint8_t)i;
}

static void equalise(const int64_t bins[256], uint8_t table[256])
{
    int64_t all = 0, last = 0, step, n;

    for (int i = 0; i < 256; i++) {
        all += bins[i];
        last = bins[i] ? bins[i] : last;
    }
    step = (all - last) / 255;
    n = step / 2;
    for (int i = 0; i < 256; i++) {
        table[i] = step ? (uint8_t)(n / step > 255 ? 255 : n / step) : (uint8_t)i;
        n += bins[i];
    }
}

static void fill_table(enum data_ra_op op, int arg, const int64_t bins[256], uint8_t table[256])
{
    if (op == DATA_RA_AUTO_CONTRAST)
        stretch(bins, table);
    else if (op == DATA_RA_EQUALIZE)
        equalise(bins, table);
    else
        for (int i = 0; i < 256; i++)
            switch (op) {
            case DATA_RA_INVERT:
                table[i] = (uint8_t)(255 - i);
                break;
            case DATA_RA_POSTERIZE: /* the highest bits stay */
                table[i] = arg >= 8 ? (uint8_t)i : (uint8_t)(i & ~((1 << (8 - arg)) - 1));
                break;
            case DATA_RA_SOLARIZE:
                table[i] = (uint8_t)(i < arg ? i : 255 - i);
                break;
            default:
                table[i] = (uint8_t)(i < 128 ? (i + arg > 255 ? 255 : i + arg) : i);
                break;
            }
}

static void by_table(enum data_ra_op op, double arg, const uint8_t *from, size_t pixels, int32_t channels,
                     uint8_t *to)
{
    uint8_t table[3][256];
    int64_t bins[256];

    for (int32_t c = 0; c < channels; c++) {
        count(from, pixels, channels, c, bins);
        fill_table(op, (int)arg, bins, table[c]);
    }
    through(from, pixels, channels, table, to);
}

/* ---- mixtures with another picture ---- */

/* ITU-R 601 in 16 bits. */
static uint8_t grey(const uint8_t *pixel, int32_t channels)
{
    if (channels == 1)
        return pixel[0];
    return (uint8_t)((19595 * pixel[0] + 38470 * pixel[1] + 7471 * pixel[2] + 0x8000) >> 16);
}

static uint8_t blend(int other, int own, float factor)
{
    const float x = (float)other + factor * (float)(own - other);

    return x <= 0 ? 0 : x >= 255 ? 255 : (uint8_t)x;
}

/* The mean of the 3 x 3 pixels around, the middle counted five times; the border stays. */
static uint8_t smooth(const uint8_t *from, int32_t height, int32_t width, int32_t channels, int32_t y,
                      int32_t x, int32_t c)
{
    int sum = 0;

    if (y == 0 || x == 0 || y == height - 1 || x == width - 1)
        return from[(y * width + x) * channels + c];
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            sum += (dy || dx ? 1 : 5) * from[((y + dy) * width + x + dx) * channels + c];
    return (uint8_t)((2 * sum + 13) / 26);
}

static void by_blend(enum data_ra_op op, double arg, const uint8_t *from, int32_t height, int32_t width,
                     int32_t channels, uint8_t *to)
{
    const size_t pixels = (size_t)height * (size_t)width;
    int mean = 0;

    if (op == DATA_RA_CONTRAST) {
        int64_t sum = 0;

        for (size_t i = 0; i < pixels; i++)
            sum += grey(from + i * (size_t)channels, channels);
        mean = (int)((double)sum / (double)pixels + 0.5);
    }
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++)
            for (int32_t c = 0; c < channels; c++) {
                const uint8_t *pixel = from + (y * width + x) * channels;
                const int other = op == DATA_RA_COLOR       ? grey(pixel, channels)
                                  : op == DATA_RA_SHARPNESS ? smooth(from, height, width, channels, y, x, c)
                                                            : mean;

                to[(y * width + x) * channels + c] = blend(other, pixel[c], (float)arg);
            }
}

/* ---- affine maps ---- */

struct source {
    const uint8_t *pixels;
    int32_t height, width, channels;
};

static int32_t within(int32_t at, int32_t extent)
{
    return at < 0 ? 0 : at < extent ? at : extent - 1;
}

static int value(const struct source *s, int32_t y, int32_t x, int32_t c)
{
    return s->pixels[(within(y, s->height) * s->width + within(x, s->width)) * s->channels + c];
}

/* Cubic convolution with a = -1 between v[1] and v[2]. */
static double cubic(const double v[4], double d)
{
    const double p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];

    return v[1] + d * (p2 + d * (p3 + d * p4));
}

/* The source at (y, x), where the middle of pixel i is i + 1/2. */
static uint8_t sample(const struct source *s, double y, double x, int32_t c, enum data_filter filter)
{
    const double fy = y - 0.5, fx = x - 0.5;
    const int32_t iy = (int32_t)floor(fy), ix = (int32_t)floor(fx);
    const double dy = fy - iy, dx = fx - ix;

    if (filter == DATA_FILTER_BILINEAR) {
        const double top = value(s, iy, ix, c) + (value(s, iy, ix + 1, c) - value(s, iy, ix, c)) * dx;
        const double low =
            value(s, iy + 1, ix, c) + (value(s, iy + 1, ix + 1, c) - value(s, iy + 1, ix, c)) * dx;

        return (uint8_t)(top + (low - top) * dy);
    }
    double line[4];

    for (int i = 0; i < 4; i++) {
        double v[4];

        for (int k = 0; k < 4; k++)
            v[k] = value(s, iy - 1 + i, ix - 1 + k, c);
        line[i] = cubic(v, dx);
    }
    return clip(cubic(line, dy));
}

/* sample() of three channels at once, where all sixteen pixels lie inside: the same sums in the same order. */
static void cubic_colours(const struct source *s, double y, double x, uint8_t *to)
{
    const double fy = y - 0.5, fx = x - 0.5;
    const int32_t iy = (int32_t)fy, ix = (int32_t)fx;
    const double dy = fy - iy, dx = fx - ix;
    const size_t stride = (size_t)s->width * 3;
    const uint8_t *corner = s->pixels + (size_t)(iy - 1) * stride + (size_t)(ix - 1) * 3;

    for (int c = 0; c < 3; c++, corner++) {
        const uint8_t *p = corner;
        double line[4];

        for (int i = 0; i < 4; i++, p += stride)
            line[i] = cubic((const double[4]){p[0], p[3], p[6], p[9]}, dx);
        to[c] = clip(cubic(line, dy));
    }
}

/* Pixel (x, y) comes from (a x + b y + c, d x + e y + f). */
static void by_map(const double map[6], const struct data_randaugment *o, const struct source *s, uint8_t *to)
{
    const bool colours = s->channels == 3 && o->filter == DATA_FILTER_BICUBIC;

    for (int32_t y = 0; y < s->height; y++)
        for (int32_t x = 0; x < s->width; x++) {
            const double px = x + 0.5, py = y + 0.5;
            const double sx = map[0] * px + map[1] * py + map[2], sy = map[3] * px + map[4] * py + map[5];
            const bool inside = sx >= 0 && sx < s->width && sy >= 0 && sy < s->height;

            if (colours && sx >= 1.5 && sx < s->width - 1.5 && sy >= 1.5 && sy < s->height - 1.5) {
                cubic_colours(s, sy, sx, to);
                to += 3;
                continue;
            }
            for (int32_t c = 0; c < s->channels; c++)
                *to++ = inside ? sample(s, sy, sx, c, o->filter) : o->fill[c];
        }
}

static double round15(double x)
{
    return round(x * 1e15) / 1e15;
}

static void rotate(double degrees, const struct data_randaugment *o, const struct source *s, uint8_t *to)
{
    const double turn = fmod(degrees, 360), angle = -(turn < 0 ? turn + 360 : turn) * (PI / 180);
    const double cx = s->width / 2.0, cy = s->height / 2.0;
    double map[6] = {round15(cos(angle)),  round15(sin(angle)), 0,
                     round15(-sin(angle)), round15(cos(angle)), 0};

    if (turn == 0) {
        memcpy(to, s->pixels, (size_t)s->height * (size_t)s->width * (size_t)s->channels);
        return;
    }
    map[2] = map[0] * -cx + map[1] * -cy + cx;
    map[5] = map[3] * -cx + map[4] * -cy + cy;
    by_map(map, o, s, to);
}

void data_ra_apply(enum data_ra_op op, double arg, const struct data_randaugment *o, const uint8_t *from,
                   int32_t height, int32_t width, int32_t channels, uint8_t *to)
{
    const struct source s = {from, height, width, channels};

    switch (op) {
    case DATA_RA_ROTATE:
        rotate(arg, o, &s, to);
        break;
    case DATA_RA_SHEAR_X:
        by_map((const double[]){1, arg, 0, 0, 1, 0}, o, &s, to);
        break;
    case DATA_RA_SHEAR_Y:
        by_map((const double[]){1, 0, 0, arg, 1, 0}, o, &s, to);
        break;
    case DATA_RA_TRANSLATE_X:
        by_map((const double[]){1, 0, arg * width, 0, 1, 0}, o, &s, to);
        break;
    case DATA_RA_TRANSLATE_Y:
        by_map((const double[]){1, 0, 0, 0, 1, arg * height}, o, &s, to);
        break;
    case DATA_RA_COLOR:
    case DATA_RA_CONTRAST:
    case DATA_RA_BRIGHTNESS:
    case DATA_RA_SHARPNESS:
        by_blend(op, arg, from, height, width, channels, to);
        break;
    default:
        by_table(op, arg, from, (size_t)height * (size_t)width, channels, to);
        break;
    }
}

uint8_t *data_ra_change(struct data_draw *d, const struct data_randaugment *o, uint8_t *pixels,
                        uint8_t *other, int32_t height, int32_t width, int32_t channels)
{
    for (int32_t i = 0; i < o->n; i++) {
        const enum data_ra_op op = (enum data_ra_op)(int)(data_draw_next(d) * DATA_RA_OPS);
        const bool applied = data_draw_next(d) < 0.5;
        const double level = fmin(fmax(o->m + o->std * data_draw_normal(d), 0), LEVELS);
        const int sign = data_draw_next(d) < 0.5 ? 1 : -1;

        if (applied) {
            uint8_t *from = pixels;

            data_ra_apply(op, data_ra_arg(op, level, sign, o->increasing), o, from, height, width, channels,
                          other);
            pixels = other;
            other = from;
        }
    }
    return pixels;
}
