/* conv_bench [THREADS]: convolution 3 x 3 of 256 channels on 56 x 56, forward and both derivatives, in GFLOP/s;
 * depthwise convolution 3 x 3 and the cutting of images into windows (Swin-T's first stage) in GB/s beside the speed of a copy of the same bytes. The
 * best of several turns, in wall time; with one thread in its CPU time, which other work disturbs less.
 * tests/bench/peers/torch_conv.py does the same shapes in PyTorch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend/backend.h"
#include "tests/bench/bench.h"

#define TURNS 7
#define BATCH 8
#define SIDE 56
#define CHANNELS 256

static struct pk_backend *backend;
static clockid_t timer = CLOCK_MONOTONIC;

/* Seconds of the fastest turn. */
static double best_of(enum pk_op op, const struct pk_attr *attr, const struct pk_view *in, int n_in,
                      const struct pk_view *out)
{
    const struct pk_backend_api *api = pk_backend_cpu();
    struct pk_call c = {.op = op, .attr = attr, .n_in = n_in, .n_out = 1, .in = in, .out = out};
    double best = INFINITY;
    struct pd_why why;

    c.workspace_bytes = api->workspace_bytes(backend, &c);
    c.workspace = bench_memory(c.workspace_bytes);
    for (int i = 0; i < TURNS; i++) {
        double t = bench_seconds(timer);

        if (api->run(backend, &c, 1, &why) != PD_OK) {
            fprintf(stderr, "conv_bench: %s\n", why.text);
            exit(1);
        }
        t = bench_seconds(timer) - t;
        best = t < best ? t : best;
    }
    free(c.workspace);
    return best;
}

static void convolution(int64_t ci, int64_t co, int64_t side, int32_t stride)
{
    const int64_t places = (side - 1) / stride + 1;
    const struct pk_shape x = PK_SHAPE(BATCH, side, side, ci), w = PK_SHAPE(3, 3, ci, co),
                          y = PK_SHAPE(BATCH, places, places, co);
    const struct {
        enum pk_op op;
        const char *name;
        struct pk_shape in[2], out;
        int64_t extent[2];
    } form[] = {{PK_OP_CONV2D, "forward", {x, w}, y, {0, 0}},
                {PK_OP_CONV2D_DX, "by x", {y, w}, x, {side, side}},
                {PK_OP_CONV2D_DW, "by w", {x, y}, w, {3, 3}}};
    const double flop = 2.0 * BATCH * (double)(places * places * 9 * ci * co);

    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        struct pk_attr attr = {
            .conv = {.stride = stride, .pad = 1, .extent = {form[i].extent[0], form[i].extent[1]}}};
        struct pk_view in[2] = {bench_numbers(form[i].in[0]), bench_numbers(form[i].in[1])};
        struct pk_view out = bench_numbers(form[i].out);
        const double t = best_of(form[i].op, &attr, in, 2, &out);

        printf("conv 3x3 %lld -> %lld on %lld, stride %d, %-8s %9.2f ms %7.1f GFLOP/s\n", (long long)ci,
               (long long)co, (long long)side, stride, form[i].name, 1e3 * t, 1e-9 * flop / t);
        free(in[0].data);
        free(in[1].data);
        free(out.data);
    }
}

static void depthwise(void)
{
    const struct pk_shape x = PK_SHAPE(BATCH, SIDE, SIDE, CHANNELS), w = PK_SHAPE(3, 3, CHANNELS);
    struct pk_view in[2] = {bench_numbers(x), bench_numbers(w)}, dw[2] = {in[0], bench_numbers(x)};
    struct pk_view out = bench_numbers(x), sum = bench_numbers(w);
    struct pk_attr copy = {.copy = {.dtype = PK_F32}}, attr = {.conv = {.extent = {3, 3}}};
    const double bytes = 2.0 * 4 * (double)pk_shape_count(&x);
    const double peak = bytes / best_of(PK_OP_COPY, &copy, in, 1, &out);
    const double forward = bytes / best_of(PK_OP_DWCONV2D, &attr, in, 2, &out);
    const double by_w = bytes / best_of(PK_OP_DWCONV2D_DW, &attr, dw, 2, &sum);

    printf(
        "copy %.1f GB/s; depthwise 3x3 of %d channels on %d: %.1f GB/s (%.2f of it), by w %.1f GB/s (%.2f)\n",
        1e-9 * peak, CHANNELS, SIDE, 1e-9 * forward, forward / peak, 1e-9 * by_w, by_w / peak);
    free(in[0].data);
    free(in[1].data);
    free(dw[1].data);
    free(out.data);
    free(sum.data);
}

/* Images (B, 56, 56, 96) to windows of 7 x 7, and back: the same copy with its axes swapped. */
static void windows(void)
{
    const struct pk_shape dense = PK_SHAPE(BATCH, 8, 7, 8, 7, 96), cut = PK_SHAPE(BATCH, 8, 8, 7, 7, 96);
    struct pk_attr copy = {.copy = {.dtype = PK_F32}};
    struct pk_view in = bench_numbers(dense), out = bench_numbers(cut), swapped = in;
    const double bytes = 2.0 * 4 * (double)pk_shape_count(&dense);
    double peak, speed;

    swapped.shape = cut;
    swapped.stride[2] = in.stride[3];
    swapped.stride[3] = in.stride[2];
    in.shape = out.shape = PK_SHAPE(pk_shape_count(&dense));
    in.stride[0] = 1;
    out.stride[0] = 1;
    peak = bytes / best_of(PK_OP_COPY, &copy, &in, 1, &out);
    out.shape = cut;
    for (int64_t i = 5, n = 1; i >= 0; n *= cut.dim[i--])
        out.stride[i] = n;
    speed = bytes / best_of(PK_OP_COPY, &copy, &swapped, 1, &out);
    printf("windows of 7 x 7 of 96 channels on 56: %.1f GB/s (%.2f of a copy's %.1f)\n", 1e-9 * speed,
           speed / peak, 1e-9 * peak);
    free(in.data);
    free(out.data);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 2;
    struct pd_why why;

    if (threads == 1)
        timer = CLOCK_PROCESS_CPUTIME_ID;
    if (pk_backend_cpu()->open(NULL, 0, threads, &backend, &why) != PD_OK) {
        fprintf(stderr, "conv_bench: %s\n", why.text);
        return 1;
    }
    convolution(CHANNELS, CHANNELS, SIDE, 1);
    convolution(3, 48, 224, 2);
    convolution(48, 96, 112, 2);
    depthwise();
    windows();
    pk_backend_cpu()->close(backend);
    return 0;
}
