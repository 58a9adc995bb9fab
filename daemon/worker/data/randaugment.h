/* daemon/worker/data/randaugment.h: private to this folder: RandAugment (arXiv:1909.13719) with the fifteen
 * operations and levels of timm's rand-m9-mstd0.5-inc1. Results equal Pillow's byte by byte (integer arithmetic).
 *
 * Pictures are U8 (height, width, channels) with one or three channels. All functions are pure. */
#pragma once

#include "daemon/worker/data/augment.h"

enum data_ra_op {
    DATA_RA_AUTO_CONTRAST,
    DATA_RA_EQUALIZE,
    DATA_RA_INVERT,
    DATA_RA_ROTATE,
    DATA_RA_POSTERIZE,
    DATA_RA_SOLARIZE,
    DATA_RA_SOLARIZE_ADD,
    DATA_RA_COLOR,
    DATA_RA_CONTRAST,
    DATA_RA_BRIGHTNESS,
    DATA_RA_SHARPNESS,
    DATA_RA_SHEAR_X,
    DATA_RA_SHEAR_Y,
    DATA_RA_TRANSLATE_X,
    DATA_RA_TRANSLATE_Y,
    DATA_RA_OPS
};

struct data_randaugment {
    int32_t n;               /* operations for each picture; 0: none */
    double m, std;           /* the level is drawn from N(m, std^2) and clamped to 0..10 */
    bool increasing;         /* the strength of every operation grows with the level */
    uint8_t fill[3];         /* colour of pixels that come from outside the picture */
    enum data_filter filter; /* interpolation of rotation, shear and translation */
};

/* The argument of an operation at a level: degrees, a share of the side, a factor, a number of bits, a threshold or a
 * number to add. sign: +1 or -1, for operations with a direction. */
double data_ra_arg(enum data_ra_op op, double level, int sign, bool increasing);
/* Applies one operation to `from` and writes the result to `to`; the buffers do not overlap. */
void data_ra_apply(enum data_ra_op op, double arg, const struct data_randaugment *o, const uint8_t *from,
                   int32_t height, int32_t width, int32_t channels, uint8_t *to);
/* Draws o->n operations with replacement and applies each with probability 1/2. Order of the draws for each: operation,
 * whether to apply it, a normal number for the level, sign. Returns the buffer with the result: `pixels` or `other`. */
uint8_t *data_ra_change(struct data_draw *d, const struct data_randaugment *o, uint8_t *pixels,
                        uint8_t *other, int32_t height, int32_t width, int32_t channels);
