/* kernels/backend/conv.h: how back ends divide CONV2D_DX, whatever they compute it with.
 *
 * With a stride s, pixel a + s q of an axis is read by every s-th tap only. Pixels of one residue by s in both axes
 * are a phase: a convolution of dy with stride 1 by those taps, read the other way round. */
#pragma once

#include "kernels/graph/op/op.h"

struct pk_conv_phase {
    int64_t at_h, at_v;     /* the residues */
    int64_t grid_h, grid_v; /* its pixels: (at_h + s q, at_v + s r) */
    int64_t kh, kw;         /* taps that reach them; 0: none does */
    int64_t last_h, last_v; /* the last of these; every s-th before it is another */
    int64_t row, column; /* pixel (q, r) reads tap last - s i from row q + row + i of dy, columns likewise */
};
#define PK_CONV_PHASES (PK_CONV_STRIDE_MAX * PK_CONV_STRIDE_MAX)

static inline int64_t pk_conv_taps(int64_t at, int64_t k, int64_t stride, int64_t pad, int64_t *ret_last)
{
    const int64_t first = (at + pad) % stride;

    if (first >= k)
        return 0;
    *ret_last = first + (k - 1 - first) / stride * stride;
    return (*ret_last - first) / stride + 1;
}

/* Of images (height, width) and a kernel (kh, kw): into `ret`, at most PK_CONV_PHASES. Returns how many. */
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
