/* daemon/data/set.h: private to this room: what a data set holds. */
#pragma once

#include <stddef.h>

#include "daemon/data/data.h"

struct data_set {
    struct data_info info;
    struct data_options options; /* its pointers are not kept */
    uint8_t *pixels;             /* images of all parts, one after the other; or the text */
    uint8_t *labels;
    uint32_t *pick[2]; /* images: index of each sample of a part */
    size_t start[2];   /* text: first byte of a part */
};

/* Pictures and labels of one IDX pair. headers_only leaves both NULL. The caller owns them. */
struct data_idx {
    uint8_t *pixels, *labels;
    int64_t count;
    int32_t height, width;
};
PD_NODISCARD enum pd_err data_idx_read(int dir, bool training, bool headers_only, struct data_idx *ret,
                                       struct pd_why *why);

/* Fills item with 0 .. count-1 in the order of this epoch. */
void data_shuffle_epoch(uint32_t *item, int64_t count, uint64_t seed, int64_t epoch);
