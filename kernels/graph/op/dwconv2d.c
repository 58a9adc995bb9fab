/* Depthwise convolution of images with the channels last: each channel by a kernel of its own, with stride 1 and
 * padding to the same size. Its derivative with respect to the images is itself with the kernel flipped. */
#include "kernels/graph/build.h"
#include "kernels/graph/op/registry.h"

static enum pd_err check(const struct pk_type *in, int64_t kh, int64_t kw, struct pd_why *why)
{
    for (int k = 0; k < 2; k++)
        if (!pk_dtype_is_float(in[k].dtype) || in[k].dtype != in[0].dtype)
            return pd_fail(why, PD_ERR_INVALID, "both inputs must be of one float dtype");
    if (in[0].shape.rank != 4)
        return pd_fail(why, PD_ERR_INVALID, "needs images (B, H, W, C)");
    if (kh < 1 || kw < 1 || kh % 2 == 0 || kw % 2 == 0)
        return pd_fail(why, PD_ERR_INVALID, "a kernel of %lld x %lld: both extents must be odd",
                       (long long)kh, (long long)kw);
    return PD_OK;
}

static enum pd_err infer(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                         struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    enum pd_err err;

    (void)attr;
    (void)n_in;
    if (in[1].shape.rank != 3)
        return pd_fail(why, PD_ERR_INVALID, "needs a kernel (kh, kw, C)");
    err = check(in, in[1].shape.dim[0], in[1].shape.dim[1], why);
    if (err != PD_OK)
        return err;
    if (in[0].shape.dim[3] != in[1].shape.dim[2])
        return pd_fail(why, PD_ERR_INVALID, "kernels for %lld channels, the images have %lld",
                       (long long)in[1].shape.dim[2], (long long)in[0].shape.dim[3]);
    ret_out[0] = in[0];
    *ret_n_out = 1;
    return PD_OK;
}

static enum pd_err infer_dw(const struct pk_attr *attr, const struct pk_type *in, int32_t n_in,
                            struct pk_type *ret_out, int32_t *ret_n_out, struct pd_why *why)
{
    const int64_t *extent = attr->conv.extent;
    enum pd_err err = check(in, extent[0], extent[1], why);

    (void)n_in;
    if (err != PD_OK)
        return err;
    if (!pk_shape_equal(&in[0].shape, &in[1].shape))
        return pd_fail(why, PD_ERR_INVALID, "x and dy differ in shape");
    ret_out[0] = (struct pk_type){in[0].dtype, PK_SHAPE(extent[0], extent[1], in[0].shape.dim[3])};
    *ret_n_out = 1;
    return PD_OK;
}

static struct pk_val convolve(struct pk_graph *g, struct pk_val x, struct pk_val w, bool flip)
{
    struct pk_attr a = pk_attr_zero();
    struct pk_val in[2] = {x, w};

    a.conv.flip = flip;
    return pk_emit(g, PK_OP_DWCONV2D, &a, in, 2, NULL);
}

/* Flipped, y at p is the sum of w at o times x at p - o: x and dy are exchanged. */
static void vjp(struct pk_vjp *v)
{
    const bool flip = v->attr->conv.flip;

    if (v->need[0])
        v->din[0] = convolve(v->g, v->dout[0], v->in[1], !flip);
    if (v->need[1]) {
        const struct pk_shape w = pk_shape_of(v->g, v->in[1]);
        struct pk_val in[2] = {flip ? v->dout[0] : v->in[0], flip ? v->in[0] : v->dout[0]};
        struct pk_attr a = pk_attr_zero();

        a.conv.extent[0] = w.dim[0];
        a.conv.extent[1] = w.dim[1];
        v->din[1] = pk_emit(v->g, PK_OP_DWCONV2D_DW, &a, in, 2, NULL);
    }
}

static void vjp_dw(struct pk_vjp *v)
{
    if (v->need[0])
        v->din[0] = convolve(v->g, v->in[1], v->dout[0], true);
    if (v->need[1])
        v->din[1] = convolve(v->g, v->in[0], v->dout[0], false);
}

static enum pk_want want_of(const struct pk_attr *attr, int32_t n_in, int32_t k)
{
    (void)attr;
    (void)n_in;
    return k == 0 ? PK_WANT_ANY : PK_WANT_F32;
}

static void cost(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = 2 * pk_view_count(&c->in[0]) * pk_view_count(&c->in[1]) / pk_view_columns(&c->in[1]);
}

static void cost_dw(const struct pk_call *c, struct pk_cost *ret)
{
    ret->flop = 2 * pk_view_count(&c->in[0]) * pk_view_count(&c->out[0]) / pk_view_columns(&c->out[0]);
}

const struct pk_rule pk_rule_dwconv2d = {.name = "dwconv2d",
                                         .min_in = 2,
                                         .max_in = 2,
                                         .kind = PK_KIND_CONVOLUTION,
                                         .infer = infer,
                                         .vjp = vjp,
                                         .want_of = want_of,
                                         .cost = cost};
const struct pk_rule pk_rule_dwconv2d_dw = {.name = "dwconv2d_dw",
                                            .min_in = 2,
                                            .max_in = 2,
                                            .kind = PK_KIND_CONVOLUTION,
                                            .infer = infer_dw,
                                            .vjp = vjp_dw,
                                            .makes = PK_MAKES_SUMS,
                                            .cost = cost_dw};

struct pk_val pk_dwconv2d(struct pk_graph *g, struct pk_val x, struct pk_val w)
{
    return convolve(g, x, w, false);
}
