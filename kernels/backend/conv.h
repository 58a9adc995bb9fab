/* kernels/backend/conv.h: how both back ends divide CONV2D_DX.
 *
 * With stride s, pixel a + s q of an axis is read by every s-th tap only. The pixels with one residue modulo s in
 * each axis form a phase: a convolution of dy with stride 1 and those taps, in reverse order. */
#pragma once

#include "kernels/graph/op/op.h"

struct pk_conv_phase {
    int64_t at_h, at_v;     /* the residues */
    int64_t grid_h, grid_v; /* its pixels: (at_h + s q, at_v + s r) */
    int64_t kh, kw;         /* number of taps that reach them */
    int64_t last_h, last_v; /* index of the last of these taps; the others are every s-th before it */
    int64_t row, column; /* pixel (q, r) uses tap last - s i with row q + row + i of dy; columns likewise */
};
#define PK_CONV_PHASES (PK_CONV_STRIDE_MAX * PK_CONV_STRIDE_MAX)

/* Number of taps (of k) that reach pixels of residue `at`; *ret_last: the last of them, set if there is one. */
static inline int64_t pk_conv_taps(int64_t at, int64_t k, int64_t stride, int64_t pad, int64_t *ret_last)
{
    const int64_t first = (at + pad) % stride;

    if (first >= k)
        return 0;
    *ret_last = first + (k - 1 - first) / stride * stride;
    return (*ret_last - first) / stride + 1;
}

/* Writes the phases of images (height, width) and a kernel (kh, kw), at most PK_CONV_PHASES, into `ret`. Returns
 * their number. */
static inline int pk_conv_phases(const struct pk_attr *attr, int64_t height, int64_t width, int64_t kh,
                                 int64_t kw, struct pk_conv_phase *ret)
{
    const int64_t s = attr->conv.stride, pad = attr->conv.pad;
    int n = 0;

    for (int64_t h = 0; h < s && h < height; h++)
        for (int64_t v = 0; v < s && v < width; v++) {
            struct pk_conv_phase f;

            f.last_h = f.last_v = 0;
            f.at_h = h;
            f.at_v = v;
            f.grid_h = (height - h + s - 1) / s;
            f.grid_v = (width - v + s - 1) / s;
            f.kh = pk_conv_taps(h, kh, s, pad, &f.last_h);
            f.kw = pk_conv_taps(v, kw, s, pad, &f.last_v);
            f.row = (h + pad - f.last_h) / s;
            f.column = (v + pad - f.last_v) / s;
            ret[n++] = f;
        }
    return n;
}
