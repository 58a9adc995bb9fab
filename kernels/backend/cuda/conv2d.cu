/* CONV2D and its derivatives with respect to x and to the kernel: im2col copies the inputs of a run of positions into a
 * matrix in the workspace (one row per position, tap by tap all channels), and MATMUL does the rest.
 *
 *     y  = patches of x  w                  dw = patches of x'  dy, chunk upon chunk
 *     dx = patches of dy w', phase by phase (kernels/backend/conv.h); with a stride the rows are scattered afterwards
 *
 * The matrix is computed in chunks of at most CHUNK_BYTES for any batch; the chunks depend on shapes only. A
 * thread of the gathering kernel moves four channels if they are contiguous, else one. */
#include "kernels/backend/conv.h"
#include "kernels/backend/cuda/move/move.h"
#include "kernels/backend/cuda/view.cuh"

#define THREADS 256
#define CHUNK_BYTES ((int64_t)64 << 20)
#define CHUNK_STEP 128 /* positions */

namespace
{
/* Positions of a grid (height, width) of every image and what they read: rows h step + row .., kh of them. */
struct patches {
    const void *image;
    int32_t dtype; /* PK_F32 or PK_BF16, of the matrix as well */
    int64_t stride[4];
    int height, width, channels, kh, kw, step, row, column;
    struct cuda_divisor grid_h, grid_v, by_depth, by_channels, by_kw;
    int64_t depth; /* kh kw channels */
    int64_t count; /* positions of all images */
};

struct job {
    struct pk_backend *b;
    const struct pk_call *c;
    int64_t kh, kw, ci, co, batch, stride, pad;
    char *matrix, *copy_a, *copy_b, *turned, *rows, *products; /* in the workspace; NULL: not needed */
    size_t bytes;
    struct pk_conv_phase phase[PK_CONV_PHASES];
    int phases;
};
} // namespace

template <int PACK>
static __global__ void __launch_bounds__(THREADS)
    gather_kernel(const struct patches p, int64_t first, int64_t packs, void *to)
{
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < packs;
         at += (int64_t)gridDim.x * THREADS) {
        const uint32_t e = (uint32_t)at, line = pk_divide(p.by_depth, e), rest = e - line * p.by_depth.by;
        const uint32_t tap = pk_divide(p.by_channels, rest), c = rest - tap * p.by_channels.by;
        const uint32_t i = pk_divide(p.by_kw, tap), k = tap - i * p.by_kw.by;
        const uint32_t place = (uint32_t)first + line, bh = pk_divide(p.grid_v, place),
                       v = place - bh * p.grid_v.by;
        const uint32_t b = pk_divide(p.grid_h, bh), h = bh - b * p.grid_h.by;
        const int row = (int)h * p.step + p.row + (int)i, column = (int)v * p.step + p.column + (int)k;
        const bool in = row >= 0 && row < p.height && column >= 0 && column < p.width;
        const int64_t from =
            b * p.stride[0] + row * p.stride[1] + column * p.stride[2] + c * PACK * p.stride[3];
        float x[4] = {0, 0, 0, 0};

        if (PACK == 4) {
            if (in)
                pk_load4(p.image, p.dtype == PK_BF16, from, x);
            pk_store4(to, p.dtype == PK_BF16, at * 4, x);
        } else {
            pk_store1(to, p.dtype == PK_BF16, at, in ? pk_load1(p.image, p.dtype == PK_BF16, from) : 0);
        }
    }
}

/* (kh, kw, Ci, Co) -> for each phase (Ci, its taps, Co), the last tap first. */
static __global__ void __launch_bounds__(THREADS)
    turn_kernel(const void *w, bool bf16, int64_t kw, int64_t ci, int64_t co, int64_t stride,
                const struct pk_conv_phase f, int64_t count, void *to)
{
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        const int64_t o = at % co, tap = at / co % (f.kh * f.kw), c = at / co / (f.kh * f.kw);
        const int64_t i = f.last_h - tap / f.kw * stride, k = f.last_v - tap % f.kw * stride;

        pk_store1(to, bf16, at, pk_load1(w, bf16, ((i * kw + k) * ci + c) * co + o));
    }
}

/* Rows of a chunk of a phase to their pixels; rows NULL: zeros. */
static __global__ void __launch_bounds__(THREADS)
    place_kernel(const void *rows, bool rows_bf16, const struct pk_conv_phase f, int64_t stride,
                 int64_t height, int64_t width, int64_t ci, int64_t first, int64_t count, void *dx,
                 bool dx_bf16)
{
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        const int64_t place = first + at / ci, v = place % f.grid_v, h = place / f.grid_v % f.grid_h,
                      b = place / f.grid_v / f.grid_h;
        const int64_t to = ((b * height + h * stride + f.at_h) * width + v * stride + f.at_v) * ci + at % ci;

        pk_store1(dx, dx_bf16, to, rows ? pk_load1(rows, rows_bf16, at) : 0);
    }
}

static unsigned blocks_of(const struct pk_backend *b, int64_t count)
{
    const int64_t most = (int64_t)b->multiprocessors * 32, want = cuda_div_up(count, THREADS);

    return (unsigned)(want < most ? want : most);
}

/* ---- the workspace ---- */

static char *take(struct job *j, int64_t bytes)
{
    char *at = j->c->workspace ? (char *)j->c->workspace + j->bytes : NULL;

    j->bytes += ((size_t)bytes + 255) & ~(size_t)255;
    return at;
}

static int64_t chunk_of(int64_t depth, enum pk_dtype dtype)
{
    const int64_t n = CHUNK_BYTES / cuda_size(dtype) / (depth ? depth : 1) / CHUNK_STEP * CHUNK_STEP;

    return n > CHUNK_STEP ? n : CHUNK_STEP;
}

/* One product: a (m, k), read by columns if `turned`; b (k, n), read by columns if b_turned; out (m, n) [+ out]. */
struct product {
    struct pk_attr attr;
    struct pk_view in[3], out;
    struct pk_call call;
};

static struct pk_view matrix_of(const void *data, enum pk_dtype dtype, int64_t rows, int64_t cols,
                                bool turned)
{
    struct pk_view v;

    memset(&v, 0, sizeof v);
    v.data = (void *)(uintptr_t)data;
    v.dtype = dtype;
    v.shape.rank = 2;
    v.shape.dim[0] = rows;
    v.shape.dim[1] = cols;
    v.stride[0] = turned ? 1 : cols;
    v.stride[1] = turned ? rows : 1;
    return v;
}

static void product_of(struct product *p, struct pk_view a, struct pk_view b, struct pk_view out, bool add)
{
    memset(p, 0, sizeof *p);
    p->attr.matmul.has_residual = add;
    p->in[0] = a;
    p->in[1] = b;
    p->in[2] = out;
    p->out = out;
    p->call.op = PK_OP_MATMUL;
    p->call.attr = &p->attr;
    p->call.n_in = 2 + add;
    p->call.n_out = 1;
    p->call.in = p->in;
    p->call.out = &p->out;
}

/* The product of rows positions, `which` of the three ops. data pointers: NULL while it is measured. */
static void product_for(const struct job *j, struct product *p, int64_t rows, int64_t depth,
                        const void *matrix, const void *second, void *out, enum pk_dtype out_dtype, bool add)
{
    const enum pk_dtype dtype = j->c->in[0].dtype;

    if (j->c->op == PK_OP_CONV2D)
        product_of(p, matrix_of(matrix, dtype, rows, depth, false),
                   matrix_of(second, dtype, depth, j->co, false),
                   matrix_of(out, out_dtype, rows, j->co, false), false);
    else if (j->c->op == PK_OP_CONV2D_DX)
        product_of(p, matrix_of(matrix, dtype, rows, depth, false),
                   matrix_of(second, dtype, depth, j->ci, true),
                   matrix_of(out, out_dtype, rows, j->ci, false), false);
    else
        product_of(p, matrix_of(matrix, dtype, depth, rows, true),
                   matrix_of(second, dtype, rows, j->co, false),
                   matrix_of(out, out_dtype, depth, j->co, false), add);
}

static int64_t phase_depth(const struct job *j, int i)
{
    return j->phase[i].kh * j->phase[i].kw * j->co;
}

/* Bytes of workspace for `count` positions of one depth. */
static void measure(const struct job *j, int64_t count, int64_t depth, int64_t *ret_matrix, int64_t *ret_rows,
                    size_t *ret_products)
{
    const enum pk_dtype dtype = j->c->in[0].dtype, out = j->c->out[0].dtype;
    const int64_t chunk = chunk_of(depth, dtype), most = count < chunk ? count : chunk;
    const int64_t parts[2] = {most, count % chunk};

    if (most * depth * cuda_size(dtype) > *ret_matrix)
        *ret_matrix = most * depth * cuda_size(dtype);
    if (most * j->ci * cuda_size(out) > *ret_rows)
        *ret_rows = most * j->ci * cuda_size(out);
    for (int i = 0; i < 2; i++)
        for (int add = 0; add < 2; add++) {
            struct product p;
            size_t bytes;

            if (parts[i] == 0 || depth == 0)
                continue;
            product_for(j, &p, parts[i], depth, NULL, NULL, NULL, out, add);
            bytes = cuda_matmul_workspace(j->b, &p.call);
            *ret_products = bytes > *ret_products ? bytes : *ret_products;
        }
}

static int64_t positions(const struct pk_view *v)
{
    return v->shape.dim[0] * v->shape.dim[1] * v->shape.dim[2];
}

static void plan(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_view *w = c->op == PK_OP_CONV2D_DW ? &c->out[0] : &c->in[1];
    const struct pk_view *y = c->op == PK_OP_CONV2D      ? &c->out[0]
                              : c->op == PK_OP_CONV2D_DX ? &c->in[0]
                                                         : &c->in[1];
    int64_t matrix = 0, rows = 0;
    size_t products = 0;

    memset(j, 0, sizeof *j);
    j->b = b;
    j->c = c;
    j->kh = w->shape.dim[0];
    j->kw = w->shape.dim[1];
    j->ci = w->shape.dim[2];
    j->co = w->shape.dim[3];
    j->batch = c->in[0].shape.dim[0];
    j->stride = c->attr->conv.stride;
    j->pad = c->attr->conv.pad;
    if (c->op == PK_OP_CONV2D_DX) {
        const struct pk_shape *x = &c->out[0].shape;

        j->phases = pk_conv_phases(c->attr, x->dim[1], x->dim[2], j->kh, j->kw, j->phase);
        for (int i = 0; i < j->phases; i++)
            measure(j, j->batch * j->phase[i].grid_h * j->phase[i].grid_v, phase_depth(j, i), &matrix, &rows,
                    &products);
        j->turned = take(j, j->kh * j->kw * j->ci * j->co * cuda_size(c->in[1].dtype));
        if (j->stride > 1)
            j->rows = take(j, rows);
    } else {
        measure(j, positions(y), j->kh * j->kw * j->ci, &matrix, &rows, &products);
    }
    j->matrix = take(j, matrix);
    if (!cuda_dense(&c->in[1]))
        j->copy_b = take(j, cuda_count(&c->in[1].shape) * cuda_size(c->in[1].dtype));
    j->products = take(j, (int64_t)products);
}

static bool supports(const struct pk_call *c)
{
    const int64_t most = (int64_t)1 << 31;

    for (int i = 0; i < 2; i++)
        if (!cuda_float(c->in[i].dtype) || positions(&c->in[i]) >= most)
            return false;
    return cuda_float(c->out[0].dtype) && c->in[0].dtype == c->in[1].dtype &&
           (c->out[0].dtype == PK_F32 || c->in[0].dtype == PK_BF16) && positions(&c->out[0]) < most;
}

/* ---- running ---- */

static struct patches patches_of(const struct job *j, const struct pk_view *image, int64_t grid_h,
                                 int64_t grid_v, int64_t kh, int64_t kw)
{
    struct patches p;

    memset(&p, 0, sizeof p);
    p.image = image->data;
    p.dtype = image->dtype;
    for (int i = 0; i < 4; i++)
        p.stride[i] = image->stride[i];
    p.height = (int)image->shape.dim[1];
    p.width = (int)image->shape.dim[2];
    p.channels = (int)image->shape.dim[3];
    p.kh = (int)kh;
    p.kw = (int)kw;
    p.step = (int)j->stride;
    p.row = p.column = -(int)j->pad;
    p.grid_h = cuda_divisor_of(grid_h);
    p.grid_v = cuda_divisor_of(grid_v);
    p.by_kw = cuda_divisor_of(kw);
    p.depth = kh * kw * p.channels;
    p.count = j->batch * grid_h * grid_v;
    return p;
}

static enum pd_err gather(const struct job *j, struct patches *p, int64_t first, int64_t n,
                          struct pd_why *why)
{
    bool packs = p->channels % 4 == 0 && p->stride[3] == 1 &&
                 cuda_aligned(p->image, cuda_pack_bytes((enum pk_dtype)p->dtype));
    int64_t per, count;

    for (int i = 0; i < 3; i++)
        packs = packs && p->stride[i] % 4 == 0;
    per = packs ? 4 : 1;
    count = n * p->depth / per;
    p->by_depth = cuda_divisor_of(p->depth / per);
    p->by_channels = cuda_divisor_of(p->channels / per);
    if (packs)
        PK_LAUNCH(gather_kernel<4>, dim3(blocks_of(j->b, count)), dim3(THREADS), 0, j->b->stream, *p, first,
                  count, (void *)j->matrix);
    else
        PK_LAUNCH(gather_kernel<1>, dim3(blocks_of(j->b, count)), dim3(THREADS), 0, j->b->stream, *p, first,
                  count, (void *)j->matrix);
    PK_CUDA_TRY(cudaGetLastError());
    return PD_OK;
}

static enum pd_err multiply(const struct job *j, struct product *p, struct pd_why *why)
{
    p->call.workspace = j->products;
    p->call.workspace_bytes = cuda_matmul_workspace(j->b, &p->call);
    return cuda_matmul(j->b, &p->call, why);
}

static char *bytes_at(const void *data, enum pk_dtype dtype, int64_t element)
{
    return (char *)(uintptr_t)data + element * cuda_size(dtype);
}

/* The second input, dense. */
static enum pd_err second_of(const struct job *j, const void **ret, struct pd_why *why)
{
    const struct pk_view *v = &j->c->in[1];

    *ret = j->copy_b ? j->copy_b : v->data;
    return j->copy_b ? cuda_copy_view(j->b, v, j->copy_b, v->dtype, why) : PD_OK;
}

/* CONV2D and CONV2D_DW. */
static enum pd_err run_patches(struct job *j, struct pd_why *why)
{
    const bool dw = j->c->op == PK_OP_CONV2D_DW;
    const struct pk_view *out = &j->c->out[0], *x = &j->c->in[0], *y = dw ? &j->c->in[1] : out;
    struct patches p = patches_of(j, x, y->shape.dim[1], y->shape.dim[2], j->kh, j->kw);
    const int64_t chunk = chunk_of(p.depth, x->dtype);
    const void *second;
    enum pd_err err = second_of(j, &second, why);

    if (err == PD_OK && p.count == 0 && cuda_count(&out->shape) > 0)
        PK_CUDA_TRY(cudaMemsetAsync(out->data, 0, (size_t)(cuda_count(&out->shape) * cuda_size(out->dtype)),
                                    j->b->stream));
    if (cuda_count(&out->shape) == 0)
        return err;
    for (int64_t first = 0; first < p.count && err == PD_OK; first += chunk) {
        const int64_t n = p.count - first < chunk ? p.count - first : chunk;
        struct product m;

        err = gather(j, &p, first, n, why);
        if (err != PD_OK)
            return err;
        product_for(j, &m, n, p.depth, j->matrix, dw ? bytes_at(second, x->dtype, first * j->co) : second,
                    dw ? (char *)out->data : bytes_at(out->data, out->dtype, first * j->co), out->dtype,
                    dw && first > 0);
        err = multiply(j, &m, why);
    }
    return err;
}

static enum pd_err run_phase(struct job *j, const struct pk_conv_phase *f, const void *weight,
                             struct pd_why *why)
{
    const struct pk_view *dy = &j->c->in[0], *dx = &j->c->out[0];
    struct patches p = patches_of(j, dy, f->grid_h, f->grid_v, f->kh, f->kw);
    const int64_t chunk = chunk_of(p.depth, dy->dtype);
    enum pd_err err = PD_OK;

    p.step = 1;
    p.row = (int)f->row;
    p.column = (int)f->column;
    for (int64_t first = 0; first < p.count && err == PD_OK; first += chunk) {
        const int64_t n = p.count - first < chunk ? p.count - first : chunk;
        char *to = j->stride > 1 ? j->rows : bytes_at(dx->data, dx->dtype, first * j->ci);
        struct product m;

        if (p.depth > 0) {
            err = gather(j, &p, first, n, why);
            if (err != PD_OK)
                return err;
            product_for(j, &m, n, p.depth, j->matrix, weight, to, dx->dtype, false);
            err = multiply(j, &m, why);
        }
        if (err == PD_OK && (j->stride > 1 || p.depth == 0)) {
            PK_LAUNCH(place_kernel, dim3(blocks_of(j->b, n * j->ci)), dim3(THREADS), 0, j->b->stream,
                      (const void *)(p.depth ? to : NULL), dx->dtype == PK_BF16, *f, j->stride,
                      dx->shape.dim[1], dx->shape.dim[2], j->ci, first, n * j->ci, dx->data,
                      dx->dtype == PK_BF16);
            PK_CUDA_TRY(cudaGetLastError());
        }
    }
    return err;
}

static enum pd_err run_phases(struct job *j, struct pd_why *why)
{
    const struct pk_view *w = &j->c->in[1];
    const void *second = w->data;
    enum pd_err err = PD_OK;
    int64_t at = 0;

    if (cuda_count(&j->c->out[0].shape) == 0)
        return PD_OK;
    err = second_of(j, &second, why);
    for (int i = 0; i < j->phases && err == PD_OK; i++) {
        const int64_t count = phase_depth(j, i) * j->ci;
        char *turned = bytes_at(j->turned, w->dtype, at);

        if (count > 0) {
            PK_LAUNCH(turn_kernel, dim3(blocks_of(j->b, count)), dim3(THREADS), 0, j->b->stream, second,
                      w->dtype == PK_BF16, j->kw, j->ci, j->co, j->stride, j->phase[i], count,
                      (void *)turned);
            PK_CUDA_TRY(cudaGetLastError());
        }
        at += count;
        err = run_phase(j, &j->phase[i], turned, why);
    }
    return err;
}

static enum pd_err run(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    plan(&j, b, c);
    return c->op == PK_OP_CONV2D_DX ? run_phases(&j, why) : run_patches(&j, why);
}

static size_t workspace(const struct pk_backend *b, const struct pk_call *c)
{
    struct pk_call bare = *c;
    struct job j;

    bare.workspace = NULL;
    plan(&j, (struct pk_backend *)(uintptr_t)b, &bare);
    return j.bytes;
}

#define ENTRIES(name)                                                                                        \
    extern "C" size_t cuda_##name##_workspace(const struct pk_backend *b, const struct pk_call *c)           \
    {                                                                                                        \
        return workspace(b, c);                                                                              \
    }                                                                                                        \
    extern "C" bool cuda_##name##_supports(const struct pk_backend *b, const struct pk_call *c)              \
    {                                                                                                        \
        (void)b;                                                                                             \
        return supports(c);                                                                                  \
    }                                                                                                        \
    extern "C" enum pd_err cuda_##name(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)    \
    {                                                                                                        \
        return run(b, c, why);                                                                               \
    }
ENTRIES(conv2d)
ENTRIES(conv2d_dx)
ENTRIES(conv2d_dw)
