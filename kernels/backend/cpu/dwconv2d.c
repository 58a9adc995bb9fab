/* DWCONV2D and its derivative by the kernel; vectors run along the channels.
 *
 * A row of the output is one task. Inside the image, four neighbours along the row share their loads of x: with
 * kernels three wide, each row of the kernel takes six vectors of x and three of the kernel for four outputs.
 *
 * Derivative: a task takes ROWS rows of the batch and writes its sums; those are added in order. */
#include "kernels/backend/cpu/dense.h"
#include "kernels/backend/cpu/ops.h"

#define ROWS 16
#define SIDE 4 /* neighbours */
#define PAST_BYTES (8 << 20)
#define TALL 3 /* most rows of a kernel that is read three wide at once */

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
    j->past = pk_shape_count(&c->out[0].shape) * (int64_t)sizeof(real) >= PAST_BYTES &&
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

/* Operands of a row of the output with kernels three wide: rows of x, and the taps of each from left to right. */
struct lines {
    int64_t count;
    const real *x[TALL], *tap[TALL][3];
    ptrdiff_t
        ahead; /* from the last row of x to the one that the next row of the output is the first to read */
};

/* The same four outputs of W channels (n of them) from one column left of x + e on. */
INLINE void four_of_three(const struct lines *l, int64_t c, int64_t at0, int64_t e, int64_t n, real *to,
                          bool past, const int64_t count)
{
    vec sum[SIDE] = {vzero(), vzero(), vzero(), vzero()};

    for (int64_t i = 0; i < count; i++) {
        const real *from = l->x[i] + at0 + e;
        vec at[SIDE + 2], tap[3];

        for (int u = 0; u < SIDE + 2; u++)
            at[u] = part_load(from + u * c, n);
        for (int k = 0; k < 3; k++)
            tap[k] = part_load(l->tap[i][k] + e, n);
        for (int u = 0; u < SIDE; u++)
            sum[u] += at[u] * tap[0] + at[u + 1] * tap[1] + at[u + 2] * tap[2];
    }
    for (int u = 0; u < SIDE; u++) {
        __builtin_prefetch(l->x[count - 1] + l->ahead + at0 + u * c + e, 0, 2);
        if (n == W)
            store(to + u * c + e, sum[u], past);
        else
            vstn(to + u * c + e, sum[u], n);
    }
}

INLINE void side_of_three(const struct lines *l, int64_t c, int64_t at0, real *to, bool past,
                          const int64_t count)
{
    int64_t e = 0;

    for (; e + W <= c; e += W)
        four_of_three(l, c, at0, e, W, to, past, count);
    if (e < c)
        four_of_three(l, c, at0, e, c - e, to, false, count);
}

/* False: the kernel has another size. */
static bool lines_of(const struct job *j, const real *x, int64_t h, struct lines *l)
{
    const int64_t c = j->channels, line = j->width * c;

    l->count = 0;
    if (j->kw != 3 || j->kh > TALL || j->kh % 2 == 0)
        return false;
    for (int64_t i = 0; i < j->kh; i++) {
        const int64_t row = h + i - j->top;
        const real *w = (const real *)j->second.data + (j->sign < 0 ? j->kh - 1 - i : i) * 3 * c;

        if (row < 0 || row >= j->height)
            continue;
        l->x[l->count] = x + row * line - c;
        for (int k = 0; k < 3; k++)
            l->tap[l->count][k] = w + (j->sign < 0 ? 2 - k : k) * c;
        l->count++;
    }
    l->ahead = line;
    return l->count > 0;
}

static void row_task(void *arg, int64_t task, int thread)
{
    const struct job *j = arg;
    const int64_t h = task % j->height, c = j->channels;
    const real *x = (const real *)j->x.data + task / j->height * j->height * j->width * c;
    real *to = j->out + task * j->width * c;
    struct lines l;
    const bool three = lines_of(j, x, h, &l);
    int64_t v = 0;

    (void)thread;
    for (; v < cpu_min(j->left, j->width); v++)
        one(j, x, h, v, to + v * c);
    for (; v + SIDE + j->left <= j->width; v += SIDE) {
        if (!three)
            four(j, x, h, v, to + v * c);
        else if (l.count == 3)
            side_of_three(&l, c, v * c, to + v * c, j->past, 3);
        else if (l.count == 2)
            side_of_three(&l, c, v * c, to + v * c, j->past, 2);
        else
            side_of_three(&l, c, v * c, to + v * c, j->past, 1);
    }
    for (; v < j->width; v++)
        one(j, x, h, v, to + v * c);
    stored(j->past);
}

enum pd_err PK_FN(dwconv2d)(struct pk_backend *b, const struct pk_call *c, struct pd_why *why)
{
    struct job j;

    (void)why;
    begin(&j, b, c);
    if (pk_shape_count(&c->out[0].shape) > 0)
        cpu_pool_run(b->pool, j.batch * j.height, row_task, &j);
    return PD_OK;
}

/* ---- the derivative by the kernel ---- */

/* The sums of all taps of a kernel three wide over one row of dy: of W channels (n of them), by `count` rows of x, each
 * of which has its taps in `to`. A window of three columns moves along the rows. */
INLINE void sums_of_three(const real *const *x, const real *dy, real *const *to, int64_t c, int64_t e,
                          int64_t width, ptrdiff_t line, int64_t n, const int64_t count)
{
    vec sum[TALL][3], left[TALL], here[TALL];

    for (int64_t i = 0; i < count; i++) {
        for (int k = 0; k < 3; k++)
            sum[i][k] = part_load(to[i] + k * c + e, n);
        left[i] = vzero();
        here[i] = part_load(x[i] + e, n);
    }
    for (int64_t v = 0; v < width; v++) {
        const vec d = part_load(dy + v * c + e, n);

        __builtin_prefetch(dy + line + v * c + e, 0, 2);
        __builtin_prefetch(x[count - 1] + line + v * c + e, 0, 2);
        for (int64_t i = 0; i < count; i++) {
            const vec right = v + 1 < width ? part_load(x[i] + (v + 1) * c + e, n) : vzero();

            sum[i][0] += left[i] * d;
            sum[i][1] += here[i] * d;
            sum[i][2] += right * d;
            left[i] = here[i];
            here[i] = right;
        }
    }
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < 3; k++)
            vstn(to[i] + k * c + e, sum[i][k], n);
}

INLINE void row_of_three(const struct job *j, const real *const *x, const real *dy, real *const *to,
                         const int64_t count)
{
    const int64_t c = j->channels, line = j->width * c;
    int64_t e = 0;

    for (; e + W <= c; e += W)
        sums_of_three(x, dy, to, c, e, j->width, line, W, count);
    if (e < c)
        sums_of_three(x, dy, to, c, e, j->width, line, c - e, count);
}

/* Row r of the batch, of a kernel three wide and at most three tall. */
static void three_task(const struct job *j, int64_t r, real *to)
{
    const int64_t c = j->channels, line = j->width * c;
    const real *rows[TALL];
    real *taps[TALL];
    int64_t count = 0;

    for (int64_t i = 0; i < j->kh; i++) {
        const int64_t h = r % j->height + i - j->top;

        if (h < 0 || h >= j->height)
            continue;
        rows[count] = (const real *)j->x.data + (r + i - j->top) * line;
        taps[count++] = to + i * 3 * c;
    }
    if (count == 3)
        row_of_three(j, rows, (const real *)j->second.data + r * line, taps, 3);
    else if (count == 2)
        row_of_three(j, rows, (const real *)j->second.data + r * line, taps, 2);
    else if (count == 1)
        row_of_three(j, rows, (const real *)j->second.data + r * line, taps, 1);
}

/* The sums of three taps of a row of the kernel over one row of dy, three of x side by side. */
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
    const real *x = j->x.data, *dy = j->second.data;
    real *to = j->partial + task * all;

    (void)thread;
    memset(to, 0, (size_t)all * sizeof(real));
    for (int64_t r = task * ROWS; r < cpu_min(j->batch * j->height, (task + 1) * ROWS); r++) {
        if (j->kw == 3 && j->kh <= TALL) {
            three_task(j, r, to);
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
