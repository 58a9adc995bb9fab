/* daemon/worker/data/augment.h: private to this module: random changes of training pictures.
 *
 * Each takes its random numbers from a data_draw, in the order that it says, so that the same draws give the
 * same picture wherever they come from: the counter-based generator in training, recorded ones in tests. */
#pragma once

#include <stdbool.h>

#include "daemon/worker/data/image.h"

/* Uniform numbers in [0, 1). */
struct data_draw {
    uint64_t seed, position;
    uint32_t stream, epoch, block, left; /* stream: enum data_stream; block: words taken, by fours */
    uint32_t word[4];
    const double *recorded; /* if not NULL: these instead */
};

/* Numbers of one sample: a function of the arguments and of how many were drawn. */
void data_draw_init(struct data_draw *d, uint64_t seed, uint32_t stream, int64_t epoch, int64_t position);
double data_draw_next(struct data_draw *d);
/* A normal number by Box and Muller, of two uniform ones. */
double data_draw_normal(struct data_draw *d);
/* Beta(alpha, alpha), alpha > 0, of as many as it takes: two gamma numbers by Marsaglia and Tsang (2000). */
double data_draw_beta(struct data_draw *d, double alpha);

/* Random erasing (arXiv:1708.04896) as timm draws it: whether, then up to ten tries of (area, log ratio), then top
 * and left of one that fits; height 0: nothing is erased. */
struct data_box data_erase_box(struct data_draw *d, double probability, int32_t height, int32_t width);
/* Cutmix's rectangle for a share of the own picture: where its middle lies is drawn. *ret_share: what is left of
 * the own picture. */
struct data_box data_cutmix_box(struct data_draw *d, double share, int32_t height, int32_t width,
                                double *ret_share);

/* Torchvision's RandomResizedCrop: up to ten tries of (area, log ratio), then top and left of one that fits;
 * if none does, the middle at the nearest allowed ratio. */
struct data_box data_rrc_box(struct data_draw *d, int32_t height, int32_t width, const double scale[2],
                             const double ratio[2]);

/* Mirrors each row of (height, width, channels). */
void data_flip(uint8_t *pixels, int32_t height, int32_t width, int32_t channels);

/* From (height, width, channels) to (channels, height, width). */
void data_planes(const uint8_t *pixels, int32_t height, int32_t width, int32_t channels, uint8_t *to);
