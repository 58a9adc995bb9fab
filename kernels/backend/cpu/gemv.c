/* Products of at most CPU_FEW_ROWS rows: each element of b is read from memory once, in order, with the next
 * lines asked for ahead.
 *
 * b stored (N, K), as tied embeddings are: a task takes a few of its rows and computes dots. b stored (K, N):
 * a task takes a range of K and of columns and adds rows of b into its own partial sums; the task that finishes
 * a range of columns last adds its parts, in order. How K is cut depends on b's shape alone. */
#include "kernels/backend/cpu/matmul.h"

#define FEW_DOTS 32    /* rows of b in one task of dots */
#define FEW_COLS 1024  /* most columns of one task of sums: 4 KiB of a row, and the sums stay in the cache */
#define FEW_TASKS 16   /* so that tasks divide evenly */
#define FEW_SPLIT 32   /* least rows of b in a task of sums */
#define FEW_AHEAD 1024 /* bytes that dots prefetch ahead */
#define LINE 64

struct cpu_few_column {
    atomic_int left; /* tasks of this range of columns that have not finished */
    char pad[LINE - sizeof(atomic_int)];
};

static bool sums(const struct cpu_matmul *p)
{
    return !p->tb && p->batch == 1;
}

void PK_FN(matmul_few_scratch)(struct cpu_matmul *p, struct cpu_scratch *s)
{
    if (!sums(p))
        return;
    p->few_cols = cpu_max(1, cpu_div_up(p->n, FEW_COLS));
    p->few_bn = cpu_round_up(cpu_div_up(p->n, p->few_cols), W);
    p->few_cols = cpu_max(1, cpu_div_up(p->n, p->few_bn));
    p->splits = cpu_max(1, cpu_min(cpu_div_up(FEW_TASKS, p->few_cols), p->k / FEW_SPLIT));
    p->split_k = cpu_max(1, cpu_div_up(p->k, p->splits));
    p->splits = cpu_max(1, cpu_div_up(p->k, p->split_k));
    p->column = cpu_take(s, (size_t)p->few_cols * sizeof *p->column);
    p->partial = cpu_take(s, (size_t)(p->splits * p->m * p->few_cols * p->few_bn) * sizeof(real));
}

/* W elements of b from element i on, whichever type they have. */
INLINE vec load_b(const char *b, int64_t i, const bool half)
{
#if !CPU_F64
    if (half) {
        typedef uint16_t half_vec __attribute__((vector_size(VEC_BYTES / 2), aligned(2), may_alias));
        typedef uint32_t wide_vec __attribute__((vector_size(VEC_BYTES)));

        return (vec)(__builtin_convertvector(*(const half_vec *)(b + 2 * i), wide_vec) << 16);
    }
#endif
    (void)half;
    return vld((const real *)(const void *)b + i);
}

/* The first n < W of them; the others are 0. */
INLINE vec load_b_part(const char *b, int64_t i, int64_t n, const bool half)
{
#if !CPU_F64
    if (half) {
        uint16_t part[W] = {0};

        memcpy(part, b + 2 * i, (size_t)n * 2);
        return load_b((const char *)part, 0, true);
    }
#endif
    (void)half;
    return vldn((const real *)(const void *)b + i, n);
}

INLINE int64_t size_b(const bool half)
{
    return half ? 2 : (int64_t)sizeof(real);
}

/* ---- dots ---- */

/* Four rows of x against one of b, each summed as vdot does. */
INLINE void dot4(int64_t n, const real *const x[4], const char *b, real *ret, int64_t step, const bool half)
{
    vec s[4][4];
    int64_t k = 0;

    for (int i = 0; i < 4; i++)
        for (int u = 0; u < 4; u++)
            s[i][u] = vzero();
    for (; k + 4 * W <= n; k += 4 * W) {
        for (int u = 0; u < 4; u++) {
            vec v = load_b(b, k + u * W, half);

            __builtin_prefetch(b + (k + u * W) * size_b(half) + FEW_AHEAD);
            for (int i = 0; i < 4; i++)
                s[i][u] += vld(x[i] + k + u * W) * v;
        }
    }
    for (; k + W <= n; k += W)
        for (int i = 0; i < 4; i++)
            s[i][0] += vld(x[i] + k) * load_b(b, k, half);
    if (k < n)
        for (int i = 0; i < 4; i++)
            s[i][1] += vldn(x[i] + k, n - k) * load_b_part(b, k, n - k, half);
    for (int i = 0; i < 4; i++)
        ret[i * step] = vsum((s[i][0] + s[i][1]) + (s[i][2] + s[i][3]));
}

INLINE real dot1(int64_t n, const real *x, const char *b, const bool half)
{
    vec s[4] = {vzero(), vzero(), vzero(), vzero()};
    int64_t k = 0;

    for (; k + 4 * W <= n; k += 4 * W) {
        for (int u = 0; u < 4; u++) {
            __builtin_prefetch(b + (k + u * W) * size_b(half) + FEW_AHEAD);
            s[u] += vld(x + k + u * W) * load_b(b, k + u * W, half);
        }
    }
    for (; k + W <= n; k += W)
        s[0] += vld(x + k) * load_b(b, k, half);
    if (k < n)
        s[1] += vldn(x + k, n - k) * load_b_part(b, k, n - k, half);
    return vsum((s[0] + s[1]) + (s[2] + s[3]));
}

static void finish(const struct cpu_matmul *p, int64_t batch, int64_t i, int64_t j, int64_t n, real *t)
{
    if (p->residual_in_place && p->act == PK_ACT_NONE) {
        const real *o = p->out + (batch * p->m + i) * p->n + j;

        for (int64_t c = 0; c < n; c++)
            t[c] += o[c];
    }
    PK_FN(matmul_finish)(p, batch, i, j, n, t);
}

INLINE void dots(const struct cpu_matmul *p, int64_t task, const bool half)
{
    int64_t tasks = cpu_div_up(p->n, FEW_DOTS), batch = task / tasks, j0 = task % tasks * FEW_DOTS;
    int64_t n = cpu_min(FEW_DOTS, p->n - j0);
    const real *x = PK_FN(matmul_operand)(p, &p->c->in[0], &p->x, p->m * p->k, batch);
    const char *y = PK_FN(matmul_b)(p, batch);
    real t[CPU_FEW_ROWS][FEW_DOTS];

    for (int64_t j = 0; j < n; j++) {
        const char *row = y + (j0 + j) * p->ldb * size_b(half);
        int64_t i = 0;

        for (; i + 4 <= p->m; i += 4) {
            const real *const rows[4] = {x + i * p->lda, x + (i + 1) * p->lda, x + (i + 2) * p->lda,
                                         x + (i + 3) * p->lda};

            dot4(p->k, rows, row, &t[i][j], FEW_DOTS, half);
        }
        for (; i < p->m; i++)
            t[i][j] = dot1(p->k, x + i * p->lda, row, half);
    }
    for (int64_t i = 0; i < p->m; i++)
        finish(p, batch, i, j0, n, t[i]);
}

static void dots_task(void *arg, int64_t task, int thread)
{
    const struct cpu_matmul *p = arg;

    (void)thread;
    if (p->half)
        dots(p, task, true);
    else
        dots(p, task, false);
}

/* ---- sums ---- */

/* t[j] += sum over r of a[r] b[r][j], one product after the other, n a multiple of W or the last columns.
 * `ahead`: elements from a line to the one that will be wanted next. */
INLINE void add_rows(int rows, int64_t n, const real *a, const char *b, int64_t ldb, bool ahead, real *t,
                     const bool half)
{
    vec x[8];
    int64_t j = 0;

    for (int r = 0; r < rows; r++)
        x[r] = vset(a[r]);
    for (; j + W <= n; j += W) {
        vec s = vld(t + j);

        for (int r = 0; r < rows; r++) {
            if (ahead)
                __builtin_prefetch(b + ((rows + r) * ldb + j) * size_b(half));
            s += x[r] * load_b(b, r * ldb + j, half);
        }
        vst(t + j, s);
    }
    if (j < n) {
        vec s = vldn(t + j, n - j);

        for (int r = 0; r < rows; r++)
            s += x[r] * load_b_part(b, r * ldb + j, n - j, half);
        vstn(t + j, s, n - j);
    }
}

/* Rows k0 .. k1-1 of b, columns of it from column j0 on. */
INLINE void add_some(const struct cpu_matmul *p, int64_t k0, int64_t k1, int64_t n, const real *x,
                     const char *b, real *t, int64_t ldt, const bool half)
{
    int64_t k = k0, row = p->ldb * size_b(half);

    for (int64_t i = 0; i < p->m; i++)
        memset(t + i * ldt, 0, (size_t)n * sizeof *t);
    for (; k + 8 <= k1; k += 8) {
        add_rows(8, n, x + k, b + k * row, p->ldb, true, t, half);
        for (int64_t i = 1; i < p->m; i++)
            add_rows(8, n, x + i * p->lda + k, b + k * row, p->ldb, false, t + i * ldt, half);
    }
    for (; k < k1; k++)
        for (int64_t i = 0; i < p->m; i++)
            add_rows(1, n, x + i * p->lda + k, b + k * row, p->ldb, false, t + i * ldt, half);
}

static void add_range(const struct cpu_matmul *p, int64_t k0, int64_t k1, int64_t j0, int64_t n,
                      const real *x, const char *b, real *t, int64_t ldt)
{
    if (p->half)
        add_some(p, k0, k1, n, x, b + j0 * size_b(true), t, ldt, true);
    else
        add_some(p, k0, k1, n, x, b + j0 * size_b(false), t, ldt, false);
}

static void sums_task(void *arg, int64_t task, int thread)
{
    struct cpu_matmul *p = arg;
    int64_t column = task / p->splits, split = task % p->splits, j0 = column * p->few_bn;
    int64_t n = cpu_min(p->few_bn, p->n - j0), part = p->m * p->few_bn;
    real *t = p->partial + column * p->splits * part;
    int64_t k0 = cpu_min(p->k, split * p->split_k), k1 = cpu_min(p->k, k0 + p->split_k);
    const real *x = PK_FN(matmul_operand)(p, &p->c->in[0], &p->x, p->m * p->k, 0);

    (void)thread;
    add_range(p, k0, k1, j0, n, x, PK_FN(matmul_b)(p, 0), t + split * part, p->few_bn);
    if (atomic_fetch_sub_explicit(&p->column[column].left, 1, memory_order_acq_rel) > 1)
        return;
    for (int64_t i = 0; i < p->m; i++) {
        real *row = t + i * p->few_bn;

        for (int64_t s = 1; s < p->splits; s++) {
            const real *from = row + s * part;
            int64_t j = 0;

            for (; j + W <= n; j += W)
                vst(row + j, vld(row + j) + vld(from + j));
            for (; j < n; j++)
                row[j] += from[j];
        }
        finish(p, 0, i, j0, n, row);
    }
}

/* b stored (K, N), many small products: one a task. */
static void small_task(void *arg, int64_t batch, int thread)
{
    const struct cpu_matmul *p = arg;
    const real *x = PK_FN(matmul_operand)(p, &p->c->in[0], &p->x, p->m * p->k, batch);
    const char *y = PK_FN(matmul_b)(p, batch);
    real t[CPU_FEW_ROWS * 256];

    (void)thread;
    for (int64_t j = 0; j < p->n; j += 256) {
        int64_t n = cpu_min(256, p->n - j);

        add_range(p, 0, p->k, j, n, x, y, t, 256);
        for (int64_t i = 0; i < p->m; i++)
            finish(p, batch, i, j, n, t + i * 256);
    }
}

void PK_FN(matmul_few)(struct cpu_matmul *p)
{
    if (sums(p)) {
        for (int64_t i = 0; i < p->few_cols; i++)
            atomic_init(&p->column[i].left, (int)p->splits);
        cpu_pool_run(p->b->pool, p->few_cols * p->splits, sums_task, p);
    } else if (p->tb) {
        cpu_pool_run(p->b->pool, p->batch * cpu_div_up(p->n, FEW_DOTS), dots_task, p);
    } else {
        cpu_pool_run(p->b->pool, p->batch, small_task, p);
    }
}
