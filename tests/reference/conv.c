/* Convolution and depthwise convolution, and their derivatives: every product of the sums that define them. */
#include "tests/reference/internal.h"

/* Sizes of one call: images, kernels, outputs. */
struct conv_shape {
    int64_t batch, height, width, ci, co, kh, kw, ho, wo, stride, pad_h, pad_w, sign;
};

static int64_t at4(const struct pk_view *v, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return ((a * v->shape.dim[1] + b) * v->shape.dim[2] + c) * v->shape.dim[3] + d;
}

/* Calls f for every (b, h, v, i, j) whose tap lies on a pixel of the image: at (row, column) of it. */
static void each(const struct conv_shape *m, void (*f)(void *user, const int64_t at[7]), void *user)
{
    for (int64_t b = 0; b < m->batch; b++)
        for (int64_t h = 0; h < m->ho; h++)
            for (int64_t v = 0; v < m->wo; v++)
                for (int64_t i = 0; i < m->kh; i++)
                    for (int64_t j = 0; j < m->kw; j++) {
                        const int64_t row = h * m->stride + m->sign * (i - m->pad_h);
                        const int64_t column = v * m->stride + m->sign * (j - m->pad_w);

                        if (row >= 0 && row < m->height && column >= 0 && column < m->width)
                            f(user, (const int64_t[7]){b, h, v, i, j, row, column});
                    }
}

struct sums {
    const struct pk_call *c;
    const struct conv_shape *m;
    const double *a, *b; /* the inputs */
    double *out;
};

static void add_conv(void *user, const int64_t at[7])
{
    const struct sums *s = user;
    const struct pk_call *c = s->c;
    const struct pk_view *x = c->op == PK_OP_CONV2D_DX ? &c->out[0] : &c->in[0];
    const struct pk_view *y = c->op == PK_OP_CONV2D      ? &c->out[0]
                              : c->op == PK_OP_CONV2D_DX ? &c->in[0]
                                                         : &c->in[1];
    const struct pk_view *w = c->op == PK_OP_CONV2D_DW ? &c->out[0] : &c->in[1];

    for (int64_t ci = 0; ci < s->m->ci; ci++)
        for (int64_t co = 0; co < s->m->co; co++) {
            const int64_t px = at4(x, at[0], at[5], at[6], ci), py = at4(y, at[0], at[1], at[2], co),
                          pw = at4(w, at[3], at[4], ci, co);

            if (c->op == PK_OP_CONV2D)
                s->out[py] += s->a[px] * s->b[pw];
            else if (c->op == PK_OP_CONV2D_DX)
                s->out[px] += s->a[py] * s->b[pw];
            else
                s->out[pw] += s->a[px] * s->b[py];
        }
}

static void add_depthwise(void *user, const int64_t at[7])
{
    const struct sums *s = user;
    const struct pk_view *x = &s->c->in[0];

    for (int64_t e = 0; e < s->m->ci; e++) {
        const int64_t px = at4(x, at[0], at[5], at[6], e), py = at4(x, at[0], at[1], at[2], e),
                      pw = (at[3] * s->m->kw + at[4]) * s->m->ci + e;

        if (s->c->op == PK_OP_DWCONV2D)
            s->out[py] += s->a[px] * s->b[pw];
        else
            s->out[pw] += s->a[px] * s->b[py];
    }
}

static void run(const struct pk_call *c, const struct conv_shape *m,
                void (*f)(void *user, const int64_t at[7]))
{
    double *a = all(&c->in[0]), *b = all(&c->in[1]);
    struct sums s = {c, m, a, b, calloc((size_t)count(&c->out[0]) + 1, sizeof(double))};

    assert(s.out);
    each(m, f, &s);
    for (int64_t i = 0; i < count(&c->out[0]); i++)
        put(&c->out[0], i, s.out[i]);
    free(a);
    free(b);
    free(s.out);
}

void ref_conv2d(const struct pk_call *c)
{
    const int64_t *x = (c->op == PK_OP_CONV2D_DX ? &c->out[0] : &c->in[0])->shape.dim;
    const int64_t *y = (c->op == PK_OP_CONV2D      ? &c->out[0]
                        : c->op == PK_OP_CONV2D_DX ? &c->in[0]
                                                   : &c->in[1])
                           ->shape.dim;
    const int64_t *w = (c->op == PK_OP_CONV2D_DW ? &c->out[0] : &c->in[1])->shape.dim;
    const struct conv_shape m = {.batch = x[0],
                                 .height = x[1],
                                 .width = x[2],
                                 .ci = w[2],
                                 .co = w[3],
                                 .kh = w[0],
                                 .kw = w[1],
                                 .ho = y[1],
                                 .wo = y[2],
                                 .stride = c->attr->conv.stride,
                                 .pad_h = c->attr->conv.pad,
                                 .pad_w = c->attr->conv.pad,
                                 .sign = 1};

    run(c, &m, add_conv);
}

void ref_dwconv2d(const struct pk_call *c)
{
    const int64_t *x = c->in[0].shape.dim, *w = (c->op == PK_OP_DWCONV2D ? &c->in[1] : &c->out[0])->shape.dim;
    const struct conv_shape m = {.batch = x[0],
                                 .height = x[1],
                                 .width = x[2],
                                 .ci = x[3],
                                 .kh = w[0],
                                 .kw = w[1],
                                 .ho = x[1],
                                 .wo = x[2],
                                 .stride = 1,
                                 .pad_h = w[0] / 2,
                                 .pad_w = w[1] / 2,
                                 .sign = c->op == PK_OP_DWCONV2D && c->attr->conv.flip ? -1 : 1};

    run(c, &m, add_depthwise);
}
