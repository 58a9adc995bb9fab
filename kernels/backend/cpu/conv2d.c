/* CONV2D and its derivatives by x and by the kernel, as products of matrices.
 *
 * im2col: for a tile of positions, a matrix in the scratch of the thread has one row per position, with the inputs that
 * the kernel reads there, tap by tap. With the channels last, the taps of one row of the kernel are contiguous.
 *
 *     y  (positions, Co)  = patches of x (positions, kh kw Ci) w
 *     dw (kh kw Ci, Co)   = patches of x' dy, in chunks of positions, whose results are added in order
 *     dx (positions, Ci)  = patches of dy w', where with a stride s positions of one residue by s are one product:
 *                           the taps that reach them are every s-th one of the kernel */
#include <stdatomic.h>

#include "kernels/backend/conv.h"
#include "kernels/backend/cpu/dense.h"
#include "kernels/backend/cpu/ops.h"
#include "kernels/backend/cpu/own_gemm.h"

#define TILE_ELEMENTS 524288 /* of the matrix of one tile: 2 MB of f32 */
#define TILE_MOST 512        /* positions */
#define TILE_LEAST 32
#define TASKS 16 /* so that there are enough tasks */
#define GROUP_COLUMNS                                                                                        \
    1024 /* dw: columns of the patches that one task takes, at least one row of the kernel */
#define PARTIAL_BYTES (64 << 20) /* dw: of all chunks */

/* What one product reads: position (b, h, v) of the grid reads rows h step + row .. + kh - 1 and columns v step +
 * column .. + kw - 1 of image b; zeros beyond its border. */
struct patches {
    const real *image;
    int64_t height, width, channels;
    int64_t grid_h, grid_v, count; /* positions: of one image; of all */
    int64_t step, row, column, kh, kw;
    int64_t depth; /* kh kw channels */
};

/* One phase of dx. */
struct phase {
    struct pk_conv_phase of;
    struct patches p;    /* of dy */
    real *weight;        /* (Ci, kh kw Co) of its taps */
    int64_t from, tasks; /* the first of its tasks, how many */
};

struct job {
    struct pk_backend *b;
    const struct pk_call *c;
    int64_t kh, kw, ci, co, stride, pad;
    struct pk_view a, w; /* the two inputs, dense */
    real *copy_a, *copy_w;
    struct patches p;
    int64_t tile, columns;     /* positions of one; most columns of its matrix */
    real *out, *matrix, *rows; /* per thread: patches of a tile; dx with a stride: its product */
    char *own;
    size_t own_bytes;
    /* dw */
    int64_t group_rows, groups, chunks, chunk;
    real *partial;
    /* dx */
    int64_t phases;
    struct phase phase[PK_CONV_PHASES];
    real *turned;
    atomic_bool failed;
};

/* Rows `first` .. `first` + n - 1 of the kernel's rows [i0, i1), to `to` with `ld` elements a position. */
static void gather(const struct patches *p, int64_t first, int64_t n, int64_t i0, int64_t i1, real *to)
{
    const int64_t run = p->kw * p->channels, ld = (i1 - i0) * run;

    for (int64_t at = first; at < first + n; at++) {
        const int64_t v = at % p->grid_v, h = at / p->grid_v % p->grid_h, b = at / p->grid_v / p->grid_h;
        const int64_t left = v * p->step + p->column;
        const int64_t from = cpu_max(0, -left), end = cpu_min(p->kw, p->width - left);

        for (int64_t i = i0; i < i1; i++) {
            const int64_t row = h * p->step + p->row + i;
            real *line = to + (at - first) * ld + (i - i0) * run;

            if (row < 0 || row >= p->height || end <= from) {
                memset(line, 0, (size_t)run * sizeof(real));
                continue;
            }
            if (from > 0)
                memset(line, 0, (size_t)(from * p->channels) * sizeof(real));
            memcpy(line + from * p->channels,
                   p->image + ((b * p->height + row) * p->width + left + from) * p->channels,
                   (size_t)((end - from) * p->channels) * sizeof(real));
            if (end < p->kw)
                memset(line + end * p->channels, 0, (size_t)((p->kw - end) * p->channels) * sizeof(real));
        }
    }
}

static void patches_of(struct patches *p, const struct pk_view *image, int64_t grid_h, int64_t grid_v)
{
    p->height = image->shape.dim[1];
    p->width = image->shape.dim[2];
    p->channels = image->shape.dim[3];
    p->grid_h = grid_h;
    p->grid_v = grid_v;
    p->count = image->shape.dim[0] * grid_h * grid_v;
    p->depth = p->kh * p->kw * p->channels;
}

static int64_t tile_of(int64_t count, int64_t columns)
{
    int64_t tile = cpu_min(TILE_MOST, cpu_max(TILE_LEAST, TILE_ELEMENTS / cpu_max(1, columns)));

    return cpu_max(1, cpu_min(tile, cpu_max(TILE_LEAST, cpu_div_up(count, TASKS))));
}

static void plan_phases(struct job *j)
{
    const struct pk_shape *x = &j->c->out[0].shape;
    struct pk_conv_phase all[PK_CONV_PHASES];
    int64_t tasks = 0;

    j->phases = pk_conv_phases(j->c->attr, x->dim[1], x->dim[2], j->kh, j->kw, all);
    for (int64_t i = 0; i < j->phases; i++) {
        const struct pk_conv_phase *from = &all[i];
        struct phase *f = &j->phase[i];

        memset(f, 0, sizeof *f);
        f->of = *from;
        f->p = (struct patches){
            .step = 1, .row = from->row, .column = from->column, .kh = from->kh, .kw = from->kw};
        patches_of(&f->p, &j->a, from->grid_h, from->grid_v);
        f->from = tasks;
        f->tasks = cpu_div_up(f->p.count, j->tile);
        tasks += f->tasks;
    }
}

static void plan(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_view *w = c->op == PK_OP_CONV2D_DW ? &c->out[0] : &c->in[1];
    const struct pk_view *grid = c->op == PK_OP_CONV2D      ? &c->out[0]
                                 : c->op == PK_OP_CONV2D_DX ? &c->in[0]
                                                            : &c->in[1];

    memset(j, 0, sizeof *j);
    j->b = b;
    j->c = c;
    j->kh = w->shape.dim[0];
    j->kw = w->shape.dim[1];
    j->ci = w->shape.dim[2];
    j->co = w->shape.dim[3];
    j->stride = c->attr->conv.stride;
    j->pad = c->attr->conv.pad;
    j->a = c->in[0];
    j->w = c->in[1];
    j->out = c->out[0].data;
    if (c->op == PK_OP_CONV2D_DX) {
        j->tile = tile_of(pk_shape_count(&c->out[0].shape) / cpu_max(1, j->ci) / (j->stride * j->stride),
                          cpu_div_up(j->kh, j->stride) * cpu_div_up(j->kw, j->stride) * j->co);
        plan_phases(j);
        return;
    }
    j->p = (struct patches){.step = j->stride, .row = -j->pad, .column = -j->pad, .kh = j->kh, .kw = j->kw};
    patches_of(&j->p, &c->in[0], grid->shape.dim[1], grid->shape.dim[2]);
    j->tile = tile_of(j->p.count, j->p.depth);
    if (c->op == PK_OP_CONV2D_DW) {
        const int64_t row = j->kw * j->ci,
                      most = PARTIAL_BYTES / (int64_t)sizeof(real) / cpu_max(1, j->p.depth * j->co);

        j->group_rows = cpu_max(1, cpu_min(j->kh, GROUP_COLUMNS / cpu_max(1, row)));
        j->groups = cpu_div_up(j->kh, j->group_rows);
        j->tile = tile_of(j->p.count, j->group_rows * row);
        j->chunks = cpu_min(cpu_div_up(TASKS, j->groups), cpu_div_up(j->p.count, 2 * j->tile));
        j->chunks = cpu_max(1, cpu_min(j->chunks, most));
        j->chunk = cpu_round_up(cpu_div_up(j->p.count, j->chunks), j->tile);
        j->chunks = cpu_max(1, cpu_div_up(j->p.count, cpu_max(1, j->chunk)));
    }
}

static void take_scratch(struct job *j, struct cpu_scratch *s, int threads)
{
    const bool dx = j->c->op == PK_OP_CONV2D_DX;

    j->columns = j->c->op == PK_OP_CONV2D_DW ? j->group_rows * j->kw * j->ci : j->p.depth;
    for (int64_t i = 0; i < j->phases; i++)
        j->columns = cpu_max(j->columns, j->phase[i].p.depth);
    if (cpu_dense_bytes(&j->a))
        j->copy_a = cpu_take(s, cpu_dense_bytes(&j->a));
    if (cpu_dense_bytes(&j->w))
        j->copy_w = cpu_take(s, cpu_dense_bytes(&j->w));
    j->matrix = cpu_take(s, (size_t)(threads * j->tile * j->columns) * sizeof(real));
    if (dx)
        j->turned = cpu_take(s, (size_t)(j->kh * j->kw * j->ci * j->co) * sizeof(real));
    if (dx && j->stride > 1)
        j->rows = cpu_take(s, (size_t)(threads * j->tile * j->ci) * sizeof(real));
    if (j->chunks > 1)
        j->partial = cpu_take(s, (size_t)(j->chunks * j->p.depth * j->co) * sizeof(real));
    j->own_bytes = PK_FN(block_scratch)(j->b);
    if (j->own_bytes)
        j->own = cpu_take(s, j->own_bytes * (size_t)threads);
}

size_t PK_FN(conv2d_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    plan(&j, (struct pk_backend *)b, c);
    take_scratch(&j, &s, cpu_threads_of(b));
    return s.used;
}

static void product(struct job *j, int thread, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                    const real *x, int64_t ldx, const real *y, int64_t ldy, bool add, real *to, int64_t ldc)
{
    if (!PK_FN(block_product)(j->b, ta, tb, m, n, k, x, ldx, y, ldy, add, to, ldc,
                              j->own ? j->own + j->own_bytes * (size_t)thread : NULL))
        atomic_store(&j->failed, true);
}

static void forward_task(void *arg, int64_t task, int thread)
{
    struct job *j = arg;
    const int64_t first = task * j->tile, n = cpu_min(j->tile, j->p.count - first);
    real *matrix = j->matrix + thread * j->tile * j->columns;

    gather(&j->p, first, n, 0, j->kh, matrix);
    product(j, thread, false, false, n, j->co, j->p.depth, matrix, j->p.depth, j->w.data, j->co, false,
            j->out + first * j->co, j->co);
}

static void kernel_task(void *arg, int64_t task, int thread)
{
    struct job *j = arg;
    const int64_t group = task % j->groups, at = task / j->groups,
                  end = cpu_min(j->p.count, (at + 1) * j->chunk);
    const int64_t i0 = group * j->group_rows, i1 = cpu_min(j->kh, i0 + j->group_rows), row = j->kw * j->ci;
    const int64_t columns = (i1 - i0) * row;
    const real *dy = j->w.data;
    real *matrix = j->matrix + thread * j->tile * j->columns;
    real *to = (j->chunks > 1 ? j->partial + at * j->p.depth * j->co : j->out) + i0 * row * j->co;

    for (int64_t first = at * j->chunk; first < end; first += j->tile) {
        const int64_t n = cpu_min(j->tile, end - first);

        gather(&j->p, first, n, i0, i1, matrix);
        product(j, thread, true, false, columns, j->co, n, matrix, columns, dy + first * j->co, j->co,
                first > at * j->chunk, to, j->co);
    }
}

#define ADD_PIECE 4096

static void add_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const int64_t all = j->p.depth * j->co, end = cpu_min(all, (task + 1) * ADD_PIECE);

    (void)thread;
    for (int64_t i = task * ADD_PIECE; i < end; i += W) {
        const int64_t n = cpu_min(W, end - i);
        vec sum = vldn(j->partial + i, n);

        for (int64_t k = 1; k < j->chunks; k++)
            sum += vldn(j->partial + k * all + i, n);
        vstn(j->out + i, sum, n);
    }
}

/* Row ci of every phase's weight: the taps in the order in which gather finds them, the last one first. */
static void turn_task(void *arg, int64_t ci, int thread)
{
    struct job *j = arg;
    const real *w = j->w.data;

    (void)thread;
    for (int64_t k = 0; k < j->phases; k++) {
        const struct phase *f = &j->phase[k];
        real *to = f->weight + ci * f->p.depth;

        for (int64_t i = 0; i < f->p.kh; i++)
            for (int64_t v = 0; v < f->p.kw; v++, to += j->co)
                memcpy(to,
                       w + (((f->of.last_h - i * j->stride) * j->kw + f->of.last_v - v * j->stride) * j->ci +
                            ci) *
                               j->co,
                       (size_t)j->co * sizeof(real));
    }
}

static void image_task(void *arg, int64_t task, int thread)
{
    struct job *j = arg;
    const struct phase *f = j->phase;
    const int64_t height = j->c->out[0].shape.dim[1], width = j->c->out[0].shape.dim[2];
    real *matrix = j->matrix + thread * j->tile * j->columns, *to;
    int64_t first, n;

    while (task >= f->from + f->tasks)
        f++;
    first = (task - f->from) * j->tile;
    n = cpu_min(j->tile, f->p.count - first);
    to = j->stride > 1 ? j->rows + thread * j->tile * j->ci : j->out + first * j->ci;
    if (f->p.depth == 0) { /* no tap reaches it */
        memset(to, 0, (size_t)(n * j->ci) * sizeof(real));
    } else {
        gather(&f->p, first, n, 0, f->p.kh, matrix);
        product(j, thread, false, true, n, j->ci, f->p.depth, matrix, f->p.depth, f->weight, f->p.depth,
                false, to, j->ci);
    }
    if (j->stride == 1)
        return;
    for (int64_t at = first; at < first + n; at++) {
        const int64_t v = at % f->p.grid_v, h = at / f->p.grid_v % f->p.grid_h,
                      b = at / f->p.grid_v / f->p.grid_h;

        memcpy(j->out +
                   ((b * height + h * j->stride + f->of.at_h) * width + v * j->stride + f->of.at_v) * j->ci,
               to + (at - first) * j->ci, (size_t)j->ci * sizeof(real));
    }
}

static void begin(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {c->workspace, 0};

    plan(j, b, c);
    take_scratch(j, &s, cpu_pool_threads(b->pool));
    cpu_dense_lay(b, &j->a, j->copy_a);
    cpu_dense_lay(b, &j->w, j->copy_w);
    j->p.image = j->a.data;
}

static enum pd_err end(const struct job *j, struct pd_why *why)
{
    if (atomic_load(&j->failed))
        return pd_fail(why, PD_ERR_INTERNAL, "%s failed to compute a matrix product of a convolution",
                       j->b->gemm->name);
    return PD_OK;
}

enum pd_err PK_FN(conv2d)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    begin(&j, b, c);
    if (pk_shape_count(&c->out[0].shape) == 0)
        return PD_OK;
    cpu_pool_run(b->pool, cpu_div_up(j.p.count, j.tile), forward_task, &j);
    return end(&j, why);
}

enum pd_err PK_FN(conv2d_dw)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    begin(&j, b, c);
    if (j.p.count == 0)
        memset(j.out, 0, (size_t)pk_shape_count(&c->out[0].shape) * sizeof(real));
    if (j.p.count == 0 || pk_shape_count(&c->out[0].shape) == 0)
        return PD_OK;
    cpu_pool_run(b->pool, j.groups * j.chunks, kernel_task, &j);
    if (j.chunks > 1)
        cpu_pool_run(b->pool, cpu_div_up(j.p.depth * j.co, ADD_PIECE), add_task, &j);
    return end(&j, why);
}

enum pd_err PK_FN(conv2d_dx)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    int64_t tasks = 0;
    real *weight;
    struct job j;

    begin(&j, b, c);
    if (pk_shape_count(&c->out[0].shape) == 0)
        return PD_OK;
    weight = j.turned;
    for (int64_t i = 0; i < j.phases; i++) {
        j.phase[i].p.image = j.a.data;
        j.phase[i].weight = weight;
        weight += j.phase[i].p.depth * j.ci;
        tasks = j.phase[i].from + j.phase[i].tasks;
    }
    cpu_pool_run(b->pool, j.ci, turn_task, &j);
    cpu_pool_run(b->pool, tasks, image_task, &j);
    return end(&j, why);
}
