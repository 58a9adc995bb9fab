/* SUM, MAX over axes, and SUMSQ.
 *
 * Axes are merged where memory allows and sorted into kept and reduced ones. Column mode (the last kept
 * axis is dense, as in bias gradients) adds whole rows; row mode adds runs along a reduced axis. Both cut
 * the reduced positions into tiles of fixed size and add the tiles' results in order. */
#include "kernels/backend/cpu/ops.h"

#define ROW_TILE 256   /* rows added by one task in column mode */
#define RUN_TILE 32768 /* elements added by one task in row mode */
#define RUN_PIECE 4096 /* elements added in `real` before the sum goes to double */
#define SQUARES_TILE 65536

struct axes {
    int rank;
    int64_t dim[PK_MAX_RANK], stride[PK_MAX_RANK], count;
};

struct job {
    const real *x;
    real *out;
    struct axes kept, reduced;
    bool max;
    bool columns;
    int64_t width; /* column mode: extent of the dense kept axis */
    int64_t outer; /* column mode: positions of the other kept axes */
    int64_t tiles; /* of the reduced positions */
    int64_t group; /* row mode with one tile: outputs of one task */
    real *partial; /* column mode (outer, tiles, width) */
    double *sums;  /* row mode (outputs, tiles) */
};

static void axis_add(struct axes *a, int64_t dim, int64_t stride)
{
    a->count *= dim;
    if (dim == 1)
        return;
    if (a->rank > 0 && a->stride[a->rank - 1] == dim * stride) {
        a->dim[a->rank - 1] *= dim;
        a->stride[a->rank - 1] = stride;
        return;
    }
    a->dim[a->rank] = dim;
    a->stride[a->rank++] = stride;
}

static void job_shape(struct job *j, const struct pk_call *c)
{
    const struct pk_view *x = &c->in[0];

    memset(j, 0, sizeof *j);
    j->kept.count = j->reduced.count = 1;
    j->max = c->op == PK_OP_MAX;
    for (int i = 0; i < x->shape.rank; i++)
        axis_add(c->attr->reduce.axes >> i & 1 ? &j->reduced : &j->kept, x->shape.dim[i], x->stride[i]);
    j->x = x->data;
    j->out = c->out[0].data;
    j->columns =
        j->kept.rank > 0 && j->kept.stride[j->kept.rank - 1] == 1 && j->kept.dim[j->kept.rank - 1] >= 4;
    if (j->columns) {
        j->width = j->kept.dim[j->kept.rank - 1];
        j->outer = j->kept.count / cpu_max(1, j->width);
        j->tiles = cpu_div_up(j->reduced.count, ROW_TILE);
    } else {
        j->tiles = cpu_div_up(j->reduced.count, RUN_TILE);
        j->group = cpu_max(1, RUN_TILE / cpu_max(1, j->reduced.count));
    }
}

static void job_scratch(struct job *j, struct cpu_scratch *s)
{
    if (j->tiles <= 1)
        return;
    if (j->columns)
        j->partial = cpu_take(s, (size_t)(j->outer * j->tiles * j->width) * sizeof(real));
    else
        j->sums = cpu_take(s, (size_t)(j->kept.count * j->tiles) * sizeof(double));
}

size_t PK_FN(reduce_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    (void)b;
    job_shape(&j, c);
    job_scratch(&j, &s);
    return s.used;
}

INLINE vec vmax_nan(vec a, vec b)
{
    return vsel((a > b) | (a != a), a, b);
}

/* to = to (+ or max) row; `first` writes. */
static void row_into(bool max, bool first, int64_t n, const real *row, real *to)
{
    int64_t i = 0;

    if (first) {
        memcpy(to, row, (size_t)n * sizeof(real));
        return;
    }
    if (max) {
        for (; i + W <= n; i += W)
            vst(to + i, vmax_nan(vld(to + i), vld(row + i)));
        if (i < n)
            vstn(to + i, vmax_nan(vldn(to + i, n - i), vldn(row + i, n - i)), n - i);
        return;
    }
    for (; i + W <= n; i += W)
        vst(to + i, vld(to + i) + vld(row + i));
    if (i < n)
        vstn(to + i, vldn(to + i, n - i) + vldn(row + i, n - i), n - i);
}

static void column_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    int64_t outer = task / j->tiles, tile = task % j->tiles;
    int64_t r0 = tile * ROW_TILE, r1 = cpu_min(j->reduced.count, r0 + ROW_TILE);
    const real *x = j->x + cpu_offset(j->kept.dim, j->kept.stride, j->kept.rank - 1, outer);
    real *to = j->tiles > 1 ? j->partial + task * j->width : j->out + outer * j->width;

    (void)thread;
    for (int64_t r = r0; r < r1; r++)
        row_into(j->max, r == r0, j->width,
                 x + cpu_offset(j->reduced.dim, j->reduced.stride, j->reduced.rank, r), to);
}

static void column_combine(void *arg, int64_t outer, int thread)
{
    const struct job *j = arg;

    (void)thread;
    for (int64_t t = 0; t < j->tiles; t++)
        row_into(j->max, t == 0, j->width, j->partial + (outer * j->tiles + t) * j->width,
                 j->out + outer * j->width);
}

static double run_sum(int64_t n, const real *x, int64_t stride)
{
    double total = 0;

    if (stride == 1) {
        for (int64_t i = 0; i < n; i += RUN_PIECE) {
            int64_t end = cpu_min(n, i + RUN_PIECE), k = i;
            vec s0 = vzero(), s1 = vzero();

            for (; k + 2 * W <= end; k += 2 * W) {
                s0 += vld(x + k);
                s1 += vld(x + k + W);
            }
            for (; k + W <= end; k += W)
                s0 += vld(x + k);
            if (k < end)
                s1 += vldn(x + k, end - k);
            total += vsum_double(s0 + s1);
        }
        return total;
    }
    for (int64_t i = 0; i < n; i++)
        total += (double)x[i * stride];
    return total;
}

static double run_max(int64_t n, const real *x, int64_t stride)
{
    double best = (double)x[0];

    for (int64_t i = 1; i < n; i++) {
        double v = (double)x[i * stride];

        if (!(best > v || best != best))
            best = v;
    }
    return best;
}

/* Reduced positions r0 .. r1-1 of the output at x. */
static double span(const struct job *j, const real *x, int64_t r0, int64_t r1)
{
    const struct axes *a = &j->reduced;
    int64_t run = a->rank ? a->dim[a->rank - 1] : 1, stride = a->rank ? a->stride[a->rank - 1] : 1;
    double total = 0;

    for (int64_t r = r0; r < r1;) {
        int64_t n = cpu_min(run - r % run, r1 - r);
        const real *at = x + cpu_offset(a->dim, a->stride, a->rank, r);
        double v = j->max ? run_max(n, at, stride) : run_sum(n, at, stride);

        if (j->max)
            total = r == r0 || !(total > v || total != total) ? v : total;
        else
            total += v;
        r += n;
    }
    return total;
}

static void run_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;

    (void)thread;
    if (j->tiles > 1) {
        int64_t o = task / j->tiles, tile = task % j->tiles, r0 = tile * RUN_TILE;
        const real *x = j->x + cpu_offset(j->kept.dim, j->kept.stride, j->kept.rank, o);

        j->sums[task] = span(j, x, r0, cpu_min(j->reduced.count, r0 + RUN_TILE));
        return;
    }
    for (int64_t o = task * j->group; o < cpu_min(j->kept.count, (task + 1) * j->group); o++)
        j->out[o] = (real)span(j, j->x + cpu_offset(j->kept.dim, j->kept.stride, j->kept.rank, o), 0,
                               j->reduced.count);
}

enum pd_err PK_FN(reduce)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct cpu_scratch s = {c->workspace, 0};
    struct job j;

    job_shape(&j, c);
    job_scratch(&j, &s);
    if (j.reduced.count == 0) {
        if (j.max && j.kept.count > 0)
            return pd_fail(why, PD_ERR_INVALID, "a maximum needs at least one element");
        for (int64_t o = 0; o < j.kept.count; o++)
            j.out[o] = 0;
        return PD_OK;
    }
    if (j.kept.count == 0)
        return PD_OK;
    if (j.columns) {
        cpu_pool_run(b->pool, j.outer * j.tiles, column_task, &j);
        if (j.tiles > 1)
            cpu_pool_run(b->pool, j.outer, column_combine, &j);
        return PD_OK;
    }
    cpu_pool_run(b->pool, j.tiles > 1 ? j.kept.count * j.tiles : cpu_div_up(j.kept.count, j.group), run_task,
                 &j);
    for (int64_t o = 0; j.tiles > 1 && o < j.kept.count; o++) {
        double total = j.sums[o * j.tiles];

        for (int64_t t = 1; t < j.tiles; t++) {
            double v = j.sums[o * j.tiles + t];

            total = !j.max ? total + v : total > v || total != total ? total : v;
        }
        j.out[o] = (real)total;
    }
    return PD_OK;
}

/* ---- sums of squares ---- */

struct squares {
    const struct pk_call *c;
    double *sums; /* one a tile, inputs one after another */
};

static int64_t view_count(const struct pk_view *v)
{
    int64_t n = 1;

    for (int i = 0; i < v->shape.rank; i++)
        n *= v->shape.dim[i];
    return n;
}

static int64_t squares_tiles(const struct pk_call *c)
{
    int64_t tiles = 0;

    for (int i = 0; i < c->n_in; i++)
        tiles += cpu_div_up(view_count(&c->in[i]), SQUARES_TILE);
    return tiles;
}

size_t PK_FN(sumsq_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    (void)b;
    return (size_t)squares_tiles(c) * sizeof(double);
}

/* Squares in double, eight independent sums. */
static double squares(int64_t n, const real *x)
{
    typedef double lanes __attribute__((vector_size(64)));
    lanes acc[4] = {{0}};
    double total = 0;
    int64_t i = 0;

    for (; i + 32 <= n; i += 32)
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            real part[8] __attribute__((aligned(64)));
            lanes v;

            memcpy(part, x + i + 8 * k, sizeof part);
            for (int l = 0; l < 8; l++)
                v[l] = (double)part[l];
            acc[k] += v * v;
        }
    for (; i < n; i++)
        total += (double)x[i] * (double)x[i];
    acc[0] = (acc[0] + acc[1]) + (acc[2] + acc[3]);
    for (int l = 0; l < 8; l++)
        total += acc[0][l];
    return total;
}

/* Whether the elements are some contiguous memory in any order of axes: a transposed gradient is. */
static bool fills_memory(const struct pk_view *v)
{
    int64_t expect = 1;

    for (int placed = 0; placed < v->shape.rank; placed++) {
        int found = -1;

        for (int i = 0; i < v->shape.rank && found < 0; i++)
            if (v->shape.dim[i] != 1 && v->stride[i] == expect)
                found = i;
        if (found < 0)
            break;
        expect *= v->shape.dim[found];
    }
    return expect == view_count(v);
}

static void squares_task(void *arg, int64_t task, int thread)
{
    struct squares *q = arg;
    const struct pk_view *v = q->c->in;
    int64_t tile = task, tiles, count;
    double total = 0;

    (void)thread;
    while (tile >= (tiles = cpu_div_up(view_count(v), SQUARES_TILE))) {
        tile -= tiles;
        v++;
    }
    count = view_count(v);
    if (fills_memory(v)) {
        total = squares(cpu_min(SQUARES_TILE, count - tile * SQUARES_TILE),
                        (const real *)v->data + tile * SQUARES_TILE);
    } else {
        for (int64_t i = tile * SQUARES_TILE; i < cpu_min(count, (tile + 1) * SQUARES_TILE); i++) {
            double x = (double)((const real *)v->data)[cpu_offset(v->shape.dim, v->stride, v->shape.rank, i)];

            total += x * x;
        }
    }
    q->sums[task] = total;
}

enum pd_err PK_FN(sumsq)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    int64_t tiles = squares_tiles(c);
    struct squares q = {.c = c, .sums = c->workspace};
    double total = 0;

    (void)why;
    cpu_pool_run(b->pool, tiles, squares_task, &q);
    for (int64_t i = 0; i < tiles; i++)
        total += q.sums[i];
    *(real *)c->out[0].data = (real)total;
    return PD_OK;
}
