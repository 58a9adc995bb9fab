/* daemon/worker/model/convolution.c: what networks over images with the channels last are made of: convolution,
 * depthwise convolution, BatchNorm. */
#include <stdio.h>

#include "daemon/worker/model/net.h"

#define BATCH_NORM_EPS 1e-5
#define BATCH_NORM_KEEP 0.9 /* of the running statistics; PyTorch calls the rest momentum */

struct pk_val net_convolution(struct net *n, struct pk_val x, const char *name, int64_t out, int64_t k,
                              int32_t stride, int32_t pad)
{
    static const int32_t order[] = {2, 3, 1, 0}; /* (out, in, k, k) -> (k, k, in, out) */
    const struct model_spec *s = &n->m->spec;
    const int64_t in = pk_shape_of(n->g, x).dim[3];
    const struct net_how how = {.role = MODEL_ROLE_CONV,
                                .decay = true,
                                .start = net_start(s, (double)(in * k * k), (double)(out * k * k), NET_STD)};
    char full[112];
    struct pk_val w;

    snprintf(full, sizeof full, "%s.weight", name);
    w = net_param(n, full, PK_SHAPE(out, in, k, k), &how);
    return pk_conv2d(n->g, x, pk_copy(n->g, pk_permute(n->g, w, order)), stride, pad);
}

struct pk_val net_depthwise(struct net *n, struct pk_val x, const char *name, int64_t k)
{
    static const int32_t order[] = {1, 2, 0};
    const struct model_spec *s = &n->m->spec;
    const int64_t c = pk_shape_of(n->g, x).dim[3];
    const struct net_how how = {.role = MODEL_ROLE_CONV,
                                .decay = true,
                                .start = net_start(s, (double)(k * k), (double)(k * k), NET_STD)};
    char full[112];
    struct pk_val w, b;

    snprintf(full, sizeof full, "%s.weight", name);
    w = net_param(n, full, PK_SHAPE(c, 1, k, k), &how);
    b = net_vector(n, name, "bias", MODEL_ROLE_BIAS, PK_SHAPE(c), 0);
    w = pk_copy(n->g, pk_permute(n->g, pk_reshape(n->g, w, PK_SHAPE(c, k, k)), order));
    return pk_add(n->g, pk_dwconv2d(n->g, x, w), b);
}

/* A small computation that mixed precision leaves in f32. */
static struct pk_val scaled_exactly(struct net *n, struct pk_val x, double factor)
{
    pk_graph_exact(n->g, true);
    x = pk_scale(n->g, x, factor);
    pk_graph_exact(n->g, false);
    return x;
}

/* The sum over `axes` divided by `rows`, of the batch of all ranks. */
static struct pk_val mean_of(struct net *n, struct pk_val x, uint32_t axes, double rows)
{
    return net_rank_mean(n, scaled_exactly(n, pk_sum(n->g, x, axes, false), 1 / rows));
}

/* Mean and biased variance of each channel, in two passes. */
static void moments(struct net *n, struct pk_val x, struct pk_val *ret_mean, struct pk_val *ret_var)
{
    const struct pk_shape shape = pk_shape_of(n->g, x);
    const int64_t channels = shape.dim[shape.rank - 1], rows = pk_shape_count(&shape) / channels;
    const uint32_t axes = (1u << (shape.rank - 1)) - 1;
    struct pk_val centred;

    *ret_mean = mean_of(n, x, axes, (double)rows);
    centred = pk_sub(n->g, x, *ret_mean);
    *ret_var = mean_of(n, pk_mul(n->g, centred, centred), axes, (double)rows);
}

struct pk_val net_batch_norm(struct net *n, struct pk_val x, const char *name)
{
    const struct pk_shape shape = pk_shape_of(n->g, x);
    const int64_t c = shape.dim[shape.rank - 1];
    char running_mean[112], running_var[112], tracked[112];
    struct pk_val gain = net_vector(n, name, "weight", MODEL_ROLE_GAIN, PK_SHAPE(c), 1);
    struct pk_val bias = net_vector(n, name, "bias", MODEL_ROLE_BIAS, PK_SHAPE(c), 0), mean, var, steps;

    snprintf(running_mean, sizeof running_mean, "%s.running_mean", name);
    snprintf(running_var, sizeof running_var, "%s.running_var", name);
    snprintf(tracked, sizeof tracked, "%s.num_batches_tracked", name);
    mean = net_buffer(n, running_mean, PK_SHAPE(c), 0);
    var = net_buffer(n, running_var, PK_SHAPE(c), 1);
    steps = net_count(n, tracked);
    if (n->change && !net_frozen(n, running_mean) && !net_frozen(n, running_var)) {
        const double rows = (double)(pk_shape_count(&shape) / c) * (n->ranks > 1 ? n->ranks : 1);
        const double unbiased = rows > 1 ? rows / (rows - 1) : 1;

        moments(n, x, &mean, &var);
        net_buffer_update(n, running_mean, mean, BATCH_NORM_KEEP);
        net_buffer_update(n, running_var, scaled_exactly(n, var, unbiased), BATCH_NORM_KEEP);
        pk_graph_exact(n->g, true);
        net_buffer_update(n, tracked, pk_offset(n->g, steps, 1), 0);
        pk_graph_exact(n->g, false);
    }
    pk_graph_exact(n->g, true);
    gain = pk_mul(n->g, gain, pk_unary(n->g, PK_EX_RSQRT, pk_offset(n->g, var, BATCH_NORM_EPS)));
    pk_graph_exact(n->g, false);
    return pk_add(n->g, pk_mul(n->g, pk_sub(n->g, x, mean), gain), bias);
}
