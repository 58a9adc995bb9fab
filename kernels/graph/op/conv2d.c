/* Convolution of images with the channels last, and its two derivatives.
 *
 * All three are partial derivatives of one trilinear form, T(x, w, y) = sum of y times (x * w): CONV2D with respect
 * to y, CONV2D_DX to x, CONV2D_DW to w. So the derivatives of each are the other two. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err check(const struct pk_attr *attr, const struct pk_type *in, struct pd_why *why)
{
    for (int k = 0; k < 2; k++)
        if (!pk_dtype_is_float(in[k].dtype) || in[k].shape.rank != 4)
            return pd_fail(why, PD_ERR_INVALID, "both inputs must be of a float dtype and of four axes");
    if (in[0].dtype != in[1].dtype)
        return pd_fail(why, PD_ERR_INVALID, "the two inputs differ in dtype");
    if (attr->conv.stride < 1 || attr->conv.stride > PK_CONV_STRIDE_MAX || attr->conv.pad < 0)
        return pd_fail(why, PD_ERR_INVALID, "stride %d, pad %d: strides are 1 to %d, pads not negative",
                       attr->conv.stride, attr->conv.pad, PK_CONV_STRIDE_MAX);
    return PD_OK;
}

/* Positions of a kernel of `k` steps on an axis of `n`; 0: it does not fit. */
static int64_t places(const struct pk_attr *attr, int64_t n, int64_t k)
{
    return k < 1 || n + 2 * attr->conv.pad < k ? 0 : (n + 2 * attr->conv.pad - k) / attr->conv.stride + 1;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_shape *x = &in[0].shape, *w = &in[1].shape;
    enum pd_err err = check(attr, in, why);
    int64_t h, v;

    (void)n_in;
    if (err != PD_OK)
        return err;
    h = places(attr, x->dim[1], w->dim[0]);
    v = places(attr, x->dim[2], w->dim[1]);
    if (x->dim[3] != w->dim[2])
        return pd_fail(why, PD_ERR_INVALID, "the kernel reads %lld channels, the images have %lld",
                       (long long)w->dim[2], (long long)x->dim[3]);
    if (h < 1 || v < 1)
        return pd_fail(why, PD_ERR_INVALID, "the kernel is larger than the padded images");
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(x->dim[0], h, v, w->dim[3])};
    *ret_n_out = 1;
    return PD_OK;
}

/* Checks that dy has the shape of a convolution of images of attr.conv.extent. */
static enum pd_err infer_dx(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                            struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_shape *dy = &in[0].shape, *w = &in[1].shape;
    const int64_t *extent = attr->conv.extent;
    enum pd_err err = check(attr, in, why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    if (dy->dim[3] != w->dim[3] || dy->dim[1] != places(attr, extent[0], w->dim[0]) ||
        dy->dim[2] != places(attr, extent[1], w->dim[1]))
        return pd_fail(why, PD_ERR_INVALID, "dy has not the shape of a convolution of images of %lld x %lld",
                       (long long)extent[0], (long long)extent[1]);
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(dy->dim[0], extent[0], extent[1], w->dim[2])};
    *ret_n_out = 1;
    return PD_OK;
}

/* Checks that dy has the shape of a convolution of x with a kernel of attr.conv.extent. */
static enum pd_err infer_dw(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                            struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const struct pk_shape *x = &in[0].shape, *dy = &in[1].shape;
    const int64_t *extent = attr->conv.extent;
    enum pd_err err = check(attr, in, why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    if (x->dim[0] != dy->dim[0] || dy->dim[1] != places(attr, x->dim[1], extent[0]) ||
        dy->dim[2] != places(attr, x->dim[2], extent[1]))
        return pd_fail(why, PD_ERR_INVALID,
                       "dy has not the shape of a convolution of x with a kernel of %lld x %lld",
                       (long long)extent[0], (long long)extent[1]);
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(extent[0], extent[1], x->dim[3], dy->dim[3])};
    *ret_n_out = 1;
    return PD_OK;
}

/* Emits one of the three ops, with the two extents that its inputs do not determine. */
static struct pk_val form(struct pk_vjp *v, enum pk_op op, struct pk_val a, struct pk_val b, int64_t first,
                          int64_t second)
{
    struct pk_attr attr = *v->attr;
    struct pk_val in[2] = {a, b};

    attr.conv.extent[0] = first;
    attr.conv.extent[1] = second;
    return pk_emit(v->g, op, &attr, in, 2, NULL);
}

static struct pk_val by_x(struct pk_vjp *v, struct pk_val y, struct pk_val w, struct pk_val x)
{
    const struct pk_shape s = pk_shape_of(v->g, x);

    return form(v, PK_OP_CONV2D_DX, y, w, s.dim[1], s.dim[2]);
}

static struct pk_val by_w(struct pk_vjp *v, struct pk_val x, struct pk_val y, struct pk_val w)
{
    const struct pk_shape s = pk_shape_of(v->g, w);

    return form(v, PK_OP_CONV2D_DW, x, y, s.dim[0], s.dim[1]);
}

static void vjp(struct pk_vjp *v)
{
    if (v->need[0])
        v->din[0] = by_x(v, v->dout[0], v->in[1], v->in[0]);
    if (v->need[1])
        v->din[1] = by_w(v, v->in[0], v->dout[0], v->in[1]);
}

static void vjp_dx(struct pk_vjp *v)
{
    if (v->need[0])
        v->din[0] = form(v, PK_OP_CONV2D, v->dout[0], v->in[1], 0, 0);
    if (v->need[1])
        v->din[1] = by_w(v, v->dout[0], v->in[0], v->in[1]);
}

static void vjp_dw(struct pk_vjp *v)
{
    if (v->need[0])
        v->din[0] = by_x(v, v->in[1], v->dout[0], v->in[0]);
    if (v->need[1])
        v->din[1] = form(v, PK_OP_CONV2D, v->in[0], v->dout[0], 0, 0);
}

/* Each element of the weight is used at every position of dy in every image. */
static double flop_of(const struct pk_view *positions, const struct pk_view *weight)
{
    return 2 * pk_view_count(positions) / pk_view_columns(positions) * pk_view_count(weight);
}

static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(&c->out[0], &c->in[1]);
}

static void cost_dx(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(&c->in[0], &c->in[1]);
}

static void cost_dw(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = flop_of(&c->in[1], &c->out[0]);
}

/* Mixed precision as for MATMUL. */
#define RULE(word, infers, derives, counts)                                                                  \
    {                                                                                                        \
        .name = word, .min_in = 2, .max_in = 2, .kind = PK_KIND_CONVOLUTION, .infer = (infers),              \
        .vjp = (derives), .want = PK_WANT_FACTOR, .cost = (counts)                                           \
    }

const struct pk_rule pk_rule_conv2d = RULE("conv2d", infer, vjp, cost);
const struct pk_rule pk_rule_conv2d_dx = RULE("conv2d_dx", infer_dx, vjp_dx, cost_dx);
const struct pk_rule pk_rule_conv2d_dw = RULE("conv2d_dw", infer_dw, vjp_dw, cost_dw);

struct pk_val pk_conv2d(struct pk_graph *g, struct pk_val x, struct pk_val w, int32_t stride, int32_t pad)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {x, w};

    a.conv.stride = stride;
    a.conv.pad = pad;
    return pk_emit(g, PK_OP_CONV2D, &a, in, 2, NULL);
}
