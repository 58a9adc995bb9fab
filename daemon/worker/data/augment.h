/* daemon/worker/data/augment.h: private to this module: random changes of training pictures.
 *
 * Each function reads its random numbers from a data_draw in a documented order. The same numbers therefore give the
 * same picture, from the counter-based generator in training as well as from a recorded list in tests. */
#pragma once

#include <stdbool.h>

#include "daemon/worker/data/image.h"

/* Uniform numbers in [0, 1). */
struct data_draw {
    uint64_t seed, position;
    uint32_t stream, epoch, block,
        left; /* stream: enum data_stream; block: blocks of four words drawn so far */
    uint32_t word[4];
    const double *recorded; /* numbers to return instead of drawn ones; NULL: draw */
};

/* Starts the numbers of one sample: each is a function of these arguments and of its index. */
void data_draw_init(struct data_draw *d, uint64_t seed, uint32_t stream, int64_t epoch, int64_t position);
double data_draw_next(struct data_draw *d);
/* A standard normal number by Box and Muller, from two uniform ones. */
double data_draw_normal(struct data_draw *d);
/* Beta(alpha, alpha), alpha > 0: the ratio of two gamma variates by Marsaglia and Tsang (2000). Reads as many numbers
 * as their rejection steps need. */
double data_draw_beta(struct data_draw *d, double alpha);

/* Random erasing (arXiv:1708.04896) in timm's order of draws: whether to erase, up to ten attempts at (area, log
 * ratio), then top and left of the first that fits. Height 0: nothing is erased. */
struct data_box data_erase_box(struct data_draw *d, double probability, int32_t height, int32_t width);
/* Cutmix's rectangle (arXiv:1905.04899) that covers 1 - share of the picture, around a drawn centre and clipped to the
 * picture. *ret_share: the share of the picture outside the clipped rectangle. */
struct data_box data_cutmix_box(struct data_draw *d, double share, int32_t height, int32_t width,
                                double *ret_share);

/* Torchvision's RandomResizedCrop: up to ten attempts at (area, log ratio), then top and left of the first that fits;
 * if none fits, the centre crop at the nearest allowed ratio. */
struct data_box data_rrc_box(struct data_draw *d, int32_t height, int32_t width, const double scale[2],
                             const double ratio[2]);

/* Mirrors each row of pixels (height, width, channels) in place. */
void data_flip(uint8_t *pixels, int32_t height, int32_t width, int32_t channels);

/* Transposes (height, width, channels) to (channels, height, width); the buffers do not overlap. */
void data_planes(const uint8_t *pixels, int32_t height, int32_t width, int32_t channels, uint8_t *to);
