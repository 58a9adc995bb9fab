/* daemon/worker/data/randaugment.h: private to this folder: RandAugment (arXiv:1909.13719) with the fifteen
 * operations and levels of timm's rand-m9-mstd0.5-inc1, in the integer arithmetic of Pillow, to the byte.
 *
 * Pictures are (height, width, channels) of one or three channels. Pure functions. */
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
    double m, std;           /* level: normal around m, cut to 0..10 */
    bool increasing;         /* all operations grow with the level */
    uint8_t fill[3];         /* of places that come from outside the picture */
    enum data_filter filter; /* of rotation, shear and translation */
};

/* What an operation is called with at a level: degrees, a share of the side, a factor, bits that are kept, a
 * threshold, a number to add. sign: +1 or -1, of operations that have a direction. */
double data_ra_arg(enum data_ra_op op, double level, int sign, bool increasing);
/* `from` changed by one operation into `to`, which is another buffer. */
void data_ra_apply(enum data_ra_op op, double arg, const struct data_randaugment *o, const uint8_t *from,
                   int32_t height, int32_t width, int32_t channels, uint8_t *to);
/* n operations drawn with replacement, each applied with probability one half. Of each are drawn: operation,
 * whether it is applied, a normal number for the level, sign. Returns `pixels` or `other`, where the result is.
 */
uint8_t *data_ra_change(struct data_draw *d, const struct data_randaugment *o, uint8_t *pixels,
                        uint8_t *other, int32_t height, int32_t width, int32_t channels);
