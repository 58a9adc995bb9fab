/* kernels/backend/cuda/attention/args.cuh: what the kernels of attention are given: a call, and the division of its rows
 * among blocks. Also read by NVRTC (rtc.cuh). */
#pragma once

#include "kernels/backend/cuda/device.cuh"

#define STRIP 16 /* rows that a warp owns */
#define TILE 32  /* rows of the other side that stream past at a time */

/* One (b, h) slice of a tensor of rows: element (i, c) at p + b sb + h sh + i sn + c sd. */
struct att_rows {
    void *p;
    int64_t sb, sh, sn, sd;
    bool wide; /* rows can be copied in 16-byte pieces */
};

struct att {
    int32_t batch, heads, nq, nk, d, d16; /* d16: d up to a multiple of 16 */
    int32_t phi, degree;
    bool causal, normalised, has_bias;
    bool power, shifted;               /* the kind of phi: x^p; exponentials */
    float tau, add, factor, row_power; /* factor: the constant part of c */
    struct att_rows q, k, v, y, dy, dq, dk, dv;
    const float *scale;
    int64_t scale_step;
    const float *bias;
    int64_t bias_h, bias_i, bias_j;
    const uint8_t *mask; /* of keys: windows 0, mask_i 0 */
    int64_t mask_b, mask_i, mask_j;
    int32_t windows;
    const int32_t *length;
    int64_t length_step;
    const int32_t *rng;
    int64_t rng_step;
    uint32_t share_rows; /* rows of A in one share of a batch, if rng names the share; else 0 */
    uint32_t threshold, stream;
    float kept; /* factor on entries that dropout keeps */
    const float *sums_in;
    int64_t sums_b, sums_h, sums_i;
    float *sums;
    const float *delta; /* rowsum(dY Y), (B, H, Nq); where rows are normalised */
    int32_t
        local; /* > 0: a query sees no key before its own chunk of so many tokens; a multiple of 64; causal */
    int32_t after; /* first input that ATTENTION does not have */
};

/* How the strips of a launch are divided among blocks. */
struct att_deal {
    int64_t pairs;     /* (b, h, part of the keys) */
    int32_t per_block; /* pairs of a block, ... */
    int32_t warps;     /* ... warps of each, ... */
    int32_t rounds;    /* ... and strips that a warp takes one after the other; > 1 only when resident */
    int32_t chunks;    /* blocks of a pair */
    int32_t tiles;     /* of a pair at most; buffers when resident */
    int32_t stages;    /* buffers of tiles */
    bool resident;     /* each tile has its buffer */
    int32_t parts, part_rows; /* the streamed side in parts: part_rows is a multiple of the tile */
    int32_t lanes_log;        /* lanes that copy one row, as a power of two */
    size_t shared;
};
