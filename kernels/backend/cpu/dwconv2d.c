/* DWCONV2D and its derivative by the kernel; vectors run along the channels.
 *
 * Two rows of the output are one task. Inside the image, with kernels three wide, four neighbours of both rows share
 * their loads: eight outputs of a 3 x 3 kernel take 24 vectors of x and nine of the kernel.
 *
 * Derivative: a task takes ROWS rows of the batch and writes its sums; those are added in order. */
#include "kernels/backend/cpu/dense.h"
#include "kernels/backend/cpu/ops.h"

#define ROWS 16
#define SIDE 4    /* neighbours */
#define TALL 3    /* most rows of a kernel that is read three wide at once */
#define BLOCK 128 /* channels */
#define SPAN 8    /* columns: six rows of so many with 256 channels are 48 KiB, a first-level cache */

struct job {
    struct pk_backend *b;
    int64_t batch, height, width, channels, kh, kw, top,
        left;                 /* top, left: what the kernel reaches before it */
    int sign;                 /* -1: the kernel is flipped */
    struct pk_view x, second; /* dense */
    real *copy_x, *copy_second, *out, *partial;
    bool past;     /* the result is stored past the caches */
    int64_t tasks; /* derivative */
};

static void plan(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    const struct pk_shape *x = &c->in[0].shape;
    const struct pk_shape *w = c->op == PK_OP_DWCONV2D ? &c->in[1].shape : &c->out[0].shape;

    *j = (struct job){.b = b,
                      .batch = x->dim[0],
                      .height = x->dim[1],
                      .width = x->dim[2],
                      .channels = x->dim[3],
                      .kh = w->dim[0],
                      .kw = w->dim[1],
                      .top = w->dim[0] / 2,
                      .left = w->dim[1] / 2,
                      .sign = c->op == PK_OP_DWCONV2D && c->attr->conv.flip ? -1 : 1,
                      .x = c->in[0],
                      .second = c->in[1],
                      .out = c->out[0].data};
    j->past = pk_shape_count(&c->out[0].shape) * (int64_t)sizeof(real) >= CPU_PAST_BYTES &&
              j->channels % W == 0 && (uintptr_t)c->out[0].data % VEC_BYTES == 0;
    j->tasks = cpu_div_up(j->batch * j->height, ROWS);
}

static void take_scratch(struct job *j, const struct pk_call *c, struct cpu_scratch *s)
{
    if (cpu_dense_bytes(&j->x))
        j->copy_x = cpu_take(s, cpu_dense_bytes(&j->x));
    if (cpu_dense_bytes(&j->second))
        j->copy_second = cpu_take(s, cpu_dense_bytes(&j->second));
    if (c->op == PK_OP_DWCONV2D_DW)
        j->partial = cpu_take(s, (size_t)(j->tasks * j->kh * j->kw * j->channels) * sizeof(real));
}

size_t PK_FN(dwconv2d_workspace)(const struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {0};
    struct job j;

    plan(&j, (struct pk_backend *)b, c);
    take_scratch(&j, c, &s);
    return s.used;
}

static void begin(struct job *j, struct pk_backend *b, const struct pk_call *c)
{
    struct cpu_scratch s = {c->workspace, 0};

    plan(j, b, c);
    take_scratch(j, c, &s);
    cpu_dense_lay(b, &j->x, j->copy_x);
    cpu_dense_lay(b, &j->second, j->copy_second);
}

/* Non-temporal stores if the result is larger than the caches: an ordinary store reads the line first, which costs half
 * as much again as reading x. */
INLINE void store(real *to, vec x, bool past)
{
#if CPU_AVX512 && !CPU_F64
    if (past)
        _mm512_stream_ps(to, (__m512)x);
    else
        vst(to, x);
#elif CPU_AVX2 && !CPU_F64
    if (past)
        _mm256_stream_ps(to, (__m256)x);
    else
        vst(to, x);
#else
    (void)past;
    vst(to, x);
#endif
}

/* Orders a task's non-temporal stores before reads by other threads. */
INLINE void stored(bool past)
{
#if CPU_AVX512 || CPU_AVX2
    if (past)
        _mm_sfence();
#else
    (void)past;
#endif
}

INLINE vec part_load(const real *p, int64_t n)
{
    return n == W ? vld(p) : vldn(p, n);
}

/* One output near the border: only the taps inside the image. `x`: this image. */
static void one(const struct job *j, const real *x, int64_t h, int64_t v, real *to)
{
    const int64_t c = j->channels;

    for (int64_t e = 0; e < c; e += W) {
        const int64_t n = cpu_min(W, c - e);
        vec sum = vzero();

        for (int64_t i = 0; i < j->kh; i++) {
            const int64_t row = h + j->sign * (i - j->top);

            if (row < 0 || row >= j->height)
                continue;
            for (int64_t k = 0; k < j->kw; k++) {
                const int64_t column = v + j->sign * (k - j->left);

                if (column >= 0 && column < j->width)
                    sum += part_load(x + (row * j->width + column) * c + e, n) *
                           part_load((const real *)j->second.data + (i * j->kw + k) * c + e, n);
            }
        }
        vstn(to + e, sum, n);
    }
}

/* Four outputs from column v on, all of whose taps are inside along the row. */
static void four(const struct job *j, const real *x, int64_t h, int64_t v, real *to)
{
    const int64_t c = j->channels, step = j->sign * c;
    const real *w = j->second.data;

    for (int64_t e = 0; e < c; e += W) {
        const int64_t n = cpu_min(W, c - e);
        vec sum[SIDE] = {vzero(), vzero(), vzero(), vzero()};

        for (int64_t i = 0; i < j->kh; i++) {
            const int64_t row = h + j->sign * (i - j->top);
            const real *from = x + (row * j->width + v - j->sign * j->left) * c + e;

            if (row < 0 || row >= j->height)
                continue;
            for (int64_t k = 0; k < j->kw; k++) {
                const vec tap = part_load(w + (i * j->kw + k) * c + e, n);

                for (int u = 0; u < SIDE; u++)
                    sum[u] += part_load(from + k * step + u * c, n) * tap;
            }
        }
        for (int u = 0; u < SIDE; u++)
            vstn(to + u * c + e, sum[u], n);
    }
}

/* Operands of up to two neighbouring rows of the output with kernels three wide: output row o takes tap row i - o of line i. */
struct lines {
    int64_t height, rows, first, end; /* of the kernel; of the output; lines inside the image */
    const real *x[TALL + 1];          /* one column before the line */
    const real *tap[TALL][3];         /* from left to right */
    ptrdiff_t line;                   /* elements of a row of the image */
};

static struct lines lines_of(const struct job *j, const real *x, int64_t h, int64_t rows)
{
    const int64_t c = j->channels, line = j->width * c;
    struct lines l = {.height = j->kh,
                      .rows = rows,
                      .first = cpu_max(0, j->top - h),
                      .end = cpu_min(j->kh + rows - 1, j->height - h + j->top),
                      .line = line};

    for (int64_t i = l.first; i < l.end; i++)
        l.x[i] = x + (h + i - j->top) * line - c;
    for (int64_t i = 0; i < j->kh; i++)
        for (int k = 0; k < 3; k++)
            l.tap[i][k] = (const real *)j->second.data +
                          ((j->sign < 0 ? j->kh - 1 - i : i) * 3 + (j->sign < 0 ? 2 - k : k)) * c;
    return l;
}

/* Four outputs of W channels (n of them) from e on, of each row; `at`: where the first lies in its row. */
INLINE void tile_of_three(const struct lines *l, int64_t c, int64_t at, int64_t e, int64_t n, real *to,
                          bool past, const int64_t height, const int64_t rows, const int64_t first,
                          const int64_t end)
{
    vec sum[2][SIDE];

    for (int o = 0; o < 2; o++)
        for (int u = 0; u < SIDE; u++)
            sum[o][u] = vzero();
#pragma GCC unroll 4
    for (int64_t i = first; i < end; i++) {
        const real *from = l->x[i] + at + e;
        vec x[SIDE + 2];

        for (int u = 0; u < SIDE + 2; u++)
            x[u] = part_load(from + u * c, n);
        for (int o = 0; o < 2; o++) {
            vec tap[3];

            if (o >= rows || i < o || i - o >= height)
                continue;
            for (int k = 0; k < 3; k++)
                tap[k] = part_load(l->tap[i - o][k] + e, n);
            for (int u = 0; u < SIDE; u++)
                sum[o][u] += x[u] * tap[0] + x[u + 1] * tap[1] + x[u + 2] * tap[2];
        }
    }
    for (int64_t o = 0; o < rows; o++)
        for (int u = 0; u < SIDE; u++) {
            __builtin_prefetch(l->x[end - 1] + (o + 1) * l->line + at + u * c + e, 0, 2); /* the next rows */
            if (n == W)
                store(to + o * l->line + at + u * c + e, sum[o][u], past);
            else
                vstn(to + o * l->line + at + u * c + e, sum[o][u], n);
        }
}

/* Columns `left` to `end` (by SIDE) of the rows, a block of channels after the other: its taps and six columns of it fit
 * the first-level cache. */
static void rows_of_three(const struct lines *l, int64_t c, int64_t left, int64_t end, real *to, bool past)
{
    const bool inside = l->height == 3 && l->rows == 2 && l->first == 0 && l->end == 4;

    for (int64_t block = 0; block < c; block += BLOCK)
        for (int64_t v = left; v + SIDE <= end; v += SIDE)
            for (int64_t e = block; e < cpu_min(c, block + BLOCK); e += W) {
                if (c - e < W)
                    tile_of_three(l, c, v * c, e, c - e, to, false, l->height, l->rows, l->first, l->end);
                else if (inside)
                    tile_of_three(l, c, v * c, e, W, to, past, 3, 2, 0, 4);
                else
                    tile_of_three(l, c, v * c, e, W, to, past, l->height, l->rows, l->first, l->end);
            }
}

static void row_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const int64_t pairs = cpu_div_up(j->height, 2), c = j->channels, line = j->width * c;
    const int64_t h0 = task % pairs * 2, rows = cpu_min(2, j->height - h0), image = task / pairs * j->height;
    const int64_t left = cpu_min(j->left, j->width),
                  inner = cpu_max(0, j->width - 2 * j->left) / SIDE * SIDE; /* columns in fours */
    const real *x = (const real *)j->x.data + image * line;
    real *to = j->out + (image + h0) * line;
    const bool three = j->kw == 3 && j->kh <= TALL;

    (void)thread;
    if (three) {
        const struct lines l = lines_of(j, x, h0, rows);

        rows_of_three(&l, c, left, left + inner, to, j->past);
    }
    for (int64_t h = h0; h < h0 + rows; h++, to += line) {
        for (int64_t v = 0; v < left; v++)
            one(j, x, h, v, to + v * c);
        for (int64_t v = left; v < left + inner && !three; v += SIDE)
            four(j, x, h, v, to + v * c);
        for (int64_t v = left + inner; v < j->width; v++)
            one(j, x, h, v, to + v * c);
    }
    stored(j->past);
}

enum pd_err PK_FN(dwconv2d)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    (void)why;
    begin(&j, b, c);
    if (pk_shape_count(&c->out[0].shape) > 0)
        cpu_pool_run(b->pool, j.batch * cpu_div_up(j.height, 2), row_task, &j);
    return PD_OK;
}

/* ---- the derivative by the kernel ---- */

/* Adds, for W channels (n of them) from e on, to the sums of all taps of a kernel three wide what columns v0 to v1 of `rows`
 * rows of dy bring: dy row o meets line i in tap row i - o. A window of three columns moves along the lines. */
INLINE void sums_of_three(const struct lines *l, const real *dy, int64_t c, int64_t e, int64_t width,
                          int64_t v0, int64_t v1, int64_t n, real *to, const int64_t height,
                          const int64_t rows, const int64_t first, const int64_t end)
{
    vec sum[TALL][3], left[TALL + 1], here[TALL + 1];

    for (int64_t k = 0; k < height; k++)
        for (int m = 0; m < 3; m++)
            sum[k][m] = part_load(to + (k * 3 + m) * c + e, n);
#pragma GCC unroll 4
    for (int64_t i = first; i < end; i++) {
        left[i] = v0 > 0 ? part_load(l->x[i] + v0 * c + e, n) : vzero();
        here[i] = part_load(l->x[i] + (v0 + 1) * c + e, n);
    }
    for (int64_t v = v0; v < v1; v++) {
        vec d[2];

        for (int64_t o = 0; o < rows; o++) {
            d[o] = part_load(dy + o * l->line + v * c + e, n);
            __builtin_prefetch(dy + (rows + o) * l->line + v * c + e, 0, 2);
            __builtin_prefetch(l->x[end - 1] + (o + 1) * l->line + v * c + e, 0, 2);
        }
#pragma GCC unroll 4
        for (int64_t i = first; i < end; i++) {
            const vec right = v + 1 < width ? part_load(l->x[i] + (v + 2) * c + e, n) : vzero();

            for (int64_t o = 0; o < rows; o++) {
                const int64_t k = i - o;

                if (k < 0 || k >= height)
                    continue;
                sum[k][0] += left[i] * d[o];
                sum[k][1] += here[i] * d[o];
                sum[k][2] += right * d[o];
            }
            left[i] = here[i];
            here[i] = right;
        }
    }
    for (int64_t k = 0; k < height; k++)
        for (int m = 0; m < 3; m++)
            vstn(to + (k * 3 + m) * c + e, sum[k][m], n);
}

/* Rows r to r + rows - 1 of the batch, which lie in one image, of a kernel three wide and at most three tall. Memory is read
 * SPAN columns after the other: a channel at a time along whole rows would take a line of each of many pages. */
static void three_task(const struct job *j, int64_t r, int64_t rows, real *to)
{
    const int64_t c = j->channels, line = j->width * c, h = r % j->height;
    const struct lines l = lines_of(j, (const real *)j->x.data + (r - h) * line, h, rows);
    const real *dy = (const real *)j->second.data + r * line;
    const bool inside = l.height == 3 && rows == 2 && l.first == 0 && l.end == 4;

    for (int64_t v = 0; v < j->width; v += SPAN)
        for (int64_t e = 0; e < c; e += W) {
            const int64_t end = cpu_min(j->width, v + SPAN);

            if (inside && c - e >= W)
                sums_of_three(&l, dy, c, e, j->width, v, end, W, to, 3, 2, 0, 4);
            else
                sums_of_three(&l, dy, c, e, j->width, v, end, cpu_min(W, c - e), to, l.height, rows, l.first,
                              l.end);
        }
}

/* The sums of three taps of a row of the kernel over one row of dy, three adjacent ones of x. */
static void row_sums(const struct job *j, const real *x, const real *dy, int64_t taps, int64_t at, real *to)
{
    const int64_t c = j->channels;

    for (int64_t e = 0; e < c; e += W) {
        const int64_t n = cpu_min(W, c - e);
        vec sum[3] = {vzero(), vzero(), vzero()};

        for (int64_t k = 0; k < taps; k++)
            sum[k] = part_load(to + k * c + e, n);
        for (int64_t v = 0; v < j->width; v++) {
            const vec d = part_load(dy + v * c + e, n);

            for (int64_t k = 0; k < taps; k++) {
                const int64_t column = v + at + k - j->left;

                if (column >= 0 && column < j->width)
                    sum[k] += part_load(x + column * c + e, n) * d;
            }
        }
        for (int64_t k = 0; k < taps; k++)
            vstn(to + k * c + e, sum[k], n);
    }
}

static void sums_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const int64_t c = j->channels, line = j->width * c, all = j->kh * j->kw * c;
    const int64_t end = cpu_min(j->batch * j->height, (task + 1) * ROWS);
    const real *x = j->x.data, *dy = j->second.data;
    real *to = j->partial + task * all;

    (void)thread;
    memset(to, 0, (size_t)all * sizeof(real));
    for (int64_t r = task * ROWS, rows; r < end; r += rows) {
        const bool three = j->kw == 3 && j->kh <= TALL;

        rows = three && r + 1 < end && (r + 1) % j->height != 0 ? 2 : 1;
        if (three) {
            three_task(j, r, rows, to);
            continue;
        }
        for (int64_t i = 0; i < j->kh; i++) {
            const int64_t h = r % j->height + i - j->top;

            if (h < 0 || h >= j->height)
                continue;
            for (int64_t k = 0; k < j->kw; k += 3)
                row_sums(j, x + (r + i - j->top) * line, dy + r * line, cpu_min(3, j->kw - k), k,
                         to + (i * j->kw + k) * c);
        }
    }
}

#define ADD_PIECE 1024

static void add_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const int64_t all = j->kh * j->kw * j->channels, end = cpu_min(all, (task + 1) * ADD_PIECE);

    (void)thread;
    for (int64_t i = task * ADD_PIECE; i < end; i += W) {
        const int64_t n = cpu_min(W, end - i);
        vec sum = vzero();

        for (int64_t k = 0; k < j->tasks; k++)
            sum += vldn(j->partial + k * all + i, n);
        vstn(j->out + i, sum, n);
    }
}

enum pd_err PK_FN(dwconv2d_dw)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    (void)why;
    begin(&j, b, c);
    cpu_pool_run(b->pool, j.tasks, sums_task, &j);
    cpu_pool_run(b->pool, cpu_div_up(j.kh * j.kw * j.channels, ADD_PIECE), add_task, &j);
    return PD_OK;
}
